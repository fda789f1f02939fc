//! Bumps, records, events, seals.

use crate::support::lab::*;
use simtile_hazard::*;

#[test]
fn bump_before_record_a_failed_record_loses_no_work() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let first = lab.submit(&a, &[write(&x)]);
    // The seal that B needs fails once; the second one covers the work all the same.
    lab.fail_call(0);
    let second = lab.submit(&b, &[read(&x)]);
    assert_eq!(second.waits.len(), 1);
    assert_eq!((lab.fired(Rule::RecordFailed), lab.fired(Rule::SealedAgain)), (1, 1));
    // Work after a seal is never taken for covered by it.
    let third = lab.submit(&a, &[write(&lab.region(16))]);
    assert!(third.stamp.epoch > first.stamp.epoch + 1, "each attempt has bumped");
    lab.clean();
}

#[test]
fn work_after_a_seal_is_in_the_next_epoch_and_needs_an_event_of_its_own() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let first = lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    let second = lab.submit(&a, &[write(&y)]);
    assert!(second.stamp.epoch > first.stamp.epoch);
    assert_eq!(lab.records(), 1);
    let follower = lab.submit(&b, &[read(&y)]);
    assert_eq!(follower.waits[0].after, second.stamp);
    assert!(lab.records() >= 2, "the first event does not cover it");
    lab.clean();
}

#[test]
fn events_that_have_fired_leave_their_axis_and_are_used_again() {
    let lab = Lab::with(Config { event_reserve: 4, ..Config::default() });
    let (a, x) = (lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    for _ in 0..200 {
        let done = lab.try_with(&a, &[write(&x)], &seal).expect("submitted");
        lab.run();
        assert!(lab.tracker.query(&done.event.expect("sealed")).expect("query"));
    }
    let made = lab.fired(Rule::EventsMade) * 4 + lab.fired(Rule::EventMadeLate);
    assert!(made <= 16, "{made} events for one that is in flight at a time");
    lab.clean();
}

#[test]
fn a_failing_record_that_was_done_all_the_same_covers_nothing_later() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.world().fault = Some(crate::support::Fault { after: 0, done_anyway: true });
    lab.submit(&b, &[read(&x)]);
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x)]);
    lab.clean();
}

#[test]
fn failing_twice_the_axis_is_failed() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    lab.world().dead_records = true;
    let error = lab.try_with(&b, &[read(&x)], &Options::default()).unwrap_err();
    assert!(matches!(error, SubmitError::Failed { axis } if axis == a.stream.axis()), "{error}");
    lab.world().dead_records = false;
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Failed));
    assert!(matches!(lab.try_with(&a, &[], &Options::default()), Err(SubmitError::Failed { .. })));
    assert_eq!((lab.fired(Rule::RecordFailed), lab.fired(Rule::AxisFailed)), (2, 1));
    lab.clean();
}

#[test]
fn records_that_fail_one_at_a_time_do_not_fail_the_axis() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    for _ in 0..4 {
        lab.fail_call(1);
        assert!(lab.try_with(&a, &[write(&x)], &seal).expect("sealed again").event.is_some());
    }
    assert_eq!(lab.fired(Rule::AxisFailed), 0);
}

#[test]
fn an_event_is_not_recorded_again_while_anyone_may_wait_or_query() {
    let lab = Lab::with(Config { event_reserve: 1, ..Config::default() });
    let (a, x) = (lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let first = lab.try_with(&a, &[write(&x)], &seal).expect("first");
    let held = first.event.expect("sealed");
    let (event, stamp) = (*held.event(), held.stamp());
    for _ in 0..20 {
        let done = lab.try_with(&a, &[write(&x)], &seal).expect("more");
        lab.run();
        let later = done.event.expect("sealed");
        assert_ne!(*later.event(), event, "the held event is still its own");
        assert!(lab.tracker.query(&later).expect("query"));
    }
    assert_eq!(held.stamp(), stamp, "epoch and frontier of a held slot do not change");
    drop(held);
    let reused = (0..20).any(|_| {
        let done = lab.try_with(&a, &[write(&x)], &seal).expect("more");
        done.event.is_some_and(|later| *later.event() == event)
    });
    assert!(reused, "given back, it is used again");
}

#[test]
fn whoever_waits_for_an_epoch_seals_it() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    // A future, at its submission.
    let seal = Options { seal: true, ..Options::default() };
    assert!(lab.try_with(&a, &[write(&x)], &seal).expect("submitted").event.is_some());
    // Anyone who asks for a stamp later: nothing depends on a later launch.
    let done = lab.submit(&a, &[write(&x)]);
    assert!(done.event.is_none());
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Pending(_)));
    // A host access.
    lab.submit(&a, &[write(&x)]);
    let records = lab.records();
    assert!(matches!(lab.tracker.try_host(&Access::whole(&x.region, Mode::Read)), Err(HostBusy::Pending(_))));
    assert_eq!(lab.records(), records + 1);
    // A drain.
    let done = lab.submit(&a, &[write(&x)]);
    let records = lab.records();
    assert!(lab.tracker.tails().contains(&done.stamp));
    assert_eq!(lab.records(), records + 1);
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Pending(_)));
    // The reclaimer: a reader on a second stream that nothing follows.
    let b = lab.stream();
    let y = lab.region(64);
    lab.submit(&a, &[read(&y)]);
    lab.submit(&b, &[read(&y)]);
    let records = lab.records();
    assert_eq!(lab.tracker.retire(y.region, y.memory), Retired::Reclaimer);
    assert_eq!(lab.records(), records + 2);
    lab.clean();
}

#[test]
fn a_checkpoint_every_32_and_no_other_event_on_one_stream() {
    let lab = Lab::new();
    let (a, x, y) = (lab.stream(), lab.region(64), lab.region(64));
    for n in 1..=500u64 {
        lab.submit(&a, &[write(&x), (&y, 0, 32, Mode::Read)]);
        assert_eq!(lab.records(), n / 32);
        assert_eq!((lab.fired(Rule::SealCheckpoint), lab.fired(Rule::SealEager)), (n / 32, 0));
        if n % 7 == 0 {
            lab.run();
        }
    }
    assert_eq!(lab.waits(), 0);
    lab.clean();
}

#[test]
fn nothing_is_recorded_if_the_epoch_is_known_complete_or_covered() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let done = lab.try_with(&a, &[write(&x)], &seal).expect("submitted");
    assert_eq!(lab.records(), 1);
    lab.submit(&b, &[read(&x)]);
    let after = lab.records();
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Pending(_)));
    assert_eq!(lab.records(), after, "covered already");
    lab.run();
    assert!(lab.tracker.query(&done.event.expect("sealed")).expect("query"));
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Complete));
    let (c, y) = (lab.stream(), lab.region(64));
    let done = lab.try_with(&a, &[write(&y)], &seal).expect("submitted");
    lab.run();
    lab.tracker.wait(done.stamp).expect("complete");
    let (records, waits) = (lab.records(), lab.waits());
    lab.submit(&c, &[read(&y)]);
    assert_eq!((lab.records(), lab.waits()), (records, waits), "complete: neither seal nor wait");
    lab.clean();
}

#[test]
fn ranges_seen_on_two_streams_seal_eagerly_for_a_while() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    assert_eq!(lab.records(), 0);
    let met = lab.submit(&b, &[write(&x)]);
    assert_eq!(lab.records(), 2, "A's work, and B's right behind it");
    assert!(met.event.is_some());
    // Unrelated work that follows on B does not delay A: the event lies before it.
    let y = lab.region(64);
    for _ in 0..5 {
        lab.submit(&b, &[write(&y)]);
    }
    let back = lab.submit(&a, &[write(&x)]);
    assert_eq!(back.waits[0].after, met.stamp);
    // The eagerness ends when the streams stop meeting.
    let before = lab.fired(Rule::SealEager);
    for _ in 0..20 {
        lab.submit(&a, &[write(&x)]);
    }
    assert_eq!(lab.fired(Rule::SealEager) - before, 4);
    lab.clean();
}

#[test]
fn an_access_that_meets_any_number_of_streams_seals_eagerly() {
    for readers in 1..5 {
        let lab = Lab::new();
        let (writer, x) = (lab.stream(), lab.region(64));
        let streams: Vec<_> = (0..readers).map(|_| lab.stream()).collect();
        for stream in &streams {
            lab.submit(stream, &[read(&x)]);
        }
        let met = lab.submit(&writer, &[write(&x)]);
        assert_eq!((met.waits.len(), met.event.is_some()), (readers, true));
        lab.clean();
    }
}

#[test]
fn seal_before_queuing_anything_that_waits_for_the_outside() {
    let lab = Lab::new();
    let (a, x, y) = (lab.stream(), lab.region(64), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    let waits = Options { outside: Outside::Waits, ..Options::default() };
    lab.try_with(&a, &[write(&y)], &waits).expect("submitted");
    // The gate stays closed, and yet what came before can be seen to finish.
    lab.run();
    let Settled::Pending(event) = lab.tracker.settle(done.stamp) else { panic!("sealed") };
    assert!(lab.tracker.query(&event).expect("query"));
    lab.clean();
}

#[test]
fn seal_before_a_wait_for_something_that_waits_for_the_outside() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let waits = Options { outside: Outside::Waits, ..Options::default() };
    lab.try_with(&a, &[write(&x)], &waits).expect("gated");
    let done = lab.submit(&b, &[write(&y)]);
    lab.submit(&b, &[read(&x)]);
    lab.run();
    let Settled::Pending(event) = lab.tracker.settle(done.stamp) else { panic!("sealed") };
    assert!(lab.tracker.query(&event).expect("query"), "B's own work does not hide behind A's gate");
    assert_eq!(lab.fired(Rule::SealBeforeWait), 1);
    // Not before an ordinary wait.
    let (d, e, w) = (lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&d, &[write(&w)]);
    lab.submit(&e, &[write(&lab.region(16))]);
    assert_eq!(lab.submit(&e, &[read(&w)]).waits.len(), 1);
    assert_eq!(lab.fired(Rule::SealBeforeWait), 1);
    // It is inherited: a third stream behind B seals as well.
    let c = lab.stream();
    let z = lab.region(64);
    let own = lab.submit(&c, &[write(&z)]);
    lab.submit(&c, &[write(&y), write(&x)]);
    lab.run();
    let Settled::Pending(event) = lab.tracker.settle(own.stamp) else { panic!("sealed") };
    assert!(lab.tracker.query(&event).expect("query"));
    lab.clean();
}

#[test]
fn at_most_four_streams_sit_in_a_wait_value() {
    let lab = Lab::new();
    let streams: Vec<_> = (0..5).map(|_| lab.stream()).collect();
    let value = Options { outside: Outside::WaitValue, ..Options::default() };
    for stream in &streams[..4] {
        lab.try_with(stream, &[], &value).expect("one of four");
    }
    lab.try_with(&streams[0], &[], &value).expect("the same stream again");
    let fifth = lab.try_with(&streams[4], &[], &value).unwrap_err();
    assert!(matches!(fifth, SubmitError::WaitValues { limit: 4 }), "{fifth}");
    let waits = Options { outside: Outside::Waits, ..Options::default() };
    lab.try_with(&streams[4], &[], &waits).expect("no wait-value");
    lab.world().gates.fill(true);
    lab.run();
    for stamp in lab.tracker.tails() {
        lab.tracker.wait(stamp).expect("all end");
    }
    lab.try_with(&streams[4], &[], &value).expect("room again");
}

#[test]
fn a_firing_event_completes_all_that_it_is_ordered_after() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let first = lab.submit(&a, &[write(&x)]);
    let second = lab.submit(&b, &[write(&x)]);
    lab.run();
    assert!(!lab.tracker.is_complete(first.stamp));
    assert!(lab.tracker.query(&second.event.expect("eager")).expect("query"));
    assert!(lab.tracker.is_complete(first.stamp) && lab.tracker.is_complete(second.stamp));
}

#[test]
fn without_a_reserve_events_are_made_late_and_counted() {
    let lab = Lab::with(Config { event_reserve: 0, ..Config::default() });
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    for _ in 0..50 {
        lab.submit(&a, &[write(&x)]);
        lab.submit(&b, &[write(&x)]);
    }
    assert!(lab.fired(Rule::EventMadeLate) > 0);
    lab.clean();
}

#[test]
fn an_event_that_somebody_saw_fire_completes_its_work_without_a_question() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let done = lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    lab.run();
    assert!(!lab.tracker.is_complete(done.stamp));
    lab.tracker.observe(&done.event.expect("sealed"));
    assert!(lab.tracker.is_complete(done.stamp));
    assert_eq!(lab.world().queries, 0);
}

#[test]
fn events_beyond_twice_the_reserve_are_handed_out_and_no_others() {
    let config = Config { event_reserve: 4, ..Config::default() };
    let lab = Lab::with(config);
    let (a, x) = (lab.stream(), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    let held: Vec<_> = (0..40).map(|_| lab.try_with(&a, &[write(&x)], &seal).expect("submitted")).collect();
    lab.run();
    lab.tracker.wait(held[39].stamp).expect("complete");
    assert!(lab.tracker.take_surplus_events().len() <= 8, "those that somebody holds stay");
    drop(held);
    lab.submit(&a, &[write(&x)]);
    let surplus = lab.tracker.take_surplus_events().len();
    assert!((24..=40).contains(&surplus), "{surplus}");
    assert!(lab.tracker.take_surplus_events().is_empty());
    // What is left is what is made ahead: nothing is made now.
    let made = lab.fired(Rule::EventsMade);
    lab.submit(&a, &[write(&x)]);
    assert_eq!(lab.fired(Rule::EventsMade), made);
    for _ in 0..20 {
        lab.try_with(&a, &[write(&x)], &seal).expect("there are events, or they are made");
    }
    lab.clean();
}
