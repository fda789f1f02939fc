//! Which calls a capture under way allows, by thread and mode (driver-facts, *Capture*). The codes are measured.

use super::capture::{GLOBAL, LOCAL, RELAXED, begin, elsewhere, end, is_active, is_dead};
use crate::frame::{Check, Cx};
use crate::gpu::Gpu;
use crate::{code, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "capture_calls";
    query_of_the_capturing_stream_from_another_thread,
    synchronize_of_the_capturing_stream_from_another_thread,
    synchronize_of_the_context_from_the_capturing_thread,
    earlier_events_from_other_threads,
    earlier_events_in_relaxed_mode,
    earlier_events_on_the_capturing_thread,
    global_mode_refuses_event_queries,
    global_mode_refuses_event_waits,
    global_mode_refuses_allocations,
    global_mode_refuses_frees,
    global_mode_refuses_unloads,
    other_modes_leave_other_threads_alone,
}

const MODES: [CUstreamCaptureMode; 3] = [GLOBAL, LOCAL, RELAXED];

fn query_of_the_capturing_stream_from_another_thread(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for mode in MODES {
        let stream = gpu.stream()?;
        begin(cx, stream, mode)?;
        elsewhere(&gpu, || code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuStreamQuery(stream)))?;
        is_dead(cx, stream)?;
    }
    Ok(())
}

fn synchronize_of_the_capturing_stream_from_another_thread(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for mode in MODES {
        let stream = gpu.stream()?;
        begin(cx, stream, mode)?;
        elsewhere(&gpu, || code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuStreamSynchronize(stream)))?;
        is_dead(cx, stream)?;
    }
    Ok(())
}

fn synchronize_of_the_context_from_the_capturing_thread(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for mode in MODES {
        let stream = gpu.stream()?;
        begin(cx, stream, mode)?;
        code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuCtxSynchronize())?;
        is_dead(cx, stream)?;
    }
    Ok(())
}

/// Query and synchronisation of an event recorded before the capture: fine, but in global mode.
fn earlier_events_from_other_threads(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for mode in [LOCAL, RELAXED] {
        let stream = gpu.stream()?;
        let event = gpu.recorded(stream)?;
        begin(cx, stream, mode)?;
        elsewhere(&gpu, || {
            ok!(cx, cuEventSynchronize(event))?;
            ok!(cx, cuEventQuery(event))
        })?;
        ensure!(is_active(cx, stream)?, "the capture did not survive");
        end(cx, stream)?;
    }
    Ok(())
}

fn earlier_events_in_relaxed_mode(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let event = gpu.recorded(stream)?;
    begin(cx, stream, RELAXED)?;
    ok!(cx, cuEventSynchronize(event))?;
    ok!(cx, cuEventQuery(event))?;
    ensure!(is_active(cx, stream)?, "the capture did not survive");
    end(cx, stream).map(drop)
}

/// In thread-local mode an H200 answers 900 to a synchronisation with any event on the capturing thread.
fn earlier_events_on_the_capturing_thread(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let event = gpu.recorded(stream)?;
    gpu.finishes(event, "an event on an idle stream")?;
    begin(cx, stream, LOCAL)?;
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuEventSynchronize(event))?;
    is_dead(cx, stream)
}

/// In a global capture the call answers 900 and kills it, on the capturing thread and on others; a thread in relaxed
/// mode may make it.
fn refused_in_global_mode(gpu: &Gpu<'_>, call: impl Fn(&[CUresult]) -> Check + Sync) -> Check {
    let cx = gpu.cx();
    let refused = || call(&[CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED]);
    let stream = gpu.stream()?;
    begin(cx, stream, GLOBAL)?;
    refused().map_err(|stop| stop.within("capturing thread"))?;
    is_dead(cx, stream)?;
    begin(cx, stream, GLOBAL)?;
    elsewhere(gpu, refused).map_err(|stop| stop.within("another thread"))?;
    is_dead(cx, stream)?;
    begin(cx, stream, GLOBAL)?;
    elsewhere(gpu, || {
        let mut mode = RELAXED;
        ok!(cx, cuThreadExchangeStreamCaptureMode(&mut mode))?;
        ensure_eq!(mode, GLOBAL, "mode of a new thread");
        call(&[CUresult::CUDA_SUCCESS])
    })
    .map_err(|stop| stop.within("a thread in relaxed mode"))?;
    ensure!(is_active(cx, stream)?, "a call of a thread in relaxed mode killed the capture");
    end(cx, stream).map(drop)
}

macro_rules! returns {
    ($cx:expr, $codes:expr, $entry:ident($($arg:expr),*)) => {
        crate::frame::returned(
            $cx.driver(),
            simtile_driver::Entry::$entry,
            crate::cu!($cx, $entry($($arg),*)),
            $codes,
            concat!(file!(), ":", line!()),
        )
    };
}

fn global_mode_refuses_event_queries(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let event = gpu.recorded(gpu.stream()?)?;
    gpu.finishes(event, "an event on an idle stream")?;
    refused_in_global_mode(&gpu, |codes| returns!(cx, codes, cuEventQuery(event)))
}

fn global_mode_refuses_event_waits(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let event = gpu.recorded(gpu.stream()?)?;
    gpu.finishes(event, "an event on an idle stream")?;
    refused_in_global_mode(&gpu, |codes| returns!(cx, codes, cuEventSynchronize(event)))
}

fn global_mode_refuses_allocations(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    refused_in_global_mode(&gpu, |codes| {
        let mut memory = 0;
        returns!(cx, codes, cuMemAlloc(&mut memory, 4096))
    })
}

fn global_mode_refuses_frees(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let memory = gpu.alloc(4096)?;
    refused_in_global_mode(&gpu, |codes| returns!(cx, codes, cuMemFree(memory)))
}

fn global_mode_refuses_unloads(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    refused_in_global_mode(&gpu, |codes| returns!(cx, codes, cuModuleUnload(module)))
}

fn other_modes_leave_other_threads_alone(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for mode in [LOCAL, RELAXED] {
        let (stream, module) = (gpu.stream()?, gpu.module(kernels::BASIC)?);
        begin(cx, stream, mode)?;
        elsewhere(&gpu, || {
            let memory = gpu.alloc(4096)?;
            ok!(cx, cuMemFree(memory))?;
            ok!(cx, cuModuleUnload(module))
        })?;
        ensure!(is_active(cx, stream)?, "a call of another thread killed the capture");
        end(cx, stream)?;
    }
    Ok(())
}
