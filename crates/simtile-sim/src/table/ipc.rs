//! Sharing between processes, which the simulator does not do: each process has its own devices.

use super::memory::unsupported;
use crate::entry::entries;
use core::ffi::c_uint;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

entries! {
    fn cuIpcGetEventHandle(call, out: *mut CUipcEventHandle, event: CUevent) {
        out.check()?;
        let _ = super::event::event_uid(call, event)?;
        Err(unsupported(call, "an event that another process can open"))
    }

    fn cuIpcOpenEventHandle(call, out: *mut CUevent, handle: CUipcEventHandle) {
        out.check()?;
        let _ = handle;
        Err(unsupported(call, "an event of another process"))
    }

    fn cuIpcGetMemHandle(call, out: *mut CUipcMemHandle, address: CUdeviceptr) {
        out.check()?;
        call.core.space.find(address).ok_or(INVALID)?;
        Err(unsupported(call, "memory that another process can open"))
    }

    fn cuIpcOpenMemHandle(call, out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        out.check()?;
        let _ = (handle, flags);
        Err(unsupported(call, "memory of another process"))
    }

    // Nothing can have been opened.
    fn cuIpcCloseMemHandle(_call, _address: CUdeviceptr) {
        Err(INVALID)
    }
}
