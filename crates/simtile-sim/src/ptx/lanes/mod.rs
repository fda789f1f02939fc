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

/// The version of a loop that this machine runs fastest. `body` is an `#[inline(always)]` function; each version
/// is that function compiled for another vector unit. Builds with debug assertions, whose loops are not vectorised
/// anyway, do without: that halves their time to compile.
macro_rules! versions {
    ($body:ident: ($($arg:ident: $t:ty),+) $(-> $r:ty)?) => {{
        fn plain($($arg: $t),+) $(-> $r)? {
            $body($($arg),+)
        }
        #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn wide($($arg: $t),+) $(-> $r)? {
            $body($($arg),+)
        }
        #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
        let fast = $crate::ptx::lanes::is_wide().then_some(wide as unsafe fn($($t),+) $(-> $r)?);
        #[cfg(not(all(target_arch = "x86_64", not(debug_assertions))))]
        let fast = None::<unsafe fn($($t),+) $(-> $r)?>;
        // SAFETY: `wide` is taken only where the machine has what it is compiled for.
        unsafe { $crate::ptx::code::Versioned::new(fast.unwrap_or(plain)) }
    }};
}
pub(super) use versions;

/// Whether the machine has the vector unit that [`versions`] compiles for.
pub(super) fn is_wide() -> bool {
    #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
    macro_rules! all {
        ($($f:tt),*) => { $(std::arch::is_x86_feature_detected!($f))&&* };
    }
    #[cfg(not(all(target_arch = "x86_64", not(debug_assertions))))]
    macro_rules! all {
        ($($f:tt),*) => {
            false
        };
    }
    all!("avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "popcnt")
}

/// `lanes!(|a: T| …)`, up to three operands and optionally the mode word: a [`super::code::LaneFn`].
macro_rules! lanes {
    (|$($v:ident: $t:ty),+| $e:expr) => { lanes!(|$($v: $t),+; _mode| $e) };
    (|$a:ident: $ta:ty; $m:ident| $e:expr) => {
        lanes!(@ $m, $e, |s, i| $a: $ta = s[0][i];)
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty; $m:ident| $e:expr) => {
        lanes!(@ $m, $e, |s, i| $a: $ta = s[0][i]; $b: $tb = s[1][i];)
    };
    (|$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty; $m:ident| $e:expr) => {
        lanes!(@ $m, $e, |s, i| $a: $ta = s[0][i]; $b: $tb = s[1][i]; $c: $tc = s[2][i];)
    };
    (@ $m:ident, $e:expr, |$s:ident, $i:ident| $($v:ident: $t:ty = $lane:expr;)+) => {{
        use $crate::ptx::code::Lanes;
        #[inline(always)]
        fn all(out: &mut Lanes, $s: [&Lanes; 3], $m: u32) {
            for $i in 0..32 {
                $(let $v = <$t as $crate::ptx::lanes::Word>::get($lane);)+
                out[$i] = $crate::ptx::lanes::Word::put($e);
            }
        }
        $crate::ptx::lanes::versions!(all: (out: &mut Lanes, sources: [&Lanes; 3], mode: u32))
    }};
}
pub(super) use lanes;
