//! Prepared launches: a kernel's contract, checked once for a geometry, launched many times.
//!
//! Everything that asks the driver happens here: the contract against the geometry, the geometry against device and function, shared memory
//! (raised to what the contract allows at most), clusters, residency. A launch then makes no query. The order of the
//! checks is fixed, so a geometry with several faults always gets the same error.

use super::LaunchOptions;
use crate::error::{LaunchError, ModuleError};
use crate::{Function, Stream};
use core::fmt;
use core::marker::PhantomData;
use simtile_driver::sys::CUresult;
use simtile_sync::Arc;
use simtile_types::KernelLaunchConfig;
use simtile_types::contract::{
    KernelLaunchContract, LaunchContractError as E, LaunchContractSpec, check_shared_memory, product,
};

/// A launch whose geometry holds what the contract `C` of its kernel demands, on the function's device.
///
/// Cheap to clone, whatever `C` is. The brand `C` keeps it from being launched as another kernel.
///
/// ```no_run
/// # use simtile_core::{Function, LaunchError, PreparedLaunch};
/// use simtile_types::LaunchConfig1D;
/// use simtile_types::contract::{BlockRequirement, DynamicSharedMemoryRequirement, KernelLaunchContract, LaunchContractSpec};
///
/// struct Saxpy;
/// impl KernelLaunchContract for Saxpy {
///     type Config = LaunchConfig1D;
///     const SPEC: LaunchContractSpec = LaunchContractSpec::new(
///         "saxpy", BlockRequirement::MaxThreads(256), DynamicSharedMemoryRequirement::NONE);
/// }
/// # fn prepare(function: &Function) -> Result<(), LaunchError> {
/// let prepared = PreparedLaunch::<Saxpy>::prepare(function, LaunchConfig1D::new(4, 256, 0))?;
/// # Ok(()) }
/// ```
pub struct PreparedLaunch<C> {
    inner: Arc<Prepared>,
    contract: PhantomData<fn() -> C>,
}

struct Prepared {
    function: Function,
    options: LaunchOptions,
}

impl<C: KernelLaunchContract> PreparedLaunch<C> {
    /// Checks a geometry. Cluster and cooperation are as the contract says.
    ///
    /// # Errors
    /// [`LaunchError::Contract`] with the first demand that does not hold, or the driver's.
    pub fn prepare(function: &Function, config: C::Config) -> Result<Self, LaunchError> {
        let spec = C::SPEC;
        let mut options = LaunchOptions::new(config.to_config());
        options.cluster = spec.cluster();
        options.cooperative = spec.cooperative();
        check(function, &spec, &options)?;
        let inner = Arc::new(Prepared { function: function.clone(), options });
        Ok(Self { inner, contract: PhantomData })
    }
}

impl<C> PreparedLaunch<C> {
    /// The kernel.
    pub fn function(&self) -> &Function {
        &self.inner.function
    }

    /// Geometry and attributes.
    pub fn options(&self) -> LaunchOptions {
        self.inner.options
    }

    /// Whether a stream can run it.
    ///
    /// # Errors
    /// [`LaunchContractError::ContextMismatch`](simtile_types::contract::LaunchContractError::ContextMismatch) if the stream is of
    /// another context.
    pub fn validate_stream(&self, stream: &Stream) -> Result<(), LaunchError>
    where
        C: KernelLaunchContract,
    {
        if *stream.context() == *self.inner.function.context() {
            return Ok(());
        }
        Err(E::ContextMismatch { kernel: C::SPEC.name() }.into())
    }
}

impl<C> Clone for PreparedLaunch<C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), contract: PhantomData }
    }
}

impl<C> fmt::Debug for PreparedLaunch<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedLaunch")
            .field("function", &self.inner.function)
            .field("options", &self.inner.options)
            .finish()
    }
}

/// All checks, in order.
fn check(function: &Function, spec: &LaunchContractSpec, options: &LaunchOptions) -> Result<(), LaunchError> {
    let (kernel, config) = (spec.name(), &options.config);
    spec.check(config)?;
    let (device, attributes) = (function.capabilities(), function.attributes());
    device.launch_limits.check(kernel, config)?;
    if let Some(required) = function.required_block()
        && required != config.block_dim
    {
        return Err(E::BlockShapeMismatch { kernel, required, actual: config.block_dim }.into());
    }
    let threads = product(config.block_dim).unwrap_or(u64::MAX);
    let limit = attributes.max_threads_per_block;
    if limit > 0 && threads > u64::from(limit) {
        return Err(E::FunctionThreadsPerBlockExceeded { kernel, threads, limit }.into());
    }
    let most = spec.dynamic_shared_memory().max_bytes();
    let fixed = attributes.static_shared_memory_bytes;
    let portable = device.launch_limits.max_shared_memory_per_block;
    if fixed.checked_add(most).is_none_or(|total| total > portable) {
        let limit = device.max_opt_in_shared_memory_per_block;
        check_shared_memory(kernel, fixed, most, limit, true)?;
    }
    if let Some(required) = spec.min_compute_capability()
        && device.compute_capability < required
    {
        let actual = device.compute_capability;
        return Err(E::ComputeCapabilityTooLow { kernel, required, actual }.into());
    }
    if let Some(contract) = options.cluster {
        if !device.supports_cluster_launch {
            return Err(E::ClusterLaunchUnsupported { kernel }.into());
        }
        match attributes.required_cluster_dimensions {
            None => return Err(E::RequiredClusterDimensionsMissing { kernel, contract }.into()),
            Some(compiled) if compiled != contract => {
                return Err(E::FunctionClusterShapeMismatch { kernel, contract, function: compiled }.into());
            }
            Some(_) => {}
        }
    }
    if options.cooperative && !device.supports_cooperative_launch {
        return Err(E::CooperativeLaunchUnsupported { kernel }.into());
    }
    function.allow_dynamic_shared_memory(most).map_err(asked)?;
    let clusters = options.cluster.map(|cluster| clusters(function, kernel, options, cluster)).transpose()?;
    if options.cooperative {
        let limit = match (clusters, options.cluster.and_then(product)) {
            (Some(clusters), Some(blocks)) => u64::from(clusters).saturating_mul(blocks),
            _ => {
                let threads = u32::try_from(threads).unwrap_or(u32::MAX);
                let dynamic = config.shared_mem_bytes as usize;
                let blocks =
                    function.max_active_blocks_per_multiprocessor(threads, dynamic).map_err(asked)?;
                u64::from(blocks) * u64::from(device.multiprocessor_count)
            }
        };
        let blocks = product(config.grid_dim).unwrap_or(u64::MAX);
        if blocks > limit {
            return Err(E::CooperativeGridTooLarge { kernel, blocks, limit }.into());
        }
    }
    Ok(())
}

/// How many such clusters can be resident.
fn clusters(
    function: &Function,
    kernel: &'static str,
    options: &LaunchOptions,
    cluster: (u32, u32, u32),
) -> Result<u32, LaunchError> {
    let blocks = product(cluster).unwrap_or(u64::MAX);
    let limit = function.max_potential_cluster_size(*options).map_err(asked)?;
    if blocks > u64::from(limit) {
        return Err(E::ClusterSizeExceeded { kernel, blocks, limit }.into());
    }
    match function.max_active_clusters(*options) {
        Ok(0) => Err(E::ClusterHasNoResidency { kernel, cluster }.into()),
        Ok(clusters) => Ok(clusters),
        Err(ModuleError::Driver { source, .. })
            if source.code() == CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE =>
        {
            Err(E::ClusterShapeUnsupported { kernel, cluster }.into())
        }
        Err(error) => Err(asked(error)),
    }
}

/// A failed question about the function, as an error of its launch.
fn asked(error: ModuleError) -> LaunchError {
    match error {
        ModuleError::Driver { on, source } => LaunchError::Driver { on, source },
        ModuleError::ContextLost { on, source, by } => LaunchError::ContextLost { on, source, by },
        ModuleError::InHostFunction { on } => LaunchError::InHostFunction { on },
        ModuleError::Forked { on } => LaunchError::Forked { on },
        ModuleError::HostHolds { on } => LaunchError::HostHolds { on },
        other => LaunchError::Deinitialized { on: other.to_string() },
    }
}
