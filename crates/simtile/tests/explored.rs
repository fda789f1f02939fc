//! One seed gives one trace, byte for byte: in one process and in another, on one core and on all.
#![cfg(feature = "sim")]

use simtile::driver::call;
use simtile::driver::sys::*;
use simtile::sim::explore::{Strategy, explore};
use simtile::sim::{Checks, Mode, Simulator};
use simtile::{Context, Device, DeviceBuffer, Function, LaunchArgs, LaunchConfig, Stream, testing};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const VADD: &[u8] = include_bytes!("../../../artifacts/tile_rs/rs_vadd_f32.tileirbc");
const N: usize = 1500;
const SEEDS: u64 = 100;
/// Where a child writes its traces.
const CHILD: &str = "SIMTILE_TRACES";

fn shape(blocks: usize, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// `y += 2 x`, by a SIMT kernel.
fn saxpy(
    stream: &Arc<Stream>,
    kernel: &Function,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result {
    let args = LaunchArgs::new().arg(N as u32).arg(2f32).buffer(x).buffer_mut(y);
    // SAFETY: the kernel reads and writes the N floats of its buffers, of which it is told.
    Ok(unsafe { stream.launch(kernel, shape(N.div_ceil(128), 128), &args) }?)
}

/// `c = a + b`, by a Tile kernel.
fn vadd(stream: &Arc<Stream>, kernel: &Function, a: &DeviceBuffer<f32>, c: &mut DeviceBuffer<f32>) -> Result {
    let (n, one) = (N as i32, 1i32);
    let args = LaunchArgs::new().buffer(a).arg(n).arg(one).buffer(a).arg(n).arg(one);
    let args = args.buffer_mut(c).arg(n).arg(one);
    // SAFETY: as above.
    Ok(unsafe { stream.launch(kernel, shape(N.div_ceil(1024), 1), &args) }?)
}

/// A graph of two memsets, one of them twice as a child of an event's fork, launched twice.
fn graph(context: &Arc<Context>, stream: &Stream, buffer: &DeviceBuffer<u8>) -> Result {
    let (driver, address) = (context.driver(), buffer.cu_deviceptr());
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let (mut first, mut second, mut event) = (CUstream::NULL, CUstream::NULL, CUevent::NULL);
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    // SAFETY: every out-pointer is valid for its call; the buffer lives until the stream is drained.
    unsafe {
        call!(driver, cuCtxSetCurrent(context.cu_ctx()))?;
        call!(driver, cuStreamCreate(&mut first, 1))?;
        call!(driver, cuStreamCreate(&mut second, 1))?;
        call!(driver, cuEventCreate(&mut event, 0))?;
        call!(driver, cuStreamBeginCapture(first, mode))?;
        call!(driver, cuMemsetD8Async(address, 1, 64, first))?;
        call!(driver, cuEventRecord(event, first))?;
        call!(driver, cuStreamWaitEvent(second, event, 0))?;
        call!(driver, cuMemsetD8Async(address + 64, 2, 64, second))?;
        call!(driver, cuMemsetD8Async(address + 128, 3, 64, first))?;
        call!(driver, cuEventRecord(event, second))?;
        call!(driver, cuStreamWaitEvent(first, event, 0))?;
        call!(driver, cuStreamEndCapture(first, &mut graph))?;
        call!(driver, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        call!(driver, cuGraphLaunch(exec, stream.cu_stream()))?;
        call!(driver, cuGraphLaunch(exec, stream.cu_stream()))?;
    }
    stream.synchronize()?;
    let bytes = buffer.to_vec(&context.new_stream()?)?;
    assert!(bytes.iter().enumerate().all(|(i, &byte)| usize::from(byte) == i / 64 + 1), "{bytes:?}");
    Ok(())
}

/// Threads, streams, both kernel models, a graph, and drops that others clean up after.
fn program(seed: u64) -> Result {
    let simulator = Simulator::builder().mode(Mode::Explore).seed(seed).checks(Checks::ALL).quiet().build();
    let context = Device::new(simulator.driver(), 0)?.create_context()?;
    let simt = context.load_module_from_ptx_src(SAXPY)?.load_function("saxpy")?;
    let tile = context.load_module(VADD)?.load_function("rs_vadd_f32")?;
    let stream = context.new_stream()?;
    let x = Arc::new(DeviceBuffer::from_slice(&stream, &[1f32; N])?);
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let (context, simt, tile, x) = (context.clone(), simt.clone(), tile.clone(), x.clone());
            let run = move || -> Result {
                let (a, b) = (context.new_stream()?, context.new_stream()?);
                let mut y = DeviceBuffer::from_slice(&a, &[i as f32; N])?;
                saxpy(&a, &simt, &x, &mut y)?;
                let mut z = DeviceBuffer::<f32>::zeroed(&b, N)?;
                vadd(&b, &tile, &y, &mut z)?;
                drop(y);
                assert_eq!(z.to_vec(&b)?, [2.0 * (2.0 + i as f32); N]);
                Ok(())
            };
            testing::spawn(&format!("t{i}"), run)
        })
        .collect::<std::result::Result<_, _>>()?;
    graph(&context, &stream, &DeviceBuffer::zeroed(&stream, 192)?)?;
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    drop((x, simt, tile, stream, context));
    assert!(simtile::drain_background(Duration::from_secs(60)));
    let reports = simulator.take_reports();
    assert!(reports.is_empty(), "seed {seed}: {reports:?}");
    Ok(())
}

/// All traces, one after the other.
fn traces(seeds: u64) -> String {
    let mut all = String::new();
    for seed in 0..seeds {
        let outcome = explore(seed, Strategy::of_seed(seed), || program(seed));
        assert_eq!(outcome.deadlock, None, "seed {seed}");
        match outcome.result {
            Ok(result) => result.unwrap(),
            Err(_) => panic!("seed {seed} panics"),
        }
        all += outcome.trace.text();
    }
    all
}

fn child(name: &str, pinned: bool) -> Option<Vec<u8>> {
    let file: PathBuf = std::env::temp_dir().join(format!("simtile-traces-{}-{name}", std::process::id()));
    let me = std::env::current_exe().unwrap();
    let mut command = if pinned { Command::new("taskset") } else { Command::new(&me) };
    if pinned {
        command.args(["-c", "0"]).arg(&me);
    }
    command.args(["--exact", "a_hundred_seeds_give_the_same_traces_in_every_process"]).env(CHILD, &file);
    let output = match command.output() {
        Ok(output) => output,
        // No `taskset` on this machine.
        Err(_) if pinned => return None,
        Err(error) => panic!("{error}"),
    };
    let error = String::from_utf8_lossy(&output.stderr);
    if pinned && error.contains("failed to set") {
        // Core 0 is not this process's.
        return None;
    }
    assert!(output.status.success(), "{error}");
    let text = std::fs::read(&file).unwrap();
    let _ = std::fs::remove_file(&file);
    Some(text)
}

#[test]
fn a_hundred_seeds_give_the_same_traces_in_every_process() {
    if let Some(file) = std::env::var_os(CHILD) {
        std::fs::write(Path::new(&file), traces(SEEDS)).unwrap();
        return;
    }
    let first = child("first", false).unwrap();
    assert!(first.len() > 1_000_000, "{} bytes of traces", first.len());
    let same = |other: &[u8]| {
        let line = first.split(|&b| b == b'\n').zip(other.split(|&b| b == b'\n')).find(|(a, b)| a != b);
        let line = line.map(|(a, b)| (String::from_utf8_lossy(a), String::from_utf8_lossy(b)));
        assert!(first == other, "traces differ: {line:?}");
    };
    match child("pinned", true) {
        Some(pinned) => same(&pinned),
        None => same(&child("second", false).unwrap()),
    }
}

/// Several explorations at once in one process do not see each other.
#[test]
fn explorations_beside_each_other_give_the_same_traces() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let alone = traces(4);
    let beside: Vec<_> = (0..3).map(|_| std::thread::spawn(|| traces(4))).collect();
    for other in beside {
        assert!(alone == other.join().unwrap());
    }
}
