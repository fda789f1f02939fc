//! Control flow, warps, barriers, memory checks.

mod ptx_support;

use ptx_support::{Machine, Random, Shape, shape};
use simtile_sim::exec::{FaultReason, FindingKind, KernelFault};
use simtile_sim::memory::FaultKind;

const HEAD: &str = ".version 8.6\n.target sm_90\n.address_size 64\n";
/// Registers and the thread's number, for kernels of one output array.
const BEGIN: &str = ".reg .b64 %rd<16>; .reg .b32 %r<32>; .reg .pred %p<8>;\n\
    ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0;\n";

/// A module with one kernel `k(out)` whose body follows [`BEGIN`].
fn module(before: &str, body: &str) -> Machine {
    Machine::new(&format!("{HEAD}{before}\n.visible .entry k(.param .u64 out) {{\n{BEGIN}{body}\nret; }}"))
}

/// Runs one block and returns a word for each thread.
fn run(m: &Machine, threads: u32) -> Vec<u32> {
    let out = m.upload(&vec![0u32; threads as usize]);
    m.clean("k", shape(1, threads), args![out]);
    m.download(out, threads as usize)
}

fn fails(m: &Machine, launch: Shape) -> KernelFault {
    let out = m.upload(&vec![0u32; 4096]);
    m.launch("k", launch, args![out]).unwrap_err()
}

fn each_seed(before: &str, body: &str, threads: u32, want: impl Fn(u32) -> u32) {
    for seed in [0, 1, 2, 77, 12345] {
        let mut m = module(before, body);
        m.seed = seed;
        let want: Vec<u32> = (0..threads).map(&want).collect();
        assert_eq!(run(&m, threads), want, "seed {seed}");
    }
}

#[test]
fn divergent_loops_reconverge() {
    // Collatz steps: every lane loops another number of times, with a branch inside.
    let body = "add.u32 %r1, %r0, 1; mov.u32 %r2, 0;\n\
        L: setp.eq.u32 %p0, %r1, 1; @%p0 bra E; and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra H;\n\
        mad.lo.u32 %r1, %r1, 3, 1; bra N;\nH: shr.u32 %r1, %r1, 1;\nN: add.u32 %r2, %r2, 1; bra L;\n\
        E: vote.sync.ballot.b32 %r4, 1, 0xffffffff; popc.b32 %r4, %r4; mad.lo.u32 %r2, %r2, 100, %r4; st.global.u32 [%rd1], %r2;";
    each_seed("", body, 96, |t| {
        let (mut n, mut steps) = (t + 1, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps * 100 + 32
    });
}

#[test]
fn lanes_of_a_warp_take_a_lock_in_turn() {
    let before = ".shared .u32 lock; .shared .u32 count;";
    let body = "setp.ne.u32 %p0, %r0, 0; @%p0 bra S; st.shared.u32 [lock], 0; st.shared.u32 [count], 0;\nS: bar.sync 0;\n\
        L: atom.shared.cas.b32 %r1, [lock], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;\n\
        ld.volatile.shared.u32 %r2, [count]; add.u32 %r2, %r2, 1; st.volatile.shared.u32 [count], %r2; membar.cta;\n\
        atom.shared.exch.b32 %r1, [lock], 0; bar.sync 0; ld.shared.u32 %r3, [count]; st.global.u32 [%rd1], %r3;";
    each_seed(before, body, 64, |_| 64);
}

#[test]
fn calls_recursion_and_structs() {
    let before = ".func (.param .b32 r) fact(.param .b32 n) { .reg .b32 %a<4>; .reg .pred %p; ld.param.u32 %a0, [n];\n\
        setp.le.u32 %p, %a0, 1; @%p bra B; { .param .b32 q; .param .b32 s; sub.u32 %a1, %a0, 1; st.param.b32 [q], %a1;\n\
        call.uni (s), fact, (q); ld.param.b32 %a2, [s]; } mul.lo.u32 %a3, %a0, %a2; st.param.b32 [r], %a3; ret;\n\
        B: st.param.b32 [r], 1; ret; }\n\
        .func (.reg .b32 r) plus(.reg .b32 a, .reg .b32 b) { add.u32 r, a, b; ret; }\n\
        .func (.param .align 8 .b8 r[16]) swap(.param .align 8 .b8 s[16]) { .reg .b64 %x<2>; ld.param.v2.u64 {%x0, %x1}, [s];\n\
        st.param.u64 [r], %x1; st.param.u64 [r+8], %x0; ret; }";
    let body = "rem.u32 %r1, %r0, 10; { .param .b32 n; .param .b32 f; st.param.b32 [n], %r1; call (f), fact, (n); ld.param.b32 %r2, [f]; }\n\
        call (%r3), plus, (%r2, 5);\n\
        { .param .align 8 .b8 s[16]; .param .align 8 .b8 t[16]; cvt.u64.u32 %rd2, %r3; st.param.u64 [s], %rd2; st.param.u64 [s+8], 7;\n\
        call (t), swap, (s); ld.param.u64 %rd3, [t]; ld.param.u64 %rd4, [t+8]; }\n\
        add.u64 %rd3, %rd3, %rd4; cvt.u32.u64 %r4, %rd3; st.global.u32 [%rd1], %r4;";
    each_seed(before, body, 40, |t| (1..=t % 10).product::<u32>() + 12);
}

#[test]
fn indirect_calls_and_branches() {
    let before = ".func (.param .b32 r) one(.param .b32 n) { .reg .b32 a; ld.param.b32 a, [n]; add.u32 a, a, 1; st.param.b32 [r], a; ret; }\n\
        .func (.param .b32 r) two(.param .b32 n) { .reg .b32 a; ld.param.b32 a, [n]; mul.lo.u32 a, a, 2; st.param.b32 [r], a; ret; }\n\
        .global .u64 table[2] = {one, two};";
    let body = "and.b32 %r1, %r0, 1; mul.wide.u32 %rd2, %r1, 8; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2; ld.global.u64 %rd4, [%rd3];\n\
        { .param .b32 n; .param .b32 f; st.param.b32 [n], %r0; proto: .callprototype (.param .b32 _) _ (.param .b32 _);\n\
        call (f), %rd4, (n), proto; ld.param.b32 %r2, [f]; }\n\
        rem.u32 %r3, %r0, 3; ts: .branchtargets A, B, C; brx.idx %r3, ts;\n\
        A: add.u32 %r2, %r2, 100; bra E;\nB: add.u32 %r2, %r2, 200; bra E;\nC: add.u32 %r2, %r2, 300;\nE: st.global.u32 [%rd1], %r2;";
    each_seed(before, body, 50, |t| (if t & 1 == 0 { t + 1 } else { t * 2 }) + (t % 3 + 1) * 100);
}

#[test]
fn shuffles_follow_the_definition() {
    let mut random = Random(42);
    for mode in ["up", "down", "bfly", "idx"] {
        for _ in 0..12 {
            let (b, c) = (random.below(32) as u32, (random.below(32) as u32) << 8 | random.below(32) as u32);
            let body = format!(
                "add.u32 %r1, %r0, 1000; shfl.sync.{mode}.b32 %r2|%p0, %r1, {b}, {c}, -1; selp.u32 %r3, 10000, 0, %p0;\n\
                add.u32 %r2, %r2, %r3; st.global.u32 [%rd1], %r2;"
            );
            let want = |lane: u32| {
                let (clamp, mask) = (c & 31, c >> 8 & 31);
                let most = (lane & mask) | (clamp & !mask);
                let least = lane & mask;
                let (from, inside) = match mode {
                    "up" => (lane as i32 - b as i32, lane as i32 - b as i32 >= most as i32),
                    "down" => ((lane + b) as i32, lane + b <= most),
                    "bfly" => ((lane ^ b) as i32, lane ^ b <= most),
                    _ => {
                        let from = least | (b & !mask);
                        (from as i32, from <= most)
                    }
                };
                let from = if inside { from } else { lane as i32 };
                1000 + (from as u32 & 31) + if inside { 10000 } else { 0 }
            };
            let m = module("", &body);
            assert_eq!(run(&m, 32), (0..32).map(want).collect::<Vec<_>>(), "{mode} {b} {c:#x}");
        }
    }
}

#[test]
fn parts_of_a_warp_synchronise_apart() {
    // Odd and even lanes reduce on different paths; then tiles of four, each with its own mask.
    let body = "and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra V;\n\
        redux.sync.add.u32 %r2, %r0, 0xAAAAAAAA; bra N;\nV: redux.sync.add.u32 %r2, %r0, 0x55555555;\n\
        N: bar.warp.sync 0xffffffff; shr.u32 %r3, %r0, 2; shl.b32 %r3, %r3, 2; mov.u32 %r4, 15; shl.b32 %r4, %r4, %r3;\n\
        redux.sync.max.u32 %r5, %r0, %r4; match.any.sync.b32 %r6, %r1, 0xffffffff; popc.b32 %r6, %r6;\n\
        mad.lo.u32 %r2, %r2, 100, %r5; mad.lo.u32 %r2, %r2, 100, %r6; st.global.u32 [%rd1], %r2;";
    each_seed("", body, 32, |t| {
        let sum: u32 = (0..32).filter(|l| l % 2 == t % 2).sum();
        (sum * 100 + (t | 3)) * 100 + 16
    });
}

#[test]
fn barriers_with_counts_and_reductions() {
    // One warp produces for another through barrier 1; a reduction over the block.
    let before = ".shared .u32 box[32];";
    let body = "setp.lt.u32 %p0, %r0, 32; and.b32 %r1, %r0, 31; mul.lo.u32 %r2, %r1, 4; mov.u32 %r3, box; add.u32 %r3, %r3, %r2;\n\
        @%p0 bra P; bar.sync 1, 64; ld.shared.u32 %r4, [%r3]; bra N;\n\
        P: mul.lo.u32 %r4, %r0, 7; st.shared.u32 [%r3], %r4; bar.arrive 1, 64;\n\
        N: setp.gt.u32 %p1, %r1, 20; bar.red.popc.u32 %r5, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, !%p1;\n\
        selp.u32 %r6, 1, 0, %p2; selp.u32 %r7, 2, 0, %p3; add.u32 %r6, %r6, %r7; mad.lo.u32 %r5, %r5, 10, %r6; mad.lo.u32 %r4, %r4, 1000, %r5;\n\
        st.global.u32 [%rd1], %r4;";
    each_seed(before, body, 64, |t| (t % 32 * 7) * 1000 + 22 * 10 + 2);
}

#[test]
fn mbarrier_phases() {
    let before = ".shared .align 8 .b64 bar; .shared .u32 data[64];";
    let body = "setp.ne.u32 %p0, %r0, 0; @%p0 bra S; mbarrier.init.shared.b64 [bar], 64;\nS: bar.sync 0;\n\
        mov.u32 %r1, 0; mov.u32 %r9, 0;\n\
        L: mov.u32 %r2, data; mad.lo.u32 %r2, %r0, 4, %r2; mad.lo.u32 %r3, %r1, 1000, %r0; st.shared.u32 [%r2], %r3;\n\
        mbarrier.arrive.shared.b64 %rd2, [bar];\nW: mbarrier.try_wait.shared.b64 %p1, [bar], %rd2; @!%p1 bra W;\n\
        xor.b32 %r4, %r0, 63; mov.u32 %r5, data; mad.lo.u32 %r5, %r4, 4, %r5; ld.shared.u32 %r6, [%r5]; add.u32 %r9, %r9, %r6;\n\
        mbarrier.arrive.shared.b64 _, [bar];\nX: mbarrier.test_wait.parity.shared.b64 %p2, [bar], 1; @!%p2 bra X;\n\
        add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra L; st.global.u32 [%rd1], %r9;";
    each_seed(before, body, 64, |t| 3 * (t ^ 63) + 3000);
}

#[test]
fn matrix_fragments() {
    // C = A B for m16n8k16 through ldmatrix, against plain loops.
    let before = ".shared .align 16 .b8 sa[512]; .shared .align 16 .b8 sb[256];";
    let body = "mov.u32 %r1, sa; mov.u32 %r2, sb;\n\
        mov.u32 %r3, %r0;\nF: setp.ge.u32 %p0, %r3, 256; @%p0 bra G; and.b32 %r4, %r3, 7; cvt.rn.f16.u32 h0, %r4; mad.lo.u32 %r5, %r3, 2, %r1;\n\
        st.shared.b16 [%r5], h0; setp.ge.u32 %p1, %r3, 128; @%p1 bra M; rem.u32 %r6, %r3, 5; cvt.rn.f16.u32 h0, %r6; mad.lo.u32 %r5, %r3, 2, %r2; st.shared.b16 [%r5], h0;\n\
        M: add.u32 %r3, %r3, 32; bra F;\nG: bar.sync 0;\n\
        and.b32 %r7, %r0, 15; shr.u32 %r8, %r0, 4; mad.lo.u32 %r9, %r7, 32, %r1; mad.lo.u32 %r9, %r8, 16, %r9;\n\
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r9];\n\
        mad.lo.u32 %r14, %r7, 16, %r2; ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r15, %r16}, [%r14];\n\
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {%r10, %r11, %r12, %r13}, {%r15, %r16}, {z, z, z, z};\n\
        shr.u32 %r20, %r0, 2; and.b32 %r21, %r0, 3; mad.lo.u32 %r22, %r20, 8, 0; mad.lo.u32 %r22, %r21, 2, %r22; mad.wide.u32 %rd2, %r22, 4, %rd0;\n\
        st.global.v2.f32 [%rd2], {f0, f1}; st.global.v2.f32 [%rd2+256], {f2, f3};";
    let m = module(before, &format!(".reg .b16 h<2>; .reg .f32 f<4>, z; mov.f32 z, 0f00000000; {body}"));
    let out = m.upload(&[0f32; 128]);
    m.clean("k", shape(1, 32), args![out]);
    let got = m.download::<f32>(out, 128);
    for i in 0..16 {
        for j in 0..8 {
            let want: usize = (0..16).map(|k| ((i * 16 + k) & 7) * ((k * 8 + j) % 5)).sum();
            assert_eq!(got[i * 8 + j], want as f32, "{i} {j}");
        }
    }
}

#[test]
fn bad_accesses_are_named() {
    let m = module("", ".loc 1 42 0\nst.global.u32 [%rd1+4096], 1;");
    let out = m.upload(&[0u32; 32]);
    m.space.locate(out, 4).unwrap().set_label("result");
    let fault = m.launch("k", shape(1, 32), args![out]).unwrap_err();
    let FaultReason::Memory(memory) = &fault.reason else { panic!("{fault}") };
    assert!(matches!(memory.kind, FaultKind::Unmapped | FaultKind::OutOfBounds));
    assert_eq!(fault.site.source.as_ref().map(|s| s.1), Some(42));
    assert!(fault.to_string().contains("st.global.u32") && fault.to_string().contains("result"), "{fault}");

    let fault = fails(&module("", "setp.eq.u32 %p0, %r0, 9; @%p0 st.global.u32 [%rd1+1], 1;"), shape(2, 32));
    assert!(matches!(&fault.reason, FaultReason::Memory(m) if m.kind == FaultKind::Misaligned), "{fault}");
    assert_eq!((fault.site.block, fault.site.thread), ([0, 0, 0], [9, 0, 0]));

    let fault = fails(
        &module(".shared .u32 s[4];", "mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 4, %r1; st.shared.u32 [%r1], 0;"),
        shape(1, 32),
    );
    assert_eq!(fault.reason, FaultReason::Space { space: "shared", address: 16, bytes: 4, limit: 16 });
    assert_eq!(fault.site.thread, [4, 0, 0]);
    assert_eq!(fails(&module("", "trap;"), shape(1, 1)).reason, FaultReason::Trap);
}

#[test]
fn unwritten_bytes_are_reported_once() {
    let before = ".shared .u32 s[64];";
    let body = ".local .u32 l[2]; mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 4, %r1; ld.shared.u32 %r2, [%r1];\n\
        ld.local.u32 %r3, [l+4]; ld.global.u32 %r4, [%rd1]; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; st.global.u32 [%rd1], %r2;";
    let m = module(before, body);
    let out = m.blank(256);
    m.launch("k", shape(4, 64), args![out]).unwrap();
    let findings = m.findings.lock().unwrap();
    let mut spaces: Vec<&str> = findings
        .iter()
        .map(|f| match &f.kind {
            FindingKind::UninitialisedRead { space, bytes: 4, .. } => *space,
            other => panic!("{other:?}"),
        })
        .collect();
    spaces.sort_unstable();
    assert_eq!(spaces, ["global", "local", "shared"]);
}

#[test]
fn endless_and_stuck_kernels_end() {
    let mut m = module("", "L: bra L;");
    m.step_limit = 10_000;
    assert_eq!(fails(&m, shape(1, 64)).reason, FaultReason::StepLimit(10_000));

    // Half of the block waits at barrier 1, the other half at barrier 2.
    let m = module("", "setp.lt.u32 %p0, %r0, 32; @%p0 bra A; bar.sync 1; ret;\nA: bar.sync 2;");
    let fault = fails(&m, shape(1, 64));
    let FaultReason::Deadlock(text) = &fault.reason else { panic!("{fault}") };
    assert!(text.contains("barrier 1") && text.contains("barrier 2") && text.contains("32 of 64"), "{text}");

    let m = module("", "setp.lt.u32 %p0, %r0, 16; @%p0 bra A; bar.sync 0; ret;\nA: bar.sync 0;");
    m.launch("k", shape(1, 32), args![m.upload(&[0u32; 32])]).unwrap();
    let findings = m.findings.lock().unwrap();
    assert!(
        matches!(&findings[0].kind, FindingKind::BarrierDivergence { detail } if detail.contains("barrier 0"))
    );

    let before = ".func f() { call f; ret; }";
    assert_eq!(fails(&module(before, "call f;"), shape(1, 32)).reason, FaultReason::StackOverflow);
}

#[test]
fn blocks_that_wait_for_later_blocks_make_progress() {
    let before = ".global .u32 flag;";
    let body = "mov.u32 %r1, %ctaid.x; mov.u64 %rd2, flag; setp.ne.u32 %p0, %r1, 0; @%p0 bra A;\n\
        L: ld.acquire.gpu.global.u32 %r2, [%rd2]; setp.ne.u32 %p1, %r2, 3; @%p1 bra L; st.global.u32 [%rd0], %r2; ret;\n\
        A: red.release.gpu.global.add.u32 [%rd2], 1;";
    for workers in [1, 2] {
        let mut m = module(before, body);
        m.workers = workers;
        let out = m.upload(&[0u32]);
        m.clean("k", shape(4, 1), args![out]);
        assert_eq!(m.download::<u32>(out, 1), [3]);
    }
}

#[test]
fn seeds_break_lockstep() {
    // Lane t reads what lane t + 1 wrote, without a warp barrier: right in lockstep only.
    let before = ".shared .u32 s[33];";
    let body = "mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 4, %r1; mov.u32 %r4, 0; st.shared.u32 [%r1], 0; st.shared.u32 [%r1+4], 0; bar.sync 0;\n\
        L: add.u32 %r4, %r4, 1; st.shared.u32 [%r1], %r4; ld.shared.u32 %r5, [%r1+4]; setp.lt.u32 %p0, %r4, 200; @%p0 bra L;\n\
        st.global.u32 [%rd1], %r5;";
    let run_with = |seed| {
        let mut m = module(before, body);
        m.seed = seed;
        run(&m, 32)[..31].iter().all(|&v| v == 200)
    };
    assert!(run_with(0));
    assert!((1..20).any(|seed| !run_with(seed)));
    // The same seed gives the same result.
    let mut m = module(before, body);
    m.seed = 5;
    assert_eq!(run(&m, 32), run(&m, 32));
}

#[test]
fn printf_formats() {
    let text = format!(
        "{HEAD}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
        .global .align 1 .b8 fmt[] = {{{}, 0}};\n.visible .entry k() {{ .local .align 8 .b8 buf[64]; .reg .b64 %rd<4>; .reg .b32 %r;\n\
        mov.u64 %rd0, buf; cvta.local.u64 %rd1, %rd0; st.local.u32 [%rd0], -5; st.local.u64 [%rd0+8], 255; st.local.f64 [%rd0+16], 0d3FF8000000000000;\n\
        st.local.f64 [%rd0+24], 0d3F1A36E2EB1C432D; st.local.u32 [%rd0+32], 65; mov.u64 %rd2, fmt; cvta.global.u64 %rd3, %rd2;\n\
        {{ .param .b64 p; .param .b64 q; .param .b32 s; st.param.b64 [p], %rd3; st.param.b64 [q], %rd1; call.uni (s), vprintf, (p, q); ld.param.b32 %r, [s]; }} ret; }}",
        "[%+05d|%#-8llx|%8.2e|%g|%c|%%]".bytes().map(|b| b.to_string()).collect::<Vec<_>>().join(", ")
    );
    let m = Machine::new(&text);
    m.clean("k", shape(1, 1), args![]);
    assert_eq!(String::from_utf8_lossy(&m.printed.lock().unwrap()), "[-0005|0xff    |1.50e+00|0.0001|A|%]");
}

/// Registers of 128 bits: loads, stores, moves of halves, exchange and compare-and-swap.
#[test]
fn registers_of_128_bits() {
    let m = Machine::new(
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 from, .param .u64 to) {\n\
         .reg .b128 q<4>; .reg .b64 y<8>; .reg .b128 one;\n\
         ld.param.u64 y0, [from]; ld.param.u64 y1, [to];\n\
         ld.global.b128 q0, [y0]; st.global.b128 [y1], q0;\n\
         mov.b128 {y2, y3}, q0; mov.b128 one, {y3, y2};\n\
         atom.global.exch.b128 q1, [y1], one; st.global.b128 [y1+16], q1;\n\
         atom.global.cas.b128 q2, [y1], q0, q1; st.global.b128 [y1+32], q2;\n\
         atom.global.cas.b128 q3, [y1], q2, q1; mov.b128 q1, q3; st.global.b128 [y1+48], q1;\n\
         ret;\n}",
    );
    let (from, to) = (m.upload(&[0x1111_2222_3333_4444u64, 7]), m.blank(64));
    m.clean("k", shape(1, 1), args![from, to]);
    let (a, b) = (0x1111_2222_3333_4444u64, 7);
    // The first swap finds the halves exchanged and changes nothing; the second one finds what it names.
    assert_eq!(m.download::<u64>(to, 8), [a, b, a, b, b, a, b, a]);
}

/// Sums of joined bits.
#[test]
fn matrices_of_bits() {
    for (op, each) in [("xor", 1u32), ("and", 0)] {
        let m = Machine::new(&format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 to) {{\n\
             .reg .b32 x<8>; .reg .b64 y<4>;\n\
             mov.b32 x0, 0xFF; mov.b32 x1, 0xF00; mov.b32 x2, 5;\n\
             mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.{op}.popc {{x3, x4}}, {{x0}}, {{x1}}, {{x2, x2}};\n\
             ld.param.u64 y0, [to]; mov.u32 x5, %tid.x; mad.wide.u32 y0, x5, 8, y0; st.global.v2.b32 [y0], {{x3, x4}};\n\
             ret;\n}}"
        ));
        let to = m.blank(256);
        m.clean("k", shape(1, 32), args![to]);
        // Four words of 8 and of 4 ones each.
        assert_eq!(m.download::<u32>(to, 64), [5 + each * 48; 64]);
    }
}

#[test]
fn the_stack_grows_and_shrinks() {
    // Every lane asks for another size; a called function's frame lies behind what its caller has allocated.
    let before = ".func (.reg .b32 r) sum(.reg .b32 n, .reg .b64 p) { .reg .b64 %x<4>; .reg .b32 %a<4>; .reg .pred %p;\n\
        .local .align 4 .b8 own[64]; mov.u64 %x2, own; st.local.u32 [%x2], n;\n\
        mov.u32 r, 0; mov.u32 %a0, 0; mov.u64 %x0, p;\nL: setp.ge.u32 %p, %a0, n; @%p bra E; ld.local.u32 %a1, [%x0];\n\
        add.u32 r, r, %a1; add.u64 %x0, %x0, 4; add.u32 %a0, %a0, 1; bra L;\nE: ld.local.u32 %a2, [%x2]; mad.lo.u32 r, %a2, 1000, r; ret; }";
    let body = ".reg .b64 s, p, q, n; add.u32 %r1, %r0, 1; mul.wide.u32 n, %r1, 4; stacksave.u64 s; alloca.u64 p, n;\n\
        mov.u64 q, p; mov.u32 %r2, 0;\nL: setp.gt.u32 %p0, %r2, %r0; @%p0 bra E; st.local.u32 [q], %r2; add.u64 q, q, 4;\n\
        add.u32 %r2, %r2, 1; bra L;\nE: call (%r3), sum, (%r1, p); stackrestore.u64 s; alloca.u64 q, 8, 64;\n\
        st.local.u32 [q], 5; ld.local.u32 %r4, [q]; cvt.u32.u64 %r5, q; and.b32 %r5, %r5, 63; add.u32 %r3, %r3, %r4;\n\
        add.u32 %r3, %r3, %r5; st.global.u32 [%rd1], %r3;";
    each_seed(before, body, 64, |t| t * (t + 1) / 2 + 1000 * (t + 1) + 5);

    let endless = module("", ".reg .b64 p; L: alloca.u64 p, 4096; bra L;");
    assert!(matches!(fails(&endless, shape(1, 32)).reason, FaultReason::StackOverflow));
    let wild = module("", "stackrestore.u64 12345;");
    assert!(matches!(fails(&wild, shape(1, 32)).reason, FaultReason::IllegalInstruction(_)));
    // What was given back and taken again has not been written.
    let again = module(
        "",
        ".reg .b64 s, p; stacksave.u64 s; alloca.u64 p, 8; st.local.u32 [p], 1; stackrestore.u64 s; alloca.u64 p, 8;\n\
         ld.local.u32 %r1, [p]; st.global.u32 [%rd1], 0;",
    );
    let out = again.upload(&[0u32; 32]);
    again.launch("k", shape(1, 32), args![out]).unwrap();
    assert!(!again.findings.lock().unwrap().is_empty());
}

#[test]
fn sums_of_two_nans_in_global_memory() {
    // As an H200 has it: the operand's NaN; a number leaves the old one, even a signalling one.
    for (old, a, want) in [
        (0x7FF8_0000_0000_0000u64, 0x7FFF_FFFF_FFFF_FFFFu64, 0x7FFF_FFFF_FFFF_FFFFu64),
        (0x7FFF_FFFF_FFFF_FFFF, 0x7FF8_0000_0000_0000, 0x7FF8_0000_0000_0000),
        (0x7FF0_0000_0000_0001, 0x3FF0_0000_0000_0000, 0x7FF0_0000_0000_0001),
    ] {
        let m = module("", &format!("mov.b64 %rd2, {a:#x}; red.global.add.f64 [%rd0], %rd2;"));
        let out = m.upload(&[old]);
        m.clean("k", shape(1, 1), args![out]);
        assert_eq!(m.download::<u64>(out, 1), [want], "{old:#x} {a:#x}");
    }
}
