//! A1, A2, A3, L3, L4: tracked submissions.

mod common;

use common::*;
use simtile_core::{
    AtomicScope, Context, DeviceBuffer, Function, LaunchArgs, LaunchError, MemoryError, Policy, Stream,
    StreamError,
};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::Simulator;
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::time::Duration;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const SOON: Duration = Duration::from_secs(10);

fn saxpy(context: &Arc<Context>) -> Function {
    context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap()
}

fn config(n: usize) -> LaunchConfig {
    LaunchConfig::for_num_elems(n as u32)
}

/// A simulator without checks of declarations, to see what is declared wrongly.
fn rig() -> (Simulator, Arc<Context>, Arc<Stream>, Function) {
    let (sim, context, stream) = start();
    let function = saxpy(&context);
    (sim, context, stream, function)
}

#[test]
fn a_launch_names_what_it_touches_and_is_followed() {
    let (sim, context, a, function) = rig();
    let (b, c) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 100]).unwrap();
    let mut y = DeviceBuffer::from_slice(&a, &[2.0f32; 100]).unwrap();
    // Else an event for the uploads would be recorded behind the gate.
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    let args = LaunchArgs::new().arg(100u32).arg(3.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: both buffers have 100 elements.
    let done = unsafe { a.submit().launch(&function, config(100), args) }.unwrap();
    assert!(!done.is_complete().unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| y.to_vec(&b).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        // Readers of `x` wait for nobody.
        assert_eq!(x.range_to_vec(&c, 0..3).unwrap(), [1.0; 3]);
        gate.open();
        assert_eq!(reader.join().unwrap(), [5.0; 100]);
    });
    done.wait().unwrap();
    assert!(done.is_complete().unwrap());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_launch_of_four_buffers_is_one_driver_call() {
    let (sim, _context, stream, function) = rig();
    let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&stream, &[2.0f32; 64]).unwrap();
    let (p, q) = (DeviceBuffer::from_slice(&stream, &[0u8; 8]).unwrap(), x.view());
    let before = sim.counts();
    for _ in 0..320 {
        let args = LaunchArgs::new().arg(64u32).arg(1.0f32).view(&q).buffer_mut(&mut y);
        // SAFETY: both buffers have 64 elements.
        unsafe { stream.submit().read(&p).read(&q).launch(&function, config(64), args) }.unwrap();
    }
    let calls = sim.counts().since(&before);
    assert_eq!(calls.of(Entry::cuLaunchKernel), 320);
    assert!(calls.total() <= 320 + 10, "{calls:?}");
    assert_eq!(calls.of(Entry::cuCtxGetCurrent), 0);
}

#[test]
fn what_the_kernel_touches_is_compared_with_what_was_named() {
    let sim = Simulator::builder().quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    let function = saxpy(&context);
    let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 64]).unwrap();
    let y = DeviceBuffer::from_slice(&stream, &[2.0f32; 64]).unwrap().with_label("written");
    let args = LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&x).buffer(&y);
    // SAFETY: both buffers have 64 elements. That `y` is written and named as read is what is tested.
    unsafe { stream.submit().launch(&function, config(64), args) }.unwrap();
    stream.synchronize().unwrap();
    let reports = sim.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(format!("{:?}", reports[0]).contains("written"), "{reports:?}");
}

/// A plain launch says less: what is among its arguments is used as it was given, and what its kernel reaches by raw addresses is the
/// caller's business.
#[test]
fn a_plain_launch_is_checked_for_the_memory_among_its_arguments() {
    let sim = Simulator::builder().quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    let function = saxpy(&context);
    let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&stream, &[2.0f32; 64]).unwrap().with_label("written");
    let address = y.cu_deviceptr();
    // SAFETY: both buffers have 64 elements, and only this thread uses them, on one stream.
    let launch = |args: LaunchArgs<'_>| unsafe { stream.launch(&function, config(64), args) }.unwrap();
    launch(LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&x).buffer_mut(&mut y));
    launch(LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&x).arg(address));
    launch(LaunchArgs::new().arg(64u32).arg(1.0f32).arg(x.cu_deviceptr()).arg(address));
    stream.synchronize().unwrap();
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    launch(LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&x).buffer(&y));
    stream.synchronize().unwrap();
    let reports = sim.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let text = reports[0].to_string();
    assert!(text.contains("writes byte 0 of 'written', which its launch declared as read"), "{text}");
    // Reports call the stream as errors do.
    let named = format!("on {stream} ");
    assert!(text.contains(&named), "{named}: {text}");
    // A launch that is refused leaves nothing behind for the next one, which is somebody else's.
    sim.fail(Entry::cuLaunchKernel, 1, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    let args = LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&x).buffer(&y);
    // SAFETY: it is refused.
    assert!(unsafe { stream.launch(&function, config(64), args) }.is_err());
    launch(LaunchArgs::new().arg(64u32).arg(1.0f32).arg(x.cu_deviceptr()).arg(address));
    stream.synchronize().unwrap();
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_submission_that_is_dropped_or_forgotten_keeps_what_it_touches() {
    for forget in [false, true] {
        let (sim, context, stream, function) = rig();
        let other = context.new_stream().unwrap();
        let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 5000]).unwrap();
        let mut y = DeviceBuffer::from_slice(&stream, &[2.0f32; 5000]).unwrap();
        stream.synchronize().unwrap();
        let gate = sim.gate(stream.cu_stream()).unwrap();
        let args = LaunchArgs::new().arg(5000u32).arg(3.0f32).buffer(&x).buffer_mut(&mut y);
        // SAFETY: both buffers have 5000 elements.
        let done = unsafe { stream.submit().launch(&function, config(5000), args) }.unwrap();
        if forget {
            std::mem::forget(done);
        } else {
            drop(done);
        }
        let address = x.cu_deviceptr();
        drop(x);
        for _ in 0..10 {
            let mut new = DeviceBuffer::<f32>::zeroed(&other, 5000).unwrap();
            new.fill(&other, 9.0).unwrap();
            assert_ne!(new.cu_deviceptr(), address, "memory in use was handed out");
        }
        gate.open();
        assert_eq!(y.to_vec(&other).unwrap(), [5.0; 5000]);
        assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    }
}

#[test]
fn safe_work_returns_submissions_too() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let mut x = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap();
    let mut y = DeviceBuffer::<u32>::zeroed(&a, 100).unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    a.submit().fill(&mut x, 7).unwrap();
    let copied = b.submit().copy(&x, &mut y).unwrap();
    let set = b.submit().memset(y.slice_mut(0..1).unwrap(), 0xff).unwrap();
    assert!(!copied.is_complete().unwrap() && !set.is_complete().unwrap());
    // Nothing named: ordered with nothing, and over.
    let none = b.submit().fill(x.slice_mut(3..3).unwrap(), 1).unwrap();
    assert!(none.is_complete().unwrap());
    gate.open();
    set.wait().unwrap();
    assert!(copied.is_complete().unwrap());
    let found = y.to_vec(&a).unwrap();
    assert!(found[0] == u32::MAX && found[1..].iter().all(|&v| v == 7));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a2_reject_names_buffer_streams_and_modes() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    a.set_label("left");
    b.set_label("right");
    b.set_policy(Policy::Reject);
    let mut x = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap().with_label("weights");
    let gate = sim.gate(a.cu_stream()).unwrap();
    x.fill(&a, 2).unwrap();
    match x.fill(&b, 3).unwrap_err() {
        MemoryError::Stream(StreamError::Conflict { stream, what, host: false }) => {
            assert!(stream.contains("right"), "{stream}");
            for part in ["write", "weights", "left"] {
                assert!(what.contains(part), "{what}");
            }
        }
        other => panic!("{other:?}"),
    }
    gate.open();
    a.synchronize().unwrap();
    // Never for work that has finished.
    x.fill(&b, 3).unwrap();
    assert_eq!(x.to_vec(&b).unwrap(), [3; 100]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a2_inserted_waits_are_counted_by_pair_and_reported() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    a.set_label("producer");
    b.set_label("consumer");
    b.set_policy(Policy::OrderAndReport);
    let mut x = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap().with_label("queue");
    for i in 0..3 {
        let gate = sim.gate(a.cu_stream()).unwrap();
        x.fill(&a, i).unwrap();
        let mut y = DeviceBuffer::<u32>::zeroed(&b, 100).unwrap();
        y.copy_from(&b, &x).unwrap();
        gate.open();
        assert_eq!(y.to_vec(&b).unwrap(), [i; 100]);
    }
    let waits = context.inserted_waits();
    let pair =
        waits.iter().find(|w| w.leader.contains("producer") && w.follower.contains("consumer")).unwrap();
    assert_eq!(pair.count, 3);
    let reports = context.take_wait_reports();
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(
        reports[0].contains("consumer") && reports[0].contains("producer") && reports[0].contains("queue")
    );
    assert!(context.take_wait_reports().is_empty());
}

#[test]
fn a2_unchecked_orders_nothing_and_still_keeps_memory() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let mut x = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    a.submit().read(&x).order_only().unwrap();
    // SAFETY: the other work touches nothing.
    let done = unsafe { b.submit().unchecked() }.fill(&mut x, 4).unwrap();
    done.wait().unwrap();
    drop(x);
    gate.open();
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a3_accumulations_of_one_class_do_not_wait_for_each_other() {
    let (sim, context, a) = start();
    let (b, c) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let x = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    a.submit().accumulate(&x, AtomicScope::Device).order_only().unwrap();
    let same = b.submit().accumulate(&x, AtomicScope::Device).awaited().order_only().unwrap();
    same.wait().unwrap();
    let read = c.submit().read(&x).awaited().order_only().unwrap();
    assert!(!read.is_complete().unwrap(), "a read follows the accumulations");
    gate.open();
    read.wait().unwrap();
}

#[test]
fn one_submission_may_not_touch_bytes_twice() {
    let (sim, _context, stream, function) = rig();
    let mut y = DeviceBuffer::from_slice(&stream, &[2.0f32; 64]).unwrap().with_label("twice");
    let address = y.cu_deviceptr();
    let before = sim.counts().of(Entry::cuLaunchKernel);
    let (mut left, right) = y.split_at_mut(40).unwrap();
    let overlap = right.as_view();
    let args = LaunchArgs::new().arg(1u32).arg(1.0f32).view(&overlap).view_mut(&mut left);
    // SAFETY: both have an element.
    unsafe { stream.submit().launch(&function, config(1), args) }.unwrap();
    let args = LaunchArgs::new().arg(1u32).arg(1.0f32).arg(address).buffer_mut(&mut y);
    let y_again = DeviceBuffer::<f32>::zeroed(&stream, 4).unwrap();
    // SAFETY: both have an element; the address is that of the same buffer, in one thread.
    unsafe { stream.submit().read(&y_again).launch(&function, config(1), args) }.unwrap();
    assert_eq!(sim.counts().of(Entry::cuLaunchKernel), before + 2);
}

#[test]
fn arguments_of_a_submission_are_checked() {
    let (sim, _context, stream, function) = rig();
    let before = sim.counts();
    // SAFETY: refused before the driver is asked.
    let launch = |args: LaunchArgs<'_>| unsafe { stream.submit().launch(&function, config(1), args) };
    assert!(matches!(
        launch(LaunchArgs::new().arg(0u32)),
        Err(LaunchError::ArgumentCount { expected: 4, actual: 1, .. })
    ));
    assert!(matches!(
        launch(LaunchArgs::new().arg(0u32).arg(1f64).arg(0u64).arg(0u64)),
        Err(LaunchError::ArgumentSize { index: 1, expected: 4, actual: 8, .. })
    ));
    assert_eq!(sim.counts().since(&before).total(), 0);
    // A value in its box is an argument like any other.
    let args = LaunchArgs::new().boxed(Box::new(0u32)).arg(1f32).arg(0u64).boxed(Box::new(0u64));
    launch(args).unwrap().wait().unwrap();
}

#[test]
fn h5_a_module_unloads_after_its_last_launch() {
    let (sim, context, stream, function) = rig();
    let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&stream, &[2.0f32; 64]).unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let args = LaunchArgs::new().arg(64u32).arg(3.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: both buffers have 64 elements.
    unsafe { stream.submit().launch(&function, config(64), args) }.unwrap();
    drop(function);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(sim.counts().of(Entry::cuModuleUnload), 0);
    assert_eq!(context.stats().retained_modules, 1);
    assert!(!context.drain(Duration::from_millis(5)).is_complete());
    gate.open();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(sim.counts().of(Entry::cuModuleUnload), 1);
    assert_eq!(context.stats().retained_modules, 0);
    assert_eq!(y.to_vec(&stream).unwrap(), [5.0; 64]);
}

#[test]
fn a4_memory_goes_out_of_order_and_is_counted_while_it_waits() {
    let (sim, context, a) = start();
    let (b, c) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let gate = sim.gate(a.cu_stream()).unwrap();
    let stuck = DeviceBuffer::from_slice(&a, &[1u8; 4096]).unwrap();
    let mut copy = DeviceBuffer::<u8>::zeroed(&c, 4096).unwrap();
    // Read on two streams: no single one follows all of it.
    copy.copy_from(&b, &stuck).unwrap();
    let read = DeviceBuffer::from_slice(&c, &[1u8; 8192]).unwrap();
    c.submit().read(&read).order_only().unwrap();
    b.submit().read(&stuck).order_only().unwrap();
    c.submit().read(&stuck).order_only().unwrap();
    a.submit().read(&stuck).order_only().unwrap();
    drop(stuck);
    let snapshot = context.snapshot();
    assert_eq!(snapshot.reclaiming_bytes, context.stats().reclaiming_bytes);
    assert_eq!(snapshot.allocations.len(), 2);
    drop((copy, read));
    let waiting = context.stats().reclaiming_bytes;
    gate.open();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(context.stats().reclaiming_bytes, 0, "{waiting} were waiting");
    assert_eq!(sim.counts().of(Entry::cuMemFreeAsync), 3);
    assert_eq!(context.stats().failed_frees, 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a4_out_of_memory_waits_for_what_is_running_and_names_holders() {
    let sim = Simulator::builder().memory(64 << 20).quiet().build();
    let context = context(&sim, 0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let held = DeviceBuffer::<u8>::zeroed(&a, 20 << 20).unwrap().with_label("the cache");
    let gate = sim.gate(a.cu_stream()).unwrap();
    let mut busy = DeviceBuffer::<u8>::zeroed(&a, 30 << 20).unwrap();
    busy.fill(&a, 1).unwrap();
    drop(busy);
    context.set_oom_wait(Duration::from_millis(20));
    assert_eq!(context.oom_wait(), Duration::from_millis(20));
    match DeviceBuffer::<u8>::zeroed(&b, 30 << 20) {
        Err(error @ MemoryError::OutOfMemory { .. }) => {
            let text = error.to_string();
            assert!(text.contains("the cache") && text.contains(&(20 << 20).to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
    context.set_oom_wait(SOON);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| DeviceBuffer::<u8>::zeroed(&b, 30 << 20));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        gate.open();
        waits.join().unwrap().unwrap();
    });
    drop(held);
}

/// A1: forgetting leaks nothing but the values inside: neither stream nor context is kept open.
#[test]
fn a_forgotten_submission_keeps_neither_stream_nor_context_open() {
    let sim = sim(1);
    let context = simtile_core::Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let stream = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let done = stream.submit().fill(&mut buffer, 1).unwrap();
    let marked = stream.submit().awaited().order_only().unwrap();
    assert_eq!((done.stream_id(), marked.stream_id()), (stream.id(), stream.id()));
    std::mem::forget((done.clone(), marked.clone()));
    drop((buffer, stream, context));
    // What is kept still tells, from the context as long as it is there.
    assert!(!done.is_complete().unwrap() && !marked.is_complete().unwrap());
    let waiting = std::thread::spawn({
        let done = done.clone();
        move || done.wait()
    });
    assert_eq!(sim.holdings().contexts, 1, "the work still runs");
    gate.open();
    waiting.join().unwrap().unwrap();
    assert!(simtile_core::drain_background(SOON));
    let held = sim.holdings();
    assert_eq!((held.contexts, held.streams, held.device_bytes), (0, 0, 0));
    // And by itself afterwards.
    for done in [done, marked] {
        assert!(done.is_complete().unwrap());
        done.wait().unwrap();
        assert!(format!("{done:?}").contains("complete"));
    }
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// A2 and permits: a stream of questions has all its room, and a full one answers them.
#[test]
fn questions_take_no_room_in_the_queues() {
    let (sim, _context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    stream.synchronize().unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    for _ in 0..600 {
        assert!(!stream.is_complete().unwrap());
        assert!(!stream.submit().awaited().no_wait().order_only().unwrap().is_complete().unwrap());
    }
    for _ in 0..512 {
        stream.submit().no_wait().fill(&mut buffer, 1).unwrap();
    }
    let full = stream.submit().no_wait().fill(&mut buffer, 1).unwrap_err();
    assert!(full.to_string().contains("in flight"), "{full}");
    assert!(!stream.is_complete().unwrap());
    // Also the forms that may wait for the device do not wait for room.
    let end = stream.submit().awaited().order_only().unwrap();
    gate.open();
    end.wait().unwrap();
    assert!(stream.is_complete().unwrap());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// F3: who kept a submission beyond the end of a lost context hears of the loss.
#[test]
fn a_submission_of_a_lost_context_that_has_gone_tells_of_the_loss() {
    let sim = sim(1);
    let context = simtile_core::Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let stream = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let done = stream.submit().fill(&mut buffer, 1).unwrap();
    sim.lose_at(None, 1, simtile_driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(stream.synchronize().is_err());
    drop((buffer, stream, context));
    assert!(simtile_core::drain_background(SOON));
    for error in [done.wait().unwrap_err(), done.is_complete().unwrap_err()] {
        assert!(matches!(error, StreamError::ContextLost { .. }), "{error}");
    }
}

/// Whoever held many ends of work at once can give their events back.
#[test]
fn events_of_a_burst_are_given_back_by_a_trim() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let held: Vec<_> = (0..300)
        .map(|value| {
            buffer.fill(&stream, value).unwrap();
            stream.submit().awaited().order_only().unwrap()
        })
        .collect();
    let counts = || (sim.counts().of(Entry::cuEventCreate), sim.counts().of(Entry::cuEventDestroy));
    let (made, destroyed) = counts();
    assert!(made >= 300, "{made}");
    stream.synchronize().unwrap();
    context.trim().unwrap();
    assert!(counts().1 - destroyed < 100, "those that somebody holds are kept");
    drop(held);
    context.trim().unwrap();
    let left = counts().0 - counts().1;
    assert!(left <= 64, "{left} of {made} are left");
    buffer.fill(&stream, 5).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [5; 16]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
