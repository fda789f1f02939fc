//! Comparisons and class tests: masks of lanes.

use super::Word;
use super::float::flush;
use super::half;
use crate::ptx::code::{Lanes, TestFn, mode, window};
use simtile_image::ptx::Type;
use std::cmp::Ordering;

const LESS: u32 = 1;
const EQUAL: u32 = 2;
const GREATER: u32 = 4;
const UNORDERED: u32 = 8;

/// The mode word of a comparison: which outcomes are true.
pub(in crate::ptx) fn outcomes(op: &str, ty: Type) -> Option<u32> {
    let float = matches!(ty, Type::F16 | Type::F32 | Type::F64 | Type::Bf16 | Type::F16x2 | Type::Bf16x2);
    let bits = matches!(ty, Type::B16 | Type::B32 | Type::B64);
    let unsigned = matches!(ty, Type::U16 | Type::U32 | Type::U64);
    let set = match op {
        "eq" => EQUAL,
        // Ordered: NaN is not "not equal".
        "ne" => LESS | GREATER,
        "lt" if !bits => LESS,
        "le" if !bits => LESS | EQUAL,
        "gt" if !bits => GREATER,
        "ge" if !bits => GREATER | EQUAL,
        "lo" if unsigned => LESS,
        "ls" if unsigned => LESS | EQUAL,
        "hi" if unsigned => GREATER,
        "hs" if unsigned => GREATER | EQUAL,
        "equ" if float => EQUAL | UNORDERED,
        "neu" if float => LESS | GREATER | UNORDERED,
        "ltu" if float => LESS | UNORDERED,
        "leu" if float => LESS | EQUAL | UNORDERED,
        "gtu" if float => GREATER | UNORDERED,
        "geu" if float => GREATER | EQUAL | UNORDERED,
        "num" if float => LESS | EQUAL | GREATER,
        "nan" if float => UNORDERED,
        _ => return None,
    };
    Some(set * mode::OWN)
}

fn outcome(order: Option<Ordering>) -> u32 {
    match order {
        Some(Ordering::Less) => LESS,
        Some(Ordering::Equal) => EQUAL,
        Some(Ordering::Greater) => GREATER,
        None => UNORDERED,
    }
}

/// `tests!(|sources, mode| …)`: a [`TestFn`].
macro_rules! tests {
    (|$s:tt, $m:ident| $e:expr) => {{
        #[inline(always)]
        fn all($s: [&Lanes; 3], $m: u32) -> u32 {
            $e
        }
        super::versions!(all: (sources: [&Lanes; 3], mode: u32) -> u32)
    }};
}

#[inline(always)]
fn integers<T: Word + Ord>([a, b, _]: [&Lanes; 3], m: u32) -> u32 {
    let mut mask = 0;
    for i in 0..32 {
        let (a, b) = (T::get(a[i]), T::get(b[i]));
        let outcome = if a < b {
            LESS
        } else if a == b {
            EQUAL
        } else {
            GREATER
        };
        mask |= u32::from(m & (outcome * mode::OWN) != 0) << i;
    }
    mask
}

#[inline(always)]
fn floats([a, b, _]: [&Lanes; 3], m: u32, compare: impl Fn(u64, u64) -> Option<Ordering>) -> u32 {
    let mut mask = 0;
    for i in 0..32 {
        mask |= u32::from(m & (outcome(compare(a[i], b[i])) * mode::OWN) != 0) << i;
    }
    mask
}

/// The comparison of a type; `high` takes the upper half of a pair.
pub(in crate::ptx) fn compare(ty: Type, high: bool) -> Option<TestFn> {
    Some(match ty {
        Type::U16 | Type::B16 => tests!(|s, m| integers::<u16>(s, m)),
        Type::U32 | Type::B32 => tests!(|s, m| integers::<u32>(s, m)),
        Type::U64 | Type::B64 => tests!(|s, m| integers::<u64>(s, m)),
        Type::S16 => tests!(|s, m| integers::<i16>(s, m)),
        Type::S32 => tests!(|s, m| integers::<i32>(s, m)),
        Type::S64 => tests!(|s, m| integers::<i64>(s, m)),
        Type::F32 => {
            tests!(|s, m| floats(s, m, |a, b| flush(f32::get(a), m).partial_cmp(&flush(f32::get(b), m))))
        }
        Type::F64 => tests!(|s, m| floats(s, m, |a, b| f64::get(a).partial_cmp(&f64::get(b)))),
        Type::F16 | Type::F16x2 if !high => {
            tests!(|s, m| floats(s, m, |a, b| f16(a, m).partial_cmp(&f16(b, m))))
        }
        Type::F16x2 => tests!(|s, m| floats(s, m, |a, b| f16(a >> 16, m).partial_cmp(&f16(b >> 16, m)))),
        Type::Bf16 | Type::Bf16x2 if !high => {
            tests!(|s, m| {
                floats(s, m, |a, b| half::value(true, a as u16).partial_cmp(&half::value(true, b as u16)))
            })
        }
        Type::Bf16x2 => tests!(|s, m| floats(s, m, |a, b| {
            half::value(true, (a >> 16) as u16).partial_cmp(&half::value(true, (b >> 16) as u16))
        })),
        _ => return None,
    })
}

fn f16(bits: u64, m: u32) -> f32 {
    let x = half::value(false, bits as u16);
    if m & mode::FTZ != 0 && x.abs() < 6.103_515_6e-5 { 0f32.copysign(x) } else { x }
}

/// `testp`.
pub(in crate::ptx) fn class(op: &str, ty: Type) -> Option<TestFn> {
    #[inline(always)]
    fn classes(a: &Lanes, f: impl Fn(f64, bool) -> bool, wide: bool) -> u32 {
        let mut mask = 0;
        for (i, &a) in a.iter().enumerate() {
            let (x, normal) = if wide {
                (f64::from_bits(a), f64::from_bits(a).is_normal())
            } else {
                let x = f32::from_bits(a as u32);
                (f64::from(x), x.is_normal())
            };
            mask |= u32::from(f(x, normal)) << i;
        }
        mask
    }
    macro_rules! both {
        ($f:expr) => {
            match ty {
                Type::F32 => tests!(|s, _m| classes(s[0], $f, false)),
                Type::F64 => tests!(|s, _m| classes(s[0], $f, true)),
                _ => return None,
            }
        };
    }
    Some(match op {
        "finite" => both!(|x, _| x.is_finite()),
        "infinite" => both!(|x, _| x.is_infinite()),
        "number" => both!(|x, _| !x.is_nan()),
        "notanumber" => both!(|x, _| x.is_nan()),
        // A zero counts as normal, here as on the hardware.
        "normal" => both!(|x, normal| normal || x == 0.0),
        "subnormal" => both!(|x, normal| x.is_finite() && x != 0.0 && !normal),
        _ => return None,
    })
}

/// `isspacep`.
pub(in crate::ptx) fn in_space(space: &str) -> Option<TestFn> {
    #[inline(always)]
    fn within(a: &Lanes, f: impl Fn(u64) -> bool) -> u32 {
        a.iter().enumerate().fold(0, |mask, (i, &a)| mask | u32::from(f(a)) << i)
    }
    fn window_of(a: u64, base: u64) -> bool {
        a >> 32 == base >> 32
    }
    Some(match space {
        // The window of parameters is part of the global one.
        "global" => tests!(|s, _m| within(s[0], |a| a < window::SHARED || window_of(a, window::PARAM))),
        "shared" | "shared::cta" => {
            tests!(
                |s, _m| within(s[0], |a| window_of(a, window::SHARED) && a as u32 >> window::RANK_SHIFT == 0)
            )
        }
        "shared::cluster" => tests!(|s, _m| within(s[0], |a| window_of(a, window::SHARED))),
        "local" => tests!(|s, _m| within(s[0], |a| window_of(a, window::LOCAL))),
        "param" | "param::entry" => tests!(|s, _m| within(s[0], |a| window_of(a, window::PARAM))),
        // Constant memory lies among global addresses here; the decoder has compared with each of its variables.
        "const" => tests!(|s, _m| within(s[0], |inside| inside != 0)),
        _ => return None,
    })
}
