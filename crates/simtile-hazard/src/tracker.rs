//! The tracker of one context, and what it is made of.

use crate::axis::{AxisTable, FAILED, TAINTED};
use crate::backend::Backend;
use crate::error::StreamError;
use crate::event::{EventPool, EventRef};
use crate::ids::{AxisId, Stamp};
use crate::mutate::site;
use crate::permit::ContextPermits;
use crate::region::Region;
use crate::stats::{Rule, Stats};
use crate::stream::{Held, Later, Stream, StreamInner, StreamKind, StreamState};
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{Mutex, RequestLock};
use smallvec::SmallVec;
use std::sync::Arc;

/// Limits. The defaults are the ones that the driver's own limits call for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Submissions in flight on one stream.
    pub stream_permits: u64,
    /// Submissions in flight in the context.
    pub context_permits: u64,
    /// A stream is sealed after so many submissions without a seal.
    pub checkpoint: u64,
    /// Ranges that one region may be cut into.
    pub max_ranges: usize,
    /// Live readers (or accumulators) of other streams on one range.
    pub max_readers: usize,
    /// Streams that may sit in a wait-value.
    pub max_wait_values: usize,
    /// Marks of a stream that may be unanswered with nothing submitted in between: the next one shares the newest event.
    pub max_marks: u64,
    /// Free events to keep at hand.
    pub event_reserve: usize,
}

impl Config {
    /// Up to so many free events are made, and left by [`Tracker::take_surplus_events`]: twice the reserve, so that a warm stream makes none for
    /// long.
    pub(crate) fn events_kept(&self) -> usize {
        self.event_reserve.max(1) * 2
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stream_permits: 512,
            context_permits: 4096,
            checkpoint: 32,
            max_ranges: 64,
            max_readers: 16,
            max_wait_values: 4,
            max_marks: 64,
            event_reserve: 16,
        }
    }
}

/// Tracks all accesses of one context. Cloning gives another handle to the same tracker.
pub struct Tracker<B: Backend> {
    pub(crate) inner: Arc<Inner<B>>,
}

pub(crate) struct Inner<B: Backend> {
    pub backend: B,
    pub config: Config,
    pub axes: AxisTable<B>,
    pub events: EventPool<B>,
    pub permits: ContextPermits,
    pub stats: Stats,
    pub wait_values: Mutex<SmallVec<[Stamp; 4]>>,
    pub next_capture: AtomicU64,
    /// Captures that have not ended.
    pub captures: AtomicU64,
    next_region: AtomicU64,
    /// Synchronisations of everything that have begun, and the newest that has ended.
    pub syncs_begun: AtomicU64,
    pub syncs_done: AtomicU64,
}

impl<B: Backend> Clone for Tracker<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// Where a stamp stands.
pub enum Settled<B: Backend> {
    /// Its work has finished.
    Complete,
    /// It finishes no later than this event fires.
    Pending(EventRef<B>),
    /// Nothing covers it yet; a seal has been asked for. Ask again.
    Unsealed,
    /// Its axis failed: it will never be known.
    Failed,
}

/// A point before a synchronisation of everything. See [`Tracker::begin_synchronize_all`].
#[derive(Debug)]
pub struct SyncMark {
    number: u64,
    stamps: Vec<Stamp>,
}

impl<B: Backend> Tracker<B> {
    /// A tracker with nothing in it.
    pub fn new(backend: B, config: Config) -> Self {
        let inner = Inner {
            backend,
            config,
            axes: AxisTable::new(),
            events: EventPool::new(),
            permits: ContextPermits::new(config.context_permits),
            stats: Stats::new(),
            wait_values: Mutex::new(SmallVec::new()),
            next_capture: AtomicU64::new(1),
            captures: AtomicU64::new(0),
            next_region: AtomicU64::new(1),
            syncs_begun: AtomicU64::new(0),
            syncs_done: AtomicU64::new(0),
        };
        inner.make_events();
        Self { inner: Arc::new(inner) }
    }

    /// Takes out the free events that a burst of work, or of marks, has left over. Nobody refers to them: the caller destroys them.
    pub fn take_surplus_events(&self) -> Vec<B::Event> {
        self.inner.events.surplus(self.inner.config.events_kept())
    }

    /// The driver side.
    pub fn backend(&self) -> &B {
        &self.inner.backend
    }

    /// How often each rule fired.
    pub fn stats(&self) -> &Stats {
        &self.inner.stats
    }

    /// Tracks a stream. `device` is compared by accumulations of device scope.
    ///
    /// # Errors
    /// [`StreamError::TooManyAxes`] with 65 536 living axes; the handle comes back.
    pub fn stream(
        &self,
        handle: B::Stream,
        kind: StreamKind,
        device: u16,
    ) -> Result<Stream<B>, (B::Stream, StreamError)> {
        let flags = if kind.tainted() { TAINTED } else { 0 };
        let Some(axis) = self.inner.axes.create(flags) else {
            return Err((handle, StreamError::TooManyAxes));
        };
        let inner = Arc::new(StreamInner {
            axis,
            kind,
            device,
            lock: RequestLock::new(StreamState::new(handle)),
            requests: Mutex::new(Vec::new()),
        });
        if let Some(slot) = self.inner.axes.get(axis) {
            slot.set_stream(Some(Arc::clone(&inner)));
        }
        Ok(Stream { inner, tracker: self.clone() })
    }

    /// Tracks `len` bytes that nothing has touched.
    pub fn region(&self, len: u64) -> Region {
        Region::new(self.inner.next_region.fetch_add(1, Ordering::Relaxed), len)
    }

    /// Where a stamp stands; asks for a seal if nothing covers it. Never waits.
    pub fn settle(&self, stamp: Stamp) -> Settled<B> {
        // no site: `ask_seal` has one.
        self.inner.ask_seal(stamp);
        self.inner.look(stamp)
    }

    /// Asks the driver whether an event has fired. If so, all that it covers is complete from here on.
    ///
    /// # Errors
    /// The driver's; the event's axis has then failed.
    pub fn query(&self, event: &EventRef<B>) -> Result<bool, B::Error> {
        self.inner.query(event)
    }

    /// Notes that an event has been seen to fire.
    pub fn observe(&self, event: &EventRef<B>) {
        self.inner.fired(event);
    }

    /// Whether a stamp is known to have finished. Loads only.
    pub fn is_complete(&self, stamp: Stamp) -> bool {
        self.inner.axes.done(stamp)
    }

    /// The axis can complete nothing any more: the context or the stream is lost.
    pub fn fail(&self, axis: AxisId) {
        self.inner.fail_axis(axis);
    }

    /// Whether the axis has failed.
    pub fn has_failed(&self, axis: AxisId) -> bool {
        self.inner.axes.is_failed(axis)
    }

    /// Whether any axis has failed: there may be work of which nobody will know when it ends.
    pub fn has_failed_axes(&self) -> bool {
        let mut failed = false;
        self.inner.axes.each(|_, slot| failed |= slot.has(FAILED));
        failed
    }

    /// Seals every stream that can be sealed without waiting for its lock, and gives the stamps of all work so far that is
    /// not known to be complete. For a drain.
    pub fn tails(&self) -> Vec<Stamp> {
        let mut axes = Vec::new();
        self.inner.axes.each(|axis, slot| {
            if !slot.has(FAILED) {
                axes.push((axis, slot.recorded()));
            }
        });
        let mut stamps = Vec::new();
        for (axis, recorded) in axes {
            let mut epoch = recorded;
            if let Some(stream) = self.inner.axes.stream(axis) {
                // The newest work is in the open epoch, which only the holder knows; ask for all of it.
                self.inner.ask_seal(Stamp { axis, epoch: recorded + 1 });
                let later = Later::new(&self.inner);
                if let Some(mut held) = Held::try_new(&self.inner, &stream, &later) {
                    epoch = held.state().last_used;
                } else {
                    epoch = recorded + 1;
                }
            }
            let stamp = Stamp { axis, epoch };
            if !self.inner.axes.done(stamp) {
                stamps.push(stamp);
            }
        }
        stamps
    }

    /// Begins an explicit synchronisation of everything: closes the open epoch of each stream. Then synchronise the context,
    /// then call [`Tracker::end_synchronize_all`]. Waits for stream locks.
    pub fn begin_synchronize_all(&self) -> SyncMark {
        let number = self.inner.syncs_begun.fetch_add(1, Ordering::AcqRel) + 1;
        let mut stamps = Vec::new();
        let mut axes = Vec::new();
        self.inner.axes.each(|axis, _| axes.push(axis));
        for axis in axes {
            if let Some(stream) = self.inner.axes.stream(axis) {
                let later = Later::new(&self.inner);
                let mut held = Held::wait(&self.inner, &stream, &later);
                let state = held.state();
                stamps.push(Stamp { axis, epoch: state.open });
                if let Some(slot) = self.inner.axes.get(axis) {
                    slot.mark(state.open);
                }
                if site!(BumpSync) {
                    state.open += 1;
                }
            } else if let Some(slot) = self.inner.axes.get(axis) {
                stamps.push(Stamp { axis, epoch: slot.tail() });
            }
        }
        SyncMark { number, stamps }
    }

    /// The context was synchronised after `mark` was made: what was before it is complete, and regions that had been
    /// returned by nobody knows which stream are usable again.
    pub fn end_synchronize_all(&self, mark: SyncMark) {
        for stamp in mark.stamps {
            if self.inner.axes.complete(stamp.axis, stamp.epoch) {
                self.inner.stats.fire(Rule::AxisEnded);
            }
        }
        self.inner.syncs_done.fetch_max(mark.number, Ordering::AcqRel);
    }
}

impl<B: Backend> Inner<B> {
    /// Where a stamp stands, without asking for anything.
    pub(crate) fn look(&self, stamp: Stamp) -> Settled<B> {
        self.axes.get(stamp.axis).map_or(Settled::Complete, |slot| slot.settled(stamp))
    }

    pub(crate) fn to_reclaimer(&self, memory: B::Memory, stamps: SmallVec<[Stamp; 4]>) {
        if site!(SealReclaim) {
            // Whoever waits for an epoch seals it.
            stamps.iter().for_each(|&stamp| self.ask_seal(stamp));
        }
        self.stats.fire(Rule::Reclaimed);
        self.backend.reclaim(memory, stamps);
    }
}

impl<B: Backend> core::fmt::Debug for Tracker<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tracker").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl<B: Backend> core::fmt::Debug for Settled<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Complete => f.write_str("Complete"),
            Self::Pending(event) => f.debug_tuple("Pending").field(event).finish(),
            Self::Unsealed => f.write_str("Unsealed"),
            Self::Failed => f.write_str("Failed"),
        }
    }
}
