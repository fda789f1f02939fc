//! Graphs that share the memory of their temporaries.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{GraphFamily, copy, fill, zeros};
use simtile_core::{Context, DeviceBuffer};
use simtile_driver::Entry;

use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// Through two temporaries into an output: `len` times `value`.
fn graph(family: &GraphFamily, len: usize, value: f32) -> CudaGraph<DeviceBuffer<f32>> {
    family
        .capture(|scope| {
            let (mut a, mut b) = (scope.temporary::<f32>(len)?, scope.temporary::<f32>(len)?);
            let output = scope.record(zeros::<f32>(len))?;
            scope.record(fill(a.reborrow(), value).map(drop))?;
            scope.record(copy(a.as_view(), b.reborrow()).map(drop))?;
            scope.record(copy(b.as_view(), output))
        })
        .unwrap()
}

fn used(context: &Arc<Context>) -> usize {
    let info = context.memory_info().unwrap();
    info.total - info.free
}

/// 32 sizes need at most 1.1 times the memory of the largest, outputs aside.
fn thirty_two_sizes(family: impl FnOnce(&Rig) -> GraphFamily, largest_first: bool) {
    const STEP: usize = 8 << 10;
    let rig = rig();
    let mut sizes: Vec<usize> = (1..=32).map(|i| i * STEP).collect();
    if largest_first {
        sizes.reverse();
    }
    let largest = 2 * 32 * STEP * size_of::<f32>();
    let before = used(&rig.context);
    let family = family(&rig);
    let graphs: Vec<_> = sizes.iter().map(|&len| graph(&family, len, len as f32)).collect();
    assert!(rig.context.drain(SOON).is_complete());
    let outputs: usize = sizes.iter().map(|len| len * size_of::<f32>()).sum();
    let shared = family.num_bytes().unwrap();
    assert!(shared * 10 <= largest * 11, "{shared} bytes; the largest graph has {largest}");
    // What the device says, pools rounded up.
    let all = used(&rig.context) - before;
    assert!(all <= outputs + largest * 11 / 10 + (64 << 20), "{all} bytes, of which {outputs} are outputs");
    let outputs: Vec<_> = graphs.iter().map(|graph| graph.take_output().unwrap()).collect();
    let other = rig.context.new_stream().unwrap();
    for round in 0..1 {
        for (i, graph) in graphs.iter().enumerate() {
            graph.launch().enqueue_on(if (i + round) % 3 == 0 { &other } else { &rig.stream }).unwrap();
        }
        for (len, output) in sizes.iter().zip(&outputs) {
            let values = output.to_vec(&rig.stream).unwrap();
            assert!(values.len() == *len && values.iter().all(|v| *v == *len as f32), "{len}");
        }
    }
    drop((family, graphs, outputs));
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn thirty_two_sizes_share_the_memory_of_the_largest() {
    thirty_two_sizes(|rig| GraphFamily::new(&rig.stream).unwrap(), false);
}

#[test]
fn a_capacity_is_kept_to() {
    thirty_two_sizes(|rig| GraphFamily::with_capacity(&rig.stream, 2 * 32 * (8 << 10) * 4).unwrap(), false);
}

#[test]
fn without_virtual_memory_the_largest_comes_first() {
    let family = |rig: &Rig| {
        rig.sim.mask(&[Entry::cuMemAddressReserve, Entry::cuMemCreate, Entry::cuMemMap]);
        GraphFamily::with_capacity(&rig.stream, 0).unwrap()
    };
    thirty_two_sizes(family, true);
}

#[test]
fn one_replays_at_a_time() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let family = GraphFamily::new(&rig.stream).unwrap();
    let (first, second) = (graph(&family, 1000, 1.0), graph(&family, 500, 2.0));
    let (one, two) = (first.take_output().unwrap(), second.take_output().unwrap());
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    first.launch().enqueue_on(&rig.stream).unwrap();
    let mut waiting = second.launch().on(&other);
    let woken = Arc::default();
    assert!(poll_once(&mut waiting, &woken).is_pending(), "behind the gate of the other");
    gate.open();
    block_on(waiting).unwrap();
    assert_eq!((one.to_vec(&other).unwrap()[999], two.to_vec(&other).unwrap()[499]), (1.0, 2.0));
    // A graph that shares nothing with them does not wait.
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    first.launch().enqueue_on(&rig.stream).unwrap();
    let alone = zeros::<f32>(10).then(|b| fill(b, 3.0)).graph_on(&other).unwrap();
    alone.launch().sync_on(&other).unwrap();
    gate.open();
    rig.clean();
}

#[test]
fn outputs_and_temporaries_of_several_captures_are_apart() {
    let rig = rig();
    let family = GraphFamily::new(&rig.stream).unwrap();
    let first = graph(&family, 100, 1.0);
    first.launch().enqueue_on(&rig.stream).unwrap();
    let kept = first.take_output().unwrap();
    drop(first);
    // Nothing that is captured or replayed later reaches it.
    for i in 2..6 {
        let next = graph(&family, 100 * i, i as f32);
        next.launch().enqueue_on(&rig.stream).unwrap();
    }
    assert_eq!(kept.to_vec(&rig.stream).unwrap(), [1.0; 100]);
    // A graph outlives its family, and the memory goes with the last of them.
    let last = graph(&family, 50, 9.0);
    drop((family, kept));
    last.launch().enqueue_on(&rig.stream).unwrap();
    assert_eq!(last.take_output().unwrap().to_vec(&rig.stream).unwrap(), [9.0; 50]);
    drop(last);
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn every_exit_of_a_capture_gives_the_arena_back() {
    let rig = rig();
    let family = GraphFamily::new(&rig.stream).unwrap();
    let failed = family.capture(|scope| {
        scope.temporary::<f32>(10)?;
        let inner = family.capture(|_| Ok(())).unwrap_err();
        assert!(inner.to_string().contains("another graph of this family"), "{inner}");
        assert_eq!(family.num_bytes(), None);
        Err::<(), _>(OpError::user("no"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        family.capture(|scope| -> Result<(), OpError> {
            scope.temporary::<u8>(7)?;
            panic!("boom")
        })
    }));
    assert!(panicked.is_err());
    let refused = family.capture(|scope| scope.temporary::<u64>(usize::MAX / 4).map(drop)).unwrap_err();
    assert!(refused.to_string().contains("exceed"), "{refused}");
    let empty = family.capture(|scope| scope.temporary::<u64>(0).map(|view| view.len())).unwrap();
    assert_eq!(empty.take_output(), Some(0));
    let graph = graph(&family, 10, 4.0);
    graph.launch().enqueue_on(&rig.stream).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [4.0; 10]);
    rig.clean();
}

/// Replays on several threads and streams, in orders that the seed chooses.
#[test]
fn replays_of_a_family_never_meet() {
    let sim = simulator(1);
    let context = Context::new(sim.driver(), 0).unwrap();
    let stream = context.new_stream().unwrap();
    let family = GraphFamily::with_capacity(&stream, 1 << 20).unwrap();
    let graphs: Vec<_> = (1..5).map(|i| graph(&family, 100 * i, i as f32)).collect();
    simtile_sync::thread::scope(|scope| {
        for graph in &graphs {
            let context = &context;
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                (0..10).for_each(|_| graph.launch().enqueue_on(&stream).unwrap());
            });
        }
    });
    for (i, graph) in graphs.iter().enumerate() {
        let values = graph.take_output().unwrap().to_vec(&stream).unwrap();
        assert!(values.iter().all(|v| *v == (i + 1) as f32));
    }
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

crate::schedules::explored!(
    thirty_two_sizes_share_the_memory_of_the_largest
    a_capacity_is_kept_to
    without_virtual_memory_the_largest_comes_first
    one_replays_at_a_time
    outputs_and_temporaries_of_several_captures_are_apart
    every_exit_of_a_capture_gives_the_arena_back
    replays_of_a_family_never_meet
);
