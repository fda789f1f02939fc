//! The frame: what a test is, how it runs, what is reported.

mod capture;
pub mod child;
mod context;
pub mod coverage;
pub mod expected;
pub(crate) mod outcome;
pub(crate) mod registry;
pub mod report;
pub mod run;
pub mod selftest;
mod target;
pub mod threads;

pub use capture::printed;
pub use context::{Cx, Random};
pub use outcome::{Check, Outcome, Stop, has_code, returned, same, succeeded};
pub use registry::{Layer, Need, PROMISES, Test};
pub use target::{Mask, Seeds, Target};
