//! Operations that are recorded and replayed.

use super::{Ops, WORDS, wait_for};
use crate::ensure;
use crate::frame::{Check, Cx, same};
use crate::gpu::SOON;
use simtile_async::{CudaGraph, DeviceOp, OpError, download, fill, value, write};

crate::frame::registry::tests! { Async, "async_graphs";
    a_captured_chain_is_replayed_on_any_stream proves ["G1", "G2"],
    replays_follow_what_they_access proves ["G2"],
    a_failed_capture_leaves_the_stream_usable proves ["G1"],
    host_values_are_no_part_of_a_graph proves ["O1"],
}

fn a_captured_chain_is_replayed_on_any_stream(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let other = ops.core.context.new_stream()?;
    let graph = CudaGraph::capture(&ops.core.stream, ops.step_owned(ops.words(5)?)?)?;
    let Some(mut words) = graph.take_output() else { return Err(OpError::Finished.into()) };
    same("before a replay", &words.to_vec(&other)?, &[5; WORDS as usize])?;
    graph.launch().sync_on(&ops.core.stream)?;
    wait_for(&mut graph.launch().on(&other))?;
    same("after two", &words.to_vec(&other)?, &[49; WORDS as usize])?;
    write(&mut words, vec![1u32; WORDS as usize]).sync_on(&other)?;
    let launch = graph.launch();
    drop(graph);
    launch.sync_on(&ops.core.stream)?;
    same("new input", &words.to_vec(&other)?, &[4; WORDS as usize])?;
    drop(words);
    ensure!(ops.core.context.drain(SOON).is_complete(), "the graph's memory was not given back");
    Ok(())
}

fn replays_follow_what_they_access(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let other = ops.core.context.new_stream()?;
    let mut words = ops.words(5)?;
    let graph = CudaGraph::capture(&ops.core.stream, ops.step(&mut words)?)?;
    let gate = ops.core.gate(&other)?;
    words.fill(&other, 10)?;
    graph.launch().enqueue_on(&ops.core.stream)?;
    ensure!(!ops.core.stream.is_complete()?, "a replay does not follow the fill");
    gate.open();
    same("words", &words.to_vec(&ops.core.stream)?, &[31; WORDS as usize])
}

fn a_failed_capture_leaves_the_stream_usable(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let fails = value(()).try_map(|()| Err::<(), _>(OpError::user("no")));
    let failed = CudaGraph::capture(&ops.core.stream, fails);
    ensure!(failed.is_err_and(|error| error.to_string() == "no"), "another error");
    let words = fill(ops.words(5)?, 7).then(download).sync_on(&ops.core.stream)?;
    same("words", &words, &[7; WORDS as usize])
}

fn host_values_are_no_part_of_a_graph(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let words = ops.words(5)?;
    let failed = CudaGraph::capture(&ops.core.stream, download(&words).map(drop));
    ensure!(matches!(failed, Err(OpError::NotCapturable { .. })), "{:?}", failed.err());
    same("words", &words.to_vec(&ops.core.stream)?, &[5; WORDS as usize])
}
