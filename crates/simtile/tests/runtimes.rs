//! The one runtime: driver, devices, streams and settings in one value.
#![cfg(feature = "sim")]

use simtile::driver::Entry;
use simtile::ops::{download, upload};
use simtile::sim::Simulator;
use simtile::{DeviceOp, Runtime, RuntimeError, SchedulingPolicy, testing};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn simulator(devices: u32) -> Simulator {
    Simulator::builder().devices(devices).quiet().build()
}

#[test]
fn no_context_is_retained_before_one_is_needed() -> Result {
    let sim = simulator(3);
    let retained = || sim.counts().of(Entry::cuDevicePrimaryCtxRetain);
    let runtime = Runtime::builder().simulator(&sim).devices([2, 0]).build()?;
    assert_eq!(runtime.devices()?.iter().map(|device| device.ordinal()).collect::<Vec<_>>(), [2, 0]);
    assert_eq!((runtime.default_ordinal(), runtime.is_simulated()), (2, true));
    let entered = runtime.enter();
    let op = upload(vec![1u8]).then(download);
    assert_eq!(retained(), 0, "chosen, entered, asked for its devices");
    assert_eq!(op.sync()?, [1]);
    assert_eq!(retained(), 1, "the first operation needs one device");
    runtime.context(0)?;
    assert_eq!(retained(), 2);
    runtime.prepare()?;
    assert_eq!(retained(), 2, "everything was there");
    drop(entered);
    Ok(())
}

/// The context is made by a thread that may wait: no poll holds its thread for it.
#[test]
fn an_await_makes_the_context_off_the_poll() -> Result {
    use simtile::sim::explore::{Strategy, explore};
    use std::future::{Future, IntoFuture};
    use std::time::Duration;
    for seed in 0..10 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let sim = Simulator::builder().mode(simtile::sim::Mode::Explore).seed(seed).quiet().build();
            sim.slow(Some(Entry::cuDevicePrimaryCtxRetain), Duration::from_millis(100));
            sim.slow(Some(Entry::cuStreamCreateWithPriority), Duration::from_millis(10));
            let runtime = Runtime::simulated(&sim);
            let _entered = runtime.enter();
            let start = testing::now();
            let mut longest = Duration::ZERO;
            let mut future = upload(vec![1u8]).then(download).into_future();
            assert!(future.execution().is_none() && !future.is_submitted());
            let values = testing::block_on(std::future::poll_fn(|cx| {
                let start = testing::now();
                let polled = std::pin::Pin::new(&mut future).poll(cx);
                longest = longest.max(testing::now() - start);
                polled
            }));
            assert_eq!(values.unwrap(), [1]);
            assert!(longest < Duration::from_millis(1), "{longest:?}");
            assert!(testing::now() - start >= Duration::from_millis(100), "the call was slow");
            // The next one knows its stream at once.
            assert!(upload(vec![1u8]).into_future().execution().is_some());
        });
        assert!(outcome.deadlock.is_none(), "seed {seed}: {:?}", outcome.deadlock);
        outcome.result.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    Ok(())
}

#[test]
fn the_builder_names_what_is_wrong() {
    let sim = simulator(2);
    let builder = || Runtime::builder().simulator(&sim);
    let text = |built: std::result::Result<Runtime, RuntimeError>| built.unwrap_err().to_string();
    assert!(text(builder().devices([2]).build()).contains("no device 2"));
    assert_eq!(
        text(builder().devices([1, 1]).build()),
        "runtime: device 1 was named twice; the limit is once"
    );
    assert_eq!(text(builder().devices([]).build()), "runtime: a list of 0 devices; the least is 1");
    assert_eq!(text(builder().streams(0).build()), "runtime: 0 streams a device; the least is 1");
    assert!(text(Runtime::builder().simulator(&simulator(0)).build()).contains("no device 0"));
}

#[test]
fn runtimes_of_one_driver_have_settings_of_their_own() -> Result {
    let first = Runtime::simulated(&simulator(2));
    let second = Runtime::builder().driver_of(&first).devices([1]).streams(1).build()?;
    assert!(second.simulator().is_some());
    assert_eq!(second.driver(), first.driver());
    assert_eq!(first.device(0)?.ordinal(), 0);
    assert!(second.device(0).is_err(), "it uses device 1 alone");
    assert_eq!(second.next_stream()?.id(), second.next_stream()?.id());
    assert_ne!(first.next_stream()?.id(), first.next_stream()?.id());
    // The simulator runs as long as one of them lives.
    drop(first);
    assert_eq!(upload(vec![3u8]).then(download).sync_on(&second.next_stream()?)?, [3]);
    Ok(())
}

/// The type is one and the same wherever it is named.
#[test]
fn there_is_one_runtime() {
    fn same(runtime: simtile::ops::Runtime) -> simtile::Runtime {
        runtime
    }
    let runtime = same(Runtime::simulated(&simulator(1)));
    let before = runtime.set_default();
    assert!(Runtime::current().is_some_and(|current| current.driver() == runtime.driver()));
    match before {
        Some(before) => drop(before.set_default()),
        None => drop(Runtime::clear_default()),
    }
}

/// Devices with little memory have some for everybody.
#[test]
fn devices_with_little_memory_work() -> Result {
    for (memory, floats) in
        [(1 << 20, 16_000), (4 << 20, 200_000), (31 << 20, 2_000_000), (33 << 20, 2_000_000)]
    {
        let sim = Simulator::builder().memory(memory).quiet().build();
        let runtime = Runtime::simulated(&sim);
        let stream = runtime.context(0)?.new_stream()?;
        let values = vec![1.5f32; floats];
        let first = upload(values.clone()).sync_on(&stream)?;
        let second = upload(values.clone()).sync_on(&stream)?;
        assert_eq!(download(second).sync_on(&stream)?, values);
        let more = upload(vec![0u8; memory as usize]).sync_on(&stream).map(drop).unwrap_err();
        assert!(more.to_string().contains("out of device memory"), "{more}");
        assert_eq!(download(first).sync_on(&stream)?, values);
        assert!(sim.reports().is_empty());
    }
    Ok(())
}

#[test]
fn threads_of_a_test_take_the_runtime_along() -> Result {
    let runtime = Runtime::simulated(&simulator(1));
    let _entered = runtime.enter();
    let values = vec![1u8, 2, 3];
    let round = || upload(values.clone()).then(download).sync();
    testing::scope(|scope| {
        let there = scope.spawn(round);
        assert_eq!(there.join().unwrap()?, values);
        Ok::<_, simtile::OpError>(())
    })?;
    let there = testing::spawn("other", || upload(vec![4u8]).then(download).sync())?;
    assert_eq!(there.join().unwrap()?, [4]);
    Ok(())
}
