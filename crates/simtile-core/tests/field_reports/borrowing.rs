//! Area G: streams and memory of others.

use super::*;

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

/// A function keeps no stream: it goes where each launch says, also into a capture.
#[test]
fn fr_g5_a_launch_goes_to_the_stream_that_it_names() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&a, 64).unwrap();
    launch(&a, &kernel, &x, &mut y).unwrap();
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    // Warm on one stream, launched on another: it does not stand behind the first one's gate.
    launch(&b, &kernel, &x, &mut y).unwrap();
    b.synchronize().unwrap();
    gate.open();
    let c = context.new_stream().unwrap();
    let capture = c.begin_capture().unwrap();
    let args = LaunchArgs::new().arg(64u32).arg(1.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: both buffers have 64 elements.
    unsafe { capture.submit(&c).launch(&kernel, LaunchConfig::for_num_elems(64), args) }.unwrap();
    let graph = capture.finish().unwrap();
    assert_eq!(graph.nodes().unwrap(), 1);
    assert_eq!(y.to_vec(&b).unwrap(), [2.0; 64], "captured, not run");
    let exec = graph.instantiate().unwrap();
    b.submit().graph(&exec).unwrap();
    assert_eq!(y.to_vec(&a).unwrap(), [3.0; 64]);
    // A capture of nothing says so.
    let nothing = c.begin_capture().unwrap().finish().unwrap();
    assert_eq!(nothing.nodes().unwrap(), 0);
    clean(&sim);
}

/// Both default streams are held at a gate while everything else runs to its end.
#[test]
fn fr_g6_nothing_runs_on_a_default_stream_unasked() {
    let (sim, context, a, b) = checked();
    let driver = sim.driver();
    set_current(driver, context.cu_ctx());
    // Loading waits for everything, default streams too.
    let kernel = saxpy(&context);
    let one = simtile_core::Device::new(driver, 1).unwrap().primary_context().unwrap();
    let gates = [sim.gate(CUstream::LEGACY).unwrap(), sim.gate(CUstream::PER_THREAD).unwrap()];
    let mut x = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::<f32>::zeroed(&b, 64).unwrap();
    x.fill(&b, 2.0).unwrap();
    launch(&a, &kernel, &x, &mut y).unwrap();
    let pool = MemPool::builder(&context).build().unwrap();
    let mut z = pool.zeroed::<f32>(&b, 64).unwrap();
    z.copy_from(&b, &y).unwrap();
    let mut pinned = PinnedHostBuffer::<f32>::zeroed(&context, 64).unwrap();
    pinned.copy_from(&a, &z).unwrap();
    assert_eq!(pinned.read().unwrap()[..], [2.0; 64]);
    let wide = DeviceBuffer::from_slice(&a, &[1.5f64; 40]).unwrap();
    assert_eq!(wide.to_vec(&b).unwrap(), [1.5; 40]);
    let far = one.new_stream().unwrap();
    let mut there = DeviceBuffer::<f32>::zeroed(&far, 64).unwrap();
    there.copy_from(&far, &y).unwrap();
    assert_eq!(there.to_vec(&far).unwrap(), [2.0; 64]);
    drop((x, y, z, pool, there));
    assert!(context.drain(SOON).is_complete());
    gates.iter().for_each(|gate| gate.open());
    clean(&sim);
}
