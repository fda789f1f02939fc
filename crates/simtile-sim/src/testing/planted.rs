//! Planted faults: each small program is wrong in one way, and a search over seeds finds it with the report that
//! belongs to it. Its twin does the same without the mistake and gives no report on any seed.

use super::{Rig, code, ok};
use crate::config::Checks;
use crate::explore::{Strategy, explore};
use crate::report::{Report, ReportKind};
use crate::{Mode, Simulator};
use simtile_driver::sys::*;
use simtile_driver::{AccessMode, DeclaredAccess};

/// Seeds within which a fault must be found.
const SEARCH: u64 = 200;
/// Seeds on which each correct program gives no report. `SIMTILE_SEEDS` says how many instead.
const CORRECT: u64 = 1000;

/// `pick(to, from, index)`: `to[0] = from[index]`. `put(to, index)`: `to[index] = 7`.
/// `meet(odd)`: a barrier that the lanes below `odd` reach elsewhere than the rest. `ahead(to)` lets the next kernel start, then
/// `to[3] = 7`. `hasty(to, from)` and `patient(to, from)`: `to[0] = from[3]`, at once, or once the kernel before has ended.
const KERNELS: &str = "
.version 8.0
.target sm_90
.address_size 64

.visible .entry pick(.param .u64 p0, .param .u64 p1, .param .u32 p2)
{
  .reg .b64 %rd<5>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  ld.param.u32 %r1, [p2];
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r2, [%rd4];
  st.global.u32 [%rd1], %r2;
  ret;
}

.visible .entry put(.param .u64 p0, .param .u32 p1)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p0];
  ld.param.u32 %r1, [p1];
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  mov.u32 %r2, 7;
  st.global.u32 [%rd3], %r2;
  ret;
}

.visible .entry meet(.param .u32 p0)
{
  .reg .pred %p1;
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [p0];
  mov.u32 %r2, %tid.x;
  setp.lt.u32 %p1, %r2, %r1;
  @%p1 bra OTHER;
  bar.sync 0;
  bra END;
OTHER:
  bar.sync 0;
END:
  ret;
}

.visible .entry ahead(.param .u64 p0)
{
  .reg .b64 %rd1;
  .reg .b32 %r1;
  ld.param.u64 %rd1, [p0];
  griddepcontrol.launch_dependents;
  mov.u32 %r1, 7;
  st.global.u32 [%rd1+12], %r1;
  ret;
}

.visible .entry hasty(.param .u64 p0, .param .u64 p1)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r1;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  ld.global.u32 %r1, [%rd2+12];
  griddepcontrol.wait;
  st.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry patient(.param .u64 p0, .param .u64 p1)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r1;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  griddepcontrol.wait;
  ld.global.u32 %r1, [%rd2+12];
  st.global.u32 [%rd1], %r1;
  ret;
}
\0";

struct Bench {
    rig: Rig,
    module: CUmodule,
    a: CUstream,
    b: CUstream,
    x: CUdeviceptr,
    y: CUdeviceptr,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let rig = Rig::with(Simulator::builder().mode(Mode::Explore).seed(seed).checks(Checks::ALL));
        let mut module = CUmodule::NULL;
        ok!(rig, cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()));
        let (mut x, mut y) = (0, 0);
        ok!(rig, cuMemAlloc(&mut x, 256));
        ok!(rig, cuMemAlloc(&mut y, 256));
        ok!(rig, cuMemsetD8(x, 0, 256));
        ok!(rig, cuCtxSynchronize());
        Self { a: rig.stream(), b: rig.stream(), rig, module, x, y }
    }

    fn launch(&self, kernel: &str, threads: u32, stream: CUstream, params: &[u64]) {
        let function = self.rig.function(self.module, kernel);
        let code = self.rig.launch(function, [1; 3], [threads, 1, 1], 0, stream, params);
        assert!(code.is_ok(), "{kernel}: {code:?}");
    }

    /// A launch that may start while the kernel before it runs.
    fn launch_early(&self, kernel: &str, stream: CUstream, params: &[u64]) {
        let function = self.rig.function(self.module, kernel);
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut list: Vec<*mut std::ffi::c_void> =
            params.iter().map(|value| std::ptr::from_ref(value).cast_mut().cast()).collect();
        ok!(self.rig, cuLaunchKernelEx(&config, function, list.as_mut_ptr(), std::ptr::null_mut()));
    }

    /// What is submitted to `later` from now on follows what was submitted to `earlier`.
    fn follow(&self, later: CUstream, earlier: CUstream) {
        let event = self.rig.mark(earlier);
        ok!(self.rig, cuStreamWaitEvent(later, event, 0));
    }

    fn pooled(&self, stream: CUstream) -> CUdeviceptr {
        let mut pointer = 0;
        ok!(self.rig, cuMemAllocAsync(&mut pointer, 256, stream));
        pointer
    }
}

fn reports(seed: u64, planted: bool, program: fn(&Bench, bool)) -> Vec<Report> {
    let outcome = explore(seed, Strategy::of_seed(seed), || {
        let bench = Bench::new(seed);
        program(&bench, planted);
        // Lost where the fault loses a context.
        let _ = code!(bench.rig, cuCtxSynchronize());
        bench.rig.sim.take_reports()
    });
    assert_eq!(outcome.deadlock, None, "seed {seed}");
    outcome.result.unwrap_or_else(|_| panic!("seed {seed} panics"))
}

/// The fault is found, and what is reported is it; the twin is clean.
fn judge(kinds: &[ReportKind], says: &str, program: fn(&Bench, bool)) {
    let mut found = None;
    for seed in 0..SEARCH {
        let reports = reports(seed, true, program);
        assert!(reports.iter().all(|report| kinds.contains(&report.kind)), "seed {seed}: {reports:?}");
        if let Some(report) = reports.into_iter().next() {
            found = Some((seed, report.to_string()));
            break;
        }
    }
    let (seed, text) = found.expect("the planted fault is found");
    assert!(text.contains(says), "seed {seed}: {text}");
    let correct = std::env::var("SIMTILE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(CORRECT);
    for seed in 0..correct {
        let reports = reports(seed, false, program);
        assert!(reports.is_empty(), "seed {seed} of the correct program: {reports:?}");
    }
}

const RACE: &[ReportKind] = &[ReportKind::Race];
/// A use on one side of a free that nothing orders is a race on some schedules and a use after free on others, in a copy
/// or in a kernel.
const FREED: &[ReportKind] = &[ReportKind::Race, ReportKind::MemoryFault, ReportKind::KernelFault];

#[test]
fn a_missing_stream_wait() {
    judge(RACE, "nothing orders them", |bench, planted| {
        ok!(bench.rig, cuMemsetD8Async(bench.x, 1, 256, bench.a));
        if !planted {
            bench.follow(bench.b, bench.a);
        }
        bench.launch("pick", 1, bench.b, &[bench.y, bench.x, 3]);
    });
}

#[test]
fn a_wait_on_the_wrong_event() {
    judge(RACE, "nothing orders them", |bench, planted| {
        let before = bench.rig.mark(bench.a);
        ok!(bench.rig, cuMemsetD8Async(bench.x, 1, 256, bench.a));
        let after = bench.rig.mark(bench.a);
        ok!(bench.rig, cuStreamWaitEvent(bench.b, if planted { before } else { after }, 0));
        ok!(bench.rig, cuMemcpyDtoDAsync(bench.y, bench.x, 256, bench.b));
    });
}

#[test]
fn an_early_free_in_stream_order() {
    judge(FREED, "", |bench, planted| {
        let pointer = bench.pooled(bench.a);
        bench.follow(bench.b, bench.a);
        ok!(bench.rig, cuMemsetD8Async(pointer, 1, 256, bench.b));
        if !planted {
            bench.follow(bench.a, bench.b);
        }
        ok!(bench.rig, cuMemFreeAsync(pointer, bench.a));
    });
}

#[test]
fn a_free_on_the_wrong_stream() {
    judge(FREED, "", |bench, planted| {
        let pointer = bench.pooled(bench.a);
        bench.launch("put", 1, bench.a, &[pointer, 3]);
        if !planted {
            bench.follow(bench.b, bench.a);
        }
        ok!(bench.rig, cuMemFreeAsync(pointer, bench.b));
    });
}

#[test]
fn a_load_out_of_bounds() {
    judge(&[ReportKind::KernelFault], "pick", |bench, planted| {
        bench.launch("pick", 1, bench.a, &[bench.y, bench.x, if planted { 64 } else { 63 }]);
    });
}

#[test]
fn a_store_out_of_bounds() {
    judge(&[ReportKind::KernelFault], "put", |bench, planted| {
        bench.launch("put", 1, bench.a, &[bench.x, if planted { 64 } else { 63 }]);
    });
}

#[test]
fn a_read_of_what_nothing_wrote() {
    judge(&[ReportKind::UninitialisedRead], "nothing wrote", |bench, planted| {
        let from = if planted { bench.y + 128 } else { bench.x };
        bench.launch("pick", 1, bench.a, &[bench.y, from, 0]);
    });
}

#[test]
fn a_divergent_barrier() {
    judge(&[ReportKind::BarrierDivergence], "barrier 0", |bench, planted| {
        bench.launch("meet", 32, bench.a, &[if planted { 5 } else { 0 }]);
    });
}

#[test]
fn a_write_that_was_not_declared() {
    judge(
        &[ReportKind::Undeclared],
        "kernel put writes byte 12 of 'x', which its launch declared as read",
        |bench, planted| {
            let mode = if planted { AccessMode::Read } else { AccessMode::Write };
            declare(bench, &[DeclaredAccess { address: bench.x, bytes: 256, mode }]);
            bench.launch("put", 1, bench.a, &[bench.x, 3]);
        },
    );
}

#[test]
fn a_read_beyond_what_was_declared() {
    judge(
        &[ReportKind::Undeclared],
        "kernel pick reads byte 64 of 'x', which its launch declared not at all",
        |bench, planted| {
            declare(
                bench,
                &[
                    DeclaredAccess { address: bench.y, bytes: 4, mode: AccessMode::Write },
                    DeclaredAccess {
                        address: bench.x,
                        bytes: if planted { 64 } else { 68 },
                        mode: AccessMode::Read,
                    },
                ],
            );
            bench.launch("pick", 1, bench.a, &[bench.y, bench.x, 16]);
        },
    );
}

fn declare(bench: &Bench, accesses: &[DeclaredAccess]) {
    let driver = bench.rig.driver;
    let extras = driver.table().extras.expect("the simulator has extras");
    // SAFETY: the extras of a table take its driver's state.
    unsafe {
        assert!(
            (extras.label)(driver.state(), simtile_driver::LabelTarget::Allocation(bench.x), "x").is_ok()
        );
        assert!((extras.declare)(driver.state(), bench.a, accesses).is_ok());
    }
}

#[test]
fn a_write_after_a_read_that_was_lost() {
    judge(RACE, "reads", |bench, planted| {
        ok!(bench.rig, cuMemcpyDtoDAsync(bench.y, bench.x, 256, bench.a));
        if !planted {
            bench.follow(bench.b, bench.a);
        }
        ok!(bench.rig, cuMemsetD8Async(bench.x, 2, 256, bench.b));
    });
}

/// Page-locked memory, filled.
fn pinned(bench: &Bench, value: u8) -> *mut u8 {
    let mut pointer = std::ptr::null_mut();
    ok!(bench.rig, cuMemHostAlloc(&mut pointer, 256, 0));
    let pointer = pointer.cast::<u8>();
    // SAFETY: 256 bytes of our own, and no work on them is queued yet.
    unsafe { pointer.write_bytes(value, 256) };
    pointer
}

/// The host's store, by a plain pointer as in any program. Work may be pending on the byte: the race is what is looked for,
/// and the simulator reads it only while no other thread runs.
fn poke(pointer: *mut u8, at: usize) {
    // SAFETY: inside the 256 bytes; in an exploration one thread runs at a time.
    unsafe { pointer.add(at).write_volatile(99) };
}

#[test]
fn a_host_write_during_a_copy_to_the_device() {
    judge(
        &[ReportKind::HostWrite],
        "host write during a copy: the host changed bytes 64 to 127",
        |bench, planted| {
            let staging = pinned(bench, 1);
            ok!(bench.rig, cuMemcpyHtoDAsync(bench.x, staging.cast(), 256, bench.a));
            if !planted {
                ok!(bench.rig, cuStreamSynchronize(bench.a));
            }
            poke(staging, 100);
        },
    );
}

#[test]
fn a_host_write_during_a_copy_to_the_host() {
    judge(&[ReportKind::HostWrite], "fills, after it was submitted and before it ran", |bench, planted| {
        let staging = pinned(bench, 1);
        ok!(bench.rig, cuMemcpyDtoHAsync(staging.cast(), bench.x, 256, bench.a));
        if !planted {
            ok!(bench.rig, cuStreamSynchronize(bench.a));
        }
        poke(staging, 3);
    });
}

#[test]
fn a_dependent_kernel_that_does_not_wait() {
    judge(RACE, "that kernel ahead", |bench, planted| {
        name(bench);
        bench.launch("ahead", 1, bench.a, &[bench.x]);
        bench.launch_early(if planted { "hasty" } else { "patient" }, bench.a, &[bench.y, bench.x]);
        // What follows is ordered after both.
        ok!(bench.rig, cuMemsetD8Async(bench.x, 2, 256, bench.a));
        ok!(bench.rig, cuMemsetD8Async(bench.y, 2, 256, bench.a));
    });
}

#[test]
fn a_dependent_node_that_does_not_wait() {
    judge(RACE, "that kernel ahead", |bench, planted| {
        name(bench);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        ok!(bench.rig, cuStreamBeginCapture(bench.a, mode));
        bench.launch("ahead", 1, bench.a, &[bench.x]);
        bench.launch_early(if planted { "hasty" } else { "patient" }, bench.a, &[bench.y, bench.x]);
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        ok!(bench.rig, cuStreamEndCapture(bench.a, &mut graph));
        ok!(bench.rig, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        for _ in 0..2 {
            ok!(bench.rig, cuGraphLaunch(exec, bench.a));
        }
        ok!(bench.rig, cuMemsetD8Async(bench.x, 2, 256, bench.a));
    });
}

/// Without a trigger the next kernel starts when the one before has ended, and a launch without the attribute does so too.
#[test]
fn kernels_that_cannot_start_early_need_no_wait() {
    for (first, early) in [("put", true), ("ahead", false)] {
        let outcome = explore(5, Strategy::Interleaved, || {
            let bench = Bench::new(5);
            bench.launch(first, 1, bench.a, &[bench.x, 3][..if first == "put" { 2 } else { 1 }]);
            if early {
                bench.launch_early("hasty", bench.a, &[bench.y, bench.x]);
            } else {
                bench.launch("hasty", 1, bench.a, &[bench.y, bench.x]);
            }
            ok!(bench.rig, cuCtxSynchronize());
            bench.rig.sim.take_reports()
        });
        assert_eq!(outcome.result.unwrap(), [], "{first}");
    }
}

#[test]
fn a_host_write_under_a_kernel_that_reads() {
    judge(
        &[ReportKind::HostWrite],
        "host write under a kernel: the host changed byte 13 of",
        |bench, planted| {
            let staging = pinned(bench, 1);
            bench.launch("pick", 1, bench.a, &[bench.y, staging as u64, 3]);
            // The kernel has nothing to do with this one.
            poke(staging, 16);
            if !planted {
                ok!(bench.rig, cuStreamSynchronize(bench.a));
            }
            poke(staging, 13);
        },
    );
}

#[test]
fn a_host_write_under_a_kernel_that_writes() {
    judge(&[ReportKind::HostWrite], "writes, after it was submitted and before it ran", |bench, planted| {
        let staging = pinned(bench, 1);
        bench.launch("put", 1, bench.a, &[staging as u64, 3]);
        if !planted {
            ok!(bench.rig, cuStreamSynchronize(bench.a));
        }
        poke(staging, 12);
    });
}

/// Names the first buffer.
fn name(bench: &Bench) {
    let driver = bench.rig.driver;
    let extras = driver.table().extras.expect("the simulator has extras");
    let target = simtile_driver::LabelTarget::Allocation(bench.x);
    // SAFETY: the extras of a table take its driver's state.
    assert!(unsafe { (extras.label)(driver.state(), target, "x") }.is_ok());
}

/// A read of what is not there yet leaves no trace in memory: it is found where the host says that it reads.
#[test]
fn a_host_read_during_a_copy() {
    judge(RACE, "the host on host thread", |bench, planted| {
        let staging = pinned(bench, 1) as u64;
        ok!(bench.rig, cuMemcpyDtoHAsync(staging as *mut _, bench.x, 256, bench.a));
        if !planted {
            ok!(bench.rig, cuStreamSynchronize(bench.a));
        }
        let driver = bench.rig.driver;
        let extras = driver.table().extras.expect("the simulator has extras");
        // SAFETY: the extras of a table take its driver's state.
        let code = unsafe { (extras.host_access)(driver.state(), staging + 8, 4, AccessMode::Read) };
        assert!(code.is_ok());
    });
}

/// A graph of one node, `put(pointer, 3)` or a memset, made by capture.
fn captured(bench: &Bench, kernel: bool, pointer: CUdeviceptr) -> CUgraphExec {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(bench.rig, cuStreamBeginCapture(bench.a, mode));
    if kernel {
        bench.launch("put", 1, bench.a, &[pointer, 3]);
    } else {
        ok!(bench.rig, cuMemcpyDtoDAsync(bench.y, pointer, 256, bench.a));
    }
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    ok!(bench.rig, cuStreamEndCapture(bench.a, &mut graph));
    ok!(bench.rig, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn named(bench: &Bench, name: &str) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(bench.rig, cuMemAlloc(&mut pointer, 256));
    ok!(bench.rig, cuMemsetD8(pointer, 0, 256));
    ok!(bench.rig, cuCtxSynchronize());
    let driver = bench.rig.driver;
    let extras = driver.table().extras.expect("the simulator has extras");
    // SAFETY: the extras of a table take its driver's state.
    let code =
        unsafe { (extras.label)(driver.state(), simtile_driver::LabelTarget::Allocation(pointer), name) };
    assert!(code.is_ok());
    pointer
}

const STALE: &[ReportKind] =
    &[ReportKind::StaleGraphPointer, ReportKind::KernelFault, ReportKind::MemoryFault];

#[test]
fn a_stale_graph_pointer_into_freed_memory() {
    judge(STALE, "stale graph pointer: node 0 (kernel put) follows", |bench, planted| {
        let pointer = named(bench, "old");
        let exec = captured(bench, true, pointer);
        if planted {
            ok!(bench.rig, cuMemFree(pointer));
        }
        ok!(bench.rig, cuGraphLaunch(exec, bench.a));
        // The context may be lost by now.
        let _ = code!(bench.rig, cuGraphLaunch(exec, bench.a));
    });
}

/// Nothing is wrong with any single access here.
#[test]
fn a_stale_graph_pointer_into_memory_of_somebody_else() {
    for kernel in [true, false] {
        let program: fn(&Bench, bool) = if kernel { stale_kernel } else { stale_copy };
        judge(
            &STALE[..1],
            "which was in 'old' when the node was made; that was freed, and the address belongs to 'new' now",
            program,
        );
    }
}

fn stale_kernel(bench: &Bench, planted: bool) {
    stale(bench, planted, true);
}

fn stale_copy(bench: &Bench, planted: bool) {
    stale(bench, planted, false);
}

fn stale(bench: &Bench, planted: bool, kernel: bool) {
    let old = named(bench, "old");
    let exec = captured(bench, kernel, old);
    if planted {
        ok!(bench.rig, cuMemFree(old));
    }
    let new = named(bench, "new");
    assert_eq!(new == old, planted, "addresses are used again");
    ok!(bench.rig, cuGraphLaunch(exec, bench.a));
}
