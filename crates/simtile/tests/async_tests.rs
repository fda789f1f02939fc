//! Futures and threads under `#[simtile::test]`: what waits is seen by the schedule.
#![cfg(all(feature = "sim", feature = "macros"))]

use simtile::ops::{download, fill, upload, zeros};
use simtile::testing::{self, TestCx};
use simtile::{DeviceOp, OpError, Runtime, join, zip};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[simtile::test(seeds = 20)]
fn a_future_is_awaited_on_every_schedule(runtime: &Runtime) -> Result {
    let values =
        testing::block_on(upload(vec![1u32; 100]).then(|b| fill(b, 7)).then(download).schedule(runtime)?)?;
    assert_eq!(values, [7; 100]);
    Ok(())
}

/// The test's runtime is in force: nothing needs to be named.
#[simtile::test(seeds = 20)]
async fn a_test_may_be_async(_: &Runtime) -> Result<(), OpError> {
    let (a, b) = join!(upload(vec![1u8; 10]).then(download), zeros::<u8>(10).then(download)).await?;
    assert_eq!((a, b), (vec![1; 10], vec![0; 10]));
    Ok(())
}

/// Without seeds, with both arguments, and without a result.
#[simtile::test(devices = 2)]
async fn an_async_test_runs_once(cx: &TestCx) {
    let everywhere = cx.runtime().across_devices();
    for ordinal in [0, 1, 0] {
        let future = zip!(zeros::<u32>(3), upload(vec![2u32; 3])).schedule(&everywhere).unwrap();
        let (zeros, twos) = future.await.unwrap();
        assert_eq!(zeros.context().ordinal(), ordinal);
        let stream = zeros.context().new_stream().unwrap();
        assert_eq!(download(twos).on(&stream).await.unwrap(), [2; 3]);
    }
}

/// The seed decides how the futures of several threads meet, and every seed gives all of them their values.
#[test]
fn seeds_decide_how_futures_of_threads_meet() {
    let orders = Mutex::new(BTreeSet::new());
    let runs = AtomicUsize::new(0);
    testing::Spec::new("async_tests", "seeds_decide_how_futures_of_threads_meet").seeds(16).run(|_| {
        let order = Mutex::new(String::new());
        testing::scope(|scope| {
            let runtime = Runtime::current().unwrap();
            for name in [b'a', b'b', b'c'] {
                let (runtime, order) = (runtime.clone(), &order);
                scope.spawn(move || {
                    let _entered = runtime.enter();
                    let values = testing::block_on(async move { upload(vec![name]).then(download).await });
                    assert_eq!(values.unwrap(), [name]);
                    order.lock().unwrap().push(char::from(name));
                });
            }
        });
        orders.lock().unwrap().insert(order.into_inner().unwrap());
        runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(runs.into_inner(), 16);
    let orders = orders.into_inner().unwrap();
    assert!(orders.len() >= 2, "{orders:?}");
}

/// A thread that was started by `spawn` has the runtime of the one that started it.
#[simtile::test(seeds = 10)]
fn threads_inherit_the_runtime(_: &Runtime) -> Result {
    let thread =
        testing::spawn("worker", || testing::block_on(async { upload(vec![5u8]).then(download).await }))?;
    assert_eq!(thread.join().map_err(|_| "the thread panicked")??, [5]);
    Ok(())
}

/// Time is virtual: an hour takes no time.
#[simtile::test(seeds = 5)]
async fn an_hour_is_slept_in_no_time(_: &Runtime) {
    let start = testing::now();
    testing::sleep(Duration::from_secs(3600));
    assert!(testing::now() - start >= Duration::from_secs(3600));
}

/// What a panic said.
fn panic_of(run: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
    *panic.downcast::<String>().expect("a text")
}

/// A future that nobody can wake is a report, explored or not.
#[test]
fn a_future_that_nobody_can_wake_is_a_deadlock() {
    let spec = || testing::Spec::new("async_tests", "never");
    for spec in [spec(), spec().seeds(2)] {
        let text = panic_of(|| {
            spec.run(|_| {
                testing::block_on(std::future::pending::<()>());
                Ok(())
            });
        });
        assert!(text.contains("deadlock: block_on waits for a future that is pending"), "{text}");
        assert!(text.contains("nobody has its waker any more"), "{text}");
    }
}

/// A waker is held, but by somebody who waits, too: explored, that is a deadlock with everybody's state.
#[test]
fn a_waker_that_is_held_by_nobody_who_runs_is_a_deadlock() {
    let kept = Mutex::new(None);
    let text = panic_of(|| {
        testing::Spec::new("async_tests", "held").seeds(1).run(|_| {
            let waits = std::future::poll_fn(|cx| {
                *kept.lock().unwrap() = Some(cx.waker().clone());
                std::task::Poll::<()>::Pending
            });
            testing::block_on(waits);
            Ok(())
        });
    });
    assert!(text.contains("deadlock: nobody can go on"), "{text}");
}

/// An operation behind a gate that nobody opens: the same, in words of the schedule.
#[test]
fn an_operation_that_cannot_end_is_a_deadlock() {
    use simtile::sim::explore::{Strategy, explore};
    use simtile::sim::{Mode, Simulator};
    let outcome = explore(0, Strategy::of_seed(0), || {
        let sim = Simulator::builder().mode(Mode::Explore).quiet().build();
        let stream = Runtime::simulated(&sim).context(0).unwrap().new_stream().unwrap();
        let gate = sim.gate(stream.cu_stream()).unwrap();
        let ended = testing::block_on(upload(vec![1]).then(download).on(&stream));
        drop(gate);
        ended.is_ok()
    });
    let why = outcome.deadlock.expect("a deadlock");
    assert!(why.contains("deadlock: nobody can go on"), "{why}");
    assert!(!matches!(outcome.result, Ok(true)));
}

#[test]
fn settings_outside_of_their_limits_are_named() {
    let spec = || testing::Spec::new("async_tests", "limits");
    for (spec, text) in [
        (spec().devices(100), "devices=100: allowed is a number from 0 to 64"),
        (spec().seeds(0), "seeds = 0; the least is 1"),
        (
            spec().memory(1000),
            "memory=1000: allowed is a size such as 512MiB, 4GiB or a number of bytes, from 1MiB to 4TiB",
        ),
        (spec().memory(u64::MAX), "from 1MiB to 4TiB"),
        (
            spec().faults(&[testing::Fault::fail(
                simtile::driver::Entry::cuInit,
                0,
                simtile::driver::sys::CUresult::CUDA_ERROR_UNKNOWN,
            )]),
            "a fault at call 0",
        ),
    ] {
        let said = panic_of(|| spec.run(|_| Ok(())));
        assert!(said.starts_with("limits: ") && said.contains(text), "{said}");
    }
}
