//! Captures and replays.

use crate::support::lab::*;
use simtile_hazard::*;

type Ended = Option<Vec<crate::support::Touch>>;

fn begin(lab: &Lab, stream: &LabStream) -> Capture<crate::support::Mock> {
    lab.tracker
        .begin_capture(&stream.stream, 0, |sim| {
            lab.world().begin_capture(*sim);
            Ok(())
        })
        .expect("begins")
}

fn capture(lab: &Lab, capture: &Capture<crate::support::Mock>, stream: &LabStream, accesses: &[A<'_>]) {
    let list: Vec<_> = accesses.iter().map(|a| Access::new(&a.0.region, a.1, a.2, a.3)).collect();
    let touches: Vec<_> = accesses
        .iter()
        .map(|a| crate::support::Touch {
            region: a.0.memory,
            start: a.1,
            end: a.2,
            how: crate::support::Use::of(a.3, a.1, 0),
        })
        .collect();
    capture
        .submit(&stream.stream, &list, |sim| {
            lab.world().enqueue(*sim, &touches, None, false);
            Ok(())
        })
        .expect("captured");
}

fn end(lab: &Lab, capture: Capture<crate::support::Mock>) -> (Ended, CaptureSet) {
    capture.finish(|sim| Ok(lab.world().end_capture(*sim))).expect("ends")
}

#[test]
fn beginning_seals_and_from_then_on_others_are_refused() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let before = lab.submit(&a, &[write(&x)]);
    let running = begin(&lab, &a);
    assert_eq!(lab.records(), 1);
    assert!(matches!(lab.try_with(&a, &[], &Options::default()), Err(SubmitError::Capturing)));
    assert!(matches!(lab.tracker.begin_capture(&a.stream, 0, |_| Ok(())), Err(SubmitError::Capturing)));
    // Others go on, and follow what came before, without touching the captured stream.
    assert_eq!(lab.submit(&b, &[write(&x)]).waits[0].after, before.stamp);
    let (joined, _) = end(&lab, running);
    assert!(joined.is_some());
    lab.submit(&a, &[]);
    lab.clean();
}

#[test]
fn captured_work_waits_for_nothing_outside_and_each_replay_does() {
    let lab = Lab::new();
    let (a, b, x, y, exec) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64), lab.region(16));
    let outside = lab.submit(&b, &[write(&x)]);
    let running = begin(&lab, &a);
    capture(&lab, &running, &a, &[read(&x), write(&y)]);
    capture(&lab, &running, &a, &[(&y, 0, 32, Mode::Read)]);
    assert_eq!(lab.waits(), 0);
    let (_, set) = end(&lab, running);
    let expected = [
        CapturedAccess { region: x.region.id(), start: 0, end: 64, mode: Mode::Read },
        CapturedAccess { region: y.region.id(), start: 0, end: 64, mode: Mode::Write },
    ];
    assert_eq!(set.accesses(), expected);
    let find = |id| [&x.region, &y.region].into_iter().find(|region| region.id() == id);
    let accesses = set.replay(&exec.region, find).expect("all known");
    assert_eq!(accesses.len(), 3);
    let replay = lab.submit(&a, &[read(&x), write(&y), write(&exec)]);
    assert_eq!(replay.waits[0].after, outside.stamp);
    let other = lab.submit(&b, &[read(&x), write(&y), write(&exec)]);
    assert_eq!(other.waits.len(), 1, "one executable replays once at a time");
    lab.clean();
}

#[test]
fn several_streams_in_one_capture_follow_each_other_and_are_joined() {
    let lab = Lab::new();
    let (a, b, c, x, y) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let running = begin(&lab, &a);
    capture(&lab, &running, &a, &[write(&x)]);
    running.add_stream(&b.stream, 0).expect("forks");
    running.add_stream(&c.stream, 0).expect("forks, and captures nothing");
    assert!(matches!(lab.try_with(&b, &[], &Options::default()), Err(SubmitError::Capturing)));
    capture(&lab, &running, &b, &[read(&x), write(&y)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 0, "the fork came after the write");
    capture(&lab, &running, &a, &[write(&x)]);
    capture(&lab, &running, &a, &[read(&x)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 1);
    capture(&lab, &running, &b, &[read(&x)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 2);
    let (joined, _) = end(&lab, running);
    assert!(joined.is_some(), "all joined to the origin");
    lab.submit(&b, &[write(&y)]);
    lab.clean();
}

#[test]
fn seals_frees_and_drops_leave_a_capture_alone() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let done = lab.submit(&a, &[write(&x)]);
    let running = begin(&lab, &a);
    let records = lab.records();
    assert!(matches!(lab.tracker.settle(done.stamp), Settled::Pending(_)));
    assert_eq!(lab.tracker.retire(x.region, x.memory), Retired::Reclaimer);
    assert_eq!(lab.records(), records);
    drop(b);
    // The handle goes while it captures: the stream closes when the capture ends.
    drop(a.stream);
    assert!(!lab.world().streams[a.sim].closed);
    let (joined, set) = end(&lab, running);
    assert!(joined.is_some() && set.accesses().is_empty());
    assert!(lab.world().streams[a.sim].closed);
    let _ = y;
    lab.clean();
}

#[test]
fn an_abandoned_capture_gives_the_streams_back() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let running = begin(&lab, &a);
    capture(&lab, &running, &a, &[write(&x)]);
    assert!(running.abandon(|sim| lab.world().end_capture(*sim)).is_some(), "it was ended");
    assert_eq!(x.region.stamps().len(), 0, "captured work stamps nothing");
    lab.submit(&a, &[write(&x)]);
    lab.clean();
}

#[test]
fn a_capture_that_does_not_begin_changes_nothing() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let error =
        lab.tracker.begin_capture(&a.stream, 0, |_| Err(crate::support::Failed("begin"))).unwrap_err();
    assert!(matches!(error, SubmitError::Driver { .. }));
    lab.submit(&a, &[write(&x)]);
    lab.clean();
}

#[test]
fn transitive_waits_vanish_inside_a_capture_too() {
    let lab = Lab::new();
    let (a, b, c, x, y) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64), lab.region(64));
    let running = begin(&lab, &a);
    running.add_stream(&b.stream, 0).expect("forks");
    running.add_stream(&c.stream, 0).expect("forks");
    capture(&lab, &running, &a, &[write(&x)]);
    capture(&lab, &running, &b, &[read(&x), write(&y)]);
    capture(&lab, &running, &c, &[read(&y)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 2);
    capture(&lab, &running, &c, &[read(&x)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 2, "C follows B, and B followed A");
    let (joined, _) = end(&lab, running);
    assert!(joined.is_some());
    lab.clean();
}

#[test]
fn what_the_origin_captures_after_a_fork_is_followed() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let running = begin(&lab, &a);
    running.add_stream(&b.stream, 0).expect("forks");
    capture(&lab, &running, &a, &[write(&x)]);
    capture(&lab, &running, &b, &[read(&x)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 1);
    end(&lab, running);
    lab.clean();
}

#[test]
fn several_streams_are_followed_at_once_and_joined_once() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    let running = begin(&lab, &a);
    running.add_stream(&b.stream, 0).expect("forks");
    running.add_stream(&c.stream, 0).expect("forks");
    capture(&lab, &running, &b, &[read(&x)]);
    capture(&lab, &running, &c, &[read(&x)]);
    capture(&lab, &running, &a, &[write(&x)]);
    assert_eq!(lab.fired(Rule::CaptureWait), 2);
    let (joined, _) = end(&lab, running);
    assert!(joined.is_some());
    assert_eq!(
        (lab.fired(Rule::CaptureWait), lab.fired(Rule::CaptureJoined)),
        (2, 2),
        "the origin follows all"
    );
    lab.clean();
}

#[test]
fn in_a_capture_a_range_is_followed_no_further_than_its_own_stamp() {
    let lab = Lab::new();
    let (a, b, c) = (lab.stream(), lab.stream(), lab.stream());
    let (x, y) = (lab.region(64), lab.region(64));
    let running = begin(&lab, &a);
    running.add_stream(&b.stream, 0).expect("forks");
    running.add_stream(&c.stream, 0).expect("forks");
    capture(&lab, &running, &a, &[(&x, 0, 32, Mode::Write), write(&y)]);
    // An event lies behind the first write.
    capture(&lab, &running, &b, &[read(&y)]);
    capture(&lab, &running, &a, &[(&x, 32, 64, Mode::Write)]);
    capture(&lab, &running, &c, &[(&x, 0, 32, Mode::Read)]);
    assert_eq!(lab.world().captured_after(0, 2, 0), 1, "not after the second write");
    end(&lab, running);
    lab.clean();
}

#[test]
fn a_set_has_each_byte_once_with_a_mode_that_covers_all() {
    let lab = Lab::new();
    let device = 3;
    let sim = lab.world().add_stream(false, None, device);
    let stream = lab.tracker.stream(sim, StreamKind::Owned, device).expect("few streams");
    let (w, x, y, z) = (lab.region(32), lab.region(64), lab.region(64), lab.region(64));
    let running = lab.tracker.begin_capture(&stream, 0, |_| Ok(())).expect("begins");
    let sum = Mode::Accumulate { size: 4, scope: Scope::System };
    let accesses = [
        // A gap, and a neighbour with another region.
        Access::new(&w.region, 0, 8, Mode::Write),
        Access::new(&w.region, 16, 24, Mode::Write),
        Access::new(&x.region, 24, 32, Mode::Write),
        // A piece that starts at an element, one that starts inside one, one of another mode right behind.
        Access::whole(&y.region, sum),
        Access::new(&z.region, 0, 8, sum),
        Access::new(&z.region, 8, 16, Mode::Read),
    ];
    running.submit(&stream, &accesses, |_| Ok(())).expect("captured");
    let again = [Access::new(&y.region, 8, 14, Mode::Read)];
    running.submit(&stream, &again, |_| Ok(())).expect("captured");
    let ((), set) = running.finish(|_| Ok(())).expect("ends");
    let touch = |region: &LabRegion, start, end, mode| CapturedAccess {
        region: region.region.id(),
        start,
        end,
        mode,
    };
    let expected = [
        touch(&w, 0, 8, Mode::Write),
        touch(&w, 16, 24, Mode::Write),
        touch(&x, 24, 32, Mode::Write),
        touch(&y, 0, 8, sum),
        // 8..14 is read and summed; from 14 on the phase would be another one.
        touch(&y, 8, 64, Mode::Write),
        touch(&z, 0, 8, sum),
        touch(&z, 8, 16, Mode::Read),
    ];
    assert_eq!(set.accesses(), expected);
}

#[test]
fn a_capture_knows_its_streams_and_the_tracker_its_captures() {
    let lab = Lab::new();
    let (a, b, c) = (lab.stream(), lab.stream(), lab.stream());
    assert_eq!(lab.tracker.captures(), 0);
    let running = begin(&lab, &a);
    let beside = begin(&lab, &c);
    running.add_stream(&b.stream, 0).expect("takes part");
    assert_eq!(running.axes(), [a.stream.axis(), b.stream.axis()]);
    assert!(running.has(&a.stream) && running.has(&b.stream) && !running.has(&c.stream));
    assert!(lab.tracker.begin_capture(&a.stream, 0, |_| Ok(())).is_err());
    assert_eq!(lab.tracker.captures(), 2);
    end(&lab, running);
    assert_eq!(lab.tracker.captures(), 1);
    drop(beside.abandon(|sim| lab.world().end_capture(*sim)));
    assert_eq!(lab.tracker.captures(), 0);
    lab.clean();
}

/// Whatever panics while it is recorded, the stream has its handle.
#[test]
fn a_panic_in_captured_work_takes_nothing_from_the_stream() {
    let lab = Lab::new();
    let (a, x) = (lab.stream(), lab.region(64));
    let running = begin(&lab, &a);
    let panics = || {
        running.submit(&a.stream, &[Access::whole(&x.region, Mode::Write)], |_| -> Result<(), _> {
            std::panic::resume_unwind(Box::new("planned"))
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    capture(&lab, &running, &a, &[write(&x)]);
    end(&lab, running);
    lab.submit(&a, &[write(&x)]);
    lab.clean();
}
