//! The bytes behind allocations.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes with one "was written" bit each.
///
/// Memory comes zeroed from the allocator, so pages that nobody touches cost nothing. All access is by
/// relaxed atomics on raw bytes; see the module's documentation.
pub struct Backing {
    data: NonNull<u8>,
    layout: Layout,
    len: u64,
    /// One bit a byte, 64 bytes a word.
    written: Written,
}

/// The bitmap, allocated zeroed like the data.
struct Written {
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the bytes are only accessed through atomics (or by the owner of the whole backing), and the
// pointers are owned.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

/// Alignment of the first byte: what `cuMemAlloc` and `cuMemHostAlloc` give at least.
const ALIGN: usize = 512;

impl Backing {
    /// Zeroed bytes that count as never written. `None` if the host has not enough memory.
    pub fn new(len: u64) -> Option<Self> {
        let size = usize::try_from(len).ok()?.max(1).checked_next_multiple_of(16)?;
        let layout = Layout::from_size_align(size, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let data = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let count = size.div_ceil(64);
        let Some(words) = Layout::array::<AtomicU64>(count)
            .ok()
            // SAFETY: the size is not zero.
            .and_then(|layout| NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }))
        else {
            // SAFETY: allocated above with this layout.
            unsafe { std::alloc::dealloc(data.as_ptr(), layout) };
            return None;
        };
        Some(Self { data, layout, len, written: Written { words: words.cast(), count } })
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

    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.len),
            "offset was checked by `locate`"
        );
        // SAFETY: inside the allocation, by the assertion.
        unsafe { self.data.as_ptr().add(offset as usize) }
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        assert!((index as usize) < self.written.count);
        // SAFETY: inside the array, by the assertion; zeroed bits are a valid `AtomicU64`.
        unsafe { self.written.words.add(index as usize).as_ref() }
    }

    /// Whether all bytes of the range were written. The range may be of any length.
    #[inline]
    pub fn is_written(&self, offset: u64, bytes: u64) -> bool {
        let (first, shift) = (offset / 64, offset % 64);
        if shift + bytes <= 64 {
            let mask = mask(shift, bytes);
            return self.word(first).load(Ordering::Relaxed) & mask == mask;
        }
        self.ranges(offset, bytes).all(|(word, mask)| self.word(word).load(Ordering::Relaxed) & mask == mask)
    }

    /// The first byte of the range that was never written.
    pub fn first_unwritten(&self, offset: u64, bytes: u64) -> Option<u64> {
        self.ranges(offset, bytes).find_map(|(word, mask)| {
            let missing = !self.word(word).load(Ordering::Relaxed) & mask;
            (missing != 0).then(|| word * 64 + u64::from(missing.trailing_zeros()))
        })
    }

    /// Notes that all bytes of the range were written.
    #[inline]
    pub fn mark_written(&self, offset: u64, bytes: u64) {
        let (first, shift) = (offset / 64, offset % 64);
        if shift + bytes <= 64 {
            set(self.word(first), mask(shift, bytes));
        } else {
            self.ranges(offset, bytes).for_each(|(word, mask)| set(self.word(word), mask));
        }
    }

    /// Makes the range count as never written.
    pub fn forget_written(&self, offset: u64, bytes: u64) {
        for (word, mask) in self.ranges(offset, bytes) {
            self.word(word).fetch_and(!mask, Ordering::Relaxed);
        }
    }

    /// Copies which bytes are written from another backing, as a copy of the bytes must.
    pub fn copy_written(&self, offset: u64, from: &Backing, from_offset: u64, bytes: u64) {
        if from.is_written(from_offset, bytes) {
            return self.mark_written(offset, bytes);
        }
        for i in 0..bytes {
            if from.is_written(from_offset + i, 1) {
                self.mark_written(offset + i, 1);
            } else {
                self.forget_written(offset + i, 1);
            }
        }
    }

    fn ranges(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = offset + bytes;
        (offset / 64..end.div_ceil(64)).filter_map(move |word| {
            let low = offset.max(word * 64);
            let high = end.min(word * 64 + 64);
            (high > low).then(|| (word, mask(low % 64, high - low)))
        })
    }

    /// Loads `N` bytes (1, 2, 4, 8 in one piece if aligned; else byte by byte).
    #[inline]
    pub fn load<const N: usize>(&self, offset: u64) -> [u8; N] {
        let pointer = self.at(offset, N as u64);
        let mut out = [0u8; N];
        // SAFETY: `at` checked the range; the alignment is tested before each wider access; all
        // access to these bytes is atomic.
        unsafe {
            match N {
                2 if offset.is_multiple_of(2) => out.copy_from_slice(
                    &AtomicU16::from_ptr(pointer.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                ),
                4 if offset.is_multiple_of(4) => out.copy_from_slice(
                    &AtomicU32::from_ptr(pointer.cast()).load(Ordering::Relaxed).to_ne_bytes(),
                ),
                8 if offset.is_multiple_of(8) => out.copy_from_slice(
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
                2 if offset.is_multiple_of(2) => AtomicU16::from_ptr(pointer.cast())
                    .store(u16::from_ne_bytes([value[0], value[1]]), Ordering::Relaxed),
                4 if offset.is_multiple_of(4) => AtomicU32::from_ptr(pointer.cast())
                    .store(u32::from_ne_bytes(value[..4].try_into().unwrap_or_default()), Ordering::Relaxed),
                8 if offset.is_multiple_of(8) => AtomicU64::from_ptr(pointer.cast())
                    .store(u64::from_ne_bytes(value[..8].try_into().unwrap_or_default()), Ordering::Relaxed),
                _ => self.write(offset, &value),
            }
        }
    }

    /// The four bytes at an aligned offset as an atomic, for read-modify-write.
    pub fn atomic_u32(&self, offset: u64) -> Option<&AtomicU32> {
        let pointer = self.at(offset, 4);
        // SAFETY: in range and aligned; the reference lives no longer than the backing.
        offset.is_multiple_of(4).then(|| unsafe { AtomicU32::from_ptr(pointer.cast()) })
    }

    /// The eight bytes at an aligned offset as an atomic.
    pub fn atomic_u64(&self, offset: u64) -> Option<&AtomicU64> {
        let pointer = self.at(offset, 8);
        // SAFETY: as above.
        offset.is_multiple_of(8).then(|| unsafe { AtomicU64::from_ptr(pointer.cast()) })
    }

    /// The two bytes at an aligned offset as an atomic.
    pub fn atomic_u16(&self, offset: u64) -> Option<&AtomicU16> {
        let pointer = self.at(offset, 2);
        // SAFETY: as above.
        offset.is_multiple_of(2).then(|| unsafe { AtomicU16::from_ptr(pointer.cast()) })
    }

    /// Reads any number of bytes.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let pointer = self.at(offset, out.len() as u64);
        copy_relaxed(pointer, out.len(), |i, chunk| out[i..i + chunk.len()].copy_from_slice(chunk));
    }

    /// Writes any number of bytes. Does not mark them written.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let pointer = self.at(offset, bytes.len() as u64);
        // Words where the destination is aligned, bytes at the ends.
        let mut i = 0;
        // SAFETY: `at` checked the range; alignment is tested before each wider store.
        unsafe {
            while i < bytes.len() {
                let p = pointer.add(i);
                match bytes[i..].first_chunk::<8>() {
                    Some(chunk) if p.addr().is_multiple_of(8) => {
                        AtomicU64::from_ptr(p.cast()).store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
                        i += 8;
                    }
                    _ => {
                        AtomicU8::from_ptr(p).store(bytes[i], Ordering::Relaxed);
                        i += 1;
                    }
                }
            }
        }
    }
}

/// Reads `len` bytes at `pointer` with relaxed atomics and hands them over piece by piece.
fn copy_relaxed(pointer: *mut u8, len: usize, mut take: impl FnMut(usize, &[u8])) {
    let mut i = 0;
    // SAFETY: the caller checked the range; alignment is tested before each wider load.
    unsafe {
        while i < len {
            let p = pointer.add(i);
            if len - i >= 8 && p.addr().is_multiple_of(8) {
                take(i, &AtomicU64::from_ptr(p.cast()).load(Ordering::Relaxed).to_ne_bytes());
                i += 8;
            } else {
                take(i, &[AtomicU8::from_ptr(p).load(Ordering::Relaxed)]);
                i += 1;
            }
        }
    }
}

#[inline]
fn mask(shift: u64, bytes: u64) -> u64 {
    if bytes >= 64 { u64::MAX } else { ((1 << bytes) - 1) << shift }
}

#[inline]
fn set(word: &AtomicU64, mask: u64) {
    // Most stores hit bytes that were written before: a plain load saves the locked operation.
    if word.load(Ordering::Relaxed) & mask != mask {
        word.fetch_or(mask, Ordering::Relaxed);
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: both were allocated in `new` with these layouts, and this is the owner.
        unsafe {
            std::alloc::dealloc(self.data.as_ptr(), self.layout);
            let words = Layout::array::<AtomicU64>(self.written.count).unwrap_or(Layout::new::<u8>());
            std::alloc::dealloc(self.written.words.as_ptr().cast(), words);
        }
    }
}
