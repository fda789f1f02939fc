//! Graphs: building, launching, changing.

use super::*;
use crate::config::Checks;
use crate::report::ReportKind;
use core::ffi::c_void;
use simtile_driver::sys::CUresult as Code;
use std::sync::atomic::{AtomicU32, Ordering};

const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const NO_NODES: *const CUgraphNode = core::ptr::null();

/// Parameters of a node for the test program's kernels, with the storage they point to.
struct KernelParams {
    _values: Vec<u64>,
    _list: Vec<*mut c_void>,
    params: CUDA_KERNEL_NODE_PARAMS_v2,
}

impl KernelParams {
    fn new(function: CUfunction, values: &[u64]) -> Self {
        let mut values = values.to_vec();
        let mut list: Vec<*mut c_void> =
            values.iter_mut().map(|value| core::ptr::from_mut(value).cast()).collect();
        let params = CUDA_KERNEL_NODE_PARAMS_v2 {
            func: function,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: list.as_mut_ptr(),
            extra: core::ptr::null_mut(),
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        };
        Self { _values: values, _list: list, params }
    }
}

impl Rig {
    pub(crate) fn exec(&self, graph: CUgraph) -> CUgraphExec {
        let mut exec = CUgraphExec::NULL;
        ok!(self, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        exec
    }

    fn graph(&self) -> CUgraph {
        let mut graph = CUgraph::NULL;
        ok!(self, cuGraphCreate(&mut graph, 0));
        graph
    }

    fn kernel_node(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        function: CUfunction,
        values: &[u64],
    ) -> CUgraphNode {
        let (params, mut node) = (KernelParams::new(function, values), CUgraphNode::NULL);
        ok!(self, cuGraphAddKernelNode(&mut node, graph, after.as_ptr(), after.len(), &params.params));
        node
    }

    fn memset_node(&self, graph: CUgraph, after: &[CUgraphNode], dst: u64, value: u32) -> CUgraphNode {
        let params = set(dst, value);
        let mut node = CUgraphNode::NULL;
        ok!(self, cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &params, self.context));
        node
    }

    fn replay(&self, exec: CUgraphExec, stream: CUstream) {
        ok!(self, cuGraphLaunch(exec, stream));
        ok!(self, cuStreamSynchronize(stream));
    }
}

fn set(dst: u64, value: u32) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: 4, width: 1, height: 1 }
}

fn copy(dst: u64, src: u64, bytes: usize) -> CUDA_MEMCPY3D {
    // SAFETY: zeros are valid in every field.
    let mut copy: CUDA_MEMCPY3D = unsafe { core::mem::zeroed() };
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    (copy.srcDevice, copy.dstDevice) = (src, dst);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (bytes, 1, 1);
    copy
}

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the tests pass a counter that outlives the work.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_captured_chain_replays_with_the_values_of_its_buffers() {
    for rig in Rig::modes() {
        let (stream, memory) = (rig.stream(), rig.memory(64));
        let module = rig.module();
        let next = rig.function(module, "next");
        let called = AtomicU32::new(0);
        rig.begin(stream, LOCAL);
        rig.run(next, stream, &[memory.base + 4, memory.base]);
        ok!(rig, cuMemcpyDtoDAsync(memory.base + 8, memory.base + 4, 4, stream));
        ok!(rig, cuLaunchHostFunc(stream, Some(count), super::streams::counter(&called)));
        let graph = rig.end_ok(stream);
        let exec = rig.exec(graph);
        // Neither the graph nor the module is needed any more.
        ok!(rig, cuGraphDestroy(graph));
        ok!(rig, cuModuleUnload(module));
        for n in 1..4 {
            rig.set_word(&memory, 0, 10 * n);
            rig.replay(exec, stream);
            assert_eq!((rig.word(&memory, 2), called.load(Ordering::SeqCst)), (10 * n + 1, n));
        }
        ok!(rig, cuGraphExecDestroy(exec));
        assert_eq!(code!(rig, cuGraphLaunch(exec, stream)), Code::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn a_built_graph_runs_in_the_order_of_its_edges_and_can_be_looked_at() {
    for rig in Rig::modes() {
        let (stream, memory) = (rig.stream(), rig.memory(64));
        let next = rig.function(rig.module(), "next");
        let graph = rig.graph();
        let (m, called) = (memory.base, AtomicU32::new(0));
        let first = rig.memset_node(graph, &[], m, 5);
        let left = rig.kernel_node(graph, &[first], next, &[m + 4, m]);
        let (mut right, mut last, mut host) = Default::default();
        ok!(rig, cuGraphAddMemcpyNode(&mut right, graph, &first, 1, &copy(m + 8, m, 4), rig.context));
        let both = [left, right];
        ok!(rig, cuGraphAddEmptyNode(&mut last, graph, both.as_ptr(), 2));
        let call = CUDA_HOST_NODE_PARAMS { fn_: Some(count), userData: super::streams::counter(&called) };
        ok!(rig, cuGraphAddHostNode(&mut host, graph, &last, 1, &call));
        rig.replay(rig.exec(graph), stream);
        let words = [0, 1, 2].map(|i| rig.word(&memory, i));
        assert_eq!((words, called.load(Ordering::SeqCst)), ([5, 6, 5], 1));

        let (mut nodes, mut n) = ([CUgraphNode::NULL; 8], 8);
        ok!(rig, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut n));
        assert_eq!(&nodes[..6], [first, left, right, last, host, CUgraphNode::NULL]);
        assert_eq!(n, 5);
        let types = [first, left, right, last, host].map(|node| {
            let mut kind = CUgraphNodeType(99);
            ok!(rig, cuGraphNodeGetType(node, &mut kind));
            kind.0
        });
        assert_eq!(types, [2, 0, 1, 5, 3]);
        let (mut from, mut to, mut edges) = ([CUgraphNode::NULL; 8], [CUgraphNode::NULL; 8], 8);
        ok!(rig, cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut edges));
        let pairs: Vec<_> = from.into_iter().zip(to).take(edges).collect();
        assert_eq!(pairs, [(first, left), (first, right), (left, last), (right, last), (last, host)]);
        let mut roots = 8;
        ok!(rig, cuGraphGetRootNodes(graph, nodes.as_mut_ptr(), &mut roots));
        assert_eq!((roots, nodes[0]), (1, first));

        assert_eq!(
            code!(rig, cuGraphAddDependencies(graph, &host, &first, 1)),
            Code::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(rig, cuGraphAddDependencies(graph, &first, &left, 1)),
            Code::CUDA_ERROR_INVALID_VALUE
        );
        ok!(rig, cuGraphRemoveDependencies(graph, &left, &last, 1));
        ok!(rig, cuGraphDestroyNode(last));
        assert_eq!(
            code!(rig, cuGraphNodeGetType(last, &mut CUgraphNodeType(0))),
            Code::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(rig.node_count(graph), 4);
    }
}

#[test]
fn parameters_come_back_and_change_in_the_graph() {
    let rig = Rig::new();
    let (stream, memory) = (rig.stream(), rig.memory(64));
    let store = rig.function(rig.module(), "store");
    let (graph, m) = (rig.graph(), memory.base);
    let kernel = rig.kernel_node(graph, &[], store, &[m, 3]);
    let memset = rig.memset_node(graph, &[kernel], m + 4, 4);
    let mut memcpy = CUgraphNode::NULL;
    ok!(rig, cuGraphAddMemcpyNode(&mut memcpy, graph, &memset, 1, &copy(m + 8, m, 4), rig.context));

    let mut found = KernelParams::new(store, &[]).params;
    ok!(rig, cuGraphKernelNodeGetParams(kernel, &mut found));
    assert_eq!((found.func, found.gridDimX), (store, 1));
    // SAFETY: the driver shows a list with a pointer to each parameter.
    let values = unsafe {
        (
            (*found.kernelParams).cast::<u64>().read_unaligned(),
            (*found.kernelParams.add(1)).cast::<u32>().read_unaligned(),
        )
    };
    assert_eq!(values, (m, 3));
    let mut shown = set(0, 0);
    ok!(rig, cuGraphMemsetNodeGetParams(memset, &mut shown));
    assert_eq!((shown.dst, shown.value, shown.elementSize, shown.width), (m + 4, 4, 4, 1));
    let mut line = copy(0, 0, 0);
    ok!(rig, cuGraphMemcpyNodeGetParams(memcpy, &mut line));
    assert_eq!((line.dstDevice, line.srcDevice, line.WidthInBytes), (m + 8, m, 4));

    let old = rig.exec(graph);
    ok!(rig, cuGraphKernelNodeSetParams(kernel, &KernelParams::new(store, &[m, 30]).params));
    ok!(rig, cuGraphMemsetNodeSetParams(memset, &set(m + 4, 40)));
    ok!(rig, cuGraphMemcpyNodeSetParams(memcpy, &copy(m + 12, m, 4)));
    let words = || [0, 1, 2, 3].map(|i| rig.word(&memory, i));
    rig.replay(old, stream);
    assert_eq!(words(), [3, 4, 3, 0], "what was instantiated stays");
    rig.replay(rig.exec(graph), stream);
    assert_eq!(words(), [30, 40, 3, 30]);
    assert_eq!(code!(rig, cuGraphMemsetNodeSetParams(kernel, &set(m, 1))), Code::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn pending_launches_keep_their_values_when_an_exec_changes() {
    for rig in Rig::modes() {
        let (stream, memory) = (rig.stream(), rig.memory(64));
        let store = rig.function(rig.module(), "store");
        let graph = rig.graph();
        let node = rig.kernel_node(graph, &[], store, &[memory.base, 1]);
        let exec = rig.exec(graph);
        let gate = rig.sim.gate(stream).unwrap();
        ok!(rig, cuGraphLaunch(exec, stream));
        ok!(rig, cuMemcpyDtoDAsync(memory.base + 4, memory.base, 4, stream));
        ok!(
            rig,
            cuGraphExecKernelNodeSetParams(exec, node, &KernelParams::new(store, &[memory.base, 2]).params)
        );
        ok!(rig, cuGraphLaunch(exec, stream));
        // Destroying it with work pending is fine.
        ok!(rig, cuGraphExecDestroy(exec));
        ok!(rig, cuGraphDestroy(graph));
        gate.open();
        ok!(rig, cuStreamSynchronize(stream));
        assert_eq!([rig.word(&memory, 1), rig.word(&memory, 0)], [1, 2]);
    }
}

#[test]
fn one_exec_on_two_streams_is_serialised() {
    for rig in Rig::modes() {
        let (a, b, flag) = (rig.stream(), rig.stream(), rig.memory(64));
        let spin = rig.function(rig.module(), "spin");
        let graph = rig.graph();
        rig.kernel_node(graph, &[], spin, &[flag.base]);
        let exec = rig.exec(graph);
        let gate = rig.sim.gate(a).unwrap();
        ok!(rig, cuGraphLaunch(exec, a));
        ok!(rig, cuGraphLaunch(exec, b));
        let second = rig.mark(b);
        rig.set_word(&flag, 0, 1);
        std::thread::sleep(Duration::from_millis(20));
        assert!(rig.pending(second), "the first launch has not run");
        gate.open();
        ok!(rig, cuEventSynchronize(second));
    }
}

#[test]
fn a_launch_takes_one_place_in_the_queue() {
    let rig = Rig::new();
    let (stream, memory) = (rig.stream(), rig.memory(64));
    let graph = rig.graph();
    let mut last = rig.memset_node(graph, &[], memory.base, 1);
    for _ in 0..4 {
        last = rig.memset_node(graph, &[last], memory.base, 1);
    }
    let exec = rig.exec(graph);
    let gate = rig.sim.gate(stream).unwrap();
    // 1021 launches of 5 nodes each fit.
    for _ in 0..1021 {
        ok!(rig, cuGraphLaunch(exec, stream));
    }
    let state = rig.sim.core().state.lock();
    assert_eq!(state.streams.values().map(|stream| stream.counted).max(), Some(1021));
    drop(state);
    gate.open();
    ok!(rig, cuStreamSynchronize(stream));
    let state = rig.sim.core().state.lock();
    assert_eq!(state.streams.values().map(|stream| stream.counted).max(), Some(0));
}

#[test]
fn updates_take_the_new_work_or_say_what_differs() {
    let rig = Rig::new();
    let (stream, memory) = (rig.stream(), rig.memory(64));
    let store = rig.function(rig.module(), "store");
    let build = |value: u64, extra: bool, swap: bool| {
        let graph = rig.graph();
        let first = rig.kernel_node(graph, &[], store, &[memory.base, value]);
        let second = if swap {
            let mut node = CUgraphNode::NULL;
            ok!(rig, cuGraphAddEmptyNode(&mut node, graph, &first, 1));
            node
        } else {
            rig.memset_node(graph, &[first], memory.base + 4, value as u32)
        };
        if extra {
            rig.memset_node(graph, &[second], memory.base + 8, 1);
        }
        (graph, second)
    };
    let exec = rig.exec(build(1, false, false).0);
    let mut info = CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(99),
        errorNode: CUgraphNode::NULL,
        errorFromNode: CUgraphNode::NULL,
    };
    ok!(rig, cuGraphExecUpdate(exec, build(7, false, false).0, &mut info));
    assert_eq!(info.result.0, 0);
    rig.replay(exec, stream);
    assert_eq!([rig.word(&memory, 0), rig.word(&memory, 1)], [7, 7]);
    let failed = Code::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    assert_eq!(code!(rig, cuGraphExecUpdate(exec, build(8, true, false).0, &mut info)), failed);
    assert_eq!(info.result, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    let (other, node) = build(8, false, true);
    assert_eq!(code!(rig, cuGraphExecUpdate(exec, other, &mut info)), failed);
    assert_eq!(info.result, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    assert_eq!(info.errorNode, node);
    rig.replay(exec, stream);
    assert_eq!(rig.word(&memory, 0), 7, "a failed update changes nothing");
}

#[test]
fn clones_child_graphs_and_switched_off_nodes() {
    for rig in Rig::modes() {
        let (stream, memory) = (rig.stream(), rig.memory(64));
        let next = rig.function(rig.module(), "next");
        let (inner, m) = (rig.graph(), memory.base);
        let a = rig.kernel_node(inner, &[], next, &[m + 4, m]);
        rig.kernel_node(inner, &[a], next, &[m + 8, m + 4]);
        let mut clone = CUgraph::NULL;
        ok!(rig, cuGraphClone(&mut clone, inner));
        let mut twin = CUgraphNode::NULL;
        ok!(rig, cuGraphNodeFindInClone(&mut twin, a, clone));
        assert!(twin != a && rig.node_count(clone) == 2);
        assert_eq!(
            code!(rig, cuGraphNodeFindInClone(&mut twin, twin, inner)),
            Code::CUDA_ERROR_INVALID_VALUE
        );

        let outer = rig.graph();
        let first = rig.memset_node(outer, &[], m, 1);
        let mut child = CUgraphNode::NULL;
        ok!(rig, cuGraphAddChildGraphNode(&mut child, outer, &first, 1, inner));
        let last = rig.kernel_node(outer, &[child], next, &[m + 12, m + 8]);
        ok!(rig, cuGraphDestroy(inner));
        let exec = rig.exec(outer);
        rig.replay(exec, stream);
        assert_eq!(rig.word(&memory, 3), 4);

        let mut owned = CUgraph::NULL;
        ok!(rig, cuGraphChildGraphNodeGetGraph(child, &mut owned));
        assert_eq!(code!(rig, cuGraphDestroy(owned)), Code::CUDA_ERROR_INVALID_VALUE);
        // A node inside of the child can be changed in the executable graph.
        let (mut nodes, mut n) = ([CUgraphNode::NULL; 2], 2);
        ok!(rig, cuGraphGetNodes(owned, nodes.as_mut_ptr(), &mut n));
        ok!(
            rig,
            cuGraphExecKernelNodeSetParams(exec, nodes[1], &KernelParams::new(next, &[m + 8, m]).params)
        );
        rig.replay(exec, stream);
        assert_eq!(rig.word(&memory, 3), 3);

        let mut on = 0;
        ok!(rig, cuGraphNodeGetEnabled(exec, last, &mut on));
        assert_eq!(on, 1);
        ok!(rig, cuGraphNodeSetEnabled(exec, last, 0));
        rig.set_word(&memory, 3, 0);
        rig.replay(exec, stream);
        assert_eq!(rig.word(&memory, 3), 0);
        assert_eq!(code!(rig, cuGraphNodeSetEnabled(exec, child, 0)), Code::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn event_nodes_record_and_wait_at_every_launch() {
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let (recorded, awaited) = (rig.event(), rig.event());
        let graph = rig.graph();
        let (mut wait, mut record) = Default::default();
        ok!(rig, cuGraphAddEventWaitNode(&mut wait, graph, NO_NODES, 0, awaited));
        ok!(rig, cuGraphAddEventRecordNode(&mut record, graph, &wait, 1, recorded));
        let exec = rig.exec(graph);
        let gate = rig.sim.gate(b).unwrap();
        ok!(rig, cuEventRecord(awaited, b));
        ok!(rig, cuGraphLaunch(exec, a));
        assert!(rig.pending(recorded));
        gate.open();
        ok!(rig, cuEventSynchronize(recorded));
        let mut event = CUevent::NULL;
        ok!(rig, cuGraphEventWaitNodeGetEvent(wait, &mut event));
        assert_eq!(event, awaited);
        ok!(rig, cuGraphEventRecordNodeSetEvent(record, awaited));
        ok!(rig, cuGraphEventRecordNodeGetEvent(record, &mut event));
        assert_eq!(event, awaited);
    }
}

#[test]
fn memory_of_allocation_nodes_keeps_its_address_and_is_there_between_alloc_and_free() {
    for rig in Rig::modes() {
        let stream = rig.stream();
        let store = rig.function(rig.module(), "store");
        let (mut x, mut out) = (0, [0u32; 2]);
        rig.begin(stream, LOCAL);
        ok!(rig, cuMemAllocAsync(&mut x, 4096, stream));
        rig.run(store, stream, &[x, 5]);
        ok!(rig, cuMemcpyDtoHAsync(out.as_mut_ptr().cast(), x, 4, stream));
        ok!(rig, cuMemFreeAsync(x, stream));
        assert_eq!(code!(rig, cuMemFreeAsync(x, stream)), Code::CUDA_ERROR_INVALID_VALUE);
        let graph = rig.end_ok(stream);
        assert_eq!(rig.node_count(graph), 4);
        assert_eq!(code!(rig, cuGraphClone(&mut CUgraph(0), graph)), Code::CUDA_ERROR_NOT_SUPPORTED);
        let exec = rig.exec(graph);
        for _ in 0..3 {
            out[0] = 0;
            rig.replay(exec, stream);
            assert_eq!(out[0], 5);
        }
        assert_eq!(code!(rig, cuMemFreeAsync(x, stream)), Code::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn memory_that_a_launch_leaves_is_the_users_or_freed_by_the_next_launch() {
    let rig = Rig::new();
    let stream = rig.stream();
    let attribute = |which| {
        let mut value = 0u64;
        ok!(rig, cuDeviceGetGraphMemAttribute(0, which, core::ptr::from_mut(&mut value).cast()));
        value
    };
    let mut x = 0;
    rig.begin(stream, LOCAL);
    ok!(rig, cuMemAllocAsync(&mut x, 4096, stream));
    let graph = rig.end_ok(stream);
    let exec = rig.exec(graph);
    rig.replay(exec, stream);
    // Taken in steps of 32 MiB, and given back by trimming alone.
    const STEP: u64 = 32 << 20;
    assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), STEP);
    ok!(rig, cuMemsetD8Async(x, 1, 4096, stream));
    assert_eq!(code!(rig, cuGraphLaunch(exec, stream)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(rig, cuMemFreeAsync(x, stream));
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), STEP);
    ok!(rig, cuDeviceGraphMemTrim(0));
    assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    rig.replay(exec, stream);
    ok!(rig, cuMemFree(x));
    ok!(rig, cuGraphExecDestroy(exec));

    let mut auto = CUgraphExec::NULL;
    ok!(rig, cuGraphInstantiateWithFlags(&mut auto, graph, 1));
    for _ in 0..3 {
        rig.replay(auto, stream);
        assert_eq!(attribute(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), STEP);
    }
    ok!(rig, cuMemFreeAsync(x, stream));
    for _ in 0..1000 {
        rig.begin(stream, LOCAL);
        ok!(rig, cuMemAllocAsync(&mut x, 1 << 20, stream));
        ok!(rig, cuGraphDestroy(rig.end_ok(stream)));
    }
    ok!(rig, cuGraphExecDestroy(auto));
    ok!(rig, cuGraphDestroy(graph));
    ok!(rig, cuStreamSynchronize(stream));
    assert!(rig.sim.core().state.lock().graphs.memory.len() <= 1);
}

#[test]
fn user_objects_live_as_long_as_a_graph_an_exec_or_a_launch_and_go_once() {
    let rig = Rig::new();
    let (stream, gone) = (rig.stream(), AtomicU32::new(0));
    let create = |refs| {
        let mut object = CUuserObject::NULL;
        let data = super::streams::counter(&gone);
        ok!(rig, cuUserObjectCreate(&mut object, data, Some(count), refs, 1));
        object
    };
    let seen = || gone.load(Ordering::SeqCst);
    let alone = create(2);
    ok!(rig, cuUserObjectRetain(alone, 1));
    ok!(rig, cuUserObjectRelease(alone, 2));
    assert_eq!(code!(rig, cuUserObjectRelease(alone, 2)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(seen(), 0);
    ok!(rig, cuUserObjectRelease(alone, 1));
    rig.soon(|| seen() == 1);

    let (graph, object) = (rig.graph(), create(1));
    ok!(rig, cuGraphRetainUserObject(graph, object, 1, 1));
    let exec = rig.exec(graph);
    ok!(rig, cuGraphDestroy(graph));
    let gate = rig.sim.gate(stream).unwrap();
    ok!(rig, cuGraphLaunch(exec, stream));
    ok!(rig, cuGraphExecDestroy(exec));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(seen(), 1, "the launch still needs it");
    gate.open();
    ok!(rig, cuStreamSynchronize(stream));
    rig.soon(|| seen() == 2);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(seen(), 2);
}

#[test]
fn nodes_that_no_edge_orders_race_and_edges_order_them() {
    for mode in [Mode::Fast, Mode::Fifo, Mode::Explore] {
        for ordered in [true, false] {
            let rig = Rig::with(Simulator::builder().mode(mode).checks(Checks::ALL));
            let (stream, mut m) = (rig.stream(), 0);
            ok!(rig, cuMemAlloc(&mut m, 4096));
            let graph = rig.graph();
            let first = rig.memset_node(graph, &[], m, 1);
            let left = rig.memset_node(graph, &[first], m + 4, 1);
            // Behind the left one or beside it.
            let right = rig.memset_node(graph, &[if ordered { left } else { first }], m + 4, 2);
            rig.memset_node(graph, &[left, right], m + 4, 3);
            let exec = rig.exec(graph);
            ok!(rig, cuMemsetD8Async(m, 0, 4096, stream));
            ok!(rig, cuGraphLaunch(exec, stream));
            ok!(rig, cuGraphLaunch(exec, stream));
            ok!(rig, cuMemsetD8Async(m, 0, 4096, stream));
            ok!(rig, cuCtxSynchronize());
            let reports = rig.sim.take_reports();
            let races = reports.iter().filter(|report| report.kind == ReportKind::Race).count();
            assert_eq!(races, if ordered { 0 } else { 2 }, "{mode:?} {ordered}: {reports:?}");
        }
    }
}

#[test]
fn graphs_print_themselves_and_instantiation_says_what_it_did() {
    let rig = Rig::new();
    let (graph, memory) = (rig.graph(), rig.memory(64));
    rig.kernel_node(graph, &[], rig.function(rig.module(), "store"), &[memory.base, 1]);
    let path = std::env::temp_dir().join(format!(
        "simtile-dot-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    ok!(rig, cuGraphDebugDotPrint(graph, name.as_ptr(), 0));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.starts_with("digraph") && text.contains("store"), "{text}");

    let mut exec = CUgraphExec::NULL;
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 2,
        hUploadStream: rig.stream(),
        hErrNode_out: CUgraphNode(1),
        result_out: CUgraphInstantiateResult(99),
    };
    ok!(rig, cuGraphInstantiateWithParams(&mut exec, graph, &mut params));
    assert_eq!((params.result_out.0, params.hErrNode_out), (0, CUgraphNode::NULL));
    let mut flags = 99;
    ok!(rig, cuGraphExecGetFlags(exec, &mut flags));
    assert_eq!(flags, 0);
    ok!(rig, cuGraphUpload(exec, params.hUploadStream));
    assert_eq!(code!(rig, cuGraphInstantiateWithFlags(&mut exec, graph, 16)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(rig, cuGraphCreate(&mut CUgraph(0), 1)), Code::CUDA_ERROR_INVALID_VALUE);
}

/// One graph over two devices, neither of which reaches the other's memory: each node is its own device's work.
#[test]
fn a_graph_works_on_two_devices() {
    for mode in [Mode::Fast, Mode::Fifo] {
        let rig = Rig::with(Simulator::builder().mode(mode).devices(2).checks(Checks::ALL));
        let (mut other, mut m, mut n) = (CUcontext::NULL, 0, 0);
        ok!(rig, cuMemAlloc(&mut m, 64));
        let (a, event) = (rig.stream(), rig.event());
        ok!(rig, cuDevicePrimaryCtxRetain(&mut other, 1));
        ok!(rig, cuCtxSetCurrent(other));
        ok!(rig, cuMemAlloc(&mut n, 64));
        let (b, back) = (rig.stream(), rig.event());
        let store = rig.function(rig.module(), "store");
        ok!(rig, cuCtxSetCurrent(rig.context));

        ok!(rig, cuStreamBeginCapture(a, LOCAL));
        ok!(rig, cuMemsetD32Async(m, 1, 16, a));
        ok!(rig, cuEventRecord(event, a));
        ok!(rig, cuStreamWaitEvent(b, event, 0));
        ok!(rig, cuMemsetD32Async(n, 2, 16, b));
        rig.run(store, b, &[n, 7]);
        ok!(rig, cuEventRecord(back, b));
        ok!(rig, cuStreamWaitEvent(a, back, 0));
        ok!(rig, cuMemsetD32Async(m + 32, 3, 8, a));
        let mut graph = CUgraph::NULL;
        ok!(rig, cuStreamEndCapture(a, &mut graph));
        let exec = rig.exec(graph);
        // On either device's stream.
        for stream in [a, b] {
            ok!(rig, cuGraphLaunch(exec, stream));
            ok!(rig, cuStreamSynchronize(stream));
        }
        let read = |pointer| {
            let mut words = [0u32; 16];
            ok!(rig, cuMemcpyDtoH(words.as_mut_ptr().cast(), pointer, 64));
            words
        };
        assert_eq!(read(m), [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3]);
        ok!(rig, cuCtxSetCurrent(other));
        let words = read(n);
        assert_eq!((words[0], words[1], words[15]), (7, 2, 2));
        assert!(rig.sim.take_reports().is_empty());
    }
}

/// A kernel that would launch a graph itself names a function that no image brings along.
#[test]
fn a_launch_from_the_device_is_refused_by_name() {
    let rig = Rig::new();
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n\
         .extern .func (.param .b32 r) cudaGraphLaunch(.param .b64 a, .param .b64 b);\n\
         .visible .entry k(.param .u64 g) {\n.reg .b64 %d; .reg .b32 %r;\nld.param.u64 %d, [g];\n{\n.param .b64 a;\n\
         .param .b64 b;\n.param .b32 r;\nst.param.b64 [a], %d;\nst.param.b64 [b], 0;\n\
         call.uni (r), cudaGraphLaunch, (a, b);\nld.param.b32 %r, [r];\n}\nret; }\n\0";
    let mut module = CUmodule::NULL;
    let code = code!(rig, cuModuleLoadData(&mut module, text.as_ptr().cast()));
    assert!(!code.is_ok());
    let reports = rig.sim.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind, ReportKind::Image);
    assert!(reports[0].text.contains("cudaGraphLaunch"), "{code:?} {}", reports[0]);
}
