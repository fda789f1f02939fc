//! Which addresses are taken: first fit over one interval, in granules.
//!
//! * Every taken range is followed by a gap of one granule, so that an access past its end never lands in a
//!   neighbour.
//! * A range that was given back is joined with its free neighbours and used again from the lowest address on, as
//!   on a GPU, unless reuse is switched off: then every range is taken above all earlier ones.
//! * Nothing here knows what is stored behind the addresses.

use std::collections::BTreeMap;

/// Granule of addresses, and the least gap between two ranges: 512 bytes.
pub const GRANULE: u64 = 512;

/// The free and the taken ranges of one interval of addresses.
#[derive(Debug)]
pub struct Ranges {
    /// Free ranges by first address. No two of them touch.
    free: BTreeMap<u64, u64>,
    /// Taken ranges by first address, with their gap.
    taken: BTreeMap<u64, u64>,
    reuse: bool,
}

impl Ranges {
    /// An interval that is all free. Both ends are cut to whole granules.
    pub fn new(first: u64, bytes: u64, reuse: bool) -> Self {
        let start = first.next_multiple_of(GRANULE);
        let end = first.saturating_add(bytes) / GRANULE * GRANULE;
        let mut free = BTreeMap::new();
        if end > start {
            free.insert(start, end - start);
        }
        Self { free, taken: BTreeMap::new(), reuse }
    }

    /// Whether ranges that were given back are used again. Applies to ranges given back from now on.
    pub fn set_reuse(&mut self, reuse: bool) {
        self.reuse = reuse;
    }

    /// Room for `bytes` bytes and a gap, at a multiple of `align` (a power of two; less than a granule counts as
    /// one). `None` if no free range has it.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let room = bytes.max(1).checked_next_multiple_of(GRANULE)?.checked_add(GRANULE)?;
        let align = align.max(GRANULE);
        let (start, base) = self.free.iter().find_map(|(&start, &len)| {
            let base = start.checked_next_multiple_of(align)?;
            let skipped = base - start;
            (skipped <= len && room <= len - skipped).then_some((start, base))
        })?;
        self.cut(start, base, room);
        Some(base)
    }

    /// Takes exactly the range at `base` (a multiple of the granule), with its gap, if all of it is free.
    pub fn take_at(&mut self, base: u64, bytes: u64) -> Option<()> {
        if !base.is_multiple_of(GRANULE) {
            return None;
        }
        let room = bytes.max(1).checked_next_multiple_of(GRANULE)?.checked_add(GRANULE)?;
        let (&start, &len) = self.free.range(..=base).next_back()?;
        let skipped = base - start;
        if skipped > len || room > len - skipped {
            return None;
        }
        self.cut(start, base, room);
        Some(())
    }

    fn cut(&mut self, start: u64, base: u64, room: u64) {
        let len = self.free.remove(&start).unwrap_or(0);
        if base > start {
            self.free.insert(start, base - start);
        }
        if start + len > base + room {
            self.free.insert(base + room, start + len - base - room);
        }
        self.taken.insert(base, room);
    }

    /// Gives back the range that starts at `base`. False if none does.
    pub fn give_back(&mut self, base: u64) -> bool {
        let Some(room) = self.taken.remove(&base) else { return false };
        self.add(base, room);
        true
    }

    /// Leaves a taken range to the caller, who cuts and joins it and gives every part back by [`Ranges::add`].
    pub fn disown(&mut self, base: u64) {
        self.taken.remove(&base);
    }

    /// Makes addresses free that are in no range: `room` includes the gap.
    pub fn add(&mut self, base: u64, room: u64) {
        if !self.reuse {
            return;
        }
        let (mut start, mut len) = (base, room);
        if let Some((&before, &before_len)) = self.free.range(..base).next_back()
            && before + before_len == base
        {
            self.free.remove(&before);
            (start, len) = (before, len + before_len);
        }
        if let Some(after_len) = self.free.remove(&(base + room)) {
            len += after_len;
        }
        self.free.insert(start, len);
    }

    /// How many ranges are taken.
    pub fn taken(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 1 << 20;

    #[test]
    fn first_fit_reuses_the_lowest_range_that_is_large_enough() {
        let mut ranges = Ranges::new(BASE, 1 << 20, true);
        let a = ranges.take(1000, 1).unwrap();
        let b = ranges.take(5000, 1).unwrap();
        let c = ranges.take(1, 1).unwrap();
        assert_eq!((a, b), (BASE, BASE + 1024 + GRANULE));
        assert!(ranges.give_back(a));
        assert!(!ranges.give_back(a), "a range is given back once");
        assert!(ranges.give_back(b));
        // Both are one free range now.
        assert_eq!(ranges.take(6000, 1), Some(BASE));
        assert!(ranges.take(1, 1).unwrap() > c);
    }

    #[test]
    fn without_reuse_addresses_only_grow() {
        let mut ranges = Ranges::new(BASE, 1 << 20, false);
        let a = ranges.take(100, 1).unwrap();
        ranges.give_back(a);
        assert!(ranges.take(100, 1).unwrap() > a);
    }

    #[test]
    fn a_wanted_place_is_taken_only_if_all_of_it_is_free() {
        let mut ranges = Ranges::new(BASE, 1 << 20, true);
        assert_eq!(ranges.take_at(BASE + 4096, 4096), Some(()));
        assert_eq!(ranges.take_at(BASE + 8192, 1), None, "the gap is taken too");
        assert_eq!(ranges.take_at(BASE + 100, 1), None, "not on a granule");
        assert_eq!(ranges.take_at(BASE - 512, 512), None, "before the interval");
        assert_eq!(ranges.take_at(BASE + (1 << 20) - 512, 512), None, "no room for the gap");
        assert_eq!(ranges.take_at(BASE, 3584), Some(()), "touches its neighbour's first byte");
        assert_eq!(ranges.take(1, 1 << 16), Some(BASE + (1 << 16)));
    }

    #[test]
    fn sizes_that_overflow_or_do_not_fit_are_refused() {
        let mut ranges = Ranges::new(BASE, 4096, true);
        assert_eq!(ranges.take(u64::MAX, 1), None);
        assert_eq!(ranges.take(u64::MAX - 600, 1), None);
        assert_eq!(ranges.take(4096, 1), None);
        assert_eq!(ranges.take(1, 1 << 63), None);
        assert_eq!(ranges.take(3584, 1), Some(BASE));
        assert_eq!(ranges.taken(), 1);
        assert_eq!(Ranges::new(BASE + 1, 100, true).take(1, 1), None);
    }

    proptest! {
        /// Ranges never overlap, keep their gap and their alignment, and all room comes back.
        #[test]
        fn ranges_are_apart_and_nothing_is_lost(
            steps in proptest::collection::vec((0u64..40_000, 0u32..14, any::<prop::sample::Index>(), any::<bool>()), 1..80)
        ) {
            let size = 1 << 19;
            let mut ranges = Ranges::new(BASE, size, true);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, align, pick, free) in steps {
                if free && !live.is_empty() {
                    let (base, _) = live.swap_remove(pick.index(live.len()));
                    prop_assert!(ranges.give_back(base));
                } else if let Some(base) = ranges.take(bytes, 1 << align) {
                    prop_assert!(base % (1 << align) == 0 && base % GRANULE == 0);
                    prop_assert!(base >= BASE && base + bytes + GRANULE <= BASE + size);
                    for &(other, len) in &live {
                        prop_assert!(base >= other + len + GRANULE || other >= base + bytes + GRANULE);
                    }
                    live.push((base, bytes));
                }
            }
            for (base, _) in live {
                prop_assert!(ranges.give_back(base));
            }
            prop_assert_eq!(ranges.take(size - GRANULE, 1), Some(BASE));
        }
    }
}
