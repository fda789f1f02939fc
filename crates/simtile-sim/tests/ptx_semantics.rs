//! What holds between instructions: random control flow against one thread at a time, limits of every state space, addresses and
//! indices that lead nowhere, texts that ask for more than there is.

mod ptx_support;

use ptx_support::{Machine, Random, Shape, shape};
use simtile_sim::exec::{FaultReason, FindingKind, KernelFault};
use simtile_sim::memory::FaultKind;
use std::fmt::Write;

const HEAD: &str = ".version 8.6\n.target sm_90\n.address_size 64\n";
const BEGIN: &str = ".reg .b64 %rd<16>; .reg .b32 %r<32>; .reg .b16 %h<8>; .reg .pred %p<8>;\n\
    ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0;\n";
/// Words of the buffer that [`fails`] hands over.
const WORDS: usize = 64;

fn text(before: &str, body: &str) -> String {
    format!("{HEAD}{before}\n.visible .entry k(.param .u64 out) {{\n{BEGIN}{body}\nret; }}")
}

fn each_seed(before: &str, body: &str, threads: u32, want: impl Fn(u32) -> u32) {
    for seed in [0, 1, 2, 77, 12345] {
        let mut m = Machine::new(&text(before, body));
        m.seed = seed;
        let out = m.upload(&vec![0u32; threads as usize]);
        m.clean("k", shape(1, threads), args![out]);
        let want: Vec<u32> = (0..threads).map(&want).collect();
        assert_eq!(m.download::<u32>(out, threads as usize), want, "seed {seed}: {body}");
    }
}

fn launch(before: &str, body: &str, shape: Shape) -> Result<(), KernelFault> {
    let mut m = Machine::load(&text(before, body)).unwrap_or_else(|e| panic!("{body}: {e}"));
    m.step_limit = 100_000;
    let out = m.upload(&[0u32; WORDS]);
    m.launch("k", shape, args![out])
}

fn fails(before: &str, body: &str) -> KernelFault {
    match launch(before, body, shape(1, 32)) {
        Err(fault) => {
            assert!(!fault.to_string().contains("internal"), "{body}: {fault}");
            assert!(!fault.site.instruction.is_empty(), "{body}: {fault}");
            fault
        }
        Ok(()) => panic!("{body}: ends well"),
    }
}

/// A random program: blocks of simple operations on four registers, joined by branches to anywhere. Every thread of it does what
/// it would do alone.
mod flow {
    use super::*;

    #[derive(Clone, Copy)]
    enum Step {
        /// `d = a * b + c`
        Mad(usize, usize, usize, u32),
        /// `@p d = a ^ c`, where `p` is a bit of a register.
        Guarded { d: usize, a: usize, c: u32, p: (usize, u32), not: bool },
        /// `local[a & 7] = b; d = local[c & 7]`
        Local(usize, usize, usize, usize),
        /// The same in the thread's part of shared memory.
        Shared(usize, usize, usize, usize),
        /// `d = walk(a, b & 3)`
        Call(usize, usize, usize),
    }

    #[derive(Clone, Copy)]
    enum End {
        Branch {
            p: (usize, u32),
            then: usize,
            otherwise: usize,
        },
        Switch {
            on: usize,
            to: [usize; 4],
        },
        /// Leaves the kernel from within, by `exit` or `ret`.
        Leave {
            p: (usize, u32),
            otherwise: usize,
            exit: bool,
        },
    }

    pub struct Program {
        blocks: Vec<(Vec<Step>, End)>,
        fuel: u32,
    }

    pub fn random(random: &mut Random) -> Program {
        let count = 3 + random.below(9) as usize;
        use End::{Branch, Leave, Switch};
        let reg = |random: &mut Random| random.below(4) as usize;
        let bit = |random: &mut Random| (random.below(4) as usize, random.below(8) as u32);
        let block = |random: &mut Random| random.below(count as u64) as usize;
        let blocks = (0..count)
            .map(|_| {
                let steps = (0..1 + random.below(3))
                    .map(|_| {
                        let (d, a, b, c) = (reg(random), reg(random), reg(random), random.next() as u32);
                        match random.below(6) {
                            0 => Step::Guarded { d, a, c, p: bit(random), not: c & 1 == 0 },
                            1 => Step::Local(d, a, b, reg(random)),
                            2 => Step::Shared(d, a, b, reg(random)),
                            3 => Step::Call(d, a, b),
                            _ => Step::Mad(d, a, b, c),
                        }
                    })
                    .collect();
                let end = match random.below(8) {
                    0 => Leave { p: bit(random), otherwise: block(random), exit: random.below(2) == 0 },
                    1 | 2 => Switch { on: reg(random), to: [0; 4].map(|_| block(random)) },
                    _ => Branch { p: bit(random), then: block(random), otherwise: block(random) },
                };
                (steps, end)
            })
            .collect();
        Program { blocks, fuel: 5 + random.below(40) as u32 }
    }

    /// Functions that the programs call: two that call each other, with a structure by value, a frame and a branch.
    pub const FUNCTIONS: &str = ".shared .align 4 .b8 part[2048];\n\
        .func (.param .b32 r) walk(.param .b32 x, .param .b32 depth);\n\
        .func (.param .b32 r) pair(.param .align 8 .b8 s[16], .param .b32 depth) {\n\
        .reg .b32 %a<8>; .reg .pred %q; ld.param.v2.u32 {%a0, %a1}, [s]; ld.param.u32 %a2, [s+8]; ld.param.u32 %a3, [depth];\n\
        { .param .b32 x; .param .b32 d; .param .b32 v; xor.b32 %a4, %a0, %a2; st.param.b32 [x], %a4; st.param.b32 [d], %a3;\n\
        call (v), walk, (x, d); ld.param.b32 %a5, [v]; } mad.lo.u32 %a5, %a5, 3, %a1; st.param.b32 [r], %a5; ret; }\n\
        .func (.param .b32 r) walk(.param .b32 x, .param .b32 depth) {\n\
        .reg .b32 %a<8>; .reg .pred %q; .local .align 4 .b8 kept[8]; ld.param.u32 %a0, [x]; ld.param.u32 %a1, [depth];\n\
        st.local.u32 [kept], %a0; st.local.u32 [kept+4], %a1; setp.eq.u32 %q, %a1, 0; @%q bra BASE;\n\
        sub.u32 %a1, %a1, 1; and.b32 %a2, %a0, 1; setp.eq.u32 %q, %a2, 0; @%q bra EVEN;\n\
        { .param .align 8 .b8 s[16]; .param .b32 d; .param .b32 v; st.param.v2.u32 [s], {%a0, %a1}; st.param.u32 [s+8], 12345;\n\
        st.param.b32 [d], %a1; call (v), pair, (s, d); ld.param.b32 %a3, [v]; } bra JOIN;\n\
        EVEN: { .param .b32 y; .param .b32 d; .param .b32 v; shr.u32 %a2, %a0, 1; st.param.b32 [y], %a2; st.param.b32 [d], %a1;\n\
        call (v), walk, (y, d); ld.param.b32 %a3, [v]; }\n\
        JOIN: ld.local.u32 %a4, [kept]; ld.local.u32 %a5, [kept+4]; add.u32 %a3, %a3, %a4; add.u32 %a3, %a3, %a5; st.param.b32 [r], %a3; ret;\n\
        BASE: ld.local.u32 %a4, [kept]; add.u32 %a4, %a4, 1; st.param.b32 [r], %a4; ret; }\n";

    fn walk(x: u32, depth: u32) -> u32 {
        if depth == 0 {
            return x.wrapping_add(1);
        }
        let inner = if x & 1 == 0 {
            walk(x >> 1, depth - 1)
        } else {
            walk(x ^ 12345, depth - 1).wrapping_mul(3).wrapping_add(depth - 1)
        };
        inner.wrapping_add(x).wrapping_add(depth)
    }

    impl Program {
        pub fn text(&self) -> String {
            let mut t = String::from(
                ".local .align 4 .b8 own[32]; mov.u32 %r9, part; mad.lo.u32 %r9, %r0, 32, %r9; mov.u32 %r10, own; mov.u32 %r11, 0;\n",
            );
            for i in 0..8 {
                let _ = writeln!(t, "st.local.u32 [own+{}], {i}; st.shared.u32 [%r9+{}], {i};", 4 * i, 4 * i);
            }
            let _ = writeln!(
                t,
                "mov.u32 %r1, %r0; mul.lo.u32 %r2, %r0, 77; not.b32 %r3, %r0; mov.u32 %r4, 5; mov.u32 %r8, {};",
                self.fuel
            );
            for (i, (steps, end)) in self.blocks.iter().enumerate() {
                let _ = writeln!(t, "B{i}:");
                for step in steps {
                    let _ = match *step {
                        Step::Mad(d, a, b, c) => {
                            writeln!(t, "mad.lo.u32 %r{}, %r{}, %r{}, {c};", d + 1, a + 1, b + 1)
                        }
                        Step::Guarded { d, a, c, p, not } => writeln!(
                            t,
                            "bfe.u32 %r12, %r{}, {}, 1; setp.ne.u32 %p0, %r12, 0; @{}%p0 xor.b32 %r{}, %r{}, {c};",
                            p.0 + 1,
                            p.1,
                            if not { "!" } else { "" },
                            d + 1,
                            a + 1
                        ),
                        Step::Local(d, a, b, c) => writeln!(
                            t,
                            "and.b32 %r12, %r{}, 7; mad.lo.u32 %r12, %r12, 4, %r10; st.local.u32 [%r12], %r{};\n\
                             and.b32 %r12, %r{}, 7; mad.lo.u32 %r12, %r12, 4, %r10; ld.local.u32 %r{}, [%r12];",
                            a + 1,
                            b + 1,
                            c + 1,
                            d + 1
                        ),
                        Step::Shared(d, a, b, c) => writeln!(
                            t,
                            "and.b32 %r12, %r{}, 7; mad.lo.u32 %r12, %r12, 4, %r9; st.shared.u32 [%r12], %r{};\n\
                             and.b32 %r12, %r{}, 7; mad.lo.u32 %r12, %r12, 4, %r9; ld.shared.u32 %r{}, [%r12];",
                            a + 1,
                            b + 1,
                            c + 1,
                            d + 1
                        ),
                        Step::Call(d, a, b) => writeln!(
                            t,
                            "and.b32 %r12, %r{}, 3; {{ .param .b32 x; .param .b32 n; .param .b32 v; st.param.b32 [x], %r{};\n\
                             st.param.b32 [n], %r12; call (v), walk, (x, n); ld.param.b32 %r{}, [v]; }}",
                            b + 1,
                            a + 1,
                            d + 1
                        ),
                    };
                }
                // Out of fuel: the end.
                let _ = writeln!(t, "sub.u32 %r8, %r8, 1; setp.eq.u32 %p1, %r8, 0; @%p1 bra END;");
                let test = |(r, bit): (usize, u32)| {
                    format!("bfe.u32 %r12, %r{}, {bit}, 1; setp.ne.u32 %p2, %r12, 0;", r + 1)
                };
                let _ = match *end {
                    End::Branch { p, then, otherwise } => {
                        writeln!(t, "{} @%p2 bra B{then}; bra B{otherwise};", test(p))
                    }
                    End::Switch { on, to: [a, b, c, d] } => writeln!(
                        t,
                        "and.b32 %r12, %r{}, 3; T{i}: .branchtargets B{a}, B{b}, B{c}, B{d}; brx.idx %r12, T{i};",
                        on + 1
                    ),
                    End::Leave { p, otherwise, exit } => writeln!(
                        t,
                        "{} @!%p2 bra B{otherwise}; add.u32 %r1, %r1, 1000; st.global.u32 [%rd1], %r1; {};",
                        test(p),
                        if exit { "exit" } else { "ret" }
                    ),
                };
            }
            t + "END: xor.b32 %r1, %r1, %r2; xor.b32 %r1, %r1, %r3; xor.b32 %r1, %r1, %r4; st.global.u32 [%rd1], %r1;"
        }

        /// What a thread stores.
        pub fn alone(&self, thread: u32) -> u32 {
            let mut r = [thread, thread.wrapping_mul(77), !thread, 5];
            let mut local: [u32; 8] = std::array::from_fn(|i| i as u32);
            let mut shared = local;
            let (mut fuel, mut at) = (self.fuel, 0);
            loop {
                let (steps, end) = &self.blocks[at];
                for step in steps {
                    match *step {
                        Step::Mad(d, a, b, c) => r[d] = r[a].wrapping_mul(r[b]).wrapping_add(c),
                        Step::Guarded { d, a, c, p, not } => {
                            if (r[p.0] >> p.1 & 1 != 0) != not {
                                r[d] = r[a] ^ c;
                            }
                        }
                        Step::Local(d, a, b, c) => {
                            local[r[a] as usize & 7] = r[b];
                            r[d] = local[r[c] as usize & 7];
                        }
                        Step::Shared(d, a, b, c) => {
                            shared[r[a] as usize & 7] = r[b];
                            r[d] = shared[r[c] as usize & 7];
                        }
                        Step::Call(d, a, b) => r[d] = walk(r[a], r[b] & 3),
                    }
                }
                fuel -= 1;
                if fuel == 0 {
                    return r[0] ^ r[1] ^ r[2] ^ r[3];
                }
                let bit = |(reg, bit): (usize, u32)| r[reg] >> bit & 1 != 0;
                at = match *end {
                    End::Branch { p, then, otherwise } => {
                        if bit(p) {
                            then
                        } else {
                            otherwise
                        }
                    }
                    End::Switch { on, to } => to[r[on] as usize & 3],
                    End::Leave { p, .. } if bit(p) => return r[0].wrapping_add(1000),
                    End::Leave { otherwise, .. } => otherwise,
                };
            }
        }
    }
}

#[test]
fn random_control_flow_does_for_every_thread_what_it_does_alone() {
    let times = std::env::var("SIMTILE_FUZZ").ok().and_then(|v| v.parse::<u64>().ok()).unwrap_or(1);
    let mut random = Random(0x1234_5678_9abc_def1);
    for case in 0..120 * times {
        let program = flow::random(&mut random);
        let mut m = Machine::new(&text(flow::FUNCTIONS, &program.text()));
        m.seed = [0, 1, 99][case as usize % 3];
        let out = m.upload(&[0u32; 40]);
        m.clean("k", shape(1, 40), args![out]);
        let want: Vec<u32> = (0..40).map(|thread| program.alone(thread)).collect();
        assert_eq!(m.download::<u32>(out, 40), want, "case {case}: {}", program.text());
    }
}

#[test]
fn threads_of_a_warp_make_progress_apart() {
    // Whichever half is taken first, it waits for the other one.
    for (first, second) in [("lt", "ge"), ("ge", "lt")] {
        let body = format!(
            "setp.{first}.u32 %p0, %r0, 16; @%p0 bra WAIT; mov.u32 %r1, 1; st.volatile.shared.u32 [flag], %r1; mov.u32 %r2, 7; bra JOIN;\n\
             WAIT: ld.volatile.shared.u32 %r2, [flag]; setp.eq.u32 %p1, %r2, 0; @%p1 bra WAIT;\n\
             JOIN: st.global.u32 [%rd1], %r2;"
        );
        let body = format!("st.volatile.shared.u32 [flag], 0; bar.warp.sync -1; {body}");
        each_seed(".shared .u32 flag;", &body, 32, |t| if (t < 16) == (second == "ge") { 1 } else { 7 });
    }
}

#[test]
fn votes_count_who_is_left() {
    // A third leaves, in a function; the rest votes with the full mask.
    let before = ".func leave(.reg .b32 n) { .reg .pred %q; setp.eq.u32 %q, n, 0; @%q exit; ret; }";
    let body = "rem.u32 %r1, %r0, 3; st.global.u32 [%rd1], 9; call leave, (%r1);\n\
        vote.sync.ballot.b32 %r2, 1, -1; popc.b32 %r2, %r2; setp.eq.u32 %p0, %r1, 1; vote.sync.any.pred %p1, %p0, -1;\n\
        vote.sync.all.pred %p2, %p0, -1; selp.u32 %r3, 100, 0, %p1; selp.u32 %r4, 1000, 0, %p2; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;\n\
        activemask.b32 %r5; st.global.u32 [%rd1], %r2;";
    each_seed(before, body, 32, |t| if t % 3 == 0 { 9 } else { 121 });
}

#[test]
fn one_pointer_reaches_every_space() {
    // By lane: global, shared, constant, local, parameter. Constant memory lies among the global addresses here; the window of parameters
    // is part of the global one (PTX ISA, `isspacep`).
    let before = ".shared .align 8 .u32 s; .const .u32 c = 33; .global .u32 g = 11;";
    let body = ".local .u32 l; st.shared.u32 [s], 22; st.local.u32 [l], 44; bar.warp.sync -1;\n\
        mov.u64 %rd2, g; cvta.global.u64 %rd2, %rd2; mov.u64 %rd3, s; cvta.shared.u64 %rd3, %rd3; mov.u64 %rd4, c; cvta.const.u64 %rd4, %rd4;\n\
        mov.u64 %rd5, l; cvta.local.u64 %rd5, %rd5; mov.b64 %rd6, out; cvta.param.u64 %rd6, %rd6;\n\
        rem.u32 %r1, %r0, 5; setp.eq.u32 %p0, %r1, 1; selp.u64 %rd7, %rd3, %rd2, %p0; setp.eq.u32 %p0, %r1, 2; selp.u64 %rd7, %rd4, %rd7, %p0;\n\
        setp.eq.u32 %p0, %r1, 3; selp.u64 %rd7, %rd5, %rd7, %p0; setp.eq.u32 %p0, %r1, 4; selp.u64 %rd7, %rd6, %rd7, %p0;\n\
        ld.u32 %r2, [%rd7]; cvt.u32.u64 %r3, %rd0; setp.eq.u32 %p1, %r2, %r3; selp.u32 %r2, 55, %r2, %p1;\n\
        mov.u32 %r4, 0; isspacep.global %p2, %rd7; selp.u32 %r5, 100, 0, %p2; add.u32 %r4, %r4, %r5; isspacep.shared %p2, %rd7; selp.u32 %r5, 200, 0, %p2;\n\
        add.u32 %r4, %r4, %r5; isspacep.const %p2, %rd7; selp.u32 %r5, 400, 0, %p2; add.u32 %r4, %r4, %r5; isspacep.local %p2, %rd7; selp.u32 %r5, 800, 0, %p2;\n\
        add.u32 %r4, %r4, %r5; isspacep.param %p2, %rd7; selp.u32 %r5, 1600, 0, %p2; add.u32 %r4, %r4, %r5; add.u32 %r2, %r2, %r4; st.global.u32 [%rd1], %r2;";
    each_seed(before, body, 32, |t| [111, 222, 533, 844, 1755][t as usize % 5]);
}

#[test]
fn names_belong_to_their_scope() {
    let body = "mov.u32 %r1, 1; { .reg .b32 %r1; mov.u32 %r1, 50; setp.lt.u32 %p0, %r0, 7; @%p0 bra L; add.u32 %r1, %r1, 5;\n\
        L: { .reg .b32 x; mov.u32 x, %r1; mov.u32 %r2, x; } } { .reg .b64 x; mov.u64 x, 3; cvt.u32.u64 %r3, x; bra L;\n\
        add.u32 %r3, %r3, 1000; L: add.u32 %r3, %r3, 1; } add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; st.global.u32 [%rd1], %r1;";
    each_seed("", body, 32, |t| if t < 7 { 55 } else { 60 });
}

#[test]
fn accesses_at_the_border_of_every_space() {
    let memory =
        |body: &str| match fails(".shared .align 16 .b8 s[40]; .const .align 16 .b8 c[24];", body).reason {
            FaultReason::Memory(fault) => Ok(fault.kind),
            other => Err(other),
        };
    let v4 = "{%r1, %r2, %r3, %r4}";
    // Global: 256 bytes. The last vector fits, then none does, in part or in whole.
    assert!(launch("", &format!("ld.global.v4.u32 {v4}, [%rd0+240];"), shape(1, 32)).is_ok());
    assert!(launch("", "@!%p0 bra E; setp.ne.u32 %p0, %r0, %r0; @%p0 ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+4097]; E:", shape(1, 1)).is_ok());
    for offset in [4, 8, 244, 252] {
        let kind = memory(&format!("ld.global.v4.u32 {v4}, [%rd0+{offset}];"));
        assert_eq!(kind, Ok(FaultKind::Misaligned), "{offset}");
    }
    for body in [
        format!("ld.global.v4.u32 {v4}, [%rd0+256];"),
        "ld.global.v2.u64 {%rd2, %rd3}, [%rd0+256];".into(),
        "ld.global.u32 %r1, [%rd0-4];".into(),
        "ld.global.u8 %h1, [%rd0+256];".into(),
        "ld.global.u64 %rd2, [%rd0+2147483640];".into(),
        "ld.global.u64 %rd2, [%rd0-2147483648];".into(),
        "mov.u64 %rd2, -8; ld.global.u64 %rd3, [%rd2];".into(),
        "mov.u64 %rd2, -16; st.global.v2.u64 [%rd2+8], {%rd0, %rd0};".into(),
        "mov.u64 %rd2, 0; st.u32 [%rd2], 1;".into(),
        "mov.u64 %rd2, -8; red.global.add.u64 [%rd2], 1;".into(),
        "mov.u64 %rd2, 16; atom.cas.b128 %rd9q, [%rd2], %rd9q, %rd9q;".replace("%rd9q", "q"),
    ] {
        let body = if body.contains(" q,") {
            format!(".reg .b128 q; mov.b128 q, {{%rd0, %rd0}}; {body}")
        } else {
            body
        };
        match memory(&body) {
            Ok(FaultKind::Misaligned) if body.contains("[%rd2+8]") => {}
            Ok(kind) => assert_ne!(kind, FaultKind::Misaligned, "{body}"),
            Err(other) => panic!("{body}: {other:?}"),
        }
    }
    let space = |body: &str| memory(body).expect_err("no memory fault");
    for (body, name) in [
        (format!("mov.u32 %r5, s; ld.shared.v4.u32 {v4}, [%r5+32];"), "shared"),
        ("mov.u32 %r5, s; st.shared.u32 [%r5+40], 1;".into(), "shared"),
        ("mov.u32 %r5, s; st.shared.u32 [%r5-4], 1;".into(), "shared"),
        ("mov.u32 %r5, -4; ld.shared.u32 %r1, [%r5];".into(), "shared"),
        ("mov.u32 %r5, -8; atom.shared.add.u64 %rd2, [%r5], 1;".into(), "shared"),
        (".local .align 16 .b8 l[8]; ld.local.u32 %r1, [l+16];".into(), "local"),
        (".local .align 16 .b8 l[8]; mov.u32 %r5, l; ld.local.u32 %r1, [%r5-4];".into(), "local"),
    ] {
        match space(&body) {
            FaultReason::Space { space, .. } => assert_eq!(space, name, "{body}"),
            other => panic!("{body}: {other:?}"),
        }
    }
    // Constant memory lies among the global addresses.
    for body in [
        format!("mov.u64 %rd2, c; ld.const.v4.u32 {v4}, [%rd2+16];"),
        "mov.u64 %rd2, c; ld.const.u64 %rd3, [%rd2+24];".into(),
    ] {
        assert!(memory(&body).is_ok(), "{body}");
    }
    // Parameters are read-only by whatever way.
    fails("", "mov.b64 %rd2, out; cvta.param.u64 %rd2, %rd2; st.u64 [%rd2], 5;");
}

#[test]
fn every_atomic_wants_its_alignment() {
    let mut cases = Vec::new();
    for scope in ["", ".cta", ".cluster", ".gpu", ".sys"] {
        for (space, base) in [(".global", "%rd0"), (".shared", "%rd8"), ("", "%rd0"), ("", "%rd9")] {
            for (op, ty, size) in [
                ("add", "u32", 4u32),
                ("inc", "u32", 4),
                ("min", "s32", 4),
                ("xor", "b32", 4),
                ("exch", "b32", 4),
                ("add", "f32", 4),
                ("add", "u64", 8),
                ("max", "s64", 8),
                ("and", "b64", 8),
                ("exch", "b64", 8),
                ("add", "f64", 8),
                ("add.noftz", "f16", 2),
                ("add.noftz", "bf16", 2),
                ("add.noftz", "f16x2", 4),
                ("add.noftz", "bf16x2", 4),
            ] {
                let value = match size {
                    2 => "%h0",
                    4 => "%r1",
                    _ => "%rd2",
                };
                let result = match size {
                    2 => "%h1",
                    4 => "%r2",
                    _ => "%rd3",
                };
                cases.push((
                    format!("atom{scope}{space}.{op}.{ty} {result}, [{base}+{}], {value};", size / 2),
                    size,
                ));
                if !op.contains("exch") {
                    cases
                        .push((format!("red{scope}{space}.{op}.{ty} [{base}+{}], {value};", size / 2), size));
                }
            }
            for (ty, size, r) in [("b16", 2u32, "%h"), ("b32", 4, "%r"), ("b64", 8, "%rd")] {
                cases.push((
                    format!("atom{scope}{space}.cas.{ty} {r}5, [{base}+{}], {r}6, {r}7;", size / 2),
                    size,
                ));
            }
        }
    }
    let all: String = cases
        .iter()
        .enumerate()
        .map(|(i, (body, _))| {
            format!(
                ".visible .entry k{i}(.param .u64 out) {{ {BEGIN} mov.u64 %rd8, s; cvta.shared.u64 %rd9, %rd8; mov.b16 %h0, 0; mov.b16 %h6, 0;\n\
                 mov.b16 %h7, 0; mov.u32 %r1, 0; mov.u32 %r6, 0; mov.u32 %r7, 0; mov.u64 %rd2, 0; mov.u64 %rd6, 0; mov.u64 %rd7, 0; {body} ret; }}\n"
            )
        })
        .collect();
    let m = Machine::new(&format!("{HEAD}.shared .align 16 .b8 s[64];\n{all}"));
    let out = m.upload(&[0u32; 64]);
    for (i, (body, _)) in cases.iter().enumerate() {
        match m.launch(&format!("k{i}"), shape(1, 1), args![out]) {
            Err(KernelFault { reason: FaultReason::Memory(fault), .. }) => {
                assert_eq!(fault.kind, FaultKind::Misaligned, "{body}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn what_leads_nowhere_is_a_fault() {
    let before = ".shared .align 128 .b8 s[1024]; .func f() { ret; } .global .u64 table[2] = {f, f};";
    let proto = "{ P: .callprototype _ (); call %rd2, (), P; }";
    for body in [
        "T: .branchtargets A, B; mov.u32 %r1, 2; brx.idx %r1, T; A: B:".to_owned(),
        "T: .branchtargets A, B; mov.u32 %r1, -1; brx.idx %r1, T; A: B:".to_owned(),
        format!("mov.u64 %rd2, 0; {proto}"),
        format!("mov.u64 %rd2, %rd0; {proto}"),
        format!("mov.u64 %rd2, f; add.u64 %rd2, %rd2, 1; {proto}"),
        format!("mov.u64 %rd2, -1; {proto}"),
        // Barriers that do not exist, or of half warps.
        "mov.u32 %r1, 16; bar.sync %r1;".to_owned(),
        "mov.u32 %r1, -1; barrier.sync %r1;".to_owned(),
        "mov.u32 %r1, 33; bar.sync 1, %r1;".to_owned(),
        "mov.u32 %r1, 0; bar.arrive 1, %r1;".to_owned(),
        "mov.u32 %r1, 96; bar.sync 1, %r1;".to_owned(),
        // One half waits for the other, which does something else.
        "setp.lt.u32 %p0, %r0, 16; @%p0 bra A; vote.sync.ballot.b32 %r2, 1, -1; bra B; A: bar.warp.sync -1; B:".to_owned(),
        // Matrices from odd rows and from outside.
        "mov.u32 %r1, s; add.u32 %r1, %r1, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];".to_owned(),
        "mov.u32 %r1, s; add.u32 %r1, %r1, 1024; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];".to_owned(),
        // Copies that are odd, too large or from nowhere.
        "mov.u32 %r1, s; cp.async.ca.shared.global [%r1+4], [%rd0], 16; cp.async.wait_all;".to_owned(),
        "mov.u32 %r1, s; cp.async.ca.shared.global [%r1], [%rd0+4], 8; cp.async.wait_all;".to_owned(),
        "mov.u32 %r1, s; cp.async.cg.shared.global [%r1+1024], [%rd0], 16; cp.async.wait_all;".to_owned(),
        "mov.u32 %r1, s; cp.async.cg.shared.global [%r1], [%rd0+256], 16; cp.async.wait_all;".to_owned(),
        "mov.u32 %r1, s; mov.u32 %r2, 17; cp.async.cg.shared.global [%r1], [%rd0], 16, %r2; cp.async.wait_all;".to_owned(),
        "mov.u32 %r1, s; mov.u32 %r2, 12; mbarrier.init.shared.b64 [%r1], 1;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+16], [%rd0], %r2, [%r1];"
            .to_owned(),
        "mov.u32 %r1, s; mov.u32 %r2, 16; mbarrier.init.shared.b64 [%r1], 1;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+24], [%rd0], %r2, [%r1];"
            .to_owned(),
        "mov.u32 %r1, s; mov.u32 %r2, -16; mbarrier.init.shared.b64 [%r1], 1;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+16], [%rd0], %r2, [%r1];"
            .to_owned(),
        // Barriers in memory: no threads, odd, nobody comes.
        "mov.u32 %r1, s; mov.u32 %r2, 0; mbarrier.init.shared.b64 [%r1], %r2;".to_owned(),
        "mov.u32 %r1, s; mbarrier.init.shared.b64 [%r1+4], 1;".to_owned(),
        "mov.u32 %r1, s; mbarrier.init.shared.b64 [%r1], 100; bar.warp.sync -1; mbarrier.arrive.shared.b64 %rd2, [%r1];\n\
         W: mbarrier.try_wait.shared.b64 %p0, [%r1], %rd2; @!%p0 bra W;"
            .to_owned(),
        // No such block of the cluster.
        "mov.u32 %r1, s; mapa.shared::cluster.u32 %r2, %r1, 5; ld.shared::cluster.u32 %r3, [%r2];".to_owned(),
        // Stacks.
        ".reg .b64 p; alloca.u64 p, -16;".to_owned(),
        ".reg .b64 p; mov.u64 %rd2, 0x7fffffffffffffff; alloca.u64 p, %rd2;".to_owned(),
    ] {
        fails(before, &body);
    }
}

#[test]
fn printf_of_anything_ends() {
    let formats: [&[u8]; 20] = [
        b"%",
        b"%%%",
        b"%q",
        b"%n",
        b"%s",
        b"%*d",
        b"%.*f",
        b"%99999999999d",
        b"%.99999999f",
        b"%-+ #0d",
        b"%l",
        b"%lllld",
        b"%hhd",
        b"%zu",
        b"%p",
        b"%a",
        b"%c%c",
        b"%5$d",
        b"\xff\xfe%d",
        b"",
    ];
    for format in formats {
        // Every argument is a number that is no pointer.
        let bytes = format.iter().chain([&0]).map(u8::to_string).collect::<Vec<_>>().join(", ");
        let m = Machine::new(&format!(
            "{HEAD}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.global .align 1 .b8 fmt[] = {{{bytes}}};\n\
             .visible .entry k() {{ .local .align 8 .b8 buf[16]; .reg .b64 %rd<4>; .reg .b32 %r;\n\
             mov.u64 %rd0, buf; cvta.local.u64 %rd1, %rd0; st.local.u64 [%rd0], 5; st.local.u64 [%rd0+8], 300; mov.u64 %rd2, fmt; cvta.global.u64 %rd3, %rd2;\n\
             {{ .param .b64 p; .param .b64 q; .param .b32 s; st.param.b64 [p], %rd3; st.param.b64 [q], %rd1; call.uni (s), vprintf, (p, q); ld.param.b32 %r, [s]; }} ret; }}"
        ));
        let result = m.launch("k", shape(1, 2), args![]);
        let printed = m.printed.lock().unwrap().len();
        assert!(printed < 1 << 20, "{format:?} prints {printed} bytes");
        if let Err(fault) = result {
            assert!(!fault.to_string().contains("internal"), "{format:?}: {fault}");
        }
    }
    // A format without an end, and none at all.
    for at in ["mov.u64 %rd3, 0;", "mov.u64 %rd3, %rd0;"] {
        let text = format!(
            "{HEAD}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.visible .entry k(.param .u64 out) {{ {BEGIN} {at}\n\
             {{ .param .b64 p; .param .b64 q; .param .b32 s; st.param.b64 [p], %rd3; st.param.b64 [q], %rd3; call.uni (s), vprintf, (p, q); ld.param.b32 %r1, [s]; }} ret; }}"
        );
        let m = Machine::new(&text);
        let out = m.upload(&[0x2020_2020u32; 64]);
        if let Err(fault) = m.launch("k", shape(1, 1), args![out]) {
            assert!(!fault.to_string().contains("internal"), "{at}: {fault}");
        }
        assert!(m.printed.lock().unwrap().len() < 1 << 20, "{at}");
    }
}

#[test]
fn texts_that_ask_for_too_much_are_refused() {
    let deep = |open: &str, close: &str| open.repeat(200_000) + "1" + &close.repeat(200_000);
    let outside = [
        ".global .u8 a[4294967296][4294967296];".to_owned(),
        ".global .u64 a[9223372036854775807];".to_owned(),
        ".global .u64 a[-1];".to_owned(),
        ".shared .b8 s[1099511627776];".to_owned(),
        ".const .b8 c[65537];".to_owned(),
        ".global .align 3 .u32 a;".to_owned(),
        ".global .align 0 .u32 a;".to_owned(),
        ".global .u32 a = 1/0;".to_owned(),
        ".global .u32 a = 1%0;".to_owned(),
        ".global .u32 a[1] = {1, 2};".to_owned(),
        ".global .u32 a[2] = {{1}, {2}};".to_owned(),
        format!(".global .u32 a = {};", deep("(", ")")),
        format!(".global .u32 a = {}1;", "-".repeat(200_001)),
        format!(".global .u32 a[1] = {};", deep("{", "}")),
        format!(".global .u32 a{};", "[2]".repeat(200)),
        ".global .u32 a = b; .global .u32 b = a;".to_owned(),
        ".func f(.param .b8 p[99999999999]) { ret; }".to_owned(),
        "/* no end".to_owned(),
        ".file 1 \"no end".to_owned(),
    ];
    for before in outside {
        let short: String = before.chars().take(60).collect();
        assert!(Machine::load(&text(&before, "")).is_err(), "{short}");
    }
    let inside = [
        ".local .b8 l[99999999999];".to_owned(),
        ".reg .b32 %x<99999999999>;".to_owned(),
        ".reg .b32 %x<-1>;".to_owned(),
        "mov.u64 %rd2, 0xFFFFFFFFFFFFFFFFFF;".to_owned(),
        "mov.u32 %r1, 1 << ;".to_owned(),
        "mov.f32 %r1, 0f1;".to_owned(),
        "L: L: bra L;".to_owned(),
        "bra NOWHERE;".to_owned(),
        "T: .branchtargets; brx.idx %r1, T;".to_owned(),
        "call nobody, ();".to_owned(),
        "ld.global.u32 %r1, [%rd0+99999999999999999999];".to_owned(),
    ];
    for body in inside {
        let short: String = body.chars().take(60).collect();
        assert!(Machine::load(&text("", &body)).is_err(), "{short}");
    }
}

#[test]
fn much_that_costs_nothing_is_taken() {
    for body in [
        format!("{} {}", "{".repeat(200_000), "}".repeat(200_000)),
        ".reg .b32 %x<4294967295>; mov.u32 %x4294967294, 1;".to_owned(),
        ";".repeat(100_000),
    ] {
        assert!(launch("", &body, shape(1, 32)).is_ok());
    }
}

/// PTX ISA 4.5.6, the table of the rules: signedness, shifts, remainders, numbers.
#[test]
fn constant_expressions_follow_the_table() {
    for (expression, want) in [
        ("-1 >> 1", u64::MAX),
        ("-1 >> 200", u64::MAX),
        ("0xFFFFFFFFFFFFFFFF >> 63", 1),
        ("-1U >> 63", 1),
        ("(.u64) -1 >> 63", 1),
        ("(.s64) 0xFFFFFFFFFFFFFFFF >> 63", u64::MAX),
        ("1 << 64", 0),
        ("-7 / 2", -3i64 as u64),
        ("-7 / 2U", (u64::MAX - 6) / 2),
        ("(-7) % 3", (u64::MAX - 6) % 3),
        ("-1 < 0", 1),
        ("-1 < 0U", 0),
        ("~0 > 1", 1),
        ("(-1 & 0xF0) >> 4", 15),
        ("(1 ? -8 : 0U) >> 60", 15),
        ("(1 ? -8 : 0) >> 60", u64::MAX),
        ("!5 - 1 < 0", 1),
        ("1.5 < 2.5", 1),
        ("5 == 5.0 ? 1 : 2", 0),
    ] {
        let module = text(
            &format!(".global .u64 a = {expression};"),
            "mov.u64 %rd2, a; ld.global.u64 %rd3, [%rd2]; st.global.u64 [%rd0], %rd3;",
        );
        // Integers and numbers do not mix.
        if expression.contains("5 == 5.0") {
            assert!(Machine::load(&module).is_err(), "{expression}");
            continue;
        }
        let m = Machine::load(&module).unwrap_or_else(|e| panic!("{expression}: {e}"));
        let out = m.blank(8);
        m.clean("k", shape(1, 1), args![out]);
        assert_eq!(m.download::<u64>(out, 1), [want], "{expression}");
    }
    let m = Machine::new(&text(
        ".global .f64 a = (1.5 + 2.25) * 2.0 / 0.5;",
        "mov.u64 %rd2, a; ld.global.u64 %rd3, [%rd2]; st.global.u64 [%rd0], %rd3;",
    ));
    let out = m.blank(8);
    m.clean("k", shape(1, 1), args![out]);
    assert_eq!(m.download::<f64>(out, 1), [15.0]);
}

#[test]
fn who_is_not_in_the_mask_is_named() {
    for body in [
        "mov.u32 %r1, 1; setp.eq.u32 %p0, %r0, 5; @%p0 vote.sync.ballot.b32 %r2, 1, %r1;",
        "shfl.sync.idx.b32 %r2, %r0, 0, 31, 0xffffffdf;",
        "mov.u32 %r1, 0xffffffdf; redux.sync.add.u32 %r2, %r0, %r1;",
        "match.any.sync.b32 %r2, %r0, 0xffffffdf;",
        "bar.warp.sync 0xffffffdf;",
    ] {
        let m = Machine::new(&text("", body));
        let out = m.upload(&[0u32; WORDS]);
        m.launch("k", shape(1, 32), args![out]).unwrap();
        let findings = m.findings.lock().unwrap();
        assert_eq!(findings.len(), 1, "{body}: {findings:?}");
        let FindingKind::BarrierDivergence { detail } = &findings[0].kind else {
            panic!("{body}: {findings:?}")
        };
        assert!(detail.contains("lane 5 executes an instruction for the lanes 0x"), "{detail}");
        assert_eq!(findings[0].site.thread, [5, 0, 0], "{body}");
    }
}

#[test]
fn constant_expressions_wrap_at_64_bits() {
    let m = Machine::new(&text(
        ".global .u64 a[8] = {9223372036854775807 + 1, -9223372036854775807 - 1, 1 << 63, -1 >> 1, -(-9223372036854775807 - 1), ~0, 3 > 2 ? 7 : 8, 0x8000000000000000U};",
        "mov.u64 %rd2, a; mov.u32 %r1, 0; L: ld.global.u64 %rd3, [%rd2]; st.global.u64 [%rd0], %rd3; add.u64 %rd2, %rd2, 8; add.u64 %rd0, %rd0, 8;\n\
         add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, 8; @%p0 bra L;",
    ));
    let out = m.blank(64);
    m.clean("k", shape(1, 1), args![out]);
    let min = 1u64 << 63;
    assert_eq!(m.download::<u64>(out, 8), [min, min, min, u64::MAX, min, u64::MAX, 7, min]);
}

#[test]
fn blocks_of_a_cluster_hand_values_round() {
    // Four blocks in a ring through each other's shared memory; arrival and waiting are apart, threads diverge in between.
    let before = ".shared .align 8 .b8 s[256];";
    let body = "mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; mov.u32 %r3, s; mad.lo.u32 %r4, %r0, 4, %r3;\n\
        mad.lo.u32 %r5, %r1, 100, %r0; st.shared.u32 [%r4], %r5; mov.u32 %r6, 0; mov.u32 %r9, 0;\n\
        L: barrier.cluster.arrive.release; and.b32 %r7, %r0, 1; setp.eq.u32 %p0, %r7, 0; @%p0 bra A; add.u32 %r9, %r9, 1; bra B; A: add.u32 %r9, %r9, 3; B:\n\
        barrier.cluster.wait.acquire; add.u32 %r8, %r1, 1; rem.u32 %r8, %r8, %r2; mapa.shared::cluster.u32 %r10, %r4, %r8; ld.shared::cluster.u32 %r11, [%r10];\n\
        barrier.cluster.arrive; barrier.cluster.wait; st.shared.u32 [%r4], %r11; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 3; @%p1 bra L;\n\
        barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %r12, [%r4]; mov.u32 %r13, %ctaid.x; mad.lo.u32 %r13, %r13, 64, %r0; mad.wide.u32 %rd2, %r13, 4, %rd0;\n\
        mad.lo.u32 %r12, %r9, 10000, %r12; st.global.u32 [%rd2], %r12;";
    for seed in [0, 5, 6] {
        let mut m = Machine::new(&text(before, body));
        m.seed = seed;
        let out = m.upload(&[0u32; 512]);
        m.clean("k", Shape { cluster: [4, 1, 1], ..shape(8, 64) }, args![out]);
        let want: Vec<u32> = (0..512u32)
            .map(|i| ((i / 64 + 3) % 4) * 100 + i % 64 + if i % 2 == 0 { 90000 } else { 30000 })
            .collect();
        assert_eq!(m.download::<u32>(out, 512), want, "seed {seed}");
    }
}

#[test]
fn kernels_without_anything_end() {
    let m = Machine::new(&format!(
        "{HEAD}.visible .entry a() {{ }} .visible .entry b() {{ ret; }} .visible .entry c() {{ .reg .b32 %r; mov.u32 %r, 1; }}\n\
         .visible .entry d() {{ {{ {{ }} }} L: }} .visible .entry e() {{ exit; ret; ret; }}"
    ));
    for kernel in ["a", "b", "c", "d", "e"] {
        m.clean(kernel, shape(3, 1024), args![]);
    }
}

#[test]
fn long_sleeps_take_no_time() {
    let start = std::time::Instant::now();
    launch("", "nanosleep.u32 0xffffffff; nanosleep.u32 %r0;", shape(8, 128)).unwrap();
    assert!(start.elapsed() < std::time::Duration::from_secs(60));
}
