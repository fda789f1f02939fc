//! What the oracle knows of memory, and its own idea of a conflict.

use super::clock::Clock;
use simtile_hazard::{Mode, Scope};

/// Bytes in a cell: the grain at which the oracle looks.
pub const CELL: u64 = 4;

/// How bytes are used, in the oracle's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Read,
    Write,
    Atomic { size: u32, phase: u64, system: bool, device: u16 },
}

impl Use {
    pub fn of(mode: Mode, start: u64, device: u16) -> Self {
        match mode {
            Mode::Read => Use::Read,
            Mode::Write => Use::Write,
            Mode::Accumulate { size, scope } => {
                Use::Atomic { size, phase: start % u64::from(size), system: scope == Scope::System, device }
            }
        }
    }

    pub fn clashes(self, other: Self) -> bool {
        match (self, other) {
            (Use::Read, Use::Read) => false,
            (
                Use::Atomic { size: s1, phase: p1, system: y1, device: d1 },
                Use::Atomic { size: s2, phase: p2, system: y2, device: d2 },
            ) => s1 != s2 || p1 != p2 || !(d1 == d2 || (y1 && y2)),
            _ => true,
        }
    }
}

/// A use of some bytes of a region.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    pub region: usize,
    pub start: u64,
    pub end: u64,
    pub how: Use,
}

impl Touch {
    pub fn cells(&self) -> std::ops::Range<usize> {
        (self.start / CELL) as usize..self.end.div_ceil(CELL) as usize
    }
}

/// The last use of a cell in one way by one stream.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    pub stream: usize,
    pub position: u32,
    pub how: Use,
}

/// What is known of one region.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub cells: Vec<Vec<Past>>,
    pub freed: bool,
    /// Claims of the host: (claim, start, end, how).
    pub host: Vec<(u64, u64, u64, Use)>,
    /// Held by foreign code: `Some(shared)`.
    pub exported: Option<bool>,
}

impl Memory {
    pub fn new(len: u64) -> Self {
        Self { cells: vec![Vec::new(); len.div_ceil(CELL) as usize], ..Self::default() }
    }

    /// The past uses that clash with a touch.
    pub fn clashes<'a>(&'a self, touch: &'a Touch) -> impl Iterator<Item = Past> + 'a {
        self.cells[touch.cells()].iter().flatten().copied().filter(|past| past.how.clashes(touch.how))
    }

    /// All past uses.
    pub fn all(&self) -> impl Iterator<Item = Past> + '_ {
        self.cells.iter().flatten().copied()
    }

    pub fn note(&mut self, touch: &Touch, stream: usize, position: u32) {
        for cell in &mut self.cells[touch.cells()] {
            match cell.iter_mut().find(|past| past.stream == stream && past.how == touch.how) {
                Some(past) => past.position = position,
                None => cell.push(Past { stream, position, how: touch.how }),
            }
        }
    }
}

/// The first clashing use that `clock` does not come after.
pub fn unordered(memory: &Memory, touch: &Touch, stream: usize, clock: &Clock) -> Option<Past> {
    memory.clashes(touch).find(|past| past.stream != stream && !clock.covers(past.stream, past.position))
}
