//! Two devices: peer access and copies between them.

use crate::frame::{Check, Cx, Need, Stop, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, ensure_eq, ok};

const TWO: Need = Need::Devices(2);

crate::frame::registry::tests! { Driver, "peer";
    enable_and_disable needs [TWO],
    enable_flags_and_self needs [TWO],
    kernel_reads_the_other_devices_memory needs [TWO],
    copies_between_devices needs [TWO],
    copies_between_devices_follow_the_stream needs [TWO],
    stream_waits_for_the_other_devices_event needs [TWO],
    event_of_the_other_device_is_refused needs [TWO],
    pool_memory_freed_on_the_other_devices_stream needs [TWO, Need::POOLS],
    copies_of_pool_memory_between_devices needs [TWO, Need::POOLS],
    copies_of_pool_memory_want_their_device_current needs [TWO, Need::POOLS],
}

/// Both devices, the first one current.
fn both(cx: &Cx) -> Check<(Gpu<'_>, Gpu<'_>)> {
    let second = Gpu::on(cx, 1)?;
    let first = Gpu::on(cx, 0)?;
    Ok((first, second))
}

fn reachable(cx: &Cx) -> Check {
    let mut yes = 0;
    ok!(cx, cuDeviceCanAccessPeer(&mut yes, 0, 1))?;
    if yes == 0 { Err(Stop::unsupported("device 0 cannot access device 1's memory")) } else { Ok(()) }
}

fn enable_and_disable(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    reachable(cx)?;
    code!(cx, [CUDA_ERROR_PEER_ACCESS_NOT_ENABLED], cuCtxDisablePeerAccess(second.context))?;
    ok!(cx, cuCtxEnablePeerAccess(second.context, 0))?;
    code!(cx, [CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED], cuCtxEnablePeerAccess(second.context, 0))?;
    // One direction says nothing about the other.
    second.enter()?;
    code!(cx, [CUDA_ERROR_PEER_ACCESS_NOT_ENABLED], cuCtxDisablePeerAccess(first.context))?;
    first.enter()?;
    ok!(cx, cuCtxDisablePeerAccess(second.context))?;
    code!(cx, [CUDA_ERROR_PEER_ACCESS_NOT_ENABLED], cuCtxDisablePeerAccess(second.context))
}

fn enable_flags_and_self(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    reachable(cx)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuCtxEnablePeerAccess(second.context, 1))?;
    code!(cx, [CUDA_ERROR_PEER_ACCESS_UNSUPPORTED], cuCtxEnablePeerAccess(first.context, 0))
}

fn kernel_reads_the_other_devices_memory(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    reachable(cx)?;
    second.enter()?;
    let theirs = second.upload(&[31u32])?;
    first.enter()?;
    ok!(cx, cuCtxEnablePeerAccess(second.context, 0))?;
    let stream = first.stream()?;
    let copy = first.kernel(c"copy_one")?;
    let ours = first.zeroed(4)?;
    first.launch(copy, Shape::ONE, stream, &Args::new().with(theirs).with(ours))?;
    first.sync(stream)?;
    ensure_eq!(first.word(ours)?, 31, "word read from the other device");
    Ok(())
}

fn copies_between_devices(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let values: Vec<u32> = (0..2000).map(|i| i * 5).collect();
    let a = first.upload(&values)?;
    second.enter()?;
    let b = second.zeroed(8000)?;
    ok!(cx, cuMemcpyPeer(b, second.context, a, first.context, 8000))?;
    second.enter()?;
    ok!(cx, cuCtxSynchronize())?;
    same("words on the second device", &second.read::<u32>(b, 2000)?, &values)?;
    // Unified addressing does the same by the addresses alone.
    ok!(cx, cuMemsetD32(b, 3, 2000))?;
    ok!(cx, cuCtxSynchronize())?;
    ok!(cx, cuMemcpyDtoD(a, b, 8000))?;
    ok!(cx, cuCtxSynchronize())?;
    first.enter()?;
    same("words back on the first device", &first.read::<u32>(a, 2000)?, &[3; 2000])
}

fn copies_between_devices_follow_the_stream(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let values: Vec<u32> = (0..100).collect();
    let a = first.upload(&values)?;
    let stream = first.stream()?;
    second.enter()?;
    let b = second.zeroed(400)?;
    first.enter()?;
    let gate = first.gate(stream)?;
    ok!(cx, cuMemcpyPeerAsync(b, second.context, a, first.context, 400, stream))?;
    let done = first.recorded(stream)?;
    first.stays_pending(done, "a copy between devices behind a gate")?;
    gate.open();
    first.finishes(done, "a copy between devices")?;
    second.enter()?;
    same("words on the second device", &second.read::<u32>(b, 100)?, &values)
}

fn stream_waits_for_the_other_devices_event(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let a = first.stream()?;
    second.enter()?;
    let b = second.stream()?;
    let gate = second.gate(b)?;
    let theirs = second.recorded(b)?;
    first.enter()?;
    ok!(cx, cuStreamWaitEvent(a, theirs, 0))?;
    let done = first.recorded(a)?;
    first.stays_pending(done, "a wait for the other device's gated event")?;
    gate.open();
    first.finishes(done, "a wait for the other device's event")
}

/// driver-facts, Order: record of another context's event: 400.
fn event_of_the_other_device_is_refused(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let event = first.event()?;
    second.enter()?;
    let stream = second.stream()?;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuEventRecord(event, stream))?;
    // Asking is fine from anywhere.
    ok!(cx, cuEventQuery(event))
}

/// driver-facts, Order: freeing device 0's pool memory on device 1's stream: accepted.
fn pool_memory_freed_on_the_other_devices_stream(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let a = first.stream()?;
    second.enter()?;
    let b = second.stream()?;
    first.enter()?;
    let mut pointer = 0;
    ok!(cx, cuMemAllocAsync(&mut pointer, 1 << 20, a))?;
    ok!(cx, cuStreamWaitEvent(b, first.recorded(a)?, 0))?;
    ok!(cx, cuMemFreeAsync(pointer, b))?;
    second.sync(b)?;
    first.sync(a)
}

/// A copy that names both contexts reaches pool memory without any grant of access; by addresses alone it is refused.
fn copies_of_pool_memory_between_devices(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let (a, values) = (first.stream()?, (0..100_u32).map(|i| i ^ 5).collect::<Vec<_>>());
    let (mut ours, mut theirs) = (0, 0);
    ok!(cx, cuMemAllocAsync(&mut ours, 400, a))?;
    ok!(cx, cuMemcpyHtoDAsync(ours, values.as_ptr().cast(), 400, a))?;
    first.sync(a)?;
    second.enter()?;
    let b = second.stream()?;
    ok!(cx, cuMemAllocAsync(&mut theirs, 400, b))?;
    ok!(cx, cuMemcpyPeerAsync(theirs, second.context, ours, first.context, 400, b))?;
    second.sync(b)?;
    same("words copied", &second.read::<u32>(theirs, 100)?, &values)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoDAsync(theirs, ours, 400, b))
}

/// A stream of its own device is not enough: the current context's device has to reach the memory.
fn copies_of_pool_memory_want_their_device_current(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let (a, mut values) = (first.stream()?, [3_u32; 100]);
    let mut ours = 0;
    ok!(cx, cuMemAllocAsync(&mut ours, 400, a))?;
    first.sync(a)?;
    second.enter()?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyHtoDAsync(ours, values.as_ptr().cast(), 400, a))?;
    first.enter()?;
    ok!(cx, cuMemcpyHtoDAsync(ours, values.as_ptr().cast(), 400, a))?;
    second.enter()?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoHAsync(values.as_mut_ptr().cast(), ours, 400, a))?;
    first.enter()?;
    first.sync(a)?;
    same("words", &first.read::<u32>(ours, 100)?, &[3; 100])
}
