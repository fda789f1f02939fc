//! What can go wrong, with the names of who was involved.

use crate::backend::Backend;
use crate::event::EventRef;
use crate::ids::{AxisId, RegionId, Stamp};
use crate::mode::Mode;
use core::fmt;
use smallvec::SmallVec;

/// A stream could not be tracked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StreamError {
    /// 65 536 axes are alive.
    TooManyAxes,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("65536 streams are alive or still have work; the limit is 65536")
    }
}

impl std::error::Error for StreamError {}

/// The other side of a conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// Work on another stream, up to this stamp.
    Stream(Stamp),
    /// A guard on the host.
    Host,
    /// Foreign code that the region was exported to.
    Foreign,
}

/// Two touches of the same bytes without an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The allocation.
    pub region: RegionId,
    /// The stream that wanted to touch it; `None` for the host.
    pub stream: Option<AxisId>,
    /// How it wanted to.
    pub mode: Mode,
    /// Who touches it already.
    pub with: Party,
    /// How.
    pub their_mode: Mode,
}

impl Conflict {
    /// Whether a guard on the host is in the way.
    pub fn host(&self) -> bool {
        self.with == Party::Host
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}: {:?} by ", self.region.get(), self.mode)?;
        match self.stream {
            Some(axis) => write!(f, "{axis:?}")?,
            None => f.write_str("the host")?,
        }
        write!(f, " conflicts with {:?} by ", self.their_mode)?;
        match self.with {
            Party::Stream(stamp) => write!(f, "{:?}, epoch {}", stamp.axis, stamp.epoch),
            Party::Host => f.write_str("a guard on the host"),
            Party::Foreign => f.write_str("foreign code it was exported to"),
        }
    }
}

impl std::error::Error for Conflict {}

/// The driver call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Asking whether a borrowed stream is capturing.
    IsCapturing,
    /// Recording an event.
    Record,
    /// Queueing a wait.
    Wait,
    /// The work itself. It stays stamped: whether it was queued is unknown.
    Enqueue,
    /// Waiting on the host for a permit or for conflicting work.
    HostWait,
}

/// What stands in the way of a submission that must not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Another thread submits to a region of this submission.
    Region,
    /// Another thread holds a stream that this submission uses or follows.
    Stream,
}

/// A submission did not happen, or (for [`Step::Enqueue`] alone) is not known to have happened.
#[non_exhaustive]
pub enum SubmitError<B: Backend> {
    /// An access reaches beyond its region.
    OutOfRange {
        /// The region.
        region: RegionId,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// The region's length.
        len: u64,
    },
    /// Two accesses of the submission touch the same bytes, and not both only read (or accumulate alike).
    Aliased {
        /// The region.
        region: RegionId,
        /// The bytes in both.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// See [`Conflict`].
    Conflict(Conflict),
    /// The work would follow (or join) an axis whose completion cannot be known.
    Failed {
        /// The axis.
        axis: AxisId,
    },
    /// The stream takes work only through its capture.
    Capturing,
    /// The owner of a borrowed stream is capturing it.
    BorrowedCapturing,
    /// The stream is closed.
    Closed,
    /// A per-thread stream was used by another thread.
    WrongThread,
    /// So many streams sit in a wait-value already.
    WaitValues {
        /// The limit.
        limit: usize,
    },
    /// No permit. Only from submissions that must not wait; one of these events gives permits back.
    Full {
        /// The oldest events in flight.
        events: SmallVec<[EventRef<B>; 4]>,
    },
    /// Somebody is in the way for a moment. Only from submissions that must not wait.
    Busy(Busy),
    /// A driver call failed.
    Driver {
        /// Which one.
        step: Step,
        /// Its error.
        error: B::Error,
    },
}

impl<B: Backend> fmt::Display for SubmitError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { region, start, end, len } => {
                write!(f, "access to bytes {start}..{end} of region {} with {len} bytes", region.get())
            }
            Self::Aliased { region, start, end } => {
                write!(f, "one submission touches bytes {start}..{end} of region {} twice", region.get())
            }
            Self::Conflict(conflict) => conflict.fmt(f),
            Self::Failed { axis } => write!(f, "{axis:?} has failed; its work cannot be followed"),
            Self::Capturing => f.write_str("the stream is being captured"),
            Self::BorrowedCapturing => f.write_str("the owner of the borrowed stream is capturing it"),
            Self::Closed => f.write_str("the stream is closed"),
            Self::WrongThread => f.write_str("a per-thread stream was used by another thread"),
            Self::WaitValues { limit } => {
                write!(f, "{limit} streams wait for a value already; the limit is {limit}")
            }
            Self::Full { .. } => f.write_str("as much work is in flight as may be"),
            Self::Busy(busy) => write!(f, "another thread holds a {busy:?}"),
            Self::Driver { step, error } => write!(f, "{step:?} failed: {error:?}"),
        }
    }
}

impl<B: Backend> std::error::Error for SubmitError<B> {}

impl<B: Backend> fmt::Debug for SubmitError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubmitError({self})")
    }
}
