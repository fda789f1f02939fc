//! G4: memoised chains.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{Memo, SubmitContext, copy, download, fill, into_future, memoize, upload, write, zeros};
use simtile_core::{DeviceBuffer, Function};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use std::task::Poll;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// `y += a x` for each `a`.
struct Chain<'a> {
    kernel: &'a Function,
    factors: &'a [f32],
    x: &'a DeviceBuffer<f32>,
    y: &'a mut DeviceBuffer<f32>,
}

impl DeviceOp for Chain<'_> {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        while let Some((&a, rest)) = self.factors.split_first() {
            match saxpy(self.kernel, a, self.x, self.y).poll_submit(cx) {
                Poll::Ready(Ok(())) => self.factors = rest,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }
}

into_future!(['a] Chain<'a>);

fn buffer(rig: &Rig, value: f32) -> DeviceBuffer<f32> {
    DeviceBuffer::from_slice(&rig.stream, &[value; 64]).unwrap()
}

fn run(rig: &Rig, memo: &Memo, factors: &[f32], x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) {
    memo.run(Chain { kernel: &rig.saxpy, factors, x, y }).enqueue_on(&rig.stream).unwrap();
}

fn read(rig: &Rig, buffer: &DeviceBuffer<f32>) -> f32 {
    let values = buffer.to_vec(&rig.stream).unwrap();
    assert!(values.iter().all(|v| *v == values[0]), "{values:?}");
    values[0]
}

#[test]
fn g4_a_chain_with_the_same_pointers_is_one_call() {
    let rig = rig();
    let memo = memoize();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0; 10], &x, &mut y);
    let before = rig.sim.counts();
    for _ in 0..5 {
        run(&rig, &memo, &[1.0; 10], &x, &mut y);
    }
    let calls = rig.sim.counts().since(&before);
    assert_eq!((calls.of(Entry::cuGraphLaunch), calls.total()), (5, 5), "{calls:?}");
    assert_eq!(read(&rig, &y), 60.0);
    let stats = memo.stats();
    assert_eq!((stats.launches, stats.built, stats.updated, stats.plain), (6, 1, 0, 0));
    rig.clean();
}

#[test]
fn g4_what_differs_is_updated_node_by_node() {
    let rig = rig();
    let memo = memoize();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0, 2.0, 3.0], &x, &mut y);
    let before = rig.sim.counts();
    run(&rig, &memo, &[1.0, 20.0, 3.0], &x, &mut y);
    let calls = rig.sim.counts().since(&before);
    assert_eq!((calls.of(Entry::cuGraphExecKernelNodeSetParams), calls.total()), (1, 2), "{calls:?}");
    assert_eq!(read(&rig, &y), 30.0);
    // Everything is new.
    let (x, mut z) = (buffer(&rig, 10.0), buffer(&rig, 0.0));
    let before = rig.sim.counts();
    run(&rig, &memo, &[1.0, 2.0, 3.0], &x, &mut z);
    let calls = rig.sim.counts().since(&before);
    assert_eq!((calls.of(Entry::cuGraphExecKernelNodeSetParams), calls.total()), (3, 4), "{calls:?}");
    assert_eq!((read(&rig, &y), read(&rig, &z)), (30.0, 60.0));
    assert_eq!((memo.stats().built, memo.stats().updated), (1, 4));
    rig.clean();
}

#[test]
fn g4_another_shape_is_built_anew() {
    let rig = rig();
    let memo = memoize();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    let mut sum = 0.0;
    for (round, factors) in
        [&[1.0, 2.0][..], &[1.0, 2.0, 3.0], &[4.0], &[], &[5.0; 40]].into_iter().enumerate()
    {
        run(&rig, &memo, factors, &x, &mut y);
        sum += factors.iter().sum::<f32>();
        assert_eq!(read(&rig, &y), sum, "round {round}");
    }
    // A chain of nothing builds nothing.
    assert_eq!(memo.stats().built, 4);
    // Another kernel in the place of a launch, then a fill.
    let module = rig.context.load_module_from_ptx_src(SAXPY).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    memo.run(Chain { kernel: &kernel, factors: &[1.0; 40], x: &x, y: &mut y })
        .enqueue_on(&rig.stream)
        .unwrap();
    assert_eq!(read(&rig, &y), sum + 40.0);
    memo.run(fill(&mut y, 3.0).map(drop)).enqueue_on(&rig.stream).unwrap();
    assert_eq!((read(&rig, &y), memo.stats().built), (3.0, 6));
    rig.clean();
}

#[test]
fn runs_in_flight_keep_their_parameters_and_are_ordered() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let memo = memoize();
    let (x, mut y, mut z) = (buffer(&rig, 1.0), buffer(&rig, 0.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0], &x, &mut y);
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    run(&rig, &memo, &[2.0], &x, &mut y);
    // On another stream, with other parameters: behind the one before, since it is the same executable.
    let chain = Chain { kernel: &rig.saxpy, factors: &[5.0], x: &x, y: &mut z };
    memo.run(chain).enqueue_on(&other).unwrap();
    let chain = Chain { kernel: &rig.saxpy, factors: &[7.0], x: &z, y: &mut y };
    memo.run(chain).enqueue_on(&other).unwrap();
    drop(x);
    gate.open();
    assert_eq!((read(&rig, &y), read(&rig, &z)), (3.0 + 35.0, 5.0));
    rig.clean();
}

#[test]
fn fills_copies_and_writes_are_pieces_and_new_buffers_are_made_as_usual() {
    let rig = rig();
    let memo = memoize();
    let (mut a, mut b, mut c) = (buffer(&rig, 0.0), buffer(&rig, 0.0), buffer(&rig, 0.0));
    for round in 0..3 {
        let value = round as f32;
        let (a, b, c) = (&mut a, &mut b, &mut c);
        let chain = fill(a, value)
            .then(|a| copy(&*a, b))
            .then(|b| write(c, vec![value + 0.5; 64]).map(move |c| (&*b, c)))
            .then(|(b, c)| saxpy(&rig.saxpy, 2.0, b, c))
            .then(|()| zip!(zeros::<f32>(16), upload(vec![value; 4])))
            .then(|(zeros, uploaded)| fill(zeros, value).map(move |made| (made, uploaded)));
        let (made, uploaded) = memo.run(chain).sync_on(&rig.stream).unwrap();
        assert_eq!(made.to_vec(&rig.stream).unwrap(), [value; 16]);
        assert_eq!(uploaded.to_vec(&rig.stream).unwrap(), [value; 4]);
    }
    assert_eq!((read(&rig, &a), read(&rig, &b), read(&rig, &c)), (2.0, 2.0, 6.5));
    assert_eq!((memo.stats().launches, memo.stats().built), (3, 1));
    rig.clean();
}

#[test]
fn what_cannot_be_memoised_is_refused_and_runs_nothing() {
    let rig = rig();
    let memo = memoize();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    let refused = memo.run(fill(&mut y, 1.0).then(|y| download(&*y))).sync_on(&rig.stream).unwrap_err();
    assert!(matches!(refused, OpError::NotCapturable { what: "a download", .. }), "{refused}");
    let graph = saxpy(&rig.saxpy, 1.0, &x, &mut y).graph_on(&rig.stream).unwrap();
    let refused = memo.run(graph.launch()).sync_on(&rig.stream).unwrap_err();
    assert!(refused.to_string().contains("cannot be part of a memoised chain"), "{refused}");
    let odd = zeros::<(u32, u16)>(4).sync_on(&rig.stream).unwrap();
    let refused = memo.run(fill(odd, (1, 2))).sync_on(&rig.stream).unwrap_err();
    assert!(refused.to_string().contains("more than four bytes"), "{refused}");
    assert_eq!(read(&rig, &y), 0.0);
    assert_eq!(memo.stats().launches, 0);
    run(&rig, &memo, &[1.0], &x, &mut y);
    assert_eq!(read(&rig, &y), 1.0);
    rig.clean();
}

#[test]
fn a_run_that_is_given_up_in_the_middle_leaves_the_memo_right() {
    let rig = rig();
    let memo = memoize();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0, 2.0, 4.0], &x, &mut y);
    // Two pieces changed, and then nothing came of it.
    let kernel = &rig.saxpy;
    let chain = Chain { kernel, factors: &[8.0, 16.0], x: &x, y: &mut y };
    let failing = chain.try_map(|()| Err::<(), _>(OpError::user("no")));
    assert_eq!(memo.run(failing).enqueue_on(&rig.stream).unwrap_err().to_string(), "no");
    let chain = Chain { kernel, factors: &[32.0], x: &x, y: &mut y };
    let mut pending = memo.run(chain.then(|()| Stubborn(3))).on(&rig.stream);
    assert!(poll_once(&mut pending, &Default::default()).is_pending());
    // The memo is in use: this one runs without it.
    let mut z = buffer(&rig, 0.0);
    run(&rig, &memo, &[64.0], &x, &mut z);
    assert_eq!((memo.stats().plain, memo.stats().launches), (1, 1));
    drop(pending);
    assert_eq!((read(&rig, &y), read(&rig, &z)), (7.0, 64.0));
    // The first two pieces are compared with what was given up.
    run(&rig, &memo, &[32.0, 16.0, 4.0], &x, &mut y);
    assert_eq!(read(&rig, &y), 7.0 + 52.0);
    let panicking =
        memo.run(Chain { kernel, factors: &[1.0], x: &x, y: &mut y }.map(|()| -> () { panic!("boom") }));
    assert!(matches!(panicking.enqueue_on(&rig.stream), Err(OpError::Panicked { .. })));
    run(&rig, &memo, &[1.0, 1.0, 1.0], &x, &mut y);
    assert_eq!(read(&rig, &y), 62.0);
    rig.clean();
}

#[test]
fn a_node_that_cannot_be_updated_has_the_graph_built_anew() {
    let rig = rig();
    let memo = memoize();
    let (x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0, 2.0, 3.0], &x, &mut y);
    rig.sim.fail(Entry::cuGraphExecKernelNodeSetParams, 2, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    run(&rig, &memo, &[10.0, 20.0, 30.0], &x, &mut y);
    assert_eq!((read(&rig, &y), memo.stats().built), (66.0, 2));
    for entry in [Entry::cuGraphInstantiateWithFlags, Entry::cuGraphAddKernelNode, Entry::cuGraphLaunch] {
        // Another shape each time, so that it is built.
        let factors = vec![1.0; if entry == Entry::cuGraphInstantiateWithFlags { 4 } else { 2 }];
        rig.sim.fail(entry, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let chain = Chain { kernel: &rig.saxpy, factors: &factors, x: &x, y: &mut y };
        let failed = memo.run(chain).enqueue_on(&rig.stream).unwrap_err();
        assert!(failed.driver_error().is_some(), "{entry:?}: {failed}");
        let sum = read(&rig, &y);
        run(&rig, &memo, &factors, &x, &mut y);
        assert_eq!(read(&rig, &y), sum + factors.len() as f32, "{entry:?}");
    }
    rig.clean();
}

#[test]
fn a_memo_keeps_what_its_last_run_touched() {
    let rig = rig();
    let memo = memoize();
    let (mut x, mut y) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0], &x, &mut y);
    assert!(!x.is_unique() && !y.is_unique(), "M4: memos count");
    memo.forget();
    assert!(x.is_unique() && y.is_unique());
    run(&rig, &memo, &[1.0], &x, &mut y);
    let (w, mut z) = (buffer(&rig, 1.0), buffer(&rig, 0.0));
    run(&rig, &memo, &[1.0], &w, &mut z);
    assert!(x.is_unique() && y.is_unique(), "replaced");
    drop((w, z));
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let mut last = rig.context.new_stream().map(|stream| zeros::<f32>(64).sync_on(&stream).unwrap()).unwrap();
    run(&rig, &memo, &[1.0], &x, &mut last);
    drop((x, y, last, memo));
    gate.open();
    assert!(rig.context.drain(SOON).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

#[test]
fn threads_share_a_memo_and_captures_contain_its_chain() {
    let rig = rig();
    let memo = memoize();
    let x = buffer(&rig, 1.0);
    simtile_sync::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let stream = rig.context.new_stream().unwrap();
                let mut y = DeviceBuffer::from_slice(&stream, &[0.0f32; 64]).unwrap();
                for _ in 0..20 {
                    let chain = Chain { kernel: &rig.saxpy, factors: &[1.0, 2.0], x: &x, y: &mut y };
                    memo.run(chain).enqueue_on(&stream).unwrap();
                }
                assert_eq!(y.to_vec(&stream).unwrap(), [60.0; 64]);
            });
        }
    });
    let stats = memo.stats();
    assert_eq!(stats.launches + stats.plain, 60);
    let mut y = buffer(&rig, 0.0);
    let chain = Chain { kernel: &rig.saxpy, factors: &[1.0, 2.0], x: &x, y: &mut y };
    let graph = memo.run(chain).graph_on(&rig.stream).unwrap();
    (0..3).for_each(|_| graph.launch().enqueue_on(&rig.stream).unwrap());
    assert_eq!((graph.nodes().unwrap(), read(&rig, &y)), (2, 9.0));
    // A memo in a memo is a part of the outer one.
    let outer = memoize();
    let chain = Chain { kernel: &rig.saxpy, factors: &[1.0, 2.0], x: &x, y: &mut y };
    outer.run(memo.run(chain)).enqueue_on(&rig.stream).unwrap();
    assert_eq!((read(&rig, &y), outer.stats().launches), (12.0, 1));
    rig.clean();
}

#[test]
fn a_context_that_a_closure_kept_records_nothing_later() {
    let rig = rig();
    let memo = memoize();
    let mut y = buffer(&rig, 0.0);
    let kept = std::sync::Mutex::new(None);
    let chain = fill(&mut y, 1.0).and_then_with_context(|execution, y| {
        *kept.lock().unwrap() = Some(execution.clone());
        value(y)
    });
    memo.run(chain.map(drop)).enqueue_on(&rig.stream).unwrap();
    let kept = kept.into_inner().unwrap().unwrap();
    let mut late = simtile_async::DeviceFuture::scheduled(fill(&mut y, 2.0).map(drop), kept);
    let Poll::Ready(Err(refused)) = poll_once(&mut late, &Default::default()) else { panic!("it was taken") };
    assert!(refused.to_string().contains("is over"), "{refused}");
    drop(late);
    memo.run(fill(&mut y, 3.0).map(drop)).enqueue_on(&rig.stream).unwrap();
    assert_eq!(read(&rig, &y), 3.0);
    rig.clean();
}

crate::schedules::explored!(
    g4_a_chain_with_the_same_pointers_is_one_call
    g4_what_differs_is_updated_node_by_node
    g4_another_shape_is_built_anew
    runs_in_flight_keep_their_parameters_and_are_ordered
    fills_copies_and_writes_are_pieces_and_new_buffers_are_made_as_usual
    what_cannot_be_memoised_is_refused_and_runs_nothing
    a_run_that_is_given_up_in_the_middle_leaves_the_memo_right
    a_node_that_cannot_be_updated_has_the_graph_built_anew
    a_memo_keeps_what_its_last_run_touched
    threads_share_a_memo_and_captures_contain_its_chain
    a_context_that_a_closure_kept_records_nothing_later
);
