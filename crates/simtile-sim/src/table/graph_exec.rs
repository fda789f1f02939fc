//! Executable graphs: instantiation, launches, changes between launches.

use super::event::event_uid;
use super::graph_nodes as nodes;
use super::memory::unsupported;
use crate::core::Res;
use crate::engine::graphs::{ExecNode, ExecState, NodeKey, NodeWork};
use crate::entry::{Call, entries};
use crate::graph::{Graph, Mismatch};
use core::ffi::c_uint;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const UPLOAD: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0 as u64;
const AUTO_FREE: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0 as u64;
const DEVICE_LAUNCH: u64 = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0 as u64;
const ALL_FLAGS: u64 = 15;

fn instantiate(call: &Call<'_>, graph: CUgraph, flags: u64) -> Res<CUgraphExec> {
    // A graph that the device launches cannot free what it allocated before.
    let both = DEVICE_LAUNCH | AUTO_FREE;
    if flags & !ALL_FLAGS != 0 || flags & both == both {
        return Err(INVALID);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(unsupported(call, "a graph that is launched from the device"));
    }
    let mut state = call.core.state.lock();
    let uid = state.graphs.uid(graph)?;
    let exec = ExecState {
        flags: flags & !UPLOAD,
        graph: state.graphs.flatten(uid)?,
        objects: state.graphs.objects_of(uid),
        last: None,
    };
    let handle = state.graphs.execs.insert(exec).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
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

/// Puts the work of `new` into a graph of the same shape.
///
/// # Errors
/// Where they differ, and how.
fn update(
    old: &mut Graph<ExecNode>,
    new: &Graph<ExecNode>,
) -> Result<(), (CUgraphExecUpdateResult, Option<NodeKey>)> {
    type R = CUgraphExecUpdateResult;
    let same = |old: &ExecNode, new: &ExecNode| old.work.may_become(&new.work);
    let key = |id| new.get(id).and_then(|node: &ExecNode| node.key);
    match old.compare(new, same) {
        Ok(()) => {}
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
    let ids: Vec<_> = old.nodes().map(|(id, _)| id).collect();
    for (id, (_, node)) in ids.into_iter().zip(new.nodes()) {
        if let Some(place) = old.get_mut(id) {
            // The node keeps its name: the graph it was made from.
            place.work = match (&place.work, &node.work) {
                (&NodeWork::Child(own), NodeWork::Child(_)) => NodeWork::Child(own),
                (_, work) => work.clone(),
            };
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
        out.set(instantiate(call, graph, flags)?)
    }

    fn cuGraphInstantiateWithParams(call, out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) {
        out.check()?;
        let mut given = params.get()?;
        if given.flags & UPLOAD != 0 {
            call.stream(given.hUploadStream)?;
        }
        let made = instantiate(call, graph, given.flags);
        given.hErrNode_out = CUgraphNode::NULL;
        given.result_out = match made {
            Ok(_) => CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => {
                CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED
            }
            Err(_) => CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        params.set(given)?;
        out.set(made?)
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
        state.refuse_capturing(stream.uid)
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
        shape.compare(&new, |old, new| old.work.may_become(&new.work)).map_err(|_| INVALID)?;
        for ((_, old), (_, new)) in shape.nodes().zip(new.nodes()) {
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
        if matches!(old, NodeWork::Alloc(_) | NodeWork::Free(_) | NodeWork::Child(_)) || old.kind() != given.type_ {
            return Err(INVALID);
        }
        let work = nodes::generic(call, &mut given, Some(&old))?;
        change(call, exec, key, work)
    }
}
