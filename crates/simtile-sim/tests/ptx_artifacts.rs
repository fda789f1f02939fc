//! Every kernel of `artifacts/ptx` against plain Rust.

mod ptx_support;

use half::{bf16, f16};
use ptx_support::{Machine, Random, Shape, artifact, shape};

/// Seeds of three random inputs; also the interpreter's own seeds, so that orders differ.
const SEEDS: [u64; 3] = [0, 7, 0x1234_5678];

fn each_seed(name: &str, mut test: impl FnMut(&Machine, &mut Random, u64)) {
    for seed in SEEDS {
        let mut machine = artifact(name);
        machine.seed = seed;
        test(&machine, &mut Random(seed.wrapping_mul(77) + 0x9E37_79B9), seed);
    }
}

fn floats(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| random.f32()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn saxpy_case(m: &Machine, random: &mut Random, n: usize, block: u32, fused: bool) {
    let (x, y, a) = (floats(random, n), floats(random, n), random.f32());
    let (dx, dy) = (m.upload(&x), m.upload(&y));
    m.clean("saxpy", shape((n as u32).div_ceil(block), block), args![n as u32, a, dx, dy]);
    let want: Vec<f32> =
        x.iter().zip(&y).map(|(&x, &y)| if fused { a.mul_add(x, y) } else { a * x + y }).collect();
    assert_eq!(bits(&m.download::<f32>(dy, n)), bits(&want));
}

#[test]
fn saxpy() {
    each_seed("saxpy", |m, random, _| {
        for (n, block) in [(1003, 256), (1, 32), (777, 100)] {
            saxpy_case(m, random, n, block, true);
        }
    });
}

#[test]
fn rust_saxpy() {
    each_seed("rust_saxpy", |m, random, _| {
        for (n, block) in [(1003, 256), (1, 32), (777, 100)] {
            saxpy_case(m, random, n, block, false);
        }
        for (n, grid, block) in [(1003usize, 64, 256), (5000, 3, 128), (7, 2, 33)] {
            let (x, y, a) = (floats(random, n), floats(random, n), random.f32());
            let (dx, dy) = (m.upload(&x), m.upload(&y));
            m.clean("saxpy_slice", shape(grid, block), args![a, dx, dy, n as u64]);
            let want: Vec<f32> = x.iter().zip(&y).map(|(&x, &y)| a * x + y).collect();
            assert_eq!(bits(&m.download::<f32>(dy, n)), bits(&want));
        }
    });
}

/// Sums of integers that are exact in f32.
fn sum_case(m: &Machine, random: &mut Random, name: &str, n: usize, block: u32) {
    let x: Vec<f32> = (0..n).map(|_| random.below(7) as f32).collect();
    let (dx, out) = (m.upload(&x), m.upload(&[3.0f32]));
    m.clean(name, shape((n as u32).div_ceil(block), block), args![dx, out, n as u32]);
    assert_eq!(m.download::<f32>(out, 1), [3.0 + x.iter().sum::<f32>()]);
}

#[test]
fn reductions() {
    for file in ["reduce_shared", "rust_kernels"] {
        each_seed(file, |m, random, _| {
            for (n, block) in [(2001, 256), (1, 256), (999, 64)] {
                sum_case(m, random, "reduce_shared", n, block);
            }
        });
    }
    for file in ["warp_reduce", "rust_kernels"] {
        each_seed(file, |m, random, _| {
            for (n, block) in [(2001, 256), (31, 32), (999, 96)] {
                sum_case(m, random, "warp_reduce", n, block);
            }
        });
    }
}

#[test]
fn warp_ops() {
    each_seed("warp_reduce", |m, random, _| {
        for threads in [32usize, 96] {
            let x: Vec<i32> = (0..threads).map(|_| random.below(20) as i32 - 6).collect();
            let (dx, out) = (m.upload(&x), m.blank(4 * threads as u64));
            m.clean("warp_ops", shape(1, threads as u32), args![dx, out]);
            let mut want = Vec::new();
            for (t, &v) in x.iter().enumerate() {
                let warp = &x[t / 32 * 32..t / 32 * 32 + 32];
                let lane = t % 32;
                let truth = |b: bool| u32::from(b);
                let ballot = (0..32).fold(0u32, |m, l| m | truth(warp[l] > 3) << l);
                let ffs = if ballot == 0 { 0 } else { ballot.trailing_zeros() + 1 };
                let same = (0..32).fold(0u32, |m, l| m | truth(warp[l] & 3 == v & 3) << l);
                let r = (warp[lane ^ 1]
                    + warp[if lane >= 2 { lane - 2 } else { lane }]
                    + warp[5 + (lane & 16)]) as u32;
                let terms = [
                    r,
                    ballot.count_ones(),
                    ffs,
                    ballot.leading_zeros(),
                    truth(warp.iter().all(|&v| v > 0)),
                    truth(warp.iter().any(|&v| v > 7)),
                    same,
                    u32::MAX,
                    1,
                    warp.iter().sum::<i32>() as u32,
                    *warp.iter().max().unwrap() as u32,
                    u32::MAX,
                    (v as u32).reverse_bits(),
                    (v as u32).rotate_left(16),
                ];
                want.push(terms.iter().fold(0u32, |a, &b| a.wrapping_add(b)));
            }
            let got = m.download::<u32>(out, threads);
            // The formula for rot16 is the source's `__byte_perm(v, r, 0x1032)`.
            assert_eq!(got, want);
        }
    });
}

#[test]
fn histograms() {
    for file in ["histogram", "rust_kernels"] {
        each_seed(file, |m, random, _| {
            for (n, grid, block) in [(10_007usize, 40, 256), (999, 3, 100), (1, 1, 32)] {
                let x: Vec<u8> = (0..n).map(|_| random.next() as u8).collect();
                let mut want: Vec<u32> = (0..256).map(|_| random.below(9) as u32).collect();
                let (dx, bins) = (m.upload(&x), m.upload(&want));
                m.clean("histogram", shape(grid, block), args![dx, bins, n as u32]);
                x.iter().for_each(|&v| want[usize::from(v)] += 1);
                assert_eq!(m.download::<u32>(bins, 256), want);
            }
        });
    }
}

#[test]
fn atomics_mix() {
    each_seed("histogram", |m, random, _| {
        for threads in [1u32, 77, 256] {
            let mut a: Vec<i32> = (0..8).map(|_| random.next() as i32).collect();
            (a[6], a[7]) = (random.below(1001) as i32, random.below(1001) as i32);
            let b = [random.below(1000), random.below(2) * 5];
            let (f, d) = ([2.0f32, 1.5], [0.25f64]);
            let buffers = (m.upload(&a), m.upload(&b), m.upload(&f), m.upload(&d));
            m.clean("atomics_mix", shape(1, threads), args![buffers.0, buffers.1, buffers.2, buffers.3]);
            let t = threads as i32;
            let all = || 0..t;
            let mask = all().fold(0u32, |m, t| m | 1 << (t % 32));
            let want = [
                a[0].max(t - 1),
                a[1].min(1 - t),
                a[2] & !mask as i32,
                a[3] | mask as i32,
                a[4] ^ all().fold(0, |x, t| x ^ t),
                7,
                (a[6] + t) % 1001,
                (a[7] - t).rem_euclid(1001),
            ];
            assert_eq!(m.download::<i32>(buffers.0, 8), want);
            let sum = b[0] + all().map(|t| t as u64).sum::<u64>();
            assert_eq!(m.download::<u64>(buffers.1, 2), [sum, if b[1] == 0 { 42 } else { b[1] }]);
            assert_eq!(m.download::<f32>(buffers.2, 2), [2.0 + t as f32, 1.5f32.max((t - 1) as f32)]);
            assert_eq!(m.download::<f64>(buffers.3, 1), [0.25 + f64::from(t) / 2.0]);
        }
    });
}

fn reversed(x: &[f32]) -> Vec<f32> {
    x.chunks(256).flat_map(|c| c.iter().rev().copied()).collect()
}

#[test]
fn dynamic_shared_memory() {
    for file in ["dyn_shared", "rust_kernels"] {
        each_seed(file, |m, random, _| {
            for n in [256usize, 2048] {
                let x = floats(random, n);
                let (dx, dy) = (m.upload(&x), m.blank(4 * n as u64));
                let launch = Shape { dynamic: 1024, ..shape(n as u32 / 256, 256) };
                m.clean("dyn_shared", launch, args![dx, dy, n as u32]);
                assert_eq!(bits(&m.download::<f32>(dy, n)), bits(&reversed(&x)));
            }
        });
    }
}

fn gemm_case(m: &Machine, random: &mut Random, name: &str, tile: u32, [rows, cols, depth]: [usize; 3]) {
    let (a, b) = (floats(random, rows * depth), floats(random, depth * cols));
    let (da, db, dc) = (m.upload(&a), m.upload(&b), m.blank(4 * (rows * cols) as u64));
    let launch = Shape {
        grid: [(cols as u32).div_ceil(tile), (rows as u32).div_ceil(tile), 1],
        block: [tile, tile, 1],
        ..shape(1, 1)
    };
    m.clean(name, launch, args![da, db, dc, rows as u32, cols as u32, depth as u32]);
    let mut want = Vec::new();
    for i in 0..rows {
        for j in 0..cols {
            want.push((0..depth).fold(0.0f32, |acc, k| a[i * depth + k].mul_add(b[k * cols + j], acc)));
        }
    }
    assert_eq!(bits(&m.download::<f32>(dc, rows * cols)), bits(&want), "{rows} {cols} {depth}");
}

#[test]
fn matrix_products() {
    for (file, name, tile) in [("sgemm", "sgemm_tiled", 32), ("rust_kernels", "sgemm16", 16)] {
        each_seed(file, |m, random, _| {
            for size in [[65, 33, 37], [1, 1, 1], [32, 64, 32]] {
                gemm_case(m, random, name, tile, size);
            }
        });
    }
}

#[test]
fn grid_barrier() {
    each_seed("grid_sync", |m, random, _| {
        for (grid, block, n) in [(32, 256, 8192usize), (7, 64, 401)] {
            let a: Vec<f32> = (0..n).map(|_| random.below(100) as f32).collect();
            let (da, db) = (m.upload(&a), m.blank(4 * n as u64));
            let launch = Shape { cooperative: true, ..shape(grid, block) };
            m.clean("grid_sync", launch, args![da, db, n as u32]);
            let want: Vec<f32> = (0..n).map(|i| 2.0 * (a[i] + a[(i + 1) % n])).collect();
            assert_eq!(m.download::<f32>(da, n), want);
        }
        // Without a workspace the kernel traps.
        let launch = shape(1, 32);
        let (da, db) = (m.upload(&[0.0f32; 32]), m.blank(128));
        assert!(m.launch("grid_sync", launch, args![da, db, 32u32]).is_err());
    });
}

#[test]
fn clusters() {
    each_seed("cluster", |m, random, _| {
        for grid in [2u32, 8] {
            let n = 128 * grid as usize;
            let x = floats(random, n);
            let (dx, dy) = (m.upload(&x), m.blank(4 * n as u64));
            assert_eq!(m.program.kernels()[0].required_cluster, Some([2, 1, 1]));
            let launch = Shape { cluster: [2, 1, 1], ..shape(grid, 128) };
            m.clean("cluster_dsm", launch, args![dx, dy]);
            let want: Vec<f32> = (0..n).map(|i| x[i ^ 128].mul_add(10.0, x[i])).collect();
            assert_eq!(bits(&m.download::<f32>(dy, n)), bits(&want));
        }
    });
    each_seed("rust_kernels", |m, _, _| {
        for (grid, cluster) in [(12u32, 4u32), (6, 1), (8, 8)] {
            let out = m.blank(4 * u64::from(grid));
            let launch = Shape { cluster: [cluster, 1, 1], ..shape(grid, 64) };
            m.clean("cluster_rank", launch, args![out]);
            let want: Vec<u32> = (0..grid).map(|b| b % cluster).collect();
            assert_eq!(m.download::<u32>(out, grid as usize), want);
        }
    });
}

#[test]
fn asynchronous_copies() {
    each_seed("async_copy", |m, random, _| {
        for n in [256usize, 1024] {
            for name in ["async_copy", "bulk_copy"] {
                let x = floats(random, n);
                let (dx, dy) = (m.upload(&x), m.blank(4 * n as u64));
                m.clean(name, shape(n as u32 / 256, 256), args![dx, dy]);
                assert_eq!(bits(&m.download::<f32>(dy, n)), bits(&reversed(&x)), "{name}");
            }
        }
    });
}

#[test]
fn wmma() {
    each_seed("wmma", |m, random, _| {
        let mut half = || -> Vec<u16> { (0..256).map(|_| f16::from_f32(random.f32()).to_bits()).collect() };
        let (a, b) = (half(), half());
        let (da, db, dc) = (m.upload(&a), m.upload(&b), m.blank(1024));
        m.clean("wmma16", shape(1, 32), args![da, db, dc]);
        let got = m.download::<f32>(dc, 256);
        let value = |v: u16| f16::from_bits(v).to_f32();
        for i in 0..16 {
            for j in 0..16 {
                let want: f32 = (0..16).map(|k| value(a[i * 16 + k]) * value(b[k * 16 + j])).sum();
                let got = got[i * 16 + j];
                assert!((got - want).abs() <= 1e-3 * (1.0 + want.abs()), "{i} {j}: {got} {want}");
            }
        }
    });
}

#[test]
fn printf() {
    let m = artifact("printf");
    m.clean("hello", shape(1, 2), args![7i32, 1.5f32]);
    m.clean("hello", shape(1, 1), args![-3i32, 1e10f32]);
    let want = "block 0 thread 0 a=7 f=1.500000 s=str\nblock 0 thread 1 a=7 f=1.500000 s=str\n\
        block 0 thread 0 a=-3 f=10000000000.000000 s=str\n";
    assert_eq!(String::from_utf8_lossy(&m.printed.lock().unwrap()), want);
    m.clean("asserts", shape(3, 64), args![0i32]);
    let fault = m.launch("asserts", shape(3, 64), args![-1i32]).unwrap_err();
    assert_eq!(fault.reason, simtile_sim::exec::FaultReason::Trap);
    assert_eq!((fault.site.kernel.as_str(), fault.site.block), ("asserts", [0, 0, 0]));
    let m = artifact("rust_kernels");
    m.clean("hello", shape(1, 2), args![]);
    let want = "hello from block 0 thread 0\nhello from block 0 thread 1\n";
    assert_eq!(String::from_utf8_lossy(&m.printed.lock().unwrap()), want);
}

#[test]
fn cas_loop() {
    each_seed("rust_kernels", |m, random, _| {
        for (start, v, grid, block) in [(-5i64, 99i64, 4, 64), (500, random.below(1000) as i64, 2, 50)] {
            let p = m.upload(&[start]);
            m.clean("cas_loop", shape(grid, block), args![p, v]);
            assert_eq!(m.download::<i64>(p, 1), [start.max(v)]);
        }
    });
}

#[test]
fn rust_math() {
    each_seed("rust_kernels", |m, random, _| {
        for n in [1usize, 77, 256] {
            let x: Vec<f32> = (0..n).map(|_| random.f32().abs()).collect();
            let (dx, dy, dh) = (m.upload(&x), m.blank(4 * n as u64), m.blank(2 * n as u64));
            m.clean("math", shape(1, n as u32), args![dx, dy, dh]);
            let want: Vec<f32> = x.iter().map(|v| v.sqrt() + v.abs() + v.floor() + v.min(2.0)).collect();
            assert_eq!(bits(&m.download::<f32>(dy, n)), bits(&want));
            let halves: Vec<u16> =
                x.iter().map(|&v| (f16::from_f32(v) + f16::from_f32(v)).to_bits()).collect();
            assert_eq!(m.download::<u16>(dh, n), halves);
        }
    });
}

#[test]
fn vec4() {
    each_seed("math", |m, random, _| {
        for n in [1usize, 33, 128] {
            let a = floats(random, 4 * n);
            let c: Vec<i32> = (0..2 * n).map(|_| random.next() as i32).collect();
            let (da, db) = (m.upload(&a), m.blank(16 * n as u64));
            let (dc, dd) = (m.upload(&c), m.blank(8 * n as u64));
            m.clean("vec4", shape(1, n as u32), args![da, db, dc, dd]);
            let want: Vec<f32> = a.chunks(4).flat_map(|v| [v[0] + 1.0, v[1], v[2], v[3] * 2.0]).collect();
            assert_eq!(bits(&m.download::<f32>(db, 4 * n)), bits(&want));
            assert_eq!(m.download::<i32>(dd, 2 * n), c);
        }
    });
}

/// The source in f64 where the kernel approximates in f32, exactly where it computes exactly.
#[test]
fn mathk() {
    each_seed("math", |m, random, _| {
        for n in [8usize, 64] {
            let f: Vec<f32> = (0..n).map(|_| random.f32().abs() * 0.7 + 0.01).collect();
            let d: Vec<f64> = (0..n).map(|_| f64::from(random.f32().abs())).collect();
            let h: Vec<u16> = (0..=n).map(|_| f16::from_f32(random.f32()).to_bits()).collect();
            let ll: Vec<i64> = (0..n).map(|_| random.next() as i64).collect();
            let u8s: Vec<u8> = (0..n).map(|_| random.next() as u8).collect();
            let (pa, pb, pc, pd) = (3i32, 0.5f32, 2.25f64, [11i16, -12, 13]);
            let mut p = Vec::new();
            p.extend(pa.to_le_bytes());
            p.extend(pb.to_le_bytes());
            p.extend(pc.to_le_bytes());
            pd.iter().for_each(|v| p.extend(v.to_le_bytes()));
            p.resize(24, 0);
            let (df, dd, dh) = (m.upload(&f), m.upload(&d), m.upload(&h));
            let (dbf, dll, du) = (m.blank(2 * n as u64), m.upload(&ll), m.upload(&u8s));
            let addresses = [df, dd, dh, dbf, dll, du].map(u64::to_le_bytes);
            let [a0, a1, a2, a3, a4, a5] = &addresses;
            m.clean("mathk", shape(1, n as u32), &[a0, a1, a2, a3, &p, a4, a5]);
            let (gf, gd) = (m.download::<f32>(df, n), m.download::<f64>(dd, n));
            for i in 0..n {
                let x = f64::from(f[i]);
                let mut want = x.sin()
                    + x.cos()
                    + x.exp()
                    + (x.abs() + 1.0).ln()
                    + x.sqrt()
                    + 1.0 / x.sqrt()
                    + x.tanh()
                    + x.powf(1.5)
                    + x.floor()
                    + x.round_ties_even()
                    + x.min(1.0)
                    + x.sin()
                    + x.exp()
                    + x.powi(3)
                    + x / 3.0
                    + x % 2.0;
                want += ((x as usize & 15) * i) as f64;
                match i & 7 {
                    0 => want += 1.0,
                    1 => want *= 2.0,
                    2 => want -= 3.0,
                    3 => want = -want,
                    4 => want = 0.0,
                    5 => want = x * x,
                    _ => want += 9.0,
                }
                let got = f64::from(gf[i]);
                assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "f[{i}] = {got}, not {want}");
                let want = d[i].sin() + d[i].sqrt() / 3.0 + pc + x;
                assert!((gd[i] - want).abs() <= 1e-14 * (1.0 + want.abs()), "d[{i}]");
            }
            let half = |i: usize| f16::from_bits(h[i]);
            let want: Vec<u16> = (0..n)
                .map(|i| {
                    bf16::from_f32(f16::from_f32(half(i).to_f32() * half(i + 1).to_f32()).to_f32() + pb)
                        .to_bits()
                })
                .collect();
            assert_eq!(m.download::<u16>(dbf, n), want);
            let want: Vec<i64> = (0..n)
                .map(|i| {
                    let high = ((i64::from(ll[i] as i32) * 77) >> 32) as i32;
                    (ll[i] / 7)
                        .wrapping_add(ll[i] % (i as i64 + 3))
                        .wrapping_add(high.into())
                        .wrapping_add((f[i] * 100.0) as i64)
                        .wrapping_add(pd[1].into())
                })
                .collect();
            assert_eq!(m.download::<i64>(dll, n), want);
            let want: Vec<u8> = u8s.iter().map(|&v| v.wrapping_mul(3).wrapping_add(5)).collect();
            assert_eq!(m.download::<u8>(du, n), want);
        }
    });
}
