//! The fault sweep: every driver call of every scenario fails once, and once so that the contexts are lost.
//!
//! A scenario is a function over the safe API that checks its own values. Each run is an exploration with a fixed seed, so its
//! driver calls have numbers, the checker sees every byte, and a thread that waits for ever is a deadlock report. For each
//! number and each kind of failure the scenario runs on a simulator of its own, and then:
//!
//! * the scenario ended with an error, or with the right values; it did not panic;
//! * the checker found nothing: nothing was freed early, nothing was read that is not there;
//! * what the contexts count as held, kept or leaked is what the simulator still holds, byte for byte (`books`);
//! * unless the context was lost, the scenario runs again in the same contexts, without failures, to its right end;
//! * after a loss no further driver call is made, and nothing is told twice.

pub(crate) mod books;
mod scenarios;

use books::Books;
use simtile_core::{Context, ContextMonitor, Device, drain_background};
use simtile_driver::Severity;
use simtile_driver::sys::CUresult;
use simtile_sim::explore::{Strategy, explore};
use simtile_sim::{Checks, Mode, Simulator};
use simtile_sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long the background may take, in the exploration's time.
const SOON: Duration = Duration::from_secs(600);

/// What a scenario works with.
pub struct Rig {
    pub(crate) contexts: Vec<Arc<Context>>,
    /// Bytes whose own free failed in foreign hands: nobody's leak but theirs.
    pub(crate) foreign_bytes: Arc<AtomicU64>,
}

/// Why a scenario did not come to its end.
#[derive(Debug)]
pub enum Stop {
    /// An error, as the caller gets it.
    Told(String),
    /// A wrong value without an error.
    Wrong(String),
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Told(error.to_string())
    }
}

/// How a scenario ends.
pub type Outcome = Result<(), Stop>;

/// A scenario.
pub struct Scenario {
    name: &'static str,
    devices: u32,
    run: fn(&Rig) -> Outcome,
}

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// One call, with this code; the next ones succeed.
    Once(CUresult),
    /// All contexts, from this call on.
    Lost,
}

const FAILURES: [Failure; 3] = [
    Failure::Once(CUresult::CUDA_ERROR_UNKNOWN),
    Failure::Once(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
    Failure::Lost,
];

/// What is to be swept.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only scenarios whose name contains this.
    pub filter: Option<String>,
    /// Every how many calls (1: all).
    pub every: u64,
    /// Which call alone.
    pub call: Option<u64>,
    /// The seed of the schedules.
    pub seed: u64,
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Pairs of call and failure.
    pub pairs: u64,
    /// Of which the scenario told its caller.
    pub told: u64,
    /// Of which something was counted as leaked.
    pub leaked: u64,
    /// Of which something is wrong.
    pub wrong: u64,
}

/// Sweeps, printing a line a scenario and one for everything that is wrong.
pub fn sweep(options: &Options, print: &dyn Fn(String)) -> Totals {
    let mut totals = Totals::default();
    for scenario in
        scenarios::ALL.iter().filter(|s| options.filter.as_deref().is_none_or(|f| s.name.contains(f)))
    {
        let before = totals;
        let calls = match run(scenario, options.seed, None) {
            Ok(run) => run.calls,
            Err(wrong) => {
                print(format!("{}: without any failure: {wrong}", scenario.name));
                totals.wrong += 1;
                continue;
            }
        };
        let numbers = (1..=calls).filter(|&k| options.call.is_none_or(|call| call == k));
        for (at, k) in numbers.enumerate() {
            if options.call.is_none()
                && at as u64 % options.every.max(1) != options.seed % options.every.max(1)
            {
                continue;
            }
            for failure in FAILURES {
                totals.pairs += 1;
                match run(scenario, options.seed, Some((k, failure))) {
                    Ok(run) => {
                        totals.told += u64::from(run.told);
                        totals.leaked += u64::from(run.leaked);
                    }
                    Err(wrong) => {
                        totals.wrong += 1;
                        print(format!("{} call {k} {failure:?}: {wrong}", scenario.name));
                    }
                }
            }
        }
        let pairs = totals.pairs - before.pairs;
        print(format!(
            "{:16} {calls:4} calls {pairs:5} pairs {:5} told {:5} with a leak {:3} wrong",
            scenario.name,
            totals.told - before.told,
            totals.leaked - before.leaked,
            totals.wrong - before.wrong
        ));
    }
    totals
}

/// One run that went as it should.
struct Run {
    calls: u64,
    told: bool,
    leaked: bool,
}

fn run(scenario: &Scenario, seed: u64, fault: Option<(u64, Failure)>) -> Result<Run, String> {
    let outcome = explore(seed, Strategy::of_seed(seed), || supervised(scenario, seed, fault));
    let ended = match (outcome.result, outcome.deadlock) {
        (_, Some(deadlock)) => Err(deadlock),
        (Ok(result), None) => result,
        (Err(payload), None) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            Err(format!("panicked: {}", text.unwrap_or("a value that is no text")))
        }
    };
    ended.map_err(|wrong| match fault {
        Some((k, _)) => format!("({}) {wrong}", call_name(outcome.trace.text(), k)),
        None => wrong,
    })
}

/// The name of a call by its number.
fn call_name(trace: &str, k: u64) -> &str {
    let mut names =
        trace.lines().filter_map(|line| line.rsplit(": ").next()).filter(|step| step.starts_with("cu"));
    names.nth(k as usize - 1).unwrap_or("no call")
}

fn supervised(scenario: &Scenario, seed: u64, fault: Option<(u64, Failure)>) -> Result<Run, String> {
    let simulator = Simulator::builder()
        .devices(scenario.devices)
        .mode(Mode::Explore)
        .seed(seed)
        .checks(Checks::ALL)
        .quiet()
        .build();
    match fault {
        None => {}
        Some((k, Failure::Once(code))) => simulator.fail_any(k, code),
        Some((k, Failure::Lost)) => simulator.lose_at(None, k, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
    }
    let run = phases(scenario, &simulator, fault);
    if let Some(report) = simulator.reports().first() {
        return Err(format!("{} reports, the first: {report}", simulator.reports().len()));
    }
    run
}

fn phases(scenario: &Scenario, simulator: &Simulator, fault: Option<(u64, Failure)>) -> Result<Run, String> {
    let (k, loses) = (fault.map(|(k, _)| k), fault.is_some_and(|(_, failure)| failure == Failure::Lost));
    let kept_before = Context::contexts_kept();
    let foreign_bytes = Arc::<AtomicU64>::default();
    let mut contexts = Vec::new();
    let mut told = false;
    for ordinal in 0..scenario.devices as usize {
        // A context of its own, so that its end belongs to the scenario too.
        match Device::new(simulator.driver(), ordinal).map(Device::create_context) {
            Ok(Ok(context)) => contexts.push(context),
            _ => told = true,
        }
    }
    let monitors: Vec<ContextMonitor> = contexts.iter().map(|context| context.monitor()).collect();
    let rig = Rig { contexts, foreign_bytes };
    if !told {
        told = ends(scenario, &rig)?;
        balanced("after the scenario", simulator, &rig, &monitors, loses)?;
        let lost = monitors.iter().any(|monitor| monitor.loss().is_some());
        if !lost && !loses && k.is_some_and(|k| simulator.counts().total() >= k) {
            if ends(scenario, &rig).map_err(|wrong| format!("the second time {wrong}"))? {
                return Err("the second time it failed, too, without a reason".into());
            }
            balanced("after the second time", simulator, &rig, &monitors, loses)?;
        }
        for context in &rig.contexts {
            told |= context.trim().is_err();
        }
        balanced("after the trim", simulator, &rig, &monitors, loses)?;
    }
    let (all_lost, before) =
        (monitors.iter().all(|monitor| monitor.loss().is_some()), simulator.counts().total());
    let foreign = rig.foreign_bytes.load(Ordering::Relaxed);
    drop(rig);
    if !drain_background(SOON) {
        return Err("the background does not come to its end".into());
    }
    let calls = simulator.counts().total();
    if all_lost && !monitors.is_empty() && calls != before {
        return Err(format!("{} calls after the loss", calls - before));
    }
    let mut leaked = Context::contexts_kept() > kept_before;
    for monitor in &monitors {
        let errors = monitor.take_errors();
        told |= !errors.is_empty();
        let of_loss = errors.iter().filter(|error| error.source.severity() == Severity::Context).count();
        if of_loss > 1 {
            return Err(format!("the loss was told {of_loss} times: {errors:?}"));
        }
        let stats = monitor.stats();
        leaked |= stats.leaked_bytes + stats.quarantined_bytes + stats.failed_destroys > 0;
    }
    let kept = (Context::contexts_kept() - kept_before) as usize;
    Books::of(&monitors, loses).compare_ended(simulator.holdings(), kept, foreign)?;
    Ok(Run { calls, told, leaked })
}

/// Runs the scenario to its end, whichever. Whether it told of a failure.
fn ends(scenario: &Scenario, rig: &Rig) -> Result<bool, String> {
    let told = match (scenario.run)(rig) {
        Ok(()) => false,
        Err(Stop::Told(_)) => true,
        Err(Stop::Wrong(wrong)) => return Err(format!("a wrong value without an error: {wrong}")),
    };
    for context in rig.contexts.iter().filter(|_| told) {
        // What foreign code may still be using is kept until everything was waited for.
        let _ = context.synchronize_all().or_else(|_| context.synchronize_all());
    }
    for context in &rig.contexts {
        let drained = context.drain(SOON);
        if drained.waiting > 0 {
            return Err(format!("{} things are never given back", drained.waiting));
        }
    }
    if !drain_background(SOON) {
        return Err("the background does not come to its end".into());
    }
    Ok(told)
}

fn balanced(
    when: &str,
    simulator: &Simulator,
    rig: &Rig,
    monitors: &[ContextMonitor],
    loses: bool,
) -> Result<(), String> {
    let foreign = rig.foreign_bytes.load(Ordering::Relaxed);
    // Threads that wait for futures which nobody has any more notice that in their own time.
    simtile_sync::time::sleep(Duration::from_secs(1));
    Books::of(monitors, loses)
        .compare(simulator.holdings(), foreign)
        .map_err(|wrong| format!("{when}: {wrong}"))
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pairs, told, leaked, wrong } = self;
        write!(f, "{pairs} pairs of call and failure: {told} told, {leaked} with a leak, {wrong} wrong")
    }
}
