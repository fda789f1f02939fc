//! Where device memory comes from and goes to.
//!
//! With pools: stream-ordered allocation from a pool of the context's own, beside the device's default pool, which belongs to
//! everybody in the process. Its release threshold is as high as can be, so that memory is not given back to the system at each
//! synchronisation, and it may not hand memory out behind waits of its own: nobody would know of them.
//! Allocation and free never wait.
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

/// Blocks that are kept for reuse are rounded up to this, as CUDA does, so that more of them can be.
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
        // Made with nothing locked: another thread may be as far at the same time, and then one of both pools goes.
        let found = self.find_source()?;
        let mut known = self.shared().memory.pool.lock();
        if matches!(*known, Source::Unknown) {
            *known = found;
            return Ok(found);
        }
        let known = *known;
        if let Source::Pool(pool) = found {
            self.shared().end_pool(pool);
        }
        Ok(known)
    }

    /// The context's own pool, made if need be; `None` where there are none.
    pub(crate) fn own_pool(&self) -> Result<Option<CUmemoryPool>, CallError> {
        Ok(match self.source()? {
            Source::Pool(pool) => Some(pool),
            _ => None,
        })
    }

    /// A driver that says it has pools and then lacks an entry has none.
    pub(super) fn has_no_pools(&self) {
        *self.shared().memory.pool.lock() = Source::Plain;
    }

    fn find_source(&self) -> Result<Source, CallError> {
        let pool = self.make_pool(u64::MAX)?;
        add(&self.counters().own_handles, u64::from(pool.is_some()));
        Ok(pool.map_or(Source::Plain, Source::Pool))
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
        add(&self.counters().own_handles, 1);
        Ok(stream)
    }

    /// Gives back what is kept for reuse: memory of the pools made here that nobody uses, parked blocks, pinned and managed blocks, events.
    ///
    /// Waits for the device, and stops launches of other threads meanwhile: that is what the driver does.
    ///
    /// # Errors
    /// The driver's.
    pub fn trim(&self) -> Result<(), ContextError> {
        self.shared().lanes.collect();
        self.usable().on::<ContextError>(|| self.to_string())?;
        self.shared().free_pinned();
        self.shared().free_managed();
        self.shared().free_parked();
        self.link().destroy_made(&self.tracker().take_surplus_events());
        self.trim_pools().on(|| format!("{self}, trim"))
    }

    /// Gives back to the system what the pools of this context keep for reuse. Never waits.
    pub(super) fn trim_pools(&self) -> Result<(), CallError> {
        let own = *self.shared().memory.pool.lock();
        if let Source::Pool(pool) = own {
            // SAFETY: the pool is the context's own and ends with it.
            self.link().relaxed(|driver| unsafe { call!(driver, cuMemPoolTrimTo(pool, 0)) })?;
        }
        let pools: Vec<_> = {
            let mut pools = self.shared().memory.pools.lock();
            pools.retain(|pool| pool.strong_count() > 0);
            pools.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        // The last handle of a pool may be dropped here: with nothing locked.
        pools.iter().try_for_each(|pool| pool.trim_now(0))
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

    /// Ends a pool of our own. What is still being freed keeps it alive in the driver.
    fn end_pool(&self, pool: CUmemoryPool) {
        // SAFETY: the pool is ours, and nothing is allocated from it after this.
        let call =
            |driver: Driver| relaxed(driver, |driver| unsafe { call!(driver, cuMemPoolDestroy(pool)) });
        sub(&self.link.counters.own_handles, 1);
        self.link.destroy(|| "destroying the context's pool".into(), call);
    }

    pub(super) fn end_own_pool(&self) {
        let source = core::mem::take(&mut *self.memory.pool.lock());
        if let Source::Pool(pool) = source {
            self.end_pool(pool);
        }
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
            sub(&self.link.counters.own_handles, 1);
            self.link.destroy(|| "destroying the reclaim stream".into(), call);
        }
    }
}
