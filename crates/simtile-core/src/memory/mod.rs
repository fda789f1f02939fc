//! Device memory: allocations, pinned staging, typed buffers.

mod allocation;
mod block;
mod buffer;
mod cast;
mod landing;
mod owner;
mod part;
mod pinned;
mod pool;
mod retired;
mod room;
mod staging;
mod strided;
mod view;

pub(crate) use allocation::Allocation;
pub use allocation::AllocationId;
pub use block::StagingBlock;
pub use buffer::DeviceBuffer;
pub use cast::{MemoryLease, RawDeviceBuffer, Refused};
pub use landing::HostLanding;
pub(crate) use owner::Owner;
pub(crate) use part::{Part, Word, distinct};
pub use pinned::{PinnedHostBuffer, PinnedRead, PinnedWrite};
pub(crate) use retired::Memory;
pub(crate) use staging::Place;
pub use strided::{DeviceColumns, DeviceColumnsMut};
pub use view::{ChunksMut, DeviceBufferView, DeviceBufferViewMut};

use crate::context::Shared;
use simtile_driver::sys::CUstream;
use simtile_sync::Mutex;

/// Device memory that a submission can name: buffers, views, columns, raw buffers. Nobody else can implement it.
pub trait DeviceMemory: sealed::Memory {}

/// Device memory that a submission can write, given exclusively.
pub trait DeviceMemoryMut: DeviceMemory + sealed::MemoryMut {}

pub(crate) mod sealed {
    use crate::stream::Touch;
    use simtile_driver::sys::CUdeviceptr;
    use simtile_hazard::Mode;

    pub trait Memory {
        /// What a submission is told.
        fn touched(&self, mode: Mode) -> Touch<'_>;
        fn element_bytes(&self) -> usize;
        fn address(&self) -> CUdeviceptr;
    }

    pub trait MemoryMut: Memory {
        fn touched_mut(&mut self) -> Touch<'_>;
    }
}

/// What a context keeps for its memory.
#[derive(Default)]
pub(crate) struct ContextMemory {
    pool: Mutex<pool::Source>,
    parked: Mutex<Vec<pool::Parked>>,
    /// Memory that waited in the background is freed here.
    reclaim: Mutex<Option<CUstream>>,
    pub(crate) live: room::Live,
    oom_wait: room::OomWait,
    pinned: pinned::PinnedBlocks,
    staging: staging::Staging,
}

impl Shared {
    /// Gives back what the context holds for its memory. All work has finished, or the context is borrowed.
    pub(crate) fn end_memory(&self) {
        self.end_parked();
        self.free_pinned();
        self.end_staging();
        self.end_reclaim_stream();
    }
}
