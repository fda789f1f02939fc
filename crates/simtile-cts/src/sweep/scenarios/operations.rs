//! Operations: run, awaited, given up; loads.

use super::{Outcome, Rig, Stop, all, expect};
use crate::parked::{poll_once, wait};
use simtile_async::{
    AsyncKernelLaunchBuilder, DeviceOp, download, fill, join, load_function, load_module, upload, value,
    zeros, zip,
};
use simtile_core::DeviceBuffer;
use simtile_types::LaunchConfig;

pub(super) fn synchronous(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let (x, y) = zip!(upload(vec![3u32; 64]), zeros::<u32>(64)).sync_on(&a)?;
    let y = simtile_async::copy(&x, y).sync_on(&b)?;
    expect("a copy", &download(&y).sync_on(&a)?, &vec![3; 64])?;
    let shared = zeros::<u32>(16).shared();
    let (first, second) = (shared.clone().then(download).sync_on(&a)?, shared.then(download).sync_on(&b)?);
    expect("a shared value", &first, &second)?;
    let mut y = y;
    fill(&mut y, 8).map(drop).enqueue_on(&b)?;
    all("a fill", &y.to_vec(&a)?, 64, 8)
}

pub(super) fn awaited(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let buffer = wait(upload(vec![1u32; 64]).on(&a))?;
    let buffer = wait(value(buffer).then(|buffer| fill(buffer, 2)).on(&b))?;
    let length = wait(download(&buffer).map_ready(|values| values.len()).on(&a))?;
    expect("a length", &length, &64)?;
    let policy = simtile_async::StreamPoolRoundRobin::from_streams([a.clone(), b.clone()])?;
    let mut buffer = buffer;
    let (left, right) = buffer.split_at_mut(32)?;
    wait(join!(fill(left, 5).map(drop), fill(right, 6).map(drop)).schedule(&policy)?)?;
    let found = wait(download(&buffer).on(&b))?;
    all("the left side", &found[..32], 32, 5)?;
    all("the right side", &found[32..], 32, 6)
}

/// Polled, then dropped; the work goes on.
pub(super) fn given_up(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let step = super::kernel(context, "step")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&a, 32)?;
    let mut submitted = 0u32;
    for round in 0..4 {
        let builder = AsyncKernelLaunchBuilder::new(&step).write(&mut buffer).arg(32u32).arg(1u32);
        // SAFETY: the kernel updates the words of its buffer.
        let launch = unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(32)) }?;
        let mut future = launch.on(if round % 2 == 0 { &a } else { &b });
        if let Some(outcome) = poll_once(&mut future) {
            outcome?;
            submitted += 1;
        } else if future.is_submitted() {
            submitted += 1;
        }
    }
    let mut lost = upload(vec![1u32; 1000]).on(&b);
    let _ = poll_once(&mut lost);
    drop(lost);
    let mut right = 0u32;
    (0..submitted).for_each(|_| right = right.wrapping_mul(3).wrapping_add(1));
    all("as often as it was submitted", &wait(download(&buffer).on(&a))?, 32, right)
}

/// Loading as an operation.
pub(super) fn loaded(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let stream = context.new_stream()?;
    let image = crate::kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
    let module = wait(load_module(image).on(&stream))?;
    let fill = wait(load_function(module, "fill").on(&stream))?;
    let mut buffer = wait(zeros::<u32>(32).on(&stream))?;
    let builder = AsyncKernelLaunchBuilder::new(&fill).write(&mut buffer).arg(32u32).arg(3u32);
    // SAFETY: the kernel sets so many words.
    wait(unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(32)) }?.on(&stream))?;
    drop(fill);
    match wait(download(&buffer).on(&stream)) {
        Ok(values) => all("what was filled", &values, 32, 3),
        Err(error) => Err(Stop::Told(error.to_string())),
    }
}
