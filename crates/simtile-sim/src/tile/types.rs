//! The types of Tile IR as the interpreter sees them: checked, small, and with sizes as `usize`.
//!
//! `cutile_ir` checks no types, so everything that the interpreter later relies on (positive power-of-two
//! extents, matching ranks, bounded sizes) is checked here, when a module is loaded.

use cutile_ir::ir::{DYNAMIC, PaddingValue, ScalarType, TensorViewType, TileElementType, Type};
use smallvec::SmallVec;

/// Most elements of one tile: Tile IR's own limit.
pub(super) const MAX_TILE_ELEMENTS: usize = 1 << 24;
/// Most dimensions of a tile or view. Tile IR has no limit; front ends stay far below.
pub(super) const MAX_RANK: usize = 16;

/// Extents, outermost first. Tiles are stored dense and row-major.
pub(super) type Shape = SmallVec<[usize; 4]>;

/// Number of elements of a shape.
pub(super) fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// What a tile consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem {
    /// Numbers.
    Scalar(ScalarType),
    /// Device addresses of numbers.
    Pointer(ScalarType),
}

impl Elem {
    /// Bits of a value.
    pub(super) fn bits(self) -> u32 {
        match self {
            Elem::Scalar(s) => bits(s),
            Elem::Pointer(_) => 64,
        }
    }

    /// Bytes of a value in the interpreter's storage and, unless it is narrower than a byte, in memory.
    pub(super) fn bytes(self) -> usize {
        match self {
            Elem::Scalar(s) => s.byte_width(),
            Elem::Pointer(_) => 8,
        }
    }

    /// The scalar type, if it is not a pointer.
    pub(super) fn scalar(self) -> Option<ScalarType> {
        match self {
            Elem::Scalar(s) => Some(s),
            Elem::Pointer(_) => None,
        }
    }

    /// The scalar type, if it is an integer.
    pub(super) fn int(self) -> Option<ScalarType> {
        self.scalar().filter(|s| s.is_integer())
    }
}

/// Bits of a scalar value.
pub(super) fn bits(scalar: ScalarType) -> u32 {
    match scalar {
        ScalarType::I1 => 1,
        ScalarType::I4 | ScalarType::F4E2M1FN => 4,
        other => other.byte_width() as u32 * 8,
    }
}

/// A tile's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TileTy {
    /// Extents.
    pub(super) shape: Shape,
    /// Elements.
    pub(super) elem: Elem,
}

impl TileTy {
    /// Number of elements.
    pub(super) fn count(&self) -> usize {
        count(&self.shape)
    }
}

/// The type of a tensor in memory. `None` is an extent or a stride that is known at run time only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorTy {
    /// Elements.
    pub(super) elem: ScalarType,
    /// Extents.
    pub(super) shape: SmallVec<[Option<i64>; 4]>,
    /// Strides in elements.
    pub(super) strides: SmallVec<[Option<i64>; 4]>,
}

/// How a view cuts tiles out of its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// One tile after the other; for each tile dimension the tensor dimension it runs along.
    Partition(SmallVec<[usize; 4]>),
    /// Tiles that start `steps[d]` elements apart, and the dimension map as above.
    Strided(SmallVec<[usize; 4]>, SmallVec<[i64; 4]>),
    /// Index lists along one dimension, start offsets along the others.
    Gather(usize),
}

/// A view that loads and stores tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ViewTy {
    /// Extents of the tiles.
    pub(super) tile: Shape,
    /// The tensor behind.
    pub(super) tensor: TensorTy,
    /// The mapping.
    pub(super) cut: Cut,
    /// What loads outside of the tensor give.
    pub(super) padding: Option<PaddingValue>,
}

/// The type of an SSA value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ty {
    /// A dense array.
    Tile(TileTy),
    /// A tensor in memory.
    Tensor(TensorTy),
    /// A view of one.
    View(ViewTy),
    /// An order of memory operations.
    Token,
}

fn extent(dim: i64) -> Result<usize, String> {
    usize::try_from(dim)
        .ok()
        .filter(|d| d.is_power_of_two())
        .ok_or_else(|| format!("tile extent {dim} is not a positive power of two"))
}

fn shape(dims: impl Iterator<Item = i64>) -> Result<Shape, String> {
    let shape = dims.map(extent).collect::<Result<Shape, _>>()?;
    if shape.len() > MAX_RANK {
        return Err(format!("a tile of rank {}; the limit is {MAX_RANK}", shape.len()));
    }
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .filter(|&n| n <= MAX_TILE_ELEMENTS)
        .ok_or_else(|| format!("a tile of shape {shape:?}; the limit is {MAX_TILE_ELEMENTS} elements"))?;
    Ok(shape)
}

fn tensor(ty: &TensorViewType) -> Result<TensorTy, String> {
    if ty.shape.len() != ty.strides.len() {
        return Err(format!("a tensor view of rank {} with {} strides", ty.shape.len(), ty.strides.len()));
    }
    if ty.shape.len() > MAX_RANK {
        return Err(format!("a tensor view of rank {}; the limit is {MAX_RANK}", ty.shape.len()));
    }
    let dim = |&d: &i64| match d {
        DYNAMIC => Ok(None),
        d if d > 0 => Ok(Some(d)),
        d => Err(format!("a tensor view with the extent or stride {d}")),
    };
    Ok(TensorTy {
        elem: ty.element_type,
        shape: ty.shape.iter().map(dim).collect::<Result<_, _>>()?,
        strides: ty.strides.iter().map(dim).collect::<Result<_, _>>()?,
    })
}

fn dim_map(map: &[i32], rank: usize) -> Result<SmallVec<[usize; 4]>, String> {
    let map: SmallVec<[usize; 4]> = map.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect();
    let mut seen = [false; MAX_RANK];
    let permutation = map.len() == rank
        && map.iter().all(|&d| seen.get_mut(d).is_some_and(|s| !std::mem::replace(s, true)) && d < rank);
    if permutation {
        Ok(map)
    } else {
        Err(format!("dim_map {map:?} is not a permutation of {rank} dimensions"))
    }
}

fn view(
    tile: &[i32],
    ty: &TensorViewType,
    padding: Option<PaddingValue>,
    cut: impl FnOnce(usize) -> Result<Cut, String>,
) -> Result<Ty, String> {
    let tensor = tensor(ty)?;
    let tile = shape(tile.iter().map(|&d| i64::from(d)))?;
    if tile.is_empty() || tile.len() != tensor.shape.len() {
        return Err(format!(
            "a view with tiles of rank {} on a tensor of rank {}",
            tile.len(),
            tensor.shape.len()
        ));
    }
    if padding.is_some_and(|p| p != PaddingValue::Zero) && !tensor.elem.is_float() {
        return Err(format!("padding {padding:?} for elements of type {:?}", tensor.elem));
    }
    let cut = cut(tile.len())?;
    Ok(Ty::View(ViewTy { tile, tensor, cut, padding }))
}

/// Checks a type and turns it into the interpreter's form.
pub(super) fn convert(ty: &Type) -> Result<Ty, String> {
    match ty {
        Type::Tile(t) => {
            let elem = match &t.element_type {
                TileElementType::Scalar(s) => Elem::Scalar(*s),
                TileElementType::Pointer(p) => Elem::Pointer(p.pointee),
            };
            Ok(Ty::Tile(TileTy { shape: shape(t.shape.iter().copied())?, elem }))
        }
        Type::TensorView(t) => Ok(Ty::Tensor(tensor(t)?)),
        Type::PartitionView(v) => view(&v.tile_shape, &v.tensor_view, v.padding_value, |rank| {
            Ok(Cut::Partition(dim_map(&v.dim_map, rank)?))
        }),
        Type::StridedView(v) => view(&v.tile_shape, &v.tensor_view, v.padding_value, |rank| {
            if v.traversal_strides.len() != rank || v.traversal_strides.iter().any(|&s| s <= 0) {
                return Err(format!("traversal strides {:?} for rank {rank}", v.traversal_strides));
            }
            let steps = v.traversal_strides.iter().map(|&s| i64::from(s)).collect();
            Ok(Cut::Strided(dim_map(&v.dim_map, rank)?, steps))
        }),
        Type::GatherScatterView(v) => view(&v.tile_shape, &v.tensor_view, v.padding_value, |rank| {
            usize::try_from(v.sparse_dim)
                .ok()
                .filter(|&d| d < rank)
                .map(Cut::Gather)
                .ok_or_else(|| format!("sparse dimension {} of rank {rank}", v.sparse_dim))
        }),
        Type::Token => Ok(Ty::Token),
        // A classification says which instructions reach the memory: `lower_ops::memory` keeps multicast memory and other
        // memory apart.
        Type::WithPointerAttribute(base, _) => match **base {
            Type::WithPointerAttribute(..) => Err("a pointer attribute on a pointer attribute".into()),
            _ => convert(base),
        },
        other => Err(format!("no value has the type {other:?}")),
    }
}
