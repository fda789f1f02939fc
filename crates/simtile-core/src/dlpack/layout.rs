//! What a foreign tensor says about its memory, checked.
//!
//! A producer's numbers are input: dimensions may be negative, products may overflow, strides may be negative or reach
//! beyond what an address can hold. [`TensorLayout`] is what is left after all that was looked at: an element type, a shape,
//! strides, and the range of bytes that the elements lie in.

use super::abi::{DLDataType, DLDataTypeCode, DLDevice, DLTensor};
use core::ops::Range;
use simtile_types::DTypeId;
use smallvec::SmallVec;

/// Most dimensions of a tensor that are taken. NumPy and PyTorch have 64.
pub const MAX_DIMENSIONS: usize = 64;

/// Why a foreign tensor was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// The pointer to the tensor is null.
    #[error("DLPack: the tensor is null")]
    Null,
    /// Another major version.
    #[error("DLPack: version {major}.{minor} of the tensor; this side speaks 1.x")]
    Version {
        /// Of the tensor.
        major: u32,
        /// Of the tensor.
        minor: u32,
    },
    /// Too many dimensions, or a negative number of them.
    #[error("DLPack: {ndim} dimensions; 0 to {MAX_DIMENSIONS} are taken")]
    Dimensions {
        /// Of the tensor.
        ndim: i32,
    },
    /// Dimensions without a shape.
    #[error("DLPack: {ndim} dimensions and a null shape")]
    NoShape {
        /// Of the tensor.
        ndim: i32,
    },
    /// A negative dimension.
    #[error("DLPack: dimension {axis} is {length}")]
    NegativeLength {
        /// Which one.
        axis: usize,
        /// Its length.
        length: i64,
    },
    /// An element type that has no counterpart here.
    #[error("DLPack: no element type for code {code}, {bits} bits, {lanes} lanes")]
    DataType {
        /// `DLDataTypeCode`.
        code: u8,
        /// Bits of a lane.
        bits: u8,
        /// Lanes.
        lanes: u16,
    },
    /// Shape, strides or offset reach beyond the address space.
    #[error(
        "DLPack: shape {shape:?} with strides {strides:?} at byte {offset} reaches beyond the address space"
    )]
    Overflow {
        /// Of the tensor.
        shape: Vec<i64>,
        /// Of the tensor, in elements.
        strides: Vec<i64>,
        /// Of the tensor.
        offset: u64,
    },
    /// Elements at a null address.
    #[error("DLPack: {bytes} bytes at a null address")]
    NoData {
        /// That the elements take.
        bytes: u64,
    },
    /// The first element is not aligned.
    #[error("DLPack: element address {address:#x} is not a multiple of {align}, as {dtype} needs")]
    Misaligned {
        /// Of the first element.
        address: u64,
        /// What it has to be a multiple of.
        align: usize,
        /// The element type.
        dtype: DTypeId,
    },
}

/// A checked description of a tensor's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    dtype: DTypeId,
    device: DLDevice,
    shape: SmallVec<[u64; 6]>,
    strides: SmallVec<[i64; 6]>,
    first: u64,
    bytes: Range<u64>,
}

impl TensorLayout {
    /// Reads a tensor's description.
    ///
    /// # Errors
    /// [`DlpackError`], for every number that makes no sense.
    ///
    /// # Safety
    /// `shape` and `strides` are null or point to `ndim` numbers.
    pub unsafe fn read(tensor: &DLTensor) -> Result<Self, DlpackError> {
        let rank = usize::try_from(tensor.ndim)
            .ok()
            .filter(|&rank| rank <= MAX_DIMENSIONS)
            .ok_or(DlpackError::Dimensions { ndim: tensor.ndim })?;
        let dtype = from_dl(tensor.dtype)?;
        let shape = match (rank, tensor.shape.is_null()) {
            (0, _) => &[][..],
            (_, true) => return Err(DlpackError::NoShape { ndim: tensor.ndim }),
            // SAFETY: the caller's.
            (rank, false) => unsafe { core::slice::from_raw_parts(tensor.shape, rank) },
        };
        if let Some((axis, &length)) = shape.iter().enumerate().find(|(_, length)| **length < 0) {
            return Err(DlpackError::NegativeLength { axis, length });
        }
        let given = if rank == 0 || tensor.strides.is_null() {
            None
        } else {
            // SAFETY: the caller's.
            Some(unsafe { core::slice::from_raw_parts(tensor.strides, rank) })
        };
        let overflow = || DlpackError::Overflow {
            shape: shape.to_vec(),
            strides: given.unwrap_or_default().to_vec(),
            offset: tensor.byte_offset,
        };
        let strides = match given {
            Some(strides) => SmallVec::from_slice(strides),
            None => compact(shape).ok_or_else(overflow)?,
        };
        let first = (tensor.data as u64).checked_add(tensor.byte_offset).ok_or_else(overflow)?;
        let span = span(shape, &strides, dtype.size_in_bytes() as u64).ok_or_else(overflow)?;
        let at = |offset: i64| first.checked_add_signed(offset);
        let (start, end) = at(span.0).zip(at(span.1)).ok_or_else(overflow)?;
        if start == end {
            // No elements: the address means nothing.
            return Ok(Self {
                dtype,
                device: tensor.device,
                shape: lengths(shape),
                strides,
                first,
                bytes: 0..0,
            });
        }
        if tensor.data.is_null() {
            return Err(DlpackError::NoData { bytes: end - start });
        }
        let align = dtype.size_in_bytes();
        if !first.is_multiple_of(align as u64) {
            return Err(DlpackError::Misaligned { address: first, align, dtype });
        }
        Ok(Self { dtype, device: tensor.device, shape: lengths(shape), strides, first, bytes: start..end })
    }

    /// Element type.
    pub fn dtype(&self) -> DTypeId {
        self.dtype
    }

    /// Where the memory is.
    pub fn device(&self) -> DLDevice {
        self.device
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements from one to the next along each dimension; may be negative.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Address of the element whose every index is 0.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Addresses of the bytes from the lowest element to the end of the highest; empty if there are no elements.
    pub fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        // It was checked that the span fits, but a stride of 0 makes more elements than bytes.
        self.shape.iter().fold(1_u64, |all, &length| all.saturating_mul(length))
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the elements lie one behind another in row-major order, without gaps.
    pub fn is_compact(&self) -> bool {
        let mut expected = 1_i64;
        self.shape.iter().zip(&self.strides).rev().all(|(&length, &stride)| {
            // The stride of a dimension with one element is never used.
            let right = length == 1 || stride == expected;
            expected = expected.saturating_mul(i64::try_from(length).unwrap_or(i64::MAX));
            right
        }) || self.is_empty()
    }
}

fn lengths(shape: &[i64]) -> SmallVec<[u64; 6]> {
    shape.iter().map(|&length| length.unsigned_abs()).collect()
}

/// Row-major strides without gaps. Dimensions of no elements count as one, so that the others stay meaningful.
fn compact(shape: &[i64]) -> Option<SmallVec<[i64; 6]>> {
    let mut strides: SmallVec<[i64; 6]> = SmallVec::from_elem(1, shape.len());
    let empty = shape.contains(&0);
    let mut next = Some(1_i64);
    for (stride, &length) in strides.iter_mut().zip(shape).rev() {
        // Nobody goes along the strides of nothing.
        *stride = if empty { next.unwrap_or(i64::MAX) } else { next? };
        next = next.and_then(|next| next.checked_mul(length.max(1)));
    }
    Some(strides)
}

/// Bytes from the first element to the lowest and to the end of the highest one.
fn span(shape: &[i64], strides: &[i64], element: u64) -> Option<(i64, i64)> {
    if shape.contains(&0) {
        return Some((0, 0));
    }
    let (mut low, mut high) = (0_i64, 0_i64);
    for (&length, &stride) in shape.iter().zip(strides) {
        let reach = stride.checked_mul(length - 1)?;
        let end = if reach < 0 { &mut low } else { &mut high };
        *end = end.checked_add(reach)?;
    }
    let element = i64::try_from(element).ok()?;
    Some((low.checked_mul(element)?, high.checked_add(1)?.checked_mul(element)?))
}

/// The element type that a DLPack type stands for.
fn from_dl(dtype: DLDataType) -> Result<DTypeId, DlpackError> {
    use DLDataTypeCode as C;
    let refused = || DlpackError::DataType { code: dtype.code.0, bits: dtype.bits, lanes: dtype.lanes };
    Ok(match (dtype.code, dtype.bits, dtype.lanes) {
        (C::kDLBool, 8, 1) => DTypeId::Bool,
        (C::kDLUInt, 8, 1) => DTypeId::U8,
        (C::kDLUInt, 16, 1) => DTypeId::U16,
        (C::kDLUInt, 32, 1) => DTypeId::U32,
        (C::kDLUInt, 64, 1) => DTypeId::U64,
        (C::kDLInt, 8, 1) => DTypeId::I8,
        (C::kDLInt, 16, 1) => DTypeId::I16,
        (C::kDLInt, 32, 1) => DTypeId::I32,
        (C::kDLInt, 64, 1) => DTypeId::I64,
        (C::kDLFloat, 16, 1) => DTypeId::F16,
        (C::kDLFloat, 32, 1) => DTypeId::F32,
        (C::kDLFloat, 64, 1) => DTypeId::F64,
        (C::kDLBfloat, 16, 1) => DTypeId::BF16,
        (C::kDLFloat8_e4m3fn, 8, 1) => DTypeId::F8E4M3FN,
        (C::kDLFloat8_e5m2, 8, 1) => DTypeId::F8E5M2,
        (C::kDLFloat8_e8m0fnu, 8, 1) => DTypeId::F8E8M0FNU,
        (C::kDLFloat4_e2m1fn, 4, 2) => DTypeId::F4E2M1FNX2,
        _ => return Err(refused()),
    })
}

/// The DLPack type of an element type; `None` if DLPack has none ([`DTypeId::TF32`], [`DTypeId::F8E5M3FNU`]).
pub fn to_dl(dtype: DTypeId) -> Option<DLDataType> {
    use DLDataTypeCode as C;
    let (code, bits, lanes) = match dtype {
        DTypeId::Bool => (C::kDLBool, 8, 1),
        DTypeId::U8 | DTypeId::U16 | DTypeId::U32 | DTypeId::U64 => {
            (C::kDLUInt, 8 * dtype.size_in_bytes(), 1)
        }
        DTypeId::I8 | DTypeId::I16 | DTypeId::I32 | DTypeId::I64 => (C::kDLInt, 8 * dtype.size_in_bytes(), 1),
        DTypeId::F16 | DTypeId::F32 | DTypeId::F64 => (C::kDLFloat, 8 * dtype.size_in_bytes(), 1),
        DTypeId::BF16 => (C::kDLBfloat, 16, 1),
        DTypeId::F8E4M3FN => (C::kDLFloat8_e4m3fn, 8, 1),
        DTypeId::F8E5M2 => (C::kDLFloat8_e5m2, 8, 1),
        DTypeId::F8E8M0FNU => (C::kDLFloat8_e8m0fnu, 8, 1),
        DTypeId::F4E2M1FNX2 => (C::kDLFloat4_e2m1fn, 4, 2),
        _ => return None,
    };
    Some(DLDataType { code, bits: bits as u8, lanes })
}
