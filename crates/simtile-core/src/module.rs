//! Modules: loaded code. `load.rs` makes them.

use crate::context::{ForeignOwner, Lane, Work, add};
use crate::error::{CallError, ModuleError, On};
use crate::memory::{Allocation, Memory};
use crate::stream::drops_go_elsewhere;
use crate::{Constant, Context, Function, Global, GlobalAccess, Symbol};
use core::fmt;
use simtile_driver::call;
use simtile_driver::sys::*;
use simtile_image::{Globals, ImageInfo};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;
use std::ffi::CString;

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
    /// Its variables, as what launches and transfers touch; `None` if it has none.
    globals: Option<Arc<Allocation>>,
    /// Whoever keeps a borrowed module alive.
    #[allow(dead_code, reason = "held, never used")]
    owner: Option<Arc<dyn ForeignOwner>>,
}

impl Module {
    /// A module that was loaded of an image that says this about itself.
    pub(crate) fn new(raw: CUmodule, context: &Arc<Context>, info: ImageInfo, name: String) -> Arc<Self> {
        let globals = (info.globals != Globals::None).then(|| Allocation::globals(context, &name));
        Arc::new(Self { raw, context: context.clone(), info: Some(info), name, globals, owner: None })
    }

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
        let globals = Some(Allocation::globals(context, &name));
        Arc::new(Self { raw, context: context.clone(), info: None, name, globals, owner })
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

    /// The variable of this name, as values of type `T`.
    ///
    /// # Errors
    /// [`ModuleError::SymbolSize`] if it is no whole number of them, else as [`Module::symbol`].
    pub fn global<T: DeviceCopy>(self: &Arc<Self>, name: &str) -> Result<Global<T>, ModuleError> {
        Global::new(self.symbol(name)?)
    }

    /// Its variables, as what launches and transfers touch.
    #[inline]
    pub(crate) fn globals(&self) -> Option<&Arc<Allocation>> {
        self.globals.as_ref()
    }

    /// How a launch touches the variables if its function declares nothing. What is not known to be written is read: a launch of a
    /// module that others loaded, or of an image that was not read, is ordered with transfers alone.
    pub(crate) fn global_access(&self) -> GlobalAccess {
        match self.info.as_ref().map(|info| info.globals) {
            Some(Globals::Mutable) => GlobalAccess::Write,
            _ => GlobalAccess::Read,
        }
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
        if drops_go_elsewhere() {
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
