//! Typed device buffers.

use super::part::Part;
use super::view::{ChunksMut, DeviceBufferView, DeviceBufferViewMut};
use super::{Allocation, MemPool, MemoryLease, Owner, owned_memory, typed_memory};
use crate::Stream;
use crate::error::MemoryError;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use simtile_driver::sys::CUdeviceptr;
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// `len` values of `T` in device memory, with one owner.
///
/// Made on a stream and used on any stream of the same context: every operation names its stream. It follows what
/// conflicts with it on whatever stream; reads, and operations on disjoint ranges, do not conflict. That covers copies,
/// fills and launches that name the buffer ([`Stream::submit`], [`LaunchArgs::buffer`](crate::LaunchArgs::buffer)). Addresses
/// handed out by [`DeviceBuffer::cu_deviceptr`] are outside of it.
///
/// [`DeviceBuffer::view`] and its like borrow parts of it, with the rules of slices.
///
/// Dropping never waits: the memory is given back when its last use has finished. A buffer of no bytes makes no driver call,
/// ever.
pub struct DeviceBuffer<T: DeviceCopy> {
    owner: Owner,
    /// Byte of the allocation that the first element begins at: not 0 only for an import that joined a live allocation.
    offset: usize,
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
        Self::undefined(stream, None, len)
    }

    /// A buffer whose content is undefined, from a pool or from the context.
    pub(super) fn undefined(
        stream: &Arc<Stream>,
        pool: Option<&Arc<MemPool>>,
        len: usize,
    ) -> Result<Self, MemoryError> {
        let limit = isize::MAX as usize;
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= limit)
            .ok_or(MemoryError::SizeOverflow { count: len, element_bytes: size_of::<T>(), limit })?;
        Ok(Self::from_owner_at(Allocation::allocate_from(stream, pool, bytes)?, 0, len))
    }

    pub(super) fn zeroed_from(
        stream: &Arc<Stream>,
        pool: Option<&Arc<MemPool>>,
        len: usize,
    ) -> Result<Self, MemoryError> {
        let mut buffer = Self::undefined(stream, pool, len)?;
        buffer.zero(stream)?;
        Ok(buffer)
    }

    pub(super) fn copied_from(
        stream: &Arc<Stream>,
        pool: Option<&Arc<MemPool>>,
        source: &[T],
    ) -> Result<Self, MemoryError> {
        let buffer = Self::undefined(stream, pool, source.len())?;
        buffer.part().upload(stream, source)?;
        Ok(buffer)
    }

    /// The allocation has `len` elements from byte `offset` on.
    pub(super) fn from_owner_at(owner: Owner, offset: usize, len: usize) -> Self {
        Self { owner, offset, len, marker: PhantomData }
    }

    /// Handle, offset in bytes, length.
    pub(super) fn into_parts(self) -> (Owner, usize, usize) {
        (self.owner, self.offset, self.len)
    }

    /// One more handle of the same elements.
    pub(super) fn another(&self) -> (Owner, usize, usize) {
        (self.owner.clone(), self.offset, self.len)
    }

    pub(super) fn owner_mut(&mut self) -> &mut Owner {
        &mut self.owner
    }

    /// A buffer of zeros (all bytes 0), queued on `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn zeroed(stream: &Arc<Stream>, len: usize) -> Result<Self, MemoryError> {
        Self::zeroed_from(stream, None, len)
    }

    /// A buffer with the content of `source`, queued on `stream`. `source` is not touched after the call.
    ///
    /// # Errors
    /// As [`DeviceBuffer::uninit`].
    pub fn from_slice(stream: &Arc<Stream>, source: &[T]) -> Result<Self, MemoryError> {
        Self::copied_from(stream, None, source)
    }

    /// The same as [`DeviceBuffer::from_slice`].
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_slice`].
    pub fn from_host(stream: &Arc<Stream>, source: &[T]) -> Result<Self, MemoryError> {
        Self::from_slice(stream, source)
    }

    /// Bytes of all elements.
    pub fn num_bytes(&self) -> usize {
        // The product was checked when the buffer was made.
        self.len * size_of::<T>()
    }

    /// Device address of the first element; 0 if the buffer has no bytes. What is done through it is not ordered with
    /// other uses of the buffer, and it dangles once the buffer is gone.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.part().address()
    }

    /// The name given by [`DeviceBuffer::set_label`].
    pub fn label(&self) -> Option<Arc<str>> {
        self.owner.label()
    }

    /// As [`DeviceBuffer::set_label`], for chains.
    #[must_use]
    pub fn with_label(self, label: &str) -> Self {
        self.set_label(label);
        self
    }

    #[inline]
    pub(crate) fn part(&self) -> Part<'_, T> {
        Part::new(&self.owner, self.offset, self.len)
    }

    /// Whether this is the only handle that can still reach the memory. Work in flight does not count.
    pub fn is_unique(&mut self) -> bool {
        self.owner.count() == 1
    }

    /// A handle that keeps the memory, for whoever must be able to reach it later. While it lives the buffer is not unique.
    pub fn lease(&self) -> MemoryLease {
        MemoryLease::new(self.owner.clone())
    }

    /// All elements, shared.
    pub fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBufferView::of(self.part())
    }

    /// All elements, exclusively.
    pub fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBufferViewMut::of(self.part())
    }

    /// Some elements, shared.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice(&self, range: Range<usize>) -> Result<DeviceBufferView<'_, T>, MemoryError> {
        self.view().slice(range)
    }

    /// Some elements, exclusively.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<DeviceBufferViewMut<'_, T>, MemoryError> {
        self.view_mut().into_slice(range)
    }

    /// The elements before `middle` and those from there on, both exclusively. Work on one never waits for work on the
    /// other.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn split_at_mut(
        &mut self,
        middle: usize,
    ) -> Result<(DeviceBufferViewMut<'_, T>, DeviceBufferViewMut<'_, T>), MemoryError> {
        self.view_mut().into_split_at(middle)
    }

    /// Exclusive views of `size` elements each; the last one may be shorter.
    ///
    /// # Errors
    /// [`MemoryError::Shape`] for a size of 0.
    pub fn chunks_mut(&mut self, size: usize) -> Result<ChunksMut<'_, T>, MemoryError> {
        self.view_mut().into_chunks(size)
    }

    /// Queues a copy of `source` over the whole buffer. `source` is not touched after the call.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], [`MemoryError::OtherContext`], or the driver's. After a driver error part of
    /// the buffer may have been overwritten.
    pub fn copy_from_slice(&mut self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        self.part().upload(stream, source)
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
        self.part().slice_at(offset, source.len())?.upload(stream, source)
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
        self.part().download(stream, 0)
    }

    /// As [`DeviceBuffer::to_vec`], for some of the elements.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], else as [`DeviceBuffer::to_vec`].
    pub fn range_to_vec(&self, stream: &Arc<Stream>, range: Range<usize>) -> Result<Vec<T>, MemoryError> {
        self.part().slice(range.clone())?.download(stream, range.start)
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
        self.part().copy_out(stream, target)
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
        self.part().slice_at(offset, target.len())?.copy_out(stream, target)
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
        self.part().copy_from(stream.submit(), source.part()).map(drop)
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
        let source = source.part().slice(range)?;
        self.part().slice_at(offset, source.len)?.copy_from(stream.submit(), source).map(drop)
    }

    /// Queues setting every element to `value`.
    ///
    /// # Errors
    /// [`MemoryError::OtherContext`], or the driver's.
    pub fn fill(&mut self, stream: &Arc<Stream>, value: T) -> Result<(), MemoryError> {
        self.part().fill(stream.submit(), value).map(drop)
    }

    /// Queues setting every byte to 0.
    ///
    /// # Errors
    /// As [`DeviceBuffer::fill`].
    pub fn zero(&mut self, stream: &Arc<Stream>) -> Result<(), MemoryError> {
        self.part().zero(stream.submit()).map(drop)
    }
}

typed_memory! { DeviceBuffer }
owned_memory! { DeviceBuffer }

impl<T: DeviceCopy> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("name", &self.owner.name())
            .field("type", &core::any::type_name::<T>())
            .field("len", &self.len)
            .field("address", &format_args!("{:#x}", self.cu_deviceptr()))
            .field("context", &format_args!("{}", self.context()))
            .finish()
    }
}
