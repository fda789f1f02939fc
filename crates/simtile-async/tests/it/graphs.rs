//! G1, G2, G3: capture, replay, update.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{copy, download, fill, upload, with_context, write, zeros};
use simtile_core::{DeviceBuffer, Error, StreamError};
use simtile_driver::Entry;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn captured_work_runs_only_when_it_is_launched() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[1u32; 8]).unwrap();
    let graph = CudaGraph::capture(&rig.stream, fill(&mut buffer, 7).map(drop)).unwrap();
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [1; 8]);
    let before = rig.sim.counts();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    let calls = rig.sim.counts().since(&before);
    assert_eq!((calls.of(Entry::cuGraphLaunch), calls.total()), (1, 1), "{calls:?}");
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [7; 8]);
    rig.clean();
}

#[test]
fn combinators_can_be_captured_and_replayed_on_any_stream() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let kernel = rig.saxpy.clone();
    let op =
        zip!(upload(vec![1.0f32; 64]), zeros::<f32>(64)).then(move |pair| saxpy_owned(&kernel, 3.0, pair));
    let graph = op.graph_on(&rig.stream).unwrap();
    let (x, y) = graph.take_output().unwrap();
    assert!(graph.take_output().is_none());
    for stream in [&rig.stream, &other, &rig.stream] {
        graph.launch().enqueue_on(stream).unwrap();
        // `y` is zeroed by every replay.
        assert_eq!(y.to_vec(&other).unwrap(), [3.0; 64]);
    }
    assert_eq!(x.to_vec(&other).unwrap(), [1.0; 64]);
    assert!(graph.nodes().unwrap() >= 3);
    rig.clean();
}

#[test]
fn replays_are_ordered_with_other_work_by_what_they_access() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 16]).unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 16]).unwrap();
    let graph = saxpy(&rig.saxpy, 1.0, &x, &mut y).graph_on(&rig.stream).unwrap();
    let gate = rig.sim.gate(other.cu_stream()).unwrap();
    y.fill(&other, 10.0).unwrap();
    // Follows the gated fill; two replays follow each other.
    graph.launch().enqueue_on(&rig.stream).unwrap();
    graph.launch().enqueue_on(&rig.context.new_stream().unwrap()).unwrap();
    gate.open();
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [12.0; 16]);
    rig.clean();
}

#[test]
fn a_graph_keeps_what_its_nodes_reach() {
    let rig = rig();
    let module = rig.context.load_module_from_ptx_src(SAXPY).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    drop(module);
    let mut x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 16]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 16]).unwrap();
    let out = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 16]).unwrap();
    let graph = saxpy(&kernel, 1.0, &x, &mut y).then(|()| copy(&x, out)).graph_on(&rig.stream).unwrap();
    assert!(!x.is_unique() && !y.is_unique(), "M4: graphs count");
    drop((x, y, kernel));
    let out = graph.take_output().unwrap();
    for _ in 0..3 {
        graph.launch().enqueue_on(&rig.stream).unwrap();
    }
    assert_eq!(out.to_vec(&rig.stream).unwrap(), [1.0; 16]);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    drop((graph, out));
    assert!(rig.context.stats().live_allocations <= 3);
    gate.open();
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

/// fr_J5: values uploaded in a capture are the graph's own.
#[test]
fn fr_j5_uploaded_values_are_kept() {
    let rig = rig();
    let values = vec![4u32, 5, 6];
    let graph = upload(values).graph_on(&rig.stream).unwrap();
    let buffer = graph.take_output().unwrap();
    for _ in 0..3 {
        graph.launch().sync_on(&rig.stream).unwrap();
        assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [4, 5, 6]);
    }
    let mut target = zeros::<u32>(2).sync_on(&rig.stream).unwrap();
    let second = write(&mut target, vec![8u32, 9]).map(drop).graph_on(&rig.stream).unwrap();
    second.launch().sync_on(&rig.stream).unwrap();
    assert_eq!(target.to_vec(&rig.stream).unwrap(), [8, 9]);
    rig.clean();
}

/// fr_J6: memory made in a capture has one address for all replays, is no node, and goes with the graph.
#[test]
fn fr_j6_memory_of_a_capture_belongs_to_the_graph() {
    let rig = rig();
    for _ in 0..50 {
        let graph = zeros::<u32>(1000).then(|buffer| fill(buffer, 3)).graph_on(&rig.stream).unwrap();
        let buffer = graph.take_output().unwrap();
        let address = buffer.cu_deviceptr();
        for _ in 0..3 {
            graph.launch().enqueue_on(&rig.stream).unwrap();
        }
        assert_eq!(buffer.cu_deviceptr(), address);
        assert_eq!(buffer.to_vec(&rig.stream).unwrap()[999], 3);
        assert_eq!(graph.nodes().unwrap(), 2, "two memsets, no allocation");
    }
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn host_values_cannot_be_captured() {
    let rig = rig();
    let buffer = DeviceBuffer::from_slice(&rig.stream, &[1u8]).unwrap();
    let refused = download(&buffer).graph_on(&rig.stream).unwrap_err();
    assert!(matches!(refused, OpError::NotCapturable { what: "a download", .. }), "{refused}");
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [1]);
}

/// fr_J14: an error or a panic in a capture ends it; the stream is as before.
#[test]
fn fr_j14_every_exit_ends_the_capture() {
    let rig = rig();
    let failed = zeros::<u8>(4).try_map(|_| Err::<(), _>(OpError::user("no"))).graph_on(&rig.stream);
    assert_eq!(failed.unwrap_err().to_string(), "no");
    let panicked = zeros::<u8>(4).map(|_| -> () { panic!("boom") }).graph_on(&rig.stream);
    assert!(matches!(panicked, Err(OpError::Panicked { .. })));
    let scope = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        CudaGraph::<()>::scope(&rig.stream, |scope| {
            scope.record(zeros::<u8>(4))?;
            panic!("in the scope")
        })
    }));
    assert!(scope.is_err());
    let graph = zeros::<u8>(4).then(|b| fill(b, 1)).graph_on(&rig.stream).unwrap();
    graph.launch().sync_on(&rig.stream).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [1; 4]);
    rig.clean();
}

/// fr_J15, fr_J16: captured work waits for nothing outside; default streams are refused with advice.
#[test]
fn fr_j15_captured_work_waits_for_nothing_outside() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let gate = rig.sim.gate(other.cu_stream()).unwrap();
    let mut buffer = DeviceBuffer::from_slice(&other, &[1u32; 8]).unwrap();
    let graph = fill(&mut buffer, 7).map(drop).graph_on(&rig.stream).unwrap();
    assert_eq!(graph.nodes().unwrap(), 1);
    gate.open();
    graph.launch().sync_on(&rig.stream).unwrap();
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [7; 8]);
    let legacy = rig.context.legacy_default_stream();
    let refused = value(()).graph_on(&legacy).unwrap_err();
    assert!(refused.to_string().contains("new_stream"), "{refused}");
    rig.clean();
}

#[test]
fn a_capturing_stream_takes_no_other_work() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        let refused = zeros::<u8>(3).enqueue_on(&rig.stream).unwrap_err();
        let capturing = matches!(
            refused.core(),
            Some(Error::Memory(simtile_core::MemoryError::Stream(StreamError::Capturing { .. })))
        );
        assert!(capturing, "{refused}");
        // Work elsewhere does not disturb the capture.
        assert_eq!(upload(vec![1u8]).then(download).sync_on(&other)?, [1]);
        drop(zeros::<u8>(3).enqueue_on(&other)?);
        scope.record(zeros::<u8>(3))
    })
    .unwrap();
    graph.launch().sync_on(&rig.stream).unwrap();
    rig.clean();
}

#[test]
fn several_streams_of_a_capture_follow_each_other() {
    let rig = rig();
    let side = rig.context.new_stream().unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 32]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 32]).unwrap();
    let mut z = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 32]).unwrap();
    rig.stream.synchronize().unwrap();
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        scope.fork(&side)?;
        scope.record_on(&side, saxpy(&rig.saxpy, 2.0, &x, &mut y))?;
        // Reads what the other stream wrote.
        scope.record(saxpy(&rig.saxpy, 1.0, &y, &mut z))
    })
    .unwrap();
    for round in 1..4 {
        graph.launch().sync_on(&rig.stream).unwrap();
        assert_eq!(z.to_vec(&side).unwrap()[31], [2.0, 6.0, 12.0][round - 1]);
    }
    rig.clean();
}

#[test]
fn a_graph_in_a_graph_is_a_child() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 8]).unwrap();
    let one = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let inner = saxpy(&rig.saxpy, 1.0, &one, &mut buffer).graph_on(&rig.stream).unwrap();
    let outer = zip!(inner.launch(), inner.launch()).graph_on(&rig.stream).unwrap();
    assert_eq!(outer.nodes().unwrap(), 2);
    drop((inner, one));
    outer.launch().enqueue_on(&rig.stream).unwrap();
    let other = rig.context.new_stream().unwrap();
    assert_eq!(buffer.to_vec(&other).unwrap(), [2.0; 8], "the outer replay claims what the inner accesses");
    rig.clean();
}

/// fr_J17: an update with a launch in flight: that one has the old values. What does not fit gets a new executable.
#[test]
fn fr_j17_updates_are_whole() {
    let rig = rig();
    let one = Arc::new(DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap());
    let ten = Arc::new(DeviceBuffer::from_slice(&rig.stream, &[10.0f32; 8]).unwrap());
    let target = |source: &Arc<DeviceBuffer<f32>>| {
        zeros::<f32>(8).then({
            let source = source.clone();
            move |target| copy(source, target)
        })
    };
    let graph = target(&one).graph_on(&rig.stream).unwrap();
    let first = graph.take_output().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    // The graph's stream is busy, not capturing; it is recorded behind the gate.
    let (old, updated) = graph.recapture(target(&ten)).unwrap();
    assert!(old.is_none() && updated);
    let second = graph.take_output().unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    gate.open();
    let other = rig.context.new_stream().unwrap();
    assert_eq!(first.to_vec(&other).unwrap(), [1.0; 8]);
    assert_eq!(second.to_vec(&other).unwrap(), [10.0; 8]);
    let (_, updated) = graph.recapture(target(&one).then(|b| fill(b, 4.0))).unwrap();
    assert!(!updated, "another shape");
    graph.launch().sync_on(&rig.stream).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [4.0; 8]);
    drop((one, ten, first, second, graph));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

/// fr_J18: inputs are slots; new values are written into them.
#[test]
fn fr_j18_inputs_are_written_not_rebound() {
    let rig = rig();
    let mut input = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let kernel = rig.saxpy.clone();
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        let mut output = scope.record(zeros::<f32>(8))?;
        scope.record(saxpy(&kernel, 2.0, &input, &mut output))?;
        Ok(output)
    })
    .unwrap();
    let output = graph.take_output().unwrap();
    graph.launch().enqueue_on(&rig.stream).unwrap();
    assert_eq!(output.to_vec(&rig.stream).unwrap(), [2.0; 8]);
    graph.update(write(&mut input, vec![5.0f32; 8]).map(drop)).unwrap();
    graph.launch().enqueue_on(&rig.context.new_stream().unwrap()).unwrap();
    assert_eq!(output.to_vec(&rig.stream).unwrap(), [10.0; 8]);
    rig.clean();
}

/// fr_J11: queries, copies, allocations and drops of other threads disturb no capture.
#[test]
fn fr_j11_other_threads_disturb_no_capture() {
    let rig = rig();
    let stop = std::sync::atomic::AtomicBool::new(false);
    simtile_sync::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = rig.context.new_stream().unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(upload(vec![2u8; 9]).then(download).sync_on(&stream).unwrap(), [2; 9]);
                    assert!(stream.is_complete().is_ok());
                }
            });
        }
        for _ in 0..30 {
            let graph = zeros::<u32>(10).then(|b| fill(b, 5)).graph_on(&rig.stream).unwrap();
            graph.launch().sync_on(&rig.stream).unwrap();
            assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [5; 10]);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    rig.clean();
}

#[test]
fn two_threads_capture_and_several_replay() {
    let rig = rig();
    simtile_sync::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let stream = rig.context.new_stream().unwrap();
                let graph = zeros::<u32>(4).then(|b| fill(b, 1)).graph_on(&stream).unwrap();
                graph.launch().sync_on(&stream).unwrap();
            });
        }
    });
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 8]).unwrap();
    let graph = saxpy(&rig.saxpy, 1.0, &x, &mut y).graph_on(&rig.stream).unwrap();
    simtile_sync::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = rig.context.new_stream().unwrap();
                for _ in 0..25 {
                    graph.launch().enqueue_on(&stream).unwrap();
                }
            });
        }
    });
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [100.0; 8]);
    rig.clean();
}

#[test]
fn a_shared_result_belongs_to_its_world() {
    let rig = rig();
    let shared = upload(vec![1u8; 4]).shared();
    let graph = shared.clone().graph_on(&rig.stream).unwrap();
    let refused = shared.sync_on(&rig.stream).unwrap_err();
    assert!(matches!(refused, OpError::OtherWorld { .. }), "{refused}");
    drop(graph);
    let eager = upload(vec![1u8; 4]).shared();
    eager.clone().sync_on(&rig.stream).unwrap();
    assert!(matches!(eager.graph_on(&rig.stream), Err(OpError::OtherWorld { .. })));
}

#[test]
fn a_launch_outlives_its_graph_and_can_be_awaited() {
    let rig = rig();
    let graph = zeros::<u32>(4).then(|b| fill(b, 6)).graph_on(&rig.stream).unwrap();
    let (launch, buffer) = (graph.launch(), graph.take_output().unwrap());
    drop(graph);
    block_on(launch.on(&rig.stream)).unwrap();
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [6; 4]);
    let picture = std::env::temp_dir().join(format!("simtile-graph-{}.dot", std::process::id()));
    let graph = zeros::<u32>(4).graph_on(&rig.stream).unwrap();
    graph.write_dot(picture.to_str().unwrap()).unwrap();
    assert!(std::fs::read_to_string(&picture).unwrap().contains("digraph"));
    std::fs::remove_file(picture).unwrap();
    rig.clean();
}

#[test]
fn an_empty_scope_is_a_graph() {
    let rig = rig();
    let graph = CudaGraph::scope(&rig.stream, |_| Ok(5)).unwrap();
    graph.launch().sync_on(&rig.stream).unwrap();
    assert_eq!((graph.take_output(), graph.nodes().unwrap()), (Some(5), 0));
}

/// G1: whatever kept the context of a scope, the stream is as before, and nothing is recorded later.
#[test]
fn a_context_that_outlives_its_scope_keeps_no_stream_and_records_nothing() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    for fails in [false, true] {
        let mut kept = None;
        let op = with_context(|execution| {
            kept = Some(execution.clone());
            fill(&mut buffer, 7).try_map(|_| if fails { Err(OpError::user("no")) } else { Ok(()) })
        });
        let graph = CudaGraph::capture(&rig.stream, op);
        assert_eq!(graph.is_err(), fails);
        let kept = kept.unwrap();
        assert!(kept.is_recording());
        // The stream takes work, before and after somebody tries.
        buffer.fill(&rig.stream, 1).unwrap();
        let filled = simtile_async::DeviceFuture::scheduled(fill(&mut buffer, 9).map(drop), kept.clone());
        let filled = block_on(filled).unwrap_err();
        let made = simtile_async::DeviceFuture::scheduled(zeros::<u32>(4), kept);
        for refused in [filled, block_on(made).unwrap_err()] {
            assert!(refused.to_string().contains("the capture has ended"), "{refused}");
        }
        assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [1; 8]);
        if let Ok(graph) = graph {
            graph.launch().enqueue_on(&rig.stream).unwrap();
            assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [7; 8]);
        }
    }
    rig.clean();
}

/// G1: a default stream is refused before the driver sees it, and the capture goes on.
#[test]
fn a_default_stream_takes_no_part_in_a_scope() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    let graph = CudaGraph::scope(&rig.stream, |scope| {
        for default in [rig.context.legacy_default_stream(), rig.context.per_thread_default_stream()] {
            let refused = scope.fork(&default).unwrap_err();
            assert!(refused.to_string().contains("default streams cannot be captured"), "{refused}");
        }
        scope.record(fill(&mut buffer, 3)).map(drop)
    });
    graph.unwrap().launch().enqueue_on(&rig.stream).unwrap();
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [3; 8]);
    rig.clean();
}

crate::schedules::explored!(
    captured_work_runs_only_when_it_is_launched
    combinators_can_be_captured_and_replayed_on_any_stream
    replays_are_ordered_with_other_work_by_what_they_access
    a_graph_keeps_what_its_nodes_reach
    fr_j5_uploaded_values_are_kept
    fr_j6_memory_of_a_capture_belongs_to_the_graph
    host_values_cannot_be_captured
    fr_j14_every_exit_ends_the_capture
    fr_j15_captured_work_waits_for_nothing_outside
    a_capturing_stream_takes_no_other_work
    several_streams_of_a_capture_follow_each_other
    a_graph_in_a_graph_is_a_child
    fr_j17_updates_are_whole
    fr_j18_inputs_are_written_not_rebound
    fr_j11_other_threads_disturb_no_capture
    two_threads_capture_and_several_replay
    a_shared_result_belongs_to_its_world
    a_launch_outlives_its_graph_and_can_be_awaited
    an_empty_scope_is_a_graph
    a_context_that_outlives_its_scope_keeps_no_stream_and_records_nothing
    a_default_stream_takes_no_part_in_a_scope
);
