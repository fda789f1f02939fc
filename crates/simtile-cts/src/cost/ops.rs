//! Rows of operations and graphs.
//!
//! | row | what is done |
//! | --- | --- |
//! | `op_enqueue_4` | a launch of four buffers is put together, finalized and enqueued |
//! | `op_sync_4` | the same, run and waited for on this thread |
//! | `op_await_4` | the same, polled as a future; the work has finished by then |
//! | `graph_replay_N` | one replay of a graph of N such launches |
//! | `memo_chain_100` | a chain of 100 such launches, memoised, with the same buffers as before |
//! | `memo_chain_100_new` | the same, all with other buffers than before |

use super::{Bench, Error, Path};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use simtile_async::{
    AsyncKernelLaunch, AsyncKernelLaunchBuilder, CudaGraph, DeviceOp, Memo, SubmitContext, into_future,
};
use simtile_core::{DeviceBuffer, Function};
use simtile_types::LaunchConfig;

/// What rows keep from one operation to the next.
#[derive(Default)]
pub(super) struct Kept {
    graph: Option<CudaGraph<()>>,
    memo: Memo,
    runs: usize,
}

/// Launches of four buffers in a row.
struct Chain<'a> {
    left: usize,
    function: &'a Function,
    buffers: &'a mut [DeviceBuffer<f32>],
}

impl DeviceOp for Chain<'_> {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), Error>> {
        while self.left > 0 {
            match launch(self.function, self.buffers)?.poll_submit(cx) {
                Poll::Ready(Ok(())) => self.left -= 1,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }
}

into_future!(['a] Chain<'a>);

/// Runs a chain of 100 launches through the memo, on one of two sets of buffers.
fn memoised(bench: &mut Bench, set: usize) -> Result<(), Error> {
    let (function, stream) = (bench.function(4).clone(), bench.stream.clone());
    let buffers = &mut bench.buffers[4 * set..4 * set + 4];
    bench.ops.runs += 1;
    bench.ops.memo.run(Chain { left: 100, function: &function, buffers }).enqueue_on(&stream)
}

/// A launch of four buffers, of which it writes the first.
fn launch<'a>(
    function: &Function,
    buffers: &'a mut [DeviceBuffer<f32>],
) -> Result<AsyncKernelLaunch<'a>, Error> {
    let mut builder = AsyncKernelLaunchBuilder::new(function);
    if let [out, a, b, c, ..] = buffers {
        builder = builder.write(out).read(a).read(b).read(c);
    }
    // SAFETY: the null driver runs nothing.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(32)) }
}

fn replay(bench: &mut Bench, nodes: usize) -> Result<(), Error> {
    let stream = bench.stream.clone();
    if let Some(graph) = &bench.ops.graph {
        return graph.launch().enqueue_on(&stream);
    }
    let function = bench.function(4).clone();
    let buffers = &mut bench.buffers;
    let graph = CudaGraph::scope(&stream, |scope| {
        for _ in 0..nodes {
            scope.record(launch(&function, buffers)?)?;
        }
        Ok(())
    })?;
    bench.ops.graph = Some(graph);
    Ok(())
}

pub(super) fn paths() -> Vec<Path> {
    vec![
        ("op_enqueue_4".into(), 640, |bench| {
            let (function, stream) = (bench.function(4).clone(), bench.stream.clone());
            launch(&function, &mut bench.buffers)?.enqueue_on(&stream)
        }),
        ("op_sync_4".into(), 640, |bench| {
            let (function, stream) = (bench.function(4).clone(), bench.stream.clone());
            launch(&function, &mut bench.buffers)?.sync_on(&stream)
        }),
        ("op_await_4".into(), 640, |bench| {
            let (function, stream) = (bench.function(4).clone(), bench.stream.clone());
            let mut future = launch(&function, &mut bench.buffers)?.on(&stream);
            match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => Err(Error::NotReady),
            }
        }),
        ("graph_replay_1".into(), 640, |bench| replay(bench, 1)),
        ("graph_replay_100".into(), 640, |bench| replay(bench, 100)),
        ("memo_chain_100".into(), 64, |bench| memoised(bench, 0)),
        ("memo_chain_100_new".into(), 64, |bench| memoised(bench, bench.ops.runs % 2)),
    ]
}
