//! Tests on a simulated driver: what [`macro@crate::test`] runs.
//!
//! A [`Spec`] says what the driver is and how often the test runs. Each run gets a driver of its own, so tests run in
//! parallel. A run fails if
//! * the function panics or returns an error,
//! * the checker reports anything,
//! * work is left that does not end,
//! * nobody can go on (with `seeds`).
//!
//! If the function fails, the work that it has queued may still end, within bounds, before the checker is asked: a race of work
//! that had not run yet stands in the message beside the assertion.
//!
//! With `seeds` every run is explored: the seed decides which host thread runs and when device work runs, and the same
//! seed gives the same run again. A run that fails is shrunk: the
//! message has a schedule with as few switches as could be found that fails too, and the end of its trace.
//!
//! # Threads, time and futures
//! What a test waits for has to be seen by the schedule, so it comes from here and not from `std` or an executor of another crate:
//! [`spawn`] and [`scope`] start threads, [`sleep`] and [`now`] are the time (virtual where it is explored), [`block_on`] runs a
//! future. A test may be an `async fn`; then `block_on` runs it. The test's runtime is in force, so operations can be awaited as they
//! are:
//!
//! ```
//! use simtile::DeviceOp;
//! use simtile::ops::{download, upload};
//!
//! #[simtile::test(seeds = 20)]
//! async fn values_come_back(_: &simtile::Runtime) -> Result<(), simtile::OpError> {
//!     assert_eq!(upload(vec![1, 2, 3]).then(download).await?, [1, 2, 3]);
//!     Ok(())
//! }
//! ```
//!
//! # Environment
//!
//! `SIMTILE_SEED=17` runs that seed only. `SIMTILE_SCHEDULE=7:late:12.1` (or the path of a file that holds such a schedule or
//! a whole trace), or `replay=` in `SIMTILE_SIM`, runs that schedule only. `SIMTILE_TRACE=FILE` writes the whole trace of a
//! run that fails.

mod threads;

pub use threads::{JoinHandle, Scope, ScopedJoinHandle, block_on, now, scope, sleep, spawn};

use crate::sim::explore::{self, Outcome, Recording, Strategy, explore};
use crate::sim::{Checks, Mode, Profile, SimConfig, Simulator};
use crate::{Driver, Runtime};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The environment variable that chooses one seed.
const SEED: &str = "SIMTILE_SEED";
/// The one that chooses one schedule.
const SCHEDULE: &str = "SIMTILE_SCHEDULE";
/// The one that names a file for the trace of a failure.
const TRACE: &str = "SIMTILE_TRACE";
/// Most runs, and most steps in all of them, to shrink a failure.
const MOST_TRIES: u64 = 200;
const MOST_STEPS: u64 = 2_000_000;
/// How long, in real time, a failure may be shrunk: of deadlocks each run may take seconds to come apart.
const SHRINKING: Duration = Duration::from_secs(15);
/// How long the work that a test left behind may take to end, by the driver's clock.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most lines of the trace in a message.
const LINES: usize = 24;
/// How steps end that a failure does not show.
const DULL: [&str; 3] = [": lock", "GetCurrent", "SetCurrent"];
/// How steps end that give things back.
const GIVES_BACK: [&str; 6] = ["Destroy", "Release", "GetState", "FreeAsync", ": ends", "Query"];

/// A call that fails, or that loses the contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The `nth` call (1 is the first) of an entry (`None`: of any) fails with this code, without any effect.
    Fail {
        /// Which entry.
        entry: Option<Entry>,
        /// Which call.
        nth: u64,
        /// What it returns.
        code: CUresult,
    },
    /// From the `nth` call of an entry (`None`: of any) on, all contexts are lost with this code.
    Lose {
        /// Which entry.
        entry: Option<Entry>,
        /// Which call.
        nth: u64,
        /// What every call returns from then on.
        code: CUresult,
    },
}

impl Fault {
    /// The `nth` call (1 is the first) of an entry fails with this code.
    pub const fn fail(entry: Entry, nth: u64, code: CUresult) -> Self {
        Self::Fail { entry: Some(entry), nth, code }
    }

    /// All contexts are lost with this code at the `nth` call (1 is the first) of an entry.
    pub const fn lose(entry: Entry, nth: u64, code: CUresult) -> Self {
        Self::Lose { entry: Some(entry), nth, code }
    }
}

/// What a test is given.
#[derive(Debug)]
pub struct TestCx {
    runtime: Runtime,
    simulator: Simulator,
    seed: Option<u64>,
}

impl TestCx {
    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The simulator behind it: gates, pause points, reports.
    pub fn simulator(&self) -> &Simulator {
        &self.simulator
    }

    /// The driver.
    pub fn driver(&self) -> Driver {
        self.runtime.driver()
    }

    /// The seed of this run; `None` without `seeds`.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }
}

/// What a test function may take.
pub trait Given<'a> {
    /// From what there is.
    fn given(cx: &'a TestCx) -> Self;
}

impl<'a> Given<'a> for &'a TestCx {
    fn given(cx: &'a TestCx) -> Self {
        cx
    }
}

impl<'a> Given<'a> for &'a Runtime {
    fn given(cx: &'a TestCx) -> Self {
        cx.runtime()
    }
}

/// What a test function may return.
pub trait Verdict {
    /// Why it failed, if it did.
    ///
    /// # Errors
    /// The text of the error.
    fn verdict(self) -> Result<(), String>;
}

impl Verdict for () {
    fn verdict(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: Debug> Verdict for Result<(), E> {
    fn verdict(self) -> Result<(), String> {
        self.map_err(|error| format!("the test returned {error:?}"))
    }
}

/// The driver of a test and how often it runs.
#[derive(Clone, Debug)]
pub struct Spec {
    name: String,
    config: SimConfig,
    seeds: Option<u64>,
    mask: Vec<Entry>,
    faults: Vec<Fault>,
    wrong: Option<String>,
}

/// Why a run failed.
struct Failure {
    why: Vec<String>,
    explored: Option<Explored>,
}

/// How an explored run went.
struct Explored {
    trace: String,
    recording: Recording,
    /// Switches before it was shrunk.
    switches: usize,
}

/// What decides in an explored run.
enum Course<'a> {
    Seed(u64),
    Recording(&'a Recording),
}

impl Spec {
    /// A test by its module and its name: one device, one run.
    pub fn new(module: &str, name: &str) -> Self {
        let path = module.split_once("::").map_or("", |(_, path)| path);
        let name = if path.is_empty() { name.to_owned() } else { format!("{path}::{name}") };
        let mut config = SimConfig::default();
        config.mode = Mode::Fifo;
        config.checks = Checks::ALL;
        config.print_reports = false;
        Self { name, config, seeds: None, mask: Vec::new(), faults: Vec::new(), wrong: None }
    }

    /// How many devices. More than [`SimConfig::MOST_DEVICES`] fail the test.
    pub fn devices(mut self, devices: u32) -> Self {
        self.config.devices = devices;
        self
    }

    /// Runs it with the seeds from 0 to `seeds - 1`. None at all fail the test.
    pub fn seeds(mut self, seeds: u64) -> Self {
        self.seeds = Some(seeds);
        if seeds == 0 {
            self.refuse("seeds = 0; the least is 1".to_owned());
        }
        self
    }

    /// Memory of each device in bytes. Less than [`SimConfig::LEAST_MEMORY`] or more than [`SimConfig::MOST_MEMORY`] fails the test.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.config.memory = bytes;
        self
    }

    /// What the devices look like. A name that there is not fails the test.
    pub fn profile(mut self, name: &str) -> Self {
        match Profile::by_name(name) {
            Some(profile) => self.config.profile = profile,
            None => self.refuse(format!("there is no profile {name:?}; there are: {}", Profile::NAMES)),
        }
        self
    }

    /// Entries that the driver does not have.
    pub fn mask(mut self, entries: &[Entry]) -> Self {
        self.mask = entries.to_vec();
        self
    }

    /// Calls that fail. The first call is 1; a fault at call 0 fails the test.
    pub fn faults(mut self, faults: &[Fault]) -> Self {
        if faults.iter().any(|(Fault::Fail { nth, .. } | Fault::Lose { nth, .. })| *nth == 0) {
            self.refuse("a fault at call 0, which never comes; the first is 1".to_owned());
        }
        self.faults = faults.to_vec();
        self
    }

    /// A setting is wrong. The first one is told.
    fn refuse(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    /// Runs the test.
    ///
    /// # Panics
    /// If a run fails: this is how a test tells it. The message names the seed and the command that repeats it.
    pub fn run(&self, test: impl Fn(&TestCx) -> Result<(), String>) {
        let wrong = self.wrong.clone().or_else(|| self.config.check().err().map(|error| error.to_string()));
        if let Some(wrong) = wrong {
            std::panic::panic_any(format!("{}: {wrong}", self.name));
        }
        let chosen = match std::env::var(SEED) {
            Ok(text) => match text.parse() {
                Ok(seed) => Some(seed),
                Err(_) => {
                    std::panic::panic_any(format!("{SEED}={text}: a seed is a number from 0 to 2^64-1"))
                }
            },
            Err(_) => None,
        };
        let range = match (self.seeds, chosen) {
            (None, _) => {
                let why = self.judged(None, &test);
                let failed = !why.is_empty();
                return self.conclude(None, failed.then_some(Failure { why, explored: None }));
            }
            (Some(_), Some(seed)) => seed..=seed,
            (Some(seeds), None) => 0..=seeds - 1,
        };
        if let Some(recording) = chosen_schedule() {
            let failure = self.explored(&Course::Recording(&recording), &test);
            return self.conclude(Some(recording.seed), failure);
        }
        for seed in range {
            let failure = self.explored(&Course::Seed(seed), &test);
            self.conclude(Some(seed), failure.map(|failure| self.shrunk(failure, &test)));
        }
    }

    fn explored(
        &self,
        course: &Course<'_>,
        test: &impl Fn(&TestCx) -> Result<(), String>,
    ) -> Option<Failure> {
        let Outcome { result, trace, recording, deadlock, .. } = match *course {
            Course::Seed(seed) => explore(seed, Strategy::of_seed(seed), || self.judged(Some(seed), test)),
            Course::Recording(recording) => {
                explore::replay(recording, || self.judged(Some(recording.seed), test))
            }
        };
        let mut why = match result {
            Ok(why) => why,
            Err(panic) => vec![format!("panicked outside of the test: {}", text(&*panic))],
        };
        if let Some(deadlock) = deadlock
            && !why.iter().any(|line| line.contains(&deadlock))
        {
            why.push(deadlock);
        }
        let (trace, switches) = (trace.text().to_owned(), recording.switches());
        (!why.is_empty()).then_some(Failure { why, explored: Some(Explored { trace, recording, switches }) })
    }

    /// The same failure with as few switches as can be found.
    fn shrunk(&self, failure: Failure, test: &impl Fn(&TestCx) -> Result<(), String>) -> Failure {
        let Some(found) = &failure.explored else { return failure };
        let steps = found.trace.lines().count().max(1) as u64;
        let tries = (MOST_STEPS / steps).min(MOST_TRIES) as usize;
        let switches = found.switches;
        let mut best = None;
        let end = Instant::now() + SHRINKING;
        explore::shrink(&found.recording, tries, |recording| {
            if Instant::now() > end {
                return false;
            }
            let failed = self.explored(&Course::Recording(recording), test);
            // Another failure is another matter.
            let failed = failed.filter(|other| same_kind(&other.why, &failure.why));
            let fails = failed.is_some();
            best = failed.or(best.take());
            fails
        });
        let Some(Failure { why, explored: Some(explored) }) = best else { return failure };
        Failure { why, explored: Some(Explored { switches, ..explored }) }
    }

    /// Runs it once, here, and says what is wrong.
    fn judged(&self, seed: Option<u64>, test: &impl Fn(&TestCx) -> Result<(), String>) -> Vec<String> {
        let mut config = self.config.clone();
        if let Some(seed) = seed {
            config.mode = Mode::Explore;
            config.seed = seed;
        }
        let simulator = Simulator::new(config);
        simulator.mask(&self.mask);
        for fault in &self.faults {
            match *fault {
                Fault::Fail { entry: Some(entry), nth, code } => simulator.fail(entry, nth, code),
                Fault::Fail { entry: None, nth, code } => simulator.fail_any(nth, code),
                Fault::Lose { entry, nth, code } => simulator.lose_at(entry, nth, code),
            }
        }
        let cx = TestCx { runtime: Runtime::simulated(&simulator), simulator, seed };
        let mut why = Vec::new();
        let run = || {
            let _entered = cx.runtime.enter();
            test(&cx)
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => why.push(error),
            Err(panic) => why.push(format!("the test panicked: {}", text(&*panic))),
        }
        // After a failure, too: the checker knows of a race when both sides have run.
        if !ends(&cx.simulator) && why.is_empty() {
            why.push(format!("{} pieces of work are left that do not end", cx.simulator.pending()));
        }
        why.extend(cx.simulator.take_reports().into_iter().map(|mut report| {
            // What repeats the simulator alone repeats no test; the message ends with what does.
            report.replay.clear();
            report.to_string()
        }));
        why
    }

    fn conclude(&self, seed: Option<u64>, failure: Option<Failure>) {
        let Some(failure) = failure else { return };
        if let (Some(file), Some(explored)) = (std::env::var_os(TRACE), &failure.explored)
            && let Err(error) = std::fs::write(&file, &explored.trace)
        {
            eprintln!("{TRACE}={}: {error}", file.display());
        }
        std::panic::panic_any(Message { spec: self, seed, failure }.to_string());
    }
}

/// The schedule that the environment chooses.
fn chosen_schedule() -> Option<Recording> {
    let refuse = |name: &str, why: String| -> ! { std::panic::panic_any(format!("{name}: {why}")) };
    if let Ok(text) = std::env::var(SCHEDULE) {
        let read = std::fs::read_to_string(&text).unwrap_or(text);
        return match read.parse() {
            Ok(recording) => Some(recording),
            Err(error) => refuse(SCHEDULE, error.to_string()),
        };
    }
    match SimConfig::from_env("SIMTILE_SIM") {
        Ok(config) => config.replay,
        Err(error) => refuse("SIMTILE_SIM", error.to_string()),
    }
}

/// Whether two runs failed in the same way: the first line up to its details.
fn same_kind(a: &[String], b: &[String]) -> bool {
    let kind = |why: &[String]| why.first().and_then(|line| line.split(':').next().map(str::to_owned));
    kind(a) == kind(b)
}

/// Whether all queued work ends.
fn ends(simulator: &Simulator) -> bool {
    let end = simtile_sync::time::now() + PATIENCE;
    while simulator.pending() > 0 {
        if explore::current().is_some_and(|schedule| !schedule.is_on()) {
            // Nobody can go on, and that is the failure.
            return false;
        }
        if simtile_sync::time::now() > end {
            return false;
        }
        simtile_sync::time::sleep(Duration::from_millis(1));
    }
    true
}

fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a value that is no text")
}

struct Message<'a> {
    spec: &'a Spec,
    seed: Option<u64>,
    failure: Failure,
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.spec.name)?;
        if let Some(seed) = self.seed {
            write!(f, " with seed {seed}")?;
        }
        for line in &self.failure.why {
            write!(f, "\n  {line}")?;
        }
        if let Some(Explored { trace, recording, switches }) = &self.failure.explored {
            // Some steps say nothing to a reader, and what gives everything back at the end comes after
            // whatever went wrong.
            let mut lines: Vec<&str> =
                trace.lines().skip(1).filter(|line| !DULL.iter().any(|end| line.ends_with(end))).collect();
            while lines.last().is_some_and(|line| GIVES_BACK.iter().any(|end| line.ends_with(end))) {
                lines.pop();
            }
            let from = lines.len().saturating_sub(LINES);
            write!(f, "\nthe last {} of {} steps:", lines.len() - from, lines.len())?;
            for line in &lines[from..] {
                write!(f, "\n  {line}")?;
            }
            write!(f, "\nschedule ({} of {switches} switches): {recording}", recording.switches())?;
            write!(f, "\nrepeat it with: {SCHEDULE}={recording} cargo test {} -- --exact", self.spec.name)?;
        }
        f.write_str("\nrepeat it with: ")?;
        if let Some(seed) = self.seed {
            write!(f, "{SEED}={seed} ")?;
        }
        write!(f, "cargo test {} -- --exact", self.spec.name)
    }
}
