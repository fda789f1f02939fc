//! Graphs: nodes, edges, clones, pictures, and the memory of allocation nodes.

use super::capture::handles;
use super::memory::unsupported;
use crate::core::Res;
use crate::engine::graphs::GraphStore;
use crate::entry::{Call, In, Out, entries};
use crate::graph::{Edge, NodeId};
use core::ffi::{c_char, c_uint, c_void};
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Writes a list as CUDA does: without room only its length; with too much the rest is null.
fn list<T: Copy + Default>(all: &[T], out: &Out<T>, count: &Out<usize>) -> Res {
    if out.is_null() {
        return count.set(all.len());
    }
    let room = count.get()?;
    for i in 0..room {
        out.set_at(i, all.get(i).copied().unwrap_or_default())?;
    }
    count.set(all.len().min(room))
}

/// Handles of nodes of a graph.
fn named(store: &GraphStore, uid: u64, nodes: impl IntoIterator<Item = NodeId>) -> Res<Vec<CUgraphNode>> {
    let graph = store.graph(uid)?;
    Ok(nodes.into_iter().filter_map(|node| graph.nodes.get(&node).copied()).collect())
}

/// Pairs of nodes of a graph.
fn pairs(
    store: &GraphStore,
    uid: u64,
    from: &In<CUgraphNode>,
    to: &In<CUgraphNode>,
    count: usize,
) -> Res<Vec<(NodeId, NodeId)>> {
    let from = store.nodes_of(uid, &handles(from, count)?)?;
    let to = store.nodes_of(uid, &handles(to, count)?)?;
    Ok(from.into_iter().zip(to).collect())
}

fn memory_attribute(call: &Call<'_>, device: CUdevice, attribute: CUgraphMem_attribute) -> Res<u64> {
    use CUgraphMem_attribute as A;
    let device = call.core.device(device)?;
    let stats = call.core.state.lock().graphs.stats.get(&device).copied().unwrap_or_default();
    Ok(match attribute {
        A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => stats.used,
        A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => stats.used_high,
        A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => stats.reserved,
        A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => stats.reserved_high,
        _ => return Err(INVALID),
    })
}

entries! {
    fn cuGraphCreate(call, out: *mut CUgraph, flags: c_uint) {
        out.check()?;
        if flags != 0 {
            return Err(INVALID);
        }
        let mut state = call.core.state.lock();
        let uid = state.uid();
        out.set(state.graphs.create(uid, false)?)
    }

    fn cuGraphDestroy(call, graph: CUgraph) {
        let mut state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        // A child node's graph goes with the node, a capture's with the capture.
        if state.graphs.graph(uid)?.owned || state.graphs.captures.values().any(|c| c.graph == uid) {
            return Err(INVALID);
        }
        state.graphs.destroy(uid);
        call.core.sweep_graph_memory(&mut state);
        Ok(())
    }

    fn cuGraphClone(call, out: *mut CUgraph, original: CUgraph) {
        out.check()?;
        let mut state = call.core.state.lock();
        let uid = state.graphs.uid(original)?;
        if state.graphs.has_memory_nodes(uid) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        out.set(state.clone_graph(uid, false)?.1)
    }

    fn cuGraphDestroyNode(call, node: CUgraphNode) {
        let mut state = call.core.state.lock();
        let key = state.graphs.key(node)?;
        state.graphs.remove(key)?;
        call.core.sweep_graph_memory(&mut state);
        Ok(())
    }

    fn cuGraphNodeFindInClone(call, out: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) {
        out.check()?;
        let state = call.core.state.lock();
        let key = state.graphs.key(original)?;
        let clone = state.graphs.graph(state.graphs.uid(clone)?)?;
        let map = clone.original.as_ref().filter(|(uid, _)| *uid == key.0).map(|(_, map)| map);
        let found = map.and_then(|map| map.iter().find(|(_, old)| **old == key.1)).map(|(new, _)| new);
        out.set(found.and_then(|new| clone.nodes.get(new)).copied().ok_or(INVALID)?)
    }

    fn cuGraphAddDependencies(call, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        let mut state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let pairs = pairs(&state.graphs, uid, &from, &to, count)?;
        // All or none.
        let graph = state.graphs.graph_mut(uid)?;
        let mut changed = graph.graph.clone();
        for (from, to) in pairs {
            changed.connect(Edge { from, to, data: [0; 3] }).map_err(|_| INVALID)?;
        }
        graph.graph = changed;
        Ok(())
    }

    fn cuGraphRemoveDependencies(call, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        let mut state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let pairs = pairs(&state.graphs, uid, &from, &to, count)?;
        let graph = state.graphs.graph_mut(uid)?;
        let mut changed = graph.graph.clone();
        for (from, to) in pairs {
            changed.disconnect(from, to).map_err(|_| INVALID)?;
        }
        graph.graph = changed;
        Ok(())
    }

    fn cuGraphGetNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        let state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let all = state.graphs.graph(uid)?.graph.nodes().map(|(node, _)| node);
        list(&named(&state.graphs, uid, all)?, &nodes, &count)
    }

    fn cuGraphGetRootNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        let state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        list(&named(&state.graphs, uid, state.graphs.graph(uid)?.graph.roots())?, &nodes, &count)
    }

    fn cuGraphGetEdges(call, graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        if from.is_null() != to.is_null() {
            return Err(INVALID);
        }
        let state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let edges: Vec<Edge> = state.graphs.graph(uid)?.graph.edges().collect();
        let room = if from.is_null() { 0 } else { count.get()? };
        list(&named(&state.graphs, uid, edges.iter().map(|edge| edge.from))?, &from, &count)?;
        if !from.is_null() {
            count.set(room)?;
        }
        list(&named(&state.graphs, uid, edges.iter().map(|edge| edge.to))?, &to, &count)
    }

    fn cuGraphNodeGetType(call, node: CUgraphNode, out: *mut CUgraphNodeType) {
        out.check()?;
        let state = call.core.state.lock();
        out.set(state.graphs.node(state.graphs.key(node)?)?.kind())
    }

    fn cuGraphNodeGetDependencies(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        let state = call.core.state.lock();
        let (uid, id) = state.graphs.key(node)?;
        let before = state.graphs.graph(uid)?.graph.dependencies(id).map(|edge| edge.from);
        list(&named(&state.graphs, uid, before)?, &nodes, &count)
    }

    fn cuGraphNodeGetDependentNodes(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        let state = call.core.state.lock();
        let (uid, id) = state.graphs.key(node)?;
        let after = state.graphs.graph(uid)?.graph.dependents(id).map(|edge| edge.to);
        list(&named(&state.graphs, uid, after)?, &nodes, &count)
    }

    fn cuGraphDebugDotPrint(call, graph: CUgraph, path: *const c_char, _flags: c_uint) {
        let text = {
            let state = call.core.state.lock();
            let uid = state.graphs.uid(graph)?;
            state.graphs.graph(uid)?.graph.to_dot(&format!("graph_{uid}"))
        };
        std::fs::write(path.text()?, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn cuGraphConditionalHandleCreate(call, _handle: *mut CUgraphConditionalHandle, _graph: CUgraph, _context: CUcontext, _default: c_uint, _flags: c_uint) {
        Err(unsupported(call, "a conditional node"))
    }

    fn cuDeviceGraphMemTrim(call, device: CUdevice) {
        let device = call.core.device(device)?;
        if let Some(stats) = call.core.state.lock().graphs.stats.get_mut(&device) {
            stats.reserved = stats.used;
        }
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(call, device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void) {
        if value.is_null() {
            return Err(INVALID);
        }
        let size = memory_attribute(call, device, attribute)?;
        // SAFETY: not null; the value of every attribute is a cuuint64_t.
        unsafe { value.raw().cast::<u64>().write_unaligned(size) };
        Ok(())
    }

    fn cuDeviceSetGraphMemAttribute(call, device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void) {
        use CUgraphMem_attribute as A;
        let device = call.core.device(device)?;
        if value.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null; the value of every attribute is a cuuint64_t.
        let zero = unsafe { value.raw().cast::<u64>().read_unaligned() } == 0;
        let mut state = call.core.state.lock();
        let stats = state.graphs.stats.entry(device).or_default();
        // A high mark can only be set back to what is now, by 0.
        match attribute {
            A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH if zero => stats.used_high = stats.used,
            A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH if zero => stats.reserved_high = stats.reserved,
            _ => return Err(INVALID),
        }
        Ok(())
    }
}
