//! Calls that wait for everything a context has queued, and stop other threads' launches meanwhile (driver-facts,
//! *Queues and blocking*: whole-context stalls, local memory).

use super::blocking::{HostHold, STILL, blocks, none_blocks, ready_kernel, set_within};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Args, Gpu, Shape};
use crate::{ensure, kernels, ok};
use simtile_driver::sys::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

crate::frame::registry::tests! { Driver, "stalls";
    freeing_device_memory,
    freeing_pinned_memory,
    unregistering_host_memory,
    setting_a_limit,
    loading_a_module,
    loading_a_library,
    first_launch_with_more_local_memory,
    unloading_waits_but_lets_launches_pass,
    pending_waits_for_events_count,
    pending_waits_for_values_count,
    pending_host_functions_count,
    the_rest_does_not_wait needs [Need::POOLS],
    a_raised_stack_limit_spares_the_first_launch,
    a_launch_before_spares_the_next,
}

/// Whether the call waited for a gated stream, and whether another thread's launch on an idle stream waited meanwhile.
fn stall(gpu: &Gpu<'_>, call: impl FnOnce() -> Check + Send) -> Check<(bool, bool)> {
    let empty = ready_kernel(gpu)?;
    let (gated, idle) = (gpu.stream()?, gpu.stream()?);
    let gate = gpu.gate(gated)?;
    let returned = AtomicBool::new(false);
    threads::scope(|scope| {
        let caller = scope.spawn(|| {
            let check = gpu.enter().and_then(|()| call());
            returned.store(true, Ordering::SeqCst);
            check
        });
        let waited = !set_within(&returned, STILL);
        let held = blocks(gpu, || gpu.launch(empty, Shape::ONE, idle, &Args::new()), || gate.open());
        caller.join().unwrap_or_else(|_| Err(Stop::fail("the calling thread panicked")))?;
        Ok((waited, held?))
    })
}

/// The call waits for everything, and holds launches up.
fn stops_everything(gpu: &Gpu<'_>, call: impl FnOnce() -> Check + Send) -> Check {
    let (waited, held) = stall(gpu, call)?;
    ensure!(waited, "the call did not wait for a gated stream");
    ensure!(held, "another thread's launch was not held up by it");
    Ok(())
}

fn freeing_device_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let memory = gpu.alloc(1 << 20)?;
    stops_everything(&gpu, || ok!(cx, cuMemFree(memory)))
}

fn freeing_pinned_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let memory = gpu.pinned(1024)?;
    stops_everything(&gpu, || ok!(cx, cuMemFreeHost(memory.host())))
}

fn unregistering_host_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    // Whole pages.
    let address = Box::leak(vec![0u8; 3 * 4096].into_boxed_slice()).as_mut_ptr().expose_provenance();
    let page = address.next_multiple_of(4096);
    let pointer = || std::ptr::with_exposed_provenance_mut::<c_void>(page);
    ok!(cx, cuMemHostRegister(pointer(), 4096, 0))?;
    stops_everything(&gpu, || ok!(cx, cuMemHostUnregister(pointer())))
}

fn setting_a_limit(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    stops_everything(&gpu, || ok!(cx, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 8192)))
}

fn loading_a_module(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    stops_everything(&gpu, || gpu.module(kernels::BASIC).map(drop))
}

/// Up to its first function: an H200 puts the library into the context only then.
fn loading_a_library(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    stops_everything(&gpu, || {
        let (mut library, mut kernel, mut function) = (CUlibrary::NULL, CUkernel::NULL, CUfunction::NULL);
        ok!(
            cx,
            cuLibraryLoadData(
                &mut library,
                kernels::BASIC.as_ptr().cast(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0
            )
        )?;
        ok!(cx, cuLibraryGetKernel(&mut kernel, library, c"store_one".as_ptr()))?;
        ok!(cx, cuKernelGetFunction(&mut function, kernel))
    })
}

fn first_launch_with_more_local_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, out, local) = (gpu.stream()?, gpu.zeroed(4)?, gpu.kernel(c"local_memory")?);
    let args = || Args::new().with(out).with(7u32);
    stops_everything(&gpu, || gpu.launch(local, Shape::ONE, stream, &args()))?;
    gpu.sync(stream)?;
    ensure!(gpu.word(out)? == 21, "the kernel did not run");
    Ok(())
}

fn unloading_waits_but_lets_launches_pass(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let (waited, held) = stall(&gpu, || ok!(cx, cuModuleUnload(module)))?;
    ensure!(waited, "the unload did not wait for a gated stream");
    ensure!(!held, "another thread's launch was held up by an unload");
    Ok(())
}

/// What is pending belongs to the context only by a wait: a stream waits for the event of another context, whose stream a
/// host function holds.
fn pending_waits_for_events_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, memory) = (gpu.stream()?, gpu.alloc(4096)?);
    let mut other = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut other, 0, gpu.device))?;
    let theirs = gpu.stream()?;
    let hold = HostHold::new(&gpu, theirs)?;
    let event = gpu.recorded(theirs)?;
    gpu.enter()?;
    ok!(cx, cuStreamWaitEvent(stream, event, 0))?;
    let waited = blocks(&gpu, || ok!(cx, cuMemFree(memory)), || drop(hold))?;
    ensure!(waited, "a free did not wait for a stream that waits for an event");
    Ok(())
}

fn pending_waits_for_values_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, memory, word) = (gpu.stream()?, gpu.alloc(4096)?, gpu.pinned(1)?);
    let equal = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ.0;
    ok!(cx, cuStreamWaitValue32(stream, word.device, 1, equal))?;
    let waited = blocks(&gpu, || ok!(cx, cuMemFree(memory)), || word.set(0, 1))?;
    ensure!(waited, "a free did not wait for a stream that waits for a value");
    Ok(())
}

fn pending_host_functions_count(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, memory) = (gpu.stream()?, gpu.alloc(4096)?);
    let hold = HostHold::new(&gpu, stream)?;
    let waited = blocks(&gpu, || ok!(cx, cuMemFree(memory)), || drop(hold))?;
    ensure!(waited, "a free did not wait for a host function");
    Ok(())
}

fn the_rest_does_not_wait(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (gated, other, event, module) =
        (gpu.stream()?, gpu.stream()?, gpu.event()?, gpu.module(kernels::BASIC)?);
    let word = gpu.zeroed(4)?;
    let (mut pooled, mut pooled_too, mut pool) = (0, 0, CUmemoryPool::NULL);
    ok!(cx, cuMemAllocAsync(&mut pooled, 4096, other))?;
    ok!(cx, cuMemAllocAsync(&mut pooled_too, 4096, other))?;
    ok!(cx, cuDeviceGetDefaultMemPool(&mut pool, gpu.device))?;
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    ok!(cx, cuStreamBeginCapture(other, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
    ok!(cx, cuMemsetD32Async(word, 6, 1, other))?;
    ok!(cx, cuStreamEndCapture(other, &mut graph))?;
    ok!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    gpu.sync(other)?;
    let gate = gpu.gate(gated)?;
    let gpu = &gpu;
    none_blocks(
        gpu,
        vec![
            ("cuMemFreeAsync", Box::new(move || ok!(cx, cuMemFreeAsync(pooled, other)))),
            ("cuMemFree of pool memory", Box::new(move || ok!(cx, cuMemFree(pooled_too)))),
            ("cuMemAlloc", Box::new(move || gpu.alloc(4096).map(drop))),
            ("cuMemHostAlloc", Box::new(move || gpu.pinned(1024).map(drop))),
            ("cuModuleGetFunction", Box::new(move || gpu.function(module, c"store_one").map(drop))),
            (
                "cuGraphInstantiate",
                Box::new(move || {
                    let mut second = CUgraphExec::NULL;
                    ok!(cx, cuGraphInstantiateWithFlags(&mut second, graph, 0))
                }),
            ),
            ("cuGraphExecDestroy", Box::new(move || ok!(cx, cuGraphExecDestroy(exec)))),
            ("cuEventDestroy", Box::new(move || ok!(cx, cuEventDestroy(event)))),
            ("cuStreamDestroy", Box::new(move || ok!(cx, cuStreamDestroy(other)))),
            ("cuMemPoolTrimTo", Box::new(move || ok!(cx, cuMemPoolTrimTo(pool, 0)))),
        ],
        || gate.open(),
    )?;
    gpu.sync(gated)
}

/// Whether the first or next launch of the kernel with local memory waits for a gated stream.
fn launch_waits(gpu: &Gpu<'_>, local: CUfunction, out: CUdeviceptr) -> Check<bool> {
    let (gated, stream) = (gpu.stream()?, gpu.stream()?);
    let gate = gpu.gate(gated)?;
    let launch = || gpu.launch(local, Shape::ONE, stream, &Args::new().with(out).with(7u32));
    let waits = blocks(gpu, launch, || gate.open())?;
    gpu.finishes(gpu.recorded(stream)?, "the kernel with local memory")?;
    ensure!(gpu.word(out)? == 21, "the kernel did not run");
    Ok(waits)
}

fn a_raised_stack_limit_spares_the_first_launch(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    ok!(cx, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, 8192))?;
    let (local, out) = (gpu.kernel(c"local_memory")?, gpu.zeroed(4)?);
    ensure!(!launch_waits(&gpu, local, out)?, "the launch waited although the stack limit covers it");
    Ok(())
}

fn a_launch_before_spares_the_next(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, local, out) = (gpu.stream()?, gpu.kernel(c"local_memory")?, gpu.zeroed(4)?);
    gpu.launch(local, Shape::ONE, stream, &Args::new().with(out).with(1u32))?;
    gpu.finishes(gpu.recorded(stream)?, "the first launch")?;
    ensure!(!launch_waits(&gpu, local, out)?, "the second launch waited");
    Ok(())
}
