//! The legacy default stream, per-thread default streams, and what waits for them.

use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{A_WHILE, Args, Gpu, Shape};
use crate::{cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "default_streams";
    legacy_has_two_names,
    legacy_waits_for_blocking_streams,
    blocking_streams_wait_for_legacy,
    non_blocking_streams_and_legacy_are_independent,
    legacy_orders_two_blocking_streams,
    per_thread_is_one_a_thread,
    per_thread_and_legacy_wait_for_each_other,
    per_thread_does_not_wait_for_other_streams,
    copies_without_a_stream_ignore_non_blocking_streams,
    copies_without_a_stream_wait_for_blocking_streams,
    memsets_without_a_stream_follow_blocking_streams,
    every_device_has_its_own needs [Need::Devices(2)],
}

fn legacy_has_two_names(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let gate = gpu.gate(CUstream::LEGACY)?;
    gpu.launch(store, Shape::ONE, CUstream::NULL, &Args::new().with(word).with(8u32))?;
    let done = gpu.recorded(CUstream::NULL)?;
    gpu.stays_pending(done, "work on stream 0 behind a gate on CU_STREAM_LEGACY")?;
    gate.open();
    gpu.finishes(done, "work on stream 0")?;
    ensure_eq!(cu!(cx, cuStreamQuery(CUstream::LEGACY)), CUresult::CUDA_SUCCESS, "query of CU_STREAM_LEGACY");
    ensure_eq!(gpu.word(word)?, 8, "word");
    Ok(())
}

fn legacy_waits_for_blocking_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let blocking = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let empty = gpu.kernel(c"empty")?;
    let gate = gpu.gate(blocking)?;
    gpu.launch(empty, Shape::ONE, blocking, &Args::new())?;
    gpu.launch(empty, Shape::ONE, CUstream::NULL, &Args::new())?;
    let done = gpu.recorded(CUstream::NULL)?;
    gpu.stays_pending(done, "legacy work after a gated blocking stream's")?;
    gate.open();
    gpu.finishes(done, "legacy work after a blocking stream's")
}

fn blocking_streams_wait_for_legacy(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let blocking = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let empty = gpu.kernel(c"empty")?;
    let gate = gpu.gate(CUstream::NULL)?;
    gpu.launch(empty, Shape::ONE, CUstream::NULL, &Args::new())?;
    gpu.launch(empty, Shape::ONE, blocking, &Args::new())?;
    let done = gpu.recorded(blocking)?;
    gpu.stays_pending(done, "a blocking stream's work after gated legacy work")?;
    gate.open();
    gpu.finishes(done, "a blocking stream's work after legacy work")
}

fn non_blocking_streams_and_legacy_are_independent(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let free = gpu.stream()?;
    let empty = gpu.kernel(c"empty")?;
    let gate = gpu.gate(CUstream::NULL)?;
    gpu.launch(empty, Shape::ONE, CUstream::NULL, &Args::new())?;
    let held = gpu.recorded(CUstream::NULL)?;
    gpu.launch(empty, Shape::ONE, free, &Args::new())?;
    gpu.finishes(gpu.recorded(free)?, "a non-blocking stream's work after gated legacy work")?;
    ensure!(!gpu.is_done(held)?, "gated legacy work finished");
    gate.open();
    gpu.finishes(held, "legacy work")?;
    let gate = gpu.gate(free)?;
    gpu.launch(empty, Shape::ONE, free, &Args::new())?;
    gpu.launch(empty, Shape::ONE, CUstream::NULL, &Args::new())?;
    gpu.finishes(gpu.recorded(CUstream::NULL)?, "legacy work after a gated non-blocking stream's")?;
    gate.open();
    gpu.sync(free)
}

fn legacy_orders_two_blocking_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let a = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let b = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let basic = gpu.module(crate::kernels::BASIC)?;
    let store = gpu.function(basic, c"store_one")?;
    let copy = gpu.function(basic, c"copy_one")?;
    let words = gpu.zeroed(12)?;
    let gate = gpu.gate(a)?;
    gpu.launch(store, Shape::ONE, a, &Args::new().with(words).with(5u32))?;
    gpu.launch(copy, Shape::ONE, CUstream::NULL, &Args::new().with(words).with(words + 4))?;
    gpu.launch(copy, Shape::ONE, b, &Args::new().with(words + 4).with(words + 8))?;
    let done = gpu.recorded(b)?;
    gpu.stays_pending(done, "the second blocking stream")?;
    gate.open();
    gpu.finishes(done, "the second blocking stream")?;
    ensure_eq!(gpu.read::<u32>(words, 3)?, [5, 5, 5], "words handed on through the legacy stream");
    Ok(())
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> Check<T> + Send) -> Check<T> {
    threads::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
    })
}

fn per_thread_is_one_a_thread(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    let gate = gpu.gate(CUstream::PER_THREAD)?;
    gpu.launch(empty, Shape::ONE, CUstream::PER_THREAD, &Args::new())?;
    let held = gpu.recorded(CUstream::PER_THREAD)?;
    on_a_thread(|| {
        gpu.enter()?;
        gpu.launch(empty, Shape::ONE, CUstream::PER_THREAD, &Args::new())?;
        gpu.finishes(gpu.recorded(CUstream::PER_THREAD)?, "another thread's default stream")
    })?;
    ensure!(!gpu.is_done(held)?, "work on a gated per-thread stream finished");
    gate.open();
    gpu.finishes(held, "work on this thread's default stream")
}

fn per_thread_and_legacy_wait_for_each_other(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    for (first, second) in [(CUstream::PER_THREAD, CUstream::NULL), (CUstream::NULL, CUstream::PER_THREAD)] {
        let gate = gpu.gate(first)?;
        gpu.launch(empty, Shape::ONE, first, &Args::new())?;
        gpu.launch(empty, Shape::ONE, second, &Args::new())?;
        let done = gpu.recorded(second)?;
        gpu.stays_pending(done, &format!("{second:?} after {first:?}"))?;
        gate.open();
        gpu.finishes(done, &format!("{second:?} after {first:?}"))?;
    }
    Ok(())
}

fn per_thread_does_not_wait_for_other_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let blocking = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let empty = gpu.kernel(c"empty")?;
    let gate = gpu.gate(blocking)?;
    gpu.launch(empty, Shape::ONE, blocking, &Args::new())?;
    gpu.launch(empty, Shape::ONE, CUstream::PER_THREAD, &Args::new())?;
    gpu.finishes(gpu.recorded(CUstream::PER_THREAD)?, "this thread's default stream beside a gated one")?;
    gate.open();
    gpu.sync(blocking)
}

/// driver-facts, Queues: copies without a stream have no order with a non-blocking stream.
fn copies_without_a_stream_ignore_non_blocking_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let free = gpu.stream()?;
    let empty = gpu.kernel(c"empty")?;
    let word = gpu.zeroed(4)?;
    let gate = gpu.gate(free)?;
    gpu.launch(empty, Shape::ONE, free, &Args::new())?;
    let held = gpu.recorded(free)?;
    let value = 11u32;
    ok!(cx, cuMemcpyHtoD(word, (&raw const value).cast(), 4))?;
    ensure_eq!(gpu.word(word)?, 11, "word copied while a non-blocking stream is gated");
    ensure!(!gpu.is_done(held)?, "a copy without a stream finished gated work");
    gate.open();
    gpu.sync(free)
}

/// A call without a stream on a thread of its own, behind a blocking stream whose gated kernel sets the word to 3. Whether the
/// call was over while the gate was closed.
fn behind_a_gate(gpu: &Gpu<'_>, word: CUdeviceptr, call: impl FnOnce() -> Check + Send) -> Check<bool> {
    let blocking = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let store = gpu.kernel(c"store_one")?;
    // A driver may load code at its first launch, which waits for everything.
    gpu.launch(store, Shape::ONE, blocking, &Args::new().with(word).with(1u32))?;
    gpu.sync(blocking)?;
    let gate = gpu.gate(blocking)?;
    gpu.launch(store, Shape::ONE, blocking, &Args::new().with(word).with(3u32))?;
    threads::scope(|scope| {
        let caller = scope.spawn(|| {
            gpu.enter()?;
            call()
        });
        threads::sleep(A_WHILE);
        let early = caller.is_finished();
        gate.open();
        caller.join().unwrap_or_else(|_| Err(Stop::fail("the calling thread panicked")))?;
        gpu.sync(blocking)?;
        Ok(early)
    })
}

fn copies_without_a_stream_wait_for_blocking_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let word = gpu.zeroed(4)?;
    let mut found = 0;
    let early = behind_a_gate(&gpu, word, || {
        found = gpu.word(word)?;
        Ok(())
    })?;
    ensure!(!early, "a copy without a stream passed a gated blocking stream");
    ensure_eq!(found, 3, "word copied behind a blocking stream's kernel");
    Ok(())
}

fn memsets_without_a_stream_follow_blocking_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let word = gpu.zeroed(4)?;
    // Whether the call itself waits is the driver's affair.
    behind_a_gate(&gpu, word, || ok!(cx, cuMemsetD32(word, 7, 1)))?;
    ok!(cx, cuCtxSynchronize())?;
    ensure_eq!(gpu.word(word)?, 7, "word set behind a blocking stream's kernel");
    Ok(())
}

fn every_device_has_its_own(cx: &Cx) -> Check {
    let second = Gpu::on(cx, 1)?;
    let theirs = second.kernel(c"empty")?;
    second.launch(theirs, Shape::ONE, CUstream::NULL, &Args::new())?;
    ok!(cx, cuCtxSynchronize())?;
    let first = Gpu::on(cx, 0)?;
    let empty = first.kernel(c"empty")?;
    for stream in [CUstream::NULL, CUstream::PER_THREAD] {
        first.enter()?;
        let gate = first.gate(stream)?;
        first.launch(empty, Shape::ONE, stream, &Args::new())?;
        let held = first.recorded(stream)?;
        second.enter()?;
        second.launch(theirs, Shape::ONE, stream, &Args::new())?;
        second.finishes(second.recorded(stream)?, "the other device's default stream beside a gated one")?;
        ensure!(!first.is_done(held)?, "gated work of the first device finished");
        gate.open();
        first.finishes(held, "work on the first device's default stream")?;
    }
    Ok(())
}
