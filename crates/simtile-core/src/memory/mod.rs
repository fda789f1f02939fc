//! Device memory: allocations, pinned staging, typed buffers.

mod allocation;
mod arena;
mod block;
mod boxed;
mod buffer;
mod cast;
mod export;
mod foreign;
mod growable;
mod host;
mod landing;
mod managed;
mod mem_pool;
mod multicast;
mod owner;
mod part;
mod pinned;
mod pool;
mod retired;
mod room;
mod staging;
mod strided;
mod view;
mod vmm;

pub(crate) use allocation::Allocation;
pub use allocation::AllocationId;
pub use arena::Arena;
pub use block::StagingBlock;
pub use boxed::{DeviceBox, DevicePointer, OnDevice};
pub use buffer::DeviceBuffer;
pub use cast::{MemoryLease, RawDeviceBuffer, Refused};
pub use export::Exported;
pub use foreign::{DeviceAllocation, Keepalive};
pub use growable::GrowableBuffer;
pub use host::{PinnedRead, PinnedWrite};
pub use landing::HostLanding;
pub use managed::{Advice, ManagedBuffer, Residence};
pub(crate) use mem_pool::location;
pub use mem_pool::{MemPool, MemPoolBuilder, PoolStats};
pub use multicast::MulticastTeam;
pub(crate) use owner::Owner;
pub(crate) use part::{Part, Word, distinct};
pub use pinned::PinnedHostBuffer;
pub(crate) use retired::{Left, Memory};
pub(crate) use staging::Place;
pub use strided::{DeviceColumns, DeviceColumnsMut};
pub use view::{ChunksMut, DeviceBufferView, DeviceBufferViewMut};
pub use vmm::{AddressRange, PhysicalMemory, align_size};

use crate::context::Shared;
use simtile_driver::sys::CUstream;
use simtile_hazard::Region;
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
        /// How a kernel touches it that is given a shared reference.
        fn shared_mode(&self) -> Mode;
        fn address(&self) -> CUdeviceptr;
    }

    pub trait MemoryMut: Memory {
        fn touched_mut(&mut self) -> Touch<'_>;
    }
}

/// How a kernel touches elements that it is given by a shared reference.
pub(crate) fn shared_mode<T: simtile_types::DeviceCopy>() -> simtile_hazard::Mode {
    if T::ACCUMULATES { crate::AtomicScope::Device.mode(size_of::<T>()) } else { simtile_hazard::Mode::Read }
}

/// What all typed memory has in common, made from its `part`.
macro_rules! typed_memory {
    ($($name:ident)*) => { $(
        impl<T: simtile_types::DeviceCopy> $crate::memory::sealed::Memory for $name<T> {
            fn touched(&self, mode: simtile_hazard::Mode) -> $crate::stream::Touch<'_> {
                self.part().access_of(mode)
            }

            fn element_bytes(&self) -> usize {
                size_of::<T>()
            }

            fn shared_mode(&self) -> simtile_hazard::Mode {
                $crate::memory::shared_mode::<T>()
            }

            fn address(&self) -> simtile_driver::sys::CUdeviceptr {
                self.part().address()
            }
        }

        impl<T: simtile_types::DeviceCopy> $crate::memory::sealed::MemoryMut for $name<T> {
            fn touched_mut(&mut self) -> $crate::stream::Touch<'_> {
                self.part().access_of(simtile_hazard::Mode::Write)
            }
        }

        impl<T: simtile_types::DeviceCopy> $crate::memory::DeviceMemory for $name<T> {}
        impl<T: simtile_types::DeviceCopy> $crate::memory::DeviceMemoryMut for $name<T> {}
    )* };
}

pub(crate) use typed_memory;

/// What all memory tells that has an `owner` and a `len`.
macro_rules! owned_memory {
    ($name:ident) => {
        impl<T: simtile_types::DeviceCopy> $name<T> {
            /// Elements.
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// Identity of the allocation, never reused.
            pub fn allocation_id(&self) -> $crate::AllocationId {
                self.owner.id()
            }

            /// The context.
            pub fn context(&self) -> &simtile_sync::Arc<$crate::Context> {
                self.owner.context()
            }

            /// Names the buffer in errors, and in the reports of a simulated driver.
            pub fn set_label(&self, label: &str) {
                self.owner.set_label(label);
            }
        }
    };
}

pub(crate) use owned_memory;

/// How the host reaches the values of memory that it has addresses of, and that was filled when it was made. `also` is more about waiting.
macro_rules! host_guards {
    ($name:ident, $also:literal) => {
        impl<T: simtile_types::DeviceCopy> $name<T> {
            /// Waits for work that writes the values, then gives them. Work that only reads them goes on.
            #[doc = $also]
            ///
            /// # Errors
            /// [`StreamError::Conflict`](crate::StreamError::Conflict) if a writing guard was forgotten, [`MemoryError::InvalidElement`] if the
            /// device wrote bytes that are no value, or the driver's, also the failure of the work.
            pub fn read(&self) -> Result<PinnedRead<'_, T>, MemoryError> {
                // SAFETY: the memory was filled when it was made.
                unsafe { PinnedRead::new(self.part(), true) }
            }

            /// The same, but refuses where that would wait.
            ///
            /// # Errors
            /// [`StreamError::Conflict`](crate::StreamError::Conflict) if work that writes the values is in flight, else as `read`.
            pub fn try_read(&self) -> Result<PinnedRead<'_, T>, MemoryError> {
                // SAFETY: as above.
                unsafe { PinnedRead::new(self.part(), false) }
            }

            /// Waits for all work that uses the values, then gives them.
            #[doc = $also]
            ///
            /// # Errors
            /// As `read`.
            pub fn write(&mut self) -> Result<PinnedWrite<'_, T>, MemoryError> {
                // SAFETY: as above, and the buffer is borrowed exclusively.
                unsafe { PinnedWrite::new(self.part(), true) }
            }

            /// The same, but refuses where that would wait.
            ///
            /// # Errors
            /// As `try_read`.
            pub fn try_write(&mut self) -> Result<PinnedWrite<'_, T>, MemoryError> {
                // SAFETY: as above.
                unsafe { PinnedWrite::new(self.part(), false) }
            }
        }
    };
}

pub(crate) use host_guards;

/// What a context keeps for its memory.
#[derive(Default)]
pub(crate) struct ContextMemory {
    pool: Mutex<pool::Source>,
    /// Pools that users made.
    pub(crate) pools: Mutex<Vec<std::sync::Weak<MemPool>>>,
    parked: Mutex<Vec<pool::Parked>>,
    /// Memory that waited in the background is freed here.
    reclaim: Mutex<Option<CUstream>>,
    pub(crate) live: room::Live,
    oom_wait: room::OomWait,
    /// Held while foreign memory is taken in.
    pub(crate) importing: Mutex<()>,
    /// What nobody holds, but foreign code may still use.
    pub(crate) limbo: Mutex<Vec<Limbo>>,
    pinned: pinned::PinnedBlocks,
    managed: managed::ManagedBlocks,
    staging: staging::Staging,
}

/// Memory that came back from nobody knows which stream: kept until everything was waited for.
pub(crate) enum Limbo {
    /// An export that was dropped.
    Export(#[allow(dead_code, reason = "held, never used")] Owner),
    /// What was dropped after it had come back so.
    Dropped(Box<(Region, Memory)>),
}

impl Shared {
    /// Whether there is memory whose freeing waits for the whole context.
    pub(crate) fn keeps_blocks(&self) -> bool {
        let ContextMemory { parked, pinned, managed, .. } = &self.memory;
        !parked.lock().is_empty() || !pinned.0.lock().is_empty() || !managed.0.lock().is_empty()
    }

    /// Gives back what the context holds for its memory. All work has finished, or the context is borrowed. `may_go_on`: others may have
    /// the CUDA context.
    pub(crate) fn end_memory(&self, may_go_on: bool) {
        self.end_parked();
        self.free_pinned();
        self.free_managed();
        self.end_staging(may_go_on);
        self.end_reclaim_stream();
        self.end_own_pool();
    }
}
