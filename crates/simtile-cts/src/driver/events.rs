//! Events: recording, waiting, timing.

use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{A_WHILE, Args, Gpu, Shape};
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::sync::atomic::{AtomicBool, Ordering};

crate::frame::registry::tests! { Driver, "events";
    flags,
    invalid_flags,
    unrecorded_is_done,
    record_on_idle_and_gated_streams,
    synchronize_waits,
    blocking_sync_waits,
    record_again_moves_the_event,
    record_again_does_not_lose_a_waiter,
    a_parked_waiter_blocks_nobody,
    elapsed_time,
    elapsed_time_needs_timing,
    elapsed_time_needs_records,
    elapsed_time_of_pending_work,
    record_with_flags,
    record_on_default_streams,
    destroy_while_pending,
    destroy_while_a_stream_waits,
    destroyed_handles_are_refused needs [Need::Simulator("CUDA leaves the use of a destroyed handle undefined")],
}

fn flags(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let all = [
        CUevent_flags::CU_EVENT_DEFAULT,
        CUevent_flags::CU_EVENT_BLOCKING_SYNC,
        CUevent_flags::CU_EVENT_DISABLE_TIMING,
        CUevent_flags(CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0),
    ];
    for flags in all {
        let event = gpu.event_with(flags)?;
        ensure!(!event.is_null(), "the event made with {flags:?} is null");
        ok!(cx, cuEventRecord(event, gpu.stream()?))?;
        ok!(cx, cuEventSynchronize(event))?;
        ok!(cx, cuEventDestroy(event))?;
    }
    Ok(())
}

fn invalid_flags(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut event = CUevent::NULL;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuEventCreate(&mut event, 0x100))?;
    // Sharing between processes excludes timing.
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuEventCreate(&mut event, CUevent_flags::CU_EVENT_INTERPROCESS.0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuEventCreate(std::ptr::null_mut(), 0))
}

fn unrecorded_is_done(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let event = gpu.event()?;
    ok!(cx, cuEventQuery(event))?;
    ok!(cx, cuEventSynchronize(event))
}

fn record_on_idle_and_gated_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    gpu.finishes(gpu.recorded(stream)?, "an event on an idle stream")?;
    let gate = gpu.gate(stream)?;
    let event = gpu.recorded(stream)?;
    code!(cx, [CUDA_ERROR_NOT_READY], cuEventQuery(event))?;
    // Asking does not change anything.
    gpu.stays_pending(event, "an event behind a gate")?;
    gate.open();
    gpu.finishes(event, "an event behind an opened gate")?;
    ok!(cx, cuEventSynchronize(event))
}

/// A thread waits for an event behind a gate: it must not return before the gate opens.
fn waits(cx: &Cx, flags: CUevent_flags) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let store = gpu.kernel(c"store_one")?;
    let flag = gpu.pinned(1)?;
    let event = gpu.event_with(flags)?;
    let gate = gpu.gate(stream)?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(flag.device).with(1u32))?;
    ok!(cx, cuEventRecord(event, stream))?;
    let opened = AtomicBool::new(false);
    threads::scope(|scope| {
        let waiter = scope.spawn(|| {
            gpu.enter()?;
            ok!(cx, cuEventSynchronize(event))?;
            ensure!(opened.load(Ordering::SeqCst), "the wait returned before the gate opened");
            ensure_eq!(flag.get(0), 1, "word written before the event");
            Ok(())
        });
        threads::sleep(A_WHILE);
        opened.store(true, Ordering::SeqCst);
        gate.open();
        waiter.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
    })
}

fn synchronize_waits(cx: &Cx) -> Check {
    waits(cx, CUevent_flags::CU_EVENT_DISABLE_TIMING)
}

fn blocking_sync_waits(cx: &Cx) -> Check {
    waits(
        cx,
        CUevent_flags(CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0),
    )
}

fn record_again_moves_the_event(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let gate = gpu.gate(a)?;
    let event = gpu.recorded(a)?;
    ensure!(!gpu.is_done(event)?, "an event behind a gate is done");
    ok!(cx, cuEventRecord(event, b))?;
    gpu.finishes(event, "an event recorded again on an idle stream")?;
    gate.open();
    gpu.sync(a)
}

/// driver-facts, Order: re-recording an event does not lose a thread that already waits.
fn record_again_does_not_lose_a_waiter(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let event = gpu.event_with(CUevent_flags(
        CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0,
    ))?;
    let first = gpu.gate(a)?;
    let second = gpu.gate(b)?;
    ok!(cx, cuEventRecord(event, a))?;
    let returned = AtomicBool::new(false);
    threads::scope(|scope| {
        let waiter = scope.spawn(|| {
            gpu.enter()?;
            let check = ok!(cx, cuEventSynchronize(event));
            returned.store(true, Ordering::SeqCst);
            check
        });
        threads::sleep(A_WHILE);
        let recorded = ok!(cx, cuEventRecord(event, b));
        threads::sleep(A_WHILE);
        let early = returned.load(Ordering::SeqCst);
        // Both records complete: whichever the driver waits for, the thread has to return. If it does not,
        // the watchdog reports this test.
        first.open();
        second.open();
        waiter.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))?;
        recorded?;
        ensure!(!early, "the wait returned while both records were behind gates");
        Ok(())
    })
}

/// driver-facts, Order: a parked waiter blocks no other call.
fn a_parked_waiter_blocks_nobody(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let empty = gpu.kernel(c"empty")?;
    let event = gpu.event_with(CUevent_flags(
        CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0,
    ))?;
    let gate = gpu.gate(a)?;
    ok!(cx, cuEventRecord(event, a))?;
    threads::scope(|scope| {
        let waiter = scope.spawn(|| {
            gpu.enter()?;
            ok!(cx, cuEventSynchronize(event))
        });
        threads::sleep(A_WHILE);
        let meanwhile = (|| {
            gpu.launch(empty, Shape::ONE, b, &Args::new())?;
            gpu.finishes(gpu.recorded(b)?, "work beside a parked waiter")?;
            code!(cx, [CUDA_ERROR_NOT_READY], cuEventQuery(event))?;
            let other = gpu.event()?;
            ok!(cx, cuEventDestroy(other))?;
            gpu.stream().map(|_| ())
        })();
        gate.open();
        waiter.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))?;
        meanwhile
    })
}

fn timed(gpu: &Gpu<'_>) -> Check<CUevent> {
    gpu.event_with(CUevent_flags::CU_EVENT_DEFAULT)
}

fn elapsed_time(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let late = gpu.kernel(c"late_store")?;
    let word = gpu.zeroed(4)?;
    let (start, middle, end) = (timed(&gpu)?, timed(&gpu)?, timed(&gpu)?);
    ok!(cx, cuEventRecord(start, stream))?;
    gpu.launch(late, Shape::ONE, stream, &Args::new().with(word).with(1u32).with(20_000u32))?;
    ok!(cx, cuEventRecord(middle, stream))?;
    ok!(cx, cuEventRecord(end, stream))?;
    ok!(cx, cuEventSynchronize(end))?;
    let between = |from, to| -> Check<f32> {
        let mut millis = f32::NAN;
        ok!(cx, cuEventElapsedTime(&mut millis, from, to))?;
        Ok(millis)
    };
    let work = between(start, middle)?;
    ensure!(work > 0.0 && work < 60_000.0, "{work} ms for a kernel");
    let whole = between(start, end)?;
    ensure!(whole >= work, "{whole} ms in all, {work} ms for a part of it");
    let back = between(end, start)?;
    ensure!(back < 0.0, "{back} ms backwards");
    ensure_eq!(between(start, start)?, 0.0, "time between an event and itself");
    Ok(())
}

fn elapsed_time_needs_timing(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (with, without) = (timed(&gpu)?, gpu.event()?);
    for event in [with, without] {
        ok!(cx, cuEventRecord(event, stream))?;
    }
    gpu.sync(stream)?;
    let mut millis = 0.0;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuEventElapsedTime(&mut millis, with, without))?;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuEventElapsedTime(&mut millis, without, with))
}

fn elapsed_time_needs_records(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (recorded, not) = (timed(&gpu)?, timed(&gpu)?);
    ok!(cx, cuEventRecord(recorded, stream))?;
    gpu.sync(stream)?;
    let mut millis = 0.0;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuEventElapsedTime(&mut millis, recorded, not))
}

fn elapsed_time_of_pending_work(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (start, end) = (timed(&gpu)?, timed(&gpu)?);
    ok!(cx, cuEventRecord(start, stream))?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuEventRecord(end, stream))?;
    let mut millis = 0.0;
    code!(cx, [CUDA_ERROR_NOT_READY], cuEventElapsedTime(&mut millis, start, end))?;
    gate.open();
    gpu.sync(stream)?;
    ok!(cx, cuEventElapsedTime(&mut millis, start, end))
}

fn record_with_flags(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let event = gpu.event()?;
    ok!(cx, cuEventRecordWithFlags(event, stream, CUevent_record_flags::CU_EVENT_RECORD_DEFAULT.0))?;
    gpu.finishes(event, "an event recorded with flags")?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuEventRecordWithFlags(event, stream, 0x100))
}

fn record_on_default_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for stream in [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD] {
        gpu.finishes(gpu.recorded(stream)?, "an event on a default stream")?;
    }
    Ok(())
}

/// driver-facts, Order: destroying events with work pending is fine.
fn destroy_while_pending(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let gate = gpu.gate(stream)?;
    let event = gpu.recorded(stream)?;
    ok!(cx, cuEventDestroy(event))?;
    code!(cx, [CUDA_ERROR_NOT_READY], cuStreamQuery(stream))?;
    gate.open();
    gpu.sync(stream)
}

fn destroy_while_a_stream_waits(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let gate = gpu.gate(a)?;
    let event = gpu.recorded(a)?;
    ok!(cx, cuStreamWaitEvent(b, event, 0))?;
    ok!(cx, cuEventDestroy(event))?;
    let done = gpu.recorded(b)?;
    gpu.stays_pending(done, "a wait for a destroyed event's record")?;
    gate.open();
    gpu.finishes(done, "a wait for a destroyed event's record")
}

fn destroyed_handles_are_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let event = gpu.event()?;
    ok!(cx, cuEventDestroy(event))?;
    for event in [event, CUevent(0xdead_beef)] {
        code!(cx, [CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED], cuEventQuery(event))?;
        code!(cx, [CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED], cuEventDestroy(event))?;
    }
    Ok(())
}
