//! Graphs: conditional nodes, programmatic edges, memory nodes, attributes, updates.

use super::Sink;
use crate::frame::{Check, Cx};
use crate::gpu::{Args, Gpu};
use crate::{cu, kernels, ok};
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const NONE: *const CUgraphNode = null();

fn graph(cx: &Cx) -> CUgraph {
    let mut graph = CUgraph::NULL;
    let _ = cu!(cx, cuGraphCreate(&mut graph, 0));
    graph
}

fn instantiate(cx: &Cx, graph: CUgraph, flags: u64) -> (String, CUgraphExec) {
    let mut exec = CUgraphExec::NULL;
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags,
        hUploadStream: CUstream::NULL,
        hErrNode_out: CUgraphNode::NULL,
        result_out: CUgraphInstantiateResult(99),
    };
    let code = cu!(cx, cuGraphInstantiateWithParams(&mut exec, graph, &mut params));
    let node = if params.hErrNode_out.is_null() { "" } else { " with a node" };
    (format!("{} result {}{node}", code.0, params.result_out.0), exec)
}

fn blank(kind: u32) -> CUgraphNodeParams {
    // SAFETY: zeros are valid in every field.
    let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
    params.type_ = CUgraphNodeType(kind);
    params
}

const KERNEL: u32 = 0;
const MEMSET: u32 = 2;
const HOST: u32 = 3;
const EMPTY: u32 = 5;
const WAIT: u32 = 6;
const ALLOC: u32 = 10;
const FREE: u32 = 11;
const CONDITIONAL: u32 = 13;

fn add(
    cx: &Cx,
    graph: CUgraph,
    before: &[CUgraphNode],
    mut params: CUgraphNodeParams,
) -> (CUresult, CUgraphNode, CUgraphNodeParams) {
    let mut node = CUgraphNode::NULL;
    let code = cu!(cx, cuGraphAddNode(&mut node, graph, before.as_ptr(), null(), before.len(), &mut params));
    (code, node, params)
}

fn kernel(function: CUfunction, list: &mut [*mut c_void]) -> CUgraphNodeParams {
    let mut params = blank(KERNEL);
    // SAFETY: zeros are valid in every field.
    let mut p: CUDA_KERNEL_NODE_PARAMS_v3 = unsafe { std::mem::zeroed() };
    (p.func, p.gridDimX, p.gridDimY, p.gridDimZ) = (function, 1, 1, 1);
    (p.blockDimX, p.blockDimY, p.blockDimZ) = (1, 1, 1);
    p.kernelParams = list.as_mut_ptr();
    params.u.kernel = p;
    params
}

fn memset(at: u64, value: u32, context: CUcontext) -> CUgraphNodeParams {
    let mut params = blank(MEMSET);
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

fn conditional(handle: u64, kind: u32, size: u32, context: CUcontext) -> CUgraphNodeParams {
    let mut params = blank(CONDITIONAL);
    params.u.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: CUgraphConditionalNodeType(kind),
        size,
        phGraph_out: null_mut(),
        ctx: context,
    };
    params
}

fn body(params: &CUgraphNodeParams, index: usize) -> CUgraph {
    // SAFETY: the driver filled the list when it made the node, which lives.
    unsafe { *params.u.conditional.phGraph_out.add(index) }
}

fn handle(cx: &Cx, graph: CUgraph, context: CUcontext, default: u32, flags: u32) -> (CUresult, u64) {
    let mut handle = 0;
    let code = cu!(cx, cuGraphConditionalHandleCreate(&mut handle, graph, context, default, flags));
    (code, handle)
}

/// The parts, each a probe.
pub const PARTS: &[(&str, super::Probe)] = &[
    ("graph_conditions", |cx, out| conditions(&Gpu::new(cx)?, out)),
    ("graph_edges", |cx, out| programmatic(&Gpu::new(cx)?, out)),
    ("graph_memory", |cx, out| memory(&Gpu::new(cx)?, out)),
    ("graph_attributes", |cx, out| attributes(&Gpu::new(cx)?, out)),
    ("graph_updates", |cx, out| updates(&Gpu::new(cx)?, out)),
    ("graph_rest", |cx, out| rest(&Gpu::new(cx)?, out)),
];

fn conditions(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, c) = (gpu.cx(), gpu.context);
    let (g, word, stream) = (graph(cx), gpu.zeroed(64)?, gpu.stream()?);
    for (context, flags) in [(c, 0), (c, 1), (c, 2), (CUcontext::NULL, 1)] {
        let (code, h) = handle(cx, g, context, 1, flags);
        out(format!("condition, context {}, flags {flags}: {} {h:#x}", !context.is_null(), code.0));
    }
    out(format!("instantiate with handles without nodes: {}", instantiate(cx, g, 0).0));
    for (kind, size) in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 0), (2, 1), (2, 5), (3, 1)] {
        let h = handle(cx, g, c, 0, 1).1;
        let (code, node, p) = add(cx, g, &[], conditional(h, kind, size, c));
        let mut found = CUgraphNodeType(99);
        let _ = cu!(cx, cuGraphNodeGetType(node, &mut found));
        // SAFETY: the variant was filled.
        let list = unsafe { p.u.conditional.phGraph_out };
        out(format!(
            "conditional kind {kind} size {size}: {}, type {}, list {}",
            code.0,
            found.0,
            !list.is_null()
        ));
    }
    let h = handle(cx, g, c, 0, 1).1;
    out(format!("conditional, null context: {}", add(cx, g, &[], conditional(h, 0, 1, CUcontext::NULL)).0.0));
    out(format!("the same handle again: {}", add(cx, g, &[], conditional(h, 0, 1, c)).0.0));
    let foreign = handle(cx, graph(cx), c, 0, 1).1;
    out(format!("another graph's handle: {}", add(cx, g, &[], conditional(foreign, 0, 1, c)).0.0));
    let mut copy = CUgraph::NULL;
    out(format!("clone: {}", cu!(cx, cuGraphClone(&mut copy, g)).0));
    let mut node = CUgraphNode::NULL;
    out(format!("as a child: {}", cu!(cx, cuGraphAddChildGraphNode(&mut node, graph(cx), NONE, 0, g)).0));

    // A condition set by a kernel, then if and else.
    let module = gpu.module(kernels::CONDITIONAL);
    out(format!(
        "module with cudaGraphSetConditional: {}",
        match &module {
            Ok(_) => "loads".into(),
            Err(stop) => format!("{stop:?}"),
        }
    ));
    let Ok(module) = module else { return Ok(()) };
    let set = gpu.function(module, c"set_condition")?;
    let count = gpu.function(module, c"count_down")?;
    let plus = gpu.function(module, c"add")?;
    let run = |value: Option<u32>, default: u32, flags: u32, kind: u32, size: u32| {
        let g = graph(cx);
        let h = handle(cx, g, c, default, flags).1;
        let mut before = Vec::new();
        if let Some(value) = value {
            let args = Args::new().with(h).with(value);
            before.push(add(cx, g, &[], kernel(set, &mut args.pointers())).1);
        }
        let (made, node, p) = add(cx, g, &before, conditional(h, kind, size, c));
        let mut codes = vec![made.0];
        for i in 0..size {
            codes.push(add(cx, body(&p, i as usize), &[], memset(word + 4 * u64::from(i), 7, c)).0.0);
        }
        codes.push(add(cx, g, &[node], memset(word + 32, 9, c)).0.0);
        let (text, exec) = instantiate(cx, g, 0);
        gpu.write(word, &[0u32; 16])?;
        let launched = cu!(cx, cuGraphLaunch(exec, stream));
        let synced = cu!(cx, cuStreamSynchronize(stream));
        let found = gpu.read::<u32>(word, 9)?;
        Ok::<_, crate::frame::Stop>(format!(
            "{codes:?} instantiate {text} launch {} {} words {found:?}",
            launched.0, synced.0
        ))
    };
    for (value, default, flags, kind, size) in [
        (None, 1, 1, 0, 1),
        (None, 0, 1, 0, 1),
        (None, 0, 1, 0, 2),
        (None, 1, 0, 0, 1),
        (Some(1), 0, 1, 0, 2),
        (Some(0), 1, 1, 0, 2),
        (Some(5), 0, 0, 0, 1),
        (None, 2, 1, 2, 3),
        (Some(1), 0, 1, 2, 3),
        (Some(3), 0, 1, 2, 3),
        (Some(0), 1, 1, 1, 1),
    ] {
        out(format!(
            "set {value:?} default {default} flags {flags} kind {kind} size {size}: {}",
            run(value, default, flags, kind, size)?
        ));
    }
    // A loop that counts down.
    let g = graph(cx);
    let h = handle(cx, g, c, 1, 1).1;
    let (made, loop_node, p) = add(cx, g, &[], conditional(h, 1, 1, c));
    let inner = body(&p, 0);
    let (down, up) = (Args::new().with(h).with(word), Args::new().with(word + 4).with(2u32));
    let first = add(cx, inner, &[], kernel(plus, &mut up.pointers()));
    let second = add(cx, inner, &[first.1], kernel(count, &mut down.pointers()));
    let (text, exec) = instantiate(cx, g, 0);
    for n in [5u32, 1] {
        gpu.write(word, &[n, 0])?;
        let codes = (cu!(cx, cuGraphLaunch(exec, stream)).0, cu!(cx, cuStreamSynchronize(stream)).0);
        out(format!(
            "while from {n}: {} {} {} {text} {codes:?} words {:?}",
            made.0,
            first.0.0,
            second.0.0,
            gpu.read::<u32>(word, 2)?
        ));
    }
    let three = Args::new().with(word + 4).with(3u32);
    let mut list = three.pointers();
    let mut p3 = kernel(plus, &mut list);
    let code = cu!(cx, cuGraphExecNodeSetParams(exec, first.1, &mut p3));
    gpu.write(word, &[5u32, 0])?;
    let codes = (cu!(cx, cuGraphLaunch(exec, stream)).0, cu!(cx, cuStreamSynchronize(stream)).0);
    out(format!(
        "parameters of a body's node set in the executable: {} {codes:?} words {:?}",
        code.0,
        gpu.read::<u32>(word, 2)?
    ));
    let mut on = 0;
    out(format!(
        "enabled: body's node {}, conditional node {}",
        cu!(cx, cuGraphNodeGetEnabled(exec, first.1, &mut on)).0,
        cu!(cx, cuGraphNodeGetEnabled(exec, loop_node, &mut on)).0
    ));
    out(format!("instantiate again: {}", instantiate(cx, g, 0).0));
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: CUgraphNode::NULL,
        errorFromNode: CUgraphNode::NULL,
    };
    let code = cu!(cx, cuGraphExecUpdate(exec, g, &mut info));
    out(format!("update from its own graph: {} {}", code.0, info.result.0));
    let mut again = conditional(h, 1, 1, c);
    out(format!(
        "cuGraphNodeSetParams of the conditional node: {}",
        cu!(cx, cuGraphNodeSetParams(loop_node, &mut again)).0
    ));
    // What a body may hold.
    let event = gpu.event()?;
    for (name, kind) in [("host", HOST), ("event wait", WAIT), ("allocation", ALLOC), ("empty", EMPTY)] {
        let g = graph(cx);
        let h = handle(cx, g, c, 1, 1).1;
        let p = add(cx, g, &[], conditional(h, 0, 1, c)).2;
        let mut inside = blank(kind);
        match kind {
            HOST => inside.u.host = CUDA_HOST_NODE_PARAMS_v2 { fn_: Some(nothing), userData: null_mut() },
            WAIT => inside.u.eventWait = CUDA_EVENT_WAIT_NODE_PARAMS { event },
            ALLOC => inside.u.alloc = alloc(gpu.device, 64),
            _ => {}
        }
        let code = add(cx, body(&p, 0), &[], inside).0;
        out(format!("{name} node in a body: {}, instantiate {}", code.0, instantiate(cx, g, 0).0));
    }
    // Captured into a body.
    let g = graph(cx);
    let h = handle(cx, g, c, 1, 1).1;
    let p = add(cx, g, &[], conditional(h, 0, 1, c)).2;
    let begun = cu!(
        cx,
        cuStreamBeginCaptureToGraph(
            stream,
            body(&p, 0),
            null(),
            null(),
            0,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
        )
    );
    let set = cu!(cx, cuMemsetD32Async(word, 3, 1, stream));
    let mut ended = CUgraph::NULL;
    let end = cu!(cx, cuStreamEndCapture(stream, &mut ended));
    out(format!(
        "capture into a body: {} {} {} same graph {} instantiate {}",
        begun.0,
        set.0,
        end.0,
        ended == body(&p, 0),
        instantiate(cx, g, 0).0
    ));
    // A driver may not survive these.
    out(format!("destroy the conditional node: {}", cu!(cx, cuGraphDestroyNode(loop_node)).0));
    out(format!("destroy a body graph: {}", cu!(cx, cuGraphDestroy(inner)).0));
    out(format!("no handle: {}", add(cx, g, &[], conditional(77, 0, 1, c)).0.0));
    Ok(())
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

fn data(from_port: u8, to_port: u8, type_: u8) -> CUgraphEdgeData {
    CUgraphEdgeData { from_port, to_port, type_, reserved: [0; 5] }
}

fn edges(cx: &Cx, graph: CUgraph) -> String {
    let (mut from, mut to, mut found, mut n) =
        ([CUgraphNode::NULL; 8], [CUgraphNode::NULL; 8], [data(9, 9, 9); 8], 8);
    let code =
        cu!(cx, cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), found.as_mut_ptr(), &mut n));
    let list: Vec<_> = found
        .iter()
        .take(if code.is_ok() { n } else { 0 })
        .map(|e| (e.from_port, e.to_port, e.type_))
        .collect();
    format!("{} {list:?}", code.0)
}

fn programmatic(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, c) = (gpu.cx(), gpu.context);
    let (word, stream, store) = (gpu.zeroed(64)?, gpu.stream()?, gpu.kernel(c"store_one")?);
    let args = Args::new().with(word).with(1u32);
    for edge in [(1, 0, 1), (2, 0, 1), (0, 0, 1), (1, 0, 0), (2, 0, 0), (3, 0, 1), (1, 1, 1), (0, 0, 2)] {
        let g = graph(cx);
        let a = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
        let b = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
        let code = cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(edge.0, edge.1, edge.2), 1));
        out(format!("edge between kernels {edge:?}: {}, instantiate {}", code.0, instantiate(cx, g, 0).0));
    }
    let g = graph(cx);
    let a = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    let m = add(cx, g, &[], memset(word, 1, c)).1;
    out(format!(
        "programmatic edge from a memset: {}",
        cu!(cx, cuGraphAddDependencies_v2(g, &m, &a, &data(1, 0, 1), 1)).0
    ));
    out(format!(
        "programmatic edge to a memset: {}",
        cu!(cx, cuGraphAddDependencies_v2(g, &a, &m, &data(1, 0, 1), 1)).0
    ));
    let b = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    let code = cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(1, 0, 1), 1));
    out(format!(
        "edge {} and a second one between the same: plain {}, the same {}, launch order {}",
        code.0,
        cu!(cx, cuGraphAddDependencies(g, &a, &b, 1)).0,
        cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(1, 0, 1), 1)).0,
        cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(2, 0, 1), 1)).0
    ));
    out(format!("edges: {}", edges(cx, g)));
    let (mut list, mut n) = ([CUgraphNode::NULL; 8], 0);
    out(format!(
        "older queries: edges count {} ",
        cu!(cx, cuGraphGetEdges(g, null_mut(), null_mut(), &mut n)).0
    ));
    n = 8;
    out(format!(
        "older queries: dependencies {} ",
        cu!(cx, cuGraphNodeGetDependencies(b, list.as_mut_ptr(), &mut n)).0
    ));
    n = 0;
    out(format!(
        "older queries: dependencies count {} ",
        cu!(cx, cuGraphNodeGetDependencies(b, null_mut(), &mut n)).0
    ));
    out(format!(
        "remove with other data: {}",
        cu!(cx, cuGraphRemoveDependencies_v2(g, &a, &b, &data(2, 0, 1), 1)).0
    ));
    out(format!("remove without data: {}", cu!(cx, cuGraphRemoveDependencies(g, &a, &b, 1)).0));
    out(format!("remove: {}", cu!(cx, cuGraphRemoveDependencies_v2(g, &a, &b, &data(1, 0, 1), 1)).0));
    // Captured.
    let value = |id: CUlaunchAttributeID, value| CUlaunchAttribute { id, pad: [0; 4], value };
    let launch = |attribute: &mut CUlaunchAttribute| {
        let config = CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: attribute,
            numAttrs: 1,
        };
        cu!(cx, cuLaunchKernelEx(&config, store, args.pointers().as_mut_ptr(), null_mut())).0
    };
    let mut serial = value(
        CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    );
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    for memset_between in [false, true] {
        let mut g = CUgraph::NULL;
        let _ = cu!(cx, cuStreamBeginCapture(stream, relaxed));
        let mut codes = vec![launch(&mut serial)];
        if memset_between {
            codes.push(cu!(cx, cuMemsetD32Async(word, 1, 1, stream)).0);
        }
        codes.push(launch(&mut serial));
        let (mut status, mut count, mut nodes) = (CUstreamCaptureStatus(0), 0, null());
        let info = cu!(
            cx,
            cuStreamGetCaptureInfo(stream, &mut status, null_mut(), null_mut(), &mut nodes, &mut count)
        );
        codes.push(cu!(cx, cuStreamEndCapture(stream, &mut g)).0);
        out(format!(
            "captured, programmatic, memset between {memset_between}: {codes:?} info {} edges {} instantiate {}",
            info.0,
            edges(cx, g),
            instantiate(cx, g, 0).0
        ));
    }
    for (name, id) in [
        ("programmatic event", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT),
        ("launch completion event", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT),
    ] {
        let (event, other) = (gpu.event()?, gpu.stream()?);
        let mut with = value(
            id,
            if name.starts_with('p') {
                CUlaunchAttributeValue {
                    programmaticEvent: CUlaunchAttributeValue_programmaticEvent {
                        event,
                        flags: 0,
                        triggerAtBlockStart: 0,
                    },
                }
            } else {
                CUlaunchAttributeValue {
                    launchCompletionEvent: CUlaunchAttributeValue_launchCompletionEvent { event, flags: 0 },
                }
            },
        );
        let mut g = CUgraph::NULL;
        let mut codes = vec![
            cu!(cx, cuStreamBeginCapture(stream, relaxed)).0,
            launch(&mut with),
            cu!(cx, cuStreamWaitEvent(other, event, 0)).0,
        ];
        let (mut status, mut count, mut nodes, mut found) = (CUstreamCaptureStatus(0), 0, null(), null());
        codes.push(
            cu!(
                cx,
                cuStreamGetCaptureInfo(other, &mut status, null_mut(), null_mut(), &mut nodes, &mut count)
            )
            .0,
        );
        let new = cu!(
            cx,
            cuStreamGetCaptureInfo_v3(
                other,
                &mut status,
                null_mut(),
                null_mut(),
                &mut nodes,
                &mut found,
                &mut count
            )
        );
        let shown = if new.is_ok() && count == 1 && !found.is_null() {
            // SAFETY: the driver shows so many, until the next call on the stream.
            format!("{:?}", unsafe { *found }.from_port)
        } else {
            format!("{count} {}", found.is_null())
        };
        codes.push(cu!(cx, cuMemsetD32Async(word, 1, 1, other)).0);
        codes.push(cu!(cx, cuEventRecord(event, other)).0);
        codes.push(cu!(cx, cuStreamWaitEvent(stream, event, 0)).0);
        codes.push(cu!(cx, cuStreamEndCapture(stream, &mut g)).0);
        out(format!(
            "captured {name}, then a memset: {codes:?} v3 {} port {shown} edges {} instantiate {}",
            new.0,
            edges(cx, g),
            instantiate(cx, g, 0).0
        ));
    }
    Ok(())
}

fn alloc(device: CUdevice, bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS_v2 {
    // SAFETY: zeros are valid in every field.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS_v2 = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location =
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    params.bytesize = bytes;
    params
}

fn memory(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, stream) = (gpu.cx(), gpu.stream()?);
    let mut start = 0;
    ok!(cx, cuMemGetInfo(&mut start, &mut 0))?;
    let state = |what: &str| {
        let mut free = 0;
        let _ = cu!(cx, cuMemGetInfo(&mut free, &mut 0));
        let values: Vec<u64> = (0..4)
            .map(|attribute| {
                let mut value = 0u64;
                let _ = cu!(
                    cx,
                    cuDeviceGetGraphMemAttribute(0, CUgraphMem_attribute(attribute), (&raw mut value).cast())
                );
                value
            })
            .collect();
        format!("{what}: taken {} used, high, reserved, high {values:?}", start as i64 - free as i64)
    };
    let bytes = (64 << 20) + 100;
    let node = |g, before: &[CUgraphNode], bytes| {
        let mut params = blank(ALLOC);
        params.u.alloc = alloc(0, bytes);
        let (code, node, params) = add(cx, g, before, params);
        // SAFETY: the variant was filled.
        (code, node, unsafe { params.u.alloc }.dptr)
    };
    let free_node = |g, before: &[CUgraphNode], at| {
        let mut params = blank(FREE);
        params.u.free = CUDA_MEM_FREE_NODE_PARAMS { dptr: at };
        add(cx, g, before, params)
    };
    out(state("before"));
    let g = graph(cx);
    let (code, a, at) = node(g, &[], bytes);
    out(format!(
        "allocation node: {} at {at:#x}; of 0 bytes {}; {}",
        code.0,
        node(graph(cx), &[], 0).0.0,
        state("")
    ));
    let set = add(cx, g, &[a], memset(at, 3, gpu.context));
    out(format!("a memset on it: {}", set.0.0));
    let mut shown = CUDA_MEM_ALLOC_NODE_PARAMS { ..unsafe_zero() };
    let code = cu!(cx, cuGraphMemAllocNodeGetParams(a, &mut shown));
    out(format!("its parameters: {} bytes {} at its place {}", code.0, shown.bytesize, shown.dptr == at));
    out(format!("free node of other memory: {}", free_node(g, &[a], gpu.alloc(64)?).0.0));
    let (text, exec) = instantiate(cx, g, 0);
    out(format!("instantiate {text}; {}", state("")));
    out(format!("instantiate a second time: {}", instantiate(cx, g, 0).0));
    let code = cu!(cx, cuGraphUpload(exec, stream));
    gpu.sync(stream)?;
    out(format!("upload {}; {}", code.0, state("")));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    gpu.sync(stream)?;
    out(format!("launch {}; {}", code.0, state("")));
    out(format!("launch again: {}", cu!(cx, cuGraphLaunch(exec, stream)).0));
    out(format!("word in it: {:?}", gpu.read::<u32>(at, 1)));
    let code = cu!(cx, cuMemFreeAsync(at, stream));
    gpu.sync(stream)?;
    out(format!(
        "free in stream order {}; {}; free again {}",
        code.0,
        state(""),
        cu!(cx, cuMemFreeAsync(at, stream)).0
    ));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    gpu.sync(stream)?;
    out(format!("launch {}, cuMemFree {}; {}", code.0, cu!(cx, cuMemFree(at)).0, state("")));
    out(format!("trim {}; {}", cu!(cx, cuDeviceGraphMemTrim(0)).0, state("")));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    gpu.sync(stream)?;
    out(format!("launch {}, trim {}; {}", code.0, cu!(cx, cuDeviceGraphMemTrim(0)).0, state("")));
    out(format!(
        "destroy the executable with memory out: {}; {}",
        cu!(cx, cuGraphExecDestroy(exec)).0,
        state("")
    ));
    out(format!("then free: {}; {}", cu!(cx, cuMemFreeAsync(at, stream)).0, state("")));
    gpu.sync(stream)?;
    out(format!("trim {}; {}", cu!(cx, cuDeviceGraphMemTrim(0)).0, state("")));
    let (text, exec) = instantiate(cx, g, 1);
    let codes: Vec<u32> = (0..3).map(|_| cu!(cx, cuGraphLaunch(exec, stream)).0).collect();
    gpu.sync(stream)?;
    out(format!("with auto free {text}, three launches: {codes:?}; {}", state("")));
    out(format!("destroy with auto free: {}; {}", cu!(cx, cuGraphExecDestroy(exec)).0, state("")));
    out(format!("then free: {}", cu!(cx, cuMemFreeAsync(at, stream)).0));
    gpu.sync(stream)?;
    let mut copy = CUgraph::NULL;
    let mut child = CUgraphNode::NULL;
    out(format!(
        "clone {}, child {}, destroy a node {}, remove an edge {}",
        cu!(cx, cuGraphClone(&mut copy, g)).0,
        cu!(cx, cuGraphAddChildGraphNode(&mut child, graph(cx), NONE, 0, g)).0,
        cu!(cx, cuGraphDestroyNode(set.1)).0,
        cu!(cx, cuGraphRemoveDependencies(g, &a, &set.1, 1)).0
    ));
    out(format!("destroy the graph: {}; {}", cu!(cx, cuGraphDestroy(g)).0, state("")));
    let g = graph(cx);
    let (_, a, at) = node(g, &[], 1 << 20);
    let (_, b, other) = node(g, &[], 3 << 20);
    let freed = free_node(g, &[a], at);
    out(format!(
        "free node {}; the same memory again {}; unordered after its allocation {}",
        freed.0.0,
        free_node(g, &[a], at).0.0,
        free_node(g, &[], other).0.0
    ));
    let (text, exec) = instantiate(cx, g, 0);
    let codes = (cu!(cx, cuGraphLaunch(exec, stream)).0, cu!(cx, cuGraphLaunch(exec, stream)).0);
    gpu.sync(stream)?;
    out(format!("instantiate {text} launches {codes:?}; {}", state("")));
    let far = graph(cx);
    let foreign = free_node(far, &[], other);
    let (text, exec2) = instantiate(cx, far, 0);
    let codes = (
        cu!(cx, cuGraphLaunch(exec2, stream)).0,
        cu!(cx, cuStreamSynchronize(stream)).0,
        cu!(cx, cuGraphLaunch(exec2, stream)).0,
    );
    out(format!("free node in another graph: {} {text} launches {codes:?}; {}", foreign.0.0, state("")));
    let mut desc = CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let mut params = blank(ALLOC);
    params.u.alloc = alloc(0, 64);
    params.u.alloc.accessDescs = &raw mut desc;
    params.u.alloc.accessDescCount = 1;
    out(format!("allocation with access for its own device: {}", add(cx, graph(cx), &[], params).0.0));
    for (attribute, value) in [(0, 0u64), (1, 0), (1, 5), (2, 0), (3, 0), (9, 0)] {
        let mut value = value;
        let code = cu!(
            cx,
            cuDeviceSetGraphMemAttribute(0, CUgraphMem_attribute(attribute), (&raw mut value).cast())
        );
        out(format!("set attribute {attribute} to {value}: {}; {}", code.0, state("")));
    }
    let mut too_much = blank(ALLOC);
    too_much.u.alloc = alloc(0, 1 << 42);
    let g = graph(cx);
    let code = add(cx, g, &[], too_much).0;
    out(format!(
        "allocation of 4 TiB: {}, instantiate {}",
        code.0,
        if code.is_ok() {
            let (text, exec) = instantiate(cx, g, 0);
            format!("{text} launch {}", cu!(cx, cuGraphLaunch(exec, stream)).0)
        } else {
            String::new()
        }
    ));
    out(format!("memset on freed memory: {}", cu!(cx, cuMemsetD8Async(at, 1, 4, stream)).0));
    let _ = b;
    Ok(())
}

fn unsafe_zero() -> CUDA_MEM_ALLOC_NODE_PARAMS {
    // SAFETY: zeros are valid in every field.
    unsafe { std::mem::zeroed() }
}

fn attributes(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, store) = (gpu.cx(), gpu.kernel(c"store_one")?);
    let (word, g) = (gpu.zeroed(64)?, graph(cx));
    let args = Args::new().with(word).with(1u32);
    let node = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    for id in 0..=18 {
        let mut value = CUlaunchAttributeValue { pad: [0x55; 64] };
        let code = cu!(cx, cuGraphKernelNodeGetAttribute(node, CUlaunchAttributeID(id), &mut value));
        // SAFETY: all bytes are set.
        let bytes = unsafe { value.pad };
        let zero = CUlaunchAttributeValue { pad: [0; 64] };
        let set = cu!(cx, cuGraphKernelNodeSetAttribute(node, CUlaunchAttributeID(id), &zero));
        let mut one = CUlaunchAttributeValue { pad: [0; 64] };
        one.clusterDim = CUlaunchAttributeValue_clusterDim { x: 1, y: 1, z: 1 };
        let set_one = cu!(cx, cuGraphKernelNodeSetAttribute(node, CUlaunchAttributeID(id), &one));
        out(format!(
            "kernel node attribute {id}: get {} {:?}, set 0 {}, set 1,1,1 {}",
            code.0,
            &bytes[..12],
            set.0,
            set_one.0
        ));
    }
    for cluster in [[2u32, 1, 1], [0, 0, 0], [17, 1, 1]] {
        let value = CUlaunchAttributeValue {
            clusterDim: CUlaunchAttributeValue_clusterDim { x: cluster[0], y: cluster[1], z: cluster[2] },
        };
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let code = cu!(cx, cuGraphKernelNodeSetAttribute(node, id, &value));
        out(format!(
            "cluster {cluster:?} for a grid of 1: {}, instantiate {}",
            code.0,
            instantiate(cx, g, 0).0
        ));
    }
    let other = add(cx, g, &[], memset(word, 1, gpu.context)).1;
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    out(format!(
        "attribute of a memset node: {}",
        cu!(cx, cuGraphKernelNodeGetAttribute(other, id, &mut value)).0
    ));
    out(format!("copy from a memset node: {}", cu!(cx, cuGraphKernelNodeCopyAttributes(node, other)).0));
    Ok(())
}

fn updates(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, c) = (gpu.cx(), gpu.context);
    let (store, copy) = (gpu.kernel(c"store_one")?, gpu.kernel(c"copy_one")?);
    let (word, event, other_event) = (gpu.zeroed(64)?, gpu.event()?, gpu.event()?);
    let host = gpu.pinned(16)?;
    let args = Args::new().with(word).with(1u32);
    let two = Args::new().with(word).with(word);
    let one = |params: CUgraphNodeParams| {
        let g = graph(cx);
        let code = add(cx, g, &[], params).0;
        (code, g)
    };
    let mut line = |what: &str, old: CUgraphNodeParams, new: CUgraphNodeParams| {
        let ((a, old), (b, new)) = (one(old), one(new));
        let (text, exec) = instantiate(cx, old, 0);
        let mut info = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult(99),
            errorNode: CUgraphNode::NULL,
            errorFromNode: CUgraphNode::NULL,
        };
        let code = cu!(cx, cuGraphExecUpdate(exec, new, &mut info));
        let mut list = [CUgraphNode::NULL];
        let _ = cu!(cx, cuGraphGetNodes(new, list.as_mut_ptr(), &mut 1));
        let node = if info.errorNode.is_null() {
            "none"
        } else if info.errorNode == list[0] {
            "the new"
        } else {
            "other"
        };
        out(format!(
            "update {what}: {} {} {text}; {} {} node {node} from {}",
            a.0,
            b.0,
            code.0,
            info.result.0,
            !info.errorFromNode.is_null()
        ));
    };
    let copy_params = |src: Option<u64>, dst: u64, bytes: usize| {
        let mut params = blank(1);
        // SAFETY: zeros are valid in every field.
        let mut p: CUDA_MEMCPY_NODE_PARAMS = unsafe { std::mem::zeroed() };
        p.copyCtx = c;
        p.copyParams.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        p.copyParams.dstDevice = dst;
        match src {
            Some(src) => {
                (p.copyParams.srcMemoryType, p.copyParams.srcDevice) =
                    (CUmemorytype::CU_MEMORYTYPE_DEVICE, src)
            }
            None => {
                (p.copyParams.srcMemoryType, p.copyParams.srcHost) =
                    (CUmemorytype::CU_MEMORYTYPE_HOST, host.host().cast_const())
            }
        }
        (p.copyParams.WidthInBytes, p.copyParams.Height, p.copyParams.Depth) = (bytes, 1, 1);
        params.u.memcpy = p;
        params
    };
    let waits = |event| {
        let mut params = blank(WAIT);
        params.u.eventWait = CUDA_EVENT_WAIT_NODE_PARAMS { event };
        params
    };
    let wide = |width, height| {
        let mut params = memset(word, 1, c);
        // SAFETY: the variant was filled.
        let mut p = unsafe { params.u.memset };
        (p.width, p.height, p.pitch) = (width, height, 16);
        params.u.memset = p;
        params
    };
    line(
        "kernel to another function",
        kernel(store, &mut args.pointers()),
        kernel(copy, &mut two.pointers()),
    );
    line("kernel to memset", kernel(store, &mut args.pointers()), memset(word, 1, c));
    line("copy device to host source", copy_params(Some(word + 32), word, 4), copy_params(None, word, 4));
    line("copy of more bytes", copy_params(Some(word + 32), word, 4), copy_params(Some(word + 32), word, 8));
    line("memset of more", memset(word, 1, c), wide(2, 1));
    line("memset of two dimensions", memset(word, 1, c), wide(2, 2));
    line("event wait of another event", waits(event), waits(other_event));
    line("conditional", blank(EMPTY), blank(EMPTY));
    let build = |reverse: bool, edge: bool| {
        let g = graph(cx);
        let a = add(cx, g, &[], memset(word, 1, c)).1;
        let b =
            add(cx, g, if edge && !reverse { std::slice::from_ref(&a) } else { &[] }, memset(word + 4, 1, c))
                .1;
        if edge && reverse {
            let _ = cu!(cx, cuGraphAddDependencies(g, &b, &a, 1));
        }
        g
    };
    for (what, new) in [
        ("an edge less", build(false, false)),
        ("an edge turned round", build(true, true)),
        ("the same", build(false, true)),
    ] {
        let (_, exec) = instantiate(cx, build(false, true), 0);
        let mut info = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult(99),
            errorNode: CUgraphNode::NULL,
            errorFromNode: CUgraphNode::NULL,
        };
        let code = cu!(cx, cuGraphExecUpdate(exec, new, &mut info));
        out(format!(
            "update {what}: {} {} node {} from {}",
            code.0,
            info.result.0,
            !info.errorNode.is_null(),
            !info.errorFromNode.is_null()
        ));
    }
    // Setting parameters of other kinds.
    let g = graph(cx);
    let k = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    let mut wrong = memset(word, 1, c);
    out(format!("cuGraphNodeSetParams of another kind: {}", cu!(cx, cuGraphNodeSetParams(k, &mut wrong)).0));
    let e = add(cx, g, &[], blank(EMPTY)).1;
    out(format!(
        "cuGraphNodeSetParams of an empty node: {}",
        cu!(cx, cuGraphNodeSetParams(e, &mut blank(EMPTY))).0
    ));
    let (_, exec) = instantiate(cx, g, 0);
    out(format!(
        "cuGraphExecNodeSetParams of an empty node: {}",
        cu!(cx, cuGraphExecNodeSetParams(exec, e, &mut blank(EMPTY))).0
    ));
    let mut list = two.pointers();
    let mut other = kernel(copy, &mut list);
    out(format!(
        "cuGraphExecNodeSetParams to another function: {}",
        cu!(cx, cuGraphExecNodeSetParams(exec, k, &mut other)).0
    ));
    out(format!(
        "cuGraphNodeSetParams to another function: {}",
        cu!(cx, cuGraphNodeSetParams(k, &mut other)).0
    ));
    let mut on = 9;
    out(format!(
        "enabled of an empty node: {}, of a kernel {} {on}",
        cu!(cx, cuGraphNodeGetEnabled(exec, e, &mut on)).0,
        cu!(cx, cuGraphNodeGetEnabled(exec, k, &mut on)).0
    ));
    Ok(())
}

fn rest(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, c, stream) = (gpu.cx(), gpu.context, gpu.stream()?);
    let (word, g) = (gpu.zeroed(64)?, graph(cx));
    let mut object = CUuserObject::NULL;
    for (count, flags) in [(1, 0), (0, 1), (2, 1)] {
        out(format!(
            "cuUserObjectCreate count {count} flags {flags}: {}",
            cu!(cx, cuUserObjectCreate(&mut object, null_mut(), Some(nothing), count, flags)).0
        ));
    }
    out(format!(
        "retain 0: {}, release 0: {}",
        cu!(cx, cuUserObjectRetain(object, 0)).0,
        cu!(cx, cuUserObjectRelease(object, 0)).0
    ));
    out(format!(
        "graph retain 1: {}, 1 moved: {}, 5 moved: {}, 0: {}",
        cu!(cx, cuGraphRetainUserObject(g, object, 1, 0)).0,
        cu!(cx, cuGraphRetainUserObject(g, object, 1, 1)).0,
        cu!(cx, cuGraphRetainUserObject(g, object, 5, 1)).0,
        cu!(cx, cuGraphRetainUserObject(g, object, 0, 0)).0
    ));
    out(format!(
        "graph release 3 of 2: {}, 1: {}, 1: {}, 1: {}",
        cu!(cx, cuGraphReleaseUserObject(g, object, 3)).0,
        cu!(cx, cuGraphReleaseUserObject(g, object, 1)).0,
        cu!(cx, cuGraphReleaseUserObject(g, object, 1)).0,
        cu!(cx, cuGraphReleaseUserObject(g, object, 1)).0
    ));
    // Capture into a graph.
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    out(format!(
        "capture to a null graph: {}",
        cu!(cx, cuStreamBeginCaptureToGraph(stream, CUgraph::NULL, null(), null(), 0, relaxed)).0
    ));
    let first = add(cx, g, &[], memset(word, 1, c)).1;
    let foreign = add(cx, graph(cx), &[], memset(word, 1, c)).1;
    out(format!(
        "after another graph's node: {}",
        cu!(cx, cuStreamBeginCaptureToGraph(stream, g, &foreign, null(), 1, relaxed)).0
    ));
    let _ = cu!(cx, cuStreamEndCapture(stream, &mut CUgraph(0)));
    out(format!(
        "with programmatic data after a memset: {}",
        cu!(cx, cuStreamBeginCaptureToGraph(stream, g, &first, &data(1, 0, 1), 1, relaxed)).0
    ));
    let _ = cu!(cx, cuStreamEndCapture(stream, &mut CUgraph(0)));
    let begun = cu!(cx, cuStreamBeginCaptureToGraph(stream, g, &first, &data(0, 0, 0), 1, relaxed));
    let other = gpu.stream()?;
    let second = cu!(cx, cuStreamBeginCaptureToGraph(other, g, null(), null(), 0, relaxed));
    let gone = cu!(cx, cuGraphDestroy(graph(cx)));
    let set = cu!(cx, cuMemsetD32Async(word + 4, 2, 1, stream));
    let mut ended = CUgraph::NULL;
    let end = cu!(cx, cuStreamEndCapture(stream, &mut ended));
    let end2 = cu!(cx, cuStreamEndCapture(other, &mut CUgraph(0)));
    out(format!(
        "capture to a graph: {} {} {} same {} edges {}; a second capture into it {} {}; {}",
        begun.0,
        set.0,
        end.0,
        ended == g,
        edges(cx, g),
        second.0,
        end2.0,
        gone.0
    ));
    let path = std::env::temp_dir().join(format!("simtile-probe-{}.dot", std::process::id()));
    let name = std::ffi::CString::new(path.to_string_lossy().into_owned()).unwrap_or_default();
    for flags in [0, 1, 1 << 20] {
        let code = cu!(cx, cuGraphDebugDotPrint(g, name.as_ptr(), flags));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().take(4).map(|line| line.get(..60).unwrap_or(line)).collect();
        out(format!("picture with flags {flags}: {} {} bytes {lines:?}", code.0, text.len()));
    }
    let _ = std::fs::remove_file(&path);
    out(format!(
        "picture into no folder: {}",
        cu!(cx, cuGraphDebugDotPrint(g, c"/no/such/folder/x.dot".as_ptr(), 0)).0
    ));
    for flags in [2u64, 4, 8, 16, 3] {
        let mut exec = CUgraphExec(0);
        let code = cu!(cx, cuGraphInstantiateWithFlags(&mut exec, g, flags));
        let mut shown = 99;
        let _ = cu!(cx, cuGraphExecGetFlags(exec, &mut shown));
        out(format!("instantiate with flags {flags}: {} shown {shown}", code.0));
    }
    Ok(())
}
