//! Operations that move elements, constants, and small kernels of many operations.

use super::*;

/// Runs a kernel that makes one `i32` tile.
fn make(count: usize, build: impl FnOnce(&mut K) -> Value) -> Vec<i32> {
    let mut k = K::new("make", &[ptr(&[], I32)]);
    let out = build(&mut k);
    k.output(0, out);
    let machine = Machine::new();
    let address = machine.alloc(count * 4);
    machine.ok(&*k.program(), [1, 1, 1], &[Arg::Ptr(address)]);
    machine.get(address, count)
}

fn iota(k: &mut K, shape: &[i64]) -> Value {
    let count = shape.iter().product();
    let flat = k.e(Opcode::Iota, &[], tile(&[count], I32), &[]);
    k.e(Opcode::Reshape, &[flat], tile(shape, I32), &[])
}

#[test]
fn broadcast_repeats() {
    let got = make(8, |k| {
        let v = iota(k, &[2, 1]);
        k.e(Opcode::Broadcast, &[v], tile(&[2, 4], I32), &[])
    });
    assert_eq!(got, [0, 0, 0, 0, 1, 1, 1, 1]);
    let got = make(16, |k| {
        let v = iota(k, &[1, 2, 1]);
        k.e(Opcode::Broadcast, &[v], tile(&[2, 2, 4], I32), &[])
    });
    assert_eq!(got, [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn permute_reorders() {
    let got = make(16, |k| {
        let v = iota(k, &[2, 4, 2]);
        let op = K::op(Opcode::Permute)
            .operand(v)
            .attr("permutation", Attribute::DenseI32Array(vec![2, 0, 1]))
            .result(tile(&[2, 2, 4], I32));
        k.add(op)[0]
    });
    let want: Vec<i32> = (0..16)
        .map(|i| {
            let (a, b, c) = (i / 8, i / 4 % 2, i % 4);
            b * 8 + c * 2 + a
        })
        .collect();
    assert_eq!(got, want);
}

#[test]
fn cat_extract_insert() {
    let got = make(16, |k| {
        let v = iota(k, &[2, 4]);
        k.e(Opcode::Cat, &[v, v], tile(&[2, 8], I32), &[("dim", 1)])
    });
    assert_eq!(got, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]);
    let got = make(4, |k| {
        let v = iota(k, &[4, 8]);
        let (row, column) = (k.i32(1), k.i32(3));
        k.e(Opcode::Extract, &[v, row, column], tile(&[2, 2], I32), &[])
    });
    assert_eq!(got, [22, 23, 30, 31]);
    let got = make(8, |k| {
        let (large, small) = (iota(k, &[2, 4]), iota(k, &[2, 2]));
        let (row, column) = (k.i32(0), k.i32(1));
        k.e(Opcode::Insert, &[small, large, row, column], tile(&[2, 4], I32), &[])
    });
    assert_eq!(got, [0, 1, 0, 1, 4, 5, 2, 3]);
}

#[test]
fn a_slice_that_is_not_there_faults() {
    let mut k = K::new("slice", &[tile(&[], I32)]);
    let v = iota(&mut k, &[8]);
    let index = k.args[0];
    k.e(Opcode::Extract, &[v, index], tile(&[4], I32), &[]);
    let program = k.program();
    let machine = Machine::new();
    machine.ok(&*program, [1, 1, 1], &[Arg::I32(1)]);
    let fault = machine.run(&*program, [1, 1, 1], &[Arg::I32(-1)]).expect_err("no such slice");
    assert!(fault.to_string().contains("no slice [-1]"), "{fault}");
}

#[test]
fn select_picks() {
    let got = make(4, |k| {
        let v = iota(k, &[4]);
        let two = k.constant(tile(&[4], I32), &2i32.to_le_bytes());
        let less =
            k.e(Opcode::CmpI, &[v, two], tile(&[4], I1), &[("comparison_predicate", 2), ("signedness", 1)]);
        k.e(Opcode::Select, &[less, v, two], tile(&[4], I32), &[])
    });
    assert_eq!(got, [0, 1, 2, 2]);
}

#[test]
fn constants_as_mlir_keeps_them() {
    let dense: Vec<u8> = [5i32, -6, 7, 8].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(make(4, |k| k.constant(tile(&[4], I32), &dense)), [5, -6, 7, 8]);
    assert_eq!(make(4, |k| k.constant(tile(&[4], I32), &9i32.to_le_bytes())), [9, 9, 9, 9]);
    // One bit an element.
    let got = make(16, |k| {
        let bits = k.constant(tile(&[16], I1), &[0b1010_0001, 0b1000_0000]);
        k.e(Opcode::ExtI, &[bits], tile(&[16], I32), &[("signedness", 0)])
    });
    assert_eq!(got, [1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    let got = make(4, |k| {
        let bits = k.constant(tile(&[4], I1), &[0xff]);
        k.e(Opcode::ExtI, &[bits], tile(&[4], I32), &[("signedness", 0)])
    });
    assert_eq!(got, [1, 1, 1, 1]);
}

#[test]
fn pack_and_unpack() {
    let got = make(8, |k| {
        let words = k.constant(tile(&[2], I32), &[1, 2, 3, 4, 0xff, 0, 0, 0x80]);
        let bytes = k.e(Opcode::Pack, &[words], tile(&[8], I8), &[]);
        k.e(Opcode::ExtI, &[bytes], tile(&[8], I32), &[("signedness", 0)])
    });
    assert_eq!(got, [1, 2, 3, 4, 255, 0, 0, 128]);
    let got = make(2, |k| {
        let bytes = k.constant(tile(&[8], I8), &[1, 2, 3, 4, 0xff, 0, 0, 0x80]);
        k.e(Opcode::Unpack, &[bytes], tile(&[2], I32), &[])
    });
    assert_eq!(got, [0x0403_0201, 0x8000_00ffu32 as i32]);
    let got = make(8, |k| {
        let bytes = k.constant(tile(&[4], I8), &0x8765_4321u32.to_le_bytes());
        let nibbles = k.e(Opcode::Unpack, &[bytes], tile(&[8], I4), &[]);
        k.e(Opcode::ExtI, &[nibbles], tile(&[8], I32), &[("signedness", 1)])
    });
    assert_eq!(got, [1, 2, 3, 4, 5, 6, 7, -8]);
}

#[test]
fn grid_position() {
    let mut k = K::new("grid", &[ptr(&[], I32)]);
    let id = k.block_id();
    let count = k.add(K::op(Opcode::GetNumTileBlocks).results(vec![tile(&[], I32); 3]));
    let wrap = [("overflow", 0)];
    // number = (z * ny + y) * nx + x
    let a = k.same(Opcode::MulI, &[id[2], count[1]], &wrap);
    let a = k.same(Opcode::AddI, &[a, id[1]], &wrap);
    let a = k.same(Opcode::MulI, &[a, count[0]], &wrap);
    let a = k.same(Opcode::AddI, &[a, id[0]], &wrap);
    let base = k.args[0];
    let pointer = k.e(Opcode::Offset, &[base, a], ptr(&[], I32), &[]);
    k.store_ptr(pointer, a);
    let program = k.program();
    for (workers, seed) in [(1, 0), (4, 0), (2, 12345), (1, 7)] {
        let machine = Machine { workers, seed, ..Machine::new() };
        let out = machine.alloc(30 * 4);
        machine.ok(&*program, [5, 3, 2], &[Arg::Ptr(out)]);
        assert_eq!(machine.get::<i32>(out, 30), (0..30).collect::<Vec<_>>());
    }
}
