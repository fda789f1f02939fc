//! Functions: kernels of a loaded module.

use crate::error::{CallError, ModuleError, On};
use crate::module::c_name;
use crate::stream::{Touch, What};
use crate::{Capabilities, Context, LaunchOptions, Module};
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::Mode;
use simtile_sync::atomic::{AtomicU32, Ordering};
use simtile_sync::{Arc, Mutex};

/// What the driver says about a compiled kernel. Read once, when the function is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionAttributes {
    /// Most threads of a block.
    pub max_threads_per_block: u32,
    /// Static shared memory of a block, bytes.
    pub static_shared_memory_bytes: u32,
    /// Constant memory, bytes.
    pub const_size_bytes: u32,
    /// Local memory of a thread, bytes.
    pub local_size_bytes: u32,
    /// Registers of a thread.
    pub num_registers: u32,
    /// The cluster shape that is compiled in.
    pub required_cluster_dimensions: Option<(u32, u32, u32)>,
}

/// What is known about a kernel's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterLayout {
    /// Their sizes in bytes, in order. Launches are checked against them.
    Known(Box<[usize]>),
    /// Neither the image nor the driver says. Launches pass their arguments unchecked.
    Unknown,
}

/// What launches of a function do with the variables of its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GlobalAccess {
    /// Nothing at all.
    None,
    /// Read some: follows what wrote them.
    Read,
    /// Write some, and read: follows everything, and is followed.
    Write,
}

/// A kernel of a loaded module. Cheap to clone; keeps its module loaded.
///
/// Its launches touch the module's variables as one thing. What they do is told by the image: they write if it has variables that
/// kernels can write, else they read. [`Function::with_globals`] says it better.
#[derive(Clone)]
pub struct Function {
    inner: Arc<Inner>,
    globals: GlobalAccess,
}

struct Inner {
    raw: CUfunction,
    module: Arc<Module>,
    name: String,
    attributes: FunctionAttributes,
    /// Most dynamic shared memory of a launch, bytes. Only grows.
    max_dynamic_shared: AtomicU32,
    /// Held while that number is raised in the driver.
    raising: Mutex<()>,
    parameters: ParameterLayout,
    /// The block shape that is compiled in; (1, 1, 1) for Tile kernels.
    required_block: Option<(u32, u32, u32)>,
    capabilities: &'static Capabilities,
    /// What its launches are called, in case that the context is lost.
    what: What,
}

impl Function {
    pub(crate) fn load(module: &Arc<Module>, name: &str) -> Result<Self, ModuleError> {
        let context = module.context();
        let text = c_name(name)?;
        let entry = module.info().and_then(|info| info.entries.iter().find(|entry| entry.name == name));
        let known = || {
            let entries = module.info().map(|info| info.entries.as_slice()).unwrap_or_default();
            entries.iter().map(|entry| entry.name.clone()).collect()
        };
        if name.is_empty() {
            // Drivers call an empty name an invalid value, which says less.
            let (module, name) = (module.to_string(), String::new());
            return Err(ModuleError::NotFound { module, kind: "kernel", name, known: known() });
        }
        let raw = context.with_current(|driver| {
            let mut raw = CUfunction::NULL;
            // SAFETY: the module is loaded, the name ends with a NUL, the out-pointer is valid for the call.
            unsafe { call!(driver, cuModuleGetFunction(&mut raw, module.cu_module(), text.as_ptr())) }?;
            Ok(raw)
        });
        let raw = module.found(raw, "kernel", name, known)?;
        let on = || format!("kernel {name} of {module}");
        let capabilities = context.capabilities().map_err(|error| match error.driver_error() {
            Some(source) => ModuleError::Driver { on: on(), source },
            None => ModuleError::Deinitialized { on: on() },
        })?;
        let (attributes, max_dynamic) = context.with_current(|driver| load_attributes(driver, raw)).on(on)?;
        grow_stack(context, attributes.local_size_bytes).on(on)?;
        let parameters = match entry.and_then(|entry| entry.params.as_ref()) {
            Some(params) => ParameterLayout::Known(params.iter().map(|param| param.size as usize).collect()),
            // The driver lists hidden parameters of Tile kernels too, which no caller passes.
            None if module.info().is_some_and(|info| info.is_tile) => ParameterLayout::Unknown,
            None => context.with_current(|driver| parameters(driver, raw)).on(on)?,
        };
        let required_block = entry.and_then(|entry| entry.required_block).map(|[x, y, z]| (x, y, z));
        Ok(Self {
            globals: module.global_access(),
            inner: Arc::new(Inner {
                raw,
                module: module.clone(),
                name: name.to_string(),
                attributes,
                max_dynamic_shared: AtomicU32::new(max_dynamic),
                raising: Mutex::new(()),
                parameters,
                required_block,
                capabilities,
                what: What::kernel(context.shared().kernel_number(name)),
            }),
        })
    }

    /// The same kernel, with launches that do this to the module's variables and no more.
    ///
    /// # Safety
    /// The kernel, with everything that it calls, does that at most.
    #[must_use]
    pub unsafe fn with_globals(mut self, access: GlobalAccess) -> Self {
        self.globals = access;
        self
    }

    /// What launches do with the module's variables, as far as is known.
    pub fn global_access(&self) -> GlobalAccess {
        match self.inner.module.globals() {
            None => GlobalAccess::None,
            Some(_) => self.globals,
        }
    }

    #[inline]
    pub(crate) fn what(&self) -> What {
        self.inner.what
    }

    /// The touch of a launch.
    #[inline]
    pub(crate) fn touched_globals(&self) -> Option<Touch<'_>> {
        let allocation = self.inner.module.globals()?;
        let mode = match self.globals {
            GlobalAccess::None => return None,
            GlobalAccess::Read => Mode::Read,
            GlobalAccess::Write => Mode::Write,
        };
        Some(Touch { allocation, start: 0, end: 1, mode, stride: None })
    }

    /// The driver's handle. It dies with the module.
    pub fn cu_function(&self) -> CUfunction {
        self.inner.raw
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The module.
    pub fn module(&self) -> &Arc<Module> {
        &self.inner.module
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        self.inner.module.context()
    }

    /// What the driver says about the kernel.
    pub fn attributes(&self) -> FunctionAttributes {
        self.inner.attributes
    }

    /// What is known about the parameters. [`ParameterLayout::Unknown`] means that launches cannot check arguments.
    pub fn parameters(&self) -> &ParameterLayout {
        &self.inner.parameters
    }

    /// The block shape that is compiled in; (1, 1, 1) for Tile kernels.
    pub fn required_block(&self) -> Option<(u32, u32, u32)> {
        self.inner.required_block
    }

    pub(crate) fn capabilities(&self) -> &'static Capabilities {
        self.inner.capabilities
    }

    /// Most dynamic shared memory that a launch may ask for, bytes.
    pub fn max_dynamic_shared_memory_bytes(&self) -> u32 {
        self.inner.max_dynamic_shared.load(Ordering::Relaxed)
    }

    /// Allows launches at least this much dynamic shared memory. Never lowers what was allowed before, so two users of
    /// one function cannot take it from each other.
    ///
    /// # Errors
    /// The driver's, for more than the device has. What was allowed before stays allowed.
    pub fn allow_dynamic_shared_memory(&self, bytes: u32) -> Result<(), ModuleError> {
        let _one_at_a_time = self.inner.raising.lock();
        if bytes <= self.max_dynamic_shared_memory_bytes() {
            return Ok(());
        }
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.context()
            .with_current(|driver| {
                // SAFETY: the function is loaded; the context is current.
                unsafe { call!(driver, cuFuncSetAttribute(self.inner.raw, attribute, value)) }
            })
            .on(|| format!("{self}, {bytes} bytes of dynamic shared memory"))?;
        // Kept only after the driver has taken it.
        self.inner.max_dynamic_shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks of this shape that fit on one multiprocessor at once.
    ///
    /// # Errors
    /// The driver's.
    pub fn max_active_blocks_per_multiprocessor(
        &self,
        threads_per_block: u32,
        dynamic_shared_bytes: usize,
    ) -> Result<u32, ModuleError> {
        let threads = i32::try_from(threads_per_block).unwrap_or(i32::MAX);
        self.ask(|driver, raw, out| {
            // SAFETY: the function is loaded, the out-pointer is valid for the call; the context is current.
            unsafe {
                call!(
                    driver,
                    cuOccupancyMaxActiveBlocksPerMultiprocessor(out, raw, threads, dynamic_shared_bytes)
                )
            }
        })
    }

    /// Most blocks of a cluster that this launch could use.
    ///
    /// # Errors
    /// The driver's.
    pub fn max_potential_cluster_size(&self, options: impl Into<LaunchOptions>) -> Result<u32, ModuleError> {
        let mut attributes = options.into().attributes();
        self.ask(|driver, raw, out| {
            let config = attributes.config(CUstream::NULL);
            // SAFETY: as above; the configuration's attributes live through the call.
            unsafe { call!(driver, cuOccupancyMaxPotentialClusterSize(out, raw, &config)) }
        })
    }

    /// Clusters of this launch that fit on the device at once.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_INVALID_CLUSTER_SIZE` for a shape that it refuses.
    pub fn max_active_clusters(&self, options: impl Into<LaunchOptions>) -> Result<u32, ModuleError> {
        let mut attributes = options.into().attributes();
        self.ask(|driver, raw, out| {
            let config = attributes.config(CUstream::NULL);
            // SAFETY: as above.
            unsafe { call!(driver, cuOccupancyMaxActiveClusters(out, raw, &config)) }
        })
    }

    fn ask(
        &self,
        question: impl FnOnce(Driver, CUfunction, *mut i32) -> Result<(), DriverError>,
    ) -> Result<u32, ModuleError> {
        let mut answer = 0;
        self.context()
            .with_current(|driver| question(driver, self.inner.raw, &mut answer))
            .on(|| self.to_string())?;
        Ok(u32::try_from(answer).unwrap_or(0))
    }
}

fn load_attributes(driver: Driver, raw: CUfunction) -> Result<(FunctionAttributes, u32), DriverError> {
    // Lazy loading would otherwise happen in the first launch. Drivers before CUDA 12.4 have no such call; asking for the
    // attributes loads the code there.
    // SAFETY: the function is of a loaded module; the context is current.
    match unsafe { call!(driver, cuFuncLoad(raw)) } {
        Err(error) if !error.is_missing_entry() => return Err(error),
        _ => {}
    }
    let get = |attribute: CUfunction_attribute| {
        let mut value = 0;
        // SAFETY: as above; the out-pointer is valid for the call.
        unsafe { call!(driver, cuFuncGetAttribute(&mut value, attribute, raw)) }?;
        Ok::<u32, DriverError>(u32::try_from(value).unwrap_or(0))
    };
    use CUfunction_attribute as A;
    // Devices without clusters may not know these.
    let cluster = [
        A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
        A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
    ]
    .map(|attribute| get(attribute).unwrap_or(0));
    let attributes = FunctionAttributes {
        max_threads_per_block: get(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        static_shared_memory_bytes: get(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        const_size_bytes: get(A::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
        local_size_bytes: get(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        num_registers: get(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        required_cluster_dimensions: match cluster {
            [x, y, z] if x > 0 => Some((x, y.max(1), z.max(1))),
            _ => None,
        },
    };
    Ok((attributes, get(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?))
}

/// Raises the stack limit to a kernel's local memory now, so that its first launch does not stall for it.
fn grow_stack(context: &Context, local_bytes: u32) -> Result<(), CallError> {
    if local_bytes == 0 {
        return Ok(());
    }
    context.link().relaxed(|driver| {
        let mut limit = 0;
        // SAFETY: the out-pointer is valid for the call; the context is current.
        unsafe { call!(driver, cuCtxGetLimit(&mut limit, CUlimit::CU_LIMIT_STACK_SIZE)) }?;
        if limit >= local_bytes as usize {
            return Ok(());
        }
        // SAFETY: the context is current.
        unsafe { call!(driver, cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, local_bytes as usize)) }
    })
}

/// Asks the driver for the parameters, one after the other until it says that there is none.
fn parameters(driver: Driver, raw: CUfunction) -> Result<ParameterLayout, DriverError> {
    /// More than any kernel has: 4 KiB of parameters of one byte.
    const MOST: usize = 32764;
    let mut sizes = Vec::new();
    while sizes.len() < MOST {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is loaded, the out-pointers are valid for the call.
        match unsafe { call!(driver, cuFuncGetParamInfo(raw, sizes.len(), &mut offset, &mut size)) } {
            Ok(()) => sizes.push(size),
            Err(error) if error.is_missing_entry() => return Ok(ParameterLayout::Unknown),
            Err(error) if error.code() == CUresult::CUDA_ERROR_INVALID_VALUE => break,
            Err(error) => return Err(error),
        }
    }
    Ok(ParameterLayout::Known(sizes.into()))
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {} of {}", self.inner.name, self.inner.module)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.inner.name)
            .field("attributes", &self.inner.attributes)
            .field("parameters", &self.inner.parameters)
            .finish_non_exhaustive()
    }
}
