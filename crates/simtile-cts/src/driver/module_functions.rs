//! Functions: attributes, parameters, occupancy.

use crate::frame::{Check, Cx};
use crate::gpu::Gpu;
use crate::{code, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::CUfunction_attribute as Attr;
use simtile_driver::sys::*;
use std::ffi::CStr;

crate::frame::registry::tests! { Driver, "functions";
    attributes,
    attributes_of_restricted_kernels,
    unknown_attribute,
    dynamic_shared_memory_limit,
    read_only_attributes,
    cache_config,
    module_of_a_function,
    name_of_a_function,
    parameters,
    loaded_state,
    kernel_attributes,
    kernel_parameters,
    occupancy,
    occupancy_of_the_impossible,
    best_block_size,
    shared_memory_left_for_a_block,
}

fn attribute(gpu: &Gpu<'_>, function: CUfunction, attribute: Attr) -> Check<i32> {
    let mut value = i32::MIN;
    ok!(gpu, cuFuncGetAttribute(&mut value, attribute, function))?;
    Ok(value)
}

fn attributes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let empty = gpu.function(module, c"empty")?;
    let get = |function, what| attribute(&gpu, function, what);
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    ensure_eq!(get(empty, Attr::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?, most, "threads per block");
    ensure_eq!(get(empty, Attr::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?, 0, "static shared memory of none");
    ensure_eq!(get(empty, Attr::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?, 0, "local memory of none");
    let registers = get(empty, Attr::CU_FUNC_ATTRIBUTE_NUM_REGS)?;
    ensure!((0..=255).contains(&registers), "{registers} registers");
    ensure_eq!(get(empty, Attr::CU_FUNC_ATTRIBUTE_PTX_VERSION)?, 70, "virtual architecture of sm_70 PTX");
    let (major, minor) = cx.capability()?;
    let binary = get(empty, Attr::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?;
    ensure!(binary / 10 == major && binary % 10 <= minor, "binary version {binary} on {major}.{minor}");
    let fixed = gpu.function(module, c"static_shared")?;
    ensure_eq!(get(fixed, Attr::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?, 1024, "static shared memory");
    let local = gpu.function(module, c"local_memory")?;
    ensure!(
        get(local, Attr::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)? >= 4096,
        "local memory below what is declared"
    );
    ensure_eq!(
        get(empty, Attr::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
        gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        "dynamic shared memory without opt-in"
    );
    Ok(())
}

fn attributes_of_restricted_kernels(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    // `.maxntid` bounds the attribute, `.reqntid` does not.
    let all = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    for (name, most) in [(c"at_most_64", 64), (c"exactly_32_2", all)] {
        let threads =
            attribute(&gpu, gpu.function(module, name)?, Attr::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        ensure_eq!(threads, most, "threads per block of {name:?}");
    }
    Ok(())
}

fn unknown_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    let mut value = 0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncGetAttribute(&mut value, Attr(9999), empty))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncSetAttribute(empty, Attr(9999), 0))
}

fn dynamic_shared_memory_limit(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"dynamic_shared")?;
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let what = Attr::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    ok!(cx, cuFuncSetAttribute(function, what, most))?;
    ensure_eq!(attribute(&gpu, function, what)?, most, "limit set to the device's");
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncSetAttribute(function, what, most + 1))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncSetAttribute(function, what, -1))?;
    ensure_eq!(attribute(&gpu, function, what)?, most, "limit after refused changes");
    // Static shared memory counts too.
    let fixed = gpu.kernel(c"static_shared")?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncSetAttribute(fixed, what, most))?;
    ok!(cx, cuFuncSetAttribute(fixed, what, most - 1024))
}

fn read_only_attributes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncSetAttribute(empty, Attr::CU_FUNC_ATTRIBUTE_NUM_REGS, 10))
}

fn cache_config(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    ok!(cx, cuFuncSetCacheConfig(empty, CUfunc_cache::CU_FUNC_CACHE_PREFER_L1))?;
    ok!(cx, cuFuncSetCacheConfig(empty, CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncSetCacheConfig(empty, CUfunc_cache(99)))
}

fn module_of_a_function(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let mut found = CUmodule::NULL;
    ok!(cx, cuFuncGetModule(&mut found, gpu.function(module, c"fill")?))?;
    ensure_eq!(found, module, "module of a function");
    Ok(())
}

fn name_of_a_function(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut name = std::ptr::null();
    ok!(cx, cuFuncGetName(&mut name, gpu.kernel(c"geometry")?))?;
    // SAFETY: the driver returned a NUL-terminated name that lives as long as the module.
    ensure_eq!(unsafe { CStr::from_ptr(name) }, c"geometry", "name of a function");
    Ok(())
}

/// Offset and size of the parameters of `arguments`.
const LAYOUT: [(usize, usize); 7] = [(0, 8), (8, 1), (10, 2), (12, 4), (16, 8), (24, 4), (32, 8)];

fn parameters(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"arguments")?;
    let (mut offset, mut size) = (0, 0);
    for (index, &expected) in LAYOUT.iter().enumerate() {
        ok!(cx, cuFuncGetParamInfo(function, index, &mut offset, &mut size))?;
        ensure_eq!((offset, size), expected, "offset and size of parameter {index}");
    }
    ok!(cx, cuFuncGetParamInfo(function, 1, &mut offset, std::ptr::null_mut()))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuFuncGetParamInfo(function, 7, &mut offset, &mut size))?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuFuncGetParamInfo(gpu.kernel(c"empty")?, 0, &mut offset, &mut size)
    )
}

fn loaded_state(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.kernel(c"fill")?;
    ok!(cx, cuFuncLoad(function))?;
    let mut state = CUfunctionLoadingState(99);
    ok!(cx, cuFuncIsLoaded(&mut state, function))?;
    ensure_eq!(state, CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED, "state after loading");
    Ok(())
}

fn kernel(gpu: &Gpu<'_>, name: &CStr) -> Check<CUkernel> {
    let mut library = CUlibrary::NULL;
    ok!(
        gpu,
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
    let mut kernel = CUkernel::NULL;
    ok!(gpu, cuLibraryGetKernel(&mut kernel, library, name.as_ptr()))?;
    Ok(kernel)
}

fn kernel_attributes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let kernel = kernel(&gpu, c"static_shared")?;
    let mut value = -1;
    ok!(cx, cuKernelGetAttribute(&mut value, Attr::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, gpu.device))?;
    ensure_eq!(value, 1024, "static shared memory of a kernel");
    let what = Attr::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // The block's own 1 KiB is not for it.
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let some = (most - 1024).min(60_000);
    ok!(cx, cuKernelSetAttribute(what, some, kernel, gpu.device))?;
    ok!(cx, cuKernelGetAttribute(&mut value, what, kernel, gpu.device))?;
    ensure_eq!(value, some, "dynamic shared memory limit of a kernel");
    ok!(cx, cuKernelSetCacheConfig(kernel, CUfunc_cache::CU_FUNC_CACHE_PREFER_SHARED, gpu.device))
}

fn kernel_parameters(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let kernel = kernel(&gpu, c"arguments")?;
    for (index, &expected) in LAYOUT.iter().enumerate() {
        let (mut offset, mut size) = (0, 0);
        ok!(cx, cuKernelGetParamInfo(kernel, index, &mut offset, &mut size))?;
        ensure_eq!((offset, size), expected, "offset and size of parameter {index}");
    }
    Ok(())
}

fn active(gpu: &Gpu<'_>, function: CUfunction, threads: i32, shared: usize) -> Check<i32> {
    let mut blocks = -1;
    ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared))?;
    Ok(blocks)
}

fn occupancy(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    let threads = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
    let blocks = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?;
    // An empty kernel is bounded by threads and blocks alone.
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    for size in [32, 64, 256, most] {
        ensure_eq!(
            active(&gpu, empty, size, 0)?,
            (threads / size).min(blocks),
            "blocks of {size} threads of an empty kernel"
        );
    }
    let mut with_flags = -1;
    ok!(
        cx,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            &mut with_flags,
            empty,
            256,
            0,
            CUoccupancy_flags::CU_OCCUPANCY_DEFAULT.0
        )
    )?;
    ensure_eq!(with_flags, active(&gpu, empty, 256, 0)?, "the same with flags");
    // Shared memory bounds: twice as much, at most half as many blocks.
    let room = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?;
    let (little, much) = (room as usize / 3, room as usize / 6 * 5);
    let (some, more) = (active(&gpu, empty, 32, little)?, active(&gpu, empty, 32, much)?);
    ensure!(
        0 < more && more <= some,
        "{some} blocks with {little} bytes, {more} with {much} of shared memory"
    );
    Ok(())
}

fn occupancy_of_the_impossible(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let mut blocks = -1;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, gpu.function(module, c"empty")?, 0, 0)
    )?;
    // Too large a block fits no time.
    ensure_eq!(active(&gpu, gpu.function(module, c"empty")?, 1 << 20, 0)?, 0, "blocks of 2^20 threads");
    ensure_eq!(
        active(&gpu, gpu.function(module, c"empty")?, 32, 1 << 30)?,
        0,
        "blocks with 1 GiB of shared memory"
    );
    // The kernel's own limit is not looked at.
    let (bounded, free) = (gpu.function(module, c"at_most_64")?, gpu.function(module, c"empty")?);
    ensure_eq!(
        active(&gpu, bounded, 128, 0)?,
        active(&gpu, free, 128, 0)?,
        "blocks above the kernel's limit"
    );
    Ok(())
}

fn best_block_size(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let (mut grid, mut block) = (0, 0);
    ok!(
        cx,
        cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, gpu.function(module, c"empty")?, None, 0, 0)
    )?;
    ensure!((32..=1024).contains(&block) && block % 32 == 0, "block of {block} threads");
    let sms = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let per_sm = active(&gpu, gpu.function(module, c"empty")?, block, 0)?;
    ensure_eq!(grid, sms * per_sm, "grid that fills the device");
    ok!(
        cx,
        cuOccupancyMaxPotentialBlockSize(
            &mut grid,
            &mut block,
            gpu.function(module, c"at_most_64")?,
            None,
            0,
            0
        )
    )?;
    ensure!(block <= 64, "block of {block} threads for a kernel of at most 64");
    ok!(
        cx,
        cuOccupancyMaxPotentialBlockSize(
            &mut grid,
            &mut block,
            gpu.function(module, c"empty")?,
            None,
            0,
            128
        )
    )?;
    ensure!(block <= 128, "block of {block} threads with a limit of 128");
    Ok(())
}

fn shared_memory_left_for_a_block(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    let left = |blocks| -> Check<usize> {
        let mut bytes = 0;
        ok!(cx, cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, empty, blocks, 128))?;
        Ok(bytes)
    };
    let (one, four) = (left(1)?, left(4)?);
    ensure!(0 < four && four <= one, "{one} bytes for one block, {four} for each of four");
    Ok(())
}
