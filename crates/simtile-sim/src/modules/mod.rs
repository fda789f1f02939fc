//! Loaded modules, functions, libraries and kernels.
//!
//! A module belongs to a context and is an instance of a program: its variables have addresses. A library
//! belongs to no context; it becomes a module in each context that asks for one. All kernels of a
//! module get their function handles when it is loaded.

pub(crate) mod extent;
pub(crate) mod image;
mod standin;

pub(crate) use standin::StandIns;
pub use standin::{StandInCall, StandInError};

use crate::core::{ContextRef, Core, Res};
use crate::engine::launch::Loaded;
use crate::entry::invalid_handle;
use crate::exec::{DeviceTraits, GlobalInfo, KernelInfo, LoadFault, Program};
use crate::handles::{Handles, Kind};
use crate::memory::{Allocation, MemoryKind, Origin};
use crate::profile::Limits;
use crate::tile::TileFunctions;
use core::ffi::c_char;
use simtile_driver::sys::{CUfunction, CUkernel, CUlibrary, CUmemAttach_flags, CUmodule, CUresult};
use simtile_sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::ffi::CString;

/// PTX text becomes a program.
pub(crate) fn load_ptx(text: &str, traits: DeviceTraits) -> Result<Arc<dyn Program>, LoadFault> {
    #[cfg(test)]
    if let Some(program) = crate::testing::program::load(text) {
        return Ok(program);
    }
    crate::ptx::load(text, traits).map(Arc::from)
}

/// Tile bytecode becomes a program.
pub(crate) fn load_tile(
    bytes: &[u8],
    traits: DeviceTraits,
    functions: &TileFunctions,
) -> Result<Arc<dyn Program>, LoadFault> {
    crate::tile::load_with(bytes, traits, functions).map(Arc::from)
}

/// What `cuFuncSetAttribute` sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) max_dynamic_shared: u32,
    pub(crate) carveout: i32,
    pub(crate) cluster: [u32; 3],
    pub(crate) non_portable_cluster: bool,
    pub(crate) cluster_policy: i32,
}

impl Settings {
    fn new(info: &KernelInfo, limits: &Limits) -> Self {
        Self {
            max_dynamic_shared: limits.shared_per_block.saturating_sub(info.static_shared_bytes),
            carveout: -1,
            cluster: info.required_cluster.unwrap_or([0; 3]),
            non_portable_cluster: false,
            cluster_policy: 0,
        }
    }
}

/// A kernel of a module.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) module: CUmodule,
    pub(crate) context: ContextRef,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) kernel: usize,
    pub(crate) settings: Settings,
    name: Arc<CString>,
}

impl Function {
    pub(crate) fn info(&self) -> &KernelInfo {
        // Made from an index into this very list.
        &self.loaded.program.kernels()[self.kernel]
    }

    /// The name as C sees it, valid as long as the module is loaded.
    pub(crate) fn c_name(&self) -> *const c_char {
        self.name.as_ptr()
    }
}

/// A loaded module.
pub(crate) struct Module {
    pub(crate) context: ContextRef,
    pub(crate) loaded: Arc<Loaded>,
    /// Handles of its kernels, by number.
    pub(crate) functions: Vec<CUfunction>,
    /// The library it was made for.
    pub(crate) library: Option<CUlibrary>,
}

/// A library.
pub(crate) struct Library {
    pub(crate) program: Arc<dyn Program>,
    pub(crate) kernels: Vec<CUkernel>,
    /// Its modules by context uid.
    modules: BTreeMap<u64, CUmodule>,
    /// Addresses of its managed variables, which all of its modules share, by number of the variable; placed with the first
    /// module.
    managed: BTreeMap<usize, u64>,
}

/// A kernel of a library.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) library: CUlibrary,
    pub(crate) kernel: usize,
    pub(crate) program: Arc<dyn Program>,
    pub(crate) settings: Settings,
    name: Arc<CString>,
}

impl Kernel {
    pub(crate) fn info(&self) -> &KernelInfo {
        // Made from an index into this very list.
        &self.program.kernels()[self.kernel]
    }

    pub(crate) fn c_name(&self) -> *const c_char {
        self.name.as_ptr()
    }
}

struct Tables {
    modules: Handles<Module>,
    functions: Handles<Function>,
    libraries: Handles<Library>,
    kernels: Handles<Kernel>,
}

/// All modules and libraries of a driver.
pub(crate) struct Modules {
    tables: Mutex<Tables>,
    /// Held while a library with managed variables becomes a module, so that they are placed once. Taken before the tables.
    placing: Mutex<()>,
    pub(crate) stand_ins: StandIns,
}

fn c_name(info: &KernelInfo) -> Arc<CString> {
    // A name with a NUL inside cannot be asked for; what is before it is shown.
    let bytes = info.name.bytes().take_while(|&byte| byte != 0).collect::<Vec<_>>();
    Arc::new(CString::new(bytes).unwrap_or_default())
}

impl Modules {
    pub(crate) fn new(simulator: u64) -> Self {
        let tables = Tables {
            modules: Handles::new(Kind::Module, simulator),
            functions: Handles::new(Kind::Function, simulator),
            libraries: Handles::new(Kind::Library, simulator),
            kernels: Handles::new(Kind::Kernel, simulator),
        };
        Self { tables: Mutex::new(tables), placing: Mutex::new(()), stand_ins: StandIns::default() }
    }

    /// How many modules are loaded, those of libraries included.
    pub(crate) fn count(&self) -> usize {
        self.tables.lock().modules.iter().count()
    }

    /// Whether values of destroyed objects are handed out again at once.
    pub(crate) fn recycle_handles(&self, recycle: bool) {
        let mut tables = self.tables.lock();
        tables.modules.set_recycling(recycle);
        tables.functions.set_recycling(recycle);
        tables.libraries.set_recycling(recycle);
        tables.kernels.set_recycling(recycle);
    }

    /// Places a program in a context. `placed` has the variables, by number, that are somewhere already.
    pub(crate) fn add(
        &self,
        core: &Core,
        context: ContextRef,
        program: Arc<dyn Program>,
        library: Option<(CUlibrary, &[Settings])>,
        placed: &BTreeMap<usize, u64>,
    ) -> Res<CUmodule> {
        let globals = place(core, &context, &*program, placed)?;
        let loaded = Arc::new(Loaded { program, globals, traits: core.traits() });
        let limits = core.profile.limits();
        let mut tables = self.tables.lock();
        let module = Module {
            context,
            loaded: loaded.clone(),
            functions: Vec::new(),
            library: library.map(|(library, _)| library),
        };
        let full = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let handle = CUmodule(tables.modules.insert(module).ok_or(full)?);
        let mut functions = Vec::new();
        for (kernel, info) in loaded.program.kernels().iter().enumerate() {
            let settings = library.and_then(|(_, settings)| settings.get(kernel).copied());
            let function = Function {
                module: handle,
                context,
                loaded: loaded.clone(),
                kernel,
                settings: settings.unwrap_or_else(|| Settings::new(info, &limits)),
                name: c_name(info),
            };
            functions.push(CUfunction(tables.functions.insert(function).ok_or(full)?));
        }
        if let Ok(module) = tables.modules.get_mut(handle.0) {
            module.functions = functions;
        }
        Ok(handle)
    }

    /// Something of a module.
    pub(crate) fn module<T>(&self, handle: CUmodule, get: impl FnOnce(&Module) -> T) -> Res<T> {
        self.tables.lock().modules.get(handle.0).map(get).map_err(invalid_handle)
    }

    /// A function.
    pub(crate) fn function(&self, handle: CUfunction) -> Res<Function> {
        self.tables.lock().functions.get(handle.0).cloned().map_err(invalid_handle)
    }

    pub(crate) fn change_function(
        &self,
        handle: CUfunction,
        change: impl FnOnce(&mut Settings) -> Res,
    ) -> Res {
        let mut tables = self.tables.lock();
        change(&mut tables.functions.get_mut(handle.0).map_err(invalid_handle)?.settings)
    }

    /// Takes a module away; what runs or is queued keeps the program.
    pub(crate) fn remove(&self, core: &Core, handle: CUmodule) -> Res {
        let mut tables = self.tables.lock();
        let module = tables.modules.remove(handle.0).map_err(invalid_handle)?;
        for function in &module.functions {
            let _ = tables.functions.remove(function.0);
        }
        drop(tables);
        let shared = module.library.is_some();
        for (global, &address) in module.loaded.program.globals().iter().zip(&module.loaded.globals) {
            if !(shared && global.managed) {
                // Mapped by `place`.
                let _ = core.space.release(address);
            }
        }
        Ok(())
    }

    /// A context is gone, and its modules with it.
    pub(crate) fn context_ended(&self, core: &Core, context: u64) {
        let gone: Vec<usize> = {
            let mut tables = self.tables.lock();
            let libraries: Vec<usize> = tables.libraries.iter().map(|(handle, _)| handle).collect();
            for library in libraries {
                if let Ok(library) = tables.libraries.get_mut(library) {
                    library.modules.remove(&context);
                }
            }
            tables
                .modules
                .iter()
                .filter(|(_, m)| m.context.uid == context)
                .map(|(handle, _)| handle)
                .collect()
        };
        for handle in gone {
            let _ = self.remove(core, CUmodule(handle));
        }
    }

    pub(crate) fn add_library(&self, core: &Core, program: Arc<dyn Program>) -> Res<CUlibrary> {
        let limits = core.profile.limits();
        let full = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let mut tables = self.tables.lock();
        let library = Library {
            program: program.clone(),
            kernels: Vec::new(),
            modules: BTreeMap::new(),
            managed: BTreeMap::new(),
        };
        let handle = CUlibrary(tables.libraries.insert(library).ok_or(full)?);
        let mut kernels = Vec::new();
        for (kernel, info) in program.kernels().iter().enumerate() {
            let kernel = Kernel {
                library: handle,
                kernel,
                program: program.clone(),
                settings: Settings::new(info, &limits),
                name: c_name(info),
            };
            kernels.push(CUkernel(tables.kernels.insert(kernel).ok_or(full)?));
        }
        if let Ok(library) = tables.libraries.get_mut(handle.0) {
            library.kernels = kernels;
        }
        Ok(handle)
    }

    /// Something of a library.
    pub(crate) fn library<T>(&self, handle: CUlibrary, get: impl FnOnce(&Library) -> T) -> Res<T> {
        self.tables.lock().libraries.get(handle.0).map(get).map_err(invalid_handle)
    }

    /// A kernel of a library.
    pub(crate) fn kernel(&self, handle: CUkernel) -> Res<Kernel> {
        self.tables.lock().kernels.get(handle.0).cloned().map_err(invalid_handle)
    }

    /// Changes a kernel's settings, also of its functions on one device.
    pub(crate) fn change_kernel(
        &self,
        handle: CUkernel,
        device: i32,
        change: impl Fn(&mut Settings) -> Res,
    ) -> Res {
        let mut tables = self.tables.lock();
        let (library, index) = {
            let kernel = tables.kernels.get_mut(handle.0).map_err(invalid_handle)?;
            change(&mut kernel.settings)?;
            (kernel.library, kernel.kernel)
        };
        let functions: Vec<CUfunction> = tables
            .modules
            .iter()
            .filter(|(_, module)| module.library == Some(library) && module.context.device == device)
            .filter_map(|(_, module)| module.functions.get(index).copied())
            .collect();
        for function in functions {
            if let Ok(function) = tables.functions.get_mut(function.0) {
                change(&mut function.settings)?;
            }
        }
        Ok(())
    }

    /// The module of a library in a context, made on first use.
    pub(crate) fn library_module(
        &self,
        core: &Core,
        handle: CUlibrary,
        context: ContextRef,
    ) -> Res<CUmodule> {
        let shares = self.library(handle, |library| library.program.globals().iter().any(|g| g.managed))?;
        let _one = shares.then(|| self.placing.lock());
        let (program, settings, placed) = {
            let tables = self.tables.lock();
            let library = tables.libraries.get(handle.0).map_err(invalid_handle)?;
            if let Some(&module) = library.modules.get(&context.uid) {
                return Ok(module);
            }
            let settings: Vec<Settings> = library
                .kernels
                .iter()
                .filter_map(|kernel| tables.kernels.get(kernel.0).ok().map(|kernel| kernel.settings))
                .collect();
            (library.program.clone(), settings, library.managed.clone())
        };
        let module = self.add(core, context, program, Some((handle, &settings)), &placed)?;
        let raced = {
            let mut tables = self.tables.lock();
            if shares && placed.is_empty() {
                let globals = tables.modules.get(module.0).map(|m| m.loaded.managed()).unwrap_or_default();
                match tables.libraries.get_mut(handle.0) {
                    Ok(library) => library.managed = globals,
                    // It was unloaded meanwhile.
                    Err(_) => globals.into_values().for_each(|address| drop(core.space.release(address))),
                }
            }
            let library = tables.libraries.get_mut(handle.0).map_err(invalid_handle)?;
            match library.modules.get(&context.uid) {
                // Another thread was faster.
                Some(&first) => Some(first),
                None => {
                    library.modules.insert(context.uid, module);
                    None
                }
            }
        };
        match raced {
            Some(first) => {
                self.remove(core, module)?;
                Ok(first)
            }
            None => Ok(module),
        }
    }

    /// The function of a library's kernel in a context.
    pub(crate) fn kernel_function(
        &self,
        core: &Core,
        handle: CUkernel,
        context: ContextRef,
    ) -> Res<CUfunction> {
        let kernel = self.kernel(handle)?;
        let module = self.library_module(core, kernel.library, context)?;
        self.module(module, |module| module.functions.get(kernel.kernel).copied())?
            .ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    pub(crate) fn remove_library(&self, core: &Core, handle: CUlibrary) -> Res {
        let library = {
            let mut tables = self.tables.lock();
            let library = tables.libraries.remove(handle.0).map_err(invalid_handle)?;
            for kernel in &library.kernels {
                let _ = tables.kernels.remove(kernel.0);
            }
            library
        };
        let removed = library.modules.into_values().try_for_each(|module| self.remove(core, module));
        for address in library.managed.into_values() {
            // Mapped by `place`.
            let _ = core.space.release(address);
        }
        removed
    }
}

/// Gives a program's variables addresses and first values. Those in `there`, by number, have both already.
fn place(
    core: &Core,
    context: &ContextRef,
    program: &dyn Program,
    there: &BTreeMap<usize, u64>,
) -> Res<Vec<u64>> {
    let mut placed: Vec<(&GlobalInfo, Arc<Allocation>)> = Vec::new();
    let mut addresses = Vec::new();
    for (number, global) in program.globals().iter().enumerate() {
        if let Some(&address) = there.get(&number) {
            addresses.push(address);
            continue;
        }
        let (kind, flags) = match global.managed {
            true => (MemoryKind::Managed, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0),
            false => (MemoryKind::ModuleGlobal, 0),
        };
        // Not the context's number: the variable goes with its module, not with the context's other memory.
        let handle = if global.managed { context.handle.0 } else { 0 };
        let origin = Origin { context: handle, flags, variable: true, ..Origin::default() };
        let Ok(allocation) = core.space.create(kind, context.device, global.bytes, 1, origin) else {
            for (_, allocation) in &placed {
                let _ = core.space.release(allocation.base);
            }
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        };
        allocation.set_label(&global.name);
        addresses.push(allocation.base);
        placed.push((global, allocation));
    }
    for (global, allocation) in &placed {
        let (backing, offset) = allocation.backing();
        let first = global.init.len().min(usize::try_from(global.bytes).unwrap_or(usize::MAX));
        backing.write(offset, &global.init[..first]);
        backing.mark_written(offset, global.bytes);
        for &(at, target, addend) in &global.relocations {
            let target = addresses.get(target).copied().unwrap_or(0);
            if at.checked_add(8).is_some_and(|end| end <= global.bytes) {
                backing.write(offset + at, &target.wrapping_add_signed(addend).to_le_bytes());
            }
        }
    }
    Ok(addresses)
}
