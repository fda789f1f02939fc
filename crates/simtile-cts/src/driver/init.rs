//! Initialisation, version, error texts, symbol lookup.

use crate::frame::{Check, Cx, Stop};
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::ffi::{CStr, c_char, c_void};

crate::frame::registry::tests! { Driver, "init";
    succeeds_and_repeats,
    refuses_flags,
    other_calls_before_it_are_refused,
    version_needs_no_init,
    error_names,
    error_names_of_unknown_codes,
    symbols_by_name_and_version,
}

fn succeeds_and_repeats(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    ok!(cx, cuInit(0))?;
    let mut count = 0;
    ok!(cx, cuDeviceGetCount(&mut count))
}

fn refuses_flags(cx: &Cx) -> Check {
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuInit(1))?;
    // A refused call initialises nothing.
    let mut count = 0;
    code!(cx, [CUDA_ERROR_NOT_INITIALIZED], cuDeviceGetCount(&mut count))
}

fn other_calls_before_it_are_refused(cx: &Cx) -> Check {
    let (mut count, mut device) = (0, 0);
    code!(cx, [CUDA_ERROR_NOT_INITIALIZED], cuDeviceGetCount(&mut count))?;
    code!(cx, [CUDA_ERROR_NOT_INITIALIZED], cuDeviceGet(&mut device, 0))?;
    let mut context = CUcontext::NULL;
    code!(cx, [CUDA_ERROR_NOT_INITIALIZED], cuDevicePrimaryCtxRetain(&mut context, 0))?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_NOT_INITIALIZED], cuMemAlloc(&mut pointer, 16))
}

fn version_needs_no_init(cx: &Cx) -> Check {
    let mut version = 0;
    ok!(cx, cuDriverGetVersion(&mut version))?;
    ensure!(version >= 12000, "driver version {version}, simtile needs 12000 or later");
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDriverGetVersion(std::ptr::null_mut()))
}

fn text(pointer: *const c_char) -> Check<String> {
    if pointer.is_null() {
        return Err(Stop::fail("the text is null"));
    }
    // SAFETY: the driver returned a pointer to a NUL-terminated text that lives as long as the driver.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

fn error_names(cx: &Cx) -> Check {
    for (expected, code) in [
        ("CUDA_SUCCESS", CUresult::CUDA_SUCCESS),
        ("CUDA_ERROR_INVALID_VALUE", CUresult::CUDA_ERROR_INVALID_VALUE),
        ("CUDA_ERROR_NOT_READY", CUresult::CUDA_ERROR_NOT_READY),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        ("CUDA_ERROR_UNKNOWN", CUresult::CUDA_ERROR_UNKNOWN),
    ] {
        let mut pointer = std::ptr::null();
        ok!(cx, cuGetErrorName(code, &mut pointer))?;
        ensure_eq!(text(pointer)?, expected, "name of {}", code.0);
        let mut pointer = std::ptr::null();
        ok!(cx, cuGetErrorString(code, &mut pointer))?;
        ensure!(!text(pointer)?.is_empty(), "the text of {} is empty", code.0);
    }
    Ok(())
}

fn error_names_of_unknown_codes(cx: &Cx) -> Check {
    let unknown = CUresult(12345);
    let mut pointer = c"untouched".as_ptr();
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGetErrorName(unknown, &mut pointer))?;
    ensure!(pointer.is_null(), "the name of an unknown code is not null");
    let mut pointer = c"untouched".as_ptr();
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuGetErrorString(unknown, &mut pointer))?;
    ensure!(pointer.is_null(), "the text of an unknown code is not null");
    Ok(())
}

fn symbols_by_name_and_version(cx: &Cx) -> Check {
    let look_up = |name: &CStr, version| {
        let mut pointer = std::ptr::null_mut();
        let mut status = CUdriverProcAddressQueryResult(99);
        let code = cu!(cx, cuGetProcAddress(name.as_ptr(), &mut pointer, version, 0, &mut status));
        (code, pointer.is_null(), status)
    };
    let (code, null, status) = look_up(c"cuMemAlloc", 12000);
    if cx.simulator().is_some() {
        // A driver value in this process has a table, not C symbols; those of `simtile-libcuda` have addresses.
        ensure_eq!((code, null), (CUresult::CUDA_ERROR_NOT_SUPPORTED, true), "cuMemAlloc of a simulator");
        return Ok(());
    }
    ensure!(code.is_ok() && !null, "cuMemAlloc at 12000: {code:?}, null: {null}");
    ensure_eq!(status, CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS, "status of cuMemAlloc");
    // An address is that of the call.
    let mut pointer = std::ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult(99);
    let name = c"cuDriverGetVersion".as_ptr();
    ok!(cx, cuGetProcAddress(name, &mut pointer, 12000, 0, &mut status))?;
    ensure!(!pointer.is_null(), "cuDriverGetVersion is at null");
    let mut version = 0;
    // SAFETY: the driver gave the address for this name, whose signature this is.
    let called = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut i32) -> CUresult>(pointer)(&mut version)
    };
    let mut expected = 0;
    ok!(cx, cuDriverGetVersion(&mut expected))?;
    ensure_eq!((called, version), (CUresult::CUDA_SUCCESS, expected), "version by address");
    let (_, null, status) = look_up(c"cuNoSuchCall", 12000);
    ensure!(null, "a call that does not exist has an address");
    ensure_eq!(
        status,
        CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        "status of a call that does not exist"
    );
    // Stream-ordered allocation came with CUDA 11.2.
    let (_, null, status) = look_up(c"cuMemAllocAsync", 10000);
    ensure!(null, "cuMemAllocAsync has an address at version 10000");
    ensure_eq!(
        status,
        CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        "status of a call newer than the version asked for"
    );
    Ok(())
}
