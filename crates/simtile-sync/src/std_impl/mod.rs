//! The ordinary implementation: `parking_lot`, `std`, and the hook at blocking points.

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::Arc;

mod lock;
pub mod thread;
pub mod time;

pub use lock::{Condvar, Global, Mutex, RwLock};

/// Atomic types.
#[cfg(not(feature = "count"))]
pub mod atomic {
    pub use core::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

#[cfg(feature = "count")]
pub use crate::count::atomic;

/// How often a lock is tried before its waiter parks: about as long as a launch takes.
pub(crate) const SPINS: u32 = 64;
