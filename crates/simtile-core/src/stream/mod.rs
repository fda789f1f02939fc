//! Streams: queues of device work.
//!
//! Waiting for a stream and asking it is done with events: `cuStreamSynchronize` and `cuStreamQuery` are never called,
//! because they end a graph capture that happens to be going on.

mod host_function;
mod launch;

pub use host_function::in_host_function;

use crate::context::{ForeignOwner, add};
use crate::error::{CallError, Family, On, StreamError};
use crate::label::Label;
use crate::{Context, Event, TimedEvent, reaper};
use core::fmt;
use simtile_driver::sys::{CUresult, CUstream, CUstream_flags, CUstreamCaptureStatus};
use simtile_driver::{Driver, LabelTarget, call};
use simtile_sync::Arc;
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

/// Identity of a stream: never reused, unlike the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

enum Kind {
    /// Ours: non-blocking, destroyed with the handle.
    Owned,
    /// Somebody else's, kept alive by a promise or by the owner that we hold.
    Borrowed(#[allow(dead_code, reason = "held, never used")] Option<Arc<dyn ForeignOwner>>),
    /// The context's legacy default stream.
    LegacyDefault,
    /// The default stream of the thread that made the handle.
    PerThreadDefault(ThreadId),
}

/// A queue of device work. Shared as `Arc<Stream>`; it keeps its context alive.
///
/// Two handles are equal if they are the same handle; a borrowed stream wrapped twice is two identities.
pub struct Stream {
    id: StreamId,
    raw: CUstream,
    context: Arc<Context>,
    kind: Kind,
    label: Label,
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
                // SAFETY: the out-pointer is valid for the call; the context is current.
                unsafe { call!(driver, cuStreamCreateWithPriority(&mut raw, flags, priority)) }?;
                Ok(raw)
            })
            .on(|| format!("new stream in {self}"))?;
        let stream = Stream::wrap(raw, self, Kind::Owned);
        self.remember(&stream);
        Ok(stream)
    }

    /// The context's legacy default stream, which waits for and is waited for by blocking streams.
    /// Our own streams are non-blocking: no order exists between them and it but what is asked for.
    pub fn legacy_default_stream(self: &Arc<Self>) -> Arc<Stream> {
        Stream::wrap(CUstream::LEGACY, self, Kind::LegacyDefault)
    }

    /// The calling thread's default stream in this context. Other threads get [`StreamError::WrongThread`].
    pub fn per_thread_default_stream(self: &Arc<Self>) -> Arc<Stream> {
        Stream::wrap(CUstream::PER_THREAD, self, Kind::PerThreadDefault(std::thread::current().id()))
    }
}

impl Stream {
    fn wrap(raw: CUstream, context: &Arc<Context>, kind: Kind) -> Arc<Self> {
        Arc::new(Self { id: StreamId::next(), raw, context: context.clone(), kind, label: Label::default() })
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
        match raw {
            CUstream::NULL => Err(StreamError::RawNull),
            CUstream::LEGACY => Ok(Self::wrap(raw, context, Kind::LegacyDefault)),
            CUstream::PER_THREAD => {
                Ok(Self::wrap(raw, context, Kind::PerThreadDefault(std::thread::current().id())))
            }
            _ => Ok(Self::wrap(raw, context, Kind::Borrowed(owner))),
        }
    }

    /// This stream's identity.
    pub fn id(&self) -> StreamId {
        self.id
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
        self.label.get()
    }

    /// Names the stream in errors, and in the reports of a simulated driver.
    pub fn set_label(&self, label: &str) {
        self.label.set(label);
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
        self.ready()?;
        self.context.wait_for(self.raw).on(|| self.to_string())
    }

    /// Whether everything queued so far has finished. Never blocks on the device.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_complete(&self) -> Result<bool, StreamError> {
        self.ready()?;
        self.context.has_finished(self.raw).on(|| self.to_string())
    }

    /// Makes everything queued from now on wait for the event's last record. An event that was never recorded counts as
    /// having happened.
    ///
    /// # Errors
    /// [`StreamError::OtherContext`], or the driver's.
    pub fn wait(&self, event: &Event) -> Result<(), StreamError> {
        self.ready()?;
        self.same_context(event.context(), || event.to_string())?;
        self.context
            // SAFETY: stream and event are alive and of this context, which is current.
            .with_current(|driver| unsafe { call!(driver, cuStreamWaitEvent(self.raw, event.cu_event(), 0)) })
            .on(|| self.to_string())
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
        self.ready()?;
        let fork = self.context.new_stream()?;
        self.context.follow(self.raw, fork.raw).on(|| self.to_string())?;
        Ok(fork)
    }

    /// Makes everything queued from now on wait for everything queued on `other` so far.
    ///
    /// # Errors
    /// [`StreamError::OtherContext`], or the driver's.
    pub fn join(&self, other: &Stream) -> Result<(), StreamError> {
        self.same_context(&other.context, || other.to_string())?;
        self.ready()?;
        other.ready()?;
        if self.id == other.id {
            return Ok(());
        }
        self.context.follow(other.raw, self.raw).on(|| format!("{self} after {other}"))
    }

    /// Whether work that was queued on it is followed by its own handle alone: ours, and used on any thread.
    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.kind, Kind::Owned)
    }

    /// Whether calls may go by the handle alone, whatever context is current. Default streams are of the current
    /// context.
    #[inline]
    pub(crate) fn handle_is_enough(&self) -> bool {
        matches!(self.kind, Kind::Owned | Kind::Borrowed(_))
    }

    /// Runs driver calls on the stream's handle, with the context current where the handle is not enough.
    #[inline]
    pub(crate) fn call<T>(
        &self,
        calls: impl FnOnce(Driver) -> Result<T, simtile_driver::DriverError>,
    ) -> Result<T, CallError> {
        if self.handle_is_enough() {
            self.context.with_handles(calls)
        } else {
            self.context.with_current(calls)
        }
    }

    /// Whether the stream may be waited for, asked, or used with buffers: not from a wrong thread, and not in a
    /// capture that somebody else began.
    pub(crate) fn ready(&self) -> Result<(), StreamError> {
        if self.is_owned() {
            return Ok(());
        }
        self.on_its_thread()?;
        let status = self
            .context
            .with_current(|driver| {
                let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
                // SAFETY: the stream is alive, the out-pointer is valid for the call.
                unsafe { call!(driver, cuStreamIsCapturing(self.raw, &mut status)) }?;
                Ok(status)
            })
            .or_else(|error| match error {
                // Asking the legacy stream while another stream captures answers so.
                CallError::Driver(e) if e.code() == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                    Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE)
                }
                // A driver that cannot be asked cannot capture either: both came with CUDA 10.0.
                CallError::Driver(e) if e.is_missing_entry() => {
                    Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
                }
                other => Err(other),
            })
            .on(|| self.to_string())?;
        match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(StreamError::Capturing { stream: self.to_string() }),
        }
    }

    pub(crate) fn on_its_thread(&self) -> Result<(), StreamError> {
        match self.kind {
            Kind::PerThreadDefault(owner) if owner != std::thread::current().id() => {
                Err(StreamError::WrongThread { stream: self.to_string() })
            }
            _ => Ok(()),
        }
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
        if !self.is_owned() {
            return;
        }
        let (context, raw, name) = (self.context.clone(), self.raw, self.to_string());
        retire(move || {
            // The context may not end before this stream's work has, so its end is kept first. If that fails, the
            // failure is the driver's (a lost context, most likely) and destroying goes on regardless.
            if let Err(CallError::Driver(error)) = context.keep_tail(raw) {
                context.counters.push_error(format!("drop of {name}"), error);
            }
            // SAFETY: we made the stream and this was its last handle; CUDA finishes what is queued.
            let call = |driver: Driver| unsafe { call!(driver, cuStreamDestroy(raw)) };
            if !context.finish(|| format!("drop of {name}"), call) && context.usable().is_ok() {
                add(&context.counters.failed_destroys, 1);
            }
        });
    }
}

/// Runs the driver calls of a drop: here, or on the background thread if this thread is inside a host function. Without
/// a background thread they are not made, and what they would have given back stays with the process.
pub(crate) fn retire(job: impl FnOnce() + Send + 'static) {
    if !in_host_function() {
        job();
    } else if let Err(job) = reaper::submit(Box::new(job)) {
        core::mem::forget(job);
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Stream {}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Owned => "stream",
            Kind::Borrowed(_) => "borrowed stream",
            Kind::LegacyDefault => "legacy default stream",
            Kind::PerThreadDefault(_) => "per-thread default stream",
        };
        f.write_str(&self.label.describe(kind, self.id.0))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({self}, {:#x}, {})", self.raw.0, self.context)
    }
}

/// Turns a call's failure into a stream error that names the stream.
pub(crate) fn stream_error(stream: &Stream, error: CallError) -> StreamError {
    StreamError::from_call(error, stream.to_string())
}
