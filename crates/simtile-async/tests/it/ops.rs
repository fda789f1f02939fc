//! O1, O2: operations and what they are made of.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{DeviceOpVec, download, fill, upload, zeros};
use simtile_core::DeviceBuffer;
use simtile_driver::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn nothing_happens_before_it_is_run() {
    let rig = rig();
    let before = rig.sim.counts();
    let op = upload(vec![1.0f32; 16]).then(|b| fill(b, 2.0)).then(download);
    assert_eq!(rig.sim.counts().since(&before).total(), 0);
    assert_eq!(op.sync_on(&rig.stream).unwrap(), [2.0; 16]);
    rig.clean();
}

#[test]
fn spellings_of_then_are_one() {
    let rig = rig();
    let op = value(1).then(|x| value(x + 1)).and_then(|x| value(x * 10)).apply(|x| value(x + 3));
    assert_eq!(op.sync_on(&rig.stream).unwrap(), 23);
}

#[test]
fn maps_run_at_submission_and_see_device_values() {
    let rig = rig();
    let seen = AtomicUsize::new(0);
    let op = zeros::<f32>(5)
        .inspect(|buffer| {
            seen.store(buffer.len(), Ordering::SeqCst);
        })
        .map(|buffer| (buffer.len(), buffer))
        .try_map(|(len, buffer)| if len == 5 { Ok(buffer) } else { Err(OpError::user("wrong length")) });
    let buffer = op.enqueue_on(&rig.stream).unwrap();
    assert_eq!((seen.into_inner(), buffer.len()), (5, 5));
    let failed = zeros::<f32>(1).try_map(|_| Err::<(), _>(OpError::user("no"))).sync_on(&rig.stream);
    assert!(matches!(&failed, Err(OpError::User(why)) if why.to_string() == "no"), "{failed:?}");
}

#[test]
fn everything_of_one_operation_runs_on_one_stream() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let ids = zip!(
        with_context(|cx| value(cx.stream().id().get())),
        value(()).and_then_with_context(|cx, ()| value(cx.stream().id().get())),
    );
    let (a, b) = ids.sync_on(&other).unwrap();
    assert_eq!((a, b), (other.id().get(), other.id().get()));
    assert_eq!(with_context(|cx| value(cx.get_device_id())).sync_on(&other).unwrap(), 0);
}

#[test]
fn zips_run_in_order_and_stop_at_the_first_error() {
    let rig = rig();
    let order = std::sync::Mutex::new(Vec::new());
    let step = |n: u32| {
        let order = &order;
        value(n).inspect(move |_| order.lock().unwrap().push(n))
    };
    assert_eq!(zip!(step(1), step(2), step(3)).sync_on(&rig.stream).unwrap(), (1, 2, 3));
    let bad = value(()).try_map(|()| Err::<(), _>(OpError::user("stop")));
    assert!(zip!(step(4), bad, step(5)).sync_on(&rig.stream).is_err());
    assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn twelve_can_be_zipped_and_unzipped() {
    let rig = rig();
    let all = zip!(
        value(0u8),
        value(1u8),
        value(2u8),
        value(3u8),
        value(4u8),
        value(5u8),
        value(6u8),
        value(7u8),
        value(8u8),
        value(9u8),
        value(10u8),
        value(11u8)
    );
    let parts = all.unzip();
    assert_eq!(parts.11.sync_on(&rig.stream).unwrap(), 11);
    assert_eq!(parts.0.sync_on(&rig.stream).unwrap(), 0);
    assert_eq!(zip!(value(1u8), value("b".to_string())).first().sync_on(&rig.stream).unwrap(), 1);
    assert_eq!(zip!(value(1u8), value("b".to_string())).last().sync_on(&rig.stream).unwrap(), "b");
}

#[test]
fn host_values_are_pending_in_a_closure_and_open_for_who_waits() {
    let rig = rig();
    let ran = AtomicUsize::new(0);
    let op = upload(vec![1u32, 2, 3]).then(|buffer| {
        let values: simtile_async::transfer::Download<u32, _> = download(buffer);
        values
            .map(|pending: Pending<'static, Vec<u32>>| pending.map_ready(|values| values.iter().sum::<u32>()))
    });
    let (sum, four) = zip!(op, value(4)).sync_on(&rig.stream).unwrap();
    assert_eq!((sum, four), (6, 4));
    // Nobody waits: it does not run.
    let pending = download(DeviceBuffer::from_slice(&rig.stream, &[7u8]).unwrap())
        .map_ready(|_| ran.fetch_add(1, Ordering::SeqCst))
        .enqueue_on(&rig.stream)
        .unwrap();
    drop(pending);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    let doubled =
        download(DeviceBuffer::from_slice(&rig.stream, &[7u8]).unwrap()).map_ready(|values| values[0] * 2);
    assert_eq!(doubled.sync_on(&rig.stream).unwrap(), 14);
}

#[test]
fn a_closure_may_run_operations() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let op = upload(vec![1.0f32; 4]).then(|buffer| {
        let copy = buffer.to_vec(&other).unwrap();
        let nested = upload(copy).then(|b| fill(b, 9.0)).then(download).sync_on(&other).unwrap();
        value((buffer, nested))
    });
    let (buffer, nested) = op.sync_on(&rig.stream).unwrap();
    assert_eq!(nested, [9.0; 4]);
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [1.0; 4]);
    rig.clean();
}

#[test]
fn a_panic_of_a_closure_is_an_error_and_the_stream_goes_on() {
    let rig = rig();
    let op = zeros::<u8>(3).map(|_| -> () { panic!("boom {}", 7) });
    match op.sync_on(&rig.stream) {
        Err(OpError::Panicked { message }) => assert_eq!(message, "boom 7"),
        other => panic!("{other:?}"),
    }
    let future = zeros::<u8>(3).then(|_| -> simtile_async::Value<()> { panic!("again") }).on(&rig.stream);
    assert!(matches!(block_on(future), Err(OpError::Panicked { .. })));
    assert_eq!(upload(vec![1u8]).then(download).sync_on(&rig.stream).unwrap(), [1]);
    rig.clean();
}

#[test]
fn boxes_vectors_and_arcs() {
    let rig = rig();
    let mut ops = DeviceOpVec::with_capacity(3);
    ops.push(value(1).boxed());
    ops.push(value(1).map(|x| x + 1));
    ops.push(empty());
    assert!(ops.remove(7).is_none());
    assert_eq!(ops.len(), 3);
    assert_eq!(ops.sync_on(&rig.stream).unwrap(), [1, 2, 3]);
    let shared: Arc<DeviceBuffer<u8>> = zeros::<u8>(2).arc().sync_on(&rig.stream).unwrap();
    assert_eq!(download(shared).sync_on(&rig.stream).unwrap(), [0, 0]);

    fn empty() -> impl DeviceOp<Output = i32> {
        simtile_async::empty(|| value(3))
    }
}

#[test]
fn outputs_may_borrow() {
    let rig = rig();
    let text = String::from("kept");
    let op = value(&text).map(|text| &text[1..]).map(simtile_async::Plain);
    assert_eq!(op.sync_on(&rig.stream).unwrap(), "ept");
}

#[test]
fn an_operation_that_was_run_says_so() {
    let rig = rig();
    let mut op = value(1);
    let execution = ExecutionContext::new(&rig.stream);
    let mut future = DeviceFuture::scheduled(value(2), execution);
    let waker = Arc::default();
    assert!(matches!(poll_once(&mut future, &waker), std::task::Poll::Ready(Ok(2))));
    assert!(matches!(poll_once(&mut future, &waker), std::task::Poll::Ready(Err(OpError::Finished))));
    // The same by hand.
    assert_eq!(DeviceOp::map(std::mem::replace(&mut op, value(0)), |x| x).sync_on(&rig.stream).unwrap(), 1);
}

#[test]
fn a_launch_in_a_chain_is_one_driver_call() {
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 64]).unwrap();
    let before = rig.sim.counts();
    for _ in 0..64 {
        saxpy(&rig.saxpy, 1.0, &x, &mut y).enqueue_on(&rig.stream).unwrap();
    }
    let calls = rig.sim.counts().since(&before);
    assert_eq!(calls.of(Entry::cuLaunchKernel), 64);
    assert!(calls.total() <= 64 + 64 / 32 + 4, "{calls:?}");
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [64.0; 64]);
    rig.clean();
}

#[test]
fn a_sync_records_once_and_asks_a_little() {
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 64]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 64]).unwrap();
    rig.stream.synchronize().unwrap();
    let before = rig.sim.counts();
    saxpy(&rig.saxpy, 1.0, &x, &mut y).sync_on(&rig.stream).unwrap();
    let calls = rig.sim.counts().since(&before);
    assert_eq!(calls.of(Entry::cuLaunchKernel), 1);
    assert_eq!(calls.of(Entry::cuEventRecord), 1);
    // How often it asks while it spins is a matter of time.
    assert!(calls.of(Entry::cuEventSynchronize) <= 1, "{calls:?}");
}

#[test]
fn an_operation_that_waits_for_others_parks() {
    let rig = rig();
    assert_eq!(Stubborn(3).then(|()| value(5)).sync_on(&rig.stream).unwrap(), 5);
    assert!(matches!(Stubborn(1).try_enqueue_on(&rig.stream), Err(OpError::QueueFull { .. })));
}

/// Values and operations are arguments alike.
#[test]
fn arguments_are_values_or_operations() {
    use simtile_async::IntoDeviceOp;
    use simtile_core::DeviceBufferView;
    fn scaled(
        buffer: impl IntoDeviceOp<DeviceBuffer<f32>>,
        by: impl IntoDeviceOp<f32>,
    ) -> impl DeviceOp<Output = DeviceBuffer<f32>> {
        zip!(buffer.into_op(), by.into_op()).then(|(buffer, by)| fill(buffer, by))
    }
    fn shared_len(buffer: impl IntoDeviceOp<Arc<DeviceBuffer<f32>>>) -> impl DeviceOp<Output = usize> {
        buffer.into_op().map(|buffer| buffer.len())
    }
    fn viewed<'a>(view: impl IntoDeviceOp<DeviceBufferView<'a, f32>>) -> impl DeviceOp<Output = usize> {
        view.into_op().map(|view| view.len())
    }
    let rig = rig();
    let there = DeviceBuffer::from_slice(&rig.stream, &[0f32; 3]).unwrap();
    let there = scaled(there, 2.0f32).sync_on(&rig.stream).unwrap();
    let made = scaled(upload(vec![0f32; 3]), value(3.0f32)).sync_on(&rig.stream).unwrap();
    assert_eq!(
        (there.to_vec(&rig.stream).unwrap(), made.to_vec(&rig.stream).unwrap()),
        (vec![2.0; 3], vec![3.0; 3])
    );
    assert_eq!(viewed(there.view()).sync_on(&rig.stream).unwrap(), 3);
    let arc = Arc::new(there);
    let once = upload(vec![0f32; 5]).shared();
    let lens = [
        shared_len(&arc).sync_on(&rig.stream).unwrap(),
        shared_len(arc).sync_on(&rig.stream).unwrap(),
        shared_len(&once).sync_on(&rig.stream).unwrap(),
        shared_len(once).sync_on(&rig.stream).unwrap(),
        shared_len(upload(vec![0f32; 7]).arc()).sync_on(&rig.stream).unwrap(),
    ];
    assert_eq!(lens, [3, 3, 5, 5, 7]);
    rig.clean();
}

#[test]
fn an_arc_is_taken_apart_when_nobody_else_has_it() {
    let rig = rig();
    let shared = upload(vec![1u32; 4]).shared();
    let kept = shared.clone();
    let error = shared.clone().unwrap_arc().sync_on(&rig.stream).unwrap_err();
    assert!(matches!(error, OpError::SharedArc { holders: 2, .. }), "{error}");
    drop((shared, kept));
    let buffer = upload(vec![1u32; 4]).arc().unwrap_arc().then(|b| fill(b, 9)).sync_on(&rig.stream).unwrap();
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [9; 4]);
    let (a, b) = unzip!(value((1u32, 2u32)));
    assert_eq!((b.sync_on(&rig.stream).unwrap(), a.sync_on(&rig.stream).unwrap()), (2, 1));
    rig.clean();
}

#[test]
fn labels_stand_before_errors() {
    let rig = rig();
    let fails = || value(()).try_map(|()| Err::<(), _>(OpError::user("no")));
    let error =
        value(1).then(move |_| fails().labelled("inner")).labelled("outer").sync_on(&rig.stream).unwrap_err();
    assert_eq!(error.to_string(), "outer: inner: no");
    assert!(matches!(error.unlabelled(), OpError::User(_)));
    assert_eq!(value(3).labelled("fine").sync_on(&rig.stream).unwrap(), 3);
}

crate::schedules::explored!(
    nothing_happens_before_it_is_run
    spellings_of_then_are_one
    maps_run_at_submission_and_see_device_values
    everything_of_one_operation_runs_on_one_stream
    zips_run_in_order_and_stop_at_the_first_error
    twelve_can_be_zipped_and_unzipped
    host_values_are_pending_in_a_closure_and_open_for_who_waits
    a_closure_may_run_operations
    a_panic_of_a_closure_is_an_error_and_the_stream_goes_on
    boxes_vectors_and_arcs
    outputs_may_borrow
    an_operation_that_was_run_says_so
    a_launch_in_a_chain_is_one_driver_call
    a_sync_records_once_and_asks_a_little
    an_operation_that_waits_for_others_parks
    arguments_are_values_or_operations
    an_arc_is_taken_apart_when_nobody_else_has_it
    labels_stand_before_errors
);
