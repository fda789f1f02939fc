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
use simtile_core::{Capture, Context, GraphExec, Stream};
use simtile_sync::Mutex;
use std::sync::Arc;

/// A capture that goes on, and where memory is made meanwhile.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) capture: Capture,
    /// Not part of the capture.
    pub(crate) outside: Arc<Stream>,
}

impl Recording {
    fn begin(stream: &Arc<Stream>) -> Result<Arc<Self>, OpError> {
        let outside = stream.context().new_stream()?;
        Ok(Arc::new(Self { capture: stream.begin_capture()?, outside }))
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
        let (exec, output) = record(stream, |execution| drive::enqueue(op, execution))?;
        Ok(Self::new(exec.instantiate()?, output, stream))
    }

    fn new(exec: GraphExec, output: T, stream: &Arc<Stream>) -> Self {
        let replay = Arc::new(Replay { exec: Mutex::new(Arc::new(exec)) });
        Self { replay, output: Mutex::new(Some(output)), stream: stream.clone() }
    }

    /// The output of the operation: device values that each replay writes. `None` if it was taken.
    pub fn take_output(&self) -> Option<T> {
        self.output.lock().take()
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

    /// Writes a picture in Graphviz's DOT to a file.
    ///
    /// # Errors
    /// The driver's; a path with a NUL.
    pub fn write_dot(&self, path: &str) -> Result<(), OpError> {
        Ok(self.replay.exec().graph().write_dot(path)?)
    }
}

impl Replay {
    fn exec(&self) -> Arc<GraphExec> {
        self.exec.lock().clone()
    }

    /// Puts other work in the place of this. Whether it was an update of the executable.
    fn put(&self, graph: simtile_core::CapturedGraph) -> Result<bool, OpError> {
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
) -> Result<(simtile_core::CapturedGraph, T), OpError> {
    let recording = Recording::begin(stream)?;
    let execution = ExecutionContext::recording(stream, recording);
    let output = run(&execution)?;
    let Some(recording) = execution.into_recording() else {
        let what = "an operation kept the capture beyond its end".into();
        return Err(OpError::Graph { what });
    };
    Ok((recording.capture.finish()?, output))
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

    /// Runs an operation now, outside of the capture: memory that replays do not fill, for example. Captured work may use its output.
    ///
    /// # Errors
    /// The operation's.
    pub fn outside<Op: DeviceOp>(&self, op: Op) -> Result<Op::Output, OpError> {
        match self.execution.recorder() {
            Some(recording) => drive::enqueue(op, &ExecutionContext::new(&recording.outside)),
            None => Err(OpError::Graph { what: "the scope records nothing".into() }),
        }
    }

    /// Takes another stream in, behind what the scope's stream has recorded so far. It joins at the end.
    ///
    /// # Errors
    /// The stream is in use by a capture, or the driver's.
    pub fn fork(&self, stream: &Arc<Stream>) -> Result<(), OpError> {
        match self.execution.recorder() {
            Some(recording) => Ok(recording.capture.add_stream(stream)?),
            None => Err(OpError::Graph { what: "the scope records nothing".into() }),
        }
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
        let exec = self.replay.exec();
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
