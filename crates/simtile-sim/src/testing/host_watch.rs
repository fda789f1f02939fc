//! Host memory under pending copies: what the program may do is no report.

use super::{Rig, code, ok};
use crate::config::Checks;
use crate::report::ReportKind;
use crate::{Mode, Simulator};
use simtile_driver::sys::*;
use std::ffi::c_void;

fn rigs() -> Vec<Rig> {
    let build = |mode| Rig::with(Simulator::builder().mode(mode).checks(Checks::ALL).pageable_async(true));
    [Mode::Fast, Mode::Fifo].map(build).into()
}

fn pinned(rig: &Rig) -> *mut u8 {
    let mut pointer = std::ptr::null_mut();
    ok!(rig, cuMemHostAlloc(&mut pointer, 4096, 0));
    pointer.cast()
}

fn device(rig: &Rig) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(rig, cuMemAlloc(&mut pointer, 4096));
    ok!(rig, cuMemsetD8(pointer, 7, 4096));
    ok!(rig, cuCtxSynchronize());
    pointer
}

unsafe extern "C" fn fill(data: *mut c_void) {
    // SAFETY: the tests pass memory of 4096 bytes that nothing else uses meanwhile.
    unsafe { data.cast::<u8>().write_bytes(5, 4096) };
}

#[test]
fn what_the_streams_own_order_writes_is_no_host_write() {
    for rig in rigs() {
        let (stream, host, memory) = (rig.stream(), pinned(&rig), device(&rig));
        let gate = rig.sim.gate(stream).unwrap();
        // By a host function, by an earlier copy, by a memset: all of them before the copy in its stream.
        ok!(rig, cuLaunchHostFunc(stream, Some(fill), host.cast()));
        ok!(rig, cuMemcpyHtoDAsync(memory, host.cast(), 4096, stream));
        ok!(rig, cuMemcpyDtoHAsync(host.cast(), memory, 4096, stream));
        ok!(rig, cuMemcpyHtoDAsync(memory, host.cast(), 4096, stream));
        ok!(rig, cuMemsetD8Async(host as u64, 3, 4096, stream));
        ok!(rig, cuMemcpyHtoDAsync(memory, host.cast(), 4096, stream));
        gate.open();
        ok!(rig, cuStreamSynchronize(stream));
        assert!(rig.sim.take_reports().is_empty());
    }
}

#[test]
fn what_the_host_writes_before_it_gives_the_sign_is_no_host_write() {
    for rig in rigs() {
        let (stream, host, flag, memory) = (rig.stream(), pinned(&rig), pinned(&rig), device(&rig));
        let geq = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ;
        ok!(rig, cuStreamWaitValue32(stream, flag as u64, 1, geq.0));
        ok!(rig, cuMemcpyHtoDAsync(memory, host.cast(), 4096, stream));
        // SAFETY: the copy waits for the sign, which comes after.
        unsafe {
            host.write_bytes(9, 4096);
            (*flag.cast::<std::sync::atomic::AtomicU32>()).store(1, std::sync::atomic::Ordering::Release);
        }
        ok!(rig, cuStreamSynchronize(stream));
        assert!(rig.sim.take_reports().is_empty());
    }
}

#[test]
fn writes_to_pageable_memory_and_between_rows() {
    for rig in rigs() {
        let (stream, memory) = (rig.stream(), device(&rig));
        let mut host = vec![1u8; 4096];
        // Rows of 100 bytes, 256 apart.
        // SAFETY: plain values, for which zero means none.
        let mut copy: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
        (copy.srcMemoryType, copy.srcHost, copy.srcPitch) =
            (CUmemorytype::CU_MEMORYTYPE_HOST, host.as_ptr().cast(), 256);
        (copy.dstMemoryType, copy.dstDevice, copy.dstPitch) =
            (CUmemorytype::CU_MEMORYTYPE_DEVICE, memory, 100);
        (copy.WidthInBytes, copy.Height) = (100, 16);
        for (at, reports) in [(256 + 130, 0), (256 + 99, 1)] {
            let gate = rig.sim.gate(stream).unwrap();
            ok!(rig, cuMemcpy2DAsync(&copy, stream));
            let pointer = host.as_mut_ptr();
            // SAFETY: inside the vector; the copy does not run before the gate opens.
            unsafe { pointer.add(at).write_volatile(8) };
            gate.open();
            ok!(rig, cuStreamSynchronize(stream));
            let found = rig.sim.take_reports();
            assert_eq!(found.len(), reports, "{found:?}");
            for report in found {
                assert_eq!(report.kind, ReportKind::HostWrite);
                assert!(report.text.contains("bytes 64 to 99 of the host memory"), "{report}");
            }
        }
    }
}
