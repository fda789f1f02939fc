//! A mutex on which others can leave a request.
//!
//! A thread that must not wait for the lock puts its request where the holder will find it, sets the REQUEST bit in the lock
//! word, and tries the lock. If the try fails, the holder's unlock comes later in the modification order of that one
//! word, so the unlock sees the bit and its caller looks again. No fence and no second atomic are needed, and a holder
//! that nobody asks anything pays nothing.

use crate::SPINS;
use crate::atomic::{AtomicU32, Ordering};
use crate::park::Park;
use crate::probe::Probe;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

const LOCKED: u32 = 1;
const REQUEST: u32 = 2;
const WAITERS: u32 = 4;

/// See the module.
pub struct RequestLock<T> {
    word: AtomicU32,
    park: Park,
    value: Probe<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for RequestLock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for RequestLock<T> {}

impl<T> RequestLock<T> {
    /// A new lock that nobody holds.
    pub fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), park: Park::new(), value: Probe::new(value) }
    }

    #[inline]
    fn enter(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & LOCKED != 0 {
                return false;
            }
            let next = word | LOCKED;
            match self.word.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    fn guard(&self) -> RequestGuard<'_, T> {
        #[cfg(all(feature = "count-locks", not(any(loom, shuttle))))]
        crate::count::lock();
        self.value.touch_exclusive();
        RequestGuard { lock: self }
    }

    /// Locks, waiting for the holder.
    #[inline]
    pub fn lock(&self) -> RequestGuard<'_, T> {
        if !self.enter() {
            self.lock_slow();
        }
        self.guard()
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.enter() {
                return;
            }
        }
        self.park.wait_until(|| {
            self.word.fetch_or(WAITERS, Ordering::Relaxed);
            self.enter().then_some(())
        });
    }

    /// Locks if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<RequestGuard<'_, T>> {
        self.enter().then(|| self.guard())
    }

    /// Announces a request that the caller has put down already. The caller then tries the lock; if that fails, the holder
    /// sees the request no later than at its unlock.
    pub fn request(&self) {
        self.word.fetch_or(REQUEST, Ordering::AcqRel);
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Unlocks; whether a request was there.
    #[inline]
    fn leave(&self) -> bool {
        self.value.touch_exclusive();
        let before = self.word.fetch_and(!LOCKED, Ordering::AcqRel);
        if before & WAITERS != 0 {
            self.park.wake(|| {
                self.word.fetch_and(!WAITERS, Ordering::Relaxed);
            });
        }
        before & REQUEST != 0
    }
}

impl<T> fmt::Debug for RequestLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLock").finish_non_exhaustive()
    }
}

/// The lock, held. Dropping it unlocks without looking for requests: they stay for the next holder.
#[must_use]
pub struct RequestGuard<'a, T> {
    lock: &'a RequestLock<T>,
}

impl<T> RequestGuard<'_, T> {
    /// Whether a request was announced; takes the announcement back. The caller then serves all that it finds.
    #[inline]
    pub fn take_request(&mut self) -> bool {
        self.lock.word.load(Ordering::Relaxed) & REQUEST != 0
            && self.lock.word.fetch_and(!REQUEST, Ordering::AcqRel) & REQUEST != 0
    }

    /// Unlocks. Whether a request had been announced by then: the caller must try the lock again and serve it, or know
    /// that another holder will.
    #[inline]
    #[must_use]
    pub fn unlock(self) -> bool {
        ManuallyDrop::new(self).lock.leave()
    }
}

impl<T> Deref for RequestGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only way to the value while it exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for RequestGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` borrows the guard exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for RequestGuard<'_, T> {
    fn drop(&mut self) {
        let _announced = self.lock.leave();
    }
}

impl<T> fmt::Debug for RequestGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestGuard").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_seen_at_unlock_and_by_the_next_holder() {
        let lock = RequestLock::new(1);
        let mut guard = lock.lock();
        assert!(!guard.take_request());
        lock.request();
        assert!(lock.try_lock().is_none());
        assert!(guard.take_request());
        assert!(!guard.take_request());
        assert!(!guard.unlock());
        let guard = lock.lock();
        lock.request();
        assert!(guard.unlock());
        let mut guard = lock.try_lock().expect("free");
        assert!(guard.take_request());
    }
}
