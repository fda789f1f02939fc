//! Tensors in and out.
//!
//! An import is memory of a foreign owner, whose deleter runs after the last use. An export is a buffer out of safe use; the
//! consumer's deleter brings it back, with the consumer's stream if that was told.

use super::abi::*;
use super::{DlpackError, TensorLayout, to_dl};
use crate::error::MemoryError;
use crate::memory::Exported;
use crate::{Context, DeviceBuffer, Stream};
use core::ffi::c_void;
use core::ptr::NonNull;
use simtile_sync::Arc;
use simtile_types::DType;

/// A tensor that was taken in.
#[derive(Debug)]
pub struct Imported<T: DType> {
    /// All bytes from the lowest element to the end of the highest one.
    pub buffer: DeviceBuffer<T>,
    /// Where the elements lie in it: addresses, shape, strides.
    pub layout: TensorLayout,
    /// Whether the producer asked for no writes. They would not be refused.
    pub read_only: bool,
}

/// Runs a producer's deleter once.
enum Deleter {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Old(NonNull<DLManagedTensor>),
}

// SAFETY: by the protocol the deleter may be called on any thread, and nothing else is done with the pointer.
unsafe impl Send for Deleter {}
// SAFETY: as above; a shared reference does nothing.
unsafe impl Sync for Deleter {}

impl Drop for Deleter {
    fn drop(&mut self) {
        // SAFETY: whoever made this gave the tensor up, and the deleter is called once.
        unsafe {
            match *self {
                Self::Versioned(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
                Self::Old(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        }
    }
}

/// Takes a tensor of the current protocol in. It is given up with this call: if it is refused, it is deleted at once.
///
/// # Errors
/// [`MemoryError::Foreign`] with what [`DlpackError`] says, for another element type than `T`, another device than the context's,
/// or a range that reaches into memory that is known.
///
/// # Safety
/// `tensor` comes from a producer that keeps to the protocol, nobody else uses its deleter, and what the producer did with the
/// memory has finished, or the caller orders it with every use of the result.
pub unsafe fn import<T: DType>(
    context: &Arc<Context>,
    tensor: *mut DLManagedTensorVersioned,
) -> Result<Imported<T>, MemoryError> {
    let tensor = NonNull::new(tensor).ok_or_else(|| refused(DlpackError::Null))?;
    // SAFETY: the caller's. A tensor of another version has version, context and deleter in these places, too.
    let DLPackVersion { major, minor } = unsafe { (&raw const (*tensor.as_ptr()).version).read() };
    let deleter = Deleter::Versioned(tensor);
    if major != VERSION.major {
        return Err(refused(DlpackError::Version { major, minor }));
    }
    // SAFETY: the caller's.
    let (flags, inner) = unsafe { (tensor.as_ref().flags, tensor.as_ref().dl_tensor) };
    if flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED != 0 {
        return Err(refused(DlpackError::DataType {
            code: inner.dtype.code.0,
            bits: inner.dtype.bits,
            lanes: inner.dtype.lanes,
        }));
    }
    // SAFETY: the caller's.
    let (buffer, layout) = unsafe { take_in(context, &inner, deleter) }?;
    Ok(Imported { buffer, layout, read_only: flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0 })
}

/// As [`import`], for a tensor of the protocol before 1.0.
///
/// # Errors
/// As [`import`].
///
/// # Safety
/// As [`import`].
pub unsafe fn import_unversioned<T: DType>(
    context: &Arc<Context>,
    tensor: *mut DLManagedTensor,
) -> Result<Imported<T>, MemoryError> {
    let tensor = NonNull::new(tensor).ok_or_else(|| refused(DlpackError::Null))?;
    let deleter = Deleter::Old(tensor);
    // SAFETY: the caller's.
    let inner = unsafe { tensor.as_ref().dl_tensor };
    // SAFETY: the caller's.
    let (buffer, layout) = unsafe { take_in(context, &inner, deleter) }?;
    Ok(Imported { buffer, layout, read_only: false })
}

/// # Safety
/// As [`import`].
unsafe fn take_in<T: DType>(
    context: &Arc<Context>,
    tensor: &DLTensor,
    deleter: Deleter,
) -> Result<(DeviceBuffer<T>, TensorLayout), MemoryError> {
    // SAFETY: the caller's.
    let layout = unsafe { TensorLayout::read(tensor) }.map_err(refused)?;
    let what = || format!("a tensor of {} at {:#x}", layout.dtype(), layout.first());
    if layout.dtype() != T::DTYPE {
        let why = format!("{} is wanted", T::DTYPE);
        return Err(MemoryError::Foreign { what: what(), why });
    }
    let DLDevice { device_type, device_id } = layout.device();
    let here = usize::try_from(device_id).is_ok_and(|id| id == context.ordinal());
    let on_device =
        device_type == DLDeviceType::kDLCUDA && here || device_type == DLDeviceType::kDLCUDAManaged;
    if !on_device {
        let why =
            format!("it is on device {device_id} of type {}, not on {}", device_type.0, context.device());
        return Err(MemoryError::Foreign { what: what(), why });
    }
    let bytes = layout.bytes();
    let len = usize::try_from(bytes.end - bytes.start).unwrap_or(usize::MAX) / size_of::<T>();
    // SAFETY: the caller's; the layout's bytes are whole elements.
    let buffer = unsafe { DeviceBuffer::import(context, bytes.start, len, Some(Box::new(deleter))) }?;
    Ok((buffer, layout))
}

fn refused(error: DlpackError) -> MemoryError {
    MemoryError::Foreign { what: "a foreign tensor".into(), why: error.to_string() }
}

/// What an exported tensor lives by.
struct Holder<T: DType> {
    tensor: DLManagedTensorVersioned,
    exported: Option<Exported<T>>,
    /// The consumer's stream.
    consumer: Option<Arc<Stream>>,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
}

/// Gives an export away as a tensor of the current protocol, with elements from the first one on in row-major order. Whoever gets the pointer calls its
/// deleter once; then the buffer comes back.
///
/// With `consumer` the tensor's consumer is told to use the memory on that stream: it follows what is in flight now, and what comes back follows
/// it. Without, this call waits for what is in flight, and what comes back is quarantined until
/// [`Context::synchronize_all`].
///
/// # Errors
/// [`MemoryError::Shape`] if the shape has another number of elements than the buffer, [`MemoryError::Unsupported`] for an element type that
/// DLPack does not have, or the failure of what is in flight.
///
/// # Leaks
/// The buffer, if the deleter is never called.
///
/// # Safety
/// The consumer uses the memory on `consumer` alone, if that is given, and no more after the deleter has been called but for
/// work that is queued then; it keeps to the read-only flag, and leaves only values of `T`.
pub unsafe fn export<T: DType>(
    exported: Exported<T>,
    shape: &[usize],
    consumer: Option<&Arc<Stream>>,
) -> Result<NonNull<DLManagedTensorVersioned>, MemoryError> {
    let what = || format!("an export of {} elements", exported.len());
    let product = shape.iter().try_fold(1usize, |all, &length| all.checked_mul(length));
    let shape: Option<Box<[i64]>> = shape.iter().map(|&length| i64::try_from(length).ok()).collect();
    let (Some(shape), true) = (shape, product == Some(exported.len())) else {
        let what_shape = format!("the shape has {product:?} elements, the buffer {}", exported.len());
        return Err(MemoryError::Shape { buffer: what(), what: what_shape });
    };
    let Some(dtype) = to_dl(T::DTYPE) else {
        return Err(MemoryError::Unsupported { what: what(), why: format!("DLPack has no {}", T::DTYPE) });
    };
    match consumer {
        Some(stream) => exported.follow_on(stream)?,
        None => exported.wait()?,
    }
    let mut strides: Box<[i64]> = shape.iter().map(|_| 1).collect();
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    let Some(device) = exported.ordinal() else {
        return Err(MemoryError::Foreign { what: what(), why: "it is gone".into() });
    };
    let flags = if exported.is_shared() { DLPACK_FLAG_BITMASK_READ_ONLY } else { 0 };
    let data = core::ptr::with_exposed_provenance_mut::<c_void>(exported.cu_deviceptr() as usize);
    let mut holder = Box::new(Holder {
        tensor: DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: core::ptr::null_mut(),
            deleter: Some(delete::<T>),
            flags,
            dl_tensor: DLTensor {
                data,
                device: DLDevice { device_type: DLDeviceType::kDLCUDA, device_id: device },
                ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
                dtype,
                shape: core::ptr::null_mut(),
                strides: core::ptr::null_mut(),
                byte_offset: 0,
            },
        },
        exported: Some(exported),
        consumer: consumer.cloned(),
        shape,
        strides,
    });
    holder.tensor.dl_tensor.shape = holder.shape.as_mut_ptr();
    holder.tensor.dl_tensor.strides = holder.strides.as_mut_ptr();
    let holder = Box::into_raw(holder);
    // SAFETY: the box was just given up; the pointer to the whole is what the deleter takes back.
    unsafe {
        (*holder).tensor.manager_ctx = holder.cast();
        Ok(NonNull::new_unchecked(&raw mut (*holder).tensor))
    }
}

/// The deleter. Nothing unwinds into the consumer.
unsafe extern "C" fn delete<T: DType>(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the consumer calls with the pointer that it got, once; its context is the holder that `export` gave up.
    let mut holder = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Holder<T>>()) };
    let (exported, consumer) = (holder.exported.take(), holder.consumer.take());
    let end = move || match (exported, consumer) {
        // SAFETY: whoever exported vouches for the stream.
        (Some(exported), Some(stream)) => drop(unsafe { exported.take_back(&stream) }),
        (exported, _) => drop(exported),
    };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(end)).map_err(core::mem::forget);
}
