//! Vector clocks: which submissions are ordered before which.

/// A line of work that is ordered in itself: a stream, a host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Axis(pub u32);

/// A point on an axis: the submission number there, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The axis.
    pub axis: Axis,
    /// The number.
    pub number: u64,
}

/// For each axis, the last submission that is known to have happened before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VectorClock {
    /// Sorted by axis; an axis that is absent stands at 0.
    entries: Vec<(Axis, u64)>,
}

impl VectorClock {
    /// Knows of nothing.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// The last submission on `axis` that happened before.
    pub fn get(&self, axis: Axis) -> u64 {
        self.entries.binary_search_by_key(&axis, |entry| entry.0).map_or(0, |i| self.entries[i].1)
    }

    /// Whether `epoch` happened before (or is) this point.
    pub fn follows(&self, epoch: Epoch) -> bool {
        self.get(epoch.axis) >= epoch.number
    }

    /// Learns everything that `other` knows.
    pub fn join(&mut self, other: &VectorClock) {
        for &(axis, number) in &other.entries {
            self.raise(axis, number);
        }
    }

    /// A new submission on `axis`: its epoch.
    pub fn tick(&mut self, axis: Axis) -> Epoch {
        let number = self.get(axis) + 1;
        self.raise(axis, number);
        Epoch { axis, number }
    }

    fn raise(&mut self, axis: Axis, number: u64) {
        match self.entries.binary_search_by_key(&axis, |entry| entry.0) {
            Ok(i) => self.entries[i].1 = self.entries[i].1.max(number),
            Err(i) => self.entries.insert(i, (axis, number)),
        }
    }
}
