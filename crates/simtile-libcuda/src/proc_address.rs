//! `cuGetProcAddress`: the function of a name with the newest signature that the caller knows.

use super::newer;
use simtile_driver::sys::*;
use std::ffi::{CStr, c_char, c_int, c_void};

/// One signature of a name.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// CUDA version in which the signature appeared.
    pub(crate) since: i32,
    pub(crate) function: *const c_void,
}

// SAFETY: the pointer is a function's address.
unsafe impl Sync for Row {}

/// Asks for the variants that mean the per-thread default stream by handle 0.
const PER_THREAD_DEFAULT_STREAM: u64 =
    CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0 as u64;

fn find(name: &str, version: i32) -> Result<*const c_void, CUdriverProcAddressQueryResult> {
    let rows = || super::TABLE.iter().chain(newer::TABLE).filter(|row| row.name == name);
    match rows().filter(|row| row.since <= version).max_by_key(|row| row.since) {
        Some(row) => Ok(row.function),
        None if rows().next().is_some() => {
            Err(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
        }
        None => Err(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    }
}

/// CUDA's entry of this name, answered here: the table's own would know nothing of C names.
///
/// # Safety
/// `symbol` is a NUL-terminated string; `function` and, unless null, `status` can be written.
pub(crate) unsafe fn query(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    if symbol.is_null() || function.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's duty.
    let name = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap_or_default();
    let found = if flags & PER_THREAD_DEFAULT_STREAM != 0 {
        // Not exported: handle 0 would mean another stream than the caller expects.
        Err(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
    } else {
        find(name, version)
    };
    // SAFETY: the caller's duty; null was tested.
    unsafe {
        *function = found.map_or(std::ptr::null_mut(), |pointer| pointer.cast_mut());
        if !status.is_null() {
            *status = found.err().unwrap_or(CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS);
        }
    }
    if found.is_ok() { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_FOUND }
}
