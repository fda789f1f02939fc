//! Which driver entries and which promises have tests.
//!
//! Entries are measured: each driver-layer test ran over a counting driver, and its report says what it
//! called. Promises are declared by the core-layer tests. What nothing tests yet is listed with its reason in a
//! committed file; anything else that is empty is an error, and so is a listed one that has tests.

use super::report::Report;
use super::{Layer, PROMISES};
use serde::Deserialize;
use simtile_driver::Entry;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const COMMITTED: &str = include_str!("../../coverage.json");

/// What is allowed to be empty. A name may end in `*`.
#[derive(Debug, Deserialize)]
struct Open {
    entries: BTreeMap<String, String>,
    promises: BTreeMap<String, String>,
}

/// The table as text, and what is wrong with it.
pub struct Coverage {
    /// For people to read.
    pub text: String,
    /// Each line is a reason to fail.
    pub errors: Vec<String>,
}

/// Counts tests per entry and per promise. Tests that this driver cannot run count for nothing.
///
/// # Errors
/// The committed file is broken.
pub fn measure(reports: &[Report]) -> Result<Coverage, String> {
    let open: Open =
        serde_json::from_str(COMMITTED).map_err(|error| format!("coverage.json is broken: {error}"))?;
    let ran = |report: &&Report| report.outcome != "unsupported";
    let mut errors = Vec::new();
    let mut text = String::from("driver entries (driver-layer tests that call them):\n");
    for &entry in Entry::ALL {
        let tests = reports
            .iter()
            .filter(ran)
            .filter(|report| report.layer == Layer::Driver.name())
            .filter(|report| report.entries.iter().any(|name| name == entry.name()))
            .count();
        line(&mut text, &mut errors, entry.name(), tests, &open.entries);
    }
    text.push_str("promises (tests of our API that name them):\n");
    for &promise in PROMISES {
        let tests = reports
            .iter()
            .filter(ran)
            .filter(|report| report.layer != Layer::Driver.name())
            .filter(|report| report.promises.iter().any(|name| name == promise))
            .count();
        line(&mut text, &mut errors, promise, tests, &open.promises);
    }
    Ok(Coverage { text, errors })
}

fn line(
    text: &mut String,
    errors: &mut Vec<String>,
    name: &str,
    tests: usize,
    open: &BTreeMap<String, String>,
) {
    let reason = open.get(name).or_else(|| {
        open.iter()
            .find(|(pattern, _)| pattern.strip_suffix('*').is_some_and(|stem| name.starts_with(stem)))
            .map(|(_, reason)| reason)
    });
    // Writing to a string cannot fail.
    let _ = match (tests, reason) {
        (0, Some(reason)) => writeln!(text, "  {tests:4}  {name}  (open: {reason})"),
        (0, None) => {
            errors.push(format!("{name} has no test and is not listed as open in coverage.json"));
            writeln!(text, "  {tests:4}  {name}  MISSING")
        }
        (_, Some(_)) if open.contains_key(name) => {
            errors.push(format!("{name} has {tests} tests, but coverage.json lists it as open"));
            writeln!(text, "  {tests:4}  {name}  (listed as open)")
        }
        _ => writeln!(text, "  {tests:4}  {name}"),
    };
}
