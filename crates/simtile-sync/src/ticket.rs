//! The hand-off between whoever completes something and the future that waits for it: a flag and a waker under one lock.
//!
//! Completing sets the flag and takes the waker in one go; a poll looks at the flag and leaves its waker in one go. So either the
//! poll sees the flag, or the completion sees the waker: no wake-up is lost, and only the latest waker is woken. Cloning, dropping and
//! waking wakers is other people's code and happens outside of the lock. Modelled in `tests/loom.rs`.

use crate::Mutex;
use core::task::Waker;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One waiter.
pub struct Ticket {
    state: Mutex<State>,
}

struct State {
    fired: bool,
    waker: Option<Waker>,
}

impl Ticket {
    /// A ticket whose waker is woken once.
    pub fn new(waker: &Waker) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { fired: false, waker: Some(waker.clone()) }) })
    }

    /// Whether it has fired; if not, `waker` is the one to wake.
    pub fn poll(&self, waker: &Waker) -> bool {
        let state = self.state.lock();
        if state.fired {
            return true;
        }
        if state.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            return false;
        }
        drop(state);
        // Cloning and dropping wakers is other people's code.
        let new = waker.clone();
        let mut state = self.state.lock();
        let fired = state.fired;
        let old = if fired { Some(new) } else { state.waker.replace(new) };
        drop(state);
        drop(old);
        fired
    }

    /// Wakes nobody from now on.
    pub fn forget(&self) {
        let old = self.state.lock().waker.take();
        drop(old);
    }

    /// Sets the flag and wakes.
    pub fn fire(&self) {
        let mut state = self.state.lock();
        state.fired = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            // A panic of a waker is nobody else's business.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl core::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ticket").field("fired", &self.state.lock().fired).finish_non_exhaustive()
    }
}
