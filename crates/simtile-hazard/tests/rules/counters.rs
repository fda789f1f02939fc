//! The counters say how often a rule fired, exactly.

use crate::support::lab::*;
use simtile_hazard::*;

/// Has one piece of work seen to finish, and no other.
fn complete(lab: &Lab, stamp: Stamp) {
    let Settled::Pending(event) = lab.tracker.settle(stamp) else { panic!("in flight") };
    lab.run();
    assert!(lab.tracker.query(&event).expect("query"));
}

#[test]
fn skipped_waits_are_counted() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let first = lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x)]);
    assert_eq!((lab.fired(Rule::SkipDominated), lab.fired(Rule::SkipCompleted)), (0, 0));
    lab.submit(&b, &[read(&x)]);
    assert_eq!(lab.fired(Rule::SkipDominated), 1, "B is ordered after A");
    complete(&lab, first.stamp);
    let c = lab.stream();
    lab.submit(&c, &[read(&x)]);
    assert_eq!((lab.fired(Rule::SkipDominated), lab.fired(Rule::SkipCompleted)), (1, 1));
    lab.clean();
}

#[test]
fn a_stream_that_reads_again_forgets_what_has_completed() {
    let lab = Lab::new();
    let (a, b, x) = (lab.stream(), lab.stream(), lab.region(64));
    let first = lab.submit(&a, &[write(&x)]);
    lab.submit(&b, &[read(&x)]);
    complete(&lab, first.stamp);
    lab.submit(&b, &[read(&x)]);
    let stamps = x.region.stamps();
    assert!(stamps.len() == 1 && stamps[0].2.axis == b.stream.axis(), "{stamps:?}");
    assert_eq!(lab.fired(Rule::PruneCompleted), 1);
    lab.clean();
}

#[test]
fn completed_stamps_of_a_neighbour_are_counted_as_they_are_forgotten() {
    let lab = Lab::new();
    let (a, b, c, x) = (lab.stream(), lab.stream(), lab.stream(), lab.region(64));
    let first = lab.submit(&a, &[(&x, 0, 32, Mode::Read)]);
    lab.submit(&b, &[(&x, 0, 32, Mode::Read)]);
    complete(&lab, first.stamp);
    lab.submit(&c, &[(&x, 32, 64, Mode::Write)]);
    assert_eq!(lab.fired(Rule::PruneCompleted), 1);
    assert_eq!(x.region.stamps().len(), 2, "B's read and C's write");
    lab.clean();
}

#[test]
fn events_are_made_up_to_twice_the_reserve() {
    let lab = Lab::with(Config { event_reserve: 4, ..Config::default() });
    assert_eq!((lab.world().made(), lab.fired(Rule::EventsMade)), (8, 1));
}

#[test]
fn names_differ() {
    let lab = Lab::new();
    let (a, b, x, y) = (lab.stream(), lab.stream(), lab.region(64), lab.region(0));
    assert_ne!(a.stream.axis().get(), b.stream.axis().get());
    assert_ne!(x.region.id().get(), y.region.id().get());
    assert!(!x.region.is_empty() && y.region.is_empty());
}
