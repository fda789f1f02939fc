//! Arithmetic on whole warps.
//!
//! Each function here computes all 32 lanes, also inactive ones (the caller keeps what is active), so no
//! function may fail on any value. The tables `int::…`, `float::…` map an operation and a type to such a
//! loop at load.

pub(super) mod convert;
pub(super) mod float;
pub(super) mod half;
pub(super) mod int;
pub(super) mod test;

/// A value in the low bits of a lane.
pub(super) trait Word: Copy {
    fn get(lane: u64) -> Self;
    fn put(self) -> u64;
}

macro_rules! words {
    ($($t:ty => $u:ty),*) => {$(
        impl Word for $t {
            #[inline(always)]
            fn get(lane: u64) -> Self { lane as $t }
            #[inline(always)]
            fn put(self) -> u64 { self as $u as u64 }
        }
    )*};
}
words!(u8 => u8, u16 => u16, u32 => u32, u64 => u64, i8 => u8, i16 => u16, i32 => u32, i64 => u64);

impl Word for f32 {
    #[inline(always)]
    fn get(lane: u64) -> Self {
        f32::from_bits(lane as u32)
    }
    #[inline(always)]
    fn put(self) -> u64 {
        // One NaN for all results, as the hardware does.
        if self.is_nan() { 0x7FFF_FFFF } else { self.to_bits().into() }
    }
}

impl Word for f64 {
    #[inline(always)]
    fn get(lane: u64) -> Self {
        f64::from_bits(lane)
    }
    #[inline(always)]
    fn put(self) -> u64 {
        self.to_bits()
    }
}

/// `lanes!(|a: T| …)`, up to three operands and optionally the mode word: a [`super::code::LaneFn`].
macro_rules! lanes {
    (|$a:ident: $ta:ty| $e:expr) => { lanes!(|$a: $ta; _mode| $e) };
    (|$a:ident: $ta:ty; $m:ident| $e:expr) => {{
        let f: $crate::ptx::code::LaneFn = |out, [a, _, _], $m| {
            for (out, &a) in out.iter_mut().zip(a) {
                let $a = <$ta as $crate::ptx::lanes::Word>::get(a);
                *out = $crate::ptx::lanes::Word::put($e);
            }
        };
        f
    }};
    (|$a:ident: $ta:ty, $b:ident: $tb:ty| $e:expr) => { lanes!(|$a: $ta, $b: $tb; _mode| $e) };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty; $m:ident| $e:expr) => {{
        let f: $crate::ptx::code::LaneFn = |out, [a, b, _], $m| {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                let $a = <$ta as $crate::ptx::lanes::Word>::get(a);
                let $b = <$tb as $crate::ptx::lanes::Word>::get(b);
                *out = $crate::ptx::lanes::Word::put($e);
            }
        };
        f
    }};
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty| $e:expr) => {
        lanes!(|$a: $ta, $b: $tb, $c: $tc; _mode| $e)
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty; $m:ident| $e:expr) => {{
        let f: $crate::ptx::code::LaneFn = |out, [a, b, c], $m| {
            for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                let $a = <$ta as $crate::ptx::lanes::Word>::get(a);
                let $b = <$tb as $crate::ptx::lanes::Word>::get(b);
                let $c = <$tc as $crate::ptx::lanes::Word>::get(c);
                *out = $crate::ptx::lanes::Word::put($e);
            }
        };
        f
    }};
}
pub(super) use lanes;
