//! G1, G2, G3: what ends a capture, where graphs go when they are dropped, and what a replay waits for.

mod common;

use common::start;
use core::ffi::c_void;
use simtile_core::{
    Capture, Context, ContextError, DeviceBuffer, Error, Function, GraphError, GraphExec, LaunchArgs, Script,
    Stream, StreamError,
};
use simtile_driver::sys::{CUgraphExec, CUresult};
use simtile_driver::{Entry, call};
use simtile_types::LaunchConfig;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");

fn saxpy(context: &Arc<Context>) -> Function {
    context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap()
}

/// A capture of one fill.
fn filling(stream: &Arc<Stream>, buffer: &mut DeviceBuffer<u32>) -> Capture {
    let capture = stream.begin_capture().unwrap();
    capture.submit(stream).fill(buffer, 7).unwrap();
    capture
}

fn is_capturing<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Memory(error)) if error.to_string().contains("captur"))
}

/// Waits for its sender on a thread of the device.
unsafe extern "C" fn wait_for(data: *mut c_void) {
    // SAFETY: the test gives a receiver that lives as long as the graph.
    let told = unsafe { &*data.cast::<Mutex<Receiver<()>>>() };
    let _ = told.lock().unwrap().recv_timeout(3 * SOON);
}

/// A graph that waits for the host in the middle.
fn waiting(stream: &Arc<Stream>, told: &Arc<Mutex<Receiver<()>>>) -> Capture {
    let capture = stream.begin_capture().unwrap();
    capture.keep(told.clone());
    let data = Arc::as_ptr(told).cast_mut().cast::<c_void>();
    // SAFETY: the call puts one node into the capture, whose data the graph keeps.
    let (_, outcome) = unsafe {
        capture
            .submit(stream)
            .waits_outside()
            .foreign(|driver, raw| call!(driver, cuLaunchHostFunc(raw, Some(wait_for), data)))
    }
    .unwrap();
    outcome.unwrap();
    capture
}

/// Replays while a buffer has just been filled on the same stream: another stream reads it although the replay does not end.
fn others_go_on(replay: impl FnOnce(&Arc<Stream>), context: &Arc<Context>, tell: &Sender<()>) {
    let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    stream.synchronize().unwrap();
    buffer.fill(&stream, 5).unwrap();
    replay(&stream);
    let (done, finished) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(buffer.to_vec(&other).unwrap()).unwrap());
        let read = finished.recv_timeout(SOON);
        tell.send(()).unwrap();
        assert_eq!(read.expect("what came before the replay waits for nothing of it"), [5; 16]);
    });
    stream.synchronize().unwrap();
}

#[test]
fn what_comes_before_a_replay_does_not_wait_for_what_it_waits_for() {
    let (sim, context, stream) = start();
    let (tell, told) = channel();
    let told = Arc::new(Mutex::new(told));
    let graph = waiting(&stream, &told).finish().unwrap().instantiate().unwrap();
    others_go_on(|on| drop(on.submit().graph(&graph).unwrap()), &context, &tell);
    // In a graph in a graph.
    let outer = stream.begin_capture().unwrap();
    outer.submit(&stream).graph(&graph).unwrap();
    let outer = outer.finish().unwrap().instantiate().unwrap();
    others_go_on(|on| drop(on.submit().graph(&outer).unwrap()), &context, &tell);
    // After an update, and no more after the next.
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let mut exec = filling(&stream, &mut buffer).finish().unwrap().instantiate().unwrap();
    exec.update_or_replace(waiting(&stream, &told).finish().unwrap()).unwrap();
    others_go_on(|on| drop(on.submit().graph(&exec).unwrap()), &context, &tell);
    exec.update_or_replace(filling(&stream, &mut buffer).finish().unwrap()).unwrap();
    let before = sim.counts();
    buffer.fill(&stream, 1).unwrap();
    stream.submit().graph(&exec).unwrap();
    assert_eq!(
        sim.counts().since(&before).of(Entry::cuEventRecord),
        0,
        "nothing is sealed for a plain graph"
    );
    assert_eq!(buffer.to_vec(&stream).unwrap(), [7; 16]);
    drop((graph, outer, exec));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_kernel_that_waits_outside_is_told_to_the_graph_that_it_is_put_into() {
    let (sim, context, stream) = start();
    let kernel = saxpy(&context);
    let (x, mut y) = (
        DeviceBuffer::from_slice(&stream, &[1.0f32; 16]).unwrap(),
        DeviceBuffer::<f32>::zeroed(&stream, 16).unwrap(),
    );
    let config = LaunchConfig::for_num_elems(16);
    let capture = stream.begin_capture().unwrap();
    let args = LaunchArgs::new().arg(16u32).arg(1.0f32).buffer(&x).buffer_mut(&mut y);
    let ((), node) = capture
        .name_kernel(|| {
            // SAFETY: the kernel reads 16 values of `x` and updates as many of `y`.
            unsafe { capture.submit(&stream).launch(&kernel, config, args) }.map(drop).map_err(Error::from)
        })
        .unwrap();
    let mut exec = capture.finish().unwrap().instantiate().unwrap();
    let records = |exec: &GraphExec, buffer: &mut DeviceBuffer<f32>| {
        buffer.fill(&stream, 0.0).unwrap();
        let before = sim.counts();
        stream.submit().graph(exec).unwrap();
        sim.counts().since(&before).of(Entry::cuEventRecord)
    };
    assert_eq!(records(&exec, &mut y), 0);
    let script = Script::new(&context);
    let pass = script.begin();
    let args = LaunchArgs::new().arg(16u32).arg(2.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: as above.
    unsafe { script.submit(pass, &stream).waits_outside().launch(&kernel, config, args) }.unwrap();
    exec.set_kernel(node, script.take_kernel(pass).unwrap()).unwrap();
    assert_eq!(records(&exec, &mut y), 1, "what came before it is sealed");
    assert_eq!(y.to_vec(&stream).unwrap(), [2.0; 16]);
}

#[test]
fn a_capture_that_is_dropped_where_no_call_may_be_made_ends_in_the_background() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    // In a host function.
    let capture = filling(&stream, &mut buffer);
    other.launch_host_function(move || drop(capture)).unwrap();
    other.synchronize().unwrap();
    assert!(context.drain(SOON).is_complete());
    buffer.fill(&stream, 1).unwrap();
    assert_eq!(buffer.to_vec(&other).unwrap(), [1; 16]);
    // In foreign work, dropped and finished. Until it has ended the stream takes nothing.
    for finish in [false, true] {
        let capture = filling(&stream, &mut buffer);
        let pause = sim.pause_at(Entry::cuStreamEndCapture, 1);
        // SAFETY: nothing is queued.
        let (_, outcome) = unsafe {
            other.submit().foreign(|_, _| if finish { Some(capture.finish().map(drop)) } else { None })
        }
        .unwrap();
        if let Some(outcome) = outcome {
            assert!(matches!(outcome, Err(GraphError::InHostFunction { .. })), "{outcome:?}");
        }
        assert!(pause.wait_reached(SOON), "a background thread ends it");
        assert_eq!(context.drain(Duration::ZERO).waiting, 1, "it is counted");
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| tell.send(is_capturing(&buffer.fill(&stream, 2).map_err(Error::from))).unwrap());
            let early = told.recv_timeout(Duration::from_millis(200));
            // It may also wait for that call, which holds the stream; it never runs before.
            assert!(!matches!(early, Ok(false)), "the stream takes work while it is capturing");
            pause.release();
        });
        assert!(context.drain(SOON).is_complete());
        buffer.fill(&stream, 3).unwrap();
        assert_eq!(buffer.to_vec(&other).unwrap(), [3; 16]);
    }
    assert_eq!(sim.counts().of(Entry::cuGraphDestroy), 3);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_capture_that_the_driver_does_not_end_fails_its_streams_and_is_counted() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    // Once is no harm.
    let capture = filling(&stream, &mut buffer);
    sim.fail(Entry::cuStreamEndCapture, 1, CUresult::CUDA_ERROR_UNKNOWN);
    capture.finish().unwrap();
    for drops in [false, true] {
        let stream = context.new_stream().unwrap();
        let capture = filling(&stream, &mut buffer);
        capture.add_stream(&context.new_stream().unwrap()).unwrap();
        sim.fail(Entry::cuStreamEndCapture, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        sim.fail(Entry::cuStreamEndCapture, 2, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        if drops {
            drop(capture);
        } else {
            let error = capture.finish().unwrap_err();
            assert!(matches!(error, GraphError::Driver { .. }), "{error}");
        }
        let refused = stream.submit().awaited().order_only().unwrap_err();
        assert!(matches!(refused, StreamError::Failed { .. }), "{refused}");
        assert_eq!(context.stats().failed_destroys, 1 + u64::from(drops));
    }
    buffer.fill(&other, 4).unwrap();
    assert_eq!(buffer.to_vec(&other).unwrap(), [4; 16]);
}

#[test]
fn streams_that_cannot_take_part_are_refused_and_the_capture_goes_on() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let capture = filling(&stream, &mut buffer);
    for default in [context.legacy_default_stream(), context.per_thread_default_stream()] {
        let refused = capture.add_stream(&default).unwrap_err();
        assert!(
            matches!(&refused, StreamError::Refused { what, .. } if what.contains("default")),
            "{refused}"
        );
    }
    // Conditions of a stream that is not, or not yet, one of its streams.
    let theirs = other.begin_capture().unwrap();
    for stream in [&other, &context.new_stream().unwrap()] {
        let refused = capture.condition(stream, 0).unwrap_err();
        assert!(matches!(refused, GraphError::Stream(StreamError::Refused { .. })), "{refused}");
    }
    let kept = context.new_stream().unwrap();
    capture.add_stream(&kept).unwrap();
    let graph = capture.finish().unwrap().instantiate().unwrap();
    stream.submit().graph(&graph).unwrap();
    assert_eq!(buffer.to_vec(&kept).unwrap(), [7; 16]);
    drop(theirs);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn what_others_have_of_a_capture_that_ended_records_nothing() {
    let (_sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let capture = filling(&stream, &mut buffer);
    let graph = capture.end().unwrap();
    let ended =
        |error: &StreamError| matches!(error, StreamError::Refused { what, .. } if what.contains("ended"));
    let refused = capture.submit(&stream).fill(&mut buffer, 9).unwrap_err();
    assert!(refused.to_string().contains("has ended"), "{refused}");
    assert!(ended(&capture.add_stream(&context.new_stream().unwrap()).unwrap_err()));
    assert!(matches!(capture.condition(&stream, 0), Err(GraphError::Stream(error)) if ended(&error)));
    assert!(matches!(capture.end(), Err(GraphError::NotUpdatable { .. })));
    capture.abandon();
    stream.submit().graph(&graph.instantiate().unwrap()).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [7; 16]);
}

/// Two launches of a kernel on buffers, of which the first is named, and what sets it to others.
struct Named {
    kernel: Function,
    stream: Arc<Stream>,
    exec: GraphExec,
    node: simtile_core::KernelNode,
}

impl Named {
    fn new(stream: &Arc<Stream>, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) -> Self {
        let kernel = saxpy(stream.context());
        let capture = stream.begin_capture().unwrap();
        let args = LaunchArgs::new().arg(16u32).arg(1.0f32).buffer(x).buffer_mut(y);
        let ((), node) = capture
            .name_kernel(|| {
                let config = LaunchConfig::for_num_elems(16);
                // SAFETY: the kernel reads 16 values of `x` and updates as many of `y`.
                let done = unsafe { capture.submit(stream).launch(&kernel, config, args) };
                done.map(drop).map_err(Error::from)
            })
            .unwrap();
        let exec = capture.finish().unwrap().instantiate().unwrap();
        Self { kernel, stream: stream.clone(), exec, node }
    }

    fn set(&mut self, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) -> Result<(), GraphError> {
        let script = Script::new(self.stream.context());
        let pass = script.begin();
        let args = LaunchArgs::new().arg(16u32).arg(1.0f32).buffer(x).buffer_mut(y);
        let config = LaunchConfig::for_num_elems(16);
        // SAFETY: as above.
        unsafe { script.submit(pass, &self.stream).launch(&self.kernel, config, args) }.unwrap();
        self.exec.set_kernel(self.node, script.take_kernel(pass).unwrap())
    }
}

/// G3, F1: a change that failed and could not be taken back. Nothing is made of a graph that may reach what nobody keeps.
#[test]
fn a_graph_whose_kernel_could_not_be_put_back_is_given_up() {
    let failure = CUresult::CUDA_ERROR_INVALID_VALUE;
    let (sim, context, stream) = start();
    let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 16]).unwrap();
    let new = || DeviceBuffer::<f32>::zeroed(&stream, 16).unwrap();
    let (mut y, mut z) = (new(), new());
    let mut graph = Named::new(&stream, &x, &mut y);
    // The template takes the new arguments, the executable does not, another one cannot be made, and the old arguments are refused.
    sim.fail(Entry::cuGraphExecKernelNodeSetParams, 1, failure);
    sim.fail(Entry::cuGraphInstantiateWithFlags, 1, failure);
    sim.fail(Entry::cuGraphKernelNodeSetParams, 2, failure);
    sim.fail(Entry::cuGraphKernelNodeSetParams, 3, failure);
    let error = graph.set(&x, &mut z).unwrap_err();
    assert!(matches!(error, GraphError::NotUpdatable { .. }), "{error}");
    assert!(z.is_unique(), "it is nobody's but ours");
    drop(z);
    assert!(context.drain(SOON).is_complete());
    assert_eq!(graph.exec.cu_graph_exec(), CUgraphExec::NULL);
    // Nothing runs with the address that was given back.
    let mut w = new();
    for refused in [
        graph.set(&x, &mut w).unwrap_err(),
        stream.submit().graph(&graph.exec).unwrap_err(),
        graph.exec.update(filling_floats(&stream, &mut w)).unwrap_err(),
    ] {
        assert!(matches!(refused, GraphError::NotUpdatable { .. }), "{refused}");
    }
    // Other work as a whole brings it back.
    assert!(!graph.exec.update_or_replace(filling_floats(&stream, &mut w)).unwrap());
    stream.submit().graph(&graph.exec).unwrap();
    assert_eq!(w.to_vec(&stream).unwrap(), [7.0; 16]);
    assert_eq!(y.to_vec(&stream).unwrap(), [0.0; 16]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// The same if the template itself answers with failures: the executable is as before, and no other is made of the template.
#[test]
fn an_executable_goes_on_whose_template_is_given_up() {
    let failure = CUresult::CUDA_ERROR_INVALID_VALUE;
    let (sim, _context, stream) = start();
    let x = DeviceBuffer::from_slice(&stream, &[1.0f32; 16]).unwrap();
    let new = || DeviceBuffer::<f32>::zeroed(&stream, 16).unwrap();
    let (mut y, mut z) = (new(), new());
    let mut graph = Named::new(&stream, &x, &mut y);
    (1..=3).for_each(|nth| sim.fail(Entry::cuGraphKernelNodeSetParams, nth, failure));
    assert!(graph.set(&x, &mut z).unwrap_err().to_string().contains("INVALID_VALUE"));
    stream.submit().graph(&graph.exec).unwrap();
    // It can still be changed where the driver does so, and else it ends.
    graph.set(&x, &mut z).unwrap();
    stream.submit().graph(&graph.exec).unwrap();
    assert_eq!((y.to_vec(&stream).unwrap()[0], z.to_vec(&stream).unwrap()[0]), (1.0, 1.0));
    let capture = stream.begin_capture().unwrap();
    let refused = capture.submit(&stream).graph(&graph.exec).unwrap_err();
    assert!(matches!(refused, GraphError::NotUpdatable { .. }), "no child of it: {refused}");
    drop(capture);
    sim.fail(Entry::cuGraphExecKernelNodeSetParams, 1, failure);
    assert!(matches!(graph.set(&x, &mut y), Err(GraphError::NotUpdatable { .. })));
    assert!(matches!(stream.submit().graph(&graph.exec), Err(GraphError::NotUpdatable { .. })));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

fn filling_floats(stream: &Arc<Stream>, buffer: &mut DeviceBuffer<f32>) -> simtile_core::CapturedGraph {
    let capture = stream.begin_capture().unwrap();
    capture.submit(stream).fill(buffer, 7.0).unwrap();
    capture.finish().unwrap()
}

/// Graphs, executables and memoised chains that are dropped where no call may be made, or takes too long.
#[test]
fn graphs_that_are_dropped_elsewhere_are_destroyed_in_the_background() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let mut all = || {
        let captured = filling(&stream, &mut buffer).finish().unwrap();
        let exec = filling(&stream, &mut buffer).finish().unwrap().instantiate().unwrap();
        let script = Script::new(&context);
        let pass = script.begin();
        script.submit(pass, &stream).fill(&mut buffer, 3).unwrap();
        stream.submit().script(&script, pass).unwrap();
        (captured, exec, script)
    };
    let destroyed = || {
        let counts = sim.counts();
        (counts.of(Entry::cuGraphDestroy), counts.of(Entry::cuGraphExecDestroy))
    };
    let inside = all();
    stream.launch_host_function(move || drop(inside)).unwrap();
    stream.synchronize().unwrap();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(destroyed(), (3, 2), "in a host function");
    let inside = all();
    // SAFETY: nothing is queued.
    unsafe { stream.submit().foreign(|_, _| drop(inside)) }.unwrap();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(destroyed(), (6, 4), "in foreign work");
    let inside = all();
    let pause = sim.pause_at(Entry::cuGraphExecDestroy, 1);
    simtile_core::with_drops_elsewhere(|| drop(inside));
    assert!(pause.wait_reached(SOON), "not on a thread that polls");
    assert!(context.drain(Duration::ZERO).waiting > 0, "what is not done is counted");
    pause.release();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(destroyed(), (9, 6), "in a poll");
    // What the driver keeps is counted.
    let (captured, exec, script) = all();
    for entry in [Entry::cuGraphDestroy, Entry::cuGraphExecDestroy] {
        (1..=3).for_each(|nth| sim.fail(entry, nth, CUresult::CUDA_ERROR_UNKNOWN));
    }
    drop((captured, exec, script));
    assert_eq!(context.stats().failed_destroys, 5, "a graph, and two executables with their graphs");
}

#[test]
fn a_pass_that_is_over_is_refused_at_its_end() {
    let (_sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let script = Script::new(&context);
    let pass = script.begin();
    script.submit(pass, &stream).fill(&mut buffer, 3).unwrap();
    let newer = script.begin();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let refused = stream.submit().script(&script, pass).unwrap_err();
        tell.send((refused, stream.submit().script(&script, newer).is_ok())).unwrap();
    });
    let (refused, next) = told.recv_timeout(SOON).expect("it answers");
    assert!(matches!(refused, GraphError::NotUpdatable { .. }) && next, "{refused}");
}

#[test]
fn what_became_of_a_chain_is_known_while_another_thread_launches_it() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let script = Script::new(&context);
    let mut pass = |value: u32| {
        let pass = script.begin();
        script.submit(pass, &stream).fill(&mut buffer, value).unwrap();
        pass
    };
    stream.submit().script(&script, pass(1)).unwrap();
    let next = pass(2);
    let pause = sim.pause_at(Entry::cuGraphLaunch, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| stream.submit().script(&script, next).unwrap());
        assert!(pause.wait_reached(SOON));
        let stats = script.stats();
        assert_eq!((stats.launches, stats.built, stats.updated_nodes, script.len()), (1, 1, 1, 1));
        // It is given up when the launch is over.
        script.forget();
        pause.release();
    });
    assert_eq!((script.stats().launches, script.len()), (2, 0));
    assert!(buffer.is_unique(), "nothing is kept");
    assert_eq!(buffer.to_vec(&stream).unwrap(), [2; 16]);
}

/// A graph would reach a staging block at each replay, when somebody else has it.
#[test]
fn transfers_through_staging_blocks_are_refused_in_captures_and_chains() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1u32; 16]).unwrap();
    context.make_staging_block(64).unwrap();
    let mut block = context.try_staging_block(64).unwrap().unwrap();
    let script = Script::new(&context);
    let pass = script.begin();
    let capture = stream.begin_capture().unwrap();
    let before = sim.counts();
    let source = [9u32; 16];
    let outcomes = [
        capture.submit(&stream).upload(&mut block, &source, &buffer.view_mut(), 0, 64).map(drop),
        capture.submit(&stream).download(buffer.view(), &mut block, 0, 64).map(drop),
        script.submit(pass, &stream).upload(&mut block, &source, &buffer.view_mut(), 0, 64).map(drop),
        script.submit(pass, &stream).download(buffer.view(), &mut block, 0, 64).map(drop),
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("cannot be recorded"), "{error}");
    }
    assert_eq!(sim.counts().since(&before).total(), 0);
    assert!(block.flying().is_none(), "the block is as before");
    capture.finish().unwrap();
    stream.submit().upload(&mut block, &source, &buffer.view_mut(), 0, 64).unwrap().wait().unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), source);
}

/// What panics while it is recorded takes nothing from the stream: the capture goes on, and ends as any other.
#[test]
fn a_panic_in_foreign_work_that_is_recorded_leaves_the_capture_as_it_was() {
    let (sim, context, stream) = start();
    let other = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let panics = |capture: &Capture, on: &Arc<Stream>| {
        let run = || {
            // SAFETY: it queues nothing.
            unsafe { capture.submit(on).foreign(|_, _| std::panic::resume_unwind(Box::new("planned"))) }
                .map(|(_, ())| ())
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    };
    for give_up in [false, true] {
        let capture = stream.begin_capture().unwrap();
        panics(&capture, &stream);
        capture.submit(&stream).fill(&mut buffer, 7).unwrap();
        capture.add_stream(&other).unwrap();
        panics(&capture, &other);
        if give_up {
            drop(capture);
        } else {
            stream.submit().graph(&capture.finish().unwrap().instantiate().unwrap()).unwrap();
            assert_eq!(buffer.to_vec(&other).unwrap(), [7; 16]);
        }
        buffer.fill(&stream, 8).unwrap();
        assert_eq!(buffer.to_vec(&other).unwrap(), [8; 16], "both streams take work again");
    }
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// The driver would spoil the capture.
#[test]
fn waiting_for_everything_is_refused_beside_a_capture() {
    let (sim, context, stream) = start();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 16).unwrap();
    let capture = filling(&stream, &mut buffer);
    let error = context.synchronize_all().unwrap_err();
    assert!(matches!(error, ContextError::Capturing { captures: 1, .. }), "{error}");
    assert_eq!(sim.counts().of(Entry::cuCtxSynchronize), 0);
    capture.finish().unwrap();
    context.synchronize_all().unwrap();
    // One that does not begin counts for nothing.
    assert!(context.legacy_default_stream().begin_capture().is_err());
    sim.fail(Entry::cuStreamBeginCapture, 1, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(stream.begin_capture().is_err());
    context.synchronize_all().unwrap();
    drop(stream.begin_capture().unwrap());
    context.synchronize_all().unwrap();
}

/// The driver goes on capturing, whatever is tried: the context ends all the same, and nobody goes on asking.
#[test]
fn a_stream_that_goes_on_capturing_keeps_no_context() {
    let sim = simtile_sim::Simulator::builder().quiet().build();
    let context = simtile_core::Device::new(sim.driver(), 0).unwrap().create_context().unwrap();
    let stream = context.new_stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    sim.fail(Entry::cuStreamEndCapture, 1, CUresult::CUDA_ERROR_UNKNOWN);
    sim.fail(Entry::cuStreamEndCapture, 2, CUresult::CUDA_ERROR_UNKNOWN);
    drop(capture);
    drop(stream);
    drop(context);
    assert!(simtile_core::drain_background(SOON));
    let held = sim.holdings();
    assert_eq!((held.contexts, held.streams, held.events), (0, 0, 0));
    let calls = sim.counts().total();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sim.counts().total(), calls, "nothing pending, nothing wakes");
}

/// Where no call may be made nothing waits for the lock under which foreign code runs.
#[test]
fn foreign_code_that_is_recorded_makes_no_conditions() {
    let (_sim, _context, stream) = start();
    let capture = stream.begin_capture().unwrap();
    let condition = capture.condition(&stream, 1).unwrap();
    // SAFETY: nothing is queued.
    let (_, (made, begun)) = unsafe {
        capture.submit(&stream).foreign(|_, _| {
            let begun = capture.begin_conditional(&condition, simtile_core::Conditional::If);
            (capture.condition(&stream, 0).map(drop), begun.map(drop))
        })
    }
    .unwrap();
    for refused in [made, begun] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("host function"), "{error}");
    }
    drop(capture);
    stream.synchronize().unwrap();
}
