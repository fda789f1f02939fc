//! A1, A6, A14: what becomes of work whose future is dropped, forgotten or cancelled.

use crate::calls::{CallLog, may_wait};
use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{download, fill, upload};
use simtile_core::DeviceBuffer;
use simtile_driver::Entry;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn buffers(rig: &Rig) -> (DeviceBuffer<f32>, DeviceBuffer<f32>) {
    let aside = rig.context.new_stream().unwrap();
    let x = DeviceBuffer::from_slice(&aside, &[1.0f32; 256]).unwrap();
    let y = DeviceBuffer::from_slice(&aside, &[2.0f32; 256]).unwrap();
    aside.synchronize().unwrap();
    (x, y)
}

/// fr_A1: an owned launch is polled once and dropped behind a gate: its buffers live until the work ends.
#[test]
fn fr_a1_a_dropped_owned_launch_keeps_its_buffers() {
    let rig = rig();
    let pair = buffers(&rig);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let mut future = saxpy_owned(&rig.saxpy, 1.0, pair).on(&rig.stream);
    assert!(poll_once(&mut future, &Arc::default()).is_pending());
    let start = simtile_sync::time::now();
    drop(future);
    assert!((simtile_sync::time::now() - start) < Duration::from_millis(500));
    // Other work may have as much memory as it wants meanwhile.
    let other = rig.context.new_stream().unwrap();
    for _ in 0..20 {
        assert_eq!(upload(vec![-1.0f32; 256]).then(download).sync_on(&other).unwrap(), [-1.0; 256]);
    }
    gate.open();
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

/// fr_A2: the future borrowed; after it is dropped the buffers are dropped, or used at once on another stream.
#[test]
fn fr_a2_a_dropped_borrowed_launch_keeps_what_it_borrowed() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    for reuse in [false, true] {
        let (x, mut y) = buffers(&rig);
        let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
        let mut future = saxpy(&rig.saxpy, 3.0, &x, &mut y).on(&rig.stream);
        assert!(poll_once(&mut future, &Arc::default()).is_pending());
        drop(future);
        if reuse {
            y.fill(&other, 9.0).unwrap();
            drop(x);
            gate.open();
            assert_eq!(y.to_vec(&other).unwrap(), [9.0; 256], "the fill follows the launch");
        } else {
            drop((x, y));
            gate.open();
        }
        assert!(rig.context.drain(SOON).is_complete());
    }
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn a_forgotten_future_loses_nothing_but_what_is_inside_it() {
    let rig = rig();
    let (x, mut y) = buffers(&rig);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let mut future = saxpy(&rig.saxpy, 3.0, &x, &mut y).on(&rig.stream);
    assert!(poll_once(&mut future, &Arc::default()).is_pending());
    std::mem::forget(future);
    let other = rig.context.new_stream().unwrap();
    gate.open();
    assert_eq!(y.to_vec(&other).unwrap(), [5.0; 256]);
    drop((x, y));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn an_unpolled_future_submitted_nothing() {
    let rig = rig();
    let (x, mut y) = buffers(&rig);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let before = rig.sim.counts();
    let start = simtile_sync::time::now();
    drop(saxpy(&rig.saxpy, 3.0, &x, &mut y).on(&rig.stream));
    assert!((simtile_sync::time::now() - start) < Duration::from_millis(50));
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuLaunchKernel), 0);
    gate.open();
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [2.0; 256]);
}

/// fr_A14: completion after a drop wakes nobody, and a later future on the same stream is not confused by it.
#[test]
fn fr_a14_a_late_completion_wakes_nobody() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let (gone, here) = (Arc::<Count>::default(), Arc::<Count>::default());
    let mut first = value(1).on(&rig.stream);
    let mut second = value(2).on(&rig.stream);
    assert!(poll_once(&mut first, &gone).is_pending());
    assert!(poll_once(&mut second, &here).is_pending());
    drop(first);
    gate.open();
    until("the second", || here.get() == 1);
    assert_eq!(gone.get(), 0);
    assert!(poll_once(&mut second, &here).is_ready());
}

/// fr_A4: the work was queued, but the event behind it cannot be recorded. The error is told, nothing is freed early.
#[test]
fn fr_a4_a_failed_registration_keeps_what_runs() {
    let rig = rig();
    let pair = buffers(&rig);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    rig.sim.fail(Entry::cuEventRecord, 1, simtile_driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let mut future = saxpy_owned(&rig.saxpy, 1.0, pair).on(&rig.stream);
    let polled = poll_once(&mut future, &Arc::default());
    drop(future);
    let other = rig.context.new_stream().unwrap();
    for _ in 0..10 {
        assert_eq!(upload(vec![-1.0f32; 256]).then(download).sync_on(&other).unwrap(), [-1.0; 256]);
    }
    gate.open();
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    // It recovered by recording again, or said so.
    if let std::task::Poll::Ready(outcome) = polled {
        assert!(outcome.is_err());
    }
    rig.clean();
}

#[test]
fn a_failure_in_the_middle_keeps_what_was_submitted() {
    let rig = rig();
    let (x, mut y) = buffers(&rig);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let op = saxpy(&rig.saxpy, 3.0, &x, &mut y)
        .then(|()| value(()).try_map(|()| Err::<(), _>(OpError::user("after the launch"))));
    let error = op.enqueue_on(&rig.stream).unwrap_err();
    assert_eq!(error.to_string(), "after the launch");
    drop((x, y));
    gate.open();
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn cancelled_at_every_poll() {
    let rig = rig();
    for polls in 0..12 {
        let op = upload(vec![1u8; 100]).then(|b| fill(b, 2)).then(|b| fill(b, 3)).then(download);
        let mut future = op.on(&rig.stream);
        let waker = Arc::default();
        let mut done = false;
        for _ in 0..polls {
            if poll_once(&mut future, &waker).is_ready() {
                done = true;
                break;
            }
            simtile_sync::time::sleep(Duration::from_micros(200));
        }
        let _ = done;
        drop(future);
    }
    assert!(rig.context.drain(SOON).is_complete());
    until("buffers of cancelled allocations", || {
        rig.context.drain(SOON);
        rig.context.stats().live_allocations == 0
    });
    rig.clean();
}

/// H4: futures, graphs, memoised chains and families that are dropped with work in flight make no call that waits on the dropping thread.
#[test]
fn h4_no_drop_of_an_operation_makes_a_call_that_waits() {
    type Case = fn(&Rig, &Arc<simtile_core::Stream>) -> Vec<Box<dyn std::any::Any>>;
    let cases: [(&str, Case); 6] = [
        ("an owned launch", |rig, _| {
            let pair = buffers(rig);
            let mut future = saxpy_owned(&rig.saxpy, 1.0, pair).on(&rig.stream);
            assert!(poll_once(&mut future, &Arc::default()).is_pending());
            vec![Box::new(future)]
        }),
        ("an upload and its download", |rig, _| {
            let mut future = upload(vec![1u8; 3 << 20]).then(download).on(&rig.stream);
            for _ in 0..4 {
                assert!(poll_once(&mut future, &Arc::default()).is_pending());
            }
            vec![Box::new(future)]
        }),
        ("what was never polled, and what was never awaited", |rig, _| {
            let (x, y) = buffers(rig);
            let never = fill(x, 3.0).on(&rig.stream);
            let shared = fill(y, 4.0).shared();
            shared.clone().enqueue_on(&rig.stream).unwrap();
            vec![Box::new(never), Box::new(shared)]
        }),
        ("a graph, its output and its replay", |rig, aside| {
            let graph = upload(vec![1.0f32; 64]).then(|b| fill(b, 2.0)).graph_on(aside).unwrap();
            let made = graph.take_output().unwrap();
            let mut future = graph.launch().on(&rig.stream);
            assert!(poll_once(&mut future, &Arc::default()).is_pending());
            vec![Box::new(future), Box::new(graph), Box::new(made)]
        }),
        ("a memoised chain", |rig, _| {
            let (memo, (x, y)) = (simtile_async::memoize(), buffers(rig));
            memo.run(fill(x, 2.0).map(drop)).enqueue_on(&rig.stream).unwrap();
            memo.run(fill(y, 2.0).map(drop)).enqueue_on(&rig.stream).unwrap();
            vec![Box::new(memo)]
        }),
        ("a family of graphs", |rig, aside| {
            let family = simtile_async::GraphFamily::new(aside).unwrap();
            let (mut x, _) = buffers(rig);
            let graph = family
                .capture(|scope| {
                    let mut scratch = scope.temporary::<f32>(256)?;
                    scope.record(simtile_async::copy(&x, scratch.reborrow()).map(drop))?;
                    scope.record(fill(&mut x, 1.0).map(drop))
                })
                .unwrap();
            graph.launch().enqueue_on(&rig.stream).unwrap();
            vec![Box::new(graph), Box::new(family), Box::new(x)]
        }),
    ];
    for (what, case) in cases {
        let sim = simulator(1);
        let log = CallLog::over(sim.driver());
        let rig = rig_by(sim, log.driver());
        // Everything that allocates is there before the streams are held.
        drop(buffers(&rig));
        let aside = rig.context.new_stream().unwrap();
        let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
        let things = case(&rig, &aside);
        assert!(rig.sim.pending() > 0, "{what}: nothing is in flight");
        let ((), calls) = log.during(|| drop(things));
        assert!(!calls.iter().copied().any(may_wait), "{what}: {calls:?}");
        assert!(rig.sim.pending() > 0, "{what}: it waited for all of it");
        gate.open();
        assert!(rig.context.drain(SOON).is_complete(), "{what}");
        // What a worker was allocating for a future that has gone goes when it is there.
        until(what, || {
            rig.context.drain(SOON);
            rig.context.stats().live_allocations == 0
        });
        assert_eq!(rig.context.stats().failed_destroys, 0, "{what}");
        rig.clean();
    }
}

crate::schedules::explored!(
    fr_a1_a_dropped_owned_launch_keeps_its_buffers
    fr_a2_a_dropped_borrowed_launch_keeps_what_it_borrowed
    a_forgotten_future_loses_nothing_but_what_is_inside_it
    an_unpolled_future_submitted_nothing
    fr_a14_a_late_completion_wakes_nobody
    fr_a4_a_failed_registration_keeps_what_runs
    a_failure_in_the_middle_keeps_what_was_submitted
    cancelled_at_every_poll
    h4_no_drop_of_an_operation_makes_a_call_that_waits
);
