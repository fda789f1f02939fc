//! How much a stream takes before a call blocks (driver-facts, Queues).
//!
//! A second thread submits while the stream is gated; the count is read once it has stood still for a while.

use crate::frame::{Check, Cx, Stop};
use crate::gpu::{Args, Gpu, Shape};
use crate::{cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

crate::frame::registry::tests! { Driver, "queue";
    launches_block_at_the_limit,
    memsets_count,
    records_waits_and_host_functions_do_not_count,
    a_full_stream_does_not_hold_up_the_others,
}

/// Launches that a gated stream takes.
const LIMIT: u32 = 1021;
/// More than that.
const MANY: u32 = 1200;
/// A counter that stands still for so long is blocked.
const STILL: Duration = Duration::from_millis(400);

/// Waits until the counter stands still or reaches `end`, and gives it.
fn settled(counter: &AtomicU32, end: u32) -> u32 {
    let mut last = counter.load(Ordering::SeqCst);
    let mut since = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(5));
        let now = counter.load(Ordering::SeqCst);
        if now == end || (now == last && since.elapsed() > STILL) {
            return now;
        }
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Calls `submit` up to `count` times on a second thread behind a gate on `stream`. Gives how many calls
/// returned while the gate was closed, after all of them have.
fn accepted(
    gpu: &Gpu<'_>,
    stream: CUstream,
    count: u32,
    submit: impl Fn() -> Check + Send + Sync,
    meanwhile: impl FnOnce() -> Check,
) -> Check<u32> {
    let gate = gpu.gate(stream)?;
    let counter = AtomicU32::new(0);
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            gpu.enter()?;
            for _ in 0..count {
                submit()?;
                counter.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        let taken = settled(&counter, count);
        let others = meanwhile();
        gate.open();
        thread.join().unwrap_or_else(|_| Err(Stop::fail("the submitting thread panicked")))?;
        others?;
        gpu.sync(stream)?;
        Ok(taken)
    })
}

fn launches_block_at_the_limit(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let step = gpu.kernel(c"step")?;
    let word = gpu.zeroed(4)?;
    let args = Args::new().with(word).with(1u32).with(1u32);
    gpu.launch(step, Shape::ONE, stream, &args)?;
    gpu.sync(stream)?;
    gpu.write(word, &[0u32])?;
    let submit = || gpu.launch(step, Shape::ONE, stream, &Args::new().with(word).with(1u32).with(1u32));
    let taken = accepted(&gpu, stream, MANY, submit, || Ok(()))?;
    ensure_eq!(taken, LIMIT, "launches taken by a gated stream");
    // Nothing was lost or done twice.
    let expected = (0..MANY).fold(0u32, |x, _| x.wrapping_mul(3).wrapping_add(1));
    ensure_eq!(gpu.word(word)?, expected, "word after all launches");
    Ok(())
}

fn memsets_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let memory = gpu.zeroed(4096)?;
    let driver = gpu.driver();
    let submit = || {
        let code = cu!(gpu, cuMemsetD8Async(memory, 1, 4096, stream));
        crate::frame::succeeded(driver, simtile_driver::Entry::cuMemsetD8Async, code, "memsets_count")
    };
    let taken = accepted(&gpu, stream, MANY, submit, || Ok(()))?;
    ensure!(taken < MANY, "a gated stream took {taken} memsets");
    Ok(())
}

fn records_waits_and_host_functions_do_not_count(cx: &Cx) -> Check {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    let gpu = Gpu::new(cx)?;
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    let event = gpu.event()?;
    let outside = gpu.recorded(other)?;
    let count = 1500;
    let submit = || {
        ok!(gpu, cuEventRecord(event, stream))?;
        ok!(gpu, cuStreamWaitEvent(stream, outside, 0))?;
        ok!(gpu, cuLaunchHostFunc(stream, Some(nothing), std::ptr::null_mut()))?;
        let mut memory = 0;
        ok!(gpu, cuMemAllocAsync(&mut memory, 4096, stream))?;
        ok!(gpu, cuMemFreeAsync(memory, stream))
    };
    let taken = accepted(&gpu, stream, count, submit, || Ok(()))?;
    ensure_eq!(taken, count, "rounds of record, wait, host function, alloc and free taken by a gated stream");
    Ok(())
}

/// driver-facts, Queues: one launch blocked on a full stream: event queries, and launches, records and waits
/// on other streams are still fine.
fn a_full_stream_does_not_hold_up_the_others(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (full, other) = (gpu.stream()?, gpu.stream()?);
    let empty = gpu.kernel(c"empty")?;
    // Creating an event would block, so they are made before.
    let (theirs, ours) = (gpu.recorded(full)?, gpu.event()?);
    gpu.launch(empty, Shape::ONE, other, &Args::new())?;
    gpu.sync(other)?;
    let submit = || gpu.launch(empty, Shape::ONE, full, &Args::new());
    let taken = accepted(&gpu, full, MANY, submit, || {
        ensure!(gpu.is_done(theirs)?, "the event recorded before the gate is not done");
        for _ in 0..20 {
            gpu.launch(empty, Shape::ONE, other, &Args::new())?;
        }
        ok!(cx, cuEventRecord(ours, other))?;
        gpu.finishes(ours, "work on a stream beside a full one")?;
        ok!(cx, cuStreamWaitEvent(other, ours, 0))
    })?;
    ensure!(taken < MANY, "a gated stream took {taken} launches");
    Ok(())
}
