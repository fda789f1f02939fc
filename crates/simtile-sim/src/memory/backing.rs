//! The bytes behind allocations.

use super::written::Written;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes with one "was written" bit each.
///
/// Memory comes zeroed from the allocator, so pages that nobody touches cost nothing. All access is by
/// relaxed atomics on raw bytes; see the module's documentation. Host memory that a program also reaches by
/// its own pointers has no bits: all of it counts as written.
pub struct Backing {
    data: NonNull<u8>,
    /// The block that they lie in and how it was allocated; `None` if they belong to somebody else.
    block: Option<(NonNull<u8>, Layout)>,
    len: u64,
    written: Option<Written>,
}

// SAFETY: the bytes are only accessed through atomics (or by the owner of the whole backing), and the
// pointers are owned, or valid as long as the backing by the contract of `foreign`.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backing").field("data", &self.data).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Alignment of the first byte of device memory: what `cuMemAlloc` gives at least.
const DEVICE_ALIGN: usize = 512;
/// Alignment that zeroed memory has without being written to.
const ANY_ALIGN: usize = 16;
/// Alignment of page-locked memory.
const PAGE: usize = 4096;
/// Bytes that go through the stack at a time when two backings are copied.
const STAGE: usize = 4096;

impl Backing {
    /// Zeroed bytes that count as never written. `None` if the host has not enough memory.
    pub fn new(len: u64) -> Option<Self> {
        Self::allocate(len, DEVICE_ALIGN, true)
    }

    /// Zeroed host memory on whole pages, which a program also reaches by its own pointers.
    pub fn host(len: u64) -> Option<Self> {
        Self::allocate(len, PAGE, false)
    }

    fn allocate(len: u64, align: usize, tracked: bool) -> Option<Self> {
        let size = usize::try_from(len).ok()?.max(1).checked_next_multiple_of(16)?;
        // Aligned here: the allocator of the standard library touches every page of zeroed memory that is to be aligned to
        // more than this, and gigabytes that nobody uses would take time and memory.
        let layout = Layout::from_size_align(size.checked_add(align - ANY_ALIGN)?, ANY_ALIGN).ok()?;
        let written = if tracked { Some(Written::new(size)?) } else { None };
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let skip = block.align_offset(align);
        // SAFETY: the block is aligned to ANY_ALIGN, so at most `align - ANY_ALIGN` bytes are skipped, and so many more
        // than `size` were allocated.
        let data = unsafe { block.add(skip) };
        Some(Self { data, block: Some((block, layout)), len, written })
    }

    /// Somebody else's memory. `None` if the address is null.
    ///
    /// # Safety
    /// The bytes stay readable and writable as long as this value lives.
    pub unsafe fn foreign(data: *mut u8, len: u64) -> Option<Self> {
        Some(Self { data: NonNull::new(data)?, block: None, len, written: None })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Host address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    #[inline]
    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.len),
            "offset was checked by `locate`"
        );
        // SAFETY: inside the allocation, by the assertion.
        unsafe { self.data.as_ptr().add(offset as usize) }
    }

    /// Whether all bytes of the range were written. The range may be of any length.
    #[inline]
    pub fn is_written(&self, offset: u64, bytes: u64) -> bool {
        self.written.as_ref().is_none_or(|written| written.all(offset, bytes))
    }

    /// The first byte of the range that was never written.
    pub fn first_unwritten(&self, offset: u64, bytes: u64) -> Option<u64> {
        self.written.as_ref()?.first_missing(offset, bytes)
    }

    /// Notes that all bytes of the range were written.
    #[inline]
    pub fn mark_written(&self, offset: u64, bytes: u64) {
        if let Some(written) = &self.written {
            written.mark(offset, bytes);
        }
    }

    /// Makes the range count as never written.
    pub fn forget_written(&self, offset: u64, bytes: u64) {
        if let Some(written) = &self.written {
            written.forget(offset, bytes);
        }
    }

    /// Copies which bytes are written from another backing, as a copy of the bytes must.
    pub fn copy_written(&self, offset: u64, from: &Backing, from_offset: u64, bytes: u64) {
        match (&self.written, &from.written) {
            (None, _) => {}
            (Some(to), None) => to.mark(offset, bytes),
            (Some(to), Some(from)) => to.copy(offset, from, from_offset, bytes),
        }
    }

    /// Loads `N` bytes (1, 2, 4, 8 in one piece if aligned; else byte by byte).
    #[inline]
    pub fn load<const N: usize>(&self, offset: u64) -> [u8; N] {
        let pointer = self.at(offset, N as u64);
        let mut out = [0u8; N];
        // Alignment is that of the address: foreign memory may start anywhere.
        // SAFETY: `at` checked the range; the alignment is tested before each wider access; all
        // access to these bytes is atomic.
        unsafe {
            match N {
                2 if pointer.addr().is_multiple_of(2) => out.copy_from_slice(
                    &AtomicU16::from_ptr(pointer.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                ),
                4 if pointer.addr().is_multiple_of(4) => out.copy_from_slice(
                    &AtomicU32::from_ptr(pointer.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                ),
                8 if pointer.addr().is_multiple_of(8) => out.copy_from_slice(
                    &AtomicU64::from_ptr(pointer.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                ),
                _ => self.read(offset, &mut out),
            }
        }
        out
    }

    /// Stores `N` bytes, as [`Backing::load`]. Does not mark them written.
    #[inline]
    pub fn store<const N: usize>(&self, offset: u64, value: [u8; N]) {
        let pointer = self.at(offset, N as u64);
        // SAFETY: as in `load`.
        unsafe {
            match N {
                2 if pointer.addr().is_multiple_of(2) => AtomicU16::from_ptr(pointer.cast())
                    .store(u16::from_ne_bytes([value[0], value[1]]), Ordering::Relaxed),
                4 if pointer.addr().is_multiple_of(4) => AtomicU32::from_ptr(pointer.cast())
                    .store(u32::from_ne_bytes(value[..4].try_into().unwrap_or_default()), Ordering::Relaxed),
                8 if pointer.addr().is_multiple_of(8) => AtomicU64::from_ptr(pointer.cast())
                    .store(u64::from_ne_bytes(value[..8].try_into().unwrap_or_default()), Ordering::Relaxed),
                _ => self.write(offset, &value),
            }
        }
    }

    /// The four bytes at an aligned offset as an atomic, for read-modify-write.
    pub fn atomic_u32(&self, offset: u64) -> Option<&AtomicU32> {
        let pointer = self.at(offset, 4);
        // SAFETY: in range and aligned; the reference lives no longer than the backing.
        pointer.addr().is_multiple_of(4).then(|| unsafe { AtomicU32::from_ptr(pointer.cast()) })
    }

    /// The eight bytes at an aligned offset as an atomic.
    pub fn atomic_u64(&self, offset: u64) -> Option<&AtomicU64> {
        let pointer = self.at(offset, 8);
        // SAFETY: as above.
        pointer.addr().is_multiple_of(8).then(|| unsafe { AtomicU64::from_ptr(pointer.cast()) })
    }

    /// The two bytes at an aligned offset as an atomic.
    pub fn atomic_u16(&self, offset: u64) -> Option<&AtomicU16> {
        let pointer = self.at(offset, 2);
        // SAFETY: as above.
        pointer.addr().is_multiple_of(2).then(|| unsafe { AtomicU16::from_ptr(pointer.cast()) })
    }

    /// Reads any number of bytes.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        // SAFETY: a slice is valid for its length.
        unsafe { self.read_raw(offset, out.as_mut_ptr(), out.len()) }
    }

    /// Writes any number of bytes. Does not mark them written.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: a slice is valid for its length.
        unsafe { self.write_raw(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Reads `len` bytes into memory that need not be initialised.
    ///
    /// # Safety
    /// `out` is valid for writes of `len` bytes.
    pub unsafe fn read_raw(&self, offset: u64, out: *mut u8, len: usize) {
        let pointer = self.at(offset, len as u64);
        let head = head(pointer, len);
        let words = (len - head) / 8;
        // SAFETY: `at` checked our side and the caller gives theirs; words start aligned on our side, and
        // the other side is written without alignment.
        unsafe {
            for i in 0..head {
                out.add(i).write(AtomicU8::from_ptr(pointer.add(i)).load(Ordering::Relaxed));
            }
            let (from, to) = (pointer.add(head).cast::<u64>(), out.add(head).cast::<u64>());
            for i in 0..words {
                to.add(i).write_unaligned(AtomicU64::from_ptr(from.add(i)).load(Ordering::Relaxed));
            }
            for i in head + words * 8..len {
                out.add(i).write(AtomicU8::from_ptr(pointer.add(i)).load(Ordering::Relaxed));
            }
        }
    }

    /// Writes `len` bytes. Does not mark them written.
    ///
    /// # Safety
    /// `bytes` is valid for reads of `len` bytes.
    pub unsafe fn write_raw(&self, offset: u64, bytes: *const u8, len: usize) {
        let pointer = self.at(offset, len as u64);
        let head = head(pointer, len);
        let words = (len - head) / 8;
        // SAFETY: as in `read_raw`.
        unsafe {
            for i in 0..head {
                AtomicU8::from_ptr(pointer.add(i)).store(bytes.add(i).read(), Ordering::Relaxed);
            }
            let (to, from) = (pointer.add(head).cast::<u64>(), bytes.add(head).cast::<u64>());
            for i in 0..words {
                AtomicU64::from_ptr(to.add(i)).store(from.add(i).read_unaligned(), Ordering::Relaxed);
            }
            for i in head + words * 8..len {
                AtomicU8::from_ptr(pointer.add(i)).store(bytes.add(i).read(), Ordering::Relaxed);
            }
        }
    }

    /// Repeats a pattern of 1, 2 or 4 bytes over `len` bytes; a last piece shorter than the pattern gets its
    /// first bytes. Does not mark them written.
    pub fn fill(&self, offset: u64, pattern: Pattern, len: u64) {
        let pointer = self.at(offset, len);
        let len = len as usize;
        let head = head(pointer, len);
        let words = (len - head) / 8;
        let bytes = pattern.repeated();
        // The pattern as it stands at the first aligned byte.
        let word = u64::from_ne_bytes(std::array::from_fn(|i| bytes[(head + i) % 8]));
        // SAFETY: `at` checked the range; words start aligned.
        unsafe {
            for i in (0..head).chain(head + words * 8..len) {
                AtomicU8::from_ptr(pointer.add(i)).store(bytes[i % 8], Ordering::Relaxed);
            }
            let to = pointer.add(head).cast::<u64>();
            for i in 0..words {
                AtomicU64::from_ptr(to.add(i)).store(word, Ordering::Relaxed);
            }
        }
    }

    /// Copies `len` bytes from another backing or from this one; the ranges may overlap. Does not touch the
    /// written bits.
    pub fn copy(&self, offset: u64, from: &Backing, from_offset: u64, len: u64) {
        let (to_start, from_start) = (self.at(offset, len).addr(), from.at(from_offset, len).addr());
        // Backwards if the destination lies in the source, so that no byte is overwritten before it was read.
        // Addresses decide, since two backings may share foreign memory.
        let backwards = to_start > from_start && to_start - from_start < len as usize;
        let mut stage = [0u8; STAGE];
        let stages = len.div_ceil(STAGE as u64);
        for i in 0..stages {
            let at = STAGE as u64 * if backwards { stages - 1 - i } else { i };
            let piece = &mut stage[..(len - at).min(STAGE as u64) as usize];
            from.read(from_offset + at, piece);
            self.write(offset + at, piece);
        }
    }
}

/// Bytes before the first 8-byte boundary.
#[inline]
fn head(pointer: *mut u8, len: usize) -> usize {
    (pointer.addr().next_multiple_of(8) - pointer.addr()).min(len)
}

/// What a fill repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    U8(u8),
    /// Two bytes.
    U16(u16),
    /// Four bytes.
    U32(u32),
}

impl Pattern {
    /// Its size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }

    fn repeated(self) -> [u8; 8] {
        match self {
            Self::U8(v) => [v; 8],
            Self::U16(v) => std::array::from_fn(|i| v.to_ne_bytes()[i % 2]),
            Self::U32(v) => std::array::from_fn(|i| v.to_ne_bytes()[i % 4]),
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some((block, layout)) = self.block {
            // SAFETY: it was allocated with this layout, and this is the owner.
            unsafe { std::alloc::dealloc(block.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_access_falls_back_to_bytes_where_it_is_misaligned() {
        let b = Backing::new(64).unwrap();
        b.store(3, 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!(u64::from_ne_bytes(b.load(3)), 0x1122_3344_5566_7788);
        b.store(9, [1u8, 2]);
        assert_eq!(b.load::<2>(9), [1, 2]);
        assert!(b.atomic_u32(2).is_none() && b.atomic_u32(4).is_some());
        assert!(b.atomic_u64(4).is_none() && b.atomic_u16(1).is_none());
    }

    #[test]
    fn host_memory_counts_as_written_and_lies_on_pages() {
        let b = Backing::host(10).unwrap();
        assert!(b.as_ptr().addr().is_multiple_of(4096));
        assert!(b.is_written(0, 10));
        b.forget_written(0, 10);
        assert_eq!(b.first_unwritten(0, 10), None);
    }

    /// Bytes of the process that are in memory.
    #[cfg(target_os = "linux")]
    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pages_that_nobody_touches_cost_nothing() {
        let before = resident();
        let all = [Backing::new(2 << 30).unwrap(), Backing::host(2 << 30).unwrap()];
        for b in &all {
            b.store(1 << 30, [1u8]);
            assert_eq!(b.load::<1>((2 << 30) - 1), [0]);
        }
        // Other tests of this process use memory at the same time.
        let grown = resident().saturating_sub(before);
        assert!(grown < 1 << 30, "{grown} bytes for a few pages");
        assert!(all[0].as_ptr().addr().is_multiple_of(DEVICE_ALIGN));
    }

    #[test]
    fn foreign_memory_is_used_in_place() {
        let mut memory = [0u8; 33];
        // SAFETY: `memory` outlives the backing.
        let b = unsafe { Backing::foreign(memory.as_mut_ptr().wrapping_add(1), 32) }.unwrap();
        b.fill(0, Pattern::U32(0x0403_0201), 32);
        assert_eq!(u32::from_ne_bytes(b.load(4)), 0x0403_0201);
        drop(b);
        assert_eq!(memory[..6], [0, 1, 2, 3, 4, 1]);
        // SAFETY: null is refused.
        assert!(unsafe { Backing::foreign(std::ptr::null_mut(), 8) }.is_none());
    }

    #[test]
    #[should_panic(expected = "offset was checked")]
    fn a_range_past_the_end_is_stopped() {
        Backing::new(16).unwrap().read(8, &mut [0; 9]);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(Backing::new(u64::MAX).is_none());
        assert!(Backing::host(1 << 62).is_none());
    }

    proptest! {
        #[test]
        fn fills_and_copies_agree_with_slices(
            seed in any::<u64>(), at in 0usize..64, from in 0usize..9000, len in 0usize..9000,
            pattern in prop_oneof![any::<u8>().prop_map(Pattern::U8), any::<u16>().prop_map(Pattern::U16), any::<u32>().prop_map(Pattern::U32)],
        ) {
            let total = 20_000;
            let mut model: Vec<u8> = (0..total).map(|i| (seed.rotate_left(i as u32 % 64) as usize + i * 31) as u8).collect();
            let b = Backing::new(total as u64).unwrap();
            b.write(0, &model);
            b.copy((from + at) as u64, &b, from as u64, len as u64);
            model.copy_within(from..from + len, from + at);
            b.copy(from as u64, &b, (from + at) as u64, len as u64);
            model.copy_within(from + at..from + at + len, from);
            let size = pattern.bytes() as usize;
            let whole = len / size * size;
            b.fill(at as u64, pattern, whole as u64);
            for i in 0..whole {
                model[at + i] = pattern.repeated()[i % size];
            }
            let mut got = vec![0; total];
            b.read(0, &mut got);
            prop_assert!(got == model);
            let mut part = vec![0; len];
            b.read(at as u64, &mut part);
            prop_assert!(part == model[at..at + len]);
        }
    }
}
