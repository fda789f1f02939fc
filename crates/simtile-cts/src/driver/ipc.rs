//! Memory and events shared with other processes.
//!
//! The simulated driver has no other process to share with: it says so with `CUDA_ERROR_NOT_SUPPORTED`, not with a handle
//! that leads nowhere. A real driver gives handles; what another process does with them is beyond a test in one.

use crate::frame::{Check, Cx, Need};
use crate::gpu::Gpu;
use crate::{code, cu, ensure, ok};
use simtile_driver::sys::*;

const SIMULATED: Need = Need::Simulator("only there is sharing between processes left out");

crate::frame::registry::tests! { Driver, "ipc";
    memory_is_given_or_refused,
    events_are_given_or_refused,
    opening_is_refused needs [SIMULATED],
    closing_what_was_not_opened,
    own_memory_needs_a_handle_type,
}

/// Whether a driver that was asked for a handle gave one. Where it does not, the reason is the documented one.
fn given(code: CUresult, bytes: &[std::ffi::c_char]) -> Check {
    match code {
        CUresult::CUDA_SUCCESS => ensure!(bytes.iter().any(|&byte| byte != 0), "the handle is empty"),
        code => ensure!(code == CUresult::CUDA_ERROR_NOT_SUPPORTED, "asked for a handle: {code:?}"),
    }
    Ok(())
}

fn memory_is_given_or_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let memory = gpu.alloc(1 << 20)?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let code = cu!(cx, cuIpcGetMemHandle(&mut handle, memory));
    ensure!(cx.simulator().is_none() || !code.is_ok(), "a simulator gave a handle for other processes");
    given(code, &handle.reserved)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuIpcGetMemHandle(&mut handle, 0x10))
}

fn events_are_given_or_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let flags =
        CUevent_flags(CUevent_flags::CU_EVENT_INTERPROCESS.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0);
    let mut event = CUevent::NULL;
    let code = cu!(cx, cuEventCreate(&mut event, flags.0));
    if !code.is_ok() {
        // What cannot be shared may be refused from the start.
        ensure!(code == CUresult::CUDA_ERROR_NOT_SUPPORTED, "an event for other processes: {code:?}");
        event = gpu.event()?;
    }
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    let code = cu!(cx, cuIpcGetEventHandle(&mut handle, event));
    ensure!(cx.simulator().is_none() || !code.is_ok(), "a simulator gave a handle for other processes");
    given(code, &handle.reserved)
}

fn opening_is_refused(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let (mut memory, mut event) = (0, CUevent::NULL);
    let handle = CUipcMemHandle { reserved: [1; 64] };
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuIpcOpenMemHandle(&mut memory, handle, 1))?;
    let handle = CUipcEventHandle { reserved: [1; 64] };
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuIpcOpenEventHandle(&mut event, handle))?;
    ensure!(memory == 0 && event.is_null(), "something was opened: {memory:#x}, {event:?}");
    Ok(())
}

fn closing_what_was_not_opened(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let memory = gpu.alloc(4096)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuIpcCloseMemHandle(memory))?;
    ok!(cx, cuMemFree(memory))
}

/// Memory that was not made to be shared is not exported.
fn own_memory_needs_a_handle_type(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let vmm = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    cx.require(&[Need::Attribute(vmm, "virtual memory management")])?;
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let file = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let property = super::vmm::property(gpu.device, none);
    let (mut page, mut handle, mut descriptor) = (0, 0, -1i32);
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    ok!(cx, cuMemGetAllocationGranularity(&mut page, &property, minimum))?;
    ok!(cx, cuMemCreate(&mut handle, page, &property, 0))?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED],
        cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, file, 0)
    )?;
    ensure!(descriptor == -1, "a descriptor was given: {descriptor}");
    ok!(cx, cuMemRelease(handle))
}
