//! Strided accesses of one submission.
//!
//! Between submissions a strided view counts as the span it covers. Within one submission two exclusive strided views may
//! interleave (the left and the right columns of a matrix): they are compared element by element, and those that share
//! no byte are given to the tracker as one access.

use super::touches::Touch;
use simtile_hazard::{Access, Mode};
use smallvec::SmallVec;

/// The accesses for the tracker: of touches that overlap by their spans alone, the union.
pub(super) fn merge<'a>(touches: &[Touch<'a>]) -> SmallVec<[Access<'a>; 8]> {
    let mut sorted: Vec<Touch<'a>> =
        touches.iter().filter(|touch| touch.start < touch.end).copied().collect();
    sorted.sort_by_key(|touch| (touch.allocation.id(), touch.start));
    // Groups of one allocation whose spans overlap and which share no byte.
    let mut groups: Vec<Vec<Touch<'a>>> = Vec::new();
    for touch in sorted {
        if let Some(group) = groups.last_mut()
            && group[0].allocation.id() == touch.allocation.id()
            && group.iter().any(|other| other.end > touch.start)
            && (touch.stride.is_some() || group.iter().any(|other| other.stride.is_some()))
            && group.iter().all(|other| disjoint(other, &touch))
        {
            group.push(touch);
            continue;
        }
        groups.push(vec![touch]);
    }
    let mut accesses = SmallVec::new();
    for group in groups {
        let (Some(start), Some(end)) =
            (group.iter().map(|t| t.start).min(), group.iter().map(|t| t.end).max())
        else {
            continue;
        };
        let first = group[0];
        let mode = if group.iter().all(|touch| touch.mode == first.mode) { first.mode } else { Mode::Write };
        accesses.extend(first.allocation.access(start, end, mode));
    }
    accesses
}

/// Whether two touches of one allocation share no byte.
fn disjoint(a: &Touch<'_>, b: &Touch<'_>) -> bool {
    if a.end <= b.start || b.end <= a.start {
        return true;
    }
    // A contiguous touch is one row.
    let rows = |touch: &Touch<'_>| touch.stride.unwrap_or((touch.end - touch.start, touch.end - touch.start));
    let ((a_width, a_pitch), (b_width, b_pitch)) = (rows(a), rows(b));
    if a_pitch == b_pitch && a_pitch > 0 {
        // Rows of both lie at fixed places modulo the pitch.
        let shift = (b.start as i128 - a.start as i128).rem_euclid(a_pitch as i128) as usize;
        return shift >= a_width && shift + b_width <= a_pitch;
    }
    // Different pitches: each row of the one that has fewer, against the rows of the other that it meets.
    let (few, many) = if count(a, a_pitch) <= count(b, b_pitch) { (a, b) } else { (b, a) };
    let ((few_width, few_pitch), (many_width, many_pitch)) = (rows(few), rows(many));
    let mut at = few.start;
    while at < few.end {
        let end = (at + few_width).min(few.end);
        // Rows of the other one that end behind `at` and start before `end`.
        let first = if at < many.start { 0 } else { (at - many.start) / many_pitch.max(1) };
        let mut row = many.start + first * many_pitch;
        while row < end && row < many.end {
            if row + many_width > at {
                return false;
            }
            row += many_pitch.max(1);
        }
        at += few_pitch.max(1);
    }
    true
}

fn count(touch: &Touch<'_>, pitch: usize) -> usize {
    (touch.end - touch.start).div_ceil(pitch.max(1))
}
