//! Stream capture: what it takes, and what ends it. The codes are measured (driver-facts, *Capture*).

use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

crate::frame::registry::tests! { Driver, "capture";
    work_becomes_nodes,
    begin_and_end,
    query_and_synchronize_kill_in_every_mode,
    captured_events_cannot_be_queried,
    waiting_for_outside_events_kills,
    forks_and_joins_become_edges,
    forks_have_to_join,
    graph_launches_kill,
    foreign_frees_are_refused needs [Need::POOLS],
    earlier_events_can_be_queried,
    global_mode_forbids_unsafe_calls_everywhere,
    the_legacy_stream_would_join,
    info_and_dependencies,
}

pub(super) const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
pub(super) const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
pub(super) const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

pub(super) fn begin(cx: &Cx, stream: CUstream, mode: CUstreamCaptureMode) -> Check {
    ok!(cx, cuStreamBeginCapture(stream, mode))
}

pub(super) fn end(cx: &Cx, stream: CUstream) -> Check<CUgraph> {
    let mut graph = CUgraph::NULL;
    ok!(cx, cuStreamEndCapture(stream, &mut graph))?;
    ensure!(!graph.is_null(), "the captured graph is null");
    Ok(graph)
}

fn nodes(cx: &Cx, graph: CUgraph) -> Check<usize> {
    let mut count = 0;
    ok!(cx, cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count))?;
    Ok(count)
}

fn status(cx: &Cx, stream: CUstream) -> Check<CUstreamCaptureStatus> {
    let mut status = CUstreamCaptureStatus(99);
    ok!(cx, cuStreamIsCapturing(stream, &mut status))?;
    Ok(status)
}

pub(super) fn is_active(cx: &Cx, stream: CUstream) -> Check<bool> {
    Ok(status(cx, stream)? == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE)
}

/// The capture is dead: it says so, and ends without a graph.
pub(super) fn is_dead(cx: &Cx, stream: CUstream) -> Check {
    let dead = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    ensure_eq!(status(cx, stream)?, dead, "status of a dead capture");
    let mut graph = CUgraph(1);
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_INVALIDATED], cuStreamEndCapture(stream, &mut graph))?;
    ensure_eq!(graph, CUgraph::NULL, "graph of a dead capture");
    ok!(cx, cuStreamSynchronize(stream))
}

/// Runs on another thread, with the context current.
pub(super) fn elsewhere(gpu: &Gpu<'_>, run: impl FnOnce() -> Check + Send) -> Check {
    threads::scope(|scope| {
        let other = scope.spawn(|| {
            gpu.enter()?;
            run()
        });
        other.join().unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
    })
}

fn work_becomes_nodes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, store, word) = (gpu.stream()?, gpu.kernel(c"store_one")?, gpu.zeroed(16)?);
    let args = |offset: u64, value: u32| Args::new().with(word + offset).with(value);
    for mode in [GLOBAL, LOCAL, RELAXED] {
        begin(cx, stream, mode)?;
        ensure!(is_active(cx, stream)?, "the stream does not capture");
        gpu.launch(store, Shape::ONE, stream, &args(0, 1))?;
        ok!(cx, cuMemsetD32Async(word + 4, 2, 1, stream))?;
        // A launch from another thread silently becomes a node.
        elsewhere(&gpu, || gpu.launch(store, Shape::ONE, stream, &args(8, 3)))?;
        let graph = end(cx, stream)?;
        ensure_eq!(nodes(cx, graph)?, 3, "nodes");
        ensure_eq!(gpu.read::<u32>(word, 3)?, [0, 0, 0], "words before any launch");
        ok!(cx, cuGraphDestroy(graph))?;
    }
    Ok(())
}

fn begin_and_end(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, event) = (gpu.stream()?, gpu.stream()?, gpu.event()?);
    let mut graph = CUgraph::NULL;
    code!(cx, [CUDA_ERROR_ILLEGAL_STATE], cuStreamEndCapture(a, &mut graph))?;
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuStreamBeginCapture(CUstream::NULL, RELAXED))?;
    begin(cx, a, LOCAL)?;
    code!(cx, [CUDA_ERROR_ILLEGAL_STATE], cuStreamBeginCapture(a, LOCAL))?;
    elsewhere(&gpu, || {
        let mut graph = CUgraph::NULL;
        code!(cx, [CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD], cuStreamEndCapture(a, &mut graph))
    })?;
    let _ = end(cx, a);
    begin(cx, a, LOCAL)?;
    ok!(cx, cuEventRecord(event, a))?;
    ok!(cx, cuStreamWaitEvent(b, event, 0))?;
    ensure!(is_active(cx, b)?, "the stream that waited does not capture");
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNMATCHED], cuStreamEndCapture(b, &mut graph))?;
    let _ = cu!(cx, cuStreamEndCapture(a, &mut graph));
    begin(cx, a, RELAXED)?;
    elsewhere(&gpu, || end(cx, a).map(drop))
}

fn query_and_synchronize_kill_in_every_mode(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for mode in [GLOBAL, LOCAL, RELAXED] {
        let stream = gpu.stream()?;
        begin(cx, stream, mode)?;
        code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuStreamQuery(stream))?;
        is_dead(cx, stream)?;
        begin(cx, stream, mode)?;
        code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuStreamSynchronize(stream))?;
        is_dead(cx, stream)?;
        begin(cx, stream, mode)?;
        elsewhere(&gpu, || code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuCtxSynchronize()))?;
        is_dead(cx, stream)?;
    }
    Ok(())
}

fn captured_events_cannot_be_queried(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, event) = (gpu.stream()?, gpu.event()?);
    begin(cx, stream, LOCAL)?;
    ok!(cx, cuEventRecord(event, stream))?;
    code!(cx, [CUDA_ERROR_CAPTURED_EVENT], cuEventQuery(event))?;
    is_dead(cx, stream)?;
    ok!(cx, cuEventRecord(event, stream))?;
    ok!(cx, cuEventSynchronize(event))
}

fn waiting_for_outside_events_kills(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, event) = (gpu.stream()?, gpu.recorded(gpu.stream()?)?);
    begin(cx, stream, LOCAL)?;
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_ISOLATION], cuStreamWaitEvent(stream, event, 0))?;
    is_dead(cx, stream)
}

fn forks_and_joins_become_edges(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, store) = (gpu.stream()?, gpu.stream()?, gpu.kernel(c"store_one")?);
    let (word, fork, join) = (gpu.zeroed(16)?, gpu.event()?, gpu.event()?);
    let launch =
        |stream, at: u64| gpu.launch(store, Shape::ONE, stream, &Args::new().with(word + at).with(1u32));
    begin(cx, a, LOCAL)?;
    launch(a, 0)?;
    ok!(cx, cuEventRecord(fork, a))?;
    ok!(cx, cuStreamWaitEvent(b, fork, 0))?;
    launch(b, 4)?;
    launch(a, 8)?;
    ok!(cx, cuEventRecord(join, b))?;
    ok!(cx, cuStreamWaitEvent(a, join, 0))?;
    launch(a, 12)?;
    let graph = end(cx, a)?;
    let mut edges = 0;
    ok!(cx, cuGraphGetEdges(graph, std::ptr::null_mut(), std::ptr::null_mut(), &mut edges))?;
    ensure_eq!((nodes(cx, graph)?, edges), (4, 4), "nodes and edges");
    let mut exec = CUgraphExec::NULL;
    ok!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    ok!(cx, cuGraphLaunch(exec, a))?;
    gpu.sync(a)?;
    ensure_eq!(gpu.read::<u32>(word, 4)?, [1; 4], "words");
    Ok(())
}

fn forks_have_to_join(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b, event, word) = (gpu.stream()?, gpu.stream()?, gpu.event()?, gpu.zeroed(4)?);
    begin(cx, a, LOCAL)?;
    ok!(cx, cuEventRecord(event, a))?;
    ok!(cx, cuStreamWaitEvent(b, event, 0))?;
    ok!(cx, cuMemsetD8Async(word, 1, 4, b))?;
    let mut graph = CUgraph(1);
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNJOINED], cuStreamEndCapture(a, &mut graph))?;
    ensure_eq!(graph, CUgraph::NULL, "graph");
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    ensure_eq!((status(cx, a)?, status(cx, b)?), (none, none), "both streams after the end");
    Ok(())
}

fn graph_launches_kill(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, word, mut exec) = (gpu.stream()?, gpu.zeroed(4)?, CUgraphExec::NULL);
    begin(cx, stream, LOCAL)?;
    ok!(cx, cuMemsetD8Async(word, 1, 4, stream))?;
    ok!(cx, cuGraphInstantiateWithFlags(&mut exec, end(cx, stream)?, 0))?;
    begin(cx, stream, LOCAL)?;
    code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuGraphLaunch(exec, stream))?;
    is_dead(cx, stream)
}

fn foreign_frees_are_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, mut memory) = (gpu.stream()?, 0);
    ok!(cx, cuMemAllocAsync(&mut memory, 64, stream))?;
    gpu.sync(stream)?;
    begin(cx, stream, LOCAL)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFreeAsync(memory, stream))?;
    ensure!(is_active(cx, stream)?, "the capture did not survive");
    end(cx, stream)?;
    ok!(cx, cuMemFreeAsync(memory, stream))
}

fn earlier_events_can_be_queried(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let event = gpu.recorded(stream)?;
    // In thread-local mode an H200 answers 900 to the synchronisation on the capturing thread.
    begin(cx, stream, RELAXED)?;
    ok!(cx, cuEventSynchronize(event))?;
    ok!(cx, cuEventQuery(event))?;
    end(cx, stream).map(drop)
}

fn global_mode_forbids_unsafe_calls_everywhere(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, event) = (gpu.stream()?, gpu.event()?);
    begin(cx, stream, GLOBAL)?;
    elsewhere(&gpu, || code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuEventQuery(event)))?;
    is_dead(cx, stream)?;
    begin(cx, stream, GLOBAL)?;
    elsewhere(&gpu, || {
        let mut memory = 0;
        code!(cx, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED], cuMemAlloc(&mut memory, 64))
    })?;
    is_dead(cx, stream)?;
    // A thread in relaxed mode may, and nobody minds in the other modes.
    begin(cx, stream, GLOBAL)?;
    elsewhere(&gpu, || {
        let (mut mode, mut memory) = (RELAXED, 0);
        ok!(cx, cuThreadExchangeStreamCaptureMode(&mut mode))?;
        ensure_eq!(mode, GLOBAL, "mode of a new thread");
        ok!(cx, cuMemAlloc(&mut memory, 64))?;
        ok!(cx, cuEventQuery(event))
    })?;
    end(cx, stream)?;
    begin(cx, stream, LOCAL)?;
    elsewhere(&gpu, || {
        let mut memory = 0;
        ok!(cx, cuMemAlloc(&mut memory, 64))?;
        ok!(cx, cuEventQuery(event))
    })?;
    end(cx, stream).map(drop)
}

fn the_legacy_stream_would_join(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let blocking = gpu.stream_with(CUstream_flags::CU_STREAM_DEFAULT)?;
    let (free, word) = (gpu.stream()?, gpu.zeroed(4)?);
    begin(cx, blocking, LOCAL)?;
    let refused = cu!(cx, cuMemsetD8Async(word, 1, 4, CUstream::NULL));
    ensure_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "legacy work");
    is_dead(cx, blocking)?;
    begin(cx, free, LOCAL)?;
    ok!(cx, cuMemsetD8Async(word, 1, 4, CUstream::NULL))?;
    end(cx, free).map(drop)
}

fn info_and_dependencies(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, word) = (gpu.stream()?, gpu.zeroed(4)?);
    let info = || {
        let (mut state, mut id, mut graph) = (CUstreamCaptureStatus(99), 0, CUgraph::NULL);
        let (mut list, mut count) = (std::ptr::null(), 0);
        ok!(cx, cuStreamGetCaptureInfo(stream, &mut state, &mut id, &mut graph, &mut list, &mut count))?;
        // SAFETY: the driver shows so many handles, until the next call on the stream.
        let nodes: Vec<CUgraphNode> = (0..count).map(|i| unsafe { *list.add(i) }).collect();
        Ok::<_, Stop>((graph, nodes))
    };
    begin(cx, stream, LOCAL)?;
    let (graph, before) = info()?;
    ensure!(!graph.is_null() && before.is_empty(), "a fresh capture: {graph:?}, {before:?}");
    ok!(cx, cuMemsetD8Async(word, 1, 4, stream))?;
    let first = info()?.1;
    ensure_eq!(first.len(), 1, "dependencies after one node");
    let mut own = CUgraphNode::NULL;
    ok!(cx, cuGraphAddEmptyNode(&mut own, graph, std::ptr::null(), 0))?;
    ok!(cx, cuStreamUpdateCaptureDependencies(stream, &mut own, 1, 0))?;
    ensure_eq!(info()?.1.len(), 2, "dependencies after one was added");
    ok!(cx, cuStreamUpdateCaptureDependencies(stream, &mut own, 1, 1))?;
    ensure_eq!(info()?.1, [own], "dependencies after they were set");
    ensure_eq!(nodes(cx, end(cx, stream)?)?, 2, "nodes");
    Ok(())
}
