//! The calls of the capture matrix.

use crate::frame::{Check, Cx};
use crate::gpu::{Args, Gpu, Pinned};
use crate::{cu, kernels, ok};
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// What calls use and leave as it is.
pub(super) struct Shared<'a> {
    pub(super) cx: &'a Cx,
    pub(super) gpu: &'a Gpu<'a>,
    /// A stream that does not capture.
    other: CUstream,
    /// An event that was recorded, and has happened, before any capture.
    done: CUevent,
    /// Two timed ones.
    timed: [CUevent; 2],
    /// Never recorded.
    fresh: CUevent,
    memory: CUdeviceptr,
    managed: CUdeviceptr,
    pinned: Pinned,
    function: CUfunction,
    module: CUmodule,
    globals: CUmodule,
    exec: CUgraphExec,
    graph: CUgraph,
    pool: CUmemoryPool,
    /// Granularity of mapped memory.
    page: usize,
}

impl<'a> Shared<'a> {
    pub(super) fn new(gpu: &'a Gpu<'a>) -> Check<Self> {
        let cx = gpu.cx();
        let other = gpu.stream()?;
        let timed = [
            gpu.event_with(CUevent_flags::CU_EVENT_DEFAULT)?,
            gpu.event_with(CUevent_flags::CU_EVENT_DEFAULT)?,
        ];
        for event in timed {
            ok!(cx, cuEventRecord(event, other))?;
        }
        let memory = gpu.zeroed(4096)?;
        let mut managed = 0;
        ok!(cx, cuMemAllocManaged(&mut managed, 4096, 1))?;
        let (mut graph, mut node, mut exec) = (CUgraph::NULL, CUgraphNode::NULL, CUgraphExec::NULL);
        ok!(cx, cuGraphCreate(&mut graph, 0))?;
        ok!(cx, cuGraphAddEmptyNode(&mut node, graph, null(), 0))?;
        ok!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        let mut pool = CUmemoryPool::NULL;
        ok!(cx, cuDeviceGetDefaultMemPool(&mut pool, gpu.device))?;
        let mut page = 0;
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        ok!(cx, cuMemGetAllocationGranularity(&mut page, &property(gpu.device), minimum))?;
        let module = gpu.module(kernels::BASIC)?;
        let shared = Self {
            cx,
            gpu,
            other,
            done: gpu.recorded(other)?,
            timed,
            fresh: gpu.event()?,
            memory,
            managed,
            pinned: gpu.pinned(16)?,
            function: gpu.function(module, c"store_one")?,
            module,
            globals: gpu.module(kernels::GLOBALS)?,
            exec,
            graph,
            pool,
            page,
        };
        gpu.sync(other)?;
        Ok(shared)
    }

    /// Waits for what a cell left running.
    pub(super) fn quiet(&self) -> Check {
        ok!(self.cx, cuCtxSynchronize())
    }

    fn launch(&self, stream: CUstream) -> CUresult {
        let args = Args::new().with(self.memory).with(1u32);
        let mut list = args.pointers();
        cu!(self, cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, stream, list.as_mut_ptr(), null_mut()))
    }

    fn driver(&self) -> simtile_driver::Driver {
        self.cx.driver()
    }
}

fn property(device: CUdevice) -> CUmemAllocationProp {
    // SAFETY: zeros are valid in every field.
    let mut property: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    property.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location = location(device);
    property
}

fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// One call.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The capturing stream is one that the legacy default stream follows.
    pub(super) blocking: bool,
    /// Makes before the capture what the call takes away.
    pub(super) prepare: fn(&Shared<'_>) -> Check<usize>,
    /// The call; it is given the capturing stream and what was prepared.
    pub(super) run: fn(&Shared<'_>, CUstream, usize) -> CUresult,
}

const fn plain(name: &'static str, run: fn(&Shared<'_>, CUstream, usize) -> CUresult) -> Row {
    Row { name, blocking: false, prepare: |_| Ok(0), run }
}

const fn with(
    name: &'static str,
    prepare: fn(&Shared<'_>) -> Check<usize>,
    run: fn(&Shared<'_>, CUstream, usize) -> CUresult,
) -> Row {
    Row { name, blocking: false, prepare, run }
}

const fn blocking(name: &'static str, run: fn(&Shared<'_>, CUstream, usize) -> CUresult) -> Row {
    Row { name, blocking: true, prepare: |_| Ok(0), run }
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Pageable memory for copies that read it.
static WORDS: [u32; 4] = [1, 2, 3, 4];

fn words() -> *const c_void {
    WORDS.as_ptr().cast()
}

fn leaked(bytes: usize) -> usize {
    Box::leak(vec![0u64; bytes / 8].into_boxed_slice()).as_mut_ptr().expose_provenance()
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

const LEGACY: CUstream = CUstream::NULL;

/// Every call, in groups: events, memory, copies, modules, streams, contexts, launches, graphs, the legacy stream, the
/// capturing stream itself.
pub(super) const ROWS: &[Row] = &[
    plain("cuEventQuery", |s, _, _| cu!(s, cuEventQuery(s.done))),
    plain("cuEventQuery never recorded", |s, _, _| cu!(s, cuEventQuery(s.fresh))),
    plain("cuEventSynchronize", |s, _, _| cu!(s, cuEventSynchronize(s.done))),
    plain("cuEventElapsedTime", |s, _, _| cu!(s, cuEventElapsedTime(&mut 0.0, s.timed[0], s.timed[1]))),
    plain("cuEventCreate", |s, _, _| cu!(s, cuEventCreate(&mut CUevent(0), 0))),
    with("cuEventDestroy", |s| Ok(s.gpu.event()?.0), |s, _, e| cu!(s, cuEventDestroy(CUevent(e)))),
    plain("cuEventRecord other stream", |s, _, _| cu!(s, cuEventRecord(s.done, s.other))),
    plain("cuStreamWaitEvent other stream", |s, _, _| cu!(s, cuStreamWaitEvent(s.other, s.done, 0))),
    plain("cuMemAlloc", |s, _, _| cu!(s, cuMemAlloc(&mut 0, 64))),
    plain("cuMemAllocPitch", |s, _, _| cu!(s, cuMemAllocPitch(&mut 0, &mut 0, 64, 4, 4))),
    with("cuMemFree", |s| Ok(s.gpu.alloc(64)? as usize), |s, _, p| cu!(s, cuMemFree(p as u64))),
    plain("cuMemAllocManaged", |s, _, _| cu!(s, cuMemAllocManaged(&mut 0, 64, 1))),
    plain("cuMemHostAlloc", |s, _, _| cu!(s, cuMemHostAlloc(&mut null_mut(), 64, 0))),
    with(
        "cuMemFreeHost",
        |s| Ok(s.gpu.pinned(1)?.host().expose_provenance()),
        |s, _, p| cu!(s, cuMemFreeHost(pointer(p))),
    ),
    with("cuMemHostRegister", |_| Ok(leaked(8192)), |s, _, p| cu!(s, cuMemHostRegister(pointer(p), 4096, 0))),
    with(
        "cuMemHostUnregister",
        |s| {
            let memory = leaked(8192);
            ok!(s, cuMemHostRegister(pointer(memory), 4096, 0))?;
            Ok(memory)
        },
        |s, _, p| cu!(s, cuMemHostUnregister(pointer(p))),
    ),
    plain("cuMemHostGetDevicePointer", |s, _, _| {
        cu!(s, cuMemHostGetDevicePointer(&mut 0, s.pinned.host(), 0))
    }),
    plain("cuMemAllocAsync other stream", |s, _, _| cu!(s, cuMemAllocAsync(&mut 0, 64, s.other))),
    with(
        "cuMemFreeAsync other stream",
        |s| {
            let mut memory = 0;
            ok!(s, cuMemAllocAsync(&mut memory, 64, s.other))?;
            s.gpu.sync(s.other)?;
            Ok(memory as usize)
        },
        |s, _, p| cu!(s, cuMemFreeAsync(p as u64, s.other)),
    ),
    with(
        "cuMemFree of stream-ordered memory",
        |s| {
            let mut memory = 0;
            ok!(s, cuMemAllocAsync(&mut memory, 64, s.other))?;
            s.gpu.sync(s.other)?;
            Ok(memory as usize)
        },
        |s, _, p| cu!(s, cuMemFree(p as u64)),
    ),
    plain("cuMemPoolCreate", |s, _, _| cu!(s, cuMemPoolCreate(&mut CUmemoryPool(0), &pool(s.gpu.device)))),
    with(
        "cuMemPoolDestroy",
        |s| {
            let mut made = CUmemoryPool::NULL;
            ok!(s, cuMemPoolCreate(&mut made, &pool(s.gpu.device)))?;
            Ok(made.0)
        },
        |s, _, p| cu!(s, cuMemPoolDestroy(CUmemoryPool(p))),
    ),
    plain("cuMemPoolTrimTo", |s, _, _| cu!(s, cuMemPoolTrimTo(s.pool, 0))),
    plain("cuMemGetInfo", |s, _, _| cu!(s, cuMemGetInfo(&mut 0, &mut 0))),
    plain("cuPointerGetAttribute", |s, _, _| {
        let mut kind = 0u32;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        cu!(s, cuPointerGetAttribute((&raw mut kind).cast(), attribute, s.memory))
    }),
    plain("cuMemAddressReserve", |s, _, _| cu!(s, cuMemAddressReserve(&mut 0, s.page, 0, 0, 0))),
    with(
        "cuMemAddressFree",
        |s| Ok(reserved(s)? as usize),
        |s, _, p| cu!(s, cuMemAddressFree(p as u64, s.page)),
    ),
    plain("cuMemCreate", |s, _, _| cu!(s, cuMemCreate(&mut 0, s.page, &property(s.gpu.device), 0))),
    with("cuMemRelease", |s| Ok(created(s)? as usize), |s, _, h| cu!(s, cuMemRelease(h as u64))),
    with(
        "cuMemMap",
        |s| Ok(Box::leak(Box::new([reserved(s)?, created(s)?])).as_ptr().expose_provenance()),
        |s, _, p| {
            // SAFETY: `prepare` put two numbers there.
            let [at, handle] = unsafe { std::ptr::with_exposed_provenance::<[u64; 2]>(p).read() };
            cu!(s, cuMemMap(at, s.page, 0, handle, 0))
        },
    ),
    with(
        "cuMemSetAccess",
        |s| Ok(mapped(s)? as usize),
        |s, _, p| {
            let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            cu!(
                s,
                cuMemSetAccess(
                    p as u64,
                    s.page,
                    &CUmemAccessDesc { location: location(s.gpu.device), flags },
                    1
                )
            )
        },
    ),
    with("cuMemUnmap", |s| Ok(mapped(s)? as usize), |s, _, p| cu!(s, cuMemUnmap(p as u64, s.page))),
    plain("cuMemcpyHtoD", |s, _, _| cu!(s, cuMemcpyHtoD(s.memory, words(), 16))),
    plain("cuMemcpyDtoH", |s, _, _| cu!(s, cuMemcpyDtoH([0u32; 4].as_mut_ptr().cast(), s.memory, 16))),
    plain("cuMemcpyDtoD", |s, _, _| cu!(s, cuMemcpyDtoD(s.memory + 64, s.memory, 16))),
    plain("cuMemsetD8", |s, _, _| cu!(s, cuMemsetD8(s.memory, 0, 16))),
    plain("cuMemcpyHtoDAsync other stream", |s, _, _| {
        cu!(s, cuMemcpyHtoDAsync(s.memory, words(), 16, s.other))
    }),
    plain("cuMemsetD8Async other stream", |s, _, _| cu!(s, cuMemsetD8Async(s.memory, 0, 16, s.other))),
    plain("cuMemPrefetchAsync other stream", |s, _, _| {
        cu!(s, cuMemPrefetchAsync(s.managed, 4096, s.gpu.device, s.other))
    }),
    plain("cuMemAdvise", |s, _, _| {
        cu!(s, cuMemAdvise(s.managed, 4096, CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, s.gpu.device))
    }),
    plain("cuModuleLoadData", |s, _, _| {
        cu!(s, cuModuleLoadData(&mut CUmodule(0), kernels::GLOBALS.as_ptr().cast()))
    }),
    with(
        "cuModuleUnload",
        |s| Ok(s.gpu.module(kernels::GLOBALS)?.0),
        |s, _, m| cu!(s, cuModuleUnload(CUmodule(m))),
    ),
    plain("cuModuleGetFunction", |s, _, _| {
        cu!(s, cuModuleGetFunction(&mut CUfunction(0), s.module, c"empty".as_ptr()))
    }),
    plain("cuModuleGetGlobal", |s, _, _| {
        cu!(s, cuModuleGetGlobal(&mut 0, &mut 0, s.globals, c"counter".as_ptr()))
    }),
    plain("cuLibraryLoadData", |s, _, _| {
        let image = kernels::GLOBALS.as_ptr().cast();
        let mut library = CUlibrary::NULL;
        cu!(s, cuLibraryLoadData(&mut library, image, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0))
    }),
    with(
        "cuLibraryUnload",
        |s| {
            let image = kernels::GLOBALS.as_ptr().cast();
            let mut library = CUlibrary::NULL;
            ok!(
                s,
                cuLibraryLoadData(&mut library, image, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
            )?;
            Ok(library.0)
        },
        |s, _, l| cu!(s, cuLibraryUnload(CUlibrary(l))),
    ),
    plain("cuFuncSetAttribute", |s, _, _| {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        cu!(s, cuFuncSetAttribute(s.function, attribute, 1024))
    }),
    plain("cuFuncGetAttribute", |s, _, _| {
        cu!(s, cuFuncGetAttribute(&mut 0, CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS, s.function))
    }),
    plain("cuOccupancyMaxActiveBlocksPerMultiprocessor", |s, _, _| {
        cu!(s, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut 0, s.function, 32, 0))
    }),
    plain("cuStreamQuery other stream", |s, _, _| cu!(s, cuStreamQuery(s.other))),
    plain("cuStreamSynchronize other stream", |s, _, _| cu!(s, cuStreamSynchronize(s.other))),
    plain("cuStreamCreate", |s, _, _| cu!(s, cuStreamCreate(&mut CUstream(0), 1))),
    with(
        "cuStreamDestroy other stream",
        |s| Ok(s.gpu.stream()?.0),
        |s, _, x| cu!(s, cuStreamDestroy(CUstream(x))),
    ),
    plain("cuStreamGetFlags", |s, own, _| cu!(s, cuStreamGetFlags(own, &mut 0))),
    plain("cuCtxSynchronize", |s, _, _| cu!(s, cuCtxSynchronize())),
    plain("cuCtxSetLimit", |s, _, _| cu!(s, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 1024))),
    plain("cuCtxGetLimit", |s, _, _| cu!(s, cuCtxGetLimit(&mut 0, CUlimit::CU_LIMIT_STACK_SIZE))),
    plain("cuDevicePrimaryCtxRetain", |s, _, _| {
        cu!(s, cuDevicePrimaryCtxRetain(&mut CUcontext(0), s.gpu.device))
    }),
    plain("cuLaunchKernel other stream", |s, _, _| s.launch(s.other)),
    plain("cuLaunchKernel per-thread stream", |s, _, _| s.launch(CUstream::PER_THREAD)),
    plain("cuLaunchHostFunc other stream", |s, _, _| {
        cu!(s, cuLaunchHostFunc(s.other, Some(nothing), null_mut()))
    }),
    plain("cuGraphCreate", |s, _, _| cu!(s, cuGraphCreate(&mut CUgraph(0), 0))),
    plain("cuGraphInstantiateWithFlags", |s, _, _| {
        cu!(s, cuGraphInstantiateWithFlags(&mut CUgraphExec(0), s.graph, 0))
    }),
    plain("cuGraphLaunch other stream", |s, _, _| cu!(s, cuGraphLaunch(s.exec, s.other))),
    plain("cuGraphUpload other stream", |s, _, _| cu!(s, cuGraphUpload(s.exec, s.other))),
    with(
        "cuGraphExecDestroy",
        |s| {
            let mut exec = CUgraphExec::NULL;
            ok!(s, cuGraphInstantiateWithFlags(&mut exec, s.graph, 0))?;
            Ok(exec.0)
        },
        |s, _, e| cu!(s, cuGraphExecDestroy(CUgraphExec(e))),
    ),
    plain("cuLaunchKernel legacy stream", |s, _, _| s.launch(LEGACY)),
    plain("cuStreamSynchronize legacy stream", |s, _, _| cu!(s, cuStreamSynchronize(LEGACY))),
    plain("cuStreamQuery legacy stream", |s, _, _| cu!(s, cuStreamQuery(LEGACY))),
    blocking("blocking: cuLaunchKernel legacy stream", |s, _, _| s.launch(LEGACY)),
    blocking("blocking: cuStreamSynchronize legacy stream", |s, _, _| cu!(s, cuStreamSynchronize(LEGACY))),
    blocking("blocking: cuStreamQuery legacy stream", |s, _, _| cu!(s, cuStreamQuery(LEGACY))),
    blocking("blocking: cuEventRecord legacy stream", |s, _, _| cu!(s, cuEventRecord(s.fresh, LEGACY))),
    blocking("blocking: cuStreamIsCapturing legacy stream", |s, _, _| {
        cu!(s, cuStreamIsCapturing(LEGACY, &mut CUstreamCaptureStatus(0)))
    }),
    blocking("blocking: cuMemcpyHtoD", |s, _, _| cu!(s, cuMemcpyHtoD(s.memory, words(), 16))),
    blocking("blocking: cuMemsetD8", |s, _, _| cu!(s, cuMemsetD8(s.memory, 0, 16))),
    blocking("blocking: cuLaunchKernel per-thread stream", |s, _, _| s.launch(CUstream::PER_THREAD)),
    plain("own: cuStreamQuery", |s, own, _| cu!(s, cuStreamQuery(own))),
    plain("own: cuStreamSynchronize", |s, own, _| cu!(s, cuStreamSynchronize(own))),
    plain("own: cuEventRecord, cuEventQuery", |s, own, _| {
        let event = s.gpu.event().unwrap_or(CUevent::NULL);
        let recorded = cu!(s, cuEventRecord(event, own));
        if recorded.is_ok() { cu!(s, cuEventQuery(event)) } else { recorded }
    }),
    plain("own: cuEventRecord, cuEventSynchronize", |s, own, _| {
        let event = s.gpu.event().unwrap_or(CUevent::NULL);
        let recorded = cu!(s, cuEventRecord(event, own));
        if recorded.is_ok() { cu!(s, cuEventSynchronize(event)) } else { recorded }
    }),
    plain("own: cuStreamWaitEvent outside event", |s, own, _| cu!(s, cuStreamWaitEvent(own, s.done, 0))),
    plain("own: cuStreamWaitEvent never recorded", |s, own, _| {
        let event = s.gpu.event().unwrap_or(CUevent::NULL);
        cu!(s, cuStreamWaitEvent(own, event, 0))
    }),
    plain("own: cuStreamWaitEvent external", |s, own, _| cu!(s, cuStreamWaitEvent(own, s.done, 1))),
    plain("own: cuEventRecordWithFlags external", |s, own, _| cu!(s, cuEventRecordWithFlags(s.done, own, 1))),
    plain("own: cuGraphLaunch", |s, own, _| cu!(s, cuGraphLaunch(s.exec, own))),
    plain("own: cuGraphUpload", |s, own, _| cu!(s, cuGraphUpload(s.exec, own))),
    plain("own: cuStreamBeginCapture", |s, own, _| {
        cu!(s, cuStreamBeginCapture(own, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }),
    plain("own: cuMemAllocAsync", |s, own, _| cu!(s, cuMemAllocAsync(&mut 0, 64, own))),
    with(
        "own: cuMemFreeAsync outside memory",
        |s| {
            let mut memory = 0;
            ok!(s, cuMemAllocAsync(&mut memory, 64, s.other))?;
            s.gpu.sync(s.other)?;
            Ok(memory as usize)
        },
        |s, own, p| cu!(s, cuMemFreeAsync(p as u64, own)),
    ),
    plain("own: cuMemcpyHtoDAsync pageable", |s, own, _| {
        cu!(s, cuMemcpyHtoDAsync(s.memory, words(), 16, own))
    }),
    with(
        "own: cuMemcpyDtoHAsync pageable",
        |_| Ok(leaked(64)),
        |s, own, p| cu!(s, cuMemcpyDtoHAsync(pointer(p), s.memory, 16, own)),
    ),
    plain("own: cuMemcpyHtoDAsync pinned", |s, own, _| {
        cu!(s, cuMemcpyHtoDAsync(s.memory, s.pinned.host().cast_const(), 16, own))
    }),
    plain("own: cuLaunchHostFunc", |s, own, _| cu!(s, cuLaunchHostFunc(own, Some(nothing), null_mut()))),
    plain("own: cuStreamWriteValue32", |s, own, _| cu!(s, cuStreamWriteValue32(own, s.memory, 1, 0))),
    plain("own: cuStreamWaitValue32", |s, own, _| cu!(s, cuStreamWaitValue32(own, s.memory, 0, 0))),
    plain("own: cuMemPrefetchAsync", |s, own, _| {
        cu!(s, cuMemPrefetchAsync(s.managed, 4096, s.gpu.device, own))
    }),
    plain("own: cuStreamSetAttribute priority", |s, own, _| {
        let value = CUlaunchAttributeValue { priority: 0 };
        cu!(s, cuStreamSetAttribute(own, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY, &value))
    }),
];

fn pool(device: CUdevice) -> CUmemPoolProps {
    // SAFETY: zeros are valid in every field.
    let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties
}

fn reserved(shared: &Shared<'_>) -> Check<u64> {
    let mut address = 0;
    ok!(shared, cuMemAddressReserve(&mut address, shared.page, 0, 0, 0))?;
    Ok(address)
}

fn created(shared: &Shared<'_>) -> Check<u64> {
    let mut handle = 0;
    ok!(shared, cuMemCreate(&mut handle, shared.page, &property(shared.gpu.device), 0))?;
    Ok(handle)
}

fn mapped(shared: &Shared<'_>) -> Check<u64> {
    let (address, handle) = (reserved(shared)?, created(shared)?);
    ok!(shared, cuMemMap(address, shared.page, 0, handle, 0))?;
    Ok(address)
}
