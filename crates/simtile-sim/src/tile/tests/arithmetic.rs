//! Arithmetic, comparisons and conversions.

use super::machine::Random;
use super::*;
use crate::tile::float::decode;
use half::{bf16, f16};

const ROUND: &str = "rounding_mode";

type Single = fn(f32, f32) -> f32;
type Double = fn(f64) -> f64;

fn floats(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-42,
    ];
    (0..n)
        .map(|i| if i % 7 == 0 { special[random.below(special.len())] } else { random.unit() * 100.0 })
        .collect()
}

#[test]
fn single_precision_is_the_hosts() {
    let (a, b) = (floats(256, 1), floats(256, 2));
    let cases: [(Opcode, Single); 5] = [
        (Opcode::AddF, |x, y| x + y),
        (Opcode::SubF, |x, y| x - y),
        (Opcode::MulF, |x, y| x * y),
        (Opcode::DivF, |x, y| x / y),
        (Opcode::RemF, |x, y| x % y),
    ];
    for (opcode, f) in cases {
        let attrs: &[(&str, i64)] = if opcode == Opcode::RemF { &[] } else { &[(ROUND, 0)] };
        let got = as_f32(&elementwise(opcode, &[f32s(&a), f32s(&b)], F32, attrs));
        for i in 0..a.len() {
            let want = f(a[i], b[i]);
            assert!(
                got[i].to_bits() == want.to_bits() || (got[i].is_nan() && want.is_nan()),
                "{opcode:?}({}, {})",
                a[i],
                b[i]
            );
            assert!(!got[i].is_nan() || got[i].to_bits() == 0x7fff_ffff, "canonical NaN");
        }
    }
}

#[test]
fn half_precision_rounds_once() {
    let (a, b, c) = (floats(256, 3), floats(256, 4), floats(256, 5));
    for (opcode, f) in [
        (Opcode::AddF, (|x, y| x + y) as fn(f64, f64) -> f64),
        (Opcode::MulF, |x, y| x * y),
        (Opcode::DivF, |x, y| x / y),
    ] {
        let got = elementwise(opcode, &[f16s(&a), f16s(&b)], F16, &[(ROUND, 0)]);
        let brain = elementwise(opcode, &[bf16s(&a), bf16s(&b)], BF16, &[(ROUND, 0)]);
        for i in 0..a.len() {
            let want = f16::from_f64(f(f16::from_f32(a[i]).to_f64(), f16::from_f32(b[i]).to_f64()));
            let found = f16::from_bits(got[i] as u16);
            assert!(found == want || (found.is_nan() && want.is_nan()), "{opcode:?} f16 {} {}", a[i], b[i]);
            let want = bf16::from_f64(f(bf16::from_f32(a[i]).to_f64(), bf16::from_f32(b[i]).to_f64()));
            let found = bf16::from_bits(brain[i] as u16);
            assert!(found == want || (found.is_nan() && want.is_nan()), "{opcode:?} bf16 {} {}", a[i], b[i]);
        }
    }
    // 1 + 2^-11 + 2^-22 times something: double rounding would lose the last bit.
    let fused = elementwise(Opcode::Fma, &[f16s(&a), f16s(&b), f16s(&c)], F16, &[(ROUND, 0)]);
    let up = elementwise(Opcode::Fma, &[f16s(&a), f16s(&b), f16s(&c)], F16, &[(ROUND, 3)]);
    for i in 0..a.len() {
        let half = |x: f32| f16::from_f32(x).to_f64();
        let exact = half(a[i]) * half(b[i]) + half(c[i]);
        let (found, above) = (decode(F16, fused[i]), decode(F16, up[i]));
        if exact.is_finite() && exact.abs() < 60000.0 {
            assert!((found - exact).abs() <= exact.abs() * f64::powi(2.0, -11) + f64::powi(2.0, -25));
            assert!(above >= exact, "{above} {exact}");
        }
    }
}

#[test]
fn rounding_modes() {
    let one_third = |mode| {
        as_f32(&elementwise(Opcode::DivF, &[f32s(&[1.0, -1.0]), f32s(&[3.0, 3.0])], F32, &[(ROUND, mode)]))
    };
    let near = 1.0f32 / 3.0;
    assert_eq!(one_third(0), [near, -near]);
    assert_eq!(one_third(1), [near.next_down(), -near.next_down()]);
    assert_eq!(one_third(2), [near.next_down(), -near]);
    assert_eq!(one_third(3), [near, -near.next_down()]);
    let double = as_f64(&elementwise(Opcode::DivF, &[f64s(&[1.0]), f64s(&[3.0])], F64, &[(ROUND, 3)]));
    assert_eq!(double, [(1.0f64 / 3.0).next_up()]);
    let sum =
        as_f32(&elementwise(Opcode::AddF, &[f32s(&[1.0, 2.0]), f32s(&[-1.0, 1e-30])], F32, &[(ROUND, 2)]));
    assert_eq!(
        (sum[0].to_bits(), sum[1]),
        ((-0.0f32).to_bits(), 2.0),
        "an exact zero is negative when rounding down"
    );
    let root = as_f64(&elementwise(Opcode::Sqrt, &[f64s(&[2.0])], F64, &[(ROUND, 1)]));
    assert_eq!(root, [if 2f64.sqrt() * 2f64.sqrt() > 2.0 { 2f64.sqrt().next_down() } else { 2f64.sqrt() }]);
    let large = as_f32(&elementwise(
        Opcode::MulF,
        &[f32s(&[f32::MAX, -f32::MAX]), f32s(&[2.0, 2.0])],
        F32,
        &[(ROUND, 3)],
    ));
    assert_eq!(large, [f32::INFINITY, f32::MIN]);
    let zero = as_f32(&elementwise(Opcode::DivF, &[f32s(&[1.0]), f32s(&[0.0])], F32, &[(ROUND, 1)]));
    assert_eq!(zero, [f32::INFINITY]);
}

#[test]
fn subnormals_are_flushed_on_request() {
    let tiny = 1e-42f32;
    let attrs = [(ROUND, 0), ("flush_to_zero", 1)];
    let got = as_f32(&elementwise(Opcode::AddF, &[f32s(&[tiny, -tiny]), f32s(&[0.0, -0.0])], F32, &attrs));
    assert_eq!(got.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), [0, 0x8000_0000]);
    let got = as_f32(&elementwise(Opcode::AddF, &[f32s(&[tiny]), f32s(&[0.0])], F32, &[(ROUND, 0)]));
    assert_eq!(got, [tiny]);
}

#[test]
fn minimum_and_maximum() {
    let (a, b) = ([1.0, f32::NAN, -0.0, f32::NAN, 0.0], [2.0, 1.0, 0.0, f32::NAN, -0.0]);
    let run = |opcode, nan: bool| {
        let attrs: &[(&str, i64)] = if nan { &[("propagate_nan", 1)] } else { &[] };
        elementwise(opcode, &[f32s(&a), f32s(&b)], F32, attrs).iter().map(|&v| v as u32).collect::<Vec<u32>>()
    };
    let bits = |v: [f32; 5]| v.map(|x| if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }).to_vec();
    assert_eq!(run(Opcode::MaxF, false), bits([2.0, 1.0, 0.0, f32::NAN, 0.0]));
    assert_eq!(run(Opcode::MinF, false), bits([1.0, 1.0, -0.0, f32::NAN, -0.0]));
    assert_eq!(run(Opcode::MaxF, true), bits([2.0, f32::NAN, 0.0, f32::NAN, 0.0]));
    assert_eq!(run(Opcode::MinF, true), bits([1.0, f32::NAN, -0.0, f32::NAN, -0.0]));
}

#[test]
fn functions_are_close_to_exact() {
    let x: Vec<f32> = (1..=64).map(|i| i as f32 / 16.0).collect();
    let cases: [(Opcode, Double); 15] = [
        (Opcode::Exp, f64::exp),
        (Opcode::Exp2, f64::exp2),
        (Opcode::Log, f64::ln),
        (Opcode::Log2, f64::log2),
        (Opcode::Sin, f64::sin),
        (Opcode::Cos, f64::cos),
        (Opcode::Tan, f64::tan),
        (Opcode::SinH, f64::sinh),
        (Opcode::CosH, f64::cosh),
        (Opcode::TanH, f64::tanh),
        (Opcode::Rsqrt, |x| 1.0 / x.sqrt()),
        (Opcode::Ceil, f64::ceil),
        (Opcode::Floor, f64::floor),
        (Opcode::AbsF, f64::abs),
        (Opcode::NegF, |x| -x),
    ];
    for (opcode, f) in cases {
        let attrs: &[(&str, i64)] = if opcode == Opcode::TanH { &[(ROUND, 5)] } else { &[] };
        let got = as_f32(&elementwise(opcode, &[f32s(&x)], F32, attrs));
        let half = elementwise(opcode, &[f16s(&x)], F16, attrs);
        let double = as_f64(&elementwise(
            opcode,
            &[f64s(&x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>())],
            F64,
            attrs,
        ));
        for (i, &v) in x.iter().enumerate() {
            let want = f(f64::from(v));
            assert_eq!(got[i], want as f32, "{opcode:?}({v})");
            assert_eq!(double[i], want, "{opcode:?}({v})");
            assert_eq!(half[i], u64::from(f16::from_f32(want as f32).to_bits()), "{opcode:?}({v})");
        }
    }
    let y: Vec<f32> = x.iter().rev().copied().collect();
    let pow = as_f32(&elementwise(Opcode::Pow, &[f32s(&x), f32s(&y)], F32, &[]));
    let atan = as_f32(&elementwise(Opcode::Atan2, &[f32s(&x), f32s(&y)], F32, &[]));
    let root = as_f32(&elementwise(Opcode::Sqrt, &[f32s(&x)], F32, &[(ROUND, 0)]));
    for i in 0..x.len() {
        assert_eq!(pow[i], f64::from(x[i]).powf(f64::from(y[i])) as f32);
        assert_eq!(atan[i], f64::from(x[i]).atan2(f64::from(y[i])) as f32);
        assert_eq!(root[i], x[i].sqrt());
    }
    let cube =
        as_f32(&elementwise(Opcode::FPowI, &[f32s(&[2.0, -3.0, 2.0, 0.0]), i32s(&[10, 3, -1, 0])], F32, &[]));
    assert_eq!(cube, [1024.0, -27.0, 0.5, 1.0]);
}

#[test]
fn integers_wrap_at_their_width() {
    let ints = |scalar: ScalarType, v: &[i64]| -> Bits {
        let mask = if scalar.byte_width() == 8 { u64::MAX } else { (1 << (scalar.byte_width() * 8)) - 1 };
        (scalar, v.iter().map(|&x| x as u64 & mask).collect())
    };
    let wrap = [("overflow", 0)];
    assert_eq!(elementwise(Opcode::AddI, &[ints(I8, &[127, -1]), ints(I8, &[1, 1])], I8, &wrap), [0x80, 0]);
    assert_eq!(elementwise(Opcode::SubI, &[ints(I16, &[-32768]), ints(I16, &[1])], I16, &wrap), [0x7fff]);
    assert_eq!(
        elementwise(Opcode::MulI, &[ints(I64, &[i64::MAX]), ints(I64, &[2])], I64, &wrap),
        [u64::MAX - 1]
    );
    assert_eq!(elementwise(Opcode::MulhiI, &[ints(I32, &[1 << 31]), ints(I32, &[2])], I32, &[]), [1]);
    assert_eq!(elementwise(Opcode::MulhiI, &[ints(I64, &[-1]), ints(I64, &[-1])], I64, &[]), [u64::MAX - 1]);
    assert_eq!(elementwise(Opcode::NegI, &[ints(I8, &[-128, 5])], I8, &wrap), [0x80, 0xfb]);
    assert_eq!(
        elementwise(Opcode::AbsI, &[ints(I32, &[-7, i64::from(i32::MIN)])], I32, &[]),
        [7, 0x8000_0000]
    );
    assert_eq!(
        elementwise(Opcode::ShLI, &[ints(I32, &[1, 1]), ints(I32, &[31, 32])], I32, &wrap),
        [1 << 31, 0]
    );
    let shift = |signed| {
        elementwise(
            Opcode::ShRI,
            &[ints(I8, &[-128, -128]), ints(I8, &[1, 9])],
            I8,
            &[("signedness", signed)],
        )
    };
    assert_eq!(shift(1), [0xc0, 0xff]);
    assert_eq!(shift(0), [0x40, 0]);
    let logic = |op| elementwise(op, &[ints(I16, &[0x0ff0]), ints(I16, &[0x00ff])], I16, &[]);
    assert_eq!(
        (logic(Opcode::AndI), logic(Opcode::OrI), logic(Opcode::XOrI)),
        (vec![0xf0], vec![0xfff], vec![0xf0f])
    );
    let pick = |op, signed| {
        elementwise(op, &[ints(I32, &[-1]), ints(I32, &[1])], I32, &[("signedness", signed)])[0] as i32
    };
    assert_eq!(pick(Opcode::MaxI, 1), 1);
    assert_eq!(pick(Opcode::MaxI, 0), -1);
    assert_eq!(pick(Opcode::MinI, 1), -1);
    assert_eq!(pick(Opcode::MinI, 0), 1);
}

#[test]
fn division_of_integers() {
    let divide = |signed, rounding| {
        let operands = [i32s(&[7, -7, 7, -7, 6]), i32s(&[2, 2, -2, -2, 3])];
        as_i32(&elementwise(Opcode::DivI, &operands, I32, &[("signedness", signed), ("rounding", rounding)]))
    };
    assert_eq!(divide(1, 1), [3, -3, -3, 3, 2]);
    assert_eq!(divide(1, 2), [3, -4, -4, 3, 2]);
    assert_eq!(divide(1, 3), [4, -3, -3, 4, 2]);
    assert_eq!(divide(0, 1)[1], (-7i32 as u32 / 2) as i32);
    assert_eq!(divide(0, 3)[0], 4);
    let rem = |signed| {
        as_i32(&elementwise(Opcode::RemI, &[i32s(&[7, -7]), i32s(&[-3, 3])], I32, &[("signedness", signed)]))
    };
    assert_eq!(rem(1), [1, -1]);
    assert_eq!(rem(0), [7, (-7i32 as u32 % 3) as i32]);
    // Undefined, but no fault.
    assert_eq!(
        as_i32(&elementwise(
            Opcode::DivI,
            &[i32s(&[1, i32::MIN]), i32s(&[0, -1])],
            I32,
            &[("signedness", 1), ("rounding", 1)]
        )),
        [-1, i32::MIN]
    );
}

#[test]
fn comparisons() {
    let (a, b) = ([1.0, 2.0, f32::NAN, -0.0], [2.0, 1.0, 1.0, 0.0]);
    let float = |p, ordered| {
        elementwise(
            Opcode::CmpF,
            &[f32s(&a), f32s(&b)],
            I1,
            &[("comparison_predicate", p), ("comparison_ordering", ordered)],
        )
    };
    assert_eq!(float(0, 1), [0, 0, 0, 1]);
    assert_eq!(float(1, 1), [1, 1, 0, 0]);
    assert_eq!(float(2, 1), [1, 0, 0, 0]);
    assert_eq!(float(3, 0), [1, 0, 1, 1]);
    assert_eq!(float(4, 0), [0, 1, 1, 0]);
    assert_eq!(float(5, 1), [0, 1, 0, 1]);
    let int = |p, signed| {
        elementwise(
            Opcode::CmpI,
            &[i32s(&[-1, 3]), i32s(&[1, 3])],
            I1,
            &[("comparison_predicate", p), ("signedness", signed)],
        )
    };
    assert_eq!((int(0, 1), int(1, 1)), (vec![0, 1], vec![1, 0]));
    assert_eq!((int(2, 1), int(2, 0)), (vec![1, 0], vec![0, 0]));
    assert_eq!((int(3, 1), int(5, 0)), (vec![1, 1], vec![1, 1]));
    assert_eq!((int(4, 1), int(4, 0)), (vec![0, 0], vec![1, 0]));
}

#[test]
fn conversions_between_floats() {
    let x = [1.0f32, 0.1, 448.5, -65520.0, 1e-8, f32::INFINITY];
    for to in [F16, BF16, F8E4M3FN, F8E5M2, TF32, F64] {
        let got = elementwise(Opcode::FToF, &[f32s(&x)], to, &[(ROUND, 0)]);
        let back: Vec<f64> = got.iter().map(|&v| decode(to, v)).collect();
        let relative = match to {
            F16 | TF32 => f64::powi(2.0, -11),
            BF16 => f64::powi(2.0, -8),
            F8E4M3FN => f64::powi(2.0, -4),
            F8E5M2 => f64::powi(2.0, -3),
            _ => 0.0,
        };
        assert!((back[1] - f64::from(0.1f32)).abs() <= 0.1f64 * relative, "{to:?}: {}", back[1]);
        assert_eq!(back[0], 1.0);
    }
    let eight = elementwise(Opcode::FToF, &[f32s(&[1e9, -1e9, f32::NAN])], F8E4M3FN, &[(ROUND, 0)]);
    assert_eq!(eight, [0x7e, 0xfe, 0x7f], "saturates");
    let truncated =
        as_f32(&elementwise(Opcode::FToF, &[f64s(&[1.0 + 1e-9, -1.0 - 1e-9])], F32, &[(ROUND, 1)]));
    assert_eq!(truncated, [1.0, -1.0]);
    let up = as_f32(&elementwise(Opcode::FToF, &[f64s(&[1.0 + 1e-9, 1e300])], F32, &[(ROUND, 3)]));
    assert_eq!(up, [1.0f32.next_up(), f32::INFINITY]);
}

#[test]
fn conversions_of_integers() {
    let to_int = |bits, signed| {
        elementwise(
            Opcode::FToI,
            &[f32s(&[1.9, -1.9, 3e9, -3e9, f32::NAN])],
            bits,
            &[("signedness", signed), (ROUND, 6)],
        )
    };
    assert_eq!(as_i32(&to_int(I32, 1)), [1, -1, i32::MAX, i32::MIN, 0]);
    assert_eq!(to_int(I32, 0), [1, 0, 3_000_000_000, 0, 0]);
    assert_eq!(to_int(I8, 1), [1, 0xff, 0x7f, 0x80, 0]);
    let from = |signed, mode| {
        as_f32(&elementwise(
            Opcode::IToF,
            &[i32s(&[16_777_217, -16_777_217])],
            F32,
            &[("signedness", signed), (ROUND, mode)],
        ))
    };
    assert_eq!(from(1, 0), [16_777_216.0, -16_777_216.0]);
    assert_eq!(from(0, 0)[1], (-16_777_217i32 as u32) as f32);
    let extend =
        |signed| elementwise(Opcode::ExtI, &[(I8, vec![0x80, 0x7f])], I32, &[("signedness", signed)]);
    assert_eq!(extend(1), [0xffff_ff80, 0x7f]);
    assert_eq!(extend(0), [0x80, 0x7f]);
    assert_eq!(
        elementwise(Opcode::TruncI, &[i32s(&[0x1234_5678, -1])], I16, &[("overflow", 0)]),
        [0x5678, 0xffff]
    );
    let from_bool =
        |signed| as_i32(&elementwise(Opcode::ExtI, &[(I1, vec![1, 0])], I32, &[("signedness", signed)]));
    assert_eq!((from_bool(1), from_bool(0)), (vec![-1, 0], vec![1, 0]));
    assert_eq!(elementwise(Opcode::Bitcast, &[f32s(&[1.0])], I32, &[]), [0x3f80_0000]);
}
