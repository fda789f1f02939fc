//! What the program ordered before what, for the race checker.
//!
//! Each stream is an axis, and all host threads together are one: the simulator does not see how host threads
//! order themselves (locks, channels), so it assumes that they do. A race between two host threads'
//! submissions is found all the same if the threads waited for nothing, because a submission orders nothing.
//!
//! Clocks move when work *starts and ends*, not when it is submitted: a wait-value learns what the writer
//! knew only when it sees the value. That is sound because work never starts before what is ordered before it has
//! ended.
//!
//! | step | learns |
//! | --- | --- |
//! | work starts on a stream | what the host knew when it submitted it; on the legacy stream what all blocking streams know, on a blocking stream what the legacy stream knows |
//! | a kernel that may start early (programmatic dependent launch) starts behind one that lets it | until its `griddepcontrol.wait` only what that one knew when it started, and what the host knew; then all of the above |
//! | event record | the event knows what the stream knows |
//! | event wait | the stream learns what the event knows |
//! | write-value, wait-value | as record and wait, by address |
//! | host waits for (or sees the end of) event, stream, context | the host learns what it knows |

use crate::check::{Axis, Epoch, Race, RaceChecker, TouchMap, VectorClock, Who};
use simtile_sync::Arc;
use std::collections::BTreeMap;

/// The axis of all host threads. Streams' uids start at 1.
pub(super) const HOST: Axis = Axis(0);

/// Who a piece of work is in the order of things.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) epoch: Epoch,
    /// What was ordered before it, itself included.
    pub(crate) before: VectorClock,
    /// For a kernel that may start before its predecessor has ended: what was ordered before its start.
    pub(crate) early: Option<VectorClock>,
}

impl Stamp {
    fn new(epoch: Epoch, before: VectorClock) -> Self {
        Self { epoch, before, early: None }
    }
}

/// The last work of a stream, if that was a kernel: what matters to one that may start before it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Prior {
    /// What was ordered before its start.
    pub(crate) before: VectorClock,
    /// It lets the next one start.
    pub(crate) triggers: bool,
}

/// The clocks of one simulated driver, and the checker.
#[derive(Default)]
pub(crate) struct Order {
    streams: BTreeMap<u64, VectorClock>,
    /// What streams knew that are gone, by context: a wait for the context covers them.
    gone: BTreeMap<u64, VectorClock>,
    values: BTreeMap<u64, VectorClock>,
    host: Arc<VectorClock>,
    checker: RaceChecker,
}

fn axis(stream: u64) -> Axis {
    // A program has no 2^32 streams, contexts and events.
    Axis(stream as u32)
}

impl Order {
    /// What the host knows, to be kept with a submission.
    pub(crate) fn host(&self) -> Arc<VectorClock> {
        self.host.clone()
    }

    /// Work starts on `stream`, submitted by a host that knew `host`, after everything that `others` know.
    pub(crate) fn start(&mut self, stream: u64, host: &VectorClock, others: &[u64]) -> Stamp {
        let mut clock = self.streams.remove(&stream).unwrap_or_default();
        clock.join(host);
        for other in others {
            if let Some(known) = self.streams.get(other) {
                clock.join(known);
            }
        }
        let epoch = clock.tick(axis(stream));
        self.streams.insert(stream, clock.clone());
        Stamp::new(epoch, clock)
    }

    /// What a kernel knows when it starts: what came before the one before it (`prior`), or what the stream knows, what
    /// its host knew and what `others` know.
    pub(crate) fn at_start(
        &self,
        stream: u64,
        host: &VectorClock,
        others: &[u64],
        prior: Option<&VectorClock>,
    ) -> VectorClock {
        let mut clock = prior.or_else(|| self.streams.get(&stream)).cloned().unwrap_or_default();
        clock.join(host);
        others.iter().filter_map(|other| self.streams.get(other)).for_each(|known| clock.join(known));
        clock
    }

    /// A node of a graph starts, which knows this, on an axis of its own.
    pub(crate) fn start_node(&self, lane: u64, mut known: VectorClock) -> Stamp {
        let epoch = known.tick(axis(lane));
        Stamp::new(epoch, known)
    }

    /// What a stream knows.
    pub(crate) fn of_stream(&self, stream: u64) -> VectorClock {
        self.streams.get(&stream).cloned().unwrap_or_default()
    }

    /// A stream waited for something.
    pub(crate) fn stream_learns(&mut self, stream: u64, known: &VectorClock) {
        self.streams.entry(stream).or_default().join(known);
    }

    /// Work that knew this wrote a value that others may wait for.
    pub(crate) fn value_written(&mut self, address: u64, known: &VectorClock) {
        self.values.entry(address).or_default().join(known);
    }

    /// What whoever sees the value knows. The host may have written it as well.
    pub(crate) fn value_seen(&self, address: u64) -> VectorClock {
        let mut known = (*self.host).clone();
        if let Some(written) = self.values.get(&address) {
            known.join(written);
        }
        known
    }

    /// The host waited for something, or saw that it is over.
    pub(crate) fn host_learns(&mut self, known: &VectorClock) {
        Arc::make_mut(&mut self.host).join(known);
    }

    /// The host waited for streams of a context, and for those that are gone.
    pub(crate) fn host_follows(&mut self, streams: impl Iterator<Item = u64>, context: Option<u64>) {
        let host = Arc::make_mut(&mut self.host);
        let known = streams.filter_map(|stream| self.streams.get(&stream));
        known.chain(context.and_then(|context| self.gone.get(&context))).for_each(|known| host.join(known));
    }

    /// A stream has no more work and no handle.
    pub(crate) fn stream_gone(&mut self, stream: u64, context: u64) {
        if let Some(known) = self.streams.remove(&stream) {
            self.gone.entry(context).or_default().join(&known);
        }
    }

    /// The host accesses memory itself, now.
    pub(crate) fn host_access(&mut self) -> Stamp {
        let host = Arc::make_mut(&mut self.host);
        let epoch = host.tick(HOST);
        Stamp::new(epoch, host.clone())
    }

    /// Memory that the checker takes, bytes.
    pub(crate) fn shadow(&self) -> u64 {
        self.checker.memory()
    }

    /// Work has ended: what it touched, compared with what came before.
    pub(crate) fn ended(&mut self, stamp: &Stamp, who: &Who, touched: &[Arc<TouchMap>]) -> Vec<Race> {
        self.checker.ended(stamp.epoch, &stamp.before, who, touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follows(order: &mut Order, stream: u64, stamp: &Stamp) -> bool {
        let host = order.host();
        order.start(stream, &host, &[]).before.follows(stamp.epoch)
    }

    #[test]
    fn submissions_order_nothing_and_waits_do() {
        let mut order = Order::default();
        let host = order.host();
        let a = order.start(1, &host, &[]);
        assert!(!follows(&mut order, 2, &a));
        let event = order.of_stream(1);
        order.stream_learns(2, &event);
        assert!(follows(&mut order, 2, &a));
        assert!(!follows(&mut order, 3, &a));
        order.host_learns(&event);
        assert!(follows(&mut order, 3, &a), "submitted after the host waited");
    }

    #[test]
    fn work_submitted_before_the_host_waited_learns_nothing() {
        let mut order = Order::default();
        let early = order.host();
        let a = order.start(1, &early, &[]);
        order.host_follows([1].into_iter(), None);
        let b = order.start(2, &early, &[]);
        assert!(!b.before.follows(a.epoch));
    }

    #[test]
    fn streams_that_are_gone_are_covered_by_their_context() {
        let mut order = Order::default();
        let host = order.host();
        let a = order.start(1, &host, &[]);
        order.stream_gone(1, 7);
        order.host_follows(std::iter::empty(), Some(7));
        assert!(follows(&mut order, 2, &a));
    }

    #[test]
    fn values_carry_what_their_writer_knew() {
        let mut order = Order::default();
        let host = order.host();
        let a = order.start(1, &host, &[]);
        let writer = order.of_stream(1);
        order.value_written(0x100, &writer);
        let seen = order.value_seen(0x200);
        order.stream_learns(2, &seen);
        assert!(!follows(&mut order, 2, &a));
        let seen = order.value_seen(0x100);
        order.stream_learns(2, &seen);
        assert!(follows(&mut order, 2, &a));
    }
}
