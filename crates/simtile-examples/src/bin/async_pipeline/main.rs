//! Batches in flight on tokio: a Tile kernel and a SIMT kernel on each, some of them cancelled half way.
//!
//! Every batch is a task: its values go up, a row softmax (Tile) fills a buffer, a SIMT kernel scales the larger values in place, the
//! result comes down. Each runs on one of four streams. Every fourth is given up as soon as its work is queued: its buffers stay until the
//! device is done with them, and nothing is left over. Then the same two kernels are recorded once into a graph and replayed
//! with new inputs, and a sum that another library makes, by machine code of its own, is ordered like everything else. The host checks every
//! value.
//!
//! Without a GPU all of it runs on simtile's simulated driver.
#![deny(unsafe_code)]

mod library;

use library::Library;
use simtile::ops::{self, CudaGraph, OwnedAsyncKernelLaunch, download, external, upload, write, zeros};
use simtile::{DeviceBuffer, DeviceOp, Function, LaunchArgs, LaunchConfig, Runtime, zip};
use simtile_examples::{SCALE_OVER, Shape, reference, scale_over_call, softmax, softmax_call};
use std::error::Error;
use std::future::poll_fn;
use std::io::Write;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

const BATCHES: usize = 24;
const AT_ONCE: usize = 6;
/// One batch in so many is given up.
const GIVEN_UP: usize = 4;
const FACTOR: f32 = 10.0;

/// Input and output of a batch.
type Pair = (DeviceBuffer<f32>, DeviceBuffer<f32>);

/// The two kernels, and what they run on.
#[derive(Clone)]
struct Kernels {
    softmax: Function,
    scale_over: Function,
    shape: Shape,
    threshold: f32,
}

fn main() -> ExitCode {
    match run(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "async_pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().auto().streams(4).build()?;
    let device = runtime.device(0)?;
    let kind = if device.is_simulated() { "simulated" } else { "GPU" };
    writeln!(out, "device      {} ({kind})", device.name()?)?;
    let context = device.primary_context()?;
    // A simulated device is no GPU.
    let rows = if device.is_simulated() { 64 } else { 4096 };
    let shape = Shape::new(rows, 1000)?;
    let kernels = Kernels {
        softmax: softmax::load(&context)?.module.load_function("rs_softmax_f32")?,
        scale_over: context.load_module_from_ptx_src(SCALE_OVER)?.load_function("scale_over")?,
        shape,
        threshold: 0.75 / shape.cols as f32,
    };
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;

    let clock = Instant::now();
    let (finished, cancelled) = tokio.block_on(batches(&kernels, &runtime))?;
    writeln!(out, "batches     {finished} right, {cancelled} given up half way, {}", millis(clock))?;
    if (finished, cancelled) != (BATCHES - BATCHES / GIVEN_UP, BATCHES / GIVEN_UP) {
        return Err(format!(
            "of {BATCHES} batches every {GIVEN_UP}th should be given up, and the rest finish"
        )
        .into());
    }

    let clock = Instant::now();
    let replays = tokio.block_on(graph(&kernels, &runtime))?;
    writeln!(out, "graph       {replays} replays right, {}", millis(clock))?;

    let clock = Instant::now();
    match Library::open(&runtime, &context)? {
        Some(opened) => {
            tokio.block_on(library(opened, &kernels, &runtime))?;
            writeln!(out, "library     its sum was ordered like the kernels, {}", millis(clock))?;
        }
        None => writeln!(out, "library     has no code for this device")?,
    }

    drop(kernels);
    let drained = context.drain(Duration::from_secs(30));
    let live = context.stats().live_allocations;
    if !drained.is_complete() || live > 0 {
        return Err(format!("{live} allocations are left over: {drained:?}").into());
    }
    writeln!(
        out,
        "left over   nothing: every buffer, also of the batches given up, was freed after its last use"
    )?;
    Ok(())
}

fn millis(since: Instant) -> String {
    format!("{:.1} ms", since.elapsed().as_secs_f64() * 1e3)
}

/// Values of a batch.
fn input(shape: Shape, batch: usize) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
    let mut values = reference::input(shape)?;
    for row in values.chunks_exact_mut(shape.stride as usize) {
        row[..shape.cols as usize].rotate_left(batch % shape.cols as usize);
    }
    Ok(values)
}

/// Compares a result with the CPU's.
fn check(kernels: &Kernels, input: &[f32], output: &[f32]) -> Result<(), String> {
    let (shape, threshold) = (kernels.shape, kernels.threshold);
    let unscaled: Vec<f32> =
        output.iter().map(|&v| if v > threshold * FACTOR { v / FACTOR } else { v }).collect();
    // Dividing what was multiplied may differ in the last bit, which the tolerance covers.
    reference::check_softmax(shape, input, &unscaled).map(drop)
}

impl Kernels {
    /// Softmax of the first buffer into the second, which is then scaled in place.
    fn both(&self, pair: Pair) -> impl DeviceOp<Output = Pair> + use<> {
        let (first, second) = (self.clone(), self.clone());
        ops::empty(move || Step::softmax(&first, pair)).then(move |pair| Step::scale_over(&second, pair))
    }
}

/// Launches of the two kernels, each owning the batch's buffers.
struct Step;

impl Step {
    fn softmax(kernels: &Kernels, pair: Pair) -> OwnedAsyncKernelLaunch<Pair, impl Args + use<>> {
        let shape = kernels.shape;
        let config = LaunchConfig::tiles(shape.rows, 1, 1);
        fn args(shape: Shape) -> impl Args {
            move |pair: &mut Pair| softmax_call(shape, &pair.0, &mut pair.1).1
        }
        launch(&kernels.softmax, config, pair, args(shape))
    }

    fn scale_over(kernels: &Kernels, mut pair: Pair) -> OwnedAsyncKernelLaunch<Pair, impl Args + use<>> {
        let (shape, threshold) = (kernels.shape, kernels.threshold);
        let config = scale_over_call(shape, &mut pair.1, threshold, FACTOR).0;
        fn args(shape: Shape, threshold: f32) -> impl Args {
            move |pair: &mut Pair| scale_over_call(shape, &mut pair.1, threshold, FACTOR).1
        }
        launch(&kernels.scale_over, config, pair, args(shape, threshold))
    }
}

/// What makes a kernel's arguments of the batch's buffers.
trait Args: for<'r> Fn(&'r mut Pair) -> LaunchArgs<'r> + Send {}
impl<F: for<'r> Fn(&'r mut Pair) -> LaunchArgs<'r> + Send> Args for F {}

fn launch<F: Args>(
    function: &Function,
    config: LaunchConfig,
    pair: Pair,
    args: F,
) -> OwnedAsyncKernelLaunch<Pair, F> {
    let builder = ops::AsyncKernelLaunchBuilder::new(function);
    // SAFETY: both buffers have `shape.floats()` elements, all initialised. The softmax reads the first and writes the second; the other
    // kernel updates the second. Shapes are checked by `Shape::new`.
    #[allow(unsafe_code, reason = "a raw launch: the kernel's accesses are our word")]
    unsafe {
        builder.finalize_owned_with(config, pair, args)
    }
}

/// All batches; how many were right, and how many were given up.
async fn batches(kernels: &Kernels, runtime: &Runtime) -> Result<(usize, usize), Box<dyn Error>> {
    let room = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut tasks = tokio::task::JoinSet::new();
    let mut cancelled = 0;
    for batch in 0..BATCHES {
        let permit = room.clone().acquire_owned().await?;
        let (kernels, runtime) = (kernels.clone(), runtime.clone());
        let gives_up = batch % GIVEN_UP == GIVEN_UP - 1;
        let (queued, is_queued) = tokio::sync::oneshot::channel();
        let task = tasks.spawn(async move {
            let _permit = permit;
            let values = input(kernels.shape, batch)?;
            let len = values.len();
            let chain = kernels.clone();
            let op = zip!(upload(values.clone()), zeros(len))
                .then(move |pair| chain.both(pair))
                .then(|(_, y)| download(y));
            let mut future = op.schedule(&runtime)?;
            if gives_up {
                // Until the work is queued, and no further: it is aborted here.
                poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
                    Poll::Pending if !future.is_submitted() => Poll::Pending,
                    _ => Poll::Ready(()),
                })
                .await;
                let _ = queued.send(());
                std::future::pending::<()>().await;
            }
            let output = future.await?;
            check(&kernels, &values, &output)?;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
        if gives_up {
            // What it has queued goes on without it. An error ends the task without a word here.
            let _ = is_queued.await;
            task.abort();
        }
    }
    let mut finished = 0;
    while let Some(outcome) = tasks.join_next().await {
        match outcome {
            Ok(outcome) => {
                outcome.map_err(|error| error.to_string())?;
                finished += 1;
            }
            Err(error) if error.is_cancelled() => cancelled += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok((finished, cancelled))
}

/// Records the kernels once and replays them with new inputs.
async fn graph(kernels: &Kernels, runtime: &Runtime) -> Result<usize, Box<dyn Error>> {
    let stream = runtime.context(runtime.default_ordinal())?.new_stream()?;
    let len = kernels.shape.floats();
    // The input is filled by every replay's owner, so it is made outside of what is recorded.
    let recorded = CudaGraph::scope(&stream, |scope| {
        let x = scope.outside(zeros::<f32>(len))?;
        let y = scope.record(zeros::<f32>(len))?;
        scope.record(kernels.both((x, y)))
    })?;
    let Some((mut x, y)) = recorded.take_output() else { return Err("no output".into()) };
    let y = Arc::new(y);
    for replay in 0..5 {
        let values = input(kernels.shape, 100 + replay).map_err(|error| error.to_string())?;
        recorded.update(write(&mut x, &values).map(drop))?;
        recorded.launch().schedule(runtime)?.await?;
        let output = download(y.clone()).schedule(runtime)?.await?;
        check(kernels, &values, &output)?;
    }
    Ok(5)
}

/// A sum that a library makes, whose kernels are machine code, by its own calls on a raw stream.
async fn library(library: Arc<Library>, kernels: &Kernels, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    let len = kernels.shape.floats();
    let values = input(kernels.shape, 7).map_err(|error| error.to_string())?;
    let (x, y) = zip!(upload(values.clone()), zeros(len)).schedule(runtime)?.await?;
    let (from, to, len) = (x.cu_deviceptr(), y.cu_deviceptr(), u32::try_from(len)?);
    let (handle, calls) = (library.clone(), library.clone());
    // SAFETY: the call reads the first buffer, writes the second, of `len` floats each, and uses its workspace, in the given stream.
    #[allow(unsafe_code, reason = "what foreign code accesses is our word")]
    let sum = unsafe {
        external(
            "a sum of a library",
            (x, y),
            |pair: &mut Pair, touches| touches.read(&pair.0).write(&mut pair.1),
            move |at| library.doubled(at.stream, from, to, len, at.workspace),
        )
    };
    // Queued on one stream with a workspace from the pool, read on the next; the handle lives as long as the work.
    let sum = sum.workspace(4 * len as usize).holding(handle);
    let (_, y) = sum.schedule(runtime)?.await?;
    let output = download(y).schedule(runtime)?.await?;
    if calls.calls() != 1 {
        return Err(format!("the library was called {} times instead of once", calls.calls()).into());
    }
    if values.iter().all(|value| *value == 0.0) {
        return Err("the library's input is all zeros, whose sum shows nothing".into());
    }
    if !output.iter().zip(&values).all(|(sum, value)| *sum == value + value) {
        return Err("the library's sum has other values".into());
    }
    Ok(())
}
