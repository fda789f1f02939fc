//! Steps of memoised chains, families of graphs, and kernels of graphs that are given other arguments.

use super::ops::{Outcome, attempt, launch, split, stepped};
use super::thread::{FINE, Modelled, Step, Thread, Told};
use simtile_async::{CudaGraph, DeviceOp, GraphFamily, Memo, OpError, copy, fill, memoize, zip};
use simtile_core::{Context, Stream};
use std::sync::Arc;

/// Kinds of steps.
pub const KINDS: usize = 5;

/// What all threads of a program use.
#[derive(Clone)]
pub struct Common {
    memo: Memo,
    family: Arc<GraphFamily>,
}

impl Common {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Told> {
        let family = Arc::new(GraphFamily::new(&context.new_stream()?)?);
        Ok(Self { memo: memoize(), family })
    }
}

/// What a capture or a run gives while the other thread has the family.
fn is_in_use(error: &OpError) -> bool {
    matches!(error, OpError::Graph { what } if what.contains("is being captured"))
}

impl Thread {
    /// One step.
    pub(super) fn graph_step(&mut self, kind: usize, stream: &Arc<Stream>, number: u32) -> Step {
        let Some((at, start, end)) = self.range() else { return FINE };
        let step = self.step.clone();
        let Common { memo, family } = self.common.clone();
        // Taken out, so that it can be borrowed beside everything else.
        let mut own = self.buffers.swap_remove(at);
        let Modelled { buffer, model } = &mut own;
        match kind {
            0 => {
                // A chain, of one of a few shapes.
                let wide = number.is_multiple_of(2);
                let view = buffer.slice_mut(start..end)?;
                attempt!(memo.run(fill(view, number).map(drop)).enqueue_on(stream));
                model[start..end].fill(number);
                let chain = attempt!(launch(&step, buffer));
                if wide {
                    attempt!(memo.run(chain).enqueue_on(stream));
                } else {
                    attempt!(memo.run(chain).sync_on(stream));
                }
                model.iter_mut().for_each(|v| *v = stepped(*v));
            }
            1 => {
                // Given up after any number of polls.
                let run = memo.run(attempt!(launch(&step, buffer)));
                match self.end(run.on(stream)) {
                    Outcome::Ready(outcome) => {
                        attempt!(outcome);
                        model.iter_mut().for_each(|v| *v = stepped(*v));
                    }
                    Outcome::GivenUp => model.iter_mut().for_each(|v| *v = stepped(*v)),
                    Outcome::Never => {}
                }
                if self.random.one_in(8) {
                    memo.forget();
                }
            }
            2 => {
                // Through a temporary, and back.
                let capturing = self.world.captures.read();
                let captured = family.capture(|scope| {
                    let mut scratch = scope.temporary::<u32>(end - start)?;
                    scope.record(copy(buffer.slice(start..end)?, scratch.reborrow()).map(drop))?;
                    scope.record(fill(buffer.slice_mut(start..end)?, number).map(drop))?;
                    scope.record(copy(scratch.as_view(), buffer.slice_mut(start..end)?).map(drop))?;
                    scope.record(launch(&step, buffer)?)
                });
                drop(capturing);
                let graph = match captured {
                    Ok(graph) => graph,
                    Err(error) if is_in_use(&error) => {
                        self.buffers.push(own);
                        return FINE;
                    }
                    Err(error) => return split(error),
                };
                for _ in 0..self.random.below(3) {
                    let on = self.stream();
                    attempt!(graph.launch().enqueue_on(&on));
                    model.iter_mut().for_each(|v| *v = stepped(*v));
                }
            }
            3 => {
                // A kernel moves from one buffer to another.
                let mut kernel = None;
                let on = self.context.new_stream()?;
                let capturing = self.world.captures.read();
                let graph = CudaGraph::scope(&on, |scope| {
                    kernel = Some(scope.record_kernel(launch(&step, buffer)?)?.1);
                    Ok(())
                });
                drop(capturing);
                let graph = attempt!(graph);
                if self.random.one_in(2) {
                    attempt!(graph.launch().enqueue_on(stream));
                    model.iter_mut().for_each(|v| *v = stepped(*v));
                }
                let (Some(kernel), Some(other)) = (kernel, self.buffers.last_mut()) else {
                    self.buffers.push(own);
                    return FINE;
                };
                attempt!(graph.set_kernel(kernel, attempt!(launch(&step, &mut other.buffer))));
                other.model.iter_mut().for_each(|v| *v = stepped(*v));
                let (graph, last) = (graph.launch(), self.stream());
                attempt!(graph.enqueue_on(&last));
            }
            _ => {
                // A memoised chain over two buffers, inside of a graph every now and then.
                let Some(other) = self.buffers.last_mut() else {
                    self.buffers.push(own);
                    return FINE;
                };
                let n = model.len().min(other.model.len());
                let (a, b) = (buffer.slice_mut(0..n)?, other.buffer.slice_mut(0..n)?);
                let chain = zip!(fill(a, number), fill(b, number)).map(drop);
                if self.random.one_in(4) {
                    let on = self.context.new_stream()?;
                    let capturing = self.world.captures.read();
                    let graph = memo.run(chain).graph_on(&on);
                    drop(capturing);
                    let graph = attempt!(graph);
                    attempt!(graph.launch().enqueue_on(stream));
                } else {
                    attempt!(memo.run(chain).enqueue_on(stream));
                }
                model[..n].fill(number);
                other.model[..n].fill(number);
            }
        }
        self.buffers.push(own);
        FINE
    }
}
