//! One allocation: address, size, identity, and what used it last.

use super::pool::rounded;
use crate::context::{add, sub};
use crate::error::{CallError, Family, MemoryError, StreamError};
use crate::label::Label;
use crate::stream::{retire, stream_error};
use crate::{Context, Stream};
use simtile_driver::sys::{CUdeviceptr, CUresult};
use simtile_driver::{DriverError, LabelTarget};
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_sync::{Arc, Mutex, MutexGuard};

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

/// The one stream that follows everything that was done to an allocation.
pub(crate) enum LastUse {
    /// A stream. If it is not ours, following it with the service stream failed, and is tried again.
    Stream(Arc<Stream>),
    /// The context's service stream, which follows a stream that is not ours.
    Service,
}

impl LastUse {
    /// Makes `stream` follow what used the allocation last.
    pub(crate) fn order(&self, context: &Context, stream: &Stream) -> Result<(), StreamError> {
        let leader = match self {
            Self::Stream(last) if last.id() == stream.id() => return Ok(()),
            Self::Stream(last) => {
                last.ready()?;
                last.cu_stream()
            }
            Self::Service => context.service_stream().map_err(|error| stream_error(stream, error))?,
        };
        context.follow(leader, stream.cu_stream()).map_err(|error| stream_error(stream, error))
    }

    /// What follows a use on `stream`.
    pub(crate) fn after(context: &Context, stream: &Arc<Stream>) -> Self {
        if !stream.is_owned() && context.follow_with_service(stream.cu_stream()).is_ok() {
            return Self::Service;
        }
        Self::Stream(stream.clone())
    }
}

/// Device memory with one owner.
pub(crate) struct Allocation {
    id: AllocationId,
    address: CUdeviceptr,
    bytes: usize,
    context: Arc<Context>,
    label: Label,
    last: Mutex<LastUse>,
}

impl Allocation {
    /// Allocates, usable on `stream` at once. 0 bytes make no driver call.
    pub(crate) fn new(stream: &Arc<Stream>, bytes: usize) -> Result<Self, MemoryError> {
        let context = stream.context().clone();
        if bytes == 0 {
            return Ok(Self::wrap(context, 0, 0, stream));
        }
        stream.ready()?;
        let size = rounded(bytes).ok_or(too_large(bytes))?;
        let address = context.allocate(size, stream.cu_stream()).map_err(|error| match error {
            CallError::Driver(source) if source.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                out_of_memory(&context, bytes, source)
            }
            other => MemoryError::from_call(other, format!("{bytes} bytes on {stream}")),
        })?;
        Ok(Self::wrap(context, address, size, stream))
    }

    fn wrap(context: Arc<Context>, address: CUdeviceptr, bytes: usize, stream: &Arc<Stream>) -> Self {
        if bytes > 0 {
            add(&context.counters.live_allocations, 1);
            add(&context.counters.live_bytes, bytes as u64);
        }
        let last = Mutex::new(LastUse::Stream(stream.clone()));
        Self { id: AllocationId::next(), address, bytes, context, label: Label::default(), last }
    }

    pub(crate) fn id(&self) -> AllocationId {
        self.id
    }

    /// First byte; 0 for an allocation of no bytes.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn label(&self) -> Option<Arc<str>> {
        self.label.get()
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

    pub(crate) fn name(&self) -> String {
        self.label.describe("buffer", self.id.0)
    }

    /// Runs driver calls that use this allocation on `stream`, behind everything that used it before.
    pub(crate) fn use_on<T>(
        &self,
        stream: &Arc<Stream>,
        calls: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<T, MemoryError> {
        use_all(&[self], stream, calls).map_err(|error| match error {
            UseError::Stream(error) => MemoryError::from_stream(error),
            UseError::Call(error) => MemoryError::from_call(error, format!("{} on {stream}", self.name())),
        })
    }

    /// As [`Allocation::use_on`], for two allocations at once.
    pub(crate) fn use_both<T>(
        &self,
        other: &Allocation,
        stream: &Arc<Stream>,
        calls: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<T, MemoryError> {
        use_all(&[self, other], stream, calls).map_err(|error| match error {
            UseError::Stream(error) => MemoryError::from_stream(error),
            UseError::Call(error) => {
                MemoryError::from_call(error, format!("{} and {} on {stream}", self.name(), other.name()))
            }
        })
    }
}

enum UseError {
    Stream(StreamError),
    Call(CallError),
}

fn use_all<T>(
    allocations: &[&Allocation],
    stream: &Arc<Stream>,
    calls: impl FnOnce() -> Result<T, CallError>,
) -> Result<T, UseError> {
    let mut used = lock_all(allocations, stream).map_err(UseError::Stream)?;
    let result = calls();
    // Whatever was queued before a failure counts as a use.
    used.finish(stream);
    result.map_err(UseError::Call)
}

/// Allocations whose last use is being replaced. While it lives nobody else can use them.
pub(crate) struct InUse<'a> {
    context: Option<&'a Arc<Context>>,
    guards: smallvec::SmallVec<[MutexGuard<'a, LastUse>; 8]>,
}

/// Makes `stream` follow the last uses of all allocations, and keeps them until [`InUse::finish`].
///
/// Locks are taken in the order of identities, each allocation once. Empty allocations take no part.
pub(crate) fn lock_all<'a>(
    allocations: &[&'a Allocation],
    stream: &Arc<Stream>,
) -> Result<InUse<'a>, StreamError> {
    let mut ordered: smallvec::SmallVec<[&'a Allocation; 8]> =
        allocations.iter().copied().filter(|a| a.bytes > 0).collect();
    for allocation in allocations {
        stream.same_context(&allocation.context, || allocation.name())?;
    }
    if ordered.is_empty() {
        return Ok(InUse { context: None, guards: smallvec::SmallVec::new() });
    }
    stream.ready()?;
    ordered.sort_unstable_by_key(|allocation| allocation.id);
    ordered.dedup_by_key(|allocation| allocation.id);
    let mut guards = smallvec::SmallVec::new();
    for allocation in &ordered {
        let guard = allocation.last.lock();
        guard.order(&allocation.context, stream)?;
        guards.push(guard);
    }
    Ok(InUse { context: ordered.first().map(|allocation| &allocation.context), guards })
}

impl InUse<'_> {
    /// From now on the allocations follow `stream`.
    pub(crate) fn finish(&mut self, stream: &Arc<Stream>) {
        let Some(context) = self.context else { return };
        // Old streams are dropped after the locks: a borrowed one may hold a user's value.
        let mut old: smallvec::SmallVec<[LastUse; 8]> = smallvec::SmallVec::new();
        for guard in &mut self.guards {
            if matches!(&**guard, LastUse::Stream(last) if last.id() == stream.id() && last.is_owned()) {
                continue;
            }
            old.push(core::mem::replace(&mut **guard, LastUse::after(context, stream)));
        }
        self.guards.clear();
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let context = self.context.clone();
        sub(&context.counters.live_allocations, 1);
        sub(&context.counters.live_bytes, self.bytes as u64);
        let last = core::mem::replace(self.last.get_mut(), LastUse::Service);
        let (address, bytes) = (self.address, self.bytes);
        // The text is made before the drop may move to another thread, and only there is it costly.
        let label = core::mem::take(&mut self.label);
        let id = self.id.0;
        retire(move || {
            if let Err(error) = free_behind(&context, last, address, bytes) {
                context.failed_free(&label.describe("buffer", id), bytes, error);
            }
        });
    }
}

/// Frees behind the last use. Nothing is ever freed on a stream that is not ours.
fn free_behind(
    context: &Arc<Context>,
    last: LastUse,
    address: CUdeviceptr,
    bytes: usize,
) -> Result<(), CallError> {
    context.usable()?;
    let stream = match &last {
        LastUse::Stream(stream) if stream.is_owned() => stream.cu_stream(),
        LastUse::Service => context.service_stream()?,
        LastUse::Stream(stream) => {
            let not_now = |_| {
                let code = CUresult::CUDA_ERROR_NOT_PERMITTED;
                CallError::Driver(DriverError::new(simtile_driver::Entry::cuEventRecord, code))
            };
            stream.ready().map_err(not_now)?;
            context.follow_with_service(stream.cu_stream())?;
            context.service_stream()?
        }
    };
    context.free(address, bytes, stream)
}

fn too_large(bytes: usize) -> MemoryError {
    MemoryError::SizeOverflow { count: bytes, element_bytes: 1, limit: isize::MAX as usize }
}

fn out_of_memory(context: &Context, bytes: usize, source: DriverError) -> MemoryError {
    let info = context.raw_memory_info();
    let (free, total) = info.map_or((0, 0), |info| (info.free, info.total));
    MemoryError::OutOfMemory { label: context.to_string(), bytes, free, total, source }
}
