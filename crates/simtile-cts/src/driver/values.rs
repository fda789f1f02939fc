//! Waiting for and writing values in stream order.

use crate::frame::{Check, Cx, Need};
use crate::gpu::Gpu;
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

/// No device that CUDA 12 supports lacks them, so the attribute of the newer interface tells.
const WIDE: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
    "64-bit wait-values",
);

crate::frame::registry::tests! { Driver, "values";
    write,
    write_follows_the_stream,
    write_without_its_barrier,
    write_64 needs [WIDE],
    wait_for_at_least,
    wait_for_equal,
    wait_for_bits,
    wait_64 needs [WIDE],
    a_wait_that_holds_already,
    written_by_another_stream,
    batch,
    misaligned,
    unknown_flags,
}

const GEQ: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ.0;
const EQ: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ.0;
const AND: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND.0;

fn write(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(4)?;
    let device = gpu.zeroed(8)?;
    ok!(cx, cuStreamWriteValue32(stream, pinned.device + 4, 17, 0))?;
    ok!(cx, cuStreamWriteValue32(stream, device + 4, 18, 0))?;
    gpu.sync(stream)?;
    ensure_eq!(pinned.to_vec(), [0, 17, 0, 0], "pinned words");
    ensure_eq!(gpu.read::<u32>(device, 2)?, [0, 18], "device words");
    Ok(())
}

fn write_follows_the_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(1)?;
    let gate = gpu.gate(stream)?;
    ok!(cx, cuStreamWriteValue32(stream, pinned.device, 1, 0))?;
    gpu.stays_pending(gpu.recorded(stream)?, "a write behind a gate")?;
    ensure_eq!(pinned.get(0), 0, "word behind a gate");
    gate.open();
    gpu.sync(stream)?;
    ensure_eq!(pinned.get(0), 1, "word");
    Ok(())
}

/// driver-facts, Queues: a write-value without its memory barrier: CUDA_ERROR_INVALID_VALUE.
fn write_without_its_barrier(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(1)?;
    let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER.0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamWriteValue32(stream, pinned.device, 1, flags))
}

fn write_64(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(2)?;
    ok!(cx, cuStreamWriteValue64(stream, pinned.device, 0x1122_3344_5566_7788, 0))?;
    gpu.sync(stream)?;
    ensure_eq!(pinned.to_vec(), [0x5566_7788, 0x1122_3344], "both halves");
    Ok(())
}

/// A wait that `before` does not satisfy and `after` does.
fn waits(cx: &Cx, flags: u32, value: u32, before: &[u32], after: u32) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(1)?;
    pinned.set(0, before[0]);
    ok!(cx, cuStreamWaitValue32(stream, pinned.device, value, flags))?;
    let done = gpu.recorded(stream)?;
    for &word in before {
        pinned.set(0, word);
        gpu.stays_pending(done, &format!("a wait for {value} (flags {flags}) at {word}"))
            // Whatever was found, the stream must not stay blocked.
            .inspect_err(|_| pinned.set(0, after))?;
    }
    pinned.set(0, after);
    gpu.finishes(done, &format!("a wait for {value} (flags {flags}) at {after}"))
}

fn wait_for_at_least(cx: &Cx) -> Check {
    // The comparison is of the signed difference: it works across the wrap-around.
    waits(cx, GEQ, 5, &[0, 4], 5)?;
    waits(cx, GEQ, 5, &[0xffff_fff0], 1_000_000)
}

fn wait_for_equal(cx: &Cx) -> Check {
    waits(cx, EQ, 5, &[0, 4, 6], 5)
}

fn wait_for_bits(cx: &Cx) -> Check {
    waits(cx, AND, 0b110, &[0, 1, 8], 0b010)
}

fn wait_64(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(2)?;
    ok!(cx, cuStreamWaitValue64(stream, pinned.device, 1 << 32, GEQ))?;
    let done = gpu.recorded(stream)?;
    // The lower half alone does not do.
    pinned.set(0, 7);
    let pending = gpu.stays_pending(done, "a wait for 2^32 at 7");
    pinned.set(1, 1);
    pending?;
    gpu.finishes(done, "a wait for 2^32")
}

fn a_wait_that_holds_already(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(1)?;
    pinned.set(0, 9);
    ok!(cx, cuStreamWaitValue32(stream, pinned.device, 9, EQ))?;
    gpu.finishes(gpu.recorded(stream)?, "a wait that holds already")
}

fn written_by_another_stream(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let word = gpu.zeroed(4)?;
    ok!(cx, cuStreamWaitValue32(a, word, 3, EQ))?;
    let done = gpu.recorded(a)?;
    let early = gpu.done_within(done, crate::gpu::A_WHILE)?;
    ok!(cx, cuStreamWriteValue32(b, word, 3, 0))?;
    ensure!(!early, "a wait ended before another stream wrote the value");
    gpu.finishes(done, "a wait for what another stream writes")
}

fn batch(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(3)?;
    let write = |place: u64, value: u32| CUstreamBatchMemOpParams {
        writeValue: CUstreamBatchMemOpParams_writeValue {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address: pinned.device + place,
            u: CUstreamBatchMemOpParams_writeValue_u { value },
            flags: 0,
            alias: 0,
        },
    };
    let wait = CUstreamBatchMemOpParams {
        waitValue: CUstreamBatchMemOpParams_waitValue {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address: pinned.device + 8,
            u: CUstreamBatchMemOpParams_waitValue_u { value: 1 },
            flags: EQ,
            alias: 0,
        },
    };
    // One after the other: write, wait, write.
    let mut operations = [write(0, 5), wait, write(4, 6)];
    ok!(cx, cuStreamBatchMemOp(stream, 3, operations.as_mut_ptr(), 0))?;
    let done = gpu.recorded(stream)?;
    let early = gpu.done_within(done, crate::gpu::A_WHILE)?;
    let second = pinned.get(1);
    pinned.set(2, 1);
    ensure!(!early, "a batch with a wait in it finished before the wait was satisfied");
    ensure_eq!(second, 0, "word written after the wait");
    gpu.finishes(done, "a batch")?;
    ensure_eq!(pinned.to_vec(), [5, 6, 1], "words written by a batch");
    Ok(())
}

fn misaligned(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(4)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamWriteValue32(stream, pinned.device + 2, 1, 0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamWaitValue32(stream, pinned.device + 1, 0, GEQ))
}

fn unknown_flags(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let pinned = gpu.pinned(4)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuStreamWaitValue32(stream, pinned.device, 0, 0x100))
}
