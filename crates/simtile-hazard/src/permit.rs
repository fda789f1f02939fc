//! Permits: how much work may be in flight.
//!
//! The driver blocks a launch at 1 021 items in one stream and 8 168 in a context, and a blocked launch stops half of the
//! driver. So a stream holds at most 512 submissions in flight and a context 4 096 (both can be set).
//!
//! A stream counts for itself under its lock. From the context it leases permits in lots, so that a launch on
//! an unshared stream touches no shared counter.

use crate::axis::{AxisSlot, FAILED};
use crate::backend::Backend;
use crate::error::{Step, SubmitError};
use crate::event::EventRef;
use crate::ids::{AxisId, Stamp};
use crate::mutate::site;
use crate::stats::Rule;
use crate::stream::{Held, Later, StreamInner};
use crate::tracker::Inner;
use simtile_sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

pub(crate) struct ContextPermits {
    limit: u64,
    leased: AtomicU64,
}

/// The most permits leased at once.
const LOT: u64 = 32;

impl ContextPermits {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, leased: AtomicU64::new(0) }
    }

    /// Leases up to a lot; 0 if there is nothing left. Lots shrink as the context fills up, so that idle leases do not eat
    /// the last permits.
    pub(crate) fn lease(&self) -> u64 {
        let mut leased = self.leased.load(Ordering::Relaxed);
        loop {
            let left = self.limit.saturating_sub(leased);
            if left == 0 {
                return 0;
            }
            let lot = (left / 16).clamp(1, LOT);
            match self.leased.compare_exchange(leased, leased + lot, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return lot,
                Err(now) => leased = now,
            }
        }
    }

    pub(crate) fn give_back(&self, lot: u64) {
        self.leased.fetch_sub(lot, Ordering::Relaxed);
    }
}

impl<B: Backend> Inner<B> {
    /// Asks the driver what has finished, so that permits come back. Whether any did. Holds nothing while asking.
    pub(crate) fn collect_permits(&self, stream: &StreamInner<B>, context: bool) -> bool {
        if !context {
            return self.collect_axis(stream.axis);
        }
        let mut axes = Vec::new();
        self.axes.each(|axis, _| axes.push(axis));
        let mut some = false;
        for axis in axes {
            self.collect_axis(axis);
            some |= self.trim_lease(axis);
        }
        some
    }

    fn collect_axis(&self, axis: AxisId) -> bool {
        let Some(newest) = self.axes.get(axis).and_then(|slot| slot.newest()) else { return false };
        // One answer for all of them: most of the time the device has caught up.
        if matches!(self.query(&newest), Ok(true)) {
            return true;
        }
        let mut some = false;
        while let Some(event) = self.axes.get(axis).and_then(|slot| slot.oldest()) {
            if event.same(&newest) || !matches!(self.query(&event), Ok(true)) {
                break;
            }
            some = true;
        }
        some
    }

    /// Gives back what a stream leases but does not need. Never waits.
    fn trim_lease(&self, axis: AxisId) -> bool {
        let Some(stream) = self.axes.stream(axis) else { return false };
        let later = Later::new(self);
        let Some(mut held) = Held::try_new(self, &stream, &later) else { return false };
        let Some(slot) = self.axes.get(axis) else { return false };
        let state = held.state();
        let in_flight = state.issued - slot.retired();
        // A failed axis retires nothing any more and takes no work: its permits are not in the driver's queues.
        let needed = if slot.has(FAILED) { 0 } else { in_flight };
        let spare = state.leased.saturating_sub(needed);
        if spare == 0 || !site!(ReturnLease) {
            return false;
        }
        state.leased -= spare;
        self.permits.give_back(spare);
        self.stats.fire(Rule::LeaseReturned);
        true
    }

    /// Events of which one gives a permit back.
    pub(crate) fn permit_events(&self, stream: &StreamInner<B>, context: bool) -> SmallVec<[EventRef<B>; 4]> {
        let mut axes: SmallVec<[AxisId; 8]> = SmallVec::new();
        if context {
            self.axes.each(|axis, _| axes.push(axis));
        } else {
            axes.push(stream.axis);
        }
        let mut events = SmallVec::new();
        for axis in axes {
            if let Some(slot) = self.axes.get(axis) {
                if slot.oldest().is_none() && self.holds_permits(axis, slot) {
                    // Whoever waits for an epoch seals it.
                    self.ask_seal(Stamp { axis, epoch: slot.completed() + 1 });
                }
                events.extend(slot.oldest());
            }
        }
        events
    }

    /// Whether something of this axis is in flight, or may be: its stream is in use just now. An idle one must not be
    /// sealed: its event fires at once and gives nothing back, and whoever waits for a permit would spin on it.
    fn holds_permits(&self, axis: AxisId, slot: &AxisSlot<B>) -> bool {
        let Some(stream) = self.axes.stream(axis) else { return false };
        let later = Later::new(self);
        let held = Held::try_new(self, &stream, &later);
        held.is_none_or(|mut held| held.state().issued > slot.retired())
    }

    /// Waits, holding nothing, until a permit may have come back.
    #[cold]
    pub(crate) fn wait_for_permit(
        &self,
        stream: &StreamInner<B>,
        context: bool,
    ) -> Result<(), SubmitError<B>> {
        if self.collect_permits(stream, context) {
            return Ok(());
        }
        let mut events = self.permit_events(stream, context);
        if events.len() == 1
            && let Some(event) = events.pop()
        {
            return self.wait_for_event(event);
        }
        if events.is_empty() {
            // Some thread is between its submission and its seal.
            simtile_sync::thread::yield_now();
            return Ok(());
        }
        self.backend.wait_any(&events).map_err(|error| SubmitError::Driver { step: Step::HostWait, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_shrink_as_the_context_fills_up_and_never_exceed_it() {
        for (left, lot) in [(4096, 32), (512, 32), (500, 31), (100, 6), (31, 1), (5, 1), (1, 1), (0, 0)] {
            assert_eq!(ContextPermits::new(left).lease(), lot, "{left} left");
        }
        let permits = ContextPermits::new(40);
        let lots: Vec<_> = (0..).map(|_| permits.lease()).take_while(|lot| *lot > 0).collect();
        assert_eq!(lots.iter().sum::<u64>(), 40);
        permits.give_back(3);
        assert_eq!((permits.lease(), permits.lease(), permits.lease(), permits.lease()), (1, 1, 1, 0));
    }
}
