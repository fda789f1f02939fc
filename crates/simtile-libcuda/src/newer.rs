//! Signatures of CUDA 12.x and 13.0 for entries whose table form is older, and names that CUDA expresses
//! through others. Each is its older form plus arguments that must say "nothing special".

use super::proc_address::Row;
use super::{driver, to_c};
use simtile_driver::Driver;
use simtile_driver::sys::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! newer {
    ($($symbol:literal = $name:ident @ $since:literal fn $rust:ident($driver:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {
        $(
            #[doc = concat!("CUDA's `", $symbol, "`.\n\n# Safety\nAs CUDA's manual says.")]
            #[allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
            #[unsafe(export_name = $symbol)]
            pub unsafe extern "C" fn $rust($($arg: $ty),*) -> CUresult {
                let $driver: Driver = match driver() {
                    Ok(driver) => driver,
                    Err(code) => return code,
                };
                // SAFETY: passed on from the caller.
                to_c(unsafe { $body })
            }
        )*

        pub(crate) const TABLE: &[Row] = &[
            $(Row { name: stringify!($name), since: $since, function: $rust as *const c_void },)*
        ];
    };
}

/// Runs a call for a context that need not be current.
///
/// # Safety
/// `call` is one driver call.
unsafe fn in_context(driver: Driver, context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: push and pop take a handle and an out-pointer.
    unsafe {
        let pushed = driver.cuCtxPushCurrent(context);
        if !pushed.is_ok() {
            return pushed;
        }
        let code = call();
        let mut popped = CUcontext::NULL;
        let restored = driver.cuCtxPopCurrent(&mut popped);
        if code.is_ok() { restored } else { code }
    }
}

/// A device's NUMA-free location as an ordinal: -1 is the host.
fn ordinal(location: CUmemLocation) -> Option<CUdevice> {
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Some(location.id),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Some(CU_DEVICE_CPU),
        _ => None,
    }
}

/// Asks for one of the driver's private tables, which this driver does not have. The compiler library NVRTC asks for some before it
/// compiles, and falls over if this name is missing.
///
/// # Safety
/// `table` can be written unless null.
#[allow(non_snake_case, reason = "the name is CUDA's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) -> CUresult {
    if table.is_null() || id.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's duty; null was tested.
    unsafe { *table = std::ptr::null() };
    CUresult::CUDA_ERROR_NOT_FOUND
}

newer! {
    "cuCtxCreate_v3" = cuCtxCreate @ 11040 fn ctx_create_v3(
        d, context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint, device: CUdevice,
    ) {
        if !affinity.is_null() && count != 0 {
            return CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
        }
        d.cuCtxCreate(context, flags, device)
    }
    "cuCtxCreate_v4" = cuCtxCreate @ 12050 fn ctx_create_v4(
        d, context: *mut CUcontext, params: *mut c_void, flags: c_uint, device: CUdevice,
    ) {
        if !params.is_null() {
            return CUresult::CUDA_ERROR_NOT_SUPPORTED;
        }
        d.cuCtxCreate(context, flags, device)
    }
    "cuCtxSynchronize_v2" = cuCtxSynchronize @ 13000 fn ctx_synchronize_v2(d, context: CUcontext) {
        in_context(d, context, || d.cuCtxSynchronize())
    }
    "cuCtxGetDevice_v2" = cuCtxGetDevice @ 13000 fn ctx_get_device_v2(
        d, device: *mut CUdevice, context: CUcontext,
    ) {
        in_context(d, context, || d.cuCtxGetDevice(device))
    }
    "cuStreamGetCtx_v2" = cuStreamGetCtx @ 12050 fn stream_get_ctx_v2(
        d, stream: CUstream, context: *mut CUcontext, green: *mut CUgreenCtx,
    ) {
        if !green.is_null() {
            *green = CUgreenCtx::NULL;
        }
        d.cuStreamGetCtx(stream, context)
    }
    "cuEventElapsedTime_v2" = cuEventElapsedTime @ 12080 fn event_elapsed_time_v2(
        d, millis: *mut f32, start: CUevent, end: CUevent,
    ) {
        d.cuEventElapsedTime(millis, start, end)
    }
    "cuMemAllocHost_v2" = cuMemAllocHost @ 3020 fn mem_alloc_host(d, pointer: *mut *mut c_void, bytes: usize) {
        d.cuMemHostAlloc(pointer, bytes, 0)
    }
    "cuMemPrefetchAsync_v2" = cuMemPrefetchAsync @ 12020 fn mem_prefetch_async_v2(
        d, pointer: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, stream: CUstream,
    ) {
        match ordinal(location) {
            Some(device) if flags == 0 => d.cuMemPrefetchAsync(pointer, count, device, stream),
            Some(_) => CUresult::CUDA_ERROR_INVALID_VALUE,
            None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        }
    }
    "cuMemAdvise_v2" = cuMemAdvise @ 12020 fn mem_advise_v2(
        d, pointer: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation,
    ) {
        match ordinal(location) {
            Some(device) => d.cuMemAdvise(pointer, count, advice, device),
            None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        }
    }
    "cuGraphInstantiate_v2" = cuGraphInstantiate @ 11000 fn graph_instantiate_v2(
        d, exec: *mut CUgraphExec, graph: CUgraph, _node: *mut CUgraphNode, _log: *mut c_char, _bytes: usize,
    ) {
        d.cuGraphInstantiateWithFlags(exec, graph, 0)
    }
}
