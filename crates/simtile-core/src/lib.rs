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
//! Every copy, fill and launch says which bytes it touches and how. Work that conflicts with unfinished work of another
//! stream follows it: the runtime makes the stream wait, and nothing else waits. Reads never conflict, disjoint ranges
//! never conflict. [`Policy`] says what else to do about conflicts. Memory is given back when the last work that touched
//! it has finished; that needs no handle.
#![warn(missing_debug_implementations)]

mod capabilities;
mod context;
mod device;
pub mod dlpack;
mod error;
mod event;
mod function;
mod graph;
mod label;
mod launch;
mod load;
mod memory;
mod module;
mod module_cache;
mod policy;
mod stream;
mod symbol;
mod sys;

#[cfg(feature = "planted")]
#[doc(hidden)]
pub use simtile_hazard::planted::{Bug, plant};

pub use capabilities::Capabilities;
pub use context::{
    AllocationInfo, BackgroundError, Context, ContextLimit, ContextLoss, ContextMonitor, ContextStats,
    Drained, ForeignOwner, Lost, LostWork, MemoryInfo, Snapshot, StreamPriorityRange, SyncPolicy,
    drain_background,
};
pub use device::{Device, Uuid};
pub use error::{
    ContextError, DeviceError, Error, GraphError, LaunchError, MemoryError, ModuleError, StreamError,
};
pub use event::{Event, TimedEvent};
pub use function::{Function, FunctionAttributes, GlobalAccess, ParameterLayout};
pub use graph::{
    Capture, CapturedGraph, Condition, Conditional, ConditionalNode, GraphExec, KernelNode, KernelPiece,
    Script, ScriptStats,
};
pub use launch::{
    ByAddress, ByReference, ByValue, KernelArgument, LaunchArgs, LaunchOptions, PreparedLaunch,
};
pub use load::JitOptions;
pub use memory::{
    AddressRange, Advice, AllocationId, Arena, ChunksMut, DeviceAllocation, DeviceBox, DeviceBuffer,
    DeviceBufferView, DeviceBufferViewMut, DeviceColumns, DeviceColumnsMut, DeviceMemory, DeviceMemoryMut,
    DevicePointer, Exported, GrowableBuffer, HostLanding, Keepalive, ManagedBuffer, MemPool, MemPoolBuilder,
    MemoryLease, MulticastTeam, OnDevice, PhysicalMemory, PinnedHostBuffer, PinnedRead, PinnedWrite,
    PoolStats, RawDeviceBuffer, Refused, Residence, StagingBlock, align_size,
};
pub use module::Module;
pub use module_cache::ModuleCache;
pub use policy::{InsertedWaits, Policy};
pub use stream::{
    AtomicScope, Room, Stream, StreamId, Submission, SubmitBuilder, in_host_function, with_drops_elsewhere,
    without_waiting, without_waiting_for_room,
};
pub use symbol::{Constant, Global, Symbol};
pub use sys::is_forked;
