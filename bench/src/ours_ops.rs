//! simtile's operations: run, awaited, replayed.

use crate::ours::{Launcher, Ours};
use crate::pairs::{Result, Side};
use simtile::DeviceOp;
use simtile::ops::{AsyncKernelLaunch, AsyncKernelLaunchBuilder, CudaGraph};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

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
