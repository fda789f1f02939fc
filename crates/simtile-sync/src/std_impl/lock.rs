//! Mutex, read-write lock and condition variable.

use super::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use crate::hook;
use core::time::Duration;

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// A new, unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// What a blocked thread waits for, in terms of the hook.
    fn key(&self) -> usize {
        core::ptr::from_ref(self).cast::<()>().addr()
    }

    /// Locks, waiting for the holder.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match hook::installed() {
            None => self.0.lock(),
            Some(hook) => self.lock_hooked(hook),
        }
    }

    #[cold]
    fn lock_hooked(&self, hook: &hook::Hook) -> MutexGuard<'_, T> {
        (hook.switch_point)("lock");
        loop {
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            // The holder takes part in the same simulation and is switched out. Its unlock does not
            // wake by key (guards are parking_lot's), so yield until it has run.
            if (hook.block)(self.key(), Some(Duration::ZERO)).is_none() {
                return self.0.lock();
            }
        }
    }

    /// Locks if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// A read-write lock without poisoning.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// A new, unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    fn key(&self) -> usize {
        core::ptr::from_ref(self).cast::<()>().addr()
    }

    /// Locks for reading.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let Some(hook) = hook::installed() else { return self.0.read() };
        loop {
            if let Some(guard) = self.0.try_read() {
                return guard;
            }
            if (hook.block)(self.key(), Some(Duration::ZERO)).is_none() {
                return self.0.read();
            }
        }
    }

    /// Locks for writing.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let Some(hook) = hook::installed() else { return self.0.write() };
        loop {
            if let Some(guard) = self.0.try_write() {
                return guard;
            }
            if (hook.block)(self.key(), Some(Duration::ZERO)).is_none() {
                return self.0.write();
            }
        }
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A new condition variable.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    fn key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Gives the lock up, waits for a notification and takes the lock again. May wake spuriously.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        match hook::installed() {
            None => self.0.wait(guard),
            Some(hook) => {
                let key = self.key();
                let waited = MutexGuard::unlocked(guard, || (hook.block)(key, None));
                if waited.is_none() {
                    // Not part of a simulation. A notification between the unlock above and this wait
                    // could be lost; a bounded wait turns that into a spurious wake-up.
                    self.0.wait_for(guard, Duration::from_millis(1));
                }
            }
        }
    }

    /// As [`Condvar::wait`], for at most `timeout`. Returns whether it timed out.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        match hook::installed() {
            None => self.0.wait_for(guard, timeout).timed_out(),
            Some(hook) => {
                let key = self.key();
                match MutexGuard::unlocked(guard, || (hook.block)(key, Some(timeout))) {
                    Some(woken) => !woken,
                    None => self.0.wait_for(guard, timeout).timed_out(),
                }
            }
        }
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        if let Some(hook) = hook::installed() {
            (hook.wake)(self.key(), 1);
        }
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        if let Some(hook) = hook::installed() {
            (hook.wake)(self.key(), usize::MAX);
        }
        self.0.notify_all();
    }
}
