//! Virtual memory: reserved addresses, physical memory, and mappings of one in the other.
//!
//! Each is an owner of its own undo. A mapping holds the addresses and the physical memory that it joins, so whatever order handles
//! are dropped in, what happens is: the last use ends, then unmap, then release, then free the addresses. Unmapping takes effect at
//! once in the driver, so it is done in a lane of its own when all stamps on the bytes have completed.
//!
//! One physical memory is mapped once at a time: two addresses of the same bytes would be two identities, and two orders.

use super::allocation::{Keep, Kind};
use super::cast::RawDeviceBuffer;
use super::{Allocation, Owner, location};
use crate::context::{Lane, Link, Work, add, sub};
use crate::error::{CallError, MemoryError, On};
use crate::stream::drops_go_elsewhere;
use crate::{Context, Device};
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_sync::atomic::{AtomicBool, Ordering};
use simtile_sync::{Arc, Mutex};

/// `bytes` rounded up to a multiple of a granularity.
///
/// # Errors
/// [`MemoryError::SizeOverflow`] for a granularity of 0, and where the result does not fit.
pub fn align_size(bytes: usize, granularity: usize) -> Result<usize, MemoryError> {
    let limit = isize::MAX as usize;
    let rounded = if granularity == 0 { None } else { bytes.checked_next_multiple_of(granularity) };
    rounded.filter(|&rounded| rounded <= limit).ok_or(MemoryError::SizeOverflow {
        count: bytes,
        element_bytes: granularity,
        limit,
    })
}

fn properties(device: Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_allocFlags {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Physical memory of a device. It has no address until it is mapped. Shared as `Arc<PhysicalMemory>`.
pub struct PhysicalMemory {
    raw: CUmemGenericAllocationHandle,
    bytes: usize,
    context: Arc<Context>,
    mapped: AtomicBool,
    /// It is mapped somewhere for ever: nothing of it is given back.
    lost: AtomicBool,
    /// Of a multicast object: the memory of each device that is bound to it. Empty for memory proper.
    bound: Option<Vec<(Device, Arc<PhysicalMemory>)>>,
}

/// Reserved addresses, behind which is nothing yet. Shared as `Arc<AddressRange>`.
pub struct AddressRange {
    base: CUdeviceptr,
    bytes: usize,
    granularity: usize,
    context: Arc<Context>,
    /// Bytes that are mapped, as (first, end), in order.
    used: Mutex<Vec<(usize, usize)>>,
    /// Something stays mapped in it for ever: the addresses are not given back.
    lost: AtomicBool,
}

impl Context {
    /// Sizes and offsets of physical memory are multiples of this, bytes.
    ///
    /// # Errors
    /// [`MemoryError::Unsupported`] on a device without virtual memory management, or the driver's.
    pub fn allocation_granularity(&self) -> Result<usize, MemoryError> {
        let on = || format!("virtual memory of {self}");
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let supported = self.device().raw_attribute(attribute).map_err(|error| self.note(error));
        if supported.on::<MemoryError>(on)? <= 0 {
            let (what, why) = ("virtual memory management".into(), format!("{} has none", self.device()));
            return Err(MemoryError::Unsupported { what, why });
        }
        self.with_current(|driver| {
            let props = properties(self.device());
            // The larger of both: what the driver recommends also suits mappings that are shared.
            let mut granularity = 0;
            for option in [
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            ] {
                let mut one = 0;
                // SAFETY: the out-pointer and the properties are valid for the call.
                unsafe { call!(driver, cuMemGetAllocationGranularity(&mut one, &props, option)) }?;
                granularity = granularity.max(one);
            }
            Ok(granularity)
        })
        .on(on)
    }

    /// Physical memory of this context's device, of at least so many bytes: rounded up to the granularity.
    ///
    /// # Errors
    /// As [`Context::allocation_granularity`].
    pub fn physical_memory(self: &Arc<Self>, bytes: usize) -> Result<Arc<PhysicalMemory>, MemoryError> {
        let bytes = align_size(bytes.max(1), self.allocation_granularity()?)?;
        PhysicalMemory::new(self, bytes).map(Arc::new).on(|| format!("{bytes} bytes of physical memory"))
    }

    /// Addresses for at least so many bytes: rounded up to the granularity. They cost no memory.
    ///
    /// # Errors
    /// As [`Context::allocation_granularity`].
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Arc<AddressRange>, MemoryError> {
        let granularity = self.allocation_granularity()?;
        let bytes = align_size(bytes.max(1), granularity)?;
        let made = self.with_current(|driver| {
            let mut base = 0;
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuMemAddressReserve(&mut base, bytes, granularity, 0, 0)) }?;
            Ok(base)
        });
        let base = made.on::<MemoryError>(|| format!("addresses for {bytes} bytes"))?;
        let (used, lost) = (Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(AddressRange { base, bytes, granularity, context: self.clone(), used, lost }))
    }
}

impl PhysicalMemory {
    /// `bytes` is a multiple of the granularity.
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        let raw = context.with_current(|driver| {
            let mut raw = 0;
            // SAFETY: the out-pointer and the properties are valid for the call.
            unsafe { call!(driver, cuMemCreate(&mut raw, bytes, &properties(context.device()), 0)) }?;
            Ok(raw)
        })?;
        add(&context.counters().mapped_bytes, bytes as u64);
        let mapped = AtomicBool::new(false);
        let lost = AtomicBool::new(false);
        Ok(Self { raw, bytes, context: context.clone(), mapped, lost, bound: None })
    }

    /// A multicast object, which is mapped like memory.
    pub(super) fn of_team(raw: CUmemGenericAllocationHandle, bytes: usize, context: &Arc<Context>) -> Self {
        let mapped = AtomicBool::new(false);
        let lost = AtomicBool::new(false);
        Self { raw, bytes, context: context.clone(), mapped, lost, bound: Some(Vec::new()) }
    }

    fn own_bytes(&self) -> usize {
        if self.bound.is_some() { 0 } else { self.bytes }
    }

    /// It is not given back any more. Its bytes, if that is new.
    fn lose(&self) -> usize {
        if self.lost.swap(true, Ordering::Relaxed) { 0 } else { self.own_bytes() }
    }

    /// Memory of a device was bound to the multicast object.
    pub(super) fn bind(&mut self, device: Device, memory: Arc<PhysicalMemory>) {
        self.bound.get_or_insert_default().push((device, memory));
    }

    /// Bytes.
    pub fn num_bytes(&self) -> usize {
        self.bytes
    }

    /// The context whose device has the memory.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The driver's handle. It lives as long as this one and its mapping.
    pub fn handle(&self) -> CUmemGenericAllocationHandle {
        self.raw
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        if crate::sys::is_forked() || self.lost.load(Ordering::Relaxed) {
            return;
        }
        let own = self.own_bytes();
        let (raw, bytes, bound) = (self.raw, self.bytes, self.bound.take());
        away_from_host_functions(&self.context, move |link| {
            for (device, _) in bound.iter().flatten() {
                let device = device.cu_device();
                // SAFETY: it was bound once, and nothing maps the object any more.
                let call =
                    |driver: Driver| unsafe { call!(driver, cuMulticastUnbind(raw, device, 0, bytes)) };
                undo(link, "unbinding from a multicast object", 0, call);
            }
            // SAFETY: the handle is ours, and nothing maps it any more.
            let call = |driver: Driver| unsafe { call!(driver, cuMemRelease(raw)) };
            undo(link, "releasing physical memory", own, call);
            sub(&link.counters.mapped_bytes, own as u64);
        });
    }
}

impl AddressRange {
    /// First address.
    pub fn base(&self) -> CUdeviceptr {
        self.base
    }

    /// Bytes.
    pub fn num_bytes(&self) -> usize {
        self.bytes
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Puts physical memory behind the addresses from byte `offset` on, for the kernels of its own device and of `also`. The result is
    /// memory like any other; when it is dropped it is unmapped after its last use. Its content is undefined.
    ///
    /// # Errors
    /// [`MemoryError::Shape`] for an offset that is no multiple of the granularity, or where something is mapped already;
    /// [`MemoryError::OutOfRange`]; [`MemoryError::NotUnique`] if the memory is mapped somewhere; [`MemoryError::OtherContext`]; or the driver's.
    pub fn map(
        self: &Arc<Self>,
        offset: usize,
        memory: &Arc<PhysicalMemory>,
        also: &[Device],
    ) -> Result<RawDeviceBuffer, MemoryError> {
        if *memory.context != *self.context {
            return Err(MemoryError::OtherContext {
                user: self.to_string(),
                user_context: self.context.to_string(),
                used: memory.to_string(),
                used_context: memory.context.to_string(),
            });
        }
        let mapped = Mapped::new(self.clone(), also)?;
        mapped.add(offset, memory.clone())?;
        let address = self.base + offset as u64;
        Ok(RawDeviceBuffer::from_owner(Allocation::mapped_at(mapped, address, memory.bytes), memory.bytes))
    }

    /// Takes bytes of the range, which nothing else may map then.
    fn take(&self, start: usize, bytes: usize) -> Result<(), MemoryError> {
        let end = start.checked_add(bytes).filter(|&end| end <= self.bytes).ok_or_else(|| {
            let end = start.saturating_add(bytes);
            MemoryError::OutOfRange { buffer: self.to_string(), start, end, len: self.bytes }
        })?;
        let refused = |what| Err(MemoryError::Shape { buffer: self.to_string(), what });
        if !start.is_multiple_of(self.granularity) {
            return refused(format!("offset {start} is no multiple of {}", self.granularity));
        }
        let mut used = self.used.lock();
        if let Some(other) = used.iter().find(|other| other.0 < end && start < other.1) {
            let why = match self.lost.load(Ordering::Relaxed) {
                true => "are mapped already, or could not be unmapped before",
                false => "are mapped already",
            };
            return refused(format!("bytes {start}..{end}: {}..{} {why}", other.0, other.1));
        }
        used.push((start, end));
        Ok(())
    }

    fn give(&self, start: usize) {
        self.used.lock().retain(|known| known.0 != start);
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        if crate::sys::is_forked() || self.lost.load(Ordering::Relaxed) {
            return;
        }
        let (base, bytes) = (self.base, self.bytes);
        away_from_host_functions(&self.context, move |link| {
            // SAFETY: the range is ours, and nothing is mapped in it.
            let call = |driver: Driver| unsafe { call!(driver, cuMemAddressFree(base, bytes)) };
            undo(link, "freeing addresses", 0, call);
        });
    }
}

/// Runs a drop's calls now, or in the background where none may be made.
fn away_from_host_functions(context: &Arc<Context>, run: impl FnOnce(&Link) + Send + 'static) {
    if !drops_go_elsewhere() {
        return run(context.link());
    }
    let (lanes, context) = (context.shared().lanes.clone(), context.clone());
    lanes.push(Lane::Mapped, Work::Job(Box::new(move || run(context.link()))));
}

/// A call of a drop. Where it fails, bytes are lost.
fn undo(link: &Link, what: &str, bytes: usize, call: impl FnOnce(Driver) -> Result<(), DriverError>) -> bool {
    let done = link.finish(|| what.into(), call);
    if !done && !matches!(link.usable(), Err(CallError::Deinitialized | CallError::Forked)) {
        add(&link.counters.failed_frees, 1);
        add(&link.counters.leaked_bytes, bytes as u64);
    }
    done
}

/// A piece of a range with memory behind it.
struct Piece {
    offset: usize,
    memory: Arc<PhysicalMemory>,
}

/// Mappings in one range, which one allocation holds.
pub(crate) struct Mapped {
    pieces: Mutex<Vec<Piece>>,
    /// Devices whose kernels reach it.
    devices: Mutex<Vec<Device>>,
    /// After the pieces: addresses go last.
    range: Arc<AddressRange>,
}

impl Mapped {
    pub(super) fn new(range: Arc<AddressRange>, also: &[Device]) -> Result<Self, MemoryError> {
        let own = range.context.device();
        let mut devices = vec![own];
        for &device in also {
            reachable(device, own)?;
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        Ok(Self { pieces: Mutex::default(), devices: Mutex::new(devices), range })
    }

    pub(super) fn is_open_to(&self, device: Device) -> bool {
        self.devices.lock().contains(&device)
    }

    pub(super) fn range(&self) -> &Arc<AddressRange> {
        &self.range
    }

    /// Bytes of physical memory.
    pub(super) fn num_bytes(&self) -> usize {
        self.pieces.lock().iter().map(|piece| piece.memory.bytes).sum()
    }

    /// Bytes of physical memory that lives by these mappings; a multicast object has none of its own.
    pub(super) fn own_bytes(&self) -> usize {
        self.pieces.lock().iter().map(|piece| piece.memory.own_bytes()).sum()
    }

    /// Maps memory and lets the devices use it; all or nothing.
    pub(super) fn add(&self, offset: usize, memory: Arc<PhysicalMemory>) -> Result<(), MemoryError> {
        if memory.mapped.swap(true, Ordering::AcqRel) {
            let (buffer, what) = (memory.to_string(), "mapping it");
            return Err(MemoryError::NotUnique { buffer, what, handles: 2 });
        }
        if let Err(refused) = self.range.take(offset, memory.bytes) {
            memory.mapped.store(false, Ordering::Release);
            return Err(refused);
        }
        let piece = Piece { offset, memory };
        let mut is_mapped = false;
        match self.map(&piece, &mut is_mapped) {
            Ok(()) => {
                self.pieces.lock().push(piece);
                Ok(())
            }
            Err(error) => {
                if is_mapped {
                    self.unmap(piece);
                } else {
                    self.give(&piece);
                }
                Err(error)
            }
        }
    }

    /// Maps a piece whose addresses are taken. `is_mapped`: it is, whether kernels reach it or not.
    fn map(&self, piece: &Piece, is_mapped: &mut bool) -> Result<(), MemoryError> {
        let (range, bytes) = (&*self.range, piece.memory.bytes);
        let address = range.base + piece.offset as u64;
        let descs = access(&self.devices.lock());
        let mapped = range.context.with_current(|driver| {
            // SAFETY: the range is ours and free there, the memory is alive.
            unsafe { call!(driver, cuMemMap(address, bytes, 0, piece.memory.raw, 0)) }?;
            *is_mapped = true;
            // SAFETY: the descriptions are valid for the call.
            unsafe { call!(driver, cuMemSetAccess(address, bytes, descs.as_ptr(), descs.len())) }
        });
        mapped.on(|| format!("{bytes} bytes at {address:#x} of {range}"))
    }

    /// Addresses and memory of a piece that is not mapped are free for others.
    fn give(&self, piece: &Piece) {
        self.range.give(piece.offset);
        piece.memory.mapped.store(false, Ordering::Release);
    }

    /// Unmaps all from byte `from` on. Nothing uses them any more.
    pub(super) fn remove_from(&self, from: usize) {
        let gone: Vec<Piece> = self.pieces.lock().extract_if(.., |piece| piece.offset >= from).collect();
        gone.into_iter().for_each(|piece| self.unmap(piece));
    }

    fn unmap(&self, piece: Piece) {
        let (range, bytes) = (&*self.range, piece.memory.bytes);
        let address = range.base + piece.offset as u64;
        // SAFETY: it is a mapping of ours, all uses of which have finished.
        let call = |driver: Driver| unsafe { call!(driver, cuMemUnmap(address, bytes)) };
        let link = range.context.link();
        if link.finish(|| "unmapping".into(), call) {
            self.give(&piece);
            return;
        }
        // Still mapped: neither may go. From here on it counts as lost.
        let own = self.leave(&piece) as u64;
        sub(&link.counters.mapped_bytes, own);
        if !matches!(link.usable(), Err(CallError::Deinitialized | CallError::Forked)) {
            add(&link.counters.failed_frees, 1);
            add(&link.counters.leaked_bytes, own);
        }
    }
}

impl Mapped {
    /// The piece stays mapped for ever, so neither it nor its addresses are given back. No context is kept for that. The
    /// bytes that are lost with it, and were not before.
    fn leave(&self, piece: &Piece) -> usize {
        self.range.lost.store(true, Ordering::Relaxed);
        for (_, memory) in piece.memory.bound.iter().flatten() {
            // What a multicast object shows stays too.
            let bytes = memory.lose() as u64;
            if bytes > 0 {
                let counters = memory.context.counters();
                sub(&counters.mapped_bytes, bytes);
                add(&counters.failed_frees, 1);
                add(&counters.leaked_bytes, bytes);
            }
        }
        piece.memory.lose()
    }

    /// All stays mapped for ever. The bytes that are lost with it, and were not before.
    pub(super) fn leave_all(self) -> usize {
        let pieces = core::mem::take(&mut *self.pieces.lock());
        pieces.iter().map(|piece| self.leave(piece)).sum()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !crate::sys::is_forked() {
            self.remove_from(0);
        }
    }
}

fn access(devices: &[Device]) -> Vec<CUmemAccessDesc> {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    devices.iter().map(|&device| CUmemAccessDesc { location: location(device), flags }).collect()
}

/// Whether kernels of `device` can be given memory of `own`.
fn reachable(device: Device, own: Device) -> Result<(), MemoryError> {
    let refused = |why: String| {
        Err(MemoryError::Unsupported { what: format!("memory of {own} for kernels of {device}"), why })
    };
    if device.driver() != own.driver() {
        return refused("they belong to two drivers".into());
    }
    if device == own {
        return Ok(());
    }
    match device.can_access_peer(own) {
        Ok(true) => Ok(()),
        Ok(false) => refused("the driver says that they are no peers".into()),
        Err(error) => refused(error.to_string()),
    }
}

impl Allocation {
    /// An allocation of mappings. `bytes` may be more than what is mapped yet.
    pub(super) fn mapped_at(mapped: Mapped, address: CUdeviceptr, bytes: usize) -> Owner {
        let context = mapped.range.context.clone();
        let region = context.tracker().region(bytes as u64);
        let keep = Some(Keep::Mapped(mapped));
        let made = Self::wrap(context.clone(), address, bytes, bytes, Kind::Mapped, Some(region), keep);
        context.shared().memory.live.add(&made);
        Owner::first(made)
    }
}

impl fmt::Display for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "physical memory {:#x} of {} bytes", self.raw, self.bytes)
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PhysicalMemory({self}, {})", self.context)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "addresses {:#x}..{:#x}", self.base, self.base + self.bytes as u64)
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressRange({self}, {})", self.context)
    }
}
