//! Attributes: with a tag in front (self-contained), or without one where the operation says what it is.

use super::cursor::Cursor;
use super::tables::Tables;
use super::{LIMITS, TileError};
use cutile_ir::bytecode::{AttributeTag, PreviewAttributeTag};
use cutile_ir::ir::{
    Attribute, Bounded, DivBy, OptimizationHints, PreviewConstArg, SameElements, ScalarType, Type,
};
use half::{bf16, f16};

/// What an attribute without a tag is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// A number of an enumeration, at most this.
    Enum(u64),
    /// The same; left out of the module if it is the second number, which the writer fills in.
    EnumOr(u64, u64),
    /// Any number.
    Int,
    /// One byte, 0 or 1.
    Bool,
    /// A string's index.
    Str,
    /// A type's index.
    Ty,
    /// A counted list of 32-bit numbers.
    I32s,
    /// The index of constant data of the first result's type.
    Dense,
    /// A counted list of self-contained attributes.
    Array,
    /// Hints by architecture.
    Hints,
    /// Any attribute, with its tag.
    Tagged,
}

/// Memory of one attribute and its name in a list.
const COST: usize = size_of::<(String, Attribute)>();

/// Reads an attribute without a tag; `None` if it has its default value.
pub(super) fn inline(
    kind: Kind,
    name: &'static str,
    first_result: Option<&Type>,
    c: &mut Cursor<'_>,
    tables: &Tables<'_>,
) -> Result<Option<Attribute>, TileError> {
    let offset = c.offset();
    tables.charge(COST + name.len(), offset)?;
    Ok(Some(match kind {
        Kind::Enum(most) => int(enumerator(c, name, most)?),
        Kind::EnumOr(most, default) => match enumerator(c, name, most)? {
            v if v == default => return Ok(None),
            v => int(v),
        },
        Kind::Int => int(c.varint(name)?),
        Kind::Bool => match c.byte(name)? {
            0 => Attribute::Bool(false),
            1 => Attribute::Bool(true),
            v => return Err(TileError::Value { offset, what: name, value: v.into() }),
        },
        Kind::Str => Attribute::String(tables.string(c, name)?),
        Kind::Ty => Attribute::Type(tables.ty(c, name, 1)?),
        Kind::I32s => Attribute::DenseI32Array(c.i32s(name, LIMITS.rank)?),
        Kind::Dense => match first_result {
            // The result's own charge covers the copy: it is at most as large.
            Some(ty) => Attribute::DenseElements(tables.dense(c, ty.clone())?),
            None => {
                let what = format!("{name} is constant data without a type");
                return Err(TileError::Unsupported { offset, what });
            }
        },
        Kind::Array => Attribute::Array(list(c, tables, 0)?),
        Kind::Hints => Attribute::OptimizationHints(hints(c, tables, 0)?),
        Kind::Tagged => tagged(c, tables, 0)?,
    }))
}

fn enumerator(c: &mut Cursor<'_>, what: &'static str, most: u64) -> Result<u64, TileError> {
    let offset = c.offset();
    match c.varint(what)? {
        v if v <= most => Ok(v),
        value => Err(TileError::Value { offset, what, value }),
    }
}

/// An operation's integer, whose type bytecode does not hold.
pub(super) fn int(value: u64) -> Attribute {
    let value = value as i64;
    match i32::try_from(value) {
        Ok(_) => Attribute::i32(value),
        Err(_) => Attribute::int(value, ScalarType::I64),
    }
}

/// Reads an attribute with its tag.
pub(super) fn tagged(c: &mut Cursor<'_>, tables: &Tables<'_>, depth: usize) -> Result<Attribute, TileError> {
    const INTEGER: u64 = AttributeTag::Integer as u64;
    const FLOAT: u64 = AttributeTag::Float as u64;
    const BOOL: u64 = AttributeTag::Bool as u64;
    const TYPE: u64 = AttributeTag::Type as u64;
    const STRING: u64 = AttributeTag::String as u64;
    const ARRAY: u64 = AttributeTag::Array as u64;
    const DENSE: u64 = AttributeTag::DenseElements as u64;
    const DIV_BY: u64 = AttributeTag::DivBy as u64;
    const SAME_ELEMENTS: u64 = AttributeTag::SameElements as u64;
    const DICTIONARY: u64 = AttributeTag::Dictionary as u64;
    const HINTS: u64 = AttributeTag::OptimizationHints as u64;
    const BOUNDED: u64 = AttributeTag::Bounded as u64;
    const PREVIEW_INT: u64 = PreviewAttributeTag::SymbolicExprInt as u64;
    const PREVIEW_TYPE: u64 = PreviewAttributeTag::ConcreteType as u64;
    const PREVIEW_STR: u64 = PreviewAttributeTag::SymbolicExprConstStr as u64;

    let offset = c.offset();
    if depth >= LIMITS.nesting {
        return Err(TileError::Limit {
            offset,
            what: "levels of attributes",
            value: depth as u64 + 1,
            limit: LIMITS.nesting as u64,
        });
    }
    tables.charge(COST, offset)?;
    Ok(match c.varint("attribute tag")? {
        INTEGER => {
            let ty = tables.value_type(c, "type of an integer", 1)?;
            Attribute::Integer(integer(c, &ty)?, ty)
        }
        FLOAT => {
            let ty = tables.value_type(c, "type of a float", 1)?;
            Attribute::Float(float(c, &ty)?, ty)
        }
        BOOL => {
            let at = c.offset();
            match c.byte("bool")? {
                0 => Attribute::Bool(false),
                1 => Attribute::Bool(true),
                v => return Err(TileError::Value { offset: at, what: "bool", value: v.into() }),
            }
        }
        TYPE => Attribute::Type(tables.ty(c, "type", 1)?),
        STRING => Attribute::String(tables.string(c, "string")?),
        ARRAY => Attribute::Array(list(c, tables, depth)?),
        DENSE => {
            let ty = tables.value_type(c, "type of elements", 1)?;
            Attribute::DenseElements(tables.dense(c, ty)?)
        }
        DIV_BY => {
            let divisor = c.varint("divisor")?;
            let (every, along) = optional_pair(c, "div_by")?;
            Attribute::DivBy(DivBy { divisor, every, along })
        }
        SAME_ELEMENTS => {
            Attribute::SameElements(SameElements { values: c.i64s("same_elements", LIMITS.rank)? })
        }
        DICTIONARY => Attribute::Dictionary(dictionary(c, tables, depth)?),
        HINTS => Attribute::OptimizationHints(hints(c, tables, depth)?),
        BOUNDED => {
            let (lb, ub) = optional_pair(c, "bounded")?;
            Attribute::Bounded(Bounded { lb, ub })
        }
        PREVIEW_INT => Attribute::PreviewConstArg(PreviewConstArg::Int(c.signed("integer")?)),
        PREVIEW_STR => Attribute::PreviewConstArg(PreviewConstArg::Str(tables.string(c, "string")?)),
        PREVIEW_TYPE => Attribute::PreviewConstArg(PreviewConstArg::Datatype(tables.ty(c, "type", 1)?)),
        value => return Err(TileError::Value { offset, what: "attribute tag", value }),
    })
}

fn list(c: &mut Cursor<'_>, tables: &Tables<'_>, depth: usize) -> Result<Vec<Attribute>, TileError> {
    let n = c.count("attributes", 2)?;
    (0..n).map(|_| tagged(c, tables, depth + 1)).collect()
}

fn dictionary(
    c: &mut Cursor<'_>,
    tables: &Tables<'_>,
    depth: usize,
) -> Result<Vec<(String, Attribute)>, TileError> {
    let n = c.count("dictionary entries", 3)?;
    (0..n)
        .map(|_| {
            let key = tables.string(c, "dictionary key")?;
            Ok((key, tagged(c, tables, depth + 1)?))
        })
        .collect()
}

fn hints(c: &mut Cursor<'_>, tables: &Tables<'_>, depth: usize) -> Result<OptimizationHints, TileError> {
    let n = c.count("optimization hints", 3)?;
    let mut entries = Vec::new();
    for _ in 0..n {
        let architecture = tables.string(c, "architecture")?;
        let offset = c.offset();
        match tagged(c, tables, depth + 1)? {
            Attribute::Dictionary(values) => entries.push((architecture, values)),
            _ => {
                let what = format!("the hints for {architecture:?} are not a dictionary");
                return Err(TileError::Malformed { offset, what });
            }
        }
    }
    Ok(OptimizationHints { entries })
}

/// A byte with a flag for each of two numbers, then those that are there.
fn optional_pair(c: &mut Cursor<'_>, what: &'static str) -> Result<(Option<i64>, Option<i64>), TileError> {
    let offset = c.offset();
    let flags = c.byte(what)?;
    if flags > 3 {
        return Err(TileError::Value { offset, what: "set of optional parts", value: flags.into() });
    }
    let first = if flags & 1 != 0 { Some(c.signed(what)?) } else { None };
    let second = if flags & 2 != 0 { Some(c.signed(what)?) } else { None };
    Ok((first, second))
}

/// The bits of an integer as an unsigned number: -1 of `i32` is 4294967295.
fn integer(c: &mut Cursor<'_>, ty: &Type) -> Result<i64, TileError> {
    let offset = c.offset();
    let bits = match ty {
        Type::Scalar(ScalarType::I1) => 1,
        Type::Scalar(ScalarType::I4) => 4,
        Type::Scalar(s) if s.is_integer() => 8 * s.byte_width(),
        _ => {
            let what = "the type of an integer is not an integer type".into();
            return Err(TileError::Malformed { offset, what });
        }
    };
    let value = c.varint("integer")?;
    let limit = u64::MAX >> (64 - bits);
    if value > limit {
        return Err(TileError::Limit { offset, what: "as bits of an integer", value, limit });
    }
    Ok(value as i64)
}

/// A float by its bits: a byte for 8-bit types, else a signed varint.
fn float(c: &mut Cursor<'_>, ty: &Type) -> Result<f64, TileError> {
    let offset = c.offset();
    let Type::Scalar(scalar) = ty else {
        let what = "the type of a float is not a scalar".into();
        return Err(TileError::Malformed { offset, what });
    };
    let bits = |c: &mut Cursor<'_>, most: u64| match c.signed("float")? as u64 {
        bits if bits <= most => Ok(bits),
        value => Err(TileError::Limit { offset, what: "as bits of a float", value, limit: most }),
    };
    Ok(match scalar {
        ScalarType::F16 => f16::from_bits(bits(c, u16::MAX.into())? as u16).to_f64(),
        ScalarType::BF16 => bf16::from_bits(bits(c, u16::MAX.into())? as u16).to_f64(),
        ScalarType::F32 | ScalarType::TF32 => f32::from_bits(bits(c, u32::MAX.into())? as u32).into(),
        ScalarType::F64 => f64::from_bits(bits(c, u64::MAX)?),
        ScalarType::F8E4M3FN => e4m3(c.byte("float")?),
        // The upper half of an f16 has the same fields.
        ScalarType::F8E5M2 => f16::from_bits(u16::from(c.byte("float")?) << 8).to_f64(),
        other => {
            let what = format!("a float attribute of type {other:?} has no defined layout");
            return Err(TileError::Unsupported { offset, what });
        }
    })
}

/// Sign, four bits of exponent (bias 7), three of mantissa; no infinity, NaN where both are all ones.
fn e4m3(bits: u8) -> f64 {
    let exponent = i32::from(bits >> 3 & 15);
    let mantissa = f64::from(bits & 7);
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if bits & 0x80 != 0 { -magnitude } else { magnitude }
}
