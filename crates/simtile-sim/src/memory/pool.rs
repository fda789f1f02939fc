//! Stream-ordered memory: what a pool hands out, takes back and hands out again.
//!
//! A pool is asked at the time of the calls, long before the work runs. A free leaves the memory with the
//! *point* in its stream from which it is free. An allocation on a stream may use it
//!
//! * on the same stream, at once: its work comes after the free's work;
//! * on another stream that is ordered after the point by events (`follow_events`);
//! * on any stream if the point has been reached (`opportunistic`);
//! * on any stream, if no more memory can be had, by waiting for the point (`internal`): [`Grant::wait`].
//!
//! Memory that is free and not handed out stays reserved until a synchronisation finds more reserved than the
//! release threshold, or until it is trimmed. Reserved memory counts in pieces of 32 MiB, as on the real driver;
//! on a device that has less, in a sixteenth of it, so that several pools have some.
//! Blocks are cut and joined in granules; between two allocations there is always a gap.

use super::{Budget, Charge, GRANULE, Ranges, Rights, Shortage};
use simtile_sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Reserved memory is a multiple of this on a device that has as much.
pub const RESERVE_STEP: u64 = 32 << 20;

/// Reserved memory of a device of this size is a multiple of the result.
pub fn reserve_step(total: u64) -> u64 {
    if total >= RESERVE_STEP { RESERVE_STEP } else { (total / 16 / GRANULE * GRANULE).max(GRANULE) }
}

/// A point in a stream's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The stream.
    pub stream: u64,
    /// Number of the work that is the last before it.
    pub position: u64,
}

/// What a pool asks about the order of work.
pub trait Order {
    /// Whether everything up to the point has finished.
    fn finished(&self, point: Point) -> bool;
    /// Whether work that is queued on `stream` now would run after the point.
    fn follows(&self, stream: u64, point: Point) -> bool;
}

/// Which memory may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// What the allocating stream is ordered after by events.
    pub follow_events: bool,
    /// What has finished.
    pub opportunistic: bool,
    /// Anything, by waiting for it.
    pub internal: bool,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Taken from the device.
    pub reserved: u64,
    /// Most that ever was.
    pub reserved_high: u64,
    /// Handed out.
    pub used: u64,
    /// Most that ever was.
    pub used_high: u64,
}

/// Memory that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// First address.
    pub base: u64,
    /// The allocating stream must wait for this first.
    pub wait: Option<Point>,
}

/// Why a pool refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// Nothing of this pool starts there.
    NotOurs,
    /// More than the pool may have.
    Full,
    /// Not enough memory on the device.
    Short(Shortage),
}

/// A pool.
pub struct Pool {
    /// Handle of it in the driver API.
    pub handle: usize,
    /// Ordinal of the device.
    pub device: i32,
    /// Who may touch its memory.
    pub rights: Arc<Rights>,
    /// First address of all of its addresses.
    pub arena: u64,
    inner: Mutex<Inner>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Addresses, the gap behind them included.
    span: u64,
    /// Memory that is charged for it.
    physical: u64,
}

struct Inner {
    ranges: Ranges,
    reuses: bool,
    live: HashMap<u64, (Block, u64)>,
    /// Free blocks with the point from which they are; none if that was reached at a synchronisation.
    cached: BTreeMap<u64, (Block, Option<Point>)>,
    charge: Charge,
    /// Memory is taken from the device in these pieces.
    step: u64,
    /// Memory of all blocks.
    physical: u64,
    most: u64,
    threshold: u64,
    reuse: Reuse,
    stats: PoolStats,
}

const fn up(n: u64, step: u64) -> Option<u64> {
    n.checked_next_multiple_of(step)
}

fn reserve_for(physical: u64, step: u64) -> u64 {
    up(physical, step).unwrap_or(u64::MAX)
}

impl Pool {
    /// A pool over addresses that somebody reserved for it. `most` is the most it may reserve, 0 for no limit;
    /// `reuses` says whether addresses are used again.
    pub fn new(
        handle: usize,
        device: i32,
        arena: (u64, u64),
        most: u64,
        budget: &Arc<Budget>,
        reuses: bool,
    ) -> Option<Self> {
        let rights = Rights::none();
        rights.set(device, 3);
        let step = reserve_step(budget.total());
        let inner = Inner {
            ranges: Ranges::new(arena.0, arena.1, reuses),
            reuses,
            live: HashMap::new(),
            cached: BTreeMap::new(),
            charge: budget.charge(0)?,
            step,
            physical: 0,
            most: if most == 0 { u64::MAX } else { reserve_for(most, step) },
            threshold: 0,
            reuse: Reuse { follow_events: true, opportunistic: true, internal: true },
            stats: PoolStats::default(),
        };
        Some(Self { handle, device, rights, arena: arena.0, inner: Mutex::new(inner) })
    }

    /// Memory of `bytes` bytes (at least 1) for a stream.
    ///
    /// # Errors
    /// The pool is at its limit, or the device has no more.
    pub fn allocate(&self, bytes: u64, stream: u64, order: &dyn Order) -> Result<Grant, PoolError> {
        let mut inner = self.inner.lock();
        let physical = up(bytes.max(1), GRANULE).ok_or(PoolError::Short(Shortage::Device))?;
        let reuse = inner.reuse;
        let usable = |tag: &Option<Point>| match *tag {
            None => true,
            Some(point) => {
                point.stream == stream
                    || reuse.follow_events && order.follows(stream, point)
                    || reuse.opportunistic && order.finished(point)
            }
        };
        let mut wait = None;
        let found = inner.take_cached(physical, usable).map(|(base, block, _)| (base, block));
        let (base, block) = match found {
            Some(found) => found,
            None => match inner.fresh(physical, order) {
                Ok(found) => found,
                Err(error) => {
                    let waiting = |_: &Option<Point>| reuse.internal;
                    let (base, block, tag) = inner.take_cached(physical, waiting).ok_or(error)?;
                    wait = tag.filter(|point| point.stream != stream);
                    (base, block)
                }
            },
        };
        inner.live.insert(base, (block, bytes));
        inner.stats.used += bytes;
        inner.stats.used_high = inner.stats.used_high.max(inner.stats.used);
        Ok(Grant { base, wait })
    }

    /// Takes memory back that is free from `point` on, or already.
    ///
    /// # Errors
    /// Nothing of this pool starts there.
    pub fn free(&self, base: u64, point: Option<Point>) -> Result<(), PoolError> {
        let mut inner = self.inner.lock();
        let (block, bytes) = inner.live.remove(&base).ok_or(PoolError::NotOurs)?;
        inner.stats.used -= bytes;
        inner.cache(base, block, point);
        Ok(())
    }

    /// After a synchronisation: what has finished is free for every stream, and what is over the release threshold
    /// goes back to the device.
    pub fn synchronised(&self, order: &dyn Order) {
        let mut inner = self.inner.lock();
        inner.settle(order);
        let threshold = inner.threshold;
        inner.release_down_to(threshold);
    }

    /// Gives free memory back to the device, but keeps at least `keep` bytes reserved.
    pub fn trim(&self, keep: u64, order: &dyn Order) {
        let mut inner = self.inner.lock();
        inner.settle(order);
        inner.release_down_to(keep);
    }

    /// Sizes.
    pub fn stats(&self) -> PoolStats {
        let inner = self.inner.lock();
        PoolStats { reserved: inner.charge.bytes(), ..inner.stats }
    }

    /// Sets the high marks of reserved or used memory back to what is now.
    pub fn reset_high(&self, reserved: bool) {
        let mut inner = self.inner.lock();
        if reserved {
            inner.stats.reserved_high = inner.charge.bytes();
        } else {
            inner.stats.used_high = inner.stats.used;
        }
    }

    /// Bytes that stay reserved at a synchronisation.
    pub fn threshold(&self) -> u64 {
        self.inner.lock().threshold
    }

    /// Sets [`Pool::threshold`].
    pub fn set_threshold(&self, threshold: u64) {
        self.inner.lock().threshold = threshold;
    }

    /// Which memory may be used again.
    pub fn reuse(&self) -> Reuse {
        self.inner.lock().reuse
    }

    /// Sets [`Pool::reuse`].
    pub fn set_reuse(&self, change: impl FnOnce(&mut Reuse)) {
        change(&mut self.inner.lock().reuse);
    }

    /// Whether nothing is handed out.
    pub fn is_idle(&self) -> bool {
        self.inner.lock().live.is_empty()
    }

    /// Whether free memory still waits for work.
    pub fn is_settled(&self, order: &dyn Order) -> bool {
        let mut inner = self.inner.lock();
        inner.settle(order);
        inner.cached.values().all(|(_, tag)| tag.is_none())
    }

    /// First addresses of all that is handed out.
    pub fn live(&self) -> Vec<u64> {
        self.inner.lock().live.keys().copied().collect()
    }
}

impl Inner {
    /// Takes the lowest free block that is large enough and `usable`, and cuts off what is not needed.
    fn take_cached(
        &mut self,
        physical: u64,
        usable: impl Fn(&Option<Point>) -> bool,
    ) -> Option<(u64, Block, Option<Point>)> {
        if !self.reuses {
            return None;
        }
        let span = physical + GRANULE;
        let fits = |block: &Block| block.span >= span && block.physical >= physical;
        let (&base, &(block, tag)) = self.cached.iter().find(|(_, (b, tag))| fits(b) && usable(tag))?;
        self.cached.remove(&base);
        // A rest of one granule would be all gap.
        if block.span - span < 2 * GRANULE {
            return Some((base, block, tag));
        }
        let rest = Block { span: block.span - span, physical: block.physical - physical };
        self.cached.insert(base + span, (rest, tag));
        Some((base, Block { span, physical }, tag))
    }

    /// More memory from the device; what is free and done is given up for it if it must be.
    fn fresh(&mut self, physical: u64, order: &dyn Order) -> Result<(u64, Block), PoolError> {
        let first = self.grow(physical);
        if first.is_ok() {
            return first;
        }
        self.settle(order);
        self.release_down_to(0);
        self.grow(physical)
    }

    fn grow(&mut self, physical: u64) -> Result<(u64, Block), PoolError> {
        let wanted = self.physical.checked_add(physical).ok_or(PoolError::Short(Shortage::Device))?;
        let reserved = reserve_for(wanted, self.step);
        if reserved > self.most {
            return Err(PoolError::Full);
        }
        let more = reserved.saturating_sub(self.charge.bytes());
        if !self.charge.grow(more) {
            return Err(PoolError::Short(Shortage::Device));
        }
        let Some(base) = self.ranges.take(physical, 1) else {
            self.charge.shrink(more);
            return Err(PoolError::Short(Shortage::Addresses));
        };
        self.ranges.disown(base);
        self.physical = wanted;
        self.stats.reserved_high = self.stats.reserved_high.max(self.charge.bytes());
        Ok((base, Block { span: physical + GRANULE, physical }))
    }

    /// Puts a free block beside the others and joins it with neighbours that are free from the same stream on.
    fn cache(&mut self, mut base: u64, mut block: Block, mut tag: Option<Point>) {
        let join = |a: Option<Point>, b: Option<Point>| match (a, b) {
            (None, None) => Some(None),
            (Some(a), Some(b)) if a.stream == b.stream => {
                Some(Some(Point { position: a.position.max(b.position), ..a }))
            }
            _ => None,
        };
        if let Some((&before, &(other, other_tag))) = self.cached.range(..base).next_back()
            && before + other.span == base
            && let Some(joined) = join(other_tag, tag)
        {
            self.cached.remove(&before);
            (base, tag) = (before, joined);
            block = Block { span: block.span + other.span, physical: block.physical + other.physical };
        }
        if let Some(&(other, other_tag)) = self.cached.get(&(base + block.span))
            && let Some(joined) = join(tag, other_tag)
        {
            self.cached.remove(&(base + block.span));
            tag = joined;
            block = Block { span: block.span + other.span, physical: block.physical + other.physical };
        }
        self.cached.insert(base, (block, tag));
    }

    /// Makes free for everybody what has finished.
    fn settle(&mut self, order: &dyn Order) {
        let done = |tag: &Option<Point>| tag.is_some_and(|point| order.finished(point));
        let bases: Vec<u64> =
            self.cached.iter().filter(|(_, (_, tag))| done(tag)).map(|(base, _)| *base).collect();
        for base in bases {
            // It may have been joined to one before it meanwhile.
            if let Some((block, _)) = self.cached.remove(&base) {
                self.cache(base, block, None);
            }
        }
    }

    /// Gives blocks back that are free for everybody, the highest first, as long as at least `keep` bytes stay
    /// reserved.
    fn release_down_to(&mut self, keep: u64) {
        let free: Vec<u64> =
            self.cached.iter().rev().filter(|(_, (_, tag))| tag.is_none()).map(|(base, _)| *base).collect();
        for base in free {
            let spare = self.physical.saturating_sub(keep) / GRANULE * GRANULE;
            if spare == 0 || self.charge.bytes() <= keep {
                break;
            }
            let Some((block, tag)) = self.cached.remove(&base) else { continue };
            let gone = block.physical.min(spare);
            if gone == block.physical {
                self.ranges.add(base, block.span);
            } else {
                let rest = Block { span: block.span - gone, physical: block.physical - gone };
                self.ranges.add(base + rest.span, gone);
                self.cached.insert(base, (rest, tag));
            }
            self.physical -= gone;
        }
        let less = self.charge.bytes().saturating_sub(reserve_for(self.physical, self.step));
        self.charge.shrink(less);
    }
}

#[cfg(test)]
mod tests;
