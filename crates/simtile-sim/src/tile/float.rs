//! Floating-point formats of Tile IR and correctly rounded arithmetic in them.
//!
//! Every value of every format but `f64` is exact in `f64`. A result is first computed in `f64`, rounded *to odd* (the last bit
//! is set if anything was lost), and then rounded once to its format: with at least two extra bits that
//! gives the correctly rounded result in every mode. `f64` itself uses the error of the rounded result.

use cutile_ir::ir::ScalarType;

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// To nearest, ties to even.
    Even,
    /// To zero.
    Zero,
    /// To negative infinity.
    Down,
    /// To positive infinity.
    Up,
    /// To nearest, ties away from zero.
    Away,
}

/// What a value too large for its format becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    /// Infinity, or the largest finite value in formats that have none (as `cvt.satfinite`).
    Saturate,
    /// Infinity, or NaN in formats that have none.
    Nan,
}

/// Layout of a format.
struct Format {
    mantissa: u32,
    bias: i32,
    /// Largest finite magnitude, as bits.
    max: u64,
    infinity: Option<u64>,
    nan: Option<u64>,
    /// Position of the sign bit, if the format has one.
    sign: Option<u32>,
}

fn format(scalar: ScalarType) -> Option<Format> {
    use ScalarType::*;
    let f =
        |mantissa, bias, max, infinity, nan, sign| Some(Format { mantissa, bias, max, infinity, nan, sign });
    match scalar {
        F16 => f(10, 15, 0x7bff, Some(0x7c00), Some(0x7fff), Some(15)),
        BF16 => f(7, 127, 0x7f7f, Some(0x7f80), Some(0x7fff), Some(15)),
        F32 => f(23, 127, 0x7f7f_ffff, Some(0x7f80_0000), Some(0x7fff_ffff), Some(31)),
        // In units of 2^13, see `encode`.
        TF32 => f(10, 127, 0x3_fbff, Some(0x3_fc00), Some(0x3_ffff), Some(18)),
        F8E4M3FN => f(3, 7, 0x7e, None, Some(0x7f), Some(7)),
        F8E5M2 => f(2, 15, 0x7b, Some(0x7c), Some(0x7f), Some(7)),
        F8E8M0FNU => f(0, 127, 0xfe, None, Some(0xff), None),
        F4E2M1FN => f(1, 1, 0x7, None, None, Some(3)),
        F8E5M3FNU => f(3, 15, 0xfe, None, Some(0xff), None),
        _ => None,
    }
}

/// The value of a bit pattern; exact.
pub(super) fn decode(scalar: ScalarType, bits: u64) -> f64 {
    match scalar {
        ScalarType::F64 => f64::from_bits(bits),
        ScalarType::F32 => f64::from(f32::from_bits(bits as u32)),
        ScalarType::F16 => half::f16::from_bits(bits as u16).to_f64(),
        ScalarType::BF16 => half::bf16::from_bits(bits as u16).to_f64(),
        // The hardware does not look at the low 13 bits.
        ScalarType::TF32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        ScalarType::F8E8M0FNU => match bits as u8 {
            0xff => f64::NAN,
            e => f64::from_bits((u64::from(e) + 1023 - 127) << 52),
        },
        other => match format(other) {
            None => f64::NAN,
            Some(f) => {
                let magnitude = f.sign.map_or(bits, |s| bits & ((1 << s) - 1));
                if f.nan
                    .is_some_and(|nan| magnitude > f.max && Some(magnitude) != f.infinity && magnitude <= nan)
                {
                    return f64::NAN;
                }
                let value = if f.infinity == Some(magnitude) {
                    f64::INFINITY
                } else {
                    let exponent = (magnitude >> f.mantissa) as i32;
                    let fraction = magnitude & ((1 << f.mantissa) - 1);
                    let (significand, exponent) =
                        if exponent == 0 { (fraction, 1) } else { (fraction | 1 << f.mantissa, exponent) };
                    significand as f64 * f64::powi(2.0, exponent - f.bias - f.mantissa as i32)
                };
                if f.sign.is_some_and(|s| bits >> s & 1 == 1) { -value } else { value }
            }
        },
    }
}

/// Rounds a value that is exact, or was rounded to odd, to a format.
///
/// Formats without a sign give NaN for negative values (zero for -0); `f4E2M1FN`, which has no NaN, gives its largest
/// value for NaN.
pub(super) fn encode(scalar: ScalarType, x: f64, mode: Round, overflow: Overflow) -> u64 {
    match scalar {
        ScalarType::F64 => return x.to_bits(),
        ScalarType::F32 if mode == Round::Even => return u64::from(canonical(x as f32).to_bits()),
        _ => {}
    }
    let Some(f) = format(scalar) else { return 0 };
    let unit = if scalar == ScalarType::TF32 { 13 } else { 0 };
    let nan = f.nan.unwrap_or(f.max);
    if x.is_nan() {
        return nan << unit;
    }
    let negative = x.is_sign_negative();
    let sign = match f.sign {
        Some(s) => u64::from(negative) << s,
        None if negative && x != 0.0 => return nan,
        None => 0,
    };
    let magnitude = if scalar == ScalarType::F8E8M0FNU {
        encode_power(x, mode)
    } else if x == 0.0 {
        0
    } else if x.is_infinite() {
        u64::MAX
    } else {
        round_magnitude(&f, x.abs(), negative, mode)
    };
    let magnitude = if magnitude <= f.max {
        magnitude
    } else if x.is_infinite() {
        f.infinity.unwrap_or(if overflow == Overflow::Nan { nan } else { f.max })
    } else {
        let to_max = match mode {
            Round::Even | Round::Away => false,
            Round::Zero => true,
            Round::Up => negative,
            Round::Down => !negative,
        };
        match (to_max, f.infinity) {
            (true, _) => f.max,
            (false, Some(infinity)) => infinity,
            (false, None) => {
                if overflow == Overflow::Nan {
                    nan
                } else {
                    f.max
                }
            }
        }
    };
    (sign | magnitude) << unit
}

/// The bits of a positive finite value in a format with subnormals; more than `max` if it overflows.
fn round_magnitude(f: &Format, x: f64, negative: bool, mode: Round) -> u64 {
    let bits = x.to_bits();
    let field = (bits >> 52) as i32;
    // Subnormal doubles lie below half of the smallest value of every format: any exponent will do.
    let exponent = field - 1023;
    let significand = if field == 0 { 1 } else { bits & ((1 << 52) - 1) | 1 << 52 };
    let least = 1 - f.bias;
    let shift = (52 - f.mantissa as i32 + (least - exponent).max(0)).min(63) as u32;
    let kept = significand >> shift;
    let rest = significand & ((1 << shift) - 1);
    let half = 1u64 << (shift - 1);
    let up = match mode {
        Round::Even => rest > half || rest == half && kept & 1 == 1,
        Round::Away => rest >= half,
        Round::Zero => false,
        Round::Up => rest != 0 && !negative,
        Round::Down => rest != 0 && negative,
    };
    let kept = kept + u64::from(up);
    if exponent < least {
        kept
    } else {
        // The hidden bit adds one to the exponent field; a carry out of the fraction adds another.
        (((exponent + f.bias - 1) as u64) << f.mantissa) + kept
    }
}

/// `f8E8M0FNU`: the exponent of a power of two.
fn encode_power(x: f64, mode: Round) -> u64 {
    if x.is_infinite() {
        return u64::MAX;
    }
    let bits = x.abs().to_bits();
    let exponent = (bits >> 52) as i64 - 1023 + 127;
    let inexact = bits & ((1 << 52) - 1) != 0;
    let up = match mode {
        Round::Up => inexact,
        Round::Zero | Round::Down => false,
        Round::Even | Round::Away => bits >> 51 & 1 == 1,
    };
    (exponent + i64::from(up)).max(0) as u64
}

/// NVIDIA GPUs give one NaN for all `f32` results.
#[inline(always)]
pub(super) fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x }
}

/// A subnormal `f32` becomes a zero of its sign.
#[inline(always)]
pub(super) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// A rounded result and what the exact one has more.
#[derive(Clone, Copy)]
pub(super) struct Inexact {
    value: f64,
    error: f64,
}

/// `a + b`.
pub(super) fn add(a: f64, b: f64) -> Inexact {
    let value = a + b;
    let b_part = value - a;
    Inexact { value, error: (a - (value - b_part)) + (b - b_part) }
}

/// `a * b`.
pub(super) fn mul(a: f64, b: f64) -> Inexact {
    let value = a * b;
    Inexact { value, error: a.mul_add(b, -value) }
}

/// `a / b`.
pub(super) fn div(a: f64, b: f64) -> Inexact {
    let value = a / b;
    let rest = (-value).mul_add(b, a);
    Inexact { value, error: if b < 0.0 { -rest } else { rest } }
}

/// The square root.
pub(super) fn sqrt(a: f64) -> Inexact {
    let value = a.sqrt();
    Inexact { value, error: (-value).mul_add(value, a) }
}

/// `a * b + c`.
pub(super) fn fma(a: f64, b: f64, c: f64) -> Inexact {
    let value = a.mul_add(b, c);
    let product = mul(a, b);
    let low = add(c, product.error);
    let high = add(product.value, low.value);
    let gap = (high.value - value) + high.error;
    let rest = add(gap, low.error);
    Inexact { value, error: if rest.value == 0.0 { rest.error } else { rest.value } }
}

impl Inexact {
    /// The value rounded to odd instead.
    pub(super) fn odd(self) -> f64 {
        let Self { value, error } = self;
        if error == 0.0 || !value.is_finite() || !error.is_finite() || value.to_bits() & 1 == 1 {
            value
        } else if value == 0.0 {
            f64::from_bits(1).copysign(error)
        } else if (error > 0.0) == (value > 0.0) {
            f64::from_bits(value.to_bits() + 1)
        } else {
            f64::from_bits(value.to_bits() - 1)
        }
    }

    /// The value rounded to `f64` in a mode. `finite` says whether all operands were finite.
    pub(super) fn round(self, mode: Round, finite: bool) -> f64 {
        let Self { value, error } = self;
        if value.is_infinite() && finite {
            return match mode {
                Round::Zero => f64::MAX.copysign(value),
                Round::Down if value > 0.0 => f64::MAX,
                Round::Up if value < 0.0 => f64::MIN,
                _ => value,
            };
        }
        if !value.is_finite() || !error.is_finite() {
            return value;
        }
        match mode {
            Round::Up if error > 0.0 => value.next_up(),
            Round::Down if error < 0.0 => value.next_down(),
            Round::Zero if value > 0.0 && error < 0.0 => value.next_down(),
            Round::Zero if value < 0.0 && error > 0.0 => value.next_up(),
            _ => value,
        }
    }
}

/// Rounds a computed value to a format in a mode.
pub(super) fn finish(scalar: ScalarType, result: Inexact, mode: Round, finite: bool) -> u64 {
    match scalar {
        ScalarType::F64 => result.round(mode, finite).to_bits(),
        _ => encode(scalar, result.odd(), mode, Overflow::Saturate),
    }
}

/// An integer as a value of a format.
pub(super) fn from_int(scalar: ScalarType, negative: bool, magnitude: u64, mode: Round) -> u64 {
    // Round to odd at 53 bits.
    let excess = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let lost = magnitude & ((1u64 << excess) - 1) != 0;
    let with_sign = |x: f64| if negative { -x } else { x };
    if scalar == ScalarType::F64 {
        let down = with_sign(((magnitude >> excess) as f64) * f64::powi(2.0, excess as i32));
        if !lost {
            return down.to_bits();
        }
        let nearest = with_sign(magnitude as f64);
        let away = if negative { down.next_down() } else { down.next_up() };
        return match mode {
            Round::Even => nearest,
            Round::Away => {
                let half = magnitude & ((1u64 << excess) - 1) >= 1u64 << (excess - 1);
                if half { away } else { down }
            }
            Round::Zero => down,
            Round::Up => {
                if negative {
                    down
                } else {
                    away
                }
            }
            Round::Down => {
                if negative {
                    away
                } else {
                    down
                }
            }
        }
        .to_bits();
    }
    let odd = ((magnitude >> excess) | u64::from(lost)) as f64 * f64::powi(2.0, excess as i32);
    encode(scalar, with_sign(odd), mode, Overflow::Nan)
}

/// A value as an integer of some bits, rounded to zero and clamped; NaN is 0.
pub(super) fn to_int(x: f64, bits: u32, signed: bool) -> u64 {
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    if x.is_nan() {
        return 0;
    }
    if signed {
        let (low, high) =
            if bits >= 64 { (i64::MIN, i64::MAX) } else { (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1) };
        (x as i64).clamp(low, high) as u64 & mask
    } else {
        (x as u64).min(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType::*;

    #[test]
    fn every_small_value_survives_a_round_trip() {
        for scalar in [F16, BF16, F8E4M3FN, F8E5M2, F8E8M0FNU, F4E2M1FN, F8E5M3FNU] {
            let bits = super::super::types::bits(scalar);
            for pattern in 0..1u64 << bits {
                let value = decode(scalar, pattern);
                if !value.is_nan() {
                    for mode in [Round::Even, Round::Zero, Round::Up, Round::Down, Round::Away] {
                        let back = encode(scalar, value, mode, Overflow::Saturate);
                        // Formats without infinity saturate; they have none to start from.
                        assert_eq!(back, pattern, "{scalar:?} {pattern:#x} = {value} {mode:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn half_precision_matches_the_half_crate() {
        let mut x = 1u64;
        for _ in 0..200_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let value =
                f64::from_bits((x >> 12) | ((1000 + x % 60) << 52)) * if x & 1 == 0 { 1.0 } else { -1.0 };
            let single = value as f32;
            let exact = f64::from(single);
            assert_eq!(
                encode(F16, exact, Round::Even, Overflow::Saturate),
                u64::from(half::f16::from_f32(single).to_bits())
            );
            assert_eq!(
                encode(BF16, exact, Round::Even, Overflow::Saturate),
                u64::from(half::bf16::from_f32(single).to_bits())
            );
        }
    }

    #[test]
    fn known_conversions() {
        let rn = |s, x| encode(s, x, Round::Even, Overflow::Saturate);
        assert_eq!(rn(F8E4M3FN, 448.0), 0x7e);
        assert_eq!(rn(F8E4M3FN, 1e9), 0x7e, "saturates");
        assert_eq!(encode(F8E4M3FN, 1e9, Round::Even, Overflow::Nan), 0x7f);
        assert_eq!(rn(F8E5M2, 1e9), 0x7c);
        assert_eq!(rn(F8E5M2, 57344.0), 0x7b);
        assert_eq!(rn(F4E2M1FN, 2.5), 0x4, "tie to even: 2.0");
        assert_eq!(rn(F4E2M1FN, -100.0), 0xf);
        assert_eq!(encode(F8E8M0FNU, 3.0, Round::Up, Overflow::Saturate), 129);
        assert_eq!(encode(F8E8M0FNU, 3.0, Round::Zero, Overflow::Saturate), 128);
        assert_eq!(rn(TF32, 1.0 + f64::powi(2.0, -11)), u64::from(1.0f32.to_bits()), "tie to even");
        assert_eq!(
            encode(TF32, 1.0 + f64::powi(2.0, -11), Round::Away, Overflow::Saturate),
            u64::from((1.0f32 + f32::powi(2.0, -10)).to_bits())
        );
        assert_eq!(decode(F8E4M3FN, 0x01), f64::powi(2.0, -9));
        assert_eq!(decode(F8E5M3FNU, 0xfe), 114688.0);
    }

    #[test]
    fn directed_modes_bracket_the_exact_result() {
        let mut x = 7u64;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            f32::from_bits(
                ((x >> 41) as u32) | ((100 + (x >> 33) as u32 % 50) << 23) | ((x >> 20) as u32 & 1) << 31,
            )
        };
        for _ in 0..50_000 {
            let (a, b, c) = (f64::from(next()), f64::from(next()), f64::from(next()));
            for result in [add(a, b), mul(a, b), div(a, b), sqrt(a.abs()), fma(a, b, c)] {
                let at = |mode| f32::from_bits(finish(F32, result, mode, true) as u32);
                let (down, up, even, zero) =
                    (at(Round::Down), at(Round::Up), at(Round::Even), at(Round::Zero));
                assert!(down == up || down.next_up() == up, "{down} {up}");
                assert!(even == down || even == up);
                assert_eq!(zero.to_bits(), if zero > 0.0 { down } else { up }.to_bits());
            }
            let native = (a as f32) + (b as f32);
            assert_eq!(finish(F32, add(a, b), Round::Even, true) as u32, native.to_bits());
            let native = (a as f32).mul_add(b as f32, c as f32);
            assert_eq!(finish(F32, fma(a, b, c), Round::Even, true) as u32, native.to_bits());
        }
        // 1/3 in double precision.
        assert_eq!(div(1.0, 3.0).round(Round::Up, true), (1.0f64 / 3.0).next_up());
        assert_eq!(div(1.0, 3.0).round(Round::Down, true), 1.0 / 3.0);
    }

    #[test]
    fn integers_convert_in_every_mode() {
        let odd = (1u64 << 53) + 1;
        assert_eq!(f64::from_bits(from_int(F64, false, odd, Round::Even)), 9007199254740992.0);
        assert_eq!(f64::from_bits(from_int(F64, false, odd, Round::Up)), 9007199254740994.0);
        assert_eq!(f64::from_bits(from_int(F64, true, odd, Round::Up)), -9007199254740992.0);
        assert_eq!(from_int(F32, false, 16_777_217, Round::Even) as u32, 16_777_216f32.to_bits());
        assert_eq!(from_int(F32, false, u64::MAX, Round::Even) as u32, (u64::MAX as f32).to_bits());
        assert_eq!(from_int(F16, false, 70_000, Round::Even), 0x7c00);
        assert_eq!(from_int(F8E4M3FN, false, 500, Round::Even), 0x7f, "no infinity: NaN");
        assert_eq!(to_int(300.7, 8, false), 255);
        assert_eq!(to_int(-300.7, 8, true), 0x80);
        assert_eq!(to_int(-1.9, 32, true), 0xffff_ffff);
        assert_eq!(to_int(f64::NAN, 32, true), 0);
        assert_eq!(to_int(f64::INFINITY, 64, true), i64::MAX as u64);
    }
}
