//! The checker: what work touched, and whether the order of the program allowed it.
//!
//! The unit of order is a *submission* (a kernel launch, a copy, a host access), because that is what
//! streams and events order. While a submission runs it notes the bytes it touches in an [`AccessLog`]; when it
//! ends, the log is compared with what it declared and with earlier accesses that it is not ordered after.

mod bitmap;
mod clock;
mod declared;
mod log;
mod race;
mod sites;
mod sparse;

pub use bitmap::Bitmap;
pub use clock::{Axis, Epoch, VectorClock};
pub use declared::{Declared, Undeclared, misused, undeclared};
pub use log::{AccessLog, Touch, TouchMap};
pub use race::{Locate, Race, RaceChecker, Who};
