//! Programs that must not compile.
//!
//! Each file of a folder is compiled on its own against the libraries that this test was built with, so nothing is built
//! twice. A line that has to be refused ends with `//~ CODE TEXT`: the compiler says an error of that code there, with that text
//! (which may be left out), and none anywhere else. A file without marks has to compile. `control.rs` is one: it gives types of
//! each library to the others, and so tells which of the builds beside the test belong together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is said of a line: its number, the error code, the message.
type Said = (usize, String, String);

/// Compiles every file of `folder` (of the package) against `libraries`.
pub fn check(package: &str, folder: &str, libraries: &[&str]) {
    let folder = Path::new(package).join(folder);
    let builds = builds(&folder.join("control.rs"), libraries);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut wrong = String::new();
    let mut marked = 0;
    for file in &files {
        let source = std::fs::read_to_string(file).unwrap();
        let wanted = marks(&source);
        marked += wanted.len();
        let (said, output) = compile(file, &builds);
        if let Err(why) = compare(&wanted, &said) {
            wrong += &format!("{}: {why}\n{output}\n", file.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(marked > 0, "no line of {} is marked", folder.display());
}

/// The marks of a file. A mark without a code would ask for nothing.
fn marks(source: &str) -> Vec<Said> {
    let marks = source.lines().enumerate().filter_map(|(index, line)| {
        let (_, mark) = line.split_once("//~ ")?;
        let (code, text) = mark.split_once(' ').unwrap_or((mark, ""));
        assert!(code.len() == 5 && code.starts_with('E'), "no error code in `{line}`");
        Some((index + 1, code.to_string(), text.to_string()))
    });
    marks.collect()
}

/// Every mark has an error, and every error a mark.
fn compare(wanted: &[Said], said: &[Said]) -> Result<(), String> {
    for (line, code, text) in wanted {
        let found = said.iter().any(|(at, its, message)| at == line && its == code && message.contains(text));
        if !found {
            return Err(format!("line {line}: not refused with {code} {text}"));
        }
    }
    let wanted: BTreeSet<_> = wanted.iter().map(|(line, code, _)| (line, code)).collect();
    match said.iter().find(|(line, code, _)| !wanted.contains(&(line, code))) {
        Some((line, code, message)) => Err(format!("line {line}: {code} {message}, which no mark asks for")),
        None => Ok(()),
    }
}

/// The newest builds of the libraries with which the control compiles.
fn builds(control: &Path, libraries: &[&str]) -> Vec<(String, PathBuf)> {
    let mut choices: Vec<Vec<(String, PathBuf)>> = vec![Vec::new()];
    for library in libraries {
        let found = newest_first(library);
        assert!(!found.is_empty(), "no build of {library} beside the test");
        choices = choices
            .iter()
            .flat_map(|chosen| found.iter().map(move |path| (chosen, path)))
            .map(|(chosen, path)| {
                let mut chosen = chosen.clone();
                chosen.push((library.to_string(), path.clone()));
                chosen
            })
            .collect();
    }
    let mut last = String::new();
    for builds in choices {
        let (said, output) = compile(control, &builds);
        if said.is_empty() {
            return builds;
        }
        last = output;
    }
    panic!("{} compiles with no builds of {libraries:?}:\n{last}", control.display());
}

/// Builds of a library beside this test.
fn newest_first(library: &str) -> Vec<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let start = format!("lib{library}-");
    let files = std::fs::read_dir(test.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
    let mut found: Vec<_> = files
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&start) && name.ends_with(".rlib")
        })
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().and_then(|data| data.modified()).ok()));
    found
}

/// The errors of a file. An error without a place counts as one of line 0.
fn compile(file: &Path, builds: &[(String, PathBuf)]) -> (Vec<Said>, String) {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args([
        "--edition=2024",
        "--crate-type=bin",
        "--emit=metadata",
        "--error-format=short",
        "--color=never",
    ]);
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("refused-{}.rmeta", std::process::id()));
    rustc.args(["--cap-lints=allow", "-o"]).arg(&made);
    for (name, path) in builds {
        rustc.arg("--extern").arg(format!("{name}={}", path.display()));
        rustc.arg("-L").arg(format!("dependency={}", path.parent().unwrap().display()));
    }
    let output = rustc.arg(file).output().expect("rustc runs");
    let _ = std::fs::remove_file(made);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut said: Vec<Said> = text.lines().filter_map(error).collect();
    if output.status.success() {
        assert!(said.is_empty(), "{text}");
    } else if said.is_empty() {
        said.push((0, "E????".into(), text.clone()));
    }
    (said, text)
}

/// `PATH:LINE:COLUMN: error[CODE]: MESSAGE`, or without a code.
fn error(line: &str) -> Option<Said> {
    let (place, rest) = line.split_once("error")?;
    let place = place.strip_suffix(": ").unwrap_or(place);
    let number = place.rsplit(':').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
    if number == 0 && rest.starts_with(": aborting due to") {
        return None;
    }
    match rest.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        Some((code, message)) => Some((number, code.into(), message.into())),
        None => Some((number, "none".into(), rest.trim_start_matches(": ").into())),
    }
}
