//! Area F: several devices.

use super::*;

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

/// Somebody resets the primary context under the runtime, and the driver gives the new one the old one's handle.
#[test]
fn fr_f11_what_a_reset_took_is_lost_and_a_new_context_works() {
    let sim = Simulator::builder().quiet().build();
    sim.recycle_handles(true);
    let old = context(&sim, 0);
    let stream = old.new_stream().unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 16]).unwrap();
    let event = stream.record_event().unwrap();
    stream.synchronize().unwrap();
    let (handle, device) = (old.cu_ctx(), old.device());
    // SAFETY: the device is the simulator's; this is what is tested.
    unsafe { call!(sim.driver(), cuDevicePrimaryCtxReset(device.cu_device())) }.unwrap();
    assert!(buffer.to_vec(&stream).is_err());
    assert!(old.loss().is_some(), "the first use finds out");
    let before = sim.counts().total();
    assert!(matches!(buffer.to_vec(&stream), Err(MemoryError::ContextLost { .. })));
    let new = context(&sim, 0);
    assert_eq!(new.cu_ctx(), handle, "the driver gave the same value");
    assert!(*new != *old, "and it is another context");
    let own = new.new_stream().unwrap();
    let fresh = DeviceBuffer::from_slice(&own, &[2u32; 16]).unwrap();
    let frees = sim.counts().of(Entry::cuMemFreeAsync);
    drop((buffer, event, stream, old));
    assert!(simtile_core::drain_background(SOON));
    assert_eq!(
        sim.counts().of(Entry::cuMemFreeAsync),
        frees,
        "nothing of the old one is freed in the new one"
    );
    assert!(sim.counts().total() > before);
    assert_eq!(fresh.to_vec(&own).unwrap(), [2; 16]);
}
