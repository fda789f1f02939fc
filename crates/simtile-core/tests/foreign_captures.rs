//! G3: nothing that we do on whatever thread disturbs a capture that somebody else has begun in global mode.

mod common;

use common::start;
use simtile_core::{
    Context, ContextLimit, DeviceBuffer, LaunchArgs, MemPool, PinnedHostBuffer, Script, Stream,
};
use simtile_driver::sys::{CUgraph, CUstream, CUstreamCaptureMode as Mode};
use simtile_driver::{Driver, call};
use simtile_types::LaunchConfig;
use std::sync::Arc;

/// Switches the calling thread's mode; the old one comes back.
fn switch(driver: Driver, mut mode: Mode) -> Mode {
    // SAFETY: the pointer is valid for the call.
    unsafe { call!(driver, cuThreadExchangeStreamCaptureMode(&mut mode)) }.unwrap();
    mode
}

/// A capture of somebody else's, in global mode.
struct Foreign(Driver, CUstream);

impl Foreign {
    fn begin(driver: Driver) -> Self {
        let mut stream = CUstream::NULL;
        // SAFETY: the out-pointer is valid for the call; the stream lives as long as the simulator.
        unsafe {
            call!(driver, cuStreamCreate(&mut stream, 1)).unwrap();
            call!(driver, cuStreamBeginCapture(stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL)).unwrap();
        }
        Self(driver, stream)
    }

    /// Whether it is as it was begun.
    fn end(self) -> bool {
        let mut graph = CUgraph::NULL;
        // SAFETY: the stream is alive, the out-pointer is valid for the call.
        unsafe { call!(self.0, cuStreamEndCapture(self.1, &mut graph)) }.is_ok()
    }
}

/// A kernel that does nothing, with local memory of its own.
const LOCAL: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing()
{
    .local .align 16 .b8 stack[4096];
    ret;
}
";

/// Queries, waits, allocations, loads, graphs, drops.
fn everything(context: &Arc<Context>, stream: &Arc<Stream>) {
    let kernel = context.load_module_from_ptx_src(LOCAL).unwrap().load_function("nothing").unwrap();
    context.set_limit(ContextLimit::StackSize, 8192).unwrap();
    let script = Script::new(context);
    let own = context.new_stream().unwrap();
    let capture = own.begin_capture().unwrap();
    let config = LaunchConfig::for_num_elems(1);
    let pass = script.begin();
    // SAFETY: the kernel touches nothing.
    unsafe {
        capture.submit(&own).launch(&kernel, config, LaunchArgs::new()).unwrap();
        script.submit(pass, stream).launch(&kernel, config, LaunchArgs::new()).unwrap();
    }
    let graph = capture.finish().unwrap().instantiate().unwrap();
    stream.submit().graph(&graph).unwrap();
    stream.submit().script(&script, pass).unwrap();
    drop((graph, script, kernel));
    drop(PinnedHostBuffer::<u32>::zeroed(context, 10).unwrap());
    drop(MemPool::builder(context).build().unwrap());
    let mut buffer = DeviceBuffer::from_slice(stream, &[1u32; 64]).unwrap();
    let done = stream.submit().fill(&mut buffer, 7).unwrap();
    while !done.is_complete().unwrap() {}
    stream.submit().read(&buffer).awaited().order_only().unwrap().wait().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(buffer.to_vec(&context.new_stream().unwrap()).unwrap(), [7; 64]);
}

#[test]
fn captures_of_others_go_on_on_every_thread() {
    let (sim, context, stream) = start();
    // The driver's own calls want a context.
    common::set_current(sim.driver(), context.cu_ctx());
    let foreign = Foreign::begin(sim.driver());
    everything(&context, &stream);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| everything(&context, &context.new_stream().unwrap()));
        }
    });
    assert!(foreign.end(), "the capture was disturbed");
}

#[test]
fn a_thread_that_others_switch_to_and_fro_is_switched_again() {
    let (sim, context, stream) = start();
    let driver = sim.driver();
    common::set_current(driver, context.cu_ctx());
    // A fresh thread: nothing of ours has run there.
    std::thread::scope(|scope| {
        let on_it = || {
            common::set_current(driver, context.cu_ctx());
            // Somebody's guard around our calls.
            let before = switch(driver, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
            everything(&context, &stream);
            switch(driver, before);
            let foreign = Foreign::begin(driver);
            everything(&context, &stream);
            assert!(foreign.end(), "the capture was disturbed after a guard");
            // From then on it stays relaxed, and guards put that back.
            assert_eq!(
                switch(driver, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                Mode::CU_STREAM_CAPTURE_MODE_RELAXED
            );
            switch(driver, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
            let foreign = Foreign::begin(driver);
            everything(&context, &stream);
            assert!(foreign.end(), "the capture was disturbed");
        };
        scope.spawn(on_it).join().unwrap();
    });
}
