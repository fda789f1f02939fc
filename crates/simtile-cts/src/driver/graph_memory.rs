//! Memory of graphs: allocation and free nodes, what launches take, and the device's counts.

use super::graph_tools::*;
use crate::frame::{Check, Cx, Need};
use crate::gpu::Gpu;
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::CUgraphMem_attribute as Attr;
use simtile_driver::sys::*;
use std::ptr::null;

crate::frame::registry::tests! { Driver, "graph_memory";
    nodes_and_their_parameters needs [Need::POOLS],
    freed_inside needs [Need::POOLS],
    freed_in_stream_order needs [Need::POOLS],
    freed_at_once needs [Need::POOLS],
    a_second_launch_needs_a_free needs [Need::POOLS],
    freed_at_the_next_launch needs [Need::POOLS],
    counts needs [Need::POOLS],
    trimming_gives_memory_back needs [Need::POOLS],
    high_marks_can_be_set_back needs [Need::POOLS],
    refusals needs [Need::POOLS, Need::Driver(12, 3, "nodes of any kind by one entry")],
    not_copied needs [Need::POOLS],
}

const MIB: usize = 1 << 20;

/// An allocation node by its own entry.
fn alloc(cx: &Cx, graph: CUgraph, bytes: usize) -> Check<(CUgraphNode, CUdeviceptr)> {
    // SAFETY: zeros are valid in every field.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location =
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    params.bytesize = bytes;
    let mut node = CUgraphNode::NULL;
    ok!(cx, cuGraphAddMemAllocNode(&mut node, graph, null(), 0, &mut params))?;
    ensure!(params.dptr != 0, "an allocation node without an address");
    Ok((node, params.dptr))
}

fn free(cx: &Cx, graph: CUgraph, before: &[CUgraphNode], address: CUdeviceptr) -> Check<CUgraphNode> {
    let mut node = CUgraphNode::NULL;
    ok!(cx, cuGraphAddMemFreeNode(&mut node, graph, before.as_ptr(), before.len(), address))?;
    Ok(node)
}

fn count(cx: &Cx, attribute: Attr) -> Check<u64> {
    let mut value = 0u64;
    ok!(cx, cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut value).cast()))?;
    Ok(value)
}

fn used(cx: &Cx) -> Check<u64> {
    count(cx, Attr::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
}

fn reserved(cx: &Cx) -> Check<u64> {
    count(cx, Attr::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
}

/// Everything was freed: trimming leaves nothing. A free alone gives nothing back.
fn nothing_is_out(cx: &Cx) -> Check {
    ok!(cx, cuDeviceGraphMemTrim(0))?;
    ensure_eq!((used(cx)?, reserved(cx)?), (0, 0), "bytes in use and reserved after trimming");
    Ok(())
}

/// A graph that allocates, and sets the first word.
fn setting(gpu: &Gpu<'_>, bytes: usize, value: u32) -> Check<(CUgraph, CUgraphNode, CUdeviceptr)> {
    let g = graph(gpu.cx())?;
    let (node, memory) = alloc(gpu.cx(), g, bytes)?;
    let set = add_memset(gpu, g, &[node], memory, value)?;
    Ok((g, set, memory))
}

fn nodes_and_their_parameters(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let g = graph(cx)?;
    let (a, memory) = alloc(cx, g, 1000)?;
    let f = free(cx, g, &[a], memory)?;
    // SAFETY: zeros are valid in every field.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    ok!(cx, cuGraphMemAllocNodeGetParams(a, &mut params))?;
    ensure_eq!((params.dptr, params.poolProps.location.id), (memory, 0), "address and device");
    ensure!(params.bytesize >= 1000, "size {}", params.bytesize);
    let mut freed = 0;
    ok!(cx, cuGraphMemFreeNodeGetParams(f, &mut freed))?;
    ensure_eq!(freed, memory, "address that is freed");
    for (node, kind) in [(a, 10), (f, 11)] {
        let mut found = CUgraphNodeType(99);
        ok!(cx, cuGraphNodeGetType(node, &mut found))?;
        ensure_eq!(found.0, kind, "type of a node");
    }
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphMemFreeNodeGetParams(a, &mut freed))
}

fn freed_inside(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (stream, word) = (gpu.stream()?, gpu.zeroed(4)?);
    let (g, set, memory) = setting(&gpu, 4096, 9)?;
    let kernel = gpu.kernel(c"copy_one")?;
    let copied = add_kernel(cx, g, &[set], kernel, &crate::gpu::Args::new().with(memory).with(word))?;
    free(cx, g, &[copied], memory)?;
    let e = exec(cx, g)?;
    for _ in 0..3 {
        gpu.write(word, &[0u32])?;
        replay(&gpu, e, stream)?;
        ensure_eq!(gpu.word(word)?, 9, "word that was copied out of the graph's memory");
    }
    nothing_is_out(cx)
}

fn freed_in_stream_order(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 4096, 9)?;
    let e = exec(cx, g)?;
    for _ in 0..2 {
        replay(&gpu, e, stream)?;
        ensure_eq!(gpu.word(memory)?, 9, "word in the graph's memory");
        ok!(cx, cuMemFreeAsync(memory, stream))?;
        gpu.sync(stream)?;
    }
    nothing_is_out(cx)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemFreeAsync(memory, stream))
}

fn freed_at_once(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 4096, 9)?;
    replay(&gpu, exec(cx, g)?, stream)?;
    ok!(cx, cuMemFree(memory))?;
    nothing_is_out(cx)
}

fn a_second_launch_needs_a_free(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 4096, 9)?;
    let e = exec(cx, g)?;
    replay(&gpu, e, stream)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphLaunch(e, stream))?;
    ok!(cx, cuMemFreeAsync(memory, stream))?;
    replay(&gpu, e, stream)?;
    ensure_eq!(gpu.word(memory)?, 9, "word after the second launch");
    ok!(cx, cuMemFreeAsync(memory, stream))
}

fn freed_at_the_next_launch(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 4096, 9)?;
    let (mut e, mut flags) = (CUgraphExec::NULL, 0);
    ok!(cx, cuGraphInstantiateWithFlags(&mut e, g, 1))?;
    ok!(cx, cuGraphExecGetFlags(e, &mut flags))?;
    ensure_eq!(flags, 1, "flags");
    for _ in 0..3 {
        replay(&gpu, e, stream)?;
        ensure_eq!(gpu.word(memory)?, 9, "word");
    }
    ok!(cx, cuMemFreeAsync(memory, stream))?;
    gpu.sync(stream)?;
    nothing_is_out(cx)
}

fn counts(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 8 * MIB, 1)?;
    let e = exec(cx, g)?;
    replay(&gpu, e, stream)?;
    let now = used(cx)?;
    ensure!(now >= 8 * MIB as u64 && reserved(cx)? >= now, "{now} bytes in use");
    ensure!(count(cx, Attr::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)? >= now, "the most in use is less than now");
    let high = count(cx, Attr::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)?;
    ensure!(high >= reserved(cx)?, "the most reserved is less than now");
    ok!(cx, cuMemFreeAsync(memory, stream))?;
    gpu.sync(stream)?;
    nothing_is_out(cx)
}

/// Bytes of the device that are free.
fn left(cx: &Cx) -> Check<usize> {
    let mut free = 0;
    ok!(cx, cuMemGetInfo(&mut free, &mut 0))?;
    Ok(free)
}

fn trimming_gives_memory_back(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 256 * MIB, 1)?;
    let e = exec(cx, g)?;
    replay(&gpu, e, stream)?;
    ok!(cx, cuMemFreeAsync(memory, stream))?;
    gpu.sync(stream)?;
    ensure!(reserved(cx)? >= 256 << 20, "{} bytes stay reserved after a free", reserved(cx)?);
    let before = left(cx)?;
    ok!(cx, cuDeviceGraphMemTrim(0))?;
    ensure_eq!(reserved(cx)?, 0, "bytes reserved after trimming");
    let after = left(cx)?;
    ensure!(after >= before + 200 * MIB, "trimming gave {} bytes back", after as i64 - before as i64);
    // What is in use stays.
    replay(&gpu, e, stream)?;
    ok!(cx, cuDeviceGraphMemTrim(0))?;
    ensure!(reserved(cx)? >= 256 << 20, "{} bytes are reserved while they are in use", reserved(cx)?);
    ensure_eq!(gpu.word(memory)?, 1, "word");
    ok!(cx, cuMemFreeAsync(memory, stream))
}

fn high_marks_can_be_set_back(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let (g, _, memory) = setting(&gpu, 4 * MIB, 1)?;
    replay(&gpu, exec(cx, g)?, stream)?;
    ok!(cx, cuMemFreeAsync(memory, stream))?;
    gpu.sync(stream)?;
    ok!(cx, cuDeviceGraphMemTrim(0))?;
    for high in [Attr::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, Attr::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] {
        ensure!(count(cx, high)? >= 4 << 20, "{high:?} is {}", count(cx, high)?);
        let mut zero = 0u64;
        ok!(cx, cuDeviceSetGraphMemAttribute(0, high, (&raw mut zero).cast()))?;
        ensure_eq!(count(cx, high)?, 0, "{high:?} after it was set back");
    }
    let mut zero = 0u64;
    let now = Attr::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDeviceSetGraphMemAttribute(0, now, (&raw mut zero).cast()))
}

fn refusals(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let g = graph(cx)?;
    let mut node = CUgraphNode::NULL;
    let nothing = cu!(cx, cuGraphAddNode(&mut node, g, null(), null(), 0, &mut allocation(0, 0)));
    ensure_eq!(nothing, CUresult::CUDA_ERROR_INVALID_VALUE, "an allocation node of 0 bytes");
    let mut nowhere = allocation(9999, 64);
    let placed = cu!(cx, cuGraphAddNode(&mut node, g, null(), null(), 0, &mut nowhere));
    ensure!(!placed.is_ok(), "an allocation node on no device");
    let plain = gpu.alloc(64)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphAddMemFreeNode(&mut node, g, null(), 0, plain))
}

fn not_copied(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (g, set, _) = setting(&gpu, 64, 1)?;
    let (mut copy, mut node, mut second) = (CUgraph::NULL, CUgraphNode::NULL, CUgraphExec::NULL);
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphClone(&mut copy, g))?;
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphAddChildGraphNode(&mut node, graph(cx)?, null(), 0, g))?;
    // Nor taken apart, nor instantiated twice at a time.
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphDestroyNode(set))?;
    let first = exec(cx, g)?;
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuGraphInstantiateWithFlags(&mut second, g, 0))?;
    ok!(cx, cuGraphExecDestroy(first))?;
    exec(cx, g).map(drop)
}
