//! `f32` and `f64`.

use super::lanes;
use crate::ptx::code::{LaneFn, mode};
use crate::ptx::soft;

/// Flushes a subnormal to a zero of its sign if the mode says so.
#[inline(always)]
pub(in crate::ptx) fn flush(x: f32, m: u32) -> f32 {
    if m & mode::FTZ != 0 && x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// Flush, saturation and relu of a result.
#[inline(always)]
fn finish(x: f32, m: u32) -> f32 {
    let x = flush(x, m);
    if m & mode::SAT != 0 {
        // NaN becomes +0; so does −0.
        return if x > 0.0 { x.min(1.0) } else { 0.0 };
    }
    if m & mode::RELU != 0 && x <= 0.0 {
        return 0.0;
    }
    x
}

#[inline(always)]
fn finish64(x: f64, m: u32) -> f64 {
    if m & mode::SAT != 0 { if x > 0.0 { x.min(1.0) } else { 0.0 } } else { x }
}

#[inline(always)]
fn f32_of(odd: f64, m: u32) -> f32 {
    f32::from_bits(soft::narrow(odd, soft::F32, m & mode::ROUNDING) as u32)
}

#[inline(always)]
pub(in crate::ptx) fn add32(a: f32, b: f32, m: u32) -> f32 {
    let (a, b) = (flush(a, m), flush(b, m));
    let sum = if m & mode::ROUNDING == mode::RN {
        a + b
    } else {
        let sum = soft::odd_add(a.into(), b.into());
        let cancelled = sum == 0.0 && a.is_sign_negative() != b.is_sign_negative();
        if cancelled && m & mode::ROUNDING == mode::RM { -0.0 } else { f32_of(sum, m) }
    };
    finish(sum, m)
}

#[inline(always)]
fn mul32(a: f32, b: f32, m: u32) -> f32 {
    let (a, b) = (flush(a, m), flush(b, m));
    let exact = f64::from(a) * f64::from(b);
    let product = if m & mode::ROUNDING == mode::RN { a * b } else { f32_of(exact, m) };
    finish(flush_tiny(product, m, || exact), m)
}

/// `.ftz` asks whether a result is subnormal once it is rounded to 24 digits, however small: one that only the
/// rounding to a subnormal's fewer digits made the least normal number is flushed too. `exact` is the exact result,
/// or that rounded to odd.
#[inline(always)]
fn flush_tiny(x: f32, m: u32, exact: impl Fn() -> f64) -> f32 {
    const UP: f64 = (1u64 << 40) as f64;
    let least = f32::MIN_POSITIVE;
    if m & mode::FTZ == 0 || x.abs() != least {
        return x;
    }
    let scaled = f64::from(f32_of(exact() * UP, m));
    if scaled.abs() < f64::from(least) * UP { 0f32.copysign(x) } else { x }
}

#[inline(always)]
pub(in crate::ptx) fn fma32(a: f32, b: f32, c: f32, m: u32) -> f32 {
    let (a, b, c) = (flush(a, m), flush(b, m), flush(c, m));
    let result = if m & mode::ROUNDING == mode::RN {
        a.mul_add(b, c)
    } else {
        let (a, b, c) = (f64::from(a), f64::from(b), f64::from(c));
        let sum = soft::odd_fma(a, b, c);
        let cancelled = sum == 0.0 && (a * b).is_sign_negative() != c.is_sign_negative();
        if cancelled && m & mode::ROUNDING == mode::RM { -0.0 } else { f32_of(sum, m) }
    };
    finish(flush_tiny(result, m, || soft::odd_fma(a.into(), b.into(), c.into())), m)
}

#[inline(always)]
fn div32(a: f32, b: f32, m: u32) -> f32 {
    let (a, b) = (flush(a, m), flush(b, m));
    let odd = || soft::odd_div(a.into(), b.into());
    let q = if m & mode::ROUNDING == mode::RN { a / b } else { f32_of(odd(), m) };
    finish(flush_tiny(q, m, odd), m)
}

#[inline(always)]
fn sqrt32(a: f32, m: u32) -> f32 {
    let a = flush(a, m);
    let root = if m & mode::ROUNDING == mode::RN { a.sqrt() } else { f32_of(soft::odd_sqrt(a.into()), m) };
    finish(root, m)
}

/// `min` (or `max`): −0 below +0; NaN only if both are, unless `.NaN`.
#[inline(always)]
pub(in crate::ptx) fn extreme32(a: f32, b: f32, max: bool, m: u32) -> f32 {
    let (mut a, mut b) = (flush(a, m), flush(b, m));
    let negative = a.is_sign_negative() != b.is_sign_negative();
    if m & mode::XORSIGN != 0 {
        (a, b) = (a.abs(), b.abs());
    }
    let result = match (a.is_nan(), b.is_nan()) {
        (true, true) => return f32::NAN,
        (true, false) | (false, true) if m & mode::NAN != 0 => return f32::NAN,
        (true, false) => b,
        (false, true) => a,
        _ if a == b => {
            if a.is_sign_negative() == max {
                b
            } else {
                a
            }
        }
        _ if (a < b) == max => b,
        _ => a,
    };
    if m & mode::XORSIGN != 0 { result.copysign(if negative { -1.0 } else { 1.0 }) } else { result }
}

#[inline(always)]
pub(in crate::ptx) fn extreme64(a: f64, b: f64, max: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (false, true) => a,
        _ if a == b => {
            if a.is_sign_negative() == max {
                b
            } else {
                a
            }
        }
        _ if (a < b) == max => b,
        _ => a,
    }
}

/// `f32` operations; `m` is only looked at to choose a faster loop.
pub(in crate::ptx) fn f32_op(op: &str, m: u32) -> Option<LaneFn> {
    let plain = m == 0;
    Some(match op {
        "add" if plain => lanes!(|a: f32, b: f32| a + b),
        "sub" if plain => lanes!(|a: f32, b: f32| a - b),
        "mul" if plain => lanes!(|a: f32, b: f32| a * b),
        "fma" if plain => lanes!(|a: f32, b: f32, c: f32| a.mul_add(b, c)),
        "add" => lanes!(|a: f32, b: f32; m| add32(a, b, m)),
        "sub" => lanes!(|a: f32, b: f32; m| add32(a, -b, m)),
        "mul" => lanes!(|a: f32, b: f32; m| mul32(a, b, m)),
        "fma" => lanes!(|a: f32, b: f32, c: f32; m| fma32(a, b, c, m)),
        "div" => lanes!(|a: f32, b: f32; m| div32(a, b, m)),
        "rcp" => lanes!(|a: f32; m| div32(1.0, a, m)),
        "sqrt" => lanes!(|a: f32; m| sqrt32(a, m)),
        "rsqrt" => lanes!(|a: f32; m| {
            finish((1.0 / f64::from(flush(a, m)).sqrt()) as f32, m)
        }),
        "min" => lanes!(|a: f32, b: f32; m| extreme32(a, b, false, m)),
        "max" => lanes!(|a: f32, b: f32; m| extreme32(a, b, true, m)),
        "abs" => lanes!(|a: f32; m| flush(a, m).abs()),
        "neg" => lanes!(|a: f32; m| -flush(a, m)),
        "sin" => lanes!(|a: f32; m| finish(turns(flush(a, m)).sin() as f32, m)),
        "cos" => lanes!(|a: f32; m| finish(turns(flush(a, m)).cos() as f32, m)),
        "div.approx" => lanes!(|a: f32, b: f32; m| {
            let (a, b) = (flush(a, m), flush(b, m));
            // The reciprocal of such a `b` is subnormal and flushed, as PTX says: 0, or NaN of an infinity.
            let huge = b.is_finite() && b.abs() > f32::from_bits(0x7E80_0000);
            if huge { a * 0f32.copysign(b) } else { div32(a, b, m) }
        }),
        "lg2" => lanes!(|a: f32; m| finish(f64::from(flush(a, m)).log2() as f32, m)),
        "ex2" => lanes!(|a: f32; m| finish(f64::from(flush(a, m)).exp2() as f32, m)),
        "tanh" => lanes!(|a: f32; m| finish(f64::from(a).tanh() as f32, m)),
        // copysign d, a, b: sign of a, magnitude of b. Bits, so that NaNs keep theirs.
        "copysign" => lanes!(|a: u32, b: u32| a & 1 << 31 | b & !(1 << 31)),
        _ => return None,
    })
}

/// `f64` operations.
pub(in crate::ptx) fn f64_op(op: &str, m: u32) -> Option<LaneFn> {
    let plain = m == 0;
    Some(match op {
        "add" if plain => lanes!(|a: f64, b: f64| soft::add64(a, b, 0)),
        "sub" if plain => lanes!(|a: f64, b: f64| soft::sub64(a, b, 0)),
        "mul" if plain => lanes!(|a: f64, b: f64| soft::mul64(a, b, 0)),
        "fma" if plain => lanes!(|a: f64, b: f64, c: f64| soft::fma64(a, b, c, 0)),
        "add" => lanes!(|a: f64, b: f64; m| finish64(soft::add64(a, b, m), m)),
        "sub" => lanes!(|a: f64, b: f64; m| finish64(soft::sub64(a, b, m), m)),
        "mul" => lanes!(|a: f64, b: f64; m| finish64(soft::mul64(a, b, m), m)),
        "fma" => lanes!(|a: f64, b: f64, c: f64; m| finish64(soft::fma64(a, b, c, m), m)),
        "div" => lanes!(|a: f64, b: f64; m| soft::div64(a, b, m)),
        "rcp" => lanes!(|a: f64; m| soft::div64(1.0, a, m)),
        "rcp.approx.ftz" => lanes!(|a: f64| coarse(1.0 / upper(a))),
        "rsqrt.approx.ftz" => lanes!(|a: f64| coarse(1.0 / upper(a).sqrt())),
        "rsqrt" => lanes!(|a: f64| 1.0 / a.sqrt()),
        "sqrt" => lanes!(|a: f64; m| soft::sqrt64(a, m)),
        "min" => lanes!(|a: f64, b: f64| extreme64(a, b, false)),
        "max" => lanes!(|a: f64, b: f64| extreme64(a, b, true)),
        "abs" => lanes!(|a: u64| a & !(1 << 63)),
        // A NaN keeps its sign.
        "neg" => lanes!(|a: f64| if a.is_nan() { a } else { -a }),
        "copysign" => lanes!(|a: u64, b: u64| a & 1 << 63 | b & !(1 << 63)),
        _ => return None,
    })
}

#[inline(always)]
fn flush64(x: f64) -> f64 {
    if x.is_subnormal() { 0f64.copysign(x) } else { x }
}

/// Coarse approximations read the upper half of their operand.
#[inline(always)]
fn upper(x: f64) -> f64 {
    let x = flush64(x);
    if x.is_nan() { x } else { f64::from_bits(x.to_bits() & !0xFFFF_FFFF) }
}

/// And write the upper half of their result: one NaN, and numbers cut off a sixteenth of a unit above their exact
/// value. The hardware's table is a little off that here and there, by one unit of the upper half.
#[inline(always)]
fn coarse(x: f64) -> f64 {
    let x = flush64(x);
    if x.is_nan() {
        f64::from_bits(0x7FFF_FFFF_0000_0000)
    } else if x.is_finite() && x != 0.0 {
        f64::from_bits((x.to_bits() + (1 << 28)) & !0xFFFF_FFFF)
    } else {
        x
    }
}

/// The angle that `sin.approx` and `cos.approx` take: `a` times the `f32` nearest to 1/2π, cut to `f32`, in turns.
/// From 2^24 turns on nothing is left of it but whole ones.
#[inline(always)]
fn turns(a: f32) -> f64 {
    let product = f64::from(a) * f64::from(f32::from_bits(0x3E22_F983));
    let cut = f32::from_bits(soft::narrow(product, soft::F32, mode::RZ) as u32);
    f64::from(cut % 1.0) * std::f64::consts::TAU
}
