//! H4: drops never wait, never panic, and lose nothing without counting it.

mod common;

use common::*;
use simtile_core::{Context, Device, DeviceBuffer, MemoryError, Stream, StreamError, drain_background};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::Simulator;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

/// Runs something that must not wait for a gate, and says so instead of hanging.
fn at_once<T: Send>(what: &str, run: impl FnOnce() -> T + Send) -> T {
    let start = Instant::now();
    let result = run();
    assert!(start.elapsed() < Duration::from_secs(5), "{what} waited");
    result
}

#[test]
fn h4_drops_with_work_pending_do_not_wait() {
    for devices in [1, 2] {
        let sim = sim(devices);
        let context = Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
        let stream = context.new_stream().unwrap();
        let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap();
        let event = stream.record_event().unwrap();
        let timed = stream.record_timed_event().unwrap();
        let gate = sim.gate(stream.cu_stream()).unwrap();
        buffer.fill(&stream, 4).unwrap();
        at_once("a drop", move || {
            drop(buffer);
            drop(event);
            drop(stream);
            drop(timed);
            drop(context);
        });
        assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 0, "the work still runs");
        gate.open();
        assert!(drain_background(SOON));
        assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 1);
        assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    }
}

#[test]
fn h4_handles_may_go_in_any_order() {
    /// All orders of `n` things.
    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![vec![]];
        }
        let mut all = Vec::new();
        for order in orders(n - 1) {
            for place in 0..n {
                let mut order = order.clone();
                order.insert(place, n - 1);
                all.push(order);
            }
        }
        all
    }
    let sim = sim(2);
    let zero_kept = context(&sim, 0);
    for order in orders(5) {
        let (zero, one) = (context(&sim, 0), context(&sim, 1));
        let stream = zero.new_stream().unwrap();
        let event = stream.record_event().unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 100]).unwrap();
        let mut things: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(zero)),
            Some(Box::new(one)),
            Some(Box::new(stream)),
            Some(Box::new(event)),
            Some(Box::new(buffer)),
        ];
        for index in &order {
            drop(things[*index].take());
        }
    }
    assert!(drain_background(SOON));
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuDevicePrimaryCtxRetain), counts.of(Entry::cuDevicePrimaryCtxRelease) + 1);
    assert_eq!(counts.of(Entry::cuMemAllocFromPoolAsync), counts.of(Entry::cuMemFreeAsync));
    assert_eq!(zero_kept.stats().failed_frees, 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn h4_drops_work_on_threads_with_no_or_another_context() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    for current_context in [None, Some(&one)] {
        let stream = zero.new_stream().unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 100]).unwrap();
        let event = stream.record_event().unwrap();
        on_fresh_thread(|| {
            if let Some(other) = current_context {
                set_current(sim.driver(), other.cu_ctx());
            }
            drop((buffer, event, stream));
            if let Some(other) = current_context {
                assert_eq!(current(sim.driver()), other.cu_ctx());
            }
        });
    }
    assert_eq!(zero.stats().failed_frees + zero.stats().failed_destroys, 0);
    assert!(zero.take_errors().is_empty());
}

#[test]
fn h4_a_failed_free_is_counted_kept_and_told_to_nobody_else() {
    let (sim, context, stream) = start();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 100]).unwrap().with_label("lost one");
    let address = buffer.cu_deviceptr();
    sim.fail(Entry::cuMemFreeAsync, 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    drop(buffer);
    let stats = context.stats();
    assert_eq!((stats.failed_frees, stats.leaked_bytes), (1, 100));
    assert_eq!(stats.live_bytes, 0);
    // Unrelated work goes on, and never gets that memory.
    for _ in 0..10 {
        let other = DeviceBuffer::from_slice(&stream, &[2u8; 100]).unwrap();
        assert_ne!(other.cu_deviceptr(), address);
        assert_eq!(other.to_vec(&stream).unwrap(), [2; 100]);
    }
    let errors = context.take_errors();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].during.contains("drop of buffer") && errors[0].during.contains("lost one"));
    assert_eq!(errors[0].source.entry(), Entry::cuMemFreeAsync);
    assert!(context.take_errors().is_empty());
}

#[test]
fn h4_failed_destroys_are_counted() {
    let (sim, context, _stream) = start();
    for entry in [Entry::cuStreamDestroy, Entry::cuEventDestroy] {
        let (stream, event) = (context.new_stream().unwrap(), context.new_event().unwrap());
        let before = context.stats().failed_destroys;
        sim.fail(entry, 1, CUresult::CUDA_ERROR_INVALID_HANDLE);
        drop((event, stream));
        sim.clear_rules();
        assert_eq!(context.stats().failed_destroys, before + 1);
        let errors = context.take_errors();
        assert_eq!(errors.iter().filter(|e| e.source.entry() == entry).count(), 1, "{errors:?}");
    }
}

/// One of everything.
fn handles(context: &Arc<Context>) -> (Arc<Stream>, DeviceBuffer<u8>, simtile_core::Event) {
    let stream = context.new_stream().unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 100]).unwrap();
    let event = stream.record_event().unwrap();
    (stream, buffer, event)
}

#[test]
fn h4_after_shutdown_drops_are_silent_and_calls_say_so() {
    let sim = sim(1);
    let context = context(&sim, 0);
    let (stream, buffer, event) = handles(&context);
    sim.shut_down();
    assert!(matches!(stream.synchronize(), Err(StreamError::Deinitialized { .. })));
    assert!(matches!(buffer.to_vec(&stream), Err(MemoryError::Deinitialized { .. })));
    let calls = sim.counts().total();
    assert!(matches!(context.new_stream(), Err(StreamError::Deinitialized { .. })));
    drop((stream, buffer, event));
    assert_eq!(sim.counts().total(), calls, "known to be gone: no further call");
    let stats = context.stats();
    assert_eq!((stats.failed_frees, stats.failed_destroys), (0, 0));
    assert!(context.take_errors().is_empty());
    drop(context);
    assert_eq!(sim.counts().total(), calls);
}

#[test]
fn h4_drops_that_are_the_first_to_see_a_shutdown_are_silent() {
    let sim = sim(1);
    let context = context(&sim, 0);
    let things = handles(&context);
    sim.shut_down();
    drop(things);
    let stats = context.stats();
    assert_eq!((stats.failed_frees, stats.failed_destroys), (0, 0));
    assert!(context.take_errors().is_empty());
}

#[test]
fn h4_after_the_context_is_lost_no_call_is_made_for_it() {
    let sim = sim(1);
    let context = Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let (stream, buffer, event) = handles(&context);
    sim.lose_at(Some(Entry::cuStreamCreateWithPriority), 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let first = context.new_stream().unwrap_err();
    assert!(first.loss().is_some_and(|loss| loss.work().is_empty()), "{first:?}");
    assert_eq!(context.loss().map(|e| e.code()), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    let calls = sim.counts().total();
    for _ in 0..100 {
        match stream.synchronize() {
            Err(StreamError::ContextLost { source, .. }) => {
                assert_eq!(source.entry(), Entry::cuStreamCreateWithPriority);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(buffer.to_vec(&stream), Err(MemoryError::ContextLost { .. })));
    drop((stream, buffer, event));
    assert_eq!(context.stats().leaked_bytes, 100);
    assert!(context.take_errors().is_empty(), "the loss was told once");
    drop(context);
    assert!(drain_background(SOON));
    assert_eq!(sim.counts().total(), calls);
}

#[test]
fn h4_out_of_memory_loses_no_context() {
    let (sim, context, stream) = start();
    // A failure alone is answered by giving back what has finished, and by waiting for the rest.
    sim.fail(Entry::cuMemAllocFromPoolAsync, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
    for nth in 1..=3 {
        sim.fail(Entry::cuMemAllocFromPoolAsync, nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    assert!(matches!(
        DeviceBuffer::<u8>::zeroed(&stream, 100),
        Err(MemoryError::OutOfMemory { bytes: 100, .. })
    ));
    assert!(context.loss().is_none());
    sim.clear_rules();
    DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
}

#[test]
fn h4_a_last_context_dropped_inside_a_host_function_ends_elsewhere() {
    let sim = sim(1);
    let driver_context = context(&sim, 0);
    let stream = driver_context.new_stream().unwrap();
    let created = Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let buffer = DeviceBuffer::<u8>::zeroed(&created.new_stream().unwrap(), 100).unwrap();
    stream.launch_host_function(move || drop((created, buffer))).unwrap();
    stream.synchronize().unwrap();
    assert!(drain_background(SOON));
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuCtxDestroy), 1);
    assert_eq!(counts.of(Entry::cuMemFreeAsync), 1);
}

#[test]
fn h4_a_context_that_cannot_be_given_back_is_counted() {
    let sim: Simulator = sim(1);
    let context = Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let before = Context::contexts_kept();
    sim.fail(Entry::cuCtxDestroy, 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(context);
    assert_eq!(Context::contexts_kept(), before + 1);
}
