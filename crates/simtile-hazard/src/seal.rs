//! Sealing: closing an epoch and recording an event behind it.

use crate::axis::FAILED;
use crate::backend::Backend;
use crate::error::{Step, SubmitError};
use crate::event::EventRef;
use crate::ids::{AxisId, Epoch, Stamp};
use crate::mutate::site;
use crate::stats::Rule;
use crate::stream::{Later, Request, StreamInner, StreamState};
use crate::tracker::Inner;

/// Records that may fail in a row before the axis is given up.
const RECORD_ATTEMPTS: u32 = 2;

impl<B: Backend> Inner<B> {
    /// Makes sure that an event covers `epoch`, or that the axis has failed. Whether something was recorded.
    ///
    /// An awaited epoch whose record failed is sealed again; a second failure fails the axis.
    ///
    /// A borrowed stream is asked first whether its owner captures it; if so, that is a record that failed.
    pub(crate) fn seal_epoch(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        epoch: Epoch,
    ) -> bool {
        // no site: whoever seals has one.
        self.seal_epoch_asking(stream, state, epoch, stream.kind.may_capture())
    }

    pub(crate) fn seal_epoch_asking(
        &self,
        stream: &StreamInner<B>,
        state: &mut StreamState<B>,
        epoch: Epoch,
        ask: bool,
    ) -> bool {
        let Some(slot) = self.axes.get(stream.axis) else { return false };
        if slot.completed() >= epoch || slot.recorded() >= epoch || slot.has(FAILED) {
            self.stats.fire(Rule::SealNothing);
            return false;
        }
        if state.capture.is_some() {
            // Everything before the capture was sealed when it began.
            return false;
        }
        // Who asks every stream for whatever it has (a drain, a wait for room) may ask one that has nothing new. That it cannot be
        // recorded on, being closed meanwhile or captured by its owner, is no failure then: all work of ours has its event, or is known
        // to be complete by a synchronisation of everything. (Where it can be, it is: permits come back with events alone.)
        let new = state.last_used > slot.recorded().max(slot.completed());
        if !new && state.handle.is_none() {
            self.stats.fire(Rule::SealNothing);
            return false;
        }
        if ask && site!(RefuseBorrowedCapturing) {
            let capturing = state.handle.as_ref().map(|handle| self.backend.is_capturing(handle));
            if !matches!(capturing, Some(Ok(false))) {
                if new {
                    self.record_failed(stream, state);
                }
                return false;
            }
        }
        // no site: whoever seals has one.
        if self.seal_once(stream, state) {
            return true;
        }
        if slot.has(FAILED) || !site!(SealAgain) {
            return false;
        }
        let sealed = self.seal_once(stream, state);
        if sealed {
            self.stats.fire(Rule::SealedAgain);
        }
        sealed
    }

    /// Bumps, then records. Whether the record succeeded.
    pub(crate) fn seal_once(&self, stream: &StreamInner<B>, state: &mut StreamState<B>) -> bool {
        let Some(slot) = self.axes.get(stream.axis) else { return false };
        // The bump comes first: whatever becomes of the record, work submitted from here on is not taken for covered.
        let closed = state.open;
        if site!(Bump) {
            state.open += 1;
        }
        let recorded = match (&state.handle, self.take_event()) {
            (Some(handle), Some(event)) => match self.backend.record(handle, event.event()) {
                Ok(()) => Some(event),
                Err(_) => None,
            },
            _ => None,
        };
        let Some(event) = recorded else {
            self.record_failed(stream, state);
            return false;
        };
        state.failures = 0;
        state.unsealed = 0;
        let completed = slot.completed();
        if site!(PruneFrontier) {
            let gone = state.frontier.prune(|axis, epoch| self.axes.is_complete(axis, epoch));
            self.stats.add(Rule::PruneFrontier, gone as u64);
        }
        event.fill(|content| {
            content.axis = stream.axis;
            content.epoch = closed;
            content.outside = state.outside > completed;
            // A tainted stream vouches for its own work alone.
            if stream.kind.tainted() && site!(TaintedFrontier) {
                content.frontier.clear();
            } else {
                content.frontier.copy_from(&state.frontier);
            }
        });
        slot.publish(event, closed, state.issued)
    }

    fn record_failed(&self, stream: &StreamInner<B>, state: &mut StreamState<B>) {
        self.stats.fire(Rule::RecordFailed);
        state.failures += 1;
        if state.failures >= RECORD_ATTEMPTS {
            self.fail_axis(stream.axis);
        }
    }

    /// An unused event; made here only if those made ahead have run out.
    fn take_event(&self) -> Option<EventRef<B>> {
        if let Some(event) = self.events.take() {
            return Some(event);
        }
        self.stats.fire(Rule::EventMadeLate);
        self.events.add(self.backend.create_event().ok()?);
        self.events.take()
    }

    /// Makes events ahead of need. Only with nothing held: making one may wait for a blocked launch.
    #[inline]
    pub(crate) fn make_events(&self) {
        if self.events.available() < self.config.event_reserve {
            self.make_events_slow();
        }
    }

    #[cold]
    fn make_events_slow(&self) {
        for _ in self.events.available()..self.config.events_kept() {
            match self.backend.create_event() {
                Ok(event) => self.events.add(event),
                // Not an error here: whoever then lacks an event tries again and reports.
                Err(_) => return,
            }
        }
        self.stats.fire(Rule::EventsMade);
    }

    pub(crate) fn fail_axis(&self, axis: AxisId) {
        if site!(FailAxis) && self.axes.fail(axis) {
            self.stats.fire(Rule::AxisFailed);
        }
    }

    /// Asks the holder of the stamp's stream to seal it, if nothing covers it yet.
    pub(crate) fn ask_seal(&self, stamp: Stamp) {
        if self.axes.done(stamp)
            || self.axes.get(stamp.axis).is_none_or(|slot| slot.recorded() >= stamp.epoch)
        {
            return;
        }
        if site!(RequestSeal)
            && let Some(stream) = self.axes.stream(stamp.axis)
            // A per-thread stream was sealed by its own thread; nobody else may touch it.
            && !matches!(stream.kind, crate::StreamKind::PerThread(_))
        {
            let later = Later::new(self);
            self.leave_request(&stream, Request::Seal(stamp.epoch), &later);
        }
    }

    /// Notes that an event has fired: its own axis and all that it is ordered after have completed up to there.
    pub(crate) fn fired(&self, event: &EventRef<B>) {
        // Copied out: the table takes locks of its own and may drop references to this very event.
        let (axis, epoch, frontier) =
            event.with(|content| (content.axis, content.epoch, content.frontier.clone()));
        if self.axes.complete(axis, epoch) {
            self.stats.fire(Rule::AxisEnded);
        }
        if site!(MergeComplete) {
            for (axis, epoch) in frontier.iter() {
                if !self.axes.is_complete(axis, epoch) {
                    self.stats.fire(Rule::CompletedByFrontier);
                    if self.axes.complete(axis, epoch) {
                        self.stats.fire(Rule::AxisEnded);
                    }
                }
            }
        }
    }

    /// Waits on the host, holding nothing, until an event has fired, and notes it. It is not asked first: a wait for what has
    /// fired is as cheap as the question.
    pub(crate) fn wait_for_event(&self, event: EventRef<B>) -> Result<(), SubmitError<B>> {
        let driver = |error| SubmitError::Driver { step: Step::HostWait, error };
        let events = [event];
        match self.backend.wait_any(&events) {
            Ok(()) => {
                self.fired(&events[0]);
                Ok(())
            }
            // Whether the stream is lost, or the wait alone was refused, is for the event to say.
            Err(refused) => match self.query(&events[0]).map_err(driver)? {
                true => Ok(()),
                false => Err(driver(refused)),
            },
        }
    }

    /// Asks the driver about an event and notes the answer.
    pub(crate) fn query(&self, event: &EventRef<B>) -> Result<bool, B::Error> {
        match self.backend.query(event.event()) {
            Ok(true) => {
                self.fired(event);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => {
                self.fail_axis(event.stamp().axis);
                Err(error)
            }
        }
    }
}
