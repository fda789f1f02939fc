//! Any bytes: what loads as Tile bytecode runs to an end.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod run;

fuzz_target!(|data: &[u8]| {
    if let Ok(program) = simtile_sim::tile::load(data, run::TRAITS) {
        run::run(&*program);
    }
});
