//! Streams, events, gates, host functions, default streams.

use super::*;
use core::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// Adds one to the counter behind its argument.
unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the tests pass a counter that outlives the stream's work.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn counter(n: &AtomicU32) -> *mut c_void {
    core::ptr::from_ref(n).cast_mut().cast()
}

#[test]
fn a_gate_holds_what_comes_after_it() {
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let before = rig.mark(a);
        let gate = rig.sim.gate(a).unwrap();
        assert!(gate.wait_reached(SOON));
        let after = rig.mark(a);
        let other = rig.mark(b);
        ok!(rig, cuEventSynchronize(before));
        ok!(rig, cuEventSynchronize(other));
        assert!(rig.pending(after));
        assert_eq!(code!(rig, cuStreamQuery(a)), CUresult::CUDA_ERROR_NOT_READY);
        ok!(rig, cuStreamQuery(b));
        gate.open();
        ok!(rig, cuEventSynchronize(after));
        ok!(rig, cuStreamSynchronize(a));
        ok!(rig, cuStreamQuery(a));
    }
}

#[test]
fn a_wait_means_the_record_at_the_time_of_the_call() {
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let first = rig.sim.gate(a).unwrap();
        let event = rig.mark(a);
        ok!(rig, cuStreamWaitEvent(b, event, 0));
        let passed = rig.mark(b);
        // The event is recorded again behind a second gate: B still waits for the first record alone.
        let second = rig.sim.gate(a).unwrap();
        ok!(rig, cuEventRecord(event, a));
        assert!(rig.pending(passed));
        first.open();
        ok!(rig, cuEventSynchronize(passed));
        assert!(rig.pending(event));
        second.open();
        ok!(rig, cuEventSynchronize(event));
    }
}

#[test]
fn host_functions_run_in_order_and_may_only_query() {
    struct Shared {
        driver: Driver,
        stream: CUstream,
        event: CUevent,
        codes: std::sync::Mutex<Vec<CUresult>>,
    }
    unsafe extern "C" fn inside(data: *mut c_void) {
        // SAFETY: the test passes a `Shared` that outlives the stream's work.
        let shared = unsafe { &*data.cast::<Shared>() };
        let mut pointer = 0;
        // SAFETY: the pointers are valid for the calls.
        let codes = unsafe {
            [
                shared.driver.cuEventQuery(shared.event),
                shared.driver.cuEventRecord(shared.event, shared.stream),
                shared.driver.cuMemAlloc(&mut pointer, 16),
                shared.driver.cuStreamSynchronize(shared.stream),
            ]
        };
        shared.codes.lock().unwrap().extend(codes);
    }
    for rig in Rig::modes() {
        let stream = rig.stream();
        let shared =
            Shared { driver: rig.driver, stream, event: rig.mark(stream), codes: Default::default() };
        ok!(rig, cuStreamSynchronize(stream));
        let data = core::ptr::from_ref(&shared).cast_mut().cast();
        ok!(rig, cuLaunchHostFunc(stream, Some(inside), data));
        ok!(rig, cuStreamSynchronize(stream));
        let codes = shared.codes.lock().unwrap().clone();
        assert_eq!(codes[0], CUresult::CUDA_SUCCESS);
        assert_eq!(codes[1], CUresult::CUDA_ERROR_NOT_PERMITTED);
        assert_eq!(codes[2], CUresult::CUDA_ERROR_NOT_PERMITTED);
        assert_eq!(codes[3], CUresult::CUDA_ERROR_NOT_PERMITTED);
        // Outside again, everything works.
        ok!(rig, cuEventRecord(shared.event, stream));
    }
}

#[test]
fn a_slow_host_function_does_not_stop_other_streams() {
    unsafe extern "C" fn wait(data: *mut c_void) {
        // SAFETY: the test passes a flag that outlives the stream's work.
        let flag = unsafe { &*data.cast::<AtomicU32>() };
        while flag.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let (flag, calls) = (AtomicU32::new(0), AtomicU32::new(0));
        ok!(rig, cuLaunchHostFunc(a, Some(wait), counter(&flag)));
        ok!(rig, cuLaunchHostFunc(b, Some(count), counter(&calls)));
        ok!(rig, cuStreamSynchronize(b));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(code!(rig, cuStreamQuery(a)), CUresult::CUDA_ERROR_NOT_READY);
        flag.store(1, Ordering::SeqCst);
        ok!(rig, cuStreamSynchronize(a));
    }
}

#[test]
fn the_legacy_stream_orders_with_blocking_streams_both_ways() {
    for rig in Rig::modes() {
        let (blocking, free) = (rig.blocking_stream(), rig.stream());
        let gate = rig.sim.gate(blocking).unwrap();
        let on_legacy = rig.mark(CUstream::NULL);
        let on_blocking = rig.mark(rig.blocking_stream());
        let on_free = rig.mark(free);
        let per_thread = rig.mark(CUstream::PER_THREAD);
        ok!(rig, cuEventSynchronize(on_free));
        assert!(rig.pending(on_legacy));
        // Behind the legacy stream's record, so it waits too.
        assert!(rig.pending(on_blocking));
        assert!(rig.pending(per_thread));
        gate.open();
        for event in [on_legacy, on_blocking, per_thread] {
            ok!(rig, cuEventSynchronize(event));
        }
        let gate = rig.sim.gate(CUstream::LEGACY).unwrap();
        let behind = rig.mark(blocking);
        let beside = rig.mark(free);
        ok!(rig, cuEventSynchronize(beside));
        assert!(rig.pending(behind));
        drop(gate);
        ok!(rig, cuEventSynchronize(behind));
    }
}

#[test]
fn each_thread_has_its_own_default_stream() {
    let rig = Rig::new();
    let id = |rig: &Rig| {
        let mut id = 0;
        ok!(rig, cuStreamGetId(CUstream::PER_THREAD, &mut id));
        id
    };
    let (mine, again) = (id(&rig), id(&rig));
    assert_eq!(mine, again);
    assert_ne!(rig.on_thread(id), mine);
}

#[test]
fn destroying_streams_and_events_with_work_pending_never_waits() {
    for rig in Rig::modes() {
        let stream = rig.stream();
        let calls = AtomicU32::new(0);
        let gate = rig.sim.gate(stream).unwrap();
        let event = rig.mark(stream);
        let other = rig.stream();
        ok!(rig, cuStreamWaitEvent(other, event, 0));
        ok!(rig, cuLaunchHostFunc(other, Some(count), counter(&calls)));
        ok!(rig, cuEventDestroy(event));
        ok!(rig, cuStreamDestroy(stream));
        ok!(rig, cuStreamDestroy(other));
        assert_eq!(code!(rig, cuStreamQuery(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(code!(rig, cuStreamDestroy(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(code!(rig, cuEventQuery(event)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        gate.open();
        ok!(rig, cuCtxSynchronize());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(rig.sim.pending(), 0);
    }
}

#[test]
fn priorities_are_clamped_and_flags_and_context_are_told() {
    let rig = Rig::new();
    let (mut least, mut greatest) = (9, 9);
    ok!(rig, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    assert_eq!((least, greatest), (0, -5));
    for (asked, given) in [(-9, -5), (-5, -5), (-2, -2), (0, 0), (7, 0)] {
        let mut stream = CUstream::NULL;
        ok!(rig, cuStreamCreateWithPriority(&mut stream, 1, asked));
        let mut priority = 99;
        ok!(rig, cuStreamGetPriority(stream, &mut priority));
        assert_eq!(priority, given);
        let (mut flags, mut context, mut device) = (9, CUcontext::NULL, -1);
        ok!(rig, cuStreamGetFlags(stream, &mut flags));
        ok!(rig, cuStreamGetCtx(stream, &mut context));
        ok!(rig, cuStreamGetDevice(stream, &mut device));
        assert_eq!((flags, context, device), (1, rig.context, 0));
    }
    assert_eq!(code!(rig, cuStreamCreate(core::ptr::null_mut(), 0)), CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut stream = CUstream::NULL;
    assert_eq!(code!(rig, cuStreamCreate(&mut stream, 2)), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn elapsed_time_needs_two_finished_timed_records() {
    let rig = Rig::new();
    let stream = rig.stream();
    let mut ms = -1.0;
    let unrecorded = rig.event();
    let start = rig.mark(stream);
    assert_eq!(
        code!(rig, cuEventElapsedTime(&mut ms, start, unrecorded)),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
    let mut untimed = CUevent::NULL;
    ok!(rig, cuEventCreate(&mut untimed, 2));
    ok!(rig, cuEventRecord(untimed, stream));
    assert_eq!(code!(rig, cuEventElapsedTime(&mut ms, start, untimed)), CUresult::CUDA_ERROR_INVALID_HANDLE);
    let gate = rig.sim.gate(stream).unwrap();
    let end = rig.mark(stream);
    assert_eq!(code!(rig, cuEventElapsedTime(&mut ms, start, end)), CUresult::CUDA_ERROR_NOT_READY);
    std::thread::sleep(Duration::from_millis(5));
    gate.open();
    ok!(rig, cuEventSynchronize(end));
    ok!(rig, cuEventElapsedTime(&mut ms, start, end));
    assert!(ms >= 4.0, "{ms}");
    ok!(rig, cuEventQuery(unrecorded));
    ok!(rig, cuEventSynchronize(unrecorded));
}

#[test]
fn another_thread_may_wait_while_the_event_is_recorded_again() {
    let rig = Rig::new();
    let stream = rig.stream();
    let first = rig.sim.gate(stream).unwrap();
    let event = rig.mark(stream);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| code!(rig, cuEventSynchronize(event)));
        rig.soon(|| rig.sim.core().state.lock().waiting > 0);
        let second = rig.sim.gate(stream).unwrap();
        ok!(rig, cuEventRecord(event, stream));
        first.open();
        assert_eq!(waiter.join().unwrap(), CUresult::CUDA_SUCCESS);
        assert!(rig.pending(event));
        drop(second);
    });
    ok!(rig, cuStreamSynchronize(stream));
}
