//! Two devices: peer access and copies between them.

use crate::frame::{Check, Cx, Need, Stop, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

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
    devices_work_at_the_same_time needs [TWO],
    each_device_has_its_own_memory needs [TWO],
    each_device_has_its_own_pool needs [TWO, Need::POOLS],
    pinned_memory_is_every_devices needs [TWO],
    managed_memory_is_every_devices needs [TWO, super::memory_host::CONCURRENT],
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

fn devices_work_at_the_same_time(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let a = first.stream()?;
    second.enter()?;
    let (b, store) = (second.stream()?, second.kernel(c"store_one")?);
    let word = second.zeroed(4)?;
    first.enter()?;
    let gate = first.gate(a)?;
    let held = first.recorded(a)?;
    second.enter()?;
    second.launch(store, Shape::ONE, b, &Args::new().with(word).with(6u32))?;
    // All of the second device's work, and none of the first one's.
    ok!(cx, cuCtxSynchronize())?;
    ensure_eq!(second.word(word)?, 6, "word written while the first device is held");
    ensure!(!first.is_done(held)?, "waiting for the second device finished gated work of the first");
    gate.open();
    first.finishes(held, "work of the first device")
}

fn each_device_has_its_own_memory(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let free = |gpu: &Gpu<'_>| -> Check<usize> {
        gpu.enter()?;
        let mut free = 0;
        ok!(cx, cuMemGetInfo(&mut free, &mut 0))?;
        Ok(free)
    };
    let before = (free(&first)?, free(&second)?);
    first.enter()?;
    let memory = first.alloc(64 << 20)?;
    let after = (free(&first)?, free(&second)?);
    ensure!(
        before.0 >= after.0 + (64 << 20),
        "64 MiB on device 0 took {} bytes there",
        before.0 as i64 - after.0 as i64
    );
    // Others may use a GPU as well, but not for that much.
    let taken = before.1.saturating_sub(after.1);
    ensure!(taken < 64 << 20, "64 MiB on device 0 took {taken} bytes of device 1");
    first.enter()?;
    ok!(cx, cuMemFree(memory))
}

fn each_device_has_its_own_pool(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let (mut ours, mut theirs) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
    ok!(cx, cuDeviceGetDefaultMemPool(&mut ours, first.device))?;
    ok!(cx, cuDeviceGetDefaultMemPool(&mut theirs, second.device))?;
    ensure!(ours != theirs, "both devices have the default pool {ours:?}");
    let used = |pool| -> Check<u64> {
        let mut bytes = 0u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        ok!(cx, cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()))?;
        Ok(bytes)
    };
    let before = (used(ours)?, used(theirs)?);
    // The stream's device decides, not the current one.
    second.enter()?;
    let stream = second.stream()?;
    first.enter()?;
    let mut pointer = 0;
    ok!(cx, cuMemAllocAsync(&mut pointer, 1 << 20, stream))?;
    second.sync(stream)?;
    ensure_eq!((used(ours)?, used(theirs)?), (before.0, before.1 + (1 << 20)), "bytes used of both pools");
    ok!(cx, cuMemFreeAsync(pointer, stream))?;
    second.sync(stream)
}

/// With unified addressing all pinned memory is portable.
fn pinned_memory_is_every_devices(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let pinned = first.pinned(4)?;
    second.enter()?;
    let (stream, store) = (second.stream()?, second.kernel(c"store_one")?);
    let mut device = 0;
    ok!(cx, cuMemHostGetDevicePointer(&mut device, pinned.host(), 0))?;
    ensure_eq!(device, pinned.device, "address of pinned memory for the other device");
    second.launch(store, Shape::ONE, stream, &Args::new().with(device + 4).with(77u32))?;
    second.sync(stream)?;
    ensure_eq!(pinned.to_vec(), [0, 77, 0, 0], "words written by the other device");
    first.enter()?;
    ok!(cx, cuMemFreeHost(pinned.host()))
}

fn managed_memory_is_every_devices(cx: &Cx) -> Check {
    let (first, second) = both(cx)?;
    let mut memory = 0;
    ok!(cx, cuMemAllocManaged(&mut memory, 4096, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0))?;
    for (gpu, at) in [(&first, 0u32), (&second, 1)] {
        gpu.enter()?;
        let (stream, store) = (gpu.stream()?, gpu.kernel(c"store_one")?);
        let word = memory + 4 * u64::from(at);
        gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(50 + at))?;
        gpu.sync(stream)?;
    }
    let host = std::ptr::with_exposed_provenance::<u32>(memory as usize);
    // SAFETY: managed memory is host memory, and both kernels have finished.
    let found = unsafe { [host.read_volatile(), host.add(1).read_volatile()] };
    ensure_eq!(found, [50, 51], "words written by both devices");
    ok!(cx, cuMemFree(memory))
}
