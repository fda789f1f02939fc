//! Host memory: pinned, registered, managed.

use crate::frame::{Check, Cx, Need, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::alloc::Layout;
use std::ffi::c_void;

const MANAGED: Need =
    Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, "managed memory");
pub(super) const CONCURRENT: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    "concurrent access to managed memory",
);

crate::frame::registry::tests! { Driver, "memory_host";
    pinned_alloc_and_free,
    pinned_flags,
    pinned_address_is_the_same_for_the_device,
    kernels_read_and_write_pinned_memory,
    pinned_free_of_a_stranger,
    register_and_unregister,
    register_twice,
    unregister_of_a_stranger,
    managed_is_shared needs [MANAGED],
    managed_flags needs [MANAGED],
    managed_prefetch needs [CONCURRENT],
    managed_advice needs [CONCURRENT],
}

fn pinned_alloc_and_free(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    for bytes in [1, 4096, 1 << 20] {
        let mut pointer = std::ptr::null_mut();
        ok!(cx, cuMemHostAlloc(&mut pointer, bytes, 0))?;
        ensure!(!pointer.is_null(), "{bytes} bytes of pinned memory are at null");
        // SAFETY: the driver allocated this many bytes here, and nobody else knows them yet.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0x5a, bytes) };
        ok!(cx, cuMemFreeHost(pointer))?;
    }
    Ok(())
}

fn pinned_flags(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let asked = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    let mut pointer = std::ptr::null_mut();
    ok!(cx, cuMemHostAlloc(&mut pointer, 4096, asked))?;
    let mut flags = 0;
    ok!(cx, cuMemHostGetFlags(&mut flags, pointer))?;
    // All pinned memory is portable with unified addressing; whether the driver says so depends on the flags of the
    // block that it cuts small allocations from.
    ensure_eq!(flags | CU_MEMHOSTALLOC_PORTABLE, asked, "flags of pinned memory");
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemHostAlloc(&mut pointer, 4096, 0x8000_0000))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemHostAlloc(std::ptr::null_mut(), 4096, 0))
}

fn pinned_address_is_the_same_for_the_device(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pinned = gpu.pinned(8)?;
    ensure_eq!(pinned.device, pinned.host() as u64, "device address of pinned memory");
    // An address inside it has one too.
    let mut device = 0;
    // SAFETY: 16 bytes into an allocation of 32.
    let inner = unsafe { pinned.host().cast::<u8>().add(16) };
    ok!(cx, cuMemHostGetDevicePointer(&mut device, inner.cast(), 0))?;
    ensure_eq!(device, pinned.device + 16, "device address inside pinned memory");
    let mut stranger = 0u64;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuMemHostGetDevicePointer(&mut device, (&raw mut stranger).cast(), 0)
    )
}

fn kernels_read_and_write_pinned_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let step = gpu.kernel(c"step")?;
    let pinned = gpu.pinned(300)?;
    for i in 0..300 {
        pinned.set(i, i as u32);
    }
    gpu.launch(step, Shape::over(300), stream, &Args::new().with(pinned.device).with(300u32).with(5u32))?;
    gpu.sync(stream)?;
    let expected: Vec<u32> = (0..300).map(|i| i * 3 + 5).collect();
    same("pinned words", &pinned.to_vec(), &expected)
}

fn pinned_free_of_a_stranger(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut stranger = 0u64;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFreeHost((&raw mut stranger).cast()))?;
    let device = gpu.alloc(4096)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFreeHost(std::ptr::without_provenance_mut(device as usize)))
}

/// Pages of ordinary host memory, leaked: the driver may know them to the end of the process.
fn pages(bytes: usize) -> *mut c_void {
    match Layout::from_size_align(bytes, 4096) {
        // SAFETY: the layout has a size.
        Ok(layout) if bytes > 0 => unsafe { std::alloc::alloc_zeroed(layout).cast() },
        _ => std::ptr::null_mut(),
    }
}

fn register_and_unregister(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let store = gpu.kernel(c"store_one")?;
    let memory = pages(8192);
    ok!(cx, cuMemHostRegister(memory, 8192, CU_MEMHOSTREGISTER_DEVICEMAP))?;
    let mut device = 0;
    ok!(cx, cuMemHostGetDevicePointer(&mut device, memory, 0))?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(device + 4096).with(123u32))?;
    gpu.sync(stream)?;
    // SAFETY: inside the pages, and the device has finished.
    let word = unsafe { memory.cast::<u32>().add(1024).read_volatile() };
    ensure_eq!(word, 123, "word written into registered memory");
    ok!(cx, cuMemHostUnregister(memory))?;
    // It can be registered again.
    ok!(cx, cuMemHostRegister(memory, 8192, 0))?;
    ok!(cx, cuMemHostUnregister(memory))
}

fn register_twice(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let memory = pages(8192);
    ok!(cx, cuMemHostRegister(memory, 8192, 0))?;
    code!(cx, [CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED], cuMemHostRegister(memory, 8192, 0))?;
    ok!(cx, cuMemHostUnregister(memory))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemHostRegister(memory, 0, 0))
}

fn unregister_of_a_stranger(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    code!(
        cx,
        [CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_INVALID_VALUE],
        cuMemHostUnregister(pages(4096))
    )
}

const WORDS: usize = 4096;

fn managed(cx: &Cx) -> Check<CUdeviceptr> {
    let mut pointer = 0;
    ok!(cx, cuMemAllocManaged(&mut pointer, WORDS * 4, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0))?;
    Ok(pointer)
}

fn managed_is_shared(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let step = gpu.kernel(c"step")?;
    let pointer = managed(cx)?;
    let host = std::ptr::with_exposed_provenance_mut::<u32>(pointer as usize);
    for i in 0..WORDS {
        // SAFETY: managed memory is host memory while no kernel runs.
        unsafe { host.add(i).write_volatile(i as u32) };
    }
    let n = WORDS as u32;
    gpu.launch(step, Shape::over(n), stream, &Args::new().with(pointer).with(n).with(1u32))?;
    gpu.sync(stream)?;
    // SAFETY: as above; the kernel has finished.
    let found: Vec<u32> = (0..WORDS).map(|i| unsafe { host.add(i).read_volatile() }).collect();
    let expected: Vec<u32> = (0..n).map(|i| i * 3 + 1).collect();
    same("managed words", &found, &expected)?;
    ok!(cx, cuMemFree(pointer))
}

fn managed_flags(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAllocManaged(&mut pointer, 4096, 0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAllocManaged(&mut pointer, 4096, 0x100))?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuMemAllocManaged(&mut pointer, 0, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0)
    )
}

fn managed_prefetch(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = managed(cx)?;
    ok!(cx, cuMemsetD32(pointer, 6, WORDS))?;
    ok!(cx, cuMemPrefetchAsync(pointer, WORDS * 4, gpu.device, stream))?;
    ok!(cx, cuMemPrefetchAsync(pointer, WORDS * 4, CU_DEVICE_CPU, stream))?;
    gpu.sync(stream)?;
    same("words after prefetches", &gpu.read::<u32>(pointer, WORDS)?, &[6; WORDS])?;
    // Only managed memory moves.
    let device = gpu.alloc(4096)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemPrefetchAsync(device, 4096, gpu.device, stream))
}

fn managed_advice(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = managed(cx)?;
    let advise = |advice| ok!(cx, cuMemAdvise(pointer, WORDS * 4, advice, gpu.device));
    advise(CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY)?;
    advise(CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY)?;
    advise(CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAdvise(pointer, WORDS * 4, CUmem_advise(99), gpu.device))
}
