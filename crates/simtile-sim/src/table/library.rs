//! Libraries and their kernels.

use super::function::{attribute, change, param_info};
use super::module::{file, global, program, program_of};
use crate::core::Res;
use crate::entry::{Call, entries};
use crate::exec::GlobalInfo;
use core::ffi::{c_char, c_int, c_uint, c_void};
use simtile_driver::sys::*;

/// Library loads hold up the current context like module loads, if there is one.
fn hold_up(call: &Call<'_>) -> Res {
    if call.current_handle().is_null() {
        return Ok(());
    }
    let context = call.context()?;
    call.core.pass_blocked_launches(&context)?;
    call.core.stall(&context)
}

entries! {
    fn cuLibraryLoadData(call, out: *mut CUlibrary, code: *const c_void, options: *mut CUjit_option, values: *mut *mut c_void, count: c_uint, _library_options: *mut CUlibraryOption, _library_values: *mut *mut c_void, _library_count: c_uint) {
        out.check()?;
        let program = program(call, code.raw(), count, &options, &values)?;
        hold_up(call)?;
        out.set(call.core.modules.add_library(call.core, program)?)
    }

    fn cuLibraryLoadFromFile(call, out: *mut CUlibrary, path: *const c_char, options: *mut CUjit_option, values: *mut *mut c_void, count: c_uint, _library_options: *mut CUlibraryOption, _library_values: *mut *mut c_void, _library_count: c_uint) {
        out.check()?;
        let bytes = file(path.text()?)?;
        let program = program_of(call, Ok(&bytes), count, &options, &values)?;
        hold_up(call)?;
        out.set(call.core.modules.add_library(call.core, program)?)
    }

    fn cuLibraryUnload(call, handle: CUlibrary) {
        call.core.modules.library(handle, |_| ())?;
        hold_up(call)?;
        call.core.modules.remove_library(call.core, handle)
    }

    fn cuLibraryGetKernel(call, out: *mut CUkernel, handle: CUlibrary, name: *const c_char) {
        out.check()?;
        let name = name.text()?;
        let found = call.core.modules.library(handle, |library| {
            let at = library.program.kernels().iter().position(|kernel| kernel.name == name)?;
            library.kernels.get(at).copied()
        })?;
        out.set(found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?)
    }

    fn cuLibraryGetKernelCount(call, out: *mut c_uint, handle: CUlibrary) {
        out.check()?;
        out.set(call.core.modules.library(handle, |library| library.kernels.len() as c_uint)?)
    }

    fn cuLibraryEnumerateKernels(call, out: *mut CUkernel, count: c_uint, handle: CUlibrary) {
        let kernels = call.core.modules.library(handle, |library| library.kernels.clone())?;
        for (i, kernel) in kernels.iter().take(count as usize).enumerate() {
            out.set_at(i, *kernel)?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(call, out: *mut CUmodule, handle: CUlibrary) {
        out.check()?;
        out.set(call.core.modules.library_module(call.core, handle, call.context()?)?)
    }

    fn cuLibraryGetGlobal(call, address: *mut CUdeviceptr, bytes: *mut usize, handle: CUlibrary, name: *const c_char) {
        let name = name.text()?;
        let module = call.core.modules.library_module(call.core, handle, call.context()?)?;
        let (found_at, size) = call.core.modules.module(module, |module| global(module, name))??;
        address.set_if(found_at);
        bytes.set_if(size);
        Ok(())
    }

    fn cuLibraryGetManaged(call, address: *mut CUdeviceptr, bytes: *mut usize, handle: CUlibrary, name: *const c_char) {
        let name = name.text()?;
        let is = |global: &GlobalInfo| global.managed && global.name == name;
        if !call.core.modules.library(handle, |library| library.program.globals().iter().any(is))? {
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        // It is there once the library is in some context, and at the same address in all of them.
        let module = call.core.modules.library_module(call.core, handle, call.context()?)?;
        let (found_at, size) = call.core.modules.module(module, |module| global(module, name))??;
        address.set_if(found_at);
        bytes.set_if(size);
        Ok(())
    }

    fn cuKernelGetFunction(call, out: *mut CUfunction, kernel: CUkernel) {
        out.check()?;
        out.set(call.core.modules.kernel_function(call.core, kernel, call.context()?)?)
    }

    fn cuKernelGetAttribute(call, out: *mut c_int, which: CUfunction_attribute, kernel: CUkernel, device: CUdevice) {
        out.check()?;
        call.core.device(device)?;
        let kernel = call.core.modules.kernel(kernel)?;
        out.set(attribute(call.core.profile, kernel.info(), &kernel.settings, which)?)
    }

    fn cuKernelSetAttribute(call, which: CUfunction_attribute, value: c_int, handle: CUkernel, device: CUdevice) {
        let device = call.core.device(device)?;
        let kernel = call.core.modules.kernel(handle)?;
        call.core.modules.change_kernel(handle, device, |settings| {
            change(call.core.profile, kernel.info(), settings, which, value)
        })
    }

    fn cuKernelGetName(call, out: *mut *const c_char, kernel: CUkernel) {
        out.check()?;
        out.set(call.core.modules.kernel(kernel)?.c_name())
    }

    fn cuKernelGetParamInfo(call, kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize) {
        offset.check()?;
        param_info(call.core.modules.kernel(kernel)?.info(), index, &offset, &size)
    }

    fn cuKernelSetCacheConfig(call, kernel: CUkernel, config: CUfunc_cache, device: CUdevice) {
        call.core.device(device)?;
        call.core.modules.kernel(kernel)?;
        config.name().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE).map(drop)
    }
}
