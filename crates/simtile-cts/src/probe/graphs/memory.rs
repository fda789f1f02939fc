//! Memory nodes.

use super::{add, graph, instantiate};
use crate::driver::graph_tools::{allocation, blank, memset};
use crate::frame::Check;
use crate::gpu::Gpu;
use crate::probe::Sink;
use crate::{cu, ok};
use simtile_driver::sys::CUgraphNodeType as Type;
use simtile_driver::sys::*;
use std::ptr::null;

pub(super) fn lines(gpu: &Gpu<'_>, out: Sink<'_>) -> Check {
    let (cx, stream) = (gpu.cx(), gpu.stream()?);
    let mut start = 0;
    ok!(cx, cuMemGetInfo(&mut start, &mut 0))?;
    let state = |what: &str| {
        let mut free = 0;
        let _ = cu!(cx, cuMemGetInfo(&mut free, &mut 0));
        let values: Vec<u64> = (0..4)
            .map(|attribute| {
                let mut value = 0u64;
                let _ = cu!(
                    cx,
                    cuDeviceGetGraphMemAttribute(0, CUgraphMem_attribute(attribute), (&raw mut value).cast())
                );
                value
            })
            .collect();
        format!("{what}: taken {} used, high, reserved, high {values:?}", start as i64 - free as i64)
    };
    let bytes = (64 << 20) + 100;
    let node = |g, before: &[CUgraphNode], bytes| {
        let (code, node, params) = add(cx, g, before, allocation(0, bytes));
        // SAFETY: the variant was filled.
        (code, node, unsafe { params.u.alloc }.dptr)
    };
    let free_node = |g, before: &[CUgraphNode], at| {
        let mut params = blank(Type::CU_GRAPH_NODE_TYPE_MEM_FREE);
        params.u.free = CUDA_MEM_FREE_NODE_PARAMS { dptr: at };
        add(cx, g, before, params)
    };
    out(state("before"));
    let g = graph(cx);
    let (code, a, at) = node(g, &[], bytes);
    out(format!(
        "allocation node: {} at {at:#x}; of 0 bytes {}; {}",
        code.0,
        node(graph(cx), &[], 0).0.0,
        state("")
    ));
    let set = add(cx, g, &[a], memset(at, 3, gpu.context));
    out(format!("a memset on it: {}", set.0.0));
    // SAFETY: zeros are valid in every field.
    let mut shown: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    let code = cu!(cx, cuGraphMemAllocNodeGetParams(a, &mut shown));
    out(format!("its parameters: {} bytes {} at its place {}", code.0, shown.bytesize, shown.dptr == at));
    out(format!("free node of other memory: {}", free_node(g, &[a], gpu.alloc(64)?).0.0));
    let (text, exec) = instantiate(cx, g, 0);
    out(format!("instantiate {text}; {}", state("")));
    out(format!("instantiate a second time: {}", instantiate(cx, g, 0).0));
    let code = cu!(cx, cuGraphUpload(exec, stream));
    gpu.sync(stream)?;
    out(format!("upload {}; {}", code.0, state("")));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    gpu.sync(stream)?;
    out(format!("launch {}; {}", code.0, state("")));
    out(format!("launch again: {}", cu!(cx, cuGraphLaunch(exec, stream)).0));
    out(format!("word in it: {:?}", gpu.read::<u32>(at, 1)));
    let code = cu!(cx, cuMemFreeAsync(at, stream));
    gpu.sync(stream)?;
    out(format!(
        "free in stream order {}; {}; free again {}",
        code.0,
        state(""),
        cu!(cx, cuMemFreeAsync(at, stream)).0
    ));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    gpu.sync(stream)?;
    out(format!("launch {}, cuMemFree {}; {}", code.0, cu!(cx, cuMemFree(at)).0, state("")));
    out(format!("trim {}; {}", cu!(cx, cuDeviceGraphMemTrim(0)).0, state("")));
    let code = cu!(cx, cuGraphLaunch(exec, stream));
    gpu.sync(stream)?;
    out(format!("launch {}, trim {}; {}", code.0, cu!(cx, cuDeviceGraphMemTrim(0)).0, state("")));
    out(format!(
        "destroy the executable with memory out: {}; {}",
        cu!(cx, cuGraphExecDestroy(exec)).0,
        state("")
    ));
    out(format!("then free: {}; {}", cu!(cx, cuMemFreeAsync(at, stream)).0, state("")));
    gpu.sync(stream)?;
    out(format!("trim {}; {}", cu!(cx, cuDeviceGraphMemTrim(0)).0, state("")));
    let (text, exec) = instantiate(cx, g, 1);
    let codes: Vec<u32> = (0..3).map(|_| cu!(cx, cuGraphLaunch(exec, stream)).0).collect();
    gpu.sync(stream)?;
    out(format!("with auto free {text}, three launches: {codes:?}; {}", state("")));
    out(format!("destroy with auto free: {}; {}", cu!(cx, cuGraphExecDestroy(exec)).0, state("")));
    out(format!("then free: {}", cu!(cx, cuMemFreeAsync(at, stream)).0));
    gpu.sync(stream)?;
    let mut copy = CUgraph::NULL;
    let mut child = CUgraphNode::NULL;
    out(format!(
        "clone {}, child {}, destroy a node {}, remove an edge {}",
        cu!(cx, cuGraphClone(&mut copy, g)).0,
        cu!(cx, cuGraphAddChildGraphNode(&mut child, graph(cx), null(), 0, g)).0,
        cu!(cx, cuGraphDestroyNode(set.1)).0,
        cu!(cx, cuGraphRemoveDependencies(g, &a, &set.1, 1)).0
    ));
    out(format!("destroy the graph: {}; {}", cu!(cx, cuGraphDestroy(g)).0, state("")));
    let g = graph(cx);
    let (_, a, at) = node(g, &[], 1 << 20);
    let (_, b, other) = node(g, &[], 3 << 20);
    let freed = free_node(g, &[a], at);
    out(format!(
        "free node {}; the same memory again {}; unordered after its allocation {}",
        freed.0.0,
        free_node(g, &[a], at).0.0,
        free_node(g, &[], other).0.0
    ));
    let (text, exec) = instantiate(cx, g, 0);
    let codes = (cu!(cx, cuGraphLaunch(exec, stream)).0, cu!(cx, cuGraphLaunch(exec, stream)).0);
    gpu.sync(stream)?;
    out(format!("instantiate {text} launches {codes:?}; {}", state("")));
    let far = graph(cx);
    let foreign = free_node(far, &[], other);
    let (text, exec2) = instantiate(cx, far, 0);
    let codes = (
        cu!(cx, cuGraphLaunch(exec2, stream)).0,
        cu!(cx, cuStreamSynchronize(stream)).0,
        cu!(cx, cuGraphLaunch(exec2, stream)).0,
    );
    out(format!("free node in another graph: {} {text} launches {codes:?}; {}", foreign.0.0, state("")));
    let mut desc = CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let mut params = allocation(0, 64);
    params.u.alloc.accessDescs = &raw mut desc;
    params.u.alloc.accessDescCount = 1;
    out(format!("allocation with access for its own device: {}", add(cx, graph(cx), &[], params).0.0));
    for (attribute, value) in [(0, 0u64), (1, 0), (1, 5), (2, 0), (3, 0), (9, 0)] {
        let mut value = value;
        let code = cu!(
            cx,
            cuDeviceSetGraphMemAttribute(0, CUgraphMem_attribute(attribute), (&raw mut value).cast())
        );
        out(format!("set attribute {attribute} to {value}: {}; {}", code.0, state("")));
    }
    let g = graph(cx);
    let code = add(cx, g, &[], allocation(0, 1 << 42)).0;
    out(format!(
        "allocation of 4 TiB: {}, instantiate {}",
        code.0,
        if code.is_ok() {
            let (text, exec) = instantiate(cx, g, 0);
            format!("{text} launch {}", cu!(cx, cuGraphLaunch(exec, stream)).0)
        } else {
            String::new()
        }
    ));
    out(format!("memset on freed memory: {}", cu!(cx, cuMemsetD8Async(at, 1, 4, stream)).0));
    let _ = b;
    Ok(())
}
