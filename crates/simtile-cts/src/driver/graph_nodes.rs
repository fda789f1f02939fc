//! Nodes by their generic parameters, attributes of kernel nodes, and parameters that are set anew.

use super::graph_tools::*;
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Args, Gpu, SOON};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::CUgraphNodeType as Type;
use simtile_driver::sys::CUlaunchAttributeID as Id;
use simtile_driver::sys::*;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

crate::frame::registry::tests! { Driver, "graph_nodes";
    every_type_by_generic_parameters,
    parameters_are_set_in_graphs,
    parameters_are_set_in_executables,
    types_stay_as_they_are,
    attributes_of_kernels,
    clusters_by_attribute needs [CLUSTERS],
    attributes_are_copied,
    updates_name_the_first_difference,
    references_of_graphs_to_objects,
    captures_into_a_graph,
    pictures_show_nodes_and_edges,
}

const CLUSTERS: Need = Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, "clusters");
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn copy(gpu: &Gpu<'_>, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CUgraphNodeParams {
    let mut params = blank(Type::CU_GRAPH_NODE_TYPE_MEMCPY);
    // SAFETY: zeros are valid in every field.
    let mut p: CUDA_MEMCPY_NODE_PARAMS = unsafe { std::mem::zeroed() };
    p.copyCtx = gpu.context;
    let c = &mut p.copyParams;
    c.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    c.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    (c.srcDevice, c.dstDevice) = (src, dst);
    (c.WidthInBytes, c.Height, c.Depth) = (bytes, 1, 1);
    params.u.memcpy = p;
    params
}

fn host(called: &AtomicU32) -> CUgraphNodeParams {
    let mut params = blank(Type::CU_GRAPH_NODE_TYPE_HOST);
    params.u.host = CUDA_HOST_NODE_PARAMS_v2 { fn_: Some(count), userData: counter(called) };
    params
}

fn records(event: CUevent) -> CUgraphNodeParams {
    let mut params = blank(Type::CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    params.u.eventRecord = CUDA_EVENT_RECORD_NODE_PARAMS { event };
    params
}

fn every_type_by_generic_parameters(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, words, store) = (gpu.stream()?, gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let (called, awaited, recorded) = (AtomicU32::new(0), gpu.event()?, gpu.event()?);
    let g = graph(cx)?;
    let mut last = add_kernel(cx, g, &[], store, &Args::new().with(words).with(1u32))?;
    let mut then = |params: &mut CUgraphNodeParams| {
        last = add(cx, g, &[last], params)?;
        let mut found = CUgraphNodeType(99);
        ok!(cx, cuGraphNodeGetType(last, &mut found))?;
        ensure_eq!(found, params.type_, "type of a node");
        Ok::<_, Stop>(())
    };
    then(&mut memset(words + 4, 2, gpu.context))?;
    then(&mut copy(&gpu, words + 8, words, 8))?;
    then(&mut host(&called))?;
    then(&mut blank(Type::CU_GRAPH_NODE_TYPE_EMPTY))?;
    then(&mut waits(awaited))?;
    then(&mut records(recorded))?;
    let inner = graph(cx)?;
    add_memset(&gpu, inner, &[], words + 16, 5)?;
    let mut child = blank(Type::CU_GRAPH_NODE_TYPE_GRAPH);
    child.u.graph = CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: inner,
        ownership: CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE,
    };
    then(&mut child)?;
    let mut write = CUstreamBatchMemOpParams {
        writeValue: CUstreamBatchMemOpParams_writeValue {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address: words + 20,
            u: CUstreamBatchMemOpParams_writeValue_u { value: 6 },
            flags: 0,
            alias: 0,
        },
    };
    let mut operations = blank(Type::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    operations.u.memOp =
        CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 { ctx: gpu.context, count: 1, paramArray: &raw mut write, flags: 0 };
    then(&mut operations)?;
    let mut memory = allocation(0, 256);
    then(&mut memory)?;
    // SAFETY: the variant was filled, and the driver has set the address.
    let address = unsafe { memory.u.alloc }.dptr;
    then(&mut memset(address, 7, gpu.context))?;
    then(&mut copy(&gpu, words + 24, address, 4))?;
    let mut freed = blank(Type::CU_GRAPH_NODE_TYPE_MEM_FREE);
    freed.u.free = CUDA_MEM_FREE_NODE_PARAMS { dptr: address };
    then(&mut freed)?;
    run_once(&gpu, g, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 7)?, [1, 2, 1, 2, 5, 6, 7], "words");
    ensure_eq!(called.load(Ordering::SeqCst), 1, "calls of the host function");
    gpu.finishes(recorded, "the event that the graph records")
}

fn parameters_are_set_in_graphs(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, words, store) = (gpu.stream()?, gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let (old, new) = (AtomicU32::new(0), AtomicU32::new(0));
    let g = graph(cx)?;
    let kernel_node = add_kernel(cx, g, &[], store, &Args::new().with(words).with(1u32))?;
    let set = add_memset(&gpu, g, &[kernel_node], words + 4, 2)?;
    let copied = add(cx, g, &[set], &mut copy(&gpu, words + 8, words, 4))?;
    let called = add(cx, g, &[copied], &mut host(&old))?;
    let args = Args::new().with(words).with(10u32);
    let mut list = args.pointers();
    ok!(cx, cuGraphNodeSetParams(kernel_node, &mut kernel(store, &mut list)))?;
    ok!(cx, cuGraphNodeSetParams(set, &mut memset(words + 4, 20, gpu.context)))?;
    ok!(cx, cuGraphNodeSetParams(copied, &mut copy(&gpu, words + 8, words + 4, 4)))?;
    ok!(cx, cuGraphNodeSetParams(called, &mut host(&new)))?;
    run_once(&gpu, g, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 3)?, [10, 20, 20], "words");
    ensure_eq!((old.load(Ordering::SeqCst), new.load(Ordering::SeqCst)), (0, 1), "calls");
    Ok(())
}

fn parameters_are_set_in_executables(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, words, store) = (gpu.stream()?, gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let (old, new) = (AtomicU32::new(0), AtomicU32::new(0));
    let (first, second) = (gpu.event()?, gpu.event()?);
    let g = graph(cx)?;
    let kernel_node = add_kernel(cx, g, &[], store, &Args::new().with(words).with(1u32))?;
    let set = add_memset(&gpu, g, &[kernel_node], words + 4, 2)?;
    let copied = add(cx, g, &[set], &mut copy(&gpu, words + 8, words, 4))?;
    let called = add(cx, g, &[copied], &mut host(&old))?;
    let recorded = add(cx, g, &[called], &mut records(first))?;
    let e = exec(cx, g)?;
    let args = Args::new().with(words).with(10u32);
    let mut list = args.pointers();
    ok!(cx, cuGraphExecNodeSetParams(e, kernel_node, &mut kernel(store, &mut list)))?;
    ok!(cx, cuGraphExecNodeSetParams(e, set, &mut memset(words + 4, 20, gpu.context)))?;
    ok!(cx, cuGraphExecNodeSetParams(e, copied, &mut copy(&gpu, words + 8, words + 4, 4)))?;
    ok!(cx, cuGraphExecNodeSetParams(e, called, &mut host(&new)))?;
    ok!(cx, cuGraphExecNodeSetParams(e, recorded, &mut records(second)))?;
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 3)?, [10, 20, 20], "words");
    ensure_eq!((old.load(Ordering::SeqCst), new.load(Ordering::SeqCst)), (0, 1), "calls");
    // The graph itself is as it was.
    run_once(&gpu, g, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 3)?, [1, 2, 1], "words of the graph itself");
    Ok(())
}

fn types_stay_as_they_are(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (words, store) = (gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let g = graph(cx)?;
    let node = add_kernel(cx, g, &[], store, &Args::new().with(words).with(1u32))?;
    let e = exec(cx, g)?;
    let mut other = memset(words, 1, gpu.context);
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphNodeSetParams(node, &mut other))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphExecNodeSetParams(e, node, &mut other))
}

fn attribute(cx: &Cx, node: CUgraphNode, id: Id) -> Check<CUlaunchAttributeValue> {
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    ok!(cx, cuGraphKernelNodeGetAttribute(node, id, &mut value))?;
    Ok(value)
}

fn priority(cx: &Cx, node: CUgraphNode) -> Check<i32> {
    // SAFETY: the attribute says which variant was filled.
    Ok(unsafe { attribute(cx, node, Id::CU_LAUNCH_ATTRIBUTE_PRIORITY)?.priority })
}

fn attributes_of_kernels(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, words, store) = (gpu.stream()?, gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let g = graph(cx)?;
    let node = add_kernel(cx, g, &[], store, &Args::new().with(words).with(1u32))?;
    ensure_eq!(priority(cx, node)?, 0, "priority of a new node");
    // SAFETY: the attribute says which variant was filled.
    let cooperative = unsafe { attribute(cx, node, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?.cooperative };
    ensure_eq!(cooperative, 0, "whether a new node is cooperative");
    let mut greatest = 0;
    ok!(cx, cuCtxGetStreamPriorityRange(std::ptr::null_mut(), &mut greatest))?;
    let value = CUlaunchAttributeValue { priority: greatest };
    ok!(cx, cuGraphKernelNodeSetAttribute(node, Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, &value))?;
    ensure_eq!(priority(cx, node)?, greatest, "priority after it was set");
    let on = CUlaunchAttributeValue { cooperative: 1 };
    ok!(cx, cuGraphKernelNodeSetAttribute(node, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &on))?;
    // SAFETY: as above.
    let cooperative = unsafe { attribute(cx, node, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?.cooperative };
    ensure_eq!(cooperative, 1, "whether it is cooperative after that was set");
    run_once(&gpu, g, stream)?;
    ensure_eq!(gpu.word(words)?, 1, "word");
    let set = add_memset(&gpu, g, &[], words, 1)?;
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    let wrong = cu!(cx, cuGraphKernelNodeGetAttribute(set, Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, &mut value));
    ensure_eq!(wrong, CUresult::CUDA_ERROR_INVALID_VALUE, "an attribute of a memset");
    Ok(())
}

fn clusters_by_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, words) = (gpu.stream()?, gpu.zeroed(64)?);
    let function = gpu.function(gpu.module(crate::kernels::HOPPER)?, c"cluster_rank")?;
    let g = graph(cx)?;
    let args = Args::new().with(words);
    let mut list = args.pointers();
    let mut params = kernel(function, &mut list);
    params.u.kernel.gridDimX = 4;
    let node = add(cx, g, &[], &mut params)?;
    let two = CUlaunchAttributeValue { clusterDim: CUlaunchAttributeValue_clusterDim { x: 2, y: 1, z: 1 } };
    ok!(cx, cuGraphKernelNodeSetAttribute(node, Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &two))?;
    // SAFETY: the attribute says which variant was filled.
    let found = unsafe { attribute(cx, node, Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)?.clusterDim };
    ensure_eq!((found.x, found.y, found.z), (2, 1, 1), "cluster");
    run_once(&gpu, g, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 4)?, [200, 201, 200, 201], "ranks in clusters of two");
    Ok(())
}

fn attributes_are_copied(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (words, store) = (gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let g = graph(cx)?;
    let args = Args::new().with(words).with(1u32);
    let (a, b) = (add_kernel(cx, g, &[], store, &args)?, add_kernel(cx, g, &[], store, &args)?);
    let mut greatest = 0;
    ok!(cx, cuCtxGetStreamPriorityRange(std::ptr::null_mut(), &mut greatest))?;
    let value = CUlaunchAttributeValue { priority: greatest };
    ok!(cx, cuGraphKernelNodeSetAttribute(a, Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, &value))?;
    ok!(cx, cuGraphKernelNodeCopyAttributes(b, a))?;
    ensure_eq!(priority(cx, b)?, greatest, "priority that was copied");
    let set = add_memset(&gpu, g, &[], words, 1)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphKernelNodeCopyAttributes(b, set))
}

fn updates_name_the_first_difference(cx: &Cx) -> Check {
    type R = CUgraphExecUpdateResult;
    let gpu = Gpu::new(cx)?;
    let (stream, words, store) = (gpu.stream()?, gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let build = |value: u32, kernel_last: bool| {
        let g = graph(cx)?;
        let first = add_memset(&gpu, g, &[], words, value)?;
        let last = if kernel_last {
            add_kernel(cx, g, &[first], store, &Args::new().with(words + 4).with(value))?
        } else {
            add_memset(&gpu, g, &[first], words + 4, value)?
        };
        Ok::<_, Stop>((g, last))
    };
    let e = exec(cx, build(1, true)?.0)?;
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: CUgraphNode(1),
        errorFromNode: CUgraphNode(1),
    };
    ok!(cx, cuGraphExecUpdate(e, build(4, true)?.0, &mut info))?;
    ensure_eq!(info.result, R::CU_GRAPH_EXEC_UPDATE_SUCCESS, "result of an update");
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 2)?, [4, 4], "words after an update");
    let (other, last) = build(5, false)?;
    code!(cx, [CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE], cuGraphExecUpdate(e, other, &mut info))?;
    ensure_eq!(info.result, R::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, "result of another type");
    ensure_eq!(info.errorNode, last, "the node of another type");
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 2)?, [4, 4], "words after a failed update");
    Ok(())
}

fn references_of_graphs_to_objects(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let gone = AtomicU32::new(0);
    let g = graph(cx)?;
    let mut object = CUuserObject::NULL;
    ok!(cx, cuUserObjectCreate(&mut object, counter(&gone), Some(count), 2, 1))?;
    ok!(cx, cuGraphRetainUserObject(g, object, 2, 0))?;
    ok!(cx, cuUserObjectRelease(object, 2))?;
    ok!(cx, cuGraphReleaseUserObject(g, object, 1))?;
    threads::sleep(std::time::Duration::from_millis(5));
    ensure_eq!(gone.load(Ordering::SeqCst), 0, "destructions while the graph refers to it");
    ok!(cx, cuGraphReleaseUserObject(g, object, 1))?;
    let end = threads::now() + SOON;
    while gone.load(Ordering::SeqCst) == 0 && threads::now() < end {
        threads::sleep(std::time::Duration::from_millis(1));
    }
    ensure_eq!(gone.load(Ordering::SeqCst), 1, "destructions after the last release");
    Ok(())
}

fn captures_into_a_graph(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, words) = (gpu.stream()?, gpu.zeroed(64)?);
    let g = graph(cx)?;
    let first = add_memset(&gpu, g, &[], words, 1)?;
    ok!(cx, cuStreamBeginCaptureToGraph(stream, g, &first, null(), 1, RELAXED))?;
    ok!(cx, cuMemcpyDtoDAsync(words + 4, words, 4, stream))?;
    let mut ended = CUgraph::NULL;
    ok!(cx, cuStreamEndCapture(stream, &mut ended))?;
    ensure_eq!(ended, g, "the graph that was captured into");
    let found = edges(cx, g)?;
    ensure!(found.len() == 1 && found[0].0 == first, "edges: {found:?}");
    run_once(&gpu, g, stream)?;
    ensure_eq!(gpu.read::<u32>(words, 2)?, [1, 1], "words");
    let foreign = add_memset(&gpu, graph(cx)?, &[], words, 1)?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuStreamBeginCaptureToGraph(stream, g, &foreign, null(), 1, RELAXED)
    )
}

fn pictures_show_nodes_and_edges(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (words, store) = (gpu.zeroed(64)?, gpu.kernel(c"store_one")?);
    let g = graph(cx)?;
    let a = add_kernel(cx, g, &[], store, &Args::new().with(words).with(1u32))?;
    add_memset(&gpu, g, &[a], words, 1)?;
    let name = format!("simtile-nodes-{}-{:?}.dot", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let text = std::ffi::CString::new(path.to_string_lossy().into_owned()).unwrap_or_default();
    // With everything that there is to say.
    ok!(cx, cuGraphDebugDotPrint(g, text.as_ptr(), 1))?;
    let shown = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    ensure!(shown.contains("digraph") && shown.contains("->"), "no edge is shown: {shown}");
    ensure!(shown.contains("store_one"), "the kernel's name is not shown: {shown}");
    Ok(())
}
