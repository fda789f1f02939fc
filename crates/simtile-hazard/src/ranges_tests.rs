//! Unit tests of the range list.

use super::*;
use crate::ids::AxisId;

struct Known {
    complete: Vec<(AxisId, Epoch)>,
    recorded: Epoch,
}

impl Knowledge for Known {
    fn complete(&self, axis: AxisId, epoch: Epoch) -> bool {
        self.complete.iter().any(|done| done.0 == axis && done.1 >= epoch)
    }
    fn same_cover(&self, _: AxisId, a: Epoch, b: Epoch) -> bool {
        self.recorded < a.min(b)
    }
}

const A: AxisId = AxisId(1 << 16);
const B: AxisId = AxisId(2 << 16 | 1);

fn known() -> Known {
    Known { complete: Vec::new(), recorded: u64::MAX }
}

fn touch(
    list: &mut Ranges,
    span: core::ops::Range<u64>,
    kind: Kind,
    axis: AxisId,
    epoch: Epoch,
    know: &Known,
) -> Touched {
    let frontier = Frontier::default();
    let mut report = Touched::default();
    let who = Toucher { axis, frontier: &frontier };
    list.touch(span.start, span.end, kind, epoch, false, &who, know, 64, &mut report);
    report
}

fn follow(list: &Ranges, span: core::ops::Range<u64>, kind: Kind, axis: AxisId) -> Vec<(AxisId, Epoch)> {
    let frontier = Frontier::default();
    let mut out = Vec::new();
    let who = Toucher { axis, frontier: &frontier };
    list.plan(span.start, span.end, kind, &who, &known(), 16, &mut (0, 0), |e, _| {
        out.push((e.axis, e.epoch))
    });
    out
}

#[test]
fn an_access_cuts_at_its_bounds() {
    let mut list = Ranges::default();
    touch(&mut list, 0..100, Kind::WRITE, A, 1, &known());
    let report = touch(&mut list, 40..60, Kind::WRITE, A, 2, &known());
    assert_eq!((report.cut, list.len()), (2, 3));
    assert_eq!(follow(&list, 0..40, Kind::READ, B), [(A, 1)]);
    assert_eq!(follow(&list, 40..60, Kind::READ, B), [(A, 2)]);
    assert_eq!(follow(&list, 60..61, Kind::READ, B), [(A, 1)]);
    assert_eq!(follow(&list, 0..100, Kind::READ, B), [(A, 1), (A, 2), (A, 1)]);
    assert_eq!(follow(&list, 100..200, Kind::READ, B), []);
}

#[test]
fn neighbours_join_when_equal_or_covered_by_the_same_event() {
    let mut list = Ranges::default();
    for chunk in 0..4 {
        touch(&mut list, chunk * 10..chunk * 10 + 10, Kind::WRITE, A, 1, &known());
    }
    assert_eq!(list.len(), 1, "equal");
    touch(&mut list, 0..10, Kind::WRITE, A, 2, &known());
    assert_eq!(list.len(), 2, "an event may lie between");
    let open = Known { complete: Vec::new(), recorded: 0 };
    touch(&mut list, 0..10, Kind::WRITE, A, 3, &open);
    touch(&mut list, 10..20, Kind::WRITE, A, 3, &open);
    assert_eq!(list.len(), 1, "no event between");
    assert_eq!(follow(&list, 30..40, Kind::READ, B), [(A, 3)]);
}

#[test]
fn completed_neighbours_vanish() {
    let mut list = Ranges::default();
    touch(&mut list, 0..10, Kind::WRITE, A, 1, &known());
    touch(&mut list, 10..20, Kind::WRITE, B, 1, &known());
    let know = Known { complete: vec![(B, 1)], recorded: u64::MAX };
    touch(&mut list, 5..10, Kind::WRITE, A, 2, &know);
    assert_eq!(list.len(), 2);
    assert_eq!(follow(&list, 10..20, Kind::WRITE, A), []);
}

#[test]
fn a_reader_does_not_erase_another_axis_reader() {
    let mut list = Ranges::default();
    touch(&mut list, 0..10, Kind::READ, A, 1, &known());
    touch(&mut list, 0..10, Kind::READ, B, 1, &known());
    assert_eq!(follow(&list, 0..10, Kind::WRITE, AxisId(9 << 16 | 2)), [(A, 1), (B, 1)]);
}

#[test]
fn above_the_limit_the_nearest_are_joined() {
    let mut list = Ranges::default();
    let frontier = Frontier::default();
    let who = Toucher { axis: A, frontier: &frontier };
    let mut folded = 0;
    for chunk in 0..20u64 {
        // Pairs lie close together.
        let start = chunk / 2 * 100 + chunk % 2 * 20;
        let mut report = Touched::default();
        list.touch(start, start + 10, Kind::WRITE, chunk + 1, false, &who, &known(), 16, &mut report);
        folded += report.folded;
    }
    assert_eq!((list.len(), folded), (16, 4));
    // Over-ordered, never under-ordered: each byte still shows its stamp or a later one.
    for chunk in 0..20u64 {
        let start = chunk / 2 * 100 + chunk % 2 * 20;
        let seen = follow(&list, start..start + 10, Kind::READ, B);
        assert!(seen.iter().any(|s| s.1 > chunk), "chunk {chunk}: {seen:?}");
    }
}

#[test]
fn two_accumulator_classes_of_one_axis_become_a_write() {
    let four = Kind::new(crate::Mode::Accumulate { size: 4, scope: crate::Scope::Device }, 0, 0);
    let eight = Kind::new(crate::Mode::Accumulate { size: 8, scope: crate::Scope::Device }, 0, 0);
    let mut list = Ranges::default();
    touch(&mut list, 0..16, four, A, 1, &known());
    assert_eq!(follow(&list, 0..16, four, B), []);
    touch(&mut list, 0..16, eight, A, 2, &known());
    assert_eq!(follow(&list, 0..16, eight, B), [(A, 2)]);
    assert_eq!(follow(&list, 0..16, four, B), [(A, 2)]);
}

#[test]
fn the_ranges_with_the_smallest_gap_are_the_nearest() {
    let mut list = Ranges::default();
    let frontier = Frontier::default();
    let who = Toucher { axis: A, frontier: &frontier };
    for (epoch, (start, end)) in [(0, 100), (150, 151), (160, 170)].into_iter().enumerate() {
        let report = &mut Touched::default();
        list.touch(start, end, Kind::WRITE, epoch as u64 + 1, false, &who, &known(), 2, report);
    }
    let spans: Vec<_> = list.all().iter().map(|stamp| (stamp.0, stamp.1)).collect();
    assert_eq!(spans, [(0, 100), (150, 170)]);
}
