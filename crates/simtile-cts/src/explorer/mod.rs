//! Random safe programs over the runtime, under exploration and with the checker on.
//!
//! A program has host threads, each with buffers of its own and one that all read. Every step is an operation of the safe
//! API (and one kernel, whose accesses are named); beside it runs a model in host memory. A seed fails if a value differs from
//! the model, if the checker reports anything, if nobody can go on, or if memory is not accounted for at the end.
//!
//! What kind of program a seed makes is its [`Kind`]: on one device or on two, with driver calls that fail, with contexts that are
//! lost, with memory that runs out. Where calls fail, a thread that was told of a failure gives up what it had and goes on
//! with new buffers; what is not told has to be right.
//!
//! * `thread`: steps of buffers and views; `ops`: of operations, futures and graphs; `graphs`: of memoised chains and families; `kinds`: of other kinds of memory;
//!   `far`: of a second device; `rare`: what makes the tracker's rarer rules fire.

mod far;
mod graphs;
mod kinds;
mod ops;
#[cfg(feature = "planted")]
pub mod planted;
mod rare;
mod thread;

use crate::sweep::books::Books;
use simtile_core::{
    Context, ContextMonitor, Device, DeviceBuffer, Error, Function, PinnedHostBuffer, Stream,
};
use simtile_driver::sys::CUresult;
use simtile_sim::explore::{Random, Strategy, explore};
use simtile_sim::{Checks, Mode, Simulator};
use simtile_sync::RwLock;
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thread::{Far, Thread, Told, World};

/// What a seed showed: how often each rule of the tracker fired.
pub type Rules = BTreeMap<String, u64>;

/// Elements of a buffer at most.
const MOST: usize = 300;
/// Buffers of a thread at most.
const BUFFERS: usize = 5;
const THREADS: usize = 2;
const STEPS: usize = 40;
/// How long the background may take, in the exploration's time.
const SOON: Duration = Duration::from_secs(600);

/// What kind of program a seed makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One device, no failures.
    Plain,
    /// Two devices.
    Two,
    /// One device; single driver calls fail.
    Faults,
    /// Two devices; single driver calls fail.
    TwoFaults,
    /// At some call all contexts are lost.
    Loss,
    /// Little memory.
    Scarce,
}

impl Kind {
    /// That of a seed.
    pub fn of_seed(seed: u64) -> Self {
        match seed % 8 {
            0..=2 => Self::Plain,
            3 => Self::Two,
            4 => Self::Faults,
            5 => Self::TwoFaults,
            6 => Self::Loss,
            _ => Self::Scarce,
        }
    }

    fn devices(self) -> u32 {
        if matches!(self, Self::Two | Self::TwoFaults) { 2 } else { 1 }
    }

    fn fails(self) -> bool {
        matches!(self, Self::Faults | Self::TwoFaults | Self::Loss)
    }
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
    .map_err(|wrong| format!("({:?}) {wrong}", Kind::of_seed(seed)))
}

fn program(seed: u64) -> Result<Rules, String> {
    let kind = Kind::of_seed(seed);
    let builder = Simulator::builder().devices(kind.devices()).mode(Mode::Explore).seed(seed);
    let builder = if kind == Kind::Scarce { builder.memory(40 << 20) } else { builder };
    let simulator = builder.checks(Checks::ALL).quiet().build();
    let mut random = Random::new(seed ^ 0x5eed);
    if kind == Kind::Loss {
        let nth = 150 + random.below(3000) as u64;
        simulator.lose_at(None, nth, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let foreign_bytes = Arc::<AtomicU64>::default();
    let mut contexts = Vec::new();
    for ordinal in 0..kind.devices() as usize {
        let context = Device::new(simulator.driver(), ordinal).map_err(|error| error.to_string())?;
        contexts.push(context.create_context().map_err(|error| error.to_string())?);
    }
    let monitors: Vec<ContextMonitor> = contexts.iter().map(|context| context.monitor()).collect();
    let result = threads(&simulator, kind, &mut random, &contexts, &foreign_bytes);
    let ended =
        result.and_then(|forgotten| end(&simulator, kind, &contexts, &monitors, &foreign_bytes, forgotten));
    let reports = simulator.reports();
    if let Some(report) = reports.first() {
        return Err(format!("{} reports, the first: {report}", reports.len()));
    }
    ended
}

/// Runs the threads to their end. How many allocations they made unusable for ever.
fn threads(
    simulator: &Simulator,
    kind: Kind,
    random: &mut Random,
    contexts: &[Arc<Context>],
    foreign_bytes: &Arc<AtomicU64>,
) -> Result<u64, String> {
    let made = start(simulator, kind, random, contexts, foreign_bytes);
    let all = match made {
        Ok(all) => all,
        Err(_) if kind.fails() => return Ok(0),
        Err(Told(error)) => return Err(error),
    };
    let world = all.first().map(|thread| thread.world.clone());
    let mut handles = Vec::new();
    for thread in all {
        let spawned = simtile_sync::thread::spawn("explorer", move || thread.run());
        handles.push(spawned.map_err(|error| format!("no thread: {error}"))?);
    }
    let mut result = Ok(0);
    for handle in handles {
        result = match (result, handle.join()) {
            (Ok(sum), Ok(Ok(forgotten))) => Ok(sum + forgotten),
            (Ok(_), Ok(Err(wrong))) => Err(wrong),
            (Ok(_), Err(_)) => Err("a thread panicked".into()),
            (Err(wrong), _) => Err(wrong),
        };
    }
    if let Some(world) = world
        && !kind.fails()
        && result.is_ok()
    {
        let stream = contexts[0].new_stream().map_err(|error| error.to_string())?;
        let found = world.counter.to_vec(&stream).map_err(|error| error.to_string())?;
        let added = world.added.load(Ordering::Relaxed);
        if found.iter().any(|&value| u64::from(value) != added) {
            return Err(format!("the counter holds {found:?}, {added} were added"));
        }
    }
    result
}

/// Adds to a word.
const COUNT: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 p, .param .u32 v)
{
    .reg .b64 %p;
    .reg .b32 %v, %w;
    ld.param.u64 %p, [p];
    ld.param.u32 %v, [v];
    cvta.to.global.u64 %p, %p;
    atom.global.add.u32 %w, [%p], %v;
    ret;
}
";

fn start(
    simulator: &Simulator,
    kind: Kind,
    random: &mut Random,
    contexts: &[Arc<Context>],
    foreign_bytes: &Arc<AtomicU64>,
) -> Result<Vec<Thread>, Told> {
    let context = &contexts[0];
    context.set_oom_wait(Duration::from_millis(5));
    let load = |context: &Arc<Context>| -> Result<Function, Error> {
        let image = crate::kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
        Ok(context.load_module(image)?.load_function("step")?)
    };
    let new_streams = |context: &Arc<Context>, n: usize| -> Result<Vec<Arc<Stream>>, Error> {
        Ok((0..n).map(|_| context.new_stream()).collect::<Result<_, _>>()?)
    };
    let (step, streams) = (load(context)?, new_streams(context, 3)?);
    let far = match contexts.get(1) {
        None => None,
        Some(far) => {
            context.enable_peer_access(far)?;
            far.enable_peer_access(context)?;
            Some(Far {
                context: far.clone(),
                streams: new_streams(far, 2)?,
                step: load(far)?,
                buffers: Vec::new(),
            })
        }
    };
    let shared_model: Vec<u32> = (0..MOST as u32).collect();
    let shared = Arc::new(DeviceBuffer::from_slice(&streams[0], &shared_model)?);
    let world = Arc::new(World {
        simulator: simulator.clone(),
        kind,
        shared,
        shared_model,
        counter: Arc::new(DeviceBuffer::zeroed(&streams[0], 1)?),
        count: context.load_module_from_ptx_src(COUNT)?.load_function("count")?,
        added: AtomicU64::new(0),
        of_main: context.per_thread_default_stream(),
        foreign_bytes: foreign_bytes.clone(),
        captures: RwLock::new(()),
    });
    let common = graphs::Common::new(context)?;
    let mut all = Vec::new();
    for _ in 0..THREADS {
        all.push(Thread {
            random: Random::new(random.bits()),
            world: world.clone(),
            context: context.clone(),
            common: common.clone(),
            streams: streams.clone(),
            step: step.clone(),
            buffers: Vec::new(),
            pinned: PinnedHostBuffer::zeroed(context, MOST)?,
            far: far.as_ref().map(Far::again),
            forgotten: 0,
        });
    }
    Ok(all)
}

fn end(
    simulator: &Simulator,
    kind: Kind,
    contexts: &[Arc<Context>],
    monitors: &[ContextMonitor],
    foreign_bytes: &AtomicU64,
    forgotten: u64,
) -> Result<Rules, String> {
    simulator.clear_rules();
    for context in contexts {
        // What foreign code may still be using is kept until everything was waited for.
        let _ = context.synchronize_all();
    }
    let mut rules = Rules::new();
    for context in contexts {
        let drained = context.drain(SOON);
        if !drained.is_complete() {
            return Err(format!("not given back: {drained:?}, {:?}", context.stats()));
        }
        for (rule, count) in context.tracking_rules() {
            *rules.entry(rule).or_default() += count;
        }
    }
    if !simtile_core::drain_background(SOON) {
        return Err("the background does not come to its end".into());
    }
    let books = Books::of(monitors, kind == Kind::Loss);
    books.compare_bytes(simulator.holdings(), foreign_bytes.load(Ordering::Relaxed))?;
    if !kind.fails() {
        for context in contexts {
            let stats = context.stats();
            if stats.failed_frees + stats.failed_destroys > 0 || stats.quarantined > forgotten {
                let errors = context.take_errors();
                return Err(format!("lost: {stats:?}, forgotten: {forgotten}, {errors:?}"));
            }
            // One error for each allocation that a forgotten guard has made unusable.
            let errors = context.take_errors();
            if errors.len() as u64 > stats.quarantined {
                return Err(format!("in the background: {errors:?}"));
            }
        }
    }
    Ok(rules)
}
