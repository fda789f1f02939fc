//! Cases run in child processes: a kernel that loses its context, or a driver that crashes, takes one case along.

use super::artifacts::CASES;
use super::device::Device;
use super::forms::{self, Form};
use super::record::{self, Elem, Entry, Output, Rows, Tolerance};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A worker that finishes no case for this long is stopped.
const PATIENCE: Duration = Duration::from_secs(90);

/// In the child: runs one artifact case (`artifact NUMBER`) or forms from a number on (`forms FIRST`), and
/// appends to a file.
pub fn child(driver: &str, what: &str, number: usize, file: &Path) -> Result<(), String> {
    let mut out = BufWriter::new(File::create(file).map_err(|e| e.to_string())?);
    record::start(&mut out).map_err(|e| e.to_string())?;
    let device = Device::open(driver)?;
    let mut put =
        |entry: &Entry| record::write(&mut out, entry).and_then(|()| out.flush()).map_err(|e| e.to_string());
    if what == "artifact" {
        let case = CASES.get(number).ok_or("there is no such case")?;
        let mut result = case.run(&device);
        let findings = device.findings();
        if let (Ok(_), Some(first), false) = (&result, findings.first(), case.loses) {
            result = Err(format!("the simulator reports: {first}"));
        }
        return put(&Entry { name: artifact_name(number), result });
    }
    let all = forms::all();
    let mut failed = Ok(());
    forms::run(&device, all.get(number..).unwrap_or_default(), &mut |entry| {
        let lost = entry.result.is_err() && device.wait().is_err();
        failed = put(&entry);
        failed.is_ok() && !lost
    });
    failed
}

pub fn artifact_name(number: usize) -> String {
    format!("artifact {}", CASES[number].name)
}

/// Runs all cases whose name contains `filter` on a driver.
pub fn run_all(driver: &str, filter: &str, scratch: &Path) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let name = artifact_name(number);
        if !name.contains(filter) {
            continue;
        }
        let (mut found, printed, why) = spawn(driver, "artifact", number, scratch)?;
        let mut entry =
            found.pop().unwrap_or(Entry { name, result: Err(format!("the process ended: {why}")) });
        if let (true, Ok(outputs)) = (case.prints, &mut entry.result) {
            outputs.push(Output {
                elem: Elem::U8,
                tolerance: Tolerance::EXACT,
                rows: Rows::ALL,
                bytes: printed,
            });
        }
        entries.push(entry);
    }
    let all: Vec<Form> = forms::all();
    let mut next = 0;
    while next < all.len() {
        if !all[next..].iter().any(|form| form.body.contains(filter)) {
            break;
        }
        let (found, _, why) = spawn(driver, "forms", next, scratch)?;
        next += found.len();
        let lost = found.last().is_some_and(|entry| entry.result.is_err());
        entries.extend(found.into_iter().filter(|entry| entry.name.contains(filter)));
        // Without an entry of its own, the next one is what ended the process.
        if next < all.len() && !lost {
            let name = all[next].body.clone();
            entries.push(Entry { name, result: Err(format!("the process ended: {why}")) });
            next += 1;
        }
    }
    Ok(entries)
}

/// One child; its entries, what it printed, and how it ended.
fn spawn(
    driver: &str,
    what: &str,
    number: usize,
    scratch: &Path,
) -> Result<(Vec<Entry>, Vec<u8>, String), String> {
    let path = |name: &str| scratch.join(format!("differential-{}-{name}", std::process::id()));
    let (file, printed, errors) = (path("record"), path("stdout"), path("stderr"));
    let create = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(program)
        .args(["differential", "--worker", driver, what, &number.to_string()])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(create(&printed)?)
        .stderr(create(&errors)?)
        .spawn()
        .map_err(|e| e.to_string())?;
    let (mut size, mut since) = (0, Instant::now());
    let ended = loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            break status.to_string();
        }
        let now = std::fs::metadata(&file).map_or(0, |m| m.len());
        if now != size {
            (size, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            break format!("no result for {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    let entries = record::read(&read(&file)).unwrap_or_default();
    let said = String::from_utf8_lossy(&read(&errors)).lines().last().unwrap_or("").to_owned();
    let output = read(&printed);
    for path in [file, printed, errors] {
        let _ = std::fs::remove_file(path);
    }
    Ok((entries, output, format!("{ended} {said}")))
}
