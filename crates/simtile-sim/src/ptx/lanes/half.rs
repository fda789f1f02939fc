//! `f16`, `bf16` and their pairs.

use super::float::{extreme32, flush};
use super::lanes;
use crate::ptx::code::{LaneFn, mode};
use crate::ptx::soft::{self, BF16, F16, Format};

const ADD: u8 = 0;
const SUB: u8 = 1;
const MUL: u8 = 2;
const FMA: u8 = 3;
const NEG: u8 = 4;
const ABS: u8 = 5;
const MIN: u8 = 6;
const MAX: u8 = 7;
const EX2: u8 = 8;
const TANH: u8 = 9;

/// The NaN that tensor copies put where there is nothing, in either format and of either sign. PTX does not give its bits:
/// of all NaNs, an H200 takes this one.
const OUT_OF_BOUNDS: u16 = 0x7FF7;

const fn format(bf: bool) -> Format {
    if bf { BF16 } else { F16 }
}

/// Exact value of a half.
#[inline]
pub(in crate::ptx) fn value(bf: bool, bits: u16) -> f32 {
    if bf { ::half::bf16::from_bits(bits).to_f32() } else { ::half::f16::from_bits(bits).to_f32() }
}

/// Rounds to nearest.
#[inline]
pub(in crate::ptx) fn from_f32(bf: bool, x: f32) -> u16 {
    if x.is_nan() {
        0x7FFF
    } else if bf {
        ::half::bf16::from_f32(x).to_bits()
    } else {
        ::half::f16::from_f32(x).to_bits()
    }
}

/// Flushes a subnormal half (`f16` only: `bf16` has no `.ftz`, except in `ex2`).
#[inline]
fn input(bf: bool, bits: u16, m: u32) -> f32 {
    let x = value(bf, bits);
    if m & mode::FTZ == 0 {
        x
    } else if bf {
        flush(x, m)
    } else if x.abs() < f32::from(::half::f16::MIN_POSITIVE) {
        0f32.copysign(x)
    } else {
        x
    }
}

/// Result of one operation.
pub(in crate::ptx) fn one<const BF: bool, const OP: u8>(a: u16, b: u16, c: u16, m: u32) -> u16 {
    if OP == NEG || OP == ABS {
        let x = input(BF, a, m);
        let bits = if x == 0.0 { a & 0x8000 } else { a };
        return match (x.is_nan(), OP) {
            (true, _) => 0x7FFF,
            (_, NEG) => bits ^ 0x8000,
            _ => bits & 0x7FFF,
        };
    }
    let (x, y) = (input(BF, a, m), input(BF, b, m));
    let bits = match OP {
        // f32 has more than twice the digits plus two, so rounding twice is rounding once.
        ADD => from_f32(BF, x + y),
        SUB => from_f32(BF, x - y),
        MUL if !BF => from_f32(BF, x * y),
        // A bf16 product may be subnormal in f32: go through f64.
        MUL => soft::narrow(f64::from(x) * f64::from(y), BF16, mode::RN) as u16,
        // `.oob`: a factor that stands for what a copy found out of bounds makes the result 0.
        FMA if m & mode::OWN != 0 && [a, b].iter().any(|v| v & 0x7FFF == OUT_OF_BOUNDS) => 0,
        FMA => {
            let z = input(BF, c, m);
            soft::narrow(soft::odd_fma(x.into(), y.into(), z.into()), format(BF), mode::RN) as u16
        }
        MIN => from_f32(BF, extreme32(x, y, false, m & !mode::FTZ)),
        MAX => from_f32(BF, extreme32(x, y, true, m & !mode::FTZ)),
        EX2 => soft::narrow(f64::from(x).exp2(), format(BF), mode::RN) as u16,
        _ => soft::narrow(f64::from(x).tanh(), format(BF), mode::RN) as u16,
    };
    finish(BF, bits, m)
}

#[inline]
fn finish(bf: bool, bits: u16, m: u32) -> u16 {
    let x = input(bf, bits, m);
    if x.is_nan() {
        return if m & mode::SAT != 0 { 0 } else { 0x7FFF };
    }
    if m & mode::SAT != 0 {
        return from_f32(bf, if x > 0.0 { x.min(1.0) } else { 0.0 });
    }
    if m & mode::RELU != 0 && x <= 0.0 {
        return 0;
    }
    if x == 0.0 { bits & 0x8000 } else { bits }
}

fn pair<const BF: bool, const OP: u8>(a: u32, b: u32, c: u32, m: u32) -> u32 {
    let low = one::<BF, OP>(a as u16, b as u16, c as u16, m);
    let high = one::<BF, OP>((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16, m);
    u32::from(low) | u32::from(high) << 16
}

macro_rules! forms {
    ($bf:expr, $two:expr, $op:ident) => {
        match ($bf, $two) {
            (false, false) => lanes!(|a: u16, b: u16, c: u16; m| one::<false, $op>(a, b, c, m)),
            (true, false) => lanes!(|a: u16, b: u16, c: u16; m| one::<true, $op>(a, b, c, m)),
            (false, true) => lanes!(|a: u32, b: u32, c: u32; m| pair::<false, $op>(a, b, c, m)),
            (true, true) => lanes!(|a: u32, b: u32, c: u32; m| pair::<true, $op>(a, b, c, m)),
        }
    };
}

/// One operation on a half (or on both of a pair).
pub(in crate::ptx) fn op(name: &str, bf: bool, two: bool) -> Option<LaneFn> {
    Some(match name {
        "add" => forms!(bf, two, ADD),
        "sub" => forms!(bf, two, SUB),
        "mul" => forms!(bf, two, MUL),
        "fma" => forms!(bf, two, FMA),
        "neg" => forms!(bf, two, NEG),
        "abs" => forms!(bf, two, ABS),
        "min" => forms!(bf, two, MIN),
        "max" => forms!(bf, two, MAX),
        "ex2" => forms!(bf, two, EX2),
        "tanh" => forms!(bf, two, TANH),
        _ => return None,
    })
}

/// Sum of two halves, for atomics.
pub(in crate::ptx) fn add(bf: bool, a: u16, b: u16) -> u16 {
    if bf { one::<true, ADD>(a, b, 0, 0) } else { one::<false, ADD>(a, b, 0, 0) }
}

/// Minimum or maximum of two halves, for atomics.
pub(in crate::ptx) fn extreme(bf: bool, max: bool, a: u16, b: u16) -> u16 {
    from_f32(bf, extreme32(value(bf, a), value(bf, b), max, 0))
}
