//! The scenarios, a file an area.

mod buffers;
mod devices;
mod foreign;
mod graphs;
mod host;
mod launches;
mod modules;
mod operations;
mod pools;
mod virtual_memory;

use super::{Outcome, Rig, Scenario, Stop};
use simtile_core::{Context, Error, Function};
use std::sync::Arc;

macro_rules! scenarios {
    ($($devices:literal $($path:ident)::+;)*) => {
        /// All of them.
        pub(super) const ALL: &[Scenario] =
            &[$(Scenario { name: concat!($(stringify!($path), " ",)+), devices: $devices, run: $($path)::+ }),*];
    };
}

scenarios! {
    1 buffers::copies;
    1 buffers::views;
    1 buffers::casts;
    1 buffers::threads;
    1 buffers::reclaimed;
    1 launches::many_buffers;
    1 launches::policies;
    1 launches::events;
    1 host::pinned;
    1 host::managed;
    1 host::large_transfers;
    1 pools::own_pools;
    1 pools::out_of_memory;
    1 virtual_memory::growable;
    1 virtual_memory::mapped;
    1 foreign::owners;
    1 foreign::exports;
    1 foreign::dlpack_tensors;
    1 modules::loading;
    1 modules::variables;
    1 graphs::captures;
    1 graphs::core_captures;
    1 graphs::updates;
    1 graphs::bodies;
    1 graphs::elsewhere;
    1 operations::synchronous;
    1 operations::awaited;
    1 operations::given_up;
    1 operations::loaded;
    2 devices::copies;
    2 devices::peers;
    2 devices::exported;
    2 virtual_memory::teams;
}

/// Right, or not: then what is wrong.
fn expect<T: PartialEq + std::fmt::Debug + ?Sized>(what: &str, found: &T, right: &T) -> Outcome {
    if found == right {
        Ok(())
    } else {
        Err(Stop::Wrong(format!("{what} is {found:?}, should be {right:?}")))
    }
}

/// All values are the same, and right.
fn all(what: &str, found: &[u32], len: usize, right: u32) -> Outcome {
    expect(&format!("length of {what}"), &found.len(), &len)?;
    match found.iter().position(|&value| value != right) {
        None => Ok(()),
        Some(at) => Err(Stop::Wrong(format!("{what}: element {at} is {}, should be {right}", found[at]))),
    }
}

fn kernel(context: &Arc<Context>, name: &str) -> Result<Function, Error> {
    let image = crate::kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
    Ok(context.load_module(image)?.load_function(name)?)
}
