//! M5, A5: memory of foreign owners, borrowed memory, exports and their return.

mod common;

use common::*;
use simtile_core::{
    Context, DeviceAllocation, DeviceBuffer, LaunchArgs, MemoryError, PinnedHostBuffer, Stream, StreamError,
};
use simtile_driver::sys::{CUdeviceptr, CUstream, CUstream_flags};
use simtile_driver::{Entry, call};
use simtile_sim::{Checks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// Memory from `cuMemAlloc`, freed and counted in the drop.
struct Theirs {
    context: Arc<Context>,
    address: CUdeviceptr,
    bytes: usize,
    dropped: Arc<AtomicUsize>,
    panics: bool,
}

// SAFETY: the memory is this value's own until the drop.
unsafe impl DeviceAllocation for Theirs {
    fn device_ptr(&self) -> CUdeviceptr {
        self.address
    }

    fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let driver = self.context.driver();
        set_current(driver, self.context.cu_ctx());
        // SAFETY: nobody uses the memory any more: that is what is tested.
        unsafe { call!(driver, cuMemFree(self.address)) }.unwrap();
        self.dropped.fetch_add(1, Ordering::SeqCst);
        if self.panics {
            panic!("a destructor that panics");
        }
    }
}

fn theirs(context: &Arc<Context>, bytes: usize, dropped: &Arc<AtomicUsize>) -> Theirs {
    let driver = context.driver();
    set_current(driver, context.cu_ctx());
    let mut address = 0;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuMemAlloc(&mut address, bytes)) }.unwrap();
    Theirs { context: context.clone(), address, bytes, dropped: dropped.clone(), panics: false }
}

fn checked() -> (Simulator, Arc<Context>, Arc<Stream>) {
    let sim = Simulator::builder().checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let stream = context.new_stream().unwrap();
    (sim, context, stream)
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_foreign_owner_is_dropped_after_the_last_use() {
    let (sim, context, stream) = checked();
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut buffer = DeviceBuffer::<u32>::from_foreign(theirs(&context, 400, &dropped)).unwrap();
    assert_eq!((buffer.len(), context.stats().foreign_allocations), (100, 1));
    buffer.copy_from_slice(&stream, &[5; 100]).unwrap();
    let other = context.new_stream().unwrap();
    assert_eq!(buffer.slice(3..5).unwrap().to_vec(&other).unwrap(), [5; 2]);
    let gate = sim.gate(stream.cu_stream()).unwrap();
    buffer.fill(&stream, 6).unwrap();
    let lease = buffer.lease();
    drop(buffer);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "a handle is left");
    drop(lease);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "a use is left");
    gate.open();
    until(|| dropped.load(Ordering::SeqCst) == 1);
    assert!(context.drain(SOON).is_complete());
    assert_eq!(context.stats().foreign_allocations, 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_destructor_that_panics_or_takes_long_holds_up_nobody() {
    let (sim, context, stream) = checked();
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut owner = theirs(&context, 64, &dropped);
    owner.panics = true;
    let mut buffer = DeviceBuffer::<u8>::from_foreign(owner).unwrap();
    buffer.zero(&stream).unwrap();
    drop(buffer);
    let second = DeviceBuffer::<u8>::from_foreign(theirs(&context, 64, &dropped)).unwrap();
    drop(second);
    until(|| dropped.load(Ordering::SeqCst) == 2);
    assert!(context.drain(SOON).is_complete());
    assert_eq!(context.stats().owner_panics, 1);
    assert_eq!(context.stats().foreign_allocations, 0);
    // A destructor that waits for its owner's lock: memory of ours goes meanwhile.
    struct Slow(Theirs, Arc<std::sync::Mutex<()>>);
    // SAFETY: as the one inside.
    unsafe impl DeviceAllocation for Slow {
        fn device_ptr(&self) -> CUdeviceptr {
            self.0.device_ptr()
        }
        fn len_bytes(&self) -> usize {
            self.0.len_bytes()
        }
        fn context(&self) -> &Arc<Context> {
            self.0.context()
        }
    }
    impl Drop for Slow {
        fn drop(&mut self) {
            drop(self.1.lock());
        }
    }
    let lock = Arc::new(std::sync::Mutex::new(()));
    let held = lock.lock().unwrap();
    drop(DeviceBuffer::<u8>::from_foreign(Slow(theirs(&context, 64, &dropped), lock.clone())).unwrap());
    let start = Instant::now();
    let mut ours = DeviceBuffer::<u32>::zeroed(&stream, 100).unwrap();
    let other = context.new_stream().unwrap();
    ours.fill(&other, 1).unwrap();
    drop(ours);
    until(|| context.stats().reclaiming_bytes <= 64 && context.stats().live_bytes == 0);
    assert!(start.elapsed() < SOON);
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    drop(held);
    until(|| dropped.load(Ordering::SeqCst) == 3);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn sizes_and_places_of_foreign_memory_are_checked() {
    let (_sim, context, stream) = checked();
    let dropped = Arc::new(AtomicUsize::new(0));
    let error = DeviceBuffer::<u32>::from_foreign(theirs(&context, 402, &dropped)).unwrap_err();
    assert!(
        matches!(error, MemoryError::Foreign { .. }) && error.to_string().contains("402 bytes"),
        "{error}"
    );
    until(|| dropped.load(Ordering::SeqCst) == 1);
    let owner = theirs(&context, 64, &dropped);
    // SAFETY: the memory lives as long as the owner.
    let odd = unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, owner.address + 2, 4, None) };
    assert!(odd.unwrap_err().to_string().contains("multiple of 4"));
    // SAFETY: as above.
    let null = unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, 0, 4, None) };
    assert!(null.is_err());
    // SAFETY: as above.
    let huge =
        unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, owner.address, usize::MAX / 2, None) };
    assert!(matches!(huge, Err(MemoryError::SizeOverflow { .. })));
    // SAFETY: there are no bytes.
    let empty = unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, 0, 0, None) }.unwrap();
    assert!(empty.to_vec(&stream).unwrap().is_empty());
}

#[test]
fn an_import_of_live_memory_joins_it_or_is_refused() {
    let (sim, context, a) = checked();
    let b = context.new_stream().unwrap();
    let mut buffer = DeviceBuffer::from_slice(&a, &[1u32; 1000]).unwrap().with_label("ours");
    a.synchronize().unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let owner = Box::new(Counted(dropped.clone()));
    // SAFETY: the bytes are the buffer's own, and it is used through the runtime alone.
    let alias = unsafe {
        DeviceBuffer::<u32>::borrow_raw_parts(&context, buffer.cu_deviceptr() + 40, 100, Some(owner))
    };
    let alias = alias.unwrap();
    assert_eq!(alias.allocation_id(), buffer.allocation_id());
    assert_eq!(alias.cu_deviceptr(), buffer.cu_deviceptr() + 40);
    assert!(!buffer.is_unique());
    // Ordered with uses through the other handle.
    let gate = sim.gate(a.cu_stream()).unwrap();
    buffer.fill(&a, 2).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| alias.to_vec(&b).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [2; 100]);
    });
    // A range that only reaches into it is refused.
    // SAFETY: the address is refused.
    let over =
        unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, buffer.cu_deviceptr() + 3900, 100, None) };
    assert!(over.unwrap_err().to_string().contains("ours"));
    let buffer = buffer.into_raw().unwrap_err();
    assert!(matches!(buffer.error, MemoryError::NotUnique { handles: 2, .. }));
    drop(buffer);
    assert_eq!(alias.to_vec(&b).unwrap(), [2; 100]);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    let gate = sim.gate(b.cu_stream()).unwrap();
    let mut alias = alias;
    alias.zero(&b).unwrap();
    drop(alias);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "the owner went before the last use");
    gate.open();
    until(|| dropped.load(Ordering::SeqCst) == 1);
    until(|| context.stats().live_bytes == 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn memory_of_another_context_is_not_taken_for_ones_own() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let stream = one.new_stream().unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u32; 4]).unwrap().with_label("of one");
    // SAFETY: the import is refused.
    let wrong = unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&zero, buffer.cu_deviceptr(), 4, None) };
    let error = wrong.unwrap_err().to_string();
    assert!(error.contains("of one") && error.contains(&one.to_string()), "{error}");
}

/// A stream that somebody else made.
fn raw_stream(context: &Arc<Context>) -> CUstream {
    let driver = context.driver();
    set_current(driver, context.cu_ctx());
    let mut raw = CUstream::NULL;
    // SAFETY: the out-pointer is valid for the call.
    unsafe { call!(driver, cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)) }.unwrap();
    raw
}

#[test]
fn an_export_is_out_of_safe_use_until_it_comes_back() {
    let (sim, context, a) = checked();
    let driver = sim.driver();
    let raw = raw_stream(&context);
    // SAFETY: the stream lives to the end of the test.
    let consumer = unsafe { Stream::borrow_raw(raw, &context) }.unwrap();
    let buffer = DeviceBuffer::from_slice(&a, &[1u32; 100]).unwrap().with_label("lent");
    let gate = sim.gate(a.cu_stream()).unwrap();
    let mut buffer = buffer;
    buffer.fill(&a, 2).unwrap();
    // SAFETY: the alias is used through the runtime alone.
    let alias =
        unsafe { DeviceBuffer::<u32>::borrow_raw_parts(&context, buffer.cu_deviceptr(), 100, None) }.unwrap();
    let exported = buffer.export().unwrap();
    assert_eq!((exported.len(), exported.num_bytes(), exported.is_shared()), (100, 400, false));
    // Everything else that reaches it is refused.
    let error = alias.to_vec(&a).unwrap_err().to_string();
    assert!(error.contains("lent") && error.contains("foreign code"), "{error}");
    assert!(alias.export_shared().is_err());
    // Foreign work, behind what used it before.
    exported.follow_on(&consumer).unwrap();
    // SAFETY: the export is live, and the stream follows what used it.
    unsafe { call!(driver, cuMemsetD32Async(exported.cu_deviceptr(), 7, 100, raw)) }.unwrap();
    // SAFETY: the foreign work is on that stream.
    let back = unsafe { exported.take_back(&consumer) }.unwrap();
    assert!(!a.is_complete().unwrap());
    let b = context.new_stream().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| back.to_vec(&b).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished(), "the return has no stamp");
        gate.open();
        assert_eq!(reader.join().unwrap(), [7; 100]);
    });
    assert_eq!(alias.to_vec(&a).unwrap(), [7; 100]);
    drop((back, alias, consumer));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_shared_export_leaves_reading_to_both_sides() {
    let (sim, context, a) = checked();
    let mut buffer = DeviceBuffer::from_slice(&a, &[3u32; 16]).unwrap();
    let exported = buffer.export_shared().unwrap();
    exported.wait().unwrap();
    assert_eq!(buffer.to_vec(&a).unwrap(), [3; 16]);
    let error = buffer.fill(&a, 1).unwrap_err();
    assert!(matches!(error, MemoryError::Stream(StreamError::Conflict { .. })), "{error:?}");
    assert!(!buffer.is_unique());
    assert!(buffer.export_shared().is_err(), "one export at a time");
    // SAFETY: nobody else used it.
    let second = unsafe { exported.take_back(&a) }.unwrap();
    buffer.fill(&a, 1).unwrap();
    assert_eq!(second.to_vec(&a).unwrap(), [1; 16]);
    drop(second);
    assert!(buffer.is_unique());
    drop((buffer, context));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn what_comes_back_from_nowhere_waits_for_a_synchronisation() {
    let (sim, context, stream) = checked();
    let buffer = DeviceBuffer::from_slice(&stream, &[3u32; 16]).unwrap();
    let exported = buffer.export().unwrap();
    // SAFETY: nobody used it.
    let mut back = unsafe { exported.take_back_unknown() };
    let error = back.fill(&stream, 1).unwrap_err();
    assert!(matches!(error, MemoryError::Stream(StreamError::Conflict { .. })), "{error:?}");
    context.synchronize_all().unwrap();
    back.fill(&stream, 1).unwrap();
    assert_eq!(back.to_vec(&stream).unwrap(), [1; 16]);
    // A dropped one is kept that long, too, and then given back.
    drop(back.export().unwrap());
    assert!(context.drain(Duration::from_millis(50)).is_complete());
    assert_eq!(context.stats().live_allocations, 1);
    context.synchronize_all().unwrap();
    until(|| context.stats().live_allocations == 0);
    assert_eq!(context.stats().quarantined, 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

/// What came back from nowhere and is dropped before a synchronisation is not lost: the synchronisation gives it back. One that began
/// before the return does not.
#[test]
fn what_is_dropped_after_it_came_back_from_nowhere_waits_for_a_synchronisation() {
    let (sim, context, stream) = checked();
    let raw = raw_stream(&context);
    let export = || DeviceBuffer::from_slice(&stream, &[3u32; 160]).unwrap().export().unwrap();
    let exported = export();
    let address = exported.cu_deviceptr();
    // SAFETY: nobody used it.
    drop(unsafe { exported.take_back_unknown() });
    let stats = context.stats();
    assert_eq!((stats.live_allocations, stats.reclaiming_bytes, stats.quarantined), (0, 640, 0));
    let others: Vec<_> = (0..4).map(|_| DeviceBuffer::<u32>::zeroed(&stream, 160).unwrap()).collect();
    assert!(others.iter().all(|other| other.cu_deviceptr() != address), "foreign code may still use it");
    let freed = sim.counts().of(Entry::cuMemFreeAsync);
    context.synchronize_all().unwrap();
    assert!(context.drain(SOON).is_complete());
    assert_eq!(sim.counts().of(Entry::cuMemFreeAsync), freed + 1);
    assert_eq!((context.stats().reclaiming_bytes, context.stats().quarantined), (0, 0));
    // Foreign work holds a synchronisation up, and the memory comes back meanwhile.
    let gate = sim.gate(raw).unwrap();
    // SAFETY: the stream is alive, and the function takes nothing.
    unsafe { call!(sim.driver(), cuLaunchHostFunc(raw, Some(nothing), std::ptr::null_mut())) }.unwrap();
    let (before, exported) = (sim.counts().of(Entry::cuCtxSynchronize), export());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| context.synchronize_all().unwrap());
        until(|| sim.counts().of(Entry::cuCtxSynchronize) > before);
        // SAFETY: nobody used it.
        drop(unsafe { exported.take_back_unknown() });
        gate.open();
        waiter.join().unwrap();
    });
    assert_eq!(context.stats().reclaiming_bytes, 640, "it began before the return");
    context.synchronize_all().unwrap();
    assert!(context.drain(SOON).is_complete());
    assert_eq!((context.stats().reclaiming_bytes, context.stats().quarantined), (0, 0));
    assert!(context.take_errors().is_empty());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

#[test]
fn an_export_comes_back_by_a_stream_of_another_device() {
    let sim = Simulator::builder().devices(2).checks(Checks::ALL).quiet().build();
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    let buffer = DeviceBuffer::from_slice(&a, &[3u32; 16]).unwrap();
    let mut theirs = DeviceBuffer::<u32>::zeroed(&b, 16).unwrap();
    let exported = buffer.export().unwrap();
    exported.follow_on(&b).unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(b.cu_stream()).unwrap();
    theirs.fill(&b, 8).unwrap();
    let (driver, to, from) = (sim.driver(), exported.cu_deviceptr(), theirs.cu_deviceptr());
    // SAFETY: both are alive; the stream is the one that the export comes back by.
    unsafe { call!(driver, cuMemcpyPeerAsync(to, zero.cu_ctx(), from, one.cu_ctx(), 64, b.cu_stream())) }
        .unwrap();
    // SAFETY: the copy is on that stream.
    let back = unsafe { exported.take_back(&b) }.unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| back.to_vec(&a).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [8; 16]);
    });
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn foreign_memory_is_an_argument_like_any_other() {
    let (sim, context, stream) = checked();
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut y = DeviceBuffer::<f32>::from_foreign(theirs(&context, 400, &dropped)).unwrap();
    y.copy_from_slice(&stream, &[1.0; 100]).unwrap();
    let x = DeviceBuffer::from_slice(&stream, &[2.0f32; 100]).unwrap();
    let module = context.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/saxpy.ptx")).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    let args = LaunchArgs::new().arg(100u32).arg(3.0f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: both buffers have 100 elements.
    unsafe { stream.launch(&kernel, LaunchConfig::for_num_elems(100), args) }.unwrap();
    let mut pinned = PinnedHostBuffer::<f32>::zeroed(&context, 100).unwrap();
    pinned.copy_from(&stream, &y).unwrap();
    assert_eq!(pinned.read().unwrap()[..], [7.0; 100]);
    assert_eq!(sim.counts().of(Entry::cuMemFree), 0);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}
