//! The place where a simulator takes over scheduling and time.
//!
//! A hook is a table of functions set once in a process. It decides for each calling thread whether
//! it takes part (a thread that belongs to no simulator in explore mode does not), so tests with and
//! without exploration run side by side in one process.

use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;

/// What a hook offers. Each function returns whether it took the operation over; if not, the caller
/// does what it would have done without a hook.
#[derive(Clone, Copy)]
pub struct Hook {
    /// A point where the scheduler may switch to another thread.
    pub switch_point: fn(&'static str),
    /// The calling thread would block until [`Hook::wake`] is called with the same key, or until the
    /// virtual deadline. `Some(woken)` if the hook did the waiting.
    pub block: fn(key: usize, deadline: Option<Duration>) -> Option<bool>,
    /// Wakes up to `count` threads that block on `key`.
    pub wake: fn(key: usize, count: usize),
    /// Virtual time since the start of the simulation, if the calling thread takes part in one.
    pub now: fn() -> Option<Duration>,
    /// Runs a new thread under the scheduler of the calling thread. Returns a token for the child to
    /// pass to `adopt` when it starts, or `None` if the caller takes part in no simulation.
    pub spawning: fn(name: &str) -> Option<usize>,
    /// First call of a thread that was spawned with a token.
    pub adopt: fn(token: usize),
    /// Last call of an adopted thread.
    pub exiting: fn(token: usize),
}

static HOOK: AtomicPtr<Hook> = AtomicPtr::new(core::ptr::null_mut());

/// Installs the hook. The first one stays; returns whether it was this one.
pub fn install(hook: &'static Hook) -> bool {
    HOOK.compare_exchange(
        core::ptr::null_mut(),
        core::ptr::from_ref(hook).cast_mut(),
        Ordering::Release,
        Ordering::Acquire,
    )
    .is_ok()
}

/// The installed hook.
#[inline]
pub fn installed() -> Option<&'static Hook> {
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a `&'static Hook` in `install`.
    unsafe { hook.as_ref() }
}

/// A point where the explore mode may switch threads. Nothing without a hook.
#[inline]
pub fn switch_point(name: &'static str) {
    if let Some(hook) = installed() {
        (hook.switch_point)(name);
    }
}
