//! The five committed bytecode files: three random inputs each, ragged sizes, against plain Rust.

use super::machine::{Arg, Machine, Random, TRAITS};
use crate::exec::{FaultReason, FindingKind, KernelModel, Program};
use crate::tile::load;
use half::f16;

pub(super) const VADD: [&[u8]; 2] = [
    include_bytes!("../../../../../artifacts/tile_rs/rs_vadd_f32.tileirbc"),
    include_bytes!("../../../../../artifacts/cutile_python/vadd_f32.tileirbc"),
];
pub(super) const SOFTMAX: [&[u8]; 2] = [
    include_bytes!("../../../../../artifacts/tile_rs/rs_softmax_f32.tileirbc"),
    include_bytes!("../../../../../artifacts/cutile_python/softmax_f32.tileirbc"),
];
pub(super) const GEMM: &[u8] = include_bytes!("../../../../../artifacts/tile_rs/rs_gemm_f16.tileirbc");

pub(super) fn program(bytes: &[u8]) -> Box<dyn Program> {
    match load(bytes, TRAITS) {
        Ok(program) => program,
        Err(fault) => panic!("{fault}"),
    }
}

fn close(got: f32, want: f64, tolerance: f64) -> bool {
    (f64::from(got) - want).abs() <= tolerance * (1.0 + want.abs())
}

pub(super) fn tensor(address: u64, shape: &[usize], strides: &[usize]) -> Vec<Arg> {
    let mut args = vec![Arg::Ptr(address)];
    args.extend(shape.iter().chain(strides).map(|&d| Arg::I32(d as i32)));
    args
}

#[test]
fn signatures_follow_the_entry() {
    for bytes in VADD.iter().chain(&SOFTMAX).chain([&GEMM]) {
        let program = program(bytes);
        let [kernel] = program.kernels() else { panic!("one kernel") };
        assert_eq!(kernel.model, KernelModel::Tile);
        assert_eq!(kernel.required_block, Some([1, 1, 1]));
        assert!(kernel.params.iter().all(|p| p.offset.is_multiple_of(p.bytes)));
        let (parameters, bytes) = match kernel.name.as_str() {
            "rs_vadd_f32" | "vadd_f32" => (9, 48),
            "rs_softmax_f32" | "softmax_f32" => (10, 48),
            "rs_gemm_f16" => (15, 72),
            other => panic!("{other}"),
        };
        assert_eq!(kernel.params.len(), parameters);
        assert_eq!(kernel.params.last().map(|p| p.offset + p.bytes), Some(bytes));
    }
}

#[test]
fn vector_addition() {
    for bytes in VADD {
        let program = program(bytes);
        for (round, n) in [1usize, 1024, 100_003].into_iter().enumerate() {
            let machine = Machine::new();
            let mut random = Random(round as u64 + 1);
            let (a, b): (Vec<f32>, Vec<f32>) = (0..n).map(|_| (random.unit(), random.unit())).unzip();
            let (pa, pb, pc) = (machine.put(&a), machine.put(&b), machine.alloc(n * 4));
            let args = [tensor(pa, &[n], &[1]), tensor(pb, &[n], &[1]), tensor(pc, &[n], &[1])].concat();
            machine.ok(&*program, [n.div_ceil(1024) as u32, 1, 1], &args);
            let c: Vec<f32> = machine.get(pc, n);
            assert!(c.iter().zip(a.iter().zip(&b)).all(|(c, (a, b))| *c == a + b));
        }
    }
}

#[test]
fn softmax_of_rows() {
    for bytes in SOFTMAX {
        let program = program(bytes);
        for (round, (rows, columns)) in [(1usize, 1usize), (7, 1000), (257, 992)].into_iter().enumerate() {
            let machine = Machine::new();
            let mut random = Random(round as u64 + 10);
            let stride = columns.next_multiple_of(16);
            let x: Vec<f32> = (0..rows * stride).map(|_| random.unit() * 8.0).collect();
            let (px, py) = (machine.put(&x), machine.alloc(rows * stride * 4));
            let args =
                [tensor(px, &[rows, columns], &[stride, 1]), tensor(py, &[rows, columns], &[stride, 1])]
                    .concat();
            machine.ok(&*program, [rows as u32, 1, 1], &args);
            let y: Vec<f32> = machine.get(py, rows * stride);
            for row in 0..rows {
                let x = &x[row * stride..][..columns];
                let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = x.iter().map(|&v| f64::from(v - max).exp()).sum();
                for (column, &v) in x.iter().enumerate() {
                    let want = f64::from(v - max).exp() / sum;
                    assert!(close(y[row * stride + column], want, 1e-5), "row {row} column {column}");
                }
                assert!(
                    y[row * stride + columns..][..stride - columns].iter().all(|&v| v == 0.0),
                    "row {row}: padding"
                );
            }
        }
    }
}

/// Runs the matrix multiplication on random inputs; gives the largest error relative to `1 + |want|`.
pub(super) fn gemm(program: &dyn Program, m: usize, n: usize, k: usize, seed: u64, every: usize) -> f64 {
    let machine = Machine::new();
    let mut random = Random(seed);
    let (sa, sb, sc) = (k.next_multiple_of(16), n.next_multiple_of(16), n.next_multiple_of(16));
    let mut matrix = |rows: usize, stride: usize| -> Vec<f16> {
        (0..rows * stride).map(|_| f16::from_f32(random.unit())).collect()
    };
    let (a, b) = (matrix(m, sa), matrix(k, sb));
    let bits = |v: &[f16]| v.iter().map(|x| x.to_bits()).collect::<Vec<u16>>();
    let (pa, pb, pc) = (machine.put(&bits(&a)), machine.put(&bits(&b)), machine.alloc(m * sc * 4));
    let args = [tensor(pa, &[m, k], &[sa, 1]), tensor(pb, &[k, n], &[sb, 1]), tensor(pc, &[m, n], &[sc, 1])]
        .concat();
    let grid = [m.div_ceil(128) as u32, n.div_ceil(128) as u32, 1];
    machine.ok(program, grid, &args);
    let c: Vec<f32> = machine.get(pc, m * sc);
    let mut worst = 0f64;
    for at in (0..m * n).step_by(every) {
        let (i, j) = (at / n, at % n);
        let want: f64 = (0..k).map(|x| a[i * sa + x].to_f64() * b[x * sb + j].to_f64()).sum();
        worst = worst.max((f64::from(c[i * sc + j]) - want).abs() / (1.0 + want.abs()));
    }
    worst
}

#[test]
fn matrix_multiplication() {
    let program = program(GEMM);
    for (seed, (m, n, k)) in
        [(1usize, 1usize, 1usize), (130, 97, 75), (304, 272, 208)].into_iter().enumerate()
    {
        let worst = gemm(&*program, m, n, k, seed as u64 + 3, 7);
        assert!(worst <= 1e-3, "{m}x{n}x{k}: {worst}");
    }
}

#[test]
fn promises_are_checked() {
    let program = program(SOFTMAX[0]);
    let machine = Machine::new();
    let (x, y) = (machine.put(&[1.0f32; 64]), machine.alloc(256));
    // A stride that is not a multiple of 16.
    let args = [tensor(x, &[2, 8], &[8, 1]), tensor(y, &[2, 8], &[16, 1])].concat();
    machine.run(&*program, [2, 1, 1], &args).expect("runs all the same");
    let found = machine.findings.lock();
    assert_eq!(found.len(), 2, "once a block");
    assert_eq!(found[0].site.instruction, "assume (operation 4)");
    let FindingKind::FalseAssume { predicate, value } = &found[0].kind else { panic!("{:?}", found[0]) };
    assert_eq!((predicate.as_str(), value.as_str()), ("div_by<16>", "8"));
}

#[test]
fn memory_is_checked() {
    let program = program(VADD[1]);
    let machine = Machine::new();
    let (a, c) = (machine.put(&[1.0f32; 64]), machine.alloc(256));
    let short = machine.alloc(128);
    let call = |b: u64| [tensor(a, &[64], &[1]), tensor(b, &[64], &[1]), tensor(c, &[64], &[1])].concat();
    // Nobody wrote the second operand.
    machine.run(&*program, [1, 1, 1], &call(machine.alloc(256))).expect("runs all the same");
    let site = machine.findings.lock().pop().expect("a finding").site;
    assert!(site.instruction.starts_with("load_view_tko"), "{site}");
    assert!(
        site.source.is_some_and(|(file, line)| file.ends_with(".py") && line > 0),
        "Python bytecode has lines"
    );
    // It ends too early.
    let fault = machine.run(&*program, [1, 1, 1], &call(short)).expect_err("out of bounds");
    let FaultReason::Memory(memory) = &fault.reason else { panic!("{fault}") };
    assert_eq!(memory.address, short + 128, "the first byte outside");
    // It was freed.
    machine.space.release(short).expect("mapped");
    let fault = machine.run(&*program, [1, 1, 1], &call(short)).expect_err("freed");
    assert!(fault.to_string().contains("use after free"), "{fault}");
    // Misaligned.
    let fault = machine.run(&*program, [1, 1, 1], &call(a + 2)).expect_err("misaligned");
    assert!(
        matches!(&fault.reason, FaultReason::Memory(m) if m.kind == crate::memory::FaultKind::Misaligned)
    );
}
