//! Locks, atomics, threads and time behind one module that can be replaced.
//!
//! Everything in simtile that synchronises goes through this crate, so that one program can run on
//!
//! * **std**: `parking_lot` locks (no poisoning: a panicking user closure must not take the runtime with
//!   it), `std` atomics and threads, the system's monotonic clock;
//! * **loom** (`--cfg loom`): every interleaving of a small model is tried;
//! * **shuttle** (`--cfg shuttle`): random interleavings of a large model;
//! * **explore**: the simulator installs a [`hook`] and becomes the scheduler of host threads and the
//!   owner of time. With no hook installed the cost is one relaxed load at blocking operations.
//!
//! The API is the one of `parking_lot` where the three differ: `lock()` returns a guard, no `Result`.

//!
//! Two locks of our own stand beside the usual ones: [`GroupLock`] (shared within a group, exclusive between
//! groups) and [`RequestLock`] (a mutex on which others can leave a request in the lock word itself).

#[cfg(not(any(loom, shuttle)))]
mod std_impl;
#[cfg(not(any(loom, shuttle)))]
pub use std_impl::*;

#[cfg(loom)]
mod loom_impl;
#[cfg(loom)]
pub use loom_impl::*;

#[cfg(all(shuttle, not(loom)))]
mod shuttle_impl;
#[cfg(all(shuttle, not(loom)))]
pub use shuttle_impl::*;

#[cfg(all(feature = "count-locks", not(any(loom, shuttle))))]
pub mod count;
mod group_lock;
pub mod hook;
mod park;
mod probe;
mod request_lock;
mod ticket;

pub use group_lock::{EXCLUSIVE, GroupGuard, GroupLock};
pub use request_lock::{RequestGuard, RequestLock};
pub use ticket::Ticket;
