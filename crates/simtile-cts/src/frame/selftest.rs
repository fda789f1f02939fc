//! Tests that end in every way a test can, for the test of the frame. They are not in the list; a child process
//! finds them by name.

use super::{Check, Cx, Layer, Stop, Test};
use std::time::Duration;

const fn test(name: &'static str, run: fn(&Cx) -> Check) -> Test {
    Test { name, layer: Layer::Driver, family: "selftest", promises: &[], needs: &[], seeds: 1, run }
}

/// Passes, after it asked the driver something and wrote more than a pipe holds.
pub static PASSES: Test = test("selftest::passes", |cx| {
    eprintln!("{}", "words ".repeat(50_000));
    cx.devices().map(drop)
});

/// Fails.
pub static FAILS: Test = test("selftest::fails", |_| Err(Stop::fail("on purpose")));

/// Cannot run.
pub static SKIPS: Test = test("selftest::skips", |_| Err(Stop::unsupported("on purpose")));

/// Never ends, after it said something.
pub static HANGS: Test = test("selftest::hangs", |_| {
    eprintln!("last words");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
});

/// Takes its process with it.
pub static DIES: Test = test("selftest::dies", |_| {
    eprintln!("last words");
    std::process::abort()
});

/// All of them.
pub static TESTS: [&Test; 5] = [&PASSES, &FAILS, &SKIPS, &HANGS, &DIES];
