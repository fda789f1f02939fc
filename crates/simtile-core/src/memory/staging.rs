//! Pinned staging: where host memory of users meets the device.
//!
//! An upload is copied into pinned blocks at submission and goes to the device from there; a download comes into
//! pinned blocks and is copied out after it has succeeded. So the device never touches a user's memory.
//!
//! Blocks come in two sizes and are reused; each carries an event recorded behind its last transfer. Freeing pinned
//! memory stalls the whole context, so blocks are kept until the context ends. A context that outlives its last handle
//! here (a primary context that others retain too) leaves them for the next handle of the same CUDA context.

use crate::Context;
use crate::context::{add, query};
use crate::error::CallError;
use core::ffi::c_void;
use simtile_driver::sys::*;
use simtile_driver::{Driver, call};
use simtile_sync::Mutex;
use std::collections::VecDeque;

/// Sizes of the two classes of blocks, and how many of each may exist before a taker waits for a busy one.
const CLASSES: [(usize, usize); 2] = [(64 << 10, 64), (1 << 20, 32)];

/// Downloads in flight at once.
const PIPELINE: usize = 4;

#[derive(Default)]
pub(super) struct Staging {
    classes: [Mutex<Class>; 2],
}

#[derive(Default)]
struct Class {
    free: Vec<Block>,
    busy: VecDeque<Block>,
    /// Blocks made, wherever they are now.
    made: usize,
    /// Whether blocks left behind by an earlier handle of this CUDA context were looked for.
    adopted: bool,
}

/// A pinned block.
struct Block {
    host: usize,
    class: usize,
    /// Recorded behind the block's last transfer.
    event: CUevent,
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

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

impl Block {
    fn bytes(&self) -> usize {
        CLASSES[self.class].0
    }

    fn pointer(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.host)
    }
}

/// The class whose blocks suit a transfer of this size.
fn class_for(bytes: usize) -> usize {
    usize::from(bytes > CLASSES[0].0)
}

impl Context {
    /// Queues a copy of host bytes to the device. The bytes are not read after the call.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes, which may be uninitialised; `target..target + bytes` is inside one live
    /// allocation; `stream` is alive and follows all uses of it.
    pub(crate) unsafe fn upload(
        &self,
        target: CUdeviceptr,
        source: *const u8,
        bytes: usize,
        stream: CUstream,
    ) -> Result<(), CallError> {
        let mut done = 0;
        while done < bytes {
            let block = self.take_block(class_for(bytes - done))?;
            let n = block.bytes().min(bytes - done);
            let host = block.pointer();
            // SAFETY: the block is ours alone and has `n` bytes; the source is readable (the caller's).
            unsafe { source.add(done).copy_to_nonoverlapping(host, n) };
            let copied = self.with_current(|driver| {
                let (to, from) = (target + done as u64, host.cast::<c_void>());
                // SAFETY: the block stays until its event has happened; the target is live (the caller's).
                unsafe { call!(driver, cuMemcpyHtoDAsync(to, from, n, stream)) }
            });
            // Also behind a failed call: it may have queued something all the same.
            let settled = self.settle_block(block, stream);
            copied?;
            settled?;
            done += n;
        }
        Ok(())
    }

    /// Copies device bytes to the host and waits. On an error some bytes of `target` may have been written.
    ///
    /// # Safety
    /// `target` is writable for `bytes` bytes; the rest as [`Context::upload`].
    pub(crate) unsafe fn download(
        &self,
        target: *mut u8,
        source: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> Result<(), CallError> {
        let mut flying: VecDeque<(Block, usize, usize)> = VecDeque::new();
        let mut queued = 0;
        let mut outcome = Ok(());
        while queued < bytes && outcome.is_ok() {
            if flying.len() == PIPELINE
                && let Some((block, offset, n)) = flying.pop_front()
            {
                // SAFETY: offset and length lie inside the target.
                outcome = unsafe { self.land(block, target.add(offset), n) };
                continue;
            }
            outcome = self.take_block(class_for(bytes - queued)).and_then(|block| {
                let n = block.bytes().min(bytes - queued);
                let copied = self.with_current(|driver| {
                    let (to, from) = (block.pointer().cast(), source + queued as u64);
                    // SAFETY: the block stays until its event has happened; the source is live (the caller's).
                    unsafe {
                        call!(driver, cuMemcpyDtoHAsync(to, from, n, stream))?;
                        call!(driver, cuEventRecord(block.event, stream))
                    }
                });
                if let Err(error) = copied {
                    // It may have queued something: the block may be used again only behind that.
                    let _ = self.settle_block(block, stream);
                    return Err(error);
                }
                flying.push_back((block, queued, n));
                queued += n;
                Ok(())
            });
        }
        for (block, offset, n) in flying {
            match outcome {
                // SAFETY: offset and length lie inside the target.
                Ok(()) => outcome = unsafe { self.land(block, target.add(offset), n) },
                // Recorded already; reused once it has landed.
                Err(_) => self.memory.staging.classes[block.class].lock().busy.push_back(block),
            }
        }
        outcome
    }

    /// Waits for a block's transfer and copies it out.
    ///
    /// # Safety
    /// `target` is writable for `n` bytes, and the transfer wrote the first `n` bytes of the block.
    unsafe fn land(&self, block: Block, target: *mut u8, n: usize) -> Result<(), CallError> {
        // SAFETY: the event is alive; the context is current.
        let arrived = self.with_current(|driver| unsafe { call!(driver, cuEventSynchronize(block.event)) });
        let mut class = self.memory.staging.classes[block.class].lock();
        if let Err(error) = arrived {
            class.busy.push_back(block);
            return Err(error);
        }
        drop(class);
        // SAFETY: the transfer has finished, the block is ours alone, the target is writable.
        unsafe { block.pointer().copy_to_nonoverlapping(target, n) };
        self.memory.staging.classes[block.class].lock().free.push(block);
        Ok(())
    }

    /// A block that nothing uses.
    fn take_block(&self, class: usize) -> Result<Block, CallError> {
        let list = &self.memory.staging.classes[class];
        self.adopt_blocks(class);
        let mut guard = list.lock();
        if let Some(block) = guard.free.pop() {
            return Ok(block);
        }
        if let Some(oldest) = guard.busy.pop_front() {
            let full = guard.made >= CLASSES[class].1;
            drop(guard);
            let finished = self.with_current(|driver| {
                // SAFETY: the event is alive; the context is current.
                unsafe {
                    if full {
                        call!(driver, cuEventSynchronize(oldest.event))?;
                        return Ok(true);
                    }
                    query(driver, oldest.event)
                }
            });
            match finished {
                Ok(true) => return Ok(oldest),
                Ok(false) => list.lock().busy.push_front(oldest),
                Err(error) => {
                    list.lock().busy.push_front(oldest);
                    return Err(error);
                }
            }
        } else {
            // All are in the hands of other threads, or there is none yet.
            drop(guard);
        }
        self.make_block(class)
    }

    fn make_block(&self, class: usize) -> Result<Block, CallError> {
        let bytes = CLASSES[class].0;
        let event = self.take_event()?;
        let host = self.with_current(|driver| {
            let mut host = core::ptr::null_mut();
            // SAFETY: the out-pointer is valid for the call; the context is current.
            unsafe { call!(driver, cuMemHostAlloc(&mut host, bytes, 0)) }?;
            Ok(host)
        });
        match host {
            Ok(host) => {
                self.memory.staging.classes[class].lock().made += 1;
                add(&self.counters.staging_bytes, bytes as u64);
                Ok(Block { host: host.expose_provenance(), class, event })
            }
            Err(error) => {
                self.give_event(event);
                Err(error)
            }
        }
    }

    /// Records a block's event behind its transfer and keeps it for reuse. A block whose end cannot be known is
    /// kept for ever and counted.
    fn settle_block(&self, block: Block, stream: CUstream) -> Result<(), CallError> {
        // SAFETY: event and stream are alive; the context is current.
        let record =
            || self.with_current(|driver| unsafe { call!(driver, cuEventRecord(block.event, stream)) });
        match record().or_else(|_| record()) {
            Ok(()) => {
                self.memory.staging.classes[block.class].lock().busy.push_back(block);
                Ok(())
            }
            Err(error) => {
                if self.usable().is_ok() {
                    add(&self.counters.failed_frees, 1);
                    add(&self.counters.leaked_bytes, block.bytes() as u64);
                }
                Err(error)
            }
        }
    }

    /// Takes over the blocks that an earlier handle of this CUDA context left.
    fn adopt_blocks(&self, class: usize) {
        let list = &self.memory.staging.classes[class];
        if core::mem::replace(&mut list.lock().adopted, true) {
            return;
        }
        let Some(id) = self.cu_ctx_id() else { return };
        let key = (self.driver(), self.cu_ctx(), id, class);
        let mine = |left: &mut Left| (left.driver, left.context, left.id, left.class) == key;
        let found: Vec<Left> = LEFT.lock().extract_if(.., mine).collect();
        for left in found {
            match self.take_event() {
                Ok(event) => {
                    add(&self.counters.staging_bytes, CLASSES[class].0 as u64);
                    let mut list = list.lock();
                    list.made += 1;
                    list.free.push(Block { host: left.host, class, event });
                }
                Err(_) => LEFT.lock().push(left),
            }
        }
    }

    /// Leaves the blocks whose transfers have finished for the next handle of this CUDA context. If the CUDA context
    /// ends now, they end with it, and its id never comes back.
    pub(super) fn end_staging(&self) {
        for class in &self.memory.staging.classes {
            let mut class = class.lock();
            let (free, busy) = (core::mem::take(&mut class.free), core::mem::take(&mut class.busy));
            drop(class);
            for block in free {
                self.leave(block);
            }
            for block in busy {
                // SAFETY: the event is alive; the context is current.
                match self.with_current(|driver| unsafe { query(driver, block.event) }) {
                    Ok(true) => self.leave(block),
                    // Still in use by a stream that is not ours: nobody may have it again.
                    _ => self.destroy_event(block.event),
                }
            }
        }
    }

    fn leave(&self, block: Block) {
        self.destroy_event(block.event);
        if let Some(id) = self.cu_ctx_id()
            && self.usable().is_ok()
        {
            let (driver, context) = (self.driver(), self.cu_ctx());
            LEFT.lock().push(Left { driver, context, id, class: block.class, host: block.host });
        }
    }
}
