//! Rates of the PTX interpreter: `cargo run --release -p simtile-sim --example ptx_rates`.
//!
//! Prints, for each kernel, the best of five runs: seconds, and millions of lane instructions a second (instructions of
//! the inner loops, counted from the PTX), with bounds and uninitialised checks on. `sgemm` also runs with the log of
//! accesses that the race checker wants. Beside each stands what plain Rust takes for the same work on one core.

#[path = "../tests/ptx_support/mod.rs"]
mod ptx_support;

use ptx_support::{Machine, Shape, artifact, shape};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    println!("{:28} {:>9} {:>12} {:>12} {:>8}", "kernel", "seconds", "M lane i/s", "plain Rust", "factor");
    sgemm();
    histogram();
    let x: Vec<f32> = (0..1u32 << 22).map(|i| (i % 1000) as f32 * 0.37 - 150.0).collect();
    let words = x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    elementwise("add.f32", "add.f32 %r2, %r1, %r1;", &words, |x| (f(x) + f(x)).to_bits());
    elementwise("fma.rn.f32", "fma.rn.f32 %r2, %r1, %r1, %r1;", &words, |x| {
        f(x).mul_add(f(x), f(x)).to_bits()
    });
    elementwise("fma.rz.ftz.f32", "fma.rz.ftz.f32 %r2, %r1, %r1, %r1;", &words, |x| {
        f(x).mul_add(f(x), f(x)).to_bits()
    });
    elementwise("mul.hi.u32", "mul.hi.u32 %r2, %r1, %r1;", &words, |x| {
        ((u64::from(x) * u64::from(x)) >> 32) as u32
    });
    elementwise("brev.b32", "brev.b32 %r2, %r1;", &words, u32::reverse_bits);
    elementwise("sqrt.rn.f32", "sqrt.rn.f32 %r2, %r1;", &words, |x| f(x).sqrt().to_bits());
    elementwise("rcp.rm.f32", "rcp.rm.f32 %r2, %r1;", &words, |x| (1.0 / f(x)).to_bits());
    elementwise("sin.approx.f32", "sin.approx.f32 %r2, %r1;", &words, |x| f(x).sin().to_bits());
    elementwise("ex2.approx.ftz.f32", "ex2.approx.ftz.f32 %r2, %r1;", &words, |x| f(x).exp2().to_bits());
    elementwise("cvt.rzi.s32.f32", "cvt.rzi.s32.f32 %r2, %r1;", &words, |x| f(x) as i32 as u32);
    elementwise("cvt.rpi.ftz.s32.f32", "cvt.rpi.ftz.s32.f32 %r2, %r1;", &words, |x| {
        f(x).ceil() as i32 as u32
    });
    elementwise("cvt.rz.f32.s32", "cvt.rz.f32.s32 %r2, %r1;", &words, |x| (x as i32 as f32).to_bits());
    elementwise("cvt.sat.s8.s32", "cvt.sat.s8.s32 %r2, %r1;", &words, |x| (x as i32).clamp(-128, 127) as u32);
    elementwise("set.gt.u32.f32", "set.gt.u32.f32 %r2, %r1, 0f40000000;", &words, |x| u32::from(f(x) > 2.0));
}

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// Seconds of the best of five runs.
fn best(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..5).map(once).fold(f64::INFINITY, f64::min)
}

fn report(name: &str, seconds: f64, lanes: f64, rust: f64) {
    println!("{name:28} {seconds:9.4} {:12.0} {rust:12.4} {:8.1}", lanes / seconds / 1e6, seconds / rust);
}

fn sgemm() {
    let m = artifact("sgemm");
    let n = 256u32;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32).collect();
    let (da, db, dc) = (m.upload(&a), m.upload(&a), m.blank(u64::from(4 * n * n)));
    let launch = Shape { grid: [n / 32, n / 32, 1], block: [32, 32, 1], ..shape(1, 1) };
    // Three instructions for each product, about sixty for each tile of 32 beside them.
    let lanes = f64::from(n * n) * (3.0 * f64::from(n) + 60.0 * f64::from(n / 32));
    let rust = best(|| {
        let n = n as usize;
        let mut c = vec![0f32; n * n];
        for i in 0..n {
            for k in 0..n {
                for j in 0..n {
                    c[i * n + j] += a[i * n + k] * a[k * n + j];
                }
            }
        }
        black_box(c);
    });
    report("sgemm 256^3", best(|| m.clean("sgemm_tiled", launch, args![da, db, dc, n, n, n])), lanes, rust);
    let logged = best(|| m.logged("sgemm_tiled", launch, args![da, db, dc, n, n, n]));
    report("sgemm 256^3, accesses logged", logged, lanes, rust);
}

fn histogram() {
    let m = artifact("histogram");
    let count = 1u32 << 22;
    let x: Vec<u8> = (0..count).map(|i| (i.wrapping_mul(i) % 251) as u8).collect();
    let (dx, bins) = (m.upload(&x), m.upload(&[0u32; 256]));
    let rust = best(|| {
        let mut bins = [0u32; 256];
        x.iter().for_each(|&x| bins[usize::from(x)] += 1);
        black_box(bins);
    });
    let seconds = best(|| m.clean("histogram", shape(40, 256), args![dx, bins, count]));
    report("histogram 2^22", seconds, f64::from(count) * 9.0, rust);
}

/// One instruction over an array, a thread an element: what an exhaustive test of an instruction runs.
fn elementwise(name: &str, instruction: &str, words: &[u32], rust: impl Fn(u32) -> u32) {
    let m = Machine::new(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry each(.param .u64 from, .param .u64 to) {{\n\
         .reg .b32 %r<8>; .reg .b64 %d<8>;\n\
         ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to];\n\
         mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n\
         mad.lo.s32 %r6, %r3, %r4, %r5;\n\
         mul.wide.u32 %d3, %r6, 4; add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;\n\
         ld.global.b32 %r1, [%d4];\n{instruction}\nst.global.b32 [%d5], %r2;\nret;\n}}"
    ));
    let count = words.len() as u32;
    let (from, to) = (m.upload(words), m.blank(u64::from(4 * count)));
    let reference = best(|| {
        black_box(words.iter().map(|&x| rust(x)).collect::<Vec<_>>());
    });
    let seconds = best(|| m.clean("each", shape(count / 256, 256), args![from, to]));
    report(name, seconds, f64::from(count) * 13.0, reference);
}
