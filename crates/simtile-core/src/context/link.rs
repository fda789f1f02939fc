//! The one place through which driver calls go.
//!
//! [`Link::with_current`] makes the context current for a call and puts back the one that was current before;
//! [`Link::with_handles`] is for calls that CUDA lets work on explicit handles whatever is current
//! (launch, record, stream-ordered allocation and free). Both refuse inside host functions, after the context
//! was lost and after the driver has shut down, and both take note of such failures.
//!
//! Calls that a graph capture of global mode would forbid ([`Link::relaxed`]) switch the thread to relaxed mode, so that they
//! neither fail nor end a capture that somebody else has begun. The thread stays so.
//!
//! A link has no handle of ours behind it: whoever holds one must not call after the context has ended.

use super::loss::{ContextLoss, Listeners};
use super::stats::{Counters, add, sub};
use super::{Context, Shared};
use crate::Device;
use crate::error::CallError;
use crate::stream::in_host_function;
use crate::sys::{Process, process};
use core::cell::Cell;
use simtile_driver::sys::{CUcontext, CUevent, CUevent_flags, CUresult, CUstream, CUstreamCaptureMode};
use simtile_driver::{Driver, DriverError, Severity, call};
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

/// A CUDA context as far as calling goes: its handle, its health, its counters.
pub(crate) struct Link {
    pub(super) device: Device,
    pub(super) raw: CUcontext,
    /// The driver's never-reused id of the context; `None` if the driver has none.
    pub(super) id: Option<u64>,
    pub(crate) health: Health,
    pub(crate) counters: Counters,
    /// Every event that was made for tracking; they live as long as the context.
    made: Mutex<Vec<CUevent>>,
    /// Ends of dropped streams whose work may still run. Whoever asks them takes the list out meanwhile.
    tails: Mutex<Vec<CUevent>>,
    /// How many there are, also while somebody has the list.
    tails_left: AtomicUsize,
    /// Guards of the host that hold all device work off.
    host_holds: AtomicUsize,
    /// Who waits to hear of its loss.
    pub(super) listeners: Listeners,
    /// What else belongs to the context.
    pub(super) shared: OnceLock<Weak<Shared>>,
}

/// Whether driver calls may still be made.
#[derive(Debug)]
pub(crate) struct Health {
    /// False once one of the others is set: the only load in a healthy context.
    healthy: AtomicBool,
    lost: OnceLock<Arc<ContextLoss>>,
    gone: AtomicBool,
    /// The last handle of the context has gone.
    over: AtomicBool,
}

/// While it lives the context is current on this thread; then the one before is.
struct Scope<'a> {
    link: &'a Link,
    /// What to put back: another context that was current before.
    previous: Option<CUcontext>,
}

impl<'a> Scope<'a> {
    fn enter(link: &'a Link) -> Result<Self, DriverError> {
        let driver = link.driver();
        let mut current = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuCtxGetCurrent(&mut current)) }?;
        if current == link.raw {
            return Ok(Self { link, previous: None });
        }
        // SAFETY: the context is alive: we own it, or whoever lent it vouched for that.
        unsafe { call!(driver, cuCtxSetCurrent(link.raw)) }?;
        Ok(Self { link, previous: (!current.is_null()).then_some(current) })
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let Some(previous) = self.previous else { return };
        let driver = self.link.driver();
        // SAFETY: setting a handle that was current a moment ago. If its owner has destroyed it meanwhile,
        // the driver says so.
        let Err(error) = (unsafe { call!(driver, cuCtxSetCurrent(previous)) }) else { return };
        match error.code() {
            // What was current is dead. No context is then the honest answer, and nobody's failure.
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED | CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                // SAFETY: null means: no context.
                let _ = unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) };
            }
            CUresult::CUDA_ERROR_DEINITIALIZED => self.link.health.set_gone(),
            // One of both contexts is lost; the next call on it tells.
            _ if error.severity() == Severity::Context => add(&self.link.counters.failed_restores, 1),
            _ => {
                add(&self.link.counters.failed_restores, 1);
                self.link.counters.push_error("putting back the current context".into(), error);
            }
        }
    }
}

impl Link {
    pub(super) fn new(device: Device, raw: CUcontext, id: Option<u64>) -> Self {
        Self {
            device,
            raw,
            id,
            health: Health::new(),
            counters: Counters::default(),
            made: Mutex::default(),
            tails: Mutex::default(),
            tails_left: AtomicUsize::new(0),
            host_holds: AtomicUsize::new(0),
            listeners: Listeners::default(),
            shared: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn driver(&self) -> Driver {
        self.device.driver()
    }

    pub(crate) fn cu_ctx(&self) -> CUcontext {
        self.raw
    }

    pub(crate) fn id(&self) -> Option<u64> {
        self.id
    }

    /// Runs driver calls with this context current.
    pub(crate) fn with_current<T>(
        &self,
        calls: impl FnOnce(Driver) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        self.usable()?;
        let scope = Scope::enter(self).map_err(|error| self.note(error))?;
        let result = calls(self.driver());
        drop(scope);
        result.map_err(|error| self.note(error))
    }

    /// Runs driver calls that work on explicit handles, whatever context is current.
    #[inline]
    pub(crate) fn with_handles<T>(
        &self,
        calls: impl FnOnce(Driver) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        self.usable()?;
        calls(self.driver()).map_err(|error| self.note(error))
    }

    /// As [`Link::with_current`], with this thread in relaxed capture mode meanwhile.
    pub(crate) fn relaxed<T>(
        &self,
        calls: impl FnOnce(Driver) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        self.with_current(|driver| relaxed(driver, calls))
    }

    /// As [`Link::relaxed_handles`]; a driver that wants the context current after all is called again.
    pub(crate) fn relaxed_anywhere<T>(
        &self,
        calls: impl Fn(Driver) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        self.usable()?;
        match relaxed(self.driver(), &calls) {
            Err(error) if error.code() == CUresult::CUDA_ERROR_INVALID_CONTEXT => self.relaxed(calls),
            other => other.map_err(|error| self.note(error)),
        }
    }

    /// As [`Link::with_handles`], with this thread in relaxed capture mode meanwhile.
    pub(crate) fn relaxed_handles<T>(
        &self,
        calls: impl FnOnce(Driver) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        self.with_handles(|driver| relaxed(driver, calls))
    }

    /// Whether driver calls may be made at all.
    #[inline]
    pub(crate) fn usable(&self) -> Result<(), CallError> {
        if in_host_function() {
            return Err(CallError::InHostFunction);
        }
        self.health.check()
    }

    /// Takes note of failures that say something about context or driver.
    #[cold]
    pub(crate) fn note(&self, error: DriverError) -> CallError {
        if error.code() == CUresult::CUDA_ERROR_DEINITIALIZED {
            self.health.set_gone();
            return CallError::Deinitialized;
        }
        if error.severity() != Severity::Context {
            return CallError::Driver(error);
        }
        if let Some(loss) = self.health.loss() {
            return CallError::Lost { loss: loss.clone(), first: false };
        }
        // Calls of two threads may find out at once; the loss is told by the first of them alone.
        self.health.set_lost(self.loss_by(error))
    }

    /// Runs a call of a drop: failures are counted and kept, and nothing is called when nothing may be.
    /// Returns whether the call was made and succeeded.
    pub(crate) fn finish(
        &self,
        during: impl FnOnce() -> String,
        calls: impl FnOnce(Driver) -> Result<(), DriverError>,
    ) -> bool {
        match self.with_current(calls) {
            Ok(()) => true,
            Err(error) => {
                // A lost context was reported when it was lost; a driver that is gone took everything with it.
                if let Some(error) = error.untold() {
                    self.counters.push_error(during(), error);
                }
                false
            }
        }
    }

    /// Runs the call that ends an object: a failure is counted, and kept as an error.
    pub(crate) fn destroy(
        &self,
        during: impl FnOnce() -> String,
        calls: impl FnOnce(Driver) -> Result<(), DriverError>,
    ) {
        self.destroy_all(1, during, calls);
    }

    /// As [`Link::destroy`], for an object that others are a part of: so many in all.
    pub(crate) fn destroy_all(
        &self,
        objects: u64,
        during: impl FnOnce() -> String,
        calls: impl FnOnce(Driver) -> Result<(), DriverError>,
    ) {
        if !self.finish(during, calls) && self.usable().is_ok() {
            add(&self.counters.failed_destroys, objects);
        }
    }

    /// From here on enqueuing is refused, until [`Link::host_lets_go`]. What is being enqueued holds its stream's lock:
    /// whoever then takes each of them once has seen the last of it.
    pub(crate) fn host_takes_all(&self) {
        self.host_holds.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn host_lets_go(&self) {
        self.host_holds.fetch_sub(1, Ordering::SeqCst);
    }

    /// Refuses while the host holds everything. Asked with the stream locked.
    #[inline]
    pub(crate) fn host_allows(&self) -> Result<(), CallError> {
        if self.host_holds.load(Ordering::SeqCst) == 0 { Ok(()) } else { Err(CallError::HostHolds) }
    }

    /// An untimed event that lives as long as the context.
    ///
    /// One on which threads sleep would cost each record and wait 1.1 to 1.7 µs on an H200 (docs/measurements).
    pub(super) fn make_event(&self) -> Result<CUevent, CallError> {
        let event = self.with_current(|driver| {
            let mut event = CUevent::NULL;
            let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuEventCreate(&mut event, flags)) }?;
            Ok(event)
        })?;
        self.made.lock().push(event);
        add(&self.counters.own_handles, 1);
        Ok(event)
    }

    /// Destroys events that were made for tracking, and that nobody refers to.
    pub(crate) fn destroy_made(&self, events: &[CUevent]) {
        if events.is_empty() {
            return;
        }
        let gone: HashSet<CUevent> = events.iter().copied().collect();
        self.made.lock().retain(|event| !gone.contains(event));
        sub(&self.counters.own_handles, events.len() as u64);
        for &event in events {
            self.destroy_event(event);
        }
    }

    /// The first event that was made for tracking, for a planted bug.
    pub(super) fn first_event(&self) -> Option<CUevent> {
        self.made.lock().first().copied()
    }

    /// An untimed event for [`Link::destroy_event`].
    pub(crate) fn make_loose_event(&self) -> Result<CUevent, CallError> {
        self.relaxed(|driver| {
            let mut event = CUevent::NULL;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)) }?;
            Ok(event)
        })
    }

    pub(crate) fn destroy_event(&self, event: CUevent) {
        // SAFETY: the event is ours and nobody refers to it; pending work does not matter to CUDA.
        self.destroy(
            || "destroying an event".into(),
            |driver| unsafe { call!(driver, cuEventDestroy(event)) },
        );
    }

    /// Keeps the end of a stream that is about to be destroyed, until its work has finished: the context may not
    /// end before. Ends that have been reached are forgotten. Whether this one has not been: asked by itself, since another
    /// thread may have the list.
    pub(super) fn keep_tail(&self, stream: CUstream) -> Result<bool, CallError> {
        let event = self.with_current(|driver| {
            let mut event = CUevent::NULL;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)) }?;
            Ok(event)
        })?;
        let recorded = self.with_current(|driver| {
            // SAFETY: stream and event are alive; the context is current.
            unsafe { call!(driver, cuEventRecord(event, stream)) }
        });
        if let Err(error) = recorded {
            self.destroy_event(event);
            return Err(error);
        }
        self.prune_tails();
        if self.tail_is_over(event) {
            self.destroy_event(event);
            return Ok(false);
        }
        self.tails_left.fetch_add(1, Ordering::SeqCst);
        add(&self.counters.own_handles, 1);
        self.tails.lock().push(event);
        Ok(true)
    }

    /// Whether the work before it has finished. Of a stream that goes on capturing (the driver did not end its capture)
    /// it is a node of a graph that nobody will have, and no end of any work: what ran before the capture is known by other events.
    fn tail_is_over(&self, event: CUevent) -> bool {
        // SAFETY: the event is alive; the context is current.
        match self.relaxed(|driver| unsafe { query(driver, event) }) {
            Ok(over) => over,
            Err(CallError::Driver(error)) => error.code() == CUresult::CUDA_ERROR_CAPTURED_EVENT,
            Err(_) => false,
        }
    }

    /// Forgets the ends that have been reached. Returns whether none is left; an end that cannot be asked stays.
    pub(super) fn prune_tails(&self) -> bool {
        let tails = core::mem::take(&mut *self.tails.lock());
        let mut left = Vec::new();
        for event in tails {
            if self.tail_is_over(event) {
                sub(&self.counters.own_handles, 1);
                self.destroy_event(event);
                self.tails_left.fetch_sub(1, Ordering::SeqCst);
            } else {
                left.push(event);
            }
        }
        self.tails.lock().extend(left);
        self.tails_left.load(Ordering::SeqCst) == 0
    }

    /// Destroys every event of the context. Nobody refers to one any more.
    pub(super) fn end_events(&self) {
        let tails = core::mem::take(&mut *self.tails.lock());
        self.tails_left.fetch_sub(tails.len(), Ordering::SeqCst);
        let made = core::mem::take(&mut *self.made.lock());
        let all = (tails.len() + made.len()) as u64;
        sub(&self.counters.own_handles, all);
        let mut ended = 0;
        // In one go, so that the context is made current once.
        let made_current = self.with_current(|driver| {
            for event in tails.into_iter().chain(made) {
                // SAFETY: the event is ours and nobody refers to it.
                match unsafe { call!(driver, cuEventDestroy(event)) } {
                    Ok(()) => ended += 1,
                    // A loss is noted at once, so that no further call is made.
                    Err(error) if error.severity() != Severity::Call => return Err(error),
                    Err(error) => self.counters.push_error("destroying an event".into(), error),
                }
            }
            Ok(())
        });
        if let Some(error) = made_current.err().and_then(|error| error.untold()) {
            self.counters.push_error("destroying the context's events".into(), error);
        }
        let failed = all - ended;
        if self.usable().is_ok() {
            add(&self.counters.failed_destroys, failed);
        }
    }
}

thread_local! {
    /// The driver of which we switched this thread to relaxed capture mode.
    static RELAXED: Cell<Option<Driver>> = const { Cell::new(None) };
}

/// Runs calls with the thread in relaxed capture mode. Drivers that lack the switch have no captures to disturb.
///
/// A thread that we have switched stays so: switching back and forth would be two driver calls for each question. Relaxed, a thread
/// is refused less; it can disturb no capture. A thread that was relaxed already is somebody else's business, who may switch it back
/// at any time, so that is asked again.
pub(crate) fn relaxed<T>(
    driver: Driver,
    calls: impl FnOnce(Driver) -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    // A thread that is ending has no such memory left, and is switched each time.
    let ours = RELAXED.try_with(Cell::get).ok().flatten();
    if ours != Some(driver) {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is valid for the call.
        let switched = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) }.is_ok();
        // Drivers may share the mode, as those of counting layers do: then it was we who switched.
        if switched && (ours.is_some() || mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) {
            let _ = RELAXED.try_with(|relaxed| relaxed.set(Some(driver)));
        }
    }
    calls(driver)
}

/// Whether an event has happened.
///
/// # Safety
/// The event is alive; the driver may want its context current.
pub(crate) unsafe fn query(driver: Driver, event: CUevent) -> Result<bool, DriverError> {
    // SAFETY: the caller's.
    match unsafe { call!(driver, cuEventQuery(event)) } {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

impl Health {
    fn new() -> Self {
        let (healthy, gone, over) = (AtomicBool::new(true), AtomicBool::new(false), AtomicBool::new(false));
        Self { healthy, lost: OnceLock::new(), gone, over }
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), CallError> {
        if self.healthy.load(Ordering::Relaxed) && process() == Process::Running {
            return Ok(());
        }
        self.explain()
    }

    #[cold]
    fn explain(&self) -> Result<(), CallError> {
        match process() {
            Process::Running => {}
            Process::Forked => return Err(CallError::Forked),
            Process::Exiting => return Err(CallError::Deinitialized),
        }
        match (self.lost.get(), self.gone.load(Ordering::Relaxed)) {
            (_, true) => Err(CallError::Deinitialized),
            (Some(loss), false) => Err(CallError::Lost { loss: loss.clone(), first: false }),
            (None, false) => Ok(()),
        }
    }

    pub(crate) fn loss(&self) -> Option<&Arc<ContextLoss>> {
        self.lost.get()
    }

    /// The first loss is the one that counts.
    fn set_lost(&self, loss: ContextLoss) -> CallError {
        let mut first = false;
        let loss = self.lost.get_or_init(|| {
            first = true;
            Arc::new(loss)
        });
        self.healthy.store(false, Ordering::Relaxed);
        CallError::Lost { loss: loss.clone(), first }
    }

    /// No handle of the context is left.
    pub(super) fn set_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.healthy.store(false, Ordering::Relaxed);
    }
}

impl Context {
    /// As [`Link::with_current`].
    #[inline]
    pub(crate) fn with_current<T>(
        &self,
        calls: impl FnOnce(Driver) -> Result<T, DriverError>,
    ) -> Result<T, CallError> {
        self.link().with_current(calls)
    }

    /// As [`Link::usable`].
    #[inline]
    pub(crate) fn usable(&self) -> Result<(), CallError> {
        self.link().usable()
    }

    /// As [`Link::note`].
    pub(crate) fn note(&self, error: DriverError) -> CallError {
        self.link().note(error)
    }
}
