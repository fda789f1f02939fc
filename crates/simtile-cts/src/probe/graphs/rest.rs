//! User objects, captures into graphs, pictures, flags.

use super::{add, edges, graph, nothing};
use crate::cu;
use crate::driver::graph_tools::{data, memset};
use crate::frame::Check;
use crate::gpu::Gpu;
use crate::probe::Sink;
use simtile_driver::sys::*;
use std::ptr::{null, null_mut};

pub(super) fn lines(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, c, stream) = (gpu.cx(), gpu.context, gpu.stream()?);
    let (word, g) = (gpu.zeroed(64)?, graph(cx));
    let mut object = CUuserObject::NULL;
    for (count, flags) in [(1, 0), (0, 1), (2, 1)] {
        out(format!(
            "cuUserObjectCreate count {count} flags {flags}: {}",
            cu!(cx, cuUserObjectCreate(&mut object, null_mut(), Some(nothing), count, flags)).0
        ));
    }
    out(format!(
        "retain 0: {}, release 0: {}",
        cu!(cx, cuUserObjectRetain(object, 0)).0,
        cu!(cx, cuUserObjectRelease(object, 0)).0
    ));
    out(format!(
        "graph retain 1: {}, 1 moved: {}, 5 moved: {}, 0: {}",
        cu!(cx, cuGraphRetainUserObject(g, object, 1, 0)).0,
        cu!(cx, cuGraphRetainUserObject(g, object, 1, 1)).0,
        cu!(cx, cuGraphRetainUserObject(g, object, 5, 1)).0,
        cu!(cx, cuGraphRetainUserObject(g, object, 0, 0)).0
    ));
    out(format!(
        "graph release 3 of 2: {}, 1: {}, 1: {}, 1: {}",
        cu!(cx, cuGraphReleaseUserObject(g, object, 3)).0,
        cu!(cx, cuGraphReleaseUserObject(g, object, 1)).0,
        cu!(cx, cuGraphReleaseUserObject(g, object, 1)).0,
        cu!(cx, cuGraphReleaseUserObject(g, object, 1)).0
    ));
    // Capture into a graph.
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    out(format!(
        "capture to a null graph: {}",
        cu!(cx, cuStreamBeginCaptureToGraph(stream, CUgraph::NULL, null(), null(), 0, relaxed)).0
    ));
    let first = add(cx, g, &[], memset(word, 1, c)).1;
    let foreign = add(cx, graph(cx), &[], memset(word, 1, c)).1;
    out(format!(
        "after another graph's node: {}",
        cu!(cx, cuStreamBeginCaptureToGraph(stream, g, &foreign, null(), 1, relaxed)).0
    ));
    let _ = cu!(cx, cuStreamEndCapture(stream, &mut CUgraph(0)));
    out(format!(
        "with programmatic data after a memset: {}",
        cu!(cx, cuStreamBeginCaptureToGraph(stream, g, &first, &data(1, 0, 1), 1, relaxed)).0
    ));
    let _ = cu!(cx, cuStreamEndCapture(stream, &mut CUgraph(0)));
    let begun = cu!(cx, cuStreamBeginCaptureToGraph(stream, g, &first, &data(0, 0, 0), 1, relaxed));
    let other = gpu.stream()?;
    let second = cu!(cx, cuStreamBeginCaptureToGraph(other, g, null(), null(), 0, relaxed));
    let gone = cu!(cx, cuGraphDestroy(graph(cx)));
    let set = cu!(cx, cuMemsetD32Async(word + 4, 2, 1, stream));
    let mut ended = CUgraph::NULL;
    let end = cu!(cx, cuStreamEndCapture(stream, &mut ended));
    let end2 = cu!(cx, cuStreamEndCapture(other, &mut CUgraph(0)));
    out(format!(
        "capture to a graph: {} {} {} same {} edges {}; a second capture into it {} {}; {}",
        begun.0,
        set.0,
        end.0,
        ended == g,
        edges(cx, g),
        second.0,
        end2.0,
        gone.0
    ));
    let path = std::env::temp_dir().join(format!("simtile-probe-{}.dot", std::process::id()));
    let name = std::ffi::CString::new(path.to_string_lossy().into_owned()).unwrap_or_default();
    for flags in [0, 1, 1 << 20] {
        let code = cu!(cx, cuGraphDebugDotPrint(g, name.as_ptr(), flags));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().take(4).map(|line| line.get(..60).unwrap_or(line)).collect();
        out(format!("picture with flags {flags}: {} {} bytes {lines:?}", code.0, text.len()));
    }
    let _ = std::fs::remove_file(&path);
    out(format!(
        "picture into no folder: {}",
        cu!(cx, cuGraphDebugDotPrint(g, c"/no/such/folder/x.dot".as_ptr(), 0)).0
    ));
    for flags in [2u64, 4, 8, 16, 3] {
        let mut exec = CUgraphExec(0);
        let code = cu!(cx, cuGraphInstantiateWithFlags(&mut exec, g, flags));
        let mut shown = 99;
        let _ = cu!(cx, cuGraphExecGetFlags(exec, &mut shown));
        out(format!("instantiate with flags {flags}: {} shown {shown}", code.0));
    }
    Ok(())
}
