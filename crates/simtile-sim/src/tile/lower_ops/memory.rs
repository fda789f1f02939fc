//! Views, and accesses through views and pointers.

use super::super::attrs::{self, flag, int, need, segments};
use super::super::lower::{Fail, Lower, int_scalar};
use super::super::op::{AtomicMode, MultimemKind, Op, Order, ViewAccess};
use super::super::types::{Cut, Elem, TensorTy, TileTy, Ty, ViewTy, bits};
use super::{Types, counts, in_memory, int_of, mask, maybe_token, pointee, tile, token};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{Operation, PointerAttribute, ScalarType};
use std::ops::Range;

impl Lower<'_> {
    pub(super) fn window(&mut self) -> u32 {
        self.window_sites.push(self.sites.len().saturating_sub(1) as u32);
        self.windows += 1;
        self.windows - 1
    }

    /// Whether an operand is of the class of multicast memory.
    fn is_multicast(&self, op: &Operation, operand: usize) -> bool {
        op.operands.get(operand).is_some_and(|value| {
            self.module.value_type(*value).pointer_attribute() == Some(PointerAttribute::Multicast)
        })
    }

    /// Refuses multicast memory where only `multimem_*` may reach it.
    fn ordinary(&self, op: &Operation) -> Result<(), Fail> {
        match (0..op.operands.len()).find(|&i| self.is_multicast(op, i)) {
            Some(i) => {
                Err(format!("operand {i} is multicast memory, which only multimem operations reach").into())
            }
            None => Ok(()),
        }
    }

    /// `multimem_load_reduce_view_tko`, `multimem_reduce_view_tko`, `multimem_store_view_tko`.
    ///
    /// What their `reduction` numbers mean is not published, but that 0 is the sum: it is the default, and the only one
    /// that every element type has. The others are refused.
    pub(super) fn multimem_access(
        &mut self,
        op: &Operation,
        operands: &Types,
        results: &Types,
    ) -> Result<Op, Fail> {
        let kind = match op.opcode {
            Opcode::MultimemLoadReduceViewTko => MultimemKind::LoadReduce,
            Opcode::MultimemReduceViewTko => MultimemKind::Reduce,
            _ => MultimemKind::Store,
        };
        let load = kind == MultimemKind::LoadReduce;
        let groups = segments(op, if load { 3 } else { 4 })?;
        let (index_at, token_at) = if load { (1, 2) } else { (2, 3) };
        if groups[..index_at].iter().any(|group| group.len() != 1) {
            return Err("the view or the tile is missing".into());
        }
        let view = match &*operands[0] {
            Ty::View(view) if matches!(view.cut, Cut::Partition(_)) => view.clone(),
            other => return Err(format!("{other:?} is not a partition view").into()),
        };
        if !self.is_multicast(op, 0) {
            return Err("the view is not of multicast memory".into());
        }
        use ScalarType::{BF16, F16, F32, F64, I32, I64};
        let scalar = view.tensor.elem;
        if !matches!(scalar, I32 | I64 | F16 | BF16 | F32 | F64) {
            return Err(format!("multicast elements of type {scalar:?}").into());
        }
        maybe_token(operands, &groups[token_at])?;
        token(results, usize::from(load))?;
        if results.len() != 1 + usize::from(load) {
            return Err(format!("{} results", results.len()).into());
        }
        let value = if load { tile(results, 0)? } else { tile(operands, 1)? };
        if value.shape != view.tile || value.elem != Elem::Scalar(scalar) {
            return Err(
                format!("the tile is {value:?}, the view has tiles {:?} of {scalar:?}", view.tile).into()
            );
        }
        let index_bits = indices(&view, operands, groups[index_at].clone())?;
        let reduction = if kind == MultimemKind::Store { 0 } else { int(op, "reduction")?.unwrap_or(0) };
        if reduction != 0 {
            return Err(Fail::unsupported(format!(
                "reduction {reduction}, whose meaning is not published (0, the sum, is built)"
            )));
        }
        let order = match kind {
            MultimemKind::LoadReduce => attrs::order(op, &[0, 1, 2], false)?,
            MultimemKind::Store => attrs::order(op, &[0, 1, 3], false)?,
            MultimemKind::Reduce => attrs::order(op, &[1, 3], true)?,
        };
        if order == Order::Weak && int(op, "memory_scope")?.is_some() {
            return Err("a weak access with a scope".into());
        }
        let inbounds = attrs::inbounds(op, view.tile.len())?;
        let access = ViewAccess { view, order, window: self.window(), inbounds };
        Ok(Op::Multimem { kind, access, index_bits })
    }

    pub(super) fn view_access(
        &mut self,
        op: &Operation,
        operands: &Types,
        results: &Types,
    ) -> Result<Op, Fail> {
        self.ordinary(op)?;
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
        let scalar = view.tensor.elem;
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
        let index_bits = indices(&view, operands, groups[index_at].clone())?;
        let rank = view.tile.len();
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
        if mode == AtomicMode::Exchange {
            return Err("an atomic reduction cannot exchange".into());
        }
        let access = ViewAccess { view, order, window: self.window(), inbounds };
        Ok(Op::AtomicView { access, index_bits, mode })
    }

    pub(super) fn pointer_access(
        &mut self,
        op: &Operation,
        operands: &Types,
        results: &Types,
    ) -> Result<Op, Fail> {
        use Opcode::*;
        self.ordinary(op)?;
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

/// Checks the indices of an access to a view; gives their bits.
fn indices(view: &ViewTy, operands: &Types, range: Range<usize>) -> Result<Vec<u32>, Fail> {
    let rank = view.tile.len();
    if range.len() != rank {
        return Err(format!("{} indices for a view of rank {rank}", range.len()).into());
    }
    let mut index_bits = Vec::with_capacity(rank);
    for (d, i) in range.enumerate() {
        let ty = tile(operands, i)?;
        let bits = int_of(ty)?;
        let expected: &[usize] = if view.cut == Cut::Gather(d) { &view.tile[d..=d] } else { &[] };
        if ty.shape[..] != *expected {
            return Err(format!("index {d} has shape {:?}; expected {expected:?}", ty.shape).into());
        }
        index_bits.push(bits);
    }
    Ok(index_bits)
}

pub(super) fn alloca(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
    counts(operands, results, (0, 1))?;
    let ty = tile(results, 0)?;
    let scalar = pointee(ty)?;
    let (count, align) = (need(op, "num_elem")?, need(op, "alignment")?);
    // Elements of 4 bits lie two in a byte.
    let each = if scalar == ScalarType::I1 { 8 } else { bits(scalar) };
    let bytes = u64::try_from(count).ok().and_then(|n| Some(n.checked_mul(each.into())?.div_ceil(8)));
    match (bytes, u64::try_from(align)) {
        (Some(bytes), Ok(align))
            if align.is_power_of_two() && align >= scalar.byte_width() as u64 && ty.shape.is_empty() =>
        {
            Ok(Op::Alloca { bytes, align })
        }
        _ => Err(format!("{count} elements of {each} bits at alignment {align}, as {ty:?}").into()),
    }
}

pub(super) fn views(op: &Operation, operands: &Types, results: &Types) -> Result<Op, Fail> {
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
