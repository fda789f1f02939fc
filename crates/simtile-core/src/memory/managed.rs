//! Managed memory: one address for host and devices, whose pages move to whoever uses them.
//!
//! It is used like device memory in submissions, and by the host through guards like pinned memory. Where a device cannot access managed
//! memory while the host does (no *concurrent managed access*), a guard waits for all work of the context and holds all of
//! it off while it lives: that is the platform's rule, which knows no buffers.
//!
//! Freeing managed memory stops every launch of the context, so blocks are kept for reuse until [`Context::trim`] or the
//! context's end.

use super::allocation::Kind;
use super::part::Part;
use super::view::{DeviceBufferView, DeviceBufferViewMut};
use super::{Allocation, Owner, PinnedRead, PinnedWrite, host_guards, owned_memory, typed_memory};
use crate::context::{Shared, add, relaxed, sub};
use crate::error::{MemoryError, On};
use crate::stream::{Reach, Submission};
use crate::{Context, Device, Stream};
use core::fmt;
use core::marker::PhantomData;
use simtile_driver::sys::{CUdevice, CUdevice_attribute, CUdeviceptr, CUmem_advise, CUmemAttach_flags};
use simtile_driver::{Driver, call};
use simtile_hazard::Mode;
use simtile_sync::{Arc, Mutex};
use simtile_types::DeviceCopy;
use std::collections::BTreeMap;

/// Smallest block.
const LEAST: usize = 4096;
/// The host as a place of managed memory (`CU_DEVICE_CPU`).
const HOST: CUdevice = -1;

/// Blocks that nothing uses, by size.
#[derive(Default)]
pub(crate) struct ManagedBlocks(pub(super) Mutex<BTreeMap<usize, Vec<CUdeviceptr>>>);

/// Values of `T` in managed memory, with one owner.
pub struct ManagedBuffer<T: DeviceCopy> {
    owner: Owner,
    len: usize,
    marker: PhantomData<T>,
}

/// Where managed memory is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// In host memory.
    Host,
    /// On a device.
    Device(Device),
}

impl Residence {
    fn raw(self) -> CUdevice {
        match self {
            Self::Host => HOST,
            Self::Device(device) => device.cu_device(),
        }
    }
}

/// What a program expects of its managed memory. Changes speed, never results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Mostly read: readers get copies of their own.
    ReadMostly(bool),
    /// Best kept there; `None` takes the advice back.
    PreferredLocation(Option<Residence>),
    /// Used from there: it stays mapped there.
    AccessedBy(Residence, bool),
}

/// Whether a device may use managed memory while the host does. A device that cannot be asked may not.
pub(crate) fn is_concurrent(device: Device) -> bool {
    device
        .raw_attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
        .is_ok_and(|value| value > 0)
}

impl<T: DeviceCopy> ManagedBuffer<T> {
    /// Zeroed values.
    ///
    /// # Errors
    /// [`MemoryError::SizeOverflow`], [`MemoryError::Unsupported`] on a device without managed memory, or the driver's.
    pub fn zeroed(context: &Arc<Context>, len: usize) -> Result<Self, MemoryError> {
        Self::made(context, len, |pointer, bytes| {
            // SAFETY: the block has these bytes; nobody else knows it yet, and the claim holds off what must not run.
            unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
        })
    }

    /// A copy of host values.
    ///
    /// # Errors
    /// As [`ManagedBuffer::zeroed`].
    pub fn from_slice(context: &Arc<Context>, source: &[T]) -> Result<Self, MemoryError> {
        Self::made(context, source.len(), |pointer, _| {
            // SAFETY: the block has room for the values; the rest as above.
            unsafe { source.as_ptr().copy_to_nonoverlapping(pointer, source.len()) };
        })
    }

    fn made(
        context: &Arc<Context>,
        len: usize,
        fill: impl FnOnce(*mut T, usize),
    ) -> Result<Self, MemoryError> {
        let limit = isize::MAX as usize / 2;
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= limit)
            .ok_or(MemoryError::SizeOverflow { count: len, element_bytes: size_of::<T>(), limit })?;
        let buffer = Self { owner: Allocation::managed(context, bytes)?, len, marker: PhantomData };
        if bytes > 0 {
            let claim = buffer.owner.claim(Mode::Write, true)?;
            fill(buffer.part().host_pointer(), bytes);
            drop(claim);
        }
        Ok(buffer)
    }

    fn part(&self) -> Part<'_, T> {
        Part::new(&self.owner, 0, self.len)
    }

    /// Bytes of all elements.
    pub fn num_bytes(&self) -> usize {
        self.part().num_bytes()
    }

    /// Address of the first element, on both sides; 0 if there are no bytes.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.part().address()
    }

    /// All elements, for copies and launches.
    pub fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBufferView::of(self.part())
    }

    /// All elements exclusively, for copies and launches.
    pub fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBufferViewMut::of(self.part())
    }

    /// Queues moving the pages somewhere, ahead of their use there.
    ///
    /// # Errors
    /// [`MemoryError::OtherContext`], what the policy refuses, or the driver's.
    pub fn prefetch(&self, stream: &Arc<Stream>, to: Residence) -> Result<Submission, MemoryError> {
        let part = self.part();
        let (address, bytes) = (part.address(), part.num_bytes());
        let builder = stream.submit().touch(part.access_of(Mode::Read)).reach(Reach::Copy);
        builder.run(
            bytes > 0,
            || format!("prefetch of {}", self.owner.name()),
            |driver, raw| {
                // SAFETY: the range is managed memory that is alive.
                unsafe { call!(driver, cuMemPrefetchAsync(address, bytes, to.raw(), raw)) }
            },
        )
    }

    /// Tells the driver what to expect.
    ///
    /// # Errors
    /// The driver's.
    pub fn advise(&self, advice: Advice) -> Result<(), MemoryError> {
        let (address, bytes) = (self.part().address(), self.num_bytes());
        if bytes == 0 {
            return Ok(());
        }
        use CUmem_advise as A;
        let own = self.context().device().cu_device();
        let (advice, device) = match advice {
            Advice::ReadMostly(true) => (A::CU_MEM_ADVISE_SET_READ_MOSTLY, own),
            Advice::ReadMostly(false) => (A::CU_MEM_ADVISE_UNSET_READ_MOSTLY, own),
            Advice::PreferredLocation(Some(place)) => (A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place.raw()),
            Advice::PreferredLocation(None) => (A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, own),
            Advice::AccessedBy(place, true) => (A::CU_MEM_ADVISE_SET_ACCESSED_BY, place.raw()),
            Advice::AccessedBy(place, false) => (A::CU_MEM_ADVISE_UNSET_ACCESSED_BY, place.raw()),
        };
        self.context()
            .link()
            .relaxed(|driver| {
                // SAFETY: the range is managed memory that is alive.
                unsafe { call!(driver, cuMemAdvise(address, bytes, advice, device)) }
            })
            .on(|| format!("advice about {}", self.owner.name()))
    }
}

typed_memory! { ManagedBuffer }
owned_memory! { ManagedBuffer }
host_guards! {
    ManagedBuffer,
    "On a device without concurrent managed access it waits for all work of the context, and holds all of it off while the guard lives."
}

impl<T: DeviceCopy> fmt::Debug for ManagedBuffer<T> {
    /// Without the values: work may be writing them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let type_name = core::any::type_name::<T>();
        write!(f, "ManagedBuffer({}, {} x {type_name})", self.owner.name(), self.len)
    }
}

impl Allocation {
    /// Whether the host must hold off all work of the context to touch it.
    pub(super) fn needs_all(&self) -> bool {
        self.kind() == Kind::Managed && !is_concurrent(self.context().device())
    }

    /// Managed memory, with undefined content that no work uses.
    fn managed(context: &Arc<Context>, bytes: usize) -> Result<Owner, MemoryError> {
        if bytes == 0 {
            return Ok(Owner::first(Self::wrap(context.clone(), 0, 0, 0, Kind::Managed, None, None)));
        }
        let on = || format!("{bytes} bytes of managed memory");
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        if context
            .device()
            .raw_attribute(attribute)
            .map_err(|error| context.note(error))
            .on::<MemoryError>(on)?
            <= 0
        {
            let why = format!("{} has none", context.device());
            return Err(MemoryError::Unsupported { what: on(), why });
        }
        let size = bytes.next_power_of_two().max(LEAST);
        let shared = context.shared();
        let take = || shared.memory.managed.0.lock().get_mut(&size).and_then(Vec::pop);
        let reused = take().or_else(|| {
            shared.lanes.collect();
            take()
        });
        let address = match reused {
            Some(address) => address,
            None => {
                let made = context.link().relaxed(|driver: Driver| {
                    let mut address = 0;
                    let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
                    // SAFETY: the out-pointer is valid for the call; the context is current.
                    unsafe { call!(driver, cuMemAllocManaged(&mut address, size, flags)) }?;
                    Ok(address)
                });
                add(&context.counters().managed_bytes, size as u64);
                made.inspect_err(|_| sub(&context.counters().managed_bytes, size as u64))
                    .on::<MemoryError>(on)?
            }
        };
        let region = context.tracker().region(bytes as u64);
        let made = Self::wrap(context.clone(), address, bytes, size, Kind::Managed, Some(region), None);
        context.shared().memory.live.add(&made);
        Ok(Owner::first(made))
    }
}

impl Shared {
    /// Keeps a block for reuse: nothing uses it any more.
    pub(super) fn keep_managed(&self, address: CUdeviceptr, size: usize) {
        self.memory.managed.0.lock().entry(size).or_default().push(address);
    }

    /// Frees the blocks that nothing uses. Waits for the device.
    pub(super) fn free_managed(&self) {
        let blocks = core::mem::take(&mut *self.memory.managed.0.lock());
        for (size, list) in blocks {
            for address in list {
                sub(&self.link.counters.managed_bytes, size as u64);
                let call = |driver: Driver| {
                    // SAFETY: the block is ours, and nothing uses it.
                    relaxed(driver, |driver| unsafe { call!(driver, cuMemFree(address)) })
                };
                if !self.link.finish(|| "freeing a managed block".into(), call) {
                    add(&self.link.counters.failed_frees, 1);
                    add(&self.link.counters.leaked_bytes, size as u64);
                }
            }
        }
    }
}
