//! CUDA ELF images (cubins): bounds, entries and what a launch has to know about them.
//!
//! [`Cubin::parse`] follows every offset, size and count of the headers, the section, string and symbol tables
//! and the program headers, and fails at the first that leaves the image, so that a truncated image is an error here and
//! not a crash in a driver. It does not look at code.
//!
//! The format of NVIDIA's sections is not published. What is read here was observed on files of ptxas and
//! tileiras 13.4 for sm_80 to sm_121, whose sources are ours: see `info` and `tests/elf.rs`.

mod info;
mod sections;

use crate::bytes::{Bytes, FormatError, Problem, error};
use crate::{Globals, Param, Target};
use sections::{Section, Sections, Symbol};
use std::collections::HashMap;

const MAGIC: &[u8] = b"\x7fELF";
const EM_CUDA: u16 = 190;
/// OS/ABI of the flag layout with the architecture in bits 8 to 15.
const OSABI_CUDA_V2: u8 = 0x41;
/// OS/ABI of the layout with the architecture in bits 0 to 7.
const OSABI_CUDA: u8 = 0x33;
/// `st_other` of a kernel's symbol.
const STO_ENTRY: u8 = 0x10;
/// Shared memory that the system takes in each block from sm_90 on, which `.nv.shared.NAME` includes.
const RESERVED_SHARED: u64 = 1024;

/// What a cubin holds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cubin {
    /// The architecture it was compiled for.
    pub target: Target,
    /// Whether it still has to be linked (`-rdc=true`).
    pub relocatable: bool,
    /// Whether it carries code for the host processor (Tile kernels do).
    pub host_code: bool,
    /// Its kernels, in the order of the symbol table.
    pub entries: Vec<CubinEntry>,
    /// Its variables.
    pub globals: Globals,
}

/// A kernel of a cubin.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CubinEntry {
    /// Name.
    pub name: String,
    /// Parameters that the caller passes, in order; `None` if the image does not say.
    pub params: Option<Vec<Param>>,
    /// Size of the parameter buffer, hidden parameters at its end included.
    pub param_bytes: Option<u32>,
    /// The block shape that it must be launched with.
    pub required_block: Option<[u32; 3]>,
    /// The largest block shape that it may be launched with.
    pub max_block: Option<[u32; 3]>,
    /// The cluster shape that is compiled in.
    pub required_cluster: Option<[u32; 3]>,
    /// The largest number of blocks in a cluster.
    pub max_cluster_blocks: Option<u32>,
    /// Whether a cluster shape must be given at launch.
    pub explicit_cluster: bool,
    /// Registers a thread.
    pub registers: Option<u32>,
    /// Static shared memory a block, bytes.
    pub shared_bytes: u64,
    /// Local memory a thread, bytes.
    pub local_bytes: Option<u32>,
}

/// Whether `image` starts as an ELF file does.
pub fn is_elf(image: &[u8]) -> bool {
    image.starts_with(MAGIC)
}

impl Cubin {
    /// Checks the bounds of everything and lists the kernels.
    pub fn parse(image: &[u8]) -> Result<Self, FormatError> {
        let bytes = Bytes::new(image);
        let header = Header::parse(bytes)?;
        let sections = Sections::parse(bytes, &header)?;
        let symbols = sections.symbols()?;
        let shared: HashMap<&str, u64> =
            sections.iter().filter_map(|s| Some((s.name.strip_prefix(".nv.shared.")?, s.size))).collect();
        let mut entries = Vec::new();
        // Which entry belongs to a symbol.
        let mut by_symbol = HashMap::new();
        let mut by_name = HashMap::new();
        for (index, symbol) in symbols.iter().enumerate().filter(|(_, s)| s.is_entry()) {
            let mut entry = entry(symbol, &sections)?;
            let reserved = if header.target.sm >= 90 { RESERVED_SHARED } else { 0 };
            entry.shared_bytes = shared.get(symbol.name).map_or(0, |s| s.saturating_sub(reserved));
            if by_name.insert(entry.name.clone(), entries.len()).is_some() {
                return Err(error(symbol.offset, "symbol", Problem::Malformed("a kernel is defined twice")));
            }
            by_symbol.insert(index as u64, entries.len());
            entries.push(entry);
        }
        for section in sections.iter() {
            let Some(rest) = section.name.strip_prefix(".nv.info") else { continue };
            if section.is_nobits() {
                continue;
            }
            match rest.strip_prefix('.') {
                Some(name) => {
                    if let Some(&i) = by_name.get(name) {
                        info::kernel(section.data, &mut entries[i])?;
                    }
                }
                None if rest.is_empty() => {
                    info::module(section.data, |symbol| by_symbol.get(&symbol).copied(), &mut entries)?
                }
                None => {}
            }
        }
        let architecture_specific =
            header.architecture_specific || info::is_architecture_specific(&sections)?;
        let suffix = architecture_specific.then_some('a');
        Ok(Self {
            target: Target { suffix, ..header.target },
            relocatable: header.relocatable,
            host_code: sections.iter().any(|s| s.name == ".nv.host" && !s.data.data().is_empty()),
            globals: globals(&sections, &symbols),
            entries,
        })
    }
}

/// The number of the section for constants of the program; the others hold parameters and what the compiler needs.
const CONSTANT_BANK: &str = ".nv.constant3";

fn globals(sections: &Sections<'_>, symbols: &[Symbol<'_>]) -> Globals {
    let of_section = |(index, section): (usize, &Section<'_>)| match section.name {
        _ if section.size == 0 => Globals::None,
        CONSTANT_BANK => Globals::Constant,
        ".nv.global" | ".nv.global.init" => {
            // Without a name for it somebody may write it.
            let mine = symbols.iter().filter(|s| s.section == index as u64 && s.size > 0);
            mine.map(|symbol| Globals::of_name(symbol.name)).max().unwrap_or(Globals::Mutable)
        }
        _ => Globals::None,
    };
    sections.iter().enumerate().map(of_section).max().unwrap_or(Globals::None)
}

fn entry(symbol: &Symbol<'_>, sections: &Sections<'_>) -> Result<CubinEntry, FormatError> {
    let name = symbol.name.to_owned();
    let code = sections.get(symbol.section).ok_or_else(|| {
        error(symbol.offset, "kernel's symbol", Problem::Malformed("it is not in a section"))
    })?;
    if code.name.strip_prefix(".text.") != Some(symbol.name) {
        let problem = Problem::Malformed("a kernel is not in the section of its name");
        return Err(error(symbol.offset, "kernel's symbol", problem));
    }
    let end = symbol.value.saturating_add(symbol.size);
    if end > code.size {
        return Err(error(symbol.offset, "kernel's code", Problem::Beyond { end, limit: code.size }));
    }
    // Older files have the registers here only.
    let registers = Some(code.info >> 24).filter(|&r| r != 0);
    Ok(CubinEntry {
        name,
        params: None,
        param_bytes: None,
        required_block: None,
        max_block: None,
        required_cluster: None,
        max_cluster_blocks: None,
        explicit_cluster: false,
        registers,
        shared_bytes: 0,
        local_bytes: None,
    })
}

/// What the file header says.
struct Header {
    target: Target,
    architecture_specific: bool,
    relocatable: bool,
    sections_at: u64,
    section_count: u16,
    section_names: u16,
}

impl Header {
    fn parse(b: Bytes<'_>) -> Result<Self, FormatError> {
        let value =
            |offset, what, found: u64, expected| Err(error(offset, what, Problem::Value { found, expected }));
        if !is_elf(b.data()) {
            return value(0, "ELF magic number", b.u32(0, "ELF magic number")?.into(), "7f 45 4c 46");
        }
        b.part(0, 64, "ELF header")?;
        match b.u8(4, "ELF class")? {
            2 => {}
            v => return value(4, "ELF class", v.into(), "2 (64 bits)"),
        }
        match b.u8(5, "byte order")? {
            1 => {}
            v => return value(5, "byte order", v.into(), "1 (little endian)"),
        }
        match b.u8(6, "ELF version")? {
            1 => {}
            v => return value(6, "ELF version", v.into(), "1"),
        }
        match b.u16(18, "machine")? {
            EM_CUDA => {}
            v => return value(18, "machine", v.into(), "190 (CUDA)"),
        }
        let relocatable = match b.u16(16, "file type")? {
            1 => true,
            2 => false,
            v => return value(16, "file type", v.into(), "1 (relocatable) or 2 (executable)"),
        };
        let flags = b.u32(48, "flags")?;
        let (sm, architecture_specific) = match b.u8(7, "OS/ABI")? {
            OSABI_CUDA_V2 => (flags >> 8 & 0xFF, flags & 8 != 0),
            OSABI_CUDA => (flags & 0xFF, flags & 0x800 != 0),
            v => return value(7, "OS/ABI", v.into(), "0x33 or 0x41 (CUDA)"),
        };
        if sm < 10 {
            return value(48, "architecture in the flags", sm.into(), "at least 10");
        }
        match b.u16(52, "size of the ELF header")? {
            64 => {}
            v => return value(52, "size of the ELF header", v.into(), "64"),
        }
        let segments_at = b.u64(32, "offset of program headers")?;
        let segment_count = b.u16(56, "number of program headers")?;
        if segment_count != 0 {
            match b.u16(54, "size of a program header")? {
                56 => {}
                v => return value(54, "size of a program header", v.into(), "56"),
            }
            let table = b.part(segments_at, u64::from(segment_count) * 56, "program headers")?;
            for i in 0..u64::from(segment_count) {
                let at = table.u64(i * 56 + 8, "offset of a segment")?;
                let size = table.u64(i * 56 + 32, "size of a segment")?;
                b.part(at, size, "segment")?;
            }
        }
        let section_count = b.u16(60, "number of section headers")?;
        let sections_at = b.u64(40, "offset of section headers")?;
        if sections_at != 0 {
            match b.u16(58, "size of a section header")? {
                64 => {}
                v => return value(58, "size of a section header", v.into(), "64"),
            }
        }
        let section_names = b.u16(62, "index of the section names")?;
        let target = Target { sm, suffix: None };
        Ok(Self { target, architecture_specific, relocatable, sections_at, section_count, section_names })
    }
}

impl Symbol<'_> {
    /// A kernel: a defined function with the entry mark.
    fn is_entry(&self) -> bool {
        const STT_FUNC: u8 = 2;
        self.kind == STT_FUNC && self.other & STO_ENTRY != 0 && self.section != 0
    }
}

impl Section<'_> {
    fn is_nobits(&self) -> bool {
        self.kind == sections::SHT_NOBITS
    }
}
