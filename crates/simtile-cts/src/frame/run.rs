//! Running tests.
//!
//! On a simulator each test gets its own one, in a thread of this process. On a GPU each test runs in a child
//! process of its own ([`child`]), because a fault takes the context, and sometimes the process, with it. Either way a
//! watchdog ends the wait (by default after [`WATCHDOG`]): a child is killed; a thread cannot be, so it is left behind and
//! the run exits with a failure at its end.

use super::report::Report;
use super::target::Seeds;
use super::{Check, Cx, Need, Outcome, Stop, Target, Test, child};
use simtile_driver::Entry;
use simtile_driver::count::Counted;
use simtile_sim::explore::{Strategy, explore};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test may take, unless the caller says otherwise.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// How many tests to run at a time on a driver. On simulators most of them wait most of the time, to see that something does not
/// happen, so there are more than cores; under exploration they compute instead. A GPU runs one, since timing of calls is
/// part of some tests, and two would share it.
pub fn jobs(target: &Target) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    match target {
        Target::SimExplore(_) => cores,
        _ if target.is_simulator() => 2 * cores,
        _ => 1,
    }
}

/// Runs the tests, `jobs` at a time, and hands each report to `done` as it comes. Reports come back in the
/// order of `tests`.
pub fn run_all(
    tests: &[&'static Test],
    target: &Target,
    jobs: usize,
    watchdog: Duration,
    done: &(dyn Fn(&Report) + Sync),
) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let reports: Mutex<Vec<(usize, Report)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, tests.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(test) = tests.get(index) else { break };
                    let report = if target.is_simulator() {
                        in_thread(test, target, watchdog)
                    } else {
                        child::run_self(test, target, watchdog)
                    };
                    done(&report);
                    reports.lock().unwrap_or_else(PoisonError::into_inner).push((index, report));
                }
            });
        }
    });
    let mut reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
    reports.sort_by_key(|(index, _)| *index);
    reports.into_iter().map(|(_, report)| report).collect()
}

/// Runs one test here, without a watchdog.
pub fn execute(test: &Test, target: &Target) -> Report {
    execute_seeds(test, target, &|_| {})
}

/// The same; tells the number of each seed before it runs.
fn execute_seeds(test: &Test, target: &Target, begins: &dyn Fn(u64)) -> Report {
    let started = Instant::now();
    let mut called = vec![false; Entry::COUNT];
    let mut outcome = Outcome::Pass;
    let seeds = match target {
        Target::SimExplore(seeds) => *seeds,
        _ => Seeds { first: 0, count: test.seeds.max(1) },
    };
    for seed in seeds.first..seeds.first.saturating_add(seeds.count.max(1)) {
        begins(seed);
        let check = scheduled(test, target, seed, &mut called);
        outcome = Outcome::from(check.map_err(|stop| match target {
            Target::SimExplore(_) => {
                stop.within(format_args!("seed {seed} ({})", replay(test, target, seed)))
            }
            _ if test.seeds <= 1 => stop,
            _ => stop.within(format_args!("seed {seed}")),
        }));
        if outcome != Outcome::Pass {
            break;
        }
    }
    let entries =
        Entry::ALL.iter().filter(|&&entry| called[entry as usize]).map(|entry| entry.name().into()).collect();
    Report::new(test, target, outcome, entries, started.elapsed().as_secs_f64() * 1e3)
}

/// The command that runs one seed of one test again.
fn replay(test: &Test, target: &Target, seed: u64) -> String {
    format!("run --driver {} --seed {seed} --seeds 1 --exact {}", target.name(), test.name)
}

/// One seed, under exploration if the target asks for it.
fn scheduled(test: &Test, target: &Target, seed: u64, called: &mut [bool]) -> Check {
    if !matches!(target, Target::SimExplore(_)) {
        return one_seed(test, target, seed, called);
    }
    let outcome = explore(seed, Strategy::of_seed(seed), || one_seed(test, target, seed, called));
    match (outcome.result, outcome.deadlock) {
        (Ok(check), None) => check,
        // What the test found after the schedule had let go says less than that.
        (_, Some(deadlock)) => Err(Stop::fail(deadlock)),
        (Err(_), None) => Err(Stop::fail("panicked outside of the test")),
    }
}

fn one_seed(test: &Test, target: &Target, seed: u64, called: &mut [bool]) -> Check {
    let devices = test.needs.iter().map(|need| match need {
        Need::Devices(count) => *count,
        _ => 1,
    });
    let (driver, simulator) = target
        .open(devices.max().unwrap_or(1), seed)
        .map_err(|error| Stop::fail(format!("no driver: {error}")))?;
    let counted = Counted::new(driver);
    let cx = Cx::new(counted, simulator, seed);
    cx.require(test.needs)?;
    // What the checks of the needs called says nothing about the test.
    let before = counted.counts();
    let check = catch_unwind(AssertUnwindSafe(|| (test.run)(&cx))).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("a value that is no text");
        Err(Stop::fail(format!("panicked: {text}")))
    });
    let counts = counted.counts().since(&before);
    for &entry in Entry::ALL {
        called[entry as usize] |= counts.of(entry) > 0;
    }
    check
}

/// What a test's thread says.
enum Said {
    /// This seed begins.
    Begins(u64),
    /// That was all.
    Ended(Box<Report>),
}

fn in_thread(test: &'static Test, target: &Target, watchdog: Duration) -> Report {
    let (sender, receiver) = mpsc::channel();
    let owned = target.clone();
    let spawned = thread::Builder::new().name(test.name.into()).spawn(move || {
        // The receiver is gone only after a hang was reported.
        let report = execute_seeds(test, &owned, &|seed| {
            let _ = sender.send(Said::Begins(seed));
        });
        let _ = sender.send(Said::Ended(Box::new(report)));
    });
    let failed = |text: String, millis| Report::new(test, target, Outcome::Fail(text), Vec::new(), millis);
    if let Err(error) = spawned {
        return failed(format!("no thread for the test: {error}"), 0.0);
    }
    let mut current = 0;
    loop {
        // Each seed has the whole time.
        match receiver.recv_timeout(watchdog) {
            Ok(Said::Begins(seed)) => current = seed,
            Ok(Said::Ended(report)) => return *report,
            Err(_) => {
                let text = match target {
                    Target::SimExplore(_) => {
                        format!(" with seed {current} ({})", replay(test, target, current))
                    }
                    _ => String::new(),
                };
                return failed(
                    format!("hangs: no end within {} s{text}", watchdog.as_secs()),
                    watchdog.as_secs_f64() * 1e3,
                );
            }
        }
    }
}
