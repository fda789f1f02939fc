//! From a pointer to the bytes of an image: `cuModuleLoadData` and `cuLibraryLoadData` get no length.
//!
//! An image says itself how long it is: text by the NUL at its end, a cubin by the tables that its header names,
//! a fat binary by its header, Tile bytecode by the lengths of its sections, one after the other. A real driver trusts
//! these, and so must this one: nothing else tells where the image ends. What is *not* trusted:
//!
//! * A byte is read only if all that was read before it says that it belongs to the image. Of a magic number the first
//!   byte that differs is the last one read; a section's header is read where the section before it ends.
//! * Before anything is read, or taken for a part of the image, the system is asked whether that memory can be read at
//!   all. So a damaged length that points behind mapped memory is an error, and no crash. A damaged length that ends in
//!   other memory of the process gives bytes that are no part of the image; the reader of the kind then says what is
//!   wrong with them. They are compared with what the format allows, never executed. (The system is asked on Linux; other
//!   systems trust the image as far as it says.)
//! * Sections of Tile bytecode that there are not, or a second one of a kind, end the image: what follows cannot be
//!   skipped.
//! * Nothing is longer than 1 GiB.

use super::image::Refusal;
use simtile_driver::sys::CUresult;

/// Longest image that is read: a wrong header must not run away through memory.
const MOST_BYTES: usize = 1 << 30;
pub(super) const TILE_MAGIC: [u8; 8] = *b"\x7fTileIR\0";
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const FATBIN_MAGIC: u32 = 0xba55_ed50;
/// Sections of Tile bytecode: numbers up to this one, each at most once.
const LAST_SECTION: u8 = 7;

/// Reads an image's bytes one after the other, as far as its own headers say.
struct Reader {
    start: *const u8,
    /// So many bytes from the start are known to be readable.
    known: usize,
}

impl Reader {
    /// Asks that the first `end` bytes can be read.
    fn need(&mut self, end: usize) -> Result<(), Refusal> {
        if end <= self.known {
            return Ok(());
        }
        if end > MOST_BYTES {
            let text = format!("the image's header says {end} bytes; images have at most {MOST_BYTES}");
            return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, text));
        }
        let to = pages::end_of_page(self.start, end);
        let readable = pages::readable(self.start, self.known, to);
        self.known = readable;
        if readable < end {
            let text = format!(
                "the image's headers say at least {end} bytes, but memory can be read for {readable} from there"
            );
            return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, text));
        }
        Ok(())
    }

    /// # Safety
    /// Byte `at` belongs to the image, if the image is whole.
    unsafe fn byte(&mut self, at: usize) -> Result<u8, Refusal> {
        self.need(at.saturating_add(1))?;
        // SAFETY: it can be read, and no one else writes it: the caller's image does not change during the call.
        Ok(unsafe { self.start.add(at).read() })
    }

    /// # Safety
    /// As `byte`, for `N` bytes.
    unsafe fn array<const N: usize>(&mut self, at: usize) -> Result<[u8; N], Refusal> {
        self.need(at.saturating_add(N))?;
        // SAFETY: as in `byte`.
        Ok(unsafe { self.start.add(at).cast::<[u8; N]>().read() })
    }

    /// Whether the image starts with these bytes. Stops at the first that differs, so that an image
    /// that is shorter is not read past its end (a text ends with a NUL).
    ///
    /// # Safety
    /// The image is an image of some kind.
    unsafe fn starts_with(&mut self, magic: &[u8]) -> Result<bool, Refusal> {
        for (at, &expected) in magic.iter().enumerate() {
            // SAFETY: byte `at` is there if all before it were as in an image of this kind.
            if unsafe { self.byte(at) }? != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The bytes of the image at `image`: as many as its headers say, for text up to its NUL.
///
/// # Errors
/// The headers say more than there is, or more than 1 GiB.
///
/// # Safety
/// `image` points to PTX text with a NUL, Tile bytecode, a cubin or a fat binary, which stays as it is for `'a`. One that
/// is damaged is no violation, as far as this module's description goes.
pub(crate) unsafe fn bytes<'a>(image: *const u8) -> Result<&'a [u8], Refusal> {
    let mut reader = Reader { start: image, known: 0 };
    // SAFETY: the caller's; each reader follows the headers of the kind that the magic number tells.
    unsafe {
        let len = if reader.starts_with(&TILE_MAGIC)? {
            tile_length(&mut reader)?
        } else if reader.starts_with(&ELF_MAGIC)? {
            elf_length(&mut reader)?
        } else if reader.starts_with(&WRAPPER_MAGIC.to_le_bytes())? {
            // What the compiler puts around a fat binary for the runtime library. An H200's driver takes none.
            let text = "this is the wrapper of a fat binary, not the fat binary that it names";
            return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, text));
        } else if reader.starts_with(&FATBIN_MAGIC.to_le_bytes())? {
            fat_length(&mut reader)?
        } else {
            text_length(&mut reader)?
        };
        reader.need(len)?;
        Ok(std::slice::from_raw_parts(reader.start, len))
    }
}

/// # Safety
/// Text with a NUL.
unsafe fn text_length(reader: &mut Reader) -> Result<usize, Refusal> {
    let mut at = 0;
    // SAFETY: no byte before was the NUL.
    while unsafe { reader.byte(at) }? != 0 {
        at += 1;
    }
    Ok(at)
}

/// # Safety
/// A fat binary.
unsafe fn fat_length(reader: &mut Reader) -> Result<usize, Refusal> {
    // SAFETY: the header is 16 bytes.
    let (header, body) =
        unsafe { (u16::from_le_bytes(reader.array(6)?), u64::from_le_bytes(reader.array(8)?)) };
    Ok(usize::from(header).saturating_add(usize::try_from(body).unwrap_or(usize::MAX)))
}

/// # Safety
/// Tile bytecode.
unsafe fn tile_length(reader: &mut Reader) -> Result<usize, Refusal> {
    // A number of seven bits a byte.
    let varint = |reader: &mut Reader, at: &mut usize| {
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            // SAFETY: a section's header is whole.
            let byte = unsafe { reader.byte(*at) }?;
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Ok::<u64, Refusal>(u64::MAX)
    };
    // Magic number, two bytes of version, two of a tag; then sections: id (bit 7: aligned), length, alignment; id 0
    // ends.
    let mut at = 12;
    let mut seen = 0u8;
    loop {
        // SAFETY: the sections so far were whole, so there is another or the end marker.
        let id = unsafe { reader.byte(at) }?;
        at += 1;
        let kind = id & 0x7f;
        // What is no section cannot be skipped: the reader of the bytes says what is wrong.
        if id == 0 || kind == 0 || kind > LAST_SECTION || seen >> kind & 1 != 0 {
            return Ok(at);
        }
        seen |= 1 << kind;
        let length = varint(reader, &mut at)?;
        if id & 0x80 != 0 {
            let alignment = varint(reader, &mut at)?;
            if !alignment.is_power_of_two() || alignment > 4096 {
                return Ok(at);
            }
            at = at.next_multiple_of(alignment as usize);
        }
        at = at.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        // The whole section, not only the byte behind it: a gap in memory is within no image.
        reader.need(at)?;
    }
}

/// # Safety
/// A 64-bit little-endian ELF file.
unsafe fn elf_length(reader: &mut Reader) -> Result<usize, Refusal> {
    // SAFETY: the header of a 64-bit ELF file is 64 bytes, and its tables are where it says.
    unsafe {
        let offset = |bytes: [u8; 8]| usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        let short = |bytes: [u8; 2]| usize::from(u16::from_le_bytes(bytes));
        let (programs, sections) = (offset(reader.array(32)?), offset(reader.array(40)?));
        let (program_size, program_count) = (short(reader.array(54)?), short(reader.array(56)?));
        let (section_size, section_count) = (short(reader.array(58)?), short(reader.array(60)?));
        let after = |start: usize, size: usize, count: usize| start.saturating_add(size * count);
        let mut end = 64.max(after(programs, program_size, program_count));
        end = end.max(after(sections, section_size, section_count));
        reader.need(end)?;
        for i in 0..section_count {
            if section_size < 64 {
                break;
            }
            let header = sections + i * section_size;
            let kind = u32::from_le_bytes(reader.array(header + 4)?);
            let (at, size) = (offset(reader.array(header + 24)?), offset(reader.array(header + 32)?));
            // Kind 8 takes no room in the file.
            if kind != 8 {
                end = end.max(at.saturating_add(size));
            }
        }
        Ok(end)
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod pages {
    //! What the system says of this process's memory.

    use std::sync::OnceLock;

    fn size() -> usize {
        static SIZE: OnceLock<usize> = OnceLock::new();
        *SIZE.get_or_init(|| {
            // SAFETY: asks for a number.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
        })
    }

    /// The end of the page in which the first `end` bytes from `start` end, counted from `start`.
    pub(super) fn end_of_page(start: *const u8, end: usize) -> usize {
        let last = start.addr().saturating_add(end);
        last.checked_next_multiple_of(size()).unwrap_or(usize::MAX) - start.addr()
    }

    /// How many bytes from `start` on can be read, if the first `known` can; no more than `to`, which is at the end of a
    /// page.
    ///
    /// Each page gives one byte to a copy that the system makes and that ends where it may not read. Where it makes no such
    /// copies, everything counts as readable.
    pub(super) fn readable(start: *const u8, known: usize, to: usize) -> usize {
        const AT_ONCE: usize = 256;
        let mut known = known;
        while known < to {
            let mut there = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; AT_ONCE];
            let mut count = 0;
            let mut at = known;
            while at < to && count < AT_ONCE {
                there[count].iov_base = start.wrapping_add(at).cast_mut().cast();
                count += 1;
                at = end_of_page(start, at + 1);
            }
            let mut here = [0u8; AT_ONCE];
            let into = libc::iovec { iov_base: here.as_mut_ptr().cast(), iov_len: count };
            // SAFETY: `here` has room for the `count` bytes; the other side may be any addresses.
            let copied = unsafe {
                libc::process_vm_readv(libc::getpid(), &into, 1, there.as_ptr(), count as libc::c_ulong, 0)
            };
            let copied = match usize::try_from(copied) {
                Ok(copied) => copied,
                Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => 0,
                Err(_) => return to,
            };
            if copied < count {
                let first = there[copied].iov_base.addr();
                return first - start.addr();
            }
            known = at;
        }
        known
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod pages {
    //! Memory of which nothing is known: the image is trusted.

    pub(super) fn end_of_page(_: *const u8, end: usize) -> usize {
        end
    }

    pub(super) fn readable(_: *const u8, _: usize, to: usize) -> usize {
        to
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    /// Bytes that end where memory ends.
    struct AtTheEnd {
        map: *mut u8,
        page: usize,
        len: usize,
    }

    impl AtTheEnd {
        fn new(bytes: &[u8]) -> Self {
            // SAFETY: asks for a number.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            let room = bytes.len().next_multiple_of(page) + page;
            // SAFETY: new memory of our own; its last page is taken away again, so nothing lies behind the bytes.
            let map = unsafe {
                let map = libc::mmap(
                    std::ptr::null_mut(),
                    room,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(map, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(map.byte_add(room - page), page, libc::PROT_NONE), 0);
                map.cast::<u8>()
            };
            let this = Self { map, page: room, len: bytes.len() };
            // SAFETY: the bytes fit before the last page.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), this.start().cast_mut(), bytes.len()) };
            this
        }

        fn start(&self) -> *const u8 {
            // SAFETY: asks for a number.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            self.map.wrapping_add(self.page - page - self.len)
        }

        fn length(&self) -> Result<usize, String> {
            // SAFETY: damaged or not, it is what `bytes` is for; the memory lives longer than this call.
            unsafe { bytes(self.start()) }.map(<[u8]>::len).map_err(|refusal| refusal.text)
        }
    }

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            // SAFETY: made by `new`, and no slice of it is left.
            unsafe { libc::munmap(self.map.cast(), self.page) };
        }
    }

    fn images() -> Vec<(String, Vec<u8>)> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../artifacts");
        let mut all = Vec::new();
        for folder in ["ptx", "cubin", "fatbin", "tile_rs", "cutile_python"] {
            for entry in std::fs::read_dir(format!("{dir}/{folder}")).unwrap() {
                let path = entry.unwrap().path();
                let name = path.display().to_string();
                let kinds = [".ptx", ".cubin", ".fatbin", ".tileirbc"];
                if kinds.iter().any(|kind| name.ends_with(kind)) {
                    all.push((name, std::fs::read(&path).unwrap()));
                }
            }
        }
        assert!(all.len() > 20, "{}", all.len());
        all
    }

    #[test]
    fn whole_images_are_as_long_as_they_are() {
        for (name, mut bytes) in images() {
            let text = name.ends_with(".ptx");
            if text {
                bytes.push(0);
            }
            let want = bytes.len() - usize::from(text);
            assert_eq!(AtTheEnd::new(&bytes).length(), Ok(want), "{name}");
        }
    }

    #[test]
    fn cut_images_end_where_memory_does() {
        for (name, bytes) in images() {
            let mut cut: Vec<usize> = (0..bytes.len().min(200)).collect();
            cut.extend((200..bytes.len()).step_by(61));
            for len in cut {
                // Nothing can be read behind it: an error, or a shorter image, never a crash.
                let found = AtTheEnd::new(&bytes[..len]).length();
                assert!(found.as_ref().is_err() || found.as_ref().is_ok_and(|&n| n <= len), "{name} {len}");
                if name.ends_with(".ptx") {
                    assert!(found.unwrap_err().contains("memory can be read"), "{name} {len}");
                }
            }
        }
    }

    #[test]
    fn damaged_lengths_stay_in_memory() {
        let mut seed = 1u64;
        let mut random = move |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % n as u64) as usize
        };
        let (mut refused, mut taken) = (0, 0);
        for (name, bytes) in images().into_iter().filter(|(name, _)| !name.ends_with(".ptx")) {
            for _ in 0..100 {
                let mut bytes = bytes.clone();
                for _ in 0..1 + random(4) {
                    // Headers are at the start and, of cubins, at the end.
                    let near = bytes.len().min(400);
                    let at = if random(2) == 0 { random(near) } else { bytes.len() - 1 - random(near) };
                    bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, random(256) as u8][random(6)];
                }
                match AtTheEnd::new(&bytes).length() {
                    Ok(len) => {
                        assert!(len <= bytes.len(), "{name}");
                        taken += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 100 && taken > 100, "{refused} {taken}");
    }

    #[test]
    fn a_wrapper_is_no_fat_binary() {
        let mut wrapper = WRAPPER_MAGIC.to_le_bytes().to_vec();
        wrapper.extend([0; 20]);
        assert!(AtTheEnd::new(&wrapper).length().unwrap_err().contains("wrapper"));
    }
}
