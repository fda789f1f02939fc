//! simtile and cudarc in one process, on one driver: each uses the other's context, streams and memory.
//!
//! `interop-together NAME` runs one program; each checks its results and exits non-zero if they are wrong. Both sides have to
//! call the same library: on a simulator `SIMTILE_DRIVER` names the `libcuda.so.1` that the loader finds for cudarc. `cublas` and `nccl` need
//! a GPU and NVIDIA's libraries; `nccl` uses two devices if there are two.

mod libraries;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use simtile::driver::sys::{CUcontext, CUdeviceptr, CUstream};
use simtile::{Context, DeviceAllocation, DeviceBuffer, Function, LaunchArgs, LaunchConfig, Runtime, Stream};
use std::error::Error;
use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Check = Result<(), Box<dyn Error>>;

/// `add(u32 n, f32 a, ptr x)`: x += a, and `scale(u32 n, ptr x, ptr y)`: y = 2 x.
const PTX: &str = include_str!("../../cudarc/src/kernels.ptx");

const N: usize = 40_000;

const PROGRAMS: &[(&str, fn() -> Check)] = &[
    ("their_context_and_stream", their_context_and_stream),
    ("their_memory", their_memory),
    ("our_memory", our_memory),
    ("our_stream", our_stream),
    ("back_and_forth", back_and_forth),
    ("cublas", libraries::cublas),
    ("nccl", libraries::nccl),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, program)) = PROGRAMS.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = PROGRAMS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: interop-together {}", names.join("|"));
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

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], want: &[T]) -> Check {
    match (0..got.len().max(want.len())).find(|&i| got.get(i) != want.get(i)) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: at {i} got {:?}, expected {:?}", got.get(i), want.get(i)).into()),
    }
}

fn numbers() -> Vec<f32> {
    (0..N).map(|i| (i % 1000) as f32).collect()
}

/// cudarc's side: its context is the device's primary one.
struct Theirs {
    context: Arc<CudaContext>,
    add: CudaFunction,
}

impl Theirs {
    fn new() -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(0)?;
        let module = context.load_module(Ptx::from_src(PTX))?;
        Ok(Self { add: module.load_function("add")?, context })
    }

    fn config() -> cudarc::driver::LaunchConfig {
        cudarc::driver::LaunchConfig::for_num_elems(N as u32)
    }

    fn add(&self, stream: &Arc<CudaStream>, x: &mut CudaSlice<f32>, a: f32) -> Check {
        let count = N as u32;
        // SAFETY: the arguments are the kernel's own, in order.
        unsafe { stream.launch_builder(&self.add).arg(&count).arg(&a).arg(x).launch(Self::config())? };
        Ok(())
    }
}

/// simtile's side, in the same context.
struct Ours {
    context: Arc<Context>,
    add: Function,
    scale: Function,
}

impl Ours {
    /// In a context that cudarc owns.
    fn borrowed(theirs: &Theirs) -> Result<Self, Box<dyn Error>> {
        let device = Runtime::new()?.device(0)?;
        let raw = CUcontext::from_ptr(theirs.context.cu_ctx());
        // SAFETY: the context lives as long as cudarc's handle, which is held.
        let context = unsafe { Context::borrow_with_owner(device, raw, Arc::new(theirs.context.clone())) }?;
        Self::on(context)
    }

    /// In the primary context, retained by ourselves: the one that cudarc uses, too.
    fn primary() -> Result<Self, Box<dyn Error>> {
        Self::on(Runtime::new()?.device(0)?.primary_context()?)
    }

    fn on(context: Arc<Context>) -> Result<Self, Box<dyn Error>> {
        let module = context.load_module_from_ptx_src(PTX)?;
        Ok(Self { add: module.load_function("add")?, scale: module.load_function("scale")?, context })
    }

    /// A stream of cudarc's.
    fn stream(&self, theirs: &Arc<CudaStream>) -> Result<Arc<Stream>, Box<dyn Error>> {
        let raw = CUstream::from_ptr(theirs.cu_stream());
        // SAFETY: the stream lives as long as cudarc's handle, which is held.
        Ok(unsafe { Stream::borrow_with_owner(raw, &self.context, Arc::new(theirs.clone())) }?)
    }

    fn add(&self, stream: &Arc<Stream>, x: &mut DeviceBuffer<f32>, a: f32) -> Check {
        let args = LaunchArgs::new().arg(N as u32).arg(a).arg(x);
        // SAFETY: `add` reads and writes the first `n` values of `x`.
        unsafe { stream.launch(&self.add, LaunchConfig::for_num_elems(N as u32), args) }?;
        Ok(())
    }

    fn scale(&self, stream: &Arc<Stream>, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) -> Check {
        let args = LaunchArgs::new().arg(N as u32).arg(x).arg(y);
        // SAFETY: `scale` reads `n` values of `x` and writes as many of `y`.
        unsafe { stream.launch(&self.scale, LaunchConfig::for_num_elems(N as u32), args) }?;
        Ok(())
    }
}

/// Memory of cudarc's, with what keeps it alive.
struct Slice {
    slice: CudaSlice<f32>,
    address: CUdeviceptr,
    context: Arc<Context>,
    dropped: Arc<AtomicUsize>,
}

impl Slice {
    /// Waits for what cudarc has queued on it.
    fn new(
        slice: CudaSlice<f32>,
        stream: &Arc<CudaStream>,
        context: &Arc<Context>,
        dropped: &Arc<AtomicUsize>,
    ) -> Result<Self, Box<dyn Error>> {
        stream.synchronize()?;
        let (address, _) = slice.device_ptr(stream);
        let (context, dropped) = (context.clone(), dropped.clone());
        Ok(Self { address, slice, context, dropped })
    }
}

// SAFETY: the slice is held and used by nobody else; cudarc's memory stays where it is.
unsafe impl DeviceAllocation for Slice {
    fn device_ptr(&self) -> CUdeviceptr {
        self.address
    }

    fn len_bytes(&self) -> usize {
        self.slice.num_bytes()
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn settle(context: &Context, dropped: &AtomicUsize, times: usize) -> Check {
    let drained = context.drain(std::time::Duration::from_secs(20));
    if !drained.is_complete() {
        return Err(format!("work is left over: {drained:?}").into());
    }
    match dropped.load(Ordering::SeqCst) {
        seen if seen == times => Ok(()),
        seen => Err(format!("{seen} owners were dropped, expected {times}").into()),
    }
}

/// Our buffers and kernels on cudarc's stream, in cudarc's context; and a stream of ours behind it.
fn their_context_and_stream() -> Check {
    let theirs = Theirs::new()?;
    let ours = Ours::borrowed(&theirs)?;
    let their_stream = theirs.context.new_stream()?;
    let (borrowed, own) = (ours.stream(&their_stream)?, ours.context.new_stream()?);
    let mut x = DeviceBuffer::from_slice(&borrowed, &numbers())?;
    ours.add(&borrowed, &mut x, 3.0)?;
    let mut y = DeviceBuffer::<f32>::zeroed(&own, N)?;
    // Another stream: ordered behind the borrowed one.
    ours.scale(&own, &x, &mut y)?;
    ours.add(&borrowed, &mut x, 100.0)?;
    let want: Vec<f32> = numbers().iter().map(|v| (v + 3.0) * 2.0).collect();
    expect("y", &y.to_vec(&own)?, &want)?;
    let want: Vec<f32> = numbers().iter().map(|v| v + 103.0).collect();
    expect("x", &x.to_vec(&borrowed)?, &want)?;
    // cudarc's handle of the stream may go first: ours holds it.
    drop(their_stream);
    ours.add(&borrowed, &mut x, 1.0)?;
    let want: Vec<f32> = numbers().iter().map(|v| v + 104.0).collect();
    expect("x", &x.to_vec(&own)?, &want)?;
    drop((x, y));
    settle(&ours.context, &AtomicUsize::new(0), 0)
}

/// A slice of cudarc's as a buffer of ours, used on two streams; cudarc gets it dropped after the last use.
fn their_memory() -> Check {
    let theirs = Theirs::new()?;
    let ours = Ours::primary()?;
    let their_stream = theirs.context.new_stream()?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut slice = their_stream.clone_htod(&numbers())?;
    theirs.add(&their_stream, &mut slice, 1.0)?;
    let owner = Slice::new(slice, &their_stream, &ours.context, &dropped)?;
    let mut x = DeviceBuffer::<f32>::from_foreign(owner)?;
    let (a, b) = (ours.context.new_stream()?, ours.context.new_stream()?);
    let mut y = DeviceBuffer::<f32>::zeroed(&b, N)?;
    ours.add(&a, &mut x, 4.0)?;
    ours.scale(&b, &x, &mut y)?;
    // In use still; its owner stays until the kernels have finished.
    drop(x);
    let want: Vec<f32> = numbers().iter().map(|v| (v + 5.0) * 2.0).collect();
    expect("y", &y.to_vec(&b)?, &want)?;
    settle(&ours.context, &dropped, 1)
}

/// A buffer of ours as a slice of cudarc's, used by cudarc's kernel on cudarc's stream, and taken back in that stream's order.
fn our_memory() -> Check {
    let theirs = Theirs::new()?;
    let ours = Ours::primary()?;
    let their_stream = theirs.context.new_stream()?;
    let (borrowed, own) = (ours.stream(&their_stream)?, ours.context.new_stream()?);
    let mut x = DeviceBuffer::from_slice(&own, &numbers())?;
    ours.add(&own, &mut x, 2.0)?;
    let exported = x.export().map_err(|refused| refused.error)?;
    exported.follow_on(&borrowed)?;
    // SAFETY: the address is that of `N` values until the export comes back; the slice is given up before that.
    let mut slice = unsafe { their_stream.upgrade_device_ptr::<f32>(exported.cu_deviceptr(), N) };
    theirs.add(&their_stream, &mut slice, 40.0)?;
    let _ = slice.leak();
    // SAFETY: cudarc's last use is queued on its stream.
    let x = unsafe { exported.take_back(&borrowed) }.map_err(|refused| refused.error)?;
    // A stream of ours again: behind cudarc's kernel.
    let want: Vec<f32> = numbers().iter().map(|v| v + 42.0).collect();
    expect("x", &x.to_vec(&own)?, &want)?;
    drop(x);
    settle(&ours.context, &AtomicUsize::new(0), 0)
}

/// cudarc's functions on a stream of ours, in the order of what they touch.
fn our_stream() -> Check {
    let _theirs = Theirs::new()?;
    let ours = Ours::primary()?;
    let (a, b) = (ours.context.new_stream()?, ours.context.new_stream()?);
    let x = DeviceBuffer::from_slice(&a, &numbers())?;
    let mut y = DeviceBuffer::<f32>::zeroed(&b, N)?;
    let (mut count, mut from, mut to) = (N as u32, x.cu_deviceptr(), y.cu_deviceptr());
    let (raw, config) = (raw_scale()?, Theirs::config());
    // SAFETY: one kernel is queued on the stream that is given; it reads `x` and writes `y`, which are named.
    let (_, launched) = unsafe {
        b.submit().read(&x).write(&mut y).foreign(|_, stream| {
            let mut params: [*mut c_void; 3] =
                [(&raw mut count).cast(), (&raw mut from).cast(), (&raw mut to).cast()];
            let stream = stream.as_ptr().cast::<sys::CUstream_st>();
            result::launch_kernel(raw, config.grid_dim, config.block_dim, 0, stream, &mut params)
        })
    }?;
    launched?;
    let want: Vec<f32> = numbers().iter().map(|v| v * 2.0).collect();
    // Back on the first stream.
    expect("y", &y.to_vec(&a)?, &want)?;
    drop((x, y));
    settle(&ours.context, &AtomicUsize::new(0), 0)
}

/// `scale` through cudarc's thin layer, whose handles can be passed on.
fn raw_scale() -> Result<sys::CUfunction, Box<dyn Error>> {
    let text = std::ffi::CString::new(PTX)?;
    // SAFETY: the text ends with a zero; the module is never unloaded.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module is alive.
    Ok(unsafe { result::module::get_function(module, std::ffi::CString::new("scale")?) }?)
}

/// One buffer goes to cudarc and back a hundred times, from changing streams on both sides, without a wait on the host.
fn back_and_forth() -> Check {
    let theirs = Theirs::new()?;
    let ours = Ours::primary()?;
    let their_streams = [theirs.context.new_stream()?, theirs.context.new_stream()?];
    let borrowed = [ours.stream(&their_streams[0])?, ours.stream(&their_streams[1])?];
    let own = [ours.context.new_stream()?, ours.context.new_stream()?, ours.context.new_stream()?];
    let mut x = DeviceBuffer::from_slice(&own[0], &numbers())?;
    for round in 0..100 {
        ours.add(&own[round % 3], &mut x, 1.0)?;
        let exported = x.export().map_err(|refused| refused.error)?;
        exported.follow_on(&borrowed[round % 2])?;
        let stream = &their_streams[round % 2];
        // SAFETY: as in `our_memory`.
        let mut slice = unsafe { stream.upgrade_device_ptr::<f32>(exported.cu_deviceptr(), N) };
        theirs.add(stream, &mut slice, 2.0)?;
        let _ = slice.leak();
        // SAFETY: cudarc's last use is queued on its stream.
        x = unsafe { exported.take_back(&borrowed[round % 2]) }.map_err(|refused| refused.error)?;
    }
    let want: Vec<f32> = numbers().iter().map(|v| v + 300.0).collect();
    expect("x", &x.to_vec(&own[1])?, &want)?;
    drop(x);
    settle(&ours.context, &AtomicUsize::new(0), 0)
}
