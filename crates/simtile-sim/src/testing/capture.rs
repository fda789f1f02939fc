//! Stream capture: the rules of its modes, and what ends it.

use super::*;
use simtile_driver::sys::CUresult as Code;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const MODES: [CUstreamCaptureMode; 3] = [GLOBAL, LOCAL, RELAXED];
const ACTIVE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
const NONE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
const DEAD: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;

impl Rig {
    pub(crate) fn begin(&self, stream: CUstream, mode: CUstreamCaptureMode) {
        ok!(self, cuStreamBeginCapture(stream, mode));
    }

    fn end(&self, stream: CUstream) -> (CUresult, CUgraph) {
        let mut graph = CUgraph(1);
        (code!(self, cuStreamEndCapture(stream, &mut graph)), graph)
    }

    pub(crate) fn end_ok(&self, stream: CUstream) -> CUgraph {
        let (code, graph) = self.end(stream);
        assert_eq!(code, Code::CUDA_SUCCESS);
        assert!(!graph.is_null());
        graph
    }

    fn status(&self, stream: CUstream) -> CUstreamCaptureStatus {
        let mut status = CUstreamCaptureStatus(99);
        ok!(self, cuStreamIsCapturing(stream, &mut status));
        status
    }

    pub(crate) fn node_count(&self, graph: CUgraph) -> usize {
        let mut count = 0;
        ok!(self, cuGraphGetNodes(graph, core::ptr::null_mut(), &mut count));
        count
    }

    /// The capture is dead: the stream says so until it is ended, without a graph.
    fn assert_dead(&self, stream: CUstream) {
        assert_eq!(self.status(stream), DEAD);
        let (module, memory) = (self.module_in_capture(), self.memory(4));
        let code = self.launch(module, [1; 3], [1; 3], 0, stream, &[memory.base, 1]);
        assert_eq!(code, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_eq!(self.end(stream), (Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUgraph::NULL));
        assert_eq!(self.status(stream), NONE);
        ok!(self, cuStreamSynchronize(stream));
    }

    /// A kernel, loaded without disturbing anybody's capture.
    fn module_in_capture(&self) -> CUfunction {
        let mut mode = RELAXED;
        ok!(self, cuThreadExchangeStreamCaptureMode(&mut mode));
        let function = self.function(self.module(), "store");
        ok!(self, cuThreadExchangeStreamCaptureMode(&mut mode));
        function
    }
}

#[test]
fn captured_work_becomes_nodes_and_runs_at_the_launch_alone() {
    for rig in Rig::modes() {
        let (stream, memory) = (rig.stream(), rig.memory(64));
        let store = rig.function(rig.module(), "store");
        rig.set_word(&memory, 0, 7);
        for mode in MODES {
            rig.begin(stream, mode);
            assert_eq!(rig.status(stream), ACTIVE);
            rig.run(store, stream, &[memory.base, 1]);
            ok!(rig, cuMemsetD32Async(memory.base + 4, 2, 1, stream));
            // Another thread's launch silently becomes a node.
            rig.on_thread(|rig| rig.run(store, stream, &[memory.base + 8, 3]));
            let graph = rig.end_ok(stream);
            assert_eq!((rig.status(stream), rig.node_count(graph)), (NONE, 3));
            assert_eq!(rig.word(&memory, 0), 7, "nothing has run");
            ok!(rig, cuGraphDestroy(graph));
        }
    }
}

#[test]
fn beginning_and_ending_have_their_rules() {
    let rig = Rig::new();
    let (a, b) = (rig.stream(), rig.stream());
    assert_eq!(rig.end(a).0, Code::CUDA_ERROR_ILLEGAL_STATE);
    for legacy in [CUstream::NULL, CUstream::LEGACY] {
        let code = code!(rig, cuStreamBeginCapture(legacy, RELAXED));
        assert_eq!(code, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    assert_eq!(code!(rig, cuStreamBeginCapture(a, CUstreamCaptureMode(3))), Code::CUDA_ERROR_INVALID_VALUE);
    rig.begin(a, LOCAL);
    assert_eq!(code!(rig, cuStreamBeginCapture(a, LOCAL)), Code::CUDA_ERROR_ILLEGAL_STATE);
    let other = rig.on_thread(|rig| rig.end(a).0);
    assert_eq!(other, Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    let event = rig.mark(a);
    ok!(rig, cuStreamWaitEvent(b, event, 0));
    assert_eq!(rig.end(b).0, Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    rig.end_ok(a);
    assert_eq!((rig.status(a), rig.status(b)), (NONE, NONE));
    // A relaxed one may be ended by any thread.
    rig.begin(a, RELAXED);
    rig.on_thread(|rig| rig.end_ok(a));
    // The per-thread default stream can be captured.
    rig.begin(CUstream::PER_THREAD, RELAXED);
    assert_eq!(rig.node_count(rig.end_ok(CUstream::PER_THREAD)), 0);
}

#[test]
fn query_and_sync_of_the_stream_or_the_context_kill_in_every_mode() {
    type Act = fn(&Rig, CUstream) -> CUresult;
    let acts: [Act; 5] = [
        |rig, stream| code!(rig, cuStreamQuery(stream)),
        |rig, stream| code!(rig, cuStreamSynchronize(stream)),
        |rig, _| code!(rig, cuCtxSynchronize()),
        |rig, stream| rig.on_thread(|rig| code!(rig, cuStreamQuery(stream))),
        |rig, _| rig.on_thread(|rig| code!(rig, cuCtxSynchronize())),
    ];
    for mode in MODES {
        for act in acts {
            let rig = Rig::new();
            let stream = rig.stream();
            rig.begin(stream, mode);
            assert_eq!(act(&rig, stream), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            rig.assert_dead(stream);
        }
    }
}

#[test]
fn captured_events_fork_and_join_and_cannot_be_asked() {
    let rig = Rig::new();
    let (a, b, memory) = (rig.stream(), rig.stream(), rig.memory(64));
    let store = rig.function(rig.module(), "store");
    rig.begin(a, LOCAL);
    rig.run(store, a, &[memory.base, 1]);
    let forked = rig.event();
    ok!(rig, cuEventRecord(forked, a));
    ok!(rig, cuStreamWaitEvent(b, forked, 0));
    assert_eq!(rig.status(b), ACTIVE);
    rig.run(store, b, &[memory.base + 4, 1]);
    rig.run(store, a, &[memory.base + 8, 1]);
    let joined = rig.event();
    ok!(rig, cuEventRecord(joined, b));
    ok!(rig, cuStreamWaitEvent(a, joined, 0));
    rig.run(store, a, &[memory.base + 12, 1]);
    let graph = rig.end_ok(a);
    let mut edges = 0;
    ok!(rig, cuGraphGetEdges(graph, core::ptr::null_mut(), core::ptr::null_mut(), &mut edges));
    assert_eq!((rig.node_count(graph), edges), (4, 4), "a diamond");
    // Also after the capture it was recorded in.
    assert_eq!(code!(rig, cuEventQuery(forked)), Code::CUDA_ERROR_CAPTURED_EVENT);
    ok!(rig, cuEventRecord(forked, a));
    ok!(rig, cuEventSynchronize(forked));

    rig.begin(a, LOCAL);
    ok!(rig, cuEventRecord(forked, a));
    assert_eq!(code!(rig, cuEventQuery(forked)), Code::CUDA_ERROR_CAPTURED_EVENT);
    rig.assert_dead(a);
}

#[test]
fn a_fork_that_does_not_come_back_is_an_error_and_ends_the_capture() {
    let rig = Rig::new();
    let (a, b, memory) = (rig.stream(), rig.stream(), rig.memory(64));
    let store = rig.function(rig.module(), "store");
    rig.begin(a, LOCAL);
    ok!(rig, cuStreamWaitEvent(b, rig.mark_in_capture(a), 0));
    rig.run(store, b, &[memory.base, 1]);
    assert_eq!(rig.end(a), (Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUgraph::NULL));
    assert_eq!((rig.status(a), rig.status(b)), (NONE, NONE));
}

impl Rig {
    fn mark_in_capture(&self, stream: CUstream) -> CUevent {
        let event = self.event();
        ok!(self, cuEventRecord(event, stream));
        event
    }
}

#[test]
fn outside_events_isolation_and_merging_kill() {
    let rig = Rig::new();
    let (a, b, outside) = (rig.stream(), rig.stream(), rig.stream());
    let early = rig.mark(outside);
    rig.begin(a, LOCAL);
    assert_eq!(code!(rig, cuStreamWaitEvent(a, early, 0)), Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    rig.assert_dead(a);
    rig.begin(a, LOCAL);
    rig.begin(b, LOCAL);
    let event = rig.mark(a);
    assert_eq!(code!(rig, cuStreamWaitEvent(b, event, 0)), Code::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    rig.assert_dead(a);
    rig.assert_dead(b);
}

#[test]
fn an_event_from_before_the_capture_can_be_asked() {
    let rig = Rig::new();
    let stream = rig.stream();
    let event = rig.mark(stream);
    rig.begin(stream, RELAXED);
    ok!(rig, cuEventSynchronize(event));
    ok!(rig, cuEventQuery(event));
    rig.end_ok(stream);
}

#[test]
fn a_graph_launch_into_a_capture_kills_and_a_foreign_free_does_not() {
    let rig = Rig::new();
    let (stream, mut memory) = (rig.stream(), 0);
    ok!(rig, cuMemAllocAsync(&mut memory, 64, stream));
    rig.begin(stream, LOCAL);
    let exec = rig.exec(rig.end_ok(stream));
    rig.begin(stream, LOCAL);
    assert_eq!(code!(rig, cuMemFreeAsync(memory, stream)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(rig.status(stream), ACTIVE);
    assert_eq!(code!(rig, cuGraphLaunch(exec, stream)), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    rig.assert_dead(stream);
    ok!(rig, cuMemFreeAsync(memory, stream));
}

#[test]
fn unsafe_calls_kill_as_the_modes_say() {
    type Act = fn(&Rig, CUevent, CUdeviceptr, CUmodule) -> CUresult;
    let acts: [Act; 5] = [
        |rig, event, _, _| code!(rig, cuEventQuery(event)),
        |rig, event, _, _| code!(rig, cuEventSynchronize(event)),
        |rig, _, _, _| code!(rig, cuMemAlloc(&mut 0, 64)),
        |rig, _, memory, _| code!(rig, cuMemFree(memory)),
        |rig, _, _, module| code!(rig, cuModuleUnload(module)),
    ];
    for mode in MODES {
        for act in acts {
            for (own_thread, relaxed) in [(true, false), (true, true), (false, false), (false, true)] {
                let rig = Rig::new();
                let (stream, event, mut memory) = (rig.stream(), rig.event(), 0);
                ok!(rig, cuMemAlloc(&mut memory, 64));
                let module = rig.module();
                rig.begin(stream, mode);
                let run = |rig: &Rig| {
                    let mut switched = if relaxed { RELAXED } else { GLOBAL };
                    ok!(rig, cuThreadExchangeStreamCaptureMode(&mut switched));
                    let code = act(rig, event, memory, module);
                    ok!(rig, cuThreadExchangeStreamCaptureMode(&mut switched));
                    code
                };
                let code = if own_thread { run(&rig) } else { rig.on_thread(run) };
                let kills = !relaxed
                    && match mode {
                        GLOBAL => true,
                        LOCAL => own_thread,
                        _ => false,
                    };
                let case = format!("{mode:?} own {own_thread} relaxed {relaxed}");
                if kills {
                    assert_eq!(code, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{case}");
                    rig.assert_dead(stream);
                } else if code == Code::CUDA_SUCCESS {
                    assert_eq!(rig.status(stream), ACTIVE, "{case}");
                    rig.end_ok(stream);
                } else {
                    panic!("{case}: {code:?}");
                }
            }
        }
    }
}

#[test]
fn the_legacy_stream_would_follow_a_capturing_blocking_stream() {
    let rig = Rig::new();
    let (blocking, memory) = (rig.blocking_stream(), rig.memory(64));
    rig.begin(blocking, LOCAL);
    let mut status = NONE;
    // Asking is refused too, but harmless.
    let asked = code!(rig, cuStreamIsCapturing(CUstream::NULL, &mut status));
    assert_eq!(asked, Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(rig.status(blocking), ACTIVE);
    let code = code!(rig, cuMemsetD8Async(memory.base, 1, 64, CUstream::NULL));
    assert_eq!(code, Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    rig.assert_dead(blocking);
    // A non-blocking one is none of its business.
    let free = rig.stream();
    rig.begin(free, LOCAL);
    ok!(rig, cuMemsetD8Async(memory.base, 1, 64, CUstream::NULL));
    assert_eq!(rig.node_count(rig.end_ok(free)), 0);
}

#[test]
fn capture_info_shows_what_comes_next_and_lets_it_be_changed() {
    let rig = Rig::new();
    let (stream, memory) = (rig.stream(), rig.memory(64));
    let store = rig.function(rig.module(), "store");
    let info = || {
        let (mut status, mut id, mut graph) = (NONE, 0, CUgraph::NULL);
        let (mut list, mut count) = (core::ptr::null(), 0);
        ok!(rig, cuStreamGetCaptureInfo(stream, &mut status, &mut id, &mut graph, &mut list, &mut count));
        // SAFETY: the driver shows so many handles, until the next call.
        let nodes = (0..count).map(|i| unsafe { *list.add(i) }).collect::<Vec<CUgraphNode>>();
        (status, id, graph, nodes)
    };
    assert_eq!(info().0, NONE);
    rig.begin(stream, LOCAL);
    let (status, id, graph, nodes) = info();
    assert!(status == ACTIVE && id != 0 && !graph.is_null() && nodes.is_empty());
    rig.run(store, stream, &[memory.base, 1]);
    let first = info().3;
    assert_eq!(first.len(), 1);
    // A node of the caller's own, which the next one follows as well.
    let mut own = CUgraphNode::NULL;
    ok!(rig, cuGraphAddEmptyNode(&mut own, graph, core::ptr::null(), 0));
    ok!(rig, cuStreamUpdateCaptureDependencies(stream, &mut own, 1, 0));
    assert_eq!(info().3, [first[0], own]);
    ok!(rig, cuStreamUpdateCaptureDependencies(stream, &mut own, 1, 1));
    assert_eq!(info().3, [own]);
    rig.run(store, stream, &[memory.base, 2]);
    let last = info().3[0];
    let (mut before, mut count) = ([CUgraphNode::NULL; 4], 4);
    ok!(rig, cuGraphNodeGetDependencies(last, before.as_mut_ptr(), &mut count));
    assert_eq!(&before[..count], [own]);
    assert_eq!(rig.end_ok(stream), graph);
    assert_eq!(rig.node_count(graph), 3);
    let code = code!(rig, cuStreamUpdateCaptureDependencies(stream, &mut own, 1, 0));
    assert_eq!(code, Code::CUDA_ERROR_ILLEGAL_STATE);
}

#[test]
fn a_capture_can_go_on_in_a_given_graph() {
    let rig = Rig::new();
    let (stream, memory) = (rig.stream(), rig.memory(64));
    let (mut graph, mut root) = (CUgraph::NULL, CUgraphNode::NULL);
    ok!(rig, cuGraphCreate(&mut graph, 0));
    ok!(rig, cuGraphAddEmptyNode(&mut root, graph, core::ptr::null(), 0));
    ok!(rig, cuStreamBeginCaptureToGraph(stream, graph, &root, core::ptr::null(), 1, LOCAL));
    ok!(rig, cuMemsetD8Async(memory.base, 9, 4, stream));
    assert_eq!(rig.end_ok(stream), graph);
    let mut count = 0;
    ok!(rig, cuGraphNodeGetDependentNodes(root, core::ptr::null_mut(), &mut count));
    assert_eq!((rig.node_count(graph), count), (2, 1));
    // A dead capture leaves the given graph to its owner.
    ok!(rig, cuStreamBeginCaptureToGraph(stream, graph, core::ptr::null(), core::ptr::null(), 0, LOCAL));
    assert_eq!(code!(rig, cuStreamQuery(stream)), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(rig.end(stream).0, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(rig.node_count(graph), 2);
}

#[test]
fn a_stream_that_goes_takes_its_capture_along() {
    let rig = Rig::new();
    let (a, b) = (rig.stream(), rig.stream());
    rig.begin(a, GLOBAL);
    ok!(rig, cuStreamWaitEvent(b, rig.mark_in_capture(a), 0));
    ok!(rig, cuStreamDestroy(b));
    rig.assert_dead(a);
    let c = rig.stream();
    rig.begin(c, GLOBAL);
    ok!(rig, cuStreamDestroy(c));
    // Nobody captures any more: this would be refused otherwise.
    ok!(rig, cuMemAlloc(&mut 0, 64));
}
