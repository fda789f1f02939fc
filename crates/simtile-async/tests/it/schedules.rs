//! The same tests on explored schedules: the seed decides which host thread runs and when device work runs, time is virtual, and every
//! check is on.
//!
//! Each module ends with a list of its tests that are run so, `explored!(a b c)`. [`ELSEWHERE`] has the others with the reason.
//! `SIMTILE_ASYNC_SEEDS=100` runs seeds 0 to 99 in place of the first [`SEEDS`] (a third of them for the [`HEAVY`] ones); `SIMTILE_ASYNC_SEED=17` runs that one, and prints the end
//! of its trace if it fails.

use simtile_sim::explore::{Strategy, explore};
use std::cell::Cell;
use std::collections::BTreeSet;

/// Seeds that are run unless something else is asked for.
const SEEDS: u64 = 3;

/// Tests that are not run on explored schedules, and why not.
const ELSEWHERE: &[(&str, &str)] = &[
    ("futures::tokio_runs_them_on_one_thread_and_on_many", "tokio's threads park where no schedule sees it"),
    ("futures::select_timeout_and_abort_leave_nothing_behind", "tokio's threads and timers, as above"),
    ("futures::smol_and_futures_run_them", "it is about executors of other crates, which park as tokio's do"),
    (
        "futures::a_poll_that_takes_the_last_permit_waits_for_no_other",
        "it watches a thread of std from outside",
    ),
    (
        "futures::trying_to_make_memory_on_a_full_stream_waits_for_nothing",
        "it watches a thread of std from outside",
    ),
    ("futures::trying_to_transfer_waits_for_no_block", "as above"),
    ("futures::what_waits_for_room_keeps_no_thread_of_the_runtime", "as above"),
    ("futures::launching_a_graph_that_is_being_changed_holds_no_poll", "as above"),
    ("runtimes::entering_at_the_end_of_a_thread_does_nothing", "the order in which std destroys locals"),
    ("runtimes::a_scope_is_that_of_its_future", "tokio's threads, as above"),
    ("loss::a_fault_resolves_everything_in_time", "it explores 40 schedules itself"),
    (
        "reports::fr_f10_tasks_that_move_between_threads_need_nothing_of_them",
        "tokio moves the tasks between threads of its own",
    ),
    ("polls::slow_calls_hold_no_poll", "it explores 10 schedules itself"),
];

/// Tests that move megabytes, each byte of which is followed: a third of the seeds.
const HEAVY: &[&str] = &[
    "a_capacity_is_kept_to",
    "a_download_reads_what_was_there_when_it_was_submitted",
    "large_copies_come_in_pieces",
    "thirty_two_sizes_share_the_memory_of_the_largest",
    "values_are_written_over_what_there_is",
    "values_come_back_whatever_their_size",
    "without_virtual_memory_the_largest_comes_first",
];

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The seed of the exploration that the calling test runs in.
pub fn seed() -> Option<u64> {
    SEED.get()
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: allowed is a number from 0 to 2^64-1")))
}

/// Runs a test on explored schedules.
pub fn run(name: &str, test: fn()) {
    let heavy = HEAVY.iter().any(|heavy| name.ends_with(&format!("::{heavy}")));
    let chosen = setting("SIMTILE_ASYNC_SEED");
    let seeds = match chosen {
        Some(seed) => seed..seed + 1,
        None => 0..setting("SIMTILE_ASYNC_SEEDS").unwrap_or(SEEDS).div_ceil(if heavy { 3 } else { 1 }),
    };
    for seed in seeds {
        SEED.set(Some(seed));
        let outcome = explore(seed, Strategy::of_seed(seed), test);
        SEED.set(None);
        if outcome.deadlock.is_none() && outcome.result.is_ok() {
            continue;
        }
        if chosen.is_some() {
            let lines: Vec<_> = outcome.trace.text().lines().collect();
            eprintln!("{}", lines[lines.len().saturating_sub(80)..].join("\n"));
        }
        let said = outcome.result.err().map(|panic| match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => {
                panic.downcast::<&str>().map_or_else(|_| "a panic".to_owned(), |text| (*text).to_owned())
            }
        });
        panic!(
            "{name}, SIMTILE_ASYNC_SEED={seed}: {}{}",
            said.unwrap_or_default(),
            outcome.deadlock.map(|why| format!("\n{why}")).unwrap_or_default()
        );
    }
}

/// Runs tests of this module on explored schedules, too.
macro_rules! explored {
    ($($name:ident)+) => {
        mod explored {
            $(
                #[test]
                fn $name() {
                    crate::schedules::run(concat!(module_path!(), "::", stringify!($name)), super::$name);
                }
            )+
        }
    };
}
pub(crate) use explored;

/// Names behind a mark, as they stand in a module's text.
fn names<'s>(text: &'s str, mark: &str) -> Vec<&'s str> {
    let name = |rest: &'s str| {
        let rest = rest.trim_start().strip_prefix("fn ")?;
        rest.split(['(', '<']).next()
    };
    text.split(mark).skip(1).filter_map(name).collect()
}

/// Every test is run on explored schedules, or says why not, in one list.
#[test]
fn every_test_is_explored_or_says_why_not() {
    let modules = [
        ("drops", include_str!("drops.rs")),
        ("families", include_str!("families.rs")),
        ("futures", include_str!("futures.rs")),
        ("graphs", include_str!("graphs.rs")),
        ("launches", include_str!("launches.rs")),
        ("library", include_str!("library.rs")),
        ("loss", include_str!("loss.rs")),
        ("memo", include_str!("memo.rs")),
        ("nodes", include_str!("nodes.rs")),
        ("ops", include_str!("ops.rs")),
        ("polls", include_str!("polls.rs")),
        ("reports", include_str!("reports.rs")),
        ("runtimes", include_str!("runtimes.rs")),
        ("shared", include_str!("shared.rs")),
        ("transfers", include_str!("transfers.rs")),
    ];
    // What the tests share, and `explored`, which explores by itself.
    const OTHERS: [&str; 4] = ["calls", "common", "explored", "schedules"];
    let declared =
        include_str!("main.rs").lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    for module in declared.filter(|module| !OTHERS.contains(module)) {
        assert!(modules.iter().any(|(name, _)| *name == module), "{module} is in no list");
    }
    let mut elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(elsewhere.len(), ELSEWHERE.len(), "named once");
    for (module, text) in modules {
        let tests = names(text, "#[test]\n");
        assert_eq!(tests.len(), text.matches("#[test]").count(), "{module}");
        let list = text.split("explored!(").nth(1).and_then(|rest| rest.split(')').next());
        let mut listed: BTreeSet<&str> = list.unwrap_or_default().split_whitespace().collect();
        for test in tests {
            let excused = elsewhere.remove(&format!("{module}::{test}"));
            assert_ne!(listed.remove(test), excused, "{module}::{test}: explored, or excused, and not both");
        }
        assert!(listed.is_empty(), "{module}: {listed:?}");
    }
    assert!(elsewhere.is_empty(), "there is no {elsewhere:?}");
}
