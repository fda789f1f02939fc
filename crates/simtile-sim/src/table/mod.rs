//! The entries of the driver API, one module a family.
//!
//! Each family defines its entries with `entries!`, which also makes a `fill` that puts them into a table.
//! What no family defines answers as missing.

use simtile_driver::{DriverKind, Table};

mod context;
mod copy;
mod device;
mod event;
mod function;
mod init;
mod launch;
mod library;
mod memory;
mod module;
mod pinned;
mod pool;
mod stream;
mod vmm;

/// The table of simulated drivers.
pub(crate) static TABLE: Table = {
    let table = Table { kind: DriverKind::Simulated, ..Table::MISSING };
    let table = init::fill(table);
    let table = device::fill(table);
    let table = context::fill(table);
    let table = stream::fill(table);
    let table = event::fill(table);
    let table = module::fill(table);
    let table = library::fill(table);
    let table = function::fill(table);
    let table = launch::fill(table);
    // The memory families. Their state and queued work are in `heap.rs`.
    let table = memory::fill(table);
    let table = pool::fill(table);
    let table = pinned::fill(table);
    let table = copy::fill(table);
    vmm::fill(table)
};
