//! Graphs: building, instantiating, launching, changing.

use super::graph_tools::{count, counter, exec, graph, replay};
use crate::frame::{Check, Cx, Need, threads};
use crate::gpu::{Args, Gpu, SOON, Shape};
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::sync::atomic::{AtomicU32, Ordering};

crate::frame::registry::tests! { Driver, "graphs";
    built_graphs_run_in_order,
    edges_can_be_changed,
    node_parameters,
    pending_launches_keep_their_values,
    one_exec_on_two_streams_is_serialised,
    updates,
    clones_children_and_disabled_nodes,
    event_nodes,
    memory_nodes needs [Need::POOLS],
    user_objects,
    pictures_and_flags,
}

const NONE: *const CUgraphNode = std::ptr::null();

fn set(dst: CUdeviceptr, value: u32) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: 4, width: 1, height: 1 }
}

fn line(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CUDA_MEMCPY3D {
    // SAFETY: zeros are valid in every field.
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    (copy.srcDevice, copy.dstDevice) = (src, dst);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (bytes, 1, 1);
    copy
}

fn with_kernel<T>(
    function: CUfunction,
    args: &Args,
    run: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS_v2) -> T,
) -> T {
    let mut list = args.pointers();
    run(&CUDA_KERNEL_NODE_PARAMS_v2 {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: list.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

/// A node that stores a word.
fn store(
    cx: &Cx,
    graph: CUgraph,
    after: &[CUgraphNode],
    function: CUfunction,
    at: u64,
    value: u32,
) -> Check<CUgraphNode> {
    let mut node = CUgraphNode::NULL;
    with_kernel(function, &Args::new().with(at).with(value), |params| {
        ok!(cx, cuGraphAddKernelNode(&mut node, graph, after.as_ptr(), after.len(), params))
    })?;
    Ok(node)
}

fn current(cx: &Cx) -> Check<CUcontext> {
    let mut context = CUcontext::NULL;
    ok!(cx, cuCtxGetCurrent(&mut context))?;
    Ok(context)
}

fn memset(cx: &Cx, graph: CUgraph, after: &[CUgraphNode], at: u64, value: u32) -> Check<CUgraphNode> {
    let (mut node, params, context) = (CUgraphNode::NULL, set(at, value), current(cx)?);
    ok!(cx, cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &params, context))?;
    Ok(node)
}

fn built_graphs_run_in_order(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, word, kernel) = (gpu.stream()?, gpu.zeroed(16)?, gpu.kernel(c"store_one")?);
    let (g, called) = (graph(cx)?, AtomicU32::new(0));
    let first = memset(cx, g, &[], word, 5)?;
    let left = store(cx, g, &[first], kernel, word + 4, 6)?;
    let (mut right, mut last, mut host) = (CUgraphNode::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
    ok!(cx, cuGraphAddMemcpyNode(&mut right, g, &first, 1, &line(word + 8, word, 4), current(cx)?))?;
    ok!(cx, cuGraphAddEmptyNode(&mut last, g, [left, right].as_ptr(), 2))?;
    let call = CUDA_HOST_NODE_PARAMS { fn_: Some(count), userData: counter(&called) };
    ok!(cx, cuGraphAddHostNode(&mut host, g, &last, 1, &call))?;
    let e = exec(cx, g)?;
    for n in 1..4 {
        gpu.write(word, &[0u32; 4])?;
        replay(&gpu, e, stream)?;
        ensure_eq!(gpu.read::<u32>(word, 3)?, [5, 6, 5], "words");
        ensure_eq!(called.load(Ordering::SeqCst), n, "calls of the host function");
    }
    let kinds = [(first, 2), (left, 0), (right, 1), (last, 5), (host, 3)];
    for (node, kind) in kinds {
        let mut found = CUgraphNodeType(99);
        ok!(cx, cuGraphNodeGetType(node, &mut found))?;
        ensure_eq!(found.0, kind, "type of a node");
    }
    let mut shown = CUDA_HOST_NODE_PARAMS { fn_: None, userData: std::ptr::null_mut() };
    ok!(cx, cuGraphHostNodeGetParams(host, &mut shown))?;
    ensure_eq!(shown.userData, counter(&called), "argument of the host function");
    ok!(cx, cuGraphHostNodeSetParams(host, &call))?;
    ok!(cx, cuGraphExecHostNodeSetParams(e, host, &call))?;
    ok!(cx, cuGraphExecDestroy(e))?;
    ok!(cx, cuGraphDestroy(g))
}

fn edges_can_be_changed(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (word, g) = (gpu.zeroed(16)?, graph(cx)?);
    let a = memset(cx, g, &[], word, 1)?;
    let b = memset(cx, g, &[], word + 4, 1)?;
    ok!(cx, cuGraphAddDependencies(g, &a, &b, 1))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphAddDependencies(g, &a, &b, 1))?;
    let (mut nodes, mut n) = ([CUgraphNode::NULL; 4], 4);
    ok!(cx, cuGraphNodeGetDependencies(b, nodes.as_mut_ptr(), &mut n))?;
    ensure_eq!(nodes[..n], [a], "what comes before");
    n = 4;
    ok!(cx, cuGraphNodeGetDependentNodes(a, nodes.as_mut_ptr(), &mut n))?;
    ensure_eq!(nodes[..n], [b], "what comes after");
    n = 4;
    ok!(cx, cuGraphGetRootNodes(g, nodes.as_mut_ptr(), &mut n))?;
    ensure_eq!(nodes[..n], [a], "roots");
    ok!(cx, cuGraphRemoveDependencies(g, &a, &b, 1))?;
    n = 0;
    ok!(cx, cuGraphGetEdges(g, std::ptr::null_mut(), std::ptr::null_mut(), &mut n))?;
    ensure_eq!(n, 0, "edges");
    ok!(cx, cuGraphDestroyNode(b))?;
    ok!(cx, cuGraphGetNodes(g, std::ptr::null_mut(), &mut n))?;
    ensure_eq!(n, 1, "nodes");
    Ok(())
}

fn node_parameters(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, m, kernel) = (gpu.stream()?, gpu.zeroed(16)?, gpu.kernel(c"store_one")?);
    let g = graph(cx)?;
    let stored = store(cx, g, &[], kernel, m, 3)?;
    let filled = memset(cx, g, &[stored], m + 4, 4)?;
    let mut copied = CUgraphNode::NULL;
    ok!(cx, cuGraphAddMemcpyNode(&mut copied, g, &filled, 1, &line(m + 8, m, 4), current(cx)?))?;
    let mut fill = set(0, 0);
    ok!(cx, cuGraphMemsetNodeGetParams(filled, &mut fill))?;
    ensure_eq!((fill.dst, fill.value, fill.elementSize), (m + 4, 4, 4), "parameters of the memset");
    let mut copy = line(0, 0, 0);
    ok!(cx, cuGraphMemcpyNodeGetParams(copied, &mut copy))?;
    ensure_eq!((copy.dstDevice, copy.WidthInBytes), (m + 8, 4), "parameters of the copy");
    let mut found = with_kernel(kernel, &Args::new(), |params| *params);
    ok!(cx, cuGraphKernelNodeGetParams(stored, &mut found))?;
    // SAFETY: the driver shows a list with a pointer to each parameter.
    let value = unsafe { (*found.kernelParams.add(1)).cast::<u32>().read_unaligned() };
    ensure_eq!((found.gridDimX, value), (1, 3), "parameters of the kernel");

    let old = exec(cx, g)?;
    let thirty = Args::new().with(m).with(30u32);
    with_kernel(kernel, &thirty, |params| ok!(cx, cuGraphKernelNodeSetParams(stored, params)))?;
    ok!(cx, cuGraphMemsetNodeSetParams(filled, &set(m + 4, 40)))?;
    ok!(cx, cuGraphMemcpyNodeSetParams(copied, &line(m + 12, m, 4)))?;
    replay(&gpu, old, stream)?;
    ensure_eq!(gpu.read::<u32>(m, 4)?, [3, 4, 3, 0], "words: what was instantiated stays");
    replay(&gpu, exec(cx, g)?, stream)?;
    ensure_eq!(gpu.read::<u32>(m, 4)?, [30, 40, 3, 30], "words");
    let context = current(cx)?;
    ok!(cx, cuGraphExecMemsetNodeSetParams(old, filled, &set(m + 4, 7), context))?;
    ok!(cx, cuGraphExecMemcpyNodeSetParams(old, copied, &line(m + 8, m + 4, 4), context))?;
    replay(&gpu, old, stream)?;
    ensure_eq!(gpu.read::<u32>(m, 3)?, [3, 7, 7], "words after the executable graph was changed");
    Ok(())
}

fn pending_launches_keep_their_values(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, m, kernel) = (gpu.stream()?, gpu.zeroed(8)?, gpu.kernel(c"store_one")?);
    let g = graph(cx)?;
    let node = store(cx, g, &[], kernel, m, 1)?;
    let e = exec(cx, g)?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuGraphLaunch(e, stream))?;
    ok!(cx, cuMemcpyDtoDAsync(m + 4, m, 4, stream))?;
    let two = Args::new().with(m).with(2u32);
    with_kernel(kernel, &two, |params| ok!(cx, cuGraphExecKernelNodeSetParams(e, node, params)))?;
    ok!(cx, cuGraphLaunch(e, stream))?;
    // Destroying it with launches pending is fine.
    ok!(cx, cuGraphExecDestroy(e))?;
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(m, 2)?, [2, 1], "words");
    Ok(())
}

fn one_exec_on_two_streams_is_serialised(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, m, g) = (gpu.stream()?, gpu.stream()?, gpu.zeroed(4)?, graph(cx)?);
    memset(cx, g, &[], m, 1)?;
    let (e, done) = (exec(cx, g)?, gpu.event()?);
    let gate = gpu.gate(a)?;
    ok!(cx, cuGraphLaunch(e, a))?;
    ok!(cx, cuGraphLaunch(e, b))?;
    ok!(cx, cuEventRecord(done, b))?;
    gpu.stays_pending(done, "a second launch of a graph whose first one is gated")?;
    gate.open();
    gpu.finishes(done, "the second launch")
}

fn updates(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, m) = (gpu.stream()?, gpu.zeroed(8)?);
    let build = |value: u32, more: bool| {
        let g = graph(cx)?;
        let first = memset(cx, g, &[], m, value)?;
        if more {
            memset(cx, g, &[first], m + 4, value)?;
        }
        Ok::<_, crate::frame::Stop>(g)
    };
    let e = exec(cx, build(1, false)?)?;
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: CUgraphNode::NULL,
        errorFromNode: CUgraphNode::NULL,
    };
    ok!(cx, cuGraphExecUpdate(e, build(7, false)?, &mut info))?;
    ensure_eq!(info.result.0, 0, "result");
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.word(m)?, 7, "word");
    code!(cx, [CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE], cuGraphExecUpdate(e, build(8, true)?, &mut info))?;
    let topology = CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    ensure_eq!(info.result, topology, "result of an update with another node");
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.word(m)?, 7, "word after a failed update");
    Ok(())
}

fn clones_children_and_disabled_nodes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, m, inner, outer) = (gpu.stream()?, gpu.zeroed(16)?, graph(cx)?, graph(cx)?);
    let a = memset(cx, inner, &[], m, 2)?;
    memset(cx, inner, &[a], m + 4, 3)?;
    let (mut clone, mut twin) = (CUgraph::NULL, CUgraphNode::NULL);
    ok!(cx, cuGraphClone(&mut clone, inner))?;
    ok!(cx, cuGraphNodeFindInClone(&mut twin, a, clone))?;
    ensure!(twin != a, "a clone has nodes of its own");
    let (mut child, mut owned) = (CUgraphNode::NULL, CUgraph::NULL);
    ok!(cx, cuGraphAddChildGraphNode(&mut child, outer, NONE, 0, inner))?;
    ok!(cx, cuGraphChildGraphNodeGetGraph(child, &mut owned))?;
    let mut copied = CUgraphNode::NULL;
    ok!(cx, cuGraphAddMemcpyNode(&mut copied, outer, &child, 1, &line(m + 8, m, 8), current(cx)?))?;
    ok!(cx, cuGraphDestroy(inner))?;
    let e = exec(cx, outer)?;
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.read::<u32>(m, 4)?, [2, 3, 2, 3], "words");
    ok!(cx, cuGraphMemsetNodeSetParams(twin, &set(m, 9)))?;
    ok!(cx, cuGraphExecChildGraphNodeSetParams(e, child, clone))?;
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.read::<u32>(m, 4)?, [9, 3, 9, 3], "words after the child was changed");
    let mut on = 9;
    ok!(cx, cuGraphNodeGetEnabled(e, copied, &mut on))?;
    ensure_eq!(on, 1, "enabled");
    ok!(cx, cuGraphNodeSetEnabled(e, copied, 0))?;
    gpu.write(m + 8, &[0u32; 2])?;
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.read::<u32>(m, 4)?, [9, 3, 0, 0], "words with the copy switched off");
    Ok(())
}

fn event_nodes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, g) = (gpu.stream()?, gpu.stream()?, graph(cx)?);
    let (recorded, awaited) = (gpu.event()?, gpu.event()?);
    let (mut wait, mut record, mut found) = (CUgraphNode::NULL, CUgraphNode::NULL, CUevent::NULL);
    ok!(cx, cuGraphAddEventWaitNode(&mut wait, g, NONE, 0, awaited))?;
    ok!(cx, cuGraphAddEventRecordNode(&mut record, g, &wait, 1, recorded))?;
    let e = exec(cx, g)?;
    let gate = gpu.gate(b)?;
    ok!(cx, cuEventRecord(awaited, b))?;
    ok!(cx, cuGraphLaunch(e, a))?;
    gpu.stays_pending(recorded, "an event that a graph records after a gated one")?;
    gate.open();
    gpu.finishes(recorded, "the event that the graph records")?;
    ok!(cx, cuGraphEventWaitNodeGetEvent(wait, &mut found))?;
    ensure_eq!(found, awaited, "event of the wait node");
    ok!(cx, cuGraphEventRecordNodeGetEvent(record, &mut found))?;
    ensure_eq!(found, recorded, "event of the record node");
    let other = gpu.event()?;
    ok!(cx, cuGraphEventWaitNodeSetEvent(wait, other))?;
    ok!(cx, cuGraphEventRecordNodeSetEvent(record, other))?;
    ok!(cx, cuGraphExecEventWaitNodeSetEvent(e, wait, other))?;
    ok!(cx, cuGraphExecEventRecordNodeSetEvent(e, record, other))?;
    replay(&gpu, e, a)
}

fn memory_nodes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, kernel, out) = (gpu.stream()?, gpu.kernel(c"store_one")?, gpu.zeroed(4)?);
    let (local, mut x, mut g) = (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 0, CUgraph::NULL);
    ok!(cx, cuStreamBeginCapture(stream, local))?;
    ok!(cx, cuMemAllocAsync(&mut x, 4096, stream))?;
    gpu.launch(kernel, Shape::ONE, stream, &Args::new().with(x).with(5u32))?;
    ok!(cx, cuMemcpyDtoDAsync(out, x, 4, stream))?;
    ok!(cx, cuMemFreeAsync(x, stream))?;
    ok!(cx, cuStreamEndCapture(stream, &mut g))?;
    let e = exec(cx, g)?;
    for _ in 0..3 {
        gpu.write(out, &[0u32])?;
        replay(&gpu, e, stream)?;
        ensure_eq!(gpu.word(out)?, 5, "word copied out of the graph's memory");
    }
    // Without a free the memory stays, and must go before the next launch.
    ok!(cx, cuStreamBeginCapture(stream, local))?;
    ok!(cx, cuMemAllocAsync(&mut x, 4096, stream))?;
    ok!(cx, cuStreamEndCapture(stream, &mut g))?;
    let e = exec(cx, g)?;
    replay(&gpu, e, stream)?;
    let (mut used, attribute) = (0u64, CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    ok!(cx, cuDeviceGetGraphMemAttribute(0, attribute, std::ptr::from_mut(&mut used).cast()))?;
    ensure!(used >= 4096, "graphs use {used} bytes");
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphLaunch(e, stream))?;
    ok!(cx, cuMemFreeAsync(x, stream))?;
    gpu.sync(stream)?;
    replay(&gpu, e, stream)?;
    ok!(cx, cuMemFreeAsync(x, stream))?;
    gpu.sync(stream)?;
    ok!(cx, cuDeviceGraphMemTrim(0))
}

fn user_objects(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, m, g, gone) = (gpu.stream()?, gpu.zeroed(4)?, graph(cx)?, AtomicU32::new(0));
    memset(cx, g, &[], m, 1)?;
    let mut object = CUuserObject::NULL;
    ok!(cx, cuUserObjectCreate(&mut object, counter(&gone), Some(count), 1, 1))?;
    ok!(cx, cuUserObjectRetain(object, 1))?;
    ok!(cx, cuUserObjectRelease(object, 1))?;
    ok!(cx, cuGraphRetainUserObject(g, object, 1, 1))?;
    let e = exec(cx, g)?;
    ok!(cx, cuGraphDestroy(g))?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuGraphLaunch(e, stream))?;
    ok!(cx, cuGraphExecDestroy(e))?;
    ensure_eq!(gone.load(Ordering::SeqCst), 0, "destructions while a launch is pending");
    gate.open();
    gpu.sync(stream)?;
    let end = threads::now() + SOON;
    while gone.load(Ordering::SeqCst) == 0 && threads::now() < end {
        threads::yield_now();
    }
    ensure_eq!(gone.load(Ordering::SeqCst), 1, "destructions");
    Ok(())
}

fn pictures_and_flags(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (m, g, stream) = (gpu.zeroed(4)?, graph(cx)?, gpu.stream()?);
    memset(cx, g, &[], m, 1)?;
    let path = std::env::temp_dir().join(format!(
        "simtile-cts-{}-{:?}.dot",
        std::process::id(),
        std::thread::current().id()
    ));
    let name = std::ffi::CString::new(path.to_string_lossy().into_owned()).unwrap_or_default();
    ok!(cx, cuGraphDebugDotPrint(g, name.as_ptr(), 0))?;
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    ensure!(text.contains("digraph"), "the picture is no DOT text: {text}");
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 2,
        hUploadStream: stream,
        hErrNode_out: CUgraphNode::NULL,
        result_out: CUgraphInstantiateResult(99),
    };
    let (mut e, mut flags) = (CUgraphExec::NULL, 99);
    ok!(cx, cuGraphInstantiateWithParams(&mut e, g, &mut params))?;
    ensure_eq!(params.result_out.0, 0, "result of the instantiation");
    ok!(cx, cuGraphUpload(e, stream))?;
    gpu.sync(stream)?;
    ok!(cx, cuGraphExecGetFlags(e, &mut flags))?;
    // Launched from the device and freed on launch do not go together; 16 is no flag.
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphInstantiateWithFlags(&mut e, g, 1 | 4))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphInstantiateWithFlags(&mut e, g, 16))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphCreate(&mut g.clone(), 1))
}
