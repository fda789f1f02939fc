//! Graphs: conditional nodes, programmatic edges, memory nodes, attributes, updates.
//!
//! A probe goes on after a refusal, so what it shares hands codes on instead of failing.

mod attributes;
mod conditions;
mod edges;
mod memory;
mod rest;
mod updates;

use crate::cu;
use crate::driver::graph_tools::{blank, data};
use crate::frame::Cx;
use crate::gpu::Gpu;
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// The parts, each a probe.
pub const PARTS: &[(&str, super::Probe)] = &[
    ("graph_conditions", |cx, out| conditions::lines(&Gpu::new(cx)?, out)),
    ("graph_edges", |cx, out| edges::lines(&Gpu::new(cx)?, out)),
    ("graph_memory", |cx, out| memory::lines(&Gpu::new(cx)?, out)),
    ("graph_attributes", |cx, out| attributes::lines(&Gpu::new(cx)?, out)),
    ("graph_updates", |cx, out| updates::lines(&Gpu::new(cx)?, out)),
    ("graph_rest", |cx, out| rest::lines(&Gpu::new(cx)?, out)),
];

/// A new graph.
fn graph(cx: &Cx) -> CUgraph {
    let mut graph = CUgraph::NULL;
    let _ = cu!(cx, cuGraphCreate(&mut graph, 0));
    graph
}

/// What instantiating gave, as text, and the executable.
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

/// Adds a node; what the driver answered stays in the parameters.
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

/// Parameters of a conditional node.
fn conditional(handle: u64, kind: u32, size: u32, context: CUcontext) -> CUgraphNodeParams {
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL);
    params.u.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: CUgraphConditionalNodeType(kind),
        size,
        phGraph_out: null_mut(),
        ctx: context,
    };
    params
}

/// One body of a conditional node.
fn body(params: &CUgraphNodeParams, index: usize) -> CUgraph {
    // SAFETY: the driver filled the list when it made the node, which lives.
    unsafe { *params.u.conditional.phGraph_out.add(index) }
}

/// A condition's handle.
fn handle(cx: &Cx, graph: CUgraph, context: CUcontext, default: u32, flags: u32) -> (CUresult, u64) {
    let mut handle = 0;
    let code = cu!(cx, cuGraphConditionalHandleCreate(&mut handle, graph, context, default, flags));
    (code, handle)
}

/// A host function without an effect.
unsafe extern "C" fn nothing(_: *mut c_void) {}

/// The edges as text.
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
