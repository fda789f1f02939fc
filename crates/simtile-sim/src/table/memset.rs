//! Memsets.

use crate::core::{Res, StreamRef};
use crate::engine::work::Work;
use crate::entry::{Call, entries};
use crate::heap::MemoryWork;
use crate::memory::{Access, Fill, MemoryKind, Pattern, View};
use core::ffi::c_uint;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The stream of a memset, and whether it is the kind of call that may wait.
fn at(call: &Call<'_>, stream: Option<CUstream>) -> Res<(StreamRef, bool)> {
    match stream {
        Some(stream) => Ok((call.stream(stream)?, false)),
        None => Ok((call.default_stream(call.context()?, false)?, true)),
    }
}

/// A memset's arguments, checked against memory. `None` if there is nothing to set.
pub(crate) fn checked(call: &Call<'_>, device: i32, fill: Fill) -> Res<Option<Fill>> {
    if fill.width == 0 || fill.height == 0 {
        return Ok(None);
    }
    let element = fill.pattern.bytes();
    let row = fill.width.checked_mul(element).ok_or(INVALID)?;
    // The pitch of a single row is not looked at.
    let pitch = if fill.height == 1 { row } else { fill.pitch };
    if !fill.address.is_multiple_of(element) || !pitch.is_multiple_of(element) || pitch < row {
        return Err(INVALID);
    }
    let fill = Fill { pitch, ..fill };
    let space = &call.core.space;
    fill.check(space, View::Submission, device).map_err(|_| INVALID)?;
    // Unlike a copy it needs peer access.
    let target = space.find(fill.address).ok_or(INVALID)?;
    match space.refusal(device, &target, Access::Write) {
        None => Ok(Some(Fill { allocation: target.id, ..fill })),
        Some(_) => Err(INVALID),
    }
}

fn set(call: &Call<'_>, stream: Option<CUstream>, fill: Fill) -> Res {
    let (stream, may_wait) = at(call, stream)?;
    let Some(fill) = checked(call, stream.context.device, fill)? else { return Ok(()) };
    call.core.enqueue(&stream, Work::Memory(MemoryWork::Fill(fill)))?;
    if call.core.captures(&stream) {
        return Ok(());
    }
    // Asynchronous unless the host could look at once.
    let target = call.core.space.find(fill.address);
    let waits = target
        .is_some_and(|a| may_wait && a.kind.is_host() || a.sync_memops() && a.kind != MemoryKind::Managed);
    if waits { call.core.synchronize_stream(&stream) } else { Ok(()) }
}

fn linear(address: u64, pattern: Pattern, count: usize) -> Fill {
    Fill { address, pitch: 0, pattern, width: count as u64, height: 1, allocation: 0, device: None }
}

fn rows(address: u64, pitch: usize, pattern: Pattern, width: usize, height: usize) -> Fill {
    Fill {
        address,
        pitch: pitch as u64,
        pattern,
        width: width as u64,
        height: height as u64,
        allocation: 0,
        device: None,
    }
}

entries! {
    fn cuMemsetD8(call, address: CUdeviceptr, value: u8, count: usize) {
        set(call, None, linear(address, Pattern::U8(value), count))
    }

    fn cuMemsetD16(call, address: CUdeviceptr, value: u16, count: usize) {
        set(call, None, linear(address, Pattern::U16(value), count))
    }

    fn cuMemsetD32(call, address: CUdeviceptr, value: c_uint, count: usize) {
        set(call, None, linear(address, Pattern::U32(value), count))
    }

    fn cuMemsetD8Async(call, address: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        set(call, Some(stream), linear(address, Pattern::U8(value), count))
    }

    fn cuMemsetD16Async(call, address: CUdeviceptr, value: u16, count: usize, stream: CUstream) {
        set(call, Some(stream), linear(address, Pattern::U16(value), count))
    }

    fn cuMemsetD32Async(call, address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        set(call, Some(stream), linear(address, Pattern::U32(value), count))
    }

    fn cuMemsetD2D8(call, address: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) {
        set(call, None, rows(address, pitch, Pattern::U8(value), width, height))
    }

    fn cuMemsetD2D16(call, address: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize) {
        set(call, None, rows(address, pitch, Pattern::U16(value), width, height))
    }

    fn cuMemsetD2D32(call, address: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) {
        set(call, None, rows(address, pitch, Pattern::U32(value), width, height))
    }

    fn cuMemsetD2D8Async(call, address: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) {
        set(call, Some(stream), rows(address, pitch, Pattern::U8(value), width, height))
    }

    fn cuMemsetD2D16Async(call, address: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) {
        set(call, Some(stream), rows(address, pitch, Pattern::U16(value), width, height))
    }

    fn cuMemsetD2D32Async(call, address: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream) {
        set(call, Some(stream), rows(address, pitch, Pattern::U32(value), width, height))
    }
}
