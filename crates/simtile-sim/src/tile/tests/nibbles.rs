//! Elements of 4 bits in memory.

use super::machine::Random;
use super::*;
use crate::exec::FindingKind;

/// Bytes of so many half bytes in a row.
fn packed(values: &[u8]) -> Vec<u8> {
    values.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4).collect()
}

fn half(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (4 * (at % 2)) & 15
}

/// One block for each tile: the tile of the first tensor plus one goes to the second, whose rows lie differently.
fn add_one(scalar: ScalarType, tile_shape: [i32; 2], padding: Option<PaddingValue>) -> K {
    let mut inputs = vec![ptr(&[], scalar), ptr(&[], scalar)];
    inputs.extend(vec![tile(&[], I32); 4]);
    let mut k = K::new("add_one", &inputs);
    let args = k.args.clone();
    let ty = tensor(scalar, &[None, None], &[None, Some(1)]);
    let view_ty = partition(&tile_shape, &ty, padding);
    let index = k.block_id();
    let shape = tile_shape.map(i64::from);
    let view = |k: &mut K, base: Value, stride: Value| {
        let t = k.tensor(base, &ty, &args[2..4], &[stride]);
        k.view(Opcode::MakePartitionView, t, Type::PartitionView(view_ty.clone()))
    };
    let from = view(&mut k, args[0], args[4]);
    let to = view(&mut k, args[1], args[5]);
    let value = k.load_view(from, &index[..2], tile(&shape, scalar), &[]);
    let value = if scalar == I4 {
        let one = k.constant(tile(&shape, I4), &[1]);
        k.same(Opcode::AddI, &[value, one], &[("overflow", 0)])
    } else {
        value
    };
    k.store_view(value, to, &index[..2]);
    k
}

#[test]
fn two_elements_lie_in_a_byte() {
    let mut random = Random(4);
    for (scalar, add) in [(I4, 1), (F4E2M1FN, 0)] {
        for (tile_shape, rows, cols, from_stride, to_stride) in [
            ([4, 8], 9usize, 19usize, 19usize, 21usize),
            ([2, 4], 5, 13, 13, 13),
            ([1, 1], 3, 5, 7, 5),
            ([8, 16], 20, 33, 40, 33),
        ] {
            let program = add_one(scalar, tile_shape, Some(PaddingValue::Zero)).program();
            let data: Vec<u8> = (0..rows * from_stride + 1).map(|_| random.below(16) as u8).collect();
            let before: Vec<u8> = (0..rows * to_stride + 1).map(|_| random.below(16) as u8).collect();
            let machine = Machine::new();
            let (from, to) = (machine.put(&packed(&data)), machine.put(&packed(&before)));
            let grid = [
                rows.div_ceil(tile_shape[0] as usize) as u32,
                cols.div_ceil(tile_shape[1] as usize) as u32,
                1,
            ];
            let numbers = [rows, cols, from_stride, to_stride].map(|n| Arg::I32(n as i32));
            machine.ok(&*program, grid, &[&[Arg::Ptr(from), Arg::Ptr(to)], &numbers[..]].concat());
            let after: Vec<u8> = machine.get(to, before.len().div_ceil(2));
            for (at, &old) in before.iter().enumerate() {
                let (row, col) = (at / to_stride, at % to_stride);
                let inside = row < rows && col < cols;
                let want = if inside { (data[row * from_stride + col] + add) & 15 } else { old };
                assert_eq!(half(&after, at), want, "{scalar:?} {tile_shape:?} row {row} column {col}");
            }
        }
    }
}

#[test]
fn half_a_byte_beyond_the_end_and_unwritten_bytes() {
    // Three elements are two bytes; the tile of four reads a padding value for the fourth.
    let program = add_one(I4, [1, 4], Some(PaddingValue::Zero)).program();
    let machine = Machine::new();
    let (from, to) = (machine.put(&packed(&[1, 2, 15])), machine.put(&[0xFFu8, 0xFF]));
    let numbers = [1, 3, 3, 3].map(Arg::I32);
    machine.ok(&*program, [1, 1, 1], &[&[Arg::Ptr(from), Arg::Ptr(to)], &numbers[..]].concat());
    assert_eq!(machine.get::<u8>(to, 2), [0x32, 0xF0]);
    let unwritten = machine.alloc(2);
    machine
        .run(&*program, [1, 1, 1], &[&[Arg::Ptr(unwritten), Arg::Ptr(to)], &numbers[..]].concat())
        .unwrap();
    assert!(matches!(machine.found()[..], [FindingKind::UninitialisedRead { .. }]));
    let numbers = [1, 8, 8, 8].map(Arg::I32);
    let short = machine.space.allocate(crate::memory::MemoryKind::Device, 0, 1).unwrap().base;
    let result =
        machine.run(&*program, [1, 2, 1], &[&[Arg::Ptr(short), Arg::Ptr(to)], &numbers[..]].concat());
    assert!(result.is_err(), "the second byte is not there");
}

#[test]
fn scratch_memory_and_globals() {
    let mut k = K::new("scratch", &[ptr(&[], I8)]);
    k.m.globals.push(Global {
        sym_name: "g".into(),
        value: DenseElements { element_type: tile(&[4], I4), shape: vec![4], data: vec![1, 2, 3, 4] },
        alignment: 1,
        constant: false,
        symbol_visibility: SymbolVisibility::Public,
    });
    let base =
        k.add(K::op(Opcode::GetGlobal).attr("name", Attribute::String("g".into())).result(ptr(&[], I4)))[0];
    let room = k.add(
        K::op(Opcode::Alloca)
            .attr("num_elem", Attribute::i32(8))
            .attr("alignment", Attribute::i32(1))
            .result(ptr(&[], I4)),
    )[0];
    let ty = tensor(I4, &[Some(4)], &[Some(1)]);
    let part = Type::PartitionView(partition(&[4], &ty, None));
    let zero = k.i32(0);
    let g = k.tensor(base, &ty, &[], &[]);
    let g = k.view(Opcode::MakePartitionView, g, part.clone());
    let r = k.tensor(room, &ty, &[], &[]);
    let r = k.view(Opcode::MakePartitionView, r, part);
    let value = k.load_view(g, &[zero], tile(&[4], I4), &[]);
    k.store_view(value, r, &[zero]);
    let back = k.load_view(r, &[zero], tile(&[4], I4), &[]);
    let wide = k.e(Opcode::ExtI, &[back], tile(&[4], I8), &[("signedness", 0)]);
    k.output(0, wide);
    let machine = Machine::new();
    let out = machine.alloc(4);
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(out)]);
    assert_eq!(machine.get::<u8>(out, 4), [1, 2, 3, 4]);
}
