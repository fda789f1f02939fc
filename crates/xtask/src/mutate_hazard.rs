//! `mutate-hazard`: leaves out every step of the access tracker in turn and expects the tests to notice.
//!
//! The steps are run-time switches, so the tests are built once. First a lint: every wait, guard, bump, seal, merge, prune
//! and request in the source has a switch, and every switch is asked somewhere.

use crate::site_lint;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Switches that no test can notice, with the reason.
const EQUIVALENT: &[(&str, &str)] = &[(
    "ServeBefore",
    "the announcement stays in the lock word, so the look after unlocking serves the same requests, only later",
)];

/// A test that takes longer has stopped: with a step left out, somebody waits for ever.
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
    if let Some((test, how)) = caught_by(&tests, None, programs)? {
        return Err(format!("{} {how} with nothing left out", name(&test)));
    }
    let mut survivors = Vec::new();
    let mut caught = 0;
    for site in sites.iter().filter(|site| only.as_ref().is_none_or(|only| only == *site)) {
        let start = Instant::now();
        let result = caught_by(&tests, Some(site), programs)?;
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Some((test, how)) => {
                caught += 1;
                println!("{site:<28} caught: {} {how} ({seconds:.1} s)", name(&test));
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

/// The first test that fails or hangs without `site`.
fn caught_by(
    tests: &[PathBuf],
    site: Option<&String>,
    programs: u64,
) -> Result<Option<(PathBuf, &'static str)>, String> {
    for test in tests {
        let mut command = Command::new(test);
        command.env("SIMTILE_HAZARD_PROGRAMS", programs.to_string()).env("RUST_BACKTRACE", "0");
        if let Some(site) = site {
            command.env("SIMTILE_HAZARD_OFF", site);
        }
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", test.display()))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                if !status.success() {
                    return Ok(Some((test.clone(), "failed")));
                }
                break;
            }
            if start.elapsed() > LIMIT {
                child.kill().map_err(|e| e.to_string())?;
                child.wait().map_err(|e| e.to_string())?;
                return Ok(Some((test.clone(), "hung")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(None)
}
