//! Initialisation, version, names of errors.

use crate::entry::entries;
use core::ffi::{c_char, c_int, c_uint};
use simtile_driver::sys::*;
use simtile_sync::Global;
use simtile_sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

/// Error texts as C strings, made on first use and kept.
static TEXTS: Global<BTreeMap<(CUresult, bool), &'static CStr>> = Global::new(BTreeMap::new());

fn text(code: CUresult, long: bool) -> Option<&'static CStr> {
    let name = code.name()?;
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(&(code, long)) {
        return Some(known);
    }
    let text = match code.explain() {
        Some(explained) if long => explained,
        _ => name,
    };
    let text: &'static CStr = Box::leak(CString::new(text).ok()?.into_boxed_c_str());
    texts.insert((code, long), text);
    Some(text)
}

entries! {
    fn cuInit(call, flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if call.core.config.devices == 0 {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        call.core.initialised.store(true, Ordering::Release);
        Ok(())
    }

    fn cuDriverGetVersion(call, version: *mut c_int) {
        version.set(call.core.config.driver_version.min(call.core.profile.driver_version()))
    }

    fn cuGetErrorName(_call, error: CUresult, text_out: *mut *const c_char) {
        text_out.check()?;
        match text(error, false) {
            Some(text) => text_out.set(text.as_ptr()),
            None => {
                text_out.set(core::ptr::null())?;
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
        }
    }

    fn cuGetErrorString(_call, error: CUresult, text_out: *mut *const c_char) {
        text_out.check()?;
        match text(error, true) {
            Some(text) => text_out.set(text.as_ptr()),
            None => {
                text_out.set(core::ptr::null())?;
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
        }
    }
}
