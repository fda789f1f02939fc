//! Measurements of a driver: printed, not judged.
//!
//! What CUDA's manual leaves open is asked here and read on a real driver. What was read is committed, and tests
//! hold every driver to it.

pub mod capture_matrix;
mod capture_rows;

use crate::frame::{Check, Cx};

/// Where a probe puts its lines, as they come.
pub type Sink<'a> = &'a mut dyn FnMut(String);

/// The probes by name.
pub const PROBES: &[(&str, fn(&Cx, Sink<'_>) -> Check)] = &[("capture_matrix", capture_matrix::lines)];
