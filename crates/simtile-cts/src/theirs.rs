//! Device memory of foreign code, for programs that share it with the runtime.

use simtile_core::{Context, DeviceAllocation};
use simtile_driver::sys::{CUcontext, CUdeviceptr};
use simtile_driver::{DriverError, call};
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Memory that somebody else allocated, and frees in its drop.
pub(crate) struct Theirs {
    context: Arc<Context>,
    address: CUdeviceptr,
    bytes: usize,
    /// Bytes that it could not free.
    lost: Arc<AtomicU64>,
}

/// Runs a call with the context current, as foreign code does.
pub(crate) fn current<T>(
    context: &Context,
    call: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    let driver = context.driver();
    // SAFETY: the context is alive.
    unsafe { call!(driver, cuCtxSetCurrent(context.cu_ctx())) }?;
    let result = call();
    // SAFETY: null means: no context.
    let _ = unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) };
    result
}

impl Theirs {
    pub(crate) fn new(
        context: &Arc<Context>,
        bytes: usize,
        lost: &Arc<AtomicU64>,
    ) -> Result<Self, DriverError> {
        let driver = context.driver();
        let address = current(context, || {
            let mut address = 0;
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuMemAlloc(&mut address, bytes)) }?;
            Ok(address)
        })?;
        Ok(Self { context: context.clone(), address, bytes, lost: lost.clone() })
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

// SAFETY: the memory is this value's own until the drop.
unsafe impl DeviceAllocation for Theirs {
    fn device_ptr(&self) -> CUdeviceptr {
        self.address
    }

    fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let (driver, address) = (self.context.driver(), self.address);
        // A context that the runtime knows to be lost frees nothing.
        let tried = || {
            if self.context.loss().is_some() {
                return false;
            }
            // SAFETY: nobody uses the memory any more.
            current(&self.context, || unsafe { call!(driver, cuMemFree(address)) }).is_ok()
        };
        if !tried() && !tried() {
            self.lost.fetch_add(self.bytes as u64, Ordering::Relaxed);
        }
    }
}
