//! The null driver: every call succeeds at once and does nothing.
//!
//! For measuring what a host runtime costs by itself. Out-parameters that a runtime needs to go on get
//! sensible values: one device of the default profile, handles that are never 0, addresses that grow, pinned
//! memory that is real host memory, events and streams that are always done. Nothing is checked, nothing is
//! remembered but pinned memory, and a download leaves the host's memory as it was.

use crate::core::Res;
use crate::engine::capture::exchange_mode;
use crate::entry::Arg;
use crate::profile::Profile;
use core::ffi::{c_char, c_int, c_uint, c_void};
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverKind, State, Table};
use simtile_sync::Mutex;
use simtile_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::alloc::Layout;
use std::collections::BTreeMap;

/// The null driver. All calls of this function give the same driver value.
pub fn null() -> Driver {
    // SAFETY: the table's functions take no state, and may be called from any thread.
    unsafe { Driver::from_parts(&TABLE, State::none()) }
}

const PROFILE: Profile = Profile::H200;
const MEMORY: usize = 4 << 30;

/// A handle that was not given out before.
fn handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// An address range that was not given out before, above what the host can map.
fn address(bytes: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 48);
    NEXT.fetch_add((bytes.max(1) as u64).next_multiple_of(512), Ordering::Relaxed)
}

/// The one context.
const CONTEXT: CUcontext = CUcontext(0x100);
/// The one pool.
const POOL: CUmemoryPool = CUmemoryPool(0x200);

/// Live pinned memory: address and layout.
static PINNED: Mutex<BTreeMap<usize, Layout>> = Mutex::new(BTreeMap::new());

fn pin(bytes: usize) -> Res<*mut c_void> {
    let layout =
        Layout::from_size_align(bytes.max(1), 4096).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    // SAFETY: the size is not 0.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    PINNED.lock().insert(memory.addr(), layout);
    Ok(memory.cast())
}

fn unpin(memory: *mut c_void) {
    if let Some(layout) = PINNED.lock().remove(&memory.addr()) {
        // SAFETY: allocated by `pin` with this layout, and taken off the list just now.
        unsafe { std::alloc::dealloc(memory.cast(), layout) };
    }
}

macro_rules! all_succeed {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        const SUCCEED: Table = Table {
            kind: DriverKind::Null,
            extras: None,
            $($name: {
                #[allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
                unsafe fn succeed(_: State $(, _: $ty)*) -> CUresult {
                    CUresult::CUDA_SUCCESS
                }
                succeed
            },)*
        };
    };
}

simtile_driver::driver_entries!(all_succeed);

macro_rules! answers {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
            unsafe fn $name(_: State $(, $arg: $ty)*) -> CUresult {
                $(
                    // SAFETY: the caller of an entry says that its pointers are valid for the call.
                    let $arg = unsafe { Arg::wrap($arg) };
                )*
                let answer = move || -> Res { $body };
                match answer() {
                    Ok(()) => CUresult::CUDA_SUCCESS,
                    Err(code) => code,
                }
            }
        )*

        static TABLE: Table = Table { $($name,)* ..SUCCEED };
    };
}

answers! {
    fn cuDriverGetVersion(version: *mut c_int) { version.set(PROFILE.driver_version()) }
    fn cuDeviceGetCount(count: *mut c_int) { count.set(1) }
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        if ordinal != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        device.set(0)
    }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: CUdevice) {
        name.set_text(len, "simtile null device")
    }
    fn cuDeviceGetUuid(uuid: *mut CUuuid, _device: CUdevice) {
        uuid.set(CUuuid { bytes: b"simtile null dev".map(|byte| byte as c_char) })
    }
    fn cuDeviceTotalMem(bytes: *mut usize, _device: CUdevice) { bytes.set(MEMORY) }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, _device: CUdevice) {
        value.set(PROFILE.attribute(attribute).unwrap_or(0))
    }
    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, _device: CUdevice) {
        text.set_text(len, "0000:01:00.0")
    }
    fn cuDeviceGetByPCIBusId(device: *mut CUdevice, _text: *const c_char) { device.set(0) }
    fn cuDeviceCanAccessPeer(can: *mut c_int, _device: CUdevice, _peer: CUdevice) { can.set(0) }
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, _device: CUdevice) { pool.set(POOL) }
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, _device: CUdevice) { pool.set(POOL) }
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, _device: CUdevice) { context.set(CONTEXT) }
    fn cuDevicePrimaryCtxGetState(_device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        flags.set_if(0);
        active.set_if(1);
        Ok(())
    }
    fn cuCtxCreate(context: *mut CUcontext, _flags: c_uint, _device: CUdevice) {
        context.set(CUcontext(handle()))
    }
    fn cuCtxGetCurrent(context: *mut CUcontext) { context.set(CONTEXT) }
    fn cuCtxPopCurrent(context: *mut CUcontext) {
        context.set_if(CONTEXT);
        Ok(())
    }
    fn cuCtxGetDevice(device: *mut CUdevice) { device.set(0) }
    fn cuCtxGetFlags(flags: *mut c_uint) { flags.set(8) }
    fn cuCtxGetId(context: CUcontext, id: *mut u64) { id.set(context.0.max(CONTEXT.0) as u64) }
    fn cuCtxGetApiVersion(_context: CUcontext, version: *mut c_uint) { version.set(3020) }
    fn cuCtxGetLimit(value: *mut usize, _limit: CUlimit) { value.set(1024) }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        let (low, high) = PROFILE.priorities();
        least.set_if(low);
        greatest.set_if(high);
        Ok(())
    }
    fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) { stream.set(CUstream(handle())) }
    fn cuStreamCreateWithPriority(stream: *mut CUstream, _flags: c_uint, _priority: c_int) {
        stream.set(CUstream(handle()))
    }
    fn cuStreamGetPriority(_stream: CUstream, priority: *mut c_int) { priority.set(0) }
    fn cuStreamGetFlags(_stream: CUstream, flags: *mut c_uint) { flags.set(1) }
    fn cuStreamGetId(stream: CUstream, id: *mut u64) { id.set(stream.0 as u64) }
    fn cuStreamGetCtx(_stream: CUstream, context: *mut CUcontext) { context.set(CONTEXT) }
    fn cuStreamGetDevice(_stream: CUstream, device: *mut CUdevice) { device.set(0) }
    fn cuStreamIsCapturing(_stream: CUstream, status: *mut CUstreamCaptureStatus) {
        status.set(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
    fn cuStreamGetCaptureInfo(_stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, _nodes: *mut *const CUgraphNode, count: *mut usize) {
        id.set_if(0);
        graph.set_if(CUgraph::NULL);
        count.set_if(0);
        status.set(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
    fn cuStreamEndCapture(_stream: CUstream, graph: *mut CUgraph) { graph.set(CUgraph(handle())) }
    fn cuEventCreate(event: *mut CUevent, _flags: c_uint) { event.set(CUevent(handle())) }
    fn cuEventElapsedTime(millis: *mut f32, _start: CUevent, _end: CUevent) { millis.set(0.0) }
    fn cuMemGetInfo(free: *mut usize, total: *mut usize) {
        free.set_if(MEMORY);
        total.set_if(MEMORY);
        Ok(())
    }
    fn cuMemAlloc(out: *mut CUdeviceptr, bytes: usize) { out.set(address(bytes)) }
    fn cuMemAllocPitch(out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, _element: c_uint) {
        let row = width.max(1).checked_next_multiple_of(512).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        pitch.set(row)?;
        out.set(address(bytes))
    }
    fn cuMemAllocAsync(out: *mut CUdeviceptr, bytes: usize, _stream: CUstream) { out.set(address(bytes)) }
    fn cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, bytes: usize, _pool: CUmemoryPool, _stream: CUstream) {
        out.set(address(bytes))
    }
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, _props: *const CUmemPoolProps) {
        pool.set(CUmemoryPool(handle()))
    }
    fn cuMemPoolGetAttribute(_pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        // The first three are ints, the rest 64-bit numbers.
        let wide = attribute >= CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value = value.raw();
        // SAFETY: the caller's pointer is valid for an attribute of this width.
        unsafe {
            if wide { value.cast::<u64>().write_unaligned(0) } else { value.cast::<c_int>().write_unaligned(0) }
        }
        Ok(())
    }
    fn cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        out.check()?;
        out.set(pin(bytes)?)
    }
    fn cuMemFreeHost(memory: *mut c_void) {
        unpin(memory.raw());
        Ok(())
    }
    fn cuMemAllocManaged(out: *mut CUdeviceptr, bytes: usize, _flags: c_uint) {
        out.check()?;
        out.set(pin(bytes)?.expose_provenance() as u64)
    }
    fn cuMemFree(memory: CUdeviceptr) {
        // Managed memory is host memory.
        if memory < 1 << 48 {
            unpin(std::ptr::with_exposed_provenance_mut(memory as usize));
        }
        Ok(())
    }
    fn cuMemHostGetDevicePointer(out: *mut CUdeviceptr, memory: *mut c_void, _flags: c_uint) {
        out.set(memory.raw().expose_provenance() as u64)
    }
    fn cuMemHostGetFlags(flags: *mut c_uint, _memory: *mut c_void) { flags.set(0) }
    fn cuMemGetAddressRange(base: *mut CUdeviceptr, bytes: *mut usize, memory: CUdeviceptr) {
        base.set_if(memory);
        bytes.set_if(512);
        Ok(())
    }
    fn cuMemAddressReserve(out: *mut CUdeviceptr, bytes: usize, _alignment: usize, _at: CUdeviceptr, _flags: u64) {
        out.set(address(bytes))
    }
    fn cuMemCreate(out: *mut CUmemGenericAllocationHandle, _bytes: usize, _props: *const CUmemAllocationProp, _flags: u64) {
        out.set(handle() as u64)
    }
    fn cuMemGetAllocationGranularity(out: *mut usize, _props: *const CUmemAllocationProp, _option: CUmemAllocationGranularity_flags) {
        out.set(2 << 20)
    }
    fn cuModuleLoad(module: *mut CUmodule, _path: *const c_char) { module.set(CUmodule(handle())) }
    fn cuModuleLoadData(module: *mut CUmodule, _image: *const c_void) { module.set(CUmodule(handle())) }
    fn cuModuleLoadDataEx(module: *mut CUmodule, _image: *const c_void, _count: c_uint, _options: *mut CUjit_option, _values: *mut *mut c_void) {
        module.set(CUmodule(handle()))
    }
    fn cuModuleLoadFatBinary(module: *mut CUmodule, _image: *const c_void) { module.set(CUmodule(handle())) }
    fn cuModuleGetFunction(function: *mut CUfunction, _module: CUmodule, _name: *const c_char) {
        function.set(CUfunction(handle()))
    }
    fn cuModuleGetFunctionCount(count: *mut c_uint, _module: CUmodule) { count.set(0) }
    fn cuModuleGetGlobal(out: *mut CUdeviceptr, bytes: *mut usize, _module: CUmodule, _name: *const c_char) {
        out.set_if(address(512));
        bytes.set_if(512);
        Ok(())
    }
    fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) {
        mode.set(CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING)
    }
    fn cuLibraryLoadData(library: *mut CUlibrary, _code: *const c_void, _options: *mut CUjit_option, _values: *mut *mut c_void, _count: c_uint, _library_options: *mut CUlibraryOption, _library_values: *mut *mut c_void, _library_count: c_uint) {
        library.set(CUlibrary(handle()))
    }
    fn cuLibraryGetKernel(kernel: *mut CUkernel, _library: CUlibrary, _name: *const c_char) {
        kernel.set(CUkernel(handle()))
    }
    fn cuLibraryGetModule(module: *mut CUmodule, _library: CUlibrary) { module.set(CUmodule(handle())) }
    fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) { function.set(CUfunction(kernel.0)) }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, _function: CUfunction) {
        value.set(match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 16,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => 49152,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION
            | CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => 90,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
            _ => 0,
        })
    }
    fn cuFuncGetModule(module: *mut CUmodule, function: CUfunction) { module.set(CUmodule(function.0)) }
    fn cuFuncGetParamInfo(_function: CUfunction, _index: usize, _offset: *mut usize, _size: *mut usize) {
        // Parameters end here: a runtime that asks how many there are must come to an end.
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
    fn cuKernelGetParamInfo(_kernel: CUkernel, _index: usize, _offset: *mut usize, _size: *mut usize) {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, _function: CUfunction, _threads: c_int, _dynamic: usize) {
        blocks.set(1)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int, _function: CUfunction, _threads: c_int, _dynamic: usize, _flags: c_uint) {
        blocks.set(1)
    }
    fn cuOccupancyMaxPotentialBlockSize(grid: *mut c_int, block: *mut c_int, _function: CUfunction, _dynamic_of: CUoccupancyB2DSize, _dynamic: usize, _limit: c_int) {
        grid.set(132)?;
        block.set(1024)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) {
        mode.set(exchange_mode(mode.get()?))
    }
    fn cuGraphCreate(graph: *mut CUgraph, _flags: c_uint) { graph.set(CUgraph(handle())) }
    fn cuGraphClone(graph: *mut CUgraph, _original: CUgraph) { graph.set(CUgraph(handle())) }
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, _graph: CUgraph, _flags: u64) {
        exec.set(CUgraphExec(handle()))
    }
    fn cuGraphInstantiateWithParams(exec: *mut CUgraphExec, _graph: CUgraph, _params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) {
        exec.set(CUgraphExec(handle()))
    }
    fn cuGraphGetNodes(_graph: CUgraph, _nodes: *mut CUgraphNode, count: *mut usize) { count.set(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simtile_driver::count::Counted;
    use std::time::Instant;

    #[test]
    fn a_runtime_gets_what_it_needs() {
        let driver = null();
        assert_eq!(driver.kind(), DriverKind::Null);
        assert_eq!(driver.version(), Ok(13000));
        let (mut context, mut stream, mut other) = (CUcontext::NULL, CUstream::NULL, CUstream::NULL);
        let (mut a, mut b, mut pinned) = (0, 0, core::ptr::null_mut());
        // SAFETY: the pointers are valid for the calls.
        let codes = unsafe {
            [
                driver.cuInit(0),
                driver.cuDevicePrimaryCtxRetain(&mut context, 0),
                driver.cuStreamCreate(&mut stream, 1),
                driver.cuStreamCreate(&mut other, 1),
                driver.cuMemAlloc(&mut a, 1000),
                driver.cuMemAllocAsync(&mut b, 1, stream),
                driver.cuMemHostAlloc(&mut pinned, 100, 0),
                driver.cuStreamQuery(stream),
                driver.cuEventQuery(CUevent(1)),
                driver.cuGraphLaunch(CUgraphExec(1), stream),
            ]
        };
        assert!(codes.iter().all(|code| code.is_ok()), "{codes:?}");
        assert!(!context.is_null() && !stream.is_null() && stream != other);
        assert!(b >= a + 1000 && a >= 1 << 48);
        // SAFETY: pinned memory of 100 bytes, zeroed, freed after.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 100);
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(1);
            assert!(driver.cuMemFreeHost(pinned).is_ok());
        }
    }

    /// Shows what a call costs; nothing depends on it.
    #[test]
    fn cost_of_a_call() {
        let plain = null();
        let counted = Counted::new(plain).driver();
        for (name, driver) in [("uncounted", plain), ("counted", counted)] {
            let driver = std::hint::black_box(driver);
            const CALLS: u32 = 1_000_000;
            let start = Instant::now();
            for _ in 0..CALLS {
                // SAFETY: no pointers.
                let code = unsafe { driver.cuStreamQuery(std::hint::black_box(CUstream(16))) };
                assert!(code.is_ok());
            }
            println!(
                "null driver, {name}: {:.2} ns a call",
                start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
            );
        }
    }
}
