//! A simulated driver inside an exploration.

use super::{Rig, code, ok};
use crate::explore::{Outcome, Strategy, explore};
use crate::{Mode, Simulator};
use simtile_driver::sys::*;
use simtile_sync::{Arc, Mutex, thread};
use std::collections::BTreeSet;
use std::ffi::c_void;

type Log = Mutex<Vec<usize>>;

/// Where a host function writes what.
struct Note {
    log: Arc<Log>,
    value: usize,
}

unsafe extern "C" fn write_note(data: *mut c_void) {
    // SAFETY: the program below passes a boxed `Note` that nobody else owns.
    let note = unsafe { Box::from_raw(data.cast::<Note>()) };
    note.log.lock().push(note.value);
}

fn say(rig: &Rig, stream: CUstream, log: &Arc<Log>, value: usize) {
    let note = Box::into_raw(Box::new(Note { log: log.clone(), value }));
    ok!(rig, cuLaunchHostFunc(stream, Some(write_note), note.cast()));
}

/// Two threads, three streams, an event between two of them.
fn program(seed: u64) -> (Vec<usize>, usize) {
    let rig = Arc::new(Rig::with(Simulator::builder().mode(Mode::Explore).seed(seed)));
    let log = Arc::new(Log::default());
    let streams = [rig.stream(), rig.stream(), rig.stream()];
    let other = {
        let (rig, log) = (rig.clone(), log.clone());
        thread::spawn("other", move || {
            ok!(rig, cuCtxSetCurrent(rig.context));
            for value in [20, 21] {
                say(&rig, streams[2], &log, value);
            }
            ok!(rig, cuStreamSynchronize(streams[2]));
        })
        .unwrap()
    };
    say(&rig, streams[0], &log, 0);
    let event = rig.mark(streams[0]);
    ok!(rig, cuStreamWaitEvent(streams[1], event, 0));
    say(&rig, streams[1], &log, 10);
    say(&rig, streams[0], &log, 1);
    ok!(rig, cuCtxSynchronize());
    other.join().unwrap();
    let order = log.lock().clone();
    (order, rig.sim.reports().len())
}

fn run(seed: u64) -> Outcome<(Vec<usize>, usize)> {
    explore(seed, Strategy::of_seed(seed), || program(seed))
}

#[test]
fn one_seed_gives_one_trace_and_many_seeds_give_many_orders() {
    let mut orders = BTreeSet::new();
    for seed in 0..60 {
        let (a, b) = (run(seed), run(seed));
        assert_eq!(a.deadlock, None, "seed {seed}");
        assert_eq!(a.trace.text(), b.trace.text(), "seed {seed}");
        let (order, reports) = a.result.unwrap();
        assert_eq!(reports, 0, "seed {seed}");
        let at = |value| order.iter().position(|&v| v == value).unwrap();
        assert_eq!(order.len(), 5, "seed {seed}: {order:?}");
        assert!(at(0) < at(10), "the event orders: {order:?}");
        assert!(at(0) < at(1) && at(20) < at(21), "streams order: {order:?}");
        orders.insert(order);
    }
    assert!(orders.len() >= 8, "only {} different orders", orders.len());
}

#[test]
fn a_wait_that_nothing_ends_is_a_deadlock_and_no_hang() {
    let outcome = explore(9, Strategy::Interleaved, || {
        let rig = Rig::with(Simulator::builder().mode(Mode::Explore));
        let stream = rig.stream();
        let gate = rig.sim.gate(stream).unwrap();
        let code = code!(rig, cuStreamSynchronize(stream));
        gate.open();
        (code, rig.sim.reports())
    });
    let (code, reports) = outcome.result.unwrap();
    assert_eq!(code, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(outcome.deadlock.unwrap().starts_with("deadlock: nobody can go on; main waits"));
    assert!(reports.iter().any(|report| report.to_string().contains("deadlock")), "{reports:?}");
}

#[test]
fn explore_without_an_exploration_still_runs() {
    let rig = Rig::with(Simulator::builder().mode(Mode::Explore).seed(3));
    let log = Arc::new(Log::default());
    let stream = rig.stream();
    for value in 0..10 {
        say(&rig, stream, &log, value);
    }
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(*log.lock(), (0..10).collect::<Vec<_>>());
}
