//! Explore mode: one seed decides who runs when.
//!
//! A [`Schedule`] owns the turns and the time of a set of *participants*: the thread that called
//! [`explore`] and every thread that a participant starts through `simtile_sync` (the simulated device's
//! workers are such threads). Exactly one participant runs at a time. At every switch point, blocking operation and
//! thread end the schedule decides who goes on, by a seeded random generator and a [`Strategy`]. Nothing
//! else has a say: not the operating system, not the number of cores, not the clock. So the same seed gives the
//! same [`Trace`], byte for byte.
//!
//! # Why no wake-up is lost
//!
//! A participant changes its state only while it has the turn, and the state is changed under the schedule's lock.
//! A thread that blocks gave up its lock before, but nobody ran in between, so whoever makes its condition true
//! wakes it later.
//!
//! # Deadlock
//!
//! If nobody can run and nobody waits for a time, the schedule notes a deadlock with the state of every
//! participant, and dissolves: everybody goes on with real locks and real time, and the first
//! participant's blocking call panics, which a driver entry turns into an error. A test fails then, with the seed.

mod random;
mod schedule;
mod strategy;
mod trace;

pub use random::Random;
pub(crate) use schedule::WORKER_NAME;
pub use schedule::{Outcome, Schedule, current, explore, note};
pub use strategy::Strategy;
pub use trace::Trace;
