//! Bounds-checked reading of the encoding's primitives.
//!
//! A cursor is a window of the whole input, so that its position is always an offset in the input. Nothing is
//! allocated for a count before it is known that the window can hold that many entries.

use super::TileError;

/// Fills gaps before aligned parts.
const PADDING: u8 = 0xCB;

/// A position in a window of the input.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    input: &'a [u8],
    start: usize,
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { input, start: 0, at: 0, end: input.len() }
    }

    /// Position, from the start of the input.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.end - self.at
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The next `len` bytes as a window of their own.
    pub(super) fn window(&mut self, len: usize, what: &'static str) -> Result<Cursor<'a>, TileError> {
        let start = self.at;
        self.skip(len, what)?;
        Ok(Cursor { input: self.input, start, at: start, end: self.at })
    }

    /// Bytes `from..to` of this window's rest as a window of their own.
    pub(super) fn part(&self, from: usize, to: usize, what: &'static str) -> Result<Cursor<'a>, TileError> {
        if from > to || to > self.left() {
            let what = format!("{what} spans bytes {from} to {to} of {}", self.left());
            return Err(TileError::Malformed { offset: self.at, what });
        }
        Ok(Cursor { input: self.input, start: self.at + from, at: self.at + from, end: self.at + to })
    }

    fn skip(&mut self, len: usize, what: &'static str) -> Result<(), TileError> {
        if len > self.left() {
            return Err(TileError::Truncated { offset: self.at, what, needed: len, left: self.left() });
        }
        self.at += len;
        Ok(())
    }

    pub(super) fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], TileError> {
        let from = self.at;
        self.skip(len, what)?;
        Ok(&self.input[from..self.at])
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], TileError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N, what)?);
        Ok(out)
    }

    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, TileError> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, TileError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, TileError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, TileError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Seven bits a byte, lowest first, the high bit says that more follow.
    pub(super) fn varint(&mut self, what: &'static str) -> Result<u64, TileError> {
        let offset = self.at;
        let mut value = 0u64;
        for shift in (0..).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7F);
            if shift > 63 || (bits << shift) >> shift != bits {
                let what = format!("{what} does not fit in 64 bits");
                return Err(TileError::Malformed { offset, what });
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        Ok(value)
    }

    /// A varint whose lowest bit is the sign.
    pub(super) fn signed(&mut self, what: &'static str) -> Result<i64, TileError> {
        let v = self.varint(what)?;
        Ok((v >> 1) as i64 ^ -((v & 1) as i64))
    }

    /// A count of entries that take at least `least` bytes each in this window.
    pub(super) fn count(&mut self, what: &'static str, least: usize) -> Result<usize, TileError> {
        let offset = self.at;
        let value = self.varint(what)?;
        let limit = self.left() / least;
        match usize::try_from(value) {
            Ok(n) if n <= limit => Ok(n),
            _ => Err(TileError::Limit { offset, what, value, limit: limit as u64 }),
        }
    }

    /// A length in bytes of something that follows, though not at once.
    pub(super) fn length(&mut self, what: &'static str) -> Result<usize, TileError> {
        self.count(what, 1)
    }

    /// A counted list of 64-bit numbers.
    pub(super) fn i64s(&mut self, what: &'static str, most: usize) -> Result<Vec<i64>, TileError> {
        let n = self.rank(what, 8, most)?;
        (0..n).map(|_| Ok(i64::from_le_bytes(self.array(what)?))).collect()
    }

    /// A counted list of 32-bit numbers.
    pub(super) fn i32s(&mut self, what: &'static str, most: usize) -> Result<Vec<i32>, TileError> {
        let n = self.rank(what, 4, most)?;
        (0..n).map(|_| Ok(i32::from_le_bytes(self.array(what)?))).collect()
    }

    fn rank(&mut self, what: &'static str, width: usize, most: usize) -> Result<usize, TileError> {
        let offset = self.at;
        let n = self.count(what, width)?;
        if n > most {
            return Err(TileError::Limit { offset, what, value: n as u64, limit: most as u64 });
        }
        Ok(n)
    }

    /// Skips padding up to a multiple of `alignment` bytes from the start of the window.
    pub(super) fn align(&mut self, alignment: usize) -> Result<(), TileError> {
        let gap = (self.at - self.start).next_multiple_of(alignment) - (self.at - self.start);
        self.padding(gap)
    }

    /// Skips `len` padding bytes.
    pub(super) fn padding(&mut self, len: usize) -> Result<(), TileError> {
        let offset = self.at;
        match self.bytes(len, "alignment padding")?.iter().position(|&b| b != PADDING) {
            None => Ok(()),
            Some(i) => {
                let what = format!("a padding byte is {:#04x}, not {PADDING:#04x}", self.input[offset + i]);
                Err(TileError::Malformed { offset: offset + i, what })
            }
        }
    }

    /// The window must have been read to its end.
    pub(super) fn finish(&self, what: &'static str) -> Result<(), TileError> {
        if self.is_empty() {
            return Ok(());
        }
        let what = format!("{} bytes are left over after {what}", self.left());
        Err(TileError::Malformed { offset: self.at, what })
    }
}
