//! Checks and decodes the operations without regions: operand counts, types, shapes and attributes of each opcode.

use super::attrs::{self, find, flag, int, need, rounding, segments, signedness, text};
use super::elementwise::{Compare, Convert, FloatBinary, FloatUnary, IntBinary, IntUnary};
use super::float::Round;
use super::lower::{Fail, Lower, int_scalar};
use super::op::{Code, MmaShape, Op, Predicate, ViewAccess};
use super::print;
use super::types::{Cut, Elem, TensorTy, TileTy, Ty, ViewTy, bits};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{Attribute, Operation, ScalarType};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

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
            "memory access to 4-bit elements ({scalar:?}); use pack and unpack"
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
pub(super) fn reduction(op: &Operation, operands: &Types, results: &Types) -> Result<Vec<TileTy>, Fail> {
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
pub(super) fn runs_on_lanes(body: &Code) -> bool {
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
    fn window(&mut self) -> u32 {
        self.window_sites.push(self.sites.len().saturating_sub(1) as u32);
        self.windows += 1;
        self.windows - 1
    }

    /// An operation without regions that does not end its block.
    pub(super) fn plain(&mut self, op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
        use Opcode::*;
        match op.opcode {
            AbsF | NegF | Ceil | Floor | Sqrt | Rsqrt | Exp | Exp2 | Log | Log2 | Sin | Cos | Tan | SinH
            | CosH | TanH | AddF | SubF | MulF | DivF | RemF | Pow | Atan2 | MaxF | MinF | Fma | FPowI
            | CmpF => floats(op, operands, results),
            AbsI | NegI | AddI | SubI | MulI | MulhiI | AndI | OrI | XOrI | ShLI | ShRI | MaxI | MinI
            | DivI | RemI | CmpI => ints(op, operands, results),
            FToF | FToI | IToF | ExtI | TruncI | Bitcast | IntToPtr | PtrToInt | PtrToPtr | Offset => {
                conversions(op, operands, results)
            }
            Constant | Iota | Select | Reshape | Broadcast | Permute | Cat | Extract | Insert | Pack
            | Unpack => shapes(op, operands, results),
            MmaF | MmaI | MmaFScaled => multiply(op, operands, results),
            Assume | Assert | Print => checks(op, operands, results),
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
            Alloca => {
                counts(operands, results, (0, 1))?;
                let ty = tile(results, 0)?;
                let size = in_memory(pointee(ty)?)?.byte_width() as i64;
                let (count, align) = (need(op, "num_elem")?, need(op, "alignment")?);
                let bytes = count.checked_mul(size).filter(|&b| b >= 0).and_then(|b| u64::try_from(b).ok());
                match (bytes, u64::try_from(align)) {
                    (Some(bytes), Ok(align))
                        if align.is_power_of_two() && align >= size as u64 && ty.shape.is_empty() =>
                    {
                        Ok(Op::Alloca { bytes, align })
                    }
                    _ => {
                        Err(format!("{count} elements of {size} bytes at alignment {align}, as {ty:?}")
                            .into())
                    }
                }
            }
            MakeTensorView
            | MakePartitionView
            | MakeStridedView
            | MakeGatherScatterView
            | GetTensorShape
            | GetIndexSpaceShape => views(op, operands, results),
            LoadViewTko | StoreViewTko | AtomicRedViewTko => self.view_access(op, operands, results),
            LoadPtrTko | StorePtrTko | AtomicRMW | AtomicCAS => self.pointer_access(op, operands, results),
            MultimemLoadReduceViewTko | MultimemReduceViewTko | MultimemStoreViewTko => {
                Err(Fail::unsupported("multicast memory (needs sm_100 or newer)"))
            }
            PreviewCall => Err(Fail::unsupported("calls of functions from tile libraries")),
            Entry | Global | Module => Err("stands inside of an entry".into()),
            If | For | Loop | Reduce | Scan | Yield | Continue | Break | Return => {
                Err("stands where it cannot".into())
            }
        }
    }

    fn view_access(&mut self, op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
        let (load, store) = (op.opcode == Opcode::LoadViewTko, op.opcode == Opcode::StoreViewTko);
        let groups = segments(op, if load { 3 } else { 4 })?;
        // Positions of the view, the indices, the tile and the token among the groups.
        let (view_at, index_at, value_at, token_at) = match op.opcode {
            Opcode::LoadViewTko => (0, 1, None, 2),
            Opcode::StoreViewTko => (1, 2, Some(0), 3),
            _ => (0, 1, Some(2), 3),
        };
        let single = |group: usize| match groups[group].len() {
            1 => Ok(groups[group].start),
            n => Err(Fail::from(format!("operand group {group} has {n} operands"))),
        };
        let view = match &*operands[single(view_at)?] {
            Ty::View(view) => view.clone(),
            other => return Err(format!("{other:?} is not a partition, strided or gather view").into()),
        };
        let scalar = in_memory(view.tensor.elem)?;
        maybe_token(operands, &groups[token_at])?;
        let value = match value_at {
            Some(group) => {
                token(results, 0)?;
                tile(operands, single(group)?)?
            }
            None => {
                token(results, 1)?;
                tile(results, 0)?
            }
        };
        if results.len() != if load { 2 } else { 1 } {
            return Err(format!("{} results", results.len()).into());
        }
        if value.shape != view.tile || value.elem != Elem::Scalar(scalar) {
            return Err(
                format!("the tile is {value:?}, the view has tiles {:?} of {scalar:?}", view.tile).into()
            );
        }
        let rank = view.tile.len();
        if groups[index_at].len() != rank {
            return Err(format!("{} indices for a view of rank {rank}", groups[index_at].len()).into());
        }
        let mut index_bits = Vec::with_capacity(rank);
        for (d, i) in groups[index_at].clone().enumerate() {
            let ty = tile(operands, i)?;
            let bits = int_of(ty)?;
            let expected: &[usize] = if view.cut == Cut::Gather(d) { &view.tile[d..=d] } else { &[] };
            if ty.shape[..] != *expected {
                return Err(format!("index {d} has shape {:?}; expected {expected:?}", ty.shape).into());
            }
            index_bits.push(bits);
        }
        if flag(op, "valid_check") {
            return Err(Fail::unsupported("valid_check (needs sm_107)"));
        }
        let order = match op.opcode {
            Opcode::LoadViewTko => attrs::order(op, &[0, 1, 2], false)?,
            Opcode::StoreViewTko => attrs::order(op, &[0, 1, 3], false)?,
            _ => attrs::order(op, &[1], true)?,
        };
        let inbounds = attrs::inbounds(op, rank)?;
        if load || store {
            let access = ViewAccess { view, order, window: self.window(), inbounds };
            return Ok(if load {
                Op::LoadView { access, index_bits }
            } else {
                Op::StoreView { access, index_bits }
            });
        }
        if matches!(view.cut, Cut::Gather(_)) || view.padding.is_some() {
            return Err("an atomic reduction needs a partition or strided view without padding".into());
        }
        let mode = attrs::atomic_mode(op, scalar)?;
        if mode == super::op::AtomicMode::Exchange {
            return Err("an atomic reduction cannot exchange".into());
        }
        let access = ViewAccess { view, order, window: self.window(), inbounds };
        Ok(Op::AtomicView { access, index_bits, mode })
    }

    fn pointer_access(&mut self, op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
        use Opcode::*;
        let groups = segments(op, if op.opcode == AtomicCAS { 5 } else { 4 })?;
        // How many leading groups are required.
        let needed = match op.opcode {
            LoadPtrTko => 1,
            AtomicCAS => 3,
            _ => 2,
        };
        if groups[..needed].iter().any(|g| g.len() != 1) {
            return Err("a required operand is missing".into());
        }
        let pointers = tile(operands, 0)?;
        let scalar = in_memory(pointee(pointers)?)?;
        let value = TileTy { shape: pointers.shape.clone(), elem: Elem::Scalar(scalar) };
        for i in 1..needed {
            if *tile(operands, i)? != value {
                return Err(format!("operand {i} is {:?}; expected {value:?}", operands[i]).into());
            }
        }
        let tokens = groups.last().cloned().unwrap_or(0..0);
        maybe_token(operands, &tokens)?;
        let window = self.window();
        match op.opcode {
            LoadPtrTko => {
                let masked = mask(operands, &groups[1], pointers)?;
                let padding = match groups[2].len() {
                    0 => false,
                    1 if masked && *tile(operands, groups[2].start)? == value => true,
                    _ => return Err(format!("padding must be one {value:?}, beside a mask").into()),
                };
                if results.len() != 2 || *tile(results, 0)? != value {
                    return Err(format!("the result is not {value:?}").into());
                }
                token(results, 1)?;
                let order = attrs::order(op, &[0, 1, 2], false)?;
                Ok(Op::LoadPtr { elem: scalar, order, window, mask: masked, padding })
            }
            StorePtrTko => {
                let masked = mask(operands, &groups[2], pointers)?;
                counts(&operands[..0], results, (0, 1))?;
                token(results, 0)?;
                let order = attrs::order(op, &[0, 1, 3], false)?;
                Ok(Op::StorePtr { elem: scalar, order, window, mask: masked })
            }
            _ => {
                let masked = mask(operands, &groups[needed], pointers)?;
                if results.len() != 2 || *tile(results, 0)? != value {
                    return Err(format!("the result is not {value:?}").into());
                }
                token(results, 1)?;
                let order = attrs::order(op, &[1, 2, 3, 4], true)?;
                if op.opcode == AtomicRMW {
                    let mode = attrs::atomic_mode(op, scalar)?;
                    return Ok(Op::AtomicRmw { elem: scalar, order, window, mode, mask: masked });
                }
                if !matches!(scalar, ScalarType::I32 | ScalarType::I64 | ScalarType::F32 | ScalarType::F64) {
                    return Err(
                        format!("compare-and-swap on {scalar:?}; it needs i32, i64, f32 or f64").into()
                    );
                }
                Ok(Op::AtomicCas { elem: scalar, order, window, mask: masked })
            }
        }
    }
}

fn floats(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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

fn ints(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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

fn conversions(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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

fn shapes(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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
            if to.shape.len() != 1 || (bits < 64 && count as u64 - 1 > super::elementwise::mask(bits)) {
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

fn multiply(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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

fn checks(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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

fn views(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    use Opcode::*;
    match op.opcode {
        MakeTensorView => {
            let groups = segments(op, 3)?;
            let Some(Ty::Tensor(ty)) = results.first().map(|ty| &**ty).filter(|_| results.len() == 1) else {
                return Err("the result is not a tensor view".into());
            };
            let base = tile(operands, 0)?;
            if groups[0].len() != 1 || !base.shape.is_empty() || pointee(base)? != ty.elem {
                return Err(format!("the base is {base:?}; expected one pointer to {:?}", ty.elem).into());
            }
            let dynamic = |dims: &[Option<i64>]| dims.iter().filter(|d| d.is_none()).count();
            if groups[1].len() != dynamic(&ty.shape) || groups[2].len() != dynamic(&ty.strides) {
                return Err(format!(
                    "{} extents and {} strides for {ty:?}",
                    groups[1].len(),
                    groups[2].len()
                )
                .into());
            }
            let widths = |range: &std::ops::Range<usize>| {
                range.clone().map(|i| int_scalar(operands, i)).collect::<Result<Vec<u32>, Fail>>()
            };
            Ok(Op::MakeTensor {
                shape: ty.shape.to_vec(),
                strides: ty.strides.to_vec(),
                bits: (widths(&groups[1])?, widths(&groups[2])?),
            })
        }
        GetTensorShape => {
            let Some(Ty::Tensor(ty)) = operands.first().map(|ty| &**ty).filter(|_| operands.len() == 1)
            else {
                return Err("the operand is not a tensor view".into());
            };
            Ok(Op::TensorShape { elems: extents(results, ty.shape.len())? })
        }
        GetIndexSpaceShape => {
            let view = view_of(operands)?;
            Ok(Op::IndexSpace { view: view.clone(), elems: extents(results, view.tile.len())? })
        }
        made => {
            let view = view_of(results)?;
            let fits = match view.cut {
                Cut::Partition(_) => made == MakePartitionView,
                Cut::Strided(..) => made == MakeStridedView,
                Cut::Gather(_) => made == MakeGatherScatterView,
            };
            let source: Option<&TensorTy> = match operands {
                [ty] => match &**ty {
                    Ty::Tensor(ty) => Some(ty),
                    _ => None,
                },
                _ => None,
            };
            if !fits || source != Some(&view.tensor) {
                return Err(format!("{view:?} of {source:?}").into());
            }
            Ok(Op::Same)
        }
    }
}

fn view_of(types: &Types) -> Result<&ViewTy, Fail> {
    match types {
        [ty] => match &**ty {
            Ty::View(view) => Ok(view),
            other => Err(format!("{other:?} is not a view").into()),
        },
        _ => Err("not one view".into()),
    }
}

/// Results that hold `rank` extents.
fn extents(results: &Types, rank: usize) -> Result<Vec<Elem>, Fail> {
    if results.len() != rank {
        return Err(format!("{} results for rank {rank}", results.len()).into());
    }
    (0..rank).map(|i| int_scalar(results, i).and_then(|_| Ok(tile(results, i)?.elem))).collect()
}
