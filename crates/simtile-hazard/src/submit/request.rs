//! What a submission asks for, and what it brings.

use crate::backend::Backend;
use crate::event::EventRef;
use crate::ids::{RegionId, Stamp};
use crate::mode::Mode;
use crate::region::Region;

/// One touch of a submission.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The region.
    pub region: &'a Region,
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// How.
    pub mode: Mode,
}

impl<'a> Access<'a> {
    /// A touch of `start..end`.
    pub fn new(region: &'a Region, start: u64, end: u64, mode: Mode) -> Self {
        Self { region, start, end, mode }
    }

    /// A touch of the whole region.
    pub fn whole(region: &'a Region, mode: Mode) -> Self {
        Self { region, start: 0, end: region.len(), mode }
    }
}

/// What to do about conflicting work on other streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Follow it.
    #[default]
    Order,
    /// Refuse. The stream seals after each submission, so that a conflict means the work itself.
    Reject,
    /// Follow it; the caller logs [`Submitted::waits`].
    OrderAndReport,
    /// Ignore it. Stamps are left all the same, so lifetimes stay right. The caller vouches for the order.
    Unchecked,
}

/// Whether the work may wait for something outside the streams. Of several pieces that are queued as one, the greatest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Outside {
    /// It runs to its end alone.
    #[default]
    Never,
    /// A host function, a collective, a kernel that spins on a flag.
    Waits,
    /// A wait-value of the driver: eight of them stop every stream.
    WaitValue,
}

/// How to submit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What to do about conflicts.
    pub policy: Policy,
    /// Somebody waits for this submission: record an event right behind it.
    pub seal: bool,
    /// Whether the work waits for the outside.
    pub outside: Outside,
    /// The calling thread's token, for per-thread streams.
    pub thread: u64,
}

/// A wait that was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitNote {
    /// The work that is followed.
    pub after: Stamp,
    /// The region that asks for it.
    pub region: RegionId,
    /// How this submission touches it.
    pub mode: Mode,
    /// How the other one did.
    pub their_mode: Mode,
    /// Not a conflict: the stamp stands for the oldest of too many readers.
    pub reader_limit: bool,
}

/// A submission that happened.
pub struct Submitted<B: Backend, R> {
    /// What the enqueue returned.
    pub value: R,
    /// When it is done.
    pub stamp: Stamp,
    /// The event right behind it, if one was recorded.
    pub event: Option<EventRef<B>>,
    /// The waits that were inserted. (A list that is thin while it is empty: this is moved through every layer.)
    pub waits: Vec<WaitNote>,
}

impl<B: Backend, R: core::fmt::Debug> core::fmt::Debug for Submitted<B, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Submitted")
            .field("value", &self.value)
            .field("stamp", &self.stamp)
            .field("event", &self.event)
            .field("waits", &self.waits)
            .finish()
    }
}
