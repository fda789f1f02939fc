//! Arithmetic, comparisons and conversions, element by element.
//!
//! * `f32` and `f64` results are correctly rounded in the given mode. `f16` and `bf16` results are the exact
//!   result, rounded once. Functions such as `exp` are computed in `f64` and rounded to `f32`, then to `f16` or `bf16`
//!   ("emulated in f32"), whatever approximation the module allows; NaN results of `f32`, `f16` and
//!   `bf16` are canonical.
//! * Integers wrap. Undefined cases give what the hardware tends to give and no fault, since masked-out lanes hit them: division
//!   by zero gives all ones (remainder: the dividend); a shift by the width or more gives 0 or the sign.

// `with_width!` writes the same body for every storage type, among them `u64`.
#![allow(clippy::useless_conversion)]

use super::data::{Data, map1, map2, map3};
use super::float::{self, Overflow, Round, canonical, decode, encode, flush};
use cutile_ir::ir::ScalarType;
use half::{bf16, f16};

/// Functions of one float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatUnary {
    Abs,
    Neg,
    Ceil,
    Floor,
    Sqrt,
    Rsqrt,
    Exp,
    Exp2,
    Log,
    Log2,
    Sin,
    Cos,
    Tan,
    SinH,
    CosH,
    TanH,
}

/// Functions of two floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatBinary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Pow,
    Atan2,
    /// Of the numbers; or NaN if one is NaN.
    Max {
        nan: bool,
    },
    Min {
        nan: bool,
    },
}

/// Functions of one integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntUnary {
    Abs,
    Neg,
}

/// Functions of two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntBinary {
    Add,
    Sub,
    Mul,
    MulHigh,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight { signed: bool },
    Max { signed: bool },
    Min { signed: bool },
    Div { signed: bool, round: Round },
    Rem { signed: bool },
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// Conversions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convert {
    FloatToFloat {
        from: ScalarType,
        to: ScalarType,
        round: Round,
    },
    FloatToInt {
        from: ScalarType,
        bits: u32,
        signed: bool,
    },
    IntToFloat {
        bits: u32,
        signed: bool,
        to: ScalarType,
        round: Round,
    },
    /// To more or fewer bits.
    Resize {
        from: u32,
        to: u32,
        signed: bool,
    },
}

/// The bits of a width.
#[inline(always)]
pub(super) fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The signed value of a masked pattern.
#[inline(always)]
pub(super) fn signed(value: u64, bits: u32) -> i64 {
    let shift = 64 - bits.clamp(1, 64);
    ((value << shift) as i64) >> shift
}

/// Runs an expression with the storage type of a width.
macro_rules! with_width {
    ($bits:expr, $word:ident => $body:expr) => {
        match $bits {
            0..=8 => {
                type $word = u8;
                $body
            }
            9..=16 => {
                type $word = u16;
                $body
            }
            17..=32 => {
                type $word = u32;
                $body
            }
            _ => {
                type $word = u64;
                $body
            }
        }
    };
}

#[inline(always)]
fn f32_of(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// Applies a function given on `f32` and on `f64`. The `f32` result is rounded once more for the small formats.
fn unary(scalar: ScalarType, a: &Data, single: impl Fn(f32) -> f32, double: impl Fn(f64) -> f64) -> Data {
    match scalar {
        ScalarType::F32 => map1(a, |x: u32| canonical(single(f32_of(x))).to_bits()),
        ScalarType::F16 => map1(a, |x: u16| half16(single(f16::from_bits(x).to_f32()))),
        ScalarType::BF16 => map1(a, |x: u16| brain16(single(bf16::from_bits(x).to_f32()))),
        _ => map1(a, |x: u64| double(f64::from_bits(x)).to_bits()),
    }
}

#[inline(always)]
fn half16(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() }
}

#[inline(always)]
fn brain16(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { bf16::from_f32(x).to_bits() }
}

/// As [`unary`] for two operands.
fn binary(
    scalar: ScalarType,
    a: &Data,
    b: &Data,
    single: impl Fn(f32, f32) -> f32,
    double: impl Fn(f64, f64) -> f64,
) -> Data {
    match scalar {
        ScalarType::F32 => map2(a, b, |x: u32, y: u32| canonical(single(f32_of(x), f32_of(y))).to_bits()),
        ScalarType::F16 => map2(a, b, |x: u16, y: u16| {
            half16(single(f16::from_bits(x).to_f32(), f16::from_bits(y).to_f32()))
        }),
        ScalarType::BF16 => map2(a, b, |x: u16, y: u16| {
            brain16(single(bf16::from_bits(x).to_f32(), bf16::from_bits(y).to_f32()))
        }),
        _ => map2(a, b, |x: u64, y: u64| double(f64::from_bits(x), f64::from_bits(y)).to_bits()),
    }
}

/// A function that is only defined on `f64`.
fn through_f64(scalar: ScalarType, a: &Data, f: impl Fn(f64) -> f64) -> Data {
    unary(scalar, a, |x| f(f64::from(x)) as f32, &f)
}

/// Rounded otherwise than to nearest: through the exact value.
fn directed2(scalar: ScalarType, a: &Data, b: &Data, f: impl Fn(f64, f64) -> u64) -> Data {
    match scalar {
        ScalarType::F64 => map2(a, b, |x: u64, y: u64| f(f64::from_bits(x), f64::from_bits(y))),
        ScalarType::F32 => map2(a, b, |x: u32, y: u32| f(f64::from(f32_of(x)), f64::from(f32_of(y))) as u32),
        _ => {
            map2(a, b, |x: u16, y: u16| f(decode(scalar, u64::from(x)), decode(scalar, u64::from(y))) as u16)
        }
    }
}

fn flush_tile(a: &Data) -> Data {
    map1(a, |x: u32| flush(f32_of(x)).to_bits())
}

/// `ftz`: subnormal operands and results become zeros.
fn with_flush(ftz: bool, operands: &[&Data], run: impl Fn(&[&Data]) -> Data) -> Data {
    if !ftz {
        return run(operands);
    }
    let flushed: Vec<Data> = operands.iter().map(|d| flush_tile(d)).collect();
    flush_tile(&run(&flushed.iter().collect::<Vec<_>>()))
}

/// A function of one float.
pub(super) fn float_unary(op: FloatUnary, scalar: ScalarType, round: Round, ftz: bool, a: &Data) -> Data {
    use FloatUnary::*;
    let sign = 1u64 << (super::types::bits(scalar) - 1);
    let bitwise = |f: fn(u64, u64) -> u64| match scalar {
        ScalarType::F32 => map1(a, |x: u32| f(u64::from(x), sign) as u32),
        ScalarType::F64 => map1(a, |x: u64| f(x, sign)),
        _ => map1(a, |x: u16| f(u64::from(x), sign) as u16),
    };
    match op {
        Abs => bitwise(|x, sign| x & !sign),
        Neg => bitwise(|x, sign| x ^ sign),
        Ceil => unary(scalar, a, f32::ceil, f64::ceil),
        Floor => unary(scalar, a, f32::floor, f64::floor),
        Sqrt if round == Round::Even => with_flush(ftz, &[a], |a| unary(scalar, a[0], f32::sqrt, f64::sqrt)),
        Sqrt => with_flush(ftz, &[a], |a| {
            directed2(scalar, a[0], a[0], |x, _| float::finish(scalar, float::sqrt(x), round, false))
        }),
        Rsqrt => with_flush(ftz, &[a], |a| through_f64(scalar, a[0], |x| 1.0 / x.sqrt())),
        Exp2 => with_flush(ftz, &[a], |a| through_f64(scalar, a[0], f64::exp2)),
        Exp => through_f64(scalar, a, f64::exp),
        Log => through_f64(scalar, a, f64::ln),
        Log2 => through_f64(scalar, a, f64::log2),
        Sin => through_f64(scalar, a, f64::sin),
        Cos => through_f64(scalar, a, f64::cos),
        Tan => through_f64(scalar, a, f64::tan),
        SinH => through_f64(scalar, a, f64::sinh),
        CosH => through_f64(scalar, a, f64::cosh),
        TanH => through_f64(scalar, a, f64::tanh),
    }
}

/// `maximum`, or `maximumNumber`, of IEEE 754-2019; +0 is greater than -0.
#[inline(always)]
fn max64(a: f64, b: f64, nan: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        return if nan || (a.is_nan() && b.is_nan()) {
            f64::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    if a > b || (a == b && b.is_sign_negative()) { a } else { b }
}

#[inline(always)]
fn max32(a: f32, b: f32, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return if nan || (a.is_nan() && b.is_nan()) {
            f32::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    if a > b || (a == b && b.is_sign_negative()) { a } else { b }
}

/// A function of two floats.
pub(super) fn float_binary(
    op: FloatBinary,
    scalar: ScalarType,
    round: Round,
    ftz: bool,
    a: &Data,
    b: &Data,
) -> Data {
    use FloatBinary::*;
    let finite = |x: f64, y: f64| x.is_finite() && y.is_finite();
    with_flush(ftz, &[a, b], |v| {
        let (a, b) = (v[0], v[1]);
        match op {
            Add if round == Round::Even => binary(scalar, a, b, |x, y| x + y, |x, y| x + y),
            Sub if round == Round::Even => binary(scalar, a, b, |x, y| x - y, |x, y| x - y),
            Mul if round == Round::Even => binary(scalar, a, b, |x, y| x * y, |x, y| x * y),
            Div if round == Round::Even => binary(scalar, a, b, |x, y| x / y, |x, y| x / y),
            Add => directed2(scalar, a, b, |x, y| directed_add(scalar, x, y, round)),
            Sub => directed2(scalar, a, b, |x, y| directed_add(scalar, x, -y, round)),
            Mul => {
                directed2(scalar, a, b, |x, y| float::finish(scalar, float::mul(x, y), round, finite(x, y)))
            }
            Div => directed2(scalar, a, b, |x, y| {
                float::finish(scalar, float::div(x, y), round, finite(x, y) && y != 0.0)
            }),
            Rem => binary(scalar, a, b, |x, y| x % y, |x, y| x % y),
            Pow => binary(scalar, a, b, |x, y| f64::from(x).powf(f64::from(y)) as f32, f64::powf),
            Atan2 => binary(scalar, a, b, |x, y| f64::from(x).atan2(f64::from(y)) as f32, f64::atan2),
            Max { nan } => binary(scalar, a, b, |x, y| max32(x, y, nan), |x, y| max64(x, y, nan)),
            Min { nan } => binary(scalar, a, b, |x, y| -max32(-x, -y, nan), |x, y| -max64(-x, -y, nan)),
        }
    })
}

/// An exact sum of zero has the sign of the mode.
fn directed_add(scalar: ScalarType, x: f64, y: f64, round: Round) -> u64 {
    let mut sum = float::finish(scalar, float::add(x, y), round, x.is_finite() && y.is_finite());
    if round == Round::Down && x == -y && x.is_sign_negative() != y.is_sign_negative() && x.is_finite() {
        sum |= 1 << (super::types::bits(scalar) - 1);
    }
    sum
}

/// `a * b + c`, rounded once.
pub(super) fn fma(scalar: ScalarType, round: Round, ftz: bool, a: &Data, b: &Data, c: &Data) -> Data {
    with_flush(ftz, &[a, b, c], |v| match scalar {
        ScalarType::F32 if round == Round::Even => map3(v[0], v[1], v[2], |x: u32, y: u32, z: u32| {
            canonical(f32_of(x).mul_add(f32_of(y), f32_of(z))).to_bits()
        }),
        ScalarType::F64 => map3(v[0], v[1], v[2], |x: u64, y: u64, z: u64| {
            let (x, y, z) = (f64::from_bits(x), f64::from_bits(y), f64::from_bits(z));
            if round == Round::Even {
                return x.mul_add(y, z).to_bits();
            }
            let finite = x.is_finite() && y.is_finite() && z.is_finite();
            zero_sum(float::finish(scalar, float::fma(x, y, z), round, finite), x * y, z, round, 63)
        }),
        ScalarType::F32 => map3(v[0], v[1], v[2], |x: u32, y: u32, z: u32| {
            fma_small(scalar, round, u64::from(x), u64::from(y), u64::from(z)) as u32
        }),
        _ => map3(v[0], v[1], v[2], |x: u16, y: u16, z: u16| {
            fma_small(scalar, round, u64::from(x), u64::from(y), u64::from(z)) as u16
        }),
    })
}

/// The product is exact in `f64`.
fn fma_small(scalar: ScalarType, round: Round, x: u64, y: u64, z: u64) -> u64 {
    let (product, z) = (decode(scalar, x) * decode(scalar, y), decode(scalar, z));
    let sum = encode(scalar, float::add(product, z).odd(), round, Overflow::Saturate);
    zero_sum(sum, product, z, round, super::types::bits(scalar) - 1)
}

fn zero_sum(sum: u64, x: f64, y: f64, round: Round, sign: u32) -> u64 {
    let cancels = x == -y && x.is_finite() && x.is_sign_negative() != y.is_sign_negative();
    if round == Round::Down && cancels { sum | 1 << sign } else { sum }
}

/// A float to an integer power.
pub(super) fn pow_int(scalar: ScalarType, exponent_bits: u32, a: &Data, b: &Data) -> Data {
    let exponents = Data::B64(b.iter().map(|e| (signed(e, exponent_bits) as f64).to_bits()).collect());
    let power = |x: f64, e: u64| x.powf(f64::from_bits(e));
    match scalar {
        ScalarType::F64 => map2(a, &exponents, |x: u64, e: u64| power(f64::from_bits(x), e).to_bits()),
        ScalarType::F32 => {
            map2(a, &exponents, |x: u32, e: u64| canonical(power(f64::from(f32_of(x)), e) as f32).to_bits())
        }
        ScalarType::F16 => {
            map2(a, &exponents, |x: u16, e: u64| half16(power(f16::from_bits(x).to_f64(), e) as f32))
        }
        _ => map2(a, &exponents, |x: u16, e: u64| brain16(power(bf16::from_bits(x).to_f64(), e) as f32)),
    }
}

/// A function of one integer.
pub(super) fn int_unary(op: IntUnary, bits: u32, a: &Data) -> Data {
    with_width!(bits, W => map1(a, |x: W| {
        let value = signed(u64::from(x), bits);
        let result = match op {
            IntUnary::Abs => value.wrapping_abs(),
            IntUnary::Neg => value.wrapping_neg(),
        };
        (result as u64 & mask(bits)) as W
    }))
}

/// A function of two integers.
pub(super) fn int_binary(op: IntBinary, bits: u32, a: &Data, b: &Data) -> Data {
    use IntBinary::*;
    // One loop for each operation: the choice must not be made inside.
    macro_rules! raw {
        ($f:expr) => {
            with_width!(bits, W => map2(a, b, |x: W, y: W| {
                let f: fn(u64, u64) -> u64 = $f;
                (f(u64::from(x), u64::from(y)) & mask(bits)) as W
            }))
        };
    }
    macro_rules! wide {
        ($f:expr) => {
            with_width!(bits, W => map2(a, b, |x: W, y: W| {
                #[allow(clippy::redundant_closure_call)]
                let result: u64 = $f(u64::from(x), u64::from(y));
                (result & mask(bits)) as W
            }))
        };
    }
    let s = |x: u64| signed(x, bits);
    match op {
        Add => raw!(|x, y| x.wrapping_add(y)),
        Sub => raw!(|x, y| x.wrapping_sub(y)),
        Mul => raw!(|x, y| x.wrapping_mul(y)),
        And => raw!(|x, y| x & y),
        Or => raw!(|x, y| x | y),
        Xor => raw!(|x, y| x ^ y),
        MulHigh => wide!(|x: u64, y: u64| ((u128::from(x) * u128::from(y)) >> bits) as u64),
        ShiftLeft => wide!(|x: u64, y: u64| if y >= u64::from(bits) { 0 } else { x << y }),
        ShiftRight { signed: false } => wide!(|x: u64, y: u64| if y >= u64::from(bits) { 0 } else { x >> y }),
        ShiftRight { signed: true } => wide!(|x: u64, y: u64| (s(x) >> y.min(63)) as u64),
        Max { signed: false } => raw!(|x, y| x.max(y)),
        Min { signed: false } => raw!(|x, y| x.min(y)),
        Max { signed: true } => wide!(|x: u64, y: u64| s(x).max(s(y)) as u64),
        Min { signed: true } => wide!(|x: u64, y: u64| s(x).min(s(y)) as u64),
        Div { signed: false, round } => wide!(|x: u64, y: u64| match y {
            0 => u64::MAX,
            y => x / y + u64::from(round == Round::Up && !x.is_multiple_of(y)),
        }),
        Div { signed: true, round } => wide!(|x: u64, y: u64| match (s(x), s(y)) {
            (_, 0) => u64::MAX,
            (x, y) => {
                let (quotient, rest) = (x.wrapping_div(y), x.wrapping_rem(y));
                let away = match round {
                    Round::Up if rest != 0 && (rest < 0) == (y < 0) => 1,
                    Round::Down if rest != 0 && (rest < 0) != (y < 0) => -1,
                    _ => 0,
                };
                quotient.wrapping_add(away) as u64
            }
        }),
        Rem { signed: false } => wide!(|x: u64, y: u64| x.checked_rem(y).unwrap_or(x)),
        Rem { signed: true } => wide!(|x: u64, y: u64| match (s(x), s(y)) {
            (x, 0) => x as u64,
            (x, y) => x.wrapping_rem(y) as u64,
        }),
    }
}

/// Compares floats; the result is `i1`.
pub(super) fn compare_float(op: Compare, ordered: bool, scalar: ScalarType, a: &Data, b: &Data) -> Data {
    let test = |x: f64, y: f64| -> u8 {
        let result = match op {
            _ if x.is_nan() || y.is_nan() => !ordered,
            Compare::Equal => x == y,
            Compare::NotEqual => x != y,
            Compare::Less => x < y,
            Compare::LessEqual => x <= y,
            Compare::Greater => x > y,
            Compare::GreaterEqual => x >= y,
        };
        u8::from(result)
    };
    match scalar {
        ScalarType::F32 => map2(a, b, |x: u32, y: u32| test(f64::from(f32_of(x)), f64::from(f32_of(y)))),
        ScalarType::F64 => map2(a, b, |x: u64, y: u64| test(f64::from_bits(x), f64::from_bits(y))),
        _ => map2(a, b, |x: u16, y: u16| test(decode(scalar, u64::from(x)), decode(scalar, u64::from(y)))),
    }
}

/// Compares integers; the result is `i1`.
pub(super) fn compare_int(op: Compare, is_signed: bool, bits: u32, a: &Data, b: &Data) -> Data {
    // Adding the sign bit turns the signed order into the unsigned one.
    let bias = if is_signed { 1u64 << (bits - 1) } else { 0 };
    with_width!(bits, W => map2(a, b, |x: W, y: W| {
        let (x, y) = (u64::from(x) ^ bias, u64::from(y) ^ bias);
        u8::from(match op {
            Compare::Equal => x == y,
            Compare::NotEqual => x != y,
            Compare::Less => x < y,
            Compare::LessEqual => x <= y,
            Compare::Greater => x > y,
            Compare::GreaterEqual => x >= y,
        })
    }))
}

/// The first value where the condition holds, else the second.
pub(super) fn select(condition: &Data, yes: &Data, no: &Data) -> Data {
    match yes {
        Data::B8(_) => map3(condition, yes, no, |c: u8, y: u8, n: u8| if c != 0 { y } else { n }),
        Data::B16(_) => map3(condition, yes, no, |c: u8, y: u16, n: u16| if c != 0 { y } else { n }),
        Data::B32(_) => map3(condition, yes, no, |c: u8, y: u32, n: u32| if c != 0 { y } else { n }),
        Data::B64(_) => map3(condition, yes, no, |c: u8, y: u64, n: u64| if c != 0 { y } else { n }),
    }
}

/// Pointers plus element offsets.
pub(super) fn offset(bits: u32, size: u64, pointers: &Data, offsets: &Data) -> Data {
    with_width!(bits, W => map2(pointers, offsets, |p: u64, o: W| {
        p.wrapping_add((signed(u64::from(o), bits) as u64).wrapping_mul(size))
    }))
}

/// Converts between element types.
pub(super) fn convert(conversion: Convert, a: &Data) -> Data {
    use super::types::Elem;
    use ScalarType::*;
    match conversion {
        Convert::FloatToFloat { from: F16, to: F32, .. } => {
            map1(a, |x: u16| canonical(f16::from_bits(x).to_f32()).to_bits())
        }
        Convert::FloatToFloat { from: BF16, to: F32, .. } => {
            map1(a, |x: u16| canonical(bf16::from_bits(x).to_f32()).to_bits())
        }
        Convert::FloatToFloat { from: F32, to: F16, round: Round::Even } => {
            map1(a, |x: u32| half16(f32_of(x)))
        }
        Convert::FloatToFloat { from: F32, to: BF16, round: Round::Even } => {
            map1(a, |x: u32| brain16(f32_of(x)))
        }
        Convert::FloatToFloat { from, to, round } => Data::collect(
            Elem::Scalar(to),
            a.iter().map(|x| encode(to, decode(from, x), round, Overflow::Saturate)),
        ),
        Convert::FloatToInt { from: F32, bits: 32, signed: true } => {
            map1(a, |x: u32| (f32_of(x) as i32) as u32)
        }
        Convert::FloatToInt { from, bits, signed } => {
            let values = a.iter().map(|x| float::to_int(decode(from, x), bits, signed));
            with_width!(bits, W => <W as super::data::Word>::wrap(values.map(|v| v as W).collect()))
        }
        Convert::IntToFloat { bits, signed: is_signed, to, round } => Data::collect(
            Elem::Scalar(to),
            a.iter().map(|x| {
                let value = signed(x, bits);
                if is_signed {
                    float::from_int(to, value < 0, value.unsigned_abs(), round)
                } else {
                    float::from_int(to, false, x, round)
                }
            }),
        ),
        Convert::Resize { from, to, signed: is_signed } => {
            let values = a.iter().map(|x| {
                let value = if is_signed { signed(x, from) as u64 } else { x };
                value & mask(to)
            });
            with_width!(to, W => <W as super::data::Word>::wrap(values.map(|v| v as W).collect()))
        }
    }
}
