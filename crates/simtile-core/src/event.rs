//! Events: marks in streams.

use crate::context::{Lane, SubmitError, Work, query};
use crate::error::{CallError, On, StreamError};
use crate::stream::{Submit, drops_go_elsewhere};
use crate::{Context, Stream};
use core::fmt;
use core::ops::Deref;
use core::time::Duration;
use simtile_driver::sys::{CUevent, CUevent_flags, CUresult};
use simtile_driver::{Driver, call};
use simtile_sync::Arc;

/// A mark in a stream, without a time. Cheaper than [`TimedEvent`].
pub struct Event {
    raw: CUevent,
    context: Arc<Context>,
}

/// A mark in a stream with a time. It is an [`Event`] too, by `Deref`.
pub struct TimedEvent(Event);

impl Context {
    /// A new event without timing, not yet recorded.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_event(self: &Arc<Self>) -> Result<Event, StreamError> {
        Event::new(self, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// A new event with timing, not yet recorded.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_timed_event(self: &Arc<Self>) -> Result<TimedEvent, StreamError> {
        Event::new(self, CUevent_flags::CU_EVENT_DEFAULT).map(TimedEvent)
    }
}

impl Event {
    fn new(context: &Arc<Context>, flags: CUevent_flags) -> Result<Self, StreamError> {
        let raw = context
            .with_current(|driver| {
                let mut raw = CUevent::NULL;
                // SAFETY: the out-pointer is valid for the call; the context is current.
                unsafe { call!(driver, cuEventCreate(&mut raw, flags.0)) }?;
                Ok(raw)
            })
            .on(|| format!("new event in {context}"))?;
        Ok(Self { raw, context: context.clone() })
    }

    /// The driver's handle.
    pub fn cu_event(&self) -> CUevent {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Marks the point behind everything queued on `stream` so far. An earlier record is forgotten, except by waits
    /// that already refer to it.
    ///
    /// # Errors
    /// [`StreamError::OtherContext`], or the driver's.
    pub fn record(&self, stream: &Stream) -> Result<(), StreamError> {
        stream.on_its_thread()?;
        stream.same_context(&self.context, || self.to_string())?;
        let record = |driver: Driver, raw| {
            // SAFETY: stream and event are alive and of one context.
            unsafe { call!(driver, cuEventRecord(self.raw, raw)) }
        };
        match stream.submit_tracked(&[], Submit::HANDLES, record) {
            Err(SubmitError::BorrowedCapturing) => {
                stream.call_in_foreign_capture(record).on(|| format!("{self} on {stream}"))
            }
            Err(error) => Err(stream.refused(error, &[], || format!("{self} on {stream}"))),
            Ok(_) => Ok(()),
        }
    }

    /// Waits until the last record has been reached. Returns at once if there was none.
    ///
    /// # Errors
    /// The driver's; also the failure of the work before the mark.
    pub fn synchronize(&self) -> Result<(), StreamError> {
        // SAFETY: the event is alive; its context is current.
        self.context
            .link()
            .relaxed(|driver| unsafe { call!(driver, cuEventSynchronize(self.raw)) })
            .on(|| self.to_string())
    }

    /// Whether the last record has been reached; true if there was none. Never blocks.
    ///
    /// # Errors
    /// The driver's; also the failure of the work before the mark.
    pub fn is_complete(&self) -> Result<bool, StreamError> {
        // SAFETY: the event is alive; its context is current.
        self.context.link().relaxed(|driver| unsafe { query(driver, self.raw) }).on(|| self.to_string())
    }
}

impl TimedEvent {
    /// Milliseconds from this event to `end`, without waiting for either.
    ///
    /// # Errors
    /// [`StreamError::NotReady`] if one has not been recorded or reached, [`StreamError::OtherContext`], or the driver's.
    pub fn elapsed_time(&self, end: &TimedEvent) -> Result<f32, StreamError> {
        if *self.context != *end.context {
            return Err(StreamError::OtherContext {
                user: self.to_string(),
                user_context: self.context.to_string(),
                used: end.to_string(),
                used_context: end.context.to_string(),
            });
        }
        let elapsed = self.context.with_current(|driver| {
            let mut milliseconds = 0f32;
            // SAFETY: both events are alive; the out-pointer is valid for the call.
            unsafe { call!(driver, cuEventElapsedTime(&mut milliseconds, self.raw, end.raw)) }?;
            Ok(milliseconds)
        });
        match elapsed {
            Err(CallError::Driver(error))
                if matches!(
                    error.code(),
                    CUresult::CUDA_ERROR_NOT_READY | CUresult::CUDA_ERROR_INVALID_HANDLE
                ) =>
            {
                Err(StreamError::NotReady { start: self.to_string(), end: end.to_string() })
            }
            other => other.on(|| format!("{self} to {end}")),
        }
    }

    /// Waits for both events, then gives the time between them. Zero if `end` came first.
    ///
    /// # Errors
    /// As [`TimedEvent::elapsed_time`].
    pub fn elapsed(&self, end: &TimedEvent) -> Result<Duration, StreamError> {
        self.synchronize()?;
        end.synchronize()?;
        let milliseconds = self.elapsed_time(end)?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or(Duration::ZERO))
    }
}

impl Deref for TimedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.0
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let (link, raw) = (self.context.link().clone(), self.raw);
        let destroy = move || {
            // SAFETY: we made the event and this was its last handle; pending work does not matter to CUDA.
            link.destroy(
                || "drop of an event".into(),
                |driver| unsafe { call!(driver, cuEventDestroy(raw)) },
            );
        };
        if drops_go_elsewhere() {
            let context = self.context.clone();
            let job = move || {
                destroy();
                drop(context);
            };
            self.context.shared().lanes.push(Lane::Memory, Work::Job(Box::new(job)));
        } else {
            destroy();
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:#x}", self.raw.0)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x}, {})", self.raw.0, self.context)
    }
}

impl fmt::Display for TimedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timed {}", self.0)
    }
}

impl fmt::Debug for TimedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timed{:?}", self.0)
    }
}
