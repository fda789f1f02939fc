//! Typed device buffers.

use super::staging::Place;
use super::{Allocation, AllocationId};
use crate::context::SubmitError;
use crate::error::MemoryError;
use crate::stream::Submit;
use crate::{Context, Stream};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use simtile_driver::call;
use simtile_driver::sys::{CUdeviceptr, CUstream};
use simtile_driver::{Driver, DriverError};
use simtile_hazard::{Access, Mode};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// Most bytes of a fill's pattern that come from the host; the rest is doubled on the device.
const PATTERN: usize = 64 << 10;

/// `len` values of `T` in device memory, with one owner.
///
/// Made on a stream and used on any stream of the same context: every operation names its stream and follows
/// everything that used the buffer before, on whatever stream. That covers copies, fills and launches that take the
/// buffer through [`LaunchArgs::buffer`](crate::LaunchArgs::buffer). Addresses handed out by
/// [`DeviceBuffer::cu_deviceptr`] are outside of it.
///
/// Dropping never waits: the memory is freed behind its last use. A buffer of no bytes makes no driver call, ever.
pub struct DeviceBuffer<T: DeviceCopy> {
    allocation: Arc<Allocation>,
    len: usize,
    marker: PhantomData<T>,
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// A buffer whose content is undefined.
    ///
    /// # Errors
    /// [`MemoryError::SizeOverflow`], [`MemoryError::OutOfMemory`], or the driver's.
    ///
    /// # Safety
    /// Every element is written by the device or the host before it is read.
    pub unsafe fn uninit(stream: &Arc<Stream>, len: usize) -> Result<Self, MemoryError> {
        Self::new(stream, len)
    }

    fn new(stream: &Arc<Stream>, len: usize) -> Result<Self, MemoryError> {
        let limit = isize::MAX as usize;
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= limit)
            .ok_or(MemoryError::SizeOverflow { count: len, element_bytes: size_of::<T>(), limit })?;
        Ok(Self { allocation: Allocation::new(stream, bytes)?, len, marker: PhantomData })
    }

    /// A buffer of zeros (all bytes 0), queued on `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn zeroed(stream: &Arc<Stream>, len: usize) -> Result<Self, MemoryError> {
        let buffer = Self::new(stream, len)?;
        buffer.clear(stream)?;
        Ok(buffer)
    }

    /// A buffer with the content of `source`, queued on `stream`. `source` is not touched after the call.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn from_slice(stream: &Arc<Stream>, source: &[T]) -> Result<Self, MemoryError> {
        let buffer = Self::new(stream, source.len())?;
        buffer.upload(stream, 0, source)?;
        Ok(buffer)
    }

    /// The same as [`DeviceBuffer::from_slice`].
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_slice`].
    pub fn from_host(stream: &Arc<Stream>, source: &[T]) -> Result<Self, MemoryError> {
        Self::from_slice(stream, source)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    pub fn num_bytes(&self) -> usize {
        // The product was checked when the buffer was made.
        self.len * size_of::<T>()
    }

    /// Device address of the first element; 0 if the buffer has no bytes. What is done through it is not ordered with
    /// other uses of the buffer, and it dangles once the buffer is gone.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.allocation.address()
    }

    /// Identity of the allocation, never reused.
    pub fn allocation_id(&self) -> AllocationId {
        self.allocation.id()
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        self.allocation.context()
    }

    /// The name given by [`DeviceBuffer::set_label`].
    pub fn label(&self) -> Option<Arc<str>> {
        self.allocation.label()
    }

    /// Names the buffer in errors, and in the reports of a simulated driver.
    pub fn set_label(&self, label: &str) {
        self.allocation.set_label(label);
    }

    /// As [`DeviceBuffer::set_label`], for chains.
    pub fn with_label(self, label: &str) -> Self {
        self.set_label(label);
        self
    }

    pub(crate) fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Queues a copy of `source` over the whole buffer. `source` is not touched after the call.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], [`MemoryError::OtherContext`], or the driver's. After a driver error part of
    /// the buffer may have been overwritten.
    pub fn copy_from_slice(&mut self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        self.same_len("source", self.len, source.len())?;
        self.upload(stream, 0, source)
    }

    /// Queues a copy of `source` to the elements from `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], else as [`DeviceBuffer::copy_from_slice`].
    pub fn copy_from_slice_at(
        &mut self,
        stream: &Arc<Stream>,
        offset: usize,
        source: &[T],
    ) -> Result<(), MemoryError> {
        self.range(offset, source.len())?;
        self.upload(stream, offset, source)
    }

    /// The same as [`DeviceBuffer::copy_from_slice`].
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from_slice`].
    pub fn copy_from_host(&mut self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        self.copy_from_slice(stream, source)
    }

    /// Waits for everything before on this buffer and gives its content.
    ///
    /// # Errors
    /// [`MemoryError::OtherContext`], [`MemoryError::InvalidElement`], or the driver's; also the failure of work
    /// that was to produce the content.
    pub fn to_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
        self.range_to_vec(stream, 0..self.len)
    }

    /// As [`DeviceBuffer::to_vec`], for some of the elements.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], else as [`DeviceBuffer::to_vec`].
    pub fn range_to_vec(&self, stream: &Arc<Stream>, range: Range<usize>) -> Result<Vec<T>, MemoryError> {
        let Some(count) = range.end.checked_sub(range.start) else {
            return Err(self.out_of_range(range.start, range.end));
        };
        self.range(range.start, count)?;
        let bytes = count * size_of::<T>();
        let mut values: Vec<T> = Vec::new();
        values.try_reserve_exact(count).map_err(|_| MemoryError::SizeOverflow {
            count,
            element_bytes: size_of::<T>(),
            limit: isize::MAX as usize,
        })?;
        let target = values.as_mut_ptr();
        if bytes > 0 {
            self.same_context(stream)?;
            // SAFETY: the vector has room for `count` elements; the range is inside the allocation.
            unsafe { stream.download(target.cast(), &self.place(range.start), bytes) }?;
        } else {
            self.same_context(stream)?;
        }
        for index in 0..distinct::<T>(count) {
            // SAFETY: the download wrote all `count` elements (of no bytes, nothing needs writing).
            if !unsafe { T::is_valid(target.add(index)) } {
                return Err(MemoryError::InvalidElement {
                    buffer: self.allocation.name(),
                    index: range.start + index,
                    type_name: core::any::type_name::<T>(),
                });
            }
        }
        // SAFETY: all elements are written and valid.
        unsafe { values.set_len(count) };
        Ok(values)
    }

    /// The same as [`DeviceBuffer::to_vec`].
    ///
    /// # Errors
    /// As [`DeviceBuffer::to_vec`].
    pub fn to_host_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
        self.to_vec(stream)
    }

    /// Waits for everything before on this buffer and copies its content out. After an error `target` is untouched.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], else as [`DeviceBuffer::to_vec`].
    pub fn copy_to_slice(&self, stream: &Arc<Stream>, target: &mut [T]) -> Result<(), MemoryError> {
        self.same_len("target", self.len, target.len())?;
        self.copy_to_slice_at(stream, 0, target)
    }

    /// As [`DeviceBuffer::copy_to_slice`], for the elements from `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], else as [`DeviceBuffer::to_vec`].
    pub fn copy_to_slice_at(
        &self,
        stream: &Arc<Stream>,
        offset: usize,
        target: &mut [T],
    ) -> Result<(), MemoryError> {
        self.range(offset, target.len())?;
        let values = self.range_to_vec(stream, offset..offset + target.len())?;
        target.copy_from_slice(&values);
        Ok(())
    }

    /// The same as [`DeviceBuffer::copy_to_slice`].
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_to_slice`].
    pub fn copy_to_host(&self, stream: &Arc<Stream>, target: &mut [T]) -> Result<(), MemoryError> {
        self.copy_to_slice(stream, target)
    }

    /// Queues a copy of another buffer of the same length and context over this one.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], [`MemoryError::OtherContext`], or the driver's.
    pub fn copy_from(&mut self, stream: &Arc<Stream>, source: &DeviceBuffer<T>) -> Result<(), MemoryError> {
        self.same_len("source", self.len, source.len)?;
        self.copy_range_from(stream, 0, source, 0..source.len)
    }

    /// Queues a copy of some elements of another buffer to the elements from `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::OtherContext`], or the driver's.
    pub fn copy_range_from(
        &mut self,
        stream: &Arc<Stream>,
        offset: usize,
        source: &DeviceBuffer<T>,
        range: Range<usize>,
    ) -> Result<(), MemoryError> {
        let Some(count) = range.end.checked_sub(range.start) else {
            return Err(source.out_of_range(range.start, range.end));
        };
        source.range(range.start, count)?;
        self.range(offset, count)?;
        let bytes = count * size_of::<T>();
        if bytes == 0 {
            source.same_context(stream)?;
            return self.same_context(stream);
        }
        self.same_context(stream)?;
        source.same_context(stream)?;
        let (to, from) = (self.address_of(offset), source.address_of(range.start));
        let size = size_of::<T>();
        let accesses = [
            self.allocation.access(offset * size, offset * size + bytes, Mode::Write),
            source.allocation.access(range.start * size, range.start * size + bytes, Mode::Read),
        ];
        // SAFETY: both ranges are inside their allocations. They cannot overlap: one buffer is borrowed exclusively.
        self.submit(stream, accesses, &[&self.allocation, &source.allocation], |driver, raw| unsafe {
            call!(driver, cuMemcpyDtoDAsync(to, from, bytes, raw))
        })
    }

    /// Queues setting every element to `value`.
    ///
    /// # Errors
    /// [`MemoryError::OtherContext`], or the driver's.
    pub fn fill(&mut self, stream: &Arc<Stream>, value: T) -> Result<(), MemoryError> {
        let bytes = self.num_bytes();
        if bytes == 0 {
            return self.same_context(stream);
        }
        if let Some(word) = Word::of(&value) {
            let address = self.cu_deviceptr();
            // SAFETY: the allocation has these bytes.
            return self.write_all(stream, |driver, raw| unsafe {
                match word {
                    Word::One(v) => call!(driver, cuMemsetD8Async(address, v, bytes, raw)),
                    Word::Two(v) => call!(driver, cuMemsetD16Async(address, v, bytes / 2, raw)),
                    Word::Four(v) => call!(driver, cuMemsetD32Async(address, v, bytes / 4, raw)),
                }
            });
        }
        // Other sizes: some copies from the host, doubled on the device.
        let first = (PATTERN / size_of::<T>()).clamp(1, self.len);
        let pattern = vec![value; first];
        self.upload(stream, 0, &pattern)?;
        let address = self.cu_deviceptr();
        let mut filled = first * size_of::<T>();
        while filled < bytes {
            let n = filled.min(bytes - filled);
            let target = address + filled as u64;
            // SAFETY: source and target are disjoint ranges of the allocation.
            self.write_all(stream, |driver, raw| unsafe {
                call!(driver, cuMemcpyDtoDAsync(target, address, n, raw))
            })?;
            filled += n;
        }
        Ok(())
    }

    /// Queues setting every byte to 0.
    ///
    /// # Errors
    /// As [`DeviceBuffer::fill`].
    pub fn zero(&mut self, stream: &Arc<Stream>) -> Result<(), MemoryError> {
        self.clear(stream)
    }

    fn clear(&self, stream: &Arc<Stream>) -> Result<(), MemoryError> {
        let (address, bytes) = (self.cu_deviceptr(), self.num_bytes());
        if bytes == 0 {
            return self.same_context(stream);
        }
        // SAFETY: the allocation has these bytes.
        self.write_all(stream, |driver, raw| unsafe {
            call!(driver, cuMemsetD8Async(address, 0, bytes, raw))
        })
    }

    /// The range has been checked.
    fn upload(&self, stream: &Arc<Stream>, offset: usize, source: &[T]) -> Result<(), MemoryError> {
        let bytes = size_of_val(source);
        if bytes == 0 {
            return self.same_context(stream);
        }
        self.same_context(stream)?;
        // SAFETY: the slice is readable; the range is inside the allocation.
        unsafe { stream.upload(&self.place(offset), source.as_ptr().cast(), bytes) }
    }

    /// The bytes from an element on.
    fn place(&self, element: usize) -> Place<'_> {
        let offset = element * size_of::<T>();
        Place { address: self.cu_deviceptr() + offset as u64, allocation: Some((&self.allocation, offset)) }
    }

    /// Submits a call that writes the whole buffer.
    fn write_all(
        &self,
        stream: &Arc<Stream>,
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), MemoryError> {
        self.same_context(stream)?;
        let access = [self.allocation.access(0, self.num_bytes(), Mode::Write), None];
        self.submit(stream, access, &[&self.allocation], calls)
    }

    fn submit(
        &self,
        stream: &Arc<Stream>,
        accesses: [Option<Access<'_>>; 2],
        used: &[&Allocation],
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), MemoryError> {
        let list: smallvec::SmallVec<[Access<'_>; 2]> = accesses.into_iter().flatten().collect();
        let on = || match used {
            [one, other] => format!("{} and {} on {stream}", one.name(), other.name()),
            _ => format!("{} on {stream}", self.allocation.name()),
        };
        let refused = |error: SubmitError| stream.refused::<MemoryError>(error, used, on);
        stream.submit_tracked(&list, Submit::PLAIN, calls).map_err(refused)?;
        Ok(())
    }

    fn same_context(&self, stream: &Stream) -> Result<(), MemoryError> {
        stream.same_context(self.context(), || self.allocation.name()).map_err(MemoryError::from_stream)
    }

    fn address_of(&self, element: usize) -> CUdeviceptr {
        self.cu_deviceptr() + (element * size_of::<T>()) as u64
    }

    fn range(&self, start: usize, count: usize) -> Result<(), MemoryError> {
        match start.checked_add(count) {
            Some(end) if end <= self.len => Ok(()),
            end => Err(self.out_of_range(start, end.unwrap_or(usize::MAX))),
        }
    }

    fn out_of_range(&self, start: usize, end: usize) -> MemoryError {
        MemoryError::OutOfRange { buffer: self.allocation.name(), start, end, len: self.len }
    }

    fn same_len(&self, argument: &'static str, expected: usize, actual: usize) -> Result<(), MemoryError> {
        if expected == actual {
            return Ok(());
        }
        Err(MemoryError::LengthMismatch { buffer: self.allocation.name(), argument, expected, actual })
    }
}

/// How many of `count` values there are to look at: of values without bytes, one stands for all.
pub(crate) fn distinct<T>(count: usize) -> usize {
    if size_of::<T>() == 0 { count.min(1) } else { count }
}

/// A value as what memset can write.
enum Word {
    One(u8),
    Two(u16),
    Four(u32),
}

impl Word {
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

impl<T: DeviceCopy> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("name", &self.allocation.name())
            .field("type", &core::any::type_name::<T>())
            .field("len", &self.len)
            .field("address", &format_args!("{:#x}", self.cu_deviceptr()))
            .field("context", &format_args!("{}", self.context()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(word: Option<Word>) -> Option<usize> {
        word.map(|word| match word {
            Word::One(_) => 1,
            Word::Two(_) => 2,
            Word::Four(_) => 4,
        })
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
