//! What is alive, and what happens when memory runs out.
//!
//! An allocation that fails gives back what has finished and tries again; then it waits for what is still running, at most
//! [`Context::oom_wait`], holding nothing, and tries once more. The error lists the largest holders by label.

use super::Allocation;
use crate::Context;
use crate::error::MemoryError;
use core::time::Duration;
use simtile_driver::DriverError;
use simtile_hazard::Settled;
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{Arc, Mutex};
use std::fmt::Write as _;
use std::sync::Weak;

/// How long an allocation waits for memory by default.
const OOM_WAIT: Duration = Duration::from_millis(100);
/// Holders that an error lists.
const HOLDERS: usize = 5;
/// Pause between looks.
const PAUSE: Duration = Duration::from_micros(200);

/// Allocations that handles own.
#[derive(Default)]
pub(crate) struct Live(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    list: Vec<Option<Weak<Allocation>>>,
    free: Vec<usize>,
}

impl Live {
    pub(super) fn add(&self, allocation: &Arc<Allocation>) {
        let mut slots = self.0.lock();
        let weak = Some(allocation.this().clone());
        let slot = match slots.free.pop() {
            Some(slot) => {
                slots.list[slot] = weak;
                slot
            }
            None => {
                slots.list.push(weak);
                slots.list.len() - 1
            }
        };
        drop(slots);
        allocation.slot().store(slot, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, slot: usize) {
        let mut slots = self.0.lock();
        let old = slots.list.get_mut(slot).and_then(Option::take);
        if old.is_some() {
            slots.free.push(slot);
        }
        drop(slots);
    }

    /// Everything that is alive, oldest identity first.
    pub(crate) fn all(&self) -> Vec<Arc<Allocation>> {
        let weak: Vec<Weak<Allocation>> = self.0.lock().list.iter().flatten().cloned().collect();
        let mut all: Vec<_> = weak.iter().filter_map(Weak::upgrade).collect();
        all.sort_by_key(|allocation| allocation.id());
        all
    }
}

/// How long an allocation may wait for memory, nanoseconds; 0 stands for the default.
#[derive(Default)]
pub(crate) struct OomWait(AtomicU64);

impl Context {
    /// How long an allocation that fails for want of memory waits for work in flight before it gives up.
    pub fn oom_wait(&self) -> Duration {
        match self.shared().memory.oom_wait.0.load(Ordering::Relaxed) {
            0 => OOM_WAIT,
            wait => Duration::from_nanos(wait - 1),
        }
    }

    /// Sets [`Context::oom_wait`]. Zero: give up at once.
    pub fn set_oom_wait(&self, wait: Duration) {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX - 1);
        self.shared().memory.oom_wait.0.store(nanos.saturating_add(1), Ordering::Relaxed);
    }

    /// Whether a stamp's work is known to have finished, asking the driver if need be. A failure counts as unfinished.
    pub(crate) fn has_settled(&self, stamp: simtile_hazard::Stamp) -> bool {
        match self.tracker().settle(stamp) {
            Settled::Complete => true,
            Settled::Pending(event) => self.tracker().query(&event).unwrap_or(false),
            Settled::Unsealed | Settled::Failed => false,
        }
    }

    /// Gives back what nothing uses any more.
    pub(super) fn give_back_what_has_finished(&self) {
        self.shared().lanes.collect();
        self.shared().free_parked();
        // What other pools keep for reuse is in the way of this allocation. A failure shows in the next attempt.
        let _ = self.trim_pools();
    }

    /// Waits for what is still running, at most [`Context::oom_wait`], holding nothing. Whether anything has finished.
    pub(super) fn wait_for_room(&self) -> bool {
        if crate::stream::waits_for_nothing() {
            return false;
        }
        let tracker = self.tracker();
        let mut tails = tracker.tails();
        let before = tails.len();
        let end = simtile_sync::time::now().saturating_add(self.oom_wait());
        while !tails.is_empty() {
            tails.retain(|&stamp| match tracker.settle(stamp) {
                Settled::Complete | Settled::Failed => false,
                Settled::Unsealed => true,
                Settled::Pending(event) => !tracker.query(&event).unwrap_or(true),
            });
            if tails.is_empty() || simtile_sync::time::now() >= end {
                break;
            }
            simtile_sync::time::sleep(PAUSE);
        }
        self.give_back_what_has_finished();
        tails.len() < before
    }

    /// The error of an allocation that found no room, with the largest holders.
    pub(super) fn out_of_memory(&self, bytes: usize, source: DriverError) -> MemoryError {
        let info = self.raw_memory_info();
        let (free, total) = info.map_or((0, 0), |info| (info.free, info.total));
        let mut all = self.shared().memory.live.all();
        all.sort_by_key(|allocation| core::cmp::Reverse(allocation.size()));
        let mut holders = String::new();
        for allocation in all.iter().take(HOLDERS) {
            let separator = if holders.is_empty() { "; largest holders: " } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(holders, "{separator}{} ({} bytes)", allocation.name(), allocation.size());
        }
        MemoryError::OutOfMemory { label: self.to_string(), bytes, free, total, holders, source }
    }
}
