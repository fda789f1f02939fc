//! `cvt` in all its forms.

use super::float::flush;
use super::half;
use super::{Word, lanes};
use crate::ptx::code::{LaneFn, mode};
use crate::ptx::soft::{self, BF16, Exact, F16, F32, F64, Format, TF32};
use simtile_image::ptx::Type;

/// Types of conversions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::ptx) enum Kind {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
}

const KINDS: [Kind; 13] = [
    Kind::U8,
    Kind::U16,
    Kind::U32,
    Kind::U64,
    Kind::S8,
    Kind::S16,
    Kind::S32,
    Kind::S64,
    Kind::F16,
    Kind::Bf16,
    Kind::Tf32,
    Kind::F32,
    Kind::F64,
];

impl Kind {
    pub(in crate::ptx) fn of(ty: Type) -> Option<Self> {
        Some(match ty {
            Type::U8 => Self::U8,
            Type::U16 => Self::U16,
            Type::U32 => Self::U32,
            Type::U64 => Self::U64,
            Type::S8 => Self::S8,
            Type::S16 => Self::S16,
            Type::S32 => Self::S32,
            Type::S64 => Self::S64,
            Type::F16 => Self::F16,
            Type::Bf16 => Self::Bf16,
            Type::F32 => Self::F32,
            Type::F64 => Self::F64,
            _ => return None,
        })
    }

    pub(in crate::ptx) fn is_float(self) -> bool {
        self as u8 >= Self::F16 as u8
    }

    pub(in crate::ptx) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(in crate::ptx) fn bits(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 8,
            Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::F32 | Self::Tf32 => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    pub(in crate::ptx) fn format(self) -> Format {
        match self {
            Self::F16 => F16,
            Self::Bf16 => BF16,
            Self::Tf32 => TF32,
            Self::F32 => F32,
            _ => F64,
        }
    }
}

const DST_SHIFT: u32 = 16;
const SRC_SHIFT: u32 = 20;

/// The mode word of a conversion.
pub(in crate::ptx) fn mode_word(dst: Kind, src: Kind, flags: u32) -> u32 {
    flags | (dst as u32) << DST_SHIFT | (src as u32) << SRC_SHIFT
}

/// One loop for each pair of kinds.
macro_rules! pairs {
    ($dst:expr, $src:expr) => {
        match $src {
            Kind::U8 => pairs!(@ $dst, U8),
            Kind::U16 => pairs!(@ $dst, U16),
            Kind::U32 => pairs!(@ $dst, U32),
            Kind::U64 => pairs!(@ $dst, U64),
            Kind::S8 => pairs!(@ $dst, S8),
            Kind::S16 => pairs!(@ $dst, S16),
            Kind::S32 => pairs!(@ $dst, S32),
            Kind::S64 => pairs!(@ $dst, S64),
            Kind::F16 => pairs!(@ $dst, F16),
            Kind::Bf16 => pairs!(@ $dst, Bf16),
            Kind::F64 => pairs!(@ $dst, F64),
            Kind::F32 | Kind::Tf32 => pairs!(@ $dst, F32),
        }
    };
    (@ $dst:expr, $src:ident) => {
        match $dst {
            Kind::U8 => pairs!(@@ U8, $src),
            Kind::U16 => pairs!(@@ U16, $src),
            Kind::U32 => pairs!(@@ U32, $src),
            Kind::U64 => pairs!(@@ U64, $src),
            Kind::S8 => pairs!(@@ S8, $src),
            Kind::S16 => pairs!(@@ S16, $src),
            Kind::S32 => pairs!(@@ S32, $src),
            Kind::S64 => pairs!(@@ S64, $src),
            Kind::F16 => pairs!(@@ F16, $src),
            Kind::Bf16 => pairs!(@@ Bf16, $src),
            Kind::F32 => pairs!(@@ F32, $src),
            Kind::F64 => pairs!(@@ F64, $src),
            Kind::Tf32 => pairs!(@@ Tf32, $src),
        }
    };
    (@@ $dst:ident, $src:ident) => {
        lanes!(|a: u64; m| one(a, Kind::$dst, Kind::$src, m))
    };
}

/// The loop for a conversion whose mode word is `m`.
pub(in crate::ptx) fn scalar(m: u32) -> LaneFn {
    let (dst, src) = kinds(m);
    let flags = m & 0xFFFF;
    let truncates = !dst.is_float() && !src.is_float() && flags == 0 && dst.bits() <= src.bits();
    match (dst, src) {
        (Kind::U32 | Kind::S32, _) if truncates => lanes!(|a: u32| a),
        (Kind::U64 | Kind::S64, Kind::U32) if flags == 0 => lanes!(|a: u32| u64::from(a)),
        (Kind::U64 | Kind::S64, Kind::S32) if flags == 0 => lanes!(|a: i32| i64::from(a)),
        (Kind::F32, Kind::S32) if flags == 0 => lanes!(|a: i32| a as f32),
        (Kind::F32, Kind::U32) if flags == 0 => lanes!(|a: u32| a as f32),
        (Kind::F64, Kind::S32) if flags == 0 => lanes!(|a: i32| f64::from(a)),
        (Kind::F64, Kind::F32) if flags == 0 => lanes!(|a: f32| f64::from(a)),
        (Kind::F32, Kind::F64) if flags == 0 => lanes!(|a: u64; m| {
            let x = f64::from_bits(a);
            if x.is_nan() { convert(a, m) } else { f32::put(x as f32) }
        }),
        (Kind::F32, Kind::F16) if flags == 0 => lanes!(|a: u16| half::value(false, a)),
        // Bits, so that NaNs keep theirs.
        (Kind::F32, Kind::Bf16) if flags == 0 => lanes!(|a: u16| u32::from(a) << 16),
        (Kind::F16, Kind::F32) if flags == 0 => lanes!(|a: f32| half::from_f32(false, a)),
        (Kind::Bf16, Kind::F32) if flags == 0 => lanes!(|a: f32| half::from_f32(true, a)),
        _ => pairs!(dst, src),
    }
}

fn kinds(m: u32) -> (Kind, Kind) {
    let kind = |shift: u32| KINDS.get((m >> shift & 15) as usize).copied().unwrap_or(Kind::U64);
    (kind(DST_SHIFT), kind(SRC_SHIFT))
}

/// One value, from the low bits of `a`.
pub(in crate::ptx) fn convert(a: u64, m: u32) -> u64 {
    let (dst, src) = kinds(m);
    one(a, dst, src, m)
}

#[inline(always)]
fn one(a: u64, dst: Kind, src: Kind, m: u32) -> u64 {
    match (dst.is_float(), src.is_float()) {
        (false, false) => {
            let wide = integer(a, src);
            let value = if m & mode::SAT != 0 { clamp(wide, src, dst) } else { wide };
            value & mask(dst.bits())
        }
        (false, true) => {
            let x = float(a, src, m);
            if x.is_nan() {
                // The hardware gives the top bit alone where either side has 64 bits, else 0.
                let wide = dst.bits() == 64 || src == Kind::F64;
                return if wide { 1 << (dst.bits() - 1) } else { 0 };
            }
            let x = round(x, m);
            // Rust's conversions saturate, as PTX's do.
            match dst {
                Kind::U8 => (x as u8).put(),
                Kind::U16 => (x as u16).put(),
                Kind::U32 => (x as u32).put(),
                Kind::S8 => (x as i8).put(),
                Kind::S16 => (x as i16).put(),
                Kind::S32 => (x as i32).put(),
                Kind::S64 => (x as i64).put(),
                _ => x as u64,
            }
        }
        (true, false) => {
            let value = integer(a, src);
            let negative = src.is_signed() && (value as i64) < 0;
            if m & mode::SAT != 0 {
                return if negative || value == 0 { 0 } else { soft::narrow(1.0, dst.format(), mode::RN) };
            }
            if src.bits() < 64 {
                return soft::narrow(value as i64 as f64, dst.format(), m & mode::ROUNDING);
            }
            let magnitude = if negative { value.wrapping_neg() } else { value };
            Exact::integer(negative, magnitude.into()).round(dst.format(), m & mode::ROUNDING)
        }
        (true, true) => float_to_float(a, dst, src, m),
    }
}

/// What the hardware makes of a NaN. With `f64` on either side sign and payload survive as far as there is room,
/// and the NaN is quiet; others become one NaN.
#[inline(always)]
fn nan_to_float(a: u64, dst: Kind, src: Kind, m: u32) -> u64 {
    match (dst, src) {
        (Kind::F64, Kind::F64) => a,
        (Kind::F64, Kind::F16) => (a & 0x8000) << 48 | (a & 0x3FF) << 42 | 0x7FF8_0000_0000_0000,
        (Kind::F64, _) => 0x7FFF_FFFF_E000_0000,
        (_, Kind::F64) => {
            let Format { exponent, mantissa } = dst.format();
            let payload = (a & ((1 << 52) - 1)) >> (52 - mantissa) | 1 << (mantissa - 1);
            (a >> 63) << (exponent + mantissa) | ((1 << exponent) - 1) << mantissa | payload
        }
        // `rna` cuts the bits off, even if what is left is an infinity.
        (Kind::Tf32, _) if m & mode::ROUNDING == mode::RNA => a & 0xFFFF_E000,
        (Kind::Tf32, _) => 0x7FFF_E000,
        _ => (1 << (dst.bits() - 1)) - 1,
    }
}

#[inline(always)]
fn float_to_float(a: u64, dst: Kind, src: Kind, m: u32) -> u64 {
    let saturate = m & mode::SAT != 0;
    // A half has room for what `f32` flushes: `.ftz` does nothing there.
    let m = if (dst, src) == (Kind::F16, Kind::F32) { m & !mode::FTZ } else { m };
    let x = float(a, src, m);
    if x.is_nan() {
        return if saturate { 0 } else { nan_to_float(a, dst, src, m) };
    }
    let x = if m & mode::INTEGRAL != 0 { round(x, m) } else { x };
    let x = if saturate { if x > 0.0 { x.min(1.0) } else { 0.0 } } else { x };
    let x = if m & mode::RELU != 0 && x <= 0.0 { 0.0 } else { x };
    let mut bits = soft::narrow(x, dst.format(), m & mode::ROUNDING);
    if m & mode::FINITE != 0 {
        let infinity = ((1u64 << dst.format().exponent) - 1) << dst.format().mantissa;
        if bits & !(1 << (dst.format().exponent + dst.format().mantissa)) == infinity {
            bits -= 1;
        }
    }
    if dst == Kind::Tf32 {
        bits <<= 13;
    }
    if dst == Kind::F32 { f32::put(flush(f32::get(bits), m)) } else { bits }
}

#[inline(always)]
fn float(a: u64, src: Kind, m: u32) -> f64 {
    match src {
        Kind::F32 | Kind::Tf32 => flush(f32::from_bits(a as u32), m).into(),
        Kind::F64 => f64::from_bits(a),
        _ => half::value(src == Kind::Bf16, a as u16).into(),
    }
}

#[inline(always)]
fn round(x: f64, m: u32) -> f64 {
    match m & mode::ROUNDING {
        mode::RZ => x.trunc(),
        mode::RM => x.floor(),
        mode::RP => x.ceil(),
        mode::RNA => x.round(),
        _ => x.round_ties_even(),
    }
}

/// Extended to 64 bits by its own sign.
#[inline(always)]
fn integer(a: u64, src: Kind) -> u64 {
    let shift = 64 - src.bits();
    if src.is_signed() { ((a << shift) as i64 >> shift) as u64 } else { a << shift >> shift }
}

/// An extended integer cut to what `dst` holds.
#[inline(always)]
fn clamp(value: u64, src: Kind, dst: Kind) -> u64 {
    let bits = dst.bits() - u32::from(dst.is_signed());
    let most = u64::MAX >> (64 - bits);
    if !src.is_signed() {
        return value.min(most);
    }
    let least = if dst.is_signed() { -1 - most as i64 } else { 0 };
    if (value as i64) < least {
        least as u64
    } else if (value as i64) > 0 {
        value.min(most)
    } else {
        value
    }
}

#[inline(always)]
fn mask(bits: u32) -> u64 {
    if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// `cvt.…x2.f32 d, a, b`: `a` becomes the upper half.
pub(in crate::ptx) fn pack_halves() -> LaneFn {
    lanes!(|a: u32, b: u32; m| {
        (convert(b.into(), m) & 0xFFFF | (convert(a.into(), m) & 0xFFFF) << 16) as u32
    })
}

/// Whether an 8-bit float is `e5m2` (else `e4m3`), as a bit of the mode word.
pub(in crate::ptx) const E5M2: u32 = mode::OWN;

/// `cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32 d, a, b`.
pub(in crate::ptx) fn pack_eighths() -> LaneFn {
    lanes!(|a: f32, b: f32; m| u16::from(eighth(b.into(), m)) | u16::from(eighth(a.into(), m)) << 8)
}

/// `cvt.rn.satfinite.{e4m3x2,e5m2x2}.f16x2`.
pub(in crate::ptx) fn halves_to_eighths() -> LaneFn {
    lanes!(|a: u32; m| {
        let half = |bits: u32| f64::from(half::value(false, bits as u16));
        u16::from(eighth(half(a), m)) | u16::from(eighth(half(a >> 16), m)) << 8
    })
}

/// `cvt.rn.f16x2.{e4m3x2,e5m2x2}`.
pub(in crate::ptx) fn eighths_to_halves() -> LaneFn {
    lanes!(|a: u16; m| {
        let half = |bits: u8| {
            let x = from_eighth(bits, m);
            let x = if m & mode::RELU != 0 && x <= 0.0 { 0.0 } else { x };
            u32::from(half::from_f32(false, x as f32))
        };
        half(a as u8) | half((a >> 8) as u8) << 16
    })
}

const E5M2_FORMAT: Format = Format { exponent: 5, mantissa: 2 };
/// With one exponent more than the format has, so that its largest values round as ordinary ones.
const E4M3_WIDE: Format = Format { exponent: 4, mantissa: 3 };

/// Value of an 8-bit float.
pub(in crate::ptx) fn from_eighth(bits: u8, m: u32) -> f64 {
    if m & E5M2 != 0 {
        return soft::widen(bits.into(), E5M2_FORMAT);
    }
    // e4m3 has no infinities: its top exponent is ordinary, and all ones is NaN.
    if bits & 0x7F == 0x7F {
        return f64::NAN;
    }
    if bits & 0x78 == 0x78 {
        let x = 256.0 * (1.0 + f64::from(bits & 7) / 8.0);
        return if bits & 0x80 != 0 { -x } else { x };
    }
    soft::widen(bits.into(), E4M3_WIDE)
}

fn eighth(x: f64, m: u32) -> u8 {
    let x = if m & mode::RELU != 0 && x <= 0.0 { 0.0 } else { x };
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return 0x7F;
    }
    if m & E5M2 != 0 {
        let bits = soft::narrow(x, E5M2_FORMAT, mode::RN) as u8;
        return if bits & 0x7F >= 0x7C { sign | 0x7B } else { bits };
    }
    if x.abs() >= 248.0 {
        // Steps of 32 from 256 on, 448 at most.
        let steps = ((x.abs().min(448.0) / 32.0).round_ties_even() as u8).clamp(8, 14);
        return sign | (0x78 + steps - 8);
    }
    soft::narrow(x, E4M3_WIDE, mode::RN) as u8
}

/// `cvt.pack.sat`: two `s32` into the low bits, `c` shifted up. The mode word is that of [`pack_mode`].
pub(in crate::ptx) fn pack_integers() -> LaneFn {
    lanes!(|a: i32, b: i32, c: u32; m| {
        let (bits, signed) = (m & 0xFF, m & mode::OWN != 0);
        let most = (1i32 << (bits - u32::from(signed))) - 1;
        let least = if signed { -most - 1 } else { 0 };
        let one = |v: i32| (v.clamp(least, most) as u32) & ((1 << bits) - 1);
        let low = one(b) | one(a) << bits;
        if bits < 16 { low | c << (2 * bits) } else { low }
    })
}

/// The mode word of [`pack_integers`]: 2 to 16 bits each.
pub(in crate::ptx) fn pack_mode(signed: bool, bits: u32) -> u32 {
    bits | if signed { mode::OWN } else { 0 }
}
