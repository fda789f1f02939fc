//! F3: in a forked child nobody wakes futures and nobody does what was handed to other threads, so whoever waits for them is told.
#![cfg(unix)]

#[path = "../../simtile-core/tests/common/child.rs"]
mod child;

use child::in_child;
use simtile_async::prelude::*;
use simtile_async::{fill, load_module, zeros};
use simtile_core::{Context, DeviceBuffer};
use simtile_driver::Entry;
use simtile_sim::Simulator;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const PTX: &[u8] = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n ret;\n}\n";

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut std::task::Context::from_waker(Waker::noop()))
}

fn forked<T>(outcome: Result<T, OpError>) -> bool {
    outcome.is_err_and(|error| error.to_string().contains("the driver does not work in a forked child"))
}

#[test]
fn f3_whoever_waits_for_a_thread_of_the_parent_is_told() {
    let sim = Simulator::builder().quiet().build();
    let context = Context::new(sim.driver(), 0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    stream.synchronize().unwrap();
    // A future that has been submitted, and one whose code is being loaded.
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let mut submitted = fill(&mut buffer, 3).map(drop).on(&stream);
    assert!(poll_once(&mut submitted).is_pending());
    assert!(in_child(|| forked(futures::executor::block_on(&mut submitted))));
    let pause = sim.pause_at(Entry::cuModuleLoadDataEx, 1);
    let loaded = load_module(PTX).shared();
    let mut loading = loaded.clone().on(&stream).into_future();
    assert!(poll_once(&mut loading).is_pending());
    assert!(pause.wait_reached(SOON));
    assert!(in_child(|| forked(futures::executor::block_on(&mut loading))));
    assert!(in_child(|| forked(loaded.clone().sync_on(&stream))));
    pause.release();
    gate.open();
    futures::executor::block_on(submitted).unwrap();
    futures::executor::block_on(loading).unwrap();
    // A shared operation that another thread is submitting.
    let shared = zeros::<u32>(123_456).shared();
    let pause = sim.pause_at(Entry::cuMemAllocFromPoolAsync, 1);
    std::thread::scope(|scope| {
        let submitting = scope.spawn(|| shared.clone().enqueue_on(&stream).map(drop));
        assert!(pause.wait_reached(SOON));
        let fine = in_child(|| forked(shared.clone().sync_on(&stream)));
        pause.release();
        assert!(fine && submitting.join().unwrap().is_ok());
    });
    assert_eq!(buffer.to_vec(&stream).unwrap(), [3; 8]);
}
