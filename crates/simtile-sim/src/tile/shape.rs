//! Operations that only move elements.

use super::data::Data;
use super::types::{Elem, Shape, count};

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Shape {
    let mut strides: Shape = shape.into();
    let mut step = 1;
    for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step *= extent;
    }
    strides
}

/// Calls `each` with the source offset of every element of `shape` in row-major order.
pub(super) fn walk(shape: &[usize], strides: &[usize], start: usize, each: &mut impl FnMut(usize)) {
    match (shape, strides) {
        ([], _) | (_, []) => each(start),
        ([n], [s]) => (0..*n).for_each(|i| each(start + i * s)),
        ([n, shape @ ..], [s, strides @ ..]) => {
            for i in 0..*n {
                walk(shape, strides, start + i * s, each);
            }
        }
    }
}

fn gather(data: &Data, shape: &[usize], strides: &[usize], start: usize) -> Data {
    let mut indices = Vec::with_capacity(count(shape));
    walk(shape, strides, start, &mut |i| indices.push(i));
    data.pick(indices.into_iter())
}

/// Repeats along the dimensions of extent 1.
pub(super) fn broadcast(data: &Data, from: &[usize], to: &[usize]) -> Data {
    if data.len() == 1 {
        return data.clone().widen(count(to));
    }
    let mut steps = strides(from);
    for (step, &extent) in steps.iter_mut().zip(from) {
        if extent == 1 {
            *step = 0;
        }
    }
    gather(data, to, &steps, 0)
}

/// Dimension `d` of the result is dimension `permutation[d]` of the source.
pub(super) fn permute(data: &Data, from: &[usize], permutation: &[usize]) -> Data {
    let steps = strides(from);
    let shape: Shape = permutation.iter().map(|&d| from[d]).collect();
    let steps: Shape = permutation.iter().map(|&d| steps[d]).collect();
    gather(data, &shape, &steps, 0)
}

/// Concatenates along a dimension.
pub(super) fn cat(
    left: &Data,
    right: &Data,
    left_shape: &[usize],
    right_shape: &[usize],
    dim: usize,
) -> Data {
    let inner = count(&left_shape[dim + 1..]);
    let (l, r) = (left_shape[dim] * inner, right_shape[dim] * inner);
    let outer = count(&left_shape[..dim]);
    fn join<W: super::data::Word>(a: &[W], right: &Data, l: usize, r: usize, outer: usize) -> Data {
        let b = W::of(right);
        let mut out = Vec::with_capacity(outer * (l + r));
        for i in 0..outer {
            out.extend_from_slice(a.get(i * l..(i + 1) * l).unwrap_or_default());
            out.extend_from_slice(b.get(i * r..(i + 1) * r).unwrap_or_default());
        }
        W::wrap(out)
    }
    super::data::each_width!(left, a => join(a, right, l, r, outer))
}

/// Offset of a slice, and the strides of the tile it is in. `None` if there is no such slice.
fn slice_start(large: &[usize], small: &[usize], index: &[i64]) -> Option<(usize, Shape)> {
    let steps = strides(large);
    let mut start = 0;
    for d in 0..large.len() {
        let i = usize::try_from(*index.get(d)?).ok().filter(|&i| i < large[d] / small[d])?;
        start += i * small[d] * steps[d];
    }
    Some((start, steps))
}

/// Slice number `index` of a tile. `None` if there is no such slice.
pub(super) fn extract(data: &Data, large: &[usize], small: &[usize], index: &[i64]) -> Option<Data> {
    let (start, steps) = slice_start(large, small, index)?;
    Some(gather(data, small, &steps, start))
}

/// Replaces slice number `index` of a tile. `None` if there is no such slice.
pub(super) fn insert(
    part: &Data,
    mut into: Data,
    large: &[usize],
    small: &[usize],
    index: &[i64],
) -> Option<Data> {
    let (start, steps) = slice_start(large, small, index)?;
    let mut next = 0;
    walk(small, &steps, start, &mut |i| {
        into.set(i, part.get(next));
        next += 1;
    });
    Some(into)
}

/// The same bits in elements of another width, least significant first.
pub(super) fn repack(data: &Data, from: Elem, to: Elem) -> Data {
    let (narrow, wide) = (from.bits().min(to.bits()), from.bits().max(to.bits()));
    let parts = (wide / narrow).max(1) as usize;
    let mask = super::elementwise::mask(narrow);
    if from.bits() < to.bits() {
        Data::collect(
            to,
            (0..data.len() / parts).map(|i| {
                (0..parts).fold(0, |word, p| word | (data.get(i * parts + p) & mask) << (p as u32 * narrow))
            }),
        )
    } else {
        Data::collect(
            to,
            (0..data.len() * parts).map(|i| data.get(i / parts) >> ((i % parts) as u32 * narrow) & mask),
        )
    }
}
