//! Streams: queues of device work.
//!
//! Waiting for a stream and asking it is done with events: `cuStreamSynchronize` and `cuStreamQuery` are never called,
//! because they end a graph capture that happens to be going on.

mod across;
mod handle;
mod host_function;
mod launch;
mod room;
mod strides;
mod submission;
mod touches;
mod track;
mod trail;

pub(crate) use across::{Across, Reach, Standing};
pub use handle::StreamId;
pub(crate) use handle::{Ended, StreamHandle, StreamNames, thread_token};
pub(crate) use host_function::drops_go_elsewhere;
pub use host_function::{in_host_function, with_drops_elsewhere, without_waiting, without_waiting_for_room};
pub(crate) use host_function::{waits_for_no_room, waits_for_nothing};
pub use room::Room;
pub use submission::{AtomicScope, Submission, SubmitBuilder};
pub use touches::Touch;
pub(crate) use track::{Submit, mode_name};
pub(crate) use trail::What;

use crate::context::{ForeignOwner, Lane, SubmitError, Tracked, Work, query};
use crate::error::{On, StreamError};
use crate::policy::AtomicPolicy;
use crate::{Context, Event, TimedEvent};
use core::fmt;
use handle::StreamName;
use simtile_driver::sys::{CUstream, CUstream_flags};
use simtile_driver::{LabelTarget, call};
use simtile_hazard::StreamKind;
use simtile_sync::Arc;

/// A queue of device work. Shared as `Arc<Stream>`; it keeps its context alive.
///
/// Two handles are equal if they are the same handle; a borrowed stream wrapped twice is two identities.
pub struct Stream {
    raw: CUstream,
    name: Arc<StreamName>,
    /// Gone before the context is. A default stream for which there was no room has none, and takes no work.
    tracked: Option<Tracked>,
    /// What stands for it in other contexts.
    agents: across::Agents,
    pub(crate) policy: AtomicPolicy,
    context: Arc<Context>,
}

impl Context {
    /// A new non-blocking stream of default priority.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_stream(self: &Arc<Self>) -> Result<Arc<Stream>, StreamError> {
        self.create_stream(0)
    }

    /// A new non-blocking stream. Priorities outside [`Context::stream_priority_range`] count as the nearest one
    /// inside; [`Stream::priority`] tells what came out.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_stream_with_priority(self: &Arc<Self>, priority: i32) -> Result<Arc<Stream>, StreamError> {
        self.create_stream(priority)
    }

    fn create_stream(self: &Arc<Self>, priority: i32) -> Result<Arc<Stream>, StreamError> {
        let raw = self
            .with_current(|driver| {
                let mut raw = CUstream::NULL;
                let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
                // SAFETY: the out-pointer is valid for the call; the context is current, and the green one alive.
                unsafe {
                    match self.cu_green_ctx() {
                        Some(green) => {
                            call!(driver, cuGreenCtxStreamCreate(&mut raw, green, flags, priority))
                        }
                        None => call!(driver, cuStreamCreateWithPriority(&mut raw, flags, priority)),
                    }
                }?;
                Ok(raw)
            })
            .on(|| format!("new stream in {self}"))?;
        Stream::wrap(raw, self, StreamKind::Owned, None)
    }

    /// The context's legacy default stream, which waits for and is waited for by blocking streams.
    /// Our own streams are non-blocking: no order exists between them and it but what is asked for.
    pub fn legacy_default_stream(self: &Arc<Self>) -> Arc<Stream> {
        Stream::wrap_default(CUstream::LEGACY, self, StreamKind::Legacy)
    }

    /// The calling thread's default stream in this context. Other threads get [`StreamError::WrongThread`].
    pub fn per_thread_default_stream(self: &Arc<Self>) -> Arc<Stream> {
        Stream::wrap_default(CUstream::PER_THREAD, self, StreamKind::PerThread(thread_token()))
    }
}

impl Stream {
    fn wrap(
        raw: CUstream,
        context: &Arc<Context>,
        kind: StreamKind,
        owner: Option<Arc<dyn ForeignOwner>>,
    ) -> Result<Arc<Self>, StreamError> {
        let name = Arc::new(StreamName::new(raw, kind, context));
        let handle = StreamHandle { raw, name: name.clone(), owner, context: context.clone() };
        let device = u16::try_from(context.ordinal()).unwrap_or(u16::MAX - 1);
        match context.tracker().stream(handle, kind, device) {
            Ok(tracked) => {
                context.shared().names.add(tracked.axis(), &name);
                let (tracked, policy) = (Some(tracked), AtomicPolicy::default());
                let agents = across::Agents::default();
                let made = Arc::new(Self { raw, name, tracked, agents, policy, context: context.clone() });
                // It has none yet.
                let _ = made.name.stream.set(Arc::downgrade(&made));
                Ok(made)
            }
            Err((handle, why)) => {
                let error = StreamError::Refused { stream: name.to_string(), what: why.to_string() };
                simtile_hazard::Backend::closed(context.tracker().backend(), handle);
                Err(error)
            }
        }
    }

    fn wrap_default(raw: CUstream, context: &Arc<Context>, kind: StreamKind) -> Arc<Self> {
        Self::wrap(raw, context, kind, None).unwrap_or_else(|_| {
            let name = Arc::new(StreamName::new(raw, kind, context));
            let policy = AtomicPolicy::default();
            let agents = across::Agents::default();
            Arc::new(Self { raw, name, tracked: None, agents, policy, context: context.clone() })
        })
    }

    /// Wraps a stream that somebody else owns. It is never destroyed through this handle, and nothing is freed on it.
    ///
    /// # Errors
    /// [`StreamError::RawNull`] for handle 0, whose meaning depends on what is current.
    ///
    /// # Safety
    /// `raw` is a live stream of `context`, and stays alive until this handle and every buffer that was used on it
    /// have been dropped.
    pub unsafe fn borrow_raw(raw: CUstream, context: &Arc<Context>) -> Result<Arc<Self>, StreamError> {
        Self::borrow(raw, context, None)
    }

    /// As [`Stream::borrow_raw`], holding whatever keeps the stream alive.
    ///
    /// # Errors
    /// As [`Stream::borrow_raw`].
    ///
    /// # Safety
    /// `raw` is a live stream of `context`, and stays alive as long as `owner` is held.
    pub unsafe fn borrow_with_owner(
        raw: CUstream,
        context: &Arc<Context>,
        owner: Arc<dyn ForeignOwner>,
    ) -> Result<Arc<Self>, StreamError> {
        Self::borrow(raw, context, Some(owner))
    }

    fn borrow(
        raw: CUstream,
        context: &Arc<Context>,
        owner: Option<Arc<dyn ForeignOwner>>,
    ) -> Result<Arc<Self>, StreamError> {
        let kind = match raw {
            CUstream::NULL => return Err(StreamError::RawNull),
            CUstream::LEGACY => StreamKind::Legacy,
            CUstream::PER_THREAD => StreamKind::PerThread(thread_token()),
            _ => StreamKind::Borrowed,
        };
        Self::wrap(raw, context, kind, owner)
    }

    /// This stream's identity.
    pub fn id(&self) -> StreamId {
        self.name.id
    }

    /// The driver's handle. It may come back for another stream once this one is gone; [`Stream::id`] does not.
    pub fn cu_stream(&self) -> CUstream {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The name given by [`Stream::set_label`].
    pub fn label(&self) -> Option<Arc<str>> {
        self.name.label.get()
    }

    /// Names the stream in errors, and in the reports of a simulated driver.
    pub fn set_label(&self, label: &str) {
        self.name.label.set(label);
        let driver = self.context.driver();
        if let Some(extras) = driver.table().extras {
            // SAFETY: extras take their own driver's state; the stream is alive. A report without a name is no
            // failure, so the answer is not looked at.
            let _ = unsafe { (extras.label)(driver.state(), LabelTarget::Stream(self.raw), label) };
        }
    }

    /// The priority the driver gave it. Smaller is more urgent.
    ///
    /// # Errors
    /// The driver's.
    pub fn priority(&self) -> Result<i32, StreamError> {
        self.on_its_thread()?;
        self.context
            .with_current(|driver| {
                let mut priority = 0;
                // SAFETY: the stream is alive, the out-pointer is valid for the call.
                unsafe { call!(driver, cuStreamGetPriority(self.raw, &mut priority)) }?;
                Ok(priority)
            })
            .on(|| self.to_string())
    }

    /// Waits until everything queued so far has finished. Work queued meanwhile by others is not waited for.
    ///
    /// # Errors
    /// [`StreamError::Capturing`], [`StreamError::WrongThread`], or the driver's; also the failure of the work itself.
    pub fn synchronize(&self) -> Result<(), StreamError> {
        self.on_its_thread()?;
        let refused = |error| self.refused(error, &[], || self.to_string());
        let event = self.mark(true).map_err(refused)?;
        self.context.tracker().wait(event.stamp()).map_err(refused)
    }

    /// Whether everything queued so far has finished. Never blocks on the device.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_complete(&self) -> Result<bool, StreamError> {
        self.on_its_thread()?;
        let refused = |error| self.refused(error, &[], || self.to_string());
        let event = loop {
            match self.mark(false) {
                Ok(event) => break event,
                // Another thread is submitting, which takes CPU time alone.
                Err(SubmitError::Busy(_)) => simtile_sync::thread::yield_now(),
                Err(error) => return Err(refused(error)),
            }
        };
        // SAFETY: the event is alive; its context is current.
        let fired = self.context.link().relaxed(|driver| unsafe { query(driver, *event.event()) });
        let fired = fired.on(|| self.to_string())?;
        if fired {
            self.context.tracker().observe(&event);
        }
        Ok(fired)
    }

    /// Makes everything queued from now on wait for the event's last record. An event that was never recorded counts as
    /// having happened. The event may be of another context, also of another device.
    ///
    /// # Errors
    /// [`StreamError::OtherContext`] if the event is another driver's, or the driver's.
    pub fn wait(&self, event: &Event) -> Result<(), StreamError> {
        self.on_its_thread()?;
        self.same_driver(event.context(), || event.to_string())?;
        // Nobody knows what the event stands for.
        self.submit_tracked(&[], Submit::OUTSIDE, |driver, raw| {
            // SAFETY: stream and event are alive; CUDA lets streams of any context wait.
            unsafe { call!(driver, cuStreamWaitEvent(raw, event.cu_event(), 0)) }
        })
        .map_err(|error| self.refused(error, &[], || self.to_string()))?;
        Ok(())
    }

    /// A new event, recorded behind everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn record_event(&self) -> Result<Event, StreamError> {
        let event = self.context.new_event()?;
        event.record(self)?;
        Ok(event)
    }

    /// A new event with timing, recorded behind everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn record_timed_event(&self) -> Result<TimedEvent, StreamError> {
        let event = self.context.new_timed_event()?;
        event.record(self)?;
        Ok(event)
    }

    /// A new stream whose work starts after everything queued on this one so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn fork(&self) -> Result<Arc<Stream>, StreamError> {
        self.on_its_thread()?;
        let event = self.bounded_mark().map_err(|error| self.refused(error, &[], || self.to_string()))?;
        let fork = self.context.new_stream()?;
        fork.follow(self, event)?;
        Ok(fork)
    }

    /// Makes everything queued from now on wait for everything queued on `other` so far, which may be of another context.
    ///
    /// # Errors
    /// [`StreamError::OtherContext`] if the other stream is another driver's, or the driver's.
    pub fn join(&self, other: &Stream) -> Result<(), StreamError> {
        self.same_driver(&other.context, || other.to_string())?;
        self.on_its_thread()?;
        other.on_its_thread()?;
        if self.id() == other.id() {
            return Ok(());
        }
        if !self.is_owned() && handle::is_capturing(self.context.link(), self.raw).on(|| self.to_string())? {
            return Err(StreamError::Capturing { stream: self.to_string() });
        }
        let event = other.bounded_mark().map_err(|error| other.refused(error, &[], || other.to_string()))?;
        self.follow(other, event)
    }

    /// Waits for a mark of another stream.
    fn follow(
        &self,
        leader: &Stream,
        event: Option<crate::context::TrackedEvent>,
    ) -> Result<(), StreamError> {
        let Some(event) = event else {
            return Err(StreamError::Failed { stream: self.to_string(), leader: leader.to_string() });
        };
        self.submit_tracked(&[], Submit::OUTSIDE, |driver, raw| {
            // SAFETY: stream and event are alive; CUDA lets streams of any context wait.
            unsafe { call!(driver, cuStreamWaitEvent(raw, *event.event(), 0)) }
        })
        .map_err(|error| self.refused(error, &[], || format!("{self} after {leader}")))?;
        Ok(())
    }

    /// Whether it is one of the driver's default streams.
    pub(crate) fn is_default(&self) -> bool {
        matches!(self.name.kind, StreamKind::Legacy | StreamKind::PerThread(_))
    }

    /// Whether the stream is ours, and used on any thread.
    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.name.kind == StreamKind::Owned
    }

    /// Runs driver calls that become part of a capture that somebody else records on this stream.
    pub(crate) fn call_in_foreign_capture(
        &self,
        calls: impl FnOnce(simtile_driver::Driver, CUstream) -> Result<(), simtile_driver::DriverError>,
    ) -> Result<(), crate::error::CallError> {
        self.context.with_current(|driver| calls(driver, self.raw))
    }

    pub(crate) fn on_its_thread(&self) -> Result<(), StreamError> {
        match self.name.kind {
            StreamKind::PerThread(owner) if owner != thread_token() => {
                Err(StreamError::WrongThread { stream: self.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The tracker's side; `None`: a default stream for which there was no room.
    pub(crate) fn tracked(&self) -> Option<&Tracked> {
        self.tracked.as_ref()
    }

    /// Events are waited for across contexts, not across drivers.
    fn same_driver(&self, other: &Context, used: impl FnOnce() -> String) -> Result<(), StreamError> {
        if self.context.driver() == other.driver() { Ok(()) } else { self.same_context(other, used) }
    }

    pub(crate) fn same_context(
        &self,
        other: &Context,
        used: impl FnOnce() -> String,
    ) -> Result<(), StreamError> {
        if core::ptr::eq(&*self.context, other) || *self.context == *other {
            return Ok(());
        }
        Err(StreamError::OtherContext {
            user: self.to_string(),
            user_context: self.context.to_string(),
            used: used(),
            used_context: other.to_string(),
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let agents = core::mem::take(&mut self.agents);
        let Some(tracked) = self.tracked.take() else { return };
        if crate::sys::is_forked() {
            core::mem::forget((tracked, agents));
            return;
        }
        if drops_go_elsewhere() {
            // Closing makes driver calls.
            let context = self.context.clone();
            let job = Work::Job(Box::new(move || drop((agents, tracked, context))));
            self.context.shared().lanes.push(Lane::Memory, job);
        }
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({self}, {:#x}, {})", self.raw.0, self.context)
    }
}
