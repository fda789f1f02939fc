//! Edges with data: programmatic dependencies between kernels, built and captured.

use super::graph_tools::*;
use crate::frame::{Check, Cx, Need};
use crate::gpu::{Args, Gpu};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::ptr::{null, null_mut};

crate::frame::registry::tests! { Driver, "graph_edges";
    data_of_edges needs [Need::Capability(9, 0)],
    older_queries_refuse_to_lose_data needs [Need::Capability(9, 0)],
    programmatic_edges_join_kernels_only needs [Need::Capability(9, 0)],
    programmatic_launches_are_captured needs [Need::Capability(9, 0)],
    dependencies_of_a_capture_carry_data needs [Need::Capability(9, 0)],
}

/// The downstream kernel may start when all blocks of the first have let it.
const PROGRAMMATIC: CUgraphEdgeData = data(1, 0, 1);
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

struct Pair<'a> {
    gpu: Gpu<'a>,
    store: CUfunction,
    word: CUdeviceptr,
    graph: CUgraph,
    a: CUgraphNode,
    b: CUgraphNode,
}

impl<'a> Pair<'a> {
    /// Two kernel nodes without an edge: the first word becomes 1, the second 2.
    fn new(cx: &'a Cx) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let (store, word, graph) = (gpu.kernel(c"store_one")?, gpu.zeroed(16)?, graph(cx)?);
        let a = add_kernel(cx, graph, &[], store, &Args::new().with(word).with(1u32))?;
        let b = add_kernel(cx, graph, &[], store, &Args::new().with(word + 4).with(2u32))?;
        Ok(Self { gpu, store, word, graph, a, b })
    }

    /// The graph runs, and both words are there.
    fn works(&self) -> Check {
        let stream = self.gpu.stream()?;
        self.gpu.write(self.word, &[0u32; 2])?;
        run_once(&self.gpu, self.graph, stream)?;
        ensure_eq!(self.gpu.read::<u32>(self.word, 2)?, [1, 2], "words");
        Ok(())
    }
}

fn data_of_edges(cx: &Cx) -> Check {
    let Pair { gpu, store, word, graph: g, a, b } = &Pair::new(cx)?;
    ok!(cx, cuGraphAddDependencies_v2(*g, a, b, &PROGRAMMATIC, 1))?;
    let c = {
        let mut node = CUgraphNode::NULL;
        let args = Args::new().with(*word).with(3u32);
        let mut list = args.pointers();
        let mut params = kernel(*store, &mut list);
        ok!(cx, cuGraphAddNode(&mut node, *g, b, &data(2, 0, 1), 1, &mut params))?;
        node
    };
    ensure_eq!(edges(cx, *g)?, [(*a, *b, [1, 0, 1]), (*b, c, [2, 0, 1])], "edges");
    let (mut nodes, mut found, mut n) = ([CUgraphNode::NULL; 4], [data(9, 9, 9); 4], 4);
    ok!(cx, cuGraphNodeGetDependencies_v2(*b, nodes.as_mut_ptr(), found.as_mut_ptr(), &mut n))?;
    ensure_eq!((n, nodes[0], found[0].type_, found[0].from_port), (1, *a, 1, 1), "what comes before");
    n = 4;
    ok!(cx, cuGraphNodeGetDependentNodes_v2(*b, nodes.as_mut_ptr(), found.as_mut_ptr(), &mut n))?;
    ensure_eq!((n, nodes[0], found[0].type_, found[0].from_port), (1, c, 1, 2), "what comes after");
    // Whatever data the caller names.
    ok!(cx, cuGraphRemoveDependencies_v2(*g, a, b, &data(2, 0, 1), 1))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphRemoveDependencies_v2(*g, a, b, &PROGRAMMATIC, 1))?;
    ok!(cx, cuGraphRemoveDependencies_v2(*g, b, &c, &data(2, 0, 1), 1))?;
    ensure_eq!(edges(cx, *g)?, [], "edges after they were removed");
    ok!(cx, cuGraphAddDependencies_v2(*g, a, b, null(), 1))?;
    ensure_eq!(edges(cx, *g)?, [(*a, *b, [0, 0, 0])], "an edge without data");
    let _ = gpu;
    Ok(())
}

fn older_queries_refuse_to_lose_data(cx: &Cx) -> Check {
    let pair = Pair::new(cx)?;
    ok!(cx, cuGraphAddDependencies_v2(pair.graph, &pair.a, &pair.b, &PROGRAMMATIC, 1))?;
    let (mut from, mut to, mut n) = ([CUgraphNode::NULL; 4], [CUgraphNode::NULL; 4], 0);
    // A count loses nothing.
    ok!(cx, cuGraphGetEdges(pair.graph, null_mut(), null_mut(), &mut n))?;
    ensure_eq!(n, 1, "edges");
    n = 4;
    code!(
        cx,
        [CUDA_ERROR_LOSSY_QUERY],
        cuGraphGetEdges(pair.graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut n)
    )?;
    n = 4;
    code!(cx, [CUDA_ERROR_LOSSY_QUERY], cuGraphNodeGetDependencies(pair.b, from.as_mut_ptr(), &mut n))?;
    n = 4;
    code!(cx, [CUDA_ERROR_LOSSY_QUERY], cuGraphNodeGetDependentNodes(pair.a, from.as_mut_ptr(), &mut n))?;
    pair.works()
}

fn programmatic_edges_join_kernels_only(cx: &Cx) -> Check {
    let pair = Pair::new(cx)?;
    let (g, a, b) = (pair.graph, pair.a, pair.b);
    let set = add_memset(&pair.gpu, g, &[], pair.word + 8, 1)?;
    for (from, to) in [(set, a), (a, set)] {
        let added = cu!(cx, cuGraphAddDependencies_v2(g, &from, &to, &PROGRAMMATIC, 1));
        ensure_eq!(added, CUresult::CUDA_ERROR_INVALID_VALUE, "a programmatic edge with a memset");
    }
    // No such port, and no such type.
    for wrong in [data(3, 0, 1), data(0, 0, 2)] {
        code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGraphAddDependencies_v2(g, &a, &b, &wrong, 1))?;
    }
    ensure_eq!(edges(cx, g)?, [], "edges after refusals");
    ok!(cx, cuGraphAddDependencies_v2(g, &a, &b, &PROGRAMMATIC, 1))?;
    pair.works()
}

/// Launches the store of a word with the attribute of programmatic serialisation.
fn launch_early(pair: &Pair<'_>, stream: CUstream, at: u64, value: u32) -> Check {
    let mut attribute = CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    let args = Args::new().with(pair.word + at).with(value);
    ok!(pair.gpu, cuLaunchKernelEx(&config, pair.store, args.pointers().as_mut_ptr(), null_mut()))
}

fn programmatic_launches_are_captured(cx: &Cx) -> Check {
    let pair = Pair::new(cx)?;
    let stream = pair.gpu.stream()?;
    ok!(cx, cuStreamBeginCapture(stream, RELAXED))?;
    launch_early(&pair, stream, 0, 5)?;
    launch_early(&pair, stream, 4, 6)?;
    ok!(cx, cuMemsetD32Async(pair.word + 8, 7, 1, stream))?;
    let mut g = CUgraph::NULL;
    ok!(cx, cuStreamEndCapture(stream, &mut g))?;
    let kinds: Vec<[u8; 3]> = edges(cx, g)?.into_iter().map(|edge| edge.2).collect();
    ensure!(
        kinds.len() == 2 && kinds.contains(&[1, 0, 1]) && kinds.contains(&[0, 0, 0]),
        "edges of a programmatic launch and a memset after it: {kinds:?}"
    );
    run_once(&pair.gpu, g, stream)?;
    ensure_eq!(pair.gpu.read::<u32>(pair.word, 3)?, [5, 6, 7], "words");
    Ok(())
}

fn dependencies_of_a_capture_carry_data(cx: &Cx) -> Check {
    let pair = Pair::new(cx)?;
    let (gpu, stream) = (&pair.gpu, pair.gpu.stream()?);
    let info = || {
        let (mut state, mut nodes, mut found, mut n) = (CUstreamCaptureStatus(9), null(), null(), 0);
        ok!(
            cx,
            cuStreamGetCaptureInfo_v3(
                stream,
                &mut state,
                null_mut(),
                null_mut(),
                &mut nodes,
                &mut found,
                &mut n
            )
        )?;
        // SAFETY: the driver shows so many of both, until the next call on the stream.
        let all = (0..n).map(|i| unsafe { (*nodes.add(i), *found.add(i)) });
        Ok::<_, crate::frame::Stop>(
            all.map(|(node, data)| (node, [data.from_port, data.to_port, data.type_])).collect::<Vec<_>>(),
        )
    };
    ok!(cx, cuStreamBeginCaptureToGraph(stream, pair.graph, &pair.a, &PROGRAMMATIC, 1, RELAXED))?;
    ensure_eq!(info()?, [(pair.a, [1, 0, 1])], "dependencies that the capture began with");
    let mut first = pair.b;
    ok!(cx, cuStreamUpdateCaptureDependencies_v2(stream, &mut first, &PROGRAMMATIC, 1, 1))?;
    ensure_eq!(info()?, [(pair.b, [1, 0, 1])], "dependencies after they were set");
    gpu.launch(pair.store, crate::gpu::Shape::ONE, stream, &Args::new().with(pair.word + 8).with(3u32))?;
    let mut g = CUgraph::NULL;
    ok!(cx, cuStreamEndCapture(stream, &mut g))?;
    ensure_eq!(g, pair.graph, "the graph that was captured into");
    let found = edges(cx, g)?;
    ensure!(found.len() == 1 && found[0].0 == pair.b && found[0].2 == [1, 0, 1], "edges: {found:?}");
    run_once(gpu, g, stream)?;
    ensure_eq!(gpu.read::<u32>(pair.word, 3)?, [1, 2, 3], "words");
    Ok(())
}
