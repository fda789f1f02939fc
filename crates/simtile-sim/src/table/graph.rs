//! Graphs: nodes, edges, clones, pictures, and the memory of allocation nodes.

use super::capture::handles;
use crate::core::Res;
use crate::engine::graphs::{Condition, GraphStore, NodeWork};
use crate::entry::{Call, In, Out, entries};
use crate::graph::{Edge, Graph, NodeId};
use core::ffi::{c_char, c_uint, c_void};
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
/// What tells handles of conditions from other numbers.
const CONDITION: u64 = 0xc0d1 << 48;

/// Writes a list as CUDA does: without room only its length; with too much the rest is `none`.
fn list<T: Copy>(all: &[T], none: T, out: &Out<T>, count: &Out<usize>) -> Res {
    if out.is_null() {
        return count.set(all.len());
    }
    let room = count.get()?;
    for i in 0..room {
        out.set_at(i, all.get(i).copied().unwrap_or(none))?;
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

/// Edge data as CUDA's structure says it, and back.
pub(super) fn shown(data: [u8; 3]) -> CUgraphEdgeData {
    let [from_port, to_port, type_] = data;
    CUgraphEdgeData { from_port, to_port, type_, reserved: [0; 5] }
}

/// The data of so many edges; without a list all are full dependencies.
pub(super) fn edge_data(data: &In<CUgraphEdgeData>, count: usize) -> Res<Vec<[u8; 3]>> {
    if data.is_null() {
        return Ok(vec![[0; 3]; count]);
    }
    let read = |data: &CUgraphEdgeData| match data.reserved {
        [0, 0, 0, 0, 0] => Ok([data.from_port, data.to_port, data.type_]),
        _ => Err(INVALID),
    };
    handles(data, count)?.iter().map(read).collect()
}

/// Writes lists of nodes and the data of their edges. An older form of a call has no room for data.
///
/// # Errors
/// `CUDA_ERROR_LOSSY_QUERY` if data would be lost.
fn list_edges(
    lists: &[(Vec<CUgraphNode>, Out<CUgraphNode>)],
    data: &[[u8; 3]],
    out: &Out<CUgraphEdgeData>,
    count: &Out<usize>,
) -> Res {
    if lists.iter().any(|(_, out)| out.is_null()) {
        if lists.iter().any(|(_, out)| !out.is_null()) || !out.is_null() {
            return Err(INVALID);
        }
        return count.set(data.len());
    }
    if out.is_null() && data.iter().any(|data| *data != [0; 3]) {
        return Err(CUresult::CUDA_ERROR_LOSSY_QUERY);
    }
    let room = count.get()?;
    for (nodes, out) in lists {
        count.set(room)?;
        list(nodes, CUgraphNode::NULL, out, count)?;
    }
    if !out.is_null() {
        count.set(room)?;
        list(&data.iter().copied().map(shown).collect::<Vec<_>>(), shown([0; 3]), out, count)?;
    }
    Ok(())
}

fn get_edges(
    call: &Call<'_>,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    data: &Out<CUgraphEdgeData>,
    count: &Out<usize>,
) -> Res {
    count.check()?;
    let state = call.core.state.lock();
    let uid = state.graphs.uid(graph)?;
    let edges: Vec<Edge> = state.graphs.graph(uid)?.graph.edges().collect();
    let first = named(&state.graphs, uid, edges.iter().map(|edge| edge.from))?;
    let second = named(&state.graphs, uid, edges.iter().map(|edge| edge.to))?;
    let all: Vec<_> = edges.iter().map(|edge| edge.data).collect();
    list_edges(&[(first, from), (second, to)], &all, data, count)
}

/// What comes before a node, or after it.
fn neighbours(
    call: &Call<'_>,
    node: CUgraphNode,
    before: bool,
    out: Out<CUgraphNode>,
    data: &Out<CUgraphEdgeData>,
    count: &Out<usize>,
) -> Res {
    count.check()?;
    let state = call.core.state.lock();
    let (uid, id) = state.graphs.key(node)?;
    let graph = &state.graphs.graph(uid)?.graph;
    let edges: Vec<(NodeId, [u8; 3])> = if before {
        graph.dependencies(id).map(|edge| (edge.from, edge.data)).collect()
    } else {
        graph.dependents(id).map(|edge| (edge.to, edge.data)).collect()
    };
    let nodes = named(&state.graphs, uid, edges.iter().map(|edge| edge.0))?;
    let all: Vec<_> = edges.iter().map(|edge| edge.1).collect();
    list_edges(&[(nodes, out)], &all, data, count)
}

/// Adds or takes away edges, all or none.
fn change_edges(
    call: &Call<'_>,
    graph: CUgraph,
    from: &In<CUgraphNode>,
    to: &In<CUgraphNode>,
    data: &[[u8; 3]],
    add: bool,
) -> Res {
    let mut state = call.core.state.lock();
    let uid = state.graphs.uid(graph)?;
    let pairs = pairs(&state.graphs, uid, from, to, data.len())?;
    if !add && state.graphs.has_memory(uid) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let graph = state.graphs.graph_mut(uid)?;
    let mut changed = graph.graph.clone();
    for ((from, to), &data) in pairs.into_iter().zip(data) {
        let edge = Edge { from, to, data };
        if add {
            check_edge(&changed, from, Some(to), data)?;
            changed.connect(edge).map_err(|_| INVALID)?;
        } else {
            // Whatever its data (measured).
            changed.disconnect(from, to).map_err(|_| INVALID)?;
        }
    }
    graph.graph = changed;
    Ok(())
}

/// Whether an edge may carry this data: a programmatic dependency is one between kernels, from one of the ports of a
/// kernel that is still running. A node that is being added has no number yet; it was looked at by the caller.
pub(super) fn check_edge(graph: &Graph<NodeWork>, from: NodeId, to: Option<NodeId>, data: [u8; 3]) -> Res {
    let kernel = |node| matches!(graph.get(node), Some(NodeWork::Kernel(..)));
    match data {
        [0, 0, 0] => Ok(()),
        [1 | 2, 0, 1] if kernel(from) && to.is_none_or(kernel) => Ok(()),
        [2, 0, 0] if kernel(from) => Ok(()),
        _ => Err(INVALID),
    }
}

fn memory_attribute(call: &Call<'_>, device: CUdevice, attribute: CUgraphMem_attribute) -> Res<u64> {
    use CUgraphMem_attribute as A;
    let device = call.core.device(device)?;
    let mut state = call.core.state.lock();
    let pool = state.graphs.pools.entry(device).or_default();
    Ok(match attribute {
        A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT | A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => pool.taken(),
        A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => pool.used_high,
        A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => pool.reserved_high,
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
        if state.graphs.is_unique(uid) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        out.set(state.clone_graph(uid, false)?.1)
    }

    fn cuGraphDestroyNode(call, node: CUgraphNode) {
        let mut state = call.core.state.lock();
        let key = state.graphs.key(node)?;
        if state.graphs.has_memory(key.0) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
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
        change_edges(call, graph, &from, &to, &vec![[0; 3]; count], true)
    }

    fn cuGraphAddDependencies_v2(call, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize) {
        change_edges(call, graph, &from, &to, &edge_data(&data, count)?, true)
    }


    fn cuGraphRemoveDependencies(call, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        change_edges(call, graph, &from, &to, &vec![[0; 3]; count], false)
    }

    fn cuGraphRemoveDependencies_v2(call, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize) {
        change_edges(call, graph, &from, &to, &edge_data(&data, count)?, false)
    }


    fn cuGraphGetNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        let state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let all = state.graphs.graph(uid)?.graph.nodes().map(|(node, _)| node);
        list(&named(&state.graphs, uid, all)?, CUgraphNode::NULL, &nodes, &count)
    }

    fn cuGraphGetRootNodes(call, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        count.check()?;
        let state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        list(&named(&state.graphs, uid, state.graphs.graph(uid)?.graph.roots())?, CUgraphNode::NULL, &nodes, &count)
    }

    fn cuGraphGetEdges(call, graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        get_edges(call, graph, from, to, &Out::null(), &count)
    }

    fn cuGraphGetEdges_v2(call, graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize) {
        get_edges(call, graph, from, to, &data, &count)
    }


    fn cuGraphNodeGetType(call, node: CUgraphNode, out: *mut CUgraphNodeType) {
        out.check()?;
        let state = call.core.state.lock();
        out.set(state.graphs.node(state.graphs.key(node)?)?.kind())
    }

    fn cuGraphNodeGetDependencies(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        neighbours(call, node, true, nodes, &Out::null(), &count)
    }

    fn cuGraphNodeGetDependencies_v2(call, node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize) {
        neighbours(call, node, true, nodes, &data, &count)
    }


    fn cuGraphNodeGetDependentNodes(call, node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        neighbours(call, node, false, nodes, &Out::null(), &count)
    }

    fn cuGraphNodeGetDependentNodes_v2(call, node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize) {
        neighbours(call, node, false, nodes, &data, &count)
    }


    fn cuGraphDebugDotPrint(call, graph: CUgraph, path: *const c_char, _flags: c_uint) {
        let text = {
            let state = call.core.state.lock();
            let uid = state.graphs.uid(graph)?;
            state.graphs.graph(uid)?.graph.to_dot(&format!("graph_{uid}"))
        };
        std::fs::write(path.text()?, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn cuGraphConditionalHandleCreate(call, handle: *mut CUgraphConditionalHandle, graph: CUgraph, context: CUcontext, default: c_uint, flags: c_uint) {
        handle.check()?;
        // CU_GRAPH_COND_ASSIGN_DEFAULT
        if flags & !1 != 0 {
            return Err(INVALID);
        }
        let context = call.context_from(context)?.uid;
        let mut state = call.core.state.lock();
        let graph = state.graphs.uid(graph)?;
        let name = CONDITION | state.uid();
        let default = (flags & 1 != 0).then_some(default);
        let condition = Condition { graph, context, default, value: None };
        state.graphs.conditions.insert(name, condition);
        handle.set(name)
    }

    fn cuDeviceGraphMemTrim(call, device: CUdevice) {
        let device = call.core.device(device)?;
        let total = call.core.space.budget(device).total();
        if let Some(pool) = call.core.state.lock().graphs.pools.get_mut(&device) {
            pool.trim(total);
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
        let pool = state.graphs.pools.entry(device).or_default();
        // A high mark can only be set back to what is now, by 0.
        match attribute {
            A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH if zero => pool.used_high = pool.taken(),
            A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH if zero => pool.reserved_high = pool.taken(),
            _ => return Err(INVALID),
        }
        Ok(())
    }
}
