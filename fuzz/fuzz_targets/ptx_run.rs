//! Any text: what loads as PTX runs to an end.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod run;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(program) = simtile_sim::ptx::load(text, run::TRAITS) {
        run::run(&*program);
    }
});
