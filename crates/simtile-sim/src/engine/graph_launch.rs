//! Launches of graphs: the items that a launch puts on its stream, and those that conditional nodes add.
//!
//! A launch puts the work of all nodes on the stream at once, in an order that the edges allow, and takes one
//! place in the queue. Nodes of another context run as work of that context's device. A conditional node looks at its condition when it is its turn and puts a body's nodes before what
//! comes next. Only the race checker sees more: there each node knows what came before it in the graph, and nothing else
//! of its launch.

use super::capture::{LAUNCH_PORT, PROGRAMMATIC_PORT};
use super::graphs::{ExecNode, NodeWork, UserObject};
use super::state::{Item, State};
use super::work::{Record, Work};
use crate::check::VectorClock;
use crate::config::Mode;
use crate::core::{Core, Res, StreamRef};
use crate::graph::{Edge, Graph, NodeId, Reach};
use crate::heap::MemoryWork;
use crate::report::{Report, ReportKind};
use simtile_driver::sys::*;
use simtile_sync::{Arc, Mutex};
use std::collections::BTreeMap;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// What the nodes of one launch know of each other.
#[derive(Default)]
pub(crate) struct LaunchClocks {
    pub(crate) base: Option<VectorClock>,
    pub(crate) ends: Vec<Option<VectorClock>>,
    /// What each node knew when it started.
    pub(crate) starts: Vec<Option<VectorClock>>,
}

impl LaunchClocks {
    fn new(base: Option<VectorClock>, nodes: usize) -> Self {
        Self { base, ends: vec![None; nodes], starts: vec![None; nodes] }
    }
}

/// A node that comes directly before another one.
#[derive(Clone, Copy)]
pub(crate) struct Predecessor {
    pub(crate) node: usize,
    /// The other one may start while it still runs.
    pub(crate) early: bool,
}

/// What an item of a graph's launch is there.
pub(crate) struct GraphItem {
    /// None if nobody checks for races.
    pub(crate) clocks: Option<Clocks>,
    /// Number of the node in this launch; none for its end.
    pub(crate) node: Option<usize>,
    /// Axis of the node.
    pub(crate) lane: u64,
    /// Nodes that come directly before.
    pub(crate) before: Vec<Predecessor>,
    /// What must live until the launch has ended.
    pub(crate) keep: Vec<Arc<UserObject>>,
    /// A run of a body that ends here: the node follows all of its nodes.
    pub(crate) joins: Option<Clocks>,
}

type Clocks = Arc<Mutex<LaunchClocks>>;

/// A conditional node of a launch. When it is its turn it looks at the condition and puts the nodes of a body behind it.
pub(crate) struct Branch {
    condition: u64,
    kind: CUgraphConditionalNodeType,
    bodies: Vec<Arc<Graph<ExecNode>>>,
    /// The first of the stream's axes that nodes of its bodies have to themselves.
    lane: usize,
}

/// One run of a graph's nodes: the launch, or a body's.
struct Run {
    clocks: Option<Clocks>,
    lane: usize,
}

/// Work of a node, what it completes or waits for, and its place.
type NodeItem = (Work, Option<Arc<Record>>, Option<GraphItem>);

/// After so many rounds of a loop nobody expects an end.
const MOST_ROUNDS: u64 = 1 << 20;

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

/// How many axes the nodes of a graph want, with those of its conditional nodes' bodies.
fn width(flat: &Graph<ExecNode>) -> usize {
    let own = lanes(&flat.order(|_| 0), &flat.reach()).iter().max().map_or(0, |most| most + 1);
    own + flat.nodes().map(|(_, node)| widest(&node.bodies)).sum::<usize>()
}

fn widest(bodies: &[Arc<Graph<ExecNode>>]) -> usize {
    bodies.iter().map(|body| width(body)).max().unwrap_or(0)
}

impl Core {
    /// Puts the work of a graph on a stream.
    ///
    /// # Errors
    /// A capturing stream (its capture is dead then); memory of an earlier launch that is still
    /// allocated, or no memory left; the context's fault.
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
        let (keep, conditions) = (found.objects.clone(), found.conditions.clone());
        let order = self.node_order(&flat);
        let freed = self.check_graph_memory(&mut state, &flat, &order, flags)?;

        let host = state.order.host();
        let frontier = state.streams.get(&stream.uid).map(|s| s.frontier.clone()).unwrap_or_default();
        let mut items: Vec<NodeItem> = Vec::new();
        if let Some(last) = last.filter(|last| !last.is_over()) {
            items.push((Work::After(last.clone()), Some(last), None));
        }
        if !conditions.is_empty() {
            items.push((Work::Conditions(conditions), None, None));
        }
        for base in freed {
            self.take_graph_memory(&mut state, base, |allocation| {
                let record = Record::pending((stream.uid, 0), Default::default());
                items.push((Work::Memory(MemoryWork::End(allocation, record)), None, None));
            });
        }
        let clocks =
            self.config.checks.races.then(|| Arc::new(Mutex::new(LaunchClocks::new(None, order.len()))));
        let run = Run { clocks: clocks.clone(), lane: 0 };
        items.extend(self.run_items(&mut state, stream.uid, &flat, &order, &run)?);
        let end_seq = state.next_seq + items.len() as u64;
        let done = Record::pending((stream.uid, end_seq), frontier);
        self.use_graph_memory(&mut state, &flat, &done);
        let end = GraphItem { clocks, node: None, lane: stream.uid, before: Vec::new(), keep, joins: None };
        items.push((Work::Record(0), Some(done.clone()), Some(end)));

        let first = state.next_seq;
        state.next_seq += items.len() as u64;
        for (seq, (work, ..)) in (first..).zip(&items) {
            self.watch_host(&mut state, seq, work);
        }
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

    /// An order that the edges allow; an exploration chooses one.
    fn node_order(&self, flat: &Graph<ExecNode>) -> Vec<NodeId> {
        let schedule = (self.config.mode == Mode::Explore).then(crate::explore::current).flatten();
        flat.order(|n| schedule.as_ref().map_or(0, |schedule| schedule.choose(n)))
    }

    /// The items of one run of a graph's nodes, in this order.
    fn run_items(
        &self,
        state: &mut State,
        stream: u64,
        flat: &Graph<ExecNode>,
        order: &[NodeId],
        run: &Run,
    ) -> Res<Vec<NodeItem>> {
        let lanes = if run.clocks.is_some() { lanes(order, &flat.reach()) } else { vec![0; order.len()] };
        let mut free = run.lane + lanes.iter().max().map_or(1, |most| most + 1);
        let axes = self.lane_axes(state, stream, free);
        let place: BTreeMap<NodeId, usize> = order.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        let mut items = Vec::new();
        for (i, node) in order.iter().enumerate() {
            let Some(exec_node) = flat.get(*node) else { continue };
            let early = |edge: &Edge| match flat.get(edge.from).map(|node| (&node.work, node.enabled)) {
                Some((NodeWork::Kernel(launch, _), true)) => match edge.data[0] {
                    LAUNCH_PORT => true,
                    PROGRAMMATIC_PORT => launch.dependency().launches_dependents,
                    _ => false,
                },
                _ => false,
            };
            let before: Vec<Predecessor> = match run.clocks {
                Some(_) => flat
                    .dependencies(*node)
                    .filter_map(|e| Some(Predecessor { node: *place.get(&e.from)?, early: early(&e) }))
                    .collect(),
                None => Vec::new(),
            };
            let works = if exec_node.enabled {
                self.node_items(state, stream, exec_node, free)?
            } else {
                vec![(Work::Memory(MemoryWork::Place), None)]
            };
            if run.clocks.is_some() {
                free += widest(&exec_node.bodies);
            }
            for (work, record) in works {
                let lane = axes.get(run.lane + lanes[i]).copied().unwrap_or(stream);
                let (clocks, before) = (run.clocks.clone(), before.clone());
                let item = GraphItem { clocks, node: Some(i), lane, before, keep: Vec::new(), joins: None };
                items.push((work, record, Some(item)));
            }
        }
        Ok(items)
    }

    /// A conditional node's turn, first on its stream: what comes behind it.
    ///
    /// # Errors
    /// The report of a loop without an end.
    pub(super) fn branch_items(
        &self,
        state: &mut State,
        stream: u64,
        branch: &Arc<Branch>,
        rounds: u64,
    ) -> Result<Vec<Item>, Box<Report>> {
        type Kind = CUgraphConditionalNodeType;
        let value = state.graphs.conditions.get(&branch.condition).and_then(|condition| condition.value);
        let name = state.stream_name(stream);
        if value.is_none() {
            let text = "a conditional node reads a condition that nothing has set in this launch".to_owned();
            self.report(Report::new(ReportKind::UninitialisedRead, text).on_stream(Some(name.clone())));
        }
        let value = value.unwrap_or(0);
        let body = match branch.kind {
            Kind::CU_GRAPH_COND_TYPE_SWITCH => branch.bodies.get(value as usize),
            Kind::CU_GRAPH_COND_TYPE_WHILE if value == 0 => None,
            _ => branch.bodies.get(usize::from(value == 0)),
        };
        let front = state.streams.get(&stream).and_then(|stream| stream.items.front());
        let (Some(body), Some(front)) = (body, front) else { return Ok(Vec::new()) };
        if rounds >= MOST_ROUNDS {
            let text =
                format!("the body of a conditional node has run {rounds} times: the loop does not end");
            return Err(Box::new(Report::new(ReportKind::KernelFault, text).on_stream(Some(name))));
        }
        let (seq, host) = (front.seq, front.host.clone());
        let outer = front.graph.as_ref();
        let (outer_clocks, node) = outer.map_or((None, None), |outer| (outer.clocks.clone(), outer.node));
        let lane = outer.map_or(stream, |outer| outer.lane);
        let base = outer_clocks.as_ref().and_then(|clocks| clocks.lock().ends.get(node?)?.clone());
        let order = self.node_order(body);
        let clocks =
            outer_clocks.as_ref().map(|_| Arc::new(Mutex::new(LaunchClocks::new(base, order.len()))));
        let run = Run { clocks: clocks.clone(), lane: branch.lane };
        // Nodes of bodies need nothing that could lack.
        let mut items = self.run_items(state, stream, body, &order, &run).unwrap_or_default();
        let end = match branch.kind {
            Kind::CU_GRAPH_COND_TYPE_WHILE => Work::Branch(branch.clone(), rounds + 1),
            _ => Work::Memory(MemoryWork::Place),
        };
        let (before, keep, joins) = (Vec::new(), Vec::new(), clocks);
        items.push((end, None, Some(GraphItem { clocks: outer_clocks, node, lane, before, keep, joins })));
        let item =
            |(work, record, graph)| Item { seq, work, counted: false, record, host: host.clone(), graph };
        Ok(items.into_iter().map(item).collect())
    }

    /// The axes of so many lines of nodes on a stream; the first is the stream's own.
    fn lane_axes(&self, state: &mut State, stream: u64, count: usize) -> Vec<u64> {
        let known = state.streams.get(&stream).map_or(0, |stream| stream.lanes.len());
        let new: Vec<u64> = (known + 1..count).map(|_| state.uid()).collect();
        let Some(target) = state.streams.get_mut(&stream) else { return vec![stream] };
        target.lanes.extend(new);
        std::iter::once(stream).chain(target.lanes.iter().copied()).collect()
    }

    /// What a node puts on the stream.
    fn node_items(
        &self,
        state: &mut State,
        stream: u64,
        node: &ExecNode,
        lane: usize,
    ) -> Res<Vec<(Work, Option<Arc<Record>>)>> {
        let nothing = || Work::Memory(MemoryWork::Place);
        let one = |work| vec![(work, None)];
        Ok(match &node.work {
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
                let frontier = state.streams.get(&stream).map(|s| s.frontier.clone()).unwrap_or_default();
                // Numbered as the last work before the launch: a safe guess for whoever wants memory again.
                let record = Record::pending((stream, state.next_seq.saturating_sub(1)), frontier);
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
            NodeWork::Alloc(memory) => one(Work::Memory(self.begin_graph_memory(state, memory)?)),
            NodeWork::Conditional(work) => {
                let (condition, kind, bodies) = (work.condition, work.kind, node.bodies.clone());
                one(Work::Branch(Arc::new(Branch { condition, kind, bodies, lane }), 0))
            }
            NodeWork::Free(base) => {
                let mut items = Vec::new();
                self.take_graph_memory(state, *base, |allocation| {
                    let record = Record::pending((stream, 0), Default::default());
                    items = one(Work::Memory(MemoryWork::End(allocation, record)));
                });
                items
            }
            NodeWork::Values(ops) => ops.iter().map(|op| (op.clone(), None)).collect(),
        })
    }
}
