//! Bounds-checked little-endian reads, and the error of the binary formats.

use std::fmt;

/// Why a binary image is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// Offset in the image, bytes.
    pub offset: u64,
    /// What stands there.
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a part of a binary image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// It reaches beyond the end of what holds it.
    Beyond {
        /// Where it ends, from the start of the image.
        end: u64,
        /// Where what holds it ends.
        limit: u64,
    },
    /// A number is not one of those it can be.
    Value {
        /// The number.
        found: u64,
        /// What it should be.
        expected: &'static str,
    },
    /// A number is too large.
    Limit {
        /// The number.
        value: u64,
        /// The largest that is accepted.
        limit: u64,
    },
    /// Anything else.
    Malformed(&'static str),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}: ", self.offset, self.what)?;
        match &self.problem {
            Problem::Beyond { end, limit } => write!(f, "ends at byte {end}, the limit is {limit}"),
            Problem::Value { found, expected } => write!(f, "found {found:#x}, expected {expected}"),
            Problem::Limit { value, limit } => write!(f, "{value} is more than {limit}"),
            Problem::Malformed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for FormatError {}

pub(crate) fn error(offset: u64, what: &'static str, problem: Problem) -> FormatError {
    FormatError { offset, what, problem }
}

/// The longest name in a string table, bytes.
pub(crate) const MAX_NAME: usize = 1 << 16;

/// A part of an image that knows where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    data: &'a [u8],
    base: u64,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, base: 0 }
    }

    pub(crate) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    pub(crate) fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Offset in the image of byte `at` of this part.
    pub(crate) fn offset(&self, at: u64) -> u64 {
        self.base.saturating_add(at)
    }

    /// `len` bytes from `at`.
    pub(crate) fn part(&self, at: u64, len: u64, what: &'static str) -> Result<Bytes<'a>, FormatError> {
        let end = at.saturating_add(len);
        if end > self.len() {
            let problem = Problem::Beyond { end: self.offset(end), limit: self.offset(self.len()) };
            return Err(error(self.offset(at), what, problem));
        }
        // Both are at most the slice's length.
        Ok(Bytes { data: &self.data[at as usize..end as usize], base: self.offset(at) })
    }

    /// What follows `at`.
    pub(crate) fn rest(&self, at: u64, what: &'static str) -> Result<Bytes<'a>, FormatError> {
        self.part(at, self.len().saturating_sub(at), what)
    }

    fn array<const N: usize>(&self, at: u64, what: &'static str) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.part(at, N as u64, what)?.data);
        Ok(out)
    }

    pub(crate) fn u8(&self, at: u64, what: &'static str) -> Result<u8, FormatError> {
        Ok(self.array::<1>(at, what)?[0])
    }

    pub(crate) fn u16(&self, at: u64, what: &'static str) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array(at, what)?))
    }

    pub(crate) fn u32(&self, at: u64, what: &'static str) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array(at, what)?))
    }

    pub(crate) fn u64(&self, at: u64, what: &'static str) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array(at, what)?))
    }

    /// The bytes from `at` up to a NUL, which must come within [`MAX_NAME`] bytes.
    pub(crate) fn c_str(&self, at: u64, what: &'static str) -> Result<&'a [u8], FormatError> {
        let rest = self.rest(at, what)?;
        // Many names may point into one long text: without a limit that takes quadratic time.
        let most = rest.data.len().min(MAX_NAME + 1);
        match rest.data[..most].iter().position(|&b| b == 0) {
            Some(n) => Ok(&rest.data[..n]),
            None if most > MAX_NAME => {
                let problem = Problem::Limit { value: rest.len(), limit: MAX_NAME as u64 };
                Err(error(rest.base, what, problem))
            }
            None => Err(error(rest.base, what, Problem::Malformed("no NUL before the end of the table"))),
        }
    }
}
