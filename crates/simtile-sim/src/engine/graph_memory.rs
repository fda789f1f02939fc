//! Memory of graphs: addresses that are fixed when an allocation node is made, and what launches take and give back.

use super::graphs::{ExecNode, NodeWork};
use super::state::State;
use super::work::{Record, Work};
use crate::core::{Core, Res, StreamRef};
use crate::graph::{Graph, NodeId};
use crate::heap::MemoryWork;
use crate::memory::{Allocation, Backing, Budget, Charge, Mapping, MemoryKind, Origin, reserve_step};
use simtile_driver::sys::*;
use simtile_sync::Arc;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Memory of an allocation node: its address is fixed when the node is made.
pub(crate) struct GraphMemory {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) device: i32,
    /// Other devices that may use it.
    pub(crate) peers: Vec<i32>,
}

/// What is known of an allocation node's memory.
pub(crate) struct MemoryEntry {
    owner: Weak<GraphMemory>,
    bytes: u64,
    device: i32,
    /// Allocated by a launch and not freed since.
    outstanding: Option<Arc<Allocation>>,
    /// The last pending work on it.
    last: Option<Arc<Record>>,
}

/// Graph memory of a device: what is taken from the device's budget, by the first upload or launch that needs it, until it
/// is trimmed. A free gives nothing back (measured).
#[derive(Default)]
pub(crate) struct GraphPool {
    /// Bytes of allocations that are out.
    pub(crate) out: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved_high: u64,
    charge: Option<Charge>,
}

impl GraphPool {
    /// Bytes taken from the device.
    pub(crate) fn taken(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Makes room for so many bytes at once. False if the device has not so much left.
    fn reserve(&mut self, budget: &Arc<Budget>, bytes: u64) -> bool {
        let step = reserve_step(budget.total());
        let more = bytes.next_multiple_of(step).saturating_sub(self.taken());
        let grown = match &mut self.charge {
            _ if more == 0 => true,
            Some(charge) => charge.grow(more),
            none => {
                *none = budget.charge(more);
                none.is_some()
            }
        };
        self.used_high = self.used_high.max(self.taken());
        self.reserved_high = self.reserved_high.max(self.taken());
        grown
    }

    /// Gives back what is not out.
    pub(crate) fn trim(&mut self, total: u64) {
        let keep = self.out.next_multiple_of(reserve_step(total));
        if let Some(charge) = &mut self.charge {
            charge.shrink(charge.bytes().saturating_sub(keep));
        }
    }
}

impl Core {
    /// An allocation node's memory: addresses, and a name that later nodes can use.
    pub(crate) fn graph_memory(
        &self,
        state: &mut State,
        device: i32,
        bytes: u64,
        peers: Vec<i32>,
    ) -> Res<Arc<GraphMemory>> {
        const OUT: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        if bytes > self.space.budget(device).total() {
            return Err(OUT);
        }
        let base = self.space.reserve_aligned(device, bytes, 512).ok_or(OUT)?;
        let memory = Arc::new(GraphMemory { base, bytes, device, peers });
        let Some(allocation) = self.graph_allocation(&memory) else {
            self.space.unreserve(device, base);
            return Err(OUT);
        };
        self.space.name(&allocation);
        let entry =
            MemoryEntry { owner: Arc::downgrade(&memory), bytes, device, outstanding: None, last: None };
        state.graphs.memory.insert(base, entry);
        Ok(memory)
    }

    fn graph_allocation(&self, memory: &GraphMemory) -> Option<Arc<Allocation>> {
        let &GraphMemory { base, bytes, device, .. } = memory;
        let rights = crate::memory::Rights::none();
        for &device in memory.peers.iter().chain([&device]) {
            rights.set(device, 3);
        }
        Some(self.space.prepare(Mapping {
            base,
            bytes,
            kind: MemoryKind::Pool,
            device,
            origin: Origin::default(),
            backing: Arc::new(Backing::new(bytes)?),
            backing_offset: 0,
            rights: Some(rights),
            physical: None,
            multicast: None,
        }))
    }

    /// Forgets memory whose nodes are all gone and that is not allocated.
    pub(crate) fn sweep_graph_memory(&self, state: &mut State) {
        state.graphs.memory.retain(|&base, entry| {
            let pending = entry.last.as_ref().is_some_and(|last| !last.is_over());
            let keep = pending || entry.outstanding.is_some() || entry.owner.strong_count() > 0;
            if !keep {
                let _ = self.space.unname(base);
                self.space.unreserve(entry.device, base);
            }
            keep
        });
    }

    /// Frees what a graph's launch allocated, in the order of a stream, or of none. `None` if the address
    /// is none of a graph's.
    pub(crate) fn free_graph_memory(self: &Arc<Self>, base: u64, stream: Option<&StreamRef>) -> Option<Res> {
        let mut state = self.state.lock();
        let entry = state.graphs.memory.get_mut(&base)?;
        let (bytes, device) = (entry.bytes, entry.device);
        let Some(allocation) = entry.outstanding.take() else { return Some(Err(INVALID)) };
        let result = match stream {
            Some(stream) => {
                let record = Record::pending((stream.uid, 0), Default::default());
                let work = Work::Memory(MemoryWork::End(allocation.clone(), record.clone()));
                entry.last = Some(record);
                self.enqueue_locked(&mut state, stream, work)
            }
            None => {
                self.space.end(&allocation);
                Ok(())
            }
        };
        if result.is_ok() {
            let pool = state.graphs.pools.entry(device).or_default();
            pool.out = pool.out.saturating_sub(bytes);
        } else if let Some(entry) = state.graphs.memory.get_mut(&base) {
            entry.outstanding = Some(allocation);
        }
        self.sweep_graph_memory(&mut state);
        Some(result)
    }

    /// Which memory of an earlier launch is to be freed first.
    ///
    /// # Errors
    /// There is some and nobody asked for that; a free of what is not allocated; the device has no memory left.
    pub(super) fn check_graph_memory(
        &self,
        state: &mut State,
        flat: &Graph<ExecNode>,
        order: &[NodeId],
        flags: u64,
    ) -> Res<Vec<u64>> {
        let auto = flags
            & u64::from(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0)
            != 0;
        let mut freed = Vec::new();
        let mut allocated = BTreeSet::new();
        // Bytes in use, by device, as the launch goes on, and the most of them.
        let mut need: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
        let used = |device: i32| state.graphs.pools.get(&device).map_or(0, |pool| pool.out);
        for work in order.iter().filter_map(|&node| flat.get(node)).map(|node| &node.work) {
            match work {
                NodeWork::Alloc(memory) => {
                    let entry = state.graphs.memory.get(&memory.base).ok_or(INVALID)?;
                    if entry.outstanding.is_some() {
                        if !auto {
                            return Err(INVALID);
                        }
                        freed.push(memory.base);
                    } else {
                        let (now, most) = need.entry(memory.device).or_insert((used(memory.device), 0));
                        *now += memory.bytes;
                        *most = (*most).max(*now);
                    }
                    allocated.insert(memory.base);
                }
                NodeWork::Free(base) => {
                    let entry = state.graphs.memory.get(base).ok_or(INVALID)?;
                    if !allocated.remove(base) {
                        entry.outstanding.as_ref().ok_or(INVALID)?;
                    }
                    let (now, _) = need.entry(entry.device).or_insert((used(entry.device), 0));
                    *now = now.saturating_sub(entry.bytes);
                }
                _ => {}
            }
        }
        for (device, (_, most)) in need {
            let pool = state.graphs.pools.entry(device).or_default();
            if !pool.reserve(&self.space.budget(device), most) {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
        Ok(freed)
    }

    pub(super) fn take_graph_memory(&self, state: &mut State, base: u64, with: impl FnOnce(Arc<Allocation>)) {
        let Some(entry) = state.graphs.memory.get_mut(&base) else { return };
        let (bytes, device) = (entry.bytes, entry.device);
        if let Some(allocation) = entry.outstanding.take() {
            let pool = state.graphs.pools.entry(device).or_default();
            pool.out = pool.out.saturating_sub(bytes);
            with(allocation);
        }
    }

    /// An allocation node's turn in a launch.
    pub(super) fn begin_graph_memory(&self, state: &mut State, memory: &GraphMemory) -> Res<MemoryWork> {
        let allocation = self.graph_allocation(memory).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        self.space.name(&allocation);
        if let Some(entry) = state.graphs.memory.get_mut(&memory.base) {
            entry.outstanding = Some(allocation.clone());
        }
        let pool = state.graphs.pools.entry(memory.device).or_default();
        pool.out += memory.bytes;
        Ok(MemoryWork::Begin(allocation))
    }

    /// Makes room for what a launch of the graph will allocate.
    pub(crate) fn upload_graph_memory(&self, state: &mut State, flat: &Graph<ExecNode>, flags: u64) {
        // A launch says what is wrong.
        let _ = self.check_graph_memory(state, flat, &flat.order(|_| 0), flags);
    }

    /// Work on graph memory is pending until then.
    pub(super) fn use_graph_memory(&self, state: &mut State, flat: &Graph<ExecNode>, done: &Arc<Record>) {
        for (_, node) in flat.nodes() {
            let base = match &node.work {
                NodeWork::Alloc(memory) => memory.base,
                NodeWork::Free(base) => *base,
                _ => continue,
            };
            if let Some(entry) = state.graphs.memory.get_mut(&base) {
                entry.last = Some(done.clone());
            }
        }
    }
}
