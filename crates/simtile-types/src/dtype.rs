//! Element types of Tile tensors.

use crate::{DeviceCopy, PointerFree, f4e2m1fnx2, f8e4m3fn, f8e5m2, f8e5m3fnu, f8e8m0fnu, tf32};
use core::fmt;

macro_rules! dtype_ids {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $bytes:literal;)*) => {
        /// The element types, as values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum DTypeId { $($(#[$doc])* $id),* }

        impl DTypeId {
            /// All of them.
            pub const ALL: &'static [DTypeId] = &[$(DTypeId::$id),*];

            /// The name that Tile IR and this crate use: `"f32"`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$id => $name),* }
            }

            /// Size of one stored element in bytes. [`DTypeId::F4E2M1FNX2`] stores two numbers in one.
            pub const fn size_in_bytes(self) -> usize {
                match self { $(Self::$id => $bytes),* }
            }

            /// The element type of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|id| id.as_str() == name)
            }
        }
    };
}

dtype_ids! {
    /// One byte, 0 or 1.
    Bool = "bool", 1;
    /// Unsigned, 8 bits.
    U8 = "u8", 1;
    /// Unsigned, 16 bits.
    U16 = "u16", 2;
    /// Unsigned, 32 bits.
    U32 = "u32", 4;
    /// Unsigned, 64 bits.
    U64 = "u64", 8;
    /// Signed, 8 bits.
    I8 = "i8", 1;
    /// Signed, 16 bits.
    I16 = "i16", 2;
    /// Signed, 32 bits.
    I32 = "i32", 4;
    /// Signed, 64 bits.
    I64 = "i64", 8;
    /// IEEE half precision.
    F16 = "f16", 2;
    /// bfloat16.
    BF16 = "bf16", 2;
    /// IEEE single precision.
    F32 = "f32", 4;
    /// TensorFloat-32 in a 4-byte slot.
    TF32 = "tf32", 4;
    /// IEEE double precision.
    F64 = "f64", 8;
    /// 1-4-3 bits, finite and NaN, no infinity.
    F8E4M3FN = "f8e4m3fn", 1;
    /// 1-5-2 bits, IEEE-like.
    F8E5M2 = "f8e5m2", 1;
    /// 8 exponent bits, nothing else: powers of two for block scales.
    F8E8M0FNU = "f8e8m0fnu", 1;
    /// Unsigned, 5 exponent and 3 mantissa bits.
    F8E5M3FNU = "f8e5m3fnu", 1;
    /// Two 1-2-1 numbers in a byte.
    F4E2M1FNX2 = "f4e2m1fnx2", 1;
}

impl fmt::Display for DTypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An element type of Tile tensors.
///
/// # Safety
/// `DTYPE` describes exactly this type's layout: its size is `DTYPE.size_in_bytes()`.
pub unsafe trait DType:
    DeviceCopy + PointerFree + fmt::Debug + PartialEq + Send + Sync + 'static
{
    /// The element type as a value.
    const DTYPE: DTypeId;

    /// The number 0. [`f8e8m0fnu`] has no zero; its smallest value 2^-127, the all-zero pattern, stands in.
    fn zero() -> Self;

    /// The number 1; in [`f4e2m1fnx2`] both halves are 1.
    fn one() -> Self;
}

macro_rules! dtypes {
    ($($ty:ty => $id:ident, $zero:expr, $one:expr;)*) => { $(
        // SAFETY: the size is asserted below.
        unsafe impl DType for $ty {
            const DTYPE: DTypeId = DTypeId::$id;
            fn zero() -> Self { $zero }
            fn one() -> Self { $one }
        }
        const _: () = assert!(size_of::<$ty>() == DTypeId::$id.size_in_bytes());
    )* };
}

dtypes! {
    bool => Bool, false, true;
    u8 => U8, 0, 1;
    u16 => U16, 0, 1;
    u32 => U32, 0, 1;
    u64 => U64, 0, 1;
    i8 => I8, 0, 1;
    i16 => I16, 0, 1;
    i32 => I32, 0, 1;
    i64 => I64, 0, 1;
    f32 => F32, 0.0, 1.0;
    tf32 => TF32, tf32::from_bits(0), tf32::from_bits(0x3F80_0000);
    f64 => F64, 0.0, 1.0;
    f8e4m3fn => F8E4M3FN, f8e4m3fn::from_bits(0), f8e4m3fn::from_bits(0x38);
    f8e5m2 => F8E5M2, f8e5m2::from_bits(0), f8e5m2::from_bits(0x3C);
    f8e8m0fnu => F8E8M0FNU, f8e8m0fnu::from_bits(0), f8e8m0fnu::from_bits(0x7F);
    f8e5m3fnu => F8E5M3FNU, f8e5m3fnu::from_bits(0), f8e5m3fnu::from_bits(0x78);
    f4e2m1fnx2 => F4E2M1FNX2, f4e2m1fnx2::from_bits(0), f4e2m1fnx2::from_bits(0x22);
}

#[cfg(feature = "half")]
dtypes! {
    half::f16 => F16, half::f16::ZERO, half::f16::ONE;
    half::bf16 => BF16, half::bf16::ZERO, half::bf16::ONE;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_nineteen_with_distinct_names() {
        assert_eq!(DTypeId::ALL.len(), 19);
        for &id in DTypeId::ALL {
            assert_eq!(DTypeId::from_name(id.as_str()), Some(id));
        }
        assert_eq!(DTypeId::from_name("f128"), None);
    }

    #[test]
    fn every_id_has_its_name_its_size_and_its_type() {
        use core::fmt::Write as _;
        /// Names without the heap.
        struct Text([u8; 16], usize);
        impl core::fmt::Write for Text {
            fn write_str(&mut self, text: &str) -> core::fmt::Result {
                self.0[self.1..self.1 + text.len()].copy_from_slice(text.as_bytes());
                self.1 += text.len();
                Ok(())
            }
        }
        macro_rules! check {
            ($($ty:ident $name:literal $bytes:literal;)*) => { $(
                let id = <$ty as DType>::DTYPE;
                let mut text = Text([0; 16], 0);
                write!(text, "{id}").unwrap();
                assert_eq!((id.as_str(), id.size_in_bytes()), ($name, $bytes));
                assert_eq!(&text.0[..text.1], $name.as_bytes());
                // The type's own name, as far as it has one of its own.
                assert!(core::any::type_name::<$ty>().ends_with($name));
                // One type an id.
                assert_eq!(DTypeId::from_name($name), Some(id));
            )* };
        }
        check! {
            bool "bool" 1; u8 "u8" 1; u16 "u16" 2; u32 "u32" 4; u64 "u64" 8; i8 "i8" 1; i16 "i16" 2; i32 "i32" 4;
            i64 "i64" 8; f32 "f32" 4; f64 "f64" 8; tf32 "tf32" 4; f8e4m3fn "f8e4m3fn" 1; f8e5m2 "f8e5m2" 1;
            f8e8m0fnu "f8e8m0fnu" 1; f8e5m3fnu "f8e5m3fnu" 1; f4e2m1fnx2 "f4e2m1fnx2" 1;
        }
    }

    #[test]
    fn zero_and_one_of_every_plain_type() {
        macro_rules! check {
            ($($ty:ident)*) => { $(
                assert_eq!(<$ty as DType>::zero(), 0 as $ty);
                assert_eq!(<$ty as DType>::one(), 1 as $ty);
            )* };
        }
        check! { u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }
        assert!(!<bool as DType>::zero() && <bool as DType>::one());
        assert_eq!(f8e5m2::zero().to_f32(), 0.0);
        assert_eq!(f8e5m3fnu::zero().to_f32(), 0.0);
        assert_eq!(tf32::zero().to_f32(), 0.0);
        assert_eq!(f4e2m1fnx2::zero().low().to_f32(), 0.0);
        assert_eq!(f4e2m1fnx2::zero().high().to_f32(), 0.0);
        // It has no zero: the smallest value stands in.
        assert_eq!(f8e8m0fnu::zero().to_bits(), 0);
        #[cfg(feature = "half")]
        assert_eq!((half::f16::one().to_f32(), half::bf16::zero().to_f32()), (1.0, 0.0));
    }

    #[test]
    fn two_halves_of_a_byte_are_kept_as_they_are() {
        for bits in 0..=u8::MAX {
            assert_eq!(f4e2m1fnx2::from_bits(bits).to_bits(), bits);
        }
    }

    #[test]
    fn one_is_one() {
        assert_eq!(f8e4m3fn::one().to_f32(), 1.0);
        assert_eq!(f8e5m2::one().to_f32(), 1.0);
        assert_eq!(f8e8m0fnu::one().to_f32(), 1.0);
        assert_eq!(f8e5m3fnu::one().to_f32(), 1.0);
        assert_eq!(tf32::one().to_f32(), 1.0);
        assert_eq!(f4e2m1fnx2::one().low().to_f32(), 1.0);
        assert_eq!(f4e2m1fnx2::one().high().to_f32(), 1.0);
        assert_eq!(f8e4m3fn::zero().to_f32(), 0.0);
    }
}
