//! The committed counts: how many tests pass, and how many a driver cannot run.
//!
//! A test that silently stops running would look like success. So the counts of each driver are committed,
//! and a full run fails if it finds others. The counts of a GPU hold for the machine they were taken on.

use super::report::Totals;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The committed file, as it was when the program was built.
const COMMITTED: &str = include_str!("../../expected.json");
/// Where it lies, seen from the root of the repository.
pub const PATH: &str = "crates/simtile-cts/expected.json";

/// The counts of one driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Name of device 0 and number of devices where the counts were taken.
    pub machine: String,
    /// Tests that pass.
    pub passed: usize,
    /// Tests that this driver cannot run.
    pub unsupported: usize,
}

type File = BTreeMap<String, Counts>;

/// The committed counts by driver.
///
/// # Errors
/// The file is broken.
pub fn committed() -> Result<BTreeMap<String, Counts>, String> {
    serde_json::from_str(COMMITTED).map_err(|error| format!("{PATH} is broken: {error}"))
}

/// Compares a full run with the committed counts. `Ok` carries a note if there is nothing to compare with.
///
/// # Errors
/// What differs.
pub fn compare(driver: &str, machine: &str, totals: Totals) -> Result<Option<String>, String> {
    let file = committed()?;
    match file.get(driver) {
        None => Ok(Some(format!("no counts are committed for {driver}"))),
        Some(counts) if counts.machine != machine => Ok(Some(format!(
            "the committed counts of {driver} were taken on {}; this is {machine}",
            counts.machine
        ))),
        Some(counts) if (counts.passed, counts.unsupported) == (totals.passed, totals.skipped) => Ok(None),
        Some(counts) => Err(format!(
            "{PATH} says {} passed and {} skipped on {driver}; this run has {} and {}. \
             If that is right, run again with --update-expected",
            counts.passed, counts.unsupported, totals.passed, totals.skipped
        )),
    }
}

/// Writes the counts of this run into the file, which has to be there: the working directory is the root of
/// the repository.
///
/// # Errors
/// Why the file could not be read or written.
pub fn update(driver: &str, machine: &str, totals: Totals) -> Result<(), String> {
    let path = Path::new(PATH);
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{PATH}: {error}; run in the root of the repository"))?;
    let mut file: File = serde_json::from_str(&text).map_err(|error| format!("{PATH}: {error}"))?;
    let counts = Counts { machine: machine.into(), passed: totals.passed, unsupported: totals.skipped };
    file.insert(driver.into(), counts);
    let text = serde_json::to_string_pretty(&file).map_err(|error| format!("{PATH}: {error}"))?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{PATH}: {error}"))
}
