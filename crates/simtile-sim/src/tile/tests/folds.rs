//! Reductions and scans.

use super::machine::Random;
use super::*;

fn fold_f32(opcode: Opcode, shape: &[i64], dim: usize, op: Opcode, reverse: bool, x: &[f32]) -> Vec<f32> {
    let mut k = K::new("fold", &[ptr(&[], F32), ptr(&[], F32)]);
    let v = k.input(0, F32, shape);
    let identity = vec![Attribute::float(0.0, F32)];
    let out = k.fold(opcode, &[v], dim, identity, reverse, |k, v| {
        let attrs: &[(&str, i64)] = if op == Opcode::AddF { &[("rounding_mode", 0)] } else { &[] };
        vec![k.same(op, &[v[0], v[1]], attrs)]
    });
    k.output(1, out[0]);
    let machine = Machine::new();
    let count = x.len() / if opcode == Opcode::Reduce { shape[dim] as usize } else { 1 };
    let (a, b) = (machine.put(x), machine.alloc(count * 4));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(a), Arg::Ptr(b)]);
    machine.get(b, count)
}

#[test]
fn sums_along_every_dimension() {
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    for dim in 0..3 {
        let shape = [4i64, 2, 8];
        let got = fold_f32(Opcode::Reduce, &shape, dim, Opcode::AddF, false, &x);
        let inner: usize = shape[dim + 1..].iter().product::<i64>() as usize;
        let extent = shape[dim] as usize;
        let want: Vec<f32> = (0..64 / extent)
            .map(|i| (0..extent).map(|j| x[(i / inner * extent + j) * inner + i % inner]).sum())
            .collect();
        assert_eq!(got, want, "dim {dim}");
    }
}

#[test]
fn reductions_are_balanced_trees_of_neighbours() {
    let mut random = Random(1);
    let x: Vec<f32> = (0..8).map(|_| random.unit()).collect();
    let got = fold_f32(Opcode::Reduce, &[8], 0, Opcode::AddF, false, &x);
    assert_eq!(got, [((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))]);
    let got = fold_f32(Opcode::Reduce, &[8], 0, Opcode::MaxF, false, &x);
    assert_eq!(got, [x.iter().copied().fold(f32::MIN, f32::max)]);
}

#[test]
fn scans_run_in_order() {
    let mut random = Random(2);
    let x: Vec<f32> = (0..16).map(|_| random.unit()).collect();
    let got = fold_f32(Opcode::Scan, &[2, 8], 1, Opcode::AddF, false, &x);
    let back = fold_f32(Opcode::Scan, &[2, 8], 1, Opcode::AddF, true, &x);
    for row in 0..2 {
        let (mut sum, mut rsum) = (0.0f32, 0.0f32);
        for j in 0..8 {
            sum = if j == 0 { x[row * 8] } else { x[row * 8 + j] + sum };
            assert_eq!(got[row * 8 + j], sum);
            let r = 7 - j;
            rsum = if j == 0 { x[row * 8 + r] } else { x[row * 8 + r] + rsum };
            assert_eq!(back[row * 8 + r], rsum);
        }
    }
    let down = fold_f32(Opcode::Scan, &[2, 8], 0, Opcode::AddF, false, &x);
    assert!((0..8).all(|j| down[j] == x[j] && down[8 + j] == x[8 + j] + x[j]));
}

#[test]
fn order_is_kept_for_operations_that_do_not_commute() {
    // "last one wins" is associative, not commutative.
    let mut k = K::new("last", &[ptr(&[], I32), ptr(&[], I32)]);
    let v = k.input(0, I32, &[16]);
    let out = k.fold(Opcode::Reduce, &[v], 0, vec![Attribute::i32(0)], false, |_, v| vec![v[0]]);
    k.output(1, out[0]);
    let machine = Machine::new();
    let (a, b) = (machine.put(&(10..26).collect::<Vec<i32>>()), machine.alloc(4));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(a), Arg::Ptr(b)]);
    assert_eq!(machine.get::<i32>(b, 1), [25]);
}

/// Position and value of the maximum, with the body either as selects or as a branch.
fn argmax(branch: bool) {
    let mut k = K::new("argmax", &[ptr(&[], F32), ptr(&[], F32), ptr(&[], I32)]);
    let shape = [4, 8];
    let x = k.input(0, F32, &shape);
    let index = k.e(Opcode::Iota, &[], tile(&[8], I32), &[]);
    let index = k.e(Opcode::Reshape, &[index], tile(&[1, 8], I32), &[]);
    let index = k.e(Opcode::Broadcast, &[index], tile(&shape, I32), &[]);
    let identities = vec![Attribute::float(f64::NEG_INFINITY, F32), Attribute::i32(0)];
    let out = k.fold(Opcode::Reduce, &[x, index], 1, identities, false, |k, v| {
        let [value, best, at, best_at] = *v else { panic!("four arguments") };
        let greater = [("comparison_predicate", 4), ("comparison_ordering", 1)];
        let more = k.e(Opcode::CmpF, &[value, best], tile(&[], I1), &greater);
        if !branch {
            let value = k.e(Opcode::Select, &[more, value, best], tile(&[], F32), &[]);
            return vec![value, k.e(Opcode::Select, &[more, at, best_at], tile(&[], I32), &[])];
        }
        let yes = k.nested(&[], |k, _| k.end(Opcode::Yield, &[value, at]));
        let no = k.nested(&[], |k, _| k.end(Opcode::Yield, &[best, best_at]));
        k.add(
            K::op(Opcode::If).operand(more).results([tile(&[], F32), tile(&[], I32)]).region(yes).region(no),
        )
    });
    k.output(1, out[0]);
    k.output(2, out[1]);
    let machine = Machine::new();
    let mut random = Random(5);
    let data: Vec<f32> = (0..32).map(|_| random.unit()).collect();
    let (a, b, c) = (machine.put(&data), machine.alloc(16), machine.alloc(16));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c)]);
    let (values, places) = (machine.get::<f32>(b, 4), machine.get::<i32>(c, 4));
    for row in 0..4 {
        let row_data = &data[row * 8..][..8];
        assert_eq!(row_data[places[row] as usize], values[row]);
        assert!(row_data.iter().all(|&v| v <= values[row]));
    }
}

#[test]
fn two_operands_at_once() {
    argmax(false);
}

#[test]
fn bodies_may_branch() {
    argmax(true);
}

#[test]
fn half_precision_sums_round_at_every_step() {
    let mut k = K::new("half", &[ptr(&[], F16), ptr(&[], F16)]);
    let v = k.input(0, F16, &[4]);
    let out = k.fold(Opcode::Reduce, &[v], 0, vec![Attribute::float(0.0, F16)], false, |k, v| {
        vec![k.same(Opcode::AddF, &[v[0], v[1]], &[("rounding_mode", 0)])]
    });
    k.output(1, out[0]);
    let machine = Machine::new();
    let bits: Vec<u16> =
        [2048.0f32, 1.0, 1.0, 1.0].iter().map(|&v| half::f16::from_f32(v).to_bits()).collect();
    let (a, b) = (machine.put(&bits), machine.alloc(2));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(a), Arg::Ptr(b)]);
    // 2048 + 1 rounds to 2048; 1 + 1 = 2; together 2050.
    assert_eq!(half::f16::from_bits(machine.get::<u16>(b, 1)[0]).to_f32(), 2050.0);
}
