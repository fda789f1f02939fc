//! One test in a process of its own, under a watchdog.
//!
//! The child prints its report as the last line of JSON. Whatever else happens to it is a failure of the test that
//! it ran: a hang, after which it is killed; a death by signal; an end without a report; a report of success
//! before an exit that failed.

use super::report::Report;
use super::{Outcome, Target, Test};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How long the end of a dead child's output is waited for. A process of its own that it left behind may hold the pipe.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs a test in a child process of this program.
pub fn run_self(test: &Test, target: &Target, watchdog: Duration) -> Report {
    match std::env::current_exe() {
        Ok(program) => run(&program, test, target, watchdog),
        Err(error) => failed(test, target, format!("own path unknown: {error}"), Duration::ZERO),
    }
}

/// Runs a test in a child process of a program that takes the suite's command line.
pub fn run(program: &Path, test: &Test, target: &Target, watchdog: Duration) -> Report {
    let started = Instant::now();
    report_of(program, test, target, watchdog, started)
        .unwrap_or_else(|text| failed(test, target, text, started.elapsed()))
}

fn failed(test: &Test, target: &Target, text: String, after: Duration) -> Report {
    Report::new(test, target, Outcome::Fail(text), Vec::new(), after.as_secs_f64() * 1e3)
}

fn report_of(
    program: &Path,
    test: &Test,
    target: &Target,
    watchdog: Duration,
    started: Instant,
) -> Result<Report, String> {
    let mut command = Command::new(program);
    command.args(["run", "--json", "--driver", &target.name(), "--exact", test.name]);
    let ended = Ended::of(command, watchdog, started)?;
    let Some(status) = ended.status else {
        return Err(format!("hangs: killed after {} s {}", watchdog.as_secs_f64(), tail(&ended.stderr)));
    };
    let report = ended.stdout.lines().rev().find_map(|line| serde_json::from_str::<Report>(line).ok());
    match report {
        // A test that passed and then died at exit did not pass.
        Some(report) if report.outcome == "fail" || status.success() => Ok(report),
        _ => Err(format!("the test's process ended with {status} {}", tail(&ended.stderr))),
    }
}

/// How a process ended.
pub struct Ended {
    /// `None`: it was killed by the watchdog.
    pub status: Option<ExitStatus>,
    /// What it wrote.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

impl Ended {
    /// Runs a process to its end, or kills it when `watchdog` has passed since `started`.
    ///
    /// # Errors
    /// It could not be started, or was lost.
    pub fn of(mut command: Command, watchdog: Duration, started: Instant) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("no child process: {error}"))?;
        // Both pipes are drained while the child runs, or a talkative one would block.
        let out = child.stdout.take().map(Drain::new);
        let err = child.stderr.take().map(Drain::new);
        let status = wait(&mut child, watchdog, started);
        let [stdout, stderr] = [out, err].map(|drain| drain.map(Drain::finish).unwrap_or_default());
        Ok(Self { status: status?, stdout, stderr })
    }
}

/// Waits for the end of the child; `None` if it had to be killed.
fn wait(child: &mut Child, watchdog: Duration, started: Instant) -> Result<Option<ExitStatus>, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if started.elapsed() < watchdog => thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                // It may have ended just now; either way it is gone after this.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
            Err(error) => return Err(format!("lost the child process: {error}")),
        }
    }
}

/// A thread that reads a pipe to its end.
struct Drain(Receiver<Vec<u8>>);

impl Drain {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut block) {
                if sender.send(block[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self(receiver)
    }

    /// What was read, when the process is gone.
    fn finish(self) -> String {
        let end = Instant::now() + LAST_WORDS;
        let mut bytes = Vec::new();
        while let Ok(block) = self.0.recv_timeout(end.saturating_duration_since(Instant::now())) {
            bytes.extend(block);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The end of what a process wrote, on one line.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
