//! Rows of simtile's numbers: a contender beside the raw driver, pair by pair, in one process.
//!
//! `bench CONTENDER [ROW…] [--pairs N] [--batch N] [--json]`; contenders and rows: `bench list`. `bench readings`: what has no
//! counterpart; `bench graphs`: what graphs cost to make and to keep. See README.md.

mod cudarc_safe;
mod ours;
mod ours_ops;
mod pairs;
#[cfg(feature = "peer")]
mod peer;
mod raw;
mod readings;

use pairs::{Plan, Result, Row, measure};
use raw::{CopyComputeCopy, ForkJoin, Raw};
use std::process::ExitCode;
use std::time::Duration;

/// Each contender with the rows it has.
const CONTENDERS: &[(&str, &[&str])] = &[
    ("raw", &["submit", "launch_and_wait", "alloc_drop", "threads_8", "copy_compute_copy", "fork_join"]),
    (
        "simtile",
        &[
            "submit",
            "submit_shared",
            "launch_and_wait",
            "alloc_drop",
            "threads_8",
            "copy_compute_copy",
            "fork_join",
            "op_enqueue",
            "op_sync",
            "op_await",
            "op_await_spin0",
            "graph_replay_1",
            "graph_replay_100",
            "memo_chain_100",
            "memo_chain_100_new",
        ],
    ),
    ("cudarc", &["submit", "launch_and_wait", "alloc_drop", "threads_8"]),
    #[cfg(feature = "peer")]
    ("peer", &["submit_safe", "submit_unsafe", "launch_and_wait", "alloc_drop"]),
];

struct Options {
    contender: String,
    rows: Vec<String>,
    pairs: usize,
    batch: usize,
    json: bool,
}

fn options() -> Result<Options> {
    let mut options =
        Options { contender: String::new(), rows: Vec::new(), pairs: 2_000, batch: 64, json: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = |name: &str| -> Result<usize> {
            let value = args.next().ok_or_else(|| format!("{name} needs a number"))?;
            value
                .parse()
                .ok()
                .filter(|&n| n > 0)
                .ok_or_else(|| format!("{name}: '{value}' is not a positive number"))
        };
        match arg.as_str() {
            "--pairs" => options.pairs = number("--pairs")?,
            "--batch" => options.batch = number("--batch")?,
            "--json" => options.json = true,
            _ if arg.starts_with('-') => return Err(format!("unknown option '{arg}'")),
            _ if options.contender.is_empty() => options.contender = arg,
            _ => options.rows.push(arg),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every row gave a result.
fn run() -> Result<bool> {
    let options = options()?;
    let list = || {
        CONTENDERS
            .iter()
            .map(|(name, rows)| format!("  {name}: {}", rows.join(" ")))
            .collect::<Vec<_>>()
            .join("\n")
    };
    if options.contender == "list" {
        println!("{}", list());
        return Ok(true);
    }
    if options.contender == "readings" {
        return readings::run(&options.rows);
    }
    if options.contender == "graphs" {
        return graphs(&Raw::new()?);
    }
    let Some((contender, rows)) = CONTENDERS.iter().find(|(name, _)| *name == options.contender) else {
        return Err(format!("usage: bench CONTENDER [ROW…] [--pairs N] [--batch N] [--json]\n{}", list()));
    };
    if let Some(unknown) = options.rows.iter().find(|row| !rows.contains(&row.as_str())) {
        return Err(format!("{contender} has no row '{unknown}'; it has {}", rows.join(" ")));
    }
    let raw = Raw::new()?;
    if !options.json {
        println!("# {contender} beside raw on {}", raw.machine()?);
    }
    let mut good = true;
    for row in
        rows.iter().filter(|row| options.rows.is_empty() || options.rows.iter().any(|wanted| wanted == *row))
    {
        match one(&raw, contender, row, &options) {
            Ok(result) if options.json => println!("{}", result.json()),
            Ok(result) => println!("{}", result.line()),
            Err(error) => {
                good = false;
                println!("{contender}.{row}: error {error}");
            }
        }
    }
    Ok(good)
}

/// What graphs cost to make and to keep, beside raw, and what a family of them needs.
fn graphs(raw: &Raw) -> Result<bool> {
    println!("# graphs on {}", raw.machine()?);
    for nodes in [1, 10, 100] {
        let stream = raw.stream()?;
        println!("{}", raw::graph_costs(stream, nodes, 64)?.line("raw", nodes));
        println!("{}", ours_ops::graph_costs(nodes, 64)?.line("simtile", nodes));
    }
    println!("{}", ours_ops::family_memory()?);
    Ok(true)
}

/// Measures one row.
fn one(raw: &Raw, contender: &str, row: &str, options: &Options) -> Result<Row> {
    let name = format!("{contender}.{row}");
    let plan = Plan { pairs: options.pairs, batch: options.batch, warm: 50, limit: Duration::from_secs(60) };
    // A batch of these is a whole pipeline of milliseconds, its end included.
    let pipeline = Plan { pairs: options.pairs.min(300), batch: 16, warm: 5, limit: Duration::from_secs(30) };
    let stream = || raw.stream();
    let threads =
        || -> Result<_> { Ok(raw::Threads((0..raw::THREADS).map(|_| raw.stream()).collect::<Result<_>>()?)) };
    const COPY: usize = 1 << 20;
    const KERNEL_NS: u64 = 50_000;
    match (contender, row) {
        ("raw", "submit") => measure(&name, plan, &mut raw::Submit(stream()?), &mut raw::Submit(stream()?)),
        ("raw", "launch_and_wait") => {
            measure(&name, plan, &mut raw::LaunchAndWait(stream()?), &mut raw::LaunchAndWait(stream()?))
        }
        ("raw", "alloc_drop") => {
            measure(&name, plan, &mut raw::AllocDrop(stream()?), &mut raw::AllocDrop(stream()?))
        }
        ("raw", "threads_8") => measure(&name, plan, &mut threads()?, &mut threads()?),
        ("raw", "copy_compute_copy") => {
            let mut side = CopyComputeCopy::new(raw, COPY, KERNEL_NS)?;
            measure(&name, pipeline, &mut side, &mut CopyComputeCopy::new(raw, COPY, KERNEL_NS)?)
        }
        ("raw", "fork_join") => {
            measure(&name, pipeline, &mut ForkJoin::new(raw, KERNEL_NS)?, &mut ForkJoin::new(raw, KERNEL_NS)?)
        }
        ("simtile", "submit") => {
            measure(&name, plan, &mut raw::Submit(stream()?), &mut ours::Submit::new(false)?)
        }
        ("simtile", "submit_shared") => {
            measure(&name, plan, &mut raw::Submit(stream()?), &mut ours::Submit::new(true)?)
        }
        ("simtile", "launch_and_wait") => {
            measure(&name, plan, &mut raw::LaunchAndWait(stream()?), &mut ours::LaunchAndWait::new()?)
        }
        ("simtile", "alloc_drop") => {
            measure(&name, plan, &mut raw::AllocDrop(stream()?), &mut ours::AllocDrop::new()?)
        }
        ("simtile", "threads_8") => measure(&name, plan, &mut threads()?, &mut ours::Threads::new()?),
        ("simtile", "copy_compute_copy") => {
            let mut side = CopyComputeCopy::new(raw, COPY, KERNEL_NS)?;
            measure(&name, pipeline, &mut side, &mut ours::CopyComputeCopy::new(COPY, KERNEL_NS)?)
        }
        ("simtile", "fork_join") => measure(
            &name,
            pipeline,
            &mut ForkJoin::new(raw, KERNEL_NS)?,
            &mut ours::ForkJoin::new(KERNEL_NS)?,
        ),
        ("simtile", "op_enqueue") => {
            measure(&name, plan, &mut raw::Submit(stream()?), &mut ours_ops::OpEnqueue::new()?)
        }
        ("simtile", "op_sync") => {
            measure(&name, plan, &mut raw::LaunchAndWait(stream()?), &mut ours_ops::OpSync::new()?)
        }
        ("simtile", "op_await" | "op_await_spin0") => {
            let spin = (row == "op_await_spin0").then_some(Duration::ZERO);
            measure(&name, plan, &mut raw::LaunchAndWait(stream()?), &mut ours_ops::OpAwait::new(spin)?)
        }
        ("simtile", "graph_replay_1" | "graph_replay_100") => {
            let nodes = if row == "graph_replay_1" { 1 } else { 100 };
            measure(&name, plan, &mut raw::Replay::new(stream()?, nodes)?, &mut ours_ops::Replay::new(nodes)?)
        }
        ("simtile", "memo_chain_100" | "memo_chain_100_new") => {
            let new = row == "memo_chain_100_new";
            measure(&name, pipeline, &mut raw::Chain::new(stream()?, new)?, &mut ours_ops::Chain::new(new)?)
        }
        ("cudarc", "submit") => measure(
            &name,
            plan,
            &mut raw::Submit(stream()?),
            &mut cudarc_safe::Submit(cudarc_safe::Cudarc::new()?),
        ),
        ("cudarc", "launch_and_wait") => {
            let mut ours = cudarc_safe::LaunchAndWait(cudarc_safe::Cudarc::new()?);
            measure(&name, plan, &mut raw::LaunchAndWait(stream()?), &mut ours)
        }
        ("cudarc", "alloc_drop") => measure(
            &name,
            plan,
            &mut raw::AllocDrop(stream()?),
            &mut cudarc_safe::AllocDrop(cudarc_safe::Cudarc::new()?),
        ),
        ("cudarc", "threads_8") => measure(&name, plan, &mut threads()?, &mut cudarc_safe::Threads::new()?),
        #[cfg(feature = "peer")]
        ("peer", "submit_safe") => {
            measure(&name, plan, &mut raw::Submit(stream()?), &mut peer::SubmitSafe(peer::Peer::new()?))
        }
        #[cfg(feature = "peer")]
        ("peer", "submit_unsafe") => {
            measure(&name, plan, &mut raw::Submit(stream()?), &mut peer::SubmitUnsafe(peer::Peer::new()?))
        }
        #[cfg(feature = "peer")]
        ("peer", "launch_and_wait") => measure(
            &name,
            plan,
            &mut raw::LaunchAndWait(stream()?),
            &mut peer::LaunchAndWait(peer::Peer::new()?),
        ),
        #[cfg(feature = "peer")]
        ("peer", "alloc_drop") => {
            measure(&name, plan, &mut raw::AllocDrop(stream()?), &mut peer::AllocDrop(peer::Peer::new()?))
        }
        _ => Err("no such row".into()),
    }
}
