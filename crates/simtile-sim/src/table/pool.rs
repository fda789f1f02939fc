//! Stream-ordered memory and pools.

use super::memory::unsupported;
use crate::core::Res;
use crate::entry::{Call, In, Out, entries};
use crate::memory::{Pool, access_of};
use core::ffi::c_void;
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn allocate(
    call: &Call<'_>,
    out: &Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
    pool: impl FnOnce(i32) -> Res<Arc<Pool>>,
) -> Res {
    out.check()?;
    let stream = call.stream(stream)?;
    let pool = pool(stream.context.device)?;
    if bytes == 0 {
        return out.set(0);
    }
    if let Some(base) = call.core.capture_allocation(&stream, pool.device, bytes as u64)? {
        return out.set(base);
    }
    call.core.state.lock().refuse_unsafe()?;
    out.set(call.core.heap.pools.allocate(call.core, &pool, bytes as u64, &stream)?.base)
}

/// The device that properties name.
fn device_of(call: &Call<'_>, props: &CUmemPoolProps) -> Res<i32> {
    let known = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0
        | CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32.0
        | CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32_KMT.0
        | CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
    if props.allocType != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED
        || props.handleTypes.0 & !known != 0
        || props.reserved.iter().any(|byte| *byte != 0)
    {
        return Err(INVALID);
    }
    match props.location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {}
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
            return Err(unsupported(call, "a pool in host memory"));
        }
        _ => return Err(INVALID),
    }
    let device = call.core.device(props.location.id).map_err(|_| INVALID)?;
    if props.handleTypes.0 != 0 {
        return Err(unsupported(call, "a pool that can be shared between processes"));
    }
    Ok(device)
}

fn switch(value: &Out<c_void>) -> Res<bool> {
    // SAFETY: not null (checked by the entry); the value of a switch is an int.
    Ok(unsafe { value.raw().cast::<u32>().read_unaligned() } != 0)
}

fn long(value: &Out<c_void>) -> u64 {
    // SAFETY: not null (checked by the entry); the value of a size is a cuuint64_t.
    unsafe { value.raw().cast::<u64>().read_unaligned() }
}

/// What a pool allows a device, for `cuMemPoolSetAccess`.
fn access(call: &Call<'_>, pool: &Pool, desc: &CUmemAccessDesc) -> Res<(i32, u32)> {
    if desc.location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return match desc.location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => Err(INVALID),
        };
    }
    let device = call.core.device(desc.location.id)?;
    match access_of(desc.flags.0) {
        Some(Some(crate::memory::Access::Read)) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        // A device cannot lose its own memory.
        Some(None) if device == pool.device => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
        Some(_) => Ok((device, desc.flags.0)),
        None => Err(INVALID),
    }
}

entries! {
    fn cuMemAllocAsync(call, out: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        allocate(call, &out, bytes, stream, |device| call.core.heap.pools.current_of(call.core, device))
    }

    fn cuMemAllocFromPoolAsync(call, out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) {
        allocate(call, &out, bytes, stream, |_| call.core.heap.pools.get(pool.0))
    }

    fn cuMemFreeAsync(call, address: CUdeviceptr, stream: CUstream) {
        let stream = call.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        if call.core.capture_free(&stream, address)? {
            return Ok(());
        }
        call.core.state.lock().refuse_unsafe()?;
        match call.core.free_graph_memory(address, Some(&stream)) {
            Some(result) => result,
            None => call.core.heap.pools.free(call.core, address, &stream),
        }
    }

    fn cuMemPoolCreate(call, out: *mut CUmemoryPool, props: *const CUmemPoolProps) {
        out.check()?;
        let props = props.get()?;
        let device = device_of(call, &props)?;
        out.set(CUmemoryPool(call.core.heap.pools.create(call.core, device, props.maxSize as u64)?.handle))
    }

    fn cuMemPoolDestroy(call, pool: CUmemoryPool) {
        call.core.heap.pools.destroy(call.core, pool.0)
    }

    fn cuMemPoolTrimTo(call, pool: CUmemoryPool, keep: usize) {
        let pool = call.core.heap.pools.get(pool.0)?;
        call.core.heap.pools.trim(call.core, &pool, keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(call, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        use CUmemPool_attribute as A;
        let pool = call.core.heap.pools.get(pool.0)?;
        if value.is_null() {
            return Err(INVALID);
        }
        let (reuse, stats) = (pool.reuse(), pool.stats());
        let switch = |on: bool| {
            // SAFETY: not null; the value of a switch is an int.
            unsafe { value.raw().cast::<u32>().write_unaligned(u32::from(on)) };
            Ok(())
        };
        let size = |bytes: u64| {
            // SAFETY: not null; the value of a size is a cuuint64_t.
            unsafe { value.raw().cast::<u64>().write_unaligned(bytes) };
            Ok(())
        };
        match attribute {
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => switch(reuse.follow_events),
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => switch(reuse.opportunistic),
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => switch(reuse.internal),
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => size(pool.threshold()),
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => size(stats.reserved),
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => size(stats.reserved_high),
            A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => size(stats.used),
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => size(stats.used_high),
            _ => Err(INVALID),
        }
    }

    fn cuMemPoolSetAttribute(call, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        use CUmemPool_attribute as A;
        let pool = call.core.heap.pools.get(pool.0)?;
        if value.is_null() {
            return Err(INVALID);
        }
        match attribute {
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
                let on = switch(&value)?;
                pool.set_reuse(|reuse| reuse.follow_events = on);
            }
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => {
                let on = switch(&value)?;
                pool.set_reuse(|reuse| reuse.opportunistic = on);
            }
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                let on = switch(&value)?;
                pool.set_reuse(|reuse| reuse.internal = on);
            }
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.set_threshold(long(&value)),
            // A high mark can only be set back to what is now, by 0.
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if long(&value) == 0 => pool.reset_high(true),
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH if long(&value) == 0 => pool.reset_high(false),
            _ => return Err(INVALID),
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(call, flags: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation) {
        let pool = call.core.heap.pools.get(pool.0)?;
        flags.check()?;
        let location = location.get()?;
        match location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = call.core.device(location.id).map_err(|_| INVALID)?;
                flags.set(CUmemAccess_flags(pool.rights.get(device)))
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => flags.set(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE),
            _ => Err(INVALID),
        }
    }

    fn cuMemPoolSetAccess(call, pool: CUmemoryPool, descs: *const CUmemAccessDesc, count: usize) {
        let pool = call.core.heap.pools.get(pool.0)?;
        if count == 0 {
            return Err(INVALID);
        }
        let all = descriptors(&descs, count)?.iter().map(|desc| access(call, &pool, desc)).collect::<Res<Vec<_>>>()?;
        for (device, flags) in all {
            pool.rights.set(device, flags);
        }
        Ok(())
    }

    fn cuDeviceGetDefaultMemPool(call, out: *mut CUmemoryPool, device: CUdevice) {
        out.check()?;
        let device = call.core.device(device)?;
        out.set(CUmemoryPool(call.core.heap.pools.default_of(call.core, device)?.handle))
    }

    fn cuDeviceGetMemPool(call, out: *mut CUmemoryPool, device: CUdevice) {
        out.check()?;
        let device = call.core.device(device)?;
        out.set(CUmemoryPool(call.core.heap.pools.current_of(call.core, device)?.handle))
    }

    fn cuDeviceSetMemPool(call, device: CUdevice, pool: CUmemoryPool) {
        let device = call.core.device(device)?;
        let pool = call.core.heap.pools.get(pool.0)?;
        call.core.heap.pools.set_current(device, &pool)
    }
}

/// The elements of an array argument.
pub(super) fn descriptors(descs: &In<CUmemAccessDesc>, count: usize) -> Res<Vec<CUmemAccessDesc>> {
    if descs.is_null() {
        return Err(INVALID);
    }
    (0..count).map(|i| descs.get_at(i)).collect()
}
