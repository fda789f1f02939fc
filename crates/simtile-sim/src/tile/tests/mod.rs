//! Tests: a kernel builder, a machine to run kernels on, and one file for each family.

mod build;
mod machine;

mod arithmetic;
mod artifacts;
mod calls;
mod control;
mod flow;
mod folds;
mod fuzz;
mod memory;
mod multimem;
mod multiply;
mod nibbles;
mod refusals;
mod shapes;
mod speed;
mod table;

use build::*;
use machine::{Arg, Machine};

/// Bit patterns of elements of a type, as they lie in memory.
type Bits = (ScalarType, Vec<u64>);

fn to_bytes(scalar: ScalarType, values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()[..scalar.byte_width()].to_vec()).collect()
}

fn from_bytes(scalar: ScalarType, bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(scalar.byte_width())
        .map(|c| c.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)))
        .collect()
}

/// Runs one elementwise operation on vectors (padded to a power of two by repeating the last element).
fn elementwise(opcode: Opcode, operands: &[Bits], result: ScalarType, attrs: &[(&str, i64)]) -> Vec<u64> {
    let count = operands[0].1.len();
    let padded = count.next_power_of_two();
    let mut inputs: Vec<Type> = operands.iter().map(|(s, _)| ptr(&[], *s)).collect();
    inputs.push(ptr(&[], result));
    let mut k = K::new(&format!("{opcode:?}"), &inputs);
    let shape = [padded as i64];
    let values: Vec<Value> = operands.iter().enumerate().map(|(i, (s, _))| k.input(i, *s, &shape)).collect();
    let out = k.e(opcode, &values, tile(&shape, result), attrs);
    k.output(operands.len(), out);
    let machine = Machine::new();
    let mut args: Vec<Arg> = operands
        .iter()
        .map(|(s, v)| {
            let mut v = v.clone();
            v.resize(padded, v[count - 1]);
            Arg::Ptr(machine.put(&to_bytes(*s, &v)))
        })
        .collect();
    let out = machine.alloc(padded * result.byte_width());
    args.push(Arg::Ptr(out));
    machine.ok(&*k.program(), [1, 1, 1], &args);
    from_bytes(result, &machine.get::<u8>(out, count * result.byte_width()))
}

fn f32s(values: &[f32]) -> Bits {
    (F32, values.iter().map(|v| u64::from(v.to_bits())).collect())
}

fn f64s(values: &[f64]) -> Bits {
    (F64, values.iter().map(|v| v.to_bits()).collect())
}

fn f16s(values: &[f32]) -> Bits {
    (F16, values.iter().map(|&v| u64::from(half::f16::from_f32(v).to_bits())).collect())
}

fn bf16s(values: &[f32]) -> Bits {
    (BF16, values.iter().map(|&v| u64::from(half::bf16::from_f32(v).to_bits())).collect())
}

fn i32s(values: &[i32]) -> Bits {
    (I32, values.iter().map(|&v| u64::from(v as u32)).collect())
}

fn as_f32(values: &[u64]) -> Vec<f32> {
    values.iter().map(|&v| f32::from_bits(v as u32)).collect()
}

fn as_f64(values: &[u64]) -> Vec<f64> {
    values.iter().map(|&v| f64::from_bits(v)).collect()
}

fn as_i32(values: &[u64]) -> Vec<i32> {
    values.iter().map(|&v| v as u32 as i32).collect()
}
