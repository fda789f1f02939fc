//! Storage newtypes: bits of number formats that Rust has no type for.
//!
//! They store, compare and convert to `f32` (exactly: every value of each format is an `f32`). Arithmetic
//! happens on the device.
#![allow(non_camel_case_types, reason = "the formats' own names, next to f32 and u8")]

use crate::{DeviceCopy, PointerFree};
use core::fmt;

macro_rules! storage {
    ($($(#[$doc:meta])* $name:ident($bits:ty);)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($bits);

        impl $name {
            /// The value with these bits.
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> $bits {
                self.0
            }
        }

        // SAFETY: transparent over an integer; every pattern is a value.
        unsafe impl DeviceCopy for $name { const NO_PADDING: bool = true; }
        // SAFETY: a number, no address.
        unsafe impl PointerFree for $name {}
    )* };
}

storage! {
    /// TensorFloat-32: the bits of an `f32` of which the hardware uses the upper 19.
    tf32(u32);
    /// 8-bit float: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity, `0x7F` and `0xFF` are NaN.
    f8e4m3fn(u8);
    /// 8-bit float: sign, 5 exponent bits (bias 15), 2 mantissa bits; infinities and NaN as in IEEE 754.
    f8e5m2(u8);
    /// 8-bit power of two: value 2^(bits - 127), `0xFF` is NaN. There is no zero and no sign.
    f8e8m0fnu(u8);
    /// Unsigned 8-bit float: 5 exponent bits (bias 15), 3 mantissa bits; no infinity, `0xFF` is NaN.
    f8e5m3fnu(u8);
    /// Two [`f4e2m1fn`] in a byte, the low nibble first.
    f4e2m1fnx2(u8);
}

/// 4-bit float: sign, 2 exponent bits (bias 1), 1 mantissa bit. All values are finite.
///
/// Not [`DeviceCopy`]: device memory holds them in pairs, see [`f4e2m1fnx2`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct f4e2m1fn(u8);

/// 4-bit signed integer, -8 to 7.
///
/// Not [`DeviceCopy`]: device memory holds them in pairs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct i4(u8);

/// The value of a small float, exactly. `mantissa_bits` below an exponent field with `bias`; the caller has
/// dealt with sign, infinities and NaN.
fn decode(magnitude: u8, mantissa_bits: u32, bias: i32) -> f32 {
    let exponent = i32::from(magnitude >> mantissa_bits);
    let mantissa = u32::from(magnitude) & ((1 << mantissa_bits) - 1);
    // Subnormals have the exponent of the first normal and no hidden bit.
    let (significand, exponent) = match exponent {
        0 => (mantissa, 1 - bias),
        e => (mantissa | 1 << mantissa_bits, e - bias),
    };
    significand as f32 * exp2(exponent - mantissa_bits as i32)
}

/// 2^n as an `f32`, for n in -149..=127.
fn exp2(n: i32) -> f32 {
    if n >= -126 { f32::from_bits(((n + 127) as u32) << 23) } else { f32::from_bits(1 << (n + 149)) }
}

fn signed(value: f32, negative: bool) -> f32 {
    if negative { -value } else { value }
}

impl tf32 {
    /// The value as an `f32`: the 13 bits that the hardware ignores are cleared.
    pub const fn to_f32(self) -> f32 {
        f32::from_bits(self.0 & !0x1FFF)
    }
}

impl f8e4m3fn {
    /// The value as an `f32`, exactly.
    pub fn to_f32(self) -> f32 {
        match self.0 & 0x7F {
            0x7F => f32::NAN,
            magnitude => signed(decode(magnitude, 3, 7), self.0 & 0x80 != 0),
        }
    }
}

impl f8e5m2 {
    /// The value as an `f32`, exactly.
    pub fn to_f32(self) -> f32 {
        match self.0 & 0x7F {
            0x7C => signed(f32::INFINITY, self.0 & 0x80 != 0),
            0x7D.. => f32::NAN,
            magnitude => signed(decode(magnitude, 2, 15), self.0 & 0x80 != 0),
        }
    }
}

impl f8e8m0fnu {
    /// The value as an `f32`, exactly.
    pub fn to_f32(self) -> f32 {
        match self.0 {
            0xFF => f32::NAN,
            bits => exp2(i32::from(bits) - 127),
        }
    }
}

impl f8e5m3fnu {
    /// The value as an `f32`, exactly.
    pub fn to_f32(self) -> f32 {
        match self.0 {
            0xFF => f32::NAN,
            bits => decode(bits, 3, 15),
        }
    }
}

impl f4e2m1fn {
    /// The value with these bits.
    ///
    /// Only the lower four bits are used.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0xF)
    }

    /// Its bits, 0 to 15.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The value as an `f32`, exactly.
    pub fn to_f32(self) -> f32 {
        signed(decode(self.0 & 7, 1, 1), self.0 & 8 != 0)
    }
}

impl f4e2m1fnx2 {
    /// Two numbers in a byte.
    pub const fn from_nibbles(low: f4e2m1fn, high: f4e2m1fn) -> Self {
        Self(low.0 | high.0 << 4)
    }

    /// The first number: the low nibble.
    pub const fn low(self) -> f4e2m1fn {
        f4e2m1fn(self.0 & 0xF)
    }

    /// The second number: the high nibble.
    pub const fn high(self) -> f4e2m1fn {
        f4e2m1fn(self.0 >> 4)
    }
}

impl i4 {
    /// The value with these bits in two's complement.
    ///
    /// Only the lower four bits are used.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0xF)
    }

    /// Its bits, 0 to 15.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The value, -8 to 7.
    pub const fn to_i8(self) -> i8 {
        ((self.0 << 4) as i8) >> 4
    }

    /// The value, or `None` outside -8 to 7.
    pub const fn from_i8(value: i8) -> Option<Self> {
        if value >= -8 && value <= 7 { Some(Self(value as u8 & 0xF)) } else { None }
    }
}

macro_rules! show {
    ($($name:ident)*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    )* };
}

show! { tf32 f8e4m3fn f8e5m2 f8e8m0fnu f8e5m3fnu f4e2m1fn }

impl fmt::Debug for f4e2m1fnx2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.low(), self.high())
    }
}

impl fmt::Debug for i4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_i8().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_of_each_format() {
        assert_eq!(f8e4m3fn::from_bits(0x7E).to_f32(), 448.0);
        assert_eq!(f8e4m3fn::from_bits(0x01).to_f32(), 0.001953125);
        assert_eq!(f8e4m3fn::from_bits(0xFE).to_f32(), -448.0);
        assert!(f8e4m3fn::from_bits(0xFF).to_f32().is_nan());
        assert_eq!(f8e5m2::from_bits(0x7B).to_f32(), 57344.0);
        assert_eq!(f8e5m2::from_bits(0xFC).to_f32(), f32::NEG_INFINITY);
        assert!(f8e5m2::from_bits(0x7D).to_f32().is_nan());
        assert_eq!(f8e8m0fnu::from_bits(0).to_f32(), 2f32.powi_exact(-127));
        assert_eq!(f8e8m0fnu::from_bits(0xFE).to_f32(), 2f32.powi_exact(127));
        assert_eq!(f8e5m3fnu::from_bits(0xFE).to_f32(), 114688.0);
        let four_bit: [f32; 8] = core::array::from_fn(|i| f4e2m1fn::from_bits(i as u8).to_f32());
        assert_eq!(four_bit, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    }

    trait PowiExact {
        fn powi_exact(self, n: i32) -> f32;
    }

    impl PowiExact for f32 {
        // By repeated multiplication in f64, where every step is exact.
        fn powi_exact(self, n: i32) -> f32 {
            let mut value = 1f64;
            for _ in 0..n.unsigned_abs() {
                value = if n < 0 { value / f64::from(self) } else { value * f64::from(self) };
            }
            value as f32
        }
    }

    #[test]
    fn nibbles_keep_their_order() {
        let pair = f4e2m1fnx2::from_nibbles(f4e2m1fn::from_bits(3), f4e2m1fn::from_bits(0xC));
        assert_eq!(pair.to_bits(), 0xC3);
        assert_eq!((pair.low().to_f32(), pair.high().to_f32()), (1.5, -2.0));
        for value in -8..=7 {
            assert_eq!(i4::from_i8(value).map(i4::to_i8), Some(value));
        }
        assert_eq!(i4::from_i8(8), None);
    }
}
