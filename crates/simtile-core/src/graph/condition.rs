//! Conditional nodes: work of a graph that runs if, or as long as, a kernel says so.

use super::capture::{Kept, Touched};
use super::{Capture, CapturedGraph};
use crate::error::{GraphError, On, OnStream, StreamError};
use crate::stream::Submit;
use crate::{Context, Stream};
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_sync::Arc;
use smallvec::SmallVec;

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET_DEPENDENCIES: u32 = 1;
/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

/// Where a stream stands in the graph that it records.
pub(crate) struct Place {
    graph: CUgraph,
    pub(super) behind: SmallVec<[CUgraphNode; 4]>,
}

impl Place {
    pub fn of(driver: Driver, stream: CUstream) -> Result<Self, DriverError> {
        let (mut status, mut id) = (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (mut graph, mut count) = (CUgraph::NULL, 0);
        let mut behind = core::ptr::null();
        // SAFETY: the stream is alive; the out-pointers are valid for the call. The list of nodes that it gives lives until
        // the stream is given more work, which nobody does meanwhile.
        let behind = unsafe {
            call!(
                driver,
                cuStreamGetCaptureInfo(stream, &mut status, &mut id, &mut graph, &mut behind, &mut count)
            )?;
            match count {
                0 => SmallVec::new(),
                count => core::slice::from_raw_parts(behind, count).into(),
            }
        };
        Ok(Self { graph, behind })
    }

    /// Has the stream stand behind this node alone.
    fn go_behind(driver: Driver, stream: CUstream, mut node: CUgraphNode) -> Result<(), DriverError> {
        // SAFETY: the stream is alive and records the node's graph.
        unsafe { call!(driver, cuStreamUpdateCaptureDependencies(stream, &mut node, 1, SET_DEPENDENCIES)) }
    }

    /// Puts a node, which has no place yet, behind what was recorded last.
    fn put_behind(driver: Driver, stream: CUstream, node: CUgraphNode) -> Result<(), DriverError> {
        let Self { graph, behind } = Self::of(driver, stream)?;
        let to: SmallVec<[CUgraphNode; 4]> = behind.iter().map(|_| node).collect();
        if !behind.is_empty() {
            let (from, to, count) = (behind.as_ptr(), to.as_ptr(), behind.len());
            // SAFETY: graph and nodes are alive, the lists have that length.
            unsafe { call!(driver, cuGraphAddDependencies(graph, from, to, count)) }?;
        }
        Self::go_behind(driver, stream, node)
    }

    /// Adds a graph behind what was recorded last.
    pub fn add_child(driver: Driver, stream: CUstream, child: CUgraph) -> Result<(), DriverError> {
        let Self { graph, behind } = Self::of(driver, stream)?;
        let mut node = CUgraphNode::NULL;
        // SAFETY: graphs and nodes are alive, the out-pointer is valid for the call.
        unsafe {
            call!(driver, cuGraphAddChildGraphNode(&mut node, graph, behind.as_ptr(), behind.len(), child))
        }?;
        Self::go_behind(driver, stream, node)
    }
}

/// A number that kernels of a graph set and conditional nodes of it look at.
///
/// Kernels are given [`Condition::handle`] and call `cudaGraphSetConditional(handle, value)`. Each launch of the graph begins with the
/// default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    handle: u64,
    capture: u64,
}

impl Condition {
    /// What kernels take. It means nothing outside of its graph.
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

/// What a conditional node does with its bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Conditional {
    /// Runs its one body once if the condition is not 0.
    If,
    /// Runs the first of two bodies if the condition is not 0, else the second. Needs CUDA 12.8.
    IfElse,
    /// Runs its one body as long as the condition is not 0, which is looked at before each time.
    While,
    /// Of so many bodies runs the one whose number the condition is, counted from 0; none if there is no such. Needs CUDA 12.8.
    Switch(u32),
}

impl Conditional {
    /// How many bodies it has.
    pub fn bodies(self) -> u32 {
        match self {
            Self::If | Self::While => 1,
            Self::IfElse => 2,
            Self::Switch(bodies) => bodies,
        }
    }

    fn raw(self) -> CUgraphConditionalNodeType {
        match self {
            Self::If | Self::IfElse => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
            Self::While => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
            Self::Switch(_) => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH,
        }
    }

    /// The first version of the driver that has it.
    fn since(self) -> i32 {
        match self {
            Self::If | Self::While => 12040,
            Self::IfElse | Self::Switch(_) => 12080,
        }
    }
}

/// The bodies of a node, by number. `None`: begun.
type Bodies = SmallVec<[Option<CUgraph>; 2]>;

/// A conditional node that has no place in its graph yet: [`Capture::begin_conditional`] makes it, its bodies are recorded one after another,
/// [`Capture::end_conditional`] gives it its place. Dropped before, it spoils the capture: [`Capture::finish`] fails then.
pub struct ConditionalNode {
    node: CUgraphNode,
    /// They are parts of the node. `None`: begun already.
    bodies: Bodies,
    /// How many were begun and have not ended.
    open: usize,
    /// What the ended ones touch and keep.
    touched: Touched,
    kept: Kept,
    /// The graph of the outermost capture, and the number of that.
    root: CUgraph,
    capture: u64,
    context: Arc<Context>,
    /// The node lives as long as these may begin.
    open_bodies: Arc<super::capture::Bodies>,
}

impl ConditionalNode {
    /// How many bodies it has.
    pub fn bodies(&self) -> usize {
        self.bodies.len()
    }

    fn refuse<T>(&self, why: impl Into<String>) -> Result<T, GraphError> {
        Err(GraphError::NotUpdatable { what: format!("{self:?}"), why: why.into() })
    }

    /// Begins to record the body of this number, counted from 0, on the stream `on`, which takes no part in the node's capture. One that is
    /// never begun is empty. A body may have conditional nodes of its own.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`]: there is no such body, or it was begun already; else as [`Stream::begin_capture`].
    pub fn begin_body(&mut self, number: usize, on: &Arc<Stream>) -> Result<Capture, GraphError> {
        if *self.context != **on.context() {
            let other = StreamError::OtherContext {
                user: format!("{self:?}"),
                user_context: self.context.to_string(),
                used: on.to_string(),
                used_context: on.context().to_string(),
            };
            return Err(GraphError::from_stream(other));
        }
        let graph = match self.bodies.get(number) {
            None => {
                return self.refuse(format!("it has {} bodies, and none of number {number}", self.bodies()));
            }
            Some(None) => return self.refuse(format!("body {number} was begun already")),
            Some(&Some(graph)) => graph,
        };
        let body = Body { graph, node: self.node, root: self.root, capture: self.capture };
        let begun = self.open_bodies.begin(|| on.capture_into(Some(body), self.open_bodies.clone()));
        let Some(begun) = begun else { return self.refuse("the capture that it is of has ended") };
        let capture = begun.map_err(GraphError::from_stream)?;
        self.bodies[number] = None;
        self.open += 1;
        Ok(capture)
    }

    /// Ends a body that [`ConditionalNode::begin_body`] began.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`]: it is no body of this node. The driver's: not every kind of node may be in a body; the node's capture is
    /// spoiled then.
    pub fn end_body(&mut self, body: &Capture) -> Result<(), GraphError> {
        if !body.body.is_some_and(|of| of.node == self.node && of.capture == self.capture) {
            return self.refuse(format!("{body:?} is no body of it"));
        }
        let (_, touched, kept) = body.end_all()?;
        if touched.unplaced == 0 {
            self.open -= 1;
        }
        self.touched.join(touched);
        self.kept.join(&kept);
        Ok(())
    }
}

impl core::fmt::Debug for ConditionalNode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ConditionalNode(of capture {}, {} bodies)", self.capture, self.bodies())
    }
}

impl Capture {
    /// A condition of the graph that is being recorded on this stream of the capture.
    ///
    /// # Errors
    /// [`GraphError::Stream`] for a stream of another capture, or of none. The driver's; [`GraphError::Driver`] with `is_missing_entry` where it has no conditional nodes (before CUDA 12.4).
    pub fn condition(&self, stream: &Stream, default: u32) -> Result<Condition, GraphError> {
        let context = stream.context();
        let create = || {
            context.with_current(|driver| {
                // Those of a body are the outermost graph's.
                let graph = match &self.body {
                    Some(body) => body.root,
                    None => Place::of(driver, stream.cu_stream())?.graph,
                };
                let (mut handle, own) = (0, context.cu_ctx());
                // SAFETY: graph and context are alive, the out-pointer is valid for the call.
                unsafe {
                    call!(
                        driver,
                        cuGraphConditionalHandleCreate(&mut handle, graph, own, default, ASSIGN_DEFAULT)
                    )
                }?;
                Ok(handle)
            })
        };
        let handle = self.while_it_goes_on(stream, create).map_err(GraphError::from_stream)?;
        let handle = handle.on::<GraphError>(|| format!("condition of a capture on {stream}"))?;
        Ok(Condition { handle, capture: self.outermost() })
    }

    /// Whose conditions nodes here look at.
    fn outermost(&self) -> u64 {
        self.body.as_ref().map_or(self.id(), |body| body.capture)
    }

    /// Begins a conditional node. Its bodies are recorded by [`ConditionalNode::begin_body`], then [`Capture::end_conditional`] gives it its place.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`] for a condition of another graph, and for kinds that the driver's version does not have. The driver's.
    pub fn begin_conditional(
        &self,
        condition: &Condition,
        kind: Conditional,
    ) -> Result<ConditionalNode, GraphError> {
        let refuse =
            |why: String| Err(GraphError::NotUpdatable { what: format!("{kind:?} node of {self:?}"), why });
        if condition.capture != self.outermost() {
            return refuse("the condition is of another capture".into());
        }
        if kind.bodies() == 0 {
            return refuse("it has no bodies, and must have one at least".into());
        }
        let origin = self.origin();
        let (context, on) = (origin.context(), || format!("conditional node of a capture on {origin}"));
        let version = context.with_current(|driver| driver.version()).on::<GraphError>(on)?;
        if version < kind.since() {
            let of = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
            return refuse(format!(
                "it came with CUDA {}, and the driver has {}",
                of(kind.since()),
                of(version)
            ));
        }
        let make = || {
            // From here on there may be a node without a place.
            self.unplaced(1);
            context.with_current(|driver| {
                let graph = Place::of(driver, origin.cu_stream())?.graph;
                let (node, bodies) = new_node(driver, graph, context.cu_ctx(), condition.handle, kind)?;
                Ok((graph, node, bodies))
            })
        };
        let made = self.while_it_goes_on(origin, make).map_err(GraphError::from_stream)?;
        let (graph, node, bodies) = made.on::<GraphError>(on)?;
        self.inner(bodies.len() as u64);
        Ok(ConditionalNode {
            node,
            bodies,
            open: 0,
            touched: Touched::default(),
            kept: Kept::default(),
            root: self.body.map_or(graph, |body| body.root),
            capture: condition.capture,
            context: context.clone(),
            open_bodies: self.bodies.clone(),
        })
    }

    /// Gives a conditional node its place: behind what was recorded on `stream` so far. What any of its bodies accesses counts as accessed by the
    /// graph.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`] for a node of another capture; [`GraphError::Stream`] for a stream that takes no part in this one; the
    /// driver's. This capture is spoiled then.
    pub fn end_conditional(&self, stream: &Arc<Stream>, node: ConditionalNode) -> Result<(), GraphError> {
        if node.capture != self.outermost() {
            return node.refuse("it is of another capture");
        }
        let ConditionalNode { node, open, touched, kept, context, .. } = node;
        // (The driver's graphs are the node's.)
        let bodies = CapturedGraph::new(&context, CUgraph::NULL, self.id(), touched, kept);
        self.keep_all(bodies.kept());
        self.inner(bodies.graphs() - 1);
        let calls = |driver, raw| Place::put_behind(driver, raw, node);
        let submit = Submit { outside: bodies.outside(), ..Submit::PLAIN };
        let on = || "conditional node".to_string();
        self.record::<GraphError>(stream, &[], &bodies.replayed(), None, submit, on, calls)?;
        if open == 0 {
            self.unplaced(-1);
        }
        Ok(())
    }
}

/// The body of a conditional node that is being recorded.
#[derive(Clone, Copy)]
pub(super) struct Body {
    /// It is a part of the node.
    pub graph: CUgraph,
    node: CUgraphNode,
    /// The graph of the outermost capture, and the number of that.
    root: CUgraph,
    capture: u64,
}

/// A conditional node with empty bodies, behind nothing.
fn new_node(
    driver: Driver,
    graph: CUgraph,
    context: CUcontext,
    handle: u64,
    kind: Conditional,
) -> Result<(CUgraphNode, Bodies), DriverError> {
    // SAFETY: zeros are valid in every field.
    let mut params: CUgraphNodeParams = unsafe { core::mem::zeroed() };
    params.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.u.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: kind.raw(),
        size: kind.bodies(),
        phGraph_out: core::ptr::null_mut(),
        ctx: context,
    };
    let (mut node, none) = (CUgraphNode::NULL, core::ptr::null());
    // SAFETY: the graph and the condition are alive; parameters and out-pointers are valid for the calls. The driver has written the list of
    // bodies, of which there are as many as were asked for.
    unsafe {
        call!(driver, cuGraphAddNode(&mut node, graph, none, core::ptr::null(), 0, &mut params))?;
        let bodies = core::slice::from_raw_parts(params.u.conditional.phGraph_out, kind.bodies() as usize);
        Ok((node, bodies.iter().copied().map(Some).collect()))
    }
}
