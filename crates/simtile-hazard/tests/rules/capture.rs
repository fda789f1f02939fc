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
    running.abandon(|sim| lab.world().end_capture(*sim));
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
