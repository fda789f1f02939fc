//! A stretch of elements of one allocation, and what can be done with it. Buffers and views are made of it.
//!
//! A part says nothing about who may use it: that is what the types around it do by their borrows.

use super::Allocation;
use super::staging::Place;
use crate::Stream;
use crate::error::{MemoryError, OnStream};
use crate::graph::Plain;
use crate::stream::{Reach, Submission, SubmitBuilder, Touch};
use core::marker::PhantomData;
use core::ops::Range;
use simtile_driver::call;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::Mode;
use simtile_hazard::planted::{Bug, is_planted};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// Most bytes of a fill's pattern that come from the host; the rest is doubled on the device.
const PATTERN: usize = 64 << 10;

/// `len` values of `T` from byte `offset` of an allocation on.
pub(crate) struct Part<'a, T> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    marker: PhantomData<*const T>,
}

// SAFETY: a part is a reference and numbers; the elements are on the device.
unsafe impl<T: Send> Send for Part<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Part<'_, T> {}

impl<T> Clone for Part<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Part<'_, T> {}

impl<'a, T> Part<'a, T> {
    /// The caller knows that the bytes are inside the allocation.
    pub(crate) fn new(allocation: &'a Allocation, offset: usize, len: usize) -> Self {
        Self { allocation, offset, len, marker: PhantomData }
    }

    /// Bytes of all elements. The product was checked when the buffer was made.
    #[inline]
    pub(crate) fn num_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Byte after the last.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.offset + self.num_bytes()
    }

    /// First byte; 0 if there are no bytes.
    #[inline]
    pub(crate) fn address(&self) -> CUdeviceptr {
        if self.num_bytes() == 0 { 0 } else { self.allocation.address() + self.offset as u64 }
    }

    pub(crate) fn place(&self) -> Place<'a> {
        let address = self.allocation.address() + self.offset as u64;
        Place { address, allocation: Some((self.allocation, self.offset)) }
    }

    /// Some of the elements.
    pub(crate) fn slice(&self, range: Range<usize>) -> Result<Self, MemoryError> {
        if range.start > range.end || range.end > self.len {
            return Err(self.out_of_range(range.start, range.end));
        }
        let offset = self.offset + range.start * size_of::<T>();
        Ok(Self::new(self.allocation, offset, range.end - range.start))
    }

    /// The elements from `start` on.
    pub(crate) fn slice_at(&self, start: usize, count: usize) -> Result<Self, MemoryError> {
        match start.checked_add(count) {
            Some(end) => self.slice(start..end),
            None => Err(self.out_of_range(start, usize::MAX)),
        }
    }

    pub(crate) fn out_of_range(&self, start: usize, end: usize) -> MemoryError {
        MemoryError::OutOfRange { buffer: self.allocation.name(), start, end, len: self.len }
    }

    pub(crate) fn same_len(
        &self,
        argument: &'static str,
        expected: usize,
        actual: usize,
    ) -> Result<(), MemoryError> {
        if expected == actual {
            return Ok(());
        }
        Err(MemoryError::LengthMismatch { buffer: self.allocation.name(), argument, expected, actual })
    }

    /// Host values reach memory of any context of the stream's driver.
    fn same_driver(&self, stream: &Stream) -> Result<(), MemoryError> {
        stream.reaches(&self.access_of(Mode::Read), Reach::Local).map_err(MemoryError::from_stream)
    }
}

impl<'a, T> Part<'a, T> {
    /// What a submission is told.
    #[inline]
    pub(crate) fn access_of(&self, mode: Mode) -> Touch<'a> {
        let (start, mut end) = (self.offset, self.end());
        if is_planted(Bug::ViewTooShort) && end > start {
            end -= 1;
        }
        Touch { allocation: self.allocation, start, end, mode, stride: None }
    }
}

impl<T: DeviceCopy> Part<'_, T> {
    /// Queues a copy of host values over the part, which has their number of elements.
    pub(crate) fn upload(&self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        self.same_len("source", self.len, source.len())?;
        self.same_driver(stream)?;
        // SAFETY: the slice is readable; the part is inside its allocation and has as many bytes.
        unsafe { stream.upload(&self.place(), source.as_ptr().cast(), size_of_val(source)) }
    }

    /// Waits for the content and gives it. `first` is the number of the first element in errors.
    pub(crate) fn download(&self, stream: &Arc<Stream>, first: usize) -> Result<Vec<T>, MemoryError> {
        self.same_driver(stream)?;
        let count = self.len;
        let mut values: Vec<T> = Vec::new();
        values.try_reserve_exact(count).map_err(|_| MemoryError::SizeOverflow {
            count,
            element_bytes: size_of::<T>(),
            limit: isize::MAX as usize,
        })?;
        let target = values.as_mut_ptr();
        // SAFETY: the vector has room for `count` elements; the part is inside its allocation.
        unsafe { stream.download(target.cast(), &self.place(), self.num_bytes()) }?;
        for index in 0..distinct::<T>(count) {
            // SAFETY: the download wrote all `count` elements (of no bytes, nothing needs writing).
            if !unsafe { T::is_valid(target.add(index)) } {
                return Err(MemoryError::InvalidElement {
                    buffer: self.allocation.name(),
                    index: first + index,
                    type_name: core::any::type_name::<T>(),
                });
            }
        }
        // SAFETY: all elements are written and valid.
        unsafe { values.set_len(count) };
        Ok(values)
    }

    /// Waits for the content and copies it out. After an error `target` is untouched.
    pub(crate) fn copy_out(&self, stream: &Arc<Stream>, target: &mut [T]) -> Result<(), MemoryError> {
        self.same_len("target", self.len, target.len())?;
        target.copy_from_slice(&self.download(stream, 0)?);
        Ok(())
    }

    /// Queues a copy of another part of the same length over this one. Nobody else uses this one.
    pub(crate) fn copy_from(
        &self,
        builder: SubmitBuilder<'_>,
        source: Part<'_, T>,
    ) -> Result<Submission, MemoryError> {
        self.same_len("source", self.len, source.len)?;
        let (to, from, bytes) = (self.address(), source.address(), self.num_bytes());
        let builder = builder.touch(source.access_of(Mode::Read)).touch(self.access_of(Mode::Write));
        let on = || format!("copy of {} to {}", source.allocation.name(), self.allocation.name());
        let (theirs, ours) = (source.allocation.context(), self.allocation.context());
        if **theirs != **ours {
            // Named so, contexts reach each other's memory without a grant.
            let (theirs, ours) = (theirs.cu_ctx(), ours.cu_ctx());
            return builder.reach(Reach::Copy).run(bytes > 0, on, |driver, raw| {
                // SAFETY: both ranges are inside their allocations, and the contexts are theirs.
                unsafe { call!(driver, cuMemcpyPeerAsync(to, ours, from, theirs, bytes, raw)) }
            });
        }
        let builder = builder.reach(Reach::Local).plainly(Plain::Copy { to, from, bytes });
        builder.run(bytes > 0, on, |driver, raw| {
            // SAFETY: both ranges are inside their allocations. They do not overlap: the tracker refuses that.
            unsafe { call!(driver, cuMemcpyDtoDAsync(to, from, bytes, raw)) }
        })
    }

    /// Queues setting every element to `value`.
    pub(crate) fn fill(&self, builder: SubmitBuilder<'_>, value: T) -> Result<Submission, MemoryError> {
        let bytes = self.num_bytes();
        let word = if bytes == 0 { Some(Word::One(0)) } else { Word::of(&value) };
        if let Some(word) = word {
            return self.fill_word(builder, word);
        }
        builder.records_nothing(|| {
            format!("a fill of {} with a value of more than four bytes", self.allocation.name())
        })?;
        // Other sizes: some copies from the host, doubled on the device.
        let first = (PATTERN / size_of::<T>()).clamp(1, self.len);
        let stream = builder.stream().clone();
        let pattern = vec![value; first];
        let start = self.slice(0..first)?;
        let builder = builder.reach(Reach::Local);
        builder.check::<MemoryError>(&[start.access_of(Mode::Write)])?;
        start.upload(&stream, &pattern)?;
        let mut filled = first;
        let mut builder = Some(builder);
        loop {
            let n = filled.min(self.len - filled);
            let target = self.slice(filled..filled + n)?;
            let last = filled + n == self.len;
            let step = match builder.take() {
                Some(builder) => target.copy_from(builder, self.slice(0..n)?)?,
                None => target.copy_from(stream.submit(), self.slice(0..n)?)?,
            };
            if last {
                return Ok(step);
            }
            filled += n;
        }
    }

    pub(crate) fn zero(&self, builder: SubmitBuilder<'_>) -> Result<Submission, MemoryError> {
        self.fill_word(builder, Word::One(0))
    }

    pub(crate) fn fill_word(
        &self,
        builder: SubmitBuilder<'_>,
        word: Word,
    ) -> Result<Submission, MemoryError> {
        let (address, bytes) = (self.address(), self.num_bytes());
        let on = || format!("fill of {}", self.allocation.name());
        let builder = builder.touch(self.access_of(Mode::Write)).reach(Reach::Local);
        builder.plainly(Plain::Fill { to: address, word, bytes }).run(bytes > 0, on, |driver, raw| {
            // SAFETY: the part has these bytes.
            unsafe {
                match word {
                    Word::One(v) => call!(driver, cuMemsetD8Async(address, v, bytes, raw)),
                    Word::Two(v) => call!(driver, cuMemsetD16Async(address, v, bytes / 2, raw)),
                    Word::Four(v) => call!(driver, cuMemsetD32Async(address, v, bytes / 4, raw)),
                }
            }
        })
    }
}

/// How many of `count` values there are to look at: of values without bytes, one stands for all.
pub(crate) fn distinct<T>(count: usize) -> usize {
    if size_of::<T>() == 0 { count.min(1) } else { count }
}

/// A value as what memset can write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    One(u8),
    Two(u16),
    Four(u32),
}

impl Word {
    /// Bytes that are repeated.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Four(_) => 4,
        }
    }

    /// The same pattern in four bytes.
    pub(crate) fn widened(self) -> Self {
        match self {
            Self::One(v) => Self::Four(u32::from_ne_bytes([v; 4])),
            Self::Two(v) => Self::Four(u32::from(v) << 16 | u32::from(v)),
            Self::Four(v) => Self::Four(v),
        }
    }

    /// What graph nodes take.
    pub(crate) fn value(self) -> u32 {
        match self {
            Self::One(v) => v.into(),
            Self::Two(v) => v.into(),
            Self::Four(v) => v,
        }
    }

    /// `None` if the value has padding, or is not a repetition of at most four bytes.
    fn of<T: DeviceCopy>(value: &T) -> Option<Self> {
        if !T::NO_PADDING {
            return None;
        }
        // SAFETY: the value is readable and has no uninitialised byte.
        let bytes =
            unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) };
        let repeats =
            |n: usize| bytes.len().is_multiple_of(n) && bytes.chunks_exact(n).all(|c| c == &bytes[..n]);
        if repeats(1) {
            Some(Self::One(bytes[0]))
        } else if repeats(2) {
            Some(Self::Two(u16::from_ne_bytes([bytes[0], bytes[1]])))
        } else if repeats(4) {
            Some(Self::Four(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(word: Option<Word>) -> Option<usize> {
        word.map(Word::bytes)
    }

    #[test]
    fn memset_takes_repetitions_of_at_most_four_bytes() {
        assert_eq!(bytes_of(Word::of(&0x0707_0707u32)), Some(1));
        assert_eq!(bytes_of(Word::of(&0x0102_0102u32)), Some(2));
        assert_eq!(bytes_of(Word::of(&1.5f32)), Some(4));
        assert_eq!(bytes_of(Word::of(&0u128)), Some(1));
        assert_eq!(bytes_of(Word::of(&0x0000_0001_0000_0001u64)), Some(4));
        assert_eq!(bytes_of(Word::of(&1.5f64)), None);
        assert_eq!(bytes_of(Word::of(&[1u8, 2, 3])), None);
        assert_eq!(bytes_of(Word::of(&(1u8, 2u32))), None);
    }
}
