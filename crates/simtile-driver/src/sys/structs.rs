//! Structures of the driver API.
//!
//! Names and numbers are those of `cuda.h` (CUDA 13.0); `cargo run -p xtask -- layouts HEADER` checks
//! every one of them against a header.

use super::{enums::*, handles::*};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// Where the fields of a structure lie, for the comparison with a header.
#[doc(hidden)]
pub struct StructLayout {
    pub name: &'static str,
    pub size: usize,
    pub align: usize,
    pub fields: &'static [(&'static str, usize)],
}

macro_rules! cuda_structs {
    ($($kind:ident $name:ident { $($field:ident: $ty:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name { $(pub $field: $ty,)* }
        )*

        /// Every structure of this module.
        #[doc(hidden)]
        pub const LAYOUTS: &[StructLayout] = &[$(StructLayout {
            name: stringify!($name),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: &[$((stringify!($field), core::mem::offset_of!($name, $field))),*],
        }),*];
    };
}

cuda_structs! {
    struct CUuuid {
        bytes: [c_char; 16],
    }

    struct CUdevSmResource {
        smCount: c_uint,
        minSmPartitionSize: c_uint,
        smCoscheduledAlignment: c_uint,
    }

    union CUdevResource_u {
        sm: CUdevSmResource,
        _oversize: [u8; 48],
    }

    struct CUdevResource {
        type_: CUdevResourceType,
        _internal_padding: [u8; 92],
        u: CUdevResource_u,
    }

    struct CUaccessPolicyWindow {
        base_ptr: *mut c_void,
        num_bytes: usize,
        hitRatio: f32,
        hitProp: CUaccessProperty,
        missProp: CUaccessProperty,
    }

    struct CUlaunchAttributeValue_clusterDim {
        x: c_uint,
        y: c_uint,
        z: c_uint,
    }

    struct CUlaunchAttributeValue_programmaticEvent {
        event: CUevent,
        flags: c_int,
        triggerAtBlockStart: c_int,
    }

    struct CUlaunchAttributeValue_launchCompletionEvent {
        event: CUevent,
        flags: c_int,
    }

    struct CUlaunchMemSyncDomainMap {
        default_: u8,
        remote: u8,
    }

    struct CUlaunchAttributeValue_preferredClusterDim {
        x: c_uint,
        y: c_uint,
        z: c_uint,
    }

    struct CUlaunchAttributeValue_deviceUpdatableKernelNode {
        deviceUpdatable: c_int,
        devNode: CUgraphDeviceNode,
    }

    union CUlaunchAttributeValue {
        pad: [c_char; 64],
        accessPolicyWindow: CUaccessPolicyWindow,
        cooperative: c_int,
        syncPolicy: CUsynchronizationPolicy,
        clusterDim: CUlaunchAttributeValue_clusterDim,
        clusterSchedulingPolicyPreference: CUclusterSchedulingPolicy,
        programmaticStreamSerializationAllowed: c_int,
        programmaticEvent: CUlaunchAttributeValue_programmaticEvent,
        launchCompletionEvent: CUlaunchAttributeValue_launchCompletionEvent,
        priority: c_int,
        memSyncDomainMap: CUlaunchMemSyncDomainMap,
        memSyncDomain: CUlaunchMemSyncDomain,
        preferredClusterDim: CUlaunchAttributeValue_preferredClusterDim,
        deviceUpdatableKernelNode: CUlaunchAttributeValue_deviceUpdatableKernelNode,
        sharedMemCarveout: c_uint,
        nvlinkUtilCentricScheduling: c_uint,
    }

    union CUstreamBatchMemOpParams_waitValue_u {
        value: u32,
        value64: u64,
    }

    struct CUstreamBatchMemOpParams_waitValue {
        operation: CUstreamBatchMemOpType,
        address: CUdeviceptr,
        u: CUstreamBatchMemOpParams_waitValue_u,
        flags: c_uint,
        alias: CUdeviceptr,
    }

    union CUstreamBatchMemOpParams_writeValue_u {
        value: u32,
        value64: u64,
    }

    struct CUstreamBatchMemOpParams_writeValue {
        operation: CUstreamBatchMemOpType,
        address: CUdeviceptr,
        u: CUstreamBatchMemOpParams_writeValue_u,
        flags: c_uint,
        alias: CUdeviceptr,
    }

    struct CUstreamBatchMemOpParams_flushRemoteWrites {
        operation: CUstreamBatchMemOpType,
        flags: c_uint,
    }

    struct CUstreamBatchMemOpParams_memoryBarrier {
        operation: CUstreamBatchMemOpType,
        flags: c_uint,
    }

    union CUstreamBatchMemOpParams {
        operation: CUstreamBatchMemOpType,
        waitValue: CUstreamBatchMemOpParams_waitValue,
        writeValue: CUstreamBatchMemOpParams_writeValue,
        flushRemoteWrites: CUstreamBatchMemOpParams_flushRemoteWrites,
        memoryBarrier: CUstreamBatchMemOpParams_memoryBarrier,
        pad: [u64; 6],
    }

    struct CUgraphEdgeData {
        from_port: u8,
        to_port: u8,
        type_: u8,
        reserved: [u8; 5],
    }

    struct CUipcEventHandle {
        reserved: [c_char; 64],
    }

    struct CUipcMemHandle {
        reserved: [c_char; 64],
    }

    struct CUmemLocation {
        type_: CUmemLocationType,
        id: c_int,
    }

    struct CUmemPoolProps {
        allocType: CUmemAllocationType,
        handleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32SecurityAttributes: *mut c_void,
        maxSize: usize,
        usage: u16,
        reserved: [u8; 54],
    }

    struct CUmemAccessDesc {
        location: CUmemLocation,
        flags: CUmemAccess_flags,
    }

    struct CUDA_MEMCPY2D {
        srcXInBytes: usize,
        srcY: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        srcPitch: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        dstPitch: usize,
        WidthInBytes: usize,
        Height: usize,
    }

    struct CUDA_MEMCPY3D {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        reserved0: *mut c_void,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        reserved1: *mut c_void,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }

    struct CUmemAllocationProp_allocFlags {
        compressionType: u8,
        gpuDirectRDMACapable: u8,
        usage: u16,
        reserved: [u8; 4],
    }

    struct CUmemAllocationProp {
        type_: CUmemAllocationType,
        requestedHandleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32HandleMetaData: *mut c_void,
        allocFlags: CUmemAllocationProp_allocFlags,
    }

    struct CUmulticastObjectProp {
        numDevices: c_uint,
        size: usize,
        handleTypes: u64,
        flags: u64,
    }

    struct CUlaunchAttribute {
        id: CUlaunchAttributeID,
        pad: [c_char; 4],
        value: CUlaunchAttributeValue,
    }

    struct CUlaunchConfig {
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        attrs: *mut CUlaunchAttribute,
        numAttrs: c_uint,
    }

    struct CUDA_KERNEL_NODE_PARAMS_v2 {
        func: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }

    struct CUDA_MEMSET_NODE_PARAMS {
        dst: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        elementSize: c_uint,
        width: usize,
        height: usize,
    }

    struct CUDA_HOST_NODE_PARAMS {
        fn_: CUhostFn,
        userData: *mut c_void,
    }

    struct CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps,
        accessDescs: *const CUmemAccessDesc,
        accessDescCount: usize,
        bytesize: usize,
        dptr: CUdeviceptr,
    }

    struct CUDA_KERNEL_NODE_PARAMS_v3 {
        func: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }

    struct CUDA_MEMCPY_NODE_PARAMS {
        flags: c_int,
        reserved: c_int,
        copyCtx: CUcontext,
        copyParams: CUDA_MEMCPY3D,
    }

    struct CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        elementSize: c_uint,
        width: usize,
        height: usize,
        ctx: CUcontext,
    }

    struct CUDA_HOST_NODE_PARAMS_v2 {
        fn_: CUhostFn,
        userData: *mut c_void,
    }

    struct CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: CUgraph,
        ownership: CUgraphChildGraphNodeOwnership,
    }

    struct CUDA_EVENT_WAIT_NODE_PARAMS {
        event: CUevent,
    }

    struct CUDA_EVENT_RECORD_NODE_PARAMS {
        event: CUevent,
    }

    struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_fence {
        value: u64,
    }

    union CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_nvSciSync {
        fence: *mut c_void,
        reserved: u64,
    }

    struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_keyedMutex {
        key: u64,
    }

    struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params {
        fence: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_fence,
        nvSciSync: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_nvSciSync,
        keyedMutex: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params_keyedMutex,
        reserved: [c_uint; 12],
    }

    struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
        params: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_params,
        flags: c_uint,
        reserved: [c_uint; 16],
    }

    struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2 {
        extSemArray: *mut CUexternalSemaphore,
        paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
        numExtSems: c_uint,
    }

    struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_fence {
        value: u64,
    }

    union CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_nvSciSync {
        fence: *mut c_void,
        reserved: u64,
    }

    struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_keyedMutex {
        key: u64,
        timeoutMs: c_uint,
    }

    struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params {
        fence: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_fence,
        nvSciSync: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_nvSciSync,
        keyedMutex: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params_keyedMutex,
        reserved: [c_uint; 10],
    }

    struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
        params: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_params,
        flags: c_uint,
        reserved: [c_uint; 16],
    }

    struct CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2 {
        extSemArray: *mut CUexternalSemaphore,
        paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS,
        numExtSems: c_uint,
    }

    struct CUDA_MEM_ALLOC_NODE_PARAMS_v2 {
        poolProps: CUmemPoolProps,
        accessDescs: *const CUmemAccessDesc,
        accessDescCount: usize,
        bytesize: usize,
        dptr: CUdeviceptr,
    }

    struct CUDA_MEM_FREE_NODE_PARAMS {
        dptr: CUdeviceptr,
    }

    struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 {
        ctx: CUcontext,
        count: c_uint,
        paramArray: *mut CUstreamBatchMemOpParams,
        flags: c_uint,
    }

    struct CUDA_CONDITIONAL_NODE_PARAMS {
        handle: CUgraphConditionalHandle,
        type_: CUgraphConditionalNodeType,
        size: c_uint,
        phGraph_out: *mut CUgraph,
        ctx: CUcontext,
    }

    union CUgraphNodeParams_u {
        reserved1: [i64; 29],
        kernel: CUDA_KERNEL_NODE_PARAMS_v3,
        memcpy: CUDA_MEMCPY_NODE_PARAMS,
        memset: CUDA_MEMSET_NODE_PARAMS_v2,
        host: CUDA_HOST_NODE_PARAMS_v2,
        graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
        eventWait: CUDA_EVENT_WAIT_NODE_PARAMS,
        eventRecord: CUDA_EVENT_RECORD_NODE_PARAMS,
        extSemSignal: CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2,
        extSemWait: CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2,
        alloc: CUDA_MEM_ALLOC_NODE_PARAMS_v2,
        free: CUDA_MEM_FREE_NODE_PARAMS,
        memOp: CUDA_BATCH_MEM_OP_NODE_PARAMS_v2,
        conditional: CUDA_CONDITIONAL_NODE_PARAMS,
    }

    struct CUgraphNodeParams {
        type_: CUgraphNodeType,
        reserved0: [c_int; 3],
        u: CUgraphNodeParams_u,
        reserved2: i64,
    }

    struct CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: u64,
        hUploadStream: CUstream,
        hErrNode_out: CUgraphNode,
        result_out: CUgraphInstantiateResult,
    }

    struct CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult,
        errorNode: CUgraphNode,
        errorFromNode: CUgraphNode,
    }
}
