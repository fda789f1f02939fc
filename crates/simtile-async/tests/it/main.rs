//! The layer of operations, on the simulated driver.

#[path = "../../../simtile-core/tests/common/calls.rs"]
mod calls;
mod common;
mod drops;
mod explored;
mod families;
mod futures;
mod graphs;
mod launches;
mod library;
mod loss;
mod memo;
mod nodes;
mod ops;
mod polls;
mod reports;
mod runtimes;
mod schedules;
mod shared;
mod transfers;
