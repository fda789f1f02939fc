//! Kinds of streams, permits, closing, failing.

use crate::support::lab::*;
use simtile_hazard::*;

#[test]
fn borrowed_streams_are_sealed_after_each_submission_and_nothing_is_freed_on_them() {
    let lab = Lab::new();
    let (a, x) = (lab.stream_of(StreamKind::Borrowed), lab.region(64));
    for n in 1..=5 {
        assert!(lab.submit(&a, &[write(&x)]).event.is_some());
        assert_eq!(lab.records(), n);
    }
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Reclaimer);
    lab.clean();
}

#[test]
fn a_borrowed_stream_is_asked_first_whether_it_is_capturing() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream_of(StreamKind::Borrowed), lab.stream(), lab.region(64));
    lab.world().streams[a.sim].foreign_capture = true;
    let error = lab.try_with(&a, &[write(&x)], &Options::default()).unwrap_err();
    assert!(matches!(error, SubmitError::BorrowedCapturing));
    assert!(matches!(
        lab.tracker.begin_capture(&a.stream, 0, |_| Ok(())),
        Err(SubmitError::BorrowedCapturing)
    ));
    lab.submit(&b, &[write(&x)]);
    lab.world().streams[a.sim].foreign_capture = false;
    lab.submit(&a, &[write(&x)]);
    lab.clean();
}

#[test]
fn who_asks_a_borrowed_stream_that_captures_and_has_nothing_new_fails_nothing() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream_of(StreamKind::Borrowed), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.world().streams[a.sim].foreign_capture = true;
    // A drain, or an allocation that looks for room, asks every stream for the end of all it has.
    for _ in 0..3 {
        lab.tracker.tails();
    }
    assert_eq!((lab.fired(Rule::RecordFailed), lab.fired(Rule::AxisFailed)), (0, 0));
    lab.world().streams[a.sim].foreign_capture = false;
    lab.submit(&b, &[read(&x)]);
    lab.submit(&a, &[write(&x)]);
    lab.run();
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Reclaimer);
    lab.clean();
}

#[test]
fn who_asks_a_stream_that_was_closed_meanwhile_fails_nothing() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let done = lab.try_with(&a, &[write(&x), write(&y)], &seal).expect("sealed");
    // While a free holds the stream, its last handle goes, and somebody who looks for room asks for its end: in this order.
    let (tracker, stream) = (lab.tracker.clone(), a.stream);
    at_next_call(move || {
        drop(stream);
        tracker.tails();
    });
    assert_eq!(lab.tracker.retire(y.region, y.memory), Retired::Inline(done.stamp.axis));
    assert!(lab.world().streams[a.sim].closed);
    assert_eq!((lab.fired(Rule::RecordFailed), lab.fired(Rule::AxisFailed)), (0, 0));
    lab.submit(&b, &[read(&x)]);
    lab.run();
    lab.tracker.wait(done.stamp).expect("complete");
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Inline(b.stream.axis()));
    lab.clean();
}

#[test]
fn the_frontier_of_a_borrowed_stream_skips_no_wait() {
    let lab = Lab::new();
    lab.world().strict = false;
    let (a, b, c) = (lab.stream(), lab.stream_of(StreamKind::Borrowed), lab.stream());
    let (x, y) = (lab.region(64), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x), write(&y)]);
    assert_eq!(lab.submit(&b, &[read(&x)]).waits.len(), 1, "again");
    assert_eq!(lab.submit(&b, &[write(&y)]).waits.len(), 0, "its own stamps it does skip");
    lab.submit(&c, &[read(&y)]);
    assert_eq!(lab.submit(&c, &[read(&x)]).waits.len(), 1, "B vouches for itself alone");
    lab.clean();
}

#[test]
fn a_per_thread_stream_is_sealed_and_used_by_its_own_thread_alone() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream_of(StreamKind::PerThread(7)), lab.stream(), lab.region(64));
    lab.world().thread = 7;
    let mine = Options { thread: 7, ..Options::default() };
    assert!(lab.try_with(&a, &[write(&x)], &mine).expect("own thread").event.is_some());
    lab.world().thread = 8;
    let error = lab.try_with(&a, &[write(&x)], &Options { thread: 8, ..mine }).unwrap_err();
    assert!(matches!(error, SubmitError::WrongThread));
    // Another thread follows it without passing its handle to the driver.
    assert_eq!(lab.submit(&b, &[read(&x)]).waits.len(), 1);
    let second = lab.stream_of(StreamKind::PerThread(8));
    assert_ne!(second.stream.axis(), a.stream.axis(), "an axis per thread");
    lab.clean();
}

#[test]
fn the_legacy_stream_has_an_axis_of_its_own() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream_of(StreamKind::Legacy), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    assert_eq!(lab.submit(&b, &[read(&x)]).waits.len(), 1, "no assumed order");
    assert_eq!(lab.submit(&a, &[write(&x)]).waits.len(), 1);
    lab.clean();
}

#[test]
fn stamps_outlive_streams() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    let axis = a.stream.axis();
    drop(a.stream);
    assert_eq!(lab.fired(Rule::SealTail), 1, "closing seals the tail");
    assert!(lab.world().streams[a.sim].closed);
    assert_eq!(lab.submit(&b, &[read(&x)]).waits[0].after, done.stamp);
    assert_eq!(lab.fired(Rule::AxisEnded), 0, "the entry lives as long as stamps refer to it");
    lab.run();
    lab.tracker.wait(done.stamp).expect("complete");
    assert_eq!(lab.fired(Rule::AxisEnded), 1);
    let next = lab.stream();
    assert_ne!(next.stream.axis(), axis, "never reused");
    assert!(lab.tracker.is_complete(done.stamp));
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Complete));
    lab.clean();
}

#[test]
fn a_closed_stream_without_work_ends_at_once() {
    let lab = Lab::new();
    let a = lab.stream();
    drop(a.stream);
    assert_eq!((lab.records(), lab.fired(Rule::AxisEnded)), (0, 1));
}

#[test]
fn a_failed_axis_resolves_its_stamps_to_the_error_and_keeps_its_memory() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let before = lab.try_with(&a, &[write(&y)], &seal).expect("sealed");
    lab.run();
    lab.tracker.wait(before.stamp).expect("complete");
    let done = lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    lab.tracker.fail(a.stream.axis());
    let waits = lab.waits();
    assert!(matches!(lab.try_with(&b, &[read(&x)], &Options::default()), Err(SubmitError::Failed { .. })));
    assert_eq!(lab.waits(), waits, "no wait is queued on it");
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Failed));
    assert!(matches!(lab.tracker.wait(done.stamp), Err(SubmitError::Failed { .. })));
    assert!(matches!(
        lab.tracker.host(&Access::whole(&x.region, Mode::Read)),
        Err(SubmitError::Failed { .. })
    ));
    let kept = Quarantine::FailedAxis;
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Quarantined(kept));
    assert_eq!(lab.world().quarantined, [(x.memory, kept)]);
    // What had completed before is not lost.
    lab.submit(&b, &[read(&y)]);
    assert_eq!(lab.tracker.retire(y.region, y.memory), Retired::Inline(b.stream.axis()));
    lab.clean();
}

#[test]
fn an_event_that_cannot_be_queried_fails_its_axis() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let done = lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    lab.world().streams[a.sim].dead = true;
    assert!(lab.tracker.query(&done.event.expect("sealed")).is_err());
    assert!(lab.tracker.has_failed(a.stream.axis()));
}

#[test]
fn a_stream_holds_512_and_a_context_4096() {
    let lab = Lab::new();
    let streams: Vec<_> = (0..9).map(|_| lab.stream()).collect();
    let mut total = 0;
    for stream in &streams {
        let full = loop {
            match lab.try_with(stream, &[], &Options::default()) {
                Ok(_) => total += 1,
                Err(SubmitError::Full { events }) => break events,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(!full.is_empty(), "somebody to wait for");
        assert!(total <= 4096);
        if stream.sim < 7 {
            assert_eq!(total, 512 * (stream.sim as u64 + 1));
        }
    }
    assert_eq!(total, 4096, "no permit is lost in leases");
    assert!(lab.fired(Rule::StreamFull) >= 7 && lab.fired(Rule::ContextFull) >= 1);
    lab.run();
    lab.try_with(&streams[8], &[], &Options::default()).expect("room again");
    lab.clean();
}

#[test]
fn whoever_lacks_a_permit_waits_for_streams_that_hold_some_and_for_no_idle_one() {
    let lab = Lab::with(Config { context_permits: 8, ..Config::default() });
    let (a, b, c) = (lab.stream(), lab.stream(), lab.stream());
    for _ in 0..4 {
        lab.submit(&a, &[]);
        lab.submit(&b, &[]);
    }
    let Err(SubmitError::Full { events }) = lab.try_with(&c, &[], &Options::default()) else {
        panic!("the context is full")
    };
    let axes: Vec<_> = events.iter().map(|event| event.stamp().axis).collect();
    assert_eq!(axes, [a.stream.axis(), b.stream.axis()]);
    assert_eq!(lab.records(), 2, "C has nothing in flight that an event could stand for");
    assert_eq!(lab.fired(Rule::LeaseReturned), 0, "nobody had one to spare");
    lab.run();
    lab.try_with(&c, &[], &Options::default()).expect("room again");
    lab.clean();
}

#[test]
fn permits_come_back_by_one_question_if_all_has_finished_and_by_more_if_some_has() {
    let lab = Lab::with(Config { stream_permits: 96, ..Config::default() });
    let a = lab.stream();
    let fill = |times: u64| {
        (0..times).for_each(|_| drop(lab.try_with(&a, &[], &Options::default()).expect("a permit")))
    };
    fill(96);
    assert_eq!((lab.records(), lab.world().queries), (3, 0), "nothing is asked while there are permits");
    lab.run();
    fill(96);
    assert_eq!(lab.world().queries, 1, "the newest of three events covers the others");
    // Half of it finishes: the newest event has not fired, the oldest has, the one after it has not.
    for _ in 0..40 {
        lab.world().advance(a.sim);
    }
    fill(32);
    assert_eq!(lab.world().queries, 1 + 3);
    let full = lab.fired(Rule::StreamFull);
    assert!(matches!(lab.try_with(&a, &[], &Options::default()), Err(SubmitError::Full { .. })));
    assert_eq!(lab.fired(Rule::StreamFull), full + 1, "one attempt");
    // The newest and the oldest of three.
    assert_eq!(lab.world().queries, 1 + 3 + 2);
    // All but the newest: that one is not asked a second time.
    for _ in 0..60 {
        lab.world().advance(a.sim);
    }
    fill(1);
    assert_eq!(lab.world().queries, 1 + 3 + 2 + 3);
    lab.clean();
}

#[test]
fn idle_leases_come_back() {
    let lab = Lab::with(Config { context_permits: 24, ..Config::default() });
    let streams: Vec<_> = (0..20).map(|_| lab.stream()).collect();
    for stream in &streams {
        for _ in 0..10 {
            lab.try_with(stream, &[], &Options::default()).expect("a permit");
        }
        lab.run();
        for stamp in lab.tracker.tails() {
            lab.tracker.wait(stamp).expect("complete");
        }
    }
    assert!(lab.fired(Rule::LeaseReturned) > 0);
}

#[test]
fn a_context_holds_what_it_may_and_no_more() {
    let lab = Lab::with(Config { context_permits: 24, ..Config::default() });
    let a = lab.stream();
    let taken = (0..100).take_while(|_| lab.try_with(&a, &[], &Options::default()).is_ok()).count();
    assert_eq!(taken, 24);
}

#[test]
fn of_65536_axes_one_must_end_before_another_begins() {
    let lab = Lab::new();
    let sim = lab.world().add_stream(false, None, 0);
    let new = || lab.tracker.stream(sim, StreamKind::Owned, 0);
    let mut streams: Vec<_> = (0..65_536).map(|_| new().expect("a place")).collect();
    assert!(matches!(new(), Err((_, StreamError::TooManyAxes))));
    let axis = streams.swap_remove(40_000).axis();
    let next = new().expect("the place of the one that ended");
    assert_ne!(next.axis(), axis);
    assert!(new().is_err());
}

#[test]
fn a_patient_submission_waits_until_a_permit_comes_back() {
    for config in [
        Config { stream_permits: 4, ..Config::default() },
        Config { context_permits: 4, ..Config::default() },
    ] {
        let lab = Lab::with(config);
        let a = lab.stream();
        (0..4).for_each(|_| drop(lab.submit(&a, &[])));
        assert!(matches!(lab.try_with(&a, &[], &Options::default()), Err(SubmitError::Full { .. })));
        // On a thread of its own, so that the test ends if it does not.
        let (tell, told) = std::sync::mpsc::channel();
        let tracker = lab.tracker.clone();
        std::thread::spawn(move || {
            let done = tracker.submit(&a.stream, &[], &Options::default(), |_| Ok(()));
            tell.send(done.is_ok())
        });
        let soon = std::time::Duration::from_secs(30);
        assert_eq!(told.recv_timeout(soon), Ok(true), "the device goes on, and so does it");
        lab.clean();
    }
}
