//! Contexts: owned or borrowed CUDA contexts.
//!
//! A context is shared as `Arc<Context>`; everything made in it holds it. Two `Context` values may stand for
//! one CUDA context (two retains of a primary context); they are equal, because equality is that of the driver's
//! handle and the driver's never-reused id behind it.

mod backend;
mod end;
mod green;
mod lanes;
mod link;
mod loss;
mod monitor;
mod peer;
mod settings;
mod shared;
mod snapshot;
mod stats;

pub(crate) use backend::{CoreBackend, Event as TrackedEvent, SubmitError, Tracked, Tracker};
pub use lanes::drain_background;
pub(crate) use lanes::{Lane, Work, drop_user_value};
pub(crate) use link::{Link, query, relaxed};
pub use loss::{ContextLoss, Lost, LostWork};
pub use monitor::ContextMonitor;
pub use settings::{ContextLimit, MemoryInfo, StreamPriorityRange, SyncPolicy};
pub(crate) use shared::Shared;
pub use snapshot::{AllocationInfo, Drained, Snapshot};
pub use stats::{BackgroundError, ContextStats};
pub(crate) use stats::{Counters, add, sub};

use crate::error::{ContextError, On};
use crate::{Capabilities, Device, DeviceError};
use core::fmt;
use simtile_driver::sys::{CUcontext, CUdevice};
use simtile_driver::{Driver, DriverError, call};
use simtile_sync::Arc;
use simtile_sync::atomic::{AtomicU64, Ordering};

/// Whoever lent a context, stream or module. Held as long as the handle made from it.
///
/// Implemented for everything that may be held and dropped on any thread.
pub trait ForeignOwner: Send + Sync + 'static {}

impl<T: Send + Sync + 'static> ForeignOwner for T {}

/// Who destroys the CUDA context.
pub(crate) enum Owner {
    /// We retained the device's primary context.
    Primary,
    /// We created it.
    Created,
    /// A green context of the primary one, which it holds.
    Green(green::Green),
    /// Somebody else, who keeps it alive by a promise, or by the owner that we hold.
    Borrowed(#[allow(dead_code, reason = "held, never used")] Option<Arc<dyn ForeignOwner>>),
}

impl Owner {
    fn is_owned(&self) -> bool {
        !matches!(self, Self::Borrowed(_))
    }
}

/// Contexts that could not be given back when their last handle went.
static CONTEXTS_KEPT: AtomicU64 = AtomicU64::new(0);

/// A CUDA context: the primary one of a device, one of our own, a green one, or a borrowed one.
///
/// A green context ([`Device::green_contexts`]) is its device's primary context with streams of its own, which run on some of
/// the multiprocessors: the two are equal, and what was made through one is used through the other.
///
/// # Leaks
/// Memory whose free failed, or whose last use cannot be known to end, is kept and counted.
pub struct Context {
    device: Device,
    owner: Owner,
    shared: Arc<Shared>,
}

impl Device {
    /// Retains the device's primary context, which the CUDA runtime and most libraries use.
    ///
    /// Two calls give two handles of one CUDA context; they are equal.
    ///
    /// # Errors
    /// The driver's.
    pub fn primary_context(self) -> Result<Arc<Context>, ContextError> {
        let driver = self.driver();
        let mut raw = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&mut raw, self.cu_device())) }
            .map_err(deinitialized)
            .on(|| format!("primary context of {self}"))?;
        Ok(Context::wrap(self, raw, Owner::Primary))
    }

    /// Creates a context of its own on the device. What was current on this thread stays current.
    ///
    /// # Errors
    /// The driver's.
    pub fn create_context(self) -> Result<Arc<Context>, ContextError> {
        let driver = self.driver();
        let on = || format!("new context on {self}");
        let mut raw = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuCtxCreate(&mut raw, 0, self.cu_device())) }.map_err(deinitialized).on(on)?;
        let context = Context::wrap(self, raw, Owner::Created);
        // Creating made it current on top of what was there; popping puts that back.
        let mut popped = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuCtxPopCurrent(&mut popped)) }.map_err(deinitialized).on(on)?;
        Ok(context)
    }
}

fn deinitialized(error: DriverError) -> crate::error::CallError {
    use simtile_driver::sys::CUresult;
    match error.code() {
        CUresult::CUDA_ERROR_DEINITIALIZED => crate::error::CallError::Deinitialized,
        _ => crate::error::CallError::Driver(error),
    }
}

impl Context {
    /// Retains the primary context of the device with this ordinal.
    ///
    /// # Errors
    /// [`DeviceError`] if there is no such device, else [`ContextError`].
    pub fn new(driver: Driver, ordinal: usize) -> Result<Arc<Self>, crate::Error> {
        Ok(Device::new(driver, ordinal)?.primary_context()?)
    }

    /// Wraps a context that somebody else owns. It is never destroyed through this handle.
    ///
    /// Its last handle gives pinned and managed memory that was kept for reuse back at once, and the driver then waits for all work of
    /// the context. With an owner ([`Context::borrow_with_owner`]) that is left to the background; otherwise [`Context::trim`] does
    /// it when it suits.
    ///
    /// # Errors
    /// [`ContextError::NullHandle`], [`ContextError::WrongDevice`], or the driver's.
    ///
    /// # Safety
    /// `raw` is a live context of the device's driver, and stays alive until this handle and everything made from it
    /// has been dropped.
    pub unsafe fn borrow_raw(device: Device, raw: CUcontext) -> Result<Arc<Self>, ContextError> {
        // SAFETY: the caller's.
        unsafe { Self::borrow(device, raw, None) }
    }

    /// As [`Context::borrow_raw`], holding whatever keeps the context alive.
    ///
    /// # Errors
    /// As [`Context::borrow_raw`].
    ///
    /// # Safety
    /// `raw` is a live context of the device's driver, and stays alive as long as `owner` is held.
    pub unsafe fn borrow_with_owner(
        device: Device,
        raw: CUcontext,
        owner: Arc<dyn ForeignOwner>,
    ) -> Result<Arc<Self>, ContextError> {
        // SAFETY: the caller's.
        unsafe { Self::borrow(device, raw, Some(owner)) }
    }

    /// # Safety
    /// As [`Context::borrow_raw`].
    unsafe fn borrow(
        device: Device,
        raw: CUcontext,
        owner: Option<Arc<dyn ForeignOwner>>,
    ) -> Result<Arc<Self>, ContextError> {
        if raw.is_null() {
            return Err(ContextError::NullHandle);
        }
        // Asked before anything is made in it.
        let link = Link::new(device, raw, None);
        let actual: CUdevice = link
            .with_current(|driver| {
                let mut actual = 0;
                // SAFETY: the out-pointer is valid for the call; the context is current.
                unsafe { call!(driver, cuCtxGetDevice(&mut actual)) }?;
                Ok(actual)
            })
            .on(|| format!("borrowed context {:#x} of {device}", raw.0))?;
        if actual != device.cu_device() {
            return Err(ContextError::WrongDevice { expected: device.to_string(), actual });
        }
        Ok(Self::wrap(device, raw, Owner::Borrowed(owner)))
    }

    fn wrap(device: Device, raw: CUcontext, owner: Owner) -> Arc<Self> {
        Arc::new(Self { device, owner, shared: Shared::join(device, raw) })
    }

    /// What all handles of this CUDA context share.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline]
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.shared.link
    }

    #[inline]
    pub(crate) fn tracker(&self) -> &Tracker {
        &self.shared.tracker
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.link.counters
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The device's ordinal.
    pub fn ordinal(&self) -> usize {
        self.device.ordinal()
    }

    /// The driver.
    #[inline]
    pub fn driver(&self) -> Driver {
        self.device.driver()
    }

    /// The driver's handle. It lives as long as this handle.
    pub fn cu_ctx(&self) -> CUcontext {
        self.link().raw
    }

    /// The driver's never-reused id of the CUDA context, where the driver has one (CUDA 12.0).
    pub fn cu_ctx_id(&self) -> Option<u64> {
        self.link().id
    }

    /// What the device can do; asked once and kept.
    ///
    /// # Errors
    /// The driver's.
    pub fn capabilities(&self) -> Result<&'static Capabilities, DeviceError> {
        self.device.capabilities()
    }

    /// Counts of all handles of this CUDA context: what is alive, what was kept, what failed in drops.
    pub fn stats(&self) -> ContextStats {
        self.counters().read()
    }

    /// Takes the errors that happened in drops and in the background, oldest first. At most 256 are kept.
    pub fn take_errors(&self) -> Vec<BackgroundError> {
        self.counters().take_errors()
    }

    /// How many contexts of this process could not be given back when their last handle went.
    pub fn contexts_kept() -> u64 {
        CONTEXTS_KEPT.load(Ordering::Relaxed)
    }

    /// Waits until everything queued on every stream of the context has finished, other libraries' work too.
    ///
    /// CUDA lets this call spoil a graph capture in progress anywhere in the context. It is refused beside a capture of this runtime; one of
    /// other code, or one that another thread begins during the call, ends. Waiting for one stream
    /// ([`Stream::synchronize`](crate::Stream::synchronize)) ends none.
    ///
    /// # Errors
    /// [`ContextError::Capturing`]; the driver's, also that of work which failed.
    pub fn synchronize_all(&self) -> Result<(), ContextError> {
        let captures = self.tracker().captures();
        if captures > 0 {
            return Err(ContextError::Capturing { context: self.to_string(), captures });
        }
        let mark = self.tracker().begin_synchronize_all();
        // SAFETY: no arguments; the context is current.
        let waited = self.with_current(|driver| unsafe { call!(driver, cuCtxSynchronize()) });
        if waited.is_err() && self.loss().is_some() {
            self.shared().leave_limbo();
        }
        waited.on(|| self.to_string())?;
        self.tracker().end_synchronize_all(mark);
        self.shared().leave_limbo();
        Ok(())
    }
}

impl PartialEq for Context {
    /// Same device and same CUDA context.
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device
            && self.cu_ctx() == other.cu_ctx()
            && self.cu_ctx_id() == other.cu_ctx_id()
    }
}

impl Eq for Context {}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.owner {
            Owner::Primary => "primary context",
            Owner::Created => "created context",
            Owner::Green(_) => "green context",
            Owner::Borrowed(_) => "borrowed context",
        };
        write!(f, "{kind} {:#x} of {}", self.cu_ctx().0, self.device)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device)
            .field("handle", &self.cu_ctx())
            .field("id", &self.cu_ctx_id())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
