//! Managed memory on devices that cannot share it with the host.

use super::{Rig, code, ok};
use crate::config::Checks;
use crate::report::{Report, ReportKind};
use crate::{Builder, Mode, Simulator};
use simtile_driver::AccessMode;
use simtile_driver::sys::*;

const GLOBAL: u32 = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
const HOST: u32 = CUmemAttach_flags::CU_MEM_ATTACH_HOST.0;
const SINGLE: u32 = CUmemAttach_flags::CU_MEM_ATTACH_SINGLE.0;

fn builder(mode: Mode) -> Builder {
    Simulator::builder().mode(mode).checks(Checks::ALL).concurrent_managed(false)
}

fn rigs() -> [Rig; 2] {
    [Mode::Fast, Mode::Fifo].map(|mode| Rig::with(builder(mode)))
}

fn managed(rig: &Rig, flags: u32) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(rig, cuMemAllocManaged(&mut pointer, 4096, flags));
    pointer
}

/// The host says that it touches four bytes; what was reported of it.
fn touch(rig: &Rig, address: u64, mode: AccessMode) -> Vec<Report> {
    let extras = rig.driver.table().extras.expect("the simulator has extras");
    // SAFETY: the extras of a table take its driver's state.
    assert!(unsafe { (extras.host_access)(rig.driver.state(), address, 4, mode) }.is_ok());
    let reports = rig.sim.take_reports();
    assert!(reports.iter().all(|report| report.kind == ReportKind::ManagedAccess), "{reports:?}");
    reports
}

#[test]
fn the_host_waits_for_every_kernel() {
    for rig in rigs() {
        let (stream, m) = (rig.stream(), managed(&rig, GLOBAL));
        let module = rig.module();
        let count = rig.function(module, "count");
        assert!(touch(&rig, m, AccessMode::Write).is_empty());
        let gate = rig.sim.gate(stream).unwrap();
        rig.run(count, stream, &[]);
        let reports = touch(&rig, m + 8, AccessMode::Read);
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert!(
            reports[0].text.contains("reads bytes 8 to 11 of the buffer of 4096 bytes"),
            "{}",
            reports[0]
        );
        assert!(reports[0].text.contains("before it has waited for kernel count"), "{}", reports[0]);
        gate.open();
        rig.soon(|| rig.sim.pending() == 0);
        // That it is over is not enough: the program has to know.
        assert_eq!(touch(&rig, m, AccessMode::Write).len(), 1);
        ok!(rig, cuStreamSynchronize(stream));
        assert!(touch(&rig, m, AccessMode::Write).is_empty());
    }
}

#[test]
fn sharing_devices_let_the_host_in() {
    let rig = Rig::with(builder(Mode::Fifo).concurrent_managed(true));
    let (stream, m) = (rig.stream(), managed(&rig, GLOBAL));
    let module = rig.module();
    let count = rig.function(module, "count");
    let gate = rig.sim.gate(stream).unwrap();
    rig.run(count, stream, &[]);
    assert!(touch(&rig, m, AccessMode::Write).is_empty());
    gate.open();
    ok!(rig, cuStreamSynchronize(stream));
}

#[test]
fn memory_of_one_stream_follows_that_stream() {
    for rig in rigs() {
        let (a, b, m) = (rig.stream(), rig.stream(), managed(&rig, GLOBAL));
        let module = rig.module();
        let count = rig.function(module, "count");
        ok!(rig, cuStreamAttachMemAsync(a, m, 0, SINGLE));
        ok!(rig, cuStreamSynchronize(a));
        let gate = rig.sim.gate(b).unwrap();
        rig.run(count, b, &[]);
        assert!(touch(&rig, m, AccessMode::Write).is_empty(), "another stream's kernel does not matter");
        rig.run(count, a, &[]);
        rig.soon(|| rig.sim.pending() <= 2);
        assert_eq!(touch(&rig, m, AccessMode::Read).len(), 1);
        ok!(rig, cuStreamSynchronize(a));
        assert!(touch(&rig, m, AccessMode::Read).is_empty());
        gate.open();
        // Work of another stream on it is nobody's right.
        ok!(rig, cuMemsetD8Async(m, 1, 64, b));
        ok!(rig, cuStreamSynchronize(b));
        let reports = rig.sim.take_reports();
        let found =
            reports.iter().filter(|report| report.kind == ReportKind::ManagedAccess).collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "{reports:?}");
        assert!(
            found[0].text.contains("memset") && found[0].text.contains("is attached to stream"),
            "{}",
            found[0]
        );
        // The stream's end gives the memory back to all.
        ok!(rig, cuStreamDestroy(a));
        ok!(rig, cuMemsetD8Async(m, 1, 64, b));
        ok!(rig, cuStreamSynchronize(b));
        assert_eq!(rig.sim.take_reports(), []);
    }
}

#[test]
fn memory_of_the_host_is_out_of_bounds_for_devices() {
    for rig in rigs() {
        let (stream, m) = (rig.stream(), managed(&rig, HOST));
        ok!(rig, cuMemsetD8Async(m, 1, 64, stream));
        ok!(rig, cuStreamSynchronize(stream));
        let reports = rig.sim.take_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert!(reports[0].text.ends_with("which is attached to the host"), "{}", reports[0]);
        ok!(rig, cuStreamAttachMemAsync(stream, m, 0, GLOBAL));
        ok!(rig, cuMemsetD8Async(m, 1, 64, stream));
        ok!(rig, cuStreamAttachMemAsync(stream, m, 0, HOST));
        ok!(rig, cuStreamSynchronize(stream));
        assert_eq!(rig.sim.take_reports(), []);
        // Whatever runs, the host may.
        let module = rig.module();
        let count = rig.function(module, "count");
        let gate = rig.sim.gate(stream).unwrap();
        rig.run(count, stream, &[]);
        assert!(touch(&rig, m, AccessMode::Read).is_empty());
        gate.open();
        ok!(rig, cuCtxSynchronize());
    }
}

#[test]
fn prefetches_and_advice_name_devices_that_share() {
    let rig = Rig::with(builder(Mode::Fifo));
    let (stream, m) = (rig.stream(), managed(&rig, GLOBAL));
    let mut shares = 1;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    ok!(rig, cuDeviceGetAttribute(&mut shares, attribute, 0));
    assert_eq!(shares, 0);
    let refused = CUresult::CUDA_ERROR_INVALID_DEVICE;
    for device in [0, CU_DEVICE_CPU] {
        assert_eq!(code!(rig, cuMemPrefetchAsync(m, 4096, device, stream)), refused);
    }
    for (advice, device, expected) in [
        (CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, 0, CUresult::CUDA_SUCCESS),
        (CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0, refused),
        (CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU, CUresult::CUDA_SUCCESS),
        (CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY, 0, refused),
        (CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0, CUresult::CUDA_SUCCESS),
    ] {
        assert_eq!(code!(rig, cuMemAdvise(m, 4096, advice, device)), expected, "{advice:?} {device}");
    }
}
