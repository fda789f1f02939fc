//! The race checker through the table.

use super::{Rig, code, ok};
use crate::config::Checks;
use crate::report::ReportKind;
use crate::{Mode, Simulator};
use simtile_driver::sys::*;

fn rigs() -> Vec<Rig> {
    let build = |mode| Rig::with(Simulator::builder().mode(mode).checks(Checks::ALL));
    [Mode::Fast, Mode::Fifo, Mode::Explore].map(build).into()
}

fn allocate(rig: &Rig, bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(rig, cuMemAlloc(&mut pointer, bytes));
    pointer
}

fn races(rig: &Rig) -> Vec<String> {
    ok!(rig, cuCtxSynchronize());
    let reports = rig.sim.take_reports();
    reports.into_iter().filter(|report| report.kind == ReportKind::Race).map(|report| report.text).collect()
}

#[test]
fn two_streams_that_nothing_orders_race_and_an_event_orders_them() {
    for rig in rigs() {
        let (a, b, buffer) = (rig.stream(), rig.stream(), allocate(&rig, 4096));
        ok!(rig, cuMemsetD8Async(buffer, 1, 4096, a));
        ok!(rig, cuMemsetD8Async(buffer + 4000, 2, 96, b));
        let found = races(&rig);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("memset") && found[0].contains("nothing orders them"), "{found:?}");

        ok!(rig, cuMemsetD8Async(buffer, 1, 4096, a));
        let event = rig.mark(a);
        ok!(rig, cuStreamWaitEvent(b, event, 0));
        ok!(rig, cuMemsetD8Async(buffer + 4000, 2, 96, b));
        assert_eq!(races(&rig), [""; 0]);
    }
}

#[test]
fn disjoint_bytes_and_host_waits_are_no_race() {
    for rig in rigs() {
        let (a, b, buffer) = (rig.stream(), rig.stream(), allocate(&rig, 4096));
        ok!(rig, cuMemsetD8Async(buffer, 1, 2048, a));
        ok!(rig, cuMemsetD8Async(buffer + 2048, 2, 2048, b));
        ok!(rig, cuStreamSynchronize(a));
        ok!(rig, cuStreamSynchronize(b));
        ok!(rig, cuMemsetD8Async(buffer, 3, 4096, b));
        assert_eq!(races(&rig), [""; 0]);
    }
}

#[test]
fn waiting_for_one_of_two_readers_is_not_enough() {
    for rig in rigs() {
        let (a, b, c, x) = (rig.stream(), rig.stream(), rig.stream(), allocate(&rig, 4096));
        let (ya, yb) = (allocate(&rig, 4096), allocate(&rig, 4096));
        ok!(rig, cuMemsetD8(x, 7, 4096));
        ok!(rig, cuCtxSynchronize());
        ok!(rig, cuMemcpyDtoDAsync(ya, x, 4096, a));
        ok!(rig, cuMemcpyDtoDAsync(yb, x, 4096, b));
        let event = rig.mark(b);
        ok!(rig, cuStreamWaitEvent(c, event, 0));
        ok!(rig, cuMemsetD8Async(x, 0, 4096, c));
        let found = races(&rig);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("reads") && found[0].contains("writes"), "{found:?}");
    }
}

#[test]
fn a_free_that_does_not_follow_the_last_use_is_found() {
    for ordered in [true, false] {
        let rig = Rig::with(Simulator::builder().mode(Mode::Fifo).checks(Checks::ALL));
        let (a, b) = (rig.stream(), rig.stream());
        let mut pointer = 0;
        ok!(rig, cuMemAllocAsync(&mut pointer, 4096, a));
        let ready = rig.mark(a);
        ok!(rig, cuStreamWaitEvent(b, ready, 0));
        ok!(rig, cuMemsetD8Async(pointer, 1, 4096, b));
        if ordered {
            let done = rig.mark(b);
            ok!(rig, cuStreamWaitEvent(a, done, 0));
        }
        ok!(rig, cuMemFreeAsync(pointer, a));
        // A race if the use came first, a use after free if it came second.
        let synchronised = code!(rig, cuCtxSynchronize());
        let found = rig.sim.take_reports();
        let is_it = |kind| matches!(kind, ReportKind::Race | ReportKind::MemoryFault);
        assert_eq!(
            found.iter().filter(|report| is_it(report.kind)).count(),
            usize::from(!ordered),
            "{found:?}"
        );
        assert!(!ordered || synchronised.is_ok());
    }
}

#[test]
fn use_that_does_not_follow_the_allocation_is_a_race() {
    let rig = Rig::with(Simulator::builder().mode(Mode::Fifo).checks(Checks::ALL));
    let (a, b) = (rig.stream(), rig.stream());
    let mut pointer = 0;
    ok!(rig, cuMemAllocAsync(&mut pointer, 4096, a));
    ok!(rig, cuMemsetD8Async(pointer, 1, 4096, b));
    let found = races(&rig);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("allocation"), "{found:?}");
}
