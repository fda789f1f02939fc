//! Graphs and their executables.

use super::Kept;
use crate::Context;
use crate::error::{GraphError, On};
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{Driver, call};
use simtile_hazard::{Access, CapturedAccess, Mode, Region};
use simtile_sync::Arc;
use smallvec::SmallVec;
use std::ffi::CString;

/// Recorded work. It owns what its nodes reach.
pub struct CapturedGraph {
    raw: CUgraph,
    context: Arc<Context>,
    accesses: Box<[CapturedAccess]>,
    kept: Kept,
}

/// A graph that can be launched. It owns what its nodes reach; what runs when it is dropped goes on.
pub struct GraphExec {
    /// `None` if an update failed and no other executable could be made.
    raw: Option<CUgraphExec>,
    /// Stands for the executable itself: every replay writes it.
    region: Region,
    graph: CapturedGraph,
}

impl CapturedGraph {
    pub(super) fn new(context: &Arc<Context>, raw: CUgraph, set: &[CapturedAccess], kept: Kept) -> Self {
        Self { raw, context: context.clone(), accesses: set.into(), kept }
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
        Ok(GraphExec { raw: Some(raw), region, graph: self })
    }

    fn make(&self) -> Result<CUgraphExec, GraphError> {
        self.context
            .with_current(|driver| {
                let mut raw = CUgraphExec::NULL;
                // SAFETY: the graph is alive, the out-pointer is valid for the call.
                unsafe { call!(driver, cuGraphInstantiateWithFlags(&mut raw, self.raw, 0)) }?;
                Ok(raw)
            })
            .on(|| self.to_string())
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
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
        self.same_context(&graph)?;
        match self.try_update(&graph)? {
            Ok(()) => {
                // What the old nodes reached goes now; its last uses are stamped on it.
                self.graph = graph;
                Ok(())
            }
            Err(why) => {
                self.make_anew()?;
                Err(GraphError::NotUpdatable { what: self.to_string(), why })
            }
        }
    }

    /// As [`GraphExec::update`]; work of another shape gets a new executable. Whether it was an update.
    ///
    /// # Errors
    /// The driver's. The executable does what it did before then.
    pub fn update_or_replace(&mut self, graph: CapturedGraph) -> Result<bool, GraphError> {
        self.same_context(&graph)?;
        let updated = self.try_update(&graph)?.is_ok();
        if !updated {
            match graph.make() {
                Ok(fresh) => self.replace(Some(fresh)),
                Err(error) => {
                    self.make_anew()?;
                    return Err(error);
                }
            }
        }
        self.graph = graph;
        Ok(updated)
    }

    /// Asks the driver. Inside: why it did not, and the executable may be half changed.
    fn try_update(&self, graph: &CapturedGraph) -> Result<Result<(), String>, GraphError> {
        let exec = self.alive()?;
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
        let mut list = self.captured();
        list.push(Access::whole(&self.region, Mode::Write));
        list
    }

    /// What the nodes access.
    pub(crate) fn captured(&self) -> SmallVec<[Access<'_>; 16]> {
        let owners = &self.graph.kept.owners;
        let mut list = SmallVec::new();
        let mut at = 0;
        for access in &self.graph.accesses {
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
}

fn destroy(context: &Context, exec: CUgraphExec) {
    // SAFETY: the executable is ours; what runs of it goes on.
    let call = |driver: Driver| unsafe { call!(driver, cuGraphExecDestroy(exec)) };
    context.link().finish(|| "executable graph".into(), call);
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if crate::sys::is_forked() {
            return;
        }
        let raw = self.raw;
        // SAFETY: the graph is ours; executables do not need it.
        let call = |driver: Driver| unsafe { call!(driver, cuGraphDestroy(raw)) };
        self.context.link().finish(|| "graph".into(), call);
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
