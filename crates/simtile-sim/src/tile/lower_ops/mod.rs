//! Checks and decodes the operations without regions: operand counts, types, shapes and attributes of each opcode.
//!
//! By kind: [`arithmetic`] (numbers and conversions), [`shapes`], [`memory`] (views, pointers, multicast), [`checks`]
//! (assertions, promises, printing), [`calls`] (functions of libraries). Here are what they share, and the dispatch.

mod arithmetic;
mod calls;
mod checks;
mod memory;
mod shapes;

use super::attrs::{find, flag, need, text};
use super::lower::{Fail, Lower};
use super::op::{Code, Op};
use super::types::{Elem, TileTy, Ty, bits};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{Attribute, Operation, ScalarType};
use std::rc::Rc;

type Types = [Rc<Ty>];

fn tile(types: &Types, i: usize) -> Result<&TileTy, Fail> {
    match types.get(i).map(|ty| &**ty) {
        Some(Ty::Tile(tile)) => Ok(tile),
        Some(other) => Err(format!("operand or result {i} is {other:?}, not a tile").into()),
        None => Err(format!("operand or result {i} is missing").into()),
    }
}

fn counts(operands: &Types, results: &Types, expected: (usize, usize)) -> Result<(), Fail> {
    if (operands.len(), results.len()) == expected {
        return Ok(());
    }
    let (o, r) = expected;
    Err(format!("{} operands and {} results; expected {o} and {r}", operands.len(), results.len()).into())
}

/// Operands and result of one tile type.
fn alike<'a>(operands: &'a Types, results: &Types, count: usize) -> Result<&'a TileTy, Fail> {
    counts(operands, results, (count, 1))?;
    if operands.iter().any(|ty| *ty != results[0]) {
        return Err("operands and result differ in type".into());
    }
    tile(operands, 0)
}

/// Element type of arithmetic on floats: `f16`, `bf16`, `f32`, `f64`.
fn float_of(ty: &TileTy) -> Result<ScalarType, Fail> {
    match ty.elem.scalar() {
        Some(s @ (ScalarType::F16 | ScalarType::BF16 | ScalarType::F32 | ScalarType::F64)) => Ok(s),
        _ => Err(format!("arithmetic on {:?}; it is defined on f16, bf16, f32 and f64", ty.elem).into()),
    }
}

/// Any float format.
fn any_float(ty: &TileTy) -> Result<ScalarType, Fail> {
    ty.elem.scalar().filter(|s| s.is_float()).ok_or_else(|| format!("{:?} is not a float", ty.elem).into())
}

fn int_of(ty: &TileTy) -> Result<u32, Fail> {
    ty.elem.int().map(bits).ok_or_else(|| format!("{:?} is not an integer", ty.elem).into())
}

fn pointee(ty: &TileTy) -> Result<ScalarType, Fail> {
    match ty.elem {
        Elem::Pointer(s) => Ok(s),
        Elem::Scalar(s) => Err(format!("{s:?} is not a pointer").into()),
    }
}

/// Elements that lie in memory at addresses of their own.
fn in_memory(scalar: ScalarType) -> Result<ScalarType, Fail> {
    if bits(scalar) == 4 {
        return Err(Fail::unsupported(format!(
            "a pointer to {scalar:?} names a byte, which holds two of them; use a view, or pack and unpack"
        )));
    }
    Ok(scalar)
}

fn same_shape(a: &TileTy, b: &TileTy) -> Result<(), Fail> {
    if a.shape == b.shape {
        Ok(())
    } else {
        Err(format!("shapes {:?} and {:?} differ", a.shape, b.shape).into())
    }
}

/// `flush_to_zero`, which is for `f32` alone.
fn ftz(op: &Operation, scalar: ScalarType) -> Result<bool, Fail> {
    match flag(op, "flush_to_zero") {
        true if scalar != ScalarType::F32 => Err(format!("flush_to_zero on {scalar:?}").into()),
        ftz => Ok(ftz),
    }
}

fn token(results: &Types, i: usize) -> Result<(), Fail> {
    if results.get(i).is_some_and(|ty| **ty == Ty::Token) {
        Ok(())
    } else {
        Err(format!("result {i} is not a token").into())
    }
}

/// An optional mask of the shape of another tile.
fn mask(operands: &Types, range: &std::ops::Range<usize>, of: &TileTy) -> Result<bool, Fail> {
    match range.len() {
        0 => Ok(false),
        1 => {
            let mask = tile(operands, range.start)?;
            same_shape(mask, of)?;
            if mask.elem != Elem::Scalar(ScalarType::I1) {
                return Err("the mask is not i1".into());
            }
            Ok(true)
        }
        n => Err(format!("{n} masks").into()),
    }
}

/// An optional token operand.
fn maybe_token(operands: &Types, range: &std::ops::Range<usize>) -> Result<(), Fail> {
    if range.len() > 1 || operands[range.clone()].iter().any(|ty| **ty != Ty::Token) {
        return Err("the last operand is not one token".into());
    }
    Ok(())
}

/// Checks `reduce` and `scan`; gives the operand types.
pub(in crate::tile) fn reduction(
    op: &Operation,
    operands: &Types,
    results: &Types,
) -> Result<Vec<TileTy>, Fail> {
    let tiles = (0..operands.len()).map(|i| tile(operands, i).cloned()).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = tiles.first() else { return Err("no operands".into()) };
    let dim = need(op, "dim")?;
    let Some(dim) = usize::try_from(dim).ok().filter(|&d| d < first.shape.len()) else {
        return Err(format!("dimension {dim} of a tile of rank {}", first.shape.len()).into());
    };
    let Some(Attribute::Array(identities)) = find(op, "identities") else {
        return Err("attribute identities is missing or no array".into());
    };
    if identities.len() != tiles.len() || results.len() != tiles.len() {
        return Err(format!(
            "{} operands, {} identities, {} results",
            tiles.len(),
            identities.len(),
            results.len()
        )
        .into());
    }
    for (i, ty) in tiles.iter().enumerate() {
        same_shape(ty, first)?;
        let mut expected = ty.clone();
        if op.opcode == Opcode::Reduce {
            expected.shape.remove(dim);
        }
        if *tile(results, i)? != expected {
            return Err(format!("result {i} is {:?}; expected {expected:?}", results[i]).into());
        }
        let fits = match &identities[i] {
            Attribute::Float(_, _) => ty.elem.scalar().is_some_and(|s| s.is_float()),
            Attribute::Integer(..) | Attribute::Bool(_) => ty.elem.int().is_some(),
            _ => false,
        };
        if !fits {
            return Err(format!("identity {:?} for elements of type {:?}", identities[i], ty.elem).into());
        }
    }
    Ok(tiles)
}

/// Whether a body works on each lane alone, so that it can run on all lanes at once.
pub(in crate::tile) fn runs_on_lanes(body: &Code) -> bool {
    body.insts.iter().all(|inst| {
        matches!(
            inst.op,
            Op::Constant(_)
                | Op::FloatUnary { .. }
                | Op::FloatBinary { .. }
                | Op::Fma { .. }
                | Op::PowInt { .. }
                | Op::IntUnary { .. }
                | Op::IntBinary { .. }
                | Op::CompareFloat { .. }
                | Op::CompareInt { .. }
                | Op::Select
                | Op::Convert(_)
                | Op::Same
                | Op::Offset { .. }
                | Op::Yield
        )
    })
}

impl Lower<'_> {
    /// An operation without regions that does not end its block.
    pub(in crate::tile) fn plain(
        &mut self,
        op: &Operation,
        operands: &Types,
        results: &Types,
    ) -> Result<Op, Fail> {
        use Opcode::*;
        match op.opcode {
            AbsF | NegF | Ceil | Floor | Sqrt | Rsqrt | Exp | Exp2 | Log | Log2 | Sin | Cos | Tan | SinH
            | CosH | TanH | AddF | SubF | MulF | DivF | RemF | Pow | Atan2 | MaxF | MinF | Fma | FPowI
            | CmpF => arithmetic::floats(op, operands, results),
            AbsI | NegI | AddI | SubI | MulI | MulhiI | AndI | OrI | XOrI | ShLI | ShRI | MaxI | MinI
            | DivI | RemI | CmpI => arithmetic::ints(op, operands, results),
            FToF | FToI | IToF | ExtI | TruncI | Bitcast | IntToPtr | PtrToInt | PtrToPtr | Offset => {
                arithmetic::conversions(op, operands, results)
            }
            Constant | Iota | Select | Reshape | Broadcast | Permute | Cat | Extract | Insert | Pack
            | Unpack => shapes::shapes(op, operands, results),
            MmaF | MmaI | MmaFScaled => arithmetic::multiply(op, operands, results),
            Assume | Assert | Print => checks::checks(op, operands, results),
            GetTileBlockId | GetNumTileBlocks => {
                counts(operands, results, (0, 3))?;
                for i in 0..3 {
                    let ty = tile(results, i)?;
                    if !ty.shape.is_empty() || ty.elem != Elem::Scalar(ScalarType::I32) {
                        return Err(format!("result {i} is not a scalar i32").into());
                    }
                }
                Ok(if op.opcode == GetTileBlockId { Op::BlockId } else { Op::NumBlocks })
            }
            MakeToken | JoinTokens | GdcLaunchDependentsTko | GdcWaitTko | MemoryFenceAliasTko => {
                let most = match op.opcode {
                    MakeToken => 0,
                    JoinTokens => usize::MAX,
                    _ => 1,
                };
                if operands.len() > most || results.len() != 1 || operands.iter().any(|ty| **ty != Ty::Token)
                {
                    return Err("operands and result are not tokens, or too many".into());
                }
                token(results, 0)?;
                Ok(Op::Token)
            }
            GetGlobal => {
                counts(operands, results, (0, 1))?;
                let name = text(op, "name")?;
                let Some(&(index, elem)) = self.globals.get(name) else {
                    return Err(format!("there is no global {name}").into());
                };
                let ty = tile(results, 0)?;
                if !ty.shape.is_empty() || Some(pointee(ty)?) != elem.scalar() {
                    return Err(format!("the result is {ty:?}, not a pointer to {elem:?}").into());
                }
                Ok(Op::Global(index))
            }
            Alloca => memory::alloca(op, operands, results),
            MakeTensorView
            | MakePartitionView
            | MakeStridedView
            | MakeGatherScatterView
            | GetTensorShape
            | GetIndexSpaceShape => memory::views(op, operands, results),
            LoadViewTko | StoreViewTko | AtomicRedViewTko => self.view_access(op, operands, results),
            LoadPtrTko | StorePtrTko | AtomicRMW | AtomicCAS => self.pointer_access(op, operands, results),
            MultimemLoadReduceViewTko | MultimemReduceViewTko | MultimemStoreViewTko => {
                self.multimem_access(op, operands, results)
            }
            PreviewCall => self.call(op, operands, results),
            Entry | Global | Module => Err("stands inside of an entry".into()),
            If | For | Loop | Reduce | Scan | Yield | Continue | Break | Return => {
                Err("stands where it cannot".into())
            }
        }
    }
}
