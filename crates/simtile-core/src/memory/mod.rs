//! Device memory: allocations, pinned staging, typed buffers.

mod allocation;
mod buffer;
mod pool;
mod retired;
mod room;
mod staging;

pub(crate) use allocation::Allocation;
pub use allocation::AllocationId;
pub use buffer::DeviceBuffer;
pub(crate) use buffer::distinct;
pub(crate) use retired::Memory;
pub(crate) use staging::Place;

use crate::context::Shared;
use simtile_driver::sys::CUstream;
use simtile_sync::Mutex;

/// What a context keeps for its memory.
#[derive(Default)]
pub(crate) struct ContextMemory {
    pool: Mutex<pool::Source>,
    parked: Mutex<Vec<pool::Parked>>,
    /// Memory that waited in the background is freed here.
    reclaim: Mutex<Option<CUstream>>,
    pub(crate) live: room::Live,
    oom_wait: room::OomWait,
    staging: staging::Staging,
}

impl Shared {
    /// Gives back what the context holds for its memory. All work has finished, or the context is borrowed.
    pub(crate) fn end_memory(&self) {
        self.end_parked();
        self.end_staging();
        self.end_reclaim_stream();
    }
}
