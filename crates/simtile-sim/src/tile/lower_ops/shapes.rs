//! Constants, and operations that put elements elsewhere.

use super::super::attrs::{self, find, need};
use super::super::elementwise::mask;
use super::super::lower::{Fail, int_scalar};
use super::super::op::Op;
use super::super::types::Elem;
use super::{Types, counts, int_of, same_shape, tile};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{Attribute, Operation, ScalarType};
use std::sync::Arc;

pub(super) fn shapes(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    use Opcode::*;
    if results.len() != 1 {
        return Err(format!("{} results; expected 1", results.len()).into());
    }
    let to = tile(results, 0)?;
    match op.opcode {
        Constant => {
            counts(operands, results, (0, 1))?;
            match find(op, "value") {
                Some(Attribute::DenseElements(value)) => Ok(Op::Constant(Arc::new(attrs::dense(value, to)?))),
                _ => Err("attribute value is missing or no constant".into()),
            }
        }
        Iota => {
            counts(operands, results, (0, 1))?;
            let (bits, count) = (int_of(to)?, to.count());
            if to.shape.len() != 1 || (bits < 64 && count as u64 - 1 > mask(bits)) {
                return Err(format!("{to:?} does not hold 0 to {}", count - 1).into());
            }
            Ok(Op::Iota { elem: to.elem, count })
        }
        Select => {
            counts(operands, results, (3, 1))?;
            let condition = tile(operands, 0)?;
            same_shape(condition, to)?;
            if condition.elem != Elem::Scalar(ScalarType::I1)
                || operands[1] != results[0]
                || operands[2] != results[0]
            {
                return Err("the condition is not i1, or values and result differ in type".into());
            }
            Ok(Op::Select)
        }
        Reshape => {
            counts(operands, results, (1, 1))?;
            let from = tile(operands, 0)?;
            if from.elem != to.elem || from.count() != to.count() {
                return Err(format!("{from:?} to {to:?}").into());
            }
            Ok(Op::Same)
        }
        Broadcast => {
            counts(operands, results, (1, 1))?;
            let from = tile(operands, 0)?;
            let fits = from.shape.len() == to.shape.len()
                && from.shape.iter().zip(&to.shape).all(|(&a, &b)| a == b || a == 1);
            if from.elem != to.elem || !fits {
                return Err(format!("{from:?} to {to:?}").into());
            }
            Ok(Op::Broadcast { from: from.shape.clone(), to: to.shape.clone() })
        }
        Permute => {
            counts(operands, results, (1, 1))?;
            let from = tile(operands, 0)?;
            let permutation: Vec<usize> = match find(op, "permutation") {
                Some(Attribute::DenseI32Array(p)) => p.iter().map(|&d| d as usize).collect(),
                Some(Attribute::Array(p)) => p
                    .iter()
                    .map(|d| if let Attribute::Integer(d, _) = d { *d as usize } else { usize::MAX })
                    .collect(),
                _ => return Err("attribute permutation is missing or no list".into()),
            };
            let mut sorted = permutation.clone();
            sorted.sort_unstable();
            let fits = sorted.iter().copied().eq(0..from.shape.len())
                && from.elem == to.elem
                && to.shape.len() == from.shape.len()
                && permutation.iter().zip(&to.shape).all(|(&d, &extent)| from.shape[d] == extent);
            if !fits {
                return Err(format!("{from:?} to {to:?} by {permutation:?}").into());
            }
            Ok(Op::Permute { from: from.shape.clone(), permutation })
        }
        Cat => {
            counts(operands, results, (2, 1))?;
            let (left, right) = (tile(operands, 0)?, tile(operands, 1)?);
            let dim = usize::try_from(need(op, "dim")?).unwrap_or(usize::MAX);
            let rank = left.shape.len();
            let fits = dim < rank
                && right.shape.len() == rank
                && to.shape.len() == rank
                && left.elem == to.elem
                && right.elem == to.elem
                && (0..rank).all(|d| {
                    if d == dim {
                        left.shape[d] + right.shape[d] == to.shape[d]
                    } else {
                        left.shape[d] == to.shape[d] && right.shape[d] == to.shape[d]
                    }
                });
            if !fits {
                return Err(format!("{left:?} and {right:?} along dimension {dim} to {to:?}").into());
            }
            Ok(Op::Cat { left: left.shape.clone(), right: right.shape.clone(), dim })
        }
        Extract | Insert => {
            let (small, large, first) = if op.opcode == Insert {
                if operands.get(1) != Some(&results[0]) {
                    return Err("destination and result differ in type".into());
                }
                (tile(operands, 0)?, to, 2)
            } else {
                (to, tile(operands, 0)?, 1)
            };
            let fits = small.elem == large.elem
                && small.shape.len() == large.shape.len()
                && small.shape.iter().zip(&large.shape).all(|(&s, &l)| l % s == 0)
                && operands.len() == first + small.shape.len();
            if !fits {
                return Err(format!(
                    "{small:?} in {large:?} with {} indices",
                    operands.len().saturating_sub(first)
                )
                .into());
            }
            for i in first..operands.len() {
                if int_scalar(operands, i)? != 32 {
                    return Err("an index is not i32".into());
                }
            }
            let (large, small) = (large.shape.clone(), small.shape.clone());
            Ok(if op.opcode == Insert { Op::Insert { large, small } } else { Op::Extract { large, small } })
        }
        _ => {
            counts(operands, results, (1, 1))?;
            let from = tile(operands, 0)?;
            let (source, target) = (from.elem.bits() as usize, to.elem.bits() as usize);
            let numbers = from.elem.scalar().is_some() && to.elem.scalar().is_some();
            // One side is bytes.
            let bytes = if op.opcode == Pack { to.elem } else { from.elem };
            let fits = numbers
                && bytes == Elem::Scalar(ScalarType::I8)
                && from.shape.len() == 1
                && to.shape.len() == 1
                && source != target
                && from.count() * source == to.count() * target
                && (from.count() * source).is_multiple_of(8);
            if !fits {
                return Err(format!("{from:?} to {to:?}").into());
            }
            Ok(Op::Repack { from: from.elem, to: to.elem })
        }
    }
}
