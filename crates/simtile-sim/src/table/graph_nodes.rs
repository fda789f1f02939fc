//! Nodes of graphs: what they do, as CUDA's structures say it, and back.

use super::capture::handles;
use super::event::event_uid;
use super::graph::{check_edge, edge_data};
use super::launch::{self, Attributes, Shape};
use super::memory::unsupported;
use super::{copy, memset, stream};
use crate::core::Res;
use crate::engine::graphs::{Conditional, Descriptor, NO_GRAPH, NodeWork};
use crate::engine::launch::Launch;
use crate::engine::work::HostCall;
use crate::entry::{Arg, Call, In, Out, entries};
use crate::graph::NodeId;
use crate::memory::{Fill, Pattern, Transfer};
use core::ffi::c_void;
use simtile_driver::sys::*;
use simtile_sync::Arc;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A kernel node's launch. What `old` was set to by attributes stays.
pub(super) fn kernel(
    call: &Call<'_>,
    params: &CUDA_KERNEL_NODE_PARAMS_v2,
    old: Option<&Launch>,
) -> Res<NodeWork> {
    let shape = Shape {
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        dynamic: params.sharedMemBytes,
    };
    let attributes = Attributes {
        cluster: old.map(|old| old.cluster).filter(|cluster| *cluster != [1; 3]),
        cooperative: old.is_some_and(|old| old.cooperative),
        priority: old.and_then(|old| old.priority),
        programmatic: old.is_some_and(|old| old.programmatic),
        events: Vec::new(),
    };
    let function = if params.func.is_null() { CUfunction(params.kern.0) } else { params.func };
    let context = match params.ctx {
        CUcontext::NULL => None,
        context => Some(call.context_from(context)?),
    };
    // SAFETY: the caller of the entry says that these are null or valid for the call.
    let (list, extra) = unsafe { (Arg::wrap(params.kernelParams), Arg::wrap(params.extra)) };
    let launch = launch::prepare(call, function, &shape, context, &attributes, &list, &extra)?;
    Ok(NodeWork::kernel(Arc::new(launch)))
}

fn kernel_params(work: &NodeWork) -> Res<CUDA_KERNEL_NODE_PARAMS_v2> {
    let NodeWork::Kernel(launch, list) = work else { return Err(INVALID) };
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
    Ok(CUDA_KERNEL_NODE_PARAMS_v2 {
        func: launch.function,
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: launch.dynamic_shared_bytes,
        // Valid until the node changes or goes.
        kernelParams: if list.is_empty() {
            core::ptr::null_mut()
        } else {
            list.as_ptr().cast::<*mut c_void>().cast_mut()
        },
        extra: core::ptr::null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

pub(super) fn memcpy(call: &Call<'_>, params: &CUDA_MEMCPY3D, context: CUcontext) -> Res<NodeWork> {
    let device = call.context_or_current(context)?.device;
    let transfer = Transfer { device: Some(device), ..copy::transfer_3d(call, params, device)? };
    Ok(NodeWork::Copy(Arc::new(transfer), Descriptor(*params)))
}

pub(super) fn memset(call: &Call<'_>, params: &CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Res<NodeWork> {
    let device = call.context_or_current(context)?.device;
    let pattern = match params.elementSize {
        1 => Pattern::U8(u8::try_from(params.value).map_err(|_| INVALID)?),
        2 => Pattern::U16(u16::try_from(params.value).map_err(|_| INVALID)?),
        4 => Pattern::U32(params.value),
        _ => return Err(INVALID),
    };
    let fill = Fill {
        address: params.dst,
        pitch: params.pitch as u64,
        pattern,
        width: params.width as u64,
        height: params.height as u64,
        allocation: 0,
        device: Some(device),
    };
    Ok(NodeWork::Set(memset::checked(call, device, fill)?.unwrap_or(fill), *params))
}

pub(super) fn host(params: &CUDA_HOST_NODE_PARAMS) -> Res<NodeWork> {
    if params.fn_.is_none() {
        return Err(INVALID);
    }
    Ok(NodeWork::Host(HostCall { function: params.fn_, data: params.userData.expose_provenance() }))
}

/// A child node's graph: a copy that belongs to the node.
fn child(call: &Call<'_>, graph: CUgraph) -> Res<NodeWork> {
    let mut state = call.core.state.lock();
    let uid = state.graphs.uid(graph)?;
    if state.graphs.is_unique(uid) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(NodeWork::Child(state.clone_graph(uid, true)?.0))
}

fn alloc(
    call: &Call<'_>,
    props: &CUmemPoolProps,
    bytes: usize,
    accesses: &[CUmemAccessDesc],
) -> Res<(NodeWork, CUdeviceptr)> {
    const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    if props.allocType != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED || bytes == 0 {
        return Err(INVALID);
    }
    if props.location.type_ != DEVICE || props.handleTypes.0 != 0 {
        return Err(unsupported(call, "an allocation node outside of a device's memory"));
    }
    let device = call.core.device(props.location.id).map_err(|_| INVALID)?;
    let mut peers = Vec::new();
    for access in accesses {
        if access.location.type_ != DEVICE
            || access.flags != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        {
            return Err(INVALID);
        }
        peers.push(call.core.device(access.location.id).map_err(|_| INVALID)?);
    }
    let memory = {
        let mut state = call.core.state.lock();
        call.core.graph_memory(&mut state, device, bytes as u64, peers)?
    };
    let base = memory.base;
    Ok((NodeWork::Alloc(memory), base))
}

/// The access descriptors of an allocation node's parameters.
fn accesses(list: *const CUmemAccessDesc, count: usize) -> Res<Vec<CUmemAccessDesc>> {
    // SAFETY: the caller of the entry says that the array is null or valid for the call.
    let list: In<CUmemAccessDesc> = unsafe { Arg::wrap(list) };
    handles(&list, count)
}

fn free(call: &Call<'_>, address: CUdeviceptr) -> Res<NodeWork> {
    let state = call.core.state.lock();
    // Once only, in whatever graph.
    let known = state.graphs.memory.contains_key(&address) && !state.graphs.frees(address);
    if known { Ok(NodeWork::Free(address)) } else { Err(INVALID) }
}

/// A conditional node, with empty bodies.
fn conditional(call: &Call<'_>, params: &CUDA_CONDITIONAL_NODE_PARAMS) -> Res<NodeWork> {
    type Kind = CUgraphConditionalNodeType;
    // A second body and switches came with CUDA 12.8.
    let several = call.core.config.driver_version >= 12080;
    let fits = match params.type_ {
        Kind::CU_GRAPH_COND_TYPE_IF => params.size == 1 || params.size == 2 && several,
        Kind::CU_GRAPH_COND_TYPE_WHILE => params.size == 1,
        Kind::CU_GRAPH_COND_TYPE_SWITCH => several && (1..=MOST_BODIES).contains(&params.size),
        _ => false,
    };
    if !fits {
        return Err(INVALID);
    }
    let context = call.context_from(params.ctx)?.uid;
    let mut state = call.core.state.lock();
    let condition = state.graphs.conditions.get(&params.handle).ok_or(INVALID)?;
    if condition.context != context || condition.graph == NO_GRAPH {
        return Err(INVALID);
    }
    let (mut bodies, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..params.size {
        let uid = state.uid();
        handles.push(state.graphs.create(uid, true)?);
        bodies.push(uid);
    }
    let (condition, kind, handles) = (params.handle, params.type_, handles.into_boxed_slice());
    Ok(NodeWork::Conditional(Arc::new(Conditional { condition, kind, bodies, handles })))
}

/// Most bodies of a switch.
const MOST_BODIES: u32 = 1 << 16;

/// The work that generic parameters describe. `old` is what the node did before.
pub(super) fn generic(
    call: &Call<'_>,
    params: &mut CUgraphNodeParams,
    old: Option<&NodeWork>,
) -> Res<NodeWork> {
    type Type = CUgraphNodeType;
    match params.type_ {
        Type::CU_GRAPH_NODE_TYPE_KERNEL => {
            // SAFETY: the type says which variant the caller filled; all fields are plain values. So below.
            let p = unsafe { params.u.kernel };
            let old = match old {
                Some(NodeWork::Kernel(launch, _)) => Some(&**launch),
                _ => None,
            };
            let p = CUDA_KERNEL_NODE_PARAMS_v2 {
                func: p.func,
                gridDimX: p.gridDimX,
                gridDimY: p.gridDimY,
                gridDimZ: p.gridDimZ,
                blockDimX: p.blockDimX,
                blockDimY: p.blockDimY,
                blockDimZ: p.blockDimZ,
                sharedMemBytes: p.sharedMemBytes,
                kernelParams: p.kernelParams,
                extra: p.extra,
                kern: p.kern,
                ctx: p.ctx,
            };
            kernel(call, &p, old)
        }
        Type::CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: as above.
            let p = unsafe { params.u.memcpy };
            memcpy(call, &p.copyParams, p.copyCtx)
        }
        Type::CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: as above.
            let p = unsafe { params.u.memset };
            let CUDA_MEMSET_NODE_PARAMS_v2 { dst, pitch, value, elementSize, width, height, ctx } = p;
            memset(call, &CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height }, ctx)
        }
        Type::CU_GRAPH_NODE_TYPE_HOST => {
            // SAFETY: as above; a function pointer of the C type may be null.
            let p = unsafe { params.u.host };
            host(&CUDA_HOST_NODE_PARAMS { fn_: p.fn_, userData: p.userData })
        }
        Type::CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above.
            let p = unsafe { params.u.graph };
            if p.ownership != CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE {
                return Err(unsupported(call, "a child graph that moves into its node"));
            }
            child(call, p.graph)
        }
        Type::CU_GRAPH_NODE_TYPE_EMPTY => Ok(NodeWork::Empty),
        Type::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            // SAFETY: as above.
            Ok(NodeWork::Wait(event_uid(call, unsafe { params.u.eventWait }.event)?.0))
        }
        Type::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            // SAFETY: as above.
            Ok(NodeWork::Record(event_uid(call, unsafe { params.u.eventRecord }.event)?.0))
        }
        Type::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            // SAFETY: as above.
            let p = unsafe { params.u.alloc };
            let accesses = accesses(p.accessDescs, p.accessDescCount)?;
            let (work, base) = alloc(call, &p.poolProps, p.bytesize, &accesses)?;
            params.u.alloc.dptr = base;
            Ok(work)
        }
        // SAFETY: as above.
        Type::CU_GRAPH_NODE_TYPE_MEM_FREE => free(call, unsafe { params.u.free }.dptr),
        Type::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
            // SAFETY: as above.
            let p = unsafe { params.u.memOp };
            if p.flags != 0 || p.count > 256 {
                return Err(INVALID);
            }
            // SAFETY: the caller of the entry says that the array is null or valid for the call.
            let ops: Out<CUstreamBatchMemOpParams> = unsafe { Arg::wrap(p.paramArray) };
            let ops = (0..p.count as usize).map(|i| stream::batch(call, &ops.get_at(i)?));
            let ops = ops.collect::<Res<Vec<_>>>()?.into_iter().flatten().collect();
            Ok(NodeWork::Values(ops))
        }
        Type::CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            // SAFETY: as above.
            let work = conditional(call, &unsafe { params.u.conditional })?;
            if let NodeWork::Conditional(node) = &work {
                // Valid as long as the node lives.
                params.u.conditional.phGraph_out = node.handles.as_ptr().cast_mut();
            }
            Ok(work)
        }
        Type::CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL | Type::CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT => {
            Err(unsupported(call, "a node with external semaphores"))
        }
        _ => Err(INVALID),
    }
}

/// Attributes that change nothing here: they are kept and shown. Each with its value before it is set.
const HINTS: &[(Id, [u8; 2])] = &[
    (Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, [0, 0]),
    (Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, [0, 0]),
    (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, [0, 1]),
    (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, [0, 0]),
    (Id::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, [0, 0]),
    (Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, [0, 0]),
];

type Id = CUlaunchAttributeID;

fn get_attribute(launch: &Launch, attribute: Id) -> Res<CUlaunchAttributeValue> {
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    match attribute {
        Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
            // No cluster is shown as zeros.
            let [x, y, z] = if launch.cluster == [1; 3] { [0; 3] } else { launch.cluster };
            value.clusterDim = CUlaunchAttributeValue_clusterDim { x, y, z };
        }
        Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => value.cooperative = i32::from(launch.cooperative),
        Id::CU_LAUNCH_ATTRIBUTE_PRIORITY => value.priority = launch.priority.unwrap_or(0),
        hint => {
            let (_, first) = HINTS.iter().find(|known| known.0 == hint).ok_or(INVALID)?;
            let mut pad = [0; 64];
            pad[..2].copy_from_slice(&first.map(|byte| byte as core::ffi::c_char));
            value.pad = launch.hints.get(&hint.0).copied().unwrap_or(pad);
        }
    }
    Ok(value)
}

fn set_attribute(call: &Call<'_>, launch: &mut Launch, attribute: Id, value: CUlaunchAttributeValue) -> Res {
    match attribute {
        Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
            // SAFETY: the attribute says which variant was filled; integers have no invalid value.
            launch.cooperative = unsafe { value.cooperative } != 0;
        }
        Id::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
            // SAFETY: as above.
            launch.priority = Some(unsafe { value.priority });
        }
        Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
            // SAFETY: as above.
            let dim = unsafe { value.clusterDim };
            launch.cluster = match [dim.x, dim.y, dim.z] {
                [0, 0, 0] => [1; 3],
                cluster => node_cluster(call, launch, cluster)?,
            };
        }
        Id::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => {
            // SAFETY: as above.
            if unsafe { value.deviceUpdatableKernelNode }.deviceUpdatable != 0 {
                return Err(INVALID);
            }
        }
        hint => {
            HINTS.iter().find(|known| known.0 == hint).ok_or(INVALID)?;
            // SAFETY: bytes have no invalid value; the caller's structure is read whole.
            launch.hints.insert(hint.0, unsafe { value.pad });
        }
    }
    Ok(())
}

fn node_cluster(call: &Call<'_>, launch: &Launch, cluster: [u32; 3]) -> Res<[u32; 3]> {
    let shape = Shape { grid: launch.grid, block: launch.block, dynamic: launch.dynamic_shared_bytes };
    launch::checked_cluster(call, launch.function, &shape, cluster)
}

/// Adds a node after others.
fn add(
    call: &Call<'_>,
    out: &Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: &In<CUgraphNode>,
    count: usize,
    work: impl FnOnce() -> Res<NodeWork>,
) -> Res {
    add_with(call, out, graph, dependencies, &vec![[0; 3]; count], work)
}

fn add_with(
    call: &Call<'_>,
    out: &Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: &In<CUgraphNode>,
    data: &[[u8; 3]],
    work: impl FnOnce() -> Res<NodeWork>,
) -> Res {
    out.check()?;
    let list = handles(dependencies, data.len())?;
    let (uid, before) = {
        let state = call.core.state.lock();
        let uid = state.graphs.uid(graph)?;
        let before = state.graphs.nodes_of(uid, &list)?;
        let known = &state.graphs.graph(uid)?.graph;
        before.iter().zip(data).try_for_each(|(&from, &data)| check_edge(known, from, None, data))?;
        (uid, before)
    };
    let work = work()?;
    let before: Vec<(NodeId, [u8; 3])> = before.into_iter().zip(data.iter().copied()).collect();
    let mut state = call.core.state.lock();
    let inner = work.inner().to_vec();
    let added = state.graphs.add(uid, work, &before);
    if added.is_err() {
        inner.into_iter().for_each(|graph| state.graphs.destroy(graph));
    }
    call.core.sweep_graph_memory(&mut state);
    out.set(added?.1)
}

/// What a node does now.
fn current(call: &Call<'_>, node: CUgraphNode) -> Res<NodeWork> {
    let state = call.core.state.lock();
    state.graphs.node(state.graphs.key(node)?).cloned()
}

/// Changes what a node does; it stays of its kind.
fn change(call: &Call<'_>, node: CUgraphNode, work: NodeWork) -> Res {
    let mut state = call.core.state.lock();
    let (uid, id) = state.graphs.key(node)?;
    let place = state.graphs.graph_mut(uid)?.graph.get_mut(id).ok_or(INVALID)?;
    if place.kind() != work.kind() {
        return Err(INVALID);
    }
    *place = work;
    Ok(())
}

fn launch_of(call: &Call<'_>, node: CUgraphNode) -> Res<Arc<Launch>> {
    match current(call, node)? {
        NodeWork::Kernel(launch, _) => Ok(launch),
        _ => Err(INVALID),
    }
}

fn event_of(call: &Call<'_>, work: &NodeWork, wait: bool) -> Res<CUevent> {
    let uid = match work {
        NodeWork::Wait(uid) if wait => uid,
        NodeWork::Record(uid) if !wait => uid,
        _ => return Err(INVALID),
    };
    let state = call.core.state.lock();
    state.events.get(uid).map(|event| event.handle).ok_or(INVALID)
}

entries! {
    fn cuGraphAddEmptyNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize) {
        add(call, &out, graph, &dependencies, count, || Ok(NodeWork::Empty))
    }

    fn cuGraphAddKernelNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS_v2) {
        add(call, &out, graph, &dependencies, count, || kernel(call, &params.get()?, None))
    }

    fn cuGraphAddMemcpyNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_MEMCPY3D, context: CUcontext) {
        add(call, &out, graph, &dependencies, count, || memcpy(call, &params.get()?, context))
    }

    fn cuGraphAddMemsetNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext) {
        add(call, &out, graph, &dependencies, count, || memset(call, &params.get()?, context))
    }

    fn cuGraphAddHostNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_HOST_NODE_PARAMS) {
        add(call, &out, graph, &dependencies, count, || host(&params.get()?))
    }

    fn cuGraphAddChildGraphNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, inner: CUgraph) {
        add(call, &out, graph, &dependencies, count, || child(call, inner))
    }

    fn cuGraphAddEventRecordNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, event: CUevent) {
        add(call, &out, graph, &dependencies, count, || Ok(NodeWork::Record(event_uid(call, event)?.0)))
    }

    fn cuGraphAddEventWaitNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, event: CUevent) {
        add(call, &out, graph, &dependencies, count, || Ok(NodeWork::Wait(event_uid(call, event)?.0)))
    }

    fn cuGraphAddMemAllocNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) {
        let mut given = params.get()?;
        add(call, &out, graph, &dependencies, count, || {
            let accesses = accesses(given.accessDescs, given.accessDescCount)?;
            let (work, base) = alloc(call, &given.poolProps, given.bytesize, &accesses)?;
            given.dptr = base;
            Ok(work)
        })?;
        params.set(given)
    }

    fn cuGraphAddMemFreeNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, address: CUdeviceptr) {
        add(call, &out, graph, &dependencies, count, || free(call, address))
    }

    fn cuGraphAddNode(call, out: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams) {
        let mut given = params.get()?;
        let data = edge_data(&data, count)?;
        if data.iter().any(|data| *data != [0; 3]) && given.type_ != CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
            return Err(INVALID);
        }
        add_with(call, &out, graph, &dependencies, &data, || generic(call, &mut given, None))?;
        params.set(given)
    }

    fn cuGraphNodeSetParams(call, node: CUgraphNode, params: *mut CUgraphNodeParams) {
        let mut given = params.get()?;
        let old = current(call, node)?;
        if let NodeWork::Conditional(_) = old {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if !old.can_be_set() || old.kind() != given.type_ {
            return Err(INVALID);
        }
        let work = generic(call, &mut given, Some(&old))?;
        change(call, node, work)
    }

    fn cuGraphKernelNodeGetParams(call, node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v2) {
        out.check()?;
        out.set(kernel_params(&current(call, node)?)?)
    }

    fn cuGraphKernelNodeSetParams(call, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2) {
        let old = launch_of(call, node)?;
        change(call, node, kernel(call, &params.get()?, Some(&old))?)
    }

    fn cuGraphKernelNodeGetAttribute(call, node: CUgraphNode, attribute: CUlaunchAttributeID, out: *mut CUlaunchAttributeValue) {
        out.check()?;
        let launch = launch_of(call, node)?;
        out.set(get_attribute(&launch, attribute)?)
    }

    fn cuGraphKernelNodeSetAttribute(call, node: CUgraphNode, attribute: CUlaunchAttributeID, value: *const CUlaunchAttributeValue) {
        let mut launch = (*launch_of(call, node)?).clone();
        set_attribute(call, &mut launch, attribute, value.get()?)?;
        change(call, node, NodeWork::kernel(Arc::new(launch)))
    }

    fn cuGraphKernelNodeCopyAttributes(call, to: CUgraphNode, from: CUgraphNode) {
        let source = launch_of(call, from)?;
        let mut launch = (*launch_of(call, to)?).clone();
        launch.cooperative = source.cooperative;
        launch.priority = source.priority;
        launch.hints = source.hints.clone();
        if source.cluster != launch.cluster {
            launch.cluster = node_cluster(call, &launch, source.cluster)?;
        }
        change(call, to, NodeWork::kernel(Arc::new(launch)))
    }

    fn cuGraphMemcpyNodeGetParams(call, node: CUgraphNode, out: *mut CUDA_MEMCPY3D) {
        out.check()?;
        match current(call, node)? {
            NodeWork::Copy(_, descriptor) => out.set(descriptor.0),
            _ => Err(INVALID),
        }
    }

    fn cuGraphMemcpyNodeSetParams(call, node: CUgraphNode, params: *const CUDA_MEMCPY3D) {
        change(call, node, memcpy(call, &params.get()?, CUcontext::NULL)?)
    }

    fn cuGraphMemsetNodeGetParams(call, node: CUgraphNode, out: *mut CUDA_MEMSET_NODE_PARAMS) {
        out.check()?;
        match current(call, node)? {
            NodeWork::Set(_, params) => out.set(params),
            _ => Err(INVALID),
        }
    }

    fn cuGraphMemsetNodeSetParams(call, node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS) {
        change(call, node, memset(call, &params.get()?, CUcontext::NULL)?)
    }

    fn cuGraphHostNodeGetParams(call, node: CUgraphNode, out: *mut CUDA_HOST_NODE_PARAMS) {
        out.check()?;
        match current(call, node)? {
            NodeWork::Host(host) => out.set(CUDA_HOST_NODE_PARAMS {
                fn_: host.function,
                userData: core::ptr::with_exposed_provenance_mut(host.data),
            }),
            _ => Err(INVALID),
        }
    }

    fn cuGraphHostNodeSetParams(call, node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS) {
        change(call, node, host(&params.get()?)?)
    }

    fn cuGraphChildGraphNodeGetGraph(call, node: CUgraphNode, out: *mut CUgraph) {
        out.check()?;
        match current(call, node)? {
            NodeWork::Child(child) => out.set(call.core.state.lock().graphs.graph(child)?.handle),
            _ => Err(INVALID),
        }
    }

    fn cuGraphEventRecordNodeGetEvent(call, node: CUgraphNode, out: *mut CUevent) {
        out.check()?;
        out.set(event_of(call, &current(call, node)?, false)?)
    }

    fn cuGraphEventRecordNodeSetEvent(call, node: CUgraphNode, event: CUevent) {
        change(call, node, NodeWork::Record(event_uid(call, event)?.0))
    }

    fn cuGraphEventWaitNodeGetEvent(call, node: CUgraphNode, out: *mut CUevent) {
        out.check()?;
        out.set(event_of(call, &current(call, node)?, true)?)
    }

    fn cuGraphEventWaitNodeSetEvent(call, node: CUgraphNode, event: CUevent) {
        change(call, node, NodeWork::Wait(event_uid(call, event)?.0))
    }

    fn cuGraphMemAllocNodeGetParams(call, node: CUgraphNode, out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) {
        out.check()?;
        let NodeWork::Alloc(memory) = current(call, node)? else { return Err(INVALID) };
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: memory.device };
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location,
            win32SecurityAttributes: core::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        out.set(CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: props,
            accessDescs: core::ptr::null(),
            accessDescCount: 0,
            bytesize: memory.bytes as usize,
            dptr: memory.base,
        })
    }

    fn cuGraphMemFreeNodeGetParams(call, node: CUgraphNode, out: *mut CUdeviceptr) {
        out.check()?;
        match current(call, node)? {
            NodeWork::Free(address) => out.set(address),
            _ => Err(INVALID),
        }
    }
}
