//! What reports of races say, and what remembering accesses costs.

use super::{Rig, code, ok};
use crate::check::{AccessLog, Touch};
use crate::config::Checks;
use crate::report::ReportKind;
use crate::{Mode, Simulator};
use simtile_driver::LabelTarget;
use simtile_driver::sys::*;

/// `put(to)`: `to[tid] = tid`, with positions in a source file. `get(to, from)`: `to[tid] = from[tid]`, without.
const KERNELS: &str = "
.version 8.0
.target sm_90
.address_size 64
.file 1 \"kernels/put.cu\"

.visible .entry put(.param .u64 p0)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<3>;
  .loc 1 11 3
  ld.param.u64 %rd1, [p0];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  .loc 1 12 5
  st.global.u32 [%rd3], %r1;
  ret;
}

.visible .entry get(.param .u64 p0, .param .u64 p1)
{
  .reg .b64 %rd<6>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd2, %rd3;
  add.s64 %rd5, %rd1, %rd3;
  ld.global.u32 %r2, [%rd4];
  st.global.u32 [%rd5], %r2;
  ret;
}
\0";

fn label(rig: &Rig, target: LabelTarget, text: &str) {
    let extras = rig.driver.table().extras.expect("the simulator has extras");
    // SAFETY: the extras of a table take its driver's state.
    assert!(unsafe { (extras.label)(rig.driver.state(), target, text) }.is_ok());
}

#[test]
fn a_race_names_both_kernels_their_lines_streams_the_buffer_and_the_command() {
    let rig = Rig::with(Simulator::builder().mode(Mode::Fifo).checks(Checks::ALL).seed(7));
    let mut module = CUmodule::NULL;
    ok!(rig, cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()));
    let (a, b) = (rig.stream(), rig.stream());
    let (mut x, mut y) = (0, 0);
    ok!(rig, cuMemAlloc(&mut x, 1024));
    ok!(rig, cuMemAlloc(&mut y, 1024));
    label(&rig, LabelTarget::Allocation(x), "x");
    label(&rig, LabelTarget::Stream(a), "left");
    label(&rig, LabelTarget::Stream(b), "right");
    let launch = |name, stream, params: &[u64]| {
        let function = rig.function(module, name);
        assert!(rig.launch(function, [1; 3], [64, 1, 1], 0, stream, params).is_ok());
    };
    launch("put", a, &[x + 128]);
    launch("get", b, &[y, x + 128]);
    ok!(rig, cuCtxSynchronize());
    let reports = rig.sim.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let (line, text) =
        (KERNELS.lines().position(|l| l.contains("ld.global")).unwrap() + 1, reports[0].to_string());
    let store = KERNELS.lines().position(|l| l.contains("st.global")).unwrap() + 1;
    for part in [
        "kernel get (#".to_owned(),
        "on stream 'right' reads byte 128 of 'x'".to_owned(),
        format!("at PTX line {line}: ld.global.u32 that kernel put"),
        format!("on stream 'left' writes at PTX line {store}: st.global.u32 (kernels/put.cu:12)"),
        "replay: SIMTILE_SIM=mode=fifo,seed=7,check=all,reports=quiet".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    assert_eq!((reports[0].kind, reports[0].labels.as_slice()), (ReportKind::Race, &["x".to_owned()][..]));
}

/// What the checker keeps takes at most four times the bytes that were touched.
#[test]
fn the_shadow_is_at_most_four_times_what_was_touched() {
    // Through the table: two buffers of which every byte is read or written, and one of a gigabyte of which a page is.
    let rig = Rig::with(Simulator::builder().mode(Mode::Fifo).checks(Checks::ALL));
    let mut module = CUmodule::NULL;
    ok!(rig, cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()));
    let (stream, bytes) = (rig.stream(), 1u64 << 18);
    let allocate = |bytes: u64| {
        let mut pointer = 0;
        ok!(rig, cuMemAlloc(&mut pointer, bytes as usize));
        pointer
    };
    let (x, y, large) = (allocate(bytes), allocate(bytes), allocate(1 << 30));
    let launch = |name, params: &[u64]| {
        let function = rig.function(module, name);
        assert!(rig.launch(function, [1; 3], [1024, 1, 1], 0, stream, params).is_ok());
    };
    let shadow = || {
        ok!(rig, cuCtxSynchronize());
        rig.sim.core().state.lock().order.shadow()
    };
    let before = shadow();
    launch("put", &[large + (512 << 20)]);
    let sparse = shadow() - before;
    assert!(sparse <= 4 * 4096, "{sparse} bytes for one page of a gigabyte");
    for at in (0..bytes).step_by(4096) {
        launch("put", &[x + at]);
    }
    for at in (0..bytes).step_by(4096) {
        launch("get", &[y + at, x + at]);
    }
    let dense = shadow() - before - sparse;
    // Each of the launches is remembered by itself, since none follows all of its bytes.
    assert!(dense <= 4 * 3 * bytes, "{dense} bytes for {bytes} written, {bytes} read and {bytes} written");

    // All ways to touch at once, in one launch.
    let buffer = rig.memory(1 << 20);
    let log = AccessLog::new();
    let map = log.map(buffer.backing().0, &buffer, 0);
    for touch in [Touch::Read, Touch::Write, Touch::Atomic] {
        (0..1u64 << 20).step_by(4).for_each(|at| map.note(at, 4, touch, 9));
    }
    assert!(map.memory() <= 4 << 20, "{} bytes for one megabyte", map.memory());
}
