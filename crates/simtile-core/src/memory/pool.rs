//! Where device memory comes from and goes to.
//!
//! With pools: stream-ordered allocation from the device's default pool, whose release threshold is raised once, so
//! that memory is not given back to the system at each synchronisation, and which may not hand memory out behind waits of its
//! own: nobody would know of them. Allocation and free never wait.
//!
//! Without: `cuMemAlloc`. Its free waits for all streams of the context and stops every launch meanwhile, so a dropped
//! block is *parked* once its last use has finished: reused for a request of the same size, and really
//! freed when an allocation fails, by [`Context::trim`], or with the context.

use crate::Context;
use crate::context::{Shared, add, relaxed, sub};
use crate::error::{CallError, ContextError, On};
use simtile_driver::sys::*;
use simtile_driver::{Driver, call};
use simtile_sync::atomic::Ordering;

/// Blocks are rounded up to this, as CUDA does, so that more of them can be reused.
const GRAIN: usize = 256;

#[derive(Clone, Copy, Default)]
pub(super) enum Source {
    #[default]
    Unknown,
    Pool(CUmemoryPool),
    Plain,
}

/// A dropped block of memory that is not from a pool, and that nothing uses.
pub(super) struct Parked {
    pub(super) address: CUdeviceptr,
    pub(super) bytes: usize,
}

pub(super) fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(GRAIN).filter(|&bytes| isize::try_from(bytes).is_ok())
}

impl Context {
    /// Memory that is not stream-ordered, usable at once.
    pub(super) fn allocate_plain(&self, bytes: usize) -> Result<CUdeviceptr, CallError> {
        if let Some(address) = self.unpark(bytes) {
            return Ok(address);
        }
        self.link().relaxed(|driver: Driver| {
            let mut address = 0;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuMemAlloc(&mut address, bytes)) }?;
            Ok(address)
        })
    }

    pub(super) fn park(&self, parked: Parked) {
        add(&self.counters().parked_bytes, parked.bytes as u64);
        self.shared().memory.parked.lock().push(parked);
    }

    pub(super) fn source(&self) -> Result<Source, CallError> {
        let source = *self.shared().memory.pool.lock();
        if !matches!(source, Source::Unknown) {
            return Ok(source);
        }
        let found = self.find_source()?;
        *self.shared().memory.pool.lock() = found;
        Ok(found)
    }

    /// A driver that says it has pools and then lacks an entry has none.
    pub(super) fn has_no_pools(&self) {
        *self.shared().memory.pool.lock() = Source::Plain;
    }

    fn find_source(&self) -> Result<Source, CallError> {
        let device = self.device();
        let supported = device.raw_attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
        if supported.map_err(|error| self.note(error))? <= 0 {
            return Ok(Source::Plain);
        }
        let found = self.with_current(|driver| {
            let mut pool = CUmemoryPool::NULL;
            let mut threshold = u64::MAX;
            let mut never = 0i32;
            // SAFETY: the out-pointer is valid for the call; the attributes take a u64 and an int.
            unsafe {
                call!(driver, cuDeviceGetDefaultMemPool(&mut pool, device.cu_device()))?;
                let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                let value = (&raw mut threshold).cast();
                call!(driver, cuMemPoolSetAttribute(pool, attribute, value))?;
                let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
                let value = (&raw mut never).cast();
                call!(driver, cuMemPoolSetAttribute(pool, attribute, value))?;
            }
            Ok(pool)
        });
        match found {
            Ok(pool) => Ok(Source::Pool(pool)),
            Err(CallError::Driver(error)) if error.is_missing_entry() => Ok(Source::Plain),
            Err(error) => Err(error),
        }
    }

    /// A parked block of this size.
    fn unpark(&self, bytes: usize) -> Option<CUdeviceptr> {
        let take = || {
            let mut parked = self.shared().memory.parked.lock();
            let place = parked.iter().position(|parked| parked.bytes == bytes)?;
            sub(&self.counters().parked_bytes, bytes as u64);
            Some(parked.swap_remove(place).address)
        };
        take().or_else(|| {
            self.shared().lanes.collect();
            take()
        })
    }

    /// The stream on which memory is freed that waited in the background. Nothing ever waits on it.
    pub(super) fn reclaim_stream(&self) -> Result<CUstream, CallError> {
        let mut reclaim = self.shared().memory.reclaim.lock();
        if let Some(stream) = *reclaim {
            return Ok(stream);
        }
        let stream = self.with_current(|driver| {
            let mut stream = CUstream::NULL;
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0)) }?;
            Ok(stream)
        })?;
        *reclaim = Some(stream);
        Ok(stream)
    }

    /// Gives back what is kept for reuse: memory of the device's default pool that nobody uses, parked blocks, pinned blocks.
    ///
    /// Waits for the device, and stops launches of other threads meanwhile: that is what the driver does.
    ///
    /// # Errors
    /// The driver's.
    pub fn trim(&self) -> Result<(), ContextError> {
        self.shared().lanes.collect();
        self.usable().on::<ContextError>(|| self.to_string())?;
        self.shared().free_pinned();
        match self.source().on(|| self.to_string())? {
            // SAFETY: the pool is the device's own and lives as long as the device.
            Source::Pool(pool) => self
                .with_current(|driver| unsafe { call!(driver, cuMemPoolTrimTo(pool, 0)) })
                .on(|| format!("{self}, trim")),
            _ => {
                self.shared().free_parked();
                Ok(())
            }
        }
    }
}

impl Shared {
    /// Frees all parked blocks. Waits for the device. Returns the bytes given back.
    pub(super) fn free_parked(&self) -> usize {
        let parked = core::mem::take(&mut *self.memory.parked.lock());
        let mut freed = 0;
        for Parked { address, bytes } in parked {
            sub(&self.link.counters.parked_bytes, bytes as u64);
            // SAFETY: the allocation has no owner and its uses have finished.
            let call =
                |driver: Driver| relaxed(driver, |driver| unsafe { call!(driver, cuMemFree(address)) });
            if self.link.finish(|| "freeing a parked block".into(), call) {
                freed += bytes;
            } else {
                add(&self.link.counters.failed_frees, 1);
                add(&self.link.counters.leaked_bytes, bytes as u64);
            }
        }
        freed
    }

    pub(super) fn end_parked(&self) {
        if self.link.counters.parked_bytes.load(Ordering::Relaxed) > 0 {
            // The context's work has finished, or it lives on with another owner; then this waits for its streams
            // once, which only devices without pools pay.
            self.free_parked();
        }
    }

    pub(super) fn end_reclaim_stream(&self) {
        let reclaim: Option<CUstream> = self.memory.reclaim.lock().take();
        if let Some(stream) = reclaim {
            // SAFETY: the stream is ours and nothing is queued on it after this.
            let call = |driver: Driver| unsafe { call!(driver, cuStreamDestroy(stream)) };
            if !self.link.finish(|| "destroying the reclaim stream".into(), call) {
                add(&self.link.counters.failed_destroys, 1);
            }
        }
    }
}
