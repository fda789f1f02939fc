//! `mutate-hazard`: leaves out every step of the access tracker in turn and expects the tests to notice.
//!
//! The steps are run-time switches, so the tests are built once. First a lint: every wait, guard, bump, seal, merge, prune
//! and request in the source has a switch, and every switch is asked somewhere.

use crate::site_lint;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Switches that no test can notice, with the reason.
const EQUIVALENT: &[(&str, &str)] = &[(
    "ServeBefore",
    "the announcement stays in the lock word, so the look after unlocking serves the same requests, only later",
)];

/// A test executable that takes longer has stopped: with a step left out, somebody waits for ever. That alone does not count
/// as caught, since a slow machine looks alike.
const LIMIT: Duration = Duration::from_secs(60);

/// See the module.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut programs = 3_000u64;
    let mut only = None;
    let mut lint_only = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.as_slice().first()) {
            ("--lint", _) => lint_only = true,
            ("--programs", Some(value)) => {
                programs = value.parse().map_err(|e| format!("--programs {value}: {e}"))?;
                args.next();
            }
            ("--only", Some(value)) => {
                only = Some(value.clone());
                args.next();
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simtile-hazard/src");
    let sites = sites(&source)?;
    let wrong = site_lint::check(&source, &sites)?;
    if !wrong.is_empty() {
        return Err(format!("{} steps:\n{}", wrong.len(), wrong.join("\n")));
    }
    println!("lint: every step has a switch, every one of {} switches is used", sites.len());
    if lint_only {
        return Ok(());
    }
    let tests = build()?;
    match caught_by(&tests, None, programs)? {
        None => {}
        Some(Caught::Failed(test)) => return Err(format!("{test} failed with nothing left out")),
        Some(Caught::Hung(test)) => return Err(format!("{test} hung with nothing left out")),
    }
    let mut survivors = Vec::new();
    let mut caught = 0;
    for site in sites.iter().filter(|site| only.as_ref().is_none_or(|only| only == *site)) {
        let start = Instant::now();
        let result = caught_by(&tests, Some(site), programs)?;
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Some(Caught::Failed(test)) => {
                caught += 1;
                println!("{site:<28} caught: {test} ({seconds:.1} s)");
            }
            Some(Caught::Hung(test)) => {
                println!("{site:<28} HUNG only: {test} ({seconds:.1} s)");
                survivors.push(site.clone());
            }
            None => match EQUIVALENT.iter().find(|(known, _)| known == site) {
                Some((_, why)) => println!("{site:<28} equivalent: {why}"),
                None => {
                    println!("{site:<28} SURVIVED ({seconds:.1} s)");
                    survivors.push(site.clone());
                }
            },
        }
    }
    println!("{caught} caught, {} survived", survivors.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("survivors: {}", survivors.join(", "))) }
}

/// The names in `mutate.rs`, between `sites! {` and `}`.
fn sites(source: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(source.join("mutate.rs")).map_err(|e| format!("mutate.rs: {e}"))?;
    let body = text.split("\nsites! {").nth(1).and_then(|rest| rest.split("\n}").next());
    let body = body.ok_or("mutate.rs: no list of sites")?;
    let code = body.lines().map(|line| line.split("//").next().unwrap_or_default());
    Ok(code
        .flat_map(|line| line.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|n| !n.is_empty())
        .collect())
}

fn name(test: &Path) -> String {
    let stem = test.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_owned())
}

/// Builds the tests with the switches; the executables, quick ones first.
fn build() -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--release", "--no-run", "-p", "simtile-hazard", "--features", "mutate"])
        .args(["--lib", "--test", "rules", "--test", "oracle", "--test", "threads"])
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("the tests do not build:\n{log}"));
    }
    let mut tests: Vec<PathBuf> = log
        .lines()
        .filter(|line| line.trim_start().starts_with("Executable"))
        .filter_map(|line| Some(PathBuf::from(line.rsplit_once('(')?.1.trim_end_matches(')'))))
        .collect();
    if tests.len() != 4 {
        return Err(format!("four test executables expected:\n{log}"));
    }
    let order = ["simtile_hazard", "rules", "oracle", "threads"];
    tests.sort_by_key(|test| order.iter().position(|known| *known == name(test)));
    Ok(tests)
}

/// How the tests noticed that a step was left out.
enum Caught {
    /// This test failed.
    Failed(String),
    /// This executable stopped, and no test failed.
    Hung(String),
}

/// The first test that fails without `site`; an executable that hangs if none does.
///
/// A failure is worth more than a hang: it says what went wrong. So an executable that hangs is not the last word.
fn caught_by(tests: &[PathBuf], site: Option<&String>, programs: u64) -> Result<Option<Caught>, String> {
    let mut hung = None;
    for test in tests {
        let mut command = Command::new(test);
        command.env("SIMTILE_HAZARD_PROGRAMS", programs.to_string()).env("RUST_BACKTRACE", "0");
        if let Some(site) = site {
            command.env("SIMTILE_HAZARD_OFF", site);
        }
        match run_until_failure(&mut command).map_err(|e| format!("{}: {e}", test.display()))? {
            End::Passed => {}
            End::Failed(case) => return Ok(Some(Caught::Failed(format!("{}: {case}", name(test))))),
            End::Hung => hung = hung.or(Some(Caught::Hung(name(test)))),
        }
    }
    Ok(hung)
}

enum End {
    Passed,
    Failed(String),
    Hung,
}

/// Runs a test executable to its end, to its first failure, or to [`LIMIT`].
fn run_until_failure(command: &mut Command) -> std::io::Result<End> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (tell, told) = mpsc::channel();
    let reader = child.stdout.take().map(|stdout| {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let failed = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
                if let Some(case) = failed {
                    // Nobody listens any more once the first failure is known.
                    let _ = tell.send(case.to_owned());
                }
            }
        })
    });
    // The sender goes with the end of the output, that is, of the process.
    let end = match told.recv_timeout(LIMIT) {
        Ok(case) => End::Failed(case),
        Err(mpsc::RecvTimeoutError::Timeout) => End::Hung,
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let status = child.wait()?;
            return Ok(if status.success() { End::Passed } else { End::Failed(status.to_string()) });
        }
    };
    // It may have ended by itself meanwhile.
    let _ = child.kill();
    child.wait()?;
    if let Some(reader) = reader {
        let _ = reader.join();
    }
    Ok(end)
}
