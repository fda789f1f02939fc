//! Raw launches by our API.

use super::{Core, refused};
use crate::artifacts;
use crate::frame::{Check, Cx, Need, Stop, same};
use crate::{ensure_eq, kernels};
use simtile_core::{DeviceBuffer, LaunchArgs, LaunchOptions};
use simtile_driver::sys::CUdevice_attribute;
use simtile_types::LaunchConfig;

crate::frame::registry::tests! { Core, "core_launches";
    arguments_of_every_width proves ["L3"],
    one_driver_call_a_launch proves ["L4"],
    no_elements_no_launch proves ["L5"],
    shared_memory_by_opt_in proves ["L2"],
    cooperative proves ["L1"] needs [Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, "cooperative launches")],
    clusters proves ["L1"] needs [Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, "clusters")],
    priority proves ["L1"],
    tile_then_simt_on_one_allocation proves ["M1"] needs [Need::ARTIFACTS, Need::Capability(9, 0)],
    renamed_kernels_give_the_same proves ["H5"] needs [Need::ARTIFACTS],
    edited_constants_are_followed proves ["H5"] needs [Need::ARTIFACTS],
}

/// A one-dimensional shape.
pub fn shape(grid: u32, block: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (block, 1, 1), shared_mem_bytes: 0 }
}

/// Shared memory that a block of device 0 can have with opt-in, bytes.
pub fn most_shared_memory(cx: &Cx) -> Check<u32> {
    let most = cx.attribute(0, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    u32::try_from(most).map_err(Stop::fail)
}

fn arguments_of_every_width(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let function = core.basic()?.load_function("arguments")?;
    let mut out = DeviceBuffer::<u8>::zeroed(&core.stream, 32)?;
    let args = LaunchArgs::new()
        .buffer_mut(&mut out)
        .arg(0x11u8)
        .arg(0x2233u16)
        .arg(0x4455_6677u32)
        .arg(0x8899_aabb_ccdd_eeffu64)
        .arg(1.5f32)
        .arg(-2.25f64);
    // SAFETY: the kernel writes the 32 bytes of its buffer, of which it is told.
    unsafe { core.stream.launch(&function, shape(1, 1), &args) }?;
    drop(args);
    let mut expected = [0u8; 32];
    expected[0] = 0x11;
    expected[2..4].copy_from_slice(&0x2233u16.to_le_bytes());
    expected[4..8].copy_from_slice(&0x4455_6677u32.to_le_bytes());
    expected[8..16].copy_from_slice(&0x8899_aabb_ccdd_eeffu64.to_le_bytes());
    expected[16..20].copy_from_slice(&1.5f32.to_le_bytes());
    expected[24..32].copy_from_slice(&(-2.25f64).to_le_bytes());
    same("bytes written from the arguments", &out.to_vec(&core.stream)?, &expected)
}

fn one_driver_call_a_launch(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let step = core.basic()?.load_function("step")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    let n = 320u64;
    let entry = simtile_driver::Entry::cuCtxGetCurrent;
    let (before, checks) = (cx.calls(), cx.calls_of(entry));
    for _ in 0..n {
        let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(1u32);
        // SAFETY: the kernel updates the 100 words of its buffer, of which it is told.
        unsafe { core.stream.launch(&step, shape(1, 128), &args) }?;
    }
    let calls = cx.calls() - before - (cx.calls_of(entry) - checks);
    crate::ensure!(calls <= n + n / 32 + 1, "{calls} driver calls for {n} launches, besides context checks");
    let expected = (0..n).fold(0u32, |x, _| x.wrapping_mul(3).wrapping_add(1));
    same("values after all launches", &buffer.to_vec(&core.stream)?, &[expected; 100])
}

fn no_elements_no_launch(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let step = core.basic()?.load_function("step")?;
    let launches = || {
        cx.calls_of(simtile_driver::Entry::cuLaunchKernel)
            + cx.calls_of(simtile_driver::Entry::cuLaunchKernelEx)
    };
    let before = launches();
    let args = LaunchArgs::new().arg(0u64).arg(0u32).arg(0u32);
    // SAFETY: nothing is launched.
    unsafe { core.stream.launch(&step, LaunchConfig::for_num_elems(0), &args) }?;
    core.stream.synchronize()?;
    ensure_eq!(launches() - before, 0, "driver launches for no elements");
    // A raw 0 is an error that names the axis.
    for (config, axis) in [
        (LaunchConfig { grid_dim: (0, 1, 1), ..shape(1, 1) }, "grid x"),
        (LaunchConfig { block_dim: (1, 0, 1), ..shape(1, 1) }, "block y"),
    ] {
        // SAFETY: the launch is refused.
        refused(unsafe { core.stream.launch(&step, config, &args) }, &["step", axis, "0"])?;
    }
    Ok(())
}

fn shared_memory_by_opt_in(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let function = core.basic()?.load_function("dynamic_shared")?;
    let most = most_shared_memory(cx)?;
    let mut out = DeviceBuffer::<u32>::zeroed(&core.stream, 1)?;
    function.allow_dynamic_shared_memory(most)?;
    ensure_eq!(function.max_dynamic_shared_memory_bytes(), most, "dynamic shared memory allowed");
    let config = LaunchConfig { shared_mem_bytes: most, ..shape(1, 1) };
    let args = LaunchArgs::new().buffer_mut(&mut out).arg(most);
    // SAFETY: the kernel writes one word of its buffer, of which it is told.
    unsafe { core.stream.launch(&function, config, &args) }?;
    drop(args);
    ensure_eq!(out.to_vec(&core.stream)?, [most], "the last word of shared memory");
    let above = (most + 1).to_string();
    refused(function.allow_dynamic_shared_memory(most + 1), &["dynamic_shared", &above])?;
    Ok(())
}

fn cooperative(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let function = core.basic()?.load_function("grid_barrier")?;
    let blocks = 8u32;
    let mut count = DeviceBuffer::<u32>::zeroed(&core.stream, 1)?;
    let mut out = DeviceBuffer::<u32>::zeroed(&core.stream, blocks as usize)?;
    let args = LaunchArgs::new().buffer_mut(&mut count).buffer_mut(&mut out).arg(2_000_000u32);
    // SAFETY: the kernel updates both buffers within their lengths, and is told of both.
    unsafe { core.stream.launch(&function, LaunchOptions::new(shape(blocks, 1)).cooperative(), &args) }?;
    drop(args);
    same("what each block saw", &out.to_vec(&core.stream)?, &[blocks; 8])
}

fn clusters(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    // Through the table first: a simulator that does not interpret it says so there.
    core.gpu.module(kernels::HOPPER)?;
    let image = kernels::HOPPER.strip_suffix(b"\0").unwrap_or_default();
    let function = core.context.load_module(image)?.load_function("cluster_rank")?;
    // A device may have no clusters beyond 2 blocks.
    let table = core.gpu.function(core.gpu.module(kernels::HOPPER)?, c"cluster_rank")?;
    let size = crate::driver::largest_cluster(&core.gpu, table)?.min(4);
    let mut out = DeviceBuffer::<u32>::zeroed(&core.stream, 8)?;
    let args = LaunchArgs::new().buffer_mut(&mut out);
    // SAFETY: the kernel writes one word a block of its buffer, of which it is told.
    unsafe { core.stream.launch(&function, LaunchOptions::new(shape(8, 1)).cluster(size, 1, 1), &args) }?;
    drop(args);
    let expected: Vec<u32> = (0..8).map(|block| size * 100 + block % size).collect();
    same(&format!("ranks in clusters of {size}"), &out.to_vec(&core.stream)?, &expected)?;
    let mut out = DeviceBuffer::<u32>::zeroed(&core.stream, 8)?;
    let args = LaunchArgs::new().buffer_mut(&mut out);
    let uneven = LaunchOptions::new(shape(7, 1)).cluster(size, 1, 1);
    let text = size.to_string();
    // SAFETY: the launch is refused.
    refused(unsafe { core.stream.launch(&function, uneven, &args) }, &["cluster_rank", "7", &text])?;
    Ok(())
}

fn priority(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let fill = core.basic()?.load_function("fill")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 10)?;
    let urgent = core.context.stream_priority_range()?.greatest;
    let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(10u32).arg(3u32);
    // SAFETY: the kernel writes the 10 words of its buffer, of which it is told.
    unsafe { core.stream.launch(&fill, LaunchOptions::new(shape(1, 32)).priority(urgent), &args) }?;
    drop(args);
    same("words", &buffer.to_vec(&core.stream)?, &[3; 10])
}

/// The Tile image for this driver: bytecode for a simulator, the cubin for a GPU.
fn tile_image(cx: &Cx, name: &str) -> Check<&'static [u8]> {
    match cx.simulator() {
        Some(_) => artifacts::bytes(&format!("{name}.tileirbc")),
        None if cx.capability()?.0 == 9 => artifacts::bytes(&format!("{name}.cubin")),
        None => Err(Stop::unsupported("the committed cubin is for sm_90")),
    }
}

fn tile_then_simt_on_one_allocation(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let stream = &core.stream;
    let tile =
        core.context.load_module(tile_image(cx, "tile_rs/rs_vadd_f32")?)?.load_function("rs_vadd_f32")?;
    let simt = core.context.load_module(artifacts::bytes("ptx/saxpy.ptx")?)?.load_function("saxpy")?;
    let n = 3001usize;
    let (a, b) = (cx.random(40).floats(n), cx.random(41).floats(n));
    let (da, db) = (DeviceBuffer::from_slice(stream, &a)?, DeviceBuffer::from_slice(stream, &b)?);
    let mut c = DeviceBuffer::<f32>::zeroed(stream, n)?;
    let identity = (c.allocation_id(), c.cu_deviceptr());
    {
        let args = LaunchArgs::new().buffer(&da).arg(n as i32).arg(1i32);
        let args = args.buffer(&db).arg(n as i32).arg(1i32).buffer_mut(&mut c).arg(n as i32).arg(1i32);
        // SAFETY: the kernel reads a and b and writes c, each of the length it is told, and nothing else.
        unsafe { stream.launch(&tile, LaunchConfig::tiles(3, 1, 1), &args) }?;
    }
    {
        // c = 2 a + c, in place, by a SIMT kernel behind the Tile kernel.
        let args = LaunchArgs::new().arg(n as u32).arg(2f32).buffer(&da).buffer_mut(&mut c);
        // SAFETY: the kernel reads a and updates c, each of n elements, and nothing else.
        unsafe { stream.launch(&simt, LaunchConfig::for_num_elems(n as u32), &args) }?;
    }
    ensure_eq!((c.allocation_id(), c.cu_deviceptr()), identity, "identity and address of the allocation");
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| 2.0 * a + (a + b)).collect();
    for (i, (got, want)) in c.to_vec(stream)?.iter().zip(&want).enumerate() {
        crate::ensure!(
            (got - want).abs() <= 1e-6 * (1.0 + want.abs()),
            "value {i} is {got}, expected {want}"
        );
    }
    Ok(())
}

fn saxpy(core: &Core<'_>, text: &str, entry: &str) -> Check<Vec<f32>> {
    let function = core.context.load_module_from_ptx_src(text)?.load_function(entry)?;
    let x = DeviceBuffer::from_slice(&core.stream, &[1f32, 2.0, 3.0])?;
    let mut y = DeviceBuffer::from_slice(&core.stream, &[10f32, 20.0, 30.0])?;
    let args = LaunchArgs::new().arg(3u32).arg(2f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: the kernel reads x and updates y, each of 3 elements, and nothing else.
    unsafe { core.stream.launch(&function, shape(1, 32), &args) }?;
    drop(args);
    Ok(y.to_vec(&core.stream)?)
}

fn saxpy_text(cx: &Cx) -> Check<&'static str> {
    cx.require(&[Need::Capability(9, 0)])?;
    std::str::from_utf8(artifacts::bytes("ptx/saxpy.ptx")?).map_err(Stop::fail)
}

fn renamed_kernels_give_the_same(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let text = saxpy_text(cx)?;
    ensure_eq!(saxpy(&core, text, "saxpy")?, [12.0, 24.0, 36.0], "y = 2 x + y");
    let renamed = text.replace("saxpy", "quite_another_name");
    ensure_eq!(saxpy(&core, &renamed, "quite_another_name")?, [12.0, 24.0, 36.0], "the renamed kernel");
    refused(
        core.context.load_module_from_ptx_src(&renamed)?.load_function("saxpy"),
        &["saxpy", "quite_another_name"],
    )?;
    Ok(())
}

fn edited_constants_are_followed(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let text = saxpy_text(cx)?;
    // x + y instead of a x + y: nothing but the text decides what runs.
    let line = "fma.rn.f32 \t%f4, %f2, %f1, %f3;";
    crate::ensure!(text.contains(line), "saxpy.ptx has no line `{line}`");
    let edited = text.replace(line, "add.rn.f32 \t%f4, %f2, %f3;");
    ensure_eq!(saxpy(&core, &edited, "saxpy")?, [11.0, 22.0, 33.0], "the edited kernel");
    Ok(())
}
