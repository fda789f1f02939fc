//! The lint of the mutation check: every step of the tracker's protocol has a switch.
//!
//! A step is a call of one of the primitives below. A `site!` must stand on its line, up to a few lines above it, or on the next;
//! where a step needs none (it is reached only through another that has one), a `// no site: reason` says why.

use std::path::{Path, PathBuf};

/// What the primitives look like in the source.
const STEPS: &[(&str, &str)] = &[
    ("wait", "backend.wait("),
    ("wait", "follow(&oldest"),
    ("guard", ".guard.lock("),
    ("guard", ".guard.try_lock("),
    ("bump", "open += 1"),
    ("seal", "seal_epoch("),
    ("seal", "seal_epoch_asking("),
    ("seal", "seal_once("),
    ("seal", "self.seal(&mut"),
    ("merge", ".merge("),
    ("merge", ".raise("),
    ("merge", "entries.push(*entry)"),
    ("prune", ".prune("),
    ("prune", "entries.retain("),
    ("prune", "pop_front("),
    ("prune", "self.join(start"),
    ("prune", "self.fold(max"),
    ("request", "leave_request("),
    ("request", "ask_seal(stamp)"),
    ("request", ".serve("),
];

/// Lines above a step, and below, in which its switch may stand.
const ABOVE: usize = 7;
const BELOW: usize = 3;

/// All files below a directory, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() { found.append(&mut files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// Steps without a switch and switches that nothing uses, as `file:line: what`.
pub fn check(source: &Path, sites: &[String]) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    let mut used: Vec<String> = Vec::new();
    for file in files(source)? {
        let name = file.strip_prefix(source).unwrap_or(&file).to_string_lossy().into_owned();
        let judged = name.ends_with(".rs") && !name.ends_with("_tests.rs") && name != "mutate.rs";
        if !judged {
            continue;
        }
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{name}: {e}"))?;
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            for part in line.split("site!(").skip(1) {
                used.push(part.split(')').next().unwrap_or_default().to_owned());
            }
            let code = line.trim_start();
            if code.starts_with("//") || code.contains("fn ") {
                continue;
            }
            for (kind, step) in STEPS {
                if !line.contains(step) {
                    continue;
                }
                let near = &lines[at.saturating_sub(ABOVE)..(at + BELOW).min(lines.len())];
                let excused = near.iter().any(|line| line.contains("site!(") || line.contains("// no site:"));
                if !excused {
                    wrong.push(format!("{name}:{}: {kind} without a switch: {}", at + 1, code));
                }
            }
        }
    }
    for site in sites {
        if !used.contains(site) {
            wrong.push(format!("mutate.rs: nothing asks for {site}"));
        }
    }
    Ok(wrong)
}
