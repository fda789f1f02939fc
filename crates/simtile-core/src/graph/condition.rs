//! Conditional nodes: work of a graph that runs if, or as long as, a kernel says so.

use super::{Capture, CapturedGraph};
use crate::error::{GraphError, On, OnStream};
use crate::stream::Submit;
use crate::{Stream, Submission, SubmitBuilder};
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

/// What a conditional node does with its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conditional {
    /// Runs it once if the condition is not 0.
    If,
    /// Runs it as long as the condition is not 0, which is looked at before each time.
    While,
}

impl Capture {
    /// A condition of the graph that is being recorded on this stream of the capture.
    ///
    /// # Errors
    /// [`GraphError::Stream`] for a stream of another capture, or of none. The driver's; [`GraphError::Driver`] with `is_missing_entry` where it has no conditional nodes (before CUDA 12.4).
    pub fn condition(&self, stream: &Stream, default: u32) -> Result<Condition, GraphError> {
        self.takes(stream).map_err(GraphError::from_stream)?;
        let context = stream.context().clone();
        let handle = context.with_current(|driver| {
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
        });
        let handle = handle.on::<GraphError>(|| format!("condition of a capture on {stream}"))?;
        Ok(Condition { handle, capture: self.outermost() })
    }

    /// Whose conditions nodes here look at.
    fn outermost(&self) -> u64 {
        self.body.as_ref().map_or(self.id(), |body| body.capture)
    }

    /// Begins to record the body of a conditional node on the stream `on`, which takes no part in this capture. The node gets its place by
    /// [`Capture::end_body`], behind what has been recorded on a stream of this capture until then. A body may have conditional nodes of its
    /// own.
    ///
    /// A body that is not ended spoils this capture: [`Capture::finish`] fails then.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`] for a condition of another graph; else as [`Stream::begin_capture`]. The driver's.
    pub fn begin_body(
        &self,
        condition: &Condition,
        kind: Conditional,
        on: &Arc<Stream>,
    ) -> Result<Capture, GraphError> {
        if condition.capture != self.outermost() {
            let why = "the condition is of another capture".into();
            return Err(GraphError::NotUpdatable { what: format!("conditional node of {self:?}"), why });
        }
        let origin = self.origin();
        self.takes(origin).map_err(GraphError::from_stream)?;
        origin.same_context(on.context(), || on.to_string()).map_err(GraphError::from_stream)?;
        // From here on there may be a node without a body.
        self.bodies(1);
        let context = origin.context();
        let own = context.cu_ctx();
        let made = context.with_current(|driver| {
            let graph = Place::of(driver, origin.cu_stream())?.graph;
            let (node, body) = new_node(driver, graph, &[], own, condition.handle, kind)?;
            let root = self.body.as_ref().map_or(graph, |body| body.root);
            Ok(Body { graph: body, node, root, capture: condition.capture })
        });
        let body = made.on::<GraphError>(|| format!("conditional node of a capture on {origin}"))?;
        self.inner(1);
        on.capture_into(Some(body)).map_err(GraphError::from_stream)
    }

    /// Ends a body that [`Capture::begin_body`] began. The node comes behind what was recorded on `stream` so far, and what it accesses counts
    /// as accessed by the graph in any case.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`]: it is no body, or one of another capture. The driver's: not every kind of node may be in a body. This
    /// capture is spoiled then.
    pub fn end_body(&self, stream: &Arc<Stream>, body: &Capture) -> Result<(), GraphError> {
        let Some(Body { node, capture, .. }) = body.body else {
            let why = "it is no body of a conditional node".into();
            return Err(GraphError::NotUpdatable { what: format!("{body:?}"), why });
        };
        if capture != self.outermost() {
            let why = "it is a body of another capture".into();
            return Err(GraphError::NotUpdatable { what: format!("{body:?}"), why });
        }
        let (_, touched, kept) = body.end_all()?;
        let open = touched.bodies;
        // (The driver's graph is the node's.)
        let body = CapturedGraph::new(stream.context(), CUgraph::NULL, body.id(), touched, kept);
        self.keep_all(body.kept());
        self.inner(body.graphs() - 1);
        let calls = |driver, raw| Place::put_behind(driver, raw, node);
        let submit = Submit { outside: body.outside(), ..Submit::PLAIN };
        let on = || "conditional node".to_string();
        self.record::<GraphError>(stream, &[], &body.replayed(), None, submit, on, calls)?;
        if open == 0 {
            self.bodies(-1);
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

impl SubmitBuilder<'_> {
    /// Records a conditional node in a capture: `body`, if the condition says so. What the body accesses counts as accessed by the graph
    /// in any case. Kernels that set the condition for it are recorded before it on the same stream, or in the body.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`] outside of the condition's capture; the driver's: not every kind of node may be in a body.
    pub fn conditional(
        self,
        condition: &Condition,
        kind: Conditional,
        body: &CapturedGraph,
    ) -> Result<Submission, GraphError> {
        let stream = self.stream();
        let Some(capture) = self.capture().filter(|capture| capture.outermost() == condition.capture) else {
            let why = "the condition is of another capture".into();
            return Err(GraphError::NotUpdatable { what: format!("conditional node on {stream}"), why });
        };
        stream.same_context(body.context(), || body.to_string()).map_err(GraphError::from_stream)?;
        capture.keep_all(body.kept());
        let own = stream.context().cu_ctx();
        let (handle, child) = (condition.handle, body.cu_graph());
        let calls = |driver, raw| add_conditional(driver, raw, own, handle, kind, child);
        let on = || format!("conditional node with {body}");
        let accesses = body.replayed();
        let submit = Submit { outside: body.outside(), ..Submit::PLAIN };
        capture.record::<GraphError>(stream, &[], &accesses, None, submit, on, calls)?;
        capture.inner(1 + body.graphs());
        Ok(Submission::nothing(stream))
    }
}

fn add_conditional(
    driver: Driver,
    stream: CUstream,
    context: CUcontext,
    handle: u64,
    kind: Conditional,
    child: CUgraph,
) -> Result<(), DriverError> {
    let Place { graph, behind } = Place::of(driver, stream)?;
    let (node, body) = new_node(driver, graph, &behind, context, handle, kind)?;
    let mut inner = CUgraphNode::NULL;
    // SAFETY: both graphs are alive, the out-pointer is valid for the call.
    unsafe { call!(driver, cuGraphAddChildGraphNode(&mut inner, body, core::ptr::null(), 0, child)) }?;
    Place::go_behind(driver, stream, node)
}

/// A conditional node with an empty body.
fn new_node(
    driver: Driver,
    graph: CUgraph,
    behind: &[CUgraphNode],
    context: CUcontext,
    handle: u64,
    kind: Conditional,
) -> Result<(CUgraphNode, CUgraph), DriverError> {
    let type_ = match kind {
        Conditional::If => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
        Conditional::While => CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
    };
    // SAFETY: zeros are valid in every field.
    let mut params: CUgraphNodeParams = unsafe { core::mem::zeroed() };
    params.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.u.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_,
        size: 1,
        phGraph_out: core::ptr::null_mut(),
        ctx: context,
    };
    let mut node = CUgraphNode::NULL;
    let (list, count, none) = (behind.as_ptr(), behind.len(), core::ptr::null());
    // SAFETY: graphs, nodes and the condition are alive; parameters and out-pointers are valid for the calls. The driver has written the list
    // of bodies, of which there is one.
    unsafe {
        call!(driver, cuGraphAddNode(&mut node, graph, list, none, count, &mut params))?;
        Ok((node, *params.u.conditional.phGraph_out))
    }
}
