//! A simulated CUDA driver.
//!
//! Any number of independent simulated drivers run in one process, each a `simtile_driver::Driver` value
//! that host code cannot tell from libcuda. Start at [`Simulator`].
//!
//! * [`Simulator`], [`SimConfig`]: the control handle and its settings;
//! * [`null`](fn@null): a driver that does nothing, for measuring a runtime's own cost;
//! * [`memory`]: address space, allocations, bounds, lifetime and initialisation;
//! * [`exec`]: the seam between the driver and the kernel interpreters;
//! * `entry`, `table`: the driver's entries, each going through one wrapper;
//! * `engine`: streams, and who runs their work;
//! * `ptx`, `tile`: the interpreters.

// Graphs, green contexts and the checks of host accesses and declarations still grow into what is here.
#![allow(dead_code)]

pub mod check;
pub mod exec;
pub mod explore;
pub mod graph;
pub mod memory;
pub mod ptx;
pub mod tile;

mod config;
mod control;
mod core;
mod engine;
mod entry;
mod extras;
mod handles;
mod heap;
mod holdings;
mod lacks;
mod modules;
mod null;
mod printf;
mod profile;
mod report;
mod simulator;
mod table;
#[cfg(test)]
mod testing;

pub use config::{Checks, ConfigError, Mode, SimConfig};
pub use control::Pause;
pub use holdings::Holdings;
pub use lacks::Lacks;
pub use modules::{StandInCall, StandInError};
pub use null::null;
pub use profile::Profile;
pub use report::{Report, ReportKind};
pub use simulator::{Builder, Gate, Simulator};
pub use tile::{TileCall, TileConstant, TileElement, TileType, TileValue};
