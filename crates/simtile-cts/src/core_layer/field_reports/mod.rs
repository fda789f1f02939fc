//! Public bug reports about host runtimes, as tests of the right behaviour. Each is named after its report: `fr_<id>`.

mod binding;
mod images;

use super::{Core, refused};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Gpu, SOON};
use crate::{ensure, ensure_eq, kernels, ok};
use simtile_core::{Context, ContextLimit, Device, DeviceBuffer, LaunchArgs, LaunchOptions, Stream};
use simtile_driver::sys::*;
use simtile_driver::{Driver, Entry};
use std::sync::Arc;

pub use binding::TESTS as BINDING;
pub use images::TESTS as IMAGES;

crate::frame::registry::tests! { Core, "field_reports";
    fr_f2_the_primary_context_is_retained_and_released proves ["H1"],
    fr_f2_an_adopted_context_is_not_destroyed proves ["H1"],
    fr_f5_objects_belong_to_the_device_they_were_made_by proves ["H1", "H2"] needs [Need::Devices(2)],
    fr_f7_threads_restore_what_was_current_on_them proves ["H2"] needs [Need::Simulator("pauses inside a call")],
    fr_h3_a_handled_failure_breaks_no_later_call proves ["A6", "F1"] needs [Need::Simulator("failing calls")],
    fr_n1_missing_entries_are_errors_of_their_operations proves ["F1", "F2"] needs [Need::Simulator("missing entries")],
}

fn current(cx: &Cx) -> Check<CUcontext> {
    let mut context = CUcontext(1);
    ok!(cx, cuCtxGetCurrent(&mut context))?;
    Ok(context)
}

/// A bit of everything on one stream.
fn work(stream: &Arc<Stream>) -> Check {
    let mut buffer = DeviceBuffer::from_slice(stream, &[1u32, 2, 3])?;
    buffer.fill(stream, 7)?;
    ensure_eq!(buffer.to_vec(stream)?, [7; 3], "buffer");
    Ok(())
}

fn fr_f2_the_primary_context_is_retained_and_released(cx: &Cx) -> Check {
    // Somebody else retains it first, once.
    let gpu = Gpu::new(cx)?;
    let device = Device::new(cx.driver(), 0)?;
    let state = || -> Check<i32> {
        let (mut flags, mut active) = (0, 0);
        ok!(cx, cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active))?;
        Ok(active)
    };
    let mut mine = None;
    for _ in 0..100 {
        let context = device.primary_context()?;
        ensure_eq!(context.cu_ctx(), gpu.context, "handle of the primary context");
        let stream = context.new_stream()?;
        if mine.is_none() {
            work(&stream)?;
            mine = Some(DeviceBuffer::from_slice(&stream, &[5u8; 100])?);
        }
        // A buffer alone keeps it as well.
        drop((stream, context));
    }
    drop(mine);
    ensure!(simtile_core::drain_background(SOON), "dropped handles were not given back in time");
    let retains = cx.calls_of(Entry::cuDevicePrimaryCtxRetain);
    let releases = cx.calls_of(Entry::cuDevicePrimaryCtxRelease);
    ensure_eq!(retains - releases, 1, "retains that are left: the other's");
    ensure_eq!(cx.calls_of(Entry::cuDevicePrimaryCtxReset), 0, "resets");
    ensure_eq!(state()?, 1, "the other's primary context is active");
    ok!(cx, cuCtxSetCurrent(CUcontext::NULL))?;
    ok!(cx, cuDevicePrimaryCtxRelease(gpu.device))?;
    ensure_eq!(state()?, 0, "active after the other's release");
    Ok(())
}

fn fr_f2_an_adopted_context_is_not_destroyed(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut raw = CUcontext::NULL;
    ok!(cx, cuCtxCreate(&mut raw, 0, gpu.device))?;
    for _ in 0..3 {
        // SAFETY: the context is alive and is destroyed at the end of this test.
        let adopted = unsafe { Context::borrow_raw(Device::new(cx.driver(), 0)?, raw) }?;
        work(&adopted.new_stream()?)?;
    }
    ensure!(simtile_core::drain_background(SOON), "dropped handles were not given back in time");
    ensure_eq!(cx.calls_of(Entry::cuCtxDestroy), 0, "contexts destroyed");
    let mut version = 0;
    ok!(cx, cuCtxGetApiVersion(raw, &mut version))?;
    ok!(cx, cuCtxDestroy(raw))
}

/// Which device memory belongs to, as the driver says.
fn owner_of(driver: Driver, pointer: CUdeviceptr) -> Check<i32> {
    let mut ordinal = -1;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the attribute is a 4-byte integer.
    let code = unsafe { driver.cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, pointer) };
    ensure!(code.is_ok(), "cuPointerGetAttribute returned {code:?}");
    Ok(ordinal)
}

fn fr_f5_objects_belong_to_the_device_they_were_made_by(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let second = Device::new(cx.driver(), 1)?.primary_context()?;
    let here = core.context.cu_ctx();
    ok!(cx, cuCtxSetCurrent(here))?;
    let stream = second.new_stream()?;
    let event = second.new_event()?;
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 100)?;
    let module = second.load_module(kernels::BASIC.strip_suffix(b"\0").unwrap_or_default())?;
    let fill = module.load_function("fill")?;
    ensure_eq!(current(cx)?, here, "current context after making objects of another device");
    let mut owner = CUcontext::NULL;
    ok!(cx, cuStreamGetCtx(stream.cu_stream(), &mut owner))?;
    ensure_eq!(owner, second.cu_ctx(), "context of a stream");
    ensure_eq!(owner_of(cx.driver(), buffer.cu_deviceptr())?, 1, "device of a buffer");
    // An event is recorded by streams of its own context only, a kernel launched on them only.
    ensure!(cu_record(cx, &event, &stream).is_ok(), "an event is not its own stream's");
    let code = cu_record(cx, &event, &core.stream);
    ensure_eq!(code, CUresult::CUDA_ERROR_INVALID_HANDLE, "an event on a stream of another device");
    let mut owner = CUcontext::NULL;
    ok!(cx, cuCtxSetCurrent(second.cu_ctx()))?;
    ok!(cx, cuCtxGetCurrent(&mut owner))?;
    ok!(cx, cuCtxSetCurrent(here))?;
    let mut words = buffer;
    let args = LaunchArgs::new().buffer_mut(&mut words).arg(100u32).arg(9u32);
    // SAFETY: the kernel writes the 100 words of its buffer, of which it is told.
    unsafe { stream.launch(&fill, super::launches::shape(1, 128), &args) }?;
    drop(args);
    ensure_eq!(words.to_vec(&stream)?, [9; 100], "words written on the second device");
    ensure_eq!(current(cx)?, here, "current context at the end");
    Ok(())
}

fn cu_record(cx: &Cx, event: &simtile_core::Event, stream: &Stream) -> CUresult {
    let driver = cx.driver();
    // SAFETY: both handles are alive; what does not go together is refused.
    unsafe { driver.cuEventRecord(event.cu_event(), stream.cu_stream()) }
}

/// Thread A goes from its context to the shared one and is held there; B goes there and back; then A comes back.
fn fr_f7_threads_restore_what_was_current_on_them(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let Some(simulator) = cx.simulator() else { return Err(Stop::unsupported("no simulator")) };
    let (a, b) = (core.device.create_context()?, core.device.create_context()?);
    let pause = simulator.pause_at(Entry::cuCtxGetLimit, 1);
    let there_and_back = |own: &Context| -> Check<CUcontext> {
        ok!(cx, cuCtxSetCurrent(own.cu_ctx()))?;
        core.context.limit(ContextLimit::StackSize)?;
        current(cx)
    };
    let (of_a, of_b) = threads::scope(|scope| {
        let held = scope.spawn(|| there_and_back(&a));
        let reached = pause.wait_reached(SOON);
        let passed = scope.spawn(|| there_and_back(&b)).join();
        pause.release();
        let held = held.join();
        ensure!(reached, "the first thread did not get there");
        let ended = |result: std::thread::Result<Check<CUcontext>>| {
            result.unwrap_or_else(|_| Err(Stop::fail("a thread panicked")))
        };
        Ok::<_, Stop>((ended(held)?, ended(passed)?))
    })?;
    ensure_eq!(of_a, a.cu_ctx(), "current on the thread that was held");
    ensure_eq!(of_b, b.cu_ctx(), "current on the thread that passed it");
    Ok(())
}

type Fallible = (Entry, fn(&Core<'_>) -> Check);

/// Operations and the call of theirs that fails. What the failure is called does not matter: any of them must be
/// told and then be over.
const FALLIBLE: &[Fallible] = &[
    (Entry::cuStreamCreateWithPriority, |core| Ok(core.context.new_stream().map(drop)?)),
    (Entry::cuModuleLoadDataEx, |core| core.basic().map(drop)),
    (Entry::cuModuleGetFunction, |core| Ok(core.basic()?.load_function("fill").map(drop)?)),
    (Entry::cuModuleGetGlobal, |core| Ok(core.basic()?.symbol("fill").map(drop)?)),
    (Entry::cuMemGetInfo, |core| Ok(core.context.memory_info().map(drop)?)),
    (Entry::cuCtxGetLimit, |core| Ok(core.context.limit(ContextLimit::StackSize).map(drop)?)),
    (Entry::cuCtxGetStreamPriorityRange, |core| Ok(core.context.stream_priority_range().map(drop)?)),
    (Entry::cuStreamGetPriority, |core| Ok(core.stream.priority().map(drop)?)),
    (Entry::cuMemAllocFromPoolAsync, |core| Ok(DeviceBuffer::<u32>::zeroed(&core.stream, 5000).map(drop)?)),
    (Entry::cuMemsetD8Async, |core| Ok(DeviceBuffer::<u32>::zeroed(&core.stream, 50).map(drop)?)),
    (Entry::cuMemcpyHtoDAsync, |core| Ok(DeviceBuffer::from_slice(&core.stream, &[1u32]).map(drop)?)),
    (Entry::cuLaunchHostFunc, |core| Ok(core.stream.launch_host_function(|| {})?)),
];

fn fr_h3_a_handled_failure_breaks_no_later_call(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let Some(simulator) = cx.simulator() else { return Err(Stop::unsupported("no simulator")) };
    let fill = core.basic()?.load_function("fill")?;
    let mut failed = 0;
    for &(entry, operation) in FALLIBLE {
        for code in [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_NOT_FOUND,
        ] {
            simulator.fail(entry, 1, code);
            failed += usize::from(operation(&core).is_err());
            simulator.clear_rules();
            let later = || -> Check {
                let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
                let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(4u32);
                // SAFETY: the kernel writes the 100 words of its buffer, of which it is told.
                unsafe { core.stream.launch(&fill, super::launches::shape(1, 128), &args) }?;
                drop(args);
                ensure_eq!(buffer.to_vec(&core.stream)?, [4; 100], "words written");
                Ok(())
            };
            later().map_err(|stop| stop.within(format!("after {entry:?} failed with {code:?}")))?;
            let parked = core.context.take_errors();
            ensure!(parked.is_empty(), "after {entry:?} failed with {code:?}: {parked:?} is left");
        }
    }
    // An allocation that fails is tried again, so those alone may have succeeded.
    ensure!(failed >= 3 * (FALLIBLE.len() - 1), "only {failed} operations told of their failure");
    Ok(())
}

/// A driver with the entries of CUDA 12.0 and no newer ones.
fn fr_n1_missing_entries_are_errors_of_their_operations(cx: &Cx) -> Check {
    let Some(simulator) = cx.simulator() else { return Err(Stop::unsupported("no simulator")) };
    let newer: Vec<Entry> = Entry::ALL.iter().copied().filter(|entry| entry.since() > 12000).collect();
    ensure!(newer.contains(&Entry::cuMulticastCreate), "nothing of interest is newer than CUDA 12.0");
    simulator.mask(&newer);
    let core = Core::new(cx)?;
    work(&core.stream)?;
    let fill = core.basic()?.load_function("fill")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(4u32);
    // SAFETY: the kernel writes the 100 words of its buffer, of which it is told.
    unsafe { core.stream.launch(&fill, LaunchOptions::new(super::launches::shape(1, 128)), &args) }?;
    drop(args);
    ensure_eq!(buffer.to_vec(&core.stream)?, [4; 100], "words written on an old driver");
    core.stream.record_event()?.synchronize()?;
    // What it lacks is an error that names it.
    let driver = cx.driver();
    // SAFETY: the entry is missing, so nothing is called.
    let code = unsafe { driver.cuMulticastUnbind(0, 0, 0, 0) };
    let error = refused(driver.check(Entry::cuMulticastUnbind, code), &["cuMulticastUnbind", "12.1"])?;
    ensure!(error.is_missing_entry(), "{error:?}");
    Ok(())
}
