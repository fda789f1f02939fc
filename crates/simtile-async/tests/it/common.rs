//! What the tests share.

use simtile_async::{DeviceOp, OpError, SubmitContext, into_future};
use simtile_core::{Context, DeviceBuffer, Function, LaunchArgs, Stream};
use simtile_driver::Driver;
use simtile_sim::{Mode, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake};
use std::time::{Duration, Instant};

pub const SAXPY: &str = include_str!("../../../../artifacts/ptx/saxpy.ptx");

pub struct Rig {
    pub sim: Simulator,
    pub context: Arc<Context>,
    pub stream: Arc<Stream>,
    pub saxpy: Function,
}

pub fn rig() -> Rig {
    rig_of(1)
}

pub fn simulator(devices: u32) -> Simulator {
    Simulator::builder().devices(devices).mode(Mode::Fast).quiet().build()
}

pub fn rig_of(devices: u32) -> Rig {
    let sim = simulator(devices);
    let driver = sim.driver();
    rig_by(sim, driver)
}

/// On a driver that may stand in front of the simulator's.
pub fn rig_by(sim: Simulator, driver: Driver) -> Rig {
    let context = Context::new(driver, 0).unwrap();
    let stream = context.new_stream().unwrap();
    let saxpy = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    Rig { sim, context, stream, saxpy }
}

impl Rig {
    /// Nothing was found by the checker.
    pub fn clean(&self) {
        assert!(self.sim.reports().is_empty(), "{:?}", self.sim.reports());
    }
}

/// `y += a x`, borrowing both.
pub fn saxpy<'a>(
    function: &Function,
    a: f32,
    x: &'a DeviceBuffer<f32>,
    y: &'a mut DeviceBuffer<f32>,
) -> simtile_async::AsyncKernelLaunch<'a> {
    let n = x.len();
    let builder = simtile_async::AsyncKernelLaunchBuilder::new(function);
    let builder = builder.arg(n as u32).arg(a).read(x).write(y);
    // SAFETY: the kernel reads `n` floats of `x` and updates as many of `y`.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(n as u32)) }.unwrap()
}

/// Buffers of a saxpy.
pub type Pair = (DeviceBuffer<f32>, DeviceBuffer<f32>);

/// `y += a x`, owning both.
pub fn saxpy_owned(function: &Function, a: f32, pair: Pair) -> impl DeviceOp<Output = Pair> + use<> {
    fn args<'r>(a: f32, pair: &'r mut Pair) -> LaunchArgs<'r> {
        let n = pair.0.len() as u32;
        LaunchArgs::new().arg(n).arg(a).buffer(&pair.0).buffer_mut(&mut pair.1)
    }
    let config = LaunchConfig::for_num_elems(pair.0.len() as u32);
    let builder = simtile_async::AsyncKernelLaunchBuilder::new(function);
    // SAFETY: the kernel reads `n` floats of the first and updates as many of the second.
    unsafe { builder.finalize_owned_unchecked(config, pair, move |pair| args(a, pair)) }.unwrap()
}

/// Gives `Pending` so often, waking itself.
pub struct Stubborn(pub usize);

impl DeviceOp for Stubborn {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        if self.0 == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(waker) = cx.waker() {
            self.0 -= 1;
            waker.wake_by_ref();
        }
        Poll::Pending
    }
}

into_future!(Stubborn);

/// A waker that counts.
#[derive(Default)]
pub struct Count(pub AtomicUsize);

impl Count {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until it is so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Arc<Count>) -> Poll<F::Output> {
    let waker = waker.clone().into();
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(&waker))
}
