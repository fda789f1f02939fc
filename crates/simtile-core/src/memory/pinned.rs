//! Pinned host memory that the device reaches directly.
//!
//! The host is an axis like a stream: it reads and writes through guards, which wait for conflicting work, and conflicting
//! submissions are refused while a guard lives. There is no `Deref` without a guard. A guard that is forgotten refuses for
//! ever, and nothing races.
//!
//! Freeing pinned memory stops every launch of the context, so blocks are kept for reuse until [`Context::trim`] or the
//! context's end.

use super::allocation::Kind;
use super::part::Part;
use super::view::{DeviceBufferView, DeviceBufferViewMut};
use super::{Allocation, Owner, PinnedRead, PinnedWrite, host_guards, owned_memory, typed_memory};
use crate::context::{Shared, add, relaxed, sub};
use crate::error::{MemoryError, On};
use crate::graph::Plain;
use crate::stream::{Reach, Submission};
use crate::{Context, Stream};
use core::fmt;
use core::marker::PhantomData;
use simtile_driver::{Driver, call};
use simtile_hazard::Mode;
use simtile_sync::{Arc, Mutex};
use simtile_types::DeviceCopy;
use std::collections::BTreeMap;

/// Smallest block.
const LEAST: usize = 4096;

/// Blocks that nothing uses, by size.
#[derive(Default)]
pub(crate) struct PinnedBlocks(pub(super) Mutex<BTreeMap<usize, Vec<usize>>>);

/// Values of `T` in pinned host memory, with one owner.
///
/// Copies to and from it go at full speed and without staging. It can be named in submissions as device memory can, so
/// kernels may use it directly.
pub struct PinnedHostBuffer<T: DeviceCopy> {
    owner: Owner,
    len: usize,
    marker: PhantomData<T>,
}

impl<T: DeviceCopy> PinnedHostBuffer<T> {
    /// Zeroed values.
    ///
    /// # Errors
    /// [`MemoryError::SizeOverflow`], or the driver's.
    pub fn zeroed(context: &Arc<Context>, len: usize) -> Result<Self, MemoryError> {
        let limit = isize::MAX as usize;
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= limit / 2).ok_or(
            MemoryError::SizeOverflow { count: len, element_bytes: size_of::<T>(), limit: limit / 2 },
        )?;
        let owner = Allocation::pinned(context, bytes)?;
        let buffer = Self { owner, len, marker: PhantomData };
        if bytes > 0 {
            // SAFETY: the block has these bytes, and nobody else knows it yet.
            unsafe { buffer.pointer().cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(buffer)
    }

    /// A copy of host values.
    ///
    /// # Errors
    /// As [`PinnedHostBuffer::zeroed`].
    pub fn from_slice(context: &Arc<Context>, source: &[T]) -> Result<Self, MemoryError> {
        let buffer = Self::zeroed(context, source.len())?;
        if size_of_val(source) > 0 {
            // SAFETY: the block has room for the values, and nobody else knows it yet.
            unsafe { source.as_ptr().copy_to_nonoverlapping(buffer.pointer(), source.len()) };
        }
        Ok(buffer)
    }

    fn pointer(&self) -> *mut T {
        self.part().host_pointer()
    }

    fn part(&self) -> Part<'_, T> {
        Part::new(&self.owner, 0, self.len)
    }

    /// Queues a copy of these values to device memory of as many elements.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], [`MemoryError::OtherContext`], [`StreamError::Conflict`](crate::StreamError::Conflict) with a forgotten guard, or
    /// the driver's.
    pub fn copy_to<'b>(
        &self,
        stream: &Arc<Stream>,
        target: impl Into<DeviceBufferViewMut<'b, T>>,
    ) -> Result<Submission, MemoryError>
    where
        T: 'b,
    {
        self.copy_by(stream.submit(), target.into())
    }

    pub(crate) fn copy_by(
        &self,
        builder: crate::SubmitBuilder<'_>,
        target: DeviceBufferViewMut<'_, T>,
    ) -> Result<Submission, MemoryError> {
        let (source, target) = (self.part(), target.part());
        target.same_len("source", target.len, source.len)?;
        let (to, bytes, host) = (target.address(), target.num_bytes(), self.pointer());
        let on = || format!("copy of {} to {}", source.allocation.name(), target.allocation.name());
        let reach = beside(builder.stream(), target.allocation);
        let builder = builder.touch(source.access_of(Mode::Read)).touch(target.access_of(Mode::Write));
        let builder = builder.plainly(Plain::Upload { to, from: host.expose_provenance(), bytes });
        builder.reach(reach).run(bytes > 0, on, |driver, raw| {
            // SAFETY: both sides have these bytes, and the tracker keeps both until the copy has finished.
            unsafe { call!(driver, cuMemcpyHtoDAsync(to, host.cast(), bytes, raw)) }
        })
    }

    /// Queues a copy of device memory of as many elements over these values.
    ///
    /// # Errors
    /// As [`PinnedHostBuffer::copy_to`].
    pub fn copy_from<'b>(
        &mut self,
        stream: &Arc<Stream>,
        source: impl Into<DeviceBufferView<'b, T>>,
    ) -> Result<Submission, MemoryError>
    where
        T: 'b,
    {
        let (source, target) = (source.into().part(), self.part());
        target.same_len("source", target.len, source.len)?;
        let (from, bytes, host) = (source.address(), target.num_bytes(), self.pointer());
        let on = || format!("copy of {} to {}", source.allocation.name(), target.allocation.name());
        let builder =
            stream.submit().touch(source.access_of(Mode::Read)).touch(target.access_of(Mode::Write));
        builder.reach(beside(stream, source.allocation)).run(bytes > 0, on, |driver, raw| {
            // SAFETY: as above.
            unsafe { call!(driver, cuMemcpyDtoHAsync(host.cast(), from, bytes, raw)) }
        })
    }
}

typed_memory! { PinnedHostBuffer }
owned_memory! { PinnedHostBuffer }
host_guards! { PinnedHostBuffer, "" }

impl<T: DeviceCopy> fmt::Debug for PinnedHostBuffer<T> {
    /// Without the values: work may be writing them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let type_name = core::any::type_name::<T>();
        write!(f, "PinnedHostBuffer({}, {} x {type_name})", self.owner.name(), self.len)
    }
}

/// Where a copy between the host and this memory runs: in the memory's context, because an H200 refuses pool memory with another
/// device's context current. Pinned memory has one address in all.
fn beside(stream: &Stream, memory: &Allocation) -> Reach {
    if **stream.context() == **memory.context() { Reach::Copy } else { Reach::Local }
}

impl Allocation {
    /// Pinned host memory, with undefined content that no work uses.
    fn pinned(context: &Arc<Context>, bytes: usize) -> Result<Owner, MemoryError> {
        if bytes == 0 {
            return Ok(Owner::first(Self::wrap(context.clone(), 0, 0, 0, Kind::Pinned, None, None)));
        }
        let size = bytes.next_power_of_two().max(LEAST);
        let shared = context.shared();
        let take = || shared.memory.pinned.0.lock().get_mut(&size).and_then(Vec::pop);
        let reused = take().or_else(|| {
            shared.lanes.collect();
            take()
        });
        let host = match reused {
            Some(host) => host,
            None => {
                let made = context.link().relaxed(|driver: Driver| {
                    let mut host = core::ptr::null_mut();
                    // SAFETY: the out-pointer is valid for the call; the context is current.
                    unsafe { call!(driver, cuMemHostAlloc(&mut host, size, 0)) }?;
                    Ok(host)
                });
                let host = made.on::<MemoryError>(|| format!("{bytes} bytes of pinned memory"))?;
                add(&context.counters().pinned_bytes, size as u64);
                host.expose_provenance()
            }
        };
        let region = context.tracker().region(bytes as u64);
        let made = Self::wrap(context.clone(), host as u64, bytes, size, Kind::Pinned, Some(region), None);
        Ok(Owner::first(made))
    }
}

impl Shared {
    /// Keeps a block for reuse: nothing uses it any more.
    pub(super) fn keep_pinned(&self, host: usize, size: usize) {
        self.memory.pinned.0.lock().entry(size).or_default().push(host);
    }

    /// Frees the blocks that nothing uses. Waits for the device.
    pub(super) fn free_pinned(&self) {
        let blocks = core::mem::take(&mut *self.memory.pinned.0.lock());
        for (size, list) in blocks {
            for host in list {
                sub(&self.link.counters.pinned_bytes, size as u64);
                let pointer = core::ptr::with_exposed_provenance_mut(host);
                let call = |driver: Driver| {
                    // SAFETY: the block is ours, and nothing uses it.
                    relaxed(driver, |driver| unsafe { call!(driver, cuMemFreeHost(pointer)) })
                };
                if !self.link.finish(|| "freeing a pinned block".into(), call) {
                    add(&self.link.counters.failed_frees, 1);
                    add(&self.link.counters.leaked_bytes, size as u64);
                }
            }
        }
    }
}
