//! The driver side, supplied by the caller.
//!
//! The tracker decides, a [`Backend`] acts. It is called with guards and one stream lock held, except where a method
//! says otherwise; none may call back into the tracker.

use crate::event::EventRef;
use crate::ids::Stamp;
use core::fmt::Debug;
use smallvec::SmallVec;

/// What the tracker needs done.
pub trait Backend: Send + Sync + Sized + 'static {
    /// A stream of the driver. Owned by the tracker until [`Backend::closed`].
    type Stream: Send + 'static;
    /// An untimed event.
    type Event: Send + Sync + 'static;
    /// Memory (or anything else) that is retired.
    type Memory: Send + 'static;
    /// A driver error.
    type Error: Clone + Debug + Send + Sync + 'static;

    /// Makes an event. Called ahead of need, with nothing held.
    ///
    /// # Errors
    /// The driver's.
    fn create_event(&self) -> Result<Self::Event, Self::Error>;

    /// Whether a borrowed stream is being captured by its owner.
    ///
    /// # Errors
    /// The driver's.
    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool, Self::Error>;

    /// Records `event` behind all that `stream` holds now.
    ///
    /// # Errors
    /// The driver's. Whether the event was recorded is then unknown.
    fn record(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Makes `stream` wait for `event`.
    ///
    /// # Errors
    /// The driver's. Whether the wait was queued is then unknown.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Whether the last record of `event` has fired. Never waits.
    ///
    /// # Errors
    /// The driver's: the event's stream is lost.
    fn query(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Waits on the host until at least one of `events` has fired. Called with nothing held.
    ///
    /// # Errors
    /// The driver's.
    fn wait_any(&self, events: &[EventRef<Self>]) -> Result<(), Self::Error>;

    /// Frees `memory` in `stream`'s order.
    ///
    /// # Errors
    /// The memory, if it was not freed; it then goes to the reclaimer.
    fn free(&self, stream: &Self::Stream, memory: Self::Memory) -> Result<(), Self::Memory>;

    /// Takes `memory` for the reclaimer, to be freed when all `stamps` have completed. Called with nothing of the tracker
    /// held; must not wait.
    fn reclaim(&self, memory: Self::Memory, stamps: SmallVec<[Stamp; 4]>);

    /// Takes `memory` that must never be freed, because its last use cannot be known to end. Called with nothing held.
    fn quarantine(&self, memory: Self::Memory, why: Quarantine);

    /// Gives a closed stream back. Its last event has been recorded; destroying it with work pending is fine.
    fn closed(&self, stream: Self::Stream);
}

/// Why memory is kept for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quarantine {
    /// A stream that touched it failed.
    FailedAxis,
    /// A guard on the host was forgotten.
    HostClaim,
    /// It was exported and not returned, or returned by nobody knows which stream.
    Foreign,
}
