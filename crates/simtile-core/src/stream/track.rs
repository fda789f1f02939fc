//! Submitting through the tracker, and what its refusals mean.

use super::Stream;
use super::handle::thread_token;
use super::host_function::waits_for_no_room;
use super::trail::{Trace, What};
use crate::context::{CoreBackend, Shared, SubmitError, TrackedEvent};
use crate::error::{CallError, Family, OnStream, StreamError};
use crate::memory::Allocation;
use simtile_driver::sys::CUstream;
use simtile_driver::{Driver, DriverError};
use simtile_hazard::{Access, AxisId, Conflict, Options, Outside, Party, Policy, RegionId, Submitted};
use std::sync::Arc;

/// How to submit.
#[derive(Clone, Copy)]
pub(crate) struct Submit<'a> {
    pub policy: Option<Policy>,
    /// Somebody waits for it.
    pub seal: bool,
    pub outside: Outside,
    /// The calls want the context current. Launches, records and stream-ordered allocation work on explicit handles alone;
    /// copies do not: with another device's context current an H200 refuses pool memory.
    pub current: bool,
    /// Whether the call may wait for a permit, and for other threads that are submitting.
    pub patient: bool,
    /// What it is, in case that the context is lost.
    pub what: What,
    pub label: Option<&'a Arc<str>>,
}

impl Submit<'static> {
    pub const PLAIN: Self = Self {
        policy: None,
        seal: false,
        outside: Outside::Never,
        current: true,
        patient: true,
        what: What::NONE,
        label: None,
    };
    /// Calls that explicit handles are enough for.
    pub const HANDLES: Self = Self { current: false, ..Self::PLAIN };
    /// Somebody waits for it.
    pub const SEALED: Self = Self { seal: true, ..Self::PLAIN };
    /// It may wait for something that is no work of a stream.
    pub const OUTSIDE: Self = Self { outside: Outside::Waits, ..Self::PLAIN };
}

impl Stream {
    /// Submits driver calls that touch `accesses`: they follow what conflicts with them, and are followed.
    #[inline]
    pub(crate) fn submit_tracked<R>(
        &self,
        accesses: &[Access<'_>],
        submit: Submit<'_>,
        calls: impl FnOnce(Driver, CUstream) -> Result<R, DriverError>,
    ) -> Result<Submitted<CoreBackend, R>, SubmitError> {
        let link = self.context.link();
        // Refused before the tracker does anything: its own calls would fail.
        if let Err(error) = link.usable() {
            return Err(SubmitError::Driver { step: simtile_hazard::Step::Enqueue, error });
        }
        let options = self.options(submit);
        let Some(tracked) = &self.tracked else { return Err(SubmitError::Closed) };
        let trace = Trace::new(&self.name.trail, &submit);
        let enqueue = |handle: &super::StreamHandle| {
            link.host_allows()?;
            trace.queue(|| handle.call(link, submit.current, calls))
        };
        let tracker = self.context.tracker();
        let done = match submit.patient && !waits_for_no_room() {
            true => tracker.submit(tracked, accesses, &options, enqueue)?,
            false => tracker.try_submit(tracked, accesses, &options, enqueue)?,
        };
        trace.stamped(done.stamp.epoch);
        if !done.waits.is_empty() {
            self.context.shared().note_waits(self, tracked.axis(), &done.waits, options.policy);
        }
        Ok(done)
    }

    #[inline]
    pub(super) fn options(&self, submit: Submit<'_>) -> Options {
        Options {
            policy: submit.policy.unwrap_or_else(|| self.hazard_policy()),
            seal: submit.seal,
            outside: submit.outside,
            thread: if self.is_owned() { 0 } else { thread_token() },
        }
    }

    /// An event behind everything queued so far, tracked or not. It takes no permit, so it waits for none; for other threads that are
    /// submitting it waits if `patient`.
    pub(crate) fn mark(&self, patient: bool) -> Result<TrackedEvent, SubmitError> {
        if let Err(error) = self.context.link().usable() {
            return Err(SubmitError::Driver { step: simtile_hazard::Step::Record, error });
        }
        let Some(tracked) = &self.tracked else { return Err(SubmitError::Closed) };
        let thread = if self.is_owned() { 0 } else { thread_token() };
        let tracker = self.context.tracker();
        if patient { tracker.mark(tracked, thread) } else { tracker.try_mark(tracked, thread) }
    }

    /// As [`Stream::mark`], as a submission: where marks are made again and again, it waits for room.
    pub(super) fn bounded_mark(&self) -> Result<Option<TrackedEvent>, SubmitError> {
        let sealed = Submit { current: false, ..Submit::SEALED };
        Ok(self.submit_tracked(&[], sealed, |_, _| Ok(()))?.event)
    }

    /// What a refusal of the tracker means, as an error of some family. `used` are the buffers of the submission.
    #[cold]
    pub(crate) fn refused<E: OnStream>(
        &self,
        error: SubmitError,
        used: &[&Allocation],
        on: impl FnOnce() -> String,
    ) -> E {
        match error {
            SubmitError::Driver { error, .. } => E::from_call(error, on()),
            other => E::from_stream(self.refusal(other, used)),
        }
    }

    #[cold]
    fn refusal(&self, error: SubmitError, used: &[&Allocation]) -> StreamError {
        let stream = self.to_string();
        let buffer = |region: RegionId| {
            let found = used.iter().find(|a| a.region().is_some_and(|known| known.id() == region));
            found.map_or_else(|| self.context.shared().region_name(region), |a| a.name())
        };
        match error {
            SubmitError::Driver { error, .. } => StreamError::from_call(error, stream),
            SubmitError::Capturing | SubmitError::BorrowedCapturing => StreamError::Capturing { stream },
            SubmitError::WrongThread => StreamError::WrongThread { stream },
            SubmitError::Failed { axis } => self.context.shared().failed(axis, stream),
            SubmitError::Full { events } => {
                let room = super::Room { context: self.context.clone(), events };
                StreamError::QueueFull { stream, room }
            }
            SubmitError::Busy(_) => StreamError::Busy { stream },
            SubmitError::Aliased { region, start, end } => {
                StreamError::Aliased { stream, buffer: buffer(region), start, end }
            }
            SubmitError::Conflict(conflict) => {
                let what = self.conflict(&conflict, &buffer(conflict.region));
                StreamError::Conflict { stream, what, host: conflict.host() }
            }
            other => StreamError::Refused { stream, what: other.to_string() },
        }
    }

    fn conflict(&self, conflict: &Conflict, buffer: &str) -> String {
        let (ours, theirs) = (mode_name(conflict.mode), mode_name(conflict.their_mode));
        let with = match conflict.with {
            Party::Stream(stamp) => self.context.shared().names.of(stamp.axis),
            Party::Host => "a guard on the host".into(),
            Party::Foreign => "foreign code that it was exported to".into(),
        };
        format!("a {ours} of {buffer} conflicts with a {theirs} by {with}")
    }
}

impl Shared {
    /// A stream failed, or what it would follow.
    pub(super) fn failed(&self, axis: AxisId, stream: String) -> StreamError {
        // A lost context fails every stream; it is the better explanation.
        if let Err(error @ (CallError::Lost { .. } | CallError::Deinitialized | CallError::Forked)) =
            self.link.usable()
        {
            return StreamError::from_call(error, stream);
        }
        StreamError::Failed { stream, leader: self.names.of(axis) }
    }
}

pub(crate) fn mode_name(mode: simtile_hazard::Mode) -> &'static str {
    match mode {
        simtile_hazard::Mode::Read => "read",
        simtile_hazard::Mode::Write => "write",
        simtile_hazard::Mode::Accumulate { .. } => "accumulation",
    }
}
