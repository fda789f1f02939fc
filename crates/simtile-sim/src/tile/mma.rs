//! Matrix multiplication.
//!
//! One accumulator for each element of the result, products added in ascending order of the depth, each step fused (rounded once).
//! The accumulator is `f32` for all inputs but `f64`; with an `f16` result it is rounded to `f16` once, at
//! the end of the operation. Products of the narrow formats are exact in `f32`, so there fused and separate rounding are the
//! same. Integer accumulators wrap.

use super::data::{Data, Word};
use super::float::{canonical, decode};
use super::op::MmaShape;
use cutile_ir::ir::ScalarType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::borrow::Cow;

/// Rows of the result that are computed together, so that a row of the right operand is read once for all.
const ROWS: usize = 4;
/// Columns that are computed together, so that they stay in the first-level cache.
const COLUMNS: usize = 256;

/// The elements as `f32`; exact.
fn singles(scalar: ScalarType, data: &Data) -> Cow<'_, [f32]> {
    match (scalar, data) {
        (ScalarType::F32, Data::B32(v)) => Cow::Borrowed(bytemuck::cast_slice(v)),
        (ScalarType::F16, Data::B16(v)) => {
            let mut out = vec![0.0; v.len()];
            let halves: Vec<f16> = v.iter().map(|&x| f16::from_bits(x)).collect();
            halves.convert_to_f32_slice(&mut out);
            Cow::Owned(out)
        }
        (ScalarType::BF16, Data::B16(v)) => {
            Cow::Owned(v.iter().map(|&x| bf16::from_bits(x).to_f32()).collect())
        }
        _ => Cow::Owned(data.iter().map(|x| decode(scalar, x) as f32).collect()),
    }
}

/// `c += a * b` for one group of rows and columns. `FUSED`: each step rounds once; else the products must be exact.
#[inline(always)]
fn panel<const FUSED: bool>(
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    s: MmaShape,
    rows: usize,
    at: usize,
    width: usize,
) {
    for k in 0..s.k {
        let right = &b[k * s.n + at..][..width];
        if rows == ROWS {
            let (c0, rest) = c.split_at_mut(s.n);
            let (c1, rest) = rest.split_at_mut(s.n);
            let (c2, c3) = rest.split_at_mut(s.n);
            let (c0, c1) = (&mut c0[at..][..width], &mut c1[at..][..width]);
            let (c2, c3) = (&mut c2[at..][..width], &mut c3[at..][..width]);
            let (a0, a1, a2, a3) = (a[k], a[s.k + k], a[2 * s.k + k], a[3 * s.k + k]);
            for j in 0..width {
                let x = right[j];
                c0[j] = step::<FUSED>(a0, x, c0[j]);
                c1[j] = step::<FUSED>(a1, x, c1[j]);
                c2[j] = step::<FUSED>(a2, x, c2[j]);
                c3[j] = step::<FUSED>(a3, x, c3[j]);
            }
        } else {
            for row in 0..rows {
                let left = a[row * s.k + k];
                for (out, &x) in c[row * s.n + at..][..width].iter_mut().zip(right) {
                    *out = step::<FUSED>(left, x, *out);
                }
            }
        }
    }
}

#[inline(always)]
fn step<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// All rows of one batch. Ends early when `stop` says so.
#[inline(always)]
fn multiply<const FUSED: bool>(a: &[f32], b: &[f32], c: &mut [f32], s: MmaShape, stop: &dyn Fn() -> bool) {
    for (a, c) in a.chunks(ROWS * s.k).zip(c.chunks_mut(ROWS * s.n)) {
        if stop() {
            return;
        }
        let rows = a.len() / s.k;
        for at in (0..s.n).step_by(COLUMNS) {
            panel::<FUSED>(a, b, c, s, rows, at, COLUMNS.min(s.n - at));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_wide(a: &[f32], b: &[f32], c: &mut [f32], s: MmaShape, stop: &dyn Fn() -> bool) {
    multiply::<true>(a, b, c, s, stop);
}

/// `c += a * b`. `exact`: the products are exact in `f32`, so that fusing changes nothing.
fn multiply_best(a: &[f32], b: &[f32], c: &mut [f32], s: MmaShape, exact: bool, stop: &dyn Fn() -> bool) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the features were detected.
        return unsafe { multiply_wide(a, b, c, s, stop) };
    }
    if exact { multiply::<false>(a, b, c, s, stop) } else { multiply::<true>(a, b, c, s, stop) }
}

/// Runs `each` on the batches.
fn batches<A, C>(s: MmaShape, a: &[A], b: &[A], c: &mut [C], mut each: impl FnMut(&[A], &[A], &mut [C])) {
    let left = a.chunks_exact(s.m * s.k);
    let right = b.chunks_exact(s.k * s.n);
    for ((a, b), c) in left.zip(right).zip(c.chunks_exact_mut(s.m * s.n)) {
        each(a, b, c);
    }
}

fn accumulate(
    s: MmaShape,
    a: &[f32],
    b: &[f32],
    acc: ScalarType,
    c: Data,
    exact: bool,
    stop: &dyn Fn() -> bool,
) -> Data {
    match (acc, c) {
        (ScalarType::F32, Data::B32(mut v)) => {
            let c: &mut [f32] = bytemuck::cast_slice_mut(&mut v);
            batches(s, a, b, c, |a, b, c| multiply_best(a, b, c, s, exact, stop));
            c.iter_mut().for_each(|x| *x = canonical(*x));
            Data::B32(v)
        }
        (ScalarType::F16, c) => {
            let mut wide = singles(acc, &c).into_owned();
            batches(s, a, b, &mut wide, |a, b, c| multiply_best(a, b, c, s, exact, stop));
            u16::wrap(
                wide.iter().map(|&x| if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() }).collect(),
            )
        }
        (_, c) => c,
    }
}

/// `mmaf`.
pub(super) fn float(
    s: MmaShape,
    input: ScalarType,
    acc: ScalarType,
    a: &Data,
    b: &Data,
    c: Data,
    stop: &dyn Fn() -> bool,
) -> Data {
    if input == ScalarType::F64 {
        return match (a, b, c) {
            (Data::B64(a), Data::B64(b), Data::B64(mut c)) => {
                let out: &mut [f64] = bytemuck::cast_slice_mut(&mut c);
                batches(s, bytemuck::cast_slice::<u64, f64>(a), bytemuck::cast_slice(b), out, |a, b, c| {
                    for (a, c) in a.chunks_exact(s.k).zip(c.chunks_exact_mut(s.n)) {
                        if stop() {
                            return;
                        }
                        for (&x, b) in a.iter().zip(b.chunks_exact(s.n)) {
                            c.iter_mut().zip(b).for_each(|(c, &y)| *c = x.mul_add(y, *c));
                        }
                    }
                });
                Data::B64(c)
            }
            (_, _, c) => c,
        };
    }
    let exact = input != ScalarType::F32;
    accumulate(s, &singles(input, a), &singles(input, b), acc, c, exact, stop)
}

/// `mmaf_scaled`: each element is multiplied with the scale of its group along the depth. Element times scale is rounded to `f32`.
#[allow(clippy::too_many_arguments)]
pub(super) fn scaled(
    s: MmaShape,
    input: ScalarType,
    scale: ScalarType,
    scales: usize,
    [a, b, c, left, right]: [Data; 5],
    stop: &dyn Fn() -> bool,
) -> Data {
    let group = (s.k / scales).max(1);
    let mut a = singles(input, &a).into_owned();
    let mut b = singles(input, &b).into_owned();
    for (i, x) in a.iter_mut().enumerate() {
        let (row, k) = (i / s.k, i % s.k);
        *x *= decode(scale, left.get(row * scales + k / group)) as f32;
    }
    for (i, x) in b.iter_mut().enumerate() {
        let (batch, k, n) = (i / (s.k * s.n), i / s.n % s.k, i % s.n);
        *x *= decode(scale, right.get((batch * scales + k / group) * s.n + n)) as f32;
    }
    accumulate(s, &a, &b, ScalarType::F32, c, false, stop)
}

/// `mmai`.
pub(super) fn int(
    s: MmaShape,
    signed: (bool, bool),
    a: &Data,
    b: &Data,
    c: Data,
    stop: &dyn Fn() -> bool,
) -> Data {
    let widen = |data: &Data, signed: bool| -> Vec<i32> {
        u8::of(data).iter().map(|&x| if signed { i32::from(x as i8) } else { i32::from(x) }).collect()
    };
    let (a, b) = (widen(a, signed.0), widen(b, signed.1));
    match c {
        Data::B32(mut v) => {
            let out: &mut [i32] = bytemuck::cast_slice_mut(&mut v);
            batches(s, &a, &b, out, |a, b, c| {
                for (a, c) in a.chunks_exact(s.k).zip(c.chunks_exact_mut(s.n)) {
                    if stop() {
                        return;
                    }
                    for (&x, b) in a.iter().zip(b.chunks_exact(s.n)) {
                        c.iter_mut().zip(b).for_each(|(c, &y)| *c = c.wrapping_add(x.wrapping_mul(y)));
                    }
                }
            });
            Data::B32(v)
        }
        c => c,
    }
}
