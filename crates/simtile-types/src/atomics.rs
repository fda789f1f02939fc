//! Values that kernels update with device atomics.
//!
//! A buffer of these is given to several kernels at once by shared references: each launch *accumulates*, and accumulations of one size
//! commute, so none waits for another. What reads the values plainly still follows all of them.

use crate::{DeviceCopy, DeviceRepr, PointerFree};

macro_rules! atomics {
    ($($(#[$meta:meta])* $name:ident($inner:ty))*) => { $(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name($inner);

        impl $name {
            /// A value.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The value.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }

        impl From<$name> for $inner {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        // SAFETY: a number in a transparent wrapper.
        unsafe impl DeviceCopy for $name {
            const NO_PADDING: bool = true;
            const ACCUMULATES: bool = true;
        }
        // SAFETY: a number, no address.
        unsafe impl PointerFree for $name {}
        // SAFETY: a transparent wrapper without an invariant.
        unsafe impl DeviceRepr<$inner> for $name {}
    )* };
}

atomics! {
    /// A `u32` that kernels update atomically.
    DeviceAtomicU32(u32)
    /// An `i32` that kernels update atomically.
    DeviceAtomicI32(i32)
    /// A `u64` that kernels update atomically.
    DeviceAtomicU64(u64)
    /// An `i64` that kernels update atomically.
    DeviceAtomicI64(i64)
    /// An `f32` that kernels update atomically.
    DeviceAtomicF32(f32)
    /// An `f64` that kernels update atomically.
    DeviceAtomicF64(f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_have_the_layout_of_their_numbers() {
        macro_rules! check {
            ($($name:ident $inner:ty = $value:expr;)*) => { $(
                assert_eq!((size_of::<$name>(), align_of::<$name>()), (size_of::<$inner>(), align_of::<$inner>()));
                assert_eq!($name::new($value).get(), $value);
                assert_eq!(<$inner>::from($name::from($value)), $value);
                const { assert!($name::ACCUMULATES && $name::NO_PADDING && !<$inner>::ACCUMULATES) };
            )* };
        }
        check! {
            DeviceAtomicU32 u32 = 7;
            DeviceAtomicI32 i32 = -7;
            DeviceAtomicU64 u64 = 1 << 40;
            DeviceAtomicI64 i64 = -1;
            DeviceAtomicF32 f32 = 1.5;
            DeviceAtomicF64 f64 = -0.25;
        }
    }
}
