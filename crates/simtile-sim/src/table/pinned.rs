//! Host memory that devices reach: page-locked, registered, managed.

use super::memory::{allocate, free_waiting, unsupported};
use crate::core::{Res, StreamRef};
use crate::engine::work::Work;
use crate::entry::{Call, Out, entries};
use crate::heap::MemoryWork;
use crate::memory::{Allocation, Attachment, Backing, DEVICE_BASE, Mapping, MemoryKind, Origin};
use core::ffi::{c_uint, c_void};
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const ATTACH_GLOBAL: u32 = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
const ATTACH_HOST: u32 = CUmemAttach_flags::CU_MEM_ATTACH_HOST.0;
const ATTACH_SINGLE: u32 = CUmemAttach_flags::CU_MEM_ATTACH_SINGLE.0;

/// The page-locked memory that contains a host address.
fn pinned_at<T>(call: &Call<'_>, host: &Out<T>) -> Res<Arc<Allocation>> {
    let address = host.raw().addr() as u64;
    call.core.space.find(address).filter(|a| a.kind == MemoryKind::Pinned).ok_or(INVALID)
}

/// The managed memory that contains all of a range.
fn managed_at(call: &Call<'_>, address: u64, bytes: u64) -> Res<Arc<Allocation>> {
    let found = call.core.space.find(address).filter(|a| a.kind == MemoryKind::Managed);
    found.filter(|a| bytes > 0 && a.offset_of(address, bytes).is_some()).ok_or(INVALID)
}

/// A device or the host (-1).
fn location(call: &Call<'_>, device: CUdevice) -> Res {
    if device == CU_DEVICE_CPU { Ok(()) } else { call.core.device(device).map(drop) }
}

/// Refuses what needs devices that share managed memory with the host.
fn concurrent(call: &Call<'_>) -> Res {
    if call.core.config.concurrent_managed { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_DEVICE) }
}

fn place(call: &Call<'_>, stream: &StreamRef) -> Res {
    call.core.enqueue(stream, Work::Memory(MemoryWork::Place))
}

entries! {
    fn cuMemHostAlloc(call, out: *mut *mut c_void, bytes: usize, flags: c_uint) {
        out.check()?;
        let context = call.context()?;
        let known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if flags & !known != 0 {
            return Err(INVALID);
        }
        if bytes == 0 {
            return out.set(core::ptr::null_mut());
        }
        // With unified addressing all of it is mapped, and the real driver says so.
        let flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
        let made = allocate(call, &context, MemoryKind::Pinned, bytes as u64, flags)?;
        out.set(made.backing().0.as_ptr().cast())
    }

    fn cuMemFreeHost(call, host: *mut c_void) {
        if host.is_null() {
            return Ok(());
        }
        let allocation = pinned_at(call, &host)?;
        if allocation.base != host.raw().addr() as u64 || allocation.origin.registered {
            return Err(INVALID);
        }
        free_waiting(call, &allocation)
    }

    fn cuMemHostRegister(call, host: *mut c_void, bytes: usize, flags: c_uint) {
        let context = call.context()?;
        let known = CU_MEMHOSTREGISTER_PORTABLE
            | CU_MEMHOSTREGISTER_DEVICEMAP
            | CU_MEMHOSTREGISTER_IOMEMORY
            | CU_MEMHOSTREGISTER_READ_ONLY;
        let base = host.raw().addr() as u64;
        let end = base.checked_add(bytes as u64).filter(|end| *end <= DEVICE_BASE).ok_or(INVALID)?;
        if host.is_null() || bytes == 0 || flags & !known != 0 {
            return Err(INVALID);
        }
        if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
            return Err(unsupported(call, "registering I/O memory"));
        }
        let taken = call.core.space.overlapping(base, end - base);
        if taken.iter().any(|a| a.origin.registered) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !taken.is_empty() {
            return Err(INVALID);
        }
        // SAFETY: the caller says that the memory is theirs and stays until it is unregistered, which waits
        // for all work of the context.
        let backing = unsafe { Backing::foreign(host.raw().cast(), bytes as u64) }.ok_or(INVALID)?;
        let origin = Origin {
            context: context.handle.0,
            context_uid: context.uid,
            flags: flags | CU_MEMHOSTREGISTER_DEVICEMAP,
            registered: true,
            ..Origin::default()
        };
        call.core.space.map_whole(Mapping {
            base,
            bytes: bytes as u64,
            kind: MemoryKind::Pinned,
            device: context.device,
            origin,
            backing: Arc::new(backing),
            backing_offset: 0,
            rights: None,
            physical: None,
            multicast: None,
        });
        Ok(())
    }

    fn cuMemHostUnregister(call, host: *mut c_void) {
        call.context()?;
        let base = host.raw().addr() as u64;
        if host.is_null() {
            return Err(INVALID);
        }
        let Some(allocation) = call.core.space.find(base) else {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        };
        if allocation.base != base || !allocation.origin.registered {
            return Err(INVALID);
        }
        free_waiting(call, &allocation)
    }

    fn cuMemHostGetDevicePointer(call, out: *mut CUdeviceptr, host: *mut c_void, flags: c_uint) {
        out.check()?;
        call.context()?;
        if flags != 0 {
            return Err(INVALID);
        }
        pinned_at(call, &host)?;
        out.set(host.raw().addr() as u64)
    }

    fn cuMemHostGetFlags(call, flags: *mut c_uint, host: *mut c_void) {
        flags.check()?;
        call.context()?;
        flags.set(pinned_at(call, &host)?.origin.flags)
    }

    fn cuMemAllocManaged(call, out: *mut CUdeviceptr, bytes: usize, flags: c_uint) {
        out.check()?;
        let context = call.context()?;
        if bytes == 0 || flags != ATTACH_GLOBAL && flags != ATTACH_HOST {
            return Err(INVALID);
        }
        out.set(allocate(call, &context, MemoryKind::Managed, bytes as u64, flags)?.base)
    }

    fn cuMemPrefetchAsync(call, address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream) {
        let stream = call.stream(stream)?;
        managed_at(call, address, bytes as u64)?;
        location(call, device)?;
        // Neither the device nor the stream's may be one that cannot share.
        concurrent(call)?;
        place(call, &stream)
    }

    fn cuMemAdvise(call, address: CUdeviceptr, bytes: usize, advice: CUmem_advise, device: CUdevice) {
        call.context()?;
        managed_at(call, address, bytes as u64)?;
        match advice {
            CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY
            | CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY
            | CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Ok(()),
            CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION
            | CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY
            | CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
                location(call, device)?;
                if device == CU_DEVICE_CPU { Ok(()) } else { concurrent(call) }
            }
            _ => Err(INVALID),
        }
    }

    fn cuStreamAttachMemAsync(call, handle: CUstream, address: CUdeviceptr, bytes: usize, flags: c_uint) {
        let stream = call.stream(handle)?;
        let allocation = managed_at(call, address, 1)?;
        let whole = bytes == 0 || bytes as u64 == allocation.bytes;
        let single_default = flags == ATTACH_SINGLE && stream.legacy;
        if allocation.base != address
            || !whole
            || ![ATTACH_GLOBAL, ATTACH_HOST, ATTACH_SINGLE].contains(&flags)
            || single_default
        {
            return Err(INVALID);
        }
        let to = match flags {
            ATTACH_GLOBAL => Attachment::Global,
            ATTACH_HOST => Attachment::Host,
            _ => Attachment::Stream(stream.uid),
        };
        call.core.enqueue(&stream, Work::Memory(MemoryWork::Attach(allocation, to)))
    }
}
