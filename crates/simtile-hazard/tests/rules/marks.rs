//! Marks: the end of what a stream holds, without work and without a permit.

use crate::support::lab::*;
use simtile_hazard::*;

fn mark(lab: &Lab, stream: &LabStream) -> EventRef<crate::support::Mock> {
    lab.tracker.try_mark(&stream.stream, 0).expect("a mark")
}

#[test]
fn a_mark_takes_no_permit_and_is_given_where_none_is_left() {
    for config in [
        Config { stream_permits: 4, ..Config::default() },
        Config { context_permits: 4, ..Config::default() },
    ] {
        let lab = Lab::with(config);
        let a = lab.stream();
        (0..10).for_each(|_| drop(mark(&lab, &a)));
        (0..4).for_each(|_| drop(lab.submit(&a, &[])));
        assert!(matches!(lab.try_with(&a, &[], &Options::default()), Err(SubmitError::Full { .. })));
        let event = mark(&lab, &a);
        assert_eq!(lab.tracker.query(&event), Ok(false), "the work before it has not run");
        let patient = lab.tracker.mark(&a.stream, 0).expect("the patient form waits for none, either");
        lab.run();
        assert_eq!(lab.tracker.query(&event), Ok(true));
        assert_eq!(lab.tracker.query(&patient), Ok(true));
        (0..4).for_each(|_| drop(lab.submit(&a, &[])));
        lab.clean();
    }
}

#[test]
fn a_mark_is_behind_work_that_the_tracker_does_not_know() {
    let lab = Lab::new();
    let a = lab.stream();
    lab.submit(&a, &[]);
    lab.run();
    assert_eq!(lab.tracker.query(&mark(&lab, &a)), Ok(true));
    lab.world().foreign_work(a.sim, &[]);
    let event = mark(&lab, &a);
    assert_eq!(lab.tracker.query(&event), Ok(false));
    assert!(!lab.tracker.is_complete(event.stamp()));
    lab.run();
    assert_eq!(lab.tracker.query(&event), Ok(true));
    lab.clean();
}

#[test]
fn unanswered_marks_share_an_event_when_there_are_many() {
    let lab = Lab::with(Config { max_marks: 8, ..Config::default() });
    let a = lab.stream();
    lab.submit(&a, &[]);
    let first: Vec<_> = (0..9).map(|_| mark(&lab, &a)).collect();
    assert_eq!(lab.records(), 9, "one for the work, and eight that nothing was submitted before");
    for _ in 0..1000 {
        assert!(mark(&lab, &a).same(&first[8]));
    }
    assert_eq!(lab.records(), 9);
    // New work has an event of its own.
    let done = lab.submit(&a, &[]);
    let newer = mark(&lab, &a);
    assert!(newer.stamp().epoch >= done.stamp.epoch && !newer.same(&first[8]));
    assert!(mark(&lab, &a).same(&newer), "but what is unanswered still counts");
    // Who waits in place is given one of its own: there are as many as threads.
    assert!(!lab.tracker.mark(&a.stream, 0).expect("a mark").same(&newer));
    lab.run();
    let records = lab.records();
    (0..20).for_each(|_| assert_eq!(lab.tracker.query(&mark(&lab, &a)), Ok(true)));
    assert_eq!(lab.records(), records + 20, "answered ones do not count");
    lab.clean();
}

#[test]
fn a_mark_waits_for_nobody_who_submits() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let busy = std::cell::Cell::new(false);
    lab.submit_running(&a, &[write(&x)], &Options::default(), || {
        busy.set(matches!(lab.tracker.try_mark(&a.stream, 0), Err(SubmitError::Busy(Busy::Stream))));
    })
    .expect("submission");
    assert!(busy.get());
    mark(&lab, &a);
    lab.clean();
}

#[test]
fn a_stream_that_takes_no_work_takes_no_mark() {
    let lab = Lab::new();
    let (a, b, c) =
        (lab.stream(), lab.stream_of(StreamKind::Borrowed), lab.stream_of(StreamKind::PerThread(7)));
    let capture = lab.tracker.begin_capture(&a.stream, 0, |sim| {
        lab.world().begin_capture(*sim);
        Ok(())
    });
    let capture = capture.expect("a capture");
    assert!(matches!(lab.tracker.try_mark(&a.stream, 0), Err(SubmitError::Capturing)));
    capture.abandon(|sim| lab.world().end_capture(*sim));
    mark(&lab, &a);
    lab.world().streams[b.sim].foreign_capture = true;
    assert!(matches!(lab.tracker.try_mark(&b.stream, 0), Err(SubmitError::BorrowedCapturing)));
    lab.world().streams[b.sim].foreign_capture = false;
    mark(&lab, &b);
    assert!(matches!(lab.tracker.try_mark(&c.stream, 8), Err(SubmitError::WrongThread)));
    lab.tracker.fail(a.stream.axis());
    assert!(matches!(lab.tracker.mark(&a.stream, 0), Err(SubmitError::Failed { .. })));
    lab.clean();
}

#[test]
fn a_mark_whose_record_fails_is_made_again_and_fails_the_stream_the_second_time() {
    let lab = Lab::new();
    let a = lab.stream();
    lab.submit(&a, &[]);
    lab.fail_call(0);
    let event = mark(&lab, &a);
    assert_eq!(lab.fired(Rule::SealedAgain), 1);
    lab.run();
    assert_eq!(lab.tracker.query(&event), Ok(true));
    lab.world().dead_records = true;
    assert!(matches!(lab.tracker.try_mark(&a.stream, 0), Err(SubmitError::Failed { .. })));
    assert!(lab.tracker.has_failed(a.stream.axis()));
    lab.clean();
}

#[test]
fn the_end_of_a_stream_is_behind_its_marks() {
    let lab = Lab::new();
    let a = lab.stream_of(StreamKind::Borrowed);
    lab.submit(&a, &[]);
    lab.run();
    lab.world().foreign_work(a.sim, &[]);
    let event = mark(&lab, &a);
    let stamp = event.stamp();
    drop(a.stream);
    for stamp in lab.tracker.tails() {
        assert!(!matches!(lab.tracker.settle(stamp), Settled::Complete));
    }
    assert!(!lab.tracker.is_complete(stamp), "what its owner queued still runs");
    lab.run();
    assert_eq!(lab.tracker.query(&event), Ok(true));
    assert!(lab.tracker.is_complete(stamp));
    lab.clean();
}
