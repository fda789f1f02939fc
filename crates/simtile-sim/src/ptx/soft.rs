//! Exact rounding.
//!
//! Two tools. For results of 24 bits or fewer the operation is done in `f64` *rounded to odd* (the last
//! bit is set if anything was lost), and [`narrow`] rounds that once more: with at least two spare bits the
//! second rounding sees what the first one lost, so it is right in every direction. For directed rounding
//! of `f64` itself, [`Exact`] holds a value as sign, 128-bit integer and exponent with a sticky bit.

use super::code::mode;

/// A binary interchange format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub exponent: u32,
    pub mantissa: u32,
}

pub(super) const F16: Format = Format { exponent: 5, mantissa: 10 };
pub(super) const BF16: Format = Format { exponent: 8, mantissa: 7 };
pub(super) const TF32: Format = Format { exponent: 8, mantissa: 10 };
pub(super) const F32: Format = Format { exponent: 8, mantissa: 23 };
pub(super) const F64: Format = Format { exponent: 11, mantissa: 52 };

impl Format {
    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    const fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.mantissa
    }
}

/// sign · mantissa · 2^exponent, plus something smaller than one unit of the mantissa if `sticky`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    pub negative: bool,
    pub mantissa: u128,
    pub exponent: i32,
    pub sticky: bool,
}

impl Exact {
    /// A finite `f64`.
    pub(super) fn from_f64(x: f64) -> Self {
        let bits = x.to_bits();
        let (field, fraction) = (((bits >> 52) & 0x7FF) as i32, bits & ((1 << 52) - 1));
        let (mantissa, exponent) =
            if field == 0 { (fraction, -1074) } else { (fraction | 1 << 52, field - 1075) };
        Self { negative: x.is_sign_negative(), mantissa: mantissa.into(), exponent, sticky: false }
    }

    pub(super) fn integer(negative: bool, mantissa: u128) -> Self {
        Self { negative, mantissa, exponent: 0, sticky: false }
    }

    /// Product; both mantissas below 2^64.
    fn product(self, other: Self) -> Self {
        Self {
            negative: self.negative ^ other.negative,
            mantissa: self.mantissa * other.mantissa,
            exponent: self.exponent + other.exponent,
            sticky: false,
        }
    }

    /// Moves the top bit to bit 125.
    fn normal(mut self) -> Self {
        let up = self.mantissa.leading_zeros() as i32 - 2;
        if self.mantissa != 0 {
            self.mantissa = if up >= 0 { self.mantissa << up } else { self.mantissa >> -up };
            self.exponent -= up;
        }
        self
    }

    /// Sum of two values without sticky bits. The sign of an exact zero is the caller's business.
    fn sum(self, other: Self) -> Self {
        if self.mantissa == 0 {
            return other;
        }
        if other.mantissa == 0 {
            return self;
        }
        let (a, b) = (self.normal(), other.normal());
        let (big, small) = if (a.exponent, a.mantissa) >= (b.exponent, b.mantissa) { (a, b) } else { (b, a) };
        let shift = (big.exponent - small.exponent) as u32;
        let (moved, lost) = if shift >= 127 {
            (0, true)
        } else {
            (small.mantissa >> shift, small.mantissa & ((1u128 << shift) - 1) != 0)
        };
        let mantissa = if big.negative == small.negative {
            big.mantissa + moved
        } else {
            big.mantissa - moved - u128::from(lost)
        };
        Self { negative: big.negative, mantissa, exponent: big.exponent, sticky: lost }
    }

    /// Rounds to a format. A zero keeps its sign.
    pub(super) fn round(self, format: Format, rounding: u32) -> u64 {
        let sign = u64::from(self.negative) << (format.exponent + format.mantissa);
        if self.mantissa == 0 && !self.sticky {
            return sign;
        }
        let digits = 128 - self.mantissa.leading_zeros() as i32;
        // Exponent of the last kept bit: from the top bit, but no lower than a subnormal's.
        let least = 1 - format.bias() - format.mantissa as i32;
        let last = (self.exponent + digits - 1 - format.mantissa as i32).max(least);
        let drop = last - self.exponent;
        let (kept, half, rest) = if drop <= 0 {
            (self.mantissa << (-drop).min(127), false, self.sticky)
        } else if drop > 128 {
            (0, false, true)
        } else if drop == 128 {
            (0, self.mantissa >> 127 != 0, self.mantissa << 1 != 0 || self.sticky)
        } else {
            let below = self.mantissa & ((1u128 << (drop - 1)) - 1);
            (self.mantissa >> drop, self.mantissa >> (drop - 1) & 1 != 0, below != 0 || self.sticky)
        };
        let up = match rounding & mode::ROUNDING {
            mode::RN => half && (rest || kept & 1 != 0),
            mode::RNA => half,
            mode::RM => self.negative && (half || rest),
            mode::RP => !self.negative && (half || rest),
            _ => false,
        };
        let mut kept = kept as u64 + u64::from(up);
        let mut last = last;
        if kept >> (format.mantissa + 1) != 0 {
            kept >>= 1;
            last += 1;
        }
        let normal = kept >> format.mantissa != 0;
        let field = if normal { last - least + 1 } else { 0 };
        if field >= (1 << format.exponent) - 1 {
            let infinite = match rounding & mode::ROUNDING {
                mode::RN | mode::RNA => true,
                mode::RM => self.negative,
                mode::RP => !self.negative,
                _ => false,
            };
            return sign | (format.infinity() - u64::from(!infinite));
        }
        sign | (field as u64) << format.mantissa | kept & ((1 << format.mantissa) - 1)
    }
}

/// Rounds an `f64` to a narrower format (`f64` itself stays as it is). NaN becomes the format's positive quiet NaN
/// with all bits set.
///
/// As [`Exact::round`], in 64 bits and without branches that depend on the value.
#[inline(always)]
pub(super) fn narrow(x: f64, format: Format, rounding: u32) -> u64 {
    let magnitude = x.to_bits() & !(1 << 63);
    let negative = x.is_sign_negative();
    let sign = u64::from(negative) << (format.exponent + format.mantissa);
    if x.is_nan() {
        return (1 << (format.exponent + format.mantissa)) - 1;
    }
    if format.mantissa == F64.mantissa {
        return x.to_bits();
    }
    let field = (magnitude >> 52) as i32;
    let fraction = magnitude & ((1 << 52) - 1);
    // What is subnormal here lies far below every narrower format: its exponent does not matter.
    let full = if field == 0 { fraction } else { fraction | 1 << 52 };
    let (exponent, least) = (field - F64.bias(), 1 - format.bias());
    let missing = (least - exponent).max(0);
    let drop = (52 - format.mantissa as i32 + missing).min(63) as u32;
    let (kept, rest, half) = (full >> drop, full & ((1 << drop) - 1), 1u64 << (drop - 1));
    let up = match rounding & mode::ROUNDING {
        mode::RN => rest > half || rest == half && kept & 1 != 0,
        mode::RNA => rest >= half,
        mode::RM => negative && rest != 0,
        mode::RP => !negative && rest != 0,
        _ => false,
    };
    // A carry out of the fraction is one into the exponent.
    let scale = (exponent - least).max(0) as u64;
    let bits = (scale << format.mantissa) + kept + u64::from(up);
    let infinite = match rounding & mode::ROUNDING {
        mode::RN | mode::RNA => true,
        mode::RM => negative,
        mode::RP => !negative,
        _ => false,
    };
    let most = format.infinity() - u64::from(!infinite && x.is_finite());
    sign | bits.min(most)
}

/// The value of any format up to `f64`.
pub(super) fn widen(bits: u64, format: Format) -> f64 {
    let fraction = bits & ((1 << format.mantissa) - 1);
    let field = (bits >> format.mantissa) & ((1 << format.exponent) - 1);
    let negative = bits >> (format.exponent + format.mantissa) & 1 != 0;
    let value = if field == (1 << format.exponent) - 1 {
        if fraction == 0 { f64::INFINITY } else { f64::NAN }
    } else {
        let (mantissa, exponent) =
            if field == 0 { (fraction, 1) } else { (fraction | 1 << format.mantissa, field as i32) };
        let power = exponent - format.bias() - format.mantissa as i32;
        // Exact: the product of a small integer and a power of two inside the range of f64.
        mantissa as f64 * pow2(power)
    };
    if negative { -value } else { value }
}

fn pow2(power: i32) -> f64 {
    f64::from_bits(((power + 1023).clamp(1, 2046) as u64) << 52)
}

/// Sets the last bit of `r` if the exact result differs from it: `error` has the sign of exact − r.
#[inline(always)]
fn odd(r: f64, error: f64) -> f64 {
    if error == 0.0 || error.is_nan() || !r.is_finite() {
        return r;
    }
    let bits = r.to_bits();
    if bits & 1 == 1 {
        return r;
    }
    // The neighbours of an even mantissa are odd: go one step towards the exact value.
    if r == 0.0 {
        return if error > 0.0 { f64::from_bits(1) } else { -f64::from_bits(1) };
    }
    f64::from_bits(if (error > 0.0) == (r > 0.0) { bits + 1 } else { bits - 1 })
}

/// a + b rounded to odd.
#[inline(always)]
pub(super) fn odd_add(a: f64, b: f64) -> f64 {
    let s = a + b;
    let t = s - a;
    odd(s, (a - (s - t)) + (b - t))
}

/// a · b + c rounded to odd, where a · b is exact in `f64` (both of 26 bits or fewer).
#[inline(always)]
pub(super) fn odd_fma(a: f64, b: f64, c: f64) -> f64 {
    odd_add(a * b, c)
}

/// a / b rounded to odd, for operands of `f32` and narrower.
#[inline(always)]
pub(super) fn odd_div(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || b == 0.0 || b.is_infinite() {
        return q;
    }
    let r = (-q).mul_add(b, a);
    odd(q, if b < 0.0 { -r } else { r })
}

/// √a rounded to odd, for operands of `f32` and narrower.
#[inline(always)]
pub(super) fn odd_sqrt(a: f64) -> f64 {
    let q = a.sqrt();
    if !q.is_finite() || q == 0.0 { q } else { odd(q, (-q).mul_add(q, a)) }
}

/// The NaN that the hardware gives: that of the first operand that is one, quiet; else a new one. Processors
/// choose in other ways, and so do compilers.
#[inline]
fn nan_of(r: f64, operands: &[f64]) -> f64 {
    if !r.is_nan() {
        return r;
    }
    let first = operands.iter().find(|x| x.is_nan());
    f64::from_bits(first.map_or(0xFFF8_0000_0000_0000, |x| x.to_bits() | 1 << 51))
}

/// a · b + c in `f64` with any rounding. A NaN comes from b, then c, then a.
pub(super) fn fma64(a: f64, b: f64, c: f64, rounding: u32) -> f64 {
    let nearest = nan_of(a.mul_add(b, c), &[b, c, a]);
    if rounding & mode::ROUNDING == mode::RN || !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return nearest;
    }
    let (p, c) = (Exact::from_f64(a).product(Exact::from_f64(b)), Exact::from_f64(c));
    finish(p, c, rounding)
}

/// a + b in `f64` with any rounding. A NaN comes from b, then a.
pub(super) fn add64(a: f64, b: f64, rounding: u32) -> f64 {
    if rounding & mode::ROUNDING == mode::RN || !(a.is_finite() && b.is_finite()) {
        return nan_of(a + b, &[b, a]);
    }
    finish(Exact::from_f64(a), Exact::from_f64(b), rounding)
}

/// a − b in `f64` with any rounding. A NaN keeps its sign.
pub(super) fn sub64(a: f64, b: f64, rounding: u32) -> f64 {
    add64(a, if b.is_nan() { b } else { -b }, rounding)
}

fn finish(a: Exact, b: Exact, rounding: u32) -> f64 {
    let mut sum = a.sum(b);
    if sum.mantissa == 0 && !sum.sticky {
        // x − x is +0, except −0 when rounding down; equal signs keep theirs.
        sum.negative =
            if a.negative == b.negative { a.negative } else { rounding & mode::ROUNDING == mode::RM };
    }
    f64::from_bits(sum.round(F64, rounding))
}

/// a · b in `f64` with any rounding. A NaN comes from b, then a.
pub(super) fn mul64(a: f64, b: f64, rounding: u32) -> f64 {
    if rounding & mode::ROUNDING == mode::RN || !(a.is_finite() && b.is_finite()) {
        return nan_of(a * b, &[b, a]);
    }
    f64::from_bits(Exact::from_f64(a).product(Exact::from_f64(b)).round(F64, rounding))
}

/// a / b in `f64` with any rounding.
pub(super) fn div64(a: f64, b: f64, rounding: u32) -> f64 {
    if rounding & mode::ROUNDING == mode::RN || !(a.is_finite() && b.is_finite()) || b == 0.0 || a == 0.0 {
        return a / b;
    }
    let (mut x, mut y) = (Exact::from_f64(a), Exact::from_f64(b));
    let up = x.mantissa.leading_zeros() - 1;
    x.mantissa <<= up;
    x.exponent -= up as i32;
    let down = y.mantissa.trailing_zeros();
    y.mantissa >>= down;
    y.exponent += down as i32;
    let (q, r) = (x.mantissa / y.mantissa, x.mantissa % y.mantissa);
    let negative = x.negative ^ y.negative;
    let exact = Exact { negative, mantissa: q, exponent: x.exponent - y.exponent, sticky: r != 0 };
    f64::from_bits(exact.round(F64, rounding))
}

/// √a in `f64` with any rounding.
pub(super) fn sqrt64(a: f64, rounding: u32) -> f64 {
    let nearest = a.sqrt();
    if rounding & mode::ROUNDING == mode::RN || !nearest.is_finite() || nearest == 0.0 {
        return nearest;
    }
    let mut x = Exact::from_f64(a);
    let mut up = x.mantissa.leading_zeros() - 2;
    if (x.exponent - up as i32) % 2 != 0 {
        up -= 1;
    }
    x.mantissa <<= up;
    x.exponent -= up as i32;
    let root = x.mantissa.isqrt();
    let sticky = root * root != x.mantissa;
    f64::from_bits(
        Exact { negative: false, mantissa: root, exponent: x.exponent / 2, sticky }.round(F64, rounding),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> impl FnMut() -> u64 {
        let mut state = 0x1234_5678_9ABC_DEF1u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    fn x_of(a: f64) -> Option<Exact> {
        a.is_finite().then(|| Exact::from_f64(a))
    }

    /// Operands with random exponents, close exponents and special values.
    fn operands(next: &mut impl FnMut() -> u64) -> (f64, f64, f64) {
        let mut one = || match next() % 8 {
            0 => [0.0, -0.0, 1.0, f64::MIN_POSITIVE, f64::MAX, f64::from_bits(1), -1.5, 3.0]
                [next() as usize % 8],
            1..=3 => f64::from_bits(next() & !(0x7FF << 52) | (1020 + next() % 8) << 52),
            _ => f64::from_bits(next()),
        };
        (one(), one(), one())
    }

    #[test]
    fn nearest_agrees_with_the_processor() {
        let mut next = random();
        for _ in 0..200_000 {
            let (a, b, c) = operands(&mut next);
            if !(a.is_finite() && b.is_finite() && c.is_finite()) {
                continue;
            }
            let (x, y, z) = (Exact::from_f64(a), Exact::from_f64(b), Exact::from_f64(c));
            assert_eq!(finish(x, y, mode::RN).to_bits(), (a + b).to_bits(), "{a:e} + {b:e}");
            assert_eq!(x.product(y).round(F64, mode::RN), (a * b).to_bits(), "{a:e} * {b:e}");
            assert_eq!(
                finish(x.product(y), z, mode::RN).to_bits(),
                a.mul_add(b, c).to_bits(),
                "{a:e} {b:e} {c:e}"
            );
            assert_eq!(narrow(a, F32, mode::RN), u64::from((a as f32).to_bits()), "{a:e}");
            for format in [F16, BF16, TF32, F32, Format { exponent: 5, mantissa: 2 }] {
                for rounding in [mode::RN, mode::RZ, mode::RM, mode::RP, mode::RNA] {
                    // Also near the format's own range.
                    for a in [a, f64::from_bits(a.to_bits() & !(0x7F << 56) | 0x3F << 56), a * 1e-8, a * 1e30]
                    {
                        let (got, right) =
                            (narrow(a, format, rounding), x_of(a).map(|x| x.round(format, rounding)));
                        assert_eq!(Some(got), right.or(Some(got)), "{a:e} {format:?} {rounding}");
                    }
                }
            }
            // `half` 2.7 looks at the upper 32 bits only: whether anything is below goes into their last.
            let upper = a.to_bits() & !0xFFFF_FFFF | u64::from(a.to_bits() as u32 != 0) << 32;
            let seen = f64::from_bits(upper | a.to_bits() & 1 << 32);
            assert_eq!(narrow(a, F16, mode::RN), u64::from(half::f16::from_f64(seen).to_bits()), "{a:e}");
            assert_eq!(narrow(a, BF16, mode::RN), u64::from(half::bf16::from_f64(seen).to_bits()), "{a:e}");
            let (p, q) = (a as f32, b as f32);
            if p.is_finite() && q.is_finite() && q != 0.0 {
                let (p64, q64) = (f64::from(p), f64::from(q));
                assert_eq!(
                    narrow(odd_div(p64, q64), F32, mode::RN) as u32,
                    (p / q).to_bits(),
                    "{p:e} / {q:e}"
                );
                assert_eq!(
                    narrow(odd_add(p64, q64), F32, mode::RN) as u32,
                    (p + q).to_bits(),
                    "{p:e} + {q:e}"
                );
                let r = c as f32;
                if r.is_finite() {
                    let got = narrow(odd_fma(p64, q64, r.into()), F32, mode::RN) as u32;
                    assert_eq!(got, p.mul_add(q, r).to_bits(), "{p:e} {q:e} {r:e}");
                }
            }
        }
    }

    /// Directed results bracket the nearest one, and are one step apart unless exact.
    #[test]
    fn directed_results_bracket() {
        let mut next = random();
        for _ in 0..100_000 {
            let (a, b, c) = operands(&mut next);
            let forms: [(&str, &dyn Fn(u32) -> f64); 5] = [
                ("add", &|m| add64(a, b, m)),
                ("mul", &|m| mul64(a, b, m)),
                ("fma", &|m| fma64(a, b, c, m)),
                ("div", &|m| div64(a, b, m)),
                ("sqrt", &|m| sqrt64(a.abs(), m)),
            ];
            for (name, f) in forms {
                let (n, z, down, up) = (f(mode::RN), f(mode::RZ), f(mode::RM), f(mode::RP));
                if n.is_nan() {
                    continue;
                }
                assert!(down <= n && n <= up, "{name} {a:e} {b:e} {c:e}: {down:e} {n:e} {up:e}");
                assert!(
                    z == if n > 0.0 || (n == 0.0 && down >= 0.0) { down } else { up },
                    "{name} {a:e} {b:e} {c:e}"
                );
                assert!(down == up || down.next_up() == up, "{name} {a:e} {b:e} {c:e}");
            }
        }
    }
}
