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
//! participant, and turns end: whatever a host thread waits for then, or waits for already, it leaves by a panic, which
//! a driver entry turns into an error and a report. Device workers go on without turns. So the program ends, and the test
//! fails with the seed.
//!
//! Three things look like waiting and are not seen by turns alone. A lock that a participant finds taken: it tries again
//! only after somebody has done something, and if nobody can, the lock is held outside or in a circle; that
//! is a deadlock after a few seconds. A participant that blocks in something of std keeps its turn: `watch` sees it from
//! outside and ends the exploration as "blocked outside the exploration". A device that looks at a value in memory
//! again and again: a deadlock once nothing else has happened for long enough.
//!
//! # The end
//!
//! When the program returns, the trace ends. The others go on in turns until each has ended or waits for ever. Then
//! the exploration is over: an idle worker, say, is an ordinary thread from there on, and nothing of it runs in a later one.

mod choices;
mod random;
mod schedule;
mod shrink;
mod strategy;
mod trace;
mod watch;

pub(crate) use choices::Choices;
pub use choices::{BadRecording, Recording};
pub use random::Random;
pub use schedule::{Outcome, Schedule, current, explore, note, replay};
pub(crate) use schedule::{WORKER_NAME, busy, catching, stuck};
pub use shrink::shrink;
pub use strategy::Strategy;
pub use trace::Trace;
