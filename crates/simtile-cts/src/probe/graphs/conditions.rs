//! Conditional nodes: handles, kinds and sizes, which body runs, what a body may hold.

use super::{add, body, conditional, graph, handle, instantiate, nothing};
use crate::driver::graph_tools::{allocation, blank, kernel, memset, waits};
use crate::frame::Check;
use crate::gpu::{Args, Gpu};
use crate::probe::Sink;
use crate::{cu, kernels};
use simtile_driver::sys::CUgraphNodeType as Type;
use simtile_driver::sys::*;
use std::ptr::{null, null_mut};

pub(super) fn lines(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
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
    out(format!("as a child: {}", cu!(cx, cuGraphAddChildGraphNode(&mut node, graph(cx), null(), 0, g)).0));

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
    let mut host = blank(Type::CU_GRAPH_NODE_TYPE_HOST);
    host.u.host = CUDA_HOST_NODE_PARAMS_v2 { fn_: Some(nothing), userData: null_mut() };
    for (name, inside) in [
        ("host", host),
        ("event wait", waits(event)),
        ("allocation", allocation(gpu.device, 64)),
        ("empty", blank(Type::CU_GRAPH_NODE_TYPE_EMPTY)),
    ] {
        let g = graph(cx);
        let h = handle(cx, g, c, 1, 1).1;
        let p = add(cx, g, &[], conditional(h, 0, 1, c)).2;
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
