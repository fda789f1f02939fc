//! The implementation for models: loom's types with this crate's signatures.
//!
//! Only what the modelled crates (`simtile-hazard`, the reactor's hand-off) use is here.

pub use loom::sync::{Arc, MutexGuard};

/// Atomic types.
pub mod atomic {
    pub use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A new, unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks, waiting for the holder.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Locks if nobody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
