//! Buffers and copies by our API.

use super::{Core, refused};
use crate::frame::{Check, Cx, same, threads};
use crate::{ensure, ensure_eq};
use simtile_core::{DeviceBuffer, LaunchArgs, MemoryError};

crate::frame::registry::tests! { Core, "core_buffers";
    round_trips proves ["H3"],
    element_types proves ["M7"],
    nothing_is_fine_everywhere proves ["M8"],
    sizes_that_overflow proves ["M8", "F2"],
    allocation_ids_are_unique_and_stable proves ["M1"],
    uploads_are_taken_at_submission proves ["M6"],
    another_stream_follows_the_last_use proves ["A2"],
    drop_behind_a_gate_does_not_wait proves ["A4", "H4"],
    dropped_memory_is_not_reused_early proves ["A1"],
    parts_of_buffers proves ["M8"],
    out_of_memory_says_how_much proves ["F2"],
    stats_count_what_lives proves ["A5"],
}

fn round_trips(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut random = cx.random(30);
    for n in [1usize, 3, 1000, 300_001] {
        let values: Vec<u64> = (0..n).map(|_| random.bits()).collect();
        let buffer = DeviceBuffer::from_slice(&core.stream, &values)?;
        ensure_eq!((buffer.len(), buffer.num_bytes()), (n, n * 8), "elements and bytes");
        same(&format!("{n} values"), &buffer.to_vec(&core.stream)?, &values)?;
    }
    Ok(())
}

fn element_types(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = &core.stream;
    ensure_eq!(DeviceBuffer::from_slice(stream, &[-1i8, 2])?.to_vec(stream)?, [-1, 2], "i8");
    ensure_eq!(DeviceBuffer::from_slice(stream, &[1.5f64, -2.0])?.to_vec(stream)?, [1.5, -2.0], "f64");
    ensure_eq!(
        DeviceBuffer::from_slice(stream, &[[1u16, 2, 3]; 2])?.to_vec(stream)?,
        [[1, 2, 3]; 2],
        "[u16; 3]"
    );
    ensure_eq!(DeviceBuffer::from_slice(stream, &[u128::MAX])?.to_vec(stream)?, [u128::MAX], "u128");
    ensure_eq!(DeviceBuffer::from_slice(stream, &[true, false])?.to_vec(stream)?, [true, false], "bool");
    Ok(())
}

fn nothing_is_fine_everywhere(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = &core.stream;
    let mut empty = DeviceBuffer::<u32>::from_slice(stream, &[])?;
    ensure!(empty.is_empty() && empty.num_bytes() == 0, "an empty buffer has {} bytes", empty.num_bytes());
    empty.fill(stream, 1)?;
    empty.zero(stream)?;
    empty.copy_from_slice(stream, &[])?;
    empty.copy_to_slice(stream, &mut [])?;
    let other = DeviceBuffer::<u32>::zeroed(stream, 0)?;
    empty.copy_from(stream, &other)?;
    ensure_eq!(empty.to_vec(stream)?, [0u32; 0], "an empty buffer");
    let units = DeviceBuffer::from_slice(stream, &[(); 5])?;
    ensure_eq!(units.len(), 5, "elements of no size");
    ensure_eq!(units.to_vec(stream)?, [(); 5], "elements of no size");
    let some = DeviceBuffer::from_slice(stream, &[1u8, 2, 3])?;
    ensure_eq!(some.range_to_vec(stream, 3..3)?, [0u8; 0], "an empty range at the end");
    Ok(())
}

fn sizes_that_overflow(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    for count in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
        let error =
            refused(DeviceBuffer::<u64>::zeroed(&core.stream, count), &[&count.to_string(), "8 bytes"])?;
        ensure!(matches!(error, MemoryError::SizeOverflow { .. }), "{error:?}");
    }
    Ok(())
}

fn allocation_ids_are_unique_and_stable(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut seen = Vec::new();
    for round in 0..10 {
        let buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
        let (id, address) = (buffer.allocation_id(), buffer.cu_deviceptr());
        ensure!(!seen.contains(&id), "buffer {round} has the id of an earlier one");
        seen.push(id);
        let moved = Box::new(buffer);
        ensure_eq!(
            (moved.allocation_id(), moved.cu_deviceptr()),
            (id, address),
            "id and address after a move"
        );
    }
    Ok(())
}

fn uploads_are_taken_at_submission(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 1000)?;
    let gate = core.gate(&core.stream)?;
    let mut source = vec![7u32; 1000];
    buffer.copy_from_slice(&core.stream, &source)?;
    // What happens to the host's memory now must not matter.
    source.fill(9);
    std::hint::black_box(&mut source);
    gate.open();
    same("values uploaded", &buffer.to_vec(&core.stream)?, &[7; 1000])
}

fn another_stream_follows_the_last_use(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let step = core.basic()?.load_function("step")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    let shape = super::launches::shape(1, 128);
    for (stream, value) in [(&core.stream, 1u32), (&other, 2), (&core.stream, 3)] {
        let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(value);
        // SAFETY: the kernel updates the 100 words of its buffer, of which it is told.
        unsafe { stream.launch(&step, shape, &args) }?;
    }
    threads::sleep(crate::gpu::A_WHILE);
    ensure!(!other.is_complete()?, "a launch on another stream passed the gated one before it");
    gate.open();
    // ((0 * 3 + 1) * 3 + 2) * 3 + 3
    same("values in the order of submission", &buffer.to_vec(&other)?, &[18; 100])
}

fn drop_behind_a_gate_does_not_wait(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut buffers = Vec::new();
    for _ in 0..5 {
        buffers.push(DeviceBuffer::<u32>::zeroed(&core.stream, 1000)?);
    }
    let gate = core.gate(&core.stream)?;
    for buffer in &mut buffers {
        buffer.fill(&core.stream, 3)?;
    }
    // Would never return if it waited.
    drop(buffers);
    ensure!(!core.stream.is_complete()?, "the gated stream is idle");
    gate.open();
    core.stream.synchronize()?;
    ensure_eq!(core.context.stats().failed_frees, 0, "frees that failed");
    Ok(())
}

fn dropped_memory_is_not_reused_early(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let copy = core.basic()?.load_function("copy_one")?;
    let mut result = DeviceBuffer::<u32>::zeroed(&core.stream, 1)?;
    let mut old = DeviceBuffer::<u32>::zeroed(&core.stream, 1 << 16)?;
    old.fill(&core.stream, 1)?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    let args = LaunchArgs::new().buffer(&old).buffer_mut(&mut result);
    // SAFETY: the kernel copies the first word of one buffer to the other, both of which it is told of.
    unsafe { core.stream.launch(&copy, super::launches::shape(1, 1), &args) }?;
    drop(args);
    drop(old);
    // Other streams get memory meanwhile and write it.
    let mut new = Vec::new();
    for _ in 0..6 {
        let mut buffer = DeviceBuffer::<u32>::zeroed(&other, 1 << 16)?;
        buffer.fill(&other, 2)?;
        new.push(buffer);
    }
    other.synchronize()?;
    gate.open();
    ensure_eq!(result.to_vec(&core.stream)?, [1], "word that the gated kernel read from the dropped buffer");
    Ok(())
}

fn parts_of_buffers(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = &core.stream;
    let values: Vec<u8> = (0..100).collect();
    let source = DeviceBuffer::from_slice(stream, &values)?;
    let mut target = DeviceBuffer::<u8>::zeroed(stream, 100)?;
    target.copy_range_from(stream, 10, &source, 50..70)?;
    target.copy_from_slice_at(stream, 97, &[1, 2, 3])?;
    let mut expected = vec![0; 100];
    expected[10..30].copy_from_slice(&values[50..70]);
    expected[97..].copy_from_slice(&[1, 2, 3]);
    same("parts copied", &target.to_vec(stream)?, &expected)?;
    same("a part read", &target.range_to_vec(stream, 8..12)?, &[0, 0, 50, 51])
}

fn out_of_memory_says_how_much(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let bytes = 1usize << 46;
    let error = refused(
        DeviceBuffer::<u8>::zeroed(&core.stream, bytes),
        &["out of device memory", &bytes.to_string()],
    )?;
    ensure!(matches!(error, MemoryError::OutOfMemory { .. }), "{error:?}");
    let after = DeviceBuffer::from_slice(&core.stream, &[1u8])?;
    ensure_eq!(after.to_vec(&core.stream)?, [1], "a buffer made after the failure");
    Ok(())
}

fn stats_count_what_lives(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let before = core.context.stats();
    let buffer = DeviceBuffer::<u64>::zeroed(&core.stream, 1000)?;
    let with = core.context.stats();
    ensure_eq!(with.live_allocations, before.live_allocations + 1, "live allocations");
    // The allocation may be larger than the buffer.
    ensure!(
        (8000..=65536).contains(&(with.live_bytes - before.live_bytes)),
        "{} live bytes for a buffer of 8000",
        with.live_bytes - before.live_bytes
    );
    drop(buffer);
    let after = core.context.stats();
    ensure_eq!(after.live_allocations, before.live_allocations, "live allocations after a drop");
    ensure_eq!(after.leaked_bytes, 0, "leaked bytes");
    Ok(())
}
