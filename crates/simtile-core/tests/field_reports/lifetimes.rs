//! Area B: what is freed, where and when.

use super::*;

#[test]
fn fr_b1_memory_is_freed_after_its_last_use_on_another_stream() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let (x, mut y) = idle_pair(&a, &b);
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

/// What needs no device asks no driver: a tensor of the host is refused before anything is called, and where no device is the error says so.
#[test]
fn fr_b5_what_needs_no_device_asks_no_driver() {
    let none = Simulator::builder().devices(0).quiet().build();
    let error = simtile_core::Device::new(none.driver(), 0).unwrap_err();
    assert!(error.to_string().contains("device"), "{error}");
    let (sim, context, _, _) = checked();
    let before = sim.counts().total();
    let config = LaunchConfig::for_num_elems(1000);
    assert_eq!(config.threads_per_block(), 256);
    assert_eq!(simtile_core::align_size(10, 4).unwrap(), 12);
    let args = LaunchArgs::new().arg(1u32).arg(2.0f32);
    assert_eq!(args.len(), 2);
    drop(args);
    // SAFETY: there are no bytes.
    let nothing = unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, 0, 0, None) }.unwrap();
    assert!(nothing.is_empty());
    drop(nothing);
    assert_eq!(sim.counts().total(), before);
}

/// Where there are no pools a block is handed out again only after its last use, never between a free and what stands for it.
#[test]
fn fr_b9_a_block_is_published_after_its_last_use() {
    let without = simtile_sim::Lacks::by_names("pools").unwrap();
    let sim = Simulator::builder().without(without).checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut first = DeviceBuffer::<u32>::zeroed(&a, 256).unwrap();
    a.synchronize().unwrap();
    let address = first.cu_deviceptr();
    let gate = sim.gate(a.cu_stream()).unwrap();
    first.fill(&a, 1).unwrap();
    // Whoever drops is stopped in front of every record that it makes.
    let pause = sim.pause_at(Entry::cuEventRecord, 1);
    std::thread::scope(|scope| {
        let dropper = scope.spawn(move || drop(first));
        pause.wait_reached(A_WHILE);
        for _ in 0..3 {
            let other = DeviceBuffer::<u32>::zeroed(&b, 256).unwrap();
            assert_ne!(other.cu_deviceptr(), address, "handed out while it is in use");
        }
        pause.release();
        dropper.join().unwrap();
    });
    let other = DeviceBuffer::<u32>::zeroed(&b, 256).unwrap();
    assert_ne!(other.cu_deviceptr(), address, "handed out while it is in use");
    gate.open();
    a.synchronize().unwrap();
    assert!(context.drain(SOON).is_complete());
    let all: Vec<_> = (0..8).map(|_| DeviceBuffer::<u32>::zeroed(&b, 256).unwrap()).collect();
    assert!(all.iter().any(|buffer| buffer.cu_deviceptr() == address), "the block never comes back");
    clean(&sim);
}

/// The same program where frees wait for the device and where they never do: the same values, and no free is relied on.
#[test]
fn fr_b13_no_free_is_a_barrier() {
    let without = simtile_sim::Lacks::by_names("pools").unwrap();
    let results: Vec<Vec<u32>> = [true, false]
        .into_iter()
        .map(|waits| {
            let sim =
                Simulator::builder().without(without).frees_wait(waits).checks(Checks::ALL).quiet().build();
            let context = context(&sim, 0);
            let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            let mut kept = DeviceBuffer::<u32>::zeroed(&a, 64).unwrap();
            for round in 0..20u32 {
                let mut scratch = DeviceBuffer::<u32>::zeroed(&b, 64 + round as usize % 3).unwrap();
                scratch.fill(&b, round).unwrap();
                kept.view_mut().copy_from(&a, scratch.slice(0..64).unwrap()).unwrap();
                drop(scratch);
                if round % 5 == 4 {
                    context.trim().unwrap();
                }
            }
            let found = kept.to_vec(&b).unwrap();
            drop(kept);
            assert!(context.drain(SOON).is_complete());
            context.trim().unwrap();
            clean(&sim);
            found
        })
        .collect();
    assert_eq!(results, [vec![19; 64], vec![19; 64]]);
}

/// Thousands of buffers on streams of one's own, with no synchronisation of everything: memory does not grow, and nothing stays pending.
#[test]
fn fr_b14_freed_memory_does_not_pile_up() {
    const BYTES: usize = 64 << 10;
    let sim = Simulator::builder().quiet().build();
    let context = context(&sim, 0);
    let streams: Vec<_> = (0..3).map(|_| context.new_stream().unwrap()).collect();
    let free = context.memory_info().unwrap().free;
    let mut least = free;
    for round in 0..1500usize {
        let (stream, other) = (&streams[round % 3], &streams[(round + 1) % 3]);
        let mut buffer = DeviceBuffer::<u8>::zeroed(stream, BYTES).unwrap();
        buffer.slice_mut(0..16).unwrap().fill(stream, 1).unwrap();
        if round % 2 == 0 {
            // Its last use is elsewhere, so that it goes by the background.
            other.submit().read(&buffer).order_only().unwrap();
        }
        drop(buffer);
        if round % 100 == 99 {
            stream.synchronize().unwrap();
            least = least.min(context.memory_info().unwrap().free);
        }
    }
    assert!(context.drain(SOON).is_complete());
    let stats = context.stats();
    assert_eq!((stats.reclaiming_bytes, stats.live_bytes, stats.quarantined), (0, 0, 0));
    // A few at a time are live; all of them would be a hundred megabytes.
    assert!(free - least < 48 << 20, "{} bytes at once", free - least);
}
