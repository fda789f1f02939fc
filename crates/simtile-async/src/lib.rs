//! Operations, futures, policies and launches, for both kernel models.
//!
//! A [`DeviceOp`] is work that has not been submitted. Operations are put together lazily and run once, on one stream:
//!
//! | run by | waits for the work | host values |
//! | --- | --- | --- |
//! | [`sync`](DeviceOp::sync), [`sync_on`](DeviceOp::sync_on) | on this thread | opened |
//! | `.await`, [`schedule`](DeviceOp::schedule), [`on`](DeviceOp::on) | without a thread | opened |
//! | [`enqueue_on`](DeviceOp::enqueue_on), [`try_enqueue_on`](DeviceOp::try_enqueue_on) | no | [`Pending`] |
//!
//! ```
//! use simtile_async::{DeviceOp, download, fill, upload};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let simulator = simtile_sim::Simulator::builder().quiet().build();
//! # let context = simtile_core::Context::new(simulator.driver(), 0)?;
//! let stream = context.new_stream()?;
//! let values = upload(vec![1.0f32; 8]).then(|buffer| fill(buffer, 2.0)).then(download).sync_on(&stream)?;
//! assert_eq!(values, [2.0; 8]);
//! # Ok(()) }
//! ```
//!
//! # What always holds
//! * After submission the work owns its claims: nothing it touches is freed, reused or handed out in conflict until it has finished,
//!   whether its future is dropped, forgotten, cancelled or never polled again.
//! * Nothing here holds a lock while it runs closures, wakers, policies or destructors of others.
//! * A poll does not wait: for room in a queue, memory, a module or a completion it is called again. Completion costs no
//!   thread of its own: see [`reactor`].
//! * Nothing panics. A panic of a closure is [`OpError::Panicked`].
#![forbid(unsafe_op_in_unsafe_fn)]

mod argument;
pub mod combine;
mod context;
mod drive;
mod error;
mod external;
mod family;
mod future;
mod graph;
mod launch;
mod memo;
pub mod module;
mod op;
mod output;
pub mod reactor;
pub mod runtime;
mod schedule;
pub mod transfer;
mod worker;
mod worlds;

pub use argument::IntoDeviceOp;
pub use combine::{
    BoxedDeviceOp, DeviceOpVec, Joinable, Labelled, SharedDeviceOp, Unzippable, Value, Zippable, empty,
    shared, value, with_context,
};
pub use context::{ExecutionContext, SubmitContext};
pub use error::{MayWait, OpError};
pub use external::{Accesses, External, ExternalStream, external};
pub use family::{FamilyScope, GraphFamily};
pub use future::DeviceFuture;
pub use graph::{CudaGraph, GraphLaunch, GraphScope};
pub use launch::{AsyncKernelLaunch, AsyncKernelLaunchBuilder, OwnedAsyncKernelLaunch};
pub use memo::{Memo, MemoRun, MemoStats, memoize};
pub use module::{load_function, load_module};
pub use op::{DeviceOp, DeviceOperation};
pub use output::{DeviceOutput, HostBudget, Landing, Pending, Plain};
pub use runtime::{Runtime, RuntimeBuilder, RuntimeError};
pub use schedule::{SchedulingPolicy, SingleStream, StreamPerTask, StreamPoolRoundRobin, TaskStream};
pub use simtile_core::{Condition, Conditional, DeviceBox, DevicePointer, KernelNode};
pub use transfer::{
    Source, Target, copy, download, fill, memcpy, to_host_vec, upload, upload_shared, write, zeros,
};
pub use worker::Job;

/// What most programs use.
pub mod prelude {
    pub use crate::{
        CudaGraph, DeviceFuture, DeviceOp, DeviceOutput, ExecutionContext, IntoDeviceOp, OpError, Pending,
        Runtime, SchedulingPolicy, SharedDeviceOp, Unzippable, join, unzip, value, with_context, zip,
    };
}
