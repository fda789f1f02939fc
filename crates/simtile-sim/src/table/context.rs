//! Contexts: primary and created ones, the current one, limits, peer access.

use crate::core::{ContextRef, Res};
use crate::entry::{Call, entries};
use core::ffi::{c_int, c_uint};
use simtile_driver::sys::*;

const FLAGS: u32 = CUctx_flags::CU_CTX_FLAGS_MASK.0;
const SCHEDULING: u32 = CUctx_flags::CU_CTX_SCHED_MASK.0;

/// Checks context flags: known bits, and one way of waiting at most.
fn check_flags(flags: u32) -> Res {
    if flags & !FLAGS != 0 || !matches!(flags & SCHEDULING, 0 | 1 | 2 | 4) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A limit that this device does not have, or that does not exist.
fn unknown_limit(limit: CUlimit) -> CUresult {
    if limit.0 < CUlimit::CU_LIMIT_MAX.0 { CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT } else { INVALID }
}

/// Every context maps host memory.
const MAP_HOST: u32 = CUctx_flags::CU_CTX_MAP_HOST.0;

/// Ends the primary context of a device whatever its number of users.
fn end_primary(call: &Call<'_>, device: i32, context: u64) -> Res {
    let handle = {
        let state = call.core.state.lock();
        state.contexts.get(&context).map(|c| c.handle)
    };
    match handle {
        Some(handle) => call.core.end_context(&ContextRef { uid: context, device, handle, green: None }),
        None => Ok(()),
    }
}

/// One more user of a device's primary context, which is made for the first. Its uid.
pub(super) fn retain_primary(call: &Call<'_>, device: i32) -> Res<u64> {
    let mut state = call.core.state.lock();
    let (known, flags) = {
        let primary = &state.primaries[device as usize];
        (primary.context, primary.flags)
    };
    let uid = match known {
        Some(uid) => uid,
        None => call.core.add_context_locked(&mut state, device, flags, true)?.uid,
    };
    let primary = &mut state.primaries[device as usize];
    primary.context = Some(uid);
    primary.retains += 1;
    Ok(uid)
}

/// One user less; the context ends with the last.
pub(super) fn release_primary(call: &Call<'_>, device: i32) -> Res {
    let ended = {
        let mut state = call.core.state.lock();
        let primary = &mut state.primaries[device as usize];
        if primary.retains == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.retains -= 1;
        if primary.retains == 0 { primary.context.take() } else { None }
    };
    match ended {
        Some(context) => end_primary(call, device, context),
        None => Ok(()),
    }
}

entries! {
    fn cuDevicePrimaryCtxRetain(call, out: *mut CUcontext, device: CUdevice) {
        out.check()?;
        let device = call.core.device(device)?;
        let uid = retain_primary(call, device)?;
        let state = call.core.state.lock();
        out.set(state.contexts.get(&uid).map_or(CUcontext::NULL, |context| context.handle))
    }

    fn cuDevicePrimaryCtxRelease(call, device: CUdevice) {
        let device = call.core.device(device)?;
        release_primary(call, device)
    }

    fn cuDevicePrimaryCtxReset(call, device: CUdevice) {
        let device = call.core.device(device)?;
        let ended = {
            let mut state = call.core.state.lock();
            let primary = &mut state.primaries[device as usize];
            primary.retains = 0;
            primary.flags = 0;
            primary.context.take()
        };
        match ended {
            Some(context) => end_primary(call, device, context),
            None => Ok(()),
        }
    }

    fn cuDevicePrimaryCtxGetState(call, device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        flags.check()?;
        active.check()?;
        let device = call.core.device(device)?;
        let state = call.core.state.lock();
        let primary = &state.primaries[device as usize];
        flags.set(primary.flags)?;
        active.set(c_int::from(primary.context.is_some()))
    }

    fn cuDevicePrimaryCtxSetFlags(call, device: CUdevice, flags: c_uint) {
        let device = call.core.device(device)?;
        check_flags(flags)?;
        let mut state = call.core.state.lock();
        let primary = &mut state.primaries[device as usize];
        primary.flags = flags;
        if let Some(uid) = primary.context
            && let Some(context) = state.contexts.get_mut(&uid)
        {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuCtxCreate(call, out: *mut CUcontext, flags: c_uint, device: CUdevice) {
        out.check()?;
        let device = call.core.device(device)?;
        check_flags(flags)?;
        let context = call.core.add_context(device, flags, false)?;
        call.push_current(context.handle);
        out.set(context.handle)
    }

    fn cuCtxDestroy(call, handle: CUcontext) {
        if handle.is_null() {
            return Err(INVALID);
        }
        let context = {
            let state = call.core.state.lock();
            let context = call.core.context_of(&state, handle)?;
            if state.contexts.get(&context.uid).is_some_and(|c| c.primary) {
                return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
            }
            context
        };
        if call.current_handle() == handle {
            call.pop_current();
        }
        call.core.end_context(&context)
    }

    fn cuCtxGetCurrent(call, out: *mut CUcontext) {
        out.set(call.current_handle())
    }

    fn cuCtxSetCurrent(call, handle: CUcontext) {
        if !handle.is_null() {
            let state = call.core.state.lock();
            call.core.context_of(&state, handle)?;
        }
        call.set_current(handle);
        Ok(())
    }

    fn cuCtxPushCurrent(call, handle: CUcontext) {
        {
            let state = call.core.state.lock();
            call.core.context_of(&state, handle)?;
        }
        call.push_current(handle);
        Ok(())
    }

    fn cuCtxPopCurrent(call, out: *mut CUcontext) {
        let top = call.pop_current().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        out.set_if(top);
        Ok(())
    }

    fn cuCtxGetDevice(call, out: *mut CUdevice) {
        out.check()?;
        let handle = call.current_handle();
        if handle.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        // Also of a lost context.
        let state = call.core.state.lock();
        out.set(call.core.context_of(&state, handle)?.device)
    }

    fn cuCtxGetFlags(call, out: *mut c_uint) {
        out.check()?;
        let context = call.context()?;
        let state = call.core.state.lock();
        out.set(state.contexts.get(&context.uid).map_or(0, |c| c.flags | MAP_HOST))
    }

    fn cuCtxSetFlags(call, flags: c_uint) {
        check_flags(flags)?;
        let context = call.context()?;
        let mut state = call.core.state.lock();
        if let Some(context) = state.contexts.get_mut(&context.uid) {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuCtxGetId(call, handle: CUcontext, out: *mut u64) {
        out.check()?;
        let context = call.context_or_current(handle)?;
        out.set(context.green.unwrap_or(context.uid))
    }

    fn cuCtxGetApiVersion(call, handle: CUcontext, out: *mut c_uint) {
        out.check()?;
        call.context_or_current(handle)?;
        out.set(3020)
    }

    fn cuCtxGetLimit(call, out: *mut usize, limit: CUlimit) {
        out.check()?;
        let context = call.context()?;
        let state = call.core.state.lock();
        let value = state.contexts.get(&context.uid).and_then(|c| c.limit(limit));
        out.set(value.ok_or(unknown_limit(limit))?)
    }

    fn cuCtxSetLimit(call, limit: CUlimit, value: usize) {
        let context = call.context()?;
        let known = {
            let state = call.core.state.lock();
            state.contexts.get(&context.uid).is_some_and(|c| c.limit(limit).is_some())
        };
        let value = match (known, limit) {
            (false, _) => return Err(unknown_limit(limit)),
            // Local memory for all threads of the device at once must fit; in steps of 16 bytes.
            (_, CUlimit::CU_LIMIT_STACK_SIZE) if value >= 512 << 10 => return Err(INVALID),
            (_, CUlimit::CU_LIMIT_STACK_SIZE) => value.next_multiple_of(16),
            (_, CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY) if value > 128 => return Err(INVALID),
            (_, CUlimit::CU_LIMIT_SHMEM_SIZE | CUlimit::CU_LIMIT_CIG_ENABLED) => {
                return Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT);
            }
            // Least sizes, read from an H200.
            (_, CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE) => value.max(512 << 10),
            (_, CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE) => value.max(4 << 20),
            (_, CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE) => value.clamp(3_932_160, 39_321_600),
            _ => value,
        };
        // The real driver waits for everything here.
        call.core.stall(&context)?;
        let mut state = call.core.state.lock();
        if let Some(context) = state.contexts.get_mut(&context.uid) {
            context.limits.insert(limit.0, value);
        }
        Ok(())
    }

    fn cuCtxSynchronize(call) {
        let context = call.context()?;
        call.core.state.lock().refuse_capturing_in(context.uid)?;
        call.core.synchronize_context(&context)
    }

    fn cuCtxGetStreamPriorityRange(call, least: *mut c_int, greatest: *mut c_int) {
        call.context()?;
        let (low, high) = call.core.profile.priorities();
        least.set_if(low);
        greatest.set_if(high);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(call, peer: CUcontext, flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (context, peer) = (call.context()?, call.context_from(peer)?);
        if context.device == peer.device {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let mut state = call.core.state.lock();
        if let Some(context) = state.contexts.get_mut(&context.uid)
            && !context.peers.insert(peer.uid)
        {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        call.core.space.set_peer_access(context.device, peer.device, true);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(call, peer: CUcontext) {
        let (context, peer) = (call.context()?, call.context_from(peer)?);
        let mut state = call.core.state.lock();
        if let Some(context) = state.contexts.get_mut(&context.uid)
            && !context.peers.remove(&peer.uid)
        {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        // Memory is reached by device: another pair of contexts may still allow it.
        let still = state.contexts.values().filter(|c| c.device == context.device).any(|c| {
            c.peers.iter().any(|uid| state.contexts.get(uid).is_some_and(|other| other.device == peer.device))
        });
        call.core.space.set_peer_access(context.device, peer.device, still);
        Ok(())
    }
}
