//! Structures of the driver API.
//!
//! Names and numbers are those of `cuda.h` (CUDA 13.0); `cargo run -p xtask -- layouts HEADER` checks
//! every one of them against a header.

use super::{enums::*, handles::*};
use core::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUuuid {
    pub bytes: [c_char; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUdevSmResource {
    pub smCount: c_uint,
    pub minSmPartitionSize: c_uint,
    pub smCoscheduledAlignment: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUdevResource_u {
    pub sm: CUdevSmResource,
    pub _oversize: [u8; 48],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUdevResource {
    pub type_: CUdevResourceType,
    pub _internal_padding: [u8; 92],
    pub u: CUdevResource_u,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUaccessPolicyWindow {
    pub base_ptr: *mut c_void,
    pub num_bytes: usize,
    pub hitRatio: f32,
    pub hitProp: CUaccessProperty,
    pub missProp: CUaccessProperty,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttributeValue_clusterDim {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttributeValue_programmaticEvent {
    pub event: CUevent,
    pub flags: c_int,
    pub triggerAtBlockStart: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttributeValue_launchCompletionEvent {
    pub event: CUevent,
    pub flags: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchMemSyncDomainMap {
    pub default_: u8,
    pub remote: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttributeValue_preferredClusterDim {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttributeValue_deviceUpdatableKernelNode {
    pub deviceUpdatable: c_int,
    pub devNode: CUgraphDeviceNode,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUlaunchAttributeValue {
    pub pad: [c_char; 64],
    pub accessPolicyWindow: CUaccessPolicyWindow,
    pub cooperative: c_int,
    pub syncPolicy: CUsynchronizationPolicy,
    pub clusterDim: CUlaunchAttributeValue_clusterDim,
    pub clusterSchedulingPolicyPreference: CUclusterSchedulingPolicy,
    pub programmaticStreamSerializationAllowed: c_int,
    pub programmaticEvent: CUlaunchAttributeValue_programmaticEvent,
    pub launchCompletionEvent: CUlaunchAttributeValue_launchCompletionEvent,
    pub priority: c_int,
    pub memSyncDomainMap: CUlaunchMemSyncDomainMap,
    pub memSyncDomain: CUlaunchMemSyncDomain,
    pub preferredClusterDim: CUlaunchAttributeValue_preferredClusterDim,
    pub deviceUpdatableKernelNode: CUlaunchAttributeValue_deviceUpdatableKernelNode,
    pub sharedMemCarveout: c_uint,
    pub nvlinkUtilCentricScheduling: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUstreamBatchMemOpParams_waitValue_u {
    pub value: u32,
    pub value64: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUstreamBatchMemOpParams_waitValue {
    pub operation: CUstreamBatchMemOpType,
    pub address: CUdeviceptr,
    pub u: CUstreamBatchMemOpParams_waitValue_u,
    pub flags: c_uint,
    pub alias: CUdeviceptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUstreamBatchMemOpParams_writeValue_u {
    pub value: u32,
    pub value64: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUstreamBatchMemOpParams_writeValue {
    pub operation: CUstreamBatchMemOpType,
    pub address: CUdeviceptr,
    pub u: CUstreamBatchMemOpParams_writeValue_u,
    pub flags: c_uint,
    pub alias: CUdeviceptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUstreamBatchMemOpParams_flushRemoteWrites {
    pub operation: CUstreamBatchMemOpType,
    pub flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUstreamBatchMemOpParams_memoryBarrier {
    pub operation: CUstreamBatchMemOpType,
    pub flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUstreamBatchMemOpParams {
    pub operation: CUstreamBatchMemOpType,
    pub waitValue: CUstreamBatchMemOpParams_waitValue,
    pub writeValue: CUstreamBatchMemOpParams_writeValue,
    pub flushRemoteWrites: CUstreamBatchMemOpParams_flushRemoteWrites,
    pub memoryBarrier: CUstreamBatchMemOpParams_memoryBarrier,
    pub pad: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub type_: u8,
    pub reserved: [u8; 5],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUipcEventHandle {
    pub reserved: [c_char; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUipcMemHandle {
    pub reserved: [c_char; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemLocation {
    pub type_: CUmemLocationType,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemPoolProps {
    pub allocType: CUmemAllocationType,
    pub handleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAllocationProp_allocFlags {
    pub compressionType: u8,
    pub gpuDirectRDMACapable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAllocationProp {
    pub type_: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: CUmemAllocationProp_allocFlags,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmulticastObjectProp {
    pub numDevices: c_uint,
    pub size: usize,
    pub handleTypes: u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttribute {
    pub id: CUlaunchAttributeID,
    pub pad: [c_char; 4],
    pub value: CUlaunchAttributeValue,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchConfig {
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_KERNEL_NODE_PARAMS_v2 {
    pub func: CUfunction,
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub elementSize: c_uint,
    pub width: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub fn_: CUhostFn,
    pub userData: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub poolProps: CUmemPoolProps,
    pub accessDescs: *const CUmemAccessDesc,
    pub accessDescCount: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_KERNEL_NODE_PARAMS_v3 {
    pub func: CUfunction,
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    pub flags: c_int,
    pub reserved: c_int,
    pub copyCtx: CUcontext,
    pub copyParams: CUDA_MEMCPY3D,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMSET_NODE_PARAMS_v2 {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub elementSize: c_uint,
    pub width: usize,
    pub height: usize,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_HOST_NODE_PARAMS_v2 {
    pub fn_: CUhostFn,
    pub userData: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    pub graph: CUgraph,
    pub ownership: CUgraphChildGraphNodeOwnership,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EVENT_WAIT_NODE_PARAMS {
    pub event: CUevent,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EVENT_RECORD_NODE_PARAMS {
    pub event: CUevent,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_fence {
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_nvSciSync {
    pub fence: *mut c_void,
    pub reserved: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_keyedMutex {
    pub key: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params {
    pub fence: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_fence,
    pub nvSciSync: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_nvSciSync,
    pub keyedMutex: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_keyedMutex,
    pub reserved: [c_uint; 12],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
    pub params: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params,
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2 {
    pub extSemArray: *mut CUexternalSemaphore,
    pub paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    pub numExtSems: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_fence {
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_nvSciSync {
    pub fence: *mut c_void,
    pub reserved: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_keyedMutex {
    pub key: u64,
    pub timeoutMs: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params {
    pub fence: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_fence,
    pub nvSciSync: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_nvSciSync,
    pub keyedMutex: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_keyedMutex,
    pub reserved: [c_uint; 10],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
    pub params: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params,
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2 {
    pub extSemArray: *mut CUexternalSemaphore,
    pub paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS,
    pub numExtSems: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS_v2 {
    pub poolProps: CUmemPoolProps,
    pub accessDescs: *const CUmemAccessDesc,
    pub accessDescCount: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEM_FREE_NODE_PARAMS {
    pub dptr: CUdeviceptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 {
    pub ctx: CUcontext,
    pub count: c_uint,
    pub paramArray: *mut CUstreamBatchMemOpParams,
    pub flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    pub handle: CUgraphConditionalHandle,
    pub type_: CUgraphConditionalNodeType,
    pub size: c_uint,
    pub phGraph_out: *mut CUgraph,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union CUgraphNodeParams_u {
    pub reserved1: [i64; 29],
    pub kernel: CUDA_KERNEL_NODE_PARAMS_v3,
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    pub host: CUDA_HOST_NODE_PARAMS_v2,
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    pub eventWait: CUDA_EVENT_WAIT_NODE_PARAMS,
    pub eventRecord: CUDA_EVENT_RECORD_NODE_PARAMS,
    pub extSemSignal: CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2,
    pub extSemWait: CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2,
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS_v2,
    pub free: CUDA_MEM_FREE_NODE_PARAMS,
    pub memOp: CUDA_BATCH_MEM_OP_NODE_PARAMS_v2,
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    pub type_: CUgraphNodeType,
    pub reserved0: [c_int; 3],
    pub u: CUgraphNodeParams_u,
    pub reserved2: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: u64,
    pub hUploadStream: CUstream,
    pub hErrNode_out: CUgraphNode,
    pub result_out: CUgraphInstantiateResult,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: CUgraphExecUpdateResult,
    pub errorNode: CUgraphNode,
    pub errorFromNode: CUgraphNode,
}
