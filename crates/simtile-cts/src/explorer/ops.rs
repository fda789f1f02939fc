//! Steps of operations: run, awaited, cancelled after any number of polls, dropped, forgotten; graphs replayed and dropped.

use super::MOST;
use super::thread::{FINE, Modelled, Step, Thread, Told};
use crate::parked::{Parked, wait};
use simtile_async::{
    AsyncKernelLaunch, AsyncKernelLaunchBuilder, CudaGraph, DeviceFuture, DeviceOp, OpError, download, fill,
    join, upload, value, zip,
};
use simtile_core::{DeviceBuffer, Function, Stream};
use simtile_types::LaunchConfig;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Kinds of steps.
pub const KINDS: usize = 11;

/// What became of a future.
pub(super) enum Outcome<T> {
    /// It gave its result.
    Ready(T),
    /// It was given up after its work was submitted.
    GivenUp,
    /// It was given up before.
    Never,
}

/// What the caller is told.
pub(super) fn split(error: OpError) -> Step {
    Err(Told::from(error))
}

macro_rules! attempt {
    ($outcome:expr) => {
        match $outcome {
            Ok(value) => value,
            Err(error) => return split(error),
        }
    };
}

pub(super) use attempt;

/// What the kernel does to a value.
pub(super) fn stepped(v: u32) -> u32 {
    v.wrapping_mul(3).wrapping_add(1)
}

pub(super) fn launch<'a>(
    step: &Function,
    buffer: &'a mut DeviceBuffer<u32>,
) -> Result<AsyncKernelLaunch<'a>, OpError> {
    let n = buffer.len() as u32;
    let builder = AsyncKernelLaunchBuilder::new(step).write(buffer).arg(n).arg(1u32);
    // SAFETY: the kernel updates the words of its buffer, of which it is told.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(n)) }
}

impl Thread {
    /// Awaits a future, or polls it a few times and drops or forgets it.
    pub(super) fn end<Op: DeviceOp>(
        &mut self,
        mut future: DeviceFuture<Op>,
    ) -> Outcome<<DeviceFuture<Op> as Future>::Output> {
        if self.random.one_in(2) {
            return Outcome::Ready(wait(future));
        }
        let waker = Waker::from(Arc::<Parked>::default());
        for _ in 0..self.random.below(4) {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                return Outcome::Ready(output);
            }
            simtile_sync::thread::yield_now();
        }
        let submitted = future.is_submitted();
        if submitted && self.random.one_in(3) {
            // Of what was not submitted, the operation itself would leak.
            std::mem::forget(future);
        }
        if submitted { Outcome::GivenUp } else { Outcome::Never }
    }

    /// One step.
    pub(super) fn operation(&mut self, kind: usize, stream: &Arc<Stream>, number: u32) -> Step {
        let Some((at, start, end)) = self.range() else { return FINE };
        // Taken out, so that it can be borrowed beside everything else.
        let mut own = self.buffers.swap_remove(at);
        let Modelled { buffer, model } = &mut own;
        match kind {
            0 => {
                let view = buffer.slice_mut(start..end)?;
                match self.end(fill(view, number).on(stream)) {
                    Outcome::Ready(outcome) => {
                        attempt!(outcome.map(drop));
                        model[start..end].fill(number);
                    }
                    Outcome::GivenUp => model[start..end].fill(number),
                    Outcome::Never => {}
                }
            }
            1 => {
                let step = self.step.clone();
                let future = attempt!(launch(&step, buffer)).on(stream);
                match self.end(future) {
                    Outcome::Ready(outcome) => {
                        attempt!(outcome);
                        model.iter_mut().for_each(|v| *v = stepped(*v));
                    }
                    Outcome::GivenUp => model.iter_mut().for_each(|v| *v = stepped(*v)),
                    Outcome::Never => {}
                }
            }
            2 => {
                // Owned: a future that is given up takes the buffer with it. Forgotten, it would keep it.
                let Modelled { buffer, mut model } = own;
                let op = value(buffer).then(|b| fill(b, number)).map(|b| b);
                if self.random.one_in(2) {
                    let buffer = attempt!(wait(op.on(stream)));
                    model.fill(number);
                    self.buffers.push(Modelled { buffer, model });
                } else {
                    let mut future = op.on(stream);
                    let waker = Waker::from(Arc::<Parked>::default());
                    for _ in 0..self.random.below(3) {
                        let _ = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_ready();
                    }
                }
                return FINE;
            }
            3 => {
                let values: Vec<u32> = (0..MOST as u32).map(|i| number.wrapping_add(i)).collect();
                let mut future = upload(values.clone()).on(stream);
                if self.random.one_in(3) {
                    let waker = Waker::from(Arc::<Parked>::default());
                    let _ = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_ready();
                } else {
                    let made = attempt!(wait(future));
                    if self.buffers.len() < super::BUFFERS {
                        self.buffers.push(Modelled { buffer: made, model: values });
                    }
                }
            }
            4 => {
                let found = attempt!(wait(download(&*buffer).on(stream)));
                if found != *model {
                    return Ok(Err(format!("a download of {buffer:?} gave other values")));
                }
            }
            5 => {
                let other = self.stream();
                let found = attempt!(download(&*buffer).map_ready(|values| values.len()).sync_on(&other));
                if found != model.len() {
                    return Ok(Err("a download of another length".into()));
                }
            }
            6 => {
                let step = self.step.clone();
                let op = attempt!(launch(&step, buffer));
                // On a stream of its own: while a capture goes on, its stream takes no other work.
                let on = self.context.new_stream()?;
                let capturing = self.world.captures.read();
                let graph = CudaGraph::capture(&on, op);
                drop(capturing);
                let graph = attempt!(graph);
                for _ in 0..self.random.below(3) {
                    let on = self.stream();
                    attempt!(graph.launch().enqueue_on(&on));
                    model.iter_mut().for_each(|v| *v = stepped(*v));
                }
                drop(graph);
            }
            7 => {
                let step = self.step.clone();
                let on = self.context.new_stream()?;
                let capturing = self.world.captures.read();
                let graph = CudaGraph::scope(&on, |scope| {
                    scope.record(launch(&step, buffer)?)?;
                    scope.record(upload(vec![number; 5]))
                });
                drop(capturing);
                let graph = attempt!(graph);
                let made = graph.take_output();
                let future = graph.launch().on(stream);
                drop(graph);
                match self.end(future) {
                    Outcome::Ready(outcome) => {
                        attempt!(outcome);
                        model.iter_mut().for_each(|v| *v = stepped(*v));
                        let found = made.map(|made| made.to_vec(&on)).transpose()?;
                        if found != Some(vec![number; 5]) {
                            return Ok(Err(format!("a graph's own buffer holds {found:?}")));
                        }
                    }
                    Outcome::GivenUp => model.iter_mut().for_each(|v| *v = stepped(*v)),
                    Outcome::Never => {}
                }
            }
            8 => {
                let (mut left, mut right) = buffer.split_at_mut(start)?;
                let (a, b) = (fill(left.reborrow(), number), fill(right.reborrow(), !number));
                if self.random.one_in(2) {
                    attempt!(zip!(a.map(drop), b.map(drop)).sync_on(stream));
                } else {
                    let other = self.stream();
                    let streams = simtile_async::StreamPoolRoundRobin::from_streams([stream.clone(), other]);
                    attempt!(wait(attempt!(join!(a.map(drop), b.map(drop)).schedule(&attempt!(streams)))));
                }
                model[..start].fill(number);
                model[start..].fill(!number);
            }
            9 => {
                let count = model.len();
                let shared = simtile_async::zeros::<u32>(count).shared();
                let (first, second) = (shared.clone(), shared);
                let other = self.stream();
                let a = attempt!(first.then(download).sync_on(stream));
                let b = attempt!(wait(second.then(download).on(&other)));
                if a != b || a.iter().any(|&v| v != 0) {
                    return Ok(Err("a shared operation gave two values".into()));
                }
            }
            _ => {
                // Order without work, then an inner operation inside a closure.
                let other = self.stream();
                let op = value(()).map(|()| upload(vec![number]).then(download).sync_on(&other));
                let inner = attempt!(attempt!(op.map(simtile_async::Plain).sync_on(stream)));
                if inner != [number] {
                    return Ok(Err("an operation inside a closure gave other values".into()));
                }
            }
        }
        self.buffers.push(own);
        FINE
    }
}
