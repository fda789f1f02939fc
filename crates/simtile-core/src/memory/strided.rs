//! Strided views: some columns of a matrix that lies row by row.
//!
//! To other submissions a strided view counts as the span it covers, from its first byte to its last. Two exclusive ones in
//! one submission are compared element by element, so the left and the right half of a matrix may be written by one launch.

use super::part::Part;
use super::sealed::{Memory, MemoryMut};
use super::{DeviceMemory, DeviceMemoryMut};
use crate::Stream;
use crate::error::MemoryError;
use crate::stream::{Reach, Touch};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use simtile_driver::call;
use simtile_driver::sys::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype};
use simtile_hazard::Mode;
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// Which elements of a matrix.
#[derive(Clone, Copy)]
struct Columns<'a, T> {
    /// From the first element of the first row to the last element of the last.
    span: Part<'a, T>,
    /// Elements from row to row.
    pitch: usize,
    /// Elements of a row.
    width: usize,
    rows: usize,
}

/// Some columns of a matrix, shared.
pub struct DeviceColumns<'a, T: DeviceCopy> {
    columns: Columns<'a, T>,
    marker: PhantomData<&'a [T]>,
}

/// Some columns of a matrix, exclusively.
pub struct DeviceColumnsMut<'a, T: DeviceCopy> {
    columns: Columns<'a, T>,
    marker: PhantomData<&'a mut [T]>,
}

impl<'a, T> Columns<'a, T> {
    fn new(matrix: Part<'a, T>, pitch: usize, columns: Range<usize>) -> Result<Self, MemoryError> {
        let shape = |what: String| MemoryError::Shape { buffer: matrix.allocation.name(), what };
        if pitch == 0 {
            return Err(shape("rows of 0 elements".into()));
        }
        if !matrix.len.is_multiple_of(pitch) {
            return Err(shape(format!("{} elements are no whole rows of {pitch}", matrix.len)));
        }
        if columns.start > columns.end || columns.end > pitch {
            let Range { start, end } = columns;
            return Err(shape(format!("columns {start}..{end} of rows of {pitch} elements")));
        }
        let (rows, width) = (matrix.len / pitch, columns.end - columns.start);
        let span = match (rows, width) {
            (0, _) | (_, 0) => matrix.slice(0..0)?,
            _ => matrix.slice(columns.start..(rows - 1) * pitch + columns.end)?,
        };
        Ok(Self { span, pitch, width, rows })
    }

    fn touch(&self, mode: Mode) -> Touch<'a> {
        let size = size_of::<T>();
        let stride = (self.width < self.pitch).then_some((self.width * size, self.pitch * size));
        Touch { stride, ..self.span.access_of(mode) }
    }
}

macro_rules! common {
    ($name:ident) => {
        impl<'a, T: DeviceCopy> $name<'a, T> {
            pub(super) fn new(
                matrix: Part<'a, T>,
                pitch: usize,
                columns: Range<usize>,
            ) -> Result<Self, MemoryError> {
                Ok(Self { columns: Columns::new(matrix, pitch, columns)?, marker: PhantomData })
            }

            /// Rows.
            pub fn rows(&self) -> usize {
                self.columns.rows
            }

            /// Elements of a row.
            pub fn width(&self) -> usize {
                self.columns.width
            }

            /// Elements from the start of a row to the start of the next.
            pub fn pitch(&self) -> usize {
                self.columns.pitch
            }

            /// Device address of the first element; 0 if there are none.
            pub fn cu_deviceptr(&self) -> CUdeviceptr {
                self.columns.span.address()
            }

            /// Waits for everything before on the span and gives the elements, row by row.
            ///
            /// # Errors
            /// As [`DeviceBuffer::to_vec`](crate::DeviceBuffer::to_vec).
            pub fn to_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
                let Columns { span, pitch, width, .. } = self.columns;
                let all = span.download(stream, 0)?;
                Ok(all.chunks(pitch).flat_map(|row| &row[..width.min(row.len())]).copied().collect())
            }
        }

        impl<T: DeviceCopy> Memory for $name<'_, T> {
            fn touched(&self, mode: Mode) -> Touch<'_> {
                self.columns.touch(mode)
            }

            fn element_bytes(&self) -> usize {
                size_of::<T>()
            }

            fn shared_mode(&self) -> Mode {
                super::shared_mode::<T>()
            }

            fn address(&self) -> CUdeviceptr {
                self.columns.span.address()
            }
        }

        impl<T: DeviceCopy> DeviceMemory for $name<'_, T> {}

        impl<T: DeviceCopy> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Columns { span, pitch, width, rows } = self.columns;
                let bytes = span.offset..span.end();
                f.debug_struct(stringify!($name))
                    .field("of", &span.allocation.name())
                    .field("type", &core::any::type_name::<T>())
                    .field("rows", &rows)
                    .field("width", &width)
                    .field("pitch", &pitch)
                    .field("bytes", &bytes)
                    .finish()
            }
        }
    };
}

common! { DeviceColumns }
common! { DeviceColumnsMut }

impl<T: DeviceCopy> Clone for DeviceColumns<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: DeviceCopy> Copy for DeviceColumns<'_, T> {}

impl<'a, T: DeviceCopy> DeviceColumnsMut<'a, T> {
    /// The same elements, shared.
    pub fn as_columns(&self) -> DeviceColumns<'_, T> {
        DeviceColumns { columns: self.columns, marker: PhantomData }
    }

    /// Queues a copy of other columns, of the same shape and context, over these.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`] (in rows, or elements of a row),
    /// [`MemoryError::OtherContext`], or the driver's.
    pub fn copy_from(
        &mut self,
        stream: &Arc<Stream>,
        source: DeviceColumns<'_, T>,
    ) -> Result<(), MemoryError> {
        let (to, from) = (self.columns, source.columns);
        to.span.same_len("rows of source", to.rows, from.rows)?;
        to.span.same_len("width of source", to.width, from.width)?;
        let size = size_of::<T>();
        // Rows that lie `pitch` apart have room for each other: the product does not overflow.
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: core::ptr::null(),
            srcDevice: from.span.address(),
            srcArray: Default::default(),
            srcPitch: from.pitch * size,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: core::ptr::null_mut(),
            dstDevice: to.span.address(),
            dstArray: Default::default(),
            dstPitch: to.pitch * size,
            WidthInBytes: to.width * size,
            Height: to.rows,
        };
        let anything = to.span.num_bytes() > 0;
        let on =
            || format!("copy of columns of {} to {}", from.span.allocation.name(), to.span.allocation.name());
        let builder = stream.submit().touch(from.touch(Mode::Read)).touch(to.touch(Mode::Write));
        // Addresses alone do not say whose memory it is: between contexts that takes a grant.
        let together = **from.span.allocation.context() == **to.span.allocation.context();
        let reach = if together { Reach::Local } else { Reach::Kernel };
        builder.reach(reach).run::<MemoryError>(anything, on, |driver, raw| {
            // SAFETY: all rows are inside their allocations; no element is in both, or the tracker refuses.
            unsafe { call!(driver, cuMemcpy2DAsync(&copy, raw)) }
        })?;
        Ok(())
    }
}

impl<T: DeviceCopy> MemoryMut for DeviceColumnsMut<'_, T> {
    fn touched_mut(&mut self) -> Touch<'_> {
        self.columns.touch(Mode::Write)
    }
}

impl<T: DeviceCopy> DeviceMemoryMut for DeviceColumnsMut<'_, T> {}
