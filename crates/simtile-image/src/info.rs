//! What is known about an image.

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

/// What variables an image brings into the module, from the least to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Globals {
    /// None.
    None,
    /// Constants, which kernels do not write. Strings that compilers put into `.global` count as such, by the names that compilers
    /// give them.
    Constant,
    /// The image does not say, or was not read.
    #[default]
    Unknown,
    /// Some that kernels may write.
    Mutable,
}

impl Globals {
    /// What a variable of this name in global memory counts as.
    pub(crate) fn of_name(name: &str) -> Self {
        /// Of string literals, other private constants, and the tables of CUDA's mathematics: nvcc, clang, rustc.
        const CONSTANTS: [&str; 7] =
            ["$str", "__unnamed_", "_$_str", "$_str", "alloc_", "anon_$_", "__cudart_"];
        if CONSTANTS.iter().any(|prefix| name.starts_with(prefix)) { Self::Constant } else { Self::Mutable }
    }
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
    /// Its variables.
    pub globals: Globals,
    /// The images in a fat binary.
    pub members: Vec<MemberInfo>,
}
