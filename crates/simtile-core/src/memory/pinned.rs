//! Pinned host memory that the device reaches directly.
//!
//! The host is an axis like a stream: it reads and writes through guards, which wait for conflicting work, and conflicting
//! submissions are refused while a guard lives. There is no `Deref` without a guard. A guard that is forgotten refuses for
//! ever, and nothing races.
//!
//! Freeing pinned memory stops every launch of the context, so blocks are kept for reuse until [`Context::trim`] or the
//! context's end.

use super::allocation::Kind;
use super::part::{Part, distinct};
use super::sealed::{Memory, MemoryMut};
use super::view::{DeviceBufferView, DeviceBufferViewMut};
use super::{Allocation, AllocationId, DeviceMemory, DeviceMemoryMut, Owner};
use crate::context::{Shared, SubmitError, add, relaxed, sub};
use crate::error::{MemoryError, On, OnStream, StreamError};
use crate::stream::{Submission, Touch};
use crate::{Context, Stream};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use simtile_driver::sys::CUdeviceptr;
use simtile_driver::{Driver, call};
use simtile_hazard::{Access, Busy, HostBusy, HostClaim, Mode};
use simtile_sync::{Arc, Mutex};
use simtile_types::DeviceCopy;
use std::collections::BTreeMap;

/// Smallest block.
const LEAST: usize = 4096;

/// Blocks that nothing uses, by size.
#[derive(Default)]
pub(crate) struct PinnedBlocks(Mutex<BTreeMap<usize, Vec<usize>>>);

/// Values of `T` in pinned host memory, with one owner.
///
/// Copies to and from it go at full speed and without staging. It can be named in submissions as device memory can, so
/// kernels may use it directly.
pub struct PinnedHostBuffer<T: DeviceCopy> {
    owner: Owner,
    len: usize,
    marker: PhantomData<T>,
}

/// The values of a [`PinnedHostBuffer`], to be read. No work that writes them runs meanwhile.
pub struct PinnedRead<'a, T: DeviceCopy> {
    values: &'a [T],
    claim: Claim<'a>,
}

/// The values of a [`PinnedHostBuffer`], to be written. No work that uses them runs meanwhile.
pub struct PinnedWrite<'a, T: DeviceCopy> {
    values: &'a mut [T],
    claim: Claim<'a>,
}

/// Given back when the guard ends; a forgotten guard keeps it.
struct Claim<'a> {
    allocation: &'a Allocation,
    claim: Option<HostClaim>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let (Some(claim), Some(region)) = (self.claim.take(), self.allocation.region()) {
            self.allocation.context().tracker().host_release(region, claim);
        }
    }
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
        match self.part().num_bytes() {
            0 => core::ptr::NonNull::dangling().as_ptr(),
            // Pinned memory has one address on both sides.
            _ => core::ptr::with_exposed_provenance_mut(self.owner.address() as usize),
        }
    }

    fn part(&self) -> Part<'_, T> {
        Part::new(&self.owner, 0, self.len)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Identity of the allocation.
    pub fn allocation_id(&self) -> AllocationId {
        self.owner.id()
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        self.owner.context()
    }

    /// Names the buffer in errors.
    pub fn set_label(&self, label: &str) {
        self.owner.set_label(label);
    }

    /// Waits for work that writes the values, then gives them. Work that only reads them goes on.
    ///
    /// # Errors
    /// [`StreamError::Conflict`] if a writing guard was forgotten, [`MemoryError::InvalidElement`] if the device wrote bytes
    /// that are no value, or the driver's, also the failure of the work.
    pub fn read(&self) -> Result<PinnedRead<'_, T>, MemoryError> {
        let claim = self.claim(Mode::Read, true)?;
        self.guard(claim)
    }

    /// As [`PinnedHostBuffer::read`], but refuses where that would wait.
    ///
    /// # Errors
    /// [`StreamError::Conflict`] if work that writes the values is in flight, else as [`PinnedHostBuffer::read`].
    pub fn try_read(&self) -> Result<PinnedRead<'_, T>, MemoryError> {
        let claim = self.claim(Mode::Read, false)?;
        self.guard(claim)
    }

    /// Waits for all work that uses the values, then gives them.
    ///
    /// # Errors
    /// As [`PinnedHostBuffer::read`].
    pub fn write(&mut self) -> Result<PinnedWrite<'_, T>, MemoryError> {
        let claim = self.claim(Mode::Write, true)?;
        self.guard_mut(claim)
    }

    /// As [`PinnedHostBuffer::write`], but refuses where that would wait.
    ///
    /// # Errors
    /// As [`PinnedHostBuffer::try_read`].
    pub fn try_write(&mut self) -> Result<PinnedWrite<'_, T>, MemoryError> {
        let claim = self.claim(Mode::Write, false)?;
        self.guard_mut(claim)
    }

    fn claim(&self, mode: Mode, patient: bool) -> Result<Claim<'_>, MemoryError> {
        let allocation: &Allocation = &self.owner;
        let Some(region) = allocation.region() else { return Ok(Claim { allocation, claim: None }) };
        let context = allocation.context();
        context.usable().on::<MemoryError>(|| allocation.name())?;
        let access = Access::whole(region, mode);
        let claim = if patient {
            context.tracker().host(&access)
        } else {
            loop {
                match context.tracker().try_host(&access) {
                    Ok(claim) => break Ok(claim),
                    // Somebody is between two steps of a submission.
                    Err(HostBusy::Refused(SubmitError::Busy(Busy::Region))) => {
                        simtile_sync::thread::yield_now()
                    }
                    Err(HostBusy::Refused(error)) => break Err(error),
                    Err(HostBusy::Pending(stamps)) => {
                        // It may have finished without anybody having looked.
                        let tracker = context.tracker();
                        let busy = stamps.iter().find(|&&stamp| match tracker.settle(stamp) {
                            simtile_hazard::Settled::Complete => false,
                            simtile_hazard::Settled::Pending(event) => {
                                !tracker.query(&event).unwrap_or(false)
                            }
                            _ => true,
                        });
                        let Some(busy) = busy else { continue };
                        let user = context.shared().names.of(busy.axis);
                        let what = format!("{user} uses {}", allocation.name());
                        let error = StreamError::Conflict { stream: "the host".into(), what, host: false };
                        return Err(MemoryError::Stream(error));
                    }
                }
            }
        };
        match claim {
            Ok(claim) => Ok(Claim { allocation, claim: Some(claim) }),
            Err(SubmitError::Driver { error, .. }) => Err(error).on(|| allocation.name()),
            Err(SubmitError::Conflict(conflict)) => {
                let what = format!("a guard of {} was forgotten", allocation.name());
                let error = StreamError::Conflict { stream: "the host".into(), what, host: conflict.host() };
                Err(MemoryError::Stream(error))
            }
            Err(SubmitError::Failed { axis }) => {
                context.usable().on::<MemoryError>(|| allocation.name())?;
                let leader = context.shared().names.of(axis);
                Err(MemoryError::from_stream(StreamError::Failed { stream: "the host".into(), leader }))
            }
            Err(other) => {
                let (stream, what) = ("the host".into(), other.to_string());
                Err(MemoryError::from_stream(StreamError::Refused { stream, what }))
            }
        }
    }

    fn check_values(&self) -> Result<(), MemoryError> {
        for index in 0..distinct::<T>(self.len) {
            // SAFETY: all elements are inside the block, which was zeroed when it was made.
            if !unsafe { T::is_valid(self.pointer().add(index)) } {
                let (buffer, type_name) = (self.owner.name(), core::any::type_name::<T>());
                return Err(MemoryError::InvalidElement { buffer, index, type_name });
            }
        }
        Ok(())
    }

    fn guard<'a>(&'a self, claim: Claim<'a>) -> Result<PinnedRead<'a, T>, MemoryError> {
        self.check_values()?;
        // SAFETY: the values are valid, and no work writes them while the claim is held.
        let values = unsafe { core::slice::from_raw_parts(self.pointer(), self.len) };
        Ok(PinnedRead { values, claim })
    }

    fn guard_mut<'a>(&'a self, claim: Claim<'a>) -> Result<PinnedWrite<'a, T>, MemoryError> {
        self.check_values()?;
        // SAFETY: the values are valid, no work uses them while the claim is held, and the caller borrowed the buffer
        // exclusively.
        let values = unsafe { core::slice::from_raw_parts_mut(self.pointer(), self.len) };
        Ok(PinnedWrite { values, claim })
    }

    /// Queues a copy of these values to device memory of as many elements.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], [`MemoryError::OtherContext`], [`StreamError::Conflict`] with a forgotten guard, or
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
        let builder = builder.touch(source.access_of(Mode::Read)).touch(target.access_of(Mode::Write));
        builder.run(bytes > 0, on, |driver, raw| {
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
        builder.run(bytes > 0, on, |driver, raw| {
            // SAFETY: as above.
            unsafe { call!(driver, cuMemcpyDtoHAsync(host.cast(), from, bytes, raw)) }
        })
    }
}

impl<T: DeviceCopy> Deref for PinnedRead<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

impl<T: DeviceCopy> Deref for PinnedWrite<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

impl<T: DeviceCopy> DerefMut for PinnedWrite<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.values
    }
}

impl<T: DeviceCopy> Memory for PinnedHostBuffer<T> {
    fn touched(&self, mode: Mode) -> Touch<'_> {
        self.part().access_of(mode)
    }

    fn element_bytes(&self) -> usize {
        size_of::<T>()
    }

    fn address(&self) -> CUdeviceptr {
        self.part().address()
    }
}

impl<T: DeviceCopy> MemoryMut for PinnedHostBuffer<T> {
    fn touched_mut(&mut self) -> Touch<'_> {
        self.part().access_of(Mode::Write)
    }
}

impl<T: DeviceCopy> DeviceMemory for PinnedHostBuffer<T> {}
impl<T: DeviceCopy> DeviceMemoryMut for PinnedHostBuffer<T> {}

impl<T: DeviceCopy> fmt::Debug for PinnedHostBuffer<T> {
    /// Without the values: work may be writing them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let type_name = core::any::type_name::<T>();
        write!(f, "PinnedHostBuffer({}, {} x {type_name})", self.owner.name(), self.len)
    }
}

impl<T: DeviceCopy> fmt::Debug for PinnedRead<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedRead({})", self.claim.allocation.name())
    }
}

impl<T: DeviceCopy> fmt::Debug for PinnedWrite<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedWrite({})", self.claim.allocation.name())
    }
}

impl Allocation {
    /// Pinned host memory, with undefined content that no work uses.
    fn pinned(context: &Arc<Context>, bytes: usize) -> Result<Owner, MemoryError> {
        if bytes == 0 {
            return Ok(Owner::first(Arc::new(Self::wrap(context.clone(), 0, 0, 0, Kind::Pinned, None))));
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
        let made = Self::wrap(context.clone(), host as u64, bytes, size, Kind::Pinned, Some(region));
        Ok(Owner::first(Arc::new(made)))
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
