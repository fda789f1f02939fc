//! The same bytes as other elements: casts of buffers and views, raw buffers, shared buffers.
//!
//! A cast between unrelated types needs, as in `bytemuck`, that no byte of the old type is uninitialised and that every
//! pattern is a value of the new one; an exclusive cast needs both ways. Taking a buffer over as something else needs the
//! only handle: otherwise somebody might still see it with its old type.
#![allow(clippy::result_large_err, reason = "a refusal gives the handle back")]

use super::buffer::DeviceBuffer;
use super::part::Part;
use super::sealed::{Memory, MemoryMut};
use super::view::{DeviceBufferView, DeviceBufferViewMut};
use super::{AllocationId, DeviceMemory, DeviceMemoryMut, Owner};
use crate::error::MemoryError;
use crate::stream::Touch;
use crate::{Context, Stream};
use bytemuck::{AnyBitPattern, NoUninit};
use core::fmt;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::Mode;
use simtile_sync::Arc;
use simtile_types::{DeviceCopy, DeviceRepr};

/// A refusal that gives back what it refused.
pub struct Refused<H> {
    /// What was to be converted, unharmed.
    pub handle: H,
    /// Why.
    pub error: MemoryError,
}

impl<H> fmt::Debug for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({})", self.error)
    }
}

impl<H> fmt::Display for Refused<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<H> core::error::Error for Refused<H> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<H> From<Refused<H>> for MemoryError {
    fn from(refused: Refused<H>) -> Self {
        refused.error
    }
}

impl<'a, T> Part<'a, T> {
    /// The same bytes as elements of another type.
    fn cast<U>(&self) -> Result<Part<'a, U>, MemoryError> {
        let (bytes, size, align) = (self.num_bytes(), size_of::<U>(), align_of::<U>());
        let fits = bytes == 0 || self.address().is_multiple_of(align as u64);
        let whole = if size == 0 { bytes == 0 } else { bytes.is_multiple_of(size) };
        if !fits || !whole {
            return Err(MemoryError::Cast {
                buffer: self.allocation.name(),
                bytes,
                offset: self.offset,
                type_name: core::any::type_name::<U>(),
                size,
                align,
            });
        }
        Ok(Part::new(self.allocation, self.offset, bytes.checked_div(size).unwrap_or(0)))
    }

    /// The same elements under a type of the same layout.
    fn same_layout<U>(&self) -> Part<'a, U> {
        Part::new(self.allocation, self.offset, self.len)
    }
}

impl<'a, T: DeviceCopy> DeviceBufferView<'a, T> {
    /// The bytes.
    ///
    /// # Errors
    /// None with the types that are allowed here.
    pub fn as_bytes(&self) -> Result<DeviceBufferView<'a, u8>, MemoryError>
    where
        T: NoUninit,
    {
        self.cast_chunks()
    }

    /// The same elements as another type of the same size.
    ///
    /// # Errors
    /// [`MemoryError::Cast`] if the sizes differ or the start is not aligned.
    pub fn cast_elem<U: DeviceCopy + AnyBitPattern>(&self) -> Result<DeviceBufferView<'a, U>, MemoryError>
    where
        T: NoUninit,
    {
        same_size::<T, U>(&self.part())?;
        self.cast_chunks()
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// [`MemoryError::Cast`] if they are no whole number of elements or the start is not aligned.
    pub fn cast_chunks<U: DeviceCopy + AnyBitPattern>(&self) -> Result<DeviceBufferView<'a, U>, MemoryError>
    where
        T: NoUninit,
    {
        Ok(DeviceBufferView::of(self.part().cast()?))
    }

    /// The same elements in a wrapper of the same layout.
    pub fn wrap_elem<W: DeviceCopy + DeviceRepr<T>>(&self) -> DeviceBufferView<'a, W> {
        DeviceBufferView::of(self.part().same_layout())
    }

    /// The same elements without their wrapper.
    pub fn peel_elem<I: DeviceCopy>(&self) -> DeviceBufferView<'a, I>
    where
        T: DeviceRepr<I>,
    {
        DeviceBufferView::of(self.part().same_layout())
    }
}

impl<'a, T: DeviceCopy> DeviceBufferViewMut<'a, T> {
    /// The same bytes as elements of another type, exclusively.
    ///
    /// # Errors
    /// As [`DeviceBufferView::cast_chunks`].
    pub fn cast_chunks_mut<U: DeviceCopy + AnyBitPattern + NoUninit>(
        self,
    ) -> Result<DeviceBufferViewMut<'a, U>, MemoryError>
    where
        T: NoUninit + AnyBitPattern,
    {
        Ok(DeviceBufferViewMut::of(self.part().cast()?))
    }

    /// The same elements as another type of the same size, exclusively.
    ///
    /// # Errors
    /// As [`DeviceBufferView::cast_elem`].
    pub fn cast_elem_mut<U: DeviceCopy + AnyBitPattern + NoUninit>(
        self,
    ) -> Result<DeviceBufferViewMut<'a, U>, MemoryError>
    where
        T: NoUninit + AnyBitPattern,
    {
        same_size::<T, U>(&self.part())?;
        self.cast_chunks_mut()
    }

    /// The bytes, exclusively.
    ///
    /// # Errors
    /// None with the types that are allowed here.
    pub fn into_bytes(self) -> Result<DeviceBufferViewMut<'a, u8>, MemoryError>
    where
        T: NoUninit + AnyBitPattern,
    {
        self.cast_chunks_mut()
    }
}

fn same_size<T, U>(part: &Part<'_, T>) -> Result<(), MemoryError> {
    if size_of::<T>() == size_of::<U>() {
        return Ok(());
    }
    Err(MemoryError::Cast {
        buffer: part.allocation.name(),
        bytes: size_of::<T>(),
        offset: part.offset,
        type_name: core::any::type_name::<U>(),
        size: size_of::<U>(),
        align: align_of::<U>(),
    })
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// The same memory as another type of the same size.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`] or [`MemoryError::Cast`], with the buffer unharmed.
    pub fn cast_elem<U: DeviceCopy + AnyBitPattern>(self) -> Result<DeviceBuffer<U>, Refused<Self>>
    where
        T: NoUninit,
    {
        match same_size::<T, U>(&self.part()) {
            Ok(()) => self.cast_chunks(),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }

    /// The same memory as elements of another type.
    ///
    /// # Errors
    /// As [`DeviceBuffer::cast_elem`].
    pub fn cast_chunks<U: DeviceCopy + AnyBitPattern>(mut self) -> Result<DeviceBuffer<U>, Refused<Self>>
    where
        T: NoUninit,
    {
        let fits = self.owner_mut().require_unique("a cast");
        let len = fits.and_then(|()| self.part().cast::<U>().map(|part| part.len));
        match len {
            Ok(len) => {
                let (owner, offset, _) = self.into_parts();
                Ok(DeviceBuffer::from_owner_at(owner, offset, len))
            }
            Err(error) => Err(Refused { handle: self, error }),
        }
    }

    /// The same memory with its elements in a wrapper of the same layout.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`], with the buffer unharmed.
    pub fn wrap_elem<W: DeviceCopy + DeviceRepr<T>>(self) -> Result<DeviceBuffer<W>, Refused<Self>> {
        self.relabel("a wrap")
    }

    /// The same memory with its elements without their wrapper.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`], with the buffer unharmed.
    pub fn peel_elem<I: DeviceCopy>(self) -> Result<DeviceBuffer<I>, Refused<Self>>
    where
        T: DeviceRepr<I>,
    {
        self.relabel("a peel")
    }

    fn relabel<U: DeviceCopy>(mut self, what: &'static str) -> Result<DeviceBuffer<U>, Refused<Self>> {
        if let Err(error) = self.owner_mut().require_unique(what) {
            return Err(Refused { handle: self, error });
        }
        let (owner, offset, len) = self.into_parts();
        Ok(DeviceBuffer::from_owner_at(owner, offset, len))
    }

    /// The memory without its type.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`], with the buffer unharmed: a `bool` never shows a byte that is not 0 or 1.
    pub fn into_raw(mut self) -> Result<RawDeviceBuffer, Refused<Self>> {
        if let Err(error) = self.owner_mut().require_unique("taking the type away") {
            return Err(Refused { handle: self, error });
        }
        let bytes = self.num_bytes();
        let (owner, offset, _) = self.into_parts();
        Ok(RawDeviceBuffer { owner, offset, bytes })
    }
}

/// Device memory without a type, with one owner.
pub struct RawDeviceBuffer {
    owner: Owner,
    /// First byte in the allocation.
    offset: usize,
    bytes: usize,
}

impl RawDeviceBuffer {
    /// Zeroed bytes.
    ///
    /// # Errors
    /// As [`DeviceBuffer::zeroed`].
    pub fn zeroed(stream: &Arc<Stream>, bytes: usize) -> Result<Self, MemoryError> {
        let buffer = DeviceBuffer::<u8>::zeroed(stream, bytes)?;
        let (owner, offset, bytes) = buffer.into_parts();
        Ok(Self { owner, offset, bytes })
    }

    pub(super) fn from_owner(owner: Owner, bytes: usize) -> Self {
        Self { owner, offset: 0, bytes }
    }

    /// Bytes.
    pub fn num_bytes(&self) -> usize {
        self.bytes
    }

    /// Identity of the allocation.
    pub fn allocation_id(&self) -> AllocationId {
        self.owner.id()
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        self.owner.context()
    }

    /// Device address of the first byte; 0 if there are none.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.part().address()
    }

    fn part(&self) -> Part<'_, u8> {
        Part::new(&self.owner, self.offset, self.bytes)
    }

    /// The bytes, shared.
    pub fn view(&self) -> DeviceBufferView<'_, u8> {
        DeviceBufferView::of(self.part())
    }

    /// The bytes, exclusively.
    pub fn view_mut(&mut self) -> DeviceBufferViewMut<'_, u8> {
        DeviceBufferViewMut::of(self.part())
    }

    /// The bytes as elements of a type. Elements that are no value of it are refused when the host reads them.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`] or [`MemoryError::Cast`], with the buffer unharmed.
    pub fn into_typed<T: DeviceCopy>(mut self) -> Result<DeviceBuffer<T>, Refused<Self>> {
        let fits = self.owner.require_unique("giving a type");
        match fits.and_then(|()| self.part().cast::<T>().map(|part| part.len)) {
            Ok(len) => Ok(DeviceBuffer::from_owner_at(self.owner, self.offset, len)),
            Err(error) => Err(Refused { handle: self, error }),
        }
    }
}

impl Memory for RawDeviceBuffer {
    fn touched(&self, mode: Mode) -> Touch<'_> {
        self.part().access_of(mode)
    }

    fn element_bytes(&self) -> usize {
        1
    }

    fn shared_mode(&self) -> Mode {
        Mode::Read
    }

    fn address(&self) -> CUdeviceptr {
        self.part().address()
    }
}

impl MemoryMut for RawDeviceBuffer {
    fn touched_mut(&mut self) -> Touch<'_> {
        self.part().access_of(Mode::Write)
    }
}

impl DeviceMemory for RawDeviceBuffer {}
impl DeviceMemoryMut for RawDeviceBuffer {}

impl fmt::Debug for RawDeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawDeviceBuffer({}, {} bytes)", self.owner.name(), self.bytes)
    }
}

/// A handle that keeps memory and does nothing else. While it lives the buffer is not unique.
#[derive(Clone)]
pub struct MemoryLease(Owner);

impl MemoryLease {
    pub(super) fn new(owner: Owner) -> Self {
        Self(owner)
    }

    /// Identity of the allocation.
    pub fn allocation_id(&self) -> AllocationId {
        self.0.id()
    }
}

impl fmt::Debug for MemoryLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryLease({})", self.0.name())
    }
}
