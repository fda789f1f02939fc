//! Staging blocks on loan, for transfers that may not wait for a free one.
//!
//! [`DeviceBuffer::from_slice`](crate::DeviceBuffer::from_slice) and its like wait for blocks themselves. Whoever polls takes blocks
//! here, one a piece, and is told what to wait for when there is none.

use super::Part;
use super::staging::{Block, class_for};
use crate::error::{Family, MemoryError, OnStream};
use crate::stream::{Submission, SubmitBuilder, Touch};
use crate::{Context, DeviceBufferView, DeviceBufferViewMut, Stream};
use core::fmt;
use simtile_driver::call;
use simtile_hazard::{Mode, Stamp};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// A pinned block that nobody else has. Dropping it gives it back; while its transfer runs, to those that are in use.
pub struct StagingBlock {
    block: Option<Block>,
    context: Arc<Context>,
    /// Of the transfer that was queued last.
    flying: Option<(Stamp, Submission)>,
}

impl Context {
    /// A free block that suits so many bytes (more than a block has come in pieces); `None` if none is free, which
    /// [`Context::make_staging_block`] changes. Never waits for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn try_staging_block(self: &Arc<Self>, bytes: usize) -> Result<Option<StagingBlock>, MemoryError> {
        let on = || format!("staging of {self}");
        self.usable().map_err(|error| MemoryError::from_call(error, on()))?;
        let block = self.free_block(class_for(bytes)).map_err(|error| MemoryError::from_call(error, on()))?;
        Ok(block.map(|block| StagingBlock { block: Some(block), context: self.clone(), flying: None }))
    }

    /// Makes another block that suits so many bytes, if there may be more, else waits for one in use. Pinning memory may take
    /// long.
    ///
    /// # Errors
    /// The driver's. [`StreamError::QueueFull`](crate::StreamError::QueueFull) instead of waiting, [where that is said](crate::without_waiting).
    pub fn make_staging_block(self: &Arc<Self>, bytes: usize) -> Result<(), MemoryError> {
        let on = || format!("staging of {self}");
        let block = self.take_block(class_for(bytes)).map_err(|error| error.explain(on))?;
        drop(StagingBlock { block: Some(block), context: self.clone(), flying: None });
        Ok(())
    }
}

impl StagingBlock {
    /// Its size.
    pub fn len(&self) -> usize {
        self.block.as_ref().map_or(0, Block::bytes)
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The transfer that was queued last.
    pub fn flying(&self) -> Option<&Submission> {
        self.flying.as_ref().map(|(_, done)| done)
    }

    /// Where its bytes are, if no transfer runs.
    pub(super) fn idle(&self) -> Result<Option<*mut u8>, MemoryError> {
        let idle = match &self.flying {
            Some((_, done)) => done.is_complete()?,
            None => true,
        };
        Ok(self.block.as_ref().filter(|_| idle).map(Block::pointer))
    }
}

impl Drop for StagingBlock {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        match self.flying.take() {
            Some((stamp, _)) => self.context.shared().busy(block, stamp),
            None => self.context.shared().free(block),
        }
    }
}

impl fmt::Debug for StagingBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingBlock({} bytes)", self.len())
    }
}

impl SubmitBuilder<'_> {
    /// Copies `bytes` bytes of `source`, from byte `from` on, into the block, and queues their copy to the same place in the
    /// target, which is as long as the source. The block must not have a transfer in flight.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`] if the sides differ or the block is too small, [`MemoryError::OutOfRange`], else as
    /// [`SubmitBuilder::copy`].
    pub fn upload<T: DeviceCopy>(
        self,
        block: &mut StagingBlock,
        source: &[T],
        target: &DeviceBufferViewMut<'_, T>,
        from: usize,
        bytes: usize,
    ) -> Result<Submission, MemoryError> {
        let part = target.part();
        part.same_len("source", part.len, source.len())?;
        let raw = block.usable_for(&part, from, bytes)?;
        // SAFETY: the block is ours alone and has room; the range is inside the source. Padding is copied as it is.
        unsafe { source.as_ptr().cast::<u8>().add(from).copy_to_nonoverlapping(raw, bytes) };
        let address = part.allocation.address() + (part.offset + from) as u64;
        self.transfer(block, &part, (from, bytes), Mode::Write, |driver, stream| {
            // SAFETY: the block stays until the copy has finished; the target is live and has the range.
            unsafe { call!(driver, cuMemcpyHtoDAsync(address, raw.cast(), bytes, stream)) }
        })
    }

    /// Queues a copy of `bytes` bytes of the source, from byte `from` on, into the block. [`HostLanding`](crate::HostLanding)
    /// takes them out when it has finished.
    ///
    /// # Errors
    /// As [`SubmitBuilder::upload`].
    pub fn download<T: DeviceCopy>(
        self,
        source: DeviceBufferView<'_, T>,
        block: &mut StagingBlock,
        from: usize,
        bytes: usize,
    ) -> Result<Submission, MemoryError> {
        let part = source.part();
        let raw = block.usable_for(&part, from, bytes)?;
        let address = part.allocation.address() + (part.offset + from) as u64;
        self.awaited().transfer(block, &part, (from, bytes), Mode::Read, |driver, stream| {
            // SAFETY: the block stays until the copy has finished; the source is live and has the range.
            unsafe { call!(driver, cuMemcpyDtoHAsync(raw.cast(), address, bytes, stream)) }
        })
    }

    fn transfer<T>(
        self,
        block: &mut StagingBlock,
        part: &Part<'_, T>,
        (from, bytes): (usize, usize),
        mode: Mode,
        copy: impl FnOnce(
            simtile_driver::Driver,
            simtile_driver::sys::CUstream,
        ) -> Result<(), simtile_driver::DriverError>,
    ) -> Result<Submission, MemoryError> {
        // A graph would reach the block at each replay, when somebody else has it.
        self.records_nothing(|| format!("a transfer of {} through a staging block", part.allocation.name()))?;
        let stream: &Arc<Stream> = self.stream();
        if *block.context != **stream.context() {
            return Err(MemoryError::from_stream(crate::StreamError::OtherContext {
                user: stream.to_string(),
                user_context: stream.context().to_string(),
                used: "a staging block".into(),
                used_context: block.context.to_string(),
            }));
        }
        let mut called = false;
        let start = part.offset + from;
        let touch = Touch { start, end: start + bytes, ..part.access_of(mode) };
        let outcome: Result<Submission, MemoryError> = self.touch(touch).run(
            bytes > 0,
            || part.allocation.name(),
            |driver, raw| {
                called = true;
                copy(driver, raw)
            },
        );
        match &outcome {
            Ok(done) => block.flying = done.stamp().map(|stamp| (stamp, done.clone())),
            // A call that failed may have queued the copy all the same.
            Err(_) if called => {
                if let Some(raw) = block.block.take() {
                    block.context.shared().unsure_block(stream, raw);
                }
            }
            Err(_) => {}
        }
        outcome
    }
}

impl StagingBlock {
    /// Where its bytes are, if it can take these bytes of a part now.
    fn usable_for<T>(&self, part: &Part<'_, T>, from: usize, bytes: usize) -> Result<*mut u8, MemoryError> {
        part.same_len("staging block", bytes.min(self.len()), bytes)?;
        if from.checked_add(bytes).is_none_or(|end| end > part.num_bytes()) {
            return Err(part.out_of_range(from, from.saturating_add(bytes)));
        }
        self.idle()?.ok_or_else(|| MemoryError::Shape {
            buffer: "a staging block".into(),
            what: "its transfer still runs".into(),
        })
    }
}
