//! Functions: attributes, parameters, occupancy.

use crate::core::Res;
use crate::entry::{Call, Out, entries};
use crate::exec::KernelInfo;
use crate::modules::{Function, Settings};
use crate::profile::{Limits, Profile};
use core::ffi::{c_char, c_int, c_uint};
use simtile_driver::sys::*;

type Attribute = CUfunction_attribute;

/// The value of a function attribute.
pub(super) fn attribute(
    profile: Profile,
    info: &KernelInfo,
    settings: &Settings,
    which: Attribute,
) -> Res<c_int> {
    let limits = profile.limits();
    let (major, minor) = profile.traits().compute_capability;
    let value = match which {
        Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => max_threads(info, &limits),
        Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => info.static_shared_bytes,
        Attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => info.const_bytes,
        Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => info.local_bytes,
        Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => info.registers,
        Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => info.virtual_architecture.unwrap_or(major * 10 + minor),
        Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => major * 10 + minor,
        Attribute::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA
        | Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => 0,
        Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => settings.max_dynamic_shared,
        Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => return Ok(settings.carveout),
        Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => settings.cluster[0],
        Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => settings.cluster[1],
        Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => settings.cluster[2],
        Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
            u32::from(settings.non_portable_cluster)
        }
        Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
            return Ok(settings.cluster_policy);
        }
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    Ok(c_int::try_from(value).unwrap_or(c_int::MAX))
}

/// Sets a function attribute.
pub(super) fn change(
    profile: Profile,
    info: &KernelInfo,
    settings: &mut Settings,
    which: Attribute,
    value: c_int,
) -> Res {
    let limits = profile.limits();
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let size = u32::try_from(value).map_err(|_| invalid);
    match which {
        Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            let room = limits.shared_per_block_optin.saturating_sub(info.static_shared_bytes);
            settings.max_dynamic_shared = size.and_then(|n| if n <= room { Ok(n) } else { Err(invalid) })?;
        }
        Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
            settings.carveout = value;
        }
        Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        | Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
        | Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => {
            let axis = (which.0 - Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH.0) as usize;
            let size = size?;
            // A compiled-in shape stays.
            if info.required_cluster.is_some_and(|shape| shape[axis] != size) {
                return Err(invalid);
            }
            settings.cluster[axis] = size;
        }
        Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
            settings.non_portable_cluster = value != 0;
        }
        Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => {
            settings.cluster_policy = value;
        }
        _ => return Err(invalid),
    }
    Ok(())
}

/// Most threads a block of this kernel may have.
pub(super) fn max_threads(info: &KernelInfo, limits: &Limits) -> u32 {
    let by_registers = warps_by_registers(info.registers, limits) * limits.warp;
    let most = limits.threads_per_block.min(by_registers);
    info.max_threads.map_or(most, |given| given.min(most))
}

/// Warps that fit into a multiprocessor's registers: they are handed out by warp, 256 at a time, from
/// four equal parts.
fn warps_by_registers(registers: u32, limits: &Limits) -> u32 {
    let per_warp = (registers.clamp(1, limits.registers_per_thread) * limits.warp).next_multiple_of(256);
    limits.registers_per_sm / 4 / per_warp * 4
}

/// Blocks that fit into a multiprocessor but for their shared memory. 0 if not even one does.
fn blocks_without_shared(info: &KernelInfo, limits: &Limits, threads: u32) -> u32 {
    // Measured: the kernel's own bound is not looked at, only the device's and the registers.
    if threads == 0 || threads > limits.threads_per_block {
        return 0;
    }
    let warps = threads.div_ceil(limits.warp);
    let by_threads = limits.threads_per_sm / limits.warp / warps;
    let by_registers = warps_by_registers(info.registers, limits) / warps;
    by_threads.min(by_registers).min(limits.blocks_per_sm)
}

/// Blocks of a kernel that a multiprocessor holds at once.
pub(super) fn occupancy(info: &KernelInfo, limits: &Limits, threads: u32, dynamic: usize) -> u32 {
    let shared = usize::try_from(info.static_shared_bytes).unwrap_or(usize::MAX).saturating_add(dynamic);
    if shared > limits.shared_per_block_optin as usize {
        return 0;
    }
    let taken = (shared as u32).next_multiple_of(128) + limits.reserved_shared_per_block;
    blocks_without_shared(info, limits, threads).min(limits.shared_per_sm / taken)
}

pub(super) fn param_info(info: &KernelInfo, index: usize, offset: &Out<usize>, size: &Out<usize>) -> Res {
    let param = info.params.get(index).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    offset.set(param.offset as usize)?;
    size.set_if(param.bytes as usize);
    Ok(())
}

/// A function that may also be named by a library's kernel.
pub(super) fn resolve(call: &Call<'_>, handle: CUfunction) -> Res<Function> {
    match call.core.modules.function(handle) {
        Ok(function) => Ok(function),
        Err(code) => {
            let kernel = CUkernel(handle.0);
            if call.core.modules.kernel(kernel).is_err() {
                return Err(code);
            }
            let function = call.core.modules.kernel_function(call.core, kernel, call.context()?)?;
            call.core.modules.function(function)
        }
    }
}

fn threads(block_size: c_int) -> Res<u32> {
    u32::try_from(block_size).ok().filter(|&n| n > 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn active_blocks(
    call: &Call<'_>,
    out: &Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    dynamic: usize,
) -> Res {
    out.check()?;
    let threads = threads(block_size)?;
    let function = resolve(call, function)?;
    out.set(occupancy(function.info(), &call.core.profile.limits(), threads, dynamic) as c_int)
}

/// Blocks in a launch configuration's cluster.
fn cluster_blocks(function: &Function, config: &CUlaunchConfig) -> Res<u32> {
    let attributes = super::launch::attributes(config)?;
    let cluster = attributes.cluster.or_else(|| {
        let given = function.settings.cluster;
        (given != [0; 3]).then(|| given.map(|n| n.max(1)))
    });
    let blocks = cluster.unwrap_or([1; 3]).iter().try_fold(1u32, |n, &axis| n.checked_mul(axis));
    blocks.filter(|&n| n > 0).ok_or(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE)
}

fn block_threads(config: &CUlaunchConfig) -> Res<u32> {
    let product =
        config.blockDimX.checked_mul(config.blockDimY).and_then(|n| n.checked_mul(config.blockDimZ));
    product.filter(|&n| n > 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

entries! {
    fn cuFuncGetAttribute(call, out: *mut c_int, which: CUfunction_attribute, function: CUfunction) {
        out.check()?;
        let function = resolve(call, function)?;
        out.set(attribute(call.core.profile, function.info(), &function.settings, which)?)
    }

    fn cuFuncSetAttribute(call, handle: CUfunction, which: CUfunction_attribute, value: c_int) {
        let function = call.core.modules.function(handle)?;
        call.core.modules.change_function(handle, |settings| {
            change(call.core.profile, function.info(), settings, which, value)
        })
    }

    fn cuFuncSetCacheConfig(call, function: CUfunction, config: CUfunc_cache) {
        resolve(call, function)?;
        // There is no cache to configure.
        config.name().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE).map(drop)
    }

    fn cuFuncGetModule(call, out: *mut CUmodule, function: CUfunction) {
        out.check()?;
        out.set(resolve(call, function)?.module)
    }

    fn cuFuncGetName(call, out: *mut *const c_char, function: CUfunction) {
        out.check()?;
        out.set(resolve(call, function)?.c_name())
    }

    fn cuFuncGetParamInfo(call, function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        offset.check()?;
        param_info(resolve(call, function)?.info(), index, &offset, &size)
    }

    fn cuFuncIsLoaded(call, out: *mut CUfunctionLoadingState, function: CUfunction) {
        out.check()?;
        resolve(call, function)?;
        out.set(CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED)
    }

    fn cuFuncLoad(call, function: CUfunction) {
        resolve(call, function).map(drop)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(call, out: *mut c_int, function: CUfunction, block_size: c_int, dynamic: usize) {
        active_blocks(call, &out, function, block_size, dynamic)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(call, out: *mut c_int, function: CUfunction, block_size: c_int, dynamic: usize, flags: c_uint) {
        if flags & !CUoccupancy_flags::CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE.0 != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        active_blocks(call, &out, function, block_size, dynamic)
    }

    fn cuOccupancyMaxPotentialBlockSize(call, grid: *mut c_int, block: *mut c_int, function: CUfunction, dynamic_of: CUoccupancyB2DSize, dynamic: usize, limit: c_int) {
        grid.check()?;
        block.check()?;
        let function = resolve(call, function)?;
        let limits = call.core.profile.limits();
        let most = match u32::try_from(limit) {
            Ok(0) => max_threads(function.info(), &limits),
            Ok(n) => n.min(max_threads(function.info(), &limits)),
            Err(_) => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        let mut best = (0, 0, 0);
        let mut size = most.next_multiple_of(limits.warp);
        while size > 0 {
            let threads = size.min(most);
            let dynamic = match dynamic_of {
                // SAFETY: the caller gives a function from block size to bytes.
                Some(bytes) => unsafe { bytes(threads as c_int) },
                None => dynamic,
            };
            let blocks = occupancy(function.info(), &limits, threads, dynamic);
            // Of equals the largest block.
            if blocks * threads > best.0 {
                best = (blocks * threads, threads, blocks);
            }
            size -= limits.warp;
        }
        block.set(best.1 as c_int)?;
        grid.set((best.2 * limits.multiprocessors) as c_int)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(call, out: *mut usize, function: CUfunction, blocks: c_int, block_size: c_int) {
        out.check()?;
        let (threads, blocks) = (threads(block_size)?, threads(blocks)?);
        let function = resolve(call, function)?;
        let limits = call.core.profile.limits();
        if blocks > blocks_without_shared(function.info(), &limits, threads) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let share = limits.shared_per_sm / blocks / 128 * 128;
        let room = share.saturating_sub(function.info().static_shared_bytes);
        out.set(room.min(function.settings.max_dynamic_shared) as usize)
    }

    fn cuOccupancyMaxPotentialClusterSize(call, out: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) {
        out.check()?;
        let (function, config) = (resolve(call, function)?, config.get()?);
        let limits = call.core.profile.limits();
        let threads = block_threads(&config)?;
        let fits = occupancy(function.info(), &limits, threads, config.sharedMemBytes as usize) > 0;
        let most =
            if function.settings.non_portable_cluster { limits.max_cluster } else { limits.portable_cluster };
        out.set(if fits { most as c_int } else { 0 })
    }

    fn cuOccupancyMaxActiveClusters(call, out: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) {
        out.check()?;
        let (function, config) = (resolve(call, function)?, config.get()?);
        let limits = call.core.profile.limits();
        let blocks = cluster_blocks(&function, &config)?;
        let each = occupancy(
            function.info(),
            &limits,
            block_threads(&config)?,
            config.sharedMemBytes as usize,
        );
        // As if every multiprocessor could be in a cluster with any other.
        out.set((each * limits.multiprocessors / blocks) as c_int)
    }
}
