//! Time: monotonic, and virtual inside a simulation that owns it.

use crate::hook;
use core::time::Duration;
use std::sync::OnceLock;

/// Time since some fixed point of the process, or since the start of the simulation that the calling
/// thread takes part in.
pub fn now() -> Duration {
    if let Some(hook) = hook::current() {
        return (hook.now)();
    }
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Sleeps, in virtual time inside a simulation.
pub fn sleep(duration: Duration) {
    match hook::current() {
        // Nobody wakes key 0.
        Some(hook) => {
            (hook.block)(0, Some(duration));
        }
        None => std::thread::sleep(duration),
    }
}
