//! Area C: who follows whom.

use super::*;

#[test]
fn fr_c1_two_readers_are_both_followed_and_do_not_follow_each_other() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let mut z = DeviceBuffer::<f32>::zeroed(&b, 64).unwrap();
    let (mut x, mut y) = idle_pair(&a, &b);
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
    let (x, mut y) = idle_pair(&a, &a);
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
    let (x, mut y) = idle_pair(&a, &b);
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

/// What another stream follows is the launch itself, not what was there before it.
#[test]
fn fr_c3_the_event_that_others_follow_is_behind_the_launch() {
    let (sim, context, a, b) = checked();
    let kernel = saxpy(&context);
    let x = DeviceBuffer::from_slice(&a, &[2.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&a, &[1.0f32; 64]).unwrap();
    // Sealed before: an event of this stream exists that the launch is not behind.
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    launch(&a, &kernel, &x, &mut y).unwrap();
    // Access is a part of the call that queues; no handle of it can be dropped early.
    let mut copy = DeviceBuffer::<f32>::zeroed(&b, 64).unwrap();
    copy.copy_from(&b, &y).unwrap();
    assert!(!b.is_complete().unwrap());
    gate.open();
    assert_eq!(copy.to_vec(&b).unwrap(), [3.0; 64]);
    clean(&sim);
}
