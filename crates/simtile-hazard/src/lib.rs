//! Access tracking: who touched which bytes on which stream, and what must wait for what.
//!
//! A [`Tracker`] is told the accesses of each submission. It finds the work on other streams that conflicts, has the
//! submitting stream wait for it, leaves *stamps* on the touched byte ranges, and says when memory may be freed. It is pure:
//! it calls no driver (the caller supplies a [`Backend`]), owns no thread and reads no clock.
//!
//! The words: a stream has an *axis*, cut into *epochs*; *sealing* closes an epoch and records an event behind it; a
//! *stamp* is (axis, epoch); a *frontier* says what a stream is ordered after.
//!
//! The protocol, its invariants and their proofs are in this crate's `README.md`. Lock order: guards of regions by id,
//! then one stream, then short locks (range list, records of an axis, event pool). Never two streams, never a guard under
//! a stream.

#![forbid(unsafe_code)]

mod axis;
mod backend;
mod capture;
mod error;
mod event;
mod frontier;
mod host;
mod ids;
mod mode;
mod mutate;
mod permit;
mod plan;
#[doc(hidden)]
pub mod planted;
mod probe;
mod ranges;
mod region;
mod retire;
mod seal;
mod stats;
mod stream;
mod submit;
mod tracker;
mod union;

pub use backend::{Backend, Quarantine};
pub use capture::{Capture, CaptureSet, CapturedAccess};
pub use error::{Busy, Conflict, Party, Step, StreamError, SubmitError};
pub use event::EventRef;
pub use frontier::Frontier;
pub use host::{HostBusy, HostClaim};
pub use ids::{AxisId, Epoch, RegionId, Stamp};
pub use mode::{Mode, Scope};
pub use mutate::SITES;
#[doc(hidden)]
pub use probe::Warm;
pub use region::Region;
pub use retire::Retired;
pub use stats::{Rule, Stats};
pub use stream::{Stream, StreamKind};
pub use submit::{Access, Options, Outside, Policy, Submitted, WaitNote};
pub use tracker::{Config, Settled, SyncMark, Tracker};
pub use union::AccessUnion;
