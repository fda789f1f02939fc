//! What lanes of a warp do together.

use super::{Elem, Forms, Kind};
use Kind::{Int, None};

const W32: [u32; 4] = [32; 4];

pub(super) fn add(f: &mut Forms) {
    shuffles(f);
    votes(f);
    matches_and_sums(f);
    fragments(f);
}

fn shuffles(f: &mut Forms) {
    let kinds = [Int(32), Kind::Amount, Int(32)];
    for mode in ["up", "down", "bfly", "idx"] {
        // Any lane and any clamp; then each width.
        f.add(format!("shfl.sync.{mode}.b32 d, a, b, c, -1;"), W32, kinds, Elem::U32);
        f.add(format!("shfl.sync.{mode}.b32 x0|p, a, b, c, -1; selp.b32 d, 1, 0, p;"), W32, kinds, Elem::U32);
        for clamp in [0x1F, 0x0, 0x101F, 0x181F, 0x1C03, 0x100F, 0x1E1F] {
            for by in [0, 1, 5, 16, 31, 33] {
                f.add(
                    format!("shfl.sync.{mode}.b32 x0|p, a, {by}, {clamp}, -1; selp.b32 d, x0, 7, p;"),
                    W32,
                    kinds,
                    Elem::U32,
                );
            }
        }
        // Half of the warp.
        f.add(
            format!(
                "mov.u32 x0, %laneid; setp.lt.u32 q, x0, 16; mov.b32 d, 5; @q shfl.sync.{mode}.b32 d|p, a, 3, 0x101F, 0xFFFF;"
            ),
            W32,
            kinds,
            Elem::U32,
        );
    }
}

fn votes(f: &mut Forms) {
    for limit in ["0", "1", "0x100", "0x7FFFFFFF", "b"] {
        let ask = format!("setp.ge.u32 p, a, {limit};");
        for mode in ["all", "any", "uni"] {
            for negate in ["", "!"] {
                f.add(
                    format!("{ask} vote.sync.{mode}.pred q, {negate}p, -1; selp.b32 d, 1, 0, q;"),
                    W32,
                    [Int(32), Int(32), None],
                    Elem::U32,
                );
            }
        }
        f.add(format!("{ask} vote.sync.ballot.b32 d, p, -1;"), W32, [Int(32), Int(32), None], Elem::U32);
        f.add(
            format!("{ask} mov.b32 d, 0; mov.u32 x0, %laneid; and.b32 x0, x0, 1; setp.eq.u32 q, x0, 1; @q vote.sync.ballot.b32 d, !p, 0xAAAAAAAA;"),
            W32,
            [Int(32), Int(32), None],
            Elem::U32,
        );
    }
    f.add("activemask.b32 d;", W32, [None; 3], Elem::U32);
    f.add("elect.sync d|p, -1;", W32, [None; 3], Elem::U32);
    f.add("elect.sync x0|p, -1; selp.b32 d, 1, 0, p;", W32, [None; 3], Elem::U32);
    for (name, width) in [
        ("lanemask_eq", 32),
        ("lanemask_lt", 32),
        ("lanemask_le", 32),
        ("lanemask_gt", 32),
        ("lanemask_ge", 32),
        ("laneid", 32),
        ("tid.x", 32),
        ("ntid.x", 32),
        ("ctaid.x", 32),
        ("nctaid.x", 32),
        ("nctaid.y", 32),
        ("cluster_ctarank", 32),
        ("cluster_nctarank", 32),
        ("cluster_ctaid.x", 32),
        ("clusterid.x", 32),
        ("nclusterid.x", 32),
        ("is_explicit_cluster", 1),
    ] {
        if width == 1 {
            f.add(format!("mov.pred p, %{name}; selp.b32 d, 1, 0, p;"), W32, [None; 3], Elem::U32);
        } else {
            f.add(format!("mov.u32 d, %{name};"), W32, [None; 3], Elem::U32);
        }
    }
}

fn matches_and_sums(f: &mut Forms) {
    for keep in [0, 1, 7, 0xFF] {
        f.add(
            format!("and.b32 x0, a, {keep}; match.any.sync.b32 d, x0, -1;"),
            W32,
            [Int(32), None, None],
            Elem::U32,
        );
        f.add(
            format!("and.b32 x0, a, {keep}; match.all.sync.b32 x1|p, x0, -1; selp.b32 d, x1, 3, p;"),
            W32,
            [Int(32), None, None],
            Elem::U32,
        );
        f.add(
            format!("and.b64 y0, a, {keep}; match.any.sync.b64 d, y0, -1;"),
            [64, 32, 32, 32],
            [Int(64), None, None],
            Elem::U32,
        );
        f.add(
            format!("and.b64 y0, a, {keep}; match.all.sync.b64 d|p, y0, -1;"),
            [64, 32, 32, 32],
            [Int(64), None, None],
            Elem::U32,
        );
    }
    for (op, types) in [
        ("add", &["u32", "s32"][..]),
        ("min", &["u32", "s32"]),
        ("max", &["u32", "s32"]),
        ("and", &["b32"]),
        ("or", &["b32"]),
        ("xor", &["b32"]),
    ] {
        for ty in types {
            f.add(format!("redux.sync.{op}.{ty} d, a, -1;"), W32, [Int(32), None, None], Elem::U32);
            f.add(
                format!("mov.b32 d, 0; mov.u32 x0, %laneid; setp.ge.u32 q, x0, 20; @q redux.sync.{op}.{ty} d, a, 0xFFF00000;"),
                W32,
                [Int(32), None, None],
                Elem::U32,
            );
        }
    }
}

/// `ldmatrix`, `stmatrix`, `movmatrix`: each lane's 16 bytes are a row.
fn fragments(f: &mut Forms) {
    let (all, w64) = ([Int(64); 3], [64; 4]);
    let store = "st.shared.v2.b64 [s], {a, b}; bar.warp.sync -1;";
    for trans in ["", ".trans"] {
        f.add(
            format!(
                "{store} ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{x0}}, [s]; cvt.u64.u32 d, x0;"
            ),
            w64,
            all,
            Elem::U64,
        );
        f.add(format!("{store} ldmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 {{x0, x1}}, [s]; mov.b64 d, {{x0, x1}};"), w64, all, Elem::U64);
        for pair in ["x0, x1", "x2, x3"] {
            f.add(
                format!("{store} ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{x0, x1, x2, x3}}, [s]; mov.b64 d, {{{pair}}};"),
                w64,
                all,
                Elem::U64,
            );
        }
        let split = "mov.b64 {x0, x1}, a; mov.b64 {x2, x3}, b;";
        for (count, list) in [(1, "x0"), (2, "x0, x1"), (4, "x0, x1, x2, x3")] {
            f.add(
                format!("{split} stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [s], {{{list}}}; bar.warp.sync -1; ld.shared.v2.b64 {{y0, y1}}, [s]; xor.b64 d, y0, y1;"),
                w64,
                all,
                Elem::U64,
            );
        }
    }
    f.add("movmatrix.sync.aligned.m8n8.trans.b16 d, a;", W32, [Int(32), None, None], Elem::U32);
}
