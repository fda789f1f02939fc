//! F3: a context is lost. Everybody is told, by whom it was lost is told, and nothing more is called.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{AsyncKernelLaunchBuilder, download, fill, upload};
use simtile_core::{Context, DeviceBuffer, Function};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::explore::{Strategy, explore};
use simtile_sim::{Mode, Simulator};
use simtile_sync::time;
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// A launch that reads where nothing is.
fn wild(saxpy: &Function) -> impl DeviceOp<Output = ()> + use<> {
    let builder = AsyncKernelLaunchBuilder::new(saxpy).arg(1u32).arg(1f32).arg(0xdead_0000u64);
    // SAFETY: none: the fault is what is tested; the simulator contains it.
    unsafe { builder.arg(0xdead_0000u64).finalize_unchecked(LaunchConfig::for_num_elems(1)) }.unwrap()
}

#[test]
fn everybody_hears_which_operation_lost_the_context() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[1f32; 4]).unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1f32; 4]).unwrap();
    // What has finished is not suspected.
    saxpy(&rig.saxpy, 1.0, &x, &mut y).labelled("innocent").sync_on(&rig.stream).unwrap();
    let gates = [&rig.stream, &other].map(|stream| rig.sim.gate(stream.cu_stream()).unwrap());
    wild(&rig.saxpy).labelled("layer 3").enqueue_on(&rig.stream).unwrap();
    let waker = Arc::<Count>::default();
    let mut waiting: Vec<_> =
        [&rig.stream, &other].into_iter().flat_map(|stream| (0..5).map(|n| value(n).on(stream))).collect();
    for future in &mut waiting {
        assert!(poll_once(future, &waker).is_pending());
    }
    let [first, second] = gates;
    first.open();
    until("the fault", || poll_once(&mut waiting[0], &waker).is_ready());
    let mut losses = Vec::new();
    for future in waiting.into_iter().skip(1) {
        let error = block_on(future).unwrap_err();
        losses.push(error.loss().unwrap_or_else(|| panic!("{error}")).clone());
    }
    second.open();
    let later = fill(y, 1.0).labelled("later").sync_on(&rig.stream).unwrap_err();
    assert!(later.is_lost());
    let text = later.to_string();
    let work = format!("the context was lost by \"layer 3\" (launch of saxpy on {})", rig.stream);
    assert!(text.starts_with("later: ") && text.contains(&work), "{text}");
    assert!(text.contains("ILLEGAL_ADDRESS"), "{text}");
    losses.push(later.loss().unwrap().clone());
    let loss = rig.context.loss().unwrap();
    assert!(losses.iter().all(|other| Arc::ptr_eq(other, &loss)), "one loss for everybody");
    assert_eq!((loss.code(), loss.work().len()), (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, 1));
    assert_eq!(loss.work()[0].label.as_deref(), Some("layer 3"));
}

#[test]
fn all_that_was_in_flight_is_named_when_it_cannot_be_told_apart() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut y = DeviceBuffer::from_slice(&other, &[1f32; 4]).unwrap();
    let x = DeviceBuffer::from_slice(&other, &[1f32; 4]).unwrap();
    other.synchronize().unwrap();
    let gate = rig.sim.gate(other.cu_stream()).unwrap();
    saxpy(&rig.saxpy, 1.0, &x, &mut y).labelled("held").enqueue_on(&other).unwrap();
    wild(&rig.saxpy).enqueue_on(&rig.stream).unwrap();
    let error = value(1).sync_on(&rig.stream).unwrap_err();
    gate.open();
    let text = error.to_string();
    let named =
        [format!("launch of saxpy on {}", rig.stream), format!("\"held\" (launch of saxpy on {other})")];
    assert!(text.contains("lost by one of 2 in flight: "), "{text}");
    assert!(named.iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn a_call_that_fails_itself_is_named() {
    let rig = rig();
    rig.sim.lose_at(Some(Entry::cuLaunchKernel), 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let error = wild(&rig.saxpy).labelled("the call").enqueue_on(&rig.stream).unwrap_err();
    assert_eq!(error.loss().unwrap().work()[0].label.as_deref(), Some("the call"), "{error}");
    assert_eq!(error.loss().unwrap().entry(), Entry::cuLaunchKernel);
    // An earlier fault that the launch only tells of is the earlier work's.
    let rig = crate::common::rig();
    wild(&rig.saxpy).labelled("earlier").enqueue_on(&rig.stream).unwrap();
    until("the fault", || !rig.sim.reports().is_empty());
    let error = wild(&rig.saxpy).labelled("the call").enqueue_on(&rig.stream).unwrap_err();
    assert!(error.to_string().starts_with("the call: "), "{error}");
    let labels: Vec<_> = error.loss().unwrap().work().iter().map(|work| work.label.as_deref()).collect();
    assert_eq!(labels, [Some("earlier")], "{error}");
}

#[test]
fn the_loss_is_a_future_of_its_own() {
    let rig = rig();
    let lost = rig.context.lost();
    wild(&rig.saxpy).labelled("alone").enqueue_on(&rig.stream).unwrap();
    // Nobody waits for any work.
    let loss = block_on(lost).unwrap();
    assert_eq!(loss.work()[0].label.as_deref(), Some("alone"));
    // It is known from then on.
    let again = block_on(rig.context.lost()).unwrap();
    assert!(Arc::ptr_eq(&loss, &again));
    let calls = rig.sim.counts().total();
    assert!(value(1).sync_on(&rig.stream).unwrap_err().is_lost());
    assert_eq!(rig.sim.counts().total(), calls);
}

#[test]
fn a_context_that_ends_is_not_lost() {
    let sim = simulator(1);
    let context = simtile_core::Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let mut lost = context.lost();
    let (waker, dropped) = (Arc::<Count>::default(), Arc::<Count>::default());
    assert!(poll_once(&mut lost, &waker).is_pending());
    let mut given_up = context.lost();
    assert!(poll_once(&mut given_up, &dropped).is_pending());
    drop(given_up);
    drop(context);
    assert!(block_on(lost).is_none());
    assert_eq!(dropped.get(), 0);
}

/// In explore mode: futures on many streams, each at its own point, and a fault somewhere. All resolve within 100 ms.
#[test]
fn a_fault_resolves_everything_in_time() {
    for seed in 0..40 {
        let outcome = explore(seed, Strategy::of_seed(seed), || {
            let sim = Simulator::builder().mode(Mode::Explore).seed(seed).quiet().build();
            let context = Context::new(sim.driver(), 0).unwrap();
            let saxpy = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
            let streams: Vec<_> = (0..3).map(|_| context.new_stream().unwrap()).collect();
            let waker = Arc::<Count>::default();
            let mut ops: Vec<_> = streams
                .iter()
                .map(|stream| upload(vec![1u32; 8]).then(|b| fill(b, 2)).then(download).on(stream))
                .collect();
            let mut ended = vec![false; ops.len()];
            for (at, future) in ops.iter_mut().enumerate() {
                for _ in 0..(seed as usize + at) % 4 {
                    ended[at] = ended[at] || poll_once(future, &waker).is_ready();
                }
            }
            let mut lost = context.lost();
            assert!(poll_once(&mut lost, &waker).is_pending());
            let bad = &streams[seed as usize % 3];
            let queued = wild(&saxpy).labelled("wild").enqueue_on(bad);
            assert!(queued.is_ok(), "{queued:?}");
            let start = time::now();
            let mut pending = ended.iter().filter(|ended| !**ended).count() + 1;
            let mut told = None;
            while pending > 0 {
                if told.is_none()
                    && let Poll::Ready(loss) = poll_once(&mut lost, &waker)
                {
                    (told, pending) = (Some(loss), pending - 1);
                }
                for (future, ended) in ops.iter_mut().zip(&mut ended).filter(|(_, ended)| !**ended) {
                    if let Poll::Ready(outcome) = poll_once(future, &waker) {
                        assert!(
                            outcome.as_ref().map_or_else(|e| e.is_lost(), |v| *v == [2; 8]),
                            "{outcome:?}"
                        );
                        (*ended, pending) = (true, pending - 1);
                    }
                }
                assert!(time::now() - start < Duration::from_millis(100), "{pending} still wait");
                time::sleep(Duration::from_micros(500));
            }
            let loss = told.unwrap().unwrap();
            let named = loss.work().iter().any(|work| work.label.as_deref() == Some("wild"));
            assert!(named, "{loss}");
            assert!(value(1).sync_on(bad).unwrap_err().is_lost());
        });
        assert!(outcome.deadlock.is_none(), "seed {seed}: {:?}", outcome.deadlock);
        outcome.result.unwrap_or_else(|_| panic!("seed {seed}"));
    }
}

crate::schedules::explored!(
    everybody_hears_which_operation_lost_the_context
    all_that_was_in_flight_is_named_when_it_cannot_be_told_apart
    a_call_that_fails_itself_is_named
    the_loss_is_a_future_of_its_own
    a_context_that_ends_is_not_lost
);
