//! Streams.

use super::event::event_uid;
use crate::core::Res;
use crate::engine::graphs::NodeWork;
use crate::engine::work::{Compare, HostCall, WaitValue, Work};
use crate::entry::{Call, entries};
use crate::memory::View;
use core::ffi::{c_int, c_uint, c_void};
use simtile_driver::sys::*;

fn create(call: &Call<'_>, flags: u32, priority: i32) -> Res<CUstream> {
    let context = call.context()?;
    if flags & !CUstream_flags::CU_STREAM_NON_BLOCKING.0 != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    call.core.pass_blocked_launches(&context)?;
    let (low, high) = call.core.profile.priorities();
    let mut state = call.core.state.lock();
    call.core.context_health(&state, context.uid)?;
    let made = call.core.add_stream(&mut state, context.uid, flags, priority.clamp(high, low), false);
    let (uid, handle) = made.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    if let Some(stream) = state.streams.get_mut(&uid) {
        stream.green = context.green;
    }
    Ok(handle)
}

/// Something of a stream's state.
fn look<T>(
    call: &Call<'_>,
    handle: CUstream,
    get: impl FnOnce(&crate::engine::state::StreamState) -> T,
) -> Res<T> {
    let stream = call.stream(handle)?;
    let state = call.core.state.lock();
    state.streams.get(&stream.uid).map(get).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

const FLUSH: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH.0;

fn wait_value(call: &Call<'_>, address: u64, value: u64, flags: u32, wide: bool) -> Res<Work> {
    let compare = match CUstreamWaitValue_flags(flags) {
        CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ => Compare::Geq,
        CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ => Compare::Eq,
        CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND => Compare::And,
        CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_NOR => Compare::Nor,
        // The H200 cannot flush remote writes.
        _ if flags & FLUSH != 0 => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    check_address(call, address, wide)?;
    Ok(Work::WaitValue(WaitValue { address, value, wide, compare }))
}

fn write_value(call: &Call<'_>, address: u64, value: u64, flags: u32, wide: bool) -> Res<Work> {
    // Also without the memory barrier: the real driver refuses that flag.
    if flags != CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    check_address(call, address, wide)?;
    Ok(Work::WriteValue { address, value, wide })
}

/// The address of a value: mapped and aligned.
fn check_address(call: &Call<'_>, address: u64, wide: bool) -> Res {
    let bytes = if wide { 8 } else { 4 };
    let mapped = call.core.space.locate_in(View::Submission, address, bytes).is_ok();
    if !address.is_multiple_of(bytes) || !mapped {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// The work of one operation of a batch, checked.
pub(super) fn batch(call: &Call<'_>, op: &CUstreamBatchMemOpParams) -> Res<Option<Work>> {
    // SAFETY: every variant begins with its operation.
    let operation = unsafe { op.operation };
    let wide = matches!(
        operation,
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64
            | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64
    );
    match operation {
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32
        | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
            // SAFETY: the operation says that this variant was filled; its integers have no invalid value.
            let wait = unsafe { op.waitValue };
            // SAFETY: as above; the width follows from the operation.
            let value = unsafe { if wide { wait.u.value64 } else { u64::from(wait.u.value) } };
            wait_value(call, wait.address, value, wait.flags, wide).map(Some)
        }
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32
        | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
            // SAFETY: as above.
            let write = unsafe { op.writeValue };
            // SAFETY: as above.
            let value = unsafe { if wide { write.u.value64 } else { u64::from(write.u.value) } };
            write_value(call, write.address, value, write.flags, wide).map(Some)
        }
        // Every write here is seen in order by all; a barrier adds nothing.
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_BARRIER => Ok(None),
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

entries! {
    fn cuStreamCreate(call, out: *mut CUstream, flags: c_uint) {
        out.check()?;
        out.set(create(call, flags, 0)?)
    }

    fn cuStreamCreateWithPriority(call, out: *mut CUstream, flags: c_uint, priority: c_int) {
        out.check()?;
        out.set(create(call, flags, priority)?)
    }

    fn cuStreamDestroy(call, handle: CUstream) {
        if handle.0 <= CUstream::PER_THREAD.0 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let mut state = call.core.state.lock();
        let uid = *state.stream_handles.get(handle.0).map_err(crate::entry::invalid_handle)?;
        let stream = state.streams.get(&uid).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let context = stream.context;
        if stream.legacy {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        call.core.drop_stream(&mut state, uid);
        call.core.context_health(&state, context)
    }

    fn cuStreamGetPriority(call, handle: CUstream, out: *mut c_int) {
        out.check()?;
        out.set(look(call, handle, |stream| stream.priority)?)
    }

    fn cuStreamGetFlags(call, handle: CUstream, out: *mut c_uint) {
        out.check()?;
        // Measured: asking a capturing stream for its flags ends the capture.
        let stream = call.stream(handle)?;
        call.core.state.lock().refuse_capturing(stream.uid)?;
        out.set(look(call, handle, |stream| stream.flags)?)
    }

    fn cuStreamGetId(call, handle: CUstream, out: *mut u64) {
        out.check()?;
        out.set(call.stream(handle)?.uid)
    }

    fn cuStreamGetCtx(call, handle: CUstream, out: *mut CUcontext) {
        out.check()?;
        let context = call.stream(handle)?.context;
        let state = call.core.state.lock();
        let green = context.green.and_then(|green| state.greens.get(&green));
        out.set(green.map_or(context.handle, |green| green.context))
    }

    fn cuStreamGetDevice(call, handle: CUstream, out: *mut CUdevice) {
        out.check()?;
        out.set(call.stream(handle)?.context.device)
    }

    fn cuStreamQuery(call, handle: CUstream) {
        let stream = call.stream(handle)?;
        call.core.refuse_look(&stream)?;
        call.core.query_stream(&stream)
    }

    fn cuStreamSynchronize(call, handle: CUstream) {
        let stream = call.stream(handle)?;
        call.core.refuse_look(&stream)?;
        call.core.synchronize_stream(&stream)
    }

    fn cuStreamWaitEvent(call, handle: CUstream, event: CUevent, flags: c_uint) {
        match CUevent_wait_flags(flags) {
            CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT => {}
            // Only means something in a capture: a node that waits at every launch.
            CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL => {
                let stream = call.stream(handle)?;
                let (event, _) = event_uid(call, event)?;
                return call.core.state.lock().capture_node(stream.uid, NodeWork::Wait(event));
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        let stream = call.stream(handle)?;
        let (event, _) = event_uid(call, event)?;
        call.core.enqueue(&stream, Work::Wait(event))
    }

    fn cuStreamGetAttribute(call, handle: CUstream, attribute: CUlaunchAttributeID, out: *mut CUlaunchAttributeValue) {
        out.check()?;
        let (priority, policy) = look(call, handle, |stream| (stream.priority, stream.sync_policy))?;
        let mut value = CUlaunchAttributeValue { pad: [0; 64] };
        match attribute {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => value.priority = priority,
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => {
                value.syncPolicy = CUsynchronizationPolicy(policy);
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => {}
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        out.set(value)
    }

    fn cuStreamSetAttribute(call, handle: CUstream, attribute: CUlaunchAttributeID, value: *const CUlaunchAttributeValue) {
        let stream = call.stream(handle)?;
        let value = value.get()?;
        let (low, high) = call.core.profile.priorities();
        let mut state = call.core.state.lock();
        let stream = state.streams.get_mut(&stream.uid).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        match attribute {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                // SAFETY: the attribute says which variant was filled; integers have no invalid value.
                let priority = unsafe { value.priority };
                if !(high..=low).contains(&priority) {
                    return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
                }
                stream.priority = priority;
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => {
                // SAFETY: as above.
                let policy = unsafe { value.syncPolicy };
                policy.name().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
                stream.sync_policy = policy.0;
            }
            // Hints without an effect here.
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => {}
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuStreamWaitValue32(call, handle: CUstream, address: CUdeviceptr, value: u32, flags: c_uint) {
        let stream = call.stream(handle)?;
        call.core.enqueue(&stream, wait_value(call, address, value.into(), flags, false)?)
    }

    fn cuStreamWaitValue64(call, handle: CUstream, address: CUdeviceptr, value: u64, flags: c_uint) {
        let stream = call.stream(handle)?;
        call.core.enqueue(&stream, wait_value(call, address, value, flags, true)?)
    }

    fn cuStreamWriteValue32(call, handle: CUstream, address: CUdeviceptr, value: u32, flags: c_uint) {
        let stream = call.stream(handle)?;
        call.core.enqueue(&stream, write_value(call, address, value.into(), flags, false)?)
    }

    fn cuStreamWriteValue64(call, handle: CUstream, address: CUdeviceptr, value: u64, flags: c_uint) {
        let stream = call.stream(handle)?;
        call.core.enqueue(&stream, write_value(call, address, value, flags, true)?)
    }

    fn cuStreamBatchMemOp(call, handle: CUstream, count: c_uint, ops: *mut CUstreamBatchMemOpParams, flags: c_uint) {
        let stream = call.stream(handle)?;
        if flags != 0 || count > 256 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // All are checked before any is queued.
        let mut works = Vec::new();
        for i in 0..count as usize {
            works.extend(batch(call, &ops.get_at(i)?)?);
        }
        works.into_iter().try_for_each(|work| call.core.enqueue(&stream, work))
    }

    fn cuLaunchHostFunc(call, handle: CUstream, function: CUhostFn, data: *mut c_void) {
        let stream = call.stream(handle)?;
        if function.is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let data = data.raw().expose_provenance();
        call.core.enqueue(&stream, Work::Host(HostCall { function, data }))
    }
}
