//! Executable graphs: instantiation, launches, changes between launches.

use super::event::event_uid;
use super::graph_nodes as nodes;
use crate::core::Res;
use crate::engine::graphs::{ExecNode, ExecState, NodeKey, NodeWork};
use crate::entry::{Call, entries};
use crate::graph::{Graph, Mismatch, NodeId};
use core::ffi::c_uint;
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const UPLOAD: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0 as u64;
const NODE_PRIORITY: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0 as u64;
const AUTO_FREE: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0 as u64;
const DEVICE_LAUNCH: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0 as u64;
const ALL_FLAGS: u64 = 15;

/// Why a graph was not instantiated: the call's code, what the structure says, and the node.
type Refusal = (CUresult, CUgraphInstantiateResult, Option<CUgraphNode>);

fn refusal(code: CUresult) -> Refusal {
    (code, CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR, None)
}

fn instantiate(call: &Call<'_>, graph: CUgraph, flags: u64) -> Result<CUgraphExec, Refusal> {
    type R = CUgraphInstantiateResult;
    // A graph that the device launches cannot free what it allocated before. The host can launch one too; a kernel that
    // does so is refused when its module is loaded.
    let both = DEVICE_LAUNCH | AUTO_FREE;
    if flags & !ALL_FLAGS != 0 || flags & both == both {
        return Err(refusal(INVALID));
    }
    let mut state = call.core.state.lock();
    let uid = state.graphs.uid(graph).map_err(refusal)?;
    if let Some(node) = state.graphs.bad_node(uid, false) {
        return Err((INVALID, R::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED, Some(node)));
    }
    // Memory and conditions are one executable graph's at a time.
    if state.graphs.is_unique(uid) && state.graphs.execs.iter().any(|(_, exec)| exec.source == uid) {
        return Err(refusal(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    }
    let graph = state.graphs.flatten(uid).map_err(refusal)?;
    let conditions = state.graphs.conditions_of(&graph);
    if state.graphs.has_unused_condition(uid, &conditions) {
        return Err((INVALID, R::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, None));
    }
    let exec = ExecState {
        source: uid,
        // Priorities of nodes are always followed, and nobody is told.
        flags: flags & !(UPLOAD | NODE_PRIORITY),
        conditions: conditions.into(),
        graph,
        objects: state.graphs.objects_of(uid),
        last: None,
    };
    let handle = state.graphs.execs.insert(exec).ok_or(refusal(CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
    Ok(CUgraphExec(handle))
}

/// What an executable graph's node does now.
fn current(call: &Call<'_>, exec: CUgraphExec, node: CUgraphNode) -> Res<(NodeKey, NodeWork)> {
    let mut state = call.core.state.lock();
    let key = state.graphs.key(node)?;
    let exec = state.graphs.execs.get_mut(exec.0).map_err(|_| INVALID)?;
    let node = exec.node_mut(key).ok_or(INVALID)?;
    Ok((key, node.work.clone()))
}

/// Changes a node of an executable graph. Launches that are pending keep what they had.
fn change(call: &Call<'_>, exec: CUgraphExec, key: NodeKey, work: NodeWork) -> Res {
    let mut state = call.core.state.lock();
    let exec = state.graphs.execs.get_mut(exec.0).map_err(|_| INVALID)?;
    let node = exec.node_mut(key).ok_or(INVALID)?;
    if !node.work.may_become(&work) {
        return Err(INVALID);
    }
    node.work = work;
    Ok(())
}

/// Whether a node, with its bodies, may become another.
fn may_become(old: &ExecNode, new: &ExecNode) -> bool {
    old.work.may_become(&new.work)
        && old.bodies.iter().zip(&new.bodies).all(|(old, new)| old.pair(new, may_become).is_ok())
}

/// Puts the work of the nodes of `new` into those of `old` that they were paired with.
fn take_work(old: &mut Graph<ExecNode>, new: &Graph<ExecNode>, pairs: &[(NodeId, NodeId)]) {
    for (id, other) in pairs {
        let (Some(place), Some(node)) = (old.get_mut(*id), new.get(*other)) else { continue };
        // The node keeps its name: the graph it was made from.
        place.work = match (&place.work, &node.work) {
            (&NodeWork::Child(own), NodeWork::Child(_)) => NodeWork::Child(own),
            (NodeWork::Conditional(own), NodeWork::Conditional(_)) => NodeWork::Conditional(own.clone()),
            (_, work) => work.clone(),
        };
        for (old, new) in place.bodies.iter_mut().zip(&node.bodies) {
            if let Ok(pairs) = old.pair(new, may_become) {
                take_work(Arc::make_mut(old), new, &pairs);
            }
        }
    }
}

/// Puts the work of `new` into a graph of the same shape.
///
/// # Errors
/// Where they differ, and how.
fn update(
    old: &mut Graph<ExecNode>,
    new: &Graph<ExecNode>,
) -> Result<(), (CUgraphExecUpdateResult, Option<NodeKey>)> {
    type R = CUgraphExecUpdateResult;
    let key = |id| new.get(id).and_then(|node: &ExecNode| node.key);
    match old.pair(new, may_become) {
        Ok(pairs) => take_work(old, new, &pairs),
        Err(Mismatch::NodeCount { .. }) => {
            return Err((R::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, None));
        }
        Err(Mismatch::Dependencies { new, .. }) => {
            return Err((R::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, key(new)));
        }
        Err(Mismatch::Node { old: before, new: after }) => {
            let kinds = (old.get(before).map(|n| n.work.kind()), new.get(after).map(|n| n.work.kind()));
            let kernel = kinds.0 == Some(CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
            let why = if kinds.0 != kinds.1 {
                R::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
            } else if kernel {
                R::CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED
            } else {
                R::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED
            };
            return Err((why, key(after)));
        }
    }
    Ok(())
}

/// Whether nodes of this kind can be switched off.
fn can_be_disabled(work: &NodeWork) -> bool {
    matches!(work, NodeWork::Kernel(..) | NodeWork::Copy(..) | NodeWork::Set(..))
}

entries! {
    fn cuGraphInstantiateWithFlags(call, out: *mut CUgraphExec, graph: CUgraph, flags: u64) {
        out.check()?;
        // The upload needs a stream, which this call has none of.
        if flags & UPLOAD != 0 {
            return Err(INVALID);
        }
        out.set(instantiate(call, graph, flags).map_err(|refusal| refusal.0)?)
    }

    fn cuGraphInstantiateWithParams(call, out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) {
        out.check()?;
        let mut given = params.get()?;
        if given.flags & UPLOAD != 0 {
            call.stream(given.hUploadStream)?;
        }
        let made = instantiate(call, graph, given.flags);
        (given.result_out, given.hErrNode_out) = match made {
            Ok(_) => (CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS, CUgraphNode::NULL),
            Err((_, result, node)) => (result, node.unwrap_or(CUgraphNode::NULL)),
        };
        params.set(given)?;
        out.set(made.map_err(|refusal| refusal.0)?)
    }

    fn cuGraphExecDestroy(call, exec: CUgraphExec) {
        let mut state = call.core.state.lock();
        // Pending launches have what they need.
        let gone = state.graphs.execs.remove(exec.0).map_err(|_| INVALID)?;
        drop(gone);
        call.core.sweep_graph_memory(&mut state);
        Ok(())
    }

    fn cuGraphExecGetFlags(call, exec: CUgraphExec, out: *mut u64) {
        out.check()?;
        let state = call.core.state.lock();
        out.set(state.graphs.execs.get(exec.0).map_err(|_| INVALID)?.flags)
    }

    fn cuGraphLaunch(call, exec: CUgraphExec, stream: CUstream) {
        let stream = call.stream(stream)?;
        call.core.launch_graph(exec, &stream)
    }

    fn cuGraphUpload(call, exec: CUgraphExec, stream: CUstream) {
        let stream = call.stream(stream)?;
        let mut state = call.core.state.lock();
        state.graphs.execs.get(exec.0).map_err(|_| INVALID)?;
        state.refuse_capturing(stream.uid)?;
        let exec = state.graphs.execs.get(exec.0).map_err(|_| INVALID)?;
        let (flat, flags) = (exec.graph.clone(), exec.flags);
        call.core.upload_graph_memory(&mut state, &flat, flags);
        Ok(())
    }

    fn cuGraphExecUpdate(call, exec: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo) {
        info.check()?;
        let mut state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let new = state.graphs.flatten(uid)?;
        let objects = state.graphs.objects_of(uid);
        let target = state.graphs.execs.get_mut(exec.0).map_err(|_| INVALID)?;
        let result = update(&mut target.graph, &new);
        if result.is_ok() {
            target.objects = objects;
        }
        let (result, key) = match result {
            Ok(()) => (CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS, None),
            Err(found) => found,
        };
        let node = key.and_then(|(graph, node)| state.graphs.graph(graph).ok()?.nodes.get(&node).copied());
        let error = node.unwrap_or(CUgraphNode::NULL);
        info.set(CUgraphExecUpdateResultInfo { result, errorNode: error, errorFromNode: CUgraphNode::NULL })?;
        match result {
            CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
        }
    }

    fn cuGraphNodeGetEnabled(call, exec: CUgraphExec, node: CUgraphNode, out: *mut c_uint) {
        out.check()?;
        let mut state = call.core.state.lock();
        let key = state.graphs.key(node)?;
        let exec = state.graphs.execs.get_mut(exec.0).map_err(|_| INVALID)?;
        let node = exec.node_mut(key).filter(|node| can_be_disabled(&node.work)).ok_or(INVALID)?;
        out.set(u32::from(node.enabled))
    }

    fn cuGraphNodeSetEnabled(call, exec: CUgraphExec, node: CUgraphNode, enabled: c_uint) {
        let mut state = call.core.state.lock();
        let key = state.graphs.key(node)?;
        let exec = state.graphs.execs.get_mut(exec.0).map_err(|_| INVALID)?;
        let node = exec.node_mut(key).filter(|node| can_be_disabled(&node.work)).ok_or(INVALID)?;
        node.enabled = enabled != 0;
        Ok(())
    }

    fn cuGraphExecKernelNodeSetParams(call, exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2) {
        let (key, old) = current(call, exec, node)?;
        let NodeWork::Kernel(old, _) = old else { return Err(INVALID) };
        change(call, exec, key, nodes::kernel(call, &params.get()?, Some(&old))?)
    }

    fn cuGraphExecMemcpyNodeSetParams(call, exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMCPY3D, context: CUcontext) {
        let (key, _) = current(call, exec, node)?;
        change(call, exec, key, nodes::memcpy(call, &params.get()?, context)?)
    }

    fn cuGraphExecMemsetNodeSetParams(call, exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext) {
        let (key, _) = current(call, exec, node)?;
        change(call, exec, key, nodes::memset(call, &params.get()?, context)?)
    }

    fn cuGraphExecHostNodeSetParams(call, exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS) {
        let (key, _) = current(call, exec, node)?;
        change(call, exec, key, nodes::host(&params.get()?)?)
    }

    fn cuGraphExecChildGraphNodeSetParams(call, exec: CUgraphExec, node: CUgraphNode, graph: CUgraph) {
        let (_, work) = current(call, exec, node)?;
        let NodeWork::Child(own) = work else { return Err(INVALID) };
        let mut state = call.core.state.lock();
        // The node's graph says where its nodes are in the executable graph.
        let shape = state.graphs.flatten(own)?;
        let new = state.graphs.flatten(state.graphs.uid(graph)?)?;
        let target = state.graphs.execs.get_mut(exec.0).map_err(|_| INVALID)?;
        let pairs = shape.pair(&new, |old, new| old.work.may_become(&new.work)).map_err(|_| INVALID)?;
        for (old, other) in pairs {
            let (Some(old), Some(new)) = (shape.get(old), new.get(other)) else { continue };
            let place = old.key.and_then(|key| target.node_mut(key));
            if let Some(place) = place.filter(|place| !matches!(place.work, NodeWork::Child(_))) {
                place.work = new.work.clone();
            }
        }
        Ok(())
    }

    fn cuGraphExecEventRecordNodeSetEvent(call, exec: CUgraphExec, node: CUgraphNode, event: CUevent) {
        let (key, _) = current(call, exec, node)?;
        change(call, exec, key, NodeWork::Record(event_uid(call, event)?.0))
    }

    fn cuGraphExecEventWaitNodeSetEvent(call, exec: CUgraphExec, node: CUgraphNode, event: CUevent) {
        let (key, _) = current(call, exec, node)?;
        change(call, exec, key, NodeWork::Wait(event_uid(call, event)?.0))
    }

    fn cuGraphExecNodeSetParams(call, exec: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams) {
        let mut given = params.get()?;
        let (key, old) = current(call, exec, node)?;
        if !old.can_be_set() || old.kind() != given.type_ {
            return Err(INVALID);
        }
        let work = nodes::generic(call, &mut given, Some(&old))?;
        change(call, exec, key, work)
    }
}
