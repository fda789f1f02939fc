//! Random modules over all operations, written at every version, read, compared and written again.
//!
//! The generator knows each operation from the writer's side: what it may carry, in the order in which the
//! reader puts it. Types are arbitrary, because neither writer nor reader looks at them.
#![cfg(feature = "tile")]

mod tile_common;

use cutile_ir::bytecode::{BytecodeVersion, Opcode, write_bytecode_version};
use cutile_ir::ir::*;
use simtile_image::tile;
use std::collections::BTreeSet;
use tile_common::dump::dump;
use tile_common::generate::{Generator, any_module};

#[test]
fn random_modules_come_back() {
    let mut seen = BTreeSet::new();
    for version in BytecodeVersion::SUPPORTED {
        for seed in 0..70 {
            let module = any_module(seed, version, &mut seen);
            let context = format!("version {version}, seed {seed}");
            let bytes = write_bytecode_version(&module, version).unwrap_or_else(|e| panic!("{context}: {e}"));
            let again = tile::read(&bytes).unwrap_or_else(|e| panic!("{context}: {e}"));
            pretty_eq(&dump(&module), &dump(&again), &context);
            again.verify_bytecode_indices().unwrap_or_else(|e| panic!("{context}: {e}"));
            let bytes_again = write_bytecode_version(&again, version).unwrap();
            assert!(bytes == bytes_again, "{context}: other bytes after a round trip");
            assert_eq!(tile::version(&bytes).unwrap().without_preview(), version);
        }
    }
    let missing: Vec<_> = cutile_ir::requirements::OPCODES
        .iter()
        .filter(|op| !seen.contains(&op.as_u16()))
        .map(|op| op.name())
        .collect();
    // A global inside a function has no type in bytecode and is refused.
    assert_eq!(missing, ["global"]);
}

/// In another order the attributes mean the same; only the string table differs.
#[test]
fn the_order_of_attributes_does_not_matter() {
    let mut seen = BTreeSet::new();
    for version in BytecodeVersion::SUPPORTED {
        for seed in 1000..1040 {
            let mut module = any_module(seed, version, &mut seen);
            reverse_attributes(&mut module);
            let bytes = write_bytecode_version(&module, version).unwrap();
            let again = tile::read(&bytes).unwrap();
            pretty_eq(&dump(&module), &dump(&again), &format!("version {version}, seed {seed}"));
        }
    }
}

fn reverse_attributes(module: &mut Module) {
    let mut stack = module.functions.clone();
    while let Some(id) = stack.pop() {
        module.op_mut(id).attributes.reverse();
        for region in module.op(id).regions.clone() {
            for block in module.region(region).blocks.clone() {
                stack.extend(module.block(block).ops.iter().copied());
            }
        }
    }
}

/// Values that the writer fills in may be given or not: the bytes are the same but for the string table, and
/// the reader leaves them out.
#[test]
fn defaults_are_left_out() {
    for version in BytecodeVersion::SUPPORTED {
        let mut g = Generator::new(1, version);
        let f32s = tile_common::generate::tile(&[8], ScalarType::F32);
        let module = g.single_op(
            Opcode::TanH,
            std::slice::from_ref(&f32s),
            std::slice::from_ref(&f32s),
            vec![("rounding_mode", Attribute::i32(5))],
        );
        let again = tile::read(&write_bytecode_version(&module, version).unwrap()).unwrap();
        let entry = again.op(again.functions[0]);
        let block = again.block(again.region(entry.regions[0]).blocks[0]);
        assert!(again.op(block.ops[0]).attributes.is_empty());
    }
}

/// A bare file, line and column is given its function's scope by the writer.
#[test]
fn plain_locations_become_scoped_ones() {
    let plain = |line| Location::FileLineCol { filename: "dir/kernel.py".into(), line, column: 3 };
    let mut module =
        Generator::new(3, BytecodeVersion::V13_5).single_op(Opcode::MakeToken, &[], &[Type::Token], vec![]);
    let function = module.functions[0];
    module.op_mut(function).location = plain(7);
    let region = module.op(function).regions[0];
    let op = module.block(module.region(region).blocks[0]).ops[0];
    module.op_mut(op).location = plain(9);
    let bytes = write_bytecode_version(&module, BytecodeVersion::V13_5).unwrap();
    let again = tile::read(&bytes).unwrap();
    let function = again.op(again.functions[0]);
    let Location::DebugInfo(own) = &function.location else { panic!("{:?}", function.location) };
    assert_eq!((own.filename.as_str(), own.line, own.column), ("dir/kernel.py", 7, 3));
    let DebugScope::Subprogram(sub) = &own.scope else { panic!("{:?}", own.scope) };
    assert_eq!((sub.file.name.as_str(), sub.file.directory.as_str()), ("kernel.py", "dir"));
    let block = again.block(again.region(function.regions[0]).blocks[0]);
    let Location::DebugInfo(op) = again.op_location(block.ops[0]) else { panic!() };
    assert_eq!((op.line, &op.scope), (9, &own.scope));
    assert_eq!(write_bytecode_version(&again, BytecodeVersion::V13_5).unwrap(), bytes);
}

/// Every float that an 8- or 16-bit type has, as an attribute; and the special ones of the others.
#[test]
fn float_attributes_keep_their_bits() {
    use ScalarType::*;
    let all16 = |ty: ScalarType| (0..=u16::MAX).map(move |b| (b.into(), ty));
    let mut cases: Vec<(u64, ScalarType)> = all16(F16).chain(all16(BF16)).collect();
    for bits in [0u32, 1 << 31, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 1, 0x3F80_0001, 0x7F7F_FFFF] {
        cases.extend([(bits.into(), F32), (bits.into(), TF32)]);
    }
    for bits in [0u64, 1 << 63, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 1, u64::MAX >> 1] {
        cases.push((bits, F64));
    }
    let value = |bits: u64, ty| match ty {
        F16 => half::f16::from_bits(bits as u16).to_f64(),
        BF16 => half::bf16::from_bits(bits as u16).to_f64(),
        F64 => f64::from_bits(bits),
        _ => f64::from(f32::from_bits(bits as u32)),
    };
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let mut floats: Vec<(f64, ScalarType)> = cases.iter().map(|&(b, ty)| (value(b, ty), ty)).collect();
    // 8-bit types: every finite value, built from sign, exponent and mantissa.
    for (ty, exponents, mantissas, bias) in [(F8E4M3FN, 16, 8, 7), (F8E5M2, 31, 4, 15)] {
        for exponent in 0..exponents {
            for mantissa in 0..mantissas {
                if ty == F8E4M3FN && exponent == 15 && mantissa == 7 {
                    continue;
                }
                let m = f64::from(mantissa) / f64::from(mantissas);
                let magnitude = match exponent {
                    0 => m * 2f64.powi(1 - bias),
                    e => (1.0 + m) * 2f64.powi(e - bias),
                };
                floats.extend([(magnitude, ty), (-magnitude, ty)]);
            }
        }
        floats.push((f64::NAN, ty));
    }
    floats.extend([(f64::INFINITY, F8E5M2), (f64::NEG_INFINITY, F8E5M2)]);
    let list = floats.iter().map(|&(v, ty)| Attribute::float(v, ty)).collect();
    let f32s = tile_common::generate::tile(&[8], F32);
    let module = Generator::new(1, BytecodeVersion::V13_3).single_op(
        Opcode::Reduce,
        std::slice::from_ref(&f32s),
        std::slice::from_ref(&f32s),
        vec![("dim", Attribute::i32(0)), ("identities", Attribute::Array(list))],
    );
    let again = tile::read(&write_bytecode_version(&module, BytecodeVersion::V13_3).unwrap()).unwrap();
    let entry = again.op(again.functions[0]);
    let block = again.block(again.region(entry.regions[0]).blocks[0]);
    let Some((_, Attribute::Array(read))) =
        again.op(block.ops[0]).attributes.iter().find(|(k, _)| k == "identities")
    else {
        panic!("no identities")
    };
    assert_eq!(read.len(), floats.len());
    for (read, &(value, ty)) in read.iter().zip(&floats) {
        let Attribute::Float(v, Type::Scalar(t)) = read else { panic!("{read:?}") };
        assert!(*t == ty && same(*v, value), "{ty:?}: {value:e} came back as {v:e}");
    }
}

fn pretty_eq(a: &str, b: &str, context: &str) {
    if a != b {
        let line = a.lines().zip(b.lines()).position(|(x, y)| x != y).unwrap_or(0);
        let show = |s: &str| s.lines().skip(line).take(3).collect::<Vec<_>>().join("\n");
        panic!("{context}, line {line}:\n{}\ncame back as\n{}", show(a), show(b));
    }
}
