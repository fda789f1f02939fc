//! The type table.
//!
//! Entries name each other by index, in any order. Only certain kinds may stand inside others, so nesting ends after
//! four levels whatever the indices say.

use super::cursor::Cursor;
use super::tables::Tables;
use super::{LIMITS, TileError};
use cutile_ir::bytecode::{BytecodeVersion, TypeTag};
use cutile_ir::ir::{
    DYNAMIC, FuncType, GatherScatterViewType, PaddingValue, PartitionViewType, PointerAttribute, PointerType,
    ScalarType, StridedViewType, TensorViewType, TileElementType, TileType, Type,
};

/// A type and roughly what a clone of it takes.
pub(super) struct Entry {
    pub(super) ty: Type,
    pub(super) cost: usize,
}

/// Every scalar type, for the way from tag to type.
const SCALARS: [ScalarType; 16] = [
    ScalarType::I1,
    ScalarType::I4,
    ScalarType::I8,
    ScalarType::I16,
    ScalarType::I32,
    ScalarType::I64,
    ScalarType::F16,
    ScalarType::BF16,
    ScalarType::F32,
    ScalarType::TF32,
    ScalarType::F64,
    ScalarType::F8E4M3FN,
    ScalarType::F8E5M2,
    ScalarType::F8E8M0FNU,
    ScalarType::F4E2M1FN,
    ScalarType::F8E5M3FNU,
];

/// Resolves all entries of the type table.
pub(super) fn resolve(entries: &[Cursor<'_>], tables: &Tables<'_>) -> Result<Vec<Entry>, TileError> {
    let reader = Reader { entries, version: tables.version, tables };
    let mut out = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        let ty = reader.entry(i, Place::Anywhere, entry.offset())?;
        let cost = cost(&ty);
        tables.charge(cost, entry.offset())?;
        out.push(Entry { ty, cost });
    }
    Ok(out)
}

/// Where a type stands, which decides what it may be.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Anywhere,
    /// In a function type.
    Signature,
    /// Element of a tile: a scalar or a pointer.
    TileElement,
    /// Under a view.
    TensorView,
    /// Pointee or element.
    Scalar,
}

struct Reader<'r, 'a> {
    entries: &'r [Cursor<'a>],
    version: BytecodeVersion,
    tables: &'r Tables<'a>,
}

impl Reader<'_, '_> {
    fn index(&self, c: &mut Cursor<'_>, place: Place) -> Result<Type, TileError> {
        let offset = c.offset();
        let index = c.varint("type index")?;
        match usize::try_from(index) {
            Ok(i) if i < self.entries.len() => self.entry(i, place, offset),
            _ => Err(TileError::Index { offset, what: "type", index, len: self.entries.len() }),
        }
    }

    fn entry(&self, index: usize, place: Place, named_at: usize) -> Result<Type, TileError> {
        let mut c = self.entries[index].clone();
        let offset = c.offset();
        let tag = c.varint("type tag")?;
        if let Some(scalar) = SCALARS.iter().copied().find(|s| s.type_tag() as u64 == tag) {
            if scalar.minimum_version() > self.version {
                return Err(newer(offset, &format!("{scalar:?}"), scalar.minimum_version(), self.version));
            }
            c.finish("a type")?;
            return Ok(Type::Scalar(scalar));
        }
        let allowed = match place {
            Place::Anywhere => true,
            Place::Signature => tag != TypeTag::Func as u64,
            Place::TileElement => tag == TypeTag::Pointer as u64,
            Place::TensorView => tag == TypeTag::TensorView as u64,
            Place::Scalar => false,
        };
        if !allowed {
            let what = format!("type {index} with tag {tag} cannot stand inside another type here");
            return Err(TileError::Malformed { offset: named_at, what });
        }
        let ty = self.compound(tag, &mut c, offset)?;
        c.finish("a type")?;
        Ok(ty)
    }

    fn compound(&self, tag: u64, c: &mut Cursor<'_>, offset: usize) -> Result<Type, TileError> {
        const POINTER: u64 = TypeTag::Pointer as u64;
        const TILE: u64 = TypeTag::Tile as u64;
        const TENSOR_VIEW: u64 = TypeTag::TensorView as u64;
        const PARTITION_VIEW: u64 = TypeTag::PartitionView as u64;
        const FUNC: u64 = TypeTag::Func as u64;
        const TOKEN: u64 = TypeTag::Token as u64;
        const GATHER_SCATTER_VIEW: u64 = TypeTag::GatherScatterView as u64;
        const STRIDED_VIEW: u64 = TypeTag::StridedView as u64;
        let since = |name: &str, version: BytecodeVersion| {
            if self.version < version { Err(newer(offset, name, version, self.version)) } else { Ok(()) }
        };
        match tag {
            TOKEN => Ok(Type::Token),
            POINTER => {
                let qualified = self.pointer_flag(c)?;
                let pointee = self.scalar(c)?;
                let ty = Type::Pointer(PointerType { pointee });
                self.qualify(ty, qualified, c)
            }
            TILE => {
                let (element, attribute) = split(self.index(c, Place::TileElement)?);
                let shape = self.shape(c, "tile dimensions", false)?;
                let element_type = match element {
                    Type::Pointer(p) => TileElementType::Pointer(Box::new(p)),
                    Type::Scalar(s) => TileElementType::Scalar(s),
                    _ => unreachable_kind(offset)?,
                };
                Ok(wrap(Type::Tile(TileType { shape, element_type }), attribute))
            }
            TENSOR_VIEW => {
                let qualified = self.pointer_flag(c)?;
                let element_type = self.scalar(c)?;
                let shape = self.shape(c, "tensor dimensions", true)?;
                let strides = self.shape(c, "tensor strides", true)?;
                let ty = Type::TensorView(TensorViewType { element_type, shape, strides });
                self.qualify(ty, qualified, c)
            }
            PARTITION_VIEW => {
                let flags_first = self.version >= BytecodeVersion::V13_3;
                let mut padded = flags_first && self.flag(c)?;
                let tile_shape = self.tile_shape(c)?;
                let (tensor_view, attribute) = self.tensor_view(c)?;
                let dim_map = c.i32s("dimension map", LIMITS.rank)?;
                if !flags_first {
                    padded = self.flag_byte(c)?;
                }
                let padding_value = self.padding(c, padded)?;
                let ty = PartitionViewType { tile_shape, tensor_view, dim_map, padding_value };
                Ok(wrap(Type::PartitionView(ty), attribute))
            }
            GATHER_SCATTER_VIEW => {
                since("gather_scatter_view", BytecodeVersion::V13_3)?;
                let padded = self.flag(c)?;
                let tile_shape = self.tile_shape(c)?;
                let (tensor_view, attribute) = self.tensor_view(c)?;
                let at = c.offset();
                let dim = c.varint("sparse dimension")?;
                let sparse_dim =
                    i32::try_from(dim).ok().filter(|&d| d < LIMITS.rank as i32).ok_or(TileError::Limit {
                        offset: at,
                        what: "as the sparse dimension",
                        value: dim,
                        limit: LIMITS.rank as u64 - 1,
                    })?;
                let padding_value = self.padding(c, padded)?;
                let ty = GatherScatterViewType { tile_shape, tensor_view, sparse_dim, padding_value };
                Ok(wrap(Type::GatherScatterView(ty), attribute))
            }
            STRIDED_VIEW => {
                since("strided_view", BytecodeVersion::V13_3)?;
                let padded = self.flag(c)?;
                let tile_shape = self.tile_shape(c)?;
                let traversal_strides = c.i32s("traversal strides", LIMITS.rank)?;
                let (tensor_view, attribute) = self.tensor_view(c)?;
                let dim_map = c.i32s("dimension map", LIMITS.rank)?;
                let padding_value = self.padding(c, padded)?;
                let ty =
                    StridedViewType { tile_shape, traversal_strides, tensor_view, dim_map, padding_value };
                Ok(wrap(Type::StridedView(ty), attribute))
            }
            FUNC => {
                let inputs = self.list(c, "function inputs")?;
                let results = self.list(c, "function results")?;
                Ok(Type::Func(FuncType { inputs, results }))
            }
            value => Err(TileError::Value { offset, what: "type tag", value }),
        }
    }

    fn list(&self, c: &mut Cursor<'_>, what: &'static str) -> Result<Vec<Type>, TileError> {
        let n = c.count(what, 1)?;
        let mut types = Vec::new();
        for _ in 0..n {
            // Charged one by one: many inputs may name one large type.
            let offset = c.offset();
            let ty = self.index(c, Place::Signature)?;
            self.tables.charge(cost(&ty), offset)?;
            types.push(ty);
        }
        Ok(types)
    }

    fn scalar(&self, c: &mut Cursor<'_>) -> Result<ScalarType, TileError> {
        let offset = c.offset();
        match self.index(c, Place::Scalar)? {
            Type::Scalar(s) => Ok(s),
            _ => unreachable_kind(offset),
        }
    }

    fn tensor_view(
        &self,
        c: &mut Cursor<'_>,
    ) -> Result<(TensorViewType, Option<PointerAttribute>), TileError> {
        let offset = c.offset();
        match split(self.index(c, Place::TensorView)?) {
            (Type::TensorView(tv), attribute) => Ok((tv, attribute)),
            _ => {
                let what = "a view is not over a tensor view".into();
                Err(TileError::Malformed { offset, what })
            }
        }
    }

    fn shape(&self, c: &mut Cursor<'_>, what: &'static str, dynamic: bool) -> Result<Vec<i64>, TileError> {
        let offset = c.offset();
        let dims = c.i64s(what, LIMITS.rank)?;
        match dims.iter().find(|&&d| d < 0 && !(dynamic && d == DYNAMIC)) {
            None => Ok(dims),
            Some(d) => {
                let what = format!("{d} among the {what}");
                Err(TileError::Malformed { offset, what })
            }
        }
    }

    fn tile_shape(&self, c: &mut Cursor<'_>) -> Result<Vec<i32>, TileError> {
        let offset = c.offset();
        let dims = c.i32s("tile dimensions", LIMITS.rank)?;
        match dims.iter().find(|&&d| d < 0) {
            None => Ok(dims),
            Some(d) => {
                let what = format!("{d} among the tile dimensions of a view");
                Err(TileError::Malformed { offset, what })
            }
        }
    }

    /// A flag word with at most its lowest bit set.
    fn flag(&self, c: &mut Cursor<'_>) -> Result<bool, TileError> {
        let offset = c.offset();
        match c.varint("type flags")? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(TileError::Value { offset, what: "flag word of a type", value }),
        }
    }

    fn flag_byte(&self, c: &mut Cursor<'_>) -> Result<bool, TileError> {
        let offset = c.offset();
        match c.byte("padding flag")? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(TileError::Value { offset, what: "padding flag", value: v.into() }),
        }
    }

    /// Whether a pointer attribute follows; before 13.4 none ever does.
    fn pointer_flag(&self, c: &mut Cursor<'_>) -> Result<bool, TileError> {
        if self.version >= BytecodeVersion::V13_4 { self.flag(c) } else { Ok(false) }
    }

    fn qualify(&self, ty: Type, qualified: bool, c: &mut Cursor<'_>) -> Result<Type, TileError> {
        if !qualified {
            return Ok(ty);
        }
        let offset = c.offset();
        let attribute = match c.byte("pointer attribute")? {
            0 => PointerAttribute::None,
            1 => PointerAttribute::Unicast,
            2 => PointerAttribute::Multicast,
            v => return Err(TileError::Value { offset, what: "pointer attribute", value: v.into() }),
        };
        let since = attribute.feature().since();
        if self.version < since {
            return Err(newer(offset, attribute.name(), since, self.version));
        }
        Ok(ty.with_pointer_attribute(attribute))
    }

    fn padding(&self, c: &mut Cursor<'_>, padded: bool) -> Result<Option<PaddingValue>, TileError> {
        if !padded {
            return Ok(None);
        }
        let offset = c.offset();
        let value = if self.version >= BytecodeVersion::V13_3 {
            c.byte("padding value")?.into()
        } else {
            c.varint("padding value")?
        };
        match value {
            0 => Ok(Some(PaddingValue::Zero)),
            1 => Ok(Some(PaddingValue::NegZero)),
            2 => Ok(Some(PaddingValue::Nan)),
            3 => Ok(Some(PaddingValue::PosInf)),
            4 => Ok(Some(PaddingValue::NegInf)),
            _ => Err(TileError::Value { offset, what: "padding value", value }),
        }
    }
}

/// Something that needs a newer version than the input's.
pub(super) fn newer(
    offset: usize,
    name: &str,
    since: BytecodeVersion,
    version: BytecodeVersion,
) -> TileError {
    TileError::Malformed { offset, what: format!("{name} needs version {since}, the input has {version}") }
}

/// `Place` has already excluded what leads here.
fn unreachable_kind<T>(offset: usize) -> Result<T, TileError> {
    Err(TileError::Malformed { offset, what: "a type has the wrong kind".into() })
}

/// A type without its pointer attribute, and the attribute.
fn split(ty: Type) -> (Type, Option<PointerAttribute>) {
    match ty {
        Type::WithPointerAttribute(base, attribute) => (*base, Some(attribute)),
        ty => (ty, None),
    }
}

fn wrap(ty: Type, attribute: Option<PointerAttribute>) -> Type {
    match attribute {
        Some(a) => ty.with_pointer_attribute(a),
        None => ty,
    }
}

/// Roughly the bytes that a clone takes.
fn cost(ty: &Type) -> usize {
    let tensor = |t: &TensorViewType| 8 * (t.shape.len() + t.strides.len());
    let own = size_of::<Type>();
    own + match ty {
        Type::Scalar(_) | Type::Pointer(_) | Type::Token => 0,
        Type::Tile(t) => 16 + 8 * t.shape.len(),
        Type::TensorView(t) => tensor(t),
        Type::PartitionView(v) => tensor(&v.tensor_view) + 4 * (v.tile_shape.len() + v.dim_map.len()),
        Type::GatherScatterView(v) => tensor(&v.tensor_view) + 4 * v.tile_shape.len(),
        Type::StridedView(v) => {
            tensor(&v.tensor_view) + 4 * (v.tile_shape.len() + v.traversal_strides.len() + v.dim_map.len())
        }
        Type::Func(f) => f.inputs.iter().chain(&f.results).map(cost).sum(),
        Type::WithPointerAttribute(base, _) => cost(base),
    }
}
