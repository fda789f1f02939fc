//! Who holds what while, and who meets whom.

use crate::support::lab::*;
use crate::support::mock::AT_CLOSE;
use simtile_hazard::*;
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn readers_of_a_region_that_several_streams_use_share_its_guard() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let plain = Options::default();
    let meanwhile = |outer: &LabStream, inner: &LabStream| {
        lab.submit_running(outer, &[read(&x)], &plain, || {
            lab.try_with(inner, &[read(&x)], &plain).expect("both read");
        })
        .expect("submitted");
    };
    meanwhile(&a, &b);
    // Written by one stream, it is that stream's alone, until another reads it.
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x)]);
    meanwhile(&b, &a);
    meanwhile(&a, &b);
    lab.clean();
}

#[test]
fn guards_are_taken_by_region_whatever_the_order_of_the_list() {
    let lab = Lab::new();
    let (a, b, c, x, y) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    std::thread::scope(|scope| {
        let (tracker, stream, first, second) = (&lab.tracker, &b.stream, &x.region, &y.region);
        lab.submit_running(&a, &[write(&x)], &Options::default(), || {
            scope.spawn(move || {
                let accesses = [Access::whole(second, Mode::Write), Access::whole(first, Mode::Write)];
                tracker.submit(stream, &accesses, &Options::default(), |_| Ok(())).expect("in the end");
            });
            while lab.fired(Rule::GuardBusy) == 0 {
                std::thread::yield_now();
            }
            // It waits for X and must not have Y.
            let other = [Access::whole(&y.region, Mode::Write)];
            tracker.try_submit(&c.stream, &other, &Options::default(), |_| Ok(())).expect("Y is free");
        })
        .expect("submitted");
    });
}

#[test]
fn a_stream_whose_work_is_covered_is_not_needed() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    lab.submit_running(&a, &[write(&y)], &Options::default(), || {
        let follower = lab.try_with(&b, &[read(&x)], &Options::default()).expect("A is held, but not needed");
        assert_eq!(follower.waits.len(), 1);
    })
    .expect("submitted");
    lab.clean();
}

#[test]
fn what_a_request_leaves_to_do_is_done_with_nothing_held() {
    let lab = Lab::new();
    let (a, b, c) = (lab.stream(), lab.stream(), lab.stream());
    let x: &'static LabRegion = Box::leak(Box::new(lab.region(64)));
    lab.submit(&a, &[write(x)]);
    // B seals A, and while it does so A's handle goes: B finds the request when it gives A back.
    at_next_call(move || drop(a.stream));
    let free = Rc::new(Cell::new(None));
    let (tracker, found) = (lab.tracker.clone(), free.clone());
    AT_CLOSE.set(Some(Box::new(move || {
        let accesses = [Access::whole(&x.region, Mode::Write)];
        let done = tracker.try_submit(&c.stream, &accesses, &Options::default(), |_| Ok(()));
        found.set(Some(done.is_ok()));
    })));
    assert_eq!(lab.submit(&b, &[read(x)]).waits.len(), 1);
    assert!(lab.world().streams[a.sim].closed);
    assert_eq!(free.get(), Some(true), "the stream is given back when X is free again");
}

#[test]
fn memory_that_two_streams_use_is_not_left_to_one_that_is_busy() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    lab.submit(&a, &[read(&x)]);
    lab.submit(&b, &[read(&x)]);
    lab.submit_running(&a, &[write(&y)], &Options::default(), || {
        assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Reclaimer);
    })
    .expect("submitted");
    lab.clean();
}

#[test]
fn a_drain_during_a_launch_names_the_work_that_runs() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let mut tails = Vec::new();
    let done = lab
        .submit_running(&a, &[write(&x)], &Options::default(), || tails = lab.tracker.tails())
        .expect("submitted");
    assert_eq!(tails, [done.stamp]);
    assert_eq!(lab.records(), 1, "and has it sealed");
    lab.clean();
}

#[test]
fn two_requests_for_one_epoch_record_one_event_and_none_for_what_completed_meanwhile() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    lab.submit_running(&a, &[write(&x)], &Options::default(), || {
        for _ in 0..2 {
            assert!(matches!(lab.tracker.settle(done.stamp), Settled::Unsealed));
        }
    })
    .expect("submitted");
    assert_eq!((lab.records(), lab.fired(Rule::Requested)), (1, 2));
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Pending(_)));
    assert_eq!(lab.fired(Rule::Requested), 2, "nothing to ask for");
    // A synchronisation completes what the request was for.
    let done = lab.submit(&a, &[write(&x)]);
    let queued = lab.world().queued();
    let mark = lab.tracker.begin_synchronize_all();
    lab.submit_running(&a, &[write(&x)], &Options::default(), || {
        assert!(matches!(lab.tracker.settle(done.stamp), Settled::Unsealed));
        lab.world().synchronized(&queued);
        lab.tracker.end_synchronize_all(mark);
    })
    .expect("submitted");
    assert_eq!(lab.records(), 1);
    lab.clean();
}
