//! Floating point arithmetic in every rounding, and the approximations.

use super::{Elem, Forms, Kind, Tolerance};
use Kind::{Bf16, Bf16x2, F16, F16x2, F32, F64, None};

const ROUNDING: [&str; 4] = [".rn", ".rz", ".rm", ".rp"];
const FTZ: [&str; 2] = ["", ".ftz"];

pub(super) fn add(f: &mut Forms) {
    single(f);
    double(f);
    for (t, kind, w, e) in [
        ("f16", F16, 16, Elem::F16),
        ("f16x2", F16x2, 32, Elem::F16),
        ("bf16", Bf16, 16, Elem::Bf16),
        ("bf16x2", Bf16x2, 32, Elem::Bf16),
    ] {
        halves(f, t, kind, w, e);
    }
    approximations(f);
    out_of_bounds(f);
}

/// `fma.oob`: which of the NaNs makes the result zero, PTX does not say.
fn out_of_bounds(f: &mut Forms) {
    for (t, kind, digits, one, e) in
        [("f16", F16, 10, 0x3C00, Elem::F16), ("bf16", Bf16, 7, 0x3F80, Elem::Bf16)]
    {
        for relu in ["", ".relu"] {
            for operands in ["a, b, c", "b, a, c", "a, c, b"] {
                let kinds = [Kind::Fixed(one), Kind::Nan16(digits), kind];
                f.add(format!("fma.rn.oob{relu}.{t} d, {operands};"), [16; 4], kinds, e);
            }
            f.add(format!("fma.rn.oob{relu}.{t} d, a, b, c; //"), [16; 4], [kind; 3], e);
        }
    }
}

fn single(f: &mut Forms) {
    let (w4, e) = ([32; 4], Elem::F32);
    for ftz in FTZ {
        for sat in ["", ".sat"] {
            for op in ["add", "sub", "mul"] {
                f.add(format!("{op}{ftz}{sat}.f32 d, a, b;"), w4, [F32, F32, None], e);
                for r in ROUNDING {
                    f.add(format!("{op}{r}{ftz}{sat}.f32 d, a, b;"), w4, [F32, F32, None], e);
                }
            }
            for r in ROUNDING {
                f.add(format!("fma{r}{ftz}{sat}.f32 d, a, b, c;"), w4, [F32; 3], e);
                f.add(format!("mad{r}{ftz}{sat}.f32 d, a, b, c;"), w4, [F32; 3], e);
            }
        }
        for r in ROUNDING {
            f.add(format!("div{r}{ftz}.f32 d, a, b;"), w4, [F32, F32, None], e);
            f.add(format!("rcp{r}{ftz}.f32 d, a;"), w4, [F32, None, None], e);
            f.add(format!("sqrt{r}{ftz}.f32 d, a;"), w4, [F32, None, None], e);
        }
        for op in ["abs", "neg"] {
            f.add(format!("{op}{ftz}.f32 d, a;"), w4, [F32, None, None], e);
        }
        for op in ["min", "max"] {
            for nan in ["", ".NaN"] {
                for sign in ["", ".xorsign.abs"] {
                    f.add(format!("{op}{ftz}{nan}{sign}.f32 d, a, b;"), w4, [F32, F32, None], e);
                }
            }
        }
    }
    f.add("copysign.f32 d, a, b;", w4, [F32, F32, None], e);
}

fn double(f: &mut Forms) {
    let (w4, e) = ([64; 4], Elem::F64);
    for r in ROUNDING {
        for op in ["add", "sub", "mul", "div"] {
            f.add(format!("{op}{r}.f64 d, a, b;"), w4, [F64, F64, None], e);
        }
        for op in ["rcp", "sqrt"] {
            f.add(format!("{op}{r}.f64 d, a;"), w4, [F64, None, None], e);
        }
        f.add(format!("fma{r}.f64 d, a, b, c;"), w4, [F64; 3], e);
        f.add(format!("mad{r}.f64 d, a, b, c;"), w4, [F64; 3], e);
    }
    for op in ["add", "sub", "mul", "min", "max", "copysign"] {
        f.add(format!("{op}.f64 d, a, b;"), w4, [F64, F64, None], e);
    }
    for op in ["abs", "neg"] {
        f.add(format!("{op}.f64 d, a;"), w4, [F64, None, None], e);
    }
}

fn halves(f: &mut Forms, t: &str, kind: Kind, w: u32, e: Elem) {
    let w4 = [w; 4];
    let brain = t.starts_with('b');
    let modes: &[&str] = if brain { &[""] } else { &["", ".ftz", ".sat", ".ftz.sat"] };
    for m in modes {
        for op in ["add", "sub", "mul"] {
            for r in ["", ".rn"] {
                f.add(format!("{op}{r}{m}.{t} d, a, b;"), w4, [kind, kind, None], e);
            }
        }
        f.add(format!("fma.rn{m}.{t} d, a, b, c;"), w4, [kind; 3], e);
    }
    f.add(format!("fma.rn.relu.{t} d, a, b, c;"), w4, [kind; 3], e);
    for ftz in if brain { &[""][..] } else { &FTZ[..] } {
        for op in ["abs", "neg"] {
            f.add(format!("{op}{ftz}.{t} d, a;"), w4, [kind, None, None], e);
        }
        for op in ["min", "max"] {
            for nan in ["", ".NaN"] {
                for sign in ["", ".xorsign.abs"] {
                    f.add(format!("{op}{ftz}{nan}{sign}.{t} d, a, b;"), w4, [kind, kind, None], e);
                }
            }
        }
    }
    // The bounds of PTX: relative errors of 2^-9.9 (f16) and 2^-7 (bf16); tanh 2^-10.987 and 2^-8, absolute.
    let (power, tanh) =
        if brain { (2f64.powi(-7), 2f64.powi(-8)) } else { (2f64.powf(-9.9), 2f64.powf(-10.987)) };
    let ftz = if brain { ".ftz" } else { "" };
    let near = |bound: f64| Tolerance { relative: bound, absolute: bound, ulps: 1 };
    f.near(format!("ex2.approx{ftz}.{t} d, a;"), w4, [kind, None, None], e, near(power));
    f.near(format!("tanh.approx.{t} d, a;"), w4, [kind, None, None], e, near(tanh));
}

/// A bound of PTX holds for the GPU; the simulator is within an ulp or so of the true value, so that both
/// together are within the bound plus that.
fn approximations(f: &mut Forms) {
    let (w4, e) = ([32; 4], Elem::F32);
    for ftz in FTZ {
        let mut one = |op: &str, tolerance| {
            f.near(format!("{op}.approx{ftz}.f32 d, a;"), w4, [F32, None, None], e, tolerance);
        };
        one("rcp", Tolerance::ulps(2));
        one("sqrt", Tolerance { relative: 2f64.powi(-23), absolute: 0.0, ulps: 2 });
        one("rsqrt", Tolerance { relative: 2f64.powf(-22.9), absolute: 0.0, ulps: 2 });
        // PTX's bound for [-2 pi, 2 pi]. Beyond them the angle is what the interpreter takes too: see `turns`.
        one("sin", Tolerance { relative: 0.0, absolute: 2f64.powf(-20.5), ulps: 1 });
        one("cos", Tolerance { relative: 0.0, absolute: 2f64.powf(-20.5), ulps: 1 });
        one("lg2", Tolerance { relative: 2f64.powi(-22), absolute: 2f64.powi(-22), ulps: 1 });
        one("ex2", Tolerance { relative: 2f64.powf(-22.5), absolute: 0.0, ulps: 3 });
        for how in ["approx", "full"] {
            f.near(format!("div.{how}{ftz}.f32 d, a, b;"), w4, [F32, F32, None], e, Tolerance::ulps(3));
        }
    }
    f.near("tanh.approx.f32 d, a;", w4, [F32, None, None], e, Tolerance::relative(2f64.powi(-11) * 1.001));
    let w4 = [64; 4];
    for (body, bits) in [
        // PTX gives no bound, but says that only the upper half of the result is computed: one unit of that.
        ("rcp.approx.ftz.f64 d, a;", -20.0f64),
        ("rsqrt.approx.ftz.f64 d, a;", -20.0),
        ("rsqrt.approx.f64 d, a;", -22.9),
    ] {
        let bound = Tolerance::relative(bits.exp2());
        f.near(body, w4, [F64, None, None], Elem::F64, bound);
    }
}
