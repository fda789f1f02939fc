//! Assertions, promises and printing.

use super::super::attrs::{find, text};
use super::super::lower::Fail;
use super::super::op::{Op, Predicate};
use super::super::print;
use super::super::types::{Elem, Ty};
use super::{Types, counts, tile, token};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{Attribute, Operation, ScalarType};
use smallvec::SmallVec;

pub(super) fn checks(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    match op.opcode {
        Opcode::Assert => {
            counts(operands, results, (1, 0))?;
            let ty = tile(operands, 0)?;
            if ty.elem != Elem::Scalar(ScalarType::I1) {
                return Err("the condition is not i1".into());
            }
            Ok(Op::Assert { message: text(op, "message")?.to_owned(), shape: ty.shape.clone() })
        }
        Opcode::Print => {
            let tokens = operands.iter().filter(|ty| ***ty == Ty::Token).count();
            let args = &operands[..operands.len() - tokens];
            if tokens > 1 || args.iter().any(|ty| **ty == Ty::Token) || results.len() > 1 {
                return Err("more than one token, or it is not the last operand".into());
            }
            if !results.is_empty() {
                token(results, 0)?;
            }
            let pieces = print::parse(text(op, "str")?);
            let values = pieces.iter().filter(|p| matches!(p, print::Piece::Value(_))).count();
            if values != args.len() {
                return Err(format!("{values} conversions for {} operands", args.len()).into());
            }
            let args = (0..args.len()).map(|i| tile(args, i).cloned()).collect::<Result<_, _>>()?;
            Ok(Op::Print { pieces, args })
        }
        _ => assume(op, operands, results),
    }
}

fn assume(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    counts(operands, results, (1, 1))?;
    if operands[0] != results[0] {
        return Err("operand and result differ in type".into());
    }
    let ty = match &*operands[0] {
        Ty::Tile(ty) => Some(ty.clone()),
        _ => None,
    };
    let whole = ty.as_ref().is_some_and(|ty| ty.elem.int().is_some() || matches!(ty.elem, Elem::Pointer(_)));
    let (predicate, text) = match find(op, "predicate") {
        Some(Attribute::DivBy(p)) => {
            if !p.divisor.is_power_of_two() || p.every.is_some() != p.along.is_some() {
                return Err(format!("div_by {}, every {:?} along {:?}", p.divisor, p.every, p.along).into());
            }
            match (&*operands[0], p.every.zip(p.along)) {
                (Ty::Tensor(_), None) => (Predicate::BaseDivBy(p.divisor), format!("div_by<{}>", p.divisor)),
                (Ty::Tile(ty), None) if whole => {
                    let step = ty.elem.bytes() as u64;
                    let predicate = Predicate::DivBy { divisor: p.divisor, every: 1, along: 0, step };
                    (predicate, format!("div_by<{}>", p.divisor))
                }
                (Ty::Tile(ty), Some((every, along))) if whole => {
                    let (every_u, along_u) = (usize::try_from(every), usize::try_from(along));
                    let (Ok(every_u), Ok(along_u)) = (every_u, along_u) else {
                        return Err(format!("every {every} along {along}").into());
                    };
                    if ty.shape.get(along_u).is_none_or(|&extent| every_u > extent) {
                        return Err(
                            format!("every {every} along {along} in a tile of shape {:?}", ty.shape).into()
                        );
                    }
                    let step = match ty.elem {
                        Elem::Pointer(s) => s.byte_width() as u64,
                        Elem::Scalar(_) => 1,
                    };
                    let predicate =
                        Predicate::DivBy { divisor: p.divisor, every: every_u, along: along_u, step };
                    (predicate, format!("div_by<{}, every {every} along {along}>", p.divisor))
                }
                _ => return Err(format!("div_by on {:?}", operands[0]).into()),
            }
        }
        Some(Attribute::SameElements(p)) => {
            let Some(ty) = ty.as_ref().filter(|_| whole) else {
                return Err(format!("same_elements on {:?}", operands[0]).into());
            };
            let chunk: SmallVec<[usize; 4]> =
                p.values.iter().map(|&v| usize::try_from(v).unwrap_or(usize::MAX)).collect();
            if chunk.len() != ty.shape.len() || chunk.iter().zip(&ty.shape).any(|(&c, &d)| c > d) {
                return Err(format!("same_elements {:?} of a tile of shape {:?}", p.values, ty.shape).into());
            }
            (Predicate::SameElements(chunk), format!("same_elements<{:?}>", p.values))
        }
        Some(Attribute::Bounded(p)) => {
            if ty.as_ref().and_then(|ty| ty.elem.int()).is_none() {
                return Err(format!("bounded on {:?}", operands[0]).into());
            }
            if let (Some(low), Some(high)) = (p.lb, p.ub)
                && low > high
            {
                return Err(format!("bounds {low} to {high}").into());
            }
            let show = |bound: Option<i64>| bound.map_or("?".into(), |b| b.to_string());
            (Predicate::Bounded(p.lb, p.ub), format!("bounded<{}, {}>", show(p.lb), show(p.ub)))
        }
        Some(other) => return Err(Fail::unsupported(format!("predicate {other:?}"))),
        None => return Err("attribute predicate is missing".into()),
    };
    Ok(Op::Assume { predicate, tile: ty, text })
}
