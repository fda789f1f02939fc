//! Streams by our API.

use super::{Core, refused};
use crate::frame::{Check, Cx, Stop, threads};
use crate::{ensure, ensure_eq, ok};
use simtile_core::{DeviceBuffer, Stream, StreamError, in_host_function};
use simtile_driver::sys::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

crate::frame::registry::tests! { Core, "core_streams";
    owned_streams_are_non_blocking proves ["H3"],
    priority_is_clamped proves ["H3"],
    default_streams_are_named proves ["H3"],
    per_thread_stream_belongs_to_its_thread proves ["H3"],
    raw_null_is_refused proves ["H3", "F2"],
    borrowed_streams_hold_their_owner proves ["H3"],
    ids_are_never_reused proves ["H3"],
    wait_orders_two_streams proves ["H3"],
    fork_and_join proves ["H3"],
    drop_with_work_pending proves ["H4"],
    host_functions_run_in_order proves ["O6"],
    calls_in_a_host_function_are_refused proves ["O6"],
    a_panic_in_a_host_function_stays_there proves ["F2"],
}

fn owned_streams_are_non_blocking(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut flags = 99;
    ok!(cx, cuStreamGetFlags(core.stream.cu_stream(), &mut flags))?;
    ensure_eq!(flags, CUstream_flags::CU_STREAM_NON_BLOCKING.0, "flags of an owned stream");
    Ok(())
}

fn priority_is_clamped(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let range = core.context.stream_priority_range()?;
    for asked in [i32::MIN, range.greatest, range.least, i32::MAX] {
        let stream = core.context.new_stream_with_priority(asked)?;
        ensure_eq!(stream.priority()?, range.clamp(asked), "priority of a stream made with {asked}");
    }
    Ok(())
}

fn default_streams_are_named(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let legacy = core.context.legacy_default_stream();
    let per_thread = core.context.per_thread_default_stream();
    ensure_eq!(legacy.cu_stream(), CUstream::LEGACY, "handle of the legacy default stream");
    ensure_eq!(per_thread.cu_stream(), CUstream::PER_THREAD, "handle of the per-thread default stream");
    for stream in [legacy, per_thread] {
        let buffer = DeviceBuffer::from_slice(&stream, &[5u32; 10])?;
        ensure_eq!(buffer.to_vec(&stream)?, [5; 10], "words through {stream}");
    }
    Ok(())
}

fn per_thread_stream_belongs_to_its_thread(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let ours = core.context.per_thread_default_stream();
    let error = threads::scope(|scope| {
        scope
            .spawn(|| refused(ours.synchronize(), &["another thread"]))
            .join()
            .unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
    })?;
    ensure!(matches!(error, StreamError::WrongThread { .. }), "{error:?}");
    ours.synchronize()?;
    Ok(())
}

fn raw_null_is_refused(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    // SAFETY: null is refused.
    let borrowed = unsafe { Stream::borrow_raw(CUstream::NULL, &core.context) };
    let error = refused(borrowed, &["0", "legacy_default_stream", "per_thread_default_stream"])?;
    ensure!(matches!(error, StreamError::RawNull), "{error:?}");
    Ok(())
}

fn borrowed_streams_hold_their_owner(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let raw = core.gpu.stream()?;
    let owner = Arc::new(());
    // SAFETY: nobody destroys the stream.
    let borrowed = unsafe { Stream::borrow_with_owner(raw, &core.context, owner.clone()) }?;
    let buffer = DeviceBuffer::from_slice(&borrowed, &[1u32, 2, 3])?;
    ensure_eq!(buffer.to_vec(&borrowed)?, [1, 2, 3], "words through a borrowed stream");
    ensure!(Arc::strong_count(&owner) > 1, "a borrowed stream does not hold its owner");
    drop((buffer, borrowed));
    let _ = simtile_core::drain_background(crate::gpu::SOON);
    // Not destroyed by us.
    ok!(cx, cuStreamQuery(raw))
}

fn ids_are_never_reused(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    if let Some(simulator) = cx.simulator() {
        // The same handle values come back at once; ids must not.
        simulator.recycle_handles(true);
    }
    let mut seen = vec![core.stream.id()];
    for round in 0..20 {
        let stream = core.context.new_stream()?;
        ensure!(!seen.contains(&stream.id()), "stream {round} has the id of an earlier one");
        seen.push(stream.id());
    }
    Ok(())
}

fn wait_orders_two_streams(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let (a, b) = (&core.stream, core.context.new_stream()?);
    let gate = core.gate(a)?;
    let event = a.record_event()?;
    b.wait(&event)?;
    let done = b.record_event()?;
    threads::sleep(crate::gpu::A_WHILE);
    ensure!(!done.is_complete()?, "a wait for a gated event is over");
    gate.open();
    done.synchronize()?;
    ensure!(event.is_complete()?, "the event waited for is not complete");
    Ok(())
}

fn fork_and_join(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let gate = core.gate(&core.stream)?;
    let fork = core.stream.fork()?;
    threads::sleep(crate::gpu::A_WHILE);
    ensure!(!fork.is_complete()?, "a fork of a gated stream is idle");
    gate.open();
    core.stream.join(&fork)?;
    core.stream.synchronize()?;
    ensure!(fork.is_complete()?, "a joined fork is busy after its stream finished");
    Ok(())
}

fn drop_with_work_pending(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = core.context.new_stream()?;
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 100)?;
    let gate = core.gate(&stream)?;
    let done = stream.record_event()?;
    drop((stream, buffer));
    ensure!(!done.is_complete()?, "dropping a gated stream finished its work");
    gate.open();
    done.synchronize()?;
    Ok(())
}

fn host_functions_run_in_order(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let order = Arc::new(AtomicU32::new(0));
    let gate = core.gate(&core.stream)?;
    for i in 1..=10 {
        let order = order.clone();
        core.stream.launch_host_function(move || {
            let _ = order.compare_exchange(i - 1, i, Ordering::SeqCst, Ordering::SeqCst);
        })?;
    }
    ensure_eq!(order.load(Ordering::SeqCst), 0, "host functions run behind a gate");
    gate.open();
    core.stream.synchronize()?;
    ensure_eq!(order.load(Ordering::SeqCst), 10, "the last host function");
    ensure_eq!(Arc::strong_count(&order), 1, "holders of what the host functions captured");
    Ok(())
}

fn calls_in_a_host_function_are_refused(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let (stream, context) = (core.stream.clone(), core.context.clone());
    let buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 4)?;
    ensure!(!in_host_function(), "the test runs in a host function");
    core.stream.launch_host_function(move || {
        let found = (
            in_host_function(),
            stream.synchronize().map_err(|error| error.to_string()),
            context.new_event().map(|_| ()).map_err(|error| error.to_string()),
            buffer.to_vec(&stream).map(|_| ()).map_err(|error| error.to_string()),
        );
        // Drops are allowed.
        drop(buffer);
        // The test may have given up.
        let _ = sender.send(found);
    })?;
    core.stream.synchronize()?;
    let (inside, synchronize, event, copy) =
        receiver.recv_timeout(crate::gpu::SOON).map_err(|_| Stop::fail("the host function did not run"))?;
    ensure!(inside, "in_host_function() is false inside one");
    for (what, result) in [("synchronize", synchronize), ("new_event", event), ("to_vec", copy)] {
        refused(result, &["host function"]).map_err(|stop| stop.within(what))?;
    }
    Ok(())
}

fn a_panic_in_a_host_function_stays_there(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let before = core.context.stats().host_function_panics;
    // Past the panic hook, which would print.
    core.stream.launch_host_function(|| std::panic::resume_unwind(Box::new("on purpose")))?;
    core.stream.synchronize()?;
    ensure_eq!(core.context.stats().host_function_panics, before + 1, "panics counted");
    // The stream goes on.
    let buffer = DeviceBuffer::from_slice(&core.stream, &[1u32])?;
    ensure_eq!(buffer.to_vec(&core.stream)?, [1], "word after a panic in a host function");
    Ok(())
}
