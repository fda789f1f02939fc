//! Public bug reports about host runtimes, as tests of the right behaviour. Each is named after its report: `fr_<id>`.

use super::{Core, refused};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::{Gpu, SOON};
use crate::{artifacts, ensure, ensure_eq, kernels, ok};
use simtile_core::{
    Context, ContextLimit, Device, DeviceBuffer, LaunchArgs, LaunchOptions, ModuleError, Stream,
};
use simtile_driver::sys::*;
use simtile_driver::{Driver, Entry};
use std::sync::Arc;

crate::frame::registry::tests! { Core, "field_reports";
    fr_f2_the_primary_context_is_retained_and_released proves ["H1"],
    fr_f2_an_adopted_context_is_not_destroyed proves ["H1"],
    fr_f3_every_operation_binds_its_own_context proves ["H2"] needs [Need::Devices(2)],
    fr_f5_objects_belong_to_the_device_they_were_made_by proves ["H1", "H2"] needs [Need::Devices(2)],
    fr_f7_threads_restore_what_was_current_on_them proves ["H2"] needs [Need::Simulator("pauses inside a call")],
    fr_h3_a_handled_failure_breaks_no_later_call proves ["A6", "F1"] needs [Need::Simulator("failing calls")],
    fr_l2_a_failed_load_leaves_nothing_to_unload proves ["H5"] needs [Need::Simulator("failing calls")],
    fr_l3_newer_ptx_is_an_error_that_says_so proves ["H5", "F2"],
    fr_l4_broken_images_never_reach_the_driver proves ["H5", "F2"],
    fr_l5_load_errors_tell_causes_apart proves ["H5", "F2"],
    fr_l8_the_log_options_reach_the_driver proves ["H5"],
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

type Operation = (&'static str, fn(&Cx, &Objects) -> Check);

/// Objects of device 0, made before.
struct Objects {
    context: Arc<Context>,
    stream: Arc<Stream>,
    other: Arc<Stream>,
}

const OPERATIONS: &[Operation] = &[
    ("a stream", |_, on| work(&on.context.new_stream()?)),
    ("a stream with a priority", |_, on| Ok(on.context.new_stream_with_priority(0)?.synchronize()?)),
    ("a priority", |_, on| Ok(on.stream.priority().map(drop)?)),
    ("an event", |_, on| {
        let event = on.context.new_event()?;
        event.record(&on.stream)?;
        on.other.wait(&event)?;
        Ok(event.synchronize()?)
    }),
    ("timed events", |_, on| {
        let start = on.stream.record_timed_event()?;
        let end = on.stream.record_timed_event()?;
        on.stream.synchronize()?;
        ensure!(start.elapsed_time(&end)? >= 0.0, "time runs backwards");
        Ok(())
    }),
    ("a buffer", |cx, on| {
        let buffer = DeviceBuffer::<u32>::zeroed(&on.stream, 100)?;
        ensure_eq!(owner_of(cx.driver(), buffer.cu_deviceptr())?, 0, "device of a buffer");
        Ok(())
    }),
    ("copies", |_, on| {
        let buffer = DeviceBuffer::from_slice(&on.stream, &[1u8; 2_000_000])?;
        let mut second = DeviceBuffer::<u8>::zeroed(&on.other, 2_000_000)?;
        second.copy_from(&on.other, &buffer)?;
        ensure!(second.to_vec(&on.stream)?.iter().all(|&byte| byte == 1), "bytes of a copy");
        Ok(())
    }),
    ("fills", |_, on| {
        let mut buffer = DeviceBuffer::<[f32; 3]>::zeroed(&on.stream, 9)?;
        buffer.fill(&on.other, [1.0, 2.0, 3.0])?;
        buffer.zero(&on.stream)?;
        ensure_eq!(buffer.to_vec(&on.stream)?, [[0.0; 3]; 9], "zeroes");
        Ok(())
    }),
    ("a launch", |_, on| {
        let image = kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
        let fill = on.context.load_module(image)?.load_function("fill")?;
        let mut buffer = DeviceBuffer::<u32>::zeroed(&on.stream, 100)?;
        let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(4u32);
        // SAFETY: the kernel writes the 100 words of its buffer, of which it is told.
        unsafe { on.stream.launch(&fill, super::launches::shape(1, 128), &args) }?;
        drop(args);
        ensure_eq!(buffer.to_vec(&on.stream)?, [4; 100], "words written");
        Ok(())
    }),
    ("variables", |_, on| {
        let image = kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default();
        let counter = on.context.load_module(image)?.symbol("counter")?;
        counter.write(&on.stream, 0, &[3u32])?;
        ensure_eq!(counter.read::<u32>(&on.stream, 0, 1)?, [3], "a variable");
        Ok(())
    }),
    ("limits", |_, on| {
        let stack = on.context.limit(ContextLimit::StackSize)?;
        on.context.set_limit(ContextLimit::StackSize, stack)?;
        Ok(())
    }),
    ("memory of the device", |_, on| Ok(on.context.memory_info().map(drop)?)),
    ("priorities of the device", |_, on| Ok(on.context.stream_priority_range().map(drop)?)),
    ("host functions", |_, on| {
        on.stream.launch_host_function(|| {})?;
        Ok(on.stream.synchronize()?)
    }),
    ("waiting for everything", |_, on| Ok(on.context.synchronize_all()?)),
    ("freed memory", |_, on| {
        drop(DeviceBuffer::<u32>::zeroed(&on.stream, 100)?);
        Ok(on.stream.synchronize()?)
    }),
];

fn fr_f3_every_operation_binds_its_own_context(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = Device::new(cx.driver(), 1)?.primary_context()?;
    let (stream, second) = (core.context.new_stream()?, core.context.new_stream()?);
    let objects = Objects { context: core.context.clone(), stream, other: second };
    let all = |before: CUcontext| -> Check {
        for (what, operation) in OPERATIONS {
            ok!(cx, cuCtxSetCurrent(before))?;
            operation(cx, &objects).map_err(|stop| stop.within(format!("{what}, {before:?} current")))?;
            let after = current(cx)?;
            // A thread that had no context may keep ours.
            let kept = after == before || before.is_null() && after == core.context.cu_ctx();
            ensure!(kept, "{what} left {after:?} current instead of {before:?}");
        }
        Ok(())
    };
    all(other.cu_ctx())?;
    let fresh = threads::scope(|scope| scope.spawn(|| all(CUcontext::NULL)).join());
    fresh.unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
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

fn fr_l2_a_failed_load_leaves_nothing_to_unload(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let Some(simulator) = cx.simulator() else { return Err(Stop::unsupported("no simulator")) };
    let unloads = || {
        let done = simtile_core::drain_background(SOON);
        ensure!(done, "dropped handles were not given back in time");
        Ok::<_, Stop>(cx.calls_of(Entry::cuModuleUnload))
    };
    simulator.fail(Entry::cuModuleLoadDataEx, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let image = kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
    refused(core.context.load_module(image), &["OUT_OF_MEMORY"])?;
    ensure_eq!(unloads()?, 0, "unloads after a load that failed");
    let module = core.basic()?;
    refused(module.load_function("no_such_kernel"), &["no_such_kernel"])?;
    ensure_eq!(unloads()?, 0, "unloads while the module lives");
    // It works all the same, and goes once.
    module.load_function("fill")?;
    drop(module);
    ensure!(unloads()? <= 1, "a module was unloaded twice");
    let before = unloads()?;
    core.basic()?.load_function("fill")?;
    ensure!(unloads()? <= before + 1, "a module was unloaded twice");
    Ok(())
}

const BODY: &str = ".address_size 64\n.visible .entry k()\n{\n\tret;\n}\n";

/// What the driver cannot compile is told as that: the loader of sets of images, which falls back to another one,
/// comes with the kernel models.
fn fr_l3_newer_ptx_is_an_error_that_says_so(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let newer = format!(".version 9.9\n.target sm_70\n{BODY}");
    let error = refused(core.context.load_module_from_ptx_src(&newer), &["PTX"])?;
    let ModuleError::Load { source, .. } = &error else { return Err(Stop::fail(format!("{error:?}"))) };
    ensure_eq!(source.code(), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "code of PTX from the future");
    // The same kernel in a version that the driver knows.
    let known = format!(".version 6.3\n.target sm_70\n{BODY}");
    let before = cx.calls_of(Entry::cuModuleLoadDataEx);
    core.context.load_module_from_ptx_src(&known)?.load_function("k")?;
    ensure_eq!(cx.calls_of(Entry::cuModuleLoadDataEx) - before, 1, "loads of one image");
    Ok(())
}

fn fr_l4_broken_images_never_reach_the_driver(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let whole = artifacts::bytes("tile_rs/rs_vadd_f32.cubin")?;
    let loads = || cx.calls_of(Entry::cuModuleLoadDataEx) + cx.calls_of(Entry::cuModuleLoadData);
    let before = loads();
    let is_refused =
        |image: &[u8]| matches!(core.context.load_module(image), Err(ModuleError::BadImage { .. }));
    // Every prefix to behind the headers at the front, then all lengths that are no multiple of a big step.
    let cuts = (0..600).chain((600..whole.len()).step_by(97)).chain([whole.len() - 1]);
    for cut in cuts {
        ensure!(is_refused(&whole[..cut]), "the first {cut} of {} bytes were not refused", whole.len());
    }
    // The words of the ELF header that say where things are: magic, section and program headers' places and counts.
    for (at, what) in
        [(0, "magic"), (0x28, "place of the section headers"), (0x3a, "size of a section header")]
    {
        let mut broken = whole.to_vec();
        for byte in &mut broken[at..at + 2] {
            *byte ^= 0xff;
        }
        ensure!(is_refused(&broken), "a cubin with a broken {what} was not refused");
    }
    ensure!(is_refused(b""), "nothing was not refused");
    let hidden = format!(".version 6.3\n.target sm_70\n{BODY}\0{BODY}");
    ensure!(is_refused(hidden.as_bytes()), "text with a NUL inside was not refused");
    ensure_eq!(loads() - before, 0, "broken images that the driver was given");
    // Text needs no NUL at its end: it is added.
    let plain = format!(".version 6.3\n.target sm_70\n{BODY}");
    core.context.load_module(plain.as_bytes())?.load_function("k")?;
    ensure_eq!(loads() - before, 1, "loads of a good image");
    Ok(())
}

fn fr_l5_load_errors_tell_causes_apart(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    // A name that there is not: what was looked for, and what there is.
    let error = refused(core.basic()?.load_function("fil"), &["`fil`", "fill", "store_one"])?;
    ensure!(matches!(error, ModuleError::NotFound { .. }), "{error:?}");
    // A file that there is not.
    let error = refused(core.context.load_module_from_file("/no/such/k.cubin"), &["/no/such/k.cubin"])?;
    ensure!(matches!(error, ModuleError::File { .. }), "{error:?}");
    // Code for another GPU: the driver's own code for that, which is not that of broken text.
    let foreign = include_bytes!("../../../../artifacts/cubin/directives.sm_100a.cubin");
    let (major, _) = cx.capability()?;
    if major != 10 {
        let error = refused(core.context.load_module(foreign), &["cubin"])?;
        let ModuleError::Load { source, .. } = &error else { return Err(Stop::fail(format!("{error:?}"))) };
        ensure_eq!(source.code(), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "code for another GPU");
    }
    // Text that does not compile: the compiler's words, with the line, and the file where there is one.
    let broken =
        ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n\tfrobnicate;\n\tret;\n}\n";
    let path = std::env::temp_dir().join(format!(
        "simtile-cts-{}-{}-l5.ptx",
        std::process::id(),
        cx.driver().state().address()
    ));
    std::fs::write(&path, broken).map_err(Stop::fail)?;
    let loaded = core.context.load_module_from_file(&path);
    // A file left behind in the temporary folder is no failure.
    let _ = std::fs::remove_file(&path);
    let name = path.display().to_string();
    refused(loaded, &[&name, "frobnicate", "6"])?;
    Ok(())
}

/// Nothing is offered that would have no effect: the one thing a load asks of the driver are its logs, and they come.
/// Options of the compiler come with the kernel models.
fn fr_l8_the_log_options_reach_the_driver(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    // Taken by our check, refused by the driver's compiler: a call of a function that nobody declared.
    let text = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n\t.reg .b32 %r<2>;\n\tmov.b32 %r1, undeclared_thing;\n\tret;\n}\n";
    let error = refused(core.context.load_module_from_ptx_src(text), &["undeclared_thing"])?;
    if let ModuleError::Load { log, .. } = &error {
        ensure!(log.contains("undeclared_thing"), "the driver's log is {log:?}");
    }
    // An option that does not exist is refused by the driver, not ignored.
    let mut module = CUmodule::NULL;
    let (mut option, mut value) = (CUjit_option(9999), core::ptr::null_mut());
    let driver = cx.driver();
    ok!(cx, cuCtxSetCurrent(core.context.cu_ctx()))?;
    // SAFETY: the image ends with a NUL; there is one option.
    let code = unsafe {
        driver.cuModuleLoadDataEx(&mut module, kernels::BASIC.as_ptr().cast(), 1, &mut option, &mut value)
    };
    ensure_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE, "an option that does not exist");
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
