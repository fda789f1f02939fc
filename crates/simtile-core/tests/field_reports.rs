//! Public bug reports of other runtimes, each with the right behaviour (areas B to H and K). The names are the reports'; those that are
//! not here are beside the feature that they are about.

mod common;

use common::*;
use simtile_core::{
    Context, ContextError, DeviceAllocation, DeviceBuffer, Function, LaunchArgs, LaunchError, MemPool,
    MemoryError, PinnedHostBuffer, Policy, Stream, StreamError,
};
use simtile_driver::sys::{CUdeviceptr, CUresult, CUstream, CUstream_flags};
use simtile_driver::{Entry, call};
use simtile_sim::{Checks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const SOON: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(20);

/// A simulator with the race checker on, a context and two streams.
fn checked() -> (Simulator, Arc<Context>, Arc<Stream>, Arc<Stream>) {
    let sim = Simulator::builder().devices(2).checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    (sim, context, a, b)
}

fn clean(sim: &Simulator) {
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

fn saxpy(context: &Arc<Context>) -> Function {
    context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap()
}

fn launch(
    stream: &Arc<Stream>,
    kernel: &Function,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result<(), LaunchError> {
    let n = x.len() as u32;
    // SAFETY: both buffers have so many elements.
    unsafe {
        stream.launch(
            kernel,
            LaunchConfig::for_num_elems(n),
            LaunchArgs::new().arg(n).arg(1.0f32).arg(x).arg(y),
        )
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn fr_b1_memory_is_freed_after_its_last_use_on_another_stream() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&b, 64).unwrap();
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    launch(&b, &kernel, &x, &mut y).unwrap();
    let before = sim.counts();
    drop(x);
    // Memory of the same size, written at once on the stream that the other came from.
    let z = DeviceBuffer::from_slice(&a, &[9.0f32; 64]).unwrap();
    a.synchronize().unwrap();
    gate.open();
    assert_eq!(y.to_vec(&b).unwrap(), [1.0; 64]);
    assert_eq!(z.to_vec(&a).unwrap(), [9.0; 64]);
    assert_eq!(sim.counts().since(&before).of(Entry::cuCtxSynchronize), 0);
    clean(&sim);
}

#[test]
fn fr_b2_every_kind_of_memory_is_given_back_the_way_it_came() {
    // With a pool, without pools, pinned, managed, mapped, foreign: the driver refuses the wrong call, which would be counted.
    for pools in [true, false] {
        let (sim, context, a, _b) = checked();
        if !pools {
            sim.mask(&[Entry::cuMemAllocFromPoolAsync]);
        }
        let user = context.new_mem_pool().unwrap();
        for i in 0..200usize {
            let n = 16 + i % 7 * 100;
            match i % 6 {
                0 => drop(DeviceBuffer::<u32>::zeroed(&a, n).unwrap()),
                1 => drop(PinnedHostBuffer::<u32>::zeroed(&context, n).unwrap()),
                2 => drop(simtile_core::ManagedBuffer::<u32>::zeroed(&context, n).unwrap()),
                3 if pools => drop(user.zeroed::<u8>(&a, n).unwrap()),
                // Between wrappers and back.
                4 => {
                    let raw = DeviceBuffer::<u32>::zeroed(&a, n).unwrap().into_raw().unwrap();
                    let typed = raw.into_typed::<f32>().unwrap();
                    drop(typed.cast_chunks::<[u32; 2]>().unwrap());
                }
                _ => {
                    let mut grown = simtile_core::GrowableBuffer::<u8>::new(&context, 1 << 20).unwrap();
                    grown.resize(&a, n).unwrap();
                }
            }
        }
        a.synchronize().unwrap();
        assert!(context.drain(SOON).is_complete());
        assert!(simtile_core::drain_background(SOON));
        context.trim().unwrap();
        let stats = context.stats();
        assert_eq!(
            (stats.live_bytes, stats.failed_frees, stats.pinned_bytes, stats.mapped_bytes),
            (0, 0, 0, 0),
            "{stats:?}"
        );
        assert!(context.take_errors().is_empty());
        clean(&sim);
    }
}

#[test]
fn fr_b3_memory_belongs_to_the_streams_context_whatever_is_current() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let stream = one.new_stream().unwrap();
    set_current(sim.driver(), zero.cu_ctx());
    let pool = one.new_mem_pool().unwrap();
    let buffers = [
        DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap(),
        DeviceBuffer::from_slice(&stream, &[1; 10]).unwrap(),
        // SAFETY: never read.
        unsafe { DeviceBuffer::uninit(&stream, 10) }.unwrap(),
        pool.zeroed(&stream, 10).unwrap(),
    ];
    for buffer in buffers {
        let mut ordinal = 7i32;
        let what = simtile_driver::sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        let (driver, address) = (sim.driver(), buffer.cu_deviceptr());
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuPointerGetAttribute((&raw mut ordinal).cast(), what, address)) }.unwrap();
        assert_eq!(ordinal, 1);
        assert_eq!(buffer.context().ordinal(), 1);
        drop(buffer);
        assert_eq!(current(sim.driver()), zero.cu_ctx());
    }
    assert_eq!(one.stats().live_allocations, 0);
}

#[test]
fn fr_b4_drops_find_their_context_on_any_thread() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let stream = zero.new_stream().unwrap();
    let [a, b, c] = [0u32; 3].map(|_| DeviceBuffer::<u32>::zeroed(&stream, 100).unwrap());
    on_fresh_thread(|| {
        drop(a);
    });
    on_fresh_thread(|| {
        set_current(sim.driver(), one.cu_ctx());
        drop(b);
        assert_eq!(current(sim.driver()), one.cu_ctx());
    });
    // Inside a host function no call may be made: later, elsewhere.
    stream.launch_host_function(move || drop(c)).unwrap();
    stream.synchronize().unwrap();
    assert!(simtile_core::drain_background(SOON));
    until(|| zero.stats().live_allocations == 0);
    let stats = zero.stats();
    assert_eq!((stats.failed_frees, stats.leaked_bytes), (0, 0));
}

#[test]
fn fr_b6_handles_go_in_any_order() {
    for order in 0..24usize {
        let (sim, context, stream, _b) = checked();
        drop(_b);
        let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 100]).unwrap();
        let event = stream.record_event().unwrap();
        let mut left: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(buffer), Box::new(stream), Box::new(event), Box::new(context)];
        let mut order = order;
        for n in (1..=4).rev() {
            drop(left.remove(order % n));
            order /= n;
        }
        assert!(simtile_core::drain_background(SOON));
        let counts = sim.counts();
        assert_eq!(counts.of(Entry::cuDevicePrimaryCtxRetain), counts.of(Entry::cuDevicePrimaryCtxRelease));
        assert_eq!(counts.of(Entry::cuMemAllocFromPoolAsync), counts.of(Entry::cuMemFreeAsync));
        clean(&sim);
    }
}

#[test]
fn fr_b10_b11_a_copy_and_a_view_on_a_side_stream_keep_the_memory() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let buffer = DeviceBuffer::from_slice(&a, &[1.0f32; 10]).unwrap();
    let address = buffer.cu_deviceptr();
    let mut out = DeviceBuffer::<f32>::zeroed(&b, 5).unwrap();
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    {
        let view = buffer.slice(5..10).unwrap();
        let args = LaunchArgs::new().arg(5u32).arg(1.0f32).arg(&view).arg(&mut out);
        // SAFETY: view and buffer have five elements.
        unsafe { b.launch(&kernel, LaunchConfig::for_num_elems(5), args) }.unwrap();
    }
    drop(buffer);
    let other = DeviceBuffer::from_slice(&a, &[7.0f32; 10]).unwrap();
    assert_ne!(other.cu_deviceptr(), address, "reused before the view's last use");
    a.synchronize().unwrap();
    gate.open();
    assert_eq!(out.to_vec(&b).unwrap(), [1.0; 5]);
    clean(&sim);
}

#[test]
fn fr_b12_a_thread_that_drops_neither_waits_nor_frees_too_early() {
    let (sim, context, a, b) = checked();
    let streams = [a, b, context.new_stream().unwrap(), context.new_stream().unwrap()];
    let mut buffers: Vec<_> =
        (0..40).map(|_| DeviceBuffer::<u32>::zeroed(&streams[0], 256).unwrap()).collect();
    streams[0].synchronize().unwrap();
    let gates: Vec<_> = streams.iter().map(|stream| sim.gate(stream.cu_stream()).unwrap()).collect();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(&streams[i % 4], i as u32).unwrap();
    }
    on_fresh_thread(move || {
        let start = Instant::now();
        drop(buffers);
        assert!(start.elapsed() < Duration::from_secs(5));
    });
    gates.iter().for_each(|gate| gate.open());
    assert!(context.drain(SOON).is_complete());
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(context.stats().live_allocations, 0);
    clean(&sim);
}

#[test]
fn fr_b15_per_thread_streams_of_two_threads_do_not_share_memory() {
    let (sim, context, _a, _b) = checked();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&_a, 1000).unwrap();
    _a.synchronize().unwrap();
    let (freed, asked) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let own = context.per_thread_default_stream();
            buffer.fill(&own, 1).unwrap();
            drop(buffer);
            freed.wait();
            asked.wait();
        });
        scope.spawn(|| {
            freed.wait();
            let own = context.per_thread_default_stream();
            let other = DeviceBuffer::from_slice(&own, &[5u32; 1000]).unwrap();
            assert_eq!(other.to_vec(&own).unwrap(), [5; 1000]);
            asked.wait();
        });
    });
    clean(&sim);
}

#[test]
fn fr_b17_streams_of_threads_that_have_ended_leave_nothing_behind() {
    let (sim, context, a, _b) = checked();
    std::thread::scope(|scope| {
        for i in 0..32u32 {
            let context = &context;
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                let buffer = DeviceBuffer::from_slice(&stream, &[i; 500]).unwrap();
                assert_eq!(buffer.to_vec(&stream).unwrap(), [i; 500]);
            });
        }
    });
    let all: Vec<_> = (0..32u32).map(|i| DeviceBuffer::from_slice(&a, &[i; 500]).unwrap()).collect();
    for (i, buffer) in all.iter().enumerate() {
        assert_eq!(buffer.to_vec(&a).unwrap(), [i as u32; 500]);
    }
    drop(all);
    assert!(context.drain(SOON).is_complete());
    assert_eq!((context.stats().live_bytes, context.stats().failed_destroys), (0, 0));
    clean(&sim);
}

#[test]
fn fr_c1_two_readers_are_both_followed_and_do_not_follow_each_other() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let mut x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let (mut y, mut z) =
        (DeviceBuffer::<f32>::zeroed(&a, 64).unwrap(), DeviceBuffer::<f32>::zeroed(&b, 64).unwrap());
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    launch(&a, &kernel, &x, &mut y).unwrap();
    launch(&b, &kernel, &x, &mut z).unwrap();
    b.synchronize().unwrap();
    assert!(!a.is_complete().unwrap());
    let c = context.new_stream().unwrap();
    x.fill(&c, 5.0).unwrap();
    assert!(!c.is_complete().unwrap(), "the writer forgot the first reader");
    drop(x);
    gate.open();
    assert_eq!((y.to_vec(&a).unwrap(), z.to_vec(&b).unwrap()), (vec![1.0; 64], vec![1.0; 64]));
    clean(&sim);
}

#[test]
fn fr_c2_a_join_waits_for_every_stream() {
    let (sim, context, _a, _b) = checked();
    let last = context.new_stream().unwrap();
    let streams: Vec<_> = (0..4).map(|_| context.new_stream().unwrap()).collect();
    let gates: Vec<_> = streams.iter().map(|stream| sim.gate(stream.cu_stream()).unwrap()).collect();
    for stream in &streams {
        stream.launch_host_function(|| ()).unwrap();
        last.join(stream).unwrap();
    }
    gates[1..].iter().for_each(|gate| gate.open());
    std::thread::sleep(A_WHILE);
    assert!(!last.is_complete().unwrap());
    gates[0].open();
    last.synchronize().unwrap();
}

#[test]
fn fr_c4_without_order_memory_still_lives_and_order_comes_back() {
    let (sim, context, a, b) = checked();
    let mut buffers: Vec<_> = (0..10).map(|_| DeviceBuffer::<u32>::zeroed(&a, 100).unwrap()).collect();
    for buffer in &mut buffers {
        buffer.fill(&b, 1).unwrap();
    }
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    for buffer in &buffers {
        // SAFETY: nothing else uses the buffers.
        unsafe { b.submit().unchecked() }.read(buffer).order_only().unwrap();
    }
    drop(buffers.split_off(5));
    gate.open();
    for buffer in &mut buffers {
        buffer.fill(&a, 2).unwrap();
        assert_eq!(buffer.to_vec(&b).unwrap(), [2; 100]);
    }
    assert!(context.drain(SOON).is_complete());
    clean(&sim);
}

#[test]
fn fr_c5_one_stream_records_next_to_nothing() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&a, 64).unwrap();
    a.synchronize().unwrap();
    let before = sim.counts();
    for _ in 0..960 {
        launch(&a, &kernel, &x, &mut y).unwrap();
    }
    let calls = sim.counts().since(&before);
    // A checkpoint every 32 launches, and no wait.
    assert!(calls.of(Entry::cuEventRecord) <= 960 / 32 + 2, "{calls:?}");
    assert_eq!(calls.of(Entry::cuStreamWaitEvent), 0);
    // A second stream that comes late still follows.
    let gate = sim.gate(a.cu_stream()).unwrap();
    launch(&a, &kernel, &x, &mut y).unwrap();
    let read = b.submit().read(&y).awaited().order_only().unwrap();
    assert!(!read.is_complete().unwrap());
    gate.open();
    read.wait().unwrap();
    clean(&sim);
}

#[test]
fn fr_c6_a_reader_elsewhere_follows_and_waits_for_nobody_else() {
    let (sim, context, a, b) = checked();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 100).unwrap();
    a.synchronize().unwrap();
    let unrelated = context.new_stream().unwrap();
    let (gate, other) = (sim.gate(a.cu_stream()).unwrap(), sim.gate(unrelated.cu_stream()).unwrap());
    unrelated.launch_host_function(|| ()).unwrap();
    on_fresh_thread(|| buffer.fill(&a, 3).unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| buffer.to_vec(&b).unwrap());
        std::thread::sleep(A_WHILE);
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [3; 100]);
    });
    assert!(!unrelated.is_complete().unwrap());
    other.open();
    unrelated.synchronize().unwrap();
    clean(&sim);
}

#[test]
fn fr_c7_a_call_on_the_raw_handle_comes_after_what_was_submitted() {
    let (sim, context, a, _b) = checked();
    let driver = sim.driver();
    set_current(driver, context.cu_ctx());
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 100).unwrap();
    for round in 0..100u32 {
        buffer.fill(&a, round).unwrap();
        // Nothing of ours waits in a queue of our own: what was submitted is with the driver.
        // SAFETY: the memory is alive, and the stream is the one that used it last.
        unsafe { call!(driver, cuMemsetD32Async(buffer.cu_deviceptr(), round + 1, 50, a.cu_stream())) }
            .unwrap();
        let values = buffer.to_vec(&a).unwrap();
        assert_eq!((values[0], values[99]), (round + 1, round));
    }
    clean(&sim);
}

#[test]
fn fr_c8_events_stay_in_their_context() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    let (mut x, mut y) =
        (DeviceBuffer::<u32>::zeroed(&a, 10).unwrap(), DeviceBuffer::<u32>::zeroed(&b, 10).unwrap());
    for i in 0..200u32 {
        set_current(sim.driver(), if i % 2 == 0 { zero.cu_ctx() } else { one.cu_ctx() });
        x.fill(&a, i).unwrap();
        y.fill(&b, i).unwrap();
        a.record_event().unwrap().synchronize().unwrap();
        b.record_event().unwrap().synchronize().unwrap();
    }
    // A record that fails once is made again: nothing is taken for finished.
    let gate = sim.gate(a.cu_stream()).unwrap();
    x.fill(&a, 7).unwrap();
    sim.fail(Entry::cuEventRecord, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let other = zero.new_stream().unwrap();
    let read = other.submit().read(&x).awaited().order_only();
    gate.open();
    if let Ok(read) = read {
        read.wait().unwrap();
    }
    assert_eq!(x.to_vec(&a).unwrap(), [7; 10]);
    assert_eq!((zero.stats().failed_frees, one.stats().failed_frees), (0, 0));
}

#[test]
fn fr_c11_what_a_failed_call_may_have_queued_is_kept() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&b, 64).unwrap();
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    launch(&b, &kernel, &x, &mut y).unwrap();
    sim.fail(Entry::cuLaunchKernel, 1, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert!(launch(&b, &kernel, &x, &mut y).is_err());
    let address = x.cu_deviceptr();
    drop(x);
    let other = DeviceBuffer::from_slice(&a, &[2.0f32; 64]).unwrap();
    assert_ne!(other.cu_deviceptr(), address);
    gate.open();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(context.stats().quarantined, 0);
    clean(&sim);
}

#[test]
fn fr_d5_d6_sizes_that_overflow_and_nothing_at_all() {
    let (sim, context, a, b) = checked();
    let before = sim.counts();
    assert!(matches!(DeviceBuffer::<u64>::zeroed(&a, usize::MAX / 2), Err(MemoryError::SizeOverflow { .. })));
    assert!(matches!(
        DeviceBuffer::<u64>::zeroed(&a, usize::MAX / 8 + 1),
        Err(MemoryError::SizeOverflow { .. })
    ));
    assert!(matches!(
        PinnedHostBuffer::<u64>::zeroed(&context, usize::MAX / 8 + 1),
        Err(MemoryError::SizeOverflow { .. })
    ));
    assert_eq!(sim.counts().since(&before).total(), 0);
    let kernel = saxpy(&context);
    for n in [0usize, 1] {
        let before = sim.counts();
        let x = DeviceBuffer::from_slice(&a, &vec![1.0f32; n]).unwrap();
        let mut y = DeviceBuffer::<f32>::zeroed(&b, n).unwrap();
        assert!(y.slice(0..0).unwrap().to_vec(&a).unwrap().is_empty());
        assert!(y.slice(n..n).unwrap().is_empty());
        y.copy_from(&b, &x).unwrap();
        y.copy_range_from(&a, n, &x, 0..0).unwrap();
        y.fill(&a, 2.0).unwrap();
        y.zero(&b).unwrap();
        launch(&a, &kernel, &x, &mut y).unwrap();
        assert_eq!(y.to_vec(&b).unwrap(), vec![1.0; n]);
        drop((x, y));
        let calls = sim.counts().since(&before);
        assert_eq!(calls.of(Entry::cuMemAllocFromPoolAsync), 2 * n as u64);
        assert_eq!(calls.of(Entry::cuLaunchKernel), n as u64);
    }
    clean(&sim);
}

#[test]
fn fr_d7_rows_of_one_buffer_do_not_wait_for_each_other() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 100]).unwrap();
    let mut rows = DeviceBuffer::<f32>::zeroed(&a, 200).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    let (mut first, mut second) = rows.split_at_mut(100).unwrap();
    for (stream, row) in [(&a, &mut first), (&b, &mut second)] {
        let args = LaunchArgs::new().arg(100u32).arg(2.0f32).arg(&x).arg(row);
        // SAFETY: buffer and row have 100 elements.
        unsafe { stream.launch(&kernel, LaunchConfig::for_num_elems(100), args) }.unwrap();
    }
    b.synchronize().unwrap();
    assert!(!a.is_complete().unwrap());
    gate.open();
    assert_eq!(rows.to_vec(&b).unwrap(), [2.0; 200]);
    assert!(matches!(rows.slice(150..201), Err(MemoryError::OutOfRange { .. })));
    clean(&sim);
}

#[test]
fn fr_d10_a_variable_outlives_its_module_handle_and_checks_sizes() {
    let (_sim, context, a, b) = checked();
    let text = ".version 7.0 .target sm_70 .address_size 64\n.visible .const .u32 c = 1;\n.visible .entry k() { ret; }";
    let module = context.load_module_from_ptx_src(text).unwrap();
    let symbol = module.symbol("c").unwrap();
    drop(module);
    symbol.write(&a, 0, &[7u32]).unwrap();
    assert!(matches!(symbol.write(&a, 0, &[7u8; 5]), Err(MemoryError::OutOfRange { end: 5, len: 4, .. })));
    assert_eq!(symbol.read::<u32>(&b, 0, 1).unwrap(), [7]);
    assert_eq!(context.stats().retained_modules, 0);
}

#[test]
fn fr_e1_e3_an_upload_is_what_the_slice_was() {
    for n in [16usize, 10_000, 1 << 20] {
        let (sim, _context, a, _b) = checked();
        let mut source = vec![1.0f32; n];
        let mut buffer = DeviceBuffer::<f32>::zeroed(&a, n).unwrap();
        a.synchronize().unwrap();
        let gate = if n <= 10_000 { Some(sim.gate(a.cu_stream()).unwrap()) } else { None };
        buffer.copy_from_slice(&a, &source).unwrap();
        source[n - 1] = 2.0;
        drop(source);
        if let Some(gate) = gate {
            gate.open();
        }
        assert_eq!(buffer.range_to_vec(&a, n - 1..n).unwrap(), [1.0]);
        clean(&sim);
    }
}

#[test]
fn fr_e2_e5_two_uploads_in_flight_and_staging_that_fails() {
    let (sim, context, a, _b) = checked();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 1000).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.copy_from_slice(&a, &[1; 1000]).unwrap();
    buffer.copy_from_slice(&a, &[2; 1000]).unwrap();
    gate.open();
    assert_eq!(buffer.to_vec(&a).unwrap(), [2; 1000]);
    // Staging cannot be had: an error, and the buffer is as it was.
    let fresh = common::context(&sim, 1);
    let stream = fresh.new_stream().unwrap();
    let mut other = DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap();
    sim.fail(Entry::cuMemHostAlloc, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(other.copy_from_slice(&stream, &[1; 10]).is_err());
    assert_eq!(other.to_vec(&stream).unwrap(), [0; 10]);
    drop(buffer);
    assert!(context.drain(SOON).is_complete());
    clean(&sim);
}

#[test]
fn fr_e8_a_host_vector_that_cannot_be_had_is_an_error() {
    let (_sim, _context, a, _b) = checked();
    // Elements without bytes: as many as one likes.
    let nothing = DeviceBuffer::<()>::zeroed(&a, usize::MAX).unwrap();
    assert_eq!(nothing.to_vec(&a).unwrap().len(), usize::MAX);
    let text =
        ".version 7.0 .target sm_70 .address_size 64\n.visible .global .u32 c;\n.visible .entry k() { ret; }";
    let symbol = a.context().load_module_from_ptx_src(text).unwrap().symbol("c").unwrap();
    assert!(matches!(symbol.read::<u64>(&a, 0, usize::MAX / 4), Err(MemoryError::SizeOverflow { .. })));
}

#[test]
fn fr_e10_small_read_backs_wait_for_their_own_stream_alone() {
    let (sim, context, a, _b) = checked();
    let streams: Vec<_> = (0..8).map(|_| context.new_stream().unwrap()).collect();
    let buffers: Vec<_> =
        streams.iter().map(|stream| DeviceBuffer::from_slice(stream, &[1u32]).unwrap()).collect();
    let gate = sim.gate(a.cu_stream()).unwrap();
    a.launch_host_function(|| ()).unwrap();
    for _ in 0..10 {
        for (stream, buffer) in streams.iter().zip(&buffers) {
            assert_eq!(buffer.to_vec(stream).unwrap(), [1]);
        }
    }
    assert!(!a.is_complete().unwrap());
    gate.open();
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuCtxSynchronize) + counts.of(Entry::cuStreamSynchronize), 0);
    clean(&sim);
}

#[test]
fn fr_f1_devices_end_in_any_order() {
    for order in 0..6usize {
        let sim = sim(2);
        let (zero, one) = (context(&sim, 0), context(&sim, 1));
        let stream = zero.new_stream().unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 10]).unwrap();
        let module = zero.load_module_from_ptx_src(SAXPY).unwrap();
        let function = module.load_function("saxpy").unwrap();
        let held: Box<dyn std::any::Any> = Box::new((buffer, stream, module, function));
        let mut left: Vec<Box<dyn std::any::Any>> = vec![Box::new(zero), Box::new(one), held];
        let mut order = order;
        for n in (1..=3).rev() {
            drop(left.remove(order % n));
            order /= n;
        }
        assert!(simtile_core::drain_background(SOON));
        let counts = sim.counts();
        assert_eq!(counts.of(Entry::cuDevicePrimaryCtxRetain), counts.of(Entry::cuDevicePrimaryCtxRelease));
        clean(&sim);
    }
}

#[test]
fn fr_f4_a_copy_between_devices_is_ordered_on_both_and_records_where_it_belongs() {
    let (sim, zero, a, _b) = checked();
    let one = context(&sim, 1);
    let far = one.new_stream().unwrap();
    let mut source = DeviceBuffer::<u32>::zeroed(&a, 1000).unwrap();
    let mut target = DeviceBuffer::<u32>::zeroed(&far, 1000).unwrap();
    for i in 0..50u32 {
        let gate = sim.gate(a.cu_stream()).unwrap();
        source.fill(&a, i).unwrap();
        target.copy_from(&far, &source).unwrap();
        let read = far.submit().read(&target).awaited().order_only().unwrap();
        assert!(!read.is_complete().unwrap());
        gate.open();
        assert_eq!(target.to_vec(&far).unwrap(), [i; 1000]);
    }
    assert_eq!((zero.stats().lost_errors, one.stats().lost_errors), (0, 0));
    assert!(zero.take_errors().is_empty() && one.take_errors().is_empty());
    clean(&sim);
}

#[test]
fn fr_f12_an_argument_from_another_device_is_refused_by_name() {
    let (sim, _zero, a, _b) = checked();
    let one = context(&sim, 1);
    let far = one.new_stream().unwrap();
    let kernel = saxpy(&one);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 8]).unwrap().with_label("elsewhere");
    let mut y = DeviceBuffer::<f32>::zeroed(&far, 8).unwrap();
    let error = launch(&far, &kernel, &x, &mut y).unwrap_err();
    assert!(
        matches!(error, LaunchError::OtherContext { .. }) && error.to_string().contains("elsewhere"),
        "{error}"
    );
    // Pinned memory has one address everywhere.
    let pinned = PinnedHostBuffer::from_slice(&_zero, &[2.0f32; 8]).unwrap();
    let args = LaunchArgs::new().arg(8u32).arg(1.0f32).arg(&pinned).arg(&mut y);
    // SAFETY: both have eight elements.
    unsafe { far.launch(&kernel, LaunchConfig::for_num_elems(8), args) }.unwrap();
    assert_eq!(y.to_vec(&far).unwrap(), [2.0; 8]);
    one.enable_peer_access(&_zero).unwrap();
    launch(&far, &kernel, &x, &mut y).unwrap();
    assert_eq!(y.to_vec(&far).unwrap(), [3.0; 8]);
    clean(&sim);
}

/// A stream that somebody else made, with a token that tells when it is let go.
fn foreign_stream(context: &Arc<Context>) -> (CUstream, Arc<AtomicUsize>) {
    let driver = context.driver();
    set_current(driver, context.cu_ctx());
    let mut raw = CUstream::NULL;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)) }.unwrap();
    (raw, Arc::new(AtomicUsize::new(0)))
}

struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn fr_g1_g4_a_borrowed_stream_is_not_destroyed_and_holds_its_owner() {
    let (sim, context, a, _b) = checked();
    let (raw, released) = foreign_stream(&context);
    let before = sim.counts().of(Entry::cuStreamDestroy);
    // SAFETY: the stream lives to the end of the test.
    let stream =
        unsafe { Stream::borrow_with_owner(raw, &context, Arc::new(Token(released.clone()))) }.unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 100).unwrap();
    buffer.fill(&stream, 3).unwrap();
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop(stream);
    assert_eq!(buffer.to_vec(&a).unwrap(), [3; 100]);
    until(|| released.load(Ordering::SeqCst) == 1);
    assert_eq!(sim.counts().of(Entry::cuStreamDestroy), before);
    // SAFETY: null is refused.
    assert!(matches!(unsafe { Stream::borrow_raw(CUstream::NULL, &context) }, Err(StreamError::RawNull)));
    clean(&sim);
}

#[test]
fn fr_g2_only_owned_streams_are_destroyed() {
    let (sim, context, _a, _b) = checked();
    let before = sim.counts().of(Entry::cuStreamDestroy);
    for _ in 0..100 {
        drop(context.new_stream().unwrap());
    }
    let (raw, _) = foreign_stream(&context);
    for _ in 0..10 {
        // SAFETY: the stream lives to the end of the test.
        drop(unsafe { Stream::borrow_raw(raw, &context) }.unwrap());
        drop(context.legacy_default_stream());
        drop(context.per_thread_default_stream());
    }
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(sim.counts().of(Entry::cuStreamDestroy) - before, 100);
}

#[test]
fn fr_g3_an_export_orders_its_consumer_and_the_producers_stream_may_go() {
    let (sim, context, a, consumer) = checked();
    let mut buffer = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 2).unwrap();
    let exported = buffer.export().unwrap();
    drop(a);
    // Whoever is not made to follow, does not.
    assert!(consumer.is_complete().unwrap());
    exported.follow_on(&consumer).unwrap();
    assert!(!consumer.is_complete().unwrap());
    gate.open();
    consumer.synchronize().unwrap();
    // SAFETY: nobody else used it.
    let back = unsafe { exported.take_back(&consumer) }.unwrap();
    assert_eq!(back.to_vec(&context.new_stream().unwrap()).unwrap(), [2; 100]);
    clean(&sim);
}

#[test]
fn fr_g7_work_of_another_library_is_ordered_by_fork_and_join() {
    let (sim, context, a, _b) = checked();
    let (raw, _) = foreign_stream(&context);
    // SAFETY: the stream lives to the end of the test.
    let library = unsafe { Stream::borrow_raw(raw, &context) }.unwrap();
    let driver = sim.driver();
    let mut buffer = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 2).unwrap();
    library.join(&a).unwrap();
    // SAFETY: the memory is alive, and the stream follows what used it.
    unsafe { call!(driver, cuMemsetD32Async(buffer.cu_deviceptr(), 5, 50, raw)) }.unwrap();
    let before = sim.counts();
    a.join(&library).unwrap();
    let calls = sim.counts().since(&before);
    assert!(calls.of(Entry::cuEventRecord) <= 1 && calls.of(Entry::cuStreamWaitEvent) == 1, "{calls:?}");
    gate.open();
    let values = buffer.to_vec(&a).unwrap();
    assert_eq!((values[0], values[99]), (5, 2));
    clean(&sim);
}

#[test]
fn fr_h1_h2_h10_a_lost_context_makes_no_calls_and_no_panics() {
    let sim = sim(2);
    let (context, other) = (context(&sim, 0), context(&sim, 1));
    let stream = context.new_stream().unwrap();
    let buffers: Vec<_> = (0..100).map(|_| DeviceBuffer::<u32>::zeroed(&stream, 10).unwrap()).collect();
    let event = stream.record_event().unwrap();
    sim.lose_at(None, 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let first = stream.synchronize().unwrap_err();
    assert!(
        first.driver_error().is_some_and(|e| e.code() == CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        "{first:?}"
    );
    let before = sim.counts();
    for buffer in &buffers {
        assert!(matches!(buffer.to_vec(&stream), Err(MemoryError::ContextLost { .. })));
    }
    drop(buffers);
    drop((event, stream));
    let calls = sim.counts().since(&before);
    assert_eq!(calls.total(), 0, "{calls:?}");
    assert!(context.lost().is_some());
    drop((context, other));
}

#[test]
fn fr_h8_a_call_that_fails_is_told() {
    // Every call of a small program failed once: it sees an error, or the failure is kept where drops leave theirs.
    let program = |sim: &Simulator| -> Result<bool, simtile_core::Error> {
        let context = simtile_core::Context::new(sim.driver(), 0)?;
        let (a, b) = (context.new_stream()?, context.new_stream()?);
        let pool = MemPool::builder(&context).build()?;
        let mut x = pool.from_slice(&a, &[1u32; 100])?;
        x.fill(&b, 2)?;
        let right = x.to_vec(&a)? == [2; 100];
        drop((x, pool, a, b));
        simtile_core::drain_background(SOON);
        let kept = context.take_errors();
        Ok(right && kept.is_empty())
    };
    let clean = sim(1);
    assert!(program(&clean).unwrap());
    let total = clean.counts().total();
    let mut told = 0;
    for nth in 1..=total {
        let sim = sim(1);
        sim.fail_any(nth, CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        match program(&sim) {
            Err(_) => told += 1,
            Ok(false) => told += 1,
            // A question whose answer made no difference.
            Ok(true) => {}
        }
        simtile_core::drain_background(SOON);
    }
    assert!(told * 2 > total, "{told} of {total} failures were told");
}

#[test]
fn fr_h9_a_free_that_reports_something_else_is_told_apart() {
    let (sim, context, a, _b) = checked();
    let buffer = DeviceBuffer::<u32>::zeroed(&a, 10).unwrap().with_label("kept");
    sim.fail(Entry::cuMemFreeAsync, 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    drop(buffer);
    assert!(simtile_core::drain_background(SOON));
    let errors = context.take_errors();
    assert!(errors.iter().any(|error| error.during.contains("kept")), "{errors:?}");
    assert_eq!(context.stats().failed_frees, 1);
    // Nobody else hears of it.
    assert_eq!(DeviceBuffer::from_slice(&a, &[1u32]).unwrap().to_vec(&a).unwrap(), [1]);
}

#[test]
fn fr_h11_memory_that_runs_out_leaves_nothing_behind() {
    for failing in 1..=5u64 {
        let (sim, context, a, _b) = checked();
        context.set_oom_wait(Duration::ZERO);
        let made = |context: &Arc<Context>| -> Result<Vec<DeviceBuffer<u32>>, MemoryError> {
            let _ = context;
            (0..5).map(|i| DeviceBuffer::from_slice(&a, &[i; 100])).collect()
        };
        // Each failure counts once for the attempt and once for the one after giving back.
        for nth in [failing, failing, failing] {
            sim.fail(Entry::cuMemAllocFromPoolAsync, nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let first = made(&context);
        if let Err(error) = &first {
            assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error:?}");
            assert_eq!(context.stats().live_allocations, 0);
        }
        let again = made(&context).unwrap();
        assert_eq!(again[4].to_vec(&a).unwrap(), [4; 100]);
        clean(&sim);
    }
}

/// A foreign allocation that counts its drops, without memory to free.
struct Lent(Arc<Context>, CUdeviceptr, usize, Token);

// SAFETY: the tests keep the memory alive.
unsafe impl DeviceAllocation for Lent {
    fn device_ptr(&self) -> CUdeviceptr {
        self.1
    }

    fn len_bytes(&self) -> usize {
        let _ = &self.3;
        self.2
    }

    fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

#[test]
fn fr_d9_a_foreign_owner_is_let_go_once_and_after_the_gate() {
    let (sim, context, a, _b) = checked();
    let driver = sim.driver();
    set_current(driver, context.cu_ctx());
    let mut address = 0;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuMemAlloc(&mut address, 1000)) }.unwrap();
    let released = Arc::new(AtomicUsize::new(0));
    let lent = Lent(context.clone(), address, 1000, Token(released.clone()));
    let mut buffer = DeviceBuffer::<f32>::from_foreign(lent).unwrap();
    assert_eq!(buffer.len(), 250);
    // Ten rows of ten that lie 25 apart fit; 26 apart they do not.
    assert!(buffer.view().slice(0..9 * 25 + 10).is_ok());
    assert!(matches!(buffer.view().slice(0..9 * 27 + 10), Err(MemoryError::OutOfRange { .. })));
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 1.0).unwrap();
    drop(buffer);
    std::thread::sleep(A_WHILE);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    gate.open();
    until(|| released.load(Ordering::SeqCst) == 1);
    assert!(context.drain(SOON).is_complete());
    assert_eq!(released.load(Ordering::SeqCst), 1);
    clean(&sim);
}

#[test]
fn fr_c9_a_read_on_a_default_stream_sees_what_other_streams_wrote() {
    let (sim, context, a, _b) = checked();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 100).unwrap();
    let legacy = context.legacy_default_stream();
    for i in 0..20 {
        buffer.fill(&a, i).unwrap();
        assert_eq!(buffer.to_vec(&legacy).unwrap(), [i; 100]);
    }
    let error = context.new_mem_pool().unwrap().grant(context.device()).unwrap_err();
    assert!(matches!(error, ContextError::NoPeerAccess { .. }));
    a.set_policy(Policy::Order);
    clean(&sim);
}
