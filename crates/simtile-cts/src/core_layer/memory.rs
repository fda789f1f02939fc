//! Pools, foreign memory, exports, managed and virtual memory, variables of modules, by our API.

use super::{Core, launches::shape, refused};
use crate::frame::threads as thread;
use crate::frame::{Check, Cx, Need, Stop, same};
use crate::gpu::{A_WHILE, SOON};
use crate::{ensure, ensure_eq, ok};
use simtile_core::{
    Advice, Context, DeviceAllocation, DeviceBuffer, GrowableBuffer, LaunchArgs, ManagedBuffer, MemPool,
    MemoryError, MulticastTeam, Residence,
};
use simtile_driver::sys::{CUdevice_attribute, CUdeviceptr};
use simtile_types::{DeviceAtomicU32, LaunchConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) const VMM: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    "virtual memory management",
);
const MANAGED: Need =
    Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, "managed memory");
const CONCURRENT: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    "managed memory for host and device at the same time",
);

crate::frame::registry::tests! { Core, "core_memory";
    pools_count_and_limit proves ["A4"],
    pools_end_after_their_buffers proves ["A4"],
    pools_give_memory_back proves ["A4"] needs [Need::POOLS],
    foreign_owners_go_after_the_last_use proves ["M5", "A1"],
    imports_join_live_memory proves ["M5"],
    exports_come_back_by_a_stream proves ["M5"],
    exports_from_nowhere_wait_for_a_synchronisation proves ["M5", "A5"],
    managed_memory_through_guards proves ["M6"] needs [MANAGED],
    managed_memory_moves proves ["M6"] needs [MANAGED, CONCURRENT],
    buffers_grow_in_place proves ["A1"] needs [VMM],
    mappings_end_after_their_last_use proves ["A1", "A4"] needs [VMM],
    variables_are_ordered proves ["M1", "A2"],
    variables_are_typed proves ["M1"],
    atomics_accumulate proves ["A3", "L3"],
    multicast_is_for_simulated_devices proves ["F2"],
}

fn pools_count_and_limit(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let pool = MemPool::builder(&core.context).limit(4 << 20).label("small").build()?;
    let words = pool.from_slice(&core.stream, &[5u32; 1 << 18])?;
    same("words of a pool", &words.to_vec(&core.stream)?, &[5; 1 << 18])?;
    let stats = pool.stats()?;
    ensure_eq!(stats.live, 1 << 20, "live bytes");
    ensure!(stats.used >= stats.live && stats.reserved >= stats.used, "{stats:?}");
    core.context.set_oom_wait(std::time::Duration::ZERO);
    let error = refused(pool.zeroed::<u8>(&core.stream, 4 << 20), &["small", "4194304", "1048576"])?;
    ensure!(matches!(error, MemoryError::PoolLimit { .. }), "{error:?}");
    // A limit is about what is alive.
    drop(words);
    core.stream.synchronize()?;
    core.context.drain(SOON);
    let all = pool.zeroed::<u8>(&core.stream, 4 << 20)?;
    drop(all);
    let live_high = pool.stats()?.live_high;
    ensure_eq!(live_high, 4 << 20, "most live bytes");
    Ok(())
}

fn pools_end_after_their_buffers(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let pool = core.context.new_mem_pool()?;
    let words = pool.from_slice(&core.stream, &[1u32; 100])?;
    refused(pool.clone().close_now(), &["in use", "400 bytes"])?;
    drop(pool);
    same("words of a pool without a handle", &words.to_vec(&core.stream)?, &[1; 100])?;
    ensure_eq!(core.context.stats().pools, 1, "pools");
    let gate = core.gate(&core.stream)?;
    drop(words);
    gate.open();
    core.stream.synchronize()?;
    ensure!(core.context.drain(SOON).is_complete(), "memory is left");
    simtile_core::drain_background(SOON);
    ensure_eq!(core.context.stats().pools, 0, "pools after the last buffer");
    Ok(())
}

fn pools_give_memory_back(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let pool = core.context.new_mem_pool()?;
    drop(pool.zeroed::<u8>(&core.stream, 8 << 20)?);
    // An H200 takes note of a free when stream or context are waited for, not when an event is.
    core.context.synchronize_all()?;
    ensure!(pool.stats()?.reserved >= 8 << 20, "nothing is kept for reuse");
    pool.trim(0)?;
    ensure_eq!(pool.stats()?.reserved, 0, "bytes kept after a trim");
    let buffer = pool.zeroed::<u8>(&core.stream, 8 << 20)?;
    core.stream.synchronize()?;
    pool.trim(0)?;
    same("bytes in use through a trim", &buffer.range_to_vec(&core.stream, 0..4)?, &[0; 4])?;
    pool.reset_high_marks()?;
    Ok(())
}

/// Memory of `cuMemAlloc`.
struct Theirs {
    context: Arc<Context>,
    address: CUdeviceptr,
    dropped: Arc<AtomicUsize>,
}

// SAFETY: the memory is the value's own, and is never freed: a free would stall, which other tests are about.
unsafe impl DeviceAllocation for Theirs {
    fn device_ptr(&self) -> CUdeviceptr {
        self.address
    }

    fn len_bytes(&self) -> usize {
        4096
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn theirs(cx: &Cx, core: &Core<'_>, dropped: &Arc<AtomicUsize>) -> Check<Theirs> {
    let mut address = 0;
    ok!(cx, cuMemAlloc(&mut address, 4096))?;
    Ok(Theirs { context: core.context.clone(), address, dropped: dropped.clone() })
}

fn foreign_owners_go_after_the_last_use(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut words = DeviceBuffer::<u32>::from_foreign(theirs(cx, &core, &dropped)?)?;
    ensure_eq!(words.len(), 1024, "words of 4096 foreign bytes");
    words.fill(&core.stream, 3)?;
    same("words in foreign memory", &words.range_to_vec(&core.stream, 0..10)?, &[3; 10])?;
    let gate = core.gate(&core.stream)?;
    words.fill(&core.stream, 4)?;
    drop(words);
    thread::sleep(A_WHILE);
    ensure_eq!(dropped.load(Ordering::SeqCst), 0, "owners dropped before the last use");
    gate.open();
    ensure!(core.context.drain(SOON).is_complete(), "foreign memory is left");
    ensure_eq!(dropped.load(Ordering::SeqCst), 1, "owners dropped");
    ensure_eq!(core.context.stats().foreign_allocations, 0, "foreign allocations");
    Ok(())
}

fn imports_join_live_memory(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let mut words = DeviceBuffer::from_slice(&core.stream, &[1u32; 1000])?;
    // SAFETY: the bytes are the buffer's own, and used through the runtime alone.
    let alias = unsafe {
        DeviceBuffer::<u32>::borrow_raw_parts(&core.context, words.cu_deviceptr() + 400, 50, None)
    }?;
    ensure_eq!(alias.allocation_id(), words.allocation_id(), "identity of an import of live memory");
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    words.fill(&core.stream, 2)?;
    let read = other.submit().read(&alias).awaited().order_only()?;
    thread::sleep(A_WHILE);
    ensure!(!read.is_complete()?, "two handles of the same bytes are not ordered");
    gate.open();
    same("words through the other handle", &alias.to_vec(&other)?, &[2; 50])?;
    // SAFETY: the range is refused.
    let over = unsafe {
        DeviceBuffer::<u32>::borrow_raw_parts(&core.context, words.cu_deviceptr() + 3996, 50, None)
    };
    refused(over, &["reach into"])?;
    Ok(())
}

fn exports_come_back_by_a_stream(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let consumer = core.context.new_stream()?;
    let mut words = DeviceBuffer::from_slice(&core.stream, &[1u32; 100])?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    words.fill(&core.stream, 2)?;
    let exported = words.export().map_err(|refused| Stop::fail(refused.error))?;
    exported.follow_on(&consumer)?;
    let (address, raw) = (exported.cu_deviceptr(), consumer.cu_stream());
    ok!(cx, cuMemsetD32Async(address, 7, 50, raw))?;
    // SAFETY: the only foreign work is on that stream.
    let back = unsafe { exported.take_back(&consumer) }.map_err(|refused| Stop::fail(refused.error))?;
    gate.open();
    let values = back.to_vec(&core.context.new_stream()?)?;
    same("words written by foreign code", &values[..50], &[7; 50])?;
    same("words written before", &values[50..], &[2; 50])
}

fn exports_from_nowhere_wait_for_a_synchronisation(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let words = DeviceBuffer::from_slice(&core.stream, &[1u32; 100])?;
    // SAFETY: nobody used it.
    let mut back =
        unsafe { words.export().map_err(|refused| Stop::fail(refused.error))?.take_back_unknown() };
    refused(back.fill(&core.stream, 2), &["foreign code"])?;
    core.context.synchronize_all()?;
    back.fill(&core.stream, 2)?;
    same("words", &back.to_vec(&core.stream)?, &[2; 100])?;
    let before = core.context.stats().live_allocations;
    drop(back.export().map_err(|refused| Stop::fail(refused.error))?);
    ensure_eq!(core.context.stats().live_allocations, before, "allocations with one that is quarantined");
    core.context.synchronize_all()?;
    core.context.drain(SOON);
    ensure_eq!(core.context.stats().live_allocations, before - 1, "allocations after a synchronisation");
    Ok(())
}

fn managed_memory_through_guards(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let step = core.basic()?.load_function("step")?;
    let mut words = ManagedBuffer::from_slice(&core.context, &[5u32; 64])?;
    words.write()?[0] = 6;
    let gate = core.gate(&core.stream)?;
    let args = LaunchArgs::new().arg(&mut words).arg(64u32).arg(1u32);
    // SAFETY: the kernel updates the 64 words of its buffer, of which it is told.
    unsafe { core.stream.launch(&step, LaunchConfig::for_num_elems(64), args) }?;
    ensure!(words.try_read().is_err(), "values that a kernel writes were shown");
    gate.open();
    let values = words.read()?;
    ensure_eq!((values[0], values[1]), (19, 16), "words after the kernel");
    drop(values);
    let copy = DeviceBuffer::from_slice(&core.stream, &[8u32; 64])?;
    words.view_mut().copy_from(&core.stream, &copy)?;
    same("words copied from device memory", &words.read()?, &[8; 64])
}

fn managed_memory_moves(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut words = ManagedBuffer::from_slice(&core.context, &vec![1u32; 1 << 16])?;
    words.advise(Advice::ReadMostly(true))?;
    words.advise(Advice::ReadMostly(false))?;
    words.advise(Advice::PreferredLocation(Some(Residence::Device(core.device))))?;
    words.advise(Advice::AccessedBy(Residence::Host, true))?;
    words.prefetch(&core.stream, Residence::Device(core.device))?;
    words.view_mut().fill(&core.stream, 2)?;
    words.prefetch(&core.stream, Residence::Host)?.wait()?;
    ensure!(words.read()?.iter().all(|&word| word == 2), "words after moving there and back");
    Ok(())
}

fn buffers_grow_in_place(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let page = core.context.allocation_granularity()?;
    let most = 3 * page / 4;
    let mut words = GrowableBuffer::<u32>::new(&core.context, most)?;
    let address = words.cu_deviceptr();
    words.extend_from_slice(&core.stream, &[7; 100])?;
    words.resize(&core.stream, page / 4 + 10)?;
    words.extend_from_slice(&core.stream, &[9; 3])?;
    ensure_eq!(words.cu_deviceptr(), address, "address after growing");
    let values = words.to_vec(&core.stream)?;
    same("words from before", &values[..100], &[7; 100])?;
    ensure!(values[100..page / 4 + 10].iter().all(|&word| word == 0), "new words are not zero");
    same("words appended", &values[page / 4 + 10..], &[9; 3])?;
    refused(words.resize(&core.stream, most + 1), &[&most.to_string()])?;
    words.resize(&core.stream, 10)?;
    words.shrink_to_fit()?;
    ensure_eq!(core.context.stats().mapped_bytes, page as u64, "bytes mapped after shrinking");
    same("words left", &words.to_vec(&core.stream)?, &[7; 10])
}

fn mappings_end_after_their_last_use(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let free = core.context.memory_info()?.free;
    let page = core.context.allocation_granularity()?;
    for _ in 0..8 {
        let (range, memory) = (core.context.reserve(page)?, core.context.physical_memory(page)?);
        let mut mapped = range.map(0, &memory, &[])?;
        mapped.view_mut().fill(&core.stream, 1)?;
        core.stream.synchronize()?;
        let gate = core.gate(&core.stream)?;
        mapped.view_mut().fill(&core.stream, 2)?;
        drop((memory, mapped, range));
        thread::sleep(A_WHILE / 4);
        ensure_eq!(core.context.stats().mapped_bytes, page as u64, "bytes mapped while they are in use");
        gate.open();
        ensure!(core.context.drain(SOON).is_complete(), "mappings are left");
    }
    simtile_core::drain_background(SOON);
    ensure_eq!(core.context.stats().mapped_bytes, 0, "bytes mapped");
    let stats = core.context.stats();
    ensure_eq!(stats.failed_frees, 0, "undoings that failed: {:?}", core.context.take_errors());
    let after = core.context.memory_info()?.free;
    // A race checker remembers memory beyond its end.
    ensure!(cx.simulator().is_some() || after + 4 * page >= free, "{free} bytes were free, {after} are");
    Ok(())
}

fn variables_are_ordered(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let image = crate::kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default();
    let module = core.context.load_module(image)?;
    let function = module.load_function("use_globals")?;
    let counter = module.global::<u32>("counter")?;
    counter.copy_from_slice(&core.stream, &[0])?;
    let mut out = [&core.stream, &other].map(|stream| DeviceBuffer::<u32>::zeroed(stream, 2));
    for _ in 0..50 {
        for (stream, out) in [&core.stream, &other].into_iter().zip(&mut out) {
            let Ok(out) = out else { return Err(Stop::fail("no memory")) };
            // SAFETY: the kernel writes two words of its buffer, and its module's variables.
            unsafe { stream.launch(&function, shape(1, 1), LaunchArgs::new().arg(out)) }?;
        }
    }
    ensure_eq!(counter.to_vec(&other)?, [100], "a variable that launches on two streams count up");
    Ok(())
}

fn variables_are_typed(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let image = crate::kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default();
    let module = core.context.load_module(image)?;
    let coef = module.global::<f32>("coef")?;
    ensure_eq!(coef.len(), 4, "elements");
    coef.copy_from_slice_at(&core.stream, 2, &[30.0, 40.0])?;
    same("elements", &coef.to_vec(&core.stream)?, &[1.0, 2.0, 30.0, 40.0])?;
    refused(coef.copy_from_slice_at(&core.stream, 3, &[0.0, 0.0]), &["coef", "3..5", "0..4"])?;
    refused(module.global::<[f32; 3]>("coef"), &["coef", "16", "12"])?;
    Ok(())
}

fn atomics_accumulate(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.context.new_stream()?;
    let bins = DeviceBuffer::<DeviceAtomicU32>::zeroed(&core.stream, 16)?;
    core.stream.synchronize()?;
    let gate = core.gate(&core.stream)?;
    let first =
        core.stream.submit().accumulate(&bins, simtile_core::AtomicScope::Device).awaited().order_only()?;
    let second =
        other.submit().accumulate(&bins, simtile_core::AtomicScope::Device).awaited().order_only()?;
    second.wait()?;
    ensure!(!first.is_complete()?, "an order behind a gate is over");
    gate.open();
    first.wait()?;
    let plain = bins.view().peel_elem::<u32>().to_vec(&other)?;
    same("bins", &plain, &[0; 16])
}

fn multicast_is_for_simulated_devices(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let error = refused(MulticastTeam::new(&[&core.context, &core.context], 100), &["multicast"])?;
    ensure!(matches!(error, MemoryError::Unsupported { .. }), "{error:?}");
    Ok(())
}
