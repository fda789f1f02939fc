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
