//! Values that cross the bus as plain bytes.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::num::Wrapping;

/// A value that may be copied to a device and back byte by byte.
///
/// Implemented for integers (128-bit ones too), floats, `half` types, `bool`, arrays, tuples of up to eight
/// parts, raw pointers to sized types, `PhantomData`, `MaybeUninit`, `Wrapping` and the storage newtypes
/// of this crate. Not for `char`, references, `NonZero`, enums, or anything that owns something.
///
/// A pointer that is copied to a device is only bytes there: the host address it names means nothing to the
/// device, and a device address means nothing to the host.
///
/// # Safety
/// * The type owns nothing and has no invariant beyond the validity of its parts: copying its bytes makes
///   an equally good value.
/// * The all-zero pattern is a valid value.
/// * Every byte pattern is a valid value, or [`DeviceCopy::is_valid`] is overridden and tells which are.
/// * [`DeviceCopy::NO_PADDING`] is true only if every byte of every value is initialised.
pub unsafe trait DeviceCopy: Copy {
    /// Whether every byte of every value is initialised: no padding, no `MaybeUninit`.
    /// `false` is always right; `true` allows faster fills.
    const NO_PADDING: bool = false;

    /// Whether kernels update such values with device atomics, also through shared references.
    /// `true` only for values of 2, 4, 8 or 16 bytes.
    const ACCUMULATES: bool = false;

    /// Whether the bytes behind `value`, which came from a device, are a valid value of this type.
    ///
    /// # Safety
    /// `value` is aligned and points to `size_of::<Self>()` readable bytes, initialised except where the type
    /// has padding or `MaybeUninit`. The bytes need not be a valid value.
    unsafe fn is_valid(value: *const Self) -> bool {
        let _ = value;
        true
    }
}

/// A [`DeviceCopy`] value that carries no address, so that a safe launcher may take it by value.
///
/// Raw pointers do not have it, nor does anything that contains one.
///
/// # Safety
/// No part of the type is an address that a kernel could follow.
pub unsafe trait PointerFree: DeviceCopy {}

macro_rules! plain {
    ($($ty:ty)*) => { $(
        // SAFETY: a primitive without padding whose every pattern is valid.
        unsafe impl DeviceCopy for $ty { const NO_PADDING: bool = true; }
        // SAFETY: a number, no address.
        unsafe impl PointerFree for $ty {}
    )* };
}

plain! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

#[cfg(feature = "half")]
plain! { half::f16 half::bf16 }

// SAFETY: one byte that is 0 or 1; zero is `false`. `is_valid` refuses the rest.
unsafe impl DeviceCopy for bool {
    const NO_PADDING: bool = true;

    unsafe fn is_valid(value: *const Self) -> bool {
        // SAFETY: the caller gives one readable, initialised byte.
        unsafe { value.cast::<u8>().read() <= 1 }
    }
}
// SAFETY: no address.
unsafe impl PointerFree for bool {}

// SAFETY: no bytes.
unsafe impl DeviceCopy for () {
    const NO_PADDING: bool = true;
}
// SAFETY: no bytes.
unsafe impl PointerFree for () {}

// SAFETY: an array has no bytes but its elements'.
unsafe impl<T: DeviceCopy, const N: usize> DeviceCopy for [T; N] {
    const NO_PADDING: bool = T::NO_PADDING;

    unsafe fn is_valid(value: *const Self) -> bool {
        let first = value.cast::<T>();
        // SAFETY: element `i` lies inside the array that the caller vouches for.
        (0..N).all(|i| unsafe { T::is_valid(first.add(i)) })
    }
}
// SAFETY: the elements carry none.
unsafe impl<T: PointerFree, const N: usize> PointerFree for [T; N] {}

macro_rules! tuples {
    ($(($($part:ident . $index:tt),+))*) => { $(
        // SAFETY: a tuple's bytes are its parts' and padding, which `NO_PADDING` leaves false.
        unsafe impl<$($part: DeviceCopy),+> DeviceCopy for ($($part,)+) {
            unsafe fn is_valid(value: *const Self) -> bool {
                // SAFETY: each part lies inside the tuple that the caller vouches for.
                unsafe { $($part::is_valid(&raw const (*value).$index))&&+ }
            }
        }
        // SAFETY: the parts carry none.
        unsafe impl<$($part: PointerFree),+> PointerFree for ($($part,)+) {}
    )* };
}

tuples! {
    (A.0)
    (A.0, B.1)
    (A.0, B.1, C.2)
    (A.0, B.1, C.2, D.3)
    (A.0, B.1, C.2, D.3, E.4)
    (A.0, B.1, C.2, D.3, E.4, F.5)
    (A.0, B.1, C.2, D.3, E.4, F.5, G.6)
    (A.0, B.1, C.2, D.3, E.4, F.5, G.6, H.7)
}

// SAFETY: a thin pointer; every pattern, null included, is a valid raw pointer.
unsafe impl<T> DeviceCopy for *const T {
    const NO_PADDING: bool = true;
}
// SAFETY: as above.
unsafe impl<T> DeviceCopy for *mut T {
    const NO_PADDING: bool = true;
}

// SAFETY: no bytes.
unsafe impl<T: ?Sized> DeviceCopy for PhantomData<T> {
    const NO_PADDING: bool = true;
}
// SAFETY: no bytes.
unsafe impl<T: ?Sized> PointerFree for PhantomData<T> {}

// SAFETY: any bytes are a valid `MaybeUninit`; the bound keeps owners out.
unsafe impl<T: DeviceCopy> DeviceCopy for MaybeUninit<T> {}
// SAFETY: holds at most a value without addresses.
unsafe impl<T: PointerFree> PointerFree for MaybeUninit<T> {}

// SAFETY: `Wrapping` is `repr(transparent)`.
unsafe impl<T: DeviceCopy> DeviceCopy for Wrapping<T> {
    const NO_PADDING: bool = T::NO_PADDING;

    unsafe fn is_valid(value: *const Self) -> bool {
        // SAFETY: same address, same layout.
        unsafe { T::is_valid(value.cast()) }
    }
}
// SAFETY: as what it wraps.
unsafe impl<T: PointerFree> PointerFree for Wrapping<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid<T: DeviceCopy, const N: usize>(bytes: [u8; N]) -> bool {
        assert_eq!(N, size_of::<T>());
        let mut slot = MaybeUninit::<T>::uninit();
        // SAFETY: the slot has exactly these bytes and T's alignment.
        unsafe {
            slot.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), N);
            T::is_valid(slot.as_ptr())
        }
    }

    #[test]
    fn a_bool_is_zero_or_one() {
        assert!(valid::<bool, 1>([0]));
        assert!(valid::<bool, 1>([1]));
        assert!(!valid::<bool, 1>([2]));
    }

    #[test]
    fn validity_reaches_into_arrays_tuples_and_wrappers() {
        assert!(valid::<[bool; 3], 3>([1, 0, 1]));
        assert!(!valid::<[bool; 3], 3>([1, 0, 7]));
        assert!(valid::<(bool, u8), 2>([1, 200]) || valid::<(bool, u8), 2>([200, 1]));
        assert!(!valid::<[(bool, bool); 2], 4>([0, 1, 3, 0]));
        assert!(!valid::<Wrapping<bool>, 1>([9]));
        assert!(valid::<MaybeUninit<bool>, 1>([9]));
    }

    #[test]
    fn padding_is_never_promised_away() {
        const { assert!(!<(u8, u32) as DeviceCopy>::NO_PADDING) };
        const { assert!(!<MaybeUninit<u32> as DeviceCopy>::NO_PADDING) };
        const { assert!(<[[u16; 2]; 3] as DeviceCopy>::NO_PADDING) };
    }
}
