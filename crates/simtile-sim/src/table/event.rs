//! Events.

use crate::core::Res;
use crate::engine::graphs::NodeWork;
use crate::engine::state::EventState;
use crate::engine::work::{Record, Work};
use crate::entry::{Call, entries, invalid_handle};
use core::ffi::c_uint;
use simtile_driver::sys::*;
use simtile_sync::Arc;

/// What an entry needs to know of an event.
struct EventRef {
    uid: u64,
    context: u64,
    flags: u32,
    record: Option<Arc<Record>>,
    captured: Option<u64>,
}

fn event(call: &Call<'_>, handle: CUevent) -> Res<EventRef> {
    let state = call.core.state.lock();
    let uid = *state.event_handles.get(handle.0).map_err(invalid_handle)?;
    let event = state.events.get(&uid).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let captured = event.captured.as_ref().map(|captured| captured.id);
    let record = event.record.clone();
    let found = EventRef { uid, context: event.context, flags: event.flags, record, captured };
    call.core.context_health(&state, found.context)?;
    Ok(found)
}

/// The uid of an event and of its context.
pub(super) fn event_uid(call: &Call<'_>, handle: CUevent) -> Res<(u64, u64)> {
    let event = event(call, handle)?;
    Ok((event.uid, event.context))
}

fn record(call: &Call<'_>, handle: CUevent, stream: CUstream) -> Res {
    let event = event(call, handle)?;
    let stream = call.stream(stream)?;
    if event.context != stream.context.uid {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    call.core.enqueue(&stream, Work::Record(event.uid))
}

/// Looking at an event: not at a captured one, and not at any while a capture minds.
fn refuse_in_capture(call: &Call<'_>, event: &EventRef) -> Res {
    let mut state = call.core.state.lock();
    if let Some(id) = event.captured {
        state.kill_capture(id);
        return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
    }
    state.refuse_unsafe()
}

const DISABLE_TIMING: u32 = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
const INTERPROCESS: u32 = CUevent_flags::CU_EVENT_INTERPROCESS.0;
const ALL_FLAGS: u32 = CUevent_flags::CU_EVENT_BLOCKING_SYNC.0 | DISABLE_TIMING | INTERPROCESS;

entries! {
    fn cuEventCreate(call, out: *mut CUevent, flags: c_uint) {
        out.check()?;
        let context = call.context()?;
        if flags & !ALL_FLAGS != 0 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        call.core.pass_blocked_launches(&context)?;
        let mut state = call.core.state.lock();
        let uid = state.uid();
        let handle = state.event_handles.insert(uid).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let handle = CUevent(handle);
        state.events.insert(uid, EventState { handle, context: context.uid, flags, record: None, captured: None });
        out.set(handle)
    }

    fn cuEventDestroy(call, handle: CUevent) {
        let context = {
            let state = call.core.state.lock();
            let uid = *state.event_handles.get(handle.0).map_err(invalid_handle)?;
            state.events.get(&uid).map_or(0, |event| event.context)
        };
        let mut state = call.core.state.lock();
        call.core.wait_until(&mut state, |state| {
            state.contexts.get(&context).is_none_or(|c| c.blocked == 0 || c.lost.is_some())
        })?;
        let uid = state.event_handles.remove(handle.0).map_err(invalid_handle)?;
        // Queued records and waits keep what they need.
        state.events.remove(&uid);
        call.core.context_health(&state, context)
    }

    fn cuEventQuery(call, handle: CUevent) {
        let event = event(call, handle)?;
        refuse_in_capture(call, &event)?;
        match event.record {
            Some(record) if !record.is_over() => Err(CUresult::CUDA_ERROR_NOT_READY),
            Some(record) => {
                let mut state = call.core.state.lock();
                match record.known() {
                    Some(known) => {
                        state.order.host_learns(known);
                        Ok(())
                    }
                    // Given up: its context was lost after the event was looked up.
                    None => call.core.context_health(&state, event.context),
                }
            }
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(call, handle: CUevent) {
        let event = event(call, handle)?;
        refuse_in_capture(call, &event)?;
        if let Some(record) = event.record {
            call.core.wait_record(&record, event.context)?;
        }
        call.core.printf.flush(event.context);
        Ok(())
    }

    fn cuEventRecord(call, handle: CUevent, stream: CUstream) {
        record(call, handle, stream)
    }

    fn cuEventRecordWithFlags(call, handle: CUevent, stream: CUstream, flags: c_uint) {
        // The external flag only means something in a capture.
        match CUevent_record_flags(flags) {
            CUevent_record_flags::CU_EVENT_RECORD_DEFAULT => record(call, handle, stream),
            CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL => {
                let event = event(call, handle)?;
                let stream = call.stream(stream)?;
                let mut state = call.core.state.lock();
                state.capture_node(stream.uid, NodeWork::Record(event.uid))
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuEventElapsedTime(call, out: *mut f32, start: CUevent, end: CUevent) {
        out.check()?;
        let (start, end) = (event(call, start)?, event(call, end)?);
        if start.captured.is_some() || end.captured.is_some() {
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        let (Some(first), Some(last)) = (&start.record, &end.record) else {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        if (start.flags | end.flags) & DISABLE_TIMING != 0 || start.context != end.context {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let (Some(first), Some(last)) = (first.time(), last.time()) else {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        };
        let seconds = last.as_secs_f64() - first.as_secs_f64();
        out.set((seconds * 1e3) as f32)
    }
}
