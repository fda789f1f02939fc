//! Memory of somebody else: borrowed by address, or owned by a foreign value.
//!
//! An import is tracked as memory of ours is: it has an identity, and what conflicts is ordered. Its owner is dropped when the
//! last handle has gone and the last use has finished, in a lane of its own, so that a destructor that takes long, or
//! panics, holds up nobody.
//!
//! Two identities for the same bytes would be two orders. So a range that lies inside a live import, or inside a live allocation of
//! ours, *joins* it: the new handle is one more of the same allocation. A range that only reaches into one is refused.

use super::allocation::{Keep, Kind};
use super::sealed::Memory;
use super::{Allocation, DeviceBuffer, DeviceMemory, Owner};
use crate::context::{Link, add, drop_user_value, sub};
use crate::error::{MemoryError, On};
use crate::stream::{Submit, Touch};
use crate::{Context, Stream};
use core::any::Any;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::{Access, Mode};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// Device memory that a foreign value owns.
///
/// # Safety
/// As long as the value lives, [`DeviceAllocation::device_ptr`] is the address of [`DeviceAllocation::len_bytes`] bytes of live device
/// memory of [`DeviceAllocation::context`], all three answers stay the same, and nobody touches the bytes
/// in a way that this runtime does not know. Dropping it is allowed on any thread.
pub unsafe trait DeviceAllocation: Send + Sync + Any {
    /// First byte; anything if there are none.
    fn device_ptr(&self) -> CUdeviceptr;

    /// Bytes.
    fn len_bytes(&self) -> usize;

    /// The context that the memory belongs to.
    fn context(&self) -> &Arc<Context>;
}

/// What an import holds: the owner, and a place in the context's counts.
pub(crate) struct Lent {
    owner: Option<Box<dyn Any + Send + Sync>>,
    link: Arc<Link>,
}

impl Lent {
    fn new(context: &Context, owner: Option<Box<dyn Any + Send + Sync>>) -> Self {
        add(&context.counters().foreign_allocations, 1);
        Self { owner, link: context.link().clone() }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !drop_user_value(self.owner.take()) {
            add(&self.link.counters.owner_panics, 1);
        }
        sub(&self.link.counters.foreign_allocations, 1);
    }
}

/// Where imported bytes belong.
enum Found {
    /// Nowhere yet.
    New,
    /// Inside of a live allocation, from this offset on.
    Inside(Owner, usize),
}

impl Context {
    /// The live allocation of this context that holds the bytes.
    fn find_live(&self, address: CUdeviceptr, bytes: usize) -> Result<Found, MemoryError> {
        let refused =
            |why: String| MemoryError::Foreign { what: format!("{bytes} bytes at {address:#x}"), why };
        let end = address
            .checked_add(bytes as u64)
            .ok_or_else(|| refused("they reach beyond the address space".into()))?;
        for known in self.shared().memory.live.all() {
            let (first, last) = (known.address(), known.address() + known.size() as u64);
            if end <= first || last <= address {
                continue;
            }
            let inside = first <= address && end <= first + known.bytes() as u64;
            match (inside, Owner::of_living(&known)) {
                (true, Some(owner)) => return Ok(Found::Inside(owner, (address - first) as usize)),
                // Its last handle is going just now; its uses may go on.
                (true, None) => return Err(refused(format!("{} is being dropped", known.name()))),
                (false, _) => {
                    return Err(refused(format!(
                        "they reach into {} without being a part of it",
                        known.name()
                    )));
                }
            }
        }
        for other in self.shared().others() {
            let mut all = other.memory.live.all().into_iter();
            let overlaps = |known: &Arc<Allocation>| {
                address < known.address() + known.size() as u64 && known.address() < end
            };
            if let Some(known) = all.find(overlaps) {
                return Err(refused(format!("they belong to {} of {}", known.name(), known.context())));
            }
        }
        Ok(Found::New)
    }
}

impl Allocation {
    /// Takes foreign memory in. The place in the allocation, which may be a live one.
    ///
    /// # Safety
    /// The bytes are live memory of the context until the owner is dropped (without one: until nothing made from the result can
    /// reach it any more), and used by nobody in a way that the runtime does not know.
    pub(super) unsafe fn import(
        context: &Arc<Context>,
        address: CUdeviceptr,
        bytes: usize,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<(Owner, usize), MemoryError> {
        let what = || format!("{bytes} bytes at {address:#x}");
        context.usable().on::<MemoryError>(what)?;
        if bytes == 0 {
            drop_user_value(owner);
            return Ok((Owner::first(Self::wrap(context.clone(), 0, 0, 0, Kind::Foreign, None, None)), 0));
        }
        if address == 0 || isize::try_from(bytes).is_err() {
            return Err(MemoryError::Foreign { what: what(), why: "no allocation is like that".into() });
        }
        // One import at a time, or two of the same bytes would both be new.
        let _importing = context.shared().memory.importing.lock();
        if let Found::Inside(known, offset) = context.find_live(address, bytes)? {
            if owner.is_some() {
                known.also_holds(Lent::new(context, owner));
            }
            return Ok((known, offset));
        }
        let region = context.tracker().region(bytes as u64);
        let keep = Some(Keep::Foreign(Lent::new(context, owner)));
        let made = Self::wrap(context.clone(), address, bytes, bytes, Kind::Foreign, Some(region), keep);
        context.shared().memory.live.add(&made);
        Ok((Owner::first(made), 0))
    }
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Takes over stream-ordered memory, which is freed as memory of ours is.
    ///
    /// # Safety
    /// The address is the beginning of an allocation by `cuMemAllocAsync` or from a pool, in the stream's context, of at least `len`
    /// elements; nobody else frees or uses it, and what used it before was queued on the stream or has finished.
    pub(super) unsafe fn adopt(
        stream: &Arc<Stream>,
        address: CUdeviceptr,
        len: usize,
    ) -> Result<Self, MemoryError> {
        let limit = isize::MAX as usize;
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= limit)
            .ok_or(MemoryError::SizeOverflow { count: len, element_bytes: size_of::<T>(), limit })?;
        let refused = |why: &str| MemoryError::Foreign {
            what: format!("{bytes} bytes at {address:#x}"),
            why: why.into(),
        };
        elements::<T>(address, bytes)?;
        let context = stream.context();
        if bytes == 0 {
            if address != 0 {
                return Err(refused("an allocation has bytes; these would never be freed"));
            }
            return Self::undefined(stream, None, 0);
        }
        if address == 0 {
            return Err(refused("no allocation is there"));
        }
        let _importing = context.shared().memory.importing.lock();
        if let Found::Inside(..) = context.find_live(address, bytes)? {
            return Err(refused("they belong to a live allocation"));
        }
        let region = context.tracker().region(bytes as u64);
        // What the stream has already comes before everything that follows.
        let before = [Access::whole(&region, Mode::Write)];
        stream.submit_tracked(&before, Submit::HANDLES, |_, _| Ok(())).map_err(|error| {
            stream.refused::<MemoryError>(error, &[], || format!("memory taken over on {stream}"))
        })?;
        let made = Allocation::wrap(context.clone(), address, bytes, bytes, Kind::Pooled, Some(region), None);
        context.shared().memory.live.add(&made);
        Ok(Self::from_owner_at(Owner::first(made), 0, len))
    }

    /// Takes over memory that a foreign value owns. The value is dropped after the last use of the last handle, on a thread
    /// of the runtime; a panic in that is caught and counted.
    ///
    /// Work that uses the memory already is the caller's to wait for. Bytes that are no value of `T` are refused when
    /// the host reads them.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] if the bytes reach into other memory, or are no `T`s.
    pub fn from_foreign(owner: impl DeviceAllocation) -> Result<Self, MemoryError> {
        let (address, bytes, context) = (owner.device_ptr(), owner.len_bytes(), owner.context().clone());
        let len = elements::<T>(address, bytes)?;
        // SAFETY: the trait's promise.
        unsafe { Self::import(&context, address, len, Some(Box::new(owner))) }
    }

    /// Borrows memory by its address. `owner` is held as long as anything made from the result can reach the memory; without one the caller
    /// keeps the memory that long.
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_foreign`].
    ///
    /// # Safety
    /// `address` is that of `len` elements of live device memory of `context`, and stays that as long as `owner` is held; without an
    /// owner, until this buffer, everything made from it, and the work that uses it are gone. Nobody touches the
    /// elements meanwhile in a way that this runtime does not know, and what did so before has finished.
    pub unsafe fn borrow_raw_parts(
        context: &Arc<Context>,
        address: CUdeviceptr,
        len: usize,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self, MemoryError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(MemoryError::SizeOverflow {
            count: len,
            element_bytes: size_of::<T>(),
            limit: isize::MAX as usize,
        })?;
        elements::<T>(address, bytes)?;
        // SAFETY: the caller's.
        unsafe { Self::import(context, address, len, owner) }
    }

    /// # Safety
    /// As [`Allocation::import`]; the product of length and size is no overflow.
    pub(crate) unsafe fn import(
        context: &Arc<Context>,
        address: CUdeviceptr,
        len: usize,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self, MemoryError> {
        // SAFETY: the caller's.
        let (owner, offset) = unsafe { Allocation::import(context, address, len * size_of::<T>(), owner) }?;
        Ok(Self::from_owner_at(owner, offset, len))
    }
}

/// Holds a value as long as work uses it: a submission that names it ([`SubmitBuilder::read`](crate::SubmitBuilder::read)) or a graph
/// that captured such a one keeps it, until the last use has finished. Then the value is dropped on a thread of the runtime.
pub struct Keepalive {
    owner: Owner,
}

impl Context {
    /// A value that work of this context can hold: the handle of a library, for example.
    pub fn keepalive(self: &Arc<Self>, value: Box<dyn Any + Send + Sync>) -> Keepalive {
        let region = self.tracker().region(1);
        // One byte that is nowhere: only its history matters.
        let keep = Some(Keep::Foreign(Lent::new(self, Some(value))));
        let made = Allocation::wrap(self.clone(), 0, 1, 0, Kind::Foreign, Some(region), keep);
        Keepalive { owner: Owner::first(made) }
    }
}

impl Memory for Keepalive {
    fn touched(&self, mode: Mode) -> Touch<'_> {
        Touch { allocation: &self.owner, start: 0, end: 1, mode, stride: None }
    }

    fn element_bytes(&self) -> usize {
        1
    }

    fn shared_mode(&self) -> Mode {
        Mode::Read
    }

    fn address(&self) -> CUdeviceptr {
        0
    }
}

impl DeviceMemory for Keepalive {}

impl core::fmt::Debug for Keepalive {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keepalive")
    }
}

/// How many elements the bytes are.
fn elements<T>(address: CUdeviceptr, bytes: usize) -> Result<usize, MemoryError> {
    let (size, align) = (size_of::<T>(), align_of::<T>());
    let name = core::any::type_name::<T>();
    let refused = |why| Err(MemoryError::Foreign { what: format!("{bytes} bytes at {address:#x}"), why });
    if bytes > 0 && !address.is_multiple_of(align as u64) {
        return refused(format!("the address is not a multiple of {align}, as {name} needs"));
    }
    match bytes.checked_div(size) {
        None if bytes == 0 => Ok(0),
        Some(len) if len * size == bytes => Ok(len),
        _ => refused(format!("they are no whole number of {name} of {size} bytes")),
    }
}
