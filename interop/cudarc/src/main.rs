//! Programs that know only cudarc, run on whatever `libcuda.so` the loader finds.
//!
//! `interop-cudarc NAME` runs one; each checks its results and exits non-zero if they are wrong.
//! `two_readers_then_writer` is *meant* to be caught: see its comment.

use cudarc::driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

type Check = Result<(), Box<dyn Error>>;

/// `add(u32 n, f32 a, ptr x)`: x += a, and `scale(u32 n, ptr x, ptr y)`: y = 2 x.
const PTX: &str = include_str!("kernels.ptx");

const PROGRAMS: &[(&str, fn() -> Check)] = &[
    ("memory", memory),
    ("launch", launch),
    ("events", events),
    ("two_streams", two_streams),
    ("graph", graph),
    ("two_devices", two_devices),
    ("two_readers_then_writer", two_readers_then_writer),
    ("private_tables", private_tables),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, program)) = PROGRAMS.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = PROGRAMS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: interop-cudarc {}", names.join("|"));
        return ExitCode::from(2);
    };
    match program() {
        Ok(()) => {
            println!("{name}: ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(got: T, want: T) -> Check {
    if got == want { Ok(()) } else { Err(format!("got {got:?}, expected {want:?}").into()) }
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 1000) as f32).collect()
}

/// Allocation, copies both ways, device to device, memset.
fn memory() -> Check {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let host = numbers(10_000);
    let a = stream.clone_htod(&host)?;
    let mut b = stream.alloc_zeros::<f32>(host.len())?;
    expect(stream.clone_dtoh(&b)?, vec![0.0; host.len()])?;
    stream.memcpy_dtod(&a, &mut b)?;
    expect(stream.clone_dtoh(&b)?, host.clone())?;
    stream.memset_zeros(&mut b)?;
    stream.memcpy_htod(&host[..100], &mut b.slice_mut(50..150))?;
    let back = stream.clone_dtoh(&b)?;
    expect(&back[50..150], &host[..100])?;
    expect(back[150], 0.0)?;
    let (free, total) = context.mem_get_info()?;
    expect(free <= total && total > 0, true)
}

fn add_and_scale(
    stream: &Arc<CudaStream>,
    n: usize,
) -> Result<(cudarc::driver::CudaFunction, cudarc::driver::CudaFunction, LaunchConfig), Box<dyn Error>> {
    let module = stream.context().load_module(Ptx::from_src(PTX))?;
    let config = LaunchConfig::for_num_elems(n as u32);
    Ok((module.load_function("add")?, module.load_function("scale")?, config))
}

/// A PTX module, two kernels one after the other.
fn launch() -> Check {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let host = numbers(5_003);
    let n = host.len();
    let (add, scale, config) = add_and_scale(&stream, n)?;
    let mut x = stream.clone_htod(&host)?;
    let mut y = stream.alloc_zeros::<f32>(n)?;
    let (count, a) = (n as u32, 3.0f32);
    // SAFETY: the arguments are the kernels' own, in order.
    unsafe {
        stream.launch_builder(&add).arg(&count).arg(&a).arg(&mut x).launch(config)?;
        stream.launch_builder(&scale).arg(&count).arg(&x).arg(&mut y).launch(config)?;
    }
    let want: Vec<f32> = host.iter().map(|v| (v + 3.0) * 2.0).collect();
    expect(stream.clone_dtoh(&y)?, want)
}

/// Timing events around a launch.
fn events() -> Check {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let (add, _, config) = add_and_scale(&stream, 4096)?;
    let mut x = stream.alloc_zeros::<f32>(4096)?;
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = stream.record_event(flags)?;
    let (count, a) = (4096u32, 1.0f32);
    // SAFETY: the arguments are the kernel's own, in order.
    unsafe { stream.launch_builder(&add).arg(&count).arg(&a).arg(&mut x).launch(config)? };
    let end = stream.record_event(flags)?;
    end.synchronize()?;
    expect(start.elapsed_ms(&end)? >= 0.0, true)?;
    expect(stream.clone_dtoh(&x)?, vec![1.0; 4096])
}

/// Two streams that cudarc orders by its own events.
fn two_streams() -> Check {
    let context = CudaContext::new(0)?;
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let host = numbers(2_000);
    let n = host.len();
    let (add, scale, config) = add_and_scale(&a, n)?;
    let mut x = a.clone_htod(&host)?;
    let mut y = b.alloc_zeros::<f32>(n)?;
    let (count, one) = (n as u32, 1.0f32);
    // SAFETY: the arguments are the kernels' own, in order.
    unsafe {
        a.launch_builder(&add).arg(&count).arg(&one).arg(&mut x).launch(config)?;
        b.launch_builder(&scale).arg(&count).arg(&x).arg(&mut y).launch(config)?;
    }
    let want: Vec<f32> = host.iter().map(|v| (v + 1.0) * 2.0).collect();
    expect(b.clone_dtoh(&y)?, want)
}

/// Capture a launch, replay it three times.
fn graph() -> Check {
    let context = CudaContext::new(0)?;
    // Event tracking would wait inside the capture for events from outside.
    // SAFETY: everything below is on one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let (add, _, config) = add_and_scale(&stream, 1024)?;
    let mut x = stream.alloc_zeros::<f32>(1024)?;
    stream.synchronize()?;
    let (count, a) = (1024u32, 2.0f32);
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: the arguments are the kernel's own, in order.
    unsafe { stream.launch_builder(&add).arg(&count).arg(&a).arg(&mut x).launch(config)? };
    let graph = stream
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?
        .ok_or("the capture gave no graph")?;
    expect(stream.clone_dtoh(&x)?, vec![0.0; 1024])?;
    for _ in 0..3 {
        graph.launch()?;
    }
    expect(stream.clone_dtoh(&x)?, vec![6.0; 1024])
}

/// The same work on two devices.
fn two_devices() -> Check {
    expect(CudaContext::device_count()? >= 2, true)?;
    for ordinal in 0..2 {
        let context = CudaContext::new(ordinal)?;
        let stream = context.default_stream();
        let (add, _, config) = add_and_scale(&stream, 512)?;
        let mut x = stream.alloc_zeros::<f32>(512)?;
        let (count, a) = (512u32, ordinal as f32 + 1.0);
        // SAFETY: the arguments are the kernel's own, in order.
        unsafe { stream.launch_builder(&add).arg(&count).arg(&a).arg(&mut x).launch(config)? };
        expect(stream.clone_dtoh(&x)?, vec![ordinal as f32 + 1.0; 512])?;
    }
    Ok(())
}

/// Two streams read a slice, then a third writes it. A slice keeps one event for its last reader, so the
/// write waits for one of the readers only. On a GPU this goes wrong now and then; the simulator's race
/// checker reports it every time.
fn two_readers_then_writer() -> Check {
    let context = CudaContext::new(0)?;
    let (a, b, c) = (context.new_stream()?, context.new_stream()?, context.new_stream()?);
    let n = 4096;
    let (_, scale, config) = add_and_scale(&a, n)?;
    let mut x = c.clone_htod(&numbers(n))?;
    let mut ya = a.alloc_zeros::<f32>(n)?;
    let mut yb = b.alloc_zeros::<f32>(n)?;
    context.synchronize()?;
    let count = n as u32;
    // SAFETY: the arguments are the kernel's own, in order.
    unsafe {
        a.launch_builder(&scale).arg(&count).arg(&x).arg(&mut ya).launch(config)?;
        b.launch_builder(&scale).arg(&count).arg(&x).arg(&mut yb).launch(config)?;
    }
    c.memset_zeros(&mut x)?;
    context.synchronize()?;
    Ok(())
}

/// NVRTC asks the driver for private tables before it compiles anything, and crashes if the entry itself is missing. Here there are
/// none, and the entry says so.
fn private_tables() -> Check {
    use cudarc::driver::sys::{CUresult, CUuuid, cuGetExportTable};
    let (mut table, id) = (std::ptr::dangling(), CUuuid { bytes: [7; 16] });
    // SAFETY: both pointers are valid for the call.
    let code = unsafe { cuGetExportTable(&mut table, &id) };
    expect(code, CUresult::CUDA_ERROR_NOT_FOUND)?;
    expect(table.is_null(), true)?;
    // SAFETY: as above; null is refused.
    expect(unsafe { cuGetExportTable(std::ptr::null_mut(), &id) }, CUresult::CUDA_ERROR_INVALID_VALUE)
}
