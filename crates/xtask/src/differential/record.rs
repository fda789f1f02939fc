//! What kernels gave, in memory and in a file.
//!
//! A file is a magic word and then entries: name, outcome and, for each output, its type, tolerance, rows and
//! bytes.
//! Everything is little-endian; lengths are 32 bits.

use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"STDIFF02";
/// Files of before outputs had rows.
const OLD: &[u8; 8] = b"STDIFF01";

/// Type of an output's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem {
    U8,
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Elem {
    const ALL: [Self; 8] =
        [Self::U8, Self::U16, Self::U32, Self::U64, Self::F16, Self::Bf16, Self::F32, Self::F64];

    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::F32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }

    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }
}

/// How far two results may be apart: by any of the three. All zero: the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
    pub ulps: u32,
}

impl Tolerance {
    pub const EXACT: Self = Self { relative: 0.0, absolute: 0.0, ulps: 0 };

    /// The README's `|got - want| <= t (1 + |want|)`.
    pub const fn readme(t: f64) -> Self {
        Self { relative: t, absolute: t, ulps: 0 }
    }

    pub const fn ulps(ulps: u32) -> Self {
        Self { relative: 0.0, absolute: 0.0, ulps }
    }

    pub const fn relative(relative: f64) -> Self {
        Self { relative, absolute: 0.0, ulps: 0 }
    }
}

/// Rows of a padded matrix: so many elements of each `stride` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub cols: u32,
    pub stride: u32,
}

impl Rows {
    /// Every element counts.
    pub const ALL: Self = Self { cols: 1, stride: 1 };

    pub const fn holds(self, index: usize) -> bool {
        self.stride == 0 || index % (self.stride as usize) < self.cols as usize
    }
}

/// One buffer that a kernel wrote.
#[derive(Clone, Debug)]
pub struct Output {
    pub elem: Elem,
    pub tolerance: Tolerance,
    pub rows: Rows,
    pub bytes: Vec<u8>,
}

/// What one case gave.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub result: Result<Vec<Output>, String>,
}

fn put(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(bytes)
}

/// Writes the magic word of a new file.
pub fn start(to: &mut impl Write) -> std::io::Result<()> {
    to.write_all(MAGIC)
}

pub fn write(to: &mut impl Write, entry: &Entry) -> std::io::Result<()> {
    put(to, entry.name.as_bytes())?;
    match &entry.result {
        Err(why) => {
            to.write_all(&[1])?;
            put(to, why.as_bytes())
        }
        Ok(outputs) => {
            to.write_all(&[0])?;
            to.write_all(&(outputs.len() as u32).to_le_bytes())?;
            for output in outputs {
                to.write_all(&[output.elem as u8])?;
                to.write_all(&output.tolerance.relative.to_le_bytes())?;
                to.write_all(&output.tolerance.absolute.to_le_bytes())?;
                to.write_all(&output.tolerance.ulps.to_le_bytes())?;
                to.write_all(&output.rows.cols.to_le_bytes())?;
                to.write_all(&output.rows.stride.to_le_bytes())?;
                put(to, &output.bytes)?;
            }
            Ok(())
        }
    }
}

/// What is left of a file, and whether outputs have rows.
struct Reader<'b>(&'b [u8], bool);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut out = [0; N];
        self.0.read_exact(&mut out).ok()?;
        Some(out)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let n = u32::from_le_bytes(self.take()?) as usize;
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    fn entry(&mut self) -> Option<Entry> {
        let name = self.text()?;
        if self.take::<1>()? != [0] {
            return Some(Entry { name, result: Err(self.text()?) });
        }
        let mut outputs = Vec::new();
        for _ in 0..u32::from_le_bytes(self.take()?) {
            let [elem] = self.take()?;
            let elem = *Elem::ALL.get(usize::from(elem))?;
            let relative = f64::from_le_bytes(self.take()?);
            let absolute = f64::from_le_bytes(self.take()?);
            let ulps = u32::from_le_bytes(self.take()?);
            let rows = if self.1 {
                Rows { cols: u32::from_le_bytes(self.take()?), stride: u32::from_le_bytes(self.take()?) }
            } else {
                Rows::ALL
            };
            let bytes = self.bytes()?;
            outputs.push(Output { elem, tolerance: Tolerance { relative, absolute, ulps }, rows, bytes });
        }
        Some(Entry { name, result: Ok(outputs) })
    }
}

/// The entries of a file. One that was cut off at its end (a worker that died) gives those before.
pub fn read(file: &[u8]) -> Result<Vec<Entry>, String> {
    let mut reader = if let Some(rest) = file.strip_prefix(MAGIC) {
        Reader(rest, true)
    } else if let Some(rest) = file.strip_prefix(OLD) {
        Reader(rest, false)
    } else {
        return Err("this is no record of outputs".into());
    };
    let mut entries = Vec::new();
    while let Some(entry) = reader.entry() {
        entries.push(entry);
    }
    Ok(entries)
}
