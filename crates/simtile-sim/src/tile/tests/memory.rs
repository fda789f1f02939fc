//! Views, pointers, atomics, globals and scratch memory.

use super::machine::Random;
use super::*;
use crate::exec::{FaultReason, FindingKind};
use crate::memory::FaultKind;

/// A copy through views of a tensor of `shape` (dynamic, row-major) with the output in dense tiles.
struct ViewCase {
    tile: Vec<i32>,
    shape: Vec<usize>,
    strides: Vec<usize>,
    dim_map: Vec<i32>,
    padding: Option<PaddingValue>,
}

impl ViewCase {
    /// The tile at an index.
    fn load(&self, machine: &Machine, base: u64, index: &[i32]) -> Vec<f32> {
        let rank = self.shape.len();
        let mut inputs = vec![ptr(&[], F32), ptr(&[], F32)];
        inputs.extend(vec![tile(&[], I32); 3 * rank]);
        let mut k = K::new("load", &inputs);
        let args: Vec<Value> = k.args[2..].to_vec();
        let ty = tensor(F32, &vec![None; rank], &vec![None; rank]);
        let base_value = k.args[0];
        let view = k.tensor(base_value, &ty, &args[..rank], &args[rank..2 * rank]);
        let partition = PartitionViewType {
            tile_shape: self.tile.clone(),
            tensor_view: ty,
            dim_map: self.dim_map.clone(),
            padding_value: self.padding,
        };
        let view = k.view(Opcode::MakePartitionView, view, Type::PartitionView(partition));
        let shape: Vec<i64> = self.tile.iter().map(|&d| i64::from(d)).collect();
        let value = k.load_view(view, &args[2 * rank..], tile(&shape, F32), &[]);
        k.output(1, value);
        let count = shape.iter().product::<i64>() as usize;
        let out = machine.alloc(count * 4);
        let mut call = vec![Arg::Ptr(base), Arg::Ptr(out)];
        call.extend(self.shape.iter().chain(&self.strides).map(|&d| Arg::I32(d as i32)));
        call.extend(index.iter().map(|&i| Arg::I32(i)));
        machine.ok(&*k.program(), [1, 1, 1], &call);
        machine.get(out, count)
    }

    /// What it should be.
    fn want(&self, data: &[f32], index: &[i32], outside: f32) -> Vec<f32> {
        let rank = self.shape.len();
        let count: i32 = self.tile.iter().product();
        (0..count)
            .map(|at| {
                let mut rest = at;
                let mut place = 0i64;
                for d in (0..rank).rev() {
                    let i = rest % self.tile[d] + index[d] * self.tile[d];
                    rest /= self.tile[d];
                    let dim = self.dim_map[d] as usize;
                    if i < 0 || i as usize >= self.shape[dim] {
                        return outside;
                    }
                    place += i64::from(i) * self.strides[dim] as i64;
                }
                data[place as usize]
            })
            .collect()
    }
}

#[test]
fn partitions_of_any_layout() {
    let machine = Machine::new();
    let data: Vec<f32> = (0..2000).map(|i| i as f32).collect();
    let base = machine.put(&data);
    let case = |tile: &[i32], shape: &[usize], strides: &[usize], dim_map: &[i32]| ViewCase {
        tile: tile.to_vec(),
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        dim_map: dim_map.to_vec(),
        padding: Some(PaddingValue::NegInf),
    };
    let cases = [
        case(&[8], &[20], &[1], &[0]),
        case(&[8], &[20], &[3], &[0]),
        case(&[4, 8], &[10, 12], &[16, 1], &[0, 1]),
        case(&[4, 8], &[10, 12], &[1, 16], &[0, 1]),
        case(&[4, 8], &[12, 10], &[16, 1], &[1, 0]),
        case(&[4, 8], &[10, 12], &[40, 3], &[0, 1]),
        case(&[2, 4, 2], &[3, 5, 7], &[64, 8, 1], &[0, 1, 2]),
        case(&[2, 4, 2], &[3, 5, 7], &[64, 8, 1], &[2, 0, 1]),
        case(&[1, 1, 1, 16], &[2, 2, 2, 30], &[256, 64, 32, 1], &[0, 1, 2, 3]),
    ];
    for case in cases {
        let rank = case.shape.len();
        for index in [vec![0; rank], vec![1; rank], vec![2; rank], vec![-1; rank]] {
            let got = case.load(&machine, base, &index);
            let want = case.want(&data, &index, f32::NEG_INFINITY);
            assert_eq!(got, want, "tile {:?} of {:?} at {index:?}", case.tile, case.shape);
        }
    }
}

#[test]
fn padding_values() {
    let machine = Machine::new();
    let base = machine.put(&[1.0f32]);
    let paddings = [
        (Some(PaddingValue::Zero), 0.0f32.to_bits()),
        (Some(PaddingValue::NegZero), (-0.0f32).to_bits()),
        (Some(PaddingValue::Nan), 0x7fff_ffff),
        (Some(PaddingValue::PosInf), f32::INFINITY.to_bits()),
        (Some(PaddingValue::NegInf), f32::NEG_INFINITY.to_bits()),
        (None, 0x7fff_ffff),
    ];
    for (padding, want) in paddings {
        let case = ViewCase { tile: vec![2], shape: vec![1], strides: vec![1], dim_map: vec![0], padding };
        assert_eq!(case.load(&machine, base, &[0])[1].to_bits(), want, "{padding:?}");
    }
}

/// A kernel that copies `shape` values of the first argument, dense, through a view of the second.
fn store_kernel(view_type: Type, make: Opcode, ty: &TensorViewType, shape: &[i64], indices: &[Type]) -> K {
    let mut inputs = vec![ptr(&[], F32), ptr(&[], F32)];
    inputs.extend(indices.iter().cloned());
    let mut k = K::new("store", &inputs);
    let value = k.input(0, F32, shape);
    let base = k.args[1];
    let view = k.tensor(base, ty, &[], &[]);
    let view = k.view(make, view, view_type);
    let index: Vec<Value> = k.args[2..].to_vec();
    k.store_view(value, view, &index);
    k
}

#[test]
fn stores_are_masked() {
    let ty = tensor(F32, &[Some(5), Some(6)], &[Some(8), Some(1)]);
    let view = Type::PartitionView(partition(&[4, 4], &ty, None));
    let program =
        store_kernel(view, Opcode::MakePartitionView, &ty, &[4, 4], &[tile(&[], I32), tile(&[], I32)])
            .program();
    let machine = Machine::new();
    let (x, y) = (machine.put(&(1..17).map(|i| i as f32).collect::<Vec<_>>()), machine.put(&[0.0f32; 40]));
    machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y), Arg::I32(1), Arg::I32(1)]);
    let got: Vec<f32> = machine.get(y, 40);
    let mut want = vec![0.0; 40];
    (want[4 * 8 + 4], want[4 * 8 + 5]) = (1.0, 2.0);
    assert_eq!(got, want);
}

#[test]
fn strided_views_overlap() {
    let ty = tensor(F32, &[Some(8), Some(8)], &[Some(8), Some(1)]);
    let strided = Type::StridedView(StridedViewType {
        tile_shape: vec![2, 4],
        traversal_strides: vec![3, 2],
        tensor_view: ty.clone(),
        dim_map: vec![0, 1],
        padding_value: Some(PaddingValue::Zero),
    });
    let mut k = K::new("strided", &[ptr(&[], F32), ptr(&[], F32)]);
    let base = k.args[0];
    let tensor = k.tensor(base, &ty, &[], &[]);
    let view = k.view(Opcode::MakeStridedView, tensor, strided);
    let (row, column) = (k.i32(2), k.i32(3));
    let value = k.load_view(view, &[row, column], tile(&[2, 4], F32), &[]);
    k.output(1, value);
    let machine = Machine::new();
    let (x, y) = (machine.put(&(0..64).map(|i| i as f32).collect::<Vec<_>>()), machine.alloc(32));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
    assert_eq!(machine.get::<f32>(y, 8), [54.0, 55.0, 0.0, 0.0, 62.0, 63.0, 0.0, 0.0]);
}

#[test]
fn gather_and_scatter_views() {
    let ty = tensor(F32, &[Some(8), Some(10)], &[Some(10), Some(1)]);
    let gather = |padding| {
        Type::GatherScatterView(GatherScatterViewType {
            tile_shape: vec![4, 4],
            tensor_view: ty.clone(),
            sparse_dim: 0,
            padding_value: padding,
        })
    };
    let rows: Vec<u8> = [5i32, 0, 9, 5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut k = K::new("gather", &[ptr(&[], F32), ptr(&[], F32)]);
    let base = k.args[0];
    let view = k.tensor(base, &ty, &[], &[]);
    let view = k.view(Opcode::MakeGatherScatterView, view, gather(Some(PaddingValue::Zero)));
    let rows_value = k.constant(tile(&[4], I32), &rows);
    let column = k.i32(3);
    let value = k.load_view(view, &[rows_value, column], tile(&[4, 4], F32), &[]);
    k.output(1, value);
    let machine = Machine::new();
    let data: Vec<f32> = (0..80).map(|i| i as f32).collect();
    let (x, y) = (machine.put(&data), machine.alloc(64));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
    let row = |r: usize| (3..7).map(|c| data[r * 10 + c]).collect::<Vec<_>>();
    assert_eq!(machine.get::<f32>(y, 16), [row(5), row(0), vec![0.0; 4], row(5)].concat());

    let mut k = K::new("scatter", &[ptr(&[], F32), ptr(&[], F32)]);
    let value = k.input(0, F32, &[4, 4]);
    let base = k.args[1];
    let view = k.tensor(base, &ty, &[], &[]);
    let view = k.view(Opcode::MakeGatherScatterView, view, gather(None));
    let rows_value = k.constant(tile(&[4], I32), &rows);
    let column = k.i32(8);
    k.store_view(value, view, &[rows_value, column]);
    let out = machine.put(&[0.0f32; 80]);
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(out)]);
    let got: Vec<f32> = machine.get(out, 80);
    assert_eq!((got[58], got[59], got[8], got[9]), (12.0, 13.0, 4.0, 5.0));
    assert_eq!(got.iter().filter(|&&v| v != 0.0).count(), 4);
}

#[test]
fn shapes_of_views() {
    let mut k = K::new("shapes", &[ptr(&[], F32), tile(&[], I32), ptr(&[], I32)]);
    let ty = tensor(F32, &[None, Some(20)], &[Some(20), Some(1)]);
    let (base, rows) = (k.args[0], k.args[1]);
    let view = k.tensor(base, &ty, &[rows], &[]);
    let shape = k.add(K::op(Opcode::GetTensorShape).operand(view).results(vec![tile(&[], I32); 2]));
    let parts = k.view(Opcode::MakePartitionView, view, Type::PartitionView(partition(&[4, 8], &ty, None)));
    let space = k.add(K::op(Opcode::GetIndexSpaceShape).operand(parts).results(vec![tile(&[], I32); 2]));
    for (i, value) in shape.into_iter().chain(space).enumerate() {
        let (out, at) = (k.args[2], k.i32(i as i32));
        let pointer = k.e(Opcode::Offset, &[out, at], ptr(&[], I32), &[]);
        k.store_ptr(pointer, value);
    }
    let machine = Machine::new();
    let out = machine.alloc(16);
    let program = k.program();
    machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(0x100), Arg::I32(9), Arg::Ptr(out)]);
    assert_eq!(machine.get::<i32>(out, 4), [9, 20, 3, 3]);
    let fault = machine
        .run(&*program, [1, 1, 1], &[Arg::Ptr(0x100), Arg::I32(-9), Arg::Ptr(out)])
        .expect_err("negative");
    assert!(fault.to_string().contains("extent -9"), "{fault}");
}

#[test]
fn promises_of_bounds_are_checked() {
    let ty = tensor(F32, &[Some(6)], &[Some(1)]);
    let mut k = K::new("inbounds", &[ptr(&[], F32), tile(&[], I32), ptr(&[], F32)]);
    let (base, index) = (k.args[0], k.args[1]);
    let view = k.tensor(base, &ty, &[], &[]);
    let view = k.view(Opcode::MakePartitionView, view, Type::PartitionView(partition(&[4], &ty, None)));
    let value =
        k.load_view(view, &[index], tile(&[4], F32), &[("inbounds", Attribute::dense_bool_array([true]))]);
    k.output(2, value);
    let program = k.program();
    let machine = Machine::new();
    let (x, y) = (machine.put(&[0.0f32; 6]), machine.alloc(16));
    machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::I32(0), Arg::Ptr(y)]);
    machine.run(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::I32(1), Arg::Ptr(y)]).expect("runs all the same");
    assert!(
        matches!(&machine.found()[..], [FindingKind::FalseAssume { value, .. }] if value.contains("coordinate 6"))
    );
}

/// `assume` on a tile of these values; how many findings.
fn assumed(ty: Type, data: &[u8], predicate: Attribute) -> usize {
    let mut k = K::new("assume", &[]);
    let v = k.constant(ty.clone(), data);
    k.add(K::op(Opcode::Assume).operand(v).attr("predicate", predicate).result(ty));
    let machine = Machine::new();
    machine.run(&*k.program(), [1, 1, 1], &[]).expect("runs");
    machine.found().len()
}

#[test]
fn assumptions() {
    let shorts = |v: &[i16]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let div = |divisor, group: Option<(i64, i64)>| {
        Attribute::DivBy(DivBy { divisor, every: group.map(|g| g.0), along: group.map(|g| g.1) })
    };
    let eight = tile(&[8], I16);
    let check = |v: &[i16], p| assumed(eight.clone(), &shorts(v), p);
    assert_eq!(check(&[32, 64, 0, 0, 32, -32, 1024, 0], div(32, None)), 0);
    assert_eq!(check(&[32, 64, 0, 0, 33, -32, 1024, 0], div(32, None)), 1);
    assert_eq!(check(&[96, 97, 98, 99, 64, 65, 66, 67], div(32, Some((4, 0)))), 0);
    assert_eq!(check(&[96, 97, 98, 98, 64, 65, 66, 67], div(32, Some((4, 0)))), 1);
    let bounded = |lb, ub| Attribute::Bounded(Bounded { lb, ub });
    assert_eq!(check(&[5, 9, 10, 11, 6, 5, 5, 7], bounded(Some(5), None)), 0);
    assert_eq!(check(&[5, 9, 10, 11, 6, 4, 5, 7], bounded(Some(5), None)), 1);
    assert_eq!(check(&[5, 9, 10, 11, 6, 5, 5, 7], bounded(None, Some(10))), 1);
    let same = |v: &[i64]| Attribute::SameElements(SameElements { values: v.to_vec() });
    assert_eq!(check(&[1, 1, 2, 2, 3, 3, 4, 4], same(&[2])), 0);
    assert_eq!(check(&[1, 1, 2, 2, 3, 3, 4, 5], same(&[2])), 1);
    let square = tile(&[2, 4], I16);
    assert_eq!(assumed(square.clone(), &shorts(&[1, 1, 2, 2, 1, 1, 2, 2]), same(&[2, 2])), 0);
    assert_eq!(assumed(square, &shorts(&[1, 1, 2, 2, 1, 3, 2, 2]), same(&[2, 2])), 1);
}

#[test]
fn a_false_assumption_about_an_address() {
    let mut k = K::new("address", &[ptr(&[], F32)]);
    let p = k.args[0];
    let div = Attribute::DivBy(DivBy { divisor: 256, every: None, along: None });
    k.add(K::op(Opcode::Assume).operand(p).attr("predicate", div).result(ptr(&[], F32)));
    let program = k.program();
    let machine = Machine::new();
    machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(0x200)]);
    machine.run(&*program, [1, 1, 1], &[Arg::Ptr(0x208)]).expect("runs all the same");
    let want = FindingKind::FalseAssume { predicate: "div_by<256>".into(), value: "0x208".into() };
    assert_eq!(machine.found(), [want]);
}

#[test]
fn pointers_with_masks() {
    let mut k = K::new("masked", &[ptr(&[], F32), ptr(&[], F32), tile(&[], I32)]);
    let source = k.args[0];
    let pointers = k.pointers(source, F32, &[8]);
    let index = k.e(Opcode::Iota, &[], tile(&[8], I32), &[]);
    let limit = k.args[2];
    let limit = k.e(Opcode::Reshape, &[limit], tile(&[1], I32), &[]);
    let limit = k.e(Opcode::Broadcast, &[limit], tile(&[8], I32), &[]);
    let mask =
        k.e(Opcode::CmpI, &[index, limit], tile(&[8], I1), &[("comparison_predicate", 2), ("signedness", 1)]);
    let padding = k.constant(tile(&[8], F32), &7.5f32.to_le_bytes());
    let load = K::op(Opcode::LoadPtrTko)
        .operands([pointers, mask, padding])
        .attr("memory_ordering_semantics", Attribute::i32(0))
        .attr("operandSegmentSizes", groups(&[1, 1, 1, 0]))
        .result(tile(&[8], F32))
        .result(Type::Token);
    let loaded = k.add(load);
    k.output(1, loaded[0]);
    let program = k.program();
    let machine = Machine::new();
    let (x, y) = (machine.put(&[1.0f32, 2.0, 3.0]), machine.alloc(32));
    machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y), Arg::I32(3)]);
    assert_eq!(machine.get::<f32>(y, 8), [1.0, 2.0, 3.0, 7.5, 7.5, 7.5, 7.5, 7.5]);
    let fault =
        machine.run(&*program, [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y), Arg::I32(4)]).expect_err("outside");
    let FaultReason::Memory(memory) = fault.reason else { panic!("{fault}") };
    assert_eq!(memory.address, x + 12);
}

#[test]
fn stores_with_masks_and_scattered_pointers() {
    let mut k = K::new("scatter", &[ptr(&[], I32)]);
    let base = k.args[0];
    let one = k.e(Opcode::Reshape, &[base], ptr(&[1], I32), &[]);
    let all = k.e(Opcode::Broadcast, &[one], ptr(&[4], I32), &[]);
    let places: Vec<u8> = [6i32, 0, 3, 1].iter().flat_map(|v| v.to_le_bytes()).collect();
    let places = k.constant(tile(&[4], I32), &places);
    let pointers = k.e(Opcode::Offset, &[all, places], ptr(&[4], I32), &[]);
    let value = k.e(Opcode::Iota, &[], tile(&[4], I32), &[]);
    let mask = k.constant(tile(&[4], I1), &[0b0111]);
    k.add(
        K::op(Opcode::StorePtrTko)
            .operands([pointers, value, mask])
            .attr("memory_ordering_semantics", Attribute::i32(3))
            .attr("memory_scope", Attribute::i32(1))
            .attr("operandSegmentSizes", groups(&[1, 1, 1, 0]))
            .result(Type::Token),
    );
    let machine = Machine::new();
    let out = machine.put(&[-1i32; 8]);
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(out)]);
    assert_eq!(machine.get::<i32>(out, 8), [1, -1, -1, 2, -1, -1, 0, -1]);
}

fn atomic(scalar: ScalarType, mode: i64, start: &[u64], values: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let n = start.len() as i64;
    let mut k = K::new("atomic", &[ptr(&[], scalar), ptr(&[], scalar), ptr(&[], scalar)]);
    let base = k.args[0];
    let pointers = k.pointers(base, scalar, &[n]);
    let value = k.input(1, scalar, &[n]);
    let op = K::op(Opcode::AtomicRMW)
        .operands([pointers, value])
        .attr("memory_ordering_semantics", Attribute::i32(1))
        .attr("memory_scope", Attribute::i32(1))
        .attr("mode", Attribute::i32(mode))
        .attr("operandSegmentSizes", groups(&[1, 1, 0, 0]))
        .result(tile(&[n], scalar))
        .result(Type::Token);
    let old = k.add(op)[0];
    k.output(2, old);
    let machine = Machine::new();
    let bytes = start.len() * scalar.byte_width();
    let (a, b, c) =
        (machine.put(&to_bytes(scalar, start)), machine.put(&to_bytes(scalar, values)), machine.alloc(bytes));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c)]);
    (from_bytes(scalar, &machine.get::<u8>(a, bytes)), from_bytes(scalar, &machine.get::<u8>(c, bytes)))
}

#[test]
fn atomics_of_every_mode() {
    let (start, value) = ([0xfu64, 0xffff_ffff], [0x3cu64, 1]);
    let modes: [(i64, [u64; 2]); 9] = [
        (0, [0xc, 1]),
        (1, [0x3f, 0xffff_ffff]),
        (2, [0x33, 0xffff_fffe]),
        (3, [0x4b, 0]),
        (5, [0x3c, 1]),
        (6, [0xf, 0xffff_ffff]),
        (7, [0x3c, 0xffff_ffff]),
        (8, [0xf, 1]),
        (9, value),
    ];
    for (mode, want) in modes {
        assert_eq!(atomic(I32, mode, &start, &value), (want.to_vec(), start.to_vec()), "mode {mode}");
    }
    assert_eq!(atomic(I64, 5, &[u64::MAX, 5], &[1, 4]).0, [1, 5]);
    let (new, old) = atomic(F32, 4, &f32s(&[1.5, 2.0]).1, &f32s(&[0.25, -2.0]).1);
    assert_eq!((as_f32(&new), as_f32(&old)), (vec![1.75, 0.0], vec![1.5, 2.0]));
    assert_eq!(as_f64(&atomic(F64, 4, &f64s(&[1.0]).1, &f64s(&[1e-16]).1).0), [1.0]);
    assert_eq!(atomic(F16, 4, &f16s(&[1.0, 2.0]).1, &f16s(&[0.5, 0.5]).1).0, f16s(&[1.5, 2.5]).1);
}

#[test]
fn atomics_of_many_blocks_all_count() {
    let mut k = K::new("count", &[ptr(&[], I32)]);
    let base = k.args[0];
    let one = k.e(Opcode::Reshape, &[base], ptr(&[1], I32), &[]);
    let pointers = k.e(Opcode::Broadcast, &[one], ptr(&[64], I32), &[]);
    let ones = k.constant(tile(&[64], I32), &1i32.to_le_bytes());
    k.add(
        K::op(Opcode::AtomicRMW)
            .operands([pointers, ones])
            .attr("memory_ordering_semantics", Attribute::i32(4))
            .attr("memory_scope", Attribute::i32(2))
            .attr("mode", Attribute::i32(3))
            .attr("operandSegmentSizes", groups(&[1, 1, 0, 0]))
            .result(tile(&[64], I32))
            .result(Type::Token),
    );
    let machine = Machine { workers: 4, ..Machine::new() };
    let out = machine.put(&[0i32]);
    machine.ok(&*k.program(), [100, 1, 1], &[Arg::Ptr(out)]);
    assert_eq!(machine.get::<i32>(out, 1), [6400]);
}

#[test]
fn compare_and_swap() {
    let mut k = K::new("cas", &[ptr(&[], I32), ptr(&[], I32), ptr(&[], I32), ptr(&[], I32)]);
    let base = k.args[0];
    let pointers = k.pointers(base, I32, &[4]);
    let (compare, value) = (k.input(1, I32, &[4]), k.input(2, I32, &[4]));
    let mask = k.constant(tile(&[4], I1), &[0b0111]);
    let op = K::op(Opcode::AtomicCAS)
        .operands([pointers, compare, value, mask])
        .attr("memory_ordering_semantics", Attribute::i32(1))
        .attr("memory_scope", Attribute::i32(1))
        .attr("operandSegmentSizes", groups(&[1, 1, 1, 1, 0]))
        .result(tile(&[4], I32))
        .result(Type::Token);
    let old = k.add(op)[0];
    k.output(3, old);
    let machine = Machine::new();
    let memory = machine.put(&[1i32, 2, 3, 4]);
    let (c, v, out) = (machine.put(&[1i32, 0, 3, 4]), machine.put(&[10i32, 20, 30, 40]), machine.alloc(16));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(memory), Arg::Ptr(c), Arg::Ptr(v), Arg::Ptr(out)]);
    assert_eq!(machine.get::<i32>(memory, 4), [10, 2, 30, 4]);
    assert_eq!(machine.get::<i32>(out, 4), [1, 2, 3, 4]);
}

#[test]
fn reductions_into_views() {
    let ty = tensor(F32, &[Some(6)], &[Some(1)]);
    let mut k = K::new("red", &[ptr(&[], F32)]);
    let base = k.args[0];
    let view = k.tensor(base, &ty, &[], &[]);
    let view = k.view(Opcode::MakePartitionView, view, Type::PartitionView(partition(&[4], &ty, None)));
    let value = k.constant(tile(&[4], F32), &0.5f32.to_le_bytes());
    let index = k.i32(1);
    k.add(
        K::op(Opcode::AtomicRedViewTko)
            .operands([view, index, value])
            .attr("memory_ordering_semantics", Attribute::i32(1))
            .attr("memory_scope", Attribute::i32(1))
            .attr("mode", Attribute::i32(4))
            .attr("operandSegmentSizes", groups(&[1, 1, 1, 0]))
            .result(Type::Token),
    );
    let machine = Machine::new();
    let x = machine.put(&[1.0f32; 8]);
    machine.ok(&*k.program(), [4, 1, 1], &[Arg::Ptr(x)]);
    assert_eq!(machine.get::<f32>(x, 8), [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0]);
}

#[test]
fn globals_and_scratch_memory() {
    let mut k = K::new("globals", &[ptr(&[], F32)]);
    k.m.globals.push(Global {
        sym_name: "table".into(),
        value: DenseElements {
            element_type: tile(&[4], F32),
            shape: vec![4],
            data: [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect(),
        },
        alignment: 64,
        constant: false,
        symbol_visibility: SymbolVisibility::Public,
    });
    let base = k
        .add(K::op(Opcode::GetGlobal).attr("name", Attribute::String("table".into())).result(ptr(&[], F32)))
        [0];
    let pointers = k.pointers(base, F32, &[4]);
    let table = k.load_ptr(pointers, F32, &[4]);
    // Through memory of its own, backwards.
    let scratch = k.add(
        K::op(Opcode::Alloca)
            .attr("num_elem", Attribute::i32(4))
            .attr("alignment", Attribute::i32(128))
            .result(ptr(&[], F32)),
    )[0];
    let own = k.pointers(scratch, F32, &[4]);
    k.store_ptr(own, table);
    let value = k.load_ptr(own, F32, &[4]);
    let sum = k.same(Opcode::AddF, &[value, table], &[("rounding_mode", 0)]);
    k.output(0, sum);
    let program = k.program();
    assert_eq!((program.globals()[0].bytes, program.globals()[0].align), (16, 64));
    let machine = Machine::new();
    let out = machine.alloc(16);
    machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(out)]);
    assert_eq!(machine.get::<f32>(out, 4), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn scratch_memory_ends_with_the_block_and_is_bounded() {
    let mut k = K::new("leak", &[ptr(&[], I64)]);
    let scratch = k.add(
        K::op(Opcode::Alloca)
            .attr("num_elem", Attribute::i32(16))
            .attr("alignment", Attribute::i32(16))
            .result(ptr(&[], I64)),
    )[0];
    let address = k.e(Opcode::PtrToInt, &[scratch], tile(&[], I64), &[]);
    k.output(0, address);
    let machine = Machine::new();
    let out = machine.alloc(8);
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(out)]);
    let address = machine.get::<u64>(out, 1)[0];
    let Err(fault) = machine.space.locate(address, 8) else { panic!("still there") };
    assert_eq!(fault.kind, FaultKind::Freed);

    let mut k = K::new("much", &[]);
    let (zero, many, one) = (k.i32(0), k.i32(1000), k.i32(1));
    k.for_loop([zero, many, one], &[], |k, _, _| {
        k.add(
            K::op(Opcode::Alloca)
                .attr("num_elem", Attribute::i32(1 << 18))
                .attr("alignment", Attribute::i32(16))
                .result(ptr(&[], I32)),
        );
        vec![]
    });
    let Ok(program) = k.load() else { panic!("loads") };
    let fault = machine.run(&*program, [1, 1, 1], &[]).expect_err("too much");
    assert!(fault.to_string().contains("alloca"), "{fault}");
}

#[test]
fn booleans_are_bytes() {
    let mut k = K::new("bool", &[ptr(&[], I1), ptr(&[], I1)]);
    let v = k.input(0, I1, &[4]);
    k.output(1, v);
    let machine = Machine::new();
    let (x, y) = (machine.put(&[0u8, 1, 2, 255]), machine.alloc(4));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
    assert_eq!(machine.get::<u8>(y, 4), [0, 1, 1, 1]);
}

#[test]
fn pointers_as_integers() {
    let mut k = K::new("casts", &[tile(&[], I64), ptr(&[], I32)]);
    let p = k.args[0];
    let p = k.e(Opcode::IntToPtr, &[p], ptr(&[], F32), &[]);
    let p = k.e(Opcode::PtrToPtr, &[p], ptr(&[], I32), &[]);
    let v = k.load_ptr(p, I32, &[]);
    let out = k.args[1];
    k.store_ptr(out, v);
    let machine = Machine::new();
    let (x, y) = (machine.put(&[1.0f32]), machine.alloc(4));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::I64(x as i64), Arg::Ptr(y)]);
    assert_eq!(machine.get::<u32>(y, 1), [1.0f32.to_bits()]);
}

#[test]
fn random_addresses_are_faults_not_crashes() {
    let mut k = K::new("wild", &[tile(&[], I64)]);
    let p = k.args[0];
    let p = k.e(Opcode::IntToPtr, &[p], ptr(&[], F64), &[]);
    k.load_ptr(p, F64, &[]);
    let program = k.program();
    let machine = Machine::new();
    let mut random = Random(9);
    for _ in 0..100 {
        let address = random.next() as i64;
        let fault = machine.run(&*program, [1, 1, 1], &[Arg::I64(address)]).expect_err("nothing there");
        assert!(matches!(fault.reason, FaultReason::Memory(_)), "{fault}");
    }
}

#[test]
fn tokens_order_what_program_order_orders_anyway() {
    let mut k = K::new("tokens", &[ptr(&[], I32), ptr(&[], I32)]);
    let (source, target) = (k.args[0], k.args[1]);
    let start = k.token();
    let wait = k.add(K::op(Opcode::GdcWaitTko).operand(start).result(Type::Token))[0];
    let load = k.add(
        K::op(Opcode::LoadPtrTko)
            .operands([source, wait])
            .attr("memory_ordering_semantics", Attribute::i32(2))
            .attr("memory_scope", Attribute::i32(2))
            .attr("operandSegmentSizes", groups(&[1, 0, 0, 1]))
            .result(tile(&[], I32))
            .result(Type::Token),
    );
    let fence = k.add(K::op(Opcode::MemoryFenceAliasTko).operand(load[1]).result(Type::Token))[0];
    let joined = k.add(K::op(Opcode::JoinTokens).operands([fence, start]).result(Type::Token))[0];
    let store = k.add(
        K::op(Opcode::StorePtrTko)
            .operands([target, load[0], joined])
            .attr("memory_ordering_semantics", Attribute::i32(3))
            .attr("memory_scope", Attribute::i32(1))
            .attr("operandSegmentSizes", groups(&[1, 1, 0, 1]))
            .result(Type::Token),
    )[0];
    k.add(K::op(Opcode::GdcLaunchDependentsTko).operand(store).result(Type::Token));
    let machine = Machine::new();
    let (x, y) = (machine.put(&[42i32]), machine.alloc(4));
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(x), Arg::Ptr(y)]);
    assert_eq!(machine.get::<i32>(y, 1), [42]);
}
