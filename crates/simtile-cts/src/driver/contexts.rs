//! Contexts: primary and created ones, what is current, limits.

use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "contexts";
    primary_is_one,
    primary_release_without_retain,
    primary_flags,
    primary_reset_forgets_memory,
    none_is_current_at_first,
    current_belongs_to_a_thread,
    push_and_pop,
    create_makes_current_and_destroy_pops,
    created_ones_differ,
    invalid_device,
    invalid_flags,
    scheduling_flags,
    device_of_the_current_one needs [Need::Devices(2)],
    api_version,
    limits,
    unknown_limit,
    priority_range,
    synchronize_waits_for_every_stream,
    explicit_handles_work_with_another_current needs [Need::POOLS],
    explicit_handles_work_with_none_current needs [Need::POOLS],
    event_needs_a_current_context,
    event_of_another_context_is_refused,
    destroyed_handles_are_refused needs [Need::Simulator("CUDA leaves the use of a destroyed handle undefined")],
}

fn retain(cx: &Cx) -> Check<CUcontext> {
    ok!(cx, cuInit(0))?;
    let mut context = CUcontext::NULL;
    ok!(cx, cuDevicePrimaryCtxRetain(&mut context, 0))?;
    Ok(context)
}

fn create(cx: &Cx, flags: CUctx_flags) -> Check<CUcontext> {
    ok!(cx, cuInit(0))?;
    let mut context = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut context, flags.0, 0))?;
    Ok(context)
}

fn current(cx: &Cx) -> Check<CUcontext> {
    let mut context = CUcontext(0x55);
    ok!(cx, cuCtxGetCurrent(&mut context))?;
    Ok(context)
}

fn primary_is_one(cx: &Cx) -> Check {
    let first = retain(cx)?;
    ensure!(!first.is_null(), "the primary context is null");
    ensure_eq!(retain(cx)?, first, "primary context retained twice");
    let (mut flags, mut active) = (0, 0);
    ok!(cx, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active))?;
    ensure_eq!(active, 1, "active while retained");
    ok!(cx, cuDevicePrimaryCtxRelease(0))?;
    ok!(cx, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active))?;
    ensure_eq!(active, 1, "active after one of two releases");
    ok!(cx, cuDevicePrimaryCtxRelease(0))?;
    ok!(cx, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active))?;
    ensure_eq!(active, 0, "active after both releases");
    Ok(())
}

fn primary_release_without_retain(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuDevicePrimaryCtxRelease(0))
}

fn primary_flags(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    ok!(cx, cuDevicePrimaryCtxSetFlags(0, CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC.0))?;
    let (mut flags, mut active) = (0, 0);
    ok!(cx, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active))?;
    ensure_eq!(
        flags & CUctx_flags::CU_CTX_SCHED_MASK.0,
        CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC.0,
        "scheduling flags of the primary context"
    );
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDevicePrimaryCtxSetFlags(0, 0x8000_0000))
}

fn primary_reset_forgets_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(4096)?;
    ok!(cx, cuDevicePrimaryCtxReset(0))?;
    let (mut flags, mut active) = (0, 1);
    ok!(cx, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active))?;
    ensure_eq!(active, 0, "active after a reset");
    let mut value = 0u32;
    let code = crate::cu!(
        cx,
        cuPointerGetAttribute(
            (&raw mut value).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            pointer
        )
    );
    ensure!(!code.is_ok(), "memory of a context that was reset is still known");
    Ok(())
}

fn none_is_current_at_first(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    ensure_eq!(current(cx)?, CUcontext::NULL, "current context of a fresh thread");
    let mut device = 0;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuCtxGetDevice(&mut device))?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuMemAlloc(&mut pointer, 16))?;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuCtxSynchronize())?;
    // Retaining the primary context makes nothing current.
    retain(cx)?;
    ensure_eq!(current(cx)?, CUcontext::NULL, "current context after retaining the primary one");
    Ok(())
}

fn current_belongs_to_a_thread(cx: &Cx) -> Check {
    let context = retain(cx)?;
    ok!(cx, cuCtxSetCurrent(context))?;
    threads::scope(|scope| {
        scope
            .spawn(|| {
                ensure_eq!(current(cx)?, CUcontext::NULL, "current context of another thread");
                ok!(cx, cuCtxSetCurrent(context))?;
                ensure_eq!(current(cx)?, context, "current context after setting it there");
                ok!(cx, cuCtxSetCurrent(CUcontext::NULL))
            })
            .join()
            .unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
    })?;
    ensure_eq!(current(cx)?, context, "current context after another thread changed its own");
    Ok(())
}

fn push_and_pop(cx: &Cx) -> Check {
    let primary = retain(cx)?;
    let mut popped = CUcontext::NULL;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuCtxPopCurrent(&mut popped))?;
    ok!(cx, cuCtxPushCurrent(primary))?;
    let created = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    ensure_eq!(current(cx)?, created, "current context after creating one");
    ok!(cx, cuCtxPushCurrent(primary))?;
    ensure_eq!(current(cx)?, primary, "current context after a push");
    for expected in [primary, created, primary] {
        ok!(cx, cuCtxPopCurrent(&mut popped))?;
        ensure_eq!(popped, expected, "popped context");
    }
    ensure_eq!(current(cx)?, CUcontext::NULL, "current context after all pops");
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuCtxPopCurrent(&mut popped))?;
    // Setting replaces the top of the stack, and null pops it.
    ok!(cx, cuCtxPushCurrent(primary))?;
    ok!(cx, cuCtxPushCurrent(primary))?;
    ok!(cx, cuCtxSetCurrent(created))?;
    ok!(cx, cuCtxSetCurrent(CUcontext::NULL))?;
    ensure_eq!(current(cx)?, primary, "current context after null replaced the top of two");
    Ok(())
}

fn create_makes_current_and_destroy_pops(cx: &Cx) -> Check {
    let context = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    ensure_eq!(current(cx)?, context, "current context after creating it");
    ok!(cx, cuCtxSynchronize())?;
    ok!(cx, cuCtxDestroy(context))?;
    ensure_eq!(current(cx)?, CUcontext::NULL, "current context after destroying it");
    Ok(())
}

fn created_ones_differ(cx: &Cx) -> Check {
    let primary = retain(cx)?;
    let first = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    let second = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    ensure!(first != second && first != primary && second != primary, "two contexts have the same handle");
    let mut ids = Vec::new();
    for context in [primary, first, second] {
        let mut id = 0;
        ok!(cx, cuCtxGetId(context, &mut id))?;
        ensure!(!ids.contains(&id), "two contexts have the id {id}");
        ids.push(id);
    }
    let mut id = 0;
    ok!(cx, cuCtxGetId(CUcontext::NULL, &mut id))?;
    ensure_eq!(id, ids[2], "id of the current context");
    Ok(())
}

fn invalid_device(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    let mut context = CUcontext::NULL;
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuDevicePrimaryCtxRetain(&mut context, 9999))?;
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuCtxCreate(&mut context, 0, 9999))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDevicePrimaryCtxRetain(std::ptr::null_mut(), 0))
}

fn invalid_flags(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    let mut context = CUcontext::NULL;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuCtxCreate(&mut context, 0x8000_0000, 0))
}

fn scheduling_flags(cx: &Cx) -> Check {
    create(cx, CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC)?;
    let mut flags = 0;
    ok!(cx, cuCtxGetFlags(&mut flags))?;
    ensure_eq!(
        flags & CUctx_flags::CU_CTX_SCHED_MASK.0,
        CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC.0,
        "scheduling flags"
    );
    ok!(cx, cuCtxSetFlags(CUctx_flags::CU_CTX_SCHED_YIELD.0))?;
    ok!(cx, cuCtxGetFlags(&mut flags))?;
    ensure_eq!(
        flags & CUctx_flags::CU_CTX_SCHED_MASK.0,
        CUctx_flags::CU_CTX_SCHED_YIELD.0,
        "scheduling flags after setting them"
    );
    Ok(())
}

fn device_of_the_current_one(cx: &Cx) -> Check {
    for ordinal in [1, 0] {
        let gpu = Gpu::on(cx, ordinal)?;
        let mut device = -1;
        ok!(cx, cuCtxGetDevice(&mut device))?;
        ensure_eq!(device, gpu.device, "device of the current context");
    }
    Ok(())
}

fn api_version(cx: &Cx) -> Check {
    let context = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    let mut version = 0;
    ok!(cx, cuCtxGetApiVersion(context, &mut version))?;
    ensure!(version >= 3010, "API version {version}");
    Ok(())
}

fn limits(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let get = |limit| -> Check<usize> {
        let mut value = 0;
        ok!(gpu, cuCtxGetLimit(&mut value, limit))?;
        Ok(value)
    };
    for limit in
        [CUlimit::CU_LIMIT_STACK_SIZE, CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE]
    {
        ensure!(get(limit)? > 0, "{limit:?} is 0");
    }
    // The driver may round up, never down.
    ok!(cx, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 5000))?;
    let stack = get(CUlimit::CU_LIMIT_STACK_SIZE)?;
    ensure!((5000..=8192).contains(&stack), "stack size {stack} after setting 5000");
    ok!(cx, cuCtxSetLimit(CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20))?;
    ensure!(get(CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE)? >= 2 << 20, "printf buffer smaller than set");
    Ok(())
}

fn unknown_limit(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut value = 0;
    code!(
        cx,
        [CUDA_ERROR_UNSUPPORTED_LIMIT, CUDA_ERROR_INVALID_VALUE],
        cuCtxGetLimit(&mut value, CUlimit(9999))
    )?;
    code!(cx, [CUDA_ERROR_UNSUPPORTED_LIMIT, CUDA_ERROR_INVALID_VALUE], cuCtxSetLimit(CUlimit(9999), 1))
}

fn priority_range(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let (mut least, mut greatest) = (99, 99);
    ok!(cx, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
    ensure_eq!(least, 0, "least priority");
    ensure!((-32..=0).contains(&greatest), "greatest priority {greatest}");
    ok!(cx, cuCtxGetStreamPriorityRange(std::ptr::null_mut(), std::ptr::null_mut()))
}

fn synchronize_waits_for_every_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let late = gpu.kernel(c"late_store")?;
    let words = gpu.zeroed(8)?;
    for (stream, place) in [(a, words), (b, words + 4)] {
        gpu.launch(late, Shape::ONE, stream, &Args::new().with(place).with(7u32).with(20_000u32))?;
    }
    ok!(cx, cuCtxSynchronize())?;
    // Queries only, no waiting: the work has to be over already.
    for stream in [a, b] {
        ok!(cx, cuStreamQuery(stream))?;
    }
    ensure_eq!(gpu.read::<u32>(words, 2)?, [7, 7], "words after synchronising the context");
    Ok(())
}

/// driver-facts, Order: launch, record, query, stream-ordered alloc and free on explicit handles.
fn explicit_handles(gpu: &Gpu<'_>, other: CUcontext) -> Check {
    gpu.enter()?;
    let stream = gpu.stream()?;
    let event = gpu.event()?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    ok!(gpu, cuCtxSetCurrent(other))?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(41u32))?;
    ok!(gpu, cuEventRecord(event, stream))?;
    gpu.finishes(event, "work on the stream of a context that is not current")?;
    ok!(gpu, cuStreamQuery(stream))?;
    ok!(gpu, cuStreamWaitEvent(stream, event, 0))?;
    let mut pointer = 0;
    ok!(gpu, cuMemAllocAsync(&mut pointer, 4096, stream))?;
    ok!(gpu, cuMemFreeAsync(pointer, stream))?;
    ok!(gpu, cuStreamSynchronize(stream))?;
    let mut now = CUcontext(1);
    ok!(gpu, cuCtxGetCurrent(&mut now))?;
    ensure_eq!(now, other, "current context afterwards");
    gpu.enter()?;
    ensure_eq!(gpu.word(word)?, 41, "word written meanwhile");
    Ok(())
}

fn explicit_handles_work_with_another_current(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let other = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    explicit_handles(&gpu, other)
}

fn explicit_handles_work_with_none_current(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    explicit_handles(&gpu, CUcontext::NULL)
}

fn event_needs_a_current_context(cx: &Cx) -> Check {
    retain(cx)?;
    let mut event = CUevent::NULL;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuEventCreate(&mut event, 0))?;
    let mut stream = CUstream::NULL;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuStreamCreate(&mut stream, 0))
}

fn event_of_another_context_is_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    let foreign = gpu.event()?;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuEventRecord(foreign, stream))?;
    gpu.enter()?;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuEventRecord(foreign, stream))?;
    // Waiting for it is fine: streams may wait for events of any context.
    ok!(cx, cuStreamWaitEvent(stream, foreign, 0))
}

fn destroyed_handles_are_refused(cx: &Cx) -> Check {
    let context = create(cx, CUctx_flags::CU_CTX_SCHED_AUTO)?;
    ok!(cx, cuCtxDestroy(context))?;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED], cuCtxSetCurrent(context))?;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED], cuCtxDestroy(context))?;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuCtxSetCurrent(CUcontext(0xdead_beef)))
}
