//! The layer of operations, on the simulated driver.

mod common;
mod drops;
mod futures;
mod graphs;
mod launches;
mod ops;
mod polls;
mod runtimes;
mod shared;
mod transfers;
