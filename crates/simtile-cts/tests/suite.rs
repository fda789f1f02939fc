//! The suite on simulated drivers: it passes, with the committed counts, and nothing built so far is untested.

use simtile_cts::frame::report::{Report, Totals};
use simtile_cts::frame::{Target, Test, coverage, expected, run};

fn whole_suite(target: &Target) -> Vec<Report> {
    let all: Vec<&'static Test> = simtile_cts::tests().collect();
    let reports = run::run_all(&all, target, run::jobs(target), run::WATCHDOG, &|_| {});
    let failed: Vec<String> = reports
        .iter()
        .filter(|report| report.outcome == "fail")
        .filter_map(|report| report.line(false))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let machine = simtile_cts::machine(target).unwrap();
    assert_eq!(expected::compare(&target.name(), &machine, Totals::of(&reports)), Ok(None));
    // Every test that cannot run says why.
    assert!(reports.iter().all(|report| report.outcome != "unsupported" || report.reason.len() > 10));
    reports
}

#[test]
fn sim_fast_passes_and_covers_what_is_built() {
    let reports = whole_suite(&Target::SimFast);
    let coverage = coverage::measure(&reports).unwrap();
    assert!(coverage.errors.is_empty(), "{}", coverage.errors.join("\n"));
}

#[test]
fn sim_fifo_passes() {
    whole_suite(&Target::SimFifo);
}
