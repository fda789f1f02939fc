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

/// `words` lies in managed memory, `plain` does not; `first` holds the address of `words`. `bump()`: `words[1] += plain`.
const VARIABLES: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 words[4] = {5, 6};
.visible .global .align 4 .u32 plain = 10;
.visible .global .align 8 .u64 first = generic(words);
.visible .entry bump()
{
  .reg .b32 %r<4>;
  ld.global.u32 %r1, [plain];
  ld.global.u32 %r2, [words+4];
  add.u32 %r3, %r1, %r2;
  st.global.u32 [words+4], %r3;
  ret;
}
\0";

/// The value of a pointer attribute of at most 8 bytes.
fn pointer_attribute(rig: &Rig, which: CUpointer_attribute, address: u64) -> u64 {
    let mut value = 0u64;
    ok!(rig, cuPointerGetAttribute((&raw mut value).cast(), which, address));
    value
}

/// Four words at an address that host and devices share.
fn words(address: u64) -> [u32; 4] {
    let pointer = std::ptr::with_exposed_provenance::<[u32; 4]>(address as usize);
    // SAFETY: four words of managed memory, with no work on them.
    unsafe { pointer.read_volatile() }
}

fn variable(rig: &Rig, module: CUmodule, name: &std::ffi::CStr) -> (u64, usize) {
    let (mut address, mut bytes) = (0, 0);
    ok!(rig, cuModuleGetGlobal(&mut address, &mut bytes, module, name.as_ptr()));
    (address, bytes)
}

#[test]
fn variables_of_modules_in_managed_memory() {
    for rig in rigs() {
        let (mut module, stream) = (CUmodule::NULL, rig.stream());
        ok!(rig, cuModuleLoadData(&mut module, VARIABLES.as_ptr().cast()));
        let (address, bytes) = variable(&rig, module, c"words");
        assert_eq!((bytes, words(address)), (16, [5, 6, 0, 0]));
        use CUpointer_attribute as A;
        let plain = variable(&rig, module, c"plain").0;
        for (which, managed, ordinary) in [
            (A::CU_POINTER_ATTRIBUTE_IS_MANAGED, 1, Some(0)),
            (A::CU_POINTER_ATTRIBUTE_HOST_POINTER, address, None),
            (A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address, Some(plain)),
            (A::CU_POINTER_ATTRIBUTE_CONTEXT, rig.context.0 as u64, None),
            (A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, 16, Some(4)),
        ] {
            assert_eq!(pointer_attribute(&rig, which, address), managed, "{which:?}");
            if let Some(ordinary) = ordinary {
                assert_eq!(pointer_attribute(&rig, which, plain), ordinary, "{which:?} of a plain one");
            }
        }
        let mut first = 0u64;
        ok!(rig, cuMemcpyDtoH((&raw mut first).cast(), variable(&rig, module, c"first").0, 8));
        assert_eq!(first, address);
        // The kernel sees what the host writes, and the other way round.
        let pointer = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
        // SAFETY: the second of four words, with no work on them.
        unsafe { pointer.add(1).write_volatile(100) };
        let bump = rig.function(module, "bump");
        let gate = rig.sim.gate(stream).unwrap();
        rig.run(bump, stream, &[]);
        let reports = touch(&rig, address, AccessMode::Read);
        assert!(reports[0].text.contains("'words'"), "{reports:?}");
        gate.open();
        ok!(rig, cuStreamSynchronize(stream));
        assert_eq!(words(address), [5, 110, 0, 0]);
        assert!(touch(&rig, address, AccessMode::Read).is_empty());
        // It can be attached, but goes with its module only.
        ok!(rig, cuStreamAttachMemAsync(stream, address, 0, SINGLE));
        assert_eq!(code!(rig, cuMemFree(address)), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code!(rig, cuMemFreeAsync(address, stream)), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(rig, cuModuleUnload(module));
        assert_eq!(code!(rig, cuMemsetD8(address, 1, 16)), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(rig.sim.take_reports(), []);
    }
}

/// A library's is one for all contexts and devices, and goes with the library.
#[test]
fn variables_of_libraries_in_managed_memory() {
    let rig = Rig::with(builder(Mode::Fifo).devices(2));
    let mut library = CUlibrary::NULL;
    let none = std::ptr::null_mut();
    ok!(
        rig,
        cuLibraryLoadData(
            &mut library,
            VARIABLES.as_ptr().cast(),
            none,
            none.cast(),
            0,
            none.cast(),
            none.cast(),
            0
        )
    );
    let managed = || {
        let (mut address, mut bytes) = (0, 0);
        ok!(rig, cuLibraryGetManaged(&mut address, &mut bytes, library, c"words".as_ptr()));
        assert_eq!(bytes, 16);
        address
    };
    for name in [c"plain", c"nothing"] {
        let (mut address, mut bytes) = (0, 0);
        assert_eq!(
            code!(rig, cuLibraryGetManaged(&mut address, &mut bytes, library, name.as_ptr())),
            CUresult::CUDA_ERROR_NOT_FOUND
        );
    }
    let address = managed();
    let run = || {
        let (mut kernel, mut function) = (CUkernel::NULL, CUfunction::NULL);
        ok!(rig, cuLibraryGetKernel(&mut kernel, library, c"bump".as_ptr()));
        ok!(rig, cuKernelGetFunction(&mut function, kernel));
        let stream = rig.stream();
        rig.run(function, stream, &[]);
        ok!(rig, cuStreamSynchronize(stream));
    };
    run();
    let mut second = CUcontext::NULL;
    ok!(rig, cuDevicePrimaryCtxRetain(&mut second, 1));
    ok!(rig, cuCtxSetCurrent(second));
    assert_eq!(managed(), address);
    run();
    assert_eq!(words(address), [5, 26, 0, 0]);
    // A context that ends takes its module along, not the variable.
    ok!(rig, cuDevicePrimaryCtxReset(0));
    assert_eq!((managed(), words(address)), (address, [5, 26, 0, 0]));
    ok!(rig, cuLibraryUnload(library));
    assert_eq!(code!(rig, cuMemsetD8(address, 1, 16)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(rig.sim.take_reports(), []);
}

#[test]
fn managed_variables_are_global_ones() {
    let rig = Rig::with(builder(Mode::Fifo));
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for (place, text) in [
        ("const", format!("{head}.const .attribute(.managed) .u32 c;\n.entry k() {{ ret; }}\n\0")),
        ("shared", format!("{head}.entry k() {{\n.shared .attribute(.managed) .u32 c;\nret; }}\n\0")),
    ] {
        let mut module = CUmodule::NULL;
        let code = code!(rig, cuModuleLoadData(&mut module, text.as_ptr().cast()));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX, "{place}");
        let reports = rig.sim.take_reports();
        assert!(reports[0].text.contains("`c`, which is not in `.global`"), "{place}: {reports:?}");
    }
}
