//! Device memory: allocation, copies, memset.

use crate::frame::{Check, Cx, Need, same};
use crate::gpu::Gpu;
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "memory";
    info,
    alloc_and_free,
    alloc_of_nothing,
    alloc_of_too_much,
    alignment,
    free_of_null,
    free_of_a_stranger,
    free_twice,
    free_of_an_inner_address,
    address_range,
    address_range_of_a_stranger,
    round_trips,
    copies_between_parts,
    copies_within_one_allocation,
    unified_copies,
    copies_of_nothing,
    copies_beyond_the_end,
    copies_of_freed_memory needs [Need::Simulator("a GPU may still map freed memory")],
    async_copies_follow_the_stream,
    memset_widths,
    memset_async_follows_the_stream,
    memset_misaligned,
    memset_beyond_the_end,
    memory_keeps_its_bytes_across_other_allocations,
}

fn info(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (mut free, mut total) = (0, 0);
    ok!(cx, cuMemGetInfo(&mut free, &mut total))?;
    ensure!(0 < free && free <= total, "{free} bytes free of {total}");
    let mut device = 0;
    ok!(cx, cuDeviceTotalMem(&mut device, gpu.device))?;
    ensure!(total <= device, "{total} bytes in the context, {device} on the device");
    let bytes = 64 << 20;
    gpu.alloc(bytes)?;
    let mut after = 0;
    ok!(cx, cuMemGetInfo(&mut after, &mut total))?;
    ensure!(after < free, "{after} bytes free after allocating {bytes}, {free} before");
    Ok(())
}

fn alloc_and_free(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let sizes = [1usize, 3, 256, 4097, 1 << 20, (4 << 20) + 1];
    let pointers = sizes.iter().map(|&bytes| gpu.alloc(bytes)).collect::<Check<Vec<_>>>()?;
    for (i, (&a, &a_bytes)) in pointers.iter().zip(&sizes).enumerate() {
        ensure!(a != 0, "allocation {i} is null");
        for (&b, &b_bytes) in pointers.iter().zip(&sizes).skip(i + 1) {
            ensure!(a + a_bytes as u64 <= b || b + b_bytes as u64 <= a, "{a:#x} and {b:#x} overlap");
        }
    }
    for pointer in pointers {
        ok!(cx, cuMemFree(pointer))?;
    }
    Ok(())
}

fn alloc_of_nothing(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAlloc(&mut pointer, 0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAlloc(std::ptr::null_mut(), 16))
}

fn alloc_of_too_much(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_OUT_OF_MEMORY], cuMemAlloc(&mut pointer, 1 << 46))?;
    // It is an error of this call only.
    gpu.alloc(16).map(|_| ())
}

fn alignment(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for bytes in [1, 5, 100, 1000] {
        let pointer = gpu.alloc(bytes)?;
        ensure!(pointer % 256 == 0, "{pointer:#x} is not aligned to 256 bytes");
    }
    Ok(())
}

fn free_of_null(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    ok!(cx, cuMemFree(0))
}

fn free_of_a_stranger(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFree(0x1234_5600))
}

fn free_twice(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(4096)?;
    ok!(cx, cuMemFree(pointer))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFree(pointer))
}

fn free_of_an_inner_address(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(4096)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFree(pointer + 256))?;
    ok!(cx, cuMemFree(pointer))
}

fn address_range(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let bytes = 10_000;
    let pointer = gpu.alloc(bytes)?;
    for inner in [pointer, pointer + 1, pointer + bytes as u64 - 1] {
        let (mut base, mut size) = (0, 0);
        ok!(cx, cuMemGetAddressRange(&mut base, &mut size, inner))?;
        ensure_eq!((base, size), (pointer, bytes), "base and size at {inner:#x}");
    }
    let mut base = 0;
    ok!(cx, cuMemGetAddressRange(&mut base, std::ptr::null_mut(), pointer))
}

fn address_range_of_a_stranger(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let (mut base, mut size) = (0, 0);
    code!(
        cx,
        [CUDA_ERROR_NOT_FOUND, CUDA_ERROR_INVALID_VALUE],
        cuMemGetAddressRange(&mut base, &mut size, 0x1234_5600)
    )
}

fn round_trips(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut random = cx.random(1);
    for bytes in [1usize, 2, 3, 7, 255, 4096, 4097, 1_000_003] {
        let values: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
        let pointer = gpu.upload(&values)?;
        same(&format!("{bytes} bytes"), &gpu.read::<u8>(pointer, bytes)?, &values)?;
    }
    Ok(())
}

fn copies_between_parts(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let values: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
    let from = gpu.upload(&values)?;
    let to = gpu.upload(&[0xaau8; 1000])?;
    // Odd offsets and lengths, so that nothing depends on words.
    ok!(cx, cuMemcpyDtoD(to + 13, from + 101, 333))?;
    ok!(cx, cuCtxSynchronize())?;
    let mut expected = vec![0xaa; 1000];
    expected[13..13 + 333].copy_from_slice(&values[101..101 + 333]);
    same("the part copied and its surroundings", &gpu.read::<u8>(to, 1000)?, &expected)
}

fn copies_within_one_allocation(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let values: Vec<u8> = (0..=255).collect();
    let pointer = gpu.upload(&values)?;
    ok!(cx, cuMemcpyDtoD(pointer + 128, pointer, 128))?;
    ok!(cx, cuCtxSynchronize())?;
    let expected: Vec<u8> = (0..128).chain(0..128).collect();
    same("the second half", &gpu.read::<u8>(pointer, 256)?, &expected)
}

fn unified_copies(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(4)?;
    let device = gpu.upload(&[1u32, 2, 3, 4])?;
    // The addresses say where they are.
    ok!(cx, cuMemcpy(pinned.host() as u64, device, 16))?;
    ok!(cx, cuCtxSynchronize())?;
    ensure_eq!(pinned.to_vec(), [1, 2, 3, 4], "words copied to the host");
    pinned.set(2, 30);
    ok!(cx, cuMemcpyAsync(device, pinned.host() as u64, 16, stream))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(device, 4)?, [1, 2, 30, 4], "words copied to the device");
    Ok(())
}

fn copies_of_nothing(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = gpu.upload(&[5u8; 16])?;
    let mut host = [0u8; 16];
    ok!(cx, cuMemcpyHtoD(pointer, host.as_ptr().cast(), 0))?;
    ok!(cx, cuMemcpyDtoH(host.as_mut_ptr().cast(), pointer, 0))?;
    ok!(cx, cuMemcpyDtoD(pointer, pointer + 8, 0))?;
    ok!(cx, cuMemcpyDtoDAsync(pointer, pointer + 8, 0, stream))?;
    ok!(cx, cuMemsetD8(pointer, 1, 0))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u8>(pointer, 16)?, [5; 16], "bytes after copies of nothing");
    Ok(())
}

fn copies_beyond_the_end(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    // Larger than what drivers round allocations up to.
    let bytes = 4 << 20;
    let a = gpu.alloc(bytes)?;
    let b = gpu.alloc(bytes)?;
    let mut host = vec![0u8; 4 * bytes];
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoH(host.as_mut_ptr().cast(), a, 4 * bytes))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyHtoD(a, host.as_ptr().cast(), 4 * bytes))?;
    gpu.refuses_copy(a, b, 4 * bytes)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoDAsync(a, b, 4 * bytes, stream))?;
    gpu.refuses_copy(0x1000, b, 16)?;
    gpu.refuses_copy(a, 0x1000, 16)?;
    gpu.refuses_copy(a, b, usize::MAX)?;
    // None of this hurts the context.
    gpu.refuses_copy(0, b, 16)?;
    ok!(cx, cuMemcpyDtoD(a, b, bytes))?;
    ok!(cx, cuCtxSynchronize())
}

fn copies_of_freed_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.zeroed(4096)?, gpu.zeroed(4096)?);
    ok!(cx, cuMemFree(a))?;
    gpu.refuses_copy(a, b, 16)?;
    gpu.refuses_copy(b, a, 16)?;
    let mut word = 0u32;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoH((&raw mut word).cast(), a, 4))
}

fn async_copies_follow_the_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (a, b) = (gpu.zeroed(64)?, gpu.zeroed(64)?);
    let (from, to) = (gpu.pinned(16)?, gpu.pinned(16)?);
    for i in 0..16 {
        from.set(i, i as u32 + 100);
    }
    let gate = gpu.gate(stream)?;
    ok!(cx, cuMemcpyHtoDAsync(a, from.host(), 64, stream))?;
    ok!(cx, cuMemcpyDtoDAsync(b, a, 64, stream))?;
    ok!(cx, cuMemcpyDtoHAsync(to.host(), b, 64, stream))?;
    let done = gpu.recorded(stream)?;
    gpu.stays_pending(done, "copies behind a gate")?;
    ensure_eq!(to.to_vec(), [0; 16], "pinned words before the gate opens");
    gate.open();
    gpu.finishes(done, "copies behind an opened gate")?;
    let expected: Vec<u32> = (100..116).collect();
    same("pinned words", &to.to_vec(), &expected)
}

fn memset_widths(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = gpu.zeroed(64)?;
    ok!(cx, cuMemsetD8(pointer, 0x11, 5))?;
    ok!(cx, cuMemsetD16(pointer + 8, 0x2233, 3))?;
    ok!(cx, cuMemsetD32(pointer + 16, 0x4455_6677, 2))?;
    ok!(cx, cuCtxSynchronize())?;
    ok!(cx, cuMemsetD8Async(pointer + 32, 0x88, 3, stream))?;
    ok!(cx, cuMemsetD16Async(pointer + 40, 0x99aa, 2, stream))?;
    ok!(cx, cuMemsetD32Async(pointer + 48, 0xbbcc_ddee, 1, stream))?;
    gpu.sync(stream)?;
    let mut expected = [0u8; 64];
    expected[..5].fill(0x11);
    for i in 0..3 {
        expected[8 + 2 * i..10 + 2 * i].copy_from_slice(&0x2233u16.to_le_bytes());
    }
    for i in 0..2 {
        expected[16 + 4 * i..20 + 4 * i].copy_from_slice(&0x4455_6677u32.to_le_bytes());
        expected[40 + 2 * i..42 + 2 * i].copy_from_slice(&0x99aau16.to_le_bytes());
    }
    expected[32..35].fill(0x88);
    expected[48..52].copy_from_slice(&0xbbcc_ddeeu32.to_le_bytes());
    same("bytes after six memsets", &gpu.read::<u8>(pointer, 64)?, &expected)
}

fn memset_async_follows_the_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pointer = gpu.zeroed(64)?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuMemsetD32Async(pointer, 7, 16, stream))?;
    ensure_eq!(gpu.word(pointer)?, 0, "word behind a gate");
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(pointer, 16)?, [7; 16], "words after the memset");
    Ok(())
}

fn memset_misaligned(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.zeroed(64)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemsetD16(pointer + 1, 1, 2))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemsetD32(pointer + 2, 1, 2))?;
    ensure_eq!(gpu.read::<u8>(pointer, 64)?, [0; 64], "bytes after refused memsets");
    Ok(())
}

fn memset_beyond_the_end(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let bytes = 4 << 20;
    let pointer = gpu.zeroed(bytes)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemsetD8(pointer, 1, 1 << 40))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemsetD32(0x1000, 1, 4))?;
    ensure_eq!(cu!(cx, cuCtxSynchronize()), CUresult::CUDA_SUCCESS, "the context after refused memsets");
    ensure_eq!(gpu.word(pointer)?, 0, "word after refused memsets");
    Ok(())
}

fn memory_keeps_its_bytes_across_other_allocations(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut random = cx.random(2);
    let mut live: Vec<(CUdeviceptr, u8, usize)> = Vec::new();
    for round in 0..60u8 {
        let bytes = 1 + random.below(50_000) as usize;
        let pointer = gpu.upload(&vec![round; bytes])?;
        live.push((pointer, round, bytes));
        if live.len() > 10 {
            let (pointer, value, bytes) = live.swap_remove(random.below(10) as usize);
            same("bytes of an allocation", &gpu.read::<u8>(pointer, bytes)?, &vec![value; bytes])?;
            ok!(cx, cuMemFree(pointer))?;
        }
    }
    Ok(())
}
