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
//! * *A kernel that is given other arguments* ([`GraphExec::set_kernel`]) has its accesses written down apart from the others': the new ones take
//!   their place when the driver has updated its node, with the handles of both until then. The graph itself is changed as well, so that a new
//!   executable can be made of it if need be.
//! * *An update is whole or nothing.* It needs `&mut`, so nobody launches meanwhile. Launches before it keep the old values (the driver
//!   copies them). If the driver refuses, a fresh executable takes the place of one that may be half changed.

mod capture;
mod condition;
mod exec;
mod script;

pub(crate) use capture::Kept;
pub use capture::{Capture, KernelNode};
pub(crate) use condition::Place;
pub use condition::{Condition, Conditional, ConditionalNode};
pub use exec::{CapturedGraph, GraphExec};
pub(crate) use script::{Kernel, Plain};
pub use script::{KernelPiece, Script, ScriptStats};

use simtile_sync::atomic::{AtomicU64, Ordering};

/// A number that no other capture, and no other pass of a script, has.
fn next_world() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
