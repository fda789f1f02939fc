//! O2: operations whose result many use.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{DeviceOpVec, download, fill, load_module, shared, upload, zeros};
use simtile_core::DeviceBuffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

/// Makes a buffer, and counts how often.
fn counted(count: &Arc<AtomicUsize>) -> impl DeviceOp<Output = DeviceBuffer<u32>> + use<> {
    let count = count.clone();
    upload(vec![1u32, 2, 3]).inspect(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    })
}

#[test]
fn the_ancestor_runs_once_for_all_clones() {
    let rig = rig();
    let count = Arc::default();
    let op = counted(&count).shared();
    let clones: Vec<_> = (0..5).map(|_| op.clone().sync_on(&rig.stream).unwrap()).collect();
    assert!(clones.iter().all(|clone| Arc::ptr_eq(clone, &clones[0])));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let pair = zip!(op.clone().then(download), op.then(download)).sync_on(&rig.stream).unwrap();
    assert_eq!(pair, (vec![1, 2, 3], vec![1, 2, 3]));
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_ready_value_can_be_shared() {
    let rig = rig();
    let value = Arc::new(DeviceBuffer::from_slice(&rig.stream, &[5u8]).unwrap());
    let got = shared(value.clone()).sync_on(&rig.stream).unwrap();
    assert!(Arc::ptr_eq(&got, &value));
}

#[test]
fn two_threads_on_two_streams_see_one_value_in_order() {
    let rig = rig();
    for _ in 0..20 {
        let count = Arc::default();
        let op = counted(&count).map(|buffer| buffer).shared();
        simtile_sync::thread::scope(|scope| {
            for _ in 0..2 {
                let (op, stream) = (op.clone(), rig.context.new_stream().unwrap());
                scope.spawn(move || assert_eq!(op.then(download).sync_on(&stream).unwrap(), [1, 2, 3]));
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
    rig.clean();
}

#[test]
fn a_consumer_that_finds_it_running_waits() {
    let rig = rig();
    let slow = upload(vec![1u8]).inspect(|_| simtile_sync::time::sleep(Duration::from_millis(50))).shared();
    simtile_sync::thread::scope(|scope| {
        let first = slow.clone();
        let stream = &rig.stream;
        scope.spawn(move || first.sync_on(stream).unwrap());
        simtile_sync::time::sleep(Duration::from_millis(10));
        assert_eq!(slow.then(download).sync_on(stream).unwrap(), [1]);
    });
}

#[test]
fn a_failure_is_every_clones() {
    let rig = rig();
    let op = value(()).try_map(|()| Err::<(), _>(OpError::user("broken"))).shared();
    for _ in 0..3 {
        let error = op.clone().sync_on(&rig.stream).unwrap_err();
        assert_eq!(error.to_string(), "broken");
    }
    let panics = value(()).map(|()| -> () { panic!("bad") }).shared();
    for _ in 0..2 {
        assert!(matches!(panics.clone().sync_on(&rig.stream), Err(OpError::Panicked { .. })));
    }
}

#[test]
fn an_operation_that_needs_itself_is_refused() {
    let rig = rig();
    let own: Arc<std::sync::Mutex<Option<SharedDeviceOp<i32>>>> = Arc::default();
    let (inner, stream) = (own.clone(), rig.stream.clone());
    let op = value(1)
        .try_map(move |x| {
            let me = inner.lock().unwrap().clone().unwrap();
            me.sync_on(&stream).map(|y| *y + x)
        })
        .shared();
    *own.lock().unwrap() = Some(op.clone());
    assert!(matches!(op.sync_on(&rig.stream), Err(OpError::Reentrant)));
    own.lock().unwrap().take();
}

#[test]
fn halves_run_their_input_once_in_any_order() {
    let rig = rig();
    let count = Arc::new(AtomicUsize::new(0));
    let pair = |count: &Arc<AtomicUsize>| {
        let count = count.clone();
        zip!(upload(vec![1u8]), upload(vec![2u8])).inspect(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        })
    };
    let (left, right) = pair(&count).unzip();
    assert_eq!(right.then(download).sync_on(&rig.stream).unwrap(), [2]);
    assert_eq!(left.then(download).sync_on(&rig.stream).unwrap(), [1]);
    assert_eq!(count.load(Ordering::SeqCst), 1);

    let (left, right) = pair(&count).unzip();
    let both = zip!(left, right).map(|(a, b)| (b, a)).unzip();
    assert_eq!(both.0.then(download).sync_on(&rig.stream).unwrap(), [2]);
    assert_eq!(both.1.then(download).sync_on(&rig.stream).unwrap(), [1]);
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

/// fr_A6: two halves on two threads and streams; the producer runs once, consumers are ordered behind it.
#[test]
fn fr_a6_halves_on_two_threads() {
    let rig = rig();
    for _ in 0..50 {
        let (left, right) = zip!(upload(vec![1u8; 64]), upload(vec![2u8; 64])).unzip();
        simtile_sync::thread::scope(|scope| {
            let (a, b) = (rig.context.new_stream().unwrap(), rig.context.new_stream().unwrap());
            scope.spawn(move || {
                assert_eq!(left.then(|x| fill(x, 9)).then(download).sync_on(&a).unwrap(), [9; 64]);
            });
            scope.spawn(move || assert_eq!(right.then(download).sync_on(&b).unwrap(), [2; 64]));
        });
    }
    rig.clean();
}

#[test]
fn a_failure_is_both_halves() {
    let rig = rig();
    let (a, b) = value((1, 2)).try_map(|_| Err::<(i32, i32), _>(OpError::user("neither"))).unzip();
    assert_eq!(a.sync_on(&rig.stream).unwrap_err().to_string(), "neither");
    assert_eq!(b.sync_on(&rig.stream).unwrap_err().to_string(), "neither");
}

#[test]
fn each_leaf_of_a_diamond_runs_once() {
    let rig = rig();
    let count = Arc::default();
    let base = counted(&count).shared();
    let left = base.clone().then(download);
    let right = base.then(download);
    let sum = zip!(left, right).map(|(a, b)| zip_pending(a, b)).sync_on(&rig.stream).unwrap();
    assert_eq!(sum, (6, 6));
    assert_eq!(count.load(Ordering::SeqCst), 1);

    type Values<'a> = Pending<'a, Vec<u32>>;
    type Sums<'a> = (Pending<'a, u32>, Pending<'a, u32>);
    fn zip_pending<'a>(a: Values<'a>, b: Values<'a>) -> Sums<'a> {
        (a.map_ready(|a| a.iter().sum()), b.map_ready(|b| b.iter().sum()))
    }
}

/// What a poll has handed to a thread of the runtime is waited for by whoever asks next, however it may wait.
#[test]
fn work_that_a_poll_has_begun_is_everybodys() {
    let rig = rig();
    let waker = Arc::<Count>::default();
    for form in 0..3 {
        let made = zeros::<u32>(100).shared();
        let mut first = made.clone().on(&rig.stream);
        let begun = poll_once(&mut first, &waker);
        let second = match form {
            0 => made.clone().sync_on(&rig.stream),
            1 => made.clone().enqueue_on(&rig.stream),
            _ => loop {
                match made.clone().try_enqueue_on(&rig.stream) {
                    Err(OpError::QueueFull { .. }) => simtile_sync::thread::yield_now(),
                    outcome => break outcome,
                }
            },
        };
        assert_eq!(second.unwrap().len(), 100, "{form}");
        assert_eq!(value_of(begun, first).unwrap().len(), 100, "{form}");
        let loaded = load_module(SAXPY.as_bytes()).shared();
        let mut first = loaded.clone().on(&rig.stream);
        let begun = poll_once(&mut first, &waker);
        loaded.sync_on(&rig.stream).unwrap();
        value_of(begun, first).unwrap();
    }

    /// The work may have been quick: then the first poll gave the value.
    fn value_of<T>(begun: Poll<T>, future: impl Future<Output = T>) -> T {
        match begun {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => block_on(future),
        }
    }
}

/// Whoever asked is woken, also if the task that asked last has been given up.
#[test]
fn every_task_that_asked_is_woken() {
    let rig = rig();
    for given_up in [false, true] {
        let made = zeros::<u32>(1 << 12).shared();
        let (one, two) = (Arc::<Count>::default(), Arc::<Count>::default());
        let (mut first, mut second) = (made.clone().on(&rig.stream), made.on(&rig.stream));
        let (a, b) = (poll_once(&mut first, &one), poll_once(&mut second, &two));
        if given_up {
            drop(second);
        } else if b.is_pending() {
            until("the second", || two.get() > 0);
        }
        if a.is_pending() {
            until("the first", || one.get() > 0);
            until("its end", || matches!(poll_once(&mut first, &one), Poll::Ready(Ok(_))));
        }
    }
}

/// A full stream says nothing about the operation: its clones may try later.
#[test]
fn a_try_that_is_refused_spoils_no_clone() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    while fill(&mut buffer, 1).try_enqueue_on(&rig.stream).is_ok() {}
    let made = upload(vec![1u32, 2, 3]).shared();
    assert!(matches!(made.clone().try_enqueue_on(&rig.stream), Err(OpError::QueueFull { .. })));
    gate.open();
    rig.stream.synchronize().unwrap();
    assert_eq!(made.then(download).sync_on(&rig.stream).unwrap(), [1, 2, 3]);
}

/// That holds for whatever the operation is made of.
#[test]
fn a_refused_try_spoils_nothing_of_what_operations_are_made_of() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    while fill(&mut buffer, 1).try_enqueue_on(&rig.stream).is_ok() {}
    let made = || upload(vec![1u32, 2, 3]);
    let chain = made().then(|b| fill(b, 7)).shared();
    let mapped = made().map(|b| b).shared();
    let pair = zip!(made(), made()).map(|(a, _)| a).shared();
    let several = DeviceOpVec::new([made().boxed(), made().boxed()]).map(|mut all| all.remove(0)).shared();
    let within = with_context(move |_| upload(vec![1u32, 2, 3])).shared();
    let named = made().boxed().labelled("x").shared();
    let (half, other) = zip!(made(), made()).unzip();
    let full = |outcome: Result<(), OpError>| {
        assert!(matches!(outcome, Err(OpError::QueueFull { .. })), "{outcome:?}")
    };
    full(chain.clone().try_enqueue_on(&rig.stream).map(drop));
    full(mapped.clone().try_enqueue_on(&rig.stream).map(drop));
    full(pair.clone().try_enqueue_on(&rig.stream).map(drop));
    full(several.clone().try_enqueue_on(&rig.stream).map(drop));
    full(within.clone().try_enqueue_on(&rig.stream).map(drop));
    full(named.clone().try_enqueue_on(&rig.stream).map(drop));
    full(half.try_enqueue_on(&rig.stream).map(drop));
    // Nor does one that would wait for something else.
    let loaded = load_module(SAXPY.as_bytes()).map(|module| module.context().clone()).shared();
    assert!(matches!(loaded.clone().try_enqueue_on(&rig.stream), Err(OpError::WouldWait { .. })));
    gate.open();
    rig.stream.synchronize().unwrap();
    loaded.sync_on(&rig.stream).unwrap();
    assert_eq!(chain.then(download).sync_on(&rig.stream).unwrap(), [7; 3]);
    for shared in [mapped.boxed(), pair.boxed(), several.boxed(), within.boxed(), named.boxed()] {
        assert_eq!(shared.then(download).sync_on(&rig.stream).unwrap(), [1, 2, 3]);
    }
    assert_eq!(other.then(download).sync_on(&rig.stream).unwrap(), [1, 2, 3]);
    rig.clean();
}

crate::schedules::explored!(
    work_that_a_poll_has_begun_is_everybodys
    every_task_that_asked_is_woken
    a_try_that_is_refused_spoils_no_clone
    a_refused_try_spoils_nothing_of_what_operations_are_made_of
    the_ancestor_runs_once_for_all_clones
    a_ready_value_can_be_shared
    two_threads_on_two_streams_see_one_value_in_order
    a_consumer_that_finds_it_running_waits
    a_failure_is_every_clones
    an_operation_that_needs_itself_is_refused
    halves_run_their_input_once_in_any_order
    fr_a6_halves_on_two_threads
    a_failure_is_both_halves
    each_leaf_of_a_diamond_runs_once
);
