//! Bad launches, by our API: refused before the driver is asked, naming kernel, argument, value and limit.

use super::{Core, launches::shape, refused};
use crate::ensure;
use crate::frame::{Check, Cx};
use simtile_core::{DeviceBuffer, LaunchArgs, LaunchError};
use simtile_driver::Entry;
use simtile_driver::sys::CUdevice_attribute;
use simtile_types::LaunchConfig;

crate::frame::registry::tests! { Core, "bad_launches";
    zero_in_any_axis proves ["F2", "L5"],
    axis_beyond_its_limit proves ["F2"],
    too_many_threads proves ["F2"],
    more_threads_than_the_kernel_allows proves ["F2"],
    block_that_is_not_the_required_one proves ["F2"],
    too_much_shared_memory proves ["F2"],
    wrong_number_of_arguments proves ["F2"],
    wrong_size_of_an_argument proves ["F2"],
    handles_of_another_context proves ["F2", "H1"],
}

/// A launch of a kernel without parameters that is refused before the driver is asked.
fn refused_here(cx: &Cx, core: &Core<'_>, kernel: &str, config: LaunchConfig, parts: &[&str]) -> Check {
    let function = core.basic()?.load_function(kernel)?;
    let before = cx.calls_of(Entry::cuLaunchKernel);
    // SAFETY: the launch is refused; the kernel would touch nothing.
    let result = unsafe { core.stream.launch(&function, config, LaunchArgs::new()) };
    let mut all = vec![kernel];
    all.extend(parts);
    let error = refused(result, &all).map_err(|stop| stop.within(format!("{config:?}")))?;
    ensure!(matches!(error, LaunchError::Geometry { .. }), "{error:?}");
    ensure!(cx.calls_of(Entry::cuLaunchKernel) == before, "the driver was asked for {config:?}");
    Ok(())
}

const ONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

fn zero_in_any_axis(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    for (zero, axis) in [((0, 1, 1), "x"), ((1, 0, 1), "y"), ((1, 1, 0), "z")] {
        let grid = LaunchConfig { grid_dim: zero, ..ONE };
        refused_here(cx, &core, "empty", grid, &[&format!("grid {axis} is 0")])?;
        let block = LaunchConfig { block_dim: zero, ..ONE };
        refused_here(cx, &core, "empty", block, &[&format!("block {axis} is 0")])?;
    }
    Ok(())
}

fn axis_beyond_its_limit(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let limit = |which| Ok::<_, crate::frame::Stop>(core.gpu.attribute(which)?.to_string());
    let grid = limit(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?;
    let block = limit(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?;
    for (grid_dim, block_dim, parts) in [
        ((0x8000_0000, 1, 1), (1, 1, 1), ["grid x", "2147483648", grid.as_str()]),
        ((1, 65_536, 1), (1, 1, 1), ["grid y", "65536", "65535"]),
        ((1, 1, 65_536), (1, 1, 1), ["grid z", "65536", "65535"]),
        ((1, 1, 1), (1025, 1, 1), ["block x", "1025", block.as_str()]),
        ((1, 1, 1), (1, 1, 65), ["block z", "65", "64"]),
    ] {
        refused_here(cx, &core, "empty", LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }, &parts)?;
    }
    Ok(())
}

fn too_many_threads(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let limit =
        core.gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?.to_string();
    let config = LaunchConfig { block_dim: (64, 32, 1), ..ONE };
    refused_here(cx, &core, "empty", config, &["2048", &limit])?;
    let config = LaunchConfig { block_dim: (512, 512, 64), ..ONE };
    refused_here(cx, &core, "empty", config, &["16777216", &limit])
}

fn more_threads_than_the_kernel_allows(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    refused_here(cx, &core, "at_most_64", shape(1, 65), &["65", "64"])
}

fn block_that_is_not_the_required_one(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    refused_here(cx, &core, "exactly_32_2", shape(1, 32), &["(32, 1, 1)", "(32, 2, 1)"])
}

fn too_much_shared_memory(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let limit = super::launches::most_shared_memory(cx)?;
    let config = LaunchConfig { shared_mem_bytes: limit + 1, ..ONE };
    refused_here(cx, &core, "empty", config, &[&(limit + 1).to_string()])?;
    let config = LaunchConfig { shared_mem_bytes: u32::MAX, ..ONE };
    refused_here(cx, &core, "empty", config, &[&u32::MAX.to_string()])
}

fn wrong_number_of_arguments(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let store = core.basic()?.load_function("store_one")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 1)?;
    for (args, count) in [
        (LaunchArgs::new(), "0"),
        (LaunchArgs::new().arg(0u64), "1"),
        (LaunchArgs::new().arg(0u64).arg(1u32).arg(1u32), "3"),
    ] {
        // SAFETY: the launch is refused.
        let error = refused(
            unsafe { core.stream.launch(&store, shape(1, 1), &args) },
            &["store_one", "takes 2", &format!("{count} were given")],
        )?;
        ensure!(matches!(error, LaunchError::ArgumentCount { .. }), "{error:?}");
    }
    let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(8u32);
    // SAFETY: the kernel writes one word of its buffer, of which it is told.
    unsafe { core.stream.launch(&store, shape(1, 1), &args) }?;
    drop(args);
    crate::ensure_eq!(buffer.to_vec(&core.stream)?, [8], "word written with the right arguments");
    Ok(())
}

fn wrong_size_of_an_argument(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let store = core.basic()?.load_function("store_one")?;
    for (args, parts) in [
        (LaunchArgs::new().arg(0u32).arg(1u32), ["argument 0", "4 bytes", "8"]),
        (LaunchArgs::new().arg(0u64).arg(1u64), ["argument 1", "8 bytes", "4"]),
        (LaunchArgs::new().arg(0u64).arg(1u8), ["argument 1", "1 bytes", "4"]),
    ] {
        let mut all = vec!["store_one"];
        all.extend(parts);
        // SAFETY: the launch is refused.
        let error = refused(unsafe { core.stream.launch(&store, shape(1, 1), &args) }, &all)?;
        ensure!(matches!(error, LaunchError::ArgumentSize { .. }), "{error:?}");
    }
    Ok(())
}

fn handles_of_another_context(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let other = core.device.create_context()?;
    let theirs = other.new_stream()?;
    let store = core.basic()?.load_function("store_one")?;
    let names = [other.to_string(), core.context.to_string()];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let args = LaunchArgs::new().arg(0u64).arg(1u32);
    // SAFETY: the launch is refused.
    let error = refused(unsafe { theirs.launch(&store, shape(1, 1), &args) }, &names)?;
    ensure!(matches!(error, LaunchError::OtherContext { .. }), "{error:?}");
    let mut foreign = DeviceBuffer::<u32>::zeroed(&theirs, 1)?;
    let args = LaunchArgs::new().buffer_mut(&mut foreign).arg(1u32);
    // SAFETY: the launch is refused.
    refused(unsafe { core.stream.launch(&store, shape(1, 1), &args) }, &names)?;
    Ok(())
}
