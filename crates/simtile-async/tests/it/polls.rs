//! O4: no poll holds its thread. In virtual time, where every slow call takes as long as it is told to.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{download, load_function, load_module, upload, write, zeros};
use simtile_core::{Context, DeviceBuffer};
use simtile_driver::Entry;
use simtile_sim::explore::{Strategy, explore};
use simtile_sim::{Checks, Mode, Simulator};
use simtile_sync::{Condvar, Mutex, time};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

/// A thread that waits for its waker, in turn with the others.
#[derive(Default)]
struct Parked {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.bell.notify_one();
    }
}

/// Awaits, and says how long the longest poll took.
fn longest_poll<F: Future + Unpin>(mut future: F) -> (F::Output, Duration) {
    let parked = Arc::<Parked>::default();
    let waker = Waker::from(parked.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    let mut longest = Duration::ZERO;
    loop {
        let start = time::now();
        let polled = Pin::new(&mut future).poll(&mut cx);
        longest = longest.max(time::now() - start);
        if let Poll::Ready(output) = polled {
            return (output, longest);
        }
        let mut woken = parked.woken.lock();
        while !std::mem::take(&mut *woken) {
            parked.bell.wait(&mut woken);
        }
    }
}

#[test]
fn slow_calls_hold_no_poll() {
    for seed in 0..10 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let sim = Simulator::builder().mode(Mode::Explore).seed(seed).checks(Checks::ALL).quiet().build();
            let context = Context::new(sim.driver(), 0).unwrap();
            let stream = context.new_stream().unwrap();
            let mut kept = DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap();
            stream.synchronize().unwrap();
            for entry in [
                Entry::cuModuleLoadDataEx,
                Entry::cuMemAllocFromPoolAsync,
                Entry::cuMemHostAlloc,
                Entry::cuEventSynchronize,
                Entry::cuFuncLoad,
                Entry::cuMemFreeAsync,
                Entry::cuModuleUnload,
                Entry::cuEventDestroy,
                Entry::cuStreamDestroy,
            ] {
                sim.slow(Some(entry), Duration::from_millis(20));
            }
            let limit = Duration::from_millis(1);
            let start = time::now();
            let load = load_module(SAXPY.as_bytes()).then(|module| load_function(module, "saxpy"));
            let (function, longest) = longest_poll(load.on(&stream));
            assert_eq!(function.unwrap().name(), "saxpy");
            assert!(longest < limit, "load: {longest:?}");
            assert!(time::now() - start >= Duration::from_millis(20), "the calls were slow");
            let chain = zeros::<u32>(77).then(|_| upload(vec![1u32; 50])).then(download);
            let (values, longest) = longest_poll(chain.on(&stream));
            assert_eq!(values.unwrap(), [1; 50]);
            assert!(longest < limit, "allocation: {longest:?}");
            // What closures drop, and what the operation itself has no more use for.
            let made = context.new_stream().unwrap();
            let event = stream.record_event().unwrap();
            let module = context.load_module_from_ptx_src(SAXPY).unwrap();
            let other = DeviceBuffer::<u32>::zeroed(&made, 10).unwrap();
            let chain = zeros::<u32>(500).then(move |a| {
                drop((a, module, event, other, made));
                upload(vec![2u32; 9])
            });
            let (left, longest) = longest_poll(chain.map(drop).on(&stream));
            assert!(left.is_ok() && longest < limit, "frees: {longest:?} {left:?}");
            let (_, longest) = longest_poll(write(&mut kept, vec![3u32; 1000]).on(&stream));
            assert!(longest < limit, "write: {longest:?}");
            assert!(context.drain(Duration::from_secs(10)).is_complete());
            assert_eq!(context.stats().live_allocations, 1);
        });
        assert!(outcome.deadlock.is_none(), "{:?}", outcome.deadlock);
        outcome.result.unwrap_or_else(|_| panic!("seed {seed}"));
    }
}

/// 64 MiB go up and come down in pieces of a few megabytes a poll.
#[test]
fn large_copies_come_in_pieces() {
    let rig = rig();
    let mut buffer = DeviceBuffer::<u8>::zeroed(&rig.stream, large(64 << 20)).unwrap();
    let values: Vec<u8> = (0..large(64 << 20)).map(|i| (i % 251) as u8).collect();
    let waker = Arc::<Count>::default();
    let mut polls = 0;
    let mut future = write(&mut buffer, &values).on(&rig.stream);
    while !matches!(poll_once(&mut future, &waker), Poll::Ready(Ok(_))) {
        polls += 1;
        simtile_sync::time::sleep(Duration::from_micros(100));
    }
    assert!(
        polls >= if values.len() > 32 << 20 { 15 } else { 1 },
        "{polls} polls for {} bytes",
        values.len()
    );
    drop(future);
    let back = block_on(download(&buffer).on(&rig.stream)).unwrap();
    assert!(back == values);
    rig.clean();
}

crate::schedules::explored!(large_copies_come_in_pieces);
