//! H1, H2: devices, contexts, and what is current where.

mod common;

use common::*;
use simtile_core::{
    Context, ContextError, ContextLimit, Device, DeviceBuffer, DeviceError, LaunchArgs, StreamError,
    SyncPolicy,
};
use simtile_driver::sys::{CUcontext, CUdevice_attribute};
use simtile_driver::{Entry, call};
use simtile_types::LaunchConfig;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn h1_devices_are_enumerated_without_a_context() {
    let sim = sim(3);
    let devices = Device::all(sim.driver()).unwrap();
    assert_eq!(devices.iter().map(|d| d.ordinal()).collect::<Vec<_>>(), [0, 1, 2]);
    let uuids: HashSet<_> = devices.iter().map(|d| d.uuid().unwrap()).collect();
    assert_eq!(uuids.len(), 3);
    for device in &devices {
        assert!(!device.name().unwrap().is_empty());
        assert!(device.total_memory().unwrap() > 0);
        assert_eq!(device.pci_bus_id().unwrap().matches(':').count(), 2);
        assert!(device.is_simulated());
        let warp = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE).unwrap();
        assert_eq!(warp as u32, device.capabilities().unwrap().warp_size);
    }
    let unique: HashSet<Device> = devices.iter().chain(&devices).copied().collect();
    assert_eq!(unique.len(), 3);
    assert_eq!(sim.counts().of(Entry::cuDevicePrimaryCtxRetain) + sim.counts().of(Entry::cuCtxCreate), 0);
    assert!(current(sim.driver()).is_null());
}

#[test]
fn h1_devices_of_two_drivers_differ() {
    let (a, b) = (sim(1), sim(1));
    assert_ne!(Device::new(a.driver(), 0).unwrap(), Device::new(b.driver(), 0).unwrap());
    assert_eq!(Device::new(a.driver(), 0).unwrap(), Device::new(a.driver(), 0).unwrap());
}

#[test]
fn h1_capabilities_are_asked_once_and_failures_are_not_kept() {
    let sim = sim(1);
    let device = Device::new(sim.driver(), 0).unwrap();
    sim.fail(Entry::cuDeviceGetAttribute, 1, simtile_driver::sys::CUresult::CUDA_ERROR_UNKNOWN);
    assert!(device.capabilities().is_err());
    let first = *device.capabilities().unwrap();
    let calls = sim.counts().total();
    assert_eq!(*device.capabilities().unwrap(), first);
    assert_eq!(sim.counts().total(), calls);
    assert!(first.launch_limits.max_threads_per_block >= 1024);
}

#[test]
fn f2_a_wrong_ordinal_names_itself_and_the_count() {
    let sim = sim(2);
    for ordinal in [2, 1 << 31, usize::MAX] {
        match Device::new(sim.driver(), ordinal) {
            Err(DeviceError::NoSuchDevice { ordinal: o, count: 2 }) if o == ordinal => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sim.counts().of(Entry::cuDeviceGet), 0);
}

#[test]
fn h1_contexts_are_equal_by_handle_not_by_device() {
    let sim = sim(1);
    let device = Device::new(sim.driver(), 0).unwrap();
    let primary = device.primary_context().unwrap();
    let again = Context::new(sim.driver(), 0).unwrap();
    let created = device.create_context().unwrap();
    assert_eq!(primary, again);
    assert!(!Arc::ptr_eq(&primary, &again));
    assert_ne!(primary, created);
    assert_eq!(primary.device(), created.device());
    // Handles of equal contexts work together; those of different ones are refused with both names.
    let stream = primary.new_stream().unwrap();
    let event = again.new_event().unwrap();
    event.record(&stream).unwrap();
    let other = created.new_event().unwrap();
    let error = other.record(&stream).unwrap_err();
    assert!(matches!(error, StreamError::OtherContext { .. }));
    let text = error.to_string();
    assert!(text.contains(&primary.to_string()) && text.contains(&created.to_string()), "{text}");
}

#[test]
fn h1_a_recycled_context_handle_is_not_the_old_context() {
    let sim = sim(1);
    sim.recycle_handles(true);
    let device = Device::new(sim.driver(), 0).unwrap();
    let old = device.create_context().unwrap();
    let (handle, id) = (old.cu_ctx(), old.cu_ctx_id());
    drop(old);
    let new = device.create_context().unwrap();
    assert_eq!(new.cu_ctx(), handle, "the simulator recycles");
    assert_ne!(new.cu_ctx_id(), id);
}

#[test]
fn h1_a_borrowed_context_is_not_destroyed_and_holds_its_owner() {
    let sim = sim(2);
    let driver = sim.driver();
    let device = Device::new(driver, 0).unwrap();
    let owner = device.create_context().unwrap();
    let weak = Arc::downgrade(&owner);
    // SAFETY: the owner keeps the context alive.
    let borrowed =
        unsafe { Context::borrow_with_owner(device, owner.cu_ctx(), Arc::new(owner.clone())) }.unwrap();
    assert_eq!(*borrowed, *owner);
    let stream = borrowed.new_stream().unwrap();
    drop(owner);
    assert!(weak.upgrade().is_some());
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3]).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1, 2, 3]);
    drop((buffer, stream));
    assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 0);
    drop(borrowed);
    assert!(weak.upgrade().is_none());
    assert_eq!(sim.counts().of(Entry::cuCtxDestroy), 1, "by its owner");

    // SAFETY: refused before anything uses the handle.
    let null = unsafe { Context::borrow_raw(device, CUcontext::NULL) };
    assert!(matches!(null, Err(ContextError::NullHandle)));
    let other = Device::new(driver, 1).unwrap();
    let context = device.create_context().unwrap();
    // SAFETY: the context is alive.
    let wrong = unsafe { Context::borrow_raw(other, context.cu_ctx()) };
    assert!(matches!(wrong, Err(ContextError::WrongDevice { .. })), "{wrong:?}");
}

type Operation<'a> = (&'static str, Box<dyn Fn() + Send + Sync + 'a>);

/// Every operation of a context's handles, by name.
fn operations(context: &Arc<Context>) -> Vec<Operation<'_>> {
    let stream = context.new_stream().unwrap();
    let other = context.new_stream().unwrap();
    let event = Arc::new(stream.record_event().unwrap());
    let timed = Arc::new(stream.record_timed_event().unwrap());
    let buffer = Arc::new(DeviceBuffer::from_slice(&stream, &[5u32; 100]).unwrap());
    let mut list: Vec<Operation<'_>> = Vec::new();
    macro_rules! op {
        ($name:literal, $($captured:ident),*; $run:expr) => {{
            $(let $captured = $captured.clone();)*
            list.push(($name, Box::new(move || { let _ = &$run; })));
        }};
    }
    op!("limit", ; context.limit(ContextLimit::StackSize).unwrap());
    op!("memory_info", ; context.memory_info().unwrap());
    op!("priorities", ; context.stream_priority_range().unwrap());
    op!("sync_policy", ; context.set_sync_policy(SyncPolicy::Spin).unwrap());
    op!("synchronize_all", ; context.synchronize_all().unwrap());
    op!("trim", ; context.trim().unwrap());
    op!("new_stream", ; context.new_stream().unwrap());
    op!("priority", ; context.new_stream_with_priority(-1).unwrap().priority().unwrap());
    op!("legacy", ; context.legacy_default_stream().synchronize().unwrap());
    op!("per_thread", ; context.per_thread_default_stream().synchronize().unwrap());
    op!("new_event", ; context.new_event().unwrap());
    op!("synchronize", stream; stream.synchronize().unwrap());
    op!("is_complete", stream; stream.is_complete().unwrap());
    op!("wait", stream, event; stream.wait(&event).unwrap());
    op!("record", stream, event; event.record(&stream).unwrap());
    op!("event sync", event; event.synchronize().unwrap());
    op!("event query", event; event.is_complete().unwrap());
    op!("elapsed", timed; timed.elapsed(&timed).unwrap());
    op!("fork", stream; stream.fork().unwrap());
    op!("join", stream, other; stream.join(&other).unwrap());
    op!("host function", stream; stream.launch_host_function(|| ()).unwrap());
    op!("zeroed", stream; DeviceBuffer::<u64>::zeroed(&stream, 100).unwrap());
    op!("from_slice", stream; DeviceBuffer::from_slice(&stream, &[1u8; 70]).unwrap());
    op!("fill", stream; DeviceBuffer::<f64>::zeroed(&stream, 9).unwrap().fill(&stream, 1.5).unwrap());
    op!("to_vec", other, buffer; assert_eq!(buffer.to_vec(&other).unwrap(), [5; 100]));
    op!("copy", other, buffer; {
        let mut copy = DeviceBuffer::<u32>::zeroed(&other, 100).unwrap();
        copy.copy_from(&other, &buffer).unwrap();
        assert_eq!(copy.to_vec(&other).unwrap(), [5; 100]);
    });
    list
}

#[test]
fn h2_restores_current_context() {
    let sim = sim(2);
    let driver = sim.driver();
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    for context in [&zero, &one] {
        let other = if context == &zero { &one } else { &zero };
        for (name, run) in operations(context) {
            on_fresh_thread(|| {
                set_current(driver, other.cu_ctx());
                run();
                assert_eq!(current(driver), other.cu_ctx(), "{name}: another context stays current");
                set_current(driver, CUcontext::NULL);
                run();
                let kept = current(driver);
                assert!(
                    kept.is_null() || kept == context.cu_ctx(),
                    "{name}: a thread without one may keep ours"
                );
                set_current(driver, context.cu_ctx());
                run();
                assert_eq!(current(driver), context.cu_ctx(), "{name}: its own context stays current");
            });
        }
    }
    assert_eq!(zero.stats().failed_restores + one.stats().failed_restores, 0);
    assert!(zero.take_errors().is_empty() && one.take_errors().is_empty());
}

#[test]
fn h2_things_are_made_in_their_own_context_whatever_is_current() {
    let sim = sim(2);
    let driver = sim.driver();
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    set_current(driver, zero.cu_ctx());
    let stream = one.new_stream().unwrap();
    let mut owner = CUcontext::NULL;
    // SAFETY: the stream is alive, the out-pointer is valid for the call.
    unsafe { call!(driver, cuStreamGetCtx(stream.cu_stream(), &mut owner)) }.unwrap();
    assert_eq!(owner, one.cu_ctx());
    // A record works only for events of the stream's own context.
    one.new_event().unwrap().record(&stream).unwrap();
    let free = |context: &Context| context.memory_info().unwrap().free;
    let (before_zero, before_one) = (free(&zero), free(&one));
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 64 << 20).unwrap();
    assert_eq!(free(&zero), before_zero);
    assert!(free(&one) <= before_one - (64 << 20));
    drop(buffer);
    assert_eq!(current(driver), zero.cu_ctx());
}

#[test]
fn h2_a_failed_operation_restores_too() {
    let sim = sim(2);
    let driver = sim.driver();
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    set_current(driver, zero.cu_ctx());
    sim.fail(Entry::cuStreamCreateWithPriority, 1, simtile_driver::sys::CUresult::CUDA_ERROR_UNKNOWN);
    assert!(one.new_stream().is_err());
    assert_eq!(current(driver), zero.cu_ctx());
    // A context that dies while ours is current is no failure of ours.
    let doomed = Device::new(driver, 0).unwrap().create_context().unwrap();
    set_current(driver, doomed.cu_ctx());
    let pause = sim.pause_at(Entry::cuStreamCreateWithPriority, 1);
    let doomed_handle = doomed.cu_ctx();
    std::thread::scope(|scope| {
        let one = &one;
        let worker = scope.spawn(move || {
            set_current(driver, doomed_handle);
            one.new_stream().unwrap();
            current(driver)
        });
        assert!(pause.wait_reached(Duration::from_secs(10)));
        set_current(driver, CUcontext::NULL);
        drop(doomed);
        pause.release();
        assert!(worker.join().unwrap() != doomed_handle);
    });
    assert_eq!(one.stats().failed_restores, 0);
}

#[test]
fn h2_threads_that_share_a_device_do_not_disturb_each_other() {
    let sim = sim(3);
    let driver = sim.driver();
    let contexts: Vec<_> = (0..3).map(|i| context(&sim, i)).collect();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for mine in 0..3 {
            let (contexts, done) = (&contexts, &done);
            scope.spawn(move || {
                set_current(driver, contexts[mine].cu_ctx());
                for round in 0..50 {
                    let other = &contexts[(mine + round) % 3];
                    let stream = other.new_stream().unwrap();
                    let buffer = DeviceBuffer::from_slice(&stream, &[mine as u32; 10]).unwrap();
                    assert_eq!(buffer.to_vec(&stream).unwrap(), [mine as u32; 10]);
                    drop((buffer, stream));
                    assert_eq!(current(driver), contexts[mine].cu_ctx());
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 3);
}

#[test]
fn limits_and_policies_read_back() {
    let sim = sim(1);
    let context = context(&sim, 0);
    let in_force = context.set_stack_size(4096).unwrap();
    assert!(in_force >= 4096);
    assert_eq!(context.stack_size().unwrap(), in_force);
    for policy in [SyncPolicy::Spin, SyncPolicy::Yield, SyncPolicy::BlockingSync, SyncPolicy::Auto] {
        context.set_sync_policy(policy).unwrap();
        assert_eq!(context.sync_policy().unwrap(), Some(policy));
    }
    let info = context.memory_info().unwrap();
    assert!(info.free <= info.total && info.total == context.device().total_memory().unwrap());
}

#[test]
fn h2_a_primary_context_that_others_retain_stays_current() {
    let sim = sim(1);
    let (driver, mut theirs) = (sim.driver(), CUcontext::NULL);
    // SAFETY: the out-pointer is valid for the call; the context is retained until the end of the test.
    unsafe {
        call!(driver, cuInit(0)).unwrap();
        call!(driver, cuDevicePrimaryCtxRetain(&mut theirs, 0)).unwrap();
        call!(driver, cuCtxSetCurrent(theirs)).unwrap();
    }
    let context = context(&sim, 0);
    let buffer = DeviceBuffer::from_slice(&context.new_stream().unwrap(), &[1u8; 100]).unwrap();
    drop((context, buffer));
    assert!(simtile_core::drain_background(Duration::from_secs(10)));
    assert_eq!(sim.counts().of(Entry::cuDevicePrimaryCtxRelease), 1);
    assert_eq!(current(driver), theirs);
}

#[test]
fn primary_contexts_are_retained_and_released_in_pairs() {
    let sim = sim(1);
    for _ in 0..20 {
        let context = context(&sim, 0);
        let stream = context.new_stream().unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 1000]).unwrap();
        drop(context);
        drop(stream);
        drop(buffer);
    }
    assert!(simtile_core::drain_background(Duration::from_secs(10)));
    let counts = sim.counts();
    assert_eq!(counts.of(Entry::cuDevicePrimaryCtxRetain), 20);
    assert_eq!(counts.of(Entry::cuDevicePrimaryCtxRelease), 20);
    assert_eq!(counts.of(Entry::cuDevicePrimaryCtxReset), 0);
    assert_eq!(counts.of(Entry::cuEventCreate), counts.of(Entry::cuEventDestroy));
    assert_eq!(counts.of(Entry::cuStreamCreate), counts.of(Entry::cuStreamDestroy) - 20);
}

#[test]
fn staging_of_a_context_that_lives_on_is_found_again() {
    let sim = sim(1);
    let outside = context(&sim, 0);
    for _ in 0..10 {
        let context = context(&sim, 0);
        let stream = context.new_stream().unwrap();
        DeviceBuffer::from_slice(&stream, &[1u8; 1000]).unwrap().to_vec(&stream).unwrap();
        drop(stream);
        drop(context);
        assert!(simtile_core::drain_background(Duration::from_secs(10)));
    }
    assert!(sim.counts().of(Entry::cuMemHostAlloc) <= 2, "{:?}", sim.counts());
    drop(outside);
}

#[test]
fn h1_green_contexts_reach_what_their_primary_context_has() {
    let sim = sim(1);
    let driver = sim.driver();
    let device = Device::new(driver, 0).unwrap();
    let primary = device.primary_context().unwrap();
    let green = device.green_contexts(2, 10).unwrap();
    assert_eq!(green.iter().map(|context| context.multiprocessors()).collect::<Vec<_>>(), [Some(16); 2]);
    assert_eq!(primary.multiprocessors(), None);
    assert_ne!(green[0].cu_green_ctx(), green[1].cu_green_ctx());
    // Equal, since what one has the other can use: memory of any on streams of any.
    assert!(green[0] == primary && green[0] == green[1]);
    let streams = [&primary, &green[0], &green[1]].map(|context| context.new_stream().unwrap());
    let buffer = DeviceBuffer::from_slice(&streams[1], &[1u32, 2, 3]).unwrap();
    for stream in &streams {
        assert_eq!(buffer.to_vec(stream).unwrap(), [1, 2, 3]);
    }
    let mut owner = simtile_driver::sys::CUgreenCtx::NULL;
    // SAFETY: the out-pointer is valid for the call, the stream alive.
    unsafe { call!(driver, cuStreamGetGreenCtx(streams[1].cu_stream(), &mut owner)) }.unwrap();
    assert_eq!(Some(owner), green[0].cu_green_ctx());
    // Another context's kernels do not reach the memory, and the error says both names.
    let created = device.create_context().unwrap();
    let other = created.new_stream().unwrap();
    let module = created.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/saxpy.ptx")).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    let (x, mut y) = (
        DeviceBuffer::<f32>::zeroed(&streams[1], 4).unwrap(),
        DeviceBuffer::<f32>::zeroed(&other, 4).unwrap(),
    );
    let args = LaunchArgs::new().arg(4u32).arg(1.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: both buffers have four elements.
    let launched = unsafe { other.launch(&kernel, LaunchConfig::for_num_elems(4), args) };
    let error = launched.unwrap_err().to_string();
    assert!(error.contains("created context") && error.contains("green context"), "{error}");
    assert!(green[0].to_string().contains("green"), "{}", green[0]);
}

#[test]
fn h1_green_contexts_end_with_their_last_handle_and_hold_the_primary() {
    let sim = sim(1);
    let device = Device::new(sim.driver(), 0).unwrap();
    let mut green = device.green_contexts(1, 8).unwrap();
    let stream = green[0].new_stream().unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[7u32]).unwrap();
    drop(green.pop());
    assert_eq!(sim.counts().of(Entry::cuGreenCtxDestroy), 0, "a stream holds its context");
    assert_eq!(buffer.to_vec(&stream).unwrap(), [7]);
    drop((buffer, stream));
    simtile_core::drain_background(Duration::from_secs(20));
    assert_eq!(sim.counts().of(Entry::cuGreenCtxDestroy), 1);
    let counts = sim.counts();
    let (kept, given) = (Entry::cuDevicePrimaryCtxRetain, Entry::cuDevicePrimaryCtxRelease);
    assert_eq!(counts.of(kept), counts.of(given), "retains and releases");
}

#[test]
fn h1_a_device_that_cannot_be_divided_so_says_how_far() {
    let sim = sim(1);
    let device = Device::new(sim.driver(), 0).unwrap();
    let error = device.green_contexts(3, 64).expect_err("3 x 64 multiprocessors").to_string();
    assert!(error.contains("room for 2") && error.contains("64"), "{error}");
    assert!(device.green_contexts(1, 1000).is_err());
    assert!(device.green_contexts(0, 8).unwrap().is_empty());
    assert_eq!(sim.counts().of(Entry::cuGreenCtxCreate), 0);
}

#[test]
fn h1_all_limits_are_read_or_said_to_be_unsupported() {
    let sim = sim(1);
    let context = Device::new(sim.driver(), 0).unwrap().primary_context().unwrap();
    let all = [
        ContextLimit::StackSize,
        ContextLimit::PrintfFifoSize,
        ContextLimit::MallocHeapSize,
        ContextLimit::DevRuntimeSyncDepth,
        ContextLimit::DevRuntimePendingLaunchCount,
        ContextLimit::MaxL2FetchGranularity,
        ContextLimit::PersistingL2CacheSize,
    ];
    let read =
        || all.map(|limit| context.limit(limit).map_err(|error| error.driver_error().map(|e| e.code())));
    let before = read();
    for value in &before {
        let unsupported = simtile_driver::sys::CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT;
        assert!(value.is_ok() || *value == Err(Some(unsupported)), "{value:?}");
    }
    let stack = context.limit(ContextLimit::StackSize).unwrap();
    assert_eq!(context.set_limit(ContextLimit::StackSize, stack * 2).unwrap(), stack * 2);
    assert_eq!(context.limit(ContextLimit::StackSize).unwrap(), stack * 2);
    assert_eq!(read()[1..], before[1..], "the neighbours do not move");
}

#[test]
fn h1_many_borrowed_handles_take_nothing_with_them() {
    let sim = sim(1);
    let device = Device::new(sim.driver(), 0).unwrap();
    let context = device.primary_context().unwrap();
    let stream = context.new_stream().unwrap();
    let text = include_str!("../../../artifacts/ptx/saxpy.ptx");
    let module = context.load_module_from_ptx_src(text).unwrap();
    let before = sim.counts();
    for _ in 0..100 {
        // SAFETY: the owners live to the end of the test.
        let (borrowed, lent, code) = unsafe {
            (
                Context::borrow_raw(device, context.cu_ctx()).unwrap(),
                simtile_core::Stream::borrow_raw(stream.cu_stream(), &context).unwrap(),
                simtile_core::Module::borrow_raw(module.cu_module(), &context, None),
            )
        };
        assert_eq!(borrowed, context);
        let function = code.load_function("saxpy").unwrap();
        assert_eq!(function.module().cu_module(), module.cu_module());
        assert_eq!(function.cu_function(), module.load_function("saxpy").unwrap().cu_function());
        drop((borrowed, lent, code, function));
    }
    assert!(simtile_core::drain_background(Duration::from_secs(20)));
    let calls = sim.counts().since(&before);
    for entry in
        [Entry::cuStreamDestroy, Entry::cuModuleUnload, Entry::cuDevicePrimaryCtxRelease, Entry::cuCtxDestroy]
    {
        assert_eq!(calls.of(entry), 0, "{entry:?}");
    }
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1]);
    assert!(module.load_function("saxpy").is_ok());
}
