//! Device memory: allocations, pinned staging, typed buffers.

mod allocation;
mod buffer;
mod pool;
mod staging;

pub use allocation::AllocationId;
pub(crate) use allocation::{Allocation, lock_all};
pub use buffer::DeviceBuffer;
pub(crate) use buffer::distinct;

use crate::Context;
use simtile_sync::Mutex;

/// What a context keeps for its memory.
#[derive(Default)]
pub(crate) struct ContextMemory {
    pool: Mutex<pool::Source>,
    parked: Mutex<Vec<pool::Parked>>,
    staging: staging::Staging,
}

impl Context {
    /// Gives back what the context holds for its memory. All work has finished, or the context is borrowed.
    pub(crate) fn end_memory(&self) {
        self.end_parked();
        self.end_staging();
    }
}
