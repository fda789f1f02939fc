//! Single instructions against Rust's own arithmetic.

#[path = "ptx_arithmetic/hardware.rs"]
mod hardware;
mod ptx_support;

use ptx_support::{Random, run};

/// Random words, with special ones among them.
fn words(count: usize) -> Vec<[u64; 3]> {
    const SPECIAL: [u64; 12] = [
        0,
        1,
        2,
        31,
        33,
        0x7FFF_FFFF,
        0x8000_0000,
        0xFFFF_FFFF,
        0x8000_0000_0000_0000,
        u64::MAX,
        0x8000,
        0x7F,
    ];
    let mut random = Random(0x5DEE_CE66);
    let mut one = || match random.below(3) {
        0 => SPECIAL[random.below(12) as usize],
        1 => random.next() & 63,
        _ => random.next(),
    };
    (0..count).map(|_| [one(), one(), one()]).collect()
}

fn check(body: &str, widths: [u32; 4], inputs: &[[u64; 3]], want: impl Fn(u64, u64, u64) -> u64) {
    let mask = u64::MAX >> (64 - widths[3]);
    for (got, &[a, b, c]) in run(body, widths, inputs).into_iter().zip(inputs) {
        let want = want(a, b, c) & mask;
        assert_eq!(got, want, "{body} of {a:#x} {b:#x} {c:#x}: {got:#x}, not {want:#x}");
    }
}

macro_rules! int_family {
    ($w:expr, $u:ident: $ut:ty, $s:ident: $st:ty, $wide:ty, $swide:ty) => {{
        let (u, s, w) = (stringify!($u), stringify!($s), $w);
        let all = words(300);
        let w4 = [w; 4];
        for t in [u, s] {
            check(&format!("add.{t} d, a, b;"), w4, &all, |a, b, _| a.wrapping_add(b));
            check(&format!("sub.{t} d, a, b;"), w4, &all, |a, b, _| a.wrapping_sub(b));
            check(&format!("mul.lo.{t} d, a, b;"), w4, &all, |a, b, _| a.wrapping_mul(b));
            check(&format!("mad.lo.{t} d, a, b, c;"), w4, &all, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
        }
        let hi = |a: u64, b: u64| ((a as $ut as $wide * b as $ut as $wide) >> w) as u64;
        let shi = |a: u64, b: u64| ((a as $st as $swide * b as $st as $swide) >> w) as u64;
        check(&format!("mul.hi.{u} d, a, b;"), w4, &all, |a, b, _| hi(a, b));
        check(&format!("mul.hi.{s} d, a, b;"), w4, &all, |a, b, _| shi(a, b));
        check(&format!("mad.hi.{s} d, a, b, c;"), w4, &all, |a, b, c| shi(a, b).wrapping_add(c));
        let nonzero: Vec<_> = all.iter().copied().filter(|i| i[1] as $ut != 0).collect();
        check(&format!("div.{u} d, a, b;"), w4, &nonzero, |a, b, _| (a as $ut / b as $ut) as u64);
        check(&format!("rem.{u} d, a, b;"), w4, &nonzero, |a, b, _| (a as $ut % b as $ut) as u64);
        check(&format!("div.{s} d, a, b;"), w4, &nonzero, |a, b, _| (a as $st).wrapping_div(b as $st) as u64);
        check(&format!("rem.{s} d, a, b;"), w4, &nonzero, |a, b, _| (a as $st).wrapping_rem(b as $st) as u64);
        check(&format!("min.{s} d, a, b;"), w4, &all, |a, b, _| (a as $st).min(b as $st) as u64);
        check(&format!("max.{u} d, a, b;"), w4, &all, |a, b, _| (a as $ut).max(b as $ut) as u64);
        check(&format!("abs.{s} d, a;"), w4, &all, |a, _, _| (a as $st).wrapping_abs() as u64);
        check(&format!("neg.{s} d, a;"), w4, &all, |a, _, _| (a as $st).wrapping_neg() as u64);
        check(&format!("sad.{s} d, a, b, c;"), w4, &all, |a, b, c| {
            ((a as $st).abs_diff(b as $st) as u64).wrapping_add(c)
        });
        let ws = [w, 32, w, w];
        check(&format!("shl.b{w} d, a, b;"), ws, &all, |a, b, _| {
            (a as $ut).checked_shl(b as u32).unwrap_or(0) as u64
        });
        check(&format!("shr.{u} d, a, b;"), ws, &all, |a, b, _| {
            (a as $ut).checked_shr(b as u32).unwrap_or(0) as u64
        });
        check(&format!("shr.{s} d, a, b;"), ws, &all, |a, b, _| ((a as $st) >> (b as u32).min(w - 1)) as u64);
        check(&format!("xor.b{w} d, a, b;"), w4, &all, |a, b, _| a ^ b);
        check(&format!("not.b{w} d, a;"), w4, &all, |a, _, _| !a);
        check(&format!("cnot.b{w} d, a;"), w4, &all, |a, _, _| u64::from(a as $ut == 0));
        for (op, f) in [("lt", (|o| o < 0) as fn(i32) -> bool), ("ge", |o| o >= 0), ("ne", |o| o != 0)] {
            let order = |o: std::cmp::Ordering| f(o as i32);
            let w1 = [w, w, w, 32];
            check(&format!("setp.{op}.{s} p, a, b; selp.u32 d, 1, 0, p;"), w1, &all, |a, b, _| {
                order((a as $st).cmp(&(b as $st))).into()
            });
            check(&format!("set.{op}.u32.{u} d, a, b;"), w1, &all, |a, b, _| {
                if order((a as $ut).cmp(&(b as $ut))) { u64::MAX } else { 0 }
            });
        }
    }};
}

#[test]
fn integers() {
    int_family!(16, u16: u16, s16: i16, u32, i32);
    int_family!(32, u32: u32, s32: i32, u64, i64);
    int_family!(64, u64: u64, s64: i64, u128, i128);
    let all = words(300);
    check("mul.wide.s32 d, a, b;", [32, 32, 32, 64], &all, |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check("mad.wide.u16 d, a, b, c;", [16, 16, 32, 32], &all, |a, b, c| {
        (u64::from(a as u16) * u64::from(b as u16)).wrapping_add(c)
    });
    check("add.sat.s32 d, a, b;", [32; 4], &all, |a, b, _| (a as i32).saturating_add(b as i32) as u64);
    check("sub.sat.s32 d, a, b;", [32; 4], &all, |a, b, _| (a as i32).saturating_sub(b as i32) as u64);
    let s24 = |v: u64| i64::from((v as i32) << 8 >> 8);
    check("mul24.hi.s32 d, a, b;", [32; 4], &all, |a, b, _| ((s24(a) * s24(b)) >> 16) as u64);
    check("mad24.lo.u32 d, a, b, c;", [32; 4], &all, |a, b, c| {
        ((a & 0xFF_FFFF) * (b & 0xFF_FFFF)).wrapping_add(c)
    });
    // 128-bit sums, differences and products by carry chains.
    let body = "add.cc.u64 y0, a, b; addc.u64 d, a, c;";
    check(body, [64; 4], &all, |a, b, c| {
        a.wrapping_add(c).wrapping_add(u64::from(a.checked_add(b).is_none()))
    });
    let body = "sub.cc.u32 x0, a, b; subc.u32 d, a, c;";
    check(body, [32; 4], &all, |a, b, c| {
        (a as u32).wrapping_sub(c as u32).wrapping_sub(u32::from((a as u32) < b as u32)).into()
    });
    // The flag is a carry for all of them: set where a difference borrows nothing.
    let set = "setp.ge.u32 p, c, 0x80000000; selp.u32 x1, 1, 0, p; add.cc.u32 x0, x1, 0xFFFFFFFF;";
    let set_by = |c: u64| c >> 31 & 1;
    check(&format!("{set} subc.u32 d, a, b;"), [32; 4], &all, |a, b, c| {
        (a as u32).wrapping_sub(b as u32).wrapping_sub(1 - set_by(c) as u32).into()
    });
    check(&format!("{set} subc.cc.s32 x0, a, b; addc.u32 d, 0, 0;"), [32; 4], &all, |a, b, c| {
        u64::from(u64::from(a as u32) >= u64::from(b as u32) + 1 - set_by(c))
    });
    // Without `.cc` it stays.
    check(&format!("{set} subc.u32 x0, a, b; addc.u32 d, 0, 0;"), [32; 4], &all, |_, _, c| set_by(c));
    check(&format!("{set} madc.lo.u32 x0, a, b, c; addc.u32 d, 0, 0;"), [32; 4], &all, |_, _, c| set_by(c));
    check("sub.cc.u64 y0, a, b; addc.u64 d, c, 0;", [64; 4], &all, |a, b, c| {
        c.wrapping_add(u64::from(a >= b))
    });
    let body = "mad.lo.cc.u32 x0, a, b, c; madc.hi.u32 d, a, b, 0;";
    check(body, [32; 4], &all, |a, b, c| {
        (u64::from(a as u32) * u64::from(b as u32) + u64::from(c as u32)) >> 32
    });
}

#[test]
fn bit_fields() {
    let all = words(300);
    let u = |v: u64| v as u32;
    check("popc.b64 d, a;", [64, 64, 64, 32], &all, |a, _, _| a.count_ones().into());
    check("clz.b32 d, a;", [32; 4], &all, |a, _, _| u(a).leading_zeros().into());
    check("brev.b64 d, a;", [64; 4], &all, |a, _, _| a.reverse_bits());
    check("bfind.u32 d, a;", [32; 4], &all, |a, _, _| u(a).checked_ilog2().map_or(u64::MAX, u64::from));
    check("bfind.s32 d, a;", [32; 4], &all, |a, _, _| {
        (u(a) ^ (a as i32 >> 31) as u32).checked_ilog2().map_or(u64::MAX, u64::from)
    });
    check("bfind.shiftamt.u64 d, a;", [64, 64, 64, 32], &all, |a, _, _| {
        a.checked_ilog2().map_or(u64::MAX, |b| (63 - b).into())
    });
    // The definition of PTX, bit by bit.
    let bfe = |a: u64, b: u64, c: u64, bits: u64, signed: bool| {
        // The hardware reads the low byte of a 32-bit field's position and length, and all of a 64-bit one's.
        let read = |v: u64| if bits == 32 { v & 0xFF } else { v & 0xFFFF_FFFF };
        let (pos, len) = (read(b), read(c));
        let msb = bits - 1;
        let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(msb) & 1 };
        (0..bits).fold(0, |d, i| d | if i < len && pos + i <= msb { a >> (pos + i) & 1 } else { sign } << i)
    };
    check("bfe.u32 d, a, b, c;", [32; 4], &all, |a, b, c| bfe(a & 0xFFFF_FFFF, b, c, 32, false));
    check("bfe.s32 d, a, b, c;", [32; 4], &all, |a, b, c| bfe(a & 0xFFFF_FFFF, b, c, 32, true));
    check("bfe.s64 d, a, b, c;", [64, 32, 32, 64], &all, |a, b, c| bfe(a, b, c, 64, true));
    check("bfi.b32 d, a, b, c, 7;", [32; 4], &all, |a, b, c| {
        let pos = c & 0xFF;
        (0..32).fold(0, |d, i| d | if i >= pos && i < pos + 7 { a >> (i - pos) & 1 } else { b >> i & 1 } << i)
    });
    check("prmt.b32 d, a, b, c;", [32; 4], &all, |a, b, c| {
        let bytes = [u(a).to_le_bytes(), u(b).to_le_bytes()].concat();
        (0..4).fold(0, |d, i| {
            let s = (c >> (4 * i) & 15) as usize;
            let v = bytes[s & 7];
            d | u64::from(if s & 8 != 0 { if v & 0x80 != 0 { 0xFF } else { 0 } } else { v }) << (8 * i)
        })
    });
    let wide = |a: u64, b: u64| b << 32 | a & 0xFFFF_FFFF;
    check("shf.l.wrap.b32 d, a, b, c;", [32; 4], &all, |a, b, c| wide(a, b) << (c & 31) >> 32);
    check("shf.r.clamp.b32 d, a, b, c;", [32; 4], &all, |a, b, c| wide(a, b) >> u(c).min(32));
    check("lop3.b32 d, a, b, c, 0xE8;", [32; 4], &all, |a, b, c| a & b | a & c | b & c);
    check("dp4a.u32.s32 d, a, b, c;", [32; 4], &all, |a, b, c| {
        let (x, y) = (u(a).to_le_bytes(), u(b).to_le_bytes());
        (0..4).fold(u(c), |s, i| s.wrapping_add((i32::from(x[i]) * i32::from(y[i] as i8)) as u32)).into()
    });
    check("dp2a.hi.s32.u32 d, a, b, c;", [32; 4], &all, |a, b, c| {
        let y = u(b).to_le_bytes();
        let x = [a as i16, (a >> 16) as i16];
        (0..2).fold(u(c), |s, i| s.wrapping_add((i32::from(x[i]) * i32::from(y[2 + i])) as u32)).into()
    });
    check("vshr.u32.u32.u32.clamp.add d, a.h1, b, c;", [32; 4], &all, |a, b, c| {
        (u(a) >> 16).checked_shr(u(b).min(32)).unwrap_or(0).wrapping_add(u(c)).into()
    });
    check("mov.b32 {h0, h1}, a; mov.b32 d, {h1, h0};", [32; 4], &all, |a, _, _| u(a).rotate_left(16).into());
}

fn float_inputs() -> Vec<[u64; 3]> {
    // Exponents near each other, so that f64 holds exact sums and products of two.
    let mut random = Random(0xF10A7);
    let mut one = || {
        let exponent = 118 + random.below(18);
        (random.next() & 0x8000_0000) | exponent << 23 | random.next() & 0x7F_FFFF
    };
    (0..400).map(|_| [one(), one(), one()]).collect()
}

/// Rounds an exact f64 to f32.
fn directed(exact: f64, mode: &str) -> u64 {
    let near = exact as f32;
    let (below, above) = match f64::from(near).partial_cmp(&exact) {
        Some(std::cmp::Ordering::Less) => (near, near.next_up()),
        Some(std::cmp::Ordering::Greater) => (near.next_down(), near),
        _ => (near, near),
    };
    let result = match mode {
        "rm" => below,
        "rp" => above,
        "rz" => {
            if exact < 0.0 {
                above
            } else {
                below
            }
        }
        _ => near,
    };
    result.to_bits().into()
}

#[test]
fn float_rounding() {
    let all = float_inputs();
    let f = |v: u64| f64::from(f32::from_bits(v as u32));
    for mode in ["rn", "rz", "rm", "rp"] {
        check(&format!("add.{mode}.f32 d, a, b;"), [32; 4], &all, |a, b, _| directed(f(a) + f(b), mode));
        check(&format!("sub.{mode}.f32 d, a, b;"), [32; 4], &all, |a, b, _| directed(f(a) - f(b), mode));
        check(&format!("mul.{mode}.f32 d, a, b;"), [32; 4], &all, |a, b, _| directed(f(a) * f(b), mode));
        // Twelve-bit factors: product and sum are exact.
        let short: Vec<_> = all.iter().map(|i| i.map(|v| v & !0xFFF)).collect();
        check(&format!("fma.{mode}.f32 d, a, b, c;"), [32; 4], &short, |a, b, c| {
            directed(f(a) * f(b) + f(c), mode)
        });
        // A quotient and a root are judged by multiplying back.
        for (got, [a, b, _]) in run(&format!("div.{mode}.f32 d, a, b;"), [32; 4], &all).iter().zip(&all) {
            let (q, a, b) = (f32::from_bits(*got as u32), f(*a), f(*b));
            let low = (a / b).abs();
            let over = f64::from(q).abs() * b.abs() > a.abs();
            let (up, down) = (f64::from(q.abs().next_up()), f64::from(q.abs().next_down()));
            assert!(up * b.abs() > a.abs() && down * b.abs() < a.abs(), "div.{mode} {a} {b} {q} {low}");
            let exact = f64::from(q).abs() * b.abs() == a.abs();
            let away = match mode {
                "rp" => q > 0.0,
                "rm" => q < 0.0,
                _ => false,
            };
            assert!(mode == "rn" || exact || over == away, "div.{mode} {a} {b} {q}");
        }
        for (got, [a, ..]) in
            run(&format!("abs.f32 x0, a; sqrt.{mode}.f32 d, x0;"), [32; 4], &all).iter().zip(&all)
        {
            let (r, a) = (f32::from_bits(*got as u32), f(*a).abs());
            let square = f64::from(r) * f64::from(r);
            assert!(mode == "rn" || square == a || (square > a) == (mode == "rp"), "sqrt.{mode} {a} {r}");
        }
    }
    check("fma.rn.f64 d, a, b, c;", [64; 4], &words(300), |a, b, c| {
        let r = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c));
        if r.is_nan() {
            f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits()
        } else {
            r.to_bits()
        }
    });
    let tiny = [[1, 0x3F80_0000, 0], [0x8000_0001, 0x3F80_0000, 0], [0x0080_0000, 0x3F00_0000, 0]];
    check("mul.ftz.f32 d, a, b;", [32; 4], &tiny, |a, _, _| a & 0x8000_0000);
    // 2^-126 less half a unit of 24 digits: the least normal number only to fewer digits, so `.ftz` takes it away.
    let brink = [[0x3F7F_FFFF, 0x7E80_0000, 0], [0xBF7F_FFFF, 0x7E80_0000, 0]];
    for mode in ["rn", "rz", "rm", "rp"] {
        check(&format!("div.{mode}.ftz.f32 d, a, b;"), [32; 4], &brink, |a, _, _| a & 0x8000_0000);
        let product = brink.map(|[a, ..]| [a, 0x0080_0000, 0]);
        check(&format!("mul.{mode}.ftz.f32 d, a, b;"), [32; 4], &product, |a, _, _| a & 0x8000_0000);
        if mode == "rn" {
            for form in ["div.approx.ftz.f32", "div.full.ftz.f32"] {
                check(&format!("{form} d, a, b;"), [32; 4], &brink, |a, _, _| a & 0x8000_0000);
            }
        }
        let whole = |a: u64| a & 0x8000_0000 | 0x0080_0000;
        check(&format!("div.{mode}.f32 d, a, b;"), [32; 4], &brink, |a, _, _| match (mode, a >> 31) {
            ("rn", _) | ("rp", 0) | ("rm", 1) => whole(a),
            _ => whole(a) - 1,
        });
    }
    check("mul.f32 d, a, b;", [32; 4], &tiny, |a, b, _| {
        (f32::from_bits(a as u32) * f32::from_bits(b as u32)).to_bits().into()
    });
    let nan = u64::from(f32::NAN.to_bits());
    let special =
        [[nan, 0, 0], [0x4000_0000, 0, 0], [0xC000_0000, 0, 0], [0x8000_0000, 0, 0], [0x3F00_0000, 0, 0]];
    check("add.sat.f32 d, a, b;", [32; 4], &special, |a, _, _| match a {
        0x4000_0000 => 0x3F80_0000,
        0x3F00_0000 => a,
        _ => 0,
    });
    let pairs = [
        [nan, 0x3F80_0000, 0],
        [0x8000_0000, 0, 0],
        [0, 0x8000_0000, 0],
        [nan, nan, 0],
        [0x4000_0000, 0xC000_0000, 0],
    ];
    let want_min = [0x3F80_0000, 0x8000_0000, 0x8000_0000, 0x7FFF_FFFF, 0xC000_0000];
    assert_eq!(run("min.f32 d, a, b;", [32; 4], &pairs), want_min);
    assert_eq!(run("max.NaN.f32 d, a, b;", [32; 4], &pairs), [0x7FFF_FFFF, 0, 0, 0x7FFF_FFFF, 0x4000_0000]);
    assert_eq!(run("copysign.f32 d, a, b;", [32; 4], &[[0x8000_0000, 0x3F80_0000, 0]]), [0xBF80_0000]);
}

#[test]
fn halves() {
    let mut random = Random(99);
    let inputs: Vec<[u64; 3]> =
        (0..400).map(|_| [random.next() & 0xFFFF, random.next() & 0xFFFF, random.next() & 0xFFFF]).collect();
    let canonical = |bits: u16, nan: bool| u64::from(if nan { 0x7FFF } else { bits });
    macro_rules! kind {
        ($name:literal, $t:ty) => {
            let v = |x: u64| <$t>::from_bits(x as u16);
            let r = |x: f64| canonical(<$t>::from_f64(x).to_bits(), x.is_nan());
            check(concat!("add.", $name, " d, a, b;"), [16; 4], &inputs, |a, b, _| {
                r(v(a).to_f64() + v(b).to_f64())
            });
            check(concat!("mul.", $name, " d, a, b;"), [16; 4], &inputs, |a, b, _| {
                r(v(a).to_f64() * v(b).to_f64())
            });
            check(concat!("cvt.f32.", $name, " d, a;"), [16, 16, 16, 32], &inputs, |a, _, _| {
                let x = v(a).to_f32();
                match x.is_nan() {
                    // A bf16 is moved as it is.
                    true if $name == "bf16" => (a & 0xFFFF) << 16,
                    true => 0x7FFF_FFFF,
                    false => x.to_bits().into(),
                }
            });
        };
    }
    kind!("f16", half::f16);
    kind!("bf16", half::bf16);
    let pairs = words(200);
    let h = |x: u64, shift: u32| half::f16::from_bits((x >> shift) as u16);
    check("sub.f16x2 d, a, b;", [32; 4], &pairs, |a, b, _| {
        [0, 16].iter().fold(0, |d, &s| {
            let x = h(a, s).to_f32() - h(b, s).to_f32();
            d | canonical(half::f16::from_f32(x).to_bits(), x.is_nan()) << s
        })
    });
    check("setp.lt.f16x2 p|q, a, b; selp.u32 d, 1, 0, p; @q or.b32 d, d, 2;", [32; 4], &pairs, |a, b, _| {
        u64::from(h(a, 0) < h(b, 0)) | u64::from(h(a, 16) < h(b, 16)) << 1
    });
    // A fused sum that rounding twice would get wrong: 1 + 2^-11 + 2^-24.
    let fma = run("fma.rn.f16 d, a, b, c;", [16; 4], &[[0x1400, 0x1400, 0x3C00], [0x0001, 0x3C00, 0x3C00]]);
    let exact = |a: u16, b: u16, c: u16| {
        let f = |x| half::f16::from_bits(x).to_f64();
        u64::from(half::f16::from_f64(f(a) * f(b) + f(c)).to_bits())
    };
    assert_eq!(fma, [exact(0x1400, 0x1400, 0x3C00), exact(1, 0x3C00, 0x3C00)]);
}

type Round = fn(f32) -> f32;

#[test]
fn conversions() {
    let mut inputs = float_inputs();
    inputs.extend(words(200));
    let f = |v: u64| f32::from_bits(v as u32);
    let round: [(&str, Round); 4] =
        [("rni", f32::round_ties_even), ("rzi", f32::trunc), ("rmi", f32::floor), ("rpi", f32::ceil)];
    for (name, op) in round {
        check(&format!("cvt.{name}.s32.f32 d, a;"), [32; 4], &inputs, |a, _, _| op(f(a)) as i32 as u64);
        check(&format!("cvt.{name}.u64.f32 d, a;"), [32, 32, 32, 64], &inputs, |a, _, _| {
            if f(a).is_nan() { 1 << 63 } else { op(f(a)) as u64 }
        });
        check(&format!("cvt.{name}.u8.f32 x0, a; mov.b32 d, x0;"), [32; 4], &inputs, |a, _, _| {
            u64::from(op(f(a)) as u8)
        });
        check(&format!("cvt.{name}.f32.f32 d, a;"), [32; 4], &inputs, |a, _, _| {
            let r = op(f(a));
            if r.is_nan() { 0x7FFF_FFFF } else { r.to_bits().into() }
        });
    }
    let all = words(300);
    check("cvt.s64.s8 d, a;", [32, 32, 32, 64], &all, |a, _, _| i64::from(a as i8) as u64);
    check("cvt.s16.s8 x0, a; mov.b32 d, x0;", [32; 4], &all, |a, _, _| i32::from(a as i8) as u32 as u64);
    check("cvt.sat.u8.s32 x0, a; mov.b32 d, x0;", [32; 4], &all, |a, _, _| (a as i32).clamp(0, 255) as u64);
    check("cvt.sat.s16.u32 h0, a; cvt.u32.u16 d, h0;", [32; 4], &all, |a, _, _| {
        u64::from((a as u32).min(0x7FFF))
    });
    check("cvt.rn.f32.u64 d, a;", [64, 64, 64, 32], &all, |a, _, _| (a as f32).to_bits().into());
    check("cvt.rn.f64.s64 d, a;", [64; 4], &all, |a, _, _| (a as i64 as f64).to_bits());
    for mode in ["rz", "rm", "rp"] {
        let body = format!("cvt.{mode}.f32.s32 d, a;");
        check(&body, [32; 4], &all, |a, _, _| directed(f64::from(a as i32), mode));
    }
    check("cvt.rn.f32.f64 d, a;", [64, 64, 64, 32], &all, |a, _, _| {
        let nan = (a >> 63) << 31 | 0x7FC0_0000 | a >> 29 & 0x3F_FFFF;
        if f64::from_bits(a).is_nan() { nan } else { (f64::from_bits(a) as f32).to_bits().into() }
    });
    check("cvt.rn.f16x2.f32 d, a, b;", [32; 4], &float_inputs(), |a, b, _| {
        let h = |v| u64::from(half::f16::from_f32(f(v)).to_bits());
        h(a) << 16 | h(b)
    });
    // e4m3 and e5m2: every value survives the way there and back; large ones saturate.
    let values: Vec<[u64; 3]> = (0..0x7F).map(|v| [v | v << 8, 0, 0]).collect();
    let body = |t: &str| format!("cvt.rn.f16x2.{t} x0, a; cvt.rn.satfinite.{t}.f16x2 d, x0;");
    assert!(run(&body("e4m3x2"), [16; 4], &values).iter().zip(&values).all(|(g, v)| *g == v[0]));
    assert!(run(&body("e5m2x2"), [16; 4], &values[..0x7C]).iter().zip(&values).all(|(g, v)| *g == v[0]));
    let big = [[u64::from(1e9f32.to_bits()), u64::from((-460f32).to_bits()), 0]];
    assert_eq!(run("cvt.rn.satfinite.e4m3x2.f32 h0, a, b; mov.b16 d, h0;", [32, 32, 32, 16], &big), [0x7EFE]);
}

/// Whether a module with this one instruction loads; if not, why.
fn loads(instruction: &str) -> Result<(), String> {
    ptx_support::Machine::load(&format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n\
         .reg .b16 h<3>; .reg .b32 r<2>; .reg .b64 q<2>;\n{instruction}\nret; }}"
    ))
    .map(|_| ())
    .map_err(|e| e.to_string())
}

/// What an assembler refuses is refused: a modifier without effect, or a rounding that is not said.
#[test]
fn conversions_have_no_idle_modifiers() {
    let registers = |ty: &str| match &ty[1..] {
        "64" => "q",
        "32" => "r",
        _ => "h",
    };
    let cvt = |modifiers: &str, to: &str, from: &str| {
        loads(&format!("cvt{modifiers}.{to}.{from} {}0, {}1;", registers(to), registers(from)))
    };
    let integers = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
    // What saturates, by the type that is read.
    let saturating = [
        ("u8", "s8"),
        ("s8", "u8 u16 u32 u64"),
        ("u16", "u8 s8 s16"),
        ("s16", "u8 s8 u16 u32 u64"),
        ("u32", "u8 s8 u16 s16 s32"),
        ("s32", "u8 s8 u16 s16 u32 u64"),
        ("u64", "u8 s8 u16 s16 u32 s32 s64"),
        ("s64", "u8 s8 u16 s16 u32 s32 u64"),
    ];
    for (from, some) in saturating {
        for to in integers {
            assert_eq!(
                cvt(".sat", to, from).is_ok(),
                some.split(' ').any(|t| t == to),
                "cvt.sat.{to}.{from}"
            );
            assert!(cvt("", to, from).is_ok(), "cvt.{to}.{from}");
            for idle in [".rn", ".rzi", ".ftz"] {
                assert!(cvt(idle, to, from).is_err(), "cvt{idle}.{to}.{from}");
            }
        }
    }
    for float in ["f16", "f32", "f64"] {
        for integer in integers {
            for modifiers in ["", ".sat", ".rni", ".rpi.sat"] {
                assert!(cvt(modifiers, float, integer).is_err(), "cvt{modifiers}.{float}.{integer}");
            }
            for modifiers in ["", ".sat", ".rn", ".rz.sat"] {
                assert!(cvt(modifiers, integer, float).is_err(), "cvt{modifiers}.{integer}.{float}");
            }
            assert!(cvt(".rm.sat", float, integer).is_ok() && cvt(".rmi.sat", integer, float).is_ok());
            assert_eq!(
                cvt(".rn.ftz", float, integer).is_ok(),
                float == "f32",
                "cvt.rn.ftz.{float}.{integer}"
            );
            assert_eq!(
                cvt(".rni.ftz", integer, float).is_ok(),
                float == "f32",
                "cvt.rni.ftz.{integer}.{float}"
            );
        }
    }
    let between = [
        ("f16", "f16", ["", ".sat", ".rni"].as_slice(), [".rn", ".ftz"].as_slice()),
        ("f16", "f32", &[".rn", ".rp.ftz.sat"], &["", ".ftz", ".rni"]),
        ("f16", "f64", &[".rn", ".rm.sat"], &["", ".rn.ftz", ".rzi"]),
        ("f32", "f16", &["", ".ftz.sat"], &[".rn", ".rni"]),
        ("f32", "f32", &["", ".rzi.ftz.sat"], &[".rn", ".rz.ftz"]),
        ("f32", "f64", &[".rn", ".rp.ftz.sat"], &["", ".sat", ".rni"]),
        ("f64", "f16", &["", ".sat"], &[".rn", ".ftz", ".rni"]),
        ("f64", "f32", &["", ".ftz.sat"], &[".rn", ".rmi"]),
        ("f64", "f64", &["", ".rpi.sat"], &[".rn", ".ftz"]),
    ];
    for (to, from, taken, refused) in between {
        taken.iter().for_each(|m| assert!(cvt(m, to, from).is_ok(), "cvt{m}.{to}.{from}"));
        refused.iter().for_each(|m| assert!(cvt(m, to, from).is_err(), "cvt{m}.{to}.{from}"));
    }
}

#[test]
fn bf16_has_no_bytes_and_no_saturation() {
    for cvt in [
        "cvt.rni.u8.bf16 h0, h1;",
        "cvt.rzi.sat.s8.bf16 h0, h1;",
        "cvt.rn.bf16.u8 h0, h1;",
        "cvt.rz.bf16.s8 h0, h1;",
        "cvt.rni.sat.u16.bf16 h0, h1;",
        "cvt.rpi.sat.s32.bf16 r0, h1;",
        "cvt.rmi.sat.u64.bf16 q0, h1;",
    ] {
        let why = loads(cvt).expect_err(cvt);
        assert!(why.contains("PTX has no instruction"), "{cvt}: {why}");
    }
    for cvt in ["cvt.rni.u16.bf16 h0, h1;", "cvt.rzi.s64.bf16 q0, h1;", "cvt.rp.bf16.s32 h0, r0;"] {
        loads(cvt).expect(cvt);
    }
}

#[test]
fn float_comparisons() {
    let values = [0u64, 0x8000_0000, 0x3F80_0000, 0xBF80_0000, 0x7FC0_0000, 0x7F80_0000, 1];
    let all: Vec<[u64; 3]> = values.iter().flat_map(|&a| values.map(|b| [a, b, 0])).collect();
    let f = |v: u64| f32::from_bits(v as u32);
    // Which of (less, equal, greater, unordered) make it true.
    let ops: [(&str, [bool; 4]); 14] = [
        ("eq", [false, true, false, false]),
        ("ne", [true, false, true, false]),
        ("lt", [true, false, false, false]),
        ("le", [true, true, false, false]),
        ("gt", [false, false, true, false]),
        ("ge", [false, true, true, false]),
        ("equ", [false, true, false, true]),
        ("neu", [true, false, true, true]),
        ("ltu", [true, false, false, true]),
        ("leu", [true, true, false, true]),
        ("gtu", [false, false, true, true]),
        ("geu", [false, true, true, true]),
        ("num", [true, true, true, false]),
        ("nan", [false, false, false, true]),
    ];
    for (name, truths) in ops {
        let op = |a: f32, b: f32| truths[a.partial_cmp(&b).map_or(3, |o| (o as i8 + 1) as usize)];
        let body = format!("setp.{name}.f32 p|q, a, b; selp.u32 d, 1, 0, p; @q or.b32 d, d, 2;");
        check(&body, [32; 4], &all, |a, b, _| if op(f(a), f(b)) { 1 } else { 2 });
        let body = format!("setp.ne.u32 r, b, 0; setp.{name}.xor.f32 p, a, b, !r; selp.u32 d, 1, 0, p;");
        check(&body, [32; 4], &all, |a, b, _| (op(f(a), f(b)) ^ (b == 0)).into());
    }
    check("testp.subnormal.f32 p, a; selp.u32 d, 1, 0, p;", [32; 4], &all, |a, _, _| u64::from(a == 1));
    check("slct.u32.f32 d, 5, 9, a;", [32; 4], &all, |a, _, _| if f(a) >= 0.0 { 5 } else { 9 });
}

type Function = fn(f64) -> f64;

#[test]
fn approximations_are_close() {
    let all = float_inputs();
    let f = |v: u64| f64::from(f32::from_bits(v as u32));
    let forms: [(&str, Function); 7] = [
        ("sin.approx.f32", f64::sin),
        ("cos.approx.f32", f64::cos),
        ("ex2.approx.f32", f64::exp2),
        ("tanh.approx.f32", f64::tanh),
        ("rcp.approx.f32", |x| 1.0 / x),
        ("sqrt.approx.f32", f64::sqrt),
        ("lg2.approx.f32", f64::log2),
    ];
    for (name, op) in forms {
        for (got, [a, ..]) in run(&format!("{name} d, a;"), [32; 4], &all).iter().zip(&all) {
            let (got, want) = (f(*got), op(f(*a)));
            // The angle is cut to single precision.
            let angle = if matches!(name, "sin.approx.f32" | "cos.approx.f32") { f(*a).abs() } else { 0.0 };
            assert!(
                got.is_nan() == want.is_nan()
                    && (got.is_nan()
                        || (got - want).abs()
                            <= 1e-6 * (1.0 + want.abs()) + 2.0 * f64::from(f32::EPSILON) * angle
                        || got == want as f32 as f64),
                "{name} {}: {got} {want}",
                f(*a)
            );
        }
    }
}

/// `vshr` with parts, `vset`, `vmad` and `cvt.pack` of a few bits: as PTX says, and as an H200 has it where it departs from that.
#[test]
fn parts_and_packs() {
    let run = |text: &str, a: u32, b: u32, c: u32| {
        let m = ptx_support::Machine::new(&format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 to, .param .u32 pa, .param .u32 pb, \
             .param .u32 pc) {{\n.reg .b32 a, b, c, d; .reg .b64 q;\n\
             ld.param.u64 q, [to]; ld.param.u32 a, [pa]; ld.param.u32 b, [pb]; ld.param.u32 c, [pc];\n\
             {text}\nst.global.u32 [q], d; ret; }}"
        ));
        let to = m.blank(4);
        m.clean("k", ptx_support::shape(1, 1), args![to, a, b, c]);
        m.download::<u32>(to, 1)[0]
    };
    assert_eq!(run("vshr.u32.u32.u32.clamp d, a, b;", 0xF000_0000, 40, 0), 0);
    assert_eq!(run("vshr.u32.u32.u32.wrap d, a, b;", 0xF000_0000, 36, 0), 0x0F00_0000);
    assert_eq!(run("vshr.s32.s32.u32.clamp d.b1, a.h1, b, c;", 0x8000_0000, 4, 0x1122_3344), 0x1122_0044);
    assert_eq!(run("vshr.s32.s32.u32.sat.clamp d.h1, a, b, c;", 0x7FFF_0000, 8, 0x1122_3344), 0x007F_3344);
    assert_eq!(run("vset.s32.u32.lt d, a, b;", u32::MAX, 0, 0), 1);
    assert_eq!(run("vset.u32.u32.ge.add d, a.b0, b.b1, c;", 9, 0x900, 41), 42);
    assert_eq!(run("vmad.s32.s32.s32.shr7 d, a, b, c;", 256, (-3i32) as u32, 128), (-5i32) as u32);
    // A whole register counts as signed.
    assert_eq!(run("vmad.u32.u32.u32.po.sat d, a, b.h1, c;", u32::MAX, 2 << 16, 0), 0);
    assert_eq!(run("cvt.pack.sat.s4.s32.b32 d, a, b, c;", 100, (-100i32) as u32, 0xABCD_EF12), 0xCDEF_1278);
    assert_eq!(run("cvt.pack.sat.u2.s32.b32 d, a, b, c;", 2, (-1i32) as u32, 1), 0x18);
}
