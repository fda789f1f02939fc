//! What the platform tells about the process: whether this is a forked child, and whether it is ending.
//!
//! CUDA does not work in a child of `fork`, and not once the process has begun to exit. Both are noted by handlers that run
//! at that moment, so that asking is one load.

use simtile_sync::atomic::{AtomicU8, Ordering};

/// How the process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Running,
    Forked,
    Exiting,
}

static STATE: AtomicU8 = AtomicU8::new(0);

/// How the process stands. One load.
#[inline]
pub(crate) fn process() -> Process {
    match STATE.load(Ordering::Relaxed) {
        0 => Process::Running,
        1 => Process::Forked,
        _ => Process::Exiting,
    }
}

/// Whether drops must not touch anything: locks may be held by threads that the child does not have.
#[inline]
pub(crate) fn is_forked() -> bool {
    process() == Process::Forked
}

#[cfg(unix)]
mod handlers {
    use super::{Ordering, STATE};

    extern "C" fn in_child() {
        STATE.store(1, Ordering::Relaxed);
    }

    extern "C" fn at_exit() {
        // A forked child that exits is still a forked child.
        let _ = STATE.compare_exchange(0, 2, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn install() {
        // SAFETY: both handlers store to a static and do nothing else, which is allowed in either place. Without the
        // handlers a call in a forked child reaches the driver, as it would without this crate.
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
