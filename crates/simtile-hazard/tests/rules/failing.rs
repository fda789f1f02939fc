//! Axes and records that fail.

use crate::support::lab::*;
use simtile_hazard::*;

#[test]
fn a_failed_axis_is_not_completed_by_what_was_ordered_after_it() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let first = lab.submit(&a, &[write(&x)]);
    let second = lab.try_with(&b, &[read(&x)], &seal).expect("follows");
    lab.tracker.fail(a.stream.axis());
    lab.run();
    assert!(lab.tracker.query(&second.event.expect("sealed")).expect("query"));
    assert!(lab.tracker.is_complete(second.stamp) && !lab.tracker.is_complete(first.stamp));
    assert!(matches!(lab.tracker.settle(first.stamp), Settled::Failed));
    assert!(lab.tracker.has_failed(a.stream.axis()) && !lab.tracker.has_failed(b.stream.axis()));
    lab.clean();
}

#[test]
fn a_failed_axis_keeps_its_place_for_ever() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let axis = a.stream.axis();
    let done = lab.submit(&a, &[write(&x)]);
    lab.run();
    lab.tracker.wait(done.stamp).expect("complete");
    lab.tracker.fail(axis);
    drop(a.stream);
    assert!(lab.tracker.has_failed(axis));
    assert_eq!((lab.fired(Rule::Closed), lab.fired(Rule::AxisEnded)), (1, 0));
    lab.clean();
}

#[test]
fn two_records_in_a_row_fail_the_axis_whatever_they_were_for() {
    let lab = Lab::with(Config { checkpoint: 1, ..Config::default() });
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.world().dead_records = true;
    assert!(lab.submit(&a, &[write(&x)]).event.is_none(), "a checkpoint that failed");
    assert_eq!(lab.fired(Rule::RecordFailed), 1);
    assert!(matches!(lab.try_with(&b, &[read(&x)], &Options::default()), Err(SubmitError::Failed { .. })));
    assert_eq!(lab.fired(Rule::RecordFailed), 2, "nothing is recorded on a failed axis");
    lab.clean();
}

#[test]
fn a_checkpoint_that_fails_is_left_to_the_next_seal() {
    let lab = Lab::with(Config { checkpoint: 1, ..Config::default() });
    let (a, x) = (lab.stream(), lab.region(64));
    // The enqueue is the first call, the record the second.
    lab.fail_call(1);
    assert!(lab.submit(&a, &[(&x, 0, 32, Mode::Write)]).event.is_none());
    assert_eq!((lab.fired(Rule::RecordFailed), lab.fired(Rule::SealedAgain), lab.records()), (1, 0, 0));
    // The next event covers both epochs, so their ranges may be joined.
    assert!(lab.submit(&a, &[(&x, 32, 64, Mode::Write)]).event.is_some());
    assert_eq!((x.region.range_count(), lab.fired(Rule::Joined)), (1, 1));
    lab.clean();
}

#[test]
fn it_is_known_whether_any_axis_has_failed() {
    let lab = Lab::new();
    let streams = [(); 4].map(|()| lab.stream());
    assert!(!lab.tracker.has_failed_axes());
    for failing in [1, 2] {
        lab.tracker.fail(streams[failing].stream.axis());
        assert!(lab.tracker.has_failed_axes(), "{failing}");
    }
    lab.clean();
}
