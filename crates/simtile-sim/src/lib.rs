//! A simulated CUDA driver.
//!
//! Any number of independent simulated drivers run in one process, each a `simtile_driver::Driver` value
//! that host code cannot tell from libcuda.
//!
//! * [`memory`]: address space, allocations, bounds, lifetime and initialisation;
//! * [`exec`]: the seam between the driver and the kernel interpreters;
//! * `ptx`, `tile`: the interpreters.

pub mod check;
pub mod exec;
pub mod explore;
pub mod graph;
pub mod memory;
