//! Views: borrowed parts of a buffer, with the rules of slices.
//!
//! A view is only a borrow. Nothing happens when it ends, so a forgotten one loses nothing: what was submitted through it is
//! known by the bytes that it touched. Disjoint views never wait for each other, on any streams.

use super::part::Part;
use super::sealed::{Memory, MemoryMut};
use super::strided::{DeviceColumns, DeviceColumnsMut};
use super::{AllocationId, DeviceBuffer, DeviceMemory, DeviceMemoryMut};
use crate::error::MemoryError;
use crate::stream::Touch;
use crate::{Context, Stream};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use simtile_driver::sys::CUdeviceptr;
use simtile_hazard::Mode;
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// Some elements of a buffer, shared: what `&[T]` is to a `Vec<T>`.
pub struct DeviceBufferView<'a, T: DeviceCopy> {
    part: Part<'a, T>,
    marker: PhantomData<&'a [T]>,
}

/// Some elements of a buffer, exclusively: what `&mut [T]` is to a `Vec<T>`.
pub struct DeviceBufferViewMut<'a, T: DeviceCopy> {
    part: Part<'a, T>,
    marker: PhantomData<&'a mut [T]>,
}

impl<T: DeviceCopy> Clone for DeviceBufferView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: DeviceCopy> Copy for DeviceBufferView<'_, T> {}

macro_rules! common {
    ($name:ident) => {
        impl<'a, T: DeviceCopy> $name<'a, T> {
            pub(super) fn of(part: Part<'a, T>) -> Self {
                Self { part, marker: PhantomData }
            }

            pub(crate) fn part(&self) -> Part<'a, T> {
                self.part
            }

            /// Elements.
            pub fn len(&self) -> usize {
                self.part.len
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.part.len == 0
            }

            /// Bytes of all elements.
            pub fn num_bytes(&self) -> usize {
                self.part.num_bytes()
            }

            /// Device address of the first element; 0 if there are no bytes.
            pub fn cu_deviceptr(&self) -> CUdeviceptr {
                self.part.address()
            }

            /// Identity of the allocation.
            pub fn allocation_id(&self) -> AllocationId {
                self.part.allocation.id()
            }

            /// The context.
            pub fn context(&self) -> &'a Arc<Context> {
                self.part.allocation.context()
            }

            /// Waits for everything before on these elements and gives them.
            ///
            /// # Errors
            /// As [`DeviceBuffer::to_vec`].
            pub fn to_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
                self.part.download(stream, 0)
            }

            /// Waits for everything before on these elements and copies them out. After an error `target` is untouched.
            ///
            /// # Errors
            /// As [`DeviceBuffer::copy_to_slice`].
            pub fn copy_to_slice(&self, stream: &Arc<Stream>, target: &mut [T]) -> Result<(), MemoryError> {
                self.part.copy_out(stream, target)
            }
        }

        impl<T: DeviceCopy> Memory for $name<'_, T> {
            fn touched(&self, mode: Mode) -> Touch<'_> {
                self.part.access_of(mode)
            }

            fn element_bytes(&self) -> usize {
                size_of::<T>()
            }

            fn shared_mode(&self) -> Mode {
                super::shared_mode::<T>()
            }

            fn address(&self) -> CUdeviceptr {
                self.part.address()
            }
        }

        impl<T: DeviceCopy> DeviceMemory for $name<'_, T> {}

        impl<T: DeviceCopy> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (name, bytes) = (self.part.allocation.name(), self.part.offset..self.part.end());
                f.debug_struct(stringify!($name))
                    .field("of", &name)
                    .field("type", &core::any::type_name::<T>())
                    .field("len", &self.part.len)
                    .field("bytes", &bytes)
                    .finish()
            }
        }
    };
}

common! { DeviceBufferView }
common! { DeviceBufferViewMut }

impl<'a, T: DeviceCopy> DeviceBufferView<'a, T> {
    /// Some of the elements.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice(&self, range: Range<usize>) -> Result<Self, MemoryError> {
        Ok(Self::of(self.part.slice(range)?))
    }

    /// The elements before `middle`, and those from there on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn split_at(&self, middle: usize) -> Result<(Self, Self), MemoryError> {
        Ok((self.slice(0..middle)?, self.slice(middle..self.len())?))
    }

    /// The columns `columns` of a matrix of rows of `pitch` elements, of which this view holds whole ones.
    ///
    /// # Errors
    /// [`MemoryError::Shape`].
    pub fn columns(&self, pitch: usize, columns: Range<usize>) -> Result<DeviceColumns<'a, T>, MemoryError> {
        DeviceColumns::new(self.part, pitch, columns)
    }
}

impl<'a, T: DeviceCopy> DeviceBufferViewMut<'a, T> {
    /// The same elements, exclusively for a shorter time.
    pub fn reborrow(&mut self) -> DeviceBufferViewMut<'_, T> {
        DeviceBufferViewMut::of(self.part)
    }

    /// The same elements, shared.
    pub fn as_view(&self) -> DeviceBufferView<'_, T> {
        DeviceBufferView::of(self.part)
    }

    /// The same elements, shared from here on.
    pub fn into_view(self) -> DeviceBufferView<'a, T> {
        DeviceBufferView::of(self.part)
    }

    /// Some of the elements.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<DeviceBufferViewMut<'_, T>, MemoryError> {
        self.reborrow().into_slice(range)
    }

    /// As [`DeviceBufferViewMut::slice_mut`], for as long as this view lasts.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn into_slice(self, range: Range<usize>) -> Result<Self, MemoryError> {
        Ok(Self::of(self.part.slice(range)?))
    }

    /// The elements before `middle`, and those from there on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn split_at_mut(
        &mut self,
        middle: usize,
    ) -> Result<(DeviceBufferViewMut<'_, T>, DeviceBufferViewMut<'_, T>), MemoryError> {
        self.reborrow().into_split_at(middle)
    }

    /// As [`DeviceBufferViewMut::split_at_mut`], for as long as this view lasts.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn into_split_at(self, middle: usize) -> Result<(Self, Self), MemoryError> {
        let part = self.part;
        Ok((Self::of(part.slice(0..middle)?), Self::of(part.slice(middle..part.len)?)))
    }

    /// Views of `size` elements each; the last one may be shorter.
    ///
    /// # Errors
    /// [`MemoryError::Shape`] for a size of 0.
    pub fn into_chunks(self, size: usize) -> Result<ChunksMut<'a, T>, MemoryError> {
        if size == 0 {
            let (buffer, what) = (self.part.allocation.name(), "chunks of 0 elements".into());
            return Err(MemoryError::Shape { buffer, what });
        }
        Ok(ChunksMut { rest: self.part, size, marker: PhantomData })
    }

    /// The columns before `middle` of a matrix of rows of `pitch` elements, and those from there on. Both may be written by
    /// one launch; between launches each counts as the span it covers.
    ///
    /// # Errors
    /// [`MemoryError::Shape`].
    pub fn into_split_columns(
        self,
        pitch: usize,
        middle: usize,
    ) -> Result<(DeviceColumnsMut<'a, T>, DeviceColumnsMut<'a, T>), MemoryError> {
        let left = DeviceColumnsMut::new(self.part, pitch, 0..middle)?;
        Ok((left, DeviceColumnsMut::new(self.part, pitch, middle..pitch)?))
    }

    /// Queues a copy of `source` over these elements. `source` is not touched after the call.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from_slice`].
    pub fn copy_from_slice(&mut self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        self.part.upload(stream, source)
    }

    /// Queues a copy of other elements, as many and of the same context, over these.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from`].
    pub fn copy_from<'b>(
        &mut self,
        stream: &Arc<Stream>,
        source: impl Into<DeviceBufferView<'b, T>>,
    ) -> Result<(), MemoryError>
    where
        T: 'b,
    {
        let source: DeviceBufferView<'_, T> = source.into();
        self.part.copy_from(stream.submit(), source.part).map(drop)
    }

    /// Queues setting every element to `value`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::fill`].
    pub fn fill(&mut self, stream: &Arc<Stream>, value: T) -> Result<(), MemoryError> {
        self.part.fill(stream.submit(), value).map(drop)
    }

    /// Queues setting every byte to 0.
    ///
    /// # Errors
    /// As [`DeviceBuffer::fill`].
    pub fn zero(&mut self, stream: &Arc<Stream>) -> Result<(), MemoryError> {
        self.part.zero(stream.submit()).map(drop)
    }
}

impl<T: DeviceCopy> MemoryMut for DeviceBufferViewMut<'_, T> {
    fn touched_mut(&mut self) -> Touch<'_> {
        self.part.access_of(Mode::Write)
    }
}

impl<T: DeviceCopy> DeviceMemoryMut for DeviceBufferViewMut<'_, T> {}

/// Exclusive views, one after the other.
pub struct ChunksMut<'a, T: DeviceCopy> {
    rest: Part<'a, T>,
    size: usize,
    marker: PhantomData<&'a mut [T]>,
}

impl<'a, T: DeviceCopy> Iterator for ChunksMut<'a, T> {
    type Item = DeviceBufferViewMut<'a, T>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.len == 0 {
            return None;
        }
        let size = self.size.min(self.rest.len);
        // Both ranges are inside.
        let (first, rest) = (self.rest.slice(0..size).ok()?, self.rest.slice(size..self.rest.len).ok()?);
        self.rest = rest;
        Some(DeviceBufferViewMut::of(first))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len.div_ceil(self.size);
        (left, Some(left))
    }
}

impl<T: DeviceCopy> ExactSizeIterator for ChunksMut<'_, T> {}

impl<T: DeviceCopy> fmt::Debug for ChunksMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunksMut({} elements in chunks of {})", self.rest.len, self.size)
    }
}

impl<'a, T: DeviceCopy> From<&'a DeviceBuffer<T>> for DeviceBufferView<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.view()
    }
}

impl<'a, T: DeviceCopy> From<&'a mut DeviceBuffer<T>> for DeviceBufferViewMut<'a, T> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        buffer.view_mut()
    }
}

impl<'a, T: DeviceCopy> From<&DeviceBufferView<'a, T>> for DeviceBufferView<'a, T> {
    fn from(view: &DeviceBufferView<'a, T>) -> Self {
        *view
    }
}

impl<'a, T: DeviceCopy> From<&'a DeviceBufferViewMut<'_, T>> for DeviceBufferView<'a, T> {
    fn from(view: &'a DeviceBufferViewMut<'_, T>) -> Self {
        view.as_view()
    }
}

impl<'a, T: DeviceCopy> From<&'a mut DeviceBufferViewMut<'_, T>> for DeviceBufferViewMut<'a, T> {
    fn from(view: &'a mut DeviceBufferViewMut<'_, T>) -> Self {
        view.reborrow()
    }
}
