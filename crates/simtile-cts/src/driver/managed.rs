//! Managed memory: attachment to streams and to the host, prefetching and advice, with and without concurrent access.
//!
//! Where a device cannot share managed memory with the host (`CONCURRENT_MANAGED_ACCESS` is 0), the host touches it only after
//! it has waited for every kernel, or, for memory of one stream, for that stream's work. The tests keep to that, so they hold on
//! both kinds of devices.

use crate::frame::{Check, Cx, Need, Stop, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, ensure, ensure_eq, kernels, ok};
use simtile_driver::AccessMode;
use simtile_driver::sys::*;
use simtile_sim::ReportKind;

const MANAGED: Need =
    Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, "managed memory");

crate::frame::registry::tests! { Driver, "managed";
    attachments_that_there_are needs [MANAGED],
    memory_of_a_stream_is_used_there needs [MANAGED],
    the_host_uses_memory_of_an_idle_stream_beside_a_busy_one needs [MANAGED],
    memory_of_the_host_comes_back_to_devices needs [MANAGED],
    prefetching_needs_devices_that_share needs [MANAGED],
    advice_needs_devices_that_share needs [MANAGED],
    variables_of_modules needs [MANAGED],
    variables_of_libraries needs [MANAGED],
    a_host_that_does_not_wait_is_told needs [MANAGED, Need::Simulator("the host's accesses are told to it")],
    a_stream_that_touches_memory_of_another_is_told needs [MANAGED, Need::Simulator("undefined on a GPU that does not share")],
}

const GLOBAL: u32 = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
const HOST: u32 = CUmemAttach_flags::CU_MEM_ATTACH_HOST.0;
const SINGLE: u32 = CUmemAttach_flags::CU_MEM_ATTACH_SINGLE.0;
const WORDS: usize = 1024;

fn allocate(cx: &Cx, flags: u32) -> Check<CUdeviceptr> {
    let mut pointer = 0;
    ok!(cx, cuMemAllocManaged(&mut pointer, WORDS * 4, flags))?;
    Ok(pointer)
}

fn shares(gpu: &Gpu<'_>) -> Check<bool> {
    Ok(gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? != 0)
}

/// The host's view of managed memory.
struct Host(*mut u32);

impl Host {
    fn of(pointer: CUdeviceptr) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(pointer as usize))
    }

    fn fill(&self, first: u32) {
        // SAFETY: WORDS words of managed memory; the tests call this while the memory is the host's.
        (0..WORDS).for_each(|i| unsafe { self.0.add(i).write_volatile(first + i as u32) });
    }

    fn words(&self) -> Vec<u32> {
        // SAFETY: as above.
        (0..WORDS).map(|i| unsafe { self.0.add(i).read_volatile() }).collect()
    }
}

/// `x * 3 + 1` of every word.
fn step(gpu: &Gpu<'_>, function: CUfunction, pointer: CUdeviceptr, stream: CUstream) -> Check {
    let n = WORDS as u32;
    gpu.launch(function, Shape::over(n), stream, &Args::new().with(pointer).with(n).with(1u32))
}

fn stepped(first: u32) -> Vec<u32> {
    (first..first + WORDS as u32).map(|value| value * 3 + 1).collect()
}

fn attachments_that_there_are(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, pointer) = (gpu.stream()?, allocate(cx, GLOBAL)?);
    for flags in [SINGLE, HOST, GLOBAL] {
        ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, flags))?;
        ok!(cx, cuStreamAttachMemAsync(stream, pointer, WORDS * 4, flags))?;
    }
    gpu.sync(stream)?;
    if cx.simulator().is_none() {
        // An H200's driver crashes on one of these.
        return Ok(());
    }
    let invalid = |stream, pointer, bytes, flags| {
        code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamAttachMemAsync(stream, pointer, bytes, flags))
    };
    // One of them at a time, all of the memory, and no single default stream.
    invalid(stream, pointer, 0, 0)?;
    invalid(stream, pointer, 0, GLOBAL | HOST)?;
    invalid(stream, pointer, WORDS * 2, GLOBAL)?;
    invalid(stream, pointer + 4, 0, GLOBAL)?;
    invalid(CUstream::NULL, pointer, 0, SINGLE)?;
    let device = gpu.alloc(4096)?;
    invalid(stream, device, 0, GLOBAL)
}

fn memory_of_a_stream_is_used_there(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"step")?;
    let (stream, pointer) = (gpu.stream()?, allocate(cx, HOST)?);
    let host = Host::of(pointer);
    host.fill(5);
    ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, SINGLE))?;
    step(&gpu, function, pointer, stream)?;
    gpu.sync(stream)?;
    same("words of one stream", &host.words(), &stepped(5))?;
    ok!(cx, cuMemFree(pointer))
}

fn the_host_uses_memory_of_an_idle_stream_beside_a_busy_one(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"step")?;
    let (stream, busy, pointer) = (gpu.stream()?, gpu.stream()?, allocate(cx, GLOBAL)?);
    let other = gpu.zeroed(WORDS * 4)?;
    ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, SINGLE))?;
    gpu.sync(stream)?;
    let gate = gpu.gate(busy)?;
    step(&gpu, function, other, busy)?;
    let host = Host::of(pointer);
    host.fill(7);
    step(&gpu, function, pointer, stream)?;
    gpu.sync(stream)?;
    same("words beside a busy stream", &host.words(), &stepped(7))?;
    gate.open();
    gpu.sync(busy)
}

fn memory_of_the_host_comes_back_to_devices(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"step")?;
    let (stream, pointer) = (gpu.stream()?, allocate(cx, GLOBAL)?);
    ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, HOST))?;
    gpu.sync(stream)?;
    let host = Host::of(pointer);
    host.fill(11);
    ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, GLOBAL))?;
    step(&gpu, function, pointer, stream)?;
    gpu.sync(stream)?;
    same("words that were the host's", &host.words(), &stepped(11))
}

/// CUDA's manual: the device, and the stream's, must have concurrent managed access.
fn prefetching_needs_devices_that_share(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, pointer) = (gpu.stream()?, allocate(cx, GLOBAL)?);
    for to in [gpu.device, CU_DEVICE_CPU] {
        if shares(&gpu)? {
            ok!(cx, cuMemPrefetchAsync(pointer, WORDS * 4, to, stream))?;
        } else {
            code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuMemPrefetchAsync(pointer, WORDS * 4, to, stream))?;
        }
    }
    gpu.sync(stream)
}

fn advice_needs_devices_that_share(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = allocate(cx, GLOBAL)?;
    for advice in
        [CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY]
    {
        if shares(&gpu)? {
            ok!(cx, cuMemAdvise(pointer, WORDS * 4, advice, gpu.device))?;
        } else {
            code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuMemAdvise(pointer, WORDS * 4, advice, gpu.device))?;
        }
    }
    // These name no device that would have to.
    for advice in [CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY]
    {
        ok!(cx, cuMemAdvise(pointer, WORDS * 4, advice, gpu.device))?;
    }
    let advice = CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    ok!(cx, cuMemAdvise(pointer, WORDS * 4, advice, CU_DEVICE_CPU))
}

/// A variable with `.attribute(.managed)` has one address, which the host uses too. It goes with its module.
fn variables_of_modules(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::MANAGED)?;
    let (mut pointer, mut bytes) = (0, 0);
    ok!(cx, cuModuleGetGlobal(&mut pointer, &mut bytes, module, c"words".as_ptr()))?;
    ensure_eq!(bytes, WORDS * 4, "bytes of the variable");
    let mut managed = 0u32;
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
    ok!(cx, cuPointerGetAttribute((&raw mut managed).cast(), which, pointer))?;
    ensure_eq!(managed, 1, "whether the variable is managed");
    let host = Host::of(pointer);
    same("words at first", &host.words()[..6], &[5, 6, 7, 8, 0, 0])?;
    host.fill(100);
    let stream = gpu.stream()?;
    gpu.launch(gpu.function(module, c"bump")?, Shape::over(WORDS as u32), stream, &Args::new())?;
    gpu.sync(stream)?;
    let expected: Vec<u32> = (110..110 + WORDS as u32).collect();
    same("words that the host wrote and the kernel changed", &host.words(), &expected)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFree(pointer))?;
    ok!(cx, cuModuleUnload(module))
}

/// One for all contexts that the library is in.
fn variables_of_libraries(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (mut library, none) = (CUlibrary::NULL, std::ptr::null_mut());
    let image = kernels::MANAGED.as_ptr().cast();
    ok!(cx, cuLibraryLoadData(&mut library, image, none, none.cast(), 0, none.cast(), none.cast(), 0))?;
    let run = || {
        // A kernel puts the library into the context.
        let (mut kernel, mut function) = (CUkernel::NULL, CUfunction::NULL);
        ok!(cx, cuLibraryGetKernel(&mut kernel, library, c"bump".as_ptr()))?;
        ok!(cx, cuKernelGetFunction(&mut function, kernel))?;
        let stream = gpu.stream()?;
        gpu.launch(function, Shape::of(1, 4), stream, &Args::new())?;
        gpu.sync(stream)
    };
    let variable = || {
        let (mut pointer, mut bytes) = (0, 0);
        ok!(cx, cuLibraryGetManaged(&mut pointer, &mut bytes, library, c"words".as_ptr()))?;
        ensure_eq!(bytes, WORDS * 4, "bytes of the variable");
        Ok::<_, Stop>(pointer)
    };
    run()?;
    let pointer = variable()?;
    let (mut address, mut bytes) = (0, 0);
    code!(
        cx,
        [CUDA_ERROR_NOT_FOUND],
        cuLibraryGetManaged(&mut address, &mut bytes, library, c"plain".as_ptr())
    )?;
    let mut other = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut other, 0, gpu.device))?;
    run()?;
    ensure_eq!(variable()?, pointer, "address in another context");
    same("words that two contexts changed", &Host::of(pointer).words()[..6], &[25, 26, 27, 28, 0, 0])?;
    gpu.enter()?;
    ok!(cx, cuLibraryUnload(library))?;
    ok!(cx, cuCtxDestroy(other))
}

/// How many accesses of managed memory the simulator has objected to since the last look; other reports are a failure.
fn objections(cx: &Cx) -> Check<usize> {
    let reports = cx.simulator().map(simtile_sim::Simulator::take_reports).unwrap_or_default();
    ensure!(reports.iter().all(|report| report.kind == ReportKind::ManagedAccess), "{reports:?}");
    Ok(reports.len())
}

fn a_host_that_does_not_wait_is_told(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"step")?;
    let (stream, pointer, other) = (gpu.stream()?, allocate(cx, GLOBAL)?, gpu.zeroed(WORDS * 4)?);
    let driver = gpu.driver();
    let touches = || {
        let extras = driver.table().extras;
        // SAFETY: the extras of a table take its driver's state.
        let code = extras
            .map(|extras| unsafe { (extras.host_access)(driver.state(), pointer, 4, AccessMode::Write) });
        ensure_eq!(code, Some(CUresult::CUDA_SUCCESS), "an access of the host");
        objections(cx)
    };
    ensure_eq!(touches()?, 0, "objections before any work");
    let gate = gpu.gate(stream)?;
    step(&gpu, function, other, stream)?;
    ensure_eq!(touches()?, usize::from(!shares(&gpu)?), "objections while a kernel is under way");
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(touches()?, 0, "objections after the wait");
    Ok(())
}

fn a_stream_that_touches_memory_of_another_is_told(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, other, pointer) = (gpu.stream()?, gpu.stream()?, allocate(cx, GLOBAL)?);
    ok!(cx, cuStreamAttachMemAsync(stream, pointer, 0, SINGLE))?;
    gpu.sync(stream)?;
    ok!(cx, cuMemsetD32Async(pointer, 1, WORDS, other))?;
    gpu.sync(other)?;
    // Who touches what is known only where races are looked for.
    let races = cx.simulator().is_some_and(|simulator| simulator.config().checks.races);
    ensure_eq!(
        objections(cx)?,
        usize::from(races && !shares(&gpu)?),
        "objections to another stream's memset"
    );
    Ok(())
}
