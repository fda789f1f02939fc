//! Loads, stores, asynchronous copies and atomics.
//!
//! Each thread has 64 bytes of its own in global memory (`g`), in shared memory (`s`) and in local memory (`l`), and the
//! block a counter in shared memory (`w`), all zero at the start.

use super::{Elem, Forms, Kind};
use Kind::{Int, None};

const TYPES: [(&str, u32); 14] = [
    ("u8", 8),
    ("s8", 8),
    ("b8", 8),
    ("u16", 16),
    ("s16", 16),
    ("b16", 16),
    ("u32", 32),
    ("s32", 32),
    ("b32", 32),
    ("f32", 32),
    ("u64", 64),
    ("s64", 64),
    ("b64", 64),
    ("f64", 64),
];
const SPACES: [(&str, &str); 4] = [(".global", "g"), (".shared", "s"), (".local", "l"), ("", "g")];
const ALL: [Kind; 3] = [Int(64); 3];
const W64: [u32; 4] = [64; 4];

pub(super) fn add(f: &mut Forms) {
    plain(f);
    vectors(f);
    qualified(f);
    async_copies(f);
    own_atomics(f);
    shared_counters(f);
    half_atomics(f);
    spaces(f);
    stack(f);
}

/// Room on the stack: of a fixed size, of a size that is computed, and used again after it was given back.
fn stack(f: &mut Forms) {
    f.add(
        "alloca.u64 y0, 64, 16; stacksave.u64 y1; and.b32 x0, a, 24; add.u32 x0, x0, 8; cvt.u64.u32 y2, x0; \
         alloca.u64 y3, y2; st.local.u32 [y3+4], c; st.local.u32 [y0+4], a; st.local.u32 [y0+60], b; \
         ld.local.u32 x1, [y3+4]; stackrestore.u64 y1; alloca.u64 y4, 8; st.local.u32 [y4], x1; \
         ld.local.u32 x2, [y0+4]; ld.local.u32 x3, [y0+60]; ld.local.u32 x4, [y4]; \
         lop3.b32 d, x2, x3, x4, 0x96;",
        [32; 4],
        [super::Kind::Int(32); 3],
        super::Elem::U32,
    );
    f.add(
        "alloca.u64 y0, 256, 256; cvt.u32.u64 x0, y0; and.b32 x0, x0, 255; st.local.b32 [y0+252], a; \
         ld.local.b32 x1, [y0+252]; add.u32 d, x0, x1;",
        [32; 4],
        [super::Kind::Int(32); 3],
        super::Elem::U32,
    );
}

fn plain(f: &mut Forms) {
    for (space, at) in SPACES {
        for (ty, width) in TYPES {
            // A narrow value in a wider register is extended. The comment tells the forms apart.
            for register in [16, 32, 64].into_iter().filter(|&r| r >= width && (width < 32 || r == width)) {
                f.add(
                    format!(
                        "st{space}.b64 [{at}], a; ld{space}.{ty} d, [{at}+{}]; // into .b{register}",
                        width / 8 % 8
                    ),
                    [64, 64, 64, register],
                    ALL,
                    super::integers::elem(register),
                );
                f.add(
                    format!(
                        "st{space}.b64 [{at}+8], b; st{space}.{ty} [{at}+8], a; ld{space}.b64 d, [{at}+8]; \
                         // from .b{register}"
                    ),
                    [register, 64, 64, 64],
                    [Int(register), Int(64), None],
                    Elem::U64,
                );
            }
        }
    }
}

fn vectors(f: &mut Forms) {
    for (space, at) in SPACES {
        let mut one = |body: String| f.add(body, W64, ALL, Elem::U64);
        one(format!(
            "st{space}.v2.b64 [{at}+16], {{a, b}}; ld{space}.v4.b32 {{x0, x1, x2, x3}}, [{at}+16]; mov.b64 d, {{x3, x0}};"
        ));
        one(format!(
            "mov.b64 {{x0, x1}}, a; mov.b64 {{x2, x3}}, b; st{space}.v4.b32 [{at}+32], {{x3, x1, x0, x2}}; \
             ld{space}.v2.u64 {{y0, y1}}, [{at}+32]; xor.b64 d, y0, y1;"
        ));
        one(format!(
            "mov.b64 {{x0, x1}}, a; st{space}.v2.f32 [{at}+24], {{x1, x0}}; ld{space}.v4.u16 {{h0, h1, h2, h3}}, [{at}+24]; \
             mov.b64 d, {{h2, h0, h1, h3}};"
        ));
        one(format!(
            "mov.b64 {{h0, h1, h2, h3}}, a; st{space}.v4.u8 [{at}+4], {{h3, h2, h1, h0}}; ld{space}.v2.s16 {{h4, h5}}, [{at}+4]; \
             mov.b64 d, {{h4, h5, h0, h1}};"
        ));
        one(format!(
            "st{space}.b64 [{at}], a; ld{space}.v2.s8 {{h0, h1}}, [{at}+2]; ld{space}.v4.u8 {{h2, h3, h4, h5}}, [{at}+4]; \
             mov.b64 d, {{h0, h1, h2, h5}};"
        ));
    }
}

fn qualified(f: &mut Forms) {
    let both =
        |load: &str, store: &str, at: &str| format!("st{store}.u64 [{at}], a; ld{load}.u64 d, [{at}];");
    let mut one = |load: &str, store: &str, at: &str| f.add(both(load, store, at), W64, ALL, Elem::U64);
    for cache in [".ca", ".cg", ".cs", ".lu", ".cv"] {
        one(&format!(".global{cache}"), ".global", "g");
    }
    for cache in [".wb", ".cg", ".cs", ".wt"] {
        one(".global", &format!(".global{cache}"), "g");
    }
    for (space, at) in [(".global", "g"), (".shared", "s"), ("", "g")] {
        one(&format!(".weak{space}"), &format!(".weak{space}"), at);
        one(&format!(".volatile{space}"), &format!(".volatile{space}"), at);
        for scope in [".cta", ".cluster", ".gpu", ".sys"] {
            one(&format!(".relaxed{scope}{space}"), &format!(".relaxed{scope}{space}"), at);
            one(&format!(".acquire{scope}{space}"), &format!(".release{scope}{space}"), at);
        }
    }
    for hint in ["", ".L1::no_allocate", ".L1::evict_first", ".L1::evict_last", ".L1::evict_unchanged"] {
        for size in ["", ".L2::64B", ".L2::128B", ".L2::256B"] {
            f.add(format!("ld.global.nc{hint}{size}.u64 d, [%q0+8];"), W64, ALL, Elem::U64);
        }
    }
    for (ty, register, width) in [("u32", "x0", 32), ("f32", "x0", 32), ("s16", "h0", 16), ("u8", "h0", 16)] {
        f.add(
            format!("ldu.global.{ty} {register}, [%q0]; cvt.u64.u{width} d, {register};"),
            W64,
            ALL,
            Elem::U64,
        );
    }
}

fn async_copies(f: &mut Forms) {
    let mut one = |copy: &str| {
        f.add(
            format!(
                "st.global.v2.b64 [g], {{a, b}}; st.shared.v2.b64 [s], {{b, c}}; {copy} ld.shared.v2.b64 {{y0, y1}}, [s]; \
                 xor.b64 d, y0, y1;"
            ),
            W64,
            ALL,
            Elem::U64,
        );
    };
    for bytes in [4, 8, 16] {
        one(&format!("cp.async.ca.shared.global [s], [g], {bytes}; cp.async.wait_all;"));
        for read in [0, 1, 3, 4] {
            one(&format!(
                "cp.async.ca.shared.global [s], [g], {bytes}, {read}; cp.async.commit_group; cp.async.wait_group 0;"
            ));
        }
    }
    one("cp.async.cg.shared.global [s], [g], 16; cp.async.wait_all;");
    one("cp.async.cg.shared.global.L2::128B [s], [g], 16, 5; cp.async.wait_all;");
    let barrier =
        "mbarrier.init.shared.b64 [s+32], 1; fence.proxy.async; fence.mbarrier_init.release.cluster;";
    let wait = "AGAIN: mbarrier.try_wait.parity.shared.b64 p, [s+32], 0; @!p bra AGAIN;";
    one(&format!(
        "{barrier} mbarrier.arrive.expect_tx.shared.b64 y2, [s+32], 16; \
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [g], 16, [s+32]; {wait}"
    ));
    one(&format!("{barrier} cp.async.mbarrier.arrive.noinc.shared.b64 [s+32]; {wait}"));
    let ops = [
        ("add", "u32"),
        ("add", "s32"),
        ("add", "u64"),
        ("min", "u32"),
        ("min", "s32"),
        ("max", "u64"),
        ("max", "s64"),
        ("and", "b32"),
        ("or", "b64"),
        ("xor", "b32"),
        ("inc", "u32"),
        ("dec", "u32"),
    ];
    for (op, ty) in ops {
        f.add(
            format!(
                "st.global.v2.b64 [g], {{a, b}}; st.shared.v2.b64 [s], {{b, c}}; fence.proxy.async; \
                 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{ty} [g], [s], 16; cp.async.bulk.commit_group; \
                 cp.async.bulk.wait_group 0; ld.global.v2.b64 {{y0, y1}}, [g]; xor.b64 d, y0, y1;"
            ),
            W64,
            ALL,
            Elem::U64,
        );
    }
}

/// Every atomic on memory of the thread's own: the old value and the new one.
fn own_atomics(f: &mut Forms) {
    let places = [(".global", "g"), (".shared", "s"), ("", "g"), (".shared::cluster", "s")];
    let ops: [(&str, &[&str]); 9] = [
        ("add", &["u32", "s32", "u64", "f32", "f64"]),
        ("min", &["u32", "s32", "u64", "s64"]),
        ("max", &["u32", "s32", "u64", "s64"]),
        ("and", &["b32", "b64"]),
        ("or", &["b32", "b64"]),
        ("xor", &["b32", "b64"]),
        ("exch", &["b32", "b64"]),
        ("inc", &["u32"]),
        ("dec", &["u32"]),
    ];
    for (space, at) in places {
        let plain = if space.is_empty() {
            ""
        } else if at == "g" {
            ".global"
        } else {
            ".shared"
        };
        for (op, types) in ops {
            for &ty in types {
                let kind = match ty {
                    "f32" => Kind::F32,
                    "f64" => Kind::F64,
                    _ => Int(if ty.ends_with("64") { 64 } else { 32 }),
                };
                let (width, x) = if ty.ends_with("64") { (64, "y") } else { (32, "x") };
                let elem = match ty {
                    "f32" => Elem::F32,
                    "f64" => Elem::F64,
                    _ => super::integers::elem(width),
                };
                let start = format!("st{plain}.b{width} [{at}], b;");
                let kinds = [kind, kind, None];
                if width == 32 {
                    f.add(
                        format!("{start} atom{space}.{op}.{ty} x0, [{at}], a; ld{plain}.b32 x1, [{at}]; mov.b64 d, {{x0, x1}};"),
                        [32, 32, 64, 64],
                        kinds,
                        elem,
                    );
                } else {
                    f.add(format!("{start} atom{space}.{op}.{ty} d, [{at}], a;"), W64, kinds, elem);
                    f.add(
                        format!("{start} atom{space}.{op}.{ty} {x}0, [{at}], a; ld{plain}.b64 d, [{at}];"),
                        W64,
                        kinds,
                        elem,
                    );
                }
                if op != "exch" {
                    f.add(
                        format!("{start} red{space}.{op}.{ty} [{at}], a; ld{plain}.b{width} d, [{at}];"),
                        [width, width, 64, width],
                        kinds,
                        elem,
                    );
                }
            }
        }
        for width in [16u32, 32, 64] {
            // Half of the inputs agree.
            let x = ["h", "x", "y"][width as usize / 32];
            let pick =
                format!("and.b{width} {x}1, b, 1; and.b{width} {x}2, a, 1; st{plain}.b{width} [{at}], {x}1;");
            f.add(
                format!(
                    "{pick} atom{space}.cas.b{width} {x}3, [{at}], {x}2, c; ld{plain}.b{width} d, [{at}];"
                ),
                [width; 4],
                [Int(width); 3],
                super::integers::elem(width),
            );
            f.add(
                format!("{pick} atom{space}.cas.b{width} d, [{at}], {x}2, c;"),
                [width; 4],
                [Int(width); 3],
                super::integers::elem(width),
            );
        }
    }
    for order in [".relaxed", ".acquire", ".release", ".acq_rel"] {
        for scope in [".cta", ".cluster", ".gpu", ".sys"] {
            f.add(
                format!("st.global.b64 [g], b; atom{order}{scope}.global.add.u64 y0, [g], a; ld.global.b64 d, [g];"),
                W64,
                ALL,
                Elem::U64,
            );
        }
    }
}

/// What a block makes of one counter; the order does not matter to these.
fn shared_counters(f: &mut Forms) {
    for (op, ty) in [
        ("add", "u32"),
        ("add", "s32"),
        ("min", "s32"),
        ("max", "u32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ] {
        for how in ["red", "atom"] {
            let old = if how == "atom" { "x0, " } else { "" };
            f.add(
                format!("{how}.shared.{op}.{ty} {old}[w], a; bar.sync 0; ld.shared.b32 d, [w];"),
                [32; 4],
                [Int(32), None, None],
                Elem::U32,
            );
        }
    }
    f.add("red.shared.inc.u32 [w], 77; bar.sync 0; ld.shared.u32 d, [w];", [32; 4], [None; 3], Elem::U32);
    f.add("red.shared.dec.u32 [w], 77; bar.sync 0; ld.shared.u32 d, [w];", [32; 4], [None; 3], Elem::U32);
    f.add("red.shared.add.u64 [w], a; bar.sync 0; ld.shared.u64 d, [w];", W64, ALL, Elem::U64);
    let compare = "AGAIN: ld.volatile.shared.u32 x0, [w]; add.u32 x1, x0, a; atom.shared.cas.b32 x2, [w], x0, x1; \
                   setp.ne.u32 p, x2, x0; @p bra AGAIN; bar.sync 0; ld.shared.u32 d, [w];";
    f.add(compare, [32; 4], [Int(32), None, None], Elem::U32);
    for (red, cond) in
        [("popc.u32 d", ""), ("and.pred q", "selp.b32 d, 1, 0, q;"), ("or.pred q", "selp.b32 d, 1, 0, q;")]
    {
        for limit in [0u32, 1, 1 << 20] {
            f.add(
                format!("setp.ge.u32 p, a, {limit}; bar.red.{red}, 0, p; {cond}"),
                [32; 4],
                [Int(32), None, None],
                Elem::U32,
            );
        }
    }
}

fn half_atomics(f: &mut Forms) {
    for (ty, kind, width, elem) in [
        ("f16", Kind::F16, 16, Elem::F16),
        ("bf16", Kind::Bf16, 16, Elem::Bf16),
        ("f16x2", Kind::F16x2, 32, Elem::F16),
        ("bf16x2", Kind::Bf16x2, 32, Elem::Bf16),
    ] {
        for (space, at) in [(".global", "g"), (".shared", "s"), ("", "g")] {
            let x = if width == 16 { "h" } else { "x" };
            let start = format!("st{space}.b{width} [{at}], b;");
            f.add(
                format!("{start} atom{space}.add.noftz.{ty} {x}0, [{at}], a; ld{space}.b{width} d, [{at}];"),
                [width, width, 64, width],
                [kind, kind, None],
                elem,
            );
            f.add(
                format!("{start} red{space}.add.noftz.{ty} [{at}], a; ld{space}.b{width} d, [{at}];"),
                [width, width, 64, width],
                [kind, kind, None],
                elem,
            );
        }
    }
    // Pairs in shared memory, in all ways that there are to say it.
    for (ty, kind, elem) in [("f16x2", Kind::F16x2, Elem::F16), ("bf16x2", Kind::Bf16x2, Elem::Bf16)] {
        for body in [
            "atom.shared.add.noftz.TY d, [s], a;",
            "cvta.shared.u64 y0, s; atom.add.noftz.TY x0, [y0], a; ld.shared.b32 d, [s];",
            "cvta.shared.u64 y0, s; red.add.noftz.TY [y0], a; ld.shared.b32 d, [s];",
            "atom.relaxed.cta.shared::cta.add.noftz.TY x0, [s], a; ld.shared.b32 d, [s];",
            "red.relaxed.gpu.shared.add.noftz.TY [s], a; ld.shared.b32 d, [s];",
            "red.shared.add.noftz.TY [s], a; red.shared.add.noftz.TY [s], a; ld.shared.b32 d, [s];",
            "prmt.b32 x1, a, a, 0x1032; red.shared.add.noftz.TY [s], x1; ld.shared.b32 d, [s];",
        ] {
            let body = format!("st.shared.b32 [s], b; {}", body.replace("TY", ty));
            f.add(body, [32; 4], [kind, kind, None], elem);
        }
    }
    for (ty, kind, elem) in [("f16", Kind::F16, Elem::F16), ("bf16", Kind::Bf16, Elem::Bf16)] {
        let body =
            format!("st.shared.b16 [s+2], b; red.shared.add.noftz.{ty} [s+2], a; ld.shared.b16 d, [s+2];");
        f.add(body, [16; 4], [kind, kind, None], elem);
    }
    let (f32s, w32) = ([Kind::F32, Kind::F32, None], [32, 32, 64, 64]);
    f.add(
        "st.global.v2.b32 [g], {b, a}; atom.global.add.v2.f32 {x0, x1}, [g], {a, b}; ld.global.v2.b32 {x2, x3}, [g]; mov.b64 d, {x2, x3};",
        w32,
        f32s,
        Elem::F32,
    );
    f.add(
        "st.global.v4.b32 [g], {b, a, b, a}; red.global.add.v4.f32 [g], {a, a, b, b}; ld.global.v2.b32 {x2, x3}, [g+8]; mov.b64 d, {x2, x3};",
        w32,
        f32s,
        Elem::F32,
    );
    for op in ["add", "min", "max"] {
        f.add(
            format!("st.global.v2.b32 [g], {{b, a}}; red.global.{op}.noftz.v2.f16x2 [g], {{a, b}}; ld.global.v2.b32 {{x2, x3}}, [g]; mov.b64 d, {{x2, x3}};"),
            w32,
            [Kind::F16x2, Kind::F16x2, None],
            Elem::F16,
        );
        f.add(
            format!("st.global.v2.b32 [g], {{b, a}}; atom.global.{op}.noftz.v2.bf16x2 {{x0, x1}}, [g], {{a, b}}; ld.global.v2.b32 {{x2, x3}}, [g]; mov.b64 d, {{x2, x3}};"),
            w32,
            [Kind::Bf16x2, Kind::Bf16x2, None],
            Elem::Bf16,
        );
    }
}

fn spaces(f: &mut Forms) {
    for (space, at) in [("global", "g"), ("shared", "s"), ("local", "l")] {
        f.add(
            format!("st.{space}.b64 [{at}], a; cvta.{space}.u64 y0, {at}; ld.b64 d, [y0];"),
            W64,
            ALL,
            Elem::U64,
        );
        f.add(
            format!("cvta.{space}.u64 y0, {at}; st.b64 [y0], a; cvta.to.{space}.u64 y1, y0; ld.{space}.b64 d, [y1];"),
            W64,
            ALL,
            Elem::U64,
        );
        for tested in ["global", "shared", "local", "const", "shared::cluster"] {
            f.add(
                format!("cvta.{space}.u64 y0, {at}; isspacep.{tested} p, y0; selp.b64 d, 1, 0, p;"),
                W64,
                [None; 3],
                Elem::U64,
            );
        }
    }
    f.add(
        "st.shared.b64 [s], a; bar.warp.sync -1; mapa.shared::cluster.u64 y0, s, 0; ld.shared::cluster.b64 d, [y0];",
        W64,
        ALL,
        Elem::U64,
    );
    f.add("getctarank.shared::cluster.u64 x0, s; cvt.u64.u32 d, x0;", W64, [None; 3], Elem::U64);
}
