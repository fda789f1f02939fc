//! Module variables and constants.
//!
//! All variables of a module are tracked as one thing. Launches of its kernels read it, or write it
//! ([`Function::global_access`](crate::Function::global_access)), transfers to the host read it, transfers to the device write it;
//! so each follows what conflicts with it, on whatever stream.

use crate::error::{MemoryError, ModuleError};
use crate::memory::{Place, distinct};
use crate::{Module, Stream};
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use simtile_driver::sys::CUdeviceptr;
use simtile_sync::Arc;
use simtile_types::DeviceCopy;

/// A variable of a loaded module. Cheap to clone; keeps its module loaded.
#[derive(Clone)]
pub struct Symbol {
    module: Arc<Module>,
    name: Arc<str>,
    address: CUdeviceptr,
    bytes: usize,
}

impl Symbol {
    pub(crate) fn new(module: Arc<Module>, name: &str, address: CUdeviceptr, bytes: usize) -> Self {
        Self { module, name: name.into(), address, bytes }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn num_bytes(&self) -> usize {
        self.bytes
    }

    /// Its device address. It dies with the module.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.address
    }

    /// The module.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Queues writing values from byte `offset` on. They are not touched after the call.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] in bytes, or the driver's.
    pub fn write<T: DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        offset: usize,
        values: &[T],
    ) -> Result<(), MemoryError> {
        let bytes = size_of_val(values);
        self.range(offset, bytes)?;
        // SAFETY: the slice is readable; the range is inside the symbol.
        unsafe { stream.upload(&self.place(offset), values.as_ptr().cast(), bytes) }
    }

    /// Waits for what writes the module's variables and reads values from byte `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] in bytes, [`MemoryError::InvalidElement`], or the driver's.
    pub fn read<T: DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        offset: usize,
        count: usize,
    ) -> Result<Vec<T>, MemoryError> {
        let too_many =
            || MemoryError::SizeOverflow { count, element_bytes: size_of::<T>(), limit: isize::MAX as usize };
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(too_many)?;
        self.range(offset, bytes)?;
        let mut values: Vec<T> = Vec::new();
        values.try_reserve_exact(count).map_err(|_| too_many())?;
        let target: *mut T = values.as_mut_ptr();
        // SAFETY: the vector has room; the range is inside the symbol.
        unsafe { stream.download(target.cast(), &self.place(offset), bytes) }?;
        for index in 0..distinct::<T>(count) {
            // SAFETY: all elements were written.
            if !unsafe { T::is_valid(target.add(index)) } {
                let (buffer, type_name) = (self.to_string(), core::any::type_name::<T>());
                return Err(MemoryError::InvalidElement { buffer, index, type_name });
            }
        }
        // SAFETY: all elements are written and valid.
        unsafe { values.set_len(count) };
        Ok(values)
    }

    fn place(&self, offset: usize) -> Place<'_> {
        let allocation = self.module.globals().map(|globals| (&**globals, 0));
        Place { address: self.address + offset as u64, allocation }
    }

    fn range(&self, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            end => Err(MemoryError::OutOfRange {
                buffer: self.to_string(),
                start: offset,
                end: end.unwrap_or(usize::MAX),
                len: self.bytes,
            }),
        }
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variable {} of {}", self.name, self.module)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symbol({self}, {:#x}, {} bytes)", self.address, self.bytes)
    }
}

/// A variable of a loaded module as one value of type `T`. Cheap to clone; keeps its module loaded.
pub struct Constant<T: DeviceCopy> {
    symbol: Symbol,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeviceCopy> Constant<T> {
    pub(crate) fn new(symbol: Symbol) -> Result<Self, ModuleError> {
        if symbol.num_bytes() != size_of::<T>() {
            return Err(ModuleError::SymbolSize {
                symbol: symbol.to_string(),
                type_name: core::any::type_name::<T>(),
                expected: size_of::<T>(),
                actual: symbol.num_bytes(),
            });
        }
        Ok(Self { symbol, marker: PhantomData })
    }

    /// The variable without its type.
    pub fn symbol(&self) -> &Symbol {
        &self.symbol
    }

    /// Queues writing the value.
    ///
    /// # Errors
    /// The driver's.
    pub fn write(&self, stream: &Arc<Stream>, value: &T) -> Result<(), MemoryError> {
        self.symbol.write(stream, 0, core::slice::from_ref(value))
    }

    /// Waits for what writes the module's variables and reads the value.
    ///
    /// # Errors
    /// [`MemoryError::InvalidElement`], or the driver's.
    pub fn read(&self, stream: &Arc<Stream>) -> Result<T, MemoryError> {
        let values = self.symbol.read::<MaybeUninit<T>>(stream, 0, 1)?;
        match values.first() {
            // SAFETY: the value is aligned, and its bytes were written.
            Some(value) if unsafe { T::is_valid(value.as_ptr()) } => {
                // SAFETY: written and valid.
                Ok(unsafe { value.assume_init() })
            }
            _ => Err(MemoryError::InvalidElement {
                buffer: self.symbol.to_string(),
                index: 0,
                type_name: core::any::type_name::<T>(),
            }),
        }
    }
}

impl<T: DeviceCopy> Clone for Constant<T> {
    fn clone(&self) -> Self {
        Self { symbol: self.symbol.clone(), marker: PhantomData }
    }
}

impl<T: DeviceCopy> fmt::Debug for Constant<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Constant<{}>({:?})", core::any::type_name::<T>(), self.symbol)
    }
}

/// A variable of a loaded module as values of type `T`. Cheap to clone; keeps its module loaded.
pub struct Global<T: DeviceCopy> {
    symbol: Symbol,
    len: usize,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeviceCopy> Global<T> {
    pub(crate) fn new(symbol: Symbol) -> Result<Self, ModuleError> {
        let (bytes, size) = (symbol.num_bytes(), size_of::<T>());
        let aligned = bytes == 0 || symbol.cu_deviceptr().is_multiple_of(align_of::<T>() as u64);
        if size == 0 || !bytes.is_multiple_of(size) || !aligned {
            return Err(ModuleError::SymbolSize {
                symbol: symbol.to_string(),
                type_name: core::any::type_name::<T>(),
                expected: size,
                actual: bytes,
            });
        }
        Ok(Self { symbol, len: bytes / size, marker: PhantomData })
    }

    /// The variable without its type.
    pub fn symbol(&self) -> &Symbol {
        &self.symbol
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues writing all elements. `source` is not touched after the call.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], or the driver's.
    pub fn copy_from_slice(&self, stream: &Arc<Stream>, source: &[T]) -> Result<(), MemoryError> {
        if source.len() != self.len {
            let (buffer, argument) = (self.symbol.to_string(), "source");
            let (expected, actual) = (self.len, source.len());
            return Err(MemoryError::LengthMismatch { buffer, argument, expected, actual });
        }
        self.symbol.write(stream, 0, source)
    }

    /// Queues writing some elements, from number `start` on. `source` is not touched after the call.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], or the driver's.
    pub fn copy_from_slice_at(
        &self,
        stream: &Arc<Stream>,
        start: usize,
        source: &[T],
    ) -> Result<(), MemoryError> {
        self.inside(start, source.len())?;
        self.symbol.write(stream, start * size_of::<T>(), source)
    }

    /// Waits for what writes the module's variables and gives all elements.
    ///
    /// # Errors
    /// [`MemoryError::InvalidElement`], or the driver's; also the failure of what writes them.
    pub fn to_vec(&self, stream: &Arc<Stream>) -> Result<Vec<T>, MemoryError> {
        self.symbol.read(stream, 0, self.len)
    }

    /// As [`Global::to_vec`], for `count` elements from number `start` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], else as [`Global::to_vec`].
    pub fn range_to_vec(
        &self,
        stream: &Arc<Stream>,
        start: usize,
        count: usize,
    ) -> Result<Vec<T>, MemoryError> {
        self.inside(start, count)?;
        self.symbol.read(stream, start * size_of::<T>(), count)
    }

    fn inside(&self, start: usize, count: usize) -> Result<(), MemoryError> {
        match start.checked_add(count) {
            Some(end) if end <= self.len => Ok(()),
            end => Err(MemoryError::OutOfRange {
                buffer: self.symbol.to_string(),
                start,
                end: end.unwrap_or(usize::MAX),
                len: self.len,
            }),
        }
    }
}

impl<T: DeviceCopy> Clone for Global<T> {
    fn clone(&self) -> Self {
        Self { symbol: self.symbol.clone(), len: self.len, marker: PhantomData }
    }
}

impl<T: DeviceCopy> fmt::Debug for Global<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Global<{}>({:?}, {} elements)", core::any::type_name::<T>(), self.symbol, self.len)
    }
}
