//! Pinned staging: where host memory of users meets the device.
//!
//! An upload is copied into pinned blocks at submission and goes to the device from there; a download comes into
//! pinned blocks and is copied out after it has succeeded. So the device never touches a user's memory.
//!
//! Blocks come in two sizes and are reused; each knows the stamp of its last transfer. Freeing pinned
//! memory stalls the whole context, so blocks are kept until the context ends. A context that outlives its last handle
//! here (a primary context that others retain too) leaves them for the next handle of the same CUDA context.

use super::Allocation;
use crate::context::{Shared, SubmitError, add, sub};
use crate::error::{CallError, Family, MemoryError, StreamError};
use crate::stream::{Across, Room, Submit, Touch, waits_for_nothing};
use crate::{Context, Stream};
use core::ffi::c_void;
use simtile_driver::sys::*;
use simtile_driver::{Driver, call};
use simtile_hazard::planted::{Bug, is_planted};
use simtile_hazard::{Mode, Settled, Stamp};
use simtile_sync::{Arc, Global, Mutex};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Sizes of the two classes of blocks, and how many of each may exist before a taker waits for a busy one.
const CLASSES: [(usize, usize); 2] = [(64 << 10, 64), (1 << 20, 32)];

/// Blocks of a class that are made before the driver is asked whether one is free again.
const AT_ONCE: usize = 8;

/// Downloads in flight at once.
const PIPELINE: usize = 4;

#[derive(Default)]
pub(super) struct Staging {
    classes: [Mutex<Class>; 2],
}

#[derive(Default)]
struct Class {
    free: Vec<Block>,
    busy: VecDeque<(Block, Stamp)>,
    /// Blocks made, wherever they are now.
    made: usize,
    /// Whether blocks left behind by an earlier handle of this CUDA context were looked for.
    adopted: bool,
}

/// A pinned block.
pub(super) struct Block {
    host: usize,
    class: usize,
}

/// A block whose CUDA context outlived its last handle here.
#[derive(Clone, Copy)]
struct Left {
    driver: Driver,
    context: CUcontext,
    /// The driver's never-reused id of that context.
    id: u64,
    class: usize,
    host: usize,
}

static LEFT: Global<Vec<Left>> = Global::new(Vec::new());

impl Block {
    pub(super) fn bytes(&self) -> usize {
        CLASSES[self.class].0
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.host)
    }
}

/// The class whose blocks suit a transfer of this size.
pub(super) fn class_for(bytes: usize) -> usize {
    usize::from(bytes > CLASSES[0].0)
}

/// Device bytes that a transfer touches: those of an allocation, or of a module's variable.
pub(crate) struct Place<'a> {
    pub(crate) address: CUdeviceptr,
    /// The allocation and the offset in it. What has no address of its own (a module's variables) is touched as a whole.
    pub(crate) allocation: Option<(&'a Allocation, usize)>,
}

impl Place<'_> {
    fn touch(&self, from: usize, to: usize, mode: Mode) -> Option<Touch<'_>> {
        let (allocation, offset) = self.allocation?;
        if allocation.address() == 0 {
            return Some(Touch { allocation, start: 0, end: 1, mode, stride: None });
        }
        Some(Touch { allocation, start: offset + from, end: offset + to, mode, stride: None })
    }

    fn name(&self) -> String {
        self.allocation.map_or_else(|| "a variable".into(), |(allocation, _)| allocation.name())
    }

    fn refused(&self, stream: &Stream, error: SubmitError) -> MemoryError {
        let used = self.allocation.map(|(allocation, _)| allocation);
        stream.refused(error, used.as_slice(), || format!("{} on {stream}", self.name()))
    }
}

impl Stream {
    /// Queues a copy of host bytes to the device. The bytes are not read after the call.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes, which may be uninitialised; `target.address..+bytes` is inside the
    /// place's live allocation.
    pub(crate) unsafe fn upload(
        &self,
        target: &Place<'_>,
        source: *const u8,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let shared = self.context().shared();
        let on = || format!("{} on {self}", target.name());
        let mut done = 0;
        while done < bytes {
            let block = self.context().take_block(class_for(bytes - done));
            let block = block.map_err(|error| error.explain(on))?;
            let n = block.bytes().min(bytes - done);
            let host = block.pointer();
            // SAFETY: the block is ours alone and has `n` bytes; the source is readable (the caller's).
            unsafe { source.add(done).copy_to_nonoverlapping(host, n) };
            let touch = target.touch(done, done + n, Mode::Write);
            let copied = self.submit_local(touch, Submit::PLAIN, |driver, raw| {
                let (to, from) = (target.address + done as u64, host.cast::<c_void>());
                // SAFETY: the block stays until the copy has finished; the target is live (the caller's).
                unsafe { call!(driver, cuMemcpyHtoDAsync(to, from, n, raw)) }
            });
            match copied {
                Ok(copied) => shared.busy(block, copied.stamp),
                Err(error) => {
                    shared.unsure(self, block, &error);
                    let on = || format!("{} on {self}", target.name());
                    return Err(error.explain(self, touch.as_slice(), on));
                }
            }
            done += n;
        }
        Ok(())
    }

    /// Copies device bytes to the host and waits. On an error some bytes of `target` may have been written.
    ///
    /// # Safety
    /// `target` is writable for `bytes` bytes; the rest as [`Stream::upload`].
    pub(crate) unsafe fn download(
        &self,
        target: *mut u8,
        source: &Place<'_>,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let shared = self.context().shared();
        let on = || format!("{} on {self}", source.name());
        let mut flying: VecDeque<(Block, Stamp, usize, usize)> = VecDeque::new();
        let mut queued = 0;
        let mut outcome = Ok(());
        while queued < bytes && outcome.is_ok() {
            if flying.len() == PIPELINE
                && let Some((block, stamp, offset, n)) = flying.pop_front()
            {
                // SAFETY: offset and length lie inside the target.
                outcome = unsafe { self.land(source, block, stamp, target.add(offset), n) };
                continue;
            }
            let block = match self.context().take_block(class_for(bytes - queued)) {
                Ok(block) => block,
                Err(error) => {
                    outcome = Err(error.explain(on));
                    break;
                }
            };
            let n = block.bytes().min(bytes - queued);
            let touch = source.touch(queued, queued + n, Mode::Read);
            let copied = self.submit_local(touch, Submit::SEALED, |driver, raw| {
                let (to, from) = (block.pointer().cast(), source.address + queued as u64);
                // SAFETY: the block stays until the copy has finished; the source is live (the caller's).
                unsafe { call!(driver, cuMemcpyDtoHAsync(to, from, n, raw)) }
            });
            match copied {
                Ok(copied) => {
                    flying.push_back((block, copied.stamp, queued, n));
                    queued += n;
                }
                Err(error) => {
                    shared.unsure(self, block, &error);
                    let on = || format!("{} on {self}", source.name());
                    outcome = Err(error.explain(self, touch.as_slice(), on));
                }
            }
        }
        for (block, stamp, offset, n) in flying {
            match outcome {
                // SAFETY: offset and length lie inside the target.
                Ok(()) => outcome = unsafe { self.land(source, block, stamp, target.add(offset), n) },
                Err(_) => shared.busy(block, stamp),
            }
        }
        outcome
    }

    /// Waits for a block's transfer and copies it out.
    ///
    /// # Safety
    /// `target` is writable for `n` bytes, and the transfer wrote the first `n` bytes of the block.
    unsafe fn land(
        &self,
        source: &Place<'_>,
        block: Block,
        stamp: Stamp,
        target: *mut u8,
        n: usize,
    ) -> Result<(), MemoryError> {
        let shared = self.context().shared();
        if let Err(error) = self.context().tracker().wait(stamp) {
            shared.busy(block, stamp);
            return Err(source.refused(self, error));
        }
        // SAFETY: the transfer has finished, the block is ours alone, the target is writable.
        unsafe { block.pointer().copy_to_nonoverlapping(target, n) };
        shared.memory.staging.classes[block.class].lock().free.push(block);
        Ok(())
    }
}

/// Why there is no block.
pub(super) enum NoBlock {
    Call(CallError),
    /// All are in use, and this thread waits for nothing.
    Later(Room),
}

impl From<CallError> for NoBlock {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl NoBlock {
    pub(super) fn explain(self, on: impl FnOnce() -> String) -> MemoryError {
        match self {
            Self::Call(error) => MemoryError::from_call(error, on()),
            Self::Later(room) => MemoryError::Stream(StreamError::QueueFull { stream: on(), room }),
        }
    }
}

impl Context {
    /// A block that nothing uses, if there is one now.
    pub(super) fn free_block(&self, class: usize) -> Result<Option<Block>, CallError> {
        let shared = self.shared();
        let list = &shared.memory.staging.classes[class];
        shared.adopt_blocks(class);
        let mut guard = list.lock();
        if let Some(block) = guard.free.pop() {
            return Ok(Some(block));
        }
        let Some((oldest, stamp)) = guard.busy.pop_front() else { return Ok(None) };
        drop(guard);
        let tracker = self.tracker();
        let finished = match tracker.settle(stamp) {
            Settled::Complete => Ok(true),
            Settled::Pending(event) => tracker.query(&event),
            Settled::Unsealed | Settled::Failed => Ok(false),
        };
        match finished {
            Ok(true) => return Ok(Some(oldest)),
            Ok(false) if tracker.has_failed(stamp.axis) => shared.lose(oldest),
            Ok(false) => list.lock().busy.push_front((oldest, stamp)),
            Err(error) => {
                list.lock().busy.push_front((oldest, stamp));
                return Err(error);
            }
        }
        Ok(None)
    }

    /// A block that nothing uses. Makes one, or waits for one.
    pub(super) fn take_block(self: &Arc<Self>, class: usize) -> Result<Block, NoBlock> {
        let shared = self.shared();
        let list = &shared.memory.staging.classes[class];
        shared.adopt_blocks(class);
        let mut guard = list.lock();
        if let Some(block) = guard.free.pop() {
            return Ok(block);
        }
        let tracker = self.tracker();
        let known = guard.busy.front().is_some_and(|(_, stamp)| tracker.is_complete(*stamp));
        if !known && guard.made < AT_ONCE {
            // Asking about every transfer would cost an event each; one answer frees all before it.
            drop(guard);
            return Ok(self.make_block(class)?);
        }
        let Some((oldest, stamp)) = guard.busy.pop_front() else {
            // All are in the hands of other threads, or there is none yet.
            drop(guard);
            return Ok(self.make_block(class)?);
        };
        let full = guard.made >= CLASSES[class].1;
        drop(guard);
        let mut room = SmallVec::new();
        let finished = if full && !waits_for_nothing() {
            match tracker.wait(stamp) {
                Ok(()) => Ok(true),
                Err(SubmitError::Driver { error, .. }) => Err(error),
                Err(_) => Ok(false),
            }
        } else {
            match tracker.settle(stamp) {
                Settled::Complete => Ok(true),
                Settled::Pending(event) => {
                    let fired = tracker.query(&event);
                    room.push(event);
                    fired
                }
                Settled::Unsealed | Settled::Failed => Ok(false),
            }
        };
        let finished = if is_planted(Bug::StagingReused) { Ok(true) } else { finished };
        match finished {
            Ok(true) => return Ok(oldest),
            // Whether its transfer ends can never be known.
            Ok(false) if tracker.has_failed(stamp.axis) => shared.lose(oldest),
            Ok(false) => {
                list.lock().busy.push_front((oldest, stamp));
                if full && waits_for_nothing() {
                    return Err(NoBlock::Later(Room::of(self, room)));
                }
            }
            Err(error) => {
                list.lock().busy.push_front((oldest, stamp));
                return Err(error.into());
            }
        }
        Ok(self.make_block(class)?)
    }

    fn make_block(&self, class: usize) -> Result<Block, CallError> {
        let bytes = CLASSES[class].0;
        let host = self.link().relaxed(|driver| {
            let mut host = core::ptr::null_mut();
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuMemHostAlloc(&mut host, bytes, 0)) }?;
            Ok(host)
        })?;
        // SAFETY: the block has these bytes, and nobody else knows it yet. Zeroed, so that all of it may be looked at.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        self.shared().memory.staging.classes[class].lock().made += 1;
        add(&self.counters().staging_bytes, bytes as u64);
        Ok(Block { host: host.expose_provenance(), class })
    }
}

impl Shared {
    /// Gives a block back that nothing uses.
    pub(super) fn free(&self, block: Block) {
        self.memory.staging.classes[block.class].lock().free.push(block);
    }

    /// Keeps a block until its transfer has finished.
    pub(super) fn busy(&self, block: Block, stamp: Stamp) {
        self.memory.staging.classes[block.class].lock().busy.push_back((block, stamp));
    }

    /// A block whose transfer was refused or failed. A failed call may have queued the copy all the same: then it is
    /// free behind everything that the stream holds now.
    fn unsure(&self, stream: &Stream, block: Block, error: &Across) {
        let queued = matches!(
            error,
            Across::Failed(_, SubmitError::Driver { step: simtile_hazard::Step::Enqueue, .. })
        );
        if !queued {
            self.memory.staging.classes[block.class].lock().free.push(block);
            return;
        }
        self.unsure_block(stream, block);
    }

    /// A block whose copy may have been queued by a call that failed.
    pub(super) fn unsure_block(&self, stream: &Stream, block: Block) {
        match stream.mark(true) {
            Ok(event) => self.busy(block, event.stamp()),
            Err(_) => self.lose(block),
        }
    }

    /// Keeps a block for ever, and counts it.
    fn lose(&self, block: Block) {
        if self.link.usable().is_ok() {
            add(&self.link.counters.failed_frees, 1);
            add(&self.link.counters.leaked_bytes, block.bytes() as u64);
            sub(&self.link.counters.staging_bytes, block.bytes() as u64);
        }
    }

    /// Takes over the blocks that an earlier handle of this CUDA context left.
    fn adopt_blocks(&self, class: usize) {
        let list = &self.memory.staging.classes[class];
        if core::mem::replace(&mut list.lock().adopted, true) {
            return;
        }
        let Some(id) = self.link.id() else { return };
        let key = (self.link.driver(), self.link.cu_ctx(), id, class);
        let mine = |left: &mut Left| (left.driver, left.context, left.id, left.class) == key;
        let found: Vec<Left> = LEFT.lock().extract_if(.., mine).collect();
        let mut list = list.lock();
        for left in found {
            add(&self.link.counters.staging_bytes, CLASSES[class].0 as u64);
            list.made += 1;
            list.free.push(Block { host: left.host, class });
        }
    }

    /// Leaves the blocks whose transfers have finished for the next handle of this CUDA context, if it may go on without one.
    pub(super) fn end_staging(&self, may_go_on: bool) {
        for class in &self.memory.staging.classes {
            let mut class = class.lock();
            let (free, busy) = (core::mem::take(&mut class.free), core::mem::take(&mut class.busy));
            drop(class);
            if !may_go_on {
                // Its memory goes with the context.
                continue;
            }
            for block in free {
                self.leave_block(&block);
            }
            for (block, stamp) in busy {
                let finished = match self.tracker.settle(stamp) {
                    Settled::Complete => true,
                    Settled::Pending(event) => self.tracker.query(&event).unwrap_or(false),
                    Settled::Unsealed | Settled::Failed => false,
                };
                // Still in use by a stream that is not ours: nobody may have it again.
                if finished {
                    self.leave_block(&block);
                }
            }
        }
    }

    fn leave_block(&self, block: &Block) {
        if let Some(id) = self.link.id()
            && self.link.usable().is_ok()
        {
            let (driver, context) = (self.link.driver(), self.link.cu_ctx());
            LEFT.lock().push(Left { driver, context, id, class: block.class, host: block.host });
        }
    }

    /// The CUDA context has ended, and its id never comes back.
    pub(crate) fn forget_left(&self) {
        let Some(id) = self.link.id() else { return };
        let key = (self.link.driver(), self.link.cu_ctx(), id);
        LEFT.lock().retain(|left| (left.driver, left.context, left.id) != key);
    }
}

/// Blocks of a driver's contexts that wait for a next handle.
#[cfg(test)]
pub(crate) fn left_of(driver: Driver) -> usize {
    LEFT.lock().iter().filter(|left| left.driver == driver).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceBuffer, drain_background};
    use simtile_sim::Simulator;
    use simtile_sync::Arc;
    use std::time::Duration;

    /// Uses a staging block, then lets everything go.
    fn use_and_end(context: Arc<Context>) {
        let stream = context.new_stream().unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 16]).unwrap();
        stream.synchronize().unwrap();
        drop((buffer, stream, context));
        assert!(drain_background(Duration::from_secs(10)));
    }

    #[test]
    fn blocks_are_left_to_contexts_that_go_on_and_to_no_others() {
        let sim = Simulator::builder().quiet().build();
        let device = Device::new(sim.driver(), 0).unwrap();
        for _ in 0..20 {
            use_and_end(device.create_context().unwrap());
        }
        assert_eq!(left_of(sim.driver()), 0, "a created context takes its memory with it");
        use_and_end(device.primary_context().unwrap());
        assert_eq!(left_of(sim.driver()), 0, "nobody else retained the primary one");
        // Somebody else does.
        let mut raw = CUcontext::NULL;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(sim.driver(), cuDevicePrimaryCtxRetain(&mut raw, device.cu_device())) }.unwrap();
        use_and_end(device.primary_context().unwrap());
        let left = left_of(sim.driver());
        assert!(left > 0);
        use_and_end(device.primary_context().unwrap());
        assert_eq!(left_of(sim.driver()), left, "the next handle took them over");
        // SAFETY: it was retained above.
        unsafe { call!(sim.driver(), cuDevicePrimaryCtxRelease(device.cu_device())) }.unwrap();
        use_and_end(device.primary_context().unwrap());
        assert!(left_of(sim.driver()) <= left, "what an ended context had is not used again");
        assert_eq!((sim.holdings().contexts, sim.holdings().pinned_bytes), (0, 0));
        assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    }
}
