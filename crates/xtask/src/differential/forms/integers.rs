//! Integer arithmetic and bit operations.

use super::{Elem, Forms, Kind};
use Kind::{Amount, Int, NonZero, None};

pub(super) fn elem(bits: u32) -> Elem {
    match bits {
        16 => Elem::U16,
        32 => Elem::U32,
        _ => Elem::U64,
    }
}

pub(super) fn add(f: &mut Forms) {
    for w in [16u32, 32, 64] {
        arithmetic(f, w);
        bits(f, w);
    }
    wide_and_short(f);
    carries(f);
    short_carry(f);
    dots(f);
    fields(f);
    video(f);
}

fn arithmetic(f: &mut Forms, w: u32) {
    let (w4, all, e) = ([w; 4], [Int(w); 3], elem(w));
    for t in [format!("u{w}"), format!("s{w}")] {
        for op in ["add", "sub", "mul.lo", "mul.hi", "min", "max"] {
            f.add(format!("{op}.{t} d, a, b;"), w4, [Int(w), Int(w), None], e);
        }
        for op in ["mad.lo", "mad.hi", "sad"] {
            f.add(format!("{op}.{t} d, a, b, c;"), w4, all, e);
        }
        for op in ["div", "rem"] {
            f.add(format!("{op}.{t} d, a, b;"), w4, [Int(w), NonZero(w), None], e);
        }
    }
    for op in ["abs", "neg"] {
        f.add(format!("{op}.s{w} d, a;"), w4, [Int(w), None, None], e);
    }
}

fn bits(f: &mut Forms, w: u32) {
    let (w4, two, e) = ([w; 4], [Int(w), Int(w), None], elem(w));
    for op in ["and", "or", "xor"] {
        f.add(format!("{op}.b{w} d, a, b;"), w4, two, e);
    }
    for op in ["not", "cnot"] {
        f.add(format!("{op}.b{w} d, a;"), w4, [Int(w), None, None], e);
    }
    for op in ["shl.b", "shr.b", "shr.u", "shr.s"] {
        f.add(format!("{op}{w} d, a, b;"), [w, 32, w, w], [Int(w), Amount, None], e);
    }
    f.add(format!("setp.ne.b{w} p, c, 0; selp.b{w} d, a, b, p;"), w4, [Int(w); 3], e);
    if w == 16 {
        return;
    }
    for op in ["popc", "clz"] {
        f.add(format!("{op}.b{w} d, a;"), [w, w, w, 32], [Int(w), None, None], Elem::U32);
    }
    f.add(format!("brev.b{w} d, a;"), w4, [Int(w), None, None], e);
    for t in ["u", "s"] {
        for how in ["", ".shiftamt"] {
            f.add(format!("bfind{how}.{t}{w} d, a;"), [w, w, w, 32], [Int(w), None, None], Elem::U32);
        }
        f.add(format!("bfe.{t}{w} d, a, b, c;"), [w, 32, 32, w], [Int(w), Amount, Amount], e);
    }
    for length in [0u32, 1, 7, 32, 63, 255] {
        f.add(format!("bfi.b{w} d, a, b, c, {length};"), [w, w, 32, w], [Int(w), Int(w), Amount], e);
    }
    f.add(format!("bfi.b{w} d, a, 0, b, c;"), [w, 32, 32, w], [Int(w), Amount, Amount], e);
}

fn wide_and_short(f: &mut Forms) {
    for (t, w) in [("u16", 16u32), ("s16", 16), ("u32", 32), ("s32", 32)] {
        let (e, d) = (elem(2 * w), 2 * w);
        f.add(format!("mul.wide.{t} d, a, b;"), [w, w, w, d], [Int(w), Int(w), None], e);
        f.add(format!("mad.wide.{t} d, a, b, c;"), [w, w, d, d], [Int(w), Int(w), Int(d)], e);
    }
    let (w4, all) = ([32; 4], [Int(32); 3]);
    for op in ["add.sat.s32", "sub.sat.s32", "min.relu.s32", "max.relu.s32", "add.u16x2", "add.s16x2"] {
        f.add(format!("{op} d, a, b;"), w4, all, Elem::U32);
    }
    for op in ["min", "max"] {
        for t in ["u16x2", "s16x2", "relu.s16x2"] {
            f.add(format!("{op}.{t} d, a, b;"), w4, all, Elem::U32);
        }
    }
    f.add("mad.hi.sat.s32 d, a, b, c;", w4, all, Elem::U32);
    for t in ["u32", "s32"] {
        for part in ["lo", "hi"] {
            f.add(format!("mul24.{part}.{t} d, a, b;"), w4, all, Elem::U32);
            f.add(format!("mad24.{part}.{t} d, a, b, c;"), w4, all, Elem::U32);
        }
    }
    f.add("mad24.hi.sat.s32 d, a, b, c;", w4, all, Elem::U32);
}

fn carries(f: &mut Forms) {
    for (w, temp) in [(32u32, "x"), (64, "y")] {
        for t in [format!("u{w}"), format!("s{w}")] {
            let mut add = |body: String| f.add(body, [w; 4], [Int(w); 3], elem(w));
            add(format!("add.cc.{t} {temp}0, a, b; addc.{t} d, a, c;"));
            add(format!(
                "add.cc.{t} {temp}0, a, b; addc.cc.{t} {temp}1, b, c; addc.{t} d, {temp}1, {temp}0;"
            ));
            add(format!("sub.cc.{t} {temp}0, a, b; subc.{t} d, a, c;"));
            add(format!(
                "sub.cc.{t} {temp}0, a, b; subc.cc.{t} {temp}1, b, c; subc.{t} d, {temp}1, {temp}0;"
            ));
            add(format!("mad.lo.cc.{t} {temp}0, a, b, c; madc.hi.{t} d, a, b, c;"));
            add(format!("mad.hi.cc.{t} {temp}0, a, b, c; madc.lo.{t} d, a, b, c;"));
            add(format!(
                "mad.lo.cc.{t} {temp}0, a, b, c; madc.hi.cc.{t} {temp}1, a, b, c; addc.{t} d, {temp}1, 0;"
            ));
        }
    }
}

/// Not in PTX's description, but the assembler takes it.
fn short_carry(f: &mut Forms) {
    f.add(
        "mov.b32 {h1, h2}, c; add.cc.u32 x0, a, b; addc.u16 h0, h1, h2; cvt.u32.u16 d, h0;",
        [32; 4],
        [Int(32); 3],
        Elem::U32,
    );
}

fn dots(f: &mut Forms) {
    for a in ["u32", "s32"] {
        for b in ["u32", "s32"] {
            f.add(format!("dp4a.{a}.{b} d, a, b, c;"), [32; 4], [Int(32); 3], Elem::U32);
            for part in ["lo", "hi"] {
                f.add(format!("dp2a.{part}.{a}.{b} d, a, b, c;"), [32; 4], [Int(32); 3], Elem::U32);
            }
        }
    }
}

fn fields(f: &mut Forms) {
    let (w4, all) = ([32; 4], [Int(32); 3]);
    for table in [0x00, 0x1E, 0x96, 0xE8, 0xCA, 0xAA, 0xFF, 0x35] {
        f.add(format!("lop3.b32 d, a, b, c, {table:#04X};"), w4, all, Elem::U32);
    }
    for op in ["or", "and"] {
        f.add(
            format!("setp.lt.s32 q, a, b; lop3.{op}.b32 d|p, a, b, c, 0x96, q; @p not.b32 d, d;"),
            w4,
            all,
            Elem::U32,
        );
    }
    for side in ["l", "r"] {
        for how in ["wrap", "clamp"] {
            f.add(format!("shf.{side}.{how}.b32 d, a, b, c;"), w4, [Int(32), Int(32), Amount], Elem::U32);
        }
    }
    for mode in ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"] {
        f.add(format!("prmt.b32{mode} d, a, b, c;"), w4, all, Elem::U32);
    }
    for how in ["wrap", "clamp"] {
        for t in ["u32", "s32"] {
            f.add(format!("szext.{how}.{t} d, a, b;"), w4, [Int(32), Amount, None], Elem::U32);
        }
        f.add(format!("bmsk.{how}.b32 d, a, b;"), w4, [Amount, Amount, None], Elem::U32);
    }
    f.add("and.b32 x0, b, 31; fns.b32 d, a, x0, 1;", w4, all, Elem::U32);
    f.add("and.b32 x0, b, 31; fns.b32 d, a, x0, -2;", w4, all, Elem::U32);
    f.add("fns.b32 d, a, 0, 3;", w4, all, Elem::U32);
    f.add("mov.b32 {h0, h1}, a; mov.b32 d, {h1, h0};", w4, all, Elem::U32);
    f.add("mov.b64 {x0, x1}, a; mov.b64 d, {x1, x0};", [64; 4], [Int(64); 3], Elem::U64);
    f.add("mov.b64 {h0, h1, h2, h3}, a; mov.b64 d, {h3, h1, h2, h0};", [64; 4], [Int(64); 3], Elem::U64);
    let truths = "setp.lt.s32 p, a, b; setp.ne.s32 q, b, c; ";
    for (op, operands) in [("and", "p, q"), ("or", "p, q"), ("xor", "p, q"), ("not", "p")] {
        f.add(format!("{truths}{op}.pred r, {operands}; selp.u32 d, 1, 0, r;"), w4, all, Elem::U32);
    }
}

fn video(f: &mut Forms) {
    let (w4, all) = ([32; 4], [Int(32); 3]);
    for d in ["u32", "s32"] {
        for (a, b) in [("u32", "u32"), ("s32", "s32"), ("u32", "s32")] {
            for op in ["vadd", "vsub", "vabsdiff", "vmin", "vmax"] {
                for sat in ["", ".sat"] {
                    f.add(format!("{op}.{d}.{a}.{b}{sat} d, a, b;"), w4, all, Elem::U32);
                    f.add(format!("{op}.{d}.{a}.{b}{sat}.max d, a.b2, b.h1, c;"), w4, all, Elem::U32);
                    for part in ["b1", "h1"] {
                        f.add(format!("{op}.{d}.{a}.{b}{sat} d.{part}, a.h0, b.b3, c;"), w4, all, Elem::U32);
                    }
                }
            }
            f.add(format!("vadd.{d}.{a}.{b} d, a, b, c;"), w4, all, Elem::U32);
            for op in ["vadd", "vabsdiff"] {
                for sat in ["", ".sat"] {
                    for part in ["b0", "b3", "h0"] {
                        f.add(format!("{op}.{d}.{a}.{b}{sat} d.{part}, a, b, c;"), w4, all, Elem::U32);
                    }
                }
            }
            for sat in ["", ".sat"] {
                for scale in ["", ".shr7", ".shr15"] {
                    for po in ["", ".po"] {
                        f.add(format!("vmad.{d}.{a}.{b}{po}{sat}{scale} d, a, b.h1, c;"), w4, all, Elem::U32);
                    }
                }
            }
        }
        for op in ["vshl", "vshr"] {
            for how in ["clamp", "wrap"] {
                for sat in ["", ".sat"] {
                    let kinds = [Int(32), Amount, Int(32)];
                    f.add(format!("{op}.{d}.{d}.u32{sat}.{how} d, a, b;"), w4, kinds, Elem::U32);
                    for second in ["add", "min", "max"] {
                        f.add(
                            format!("{op}.{d}.{d}.u32{sat}.{how}.{second} d, a, b, c;"),
                            w4,
                            kinds,
                            Elem::U32,
                        );
                    }
                    for part in ["b0", "b3", "h0", "h1"] {
                        f.add(
                            format!("{op}.{d}.{d}.u32{sat}.{how} d.{part}, a.h1, b, c;"),
                            w4,
                            kinds,
                            Elem::U32,
                        );
                    }
                }
            }
        }
    }
    for (a, b) in [("u32", "u32"), ("s32", "s32"), ("u32", "s32"), ("s32", "u32")] {
        for compare in ["eq", "ne", "lt", "le", "gt", "ge"] {
            f.add(format!("vset.{a}.{b}.{compare} d, a, b;"), w4, all, Elem::U32);
            f.add(format!("vset.{a}.{b}.{compare} d, a.b1, b.b2;"), w4, all, Elem::U32);
            f.add(format!("vset.{a}.{b}.{compare}.add d, a.h1, b.b2, c;"), w4, all, Elem::U32);
            f.add(format!("vset.{a}.{b}.{compare} d.b2, a, b.h0, c;"), w4, all, Elem::U32);
        }
    }
}
