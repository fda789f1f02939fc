//! A Tile kernel and a SIMT kernel on one allocation.
//!
//! A row softmax, written as a Tile kernel (CUDA Tile IR), fills a buffer. A SIMT kernel (PTX, from CUDA C++) then scales
//! the values over a threshold in place: no copy, no raw pointer handed around, no host wait in between. The host then
//! checks every value.
//!
//! Without a GPU both kernels run on simtile's simulated driver.
#![deny(unsafe_code)]

mod args;

use simtile::{DeviceBuffer, Function, Runtime, Stream, TimedEvent};
use simtile_examples::{SCALE_OVER, Shape, reference, scale_over_call, softmax, softmax_call};
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const FACTOR: f32 = 10.0;
/// How it is run.
const COMMAND: &str = "cargo run --release -p simtile-examples --bin inter_kernel";

fn main() -> ExitCode {
    let shape = match args::parse(std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned())) {
        Ok(Some(shape)) => shape,
        Ok(None) => {
            return match write!(std::io::stdout(), "{}", args::HELP) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "inter_kernel: {why}\n\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    match run(shape, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "inter_kernel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(shape: Shape, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::auto()?;
    let device = runtime.device(0)?;
    let (major, minor) = device.compute_capability()?;
    let kind = if device.is_simulated() { "simulated" } else { "GPU" };
    writeln!(out, "device     {} ({kind}, compute capability {major}.{minor})", device.name()?)?;
    writeln!(out, "matrix     {} x {}, rows {} floats apart", shape.rows, shape.cols, shape.stride)?;

    let clock = Instant::now();
    let context = device.primary_context()?;
    let stream = context.new_stream()?;
    stream.set_label("main");
    let tile = softmax::load(&context)?;
    writeln!(out, "softmax    Tile kernel, {}", tile.origin)?;
    let softmax = tile.module.load_function("rs_softmax_f32")?;
    let scale_over = context.load_module_from_ptx_src(SCALE_OVER)?.load_function("scale_over")?;
    writeln!(out, "scale_over SIMT kernel, PTX")?;
    step(out, "load", clock)?;

    let clock = Instant::now();
    // First of all, so that a matrix that is too large for the device is refused before the host makes one.
    let mut y = DeviceBuffer::<f32>::zeroed(&stream, shape.floats())?.with_label("y");
    let input = reference::input(shape)?;
    let x = DeviceBuffer::from_slice(&stream, &input)?.with_label("x");
    stream.synchronize()?;
    step(out, "upload", clock)?;
    let identity = (y.allocation_id(), y.cu_deviceptr());

    // A first look at the softmax, so that both kernels can be checked value by value.
    let start = stream.record_timed_event()?;
    launch_softmax(&stream, &softmax, shape, &x, &mut y)?;
    let end = stream.record_timed_event()?;
    let between = y.to_vec(&stream)?;
    device_step(out, "softmax", &start, &end)?;

    // Below the mean of a row, so that every row has values on both sides of it (but for single columns).
    let threshold = 0.75 / shape.cols as f32;
    let start = stream.record_timed_event()?;
    launch_scale_over(&stream, &scale_over, shape, &mut y, threshold)?;
    let end = stream.record_timed_event()?;
    let after = y.to_vec(&stream)?;
    device_step(out, "scale_over", &start, &end)?;

    // The same again without the host in between: nothing but stream order connects the two.
    let clock = Instant::now();
    y.zero(&stream)?;
    launch_softmax(&stream, &softmax, shape, &x, &mut y)?;
    launch_scale_over(&stream, &scale_over, shape, &mut y, threshold)?;
    let chained = y.to_vec(&stream)?;
    step(out, "chained", clock)?;

    let clock = Instant::now();
    if identity != (y.allocation_id(), y.cu_deviceptr()) {
        return Err("the result lies in another allocation than the softmax".into());
    }
    let worst = reference::check_softmax(shape, &input, &between)?;
    let scaled = reference::check_scaled(shape, &between, &after, threshold, FACTOR)?;
    if chained.iter().map(|v| v.to_bits()).ne(after.iter().map(|v| v.to_bits())) {
        return Err("the chained run differs from the one that the host looked into".into());
    }
    step(out, "check", clock)?;

    let count = shape.rows as usize * shape.cols as usize;
    writeln!(out, "\nboth kernels used allocation {} at {:#x}", identity.0.get(), identity.1)?;
    writeln!(
        out,
        "all {count} values are right: softmax within {worst:.1e}, {scaled} of them scaled, bit for bit"
    )?;
    writeln!(out, "\nTry next:")?;
    writeln!(out, "  another size (all settings: -- --help)\n    {COMMAND} -- --rows 4096 --cols 1000")?;
    if device.is_simulated() {
        writeln!(
            out,
            "  another legal order of the same work\n    SIMTILE_SIM=mode=explore,seed=7 {COMMAND}"
        )?;
        writeln!(out, "  insist on a GPU\n    SIMTILE_DRIVER=cuda {COMMAND}")?;
    } else {
        writeln!(out, "  the same on the simulated driver\n    SIMTILE_DRIVER=sim {COMMAND}")?;
    }
    Ok(())
}

/// Softmax of each row of `x` into `y`.
fn launch_softmax(
    stream: &Arc<Stream>,
    function: &Function,
    shape: Shape,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result<(), simtile::LaunchError> {
    let (config, args) = softmax_call(shape, x, y);
    // SAFETY: both buffers have `rows * stride` elements, all initialised; cols is at most 1024 and the stride a multiple
    // of 16, which the kernel assumes (`args::parse`); allocations start at 256-byte boundaries.
    #[allow(unsafe_code, reason = "a raw launch: the kernel's accesses are our word")]
    unsafe {
        stream.launch(function, config, args)
    }
}

/// Scales the values of `data` above `threshold`, in place.
fn launch_scale_over(
    stream: &Arc<Stream>,
    function: &Function,
    shape: Shape,
    data: &mut DeviceBuffer<f32>,
    threshold: f32,
) -> Result<(), simtile::LaunchError> {
    let (config, args) = scale_over_call(shape, data, threshold, FACTOR);
    // SAFETY: the buffer has `rows * stride` elements, all initialised, and the kernel stays inside of rows and columns.
    #[allow(unsafe_code, reason = "a raw launch: the kernel's accesses are our word")]
    unsafe {
        stream.launch(function, config, args)
    }
}

fn step(out: &mut impl Write, name: &str, since: Instant) -> std::io::Result<()> {
    writeln!(out, "{name:<10} {:>9.3} ms", since.elapsed().as_secs_f64() * 1e3)
}

fn device_step(
    out: &mut impl Write,
    name: &str,
    start: &TimedEvent,
    end: &TimedEvent,
) -> Result<(), Box<dyn Error>> {
    writeln!(out, "{name:<10} {:>9.3} ms on the device", start.elapsed(end)?.as_secs_f64() * 1e3)?;
    Ok(())
}
