//! Module variables and constants.
//!
//! Any launch of the module's kernels may read them, on any stream, and launches do not say so. A transfer therefore
//! follows everything queued through the context's handle and waits before it returns: what is launched later, anywhere, sees it.

use crate::error::{MemoryError, ModuleError, On, OnStream};
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

    /// Writes values from byte `offset` on. Follows everything queued so far on all streams of the context, and waits.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] in bytes, [`MemoryError::OtherContext`], or the driver's.
    pub fn write<T: DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        offset: usize,
        values: &[T],
    ) -> Result<(), MemoryError> {
        let bytes = size_of_val(values);
        self.transfer(stream, offset, bytes, |place| {
            // SAFETY: the slice is readable; the range is inside the symbol, all uses of which have finished.
            unsafe { stream.upload(place, values.as_ptr().cast(), bytes) }?;
            stream.synchronize().map_err(MemoryError::from_stream)
        })
    }

    /// Reads values from byte `offset` on. Follows everything queued so far on all streams of the context, and waits.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] in bytes, [`MemoryError::OtherContext`], [`MemoryError::InvalidElement`], or the driver's.
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
        self.transfer(stream, offset, bytes, |place| {
            // SAFETY: the vector has room; the range is inside the symbol, all uses of which have finished.
            unsafe { stream.download(target.cast(), place, bytes) }
        })?;
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

    fn transfer(
        &self,
        stream: &Arc<Stream>,
        offset: usize,
        bytes: usize,
        copy: impl FnOnce(&Place<'_>) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        self.range(offset, bytes)?;
        let context = self.module.context();
        stream.same_context(context, || self.to_string()).map_err(MemoryError::from_stream)?;
        if bytes == 0 {
            return Ok(());
        }
        context.usable().on::<MemoryError>(|| self.to_string())?;
        for stamp in context.tracker().tails() {
            let on = || format!("{self} on {stream}");
            context.tracker().wait(stamp).map_err(|error| stream.refused::<MemoryError>(error, &[], on))?;
        }
        copy(&Place { address: self.address + offset as u64, allocation: None })
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

    /// Writes the value. Follows everything queued so far on all streams of the context, and waits.
    ///
    /// # Errors
    /// [`MemoryError::OtherContext`], or the driver's.
    pub fn write(&self, stream: &Arc<Stream>, value: &T) -> Result<(), MemoryError> {
        self.symbol.write(stream, 0, core::slice::from_ref(value))
    }

    /// Reads the value. Follows everything queued so far on all streams of the context, and waits.
    ///
    /// # Errors
    /// [`MemoryError::OtherContext`], [`MemoryError::InvalidElement`], or the driver's.
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
