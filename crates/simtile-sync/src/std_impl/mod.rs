//! The ordinary implementation: `parking_lot`, `std`, and the hook at blocking points.

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::Arc;

mod lock;
pub mod thread;
pub mod time;

pub use lock::{Condvar, Mutex, RwLock};

/// Atomic types.
pub mod atomic {
    pub use core::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}
