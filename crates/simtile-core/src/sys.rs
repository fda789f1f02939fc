//! What the platform tells about the process: whether this is a forked child, and whether it is ending.
//!
//! CUDA does not work in a child of `fork`, and not once the process has begun to exit. Both are noted by handlers that run
//! at that moment, so that asking is one load.

use core::time::Duration;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

/// How the process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Running,
    Forked,
    Exiting,
}

static STATE: AtomicU8 = AtomicU8::new(0);

/// Background threads that are between two driver calls of theirs, or in one.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Longest wait at exit for a background thread's call. A module unload waits for the device.
const PATIENCE: Duration = Duration::from_secs(2);

/// While it lives a background thread may call the driver, and the process does not go on exiting.
pub(crate) struct Background(());

/// Begins a background thread's calls; `None` once the process exits, or in a forked child.
///
/// The driver's own handlers tear it down after ours have run (they were registered before), so a call that was begun
/// has to end first. Here the count goes up and then the state is read; the handler sets the state and then reads the
/// count: one of both sees the other, by the order that all four have.
pub(crate) fn background() -> Option<Background> {
    BUSY.fetch_add(1, Ordering::SeqCst);
    let busy = Background(());
    (STATE.load(Ordering::SeqCst) == 0).then_some(busy)
}

impl Drop for Background {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until no background thread is in a call.
fn settle() {
    let start = Instant::now();
    while BUSY.load(Ordering::SeqCst) != 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// How the process stands. One load.
#[inline]
pub(crate) fn process() -> Process {
    match STATE.load(Ordering::Relaxed) {
        0 => Process::Running,
        1 => Process::Forked,
        _ => Process::Exiting,
    }
}

/// Whether this process was forked from one that had made a context. The driver does not work in it, and locks may be held by threads that
/// it does not have: calls return `Forked`, drops touch nothing, and what another thread was to do is never done.
#[inline]
pub fn is_forked() -> bool {
    process() == Process::Forked
}

#[cfg(unix)]
mod handlers {
    use super::{Ordering, STATE};

    extern "C" fn in_child() {
        STATE.store(1, Ordering::Relaxed);
    }

    extern "C" fn at_exit() {
        // A forked child that exits is still a forked child, and has no background threads.
        if STATE.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            super::settle();
        }
    }

    pub(super) fn install() {
        // SAFETY: the first handler stores to a static and does nothing else, which is allowed in a forked child; the second
        // may do anything, and waits a bounded time. Without the handlers a call in a forked child reaches the driver, as it
        // would without this crate.
        unsafe {
            let _ = libc::pthread_atfork(None, None, Some(in_child));
            let _ = libc::atexit(at_exit);
        }
    }
}

/// Begins to watch. Called when a context is made; only the first call does something.
pub(crate) fn watch() {
    #[cfg(unix)]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(handlers::install);
    }
}
