//! A lock that is shared within a group and exclusive between groups.
//!
//! A read-write lock has one shared group. Work that commutes (readers with readers, accumulations of one class with
//! each other) may hold this lock together, but readers and accumulations may not: they are different groups.
//! The group [`EXCLUSIVE`] is shared with nobody.
//!
//! The lock word: group (32 bits), WAITERS, number of holders (16 bits). Taking and giving back cost one atomic
//! read-modify-write each. A newcomer does not join a group while somebody waits, so a stream of readers cannot
//! starve a writer.

use crate::SPINS;
use crate::atomic::{AtomicU64, Ordering};
use crate::park::Park;
use crate::probe::Probe;
use core::fmt;
use core::ops::Deref;

/// The group that holds the lock alone.
pub const EXCLUSIVE: u32 = u32::MAX;

const HOLDERS: u64 = 0xffff;
const WAITERS: u64 = 1 << 31;
const GROUP_SHIFT: u32 = 32;

/// See the module.
pub struct GroupLock<T> {
    word: AtomicU64,
    park: Park,
    value: Probe<T>,
}

// SAFETY: the lock hands out `&T` to several threads at once and `&mut T` to one; both are covered by the bounds.
unsafe impl<T: Send + Sync> Sync for GroupLock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for GroupLock<T> {}

impl<T> GroupLock<T> {
    /// A new lock that nobody holds.
    pub fn new(value: T) -> Self {
        Self { word: AtomicU64::new(0), park: Park::new(), value: Probe::new(value) }
    }

    /// One try. `waiting` is true for a thread that has announced itself.
    #[inline]
    fn enter(&self, group: u32, waiting: bool) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let holders = word & HOLDERS;
            let joins = holders == 0
                || (group != EXCLUSIVE
                    && (word >> GROUP_SHIFT) as u32 == group
                    && holders < HOLDERS
                    && (waiting || word & WAITERS == 0));
            if !joins {
                return false;
            }
            let next = (u64::from(group) << GROUP_SHIFT) | (word & WAITERS) | (holders + 1);
            match self.word.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    fn guard(&self, group: u32) -> GroupGuard<'_, T> {
        #[cfg(all(feature = "count-locks", not(any(loom, shuttle))))]
        crate::count::lock();
        let exclusive = group == EXCLUSIVE;
        if exclusive {
            self.value.touch_exclusive();
        } else {
            self.value.touch_shared();
        }
        GroupGuard { lock: self, exclusive }
    }

    /// Takes the lock for `group`, waiting for other groups to leave. A thread must not take one lock twice.
    #[inline]
    pub fn lock(&self, group: u32) -> GroupGuard<'_, T> {
        if !self.enter(group, false) {
            self.lock_slow(group);
        }
        self.guard(group)
    }

    #[cold]
    fn lock_slow(&self, group: u32) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.enter(group, false) {
                return;
            }
        }
        self.park.wait_until(|| {
            self.word.fetch_or(WAITERS, Ordering::Relaxed);
            self.enter(group, true).then_some(())
        });
    }

    /// Takes the lock for `group` if that needs no waiting.
    #[inline]
    pub fn try_lock(&self, group: u32) -> Option<GroupGuard<'_, T>> {
        self.enter(group, false).then(|| self.guard(group))
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> fmt::Debug for GroupLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupLock").finish_non_exhaustive()
    }
}

/// The lock, held. Dropping it gives it back.
#[must_use]
pub struct GroupGuard<'a, T> {
    lock: &'a GroupLock<T>,
    exclusive: bool,
}

impl<T> GroupGuard<'_, T> {
    /// The value, if the guard is exclusive.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: an exclusive guard is the only one, and `&mut self` borrows it exclusively.
        self.exclusive.then(|| unsafe { &mut *self.lock.value.get() })
    }

    /// Whether nobody else holds the lock.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

impl<T> Deref for GroupGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `&mut T` exists only through an exclusive guard that is borrowed exclusively meanwhile.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for GroupGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.exclusive {
            self.lock.value.touch_exclusive();
        } else {
            self.lock.value.touch_shared();
        }
        let before = self.lock.word.fetch_sub(1, Ordering::Release);
        if before & HOLDERS == 1 && before & WAITERS != 0 {
            self.lock.park.wake(|| {
                self.lock.word.fetch_and(!WAITERS, Ordering::Relaxed);
            });
        }
    }
}

impl<T> fmt::Debug for GroupGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupGuard").field("exclusive", &self.exclusive).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn groups_share_and_exclude() {
        let lock = GroupLock::new(5);
        let a = lock.lock(1);
        let b = lock.try_lock(1).expect("same group");
        assert!(lock.try_lock(2).is_none());
        assert!(lock.try_lock(EXCLUSIVE).is_none());
        assert_eq!((*a, *b), (5, 5));
        drop((a, b));
        let mut x = lock.try_lock(EXCLUSIVE).expect("free");
        *x.get_mut().expect("exclusive") = 6;
        assert!(lock.try_lock(EXCLUSIVE).is_none());
        drop(x);
        let mut shared = lock.lock(2);
        assert!(shared.get_mut().is_none());
        assert_eq!(*shared, 6);
    }

    #[test]
    fn nothing_is_lost_under_contention() {
        let lock = Arc::new(GroupLock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for n in 0..2_000u32 {
                        if (n + i) % 3 == 0 {
                            let mut guard = lock.lock(EXCLUSIVE);
                            *guard.get_mut().expect("exclusive") += 1;
                        } else {
                            let guard = lock.lock(1 + n % 2);
                            assert!(*guard <= 8_000);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let total: u64 = (0..4u32).map(|i| (0..2_000u32).filter(|n| (n + i) % 3 == 0).count() as u64).sum();
        assert_eq!(*lock.lock(1), total);
    }
}
