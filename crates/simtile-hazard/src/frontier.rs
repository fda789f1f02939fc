//! What a stream is already ordered after.

use crate::ids::{AxisId, Epoch};
use smallvec::SmallVec;

/// Per axis, the epoch that a stream (or an event) is ordered after. Sorted by axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    entries: SmallVec<[(AxisId, Epoch); 8]>,
}

impl Frontier {
    /// The epoch of `axis` that this is ordered after; 0 if none.
    #[inline]
    pub fn get(&self, axis: AxisId) -> Epoch {
        self.entries.iter().find(|entry| entry.0 == axis).map_or(0, |entry| entry.1)
    }

    /// Orders this after (`axis`, `epoch`).
    pub fn raise(&mut self, axis: AxisId, epoch: Epoch) {
        match self.entries.binary_search_by_key(&axis, |entry| entry.0) {
            Ok(at) => self.entries[at].1 = self.entries[at].1.max(epoch),
            Err(at) => self.entries.insert(at, (axis, epoch)),
        }
    }

    /// Orders this after all that `other` is ordered after.
    pub fn merge(&mut self, other: &Frontier) {
        for &(axis, epoch) in &other.entries {
            // no site: whoever merges has one.
            self.raise(axis, epoch);
        }
    }

    /// Drops the axes for which `complete` holds: completed work needs no wait anyway.
    pub fn prune(&mut self, mut complete: impl FnMut(AxisId, Epoch) -> bool) -> usize {
        let before = self.entries.len();
        // no site: whoever prunes has one.
        self.entries.retain(|entry| !complete(entry.0, entry.1));
        before - self.entries.len()
    }

    /// All entries, by axis.
    pub fn iter(&self) -> impl Iterator<Item = (AxisId, Epoch)> + '_ {
        self.entries.iter().copied()
    }

    /// How many axes it names.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it names none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes this a copy of `other`, keeping the storage.
    pub(crate) fn copy_from(&mut self, other: &Frontier) {
        self.entries.clear();
        self.entries.extend_from_slice(&other.entries);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_latest_of_each_axis_and_forgets_what_is_complete() {
        let (a, b) = (AxisId(1), AxisId(2));
        let mut frontier = Frontier::default();
        assert_eq!((frontier.is_empty(), frontier.len()), (true, 0));
        frontier.raise(b, 3);
        frontier.raise(a, 5);
        frontier.raise(b, 2);
        assert_eq!(frontier.iter().collect::<Vec<_>>(), [(a, 5), (b, 3)]);
        assert_eq!((frontier.is_empty(), frontier.len()), (false, 2));
        assert_eq!(frontier.prune(|axis, epoch| axis == a && epoch == 5), 1);
        assert_eq!((frontier.get(a), frontier.get(b), frontier.len()), (0, 3, 1));
        assert_eq!(frontier.prune(|_, _| false), 0);
    }
}
