//! What is reported about a test: a line of JSON or of text.

use super::{Outcome, Target, Test};
use serde::{Deserialize, Serialize};

/// One test's result, as `run --json` prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// `family::name`.
    pub test: String,
    /// `driver` or `core`.
    pub layer: String,
    /// What it is about.
    pub family: String,
    /// The promises it proves.
    pub promises: Vec<String>,
    /// The driver entries it called.
    pub entries: Vec<String>,
    /// The driver's name.
    pub driver: String,
    /// `pass`, `fail` or `unsupported`.
    pub outcome: String,
    /// What failed, or why it cannot run; empty for a pass.
    pub reason: String,
    /// How long it took.
    pub millis: f64,
}

impl Report {
    /// The report of a test that ended so.
    pub fn new(test: &Test, target: &Target, outcome: Outcome, entries: Vec<String>, millis: f64) -> Self {
        let (outcome, reason) = match outcome {
            Outcome::Pass => ("pass", String::new()),
            Outcome::Fail(text) => ("fail", text),
            Outcome::Unsupported(reason) => ("unsupported", reason),
        };
        Self {
            test: test.name.into(),
            layer: test.layer.name().into(),
            family: test.family.into(),
            promises: test.promises.iter().map(|&promise| promise.into()).collect(),
            entries,
            driver: target.name(),
            outcome: outcome.into(),
            reason,
            millis: (millis * 1e3).round() / 1e3,
        }
    }

    /// One line of text. Passing tests get one only if asked for.
    pub fn line(&self, passes_too: bool) -> Option<String> {
        match self.outcome.as_str() {
            "pass" if passes_too => {
                Some(format!("pass  {} ({}, {:.1} ms)", self.test, self.layer, self.millis))
            }
            "pass" => None,
            "unsupported" => Some(format!("skip  {} ({}): {}", self.test, self.layer, self.reason)),
            _ => Some(format!("FAIL  {} ({}): {}", self.test, self.layer, self.reason)),
        }
    }
}

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Tests of which every seed passed.
    pub passed: usize,
    /// Tests that failed, hung or died.
    pub failed: usize,
    /// Tests that this driver cannot run, each with a reason.
    pub skipped: usize,
}

impl Totals {
    /// Sums up reports.
    pub fn of(reports: &[Report]) -> Self {
        let count = |outcome: &str| reports.iter().filter(|report| report.outcome == outcome).count();
        let (passed, skipped) = (count("pass"), count("unsupported"));
        Self { passed, skipped, failed: reports.len() - passed - skipped }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
