//! Random safe programs over the runtime, under exploration and with the checker on.
//!
//! Steps of buffers and views are here, those of operations, futures and graphs in `ops`.
//!
//! A program has host threads, each with buffers of its own and one that all read. Every step is an operation of the safe
//! API (and one kernel, whose accesses are named); beside it runs a model in host memory. A seed fails if a value differs from
//! the model, if the checker reports anything, if nobody can go on, or if memory is not accounted for at the end.

mod ops;

use simtile_core::{Context, Device, DeviceBuffer, Error, Function, LaunchArgs, PinnedHostBuffer, Stream};
use simtile_sim::explore::{Random, Strategy, explore};
use simtile_sim::{Checks, Mode, Simulator};
use simtile_types::LaunchConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a seed showed: how often each rule of the tracker fired.
pub type Rules = BTreeMap<String, u64>;

/// Elements of a buffer at most.
const MOST: usize = 300;
/// Buffers of a thread at most.
const BUFFERS: usize = 5;
const THREADS: usize = 2;
const STEPS: usize = 40;

/// A buffer and what it has to hold.
struct Modelled {
    buffer: DeviceBuffer<u32>,
    model: Vec<u32>,
}

struct Thread {
    random: Random,
    context: Arc<Context>,
    streams: Vec<Arc<Stream>>,
    step: Function,
    buffers: Vec<Modelled>,
    pinned: PinnedHostBuffer<u32>,
    shared: Arc<DeviceBuffer<u32>>,
    shared_model: Vec<u32>,
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn run(seed: u64) -> Result<Rules, String> {
    let outcome = explore(seed, Strategy::of_seed(seed), || program(seed));
    match (outcome.result, outcome.deadlock) {
        (_, Some(deadlock)) => Err(deadlock),
        (Ok(result), None) => result,
        (Err(payload), None) => {
            let text = payload.downcast_ref::<String>().cloned();
            Err(format!("panicked: {}", text.unwrap_or_else(|| "a value that is no text".into())))
        }
    }
}

fn program(seed: u64) -> Result<Rules, String> {
    let simulator = Simulator::builder().mode(Mode::Explore).seed(seed).checks(Checks::ALL).quiet().build();
    let result = work(&simulator, seed).map_err(|error| error.to_string());
    let reports = simulator.reports();
    if let Some(report) = reports.first() {
        return Err(format!("{} reports, the first: {report:?}", reports.len()));
    }
    result?
}

fn work(simulator: &Simulator, seed: u64) -> Result<Result<Rules, String>, Error> {
    let mut random = Random::new(seed ^ 0x5eed);
    let context = Device::new(simulator.driver(), 0)?.primary_context()?;
    let module = context.load_module(crate::kernels::BASIC.strip_suffix(b"\0").unwrap_or_default())?;
    let step = module.load_function("step")?;
    let streams = (0..3).map(|_| context.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let shared_model: Vec<u32> = (0..MOST as u32).collect();
    let shared = Arc::new(DeviceBuffer::from_slice(&streams[0], &shared_model)?);
    let mut handles = Vec::new();
    for _ in 0..THREADS {
        let thread = Thread {
            random: Random::new(random.bits()),
            context: context.clone(),
            streams: streams.clone(),
            step: step.clone(),
            buffers: Vec::new(),
            pinned: PinnedHostBuffer::zeroed(&context, MOST)?,
            shared: shared.clone(),
            shared_model: shared_model.clone(),
        };
        match simtile_sync::thread::spawn("explorer", move || thread.run()) {
            Ok(handle) => handles.push(handle),
            Err(error) => return Ok(Err(format!("no thread: {error}"))),
        }
    }
    drop((module, step, streams, shared));
    for handle in handles {
        match handle.join() {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(wrong))) => return Ok(Err(wrong)),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(Err("a thread panicked".into())),
        }
    }
    let drained = context.drain(Duration::from_secs(60));
    let stats = context.stats();
    let lost = (stats.live_allocations, stats.failed_frees, stats.quarantined, stats.reclaiming_bytes);
    if !drained.is_complete() || lost != (0, 0, 0, 0) {
        return Ok(Err(format!("not accounted for: {drained:?}, {stats:?}")));
    }
    if let Some(error) = context.take_errors().first() {
        return Ok(Err(format!("in the background: {error}")));
    }
    Ok(Ok(context.tracking_rules().into_iter().collect()))
}

impl Thread {
    fn run(mut self) -> Result<Result<(), String>, Error> {
        for number in 0..STEPS {
            if let Err(wrong) = self.step()? {
                return Ok(Err(format!("step {number}: {wrong}")));
            }
        }
        for at in 0..self.buffers.len() {
            if let Err(wrong) = self.compare(at)? {
                return Ok(Err(format!("at the end: {wrong}")));
            }
        }
        Ok(Ok(()))
    }

    fn stream(&mut self) -> Arc<Stream> {
        let at = self.random.below(self.streams.len());
        self.streams[at].clone()
    }

    /// A range of some buffer: its place, first and last element.
    fn range(&mut self) -> Option<(usize, usize, usize)> {
        if self.buffers.is_empty() {
            return None;
        }
        let at = self.random.below(self.buffers.len());
        let len = self.buffers[at].model.len();
        let start = self.random.below(len + 1);
        Some((at, start, start + self.random.below(len - start + 1)))
    }

    fn step(&mut self) -> Result<Result<(), String>, Error> {
        let stream = self.stream();
        let value = self.random.bits() as u32;
        match self.random.below(13 + ops::KINDS) {
            0 | 1 if self.buffers.len() < BUFFERS => {
                let len = [1, 17, MOST][self.random.below(3)];
                let buffer = DeviceBuffer::zeroed(&stream, len)?;
                self.buffers.push(Modelled { buffer, model: vec![0; len] });
            }
            2 => {
                let Some((at, start, end)) = self.range() else { return Ok(Ok(())) };
                let Modelled { buffer, model } = &mut self.buffers[at];
                buffer.slice_mut(start..end)?.fill(&stream, value)?;
                model[start..end].fill(value);
            }
            3 => {
                let Some((at, start, end)) = self.range() else { return Ok(Ok(())) };
                let Modelled { buffer, model } = &mut self.buffers[at];
                let values: Vec<u32> = (start..end).map(|i| value.wrapping_add(i as u32)).collect();
                buffer.slice_mut(start..end)?.copy_from_slice(&stream, &values)?;
                model[start..end].copy_from_slice(&values);
            }
            4 => {
                let Some((at, start, end)) = self.range() else { return Ok(Ok(())) };
                let Some((other, from, to)) = self.range() else { return Ok(Ok(())) };
                let n = (end - start).min(to - from);
                if at != other {
                    let Ok([target, source]) = self.buffers.get_disjoint_mut([at, other]) else {
                        return Ok(Ok(()));
                    };
                    target.buffer.copy_range_from(&stream, start, &source.buffer, from..from + n)?;
                    target.model[start..start + n].copy_from_slice(&source.model[from..from + n]);
                }
            }
            5 => {
                let Some((at, ..)) = self.range() else { return Ok(Ok(())) };
                return self.compare(at);
            }
            6 => {
                let Some((at, ..)) = self.range() else { return Ok(Ok(())) };
                drop(self.buffers.swap_remove(at));
            }
            7 => {
                let at = self.random.below(self.streams.len());
                self.streams[at] = self.context.new_stream()?;
            }
            8 => {
                let done = stream.submit().read(&*self.shared).order_only()?;
                if self.random.one_in(2) {
                    std::mem::forget(done);
                }
            }
            9 => {
                let found = self.shared.to_vec(&stream)?;
                if found != self.shared_model {
                    return Ok(Err("the shared buffer has other values".into()));
                }
            }
            10 => {
                let Some((at, middle, _)) = self.range() else { return Ok(Ok(())) };
                let other = self.stream();
                let Modelled { buffer, model } = &mut self.buffers[at];
                let (mut left, mut right) = buffer.split_at_mut(middle)?;
                left.fill(&stream, value)?;
                right.fill(&other, !value)?;
                model[..middle].fill(value);
                model[middle..].fill(!value);
            }
            11 => {
                let Some((at, ..)) = self.range() else { return Ok(Ok(())) };
                let Modelled { buffer, model } = &mut self.buffers[at];
                let n = model.len() as u32;
                let args = LaunchArgs::new().buffer_mut(buffer).arg(n).arg(1u32);
                // SAFETY: the kernel updates the words of its buffer, of which it is told.
                unsafe { stream.submit().launch(&self.step, LaunchConfig::for_num_elems(n), args) }?;
                model.iter_mut().for_each(|v| *v = v.wrapping_mul(3).wrapping_add(1));
            }
            12 => {
                let Some((at, ..)) = self.range() else { return Ok(Ok(())) };
                let Modelled { buffer, model } = &self.buffers[at];
                if model.len() == MOST {
                    self.pinned.copy_from(&stream, buffer)?;
                    if *self.pinned.read()? != **model {
                        return Ok(Err("pinned memory has other values than the buffer".into()));
                    }
                    self.pinned.write()?.fill(value);
                }
            }
            kind if kind >= 13 => return self.operation(kind - 13, &stream, value),
            _ => {}
        }
        Ok(Ok(()))
    }

    fn compare(&mut self, at: usize) -> Result<Result<(), String>, Error> {
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
