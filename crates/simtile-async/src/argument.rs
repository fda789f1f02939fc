//! Arguments that may be values or operations.

use crate::combine::{SharedDeviceOp, Value, value};
use crate::{DeviceOp, DeviceOutput};
use simtile_core::{
    DeviceBox, DeviceBuffer, DeviceBufferView, DeviceBufferViewMut, DevicePointer, Function, OnDevice,
    PinnedHostBuffer, RawDeviceBuffer,
};
use simtile_types::DeviceCopy;
use std::sync::Arc;

/// What a function may take for a `T` of an operation: a value that is there, or an operation that makes one.
///
/// Every operation is an argument of its output, a shared operation also of the value behind its `Arc`'s reference count. Values are: numbers,
/// device memory owned or borrowed, addresses, kernels, `Arc`s and references to `Arc`s. [`op_argument!`](crate::op_argument) says so of types
/// of your own.
///
/// ```
/// use simtile_async::{DeviceOp, IntoDeviceOp, fill, upload, zip};
/// use simtile_core::DeviceBuffer;
///
/// /// Fills a buffer that is there, or that is still to be made, with a value likewise.
/// fn filled(
///     buffer: impl IntoDeviceOp<DeviceBuffer<f32>>,
///     value: impl IntoDeviceOp<f32>,
/// ) -> impl DeviceOp<Output = DeviceBuffer<f32>> {
///     zip!(buffer.into_op(), value.into_op()).then(|(buffer, value)| fill(buffer, value))
/// }
/// let op = filled(upload(vec![0.0; 4]), 2.5);
/// # drop(op);
/// ```
pub trait IntoDeviceOp<T> {
    /// The operation.
    type Op: DeviceOp<Output = T>;

    /// The operation that gives it.
    fn into_op(self) -> Self::Op;
}

impl<A: DeviceOp> IntoDeviceOp<A::Output> for A {
    type Op = A;

    fn into_op(self) -> A {
        self
    }
}

impl<T: DeviceOutput + Send + Sync> IntoDeviceOp<Arc<T>> for &SharedDeviceOp<T> {
    type Op = SharedDeviceOp<T>;

    fn into_op(self) -> SharedDeviceOp<T> {
        self.clone()
    }
}

impl<T: ?Sized + Send + Sync> IntoDeviceOp<Arc<T>> for Arc<T> {
    type Op = Value<Arc<T>>;

    fn into_op(self) -> Self::Op {
        value(self)
    }
}

impl<T: ?Sized + Send + Sync> IntoDeviceOp<Arc<T>> for &Arc<T> {
    type Op = Value<Arc<T>>;

    fn into_op(self) -> Self::Op {
        value(self.clone())
    }
}

/// Says that types are arguments of operations as they are. They are outputs of operations already: see
/// [`plain_output!`](crate::plain_output).
///
/// ```
/// struct Model { layers: usize }
/// simtile_async::plain_output!(Model);
/// simtile_async::op_argument!(Model);
/// ```
#[macro_export]
macro_rules! op_argument {
    ($(($($bound:tt)*) $name:ty),+ $(,)?) => { $(
        impl<$($bound)*> $crate::IntoDeviceOp<Self> for $name {
            type Op = $crate::combine::Value<Self>;

            fn into_op(self) -> Self::Op {
                $crate::value(self)
            }
        }
    )+ };
    ($($name:ty),+ $(,)?) => { $crate::op_argument!($(() $name),+); };
}

op_argument! {
    (), bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64,
    half::f16, half::bf16, String,
    Function, RawDeviceBuffer,
}

op_argument! {
    (T: DeviceCopy + Send + Sync) DeviceBuffer<T>,
    ('a, T: DeviceCopy + Send + Sync) &'a DeviceBuffer<T>,
    ('a, T: DeviceCopy + Send + Sync) &'a mut DeviceBuffer<T>,
    ('a, T: DeviceCopy + Send + Sync) DeviceBufferView<'a, T>,
    ('a, T: DeviceCopy + Send + Sync) DeviceBufferViewMut<'a, T>,
    (T: DeviceCopy + Send + Sync) PinnedHostBuffer<T>,
    (T) DevicePointer<T>,
}

impl<T: ?Sized + OnDevice> IntoDeviceOp<Self> for DeviceBox<T>
where
    T::Element: Send + Sync,
{
    type Op = Value<Self>;

    fn into_op(self) -> Self::Op {
        value(self)
    }
}
