//! Streams: creation, order, waiting, priorities.

use crate::frame::{Check, Cx, Need};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "streams";
    flags_are_kept,
    invalid_flags,
    priority_is_kept_and_clamped,
    default_priority_is_in_range,
    context_of_a_stream,
    ids_are_unique,
    device_of_a_stream,
    query_and_synchronize,
    work_runs_in_order,
    streams_do_not_wait_for_each_other,
    wait_event_orders_two_streams,
    wait_means_the_record_before_it,
    wait_for_an_unrecorded_event,
    wait_for_an_event_of_the_same_stream,
    waits_are_transitive,
    wait_flags_are_checked,
    destroy_with_work_pending,
    attributes,
    attributes_of_launches_are_refused,
    attach_memory needs [Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, "managed memory")],
    destroyed_handles_are_refused needs [Need::Simulator("CUDA leaves the use of a destroyed handle undefined")],
}

fn flags_are_kept(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for flags in [CUstream_flags::CU_STREAM_DEFAULT, CUstream_flags::CU_STREAM_NON_BLOCKING] {
        let stream = gpu.stream_with(flags)?;
        ensure!(stream.0 > 2, "the handle {stream:?} is one of the default streams'");
        let mut found = 99;
        ok!(cx, cuStreamGetFlags(stream, &mut found))?;
        ensure_eq!(found, flags.0, "flags of a stream");
        ok!(cx, cuStreamDestroy(stream))?;
    }
    Ok(())
}

fn invalid_flags(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut stream = CUstream::NULL;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamCreate(&mut stream, 0x100))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamCreateWithPriority(&mut stream, 0x100, 0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamCreate(std::ptr::null_mut(), 0))
}

fn range(gpu: &Gpu<'_>) -> Check<(i32, i32)> {
    let (mut least, mut greatest) = (0, 0);
    ok!(gpu, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
    Ok((least, greatest))
}

fn priority_is_kept_and_clamped(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (least, greatest) = range(&gpu)?;
    let asked_and_given = [
        (least, least),
        (greatest, greatest),
        (least + 5, least),
        (greatest - 5, greatest),
        (i32::MAX, least),
        (i32::MIN, greatest),
    ];
    for (asked, given) in asked_and_given {
        let mut stream = CUstream::NULL;
        ok!(cx, cuStreamCreateWithPriority(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0, asked))?;
        let mut found = 99;
        ok!(cx, cuStreamGetPriority(stream, &mut found))?;
        ensure_eq!(found, given, "priority of a stream made with {asked}");
    }
    Ok(())
}

fn default_priority_is_in_range(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (least, greatest) = range(&gpu)?;
    let mut found = 99;
    ok!(cx, cuStreamGetPriority(gpu.stream()?, &mut found))?;
    ensure!((greatest..=least).contains(&found), "default priority {found} is not in {greatest}..={least}");
    Ok(())
}

fn context_of_a_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut other = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut other, 0, 0))?;
    let theirs = gpu.stream()?;
    for (stream, expected) in [(stream, gpu.context), (theirs, other)] {
        let mut found = CUcontext::NULL;
        ok!(cx, cuStreamGetCtx(stream, &mut found))?;
        ensure_eq!(found, expected, "context of a stream");
    }
    // The default stream belongs to whatever is current.
    let mut found = CUcontext::NULL;
    ok!(cx, cuStreamGetCtx(CUstream::NULL, &mut found))?;
    ensure_eq!(found, other, "context of the default stream");
    Ok(())
}

fn ids_are_unique(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut seen = Vec::new();
    for round in 0..8 {
        let stream = gpu.stream()?;
        let mut id = 0;
        ok!(cx, cuStreamGetId(stream, &mut id))?;
        ensure!(!seen.contains(&id), "stream {round} has the id {id} of an earlier one");
        seen.push(id);
        // The id of a destroyed stream is not used again.
        if round % 2 == 0 {
            ok!(cx, cuStreamDestroy(stream))?;
        }
    }
    Ok(())
}

fn device_of_a_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut device = -1;
    ok!(cx, cuStreamGetDevice(gpu.stream()?, &mut device))?;
    ensure_eq!(device, gpu.device, "device of a stream");
    Ok(())
}

fn query_and_synchronize(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    ok!(cx, cuStreamQuery(stream))?;
    ok!(cx, cuStreamSynchronize(stream))?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let gate = gpu.gate(stream)?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(3u32))?;
    code!(cx, [CUDA_ERROR_NOT_READY], cuStreamQuery(stream))?;
    gate.open();
    ok!(cx, cuStreamSynchronize(stream))?;
    ok!(cx, cuStreamQuery(stream))?;
    ensure_eq!(gpu.word(word)?, 3, "word after synchronising the stream");
    Ok(())
}

/// What 60 steps of x = 3 x + i give.
fn steps(count: u32) -> u32 {
    (0..count).fold(0u32, |x, i| x.wrapping_mul(3).wrapping_add(i))
}

fn work_runs_in_order(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let step = gpu.kernel(c"step")?;
    let n = 1000u32;
    let words = gpu.zeroed(n as usize * 4)?;
    for i in 0..60u32 {
        gpu.launch(step, Shape::over(n), stream, &Args::new().with(words).with(n).with(i))?;
    }
    gpu.sync(stream)?;
    crate::frame::same("words", &gpu.read::<u32>(words, n as usize)?, &vec![steps(60); n as usize])
}

fn streams_do_not_wait_for_each_other(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(8)?;
    let gate = gpu.gate(a)?;
    gpu.launch(store, Shape::ONE, a, &Args::new().with(word).with(1u32))?;
    let held = gpu.recorded(a)?;
    gpu.launch(store, Shape::ONE, b, &Args::new().with(word + 4).with(2u32))?;
    gpu.finishes(gpu.recorded(b)?, "work on a stream beside a gated one")?;
    ensure!(!gpu.is_done(held)?, "work behind a gate finished");
    gate.open();
    gpu.finishes(held, "work behind an opened gate")?;
    ensure_eq!(gpu.read::<u32>(word, 2)?, [1, 2], "words of both streams");
    Ok(())
}

fn wait_event_orders_two_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let basic = gpu.module(crate::kernels::BASIC)?;
    let store = gpu.function(basic, c"store_one")?;
    let copy = gpu.function(basic, c"copy_one")?;
    let words = gpu.zeroed(8)?;
    let gate = gpu.gate(a)?;
    gpu.launch(store, Shape::ONE, a, &Args::new().with(words).with(9u32))?;
    ok!(cx, cuStreamWaitEvent(b, gpu.recorded(a)?, 0))?;
    gpu.launch(copy, Shape::ONE, b, &Args::new().with(words).with(words + 4))?;
    let done = gpu.recorded(b)?;
    gpu.stays_pending(done, "work that waits for a gated stream")?;
    gate.open();
    gpu.finishes(done, "work that waits for an event")?;
    ensure_eq!(gpu.read::<u32>(words, 2)?, [9, 9], "word and its copy");
    Ok(())
}

fn wait_means_the_record_before_it(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, c) = (gpu.stream()?, gpu.stream()?, gpu.stream()?);
    // The event is recorded on b (idle), waited for by c, then recorded again behind a gate.
    let event = gpu.recorded(b)?;
    ok!(cx, cuStreamWaitEvent(c, event, 0))?;
    let gate = gpu.gate(a)?;
    ok!(cx, cuEventRecord(event, a))?;
    gpu.finishes(gpu.recorded(c)?, "a wait queued before the event was recorded again")?;
    ensure!(!gpu.is_done(event)?, "the event recorded again behind a gate is done");
    // And the other way round: a wait behind the gated record stays, though the event moves on.
    ok!(cx, cuStreamWaitEvent(c, event, 0))?;
    ok!(cx, cuEventRecord(event, b))?;
    gpu.finishes(event, "the event recorded on an idle stream")?;
    let waits = gpu.recorded(c)?;
    gpu.stays_pending(waits, "a wait for a gated record")?;
    gate.open();
    gpu.finishes(waits, "a wait for a record whose gate opened")
}

fn wait_for_an_unrecorded_event(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    ok!(cx, cuStreamWaitEvent(stream, gpu.event()?, 0))?;
    gpu.finishes(gpu.recorded(stream)?, "a wait for an event that was never recorded")
}

fn wait_for_an_event_of_the_same_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let event = gpu.recorded(stream)?;
    ok!(cx, cuStreamWaitEvent(stream, event, 0))?;
    gpu.finishes(gpu.recorded(stream)?, "a wait for an earlier event of the same stream")
}

fn waits_are_transitive(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, c) = (gpu.stream()?, gpu.stream()?, gpu.stream()?);
    let gate = gpu.gate(a)?;
    ok!(cx, cuStreamWaitEvent(b, gpu.recorded(a)?, 0))?;
    ok!(cx, cuStreamWaitEvent(c, gpu.recorded(b)?, 0))?;
    let done = gpu.recorded(c)?;
    gpu.stays_pending(done, "a wait for a wait for a gate")?;
    gate.open();
    gpu.finishes(done, "a chain of waits")
}

fn wait_flags_are_checked(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let event = gpu.recorded(stream)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamWaitEvent(stream, event, 0x100))
}

/// driver-facts, Order: destroying streams with work pending is fine.
fn destroy_with_work_pending(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let gate = gpu.gate(stream)?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(77u32))?;
    let done = gpu.recorded(stream)?;
    ok!(cx, cuStreamDestroy(stream))?;
    ensure!(!gpu.is_done(done)?, "destroying a gated stream finished its work");
    gate.open();
    gpu.finishes(done, "work of a destroyed stream")?;
    ensure_eq!(gpu.word(word)?, 77, "word written by the work of a destroyed stream");
    Ok(())
}

fn attributes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    ok!(cx, cuStreamGetAttribute(stream, id, &mut value))?;
    value.syncPolicy = CUsynchronizationPolicy::CU_SYNC_POLICY_BLOCKING_SYNC;
    ok!(cx, cuStreamSetAttribute(stream, id, &value))?;
    let mut found = CUlaunchAttributeValue { pad: [0; 64] };
    ok!(cx, cuStreamGetAttribute(stream, id, &mut found))?;
    // SAFETY: the driver wrote this member, and every bit pattern is one of its values.
    let policy = unsafe { found.syncPolicy };
    ensure_eq!(policy, CUsynchronizationPolicy::CU_SYNC_POLICY_BLOCKING_SYNC, "synchronisation policy");
    gpu.sync(stream)
}

fn attributes_of_launches_are_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    // Cooperative is an attribute of launches, not of streams.
    let value = CUlaunchAttributeValue { cooperative: 1 };
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuStreamSetAttribute(stream, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value)
    )
}

fn attach_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut pointer = 0;
    ok!(cx, cuMemAllocManaged(&mut pointer, 65536, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0))?;
    ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, CUmemAttach_flags::CU_MEM_ATTACH_SINGLE.0))?;
    gpu.sync(stream)?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuStreamAttachMemAsync(stream, pointer, 0, CUmemAttach_flags(0x100).0)
    )
}

fn destroyed_handles_are_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    ok!(cx, cuStreamDestroy(stream))?;
    for stream in [stream, CUstream(0xdead_beef)] {
        code!(cx, [CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED], cuStreamQuery(stream))?;
        code!(cx, [CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED], cuStreamDestroy(stream))?;
    }
    // An event is no stream.
    let event = gpu.event()?;
    let code = cu!(cx, cuStreamQuery(CUstream(event.0)));
    ensure_eq!(code, CUresult::CUDA_ERROR_INVALID_HANDLE, "query of an event's handle as a stream");
    Ok(())
}
