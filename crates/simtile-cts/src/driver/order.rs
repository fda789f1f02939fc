//! Rows of driver-facts' table *Order* that are about more than one family.

use crate::frame::{Check, Cx, Need, threads};
use crate::gpu::{A_WHILE, Args, Gpu, Shape};
use crate::{cu, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "order";
    dependent_launch_without_wait_may_read_old_data needs [Need::Capability(9, 0)],
    dependent_launch_with_wait_never_does needs [Need::Capability(9, 0)],
    event_after_a_dependent_launch_covers_both needs [Need::Capability(9, 0)],
    destroying_everything_with_work_pending,
}

struct Pair<'a> {
    gpu: Gpu<'a>,
    stream: CUstream,
    primary: CUfunction,
    flag: crate::gpu::Pinned,
    words: crate::gpu::Pinned,
}

/// Rounds of the primary kernel's wait for its flag.
const LIMIT: u64 = 20_000_000;

impl<'a> Pair<'a> {
    /// Everything loaded and launched once, so that nothing loads behind the primary kernel.
    fn new(cx: &'a Cx, secondary: &std::ffi::CStr) -> Check<(Self, CUfunction)> {
        let gpu = Gpu::new(cx)?;
        let stream = gpu.stream()?;
        let module = gpu.module(kernels::HOPPER)?;
        let primary = gpu.function(module, c"primary")?;
        let secondary = gpu.function(module, secondary)?;
        let (flag, words) = (gpu.pinned(1)?, gpu.pinned(2)?);
        let pair = Self { gpu, stream, primary, flag, words };
        pair.flag.set(0, 1);
        pair.launch(secondary)?;
        pair.gpu.sync(stream)?;
        pair.flag.set(0, 0);
        pair.words.set(0, 0);
        pair.words.set(1, 0);
        Ok((pair, secondary))
    }

    /// The primary kernel lets its dependent start, waits for the flag, then writes 1 into word 0; the secondary
    /// one writes word 0 + 100 into word 1.
    fn launch(&self, secondary: CUfunction) -> Check {
        let (x, y) = (self.words.device, self.words.device + 4);
        let args = Args::new().with(self.flag.device).with(LIMIT).with(x);
        self.gpu.launch(self.primary, Shape::ONE, self.stream, &args)?;
        let mut attributes = [super::launch_attributes::attribute(
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        )];
        let args = Args::new().with(x).with(y);
        let code = super::launch_attributes::launch_ex(
            &self.gpu,
            secondary,
            Shape::ONE,
            self.stream,
            &args,
            &mut attributes,
        );
        ensure_eq!(code, CUresult::CUDA_SUCCESS, "a dependent launch");
        Ok(())
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        self.flag.set(0, 1);
    }
}

/// Read the predecessor's old data in 20 of 20 on a GPU. A driver that keeps the order is right too, so only
/// values that no order explains fail.
fn dependent_launch_without_wait_may_read_old_data(cx: &Cx) -> Check {
    let (pair, secondary) = Pair::new(cx, c"secondary_without_wait")?;
    pair.launch(secondary)?;
    let done = pair.gpu.recorded(pair.stream)?;
    // Whether the secondary kernel runs beside the primary one shows here.
    pair.gpu.done_within(done, A_WHILE)?;
    let beside = pair.words.get(1);
    pair.flag.set(0, 1);
    pair.gpu.finishes(done, "both kernels")?;
    let found = pair.words.to_vec();
    ensure_eq!(found[0], 1, "the primary kernel's word");
    match beside {
        100 => ensure_eq!(found[1], 100, "the secondary kernel's word after it read the old one"),
        0 => ensure!(found[1] == 100 || found[1] == 101, "the secondary kernel's word is {}", found[1]),
        other => ensure!(false, "the secondary kernel's word is {other} while the primary kernel runs"),
    }
    Ok(())
}

fn dependent_launch_with_wait_never_does(cx: &Cx) -> Check {
    let (pair, secondary) = Pair::new(cx, c"secondary_with_wait")?;
    for round in 0..5 {
        pair.flag.set(0, 0);
        pair.words.set(0, 0);
        pair.words.set(1, 0);
        pair.launch(secondary)?;
        threads::sleep(A_WHILE / 6);
        let early = pair.words.get(1);
        pair.flag.set(0, 1);
        pair.gpu.sync(pair.stream)?;
        ensure_eq!(early, 0, "the secondary kernel's word while the primary kernel runs, round {round}");
        ensure_eq!(pair.words.to_vec(), [1, 101], "both words, round {round}");
    }
    Ok(())
}

/// An event after both never fired early.
fn event_after_a_dependent_launch_covers_both(cx: &Cx) -> Check {
    let (pair, secondary) = Pair::new(cx, c"secondary_without_wait")?;
    pair.launch(secondary)?;
    let done = pair.gpu.recorded(pair.stream)?;
    pair.gpu.stays_pending(done, "an event after a dependent launch whose predecessor runs")?;
    pair.flag.set(0, 1);
    pair.gpu.finishes(done, "both kernels")?;
    ensure_eq!(pair.words.get(0), 1, "the primary kernel's word when the event is done");
    Ok(())
}

fn destroying_everything_with_work_pending(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let basic = gpu.module(kernels::BASIC)?;
    let store = gpu.function(basic, c"store_one")?;
    let copy = gpu.function(basic, c"copy_one")?;
    let words = gpu.pinned(2)?;
    let gate = gpu.gate(a)?;
    gpu.launch(store, Shape::ONE, a, &Args::new().with(words.device).with(55u32))?;
    let between = gpu.recorded(a)?;
    ok!(cx, cuStreamWaitEvent(b, between, 0))?;
    gpu.launch(copy, Shape::ONE, b, &Args::new().with(words.device).with(words.device + 4))?;
    let done = gpu.recorded(b)?;
    ok!(cx, cuEventDestroy(between))?;
    ok!(cx, cuStreamDestroy(a))?;
    ok!(cx, cuStreamDestroy(b))?;
    ensure_eq!(cu!(cx, cuEventQuery(done)), CUresult::CUDA_ERROR_NOT_READY, "the work behind the gate");
    gate.open();
    gpu.finishes(done, "work of destroyed streams, ordered by a destroyed event")?;
    ensure_eq!(words.to_vec(), [55, 55], "word and its copy");
    Ok(())
}
