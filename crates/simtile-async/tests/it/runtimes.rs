//! O5: runtimes, and which one is in force.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{SingleStream, StreamPerTask, StreamPoolRoundRobin, download, runtime, zeros};
use simtile_core::Policy;
use simtile_sim::Simulator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_runtime_has_its_devices_and_streams() {
    let sim = simulator(2);
    let runtime = Runtime::builder()
        .driver(sim.driver())
        .devices([1, 0])
        .streams(2)
        .conflict_policy(Policy::Reject)
        .oom_wait(Duration::from_millis(3))
        .spin_budget(Duration::ZERO)
        .build()
        .unwrap();
    assert_eq!(runtime.devices().unwrap().iter().map(|device| device.ordinal()).collect::<Vec<_>>(), [1, 0]);
    let ids: Vec<_> = (0..4).map(|_| runtime.next_stream().unwrap()).collect();
    assert_eq!(ids[0], ids[2]);
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[0].policy(), Policy::Reject);
    assert_eq!(ids[0].context().ordinal(), 1);
    assert_eq!(runtime.context(0).unwrap().oom_wait(), Duration::from_millis(3));
    let other = runtime.context(2).unwrap_err().to_string();
    assert!(other.contains("device 2 is none of the runtime's devices, [1, 0]"), "{other}");
    let across = runtime.across_devices();
    let devices: Vec<_> = (0..4).map(|_| across.next_stream().unwrap().context().ordinal()).collect();
    assert_eq!(devices, [1, 0, 1, 0]);
    assert!(Runtime::builder().driver(sim.driver()).devices([0, 0]).build().is_err());
    assert!(Runtime::builder().driver(sim.driver()).devices([2]).build().is_err());
    assert!(Runtime::builder().driver(sim.driver()).streams(0).build().is_err());
}

#[test]
fn an_entered_runtime_gives_streams_and_ends_with_its_scope() {
    let sim = simulator(1);
    let one = Runtime::with_driver(sim.driver());
    let two = Runtime::builder().driver(sim.driver()).scheduling(SingleStream::new).build().unwrap();
    assert!(matches!(value(1).sync(), Err(OpError::NoRuntime)));
    {
        let _one = one.enter();
        {
            let _two = two.enter();
            let stream = with_context(|cx| value(cx.stream().id().get())).sync().unwrap();
            assert_eq!(stream, two.next_stream().unwrap().id().get());
            // Other threads are not in the scope.
            simtile_sync::thread::scope(|scope| {
                scope.spawn(|| assert!(matches!(value(1).sync(), Err(OpError::NoRuntime)))).join().unwrap();
            });
        }
        assert_eq!(block_on(async { value(3).await }).unwrap(), 3);
        assert_eq!(runtime::with_device(0, |context| context.ordinal()).unwrap(), 0);
        assert!(runtime::global_policy(1).is_err());
    }
    assert!(Runtime::current().is_none());
    let failed = block_on(value(1).future());
    assert!(matches!(failed, Err(OpError::NoRuntime)));
}

#[test]
fn policies_choose() {
    let rig = rig();
    let pool = StreamPoolRoundRobin::from_streams([rig.stream.clone()]).unwrap();
    assert_eq!(value(1).schedule(&pool).unwrap().execution().unwrap().stream(), &rig.stream);
    assert!(StreamPoolRoundRobin::from_streams([]).is_err());
    let tasks = StreamPerTask::new(&rig.context);
    let (a, b) = (tasks.task().unwrap(), tasks.task().unwrap());
    assert_ne!(a.stream(), b.stream());
    let kept = a.stream().clone();
    drop(a);
    assert_eq!(tasks.task().unwrap().stream(), &kept);
}

#[test]
fn joined_operations_run_side_by_side() {
    let rig = rig();
    let runtime = Runtime::builder().driver(rig.sim.driver()).streams(2).build().unwrap();
    let gated = runtime.next_stream().unwrap();
    let free = runtime.next_stream().unwrap();
    let gate = rig.sim.gate(gated.cu_stream()).unwrap();
    simtile_sync::thread::scope(|scope| {
        let (runtime, gate) = (&runtime, gate);
        let done = scope.spawn(move || {
            let a = with_context(|cx| value(cx.stream().id().get()));
            let b = with_context(|cx| value(cx.stream().id().get()));
            join!(a, b).sync_with(runtime)
        });
        // One of them waits behind the gate.
        simtile_sync::time::sleep(Duration::from_millis(20));
        assert!(!done.is_finished());
        gate.open();
        assert_eq!(done.join().unwrap().unwrap(), (gated.id().get(), free.id().get()));
    });
}

/// Operations that a runtime places get their memory from its pools; on a stream that was named they do not.
#[test]
fn pools_belong_to_a_runtime() {
    use simtile_core::MemPool;
    let sim = simulator(2);
    let pools = |context: &_| MemPool::builder(context).label("mine").build();
    let runtime = Runtime::builder().driver(sim.driver()).pools(pools).build().unwrap();
    let used = |ordinal| runtime.pool(ordinal).unwrap().unwrap().stats().unwrap().used;
    let here = block_on(zeros::<u8>(1000).schedule(&runtime).unwrap()).unwrap();
    assert!(used(0) >= 1000 && used(1) == 0);
    let entered = runtime.enter();
    let there = zeros::<u8>(1 << 20).sync().unwrap();
    assert!(used(0) >= 1 << 20);
    assert_eq!(simtile_async::runtime::get_default_device().unwrap(), 0);
    assert!(simtile_async::runtime::get_device_pool(1).unwrap().is_some());
    drop(entered);
    let before = used(0);
    let named = runtime.context(0).unwrap().new_stream().unwrap();
    let apart = zeros::<u8>(4 << 20).sync_on(&named).unwrap();
    assert_eq!(used(0), before);
    // All devices in turn, each with its pool.
    let turns = runtime.across_devices();
    let both: Vec<_> =
        (0..2).map(|_| block_on(zeros::<u8>(2 << 20).schedule(&turns).unwrap()).unwrap()).collect();
    assert!(used(1) >= 2 << 20);
    drop((here, there, apart, both));
    let foreign = Runtime::builder().driver(sim.driver()).devices([0, 1]);
    let zero = runtime.pool(0).unwrap().unwrap().clone();
    let foreign = foreign.pools(move |_| Ok::<_, OpError>(zero.clone())).build().unwrap();
    let error = foreign.prepare().unwrap_err();
    assert!(error.to_string().contains("mine"), "{error}");
}

fn of_one_stream(sim: &Simulator) -> Runtime {
    Runtime::builder().driver(sim.driver()).scheduling(SingleStream::new).build().unwrap()
}

/// Which it is, its one stream tells.
fn in_force(runtime: &Runtime) -> bool {
    let stream = |runtime: &Runtime| runtime.next_stream().unwrap().id().get();
    Runtime::current().is_some_and(|current| stream(&current) == stream(runtime))
}

#[test]
fn guards_may_end_in_any_order() {
    let sim = simulator(1);
    let [one, two] = [(); 2].map(|()| of_one_stream(&sim));
    let first = one.enter();
    let second = two.enter();
    drop(first);
    assert!(in_force(&two));
    let third = one.enter();
    drop(second);
    assert!(in_force(&one));
    drop(third);
    assert!(Runtime::current().is_none());
}

/// In a scope of its own it is in force for one task alone, on whatever threads that runs.
#[test]
fn a_scope_is_that_of_its_future() {
    let sim = simulator(1);
    let [one, two] = [(); 2].map(|()| of_one_stream(&sim));
    let task = |runtime: &Runtime| {
        let mine = runtime.clone();
        runtime.scope(async move {
            for _ in 0..10 {
                assert!(in_force(&mine));
                tokio::task::yield_now().await;
                assert_eq!(zeros::<u8>(3).then(download).await.unwrap(), [0; 3]);
            }
        })
    };
    let both = |(one, two)| async move { tokio::join!(one, two) };
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    executor.block_on(both((task(&one), task(&two))));
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    executor.block_on(async {
        let tasks = [tokio::spawn(task(&one)), tokio::spawn(task(&two)), tokio::spawn(task(&one))];
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(Runtime::current().is_none());
}

/// When a thread ends its locals go in any order.
#[test]
fn entering_at_the_end_of_a_thread_does_nothing() {
    struct Last(Runtime);
    impl Drop for Last {
        fn drop(&mut self) {
            drop(self.0.enter());
            assert!(Runtime::current().is_none());
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let sim = simulator(1);
    let runtime = Runtime::with_driver(sim.driver());
    let ended = std::thread::spawn(move || {
        // Made before the runtime's own, and so destroyed after it.
        LAST.with(|last| *last.borrow_mut() = Some(Last(runtime.clone())));
        drop(runtime.enter());
    });
    ended.join().unwrap();
}

/// Also what a scope gives up half-way is dropped in it.
#[test]
fn a_future_is_dropped_in_its_scope() {
    struct Tells(Runtime, Arc<AtomicBool>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.1.store(in_force(&self.0), Ordering::Relaxed);
        }
    }
    let sim = simulator(1);
    let [one, two] = [(); 2].map(|()| of_one_stream(&sim));
    let _two = two.enter();
    for polls in 0..2 {
        let told = Arc::<AtomicBool>::default();
        let tells = Tells(one.clone(), told.clone());
        let mut task = Box::pin(one.scope(async move {
            let _tells = tells;
            std::future::pending::<()>().await
        }));
        for _ in 0..polls {
            assert!(poll_once(&mut task, &Default::default()).is_pending());
        }
        drop(task);
        assert!(told.load(Ordering::Relaxed) || polls == 0, "{polls}");
        assert!(in_force(&two));
    }
}

crate::schedules::explored!(
    a_runtime_has_its_devices_and_streams
    an_entered_runtime_gives_streams_and_ends_with_its_scope
    policies_choose
    joined_operations_run_side_by_side
    pools_belong_to_a_runtime
    guards_may_end_in_any_order
    a_future_is_dropped_in_its_scope
);
