//! Stream capture, see `engine/capture.rs`.

use crate::core::{Res, StreamRef};
use crate::engine::capture::exchange_mode;
use crate::entry::{Call, In, entries};
use crate::graph::NodeId;
use core::ffi::c_uint;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;

fn begin(
    call: &Call<'_>,
    stream: CUstream,
    mode: CUstreamCaptureMode,
    into: Option<(u64, Vec<NodeId>)>,
) -> Res {
    mode.name().ok_or(INVALID)?;
    let stream = call.stream(stream)?;
    call.core.state.lock().begin_capture(&stream, mode, into)
}

/// The status of a stream, or that it would be part of another's capture.
fn status(call: &Call<'_>, stream: &StreamRef) -> Res<CUstreamCaptureStatus> {
    let state = call.core.state.lock();
    if !state.implied(stream).is_empty() {
        return Err(IMPLICIT);
    }
    Ok(match state.capture_of(stream.uid) {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some((_, capture)) if capture.dead => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
    })
}

/// The elements of an array argument; none if there are to be none.
pub(super) fn handles<T: Copy>(list: &In<T>, count: usize) -> Res<Vec<T>> {
    (0..count).map(|i| list.get_at(i)).collect()
}

entries! {
    fn cuStreamBeginCapture(call, stream: CUstream, mode: CUstreamCaptureMode) {
        begin(call, stream, mode, None)
    }

    fn cuStreamBeginCaptureToGraph(call, stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) {
        // Every dependency of a captured node is a full one here.
        if !data.is_null() && handles(&data, count)?.iter().any(|data| data.type_ != 0) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let into = {
            let state = call.core.state.lock();
            let uid = state.graphs.uid(graph)?;
            (uid, state.graphs.nodes_of(uid, &handles(&dependencies, count)?)?)
        };
        begin(call, stream, mode, Some(into))
    }

    fn cuStreamEndCapture(call, stream: CUstream, graph: *mut CUgraph) {
        graph.check()?;
        let stream = call.stream(stream)?;
        let mut state = call.core.state.lock();
        let ended = state.end_capture(&stream);
        call.core.sweep_graph_memory(&mut state);
        graph.set(ended.unwrap_or(CUgraph::NULL))?;
        ended.map(drop)
    }

    fn cuStreamIsCapturing(call, stream: CUstream, out: *mut CUstreamCaptureStatus) {
        out.check()?;
        let stream = call.stream(stream)?;
        out.set(status(call, &stream)?)
    }

    fn cuStreamGetCaptureInfo(call, stream: CUstream, out: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, nodes: *mut *const CUgraphNode, count: *mut usize) {
        out.check()?;
        let stream = call.stream(stream)?;
        let found = status(call, &stream)?;
        out.set(found)?;
        let mut state = call.core.state.lock();
        let own = state.capture_of(stream.uid).filter(|(_, capture)| !capture.dead);
        let Some((own, graph_uid)) = own.map(|(id, capture)| (id, capture.graph)) else {
            id.set_if(0);
            graph.set_if(CUgraph::NULL);
            nodes.set_if(core::ptr::null());
            count.set_if(0);
            return Ok(());
        };
        id.set_if(own);
        let known = state.graphs.graph(graph_uid)?;
        graph.set_if(known.handle);
        let membership = state.streams.get(&stream.uid).and_then(|stream| stream.capture.as_ref());
        let after = membership.into_iter().flat_map(|membership| &membership.after);
        let shown: Vec<CUgraphNode> = after.filter_map(|node| known.nodes.get(node).copied()).collect();
        count.set_if(shown.len());
        if let Some(membership) = state.streams.get_mut(&stream.uid).and_then(|stream| stream.capture.as_mut()) {
            // Valid until the stream is asked again.
            membership.shown = shown;
            nodes.set_if(membership.shown.as_ptr());
        }
        Ok(())
    }

    fn cuStreamUpdateCaptureDependencies(call, stream: CUstream, dependencies: *mut CUgraphNode, count: usize, flags: c_uint) {
        let stream = call.stream(stream)?;
        let list = (0..count).map(|i| dependencies.get_at(i)).collect::<Res<Vec<_>>>()?;
        let mut state = call.core.state.lock();
        let (_, capture) = state.capture_of(stream.uid).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.dead {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let nodes = state.graphs.nodes_of(capture.graph, &list)?;
        let membership = state.streams.get_mut(&stream.uid).and_then(|stream| stream.capture.as_mut());
        let membership = membership.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        match flags {
            // CU_STREAM_ADD_CAPTURE_DEPENDENCIES
            0 => {}
            // CU_STREAM_SET_CAPTURE_DEPENDENCIES
            1 => membership.after.clear(),
            _ => return Err(INVALID),
        }
        for node in nodes {
            if !membership.after.contains(&node) {
                membership.after.push(node);
            }
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(_call, mode: *mut CUstreamCaptureMode) {
        let wanted = mode.get()?;
        wanted.name().ok_or(INVALID)?;
        mode.set(exchange_mode(wanted))
    }
}
