//! Launches with many buffers over several streams, policies, events.

use super::{Outcome, Rig, Stop, all, kernel};
use simtile_core::{AtomicScope, DeviceBuffer, LaunchArgs, Policy, StreamError};
use simtile_types::LaunchConfig;

/// A fan of launches and its join.
pub(super) fn many_buffers(rig: &Rig) -> Outcome {
    const N: u32 = 32;
    let context = &rig.contexts[0];
    let (step, copy) = (kernel(context, "step")?, kernel(context, "copy")?);
    let streams = [context.new_stream()?, context.new_stream()?, context.new_stream()?];
    let source = DeviceBuffer::from_slice(&streams[0], &[5u32; N as usize])?;
    let mut buffers = Vec::new();
    for stream in streams.iter().cycle().take(6) {
        let mut target = DeviceBuffer::<u32>::zeroed(stream, N as usize)?;
        let args = LaunchArgs::new().buffer(&source).buffer_mut(&mut target).arg(N);
        // SAFETY: the kernel copies so many words from the first to the second.
        unsafe { stream.launch(&copy, LaunchConfig::for_num_elems(N), args) }?;
        buffers.push(target);
    }
    drop(source);
    for (buffer, stream) in buffers.iter_mut().zip(streams.iter().rev().cycle()) {
        let args = LaunchArgs::new().buffer_mut(buffer).arg(N).arg(1u32);
        // SAFETY: the kernel updates the words of its buffer.
        unsafe { stream.submit().launch(&step, LaunchConfig::for_num_elems(N), args) }?;
    }
    let all_read = buffers.iter().fold(streams[0].submit(), |submit, buffer| submit.read(buffer));
    let joined = all_read.awaited().order_only()?;
    joined.wait()?;
    for buffer in &buffers {
        all("a stepped buffer", &buffer.to_vec(&streams[1])?, N as usize, 16)?;
    }
    Ok(())
}

/// Conflicts reported, refused and let through.
pub(super) fn policies(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut x = DeviceBuffer::<u32>::zeroed(&a, 64)?;
    b.set_policy(Policy::OrderAndReport);
    x.fill(&b, 1)?;
    let _ = context.take_wait_reports();
    b.set_policy(Policy::Reject);
    a.submit().fill(x.view_mut(), 2)?;
    match b.submit().fill(x.view_mut(), 3).map(drop) {
        Ok(()) => {}
        Err(simtile_core::MemoryError::Stream(StreamError::Conflict { .. })) => {
            a.synchronize()?;
            b.submit().fill(x.view_mut(), 3)?;
        }
        Err(error) => return Err(error.into()),
    }
    b.set_policy(Policy::Order);
    a.submit().accumulate(&x, AtomicScope::Device).order_only()?;
    b.submit().accumulate(&x, AtomicScope::Device).waits_outside().order_only()?;
    a.submit().read(&x).order_only()?.wait()?;
    all("the last fill", &x.to_vec(&a)?, 64, 3)
}

/// Events, timed ones, forks, joins, default streams, host functions.
pub(super) fn events(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let start = a.record_timed_event()?;
    let mut x = DeviceBuffer::<u32>::zeroed(&a, 16)?;
    x.fill(&a, 4)?;
    let event = a.record_event()?;
    b.wait(&event)?;
    let fork = b.fork()?;
    a.join(&fork)?;
    let end = a.record_timed_event()?;
    event.synchronize()?;
    let ran = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = ran.clone();
    fork.launch_host_function(move || flag.store(true, std::sync::atomic::Ordering::SeqCst))?;
    fork.synchronize()?;
    if !ran.load(std::sync::atomic::Ordering::SeqCst) {
        return Err(Stop::Wrong("the host function did not run".into()));
    }
    end.synchronize()?;
    start.elapsed(&end)?;
    let legacy = context.legacy_default_stream();
    legacy.join(&a)?;
    all("by the legacy stream", &x.to_vec(&legacy)?, 16, 4)?;
    let mine = context.per_thread_default_stream();
    x.fill(&mine, 6)?;
    context.stream_priority_range()?;
    all("by the thread's stream", &x.to_vec(&a)?, 16, 6)
}
