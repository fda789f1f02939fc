//! Stream-ordered allocation and memory pools.

use crate::frame::{Check, Cx, Need, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::CUmemPool_attribute as Attr;
use simtile_driver::sys::*;

const POOLS: Need =
    Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "memory pools");

crate::frame::registry::tests! { Driver, "pools";
    memory_is_ready_in_stream_order needs [POOLS],
    another_stream_follows_by_an_event needs [POOLS],
    freed_memory_stays_until_the_work_before_it_is_done needs [POOLS],
    free_on_another_stream needs [POOLS],
    free_without_a_stream needs [POOLS],
    free_of_ordinary_memory_in_stream_order needs [POOLS],
    free_twice needs [POOLS],
    free_of_a_stranger needs [POOLS],
    too_much needs [POOLS],
    used_memory_is_counted needs [POOLS],
    release_threshold needs [POOLS],
    trim_keeps_what_is_used needs [POOLS],
    created_pool needs [POOLS],
    created_pool_checks_its_properties needs [POOLS],
    reuse_attributes needs [POOLS],
    unknown_attribute needs [POOLS],
    default_pool_cannot_be_destroyed needs [POOLS],
    access_of_the_own_device needs [POOLS],
    many_small_allocations needs [POOLS],
    the_current_pool_serves_allocations_without_one needs [POOLS],
    one_stream_reuses_without_growing needs [POOLS],
}

/// A pool on the device's memory.
pub fn create(gpu: &Gpu<'_>) -> Check<CUmemoryPool> {
    let mut pool = CUmemoryPool::NULL;
    ok!(gpu, cuMemPoolCreate(&mut pool, &properties(gpu.device)))?;
    Ok(pool)
}

fn properties(device: CUdevice) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

fn alloc(gpu: &Gpu<'_>, bytes: usize, stream: CUstream) -> Check<CUdeviceptr> {
    let mut pointer = 0;
    ok!(gpu, cuMemAllocAsync(&mut pointer, bytes, stream))?;
    ensure!(pointer != 0, "stream-ordered memory is at null");
    Ok(pointer)
}

fn default_pool(gpu: &Gpu<'_>) -> Check<CUmemoryPool> {
    let mut pool = CUmemoryPool::NULL;
    ok!(gpu, cuDeviceGetDefaultMemPool(&mut pool, gpu.device))?;
    Ok(pool)
}

fn attribute(gpu: &Gpu<'_>, pool: CUmemoryPool, attribute: Attr) -> Check<u64> {
    let mut value = 0u64;
    ok!(gpu, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()))?;
    Ok(value)
}

fn memory_is_ready_in_stream_order(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let fill = gpu.kernel(c"fill")?;
    let gate = gpu.gate(stream)?;
    let n = 5000u32;
    let pointer = alloc(&gpu, n as usize * 4, stream)?;
    gpu.launch(fill, Shape::over(n), stream, &Args::new().with(pointer).with(n).with(21u32))?;
    gate.open();
    gpu.sync(stream)?;
    same("words", &gpu.read::<u32>(pointer, n as usize)?, &vec![21; n as usize])?;
    ok!(cx, cuMemFreeAsync(pointer, stream))?;
    gpu.sync(stream)
}

fn another_stream_follows_by_an_event(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let fill = gpu.kernel(c"fill")?;
    let pointer = alloc(&gpu, 4096, a)?;
    ok!(cx, cuStreamWaitEvent(b, gpu.recorded(a)?, 0))?;
    gpu.launch(fill, Shape::over(1024), b, &Args::new().with(pointer).with(1024u32).with(2u32))?;
    gpu.sync(b)?;
    same("words", &gpu.read::<u32>(pointer, 1024)?, &[2; 1024])?;
    ok!(cx, cuMemFreeAsync(pointer, b))?;
    gpu.sync(b)
}

fn freed_memory_stays_until_the_work_before_it_is_done(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let basic = gpu.module(crate::kernels::BASIC)?;
    let fill = gpu.function(basic, c"fill")?;
    let copy = gpu.function(basic, c"copy_one")?;
    let words = 1 << 18;
    let n = words as u32;
    let result = gpu.zeroed(4)?;
    let old = alloc(&gpu, words * 4, a)?;
    gpu.launch(fill, Shape::over(n), a, &Args::new().with(old).with(n).with(1u32))?;
    let gate = gpu.gate(a)?;
    gpu.launch(copy, Shape::ONE, a, &Args::new().with(old + 4000).with(result))?;
    ok!(cx, cuMemFreeAsync(old, a))?;
    // Whatever another stream gets meanwhile is not the memory that the kernel behind the gate reads.
    for _ in 0..4 {
        let new = alloc(&gpu, words * 4, b)?;
        gpu.launch(fill, Shape::over(n), b, &Args::new().with(new).with(n).with(2u32))?;
    }
    gpu.sync(b)?;
    gate.open();
    gpu.sync(a)?;
    ensure_eq!(gpu.word(result)?, 1, "word read from memory freed behind a gate");
    Ok(())
}

fn free_on_another_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let pointer = alloc(&gpu, 4096, a)?;
    ok!(cx, cuStreamWaitEvent(b, gpu.recorded(a)?, 0))?;
    ok!(cx, cuMemFreeAsync(pointer, b))?;
    gpu.sync(b)
}

fn free_without_a_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = alloc(&gpu, 4096, stream)?;
    gpu.sync(stream)?;
    ok!(cx, cuMemFree(pointer))
}

fn free_of_ordinary_memory_in_stream_order(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = gpu.alloc(4096)?;
    // Allowed since CUDA 11.2: any memory of cuMemAlloc may be freed in stream order.
    let code = cu!(cx, cuMemFreeAsync(pointer, stream));
    gpu.sync(stream)?;
    ensure!(
        code.is_ok() || code == CUresult::CUDA_ERROR_INVALID_VALUE,
        "cuMemFreeAsync of cuMemAlloc memory returned {code:?}"
    );
    Ok(())
}

fn free_twice(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = alloc(&gpu, 4096, stream)?;
    ok!(cx, cuMemFreeAsync(pointer, stream))?;
    gpu.sync(stream)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFreeAsync(pointer, stream))
}

fn free_of_a_stranger(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFreeAsync(0x1234_5600, stream))
}

fn too_much(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_OUT_OF_MEMORY], cuMemAllocAsync(&mut pointer, 1 << 46, stream))?;
    // The stream goes on.
    alloc(&gpu, 4096, stream)?;
    gpu.sync(stream)
}

fn used_memory_is_counted(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pool = create(&gpu)?;
    ensure_eq!(attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 0, "bytes used at first");
    let mut pointer = 0;
    ok!(cx, cuMemAllocFromPoolAsync(&mut pointer, 1 << 20, pool, stream))?;
    gpu.sync(stream)?;
    let used = attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    ensure!(used >= 1 << 20, "{used} bytes used with 1 MiB allocated");
    let reserved = attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    ensure!(reserved >= used, "{reserved} bytes reserved, {used} used");
    ok!(cx, cuMemFreeAsync(pointer, stream))?;
    gpu.sync(stream)?;
    ensure_eq!(attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 0, "bytes used after freeing");
    let high = attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
    ensure!(high >= used, "high mark {high}, {used} bytes were used");
    // A high mark may be reset to 0, that is to what is used now.
    let mut zero = 0u64;
    ok!(cx, cuMemPoolSetAttribute(pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut zero).cast()))?;
    ensure_eq!(attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?, 0, "high mark after its reset");
    Ok(())
}

fn release_threshold(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pool = create(&gpu)?;
    ensure_eq!(attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?, 0, "threshold at first");
    let mut all = u64::MAX;
    ok!(cx, cuMemPoolSetAttribute(pool, Attr::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut all).cast()))?;
    ensure_eq!(attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?, u64::MAX, "threshold set");
    let mut pointer = 0;
    ok!(cx, cuMemAllocFromPoolAsync(&mut pointer, 1 << 20, pool, stream))?;
    ok!(cx, cuMemFreeAsync(pointer, stream))?;
    gpu.sync(stream)?;
    let kept = attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    ensure!(kept >= 1 << 20, "{kept} bytes kept below the threshold");
    ok!(cx, cuMemPoolTrimTo(pool, 0))?;
    ensure_eq!(
        attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        0,
        "bytes kept after trimming"
    );
    Ok(())
}

fn trim_keeps_what_is_used(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pool = create(&gpu)?;
    let mut pointer = 0;
    ok!(cx, cuMemAllocFromPoolAsync(&mut pointer, 4096, pool, stream))?;
    ok!(cx, cuMemsetD32Async(pointer, 13, 1024, stream))?;
    gpu.sync(stream)?;
    ok!(cx, cuMemPoolTrimTo(pool, 0))?;
    same("words after trimming", &gpu.read::<u32>(pointer, 1024)?, &[13; 1024])
}

fn created_pool(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pool = create(&gpu)?;
    ensure!(pool != default_pool(&gpu)?, "a created pool is the default one");
    let mut pointer = 0;
    ok!(cx, cuMemAllocFromPoolAsync(&mut pointer, 4096, pool, stream))?;
    ok!(cx, cuMemFreeAsync(pointer, stream))?;
    gpu.sync(stream)?;
    ok!(cx, cuMemPoolDestroy(pool))
}

fn created_pool_checks_its_properties(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut pool = CUmemoryPool::NULL;
    let good = properties(gpu.device);
    let none = CUmemPoolProps { allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID, ..good };
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemPoolCreate(&mut pool, &none))?;
    let nowhere = CUmemLocation { id: 9999, ..good.location };
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE],
        cuMemPoolCreate(&mut pool, &CUmemPoolProps { location: nowhere, ..good })
    )
}

fn reuse_attributes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pool = create(&gpu)?;
    for reuse in [
        Attr::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        Attr::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        Attr::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        let mut value = 0i32;
        ok!(cx, cuMemPoolGetAttribute(pool, reuse, (&raw mut value).cast()))?;
        ensure_eq!(value, 1, "{reuse:?} at first");
        value = 0;
        ok!(cx, cuMemPoolSetAttribute(pool, reuse, (&raw mut value).cast()))?;
        value = 7;
        ok!(cx, cuMemPoolGetAttribute(pool, reuse, (&raw mut value).cast()))?;
        ensure_eq!(value, 0, "{reuse:?} after clearing it");
    }
    Ok(())
}

fn unknown_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pool = default_pool(&gpu)?;
    let mut value = 0u64;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemPoolGetAttribute(pool, Attr(99), (&raw mut value).cast()))
}

fn default_pool_cannot_be_destroyed(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED], cuMemPoolDestroy(default_pool(&gpu)?))?;
    let stream = gpu.stream()?;
    alloc(&gpu, 4096, stream)?;
    gpu.sync(stream)
}

fn access_of_the_own_device(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pool = create(&gpu)?;
    let mut location = properties(gpu.device).location;
    let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ok!(cx, cuMemPoolGetAccess(&mut flags, pool, &mut location))?;
    ensure_eq!(
        flags,
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        "access of the pool's own device"
    );
    let same = CUmemAccessDesc { location, flags };
    ok!(cx, cuMemPoolSetAccess(pool, &same, 1))?;
    // The owner's access cannot be taken away.
    let none = CUmemAccessDesc { flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE, ..same };
    code!(cx, [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE], cuMemPoolSetAccess(pool, &none, 1))
}

fn many_small_allocations(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut random = cx.random(3);
    let mut live = Vec::new();
    for round in 0..200u32 {
        let words = 1 + random.below(300) as usize;
        let pointer = alloc(&gpu, words * 4, stream)?;
        ok!(cx, cuMemsetD32Async(pointer, round, words, stream))?;
        live.push((pointer, round, words));
        if live.len() > 20 {
            let (pointer, ..) = live.swap_remove(random.below(20) as usize);
            ok!(cx, cuMemFreeAsync(pointer, stream))?;
        }
    }
    gpu.sync(stream)?;
    for (pointer, round, words) in live {
        same("words of a small allocation", &gpu.read::<u32>(pointer, words)?, &vec![round; words])?;
    }
    Ok(())
}

fn the_current_pool_serves_allocations_without_one(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, pool, default) = (gpu.stream()?, create(&gpu)?, default_pool(&gpu)?);
    let used = |pool| attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    let before = used(default)?;
    ok!(cx, cuDeviceSetMemPool(gpu.device, pool))?;
    let mine = alloc(&gpu, 1 << 20, stream)?;
    gpu.sync(stream)?;
    ensure_eq!(
        (used(pool)?, used(default)?),
        (1 << 20, before),
        "bytes used of the current and the default pool"
    );
    // The default one again: what was allocated stays where it is.
    ok!(cx, cuDeviceSetMemPool(gpu.device, default))?;
    let other = alloc(&gpu, 2 << 20, stream)?;
    gpu.sync(stream)?;
    ensure_eq!((used(pool)?, used(default)?), (1 << 20, before + (2 << 20)), "bytes used of both pools");
    for pointer in [mine, other] {
        ok!(cx, cuMemFreeAsync(pointer, stream))?;
    }
    gpu.sync(stream)?;
    ensure_eq!((used(pool)?, used(default)?), (0, before), "bytes used after freeing");
    Ok(())
}

/// What a stream frees it can have again at once: nothing waits, and the pool does not grow.
fn one_stream_reuses_without_growing(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, pool) = (gpu.stream()?, create(&gpu)?);
    let gate = gpu.gate(stream)?;
    for round in 0..50 {
        let mut pointer = 0;
        ok!(cx, cuMemAllocFromPoolAsync(&mut pointer, 48 << 20, pool, stream))?;
        ok!(cx, cuMemsetD32Async(pointer, round, 1024, stream))?;
        ok!(cx, cuMemFreeAsync(pointer, stream))?;
    }
    let reserved = attribute(&gpu, pool, Attr::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
    ensure!(reserved <= 2 * (48 << 20), "{reserved} bytes were reserved for 50 times 48 MiB, one at a time");
    gate.open();
    gpu.sync(stream)
}
