//! What a simulated driver still holds for its users: the other side of a runtime's books.

use crate::core::Core;
use crate::memory::MemoryKind;
use simtile_sync::Arc;

/// Objects that were made and not ended, and bytes that were allocated and not freed.
///
/// Objects of the driver's own (default streams, default pools, its workspaces) and the variables of modules are not counted. A stream or an
/// allocation counts until its end was called, whether or not the work before that end has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holdings {
    /// Created contexts, and primary ones that somebody retains.
    pub contexts: usize,
    /// Streams that were created.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Loaded modules.
    pub modules: usize,
    /// Graphs, those inside of other graphs' nodes too.
    pub graphs: usize,
    /// Executable graphs.
    pub executables: usize,
    /// Memory pools that were created.
    pub pools: usize,
    /// Reserved address ranges.
    pub reservations: usize,
    /// Handles of physical memory and multicast objects.
    pub physical: usize,
    /// Mappings of them.
    pub mappings: usize,
    /// Streams that take part in a capture.
    pub captures: usize,
    /// Bytes of device memory, from pools and outside of them.
    pub device_bytes: u64,
    /// Bytes of page-locked memory.
    pub pinned_bytes: u64,
    /// Bytes of managed memory.
    pub managed_bytes: u64,
    /// Bytes of physical memory that has a handle or a mapping.
    pub mapped_bytes: u64,
}

impl Holdings {
    /// Device, page-locked, managed and mapped bytes together.
    pub fn bytes(&self) -> u64 {
        self.device_bytes + self.pinned_bytes + self.managed_bytes + self.mapped_bytes
    }
}

impl Core {
    pub(crate) fn holdings(&self) -> Holdings {
        let mut held = Holdings {
            modules: self.modules.count(),
            pools: self.heap.pools.count_created(),
            ..Holdings::default()
        };
        (held.reservations, held.physical) = self.heap.vmm.counts();
        let mut physical = self.heap.vmm.all_memory();
        for allocation in self.space.named() {
            let bytes = allocation.bytes;
            match allocation.kind {
                MemoryKind::Device | MemoryKind::Pool => held.device_bytes += bytes,
                MemoryKind::Pinned if !allocation.origin.registered => held.pinned_bytes += bytes,
                MemoryKind::Managed => held.managed_bytes += bytes,
                MemoryKind::Virtual => {
                    held.mappings += 1;
                    physical.extend(allocation.physical().cloned());
                }
                _ => {}
            }
        }
        physical.sort_by_key(|memory| Arc::as_ptr(memory).addr());
        physical.dedup_by_key(|memory| Arc::as_ptr(memory).addr());
        held.mapped_bytes = physical.iter().map(|memory| memory.bytes).sum();
        let state = self.state.lock();
        held.contexts = state.contexts.len();
        let own = |uid: &u64| {
            let of_driver = |context: &crate::engine::state::ContextState| {
                context.legacy == *uid || context.per_thread.values().any(|stream| stream == uid)
            };
            state.contexts.values().any(of_driver)
        };
        let streams = || state.streams.iter().filter(|(uid, stream)| !stream.destroyed && !own(uid));
        held.streams = streams().filter(|(_, stream)| !stream.legacy).count();
        held.captures = state.streams.values().filter(|stream| stream.capture.is_some()).count();
        held.events = state.event_handles.iter().count();
        held.graphs = state.graphs.graphs.len();
        held.executables = state.graphs.execs.iter().count();
        held
    }
}
