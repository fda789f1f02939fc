//! Copies.
//!
//! * Every address is looked up first, as unified addressing does: a "host" argument may name device memory. What
//!   the driver does not know is pageable host memory, where the call allows that.
//! * Ranges are checked at the call; the bytes move when the stream gets there.
//! * A call without a stream runs on the legacy default stream and waits if the host is involved.
//! * From pageable memory up to 1 MiB is taken over at the call and the call returns; more is waited for. Into
//!   pageable memory every copy is waited for. A switch (`SimConfig::pageable_async`) does neither.

use super::memory::unsupported;
use crate::core::{Res, StreamRef};
use crate::engine::work::Work;
use crate::entry::{Call, entries};
use crate::heap::MemoryWork;
use crate::memory::{DEVICE_BASE, MemoryKind, Place, Side, Transfer, View};
use core::ffi::c_void;
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
/// Most bytes of pageable memory that are taken over at the call.
const STAGED: u64 = 1 << 20;

/// What an argument may name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// Memory that the driver knows.
    Device,
    /// Anything.
    Any,
}

/// When a call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// After the copy if the host is involved.
    Done,
    /// As soon as pageable memory allows.
    Queued,
}

fn place(call: &Call<'_>, slot: Slot, address: u64) -> Res<Place> {
    if address == 0 {
        return Err(INVALID);
    }
    if call.core.space.find(address).is_some() {
        return Ok(Place::Memory(address));
    }
    // An address in the devices' range is none of the host's.
    if slot == Slot::Device || address >= DEVICE_BASE {
        return Err(INVALID);
    }
    Ok(Place::Host(address as usize))
}

fn submit(call: &Call<'_>, stream: &StreamRef, mut copy: Transfer, returns: Returns) -> Res {
    if copy.is_empty() {
        return Ok(());
    }
    let core = call.core;
    // The device of the current context has to reach the memory, whatever the stream: an H200 refuses a copy of pool memory
    // on a stream of its own device while another device's context is current.
    let device = call.context().map_or(stream.context.device, |current| current.device);
    copy.check(&core.space, View::Submission, device).map_err(|_| INVALID)?;
    if core.captures(stream) {
        // A node reads pageable memory at every launch, and nobody waits for a capture.
        copy.identify(&core.space);
        return core.enqueue(stream, Work::Memory(MemoryWork::Transfer(Arc::new(copy))));
    }
    let mut wait = matches!(copy.to.place, Place::Host(_));
    if returns == Returns::Queued && core.config.pageable_async {
        wait = false;
    } else if matches!(copy.from.place, Place::Host(_)) && !wait {
        if returns == Returns::Queued && copy.bytes() <= STAGED {
            // SAFETY: the caller says that the source is readable.
            unsafe { copy.stage() };
        } else {
            wait = true;
        }
    }
    for side in [&copy.to, &copy.from] {
        if let Place::Memory(address) = side.place
            && let Some(allocation) = core.space.find(address)
        {
            let host = allocation.kind.is_host() && returns == Returns::Done;
            // Managed memory says that it synchronises, but is copied as any other.
            let synchronises = allocation.sync_memops() && allocation.kind != MemoryKind::Managed;
            wait |= host || synchronises;
        }
    }
    core.enqueue(stream, Work::Memory(MemoryWork::Transfer(Arc::new(copy))))?;
    if wait { core.synchronize_stream(stream) } else { Ok(()) }
}

fn legacy(call: &Call<'_>) -> Res<StreamRef> {
    let context = call.context()?;
    let stream = call.default_stream(context, false)?;
    call.core.state.lock().refuse_implicit(&stream)?;
    Ok(stream)
}

fn linear(
    call: &Call<'_>,
    stream: &StreamRef,
    to: (Slot, u64),
    from: (Slot, u64),
    bytes: usize,
    returns: Returns,
) -> Res {
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = (place(call, to.0, to.1)?, place(call, from.0, from.1)?);
    submit(call, stream, Transfer::linear(to, from, bytes as u64), returns)
}

/// A copy that names both contexts. They matter without unified addressing only; null and swapped ones are taken by the real
/// driver. No access has to be granted: an H200 copies pool memory so, which by addresses alone it refuses.
fn between(call: &Call<'_>, stream: &StreamRef, to: u64, from: u64, bytes: usize, returns: Returns) -> Res {
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = (place(call, Slot::Device, to)?, place(call, Slot::Device, from)?);
    submit(call, stream, Transfer { peer: true, ..Transfer::linear(to, from, bytes as u64) }, returns)
}

/// One end of a copy of rows, as a descriptor gives it.
struct End {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    x: u64,
    y: u64,
    z: u64,
    pitch: u64,
    height: u64,
}

/// A copy of rows.
struct Rows {
    to: End,
    from: End,
    width: u64,
    height: u64,
    depth: u64,
}

impl End {
    fn side(&self, call: &Call<'_>, width: u64, rows: u64) -> Res<Side> {
        let (slot, start) = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => (Slot::Any, self.host),
            CUmemorytype::CU_MEMORYTYPE_DEVICE => (Slot::Device, self.device),
            CUmemorytype::CU_MEMORYTYPE_UNIFIED => (Slot::Any, self.device),
            CUmemorytype::CU_MEMORYTYPE_ARRAY if !self.array.is_null() => {
                return Err(unsupported(call, "an array"));
            }
            _ => return Err(INVALID),
        };
        // No pitch or height means that rows or slices follow each other.
        let within = |size: u64, at: u64, length: u64| {
            let end = at.checked_add(length).ok_or(INVALID)?;
            if size == 0 { Ok(end) } else { Some(size).filter(|size| end <= *size).ok_or(INVALID) }
        };
        let pitch = within(self.pitch, self.x, width)?;
        let height = within(self.height, self.y, rows)?;
        let slice = pitch.checked_mul(height).ok_or(INVALID)?;
        let offset = (|| {
            let rows = self.y.checked_mul(pitch)?;
            self.z.checked_mul(slice)?.checked_add(rows)?.checked_add(self.x)
        })();
        let offset = offset.ok_or(INVALID)?;
        if start == 0 {
            return Err(INVALID);
        }
        // The start is looked up, not the first row: pageable memory is known by its start.
        let place = match place(call, slot, start)? {
            Place::Host(start) => Place::Host(start.checked_add(offset as usize).ok_or(INVALID)?),
            _ => Place::Memory(start.checked_add(offset).ok_or(INVALID)?),
        };
        Ok(Side { pitch, slice, ..Side::linear(place) })
    }
}

fn rows(call: &Call<'_>, stream: &StreamRef, rows: &Rows, returns: Returns) -> Res {
    let Rows { width, height, depth, .. } = *rows;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let (to, from) = (rows.to.side(call, width, height)?, rows.from.side(call, width, height)?);
    submit(call, stream, Transfer { to, from, width, height, depth, peer: false, device: None }, returns)
}

fn rows_2d(c: &CUDA_MEMCPY2D) -> Rows {
    let end = |kind, host: u64, device, array, x: usize, y: usize, pitch: usize| End {
        kind,
        host,
        device,
        array,
        x: x as u64,
        y: y as u64,
        z: 0,
        pitch: pitch as u64,
        height: 0,
    };
    Rows {
        to: end(
            c.dstMemoryType,
            c.dstHost.addr() as u64,
            c.dstDevice,
            c.dstArray,
            c.dstXInBytes,
            c.dstY,
            c.dstPitch,
        ),
        from: end(
            c.srcMemoryType,
            c.srcHost.addr() as u64,
            c.srcDevice,
            c.srcArray,
            c.srcXInBytes,
            c.srcY,
            c.srcPitch,
        ),
        width: c.WidthInBytes as u64,
        height: c.Height as u64,
        depth: 1,
    }
}

fn rows_3d(c: &CUDA_MEMCPY3D) -> Rows {
    Rows {
        to: End {
            kind: c.dstMemoryType,
            host: c.dstHost.addr() as u64,
            device: c.dstDevice,
            array: c.dstArray,
            x: c.dstXInBytes as u64,
            y: c.dstY as u64,
            z: c.dstZ as u64,
            pitch: c.dstPitch as u64,
            height: c.dstHeight as u64,
        },
        from: End {
            kind: c.srcMemoryType,
            host: c.srcHost.addr() as u64,
            device: c.srcDevice,
            array: c.srcArray,
            x: c.srcXInBytes as u64,
            y: c.srcY as u64,
            z: c.srcZ as u64,
            pitch: c.srcPitch as u64,
            height: c.srcHeight as u64,
        },
        width: c.WidthInBytes as u64,
        height: c.Height as u64,
        depth: c.Depth as u64,
    }
}

/// The work of a copy that a descriptor of three dimensions gives, checked: for graph nodes.
pub(crate) fn transfer_3d(call: &Call<'_>, copy: &CUDA_MEMCPY3D, device: i32) -> Res<Transfer> {
    let Rows { to, from, width, height, depth } = rows_3d(copy);
    let (to, from) = (to.side(call, width, height)?, from.side(call, width, height)?);
    let mut copy = Transfer { to, from, width, height, depth, peer: false, device: None };
    copy.identify(&call.core.space);
    copy.check(&call.core.space, View::Submission, device).map_err(|_| INVALID)?;
    Ok(copy)
}

entries! {
    fn cuMemcpy(call, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        linear(call, &legacy(call)?, (Slot::Any, to), (Slot::Any, from), bytes, Returns::Done)
    }

    fn cuMemcpyAsync(call, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        linear(call, &call.stream(stream)?, (Slot::Any, to), (Slot::Any, from), bytes, Returns::Queued)
    }

    fn cuMemcpyHtoD(call, to: CUdeviceptr, from: *const c_void, bytes: usize) {
        let from = from.raw().expose_provenance() as u64;
        linear(call, &legacy(call)?, (Slot::Device, to), (Slot::Any, from), bytes, Returns::Done)
    }

    fn cuMemcpyHtoDAsync(call, to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        let from = from.raw().expose_provenance() as u64;
        linear(call, &call.stream(stream)?, (Slot::Device, to), (Slot::Any, from), bytes, Returns::Queued)
    }

    fn cuMemcpyDtoH(call, to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        let to = to.raw().expose_provenance() as u64;
        linear(call, &legacy(call)?, (Slot::Any, to), (Slot::Device, from), bytes, Returns::Done)
    }

    fn cuMemcpyDtoHAsync(call, to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        let to = to.raw().expose_provenance() as u64;
        linear(call, &call.stream(stream)?, (Slot::Any, to), (Slot::Device, from), bytes, Returns::Queued)
    }

    fn cuMemcpyDtoD(call, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        linear(call, &legacy(call)?, (Slot::Device, to), (Slot::Device, from), bytes, Returns::Done)
    }

    fn cuMemcpyDtoDAsync(call, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        linear(call, &call.stream(stream)?, (Slot::Device, to), (Slot::Device, from), bytes, Returns::Queued)
    }

    fn cuMemcpyPeer(call, to: CUdeviceptr, _to_context: CUcontext, from: CUdeviceptr, _from_context: CUcontext, bytes: usize) {
        between(call, &legacy(call)?, to, from, bytes, Returns::Done)
    }

    fn cuMemcpyPeerAsync(call, to: CUdeviceptr, _to_context: CUcontext, from: CUdeviceptr, _from_context: CUcontext, bytes: usize, stream: CUstream) {
        between(call, &call.stream(stream)?, to, from, bytes, Returns::Queued)
    }

    fn cuMemcpy2D(call, copy: *const CUDA_MEMCPY2D) {
        rows(call, &legacy(call)?, &rows_2d(&copy.get()?), Returns::Done)
    }

    fn cuMemcpy2DUnaligned(call, copy: *const CUDA_MEMCPY2D) {
        rows(call, &legacy(call)?, &rows_2d(&copy.get()?), Returns::Done)
    }

    fn cuMemcpy2DAsync(call, copy: *const CUDA_MEMCPY2D, stream: CUstream) {
        rows(call, &call.stream(stream)?, &rows_2d(&copy.get()?), Returns::Queued)
    }

    fn cuMemcpy3D(call, copy: *const CUDA_MEMCPY3D) {
        rows(call, &legacy(call)?, &rows_3d(&copy.get()?), Returns::Done)
    }

    fn cuMemcpy3DAsync(call, copy: *const CUDA_MEMCPY3D, stream: CUstream) {
        rows(call, &call.stream(stream)?, &rows_3d(&copy.get()?), Returns::Queued)
    }
}
