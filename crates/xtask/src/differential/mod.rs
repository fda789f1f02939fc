//! `differential`: the same kernels on two drivers, result by result.
//!
//! Kernels are the committed artifacts and generated ones, one for each instruction form. Without options they
//! run on the simulator and, if libcuda and a GPU are there, on the GPU, and the two are compared. `--record`
//! writes a driver's results to a file, and `--compare` takes such a file as the second side, so that a GPU is
//! needed once. `--digests` compares with digests of results that were the same on both. The binary carries
//! everything it needs.

mod artifacts;
mod compare;
mod device;
mod digests;
mod forms;
mod record;
mod values;
mod worker;

use compare::{Row, Verdict, compare};
use device::Device;
use record::Entry;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Options of the command line.
#[derive(Default)]
struct Options {
    driver: Option<String>,
    out: Option<PathBuf>,
    record: Option<PathBuf>,
    compare: Option<PathBuf>,
    digests: Option<PathBuf>,
    filter: String,
}

/// Runs the command.
pub fn run(args: &[String]) -> Result<(), String> {
    if let [worker, driver, what, number, file] = args
        && worker == "--worker"
    {
        let number = number.parse().map_err(|e| format!("{number}: {e}"))?;
        return worker::child(driver, what, number, Path::new(file));
    }
    if let [flag, dir] = args
        && flag == "--write-ptx"
    {
        return write_ptx(Path::new(dir));
    }
    let options = options(args)?;
    if let Some(dir) = &options.out {
        std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    if let Some(path) = &options.digests {
        let driver = options.driver.as_deref().unwrap_or("sim");
        return digests::check(path, &on(driver, &options)?);
    }
    let reference = options.compare.as_deref().map(read).transpose()?;
    let first = options.driver.clone().unwrap_or_else(|| "sim".into());
    let ours = on(&first, &options)?;
    if let Some(path) = &options.record {
        write(path, &ours)?;
    }
    let (second, theirs) = match reference {
        Some(entries) => ("the record".to_owned(), entries),
        None if options.driver.is_none() => match Device::open("cuda") {
            Ok(_) => ("cuda".to_owned(), on("cuda", &options)?),
            Err(why) => {
                println!("no GPU to compare with: {why}");
                return summary(&ours, &options);
            }
        },
        None => return summary(&ours, &options),
    };
    report(&first, &ours, &second, &theirs, &options)
}

fn options(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let mut value = || args.next().cloned().ok_or(format!("{flag} takes a value"));
        match flag.as_str() {
            "--driver" => options.driver = Some(value()?),
            "--out" => options.out = Some(value()?.into()),
            "--record" => options.record = Some(value()?.into()),
            "--compare" => options.compare = Some(value()?.into()),
            "--digests" => options.digests = Some(value()?.into()),
            "--filter" => options.filter = value()?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

fn on(driver: &str, options: &Options) -> Result<Vec<Entry>, String> {
    let start = std::time::Instant::now();
    let entries = worker::run_all(driver, &options.filter, &std::env::temp_dir())?;
    let bad = entries.iter().filter(|entry| entry.result.is_err()).count();
    println!(
        "{driver}: {} kernels, {bad} did not run, {:.1} s",
        entries.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(entries)
}

fn read(path: &Path) -> Result<Vec<Entry>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    record::read(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, entries: &[Entry]) -> Result<(), String> {
    let mut bytes = Vec::new();
    record::start(&mut bytes)
        .and_then(|()| entries.iter().try_for_each(|entry| record::write(&mut bytes, entry)))
        .and_then(|()| std::fs::write(path, bytes))
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// With one driver only: what did not run, and a digest of all results.
fn summary(entries: &[Entry], options: &Options) -> Result<(), String> {
    for entry in entries {
        if let Err(why) = &entry.result {
            println!("not run: {}: {why}", entry.name);
        }
    }
    if let Some(dir) = &options.out {
        std::fs::write(dir.join("digests.txt"), digests::list(entries, |_| true))
            .map_err(|e| e.to_string())?;
    }
    if entries.is_empty() { Err("no kernel matches".into()) } else { Ok(()) }
}

/// The records that go with a report: small enough to travel.
const TRAVELS: usize = 12 << 20;

fn report(
    first: &str,
    ours: &[Entry],
    second: &str,
    theirs: &[Entry],
    options: &Options,
) -> Result<(), String> {
    let by_name: HashMap<&str, &Entry> = theirs.iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let rows: Vec<Row> =
        ours.iter().filter_map(|entry| Some(compare(entry, by_name.get(entry.name.as_str())?))).collect();
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let (differ, not_run) = (count(Verdict::Differs), count(Verdict::NotRun));
    let mut text = format!(
        "{first} and {second}: {} kernels, {} elements: {} the same, {} within their bound, {} with other NaN bits, \
         {differ} differ, {not_run} not run by both\n",
        rows.len(),
        rows.iter().map(|row| row.elements).sum::<usize>(),
        count(Verdict::Same),
        count(Verdict::Within),
        count(Verdict::NanBits),
    );
    print!("{text}");
    let line = |row: &Row| {
        format!(
            "{:8} {:>7} elements {:>6} other bits {:>6} NaN {:>6} out, {:>10} ulp  {} {}",
            format!("{:?}", row.verdict),
            row.elements,
            row.bits,
            row.nans,
            row.out,
            row.ulp,
            row.name,
            row.note
        )
    };
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by_key(|row| std::cmp::Reverse(row.verdict));
    for row in &sorted {
        let line = line(row);
        if row.verdict > Verdict::Same {
            println!("{}", line.chars().take(260).collect::<String>());
        }
        text += &line;
        text.push('\n');
    }
    if let Some(dir) = &options.out {
        let put = |name: &str, text: &str| std::fs::write(dir.join(name), text).map_err(|e| e.to_string());
        put("report.txt", &text)?;
        put("differences.txt", &differences(&rows))?;
        let verdicts: HashMap<&str, Verdict> =
            rows.iter().map(|row| (row.name.as_str(), row.verdict)).collect();
        // Those that were the same on both: a later simulator is held to them without a GPU.
        let same = |entry: &Entry| verdicts.get(entry.name.as_str()) == Some(&Verdict::Same);
        put("digests.txt", &digests::list(theirs, same))?;
        let mut room = TRAVELS;
        let kept: Vec<Entry> = theirs
            .iter()
            .filter(|entry| {
                let other = verdicts.get(entry.name.as_str()).is_some_and(|v| *v > Verdict::Same);
                let bytes = entry.result.iter().flatten().map(|output| output.bytes.len()).sum();
                let keep = (entry.name.starts_with("artifact ") || other) && bytes <= room;
                room -= if keep { bytes } else { 0 };
                keep
            })
            .cloned()
            .collect();
        write(&dir.join("second.rec"), &kept)?;
    }
    if rows.is_empty() {
        return Err("the two have no kernel in common".into());
    }
    match differ + not_run {
        0 => Ok(()),
        n => Err(format!("{n} kernels differ or did not run on both")),
    }
}

/// Inputs and results of elements that are not alike.
fn differences(rows: &[Row]) -> String {
    let forms = forms::all();
    let mut text = String::new();
    for row in rows.iter().filter(|row| !row.examples.is_empty()) {
        let _ = writeln!(text, "{}", row.name);
        let form = forms.iter().find(|form| form.body == row.name);
        let inputs = form.map(|form| values::inputs(&form.body, form.kinds, forms::LANES));
        for &(output, index, ours, theirs) in &row.examples {
            let lane = form.map_or(index, |form| form.lane(index));
            let _ = match inputs.as_ref().and_then(|rows| rows.get(lane)) {
                Some([a, b, c]) => {
                    writeln!(text, "  a {a:#x} b {b:#x} c {c:#x}: first {ours:#x} second {theirs:#x}")
                }
                None => {
                    writeln!(text, "  output {output} element {index}: first {ours:#x} second {theirs:#x}")
                }
            };
        }
    }
    text
}

/// `--write-ptx DIR`: every generated kernel as a file of its own, for another assembler's opinion.
fn write_ptx(dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
    for (number, form) in forms::all().iter().enumerate() {
        let text = format!("// {}\n{}", form.body, forms::module(std::slice::from_ref(form)));
        std::fs::write(dir.join(format!("{number:04}.ptx")), text.trim_end_matches('\0'))
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let entries = [
            Entry { name: "refused".into(), result: Err("why".into()) },
            Entry {
                name: "ran".into(),
                result: Ok(vec![record::Output {
                    elem: record::Elem::F32,
                    tolerance: record::Tolerance::ulps(2),
                    rows: record::Rows { cols: 3, stride: 5 },
                    bytes: vec![1, 2, 3, 4],
                }]),
            },
        ];
        let mut file = Vec::new();
        record::start(&mut file).unwrap();
        entries.iter().for_each(|entry| record::write(&mut file, entry).unwrap());
        let back = record::read(&file).unwrap();
        assert_eq!(back[0].result.as_ref().unwrap_err(), "why");
        let output = &back[1].result.as_ref().unwrap()[0];
        assert_eq!((output.elem, output.tolerance.ulps), (record::Elem::F32, 2));
        assert_eq!(output.rows, record::Rows { cols: 3, stride: 5 });
        assert_eq!(compare(&back[1], &entries[1]).verdict, Verdict::Same);
        // A worker that died leaves half an entry.
        assert_eq!(record::read(&file[..file.len() - 1]).unwrap().len(), 1);
        assert!(record::read(b"something else").is_err());
    }

    #[test]
    fn forms_have_names_of_their_own() {
        let forms = forms::all();
        let names: std::collections::HashSet<&str> = forms.iter().map(|form| form.body.as_str()).collect();
        assert_eq!(names.len(), forms.len());
        assert!(forms.len() > 1000, "{}", forms.len());
    }
}
