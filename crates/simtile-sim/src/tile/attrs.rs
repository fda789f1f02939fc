//! Reading attributes of operations: names, numbers, enums, constants.

use super::data::Data;
use super::float::Round;
use super::op::{AtomicMode, Order};
use super::types::{Elem, TileTy};
use cutile_ir::ir::{Attribute, DenseElements, Operation, ScalarType};
use std::ops::Range;

/// The attribute of a name.
pub(super) fn find<'a>(op: &'a Operation, name: &str) -> Option<&'a Attribute> {
    op.attributes.iter().find_map(|(n, a)| (n == name).then_some(a))
}

/// A number, or a flag as one.
pub(super) fn int(op: &Operation, name: &str) -> Result<Option<i64>, String> {
    match find(op, name) {
        None => Ok(None),
        Some(Attribute::Integer(v, _)) => Ok(Some(*v)),
        Some(Attribute::Bool(v)) => Ok(Some(i64::from(*v))),
        Some(other) => Err(format!("attribute {name} is {other:?}, not a number")),
    }
}

/// A number that must be there.
pub(super) fn need(op: &Operation, name: &str) -> Result<i64, String> {
    int(op, name)?.ok_or_else(|| format!("attribute {name} is missing"))
}

/// A flag: there and not false.
pub(super) fn flag(op: &Operation, name: &str) -> bool {
    !matches!(find(op, name), None | Some(Attribute::Bool(false) | Attribute::Integer(0, _)))
}

/// A text that must be there.
pub(super) fn text<'a>(op: &'a Operation, name: &str) -> Result<&'a str, String> {
    match find(op, name) {
        Some(Attribute::String(text)) => Ok(text),
        Some(other) => Err(format!("attribute {name} is {other:?}, not a text")),
        None => Err(format!("attribute {name} is missing")),
    }
}

/// `signed` or `unsigned`.
pub(super) fn signedness(op: &Operation, name: &str) -> Result<bool, String> {
    match need(op, name)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("attribute {name} is {other}; signedness is 0 or 1")),
    }
}

/// A rounding mode out of `allowed`; approximate ones count as to nearest.
pub(super) fn rounding(op: &Operation, name: &str, allowed: &[i64], default: i64) -> Result<Round, String> {
    let mode = int(op, name)?.unwrap_or(default);
    if !allowed.contains(&mode) {
        return Err(format!("attribute {name} is {mode}; allowed here: {allowed:?}"));
    }
    Ok(match mode {
        1 => Round::Zero,
        2 => Round::Down,
        3 => Round::Up,
        7 => Round::Away,
        _ => Round::Even,
    })
}

/// The memory order and scope of an access.
pub(super) fn order(op: &Operation, allowed: &[i64], needs_scope: bool) -> Result<Order, String> {
    let order = int(op, "memory_ordering_semantics")?.unwrap_or(0);
    if !allowed.contains(&order) {
        return Err(format!("memory order {order}; allowed here: {allowed:?}"));
    }
    match int(op, "memory_scope")? {
        Some(scope) if !(0..=2).contains(&scope) => {
            return Err(format!("memory scope {scope}; there are 0 to 2"));
        }
        None if needs_scope || order != 0 => {
            return Err("a memory order other than weak needs a scope".into());
        }
        _ => {}
    }
    Ok(match order {
        0 => Order::Weak,
        1 => Order::Relaxed,
        2 => Order::Acquire,
        3 => Order::Release,
        _ => Order::AcquireRelease,
    })
}

/// The mode of an atomic operation, if it is defined for the element type.
pub(super) fn atomic_mode(op: &Operation, elem: ScalarType) -> Result<AtomicMode, String> {
    use ScalarType::{BF16, F16, F32, F64, I32, I64};
    let number = need(op, "mode")?;
    let mode = match number {
        0 => AtomicMode::And,
        1 => AtomicMode::Or,
        2 => AtomicMode::Xor,
        3 => AtomicMode::Add,
        4 => AtomicMode::AddFloat,
        5 => AtomicMode::Max,
        6 => AtomicMode::Min,
        7 => AtomicMode::UnsignedMax,
        8 => AtomicMode::UnsignedMin,
        9 => AtomicMode::Exchange,
        _ => return Err(format!("atomic mode {number}; there are 0 to 9")),
    };
    let fits = match mode {
        AtomicMode::AddFloat => matches!(elem, F16 | BF16 | F32 | F64),
        AtomicMode::Exchange => matches!(elem, I32 | I64 | F32 | F64),
        _ => matches!(elem, I32 | I64),
    };
    if fits { Ok(mode) } else { Err(format!("atomic mode {mode:?} on elements of type {elem:?}")) }
}

/// The operand groups of an operation, by `operandSegmentSizes`; without it, every operand is a group.
pub(super) fn segments(op: &Operation, groups: usize) -> Result<Vec<Range<usize>>, String> {
    let sizes: Vec<usize> = match find(op, "operandSegmentSizes") {
        None => vec![1; op.operands.len()],
        Some(Attribute::Array(sizes)) => sizes
            .iter()
            .map(|size| match size {
                Attribute::Integer(v, _) => {
                    usize::try_from(*v).map_err(|_| format!("an operand group of size {v}"))
                }
                other => Err(format!("an operand group of size {other:?}")),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(format!("operandSegmentSizes is {other:?}")),
    };
    let total = sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s));
    if total != Some(op.operands.len()) || sizes.len() > groups {
        return Err(format!(
            "operand groups {sizes:?} do not fit {} operands in {groups} groups",
            op.operands.len()
        ));
    }
    let mut start = 0;
    Ok((0..groups)
        .map(|g| {
            let end = start + sizes.get(g).copied().unwrap_or(0);
            std::mem::replace(&mut start, end)..end
        })
        .collect())
}

/// The promises about view indices.
pub(super) fn inbounds(op: &Operation, rank: usize) -> Result<Vec<bool>, String> {
    match find(op, "inbounds") {
        None => Ok(vec![false; rank]),
        Some(Attribute::Array(values)) if values.len() == rank => values
            .iter()
            .map(|v| match v {
                Attribute::Bool(b) => Ok(*b),
                Attribute::Integer(v, _) => Ok(*v != 0),
                other => Err(format!("inbounds holds {other:?}")),
            })
            .collect(),
        Some(_) => Err(format!("inbounds is not {rank} booleans")),
    }
}

/// The elements of a constant: raw bytes as MLIR keeps them.
///
/// One element stands for all. `i1` is one bit an element, or one byte 0 or 0xff for all; `tf32` has three bytes.
pub(super) fn dense(value: &DenseElements, ty: &TileTy) -> Result<Data, String> {
    let count = ty.count();
    let Some(scalar) = ty.elem.scalar() else { return Err("a constant of pointers".into()) };
    let bytes = &value.data;
    let wrong = || format!("{} bytes for {count} elements of type {scalar:?}", bytes.len());
    let read = |size: usize, shift: u32| -> Result<Data, String> {
        let values: Vec<u64> = bytes
            .chunks_exact(size)
            .map(|chunk| chunk.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)) << shift)
            .map(|v| v & super::elementwise::mask(super::types::bits(scalar)))
            .collect();
        match values.as_slice() {
            _ if !bytes.len().is_multiple_of(size) => Err(wrong()),
            [one] => Ok(Data::splat(ty.elem, count, *one)),
            values if values.len() == count => Ok(Data::collect(ty.elem, values.iter().copied())),
            _ => Err(wrong()),
        }
    };
    match scalar {
        ScalarType::I1 => match bytes.as_slice() {
            [0] => Ok(Data::zeros(ty.elem, count)),
            [0xff] => Ok(Data::splat(ty.elem, count, 1)),
            [1] if count > 8 || count == 1 => Ok(Data::splat(ty.elem, count, 1)),
            bytes if bytes.len() == count.div_ceil(8) => {
                Ok(Data::collect(ty.elem, (0..count).map(|i| u64::from(bytes[i / 8] >> (i % 8) & 1))))
            }
            bytes if bytes.len() == count => {
                Ok(Data::collect(ty.elem, bytes.iter().map(|&b| u64::from(b != 0))))
            }
            _ => Err(wrong()),
        },
        ScalarType::TF32 if bytes.len() == 3 || bytes.len() == 3 * count => read(3, 13),
        _ => read(Elem::Scalar(scalar).bytes(), 0),
    }
}
