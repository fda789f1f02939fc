//! Integers and bits.

use super::lanes;
use crate::ptx::code::{CarryFn, LaneFn, mode};
use simtile_image::ptx::Type;

/// The six integer types: picks one instance of a loop by type.
macro_rules! by_int {
    ($ty:expr, |$($v:ident),+| $e:expr) => {
        match $ty {
            Type::U16 => Some(lanes!(|$($v: u16),+| $e)),
            Type::U32 => Some(lanes!(|$($v: u32),+| $e)),
            Type::U64 => Some(lanes!(|$($v: u64),+| $e)),
            Type::S16 => Some(lanes!(|$($v: i16),+| $e)),
            Type::S32 => Some(lanes!(|$($v: i32),+| $e)),
            Type::S64 => Some(lanes!(|$($v: i64),+| $e)),
            _ => None,
        }
    };
}

/// Bit types of 16, 32 and 64 bits.
macro_rules! by_bits {
    ($ty:expr, |$($v:ident),+| $e:expr) => {
        match $ty.bytes() {
            2 => Some(lanes!(|$($v: u16),+| $e)),
            4 => Some(lanes!(|$($v: u32),+| $e)),
            8 => Some(lanes!(|$($v: u64),+| $e)),
            _ => None,
        }
    };
}

macro_rules! by_signed {
    ($ty:expr, |$($v:ident),+| $e:expr) => {
        match $ty {
            Type::S16 => Some(lanes!(|$($v: i16),+| $e)),
            Type::S32 => Some(lanes!(|$($v: i32),+| $e)),
            Type::S64 => Some(lanes!(|$($v: i64),+| $e)),
            _ => None,
        }
    };
}

/// `add`, `sub`, `min`, `max`, `mul.lo`, `div`, `rem`, `sad`, `abs`, `neg`, `mad.lo`.
pub(in crate::ptx) fn plain(op: &str, ty: Type) -> Option<LaneFn> {
    match op {
        "add" => by_int!(ty, |a, b| a.wrapping_add(b)),
        "sub" => by_int!(ty, |a, b| a.wrapping_sub(b)),
        "mul.lo" => by_int!(ty, |a, b| a.wrapping_mul(b)),
        "mad.lo" => by_int!(ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "min" => by_int!(ty, |a, b| a.min(b)),
        "max" => by_int!(ty, |a, b| a.max(b)),
        // Division by zero is unspecified in PTX; the hardware gives all ones and the dividend.
        "div" => match ty {
            Type::U16 => Some(lanes!(|a: u16, b: u16| a.checked_div(b).unwrap_or(u16::MAX))),
            Type::U32 => Some(lanes!(|a: u32, b: u32| a.checked_div(b).unwrap_or(u32::MAX))),
            Type::U64 => Some(lanes!(|a: u64, b: u64| a.checked_div(b).unwrap_or(u64::MAX))),
            Type::S16 => Some(lanes!(|a: i16, b: i16| if b == 0 { -1 } else { a.wrapping_div(b) })),
            Type::S32 => Some(lanes!(|a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_div(b) })),
            Type::S64 => Some(lanes!(|a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_div(b) })),
            _ => None,
        },
        "rem" => by_int!(ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "sad" => match ty {
            Type::U16 => Some(lanes!(|a: u16, b: u16, c: u16| c.wrapping_add(a.abs_diff(b)))),
            Type::U32 => Some(lanes!(|a: u32, b: u32, c: u32| c.wrapping_add(a.abs_diff(b)))),
            Type::U64 => Some(lanes!(|a: u64, b: u64, c: u64| c.wrapping_add(a.abs_diff(b)))),
            Type::S16 => Some(lanes!(|a: i16, b: i16, c: u16| c.wrapping_add(a.abs_diff(b)))),
            Type::S32 => Some(lanes!(|a: i32, b: i32, c: u32| c.wrapping_add(a.abs_diff(b)))),
            Type::S64 => Some(lanes!(|a: i64, b: i64, c: u64| c.wrapping_add(a.abs_diff(b)))),
            _ => None,
        },
        "abs" => by_signed!(ty, |a| a.wrapping_abs()),
        "neg" => by_signed!(ty, |a| a.wrapping_neg()),
        _ => None,
    }
}

/// `.sat` and `.relu` forms, and packed 16-bit integers.
pub(in crate::ptx) fn special(op: &str, ty: Type) -> Option<LaneFn> {
    Some(match (op, ty) {
        ("add.sat", Type::S32) => lanes!(|a: i32, b: i32| a.saturating_add(b)),
        ("sub.sat", Type::S32) => lanes!(|a: i32, b: i32| a.saturating_sub(b)),
        ("min.relu", Type::S32) => lanes!(|a: i32, b: i32| a.min(b).max(0)),
        ("max.relu", Type::S32) => lanes!(|a: i32, b: i32| a.max(b).max(0)),
        ("mad.hi.sat", Type::S32) => {
            lanes!(|a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c))
        }
        _ => return None,
    })
}

/// `add`, `min` and `max` of two 16-bit integers in 32 bits.
pub(in crate::ptx) fn packed16(op: &str, signed: bool, relu: bool) -> Option<LaneFn> {
    fn each(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
        u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
    }
    Some(match (op, signed, relu) {
        ("add", _, false) => lanes!(|a: u32, b: u32| each(a, b, u16::wrapping_add)),
        ("min", false, false) => lanes!(|a: u32, b: u32| each(a, b, Ord::min)),
        ("max", false, false) => lanes!(|a: u32, b: u32| each(a, b, Ord::max)),
        ("min", true, false) => lanes!(|a: u32, b: u32| each(a, b, |a, b| (a as i16).min(b as i16) as u16)),
        ("max", true, false) => lanes!(|a: u32, b: u32| each(a, b, |a, b| (a as i16).max(b as i16) as u16)),
        ("min", true, true) => {
            lanes!(|a: u32, b: u32| each(a, b, |a, b| (a as i16).min(b as i16).max(0) as u16))
        }
        ("max", true, true) => {
            lanes!(|a: u32, b: u32| each(a, b, |a, b| (a as i16).max(b as i16).max(0) as u16))
        }
        _ => return None,
    })
}

/// `mul` and `mad` with `.hi` and `.wide`.
pub(in crate::ptx) fn multiply(op: &str, ty: Type) -> Option<LaneFn> {
    Some(match (op, ty) {
        ("mul.hi", Type::U16) => lanes!(|a: u16, b: u16| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        ("mul.hi", Type::S16) => lanes!(|a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        ("mul.hi", Type::U32) => lanes!(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        ("mul.hi", Type::S32) => lanes!(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        ("mul.hi", Type::U64) => lanes!(|a: u64, b: u64| high(a, b)),
        ("mul.hi", Type::S64) => lanes!(|a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        ("mul.wide", Type::U16) => lanes!(|a: u16, b: u16| u32::from(a) * u32::from(b)),
        ("mul.wide", Type::S16) => lanes!(|a: i16, b: i16| i32::from(a) * i32::from(b)),
        ("mul.wide", Type::U32) => lanes!(|a: u32, b: u32| u64::from(a) * u64::from(b)),
        ("mul.wide", Type::S32) => lanes!(|a: i32, b: i32| i64::from(a) * i64::from(b)),
        ("mad.hi", Type::U16) => {
            lanes!(|a: u16, b: u16, c: u16| (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c))
        }
        ("mad.hi", Type::S16) => {
            lanes!(|a: i16, b: i16, c: i16| (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c))
        }
        ("mad.hi", Type::U32) => {
            lanes!(|a: u32, b: u32, c: u32| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        ("mad.hi", Type::S32) => {
            lanes!(|a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))
        }
        ("mad.hi", Type::U64) => lanes!(|a: u64, b: u64, c: u64| high(a, b).wrapping_add(c)),
        ("mad.hi", Type::S64) => {
            lanes!(|a: i64, b: i64, c: i64| (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c))
        }
        ("mad.wide", Type::U16) => {
            lanes!(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c))
        }
        ("mad.wide", Type::S16) => {
            lanes!(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c))
        }
        ("mad.wide", Type::U32) => {
            lanes!(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        ("mad.wide", Type::S32) => {
            lanes!(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c))
        }
        _ => return None,
    })
}

fn high(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// `mul24` and `mad24`: the low 24 bits of each factor; 48 bits of product.
pub(in crate::ptx) fn short24(op: &str, ty: Type, sat: bool) -> Option<LaneFn> {
    fn product(a: u32, b: u32, signed: bool) -> i64 {
        if signed {
            i64::from((a << 8) as i32 >> 8) * i64::from((b << 8) as i32 >> 8)
        } else {
            i64::from(a & 0xFF_FFFF) * i64::from(b & 0xFF_FFFF)
        }
    }
    Some(match (op, ty, sat) {
        ("mul24.lo", Type::U32, _) => lanes!(|a: u32, b: u32| product(a, b, false) as u32),
        ("mul24.lo", Type::S32, _) => lanes!(|a: u32, b: u32| product(a, b, true) as u32),
        ("mul24.hi", Type::U32, _) => lanes!(|a: u32, b: u32| (product(a, b, false) >> 16) as u32),
        ("mul24.hi", Type::S32, _) => lanes!(|a: u32, b: u32| (product(a, b, true) >> 16) as u32),
        ("mad24.lo", Type::U32, _) => {
            lanes!(|a: u32, b: u32, c: u32| (product(a, b, false) as u32).wrapping_add(c))
        }
        ("mad24.lo", Type::S32, _) => {
            lanes!(|a: u32, b: u32, c: u32| (product(a, b, true) as u32).wrapping_add(c))
        }
        ("mad24.hi", Type::U32, _) => {
            lanes!(|a: u32, b: u32, c: u32| ((product(a, b, false) >> 16) as u32).wrapping_add(c))
        }
        ("mad24.hi", Type::S32, true) => {
            lanes!(|a: u32, b: u32, c: i32| ((product(a, b, true) >> 16) as i32).saturating_add(c))
        }
        ("mad24.hi", Type::S32, false) => {
            lanes!(|a: u32, b: u32, c: u32| ((product(a, b, true) >> 16) as u32).wrapping_add(c))
        }
        _ => return None,
    })
}

/// `and`, `or`, `xor`, `not`, `cnot`, `shl`, `shr`, `popc`, `clz`, `brev`.
pub(in crate::ptx) fn bits(op: &str, ty: Type) -> Option<LaneFn> {
    match op {
        "and" => by_bits!(ty, |a, b| a & b),
        "or" => by_bits!(ty, |a, b| a | b),
        "xor" => by_bits!(ty, |a, b| a ^ b),
        "not" => by_bits!(ty, |a| !a),
        "cnot" => match ty.bytes() {
            2 => Some(lanes!(|a: u16| u16::from(a == 0))),
            4 => Some(lanes!(|a: u32| u32::from(a == 0))),
            8 => Some(lanes!(|a: u64| u64::from(a == 0))),
            _ => None,
        },
        "shl" => match ty.bytes() {
            2 => Some(lanes!(|a: u16, b: u32| a.checked_shl(b).unwrap_or(0))),
            4 => Some(lanes!(|a: u32, b: u32| a.checked_shl(b).unwrap_or(0))),
            8 => Some(lanes!(|a: u64, b: u32| a.checked_shl(b).unwrap_or(0))),
            _ => None,
        },
        "shr" => match ty {
            Type::S16 => Some(lanes!(|a: i16, b: u32| a >> b.min(15))),
            Type::S32 => Some(lanes!(|a: i32, b: u32| a >> b.min(31))),
            Type::S64 => Some(lanes!(|a: i64, b: u32| a >> b.min(63))),
            _ => match ty.bytes() {
                2 => Some(lanes!(|a: u16, b: u32| a.checked_shr(b).unwrap_or(0))),
                4 => Some(lanes!(|a: u32, b: u32| a.checked_shr(b).unwrap_or(0))),
                8 => Some(lanes!(|a: u64, b: u32| a.checked_shr(b).unwrap_or(0))),
                _ => None,
            },
        },
        "popc" => by_wide(ty, lanes!(|a: u32| a.count_ones()), lanes!(|a: u64| a.count_ones())),
        "clz" => by_wide(ty, lanes!(|a: u32| a.leading_zeros()), lanes!(|a: u64| a.leading_zeros())),
        "brev" => by_wide(ty, lanes!(|a: u32| a.reverse_bits()), lanes!(|a: u64| a.reverse_bits())),
        _ => None,
    }
}

fn by_wide(ty: Type, narrow: LaneFn, wide: LaneFn) -> Option<LaneFn> {
    match ty.bytes() {
        4 => Some(narrow),
        8 => Some(wide),
        _ => None,
    }
}

/// `bfind`, with or without `.shiftamt`.
pub(in crate::ptx) fn find(ty: Type, shift: bool) -> Option<LaneFn> {
    fn one(a: u64, bits: u32, shift: bool) -> u32 {
        match a {
            0 => u32::MAX,
            _ if shift => bits - 1 - a.ilog2(),
            _ => a.ilog2(),
        }
    }
    Some(match (ty, shift) {
        (Type::U32, false) => lanes!(|a: u32| one(a.into(), 32, false)),
        (Type::U32, true) => lanes!(|a: u32| one(a.into(), 32, true)),
        (Type::U64, false) => lanes!(|a: u64| one(a, 64, false)),
        (Type::U64, true) => lanes!(|a: u64| one(a, 64, true)),
        // Signed: the highest bit that differs from the sign.
        (Type::S32, false) => lanes!(|a: i32| one(((a ^ (a >> 31)) as u32).into(), 32, false)),
        (Type::S32, true) => lanes!(|a: i32| one(((a ^ (a >> 31)) as u32).into(), 32, true)),
        (Type::S64, false) => lanes!(|a: i64| one((a ^ (a >> 63)) as u64, 64, false)),
        (Type::S64, true) => lanes!(|a: i64| one((a ^ (a >> 63)) as u64, 64, true)),
        _ => return None,
    })
}

/// `bfe`: bits `b .. b + c` of `a`, sign-extended for signed types.
pub(in crate::ptx) fn extract(ty: Type) -> Option<LaneFn> {
    fn one(a: u64, pos: u32, len: u32, width: u32, signed: bool) -> u64 {
        let (pos, len) = (amount(pos, width), amount(len, width));
        let mask = if width == 64 { u64::MAX } else { u64::from(u32::MAX) };
        let top = (pos + len).min(width);
        let sign = if !signed || len == 0 { 0 } else { a >> (top.min(width) - 1).min(width - 1) & 1 };
        let field = if pos >= width { 0 } else { a >> pos };
        // Bits from the field's end on repeat the sign.
        let kept = if pos >= width { 0 } else { (width - pos).min(len) };
        let ones = if kept >= 64 { u64::MAX } else { (1 << kept) - 1 };
        let high = if sign != 0 { !ones } else { 0 };
        ((field & ones) | high) & mask
    }
    Some(match ty {
        Type::U32 => lanes!(|a: u32, b: u32, c: u32| one(a.into(), b, c, 32, false)),
        Type::S32 => lanes!(|a: u32, b: u32, c: u32| one(a.into(), b, c, 32, true)),
        Type::U64 => lanes!(|a: u64, b: u32, c: u32| one(a, b, c, 64, false)),
        Type::S64 => lanes!(|a: u64, b: u32, c: u32| one(a, b, c, 64, true)),
        _ => return None,
    })
}

/// First half of `bfi`: moves `a` into place. Operands: a, position, length.
pub(in crate::ptx) fn insert_field(ty: Type) -> Option<LaneFn> {
    by_wide(
        ty,
        lanes!(|a: u32, b: u32, c: u32| {
            (u64::from(a) & field_mask(amount(c, 32))).checked_shl(amount(b, 32)).unwrap_or(0) as u32
        }),
        lanes!(|a: u64, b: u32, c: u32| (a & field_mask(c)).checked_shl(b).unwrap_or(0)),
    )
}

/// Second half: clears the field in `a`. Operands: a, position, length.
pub(in crate::ptx) fn clear_field(ty: Type) -> Option<LaneFn> {
    by_wide(
        ty,
        lanes!(|a: u32, b: u32, c: u32| {
            a & !(field_mask(amount(c, 32)).checked_shl(amount(b, 32)).unwrap_or(0) as u32)
        }),
        lanes!(|a: u64, b: u32, c: u32| a & !field_mask(c).checked_shl(b).unwrap_or(0)),
    )
}

/// A position or length: of 32-bit fields the hardware reads the low byte, of 64-bit ones all of it. What lies
/// beyond every field is cut to 255.
fn amount(v: u32, width: u32) -> u32 {
    if width == 32 { v & 0xFF } else { v.min(255) }
}

fn field_mask(len: u32) -> u64 {
    1u64.checked_shl(len).map_or(u64::MAX, |bit| bit - 1)
}

/// `bmsk`: `b` ones from bit `a` on; clamped or wrapped.
pub(in crate::ptx) fn mask(wrap: bool) -> LaneFn {
    fn one(a: u32, b: u32) -> u32 {
        ((field_mask(b.min(32)) as u32).checked_shl(a)).unwrap_or(0)
    }
    if wrap { lanes!(|a: u32, b: u32| one(a & 31, b & 31)) } else { lanes!(|a: u32, b: u32| one(a, b)) }
}

/// `szext`: extends the low `b` bits.
pub(in crate::ptx) fn extend(signed: bool, wrap: bool) -> LaneFn {
    fn one(a: u32, n: u32, signed: bool) -> u32 {
        match (n, signed) {
            (0, _) => 0,
            (32.., _) => a,
            (_, false) => a & ((1 << n) - 1),
            (_, true) => ((a << (32 - n)) as i32 >> (32 - n)) as u32,
        }
    }
    match (signed, wrap) {
        (false, false) => lanes!(|a: u32, b: u32| one(a, b, false)),
        (false, true) => lanes!(|a: u32, b: u32| one(a, b & 31, false)),
        (true, false) => lanes!(|a: u32, b: u32| one(a, b, true)),
        (true, true) => lanes!(|a: u32, b: u32| one(a, b & 31, true)),
    }
}

/// `shf`: funnel shift of `b:a` by `c`.
pub(in crate::ptx) fn funnel(left: bool, wrap: bool) -> LaneFn {
    fn wide(a: u32, b: u32) -> u64 {
        u64::from(b) << 32 | u64::from(a)
    }
    match (left, wrap) {
        (true, true) => lanes!(|a: u32, b: u32, c: u32| ((wide(a, b) << (c & 31)) >> 32) as u32),
        (true, false) => lanes!(|a: u32, b: u32, c: u32| ((wide(a, b) << c.min(32)) >> 32) as u32),
        (false, true) => lanes!(|a: u32, b: u32, c: u32| (wide(a, b) >> (c & 31)) as u32),
        (false, false) => lanes!(|a: u32, b: u32, c: u32| (wide(a, b) >> c.min(32)) as u32),
    }
}

/// `prmt` by its selector and mode.
pub(in crate::ptx) fn permute(which: Option<&str>) -> Option<LaneFn> {
    fn byte(a: u32, b: u32, at: u32) -> u32 {
        ((u64::from(b) << 32 | u64::from(a)) >> (8 * (at & 7))) as u32 & 0xFF
    }
    fn build(a: u32, b: u32, at: [u32; 4]) -> u32 {
        at.iter().enumerate().fold(0, |r, (i, &at)| r | byte(a, b, at) << (8 * i))
    }
    Some(match which {
        None => lanes!(|a: u32, b: u32, c: u32| (0..4).fold(0, |r, i| {
            let s = c >> (4 * i) & 15;
            let v = byte(a, b, s);
            let v = if s & 8 == 0 { v } else { (v >> 7) * 0xFF };
            r | v << (8 * i)
        })),
        Some("f4e") => lanes!(|a: u32, b: u32, c: u32| {
            let c = c & 3;
            build(a, b, [c, c + 1, c + 2, c + 3])
        }),
        Some("b4e") => lanes!(|a: u32, b: u32, c: u32| {
            let c = c & 3;
            build(a, b, [c, c.wrapping_sub(1), c.wrapping_sub(2), c.wrapping_sub(3)])
        }),
        Some("rc8") => lanes!(|a: u32, b: u32, c: u32| build(a, b, [c & 3; 4])),
        Some("ecl") => lanes!(|a: u32, b: u32, c: u32| {
            let c = c & 3;
            build(a, b, [c, 1.max(c), 2.max(c), 3.max(c)])
        }),
        Some("ecr") => lanes!(|a: u32, b: u32, c: u32| {
            let c = c & 3;
            build(a, b, [0, 1.min(c), 2.min(c), c])
        }),
        Some("rc16") => lanes!(|a: u32, b: u32, c: u32| {
            let c = (c & 1) * 2;
            build(a, b, [c, c + 1, c, c + 1])
        }),
        Some(_) => return None,
    })
}

/// `lop3.b32`; the table is the mode word.
pub(in crate::ptx) fn lop3() -> LaneFn {
    lanes!(|a: u32, b: u32, c: u32; table| (0..8u32).fold(0, |r, i| {
        if table >> i & 1 == 0 {
            return r;
        }
        let pick = |bit: u32, v: u32| if i & bit != 0 { v } else { !v };
        r | (pick(4, a) & pick(2, b) & pick(1, c))
    }))
}

/// `fns.b32`: the position of the c-th set bit from b on.
pub(in crate::ptx) fn nth_set() -> LaneFn {
    fn one(mask: u32, base: u32, offset: i32) -> u32 {
        if base > 31 {
            return u32::MAX;
        }
        let is_set = |i: &i64| mask >> *i & 1 != 0;
        let base = i64::from(base);
        let n = offset.unsigned_abs() as usize;
        let found = match offset {
            0 => Some(base).filter(is_set),
            1.. => (base..32).filter(is_set).nth(n - 1),
            _ => (0..=base).rev().filter(is_set).nth(n - 1),
        };
        found.map_or(u32::MAX, |i| i as u32)
    }
    lanes!(|a: u32, b: u32, c: i32| one(a, b, c))
}

/// `dp4a` and `dp2a`, by the mode word of [`dot_mode`].
pub(in crate::ptx) fn dot() -> LaneFn {
    lanes!(|a: u32, b: u32, c: u32; m| {
        let flag = |n: u32| m & (mode::OWN << n) != 0;
        let part = |v: u32, bits: u32, i: u32, signed: bool| -> i32 {
            let v = v >> (bits * i) << (32 - bits);
            if signed { v as i32 >> (32 - bits) } else { (v >> (32 - bits)) as i32 }
        };
        let mut sum = c;
        if flag(0) {
            for i in 0..4 {
                sum = sum.wrapping_add((part(a, 8, i, flag(1)) * part(b, 8, i, flag(2))) as u32);
            }
        } else {
            for i in 0..2 {
                let j = if flag(3) { i + 2 } else { i };
                sum = sum.wrapping_add((part(a, 16, i, flag(1)) * part(b, 8, j, flag(2))) as u32);
            }
        }
        sum
    })
}

/// The mode word of [`dot`].
pub(in crate::ptx) fn dot_mode(four: bool, a_signed: bool, b_signed: bool, high: bool) -> u32 {
    let bit = |n: u32, set: bool| if set { mode::OWN << n } else { 0 };
    bit(0, four) | bit(1, a_signed) | bit(2, b_signed) | bit(3, high)
}

/// A loop with carry: `f(a, b, c, carry in) -> (result, carry out)`.
macro_rules! carry {
    (|$a:ident, $b:ident, $c:ident, $cc:ident: $t:ty| $e:expr) => {{
        let f: CarryFn = |out, [a, b, c], carries| {
            let mut next = 0;
            for i in 0..32 {
                let ($a, $b, $c, $cc) = (a[i] as $t, b[i] as $t, c[i] as $t, (carries >> i & 1) as $t);
                let (result, carry): ($t, bool) = $e;
                out[i] = u64::from(result);
                next |= u32::from(carry) << i;
            }
            next
        };
        f
    }};
}

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.{lo,hi}.cc`, `madc.{lo,hi}`: (operation, type).
pub(in crate::ptx) fn carrying(op: &str, ty: Type) -> Option<CarryFn> {
    fn add3<T: Copy>(a: T, b: T, c: T, add: impl Fn(T, T) -> (T, bool)) -> (T, bool) {
        let (s, x) = add(a, b);
        let (s, y) = add(s, c);
        (s, x | y)
    }
    let wide = match ty {
        Type::U32 | Type::S32 => false,
        Type::U64 | Type::S64 => true,
        // Not in PTX's description, but the assembler takes it.
        Type::U16 if op == "addc" => {
            return Some(carry!(|a, b, _c, cc: u16| add3(a, b, cc, u16::overflowing_add)));
        }
        _ => return None,
    };
    let signed = matches!(ty, Type::S32 | Type::S64);
    Some(match (op, wide) {
        ("add", false) => carry!(|a, b, _c, _cc: u32| a.overflowing_add(b)),
        ("add", true) => carry!(|a, b, _c, _cc: u64| a.overflowing_add(b)),
        ("addc", false) => carry!(|a, b, _c, cc: u32| add3(a, b, cc, u32::overflowing_add)),
        ("addc", true) => carry!(|a, b, _c, cc: u64| add3(a, b, cc, u64::overflowing_add)),
        // A difference is the sum with the complement: its carry is set where nothing was borrowed, and that is what
        // `addc` sees after `sub.cc`, and `subc` after `add.cc`.
        ("sub", false) => carry!(|a, b, _c, _cc: u32| add3(a, !b, 1, u32::overflowing_add)),
        ("sub", true) => carry!(|a, b, _c, _cc: u64| add3(a, !b, 1, u64::overflowing_add)),
        ("subc", false) => carry!(|a, b, _c, cc: u32| add3(a, !b, cc, u32::overflowing_add)),
        ("subc", true) => carry!(|a, b, _c, cc: u64| add3(a, !b, cc, u64::overflowing_add)),
        ("mad.lo", false) => carry!(|a, b, c, _cc: u32| a.wrapping_mul(b).overflowing_add(c)),
        ("mad.lo", true) => carry!(|a, b, c, _cc: u64| a.wrapping_mul(b).overflowing_add(c)),
        ("madc.lo", false) => carry!(|a, b, c, cc: u32| add3(a.wrapping_mul(b), c, cc, u32::overflowing_add)),
        ("madc.lo", true) => carry!(|a, b, c, cc: u64| add3(a.wrapping_mul(b), c, cc, u64::overflowing_add)),
        ("mad.hi", false) if signed => carry!(|a, b, c, _cc: u32| high_s32(a, b).overflowing_add(c)),
        ("mad.hi", false) => carry!(|a, b, c, _cc: u32| high_u32(a, b).overflowing_add(c)),
        ("mad.hi", true) if signed => carry!(|a, b, c, _cc: u64| high_s64(a, b).overflowing_add(c)),
        ("mad.hi", true) => carry!(|a, b, c, _cc: u64| high(a, b).overflowing_add(c)),
        ("madc.hi", false) if signed => {
            carry!(|a, b, c, cc: u32| add3(high_s32(a, b), c, cc, u32::overflowing_add))
        }
        ("madc.hi", false) => carry!(|a, b, c, cc: u32| add3(high_u32(a, b), c, cc, u32::overflowing_add)),
        ("madc.hi", true) if signed => {
            carry!(|a, b, c, cc: u64| add3(high_s64(a, b), c, cc, u64::overflowing_add))
        }
        ("madc.hi", true) => carry!(|a, b, c, cc: u64| add3(high(a, b), c, cc, u64::overflowing_add)),
        _ => return None,
    })
}

fn high_u32(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

fn high_s32(a: u32, b: u32) -> u32 {
    ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
}

fn high_s64(a: u64, b: u64) -> u64 {
    ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
}
