//! A thread of a program: its buffers with their models, and the steps of buffers and views.

use super::{BUFFERS, Kind, MOST, STEPS, graphs, ops};
use simtile_core::{AtomicScope, Context, DeviceBuffer, Function, LaunchArgs, PinnedHostBuffer, Stream};
use simtile_driver::sys::CUresult;
use simtile_sim::Simulator;
use simtile_sim::explore::Random;
use simtile_sync::RwLock;
use simtile_sync::atomic::{AtomicU64, Ordering};
use simtile_types::LaunchConfig;
use std::sync::Arc;

/// An error as a caller gets it.
#[derive(Debug)]
pub(super) struct Told(pub(super) String);

impl<E: std::error::Error> From<E> for Told {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Outside an error as a caller gets it, inside what is wrong.
pub(super) type Step = Result<Result<(), String>, Told>;

/// What is right so far.
pub(super) const FINE: Step = Ok(Ok(()));

/// What all threads of a program share.
pub(super) struct World {
    pub(super) simulator: Simulator,
    pub(super) kind: Kind,
    /// Everybody reads it.
    pub(super) shared: Arc<DeviceBuffer<u32>>,
    pub(super) shared_model: Vec<u32>,
    /// Everybody adds to it with atomics, and reads it meanwhile.
    pub(super) counter: Arc<DeviceBuffer<u32>>,
    pub(super) count: Function,
    /// What was added.
    pub(super) added: AtomicU64,
    /// The default stream of the program's main thread.
    pub(super) of_main: Arc<Stream>,
    pub(super) foreign_bytes: Arc<AtomicU64>,
    /// Held shared while something is captured, and alone while everything is synchronised with: that ends all captures.
    pub(super) captures: RwLock<()>,
}

/// A buffer and what it has to hold.
pub(super) struct Modelled {
    pub(super) buffer: DeviceBuffer<u32>,
    pub(super) model: Vec<u32>,
}

/// What a thread has on the second device.
pub(super) struct Far {
    pub(super) context: Arc<Context>,
    pub(super) streams: Vec<Arc<Stream>>,
    pub(super) step: Function,
    pub(super) buffers: Vec<Modelled>,
}

impl Far {
    /// The same for another thread.
    pub(super) fn again(&self) -> Self {
        let (context, streams, step) = (self.context.clone(), self.streams.clone(), self.step.clone());
        Self { context, streams, step, buffers: Vec::new() }
    }
}

pub(super) struct Thread {
    pub(super) random: Random,
    pub(super) world: Arc<World>,
    pub(super) context: Arc<Context>,
    pub(super) common: graphs::Common,
    pub(super) streams: Vec<Arc<Stream>>,
    pub(super) step: Function,
    pub(super) buffers: Vec<Modelled>,
    pub(super) pinned: PinnedHostBuffer<u32>,
    pub(super) far: Option<Far>,
    /// Allocations that forgotten guards have made unusable for ever.
    pub(super) forgotten: u64,
}

/// The kernel, on a whole buffer and its model.
pub(super) fn launch(stream: &Arc<Stream>, step: &Function, of: &mut Modelled) -> Result<(), Told> {
    let n = of.model.len() as u32;
    let args = LaunchArgs::new().buffer_mut(&mut of.buffer).arg(n).arg(1u32);
    // SAFETY: the kernel updates the words of its buffer, of which it is told.
    unsafe { stream.submit().launch(step, LaunchConfig::for_num_elems(n), args) }?;
    of.model.iter_mut().for_each(|v| *v = v.wrapping_mul(3).wrapping_add(1));
    Ok(())
}

impl Thread {
    /// Runs to the end. How many allocations were made unusable.
    pub(super) fn run(mut self) -> Result<u64, String> {
        let kind = self.world.kind;
        for number in 0..STEPS {
            if matches!(kind, Kind::Faults | Kind::TwoFaults) && self.random.one_in(6) {
                let nth = 1 + self.random.below(25) as u64;
                let codes = [CUresult::CUDA_ERROR_UNKNOWN, CUresult::CUDA_ERROR_OUT_OF_MEMORY];
                self.world.simulator.fail_any(nth, codes[self.random.below(2)]);
            }
            match self.any_step() {
                Ok(Ok(())) => {}
                Ok(Err(wrong)) => return Err(format!("step {number}: {wrong}")),
                Err(_) if kind.fails() || kind == Kind::Scarce => self.gives_up(),
                Err(Told(error)) => return Err(format!("step {number}: {error}")),
            }
            if self.context.loss().is_some() {
                return Ok(self.forgotten);
            }
        }
        for at in 0..self.buffers.len() {
            match self.compare(at) {
                Ok(Err(wrong)) => return Err(format!("at the end: {wrong}")),
                Err(Told(error)) if !kind.fails() => return Err(format!("at the end: {error}")),
                _ => {}
            }
        }
        Ok(self.forgotten)
    }

    /// After an error nobody knows what the buffers hold.
    fn gives_up(&mut self) {
        self.buffers.clear();
        if let Some(far) = &mut self.far {
            far.buffers.clear();
        }
        // A stream whose records failed takes no more work.
        for at in 0..self.streams.len() {
            if self.streams[at].submit().order_only().is_err()
                && let Ok(stream) = self.context.new_stream()
            {
                self.streams[at] = stream;
            }
        }
    }

    pub(super) fn stream(&mut self) -> Arc<Stream> {
        let at = self.random.below(self.streams.len());
        self.streams[at].clone()
    }

    /// A range of some buffer: its place, first and last element.
    pub(super) fn range(&mut self) -> Option<(usize, usize, usize)> {
        if self.buffers.is_empty() {
            return None;
        }
        let at = self.random.below(self.buffers.len());
        let len = self.buffers[at].model.len();
        let start = self.random.below(len + 1);
        Some((at, start, start + self.random.below(len - start + 1)))
    }

    fn any_step(&mut self) -> Step {
        match self.random.below(20) {
            0 | 1 => self.kind_of_memory(),
            2 => self.rare(),
            8 | 9 => self.count(),
            3..=7 if self.far.is_some() => self.far(),
            _ => self.step(),
        }
    }

    /// Adds to the shared counter, or reads it: the one allocation on which threads conflict.
    fn count(&mut self) -> Step {
        let stream = self.stream();
        let world = self.world.clone();
        if self.random.one_in(3) {
            let found = world.counter.to_vec(&stream)?;
            return Ok(if found.len() == 1 { Ok(()) } else { Err(format!("the counter has {found:?}")) });
        }
        let args = LaunchArgs::new().accumulated(&*world.counter, AtomicScope::Device).arg(1u32);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel adds to the one word of its buffer with an atomic of its size.
        unsafe { stream.submit().launch(&world.count, one, args) }?;
        world.added.fetch_add(1, Ordering::Relaxed);
        FINE
    }

    fn step(&mut self) -> Step {
        let stream = self.stream();
        let value = self.random.bits() as u32;
        match self.random.below(13 + ops::KINDS + graphs::KINDS) {
            0 | 1 if self.buffers.len() < BUFFERS => {
                let len = [1, 17, MOST][self.random.below(3)];
                let buffer = DeviceBuffer::zeroed(&stream, len)?;
                self.buffers.push(Modelled { buffer, model: vec![0; len] });
            }
            2 => {
                let Some((at, start, end)) = self.range() else { return FINE };
                let Modelled { buffer, model } = &mut self.buffers[at];
                buffer.slice_mut(start..end)?.fill(&stream, value)?;
                model[start..end].fill(value);
            }
            3 => {
                let Some((at, start, end)) = self.range() else { return FINE };
                let Modelled { buffer, model } = &mut self.buffers[at];
                let values: Vec<u32> = (start..end).map(|i| value.wrapping_add(i as u32)).collect();
                buffer.slice_mut(start..end)?.copy_from_slice(&stream, &values)?;
                model[start..end].copy_from_slice(&values);
            }
            4 => {
                let Some((at, start, end)) = self.range() else { return FINE };
                let Some((other, from, to)) = self.range() else { return FINE };
                let n = (end - start).min(to - from);
                if at != other {
                    let Ok([target, source]) = self.buffers.get_disjoint_mut([at, other]) else {
                        return FINE;
                    };
                    target.buffer.copy_range_from(&stream, start, &source.buffer, from..from + n)?;
                    target.model[start..start + n].copy_from_slice(&source.model[from..from + n]);
                }
            }
            5 => {
                let Some((at, ..)) = self.range() else { return FINE };
                return self.compare(at);
            }
            6 => {
                let Some((at, ..)) = self.range() else { return FINE };
                drop(self.buffers.swap_remove(at));
            }
            7 => {
                let at = self.random.below(self.streams.len());
                self.streams[at] = self.context.new_stream()?;
            }
            8 => {
                let shared = &*self.world.shared;
                let submit = stream.submit();
                // Nothing is done, so nothing changes what the others read.
                let submit = match self.random.below(3) {
                    0 => submit.accumulate(shared, simtile_core::AtomicScope::Device),
                    _ => submit.read(shared),
                };
                let done = submit.order_only()?;
                if self.random.one_in(2) {
                    std::mem::forget(done);
                }
            }
            9 => {
                let found = self.world.shared.to_vec(&stream)?;
                if found != self.world.shared_model {
                    return Ok(Err("the shared buffer has other values".into()));
                }
            }
            10 => {
                let Some((at, middle, _)) = self.range() else { return FINE };
                let other = self.stream();
                let Modelled { buffer, model } = &mut self.buffers[at];
                let (mut left, mut right) = buffer.split_at_mut(middle)?;
                left.fill(&stream, value)?;
                right.fill(&other, !value)?;
                model[..middle].fill(value);
                model[middle..].fill(!value);
            }
            11 => {
                let Some((at, ..)) = self.range() else { return FINE };
                launch(&stream, &self.step.clone(), &mut self.buffers[at])?;
            }
            12 => {
                let Some((at, ..)) = self.range() else { return FINE };
                let Modelled { buffer, model } = &self.buffers[at];
                if model.len() == MOST {
                    self.pinned.copy_from(&stream, buffer)?;
                    if *self.pinned.read()? != **model {
                        return Ok(Err("pinned memory has other values than the buffer".into()));
                    }
                    self.pinned.write()?.fill(value);
                }
            }
            kind if kind >= 13 + ops::KINDS => {
                return self.graph_step(kind - 13 - ops::KINDS, &stream, value);
            }
            kind if kind >= 13 => return self.operation(kind - 13, &stream, value),
            _ => {}
        }
        FINE
    }

    pub(super) fn compare(&mut self, at: usize) -> Step {
        let stream = self.stream();
        let Modelled { buffer, model } = &self.buffers[at];
        let found = buffer.to_vec(&stream)?;
        let wrong = found.iter().zip(model).position(|(a, b)| a != b);
        Ok(match wrong {
            None => Ok(()),
            Some(i) => Err(format!("element {i} of {buffer:?} is {}, should be {}", found[i], model[i])),
        })
    }
}
