//! Memory pools of a simulated driver: handles, the device's default and current pool, and allocation in stream
//! order.

use super::MemoryWork;
use crate::core::{Core, Res, StreamRef};
use crate::engine::has_before;
use crate::engine::work::{Record, Work};
use crate::handles::{Handles, Kind};
use crate::memory::{
    Allocation, Backing, Mapping, MemoryKind, Order, Origin, Point, Pool, PoolError, RESERVE_STEP, Shortage,
};
use simtile_driver::sys::CUresult;
use simtile_sync::{Arc, Mutex};
use std::collections::BTreeMap;

/// All pools.
pub(crate) struct Pools {
    inner: Mutex<Inner>,
}

struct Inner {
    /// First address of its arena by handle.
    handles: Handles<u64>,
    /// Every pool that is not gone, by first address of its arena.
    pools: BTreeMap<u64, Arc<Pool>>,
    /// By device.
    default: BTreeMap<i32, u64>,
    current: BTreeMap<i32, u64>,
    /// The pool of each allocation, by first address.
    owners: BTreeMap<u64, u64>,
    /// Frees that have not run, by stream and number of the work.
    frees: BTreeMap<(u64, u64), Arc<Record>>,
}

/// What the engine knows about the order of work.
struct EngineOrder<'a>(&'a Core);

impl Order for EngineOrder<'_> {
    fn finished(&self, point: Point) -> bool {
        let state = self.0.state.lock();
        !has_before(&state, point.stream, point.position + 1)
    }

    fn follows(&self, stream: u64, point: Point) -> bool {
        let state = self.0.state.lock();
        let Some(own) = state.streams.get(&stream) else { return false };
        if own.frontier.get(&point.stream).is_some_and(|&position| position >= point.position) {
            return true;
        }
        // The legacy default stream and the blocking streams of a context follow each other.
        state.streams.get(&point.stream).is_some_and(|other| {
            other.context == own.context
                && own.green == other.green
                && (other.legacy && own.is_blocking() || own.legacy && other.is_blocking())
        })
    }
}

impl Pools {
    pub(super) fn new(simulator: u64) -> Self {
        let inner = Inner {
            handles: Handles::new(Kind::MemoryPool, simulator),
            pools: BTreeMap::new(),
            default: BTreeMap::new(),
            current: BTreeMap::new(),
            owners: BTreeMap::new(),
            frees: BTreeMap::new(),
        };
        Self { inner: Mutex::new(inner) }
    }

    /// Pools with a handle that are no device's default.
    pub(crate) fn count_created(&self) -> usize {
        let inner = self.inner.lock();
        let default = |arena: &u64| inner.default.values().any(|known| known == arena);
        inner.handles.iter().filter(|(_, arena)| !default(arena)).count()
    }

    /// Makes a pool that reserves at most `most` bytes (0: no limit).
    pub(crate) fn create(&self, core: &Core, device: i32, most: u64) -> Res<Arc<Pool>> {
        self.inner.lock().create(core, device, most)
    }

    /// Whether handle values of destroyed pools are handed out again at once.
    pub(crate) fn recycle_handles(&self, recycle: bool) {
        self.inner.lock().handles.set_recycling(recycle);
    }

    /// The pool behind a handle.
    pub(crate) fn get(&self, handle: usize) -> Res<Arc<Pool>> {
        let inner = self.inner.lock();
        let arena = inner.handles.get(handle).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        inner.pools.get(arena).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// A device's default pool.
    pub(crate) fn default_of(&self, core: &Core, device: i32) -> Res<Arc<Pool>> {
        self.inner.lock().default_of(core, device)
    }

    /// The pool that a device's allocations come from.
    pub(crate) fn current_of(&self, core: &Core, device: i32) -> Res<Arc<Pool>> {
        let mut inner = self.inner.lock();
        match inner.current.get(&device).and_then(|arena| inner.pools.get(arena)) {
            Some(pool) => Ok(pool.clone()),
            None => inner.default_of(core, device),
        }
    }

    /// Sets the pool that a device's allocations come from.
    pub(crate) fn set_current(&self, device: i32, pool: &Pool) -> Res {
        if pool.device != device {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.inner.lock().current.insert(device, pool.arena);
        Ok(())
    }

    /// Destroys a pool's handle. The pool goes when all of its memory was freed.
    pub(crate) fn destroy(&self, core: &Core, handle: usize) -> Res {
        let mut inner = self.inner.lock();
        let arena = *inner.handles.get(handle).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if inner.default.values().any(|default| *default == arena) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let _ = inner.handles.remove(handle);
        inner.current.retain(|_, current| *current != arena);
        drop(inner);
        self.synchronised(core);
        Ok(())
    }

    /// Gives back what is over the thresholds, and pools that were destroyed and are empty.
    pub(super) fn synchronised(&self, core: &Core) {
        let mut inner = self.inner.lock();
        if inner.pools.is_empty() {
            return;
        }
        let order = EngineOrder(core);
        inner.pools.values().for_each(|pool| pool.synchronised(&order));
        inner.frees.retain(|_, record| !record.is_over());
        inner.reap(core, &order);
    }

    /// Trims every pool of a device, because memory is short. Whether that gave any back.
    pub(crate) fn trim_all(&self, core: &Core, device: i32) -> bool {
        let budget = core.space.budget(device);
        let before = budget.free();
        let inner = self.inner.lock();
        let order = EngineOrder(core);
        inner.pools.values().filter(|pool| pool.device == device).for_each(|pool| pool.trim(0, &order));
        budget.free() > before
    }

    /// Gives a pool's free memory back, but keeps at least `keep` bytes reserved.
    pub(crate) fn trim(&self, core: &Core, pool: &Pool, keep: u64) {
        pool.trim(keep, &EngineOrder(core));
    }

    /// Memory from a pool, in the order of a stream.
    pub(crate) fn allocate(
        &self,
        core: &Arc<Core>,
        pool: &Arc<Pool>,
        bytes: u64,
        stream: &StreamRef,
    ) -> Res<Arc<Allocation>> {
        const OUT: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let order = EngineOrder(core);
        let grant = match pool.allocate(bytes, stream.uid, &order) {
            Err(PoolError::Short(Shortage::Device)) if self.trim_all(core, pool.device) => {
                pool.allocate(bytes, stream.uid, &order)
            }
            other => other,
        };
        let grant = grant.map_err(|_| OUT)?;
        // Until it is queued nobody else knows of it.
        let undo = |code| {
            let _ = pool.free(grant.base, None);
            code
        };
        let Some(backing) = Backing::new(bytes) else { return Err(undo(OUT)) };
        let origin = Origin { pool: pool.handle, ..Origin::default() };
        let allocation = core.space.prepare(Mapping {
            base: grant.base,
            bytes,
            kind: MemoryKind::Pool,
            device: pool.device,
            origin,
            backing: Arc::new(backing),
            backing_offset: 0,
            rights: Some(pool.rights.clone()),
            physical: None,
            multicast: None,
        });
        let after = {
            let mut inner = self.inner.lock();
            inner.owners.insert(grant.base, pool.arena);
            grant.wait.and_then(|point| inner.frees.get(&(point.stream, point.position)).cloned())
        };
        let mut state = core.state.lock();
        let mut queued = match after {
            Some(record) => core.enqueue_locked(&mut state, stream, Work::After(record)),
            None => Ok(()),
        };
        if queued.is_ok() {
            let work = Work::Memory(MemoryWork::Begin(allocation.clone()));
            queued = core.enqueue_locked(&mut state, stream, work);
        }
        drop(state);
        if let Err(code) = queued {
            self.inner.lock().owners.remove(&grant.base);
            return Err(undo(code));
        }
        core.space.name(&allocation);
        Ok(allocation)
    }

    /// Frees memory in the order of a stream: of a pool, or of `cuMemAlloc`.
    pub(crate) fn free(&self, core: &Arc<Core>, base: u64, stream: &StreamRef) -> Res {
        const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
        let allocation = core.space.find(base).filter(|a| a.base == base).ok_or(INVALID)?;
        if !matches!(allocation.kind, MemoryKind::Pool | MemoryKind::Device) {
            return Err(INVALID);
        }
        // Two threads may get here with one address; one of them takes the name away.
        let allocation = core.space.unname(base).map_err(|_| INVALID)?;
        let mut state = core.state.lock();
        // Waits first, as `enqueue_locked` would: what it finds then (the next number, what the stream follows) is still so
        // when the free is queued, since the lock is not given up any more.
        let queued = core.pass_blocked_launches_on(&mut state, stream, false).and_then(|()| {
            let frontier = state.streams.get(&stream.uid).map(|s| s.frontier.clone()).unwrap_or_default();
            let record = Record::pending((stream.uid, state.next_seq), frontier);
            let work = Work::Memory(MemoryWork::End(allocation.clone(), record.clone()));
            core.enqueue_locked(&mut state, stream, work).map(|()| record)
        });
        drop(state);
        match queued {
            Ok(record) => {
                self.give_back(base, Some(record));
                Ok(())
            }
            Err(code) => {
                core.space.name(&allocation);
                Err(code)
            }
        }
    }

    /// Frees memory of a pool at once, without an order.
    pub(crate) fn free_now(&self, core: &Core, base: u64) -> Res {
        let allocation = core.space.unname(base).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        core.space.end(&allocation);
        self.give_back(base, None);
        Ok(())
    }

    /// The frees on a stream that are remembered: number, and what the record says of itself.
    #[cfg(test)]
    pub(crate) fn frees_of(&self, stream: u64) -> Vec<(u64, (u64, u64))> {
        let inner = self.inner.lock();
        let of = inner.frees.iter().filter(|((of, _), _)| *of == stream);
        of.map(|((_, position), record)| (*position, record.origin)).collect()
    }

    /// The pool takes an allocation back; nothing happens for memory of no pool.
    fn give_back(&self, base: u64, free: Option<Arc<Record>>) {
        let mut inner = self.inner.lock();
        let Some(arena) = inner.owners.remove(&base) else { return };
        let Some(pool) = inner.pools.get(&arena).cloned() else { return };
        let tag = free.map(|record| {
            let (stream, position) = record.origin;
            inner.frees.insert((stream, position), record);
            Point { stream, position }
        });
        // The pool only refuses what it does not own, and the table of owners said that it does.
        let _ = pool.free(base, tag);
    }
}

impl Inner {
    fn create(&mut self, core: &Core, device: i32, most: u64) -> Res<Arc<Pool>> {
        const OUT: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let budget = core.space.budget(device);
        // Twice the memory, so that what is cut up can still be placed.
        let bytes = budget.total().max(RESERVE_STEP).saturating_mul(2).next_multiple_of(RESERVE_STEP);
        let arena = core.space.reserve_aligned(device, bytes, RESERVE_STEP).ok_or(OUT)?;
        let made = self.handles.insert(arena).and_then(|handle| {
            Pool::new(handle, device, (arena, bytes), most, &budget, core.space.reuses()).map(Arc::new)
        });
        let Some(pool) = made else {
            core.space.unreserve(device, arena);
            return Err(OUT);
        };
        self.pools.insert(arena, pool.clone());
        Ok(pool)
    }

    fn default_of(&mut self, core: &Core, device: i32) -> Res<Arc<Pool>> {
        if let Some(pool) = self.default.get(&device).and_then(|arena| self.pools.get(arena)) {
            return Ok(pool.clone());
        }
        let pool = self.create(core, device, 0)?;
        self.default.insert(device, pool.arena);
        Ok(pool)
    }

    /// Drops pools whose handle is gone and that have no memory any more.
    fn reap(&mut self, core: &Core, order: &EngineOrder<'_>) {
        let gone: Vec<Arc<Pool>> = self
            .pools
            .values()
            // Another pool may have the handle's value by now.
            .filter(|pool| self.handles.get(pool.handle) != Ok(&pool.arena))
            .filter(|pool| pool.is_idle() && pool.is_settled(order))
            .cloned()
            .collect();
        for pool in gone {
            self.pools.remove(&pool.arena);
            core.space.unreserve(pool.device, pool.arena);
        }
    }
}
