//! Virtual memory: addresses, memory handles, mappings, access.

use super::memory::unsupported;
use super::pool::descriptors;
use crate::core::Res;
use crate::entry::{Call, entries};
use crate::memory::{GRANULARITY, Object, PhysicalRequest, VmmError, access_of};
use core::ffi::c_void;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

pub(super) fn code(error: VmmError) -> CUresult {
    match error {
        VmmError::Invalid | VmmError::NoHandle => INVALID,
        VmmError::Unsupported => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        VmmError::Short(_) => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// What is allowed to whom, for `cuMemSetAccess`.
fn access(call: &Call<'_>, desc: &CUmemAccessDesc) -> Res<(i32, u32)> {
    match desc.location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {}
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(INVALID),
    }
    let device = call.core.device(desc.location.id).map_err(|_| INVALID)?;
    access_of(desc.flags.0).ok_or(INVALID)?;
    Ok((device, desc.flags.0))
}

entries! {
    fn cuMemAddressReserve(call, out: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: u64) {
        out.check()?;
        if flags != 0 {
            return Err(INVALID);
        }
        let core = call.core;
        out.set(core.heap.vmm.reserve(&core.space, bytes as u64, align as u64, hint).map_err(code)?)
    }

    fn cuMemAddressFree(call, address: CUdeviceptr, bytes: usize) {
        call.core.heap.vmm.unreserve(&call.core.space, address, bytes as u64).map_err(code)
    }

    fn cuMemCreate(call, out: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: u64) {
        out.check()?;
        let prop = prop.get()?;
        if flags != 0 || prop.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(INVALID);
        }
        match prop.location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {}
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
                return Err(unsupported(call, "memory of the host behind a handle"));
            }
            _ => return Err(INVALID),
        }
        let request = PhysicalRequest {
            bytes: bytes as u64,
            device: call.core.device(prop.location.id)?,
            handle_types: prop.requestedHandleTypes.0,
            compression: prop.allocFlags.compressionType,
            usage: prop.allocFlags.usage,
        };
        let core = call.core;
        let made = match core.heap.vmm.create(&core.space, request) {
            Err(VmmError::Short(_)) if core.heap.pools.trim_all(core, request.device) => {
                core.heap.vmm.create(&core.space, request)
            }
            other => other,
        };
        out.set(made.map_err(code)?)
    }

    fn cuMemRelease(call, handle: CUmemGenericAllocationHandle) {
        call.core.heap.vmm.release(handle).map_err(code)
    }

    fn cuMemMap(call, address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) {
        if flags != 0 {
            return Err(INVALID);
        }
        let core = call.core;
        core.heap.vmm.map(&core.space, address, bytes as u64, offset as u64, handle).map(drop).map_err(code)
    }

    fn cuMemUnmap(call, address: CUdeviceptr, bytes: usize) {
        call.core.heap.vmm.unmap(&call.core.space, address, bytes as u64).map(drop).map_err(code)
    }

    fn cuMemSetAccess(call, address: CUdeviceptr, bytes: usize, descs: *const CUmemAccessDesc, count: usize) {
        if count == 0 {
            return Err(INVALID);
        }
        let rights = descriptors(&descs, count)?.iter().map(|desc| access(call, desc)).collect::<Res<Vec<_>>>()?;
        call.core.heap.vmm.set_access(&call.core.space, address, bytes as u64, &rights).map_err(code)
    }

    fn cuMemGetAccess(call, flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr) {
        flags.check()?;
        let location = location.get()?;
        if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID);
        }
        let device = call.core.device(location.id)?;
        let core = call.core;
        flags.set(u64::from(core.heap.vmm.access(&core.space, address, device).map_err(code)?))
    }

    fn cuMemGetAllocationGranularity(call, out: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) {
        let _ = call;
        out.check()?;
        // The properties make no difference, as on the real driver.
        prop.get()?;
        match option {
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
            | CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED => out.set(GRANULARITY as usize),
            _ => Err(INVALID),
        }
    }

    fn cuMemGetAllocationPropertiesFromHandle(call, out: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) {
        out.check()?;
        let Object::Memory(memory) = call.core.heap.vmm.object(handle).map_err(code)? else {
            return Err(INVALID);
        };
        out.set(CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType(memory.handle_types),
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: memory.device,
            },
            win32HandleMetaData: core::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_allocFlags {
                compressionType: memory.compression,
                gpuDirectRDMACapable: 0,
                usage: memory.usage,
                reserved: [0; 4],
            },
        })
    }

    fn cuMemRetainAllocationHandle(call, out: *mut CUmemGenericAllocationHandle, address: *mut c_void) {
        out.check()?;
        let core = call.core;
        out.set(core.heap.vmm.retain(&core.space, address.raw().addr() as u64).map_err(code)?)
    }

    fn cuMemExportToShareableHandle(call, out: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64) {
        if out.is_null() || flags != 0 {
            return Err(INVALID);
        }
        let object = call.core.heap.vmm.object(handle).map_err(code)?;
        // A kind that was not asked for at creation is refused by every driver.
        let asked = match &object {
            Object::Memory(memory) => memory.handle_types,
            Object::Multicast(_) => u32::MAX,
        };
        if kind.0 == 0 || asked & kind.0 != kind.0 {
            return Err(INVALID);
        }
        Err(unsupported(call, "a handle that another process can import"))
    }

    fn cuMemImportFromShareableHandle(call, out: *mut CUmemGenericAllocationHandle, handle: *mut c_void, kind: CUmemAllocationHandleType) {
        out.check()?;
        let _ = (handle, kind);
        Err(unsupported(call, "a handle of another process"))
    }
}
