//! Stream capture. No stream of this driver captures yet: it can be asked, and beginning answers
//! `CUDA_ERROR_NOT_SUPPORTED`, like every entry of a graph.

use crate::entry::entries;
use core::cell::Cell;
use simtile_driver::sys::*;

thread_local! {
    /// The calling thread's capture mode.
    static MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

entries! {
    fn cuStreamIsCapturing(call, stream: CUstream, status: *mut CUstreamCaptureStatus) {
        status.check()?;
        call.stream(stream)?;
        status.set(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuStreamGetCaptureInfo(call, stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, nodes: *mut *const CUgraphNode, count: *mut usize) {
        status.check()?;
        call.stream(stream)?;
        id.set_if(0);
        graph.set_if(CUgraph::NULL);
        nodes.set_if(core::ptr::null());
        count.set_if(0);
        status.set(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuStreamEndCapture(call, stream: CUstream, graph: *mut CUgraph) {
        graph.check()?;
        call.stream(stream)?;
        // It was never begun.
        Err(CUresult::CUDA_ERROR_ILLEGAL_STATE)
    }

    fn cuThreadExchangeStreamCaptureMode(_call, mode: *mut CUstreamCaptureMode) {
        let wanted = mode.get()?;
        wanted.name().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        mode.set(MODE.replace(wanted))
    }
}
