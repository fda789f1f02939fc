//! What the tests share.
//!
//! A test that is called inside an exploration runs on a driver of that exploration, with every check on: see `schedules`.

use simtile_async::{DeviceOp, OpError, SubmitContext, into_future};
use simtile_core::{Context, DeviceBuffer, Function, LaunchArgs, Stream};
use simtile_driver::Driver;
use simtile_sim::{Builder, Checks, Mode, Simulator};
use simtile_sync::{Condvar, Mutex, hook, time};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

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

/// Settings of a driver that suits the caller: explored with every check on, or as fast as it goes.
pub fn settings() -> Builder {
    let builder = Simulator::builder().quiet();
    match crate::schedules::seed() {
        Some(seed) => builder.mode(Mode::Explore).seed(seed).checks(Checks::ALL),
        None => builder.mode(Mode::Fast),
    }
}

pub fn simulator(devices: u32) -> Simulator {
    settings().devices(devices).build()
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

/// So many, or, explored, where threads take turns, so few.
pub fn few(many: usize, few: usize) -> usize {
    if hook::current().is_some() { few } else { many }
}

/// So many bytes; explored, where every one of them is followed, at most two pieces of a large copy and a little.
pub fn large(bytes: usize) -> usize {
    if hook::current().is_some() { bytes.min((4 << 20) + 8) } else { bytes }
}

/// Waits until it is so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = time::now();
    while !done() {
        assert!(time::now() - start < Duration::from_secs(20), "{what}: not within 20 s");
        time::sleep(Duration::from_millis(1));
    }
}

/// A thread that waits for its waker, in turn with others.
#[derive(Default)]
struct Parked {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.bell.notify_one();
    }
}

/// Runs a future: on an executor that is not ours, or, explored, on one whose waiting the schedule sees.
pub fn block_on<F: Future>(future: F) -> F::Output {
    if hook::current().is_none() {
        return futures::executor::block_on(future);
    }
    let mut future = std::pin::pin!(future);
    let parked = Arc::<Parked>::default();
    let waker = Waker::from(parked.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        let mut woken = parked.woken.lock();
        while !std::mem::take(&mut *woken) {
            parked.bell.wait(&mut woken);
        }
    }
}

pub fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Arc<Count>) -> Poll<F::Output> {
    let waker = waker.clone().into();
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(&waker))
}
