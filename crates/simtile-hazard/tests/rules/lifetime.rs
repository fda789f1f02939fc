//! Retiring, requests, the host, foreign code.

use crate::support::lab::*;
use simtile_hazard::*;

#[test]
fn work_retains_nothing_what_it_consumed_is_freed_behind_it() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    let records = lab.records();
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Inline(a.stream.axis()));
    assert_eq!(lab.records(), records, "in stream order, no event needed");
    lab.clean();
}

#[test]
fn a_stream_that_follows_all_uses_frees_at_once() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[read(&x)]);
    lab.submit(&b, &[read(&x)]);
    let y = lab.region(64);
    // B follows A through another region; its frontier covers A's read of X.
    lab.submit(&a, &[write(&y)]);
    lab.submit(&b, &[read(&y)]);
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Inline(b.stream.axis()));
    lab.clean();
}

#[test]
fn what_no_stream_follows_goes_to_the_reclaimer_with_its_stamps() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let one = lab.submit(&a, &[read(&x)]);
    let two = lab.submit(&b, &[read(&x)]);
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Reclaimer);
    let reclaim = std::mem::take(&mut lab.world().reclaim);
    assert_eq!(reclaim[0].1.as_slice(), [one.stamp, two.stamp]);
    assert!(matches!(lab.tracker.settle(one.stamp), Settled::Pending(_)), "sealed for the reclaimer");
    lab.clean();
}

#[test]
fn a_drop_during_a_launch_leaves_a_request_that_the_holder_serves() {
    let lab = Lab::new();
    let (a, x, y) = (lab.stream(), lab.region(64), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    let mut outcome = None;
    lab.submit_running(&a, &[write(&y)], &Options::default(), || {
        outcome = Some(lab.tracker.retire(x.region, x.memory));
        assert_eq!(lab.world().freed, 0, "the stream is held");
    })
    .expect("submitted");
    assert_eq!(outcome, Some(Retired::Requested(a.stream.axis())));
    assert_eq!(lab.world().freed, 1, "served when the launch was over");
    assert_eq!(lab.fired(Rule::FreedByRequest), 1);
    lab.clean();
}

#[test]
fn a_seal_asked_for_during_a_launch_is_served_behind_it() {
    let lab = Lab::new();
    let (a, y) = (lab.stream(), lab.region(64));
    let done = lab.submit(&a, &[write(&y)]);
    lab.submit_running(&a, &[write(&y)], &Options::default(), || {
        assert!(matches!(lab.tracker.settle(done.stamp), Settled::Unsealed));
    })
    .expect("submitted");
    assert_eq!(lab.records(), 1);
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Pending(_)));
    lab.clean();
}

#[test]
fn a_submission_that_meets_a_held_guard_or_stream_gives_everything_up() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    lab.submit(&a, &[write(&y)]);
    lab.submit_running(&a, &[write(&x)], &Options::default(), || {
        let guard = lab.try_with(&b, &[write(&x)], &Options::default());
        assert!(matches!(guard, Err(SubmitError::Busy(Busy::Region))));
        let foreign = lab.try_with(&b, &[read(&y)], &Options::default());
        assert!(matches!(foreign, Err(SubmitError::Busy(Busy::Stream))), "A must be sealed, and is held");
        let own = lab.try_with(&a, &[], &Options::default());
        assert!(matches!(own, Err(SubmitError::Busy(Busy::Stream))));
    })
    .expect("submitted");
    assert_eq!(lab.submit(&b, &[read(&y), write(&x)]).waits.len(), 1);
    lab.clean();
}

#[test]
fn the_host_is_an_axis() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    lab.submit(&a, &[read(&x)]);
    let reading = lab.tracker.try_host(&Access::new(&x.region, 0, 32, Mode::Read)).expect("reads share");
    let error = lab.try_with(&a, &[write(&x)], &Options::default()).unwrap_err();
    assert!(matches!(error, SubmitError::Conflict(conflict) if conflict.host()));
    lab.submit(&a, &[read(&x)]);
    lab.submit(&a, &[(&x, 32, 64, Mode::Write)]);
    lab.tracker.host_release(&x.region, reading);
    lab.submit(&a, &[write(&x)]);
    assert!(matches!(
        lab.tracker.try_host(&Access::whole(&x.region, Mode::Read)),
        Err(HostBusy::Pending(stamps)) if stamps.len() == 1
    ));
    let writing = lab.tracker.host(&Access::whole(&x.region, Mode::Write)).expect("waits");
    assert!(lab.try_with(&a, &[read(&x)], &Options::default()).is_err());
    lab.tracker.host_release(&x.region, writing);
    // Each claim is given back by itself.
    let one = lab.tracker.host(&Access::new(&x.region, 0, 16, Mode::Read)).expect("complete");
    let two = lab.tracker.host(&Access::new(&x.region, 16, 32, Mode::Read)).expect("complete");
    lab.tracker.host_release(&x.region, one);
    lab.submit(&a, &[(&x, 0, 16, Mode::Write), (&x, 32, 48, Mode::Write)]);
    assert!(lab.try_with(&a, &[(&x, 31, 32, Mode::Write)], &Options::default()).is_err());
    lab.tracker.host_release(&x.region, two);
    lab.submit(&a, &[read(&x)]);
    lab.clean();
}

#[test]
fn the_host_finds_a_region_busy_between_plan_and_stamp() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    lab.submit_running(&a, &[write(&x)], &Options::default(), || {
        let busy = lab.tracker.try_host(&Access::whole(&x.region, Mode::Read));
        assert!(matches!(busy, Err(HostBusy::Refused(SubmitError::Busy(Busy::Region)))));
    })
    .expect("submitted");
}

#[test]
fn a_forgotten_host_guard_refuses_for_ever_and_keeps_the_memory() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let _never_released = lab.tracker.try_host(&Access::whole(&x.region, Mode::Read)).expect("free");
    assert!(lab.try_with(&a, &[write(&x)], &Options::default()).is_err());
    let kept = Quarantine::HostClaim;
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Quarantined(kept));
    lab.clean();
}

#[test]
fn an_export_is_out_of_safe_use_until_it_is_returned() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream_of(StreamKind::Borrowed), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    assert_eq!(lab.tracker.export(&x.region, false).expect("free").as_slice(), [done.stamp]);
    assert!(lab.tracker.event_of(done.stamp).expect("sealed").is_some(), "the consumer can follow");
    let error = lab.try_with(&a, &[read(&x)], &Options::default()).unwrap_err();
    assert!(matches!(error, SubmitError::Conflict(conflict) if conflict.with == Party::Foreign));
    assert!(lab.tracker.export(&x.region, true).is_err(), "once");
    assert!(lab.tracker.try_host(&Access::whole(&x.region, Mode::Read)).is_err());
    let records = lab.records();
    lab.tracker.return_export(&x.region, Some(&b.stream)).expect("returned");
    assert_eq!(lab.records(), records + 1, "sealed there and then, behind the consumer's work");
    let after = lab.submit(&a, &[read(&x)]);
    assert_eq!(after.waits[0].after.axis, b.stream.axis(), "the consumer's stream is its stamp");
}

#[test]
fn a_shared_export_is_read_only_on_both_sides() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    lab.tracker.export(&x.region, true).expect("free");
    assert!(lab.tracker.export(&x.region, true).is_err(), "the first return would end both");
    lab.submit(&a, &[read(&x)]);
    let error = lab.try_with(&a, &[write(&x)], &Options::default()).unwrap_err();
    let SubmitError::Conflict(conflict) = error else { panic!("{error}") };
    assert_eq!((conflict.with, conflict.their_mode), (Party::Foreign, Mode::Read));
    let y = lab.region(64);
    lab.tracker.export(&y.region, false).expect("free");
    let error = lab.try_with(&a, &[read(&y)], &Options::default()).unwrap_err();
    let SubmitError::Conflict(conflict) = error else { panic!("{error}") };
    assert_eq!((conflict.with, conflict.their_mode), (Party::Foreign, Mode::Write));
    lab.clean();
}

#[test]
fn returned_by_nobody_knows_whom_it_waits_for_a_synchronisation_of_everything() {
    let lab = Lab::new();
    let (a, mut x) = (lab.stream(), lab.region(64));
    assert!(!lab.tracker.is_quarantined(&mut x.region));
    lab.tracker.export(&x.region, false).expect("free");
    assert!(!lab.tracker.is_quarantined(&mut x.region), "somebody has it");
    let early = lab.tracker.begin_synchronize_all();
    lab.tracker.return_export(&x.region, None).expect("returned");
    lab.tracker.end_synchronize_all(early);
    assert!(lab.try_with(&a, &[read(&x)], &Options::default()).is_err(), "that one began before the return");
    assert!(lab.tracker.is_quarantined(&mut x.region));
    let mark = lab.tracker.begin_synchronize_all();
    lab.tracker.end_synchronize_all(mark);
    assert!(!lab.tracker.is_quarantined(&mut x.region));
    lab.submit(&a, &[read(&x)]);
    let y = lab.region(16);
    lab.tracker.export(&y.region, false).expect("free");
    assert_eq!(lab.tracker.retire(y.region, y.memory), Retired::Quarantined(Quarantine::Foreign));
}

/// Permits come back with events, and a synchronisation of everything makes none.
#[test]
fn after_a_synchronisation_of_everything_there_is_room_again() {
    let lab = Lab::with(Config { stream_permits: 4, checkpoint: 100, ..Config::default() });
    let (a, x) = (lab.stream(), lab.region(64));
    for _ in 0..4 {
        lab.submit(&a, &[write(&x)]);
    }
    let mark = lab.tracker.begin_synchronize_all();
    lab.world().synchronize_all();
    lab.tracker.end_synchronize_all(mark);
    let Err(SubmitError::Full { events }) = lab.try_with(&a, &[], &Options::default()) else {
        panic!("there is no room")
    };
    assert_eq!(events.len(), 1, "something to wait for");
    assert!(lab.tracker.query(&events[0]).expect("query"));
    lab.submit(&a, &[write(&x)]);
    lab.clean();
}

#[test]
fn a_synchronisation_of_everything_completes_what_was_before_it_and_no_more() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let before = lab.submit(&a, &[write(&x)]);
    let mark = lab.tracker.begin_synchronize_all();
    lab.world().synchronize_all();
    let meanwhile = lab.submit(&a, &[write(&x)]);
    lab.tracker.end_synchronize_all(mark);
    assert!(lab.tracker.is_complete(before.stamp));
    assert!(!lab.tracker.is_complete(meanwhile.stamp));
    lab.clean();
}

#[test]
fn an_export_comes_back_on_a_per_thread_stream_by_its_own_thread_alone() {
    let lab = Lab::new();
    let (own, x, y) = (lab.stream_of(StreamKind::PerThread(7)), lab.region(64), lab.region(64));
    lab.tracker.export(&x.region, false).expect("free");
    lab.tracker.export(&y.region, false).expect("free");
    lab.world().thread = 8;
    let error = lab.tracker.return_export_as(&x.region, &own.stream, 8).unwrap_err();
    assert!(matches!(error, SubmitError::WrongThread), "{error}");
    let error = lab.tracker.return_export(&x.region, Some(&own.stream)).unwrap_err();
    assert!(matches!(error, SubmitError::WrongThread), "nobody knows who calls: {error}");
    assert!(lab.tracker.try_host(&Access::whole(&x.region, Mode::Read)).is_err(), "quarantined");
    lab.world().thread = 7;
    lab.tracker.return_export_as(&y.region, &own.stream, 7).expect("its own thread");
    let a = lab.stream();
    let follower = lab.submit(&a, &[read(&y)]);
    assert_eq!(follower.waits[0].after.axis, own.stream.axis());
    lab.clean();
}

#[test]
fn an_export_waits_for_a_reader_between_its_plan_and_its_enqueue() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let tracker = &lab.tracker;
        let region = &x.region;
        lab.submit_running(&a, &[read(&x)], &Options::default(), || {
            scope.spawn(move || {
                let _ = tell.send(None);
                let stamps = tracker.export(region, false).expect("free");
                let _ = tell.send(Some(stamps));
            });
            assert!(told.recv().expect("the thread runs").is_none());
            let early = told.recv_timeout(std::time::Duration::from_millis(100));
            assert!(early.is_err(), "its stamps would lack this reader");
        })
        .expect("submitted");
        assert_eq!(told.recv().expect("exported").map(|stamps| stamps.len()), Some(1));
    });
    lab.clean();
}

#[test]
fn the_host_may_claim_nothing_outside_a_region_and_nothing_at_all_inside() {
    let lab = Lab::new();
    let x = lab.region(64);
    for (start, end) in [(0, 65), (65, 66), (8, 4)] {
        let claim = lab.tracker.try_host(&Access::new(&x.region, start, end, Mode::Read));
        assert!(matches!(claim, Err(HostBusy::Refused(SubmitError::OutOfRange { .. }))), "{start}..{end}");
    }
    let none = lab.tracker.try_host(&Access::new(&x.region, 8, 8, Mode::Write)).expect("no bytes");
    lab.tracker.host_release(&x.region, none);
}

#[test]
fn memory_whose_work_is_complete_is_freed_on_the_stream_that_wrote_it() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    lab.run();
    lab.tracker.wait(done.stamp).expect("complete");
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Inline(a.stream.axis()));
    lab.clean();
}

#[test]
fn a_region_back_from_nobody_knows_whom_keeps_its_memory_until_a_later_synchronisation() {
    let lab = Lab::new();
    let lost = || {
        let x = lab.region(64);
        lab.tracker.export(&x.region, false).expect("free");
        lab.tracker.return_export(&x.region, None).expect("returned");
        x
    };
    let kept = Retired::Quarantined(Quarantine::Foreign);
    let synchronize = || lab.tracker.end_synchronize_all(lab.tracker.begin_synchronize_all());
    let x = lost();
    assert_eq!(lab.tracker.retire(x.region, x.memory), kept);
    synchronize();
    let x = lost();
    assert_eq!(lab.tracker.retire(x.region, x.memory), kept, "that one came before");
    let x = lost();
    synchronize();
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Reclaimer, "nothing of it can run now");
}

#[test]
fn a_synchronisation_completes_what_closed_streams_have_left() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    drop(a.stream);
    let queued = lab.world().queued();
    let mark = lab.tracker.begin_synchronize_all();
    lab.world().synchronized(&queued);
    assert!(!lab.tracker.is_complete(done.stamp));
    lab.tracker.end_synchronize_all(mark);
    assert!(lab.tracker.is_complete(done.stamp));
    assert_eq!(lab.fired(Rule::AxisEnded), 1);
    lab.clean();
}
