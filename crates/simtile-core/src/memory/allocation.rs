//! One allocation: address, size, identity, and the region that knows who uses it.

use super::foreign::Lent;
use super::mem_pool::{MemPool, PoolShare};
use super::owner::Owner;
use super::pool::{Source, rounded};
use super::retired::Memory;
use super::vmm::Mapped;
use crate::context::{Lane, Work, add, sub};
use crate::error::{Family, MemoryError};
use crate::label::Label;
use crate::stream::{Submit, drops_go_elsewhere};
use crate::{Context, Stream};
use simtile_driver::sys::{CUdeviceptr, CUresult};
use simtile_driver::{LabelTarget, call};
use simtile_hazard::{Access, Mode, Region};
use simtile_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use simtile_sync::{Arc, Mutex};
use std::sync::Weak;

/// Identity of an allocation: never reused, unlike its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(u64);

impl AllocationId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Where memory comes from, and so how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A pool: freed in stream order.
    Pooled,
    /// `cuMemAlloc`: parked.
    Plain,
    /// Pinned host memory: kept for reuse.
    Pinned,
    /// Managed memory: kept for reuse.
    Managed,
    /// Somebody else's: its owner is dropped.
    Foreign,
    /// Physical memory behind reserved addresses: unmapped.
    Mapped,
    /// The variables of a module, as one thing without an address: they go with the module.
    Globals,
}

impl Kind {
    /// Whether it counts as an allocation of ours in device memory.
    fn is_counted(self) -> bool {
        matches!(self, Self::Pooled | Self::Plain)
    }
}

/// What an allocation holds beside its bytes.
pub(crate) enum Keep {
    /// Its share of a pool.
    Pool(PoolShare),
    /// Whose memory it is.
    Foreign(#[allow(dead_code, reason = "held for its drop")] Lent),
    /// The mappings.
    Mapped(Mapped),
}

/// Device memory. Whoever can still reach it holds it as `Arc<Allocation>`; work in flight does not.
pub(crate) struct Allocation {
    id: AllocationId,
    address: CUdeviceptr,
    /// Bytes that may be used.
    bytes: usize,
    /// Bytes that were allocated.
    size: usize,
    kind: Kind,
    /// `None` for an allocation of no bytes, and once it is being dropped.
    region: Option<Region>,
    /// Taken once it is being dropped.
    keep: Option<Keep>,
    /// Owners of imports that joined it.
    also: Mutex<Vec<Lent>>,
    context: Arc<Context>,
    label: Label,
    /// Handles that can reach it.
    owners: AtomicUsize,
    /// Place in the context's list of what is alive.
    slot: AtomicUsize,
    made: core::time::Duration,
    /// What holds it, for whoever has a reference and needs a handle.
    this: Weak<Allocation>,
}

impl Allocation {
    /// Allocates, usable on `stream` at once; other streams follow it. 0 bytes make no driver call.
    pub(crate) fn allocate(stream: &Arc<Stream>, bytes: usize) -> Result<Owner, MemoryError> {
        Self::make(stream, bytes, None).map(Owner::first)
    }

    /// As [`Allocation::allocate`], from a pool of the stream's context.
    pub(super) fn allocate_in(
        stream: &Arc<Stream>,
        bytes: usize,
        pool: Option<&Arc<MemPool>>,
    ) -> Result<Owner, MemoryError> {
        Self::make(stream, bytes, pool).map(Owner::first)
    }

    fn make(
        stream: &Arc<Stream>,
        bytes: usize,
        own: Option<&Arc<MemPool>>,
    ) -> Result<Arc<Self>, MemoryError> {
        let context = stream.context().clone();
        if bytes == 0 {
            return Ok(Self::wrap(context, 0, 0, 0, Kind::Pooled, None, None));
        }
        let size = rounded(bytes).ok_or(too_large(bytes))?;
        let share = own.map(|pool| PoolShare::take(pool, bytes)).transpose()?;
        let region = context.tracker().region(bytes as u64);
        let on = || format!("{bytes} bytes on {stream}");
        context.usable().map_err(|error| MemoryError::from_call(error, on()))?;
        let mut failures = 0;
        loop {
            let source = match own {
                Some(pool) => pool.cu_pool().map_or(Source::Plain, Source::Pool),
                None => context.source().map_err(|error| MemoryError::from_call(error, on()))?,
            };
            let tried = match source {
                Source::Pool(pool) => {
                    let access = [Access::whole(&region, Mode::Write)];
                    let mut address = 0;
                    let done = stream.submit_tracked(&access, Submit::HANDLES, |driver, raw| {
                        // SAFETY: the out-pointer is valid for the call; pool and stream are alive.
                        crate::context::relaxed(driver, |driver| unsafe {
                            // Not rounded: a simulator reports what comes behind the last byte.
                            call!(driver, cuMemAllocFromPoolAsync(&mut address, bytes, pool, raw))
                        })
                    });
                    done.map(|_| (address, bytes, Kind::Pooled))
                        .map_err(|error| stream.refused::<MemoryError>(error, &[], on))
                }
                _ => context
                    .allocate_plain(size)
                    .map(|address| (address, size, Kind::Plain))
                    .map_err(|error| MemoryError::from_call(error, on())),
            };
            match tried {
                Ok((address, size, kind)) => {
                    let keep = share.map(Keep::Pool);
                    let made = Self::wrap(context, address, bytes, size, kind, Some(region), keep);
                    made.context.shared().memory.live.add(&made);
                    return Ok(made);
                }
                Err(MemoryError::Driver { source, .. }) if source.is_missing_entry() && own.is_none() => {
                    context.has_no_pools();
                }
                Err(MemoryError::Driver { source, .. })
                    if source.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY =>
                {
                    failures += 1;
                    let again = match failures {
                        1 => {
                            context.give_back_what_has_finished();
                            true
                        }
                        2 => context.wait_for_room(),
                        _ => false,
                    };
                    if !again {
                        return Err(context.out_of_memory(bytes, source));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The variables of a module: one byte stands for all of them.
    pub(crate) fn globals(context: &Arc<Context>, module: &str) -> Arc<Self> {
        let region = context.tracker().region(1);
        let made = Self::wrap(context.clone(), 0, 1, 0, Kind::Globals, Some(region), None);
        made.label.set(module);
        made
    }

    pub(super) fn wrap(
        context: Arc<Context>,
        address: CUdeviceptr,
        bytes: usize,
        size: usize,
        kind: Kind,
        region: Option<Region>,
        keep: Option<Keep>,
    ) -> Arc<Self> {
        if size > 0 && kind.is_counted() {
            add(&context.counters().live_allocations, 1);
            add(&context.counters().live_bytes, size as u64);
        }
        // Made where it stays: it is large.
        Arc::new_cyclic(|this| Self {
            id: AllocationId::next(),
            address,
            bytes,
            size,
            kind,
            region,
            keep,
            also: Mutex::default(),
            context,
            label: Label::default(),
            owners: AtomicUsize::new(0),
            slot: AtomicUsize::new(usize::MAX),
            made: simtile_sync::time::now(),
            this: this.clone(),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The pool that it came from, if that is a user's.
    pub(crate) fn pool(&self) -> Option<&Arc<MemPool>> {
        match &self.keep {
            Some(Keep::Pool(share)) => share.pool(),
            _ => None,
        }
    }

    /// Whether a grant to the whole context covers it.
    pub(crate) fn is_of_context(&self) -> bool {
        matches!(self.kind, Kind::Pooled | Kind::Plain | Kind::Foreign) && self.pool().is_none()
    }

    /// Whether kernels of another device reach it, where that does not depend on the context's grants.
    pub(crate) fn is_open_to(&self, device: crate::Device) -> Option<bool> {
        match (self.kind, &self.keep) {
            // One address everywhere.
            (Kind::Pinned, _) => Some(true),
            (Kind::Managed, _) => Some(super::managed::is_concurrent(device)),
            (_, Some(Keep::Pool(share))) => {
                Some(share.pool().is_some_and(|pool| pool.granted.lock().contains(&device)))
            }
            (_, Some(Keep::Mapped(mapped))) => Some(mapped.is_open_to(device)),
            _ => None,
        }
    }

    /// The mappings behind it.
    pub(super) fn mapped(&self) -> Option<&Mapped> {
        match &self.keep {
            Some(Keep::Mapped(mapped)) => Some(mapped),
            _ => None,
        }
    }

    pub(crate) fn id(&self) -> AllocationId {
        self.id
    }

    /// First byte; 0 for an allocation of no bytes.
    #[inline]
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Bytes that were allocated; of mappings, those that have memory behind them.
    pub(crate) fn size(&self) -> usize {
        self.mapped().map_or(self.size, Mapped::num_bytes)
    }

    /// Bytes that may be used.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// One more owner that has to stay as long as the memory is used.
    pub(super) fn also_holds(&self, owner: Lent) {
        self.also.lock().push(owner);
    }

    /// When it was made.
    pub(crate) fn made(&self) -> core::time::Duration {
        self.made
    }

    #[inline]
    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Touching these bytes; `None` if there are none.
    #[inline]
    pub(crate) fn access(&self, start: usize, end: usize, mode: Mode) -> Option<Access<'_>> {
        let region = self.region.as_ref()?;
        (start < end).then(|| Access::new(region, start as u64, end as u64, mode))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn label(&self) -> Option<Arc<str>> {
        self.label.get()
    }

    pub(crate) fn owners(&self) -> &AtomicUsize {
        &self.owners
    }

    pub(crate) fn slot(&self) -> &AtomicUsize {
        &self.slot
    }

    pub(crate) fn set_label(&self, text: &str) {
        self.label.set(text);
        let driver = self.context.driver();
        if let Some(extras) = driver.table().extras
            && self.bytes > 0
        {
            let target = LabelTarget::Allocation(self.address);
            // SAFETY: extras take their own driver's state; the allocation is alive. A report without a name is no
            // failure, so the answer is not looked at.
            let _ = unsafe { (extras.label)(driver.state(), target, text) };
        }
    }

    /// Another handle of it; `None` only once it is being dropped.
    pub(crate) fn another_owner(&self) -> Option<Owner> {
        self.this.upgrade().map(Owner::another)
    }

    pub(super) fn this(&self) -> &Weak<Allocation> {
        &self.this
    }

    pub(crate) fn name(&self) -> String {
        match (self.kind, self.label.get()) {
            (Kind::Globals, Some(module)) => format!("the variables of {module}"),
            _ => self.label.describe("buffer", self.id.0),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else { return };
        // A module is unloaded after all launches, and then its variables have no use either.
        if crate::sys::is_forked() || self.kind == Kind::Globals {
            return;
        }
        let context = self.context.clone();
        context.shared().memory.live.remove(self.slot.load(Ordering::Relaxed));
        if self.kind.is_counted() {
            sub(&context.counters().live_allocations, 1);
            sub(&context.counters().live_bytes, self.size as u64);
        }
        let label = core::mem::take(&mut self.label);
        let (id, size) = (self.id.0, self.mapped().map_or(self.size, Mapped::own_bytes));
        let (keep, also) = (self.keep.take(), core::mem::take(&mut *self.also.lock()));
        let memory =
            Memory::device(context.clone(), id, self.address, size, self.kind, label).keeping(keep, also);
        if drops_go_elsewhere() {
            context.shared().lanes.push(Lane::Memory, Work::Retire(Box::new((region, memory))));
        } else {
            memory.retire(region);
        }
    }
}

fn too_large(bytes: usize) -> MemoryError {
    MemoryError::SizeOverflow { count: bytes, element_bytes: 1, limit: isize::MAX as usize }
}
