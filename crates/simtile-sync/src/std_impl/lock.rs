//! Mutex, read-write lock and condition variable.
//!
//! Inside a simulation only one participant runs at a time, so a lock is only ever found taken when its
//! holder gave up its turn with the lock held. The waiter then lets others run until somebody has done
//! something, and tries again.

use super::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use crate::hook::{self, Hook};
use core::time::Duration;

/// Tries a lock until it is there, letting others run meanwhile. `None` if the simulation has ended: then the
/// lock is an ordinary one.
#[cold]
fn in_turn<G>(hook: &Hook, attempt: impl Fn() -> Option<G>) -> Option<G> {
    let mut first = true;
    loop {
        if let Some(guard) = attempt() {
            return Some(guard);
        }
        if !(hook.participates)() {
            return None;
        }
        (hook.contended)(first);
        first = false;
    }
}

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
    /// Locks, waiting for the holder.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(feature = "count-locks")]
        crate::count::lock();
        match hook::current() {
            None => self.0.lock(),
            Some(hook) => self.lock_in_turn(hook),
        }
    }

    #[cold]
    fn lock_in_turn(&self, hook: &Hook) -> MutexGuard<'_, T> {
        (hook.switch_point)("lock");
        in_turn(hook, || self.0.try_lock()).unwrap_or_else(|| self.0.lock())
    }

    /// Locks if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(feature = "count-locks")]
        crate::count::lock();
        self.0.try_lock()
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// A lock for process-wide state that is held for a moment and across no call that could block.
///
/// Simulations share such state, with each other and with threads outside. So it is no point where a simulation
/// switches threads: whether somebody else happens to hold it must not show in a trace.
#[derive(Debug, Default)]
pub struct Global<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Global<T> {
    /// A new, unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }
}

impl<T: ?Sized> Global<T> {
    /// Locks, waiting for the holder.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(feature = "count-locks")]
        crate::count::lock();
        self.0.lock()
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
    /// Locks for reading.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        #[cfg(feature = "count-locks")]
        crate::count::lock();
        let guard = hook::current().and_then(|hook| in_turn(hook, || self.0.try_read()));
        guard.unwrap_or_else(|| self.0.read())
    }

    /// Locks for writing.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        #[cfg(feature = "count-locks")]
        crate::count::lock();
        let guard = hook::current().and_then(|hook| in_turn(hook, || self.0.try_write()));
        guard.unwrap_or_else(|| self.0.write())
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
        match hook::current() {
            None => self.0.wait(guard),
            Some(hook) => {
                self.block(hook, guard, None);
            }
        }
    }

    /// As [`Condvar::wait`], with the guard passed through (the form that every implementation has).
    pub fn wait_owned<'a, T: ?Sized>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait(&mut guard);
        guard
    }

    /// As [`Condvar::wait`], for at most `timeout`. Returns whether it timed out.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        match hook::current() {
            None => self.0.wait_for(guard, timeout).timed_out(),
            Some(hook) => !self.block(hook, guard, Some(timeout)),
        }
    }

    /// Blocks in a simulation. Returns whether it was woken.
    #[cold]
    fn block<T: ?Sized>(&self, hook: &Hook, guard: &mut MutexGuard<'_, T>, limit: Option<Duration>) -> bool {
        let mutex = MutexGuard::mutex(guard);
        // Nobody else runs between the unlock and the block, so no notification is lost.
        MutexGuard::unlocked(guard, || {
            let woken = (hook.block)(self.key(), limit);
            // Whoever woke us may have given up its turn with the lock held: taking it for real would stop everybody.
            let free = || (!mutex.is_locked()).then_some(());
            let _ = in_turn(hook, free);
            woken
        })
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
