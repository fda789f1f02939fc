//! Graphs: operations that were recorded once and are replayed.
//!
//! [`CudaGraph::capture`] submits an operation into a capture: closures run, nothing on the device does. Each [`CudaGraph::launch`] is an
//! operation like any other: it replays all of it, is ordered by what its nodes access, and gives nothing. Memory that is made in a
//! capture belongs to the graph: it is made before the first replay, keeps its address, and goes with the graph and what the
//! program has of it. Values that are uploaded in a capture are kept in pinned memory and copied by each replay. Host values that
//! come back cannot be part of a graph: download them from the outputs.

use crate::{DeviceOp, DeviceOutput, ExecutionContext, OpError, SubmitContext, drive, into_future};
use core::fmt;
use core::task::Poll;
use core::time::Duration;
use simtile_core::{
    Capture, CapturedGraph, Condition, Conditional, ConditionalNode, Context, GraphExec, KernelNode, Script,
    Stream, SubmitBuilder,
};
use simtile_sync::Mutex;
use std::sync::Arc;

/// Where operations are recorded.
#[derive(Debug)]
pub(crate) enum Recording {
    /// A capture that goes on.
    Capture {
        capture: Box<Capture>,
        /// Where memory is made meanwhile. Not part of the capture.
        outside: Arc<Stream>,
    },
    /// A pass of a memoised chain.
    Pass { script: Arc<Script>, pass: u64 },
}

impl Recording {
    fn begin(stream: &Arc<Stream>) -> Result<Arc<Self>, OpError> {
        let outside = stream.context().new_stream()?;
        Ok(Arc::new(Self::Capture { capture: Box::new(stream.begin_capture()?), outside }))
    }

    /// A number that no other recording has.
    pub(crate) fn world(&self) -> u64 {
        match self {
            Self::Capture { capture, .. } => capture.id(),
            Self::Pass { pass, .. } => *pass,
        }
    }

    pub(crate) fn submit<'a>(&'a self, stream: &'a Arc<Stream>) -> SubmitBuilder<'a> {
        match self {
            Self::Capture { capture, .. } => capture.submit(stream),
            Self::Pass { script, pass } => script.submit(*pass, stream),
        }
    }
}

/// Recorded work with its output. Cheap to launch: one driver call, whatever is in it.
pub struct CudaGraph<T> {
    replay: Arc<Replay>,
    output: Mutex<Option<T>>,
    stream: Arc<Stream>,
}

/// What a launch needs.
struct Replay {
    exec: Mutex<Arc<GraphExec>>,
}

impl<T: DeviceOutput + Send> CudaGraph<T> {
    /// Records an operation on a stream. The stream takes no other work meanwhile, and is as before afterwards, whatever happens.
    ///
    /// # Errors
    /// The operation's; an operation that cannot be captured; the driver's. Nothing of it will run then.
    pub fn capture<Op: DeviceOp<Output = T>>(stream: &Arc<Stream>, op: Op) -> Result<Self, OpError> {
        let (graph, output) = record(stream, |execution| drive::enqueue(op, execution))?;
        Self::new(graph, output, stream)
    }

    /// Records another operation of the same shape in place of this one (the same kinds of nodes in the same order): other
    /// buffers, other values. Launches before keep what they had. An operation of another shape gets a new executable. Gives the
    /// output before, if it was not taken, and whether it was an update.
    ///
    /// # Errors
    /// As [`CudaGraph::capture`]. The graph is as before then.
    pub fn recapture<Op: DeviceOp<Output = T>>(&self, op: Op) -> Result<(Option<T>, bool), OpError> {
        let (graph, output) = record(&self.stream, |execution| drive::enqueue(op, execution))?;
        let updated = self.replay.put(graph)?;
        Ok((self.output.lock().replace(output), updated))
    }
}

impl<T> CudaGraph<T> {
    /// The output of the operation: device values that each replay writes. `None` if it was taken.
    pub fn take_output(&self) -> Option<T> {
        self.output.lock().take()
    }

    /// Records several operations, on the scope's stream or on others that join it.
    ///
    /// ```
    /// use simtile_async::{CudaGraph, DeviceOp, fill, zeros};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let simulator = simtile_sim::Simulator::builder().quiet().build();
    /// # let context = simtile_core::Context::new(simulator.driver(), 0)?;
    /// let stream = context.new_stream()?;
    /// let graph = CudaGraph::scope(&stream, |scope| {
    ///     let buffer = scope.record(zeros::<f32>(4))?;
    ///     scope.record(fill(buffer, 2.5))
    /// })?;
    /// graph.launch().sync_on(&stream)?;
    /// assert_eq!(graph.take_output().unwrap().to_vec(&stream)?, [2.5; 4]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `run` gives; the driver's. A panic of `run` goes on after the capture has ended.
    pub fn scope(
        stream: &Arc<Stream>,
        run: impl FnOnce(&GraphScope<'_>) -> Result<T, OpError>,
    ) -> Result<Self, OpError> {
        let (graph, output) =
            record(stream, |execution| run(&GraphScope { execution, thread: core::marker::PhantomData }))?;
        Self::new(graph, output, stream)
    }

    fn new(graph: CapturedGraph, output: T, stream: &Arc<Stream>) -> Result<Self, OpError> {
        let replay = Arc::new(Replay { exec: Mutex::new(Arc::new(graph.instantiate()?)) });
        Ok(Self { replay, output: Mutex::new(Some(output)), stream: stream.clone() })
    }

    /// A replay of all of it, as an operation. It may outlive the graph.
    pub fn launch(&self) -> GraphLaunch {
        GraphLaunch { replay: self.replay.clone() }
    }

    /// Runs an operation on the graph's stream without waiting: new inputs for the next replay, for example. Ordered with replays on
    /// any stream by what it accesses.
    ///
    /// # Errors
    /// Of the submission.
    pub fn update<Op: DeviceOp>(&self, op: Op) -> Result<Op::Output, OpError> {
        op.enqueue_on(&self.stream)
    }

    /// The stream on which it was recorded.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// How many nodes it has.
    ///
    /// # Errors
    /// The driver's.
    pub fn nodes(&self) -> Result<usize, OpError> {
        Ok(self.replay.exec().graph().nodes()?)
    }

    /// How many of its edges let the node behind start before the one in front has finished: those of captured launches with
    /// [`programmatic_dependent_launch`](crate::AsyncKernelLaunchBuilder::programmatic_dependent_launch).
    ///
    /// # Errors
    /// The driver's; drivers before CUDA 12.3 do not tell.
    pub fn programmatic_edges(&self) -> Result<usize, OpError> {
        Ok(self.replay.exec().graph().programmatic_edges()?)
    }

    /// Writes a picture in Graphviz's DOT to a file.
    ///
    /// # Errors
    /// The driver's; a path with a NUL.
    pub fn write_dot(&self, path: &str) -> Result<(), OpError> {
        Ok(self.replay.exec().graph().write_dot(path)?)
    }
}

impl<T> CudaGraph<T> {
    /// Gives a kernel that [`GraphScope::record_kernel`] named the arguments and the geometry of another launch: `op` is an operation that
    /// launches once, and is not run. Launches of the graph before keep the old ones. The graph keeps what the new arguments reach, and what
    /// only the old ones reached no more. Waits while other threads are launching the graph.
    ///
    /// # Errors
    /// The operation's; [`GraphError::NotUpdatable`](simtile_core::GraphError::NotUpdatable): it does not launch exactly once, the kernel is
    /// of another graph, or the launch has other attributes; the driver's. The graph does what it did before then.
    pub fn set_kernel<Op: DeviceOp>(&self, kernel: KernelNode, op: Op) -> Result<Op::Output, OpError> {
        let script = Arc::new(Script::new(self.context()));
        let pass = script.begin();
        let recording = Arc::new(Recording::Pass { script: script.clone(), pass });
        let output = drive::enqueue(op, &ExecutionContext::recording(&self.stream, recording))?;
        let piece = script.take_kernel(pass)?;
        self.replay.change(|exec| Ok(exec.set_kernel(kernel, piece)?))?;
        Ok(output)
    }
}

/// Between two looks at whether an executable is free to be changed: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

impl Replay {
    /// Changes the executable while nobody launches it.
    fn change<R>(&self, change: impl FnOnce(&mut GraphExec) -> Result<R, OpError>) -> Result<R, OpError> {
        let mut pause = PAUSES.0;
        loop {
            let mut slot = self.exec.lock();
            if let Some(exec) = Arc::get_mut(&mut slot) {
                return change(exec);
            }
            // Another thread is launching it just now, or waits for room to.
            drop(slot);
            simtile_sync::time::sleep(pause);
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    fn exec(&self) -> Arc<GraphExec> {
        self.exec.lock().clone()
    }

    /// As [`Replay::exec`], without waiting for a thread that changes it: that may take the driver long.
    fn try_exec(&self) -> Option<Arc<GraphExec>> {
        self.exec.try_lock().map(|exec| exec.clone())
    }

    /// Puts other work in the place of this. Whether it was an update of the executable.
    fn put(&self, graph: CapturedGraph) -> Result<bool, OpError> {
        let mut slot = self.exec.lock();
        match Arc::get_mut(&mut slot) {
            Some(exec) => Ok(exec.update_or_replace(graph)?),
            None => {
                // Another thread is launching it just now.
                let old = core::mem::replace(&mut *slot, Arc::new(graph.instantiate()?));
                drop(slot);
                drop(old);
                Ok(false)
            }
        }
    }
}

/// Records what `run` submits. Every exit ends the capture.
fn record<T>(
    stream: &Arc<Stream>,
    run: impl FnOnce(&ExecutionContext) -> Result<T, OpError>,
) -> Result<(CapturedGraph, T), OpError> {
    let scope = Scope(Recording::begin(stream)?);
    let output = run(&ExecutionContext::recording(stream, scope.0.clone()))?;
    match &*scope.0 {
        Recording::Capture { capture, .. } => Ok((capture.end()?, output)),
        Recording::Pass { .. } => Err(OpError::Graph { what: "a chain is no capture".into() }),
    }
}

/// A capture that ends with this, also if an operation kept its context: that records nothing from then on.
struct Scope(Arc<Recording>);

impl Drop for Scope {
    fn drop(&mut self) {
        if let Recording::Capture { capture, .. } = &*self.0 {
            capture.abandon();
        }
    }
}

/// Where operations are recorded. See [`CudaGraph::scope`].
#[derive(Debug)]
pub struct GraphScope<'a> {
    execution: &'a ExecutionContext,
    /// A scope stays on its thread.
    thread: core::marker::PhantomData<*const ()>,
}

impl GraphScope<'_> {
    /// Records an operation on the scope's stream and gives its output.
    ///
    /// # Errors
    /// As [`CudaGraph::capture`].
    pub fn record<Op: DeviceOp>(&self, op: Op) -> Result<Op::Output, OpError> {
        drive::enqueue(op, self.execution)
    }

    /// Records an operation that launches once, and names the launch, for [`CudaGraph::set_kernel`].
    ///
    /// # Errors
    /// As [`GraphScope::record`]; [`GraphError::NotUpdatable`](simtile_core::GraphError::NotUpdatable) if it does not launch exactly once.
    pub fn record_kernel<Op: DeviceOp>(&self, op: Op) -> Result<(Op::Output, KernelNode), OpError> {
        let (capture, _, _) = self.capture()?;
        capture.name_kernel(|| self.record(op))
    }

    /// A number that kernels of this graph set, and that decides about [`GraphScope::conditional`]. Each launch begins with `default`.
    /// A graph with a condition that no conditional node looks at is refused by the driver.
    ///
    /// # Errors
    /// The driver's; drivers before CUDA 12.4 have no conditional nodes.
    pub fn condition(&self, default: u32) -> Result<Condition, OpError> {
        let (capture, _, stream) = self.capture()?;
        Ok(capture.condition(stream, default)?)
    }

    /// Records what `run` records as the body of a conditional node on the scope's stream: it runs if, or as long as, the condition is not 0. (Of
    /// kinds that have several bodies it is the first; [`GraphScope::if_else`] and [`GraphScope::switch`] record all of them.) Kernels that set the condition are recorded before it in this scope, or in the body. Memory that is made in the body belongs to
    /// the graph.
    ///
    /// A body may have conditional nodes of its own, also with conditions of the scopes around it.
    ///
    /// # Errors
    /// What `run` gives; the driver's: a body has kernels, copies, fills, graphs of those and conditional nodes. The capture fails in any case
    /// then, whatever becomes of the error.
    pub fn conditional<T>(
        &self,
        condition: &Condition,
        kind: Conditional,
        run: impl FnOnce(&GraphScope<'_>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let (capture, _, stream) = self.capture()?;
        let mut node = capture.begin_conditional(condition, kind)?;
        let output = self.body(&mut node, 0, run)?;
        capture.end_conditional(stream, node)?;
        Ok(output)
    }

    /// As [`GraphScope::conditional`], with two bodies: `run(true, …)` records the one that runs if the condition is not 0, `run(false, …)` the other.
    /// Gives both outputs, in this order.
    ///
    /// # Errors
    /// As [`GraphScope::conditional`]; drivers before CUDA 12.8 have no second body.
    pub fn if_else<T>(
        &self,
        condition: &Condition,
        mut run: impl FnMut(bool, &GraphScope<'_>) -> Result<T, OpError>,
    ) -> Result<(T, T), OpError> {
        let (capture, _, stream) = self.capture()?;
        let mut node = capture.begin_conditional(condition, Conditional::IfElse)?;
        let then = self.body(&mut node, 0, |scope| run(true, scope))?;
        let otherwise = self.body(&mut node, 1, |scope| run(false, scope))?;
        capture.end_conditional(stream, node)?;
        Ok((then, otherwise))
    }

    /// As [`GraphScope::conditional`], with so many bodies, of which that one runs whose number the condition is, counted from 0; none if there is
    /// no such. `run` records each of them, and is given its number.
    ///
    /// # Errors
    /// As [`GraphScope::conditional`], and for no bodies; drivers before CUDA 12.8 have no such nodes.
    pub fn switch<T>(
        &self,
        condition: &Condition,
        bodies: u32,
        mut run: impl FnMut(u32, &GraphScope<'_>) -> Result<T, OpError>,
    ) -> Result<Vec<T>, OpError> {
        let (capture, _, stream) = self.capture()?;
        let mut node = capture.begin_conditional(condition, Conditional::Switch(bodies))?;
        let record = |number| self.body(&mut node, number as usize, |scope| run(number, scope));
        let outputs = (0..bodies).map(record).collect::<Result<_, _>>()?;
        capture.end_conditional(stream, node)?;
        Ok(outputs)
    }

    /// Records one body of a conditional node.
    fn body<T>(
        &self,
        node: &mut ConditionalNode,
        number: usize,
        run: impl FnOnce(&GraphScope<'_>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let (_, outside, _) = self.capture()?;
        // Its stream is free: what it records waits for nothing outside, and is ordered as a whole.
        let stream_of_memory = outside.context().new_stream()?;
        let body = Box::new(node.begin_body(number, outside)?);
        let scope = Scope(Arc::new(Recording::Capture { capture: body, outside: stream_of_memory }));
        let execution = ExecutionContext::recording(outside, scope.0.clone());
        let output = run(&GraphScope { execution: &execution, thread: core::marker::PhantomData })?;
        if let Recording::Capture { capture: body, .. } = &*scope.0 {
            node.end_body(body)?;
        }
        Ok(output)
    }

    /// Runs an operation now, outside of the capture: memory that replays do not fill, for example. Captured work may use its output.
    ///
    /// # Errors
    /// The operation's.
    pub fn outside<Op: DeviceOp>(&self, op: Op) -> Result<Op::Output, OpError> {
        let (_, outside, _) = self.capture()?;
        drive::enqueue(op, &ExecutionContext::new(outside))
    }

    /// The capture, where memory is made meanwhile, and the scope's stream.
    pub(crate) fn capture(&self) -> Result<(&Capture, &Arc<Stream>, &Arc<Stream>), OpError> {
        match self.execution.capture() {
            Some((capture, outside)) => Ok((capture, outside, self.execution.stream())),
            None => Err(OpError::Graph { what: "the scope records nothing".into() }),
        }
    }

    /// Takes another stream in, behind what the scope's stream has recorded so far. It joins at the end.
    ///
    /// # Errors
    /// The stream is in use by a capture, or the driver's.
    pub fn fork(&self, stream: &Arc<Stream>) -> Result<(), OpError> {
        let (capture, _, _) = self.capture()?;
        Ok(capture.add_stream(stream)?)
    }

    /// Records an operation on a stream that [`GraphScope::fork`] took in. What conflicts is ordered.
    ///
    /// # Errors
    /// As [`CudaGraph::capture`].
    pub fn record_on<Op: DeviceOp>(&self, stream: &Arc<Stream>, op: Op) -> Result<Op::Output, OpError> {
        drive::enqueue(op, &self.execution.on_stream(stream))
    }
}

/// A replay. See [`CudaGraph::launch`].
#[must_use = "operations are lazy: run it with .await, .sync(), .enqueue_on() or .schedule()"]
pub struct GraphLaunch {
    replay: Arc<Replay>,
}

impl DeviceOp for GraphLaunch {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        let exec = match cx.may_block() {
            true => self.replay.exec(),
            false => match self.replay.try_exec() {
                Some(exec) => exec,
                None => {
                    cx.again();
                    return Poll::Pending;
                }
            },
        };
        let launched = cx.submit().graph(&exec);
        cx.settle(launched).map_ok(drop)
    }
}

into_future!(GraphLaunch);

impl<T> fmt::Debug for CudaGraph<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGraph").field("exec", &self.replay.exec()).field("stream", &self.stream).finish()
    }
}
