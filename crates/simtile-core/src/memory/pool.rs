//! Where device memory comes from and goes to.
//!
//! With pools: stream-ordered allocation from the device's default pool, whose release threshold is raised once, so
//! that memory is not given back to the system at each synchronisation. Allocation and free never wait.
//!
//! Without: `cuMemAlloc`. Its free waits for all streams of the context and stops every launch meanwhile, so a dropped
//! block is *parked* instead: reused for a request of the same size once its last use has finished, and really
//! freed when an allocation fails, by [`Context::trim`], or with the context.

use crate::Context;
use crate::context::{add, query, sub};
use crate::error::{CallError, ContextError, On};
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, Entry, call};
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

/// A dropped block of memory that is not from a pool.
pub(super) struct Parked {
    address: CUdeviceptr,
    bytes: usize,
    /// Recorded behind its last use.
    last_use: CUevent,
}

pub(super) fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(GRAIN).filter(|&bytes| isize::try_from(bytes).is_ok())
}

impl Context {
    /// Allocates `bytes` (not 0), usable on `stream` from now on.
    pub(super) fn allocate(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr, CallError> {
        if let Source::Pool(pool) = self.source()? {
            let allocated = self.with_current(|driver| {
                let mut address = 0;
                // SAFETY: the out-pointer is valid for the call; pool and stream are alive.
                unsafe { call!(driver, cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream)) }?;
                Ok(address)
            });
            match allocated {
                Err(CallError::Driver(error)) if error.is_missing_entry() => {
                    *self.memory.pool.lock() = Source::Plain;
                }
                other => return other,
            }
        }
        if let Some(address) = self.unpark(bytes) {
            return Ok(address);
        }
        let plain = |driver: Driver| {
            let mut address = 0;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuMemAlloc(&mut address, bytes)) }?;
            Ok(address)
        };
        match self.with_current(plain) {
            Err(CallError::Driver(error))
                if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY && self.free_parked() > 0 =>
            {
                self.with_current(plain)
            }
            other => other,
        }
    }

    /// Frees an allocation behind everything queued on `stream`. Never waits.
    pub(super) fn free(&self, address: CUdeviceptr, bytes: usize, stream: CUstream) -> Result<(), CallError> {
        if let Source::Pool(_) = self.source()? {
            // SAFETY: the allocation came from the pool and its owner is gone; all its uses are queued before.
            return self.with_handles(|driver| unsafe { call!(driver, cuMemFreeAsync(address, stream)) });
        }
        let last_use = self.take_event()?;
        // SAFETY: event and stream are alive; the context is current.
        let recorded = self.with_current(|driver| unsafe { call!(driver, cuEventRecord(last_use, stream)) });
        if let Err(error) = recorded {
            self.give_event(last_use);
            return Err(error);
        }
        self.memory.parked.lock().push(Parked { address, bytes, last_use });
        add(&self.counters.parked_bytes, bytes as u64);
        Ok(())
    }

    fn source(&self) -> Result<Source, CallError> {
        let mut source = self.memory.pool.lock();
        if let Source::Unknown = *source {
            *source = self.find_source()?;
        }
        Ok(*source)
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
            // SAFETY: the out-pointer is valid for the call; the attribute takes a u64.
            unsafe {
                call!(driver, cuDeviceGetDefaultMemPool(&mut pool, device.cu_device()))?;
                let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                let value = (&raw mut threshold).cast();
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

    /// A parked block of this size whose last use has finished.
    fn unpark(&self, bytes: usize) -> Option<CUdeviceptr> {
        let candidates: Vec<Parked> =
            self.memory.parked.lock().extract_if(.., |parked| parked.bytes == bytes).collect();
        let mut found = None;
        for parked in candidates {
            // SAFETY: the event is alive; its context is current.
            let finished = found.is_none()
                && matches!(self.with_current(|driver| unsafe { query(driver, parked.last_use) }), Ok(true));
            if finished {
                self.give_event(parked.last_use);
                sub(&self.counters.parked_bytes, bytes as u64);
                found = Some(parked.address);
            } else {
                self.memory.parked.lock().push(parked);
            }
        }
        found
    }

    /// Frees all parked blocks. Waits for the device. Returns the bytes given back.
    fn free_parked(&self) -> usize {
        let parked = core::mem::take(&mut *self.memory.parked.lock());
        let mut freed = 0;
        for Parked { address, bytes, last_use } in parked {
            self.give_event(last_use);
            sub(&self.counters.parked_bytes, bytes as u64);
            // SAFETY: the allocation has no owner; the driver waits for its uses.
            let call = |driver: Driver| unsafe { call!(driver, cuMemFree(address)) };
            if self.finish(|| "freeing a parked block".into(), call) {
                freed += bytes;
            } else {
                self.count_leak(bytes);
            }
        }
        freed
    }

    /// Gives back what is kept for reuse: memory of the device's default pool that nobody uses, and parked blocks.
    ///
    /// Waits for the device, and stops launches of other threads meanwhile: that is what the driver does.
    ///
    /// # Errors
    /// The driver's.
    pub fn trim(&self) -> Result<(), ContextError> {
        match self.source().on(|| self.to_string())? {
            // SAFETY: the pool is the device's own and lives as long as the device.
            Source::Pool(pool) => self
                .with_current(|driver| unsafe { call!(driver, cuMemPoolTrimTo(pool, 0)) })
                .on(|| format!("{self}, trim")),
            _ => {
                self.free_parked();
                Ok(())
            }
        }
    }

    /// Memory whose free failed is kept, counted and never reused.
    pub(super) fn count_leak(&self, bytes: usize) {
        add(&self.counters.failed_frees, 1);
        add(&self.counters.leaked_bytes, bytes as u64);
    }

    /// A failed free in a drop: counted always, kept as an error where nobody has been told yet.
    pub(super) fn failed_free(&self, name: &str, bytes: usize, error: CallError) {
        match error {
            // The driver took everything with it: nothing is lost that anyone could use.
            CallError::Deinitialized => {}
            CallError::Driver(error) => {
                self.count_leak(bytes);
                self.counters.push_error(format!("drop of {name}"), error);
            }
            CallError::Lost(_) => self.count_leak(bytes),
            CallError::InHostFunction => {
                self.count_leak(bytes);
                let error = DriverError::new(Entry::cuMemFreeAsync, CUresult::CUDA_ERROR_NOT_PERMITTED);
                self.counters.push_error(format!("drop of {name} inside a host function"), error);
            }
        }
    }

    pub(super) fn end_parked(&self) {
        if self.counters.parked_bytes.load(Ordering::Relaxed) > 0 {
            // The context's work has finished, or it lives on with another owner; then this waits for its streams
            // once, which only devices without pools pay.
            self.free_parked();
        }
    }
}
