//! Memory handed to foreign code, and its return.
//!
//! An export takes the buffer out of safe use: submissions and guards that need it are refused until it has come back. A shared
//! export leaves both sides the right to read. Foreign code follows what used the memory before
//! ([`Exported::follow_on`], [`Exported::wait`]), and it comes back with the stream of its last use ([`Exported::take_back`]):
//! what is submitted later follows that stream. Without such a stream nobody knows when the last use ends, and the memory
//! is *quarantined*: refused, and not given back, until a [`Context::synchronize_all`](crate::Context::synchronize_all) that began after the return has ended.
#![allow(clippy::result_large_err, reason = "a refusal gives the handle back")]

use super::buffer::DeviceBuffer;
use super::{Allocation, AllocationId, Limbo, Memory, Owner};
use crate::context::Shared;
use crate::error::{Family, MemoryError, OnStream};
use crate::stream::{Submit, thread_token};
use crate::{Refused, Stream};
use core::fmt;
use core::marker::PhantomData;
use simtile_driver::call;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::{Region, Stamp};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;
use smallvec::SmallVec;

/// A buffer that foreign code has.
///
/// # Leaks
/// One that is dropped counts as returned by nobody knows which stream: its memory, and with it the context, stay until
/// [`Context::synchronize_all`](crate::Context::synchronize_all). A forgotten one keeps its memory for ever.
#[must_use = "a dropped export is quarantined"]
pub struct Exported<T: DeviceCopy> {
    /// Taken when it comes back.
    owner: Option<Owner>,
    offset: usize,
    len: usize,
    shared: bool,
    /// What used the memory before.
    before: SmallVec<[Stamp; 4]>,
    marker: PhantomData<T>,
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Hands the buffer to foreign code, which may do with it what it likes.
    ///
    /// The address is used by foreign code, which is unsafe there: it stays live until this export comes back or is dropped, and
    /// its first use has to follow what is in flight ([`Exported::follow_on`], [`Exported::wait`]).
    ///
    /// # Errors
    /// [`StreamError::Conflict`](crate::StreamError::Conflict) if it is exported already, or a guard was forgotten; with the buffer
    /// unharmed.
    pub fn export(self) -> Result<Exported<T>, Refused<Self>> {
        match begin(self.part().allocation, false) {
            Ok(before) => {
                let (owner, offset, len) = self.into_parts();
                Ok(Exported { owner: Some(owner), offset, len, shared: false, before, marker: PhantomData })
            }
            Err(error) => Err(Refused { handle: self, error }),
        }
    }

    /// Lets foreign code read the buffer. Until that ends both sides only read: writes are refused. There is one export at
    /// a time.
    ///
    /// # Errors
    /// As [`DeviceBuffer::export`].
    pub fn export_shared(&self) -> Result<Exported<T>, MemoryError> {
        let before = begin(self.part().allocation, true)?;
        let (owner, offset, len) = self.another();
        Ok(Exported { owner: Some(owner), offset, len, shared: true, before, marker: PhantomData })
    }
}

fn begin(allocation: &Allocation, shared: bool) -> Result<SmallVec<[Stamp; 4]>, MemoryError> {
    let Some(region) = allocation.region() else { return Ok(SmallVec::new()) };
    allocation.context().usable().map_err(|error| MemoryError::from_call(error, allocation.name()))?;
    allocation.context().tracker().export(region, shared).map_err(|error| allocation.host_refused(error))
}

impl<T: DeviceCopy> Exported<T> {
    fn allocation(&self) -> Option<&Allocation> {
        self.owner.as_deref()
    }

    /// Device address of the first element; 0 if there are no bytes.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        match self.allocation() {
            Some(allocation) if self.num_bytes() > 0 => allocation.address() + self.offset as u64,
            _ => 0,
        }
    }

    /// Ordinal of the device.
    pub(crate) fn ordinal(&self) -> Option<i32> {
        i32::try_from(self.allocation()?.context().ordinal()).ok()
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    pub fn num_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Whether both sides may read, and nobody write.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Identity of the allocation; `None` only while it is being taken back.
    pub fn allocation_id(&self) -> Option<AllocationId> {
        self.allocation().map(Allocation::id)
    }

    /// Makes a stream, ours or a borrowed one, wait for everything that used the memory before the export.
    ///
    /// # Errors
    /// The driver's, or the failure of what has to be followed.
    pub fn follow_on(&self, stream: &Arc<Stream>) -> Result<(), MemoryError> {
        let Some(allocation) = self.allocation() else { return Ok(()) };
        let tracker = allocation.context().tracker();
        let on = || format!("{} on {stream}", allocation.name());
        for &stamp in &self.before {
            let event = tracker.event_of(stamp).map_err(|error| allocation.host_refused(error))?;
            let Some(event) = event else { continue };
            stream
                .submit_tracked(&[], Submit::PLAIN, |driver, raw| {
                    // SAFETY: the event is alive and held from being recorded again; CUDA lets streams of any context wait.
                    unsafe { call!(driver, cuStreamWaitEvent(raw, *event.event(), 0)) }
                })
                .map_err(|error| stream.refused::<MemoryError>(error, &[], on))?;
        }
        Ok(())
    }

    /// Waits on the host for everything that used the memory before the export.
    ///
    /// # Errors
    /// As [`Exported::follow_on`].
    pub fn wait(&self) -> Result<(), MemoryError> {
        let Some(allocation) = self.allocation() else { return Ok(()) };
        let tracker = allocation.context().tracker();
        self.before
            .iter()
            .try_for_each(|&stamp| tracker.wait(stamp).map_err(|error| allocation.host_refused(error)))
    }

    /// Takes the buffer back. What is submitted from here on follows everything that `consumer` holds now.
    ///
    /// # Errors
    /// What the stream refuses; the memory is then quarantined as if no stream were known, and the buffer is in the error.
    ///
    /// # Safety
    /// Foreign code uses the memory no more, but for work that is queued on `consumer` already; and every element is a `T`.
    pub unsafe fn take_back(
        mut self,
        consumer: &Arc<Stream>,
    ) -> Result<DeviceBuffer<T>, Refused<DeviceBuffer<T>>> {
        let Some(owner) = self.owner.take() else { unreachable!("taken in here alone") };
        let result = give_back(&owner, Some(consumer));
        let handle = DeviceBuffer::from_owner_at(owner, self.offset, self.len);
        match result {
            Ok(()) => Ok(handle),
            Err(error) => Err(Refused { handle, error }),
        }
    }

    /// Takes the buffer back without knowing the stream of its last use. It is refused by everything until a
    /// [`Context::synchronize_all`](crate::Context::synchronize_all) that begins after this has ended.
    ///
    /// # Leaks
    /// Dropped before that, its memory, and with it the context, stay until then.
    ///
    /// # Safety
    /// Foreign code uses the memory no more, but for work that is queued already; and every element is a `T`.
    pub unsafe fn take_back_unknown(mut self) -> DeviceBuffer<T> {
        let Some(owner) = self.owner.take() else { unreachable!("taken in here alone") };
        // Without a stream the return cannot fail.
        let _ = give_back(&owner, None);
        DeviceBuffer::from_owner_at(owner, self.offset, self.len)
    }
}

fn give_back(owner: &Owner, consumer: Option<&Arc<Stream>>) -> Result<(), MemoryError> {
    let Some(region) = owner.region() else { return Ok(()) };
    let (context, tracker) = (owner.context(), owner.context().tracker());
    let Some(stream) = consumer else {
        return tracker.return_export(region, None).map_err(|error| owner.host_refused(error));
    };
    let unknown = |error: MemoryError| {
        // Nobody knows now.
        let _ = tracker.return_export(region, None);
        error
    };
    if let Err(error) = stream.on_its_thread() {
        return Err(unknown(MemoryError::from_stream(error)));
    }
    // In another context a stream of this one stands for it.
    let agent = if **stream.context() == **context { None } else { Some(stream.agent(context)) };
    let result = match &agent {
        None => match stream.tracked() {
            Some(tracked) => tracker.return_export_as(region, tracked, thread_token()),
            None => tracker.return_export(region, None),
        },
        Some(Ok(agent)) => {
            if let Err(error) = agent.join(stream) {
                return Err(unknown(MemoryError::from_stream(error)));
            }
            match agent.tracked() {
                Some(tracked) => tracker.return_export(region, Some(tracked)),
                None => tracker.return_export(region, None),
            }
        }
        Some(Err(error)) => {
            let what = format!("{} by {stream}: {error}", owner.name());
            return Err(unknown(MemoryError::Foreign {
                what,
                why: "it has no stream in this context".into(),
            }));
        }
    };
    result.map_err(|error| owner.host_refused(error))
}

impl<T: DeviceCopy> Drop for Exported<T> {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        if crate::sys::is_forked() {
            core::mem::forget(owner);
            return;
        }
        let _ = give_back(&owner, None);
        // What foreign code does in a context that is lost is over.
        if owner.region().is_some() && owner.context().loss().is_none() {
            let shared = owner.context().shared().clone();
            shared.memory.limbo.lock().push(Limbo::Export(owner));
        }
    }
}

impl<T: DeviceCopy> fmt::Debug for Exported<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.allocation().map(Allocation::name);
        f.debug_struct("Exported")
            .field("of", &name)
            .field("len", &self.len)
            .field("shared", &self.shared)
            .finish()
    }
}

impl Memory {
    /// Gives it back behind the uses that `region` knows, when its last handle has gone. What foreign code may still use waits until
    /// everything was waited for.
    pub(crate) fn retire(mut self, mut region: Region) {
        let context = self.context().clone();
        let tracker = context.tracker();
        if tracker.is_quarantined(&mut region) {
            let mut limbo = context.shared().memory.limbo.lock();
            // Asked again under the list's lock: whoever ends a synchronisation takes the list after that, and finds it. What
            // foreign code does in a context that is lost is over.
            if tracker.is_quarantined(&mut region) && context.loss().is_none() {
                self.waits();
                limbo.push(Limbo::Dropped(Box::new((region, self))));
                return;
            }
        }
        tracker.retire(region, self);
    }
}

impl Shared {
    /// Everything has been synchronised with, or the context is lost: what came back from nobody knows where can go. What came back
    /// after that synchronisation had begun stays.
    pub(crate) fn leave_limbo(&self) {
        let all = core::mem::take(&mut *self.memory.limbo.lock());
        for held in all {
            match held {
                Limbo::Export(owner) => drop(owner),
                Limbo::Dropped(dropped) => {
                    let (region, memory) = *dropped;
                    memory.retire(region);
                }
            }
        }
    }
}
