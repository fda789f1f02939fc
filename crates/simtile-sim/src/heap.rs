//! State and queued work of the memory families of the driver API (`table/memory.rs`, `table/pool.rs`,
//! `table/copy.rs`, `table/pinned.rs`, `table/vmm.rs`).

use crate::core::Core;
use crate::memory::{DeviceView, MemoryFault};

/// What the memory families keep beside the address space.
#[derive(Default)]
pub(crate) struct Heap {}

impl Heap {
    /// A context is gone: its work has ended, its memory goes with it.
    pub(crate) fn context_ended(&self, _core: &Core, _context: u64, _device: i32) {}
}

/// Work of the memory families in a stream.
#[derive(Clone)]
pub(crate) enum MemoryWork {}

impl MemoryWork {
    /// Whether it takes a place in the driver's bounded queues (copies and memsets do, the places of
    /// allocations and frees do not).
    pub(crate) fn counts(&self) -> bool {
        match *self {}
    }

    /// Whether it is done in no time, so that it may run under the engine's lock.
    pub(crate) fn is_instant(&self) -> bool {
        match *self {}
    }

    /// Does the work, on behalf of the view's device. Instant work runs under the engine's lock
    /// (`core.state`) and must not take it.
    ///
    /// # Errors
    /// The refused access; the context is lost then.
    pub(crate) fn run(&self, _core: &Core, _view: &DeviceView<'_>) -> Result<(), MemoryFault> {
        match *self {}
    }
}
