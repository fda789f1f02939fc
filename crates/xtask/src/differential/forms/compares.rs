//! Comparisons, selections and tests of numbers.

use super::{Elem, Forms, Kind};
use Kind::{Bf16, Bf16x2, F16, F16x2, F32, F64, Int, None};

const INTEGER: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNSIGNED: [&str; 4] = ["lo", "ls", "hi", "hs"];
const FLOAT: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

pub(super) fn add(f: &mut Forms) {
    for w in [16u32, 32, 64] {
        for t in [format!("u{w}"), format!("s{w}")] {
            for op in INTEGER {
                both(f, op, &t, w, Int(w));
            }
        }
        for op in UNSIGNED {
            both(f, op, &format!("u{w}"), w, Int(w));
        }
        for op in ["eq", "ne"] {
            both(f, op, &format!("b{w}"), w, Int(w));
        }
    }
    for op in FLOAT {
        both(f, op, "f32", 32, F32);
        both(f, op, "ftz.f32", 32, F32);
        both(f, op, "f64", 64, F64);
        for (t, kind) in [("f16", F16), ("ftz.f16", F16), ("bf16", Bf16)] {
            both(f, op, t, 16, kind);
        }
        for (t, kind) in [("f16x2", F16x2), ("ftz.f16x2", F16x2), ("bf16x2", Bf16x2)] {
            pair(f, op, t, 32, kind);
        }
        f.add(format!("set.{op}.f32.f32 d, a, b;"), [32; 4], [F32, F32, None], Elem::U32);
        f.add(format!("set.{op}.f16.f16 d, a, b;"), [16; 4], [F16, F16, None], Elem::U16);
        f.add(format!("set.{op}.f16x2.f16x2 d, a, b;"), [32; 4], [F16x2, F16x2, None], Elem::U32);
        f.add(format!("set.{op}.bf16x2.bf16x2 d, a, b;"), [32; 4], [Bf16x2, Bf16x2, None], Elem::U32);
        f.add(format!("set.{op}.u32.f16x2 d, a, b;"), [32; 4], [F16x2, F16x2, None], Elem::U32);
    }
    for join in ["and", "or", "xor"] {
        for c in ["r", "!r"] {
            f.add(
                format!("setp.lt.s32 r, b, c; setp.le.{join}.f32 p|q, a, b, {c}; selp.u32 d, 1, 0, p; @q or.b32 d, d, 2;"),
                [32; 4],
                [F32, F32, F32],
                Elem::U32,
            );
            f.add(
                format!("setp.lt.s32 r, b, c; set.ge.{join}.u32.s32 d, a, b, {c};"),
                [32; 4],
                [Int(32); 3],
                Elem::U32,
            );
        }
    }
    selections(f);
    for class in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
        f.add(format!("testp.{class}.f32 p, a; selp.u32 d, 1, 0, p;"), [32; 4], [F32, None, None], Elem::U32);
        f.add(
            format!("testp.{class}.f64 p, a; selp.u32 d, 1, 0, p;"),
            [64, 64, 64, 32],
            [F64, None, None],
            Elem::U32,
        );
    }
}

/// `setp` with both results, and `set` where it takes this type.
fn both(f: &mut Forms, op: &str, t: &str, w: u32, kind: Kind) {
    pair(f, op, t, w, kind);
    if !t.starts_with('b') || t == "b32" {
        f.add(format!("set.{op}.{} d, a, b;", into(t)), [w, w, w, 32], [kind, kind, None], Elem::U32);
    }
}

/// `.ftz` stands before the result's type.
fn into(t: &str) -> String {
    match t.strip_prefix("ftz.") {
        Some(t) => format!("ftz.u32.{t}"),
        _ => format!("u32.{t}"),
    }
}

fn pair(f: &mut Forms, op: &str, t: &str, w: u32, kind: Kind) {
    // Scalar halves have one result only.
    let body = match w == 16 && t.contains('f') {
        true => format!("setp.{op}.{t} p, a, b; selp.u32 d, 1, 0, p;"),
        false => format!("setp.{op}.{t} p|q, a, b; selp.u32 d, 1, 0, p; @q or.b32 d, d, 2;"),
    };
    f.add(body, [w, w, w, 32], [kind, kind, None], Elem::U32);
}

fn selections(f: &mut Forms) {
    for w in [16u32, 32, 64] {
        for t in ["b", "u", "s"] {
            let e = super::integers::elem(w);
            f.add(format!("slct.{t}{w}.s32 d, a, b, c;"), [w, w, 32, w], [Int(w), Int(w), Int(32)], e);
            f.add(format!("slct.{t}{w}.f32 d, a, b, c;"), [w, w, 32, w], [Int(w), Int(w), F32], e);
            f.add(format!("slct.ftz.{t}{w}.f32 d, a, b, c;"), [w, w, 32, w], [Int(w), Int(w), F32], e);
        }
    }
    f.add("slct.f32.f32 d, a, b, c;", [32; 4], [F32; 3], Elem::U32);
    f.add("slct.f64.s32 d, a, b, c;", [64, 64, 32, 64], [F64, F64, Int(32)], Elem::U64);
}
