//! Captures and graphs.

use super::{Outcome, Rig, all, expect, kernel};
use crate::gpu::SOON;
use crate::parked::wait;
use simtile_async::{
    AsyncKernelLaunchBuilder, Conditional, CudaGraph, DeviceOp, OpError, copy, fill, upload, zeros,
};
use simtile_core::{DeviceBuffer, LaunchArgs, Script};
use simtile_types::LaunchConfig;

pub(super) fn captures(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let source = DeviceBuffer::from_slice(&a, &[3u32; 32])?;
    let target = DeviceBuffer::<u32>::zeroed(&b, 32)?;
    let graph = CudaGraph::capture(&a, copy(source.view(), target))?;
    let mut target = graph.take_output();
    drop(source);
    for stream in [&b, &a] {
        graph.launch().enqueue_on(stream)?;
        if let Some(target) = &mut target {
            all("a replay's output", &target.to_vec(&a)?, 32, 3)?;
            target.fill(stream, 0)?;
        }
    }
    let made = zeros::<u32>(20).then(|buffer| fill(buffer, 5)).graph_on(&b)?;
    let buffer = made.take_output();
    wait(made.launch().on(&a))?;
    drop(made);
    match buffer {
        Some(buffer) => all("memory of a capture", &buffer.to_vec(&b)?, 20, 5),
        None => Ok(()),
    }
}

/// By the core's own calls, with two streams.
pub(super) fn core_captures(rig: &Rig) -> Outcome {
    const N: u32 = 16;
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let step = kernel(context, "step")?;
    let mut x = DeviceBuffer::<u32>::zeroed(&a, N as usize)?;
    let mut y = DeviceBuffer::<u32>::zeroed(&b, N as usize)?;
    let capture = a.begin_capture()?;
    let args = LaunchArgs::new().buffer_mut(&mut x).arg(N).arg(1u32);
    // SAFETY: the kernel updates the words of its buffer.
    unsafe { capture.submit(&a).launch(&step, LaunchConfig::for_num_elems(N), args) }?;
    capture.add_stream(&b)?;
    capture.submit(&b).copy(&x, &mut y)?;
    let mut exec = capture.finish()?.instantiate()?;
    a.submit().graph(&exec)?;
    b.submit().graph(&exec)?;
    all("two replays", &y.to_vec(&a)?, N as usize, 4)?;
    let capture = b.begin_capture()?;
    capture.submit(&b).fill(y.view_mut(), 9)?;
    let second = capture.finish()?;
    exec.update_or_replace(second)?;
    a.submit().graph(&exec)?;
    drop((exec, x));
    // A capture that is given up.
    let third = a.begin_capture()?;
    third.submit(&a).fill(y.view_mut(), 1)?;
    drop(third);
    all("after an update", &y.to_vec(&a)?, N as usize, 9)
}

pub(super) fn updates(rig: &Rig) -> Outcome {
    const N: u32 = 16;
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let step = kernel(context, "step")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, N as usize)?;
    let graph = CudaGraph::scope(&a, |scope| {
        let builder = AsyncKernelLaunchBuilder::new(&step).write(&mut buffer).arg(N).arg(1u32);
        // SAFETY: the kernel updates the words of its buffer.
        scope.record(unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(N)) }?)?;
        scope.record(upload(vec![4u32; 5]))
    })?;
    let made = graph.take_output();
    graph.launch().enqueue_on(&b)?;
    graph.launch().sync_on(&a)?;
    all("two replays", &buffer.to_vec(&b)?, N as usize, 4)?;
    if let Some(mut made) = made {
        all("an upload", &made.to_vec(&a)?, 5, 4)?;
        graph.update(simtile_async::write(&mut made, vec![7u32; 5]).map(drop))?;
        all("an update", &made.to_vec(&b)?, 5, 7)?;
    }
    Ok(())
}

/// Conditional nodes in bodies of others, and a body that is given up.
pub(super) fn bodies(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut x = DeviceBuffer::<u32>::zeroed(&a, 16)?;
    let mut y = DeviceBuffer::<u32>::zeroed(&b, 16)?;
    let graph = CudaGraph::scope(&a, |scope| {
        let (outer, inner) = (scope.condition(1)?, scope.condition(1)?);
        scope.conditional(&outer, Conditional::If, |body| {
            body.record(fill(&mut x, 3).map(drop))?;
            body.conditional(&inner, Conditional::If, |body| body.record(fill(&mut y, 4).map(drop)))
        })
    })?;
    graph.launch().sync_on(&b)?;
    all("what a body filled", &x.to_vec(&b)?, 16, 3)?;
    all("what its body filled", &y.to_vec(&a)?, 16, 4)?;
    drop(graph);
    let graph = CudaGraph::scope(&a, |scope| {
        let condition = scope.condition(1)?;
        scope
            .if_else(&condition, |yes, body| body.record(fill(&mut x, if yes { 6 } else { 7 }).map(drop)))?;
        scope.switch(&condition, 2, |number, body| body.record(fill(&mut y, number + 8).map(drop)))
    })?;
    graph.launch().sync_on(&b)?;
    all("what the first body of two filled", &x.to_vec(&b)?, 16, 6)?;
    all("what the second of a switch filled", &y.to_vec(&a)?, 16, 9)?;
    drop(graph);
    let given_up = CudaGraph::scope(&a, |scope| {
        let condition = scope.condition(1)?;
        scope.conditional(&condition, Conditional::If, |body| {
            body.record(fill(&mut x, 9).map(drop))?;
            Err::<(), _>(OpError::user("no"))
        })
    });
    expect("a body that is given up", &given_up.is_err(), &true)?;
    x.fill(&a, 5)?;
    all("behind a capture that was given up", &x.to_vec(&b)?, 16, 5)
}

/// A capture, an executable and a memoised chain that go where no call may be made.
pub(super) fn elsewhere(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut x = DeviceBuffer::<u32>::zeroed(&a, 16)?;
    let capture = a.begin_capture()?;
    capture.submit(&a).fill(x.view_mut(), 1)?;
    let exec = capture.finish()?.instantiate()?;
    let script = Script::new(context);
    let pass = script.begin();
    script.submit(pass, &b).fill(x.view_mut(), 2)?;
    b.submit().script(&script, pass)?;
    b.submit().graph(&exec)?;
    let capture = a.begin_capture()?;
    capture.submit(&a).fill(x.view_mut(), 3)?;
    // SAFETY: nothing is queued.
    unsafe { b.submit().foreign(|_, _| drop(capture)) }?;
    simtile_core::with_drops_elsewhere(|| drop((exec, script)));
    b.synchronize()?;
    expect("what is left", &context.drain(SOON).waiting, &0)?;
    all("a replay behind a chain", &x.to_vec(&b)?, 16, 1)?;
    x.fill(&a, 5)?;
    all("behind a capture that ended elsewhere", &x.to_vec(&b)?, 16, 5)
}
