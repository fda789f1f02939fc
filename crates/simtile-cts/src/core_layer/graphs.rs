//! Captures, graphs, families of graphs and memoised chains by our API.

use super::{Core, refused};
use crate::frame::{Check, Cx, Need, Stop, same};
use crate::gpu::SOON;
use crate::{ensure, ensure_eq};
use simtile_async::{
    AsyncKernelLaunch, AsyncKernelLaunchBuilder, Conditional, CudaGraph, DeviceOp, GraphFamily, OpError,
    SubmitContext, copy, download, fill, into_future, memoize, upload, write, zeros, zip,
};
use simtile_core::{DeviceBuffer, Function};
use simtile_types::LaunchConfig;
use std::task::Poll;

/// Conditional nodes came with 12.4, and on devices of capability 9.0.
const CONDITIONS: Need = Need::Driver(12, 8, "conditional nodes");
const EDGES: Need = Need::Driver(12, 3, "data of edges");
const HOPPER: Need = Need::Capability(9, 0);

crate::frame::registry::tests! { Core, "core_graphs";
    captured_work_runs_when_it_is_launched proves ["G1", "G2"],
    every_exit_ends_the_capture proves ["G1"],
    a_capturing_stream_takes_no_other_work proves ["G1"],
    captured_work_waits_for_nothing_outside proves ["G1"],
    several_streams_of_one_capture proves ["G1"],
    host_values_are_not_captured proves ["G1"],
    graphs_keep_what_they_reach proves ["G2", "M4"],
    replays_are_ordered_by_what_they_access proves ["G2"],
    graphs_in_graphs proves ["G2"],
    memory_of_a_capture_is_the_graphs proves ["G2"],
    families_share_their_temporaries proves ["G2"],
    updates_are_whole proves ["G3"],
    inputs_are_written proves ["G3"],
    kernels_are_given_other_arguments proves ["G3"],
    conditional_nodes proves ["G2"] needs [HOPPER, CONDITIONS],
    conditional_nodes_in_bodies proves ["G2"] needs [HOPPER, CONDITIONS],
    programmatic_edges proves ["G2", "L1"] needs [HOPPER, EDGES],
    memoised_chains_do_what_chains_do proves ["G4"],
    memoised_chains_are_one_call proves ["G4"],
    memoised_chains_take_other_pointers proves ["G4"],
    memoised_chains_that_are_given_up proves ["G4"],
}

impl From<OpError> for Stop {
    fn from(error: OpError) -> Self {
        let lacks_entry = error.driver_error().is_some_and(|error| error.is_missing_entry());
        if lacks_entry { Self::unsupported(error) } else { Self::fail(error) }
    }
}

/// What `step` does to a word, so often.
fn stepped(word: u32, times: usize) -> u32 {
    (0..times).fold(word, |x, _| x.wrapping_mul(3).wrapping_add(1))
}

fn step<'a>(kernel: &Function, words: &'a mut DeviceBuffer<u32>) -> Result<AsyncKernelLaunch<'a>, OpError> {
    let n = words.len() as u32;
    let builder = AsyncKernelLaunchBuilder::new(kernel).write(words).arg(n).arg(1u32);
    // SAFETY: the kernel updates the words of its buffer, of which it is told.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(n)) }
}

/// Steps in a row.
struct Chain<'a>(&'a Function, &'a mut DeviceBuffer<u32>, usize);

impl DeviceOp for Chain<'_> {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        while self.2 > 0 {
            match step(self.0, self.1)?.poll_submit(cx) {
                Poll::Ready(Ok(())) => self.2 -= 1,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }
}

into_future!(['a] Chain<'a>);

fn captured_work_runs_when_it_is_launched(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::from_slice(&core.stream, &[5u32; 64])?;
    let graph = Chain(&kernel, &mut words, 3).graph_on(&core.stream)?;
    same("words before", &words.to_vec(&core.stream)?, &[5; 64])?;
    ensure_eq!(graph.nodes()?, 3, "nodes");
    for round in 1..4 {
        graph.launch().enqueue_on(if round == 2 { &other } else { &core.stream })?;
        same("words after a replay", &words.to_vec(&core.stream)?, &[stepped(5, 3 * round); 64])?;
    }
    Ok(())
}

fn every_exit_ends_the_capture(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let failed = zeros::<u8>(4).try_map(|_| Err::<(), _>(OpError::user("no"))).graph_on(&core.stream);
    refused(failed, &["no"])?;
    let panicked = zeros::<u8>(4).map(|_| -> () { std::panic::resume_unwind(Box::new("boom")) });
    refused(panicked.graph_on(&core.stream), &["boom"])?;
    let graph = zeros::<u8>(4).then(|b| fill(b, 1)).graph_on(&core.stream)?;
    graph.launch().sync_on(&core.stream)?;
    let made = graph.take_output().ok_or_else(|| Stop::fail("no output"))?;
    same("bytes", &made.to_vec(&core.stream)?, &[1; 4])
}

fn a_capturing_stream_takes_no_other_work(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let mut seen = Ok(());
    let graph = CudaGraph::scope(&core.stream, |scope| {
        seen = (|| {
            refused(zeros::<u8>(3).enqueue_on(&core.stream), &["is capturing a graph"])?;
            // Work elsewhere disturbs nothing.
            same("values", &upload(vec![7u8]).then(download).sync_on(&other)?, &[7])
        })();
        scope.record(zeros::<u8>(3))
    })?;
    seen?;
    graph.launch().sync_on(&core.stream)?;
    Ok(())
}

fn captured_work_waits_for_nothing_outside(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let mut words = DeviceBuffer::from_slice(&other, &[1u32; 8])?;
    let gate = core.gate(&other)?;
    words.fill(&other, 4)?;
    let graph = fill(&mut words, 7).map(drop).graph_on(&core.stream)?;
    ensure_eq!(graph.nodes()?, 1, "nodes");
    // The replay does wait.
    graph.launch().enqueue_on(&core.stream)?;
    gate.open();
    same("words", &words.to_vec(&other)?, &[7; 8])
}

fn several_streams_of_one_capture(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let side = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let (mut a, mut b) = (
        DeviceBuffer::from_slice(&core.stream, &[1u32; 32])?,
        DeviceBuffer::<u32>::zeroed(&core.stream, 32)?,
    );
    core.stream.synchronize()?;
    let graph = CudaGraph::scope(&core.stream, |scope| {
        scope.fork(&side)?;
        scope.record_on(&side, step(&kernel, &mut a)?)?;
        // Reads what the other stream wrote, and the other what this one did.
        scope.record(copy(&a, &mut b).map(drop))?;
        scope.record_on(&side, step(&kernel, &mut b)?)
    })?;
    for round in 1..4 {
        graph.launch().sync_on(&core.stream)?;
        same("the first", &a.to_vec(&side)?, &[stepped(1, round); 32])?;
        same("the second", &b.to_vec(&side)?, &[stepped(1, round + 1); 32])?;
    }
    Ok(())
}

fn host_values_are_not_captured(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let words = DeviceBuffer::from_slice(&core.stream, &[1u8])?;
    refused(download(&words).graph_on(&core.stream), &["a download", "cannot be captured"])?;
    same("words", &words.to_vec(&core.stream)?, &[1])
}

fn graphs_keep_what_they_reach(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let kernel = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::from_slice(&core.stream, &[1u32; 64])?;
    let out = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let graph = CudaGraph::scope(&core.stream, |scope| {
        scope.record(step(&kernel, &mut words)?)?;
        scope.record(copy(&words, out))
    })?;
    ensure!(!words.is_unique(), "a graph does not count as a handle");
    let out = graph.take_output().ok_or_else(|| Stop::fail("no output"))?;
    drop((words, kernel));
    let gate = core.gate(&core.stream)?;
    (0..3).try_for_each(|_| graph.launch().enqueue_on(&core.stream))?;
    drop(graph);
    gate.open();
    same("words", &out.to_vec(&core.stream)?, &[stepped(1, 3); 64])?;
    drop(out);
    let drained = core.context.drain(SOON);
    ensure!(drained.is_complete(), "left over: {drained:?}");
    Ok(())
}

fn replays_are_ordered_by_what_they_access(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let (other, third) = (core.context.new_stream()?, core.context.new_stream()?);
    let kernel = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let graph = Chain(&kernel, &mut words, 2).graph_on(&core.stream)?;
    let gate = core.gate(&other)?;
    words.fill(&other, 10)?;
    graph.launch().enqueue_on(&core.stream)?;
    graph.launch().enqueue_on(&third)?;
    gate.open();
    same("words", &words.to_vec(&core.stream)?, &[stepped(10, 4); 64])
}

fn graphs_in_graphs(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let inner = Chain(&kernel, &mut words, 2).graph_on(&core.stream)?;
    let outer = zip!(inner.launch(), inner.launch()).graph_on(&core.stream)?;
    ensure_eq!(outer.nodes()?, 2, "nodes of the outer graph");
    drop(inner);
    outer.launch().enqueue_on(&core.stream)?;
    same("words", &words.to_vec(&other)?, &[stepped(0, 4); 64])
}

fn memory_of_a_capture_is_the_graphs(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let kernel = core.basic()?.load_function("step")?;
    let graph = CudaGraph::scope(&core.stream, |scope| {
        let mut words = scope.record(zeros::<u32>(1000))?;
        scope.record(step(&kernel, &mut words)?)?;
        Ok(words)
    })?;
    let words = graph.take_output().ok_or_else(|| Stop::fail("no output"))?;
    same("words before the first replay", &words.to_vec(&core.stream)?, &[0; 1000])?;
    let address = words.cu_deviceptr();
    for _ in 0..3 {
        graph.launch().enqueue_on(&core.stream)?;
        // Each replay zeroes them first.
        same("words", &words.to_vec(&core.stream)?, &[1; 1000])?;
    }
    ensure_eq!((graph.nodes()?, words.cu_deviceptr()), (2, address), "nodes, and the address");
    Ok(())
}

fn families_share_their_temporaries(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let family = GraphFamily::new(&core.stream)?;
    let mut graphs = Vec::new();
    for len in [1000usize, 64, 3000, 500] {
        graphs.push(family.capture(|scope| {
            let mut scratch = scope.temporary::<u32>(len)?;
            let mut words = scope.record(zeros::<u32>(len))?;
            scope.record(fill(scratch.reborrow(), len as u32).map(drop))?;
            scope.record(copy(scratch.as_view(), &mut words).map(drop))?;
            scope.record(step(&kernel, &mut words)?)?;
            Ok(words)
        })?);
    }
    let shared = family.num_bytes().ok_or_else(|| Stop::fail("the family is in use"))?;
    let rounded = (3000usize * 4).next_multiple_of(2 << 20);
    ensure!(shared <= rounded.max(4 * 4 * 3000), "{shared} bytes are shared");
    let outputs: Vec<_> = graphs.iter().filter_map(CudaGraph::take_output).collect();
    drop(family);
    let gate = core.gate(&other)?;
    for (i, graph) in graphs.iter().enumerate() {
        graph.launch().enqueue_on(if i % 2 == 0 { &other } else { &core.stream })?;
    }
    gate.open();
    for words in &outputs {
        let value = stepped(words.len() as u32, 1);
        ensure!(words.to_vec(&core.stream)?.iter().all(|v| *v == value), "other values than {value}");
    }
    drop((graphs, outputs));
    ensure!(core.context.drain(SOON).is_complete(), "something is left over");
    Ok(())
}

fn updates_are_whole(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let graph = zeros::<u32>(8).then(|b| fill(b, 1)).graph_on(&core.stream)?;
    let first = graph.take_output().ok_or_else(|| Stop::fail("no output"))?;
    let gate = core.gate(&core.stream)?;
    graph.launch().enqueue_on(&core.stream)?;
    let (_, updated) = graph.recapture(zeros::<u32>(8).then(|b| fill(b, 2)))?;
    ensure!(updated, "a graph of the same shape was built anew");
    let second = graph.take_output().ok_or_else(|| Stop::fail("no output"))?;
    graph.launch().enqueue_on(&core.stream)?;
    gate.open();
    same("in flight", &first.to_vec(&other)?, &[1; 8])?;
    same("updated", &second.to_vec(&other)?, &[2; 8])?;
    let (_, updated) = graph.recapture(zeros::<u32>(8).then(|b| fill(b, 3)).then(|b| fill(b, 4)))?;
    ensure!(!updated, "a graph of another shape was updated");
    graph.launch().enqueue_on(&core.stream)?;
    let third = graph.take_output().ok_or_else(|| Stop::fail("no output"))?;
    same("replaced", &third.to_vec(&other)?, &[4; 8])
}

fn inputs_are_written(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let kernel = core.basic()?.load_function("step")?;
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let graph = step(&kernel, &mut words)?.graph_on(&core.stream)?;
    for value in [5u32, 9] {
        graph.update(write(&mut words, vec![value; 64]).map(drop))?;
        graph.launch().enqueue_on(&core.context.new_stream()?)?;
        same("words", &words.to_vec(&core.stream)?, &[stepped(value, 1); 64])?;
    }
    Ok(())
}

fn kernels_are_given_other_arguments(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let words = |value: u32| DeviceBuffer::from_slice(&core.stream, &[value; 64]);
    let (mut a, mut b, mut c) = (words(1)?, words(2)?, words(3)?);
    let mut name = None;
    let graph = CudaGraph::scope(&core.stream, |scope| {
        name = Some(scope.record_kernel(step(&kernel, &mut a)?)?.1);
        scope.record(step(&kernel, &mut b)?)
    })?;
    let name = name.ok_or_else(|| Stop::fail("no name"))?;
    let gate = core.gate(&core.stream)?;
    graph.launch().enqueue_on(&core.stream)?;
    graph.set_kernel(name, step(&kernel, &mut c)?)?;
    ensure!(a.is_unique() && !c.is_unique(), "the graph keeps the old buffer, or not the new one");
    graph.launch().enqueue_on(&other)?;
    gate.open();
    same("the old", &a.to_vec(&other)?, &[stepped(1, 1); 64])?;
    same("the other kernel's", &b.to_vec(&core.stream)?, &[stepped(2, 2); 64])?;
    same("the new", &c.to_vec(&core.stream)?, &[stepped(3, 1); 64])?;
    let second = fill(&mut a, 1).map(drop).graph_on(&core.stream)?;
    refused(second.set_kernel(name, step(&kernel, &mut c)?), &["another graph"])?;
    refused(graph.set_kernel(name, fill(&mut a, 1).map(drop)), &["one launch was expected"])?;
    Ok(())
}

fn one<'a>(
    kernel: &Function,
    args: impl FnOnce(AsyncKernelLaunchBuilder<'a>) -> AsyncKernelLaunchBuilder<'a>,
) -> Result<AsyncKernelLaunch<'a>, OpError> {
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernels touch the word that they are given, and set conditions of their graph.
    unsafe { args(AsyncKernelLaunchBuilder::new(kernel)).finalize_unchecked(config) }
}

fn conditional_nodes(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let image = crate::kernels::CONDITIONAL.strip_suffix(b"\0").unwrap_or_default();
    let module = core.context.load_module(image)?;
    let function = |name: &str| module.load_function(name);
    let (count, add, look) = (function("count_down")?, function("add")?, function("condition_of")?);
    let word = || DeviceBuffer::from_slice(&core.stream, &[0u32]);
    let (mut left, mut sum, mut flag, mut seen) = (word()?, word()?, word()?, word()?);
    let graph = CudaGraph::scope(&core.stream, |scope| {
        let (turns, yes) = (scope.condition(1)?, scope.condition(0)?);
        scope.conditional(&turns, Conditional::While, |body| {
            body.record(one(&add, |args| args.write(&mut sum).arg(2u32))?)?;
            body.record(one(&count, |args| args.arg(turns.handle()).write(&mut left))?)
        })?;
        scope.record(one(&look, |args| args.arg(yes.handle()).read(&flag))?)?;
        scope.conditional(&yes, Conditional::If, |body| {
            body.record(one(&add, |args| args.write(&mut seen).arg(1u32))?)
        })
    })?;
    for (turns, yes, expected) in [(5u32, 0u32, [10, 0]), (1, 1, [12, 1]), (3, 7, [18, 2])] {
        left.copy_from_slice(&core.stream, &[turns])?;
        flag.copy_from_slice(&core.stream, &[yes])?;
        graph.launch().enqueue_on(&core.stream)?;
        let found = [sum.to_vec(&core.stream)?[0], seen.to_vec(&core.stream)?[0]];
        ensure_eq!(found, expected, "what the bodies added");
    }
    Ok(())
}

/// A loop in a loop, and an `if` in that, with conditions of the outermost scope and of a body.
fn conditional_nodes_in_bodies(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let image = crate::kernels::CONDITIONAL.strip_suffix(b"\0").unwrap_or_default();
    let module = core.context.load_module(image)?;
    let function = |name: &str| module.load_function(name);
    let (count, add, look) = (function("count_down")?, function("add")?, function("condition_of")?);
    let word = || DeviceBuffer::from_slice(&core.stream, &[0u32]);
    let (mut outer, mut inner, mut flag) = (word()?, word()?, word()?);
    let (mut turns, mut hits) = (word()?, word()?);
    let forked = core.context.new_stream()?;
    let graph = CudaGraph::scope(&core.stream, |scope| {
        scope.fork(&forked)?;
        scope.record_on(&forked, fill(&mut hits, 5).map(drop))?;
        let (more, yes) = (scope.condition(1)?, scope.condition(0)?);
        scope.conditional(&more, Conditional::While, |body| {
            let again = body.condition(1)?;
            body.record(fill(&mut inner, 3).map(drop))?;
            body.record(one(&look, |args| args.arg(again.handle()).read(&inner))?)?;
            body.conditional(&again, Conditional::While, |body| {
                body.record(one(&add, |args| args.write(&mut turns).arg(1u32))?)?;
                body.record(one(&look, |args| args.arg(yes.handle()).read(&flag))?)?;
                body.conditional(&yes, Conditional::If, |body| {
                    body.record(one(&add, |args| args.write(&mut hits).arg(10u32))?)
                })?;
                body.record(one(&count, |args| args.arg(again.handle()).write(&mut inner))?)
            })?;
            body.record(one(&count, |args| args.arg(more.handle()).write(&mut outer))?)
        })
    })?;
    for (rounds, yes, expected) in [(2u32, 0u32, [6, 5]), (1, 1, [9, 35]), (3, 0, [18, 5])] {
        outer.copy_from_slice(&core.stream, &[rounds])?;
        flag.copy_from_slice(&core.stream, &[yes])?;
        graph.launch().enqueue_on(&core.stream)?;
        let found = [turns.to_vec(&core.stream)?[0], hits.to_vec(&core.stream)?[0]];
        ensure_eq!(found, expected, "what the bodies added");
    }
    Ok(())
}

fn programmatic_edges(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let kernel = core.basic()?.load_function("empty")?;
    let launch = |early: bool| {
        let builder = AsyncKernelLaunchBuilder::new(&kernel);
        // SAFETY: the kernel touches no memory.
        let builder = if early { unsafe { builder.programmatic_dependent_launch() } } else { builder };
        // SAFETY: as above.
        unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(1)) }
    };
    let graph = CudaGraph::scope(&core.stream, |scope| {
        scope.record(launch(false)?)?;
        scope.record(launch(true)?)?;
        scope.record(launch(true)?)?;
        scope.record(launch(false)?)
    })?;
    ensure_eq!((graph.nodes()?, graph.programmatic_edges()?), (4, 2), "nodes and programmatic edges");
    graph.launch().sync_on(&core.stream)?;
    Ok(())
}

fn memoised_chains_do_what_chains_do(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let memo = memoize();
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let mut model = 0;
    // The same, longer, shorter, and again.
    for (round, times) in [3, 3, 7, 2, 2, 3].into_iter().enumerate() {
        let value = round as u32;
        let on = if round % 2 == 0 { &core.stream } else { &other };
        memo.run(fill(&mut words, model ^ value).then(|words| Chain(&kernel, words, times)))
            .enqueue_on(on)?;
        model = stepped(model ^ value, times);
        same("words", &words.to_vec(&core.stream)?, &[model; 64])?;
    }
    let stats = memo.stats();
    ensure_eq!((stats.launches, stats.built, stats.plain), (6, 4, 0), "launches, built, plain");
    refused(memo.run(download(&words)).sync_on(&core.stream), &["a download"])?;
    Ok(())
}

fn memoised_chains_are_one_call(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let kernel = core.basic()?.load_function("step")?;
    let (memo, n) = (memoize(), 32u64);
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    memo.run(Chain(&kernel, &mut words, 20)).enqueue_on(&core.stream)?;
    let before = cx.calls();
    for _ in 0..n {
        memo.run(Chain(&kernel, &mut words, 20)).enqueue_on(&core.stream)?;
    }
    let calls = cx.calls() - before;
    ensure!(calls <= n + n / 32 + 1, "{calls} driver calls for {n} chains of 20 launches");
    same("words", &words.to_vec(&core.stream)?, &[stepped(0, 33 * 20); 100])
}

fn memoised_chains_take_other_pointers(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let kernel = core.basic()?.load_function("step")?;
    let memo = memoize();
    let mut sets = Vec::new();
    for value in 0..3u32 {
        sets.push(DeviceBuffer::from_slice(&core.stream, &[value; 64])?);
    }
    let gate = core.gate(&core.stream)?;
    for round in 0..6 {
        let words = &mut sets[round % 3];
        // What is in flight keeps its own pointers.
        memo.run(Chain(&kernel, words, 4)).enqueue_on(if round % 2 == 0 { &core.stream } else { &other })?;
    }
    ensure!(sets[0].is_unique() && !sets[2].is_unique(), "a memo keeps what its last run touched");
    gate.open();
    for (value, words) in sets.iter().enumerate() {
        same("words", &words.to_vec(&other)?, &[stepped(value as u32, 8); 64])?;
    }
    ensure_eq!((memo.stats().built, memo.stats().updated), (1, 20), "built, and updated nodes");
    memo.forget();
    ensure!(sets[2].is_unique(), "a memo keeps what it was to forget");
    Ok(())
}

fn memoised_chains_that_are_given_up(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let kernel = core.basic()?.load_function("step")?;
    let memo = memoize();
    let mut words = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    memo.run(Chain(&kernel, &mut words, 3)).enqueue_on(&core.stream)?;
    let mut other = DeviceBuffer::<u32>::zeroed(&core.stream, 64)?;
    let failing = Chain(&kernel, &mut other, 2).try_map(|()| Err::<(), _>(OpError::user("no")));
    refused(memo.run(failing).enqueue_on(&core.stream), &["no"])?;
    same("nothing ran", &other.to_vec(&core.stream)?, &[0; 64])?;
    memo.run(Chain(&kernel, &mut words, 3)).enqueue_on(&core.stream)?;
    same("words", &words.to_vec(&core.stream)?, &[stepped(0, 6); 64])?;
    drop((words, other, memo, kernel));
    ensure!(core.context.drain(SOON).is_complete(), "something is left over");
    Ok(())
}
