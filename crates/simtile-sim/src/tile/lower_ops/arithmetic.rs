//! Arithmetic on floats and integers, comparisons, conversions, matrix products.

use super::super::attrs::{flag, int, need, rounding, signedness};
use super::super::elementwise::{Compare, Convert, FloatBinary, FloatUnary, IntBinary, IntUnary};
use super::super::float::Round;
use super::super::lower::Fail;
use super::super::op::{MmaShape, Op};
use super::super::types::{Elem, TileTy};
use super::{Types, alike, any_float, counts, float_of, ftz, in_memory, int_of, pointee, same_shape, tile};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{Operation, ScalarType};

pub(super) fn floats(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    use Opcode::*;
    let nearest = Round::Even;
    let unary = |f, round, ftz, scalar| Op::FloatUnary { op: f, scalar, round, ftz };
    let simple = |f: FloatUnary| -> Result<Op, Fail> {
        Ok(unary(f, nearest, false, float_of(alike(operands, results, 1)?)?))
    };
    let binary = |f: FloatBinary, allowed: &[i64], single: &[i64]| -> Result<Op, Fail> {
        let scalar = float_of(alike(operands, results, 2)?)?;
        let allowed = if scalar == ScalarType::F32 { [allowed, single].concat() } else { allowed.to_vec() };
        let round = if allowed.is_empty() { nearest } else { rounding(op, "rounding_mode", &allowed, 0)? };
        Ok(Op::FloatBinary { op: f, scalar, round, ftz: ftz(op, scalar)? })
    };
    const IEEE: &[i64] = &[0, 1, 2, 3];
    match op.opcode {
        AbsF => simple(FloatUnary::Abs),
        NegF => simple(FloatUnary::Neg),
        Ceil => simple(FloatUnary::Ceil),
        Floor => simple(FloatUnary::Floor),
        Log => simple(FloatUnary::Log),
        Log2 => simple(FloatUnary::Log2),
        Sin => simple(FloatUnary::Sin),
        Cos => simple(FloatUnary::Cos),
        Tan => simple(FloatUnary::Tan),
        SinH => simple(FloatUnary::SinH),
        CosH => simple(FloatUnary::CosH),
        Sqrt => {
            let scalar = float_of(alike(operands, results, 1)?)?;
            let allowed: &[i64] = if scalar == ScalarType::F32 { &[0, 1, 2, 3, 4] } else { IEEE };
            let round = rounding(op, "rounding_mode", allowed, 0)?;
            Ok(unary(FloatUnary::Sqrt, round, ftz(op, scalar)?, scalar))
        }
        Exp2 | Rsqrt => {
            let scalar = float_of(alike(operands, results, 1)?)?;
            let f = if op.opcode == Exp2 { FloatUnary::Exp2 } else { FloatUnary::Rsqrt };
            Ok(unary(f, nearest, ftz(op, scalar)?, scalar))
        }
        Exp | TanH => {
            let scalar = float_of(alike(operands, results, 1)?)?;
            let allowed: &[i64] = if scalar == ScalarType::F32 { &[4, 5] } else { &[5] };
            rounding(op, "rounding_mode", allowed, 5)?;
            Ok(unary(
                if op.opcode == Exp { FloatUnary::Exp } else { FloatUnary::TanH },
                nearest,
                false,
                scalar,
            ))
        }
        AddF => binary(FloatBinary::Add, IEEE, &[]),
        SubF => binary(FloatBinary::Sub, IEEE, &[]),
        MulF => binary(FloatBinary::Mul, IEEE, &[]),
        DivF => binary(FloatBinary::Div, IEEE, &[4, 5]),
        RemF => binary(FloatBinary::Rem, &[], &[]),
        Pow => binary(FloatBinary::Pow, &[], &[]),
        Atan2 => binary(FloatBinary::Atan2, &[], &[]),
        MaxF => binary(FloatBinary::Max { nan: flag(op, "propagate_nan") }, &[], &[]),
        MinF => binary(FloatBinary::Min { nan: flag(op, "propagate_nan") }, &[], &[]),
        Fma => {
            let scalar = float_of(alike(operands, results, 3)?)?;
            Ok(Op::Fma { scalar, round: rounding(op, "rounding_mode", IEEE, 0)?, ftz: ftz(op, scalar)? })
        }
        FPowI => {
            counts(operands, results, (2, 1))?;
            let (base, exponent) = (tile(operands, 0)?, tile(operands, 1)?);
            same_shape(base, exponent)?;
            if operands[0] != results[0] {
                return Err("base and result differ in type".into());
            }
            let exponent_bits = int_of(exponent)?;
            if exponent_bits > 32 {
                return Err(format!("an exponent of {exponent_bits} bits; the limit is 32").into());
            }
            Ok(Op::PowInt { scalar: float_of(base)?, exponent_bits })
        }
        _ => {
            let ty = compared(operands, results)?;
            let ordered = match need(op, "comparison_ordering")? {
                0 => false,
                1 => true,
                other => return Err(format!("comparison ordering {other}; there are 0 and 1").into()),
            };
            Ok(Op::CompareFloat { op: comparison(op)?, ordered, scalar: float_of(ty)? })
        }
    }
}

/// Two operands of one type, and a result of `i1` in their shape.
fn compared<'a>(operands: &'a Types, results: &Types) -> Result<&'a TileTy, Fail> {
    counts(operands, results, (2, 1))?;
    let (ty, result) = (tile(operands, 0)?, tile(results, 0)?);
    same_shape(ty, result)?;
    if operands[0] != operands[1] || result.elem != Elem::Scalar(ScalarType::I1) {
        return Err("operands differ in type, or the result is not i1".into());
    }
    Ok(ty)
}

fn comparison(op: &Operation) -> Result<Compare, Fail> {
    Ok(match need(op, "comparison_predicate")? {
        0 => Compare::Equal,
        1 => Compare::NotEqual,
        2 => Compare::Less,
        3 => Compare::LessEqual,
        4 => Compare::Greater,
        5 => Compare::GreaterEqual,
        other => return Err(format!("comparison {other}; there are 0 to 5").into()),
    })
}

pub(super) fn ints(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    use Opcode::*;
    if op.opcode == CmpI {
        let bits = int_of(compared(operands, results)?)?;
        return Ok(Op::CompareInt { op: comparison(op)?, signed: signedness(op, "signedness")?, bits });
    }
    let unary = matches!(op.opcode, AbsI | NegI);
    let bits = int_of(alike(operands, results, if unary { 1 } else { 2 })?)?;
    if let Some(overflow) = int(op, "overflow")?
        && !(0..=3).contains(&overflow)
    {
        return Err(format!("overflow {overflow}; there are 0 to 3").into());
    }
    let signed = || signedness(op, "signedness");
    let f = match op.opcode {
        AbsI => return Ok(Op::IntUnary { op: IntUnary::Abs, bits }),
        NegI => return Ok(Op::IntUnary { op: IntUnary::Neg, bits }),
        AddI => IntBinary::Add,
        SubI => IntBinary::Sub,
        MulI => IntBinary::Mul,
        MulhiI => IntBinary::MulHigh,
        AndI => IntBinary::And,
        OrI => IntBinary::Or,
        XOrI => IntBinary::Xor,
        ShLI => IntBinary::ShiftLeft,
        ShRI => IntBinary::ShiftRight { signed: signed()? },
        MaxI => IntBinary::Max { signed: signed()? },
        MinI => IntBinary::Min { signed: signed()? },
        RemI => IntBinary::Rem { signed: signed()? },
        _ => {
            let signed = signed()?;
            let round = rounding(op, "rounding", &[1, 2, 3], 1)?;
            if round == Round::Down && !signed {
                return Err("division of unsigned integers rounded down".into());
            }
            IntBinary::Div { signed, round }
        }
    };
    Ok(Op::IntBinary { op: f, bits })
}

pub(super) fn conversions(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    use Opcode::*;
    counts(operands, results, (if op.opcode == Offset { 2 } else { 1 }, 1))?;
    let (from, to) = (tile(operands, 0)?, tile(results, 0)?);
    same_shape(from, to)?;
    let conversion = match op.opcode {
        FToF => {
            let (source, target) = (any_float(from)?, any_float(to)?);
            if source == target {
                return Err("a conversion to the same type".into());
            }
            let allowed: &[i64] = if target == ScalarType::F8E8M0FNU { &[1, 3] } else { &[0, 1, 2, 3, 7] };
            let round = rounding(op, "rounding_mode", allowed, 0)?;
            // The result of narrowing a double is computed exactly; only f64 itself cannot be a target then.
            Convert::FloatToFloat { from: source, to: target, round }
        }
        FToI => {
            rounding(op, "rounding_mode", &[6], 6)?;
            Convert::FloatToInt {
                from: any_float(from)?,
                bits: int_of(to)?,
                signed: signedness(op, "signedness")?,
            }
        }
        IToF => {
            let round = rounding(op, "rounding_mode", &[0, 1, 2, 3], 0)?;
            let signed = signedness(op, "signedness")?;
            Convert::IntToFloat { bits: int_of(from)?, signed, to: any_float(to)?, round }
        }
        ExtI => {
            let (source, target) = (int_of(from)?, int_of(to)?);
            if target <= source {
                return Err(format!("extension from {source} to {target} bits").into());
            }
            Convert::Resize { from: source, to: target, signed: signedness(op, "signedness")? }
        }
        TruncI => {
            let (source, target) = (int_of(from)?, int_of(to)?);
            if target >= source {
                return Err(format!("truncation from {source} to {target} bits").into());
            }
            Convert::Resize { from: source, to: target, signed: false }
        }
        Offset => {
            let offsets = tile(operands, 1)?;
            same_shape(from, offsets)?;
            if from != to {
                return Err("pointers and result differ in type".into());
            }
            let size = in_memory(pointee(from)?)?.byte_width() as u64;
            return Ok(Op::Offset { bits: int_of(offsets)?, size });
        }
        Bitcast => {
            let numbers = from.elem.scalar().is_some() && to.elem.scalar().is_some();
            if !numbers || from.elem.bits() != to.elem.bits() {
                return Err(
                    format!("{:?} and {:?} differ in width, or are pointers", from.elem, to.elem).into()
                );
            }
            return Ok(Op::Same);
        }
        other => {
            let pointer = |ty: &TileTy| matches!(ty.elem, Elem::Pointer(_));
            let long = |ty: &TileTy| ty.elem == Elem::Scalar(ScalarType::I64);
            let fits = match other {
                IntToPtr => long(from) && pointer(to),
                PtrToInt => pointer(from) && long(to),
                _ => pointer(from) && pointer(to),
            };
            return if fits {
                Ok(Op::Same)
            } else {
                Err(format!("from {:?} to {:?}", from.elem, to.elem).into())
            };
        }
    };
    Ok(Op::Convert(conversion))
}

pub(super) fn multiply(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    use ScalarType::*;
    let scaled = op.opcode == Opcode::MmaFScaled;
    counts(operands, results, (if scaled { 5 } else { 3 }, 1))?;
    let (a, b, c) = (tile(operands, 0)?, tile(operands, 1)?, tile(operands, 2)?);
    if operands[2] != results[0] {
        return Err("accumulator and result differ in type".into());
    }
    let matrix = |ty: &TileTy| match ty.shape[..] {
        [rows, columns] => Ok([1, rows, columns]),
        [batches, rows, columns] => Ok([batches, rows, columns]),
        _ => Err(Fail::from(format!("a matrix of shape {:?}", ty.shape))),
    };
    let ([ba, m, k], [bb, kb, n], [bc, mc, nc]) = (matrix(a)?, matrix(b)?, matrix(c)?);
    let ranks = a.shape.len() == b.shape.len() && a.shape.len() == c.shape.len();
    if !ranks || ba != bb || ba != bc || k != kb || m != mc || n != nc {
        return Err(format!("shapes {:?}, {:?} and {:?} do not fit", a.shape, b.shape, c.shape).into());
    }
    let shape = MmaShape { m, n, k };
    let (Some(input), Some(acc)) = (a.elem.scalar().filter(|_| a.elem == b.elem), c.elem.scalar()) else {
        return Err("the left and right operands differ in element type, or are pointers".into());
    };
    let wrong = || Fail::from(format!("inputs of type {input:?} with an accumulator of type {acc:?}"));
    match op.opcode {
        Opcode::MmaI => {
            if input != I8 || acc != I32 {
                return Err(wrong());
            }
            let signed = (signedness(op, "signedness_lhs")?, signedness(op, "signedness_rhs")?);
            Ok(Op::MmaInt { shape, signed })
        }
        Opcode::MmaF => {
            let fits = match input {
                F4E2M1FN | F8E4M3FN | F8E5M2 | F16 => matches!(acc, F16 | F32),
                BF16 | TF32 | F32 => acc == F32,
                F64 => acc == F64,
                _ => false,
            };
            if fits { Ok(Op::MmaFloat { shape, input, acc }) } else { Err(wrong()) }
        }
        _ => {
            let (left, right) = (tile(operands, 3)?, tile(operands, 4)?);
            let ([lb, lm, lk], [rb, rk, rn]) = (matrix(left)?, matrix(right)?);
            let scale = left.elem.scalar().filter(|_| left.elem == right.elem);
            if (lb, lm, rb, rn, lk) != (ba, m, ba, n, rk) || k % lk != 0 || left.shape.len() != a.shape.len()
            {
                return Err(format!("scales of shapes {:?} and {:?}", left.shape, right.shape).into());
            }
            let group = k / lk;
            let fits = match (input, scale) {
                (F4E2M1FN, Some(F8E4M3FN)) => group == 16,
                (F4E2M1FN, Some(F8E8M0FNU | F8E5M3FNU)) => matches!(group, 16 | 32),
                (F8E4M3FN | F8E5M2, Some(F8E8M0FNU)) => group == 32,
                _ => false,
            };
            match scale {
                Some(scale) if fits && acc == F32 => Ok(Op::MmaScaled { shape, input, scale, scales: lk }),
                _ => Err(format!(
                    "inputs of type {input:?}, scales {scale:?} for {group}, accumulator {acc:?}"
                )
                .into()),
            }
        }
    }
}
