//! The executable of a chain: one node a piece, in a row.

use super::step::{Plain, Step, Work};
use crate::Context;
use crate::context::{Link, relaxed};
use crate::error::CallError;
use crate::memory::Word;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::Region;
use simtile_sync::Arc;

/// A graph and its executable. What runs when it is dropped goes on.
pub(super) struct Built {
    context: Arc<Context>,
    graph: CUgraph,
    pub exec: CUgraphExec,
    /// One for each piece; null where nothing is done.
    nodes: Vec<CUgraphNode>,
    /// Stands for the executable itself: every replay writes it.
    pub region: Region,
    /// The driver wants the context current for updates.
    wants_current: bool,
}

impl Built {
    pub fn new(context: &Arc<Context>, steps: &[Step]) -> Result<Self, CallError> {
        let mut made = Self {
            context: context.clone(),
            graph: CUgraph::NULL,
            exec: CUgraphExec::NULL,
            nodes: Vec::with_capacity(steps.len()),
            // Its bytes stand for nothing; it is touched as a whole.
            region: context.tracker().region(1),
            wants_current: false,
        };
        let own = context.link().cu_ctx();
        context.link().relaxed(|driver| {
            // SAFETY: the out-pointer is valid for the call.
            unsafe { call!(driver, cuGraphCreate(&mut made.graph, 0)) }?;
            let mut last = CUgraphNode::NULL;
            for step in steps {
                let node = add(driver, own, made.graph, last, &step.work)?;
                if !node.is_null() {
                    last = node;
                }
                made.nodes.push(node);
            }
            // SAFETY: the graph was just made, the out-pointer is valid for the call.
            unsafe { call!(driver, cuGraphInstantiateWithFlags(&mut made.exec, made.graph, 0)) }
        })?;
        Ok(made)
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Gives nodes of the executable the parameters of the stale pieces. How many. Launches before keep the old ones. After a
    /// failure the executable may have some of both.
    pub fn update(&mut self, steps: &mut [Step]) -> Result<usize, CallError> {
        let context = self.context.clone();
        let link = context.link();
        if !self.wants_current {
            match link.with_handles(|driver| self.set(driver, link, steps)) {
                Err(CallError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                    self.wants_current = true;
                }
                other => return other,
            }
        }
        link.with_current(|driver| self.set(driver, link, steps))
    }

    fn set(&self, driver: Driver, link: &Link, steps: &mut [Step]) -> Result<usize, DriverError> {
        let mut updated = 0;
        for (step, &node) in steps.iter_mut().zip(&self.nodes) {
            if step.stale {
                update(driver, link.cu_ctx(), self.exec, node, &step.work)?;
                step.stale = false;
                updated += 1;
            }
        }
        Ok(updated)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        if crate::sys::is_forked() {
            return;
        }
        // Each by itself: if one cannot be ended, the other is all the same.
        let (graph, exec) = (self.graph, self.exec);
        if !exec.is_null() {
            // SAFETY: the executable is ours; what runs of it goes on.
            let call = move |driver: Driver| unsafe { call!(driver, cuGraphExecDestroy(exec)) };
            let during = || "drop of the executable of a memoised chain".into();
            self.context.end_object(during, move |driver| relaxed(driver, call));
        }
        if !graph.is_null() {
            // SAFETY: the graph is ours; executables do not need it.
            let call = move |driver: Driver| unsafe { call!(driver, cuGraphDestroy(graph)) };
            self.context.end_object(|| "drop of a memoised chain".into(), call);
        }
    }
}

fn fill(to: CUdeviceptr, word: Word, bytes: usize) -> CUDA_MEMSET_NODE_PARAMS {
    let (value, size) = (word.value(), word.bytes());
    CUDA_MEMSET_NODE_PARAMS {
        dst: to,
        pitch: 0,
        value,
        elementSize: size as u32,
        width: bytes / size,
        height: 1,
    }
}

/// `host` is the address of pinned memory; without one `from` is the device's.
fn copy(to: CUdeviceptr, from: CUdeviceptr, host: Option<usize>, bytes: usize) -> CUDA_MEMCPY3D {
    let kind = match host {
        Some(_) => CUmemorytype::CU_MEMORYTYPE_HOST,
        None => CUmemorytype::CU_MEMORYTYPE_DEVICE,
    };
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: kind,
        srcHost: core::ptr::with_exposed_provenance(host.unwrap_or(0)),
        srcDevice: from,
        srcArray: CUarray::NULL,
        reserved0: core::ptr::null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: core::ptr::null_mut(),
        dstDevice: to,
        dstArray: CUarray::NULL,
        reserved1: core::ptr::null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}

/// Adds a node behind `last`, if that is one.
fn add(
    driver: Driver,
    context: CUcontext,
    graph: CUgraph,
    last: CUgraphNode,
    work: &Work,
) -> Result<CUgraphNode, DriverError> {
    let mut node = CUgraphNode::NULL;
    let (behind, count) = (&raw const last, usize::from(!last.is_null()));
    // SAFETY (all calls): graph and nodes are alive; parameters and lists are valid for the call, which copies them; what they
    // lead to is kept by the chain.
    match work {
        Work::Kernel(launch) => {
            let mut pointers = launch.args.pointers();
            let params = launch.params(&mut pointers);
            // SAFETY: as above.
            unsafe { call!(driver, cuGraphAddKernelNode(&mut node, graph, behind, count, &params)) }?;
            for attribute in launch.options.attributes().list() {
                // SAFETY: as above.
                unsafe {
                    call!(driver, cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value))
                }?;
            }
        }
        Work::Plain(Plain::Fill { to, word, bytes }) => {
            let params = fill(*to, *word, *bytes);
            // SAFETY: as above.
            unsafe {
                call!(driver, cuGraphAddMemsetNode(&mut node, graph, behind, count, &params, context))
            }?;
        }
        Work::Plain(Plain::Copy { to, from, bytes }) => {
            let params = copy(*to, *from, None, *bytes);
            // SAFETY: as above.
            unsafe {
                call!(driver, cuGraphAddMemcpyNode(&mut node, graph, behind, count, &params, context))
            }?;
        }
        Work::Plain(Plain::Upload { to, from, bytes }) => {
            let params = copy(*to, 0, Some(*from), *bytes);
            // SAFETY: as above.
            unsafe {
                call!(driver, cuGraphAddMemcpyNode(&mut node, graph, behind, count, &params, context))
            }?;
        }
        Work::Plain(Plain::Order) => {}
    }
    Ok(node)
}

/// Gives a node of an executable other parameters.
fn update(
    driver: Driver,
    context: CUcontext,
    exec: CUgraphExec,
    node: CUgraphNode,
    work: &Work,
) -> Result<(), DriverError> {
    // SAFETY (all calls): as for `add`; the node is of the graph that the executable was made from.
    match work {
        Work::Kernel(launch) => {
            let mut pointers = launch.args.pointers();
            let params = launch.params(&mut pointers);
            // SAFETY: as above.
            unsafe { call!(driver, cuGraphExecKernelNodeSetParams(exec, node, &params)) }
        }
        Work::Plain(Plain::Fill { to, word, bytes }) => {
            let params = fill(*to, *word, *bytes);
            // SAFETY: as above.
            unsafe { call!(driver, cuGraphExecMemsetNodeSetParams(exec, node, &params, context)) }
        }
        Work::Plain(Plain::Copy { to, from, bytes }) => {
            let params = copy(*to, *from, None, *bytes);
            // SAFETY: as above.
            unsafe { call!(driver, cuGraphExecMemcpyNodeSetParams(exec, node, &params, context)) }
        }
        Work::Plain(Plain::Upload { to, from, bytes }) => {
            let params = copy(*to, 0, Some(*from), *bytes);
            // SAFETY: as above.
            unsafe { call!(driver, cuGraphExecMemcpyNodeSetParams(exec, node, &params, context)) }
        }
        Work::Plain(Plain::Order) => Ok(()),
    }
}
