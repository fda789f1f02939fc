//! Plain launches: geometry, arguments, memory of each kind.

use crate::frame::{Check, Cx, Stop, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::*;
use std::ffi::c_void;

crate::frame::registry::tests! { Driver, "launches";
    returns_before_the_work_is_done,
    geometry_in_three_dimensions,
    largest_block,
    wide_grid,
    arguments_of_every_width,
    arguments_are_taken_at_the_call,
    arguments_in_one_buffer,
    arguments_in_both_ways_are_refused,
    dynamic_shared_memory,
    dynamic_shared_memory_needs_opt_in,
    static_shared_memory,
    local_memory,
    default_streams,
    function_of_another_context,
}

fn returns_before_the_work_is_done(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let gate = gpu.gate(stream)?;
    for value in 1..=10u32 {
        gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(value))?;
    }
    ensure_eq!(gpu.word(word)?, 0, "word while the launches are gated");
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 10, "word after the last launch");
    Ok(())
}

fn geometry_in_three_dimensions(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let geometry = gpu.kernel(c"geometry")?;
    for (grid, block) in [
        ([1, 1, 1], [1, 1, 1]),
        ([3, 1, 1], [7, 1, 1]),
        ([2, 3, 4], [5, 3, 2]),
        ([1, 5, 1], [1, 1, 33]),
        ([7, 1, 2], [33, 2, 1]),
    ] {
        let n: usize = grid.iter().chain(&block).product::<u32>() as usize;
        let out = gpu.zeroed(n * 4 + 4)?;
        gpu.launch(geometry, Shape { grid, block, shared: 0 }, stream, &Args::new().with(out))?;
        gpu.sync(stream)?;
        let expected: Vec<u32> = (1..=n as u32).chain([0]).collect();
        same(&format!("grid {grid:?}, block {block:?}"), &gpu.read::<u32>(out, n + 1)?, &expected)?;
    }
    Ok(())
}

fn largest_block(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let geometry = gpu.kernel(c"geometry")?;
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32;
    for block in [[most, 1, 1], [1, most, 1], [most / 64, 1, 64], [32, most / 32, 1]] {
        let out = gpu.zeroed(4096)?;
        gpu.launch(geometry, Shape { grid: [1; 3], block, shared: 0 }, stream, &Args::new().with(out))?;
        gpu.sync(stream)?;
        let expected: Vec<u32> = (1..=most).collect();
        same(&format!("block {block:?}"), &gpu.read::<u32>(out, most as usize)?, &expected)?;
    }
    Ok(())
}

fn wide_grid(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let geometry = gpu.kernel(c"geometry")?;
    // Beyond the 65535 that the other two axes allow.
    let n = 70_001;
    let widest = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?;
    if widest < n as i32 {
        return Err(Stop::unsupported(format!(
            "the device's grids have at most {widest} blocks on the first axis"
        )));
    }
    let out = gpu.zeroed(n * 4)?;
    gpu.launch(geometry, Shape::of(n as u32, 1), stream, &Args::new().with(out))?;
    gpu.sync(stream)?;
    let expected: Vec<u32> = (1..=n as u32).collect();
    same("a grid of 70001 blocks", &gpu.read::<u32>(out, n)?, &expected)
}

/// The bytes that the kernel `arguments` writes for the arguments below.
fn written() -> Vec<u8> {
    let mut expected = vec![0u8; 32];
    expected[0] = 0x11;
    expected[2..4].copy_from_slice(&0x2233u16.to_le_bytes());
    expected[4..8].copy_from_slice(&0x4455_6677u32.to_le_bytes());
    expected[8..16].copy_from_slice(&0x8899_aabb_ccdd_eeffu64.to_le_bytes());
    expected[16..20].copy_from_slice(&1.5f32.to_le_bytes());
    expected[24..32].copy_from_slice(&(-2.25f64).to_le_bytes());
    expected
}

fn arguments_of_every_width(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"arguments")?;
    let out = gpu.zeroed(32)?;
    let args = Args::new()
        .with(out)
        .with(0x11u8)
        .with(0x2233u16)
        .with(0x4455_6677u32)
        .with(0x8899_aabb_ccdd_eeffu64)
        .with(1.5f32)
        .with(-2.25f64);
    gpu.launch(function, Shape::ONE, stream, &args)?;
    gpu.sync(stream)?;
    same("bytes written from the arguments", &gpu.read::<u8>(out, 32)?, &written())
}

fn arguments_are_taken_at_the_call(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let gate = gpu.gate(stream)?;
    let mut value = 5u32;
    let mut pointer = word;
    let mut pointers: [*mut c_void; 2] = [(&raw mut pointer).cast(), (&raw mut value).cast()];
    ok!(cx, cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, pointers.as_mut_ptr(), std::ptr::null_mut()))?;
    // What happens to the variables afterwards is nobody's business.
    std::hint::black_box(&mut value);
    value = 6;
    pointer = 0;
    std::hint::black_box((&mut value, &mut pointer));
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 5, "word written from an argument that changed after the launch");
    Ok(())
}

/// The keys of the `extra` list.
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

fn key(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

fn arguments_in_one_buffer(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"arguments")?;
    let out = gpu.zeroed(32)?;
    // As the kernel's parameters lie.
    let mut buffer = [0u8; 40];
    buffer[0..8].copy_from_slice(&out.to_le_bytes());
    buffer[8] = 0x11;
    buffer[10..12].copy_from_slice(&0x2233u16.to_le_bytes());
    buffer[12..16].copy_from_slice(&0x4455_6677u32.to_le_bytes());
    buffer[16..24].copy_from_slice(&0x8899_aabb_ccdd_eeffu64.to_le_bytes());
    buffer[24..28].copy_from_slice(&1.5f32.to_le_bytes());
    buffer[32..40].copy_from_slice(&(-2.25f64).to_le_bytes());
    let mut size = buffer.len();
    let mut extra =
        [key(BUFFER_POINTER), buffer.as_mut_ptr().cast(), key(BUFFER_SIZE), (&raw mut size).cast(), key(0)];
    ok!(cx, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, std::ptr::null_mut(), extra.as_mut_ptr()))?;
    gpu.sync(stream)?;
    same("bytes written from a buffer of arguments", &gpu.read::<u8>(out, 32)?, &written())
}

fn arguments_in_both_ways_are_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let args = Args::new().with(word).with(1u32);
    let mut buffer = [0u8; 16];
    let mut size = buffer.len();
    let mut extra =
        [key(BUFFER_POINTER), buffer.as_mut_ptr().cast(), key(BUFFER_SIZE), (&raw mut size).cast(), key(0)];
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuLaunchKernel(
            store,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            CUstream::NULL,
            args.pointers().as_mut_ptr(),
            extra.as_mut_ptr()
        )
    )
}

fn dynamic_shared_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"dynamic_shared")?;
    let out = gpu.zeroed(4)?;
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)? as u32;
    for bytes in [4u32, 100, most] {
        let shape = Shape::ONE.with_shared(bytes);
        gpu.launch(function, shape, stream, &Args::new().with(out).with(bytes))?;
        gpu.sync(stream)?;
        ensure_eq!(gpu.word(out)?, bytes, "the last word of {bytes} bytes of shared memory");
    }
    Ok(())
}

fn dynamic_shared_memory_needs_opt_in(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"dynamic_shared")?;
    let out = gpu.zeroed(4)?;
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let launch = |bytes: u32| {
        let args = Args::new().with(out).with(bytes);
        crate::cu!(
            cx,
            cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                bytes,
                stream,
                args.pointers().as_mut_ptr(),
                std::ptr::null_mut()
            )
        )
    };
    let above = (48 << 10) + 4;
    ensure_eq!(launch(above), CUresult::CUDA_ERROR_INVALID_VALUE, "a launch with 48 KiB + 4 bytes");
    let what = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    ok!(cx, cuFuncSetAttribute(function, what, most))?;
    ensure_eq!(launch(most as u32), CUresult::CUDA_SUCCESS, "a launch with {most} bytes after the opt-in");
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(out)?, most as u32, "the last word of the device's whole shared memory");
    ensure_eq!(
        launch(most as u32 + 4),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "a launch with more than there is"
    );
    Ok(())
}

fn static_shared_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"static_shared")?;
    let out = gpu.zeroed(4)?;
    let most = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32;
    for threads in [1, 32, 100, most] {
        gpu.launch(function, Shape::of(1, threads), stream, &Args::new().with(out))?;
        gpu.sync(stream)?;
        ensure_eq!(gpu.word(out)?, threads, "threads counted in shared memory");
    }
    Ok(())
}

fn local_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"local_memory")?;
    let out = gpu.zeroed(4)?;
    for index in [0u32, 1, 1023] {
        gpu.launch(function, Shape::ONE, stream, &Args::new().with(out).with(index))?;
        gpu.sync(stream)?;
        ensure_eq!(gpu.word(out)?, 3 * index, "local word {index}");
    }
    Ok(())
}

fn default_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let step = gpu.kernel(c"step")?;
    let words = gpu.zeroed(40)?;
    let mut expected = 0u32;
    for (i, stream) in [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD].into_iter().enumerate() {
        gpu.launch(step, Shape::over(10), stream, &Args::new().with(words).with(10u32).with(i as u32 + 1))?;
        expected = expected * 3 + i as u32 + 1;
        gpu.sync(stream)?;
    }
    same("words", &gpu.read::<u32>(words, 10)?, &[expected; 10])
}

fn function_of_another_context(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut other = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut other, 0, 0))?;
    let theirs = gpu.function(gpu.module(kernels::BASIC)?, c"empty")?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT],
        cuLaunchKernel(theirs, 1, 1, 1, 1, 1, 1, 0, stream, std::ptr::null_mut(), std::ptr::null_mut())
    )?;
    gpu.enter()?;
    ensure!(crate::cu!(cx, cuStreamQuery(stream)).is_ok(), "the stream is broken after a refused launch");
    Ok(())
}
