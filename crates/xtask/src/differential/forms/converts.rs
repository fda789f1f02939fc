//! Conversions.

use super::{Elem, Forms, Kind, integers};
use Kind::{Bf16, F16, F16x2, F32, F64, Int, None};

const INTS: [(&str, u32); 8] =
    [("u8", 8), ("s8", 8), ("u16", 16), ("s16", 16), ("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64)];
const FLOATS: [(&str, u32, Kind, Elem); 4] = [
    ("f16", 16, F16, Elem::F16),
    ("bf16", 16, Bf16, Elem::Bf16),
    ("f32", 32, F32, Elem::F32),
    ("f64", 64, F64, Elem::F64),
];
const ROUNDING: [&str; 4] = ["rn", "rz", "rm", "rp"];
const INTEGRAL: [&str; 4] = ["rni", "rzi", "rmi", "rpi"];

/// Registers are at least 16 bits wide.
fn register(w: u32) -> u32 {
    w.max(16)
}

pub(super) fn add(f: &mut Forms) {
    for (to, wd) in INTS {
        for (from, wa) in INTS {
            let widths = [register(wa), 32, 32, register(wd)];
            let e = integers::elem(register(wd));
            for sat in ["", ".sat"] {
                // Saturation means nothing where every value fits, and some compilers refuse it there.
                if sat.is_empty()
                    || wd < wa
                    || wd == wa && to != from
                    || to.starts_with('u') && from.starts_with('s')
                {
                    f.add(format!("cvt{sat}.{to}.{from} d, a;"), widths, [Int(register(wa)), None, None], e);
                }
            }
        }
        for (from, wa, kind, _) in FLOATS {
            // PTX has no conversions between bf16 and 8 bits, and no saturation from bf16.
            let brain = from == "bf16";
            if brain && wd == 8 {
                continue;
            }
            let widths = [wa, 32, 32, register(wd)];
            let e = integers::elem(register(wd));
            for r in INTEGRAL {
                for ftz in if from == "f32" { &["", ".ftz"][..] } else { &[""] } {
                    for sat in if brain { &[""][..] } else { &["", ".sat"] } {
                        f.add(format!("cvt.{r}{ftz}{sat}.{to}.{from} d, a;"), widths, [kind, None, None], e);
                    }
                }
            }
        }
        for (float, wf, _, e) in FLOATS {
            if float == "bf16" && wd == 8 {
                continue;
            }
            for r in ROUNDING {
                let widths = [register(wd), 32, 32, wf];
                f.add(format!("cvt.{r}.{float}.{to} d, a;"), widths, [Int(register(wd)), None, None], e);
            }
        }
        f.add(
            format!("cvt.rn.sat.f32.{to} d, a;"),
            [register(wd), 32, 32, 32],
            [Int(register(wd)), None, None],
            Elem::F32,
        );
    }
    between_floats(f);
    packed(f);
}

fn between_floats(f: &mut Forms) {
    for (to, wd, _, e) in FLOATS {
        for (from, wa, kind, _) in FLOATS {
            let widths = [wa, 32, 32, wd];
            let kinds = [kind, None, None];
            let ftz: &[&str] = if to == "f32" || from == "f32" { &["", ".ftz"] } else { &[""] };
            let brain = to == "bf16" || from == "bf16";
            if to == from && brain {
                for r in INTEGRAL {
                    f.add(format!("cvt.{r}.{to}.{from} d, a;"), widths, kinds, e);
                }
                continue;
            }
            if brain && !(to == "bf16" && from == "f32" || to == "f32") {
                for r in ROUNDING {
                    if to == "bf16" || r == "rn" && to != "f64" {
                        f.add(format!("cvt.{r}.{to}.{from} d, a;"), widths, kinds, e);
                    }
                }
                continue;
            }
            for ftz in if brain { &[""][..] } else { ftz } {
                for sat in if brain { &[""][..] } else { &["", ".sat"] } {
                    if to == from {
                        for r in INTEGRAL {
                            f.add(format!("cvt.{r}{ftz}{sat}.{to}.{from} d, a;"), widths, kinds, e);
                        }
                    } else if wd < wa {
                        for r in if brain { &ROUNDING[..2] } else { &ROUNDING[..] } {
                            f.add(format!("cvt.{r}{ftz}{sat}.{to}.{from} d, a;"), widths, kinds, e);
                        }
                    } else {
                        f.add(format!("cvt{ftz}{sat}.{to}.{from} d, a;"), widths, kinds, e);
                    }
                }
            }
        }
    }
    for to in [("f16", Elem::F16), ("bf16", Elem::Bf16)] {
        for r in ["rn", "rz"] {
            for m in [".relu", ".satfinite", ".relu.satfinite"] {
                f.add(format!("cvt.{r}{m}.{}.f32 d, a;", to.0), [32, 32, 32, 16], [F32, None, None], to.1);
            }
        }
    }
    for m in ["rna", "rn", "rn.relu", "rz", "rz.relu"] {
        f.add(format!("cvt.{m}.tf32.f32 d, a;"), [32; 4], [F32, None, None], Elem::F32);
    }
}

fn packed(f: &mut Forms) {
    for (to, e) in [("f16x2", Elem::F16), ("bf16x2", Elem::Bf16)] {
        for r in ["rn", "rz"] {
            for m in ["", ".relu", ".satfinite"] {
                f.add(format!("cvt.{r}{m}.{to}.f32 d, a, b;"), [32; 4], [F32, F32, None], e);
            }
        }
    }
    for eight in ["e4m3x2", "e5m2x2"] {
        for m in ["", ".relu"] {
            let narrow = [32, 32, 32, 16];
            f.add(format!("cvt.rn.satfinite{m}.{eight}.f32 d, a, b;"), narrow, [F32, F32, None], Elem::U16);
            f.add(format!("cvt.rn.satfinite{m}.{eight}.f16x2 d, a;"), narrow, [F16x2, None, None], Elem::U16);
            f.add(
                format!("cvt.rn{m}.f16x2.{eight} d, a;"),
                [16, 32, 32, 32],
                [Int(16), None, None],
                Elem::F16,
            );
        }
    }
    for (to, c) in [("u16", false), ("s16", false), ("u8", true), ("s8", true)] {
        let (c, operands) = if c { (".b32", "a, b, c") } else { ("", "a, b") };
        f.add(format!("cvt.pack.sat.{to}.s32{c} d, {operands};"), [32; 4], [Int(32); 3], Elem::U32);
    }
}
