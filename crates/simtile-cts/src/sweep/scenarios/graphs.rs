//! Captures and graphs.

use super::{Outcome, Rig, all, kernel};
use crate::parked::wait;
use simtile_async::{AsyncKernelLaunchBuilder, CudaGraph, DeviceOp, copy, fill, upload, zeros};
use simtile_core::{DeviceBuffer, LaunchArgs};
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
