//! Fat binaries: containers of PTX and cubins for several architectures.
//!
//! ```text
//! container: magic 0xBA55ED50 · version 1 (16 bits) · header size (16) · size of what follows (64)
//! entry:     kind (16) · version (16) · header size (32) · size of the data (64) · exact size if compressed (32)
//!            · offset of options (32) · minor, major version (16 each) · architecture (32)
//!            · offset and length of a name (32 each) · flags (64) · 0 (64) · size when decompressed (64)
//! ```
//!
//! Containers may follow each other. The layout was observed on files of CUDA's `fatbinary` 13.4 over images of ours.
//!
//! A `__fatBinC_Wrapper_t` (magic 0x466243B1) holds a pointer to a container, which a reader of bytes cannot
//! follow: it is refused with that reason.

use crate::Target;
use crate::bytes::{Bytes, FormatError, Problem, error};
use std::borrow::Cow;

const MAGIC: u32 = 0xBA55_ED50;
const WRAPPER_MAGIC: u32 = 0x4662_43B1;
const CONTAINER_HEADER: u64 = 16;
const ENTRY_HEADER: u64 = 64;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// `sm_90a` and its like.
const FLAG_ARCHITECTURE: u64 = 0x10_0000;
/// `sm_100f` and its like.
const FLAG_FAMILY: u64 = 0x20_0000;

/// The most bytes that an entry may decompress to.
pub const MAX_DECOMPRESSED: u64 = 256 << 20;
/// The most that an entry may grow: this many times its size, plus a MiB.
pub const MAX_RATIO: u64 = 1024;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// A cubin.
    Elf,
    /// Something else, by its number.
    Other(u16),
}

/// How an entry's data is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// One LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

/// One image of a container.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// PTX or cubin.
    pub kind: EntryKind,
    /// The architecture it is for: exactly that one's generation for a cubin, that one and later for PTX.
    pub target: Target,
    /// PTX version, or the cubin's ABI version: major, minor.
    pub version: (u16, u16),
    /// How `data` is compressed, if it is.
    pub compression: Option<Compression>,
    /// The data as it lies in the container, without padding where its exact size is known.
    pub data: &'a [u8],
    /// Its size when decompressed.
    pub size: u64,
    /// Where `data` lies in the image.
    pub offset: u64,
}

/// Whether `image` starts as a fat binary or its wrapper does.
pub fn is_fatbin(image: &[u8]) -> bool {
    image.starts_with(&MAGIC.to_le_bytes()) || image.starts_with(&WRAPPER_MAGIC.to_le_bytes())
}

/// All entries of a fat binary, in order.
pub fn entries(image: &[u8]) -> Result<Vec<Entry<'_>>, FormatError> {
    let bytes = Bytes::new(image);
    let mut all = Vec::new();
    let mut at = 0;
    loop {
        at = container(bytes, at, &mut all)?;
        let rest = bytes.rest(at, "container")?;
        if rest.data().iter().all(|&b| b == 0) {
            return Ok(all);
        }
    }
}

/// Reads the container at `at` and returns where it ends.
fn container<'a>(bytes: Bytes<'a>, at: u64, all: &mut Vec<Entry<'a>>) -> Result<u64, FormatError> {
    let b = bytes.rest(at, "container")?;
    match b.u32(0, "fat binary's magic number")? {
        MAGIC => {}
        WRAPPER_MAGIC => {
            let what = "it holds a pointer to the fat binary; pass the bytes it points to";
            return Err(error(at, "fat binary's wrapper", Problem::Malformed(what)));
        }
        found => {
            let problem = Problem::Value { found: found.into(), expected: "0xba55ed50" };
            return Err(error(at, "fat binary's magic number", problem));
        }
    }
    match b.u16(4, "fat binary's version")? {
        1 => {}
        v => {
            let problem = Problem::Value { found: v.into(), expected: "1" };
            return Err(error(b.offset(4), "fat binary's version", problem));
        }
    }
    let header = u64::from(b.u16(6, "size of the fat binary's header")?);
    if header < CONTAINER_HEADER {
        let problem = Problem::Value { found: header, expected: "at least 16" };
        return Err(error(b.offset(6), "size of the fat binary's header", problem));
    }
    let size = b.u64(8, "size of the fat binary")?;
    let body = b.part(header, size, "fat binary")?;
    let mut next = 0;
    while next < body.len() {
        next = entry(body, next, all)?;
    }
    // The body lies in the image, so this does not overflow.
    Ok(at + header + size)
}

/// Reads the entry at `at` and returns where it ends.
fn entry<'a>(body: Bytes<'a>, at: u64, all: &mut Vec<Entry<'a>>) -> Result<u64, FormatError> {
    let e = body.part(at, ENTRY_HEADER, "header of an entry")?;
    let kind = match e.u16(0, "entry's kind")? {
        1 => EntryKind::Ptx,
        2 => EntryKind::Elf,
        v => EntryKind::Other(v),
    };
    let header = u64::from(e.u32(4, "size of an entry's header")?);
    if header < ENTRY_HEADER {
        let problem = Problem::Value { found: header, expected: "at least 64" };
        return Err(error(e.offset(4), "size of an entry's header", problem));
    }
    body.part(at, header, "header of an entry")?;
    let padded = e.u64(8, "size of an entry")?;
    let data = body.part(at + header, padded, "entry")?;
    let exact = u64::from(e.u32(16, "exact size of an entry")?);
    let version = (e.u16(26, "entry's version")?, e.u16(24, "entry's version")?);
    let sm = e.u32(28, "entry's architecture")?;
    let flags = e.u64(40, "entry's flags")?;
    let unpacked = e.u64(56, "decompressed size of an entry")?;
    let compression = match (flags & FLAG_LZ4 != 0, flags & FLAG_ZSTD != 0) {
        (false, false) => None,
        (true, false) => Some(Compression::Lz4),
        (false, true) => Some(Compression::Zstd),
        (true, true) => {
            let problem = Problem::Malformed("it is marked as LZ4 and as Zstandard");
            return Err(error(e.offset(40), "entry's flags", problem));
        }
    };
    let (data, size) = match compression {
        Some(_) => (data.part(0, exact, "compressed data")?, unpacked),
        None if kind == EntryKind::Ptx => {
            // Padded with NULs to a multiple of eight.
            let length = data.data().iter().rposition(|&b| b != 0).map_or(0, |n| n as u64 + 1);
            (data.part(0, length, "entry")?, length)
        }
        None => (data, data.len()),
    };
    let suffix = match (flags & FLAG_ARCHITECTURE != 0, flags & FLAG_FAMILY != 0) {
        (true, _) => Some('a'),
        (false, true) => Some('f'),
        (false, false) => None,
    };
    all.push(Entry {
        kind,
        target: Target { sm, suffix },
        version,
        compression,
        data: data.data(),
        size,
        offset: data.offset(0),
    });
    Ok(at + header + padded)
}

/// The entry that a driver would take for a device of architecture `sm` (90 for 9.0): the cubin of the newest
/// architecture that runs there, else the PTX of the newest that can be compiled for it.
pub fn pick<'e, 'a>(entries: &'e [Entry<'a>], sm: u32) -> Option<&'e Entry<'a>> {
    let best = |kind| {
        let fits = entries.iter().filter(move |e| e.kind == kind && e.runs_on(sm));
        // Of equals the first.
        fits.rev().max_by_key(|e| e.target.sm)
    };
    best(EntryKind::Elf).or_else(|| best(EntryKind::Ptx))
}

impl<'a> Entry<'a> {
    /// Whether a device of architecture `sm` can use it.
    pub fn runs_on(&self, sm: u32) -> bool {
        let own = self.target.sm;
        match (self.kind, self.target.suffix) {
            (EntryKind::Other(_), _) => false,
            (_, Some('a')) => own == sm,
            (EntryKind::Ptx, None) => own <= sm,
            // A cubin runs within its generation; so does family code, whatever it is.
            _ => own <= sm && own / 10 == sm / 10,
        }
    }

    /// The image, decompressed if need be (feature `decompress`).
    pub fn image(&self) -> Result<Cow<'a, [u8]>, FormatError> {
        let Some(compression) = self.compression else {
            return Ok(Cow::Borrowed(self.data));
        };
        let limit = MAX_DECOMPRESSED.min(MAX_RATIO * self.data.len() as u64 + (1 << 20));
        if self.size > limit {
            let problem = Problem::Limit { value: self.size, limit };
            return Err(error(self.offset, "decompressed size of an entry", problem));
        }
        // At most `MAX_DECOMPRESSED`.
        decompress(self.data, compression, self.size as usize)
            .map(Cow::Owned)
            .map_err(|what| error(self.offset, "compressed entry", Problem::Malformed(what)))
    }
}

#[cfg(feature = "decompress")]
fn decompress(data: &[u8], compression: Compression, size: usize) -> Result<Vec<u8>, &'static str> {
    let out = match compression {
        Compression::Lz4 => {
            lz4_flex::block::decompress(data, size).map_err(|_| "it is not a valid LZ4 block")?
        }
        Compression::Zstd => {
            use std::io::Read;
            let invalid = "it is not a valid Zstandard frame";
            let decoder = ruzstd::decoding::StreamingDecoder::new(data).map_err(|_| invalid)?;
            let mut out = Vec::new();
            // One more, to see that it is not longer than it says.
            decoder.take(size as u64 + 1).read_to_end(&mut out).map_err(|_| invalid)?;
            out
        }
    };
    if out.len() == size { Ok(out) } else { Err("it decompresses to another size than it says") }
}

#[cfg(not(feature = "decompress"))]
fn decompress(_: &[u8], _: Compression, _: usize) -> Result<Vec<u8>, &'static str> {
    Err("it is compressed, and simtile-image was built without its feature `decompress`")
}
