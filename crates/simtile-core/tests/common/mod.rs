//! What the tests share: a simulator with its first device, and looking at the thread's current context.
#![allow(dead_code, reason = "each test file uses a part of it")]

use simtile_core::{Context, Device, Stream};
use simtile_driver::sys::CUcontext;
use simtile_driver::{Driver, call};
use simtile_sim::Simulator;
use std::sync::Arc;

/// A quiet simulator with this many devices.
pub fn sim(devices: u32) -> Simulator {
    Simulator::builder().devices(devices).quiet().build()
}

/// A simulator, a context on device 0 and a stream in it.
pub fn start() -> (Simulator, Arc<Context>, Arc<Stream>) {
    let sim = sim(1);
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    (sim, context, stream)
}

pub fn context(sim: &Simulator, ordinal: usize) -> Arc<Context> {
    Device::new(sim.driver(), ordinal).unwrap().primary_context().unwrap()
}

/// The context that is current on this thread.
pub fn current(driver: Driver) -> CUcontext {
    let mut current = CUcontext::NULL;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuCtxGetCurrent(&mut current)) }.unwrap();
    current
}

/// Makes a context current on this thread, by the driver's own call.
pub fn set_current(driver: Driver, context: CUcontext) {
    // SAFETY: the tests keep the context alive.
    unsafe { call!(driver, cuCtxSetCurrent(context)) }.unwrap();
}

/// Runs on a fresh thread, which has no current context.
pub fn on_fresh_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}
