//! Threads and time of tests.
//!
//! Under exploration a test's own threads are participants, and time is virtual: both come from here, never
//! from `std`. On other drivers they are the system's.

pub use simtile_sync::thread::{Scope, ScopedJoinHandle as Handle, scope, yield_now};
pub use simtile_sync::time::{now, sleep};
