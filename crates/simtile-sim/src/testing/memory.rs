//! Device and host memory and copies through the table: order, blocking, faults, reports.

use super::*;
use crate::ReportKind;
use simtile_driver::Entry;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

impl Rig {
    pub(super) fn alloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok!(self, cuMemAlloc(&mut address, bytes));
        address
    }

    pub(super) fn pinned(&self, bytes: usize) -> *mut u8 {
        let mut host = std::ptr::null_mut();
        ok!(self, cuMemHostAlloc(&mut host, bytes, 0));
        host.cast()
    }

    pub(super) fn upload(&self, to: u64, bytes: &[u8]) {
        ok!(self, cuMemcpyHtoD(to, bytes.as_ptr().cast(), bytes.len()));
    }

    pub(super) fn download(&self, from: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        ok!(self, cuMemcpyDtoH(out.as_mut_ptr().cast(), from, bytes));
        out
    }

    pub(super) fn free_bytes(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        ok!(self, cuMemGetInfo(&mut free, &mut total));
        free
    }

    /// Kinds of the reports since the last call.
    pub(super) fn kinds(&self) -> Vec<ReportKind> {
        self.sim.take_reports().iter().map(|report| report.kind).collect()
    }
}

/// Runs a call on another thread; gives whether it had returned before `then` was called, and its code.
fn returns_before(
    rig: &Rig,
    call: impl Fn(&Rig) -> CUresult + Sync,
    then: impl FnOnce(),
) -> (bool, CUresult) {
    let returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            ok!(rig, cuCtxSetCurrent(rig.context));
            let code = call(rig);
            returned.store(true, Ordering::Release);
            code
        });
        // A call that does not wait is back in microseconds.
        let end = std::time::Instant::now() + Duration::from_millis(60);
        while !returned.load(Ordering::Acquire) && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let early = returned.load(Ordering::Acquire);
        then();
        (early, thread.join().unwrap())
    })
}

#[test]
fn freeing_waits_for_the_whole_context_but_not_for_pool_memory() {
    for rig in Rig::modes() {
        let stream = rig.stream();
        let (a, host) = (rig.alloc(64), rig.pinned(64));
        let mut pooled = 0;
        ok!(rig, cuMemAllocAsync(&mut pooled, 64, stream));
        ok!(rig, cuStreamSynchronize(stream));
        let gate = rig.sim.gate(stream).unwrap();
        ok!(rig, cuMemFree(pooled));
        let call = |rig: &Rig| code!(rig, cuMemFree(a));
        assert_eq!(returns_before(&rig, call, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
        let gate = rig.sim.gate(stream).unwrap();
        let host = host.addr();
        let call = |rig: &Rig| code!(rig, cuMemFreeHost(host as *mut c_void));
        assert_eq!(returns_before(&rig, call, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
        assert_eq!(code!(rig, cuMemFree(a)), INVALID);
    }
}

#[test]
fn copies_without_a_stream_know_blocking_streams_only() {
    let rig = Rig::new();
    let (stream, blocking) = (rig.stream(), rig.blocking_stream());
    let a = rig.alloc(64);
    let gate = rig.sim.gate(stream).unwrap();
    rig.upload(a, &[3; 64]);
    assert_eq!(rig.download(a, 64), [3; 64], "the non-blocking stream is still held");
    drop(gate);
    let gate = rig.sim.gate(blocking).unwrap();
    // Between device ranges, and memsets: queued behind the blocking stream, but nobody waits.
    ok!(rig, cuMemsetD8(a, 5, 32));
    ok!(rig, cuMemcpyDtoD(a + 32, a, 32));
    let copy = |rig: &Rig| {
        let mut out = [0u8; 64];
        let code = code!(rig, cuMemcpyDtoH(out.as_mut_ptr().cast(), a, 64));
        assert_eq!(out, [5; 64]);
        code
    };
    assert_eq!(returns_before(&rig, copy, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
}

#[test]
fn pageable_memory_is_taken_over_or_waited_for() {
    let rig = Rig::new();
    let stream = rig.stream();
    let a = rig.alloc(2 << 20);
    let gate = rig.sim.gate(stream).unwrap();
    // Up to 1 MiB the bytes are those of the call.
    let mut host = vec![1u8; 1 << 20];
    ok!(rig, cuMemcpyHtoDAsync(a, host.as_ptr().cast(), host.len(), stream));
    host.fill(2);
    drop(gate);
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(rig.download(a, 1 << 20), vec![1; 1 << 20]);
    // More is waited for.
    let gate = rig.sim.gate(stream).unwrap();
    let big = vec![7u8; (1 << 20) + 1];
    let call = |rig: &Rig| code!(rig, cuMemcpyHtoDAsync(a, big.as_ptr().cast(), big.len(), stream));
    assert_eq!(returns_before(&rig, call, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
    // A download into pageable memory always is, however small.
    let gate = rig.sim.gate(stream).unwrap();
    let call = |rig: &Rig| {
        let mut out = [0u8; 4];
        let code = code!(rig, cuMemcpyDtoHAsync(out.as_mut_ptr().cast(), a, 4, stream));
        assert_eq!(out, [7; 4]);
        code
    };
    assert_eq!(returns_before(&rig, call, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
}

#[test]
fn pinned_memory_is_read_and_written_when_the_stream_gets_there() {
    for rig in Rig::modes() {
        let stream = rig.stream();
        let (a, host) = (rig.alloc(16), rig.pinned(32));
        let gate = rig.sim.gate(stream).unwrap();
        // SAFETY: 32 bytes of pinned memory.
        unsafe { host.write_bytes(1, 32) };
        ok!(rig, cuMemcpyHtoDAsync(a, host.cast(), 16, stream));
        ok!(rig, cuMemcpyDtoHAsync(host.wrapping_add(16).cast(), a, 16, stream));
        // SAFETY: as above; no work touches it yet.
        unsafe { host.write_bytes(9, 16) };
        drop(gate);
        ok!(rig, cuStreamSynchronize(stream));
        // SAFETY: as above; the work is done.
        assert_eq!(unsafe { std::slice::from_raw_parts(host, 32) }, [9; 32]);
        // Managed memory is the host's too.
        let mut managed = 0;
        ok!(rig, cuMemAllocManaged(&mut managed, 16, 1));
        ok!(rig, cuMemcpyAsync(managed, a, 16, stream));
        ok!(rig, cuStreamSynchronize(stream));
        // SAFETY: 16 bytes of managed memory.
        assert_eq!(unsafe { std::slice::from_raw_parts(managed as usize as *const u8, 16) }, [9; 16]);
    }
}

#[test]
fn memory_that_says_so_synchronises() {
    let rig = Rig::new();
    let stream = rig.stream();
    let a = rig.alloc(16);
    let on = 1u32;
    ok!(
        rig,
        cuPointerSetAttribute(
            (&raw const on).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
            a
        )
    );
    let gate = rig.sim.gate(stream).unwrap();
    let call = |rig: &Rig| code!(rig, cuMemsetD8Async(a, 1, 16, stream));
    assert_eq!(returns_before(&rig, call, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
}

#[test]
fn work_on_memory_that_was_freed_meanwhile_loses_the_context() {
    for rig in Rig::modes() {
        let (a, b) = (rig.stream(), rig.stream());
        let mut p = 0;
        ok!(rig, cuMemAllocAsync(&mut p, 64, a));
        ok!(rig, cuStreamSynchronize(a));
        let gate = rig.sim.gate(a).unwrap();
        ok!(rig, cuMemsetD8Async(p, 1, 64, a));
        ok!(rig, cuMemFreeAsync(p, b));
        ok!(rig, cuStreamSynchronize(b));
        drop(gate);
        assert_eq!(code!(rig, cuStreamSynchronize(a)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let reports = rig.sim.take_reports();
        let fault = reports.iter().find(|report| report.kind == ReportKind::MemoryFault);
        assert!(fault.is_some_and(|report| report.text.contains("use after free")), "{reports:?}");
        let mut free = 0;
        assert_eq!(
            code!(rig, cuMemGetInfo(&mut free, std::ptr::null_mut())),
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        );
    }
}

#[test]
fn the_host_reading_what_nobody_wrote_is_told_once_a_copy() {
    let rig = Rig::new();
    let a = rig.alloc(64);
    rig.upload(a, &[1; 32]);
    rig.download(a, 32);
    assert_eq!(rig.kinds(), []);
    rig.download(a, 64);
    rig.download(a + 40, 8);
    let reports = rig.sim.take_reports();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0].kind, ReportKind::UninitialisedRead);
    assert!(reports[0].text.contains(&format!("{:#x}", a + 32)), "{}", reports[0].text);
    // Addresses are used again, and then nothing is written there.
    ok!(rig, cuMemFree(a));
    let b = rig.alloc(64);
    assert_eq!(a, b);
    rig.download(b, 1);
    assert_eq!(rig.kinds(), [ReportKind::UninitialisedRead]);
    let quiet = Rig::with(Simulator::builder().checks(crate::Checks::NONE));
    quiet.download(quiet.alloc(8), 8);
    assert_eq!(quiet.kinds(), []);
}

#[test]
fn memory_runs_out_and_comes_back() {
    let rig = Rig::with(Simulator::builder().memory(96 << 20));
    assert_eq!(rig.free_bytes(), 96 << 20);
    let a = rig.alloc(60 << 20);
    let mut b = 0;
    assert_eq!(code!(rig, cuMemAlloc(&mut b, 40 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(code!(rig, cuMemAllocManaged(&mut b, 40 << 20, 1)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(
        code!(rig, cuMemAllocAsync(&mut b, 40 << 20, CUstream::NULL)),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
    );
    assert_eq!(rig.free_bytes(), 36 << 20);
    ok!(rig, cuMemFree(a));
    // What a pool keeps is given up when memory is short.
    let mut pool = CUmemoryPool::NULL;
    ok!(rig, cuDeviceGetDefaultMemPool(&mut pool, 0));
    let mut keep = u64::MAX;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    ok!(rig, cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()));
    ok!(rig, cuMemAllocAsync(&mut b, 60 << 20, CUstream::NULL));
    ok!(rig, cuMemFreeAsync(b, CUstream::NULL));
    ok!(rig, cuCtxSynchronize());
    assert_eq!(rig.free_bytes(), 32 << 20);
    let c = rig.alloc(90 << 20);
    ok!(rig, cuMemFree(c));
    assert_eq!(rig.free_bytes(), 96 << 20);
}

#[test]
fn a_context_takes_its_memory_with_it() {
    let rig = Rig::new();
    let before = rig.free_bytes();
    let mut own = CUcontext::NULL;
    ok!(rig, cuCtxCreate(&mut own, 0, 0));
    let (a, host) = (rig.alloc(4096), rig.pinned(64) as u64);
    let mut base = 0;
    ok!(rig, cuMemGetAddressRange(&mut base, std::ptr::null_mut(), host));
    ok!(rig, cuCtxDestroy(own));
    ok!(rig, cuCtxSetCurrent(rig.context));
    assert_eq!(rig.free_bytes(), before);
    assert_eq!(code!(rig, cuMemFree(a)), INVALID);
    let gone = code!(rig, cuMemGetAddressRange(&mut base, std::ptr::null_mut(), host));
    assert_eq!(gone, CUresult::CUDA_ERROR_NOT_FOUND);
}

#[test]
fn fresh_addresses_can_be_asked_for() {
    let rig = Rig::with(Simulator::builder().reuse_addresses(false));
    let a = rig.alloc(64);
    ok!(rig, cuMemFree(a));
    assert_ne!(rig.alloc(64), a);
    let (mut p, mut q) = (0, 0);
    ok!(rig, cuMemAllocAsync(&mut p, 64, CUstream::NULL));
    ok!(rig, cuMemFreeAsync(p, CUstream::NULL));
    ok!(rig, cuMemAllocAsync(&mut q, 64, CUstream::NULL));
    assert_ne!(p, q);
}

#[test]
fn rows_and_slices_arrive_where_they_belong() {
    let rig = Rig::new();
    let a = rig.alloc(4 * 6 * 16);
    rig.upload(a, &[0; 4 * 6 * 16]);
    let host: Vec<u8> = (0..120).collect();
    // SAFETY: all-zero is a valid value of this C structure.
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    (copy.srcMemoryType, copy.srcHost) = (CUmemorytype::CU_MEMORYTYPE_HOST, host.as_ptr().cast());
    (copy.srcPitch, copy.srcHeight, copy.srcXInBytes) = (10, 4, 1);
    (copy.dstMemoryType, copy.dstDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, a);
    (copy.dstPitch, copy.dstHeight) = (16, 6);
    (copy.dstXInBytes, copy.dstY, copy.dstZ) = (2, 1, 1);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (8, 3, 3);
    ok!(rig, cuMemcpy3D(&copy));
    let got = rig.download(a, 4 * 6 * 16);
    for z in 0..4 {
        for y in 0..6 {
            for x in 0..16 {
                let inside = (1..4).contains(&z) && (1..4).contains(&y) && (2..10).contains(&x);
                let expected = if inside { ((z - 1) * 40 + (y - 1) * 10 + x - 1) as u8 } else { 0 };
                assert_eq!(got[(z * 6 + y) * 16 + x], expected, "{x} {y} {z}");
            }
        }
    }
    // And back, in two dimensions, out of the second slice.
    let mut out = [0u8; 24];
    // SAFETY: all-zero is a valid value of this C structure.
    let mut copy: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
    (copy.srcMemoryType, copy.srcDevice, copy.srcPitch) = (CUmemorytype::CU_MEMORYTYPE_UNIFIED, a + 96, 16);
    (copy.srcXInBytes, copy.srcY) = (2, 1);
    (copy.dstMemoryType, copy.dstDevice) = (CUmemorytype::CU_MEMORYTYPE_UNIFIED, out.as_mut_ptr() as u64);
    (copy.WidthInBytes, copy.Height) = (8, 3);
    ok!(rig, cuMemcpy2DAsync(&copy, CUstream::NULL));
    let expected: Vec<u8> = (0..3).flat_map(|y| (0..8).map(move |x| y * 10 + x + 1)).collect();
    assert_eq!(out[..], expected[..]);
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
    copy.srcArray = CUarray(16);
    assert_eq!(code!(rig, cuMemcpy2D(&copy)), NOT_SUPPORTED);
    assert_eq!(rig.kinds(), [ReportKind::Unsupported]);
}

#[test]
fn registered_memory_is_used_in_place_and_left_alone_afterwards() {
    let rig = Rig::new();
    let mut memory = vec![0u8; 4096];
    let host = memory.as_mut_ptr().cast::<c_void>();
    ok!(rig, cuMemHostRegister(host, 4096, 0));
    ok!(rig, cuMemsetD32(host as u64, 0x0403_0201, 1024));
    ok!(rig, cuMemHostUnregister(host));
    assert_eq!(memory[..5], [1, 2, 3, 4, 1]);
    let flags = CU_MEMHOSTREGISTER_IOMEMORY;
    assert_eq!(code!(rig, cuMemHostRegister(host, 4096, flags)), NOT_SUPPORTED);
    assert_eq!(code!(rig, cuMemHostRegister((1usize << 48) as *mut c_void, 4096, 0)), INVALID);
    assert_eq!(rig.kinds(), [ReportKind::Unsupported]);
}

#[test]
fn what_the_simulator_does_not_do_is_said() {
    let rig = Rig::new();
    let a = rig.alloc(16);
    let mut memory = CUipcMemHandle { reserved: [0; 64] };
    let mut event = CUipcEventHandle { reserved: [0; 64] };
    let (mut p, mut e, mut value) = (0, CUevent::NULL, 0u64);
    assert_eq!(code!(rig, cuIpcGetMemHandle(&mut memory, a)), NOT_SUPPORTED);
    assert_eq!(code!(rig, cuIpcOpenMemHandle(&mut p, memory, 0)), NOT_SUPPORTED);
    assert_eq!(code!(rig, cuIpcGetEventHandle(&mut event, rig.event())), NOT_SUPPORTED);
    assert_eq!(code!(rig, cuIpcOpenEventHandle(&mut e, event)), NOT_SUPPORTED);
    let tokens = CUpointer_attribute::CU_POINTER_ATTRIBUTE_P2P_TOKENS;
    assert_eq!(code!(rig, cuPointerGetAttribute((&raw mut value).cast(), tokens, a)), NOT_SUPPORTED);
    let reports = rig.sim.take_reports();
    assert!(reports.iter().all(|report| report.kind == ReportKind::Unsupported));
    assert!(reports[0].text.starts_with("cuIpcGetMemHandle:"), "{}", reports[0].text);
    assert_eq!(reports.len(), 5);
    // Null pointers come first.
    assert_eq!(code!(rig, cuIpcGetMemHandle(std::ptr::null_mut(), a)), INVALID);
    assert_eq!(
        code!(rig, cuIpcGetEventHandle(&mut event, CUevent::NULL)),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
fn stale_streams_and_injected_failures_have_no_effect() {
    let rig = Rig::new();
    let stream = rig.stream();
    ok!(rig, cuStreamDestroy(stream));
    let (a, mut p) = (rig.alloc(16), 0);
    rig.upload(a, &[1; 16]);
    let handle = CUresult::CUDA_ERROR_INVALID_HANDLE;
    assert_eq!(code!(rig, cuMemsetD8Async(a, 2, 16, stream)), handle);
    assert_eq!(code!(rig, cuMemcpyDtoDAsync(a, a, 16, stream)), handle);
    assert_eq!(code!(rig, cuMemAllocAsync(&mut p, 16, stream)), handle);
    assert_eq!(code!(rig, cuMemFreeAsync(a, stream)), handle);
    assert_eq!(code!(rig, cuMemPrefetchAsync(a, 16, 0, stream)), handle);
    rig.sim.fail(Entry::cuMemFree, 1, CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(code!(rig, cuMemFree(a)), CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(rig.download(a, 16), [1; 16]);
}

#[test]
fn copies_fill_the_queue_and_allocations_do_not() {
    let rig = Rig::new();
    let stream = rig.stream();
    let a = rig.alloc(16);
    let gate = rig.sim.gate(stream).unwrap();
    for _ in 0..3000 {
        let mut p = 0;
        ok!(rig, cuMemAllocAsync(&mut p, 16, stream));
        ok!(rig, cuMemFreeAsync(p, stream));
    }
    for _ in 0..1021 {
        ok!(rig, cuMemsetD8Async(a, 1, 16, stream));
    }
    let call = |rig: &Rig| code!(rig, cuMemsetD8Async(a, 1, 16, stream));
    assert_eq!(returns_before(&rig, call, || drop(gate)), (false, CUresult::CUDA_SUCCESS));
    ok!(rig, cuStreamSynchronize(stream));
}
