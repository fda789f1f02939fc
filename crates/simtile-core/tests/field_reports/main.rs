//! Public bug reports of other runtimes, each with the right behaviour (areas B to H and K). The names are the reports'; those that are
//! not here are beside the feature that they are about.

#[path = "../common/mod.rs"]
mod common;

mod borrowing;
mod devices;
mod failures;
mod lifetimes;
mod order;
mod transfers;
mod views;

use common::*;
use simtile_core::{
    Context, ContextError, DeviceAllocation, DeviceBuffer, Function, LaunchArgs, LaunchError, MemPool,
    MemoryError, PinnedHostBuffer, Policy, Stream, StreamError,
};
use simtile_driver::sys::{CUdeviceptr, CUresult, CUstream, CUstream_flags};
use simtile_driver::{Entry, call};
use simtile_sim::{Checks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SAXPY: &str = include_str!("../../../../artifacts/ptx/saxpy.ptx");
const BASIC: &str = include_str!("../../../simtile-cts/kernels/basic.ptx");
const SOON: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(20);

/// A simulator with the race checker on, a context and two streams.
fn checked() -> (Simulator, Arc<Context>, Arc<Stream>, Arc<Stream>) {
    let sim = Simulator::builder().devices(2).checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    (sim, context, a, b)
}

fn clean(sim: &Simulator) {
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

fn saxpy(context: &Arc<Context>) -> Function {
    context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap()
}

fn launch(
    stream: &Arc<Stream>,
    kernel: &Function,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result<(), LaunchError> {
    let n = x.len() as u32;
    // SAFETY: both buffers have so many elements.
    unsafe {
        stream.launch(
            kernel,
            LaunchConfig::for_num_elems(n),
            LaunchArgs::new().arg(n).arg(1.0f32).arg(x).arg(y),
        )
    }
}

/// `x` of ones made on one stream and `y` of zeros made on the other, and nothing left to do on either.
fn idle_pair(a: &Arc<Stream>, b: &Arc<Stream>) -> (DeviceBuffer<f32>, DeviceBuffer<f32>) {
    let pair =
        (DeviceBuffer::from_slice(a, &[1.0f32; 64]).unwrap(), DeviceBuffer::<f32>::zeroed(b, 64).unwrap());
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    pair
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A stream that somebody else made, with a token that tells when it is let go.
fn foreign_stream(context: &Arc<Context>) -> (CUstream, Arc<AtomicUsize>) {
    let driver = context.driver();
    set_current(driver, context.cu_ctx());
    let mut raw = CUstream::NULL;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)) }.unwrap();
    (raw, Arc::new(AtomicUsize::new(0)))
}

struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A foreign allocation that counts its drops, without memory to free.
struct Lent(Arc<Context>, CUdeviceptr, usize, Token);

// SAFETY: the tests keep the memory alive.
unsafe impl DeviceAllocation for Lent {
    fn device_ptr(&self) -> CUdeviceptr {
        self.1
    }

    fn len_bytes(&self) -> usize {
        let _ = &self.3;
        self.2
    }

    fn context(&self) -> &Arc<Context> {
        &self.0
    }
}
