//! Graphs and their executables.

use super::Kept;
use super::capture::{KernelNode, NodeTouch, Touched};
use super::script::{Kernel, KernelPiece};
use crate::Context;
use crate::context::relaxed;
use crate::error::{GraphError, On};
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::{Access, AccessUnion, CapturedAccess, Mode, Outside, Region};
use simtile_sync::Arc;
use smallvec::SmallVec;
use std::ffi::CString;

/// Recorded work. It owns what its nodes reach.
pub struct CapturedGraph {
    raw: CUgraph,
    context: Arc<Context>,
    /// Of the capture.
    id: u64,
    accesses: Box<[CapturedAccess]>,
    touched: Touched,
    kept: Kept,
    /// A change failed and could not be taken back: a node may reach what nobody keeps. Nothing is made of it any more.
    spoiled: bool,
}

/// A graph that can be launched. It owns what its nodes reach; what runs when it is dropped goes on.
pub struct GraphExec {
    /// `None` if an update failed and no other executable could be made.
    raw: Option<CUgraphExec>,
    /// Stands for the executable itself: every replay writes it.
    region: Region,
    graph: CapturedGraph,
    /// It was made from that graph, so that its nodes are known by the graph's.
    of_graph: bool,
}

impl CapturedGraph {
    pub(super) fn new(context: &Arc<Context>, raw: CUgraph, id: u64, touched: Touched, kept: Kept) -> Self {
        let accesses = Box::default();
        let context = context.clone();
        let mut made = Self { raw, context, id, accesses, touched, kept, spoiled: false };
        made.join();
        made
    }

    /// Makes one set of what the nodes touch.
    fn join(&mut self) {
        let device = u16::try_from(self.context.ordinal()).unwrap_or(u16::MAX - 1);
        let mut union = AccessUnion::default();
        for NodeTouch { access, .. } in &self.touched.all {
            union.add(access.region, access.start, access.end, access.mode, device, ());
        }
        union.join();
        self.accesses = union.set().iter().map(|(access, ())| *access).collect();
    }

    /// What the nodes access.
    pub(crate) fn replayed(&self) -> SmallVec<[Access<'_>; 16]> {
        let owners = &self.kept.owners;
        let mut list = SmallVec::new();
        let mut at = 0;
        for access in &self.accesses {
            // Both are sorted by region, and the graph keeps every region that it touches.
            while at < owners.len() && owners[at].0 < access.region {
                at += 1;
            }
            if let Some(region) = owners.get(at).and_then(|(_, owner)| owner.region()) {
                list.push(Access::new(region, access.start, access.end, access.mode));
            }
        }
        list
    }

    /// The driver's handle. It dies with this value.
    pub fn cu_graph(&self) -> CUgraph {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// How many nodes it has.
    ///
    /// # Errors
    /// The driver's.
    pub fn nodes(&self) -> Result<usize, GraphError> {
        self.context
            .with_current(|driver| {
                let mut count = 0;
                // SAFETY: the graph is alive; without a list only the count is written.
                unsafe { call!(driver, cuGraphGetNodes(self.raw, core::ptr::null_mut(), &mut count)) }?;
                Ok(count)
            })
            .on(|| self.to_string())
    }

    /// How many of its edges are programmatic: the node behind may start before the one in front has finished, as launches with
    /// [`LaunchOptions::programmatic`](crate::LaunchOptions::programmatic) do.
    ///
    /// # Errors
    /// The driver's; drivers before CUDA 12.3 do not tell.
    pub fn programmatic_edges(&self) -> Result<usize, GraphError> {
        let edges = self.context.with_current(|driver| {
            let (none, mut count) = (core::ptr::null_mut(), 0);
            // SAFETY: the graph is alive; without lists only the count is written.
            unsafe {
                call!(driver, cuGraphGetEdges_v2(self.raw, none, none, core::ptr::null_mut(), &mut count))
            }?;
            let (mut from, mut to) = (vec![CUgraphNode::NULL; count], vec![CUgraphNode::NULL; count]);
            let plain = CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
            let mut data = vec![plain; count];
            let (a, b, c) = (from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr());
            // SAFETY: the lists have room for `count` entries.
            unsafe { call!(driver, cuGraphGetEdges_v2(self.raw, a, b, c, &mut count)) }?;
            data.truncate(count);
            Ok(data)
        });
        let edges = edges.on::<GraphError>(|| self.to_string())?;
        // `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`.
        Ok(edges.iter().filter(|edge| edge.type_ == 1).count())
    }

    /// Writes a picture in Graphviz's DOT to a file.
    ///
    /// # Errors
    /// The path holds a NUL, or the driver's.
    pub fn write_dot(&self, path: &str) -> Result<(), GraphError> {
        let text = CString::new(path).map_err(|_| GraphError::NotUpdatable {
            what: self.to_string(),
            why: format!("the path {path:?} holds a NUL"),
        })?;
        self.context
            // SAFETY: the graph is alive, the path ends with a NUL.
            .with_current(|driver| unsafe { call!(driver, cuGraphDebugDotPrint(self.raw, text.as_ptr(), 0)) })
            .on(|| self.to_string())
    }

    /// An executable.
    ///
    /// # Errors
    /// The driver's. The graph goes with it.
    pub fn instantiate(self) -> Result<GraphExec, GraphError> {
        let raw = self.make()?;
        // Its bytes stand for nothing; it is touched as a whole.
        let region = self.context.tracker().region(1);
        Ok(GraphExec { raw: Some(raw), region, graph: self, of_graph: true })
    }

    /// Refuses a graph that may reach what nobody keeps.
    pub(crate) fn sound(&self) -> Result<(), GraphError> {
        if !self.spoiled {
            return Ok(());
        }
        let why = "an earlier change of a kernel failed, and could not be taken back".into();
        Err(GraphError::NotUpdatable { what: self.to_string(), why })
    }

    /// Gives a node its old parameters after a change that failed, or gives the graph up.
    fn take_back(&mut self, index: u32) {
        let named = &self.touched.named[index as usize];
        let attempt =
            || self.context.with_current(|driver| set_template(driver, named.node, &named.kernel)).is_ok();
        if !(attempt() || attempt()) {
            self.spoiled = true;
        }
    }

    fn make(&self) -> Result<CUgraphExec, GraphError> {
        self.sound()?;
        self.context
            .link()
            .relaxed(|driver| {
                let mut raw = CUgraphExec::NULL;
                // SAFETY: the graph is alive, the out-pointer is valid for the call.
                unsafe { call!(driver, cuGraphInstantiateWithFlags(&mut raw, self.raw, 0)) }?;
                Ok(raw)
            })
            .on(|| self.to_string())
    }

    /// A named kernel reaches something else now.
    fn retarget(&mut self, index: u32, piece: KernelPiece) {
        let KernelPiece { kernel, touches, outside } = piece;
        // That of the old launch is not told apart from the others': a seal too many is no harm.
        self.touched.outside = self.touched.outside.max(outside);
        self.touched.all.retain(|touch| touch.named != Some(index));
        for kept in touches {
            let (region, start, end) = (kept.region, kept.start as u64, kept.end as u64);
            let access = CapturedAccess { region, start, end, mode: kept.mode };
            self.touched.all.push(NodeTouch { access, named: Some(index) });
            if let Err(at) = self.kept.owners.binary_search_by_key(&region, |owner| owner.0) {
                self.kept.owners.insert(at, (region, kept.owner));
            }
        }
        self.touched.named[index as usize].kernel = kernel;
        self.join();
        let accesses = &self.accesses;
        let touched =
            |region| accesses.binary_search_by_key(&region, |access: &CapturedAccess| access.region).is_ok();
        self.kept.owners.retain(|(region, _)| touched(*region));
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// How many graphs it is, with those inside of its nodes.
    pub(crate) fn graphs(&self) -> u64 {
        1 + self.touched.inner
    }

    /// Whether a replay may wait for something that is no work of a stream.
    pub(crate) fn outside(&self) -> Outside {
        self.touched.outside
    }
}

impl GraphExec {
    /// The driver's handle; null after an update that failed wholly.
    pub fn cu_graph_exec(&self) -> CUgraphExec {
        self.raw.unwrap_or(CUgraphExec::NULL)
    }

    /// The recorded work.
    pub fn graph(&self) -> &CapturedGraph {
        &self.graph
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.graph.context
    }

    /// Puts other recorded work in the place of this one, of the same shape: the same kinds of nodes in the same order. Launches
    /// before keep the old values.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`] with the driver's reason; the executable does what it did before then. If it could not even be
    /// made anew, later launches fail with that.
    pub fn update(&mut self, graph: CapturedGraph) -> Result<(), GraphError> {
        self.alive()?;
        self.put(graph, |exec, _, why| Err(GraphError::NotUpdatable { what: exec.to_string(), why }))?;
        Ok(())
    }

    /// As [`GraphExec::update`]; work of another shape gets a new executable, and so does one that an earlier failure has ended. Whether it
    /// was an update.
    ///
    /// # Errors
    /// The driver's. The executable does what it did before then.
    pub fn update_or_replace(&mut self, graph: CapturedGraph) -> Result<bool, GraphError> {
        self.put(graph, |_, graph, _| graph.make())
    }

    /// Puts other recorded work in the place of this one. Where the driver cannot, `otherwise` is told why, and gives another
    /// executable.
    fn put(
        &mut self,
        graph: CapturedGraph,
        otherwise: impl FnOnce(&Self, &CapturedGraph, String) -> Result<CUgraphExec, GraphError>,
    ) -> Result<bool, GraphError> {
        self.same_context(&graph)?;
        graph.sound()?;
        let tried = match self.raw {
            Some(exec) => self.try_update(exec, &graph)?,
            None => Err(self.ended().to_string()),
        };
        let updated = match tried {
            Ok(()) => true,
            Err(why) => match otherwise(self, &graph, why) {
                Ok(fresh) => {
                    self.replace(Some(fresh));
                    false
                }
                Err(error) => {
                    // It may be half changed.
                    if self.raw.is_some() {
                        self.make_anew()?;
                    }
                    return Err(error);
                }
            },
        };
        self.of_graph = !updated;
        // What the old nodes reached goes now; its last uses are stamped on it.
        self.graph = graph;
        Ok(updated)
    }

    /// Gives one kernel other arguments, or another geometry. Launches before keep the old ones. What the new arguments reach is claimed and
    /// kept by the executable from here on, and what only the old ones reached no more.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`]: the node is of another graph, or the piece launches with other attributes. The driver's. The
    /// executable does what it did before then; if it could not even be made anew, later launches fail with that.
    pub fn set_kernel(&mut self, node: KernelNode, piece: KernelPiece) -> Result<(), GraphError> {
        let refused = |why: &str| Err(GraphError::NotUpdatable { what: self.to_string(), why: why.into() });
        let exec = self.alive()?;
        let Some(named) = self.graph.touched.named.get(node.index as usize) else {
            return refused("the kernel is of another graph");
        };
        if node.capture != self.graph.id || named.node.is_null() {
            return refused("the kernel is of another graph");
        }
        if *piece.kernel.function.context() != self.graph.context {
            return refused("the new launch is of another context");
        }
        if named.kernel.options.attributes_only() != piece.kernel.options.attributes_only() {
            return refused(
                "cluster, cooperation, priority and programmatic launch of a kernel cannot be changed",
            );
        }
        let raw = named.node;
        let own = self.context().link().clone();
        // The template first: a new executable can then be made of it. (Of one that is given up none is.)
        if !self.graph.spoiled {
            let set = own.with_current(|driver| set_template(driver, raw, &piece.kernel));
            if let Err(error) = set.on::<GraphError>(|| self.to_string()) {
                // It may have been changed all the same, and what the new arguments reach goes with them.
                self.graph.take_back(node.index);
                return Err(error);
            }
        }
        let updated = match self.of_graph {
            true => own.with_current(|driver| set_exec(driver, exec, raw, &piece.kernel)).is_ok(),
            false => false,
        };
        if !updated {
            match self.graph.make() {
                Ok(fresh) => {
                    self.replace(Some(fresh));
                    self.of_graph = true;
                }
                Err(error) => {
                    // Both may be half changed. An executable that cannot be made anew is given up.
                    if !self.graph.spoiled {
                        self.graph.take_back(node.index);
                    }
                    self.make_anew()?;
                    return Err(error);
                }
            }
        }
        self.graph.retarget(node.index, piece);
        Ok(())
    }

    /// Asks the driver. Inside: why it did not, and the executable may be half changed.
    fn try_update(&self, exec: CUgraphExec, graph: &CapturedGraph) -> Result<Result<(), String>, GraphError> {
        let mut info = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: CUgraphNode::NULL,
            errorFromNode: CUgraphNode::NULL,
        };
        let updated = self.context().with_current(|driver| {
            // SAFETY: executable and graph are alive, the out-pointer is valid for the call.
            unsafe { call!(driver, cuGraphExecUpdate(exec, graph.raw, &mut info)) }
        });
        Ok(updated.on::<GraphError>(|| self.to_string()).map_err(|error| match info.result {
            CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS => error.to_string(),
            result => format!("{result:?} ({error})"),
        }))
    }

    /// An executable of the old graph, in place of one that may be half changed.
    fn make_anew(&mut self) -> Result<(), GraphError> {
        let fresh = self.graph.make();
        self.replace(fresh.as_ref().ok().copied());
        fresh.map(drop)
    }

    fn same_context(&self, graph: &CapturedGraph) -> Result<(), GraphError> {
        if *graph.context == *self.graph.context {
            return Ok(());
        }
        Err(GraphError::OtherContext {
            user: self.to_string(),
            user_context: self.context().to_string(),
            used: graph.to_string(),
            used_context: graph.context.to_string(),
        })
    }

    pub(crate) fn alive(&self) -> Result<CUgraphExec, GraphError> {
        self.raw.ok_or_else(|| self.ended())
    }

    fn ended(&self) -> GraphError {
        GraphError::NotUpdatable {
            what: self.to_string(),
            why: "an earlier update failed, and the executable could not be made anew".into(),
        }
    }

    fn replace(&mut self, fresh: Option<CUgraphExec>) {
        if let Some(old) = core::mem::replace(&mut self.raw, fresh) {
            destroy(&self.graph.context, old);
        }
    }

    /// What one replay accesses.
    pub(crate) fn accesses(&self) -> SmallVec<[Access<'_>; 16]> {
        let mut list = self.graph.replayed();
        list.push(Access::whole(&self.region, Mode::Write));
        list
    }
}

fn set_template(driver: Driver, node: CUgraphNode, kernel: &Kernel) -> Result<(), DriverError> {
    let mut pointers = kernel.args.pointers();
    let params = kernel.params(&mut pointers);
    // SAFETY: the node is alive; the driver copies the parameters, whose memory the graph keeps.
    unsafe { call!(driver, cuGraphKernelNodeSetParams(node, &params)) }
}

fn set_exec(
    driver: Driver,
    exec: CUgraphExec,
    node: CUgraphNode,
    kernel: &Kernel,
) -> Result<(), DriverError> {
    let mut pointers = kernel.args.pointers();
    let params = kernel.params(&mut pointers);
    // SAFETY: as above; the executable was made from the node's graph.
    unsafe { call!(driver, cuGraphExecKernelNodeSetParams(exec, node, &params)) }
}

fn destroy(context: &Arc<Context>, exec: CUgraphExec) {
    // SAFETY: the executable is ours; what runs of it goes on.
    let call = move |driver: Driver| {
        // SAFETY: as above.
        relaxed(driver, |driver| unsafe { call!(driver, cuGraphExecDestroy(exec)) })
    };
    context.end_object(|| "drop of an executable graph".into(), call);
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if crate::sys::is_forked() {
            return;
        }
        let raw = self.raw;
        if raw.is_null() {
            return;
        }
        // SAFETY: the graph is ours; executables do not need it.
        let call = move |driver: Driver| unsafe { call!(driver, cuGraphDestroy(raw)) };
        self.context.end_objects(self.graphs(), || "drop of a graph".into(), call);
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if !crate::sys::is_forked() {
            self.replace(None);
        }
    }
}

impl fmt::Display for CapturedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph {:#x}", self.raw.0)
    }
}

impl fmt::Display for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "executable of {}", self.graph)
    }
}

impl fmt::Debug for CapturedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedGraph")
            .field("graph", &format_args!("{self}"))
            .field("accesses", &self.accesses.len())
            .field("allocations", &self.kept.owners.len())
            .finish()
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").field("raw", &self.raw).field("graph", &self.graph).finish()
    }
}
