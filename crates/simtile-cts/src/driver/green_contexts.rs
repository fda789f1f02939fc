//! Green contexts: parts of a device's multiprocessors, contexts of them, their streams and events.

use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{A_WHILE, Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

crate::frame::registry::tests! { Driver, "green_contexts";
    resources needs [HOPPER],
    splits needs [HOPPER],
    splits_that_are_refused needs [HOPPER],
    contexts_of_parts needs [HOPPER],
    streams needs [HOPPER],
    default_stream needs [HOPPER],
    work_runs_on_its_part needs [HOPPER],
    primary_and_green_share needs [HOPPER],
    events needs [HOPPER],
    synchronisation_is_their_own needs [HOPPER],
    captures_refuse_events needs [HOPPER],
    ends needs [HOPPER],
}

/// Sizes and steps depend on the architecture.
const HOPPER: Need = Need::Capability(9, 0);
const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

fn empty() -> CUdevResource {
    // SAFETY: zeros are valid in every field.
    unsafe { std::mem::zeroed() }
}

fn count(resource: &CUdevResource) -> u32 {
    // SAFETY: every resource here is zeroed or one of multiprocessors.
    unsafe { resource.u.sm.smCount }
}

fn whole(cx: &Cx) -> Check<CUdevResource> {
    let mut resource = empty();
    ok!(cx, cuDeviceGetDevResource(0, &mut resource, SM))?;
    let there = count(&resource);
    if there < 66 {
        return Err(Stop::unsupported(format!(
            "the device has {there} multiprocessors, too few for the groups here"
        )));
    }
    Ok(resource)
}

/// Groups of at least so many multiprocessors, at most `room` of them, and what is left.
fn split(
    cx: &Cx,
    input: &CUdevResource,
    room: u32,
    flags: u32,
    least: u32,
) -> Check<(Vec<CUdevResource>, CUdevResource)> {
    let (mut groups, mut n, mut rest) = (vec![empty(); room as usize], room, empty());
    ok!(cx, cuDevSmResourceSplitByCount(groups.as_mut_ptr(), &mut n, input, &mut rest, flags, least))?;
    groups.truncate(n as usize);
    Ok((groups, rest))
}

fn describe(cx: &Cx, resources: &mut [CUdevResource]) -> Check<CUdevResourceDesc> {
    let mut desc = CUdevResourceDesc::NULL;
    ok!(cx, cuDevResourceGenerateDesc(&mut desc, resources.as_mut_ptr(), resources.len() as u32))?;
    Ok(desc)
}

/// A green context with its context and one stream.
struct Green {
    green: CUgreenCtx,
    context: CUcontext,
    stream: CUstream,
}

impl Green {
    /// Contexts of so many groups of 8 multiprocessors.
    fn some<const N: usize>(cx: &Cx) -> Check<[Self; N]> {
        let (groups, _) = split(cx, &whole(cx)?, N as u32, 0, 8)?;
        ensure_eq!(groups.len(), N, "groups of 8");
        let made = groups.into_iter().map(|group| Self::of(cx, group)).collect::<Check<Vec<_>>>()?;
        made.try_into().map_err(|_| Stop::fail("not so many contexts"))
    }

    fn of(cx: &Cx, group: CUdevResource) -> Check<Self> {
        let desc = describe(cx, &mut [group])?;
        let (mut green, mut context, mut stream) = (CUgreenCtx::NULL, CUcontext::NULL, CUstream::NULL);
        ok!(cx, cuGreenCtxCreate(&mut green, desc, 0, 1))?;
        ok!(cx, cuCtxFromGreenCtx(&mut context, green))?;
        ok!(cx, cuGreenCtxStreamCreate(&mut stream, green, 1, 0))?;
        Ok(Self { green, context, stream })
    }
}

fn resources(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let all = whole(cx)?;
    let there = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    ensure_eq!((all.type_, count(&all) as i32), (SM, there), "multiprocessors of the device");
    let mut found = empty();
    ok!(cx, cuCtxGetDevResource(gpu.context, &mut found, SM))?;
    ensure_eq!(count(&found) as i32, there, "multiprocessors of the primary context");
    // SAFETY: a resource of multiprocessors.
    let sm = unsafe { all.u.sm };
    ensure_eq!((sm.minSmPartitionSize, sm.smCoscheduledAlignment), (8, 8), "least size and step of groups");
    code!(
        cx,
        [CUDA_ERROR_INVALID_RESOURCE_TYPE],
        cuDeviceGetDevResource(0, &mut found, CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID)
    )
}

fn splits(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let all = whole(cx)?;
    for (flags, least, size) in [
        (0, 0, 8),
        (0, 8, 8),
        (0, 9, 16),
        (0, 17, 24),
        (0, 64, 64),
        (1, 0, 2),
        (1, 3, 4),
        (1, 9, 10),
        (2, 20, 24),
    ] {
        let mut simulated = 0;
        ok!(cx, cuDevSmResourceSplitByCount(null_mut(), &mut simulated, &all, null_mut(), flags, least))?;
        let (groups, rest) = split(cx, &all, 128, flags, least)?;
        ensure_eq!(groups.len(), simulated as usize, "groups of a split of {least} and of its simulation");
        ensure!(groups.iter().all(|group| count(group) == size), "sizes of groups of {least}");
        let used = size * groups.len() as u32;
        ensure_eq!(count(&rest), count(&all) - used, "what groups of {least} leave");
    }
    let (groups, rest) = split(cx, &all, 1, 0, 32)?;
    ensure_eq!((groups.len(), count(&rest)), (1, count(&all) - 32), "one group of 32, and what is left");
    Ok(())
}

fn splits_that_are_refused(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let all = whole(cx)?;
    let try_split = |input: &CUdevResource, flags: u32, least: u32| {
        let mut n = 1;
        let mut group = [empty()];
        cu!(cx, cuDevSmResourceSplitByCount(group.as_mut_ptr(), &mut n, input, null_mut(), flags, least))
    };
    let too_many = try_split(&all, 0, count(&all) + 1);
    ensure_eq!(too_many, CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "more than there are");
    ensure_eq!(try_split(&all, 3, 8), CUresult::CUDA_ERROR_INVALID_VALUE, "flags that exclude each other");
    let kind = try_split(&empty(), 0, 8);
    ensure_eq!(kind, CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE, "split of an empty resource");
    // What a split gave cannot be split before there is a context of it.
    let (groups, rest) = split(cx, &all, 2, 0, 8)?;
    for part in [groups[0], rest] {
        let again = try_split(&part, 0, 8);
        ensure_eq!(again, CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "split of a part");
    }
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuDevSmResourceSplitByCount([empty()].as_mut_ptr(), null_mut(), &all, null_mut(), 0, 8)
    )
}

fn contexts_of_parts(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a, b] = Green::some::<2>(cx)?;
    ensure!(a.context != b.context && a.context != gpu.context, "contexts are told apart");
    let (mut again, mut found) = (CUcontext::NULL, empty());
    ok!(cx, cuCtxFromGreenCtx(&mut again, a.green))?;
    ensure_eq!(again, a.context, "the context when it is asked for again");
    ok!(cx, cuGreenCtxGetDevResource(a.green, &mut found, SM))?;
    ensure_eq!(count(&found), 8, "multiprocessors of the green context");
    ok!(cx, cuCtxGetDevResource(a.context, &mut found, SM))?;
    ensure_eq!(count(&found), 8, "multiprocessors of its context");
    // Making it has not made it current; it can be.
    let (mut current, mut device) = (CUcontext::NULL, 9);
    ok!(cx, cuCtxGetCurrent(&mut current))?;
    ensure_eq!(current, gpu.context, "current context");
    ok!(cx, cuCtxSetCurrent(a.context))?;
    ok!(cx, cuCtxGetCurrent(&mut current))?;
    ok!(cx, cuCtxGetDevice(&mut device))?;
    ensure_eq!((current, device), (a.context, gpu.device), "current context and its device");
    Ok(())
}

fn streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a] = Green::some::<1>(cx)?;
    let mut stream = CUstream::NULL;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGreenCtxStreamCreate(&mut stream, a.green, 0, 0))?;
    let (mut least, mut greatest, mut priority) = (0, 0, 9);
    ok!(cx, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
    ok!(cx, cuGreenCtxStreamCreate(&mut stream, a.green, 1, greatest))?;
    ok!(cx, cuStreamGetPriority(stream, &mut priority))?;
    ensure_eq!(priority, greatest, "priority");
    let owner = |stream| {
        let mut green = CUgreenCtx(1);
        ok!(cx, cuStreamGetGreenCtx(stream, &mut green))?;
        Ok::<_, Stop>(green)
    };
    ensure_eq!(owner(stream)?, a.green, "green context of its stream");
    ensure_eq!(owner(gpu.stream()?)?, CUgreenCtx::NULL, "green context of a primary's stream");
    ok!(cx, cuCtxSetCurrent(a.context))?;
    ensure_eq!(owner(gpu.stream()?)?, a.green, "green context of a stream made while it is current");
    Ok(())
}

fn default_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a] = Green::some::<1>(cx)?;
    let word = gpu.zeroed(8)?;
    let mut green = CUgreenCtx(1);
    ok!(cx, cuStreamGetGreenCtx(CUstream::NULL, &mut green))?;
    ensure_eq!(green, CUgreenCtx::NULL, "default stream with the primary context current");
    ok!(cx, cuCtxSetCurrent(a.context))?;
    ok!(cx, cuStreamGetGreenCtx(CUstream::NULL, &mut green))?;
    ensure_eq!(green, a.green, "default stream with the green context current");
    ok!(cx, cuMemsetD32Async(word, 7, 1, CUstream::NULL))?;
    gpu.sync(CUstream::NULL)?;
    gpu.enter()?;
    ensure_eq!(gpu.word(word)?, 7, "word");
    Ok(())
}

fn work_runs_on_its_part(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a] = Green::some::<1>(cx)?;
    let function = gpu.function(gpu.module(kernels::MULTIPROCESSORS)?, c"where")?;
    let blocks = 264;
    let places = gpu.zeroed(4 * (blocks as usize + 1))?;
    let args = Args::new().with(places).with(50u32);
    let seen = |stream| {
        gpu.launch(function, Shape::of(blocks, 32), stream, &args)?;
        gpu.sync(stream)?;
        let mut found = gpu.read::<u32>(places, blocks as usize)?;
        found.sort_unstable();
        found.dedup();
        Ok::<_, Stop>(found.len())
    };
    ensure_eq!(seen(a.stream)?, 8, "multiprocessors that blocks ran on in the green context");
    ensure!(seen(gpu.stream()?)? > 8, "blocks of the primary context run on more");
    let launch = |blocks: u32| {
        cu!(
            cx,
            cuLaunchCooperativeKernel(
                function,
                blocks,
                1,
                1,
                1024,
                1,
                1,
                0,
                a.stream,
                args.pointers().as_mut_ptr()
            )
        )
    };
    ensure_eq!(launch(16), CUresult::CUDA_SUCCESS, "a cooperative grid that fits 8 multiprocessors");
    let too_large = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    ensure_eq!(launch(17), too_large, "a cooperative grid that does not fit 8 multiprocessors");
    gpu.sync(a.stream)
}

fn primary_and_green_share(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a, b] = Green::some::<2>(cx)?;
    let primary = gpu.kernel(c"store_one")?;
    ok!(cx, cuCtxSetCurrent(a.context))?;
    let (module, memory) = (gpu.module(kernels::BASIC)?, gpu.alloc(16)?);
    let green = gpu.function(module, c"store_one")?;
    gpu.enter()?;
    let stream = gpu.stream()?;
    // Functions and memory of one are good in the other.
    for (at, function, stream) in [(0u64, primary, a.stream), (4, green, stream), (8, green, b.stream)] {
        gpu.launch(function, Shape::ONE, stream, &Args::new().with(memory + at).with(at as u32 + 1))?;
        gpu.sync(stream)?;
    }
    ensure_eq!(gpu.read::<u32>(memory, 3)?, [1, 5, 9], "words");
    // Memory that was allocated with the green context current outlives it.
    ok!(cx, cuGreenCtxDestroy(a.green))?;
    ensure_eq!(gpu.read::<u32>(memory, 3)?, [1, 5, 9], "words after the end");
    ok!(cx, cuMemFree(memory))
}

fn events(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a] = Green::some::<1>(cx)?;
    let (word, other) = (gpu.zeroed(8)?, gpu.stream()?);
    // A primary's event on a green stream.
    let event = gpu.recorded(a.stream)?;
    gpu.finishes(event, "an event on a green stream")?;
    // Recorded on the context: after all that its streams have.
    let (done, later) = (gpu.event()?, gpu.event()?);
    let gate = gpu.gate(a.stream)?;
    ok!(cx, cuGreenCtxRecordEvent(a.green, done))?;
    gpu.stays_pending(done, "an event recorded on a green context with a gated stream")?;
    gate.open();
    gpu.finishes(done, "the event of the green context")?;
    // Waited for by the context: before all that its streams get from now on.
    let gate = gpu.gate(other)?;
    ok!(cx, cuEventRecord(done, other))?;
    ok!(cx, cuGreenCtxWaitEvent(a.green, done))?;
    ok!(cx, cuMemsetD32Async(word, 3, 1, a.stream))?;
    ok!(cx, cuEventRecord(later, a.stream))?;
    gpu.stays_pending(later, "work of a green context that waits for a gated event")?;
    gate.open();
    gpu.finishes(later, "that work")?;
    ensure_eq!(gpu.word(word)?, 3, "word");
    Ok(())
}

/// Whether the call, on another thread with this context current, returns while the stream is held.
fn returns_early(gpu: &Gpu<'_>, context: CUcontext, held: CUstream) -> Check<bool> {
    let gate = gpu.gate(held)?;
    let (cx, over) = (gpu.cx(), AtomicBool::new(false));
    threads::scope(|scope| {
        let over = &over;
        let other = scope.spawn(move || {
            ok!(cx, cuCtxSetCurrent(context))?;
            ok!(cx, cuCtxSynchronize())?;
            over.store(true, Ordering::SeqCst);
            Ok(())
        });
        let end = threads::now() + A_WHILE;
        while !over.load(Ordering::SeqCst) && threads::now() < end {
            threads::sleep(std::time::Duration::from_millis(1));
        }
        let early = over.load(Ordering::SeqCst);
        gate.open();
        other.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))?;
        Ok(early)
    })
}

fn synchronisation_is_their_own(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a, b] = Green::some::<2>(cx)?;
    let primary = gpu.stream()?;
    ensure!(returns_early(&gpu, a.context, primary)?, "a green context waits for the primary's streams");
    ensure!(returns_early(&gpu, a.context, b.stream)?, "a green context waits for another's streams");
    ensure!(!returns_early(&gpu, a.context, a.stream)?, "a green context does not wait for its own stream");
    ensure!(!returns_early(&gpu, gpu.context, a.stream)?, "the primary does not wait for a green context");
    Ok(())
}

fn captures_refuse_events(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a] = Green::some::<1>(cx)?;
    let event = gpu.recorded(gpu.stream()?)?;
    let (relaxed, mut graph) = (CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, CUgraph::NULL);
    let dead = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    ok!(cx, cuStreamBeginCapture(a.stream, relaxed))?;
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuGreenCtxRecordEvent(a.green, event))?;
    ensure_eq!(cu!(cx, cuStreamEndCapture(a.stream, &mut graph)), dead, "end of the capture");
    ok!(cx, cuStreamBeginCapture(a.stream, relaxed))?;
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuGreenCtxWaitEvent(a.green, event))?;
    ensure_eq!(cu!(cx, cuStreamEndCapture(a.stream, &mut graph)), dead, "end of the capture");
    Ok(())
}

fn ends(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let [a] = Green::some::<1>(cx)?;
    let word = gpu.zeroed(4)?;
    ok!(cx, cuMemsetD32Async(word, 5, 1, a.stream))?;
    gpu.sync(a.stream)?;
    ok!(cx, cuGreenCtxDestroy(a.green))?;
    ensure_eq!(gpu.word(word)?, 5, "word");
    ok!(cx, cuCtxSynchronize())?;
    // A green context is a user of the primary one.
    let [b] = Green::some::<1>(cx)?;
    let (mut flags, mut active) = (0, 9);
    ok!(cx, cuDevicePrimaryCtxRelease(gpu.device))?;
    ok!(cx, cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active))?;
    ensure_eq!(active, 1, "the primary context while a green one lives");
    ok!(cx, cuGreenCtxDestroy(b.green))?;
    ok!(cx, cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active))?;
    ensure_eq!(active, 0, "the primary context after its last user");
    Ok(())
}
