//! Stream capture: what a capturing stream does with calls, and which calls end a capture.
//!
//! A capture has an origin stream and the streams that were pulled in by waiting for its events. Work on them
//! becomes nodes of the capture's graph. A call that a capture cannot hold leaves it *dead*: its streams
//! answer `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED` until the capture is ended on its origin.

use super::graphs::{Descriptor, NodeWork};
use super::state::State;
use super::work::Work;
use crate::core::{Core, Res, StreamRef};
use crate::entry::thread_number;
use crate::graph::NodeId;
use crate::heap::MemoryWork;
use crate::memory::{Fill, Place, Side, Transfer};
use simtile_driver::sys::*;
use simtile_sync::Arc;
use std::cell::Cell;
use std::collections::BTreeSet;

thread_local! {
    /// The calling thread's capture mode.
    static MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// Sets the calling thread's mode and gives the one before.
pub(crate) fn exchange_mode(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    MODE.replace(mode)
}

/// A capture.
pub(crate) struct Capture {
    pub(crate) mode: CUstreamCaptureMode,
    /// Number of the thread that began it.
    pub(crate) thread: u64,
    /// Uid of the stream it began on.
    pub(crate) origin: u64,
    /// Uid of its graph.
    pub(crate) graph: u64,
    /// All streams that capture into it.
    pub(crate) streams: BTreeSet<u64>,
    pub(crate) dead: bool,
    /// The graph is the caller's.
    pub(crate) given: bool,
}

/// A stream's part in a capture.
pub(crate) struct Membership {
    pub(crate) id: u64,
    /// What its next node comes after.
    pub(crate) after: Vec<Before>,
    /// The handles of these, and the data of their edges, as they were last shown to the caller.
    pub(crate) shown: Vec<CUgraphNode>,
    pub(crate) shown_data: Vec<CUgraphEdgeData>,
}

/// A node that something comes after, and the data of the edge.
pub(crate) type Before = (NodeId, [u8; 3]);

/// Ports of a kernel that is still running, of which a programmatic edge starts: it let its dependents start, or all its
/// blocks have started.
pub(crate) const PROGRAMMATIC_PORT: u8 = 1;
pub(crate) const LAUNCH_PORT: u8 = 2;

/// Adds dependencies that are not there yet. Of two on one node the one that waits longer stays.
pub(crate) fn join_dependencies(all: &mut Vec<Before>, more: impl IntoIterator<Item = Before>) {
    for (node, data) in more {
        match all.iter_mut().find(|known| known.0 == node) {
            Some(known) if data == [0; 3] => known.1 = data,
            Some(_) => {}
            None => all.push((node, data)),
        }
    }
}

/// What an event was last recorded in, if that was a capture.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) id: u64,
    pub(crate) nodes: Vec<Before>,
}

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

impl State {
    /// The capture that a stream takes part in.
    pub(crate) fn capture_of(&self, stream: u64) -> Option<(u64, &Capture)> {
        let id = self.streams.get(&stream)?.capture.as_ref()?.id;
        self.graphs.captures.get(&id).map(|capture| (id, capture))
    }

    /// Whether calls on the stream become nodes.
    pub(crate) fn is_capturing(&self, stream: u64) -> bool {
        self.capture_of(stream).is_some()
    }

    pub(crate) fn kill_capture(&mut self, id: u64) {
        if let Some(capture) = self.graphs.captures.get_mut(&id) {
            capture.dead = true;
        }
    }

    /// For calls that no capture can hold: on a capturing stream they kill it.
    pub(crate) fn refuse_capturing(&mut self, stream: u64) -> Res {
        let Some((id, capture)) = self.capture_of(stream) else { return Ok(()) };
        if capture.dead {
            return Err(INVALIDATED);
        }
        self.kill_capture(id);
        Err(UNSUPPORTED)
    }

    /// As [`State::refuse_capturing`], for calls on a whole context.
    pub(crate) fn refuse_capturing_in(&mut self, context: u64) -> Res {
        let alive = |state: &State, id: u64| state.graphs.captures.get(&id).is_some_and(|c| !c.dead);
        let ids: Vec<u64> = self
            .streams
            .values()
            .filter(|stream| stream.context == context)
            .filter_map(|stream| stream.capture.as_ref().map(|capture| capture.id))
            .filter(|&id| alive(self, id))
            .collect();
        ids.iter().for_each(|&id| self.kill_capture(id));
        if ids.is_empty() { Ok(()) } else { Err(UNSUPPORTED) }
    }

    /// The legacy default stream would follow every blocking stream, capturing ones too.
    pub(crate) fn refuse_implicit(&mut self, stream: &StreamRef) -> Res {
        let ids = self.implied(stream);
        ids.iter().for_each(|&id| self.kill_capture(id));
        if ids.is_empty() { Ok(()) } else { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) }
    }

    /// Captures of blocking streams that the stream would follow.
    pub(crate) fn implied(&self, stream: &StreamRef) -> Vec<u64> {
        if !stream.legacy || self.graphs.captures.is_empty() {
            return Vec::new();
        }
        self.streams
            .values()
            .filter(|other| other.context == stream.context.uid && other.is_blocking())
            .filter(|other| other.green == stream.context.green)
            .filter_map(|other| other.capture.as_ref().map(|capture| capture.id))
            .filter(|id| self.graphs.captures.get(id).is_some_and(|capture| !capture.dead))
            .collect()
    }

    /// For calls that are unsafe while somebody captures: refused, and those captures are dead. The thread that began a
    /// capture is free if the capture, or the thread, is relaxed; another thread minds only global ones, and only
    /// in global mode itself (measured: `capture-matrix.txt` of the conformance suite).
    pub(crate) fn refuse_unsafe(&mut self) -> Res {
        const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if self.graphs.captures.is_empty() {
            return Ok(());
        }
        let (mode, thread) = (MODE.get(), thread_number());
        if mode == RELAXED {
            return Ok(());
        }
        let mut hit = false;
        for capture in self.graphs.captures.values_mut().filter(|capture| !capture.dead) {
            let minds = if capture.thread == thread {
                capture.mode != RELAXED
            } else {
                capture.mode == GLOBAL && mode == GLOBAL
            };
            if minds {
                capture.dead = true;
                hit = true;
            }
        }
        if hit { Err(UNSUPPORTED) } else { Ok(()) }
    }

    /// Begins a capture on a stream, into a graph of its own or a given one.
    pub(crate) fn begin_capture(
        &mut self,
        stream: &StreamRef,
        mode: CUstreamCaptureMode,
        into: Option<(u64, Vec<Before>)>,
    ) -> Res {
        if stream.legacy {
            return Err(UNSUPPORTED);
        }
        if self.is_capturing(stream.uid) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let given = into.is_some();
        if into.as_ref().is_some_and(|(graph, _)| self.graphs.captures.values().any(|c| c.graph == *graph)) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let (graph, after) = match into {
            Some(into) => into,
            None => {
                let uid = self.uid();
                self.graphs.create(uid, false)?;
                (uid, Vec::new())
            }
        };
        let id = self.uid();
        let streams = BTreeSet::from([stream.uid]);
        let (thread, origin) = (thread_number(), stream.uid);
        let capture = Capture { mode, thread, origin, graph, streams, dead: false, given };
        self.graphs.captures.insert(id, capture);
        if let Some(stream) = self.streams.get_mut(&stream.uid) {
            stream.capture = Some(Membership { id, after, shown: Vec::new(), shown_data: Vec::new() });
        }
        Ok(())
    }

    /// Ends the capture that began on a stream.
    ///
    /// # Errors
    /// Not capturing; not the origin; another thread; dead, or a stream not joined again: it is over then all the same.
    pub(crate) fn end_capture(&mut self, stream: &StreamRef) -> Res<CUgraph> {
        let (id, capture) = self.capture_of(stream.uid).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream.uid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let relaxed = capture.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if !relaxed && capture.thread != thread_number() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let (dead, graph) = (capture.dead, capture.graph);
        let joined = self.is_joined(capture);
        let keep = !dead && joined;
        let handle = self.graphs.graph(graph).map(|graph| graph.handle);
        self.drop_capture(id, keep);
        if dead {
            Err(INVALIDATED)
        } else if !joined {
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        } else {
            handle
        }
    }

    /// Whether everything that other streams captured comes before what the origin would do next.
    fn is_joined(&self, capture: &Capture) -> bool {
        let after = |stream: &u64| {
            let membership = self.streams.get(stream).and_then(|stream| stream.capture.as_ref());
            membership.map_or(&[][..], |membership| &membership.after)
        };
        let Ok(graph) = self.graphs.graph(capture.graph) else { return true };
        if capture.streams.len() == 1 {
            return true;
        }
        let reach = graph.graph.reach();
        let end = after(&capture.origin);
        let covered =
            |node: &Before| end.iter().any(|last| last.0 == node.0 || reach.comes_before(node.0, last.0));
        capture.streams.iter().all(|stream| after(stream).iter().all(covered))
    }

    /// Takes a capture away. Its graph goes too unless it is kept or was given.
    pub(crate) fn drop_capture(&mut self, id: u64, keep: bool) {
        let Some(capture) = self.graphs.captures.remove(&id) else { return };
        for stream in &capture.streams {
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.capture = None;
            }
        }
        if !keep && !capture.given {
            self.graphs.destroy(capture.graph);
        }
    }

    /// A stream goes away.
    pub(crate) fn stream_leaves_capture(&mut self, stream: u64) {
        let Some((id, capture)) = self.capture_of(stream) else { return };
        if capture.origin == stream {
            self.drop_capture(id, false);
            return;
        }
        self.kill_capture(id);
        if let Some(capture) = self.graphs.captures.get_mut(&id) {
            capture.streams.remove(&stream);
        }
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = None;
        }
    }

    /// Adds a node for work on a capturing stream.
    pub(crate) fn capture_node(&mut self, stream: u64, work: NodeWork) -> Res {
        let (_, capture) = self.capture_of(stream).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.dead {
            return Err(INVALIDATED);
        }
        let graph = capture.graph;
        let membership = self.streams.get(&stream).and_then(|stream| stream.capture.as_ref());
        let known = &self.graphs.graph(graph)?.graph;
        // A launch that may start early does so if nothing but kernels comes before it.
        let before = membership.map_or(&[][..], |membership| &membership.after);
        let early = matches!(&work, NodeWork::Kernel(launch, _) if launch.programmatic)
            && before.iter().all(|before| matches!(known.get(before.0), Some(NodeWork::Kernel(..))));
        let data = |data: [u8; 3]| match data {
            [0, 0, 0] if early => [PROGRAMMATIC_PORT, 0, 1],
            data => data,
        };
        let after: Vec<Before> = before.iter().map(|&(node, old)| (node, data(old))).collect();
        let (node, _) = self.graphs.add(graph, work, &after)?;
        if let Some(membership) = self.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            membership.after = vec![(node, [0; 3])];
        }
        Ok(())
    }

    /// A stream waits for an event, and one of them may belong to a capture. Whether that was all.
    fn capture_wait(&mut self, stream: &StreamRef, event: u64) -> Res<bool> {
        let own = self.capture_of(stream.uid).map(|(id, capture)| (id, capture.dead));
        let event = self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        match (own, event.captured.clone()) {
            (None, None) => Ok(false),
            (Some((_, true)), _) => Err(INVALIDATED),
            // Never recorded: nothing to wait for.
            (Some(_), None) if event.record.is_none() => Ok(true),
            (Some((id, _)), None) => {
                self.kill_capture(id);
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            (Some((id, _)), Some(captured)) if captured.id == id => {
                let membership = self.streams.get_mut(&stream.uid).and_then(|s| s.capture.as_mut());
                if let Some(membership) = membership {
                    join_dependencies(&mut membership.after, captured.nodes);
                }
                Ok(true)
            }
            (Some((id, _)), Some(captured)) => {
                self.kill_capture(id);
                if !self.graphs.captures.contains_key(&captured.id) {
                    return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
                }
                self.kill_capture(captured.id);
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
            (None, Some(captured)) => {
                let Some(capture) = self.graphs.captures.get_mut(&captured.id) else {
                    return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
                };
                if capture.dead {
                    return Err(INVALIDATED);
                }
                if stream.legacy {
                    capture.dead = true;
                    return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
                }
                capture.streams.insert(stream.uid);
                if let Some(stream) = self.streams.get_mut(&stream.uid) {
                    let Captured { id, nodes } = captured;
                    stream.capture =
                        Some(Membership { id, after: nodes, shown: Vec::new(), shown_data: Vec::new() });
                }
                Ok(true)
            }
        }
    }

    /// Work comes to a stream: if a capture takes it, true.
    pub(crate) fn capture_work(&mut self, stream: &StreamRef, work: &Work) -> Res<bool> {
        if let Work::Wait(event) = work
            && self.capture_wait(stream, *event)?
        {
            return Ok(true);
        }
        if self.graphs.captures.is_empty() {
            return Ok(false);
        }
        self.refuse_implicit(stream)?;
        let Some((id, capture)) = self.capture_of(stream.uid) else { return Ok(false) };
        if capture.dead {
            return Err(INVALIDATED);
        }
        let node = match work {
            Work::Launch(launch) => NodeWork::kernel(launch.clone()),
            // A graph's launch may be on a stream of another device.
            Work::Memory(MemoryWork::Transfer(copy)) => {
                let copy = Transfer { device: Some(stream.context.device), ..(**copy).clone() };
                let description = describe_copy(&copy);
                NodeWork::Copy(Arc::new(copy), description)
            }
            Work::Memory(MemoryWork::Fill(fill)) => {
                let fill = Fill { device: Some(stream.context.device), ..*fill };
                NodeWork::Set(fill, describe_fill(&fill))
            }
            Work::Host(call) => NodeWork::Host(*call),
            Work::Record(event) => {
                let membership = self.streams.get(&stream.uid).and_then(|s| s.capture.as_ref());
                let nodes = membership.map(|membership| membership.after.clone()).unwrap_or_default();
                let event = self.events.get_mut(event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
                event.captured = Some(Captured { id, nodes });
                return Ok(true);
            }
            Work::WaitValue(_) | Work::WriteValue { .. } => NodeWork::Values(Arc::new([work.clone()])),
            // Waits were looked at above; the rest no capture can hold.
            Work::Wait(_)
            | Work::After(_)
            | Work::Memory(_)
            | Work::Gate(_)
            | Work::Conditions(_)
            | Work::Branch(..) => {
                self.kill_capture(id);
                return Err(UNSUPPORTED);
            }
        };
        self.capture_node(stream.uid, node)?;
        Ok(true)
    }
}

impl State {
    /// The event that was just recorded behind a captured launch stands for one of the launch's ports.
    pub(crate) fn captured_at_port(&mut self, event: u64, port: u8) {
        if let Some(captured) = self.events.get_mut(&event).and_then(|event| event.captured.as_mut()) {
            let kind = u8::from(port == PROGRAMMATIC_PORT);
            captured.nodes.iter_mut().for_each(|node| node.1 = [port, 0, kind]);
        }
    }
}

impl Core {
    /// Whether calls on the stream become nodes.
    pub(crate) fn captures(&self, stream: &StreamRef) -> bool {
        self.state.lock().is_capturing(stream.uid)
    }

    /// An allocation on a capturing stream: a node with a fixed address.
    pub(crate) fn capture_allocation(&self, stream: &StreamRef, device: i32, bytes: u64) -> Res<Option<u64>> {
        let mut state = self.state.lock();
        match state.capture_of(stream.uid) {
            None => return Ok(None),
            Some((_, capture)) if capture.dead => return Err(INVALIDATED),
            Some(_) => {}
        }
        let memory = self.graph_memory(&mut state, device, bytes, Vec::new())?;
        let base = memory.base;
        state.capture_node(stream.uid, NodeWork::Alloc(memory))?;
        Ok(Some(base))
    }

    /// A free on a capturing stream: of memory that the same graph allocates.
    ///
    /// # Errors
    /// Any other memory; the capture goes on.
    pub(crate) fn capture_free(&self, stream: &StreamRef, base: u64) -> Res<bool> {
        let mut state = self.state.lock();
        let graph = match state.capture_of(stream.uid) {
            None => return Ok(false),
            Some((_, capture)) if capture.dead => return Err(INVALIDATED),
            Some((_, capture)) => capture.graph,
        };
        let nodes = &state.graphs.graph(graph)?.graph;
        let owned = nodes.nodes().any(|(_, n)| matches!(n, NodeWork::Alloc(memory) if memory.base == base));
        let freed = nodes.nodes().any(|(_, n)| matches!(n, &NodeWork::Free(other) if other == base));
        if !owned || freed {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.capture_node(stream.uid, NodeWork::Free(base))?;
        Ok(true)
    }
}

/// A copy as a descriptor of three dimensions.
pub(crate) fn describe_copy(copy: &Transfer) -> Descriptor {
    let end = |side: &Side| {
        let (kind, host, device) = match side.place {
            Place::Memory(address) => (CUmemorytype::CU_MEMORYTYPE_DEVICE, 0, address),
            Place::Host(address) => (CUmemorytype::CU_MEMORYTYPE_HOST, address, 0),
            Place::Staged(ref bytes) => (CUmemorytype::CU_MEMORYTYPE_HOST, bytes.as_ptr().addr(), 0),
        };
        let pitch = if side.pitch == 0 { copy.width } else { side.pitch };
        let height = if side.slice == 0 { copy.height } else { side.slice / pitch.max(1) };
        (kind, host, device, pitch as usize, height as usize)
    };
    let (src, dst) = (end(&copy.from), end(&copy.to));
    Descriptor(CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: src.0,
        srcHost: std::ptr::with_exposed_provenance(src.1),
        srcDevice: src.2,
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: src.3,
        srcHeight: src.4,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: dst.0,
        dstHost: std::ptr::with_exposed_provenance_mut(dst.1),
        dstDevice: dst.2,
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: dst.3,
        dstHeight: dst.4,
        WidthInBytes: copy.width as usize,
        Height: copy.height as usize,
        Depth: copy.depth as usize,
    })
}

/// A fill as the parameters of a node.
pub(crate) fn describe_fill(fill: &Fill) -> CUDA_MEMSET_NODE_PARAMS {
    use crate::memory::Pattern;
    let value = match fill.pattern {
        Pattern::U8(value) => u32::from(value),
        Pattern::U16(value) => u32::from(value),
        Pattern::U32(value) => value,
    };
    CUDA_MEMSET_NODE_PARAMS {
        dst: fill.address,
        pitch: fill.pitch as usize,
        value,
        elementSize: fill.pattern.bytes() as u32,
        width: fill.width as usize,
        height: fill.height as usize,
    }
}
