//! The whole protocol with eight threads under random schedules.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p simtile-hazard --test shuttle`; `SIMTILE_HAZARD_SCHEDULES` sets how many.

#![cfg(shuttle)]

mod support;

use simtile_hazard::Config;
use std::sync::Arc;
use support::lab::Lab;
use support::stress;

fn schedules(default: usize) -> usize {
    std::env::var("SIMTILE_HAZARD_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn whole_protocol(threads: u64, steps: usize) {
    let config = Config { stream_permits: 4, context_permits: 8, event_reserve: 2, ..Config::default() };
    let lab = Arc::new(Lab::with(config));
    // One schedule at a time is worth a trace: `SHUTTLE_RANDOM_SEED=n SIMTILE_HAZARD_TRACE=1`.
    lab.world().traced = std::env::var_os("SIMTILE_HAZARD_TRACE").is_some();
    let shared = Arc::new(stress::shared(&lab, 3, 3));
    let seed = u64::from(shuttle::rand::Rng::r#gen::<u32>(&mut shuttle::rand::thread_rng()));
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let (lab, shared) = (Arc::clone(&lab), Arc::clone(&shared));
            shuttle::thread::spawn(move || stress::run(&lab, &shared, seed.wrapping_add(thread), steps))
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    let shared = Arc::into_inner(shared).expect("all threads have ended");
    stress::finish(&lab, shared);
}

#[test]
fn eight_threads_at_random() {
    shuttle::check_random(|| whole_protocol(8, 12), schedules(1_000));
}

#[test]
fn eight_threads_with_rare_switches() {
    // This scheduler is unfair: it may let a thread that yields run for ever. Such a schedule is left after a bound.
    let mut config = shuttle::Config::new();
    config.max_steps = shuttle::MaxSteps::ContinueAfter(100_000);
    let scheduler = shuttle::scheduler::PctScheduler::new(3, schedules(1_000));
    shuttle::Runner::new(scheduler, config).run(|| whole_protocol(8, 12));
}
