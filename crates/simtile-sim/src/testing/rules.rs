//! Initialisation, contexts, handles, and what a test can do from outside.

use super::*;
use simtile_driver::Entry;

#[test]
fn nothing_works_before_init() {
    let sim = Simulator::builder().quiet().build();
    let rig = Rig { driver: sim.driver(), sim, context: CUcontext::NULL };
    let mut n = 0;
    assert_eq!(code!(rig, cuDeviceGetCount(&mut n)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
    ok!(rig, cuDriverGetVersion(&mut n));
    assert_eq!(n, 13000);
    assert_eq!(code!(rig, cuInit(1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    ok!(rig, cuInit(0));
    ok!(rig, cuDeviceGetCount(&mut n));
    assert_eq!(n, 1);
    let mut stream = CUstream::NULL;
    assert_eq!(code!(rig, cuStreamCreate(&mut stream, 0)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn many_drivers_live_in_one_process_and_refuse_each_others_handles() {
    let rigs: Vec<Rig> = (0..8).map(|_| Rig::new()).collect();
    let streams: Vec<CUstream> = rigs.iter().map(Rig::stream).collect();
    for (i, rig) in rigs.iter().enumerate() {
        for (j, stream) in streams.iter().enumerate() {
            let expected = if i == j { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_INVALID_HANDLE };
            assert_eq!(code!(rig, cuStreamQuery(*stream)), expected);
        }
        // Each has its own current context on this thread.
        let mut current = CUcontext::NULL;
        ok!(rig, cuCtxGetCurrent(&mut current));
        assert_eq!(current, rig.context);
    }
    assert_eq!(code!(rigs[0], cuCtxSetCurrent(rigs[1].context)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn masks_failures_and_counts() {
    let rig = Rig::new();
    let stream = rig.stream();
    rig.sim.mask(&[Entry::cuStreamGetId]);
    let mut id = 0;
    assert_eq!(code!(rig, cuStreamGetId(stream, &mut id)), CUresult::SIMTILE_MISSING_ENTRY);
    rig.sim.mask(&[]);
    ok!(rig, cuStreamGetId(stream, &mut id));

    rig.sim.fail(Entry::cuStreamQuery, 2, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let before = rig.sim.counts();
    ok!(rig, cuStreamQuery(stream));
    assert_eq!(code!(rig, cuStreamQuery(stream)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    ok!(rig, cuStreamQuery(stream));
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuStreamQuery), 3);

    rig.sim.fail_any(2, CUresult::CUDA_ERROR_UNKNOWN);
    ok!(rig, cuStreamQuery(stream));
    let mut flags = 0;
    assert_eq!(code!(rig, cuStreamGetFlags(stream, &mut flags)), CUresult::CUDA_ERROR_UNKNOWN);
    ok!(rig, cuStreamGetFlags(stream, &mut flags));
}

#[test]
fn a_lost_context_answers_the_same_code_for_ever() {
    let rig = Rig::new();
    let (stream, event) = (rig.stream(), rig.event());
    rig.sim.lose_at(None, 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    for code in [
        code!(rig, cuStreamQuery(stream)),
        code!(rig, cuStreamSynchronize(stream)),
        code!(rig, cuEventRecord(event, stream)),
        code!(rig, cuEventQuery(event)),
        code!(rig, cuCtxSynchronize()),
        code!(rig, cuStreamDestroy(stream)),
        code!(rig, cuEventDestroy(event)),
    ] {
        assert_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let (mut device, mut context) = (-1, CUcontext::NULL);
    ok!(rig, cuCtxGetDevice(&mut device));
    assert_eq!(device, 0);
    // Nor is the device of use to this process again, as on an H200.
    ok!(rig, cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(rig, cuDevicePrimaryCtxReset(0));
    let again = code!(rig, cuDevicePrimaryCtxRetain(&mut context, 0));
    assert_eq!(again, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn a_pause_point_stops_the_nth_call() {
    let rig = Rig::new();
    let stream = rig.stream();
    let pause = rig.sim.pause_at(Entry::cuStreamQuery, 2);
    ok!(rig, cuStreamQuery(stream));
    assert!(!pause.is_reached());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| code!(rig, cuStreamQuery(stream)));
        assert!(pause.wait_reached(SOON));
        assert!(!thread.is_finished());
        ok!(rig, cuStreamQuery(stream));
        pause.release();
        assert_eq!(thread.join().unwrap(), CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn shutting_down_wakes_waiters_and_ends_every_call() {
    for rig in Rig::modes() {
        let stream = rig.stream();
        let gate = rig.sim.gate(stream).unwrap();
        let event = rig.mark(stream);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| code!(rig, cuEventSynchronize(event)));
            std::thread::sleep(Duration::from_millis(10));
            rig.sim.shut_down();
            assert_eq!(waiter.join().unwrap(), CUresult::CUDA_ERROR_DEINITIALIZED);
        });
        drop(gate);
        assert_eq!(code!(rig, cuInit(0)), CUresult::CUDA_ERROR_DEINITIALIZED);
    }
    let driver = Rig::new().driver;
    // SAFETY: no pointers.
    assert_eq!(unsafe { driver.cuCtxSynchronize() }, CUresult::CUDA_ERROR_DEINITIALIZED);
}

#[test]
fn the_context_stack_is_per_thread() {
    let rig = Rig::with(Simulator::builder().devices(2));
    let mut made = CUcontext::NULL;
    ok!(rig, cuCtxCreate(&mut made, 0, 1));
    let current = |rig: &Rig| {
        let mut current = CUcontext::NULL;
        ok!(rig, cuCtxGetCurrent(&mut current));
        current
    };
    assert_eq!(current(&rig), made);
    let mut device = -1;
    ok!(rig, cuCtxGetDevice(&mut device));
    assert_eq!(device, 1);
    assert_eq!(rig.on_thread(|rig| current(rig)), rig.context);
    let mut popped = CUcontext::NULL;
    ok!(rig, cuCtxPopCurrent(&mut popped));
    assert_eq!((popped, current(&rig)), (made, rig.context));
    ok!(rig, cuCtxPushCurrent(made));
    ok!(rig, cuCtxDestroy(made));
    assert_eq!(current(&rig), rig.context);
    assert_eq!(code!(rig, cuCtxSetCurrent(made)), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(code!(rig, cuCtxDestroy(rig.context)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    ok!(rig, cuCtxSetCurrent(CUcontext::NULL));
    assert_eq!(code!(rig, cuCtxSynchronize()), CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn primary_contexts_are_counted() {
    let rig = Rig::new();
    let state = |rig: &Rig| {
        let (mut flags, mut active) = (9, 9);
        ok!(rig, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        (flags, active)
    };
    assert_eq!(state(&rig), (0, 1));
    let mut again = CUcontext::NULL;
    ok!(rig, cuDevicePrimaryCtxRetain(&mut again, 0));
    assert_eq!(again, rig.context);
    ok!(rig, cuDevicePrimaryCtxSetFlags(0, 4));
    assert_eq!(state(&rig), (4, 1));
    ok!(rig, cuDevicePrimaryCtxRelease(0));
    ok!(rig, cuCtxSynchronize());
    ok!(rig, cuDevicePrimaryCtxRelease(0));
    assert_eq!(state(&rig), (4, 0));
    assert_eq!(code!(rig, cuDevicePrimaryCtxRelease(0)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(code!(rig, cuCtxSynchronize()), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(code!(rig, cuDevicePrimaryCtxRetain(&mut again, 7)), CUresult::CUDA_ERROR_INVALID_DEVICE);
}

#[test]
fn recycled_handle_values_come_back() {
    let rig = Rig::new();
    rig.sim.recycle_handles(true);
    let a = rig.stream();
    ok!(rig, cuStreamDestroy(a));
    let b = rig.stream();
    assert_eq!(a, b);
    let first = rig.event();
    ok!(rig, cuEventDestroy(first));
    assert_eq!(rig.event(), first);
    let first = rig.module();
    ok!(rig, cuModuleUnload(first));
    assert_eq!(rig.module(), first);
    let graph = || {
        let mut graph = CUgraph::NULL;
        ok!(rig, cuGraphCreate(&mut graph, 0));
        graph
    };
    let first = graph();
    ok!(rig, cuGraphDestroy(first));
    assert_eq!(graph(), first);
}

#[test]
fn labels_and_declarations() {
    let rig = Rig::new();
    let (module, stream) = (rig.module(), rig.stream());
    let memory = rig.memory(64);
    let extras = rig.driver.table().extras.unwrap();
    let state = rig.driver.state();
    // SAFETY: the extras of a table take its driver's state.
    unsafe {
        let target = simtile_driver::LabelTarget::Stream(stream);
        assert!((extras.label)(state, target, "upload").is_ok());
        let target = simtile_driver::LabelTarget::Allocation(memory.base + 8);
        assert!((extras.label)(state, target, "weights").is_ok());
        let target = simtile_driver::LabelTarget::Allocation(64);
        assert_eq!((extras.label)(state, target, "none"), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!((extras.declare)(state, stream, &[]).is_ok());
        assert_eq!((extras.declare)(state, CUstream(48), &[]), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    // Just past the end.
    rig.run(rig.function(module, "store"), stream, &[memory.base + 64, 1]);
    assert_eq!(code!(rig, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let report = &rig.sim.reports()[0];
    assert_eq!(report.labels, ["weights"]);
    assert_eq!(report.stream.as_deref(), Some("'upload'"));
}

#[test]
fn what_is_not_built_says_so() {
    let rig = Rig::new();
    let stream = rig.stream();
    let (mut graph, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
    // SAFETY: zeros are valid in every field.
    let mut params: CUgraphNodeParams = unsafe { core::mem::zeroed() };
    params.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL;
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    ok!(rig, cuGraphCreate(&mut graph, 0));
    let none = core::ptr::null();
    let code = code!(rig, cuGraphAddNode(&mut node, graph, none, core::ptr::null(), 0, &mut params));
    assert_eq!(code, unsupported);
    assert_eq!(rig.sim.reports()[0].kind, crate::ReportKind::Unsupported);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let mut status = CUstreamCaptureStatus(9);
    ok!(rig, cuStreamIsCapturing(stream, &mut status));
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    let mut exchanged = mode;
    ok!(rig, cuThreadExchangeStreamCaptureMode(&mut exchanged));
    assert_eq!(exchanged, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    ok!(rig, cuThreadExchangeStreamCaptureMode(&mut exchanged));
    assert_eq!(exchanged, mode);
}

#[test]
fn devices_look_like_the_profile() {
    let rig = Rig::with(Simulator::builder().devices(2));
    let attribute = |id: CUdevice_attribute, device| {
        let mut value = -7;
        ok!(rig, cuDeviceGetAttribute(&mut value, id, device));
        value
    };
    type Id = CUdevice_attribute;
    assert_eq!(attribute(Id::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), 9);
    assert_eq!(attribute(Id::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1), 132);
    assert_eq!(attribute(Id::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 0), 62_914_560);
    assert_eq!(attribute(Id::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0), 227 << 10);
    let mut value = 0;
    let max = Id::CU_DEVICE_ATTRIBUTE_MAX;
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(code!(rig, cuDeviceGetAttribute(&mut value, max, 0)), bad);
    let id = Id::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
    assert_eq!(code!(rig, cuDeviceGetAttribute(&mut value, id, 2)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    let uuid = |device| {
        let mut uuid = CUuuid { bytes: [0; 16] };
        ok!(rig, cuDeviceGetUuid(&mut uuid, device));
        uuid.bytes
    };
    assert_ne!(uuid(0), uuid(1));
    for device in 0..2 {
        let mut text = [0; 32];
        ok!(rig, cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, device));
        let mut found = -1;
        ok!(rig, cuDeviceGetByPCIBusId(&mut found, text.as_ptr()));
        assert_eq!(found, device);
    }
    let mut can = -1;
    ok!(rig, cuDeviceCanAccessPeer(&mut can, 0, 1));
    assert_eq!(can, 1);
    ok!(rig, cuDeviceCanAccessPeer(&mut can, 0, 0));
    assert_eq!(can, 0);
    let mut name = [1; 8];
    ok!(rig, cuDeviceGetName(name.as_mut_ptr(), 8, 0));
    assert_eq!(name.map(|c| c as u8), *b"simtile\0");
    let mut text = core::ptr::null();
    ok!(rig, cuGetErrorName(CUresult::CUDA_ERROR_NOT_READY, &mut text));
    // SAFETY: a C string of the driver.
    assert_eq!(unsafe { core::ffi::CStr::from_ptr(text) }, c"CUDA_ERROR_NOT_READY");
    assert_eq!(code!(rig, cuGetErrorName(CUresult(12345), &mut text)), bad);
    assert!(text.is_null());
    let none = Rig::with_none();
    assert_eq!(code!(none, cuInit(0)), CUresult::CUDA_ERROR_NO_DEVICE);
}

#[test]
fn limits_are_rounded_and_refused_as_measured() {
    let rig = Rig::new();
    let get = |limit: CUlimit| {
        let mut value = 0;
        ok!(rig, cuCtxGetLimit(&mut value, limit));
        value
    };
    let stack = CUlimit::CU_LIMIT_STACK_SIZE;
    assert_eq!(get(stack), 1024);
    ok!(rig, cuCtxSetLimit(stack, 1000));
    assert_eq!(get(stack), 1008);
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(code!(rig, cuCtxSetLimit(stack, 512 << 10)), bad);
    assert_eq!(code!(rig, cuCtxSetLimit(CUlimit(99), 1)), bad);
    let depth = CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH;
    assert_eq!(code!(rig, cuCtxSetLimit(depth, 1)), CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT);
    let (mut flags, mut version) = (0, 0);
    ok!(rig, cuCtxGetFlags(&mut flags));
    ok!(rig, cuCtxGetApiVersion(CUcontext::NULL, &mut version));
    assert_eq!((flags, version), (8, 3020));
    assert_eq!(code!(rig, cuCtxSetFlags(3)), bad);
}

#[test]
fn peer_access_is_enabled_once() {
    let rig = Rig::with(Simulator::builder().devices(2));
    let mut other = CUcontext::NULL;
    ok!(rig, cuDevicePrimaryCtxRetain(&mut other, 1));
    let already = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    let not = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    assert_eq!(code!(rig, cuCtxDisablePeerAccess(other)), not);
    ok!(rig, cuCtxEnablePeerAccess(other, 0));
    assert_eq!(code!(rig, cuCtxEnablePeerAccess(other, 0)), already);
    assert_eq!(code!(rig, cuCtxEnablePeerAccess(other, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    ok!(rig, cuCtxDisablePeerAccess(other));
    let own = code!(rig, cuCtxEnablePeerAccess(rig.context, 0));
    assert_eq!(own, CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}
