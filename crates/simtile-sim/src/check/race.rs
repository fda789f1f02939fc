//! The race checker: conflicting accesses that the program did not order.
//!
//! # How
//!
//! Every submission carries an [`Epoch`] and the [`VectorClock`] of what was ordered before it when it was
//! submitted. For each backing the checker keeps *layers*: the bytes that one earlier submission read, wrote
//! or updated atomically. When a submission ends, each of its byte sets is compared with the layers it does
//! not follow; a common byte of conflicting kinds is a race.
//!
//! # Why old layers may go
//!
//! Let `L` be a layer that the new submission `N` follows, and let both touch byte `b`. A later submission
//! `X` that is unordered with `L` cannot follow `N` (it would follow `L` too), and `N` cannot follow `X` (work
//! that is ordered before `N` has ended before `N`). So `X` is unordered with `N`, and if `N`'s kind
//! conflicts with everything that `L`'s kind conflicts with, the race of `X` on `b` is found at `N`, and `b` may
//! leave `L`. A write conflicts with everything; a read stands for reads; an atomic stands for atomics.
//! So the layers of a program that orders its work stay few.

use super::clock::{Epoch, VectorClock};
use super::{Bitmap, Touch, TouchMap};
use crate::memory::{Allocation, Backing};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// What an instruction is in words, by its number.
pub type Locate = Arc<dyn Fn(u16) -> Option<String> + Send + Sync>;

/// A submission, as reports name it.
#[derive(Clone)]
pub struct Who {
    /// `kernel saxpy`, `copy from host`, `free`…
    pub what: String,
    /// Label or number of its stream, or the host thread.
    pub place: String,
    /// Number of the submission in its simulated driver; 0 for an access of the host.
    pub id: u64,
    /// Its instructions, if it is a kernel.
    pub code: Option<Locate>,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.id != 0 {
            write!(f, " (#{})", self.id)?;
        }
        write!(f, " on {}", self.place)
    }
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Two conflicting accesses without an order.
#[derive(Clone, Debug)]
pub struct Race {
    /// The one that ran first.
    pub first: Who,
    /// How it touched the byte.
    pub first_touch: Touch,
    /// The instruction that did.
    pub first_site: Option<String>,
    /// The one that ran second.
    pub second: Who,
    /// How it touched the byte.
    pub second_touch: Touch,
    /// The instruction that did.
    pub second_site: Option<String>,
    /// Offset of the first such byte in the buffer.
    pub offset: u64,
    /// Label of the buffer, or its size and address.
    pub buffer: String,
    /// Its label, if it has one.
    pub label: Option<String>,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |touch| match touch {
            Touch::Read => "reads",
            Touch::Write => "writes",
            Touch::Atomic => "atomically updates",
        };
        let at = |site: &Option<String>| site.as_ref().map_or_else(String::new, |site| format!(" at {site}"));
        write!(
            f,
            "race: {} {} byte {} of {}{} that {} {}{}, and nothing orders them",
            self.second,
            verb(self.second_touch),
            self.offset,
            self.buffer,
            at(&self.second_site),
            self.first,
            verb(self.first_touch),
            at(&self.first_site)
        )
    }
}

/// The bytes that one submission touched in one way and that no later one stands for.
struct Layer {
    epoch: Epoch,
    touch: Touch,
    bytes: Arc<TouchMap>,
    /// Bytes that left the layer since. The touch map itself is shared and stays as it is.
    gone: Bitmap,
    who: Who,
}

impl Layer {
    fn word(&self, offset: u64) -> u64 {
        self.bytes.set(self.touch).word(offset) & !self.gone.word(offset)
    }

    /// The words that both the layer and `other` have bits in: (offset, common bits).
    fn common<'a>(&'a self, other: &'a Bitmap) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mine = self.bytes.set(self.touch);
        // A whole allocation is one side of many comparisons: go through the smaller set.
        let smaller = if mine.span() < other.span() { mine } else { other };
        let common = |(offset, _)| (offset, self.word(offset) & other.word(offset));
        smaller.words().map(common).filter(|&(_, bits)| bits != 0)
    }

    fn first_common(&self, other: &Bitmap) -> Option<u64> {
        self.common(other).next().map(|(offset, bits)| offset + u64::from(bits.trailing_zeros()))
    }

    fn is_empty(&self) -> bool {
        self.bytes.set(self.touch).words().all(|(offset, _)| self.word(offset) == 0)
    }
}

/// A buffer in words.
fn name(allocation: &Allocation) -> String {
    match allocation.label() {
        Some(label) => format!("'{label}'"),
        None => format!("the buffer of {} bytes at {:#x}", allocation.bytes, allocation.base),
    }
}

/// Whether two accesses of these kinds need an order.
fn conflict(a: Touch, b: Touch) -> bool {
    !matches!((a, b), (Touch::Read, Touch::Read) | (Touch::Atomic, Touch::Atomic))
}

/// Whether an ordered later access of kind `new` stands for an `old` one.
fn stands_for(new: Touch, old: Touch) -> bool {
    new == Touch::Write || new == old
}

/// Everything the checker remembers of the memory of one simulated driver.
#[derive(Default)]
pub struct RaceChecker {
    backings: BTreeMap<usize, (Weak<Backing>, Vec<Layer>)>,
}

impl RaceChecker {
    /// Remembers nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A submission has ended: compares what it touched with earlier work, and remembers it.
    /// At most one race for each earlier submission and pair of kinds.
    pub fn ended(
        &mut self,
        epoch: Epoch,
        before: &VectorClock,
        who: &Who,
        maps: &[Arc<TouchMap>],
    ) -> Vec<Race> {
        let mut races = Vec::new();
        for map in maps {
            let key = Arc::as_ptr(map.backing()).addr();
            let (backing, layers) =
                self.backings.entry(key).or_insert_with(|| (Arc::downgrade(map.backing()), Vec::new()));
            if backing.strong_count() == 0 || backing.as_ptr() != Arc::as_ptr(map.backing()) {
                // Another backing at the address of one that is gone.
                *backing = Arc::downgrade(map.backing());
                layers.clear();
            }
            let kinds = [Touch::Read, Touch::Write, Touch::Atomic];
            for touch in kinds.into_iter().filter(|&touch| !map.set(touch).is_empty()) {
                let bytes = map.set(touch);
                for layer in layers.iter().filter(|layer| layer.epoch != epoch) {
                    if before.follows(layer.epoch) {
                        if stands_for(touch, layer.touch) {
                            layer.common(bytes).for_each(|(offset, bits)| layer.gone.set_word(offset, bits));
                        }
                    } else if conflict(layer.touch, touch)
                        && let Some(offset) = layer.first_common(bytes)
                    {
                        let site = |who: &Who, map: &TouchMap, touch| {
                            who.code.as_ref().and_then(|code| code(map.site(offset, touch)))
                        };
                        let (_, base) = map.allocation().backing();
                        races.push(Race {
                            first_site: site(&layer.who, &layer.bytes, layer.touch),
                            first: layer.who.clone(),
                            first_touch: layer.touch,
                            second_site: site(who, map, touch),
                            second: who.clone(),
                            second_touch: touch,
                            offset: offset.saturating_sub(base),
                            buffer: name(map.allocation()),
                            label: map.allocation().label(),
                        });
                    }
                }
            }
            layers.retain(|layer| !layer.is_empty());
            for touch in kinds.into_iter().filter(|&touch| !map.set(touch).is_empty()) {
                let gone = Bitmap::new(map.backing().len());
                layers.push(Layer { epoch, touch, bytes: map.clone(), gone, who: who.clone() });
            }
        }
        self.backings.retain(|_, (backing, _)| backing.strong_count() > 0);
        races
    }

    /// Memory that everything remembered takes, bytes. What several layers share counts once.
    pub fn memory(&self) -> u64 {
        let layers = || self.backings.values().flat_map(|(_, layers)| layers);
        let maps: BTreeMap<usize, u64> =
            layers().map(|layer| (Arc::as_ptr(&layer.bytes).addr(), layer.bytes.memory())).collect();
        let own = layers().map(|layer| layer.gone.memory() + size_of::<Layer>() as u64).sum::<u64>();
        maps.values().sum::<u64>() + own
    }

    /// Layers in all, for tests and statistics.
    pub fn layers(&self) -> usize {
        self.backings.values().map(|(_, layers)| layers.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AccessLog, Axis};
    use super::*;
    use crate::memory::{AddressSpace, MemoryKind};

    /// A little program over two streams and one buffer.
    struct Program {
        checker: RaceChecker,
        buffer: Arc<Allocation>,
        streams: Vec<VectorClock>,
        next: u64,
    }

    impl Program {
        fn new() -> Self {
            let buffer = AddressSpace::new().allocate(MemoryKind::Device, 0, 4096).unwrap();
            buffer.set_label("x");
            Self { checker: RaceChecker::new(), buffer, streams: vec![VectorClock::new(); 3], next: 0 }
        }

        fn run(&mut self, stream: usize, accesses: &[(Touch, std::ops::Range<u64>)]) -> Vec<Race> {
            let log = AccessLog::new();
            for (touch, range) in accesses {
                log.map(self.buffer.backing().0, &self.buffer, 0).note(
                    range.start,
                    range.end - range.start,
                    *touch,
                    0,
                );
            }
            self.next += 1;
            let epoch = self.streams[stream].tick(Axis(stream as u32));
            let place = format!("stream {stream}");
            let who = Who { what: "kernel k".into(), place, id: self.next, code: None };
            self.checker.ended(epoch, &self.streams[stream].clone(), &who, &log.into_maps().1)
        }

        fn wait(&mut self, waiter: usize, other: usize) {
            let clock = self.streams[other].clone();
            self.streams[waiter].join(&clock);
        }
    }

    #[test]
    fn unordered_write_after_write_is_a_race_and_a_wait_ends_it() {
        let mut p = Program::new();
        assert!(p.run(0, &[(Touch::Write, 0..100)]).is_empty());
        let races = p.run(1, &[(Touch::Write, 96..200)]);
        assert_eq!(races.len(), 1);
        assert_eq!(races[0].offset, 96);
        assert_eq!(
            races[0].to_string(),
            "race: kernel k (#2) on stream 1 writes byte 96 of 'x' that kernel k (#1) on stream 0 writes, and \
             nothing orders them"
        );
        p.wait(2, 0);
        p.wait(2, 1);
        assert!(p.run(2, &[(Touch::Write, 0..300)]).is_empty());
        assert_eq!(p.checker.layers(), 1, "the ordered write stands for all before it");
    }

    #[test]
    fn disjoint_ranges_reads_and_atomics_do_not_conflict() {
        let mut p = Program::new();
        assert!(p.run(0, &[(Touch::Write, 0..64)]).is_empty());
        assert!(p.run(1, &[(Touch::Write, 64..128)]).is_empty());
        p.wait(0, 1);
        p.wait(1, 0);
        assert!(p.run(0, &[(Touch::Read, 0..128)]).is_empty());
        assert!(p.run(1, &[(Touch::Read, 0..128)]).is_empty());
        p.wait(0, 1);
        p.wait(1, 0);
        assert!(p.run(0, &[(Touch::Atomic, 0..4)]).is_empty());
        assert!(p.run(1, &[(Touch::Atomic, 0..4)]).is_empty());
        assert_eq!(p.run(2, &[(Touch::Read, 0..4)]).len(), 3, "unordered with the write and both atomics");
    }

    #[test]
    fn two_readers_then_a_writer_that_waited_for_one() {
        let mut p = Program::new();
        assert!(p.run(0, &[(Touch::Write, 0..8)]).is_empty());
        p.wait(1, 0);
        assert!(p.run(0, &[(Touch::Read, 0..8)]).is_empty());
        assert!(p.run(1, &[(Touch::Read, 0..8)]).is_empty());
        p.wait(2, 1);
        let races = p.run(2, &[(Touch::Write, 0..8)]);
        assert_eq!(races.len(), 1, "the first reader was forgotten: {races:?}");
        assert_eq!((races[0].first_touch, races[0].first.id), (Touch::Read, 2));
    }

    #[test]
    fn long_ordered_programs_keep_few_layers() {
        let mut p = Program::new();
        for i in 0..200 {
            let stream = (i % 3) as usize;
            p.wait(stream, ((i + 2) % 3) as usize);
            let touch = if i % 4 == 0 { Touch::Write } else { Touch::Read };
            assert!(p.run(stream, &[(touch, 0..4096)]).is_empty());
        }
        assert!(p.checker.layers() <= 4, "{}", p.checker.layers());
    }
}
