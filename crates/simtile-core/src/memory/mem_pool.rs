//! Pools that users make: memory of one device with a limit, figures and a life of their own.
//!
//! A pool counts its *live* bytes itself: what handles own, and what was dropped and still waits for its last use. The limit is
//! compared with them alone; memory that the driver keeps for reuse is nobody's and does not count. Buffers hold
//! their pool, so it ends after the last of them.
//!
//! As in the context's own pool, reuse behind waits of the driver's own is switched off: nobody would know of them.

use super::{Allocation, DeviceBuffer, Owner};
use crate::context::{Lane, Work, add, relaxed, sub};
use crate::error::{CallError, ContextError, MemoryError, On, OnStream};
use crate::label::Label;
use crate::stream::drops_go_elsewhere;
use crate::{Context, Device, Stream};
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{Arc, Mutex};
use simtile_types::DeviceCopy;

/// What a pool holds, bytes. The driver counts reserved memory in large pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Handed out by the driver.
    pub used: u64,
    /// The most that was, since the pool was made or [`MemPool::reset_high_marks`].
    pub used_high: u64,
    /// Taken from the device: handed out, or kept for reuse.
    pub reserved: u64,
    /// The most that was.
    pub reserved_high: u64,
    /// What handles own, and what was dropped and waits for its last use. The limit is about this.
    pub live: u64,
    /// The most that was.
    pub live_high: u64,
}

/// Live bytes of a pool without one in the driver, or beside it.
#[derive(Debug, Default)]
struct Live {
    now: AtomicU64,
    high: AtomicU64,
}

/// A pool of device memory. Shared as `Arc<MemPool>`; buffers made from it hold it.
///
/// Where the driver has no pools, memory comes from the context as always, and the limit is kept all the same.
pub struct MemPool {
    /// `None`: the driver has no pools.
    raw: Option<CUmemoryPool>,
    context: Arc<Context>,
    limit: u64,
    live: Live,
    label: Label,
    id: u64,
    /// Devices beside its own whose kernels may use the memory.
    pub(crate) granted: Mutex<Vec<Device>>,
}

/// What a pool is to be like.
#[derive(Clone, Debug)]
pub struct MemPoolBuilder {
    context: Arc<Context>,
    limit: u64,
    threshold: u64,
    label: Option<String>,
}

impl Context {
    /// A pool of its own, without a limit, that keeps all memory for reuse.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_mem_pool(self: &Arc<Self>) -> Result<Arc<MemPool>, ContextError> {
        MemPool::builder(self).build()
    }

    /// A driver's pool in this context's device: its memory does not go back to the system before it exceeds
    /// `threshold` bytes. `None`: the driver has no pools.
    pub(super) fn make_pool(&self, threshold: u64) -> Result<Option<CUmemoryPool>, CallError> {
        let device = self.device();
        let supported = device.raw_attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
        if supported.map_err(|error| self.note(error))? <= 0 {
            return Ok(None);
        }
        let made = self.link().relaxed(|driver| {
            let props = CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
                location: location(device),
                win32SecurityAttributes: core::ptr::null_mut(),
                // Kept by ourselves: drivers before CUDA 12.2 know no limit, and theirs counts what nobody uses.
                maxSize: 0,
                usage: 0,
                reserved: [0; 54],
            };
            let mut pool = CUmemoryPool::NULL;
            // SAFETY: the out-pointer and the properties are valid for the call.
            unsafe { call!(driver, cuMemPoolCreate(&mut pool, &props)) }?;
            Ok(pool)
        });
        let made = made.and_then(|pool| {
            let set = self.link().relaxed(|driver| set_up(driver, pool, threshold));
            if set.is_err() {
                // SAFETY: the pool is ours and nothing came from it.
                let call = |driver: Driver| unsafe { call!(driver, cuMemPoolDestroy(pool)) };
                self.link().destroy(|| "a pool that could not be set up".into(), call);
            }
            set.map(|()| pool)
        });
        match made {
            Ok(pool) => Ok(Some(pool)),
            Err(CallError::Driver(error))
                if error.is_missing_entry() || error.code() == CUresult::CUDA_ERROR_NOT_SUPPORTED =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A device as a place of memory.
pub(crate) fn location(device: Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.cu_device() }
}

fn set_up(driver: Driver, pool: CUmemoryPool, mut threshold: u64) -> Result<(), DriverError> {
    let mut never = 0i32;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute takes a u64.
    unsafe { call!(driver, cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast())) }?;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    // SAFETY: the attribute takes an int.
    unsafe { call!(driver, cuMemPoolSetAttribute(pool, attribute, (&raw mut never).cast())) }
}

impl MemPoolBuilder {
    /// Most live bytes: an allocation beyond it waits for memory that comes back ([`Context::oom_wait`]), then fails with
    /// [`MemoryError::PoolLimit`].
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// How many bytes the driver keeps for reuse when it is synchronised with; what is beyond goes back to the system.
    /// Without a call: all of them.
    #[must_use]
    pub fn release_threshold(mut self, bytes: u64) -> Self {
        self.threshold = bytes;
        self
    }

    /// A name for errors.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// The driver's.
    pub fn build(self) -> Result<Arc<MemPool>, ContextError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Self { context, limit, threshold, label } = self;
        let raw = context.make_pool(threshold).on(|| format!("new pool in {context}"))?;
        add(&context.counters().pools, 1);
        let pool = Arc::new(MemPool {
            raw,
            limit,
            live: Live::default(),
            label: Label::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            granted: Mutex::default(),
            context,
        });
        if let Some(label) = label {
            pool.set_label(&label);
        }
        pool.context.shared().memory.pools.lock().push(Arc::downgrade(&pool));
        Ok(pool)
    }
}

impl MemPool {
    /// A pool to be made in a context.
    pub fn builder(context: &Arc<Context>) -> MemPoolBuilder {
        MemPoolBuilder { context: context.clone(), limit: u64::MAX, threshold: u64::MAX, label: None }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The driver's handle; `None` where the driver has no pools. It lives as long as this pool.
    pub fn cu_pool(&self) -> Option<CUmemoryPool> {
        self.raw
    }

    /// Most live bytes; `u64::MAX` if there is no limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Names the pool in errors.
    pub fn set_label(&self, label: &str) {
        self.label.set(label);
    }

    /// A buffer of zeros (all bytes 0), queued on `stream`.
    ///
    /// # Errors
    /// [`MemoryError::PoolLimit`], [`MemoryError::OtherContext`], else as [`DeviceBuffer::zeroed`].
    pub fn zeroed<T: DeviceCopy>(
        self: &Arc<Self>,
        stream: &Arc<Stream>,
        len: usize,
    ) -> Result<DeviceBuffer<T>, MemoryError> {
        DeviceBuffer::zeroed_from(stream, Some(self), len)
    }

    /// A buffer with the content of `source`, queued on `stream`. `source` is not touched after the call.
    ///
    /// # Errors
    /// As [`MemPool::zeroed`].
    pub fn from_slice<T: DeviceCopy>(
        self: &Arc<Self>,
        stream: &Arc<Stream>,
        source: &[T],
    ) -> Result<DeviceBuffer<T>, MemoryError> {
        DeviceBuffer::copied_from(stream, Some(self), source)
    }

    /// A buffer whose content is undefined.
    ///
    /// # Errors
    /// As [`MemPool::zeroed`].
    ///
    /// # Safety
    /// As [`DeviceBuffer::uninit`].
    pub unsafe fn uninit<T: DeviceCopy>(
        self: &Arc<Self>,
        stream: &Arc<Stream>,
        len: usize,
    ) -> Result<DeviceBuffer<T>, MemoryError> {
        DeviceBuffer::undefined(stream, Some(self), len)
    }

    /// What the pool holds.
    ///
    /// # Errors
    /// The driver's.
    pub fn stats(&self) -> Result<PoolStats, ContextError> {
        use CUmemPool_attribute as A;
        let live = self.live.now.load(Ordering::Relaxed);
        let live_high = self.live.high.load(Ordering::Relaxed);
        let mut stats = PoolStats { live, live_high, ..PoolStats::default() };
        let Some(pool) = self.raw else {
            (stats.used, stats.used_high, stats.reserved, stats.reserved_high) =
                (live, live_high, live, live_high);
            return Ok(stats);
        };
        self.context
            .with_current(|driver| {
                let get = |attribute| {
                    let mut value = 0u64;
                    // SAFETY: these attributes are a u64; the pool is alive.
                    unsafe {
                        call!(driver, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()))
                    }?;
                    Ok::<_, DriverError>(value)
                };
                stats.used = get(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
                stats.used_high = get(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
                stats.reserved = get(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
                stats.reserved_high = get(A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
                Ok(())
            })
            .on(|| self.to_string())?;
        Ok(stats)
    }

    /// Sets the high marks back to what is now.
    ///
    /// # Errors
    /// The driver's.
    pub fn reset_high_marks(&self) -> Result<(), ContextError> {
        use CUmemPool_attribute as A;
        self.live.high.store(self.live.now.load(Ordering::Relaxed), Ordering::Relaxed);
        for attribute in [A::CU_MEMPOOL_ATTR_USED_MEM_HIGH, A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
            self.set(attribute, 0)?;
        }
        Ok(())
    }

    /// Sets how many bytes the driver keeps for reuse.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_release_threshold(&self, bytes: u64) -> Result<(), ContextError> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    fn set(&self, attribute: CUmemPool_attribute, mut value: u64) -> Result<(), ContextError> {
        let Some(pool) = self.raw else { return Ok(()) };
        self.context
            .with_current(|driver| {
                // SAFETY: these attributes are a u64; the pool is alive.
                unsafe { call!(driver, cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())) }
            })
            .on(|| self.to_string())
    }

    /// Gives memory that nobody uses back to the system, but for `keep` bytes. Never touches memory whose last use is not
    /// known to have finished, and never waits.
    ///
    /// # Errors
    /// The driver's.
    pub fn trim(&self, keep: usize) -> Result<(), ContextError> {
        self.context.shared().lanes.collect();
        self.trim_now(keep).on(|| self.to_string())
    }

    pub(super) fn trim_now(&self, keep: usize) -> Result<(), CallError> {
        let Some(pool) = self.raw else { return Ok(()) };
        // SAFETY: the pool is alive.
        self.context.link().relaxed(|driver| unsafe { call!(driver, cuMemPoolTrimTo(pool, keep)) })
    }

    /// Ends the pool, if no buffer of it is left.
    ///
    /// Dropping it does as much, and puts it off until the last buffer has gone.
    ///
    /// # Errors
    /// [`MemoryError::PoolInUse`] with what is left. The pool goes on.
    pub fn close_now(self: Arc<Self>) -> Result<(), MemoryError> {
        self.context.shared().lanes.collect();
        let live = self.live.now.load(Ordering::Relaxed);
        // Whoever else holds the pool could go on to allocate.
        let handles = Arc::strong_count(&self);
        if live > 0 || handles > 1 {
            return Err(MemoryError::PoolInUse { pool: self.to_string(), bytes: live, handles: handles - 1 });
        }
        drop(self);
        Ok(())
    }

    /// Takes `bytes` of the limit; how many are live if there is no room.
    pub(super) fn take(&self, bytes: u64) -> Result<(), u64> {
        let mut now = self.live.now.load(Ordering::Relaxed);
        loop {
            let Some(then) = now.checked_add(bytes).filter(|&then| then <= self.limit) else {
                return Err(now);
            };
            match self.live.now.compare_exchange_weak(now, then, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.live.high.fetch_max(then, Ordering::Relaxed);
                    return Ok(());
                }
                Err(other) => now = other,
            }
        }
    }

    pub(super) fn give(&self, bytes: u64) {
        sub(&self.live.now, bytes);
    }
}

/// Bytes of a pool's limit that an allocation holds; given back with the memory.
pub(crate) struct PoolShare {
    /// Taken when it is given back.
    pool: Option<Arc<MemPool>>,
    bytes: u64,
}

impl PoolShare {
    /// Takes the share, waiting for memory that comes back.
    pub(super) fn take(pool: &Arc<MemPool>, bytes: usize) -> Result<Self, MemoryError> {
        let wanted = bytes as u64;
        let context = &pool.context;
        let mut failures = 0;
        loop {
            match pool.take(wanted) {
                Ok(()) => return Ok(Self { pool: Some(pool.clone()), bytes: wanted }),
                Err(live) => {
                    failures += 1;
                    let again = match failures {
                        1 => {
                            context.shared().lanes.collect();
                            true
                        }
                        // More than the whole pool: nothing that comes back would do.
                        2 if wanted <= pool.limit => context.wait_for_room(),
                        _ => false,
                    };
                    if !again {
                        let (pool, limit) = (pool.to_string(), pool.limit);
                        return Err(MemoryError::PoolLimit { pool, bytes: wanted, live, limit });
                    }
                }
            }
        }
    }

    pub(super) fn pool(&self) -> Option<&Arc<MemPool>> {
        self.pool.as_ref()
    }

    /// Gives it back. The pool comes out if it ends with that.
    pub(super) fn release(mut self) -> Option<MemPool> {
        let pool = self.pool.take()?;
        pool.give(self.bytes);
        Arc::into_inner(pool)
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give(self.bytes);
        }
    }
}

impl Allocation {
    /// As [`Allocation::allocate`], from a pool.
    pub(crate) fn allocate_from(
        stream: &Arc<Stream>,
        pool: Option<&Arc<MemPool>>,
        bytes: usize,
    ) -> Result<Owner, MemoryError> {
        let Some(pool) = pool else { return Self::allocate(stream, bytes) };
        stream.same_context(&pool.context, || pool.to_string()).map_err(MemoryError::from_stream)?;
        Self::allocate_in(stream, bytes, Some(pool))
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        if crate::sys::is_forked() {
            return;
        }
        sub(&self.context.counters().pools, 1);
        let Some(pool) = self.raw.take() else { return };
        let context = self.context.clone();
        let end = move || {
            // SAFETY: the pool is ours, and no buffer of it is left; what is still being freed keeps it alive in the driver.
            let call =
                |driver: Driver| relaxed(driver, |driver| unsafe { call!(driver, cuMemPoolDestroy(pool)) });
            context.link().destroy(|| "destroying a pool".into(), call);
        };
        if drops_go_elsewhere() {
            self.context.shared().lanes.push(Lane::Memory, Work::Job(Box::new(end)));
        } else {
            end();
        }
    }
}

impl fmt::Display for MemPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label.describe("pool", self.id))
    }
}

impl fmt::Debug for MemPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemPool")
            .field("name", &format_args!("{self}"))
            .field("context", &format_args!("{}", self.context))
            .field("live", &self.live.now.load(Ordering::Relaxed))
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
