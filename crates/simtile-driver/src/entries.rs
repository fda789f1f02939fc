//! The list of driver entries: one line an entry, from which the table, the entry ids, the CUDA
//! trampolines, the counting layer and the C names of the simulated libcuda are generated.
//!
//! `"symbol" @ version`: the exported C name of exactly this signature, and the CUDA version in which
//! that signature appeared. The loader asks `cuGetProcAddress` for the base name at that version, so a
//! newer driver hands out the function with this ABI, whatever it calls its newest one. Where several
//! ABIs exist the newest that CUDA 12.0 knows is taken. A newer one that says more has an entry of its own, named
//! with its suffix; the loader looks for it by its exported name, and a driver without it lacks only that entry.

/// Calls `$callback!` with all driver entries, each as
/// `fn name(arg: type, ...) = "symbol" @ version;`.
#[macro_export]
macro_rules! driver_entries {
    ($callback:path) => {
        $callback! {
            // init and version
            fn cuInit(Flags: c_uint) = "cuInit" @ 2000;
            fn cuDriverGetVersion(driverVersion: *mut c_int) = "cuDriverGetVersion" @ 2020;
            fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) = "cuGetErrorName" @ 6000;
            fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) = "cuGetErrorString" @ 6000;
            fn cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, driverVersion: c_int, flags: u64, symbolFound: *mut CUdriverProcAddressQueryResult) = "cuGetProcAddress_v2" @ 12000;
            // devices
            fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) = "cuDeviceGet" @ 2000;
            fn cuDeviceGetCount(count: *mut c_int) = "cuDeviceGetCount" @ 2000;
            fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) = "cuDeviceGetName" @ 2000;
            fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) = "cuDeviceGetUuid_v2" @ 11040;
            fn cuDeviceTotalMem(bytes: *mut usize, dev: CUdevice) = "cuDeviceTotalMem_v2" @ 3020;
            fn cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice) = "cuDeviceGetAttribute" @ 2000;
            fn cuDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, dev: CUdevice) = "cuDeviceGetPCIBusId" @ 4010;
            fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, pciBusId: *const c_char) = "cuDeviceGetByPCIBusId" @ 4010;
            fn cuDeviceGetP2PAttribute(value: *mut c_int, attrib: CUdevice_P2PAttribute, srcDevice: CUdevice, dstDevice: CUdevice) = "cuDeviceGetP2PAttribute" @ 8000;
            fn cuDeviceCanAccessPeer(canAccessPeer: *mut c_int, dev: CUdevice, peerDev: CUdevice) = "cuDeviceCanAccessPeer" @ 4000;
            fn cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice) = "cuDeviceGetDefaultMemPool" @ 11020;
            fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) = "cuDeviceGetMemPool" @ 11020;
            fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) = "cuDeviceSetMemPool" @ 11020;
            fn cuDeviceGetDevResource(dev: CUdevice, result: *mut CUdevResource, type_: CUdevResourceType) = "cuDeviceGetDevResource" @ 12040;
            fn cuDeviceGraphMemTrim(device: CUdevice) = "cuDeviceGraphMemTrim" @ 11040;
            fn cuDeviceGetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) = "cuDeviceGetGraphMemAttribute" @ 11040;
            fn cuDeviceSetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) = "cuDeviceSetGraphMemAttribute" @ 11040;
            // contexts
            fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) = "cuDevicePrimaryCtxRetain" @ 7000;
            fn cuDevicePrimaryCtxRelease(dev: CUdevice) = "cuDevicePrimaryCtxRelease_v2" @ 11000;
            fn cuDevicePrimaryCtxReset(dev: CUdevice) = "cuDevicePrimaryCtxReset_v2" @ 11000;
            fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int) = "cuDevicePrimaryCtxGetState" @ 7000;
            fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: c_uint) = "cuDevicePrimaryCtxSetFlags_v2" @ 11000;
            fn cuCtxCreate(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) = "cuCtxCreate_v2" @ 3020;
            fn cuCtxDestroy(ctx: CUcontext) = "cuCtxDestroy_v2" @ 4000;
            fn cuCtxGetCurrent(pctx: *mut CUcontext) = "cuCtxGetCurrent" @ 4000;
            fn cuCtxSetCurrent(ctx: CUcontext) = "cuCtxSetCurrent" @ 4000;
            fn cuCtxPushCurrent(ctx: CUcontext) = "cuCtxPushCurrent_v2" @ 4000;
            fn cuCtxPopCurrent(pctx: *mut CUcontext) = "cuCtxPopCurrent_v2" @ 4000;
            fn cuCtxGetDevice(device: *mut CUdevice) = "cuCtxGetDevice" @ 2000;
            fn cuCtxGetFlags(flags: *mut c_uint) = "cuCtxGetFlags" @ 7000;
            fn cuCtxSetFlags(flags: c_uint) = "cuCtxSetFlags" @ 12010;
            fn cuCtxGetId(ctx: CUcontext, ctxId: *mut u64) = "cuCtxGetId" @ 12000;
            fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint) = "cuCtxGetApiVersion" @ 3020;
            fn cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) = "cuCtxGetLimit" @ 3010;
            fn cuCtxSetLimit(limit: CUlimit, value: usize) = "cuCtxSetLimit" @ 3010;
            fn cuCtxSynchronize() = "cuCtxSynchronize" @ 2000;
            fn cuCtxGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int) = "cuCtxGetStreamPriorityRange" @ 5050;
            fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: c_uint) = "cuCtxEnablePeerAccess" @ 4000;
            fn cuCtxDisablePeerAccess(peerContext: CUcontext) = "cuCtxDisablePeerAccess" @ 4000;
            fn cuCtxGetDevResource(hCtx: CUcontext, result: *mut CUdevResource, type_: CUdevResourceType) = "cuCtxGetDevResource" @ 12040;
            // green contexts
            fn cuDevSmResourceSplitByCount(result: *mut CUdevResource, nbGroups: *mut c_uint, input: *const CUdevResource, remaining: *mut CUdevResource, useFlags: c_uint, minCount: c_uint) = "cuDevSmResourceSplitByCount" @ 12040;
            fn cuDevResourceGenerateDesc(phDesc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nbResources: c_uint) = "cuDevResourceGenerateDesc" @ 12040;
            fn cuGreenCtxCreate(phCtx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint) = "cuGreenCtxCreate" @ 12040;
            fn cuGreenCtxDestroy(hCtx: CUgreenCtx) = "cuGreenCtxDestroy" @ 12040;
            fn cuCtxFromGreenCtx(pContext: *mut CUcontext, hCtx: CUgreenCtx) = "cuCtxFromGreenCtx" @ 12040;
            fn cuGreenCtxGetDevResource(hCtx: CUgreenCtx, result: *mut CUdevResource, type_: CUdevResourceType) = "cuGreenCtxGetDevResource" @ 12040;
            fn cuGreenCtxStreamCreate(phStream: *mut CUstream, greenCtx: CUgreenCtx, flags: c_uint, priority: c_int) = "cuGreenCtxStreamCreate" @ 12050;
            fn cuGreenCtxRecordEvent(hCtx: CUgreenCtx, hEvent: CUevent) = "cuGreenCtxRecordEvent" @ 12040;
            fn cuGreenCtxWaitEvent(hCtx: CUgreenCtx, hEvent: CUevent) = "cuGreenCtxWaitEvent" @ 12040;
            // streams
            fn cuStreamCreate(phStream: *mut CUstream, Flags: c_uint) = "cuStreamCreate" @ 2000;
            fn cuStreamCreateWithPriority(phStream: *mut CUstream, flags: c_uint, priority: c_int) = "cuStreamCreateWithPriority" @ 5050;
            fn cuStreamDestroy(hStream: CUstream) = "cuStreamDestroy_v2" @ 4000;
            fn cuStreamGetPriority(hStream: CUstream, priority: *mut c_int) = "cuStreamGetPriority" @ 5050;
            fn cuStreamGetFlags(hStream: CUstream, flags: *mut c_uint) = "cuStreamGetFlags" @ 5050;
            fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) = "cuStreamGetId" @ 12000;
            fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) = "cuStreamGetCtx" @ 9020;
            fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) = "cuStreamGetGreenCtx" @ 12040;
            fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) = "cuStreamGetDevice" @ 12080;
            fn cuStreamQuery(hStream: CUstream) = "cuStreamQuery" @ 2000;
            fn cuStreamSynchronize(hStream: CUstream) = "cuStreamSynchronize" @ 2000;
            fn cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: c_uint) = "cuStreamWaitEvent" @ 3020;
            fn cuStreamGetAttribute(hStream: CUstream, attr: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue) = "cuStreamGetAttribute" @ 11000;
            fn cuStreamSetAttribute(hStream: CUstream, attr: CUlaunchAttributeID, param: *const CUlaunchAttributeValue) = "cuStreamSetAttribute" @ 11000;
            fn cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint) = "cuStreamWaitValue32_v2" @ 11070;
            fn cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint) = "cuStreamWaitValue64_v2" @ 11070;
            fn cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint) = "cuStreamWriteValue32_v2" @ 11070;
            fn cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint) = "cuStreamWriteValue64_v2" @ 11070;
            fn cuStreamBatchMemOp(stream: CUstream, count: c_uint, paramArray: *mut CUstreamBatchMemOpParams, flags: c_uint) = "cuStreamBatchMemOp_v2" @ 11070;
            fn cuLaunchHostFunc(hStream: CUstream, fn_: CUhostFn, userData: *mut c_void) = "cuLaunchHostFunc" @ 10000;
            fn cuStreamBeginCapture(hStream: CUstream, mode: CUstreamCaptureMode) = "cuStreamBeginCapture_v2" @ 10010;
            fn cuStreamBeginCaptureToGraph(hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: CUstreamCaptureMode) = "cuStreamBeginCaptureToGraph" @ 12030;
            fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) = "cuStreamEndCapture" @ 10000;
            fn cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) = "cuStreamIsCapturing" @ 10000;
            fn cuStreamGetCaptureInfo(hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, numDependencies_out: *mut usize) = "cuStreamGetCaptureInfo_v2" @ 11030;
            fn cuStreamGetCaptureInfo_v3(hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edgeData_out: *mut *const CUgraphEdgeData, numDependencies_out: *mut usize) = "cuStreamGetCaptureInfo_v3" @ 12030;
            fn cuStreamUpdateCaptureDependencies(hStream: CUstream, dependencies: *mut CUgraphNode, numDependencies: usize, flags: c_uint) = "cuStreamUpdateCaptureDependencies" @ 11030;
            fn cuStreamUpdateCaptureDependencies_v2(hStream: CUstream, dependencies: *mut CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, flags: c_uint) = "cuStreamUpdateCaptureDependencies_v2" @ 12030;
            fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) = "cuThreadExchangeStreamCaptureMode" @ 10010;
            fn cuStreamAttachMemAsync(hStream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint) = "cuStreamAttachMemAsync" @ 6000;
            // events
            fn cuEventCreate(phEvent: *mut CUevent, Flags: c_uint) = "cuEventCreate" @ 2000;
            fn cuEventDestroy(hEvent: CUevent) = "cuEventDestroy_v2" @ 4000;
            fn cuEventQuery(hEvent: CUevent) = "cuEventQuery" @ 2000;
            fn cuEventSynchronize(hEvent: CUevent) = "cuEventSynchronize" @ 2000;
            fn cuEventRecord(hEvent: CUevent, hStream: CUstream) = "cuEventRecord" @ 2000;
            fn cuEventRecordWithFlags(hEvent: CUevent, hStream: CUstream, flags: c_uint) = "cuEventRecordWithFlags" @ 11010;
            fn cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) = "cuEventElapsedTime" @ 2000;
            fn cuIpcGetEventHandle(pHandle: *mut CUipcEventHandle, event: CUevent) = "cuIpcGetEventHandle" @ 4010;
            fn cuIpcOpenEventHandle(phEvent: *mut CUevent, handle: CUipcEventHandle) = "cuIpcOpenEventHandle" @ 4010;
            fn cuIpcGetMemHandle(pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr) = "cuIpcGetMemHandle" @ 4010;
            fn cuIpcOpenMemHandle(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: c_uint) = "cuIpcOpenMemHandle_v2" @ 11000;
            fn cuIpcCloseMemHandle(dptr: CUdeviceptr) = "cuIpcCloseMemHandle" @ 4010;
            // memory
            fn cuMemGetInfo(free: *mut usize, total: *mut usize) = "cuMemGetInfo_v2" @ 3020;
            fn cuMemAlloc(dptr: *mut CUdeviceptr, bytesize: usize) = "cuMemAlloc_v2" @ 3020;
            fn cuMemAllocPitch(dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: c_uint) = "cuMemAllocPitch_v2" @ 3020;
            fn cuMemFree(dptr: CUdeviceptr) = "cuMemFree_v2" @ 3020;
            fn cuMemGetAddressRange(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) = "cuMemGetAddressRange_v2" @ 3020;
            fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint) = "cuMemHostAlloc" @ 2020;
            fn cuMemFreeHost(p: *mut c_void) = "cuMemFreeHost" @ 2000;
            fn cuMemHostRegister(p: *mut c_void, bytesize: usize, Flags: c_uint) = "cuMemHostRegister_v2" @ 6050;
            fn cuMemHostUnregister(p: *mut c_void) = "cuMemHostUnregister" @ 4000;
            fn cuMemHostGetDevicePointer(pdptr: *mut CUdeviceptr, p: *mut c_void, Flags: c_uint) = "cuMemHostGetDevicePointer_v2" @ 3020;
            fn cuMemHostGetFlags(pFlags: *mut c_uint, p: *mut c_void) = "cuMemHostGetFlags" @ 2030;
            fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint) = "cuMemAllocManaged" @ 6000;
            fn cuMemPrefetchAsync(devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream) = "cuMemPrefetchAsync" @ 8000;
            fn cuMemAdvise(devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) = "cuMemAdvise" @ 8000;
            fn cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) = "cuPointerGetAttribute" @ 4000;
            fn cuPointerGetAttributes(numAttributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr) = "cuPointerGetAttributes" @ 7000;
            fn cuPointerSetAttribute(value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) = "cuPointerSetAttribute" @ 6000;
            // stream-ordered memory and pools
            fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) = "cuMemAllocAsync" @ 11020;
            fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) = "cuMemFreeAsync" @ 11020;
            fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) = "cuMemAllocFromPoolAsync" @ 11020;
            fn cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps) = "cuMemPoolCreate" @ 11020;
            fn cuMemPoolDestroy(pool: CUmemoryPool) = "cuMemPoolDestroy" @ 11020;
            fn cuMemPoolTrimTo(pool: CUmemoryPool, minBytesToKeep: usize) = "cuMemPoolTrimTo" @ 11020;
            fn cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) = "cuMemPoolGetAttribute" @ 11020;
            fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) = "cuMemPoolSetAttribute" @ 11020;
            fn cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, memPool: CUmemoryPool, location: *mut CUmemLocation) = "cuMemPoolGetAccess" @ 11020;
            fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) = "cuMemPoolSetAccess" @ 11020;
            // copies
            fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) = "cuMemcpy" @ 4000;
            fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) = "cuMemcpyAsync" @ 4000;
            fn cuMemcpyHtoD(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize) = "cuMemcpyHtoD_v2" @ 3020;
            fn cuMemcpyHtoDAsync(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) = "cuMemcpyHtoDAsync_v2" @ 3020;
            fn cuMemcpyDtoH(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize) = "cuMemcpyDtoH_v2" @ 3020;
            fn cuMemcpyDtoHAsync(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) = "cuMemcpyDtoHAsync_v2" @ 3020;
            fn cuMemcpyDtoD(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize) = "cuMemcpyDtoD_v2" @ 3020;
            fn cuMemcpyDtoDAsync(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) = "cuMemcpyDtoDAsync_v2" @ 3020;
            fn cuMemcpyPeer(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize) = "cuMemcpyPeer" @ 4000;
            fn cuMemcpyPeerAsync(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream) = "cuMemcpyPeerAsync" @ 4000;
            fn cuMemcpy2D(pCopy: *const CUDA_MEMCPY2D) = "cuMemcpy2D_v2" @ 3020;
            fn cuMemcpy2DUnaligned(pCopy: *const CUDA_MEMCPY2D) = "cuMemcpy2DUnaligned_v2" @ 3020;
            fn cuMemcpy2DAsync(pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) = "cuMemcpy2DAsync_v2" @ 3020;
            fn cuMemcpy3D(pCopy: *const CUDA_MEMCPY3D) = "cuMemcpy3D_v2" @ 3020;
            fn cuMemcpy3DAsync(pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) = "cuMemcpy3DAsync_v2" @ 3020;
            // memset
            fn cuMemsetD8(dstDevice: CUdeviceptr, uc: u8, N: usize) = "cuMemsetD8_v2" @ 3020;
            fn cuMemsetD16(dstDevice: CUdeviceptr, us: u16, N: usize) = "cuMemsetD16_v2" @ 3020;
            fn cuMemsetD32(dstDevice: CUdeviceptr, ui: c_uint, N: usize) = "cuMemsetD32_v2" @ 3020;
            fn cuMemsetD8Async(dstDevice: CUdeviceptr, uc: u8, N: usize, hStream: CUstream) = "cuMemsetD8Async" @ 3020;
            fn cuMemsetD16Async(dstDevice: CUdeviceptr, us: u16, N: usize, hStream: CUstream) = "cuMemsetD16Async" @ 3020;
            fn cuMemsetD32Async(dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream) = "cuMemsetD32Async" @ 3020;
            fn cuMemsetD2D8(dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize) = "cuMemsetD2D8_v2" @ 3020;
            fn cuMemsetD2D16(dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize) = "cuMemsetD2D16_v2" @ 3020;
            fn cuMemsetD2D32(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize) = "cuMemsetD2D32_v2" @ 3020;
            fn cuMemsetD2D8Async(dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize, hStream: CUstream) = "cuMemsetD2D8Async" @ 3020;
            fn cuMemsetD2D16Async(dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize, hStream: CUstream) = "cuMemsetD2D16Async" @ 3020;
            fn cuMemsetD2D32Async(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize, hStream: CUstream) = "cuMemsetD2D32Async" @ 3020;
            // virtual memory
            fn cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64) = "cuMemAddressReserve" @ 10020;
            fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) = "cuMemAddressFree" @ 10020;
            fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64) = "cuMemCreate" @ 10020;
            fn cuMemRelease(handle: CUmemGenericAllocationHandle) = "cuMemRelease" @ 10020;
            fn cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) = "cuMemMap" @ 10020;
            fn cuMemUnmap(ptr: CUdeviceptr, size: usize) = "cuMemUnmap" @ 10020;
            fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) = "cuMemSetAccess" @ 10020;
            fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) = "cuMemGetAccess" @ 10020;
            fn cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) = "cuMemGetAllocationGranularity" @ 10020;
            fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) = "cuMemGetAllocationPropertiesFromHandle" @ 10020;
            fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) = "cuMemRetainAllocationHandle" @ 11000;
            fn cuMemExportToShareableHandle(shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: CUmemAllocationHandleType, flags: u64) = "cuMemExportToShareableHandle" @ 10020;
            fn cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: CUmemAllocationHandleType) = "cuMemImportFromShareableHandle" @ 10020;
            // multicast
            fn cuMulticastCreate(mcHandle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp) = "cuMulticastCreate" @ 12010;
            fn cuMulticastAddDevice(mcHandle: CUmemGenericAllocationHandle, dev: CUdevice) = "cuMulticastAddDevice" @ 12010;
            fn cuMulticastBindMem(mcHandle: CUmemGenericAllocationHandle, mcOffset: usize, memHandle: CUmemGenericAllocationHandle, memOffset: usize, size: usize, flags: u64) = "cuMulticastBindMem" @ 12010;
            fn cuMulticastBindAddr(mcHandle: CUmemGenericAllocationHandle, mcOffset: usize, memptr: CUdeviceptr, size: usize, flags: u64) = "cuMulticastBindAddr" @ 12010;
            fn cuMulticastUnbind(mcHandle: CUmemGenericAllocationHandle, dev: CUdevice, mcOffset: usize, size: usize) = "cuMulticastUnbind" @ 12010;
            fn cuMulticastGetGranularity(granularity: *mut usize, prop: *const CUmulticastObjectProp, option: CUmulticastGranularity_flags) = "cuMulticastGetGranularity" @ 12010;
            // modules
            fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) = "cuModuleLoad" @ 2000;
            fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) = "cuModuleLoadData" @ 2000;
            fn cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void) = "cuModuleLoadDataEx" @ 2010;
            fn cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void) = "cuModuleLoadFatBinary" @ 2000;
            fn cuModuleUnload(hmod: CUmodule) = "cuModuleUnload" @ 2000;
            fn cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) = "cuModuleGetFunction" @ 2000;
            fn cuModuleGetFunctionCount(count: *mut c_uint, hmod: CUmodule) = "cuModuleGetFunctionCount" @ 12040;
            fn cuModuleEnumerateFunctions(functions: *mut CUfunction, numFunctions: c_uint, module: CUmodule) = "cuModuleEnumerateFunctions" @ 12040;
            fn cuModuleGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char) = "cuModuleGetGlobal_v2" @ 3020;
            fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) = "cuModuleGetLoadingMode" @ 11070;
            // libraries
            fn cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint) = "cuLibraryLoadData" @ 12000;
            fn cuLibraryLoadFromFile(library: *mut CUlibrary, fileName: *const c_char, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint) = "cuLibraryLoadFromFile" @ 12000;
            fn cuLibraryUnload(library: CUlibrary) = "cuLibraryUnload" @ 12000;
            fn cuLibraryGetKernel(pKernel: *mut CUkernel, library: CUlibrary, name: *const c_char) = "cuLibraryGetKernel" @ 12000;
            fn cuLibraryGetKernelCount(count: *mut c_uint, lib: CUlibrary) = "cuLibraryGetKernelCount" @ 12040;
            fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, numKernels: c_uint, lib: CUlibrary) = "cuLibraryEnumerateKernels" @ 12040;
            fn cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary) = "cuLibraryGetModule" @ 12000;
            fn cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) = "cuLibraryGetGlobal" @ 12000;
            fn cuLibraryGetManaged(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) = "cuLibraryGetManaged" @ 12000;
            fn cuKernelGetFunction(pFunc: *mut CUfunction, kernel: CUkernel) = "cuKernelGetFunction" @ 12000;
            fn cuKernelGetAttribute(pi: *mut c_int, attrib: CUfunction_attribute, kernel: CUkernel, dev: CUdevice) = "cuKernelGetAttribute" @ 12000;
            fn cuKernelSetAttribute(attrib: CUfunction_attribute, val: c_int, kernel: CUkernel, dev: CUdevice) = "cuKernelSetAttribute" @ 12000;
            fn cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel) = "cuKernelGetName" @ 12030;
            fn cuKernelGetParamInfo(kernel: CUkernel, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) = "cuKernelGetParamInfo" @ 12040;
            fn cuKernelSetCacheConfig(kernel: CUkernel, config: CUfunc_cache, dev: CUdevice) = "cuKernelSetCacheConfig" @ 12000;
            // linker
            fn cuLinkCreate(numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void, stateOut: *mut CUlinkState) = "cuLinkCreate_v2" @ 6050;
            fn cuLinkAddData(state: CUlinkState, type_: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void) = "cuLinkAddData_v2" @ 6050;
            fn cuLinkAddFile(state: CUlinkState, type_: CUjitInputType, path: *const c_char, numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void) = "cuLinkAddFile_v2" @ 6050;
            fn cuLinkComplete(state: CUlinkState, cubinOut: *mut *mut c_void, sizeOut: *mut usize) = "cuLinkComplete" @ 5050;
            fn cuLinkDestroy(state: CUlinkState) = "cuLinkDestroy" @ 5050;
            // functions and occupancy
            fn cuFuncGetAttribute(pi: *mut c_int, attrib: CUfunction_attribute, hfunc: CUfunction) = "cuFuncGetAttribute" @ 2020;
            fn cuFuncSetAttribute(hfunc: CUfunction, attrib: CUfunction_attribute, value: c_int) = "cuFuncSetAttribute" @ 9000;
            fn cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) = "cuFuncSetCacheConfig" @ 3000;
            fn cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) = "cuFuncGetModule" @ 11000;
            fn cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction) = "cuFuncGetName" @ 12030;
            fn cuFuncGetParamInfo(func: CUfunction, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) = "cuFuncGetParamInfo" @ 12040;
            fn cuFuncIsLoaded(state: *mut CUfunctionLoadingState, hfunc: CUfunction) = "cuFuncIsLoaded" @ 12040;
            fn cuFuncLoad(hfunc: CUfunction) = "cuFuncLoad" @ 12040;
            fn cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks: *mut c_int, func: CUfunction, blockSize: c_int, dynamicSMemSize: usize) = "cuOccupancyMaxActiveBlocksPerMultiprocessor" @ 6050;
            fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks: *mut c_int, func: CUfunction, blockSize: c_int, dynamicSMemSize: usize, flags: c_uint) = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" @ 7000;
            fn cuOccupancyMaxPotentialBlockSize(minGridSize: *mut c_int, blockSize: *mut c_int, func: CUfunction, blockSizeToDynamicSMemSize: CUoccupancyB2DSize, dynamicSMemSize: usize, blockSizeLimit: c_int) = "cuOccupancyMaxPotentialBlockSize" @ 6050;
            fn cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize: *mut usize, func: CUfunction, numBlocks: c_int, blockSize: c_int) = "cuOccupancyAvailableDynamicSMemPerBlock" @ 10020;
            fn cuOccupancyMaxPotentialClusterSize(clusterSize: *mut c_int, func: CUfunction, config: *const CUlaunchConfig) = "cuOccupancyMaxPotentialClusterSize" @ 11070;
            fn cuOccupancyMaxActiveClusters(numClusters: *mut c_int, func: CUfunction, config: *const CUlaunchConfig) = "cuOccupancyMaxActiveClusters" @ 11070;
            // launches
            fn cuLaunchKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) = "cuLaunchKernel" @ 4000;
            fn cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) = "cuLaunchKernelEx" @ 11060;
            fn cuLaunchCooperativeKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void) = "cuLaunchCooperativeKernel" @ 9000;
            // graphs
            fn cuGraphCreate(phGraph: *mut CUgraph, flags: c_uint) = "cuGraphCreate" @ 10000;
            fn cuGraphDestroy(hGraph: CUgraph) = "cuGraphDestroy" @ 10000;
            fn cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) = "cuGraphClone" @ 10000;
            fn cuGraphDestroyNode(hNode: CUgraphNode) = "cuGraphDestroyNode" @ 10000;
            fn cuGraphAddEmptyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize) = "cuGraphAddEmptyNode" @ 10000;
            fn cuGraphAddKernelNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v2) = "cuGraphAddKernelNode_v2" @ 12000;
            fn cuGraphAddMemcpyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) = "cuGraphAddMemcpyNode" @ 10000;
            fn cuGraphAddMemsetNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) = "cuGraphAddMemsetNode" @ 10000;
            fn cuGraphAddHostNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_HOST_NODE_PARAMS) = "cuGraphAddHostNode" @ 10000;
            fn cuGraphAddChildGraphNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, childGraph: CUgraph) = "cuGraphAddChildGraphNode" @ 10000;
            fn cuGraphAddEventRecordNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) = "cuGraphAddEventRecordNode" @ 11010;
            fn cuGraphAddEventWaitNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) = "cuGraphAddEventWaitNode" @ 11010;
            fn cuGraphAddMemAllocNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS) = "cuGraphAddMemAllocNode" @ 11040;
            fn cuGraphAddMemFreeNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, dptr: CUdeviceptr) = "cuGraphAddMemFreeNode" @ 11040;
            fn cuGraphAddNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) = "cuGraphAddNode_v2" @ 12030;
            fn cuGraphConditionalHandleCreate(pHandle_out: *mut CUgraphConditionalHandle, hGraph: CUgraph, ctx: CUcontext, defaultLaunchValue: c_uint, flags: c_uint) = "cuGraphConditionalHandleCreate" @ 12030;
            fn cuGraphAddDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize) = "cuGraphAddDependencies" @ 10000;
            fn cuGraphAddDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) = "cuGraphAddDependencies_v2" @ 12030;
            fn cuGraphRemoveDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize) = "cuGraphRemoveDependencies" @ 10000;
            fn cuGraphRemoveDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) = "cuGraphRemoveDependencies_v2" @ 12030;
            fn cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) = "cuGraphGetNodes" @ 10000;
            fn cuGraphGetRootNodes(hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) = "cuGraphGetRootNodes" @ 10000;
            fn cuGraphGetEdges(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize) = "cuGraphGetEdges" @ 10000;
            fn cuGraphGetEdges_v2(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numEdges: *mut usize) = "cuGraphGetEdges_v2" @ 12030;
            fn cuGraphNodeGetType(hNode: CUgraphNode, type_: *mut CUgraphNodeType) = "cuGraphNodeGetType" @ 10000;
            fn cuGraphNodeGetDependencies(hNode: CUgraphNode, dependencies: *mut CUgraphNode, numDependencies: *mut usize) = "cuGraphNodeGetDependencies" @ 10000;
            fn cuGraphNodeGetDependencies_v2(hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependencies: *mut usize) = "cuGraphNodeGetDependencies_v2" @ 12030;
            fn cuGraphNodeGetDependentNodes(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, numDependentNodes: *mut usize) = "cuGraphNodeGetDependentNodes" @ 10000;
            fn cuGraphNodeGetDependentNodes_v2(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependentNodes: *mut usize) = "cuGraphNodeGetDependentNodes_v2" @ 12030;
            fn cuGraphNodeFindInClone(phNode: *mut CUgraphNode, hOriginalNode: CUgraphNode, hClonedGraph: CUgraph) = "cuGraphNodeFindInClone" @ 10000;
            fn cuGraphNodeGetEnabled(hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: *mut c_uint) = "cuGraphNodeGetEnabled" @ 11060;
            fn cuGraphNodeSetEnabled(hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: c_uint) = "cuGraphNodeSetEnabled" @ 11060;
            fn cuGraphKernelNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_KERNEL_NODE_PARAMS_v2) = "cuGraphKernelNodeGetParams_v2" @ 12000;
            fn cuGraphKernelNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v2) = "cuGraphKernelNodeSetParams_v2" @ 12000;
            fn cuGraphKernelNodeGetAttribute(hNode: CUgraphNode, attr: CUlaunchAttributeID, value_out: *mut CUlaunchAttributeValue) = "cuGraphKernelNodeGetAttribute" @ 11000;
            fn cuGraphKernelNodeSetAttribute(hNode: CUgraphNode, attr: CUlaunchAttributeID, value: *const CUlaunchAttributeValue) = "cuGraphKernelNodeSetAttribute" @ 11000;
            fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) = "cuGraphKernelNodeCopyAttributes" @ 11000;
            fn cuGraphMemcpyNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_MEMCPY3D) = "cuGraphMemcpyNodeGetParams" @ 10000;
            fn cuGraphMemcpyNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_MEMCPY3D) = "cuGraphMemcpyNodeSetParams" @ 10000;
            fn cuGraphMemsetNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_MEMSET_NODE_PARAMS) = "cuGraphMemsetNodeGetParams" @ 10000;
            fn cuGraphMemsetNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_MEMSET_NODE_PARAMS) = "cuGraphMemsetNodeSetParams" @ 10000;
            fn cuGraphHostNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_HOST_NODE_PARAMS) = "cuGraphHostNodeGetParams" @ 10000;
            fn cuGraphHostNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_HOST_NODE_PARAMS) = "cuGraphHostNodeSetParams" @ 10000;
            fn cuGraphChildGraphNodeGetGraph(hNode: CUgraphNode, phGraph: *mut CUgraph) = "cuGraphChildGraphNodeGetGraph" @ 10000;
            fn cuGraphEventRecordNodeGetEvent(hNode: CUgraphNode, event_out: *mut CUevent) = "cuGraphEventRecordNodeGetEvent" @ 11010;
            fn cuGraphEventRecordNodeSetEvent(hNode: CUgraphNode, event: CUevent) = "cuGraphEventRecordNodeSetEvent" @ 11010;
            fn cuGraphEventWaitNodeGetEvent(hNode: CUgraphNode, event_out: *mut CUevent) = "cuGraphEventWaitNodeGetEvent" @ 11010;
            fn cuGraphEventWaitNodeSetEvent(hNode: CUgraphNode, event: CUevent) = "cuGraphEventWaitNodeSetEvent" @ 11010;
            fn cuGraphMemAllocNodeGetParams(hNode: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) = "cuGraphMemAllocNodeGetParams" @ 11040;
            fn cuGraphMemFreeNodeGetParams(hNode: CUgraphNode, dptr_out: *mut CUdeviceptr) = "cuGraphMemFreeNodeGetParams" @ 11040;
            fn cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) = "cuGraphInstantiateWithFlags" @ 11040;
            fn cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) = "cuGraphInstantiateWithParams" @ 12000;
            fn cuGraphExecDestroy(hGraphExec: CUgraphExec) = "cuGraphExecDestroy" @ 10000;
            fn cuGraphExecGetFlags(hGraphExec: CUgraphExec, flags: *mut u64) = "cuGraphExecGetFlags" @ 12000;
            fn cuGraphLaunch(hGraph: CUgraphExec, hStream: CUstream) = "cuGraphLaunch" @ 10000;
            fn cuGraphUpload(hGraph: CUgraphExec, hStream: CUstream) = "cuGraphUpload" @ 11010;
            fn cuGraphExecUpdate(hGraphExec: CUgraphExec, hGraph: CUgraph, resultInfo: *mut CUgraphExecUpdateResultInfo) = "cuGraphExecUpdate_v2" @ 12000;
            fn cuGraphExecKernelNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v2) = "cuGraphExecKernelNodeSetParams_v2" @ 12000;
            fn cuGraphExecMemcpyNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) = "cuGraphExecMemcpyNodeSetParams" @ 10020;
            fn cuGraphExecMemsetNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) = "cuGraphExecMemsetNodeSetParams" @ 10020;
            fn cuGraphExecHostNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_HOST_NODE_PARAMS) = "cuGraphExecHostNodeSetParams" @ 10020;
            fn cuGraphExecChildGraphNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, childGraph: CUgraph) = "cuGraphExecChildGraphNodeSetParams" @ 11010;
            fn cuGraphExecEventRecordNodeSetEvent(hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) = "cuGraphExecEventRecordNodeSetEvent" @ 11010;
            fn cuGraphExecEventWaitNodeSetEvent(hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) = "cuGraphExecEventWaitNodeSetEvent" @ 11010;
            fn cuGraphExecNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) = "cuGraphExecNodeSetParams" @ 12020;
            fn cuGraphNodeSetParams(hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) = "cuGraphNodeSetParams" @ 12020;
            fn cuGraphDebugDotPrint(hGraph: CUgraph, path: *const c_char, flags: c_uint) = "cuGraphDebugDotPrint" @ 11030;
            fn cuUserObjectCreate(object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initialRefcount: c_uint, flags: c_uint) = "cuUserObjectCreate" @ 11030;
            fn cuUserObjectRetain(object: CUuserObject, count: c_uint) = "cuUserObjectRetain" @ 11030;
            fn cuUserObjectRelease(object: CUuserObject, count: c_uint) = "cuUserObjectRelease" @ 11030;
            fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) = "cuGraphRetainUserObject" @ 11030;
            fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) = "cuGraphReleaseUserObject" @ 11030;
        }
    };
}
