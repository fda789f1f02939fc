//! The byte ranges of one region and the stamps on them.
//!
//! A sorted list of disjoint ranges; bytes in no range carry no live stamp. One range is the common case. An access cuts at
//! its bounds, looks at what it overlaps, and leaves its own stamp there. Neighbours that say the same are joined again.
//!
//! A range holds at most one writer, one reader and one accumulator stamp per axis, oldest stamp first.

use crate::frontier::Frontier;
use crate::ids::{AxisId, Epoch};
use crate::mode::Kind;
use crate::mutate::site;
use smallvec::{SmallVec, smallvec};

/// After a conflict between two streams, so many further touches seal eagerly.
const EAGER_TOUCHES: u8 = 4;

/// One stamp on a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub axis: AxisId,
    pub epoch: Epoch,
    pub kind: Kind,
}

#[derive(Clone)]
struct Range {
    start: u64,
    end: u64,
    /// Touches that still seal eagerly, because two streams have met here.
    eager: u8,
    entries: SmallVec<[Entry; 4]>,
}

/// What the list needs to know about axes.
pub(crate) trait Knowledge {
    /// Whether the work up to there is known to have finished.
    fn complete(&self, axis: AxisId, epoch: Epoch) -> bool;
    /// Whether both epochs will be waited for through the same event.
    fn same_cover(&self, axis: AxisId, a: Epoch, b: Epoch) -> bool;
}

/// Who touches.
pub(crate) struct Toucher<'a> {
    pub axis: AxisId,
    /// What it is ordered after, its own axis apart.
    pub frontier: &'a Frontier,
}

/// Why a stamp must be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    Conflict,
    ReaderLimit,
}

/// What happened in one touch, for the counters.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touched {
    pub seal: bool,
    pub cut: u32,
    pub joined: u32,
    pub folded: u32,
    pub replaced: u32,
    pub dominated: u32,
    pub completed: u32,
}

/// The list.
#[derive(Default, Clone)]
pub(crate) struct Ranges {
    list: SmallVec<[Range; 1]>,
}

impl Ranges {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn all(&self) -> Vec<(u64, u64, crate::ids::Stamp)> {
        let each = |range: &Range| {
            let (start, end) = (range.start, range.end);
            range
                .entries
                .iter()
                .map(move |e| (start, end, crate::ids::Stamp { axis: e.axis, epoch: e.epoch }))
                .collect::<Vec<_>>()
        };
        self.list.iter().flat_map(each).collect()
    }

    /// The ranges that overlap `start..end`.
    #[inline]
    fn overlapping(&self, start: u64, end: u64) -> core::ops::Range<usize> {
        if let [only] = self.list.as_slice() {
            return if only.end > start && only.start < end { 0..1 } else { 0..0 };
        }
        let first = self.list.partition_point(|range| range.end <= start);
        let last = self.list.partition_point(|range| range.start < end);
        first..last.max(first)
    }

    /// Calls `follow` for each stamp that a touch of `start..end` must come after and does not yet. `skipped` counts
    /// conflicting stamps that need no wait: (dominated, completed).
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn plan(
        &self,
        start: u64,
        end: u64,
        kind: Kind,
        who: &Toucher<'_>,
        know: &impl Knowledge,
        limit: usize,
        skipped: &mut (u32, u32),
        mut follow: impl FnMut(&Entry, Why),
    ) {
        for range in &self.list[self.overlapping(start, end)] {
            // What one stream alone touches is in its order anyway.
            if !range.only_of(who.axis) {
                range.plan(kind, who, know, limit, skipped, &mut follow);
            }
        }
    }

    /// Whether there is at most one range, with stamps of `axis` alone, so that a touch by `axis` has nothing to follow.
    #[inline]
    pub(crate) fn only_of(&self, axis: AxisId) -> bool {
        match self.list.as_slice() {
            [] => true,
            [only] => only.only_of(axis),
            _ => false,
        }
    }

    /// [`Ranges::touch`] where it only renews the stamps that `axis` has on the only range. Whether it did so.
    #[inline]
    pub(crate) fn touch_again(
        &mut self,
        start: u64,
        end: u64,
        kind: Kind,
        axis: AxisId,
        epoch: Epoch,
    ) -> bool {
        match self.list.as_mut_slice() {
            [only] if only.start == start && only.end == end && only.eager == 0 => {
                only.renew(kind, epoch, axis)
            }
            _ => false,
        }
    }

    /// Leaves the stamp (`who.axis`, `epoch`) of `kind` on `start..end`. `met`: the touch conflicted with another stream.
    /// What happened is added to `report`, which one submission has for all its touches.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn touch(
        &mut self,
        start: u64,
        end: u64,
        kind: Kind,
        epoch: Epoch,
        met: bool,
        who: &Toucher<'_>,
        know: &impl Knowledge,
        max_ranges: usize,
        report: &mut Touched,
    ) {
        if start >= end {
            return;
        }
        match self.list.as_mut_slice() {
            // The first touch: nobody to meet, nothing to join.
            [] => {
                let entries = smallvec![Entry { axis: who.axis, epoch, kind }];
                return self.list.push(Range { start, end, eager: 0, entries });
            }
            [only] if only.start == start && only.end == end => {
                return only.update(kind, epoch, met, who, know, report);
            }
            _ => {}
        }
        self.touch_slow(start, end, kind, epoch, met, who, know, max_ranges, report);
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    fn touch_slow(
        &mut self,
        start: u64,
        end: u64,
        kind: Kind,
        epoch: Epoch,
        met: bool,
        who: &Toucher<'_>,
        know: &impl Knowledge,
        max_ranges: usize,
        report: &mut Touched,
    ) {
        self.cut(start, report);
        self.cut(end, report);
        let mut at = self.list.partition_point(|range| range.end <= start);
        let mut from = start;
        while from < end {
            let next = self.list.get(at).map_or(u64::MAX, |range| range.start);
            if next > from {
                let gap = Range { start: from, end: next.min(end), eager: 0, entries: smallvec![] };
                self.list.insert(at, gap);
            }
            self.list[at].update(kind, epoch, met, who, know, report);
            from = self.list[at].end;
            at += 1;
        }
        if site!(PruneJoin) {
            self.join(start, end, know, report);
        }
        if site!(PruneFold) {
            self.fold(max_ranges, report);
        }
    }

    /// Splits the range that has `at` strictly inside.
    fn cut(&mut self, at: u64, report: &mut Touched) {
        let index = self.list.partition_point(|range| range.end <= at);
        if let Some(range) = self.list.get_mut(index)
            && range.start < at
        {
            let mut tail = range.clone();
            tail.start = at;
            range.end = at;
            self.list.insert(index + 1, tail);
            report.cut += 1;
        }
    }

    /// Joins neighbours in and around `start..end` that say the same, and removes those that say nothing any more.
    fn join(&mut self, start: u64, end: u64, know: &impl Knowledge, report: &mut Touched) {
        let mut at = self.list.partition_point(|range| range.end < start).saturating_sub(1);
        while at < self.list.len() && self.list[at].start <= end {
            self.list[at].forget_completed(know, report);
            if self.list[at].entries.is_empty() {
                self.list.remove(at);
                continue;
            }
            if at > 0 && self.list[at - 1].end == self.list[at].start {
                let (left, right) = self.list.split_at_mut(at);
                let (left, right) = (&mut left[at - 1], &right[0]);
                if left.same(right, know) {
                    left.absorb(right);
                    self.list.remove(at);
                    report.joined += 1;
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Joins the nearest ranges until at most `max` are left. Over-ordered: the joined range carries the stamps of both.
    fn fold(&mut self, max: usize, report: &mut Touched) {
        while self.list.len() > max.max(1) {
            let gap = |at: usize| self.list[at + 1].start - self.list[at].end;
            let Some(at) = (0..self.list.len() - 1).min_by_key(|&at| gap(at)) else { return };
            let right = self.list.remove(at + 1);
            self.list[at].absorb(&right);
            report.folded += 1;
        }
    }

    /// Forgets completed stamps, and calls `each` for every live one.
    pub(crate) fn live(&mut self, start: u64, end: u64, know: &impl Knowledge, mut each: impl FnMut(&Entry)) {
        let span = self.overlapping(start, end);
        for range in &mut self.list[span] {
            range.forget_completed(know, &mut Touched::default());
            range.entries.iter().for_each(&mut each);
        }
    }
}

impl Range {
    /// [`Ranges::plan`] for one range.
    fn plan(
        &self,
        kind: Kind,
        who: &Toucher<'_>,
        know: &impl Knowledge,
        limit: usize,
        skipped: &mut (u32, u32),
        follow: &mut impl FnMut(&Entry, Why),
    ) {
        let mut others = 0;
        let mut oldest = None;
        let mut present = false;
        for entry in &self.entries {
            if entry.axis == who.axis {
                present |= entry.kind == kind;
                continue;
            }
            if who.frontier.get(entry.axis) >= entry.epoch {
                skipped.0 += u32::from(kind.conflicts(entry.kind));
                if kind.covers(entry.kind) {
                    continue;
                }
            } else if know.complete(entry.axis, entry.epoch) {
                skipped.1 += u32::from(kind.conflicts(entry.kind));
                continue;
            } else if kind.conflicts(entry.kind) {
                follow(entry, Why::Conflict);
                continue;
            }
            if entry.kind == kind {
                others += 1;
                oldest = oldest.or(Some(*entry));
            }
        }
        if others >= limit
            && !present
            && site!(WaitReaderLimit)
            && let Some(oldest) = oldest
        {
            follow(&oldest, Why::ReaderLimit);
        }
    }

    #[inline]
    fn update(
        &mut self,
        kind: Kind,
        epoch: Epoch,
        met: bool,
        who: &Toucher<'_>,
        know: &impl Knowledge,
        report: &mut Touched,
    ) {
        if met {
            self.eager = EAGER_TOUCHES;
            report.seal = true;
        } else if self.eager > 0 {
            self.eager -= 1;
            report.seal = true;
        }
        if !self.renew(kind, epoch, who.axis) {
            self.update_slow(kind, epoch, who, know, report);
        }
    }

    /// Whether the stamps are of `axis` alone.
    #[inline]
    fn only_of(&self, axis: AxisId) -> bool {
        self.entries.iter().all(|entry| entry.axis == axis)
    }

    /// Where a touch changes nothing but the epoch (or the kind) of the newest stamp, does so. Whether it did.
    #[inline]
    fn renew(&mut self, kind: Kind, epoch: Epoch, axis: AxisId) -> bool {
        match self.entries.as_mut_slice() {
            [only] if only.axis == axis && kind.covers(only.kind) => {
                *only = Entry { axis, epoch, kind };
                true
            }
            // Read, and read again, what the same stream has written.
            [first, last] if first.axis == axis && last.axis == axis && kind == last.kind => {
                last.epoch = epoch;
                true
            }
            _ => false,
        }
    }

    fn update_slow(
        &mut self,
        mut kind: Kind,
        epoch: Epoch,
        who: &Toucher<'_>,
        know: &impl Knowledge,
        report: &mut Touched,
    ) {
        // One accumulator stamp per axis: a second class makes it a write.
        if kind.is_accumulate()
            && self.entries.iter().any(|e| e.axis == who.axis && e.kind.is_accumulate() && e.kind != kind)
        {
            kind = Kind::WRITE;
        }
        // no site: two of them inside.
        self.entries.retain(|entry| {
            let own = entry.axis == who.axis;
            if kind.covers(entry.kind) {
                if own {
                    return false;
                }
                if who.frontier.get(entry.axis) >= entry.epoch && site!(PruneDominated) {
                    if kind == Kind::WRITE {
                        report.replaced += 1;
                    } else {
                        report.dominated += 1;
                    }
                    return false;
                }
            }
            if know.complete(entry.axis, entry.epoch) && site!(PruneCompleted) {
                report.completed += 1;
                return false;
            }
            true
        });
        self.entries.push(Entry { axis: who.axis, epoch, kind });
    }

    fn forget_completed(&mut self, know: &impl Knowledge, report: &mut Touched) {
        if site!(PruneCompleted) {
            let before = self.entries.len();
            self.entries.retain(|entry| !know.complete(entry.axis, entry.epoch));
            report.completed += (before - self.entries.len()) as u32;
        }
    }

    /// Whether a follower of either would wait for the same things.
    fn same(&self, other: &Self, know: &impl Knowledge) -> bool {
        self.entries.len() == other.entries.len()
            && self.entries.iter().all(|a| {
                other.entries.iter().any(|b| {
                    a.axis == b.axis
                        && a.kind == b.kind
                        && (a.epoch == b.epoch || know.same_cover(a.axis, a.epoch, b.epoch))
                })
            })
    }

    /// Takes over the bytes and the stamps of the right neighbour.
    fn absorb(&mut self, right: &Self) {
        self.end = right.end;
        self.eager = self.eager.max(right.eager);
        for entry in &right.entries {
            let same = |mine: &&mut Entry| {
                mine.axis == entry.axis
                    && (mine.kind == entry.kind || (mine.kind.is_accumulate() && entry.kind.is_accumulate()))
            };
            match self.entries.iter_mut().find(same) {
                Some(mine) => {
                    mine.epoch = mine.epoch.max(entry.epoch);
                    mine.kind = mine.kind.join(entry.kind);
                }
                None if site!(MergeFold) => self.entries.push(*entry),
                None => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "ranges_tests.rs"]
mod tests;
