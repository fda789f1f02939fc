//! The one place through which driver calls go.
//!
//! [`Context::with_current`] makes the context current for a call and puts back the one that was current before;
//! [`Context::with_handles`] is for calls that CUDA lets work on explicit handles whatever is current
//! (launch, record, stream-ordered allocation and free). Both refuse inside host functions, after the context
//! was lost and after the driver has shut down, and both take note of such failures.

use super::stats::add;
use super::{Context, Health};
use crate::error::CallError;
use crate::stream::in_host_function;
use simtile_driver::sys::{CUcontext, CUresult};
use simtile_driver::{Driver, DriverError, Severity, call};
use simtile_sync::atomic::Ordering;

/// While it lives the context is current on this thread; then the one before is.
struct Scope<'a> {
    context: &'a Context,
    /// What to put back: another context that was current before.
    previous: Option<CUcontext>,
}

impl<'a> Scope<'a> {
    fn enter(context: &'a Context) -> Result<Self, DriverError> {
        let driver = context.driver();
        let mut current = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuCtxGetCurrent(&mut current)) }?;
        if current == context.raw {
            return Ok(Self { context, previous: None });
        }
        // SAFETY: the context is alive: we own it, or whoever lent it vouched for that.
        unsafe { call!(driver, cuCtxSetCurrent(context.raw)) }?;
        Ok(Self { context, previous: (!current.is_null()).then_some(current) })
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let Some(previous) = self.previous else { return };
        let driver = self.context.driver();
        // SAFETY: setting a handle that was current a moment ago. If its owner has destroyed it meanwhile,
        // the driver says so.
        let Err(error) = (unsafe { call!(driver, cuCtxSetCurrent(previous)) }) else { return };
        match error.code() {
            // What was current is dead. No context is then the honest answer, and nobody's failure.
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED | CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                // SAFETY: null means: no context.
                let _ = unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) };
            }
            CUresult::CUDA_ERROR_DEINITIALIZED => self.context.health.set_gone(),
            _ => {
                add(&self.context.counters.failed_restores, 1);
                self.context.counters.push_error("putting back the current context".into(), error);
            }
        }
    }
}

impl Context {
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
        if error.severity() == Severity::Context {
            self.health.set_lost(error);
        }
        CallError::Driver(error)
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
            Err(CallError::Driver(error)) => {
                self.counters.push_error(during(), error);
                false
            }
            // A lost context was reported when it was lost; a driver that is gone took everything with it.
            Err(_) => false,
        }
    }
}

impl Health {
    #[inline]
    pub(super) fn check(&self) -> Result<(), CallError> {
        if self.healthy.load(Ordering::Relaxed) { Ok(()) } else { self.explain() }
    }

    #[cold]
    fn explain(&self) -> Result<(), CallError> {
        match (self.lost.get(), self.gone.load(Ordering::Relaxed)) {
            (_, true) => Err(CallError::Deinitialized),
            (Some(error), false) => Err(CallError::Lost(*error)),
            (None, false) => Ok(()),
        }
    }

    fn set_lost(&self, error: DriverError) {
        // The first failure is the one that counts.
        let _ = self.lost.set(error);
        self.healthy.store(false, Ordering::Relaxed);
    }

    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.healthy.store(false, Ordering::Relaxed);
    }
}
