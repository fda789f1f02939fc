//! What a device can do, asked once.

use crate::Device;
use crate::error::{DeviceError, On};
use simtile_driver::sys::CUdevice_attribute as Attribute;
use simtile_sync::Global;
use simtile_types::contract::DeviceLaunchLimits;

/// Attributes of a device that do not change. Asked from the driver once a process and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Compute capability, as (major, minor).
    pub compute_capability: (u32, u32),
    /// Limits of any launch.
    pub launch_limits: DeviceLaunchLimits,
    /// Most shared memory of a block with opt-in, bytes.
    pub max_opt_in_shared_memory_per_block: u32,
    /// Threads of a warp.
    pub warp_size: u32,
    /// Multiprocessors.
    pub multiprocessor_count: u32,
    /// Most resident threads of a multiprocessor.
    pub max_threads_per_multiprocessor: u32,
    /// L2 cache, bytes.
    pub l2_cache_size_bytes: u32,
    /// Constant memory of a kernel, bytes.
    pub total_constant_memory_bytes: u32,
    /// Whether cooperative launches work.
    pub supports_cooperative_launch: bool,
    /// Whether thread block clusters work.
    pub supports_cluster_launch: bool,
    /// Whether stream-ordered allocation and pools work.
    pub supports_memory_pools: bool,
    /// Whether managed memory works.
    pub supports_managed_memory: bool,
    /// Whether host and device may use managed memory at the same time.
    pub supports_concurrent_managed_access: bool,
    /// Whether host and devices share one address space.
    pub supports_unified_addressing: bool,
}

/// Found capabilities. They live as long as the process, as drivers do; failures are not kept.
static KNOWN: Global<Vec<(Device, &'static Capabilities)>> = Global::new(Vec::new());

pub(crate) fn of(device: Device) -> Result<&'static Capabilities, DeviceError> {
    if let Some((_, known)) = KNOWN.lock().iter().find(|(d, _)| *d == device) {
        return Ok(known);
    }
    // Asked without the lock: another thread may do the same, and the first to finish wins.
    let asked = ask(device)?;
    let mut known = KNOWN.lock();
    if let Some((_, found)) = known.iter().find(|(d, _)| *d == device) {
        return Ok(found);
    }
    let found: &'static Capabilities = Box::leak(Box::new(asked));
    known.push((device, found));
    Ok(found)
}

fn ask(device: Device) -> Result<Capabilities, DeviceError> {
    let number = |attribute| device.raw_attribute(attribute).on(|| device.to_string());
    // A negative answer to a size or count is nonsense that must not become a huge limit.
    let size = |attribute| Ok::<u32, DeviceError>(u32::try_from(number(attribute)?).unwrap_or(0));
    let flag = |attribute| Ok::<bool, DeviceError>(number(attribute)? > 0);
    // Attributes that a driver of CUDA 12.0 may not know count as absent.
    let optional = |attribute| device.raw_attribute(attribute).is_ok_and(|value| value > 0);
    Ok(Capabilities {
        compute_capability: (
            size(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            size(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        launch_limits: DeviceLaunchLimits {
            max_threads_per_block: size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_block_dim: (
                size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ),
            max_grid_dim: (
                size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ),
            max_shared_memory_per_block: size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        },
        max_opt_in_shared_memory_per_block: size(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        warp_size: size(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        multiprocessor_count: size(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_threads_per_multiprocessor: size(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        l2_cache_size_bytes: size(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        total_constant_memory_bytes: size(Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY)?,
        supports_cooperative_launch: flag(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)?,
        supports_cluster_launch: optional(Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH),
        supports_memory_pools: optional(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
        supports_managed_memory: flag(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?,
        supports_concurrent_managed_access: flag(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?,
        supports_unified_addressing: flag(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?,
    })
}
