//! What is known about a module image before a driver sees it.

use crate::bytes::FormatError;
use crate::elf::{self, Cubin};
use crate::fatbin::{self, EntryKind};
use crate::ptx;
use std::fmt;

/// The formats of module images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageKind {
    /// PTX text.
    Ptx,
    /// A CUDA ELF file.
    Cubin,
    /// A container of both.
    Fatbin,
    /// Tile IR bytecode.
    TileBytecode,
}

/// An architecture, such as `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Ten times the compute capability: 90 for 9.0, 121 for 12.1.
    pub sm: u32,
    /// `a`: runs on this architecture only. `f`: runs on its family.
    pub suffix: Option<char>,
}

impl Target {
    /// From `sm_90a` or `compute_90a`.
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("sm_").or_else(|| name.strip_prefix("compute_"))?;
        let digits = rest.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let suffix = match &rest[digits.len()..] {
            "" => None,
            "a" => Some('a'),
            "f" => Some('f'),
            _ => return None,
        };
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(Self { sm: digits.parse().ok()?, suffix })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.sm)?;
        self.suffix.map_or(Ok(()), |s| write!(f, "{s}"))
    }
}

/// One kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Param {
    /// Its name, where the image has one (PTX).
    pub name: Option<String>,
    /// Offset in the parameter buffer, bytes.
    pub offset: u64,
    /// Size, bytes.
    pub size: u64,
    /// Alignment, bytes, where the image says (PTX, Tile bytecode).
    pub align: Option<u32>,
    /// Whether it is a device address, where the image says (Tile bytecode; PTX that uses `.ptr`).
    pub pointer: Option<bool>,
}

/// One kernel of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryInfo {
    /// Name.
    pub name: String,
    /// Parameters that the caller passes, in order; `None` if the image does not say.
    pub params: Option<Vec<Param>>,
    /// The most threads a block may have, by the image.
    pub max_threads: Option<u32>,
    /// The block shape that it must be launched with: (1, 1, 1) for Tile kernels, whatever their cubin uses
    /// inside.
    pub required_block: Option<[u32; 3]>,
    /// The cluster shape that is compiled in.
    pub required_cluster: Option<[u32; 3]>,
    /// Whether a cluster shape must be given at launch.
    pub explicit_cluster: bool,
    /// Registers a thread (cubin).
    pub registers: Option<u32>,
    /// Static shared memory a block, bytes (cubin).
    pub shared_bytes: Option<u64>,
    /// Local memory a thread, bytes (cubin).
    pub local_bytes: Option<u32>,
}

/// One image in a fat binary.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// PTX or cubin; `None` for anything else.
    pub kind: Option<ImageKind>,
    /// Its architecture.
    pub target: Target,
    /// Whether it is compressed in the container.
    pub compressed: bool,
    /// Whether its own content was checked.
    pub checked: bool,
}

/// What an image says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageInfo {
    /// Its format.
    pub kind: ImageKind,
    /// Its kernels. Those of a fat binary are those of its members, each name once.
    pub entries: Vec<EntryInfo>,
    /// Whether `entries` is known to be complete. It is not for fat binaries with compressed members (without the feature
    /// `decompress`) and for Tile bytecode (without the feature `tile`).
    pub entries_known: bool,
    /// The architecture it was made for; `None` for fat binaries and Tile bytecode.
    pub target: Option<Target>,
    /// Version of PTX or of the bytecode: major, minor.
    pub version: Option<(u32, u32)>,
    /// Whether its kernels are Tile kernels: bytecode, or a cubin with host code.
    pub is_tile: bool,
    /// The images in a fat binary.
    pub members: Vec<MemberInfo>,
}

/// Why an image was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageError {
    /// There are no bytes.
    Empty,
    /// A NUL inside PTX text. One at the end is allowed.
    Nul {
        /// Where.
        offset: usize,
        /// On which line, from 1.
        line: u32,
    },
    /// PTX text that is not UTF-8.
    Utf8 {
        /// The first byte that is not.
        offset: usize,
        /// On which line, from 1.
        line: u32,
    },
    /// Text that is not PTX.
    Ptx(ptx::PtxError),
    /// An ELF file that is not a whole cubin.
    Elf(FormatError),
    /// A fat binary that is not whole.
    Fatbin(FormatError),
    /// A member of a fat binary that is not whole.
    Member {
        /// Its number in the fat binary, from 0.
        index: usize,
        /// What is wrong with it; offsets count from its own start.
        error: Box<ImageError>,
    },
    /// Bytecode of a version that is not supported.
    TileVersion {
        /// Major and minor version of the image.
        found: (u8, u8),
        /// The oldest and the newest that are supported.
        supported: [(u8, u8); 2],
    },
    /// Bytecode that ends within its header.
    TileHeader {
        /// Bytes there are.
        len: usize,
    },
    /// Bytecode that cannot be read.
    #[cfg(feature = "tile")]
    Tile(crate::tile::TileError),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the image is empty"),
            Self::Nul { offset, line } => {
                write!(f, "PTX: line {line}: NUL at byte {offset}; only the last byte may be one")
            }
            Self::Utf8 { offset, line } => write!(f, "PTX: line {line}: byte {offset} is not UTF-8"),
            Self::Ptx(e) => write!(f, "PTX: {e}"),
            Self::Elf(e) => write!(f, "cubin: {e}"),
            Self::Fatbin(e) => write!(f, "fat binary: {e}"),
            Self::Member { index, error } => write!(f, "fat binary, image {index}: {error}"),
            Self::TileVersion { found, supported: [old, new] } => write!(
                f,
                "tile bytecode: version {}.{} is not supported; supported: {}.{} to {}.{}",
                found.0, found.1, old.0, old.1, new.0, new.1
            ),
            Self::TileHeader { len } => write!(f, "tile bytecode: {len} bytes, the header has 12"),
            #[cfg(feature = "tile")]
            Self::Tile(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Ptx(e) => Some(e),
            Self::Elf(e) | Self::Fatbin(e) => Some(e),
            Self::Member { error, .. } => Some(error),
            #[cfg(feature = "tile")]
            Self::Tile(e) => Some(e),
            _ => None,
        }
    }
}

const TILE_MAGIC: &[u8] = b"\x7FTileIR\0";

/// Checks a module image and lists its kernels.
///
/// The format is told by the first bytes; what has none of the magic numbers is taken for PTX text. Any input
/// is fine: the answer is an error where the image is not whole.
pub fn check(image: &[u8]) -> Result<ImageInfo, ImageError> {
    if image.is_empty() {
        Err(ImageError::Empty)
    } else if image.starts_with(TILE_MAGIC) {
        check_tile(image)
    } else if elf::is_elf(image) {
        Cubin::parse(image).map(cubin_info).map_err(ImageError::Elf)
    } else if fatbin::is_fatbin(image) {
        check_fatbin(image)
    } else {
        check_ptx(image)
    }
}

/// PTX text without its trailing NUL: UTF-8, no other NUL.
pub fn ptx_text(image: &[u8]) -> Result<&str, ImageError> {
    let text = image.strip_suffix(b"\0").unwrap_or(image);
    let line = |offset: usize| {
        let lines = text[..offset].iter().filter(|&&b| b == b'\n').count();
        u32::try_from(lines).unwrap_or(u32::MAX).saturating_add(1)
    };
    if let Some(offset) = text.iter().position(|&b| b == 0) {
        return Err(ImageError::Nul { offset, line: line(offset) });
    }
    std::str::from_utf8(text).map_err(|e| {
        let offset = e.valid_up_to();
        ImageError::Utf8 { offset, line: line(offset) }
    })
}

fn check_ptx(image: &[u8]) -> Result<ImageInfo, ImageError> {
    let module = ptx::Module::parse(ptx_text(image)?).map_err(ImageError::Ptx)?;
    let entries = module.signatures().into_iter().map(|s| {
        let a = &s.attributes;
        let params = s.params.into_iter().map(|p| Param {
            name: Some(p.name),
            offset: p.offset,
            size: p.bytes,
            align: Some(p.align),
            // Without `.ptr` a pointer is a `.u64` like any other.
            pointer: p.pointer.is_some().then_some(true),
        });
        let most = a.required_block.or(a.max_threads);
        EntryInfo {
            name: s.name,
            params: Some(params.collect()),
            max_threads: most.map(threads),
            required_block: a.required_block,
            required_cluster: a.cluster.required,
            explicit_cluster: a.cluster.explicit,
            registers: None,
            shared_bytes: None,
            local_bytes: None,
        }
    });
    Ok(ImageInfo {
        kind: ImageKind::Ptx,
        entries: entries.collect(),
        entries_known: true,
        target: module.targets.first().and_then(|t| Target::parse(t)),
        version: Some(module.version),
        is_tile: false,
        members: Vec::new(),
    })
}

fn threads(block: [u32; 3]) -> u32 {
    block.into_iter().fold(1, u32::saturating_mul)
}

fn cubin_info(cubin: Cubin) -> ImageInfo {
    // The driver starts a Tile kernel's own threads; a launch passes a block of one.
    let tile_block = cubin.host_code.then_some([1; 3]);
    let entries = cubin.entries.into_iter().map(|e| EntryInfo {
        name: e.name,
        params: e.params,
        max_threads: tile_block.or(e.required_block).or(e.max_block).map(threads),
        required_block: tile_block.or(e.required_block),
        required_cluster: e.required_cluster,
        explicit_cluster: e.explicit_cluster,
        registers: e.registers,
        shared_bytes: Some(e.shared_bytes),
        local_bytes: e.local_bytes,
    });
    ImageInfo {
        kind: ImageKind::Cubin,
        entries: entries.collect(),
        entries_known: true,
        target: Some(cubin.target),
        version: None,
        is_tile: cubin.host_code,
        members: Vec::new(),
    }
}

fn check_fatbin(image: &[u8]) -> Result<ImageInfo, ImageError> {
    let mut info = ImageInfo {
        kind: ImageKind::Fatbin,
        entries: Vec::new(),
        entries_known: true,
        target: None,
        version: None,
        is_tile: false,
        members: Vec::new(),
    };
    let mut names = std::collections::HashSet::new();
    for (index, entry) in fatbin::entries(image).map_err(ImageError::Fatbin)?.into_iter().enumerate() {
        let compressed = entry.compression.is_some();
        let kind = match entry.kind {
            EntryKind::Ptx => Some(ImageKind::Ptx),
            EntryKind::Elf => Some(ImageKind::Cubin),
            EntryKind::Other(_) => None,
        };
        let readable = kind.is_some() && (!compressed || cfg!(feature = "decompress"));
        if readable {
            let member = |error| ImageError::Member { index, error: Box::new(error) };
            let data = entry.image().map_err(ImageError::Fatbin)?;
            let inner = match entry.kind {
                EntryKind::Elf => Cubin::parse(&data).map(cubin_info).map_err(ImageError::Elf),
                _ => check_ptx(&data),
            };
            let inner = inner.map_err(member)?;
            info.is_tile |= inner.is_tile;
            info.entries.extend(inner.entries.into_iter().filter(|e| names.insert(e.name.clone())));
        } else {
            info.entries_known = false;
        }
        info.members.push(MemberInfo { kind, target: entry.target, compressed, checked: readable });
    }
    Ok(info)
}

fn check_tile(image: &[u8]) -> Result<ImageInfo, ImageError> {
    const SUPPORTED: [(u8, u8); 2] = [(13, 2), (13, 5)];
    let Some(&[major, minor]) = image.get(8..10).and_then(|v| v.first_chunk::<2>()) else {
        return Err(ImageError::TileHeader { len: image.len() });
    };
    let found = (major, minor);
    if found < SUPPORTED[0] || found > SUPPORTED[1] {
        return Err(ImageError::TileVersion { found, supported: SUPPORTED });
    }
    if image.len() < 12 {
        return Err(ImageError::TileHeader { len: image.len() });
    }
    #[cfg(feature = "tile")]
    let entries = tile_entries(&crate::tile::read(image).map_err(ImageError::Tile)?);
    #[cfg(not(feature = "tile"))]
    let entries = Vec::new();
    Ok(ImageInfo {
        kind: ImageKind::TileBytecode,
        entries,
        entries_known: cfg!(feature = "tile"),
        target: None,
        version: Some((major.into(), minor.into())),
        is_tile: true,
        members: Vec::new(),
    })
}

#[cfg(feature = "tile")]
fn tile_entries(module: &cutile_ir::ir::Module) -> Vec<EntryInfo> {
    use cutile_ir::ir::{Attribute, Type};
    let entry = |op: &cutile_ir::ir::OpId| {
        let mut name = None;
        let mut params = None;
        for (key, value) in &module.op(*op).attributes {
            match (key.as_str(), value) {
                ("sym_name", Attribute::String(s)) => name = Some(s.clone()),
                ("function_type", Attribute::Type(Type::Func(f))) => params = tile_params(&f.inputs),
                _ => {}
            }
        }
        Some(EntryInfo {
            name: name?,
            params,
            max_threads: Some(1),
            required_block: Some([1; 3]),
            required_cluster: None,
            explicit_cluster: false,
            registers: None,
            shared_bytes: None,
            local_bytes: None,
        })
    };
    module.functions.iter().filter_map(entry).collect()
}

/// Scalars and addresses, each at its own alignment; `None` if there is anything else.
#[cfg(feature = "tile")]
fn tile_params(inputs: &[cutile_ir::ir::Type]) -> Option<Vec<Param>> {
    use cutile_ir::ir::{TileElementType, Type};
    let mut end = 0u64;
    let param = |ty: &Type| {
        let Type::Tile(tile) = ty.without_pointer_attribute() else { return None };
        let (size, pointer) = match &tile.element_type {
            TileElementType::Scalar(s) => (s.byte_width() as u64, false),
            TileElementType::Pointer(_) => (8, true),
        };
        if !tile.shape.is_empty() {
            return None;
        }
        let offset = end.next_multiple_of(size);
        end = offset + size;
        // At most eight.
        Some(Param { name: None, offset, size, align: Some(size as u32), pointer: Some(pointer) })
    };
    inputs.iter().map(param).collect()
}
