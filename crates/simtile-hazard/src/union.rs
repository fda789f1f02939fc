//! Many touches as a set: disjoint, sorted, each byte in the one mode that covers all touches of it.

use crate::capture::CapturedAccess;
use crate::ids::RegionId;
use crate::mode::{Kind, Mode};

/// Collects the touches of several pieces of work that are submitted as one. It keeps its room: filling it again with as many
/// touches as before allocates nothing.
pub struct AccessUnion<T> {
    added: Vec<Touch<T>>,
    bounds: Vec<u64>,
    set: Vec<(CapturedAccess, T)>,
}

#[derive(Clone, Copy)]
struct Touch<T> {
    region: RegionId,
    start: u64,
    end: u64,
    kind: Kind,
    tag: T,
}

impl<T> Default for AccessUnion<T> {
    fn default() -> Self {
        Self { added: Vec::new(), bounds: Vec::new(), set: Vec::new() }
    }
}

impl<T: Copy> AccessUnion<T> {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.added.clear();
        self.set.clear();
    }

    /// Adds bytes `start..end`, touched by work on `device`. `tag` is given back with the first piece of this region.
    pub fn add(&mut self, region: RegionId, start: u64, end: u64, mode: Mode, device: u16, tag: T) {
        self.push(region, start, end, Kind::new(mode, start, device), tag);
    }

    pub(crate) fn push(&mut self, region: RegionId, start: u64, end: u64, kind: Kind, tag: T) {
        self.added.push(Touch { region, start, end, kind, tag });
    }

    /// Cuts and joins what was added.
    pub fn join(&mut self) {
        let Self { added, bounds, set } = self;
        set.clear();
        added.sort_unstable_by_key(|touch| (touch.region, touch.start, touch.end));
        for group in added.chunk_by(|a, b| a.region == b.region) {
            bounds.clear();
            for touch in group {
                // Neighbours are often the same bytes.
                if bounds.last() != Some(&touch.end) || !bounds.contains(&touch.start) {
                    bounds.extend([touch.start, touch.end]);
                }
            }
            bounds.sort_unstable();
            bounds.dedup();
            let first = set.len();
            for pair in bounds.windows(2) {
                let (start, end) = (pair[0], pair[1]);
                let over = group.iter().filter(|touch| touch.start <= start && touch.end >= end);
                let Some(kind) = over.map(|touch| touch.kind).reduce(Kind::join) else { continue };
                // A piece that starts inside an element would say another phase.
                let mode = match kind.mode() {
                    Mode::Accumulate { .. } if Kind::new(kind.mode(), start, kind.device()) != kind => {
                        Mode::Write
                    }
                    mode => mode,
                };
                let (region, tag) = (group[0].region, group[0].tag);
                match set[first..].last_mut() {
                    Some((last, _)) if last.end == start && last.mode == mode => last.end = end,
                    _ => set.push((CapturedAccess { region, start, end, mode }, tag)),
                }
            }
        }
    }

    /// The set after [`AccessUnion::join`], sorted by region and start.
    pub fn set(&self) -> &[(CapturedAccess, T)] {
        &self.set
    }
}

impl<T> core::fmt::Debug for AccessUnion<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AccessUnion").field("added", &self.added.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn union(touches: &[(u64, u64, u64, Mode)]) -> Vec<(u64, u64, u64, Mode)> {
        let mut union = AccessUnion::default();
        for &(region, start, end, mode) in touches {
            union.add(RegionId(region), start, end, mode, 0, ());
        }
        union.join();
        union.set().iter().map(|(piece, ())| (piece.region.0, piece.start, piece.end, piece.mode)).collect()
    }

    #[test]
    fn pieces_are_disjoint_and_each_byte_has_the_mode_that_covers_all() {
        let touches = [
            (2, 0, 8, Mode::Read),
            (1, 0, 100, Mode::Read),
            (1, 40, 60, Mode::Write),
            (1, 0, 100, Mode::Read),
            (1, 100, 120, Mode::Read),
        ];
        let expected = [
            (1, 0, 40, Mode::Read),
            (1, 40, 60, Mode::Write),
            (1, 60, 120, Mode::Read),
            (2, 0, 8, Mode::Read),
        ];
        assert_eq!(union(&touches), expected);
        assert_eq!(union(&[]), []);
        // The same end, another start.
        let inside = [(1, 0, 8, Mode::Read), (1, 4, 8, Mode::Write)];
        assert_eq!(union(&inside), [(1, 0, 4, Mode::Read), (1, 4, 8, Mode::Write)]);
    }

    #[test]
    fn gaps_stay_gaps_and_other_accumulations_become_writes() {
        let add = Mode::Accumulate { size: 4, scope: crate::Scope::Device };
        let wide = Mode::Accumulate { size: 8, scope: crate::Scope::Device };
        assert_eq!(union(&[(1, 0, 4, add), (1, 8, 12, add)]), [(1, 0, 4, add), (1, 8, 12, add)]);
        assert_eq!(union(&[(1, 0, 8, add), (1, 0, 8, wide)]), [(1, 0, 8, Mode::Write)]);
    }

    #[test]
    fn filling_it_again_keeps_its_room() {
        let mut union = AccessUnion::default();
        for round in 0..3u64 {
            union.clear();
            for i in 0..50 {
                union.add(RegionId(i + round), 0, 16, Mode::Read, 0, i);
            }
            union.join();
            assert_eq!((union.set().len(), union.set()[49].1), (50, 49));
        }
        let room = (union.added.capacity(), union.bounds.capacity(), union.set.capacity());
        union.clear();
        (0..50).for_each(|i| union.add(RegionId(i), 0, 16, Mode::Write, 0, i));
        union.join();
        assert_eq!((union.added.capacity(), union.bounds.capacity(), union.set.capacity()), room);
    }
}
