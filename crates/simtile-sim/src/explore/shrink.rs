//! From a schedule that fails to a short one that fails too.

use super::Recording;
use std::collections::BTreeMap;

/// Takes decisions out of a recording as long as `fails` holds for the rest, calling it at most `tries` times.
///
/// First the shortest beginning that fails is looked for (what comes after the failure changes nothing), then
/// single decisions and groups of them are left out. What remains fails, and leaving out any one further decision
/// does not, unless the tries were used up.
pub fn shrink(recording: &Recording, tries: usize, mut fails: impl FnMut(&Recording) -> bool) -> Recording {
    let mut left = tries;
    let mut test = |switches: &[(u32, u32)]| {
        left > 0 && {
            left -= 1;
            fails(&with(recording, switches))
        }
    };
    let mut kept: Vec<(u32, u32)> =
        recording.switches.iter().map(|(&number, &answer)| (number, answer)).collect();
    if test(&[]) {
        return with(recording, &[]);
    }
    // The beginnings of a failing schedule need not be ordered, but mostly are; each step is checked by itself.
    let (mut short, mut long) = (0, kept.len());
    while long - short > 1 {
        let middle = short + (long - short) / 2;
        if test(&kept[..middle]) {
            long = middle;
        } else {
            short = middle;
        }
    }
    kept.truncate(long);
    // Groups of decisions, halved as long as nothing can go (Zeller and Hildebrandt: "Simplifying and isolating
    // failure-inducing input", 2002).
    let mut size = kept.len().div_ceil(2);
    while size > 0 && !kept.is_empty() {
        let (mut at, mut went) = (0, false);
        while at < kept.len() {
            let end = (at + size).min(kept.len());
            let rest: Vec<_> = [&kept[..at], &kept[end..]].concat();
            if test(&rest) {
                (kept, went) = (rest, true);
            } else {
                at = end;
            }
        }
        size = if size > 1 { size / 2 } else { usize::from(went) };
    }
    with(recording, &kept)
}

fn with(recording: &Recording, switches: &[(u32, u32)]) -> Recording {
    Recording { switches: switches.iter().copied().collect::<BTreeMap<_, _>>(), ..recording.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::Strategy;
    use super::*;

    fn recording(numbers: impl Iterator<Item = u32>) -> Recording {
        Recording {
            switches: numbers.map(|number| (number, 1)).collect(),
            ..Recording::plain(5, Strategy::Interleaved)
        }
    }

    #[test]
    fn what_is_needed_stays_and_the_rest_goes() {
        let all = recording(0..500);
        let mut calls = 0;
        let small = shrink(&all, 1000, |tried| {
            calls += 1;
            [17, 230, 231].iter().all(|number| tried.switches.contains_key(number))
        });
        assert_eq!(small, recording([17, 230, 231].into_iter()));
        assert!(calls < 100, "{calls}");
        assert_eq!(shrink(&all, 1000, |_| true), recording(0..0));
    }

    #[test]
    fn what_is_left_when_the_tries_end_still_fails() {
        let all = recording(0..64);
        for tries in 0..40 {
            let small = shrink(&all, tries, |tried| tried.switches.len() >= 5);
            assert!(small.switches.len() >= 5, "{tries}");
        }
    }
}
