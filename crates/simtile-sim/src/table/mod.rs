//! The entries of the driver API, one module a family.
//!
//! Each family defines its entries with `entries!`, which also makes a `fill` that puts them into a table.
//! What no family defines answers `CUDA_ERROR_NOT_SUPPORTED`.

use core::ffi::{c_char, c_int, c_uint, c_void};
use simtile_driver::sys::*;
use simtile_driver::{DriverKind, Entry, State, Table};

mod capture;
mod context;
mod copy;
mod device;
mod event;
mod function;
mod graph;
mod graph_exec;
mod graph_nodes;
mod green;
mod init;
mod ipc;
mod launch;
mod library;
mod linker;
mod memory;
mod memset;
mod module;
mod multicast;
mod pinned;
mod pointer;
mod pool;
mod stream;
mod user_object;
mod vmm;

macro_rules! nothing_built {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        const NOT_SUPPORTED: Table = Table {
            kind: DriverKind::Simulated,
            extras: Some(&crate::extras::EXTRAS),
            $($name: {
                #[allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
                unsafe fn refuse(state: State $(, _: $ty)*) -> CUresult {
                    crate::entry::enter(state, Entry::$name, |_| Err(CUresult::CUDA_ERROR_NOT_SUPPORTED))
                }
                refuse
            },)*
        };
    };
}

simtile_driver::driver_entries!(nothing_built);

/// The table of simulated drivers.
pub(crate) static TABLE: Table = {
    let table = init::fill(NOT_SUPPORTED);
    let table = device::fill(table);
    let table = context::fill(table);
    let table = stream::fill(table);
    let table = event::fill(table);
    let table = capture::fill(table);
    let table = graph::fill(table);
    let table = graph_nodes::fill(table);
    let table = graph_exec::fill(table);
    let table = user_object::fill(table);
    let table = green::fill(table);
    let table = module::fill(table);
    let table = library::fill(table);
    let table = linker::fill(table);
    let table = function::fill(table);
    let table = launch::fill(table);
    // The memory families. Their state and queued work are in `heap.rs`.
    let table = memory::fill(table);
    let table = pool::fill(table);
    let table = pinned::fill(table);
    let table = pointer::fill(table);
    let table = copy::fill(table);
    let table = memset::fill(table);
    let table = multicast::fill(table);
    let table = ipc::fill(table);
    vmm::fill(table)
};
