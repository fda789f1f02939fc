//! What tests of graphs share: generic node parameters, and a graph's way from nodes to words.

use crate::frame::{Check, Cx};
use crate::gpu::{Args, Gpu};
use crate::ok;
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new graph.
pub fn graph(cx: &Cx) -> Check<CUgraph> {
    let mut graph = CUgraph::NULL;
    ok!(cx, cuGraphCreate(&mut graph, 0))?;
    Ok(graph)
}

/// An executable graph.
pub fn exec(cx: &Cx, graph: CUgraph) -> Check<CUgraphExec> {
    let mut exec = CUgraphExec::NULL;
    ok!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    Ok(exec)
}

/// Launches and waits.
pub fn replay(gpu: &Gpu<'_>, exec: CUgraphExec, stream: CUstream) -> Check {
    ok!(gpu, cuGraphLaunch(exec, stream))?;
    gpu.sync(stream)
}

/// Instantiates, launches once and waits.
pub fn run_once(gpu: &Gpu<'_>, graph: CUgraph, stream: CUstream) -> Check {
    replay(gpu, exec(gpu.cx(), graph)?, stream)
}

/// Parameters of a node of this type, all zeros.
pub fn blank(kind: CUgraphNodeType) -> CUgraphNodeParams {
    // SAFETY: zeros are valid in every field.
    let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
    params.type_ = kind;
    params
}

/// Adds a node by its generic parameters; what the driver answered stays in them.
pub fn add(
    cx: &Cx,
    graph: CUgraph,
    before: &[CUgraphNode],
    params: &mut CUgraphNodeParams,
) -> Check<CUgraphNode> {
    let mut node = CUgraphNode::NULL;
    ok!(cx, cuGraphAddNode(&mut node, graph, before.as_ptr(), null(), before.len(), params))?;
    Ok(node)
}

/// Parameters of a kernel node of one thread. They live as long as the arguments' list.
pub fn kernel(function: CUfunction, list: &mut [*mut c_void]) -> CUgraphNodeParams {
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    // SAFETY: zeros are valid in every field.
    let mut p: CUDA_KERNEL_NODE_PARAMS_v3 = unsafe { std::mem::zeroed() };
    (p.func, p.gridDimX, p.gridDimY, p.gridDimZ) = (function, 1, 1, 1);
    (p.blockDimX, p.blockDimY, p.blockDimZ) = (1, 1, 1);
    p.kernelParams = list.as_mut_ptr();
    params.u.kernel = p;
    params
}

/// Adds a kernel node of one thread.
pub fn add_kernel(
    cx: &Cx,
    graph: CUgraph,
    before: &[CUgraphNode],
    function: CUfunction,
    args: &Args,
) -> Check<CUgraphNode> {
    add(cx, graph, before, &mut kernel(function, &mut args.pointers()))
}

/// Parameters of a memset of one word.
pub fn memset(at: CUdeviceptr, value: u32, context: CUcontext) -> CUgraphNodeParams {
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET);
    params.u.memset = CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: at,
        pitch: 0,
        value,
        elementSize: 4,
        width: 1,
        height: 1,
        ctx: context,
    };
    params
}

/// Adds a memset of one word.
pub fn add_memset(
    gpu: &Gpu<'_>,
    graph: CUgraph,
    before: &[CUgraphNode],
    at: CUdeviceptr,
    value: u32,
) -> Check<CUgraphNode> {
    add(gpu.cx(), graph, before, &mut memset(at, value, gpu.context))
}

/// Data of an edge.
pub const fn data(from_port: u8, to_port: u8, type_: u8) -> CUgraphEdgeData {
    CUgraphEdgeData { from_port, to_port, type_, reserved: [0; 5] }
}

/// Every edge: its ends, and its ports and type. At most 64.
pub fn edges(cx: &Cx, graph: CUgraph) -> Check<Vec<(CUgraphNode, CUgraphNode, [u8; 3])>> {
    let (mut from, mut to) = ([CUgraphNode::NULL; 64], [CUgraphNode::NULL; 64]);
    let (mut found, mut count) = ([data(0, 0, 0); 64], 64);
    ok!(cx, cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), found.as_mut_ptr(), &mut count))?;
    let plain = |data: CUgraphEdgeData| [data.from_port, data.to_port, data.type_];
    Ok((0..count).map(|i| (from[i], to[i], plain(found[i]))).collect())
}

/// Parameters of an allocation on a device.
pub fn allocation(device: CUdevice, bytes: usize) -> CUgraphNodeParams {
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    // SAFETY: zeros are valid in every field.
    let mut p: CUDA_MEM_ALLOC_NODE_PARAMS_v2 = unsafe { std::mem::zeroed() };
    p.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location =
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    p.bytesize = bytes;
    params.u.alloc = p;
    params
}

/// Parameters of a wait for an event.
pub fn waits(event: CUevent) -> CUgraphNodeParams {
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    params.u.eventWait = CUDA_EVENT_WAIT_NODE_PARAMS { event };
    params
}

/// A host function that adds 1 to a counter.
pub unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the tests pass a counter that outlives the work.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

/// What [`count`] is given.
pub fn counter(n: &AtomicU32) -> *mut c_void {
    std::ptr::from_ref(n).cast_mut().cast()
}
