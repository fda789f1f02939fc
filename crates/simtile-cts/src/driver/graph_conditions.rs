//! Conditional nodes: if, else, while and switch, with conditions that kernels set.

use super::graph_tools::*;
use crate::frame::{Check, Cx, Need, Stop};
use crate::gpu::{Args, Gpu};
use crate::{code, cu, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::CUgraphConditionalNodeType as Kind;
use simtile_driver::sys::*;
use std::ptr::null;

/// Their entry came with 12.3, the kinds that are tested with 12.8.
const CONDITIONS: Need = Need::Driver(12, 8, "conditional nodes");

crate::frame::registry::tests! { Driver, "graph_conditions";
    handles needs [HOPPER, CONDITIONS],
    kinds_and_sizes needs [HOPPER, CONDITIONS],
    if_and_else needs [HOPPER, CONDITIONS],
    kernels_set_conditions needs [HOPPER, CONDITIONS],
    defaults_come_back_at_each_launch needs [HOPPER, CONDITIONS],
    loops_run_until_zero needs [HOPPER, CONDITIONS],
    switches_pick_a_body needs [HOPPER, CONDITIONS],
    nested needs [HOPPER, CONDITIONS],
    bodies_are_captured needs [HOPPER, CONDITIONS],
    bodies_can_be_changed needs [HOPPER, CONDITIONS],
    graphs_with_conditions_are_not_copied needs [HOPPER, CONDITIONS],
    bodies_hold_device_work_only needs [HOPPER, CONDITIONS],
}

/// The driver of any such device has conditional nodes since CUDA 12.4; switch and else since 12.8.
const HOPPER: Need = Need::Capability(9, 0);
const IF: Kind = Kind::CU_GRAPH_COND_TYPE_IF;
const WHILE: Kind = Kind::CU_GRAPH_COND_TYPE_WHILE;
const SWITCH: Kind = Kind::CU_GRAPH_COND_TYPE_SWITCH;

/// A condition. With a default every launch begins with it.
fn condition(gpu: &Gpu<'_>, graph: CUgraph, default: Option<u32>) -> Check<u64> {
    let mut handle = 0;
    let (value, flags) = default.map_or((0, 0), |value| (value, 1));
    ok!(gpu, cuGraphConditionalHandleCreate(&mut handle, graph, gpu.context, value, flags))?;
    Ok(handle)
}

fn parameters(gpu: &Gpu<'_>, handle: u64, kind: Kind, size: u32) -> CUgraphNodeParams {
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL);
    params.u.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: kind,
        size,
        phGraph_out: std::ptr::null_mut(),
        ctx: gpu.context,
    };
    params
}

/// A conditional node and its bodies.
fn branch(
    gpu: &Gpu<'_>,
    graph: CUgraph,
    before: &[CUgraphNode],
    handle: u64,
    kind: Kind,
    size: u32,
) -> Check<(CUgraphNode, Vec<CUgraph>)> {
    let mut params = parameters(gpu, handle, kind, size);
    let node = add(gpu.cx(), graph, before, &mut params)?;
    // SAFETY: the driver has filled the list, which lives as long as the node.
    let bodies = unsafe { std::slice::from_raw_parts(params.u.conditional.phGraph_out, size as usize) };
    Ok((node, bodies.to_vec()))
}

/// Kernels and words of a test.
struct Rig<'a> {
    gpu: Gpu<'a>,
    stream: CUstream,
    words: CUdeviceptr,
    set: CUfunction,
    count: CUfunction,
    plus: CUfunction,
}

impl<'a> Rig<'a> {
    fn new(cx: &'a Cx) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let (stream, words, module) = (gpu.stream()?, gpu.zeroed(64)?, gpu.module(kernels::CONDITIONAL)?);
        let (set, count) = (gpu.function(module, c"set_condition")?, gpu.function(module, c"count_down")?);
        let plus = gpu.function(module, c"add")?;
        Ok(Self { gpu, stream, words, set, count, plus })
    }

    /// A node that adds to a word.
    fn adds(&self, graph: CUgraph, before: &[CUgraphNode], word: u64, value: u32) -> Check<CUgraphNode> {
        let args = Args::new().with(self.words + 4 * word).with(value);
        add_kernel(self.gpu.cx(), graph, before, self.plus, &args)
    }

    /// A node that sets a condition.
    fn sets(&self, graph: CUgraph, before: &[CUgraphNode], handle: u64, value: u32) -> Check<CUgraphNode> {
        add_kernel(self.gpu.cx(), graph, before, self.set, &Args::new().with(handle).with(value))
    }

    /// The first words after a launch that began with these.
    fn launched<const N: usize>(&self, exec: CUgraphExec, begin: [u32; N]) -> Check<[u32; N]> {
        self.gpu.write(self.words, &begin)?;
        replay(&self.gpu, exec, self.stream)?;
        self.gpu.read::<u32>(self.words, N)?.try_into().map_err(|_| Stop::fail("another number of words"))
    }
}

fn handles(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let g = graph(cx)?;
    let (first, second) = (condition(&gpu, g, Some(1))?, condition(&gpu, g, None)?);
    ensure!(first != second, "two conditions of one handle");
    let mut handle = 0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphConditionalHandleCreate(&mut handle, g, gpu.context, 1, 2))?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_CONTEXT],
        cuGraphConditionalHandleCreate(&mut handle, g, CUcontext::NULL, 1, 1)
    )?;
    // A condition that no node reads.
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 0,
        hUploadStream: CUstream::NULL,
        hErrNode_out: CUgraphNode::NULL,
        result_out: CUgraphInstantiateResult(99),
    };
    let mut e = CUgraphExec::NULL;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphInstantiateWithParams(&mut e, g, &mut params))?;
    let unused = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    ensure_eq!(params.result_out, unused, "result");
    Ok(())
}

fn kinds_and_sizes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let g = graph(cx)?;
    for (kind, size) in [(IF, 1), (IF, 2), (WHILE, 1), (SWITCH, 1), (SWITCH, 5)] {
        let (node, bodies) = branch(&gpu, g, &[], condition(&gpu, g, Some(0))?, kind, size)?;
        let (mut found, mut n) = (CUgraphNodeType(99), 9);
        ok!(cx, cuGraphNodeGetType(node, &mut found))?;
        ensure_eq!(found, CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL, "type of the node");
        for body in bodies {
            ok!(cx, cuGraphGetNodes(body, std::ptr::null_mut(), &mut n))?;
            ensure_eq!(n, 0, "nodes of a new body");
        }
    }
    for (kind, size) in [(IF, 0), (IF, 3), (WHILE, 2), (SWITCH, 0), (Kind(3), 1)] {
        let mut params = parameters(&gpu, condition(&gpu, g, Some(0))?, kind, size);
        let mut node = CUgraphNode::NULL;
        let added = cu!(cx, cuGraphAddNode(&mut node, g, null(), null(), 0, &mut params));
        ensure_eq!(added, CUresult::CUDA_ERROR_INVALID_VALUE, "a conditional node {kind:?} of {size} bodies");
    }
    Ok(())
}

fn if_and_else(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    for (default, expected) in [(1, [1, 0, 1]), (7, [1, 0, 1]), (0, [0, 1, 1])] {
        let g = graph(cx)?;
        let (node, bodies) = branch(&rig.gpu, g, &[], condition(&rig.gpu, g, Some(default))?, IF, 2)?;
        rig.adds(bodies[0], &[], 0, 1)?;
        rig.adds(bodies[1], &[], 1, 1)?;
        rig.adds(g, &[node], 2, 1)?;
        ensure_eq!(rig.launched(exec(cx, g)?, [0; 3])?, expected, "words of condition {default}");
    }
    Ok(())
}

fn kernels_set_conditions(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    for (value, expected) in [(1, [1, 1]), (0, [0, 1])] {
        let g = graph(cx)?;
        let handle = condition(&rig.gpu, g, None)?;
        let before = rig.sets(g, &[], handle, value)?;
        let (node, bodies) = branch(&rig.gpu, g, &[before], handle, IF, 1)?;
        rig.adds(bodies[0], &[], 0, 1)?;
        rig.adds(g, &[node], 1, 1)?;
        ensure_eq!(rig.launched(exec(cx, g)?, [0; 2])?, expected, "words of a condition set to {value}");
    }
    Ok(())
}

fn defaults_come_back_at_each_launch(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let g = graph(cx)?;
    let handle = condition(&rig.gpu, g, Some(1))?;
    let (node, bodies) = branch(&rig.gpu, g, &[], handle, IF, 1)?;
    rig.adds(bodies[0], &[], 0, 1)?;
    rig.sets(g, &[node], handle, 0)?;
    let e = exec(cx, g)?;
    rig.gpu.write(rig.words, &[0u32])?;
    for n in 1..4 {
        replay(&rig.gpu, e, rig.stream)?;
        ensure_eq!(rig.gpu.word(rig.words)?, n, "launches of which the body ran");
    }
    Ok(())
}

/// A loop that adds 2 to the second word until the first has counted down to 0: graph, loop, body and the adding node.
fn counting(rig: &Rig<'_>) -> Check<(CUgraph, CUgraphNode, CUgraph, CUgraphNode)> {
    let cx = rig.gpu.cx();
    let g = graph(cx)?;
    let handle = condition(&rig.gpu, g, Some(1))?;
    let (node, bodies) = branch(&rig.gpu, g, &[], handle, WHILE, 1)?;
    let plus = rig.adds(bodies[0], &[], 1, 2)?;
    add_kernel(cx, bodies[0], &[plus], rig.count, &Args::new().with(handle).with(rig.words))?;
    rig.adds(g, &[node], 2, 1)?;
    Ok((g, node, bodies[0], plus))
}

fn loops_run_until_zero(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let e = exec(cx, counting(&rig)?.0)?;
    ensure_eq!(rig.launched(e, [5, 0, 0])?, [0, 10, 1], "words after five rounds");
    ensure_eq!(rig.launched(e, [1, 0, 0])?, [0, 2, 1], "words after one round");
    // A condition of 0 lets no round run.
    let g = graph(cx)?;
    let (_, bodies) = branch(&rig.gpu, g, &[], condition(&rig.gpu, g, Some(0))?, WHILE, 1)?;
    rig.adds(bodies[0], &[], 0, 1)?;
    ensure_eq!(rig.launched(exec(cx, g)?, [3])?, [3], "word after no round");
    Ok(())
}

fn switches_pick_a_body(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    for value in 0..5usize {
        let g = graph(cx)?;
        let handle = condition(&rig.gpu, g, Some(99))?;
        let before = rig.sets(g, &[], handle, value as u32)?;
        let (node, bodies) = branch(&rig.gpu, g, &[before], handle, SWITCH, 3)?;
        for (body, word) in bodies.into_iter().zip(0..) {
            rig.adds(body, &[], word, 1)?;
        }
        rig.adds(g, &[node], 3, 1)?;
        let mut expected = [0, 0, 0, 1];
        if value < 3 {
            expected[value] = 1;
        }
        ensure_eq!(rig.launched(exec(cx, g)?, [0; 4])?, expected, "words of {value}");
    }
    Ok(())
}

fn nested(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let (g, _, body, plus) = counting(&rig)?;
    // Inside of the loop, after the addition, an if whose condition never holds, and one that always does.
    for (default, word) in [(0, 3), (1, 4)] {
        let (_, inner) = branch(&rig.gpu, body, &[plus], condition(&rig.gpu, g, Some(default))?, IF, 1)?;
        rig.adds(inner[0], &[], word, 1)?;
    }
    ensure_eq!(rig.launched(exec(cx, g)?, [3, 0, 0, 0, 0])?, [0, 6, 1, 0, 3], "words");
    Ok(())
}

fn bodies_are_captured(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let g = graph(cx)?;
    let (_, bodies) = branch(&rig.gpu, g, &[], condition(&rig.gpu, g, Some(1))?, IF, 1)?;
    let mut ended = CUgraph::NULL;
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(cx, cuStreamBeginCaptureToGraph(rig.stream, bodies[0], null(), null(), 0, relaxed))?;
    ok!(cx, cuMemsetD32Async(rig.words, 4, 1, rig.stream))?;
    ok!(cx, cuMemcpyDtoDAsync(rig.words + 4, rig.words, 4, rig.stream))?;
    ok!(cx, cuStreamEndCapture(rig.stream, &mut ended))?;
    ensure_eq!(ended, bodies[0], "the captured graph");
    ensure_eq!(rig.launched(exec(cx, g)?, [0; 2])?, [4, 4], "words");
    Ok(())
}

fn bodies_can_be_changed(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let (g, _, _, plus) = counting(&rig)?;
    let e = exec(cx, g)?;
    let args = Args::new().with(rig.words + 4).with(3u32);
    let mut list = args.pointers();
    ok!(cx, cuGraphExecNodeSetParams(e, plus, &mut kernel(rig.plus, &mut list)))?;
    ensure_eq!(rig.launched(e, [5, 0, 0])?, [0, 15, 1], "words after a body's node was changed");
    Ok(())
}

fn graphs_with_conditions_are_not_copied(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let (g, ..) = counting(&rig)?;
    let (mut copy, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphClone(&mut copy, g))?;
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphAddChildGraphNode(&mut node, graph(cx)?, null(), 0, g))?;
    // Nor instantiated twice at a time.
    let (first, mut second) = (exec(cx, g)?, CUgraphExec::NULL);
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphInstantiateWithFlags(&mut second, g, 0))?;
    ok!(cx, cuGraphExecDestroy(first))?;
    exec(cx, g).map(drop)
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

fn bodies_hold_device_work_only(cx: &Cx) -> Check {
    let rig = Rig::new(cx)?;
    let g = graph(cx)?;
    let (_, bodies) = branch(&rig.gpu, g, &[], condition(&rig.gpu, g, Some(1))?, IF, 1)?;
    let mut params = blank(CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST);
    params.u.host = CUDA_HOST_NODE_PARAMS_v2 { fn_: Some(nothing), userData: std::ptr::null_mut() };
    let (mut node, mut e) = (CUgraphNode::NULL, CUgraphExec::NULL);
    ok!(cx, cuGraphAddNode(&mut node, bodies[0], null(), null(), 0, &mut params))?;
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 0,
        hUploadStream: CUstream::NULL,
        hErrNode_out: CUgraphNode::NULL,
        result_out: CUgraphInstantiateResult(99),
    };
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphInstantiateWithParams(&mut e, g, &mut params))?;
    let refused = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
    ensure_eq!(params.result_out, refused, "result");
    ensure!(!params.hErrNode_out.is_null(), "no node is named");
    Ok(())
}
