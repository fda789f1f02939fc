//! Names of things: axes, epochs, stamps, regions. All are never reused.

use core::fmt;

/// The timeline of one stream. Never reused, whatever happens to the stream's handle value.
///
/// The low 16 bits are the axis's place in the table, the rest a serial number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AxisId(pub(crate) u64);

pub(crate) const SLOT_BITS: u32 = 16;

impl AxisId {
    pub(crate) fn new(serial: u64, slot: usize) -> Self {
        Self((serial << SLOT_BITS) | slot as u64)
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// The number behind the name, for logs.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for AxisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "axis {}.{}", self.0 >> SLOT_BITS, self.slot())
    }
}

/// A stretch of an axis between two seals. The first one is 1; epoch 0 is before everything.
pub type Epoch = u64;

/// A point on an axis: everything submitted up to the end of `epoch`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    /// The stream's timeline.
    pub axis: AxisId,
    /// Where on it.
    pub epoch: Epoch,
}

/// One allocation (or something else that is accessed as a whole: a graph executable, a module's globals).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub(crate) u64);

impl RegionId {
    /// The number behind the name, for logs.
    pub fn get(self) -> u64 {
        self.0
    }
}
