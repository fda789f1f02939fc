//! The layer of operations: what the core's promises come to when work is put together lazily, awaited, cancelled and replayed.

mod graphs;
mod losses;
mod ops;

use crate::core_layer::Core;
use crate::frame::{Check, Cx, Test};
use simtile_async::{AsyncKernelLaunchBuilder, DeviceOp};
use simtile_core::{DeviceBuffer, Function, LaunchArgs};
use simtile_sync::{Condvar, Mutex};
use simtile_types::LaunchConfig;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

/// Every family.
pub const FAMILIES: &[&[Test]] = &[ops::TESTS, graphs::TESTS, losses::TESTS];

/// Words of a buffer.
const WORDS: u32 = 64;

/// Where these tests start: the core's beginning, and the kernel that steps words.
struct Ops<'a> {
    core: Core<'a>,
    step: Function,
}

impl<'a> Ops<'a> {
    fn new(cx: &'a Cx) -> Check<Self> {
        let core = Core::new(cx)?;
        let step = core.basic()?.load_function("step")?;
        Ok(Self { core, step })
    }

    /// Words of one value, there when the call returns.
    fn words(&self, value: u32) -> Check<DeviceBuffer<u32>> {
        let buffer = DeviceBuffer::from_slice(&self.core.stream, &[value; WORDS as usize])?;
        self.core.stream.synchronize()?;
        Ok(buffer)
    }

    /// `word = 3 word + 1`, borrowing.
    fn step<'b>(&self, words: &'b mut DeviceBuffer<u32>) -> Check<impl DeviceOp<Output = ()> + use<'b>> {
        let builder = AsyncKernelLaunchBuilder::new(&self.step).write(words).arg(WORDS).arg(1u32);
        // SAFETY: the kernel updates the words of its buffer, of which it is told.
        Ok(unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(WORDS)) }?)
    }

    /// The same, owning the buffer and giving it back.
    fn step_owned(
        &self,
        words: DeviceBuffer<u32>,
    ) -> Check<impl DeviceOp<Output = DeviceBuffer<u32>> + use<>> {
        fn args(words: &mut DeviceBuffer<u32>) -> LaunchArgs<'_> {
            LaunchArgs::new().buffer_mut(words).arg(WORDS).arg(1u32)
        }
        let builder = AsyncKernelLaunchBuilder::new(&self.step);
        // SAFETY: as above.
        let launch =
            unsafe { builder.finalize_owned_unchecked(LaunchConfig::for_num_elems(WORDS), words, args) };
        Ok(launch?)
    }
}

/// A thread that waits for its waker, in turn with the others where turns are taken.
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

/// Awaits on this thread.
fn wait_for<F: Future + Unpin>(future: &mut F) -> F::Output {
    let parked = Arc::<Parked>::default();
    let waker = Waker::from(parked.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut cx) {
            return output;
        }
        let mut woken = parked.woken.lock();
        while !core::mem::take(&mut *woken) {
            parked.bell.wait(&mut woken);
        }
    }
}

/// Polls once, with a waker that does nothing.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut std::task::Context::from_waker(Waker::noop()))
}
