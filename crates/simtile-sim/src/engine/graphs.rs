//! Graphs and executable graphs of a simulated driver.
//!
//! A node holds a description of work that can be queued again and again. Instantiation copies a graph, with
//! the graphs of its child nodes put in their places and those of conditional nodes kept with them, so later changes
//! of the graph change nothing. `graph_launch` has the launch, `graph_memory` the memory of allocation nodes.

use super::graph_memory::{GraphMemory, GraphPool, MemoryEntry};
use super::launch::Launch;
use super::state::State;
use super::work::{HostCall, Record, Work};
use crate::core::{Core, Res};
use crate::graph::{DotNode, Edge, Graph, NodeId};
use crate::handles::{Handles, Kind};
use crate::memory::{Fill, Transfer};
use simtile_driver::sys::*;
use simtile_sync::Arc;
use std::collections::BTreeMap;
use std::sync::Weak;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A descriptor of a copy. Its pointers are values that are shown again; nobody follows them.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor(pub(crate) CUDA_MEMCPY3D);

impl Descriptor {
    /// Whether the ends stay in memory of their kinds, as far as both say what it is.
    fn may_become(&self, new: &Self) -> bool {
        const UNIFIED: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
        let same = |a: CUmemorytype, b: CUmemorytype| a == b || a == UNIFIED || b == UNIFIED;
        same(self.0.srcMemoryType, new.0.srcMemoryType) && same(self.0.dstMemoryType, new.0.dstMemoryType)
    }
}

// SAFETY: plain values; the pointers are never dereferenced.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

/// What a node does.
#[derive(Clone)]
pub(crate) enum NodeWork {
    /// A kernel, with the addresses of its parameters for those who ask.
    Kernel(Arc<Launch>, Arc<[usize]>),
    Copy(Arc<Transfer>, Descriptor),
    Set(Fill, CUDA_MEMSET_NODE_PARAMS),
    Host(HostCall),
    /// The graph with this uid, which belongs to the node.
    Child(u64),
    Empty,
    /// By uid of the event.
    Wait(u64),
    Record(u64),
    Alloc(Arc<GraphMemory>),
    Free(u64),
    /// Wait-values and write-values.
    Values(Arc<[Work]>),
    Conditional(Arc<Conditional>),
}

/// A conditional node.
pub(crate) struct Conditional {
    pub(crate) condition: u64,
    pub(crate) kind: CUgraphConditionalNodeType,
    /// Uids of its bodies, which belong to it, and their handles, shown as long as the node lives.
    pub(crate) bodies: Vec<u64>,
    pub(crate) handles: Box<[CUgraph]>,
}

/// The graph of a condition whose graph was destroyed.
pub(crate) const NO_GRAPH: u64 = 0;

/// A condition of a graph.
pub(crate) struct Condition {
    /// Its uid, or [`NO_GRAPH`].
    pub(crate) graph: u64,
    pub(crate) context: u64,
    /// What a launch sets it to.
    pub(crate) default: Option<u32>,
    pub(crate) value: Option<u32>,
}

impl NodeWork {
    pub(crate) fn kernel(launch: Arc<Launch>) -> Self {
        let start = launch.params.as_ptr().expose_provenance();
        let list = launch.param_offsets().map(|offset| start + offset).collect();
        Self::Kernel(launch, list)
    }

    pub(crate) fn kind(&self) -> CUgraphNodeType {
        match self {
            Self::Kernel(..) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Copy(..) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Set(..) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST,
            Self::Child(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
            Self::Empty => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Wait(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::Record(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::Alloc(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::Free(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::Values(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Self::Conditional(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL,
        }
    }

    /// Whether its parameters can be set anew: memory and inner graphs are fixed when the node is made.
    pub(crate) fn can_be_set(&self) -> bool {
        !matches!(self, Self::Alloc(_) | Self::Free(_) | Self::Child(_) | Self::Conditional(_))
    }

    /// Graphs that belong to the node.
    pub(crate) fn inner(&self) -> &[u64] {
        match self {
            Self::Child(child) => std::slice::from_ref(child),
            Self::Conditional(node) => &node.bodies,
            _ => &[],
        }
    }

    /// Whether an executable graph's node may become `new` without being made anew.
    pub(crate) fn may_become(&self, new: &Self) -> bool {
        use crate::memory::Place;
        let host = |place: &Place| !matches!(place, Place::Memory(_));
        match (self, new) {
            (Self::Kernel(old, _), Self::Kernel(new, _)) => old.context == new.context,
            (Self::Copy(old, a), Self::Copy(new, b)) => {
                host(&old.to.place) == host(&new.to.place)
                    && host(&old.from.place) == host(&new.from.place)
                    && a.may_become(b)
            }
            (Self::Set(old, _), Self::Set(new, _)) => (old.height > 1) == (new.height > 1),
            // The memory is fixed when the graph is made.
            (Self::Alloc(old), Self::Alloc(new)) => Arc::ptr_eq(old, new),
            (Self::Free(old), Self::Free(new)) => old == new,
            (Self::Conditional(old), Self::Conditional(new)) => {
                old.kind == new.kind && old.bodies.len() == new.bodies.len()
            }
            _ => self.kind() == new.kind(),
        }
    }
}

impl DotNode for NodeWork {
    fn describe(&self) -> Vec<String> {
        match self {
            Self::Kernel(launch, _) => {
                let [x, y, z] = launch.grid;
                let [bx, by, bz] = launch.block;
                vec![
                    "kernel".into(),
                    launch.name().to_owned(),
                    format!("grid {x} x {y} x {z}, block {bx} x {by} x {bz}"),
                ]
            }
            Self::Copy(copy, _) => vec!["copy".into(), format!("{} bytes", copy.bytes())],
            Self::Set(fill, _) => vec![
                "memset".into(),
                format!("{:#x}: {} x {} of {:?}", fill.address, fill.width, fill.height, fill.pattern),
            ],
            Self::Host(_) => vec!["host function".into()],
            Self::Child(_) => vec!["child graph".into()],
            Self::Empty => vec!["empty".into()],
            Self::Wait(_) => vec!["event wait".into()],
            Self::Record(_) => vec!["event record".into()],
            Self::Alloc(memory) => {
                vec!["allocation".into(), format!("{} bytes at {:#x}", memory.bytes, memory.base)]
            }
            Self::Free(base) => vec!["free".into(), format!("{base:#x}")],
            Self::Conditional(node) => {
                let kind = match node.kind {
                    CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE => "while",
                    CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH => "switch",
                    _ => "if",
                };
                vec![format!("conditional: {kind}"), format!("condition {:#x}", node.condition)]
            }
            Self::Values(ops) => {
                let mut lines = vec!["memory operations".to_owned()];
                lines.extend(ops.iter().map(|op| op.name().to_owned()));
                lines
            }
        }
    }
}

/// A graph.
pub(crate) struct GraphState {
    pub(crate) handle: CUgraph,
    pub(crate) graph: Graph<NodeWork>,
    pub(crate) nodes: BTreeMap<NodeId, CUgraphNode>,
    /// It belongs to a child node.
    pub(crate) owned: bool,
    /// For clones: uid of the original, and each node's original.
    pub(crate) original: Option<(u64, BTreeMap<NodeId, NodeId>)>,
    /// User objects by handle, with the number of references held.
    pub(crate) objects: BTreeMap<usize, (u32, Arc<UserObject>)>,
}

/// A node by its graph's uid and its number there.
pub(crate) type NodeKey = (u64, NodeId);

/// A node of an executable graph.
#[derive(Clone)]
pub(crate) struct ExecNode {
    /// The node it was made from; none for the ends of child graphs.
    pub(crate) key: Option<NodeKey>,
    pub(crate) work: NodeWork,
    pub(crate) enabled: bool,
    /// The bodies of a conditional node.
    pub(crate) bodies: Vec<Arc<Graph<ExecNode>>>,
}

/// An executable graph.
pub(crate) struct ExecState {
    /// Uid of the graph that it was made from.
    pub(crate) source: u64,
    pub(crate) flags: u64,
    pub(crate) graph: Graph<ExecNode>,
    pub(crate) objects: Vec<Arc<UserObject>>,
    /// Conditions that its nodes read, and what a launch sets them to.
    pub(crate) conditions: Arc<[(u64, Option<u32>)]>,
    /// The end of its last launch.
    pub(crate) last: Option<Arc<Record>>,
}

impl ExecState {
    /// The node that was made from one of the graph's.
    pub(crate) fn node_mut(&mut self, key: NodeKey) -> Option<&mut ExecNode> {
        find_mut(&mut self.graph, key)
    }
}

fn find_mut(graph: &mut Graph<ExecNode>, key: NodeKey) -> Option<&mut ExecNode> {
    let holds = |node: &ExecNode| node.bodies.iter().any(|body| holds_key(body, key));
    let id = graph.nodes().find(|(_, node)| node.key == Some(key) || holds(node))?.0;
    let node = graph.get_mut(id)?;
    if node.key == Some(key) {
        return Some(node);
    }
    let body = node.bodies.iter_mut().find(|body| holds_key(body, key))?;
    find_mut(Arc::make_mut(body), key)
}

fn holds_key(graph: &Graph<ExecNode>, key: NodeKey) -> bool {
    let holds =
        |node: &ExecNode| node.key == Some(key) || node.bodies.iter().any(|body| holds_key(body, key));
    graph.nodes().any(|(_, node)| holds(node))
}

/// An object of the user's whose destructor is called when nobody refers to it any more: neither the user, nor a
/// graph, an executable graph or a pending launch. As on the real driver that is done on a thread of the
/// driver's own, where no driver call is allowed.
pub(crate) struct UserObject {
    pub(crate) call: HostCall,
    pub(crate) core: Weak<Core>,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // At the end of the driver nothing is called, as at the end of a process.
        let Some(core) = self.core.upgrade() else { return };
        let (call, id) = (self.call, core.id);
        let run = move || {
            let _inside = crate::entry::enter_host_function(id);
            if let Some(function) = call.function {
                // SAFETY: `cuUserObjectCreate`'s caller said that this may be called once, when nobody
                // refers to the object any more.
                unsafe { function(std::ptr::with_exposed_provenance_mut(call.data)) };
            }
        };
        // Without a thread the object leaks: calling under the driver's locks could deadlock.
        let _ = simtile_sync::thread::spawn("user-object", run);
    }
}

/// A user object with the references that the user holds.
pub(crate) struct ObjectState {
    pub(crate) object: Weak<UserObject>,
    /// Held while the user has references.
    pub(crate) own: Option<Arc<UserObject>>,
    /// The user's own references.
    pub(crate) count: u32,
}

/// All graphs.
pub(crate) struct GraphStore {
    pub(crate) graph_handles: Handles<u64>,
    pub(crate) graphs: BTreeMap<u64, GraphState>,
    pub(crate) node_handles: Handles<NodeKey>,
    pub(crate) execs: Handles<ExecState>,
    pub(crate) objects: Handles<ObjectState>,
    pub(crate) memory: BTreeMap<u64, MemoryEntry>,
    pub(crate) pools: BTreeMap<i32, GraphPool>,
    pub(crate) conditions: BTreeMap<u64, Condition>,
    pub(crate) captures: BTreeMap<u64, super::capture::Capture>,
}

impl GraphStore {
    pub(crate) fn new(simulator: u64) -> Self {
        Self {
            graph_handles: Handles::new(Kind::Graph, simulator),
            graphs: BTreeMap::new(),
            node_handles: Handles::new(Kind::GraphNode, simulator),
            execs: Handles::new(Kind::GraphExec, simulator),
            objects: Handles::new(Kind::UserObject, simulator),
            memory: BTreeMap::new(),
            pools: BTreeMap::new(),
            conditions: BTreeMap::new(),
            captures: BTreeMap::new(),
        }
    }

    /// The graph behind a handle.
    pub(crate) fn uid(&self, graph: CUgraph) -> Res<u64> {
        self.graph_handles.get(graph.0).copied().map_err(|_| INVALID)
    }

    pub(crate) fn graph(&self, uid: u64) -> Res<&GraphState> {
        self.graphs.get(&uid).ok_or(INVALID)
    }

    pub(crate) fn graph_mut(&mut self, uid: u64) -> Res<&mut GraphState> {
        self.graphs.get_mut(&uid).ok_or(INVALID)
    }

    /// The node behind a handle.
    pub(crate) fn key(&self, node: CUgraphNode) -> Res<NodeKey> {
        self.node_handles.get(node.0).copied().map_err(|_| INVALID)
    }

    pub(crate) fn node(&self, key: NodeKey) -> Res<&NodeWork> {
        self.graph(key.0)?.graph.get(key.1).ok_or(INVALID)
    }

    /// Nodes of one graph, by handle.
    pub(crate) fn nodes_of(&self, graph: u64, nodes: &[CUgraphNode]) -> Res<Vec<NodeId>> {
        let of = |&node| self.key(node).ok().filter(|key| key.0 == graph).map(|key| key.1).ok_or(INVALID);
        nodes.iter().map(of).collect()
    }

    /// Makes a graph with this uid.
    pub(crate) fn create(&mut self, uid: u64, owned: bool) -> Res<CUgraph> {
        let handle = CUgraph(self.graph_handles.insert(uid).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?);
        let (graph, nodes, objects) = (Graph::new(), BTreeMap::new(), BTreeMap::new());
        self.graphs.insert(uid, GraphState { handle, graph, nodes, owned, original: None, objects });
        Ok(handle)
    }

    /// Adds a node.
    pub(crate) fn add(
        &mut self,
        uid: u64,
        work: NodeWork,
        dependencies: &[(NodeId, [u8; 3])],
    ) -> Res<(NodeId, CUgraphNode)> {
        let graph = self.graphs.get_mut(&uid).ok_or(INVALID)?;
        let id = graph.graph.add(work, dependencies).map_err(|_| INVALID)?;
        let Some(handle) = self.node_handles.insert((uid, id)) else {
            let _ = graph.graph.remove(id);
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        };
        graph.nodes.insert(id, CUgraphNode(handle));
        Ok((id, CUgraphNode(handle)))
    }

    /// Takes a node away, and the graph of a child node.
    pub(crate) fn remove(&mut self, key: NodeKey) -> Res {
        let graph = self.graph_mut(key.0)?;
        let work = graph.graph.remove(key.1).map_err(|_| INVALID)?;
        if let Some(handle) = graph.nodes.remove(&key.1) {
            let _ = self.node_handles.remove(handle.0);
        }
        self.drop_inner(&work);
        Ok(())
    }

    /// Takes a graph away.
    pub(crate) fn destroy(&mut self, uid: u64) {
        let Some(graph) = self.graphs.remove(&uid) else { return };
        let _ = self.graph_handles.remove(graph.handle.0);
        for handle in graph.nodes.values() {
            let _ = self.node_handles.remove(handle.0);
        }
        // Executables that were made of it, and their launches in flight, go on with its conditions; new nodes cannot have them.
        let of_it = self.conditions.values_mut().filter(|condition| condition.graph == uid);
        of_it.for_each(|condition| condition.graph = NO_GRAPH);
        graph.graph.nodes().for_each(|(_, work)| self.drop_inner(work));
    }

    /// A node's work is gone: its graphs go too.
    pub(crate) fn drop_inner(&mut self, work: &NodeWork) {
        work.inner().iter().for_each(|&graph| self.destroy(graph));
    }

    /// Whether a graph, or one in it, has a node of which this holds.
    pub(crate) fn has_node(&self, uid: u64, of: fn(&NodeWork) -> bool) -> bool {
        self.graphs.get(&uid).is_some_and(|graph| {
            let mut nodes = graph.graph.nodes();
            nodes.any(|(_, work)| of(work) || work.inner().iter().any(|&inner| self.has_node(inner, of)))
        })
    }

    /// Whether a graph may not be copied: memory and conditions are one launch's at a time.
    pub(crate) fn is_unique(&self, uid: u64) -> bool {
        self.has_node(uid, |work| {
            matches!(work, NodeWork::Alloc(_) | NodeWork::Free(_) | NodeWork::Conditional(_))
        })
    }

    /// A node, in a body of a conditional node, that no body can hold: anything but kernels, copies, memsets, empty
    /// nodes, child graphs and conditional nodes.
    pub(crate) fn bad_node(&self, uid: u64, inside: bool) -> Option<CUgraphNode> {
        let graph = self.graphs.get(&uid)?;
        graph.graph.nodes().find_map(|(id, work)| match work {
            NodeWork::Conditional(node) => node.bodies.iter().find_map(|&body| self.bad_node(body, true)),
            &NodeWork::Child(child) => self.bad_node(child, inside),
            NodeWork::Kernel(..) | NodeWork::Copy(..) | NodeWork::Set(..) | NodeWork::Empty => None,
            _ if inside => graph.nodes.get(&id).copied(),
            _ => None,
        })
    }

    /// Whether a condition was made for the graph and no node reads it.
    pub(crate) fn has_unused_condition(&self, uid: u64, read: &[(u64, Option<u32>)]) -> bool {
        let unused = |name: &u64| read.iter().all(|(other, _)| other != name);
        self.conditions.iter().any(|(name, condition)| condition.graph == uid && unused(name))
    }

    /// Whether a graph has memory of its own, so that it cannot be taken apart.
    pub(crate) fn has_memory(&self, uid: u64) -> bool {
        self.has_node(uid, |work| matches!(work, NodeWork::Alloc(_) | NodeWork::Free(_)))
    }

    /// Whether any graph frees the memory at this address.
    pub(crate) fn frees(&self, address: u64) -> bool {
        let of = |work: &NodeWork| matches!(work, NodeWork::Free(base) if *base == address);
        self.graphs.values().any(|graph| graph.graph.nodes().any(|(_, work)| of(work)))
    }

    /// Conditions that the nodes of an executable graph read, and their defaults.
    pub(crate) fn conditions_of(&self, flat: &Graph<ExecNode>) -> Vec<(u64, Option<u32>)> {
        let mut all = Vec::new();
        for (_, node) in flat.nodes() {
            if let NodeWork::Conditional(work) = &node.work {
                let default = self.conditions.get(&work.condition).and_then(|condition| condition.default);
                all.push((work.condition, default));
            }
            node.bodies.iter().for_each(|body| all.extend(self.conditions_of(body)));
        }
        all
    }

    /// The nodes of a graph and of the graphs in it, with the edges between them.
    pub(crate) fn flatten(&self, uid: u64) -> Res<Graph<ExecNode>> {
        let mut flat = Graph::new();
        self.flatten_into(uid, &mut flat)?;
        Ok(flat)
    }

    /// First and last node of each of the graph's nodes in `flat`.
    fn flatten_into(&self, uid: u64, flat: &mut Graph<ExecNode>) -> Res<BTreeMap<NodeId, (NodeId, NodeId)>> {
        let graph = &self.graph(uid)?.graph;
        let full = |from, to| Edge { from, to, data: [0; 3] };
        let mut places = BTreeMap::new();
        for (id, work) in graph.nodes() {
            let key = Some((uid, id));
            let bodies = match work {
                NodeWork::Conditional(node) => node
                    .bodies
                    .iter()
                    .map(|&body| Ok(Arc::new(self.flatten(body)?)))
                    .collect::<Res<Vec<_>>>()?,
                _ => Vec::new(),
            };
            let node = ExecNode { key, work: work.clone(), enabled: true, bodies };
            let first = flat.add(node, &[]).map_err(|_| INVALID)?;
            let mut last = first;
            if let &NodeWork::Child(child) = work {
                let inner = self.flatten_into(child, flat)?;
                let (key, work, bodies) = (None, NodeWork::Empty, Vec::new());
                let end = ExecNode { key, work, enabled: true, bodies };
                last = flat.add(end, &[]).map_err(|_| INVALID)?;
                flat.connect_known(full(first, last));
                let child = &self.graph(child)?.graph;
                let roots = child.roots().filter_map(|root| inner.get(&root));
                roots.for_each(|&(root, _)| flat.connect_known(full(first, root)));
                let leaves = child.leaves().filter_map(|leaf| inner.get(&leaf));
                leaves.for_each(|&(_, leaf)| flat.connect_known(full(leaf, last)));
            }
            places.insert(id, (first, last));
        }
        for edge in graph.edges() {
            if let (Some(from), Some(to)) = (places.get(&edge.from), places.get(&edge.to)) {
                flat.connect_known(Edge { from: from.1, to: to.0, data: edge.data });
            }
        }
        Ok(places)
    }

    /// User objects of a graph and of the graphs in it.
    pub(crate) fn objects_of(&self, uid: u64) -> Vec<Arc<UserObject>> {
        let Some(graph) = self.graphs.get(&uid) else { return Vec::new() };
        let mut all: Vec<_> = graph.objects.values().map(|(_, object)| object.clone()).collect();
        for (_, work) in graph.graph.nodes() {
            work.inner().iter().for_each(|&inner| all.extend(self.objects_of(inner)));
        }
        all
    }
}

impl State {
    /// A copy of a graph, and of the graphs in it, under a new uid.
    pub(crate) fn clone_graph(&mut self, original: u64, owned: bool) -> Res<(u64, CUgraph)> {
        let uid = self.uid();
        let handle = self.graphs.create(uid, owned)?;
        let source = self.graphs.graph(original)?;
        let nodes: Vec<(NodeId, NodeWork)> =
            source.graph.nodes().map(|(id, work)| (id, work.clone())).collect();
        let edges: Vec<Edge> = source.graph.edges().collect();
        let objects = source.objects.clone();
        let mut new_of = BTreeMap::new();
        for (id, work) in nodes {
            let work = match work {
                NodeWork::Child(child) => NodeWork::Child(self.clone_graph(child, true)?.0),
                other => other,
            };
            new_of.insert(id, self.graphs.add(uid, work, &[])?.0);
        }
        let graph = self.graphs.graph_mut(uid)?;
        for edge in edges {
            if let (Some(&from), Some(&to)) = (new_of.get(&edge.from), new_of.get(&edge.to)) {
                graph.graph.connect_known(Edge { from, to, data: edge.data });
            }
        }
        graph.original = Some((original, new_of.into_iter().map(|(old, new)| (new, old)).collect()));
        graph.objects = objects;
        Ok((uid, handle))
    }
}
