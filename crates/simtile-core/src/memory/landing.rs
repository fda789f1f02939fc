//! Host values that come in through staging blocks, piece by piece.

use super::StagingBlock;
use super::part::distinct;
use crate::Submission;
use crate::error::MemoryError;
use core::fmt;
use core::mem::MaybeUninit;
use simtile_types::DeviceCopy;
use std::collections::VecDeque;

/// Values on their way to the host. Pieces land in the order in which they were queued.
pub struct HostLanding<T> {
    name: String,
    values: Vec<MaybeUninit<T>>,
    flying: VecDeque<(StagingBlock, usize)>,
    landed: usize,
}

impl<T: DeviceCopy> HostLanding<T> {
    /// Room for so many values. `name` stands for the source in errors.
    ///
    /// # Errors
    /// [`MemoryError::SizeOverflow`] if the host has not so much memory.
    pub fn new(name: impl Into<String>, len: usize) -> Result<Self, MemoryError> {
        let mut values = Vec::new();
        values.try_reserve_exact(len).map_err(|_| MemoryError::SizeOverflow {
            count: len,
            element_bytes: size_of::<T>(),
            limit: isize::MAX as usize,
        })?;
        // SAFETY: there is room for them, and they need not be initialised. (`resize` would visit each in a build that is not optimised.)
        unsafe { values.set_len(len) };
        Ok(Self { name: name.into(), values, flying: VecDeque::new(), landed: 0 })
    }

    /// Bytes of all values.
    pub fn num_bytes(&self) -> usize {
        self.values.len() * size_of::<T>()
    }

    /// Bytes that were queued; `usize::MAX` stands for more.
    pub fn queued(&self) -> usize {
        self.flying.iter().fold(self.landed, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Pieces that have not landed.
    pub fn pieces(&self) -> usize {
        self.flying.len()
    }

    /// Adds the block into which the next `bytes` bytes were queued. More than there is room for, or than the block has, are refused when
    /// they would land.
    pub fn push(&mut self, block: StagingBlock, bytes: usize) {
        self.flying.push_back((block, bytes));
    }

    /// The transfer that lands next, and its bytes.
    pub fn next(&self) -> Option<(&Submission, usize)> {
        let (block, bytes) = self.flying.front()?;
        Some((block.flying()?, *bytes))
    }

    /// Copies the next piece out, if its transfer has finished. Whether it had.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] if there is no room for it; the failure of the transfer, or of what it followed.
    pub fn land(&mut self) -> Result<bool, MemoryError> {
        let Some((block, bytes)) = self.flying.front() else { return Ok(true) };
        let Some(source) = block.idle()? else { return Ok(false) };
        // (At the end of the address space it is still too much.)
        let end = self.landed.saturating_add(*bytes);
        if end > self.num_bytes() || *bytes > block.len() {
            let (buffer, len) = (self.name.clone(), self.num_bytes());
            return Err(MemoryError::OutOfRange { buffer, start: self.landed, end, len });
        }
        let target = self.values.as_mut_ptr().cast::<u8>();
        // SAFETY: the transfer wrote so many bytes of the block, which is ours alone; the values have room for them.
        unsafe { source.copy_to_nonoverlapping(target.add(self.landed), *bytes) };
        self.landed = end;
        self.flying.pop_front();
        Ok(true)
    }

    /// The values.
    ///
    /// # Errors
    /// [`MemoryError::InvalidElement`]; [`MemoryError::LengthMismatch`] if not all of them have landed.
    pub fn finish(self) -> Result<Vec<T>, MemoryError> {
        let (expected, actual, count) = (self.num_bytes(), self.landed, self.values.len());
        if expected != actual {
            return Err(MemoryError::LengthMismatch {
                buffer: self.name,
                argument: "landed bytes",
                expected,
                actual,
            });
        }
        for index in 0..distinct::<T>(count) {
            // SAFETY: all bytes were written (of values of no bytes, nothing needs writing).
            if !unsafe { T::is_valid(self.values.as_ptr().cast::<T>().add(index)) } {
                let type_name = core::any::type_name::<T>();
                return Err(MemoryError::InvalidElement { buffer: self.name, index, type_name });
            }
        }
        let mut values = core::mem::ManuallyDrop::new(self.values);
        let (pointer, len, capacity) = (values.as_mut_ptr(), values.len(), values.capacity());
        // SAFETY: a vector of the same layout, all of whose elements are written and valid.
        Ok(unsafe { Vec::from_raw_parts(pointer.cast(), len, capacity) })
    }
}

impl<T> fmt::Debug for HostLanding<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostLanding")
            .field("of", &self.name)
            .field("len", &self.values.len())
            .field("landed_bytes", &self.landed)
            .finish_non_exhaustive()
    }
}
