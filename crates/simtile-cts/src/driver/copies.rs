//! Copies that wait, and copies that do not (driver-facts, *Queues and blocking*: pageable copies, copies without a stream).

use super::blocking::{blocks, ready_kernel};
use crate::frame::{Check, Cx, Stop, same, threads};
use crate::gpu::{Args, Gpu, Shape};
use crate::{ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "copies";
    small_downloads_to_pageable_memory_block,
    small_uploads_from_pageable_memory_return,
    large_uploads_from_pageable_memory_block,
    a_copy_without_a_stream_passes_gated_streams,
    work_on_other_streams_passes_a_copy_without_a_stream,
}

const MIB: usize = 1 << 20;

fn small_downloads_to_pageable_memory_block(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let values: Vec<u32> = (0..1024).collect();
    let memory = gpu.upload(&values)?;
    let gate = gpu.gate(stream)?;
    let mut host = vec![0u32; 1024];
    let address = host.as_mut_ptr().expose_provenance();
    let copy =
        || ok!(cx, cuMemcpyDtoHAsync(std::ptr::with_exposed_provenance_mut(address), memory, 4096, stream));
    let blocked = blocks(&gpu, copy, || gate.open())?;
    ensure!(blocked, "a download of 4 KiB to pageable memory returned before its stream got there");
    // It has happened when the call returns.
    same("words", &host, &values)
}

/// An upload of so many bytes on a gated stream: whether it blocked. The source is overwritten once the call is back.
fn upload(cx: &Cx, bytes: usize) -> Check<bool> {
    let gpu = Gpu::new(cx)?;
    let (stream, memory) = (gpu.stream()?, gpu.alloc(bytes)?);
    let gate = gpu.gate(stream)?;
    let mut host = vec![7u8; bytes];
    let copy = || ok!(cx, cuMemcpyHtoDAsync(memory, host.as_ptr().cast(), bytes, stream));
    let blocked = blocks(&gpu, copy, || gate.open())?;
    host.fill(9);
    gpu.sync(stream)?;
    let mut ends = [0u8; 2];
    ok!(cx, cuMemcpyDtoH(ends.as_mut_ptr().cast(), memory, 1))?;
    ok!(cx, cuMemcpyDtoH(ends[1..].as_mut_ptr().cast(), memory + bytes as u64 - 1, 1))?;
    ensure_eq!(ends, [7, 7], "first and last byte");
    Ok(blocked)
}

fn small_uploads_from_pageable_memory_return(cx: &Cx) -> Check {
    for bytes in [4096, MIB] {
        ensure!(!upload(cx, bytes)?, "an upload of {bytes} bytes from pageable memory waited for its stream");
    }
    Ok(())
}

fn large_uploads_from_pageable_memory_block(cx: &Cx) -> Check {
    ensure!(
        upload(cx, 64 * MIB)?,
        "an upload of 64 MiB from pageable memory returned before its stream got there"
    );
    Ok(())
}

fn a_copy_without_a_stream_passes_gated_streams(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, empty, word) = (gpu.stream()?, ready_kernel(&gpu)?, gpu.zeroed(4)?);
    let gate = gpu.gate(stream)?;
    gpu.launch(empty, Shape::ONE, stream, &Args::new())?;
    let held = gpu.recorded(stream)?;
    let value = 11u32;
    let copy = || ok!(cx, cuMemcpyHtoD(word, (&raw const value).cast(), 4));
    let (mut early, mut seen) = (false, Ok(0));
    let blocked = blocks(&gpu, copy, || {
        early = gpu.is_done(held).unwrap_or(true);
        gate.open();
        seen = gpu.word(word);
    })?;
    ensure!(!blocked && !early, "a copy without a stream waited for a gated non-blocking stream");
    ensure_eq!(seen?, 11, "word copied");
    gpu.sync(stream)
}

/// The legacy stream is held, and a copy without a stream stands behind it; a non-blocking stream does not care.
fn work_on_other_streams_passes_a_copy_without_a_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, empty, word) = (gpu.stream()?, ready_kernel(&gpu)?, gpu.zeroed(4)?);
    let event = gpu.event()?;
    let gate = gpu.gate(CUstream::NULL)?;
    let value = 12u32;
    threads::scope(|scope| {
        let copier = scope.spawn(|| {
            gpu.enter()?;
            ok!(cx, cuMemcpyHtoD(word, (&raw const value).cast(), 4))
        });
        threads::sleep(crate::gpu::A_WHILE);
        let beside = (|| {
            gpu.launch(empty, Shape::ONE, stream, &Args::new())?;
            ok!(cx, cuEventRecord(event, stream))?;
            gpu.finishes(event, "work on a non-blocking stream beside a copy without a stream")
        })();
        gate.open();
        copier.join().unwrap_or_else(|_| Err(Stop::fail("the copying thread panicked")))?;
        beside
    })?;
    ensure_eq!(gpu.word(word)?, 12, "word copied");
    Ok(())
}
