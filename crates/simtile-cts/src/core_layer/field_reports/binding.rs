//! F3: whatever is current on the calling thread, an operation runs in its own object's context and leaves the thread as it was.
//!
//! The table has every public operation of the core that makes a driver call. `tests/core_calls.rs` holds it to that: a call
//! in the core's source that no operation of the table makes is a failure there.

use super::super::Core;
use super::super::launches::{most_shared_memory, shape};
use super::{current, owner_of, work};
use crate::frame::{Check, Cx, Need, Stop, threads};
use crate::gpu::SOON;
use crate::{ensure, ensure_eq, kernels, ok};
use simtile_core::{
    Advice, AtomicScope, CapturedGraph, Context, ContextError, ContextLimit, Device, DeviceBuffer,
    GrowableBuffer, LaunchArgs, LaunchOptions, ManagedBuffer, MemoryError, Module, PinnedHostBuffer,
    RawDeviceBuffer, Residence, Stream, SyncPolicy,
};
use simtile_driver::sys::*;
use std::sync::Arc;

crate::frame::registry::tests! { Core, "field_reports";
    fr_f3_every_operation_binds_its_own_context proves ["H2"] needs [Need::Devices(2)],
}

type Operation = (&'static str, fn(&Cx, &Objects) -> Check);

/// Objects of device 0, made before.
struct Objects {
    device: Device,
    context: Arc<Context>,
    stream: Arc<Stream>,
    other: Arc<Stream>,
    basic: Arc<Module>,
    globals: Arc<Module>,
}

impl Objects {
    fn buffer(&self, words: usize) -> Check<DeviceBuffer<u32>> {
        Ok(DeviceBuffer::zeroed(&self.stream, words)?)
    }

    fn holds(&self, buffer: &DeviceBuffer<u32>, words: &[u32]) -> Check {
        ensure_eq!(buffer.to_vec(&self.stream)?, words, "words of a buffer");
        Ok(())
    }
}

/// Memory that stays at its address, memory of both sides, and graphs.
const WIDER: &[Operation] = &[
    ("a pool of one's own", |_, on| {
        let pool = on.context.new_mem_pool()?;
        let buffer = pool.zeroed::<u32>(&on.stream, 100)?;
        on.holds(&buffer, &[0; 100])?;
        pool.stats()?;
        drop(buffer);
        on.stream.synchronize()?;
        Ok(pool.trim(0)?)
    }),
    ("a buffer that grows", |_, on| {
        let mut buffer = match GrowableBuffer::<u32>::new(&on.context, 1 << 22) {
            Ok(buffer) => buffer,
            // A device without virtual memory.
            Err(MemoryError::Unsupported { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        buffer.extend_from_slice(&on.stream, &[7; 1000])?;
        buffer.resize(&on.stream, 1 << 21)?;
        ensure_eq!(buffer.to_vec(&on.stream)?[999], 7, "last of the first elements");
        drop(buffer);
        ensure!(on.context.drain(SOON).is_complete(), "virtual memory was not given back in time");
        Ok(())
    }),
    ("managed memory", |_, on| {
        let mut buffer = ManagedBuffer::from_slice(&on.context, &[3u32; 50])?;
        buffer.advise(Advice::ReadMostly(true))?;
        // Only devices that share managed memory with the host take it.
        if on.context.capabilities()?.supports_concurrent_managed_access {
            buffer.prefetch(&on.stream, Residence::Device(on.device))?;
        }
        on.stream.synchronize()?;
        buffer.write()?[0] = 4;
        ensure_eq!(buffer.read()?[0], 4, "managed value");
        Ok(())
    }),
    ("a graph", |_, on| {
        let mut buffer = on.buffer(64)?;
        let record = |buffer: &mut DeviceBuffer<u32>, value: u32| -> Check<CapturedGraph> {
            let capture = on.stream.begin_capture()?;
            capture.submit(&on.stream).fill(buffer.view_mut(), value)?;
            Ok(capture.finish()?)
        };
        let graph = record(&mut buffer, 5)?;
        ensure_eq!(graph.nodes()?, 1, "nodes");
        let picture = std::env::temp_dir().join(format!(
            "simtile-f3-{}-{:?}.dot",
            std::process::id(),
            std::thread::current().id()
        ));
        let path = picture.to_string_lossy().into_owned();
        graph.write_dot(&path)?;
        let _ = std::fs::remove_file(&picture);
        let mut exec = graph.instantiate()?;
        on.stream.submit().graph(&exec)?;
        on.holds(&buffer, &[5; 64])?;
        exec.update(record(&mut buffer, 6)?)?;
        on.other.submit().graph(&exec)?;
        on.holds(&buffer, &[6; 64])?;
        // As a child of another, with a second stream.
        let capture = on.stream.begin_capture()?;
        capture.add_stream(&on.other)?;
        capture.submit(&on.other).graph(&exec)?;
        let outer = capture.finish()?.instantiate()?;
        on.stream.submit().graph(&outer)?;
        on.holds(&buffer, &[6; 64])?;
        // A capture that is given up.
        drop(on.stream.begin_capture()?);
        Ok(())
    }),
];

const HANDLES: &[Operation] = &[
    ("facts of the device", |_, on| {
        let device = on.device;
        device.name()?;
        device.uuid()?;
        device.pci_bus_id()?;
        device.total_memory()?;
        device.capabilities()?;
        device.compute_capability()?;
        device.launch_limits()?;
        device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?;
        Ok(Device::all(device.driver()).map(drop)?)
    }),
    ("the primary context again", |_, on| {
        ensure_eq!(on.device.primary_context()?.cu_ctx(), on.context.cu_ctx(), "primary context");
        Ok(())
    }),
    ("a context of one's own", |cx, on| {
        let context = on.device.create_context()?;
        let before = current(cx)?;
        work(&context.new_stream()?)?;
        ensure!(current(cx)? == before || before.is_null(), "work in a new context changed what is current");
        drop(context);
        ensure!(simtile_core::drain_background(SOON), "dropped handles were not given back in time");
        Ok(())
    }),
    ("a borrowed context", |cx, on| {
        // SAFETY: the context outlives this call.
        let borrowed = unsafe { Context::borrow_raw(Device::new(cx.driver(), 0)?, on.context.cu_ctx()) }?;
        work(&borrowed.new_stream()?)
    }),
    ("green contexts", |_, on| match on.device.green_contexts(1, 8) {
        Ok(green) => work(&green[0].new_stream()?),
        // Drivers before CUDA 12.5 have none; small devices have not enough multiprocessors.
        Err(ContextError::TooManyGreen { .. }) => Ok(()),
        Err(error) if error.driver_error().is_some_and(|error| error.is_missing_entry()) => Ok(()),
        Err(error) => Err(error.into()),
    }),
    ("limits", |_, on| {
        let stack = on.context.limit(ContextLimit::StackSize)?;
        ensure_eq!(on.context.set_limit(ContextLimit::StackSize, stack)?, stack, "stack in force");
        ensure_eq!(on.context.set_stack_size(stack)?, stack, "stack in force");
        ensure_eq!(on.context.stack_size()?, stack, "stack");
        Ok(())
    }),
    ("how threads wait", |_, on| {
        on.context.sync_policy()?;
        match on.context.set_sync_policy(SyncPolicy::Auto) {
            // Needs CUDA 12.1.
            Err(error) if !error.driver_error().is_some_and(|error| error.is_missing_entry()) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }),
    ("memory of the device", |_, on| Ok(on.context.memory_info().map(drop)?)),
    ("priorities of the device", |_, on| Ok(on.context.stream_priority_range().map(drop)?)),
    ("waiting for everything", |_, on| Ok(on.context.synchronize_all()?)),
    ("pictures and counts", |_, on| {
        let kept = on.buffer(10)?;
        ensure!(!on.context.snapshot().allocations.is_empty(), "a picture without the buffer");
        on.context.stats();
        ensure!(on.context.drain(SOON).is_complete(), "retired memory was not given back in time");
        drop(kept);
        Ok(())
    }),
    ("giving back what is kept", |_, on| {
        drop(on.buffer(1000)?);
        drop(PinnedHostBuffer::from_slice(&on.context, &[1u8; 5000])?);
        on.stream.synchronize()?;
        Ok(on.context.trim()?)
    }),
    ("a stream", |_, on| {
        work(&on.context.new_stream()?)?;
        ensure!(simtile_core::drain_background(SOON), "dropped handles were not given back in time");
        Ok(())
    }),
    ("a stream with a priority", |_, on| Ok(on.context.new_stream_with_priority(0)?.synchronize()?)),
    ("a priority", |_, on| Ok(on.stream.priority().map(drop)?)),
    ("the legacy default stream", |_, on| work(&on.context.legacy_default_stream())),
    ("this thread's default stream", |_, on| work(&on.context.per_thread_default_stream())),
    ("a borrowed stream", |_, on| {
        // SAFETY: the stream outlives this call.
        let borrowed = unsafe { Stream::borrow_raw(on.other.cu_stream(), &on.context) }?;
        work(&borrowed)?;
        on.stream.join(&borrowed)?;
        Ok(borrowed.synchronize()?)
    }),
    ("asking a stream", |_, on| {
        on.stream.is_complete()?;
        Ok(on.stream.synchronize()?)
    }),
    ("forks and joins", |_, on| {
        let fork = on.stream.fork()?;
        work(&fork)?;
        on.stream.join(&fork)?;
        Ok(on.stream.synchronize()?)
    }),
    ("an event", |_, on| {
        let event = on.context.new_event()?;
        event.record(&on.stream)?;
        on.other.wait(&event)?;
        event.synchronize()?;
        ensure!(event.is_complete()?, "an event that was waited for is not complete");
        on.stream.record_event()?;
        Ok(())
    }),
    ("timed events", |_, on| {
        let start = on.stream.record_timed_event()?;
        let end = on.stream.record_timed_event()?;
        on.stream.synchronize()?;
        ensure!(start.elapsed_time(&end)? >= 0.0, "time runs backwards");
        Ok(start.elapsed(&end).map(drop)?)
    }),
    ("host functions", |_, on| {
        on.stream.launch_host_function(|| {})?;
        Ok(on.stream.synchronize()?)
    }),
    ("order alone", |_, on| {
        let submission = on.stream.submit().order_only()?;
        submission.wait()?;
        ensure!(submission.is_complete()?, "a submission that was waited for is not complete");
        Ok(())
    }),
];

const MEMORY: &[Operation] = &[
    ("a buffer", |cx, on| {
        let buffer = on.buffer(100)?;
        ensure_eq!(owner_of(cx.driver(), buffer.cu_deviceptr())?, 0, "device of a buffer");
        Ok(())
    }),
    ("a buffer without values", |cx, on| {
        // SAFETY: nothing reads it.
        let buffer = unsafe { DeviceBuffer::<u32>::uninit(&on.stream, 100) }?;
        ensure_eq!(owner_of(cx.driver(), buffer.cu_deviceptr())?, 0, "device of a buffer");
        Ok(())
    }),
    ("bytes", |cx, on| {
        let raw = RawDeviceBuffer::zeroed(&on.stream, 64)?;
        ensure_eq!(owner_of(cx.driver(), raw.cu_deviceptr())?, 0, "device of bytes");
        let words = raw.into_typed::<u32>().map_err(|refused| Stop::fail(refused.error))?;
        on.holds(&words, &[0; 16])
    }),
    ("uploads and downloads", |_, on| {
        let mut buffer = DeviceBuffer::from_host(&on.stream, &[1u32; 10])?;
        buffer.copy_from_host(&on.stream, &[2; 10])?;
        buffer.copy_from_slice(&on.stream, &[3; 10])?;
        buffer.copy_from_slice_at(&on.other, 5, &[4; 5])?;
        let mut target = [0; 10];
        buffer.copy_to_slice(&on.stream, &mut target)?;
        ensure_eq!(target, [3, 3, 3, 3, 3, 4, 4, 4, 4, 4], "words downloaded");
        buffer.copy_to_slice_at(&on.stream, 9, &mut target[..1])?;
        buffer.copy_to_host(&on.other, &mut target)?;
        ensure_eq!(buffer.range_to_vec(&on.stream, 4..6)?, [3, 4], "words of a range");
        ensure_eq!(buffer.to_host_vec(&on.stream)?.len(), 10, "words");
        Ok(())
    }),
    ("copies of megabytes", |_, on| {
        let buffer = DeviceBuffer::from_slice(&on.stream, &[1u8; 2_000_000])?;
        let mut second = DeviceBuffer::<u8>::zeroed(&on.other, 2_000_000)?;
        second.copy_from(&on.other, &buffer)?;
        ensure!(second.to_vec(&on.stream)?.iter().all(|&byte| byte == 1), "bytes of a copy");
        Ok(())
    }),
    ("copies of ranges", |_, on| {
        let source = DeviceBuffer::from_slice(&on.stream, &[5u32; 8])?;
        let mut target = on.buffer(8)?;
        target.copy_range_from(&on.other, 0, &source, 0..4)?;
        target.slice_mut(4..8)?.copy_from(&on.stream, source.slice(4..8)?)?;
        on.holds(&target, &[5; 8])
    }),
    ("copies of columns", |_, on| {
        let source = DeviceBuffer::from_slice(&on.stream, &[7u32; 12])?;
        let mut target = on.buffer(12)?;
        let (mut left, _) = target.view_mut().into_split_columns(4, 2)?;
        left.copy_from(&on.other, source.view().columns(4, 0..2)?)?;
        ensure_eq!(source.view().columns(4, 1..3)?.to_vec(&on.stream)?, [7; 6], "words of columns");
        on.holds(&target, &[7, 7, 0, 0, 7, 7, 0, 0, 7, 7, 0, 0])
    }),
    ("fills of words", |_, on| {
        let mut buffer = on.buffer(9)?;
        buffer.fill(&on.other, 6)?;
        on.holds(&buffer, &[6; 9])?;
        buffer.zero(&on.stream)?;
        buffer.view_mut().fill(&on.stream, 8)?;
        on.holds(&buffer, &[8; 9])
    }),
    ("fills of every width", |_, on| {
        let mut bytes = DeviceBuffer::<u8>::zeroed(&on.stream, 9)?;
        bytes.fill(&on.other, 3)?;
        ensure_eq!(bytes.to_vec(&on.stream)?, [3; 9], "bytes");
        let mut shorts = DeviceBuffer::<u16>::zeroed(&on.stream, 9)?;
        shorts.fill(&on.other, 0x1234)?;
        ensure_eq!(shorts.to_vec(&on.stream)?, [0x1234; 9], "shorts");
        let mut triples = DeviceBuffer::<[f32; 3]>::zeroed(&on.stream, 9)?;
        triples.fill(&on.other, [1.0, 2.0, 3.0])?;
        ensure_eq!(triples.to_vec(&on.stream)?, [[1.0, 2.0, 3.0]; 9], "triples");
        Ok(())
    }),
    ("submitted copies and fills", |_, on| {
        let (mut a, mut b) = (on.buffer(4)?, on.buffer(4)?);
        on.stream.submit().fill(&mut a, 3)?;
        on.other.submit().copy(&a, &mut b)?.wait()?;
        on.holds(&b, &[3; 4])?;
        on.other.submit().memset(&mut b, 0x11)?;
        on.holds(&b, &[0x1111_1111; 4])
    }),
    ("pinned memory", |_, on| {
        let mut pinned = PinnedHostBuffer::from_slice(&on.context, &[1u32, 2, 3])?;
        let mut buffer = on.buffer(3)?;
        pinned.copy_to(&on.stream, &mut buffer)?;
        pinned.write()?.fill(9);
        pinned.copy_from(&on.other, &buffer)?;
        ensure_eq!(*pinned.read()?, [1, 2, 3], "words there and back");
        drop(PinnedHostBuffer::<u64>::zeroed(&on.context, 1 << 20)?);
        Ok(())
    }),
    ("freed memory", |_, on| {
        drop(on.buffer(100)?);
        on.stream.synchronize()?;
        // Used by both streams, so that neither may free it at once.
        let mut buffer = on.buffer(100)?;
        buffer.fill(&on.other, 1)?;
        drop(buffer);
        ensure!(simtile_core::drain_background(SOON), "retired memory was not given back in time");
        Ok(())
    }),
];

const CODE: &[Operation] = &[
    ("a module", |_, on| {
        let image = kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
        let module = on.context.load_module(image)?;
        module.load_function("fill")?;
        drop(module);
        ensure!(simtile_core::drain_background(SOON), "a module was not unloaded in time");
        Ok(())
    }),
    ("a borrowed module", |_, on| {
        // SAFETY: the module outlives this call.
        let borrowed = unsafe { Module::borrow_raw(on.basic.cu_module(), &on.context, None) };
        Ok(borrowed.load_function("fill").map(drop)?)
    }),
    ("what fits", |cx, on| {
        let fill = on.basic.load_function("fill")?;
        ensure!(fill.max_active_blocks_per_multiprocessor(128, 0)? > 0, "no block fits");
        fill.allow_dynamic_shared_memory(most_shared_memory(cx)?)?;
        let clusters = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        if cx.attribute(0, clusters).is_ok_and(|has| has != 0) {
            let options = LaunchOptions::new(shape(8, 128)).cluster(2, 1, 1);
            ensure!(fill.max_potential_cluster_size(options)? > 0, "no cluster is possible");
            ensure!(fill.max_active_clusters(options)? > 0, "no cluster fits");
        }
        Ok(())
    }),
    ("a launch", |_, on| {
        let fill = on.basic.load_function("fill")?;
        let mut buffer = on.buffer(100)?;
        let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(4u32);
        // SAFETY: the kernel writes the 100 words of its buffer, of which it is told.
        unsafe { on.stream.launch(&fill, shape(1, 128), &args) }?;
        drop(args);
        on.holds(&buffer, &[4; 100])
    }),
    ("a launch with attributes", |_, on| {
        let fill = on.basic.load_function("fill")?;
        let mut buffer = on.buffer(100)?;
        let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(5u32);
        // SAFETY: as above.
        unsafe { on.stream.launch(&fill, LaunchOptions::new(shape(1, 128)).priority(0), &args) }?;
        drop(args);
        on.holds(&buffer, &[5; 100])
    }),
    ("a submitted launch", |_, on| {
        let fill = on.basic.load_function("fill")?;
        let (mut buffer, spare) = (on.buffer(100)?, on.buffer(1)?);
        let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(6u32);
        let submit = on.other.submit().accumulate(&spare, AtomicScope::Device);
        // SAFETY: as above.
        unsafe { submit.launch(&fill, shape(1, 128), &args) }?.wait()?;
        drop(args);
        on.holds(&buffer, &[6; 100])
    }),
    ("variables", |_, on| {
        let counter = on.globals.symbol("counter")?;
        counter.write(&on.stream, 0, &[3u32])?;
        ensure_eq!(counter.read::<u32>(&on.other, 0, 1)?, [3], "a variable");
        let constant = on.globals.constant::<u32>("counter")?;
        constant.write(&on.stream, &4)?;
        ensure_eq!(constant.read(&on.stream)?, 4, "a constant");
        Ok(())
    }),
];

fn fr_f3_every_operation_binds_its_own_context(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = Device::new(cx.driver(), 1)?.primary_context()?;
    // The other device's context is up and has what it needs, so that anything more there is a mistake.
    work(&other.new_stream()?)?;
    let globals = kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default();
    let objects = Objects {
        device: core.device,
        context: core.context.clone(),
        stream: core.context.new_stream()?,
        other: core.context.new_stream()?,
        basic: core.basic()?,
        globals: core.context.load_module(globals)?,
    };
    let free = || -> Check<usize> {
        ok!(cx, cuCtxSetCurrent(other.cu_ctx()))?;
        let mut free = 0;
        ok!(cx, cuMemGetInfo(&mut free, &mut 0))?;
        Ok(free)
    };
    let all = |before: CUcontext| -> Check {
        for (what, operation) in HANDLES.iter().chain(MEMORY).chain(WIDER).chain(CODE) {
            let unused = free()?;
            ok!(cx, cuCtxSetCurrent(before))?;
            operation(cx, &objects).map_err(|stop| stop.within(format!("{what}, {before:?} current")))?;
            let after = current(cx)?;
            // A thread that had no context may keep ours.
            let kept = after == before || before.is_null() && after == core.context.cu_ctx();
            ensure!(kept, "{what} left {after:?} current instead of {before:?}");
            // On a GPU others use memory as well.
            if cx.simulator().is_some() {
                ensure_eq!(free()?, unused, "free memory of the other device after {what}");
            }
        }
        Ok(())
    };
    all(other.cu_ctx())?;
    let fresh = threads::scope(|scope| scope.spawn(|| all(CUcontext::NULL)).join());
    fresh.unwrap_or_else(|_| Err(Stop::fail("the thread panicked")))
}
