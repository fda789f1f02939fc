//! Single instructions on *every* input of 16 bits, or every pair of 8 bits, against references that share nothing with
//! the interpreter: small floats are looked up in sorted tables of all values of their format, and integers are computed in
//! 128 bits.

mod ptx_support;

use ptx_support::{Random, run};
use std::cmp::Ordering;

/// A format of 16 bits: digits after the point, and exponent bias.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    digits: u32,
    bias: i32,
}

const F16: Format = Format { name: "f16", digits: 10, bias: 15 };
const BF16: Format = Format { name: "bf16", digits: 7, bias: 127 };

impl Format {
    fn infinity(self) -> u64 {
        0x7FFF & !0 << self.digits
    }

    fn is_nan(self, bits: u64) -> bool {
        bits & 0x7FFF > self.infinity()
    }

    /// Exact value of a finite pattern or an infinity.
    fn value(self, bits: u64) -> f64 {
        let exponent = (bits & 0x7FFF) >> self.digits;
        let fraction = (bits & ((1 << self.digits) - 1)) as f64;
        let sign = if bits >> 15 & 1 != 0 { -1.0 } else { 1.0 };
        let unit = |e: i32| 2f64.powi(e - self.bias - self.digits as i32);
        if bits & 0x7FFF == self.infinity() {
            return sign * f64::INFINITY;
        }
        sign * match exponent {
            0 => fraction * unit(1),
            e => (fraction + 2f64.powi(self.digits as i32)) * unit(e as i32),
        }
    }

    /// The pattern nearest to a number in a mode, found among all patterns of its sign. `exact` is the number's order
    /// to a value of the table.
    fn round(self, negative: bool, mode: &str, exact: impl Fn(f64) -> Ordering) -> u64 {
        // Magnitudes are sorted as their patterns are. The largest pattern that is not above the number:
        let (mut low, mut high) = (0, self.infinity());
        while low < high {
            let middle = (low + high).div_ceil(2);
            if exact(self.value(middle)) == Ordering::Less { high = middle - 1 } else { low = middle }
        }
        let sign = u64::from(negative) << 15;
        if exact(self.value(low)) == Ordering::Equal || low == self.infinity() {
            return sign | low;
        }
        let away = match mode {
            "rz" => false,
            "rm" => negative,
            "rp" => !negative,
            _ => {
                // Halfway between neighbours; beyond the largest number, as if the format went on.
                let below = self.value(low);
                let above = if low + 1 == self.infinity() {
                    below + (below - self.value(low - 1))
                } else {
                    self.value(low + 1)
                };
                match exact((below + above) / 2.0) {
                    Ordering::Equal => low & 1 != 0,
                    order => order == Ordering::Greater,
                }
            }
        };
        sign | (low + u64::from(away))
    }

    /// A finite double.
    fn of(self, x: f64, mode: &str) -> u64 {
        self.round(x.is_sign_negative(), mode, |v| x.abs().partial_cmp(&v).unwrap())
    }
}

fn all() -> Vec<[u64; 3]> {
    (0..1 << 16).map(|a| [a, 0, 0]).collect()
}

fn pairs() -> Vec<[u64; 3]> {
    (0..1 << 16).map(|n| [n & 0xFF, n >> 8, 0]).collect()
}

fn check(body: &str, widths: [u32; 4], inputs: &[[u64; 3]], want: impl Fn(u64, u64, u64) -> u64) {
    let mask = u64::MAX >> (64 - widths[3]);
    for (got, &[a, b, c]) in run(body, widths, inputs).into_iter().zip(inputs) {
        let want = want(a, b, c) & mask;
        assert_eq!(got, want, "{body} of {a:#x} {b:#x} {c:#x}: {got:#x}, not {want:#x}");
    }
}

const MODES: [&str; 4] = ["rn", "rz", "rm", "rp"];

/// A float to an integer: rounded, then clamped; NaN is 0, or the top bit alone where a side has 64 bits.
fn to_integer(x: f64, mode: &str, low: i128, high: i128, wide: bool) -> u64 {
    if x.is_nan() {
        return if wide { 1 << 63 } else { 0 };
    }
    let rounded = match mode {
        "rni" => x.round_ties_even(),
        "rzi" => x.trunc(),
        "rmi" => x.floor(),
        _ => x.ceil(),
    };
    (rounded as i128).clamp(low, high) as u64
}

const INTEGERS: [(&str, u32); 8] =
    [("u8", 8), ("s8", 8), ("u16", 16), ("s16", 16), ("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64)];

fn range(ty: &str, bits: u32) -> (i128, i128) {
    if ty.starts_with('s') { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

#[test]
fn halves_to_integers() {
    for format in [F16, BF16] {
        for (ty, bits) in INTEGERS {
            if format.name == "bf16" && bits == 8 {
                continue;
            }
            let (low, high) = range(ty, bits);
            let wd = bits.max(16);
            for mode in ["rni", "rzi", "rmi", "rpi"] {
                let body = format!("cvt.{mode}.{ty}.{} d, a;", format.name);
                // A byte in a register of 16 bits: sign-extended if it is signed.
                check(&body, [16, 32, 32, wd], &all(), |a, _, _| {
                    let x = if format.is_nan(a) { f64::NAN } else { format.value(a) };
                    to_integer(x, mode, low, high, bits == 64)
                });
            }
        }
    }
}

#[test]
fn integers_of_16_bits_to_halves_and_others() {
    for signed in [false, true] {
        let ty = if signed { "s16" } else { "u16" };
        let number = |a: u64| if signed { i128::from(a as i16) } else { i128::from(a) };
        for mode in MODES {
            for format in [F16, BF16] {
                let body = format!("cvt.{mode}.{}.{ty} d, a;", format.name);
                check(&body, [16, 32, 32, 16], &all(), |a, _, _| format.of(number(a) as f64, mode));
            }
            // Wider formats hold every one of them.
            check(&format!("cvt.{mode}.f32.{ty} d, a;"), [16, 32, 32, 32], &all(), |a, _, _| {
                u64::from((number(a) as f32).to_bits())
            });
            check(&format!("cvt.{mode}.f64.{ty} d, a;"), [16, 32, 32, 64], &all(), |a, _, _| {
                (number(a) as f64).to_bits()
            });
        }
        for (to, bits) in INTEGERS {
            let (low, high) = range(to, bits);
            let wd = bits.max(16);
            let extend = |v: i128| if bits == 8 && to == "s8" { v as i8 as u64 } else { v as u64 };
            let byte = |v: i128| if bits == 8 && to == "u8" { v & 0xFF } else { v };
            check(&format!("cvt.{to}.{ty} d, a;"), [16, 32, 32, wd], &all(), |a, _, _| {
                extend(byte(number(a)))
            });
            // Where every value fits, PTX has no `.sat`.
            let (from_low, from_high) = range(ty, 16);
            if low > from_low || high < from_high {
                check(&format!("cvt.sat.{to}.{ty} d, a;"), [16, 32, 32, wd], &all(), |a, _, _| {
                    extend(number(a).clamp(low, high))
                });
            }
        }
    }
}

#[test]
fn bytes_of_every_width() {
    // Sources of 8 bits are the low bits of their register.
    for signed in [false, true] {
        let ty = if signed { "s8" } else { "u8" };
        let number = |a: u64| if signed { i128::from(a as i8) } else { i128::from(a as u8) };
        for mode in MODES {
            check(&format!("cvt.{mode}.f16.{ty} d, a;"), [16, 32, 32, 16], &all(), |a, _, _| {
                F16.of(number(a) as f64, mode)
            });
        }
        for (to, bits) in INTEGERS.into_iter().filter(|(_, bits)| *bits > 8) {
            check(&format!("cvt.{to}.{ty} d, a;"), [16, 32, 32, bits], &all(), |a, _, _| number(a) as u64);
        }
    }
}

#[test]
fn halves_to_floats_and_back() {
    check("cvt.f32.f16 d, a;", [16, 32, 32, 32], &all(), |a, _, _| {
        if F16.is_nan(a) { 0x7FFF_FFFF } else { u64::from((F16.value(a) as f32).to_bits()) }
    });
    check("cvt.f64.f16 d, a;", [16, 32, 32, 64], &all(), |a, _, _| match F16.is_nan(a) {
        // Sign and payload go along.
        true => (a >> 15) << 63 | 0x7FF8 << 48 | (a & 0x3FF) << 42,
        false => F16.value(a).to_bits(),
    });
    check("cvt.f32.bf16 d, a;", [16, 32, 32, 32], &all(), |a, _, _| a << 16);
    // Every upper half of an f32, below it nothing, one, half, more, all.
    for format in [F16, BF16] {
        for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let inputs: Vec<[u64; 3]> = (0..1 << 16).map(|a| [a << 16 | low, 0, 0]).collect();
            for mode in MODES {
                let body = format!("cvt.{mode}.{}.f32 d, a;", format.name);
                check(&body, [32, 32, 32, 16], &inputs, |a, _, _| {
                    let x = f32::from_bits(a as u32);
                    match () {
                        () if x.is_nan() => 0x7FFF,
                        () if x.is_infinite() => u64::from(x < 0.0) << 15 | format.infinity(),
                        () => format.of(x.into(), mode),
                    }
                });
            }
        }
    }
}

#[test]
fn signs_and_integral_rounding_of_halves() {
    for format in [F16, BF16] {
        let name = format.name;
        let nan = |a: u64, other: u64| if format.is_nan(a) { 0x7FFF } else { other };
        check(&format!("neg.{name} d, a;"), [16; 4], &all(), |a, _, _| nan(a, a ^ 0x8000));
        check(&format!("abs.{name} d, a;"), [16; 4], &all(), |a, _, _| nan(a, a & 0x7FFF));
        for (mode, round) in [
            ("rni", f64::round_ties_even as fn(f64) -> f64),
            ("rzi", f64::trunc),
            ("rmi", f64::floor),
            ("rpi", f64::ceil),
        ] {
            check(&format!("cvt.{mode}.{name}.{name} d, a;"), [16; 4], &all(), |a, _, _| {
                let x = format.value(a);
                match () {
                    () if format.is_nan(a) => 0x7FFF,
                    () if x.is_infinite() => a,
                    () => format.of(round(x), "rn"),
                }
            });
        }
    }
}

/// 256 patterns that meet every exponent and both signs: with each other they are 65 536 pairs.
fn representative(format: Format, n: u64) -> u64 {
    let exponents = 0x7FFF >> format.digits;
    let exponent = (n & 0x7F) * 37 % (exponents + 1);
    let fraction = ((n * 0x9E37) >> 3) & ((1 << format.digits) - 1);
    let fraction = match n % 5 {
        0 => 0,
        1 => (1 << format.digits) - 1,
        _ => fraction,
    };
    (n >> 7) << 15 | exponent << format.digits | fraction
}

#[test]
fn sums_and_products_of_halves() {
    for format in [F16, BF16] {
        let name = format.name;
        let inputs: Vec<[u64; 3]> = pairs()
            .into_iter()
            .map(|[a, b, _]| [representative(format, a), representative(format, b), 0])
            .collect();
        for op in ["add", "sub", "mul"] {
            check(&format!("{op}.{name} d, a, b;"), [16; 4], &inputs, |a, b, _| {
                if format.is_nan(a) || format.is_nan(b) {
                    return 0x7FFF;
                }
                let (x, y) = (format.value(a), format.value(b));
                let y = if op == "sub" { -y } else { y };
                // Products are exact in a double. Of a sum of two halves it may lose digits that lie far below the
                // larger one: comparing with a value asks for the sign of what is left of both.
                let result = if op == "mul" { x * y } else { x + y };
                if result.is_nan() {
                    return 0x7FFF;
                }
                if result.is_infinite() {
                    return u64::from(result < 0.0) << 15 | format.infinity();
                }
                if result == 0.0 || op == "mul" {
                    return format.of(result, "rn");
                }
                let negative = result < 0.0;
                let s = if negative { -1.0 } else { 1.0 };
                format.round(negative, "rn", |v| {
                    // (x + y) - v, with the error of x + y put back.
                    let sum = s * x + s * y;
                    let error = two_sum_error(s * x, s * y);
                    match sum.partial_cmp(&v).unwrap() {
                        Ordering::Equal => error.partial_cmp(&0.0).unwrap(),
                        order => order,
                    }
                })
            });
        }
        for (op, keep) in [("min", Ordering::Less), ("max", Ordering::Greater)] {
            check(&format!("{op}.{name} d, a, b;"), [16; 4], &inputs, |a, b, _| {
                match (format.is_nan(a), format.is_nan(b)) {
                    (true, true) => 0x7FFF,
                    (true, false) => b,
                    (false, true) => a,
                    _ => {
                        // -0 is below +0.
                        let key = |v: u64| if v >> 15 != 0 { -((v & 0x7FFF) as i32) - 1 } else { v as i32 };
                        if key(a).cmp(&key(b)) == keep { a } else { b }
                    }
                }
            });
        }
        for (compare, holds) in [
            ("lt", (|o| o == Some(Ordering::Less)) as fn(Option<Ordering>) -> bool),
            ("ge", |o| matches!(o, Some(Ordering::Greater | Ordering::Equal))),
            ("neu", |o| o != Some(Ordering::Equal)),
            ("nan", |o| o.is_none()),
        ] {
            let body = format!("setp.{compare}.{name} p, a, b; selp.b32 d, 1, 0, p;");
            check(&body, [16, 16, 16, 32], &inputs, |a, b, _| {
                let value = |v| if format.is_nan(v) { f64::NAN } else { format.value(v) };
                holds(value(a).partial_cmp(&value(b))).into()
            });
        }
    }
}

/// What a + b loses in a double.
fn two_sum_error(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let c = sum - a;
    (a - (sum - c)) + (b - c)
}

#[test]
fn integers_of_16_bits() {
    let two = |n: u64| [n, n.wrapping_mul(0x9E37) & 0xFFFF, n.wrapping_mul(0x85EB) >> 3 & 0xFFFF];
    let inputs: Vec<[u64; 3]> = (0..1 << 16).map(two).collect();
    check("not.b16 d, a;", [16; 4], &inputs, |a, _, _| !a);
    check("cnot.b16 d, a;", [16; 4], &inputs, |a, _, _| u64::from(a == 0));
    check("abs.s16 d, a;", [16; 4], &inputs, |a, _, _| (a as i16).wrapping_abs() as u64);
    check("neg.s16 d, a;", [16; 4], &inputs, |a, _, _| (a as i16).wrapping_neg() as u64);
    check("sad.s16 d, a, b, c;", [16; 4], &inputs, |a, b, c| {
        c.wrapping_add(u64::from((a as i16).abs_diff(b as i16)))
    });
    check("mad.hi.s16 d, a, b, c;", [16; 4], &inputs, |a, b, c| {
        let product = i64::from(a as i16) * i64::from(b as i16);
        ((product >> 16) + c as i64) as u64
    });
    for (op, shift) in [("shl.b16", 0), ("shr.u16", 1), ("shr.s16", 2)] {
        // Every amount from 0 to 255 with 256 values.
        let amounts: Vec<[u64; 3]> = pairs().into_iter().map(|[a, b, _]| [a * 257, b, 0]).collect();
        check(&format!("{op} d, a, b;"), [16, 32, 16, 16], &amounts, |a, b, _| match shift {
            0 => u128::from(a).checked_shl(b as u32).unwrap_or(0) as u64,
            1 => a.checked_shr(b as u32).unwrap_or(0),
            _ => (i64::from(a as i16) >> b.min(63)) as u64,
        });
    }
}

#[test]
fn bytes_with_bytes() {
    let inputs = pairs();
    // Fields at every position of every length.
    for word in [0x8765_4321u64, 0xFFFF_FFFF, 0x8000_0000, 0] {
        check(&format!("bfe.u32 d, {word}, a, b;"), [32; 4], &inputs, |pos, len, _| {
            let field = word.checked_shr(pos as u32).unwrap_or(0) & 0xFFFF_FFFF;
            field & ((1u128 << len.min(64)) - 1) as u64
        });
        check(&format!("bfe.s32 d, {word}, a, b;"), [32; 4], &inputs, |pos, len, _| {
            // Bits beyond the word are its sign; a field's highest bit is repeated.
            if len == 0 {
                return 0;
            }
            let wide = i128::from(word as u32 as i32);
            let field = wide >> pos.min(127);
            let unused = 128 - len.min(127) as u32;
            if pos + len > 32 { field as u64 } else { (field << unused >> unused) as u64 }
        });
        check(
            &format!("mov.b32 x0, 0x12345678; bfi.b32 d, {word}, x0, a, b;"),
            [32; 4],
            &inputs,
            |pos, len, _| {
                let mut bits = 0x1234_5678u64;
                for i in 0..len {
                    if pos + i < 32 {
                        let bit = word.checked_shr(i as u32).unwrap_or(0) & 1;
                        bits = bits & !(1 << (pos + i)) | bit << (pos + i);
                    }
                }
                bits
            },
        );
        for (side, name) in [(true, "l"), (false, "r")] {
            for how in ["wrap", "clamp"] {
                let body = format!("shf.{name}.{how}.b32 d, {word}, b, a;");
                check(&body, [32; 4], &inputs, |amount, high, _| {
                    let n = if how == "wrap" { amount & 31 } else { amount.min(32) };
                    let both = u128::from(high << 32 | word);
                    if side { (both << n >> 32) as u64 } else { (both >> n) as u64 }
                });
            }
        }
    }
    for how in ["wrap", "clamp"] {
        check(&format!("bmsk.{how}.b32 d, a, b;"), [32; 4], &inputs, |a, b, _| {
            let (a, b) = if how == "wrap" { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
            (((1u128 << b) - 1) << a) as u64
        });
        for signed in [false, true] {
            let body = format!(
                "mov.b32 x0, 0x9ABCDEF0; xor.b32 x0, x0, b; szext.{how}.{} d, x0, a;",
                if signed { "s32" } else { "u32" }
            );
            check(&body, [32; 4], &inputs, |n, b, _| {
                let word = 0x9ABC_DEF0 ^ b;
                let n = if how == "wrap" { n & 31 } else { n.min(32) };
                let low = u128::from(word) & ((1 << n) - 1);
                let negative = signed && n > 0 && low >> (n - 1) & 1 != 0;
                if negative { (low | !0 << n) as u64 } else { low as u64 }
            });
        }
    }
    // Products of bytes in every width, and dot products of one byte with one.
    for (name, w) in [("u16", 16), ("u32", 32), ("u64", 64)] {
        check(&format!("mul.lo.{name} d, a, b;"), [w; 4], &inputs, |a, b, _| a * b);
        check(&format!("add.{name} d, a, b;"), [w; 4], &inputs, |a, b, _| a + b);
        check(&format!("sub.{name} d, a, b;"), [w; 4], &inputs, |a, b, _| a.wrapping_sub(b));
    }
    check("dp4a.s32.s32 d, a, b, 0;", [32; 4], &inputs, |a, b, _| {
        (i64::from(a as i8) * i64::from(b as i8)) as u64
    });
    check("dp4a.u32.s32 d, a, b, 0;", [32; 4], &inputs, |a, b, _| (a as i64 * i64::from(b as i8)) as u64);
}

#[test]
fn permutations_by_every_selector() {
    let bytes = |a: u64, b: u64| (b << 32 | a).to_le_bytes();
    let inputs: Vec<[u64; 3]> = (0..1 << 16).map(|c| [0x8302_7F01, 0xFF80_4510, c]).collect();
    check("prmt.b32 d, a, b, c;", [32; 4], &inputs, |a, b, c| {
        (0..4).fold(0, |word, i| {
            let nibble = c >> (4 * i) & 15;
            let byte = bytes(a, b)[(nibble & 7) as usize];
            let byte = if nibble & 8 != 0 { if byte >> 7 != 0 { 0xFF } else { 0 } } else { byte };
            word | u64::from(byte) << (8 * i)
        })
    });
    for (mode, order) in [
        ("f4e", [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]),
        ("b4e", [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
        ("rc8", [[0; 4], [1; 4], [2; 4], [3; 4]]),
        ("ecl", [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3; 4]]),
        ("ecr", [[0; 4], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
        ("rc16", [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]),
    ] {
        check(&format!("prmt.b32.{mode} d, a, b, c;"), [32; 4], &inputs[..256], |a, b, c| {
            let order: [usize; 4] = order[(c & 3) as usize];
            u64::from(u32::from_le_bytes(order.map(|i| bytes(a, b)[i])))
        });
    }
}

#[test]
fn every_table_of_three_operands() {
    // All 256 functions of three bits, sixteen in a kernel.
    let mut random = Random(77);
    let inputs: Vec<[u64; 3]> = (0..64).map(|_| [0; 3].map(|_| random.next() & 0xFFFF_FFFF)).collect();
    for table in 0..256u64 {
        check(&format!("lop3.b32 d, a, b, c, {table};"), [32; 4], &inputs, |a, b, c| {
            (0..32).fold(0, |word, i| {
                let at = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
                word | (table >> at & 1) << i
            })
        });
    }
}

#[test]
fn classes_of_floats() {
    // Every sign, exponent and upper fraction.
    for low in [0, 1] {
        let inputs: Vec<[u64; 3]> = (0..1 << 16).map(|a| [a << 16 | low, 0, 0]).collect();
        for (class, holds) in [
            ("finite", (|x: f32| x.is_finite()) as fn(f32) -> bool),
            ("infinite", f32::is_infinite),
            ("number", |x| !x.is_nan()),
            ("notanumber", f32::is_nan),
            // Zeros count as normal on the hardware.
            ("normal", |x| x.is_normal() || x == 0.0),
            ("subnormal", f32::is_subnormal),
        ] {
            let body = format!("testp.{class}.f32 p, a; selp.b32 d, 1, 0, p;");
            check(&body, [32; 4], &inputs, |a, _, _| holds(f32::from_bits(a as u32)).into());
        }
        check("copysign.f32 d, a, 0f3F800000;", [32; 4], &inputs, |a, _, _| a & 1 << 31 | 0x3F80_0000);
    }
}

#[test]
fn roots_and_reciprocals_are_rounded_once() {
    // The result is right if it and its neighbours enclose the exact one: decided in 128-bit integers.
    let mut random = Random(3);
    let inputs: Vec<[u64; 3]> =
        (0..1 << 15).map(|a| [(a & 0x7FFF) << 16 | random.next() & 0xFFFF, 0, 0]).collect();
    let finite = |a: u64| f32::from_bits(a as u32).is_finite() && a & 0x7FFF_FFFF != 0;
    // A positive number as an integer below 2^24 times a power of two.
    let parts = |x: f32| {
        let bits = x.to_bits();
        let (e, m) = ((bits >> 23 & 255) as i32, u128::from(bits & 0x7F_FFFF));
        if e == 0 { (m, -149) } else { (m | 1 << 23, e - 150) }
    };
    // Compares n·2^e with m·2^f.
    let compare = |(n, e): (u128, i32), (m, f): (u128, i32)| {
        let (ln, lm) = (128 - n.leading_zeros() as i32 + e, 128 - m.leading_zeros() as i32 + f);
        if n == 0 || m == 0 || ln != lm {
            return if n == 0 || m == 0 { n.cmp(&m) } else { ln.cmp(&lm) };
        }
        let d = (e - f).unsigned_abs();
        if e >= f { (n << d).cmp(&m) } else { n.cmp(&(m << d)) }
    };
    let product = |(n, e): (u128, i32), (m, f): (u128, i32)| (n * m, e + f);
    for mode in MODES {
        for op in ["sqrt", "rcp"] {
            let results = run(&format!("{op}.{mode}.f32 d, a;"), [32; 4], &inputs);
            for (got, [a, ..]) in results.into_iter().zip(&inputs) {
                let (x, y) = (f32::from_bits(*a as u32), f32::from_bits(got as u32));
                // Above the largest number there is no neighbour to compare with.
                if !finite(*a) || !finite(got) || got == 0x7F7F_FFFF {
                    continue;
                }
                // How a candidate compares with the exact result: its square with x, or its product with x and 1.
                let order = |candidate: (u128, i32)| match op {
                    "sqrt" => compare(product(candidate, candidate), parts(x)),
                    _ => compare(product(candidate, parts(x)), (1, 0)),
                };
                let what = format!("{op}.{mode} of {a:#x}: {got:#x}");
                let (n, e) = parts(y);
                match mode {
                    "rn" => {
                        // Half a unit on both sides, in units of a quarter.
                        assert_ne!(order((4 * n - 2, e - 2)), Ordering::Greater, "{what}");
                        assert_ne!(order((4 * n + 2, e - 2)), Ordering::Less, "{what}");
                    }
                    "rp" => {
                        assert_ne!(order((n, e)), Ordering::Less, "{what}");
                        assert_eq!(order((n - 1, e)), Ordering::Less, "{what}");
                    }
                    _ => {
                        assert_ne!(order((n, e)), Ordering::Greater, "{what}");
                        assert_eq!(order((n + 1, e)), Ordering::Greater, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn eighths_to_halves() {
    // Both bytes of a pair, every value of each.
    for (name, digits, bias) in [("e4m3x2", 3u32, 7i32), ("e5m2x2", 2, 15)] {
        let value = |byte: u64| {
            let (exponent, fraction) = (byte >> digits & (0x7F >> digits), byte & ((1 << digits) - 1));
            let sign = byte >> 7 & 1;
            let most = 0x7F >> digits;
            let special = exponent == most;
            let infinite = name == "e5m2x2" && special && fraction == 0;
            let nan = if name == "e5m2x2" { special && fraction != 0 } else { byte & 0x7F == 0x7F };
            if nan {
                return 0x7FFF;
            }
            if infinite {
                return sign << 15 | 0x7C00;
            }
            let unit = 2f64.powi(exponent.max(1) as i32 - bias - digits as i32);
            let whole = fraction as f64 + if exponent == 0 { 0.0 } else { 2f64.powi(digits as i32) };
            sign << 15 | F16.of(whole * unit, "rn")
        };
        check(&format!("cvt.rn.f16x2.{name} d, a;"), [16, 32, 32, 32], &all(), |a, _, _| {
            value(a & 0xFF) | value(a >> 8) << 16
        });
    }
}
