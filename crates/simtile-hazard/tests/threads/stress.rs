//! Eight threads on shared streams and regions, judged by the oracle.

use crate::support::lab::Lab;
use crate::support::stress;
use simtile_hazard::Config;

#[test]
fn eight_threads_obey_the_oracle() {
    for seed in 0..6 {
        let config =
            Config { stream_permits: 32, context_permits: 64, event_reserve: 4, ..Config::default() };
        let lab = Lab::with(config);
        let shared = stress::shared(&lab, 4, 6);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (lab, shared) = (&lab, &shared);
                scope.spawn(move || stress::run(lab, shared, seed * 8 + thread, 300));
            }
        });
        stress::finish(&lab, shared);
    }
}
