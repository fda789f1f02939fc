//! Matrix multiplication in every type.

use super::machine::Random;
use super::*;
use crate::tile::float::{Overflow, Round, decode, encode};

/// Runs one `mmaf` or `mmai` with random inputs; `(a, b, c, result)` as bits.
fn run(
    opcode: Opcode,
    dims: (i64, i64, i64, i64),
    input: ScalarType,
    acc: ScalarType,
    attrs: &[(&str, i64)],
) -> [Vec<u64>; 4] {
    let (batch, m, n, k_dim) = dims;
    let shape = |r: i64, c: i64| if batch == 0 { vec![r, c] } else { vec![batch, r, c] };
    let (sa, sb, sc) = (shape(m, k_dim), shape(k_dim, n), shape(m, n));
    let mut k = K::new("mma", &[ptr(&[], input), ptr(&[], input), ptr(&[], acc), ptr(&[], acc)]);
    let (a, b, c) = (k.input(0, input, &sa), k.input(1, input, &sb), k.input(2, acc, &sc));
    let out = k.e(opcode, &[a, b, c], tile(&sc, acc), attrs);
    k.output(3, out);
    let machine = Machine::new();
    let mut random = Random(m as u64 * 31 + n as u64);
    let mut fill = |scalar: ScalarType, shape: &[i64]| -> Vec<u64> {
        (0..shape.iter().product::<i64>())
            .map(|_| {
                if scalar.is_integer() {
                    random.next() & 0xff
                } else {
                    encode(scalar, f64::from(random.unit() * 4.0), Round::Even, Overflow::Saturate)
                }
            })
            .collect()
    };
    let (va, vb, vc) = (fill(input, &sa), fill(input, &sb), fill(acc, &sc));
    let put = |scalar, v: &[u64]| Arg::Ptr(machine.put(&to_bytes(scalar, v)));
    let bytes = vc.len() * acc.byte_width();
    let result = machine.alloc(bytes);
    machine.ok(
        &*k.program(),
        [1, 1, 1],
        &[put(input, &va), put(input, &vb), put(acc, &vc), Arg::Ptr(result)],
    );
    [va, vb, vc, from_bytes(acc, &machine.get::<u8>(result, bytes))]
}

#[test]
fn floats_of_every_type() {
    for (input, acc, dims) in [
        (F16, F32, (0, 16, 16, 16)),
        (F16, F16, (0, 16, 8, 32)),
        (BF16, F32, (0, 8, 16, 16)),
        (TF32, F32, (0, 16, 16, 8)),
        (F32, F32, (0, 2, 32, 64)),
        (F64, F64, (0, 8, 8, 16)),
        (F8E4M3FN, F32, (0, 16, 16, 32)),
        (F8E5M2, F16, (0, 16, 16, 32)),
        (F16, F32, (4, 8, 16, 16)),
    ] {
        let [a, b, c, got] = run(Opcode::MmaF, dims, input, acc, &[]);
        let (batch, m, n, k) = dims;
        let (m, n, k) = (m as usize, n as usize, k as usize);
        for at in 0..batch.max(1) as usize * m * n {
            let (z, i, j) = (at / (m * n), at / n % m, at % n);
            let pair =
                |x: usize| (decode(input, a[(z * m + i) * k + x]), decode(input, b[(z * k + x) * n + j]));
            // Ascending depth, fused, in the accumulator's width.
            let want = if acc == F64 {
                (0..k).fold(decode(acc, c[at]), |s, x| pair(x).0.mul_add(pair(x).1, s)).to_bits()
            } else {
                let sum = (0..k)
                    .fold(decode(acc, c[at]) as f32, |s, x| (pair(x).0 as f32).mul_add(pair(x).1 as f32, s));
                encode(acc, f64::from(sum), Round::Even, Overflow::Saturate)
            };
            assert_eq!(got[at], want, "{input:?} -> {acc:?} at {z},{i},{j}");
        }
    }
}

#[test]
fn integers_of_both_signs() {
    for (left, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let [a, b, c, got] = run(
            Opcode::MmaI,
            (0, 8, 16, 32),
            I8,
            I32,
            &[("signedness_lhs", left), ("signedness_rhs", right)],
        );
        let value = |x: u64, signed| if signed == 1 { i32::from(x as u8 as i8) } else { x as i32 };
        for at in 0..8 * 16 {
            let (i, j) = (at / 16, at % 16);
            let want = (0..32)
                .fold(c[at] as i32, |s, x| s + value(a[i * 32 + x], left) * value(b[x * 16 + j], right));
            assert_eq!(got[at] as u32 as i32, want);
        }
    }
}

#[test]
fn accumulators_are_not_shared() {
    // The same constant starts two loops: updating it in place must not show.
    let mut k = K::new("shared", &[ptr(&[], F32), ptr(&[], F32)]);
    let start = k.constant(tile(&[16, 16], F32), &1.0f32.to_le_bytes());
    let half = k.constant(tile(&[16, 16], F16), &half::f16::ONE.to_le_bytes());
    let (zero, two, one) = (k.i32(0), k.i32(2), k.i32(1));
    for arg in 0..2 {
        let sum = k.for_loop([zero, two, one], &[start], |k, _, v| {
            vec![k.e(Opcode::MmaF, &[half, half, v[0]], tile(&[16, 16], F32), &[])]
        });
        k.output(arg, sum[0]);
    }
    let program = k.program();
    let machine = Machine::new();
    let (x, y) = (machine.alloc(1024), machine.alloc(1024));
    for _ in 0..2 {
        machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
        assert!(machine.get::<f32>(x, 256).iter().chain(&machine.get::<f32>(y, 256)).all(|&v| v == 33.0));
    }
}

#[test]
fn scaled_multiplication() {
    let (m, n, depth) = (16usize, 16usize, 64usize);
    let mut k = K::new(
        "scaled",
        &[ptr(&[], F8E4M3FN), ptr(&[], F8E4M3FN), ptr(&[], F8E8M0FNU), ptr(&[], F8E8M0FNU), ptr(&[], F32)],
    );
    let (a, b) = (k.input(0, F8E4M3FN, &[16, 64]), k.input(1, F8E4M3FN, &[64, 16]));
    let (sa, sb) = (k.input(2, F8E8M0FNU, &[16, 2]), k.input(3, F8E8M0FNU, &[2, 16]));
    let c = k.constant(tile(&[16, 16], F32), &0.5f32.to_le_bytes());
    let out = k.e(Opcode::MmaFScaled, &[a, b, c, sa, sb], tile(&[16, 16], F32), &[]);
    k.output(4, out);
    let mut random = Random(77);
    let mut values = |n: usize| {
        (0..n)
            .map(|_| encode(F8E4M3FN, f64::from(random.unit()), Round::Even, Overflow::Saturate) as u8)
            .collect::<Vec<_>>()
    };
    let (va, vb) = (values(m * depth), values(depth * n));
    let scales = |n: usize| (0..n).map(|i| 125 + (i % 5) as u8).collect::<Vec<_>>();
    let (ya, yb) = (scales(m * 2), scales(2 * n));
    let machine = Machine::new();
    let result = machine.alloc(m * n * 4);
    let args = [&va, &vb, &ya, &yb].map(|v| Arg::Ptr(machine.put(v)));
    let Ok(program) = k.load() else { panic!("loads") };
    machine.ok(&*program, [1, 1, 1], &[&args[..], &[Arg::Ptr(result)]].concat());
    for (at, got) in machine.get::<f32>(result, m * n).into_iter().enumerate() {
        let (i, j) = (at / n, at % n);
        let want: f64 = 0.5
            + (0..depth)
                .map(|x| {
                    let left = decode(F8E4M3FN, u64::from(va[i * depth + x]))
                        * decode(F8E8M0FNU, u64::from(ya[i * 2 + x / 32]));
                    let right = decode(F8E4M3FN, u64::from(vb[x * n + j]))
                        * decode(F8E8M0FNU, u64::from(yb[x / 32 * n + j]));
                    left * right
                })
                .sum::<f64>();
        assert!((f64::from(got) - want).abs() <= 1e-4 * (1.0 + want.abs()), "{got} {want}");
    }
}
