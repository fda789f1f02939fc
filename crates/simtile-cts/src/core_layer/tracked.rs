//! Tracked submissions, views, pinned memory and reclaim by our API.

use super::{Core, refused};
use crate::frame::{Check, Cx, same};
use crate::gpu::{A_WHILE, SOON};
use crate::{ensure, ensure_eq};
use simtile_core::{
    AtomicScope, DeviceBuffer, LaunchArgs, MemoryError, PinnedHostBuffer, Policy, RawDeviceBuffer,
    StreamError,
};
use simtile_driver::Entry;
use simtile_types::LaunchConfig;
use std::thread;

crate::frame::registry::tests! { Core, "core_tracked";
    a_launch_is_followed_by_its_readers proves ["A2"],
    one_driver_call_a_submission proves ["L4"],
    a_dropped_submission_keeps_what_it_touches proves ["A1", "A4"],
    reject_names_the_conflict proves ["A2"],
    inserted_waits_are_counted proves ["A2"],
    accumulations_do_not_wait_for_each_other proves ["A3"],
    disjoint_ranges_do_not_wait proves ["M2"],
    views_are_parts proves ["M2"],
    columns_of_a_matrix proves ["M2"],
    casts_and_raw_memory proves ["M7"],
    aliased_memory_is_taken_over_by_nobody proves ["M3", "M4"],
    pinned_memory_is_read_through_guards proves ["M6"],
    a_forgotten_guard_refuses proves ["M6"],
    modules_unload_after_their_last_launch proves ["H5"],
    drain_waits_for_what_was_dropped proves ["A4"],
}

fn a_launch_is_followed_by_its_readers(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let step = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::from_slice(&core.stream, &[5u32; 64])?;
    let gate = core.gate(&core.stream)?;
    let args = LaunchArgs::new().buffer_mut(&mut words).arg(64u32).arg(1u32);
    // SAFETY: the kernel updates the 64 words of its buffer, of which it is told.
    let done = unsafe { core.stream.submit().launch(&step, LaunchConfig::for_num_elems(64), args) }?;
    let read = other.submit().read(&words).awaited().order_only()?;
    thread::sleep(A_WHILE);
    ensure!(!done.is_complete()? && !read.is_complete()?, "work behind a gate, or what follows it, is over");
    gate.open();
    read.wait()?;
    ensure!(done.is_complete()?, "a launch is pending after what follows it");
    same("words", &words.to_vec(&other)?, &[16; 64])
}

fn one_driver_call_a_submission(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let step = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    let (one, two, three) = (
        DeviceBuffer::<u8>::zeroed(&core.stream, 8)?,
        DeviceBuffer::<u8>::zeroed(&core.stream, 8)?,
        DeviceBuffer::<u8>::zeroed(&core.stream, 8)?,
    );
    core.stream.synchronize()?;
    let n = 320u64;
    let (before, checks) = (cx.calls(), cx.calls_of(Entry::cuCtxGetCurrent));
    for _ in 0..n {
        let args = LaunchArgs::new().buffer_mut(&mut words).arg(100u32).arg(1u32);
        let builder = core.stream.submit().read(&one).read(&two).read(&three);
        // SAFETY: the kernel updates the 100 words of its buffer, of which it is told.
        unsafe { builder.launch(&step, LaunchConfig::for_num_elems(100), args) }?;
    }
    let calls = cx.calls() - before - (cx.calls_of(Entry::cuCtxGetCurrent) - checks);
    ensure!(calls <= n + n / 32 + 1, "{calls} driver calls for {n} launches of four buffers");
    let expected = (0..n).fold(0u32, |x, _| x.wrapping_mul(3).wrapping_add(1));
    same("words after all launches", &words.to_vec(&core.stream)?, &[expected; 100])
}

fn a_dropped_submission_keeps_what_it_touches(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let mut copy = DeviceBuffer::<u32>::zeroed(&core.stream, 1 << 14)?;
    let source = DeviceBuffer::from_slice(&core.stream, &vec![7u32; 1 << 14])?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    std::mem::forget(core.stream.submit().copy(&source, &mut copy)?);
    drop(source);
    for _ in 0..6 {
        let mut new = DeviceBuffer::<u32>::zeroed(&other, 1 << 14)?;
        new.fill(&other, 9)?;
    }
    other.synchronize()?;
    gate.open();
    same("words copied from memory that was dropped", &copy.to_vec(&other)?, &vec![7; 1 << 14])
}

fn reject_names_the_conflict(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    core.stream.set_label("left");
    other.set_label("right");
    other.set_policy(Policy::Reject);
    let mut words = DeviceBuffer::from_slice(&core.stream, &[1u32; 16])?.with_label("weights");
    let gate = core.gate(&core.stream)?;
    words.fill(&core.stream, 2)?;
    let error = refused(words.fill(&other, 3), &["left", "right", "weights", "write"])?;
    ensure!(matches!(error, MemoryError::Stream(StreamError::Conflict { host: false, .. })), "{error:?}");
    gate.open();
    core.stream.synchronize()?;
    words.fill(&other, 3)?;
    same("words after the refused fill", &words.to_vec(&other)?, &[3; 16])
}

fn inserted_waits_are_counted(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    core.stream.set_label("producer");
    other.set_label("consumer");
    let gate = core.gate(&core.stream)?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 16)?;
    words.fill(&core.stream, 4)?;
    let read = other.submit().read(&words).order_only()?;
    gate.open();
    read.wait()?;
    let waits = core.context.inserted_waits();
    let pair = waits.iter().find(|w| w.leader.contains("producer") && w.follower.contains("consumer"));
    ensure_eq!(pair.map(|pair| pair.count), Some(1), "waits of the consumer for the producer");
    Ok(())
}

fn accumulations_do_not_wait_for_each_other(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let words = DeviceBuffer::<u32>::zeroed(&core.stream, 16)?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    core.stream.submit().accumulate(&words, AtomicScope::Device).order_only()?;
    other.submit().accumulate(&words, AtomicScope::Device).order_only()?.wait()?;
    let read = other.submit().read(&words).awaited().order_only()?;
    thread::sleep(A_WHILE);
    ensure!(!read.is_complete()?, "a read does not follow an accumulation");
    gate.open();
    read.wait()?;
    Ok(())
}

fn disjoint_ranges_do_not_wait(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 1000)?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    let (mut left, mut right) = words.split_at_mut(500)?;
    left.fill(&core.stream, 1)?;
    right.fill(&other, 2)?;
    // Also after the views have ended, and in another cut.
    other.submit().fill(words.slice_mut(600..700)?, 3)?.wait()?;
    gate.open();
    let found = words.to_vec(&core.stream)?;
    same("words at the cuts", &[found[499], found[500], found[650]], &[1, 2, 3])
}

fn views_are_parts(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let values: Vec<u16> = (0..100).collect();
    let mut buffer = DeviceBuffer::from_slice(&core.stream, &values)?;
    same("a slice", &buffer.slice(10..20)?.to_vec(&core.stream)?, &values[10..20])?;
    for (i, mut chunk) in buffer.chunks_mut(30)?.enumerate() {
        chunk.fill(&core.stream, i as u16)?;
    }
    let found = buffer.to_vec(&core.stream)?;
    same("words around the cuts", &[found[29], found[30], found[89], found[90]], &[0, 1, 2, 3])?;
    refused(buffer.slice(5..101).map(drop), &["5..101", "0..100"])?;
    refused(buffer.split_at_mut(101).map(drop), &["101", "0..100"])?;
    Ok(())
}

fn columns_of_a_matrix(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let values: Vec<u32> = (0..60).collect();
    let mut matrix = DeviceBuffer::from_slice(&core.stream, &values)?;
    same("two columns", &matrix.view().columns(6, 2..4)?.to_vec(&core.stream)?[..4], &[2, 3, 8, 9])?;
    let (mut left, mut right) = matrix.view_mut().into_split_columns(6, 3)?;
    // One submission may write both, element by element.
    core.stream.submit().write(&mut left).write(&mut right).order_only()?;
    right.copy_from(&core.stream, left.as_columns())?;
    let found = matrix.to_vec(&core.stream)?;
    same("the second row", &found[6..12], &[6, 7, 8, 6, 7, 8])?;
    refused(matrix.view().columns(7, 0..1).map(drop), &["60", "7"])?;
    Ok(())
}

fn casts_and_raw_memory(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let buffer = DeviceBuffer::from_slice(&core.stream, &[1.0f32, -2.0])?;
    let bits = [1.0f32.to_bits(), (-2.0f32).to_bits()];
    same("bits of floats", &buffer.view().cast_elem::<u32>()?.to_vec(&core.stream)?, &bits)?;
    refused(buffer.view().cast_elem::<u64>().map(drop), &["u64", "8"])?;
    let mut raw = RawDeviceBuffer::zeroed(&core.stream, 8)?;
    raw.view_mut().fill(&core.stream, 2)?;
    let flags = raw.into_typed::<bool>().map_err(MemoryError::from)?;
    refused(flags.to_vec(&core.stream), &["element 0", "bool"])?;
    Ok(())
}

fn aliased_memory_is_taken_over_by_nobody(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut buffer = DeviceBuffer::from_slice(&core.stream, &[1u32; 4])?;
    let lease = buffer.lease();
    for _ in 0..1000 {
        ensure!(!buffer.is_unique(), "a leased buffer is unique");
        buffer = match buffer.cast_elem::<f32>() {
            Ok(_) => return Err(crate::frame::Stop::fail("an aliased buffer was cast")),
            Err(refused) => refused.handle,
        };
    }
    drop(lease);
    // Work in flight does not count.
    let gate = core.gate(&core.stream)?;
    buffer.fill(&core.stream, 3)?;
    ensure!(buffer.is_unique(), "a buffer with work in flight is not unique");
    let cast = buffer.cast_elem::<i32>().map_err(MemoryError::from)?;
    gate.open();
    same("words after the cast", &cast.to_vec(&core.stream)?, &[3; 4])
}

fn pinned_memory_is_read_through_guards(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut pinned = PinnedHostBuffer::from_slice(&core.context, &[1u32, 2, 3, 4])?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 4)?;
    pinned.copy_to(&core.stream, &mut words)?;
    words.fill(&core.stream, 9)?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    pinned.copy_from(&core.stream, &words)?;
    let error = refused(pinned.try_read().map(drop), &["the host"])?;
    ensure!(matches!(error, MemoryError::Stream(StreamError::Conflict { .. })), "{error:?}");
    ensure!(pinned.try_write().is_err(), "pinned memory that a copy writes can be written");
    gate.open();
    same("words that arrived", &pinned.read()?, &[9; 4])?;
    pinned.write()?[1] = 5;
    pinned.copy_to(&core.stream, &mut words)?;
    same("words that went back", &words.to_vec(&core.stream)?, &[9, 5, 9, 9])
}

fn a_forgotten_guard_refuses(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut pinned = PinnedHostBuffer::from_slice(&core.context, &[1u32; 4])?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 4)?;
    std::mem::forget(pinned.write()?);
    let error = refused(pinned.copy_to(&core.stream, &mut words).map(drop), &["a guard on the host"])?;
    ensure!(matches!(error, MemoryError::Stream(StreamError::Conflict { host: true, .. })), "{error:?}");
    refused(pinned.read().map(drop), &["guard"])?;
    Ok(())
}

fn modules_unload_after_their_last_launch(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let step = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let gate = core.gate(&core.stream)?;
    let args = LaunchArgs::new().buffer_mut(&mut words).arg(64u32).arg(1u32);
    // SAFETY: the kernel updates the 64 words of its buffer, of which it is told.
    unsafe { core.stream.submit().launch(&step, LaunchConfig::for_num_elems(64), args) }?;
    let before = cx.calls_of(Entry::cuModuleUnload);
    drop(step);
    thread::sleep(A_WHILE);
    ensure_eq!(cx.calls_of(Entry::cuModuleUnload), before, "unloads while a launch is pending");
    gate.open();
    ensure!(core.context.drain(SOON).is_complete(), "a module is still waiting");
    ensure_eq!(cx.calls_of(Entry::cuModuleUnload), before + 1, "unloads after the launch");
    same("words", &words.to_vec(&core.stream)?, &[1; 64])
}

fn drain_waits_for_what_was_dropped(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let (one, two) = (core.context.new_stream()?, core.context.new_stream()?);
    let words = DeviceBuffer::<u32>::zeroed(&core.stream, 4096)?;
    core.stream.synchronize()?;
    let gate = core.gate(&one)?;
    // Read on three streams: none follows all of it.
    for stream in [&core.stream, &two, &one] {
        stream.submit().read(&words).order_only()?;
    }
    drop(words);
    let waits = core.context.drain(A_WHILE);
    gate.open();
    ensure!(core.context.drain(SOON).is_complete(), "memory is still waiting");
    ensure_eq!(core.context.stats().reclaiming_bytes, 0, "bytes that wait (before: {waits:?})");
    ensure_eq!(core.context.stats().failed_frees, 0, "failed frees");
    Ok(())
}
