//! One allocation: address, size, identity, and the region that knows who uses it.

use super::owner::Owner;
use super::pool::{Source, rounded};
use super::retired::Memory;
use crate::context::{Lane, Work, add, sub};
use crate::error::{Family, MemoryError};
use crate::label::Label;
use crate::stream::{Submit, in_host_function};
use crate::{Context, Stream};
use simtile_driver::sys::{CUdeviceptr, CUresult};
use simtile_driver::{LabelTarget, call};
use simtile_hazard::{Access, Mode, Region};
use simtile_sync::Arc;
use simtile_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

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
    context: Arc<Context>,
    label: Label,
    /// Handles that can reach it.
    owners: AtomicUsize,
    /// Place in the context's list of what is alive.
    slot: AtomicUsize,
    made: core::time::Duration,
    /// What holds it, for whoever has a reference and needs a handle.
    this: OnceLock<Weak<Allocation>>,
}

impl Allocation {
    /// Allocates, usable on `stream` at once; other streams follow it. 0 bytes make no driver call.
    pub(crate) fn allocate(stream: &Arc<Stream>, bytes: usize) -> Result<Owner, MemoryError> {
        Self::make(stream, bytes).map(Owner::first)
    }

    fn make(stream: &Arc<Stream>, bytes: usize) -> Result<Arc<Self>, MemoryError> {
        let context = stream.context().clone();
        if bytes == 0 {
            return Ok(Arc::new(Self::wrap(context, 0, 0, 0, Kind::Pooled, None)));
        }
        let size = rounded(bytes).ok_or(too_large(bytes))?;
        let region = context.tracker().region(bytes as u64);
        let on = || format!("{bytes} bytes on {stream}");
        context.usable().map_err(|error| MemoryError::from_call(error, on()))?;
        let mut failures = 0;
        loop {
            let tried = match context.source().map_err(|error| MemoryError::from_call(error, on()))? {
                Source::Pool(pool) => {
                    let access = [Access::whole(&region, Mode::Write)];
                    let mut address = 0;
                    let done = stream.submit_tracked(&access, Submit::HANDLES, |driver, raw| {
                        // SAFETY: the out-pointer is valid for the call; pool and stream are alive.
                        crate::context::relaxed(driver, |driver| unsafe {
                            call!(driver, cuMemAllocFromPoolAsync(&mut address, size, pool, raw))
                        })
                    });
                    done.map(|_| (address, Kind::Pooled))
                        .map_err(|error| stream.refused::<MemoryError>(error, &[], on))
                }
                _ => context
                    .allocate_plain(size)
                    .map(|address| (address, Kind::Plain))
                    .map_err(|error| MemoryError::from_call(error, on())),
            };
            match tried {
                Ok((address, kind)) => {
                    let made = Arc::new(Self::wrap(context, address, bytes, size, kind, Some(region)));
                    made.context.shared().memory.live.add(&made);
                    return Ok(made);
                }
                Err(MemoryError::Driver { source, .. }) if source.is_missing_entry() => {
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

    pub(super) fn wrap(
        context: Arc<Context>,
        address: CUdeviceptr,
        bytes: usize,
        size: usize,
        kind: Kind,
        region: Option<Region>,
    ) -> Self {
        if size > 0 && kind != Kind::Pinned {
            add(&context.counters().live_allocations, 1);
            add(&context.counters().live_bytes, size as u64);
        }
        Self {
            id: AllocationId::next(),
            address,
            bytes,
            size,
            kind,
            region,
            context,
            label: Label::default(),
            owners: AtomicUsize::new(0),
            slot: AtomicUsize::new(usize::MAX),
            made: simtile_sync::time::now(),
            this: OnceLock::new(),
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

    /// Bytes that were allocated.
    pub(crate) fn size(&self) -> usize {
        self.size
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

    /// Another handle of it; `None` only before it has its first.
    pub(crate) fn another_owner(&self) -> Option<Owner> {
        self.this.get().and_then(Weak::upgrade).map(Owner::another)
    }

    pub(super) fn this(&self) -> &OnceLock<Weak<Allocation>> {
        &self.this
    }

    pub(crate) fn name(&self) -> String {
        self.label.describe("buffer", self.id.0)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else { return };
        if crate::sys::is_forked() {
            return;
        }
        let context = self.context.clone();
        context.shared().memory.live.remove(self.slot.load(Ordering::Relaxed));
        if self.kind != Kind::Pinned {
            sub(&context.counters().live_allocations, 1);
            sub(&context.counters().live_bytes, self.size as u64);
        }
        let label = core::mem::take(&mut self.label);
        let memory = Memory::device(context.clone(), self.id.0, self.address, self.size, self.kind, label);
        if in_host_function() {
            let lanes = context.shared().lanes.clone();
            let job = move || {
                context.tracker().retire(region, memory);
            };
            lanes.push(Lane::Memory, Work::Job(Box::new(job)));
        } else {
            context.tracker().retire(region, memory);
        }
    }
}

fn too_large(bytes: usize) -> MemoryError {
    MemoryError::SizeOverflow { count: bytes, element_bytes: 1, limit: isize::MAX as usize }
}
