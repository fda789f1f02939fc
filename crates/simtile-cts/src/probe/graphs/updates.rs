//! What an update of an executable takes.

use super::{add, graph, instantiate};
use crate::cu;
use crate::driver::graph_tools::{blank, kernel, memset, waits};
use crate::frame::Check;
use crate::gpu::{Args, Gpu};
use crate::probe::Sink;
use simtile_driver::sys::CUgraphNodeType as Type;
use simtile_driver::sys::*;

pub(super) fn lines(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
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
        let mut params = blank(Type::CU_GRAPH_NODE_TYPE_MEMCPY);
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
    line("conditional", blank(Type::CU_GRAPH_NODE_TYPE_EMPTY), blank(Type::CU_GRAPH_NODE_TYPE_EMPTY));
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
    let e = add(cx, g, &[], blank(Type::CU_GRAPH_NODE_TYPE_EMPTY)).1;
    out(format!(
        "cuGraphNodeSetParams of an empty node: {}",
        cu!(cx, cuGraphNodeSetParams(e, &mut blank(Type::CU_GRAPH_NODE_TYPE_EMPTY))).0
    ));
    let (_, exec) = instantiate(cx, g, 0);
    out(format!(
        "cuGraphExecNodeSetParams of an empty node: {}",
        cu!(cx, cuGraphExecNodeSetParams(exec, e, &mut blank(Type::CU_GRAPH_NODE_TYPE_EMPTY))).0
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
