//! Modules, and loading images.

use crate::core::{ContextRef, Res};
use crate::entry::{Call, Out, entries};
use crate::exec::Program;
use crate::modules::extent;
use crate::modules::image::{self, Refusal};
use core::ffi::{c_char, c_uint, c_void};
use simtile_driver::sys::*;
use simtile_sync::{Arc, time};
use std::collections::BTreeMap;

/// Where a load writes what it has to say.
#[derive(Default)]
pub(super) struct JitLog {
    info: Buffer,
    error: Buffer,
    wall_time: bool,
}

#[derive(Default, Clone, Copy)]
struct Buffer {
    address: usize,
    bytes: usize,
    /// Which option holds its size.
    size_option: Option<usize>,
}

impl Buffer {
    /// Writes text, cut to fit, with a NUL; returns the bytes used without it.
    fn write(&self, text: &str) -> usize {
        if self.address == 0 || self.bytes == 0 {
            return 0;
        }
        let length = text.len().min(self.bytes - 1);
        let target: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: the caller of the load said that its log buffer has this many bytes.
        unsafe {
            target.copy_from_nonoverlapping(text.as_ptr(), length);
            target.add(length).write(0);
        }
        length
    }
}

impl JitLog {
    pub(super) fn parse(count: c_uint, options: &Out<CUjit_option>, values: &Out<*mut c_void>) -> Res<Self> {
        let mut log = Self::default();
        for i in 0..count as usize {
            let (option, value) = (options.get_at(i)?, values.get_at(i)?);
            let word = value.addr();
            match option {
                CUjit_option::CU_JIT_INFO_LOG_BUFFER => log.info.address = value.expose_provenance(),
                CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    log.info.bytes = word;
                    log.info.size_option = Some(i);
                }
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER => log.error.address = value.expose_provenance(),
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    log.error.bytes = word;
                    log.error.size_option = Some(i);
                }
                CUjit_option::CU_JIT_WALL_TIME => log.wall_time = true,
                // Addresses of symbols that the host defines: there is nothing to link them with.
                CUjit_option::CU_JIT_GLOBAL_SYMBOL_NAMES
                | CUjit_option::CU_JIT_GLOBAL_SYMBOL_ADDRESSES
                | CUjit_option::CU_JIT_GLOBAL_SYMBOL_COUNT => {
                    return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
                }
                // What steers a compiler changes nothing for an interpreter.
                _ if option.0 < CUjit_option::CU_JIT_NUM_OPTIONS.0 => {}
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            }
        }
        Ok(log)
    }

    /// Writes the logs, their sizes, and the time.
    fn finish(
        &self,
        count: c_uint,
        options: &Out<CUjit_option>,
        values: &Out<*mut c_void>,
        error: &str,
        millis: f32,
    ) -> Res {
        for (buffer, text) in [(&self.info, ""), (&self.error, error)] {
            let used = buffer.write(text);
            if let Some(at) = buffer.size_option {
                values.set_at(at, std::ptr::without_provenance_mut(used))?;
            }
        }
        if self.wall_time {
            for i in 0..count as usize {
                if options.get_at(i)? == CUjit_option::CU_JIT_WALL_TIME {
                    let bits = millis.to_bits() as usize;
                    values.set_at(i, std::ptr::without_provenance_mut(bits))?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a program of the image at `image`, with logs.
pub(super) fn program(
    call: &Call<'_>,
    image: *const c_void,
    count: c_uint,
    options: &Out<CUjit_option>,
    values: &Out<*mut c_void>,
) -> Res<Arc<dyn Program>> {
    if image.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller of a load says that this is a whole image.
    let bytes = unsafe { extent::bytes(image.cast()) };
    program_of(call, bytes, count, options, values)
}

pub(super) fn program_of(
    call: &Call<'_>,
    bytes: Result<&[u8], Refusal>,
    count: c_uint,
    options: &Out<CUjit_option>,
    values: &Out<*mut c_void>,
) -> Res<Arc<dyn Program>> {
    let log = JitLog::parse(count, options, values)?;
    let start = time::now();
    let core = call.core;
    let result = bytes.and_then(|bytes| image::load(bytes, core.traits(), &core.modules.stand_ins));
    let millis = (time::now() - start).as_secs_f32() * 1e3;
    match result {
        Ok(program) => {
            log.finish(count, options, values, "", millis)?;
            Ok(program)
        }
        Err(refusal) => {
            log.finish(count, options, values, &refusal.text, millis)?;
            core.report(refusal.report());
            Err(refusal.code)
        }
    }
}

/// What the real driver does around every load: it waits for everything in the context.
fn load(call: &Call<'_>, out: &Out<CUmodule>, make: impl FnOnce() -> Res<Arc<dyn Program>>) -> Res {
    out.check()?;
    let context: ContextRef = call.context()?;
    let program = make()?;
    call.core.pass_blocked_launches(&context)?;
    call.core.stall(&context)?;
    out.set(call.core.modules.add(call.core, context, program, None, &BTreeMap::new())?)
}

/// The file at a path, with a NUL after it.
pub(super) fn file(path: &str) -> Res<Vec<u8>> {
    let mut bytes = std::fs::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CUresult::CUDA_ERROR_FILE_NOT_FOUND,
        _ => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
    })?;
    // Text needs no terminator here, since its length is known; images may end with anything.
    while bytes.last() == Some(&0) && !bytes.starts_with(b"\x7f") {
        bytes.pop();
    }
    Ok(bytes)
}

/// No options.
pub(super) fn no_options() -> (Out<CUjit_option>, Out<*mut c_void>) {
    (Out::null(), Out::null())
}

entries! {
    fn cuModuleLoad(call, out: *mut CUmodule, path: *const c_char) {
        let bytes = file(path.text()?)?;
        let (options, values) = no_options();
        load(call, &out, || program_of(call, Ok(&bytes), 0, &options, &values))
    }

    fn cuModuleLoadData(call, out: *mut CUmodule, image: *const c_void) {
        let (options, values) = no_options();
        load(call, &out, || program(call, image.raw(), 0, &options, &values))
    }

    fn cuModuleLoadDataEx(call, out: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void) {
        load(call, &out, || program(call, image.raw(), count, &options, &values))
    }

    fn cuModuleLoadFatBinary(call, out: *mut CUmodule, image: *const c_void) {
        let (options, values) = no_options();
        load(call, &out, || program(call, image.raw(), 0, &options, &values))
    }

    fn cuModuleUnload(call, handle: CUmodule) {
        let (context, library) = call.core.modules.module(handle, |m| (m.context, m.library))?;
        call.context_from(context.handle)?;
        if library.is_some() {
            // It goes with its library.
            return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
        }
        // Waits, but lets launches pass.
        call.core.synchronize_context(&context)?;
        call.core.modules.remove(call.core, handle)
    }

    fn cuModuleGetFunction(call, out: *mut CUfunction, handle: CUmodule, name: *const c_char) {
        out.check()?;
        let name = name.text()?;
        if name.is_empty() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let found = call.core.modules.module(handle, |module| {
            let at = module.loaded.program.kernels().iter().position(|kernel| kernel.name == name)?;
            module.functions.get(at).copied()
        })?;
        out.set(found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?)
    }

    fn cuModuleGetFunctionCount(call, out: *mut c_uint, handle: CUmodule) {
        out.check()?;
        out.set(call.core.modules.module(handle, |module| module.functions.len() as c_uint)?)
    }

    fn cuModuleEnumerateFunctions(call, out: *mut CUfunction, count: c_uint, handle: CUmodule) {
        let functions = call.core.modules.module(handle, |module| module.functions.clone())?;
        for (i, function) in functions.iter().take(count as usize).enumerate() {
            out.set_at(i, *function)?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal(call, address: *mut CUdeviceptr, bytes: *mut usize, handle: CUmodule, name: *const c_char) {
        let name = name.text()?;
        let (found_at, size) = call.core.modules.module(handle, |module| super::module::global(module, name))??;
        address.set_if(found_at);
        bytes.set_if(size);
        Ok(())
    }

    fn cuModuleGetLoadingMode(_call, out: *mut CUmoduleLoadingMode) {
        out.set(CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING)
    }
}

/// Address and size of a module's variable.
pub(super) fn global(module: &crate::modules::Module, name: &str) -> Res<(u64, usize)> {
    let globals = module.loaded.program.globals();
    let at = globals.iter().position(|global| global.name == name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    let address = module.loaded.globals.get(at).copied().ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    Ok((address, usize::try_from(globals[at].bytes).unwrap_or(usize::MAX)))
}
