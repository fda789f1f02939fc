//! Kernels follow their code, not their name; mutated ones neither crash nor run for ever.
//!
//! `SIMTILE_FUZZ` is how many times as many mutants are tried (1 if not set), each time from another seed.

use super::artifacts::{GEMM, SOFTMAX, VADD, tensor};
use super::machine::{Arg, Machine, Random, TRAITS};
use super::*;
use crate::tile::{TileFunctions, load, load_module};
use simtile_image::tile::read;

fn module(bytes: &[u8]) -> Module {
    read(bytes).expect("an artifact")
}

#[test]
fn renamed_entries_and_edited_constants() {
    // vadd with the entry renamed and the addition turned into a subtraction.
    let mut module = module(VADD[0]);
    let entry = module.functions[0];
    for (name, value) in &mut module.op_mut(entry).attributes {
        if name == "sym_name" {
            *value = Attribute::String("rs_gemm_f16".into());
        }
    }
    let region = module.op(entry).regions[0];
    let block = module.region(region).blocks[0];
    for op in module.block(block).ops.clone() {
        if module.op(op).opcode == Opcode::AddF {
            module.op_mut(op).opcode = Opcode::SubF;
        }
    }
    let Ok(program) = load_module(module, TRAITS, &TileFunctions::new()) else { panic!("loads") };
    assert_eq!(program.kernels()[0].name, "rs_gemm_f16");
    let machine = Machine::new();
    let (a, b, c) = (machine.put(&[5.0f32, 6.0]), machine.put(&[1.0f32, 8.0]), machine.alloc(8));
    let args = [tensor(a, &[2], &[1]), tensor(b, &[2], &[1]), tensor(c, &[2], &[1])].concat();
    machine.ok(&*program, [1, 1, 1], &args);
    assert_eq!(machine.get::<f32>(c, 2), [4.0, -2.0]);
}

#[test]
fn an_edited_constant_in_bytecode_changes_the_result() {
    let machine = Machine::new();
    let result = |seven: u8| {
        let mut k = K::new("seven", &[ptr(&[], I32)]);
        let v = k.i32(7);
        let out = k.args[0];
        k.store_ptr(out, v);
        let version = cutile_ir::bytecode::BytecodeVersion::V13_3;
        let mut bytes = cutile_ir::bytecode::write_bytecode_version(&k.module(), version).expect("writes");
        let at = bytes.windows(4).position(|w| w == [7, 0, 0, 0]).expect("the constant");
        bytes[at] = seven;
        let Ok(program) = load(&bytes, TRAITS) else { panic!("loads") };
        let out = machine.alloc(4);
        machine.ok(&*program, [1, 1, 1], &[Arg::Ptr(out)]);
        machine.get::<i32>(out, 1)[0]
    };
    assert_eq!((result(7), result(9)), (7, 9));
}

/// Runs what loads, with plausible arguments and few steps. Any end is fine but a crash.
fn exercise(program: &dyn crate::exec::Program) {
    let machine = Machine { steps: 300, workers: 1, ..Machine::new() };
    let memory = machine.put(&vec![0x3cu8; 1 << 16]);
    let Some(kernel) = program.kernels().first() else { return };
    let args: Vec<Arg> =
        kernel.params.iter().map(|p| if p.bytes == 8 { Arg::Ptr(memory) } else { Arg::I32(16) }).collect();
    if let Err(fault) = machine.run(program, [2, 1, 1], &args) {
        assert!(!fault.to_string().contains("internal error"), "{fault}");
    }
}

/// What loads. A panic in the decoder is no refusal.
fn accepted(
    result: Result<Box<dyn crate::exec::Program>, crate::exec::LoadFault>,
) -> Option<Box<dyn crate::exec::Program>> {
    match result {
        Ok(program) => Some(program),
        Err(fault) => {
            assert!(!fault.to_string().contains("refers to parts"), "{fault}");
            None
        }
    }
}

fn effort() -> u64 {
    std::env::var("SIMTILE_FUZZ").ok().and_then(|v| v.parse().ok()).unwrap_or(1)
}

#[test]
fn mutated_bytecode() {
    let mut random = Random(2023 + effort());
    for bytes in VADD.iter().chain(&SOFTMAX).chain([&GEMM]) {
        let mut loaded = 0;
        for _ in 0..300 * effort() {
            let mut bytes = bytes.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = match random.below(3) {
                    0 => random.next() as u8,
                    1 => bytes[at] ^ (1 << random.below(8)),
                    _ => bytes[at].wrapping_add(1),
                };
            }
            if let Some(program) = accepted(load(&bytes, TRAITS)) {
                loaded += 1;
                exercise(&*program);
            }
        }
        assert!(loaded > 0, "some mutants load");
    }
}

/// Every operation of the first entry.
fn operations(module: &Module) -> Vec<OpId> {
    let mut found = Vec::new();
    let mut regions = module.op(module.functions[0]).regions.clone();
    while let Some(region) = regions.pop() {
        for &block in &module.region(region).blocks {
            for &op in &module.block(block).ops {
                found.push(op);
                regions.extend(&module.op(op).regions);
            }
        }
    }
    found
}

#[test]
fn mutated_modules() {
    let mut random = Random(6 + effort());
    let opcodes = cutile_ir::requirements::OPCODES;
    let scalars = [
        I1, I4, I8, I16, I32, I64, F16, BF16, F32, TF32, F64, F8E4M3FN, F8E5M2, F8E8M0FNU, F4E2M1FN,
        F8E5M3FNU,
    ];
    let mut loaded = 0;
    for bytes in VADD.iter().chain(&SOFTMAX).chain([&GEMM]) {
        let original = module(bytes);
        let ops = operations(&original);
        let values: Vec<Value> = original.values_since(0).map(|(v, _)| v).collect();
        for _ in 0..400 * effort() {
            let mut module = original.clone();
            for _ in 0..1 + random.below(2) {
                let op = module.op_mut(ops[random.below(ops.len())]);
                match random.below(8) {
                    0 => op.opcode = opcodes[random.below(opcodes.len())],
                    1 if !op.operands.is_empty() => {
                        let i = random.below(op.operands.len());
                        op.operands[i] = values[random.below(values.len())];
                    }
                    2 => {
                        op.operands.pop();
                    }
                    3 => op.operands.push(values[random.below(values.len())]),
                    4 if !op.attributes.is_empty() => {
                        let i = random.below(op.attributes.len());
                        op.attributes[i].1 = match random.below(4) {
                            0 => Attribute::i32(random.below(12) as i64 - 2),
                            1 => Attribute::Bool(true),
                            2 => Attribute::Array(vec![Attribute::i32(1); random.below(5)]),
                            _ => Attribute::Integer(random.next() as i64, Type::Scalar(I64)),
                        };
                    }
                    5 if !op.attributes.is_empty() => {
                        let i = random.below(op.attributes.len());
                        op.attributes.remove(i);
                    }
                    6 if !op.result_types.is_empty() => {
                        let i = random.below(op.result_types.len());
                        op.result_types[i] =
                            tile(&[1 << random.below(12)], scalars[random.below(scalars.len())]);
                    }
                    _ => {
                        op.regions.pop();
                    }
                }
            }
            if let Some(program) = accepted(load_module(module, TRAITS, &TileFunctions::new())) {
                loaded += 1;
                exercise(&*program);
            }
        }
    }
    assert!(loaded > 50, "{loaded} mutants load");
}
