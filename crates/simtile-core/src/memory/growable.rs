//! Buffers that grow in place.
//!
//! Addresses for the largest size are reserved once; growing puts more physical memory behind them. What was there keeps its
//! address and its content, and work in flight is not disturbed.

use super::part::Part;
use super::view::{DeviceBufferView, DeviceBufferViewMut};
use super::vmm::{Mapped, align_size};
use super::{Allocation, Owner, owned_memory, typed_memory};
use crate::error::MemoryError;
use crate::{Context, Device, Stream};
use core::fmt;
use core::marker::PhantomData;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::Mode;
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// Values of `T` in device memory that can become more, up to a size that is fixed when the buffer is made, at one address.
///
/// The device needs virtual memory management. Memory comes in pieces of the granularity
/// ([`Context::allocation_granularity`]).
pub struct GrowableBuffer<T: DeviceCopy> {
    owner: Owner,
    len: usize,
    /// Elements that the reserved addresses have room for.
    most: usize,
    granularity: usize,
    marker: PhantomData<T>,
}

impl<T: DeviceCopy> GrowableBuffer<T> {
    /// An empty buffer with addresses for at most `most` elements.
    ///
    /// # Errors
    /// [`MemoryError::Unsupported`] on a device without virtual memory management, [`MemoryError::SizeOverflow`], or the
    /// driver's.
    pub fn new(context: &Arc<Context>, most: usize) -> Result<Self, MemoryError> {
        Self::open_to(context, most, &[])
    }

    /// As [`GrowableBuffer::new`], with kernels of other devices let in.
    ///
    /// # Errors
    /// As [`GrowableBuffer::new`]; [`MemoryError::Unsupported`] for a device that is no peer.
    pub fn open_to(context: &Arc<Context>, most: usize, also: &[Device]) -> Result<Self, MemoryError> {
        let limit = isize::MAX as usize;
        let bytes = most.checked_mul(size_of::<T>()).ok_or(MemoryError::SizeOverflow {
            count: most,
            element_bytes: size_of::<T>(),
            limit,
        })?;
        let granularity = context.allocation_granularity()?;
        let range = context.reserve(bytes)?;
        let (base, bytes) = (range.base(), range.num_bytes());
        let owner = Allocation::mapped_at(Mapped::new(range, also)?, base, bytes);
        Ok(Self { owner, len: 0, most, granularity, marker: PhantomData })
    }

    fn part(&self) -> Part<'_, T> {
        Part::new(&self.owner, 0, self.len)
    }

    /// Elements that there is memory for.
    pub fn capacity(&self) -> usize {
        let bytes = self.owner.mapped().map_or(0, Mapped::num_bytes);
        bytes.checked_div(size_of::<T>()).unwrap_or(usize::MAX).min(self.most)
    }

    /// The most elements that the buffer can have.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Address of the first element: the same as long as the buffer lives, also while it is empty.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.owner.address()
    }

    /// All elements, shared.
    pub fn view(&self) -> DeviceBufferView<'_, T> {
        DeviceBufferView::of(self.part())
    }

    /// All elements, exclusively.
    pub fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBufferViewMut::of(self.part())
    }

    /// Makes sure that there is memory for `len` elements. Nothing moves, and nothing waits.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] beyond [`GrowableBuffer::most`], or the driver's; the buffer is then as before.
    pub fn reserve(&mut self, len: usize) -> Result<(), MemoryError> {
        if len > self.most {
            let buffer = self.owner.name();
            return Err(MemoryError::OutOfRange { buffer, start: self.len, end: len, len: self.most });
        }
        let Some(mapped) = self.owner.mapped() else { return Ok(()) };
        // The product was checked for `most`.
        let (wanted, there) = (align_size(len * size_of::<T>(), self.granularity)?, mapped.num_bytes());
        if wanted <= there {
            return Ok(());
        }
        mapped.add(there, mapped.range().context().physical_memory(wanted - there)?)
    }

    /// Grows to `len` elements, of which the new ones are zero (all bytes 0), queued on `stream`; or shrinks to `len`,
    /// keeping the memory.
    ///
    /// # Errors
    /// As [`GrowableBuffer::reserve`], [`MemoryError::OtherContext`], or the driver's.
    pub fn resize(&mut self, stream: &Arc<Stream>, len: usize) -> Result<(), MemoryError> {
        if len <= self.len {
            self.len = len;
            return Ok(());
        }
        self.reserve(len)?;
        let new = Part::<T>::new(&self.owner, self.len * size_of::<T>(), len - self.len);
        new.zero(stream.submit())?;
        self.len = len;
        Ok(())
    }

    /// Appends host values, queued on `stream`. They are not touched after the call.
    ///
    /// # Errors
    /// As [`GrowableBuffer::resize`].
    pub fn extend_from_slice(&mut self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        let len = self.len.saturating_add(source.len());
        self.reserve(len)?;
        let new = Part::<T>::new(&self.owner, self.len * size_of::<T>(), source.len());
        new.upload(stream, source)?;
        self.len = len;
        Ok(())
    }

    /// Gives memory back that the elements do not need. Waits for all work that uses the buffer.
    ///
    /// # Errors
    /// The failure of that work, or the driver's.
    pub fn shrink_to_fit(&mut self) -> Result<(), MemoryError> {
        // From here on nothing is submitted that uses it: it is borrowed exclusively.
        let claim = self.owner.claim(Mode::Write, true)?;
        let Some(mapped) = self.owner.mapped() else { return Ok(()) };
        mapped.remove_from(self.len * size_of::<T>());
        drop(claim);
        Ok(())
    }

    /// Waits for everything before on this buffer and gives its content.
    ///
    /// # Errors
    /// As [`DeviceBuffer::to_vec`](crate::DeviceBuffer::to_vec).
    pub fn to_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
        self.part().download(stream, 0)
    }
}

typed_memory! { GrowableBuffer }
owned_memory! { GrowableBuffer }

impl<T: DeviceCopy> fmt::Debug for GrowableBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrowableBuffer")
            .field("name", &self.owner.name())
            .field("type", &core::any::type_name::<T>())
            .field("len", &self.len)
            .field("most", &self.most)
            .field("address", &format_args!("{:#x}", self.cu_deviceptr()))
            .finish_non_exhaustive()
    }
}
