//! Bytes that several pieces of work use in turn, under the borrow rules.
//!
//! An arena hands out disjoint exclusive views, one behind the other, that borrow it; only when none is left can it begin again
//! from its first byte ([`Arena::begin`]). Graphs that are captured with views of one arena, one after the other, so use the same bytes.
//! What they do to them is tracked as always: by bytes. Their replays write what they share, so one of them runs at a time.
//!
//! Where the device has virtual memory management, an arena grows in place and is as large as the largest use of it. Elsewhere, and
//! with a capacity that is given, it is made of blocks: what does not fit into those that there are gets one of its own.

use super::part::Part;
use super::view::DeviceBufferViewMut;
use super::vmm::{Mapped, align_size};
use super::{Allocation, Owner};
use crate::error::{MemoryError, On};
use crate::{Context, Stream};
use core::fmt;
use simtile_sync::{Arc, Mutex};
use simtile_types::DeviceCopy;

/// What every view begins at a multiple of, as allocations of CUDA do.
const ALIGN: usize = 256;

/// See the module's documentation.
pub struct Arena {
    context: Arc<Context>,
    /// Bytes of memory come in multiples of this; 0: of blocks.
    granularity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None of them goes, and none moves, before the arena does.
    blocks: Vec<Block>,
}

struct Block {
    owner: Owner,
    /// Bytes that may be handed out, if need be after growing.
    most: usize,
    used: usize,
}

impl Arena {
    /// An empty arena that grows.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> Result<Self, MemoryError> {
        let granularity = match context.allocation_granularity() {
            Ok(granularity) => granularity,
            Err(MemoryError::Unsupported { .. }) => 0,
            Err(error) => return Err(error),
        };
        let arena = Self { context: context.clone(), granularity, state: Mutex::default() };
        if granularity > 0 {
            // Addresses for all memory of the device; they cost none.
            let info = context.raw_memory_info().on::<MemoryError>(|| context.to_string())?;
            let range = context.reserve(align_size(info.total, granularity)?)?;
            let (base, most) = (range.base(), range.num_bytes());
            let owner = Allocation::mapped_at(Mapped::new(range, &[])?, base, most);
            owner.set_label("arena");
            arena.state.lock().blocks.push(Block { owner, most, used: 0 });
        }
        Ok(arena)
    }

    /// An arena of exactly so many bytes, allocated on `stream`; what does not fit gets blocks of its own.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`], or the driver's.
    pub fn with_capacity(stream: &Arc<Stream>, bytes: usize) -> Result<Self, MemoryError> {
        let arena = Self { context: stream.context().clone(), granularity: 0, state: Mutex::default() };
        if bytes > 0 {
            let block = arena.block(stream, bytes)?;
            arena.state.lock().blocks.push(block);
        }
        Ok(arena)
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Bytes of device memory that it has.
    pub fn num_bytes(&self) -> usize {
        self.state.lock().blocks.iter().map(|block| block.owner.size()).sum()
    }

    /// Begins again from the first byte. Nobody has a view any more; what graphs do to the bytes stays tracked.
    pub fn begin(&mut self) {
        for block in &mut self.state.get_mut().blocks {
            block.used = 0;
        }
    }

    fn block(&self, stream: &Arc<Stream>, bytes: usize) -> Result<Block, MemoryError> {
        let most = bytes.checked_next_multiple_of(ALIGN).ok_or_else(|| overflow(bytes, 1))?;
        let owner = Allocation::allocate_from(stream, None, most)?;
        owner.set_label("arena");
        Ok(Block { owner, most, used: 0 })
    }

    /// The next `len` elements, which nobody else gets before [`Arena::begin`]. Their content is what was there last: whoever records
    /// work with them writes them first. Memory that is missing is allocated on `stream`.
    ///
    /// # Errors
    /// [`MemoryError::SizeOverflow`], [`MemoryError::OutOfMemory`], or the driver's.
    ///
    /// # Safety
    /// Every element is written by the device before it is read.
    pub unsafe fn take<T: DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        len: usize,
    ) -> Result<DeviceBufferViewMut<'_, T>, MemoryError> {
        let size = size_of::<T>();
        let bytes = len.checked_mul(size).filter(|&bytes| bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| overflow(len, size))?;
        let room = bytes.checked_next_multiple_of(ALIGN).ok_or_else(|| overflow(len, size))?;
        let mut state = self.state.lock();
        let fits = |block: &Block| block.most - block.used >= room;
        let at = match state.blocks.iter().position(fits) {
            Some(at) => at,
            None => {
                // Allocating may wait for room; nobody is to wait for this lock meanwhile.
                drop(state);
                let block = self.block(stream, room.max(ALIGN))?;
                state = self.state.lock();
                state.blocks.push(block);
                state.blocks.len() - 1
            }
        };
        let Some(block) = state.blocks.get_mut(at) else { return Err(overflow(len, size)) };
        if let Some(mapped) = block.owner.mapped() {
            let (there, wanted) = (mapped.num_bytes(), align_size(block.used + room, self.granularity)?);
            if wanted > there {
                mapped.add(there, self.context.physical_memory(wanted - there)?)?;
            }
        }
        let offset = block.used;
        block.used += room;
        let allocation: *const Allocation = &raw const *block.owner;
        drop(state);
        // SAFETY: the allocation is behind a counted pointer, which the arena keeps as long as it lives; blocks are never taken out.
        let allocation = unsafe { &*allocation };
        // Nobody else has these bytes: `used` went past them, and begins again only when nothing borrows the arena.
        Ok(DeviceBufferViewMut::of(Part::new(allocation, offset, len)))
    }
}

fn overflow(count: usize, element_bytes: usize) -> MemoryError {
    MemoryError::SizeOverflow { count, element_bytes, limit: isize::MAX as usize }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.num_bytes()).finish_non_exhaustive()
    }
}
