//! Who follows whom.

use crate::support::lab::*;
use simtile_hazard::*;

#[test]
fn one_reader_slot_per_axis_or_the_second_reader_erases_the_first() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[read(&x)]);
    lab.submit(&b, &[read(&x)]);
    assert_eq!(lab.waits(), 0, "reads never conflict");
    let write = lab.submit(&c, &[write(&x)]);
    assert_eq!(write.waits.len(), 2);
    lab.clean();
}

#[test]
fn a_write_replaces_what_it_was_ordered_after() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[read(&x)]);
    lab.submit(&b, &[read(&x)]);
    lab.submit(&c, &[write(&x)]);
    assert_eq!(x.region.stamps().len(), 1);
    assert_eq!(lab.fired(Rule::Replaced), 2);
    let back = lab.submit(&a, &[write(&x)]);
    assert_eq!(back.waits.len(), 1, "the write stands for the readers");
    lab.clean();
}

#[test]
fn a_reader_does_not_replace_the_writer_it_follows() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x)]);
    let third = lab.submit(&c, &[read(&x)]);
    assert_eq!(third.waits[0].after.axis, a.stream.axis());
    lab.clean();
}

#[test]
fn repeated_and_transitive_waits_vanish() {
    let lab = Lab::new();
    let (a, b, c) = (lab.stream(), lab.stream(), lab.stream());
    let (x, y) = (lab.region(64), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x), write(&y)]);
    lab.submit(&b, &[read(&x)]);
    assert_eq!(lab.waits(), 1, "repeated");
    lab.submit(&c, &[read(&y)]);
    lab.submit(&c, &[read(&x)]);
    assert_eq!(lab.waits(), 2, "C follows B, and B followed A");
    let d = lab.stream();
    let both = lab.submit(&d, &[read(&x), read(&y)]);
    assert_eq!(both.waits.len(), 1, "one wait implies the other");
    assert_eq!(lab.fired(Rule::SkipTransitive), 1);
    lab.clean();
}

#[test]
fn a_wait_is_left_out_for_another_only_if_that_other_was_queued() {
    let lab = Lab::new();
    let (a, b, c, writer) = (lab.stream(), lab.stream(), lab.stream(), lab.stream());
    let (x, y) = (lab.region(64), lab.region(64));
    lab.submit(&a, &[read(&x)]);
    lab.run();
    let mark = lab.tracker.begin_synchronize_all();
    // What the host knows when that synchronisation ends: A's first read.
    let mut known = lab.world().host_clock();
    known.0[a.sim] = lab.world().streams[a.sim].done;
    // B's read, which A then follows: the event behind A's later work covers A's read of X and implies B's.
    lab.submit(&b, &[read(&x), write(&y)]);
    lab.submit(&a, &[read(&y)]);
    // C's read still has to be sealed: a driver call between the choice of events and the waits. In it A's read
    // turns out complete by itself, so the event that stood for B's read is not waited for.
    lab.submit(&c, &[read(&x)]);
    let sealed = lab.tracker.settle(Stamp { axis: a.stream.axis(), epoch: 2 });
    assert!(matches!(sealed, Settled::Pending(_)), "{sealed:?}");
    let tracker = lab.tracker.clone();
    at_next_call(move || {
        tracker.backend().world.lock().host = Some(known);
        tracker.end_synchronize_all(mark);
    });
    let done = lab.submit(&writer, &[write(&x)]);
    assert!(done.waits.iter().any(|wait| wait.after.axis == b.stream.axis()), "{:?}", done.waits);
    lab.clean();
}

#[test]
fn only_the_ranges_that_met_seal_eagerly() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    lab.submit(&a, &[write(&y)]);
    lab.submit(&b, &[write(&x), write(&y)]);
    let before = lab.fired(Rule::SealEager);
    lab.submit(&b, &[write(&x)]);
    assert_eq!(lab.fired(Rule::SealEager), before, "nobody was met on X");
    lab.submit(&b, &[write(&y)]);
    assert_eq!(lab.fired(Rule::SealEager), before + 1);
    lab.clean();
}

#[test]
fn of_two_stamps_of_one_stream_the_later_is_followed() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    lab.try_with(&a, &[write(&y)], &seal).expect("sealed");
    let later = lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    // X comes first in the plan, with the later epoch.
    let both = lab.submit(&b, &[write(&x), write(&y)]);
    assert_eq!(both.waits.len(), 1);
    assert_eq!(both.waits[0].after, later.stamp);
    // Now the earlier epoch comes first.
    let (c, v, w) = (lab.stream(), lab.region(64), lab.region(64));
    lab.try_with(&a, &[write(&v)], &seal).expect("sealed");
    let later = lab.try_with(&a, &[write(&w)], &seal).expect("sealed");
    let both = lab.submit(&c, &[write(&v), write(&w)]);
    assert_eq!(both.waits.len(), 1);
    assert_eq!((both.waits[0].after, both.waits[0].region), (later.stamp, w.region.id()));
    // Of two with one stamp the first is named.
    let d = lab.stream();
    lab.submit(&d, &[write(&x), write(&y)]);
    let both = lab.submit(&a, &[read(&x), read(&y)]);
    assert_eq!(both.waits.len(), 1);
    assert_eq!(both.waits[0].region, x.region.id());
    lab.clean();
}

#[test]
fn of_three_waits_the_one_that_another_implies_comes_last() {
    let lab = Lab::new();
    let (a, b, c, d) = (lab.stream(), lab.stream(), lab.stream(), lab.stream());
    let (x, y, z) = (lab.region(64), lab.region(64), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x), write(&y)]);
    lab.submit(&c, &[write(&z)]);
    let all = lab.submit(&d, &[read(&x), read(&y), read(&z)]);
    let axes: Vec<_> = all.waits.iter().map(|wait| wait.after.axis).collect();
    assert_eq!(axes.len(), 2, "B followed A: {axes:?}");
    assert!(!axes.contains(&a.stream.axis()));
    assert_eq!(lab.fired(Rule::SkipTransitive), 1);
    lab.clean();
}

#[test]
fn the_writer_itself_may_be_the_seventeenth_reader() {
    let lab = Lab::new();
    let (writer, x) = (lab.stream(), lab.region(64));
    lab.submit(&writer, &[write(&x)]);
    let readers: Vec<_> = (0..16).map(|_| lab.stream()).collect();
    for reader in &readers {
        lab.submit(reader, &[read(&x)]);
    }
    let own = lab.submit(&writer, &[read(&x)]);
    assert_eq!(own.waits.len(), 1);
    assert!(own.waits[0].reader_limit);
    lab.clean();
}

#[test]
fn a_reader_that_is_among_too_many_already_waits_for_none() {
    let lab = Lab::with(Config { max_ranges: 1, max_readers: 2, ..Config::default() });
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[(&x, 0, 16, Mode::Read)]);
    lab.submit(&b, &[(&x, 0, 16, Mode::Read)]);
    // Folding puts three readers on one range.
    lab.submit(&c, &[(&x, 32, 48, Mode::Read)]);
    assert_eq!((x.region.range_count(), x.region.stamps().len()), (1, 3));
    assert_eq!(lab.submit(&a, &[(&x, 0, 48, Mode::Read)]).waits.len(), 0);
    lab.clean();
}

#[test]
fn folded_ranges_keep_every_stamp_with_its_own_epoch() {
    let lab = Lab::with(Config { max_ranges: 1, ..Config::default() });
    let (a, b, c, x, y) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    lab.submit(&a, &[(&x, 0, 16, Mode::Read)]);
    lab.submit(&b, &[(&x, 32, 48, Mode::Read)]);
    assert_eq!(lab.submit(&c, &[(&x, 0, 48, Mode::Write)]).waits.len(), 2);
    // A read does not make an older accumulation of its stream look younger.
    let four = Mode::Accumulate { size: 4, scope: Scope::Device };
    let seal = Options { seal: true, ..Options::default() };
    let older = lab.try_with(&a, &[(&y, 0, 16, four)], &seal).expect("sealed");
    lab.submit(&a, &[(&y, 32, 48, Mode::Read)]);
    assert_eq!(y.region.range_count(), 1);
    let follower = lab.submit(&b, &[(&y, 0, 16, Mode::Read)]);
    assert_eq!(follower.waits[0].after, older.stamp);
    lab.clean();
}

#[test]
fn a_range_that_only_touches_is_not_followed() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[(&x, 0, 16, Mode::Write)]);
    lab.submit(&b, &[(&x, 16, 32, Mode::Write)]);
    lab.submit(&a, &[(&x, 32, 48, Mode::Write)]);
    let first = lab.submit(&c, &[(&x, 0, 16, Mode::Read)]);
    assert_eq!(first.waits.len(), 1);
    assert_eq!(first.waits[0].after.axis, a.stream.axis());
    let d = lab.stream();
    let last = lab.submit(&d, &[(&x, 48, 64, Mode::Write)]);
    assert_eq!(last.waits.len(), 0);
    // A single range, on its left.
    let y = lab.region(64);
    lab.submit(&a, &[(&y, 16, 32, Mode::Write)]);
    assert_eq!(lab.submit(&b, &[(&y, 0, 16, Mode::Write)]).waits.len(), 0);
    lab.clean();
}

#[test]
fn ranges_on_two_sides_of_a_synchronisation_are_not_joined() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[(&x, 0, 32, Mode::Read)]);
    let queued = lab.world().queued();
    let mark = lab.tracker.begin_synchronize_all();
    // The same stream, another epoch; no event lies between the two, but the end of the synchronisation does.
    lab.submit(&a, &[(&x, 32, 64, Mode::Read)]);
    assert_eq!(x.region.range_count(), 2);
    lab.world().synchronized(&queued);
    lab.tracker.end_synchronize_all(mark);
    let first = lab.submit(&b, &[(&x, 0, 32, Mode::Write)]);
    assert_eq!(first.waits.len(), 0, "complete");
    let second = lab.submit(&b, &[(&x, 32, 64, Mode::Write)]);
    assert_eq!(second.waits.len(), 1);
    lab.clean();
}

#[test]
fn completed_axes_leave_frontiers() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[write(&x)]);
    lab.run();
    for stamp in lab.tracker.tails() {
        lab.tracker.wait(stamp).expect("complete");
    }
    let seal = Options { seal: true, ..Options::default() };
    lab.try_with(&b, &[write(&x)], &seal).expect("sealed");
    assert!(lab.fired(Rule::PruneFrontier) >= 1);
}

#[test]
fn at_sixteen_live_readers_the_oldest_is_followed_and_stood_for() {
    let lab = Lab::new();
    let x = lab.region(64);
    let streams: Vec<_> = (0..20).map(|_| lab.stream()).collect();
    for (n, stream) in streams.iter().enumerate() {
        let done = lab.submit(stream, &[read(&x)]);
        assert_eq!(done.waits.len(), usize::from(n >= 16), "reader {n}");
        assert!(done.waits.iter().all(|wait| wait.reader_limit));
        assert!(x.region.stamps().len() <= 16);
    }
    assert_eq!((lab.fired(Rule::ReaderLimit), lab.fired(Rule::PruneDominated)), (4, 4));
    let writer = lab.stream();
    assert!(lab.submit(&writer, &[write(&x)]).waits.len() <= 16);
    lab.clean();
}

#[test]
fn disjoint_ranges_never_conflict() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(128));
    for _ in 0..10 {
        lab.submit(&a, &[(&x, 0, 64, Mode::Write)]);
        lab.submit(&b, &[(&x, 64, 128, Mode::Write)]);
    }
    assert_eq!(lab.waits(), 0);
    let both = lab.submit(&a, &[write(&x)]);
    assert_eq!(both.waits.len(), 1);
    assert_eq!(x.region.range_count(), 1);
    lab.clean();
}

#[test]
fn above_64_ranges_the_nearest_are_joined_and_counted() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(4096));
    for n in 0..100u64 {
        lab.submit(&a, &[(&x, n * 40, n * 40 + 8, Mode::Write)]);
        assert!(x.region.range_count() <= 64);
    }
    assert_eq!(lab.fired(Rule::Folded), 36);
    let b = lab.stream();
    lab.submit(&b, &[write(&x)]);
    lab.clean();
}

#[test]
fn aliasing_inside_one_launch_is_refused() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let error = lab.try_with(&a, &[(&x, 0, 32, Mode::Write), (&x, 16, 48, Mode::Read)], &Options::default());
    let Err(SubmitError::Aliased { region, start, end }) = error else { panic!("{error:?}") };
    assert_eq!((region, start, end), (x.region.id(), 16, 32));
    // Whatever stands between them, in whatever order.
    let (y, z) = (lab.region(64), lab.region(64));
    for between in [[&y, &z], [&z, &y]] {
        for list in [
            vec![write(&x), write(between[0]), read(&x)],
            vec![write(between[0]), write(&x), write(between[1]), read(&x)],
            vec![write(&x), write(between[0]), write(between[1]), read(&x)],
            vec![read(&x), write(&x), write(between[0])],
            vec![write(between[0]), read(between[1]), write(&x), read(&x)],
        ] {
            let error = lab.try_with(&a, &list, &Options::default());
            assert!(
                matches!(error, Err(SubmitError::Aliased { region, .. }) if region == x.region.id()),
                "{error:?}"
            );
        }
    }
    lab.submit(&a, &[(&x, 0, 32, Mode::Write), (&x, 32, 48, Mode::Read)]);
    lab.submit(&a, &[(&x, 0, 32, Mode::Read), (&x, 16, 48, Mode::Read)]);
    let beyond = lab.try_with(&a, &[(&x, 0, 65, Mode::Read)], &Options::default());
    assert!(matches!(beyond, Err(SubmitError::OutOfRange { end: 65, len: 64, .. })));
    lab.submit(&a, &[(&x, 64, 64, Mode::Write)]);
    lab.clean();
}

#[test]
fn a_failed_wait_stamps_and_enqueues_nothing() {
    // No events are made ahead, so the wait is the next call that can fail.
    let lab = Lab::with(Config { event_reserve: 0, ..Config::default() });
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let seal = Options { seal: true, ..Options::default() };
    lab.try_with(&a, &[write(&x)], &seal).expect("sealed");
    lab.fail_call(0);
    let error = lab.try_with(&b, &[read(&x), write(&y)], &Options::default()).unwrap_err();
    assert!(matches!(error, SubmitError::Driver { step: Step::Wait, .. }), "{error}");
    assert_eq!(y.region.stamps().len(), 0);
    assert!(x.region.stamps().iter().all(|stamp| stamp.2.axis == a.stream.axis()));
    let again = lab.submit(&b, &[read(&x), write(&y)]);
    assert_eq!(again.waits.len(), 1, "the frontier was not merged");
    lab.clean();
}

#[test]
fn a_failed_enqueue_stays_stamped() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    lab.world().fault = Some(crate::support::Fault { after: 0, done_anyway: true });
    let error = lab.try_with(&a, &[write(&x)], &Options::default()).unwrap_err();
    assert!(matches!(error, SubmitError::Driver { step: Step::Enqueue, .. }), "{error}");
    assert_eq!(lab.submit(&b, &[read(&x)]).waits.len(), 1, "it may have been queued");
    lab.clean();
}

#[test]
fn a_panic_in_the_enqueue_keeps_the_stamp_and_gives_everything_back() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lab.submit_running(&a, &[write(&x)], &Options::default(), || panic!("in the enqueue"))
    }));
    assert!(panic.is_err());
    lab.world().contexts.clear();
    lab.world().strict = false;
    assert_eq!(lab.submit(&b, &[read(&x)]).waits.len(), 1);
    lab.submit(&a, &[read(&x)]);
    lab.clean();
}

#[test]
fn reject_names_the_conflict_seals_each_submission_and_spares_completed_work() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let reject = Options { policy: Policy::Reject, ..Options::default() };
    let first = lab.try_with(&a, &[write(&x)], &reject).expect("free");
    assert!(first.event.is_some(), "sealed");
    lab.try_with(&a, &[write(&y)], &reject).expect("later work on A");
    let error = lab.try_with(&b, &[read(&x)], &reject).unwrap_err();
    let SubmitError::Conflict(conflict) = error else { panic!("{error}") };
    let expected = Conflict {
        region: x.region.id(),
        stream: Some(b.stream.axis()),
        mode: Mode::Read,
        with: Party::Stream(first.stamp),
        their_mode: Mode::Write,
    };
    assert_eq!(conflict, expected);
    assert!(!conflict.host());
    // The first piece of work ends, the second has not begun: no conflict with the first.
    lab.world().advance(a.sim);
    lab.try_with(&b, &[read(&x)], &reject).expect("the work itself is complete");
    assert!(lab.try_with(&b, &[read(&y)], &reject).is_err());
    assert_eq!(lab.waits(), 0);
    lab.clean();
}

#[test]
fn report_tells_what_order_does() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let first = lab.submit(&a, &[write(&x)]);
    let report = Options { policy: Policy::OrderAndReport, ..Options::default() };
    let done = lab.try_with(&b, &[read(&x)], &report).expect("ordered");
    let note = done.waits[0];
    assert_eq!((note.after, note.region), (first.stamp, x.region.id()));
    assert_eq!((note.mode, note.their_mode), (Mode::Read, Mode::Write));
    lab.clean();
}

#[test]
fn unchecked_waits_for_nothing_but_is_followed_and_keeps_memory() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    let unchecked = Options { policy: Policy::Unchecked, ..Options::default() };
    lab.submit(&a, &[write(&x)]);
    lab.try_with(&b, &[write(&x)], &unchecked).expect("unchecked");
    assert_eq!(lab.waits(), 0);
    assert_eq!(lab.submit(&c, &[read(&x)]).waits.len(), 2, "both writers");
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Inline(c.stream.axis()));
    lab.clean();
}

#[test]
fn accumulations_commute_only_alike() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let four = Mode::Accumulate { size: 4, scope: Scope::Device };
    let eight = Mode::Accumulate { size: 8, scope: Scope::Device };
    lab.submit(&a, &[whole(&x, four)]);
    assert_eq!(lab.submit(&b, &[whole(&x, four)]).waits.len(), 0);
    assert_eq!(lab.submit(&b, &[whole(&x, eight)]).waits.len(), 1);
    assert_eq!(lab.submit(&a, &[read(&x)]).waits.len(), 1);
    // Whatever came before or between, an accumulation stays one.
    let (c, z) = (lab.stream(), lab.region(64));
    for stream in [&a, &b, &a, &c] {
        assert_eq!(lab.submit(stream, &[whole(&z, four)]).waits.len(), 0);
    }
    let w = lab.region(64);
    lab.submit(&a, &[write(&w)]);
    assert_eq!(lab.submit(&b, &[whole(&w, four)]).waits.len(), 1);
    let alike = lab.submit(&c, &[whole(&w, four)]);
    assert_eq!(alike.waits.len(), 1, "the write alone");
    assert_eq!(alike.waits[0].after.axis, a.stream.axis());
    // Another phase is another class.
    let y = lab.region(64);
    lab.submit(&a, &[(&y, 0, 64, eight)]);
    assert_eq!(lab.submit(&b, &[(&y, 4, 60, eight)]).waits.len(), 1);
    lab.clean();
}

#[test]
fn a_graph_executable_is_a_region_that_every_replay_writes() {
    let lab = Lab::new();
    let (a, b, x, exec) = (lab.stream(), lab.stream(), lab.region(64), lab.region(16));
    lab.submit(&a, &[read(&x), write(&exec)]);
    assert_eq!(lab.submit(&b, &[read(&x), write(&exec)]).waits.len(), 1);
    lab.clean();
}

#[test]
fn a_range_with_the_same_end_is_another_range() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[(&x, 32, 64, Mode::Write)]);
    assert_eq!(x.region.range_count(), 2);
    let left = lab.submit(&c, &[(&x, 0, 16, Mode::Read)]);
    assert_eq!(left.waits.len(), 1);
    assert_eq!(left.waits[0].after.axis, a.stream.axis());
    lab.clean();
}

#[test]
fn what_a_stream_does_again_is_stamped_again_and_changes_no_other_stamp() {
    let lab = Lab::new();
    let seal = Options { seal: true, ..Options::default() };
    let again = |modes: &[Mode]| {
        let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
        let last =
            modes.iter().map(|&mode| lab.try_with(&a, &[whole(&x, mode)], &seal).expect("sealed")).last();
        let after = lab.submit(&b, &[whole(&x, Mode::Read)]);
        assert_eq!(after.waits.len(), 1);
        assert_eq!(Some(after.waits[0].after), last.map(|done| done.stamp), "{modes:?}");
    };
    let sum = Mode::Accumulate { size: 4, scope: Scope::Device };
    again(&[Mode::Write, Mode::Read, Mode::Write]);
    again(&[Mode::Write, Mode::Read, sum]);
    again(&[Mode::Write, sum, Mode::Write]);
    // Two readers, of which one reads again.
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    lab.try_with(&a, &[read(&x)], &seal).expect("sealed");
    let other = lab.try_with(&b, &[read(&x)], &seal).expect("sealed");
    let later = lab.try_with(&a, &[read(&x)], &seal).expect("sealed");
    let stamps: Vec<_> = lab.submit(&c, &[write(&x)]).waits.iter().map(|wait| wait.after).collect();
    assert!(stamps.contains(&other.stamp) && stamps.contains(&later.stamp), "{stamps:?}");
    lab.clean();
}
