//! Captures and graphs.
//!
//! A [`Capture`] turns submissions into nodes: nothing runs, and what the nodes access is collected. A [`CapturedGraph`] owns all that
//! its nodes reach. A [`GraphExec`] is launched like any other work ([`SubmitBuilder::graph`](crate::SubmitBuilder::graph)): each replay
//! is one submission with all captured accesses, and a write of the executable itself, so two replays of one executable are ordered.
//!
//! # Why this is right
//! * *Captured work waits for nothing outside.* Beginning a capture seals the stream, and from then on only the capture's handle gives it
//!   work (the tracker refuses the rest with `Capturing`). Order inside comes from a tracker world of the capture's own. What the nodes
//!   conflict with outside is found anew by each replay, from the set of their accesses.
//! * *Nothing that a node reaches goes.* Every touched allocation, every function and every value that was handed over is kept by the
//!   graph, and by every executable made from it. They are handles like others: an allocation in a graph is not unique. When they go,
//!   the last replay's stamps are on the allocations, and functions wait for all work of the context.
//! * *Every exit ends the capture.* [`Capture::finish`] and dropping it (an error, a panic) both end it, give the streams back and
//!   destroy what there is. The mode is relaxed: other threads' work and our own queries never disturb it.
//! * *An update is whole or nothing.* It needs `&mut`, so nobody launches meanwhile. Launches before it keep the old values (the driver
//!   copies them). If the driver refuses, a fresh executable takes the place of one that may be half changed.

mod capture;
mod exec;

pub use capture::Capture;
pub(crate) use capture::Kept;
pub use exec::{CapturedGraph, GraphExec};
