//! What can be wrong with Tile bytecode.

use cutile_ir::bytecode::BytecodeVersion;
use std::fmt;

/// Why an input is not readable Tile bytecode. Offsets count bytes from the start of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TileError {
    /// The input does not start with the eight magic bytes.
    NotTile,
    /// The header names a version that this reader does not know.
    Version {
        /// The version in the header.
        found: BytecodeVersion,
        /// The oldest version that can be read.
        oldest: BytecodeVersion,
        /// The newest version that can be read.
        newest: BytecodeVersion,
    },
    /// The input ends inside something.
    Truncated {
        /// Where the something begins.
        offset: usize,
        /// What was being read.
        what: &'static str,
        /// Bytes it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// An index points outside its table.
    Index {
        /// Where the index is written.
        offset: usize,
        /// The table.
        what: &'static str,
        /// The index.
        index: u64,
        /// Entries in the table.
        len: usize,
    },
    /// A number has no meaning where it stands.
    Value {
        /// Where it is written.
        offset: usize,
        /// What it should be.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// A count, depth or size is beyond what is accepted.
    Limit {
        /// Where it is written.
        offset: usize,
        /// What is counted.
        what: &'static str,
        /// How many.
        value: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// Parts contradict each other.
    Malformed {
        /// Where.
        offset: usize,
        /// What is wrong.
        what: String,
    },
    /// Well-formed, but `cutile_ir::ir::Module` cannot hold it.
    Unsupported {
        /// Where.
        offset: usize,
        /// What it is.
        what: String,
    },
}

impl TileError {
    /// Where in the input the error was found.
    pub fn offset(&self) -> usize {
        match self {
            Self::NotTile => 0,
            // The version follows the eight magic bytes.
            Self::Version { .. } => 8,
            Self::Truncated { offset, .. }
            | Self::Index { offset, .. }
            | Self::Value { offset, .. }
            | Self::Limit { offset, .. }
            | Self::Malformed { offset, .. }
            | Self::Unsupported { offset, .. } => *offset,
        }
    }
}

impl fmt::Display for TileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile bytecode, byte {}: ", self.offset())?;
        match self {
            Self::NotTile => f.write_str("no Tile IR magic number"),
            Self::Version { found, oldest, newest } => {
                write!(f, "version {found} is not supported; supported: {oldest} to {newest}")
            }
            Self::Truncated { what, needed, left, .. } => {
                write!(f, "{what} needs {needed} bytes, {left} are left")
            }
            Self::Index { what, index, len, .. } => {
                write!(f, "{what} {index} is out of range: there are {len}")
            }
            Self::Value { what, value, .. } => write!(f, "{value} is not a valid {what}"),
            Self::Limit { what, value, limit, .. } => {
                write!(f, "{value} {what}; the limit is {limit}")
            }
            Self::Malformed { what, .. } | Self::Unsupported { what, .. } => f.write_str(what),
        }
    }
}

impl std::error::Error for TileError {}
