//! What is checked before a raw launch: geometry against device and function, arguments against parameters.

use super::{LaunchArgs, LaunchOptions};
use crate::error::LaunchError;
use crate::{Function, ParameterLayout};
use simtile_types::contract::{LaunchContractError as E, check_cluster, check_shared_memory, product};

/// Names of kernels are not static here; the error around names them.
const KERNEL: &str = "";

/// Checks a launch without asking the driver: everything needed was read when the function was loaded.
pub(crate) fn check(
    function: &Function,
    options: &LaunchOptions,
    args: &LaunchArgs<'_>,
) -> Result<(), LaunchError> {
    arguments(function, args)?;
    if options.config.is_empty() {
        return Ok(());
    }
    geometry(function, options)
        .map_err(|source| LaunchError::Geometry { kernel: function.name().into(), source })
}

fn arguments(function: &Function, args: &LaunchArgs<'_>) -> Result<(), LaunchError> {
    let ParameterLayout::Known(sizes) = function.parameters() else { return Ok(()) };
    if sizes.len() != args.len() {
        return Err(LaunchError::ArgumentCount {
            kernel: function.name().into(),
            expected: sizes.len(),
            actual: args.len(),
        });
    }
    for (index, (&expected, actual)) in sizes.iter().zip(args.sizes()).enumerate() {
        if expected != actual {
            let kernel = function.name().into();
            return Err(LaunchError::ArgumentSize { kernel, index, expected, actual });
        }
    }
    Ok(())
}

fn geometry(function: &Function, options: &LaunchOptions) -> Result<(), E> {
    let (config, device) = (&options.config, function.capabilities());
    let attributes = function.attributes();
    device.launch_limits.check(KERNEL, config)?;
    if let Some(required) = function.required_block()
        && required != config.block_dim
    {
        return Err(E::BlockShapeMismatch { kernel: KERNEL, required, actual: config.block_dim });
    }
    let threads = product(config.block_dim).unwrap_or(u64::MAX);
    let limit = attributes.max_threads_per_block;
    if threads > u64::from(limit) && limit > 0 && function.required_block().is_none() {
        return Err(E::FunctionThreadsPerBlockExceeded { kernel: KERNEL, threads, limit });
    }
    let fixed = attributes.static_shared_memory_bytes;
    let allowed = fixed.saturating_add(function.max_dynamic_shared_memory_bytes());
    let opt_in = allowed > device.launch_limits.max_shared_memory_per_block;
    check_shared_memory(KERNEL, fixed, config.shared_mem_bytes, allowed, opt_in)?;
    if options.cooperative && !device.supports_cooperative_launch {
        return Err(E::CooperativeLaunchUnsupported { kernel: KERNEL });
    }
    if let Some(cluster) = options.cluster {
        if !device.supports_cluster_launch {
            return Err(E::ClusterLaunchUnsupported { kernel: KERNEL });
        }
        check_cluster(KERNEL, config.grid_dim, cluster)?;
        if let Some(compiled) = attributes.required_cluster_dimensions
            && compiled != cluster
        {
            return Err(E::FunctionClusterShapeMismatch {
                kernel: KERNEL,
                contract: cluster,
                function: compiled,
            });
        }
    } else if let Some(compiled) = attributes.required_cluster_dimensions {
        check_cluster(KERNEL, config.grid_dim, compiled)?;
    }
    Ok(())
}
