//! Launches that are refused, and kernels that die.

use crate::frame::{Check, Cx, Need};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "launch_errors";
    zero_in_any_axis,
    axis_beyond_its_limit,
    too_many_threads,
    more_threads_than_the_kernel_allows,
    block_that_is_not_the_required_one,
    null_function,
    no_arguments_where_some_are_needed,
    refused_launches_leave_no_trace,
    write_to_nowhere_loses_the_context,
    misaligned_write_loses_the_context,
    trap_loses_the_context,
    error_shows_at_every_later_call,
    lost_context_takes_the_other_devices needs [Need::Devices(2)],
}

fn refused(gpu: &Gpu<'_>, function: CUfunction, grid: [u32; 3], block: [u32; 3]) -> CUresult {
    cu!(
        gpu,
        cuLaunchKernel(
            function,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            0,
            CUstream::NULL,
            std::ptr::null_mut(),
            std::ptr::null_mut()
        )
    )
}

fn zero_in_any_axis(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    for axis in 0..3 {
        let mut zero = [1; 3];
        zero[axis] = 0;
        ensure_eq!(
            refused(&gpu, empty, zero, [1; 3]),
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "a grid of 0 in axis {axis}"
        );
        ensure_eq!(
            refused(&gpu, empty, [1; 3], zero),
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "a block of 0 in axis {axis}"
        );
    }
    ok!(cx, cuCtxSynchronize())
}

fn axis_beyond_its_limit(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    for (grid, block) in [
        ([0x8000_0000, 1, 1], [1, 1, 1]),
        ([1, 65_536, 1], [1, 1, 1]),
        ([1, 1, 65_536], [1, 1, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [1, 1025, 1]),
        ([1, 1, 1], [1, 1, 65]),
    ] {
        ensure_eq!(
            refused(&gpu, empty, grid, block),
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "grid {grid:?}, block {block:?}"
        );
    }
    ok!(cx, cuCtxSynchronize())
}

fn too_many_threads(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let empty = gpu.kernel(c"empty")?;
    for block in [[32, 32, 2], [1024, 2, 1], [1024, 1024, 64]] {
        ensure_eq!(
            refused(&gpu, empty, [1; 3], block),
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "block {block:?}"
        );
    }
    Ok(())
}

const TOO_MANY: [CUresult; 2] =
    [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES];

fn more_threads_than_the_kernel_allows(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let kernel = gpu.kernel(c"at_most_64")?;
    ensure_eq!(refused(&gpu, kernel, [1; 3], [64, 1, 1]), CUresult::CUDA_SUCCESS, "64 threads of at most 64");
    let code = refused(&gpu, kernel, [1; 3], [65, 1, 1]);
    ensure!(TOO_MANY.contains(&code), "65 threads of at most 64 returned {code:?}");
    ok!(cx, cuCtxSynchronize())
}

fn block_that_is_not_the_required_one(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let kernel = gpu.kernel(c"exactly_32_2")?;
    ensure_eq!(refused(&gpu, kernel, [1; 3], [32, 2, 1]), CUresult::CUDA_SUCCESS, "the required block");
    for block in [[128, 1, 1], [32, 4, 1]] {
        let code = refused(&gpu, kernel, [1; 3], block);
        ensure!(TOO_MANY.contains(&code), "block {block:?} instead of (32, 2, 1) returned {code:?}");
    }
    ok!(cx, cuCtxSynchronize())
}

fn null_function(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let code = refused(&gpu, CUfunction::NULL, [1; 3], [1; 3]);
    ensure!(
        [CUresult::CUDA_ERROR_INVALID_HANDLE, CUresult::CUDA_ERROR_INVALID_VALUE].contains(&code),
        "a launch of no function returned {code:?}"
    );
    Ok(())
}

fn no_arguments_where_some_are_needed(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let code = refused(&gpu, gpu.kernel(c"store_one")?, [1; 3], [1; 3]);
    ensure_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE, "a launch without its two arguments");
    ok!(cx, cuCtxSynchronize())
}

fn refused_launches_leave_no_trace(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let args = Args::new().with(word).with(9u32);
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuLaunchKernel(
            store,
            1,
            1,
            1,
            2048,
            1,
            1,
            0,
            stream,
            args.pointers().as_mut_ptr(),
            std::ptr::null_mut()
        )
    )?;
    ok!(cx, cuStreamQuery(stream))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 0, "word after a refused launch");
    gpu.launch(store, Shape::ONE, stream, &args)?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 9, "word after a good one");
    Ok(())
}

/// Launches a kernel that dies and gives the code of the wait for it.
fn dies(gpu: &Gpu<'_>, function: CUfunction, args: &Args) -> Check<CUresult> {
    let stream = gpu.stream()?;
    gpu.launch(function, Shape::ONE, stream, args)?;
    Ok(cu!(gpu, cuStreamSynchronize(stream)))
}

/// An address in the middle of nothing.
const NOWHERE: u64 = 0x10_0000;

fn write_to_nowhere_loses_the_context(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let store = gpu.kernel(c"store_one")?;
    let code = dies(&gpu, store, &Args::new().with(NOWHERE).with(1u32))?;
    ensure_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "the wait for a write to nowhere");
    Ok(())
}

fn misaligned_write_loses_the_context(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let store = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(16)?;
    let code = dies(&gpu, store, &Args::new().with(word + 2).with(1u32))?;
    ensure_eq!(code, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, "the wait for a misaligned write");
    Ok(())
}

fn trap_loses_the_context(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let code = dies(&gpu, gpu.kernel(c"dies")?, &Args::new())?;
    ensure!(
        [CUresult::CUDA_ERROR_LAUNCH_FAILED, CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION].contains(&code),
        "the wait for a trap returned {code:?}"
    );
    Ok(())
}

fn error_shows_at_every_later_call(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let basic = gpu.module(crate::kernels::BASIC)?;
    let store = gpu.function(basic, c"store_one")?;
    let empty = gpu.function(basic, c"empty")?;
    let other = gpu.stream()?;
    let memory = gpu.zeroed(16)?;
    let event = gpu.event()?;
    let code = dies(&gpu, store, &Args::new().with(NOWHERE).with(1u32))?;
    ensure_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "the wait for a write to nowhere");
    let mut word = 0u32;
    let mut pointer = 0;
    let later = [
        ("cuCtxSynchronize", cu!(cx, cuCtxSynchronize())),
        ("cuStreamSynchronize", cu!(cx, cuStreamSynchronize(other))),
        ("cuStreamQuery", cu!(cx, cuStreamQuery(other))),
        ("cuMemcpyDtoH", cu!(cx, cuMemcpyDtoH((&raw mut word).cast(), memory, 4))),
        ("cuMemAlloc", cu!(cx, cuMemAlloc(&mut pointer, 16))),
        ("cuEventRecord", cu!(cx, cuEventRecord(event, other))),
        ("cuLaunchKernel", refused(&gpu, empty, [1; 3], [1; 3])),
    ];
    for (call, code) in later {
        ensure_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "{call} after the context was lost");
    }
    Ok(())
}

/// CUDA's manual: the process is left in an inconsistent state, and further work returns the same error. So it does on
/// other devices (seen on two H200).
fn lost_context_takes_the_other_devices(cx: &Cx) -> Check {
    let second = Gpu::on(cx, 1)?;
    let stream = second.stream()?;
    let fine = second.kernel(c"store_one")?;
    let word = second.zeroed(4)?;
    let first = Gpu::on(cx, 0)?;
    let store = first.kernel(c"store_one")?;
    let code = dies(&first, store, &Args::new().with(NOWHERE).with(1u32))?;
    ensure_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "the wait for a write to nowhere");
    second.enter()?;
    let launched = second.launch(fine, Shape::ONE, stream, &Args::new().with(word).with(5u32));
    ensure!(launched.is_err(), "a launch on another device after the loss");
    code!(cx, [CUDA_ERROR_ILLEGAL_ADDRESS], cuStreamSynchronize(stream))
}
