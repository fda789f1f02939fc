//! Why an image was refused.

use crate::bytes::FormatError;
use crate::ptx;
use std::fmt;

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
    /// Text that is not PTX as far as our parser knows it; see [`ImageError::may_be_newer`].
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
    /// Bytecode whose sections do not fit in the image (without the feature `tile`).
    TileSections(FormatError),
    /// Bytecode that cannot be read.
    #[cfg(feature = "tile")]
    Tile(crate::tile::TileError),
}

impl ImageError {
    /// Whether the image could be right by rules newer than this crate: PTX that the parser does not know, or a newer
    /// version of the bytecode. A driver answers those with an error of its own, never with a crash; all other
    /// errors say that the image is not whole.
    pub fn may_be_newer(&self) -> bool {
        match self {
            Self::Ptx(_) => true,
            Self::TileVersion { found, supported } => *found > supported[1],
            Self::Member { error, .. } => error.may_be_newer(),
            _ => false,
        }
    }
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
            Self::TileSections(e) => write!(f, "tile bytecode: {e}"),
            #[cfg(feature = "tile")]
            Self::Tile(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Ptx(e) => Some(e),
            Self::Elf(e) | Self::Fatbin(e) | Self::TileSections(e) => Some(e),
            Self::Member { error, .. } => Some(error),
            #[cfg(feature = "tile")]
            Self::Tile(e) => Some(e),
            _ => None,
        }
    }
}
