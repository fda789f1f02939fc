//! The linker of device code, which the simulator does not have: it loads PTX, Tile bytecode and fat binaries as they are.

use super::memory::unsupported;
use crate::entry::entries;
use core::ffi::{c_char, c_uint, c_void};
use simtile_driver::sys::*;

const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;

entries! {
    fn cuLinkCreate(call, _count: c_uint, _options: *mut CUjit_option, _values: *mut *mut c_void, out: *mut CUlinkState) {
        out.check()?;
        Err(unsupported(call, "linking of images (cuModuleLoadData takes each of them)"))
    }

    // Nothing can have been created.
    fn cuLinkAddData(_call, _linker: CUlinkState, _kind: CUjitInputType, _data: *mut c_void, _bytes: usize, _name: *const c_char, _count: c_uint, _options: *mut CUjit_option, _values: *mut *mut c_void) {
        Err(INVALID_HANDLE)
    }

    fn cuLinkAddFile(_call, _linker: CUlinkState, _kind: CUjitInputType, _path: *const c_char, _count: c_uint, _options: *mut CUjit_option, _values: *mut *mut c_void) {
        Err(INVALID_HANDLE)
    }

    fn cuLinkComplete(_call, _linker: CUlinkState, _image: *mut *mut c_void, _bytes: *mut usize) {
        Err(INVALID_HANDLE)
    }

    fn cuLinkDestroy(_call, _linker: CUlinkState) {
        Err(INVALID_HANDLE)
    }
}
