//! The explorer finds bugs: each that is planted in the runtime, within 200 seeds.
//!
//! `SIMTILE_BUG=NAME` plants those alone whose name contains it, `SIMTILE_FROM=SEED` begins there. In a release build:
//! `cargo run --release -p simtile-cts --features planted -- explore --planted --seeds 200`.

use simtile_core::{Bug, plant};
use simtile_cts::explorer;

#[test]
fn each_planted_bug_is_found_within_200_seeds() {
    let filter = std::env::var("SIMTILE_BUG").unwrap_or_default();
    let from = std::env::var("SIMTILE_FROM").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (mut missed, mut planted) = (Vec::new(), 0);
    for &bug in Bug::ALL.iter().filter(|bug| format!("{bug:?}").contains(&filter)) {
        plant(Some(bug));
        let by = (from..from + 200).find_map(|seed| explorer::run(seed).err().map(|wrong| (seed, wrong)));
        plant(None);
        planted += 1;
        match by {
            Some((seed, wrong)) => {
                println!("{bug:?}: seed {seed}: {}", wrong.lines().next().unwrap_or_default())
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(planted >= 12 || !filter.is_empty(), "{planted} bugs");
}
