//! Pitched memory: 2-D and 3-D copies and memsets.

use crate::frame::{Check, Cx, same};
use crate::gpu::Gpu;
use crate::{code, ensure, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "memory_2d";
    pitched_allocation,
    pitched_allocation_checks_its_arguments,
    memset_leaves_the_padding,
    memset_async_widths,
    host_to_device_and_back,
    device_to_device_with_offsets,
    unaligned_pitches,
    async_follows_the_stream,
    pitch_smaller_than_width,
    nothing_to_copy,
    copy_3d,
    copy_3d_async,
}

fn pitched_allocation(cx: &Cx) -> Check {
    let _gpu = Gpu::new(cx)?;
    for (width, height, element) in [(100usize, 7usize, 4u32), (1, 1, 4), (4096, 3, 16), (1000, 10, 8)] {
        let (mut pointer, mut pitch) = (0, 0);
        ok!(cx, cuMemAllocPitch(&mut pointer, &mut pitch, width, height, element))?;
        ensure!(pitch >= width, "pitch {pitch} for rows of {width} bytes");
        ensure!(pitch % element as usize == 0, "pitch {pitch} for elements of {element} bytes");
        // The whole of it is there.
        ok!(cx, cuMemsetD8(pointer, 1, pitch * height))?;
        ok!(cx, cuCtxSynchronize())?;
        ok!(cx, cuMemFree(pointer))?;
    }
    Ok(())
}

fn pitched_allocation_checks_its_arguments(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let (mut pointer, mut pitch) = (0, 0);
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAllocPitch(&mut pointer, &mut pitch, 0, 4, 4))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAllocPitch(&mut pointer, &mut pitch, 16, 4, 3))
}

const PITCH: usize = 64;
const ROWS: usize = 5;

/// Rows of `PITCH` bytes of which the first `width` carry the value.
fn block(width: usize, rows: usize, inside: u8, outside: u8) -> Vec<u8> {
    (0..rows * PITCH).map(|i| if i % PITCH < width { inside } else { outside }).collect()
}

fn memset_leaves_the_padding(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.zeroed(PITCH * ROWS)?;
    ok!(cx, cuMemsetD2D8(pointer, PITCH, 9, 33, ROWS))?;
    ok!(cx, cuCtxSynchronize())?;
    same("rows of 33 bytes", &gpu.read::<u8>(pointer, PITCH * ROWS)?, &block(33, ROWS, 9, 0))?;
    // Width counts elements, not bytes.
    ok!(cx, cuMemsetD2D16(pointer, PITCH, 0x0707, 10, ROWS))?;
    ok!(cx, cuMemsetD2D32(pointer, PITCH, 0x0606_0606, 2, 1))?;
    ok!(cx, cuCtxSynchronize())?;
    let mut expected = block(33, ROWS, 9, 0);
    for row in 0..ROWS {
        expected[row * PITCH..row * PITCH + 20].fill(7);
    }
    expected[..8].fill(6);
    same("rows of 10 half words, 2 words in the first", &gpu.read::<u8>(pointer, PITCH * ROWS)?, &expected)
}

fn memset_async_widths(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = gpu.zeroed(PITCH * ROWS)?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuMemsetD2D8Async(pointer, PITCH, 1, PITCH, ROWS, stream))?;
    ok!(cx, cuMemsetD2D16Async(pointer, PITCH, 0x0202, 16, ROWS, stream))?;
    ok!(cx, cuMemsetD2D32Async(pointer, PITCH, 0x0303_0303, 4, ROWS, stream))?;
    gate.open();
    gpu.sync(stream)?;
    let row = |i: usize| match i % PITCH {
        0..16 => 3,
        16..32 => 2,
        _ => 1,
    };
    let expected: Vec<u8> = (0..PITCH * ROWS).map(row).collect();
    same("three memsets over each other", &gpu.read::<u8>(pointer, PITCH * ROWS)?, &expected)
}

fn empty() -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: CUarray::NULL,
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: CUarray::NULL,
        dstPitch: 0,
        WidthInBytes: 0,
        Height: 0,
    }
}

fn host_to_device_and_back(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let host: Vec<u8> = (0..200).collect();
    let pointer = gpu.upload(&vec![0xeeu8; PITCH * ROWS])?;
    // Rows of 30 bytes out of host rows of 40.
    let up = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast(),
        srcPitch: 40,
        dstDevice: pointer,
        dstPitch: PITCH,
        WidthInBytes: 30,
        Height: ROWS,
        ..empty()
    };
    ok!(cx, cuMemcpy2D(&up))?;
    ok!(cx, cuCtxSynchronize())?;
    let on_device = gpu.read::<u8>(pointer, PITCH * ROWS)?;
    let expected: Vec<u8> = (0..PITCH * ROWS)
        .map(|i| if i % PITCH < 30 { host[i / PITCH * 40 + i % PITCH] } else { 0xee })
        .collect();
    same("pitched rows on the device", &on_device, &expected)?;
    let mut back = vec![0x55u8; 30 * ROWS];
    let down = CUDA_MEMCPY2D {
        srcDevice: pointer,
        srcPitch: PITCH,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: back.as_mut_ptr().cast(),
        dstPitch: 30,
        WidthInBytes: 30,
        Height: ROWS,
        ..empty()
    };
    ok!(cx, cuMemcpy2D(&down))?;
    let expected: Vec<u8> = (0..30 * ROWS).map(|i| host[i / 30 * 40 + i % 30]).collect();
    same("dense rows back on the host", &back, &expected)
}

fn device_to_device_with_offsets(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let values: Vec<u8> = (0..PITCH * ROWS).map(|i| i as u8).collect();
    let from = gpu.upload(&values)?;
    let to = gpu.zeroed(PITCH * ROWS)?;
    let copy = CUDA_MEMCPY2D {
        srcDevice: from,
        srcPitch: PITCH,
        srcXInBytes: 3,
        srcY: 1,
        dstDevice: to,
        dstPitch: PITCH,
        dstXInBytes: 10,
        dstY: 2,
        WidthInBytes: 20,
        Height: 3,
        ..empty()
    };
    ok!(cx, cuMemcpy2D(&copy))?;
    ok!(cx, cuCtxSynchronize())?;
    let mut expected = vec![0; PITCH * ROWS];
    for row in 0..3 {
        let (s, d) = ((row + 1) * PITCH + 3, (row + 2) * PITCH + 10);
        expected[d..d + 20].copy_from_slice(&values[s..s + 20]);
    }
    same("a rectangle moved", &gpu.read::<u8>(to, PITCH * ROWS)?, &expected)
}

fn unaligned_pitches(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let values: Vec<u8> = (0..70).collect();
    let from = gpu.upload(&values)?;
    let to = gpu.zeroed(90)?;
    let copy = CUDA_MEMCPY2D {
        srcDevice: from,
        srcPitch: 7,
        dstDevice: to,
        dstPitch: 9,
        WidthInBytes: 5,
        Height: 10,
        ..empty()
    };
    ok!(cx, cuMemcpy2DUnaligned(&copy))?;
    ok!(cx, cuCtxSynchronize())?;
    let expected: Vec<u8> = (0..90).map(|i| if i % 9 < 5 { values[i / 9 * 7 + i % 9] } else { 0 }).collect();
    same("rows of 5 bytes from pitch 7 to pitch 9", &gpu.read::<u8>(to, 90)?, &expected)
}

fn async_follows_the_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let from = gpu.upload(&vec![4u8; PITCH * ROWS])?;
    let to = gpu.zeroed(PITCH * ROWS)?;
    let gate = gpu.gate(stream)?;
    let copy = CUDA_MEMCPY2D {
        srcDevice: from,
        srcPitch: PITCH,
        dstDevice: to,
        dstPitch: PITCH,
        WidthInBytes: 17,
        Height: ROWS,
        ..empty()
    };
    ok!(cx, cuMemcpy2DAsync(&copy, stream))?;
    let done = gpu.recorded(stream)?;
    gpu.stays_pending(done, "a 2-D copy behind a gate")?;
    gate.open();
    gpu.finishes(done, "a 2-D copy")?;
    same("rows of 17 bytes", &gpu.read::<u8>(to, PITCH * ROWS)?, &block(17, ROWS, 4, 0))
}

fn pitch_smaller_than_width(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (from, to) = (gpu.zeroed(PITCH * ROWS)?, gpu.zeroed(PITCH * ROWS)?);
    let copy = CUDA_MEMCPY2D {
        srcDevice: from,
        srcPitch: 16,
        dstDevice: to,
        dstPitch: PITCH,
        WidthInBytes: 20,
        Height: 2,
        ..empty()
    };
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpy2D(&copy))?;
    let copy = CUDA_MEMCPY2D { srcPitch: PITCH, dstPitch: 16, ..copy };
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpy2D(&copy))
}

fn nothing_to_copy(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (from, to) = (gpu.zeroed(PITCH)?, gpu.zeroed(PITCH)?);
    let copy = CUDA_MEMCPY2D { srcDevice: from, srcPitch: PITCH, dstDevice: to, dstPitch: PITCH, ..empty() };
    ok!(cx, cuMemcpy2D(&copy))?;
    ok!(cx, cuMemcpy2D(&CUDA_MEMCPY2D { WidthInBytes: 4, ..copy }))?;
    ok!(cx, cuMemcpy2D(&CUDA_MEMCPY2D { Height: 1, ..copy }))
}

/// A box of 8 x 3 x 2 bytes out of one of 16 x 4 x 3.
fn box_copy(from: CUdeviceptr, to: CUdeviceptr) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 2,
        srcY: 1,
        srcZ: 1,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: 16,
        srcHeight: 4,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: to,
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: 8,
        dstHeight: 3,
        WidthInBytes: 8,
        Height: 3,
        Depth: 2,
    }
}

fn expected_box(values: &[u8]) -> Vec<u8> {
    (0..48).map(|i| values[(i / 24 + 1) * 64 + (i / 8 % 3 + 1) * 16 + i % 8 + 2]).collect()
}

fn copy_3d(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let values: Vec<u8> = (0..192).collect();
    let from = gpu.upload(&values)?;
    let to = gpu.zeroed(48)?;
    ok!(cx, cuMemcpy3D(&box_copy(from, to)))?;
    ok!(cx, cuCtxSynchronize())?;
    same("a box", &gpu.read::<u8>(to, 48)?, &expected_box(&values))
}

fn copy_3d_async(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let values: Vec<u8> = (0..192).map(|i| 255 - i).collect();
    let from = gpu.upload(&values)?;
    let to = gpu.zeroed(48)?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuMemcpy3DAsync(&box_copy(from, to), stream))?;
    gate.open();
    gpu.sync(stream)?;
    same("a box", &gpu.read::<u8>(to, 48)?, &expected_box(&values))
}
