//! Modules: loaded code.
//!
//! An image is checked before the driver sees it, because the driver trusts the offsets in it. Loading happens here and
//! in [`Module::load_function`], never in a launch: the driver stops every launch of the context while it loads.

use crate::context::{ForeignOwner, Lane, Work, add};
use crate::error::{CallError, Family, ModuleError, On};
use crate::memory::Memory;
use crate::stream::in_host_function;
use crate::{Constant, Context, Function, Symbol};
use core::ffi::c_void;
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{DriverError, call};
use simtile_image::{ImageInfo, ImageKind};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;
use std::ffi::CString;
use std::path::Path;

/// Bytes of each of the driver's two logs.
const LOG_BYTES: usize = 8 << 10;

/// Loaded code of one context. Shared as `Arc<Module>`; functions and symbols keep it.
///
/// A dropped module is unloaded in the background when everything that was launched before has finished. Until then it is
/// counted in [`ContextStats::retained_modules`](crate::ContextStats::retained_modules).
pub struct Module {
    raw: CUmodule,
    context: Arc<Context>,
    /// What the image says about itself; `None` for borrowed modules.
    info: Option<ImageInfo>,
    name: String,
    /// Whoever keeps a borrowed module alive.
    #[allow(dead_code, reason = "held, never used")]
    owner: Option<Arc<dyn ForeignOwner>>,
}

impl Context {
    /// Loads an image of any kind: PTX, cubin, fat binary, or, on a simulated driver, Tile IR bytecode.
    ///
    /// Stalls: the driver waits for all pending work of the context, and launches of other threads block meanwhile.
    ///
    /// # Errors
    /// [`ModuleError::BadImage`] if the image is not whole, [`ModuleError::NeedsTileCompiler`], or
    /// [`ModuleError::Load`] with the driver's log.
    pub fn load_module(self: &Arc<Self>, image: &[u8]) -> Result<Arc<Module>, ModuleError> {
        self.load_named(image, None)
    }

    /// The same as [`Context::load_module`].
    ///
    /// # Errors
    /// As [`Context::load_module`].
    pub fn load_module_from_image(self: &Arc<Self>, image: &[u8]) -> Result<Arc<Module>, ModuleError> {
        self.load_module(image)
    }

    /// Loads PTX text.
    ///
    /// # Errors
    /// As [`Context::load_module`].
    pub fn load_module_from_ptx_src(self: &Arc<Self>, text: &str) -> Result<Arc<Module>, ModuleError> {
        match simtile_image::check(text.as_bytes()) {
            Ok(info) if info.kind != ImageKind::Ptx => Err(ModuleError::BadImage {
                image: "PTX text".into(),
                why: format!("this is a {}, not PTX", kind_name(info.kind)),
            }),
            _ => self.load_module(text.as_bytes()),
        }
    }

    /// Loads an image from a file.
    ///
    /// # Errors
    /// [`ModuleError::File`], else as [`Context::load_module`].
    pub fn load_module_from_file(
        self: &Arc<Self>,
        path: impl AsRef<Path>,
    ) -> Result<Arc<Module>, ModuleError> {
        let path = path.as_ref();
        let image = std::fs::read(path)
            .map_err(|source| ModuleError::File { path: path.display().to_string(), source })?;
        self.load_named(&image, Some(path))
    }

    fn load_named(self: &Arc<Self>, image: &[u8], path: Option<&Path>) -> Result<Arc<Module>, ModuleError> {
        let describe = |kind: &str| match path {
            Some(path) => format!("{kind} {}", path.display()),
            None => format!("{kind} of {} bytes", image.len()),
        };
        let info = simtile_image::check(image)
            .map_err(|error| ModuleError::BadImage { image: describe("image"), why: error.to_string() })?;
        let name = describe(kind_name(info.kind));
        let raw = self.load_raw(image).map_err(|(error, log)| match error {
            CallError::Driver(source) if info.kind == ImageKind::TileBytecode && is_foreign_image(source) => {
                ModuleError::NeedsTileCompiler { image: name.clone(), target: self.target() }
            }
            CallError::Driver(source) => ModuleError::Load { image: name.clone(), log, source },
            other => ModuleError::from_call(other, name.clone()),
        })?;
        Ok(Arc::new(Module { raw, context: self.clone(), info: Some(info), name, owner: None }))
    }

    /// Loads a checked image. The error carries the driver's log.
    fn load_raw(&self, image: &[u8]) -> Result<CUmodule, (CallError, String)> {
        // PTX must end with a NUL. The copy is also as aligned as the driver may assume of an image.
        let mut bytes = Vec::with_capacity(image.len() + 16);
        bytes.extend_from_slice(image);
        bytes.resize(image.len() + 16, 0);
        let mut errors = vec![0u8; LOG_BYTES];
        let mut infos = vec![0u8; LOG_BYTES];
        let size = core::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CUjit_option::CU_JIT_INFO_LOG_BUFFER,
            CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [errors.as_mut_ptr().cast(), size, infos.as_mut_ptr().cast(), size];
        let loaded = self.with_current(|driver| {
            let mut raw = CUmodule::NULL;
            let count = options.len() as u32;
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            // SAFETY: the image is whole and ends with a NUL; the logs have the stated sizes; the context is current.
            unsafe {
                call!(driver, cuModuleLoadDataEx(&mut raw, bytes.as_ptr().cast(), count, options, values))
            }?;
            Ok(raw)
        });
        loaded.map_err(|error| {
            let text = |log: &[u8]| {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                String::from_utf8_lossy(&log[..end]).trim().to_string()
            };
            let log = [text(&errors), text(&infos)].into_iter().filter(|log| !log.is_empty());
            (error, log.collect::<Vec<_>>().join("\n"))
        })
    }

    /// The device's architecture, such as `sm_90`.
    fn target(&self) -> String {
        self.capabilities().map_or_else(
            |_| "this device".into(),
            |found| format!("sm_{}{}", found.compute_capability.0, found.compute_capability.1),
        )
    }
}

/// Whether a driver says: this is no image that I know.
fn is_foreign_image(error: DriverError) -> bool {
    matches!(
        error.code(),
        CUresult::CUDA_ERROR_INVALID_IMAGE
            | CUresult::CUDA_ERROR_INVALID_PTX
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_INVALID_SOURCE
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    )
}

fn kind_name(kind: ImageKind) -> &'static str {
    match kind {
        ImageKind::Ptx => "PTX",
        ImageKind::Cubin => "cubin",
        ImageKind::Fatbin => "fat binary",
        ImageKind::TileBytecode => "Tile IR bytecode",
        _ => "image",
    }
}

impl Module {
    /// Wraps a module that somebody else loaded. It is never unloaded through this handle, and nothing is known
    /// about its kernels but what the driver tells.
    ///
    /// # Safety
    /// `raw` is a loaded module of `context`, and stays loaded as long as `owner` is held; without an owner, as long as
    /// this handle and everything made from it.
    pub unsafe fn borrow_raw(
        raw: CUmodule,
        context: &Arc<Context>,
        owner: Option<Arc<dyn ForeignOwner>>,
    ) -> Arc<Self> {
        let name = format!("borrowed module {:#x}", raw.0);
        Arc::new(Self { raw, context: context.clone(), info: None, name, owner })
    }

    /// The driver's handle.
    pub fn cu_module(&self) -> CUmodule {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What the image says about itself; `None` for borrowed modules.
    pub fn info(&self) -> Option<&ImageInfo> {
        self.info.as_ref()
    }

    /// The kernel of this name, with its attributes read and its code loaded.
    ///
    /// # Errors
    /// [`ModuleError::NotFound`] with the names there are, or the driver's.
    pub fn load_function(self: &Arc<Self>, name: &str) -> Result<Function, ModuleError> {
        Function::load(self, name)
    }

    /// The variable of this name.
    ///
    /// # Errors
    /// [`ModuleError::NotFound`], or the driver's.
    pub fn symbol(self: &Arc<Self>, name: &str) -> Result<Symbol, ModuleError> {
        let text = c_name(name)?;
        let found = self.context.with_current(|driver| {
            let (mut address, mut bytes) = (0, 0);
            // SAFETY: the module is loaded, the name ends with a NUL, the out-pointers are valid for the call.
            unsafe { call!(driver, cuModuleGetGlobal(&mut address, &mut bytes, self.raw, text.as_ptr())) }?;
            Ok((address, bytes))
        });
        let (address, bytes) = self.found(found, "variable", name, Vec::new)?;
        Ok(Symbol::new(self.clone(), name, address, bytes))
    }

    /// The constant of this name, as a value of type `T`.
    ///
    /// # Errors
    /// [`ModuleError::SymbolSize`] if its size is not that of `T`, else as [`Module::symbol`].
    pub fn constant<T: DeviceCopy>(self: &Arc<Self>, name: &str) -> Result<Constant<T>, ModuleError> {
        Constant::new(self.symbol(name)?)
    }

    /// Turns a failed look-up into an error that names what was looked for.
    pub(crate) fn found<T>(
        &self,
        result: Result<T, CallError>,
        kind: &'static str,
        name: &str,
        known: impl FnOnce() -> Vec<String>,
    ) -> Result<T, ModuleError> {
        match result {
            Err(CallError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_NOT_FOUND => {
                let (module, name) = (self.to_string(), name.to_string());
                Err(ModuleError::NotFound { module, kind, name, known: known() })
            }
            other => other.on(|| format!("{kind} {name} of {self}")),
        }
    }
}

/// Unloads a module when everything that was launched so far has finished: its own launches are among that.
fn unload(memory: Memory) {
    let context = memory.context().clone();
    if context.usable().is_ok() {
        let stamps = context.tracker().tails().into();
        context.shared().lanes.push(Lane::Module, Work::Memory(memory, stamps));
    }
}

/// A name for the driver.
pub(crate) fn c_name(name: &str) -> Result<CString, ModuleError> {
    CString::new(name).map_err(|_| ModuleError::NulInName { name: name.into() })
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.info.is_none() || crate::sys::is_forked() {
            return;
        }
        add(&self.context.counters().retained_modules, 1);
        let (context, raw) = (self.context.clone(), self.raw);
        let memory = Memory::module(context.clone(), raw, core::mem::take(&mut self.name));
        if in_host_function() {
            // Asking where the streams stand makes driver calls.
            let lanes = context.shared().lanes.clone();
            let job = move || unload(memory);
            lanes.push(Lane::Memory, Work::Job(Box::new(job)));
        } else {
            unload(memory);
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({}, {:#x}, {})", self.name, self.raw.0, self.context)
    }
}
