//! Graphs and executable graphs of a simulated driver, and the launch of one.
//!
//! A node holds a description of work that can be queued again and again. Instantiation copies a graph, with
//! the graphs of its child nodes put in their places, so later changes of the graph change nothing. A launch
//! puts the work of all nodes on the stream at once, in an order that the edges allow, and takes one
//! place in the queue. Only the race checker sees more: there each node knows what came before it in the
//! graph, and nothing else of its launch.

use super::launch::Launch;
use super::state::{Item, State};
use super::work::{HostCall, Record, Work};
use crate::check::VectorClock;
use crate::config::Mode;
use crate::core::{Core, Res, StreamRef};
use crate::graph::{DotNode, Edge, Graph, NodeId, Reach};
use crate::handles::{Handles, Kind};
use crate::heap::MemoryWork;
use crate::memory::{Allocation, Backing, Fill, Mapping, MemoryKind, Origin, Transfer};
use simtile_driver::sys::*;
use simtile_sync::{Arc, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A descriptor of a copy. Its pointers are values that are shown again; nobody follows them.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor(pub(crate) CUDA_MEMCPY3D);

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
        }
    }

    /// Whether an executable graph's node may become `new` without being made anew.
    pub(crate) fn may_become(&self, new: &Self) -> bool {
        use crate::memory::Place;
        let host = |place: &Place| !matches!(place, Place::Memory(_));
        match (self, new) {
            (Self::Kernel(old, _), Self::Kernel(new, _)) => old.context == new.context,
            (Self::Copy(old, _), Self::Copy(new, _)) => {
                host(&old.to.place) == host(&new.to.place) && host(&old.from.place) == host(&new.from.place)
            }
            // The memory is fixed when the graph is made.
            (Self::Alloc(old), Self::Alloc(new)) => Arc::ptr_eq(old, new),
            (Self::Free(old), Self::Free(new)) => old == new,
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
            Self::Values(ops) => {
                let mut lines = vec!["memory operations".to_owned()];
                lines.extend(ops.iter().map(|op| op.name().to_owned()));
                lines
            }
        }
    }
}

/// Memory of an allocation node: its address is fixed when the node is made.
pub(crate) struct GraphMemory {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) device: i32,
}

/// What is known of an allocation node's memory.
pub(crate) struct MemoryEntry {
    owner: Weak<GraphMemory>,
    bytes: u64,
    device: i32,
    /// Allocated by a launch and not freed since.
    outstanding: Option<Arc<Allocation>>,
    /// The last pending work on it.
    last: Option<Arc<Record>>,
}

/// Graph memory of a device, bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemoryStats {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
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
}

/// An executable graph.
pub(crate) struct ExecState {
    pub(crate) flags: u64,
    pub(crate) graph: Graph<ExecNode>,
    pub(crate) objects: Vec<Arc<UserObject>>,
    /// The end of its last launch.
    pub(crate) last: Option<Arc<Record>>,
}

impl ExecState {
    /// The node that was made from one of the graph's.
    pub(crate) fn node_mut(&mut self, key: NodeKey) -> Option<&mut ExecNode> {
        let id = self.graph.nodes().find(|(_, node)| node.key == Some(key))?.0;
        self.graph.get_mut(id)
    }
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
    pub(crate) stats: BTreeMap<i32, MemoryStats>,
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
            stats: BTreeMap::new(),
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
        if let NodeWork::Child(child) = work {
            self.destroy(child);
        }
        Ok(())
    }

    /// Takes a graph away.
    pub(crate) fn destroy(&mut self, uid: u64) {
        let Some(graph) = self.graphs.remove(&uid) else { return };
        let _ = self.graph_handles.remove(graph.handle.0);
        for handle in graph.nodes.values() {
            let _ = self.node_handles.remove(handle.0);
        }
        for (_, work) in graph.graph.nodes() {
            if let &NodeWork::Child(child) = work {
                self.destroy(child);
            }
        }
    }

    /// Whether a graph or a graph in it allocates or frees.
    pub(crate) fn has_memory_nodes(&self, uid: u64) -> bool {
        self.graphs.get(&uid).is_some_and(|graph| {
            graph.graph.nodes().any(|(_, work)| match work {
                NodeWork::Alloc(_) | NodeWork::Free(_) => true,
                &NodeWork::Child(child) => self.has_memory_nodes(child),
                _ => false,
            })
        })
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
            let node = ExecNode { key, work: work.clone(), enabled: true };
            let first = flat.add(node, &[]).map_err(|_| INVALID)?;
            let mut last = first;
            if let &NodeWork::Child(child) = work {
                let inner = self.flatten_into(child, flat)?;
                let end = ExecNode { key: None, work: NodeWork::Empty, enabled: true };
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
            if let &NodeWork::Child(child) = work {
                all.extend(self.objects_of(child));
            }
        }
        all
    }
}

/// What the nodes of one launch know of each other.
#[derive(Default)]
pub(crate) struct LaunchClocks {
    pub(crate) base: Option<VectorClock>,
    pub(crate) ends: Vec<Option<VectorClock>>,
}

/// What an item of a graph's launch is there.
pub(crate) struct GraphItem {
    /// None if nobody checks for races.
    pub(crate) clocks: Option<Arc<Mutex<LaunchClocks>>>,
    /// Number of the node in this launch; none for its end.
    pub(crate) node: Option<usize>,
    /// Axis of the node.
    pub(crate) lane: u64,
    /// Nodes that come directly before.
    pub(crate) before: Vec<usize>,
    /// What must live until the launch has ended.
    pub(crate) keep: Vec<Arc<UserObject>>,
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

/// Lines of nodes that follow each other: the number of the line of each node in `order`.
fn lanes(order: &[NodeId], reach: &Reach) -> Vec<usize> {
    let mut last: Vec<NodeId> = Vec::new();
    let lane_of = |&node: &NodeId| match last.iter().position(|&other| reach.comes_before(other, node)) {
        Some(lane) => {
            last[lane] = node;
            lane
        }
        None => {
            last.push(node);
            last.len() - 1
        }
    };
    order.iter().map(lane_of).collect()
}

impl Core {
    /// An allocation node's memory: addresses, and a name that later nodes can use.
    pub(crate) fn graph_memory(&self, state: &mut State, device: i32, bytes: u64) -> Res<Arc<GraphMemory>> {
        const OUT: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        if bytes > self.space.budget(device).total() {
            return Err(OUT);
        }
        let base = self.space.reserve_aligned(device, bytes, 512).ok_or(OUT)?;
        let memory = Arc::new(GraphMemory { base, bytes, device });
        let Some(allocation) = self.graph_allocation(base, bytes, device) else {
            self.space.unreserve(device, base);
            return Err(OUT);
        };
        self.space.name(&allocation);
        let entry =
            MemoryEntry { owner: Arc::downgrade(&memory), bytes, device, outstanding: None, last: None };
        state.graphs.memory.insert(base, entry);
        Ok(memory)
    }

    fn graph_allocation(&self, base: u64, bytes: u64, device: i32) -> Option<Arc<Allocation>> {
        let rights = crate::memory::Rights::none();
        rights.set(device, 3);
        Some(self.space.prepare(Mapping {
            base,
            bytes,
            kind: MemoryKind::Pool,
            device,
            origin: Origin::default(),
            backing: Arc::new(Backing::new(bytes)?),
            backing_offset: 0,
            rights: Some(rights),
            physical: None,
            multicast: None,
        }))
    }

    /// Forgets memory whose nodes are all gone and that is not allocated.
    pub(crate) fn sweep_graph_memory(&self, state: &mut State) {
        state.graphs.memory.retain(|&base, entry| {
            let pending = entry.last.as_ref().is_some_and(|last| !last.is_over());
            let keep = pending || entry.outstanding.is_some() || entry.owner.strong_count() > 0;
            if !keep {
                let _ = self.space.unname(base);
                self.space.unreserve(entry.device, base);
            }
            keep
        });
    }

    /// Frees what a graph's launch allocated, in the order of a stream, or of none. `None` if the address
    /// is none of a graph's.
    pub(crate) fn free_graph_memory(self: &Arc<Self>, base: u64, stream: Option<&StreamRef>) -> Option<Res> {
        let mut state = self.state.lock();
        let entry = state.graphs.memory.get_mut(&base)?;
        let (bytes, device) = (entry.bytes, entry.device);
        let Some(allocation) = entry.outstanding.take() else { return Some(Err(INVALID)) };
        let result = match stream {
            Some(stream) => {
                let record = Record::pending((stream.uid, 0), Default::default());
                let work = Work::Memory(MemoryWork::End(allocation.clone(), record.clone()));
                entry.last = Some(record);
                self.enqueue_locked(&mut state, stream, work)
            }
            None => {
                self.space.end(&allocation);
                Ok(())
            }
        };
        if result.is_ok() {
            let stats = state.graphs.stats.entry(device).or_default();
            stats.used = stats.used.saturating_sub(bytes);
        } else if let Some(entry) = state.graphs.memory.get_mut(&base) {
            entry.outstanding = Some(allocation);
        }
        self.sweep_graph_memory(&mut state);
        Some(result)
    }

    /// Puts the work of a graph on a stream.
    ///
    /// # Errors
    /// A capturing stream (its capture is dead then); memory of an earlier launch that is still
    /// allocated; the context's fault.
    pub(crate) fn launch_graph(self: &Arc<Self>, exec: CUgraphExec, stream: &StreamRef) -> Res {
        let mut state = self.state.lock();
        state.graphs.execs.get(exec.0).map_err(|_| INVALID)?;
        state.refuse_capturing(stream.uid)?;
        state.refuse_implicit(stream)?;
        self.take_place(&mut state, stream)?;
        self.context_health(&state, stream.context.uid)?;
        // It may have been destroyed while this call waited.
        let found = state.graphs.execs.get(exec.0).map_err(|_| INVALID)?;
        let (flags, flat, last) = (found.flags, found.graph.clone(), found.last.clone());
        let keep = found.objects.clone();
        let other_context = |work: &NodeWork| matches!(work, NodeWork::Kernel(launch, _) if launch.context != stream.context.uid);
        if flat.nodes().any(|(_, node)| node.enabled && other_context(&node.work)) {
            // A launch runs on one stream here, so on one device.
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let schedule = (self.config.mode == Mode::Explore).then(crate::explore::current).flatten();
        let order = flat.order(|n| schedule.as_ref().map_or(0, |schedule| schedule.choose(n)));
        let freed = self.check_graph_memory(&state, &flat, &order, flags)?;

        let host = state.order.host();
        let frontier = state.streams.get(&stream.uid).map(|s| s.frontier.clone()).unwrap_or_default();
        let mut items: Vec<(Work, Option<Arc<Record>>, Option<GraphItem>)> = Vec::new();
        if let Some(last) = last.filter(|last| !last.is_over()) {
            items.push((Work::After(last.clone()), Some(last), None));
        }
        for base in freed {
            self.take_graph_memory(&mut state, base, |allocation| {
                let record = Record::pending((stream.uid, 0), Default::default());
                items.push((Work::Memory(MemoryWork::End(allocation, record)), None, None));
            });
        }
        let clocks = self.config.checks.races.then(|| {
            let ends = vec![None; order.len()];
            Arc::new(Mutex::new(LaunchClocks { base: None, ends }))
        });
        let lanes = if clocks.is_some() { lanes(&order, &flat.reach()) } else { vec![0; order.len()] };
        let axes = self.lane_axes(&mut state, stream.uid, lanes.iter().max().map_or(1, |most| most + 1));
        let place: BTreeMap<NodeId, usize> = order.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        for (i, node) in order.iter().enumerate() {
            let Some(exec_node) = flat.get(*node) else { continue };
            let work = if exec_node.enabled { &exec_node.work } else { &NodeWork::Empty };
            let before: Vec<usize> = match clocks {
                Some(_) => flat.dependencies(*node).filter_map(|e| place.get(&e.from).copied()).collect(),
                None => Vec::new(),
            };
            for (work, record) in self.node_items(&mut state, stream, work)? {
                let lane = axes.get(lanes[i]).copied().unwrap_or(stream.uid);
                let (clocks, before) = (clocks.clone(), before.clone());
                let item = GraphItem { clocks, node: Some(i), lane, before, keep: Vec::new() };
                items.push((work, record, Some(item)));
            }
        }
        let end_seq = state.next_seq + items.len() as u64;
        let done = Record::pending((stream.uid, end_seq), frontier);
        for (_, node) in flat.nodes() {
            let base = match &node.work {
                NodeWork::Alloc(memory) => memory.base,
                NodeWork::Free(base) => *base,
                _ => continue,
            };
            if let Some(entry) = state.graphs.memory.get_mut(&base) {
                entry.last = Some(done.clone());
            }
        }
        let end = GraphItem { clocks, node: None, lane: stream.uid, before: Vec::new(), keep };
        items.push((Work::Record(0), Some(done.clone()), Some(end)));

        let first = state.next_seq;
        state.next_seq += items.len() as u64;
        let target = state.streams.get_mut(&stream.uid).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        for (seq, (work, record, graph)) in (first..).zip(items) {
            // The end holds the launch's one place.
            let counted = graph.as_ref().is_some_and(|graph| graph.node.is_none());
            target.counted += usize::from(counted);
            target.items.push_back(Item { seq, work, counted, record, host: host.clone(), graph });
        }
        state.active.insert(stream.uid);
        if let Some(context) = state.contexts.get_mut(&stream.context.uid) {
            context.counted += 1;
        }
        if let Ok(exec) = state.graphs.execs.get_mut(exec.0) {
            exec.last = Some(done);
        }
        self.kick(&mut state);
        if state.workers == 0 && state.active.contains(&stream.uid) {
            return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        }
        Ok(())
    }

    /// The axes of so many lines of nodes on a stream; the first is the stream's own.
    fn lane_axes(&self, state: &mut State, stream: u64, count: usize) -> Vec<u64> {
        let known = state.streams.get(&stream).map_or(0, |stream| stream.lanes.len());
        let new: Vec<u64> = (known + 1..count).map(|_| state.uid()).collect();
        let Some(target) = state.streams.get_mut(&stream) else { return vec![stream] };
        target.lanes.extend(new);
        std::iter::once(stream).chain(target.lanes.iter().copied()).collect()
    }

    /// Which memory of an earlier launch is to be freed first.
    ///
    /// # Errors
    /// There is some and nobody asked for that; a free of what is not allocated.
    fn check_graph_memory(
        &self,
        state: &State,
        flat: &Graph<ExecNode>,
        order: &[NodeId],
        flags: u64,
    ) -> Res<Vec<u64>> {
        let auto = flags
            & u64::from(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0)
            != 0;
        let mut freed = Vec::new();
        let mut allocated = BTreeSet::new();
        for work in order.iter().filter_map(|&node| flat.get(node)).map(|node| &node.work) {
            match work {
                NodeWork::Alloc(memory) => {
                    let entry = state.graphs.memory.get(&memory.base).ok_or(INVALID)?;
                    if entry.outstanding.is_some() {
                        if !auto {
                            return Err(INVALID);
                        }
                        freed.push(memory.base);
                    }
                    allocated.insert(memory.base);
                }
                NodeWork::Free(base) if !allocated.remove(base) => {
                    let entry = state.graphs.memory.get(base).ok_or(INVALID)?;
                    entry.outstanding.as_ref().ok_or(INVALID)?;
                }
                _ => {}
            }
        }
        Ok(freed)
    }

    fn take_graph_memory(&self, state: &mut State, base: u64, with: impl FnOnce(Arc<Allocation>)) {
        let Some(entry) = state.graphs.memory.get_mut(&base) else { return };
        let (bytes, device) = (entry.bytes, entry.device);
        if let Some(allocation) = entry.outstanding.take() {
            let stats = state.graphs.stats.entry(device).or_default();
            stats.used = stats.used.saturating_sub(bytes);
            with(allocation);
        }
    }

    /// What a node puts on the stream.
    fn node_items(
        &self,
        state: &mut State,
        stream: &StreamRef,
        work: &NodeWork,
    ) -> Res<Vec<(Work, Option<Arc<Record>>)>> {
        let nothing = || Work::Memory(MemoryWork::Place);
        let one = |work| vec![(work, None)];
        Ok(match work {
            NodeWork::Kernel(launch, _) => one(Work::Launch(launch.clone())),
            NodeWork::Copy(copy, _) if copy.is_empty() => one(nothing()),
            NodeWork::Copy(copy, _) => one(Work::Memory(MemoryWork::Transfer(copy.clone()))),
            NodeWork::Set(fill, _) if fill.width == 0 || fill.height == 0 => one(nothing()),
            NodeWork::Set(fill, _) => one(Work::Memory(MemoryWork::Fill(*fill))),
            NodeWork::Host(call) => one(Work::Host(*call)),
            NodeWork::Child(_) | NodeWork::Empty => one(nothing()),
            NodeWork::Wait(event) => match state.events.get(event).and_then(|event| event.record.clone()) {
                Some(record) => vec![(Work::After(record.clone()), Some(record))],
                None => one(nothing()),
            },
            NodeWork::Record(event) => {
                let frontier = state.streams.get(&stream.uid).map(|s| s.frontier.clone()).unwrap_or_default();
                // Numbered as the last work before the launch: a safe guess for whoever wants memory again.
                let record = Record::pending((stream.uid, state.next_seq.saturating_sub(1)), frontier);
                match state.events.get_mut(event) {
                    Some(event) => {
                        event.record = Some(record.clone());
                        event.captured = None;
                        vec![(Work::Record(0), Some(record))]
                    }
                    // It was destroyed after the graph was made.
                    None => one(nothing()),
                }
            }
            NodeWork::Alloc(memory) => {
                let allocation = self
                    .graph_allocation(memory.base, memory.bytes, memory.device)
                    .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
                self.space.name(&allocation);
                if let Some(entry) = state.graphs.memory.get_mut(&memory.base) {
                    entry.outstanding = Some(allocation.clone());
                }
                let stats = state.graphs.stats.entry(memory.device).or_default();
                stats.used += memory.bytes;
                stats.used_high = stats.used_high.max(stats.used);
                stats.reserved = stats.reserved.max(stats.used);
                stats.reserved_high = stats.reserved_high.max(stats.reserved);
                one(Work::Memory(MemoryWork::Begin(allocation)))
            }
            NodeWork::Free(base) => {
                let mut items = Vec::new();
                self.take_graph_memory(state, *base, |allocation| {
                    let record = Record::pending((stream.uid, 0), Default::default());
                    items = one(Work::Memory(MemoryWork::End(allocation, record)));
                });
                items
            }
            NodeWork::Values(ops) => ops.iter().map(|op| (op.clone(), None)).collect(),
        })
    }
}
