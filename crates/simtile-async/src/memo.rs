//! Memoised chains: operations that are run again and again in one shape.
//!
//! [`memoize`] gives a [`Memo`]; [`Memo::run`] makes a chain of operations into one that goes through it. What such a run does is what the
//! chain would do: its closures run, its output is its own, later work follows it. But its launches, copies and fills are not queued one by
//! one. The first run builds a graph of them; later ones compare, update what differs (addresses, values, geometry), and launch the graph,
//! which costs one driver call for the whole chain and one for each piece that differs. A chain of another shape (another kernel, more
//! pieces) builds the graph anew.
//!
//! # What is different
//! * Nothing of a chain is queued before all of it has been put together. An operation that a closure of the chain runs by itself
//!   comes before the chain; a chain that fails in the middle runs nothing.
//! * Downloads, calls of other libraries, graphs, strided copies and memory of other contexts cannot be in it. They can be before or behind it.
//! * The memo keeps what the last run touched: those buffers are not unique ([`Memo::forget`] gives them up). A chain that makes its buffers
//!   anew each time has new addresses each time.
//! * A result of [`shared`](crate::DeviceOp::shared) belongs to the run it was made in.

use crate::graph::Recording;
use crate::{DeviceOp, ExecutionContext, OpError, SubmitContext, into_future};
use core::fmt;
use core::task::Poll;
use simtile_core::{Script, ScriptStats};
use simtile_sync::Mutex;
use std::sync::Arc;

/// A chain of operations that repeats. See [`memoize`]. Clones are the same memo.
#[derive(Clone, Default)]
pub struct Memo {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Made by the first run, for its context.
    script: Option<Arc<Script>>,
    /// That of the last run, to be used again. Absent while a run has it.
    recording: Option<Arc<Recording>>,
    /// Somebody runs it.
    running: bool,
    /// What is kept goes when that run is over.
    forget: bool,
    /// Runs that found it running, or that were recorded into a graph or another chain.
    plain: u64,
}

/// What became of the runs of a [`Memo`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoStats {
    /// Runs that were launched as one graph.
    pub launches: u64,
    /// Of those, the ones for which a graph was built.
    pub built: u64,
    /// Pieces that had other addresses, values or geometry than in the run before.
    pub updated: u64,
    /// Runs that were not memoised: another thread was running the memo, or the run was part of a capture or of another chain.
    pub plain: u64,
}

/// A memo for a chain of operations that will be run many times.
///
/// ```
/// use simtile_async::{DeviceOp, copy, fill, memoize};
/// use simtile_core::DeviceBuffer;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let simulator = simtile_sim::Simulator::builder().quiet().build();
/// # let context = simtile_core::Context::new(simulator.driver(), 0)?;
/// let stream = context.new_stream()?;
/// let mut a = DeviceBuffer::<f32>::zeroed(&stream, 8)?;
/// let mut b = DeviceBuffer::<f32>::zeroed(&stream, 8)?;
/// let memo = memoize();
/// for step in 0..4 {
///     let chain = fill(&mut a, step as f32).then(|a| copy(&*a, &mut b)).map(drop);
///     memo.run(chain).enqueue_on(&stream)?;
/// }
/// assert_eq!(b.to_vec(&stream)?, [3.0; 8]);
/// // The value of the fill differed three times; the copy never.
/// assert_eq!((memo.stats().built, memo.stats().updated), (1, 3));
/// # Ok(()) }
/// ```
pub fn memoize() -> Memo {
    Memo::default()
}

impl Memo {
    /// The chain, run through this memo. It may be another one each time; what is alike is cheap.
    ///
    /// A run that finds the memo in use (another thread is putting a run together, or a future of one is pending) runs as if there were
    /// no memo.
    pub fn run<Op: DeviceOp>(&self, op: Op) -> MemoRun<Op> {
        MemoRun { memo: self.clone(), op: Some(op), output: None, mode: Mode::New }
    }

    /// What became of its runs.
    pub fn stats(&self) -> MemoStats {
        let state = self.inner.state.lock();
        let (script, plain) = (state.script.clone(), state.plain);
        drop(state);
        let ScriptStats { launches, built, updated_nodes, .. } =
            script.map_or_else(ScriptStats::default, |script| script.stats());
        MemoStats { launches, built, updated: updated_nodes, plain }
    }

    /// Gives up the graph and everything that it keeps; while a run is being put together, when that is over. The next run builds
    /// another one.
    pub fn forget(&self) {
        let mut state = self.inner.state.lock();
        if state.running {
            state.forget = true;
            return;
        }
        let script = state.script.clone();
        drop(state);
        if let Some(script) = script {
            script.forget();
        }
    }

    /// Takes the memo for a run. `None`: somebody has it.
    fn take(&self, cx: &SubmitContext<'_>) -> Option<ExecutionContext> {
        let mut state = self.inner.state.lock();
        if state.running || cx.execution().is_recording() {
            state.plain += 1;
            return None;
        }
        let context = cx.stream().context();
        let (script, old) = match &state.script {
            // A chain that moves to another context starts again.
            Some(script) if **script.context() == **context => (script.clone(), None),
            _ => {
                let script = Arc::new(Script::new(context));
                (script.clone(), Some((state.script.replace(script), state.recording.take())))
            }
        };
        state.running = true;
        let kept = state.recording.take();
        drop(state);
        drop(old);
        let pass = script.begin();
        let mut recording =
            kept.unwrap_or_else(|| Arc::new(Recording::Pass { script: script.clone(), pass }));
        match Arc::get_mut(&mut recording) {
            Some(mine) => *mine = Recording::Pass { script, pass },
            // A closure kept the context of an earlier run, which is over for it.
            None => recording = Arc::new(Recording::Pass { script, pass }),
        }
        Some(ExecutionContext::recording(cx.stream(), recording))
    }

    /// Gives it back.
    fn put(&self, execution: ExecutionContext) {
        let recording = execution.into_shared_recording();
        let mut state = self.inner.state.lock();
        if core::mem::take(&mut state.forget) {
            let script = state.script.clone();
            drop(state);
            if let Some(script) = script {
                script.forget();
            }
            state = self.inner.state.lock();
        }
        state.running = false;
        let old = core::mem::replace(&mut state.recording, recording);
        drop(state);
        drop(old);
    }
}

/// A run of a memoised chain: an operation of the chain's output. See [`Memo::run`].
#[must_use = "operations are lazy: run it with .await, .sync(), .enqueue_on() or .schedule()"]
pub struct MemoRun<Op: DeviceOp> {
    memo: Memo,
    op: Option<Op>,
    /// All pieces are there; the launch is not.
    output: Option<Op::Output>,
    mode: Mode,
}

enum Mode {
    New,
    /// Without the memo.
    Plain,
    Pass(ExecutionContext),
    Over,
}

impl<Op: DeviceOp> MemoRun<Op> {
    /// Ends the pass, if there is one.
    fn end(&mut self) {
        if let Mode::Pass(execution) = core::mem::replace(&mut self.mode, Mode::Over) {
            if let Some((script, _)) = execution.pass() {
                script.abandon();
            }
            self.memo.put(execution);
        }
    }

    /// Puts the chain together, then launches it.
    fn advance(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Op::Output, OpError>> {
        if matches!(self.mode, Mode::New) {
            self.mode = self.memo.take(cx).map_or(Mode::Plain, Mode::Pass);
        }
        let Mode::Pass(execution) = &self.mode else {
            return match (&self.mode, &mut self.op) {
                (Mode::Plain, Some(op)) => op.poll_submit(cx),
                _ => Poll::Ready(Err(OpError::Finished)),
            };
        };
        if let Some(op) = &mut self.op {
            match op.poll_submit(&mut cx.elsewhere(execution)) {
                Poll::Ready(Ok(output)) => self.output = Some(output),
                other => return other,
            }
            self.op = None;
        }
        let Some((script, pass)) = execution.pass() else { return Poll::Ready(Err(OpError::Finished)) };
        let launched = cx.submit().script(script, pass);
        match cx.settle(launched) {
            Poll::Ready(Ok(_)) => Poll::Ready(self.output.take().ok_or(OpError::Finished)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<Op: DeviceOp> DeviceOp for MemoRun<Op> {
    type Output = Op::Output;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<Op::Output, OpError>> {
        let polled = self.advance(cx);
        if polled.is_ready() {
            self.end();
        }
        polled
    }
}

into_future!([Op: DeviceOp] MemoRun<Op>);

impl<Op: DeviceOp> Drop for MemoRun<Op> {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memo").field(&self.stats()).finish()
    }
}
