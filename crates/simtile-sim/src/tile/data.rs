//! The elements of a tile: a dense, row-major array of bit patterns.
//!
//! The width of the storage follows from the element type (one byte for `i1`, `i4` and the 4- and 8-bit
//! floats). Integers are kept zero-extended and masked to their width, `i1` is 0 or 1.
//!
//! Two operands of an elementwise operation have the same length, or one of them has length 1 and counts for all: this is how
//! the body of a reduction, written for scalars, runs on many lanes at once.

use super::types::Elem;
use bytemuck::{Pod, Zeroable};

/// Elements by width of their storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    /// `i1`, `i4`, `i8` and the 4- and 8-bit floats.
    B8(Vec<u8>),
    /// `i16`, `f16`, `bf16`.
    B16(Vec<u16>),
    /// `i32`, `f32`, `tf32`.
    B32(Vec<u32>),
    /// `i64`, `f64`, pointers.
    B64(Vec<u64>),
}

/// An unsigned integer that stores elements.
pub(super) trait Word: Copy + Default + Pod + Zeroable + PartialEq {
    fn wrap(values: Vec<Self>) -> Data;
    fn of(data: &Data) -> &[Self];
}

macro_rules! word {
    ($type:ty, $variant:ident) => {
        impl Word for $type {
            fn wrap(values: Vec<Self>) -> Data {
                Data::$variant(values)
            }
            #[inline(always)]
            fn of(data: &Data) -> &[Self] {
                match data {
                    Data::$variant(v) => v,
                    _ => &[],
                }
            }
        }
    };
}
word!(u8, B8);
word!(u16, B16);
word!(u32, B32);
word!(u64, B64);

/// Runs an expression with the vector inside.
macro_rules! each_width {
    ($data:expr, $values:ident => $body:expr) => {
        match $data {
            Data::B8($values) => $body,
            Data::B16($values) => $body,
            Data::B32($values) => $body,
            Data::B64($values) => $body,
        }
    };
}
pub(super) use each_width;

impl Data {
    /// Zeros.
    pub(super) fn zeros(elem: Elem, count: usize) -> Self {
        Self::splat(elem, count, 0)
    }

    /// The same value everywhere.
    pub(super) fn splat(elem: Elem, count: usize, value: u64) -> Self {
        match elem.bytes() {
            1 => Data::B8(vec![value as u8; count]),
            2 => Data::B16(vec![value as u16; count]),
            4 => Data::B32(vec![value as u32; count]),
            _ => Data::B64(vec![value; count]),
        }
    }

    /// Values from an iterator of bit patterns.
    pub(super) fn collect(elem: Elem, values: impl Iterator<Item = u64>) -> Self {
        match elem.bytes() {
            1 => Data::B8(values.map(|v| v as u8).collect()),
            2 => Data::B16(values.map(|v| v as u16).collect()),
            4 => Data::B32(values.map(|v| v as u32).collect()),
            _ => Data::B64(values.collect()),
        }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        each_width!(self, v => v.len())
    }

    /// Bit pattern of element `i`; 0 outside.
    #[inline]
    pub(super) fn get(&self, i: usize) -> u64 {
        match self {
            Data::B8(v) => v.get(i).map_or(0, |&x| u64::from(x)),
            Data::B16(v) => v.get(i).map_or(0, |&x| u64::from(x)),
            Data::B32(v) => v.get(i).map_or(0, |&x| u64::from(x)),
            Data::B64(v) => v.get(i).copied().unwrap_or(0),
        }
    }

    /// Sets element `i`; nothing outside.
    #[inline]
    pub(super) fn set(&mut self, i: usize, value: u64) {
        match self {
            Data::B8(v) => v.get_mut(i).map(|x| *x = value as u8),
            Data::B16(v) => v.get_mut(i).map(|x| *x = value as u16),
            Data::B32(v) => v.get_mut(i).map(|x| *x = value as u32),
            Data::B64(v) => v.get_mut(i).map(|x| *x = value),
        };
    }

    /// All bit patterns.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// The elements at `indices`, in that order.
    pub(super) fn pick(&self, indices: impl Iterator<Item = usize>) -> Data {
        fn pick<W: Word>(v: &[W], indices: impl Iterator<Item = usize>) -> Data {
            W::wrap(indices.map(|i| v.get(i).copied().unwrap_or_default()).collect())
        }
        each_width!(self, v => pick(v, indices))
    }

    /// Every second chunk of `size` elements: the even ones, or the odd ones (`odd` 1).
    pub(super) fn chunks(&self, size: usize, odd: usize) -> Data {
        fn every_second<W: Word>(v: &[W], size: usize, odd: usize) -> Data {
            let pairs = v.chunks_exact(2 * size);
            W::wrap(match size {
                1 => pairs.map(|pair| pair[odd]).collect(),
                _ => pairs.flat_map(|pair| &pair[odd * size..][..size]).copied().collect(),
            })
        }
        each_width!(self, v => every_second(v, size, odd))
    }

    /// The bytes in memory order (little-endian hosts).
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        each_width!(self, v => bytemuck::cast_slice_mut(v.as_mut_slice()))
    }

    /// The bytes in memory order.
    pub(super) fn bytes(&self) -> &[u8] {
        each_width!(self, v => bytemuck::cast_slice(v.as_slice()))
    }

    /// `count` lanes: itself, or its one element repeated.
    pub(super) fn widen(self, count: usize) -> Data {
        fn repeat<W: Word>(v: Vec<W>, count: usize) -> Data {
            W::wrap(if v.len() == count { v } else { vec![v.first().copied().unwrap_or_default(); count] })
        }
        each_width!(self, v => repeat(v, count))
    }
}

/// Applies `f` to each element.
#[inline(always)]
pub(super) fn map1<A: Word, R: Word>(a: &Data, f: impl Fn(A) -> R) -> Data {
    R::wrap(A::of(a).iter().map(|&x| f(x)).collect())
}

/// Applies `f` to pairs of elements.
#[inline(always)]
pub(super) fn map2<A: Word, B: Word, R: Word>(a: &Data, b: &Data, f: impl Fn(A, B) -> R) -> Data {
    let (a, b) = (A::of(a), B::of(b));
    R::wrap(match (a, b) {
        ([x], b) => b.iter().map(|&y| f(*x, y)).collect(),
        (a, [y]) => a.iter().map(|&x| f(x, *y)).collect(),
        (a, b) => a.iter().zip(b).map(|(&x, &y)| f(x, y)).collect(),
    })
}

/// Applies `f` to triples of elements.
#[inline(always)]
pub(super) fn map3<A: Word, B: Word, C: Word, R: Word>(
    a: &Data,
    b: &Data,
    c: &Data,
    f: impl Fn(A, B, C) -> R,
) -> Data {
    let (a, b, c) = (A::of(a), B::of(b), C::of(c));
    if a.len() == b.len() && b.len() == c.len() {
        return R::wrap(a.iter().zip(b).zip(c).map(|((&x, &y), &z)| f(x, y, z)).collect());
    }
    let lanes = a.len().max(b.len()).max(c.len());
    let at = |len: usize, i: usize| if len == 1 { 0 } else { i };
    R::wrap(
        (0..lanes)
            .filter_map(|i| {
                Some(f(*a.get(at(a.len(), i))?, *b.get(at(b.len(), i))?, *c.get(at(c.len(), i))?))
            })
            .collect(),
    )
}
