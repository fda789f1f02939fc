//! Operations and futures.

use super::{Ops, WORDS, poll_once, wait_for};
use crate::frame::{Check, Cx, same};
use crate::gpu::{A_WHILE, SOON};
use crate::{ensure, ensure_eq};
use simtile_async::{
    AsyncKernelLaunchBuilder, DeviceOp, OpError, Runtime, Unzippable, download, external, fill, upload,
    value, write, zeros, zip,
};
use simtile_core::{DeviceBox, DeviceBuffer, PreparedLaunch};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_types::LaunchConfig1D;
use simtile_types::contract::{
    BlockRequirement, DynamicSharedMemoryRequirement, KernelLaunchContract, LaunchContractSpec,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

crate::frame::registry::tests! { Async, "async_ops";
    a_chain_runs_in_order_however_it_is_run proves ["O1"],
    nothing_happens_before_it_is_run proves ["O1"],
    a_future_is_woken_when_the_work_is_done proves ["O3", "O4"],
    a_dropped_future_keeps_what_it_owned proves ["A1"],
    a_dropped_future_keeps_what_it_borrowed proves ["A1", "A2"],
    a_shared_result_is_made_once proves ["O2"],
    zips_and_their_parts proves ["O1"],
    transfers_come_in_pieces proves ["M6", "O4"],
    a_prepared_launch_is_checked_once proves ["L2"],
    a_call_of_a_library_is_ordered_and_holds_its_handle proves ["L6"],
    boxes_are_buffers proves ["M1"],
    a_runtime_places_operations proves ["O5"],
}

fn a_chain_runs_in_order_however_it_is_run(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let stream = &ops.core.stream;
    let first = ops.step_owned(ops.words(5)?)?;
    let words = first.sync_on(stream)?;
    let words = ops.step_owned(words)?.enqueue_on(stream)?;
    let mut future = ops.step_owned(words)?.then(download).on(stream);
    same("words", &wait_for(&mut future)?, &[148; WORDS as usize])
}

fn nothing_happens_before_it_is_run(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let mut words = ops.words(5)?;
    let before = cx.calls();
    drop(ops.step(&mut words)?.on(&ops.core.stream));
    ensure_eq!(cx.calls() - before, 0, "driver calls of an operation that was not run");
    same("words", &words.to_vec(&ops.core.stream)?, &[5; WORDS as usize])
}

fn a_future_is_woken_when_the_work_is_done(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let gate = ops.core.gate(&ops.core.stream)?;
    let mut future = value(7).on(&ops.core.stream);
    ensure!(poll_once(&mut future).is_pending(), "a future behind a gate is ready");
    let opener = thread::spawn(move || {
        thread::sleep(A_WHILE);
        gate.open();
    });
    let woken: i32 = wait_for(&mut future)?;
    ensure_eq!(woken, 7, "the value");
    let again = wait_for(&mut future);
    ensure!(matches!(again, Err(OpError::Finished)), "polled again: {again:?}");
    ensure!(opener.join().is_ok(), "the gate was not opened");
    Ok(())
}

fn a_dropped_future_keeps_what_it_owned(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let words = ops.words(5)?;
    let gate = ops.core.gate(&ops.core.stream)?;
    let mut future = ops.step_owned(words)?.on(&ops.core.stream);
    ensure!(poll_once(&mut future).is_pending(), "a launch behind a gate is over");
    drop(future);
    // Whoever wants memory meanwhile gets other memory.
    let other = ops.core.context.new_stream()?;
    for _ in 0..4 {
        let values = upload(vec![9u32; WORDS as usize]).then(download).sync_on(&other)?;
        same("other memory", &values, &[9; WORDS as usize])?;
    }
    gate.open();
    ensure!(ops.core.context.drain(SOON).is_complete(), "work of a dropped future was not given back");
    ensure_eq!(ops.core.context.stats().live_allocations, 0, "allocations left over");
    Ok(())
}

fn a_dropped_future_keeps_what_it_borrowed(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let other = ops.core.context.new_stream()?;
    let mut words = ops.words(5)?;
    let gate = ops.core.gate(&ops.core.stream)?;
    let mut future = ops.step(&mut words)?.on(&ops.core.stream);
    ensure!(poll_once(&mut future).is_pending(), "a launch behind a gate is over");
    drop(future);
    words.fill(&other, 8)?;
    ensure!(!other.is_complete()?, "a fill does not follow the launch");
    gate.open();
    same("words", &words.to_vec(&other)?, &[8; WORDS as usize])
}

fn a_shared_result_is_made_once(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let other = ops.core.context.new_stream()?;
    let once = ops.step_owned(ops.words(5)?)?.shared();
    let (one, two) = (once.clone().enqueue_on(&ops.core.stream)?, once.enqueue_on(&other)?);
    ensure!(Arc::ptr_eq(&one, &two), "two results of one operation");
    same("words", &two.to_vec(&other)?, &[16; WORDS as usize])
}

fn zips_and_their_parts(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let stream = &ops.core.stream;
    let (first, second) = zip!(upload(vec![1u32; 4]), zeros::<u32>(3)).unzip();
    let second = second.then(|b| fill(b, 2)).then(download).sync_on(stream)?;
    let first = first.then(download).sync_on(stream)?;
    same("the second part", &second, &[2; 3])?;
    same("the first part", &first, &[1; 4])
}

fn transfers_come_in_pieces(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let mut random = cx.random(77);
    let values: Vec<u64> = (0..700_001).map(|_| random.bits()).collect();
    let mut buffer = DeviceBuffer::<u64>::zeroed(&ops.core.stream, values.len())?;
    wait_for(&mut write(&mut buffer, &values).on(&ops.core.stream))?;
    let back = wait_for(&mut download(&buffer).on(&ops.core.stream))?;
    same("values", &back, &values)
}

/// The contract of the kernel that steps words.
struct Step;

impl KernelLaunchContract for Step {
    type Config = LaunchConfig1D;
    const SPEC: LaunchContractSpec = LaunchContractSpec::new(
        "step",
        BlockRequirement::MaxThreads(64),
        DynamicSharedMemoryRequirement::NONE,
    );
}

fn a_prepared_launch_is_checked_once(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let wide = PreparedLaunch::<Step>::prepare(&ops.step, LaunchConfig1D::new(1, 128, 0));
    let wide = wide.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(wide.contains("128 threads a block exceed the contract's 64"), "{wide}");
    let prepared = PreparedLaunch::<Step>::prepare(&ops.step, LaunchConfig1D::new(1, 64, 0))?;
    let mut words = ops.words(5)?;
    let before = cx.calls();
    for _ in 0..2 {
        let builder = AsyncKernelLaunchBuilder::prepared(&prepared);
        let builder = builder.write(&mut words).arg(WORDS).arg(1u32);
        // SAFETY: the kernel updates the words of its buffer, of which it is told.
        unsafe { builder.finalize_unchecked(None) }?.enqueue_on(&ops.core.stream)?;
    }
    ensure_eq!(cx.calls() - before, 2, "driver calls of two prepared launches");
    same("words", &words.to_vec(&ops.core.stream)?, &[49; WORDS as usize])
}

/// Counts its drops.
struct Handle(Arc<AtomicUsize>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn a_call_of_a_library_is_ordered_and_holds_its_handle(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let other = ops.core.context.new_stream()?;
    let closed = Arc::<AtomicUsize>::default();
    let pair = (ops.words(5)?, ops.words(0)?);
    let (from, to, bytes) = (pair.0.cu_deviceptr(), pair.1.cu_deviceptr(), pair.0.num_bytes());
    let gate = ops.core.gate(&ops.core.stream)?;
    // SAFETY: the copies read the first buffer and write the second and the workspace, in the given stream.
    let call = unsafe {
        external(
            "a copy by way of the workspace",
            pair,
            |pair: &mut (DeviceBuffer<u32>, DeviceBuffer<u32>), touches| {
                touches.read(&pair.0).write(&mut pair.1)
            },
            move |at| {
                for (to, from) in [(at.workspace, from), (to, at.workspace)] {
                    let code = at.driver.cuMemcpyDtoDAsync(to, from, bytes, at.stream);
                    if code != CUresult::CUDA_SUCCESS {
                        return Err(OpError::user(format!("{code:?}")));
                    }
                }
                Ok(())
            },
        )
    };
    let call = call.workspace(4096).holding(Handle(closed.clone()));
    let (_, copy) = call.enqueue_on(&ops.core.stream)?;
    let read = other.submit().read(&copy).awaited().order_only()?;
    thread::sleep(A_WHILE);
    ensure!(!read.is_complete()?, "a reader does not follow the call");
    ensure_eq!(closed.load(Ordering::SeqCst), 0, "handles closed while the work runs");
    gate.open();
    same("words", &copy.to_vec(&other)?, &[5; WORDS as usize])?;
    drop(copy);
    ensure!(ops.core.context.drain(SOON).is_complete(), "the call's memory was not given back");
    ensure!(simtile_core::drain_background(SOON), "the handle was not let go");
    ensure_eq!(closed.load(Ordering::SeqCst), 1, "handles closed");
    Ok(())
}

fn boxes_are_buffers(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let stream = &ops.core.stream;
    let words = ops.words(5)?;
    let id = words.allocation_id();
    let boxed: DeviceBox<[u32]> = words.into();
    let boxed = fill(boxed, 6).sync_on(stream)?;
    ensure!(boxed.allocation_id() == id, "a box is another allocation");
    let words = ops.step_owned(boxed.into_buffer())?.then(download).sync_on(stream)?;
    same("words", &words, &[19; WORDS as usize])
}

fn a_runtime_places_operations(cx: &Cx) -> Check {
    let ops = Ops::new(cx)?;
    let runtime =
        Runtime::builder().driver(cx.driver()).devices([0]).streams(2).build().map_err(OpError::from)?;
    let streams: Vec<_> = (0..4)
        .map(|_| Ok(value(()).schedule(&runtime)?.execution().map(|at| at.stream().id())))
        .collect::<Check<_>>()?;
    ensure!(streams[0] == streams[2] && streams[1] == streams[3] && streams[0] != streams[1], "{streams:?}");
    let _entered = runtime.enter();
    let before = cx.calls_of(Entry::cuLaunchKernel);
    let words = ops.step_owned(ops.words(5)?)?.then(download).sync()?;
    ensure_eq!(cx.calls_of(Entry::cuLaunchKernel) - before, 1, "launches");
    same("words", &words, &[16; WORDS as usize])
}
