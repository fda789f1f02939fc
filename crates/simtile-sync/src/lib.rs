//! Locks, atomics, threads and time behind one module that can be replaced.
//!
//! Everything in simtile that synchronises goes through this crate, so that one program can run on
//!
//! * **std**: `parking_lot` locks (no poisoning: a panicking user closure must not take the runtime with
//!   it), `std` atomics and threads, the system's monotonic clock;
//! * **loom** (`--cfg loom`): every interleaving of a small model is tried;
//! * **explore**: the simulator installs a [`hook`] and becomes the scheduler of host threads and the
//!   owner of time. With no hook installed the cost is one relaxed load at blocking operations.
//!
//! The API is the one of `parking_lot` where the three differ: `lock()` returns a guard, no `Result`.

#[cfg(not(loom))]
mod std_impl;
#[cfg(not(loom))]
pub use std_impl::*;

#[cfg(loom)]
mod loom_impl;
#[cfg(loom)]
pub use loom_impl::*;

pub mod hook;
