//! Random programs against the oracle. `SIMTILE_HAZARD_PROGRAMS` sets how many (CI: 100 000), `SIMTILE_HAZARD_SEED` runs one.

#![cfg(not(any(loom, shuttle)))]

mod support;

use simtile_hazard::Rule;
use support::program::{Program, Space};

/// Programs that once were judged wrong: a failed fork that had joined all the same, a wait that became needless while the
/// waiting stream was sealed, two shared exports of which the first return ended both; and, in the wide space, ranges that were
/// joined although a synchronisation completed one of them alone.
const REGRESSIONS: &[(Space, u64)] = &[
    (Space::First, 31_714),
    (Space::First, 37_878),
    (Space::First, 59_197),
    (Space::First, 253_529),
    (Space::Wide, 203_811),
    (Space::Wide, 426_223),
    (Space::Wide, 631_472),
    (Space::Wide, 837_378),
    (Space::Wide, 909_762),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn programs_that_were_once_judged_wrong() {
    for &(space, seed) in REGRESSIONS {
        let (_, violations) = Program::run(space, seed, false);
        assert!(violations.is_empty(), "{space:?}, seed {seed}: {violations:#?}");
    }
}

#[test]
fn random_programs_obey_the_oracle() {
    if let Some(seed) = number("SIMTILE_HAZARD_SEED") {
        let (program, violations) = Program::run(Space::Wide, seed, true);
        println!("{:?}", program.tracker.stats());
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        return;
    }
    let programs = number("SIMTILE_HAZARD_PROGRAMS").unwrap_or(4_000);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let (fired, wrong) = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || run_share(worker, workers, programs))).collect();
        let mut fired = vec![0; Rule::ALL.len()];
        let mut wrong = Vec::new();
        for worker in workers {
            let (counts, mut violations) = worker.join().expect("the harness does not panic");
            fired.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            wrong.append(&mut violations);
        }
        (fired, wrong)
    });
    println!("{programs} programs; rules fired:");
    for (total, rule) in fired.iter().zip(Rule::ALL) {
        println!("{total:>12} {rule:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let silent: Vec<_> = Rule::ALL.iter().zip(&fired).filter(|(_, total)| **total == 0).collect();
    assert!(silent.is_empty(), "rules that never fired: {silent:?}");
}

#[test]
fn random_programs_with_marks_obey_the_oracle() {
    let programs = number("SIMTILE_HAZARD_PROGRAMS").map_or(1_000, |programs| programs / 4);
    let mut marks = 0;
    for seed in 0..programs {
        let (program, violations) = Program::run(Space::Marked, seed, false);
        assert!(violations.is_empty(), "{:?}, seed {seed}: {violations:#?}", Space::Marked);
        marks += program.tracker.stats().get(Rule::SealAsked);
    }
    assert!(marks > programs, "{marks} marks in {programs} programs");
}

#[test]
fn on_one_stream_there_is_no_wait_and_no_event_besides_checkpoints() {
    let programs = number("SIMTILE_HAZARD_PROGRAMS").map_or(400, |programs| programs / 10);
    let mut checkpoints = 0;
    for seed in 0..programs {
        let (program, violations) = Program::run(Space::Single, seed, false);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        checkpoints += program.tracker.stats().get(Rule::SealCheckpoint);
    }
    assert!(checkpoints > programs, "{checkpoints} checkpoints in {programs} programs");
}

/// Every `workers`-th program: how often each rule fired, and the first violations.
fn run_share(worker: u64, workers: u64, programs: u64) -> (Vec<u64>, Vec<String>) {
    let mut fired = vec![0; Rule::ALL.len()];
    let mut wrong = Vec::new();
    for seed in (worker..programs).step_by(workers as usize) {
        let (program, violations) = Program::run(Space::Wide, seed, false);
        for (count, &rule) in fired.iter_mut().zip(Rule::ALL) {
            *count += program.tracker.stats().get(rule);
        }
        if let Some(first) = violations.first() {
            wrong.push(format!("seed {seed}: {first} (and {} more)", violations.len() - 1));
            if wrong.len() >= 10 {
                break;
            }
        }
    }
    (fired, wrong)
}
