//! Handles, memory and raw launches over a driver value.
//!
//! Everything here works on any [`Driver`](simtile_driver::Driver): NVIDIA's or a simulated one.
//!
//! * [`Device`] names a physical GPU. [`Context`] owns or borrows a CUDA context; everything else lives in one
//!   and keeps it alive, so the order in which handles are dropped does not matter.
//! * [`Stream`], [`Event`], [`TimedEvent`]: queues and the marks in them.
//! * [`Module`], [`Function`], [`Symbol`], [`Constant`]: loaded code and its variables.
//! * [`DeviceBuffer`]: a typed allocation. Copies go through pinned staging of the runtime: the device never
//!   touches pageable memory.
//! * [`LaunchArgs`], [`LaunchOptions`] and [`Stream::launch`]: the raw launch, which is `unsafe`.
//!
//! # What always holds
//! * An operation runs in its own handle's context, on any thread, and puts back the context that was current
//!   before. A thread that had none may keep ours.
//! * Dropping a handle never waits for the device and never panics. What goes wrong in a drop is counted in
//!   [`Context::stats`] and kept in [`Context::take_errors`]; it never surfaces in an unrelated call.
//! * After a failure that loses the context no further driver call is made for it, and after the driver has
//!   shut down drops are silent.
//! * Handles of different contexts do not mix: the error names both.
//!
//! # Access order
//! A buffer follows its last use: a copy, fill or launch on another stream first makes that stream wait
//! for the one that used the buffer last. That is coarse (readers wait for readers, and whole buffers count) and
//! will be replaced by tracking per byte range; what it allows will stay allowed.
#![warn(missing_debug_implementations)]

mod capabilities;
mod context;
mod device;
pub mod dlpack;
mod error;
mod event;
mod function;
mod label;
mod launch;
mod memory;
mod module;
mod reaper;
mod stream;
mod symbol;

pub use capabilities::Capabilities;
pub use context::{
    BackgroundError, Context, ContextLimit, ContextStats, ForeignOwner, MemoryInfo, StreamPriorityRange,
    SyncPolicy,
};
pub use device::{Device, Uuid};
pub use error::{ContextError, DeviceError, Error, LaunchError, MemoryError, ModuleError, StreamError};
pub use event::{Event, TimedEvent};
pub use function::{Function, FunctionAttributes, ParameterLayout};
pub use launch::{LaunchArgs, LaunchOptions};
pub use memory::{AllocationId, DeviceBuffer};
pub use module::Module;
pub use reaper::drain_background;
pub use stream::{Stream, StreamId, in_host_function};
pub use symbol::{Constant, Symbol};
