//! `DeviceBox`: an owner of one value, or of a slice, on the device; and `DevicePointer`: an address with a type.
//!
//! A box *is* its buffer: the same allocation, the same identity, the same tracked accesses. Boxes and buffers become each other without
//! a copy, and a shared reference to a box counts as a read (of device atomics: an update), as that of a buffer does.
#![allow(clippy::result_large_err, reason = "a refusal gives the handle back")]

use super::cast::{RawDeviceBuffer, Refused};
use super::sealed::{Memory, MemoryMut};
use super::view::{DeviceBufferView, DeviceBufferViewMut};
use super::{AllocationId, DeviceBuffer, DeviceMemory, DeviceMemoryMut, MemoryLease};
use crate::error::MemoryError;
use crate::stream::Touch;
use crate::{Context, Stream};
use core::fmt;
use core::marker::PhantomData;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::Mode;
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// What a [`DeviceBox`] can hold: a [`DeviceCopy`] value, or a slice of them.
pub trait OnDevice: sealed::OnDevice {
    /// The value, or the slice's element.
    type Element: DeviceCopy;
}

mod sealed {
    pub trait OnDevice {}
}

impl<T: DeviceCopy> sealed::OnDevice for T {}
impl<T: DeviceCopy> OnDevice for T {
    type Element = T;
}

impl<T: DeviceCopy> sealed::OnDevice for [T] {}
impl<T: DeviceCopy> OnDevice for [T] {
    type Element = T;
}

/// The owner of a value (`DeviceBox<T>`) or of a slice (`DeviceBox<[T]>`) in device memory.
///
/// ```
/// # use simtile_core::{Context, DeviceBox, DeviceBuffer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let simulator = simtile_sim::Simulator::builder().quiet().build();
/// # let context = Context::new(simulator.driver(), 0)?;
/// # let stream = context.new_stream()?;
/// let mut counter = DeviceBox::new(&stream, 7u32)?;
/// counter.set(&stream, 8)?;
/// assert_eq!(counter.get(&stream)?, 8);
/// let slice: DeviceBox<[f32]> = DeviceBuffer::zeroed(&stream, 10)?.into();
/// assert_eq!(slice.len(), 10);
/// # Ok(()) }
/// ```
pub struct DeviceBox<T: ?Sized + OnDevice> {
    buffer: DeviceBuffer<T::Element>,
}

/// The address of a `T` on a device: a plain value without ownership, order or lifetime.
///
/// Kernels take it like any address. It is no [`PointerFree`](simtile_types::PointerFree) value, so launchers that take it are `unsafe`.
#[repr(transparent)]
pub struct DevicePointer<T> {
    address: CUdeviceptr,
    marker: PhantomData<*const T>,
}

impl<T: ?Sized + OnDevice> DeviceBox<T> {
    /// Device address; 0 if there are no bytes. What is done through it is not ordered, and it dangles once the box is gone.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.buffer.cu_deviceptr()
    }

    /// The same, with its type.
    pub fn device_pointer(&self) -> DevicePointer<T::Element> {
        DevicePointer { address: self.cu_deviceptr(), marker: PhantomData }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        self.buffer.context()
    }

    /// Ordinal of the device.
    pub fn device_id(&self) -> usize {
        self.context().ordinal()
    }

    /// Identity of the allocation, never reused.
    pub fn allocation_id(&self) -> AllocationId {
        self.buffer.allocation_id()
    }

    /// Bytes.
    pub fn num_bytes(&self) -> usize {
        self.buffer.num_bytes()
    }

    /// Names it in errors, and in the reports of a simulated driver.
    #[must_use]
    pub fn with_label(self, label: &str) -> Self {
        self.buffer.set_label(label);
        self
    }

    /// Whether this is the only handle that can still reach the memory. Work in flight does not count.
    pub fn is_unique(&mut self) -> bool {
        self.buffer.is_unique()
    }

    /// A handle that keeps the memory. While it lives the box is not unique.
    pub fn lease(&self) -> MemoryLease {
        self.buffer.lease()
    }

    /// Whether a kernel that is given a shared reference updates it: so for device atomics.
    pub fn shared_access_writes(&self) -> bool {
        T::Element::ACCUMULATES
    }

    /// The buffer that it is. No copy.
    pub fn into_buffer(self) -> DeviceBuffer<T::Element> {
        self.buffer
    }

    /// The buffer that it is.
    pub fn as_buffer(&self) -> &DeviceBuffer<T::Element> {
        &self.buffer
    }

    /// Its elements, shared.
    pub fn view(&self) -> DeviceBufferView<'_, T::Element> {
        self.buffer.view()
    }

    /// Its elements, exclusively.
    pub fn view_mut(&mut self) -> DeviceBufferViewMut<'_, T::Element> {
        self.buffer.view_mut()
    }

    /// The memory without its type. No copy.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`], with the box unharmed.
    pub fn into_raw(self) -> Result<RawDeviceBuffer, Refused<Self>> {
        let refused = |refused: Refused<DeviceBuffer<_>>| Refused {
            handle: Self { buffer: refused.handle },
            error: refused.error,
        };
        self.buffer.into_raw().map_err(refused)
    }
}

impl<T: DeviceCopy> DeviceBox<T> {
    /// A value on the device, queued on `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_slice`].
    pub fn new(stream: &Arc<Stream>, value: T) -> Result<Self, MemoryError> {
        Ok(Self { buffer: DeviceBuffer::from_slice(stream, &[value])? })
    }

    /// A buffer of one element, as a box. No copy.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], with the buffer unharmed.
    pub fn from_buffer(buffer: DeviceBuffer<T>) -> Result<Self, Refused<DeviceBuffer<T>>> {
        match buffer.len() {
            1 => Ok(Self { buffer }),
            actual => {
                let error = MemoryError::LengthMismatch {
                    buffer: format!("{buffer:?}"),
                    argument: "a box of one value",
                    expected: 1,
                    actual,
                };
                Err(Refused { handle: buffer, error })
            }
        }
    }

    /// Waits for everything before on the value and gives it.
    ///
    /// # Errors
    /// As [`DeviceBuffer::to_vec`].
    pub fn get(&self, stream: &Arc<Stream>) -> Result<T, MemoryError> {
        let values = self.buffer.to_vec(stream)?;
        // A box of one value has one.
        values.first().copied().ok_or(MemoryError::LengthMismatch {
            buffer: format!("{:?}", self.buffer),
            argument: "a box of one value",
            expected: 1,
            actual: 0,
        })
    }

    /// Queues setting the value.
    ///
    /// # Errors
    /// As [`DeviceBuffer::fill`].
    pub fn set(&mut self, stream: &Arc<Stream>, value: T) -> Result<(), MemoryError> {
        self.buffer.fill(stream, value)
    }

    /// The value as a slice of one. No copy.
    pub fn into_slice(self) -> DeviceBox<[T]> {
        DeviceBox { buffer: self.buffer }
    }
}

impl<T: DeviceCopy> DeviceBox<[T]> {
    /// A slice on the device, queued on `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_slice`].
    pub fn from_slice(stream: &Arc<Stream>, values: &[T]) -> Result<Self, MemoryError> {
        Ok(Self { buffer: DeviceBuffer::from_slice(stream, values)? })
    }

    /// A buffer as a box. No copy.
    pub fn from_buffer(buffer: DeviceBuffer<T>) -> Self {
        Self { buffer }
    }

    /// Takes over stream-ordered memory by its address. It is freed as memory of the runtime is: in the order of a stream that follows its
    /// last use.
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_foreign`]. The memory is then the caller's as before.
    ///
    /// # Safety
    /// `address` is the beginning of an allocation made by `cuMemAllocAsync` or `cuMemAllocFromPoolAsync` in the stream's context, of at
    /// least `len` elements that are values of `T`, and nobody else frees it or touches it any more. What used it before was queued on
    /// `stream`, or has finished.
    pub unsafe fn from_raw_parts(
        address: CUdeviceptr,
        len: usize,
        stream: &Arc<Stream>,
    ) -> Result<Self, MemoryError> {
        // SAFETY: the caller's.
        let buffer = unsafe { DeviceBuffer::adopt(stream, address, len) }?;
        Ok(Self { buffer })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Waits for everything before on the slice and gives its content.
    ///
    /// # Errors
    /// As [`DeviceBuffer::to_vec`].
    pub fn to_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
        self.buffer.to_vec(stream)
    }

    /// The buffer that it is, exclusively.
    pub fn as_buffer_mut(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }

    /// A slice of one as a value. No copy.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], with the box unharmed.
    pub fn into_value(self) -> Result<DeviceBox<T>, Refused<Self>> {
        let refused = |refused: Refused<DeviceBuffer<T>>| Refused {
            handle: Self { buffer: refused.handle },
            error: refused.error,
        };
        DeviceBox::<T>::from_buffer(self.buffer).map_err(refused)
    }
}

impl<T> DevicePointer<T> {
    /// An address with a type.
    ///
    /// # Safety
    /// Where the pointer is used the address is that of a `T`, or of as many as the user says, on the device that uses it.
    pub const unsafe fn from_cu_deviceptr(address: CUdeviceptr) -> Self {
        Self { address, marker: PhantomData }
    }

    /// The address.
    pub const fn cu_deviceptr(self) -> CUdeviceptr {
        self.address
    }

    /// Whether it is 0: that of memory without bytes.
    pub const fn is_null(self) -> bool {
        self.address == 0
    }
}

// SAFETY: the bytes of an address, every pattern of which is one; nothing is owned.
unsafe impl<T> DeviceCopy for DevicePointer<T> {
    const NO_PADDING: bool = true;
}

// SAFETY: a number; whoever follows it answers for that.
unsafe impl<T> Send for DevicePointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for DevicePointer<T> {}

impl<T> Clone for DevicePointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePointer<T> {}

impl<T> PartialEq for DevicePointer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for DevicePointer<T> {}

impl<T> fmt::Debug for DevicePointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePointer<{}>({:#x})", core::any::type_name::<T>(), self.address)
    }
}

impl<T: DeviceCopy> From<DeviceBuffer<T>> for DeviceBox<[T]> {
    fn from(buffer: DeviceBuffer<T>) -> Self {
        Self { buffer }
    }
}

impl<T: DeviceCopy> From<DeviceBox<[T]>> for DeviceBuffer<T> {
    fn from(boxed: DeviceBox<[T]>) -> Self {
        boxed.buffer
    }
}

impl<T: DeviceCopy> From<DeviceBox<T>> for DeviceBuffer<T> {
    fn from(boxed: DeviceBox<T>) -> Self {
        boxed.buffer
    }
}

impl<T: DeviceCopy> From<DeviceBox<T>> for DeviceBox<[T]> {
    fn from(boxed: DeviceBox<T>) -> Self {
        boxed.into_slice()
    }
}

impl<T: DeviceCopy> TryFrom<DeviceBuffer<T>> for DeviceBox<T> {
    type Error = Refused<DeviceBuffer<T>>;

    fn try_from(buffer: DeviceBuffer<T>) -> Result<Self, Self::Error> {
        Self::from_buffer(buffer)
    }
}

impl<T: DeviceCopy> TryFrom<DeviceBox<[T]>> for DeviceBox<T> {
    type Error = Refused<DeviceBox<[T]>>;

    fn try_from(boxed: DeviceBox<[T]>) -> Result<Self, Self::Error> {
        boxed.into_value()
    }
}

impl<T: ?Sized + OnDevice> Memory for DeviceBox<T> {
    fn touched(&self, mode: Mode) -> Touch<'_> {
        self.buffer.touched(mode)
    }

    fn element_bytes(&self) -> usize {
        self.buffer.element_bytes()
    }

    fn shared_mode(&self) -> Mode {
        self.buffer.shared_mode()
    }

    fn address(&self) -> CUdeviceptr {
        self.buffer.address()
    }
}

impl<T: ?Sized + OnDevice> MemoryMut for DeviceBox<T> {
    fn touched_mut(&mut self) -> Touch<'_> {
        self.buffer.touched_mut()
    }
}

impl<T: ?Sized + OnDevice> DeviceMemory for DeviceBox<T> {}
impl<T: ?Sized + OnDevice> DeviceMemoryMut for DeviceBox<T> {}

impl<T: ?Sized + OnDevice> fmt::Debug for DeviceBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceBox").field(&self.buffer).finish()
    }
}
