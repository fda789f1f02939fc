//! `test`: everything that can be tested on this machine.
//!
//! Runs the workspace's tests and then the conformance suite on each simulated driver, and asserts that
//! as many tests ran as the committed file says: a test that silently stops being run fails this.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The committed number of tests.
const EXPECTED: &str = include_str!("../expected-tests.txt");
/// Simulated drivers that the conformance suite runs on.
const DRIVERS: &[&str] = &["sim-fast", "sim-fifo"];

/// Passed, failed and skipped (ignored or unsupported) tests.
#[derive(Clone, Copy, Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// `test [--update]`: with `--update`, prints the count to commit instead of comparing it.
pub fn run(args: &[String]) -> Result<(), String> {
    let update = match args {
        [] => false,
        [flag] if flag == "--update" => true,
        other => return Err(format!("unknown arguments {other:?}; the only one is --update")),
    };
    let (tests, tests_ok) = cargo(&["test", "--locked", "--workspace", "--no-fail-fast"])?;
    let mut total = tests;
    let mut all_ok = tests_ok;
    for driver in DRIVERS {
        let (tally, ok) =
            cargo(&["run", "--locked", "--release", "-p", "simtile-cts", "--", "run", "--driver", driver])?;
        total.add(tally);
        all_ok &= ok;
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if !all_ok || total.failed > 0 {
        return Err("some tests failed; their names are above".into());
    }
    if update {
        println!("crates/xtask/expected-tests.txt should hold {}", tests.passed);
        return Ok(());
    }
    let expected: u64 = EXPECTED.trim().parse().map_err(|e| format!("expected-tests.txt: {e}"))?;
    if tests.passed != expected {
        return Err(format!(
            "{} workspace tests passed, crates/xtask/expected-tests.txt says {expected}; if the difference is meant, \
             change the file",
            tests.passed
        ));
    }
    Ok(())
}

/// Runs cargo, passes its output on and sums up the result lines in it.
fn cargo(args: &[&str]) -> Result<(Tally, bool), String> {
    println!("+ cargo {}", args.join(" "));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut child = Command::new(&cargo)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{cargo}: {e}"))?;
    let mut tally = Tally::default();
    let output = child.stdout.take().ok_or("no output of cargo")?;
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|e| format!("output of cargo: {e}"))?;
        println!("{line}");
        if let Some(result) = tally_of(&line) {
            tally.add(result);
        }
    }
    let status = child.wait().map_err(|e| format!("{cargo}: {e}"))?;
    Ok((tally, status.success()))
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …` or `3 passed, 0 failed, 1 skipped`.
fn tally_of(line: &str) -> Option<Tally> {
    let text = match line.strip_prefix("test result: ") {
        Some(rest) => rest.split_once(". ")?.1,
        None if line.contains(" passed, ") && line.contains(" failed") => line,
        None => return None,
    };
    let mut tally = Tally::default();
    for part in text.split([';', ',']) {
        let mut words = part.split_whitespace();
        let (Some(count), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(count) = count.parse() else { continue };
        match what {
            "passed" => tally.passed = count,
            "failed" => tally.failed = count,
            "ignored" | "skipped" => tally.skipped = count,
            _ => {}
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::tally_of;

    #[test]
    fn reads_both_result_lines() {
        let line =
            "test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let cargo = tally_of(line).unwrap();
        assert_eq!((cargo.passed, cargo.failed, cargo.skipped), (12, 1, 2));
        let cts = tally_of("93 passed, 0 failed, 4 skipped").unwrap();
        assert_eq!((cts.passed, cts.failed, cts.skipped), (93, 0, 4));
        assert!(tally_of("running 3 tests").is_none());
    }
}
