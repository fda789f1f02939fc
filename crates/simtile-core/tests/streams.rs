//! H3: streams and events.

mod common;

use common::*;
use simtile_core::{Device, Stream, StreamError, drain_background, in_host_function};
use simtile_driver::sys::{CUresult, CUstream, CUstream_flags, CUstreamCaptureStatus};
use simtile_driver::{Driver, Entry, State, Table, call};
use simtile_sim::Simulator;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn h3_owned_streams_are_non_blocking_with_clamped_priorities() {
    let (sim, context, stream) = start();
    let mut flags = 0;
    // SAFETY: the stream is alive, the out-pointer is valid for the call.
    unsafe { call!(sim.driver(), cuStreamGetFlags(stream.cu_stream(), &mut flags)) }.unwrap();
    assert_eq!(flags, CUstream_flags::CU_STREAM_NON_BLOCKING.0);
    let range = context.stream_priority_range().unwrap();
    assert!(range.is_supported());
    assert_eq!(stream.priority().unwrap(), 0);
    for wanted in [i32::MIN, range.greatest, -1, range.least, 1, i32::MAX] {
        let stream = context.new_stream_with_priority(wanted).unwrap();
        assert_eq!(stream.priority().unwrap(), range.clamp(wanted));
    }
}

#[test]
fn h3_identities_are_never_reused_though_handles_are() {
    let (sim, context, _stream) = start();
    sim.recycle_handles(true);
    let (mut ids, mut handles) = (HashSet::new(), HashSet::new());
    for _ in 0..50 {
        let stream = context.new_stream().unwrap();
        assert!(ids.insert(stream.id()));
        handles.insert(stream.cu_stream());
    }
    assert!(handles.len() < 50, "the simulator recycles");
}

#[test]
fn h3_raw_null_is_refused_and_default_streams_have_names() {
    let (sim, context, _stream) = start();
    // SAFETY: refused before anything uses the handle.
    assert!(matches!(unsafe { Stream::borrow_raw(CUstream::NULL, &context) }, Err(StreamError::RawNull)));
    assert_eq!(context.legacy_default_stream().cu_stream(), CUstream::LEGACY);
    assert_eq!(context.per_thread_default_stream().cu_stream(), CUstream::PER_THREAD);
    let before = sim.counts().of(Entry::cuStreamDestroy);
    drop((context.legacy_default_stream(), context.per_thread_default_stream()));
    assert_eq!(sim.counts().of(Entry::cuStreamDestroy), before);
}

#[test]
fn h3_a_per_thread_stream_belongs_to_its_thread() {
    let (_sim, context, _stream) = start();
    let mine = context.per_thread_default_stream();
    mine.synchronize().unwrap();
    on_fresh_thread(|| {
        assert!(matches!(mine.synchronize(), Err(StreamError::WrongThread { .. })));
        assert!(matches!(mine.is_complete(), Err(StreamError::WrongThread { .. })));
        assert!(matches!(mine.launch_host_function(|| ()), Err(StreamError::WrongThread { .. })));
        context.per_thread_default_stream().synchronize().unwrap();
    });
}

#[test]
fn h3_a_borrowed_stream_holds_its_owner_and_is_not_destroyed() {
    let (sim, context, _stream) = start();
    let owner = context.new_stream().unwrap();
    let weak = Arc::downgrade(&owner);
    let raw = owner.cu_stream();
    // SAFETY: the owner keeps the stream alive.
    let borrowed = unsafe { Stream::borrow_with_owner(raw, &context, Arc::new(owner)) }.unwrap();
    assert_eq!(borrowed.cu_stream(), raw);
    assert!(weak.upgrade().is_some_and(|owner| owner.id() != borrowed.id()));
    borrowed.synchronize().unwrap();
    let before = sim.counts().of(Entry::cuStreamDestroy);
    drop(borrowed);
    assert!(weak.upgrade().is_none());
    assert_eq!(sim.counts().of(Entry::cuStreamDestroy), before + 1, "by its owner, once");
}

#[test]
fn h3_waiting_and_asking_use_events_only() {
    let (sim, context, stream) = start();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let other = context.new_stream().unwrap();
    assert!(!stream.is_complete().unwrap());
    assert!(other.is_complete().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stream.synchronize().unwrap();
            sender.send(()).unwrap();
        });
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err(), "waits for the gate");
        gate.open();
        receiver.recv_timeout(SOON).unwrap();
    });
    assert!(stream.is_complete().unwrap());
    let counts = sim.counts();
    for never in [Entry::cuStreamQuery, Entry::cuStreamSynchronize, Entry::cuCtxSynchronize] {
        assert_eq!(counts.of(never), 0);
    }
}

#[test]
fn h3_waiting_does_not_wait_for_what_others_queue_meanwhile() {
    let (sim, _context, stream) = start();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let pause = sim.pause_at(Entry::cuEventSynchronize, 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| stream.synchronize());
        assert!(pause.wait_reached(SOON));
        let later = sim.gate(stream.cu_stream()).unwrap();
        gate.open();
        pause.release();
        waiter.join().unwrap().unwrap();
        later.open();
    });
}

#[test]
fn h3_events_order_streams() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    let event = a.record_event().unwrap();
    assert!(!event.is_complete().unwrap());
    b.wait(&event).unwrap();
    assert!(!b.is_complete().unwrap());
    gate.open();
    b.synchronize().unwrap();
    assert!(event.is_complete().unwrap());
    let fresh = context.new_event().unwrap();
    assert!(fresh.is_complete().unwrap());
    fresh.synchronize().unwrap();
    b.wait(&fresh).unwrap();
}

#[test]
fn h3_fork_and_join() {
    let (sim, _context, stream) = start();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let fork = stream.fork().unwrap();
    assert!(!fork.is_complete().unwrap());
    gate.open();
    fork.synchronize().unwrap();
    let gate = sim.gate(fork.cu_stream()).unwrap();
    stream.join(&fork).unwrap();
    assert!(!stream.is_complete().unwrap());
    gate.open();
    stream.synchronize().unwrap();
    stream.join(&stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn h1_streams_wait_across_contexts_and_record_in_their_own() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    a.set_label("left");
    b.set_label("right");
    let event = b.record_event().unwrap();
    let before = sim.counts().total();
    let text = event.record(&a).unwrap_err().to_string();
    assert!(text.contains("left") && text.contains(&zero.to_string()), "{text}");
    assert!(text.contains(&one.to_string()), "{text}");
    assert_eq!(sim.counts().total(), before, "refused without a driver call");
    // Another driver's events mean nothing.
    let elsewhere = common::sim(1);
    let stranger = context(&elsewhere, 0).new_stream().unwrap();
    assert!(matches!(stranger.wait(&event), Err(StreamError::OtherContext { .. })));
    assert!(matches!(stranger.join(&b), Err(StreamError::OtherContext { .. })));
    let gate = sim.gate(b.cu_stream()).unwrap();
    event.record(&b).unwrap();
    a.wait(&event).unwrap();
    assert!(!a.is_complete().unwrap());
    gate.open();
    a.synchronize().unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    b.launch_host_function(|| ()).unwrap();
    a.join(&b).unwrap();
    assert!(!a.is_complete().unwrap());
    gate.open();
    a.synchronize().unwrap();
}

#[test]
fn h3_timed_events_measure_and_plain_ones_have_no_clock() {
    let (sim, context, stream) = start();
    let start = stream.record_timed_event().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let end = stream.record_timed_event().unwrap();
    assert!(matches!(start.elapsed_time(&end), Err(StreamError::NotReady { .. })));
    std::thread::sleep(Duration::from_millis(5));
    gate.open();
    assert!(start.elapsed(&end).unwrap() >= Duration::from_millis(4));
    assert!(start.elapsed_time(&end).unwrap() >= 4.0);
    let unrecorded = context.new_timed_event().unwrap();
    assert!(matches!(start.elapsed_time(&unrecorded), Err(StreamError::NotReady { .. })));
}

/// A driver on which every stream that is asked says that it captures.
fn capturing(sim: &Simulator) -> Driver {
    unsafe fn is_capturing(_: State, _: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult {
        // SAFETY: callers pass a valid out-pointer.
        unsafe { *status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE };
        CUresult::CUDA_SUCCESS
    }
    let driver = sim.driver();
    let table = Box::leak(Box::new(Table { cuStreamIsCapturing: is_capturing, ..*driver.table() }));
    // SAFETY: the same state under a table that differs in one function, which does not use it.
    unsafe { Driver::from_parts(table, driver.state()) }
}

#[test]
fn h3_a_capture_that_somebody_else_began_is_not_disturbed() {
    let sim = sim(1);
    let context = Device::new(capturing(&sim), 0).unwrap().primary_context().unwrap();
    let (owned, lent) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    // SAFETY: `lent` keeps the stream alive.
    let foreign = unsafe { Stream::borrow_raw(lent.cu_stream(), &context) }.unwrap();
    foreign.set_label("theirs");
    let event = context.new_event().unwrap();
    let before = sim.counts();
    let refused = [
        foreign.synchronize(),
        foreign.is_complete().map(drop),
        foreign.wait(&event),
        foreign.fork().map(drop),
        owned.join(&foreign),
        foreign.join(&owned),
    ];
    for result in refused {
        match result {
            Err(StreamError::Capturing { stream }) => assert!(stream.contains("theirs"), "{stream}"),
            other => panic!("{other:?}"),
        }
    }
    let calls = sim.counts().since(&before);
    // These would have become part of the capture, or ended it.
    for entry in
        [Entry::cuEventRecord, Entry::cuStreamWaitEvent, Entry::cuEventQuery, Entry::cuEventSynchronize]
    {
        assert_eq!(calls.of(entry), 0, "{calls:?}");
    }
    owned.synchronize().unwrap();
}

#[test]
fn host_functions_run_in_order_and_may_call_nothing() {
    let (sim, context, stream) = start();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let count = Arc::new(AtomicU32::new(0));
    for i in 0..5 {
        let count = count.clone();
        let run = move || {
            assert!(in_host_function());
            assert_eq!(count.swap(i + 1, Ordering::Relaxed), i);
        };
        stream.launch_host_function(run).unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
    let (sender, receiver) = mpsc::channel();
    let inside = (stream.clone(), context.clone());
    stream
        .launch_host_function(move || {
            let (stream, context) = inside;
            sender.send((stream.synchronize(), context.new_stream().map(drop))).unwrap();
        })
        .unwrap();
    let before = sim.counts().total();
    gate.open();
    let (sync, new) = receiver.recv_timeout(SOON).unwrap();
    assert!(matches!(sync, Err(StreamError::InHostFunction { .. })));
    assert!(matches!(new, Err(StreamError::InHostFunction { .. })));
    assert_eq!(sim.counts().total(), before, "refused without a driver call");
    stream.synchronize().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 5);
    assert!(!in_host_function());
    assert_eq!(context.stats().host_function_panics, 0);
}

#[test]
fn a_panic_in_a_host_function_is_caught_and_counted() {
    let (_sim, context, stream) = start();
    let witness = Arc::new(());
    let held = witness.clone();
    stream
        .launch_host_function(move || {
            let _held = held;
            std::panic::resume_unwind(Box::new("planned"));
        })
        .unwrap();
    let after = Arc::new(AtomicU32::new(0));
    let seen = after.clone();
    stream.launch_host_function(move || seen.store(1, Ordering::Relaxed)).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(after.load(Ordering::Relaxed), 1);
    assert_eq!(context.stats().host_function_panics, 1);
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
fn a_refused_host_function_is_dropped() {
    let (sim, _context, stream) = start();
    let witness = Arc::new(());
    let held = witness.clone();
    sim.fail(Entry::cuLaunchHostFunc, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(stream.launch_host_function(move || drop(held)).is_err());
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
fn handles_dropped_inside_a_host_function_are_destroyed_elsewhere() {
    let (sim, context, stream) = start();
    let (inner, event) = (context.new_stream().unwrap(), context.new_event().unwrap());
    stream.launch_host_function(move || drop((inner, event))).unwrap();
    stream.synchronize().unwrap();
    assert!(drain_background(SOON));
    assert_eq!(sim.counts().of(Entry::cuStreamDestroy), 1);
    assert_eq!(context.stats().failed_destroys, 0);
    assert!(context.take_errors().is_empty(), "{:?}", context.take_errors());
}
