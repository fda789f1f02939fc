//! The frame itself: what it says about tests that fail, panic or hang, and that the list of tests is in order.

use simtile_cts::frame::report::{Report, Totals};
use simtile_cts::frame::{
    Check, Cx, Layer, Mask, Need, PROMISES, Stop, Target, Test, child, expected, run, selftest,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const fn test(name: &'static str, needs: &'static [Need], seeds: u64, run: fn(&Cx) -> Check) -> Test {
    Test { name, layer: Layer::Driver, family: "frame", promises: &[], needs, seeds, run }
}

fn passes(_: &Cx) -> Check {
    Ok(())
}

fn fails_at_seed_two(cx: &Cx) -> Check {
    if cx.seed() == 2 { Err(Stop::fail("on purpose")) } else { Ok(()) }
}

fn panics(_: &Cx) -> Check {
    std::panic::panic_any("on purpose")
}

fn hangs(_: &Cx) -> Check {
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

fn asks(cx: &Cx) -> Check {
    cx.devices().map(|_| ())
}

static PASSES: Test = test("frame::passes", &[], 3, passes);
static FAILS: Test = test("frame::fails", &[], 3, fails_at_seed_two);
static PANICS: Test = test("frame::panics", &[], 1, panics);
static HANGS: Test = test("frame::hangs", &[], 1, hangs);
static ASKS: Test = test("frame::asks", &[Need::Devices(1)], 1, asks);
static TOO_MUCH: Test = test("frame::too_much", &[Need::Capability(99, 0)], 1, passes);

fn outcome(reports: &[Report], name: &str) -> (String, String) {
    let report = reports.iter().find(|report| report.test == name).expect("a report for every test");
    (report.outcome.clone(), report.reason.clone())
}

#[test]
fn every_end_of_a_test_is_reported() {
    let tests = [&PASSES, &FAILS, &PANICS, &HANGS, &ASKS, &TOO_MUCH];
    let reports = run::run_all(&tests, &Target::SimFifo, 2, Duration::from_millis(500), &|_| {});
    assert_eq!(outcome(&reports, "frame::passes").0, "pass");
    assert_eq!(outcome(&reports, "frame::fails"), ("fail".into(), "seed 2: on purpose".into()));
    assert_eq!(outcome(&reports, "frame::panics"), ("fail".into(), "panicked: on purpose".into()));
    let (hang, why) = outcome(&reports, "frame::hangs");
    assert!(hang == "fail" && why.contains("hangs"), "{hang}: {why}");
    let (skip, why) = outcome(&reports, "frame::too_much");
    assert!(skip == "unsupported" && why.contains("needs compute capability 99.0"), "{skip}: {why}");
    // A test counts once, whatever its number of seeds.
    assert_eq!(Totals::of(&reports), Totals { passed: 2, failed: 3, skipped: 1 });
    assert_eq!(Totals::of(&reports).to_string(), "2 passed, 3 failed, 1 skipped");
}

/// The way of tests on a GPU: the suite's program runs each in a child process, and ends those that hang.
#[test]
fn every_end_of_a_child_process_is_reported() {
    let program = Path::new(env!("CARGO_BIN_EXE_simtile-cts"));
    let child = |test, seconds| child::run(program, test, &Target::SimFifo, Duration::from_secs(seconds));
    let report = child(&selftest::PASSES, 60);
    assert_eq!((report.outcome.as_str(), report.reason.as_str()), ("pass", ""));
    assert_eq!(report.entries, ["cuInit", "cuDeviceGetCount"], "what the child called");
    let report = child(&selftest::FAILS, 60);
    assert_eq!((report.outcome.as_str(), report.reason.as_str()), ("fail", "on purpose"));
    let report = child(&selftest::SKIPS, 60);
    assert_eq!((report.outcome.as_str(), report.reason.as_str()), ("unsupported", "on purpose"));
    let report = child(&selftest::DIES, 60);
    assert_eq!(report.outcome, "fail");
    assert!(report.reason.contains("signal") && report.reason.contains("last words"), "{}", report.reason);
    let began = Instant::now();
    let report = child(&selftest::HANGS, 2);
    assert_eq!((report.test.as_str(), report.outcome.as_str()), ("selftest::hangs", "fail"));
    assert!(report.reason.contains("hangs: killed after 2 s last words"), "{}", report.reason);
    // The line that a run prints names it.
    let line = report.line(false).unwrap();
    assert!(line.starts_with("FAIL  selftest::hangs (driver): hangs"), "{line}");
    assert!(began.elapsed() < Duration::from_secs(60), "the watchdog came late");
    assert_eq!(run::WATCHDOG, Duration::from_secs(60));
}

/// Nothing a child leaves behind makes its parent wait, and no report excuses a bad end.
#[cfg(unix)]
#[test]
fn children_that_lie_or_leave_processes_behind_fail() {
    let folder = std::env::temp_dir().join(format!("simtile-frame-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let child = |name: &str, script: &str, seconds| {
        let path = folder.join(name);
        // Written by another process: a file that this one has open for writing, for however short a time, may be
        // inherited by a child of another test, and then cannot be executed.
        let written = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .arg(script)
            .status()
            .unwrap();
        assert!(written.success());
        child::run(&path, &selftest::PASSES, &Target::Cuda, Duration::from_secs(seconds))
    };
    let good = run::execute(&PASSES, &Target::SimFast);
    let good = serde_json::to_string(&good).unwrap();
    let report = child("passes", &format!("echo noise; echo '{good}'"), 60);
    assert_eq!(report.outcome, "pass");
    let report = child("dies_late", &format!("echo '{good}'; exit 3"), 60);
    assert!(report.outcome == "fail" && report.reason.contains("exit status: 3"), "{}", report.reason);
    let report = child("silent", "exit 0", 60);
    assert!(report.outcome == "fail" && report.reason.contains("ended with"), "{}", report.reason);
    let report = child("leaves", "sleep 120 & echo words >&2; exit 5", 60);
    assert!(report.reason.contains("exit status: 5") && report.reason.contains("words"), "{}", report.reason);
    assert!(report.millis < 60_000.0, "waited {} ms for a process left behind", report.millis);
    let _ = std::fs::remove_dir_all(&folder);
}

/// No name of a test for the frame is in the list.
#[test]
fn tests_of_the_frame_are_found_by_exact_name_alone() {
    assert!(!simtile_cts::tests().any(|test| test.name.starts_with("selftest")));
    let program = env!("CARGO_BIN_EXE_simtile-cts");
    let run = |arguments: &[&str]| Command::new(program).args(arguments).output().unwrap();
    assert_eq!(run(&["run", "--filter", "selftest"]).status.code(), Some(1), "no test matches");
    assert_eq!(run(&["run", "--exact", "selftest::passes"]).status.code(), Some(0));
    assert_eq!(run(&["run", "--exact", "selftest::fails"]).status.code(), Some(1));
    assert_eq!(run(&["run", "--exact", "selftest::no_such"]).status.code(), Some(2));
}

/// The suite needs no driver library to run, and a test that a machine cannot run is told as that, never as passed.
#[test]
fn fr_n4_tests_run_without_a_driver_and_skips_are_no_passes() {
    static NEEDS_A_GPU: Test = test("frame::needs_more", &[Need::Capability(99, 0)], 1, passes);
    let reports =
        run::run_all(&[&PASSES, &NEEDS_A_GPU], &Target::SimFast, 2, Duration::from_secs(60), &|_| {});
    let (skip, why) = outcome(&reports, "frame::needs_more");
    assert!(skip == "unsupported" && why.contains("needs compute capability 99.0"), "{skip}: {why}");
    assert_eq!(Totals::of(&reports), Totals { passed: 1, failed: 0, skipped: 1 });
}

#[test]
fn entries_are_measured_without_those_of_the_needs() {
    let report = run::execute(&ASKS, &Target::SimFast);
    assert_eq!(report.entries, ["cuInit", "cuDeviceGetCount"]);
    let report = run::execute(&PASSES, &Target::SimFast);
    assert!(report.entries.is_empty(), "{:?}", report.entries);
}

#[test]
fn a_report_is_one_object_of_json() {
    let report = run::execute(&PASSES, &Target::SimFast);
    let text = serde_json::to_string(&report).unwrap();
    assert!(!text.contains('\n'));
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!((back.test.as_str(), back.outcome.as_str()), ("frame::passes", "pass"));
    for key in ["test", "layer", "family", "promises", "entries", "driver", "outcome", "reason", "millis"] {
        assert!(text.contains(&format!("\"{key}\":")), "{text}");
    }
}

#[test]
fn a_driver_that_is_not_there_fails_every_test() {
    let report = run::execute(&PASSES, &Target::Path("/no/such/libcuda.so".into()));
    assert!(report.outcome == "fail" && report.reason.contains("/no/such/libcuda.so"), "{}", report.reason);
}

#[test]
fn counts_are_committed_for_every_simulated_driver() {
    let committed = expected::committed().unwrap();
    let all = simtile_cts::tests().count();
    let masked = Mask::ALL.iter().map(|&mask| Target::SimMasked(mask));
    for target in [Target::SimFast, Target::SimFifo].into_iter().chain(masked) {
        let counts =
            committed.get(&target.name()).unwrap_or_else(|| panic!("no counts for {}", target.name()));
        // Nothing is left out: what does not pass is unsupported, and says why when it runs.
        assert_eq!(counts.passed + counts.unsupported, all, "{}", target.name());
        assert_eq!(Target::parse(&target.name()), target);
    }
}

#[test]
fn multicast_never_runs_on_a_real_device() {
    let family: Vec<_> = simtile_cts::tests().filter(|test| test.family == "multicast").collect();
    assert!(!family.is_empty());
    let simulated = |need: &Need| matches!(need, Need::Simulator(_));
    for test in family {
        // Needs are looked at in their order, so that nothing is asked of a real driver first.
        assert!(test.needs.first().is_some_and(simulated), "{}", test.name);
    }
    // Its neighbours do not call it either.
    let multicast = |report: &Report| report.entries.iter().any(|entry| entry.starts_with("cuMulticast"));
    let others: Vec<&'static Test> = simtile_cts::tests().filter(|test| test.family == "vmm").collect();
    let reports = run::run_all(&others, &Target::SimFifo, 2, Duration::from_secs(60), &|_| {});
    assert!(!reports.iter().any(multicast));
}

/// Cargo.toml says that there are none, so they would never run.
#[test]
fn the_sources_have_no_unit_tests() {
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let unit_test = text.lines().any(|line| line.trim_start().starts_with("#[test]"));
            assert!(!unit_test, "{} has a unit test, which belongs into tests/", path.display());
            files += 1;
        }
    }
    assert!(files > 50, "{files} files");
}

#[test]
fn names_are_unique_and_promises_exist() {
    let mut names = BTreeSet::new();
    for test in simtile_cts::tests() {
        assert!(names.insert(test.name), "{} is there twice", test.name);
        assert!(test.name.starts_with(test.family), "{} is not of its family {}", test.name, test.family);
        assert!(test.promises.iter().all(|promise| PROMISES.contains(promise)), "{}", test.name);
        // A core test is there for a promise; a driver test states a guarantee of CUDA.
        assert_eq!(test.promises.is_empty(), test.layer == Layer::Driver, "{}", test.name);
    }
}
