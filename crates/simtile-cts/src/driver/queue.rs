//! How much streams and contexts take before a call blocks (driver-facts, *Queues and blocking*: queue limit).
//!
//! A second thread submits while streams are gated; the count is read once it has stood still for a while.

use super::blocking::{blocks, ready_kernel, settled};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Args, Gate, Gpu, Shape};
use crate::{ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::sync::atomic::{AtomicU32, Ordering};

crate::frame::registry::tests! { Driver, "queue";
    launches_block_at_the_limit,
    memsets_count,
    copies_count,
    graph_launches_count,
    written_values_count,
    records_waits_and_host_functions_do_not_count needs [Need::POOLS],
    a_context_has_room_for_8_streams,
    a_context_has_room_for_no_more_on_32_streams,
    a_context_has_room_for_no_more_on_100_streams,
}

/// Launches that a gated stream takes.
const LIMIT: u32 = 1021;
/// More than that.
const MANY: u32 = 1200;
/// Launches that a context takes.
const ROOM: u32 = 8168;

/// Calls `submit` with 0, 1, 2, … up to `count` on a second thread while gates are closed. Gives how many calls returned
/// meanwhile, after all of them have.
fn accepted(
    gpu: &Gpu<'_>,
    gates: Vec<Gate>,
    count: u32,
    submit: impl Fn(u32) -> Check + Send + Sync,
    meanwhile: impl FnOnce(Box<dyn FnOnce()>) -> Check,
) -> Check<u32> {
    let counter = AtomicU32::new(0);
    let open: Box<dyn FnOnce()> = Box::new(move || drop(gates));
    threads::scope(|scope| {
        let thread = scope.spawn(|| {
            gpu.enter()?;
            for index in 0..count {
                submit(index)?;
                counter.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        let taken = settled(&counter, count);
        let others = meanwhile(open);
        thread.join().unwrap_or_else(|_| Err(Stop::fail("the submitting thread panicked")))?;
        others?;
        ok!(gpu, cuCtxSynchronize())?;
        Ok(taken)
    })
}

/// As [`accepted`], on one stream.
fn taken(
    gpu: &Gpu<'_>,
    stream: CUstream,
    count: u32,
    submit: impl Fn() -> Check + Send + Sync,
) -> Check<u32> {
    let gates = vec![gpu.gate(stream)?];
    accepted(
        gpu,
        gates,
        count,
        |_| submit(),
        |open| {
            open();
            Ok(())
        },
    )
}

fn launches_block_at_the_limit(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let step = gpu.kernel(c"step")?;
    let word = gpu.zeroed(4)?;
    let args = Args::new().with(word).with(1u32).with(1u32);
    gpu.launch(step, Shape::ONE, stream, &args)?;
    gpu.sync(stream)?;
    gpu.write(word, &[0u32])?;
    let submit = || gpu.launch(step, Shape::ONE, stream, &Args::new().with(word).with(1u32).with(1u32));
    ensure_eq!(taken(&gpu, stream, MANY, submit)?, LIMIT, "launches taken by a gated stream");
    // Nothing was lost or done twice.
    let expected = (0..MANY).fold(0u32, |x, _| x.wrapping_mul(3).wrapping_add(1));
    ensure_eq!(gpu.word(word)?, expected, "word after all launches");
    Ok(())
}

fn memsets_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let memory = gpu.zeroed(4096)?;
    let taken = taken(&gpu, stream, MANY, || ok!(gpu, cuMemsetD8Async(memory, 1, 4096, stream)))?;
    ensure!(taken < MANY, "a gated stream took {taken} memsets");
    Ok(())
}

fn copies_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let memory = gpu.zeroed(8192)?;
    let submit = || ok!(gpu, cuMemcpyDtoDAsync(memory + 4096, memory, 4096, stream));
    let taken = taken(&gpu, stream, MANY, submit)?;
    ensure!(taken < MANY, "a gated stream took {taken} device copies");
    Ok(())
}

fn graph_launches_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let word = gpu.zeroed(4)?;
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    ok!(cx, cuStreamBeginCapture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
    ok!(cx, cuMemsetD32Async(word, 1, 1, stream))?;
    ok!(cx, cuStreamEndCapture(stream, &mut graph))?;
    ok!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    ok!(cx, cuGraphLaunch(exec, stream))?;
    gpu.sync(stream)?;
    let taken = taken(&gpu, stream, MANY, || ok!(gpu, cuGraphLaunch(exec, stream)))?;
    ensure!(taken < MANY, "a gated stream took {taken} graph launches");
    Ok(())
}

fn written_values_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let word = gpu.pinned(1)?;
    let many = 2 * MANY;
    let taken = taken(&gpu, stream, many, || ok!(gpu, cuStreamWriteValue32(stream, word.device, 1, 0)))?;
    ensure!(taken < many, "a gated stream took {taken} write-values");
    Ok(())
}

/// 20 000 calls of five kinds.
fn records_waits_and_host_functions_do_not_count(cx: &Cx) -> Check {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    let gpu = Gpu::new(cx)?;
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    let event = gpu.event()?;
    let outside = gpu.recorded(other)?;
    let count = 4000;
    let submit = || {
        ok!(gpu, cuEventRecord(event, stream))?;
        ok!(gpu, cuStreamWaitEvent(stream, outside, 0))?;
        ok!(gpu, cuLaunchHostFunc(stream, Some(nothing), std::ptr::null_mut()))?;
        let mut memory = 0;
        ok!(gpu, cuMemAllocAsync(&mut memory, 4096, stream))?;
        ok!(gpu, cuMemFreeAsync(memory, stream))
    };
    let taken = taken(&gpu, stream, count, submit)?;
    ensure_eq!(taken, count, "rounds of record, wait, host function, alloc and free taken by a gated stream");
    Ok(())
}

/// So many gated streams, filled in turns, take what a context has room for; then a launch on an idle stream blocks too.
fn room(cx: &Cx, count: u32, least: u32, most: u32) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = ready_kernel(&gpu)?;
    let streams = (0..count).map(|_| gpu.stream()).collect::<Check<Vec<_>>>()?;
    let idle = gpu.stream()?;
    let gates = streams.iter().map(|&stream| gpu.gate(stream)).collect::<Check<Vec<_>>>()?;
    let submit = |index: u32| {
        let stream = streams.get((index % count) as usize).copied().unwrap_or_default();
        gpu.launch(empty, Shape::ONE, stream, &Args::new())
    };
    let mut idle_blocks = false;
    let taken = accepted(&gpu, gates, most + 200, submit, |open| {
        idle_blocks = blocks(&gpu, || gpu.launch(empty, Shape::ONE, idle, &Args::new()), open)?;
        Ok(())
    })?;
    ensure!((least..=most).contains(&taken), "{count} gated streams took {taken} launches");
    ensure!(idle_blocks, "a launch on an idle stream did not block while the context was full");
    Ok(())
}

/// 1 021 on each of 8 gated streams.
fn a_context_has_room_for_8_streams(cx: &Cx) -> Check {
    room(cx, 8, ROOM - 16, ROOM + 16)
}

/// 510 on each of 16 and 255 on each of 32; the gates of a GPU are kernels that take places themselves. In an exploration
/// only 16: each launch there is a turn of everybody.
fn a_context_has_room_for_no_more_on_32_streams(cx: &Cx) -> Check {
    room(cx, 16, ROOM - 48, ROOM + 16)?;
    if cx.is_explored() { Ok(()) } else { room(cx, 32, ROOM - 48, ROOM + 16) }
}

/// 82 on each of 100: eight queues do not divide them evenly, and the first full one holds up whoever takes turns. In an
/// exploration 20, which they do not divide either.
fn a_context_has_room_for_no_more_on_100_streams(cx: &Cx) -> Check {
    let (count, uneven) = if cx.is_explored() { (20, 1400) } else { (100, 600) };
    room(cx, count, ROOM - uneven, ROOM + 100)
}
