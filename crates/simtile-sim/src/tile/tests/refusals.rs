//! What is refused at load, and that it is refused by name and number.

use super::*;
use crate::exec::{At, LoadFault};
use crate::tile::{TileFunctions, load, load_module};

type Build = Box<dyn Fn(&mut K)>;

fn refused(k: K) -> LoadFault {
    match k.load() {
        Ok(_) => panic!("loads"),
        Err(fault) => fault,
    }
}

#[test]
fn by_name_and_number() {
    let mut k = K::new("four", &[ptr(&[], I4)]);
    k.i32(0);
    let pointer = k.args[0];
    k.load_ptr(pointer, I4, &[]);
    let LoadFault::Unsupported { at, what } = refused(k) else { panic!("unsupported") };
    assert_eq!(at, At::Operation(1));
    assert!(what.contains("load_ptr_tko (operation 1)"), "{what}");
}

#[test]
fn every_opcode_is_built() {
    use cutile_ir::requirements::OPCODES;
    assert_eq!(OPCODES.len(), 109);
    for &opcode in OPCODES {
        let mut k = K::new("one", &[]);
        k.add(K::op(opcode));
        match k.load() {
            Ok(_) | Err(LoadFault::Malformed { .. }) => {}
            Err(other) => panic!("{}: {other}", opcode.name()),
        }
    }
}

#[test]
fn wrong_types_counts_and_attributes() {
    let f = tile(&[4], F32);
    let cases: Vec<(&str, Build)> = vec![
        (
            "operand count",
            Box::new(|k| {
                let a = k.args[0];
                k.same(Opcode::AddF, &[a], &[("rounding_mode", 0)]);
            }),
        ),
        (
            "result type",
            Box::new(|k| {
                let a = k.args[0];
                k.e(Opcode::AddF, &[a, a], tile(&[8], F32), &[("rounding_mode", 0)]);
            }),
        ),
        (
            "rounding mode",
            Box::new(|k| {
                let a = k.args[0];
                k.same(Opcode::AddF, &[a, a], &[("rounding_mode", 6)]);
            }),
        ),
        (
            "integers added as floats",
            Box::new(|k| {
                let a = k.args[1];
                k.same(Opcode::AddF, &[a, a], &[("rounding_mode", 0)]);
            }),
        ),
        (
            "floats added as integers",
            Box::new(|k| {
                let a = k.args[0];
                k.same(Opcode::AddI, &[a, a], &[("overflow", 0)]);
            }),
        ),
        (
            "reshape of another size",
            Box::new(|k| {
                let a = k.args[0];
                k.e(Opcode::Reshape, &[a], tile(&[8], F32), &[]);
            }),
        ),
        (
            "broadcast that shrinks",
            Box::new(|k| {
                let a = k.args[0];
                k.e(Opcode::Broadcast, &[a], tile(&[2], F32), &[]);
            }),
        ),
        (
            "no comparison predicate",
            Box::new(|k| {
                let a = k.args[0];
                k.e(Opcode::CmpF, &[a, a], tile(&[4], I1), &[]);
            }),
        ),
        (
            "extents that are no power of two",
            Box::new(|k| {
                k.constant(tile(&[3], F32), &[0; 4]);
            }),
        ),
        (
            "negative extents",
            Box::new(|k| {
                k.constant(tile(&[-4], F32), &[0; 4]);
            }),
        ),
        (
            "an enormous tile",
            Box::new(|k| {
                k.constant(tile(&[1 << 40], F32), &[0; 4]);
            }),
        ),
        (
            "overflowing extents",
            Box::new(|k| {
                k.constant(tile(&[1 << 32, 1 << 32], F32), &[0; 4]);
            }),
        ),
        (
            "constant of the wrong size",
            Box::new(|k| {
                k.constant(tile(&[4], F32), &[0; 12]);
            }),
        ),
        (
            "iota that does not fit",
            Box::new(|k| {
                k.e(Opcode::Iota, &[], tile(&[512], I8), &[]);
            }),
        ),
        ("yield without an if", Box::new(|k| k.end(Opcode::Yield, &[]))),
        ("break without a loop", Box::new(|k| k.end(Opcode::Break, &[]))),
        (
            "operations after return",
            Box::new(|k| {
                k.end(Opcode::Return, &[]);
                k.i32(0);
            }),
        ),
        (
            "mma of shapes that do not fit",
            Box::new(|k| {
                let a = k.args[0];
                k.same(Opcode::MmaF, &[a, a, a], &[]);
            }),
        ),
    ];
    for (what, build) in cases {
        // Tiles are no parameters, so the cases get constants instead.
        let mut k = K::new("wrong", &[]);
        k.args = vec![k.constant(f.clone(), &[0; 4]), k.constant(tile(&[4], I32), &[0; 4])];
        build(&mut k);
        let fault = refused(k);
        assert!(matches!(fault, LoadFault::Malformed { .. }), "{what}: {fault}");
    }
}

#[test]
fn parts_of_another_module_are_refused() {
    let mut other = K::new("other", &[]);
    for i in 0..50 {
        other.i32(i);
    }
    let value = other.i32(0);
    let mut k = K::new("foreign", &[ptr(&[], I32)]);
    let out = k.args[0];
    k.store_ptr(out, value);
    assert!(matches!(refused(k), LoadFault::Malformed { .. }));
    let mut module = Module::new("empty");
    module.functions = other.module().functions;
    assert!(matches!(
        load_module(module, super::machine::TRAITS, &TileFunctions::new()),
        Err(LoadFault::Malformed { .. })
    ));
}

#[test]
fn values_are_visible_only_where_they_dominate() {
    let mut k = K::new("scope", &[tile(&[], I1)]);
    let mut inner = None;
    let condition = k.args[0];
    let then = k.nested(&[], |k, _| {
        inner = Some(k.i32(1));
        k.end(Opcode::Yield, &[]);
    });
    let otherwise = k.nested(&[], |k, _| k.end(Opcode::Yield, &[]));
    k.add(K::op(Opcode::If).operand(condition).region(then).region(otherwise));
    if let Some(v) = inner {
        k.same(Opcode::AddI, &[v, v], &[("overflow", 0)]);
    }
    let fault = refused(k);
    assert!(fault.to_string().contains("operand 0 is not defined here"), "{fault}");
}

#[test]
fn memory_is_bounded() {
    let large = tile(&[1 << 24], I64);
    let mut k = K::new("constants", &[]);
    for _ in 0..3 {
        k.constant(large.clone(), &[0; 8]);
    }
    let fault = refused(k);
    assert!(matches!(&fault, LoadFault::Unsupported { what, .. } if what.contains("constants")), "{fault}");
    let mut k = K::new("large", &[]);
    for _ in 0..40 {
        k.e(Opcode::Iota, &[], large.clone(), &[]);
    }
    let fault = refused(k);
    assert!(
        matches!(&fault, LoadFault::Unsupported { what, .. } if what.contains("bytes together")),
        "{fault}"
    );
}

#[test]
fn large_operations_count_as_many_steps() {
    let mut k = K::new("heavy", &[]);
    let v = k.constant(tile(&[1 << 20], I32), &[0; 4]);
    let (zero, many, one) = (k.i32(0), k.i32(1 << 30), k.i32(1));
    k.for_loop([zero, many, one], &[v], |k, _, v| {
        vec![k.same(Opcode::AddI, &[v[0], v[0]], &[("overflow", 0)])]
    });
    let Ok(program) = k.load() else { panic!("loads") };
    let machine = Machine { steps: 500, ..Machine::new() };
    let started = std::time::Instant::now();
    let fault = machine.run(&*program, [1, 1, 1], &[]).expect_err("too many");
    assert!(matches!(fault.reason, crate::exec::FaultReason::StepLimit(500)), "{fault}");
    assert!(started.elapsed() < std::time::Duration::from_secs(20));
}

#[test]
fn regions_that_contain_themselves() {
    let mut k = K::new("recursive", &[]);
    let region = k.nested(&[], |_, _| {});
    let block = k.m.region(region).blocks[0];
    let (op, _) = K::op(Opcode::Loop).region(region).build(&mut k.m);
    k.m.block_mut(block).ops.push(op);
    k.add(K::op(Opcode::Loop).region(region));
    let fault = refused(k);
    assert!(
        matches!(&fault, LoadFault::Unsupported { what, .. } if what.contains("nested deeper")),
        "{fault}"
    );
}

#[test]
fn other_bytes_and_versions() {
    let traits = super::machine::TRAITS;
    assert!(matches!(load(b"", traits), Err(LoadFault::Malformed { .. })));
    assert!(matches!(load(b"\x7fELF", traits), Err(LoadFault::Malformed { .. })));
    let mut bytes = super::artifacts::VADD[0].to_vec();
    bytes[9] = 99;
    let Err(LoadFault::Version { found, supported }) = load(&bytes, traits) else { panic!("version") };
    assert!(found.contains("13.99") && supported == "13.2 to 13.5", "{found} {supported}");
}
