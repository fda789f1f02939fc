//! The command line of the conformance suite.
//!
//! `run` prints failures and skipped tests, then `N passed, N failed, N skipped`; it exits with 1 if anything
//! failed or the counts differ from the committed ones. `coverage` exits with 1 if an entry or a promise that
//! must have a test has none.

use clap::{Parser, Subcommand};
use simtile_cts::frame::report::{Report, Totals};
use simtile_cts::frame::{Cx, Seeds, Stop, Target, Test, coverage, expected, run, selftest};
use simtile_cts::probe::{Probe, probes};
use simtile_cts::{cost, endings, explorer, machine, sweep, tests};
use simtile_driver::count::Counted;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Conformance suite: CUDA's guarantees and simtile's promises")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs tests.
    Run {
        /// `sim-fast`, `sim-fifo`, `sim-explore`, `sim-no-pools`, `sim-no-vmm`, `sim-no-clusters`, `sim-small-limits`,
        /// `sim-driver-12.0`, `sim-managed-exclusive`, `sim-a100`, `sim-rtx4090`, `sim-b200`, `cuda`, or the path of a driver library.
        #[arg(long, default_value = "sim-fast")]
        driver: String,
        /// How many seeds each test runs with on `sim-explore` (4).
        #[arg(long)]
        seeds: Option<u64>,
        /// The first of these seeds (0).
        #[arg(long)]
        seed: Option<u64>,
        /// Only tests whose name or layer contains this.
        #[arg(long)]
        filter: Option<String>,
        /// Only the test of exactly this name, in this process.
        #[arg(long, hide = true)]
        exact: Option<String>,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
        /// Tests at a time (simulators: twice the number of cores, under exploration that number; GPUs: 1).
        #[arg(long)]
        jobs: Option<usize>,
        /// Passing tests too.
        #[arg(long)]
        verbose: bool,
        /// Writes the JSON lines to this file, beside the text.
        #[arg(long)]
        json_file: Option<PathBuf>,
        /// Seconds that a test may take.
        #[arg(long, default_value_t = 60)]
        watchdog: u64,
        /// Writes this run's counts into the committed file.
        #[arg(long, conflicts_with_all = ["filter", "exact"])]
        update_expected: bool,
    },
    /// Measures a driver and prints what it found, without judging it.
    Probe {
        /// `capture_matrix`; all of them without a name.
        name: Option<String>,
        /// As for `run`.
        #[arg(long, default_value = "sim-fast")]
        driver: String,
    },
    /// Lists tests.
    List,
    /// Random safe programs on explored simulators, with the checker on.
    Explore {
        /// How many programs.
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// How often each rule of the tracker fired, too.
        #[arg(long)]
        rules: bool,
        /// Plants one bug after the other and says which seed shows it, in a build with `--features planted`.
        #[arg(long)]
        planted: bool,
        /// Only planted bugs whose name contains this.
        #[arg(long, default_value = "")]
        bug: String,
    },
    /// Every driver call of every scenario failed once, and once so that the contexts are lost.
    FaultSweep {
        /// Only scenarios whose name contains this.
        #[arg(long)]
        filter: Option<String>,
        /// Every how many calls of a scenario.
        #[arg(long, default_value_t = 1)]
        every: u64,
        /// This call alone.
        #[arg(long)]
        call: Option<u64>,
        /// The seed of the schedules.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// What the runtime itself costs, on the null driver.
    Cost {
        /// One JSON array of rows.
        #[arg(long)]
        json: bool,
        /// Rounds of which the fastest counts.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
        /// What `cost --json` of a build with `--features count` printed: its column of locks is taken over.
        #[arg(long)]
        locks: Option<PathBuf>,
    },
    /// Ends processes with objects of the runtime in statics, thread-locals and threads: each must end with 0 and in silence.
    Endings {
        /// As for `run`.
        #[arg(long, default_value = "sim-fast")]
        driver: String,
        /// How often each way to end.
        #[arg(long, default_value_t = 5)]
        times: u32,
        /// Ends this process in this way.
        #[arg(long, hide = true)]
        way: Option<String>,
    },
    /// Tests per driver entry and per promise.
    Coverage {
        /// The driver to measure on.
        #[arg(long, default_value = "sim-fast")]
        driver: String,
    },
}

fn main() {
    exit(match Cli::parse().command {
        Command::Run { driver, seeds, seed, exact: Some(name), json, .. } => {
            run_exact(&target(&driver, seed, seeds), &name, json)
        }
        Command::Run {
            driver,
            seeds,
            seed,
            filter,
            exact: None,
            json,
            jobs,
            verbose,
            json_file,
            watchdog,
            update_expected,
        } => {
            let watchdog = Duration::from_secs(watchdog);
            let options = Options { filter, json, jobs, verbose, json_file, watchdog, update_expected };
            run_tests(&target(&driver, seed, seeds), &options)
        }
        Command::Probe { name, driver } => run_probe(&Target::parse(&driver), name.as_deref()),
        Command::List => {
            for test in tests() {
                println!("{}  ({}){}", test.name, test.layer.name(), promises(test));
            }
            0
        }
        Command::Explore { seeds, from, planted: true, bug, .. } => run_planted(&bug, from, seeds),
        Command::Explore { seeds, from, rules, .. } => run_explore(from, seeds, rules),
        Command::FaultSweep { filter, every, call, seed } => {
            let totals =
                sweep::sweep(&sweep::Options { filter, every, call, seed }, &|line| println!("{line}"));
            println!("{totals}");
            i32::from(totals.wrong > 0)
        }
        Command::Cost { json, rounds, locks } => run_cost(json, rounds.max(1), locks.as_deref()),
        Command::Endings { driver, way: Some(way), .. } => {
            // Not by `exit`: that would leave the destructors of this thread out.
            if let Err(error) = endings::end(&Target::parse(&driver), &way) {
                eprintln!("{error}");
                exit(2);
            }
            return;
        }
        Command::Endings { driver, times, .. } => {
            match endings::all(&Target::parse(&driver), times, &mut |line| println!("{line}")) {
                Ok(bad) => {
                    println!("{bad} of {} processes ended badly", endings::Way::all().count() as u32 * times);
                    i32::from(bad > 0)
                }
                Err(error) => {
                    eprintln!("{error}");
                    1
                }
            }
        }
        Command::Coverage { driver } => run_coverage(&Target::parse(&driver)),
    });
}

fn target(driver: &str, first: Option<u64>, count: Option<u64>) -> Target {
    match Target::parse(driver) {
        Target::SimExplore(seeds) => Target::SimExplore(Seeds {
            first: first.unwrap_or(seeds.first),
            count: count.unwrap_or(seeds.count),
        }),
        target => target,
    }
}

/// So many seeds make every rule of the tracker fire.
const ALL_RULES_BY: u64 = 200;

fn run_explore(from: u64, seeds: u64, show_rules: bool) -> i32 {
    let (mut failed, mut rules) = (0, explorer::Rules::new());
    for seed in from..from.saturating_add(seeds) {
        match explorer::run(seed) {
            Ok(fired) => fired.into_iter().for_each(|(rule, count)| *rules.entry(rule).or_default() += count),
            Err(wrong) => {
                failed += 1;
                println!("seed {seed}: {wrong}");
            }
        }
    }
    if show_rules {
        rules.iter().for_each(|(rule, count)| println!("{count:12} {rule}"));
    }
    let silent: Vec<&str> =
        rules.iter().filter(|(_, count)| **count == 0).map(|(rule, _)| rule.as_str()).collect();
    println!(
        "{seeds} seeds, {failed} failed; {} rules fired, {} did not: {silent:?}",
        rules.len() - silent.len(),
        silent.len()
    );
    // A rule that no program makes fire is a rule that nothing here tests.
    i32::from(failed > 0 || seeds >= ALL_RULES_BY && !silent.is_empty())
}

#[cfg(feature = "planted")]
fn run_planted(filter: &str, from: u64, seeds: u64) -> i32 {
    println!("{:24} {:>6}  report", "bug", "seed");
    let mut missed = 0;
    let all = explorer::planted::find_all(filter, from, seeds, &mut |found| {
        let name = format!("{:?}", found.bug);
        match &found.by {
            Some((seed, report)) => {
                println!("{name:24} {seed:>6}  {}", report.lines().next().unwrap_or_default())
            }
            None => {
                missed += 1;
                println!("{name:24} {:>6}  not found", "-");
            }
        }
    });
    println!("{} planted bugs, {missed} not found within {seeds} seeds", all.len());
    i32::from(missed > 0)
}

#[cfg(not(feature = "planted"))]
fn run_planted(_: &str, _: u64, _: u64) -> i32 {
    eprintln!("this build has no planted bugs: build it with --features planted");
    2
}

fn run_cost(json: bool, rounds: usize, locks: Option<&Path>) -> i32 {
    let measured = cost::measure(rounds).map_err(|error| error.to_string()).and_then(|mut rows| {
        if let Some(path) = locks {
            let text =
                std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let counted: Vec<cost::Row> =
                serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            cost::add_locks(&mut rows, &counted)?;
        }
        Ok(rows)
    });
    match measured {
        Ok(rows) if json => println!("{}", serde_json::to_string(&rows).unwrap_or_default()),
        Ok(rows) => print!("{}", cost::table(&rows)),
        Err(error) => {
            eprintln!("{error}");
            return 1;
        }
    }
    0
}

/// Counts every heap allocation of the process, for the table of costs.
struct Counting;

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        cost::ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        cost::ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn promises(test: &Test) -> String {
    if test.promises.is_empty() { String::new() } else { format!("  {}", test.promises.join(" ")) }
}

struct Options {
    filter: Option<String>,
    json: bool,
    jobs: Option<usize>,
    verbose: bool,
    json_file: Option<PathBuf>,
    watchdog: Duration,
    update_expected: bool,
}

/// As a child process: one test, its report on the last line. A failure is in the report, not in the exit
/// code, so that the parent can tell it from a crash.
fn run_exact(target: &Target, name: &str, json: bool) -> i32 {
    let Some(test) = tests().chain(selftest::TESTS).find(|test| test.name == name) else {
        eprintln!("there is no test {name}");
        return 2;
    };
    let report = run::execute(test, target);
    if json {
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
        return 0;
    }
    println!("{}", report.line(true).unwrap_or_default());
    i32::from(report.outcome == "fail")
}

/// Without a name each probe runs in a process of its own, since a driver may not survive its questions.
fn run_probe(target: &Target, name: Option<&str>) -> i32 {
    let Some(name) = name else {
        let program = std::env::current_exe().unwrap_or_default();
        let ended_well = |(name, _): (&str, Probe)| {
            let mut child = std::process::Command::new(&program);
            let status = child.args(["probe", name, "--driver", &target.name()]).status();
            match &status {
                Ok(status) if status.success() => {}
                Ok(status) => println!("{name}: ended with {status}"),
                Err(error) => println!("{name}: no process: {error}"),
            }
            status.is_ok_and(|status| status.success())
        };
        return i32::from(probes().filter(|probe| !ended_well(*probe)).count() > 0);
    };
    let Some((_, probe)) = probes().find(|probe| probe.0 == name) else {
        eprintln!("there is no such probe");
        return 2;
    };
    println!("## {name}");
    let mut print = |line: String| println!("{line}");
    let measured = match target.open(1, 0) {
        Ok((driver, simulator)) => probe(&Cx::new(Counted::new(driver), simulator, 0), &mut print),
        Err(error) => Err(Stop::fail(format!("no driver: {error}"))),
    };
    match measured {
        Ok(()) => 0,
        Err(Stop::Fail(why) | Stop::Unsupported(why)) => {
            println!("failed: {why}");
            1
        }
    }
}

fn run_tests(target: &Target, options: &Options) -> i32 {
    let selected: Vec<&'static Test> = tests()
        .filter(|test| {
            options.filter.as_deref().is_none_or(|part| test.name.contains(part) || test.layer.name() == part)
        })
        .collect();
    if selected.is_empty() {
        eprintln!("no test matches");
        return 1;
    }
    let machine = match machine(target) {
        Ok(machine) => machine,
        Err(why) => {
            eprintln!("{}: {why}", target.name());
            return 1;
        }
    };
    if !options.json {
        println!("{} tests on {} ({machine})", selected.len(), target.name());
    }
    let jobs = options.jobs.unwrap_or_else(|| run::jobs(target));
    let reports = run::run_all(&selected, target, jobs, options.watchdog, &|report| {
        if options.json {
            println!("{}", serde_json::to_string(report).unwrap_or_default());
        } else if let Some(line) = report.line(options.verbose) {
            println!("{line}");
        }
    });
    let totals = Totals::of(&reports);
    let mut failed = totals.failed > 0;
    if let Some(path) = &options.json_file
        && let Err(why) = std::fs::write(path, json_lines(&reports, totals))
    {
        eprintln!("{}: {why}", path.display());
        failed = true;
    }
    if options.update_expected {
        if let Err(why) = expected::update(&target.name(), &machine, totals) {
            eprintln!("{why}");
            failed = true;
        }
    } else if options.filter.is_none() {
        match expected::compare(&target.name(), &machine, totals) {
            Ok(None) => {}
            Ok(Some(note)) => eprintln!("note: {note}"),
            Err(difference) => {
                eprintln!("{difference}");
                failed = true;
            }
        }
    }
    if options.json {
        println!("{}", serde_json::to_string(&totals).unwrap_or_default());
    } else {
        println!("{totals}");
    }
    i32::from(failed)
}

fn json_lines(reports: &[Report], totals: Totals) -> String {
    let mut text = String::new();
    for report in reports {
        text.push_str(&serde_json::to_string(report).unwrap_or_default());
        text.push('\n');
    }
    text + &serde_json::to_string(&totals).unwrap_or_default() + "\n"
}

fn run_coverage(target: &Target) -> i32 {
    let all: Vec<&'static Test> = tests().collect();
    let reports = run::run_all(&all, target, run::jobs(target), run::WATCHDOG, &|_| {});
    match coverage::measure(&reports) {
        Ok(coverage) => {
            print!("{}", coverage.text);
            for error in &coverage.errors {
                eprintln!("{error}");
            }
            println!(
                "{} tests on {}; {} missing or stale",
                reports.len(),
                target.name(),
                coverage.errors.len()
            );
            i32::from(!coverage.errors.is_empty())
        }
        Err(why) => {
            eprintln!("{why}");
            1
        }
    }
}
