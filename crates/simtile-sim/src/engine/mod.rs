//! Streams: queues of work and who runs it.
//!
//! Work enters a stream at its end and starts when it is first, its waits hold, and the policy of the mode
//! says so. Everything is decided under one lock (`Core::state`); kernels, copies and host functions run
//! outside of it on worker threads. `Core::changed` is notified whenever host threads may go on,
//! `Core::work` whenever workers may.

pub(crate) mod capture;
pub(crate) mod graph_launch;
pub(crate) mod graph_memory;
pub(crate) mod graphs;
pub(crate) mod green;
mod host_watch;
mod kernel_watch;
pub(crate) mod launch;
pub(crate) mod managed;
pub(crate) mod order;
pub(crate) mod policy;
mod run;
pub(crate) mod stale;
pub(crate) mod state;
mod stuck;
mod submit;
pub(crate) mod work;

pub(crate) use submit::{has_before, is_idle};
