//! Edges with ports and types.

use super::{add, edges, graph, instantiate};
use crate::cu;
use crate::driver::graph_tools::{data, kernel, memset};
use crate::frame::Check;
use crate::gpu::{Args, Gpu};
use crate::probe::Sink;
use simtile_driver::sys::*;
use std::ptr::{null, null_mut};

pub(super) fn lines(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, c) = (gpu.cx(), gpu.context);
    let (word, stream, store) = (gpu.zeroed(64)?, gpu.stream()?, gpu.kernel(c"store_one")?);
    let args = Args::new().with(word).with(1u32);
    for edge in [(1, 0, 1), (2, 0, 1), (0, 0, 1), (1, 0, 0), (2, 0, 0), (3, 0, 1), (1, 1, 1), (0, 0, 2)] {
        let g = graph(cx);
        let a = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
        let b = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
        let code = cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(edge.0, edge.1, edge.2), 1));
        out(format!("edge between kernels {edge:?}: {}, instantiate {}", code.0, instantiate(cx, g, 0).0));
    }
    let g = graph(cx);
    let a = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    let m = add(cx, g, &[], memset(word, 1, c)).1;
    out(format!(
        "programmatic edge from a memset: {}",
        cu!(cx, cuGraphAddDependencies_v2(g, &m, &a, &data(1, 0, 1), 1)).0
    ));
    out(format!(
        "programmatic edge to a memset: {}",
        cu!(cx, cuGraphAddDependencies_v2(g, &a, &m, &data(1, 0, 1), 1)).0
    ));
    let b = add(cx, g, &[], kernel(store, &mut args.pointers())).1;
    let code = cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(1, 0, 1), 1));
    out(format!(
        "edge {} and a second one between the same: plain {}, the same {}, launch order {}",
        code.0,
        cu!(cx, cuGraphAddDependencies(g, &a, &b, 1)).0,
        cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(1, 0, 1), 1)).0,
        cu!(cx, cuGraphAddDependencies_v2(g, &a, &b, &data(2, 0, 1), 1)).0
    ));
    out(format!("edges: {}", edges(cx, g)));
    let (mut list, mut n) = ([CUgraphNode::NULL; 8], 0);
    out(format!(
        "older queries: edges count {} ",
        cu!(cx, cuGraphGetEdges(g, null_mut(), null_mut(), &mut n)).0
    ));
    n = 8;
    out(format!(
        "older queries: dependencies {} ",
        cu!(cx, cuGraphNodeGetDependencies(b, list.as_mut_ptr(), &mut n)).0
    ));
    n = 0;
    out(format!(
        "older queries: dependencies count {} ",
        cu!(cx, cuGraphNodeGetDependencies(b, null_mut(), &mut n)).0
    ));
    out(format!(
        "remove with other data: {}",
        cu!(cx, cuGraphRemoveDependencies_v2(g, &a, &b, &data(2, 0, 1), 1)).0
    ));
    out(format!("remove without data: {}", cu!(cx, cuGraphRemoveDependencies(g, &a, &b, 1)).0));
    out(format!("remove: {}", cu!(cx, cuGraphRemoveDependencies_v2(g, &a, &b, &data(1, 0, 1), 1)).0));
    // Captured.
    let value = |id: CUlaunchAttributeID, value| CUlaunchAttribute { id, pad: [0; 4], value };
    let launch = |attribute: &mut CUlaunchAttribute| {
        let config = CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: attribute,
            numAttrs: 1,
        };
        cu!(cx, cuLaunchKernelEx(&config, store, args.pointers().as_mut_ptr(), null_mut())).0
    };
    let mut serial = value(
        CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    );
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    for memset_between in [false, true] {
        let mut g = CUgraph::NULL;
        let _ = cu!(cx, cuStreamBeginCapture(stream, relaxed));
        let mut codes = vec![launch(&mut serial)];
        if memset_between {
            codes.push(cu!(cx, cuMemsetD32Async(word, 1, 1, stream)).0);
        }
        codes.push(launch(&mut serial));
        let (mut status, mut count, mut nodes) = (CUstreamCaptureStatus(0), 0, null());
        let info = cu!(
            cx,
            cuStreamGetCaptureInfo(stream, &mut status, null_mut(), null_mut(), &mut nodes, &mut count)
        );
        codes.push(cu!(cx, cuStreamEndCapture(stream, &mut g)).0);
        out(format!(
            "captured, programmatic, memset between {memset_between}: {codes:?} info {} edges {} instantiate {}",
            info.0,
            edges(cx, g),
            instantiate(cx, g, 0).0
        ));
    }
    for (name, id) in [
        ("programmatic event", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT),
        ("launch completion event", CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT),
    ] {
        let (event, other) = (gpu.event()?, gpu.stream()?);
        let mut with = value(
            id,
            if name.starts_with('p') {
                CUlaunchAttributeValue {
                    programmaticEvent: CUlaunchAttributeValue_programmaticEvent {
                        event,
                        flags: 0,
                        triggerAtBlockStart: 0,
                    },
                }
            } else {
                CUlaunchAttributeValue {
                    launchCompletionEvent: CUlaunchAttributeValue_launchCompletionEvent { event, flags: 0 },
                }
            },
        );
        let mut g = CUgraph::NULL;
        let mut codes = vec![
            cu!(cx, cuStreamBeginCapture(stream, relaxed)).0,
            launch(&mut with),
            cu!(cx, cuStreamWaitEvent(other, event, 0)).0,
        ];
        let (mut status, mut count, mut nodes, mut found) = (CUstreamCaptureStatus(0), 0, null(), null());
        codes.push(
            cu!(
                cx,
                cuStreamGetCaptureInfo(other, &mut status, null_mut(), null_mut(), &mut nodes, &mut count)
            )
            .0,
        );
        let new = cu!(
            cx,
            cuStreamGetCaptureInfo_v3(
                other,
                &mut status,
                null_mut(),
                null_mut(),
                &mut nodes,
                &mut found,
                &mut count
            )
        );
        let shown = if new.is_ok() && count == 1 && !found.is_null() {
            // SAFETY: the driver shows so many, until the next call on the stream.
            format!("{:?}", unsafe { *found }.from_port)
        } else {
            format!("{count} {}", found.is_null())
        };
        codes.push(cu!(cx, cuMemsetD32Async(word, 1, 1, other)).0);
        codes.push(cu!(cx, cuEventRecord(event, other)).0);
        codes.push(cu!(cx, cuStreamWaitEvent(stream, event, 0)).0);
        codes.push(cu!(cx, cuStreamEndCapture(stream, &mut g)).0);
        out(format!(
            "captured {name}, then a memset: {codes:?} v3 {} port {shown} edges {} instantiate {}",
            new.0,
            edges(cx, g),
            instantiate(cx, g, 0).0
        ));
    }
    Ok(())
}
