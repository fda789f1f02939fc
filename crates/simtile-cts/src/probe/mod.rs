//! Measurements of a driver: printed, not judged.
//!
//! What CUDA's manual leaves open is asked here and read on a real driver. What was read is committed, and tests
//! hold every driver to it.

pub mod capture_matrix;
mod capture_rows;
pub mod graphs;
pub mod green;

use crate::frame::{Check, Cx};

/// Where a probe puts its lines, as they come.
pub type Sink<'a> = &'a mut dyn FnMut(String);

/// A probe.
pub type Probe = fn(&Cx, Sink<'_>) -> Check;

/// The probes by name.
pub fn probes() -> impl Iterator<Item = (&'static str, Probe)> {
    let first: [(&str, Probe); 2] =
        [("capture_matrix", capture_matrix::lines), ("green_contexts", green::lines)];
    first.into_iter().chain(graphs::PARTS.iter().copied())
}
