//! Stream capture, see `engine/capture.rs`.

use super::graph::{check_edge, edge_data, shown};
use crate::core::{Res, StreamRef};
use crate::engine::capture::{Before, exchange_mode, join_dependencies};
use crate::engine::state::State;
use crate::entry::{Call, In, Out, entries};
use core::ffi::c_uint;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;

fn begin(
    call: &Call<'_>,
    stream: CUstream,
    mode: CUstreamCaptureMode,
    into: Option<(u64, Vec<Before>)>,
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

/// Nodes of a graph that a capture's next node comes after.
fn dependencies_of(state: &State, graph: u64, nodes: &[CUgraphNode], data: &[[u8; 3]]) -> Res<Vec<Before>> {
    let nodes = state.graphs.nodes_of(graph, nodes)?;
    let known = &state.graphs.graph(graph)?.graph;
    nodes.iter().zip(data).try_for_each(|(&node, &data)| check_edge(known, node, None, data))?;
    Ok(nodes.into_iter().zip(data.iter().copied()).collect())
}

/// Where a question about a capture puts its answers.
struct Info {
    out: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    nodes: Out<*const CUgraphNode>,
    /// The older form of the call has none.
    data: Option<Out<*const CUgraphEdgeData>>,
    count: Out<usize>,
}

fn info(call: &Call<'_>, stream: CUstream, to: &Info) -> Res {
    to.out.check()?;
    let stream = call.stream(stream)?;
    let found = status(call, &stream)?;
    to.out.set(found)?;
    let mut state = call.core.state.lock();
    let own = state.capture_of(stream.uid).filter(|(_, capture)| !capture.dead);
    let Some((own, graph_uid)) = own.map(|(id, capture)| (id, capture.graph)) else {
        to.id.set_if(0);
        to.graph.set_if(CUgraph::NULL);
        to.nodes.set_if(core::ptr::null());
        if let Some(data) = &to.data {
            data.set_if(core::ptr::null());
        }
        to.count.set_if(0);
        return Ok(());
    };
    to.id.set_if(own);
    let known = state.graphs.graph(graph_uid)?;
    to.graph.set_if(known.handle);
    let membership = state.streams.get(&stream.uid).and_then(|stream| stream.capture.as_ref());
    let after: Vec<Before> = membership.map(|membership| membership.after.clone()).unwrap_or_default();
    let nodes: Vec<CUgraphNode> = after.iter().filter_map(|node| known.nodes.get(&node.0).copied()).collect();
    let wants_nodes = !to.nodes.is_null();
    let keeps_data = to.data.as_ref().is_some_and(|data| !data.is_null());
    if wants_nodes && !keeps_data && after.iter().any(|node| node.1 != [0; 3]) {
        return Err(CUresult::CUDA_ERROR_LOSSY_QUERY);
    }
    to.count.set_if(nodes.len());
    if let Some(membership) = state.streams.get_mut(&stream.uid).and_then(|stream| stream.capture.as_mut()) {
        // Valid until the stream is asked again.
        membership.shown = nodes;
        membership.shown_data = after.iter().map(|node| shown(node.1)).collect();
        to.nodes.set_if(membership.shown.as_ptr());
        if let Some(data) = &to.data {
            data.set_if(membership.shown_data.as_ptr());
        }
    }
    Ok(())
}

fn update(
    call: &Call<'_>,
    stream: CUstream,
    nodes: &Out<CUgraphNode>,
    data: &[[u8; 3]],
    flags: c_uint,
) -> Res {
    let stream = call.stream(stream)?;
    let list = (0..data.len()).map(|i| nodes.get_at(i)).collect::<Res<Vec<_>>>()?;
    let mut state = call.core.state.lock();
    let (_, capture) = state.capture_of(stream.uid).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    if capture.dead {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let nodes = dependencies_of(&state, capture.graph, &list, data)?;
    let membership = state.streams.get_mut(&stream.uid).and_then(|stream| stream.capture.as_mut());
    let membership = membership.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    match flags {
        // CU_STREAM_ADD_CAPTURE_DEPENDENCIES
        0 => {}
        // CU_STREAM_SET_CAPTURE_DEPENDENCIES
        1 => membership.after.clear(),
        _ => return Err(INVALID),
    }
    join_dependencies(&mut membership.after, nodes);
    Ok(())
}

entries! {
    fn cuStreamBeginCapture(call, stream: CUstream, mode: CUstreamCaptureMode) {
        begin(call, stream, mode, None)
    }

    fn cuStreamBeginCaptureToGraph(call, stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) {
        let data = edge_data(&data, count)?;
        let into = {
            let state = call.core.state.lock();
            let uid = state.graphs.uid(graph)?;
            (uid, dependencies_of(&state, uid, &handles(&dependencies, count)?, &data)?)
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
        info(call, stream, &Info { out, id, graph, nodes, data: None, count })
    }

    fn cuStreamGetCaptureInfo_v3(call, stream: CUstream, out: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, nodes: *mut *const CUgraphNode, data: *mut *const CUgraphEdgeData, count: *mut usize) {
        info(call, stream, &Info { out, id, graph, nodes, data: Some(data), count })
    }

    fn cuStreamUpdateCaptureDependencies(call, stream: CUstream, dependencies: *mut CUgraphNode, count: usize, flags: c_uint) {
        update(call, stream, &dependencies, &vec![[0; 3]; count], flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(call, stream: CUstream, dependencies: *mut CUgraphNode, data: *const CUgraphEdgeData, count: usize, flags: c_uint) {
        update(call, stream, &dependencies, &edge_data(&data, count)?, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(_call, mode: *mut CUstreamCaptureMode) {
        let wanted = mode.get()?;
        wanted.name().ok_or(INVALID)?;
        mode.set(exchange_mode(wanted))
    }
}
