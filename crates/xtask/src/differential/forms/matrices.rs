//! `mma` and `wmma`.
//!
//! Operands are small whole numbers, so that sums are exact in whatever order and width the hardware takes them;
//! integer matrices take any bits.

use super::{Elem, Forms, Kind};
use Kind::Int;

const W64: [u32; 4] = [64; 4];
const ALL: [Kind; 3] = [Int(64); 3];

/// Splits the inputs into `x0` to `x5`; a few turns make `x6` and `x7`.
const SPLIT: &str =
    "mov.b64 {x0, x1}, a; mov.b64 {x2, x3}, b; mov.b64 {x4, x5}, c; xor.b32 x6, x0, x5; not.b32 x7, x2;";

/// Makes small numbers of a type from random bits in these registers.
fn small(ty: &str, registers: &[u32], limit: u32) -> String {
    let one = |n: &u32| match ty {
        // 1024 + n has n in its last bits, and 1024 goes again.
        "f16" => format!(
            "and.b32 x{n}, x{n}, 0x{0:X}; or.b32 x{n}, x{n}, 0x64006400; sub.f16x2 x{n}, x{n}, k;",
            limit << 16 | limit
        ),
        "bf16" => format!(
            "and.b32 x{n}, x{n}, 0x{0:X}; or.b32 x{n}, x{n}, 0x43004300; sub.bf16x2 x{n}, x{n}, k;",
            limit << 16 | limit
        ),
        "tf32" | "f32" => format!("and.b32 x{n}, x{n}, {limit}; cvt.rn.f32.u32 x{n}, x{n};"),
        // Between 1/2 and 2, of either sign.
        "e4m3" => format!("and.b32 x{n}, x{n}, 0x8F8F8F8F; or.b32 x{n}, x{n}, 0x30303030;"),
        "e5m2" => format!("and.b32 x{n}, x{n}, 0x87878787; or.b32 x{n}, x{n}, 0x38383838;"),
        _ => String::new(),
    };
    let constant = match ty {
        "f16" => "mov.b32 k, 0x64006400; ",
        "bf16" => "mov.b32 k, 0x43004300; ",
        _ => "",
    };
    format!("{constant}{}", registers.iter().map(one).collect::<Vec<_>>().join(" "))
}

pub(super) fn add(f: &mut Forms) {
    floats(f);
    integers(f);
    doubles(f);
    whole_tiles(f);
    sparse(f);
    quads(f);
}

fn list(from: u32, count: u32) -> String {
    let all: Vec<String> = (from..from + count).map(|n| format!("x{n}")).collect();
    format!("{{{}}}", all.join(", "))
}

/// One `mma` with 32-bit registers: `a` from `x0` on, `b` after it, `c` and `d` in `z`.
fn one(f: &mut Forms, head: &str, name: &str, [na, nb, nc]: [u32; 3], c_small: &str, tail: &str, elem: Elem) {
    let (za, zd) = (
        (0..nc).map(|n| format!("z{n}")).collect::<Vec<_>>().join(", "),
        (0..nc).map(|n| format!("z{}", n + 4)).collect::<Vec<_>>().join(", "),
    );
    let starts: Vec<String> =
        (0..nc).map(|n| format!("xor.b32 z{n}, x{}, x{};", (n + 1) % 8, (n + 4) % 8)).collect();
    for first in (0..nc).step_by(2) {
        f.add(
            format!(
                ".reg .b32 k, z<8>; {SPLIT} {} {c_small} {head} {name} {{{zd}}}, {}, {}, {{{za}}}{tail}; mov.b64 d, {{z{}, z{}}};",
                starts.join(" "),
                list(0, na),
                list(na, nb),
                first + 4,
                first + 5
            ),
            W64,
            ALL,
            elem,
        );
    }
}

fn floats(f: &mut Forms) {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let whole = |limit: u32| -> String {
        (0..4).map(|n| format!("and.b32 z{n}, z{n}, {limit}; cvt.rn.f32.u32 z{n}, z{n};")).collect()
    };
    for ty in ["f16", "bf16"] {
        let head = small(ty, &all, 15);
        for (shape, counts) in [("m16n8k8", [2, 1, 4]), ("m16n8k16", [4, 2, 4])] {
            one(
                f,
                &head,
                &format!("mma.sync.aligned.{shape}.row.col.f32.{ty}.{ty}.f32"),
                counts,
                &whole(255),
                "",
                Elem::F32,
            );
        }
    }
    let halves = "and.b32 z0, z0, 0x000F000F; or.b32 z0, z0, 0x64006400; and.b32 z1, z1, 0x000F000F; or.b32 z1, z1, 0x64006400; \
                  mov.b32 k, 0x64006400; sub.f16x2 z0, z0, k; sub.f16x2 z1, z1, k;";
    for (shape, counts) in [("m16n8k8", [2, 1, 2]), ("m16n8k16", [4, 2, 2])] {
        one(
            f,
            &small("f16", &all, 3),
            &format!("mma.sync.aligned.{shape}.row.col.f16.f16.f16.f16"),
            counts,
            halves,
            "",
            Elem::F16,
        );
    }
    for (shape, counts) in [("m16n8k4", [2, 1, 4]), ("m16n8k8", [4, 2, 4])] {
        one(
            f,
            &small("tf32", &all, 63),
            &format!("mma.sync.aligned.{shape}.row.col.f32.tf32.tf32.f32"),
            counts,
            &whole(255),
            "",
            Elem::F32,
        );
    }
    for a in ["e4m3", "e5m2"] {
        for b in ["e4m3", "e5m2"] {
            let head = format!("{} {}", small(a, &[0, 1, 2, 3], 0), small(b, &[4, 5, 6, 7], 0));
            one(
                f,
                &head,
                &format!("mma.sync.aligned.m16n8k32.row.col.f32.{a}.{b}.f32"),
                [4, 2, 4],
                &whole(63),
                "",
                Elem::F32,
            );
        }
    }
}

fn integers(f: &mut Forms) {
    for sat in ["", ".satfinite"] {
        for a in ["s8", "u8"] {
            for b in ["s8", "u8"] {
                for (shape, counts) in
                    [("m8n8k16", [1, 1, 2]), ("m16n8k16", [2, 1, 4]), ("m16n8k32", [4, 2, 4])]
                {
                    one(
                        f,
                        "",
                        &format!("mma.sync.aligned.{shape}.row.col{sat}.s32.{a}.{b}.s32"),
                        counts,
                        "",
                        "",
                        Elem::U32,
                    );
                }
            }
        }
        for a in ["s4", "u4"] {
            for b in ["s4", "u4"] {
                for (shape, counts) in
                    [("m8n8k32", [1, 1, 2]), ("m16n8k32", [2, 1, 4]), ("m16n8k64", [4, 2, 4])]
                {
                    one(
                        f,
                        "",
                        &format!("mma.sync.aligned.{shape}.row.col{sat}.s32.{a}.{b}.s32"),
                        counts,
                        "",
                        "",
                        Elem::U32,
                    );
                }
            }
        }
    }
    for op in ["xor", "and"] {
        for (shape, counts) in [("m8n8k128", [1, 1, 2]), ("m16n8k128", [2, 1, 4]), ("m16n8k256", [4, 2, 4])] {
            one(
                f,
                "",
                &format!("mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{op}.popc"),
                counts,
                "",
                "",
                Elem::U32,
            );
        }
    }
}

fn doubles(f: &mut Forms) {
    let whole = |from: u32, to: u32| -> String {
        (from..to).map(|n| format!("and.b32 x{n}, x{n}, 1023; cvt.rn.f64.u32 v{n}, x{n};")).collect()
    };
    let mut one = |shape: &str, [na, nb, nc]: [u32; 3]| {
        let list = |from: u32, n: u32| {
            (from..from + n).map(|n| format!("v{}", n % 8)).collect::<Vec<_>>().join(", ")
        };
        for n in 0..nc {
            let outputs: Vec<String> = (0..nc).map(|n| format!("u{n}")).collect();
            f.add(
                format!(
                    ".reg .b64 v<8>, u<4>; {SPLIT} {} mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {{{}}}, {{{}}}, {{{}}}, {{{}}}; \
                     mov.b64 d, u{n};",
                    whole(0, 8),
                    outputs.join(", "),
                    list(0, na),
                    list(na, nb),
                    list(3, nc)
                ),
                W64,
                ALL,
                Elem::F64,
            );
        }
    };
    one("m8n8k4", [1, 1, 2]);
    one("m16n8k4", [2, 1, 4]);
    one("m16n8k8", [4, 2, 4]);
    one("m16n8k16", [8, 4, 4]);
}

/// `mma.sp`. Every lane makes metadata that has a meaning, all six choices of two from four; the selector says whose counts.
fn sparse(f: &mut Forms) {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let metadata = |pairs: bool| {
        // 0b0100 and 0b1110, by a random bit, and then 0b1000 and 0b1101, by another.
        let first = "and.b32 m, x7, 0x11111111; mad.lo.u32 e, m, 10, 0x44444444;";
        if pairs {
            return first.to_owned();
        }
        format!(
            "{first} mad.lo.u32 m, m, 5, 0x88888888; shr.u32 n, x1, 3; and.b32 n, n, 0x11111111; mul.lo.u32 n, n, 15; \
             lop3.b32 e, n, m, e, 0xCA;"
        )
    };
    let mut one = |name: &str,
                   pairs: bool,
                   prepare: &str,
                   [na, nb, nc]: [u32; 3],
                   selector: u32,
                   elem: Elem| {
        let z = |from: u32| (from..from + nc).map(|n| format!("z{n}")).collect::<Vec<_>>().join(", ");
        let starts: String = (0..nc).map(|n| format!("xor.b32 z{n}, x{}, x{}; ", n + 1, n + 4)).collect();
        for first in (0..nc).step_by(2) {
            f.add(
                format!(
                    ".reg .b32 k, e, m, n, z<8>; {SPLIT} {} {starts}{prepare} {name} {{{}}}, {}, {}, {{{}}}, e, {selector}; \
                     mov.b64 d, {{z{}, z{}}};",
                    metadata(pairs),
                    z(4),
                    list(0, na),
                    list(na, nb),
                    z(0),
                    first + 4,
                    first + 5
                ),
                W64,
                ALL,
                elem,
            );
        }
    };
    let whole: String =
        (0..4).map(|n| format!("and.b32 z{n}, z{n}, 255; cvt.rn.f32.u32 z{n}, z{n}; ")).collect();
    let halves = "and.b32 z0, z0, 0x000F000F; or.b32 z0, z0, 0x64006400; and.b32 z1, z1, 0x000F000F; or.b32 z1, z1, 0x64006400; \
                  mov.b32 k, 0x64006400; sub.f16x2 z0, z0, k; sub.f16x2 z1, z1, k;";
    for ty in ["f16", "bf16"] {
        let prepare = format!("{} {whole}", small(ty, &all, 15));
        for (shape, counts, selectors) in [("m16n8k16", [2, 2, 4], 4), ("m16n8k32", [4, 4, 4], 2)] {
            for selector in 0..selectors {
                let name = format!("mma.sp.sync.aligned.{shape}.row.col.f32.{ty}.{ty}.f32");
                one(&name, false, &prepare, counts, selector, Elem::F32);
            }
        }
    }
    for (shape, counts) in [("m16n8k16", [2, 2, 2]), ("m16n8k32", [4, 4, 2])] {
        let name = format!("mma.sp::ordered_metadata.sync.aligned.{shape}.row.col.f16.f16.f16.f16");
        one(&name, false, &format!("{} {halves}", small("f16", &all, 3)), counts, 1, Elem::F16);
    }
    for (shape, counts, selectors) in [("m16n8k8", [2, 2, 4], 4), ("m16n8k16", [4, 4, 4], 2)] {
        for selector in 0..selectors {
            let name = format!("mma.sp.sync.aligned.{shape}.row.col.f32.tf32.tf32.f32");
            one(&name, true, &format!("{} {whole}", small("tf32", &all, 63)), counts, selector, Elem::F32);
        }
    }
    for a in ["e4m3", "e5m2"] {
        for b in ["e4m3", "e5m2"] {
            let prepare = format!("{} {} {whole}", small(a, &[0, 1, 2, 3], 0), small(b, &[4, 5, 6, 7], 0));
            let name = format!("mma.sp.sync.aligned.m16n8k64.row.col.f32.{a}.{b}.f32");
            one(&name, false, &prepare, [4, 4, 4], 0, Elem::F32);
        }
    }
    for (types, shapes) in [
        (["s8", "u8"], [("m16n8k32", [2, 2, 4], 2), ("m16n8k64", [4, 4, 4], 1)]),
        (["s4", "u4"], [("m16n8k64", [2, 2, 4], 2), ("m16n8k128", [4, 4, 4], 1)]),
    ] {
        for (a, b, sat) in [(0, 0, ""), (1, 1, ".satfinite"), (0, 1, ""), (1, 0, "")] {
            for (shape, counts, selectors) in shapes {
                for selector in 0..selectors {
                    let (a, b) = (types[a], types[b]);
                    let name = format!("mma.sp.sync.aligned.{shape}.row.col{sat}.s32.{a}.{b}.s32");
                    one(&name, false, "", counts, selector, Elem::U32);
                }
            }
        }
    }
}

/// `mma.m8n8k4` on `f16`: four products in one instruction.
fn quads(f: &mut Forms) {
    let prepare = small("f16", &[0, 1, 2, 3, 4, 5, 6, 7], 15);
    for (d, c) in [("f32", "f32"), ("f16", "f16"), ("f32", "f16")] {
        let (nd, nc) = (if d == "f32" { 8 } else { 4 }, if c == "f32" { 8 } else { 4 });
        let starts: String = (0..nc)
            .map(|n| match c {
                "f32" => format!("and.b32 z{n}, x{}, {}; cvt.rn.f32.u32 z{n}, z{n}; ", n % 6, 127 + n),
                _ => format!("mov.b32 z{n}, x{}; ", 4 + n),
            })
            .collect();
        let z = |from: u32, n: u32| (from..from + n).map(|n| format!("z{n}")).collect::<Vec<_>>().join(", ");
        for a in ["row", "col"] {
            for b in ["row", "col"] {
                for first in (0..nd).step_by(2) {
                    let early = if c == "f32" { starts.as_str() } else { "" };
                    let late = if c == "f32" { "" } else { starts.as_str() };
                    f.add(
                        format!(
                            ".reg .b32 k, z<16>; {SPLIT} {early}{prepare} {late}\
                             mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c} {{{}}}, {{x0, x1}}, {{x2, x3}}, {{{}}}; \
                             mov.b64 d, {{z{}, z{}}};",
                            z(8, nd),
                            z(0, nc),
                            first + 8,
                            first + 9
                        ),
                        W64,
                        ALL,
                        if d == "f32" { Elem::F32 } else { Elem::F16 },
                    );
                }
            }
        }
    }
}

/// `wmma`: each warp's `a` lies in the first 512 bytes of its 2048 of shared memory, `b` behind it, then `c`.
fn whole_tiles(f: &mut Forms) {
    let place = "mov.u32 x7, %tid.x; and.b32 x6, x7, 31; shr.u32 x7, x7, 5; mul.wide.u32 y0, x7, 2048; mov.u64 y1, BLOCK; \
                 add.u64 y0, y0, y1; mad.wide.u32 y1, x6, 16, y0; mad.wide.u32 y2, x6, 32, y0;";
    let mut tile = |prepare: String, work: String, read: u32, elem: Elem| {
        f.add(
            format!(
                ".reg .b32 k, fa<8>, fb<8>, fc<8>, fd<8>; .reg .b64 fe<2>; {SPLIT} {prepare} st.shared.v4.b32 [y1], {{x0, x1, x2, x3}}; \
                 st.shared.v4.b32 [y1+512], {{x2, x4, x5, x0}}; st.shared.v4.b32 [y2+1024], {{x0, x3, x4, x1}}; \
                 st.shared.v4.b32 [y2+1040], {{x5, x2, x1, x4}}; bar.warp.sync -1; {work} bar.warp.sync -1; \
                 ld.shared.b64 d, [y2+{}];",
                1024 + read
            ),
            W64,
            ALL,
            elem,
        );
    };
    let eight = |name: &str| (0..8).map(|n| format!("{name}{n}")).collect::<Vec<_>>().join(", ");
    let four = |name: &str| (0..4).map(|n| format!("{name}{n}")).collect::<Vec<_>>().join(", ");
    for shape in ["m16n16k16", "m32n8k16", "m8n32k16"] {
        for a in ["row", "col"] {
            for b in ["row", "col"] {
                let (m, n) = match shape {
                    "m16n16k16" => (16, 16),
                    "m32n8k16" => (32, 8),
                    _ => (8, 32),
                };
                if m * 16 * 2 > 512 || n * 16 * 2 > 512 {
                    continue;
                }
                let (lda, ldb) = (if a == "row" { 16 } else { m }, if b == "row" { n } else { 16 });
                // Which element a register of the accumulator holds is not defined: all start alike.
                tile(
                    format!("{} {place}", small("f16", &[0, 1, 2, 3, 4, 5], 15)),
                    format!(
                        "wmma.load.a.sync.aligned.{a}.{shape}.shared.f16 {{{fa}}}, [y0], {lda}; \
                         wmma.load.b.sync.aligned.{b}.{shape}.shared.f16 {{{fb}}}, [y0+512], {ldb}; \
                         {zero} wmma.mma.sync.aligned.{a}.{b}.{shape}.f32.f32 {{{fd}}}, {{{fa}}}, {{{fb}}}, {{{fc}}}; \
                         wmma.store.d.sync.aligned.row.{shape}.shared.f32 [y0+1024], {{{fd}}}, {n};",
                        fa = eight("fa"),
                        fb = eight("fb"),
                        fc = eight("fc"),
                        fd = eight("fd"),
                        zero = (0..8).map(|n| format!("mov.b32 fc{n}, 0f40400000;")).collect::<String>(),
                    ),
                    if a == b { 0 } else { 24 },
                    Elem::F32,
                );
            }
        }
    }
    for layout in ["row", "col"] {
        tile(
            format!("{} {place}", small("bf16", &[0, 1, 2, 3, 4, 5], 15)),
            format!(
                "wmma.load.a.sync.aligned.{layout}.m16n16k16.shared.bf16 {{{fa}}}, [y0], 16; \
                 wmma.load.b.sync.aligned.col.m16n16k16.shared.bf16 {{{fb}}}, [y0+512], 16; \
                 {zero} wmma.mma.sync.aligned.{layout}.col.m16n16k16.f32.bf16.bf16.f32 {{{fd}}}, {{{fa}}}, {{{fb}}}, {{{fc}}}; \
                 wmma.store.d.sync.aligned.{layout}.m16n16k16.shared.f32 [y0+1024], {{{fd}}}, 16;",
                fa = four("fa"),
                fb = four("fb"),
                fc = eight("fc"),
                fd = eight("fd"),
                zero = (0..8).map(|n| format!("mov.b32 fc{n}, 0f41200000;")).collect::<String>(),
            ),
            8,
            Elem::F32,
        );
        for ty in ["s8", "u8"] {
            for sat in ["", ".satfinite"] {
                tile(
                    place.to_owned(),
                    format!(
                        "wmma.load.a.sync.aligned.{layout}.m16n16k16.shared.{ty} {{fa0, fa1}}, [y0], 16; \
                         wmma.load.b.sync.aligned.col.m16n16k16.shared.{ty} {{fb0, fb1}}, [y0+512], 16; \
                         wmma.load.c.sync.aligned.{layout}.m16n16k16.shared.s32 {{{fc}}}, [y0+1024], 16; \
                         wmma.mma.sync.aligned.{layout}.col.m16n16k16.s32.{ty}.{ty}.s32{sat} {{{fd}}}, {{fa0, fa1}}, {{fb0, fb1}}, {{{fc}}}; \
                         wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [y0+1024], {{{fd}}}, 16;",
                        fc = eight("fc"),
                        fd = eight("fd"),
                    ),
                    16,
                    Elem::U32,
                );
            }
        }
    }
    for ty in ["s4", "u4"] {
        tile(
            place.to_owned(),
            format!(
                "wmma.load.a.sync.aligned.row.m8n8k32.shared.{ty} {{fa0}}, [y0], 32; \
                 wmma.load.b.sync.aligned.col.m8n8k32.shared.{ty} {{fb0}}, [y0+512], 32; \
                 wmma.load.c.sync.aligned.row.m8n8k32.shared.s32 {{fc0, fc1}}, [y0+1024], 8; \
                 wmma.mma.sync.aligned.row.col.m8n8k32.s32.{ty}.{ty}.s32 {{fd0, fd1}}, {{fa0}}, {{fb0}}, {{fc0, fc1}}; \
                 wmma.store.d.sync.aligned.row.m8n8k32.shared.s32 [y0+1024], {{fd0, fd1}}, 8;"
            ),
            0,
            Elem::U32,
        );
    }
    for op in ["xor", "and"] {
        tile(
            place.to_owned(),
            format!(
                "wmma.load.a.sync.aligned.row.m8n8k128.shared.b1 {{fa0}}, [y0], 128; \
                 wmma.load.b.sync.aligned.col.m8n8k128.shared.b1 {{fb0}}, [y0+512], 128; \
                 wmma.load.c.sync.aligned.row.m8n8k128.shared.s32 {{fc0, fc1}}, [y0+1024], 8; \
                 wmma.mma.{op}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {{fd0, fd1}}, {{fa0}}, {{fb0}}, {{fc0, fc1}}; \
                 wmma.store.d.sync.aligned.row.m8n8k128.shared.s32 [y0+1024], {{fd0, fd1}}, 8;"
            ),
            0,
            Elem::U32,
        );
    }
}
