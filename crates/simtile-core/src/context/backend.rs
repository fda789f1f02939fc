//! The driver side of access tracking: what the tracker needs done, done by driver calls.
//!
//! Called with guards and a stream lock held, so nothing here waits for the device, except
//! [`Backend::wait_any`], which is called with nothing held. Nothing calls back into the tracker.

use super::lanes::{Lane, Lanes, Work};
use super::link::{Link, query};
use crate::error::CallError;
use crate::memory::Memory;
use crate::stream::{StreamHandle, drops_go_elsewhere};
use core::time::Duration;
use simtile_driver::call;
use simtile_driver::sys::CUevent;
use simtile_hazard::planted::{Bug, is_planted};
use simtile_hazard::{Backend, EventRef, Quarantine, Stamp};
use simtile_sync::Arc;
use smallvec::SmallVec;

pub(crate) type Tracker = simtile_hazard::Tracker<CoreBackend>;
pub(crate) type Tracked = simtile_hazard::Stream<CoreBackend>;
pub(crate) type SubmitError = simtile_hazard::SubmitError<CoreBackend>;
pub(crate) type Event = EventRef<CoreBackend>;

/// Pauses between looks at several events: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

pub(crate) struct CoreBackend {
    link: Arc<Link>,
    lanes: Arc<Lanes>,
}

impl CoreBackend {
    pub(super) fn new(link: Arc<Link>, lanes: Arc<Lanes>) -> Self {
        Self { link, lanes }
    }
}

impl Backend for CoreBackend {
    type Stream = StreamHandle;
    type Event = CUevent;
    type Memory = Memory;
    type Error = CallError;

    fn create_event(&self) -> Result<CUevent, CallError> {
        self.link.make_event().inspect_err(|error| {
            // Made ahead of need: whoever then lacks one tries again, and is told.
            if let CallError::Driver(error) = error {
                self.link.counters.push_error("making an event ahead of need".into(), *error);
            }
        })
    }

    fn is_capturing(&self, stream: &StreamHandle) -> Result<bool, CallError> {
        stream.is_capturing(&self.link)
    }

    fn record(&self, stream: &StreamHandle, event: &CUevent) -> Result<(), CallError> {
        // SAFETY: stream and event are alive and of one context.
        stream.call(&self.link, false, |driver, raw| unsafe { call!(driver, cuEventRecord(*event, raw)) })
    }

    fn wait(&self, stream: &StreamHandle, event: &CUevent) -> Result<(), CallError> {
        let event =
            if is_planted(Bug::WrongEvent) { self.link.first_event().unwrap_or(*event) } else { *event };
        // SAFETY: stream and event are alive and of one context.
        stream
            .call(&self.link, false, |driver, raw| unsafe { call!(driver, cuStreamWaitEvent(raw, event, 0)) })
    }

    /// A failure that says nothing about the context is not taken for the end of the stream: the answer is then "not
    /// known to have fired", and whoever waits asks again in another way.
    fn query(&self, event: &CUevent) -> Result<bool, CallError> {
        // SAFETY: the event is alive.
        match self.link.relaxed_anywhere(|driver| unsafe { query(driver, *event) }) {
            Err(CallError::Driver(error)) if self.link.health.check().is_ok() => {
                self.link.counters.push_error("asking an event".into(), error);
                Ok(false)
            }
            Err(CallError::InHostFunction) => Ok(false),
            other => other,
        }
    }

    fn wait_any(&self, events: &[Event]) -> Result<(), CallError> {
        if let [event] = events {
            // SAFETY: the event is alive.
            return self
                .link
                .relaxed_anywhere(|driver| unsafe { call!(driver, cuEventSynchronize(*event.event())) });
        }
        let mut pause = PAUSES.0;
        loop {
            for event in events {
                // SAFETY: the event is alive.
                if self.link.relaxed_anywhere(|driver| unsafe { query(driver, *event.event()) })? {
                    return Ok(());
                }
            }
            simtile_sync::time::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn free(&self, stream: &StreamHandle, memory: Memory) -> Result<(), Memory> {
        // Whoever holds the stream serves others' frees, also in a poll: then the reclaimer gets them.
        if drops_go_elsewhere() { Err(memory) } else { memory.free_on(&self.link, stream.raw()) }
    }

    fn reclaim(&self, mut memory: Memory, stamps: SmallVec<[Stamp; 4]>) {
        if stamps.is_empty() && memory.is_parked_when_free() {
            drop(memory.give_back());
            return;
        }
        memory.waits();
        self.lanes.push(memory.lane(), Work::Memory(memory, stamps));
    }

    fn quarantine(&self, memory: Memory, why: Quarantine) {
        drop(memory.keep(why));
    }

    fn closed(&self, stream: StreamHandle) {
        let (link, lanes) = (self.link.clone(), self.lanes.clone());
        if drops_go_elsewhere() {
            self.lanes.push(Lane::Memory, Work::Job(Box::new(move || close(&link, &lanes, stream))));
        } else {
            close(&link, &lanes, stream);
        }
    }
}

/// Gives a closed stream's handle back.
fn close(link: &Arc<Link>, lanes: &Lanes, stream: StreamHandle) {
    if !stream.is_owned() {
        // Who lent the stream is a user's value, whose destructor may panic.
        super::lanes::drop_user_value(stream);
        return;
    }
    // The context may not end before this stream's work has, so its end is kept first. If that fails, nobody knows whether there is
    // work, and destroying goes on regardless, where it may take its time.
    let busy = link.keep_tail(stream.raw()).unwrap_or_else(|error| {
        if let Some(error) = error.untold() {
            link.counters.push_error(format!("drop of {stream}"), error);
        }
        link.usable().is_ok()
    });
    if busy {
        // Destroying a stream that has work takes an H200 140 µs: not a dropping thread's time.
        let link = link.clone();
        lanes.push(Lane::Memory, Work::Job(Box::new(move || destroy(&link, stream))));
    } else {
        destroy(link, stream);
    }
}

fn destroy(link: &Link, stream: StreamHandle) {
    let raw = stream.raw();
    // SAFETY: we made the stream and nobody has its handle; CUDA finishes what is queued.
    link.destroy(|| format!("drop of {stream}"), |driver| unsafe { call!(driver, cuStreamDestroy(raw)) });
    // Who lent the stream is a user's value, whose destructor may panic.
    super::lanes::drop_user_value(stream);
}
