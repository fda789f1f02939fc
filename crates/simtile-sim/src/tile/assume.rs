//! Checks of `assume`: a promise that does not hold is a finding, since a compiler may build on it.

use super::data::Data;
use super::elementwise::signed;
use super::op::Predicate;
use super::shape::strides;
use super::types::{Elem, TileTy};

/// The element that breaks a promise about a tile, as text.
pub(super) fn broken(predicate: &Predicate, ty: &TileTy, data: &Data) -> Option<String> {
    let value = |i: usize| signed(data.get(i), ty.elem.bits());
    let show = |i: usize| {
        let text = match ty.elem {
            Elem::Pointer(_) => format!("{:#x}", data.get(i)),
            Elem::Scalar(_) => value(i).to_string(),
        };
        if ty.shape.is_empty() { text } else { format!("{text} at {:?}", coordinates(&ty.shape, i)) }
    };
    match predicate {
        Predicate::Bounded(low, high) => (0..data.len())
            .find(|&i| low.is_some_and(|l| value(i) < l) || high.is_some_and(|h| value(i) > h))
            .map(show),
        Predicate::DivBy { divisor, every, along, step } => {
            let (extent, stride) =
                if ty.shape.is_empty() { (1, 1) } else { (ty.shape[*along], strides(&ty.shape)[*along]) };
            (0..data.len())
                .find(|&i| {
                    let place = i / stride % extent;
                    if *every <= 1 || place % every == 0 {
                        // Also right for negative integers: the divisor is a power of two.
                        data.get(i) & (divisor - 1) != 0
                            && (*divisor <= 1 << (ty.elem.bits() - 1) || value(i) != 0)
                    } else {
                        let before = data.get(i - stride);
                        let expected = match ty.elem {
                            Elem::Pointer(_) => before.checked_add(*step),
                            Elem::Scalar(_) => {
                                signed(before, ty.elem.bits()).checked_add(1).map(|v| v as u64)
                            }
                        };
                        let found = match ty.elem {
                            Elem::Pointer(_) => data.get(i),
                            Elem::Scalar(_) => value(i) as u64,
                        };
                        expected != Some(found)
                    }
                })
                .map(show)
        }
        Predicate::SameElements(chunk) => {
            let steps = strides(&ty.shape);
            (0..data.len())
                .find(|&i| {
                    // The first element of the chunk that element `i` is in.
                    let first: usize = (0..ty.shape.len())
                        .map(|d| {
                            let at = i / steps[d] % ty.shape[d];
                            (if chunk[d] == 0 { at } else { at - at % chunk[d] }) * steps[d]
                        })
                        .sum();
                    data.get(i) != data.get(first)
                })
                .map(show)
        }
        Predicate::BaseDivBy(_) => None,
    }
}

/// Where element `i` lies.
pub(super) fn coordinates(shape: &[usize], i: usize) -> Vec<usize> {
    strides(shape).iter().zip(shape).map(|(&stride, &extent)| i / stride.max(1) % extent).collect()
}
