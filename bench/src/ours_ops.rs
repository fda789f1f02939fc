//! simtile's operations: run, awaited, replayed.

use crate::ours::{Launcher, Ours};
use crate::pairs::{Result, Side};
use crate::raw::{CHAIN, GraphCosts};
use simtile::ops::{
    AsyncKernelLaunch, AsyncKernelLaunchBuilder, CudaGraph, GraphFamily, Memo, fill, into_future, memoize,
};
use simtile::{DeviceOp, OpError, SubmitContext};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Errors as text.
fn text<T>(result: core::result::Result<T, impl core::fmt::Display>) -> Result<T> {
    result.map_err(|error| format!("simtile: {error}"))
}

fn op(launcher: &mut Launcher) -> Result<AsyncKernelLaunch<'_>> {
    let [a, b, c] = &*launcher.inputs;
    let builder =
        AsyncKernelLaunchBuilder::new(&launcher.k4).write(&mut launcher.out).read(a).read(b).read(c);
    // SAFETY: `k4` stores nothing for this n.
    text(unsafe { builder.arg(1024_u64).finalize_unchecked(crate::ours::CONFIG) })
}

/// Row `op_enqueue`.
pub struct OpEnqueue(Launcher);
/// Row `op_sync`.
pub struct OpSync(Launcher);

impl OpEnqueue {
    pub fn new() -> Result<Self> {
        Ok(Self(Ours::new()?.launcher(None)?))
    }
}

impl OpSync {
    pub fn new() -> Result<Self> {
        Ok(Self(Ours::new()?.launcher(None)?))
    }
}

impl Side for OpEnqueue {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        let stream = self.0.stream.clone();
        text(op(&mut self.0)?.enqueue_on(&stream))
    }
    fn settle(&mut self) -> Result {
        self.0.sync()
    }
}

impl Side for OpSync {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        let stream = self.0.stream.clone();
        text(op(&mut self.0)?.sync_on(&stream))
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Rows `op_await` and `op_await_spin0`: awaited by a thread that parks.
pub struct OpAwait {
    launcher: Launcher,
    spin: Option<Duration>,
    waker: Waker,
}

impl OpAwait {
    pub fn new(spin: Option<Duration>) -> Result<Self> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        Ok(Self { launcher: Ours::new()?.launcher(None)?, spin, waker })
    }
}

impl Side for OpAwait {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        let stream = self.launcher.stream.clone();
        let mut future = op(&mut self.launcher)?.on(&stream);
        if let Some(spin) = self.spin {
            future = future.spin(spin);
        }
        let mut cx = Context::from_waker(&self.waker);
        loop {
            match Pin::new(&mut future).poll(&mut cx) {
                Poll::Ready(outcome) => return text(outcome),
                Poll::Pending => std::thread::park(),
            }
        }
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// Rows `graph_replay_1` and `graph_replay_100`.
pub struct Replay {
    graph: CudaGraph<()>,
    launcher: Launcher,
}

impl Replay {
    pub fn new(nodes: usize) -> Result<Self> {
        let mut launcher = Ours::new()?.launcher(None)?;
        let stream = launcher.stream.clone();
        let graph = CudaGraph::scope(&stream, |scope| {
            for _ in 0..nodes {
                scope.record(op(&mut launcher).map_err(simtile::OpError::user)?)?;
            }
            Ok(())
        });
        Ok(Self { graph: text(graph)?, launcher })
    }
}

impl Side for Replay {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        text(self.graph.launch().enqueue_on(&self.launcher.stream))
    }
    fn settle(&mut self) -> Result {
        self.launcher.sync()
    }
}

/// [`CHAIN`] launches in a row.
struct Launches<'a> {
    launcher: &'a mut Launcher,
    left: usize,
}

impl DeviceOp for Launches<'_> {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<core::result::Result<(), OpError>> {
        while self.left > 0 {
            match op(self.launcher).map_err(OpError::user)?.poll_submit(cx) {
                Poll::Ready(Ok(())) => self.left -= 1,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }
}

into_future!(['a] Launches<'a>);

/// Rows `memo_chain_100` and `memo_chain_100_new`: the chain memoised, with the buffers of the time before, or all others; waited for.
pub struct Chain {
    memo: Memo,
    launchers: Vec<Launcher>,
    turn: usize,
}

impl Chain {
    pub fn new(new: bool) -> Result<Self> {
        let ours = Ours::new()?;
        let count = if new { 2 } else { 1 };
        let launchers = (0..count).map(|_| ours.launcher(None)).collect::<Result<Vec<_>>>()?;
        Ok(Self { memo: memoize(), launchers, turn: 0 })
    }
}

impl Side for Chain {
    #[inline]
    fn operation(&mut self, _: usize) -> Result {
        self.turn = (self.turn + 1) % self.launchers.len();
        let stream = self.launchers[0].stream.clone();
        let chain = Launches { launcher: &mut self.launchers[self.turn], left: CHAIN };
        text(self.memo.run(chain).sync_on(&stream))
    }
    fn settle(&mut self) -> Result {
        Ok(())
    }
}

/// See [`crate::raw::graph_costs`]: the same with captures of ours.
pub fn graph_costs(nodes: usize, graphs: usize) -> Result<GraphCosts> {
    let mut launcher = Ours::new()?.launcher(None)?;
    let stream = launcher.stream.clone();
    let context = stream.context().clone();
    let free = || text(context.memory_info()).map(|info| info.free);
    let (mut capturing, mut making, mut execs) = (Vec::new(), Vec::new(), Vec::new());
    let mut make = |timed: bool| -> Result {
        let start = Instant::now();
        let capture = text(stream.begin_capture())?;
        for _ in 0..nodes {
            let [a, b, c] = &*launcher.inputs;
            let args = simtile::LaunchArgs::new();
            let args = args.buffer_mut(&mut launcher.out).buffer(a).buffer(b).buffer(c).arg(1024_u64);
            // SAFETY: `k4` stores nothing for this n.
            text(unsafe { capture.submit(&stream).launch(&launcher.k4, crate::ours::CONFIG, args) })?;
        }
        let graph = text(capture.finish())?;
        let captured = Instant::now();
        let exec = text(graph.instantiate())?;
        if timed {
            capturing.push(captured - start);
            making.push(captured.elapsed());
        }
        text(stream.submit().graph(&exec))?;
        execs.push(exec);
        Ok(())
    };
    make(false)?;
    text(stream.synchronize())?;
    let before = free()?;
    (0..graphs).try_for_each(|_| make(true))?;
    text(stream.synchronize())?;
    let bytes = before.saturating_sub(free()?) / graphs;
    Ok(GraphCosts::new(capturing, making, nodes, bytes))
}

/// 32 sizes of a graph with two temporaries and one small output in a family, and the largest of them alone: bytes of device memory,
/// and bytes of the shared memory.
pub fn family_memory() -> Result<String> {
    const SIZES: usize = 32;
    const STEP: usize = 4 << 20;
    let context = text(text(text(simtile::Runtime::new())?.device(0))?.primary_context())?;
    let stream = text(context.new_stream())?;
    let free = || text(context.memory_info()).map(|info| info.free);
    let measure = |sizes: &[usize]| -> Result<(usize, usize)> {
        text(context.trim())?;
        let before = free()?;
        let family = text(GraphFamily::new(&stream))?;
        let mut graphs = Vec::new();
        for &bytes in sizes {
            let graph = family.capture(|scope| {
                let (mut a, mut b) = (scope.temporary::<u8>(bytes)?, scope.temporary::<u8>(bytes)?);
                scope.record(fill(a.reborrow(), 1).map(drop))?;
                scope.record(fill(b.reborrow(), 2).map(drop))
            });
            graphs.push(text(graph)?);
        }
        for graph in &graphs {
            text(graph.launch().enqueue_on(&stream))?;
        }
        text(stream.synchronize())?;
        let used = before.saturating_sub(free()?);
        Ok((used, family.num_bytes().unwrap_or(0)))
    };
    let all: Vec<usize> = (1..=SIZES).map(|i| i * STEP).collect();
    let (one, one_shared) = measure(&all[SIZES - 1..])?;
    let (many, many_shared) = measure(&all)?;
    Ok(format!(
        "family     {SIZES} sizes: {many} bytes, shared {many_shared}; the largest alone: {one} bytes, shared {one_shared}; ratio {:.3}, shared {:.3}",
        many as f64 / one.max(1) as f64,
        many_shared as f64 / one_shared.max(1) as f64,
    ))
}
