//! The string, type and constant tables, and the memory budget.

use super::cursor::Cursor;
use super::types::{self, Entry};
use super::{LIMITS, Sections, TileError};
use cutile_ir::bytecode::{BytecodeVersion, Section};
use cutile_ir::ir::{DenseElements, ScalarType, TileElementType, Type};
use std::cell::Cell;

pub(super) struct Tables<'a> {
    pub(super) version: BytecodeVersion,
    strings: Vec<&'a str>,
    types: Vec<Entry>,
    constants: Vec<Cursor<'a>>,
    /// Bytes that the module may still take.
    memory: Cell<usize>,
    memory_limit: usize,
}

impl<'a> Tables<'a> {
    pub(super) fn read(
        sections: &Sections<'a>,
        version: BytecodeVersion,
        input_len: usize,
    ) -> Result<Self, TileError> {
        let memory_limit =
            LIMITS.memory_base.saturating_add(LIMITS.memory_per_byte.saturating_mul(input_len));
        let mut tables = Self {
            version,
            strings: Vec::new(),
            types: Vec::new(),
            constants: Vec::new(),
            memory: Cell::new(memory_limit),
            memory_limit,
        };
        if let Some(section) = sections.get(Section::String) {
            for mut entry in entries(section, "strings", Width::U32)? {
                let offset = entry.offset();
                let bytes = entry.bytes(entry.left(), "string")?;
                let text = std::str::from_utf8(bytes).map_err(|e| TileError::Malformed {
                    offset: offset + e.valid_up_to(),
                    what: "a string is not UTF-8".into(),
                })?;
                tables.strings.push(text);
            }
        }
        if let Some(section) = sections.get(Section::Constant) {
            tables.constants = entries(section, "constants", Width::U64)?;
        }
        if let Some(section) = sections.get(Section::Type) {
            let entries = entries(section, "types", Width::U32)?;
            tables.types = types::resolve(&entries, &tables)?;
        }
        Ok(tables)
    }

    /// Takes `bytes` from the memory budget.
    pub(super) fn charge(&self, bytes: usize, offset: usize) -> Result<(), TileError> {
        match self.memory.get().checked_sub(bytes) {
            Some(left) => {
                self.memory.set(left);
                Ok(())
            }
            None => Err(TileError::Limit {
                offset,
                what: "bytes of memory for the module",
                value: (self.memory_limit - self.memory.get()).saturating_add(bytes) as u64,
                limit: self.memory_limit as u64,
            }),
        }
    }

    fn index(&self, c: &mut Cursor<'_>, what: &'static str, len: usize) -> Result<usize, TileError> {
        let offset = c.offset();
        let index = c.varint(what)?;
        match usize::try_from(index) {
            Ok(i) if i < len => Ok(i),
            _ => Err(TileError::Index { offset, what, index, len }),
        }
    }

    /// A string by its index.
    pub(super) fn string(&self, c: &mut Cursor<'_>, what: &'static str) -> Result<String, TileError> {
        let offset = c.offset();
        let s = self.strings[self.index(c, what, self.strings.len())?];
        self.charge(s.len() + 32, offset)?;
        Ok(s.to_owned())
    }

    /// A string whose index is `index`, not charged.
    pub(super) fn string_at(
        &self,
        index: u64,
        offset: usize,
        what: &'static str,
    ) -> Result<&'a str, TileError> {
        usize::try_from(index).ok().and_then(|i| self.strings.get(i).copied()).ok_or(TileError::Index {
            offset,
            what,
            index,
            len: self.strings.len(),
        })
    }

    /// A type by its index, charged for `copies` clones.
    pub(super) fn ty(
        &self,
        c: &mut Cursor<'_>,
        what: &'static str,
        copies: usize,
    ) -> Result<Type, TileError> {
        let offset = c.offset();
        let entry = &self.types[self.index(c, what, self.types.len())?];
        self.charge(entry.cost.saturating_mul(copies), offset)?;
        Ok(entry.ty.clone())
    }

    /// The type of a value: any but a function's. It is charged for `copies` clones.
    pub(super) fn value_type(
        &self,
        c: &mut Cursor<'_>,
        what: &'static str,
        copies: usize,
    ) -> Result<Type, TileError> {
        let offset = c.offset();
        match self.ty(c, what, copies)? {
            Type::Func(_) => {
                let what = format!("{what} is a function type");
                Err(TileError::Malformed { offset, what })
            }
            ty => Ok(ty),
        }
    }

    /// Constant data by its index, as elements of `ty`.
    pub(super) fn dense(&self, c: &mut Cursor<'_>, ty: Type) -> Result<DenseElements, TileError> {
        let at = c.offset();
        let mut entry = self.constants[self.index(c, "constant", self.constants.len())?].clone();
        let len = entry.length("constant's length")?;
        let offset = entry.offset();
        let data = entry.bytes(len, "constant")?;
        entry.finish("a constant")?;
        self.charge(data.len() + 96, at)?;
        let shape = dense_shape(&ty, data).map_err(|what| TileError::Malformed { offset, what })?;
        Ok(DenseElements { element_type: ty, shape, data: data.to_vec() })
    }
}

/// Bytes of one element in constant data; `None` for single bits.
fn storage(scalar: ScalarType) -> Option<usize> {
    match scalar {
        ScalarType::I1 => None,
        // 19 bits in whole bytes, not the four of a register.
        ScalarType::TF32 => Some(3),
        other => Some(other.byte_width()),
    }
}

/// The shape of constant data: empty where one element stands for all.
fn dense_shape(ty: &Type, data: &[u8]) -> Result<Vec<i64>, String> {
    let (shape, scalar) = match ty {
        Type::Tile(t) => match &t.element_type {
            TileElementType::Scalar(s) => (t.shape.as_slice(), *s),
            TileElementType::Pointer(_) => return Err("a constant has pointer elements".into()),
        },
        Type::Scalar(s) => (&[][..], *s),
        _ => return Err("a constant is neither a tile nor a scalar".into()),
    };
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let Some(elements) = elements else {
        return Err("a constant's tile has a dimension that is not known or too large".into());
    };
    let (one, all) = match storage(scalar) {
        Some(width) => (width, elements.checked_mul(width)),
        None => (1, Some(elements.div_ceil(8))),
    };
    let is_splat = match storage(scalar) {
        Some(_) => data.len() == one,
        // A byte for two to eight elements has a bit for each, which makes no difference where all are the same.
        None => data.len() == 1 && (elements == 1 || elements > 8 || matches!(data, [0 | 0xFF])),
    };
    if is_splat {
        Ok(Vec::new())
    } else if Some(data.len()) == all {
        Ok(shape.to_vec())
    } else {
        let all = all.map_or_else(|| "too many".into(), |n| n.to_string());
        Err(format!("a constant of {elements} {scalar:?} has {} bytes, not {one} or {all}", data.len()))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Width {
    U32,
    U64,
}

/// A table that fills its window: count, padding, offsets of the entries from the end of the offsets, entries.
pub(super) fn entries<'a>(
    mut c: Cursor<'a>,
    what: &'static str,
    width: Width,
) -> Result<Vec<Cursor<'a>>, TileError> {
    let bytes = match width {
        Width::U32 => 4,
        Width::U64 => 8,
    };
    let count = c.count(what, bytes)?;
    c.align(bytes)?;
    let mut starts = Vec::with_capacity(count);
    for _ in 0..count {
        let offset = c.offset();
        let start = match width {
            Width::U32 => c.u32(what)?.into(),
            Width::U64 => c.u64(what)?,
        };
        let start = usize::try_from(start).map_err(|_| TileError::Value {
            offset,
            what: "offset of a table entry",
            value: start,
        })?;
        starts.push(start);
    }
    if let Some(&first) = starts.first()
        && first != 0
    {
        let what = format!("the first of the {what} does not start at 0 but {first}");
        return Err(TileError::Malformed { offset: c.offset(), what });
    }
    let end = c.left();
    let ends = starts.iter().skip(1).copied().chain([end]);
    if count == 0 {
        c.finish(what)?;
    }
    starts.iter().zip(ends).map(|(&from, to)| c.part(from, to, what)).collect()
}
