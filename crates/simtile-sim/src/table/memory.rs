//! Device memory: sizes, allocation, freeing, address ranges.

use crate::core::{ContextRef, Res};
use crate::entry::{Call, entries};
use crate::memory::{Allocation, MemoryKind, Origin, Shortage};
use crate::report::{Report, ReportKind};
use core::ffi::c_uint;
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Memory of a context. What pools have in store is given up for it.
pub(super) fn allocate(
    call: &Call<'_>,
    context: &ContextRef,
    kind: MemoryKind,
    bytes: u64,
    flags: u32,
) -> Res<Arc<Allocation>> {
    let core = call.core;
    core.pass_blocked_launches(context)?;
    let create = || {
        let origin =
            Origin { context: context.handle.0, context_uid: context.uid, flags, ..Origin::default() };
        core.space.create(kind, context.device, bytes, 1, origin)
    };
    let made = match create() {
        Err(Shortage::Device) if core.heap.pools.trim_all(core, context.device) => create(),
        other => other,
    };
    made.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Frees memory as calls without a stream do: after all work of its context.
pub(super) fn free_waiting(call: &Call<'_>, allocation: &Allocation) -> Res {
    // Two threads may get here with one address; one of them takes the name away.
    call.core.space.unname(allocation.base).map_err(|_| INVALID)?;
    let handle = CUcontext(allocation.origin.context);
    let context = {
        let state = call.core.state.lock();
        call.core.context_of(&state, handle)
    };
    // A context that is gone has no work.
    if let Ok(context) = context
        && call.core.config.frees_wait
    {
        call.core.stall(&context)?;
    }
    call.core.space.end(allocation);
    Ok(())
}

/// Says that a call asks for what the simulator does not do.
pub(super) fn unsupported(call: &Call<'_>, what: &str) -> CUresult {
    let text = format!("{}: {what} is not supported by the simulator", call.entry.name());
    call.core.report(Report::new(ReportKind::Unsupported, text));
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

entries! {
    fn cuMemGetInfo(call, free: *mut usize, total: *mut usize) {
        let budget = call.core.space.budget(call.context()?.device);
        free.set_if(budget.free() as usize);
        total.set_if(budget.total() as usize);
        Ok(())
    }

    fn cuMemAlloc(call, out: *mut CUdeviceptr, bytes: usize) {
        out.check()?;
        let context = call.context()?;
        if bytes == 0 {
            return Err(INVALID);
        }
        out.set(allocate(call, &context, MemoryKind::Device, bytes as u64, 0)?.base)
    }

    fn cuMemAllocPitch(call, out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) {
        out.check()?;
        pitch.check()?;
        let context = call.context()?;
        if width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
            return Err(INVALID);
        }
        // Rows start where the widest access is aligned: the texture pitch alignment times 16.
        let row = width.checked_next_multiple_of(512).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        out.set(allocate(call, &context, MemoryKind::Device, bytes as u64, 0)?.base)?;
        pitch.set(row)
    }

    fn cuMemFree(call, address: CUdeviceptr) {
        if address == 0 {
            return Ok(());
        }
        if let Some(result) = call.core.free_graph_memory(address, None) {
            return result;
        }
        let allocation = call.core.space.find(address).filter(|a| a.base == address).ok_or(INVALID)?;
        match allocation.kind {
            _ if allocation.origin.variable => Err(INVALID),
            MemoryKind::Device | MemoryKind::Managed => free_waiting(call, &allocation),
            // The real driver does not wait here.
            MemoryKind::Pool => call.core.heap.pools.free_now(call.core, address),
            _ => Err(INVALID),
        }
    }

    fn cuMemGetAddressRange(call, base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) {
        call.context()?;
        let found = call.core.space.find(address).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        base.set_if(found.base);
        bytes.set_if(found.bytes as usize);
        Ok(())
    }
}
