//! Waits that nothing can end, in every mode: a report and an error, and no hang.

use super::{Rig, code, ok};
use crate::explore::{Strategy, explore};
use crate::report::ReportKind;
use crate::{Mode, Simulator};
use simtile_driver::sys::*;
use simtile_sync::{Arc, thread};

const TIMEOUT: CUresult = CUresult::CUDA_ERROR_LAUNCH_TIMEOUT;

fn deadlock(rig: &Rig) -> String {
    let reports = rig.sim.take_reports();
    assert_eq!(reports.iter().map(|report| report.kind).collect::<Vec<_>>(), [ReportKind::Deadlock]);
    reports[0].to_string()
}

#[test]
fn a_value_that_nobody_is_left_to_write() {
    let rig = Rig::with(Simulator::builder().mode(Mode::Fifo));
    let (stream, mut flag) = (rig.stream(), 0);
    ok!(rig, cuMemAlloc(&mut flag, 4));
    ok!(rig, cuMemsetD32(flag, 0, 1));
    let geq = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ;
    ok!(rig, cuStreamWaitValue32(stream, flag, 3, geq.0));
    // A thread that has called and gone cannot write it either.
    rig.on_thread(|rig| assert!(code!(rig, cuStreamQuery(stream)) == CUresult::CUDA_ERROR_NOT_READY));
    assert_eq!(code!(rig, cuStreamSynchronize(stream)), TIMEOUT);
    assert!(deadlock(&rig).contains("is 3 or more"));
}

#[test]
fn another_thread_may_still_write_the_value() {
    let rig = Rig::with(Simulator::builder().mode(Mode::Fast));
    let (stream, other, mut flag) = (rig.stream(), rig.stream(), 0);
    ok!(rig, cuMemAlloc(&mut flag, 4));
    ok!(rig, cuMemsetD32(flag, 0, 1));
    let geq = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ;
    ok!(rig, cuStreamWaitValue32(stream, flag, 3, geq.0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok!(rig, cuCtxSetCurrent(rig.context));
            // Longer than a thread waits that knows of no other.
            std::thread::sleep(std::time::Duration::from_secs(4));
            ok!(rig, cuMemsetD32Async(flag, 3, 1, other));
        });
        ok!(rig, cuStreamSynchronize(stream));
    });
    assert!(rig.sim.take_reports().is_empty());
}

#[test]
fn a_value_that_nobody_writes_ends_an_exploration() {
    let outcome = explore(1, Strategy::Late, || {
        let rig = Rig::with(Simulator::builder().mode(Mode::Explore));
        let (stream, mut flag) = (rig.stream(), 0);
        ok!(rig, cuMemAlloc(&mut flag, 4));
        ok!(rig, cuMemsetD32(flag, 0, 1));
        ok!(rig, cuStreamWaitValue32(stream, flag, 3, 0));
        // Both calls end, and so does the program.
        let codes = [code!(rig, cuStreamSynchronize(stream)), code!(rig, cuCtxSynchronize())];
        (codes, rig.sim.take_reports())
    });
    let (codes, reports) = outcome.result.unwrap();
    assert_eq!(codes, [CUresult::CUDA_ERROR_UNKNOWN; 2]);
    assert!(outcome.deadlock.unwrap().contains("waits for a value in memory"));
    assert!(reports.iter().all(|report| report.kind == ReportKind::Deadlock), "{reports:?}");
    assert!(reports[0].text.starts_with("cuStreamSynchronize waits for ever"), "{}", reports[0]);
    assert!(reports[0].text.contains("waits until the value at"), "{}", reports[0]);
}

/// A thread of std that waits for explored work, while the program waits for the thread by std's means: the one has no turn, the
/// other keeps it.
#[test]
fn a_thread_outside_is_told_and_hangs_nobody() {
    let outcome = explore(3, Strategy::Late, || {
        let rig = Arc::new(Rig::with(Simulator::builder().mode(Mode::Explore)));
        let (stream, mut x) = (rig.stream(), 0);
        ok!(rig, cuMemAlloc(&mut x, 64));
        // From here on there is a worker, which needs a turn to go on.
        ok!(rig, cuMemsetD8Async(x, 1, 64, stream));
        ok!(rig, cuStreamSynchronize(stream));
        let theirs = rig.clone();
        let outside = std::thread::Builder::new().name("outside".into()).spawn(move || {
            ok!(theirs, cuCtxSetCurrent(theirs.context));
            ok!(theirs, cuMemsetD8Async(x, 1, 64, stream));
            ok!(theirs, cuStreamSynchronize(stream));
        });
        outside.unwrap().join().unwrap();
        rig.sim.take_reports()
    });
    let reports = outcome.result.unwrap();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind, ReportKind::Outsider);
    assert!(reports[0].text.starts_with("thread 'outside' calls cuCtxSetCurrent"), "{}", reports[0]);
    let text = outcome.deadlock.unwrap();
    assert!(text.starts_with("blocked outside the exploration: main"), "{text}");
}

/// A simulator that outlives its exploration goes on as any other, with the workers that it has.
#[test]
fn a_driver_outlives_its_exploration() {
    for seed in 0..8 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let rig = Rig::with(Simulator::builder().mode(Mode::Explore).seed(seed));
            let (stream, mut x) = (rig.stream(), 0);
            ok!(rig, cuMemAlloc(&mut x, 64));
            ok!(rig, cuMemsetD8Async(x, 1, 64, stream));
            (rig, stream, x)
        });
        assert_eq!(outcome.deadlock, None);
        let (rig, stream, x) = outcome.result.unwrap();
        ok!(rig, cuMemsetD8Async(x, 2, 64, stream));
        ok!(rig, cuStreamSynchronize(stream));
        assert!(rig.sim.take_reports().is_empty());
    }
}

#[test]
fn a_participant_that_dies_in_a_deadlock_takes_nobody_along() {
    let outcome = explore(5, Strategy::Interleaved, || {
        let rig = Arc::new(Rig::with(Simulator::builder().mode(Mode::Explore)));
        let stream = rig.stream();
        let gate = rig.sim.gate(stream).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let rig = rig.clone();
                let run = move || {
                    ok!(rig, cuCtxSetCurrent(rig.context));
                    code!(rig, cuStreamSynchronize(stream))
                };
                thread::spawn(&format!("t{i}"), run).unwrap()
            })
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().is_ok()).collect::<Vec<_>>();
        gate.open();
        ends
    });
    assert!(outcome.deadlock.unwrap().contains("t0 waits; t1 waits; t2 waits"));
    // Main leaves its wait by a panic too, unless a thread has ended before it looks.
    assert!(outcome.result.is_err() || outcome.result.is_ok_and(|ends| ends.len() == 3));
}

/// The modes with threads of their own, with a short patience.
fn impatient() -> [Rig; 2] {
    [Mode::Fast, Mode::Fifo].map(|mode| Rig::with(Simulator::builder().mode(mode).patience(1)))
}

#[test]
fn a_gate_that_nobody_opens() {
    for rig in impatient() {
        let (a, b) = (rig.stream(), rig.stream());
        std::mem::forget(rig.sim.gate(a).unwrap());
        let event = rig.mark(a);
        ok!(rig, cuStreamWaitEvent(b, event, 0));
        assert_eq!(code!(rig, cuStreamSynchronize(b)), TIMEOUT);
        let text = deadlock(&rig);
        assert!(
            text.contains("is at a closed gate") && text.contains("is at an event wait for stream"),
            "{text}"
        );
    }
}

#[test]
fn streams_that_wait_for_values_in_host_memory() {
    for rig in impatient() {
        let (a, b) = (rig.stream(), rig.stream());
        let mut host = std::ptr::null_mut();
        ok!(rig, cuMemHostAlloc(&mut host, 64, 0));
        // SAFETY: 64 bytes of our own.
        unsafe { host.cast::<u8>().write_bytes(0, 64) };
        let flag = host as u64;
        // Each would write what the other waits for.
        for (stream, mine, theirs) in [(a, flag, flag + 8), (b, flag + 8, flag)] {
            ok!(rig, cuStreamWaitValue32(stream, mine, 1, 0));
            ok!(rig, cuStreamWriteValue32(stream, theirs, 1, 0));
        }
        assert_eq!(code!(rig, cuCtxSynchronize()), TIMEOUT);
        assert_eq!(deadlock(&rig).matches("waits until the value at").count(), 2);
    }
}

/// Two host functions, each of which waits for a sign that the other gives after its own wait.
struct Circle {
    signs: [std::sync::Mutex<bool>; 2],
    changed: std::sync::Condvar,
    gone: std::sync::atomic::AtomicU32,
}

unsafe extern "C" fn waits_for_a_sign(data: *mut std::ffi::c_void) {
    // SAFETY: the test passes a leaked pair.
    let (circle, me) = unsafe { &*data.cast::<(&'static Circle, usize)>() };
    let mut sign = circle.signs[*me].lock().unwrap();
    while !*sign {
        sign = circle.changed.wait_timeout(sign, std::time::Duration::from_millis(20)).unwrap().0;
    }
    circle.gone.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn host_functions_that_wait_for_each_other() {
    for rig in impatient() {
        let circle: &'static Circle = Box::leak(Box::new(Circle {
            signs: Default::default(),
            changed: Default::default(),
            gone: Default::default(),
        }));
        for me in 0..2 {
            let data: &'static mut (&'static Circle, usize) = Box::leak(Box::new((circle, me)));
            ok!(rig, cuLaunchHostFunc(rig.stream(), Some(waits_for_a_sign), std::ptr::from_mut(data).cast()));
        }
        assert_eq!(code!(rig, cuCtxSynchronize()), TIMEOUT);
        let text = deadlock(&rig);
        assert_eq!(text.matches("runs host function (#").count(), 2, "{text}");
        // Nobody waits for them again, not even the end of the context.
        let started = std::time::Instant::now();
        assert!(!code!(rig, cuCtxSynchronize()).is_ok());
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
        circle.signs.iter().for_each(|sign| *sign.lock().unwrap() = true);
        rig.soon(|| circle.gone.load(std::sync::atomic::Ordering::SeqCst) == 2);
    }
}

#[test]
fn a_slow_host_function_is_no_deadlock() {
    unsafe extern "C" fn sleeps(_: *mut std::ffi::c_void) {
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
    let rig = Rig::with(Simulator::builder().mode(Mode::Fast).patience(6));
    let stream = rig.stream();
    ok!(rig, cuLaunchHostFunc(stream, Some(sleeps), std::ptr::null_mut()));
    ok!(rig, cuStreamSynchronize(stream));
    assert!(rig.sim.take_reports().is_empty());
}

#[test]
fn a_kernel_that_waits_for_memory_that_nobody_writes() {
    const SPIN: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin(.param .u64 p) {\n\
         .reg .pred %q; .reg .b32 %r; .reg .b64 %a;\nld.param.u64 %a, [p];\nL:\nld.volatile.global.u32 %r, [%a];\n\
         setp.eq.u32 %q, %r, 0;\n@%q bra L;\nret; }\n\0";
    for mode in [Mode::Fast, Mode::Fifo] {
        let rig = Rig::with(Simulator::builder().mode(mode).step_limit(100_000));
        let (a, b, mut flag) = (rig.stream(), rig.stream(), 0);
        ok!(rig, cuMemAlloc(&mut flag, 4));
        ok!(rig, cuMemsetD32(flag, 0, 1));
        let mut module = CUmodule::NULL;
        ok!(rig, cuModuleLoadData(&mut module, SPIN.as_ptr().cast()));
        rig.run(rig.function(module, "spin"), a, &[flag]);
        let event = rig.mark(a);
        ok!(rig, cuStreamWaitEvent(b, event, 0));
        assert_eq!(code!(rig, cuStreamSynchronize(b)), TIMEOUT);
        let reports = rig.sim.take_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!(reports[0].kind, ReportKind::KernelFault);
        assert!(reports[0].text.contains("ran more than 100000 steps"), "{}", reports[0]);
        assert!(reports[0].stream.is_some());
    }
}
