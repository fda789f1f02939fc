//! O3, O4: futures and completion.

use crate::common::*;
use simtile_async::prelude::*;
use simtile_async::{
    CudaGraph, download, external, fill, load_function, load_module, upload, upload_shared, write, zeros,
};
use simtile_core::{DeviceBuffer, LaunchArgs, Stream};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use std::future::IntoFuture;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

#[test]
fn the_first_poll_submits_and_completion_wakes() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[1u32; 8]).unwrap();
    let waker = Arc::<Count>::default();
    let before = rig.sim.counts();
    let mut future = fill(&mut buffer, 7).on(&rig.stream);
    assert!(!future.is_submitted());
    assert_eq!(rig.sim.counts().since(&before).total(), 0);
    assert!(poll_once(&mut future, &waker).is_pending());
    assert!(future.is_submitted());
    simtile_sync::time::sleep(Duration::from_millis(20));
    assert_eq!(waker.get(), 0, "nothing happened, nobody is woken");
    gate.open();
    until("the waker", || waker.get() == 1);
    assert!(matches!(poll_once(&mut future, &waker), Poll::Ready(Ok(_))));
    drop(future);
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [7; 8]);
    rig.clean();
}

#[test]
fn only_the_latest_waker_is_woken() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let (old, new) = (Arc::<Count>::default(), Arc::<Count>::default());
    let mut future = value(1).on(&rig.stream);
    assert!(poll_once(&mut future, &old).is_pending());
    for _ in 0..3 {
        assert!(poll_once(&mut future, &new).is_pending());
    }
    gate.open();
    until("the waker", || new.get() == 1);
    assert_eq!(old.get(), 0);
    assert!(matches!(poll_once(&mut future, &new), Poll::Ready(Ok(1))));
}

#[test]
fn no_wake_up_while_nothing_happens() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let waker = Arc::<Count>::default();
    let mut future = value(1).on(&rig.stream).spin(Duration::ZERO);
    assert!(poll_once(&mut future, &waker).is_pending());
    // Beyond the reactor's activity: a parked thread asks once a millisecond.
    simtile_sync::time::sleep(Duration::from_millis(50));
    let (before, start) = (rig.sim.counts(), simtile_sync::time::now());
    simtile_sync::time::sleep(Duration::from_millis(100));
    let asked = rig.sim.counts().since(&before).of(Entry::cuEventQuery);
    // On a busy machine a sleep takes longer than it was to.
    let took = (simtile_sync::time::now() - start).as_millis() as u64;
    assert!(asked <= took + 10, "{asked} questions in {took} ms");
    assert_eq!(waker.get(), 0);
    gate.open();
    until("the waker", || waker.get() == 1);
}

#[test]
fn one_observation_wakes_everybody_before_it() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let waker = Arc::<Count>::default();
    let mut futures: Vec<_> = (0..400usize).map(|n| value(n).on(&rig.stream).spin(Duration::ZERO)).collect();
    // In any order of positions.
    for future in futures.iter_mut().rev() {
        assert!(poll_once(future, &waker).is_pending());
    }
    simtile_sync::time::sleep(Duration::from_millis(10));
    let before = rig.sim.counts();
    gate.open();
    until("all wakers", || waker.get() == 400);
    assert!(rig.sim.counts().since(&before).of(Entry::cuEventSynchronize) < 400);
    for (n, future) in futures.iter_mut().enumerate() {
        assert!(matches!(poll_once(future, &waker), Poll::Ready(Ok(got)) if got == n));
    }
}

#[test]
fn futures_made_early_are_polled_in_any_order() {
    let rig = rig();
    let streams: Vec<_> = (0..4).map(|_| rig.context.new_stream().unwrap()).collect();
    let ops: Vec<_> =
        (0..32u32).map(|n| upload(vec![n]).then(download).on(&streams[n as usize % 4])).collect();
    let all = block_on(futures::future::join_all(ops));
    for (n, values) in all.into_iter().enumerate() {
        assert_eq!(values.unwrap(), [n as u32]);
    }
    rig.clean();
}

/// fr_A12: work can be submitted before it is awaited; what was only built is not submitted.
#[test]
fn fr_a12_submitting_is_a_step_of_its_own() {
    let rig = rig();
    let mut buffers: Vec<_> =
        (0..4).map(|_| DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap()).collect();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    rig.stream.synchronize().unwrap();
    let before = rig.sim.counts();
    let mut futures: Vec<_> =
        buffers.iter_mut().map(|y| saxpy(&rig.saxpy, 2.0, &x, y).on(&rig.stream)).collect();
    assert_eq!(rig.sim.counts().since(&before).total(), 0);
    for future in &mut futures {
        future.start().unwrap();
    }
    assert_eq!(rig.sim.counts().since(&before).of(Entry::cuLaunchKernel), 4);
    for future in futures.into_iter().rev() {
        block_on(future).unwrap();
    }
    assert_eq!(buffers[3].to_vec(&rig.stream).unwrap(), [3.0; 8]);
}

#[test]
fn a_full_queue_is_pending_and_goes_on() {
    let rig = rig();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 8]).unwrap();
    let mut ran = 0;
    let refused = loop {
        match saxpy(&rig.saxpy, 1.0, &x, &mut y).try_enqueue_on(&rig.stream) {
            Ok(()) => ran += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, OpError::QueueFull { .. }), "{refused:?}");
    assert!(ran > 400, "{ran}");
    let waker = Arc::<Count>::default();
    let mut future = saxpy(&rig.saxpy, 1.0, &x, &mut y).on(&rig.stream);
    let start = simtile_sync::time::now();
    assert!(poll_once(&mut future, &waker).is_pending());
    assert!((simtile_sync::time::now() - start) < Duration::from_secs(1));
    assert!(!future.is_submitted());
    gate.open();
    until("room", || waker.get() > 0);
    block_on(future).unwrap();
    assert_eq!(y.to_vec(&rig.stream).unwrap(), [ran as f32 + 1.0; 8]);
    rig.clean();
}

#[test]
fn many_pending_futures_on_many_streams_and_threads() {
    let rig = rig();
    simtile_sync::thread::scope(|scope| {
        for _ in 0..few(8, 3) {
            scope.spawn(|| {
                let streams: Vec<_> = (0..4).map(|_| rig.context.new_stream().unwrap()).collect();
                for _ in 0..few(5, 1) {
                    let ops = (0..few(40, 8) as u32).map(|n| {
                        upload(vec![n; 3]).then(|b| fill(b, 9)).then(download).on(&streams[n as usize % 4])
                    });
                    for values in block_on(futures::future::join_all(ops)) {
                        assert_eq!(values.unwrap(), [9; 3]);
                    }
                }
            });
        }
    });
    rig.clean();
}

#[test]
fn ping_pong_loses_no_wake_up() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut buffer = zeros::<u32>(4).sync_on(&rig.stream).unwrap();
    let buffer = block_on(async {
        for round in 0..200u32 {
            let stream = if round % 2 == 0 { &rig.stream } else { &other };
            buffer = fill(buffer, round).on(stream).spin(Duration::ZERO).await.unwrap();
        }
        buffer
    });
    assert_eq!(buffer.to_vec(&rig.stream).unwrap(), [199; 4]);
    rig.clean();
}

/// Works a while, on tokio.
async fn pipeline(stream: Arc<Stream>, seed: u32) -> Result<Vec<u32>, OpError> {
    let buffer = upload(vec![seed; 100]).on(&stream).await?;
    let buffer = fill(buffer, seed + 1).on(&stream).await?;
    download(buffer).on(&stream).await
}

#[test]
fn tokio_runs_them_on_one_thread_and_on_many() {
    let rig = rig();
    let work = |rig: &Rig| {
        let streams: Vec<_> = (0..4).map(|_| rig.context.new_stream().unwrap()).collect();
        async move {
            let mut set = tokio::task::JoinSet::new();
            for n in 0..64u32 {
                set.spawn(pipeline(streams[n as usize % 4].clone(), n));
            }
            let mut got = Vec::new();
            while let Some(values) = set.join_next().await {
                got.push(values.unwrap().unwrap()[99]);
            }
            got.sort_unstable();
            assert_eq!(got, (1..65).collect::<Vec<_>>());
        }
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work(&rig));
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    many.block_on(work(&rig));
    rig.clean();
}

#[test]
fn smol_and_futures_run_them() {
    let rig = rig();
    assert_eq!(smol::block_on(pipeline(rig.stream.clone(), 4)).unwrap(), [5; 100]);
    assert_eq!(block_on(pipeline(rig.stream.clone(), 6)).unwrap(), [7; 100]);
}

#[test]
fn select_timeout_and_abort_leave_nothing_behind() {
    let rig = rig();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
        let other = rig.context.new_stream().unwrap();
        let slow = fill(DeviceBuffer::from_slice(&other, &[0u8; 64]).unwrap(), 1).on(&rig.stream);
        tokio::select! {
            _ = slow => panic!("behind a gate"),
            values = upload(vec![3u8]).then(download).on(&other) => assert_eq!(values.unwrap(), [3]),
        }
        let slow = fill(DeviceBuffer::from_slice(&other, &[0u8; 64]).unwrap(), 1).on(&rig.stream);
        assert!(tokio::time::timeout(Duration::from_millis(20), slow).await.is_err());
        let stream = rig.stream.clone();
        let task = tokio::spawn(fill(DeviceBuffer::from_slice(&other, &[0u8; 64]).unwrap(), 1).on(&stream));
        tokio::time::sleep(Duration::from_millis(20)).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        gate.open();
    });
    drop(tokio);
    assert!(rig.context.drain(Duration::from_secs(10)).is_complete());
    assert_eq!(rig.context.stats().live_allocations, 0);
    rig.clean();
}

/// fr_A5, F3: a device fault resolves everybody who waits, with the error; later operations say that the context is lost.
#[test]
fn fr_a5_a_device_fault_resolves_every_future() {
    let rig = rig();
    let others: Vec<_> = (0..4).map(|_| rig.context.new_stream().unwrap()).collect();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let gates: Vec<_> = others.iter().map(|stream| rig.sim.gate(stream.cu_stream()).unwrap()).collect();
    let wild = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 4]).unwrap();
    let mut small = DeviceBuffer::from_slice(&rig.stream, &[0.0f32; 4]).unwrap();
    let args = LaunchArgs::new().arg(1u32 << 20).arg(1.0f32).buffer(&wild).buffer_mut(&mut small);
    let config = simtile_types::LaunchConfig::for_num_elems(1 << 20);
    // SAFETY: none: it reads far beyond its buffers, which is the point.
    unsafe { rig.stream.submit().launch(&rig.saxpy, config, args) }.unwrap();
    let waker = Arc::<Count>::default();
    let mut waiting: Vec<_> = std::iter::once(&rig.stream)
        .chain(&others)
        .flat_map(|stream| (0..10).map(|n| value(n).on(stream)).collect::<Vec<_>>())
        .collect();
    for future in &mut waiting {
        assert!(poll_once(future, &waker).is_pending());
    }
    gate.open();
    for gate in gates {
        gate.open();
    }
    let start = simtile_sync::time::now();
    let mut failed = 0;
    for future in waiting {
        // Another stream's empty work may have finished before the fault.
        if let Err(error) = block_on(future) {
            let code = error.driver_error().map(|error| error.code());
            assert_eq!(code, Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), "{error}");
            failed += 1;
        }
    }
    assert!((simtile_sync::time::now() - start) < Duration::from_secs(5));
    assert!(failed >= 10, "{failed}");
    let later = fill(wild, 1.0).sync_on(&rig.stream).unwrap_err();
    assert!(later.is_lost(), "{later}");
    assert!(later.to_string().contains("lost"), "{later}");
}

#[test]
fn everything_can_be_sent() {
    fn send<T: Send>(_: &T) {}
    let rig = rig();
    let x = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let mut y = DeviceBuffer::from_slice(&rig.stream, &[1.0f32; 8]).unwrap();
    let chain = saxpy(&rig.saxpy, 1.0, &x, &mut y).then(|()| value(3));
    send(&chain);
    let future = chain.on(&rig.stream);
    send(&future);
    let _runtime = Runtime::with_driver(rig.sim.driver()).enter();
    send(&value(1).boxed().into_future());
    block_on(future).unwrap();
}

/// O4: what makes memory of its own says that the stream is full, too, and makes none.
#[test]
fn trying_to_make_memory_on_a_full_stream_waits_for_nothing() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    while fill(&mut buffer, 1).try_enqueue_on(&rig.stream).is_ok() {}
    let live = rig.context.stats().live_allocations;
    // On a thread of its own, so that the test ends if it waits.
    let (tell, told) = std::sync::mpsc::channel();
    let stream = rig.stream.clone();
    std::thread::spawn(move || {
        let full = |outcome: Result<(), OpError>| matches!(outcome, Err(OpError::QueueFull { .. }));
        assert!(full(zeros::<f32>(100).map(drop).try_enqueue_on(&stream)));
        assert!(full(upload(vec![1u8; 100]).map(drop).try_enqueue_on(&stream)));
        assert!(full(upload_shared(Arc::<[u8]>::from([1u8; 100])).map(drop).try_enqueue_on(&stream)));
        // SAFETY: it queues nothing.
        let call = unsafe { external("nothing", (), |(), accesses| accesses, |_| Ok::<_, OpError>(())) };
        assert!(full(call.workspace(64).try_enqueue_on(&stream)));
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(10)).expect("it waited for a permit");
    assert_eq!(rig.context.stats().live_allocations, live);
    gate.open();
    rig.stream.synchronize().unwrap();
    // And the stream takes them again.
    zeros::<f32>(100).map(drop).try_enqueue_on(&rig.stream).unwrap();
}

/// O4: with one permit left, a poll submits its work and asks for its end without waiting for another permit: on a one-thread executor nobody
/// would open the gate.
#[test]
fn a_poll_that_takes_the_last_permit_waits_for_no_other() {
    let rig = rig();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let mut fits = 0;
    while fill(&mut buffer, 1).try_enqueue_on(&rig.stream).is_ok() {
        fits += 1;
    }
    assert_eq!(fits, 512);
    gate.open();
    rig.stream.synchronize().unwrap();
    // On a thread of its own, so that the test ends if it does not.
    let (tell, told) = std::sync::mpsc::channel();
    let (sim, stream) = (rig.sim.clone(), rig.stream.clone());
    std::thread::spawn(move || {
        for form in 0..3 {
            let gate = sim.gate(stream.cu_stream()).unwrap();
            for _ in 0..511 {
                fill(&mut buffer, 2).enqueue_on(&stream).unwrap();
            }
            let mut future = fill(&mut buffer, 3).map(drop).on(&stream);
            let waker = Arc::<Count>::default();
            match form {
                0 => assert!(poll_once(&mut future, &waker).is_pending()),
                1 => future.start().unwrap(),
                _ => {}
            }
            assert_eq!(future.is_submitted(), form < 2);
            // Questions are answered, however many there are, and take no permit either.
            for _ in 0..600 {
                assert!(!stream.is_complete().unwrap());
            }
            let mut idle: Vec<_> = (0..600).map(|n| value(n).on(&stream)).collect();
            for future in &mut idle {
                assert!(poll_once(future, &waker).is_pending());
            }
            gate.open();
            block_on(future).unwrap();
            for (n, future) in idle.into_iter().enumerate() {
                assert_eq!(block_on(future).unwrap() as usize, n);
            }
        }
        tell.send(buffer.to_vec(&stream).unwrap()).unwrap();
    });
    let found = told.recv_timeout(Duration::from_secs(60)).expect("no poll waits");
    assert_eq!(found, [3; 8]);
    rig.clean();
}

/// A1: a future that is forgotten after its submission keeps neither the stream nor the context open.
#[test]
fn a_forgotten_future_keeps_no_stream_open() {
    let sim = simulator(1);
    let context = simtile_core::Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let stream = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let gate = sim.gate(stream.cu_stream()).unwrap();
    let mut future = fill(&mut buffer, 3).map(drop).on(&stream);
    assert!(future.execution().is_some());
    assert!(poll_once(&mut future, &Arc::<Count>::default()).is_pending());
    assert!(future.execution().is_none(), "the work alone needs it");
    std::mem::forget(future);
    gate.open();
    drop((buffer, stream, context));
    assert!(simtile_core::drain_background(Duration::from_secs(10)));
    until("the reactor's last look", || {
        simtile_core::drain_background(Duration::from_secs(10));
        sim.holdings().contexts == 0
    });
    assert_eq!((sim.holdings().streams, sim.holdings().device_bytes), (0, 0));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// O4: transfers go through blocks of pinned memory, of which there are so many: who waits for nothing waits for none of these either. Where
/// there are enough, size does not matter.
#[test]
fn trying_to_transfer_waits_for_no_block() {
    let rig = rig();
    let mut small = DeviceBuffer::<u8>::zeroed(&rig.stream, 8).unwrap();
    let mut large = DeviceBuffer::<u8>::zeroed(&rig.stream, 16 << 20).unwrap();
    rig.stream.synchronize().unwrap();
    write(&mut large, vec![7u8; 16 << 20]).map(drop).try_enqueue_on(&rig.stream).unwrap();
    assert!(large.to_vec(&rig.stream).unwrap().iter().all(|&byte| byte == 7));
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let stream = rig.stream.clone();
    let trying = std::thread::spawn(move || {
        let full = |outcome: Result<(), OpError>| matches!(outcome, Err(OpError::QueueFull { .. }));
        let mut written = 0u64;
        while write(&mut small, [1u8; 8]).map(drop).try_enqueue_on(&stream).is_ok() {
            written += 1;
        }
        // As many as there are blocks, or as the stream takes.
        assert!((8..=512).contains(&written), "{written}");
        assert!(full(upload(vec![1u8; 64 << 20]).map(drop).try_enqueue_on(&stream)));
        assert!(full(download(&large).map(drop).try_enqueue_on(&stream)));
        tell.send(()).unwrap();
        large
    });
    told.recv_timeout(Duration::from_secs(20)).expect("it waited");
    gate.open();
    rig.stream.synchronize().unwrap();
    let large = trying.join().unwrap();
    assert_eq!(download(&large).sync_on(&rig.stream).unwrap().len(), 16 << 20);
}

/// O4: however many wait for room on one stream, others go on: a thread of the runtime waits for no room.
#[test]
fn what_waits_for_room_keeps_no_thread_of_the_runtime() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::from_slice(&rig.stream, &[0u32; 8]).unwrap();
    rig.stream.synchronize().unwrap();
    let gate = rig.sim.gate(rig.stream.cu_stream()).unwrap();
    while fill(&mut buffer, 1).try_enqueue_on(&rig.stream).is_ok() {}
    let waker = Arc::<Count>::default();
    let mut waiting: Vec<_> = (0..20).map(|n| upload(vec![n; 100]).on(&rig.stream)).collect();
    for future in &mut waiting {
        assert!(poll_once(future, &waker).is_pending());
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(futures::executor::block_on(upload(vec![1u8, 2]).then(download).on(&other)));
    });
    let there = told.recv_timeout(Duration::from_secs(20)).expect("it waits behind them");
    assert_eq!(there.unwrap(), [1, 2]);
    gate.open();
    for (n, future) in waiting.into_iter().enumerate() {
        let uploaded = futures::executor::block_on(future).unwrap();
        assert_eq!(uploaded.to_vec(&rig.stream).unwrap(), [n; 100]);
    }
    rig.clean();
}

/// O4: an executable is being changed, which may take the driver long.
#[test]
fn launching_a_graph_that_is_being_changed_holds_no_poll() {
    let rig = rig();
    let other = rig.context.new_stream().unwrap();
    let graph = Arc::new(CudaGraph::capture(&rig.stream, zeros::<u32>(8).then(|b| fill(b, 3))).unwrap());
    let pause = rig.sim.pause_at(Entry::cuGraphExecUpdate, 1);
    let changed = graph.clone();
    let changing = std::thread::spawn(move || {
        changed.recapture(zeros::<u32>(8).then(|b| fill(b, 4))).map(|(_, updated)| updated)
    });
    assert!(pause.wait_reached(Duration::from_secs(20)));
    let (tell, told) = std::sync::mpsc::channel();
    let launched = graph.clone();
    std::thread::spawn(move || {
        let waker = Arc::<Count>::default();
        let tried = launched.launch().try_enqueue_on(&other);
        assert!(matches!(tried, Err(OpError::QueueFull { .. })), "{tried:?}");
        let mut future = launched.launch().on(&other);
        assert!(poll_once(&mut future, &waker).is_pending());
        assert!(waker.get() > 0, "it is polled again");
        tell.send(()).unwrap();
        futures::executor::block_on(future).unwrap();
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(20)).expect("it waited for the other thread");
    pause.release();
    assert!(changing.join().unwrap().unwrap());
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(graph.take_output().unwrap().to_vec(&rig.stream).unwrap(), [4; 8]);
}

/// O4: the driver waits for all work of the context while it loads code, so a call that waits for nothing does not begin to.
#[test]
fn trying_to_load_code_is_refused_and_loads_none() {
    let rig = rig();
    let loads =
        || rig.sim.counts().of(Entry::cuModuleLoadDataEx) + rig.sim.counts().of(Entry::cuModuleLoadData);
    let before = loads();
    let refused = load_module(SAXPY.as_bytes()).try_enqueue_on(&rig.stream).unwrap_err();
    assert!(matches!(refused, OpError::WouldWait { .. }), "{refused}");
    assert!(refused.to_string().contains("loading a module may wait"), "{refused}");
    assert_eq!(loads(), before);
    // That spoils no clone of a shared one, and what another form of call has loaded is there.
    let loaded = load_module(SAXPY.as_bytes()).shared();
    assert!(matches!(loaded.clone().try_enqueue_on(&rig.stream), Err(OpError::WouldWait { .. })));
    let module = loaded.clone().enqueue_on(&rig.stream).unwrap();
    loaded.try_enqueue_on(&rig.stream).unwrap();
    assert_eq!(loads(), before + 1);
    let function = load_function((*module).clone(), "saxpy");
    assert!(matches!(function.try_enqueue_on(&rig.stream), Err(OpError::WouldWait { .. })));
}

crate::schedules::explored!(
    the_first_poll_submits_and_completion_wakes
    only_the_latest_waker_is_woken
    no_wake_up_while_nothing_happens
    one_observation_wakes_everybody_before_it
    futures_made_early_are_polled_in_any_order
    fr_a12_submitting_is_a_step_of_its_own
    a_full_queue_is_pending_and_goes_on
    many_pending_futures_on_many_streams_and_threads
    ping_pong_loses_no_wake_up
    fr_a5_a_device_fault_resolves_every_future
    everything_can_be_sent
    a_forgotten_future_keeps_no_stream_open
    trying_to_load_code_is_refused_and_loads_none
);
