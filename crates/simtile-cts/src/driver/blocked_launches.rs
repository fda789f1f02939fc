//! What else stops while one launch waits for a place on a full stream A (driver-facts, *Queues and blocking*).

use super::blocking::{blocks, none_blocks, ready_kernel, settled};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Args, Gpu, Shape};
use crate::{cu, ensure, kernels, ok};
use simtile_driver::sys::*;
use std::sync::atomic::{AtomicU32, Ordering};

crate::frame::registry::tests! { Driver, "blocked_launches";
    record_on_the_full_stream,
    wait_on_the_full_stream,
    free_on_the_full_stream needs [Need::POOLS],
    query_of_the_full_stream,
    creating_an_event,
    destroying_an_event,
    creating_a_stream,
    device_memory,
    pinned_memory,
    module_load,
    host_function_on_another_stream,
    everything_else_goes_on needs [Need::POOLS],
}

/// More than a stream takes.
const MANY: u32 = 1100;

/// A full stream, and what calls may need.
struct Full<'a> {
    gpu: Gpu<'a>,
    full: CUstream,
    other: CUstream,
    empty: CUfunction,
    event: CUevent,
}

impl<'a> Full<'a> {
    fn new(cx: &'a Cx) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let (full, other, empty, event) = (gpu.stream()?, gpu.stream()?, ready_kernel(&gpu)?, gpu.event()?);
        ok!(cx, cuEventRecord(event, full))?;
        gpu.finishes(event, "an event on an idle stream")?;
        Ok(Self { gpu, full, other, empty, event })
    }

    /// Runs `meanwhile` while a launch of another thread waits for a place on the full stream. It is handed what opens
    /// the gate.
    fn while_blocked<T>(&self, meanwhile: impl FnOnce(&dyn Fn()) -> Check<T>) -> Check<T> {
        let gate = std::cell::RefCell::new(Some(self.gpu.gate(self.full)?));
        let open = || drop(gate.take());
        let counter = AtomicU32::new(0);
        let (gpu, empty, full) = (&self.gpu, self.empty, self.full);
        let result = threads::scope(|scope| {
            let filler = scope.spawn(|| {
                gpu.enter()?;
                for _ in 0..MANY {
                    gpu.launch(empty, Shape::ONE, full, &Args::new())?;
                    counter.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            });
            let taken = settled(&counter, MANY);
            let result = meanwhile(&open);
            open();
            filler.join().unwrap_or_else(|_| Err(Stop::fail("the filling thread panicked")))?;
            ensure!(taken < MANY, "a gated stream took {taken} launches");
            result
        })?;
        self.gpu.sync(self.full)?;
        Ok(result)
    }

    /// The call blocks until the gate is open.
    fn stops(&self, call: impl FnOnce() -> Check + Send) -> Check {
        let blocked = self.while_blocked(|open| blocks(&self.gpu, call, open))?;
        ensure!(blocked, "the call returned while a launch was blocked on a full stream");
        Ok(())
    }
}

fn record_on_the_full_stream(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| ok!(cx, cuEventRecord(full.event, full.full)))
}

fn wait_on_the_full_stream(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    let gate = full.gpu.gate(full.other)?;
    let pending = full.gpu.recorded(full.other)?;
    full.stops(|| {
        let check = ok!(cx, cuStreamWaitEvent(full.full, pending, 0));
        gate.open();
        check
    })
}

fn free_on_the_full_stream(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    let mut memory = 0;
    ok!(cx, cuMemAllocAsync(&mut memory, 4096, full.other))?;
    full.gpu.sync(full.other)?;
    full.stops(|| ok!(cx, cuMemFreeAsync(memory, full.full)))
}

fn query_of_the_full_stream(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| {
        let code = cu!(cx, cuStreamQuery(full.full));
        ensure!([CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_NOT_READY].contains(&code), "query: {code:?}");
        Ok(())
    })
}

fn creating_an_event(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| full.gpu.event().map(drop))
}

fn destroying_an_event(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| ok!(cx, cuEventDestroy(full.event)))
}

fn creating_a_stream(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| full.gpu.stream().map(drop))
}

fn device_memory(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| full.gpu.alloc(4096).map(drop))
}

fn pinned_memory(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| full.gpu.pinned(16).map(drop))
}

fn module_load(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    full.stops(|| full.gpu.module(kernels::BASIC).map(drop))
}

fn host_function_on_another_stream(cx: &Cx) -> Check {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    let full = Full::new(cx)?;
    full.stops(|| ok!(cx, cuLaunchHostFunc(full.other, Some(nothing), std::ptr::null_mut())))
}

/// Event queries, also of A's events; event synchronisation; launch, record, wait, alloc, free and graph launch on
/// another stream.
fn everything_else_goes_on(cx: &Cx) -> Check {
    let full = Full::new(cx)?;
    let (gpu, other, theirs) = (&full.gpu, full.other, full.event);
    let (ours, word) = (gpu.event()?, gpu.zeroed(4)?);
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    ok!(cx, cuStreamBeginCapture(other, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
    ok!(cx, cuMemsetD32Async(word, 6, 1, other))?;
    ok!(cx, cuStreamEndCapture(other, &mut graph))?;
    ok!(cx, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    ok!(cx, cuGraphLaunch(exec, other))?;
    gpu.sync(other)?;
    full.while_blocked(|open| {
        none_blocks(
            gpu,
            vec![
                ("a query of the full stream's event", Box::new(move || ok!(cx, cuEventQuery(theirs)))),
                ("a synchronisation with its event", Box::new(move || ok!(cx, cuEventSynchronize(theirs)))),
                (
                    "launches",
                    Box::new(|| {
                        (0..20).try_for_each(|_| gpu.launch(full.empty, Shape::ONE, other, &Args::new()))
                    }),
                ),
                (
                    "an allocation in stream order",
                    Box::new(move || {
                        let mut memory = 0;
                        ok!(cx, cuMemAllocAsync(&mut memory, 4096, other))?;
                        ok!(cx, cuMemFreeAsync(memory, other))
                    }),
                ),
                ("a graph launch", Box::new(move || ok!(cx, cuGraphLaunch(exec, other)))),
                ("a record", Box::new(move || ok!(cx, cuEventRecord(ours, other)))),
                ("a wait", Box::new(move || ok!(cx, cuStreamWaitEvent(other, ours, 0)))),
                ("work on the other stream", Box::new(move || ok!(cx, cuEventSynchronize(ours)))),
            ],
            open,
        )
    })
}
