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
}
