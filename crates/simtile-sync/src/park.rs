//! Where the waiters of our own locks sleep.
//!
//! A lock word carries a WAITERS bit. A waiter sets it and tries the word once more *under the mutex here*; an
//! unlocker that sees the bit takes the same mutex before it notifies. So an unlock either comes before the
//! waiter's last try, which then succeeds, or after it, and then it notifies a thread that already sleeps.

use crate::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct Park {
    gate: Mutex<()>,
    bell: Condvar,
}

impl Park {
    pub(crate) fn new() -> Self {
        Self { gate: Mutex::new(()), bell: Condvar::new() }
    }

    /// Sleeps until `attempt`, which announces the waiter and tries the lock, has an answer.
    #[cold]
    pub(crate) fn wait_until<R>(&self, mut attempt: impl FnMut() -> Option<R>) -> R {
        let mut gate = self.gate.lock();
        loop {
            if let Some(done) = attempt() {
                return done;
            }
            gate = self.bell.wait_owned(gate);
        }
    }

    /// Wakes all, after `clear` has taken the announcement back. Those that lose announce themselves again.
    #[cold]
    pub(crate) fn wake(&self, clear: impl FnOnce()) {
        let _gate = self.gate.lock();
        clear();
        self.bell.notify_all();
    }
}
