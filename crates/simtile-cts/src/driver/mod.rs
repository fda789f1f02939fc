//! The driver layer: CUDA's guarantees, stated over the table.
//!
//! Where CUDA's manual allows several codes, or drivers differ, a test names all of them. Where the manual is
//! silent the measured behaviour of a real driver decides (`driver-facts` in the tests' comments).

mod artifacts_simt;
mod artifacts_tile;
mod blocked_launches;
mod blocking;
mod capture;
mod capture_calls;
mod capture_matrix;
mod contexts;
mod copies;
mod default_streams;
mod devices;
mod events;
mod fat_binaries;
mod graph_conditions;
mod graph_edges;
mod graph_memory;
mod graph_nodes;
pub(crate) mod graph_tools;
mod graphs;
mod green_contexts;
mod host_functions;
mod init;
mod ipc;
mod launch_attributes;
mod launch_errors;
mod launches;
mod linker;
mod managed;
mod memory;
mod memory_2d;
mod memory_facts;
mod memory_host;
mod module_functions;
mod modules;
mod multicast;
mod order;
mod peer;
mod pointers;
mod pools;
mod queue;
mod sitting;
mod stalls;
mod streams;
mod values;
mod vmm;

pub(crate) use launch_attributes::largest_cluster;

use crate::frame::Test;

/// Every family.
pub const FAMILIES: &[&[Test]] = &[
    init::TESTS,
    devices::TESTS,
    contexts::TESTS,
    streams::TESTS,
    default_streams::TESTS,
    events::TESTS,
    memory::TESTS,
    memory_2d::TESTS,
    memory_host::TESTS,
    memory_facts::TESTS,
    managed::TESTS,
    pointers::TESTS,
    pools::TESTS,
    vmm::TESTS,
    multicast::TESTS,
    ipc::TESTS,
    peer::TESTS,
    modules::TESTS,
    module_functions::TESTS,
    fat_binaries::TESTS,
    linker::TESTS,
    launches::TESTS,
    launch_attributes::TESTS,
    launch_errors::TESTS,
    green_contexts::TESTS,
    host_functions::TESTS,
    values::TESTS,
    order::TESTS,
    queue::TESTS,
    blocked_launches::TESTS,
    stalls::TESTS,
    sitting::TESTS,
    copies::TESTS,
    capture::TESTS,
    capture_matrix::TESTS,
    capture_calls::TESTS,
    graphs::TESTS,
    graph_edges::TESTS,
    graph_memory::TESTS,
    graph_nodes::TESTS,
    graph_conditions::TESTS,
    artifacts_simt::TESTS,
    artifacts_tile::TESTS,
];
