//! The place where a simulator takes over scheduling and time.
//!
//! A hook is a table of functions, set once in a process. It decides for each calling thread whether
//! that thread takes part in a simulation, so tests with and without exploration run side by side in one
//! process. Only one participant of a simulation runs at a time; it gives up its turn inside
//! [`Hook::switch_point`] and [`Hook::block`].

use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;

/// What a hook offers.
#[derive(Clone, Copy)]
pub struct Hook {
    /// Whether the calling thread takes part in a simulation. The functions below that act for the
    /// calling thread are only called if it does.
    pub participates: fn() -> bool,
    /// A point where the scheduler may let another participant run. The name goes into the trace.
    pub switch_point: fn(name: &'static str),
    /// Blocks the calling thread until it is woken by the same key, or until the timeout in virtual time.
    /// Returns whether it was woken.
    pub block: fn(key: usize, timeout: Option<Duration>) -> bool,
    /// Wakes up to `count` participants that block on `key`. Called by any thread.
    pub wake: fn(key: usize, count: usize),
    /// The calling thread found a lock taken and lets others run until somebody has done something. `first` says
    /// whether it has done something itself since the last call: it is the first try for this lock.
    pub contended: fn(first: bool),
    /// A number for the calling thread's simulation that no other simulation of the process has.
    pub world: fn() -> usize,
    /// Virtual time since the start of the calling thread's simulation.
    pub now: fn() -> Duration,
    /// The calling thread is about to start a thread that will take part. Returns its token.
    pub spawning: fn(name: &str) -> usize,
    /// First call of a thread that was started with a token. Returns when it is that thread's turn.
    pub adopt: fn(token: usize),
    /// Last call of an adopted thread.
    pub exiting: fn(token: usize),
}

static HOOK: AtomicPtr<Hook> = AtomicPtr::new(core::ptr::null_mut());

/// Installs the hook. The first one stays; returns whether it was this one.
pub fn install(hook: &'static Hook) -> bool {
    let pointer = core::ptr::from_ref(hook).cast_mut();
    HOOK.compare_exchange(core::ptr::null_mut(), pointer, Ordering::Release, Ordering::Acquire).is_ok()
}

/// The installed hook.
#[inline]
pub fn installed() -> Option<&'static Hook> {
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a `&'static Hook` in `install`.
    unsafe { hook.as_ref() }
}

/// The installed hook, if the calling thread takes part in a simulation.
#[inline]
pub fn current() -> Option<&'static Hook> {
    installed().filter(|hook| (hook.participates)())
}

/// A point where the explore mode may switch threads. Nothing outside a simulation.
#[inline]
pub fn switch_point(name: &'static str) {
    if let Some(hook) = current() {
        (hook.switch_point)(name);
    }
}

/// A number for the simulation that the calling thread takes part in, unique in the process; 0 outside of one.
///
/// Process-wide state whose threads or waiters belong to simulations is kept apart by it.
#[inline]
pub fn world() -> usize {
    current().map_or(0, |hook| (hook.world)())
}
