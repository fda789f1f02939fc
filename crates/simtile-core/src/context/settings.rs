//! Limits, waiting policy, memory and stream priorities of a context.

use super::Context;
use crate::error::{ContextError, On};
use simtile_driver::call;
use simtile_driver::sys::*;
use simtile_sync::{Arc, Global, Mutex};
use std::collections::BTreeMap;

/// A limit of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContextLimit {
    /// Stack of each device thread, bytes. The driver raises it by itself for kernels that need more.
    StackSize,
    /// Buffer of device `printf`, bytes. Fixed once a kernel used it.
    PrintfFifoSize,
    /// Heap of device `malloc`, bytes. Fixed once a kernel used it.
    MallocHeapSize,
    /// Nesting depth of device-side synchronisation.
    DevRuntimeSyncDepth,
    /// Pending launches of the device runtime.
    DevRuntimePendingLaunchCount,
    /// Granularity of fetches into L2, bytes.
    MaxL2FetchGranularity,
    /// L2 set aside for persisting accesses, bytes.
    PersistingL2CacheSize,
}

impl ContextLimit {
    fn raw(self) -> CUlimit {
        match self {
            Self::StackSize => CUlimit::CU_LIMIT_STACK_SIZE,
            Self::PrintfFifoSize => CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE,
            Self::MallocHeapSize => CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE,
            Self::DevRuntimeSyncDepth => CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH,
            Self::DevRuntimePendingLaunchCount => CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT,
            Self::MaxL2FetchGranularity => CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY,
            Self::PersistingL2CacheSize => CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE,
        }
    }
}

/// How a thread waits for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncPolicy {
    /// The driver chooses.
    Auto,
    /// Spin: least latency, one core.
    Spin,
    /// Spin, yielding to other threads.
    Yield,
    /// Sleep.
    BlockingSync,
}

/// Memory of a device as a context sees it, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not allocated by anyone.
    pub free: usize,
    /// In all.
    pub total: usize,
}

/// The priorities that streams of a context can have. Smaller numbers are more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPriorityRange {
    /// Least urgent: the largest number.
    pub least: i32,
    /// Most urgent: the smallest number.
    pub greatest: i32,
}

impl StreamPriorityRange {
    /// Whether there is more than one priority.
    pub fn is_supported(self) -> bool {
        self.least != self.greatest
    }

    /// Whether a priority is in the range.
    pub fn contains(self, priority: i32) -> bool {
        (self.greatest..=self.least).contains(&priority)
    }

    /// The nearest priority in the range.
    pub fn clamp(self, priority: i32) -> i32 {
        priority.max(self.greatest).min(self.least)
    }
}

/// Keeps read-modify-write of context flags whole. One lock a world: driver calls are made under it, and no
/// exploration may wait for another.
fn whole_flags() -> Arc<Mutex<()>> {
    static FLAGS: Global<BTreeMap<usize, Arc<Mutex<()>>>> = Global::new(BTreeMap::new());
    let (mut flags, world) = (FLAGS.lock(), simtile_sync::hook::world());
    flags.retain(|&of, lock| of == world || Arc::strong_count(lock) > 1);
    flags.entry(world).or_default().clone()
}

impl Context {
    /// A limit's value.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_UNSUPPORTED_LIMIT` if the device lacks it.
    pub fn limit(&self, limit: ContextLimit) -> Result<usize, ContextError> {
        self.with_current(|driver| {
            let mut value = 0;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuCtxGetLimit(&mut value, limit.raw())) }?;
            Ok(value)
        })
        .on(|| format!("{self}, limit {limit:?}"))
    }

    /// Asks for a value of a limit. Returns the value in force afterwards, which the driver may have rounded.
    ///
    /// Stalls: the driver waits for all pending work of the context, and launches of other threads block meanwhile.
    ///
    /// # Errors
    /// The driver's: unsupported limits, values out of range, limits that a kernel has already used.
    pub fn set_limit(&self, limit: ContextLimit, value: usize) -> Result<usize, ContextError> {
        let limited = self.link().relaxed(|driver| {
            let mut in_force = 0;
            // SAFETY: as above.
            unsafe {
                call!(driver, cuCtxSetLimit(limit.raw(), value))?;
                call!(driver, cuCtxGetLimit(&mut in_force, limit.raw()))?;
            }
            Ok(in_force)
        });
        limited.on(|| format!("{self}, limit {limit:?} = {value}"))
    }

    /// Stack of each device thread, bytes.
    ///
    /// # Errors
    /// As [`Context::limit`].
    pub fn stack_size(&self) -> Result<usize, ContextError> {
        self.limit(ContextLimit::StackSize)
    }

    /// Asks for a stack size. Stalls as [`Context::set_limit`] does.
    ///
    /// # Errors
    /// As [`Context::set_limit`].
    pub fn set_stack_size(&self, bytes: usize) -> Result<usize, ContextError> {
        self.set_limit(ContextLimit::StackSize, bytes)
    }

    /// How threads wait for this context's device. `None`: a combination of flags without a name.
    ///
    /// # Errors
    /// The driver's.
    pub fn sync_policy(&self) -> Result<Option<SyncPolicy>, ContextError> {
        let flags = self.flags().on(|| self.to_string())?;
        Ok(match CUctx_flags(flags & CUctx_flags::CU_CTX_SCHED_MASK.0) {
            CUctx_flags::CU_CTX_SCHED_AUTO => Some(SyncPolicy::Auto),
            CUctx_flags::CU_CTX_SCHED_SPIN => Some(SyncPolicy::Spin),
            CUctx_flags::CU_CTX_SCHED_YIELD => Some(SyncPolicy::Yield),
            CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC => Some(SyncPolicy::BlockingSync),
            _ => None,
        })
    }

    /// Sets how threads wait. Other flags of the context stay.
    ///
    /// # Errors
    /// The driver's. Needs CUDA 12.1.
    pub fn set_sync_policy(&self, policy: SyncPolicy) -> Result<(), ContextError> {
        let bits = match policy {
            SyncPolicy::Auto => CUctx_flags::CU_CTX_SCHED_AUTO,
            SyncPolicy::Spin => CUctx_flags::CU_CTX_SCHED_SPIN,
            SyncPolicy::Yield => CUctx_flags::CU_CTX_SCHED_YIELD,
            SyncPolicy::BlockingSync => CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC,
        };
        let whole = whole_flags();
        let _whole = whole.lock();
        let flags = self.flags().on(|| self.to_string())? & !CUctx_flags::CU_CTX_SCHED_MASK.0 | bits.0;
        // SAFETY: flags that the context had, with other scheduling bits.
        self.with_current(|driver| unsafe { call!(driver, cuCtxSetFlags(flags)) })
            .on(|| format!("{self}, policy {policy:?}"))
    }

    fn flags(&self) -> Result<u32, crate::error::CallError> {
        self.with_current(|driver| {
            let mut flags = 0;
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuCtxGetFlags(&mut flags)) }?;
            Ok(flags)
        })
    }

    /// Free and total device memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_info(&self) -> Result<MemoryInfo, ContextError> {
        self.raw_memory_info().on(|| self.to_string())
    }

    pub(crate) fn raw_memory_info(&self) -> Result<MemoryInfo, crate::error::CallError> {
        self.with_current(|driver| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: the out-pointers are valid for the call; the context is current.
            unsafe { call!(driver, cuMemGetInfo(&mut free, &mut total)) }?;
            Ok(MemoryInfo { free, total })
        })
    }

    /// The priorities that streams can have.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream_priority_range(&self) -> Result<StreamPriorityRange, ContextError> {
        self.with_current(|driver| {
            let (mut least, mut greatest) = (0, 0);
            // SAFETY: the out-pointers are valid for the call; the context is current.
            unsafe { call!(driver, cuCtxGetStreamPriorityRange(&mut least, &mut greatest)) }?;
            Ok(StreamPriorityRange { least, greatest })
        })
        .on(|| self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_priorities_are_more_urgent() {
        let range = StreamPriorityRange { least: 0, greatest: -5 };
        assert!(range.is_supported());
        assert!(range.contains(-5) && range.contains(0) && !range.contains(1));
        assert_eq!((range.clamp(7), range.clamp(-9), range.clamp(-2)), (0, -5, -2));
        assert!(!StreamPriorityRange { least: 0, greatest: 0 }.is_supported());
    }
}
