//! Launches with attributes: priority, cooperative grids, clusters, programmatic dependent launch.

use crate::frame::{Check, Cx, Need, same};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::CUlaunchAttributeID as Id;
use simtile_driver::sys::*;

const COOPERATIVE: Need =
    Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, "cooperative launches");
const CLUSTERS: Need = Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, "clusters");

crate::frame::registry::tests! { Driver, "launch_attributes";
    none,
    priority,
    ignored_attribute,
    unknown_attribute,
    cooperative_grid_is_resident needs [COOPERATIVE],
    cooperative_by_attribute needs [COOPERATIVE],
    cooperative_grid_too_large needs [COOPERATIVE],
    cluster_ranks needs [CLUSTERS],
    cluster_compiled_in needs [CLUSTERS],
    cluster_must_divide_the_grid needs [CLUSTERS],
    cluster_too_large needs [CLUSTERS],
    cluster_occupancy needs [CLUSTERS],
    serialized_dependent_launch needs [Need::Capability(9, 0)],
}

/// An attribute with its value.
pub fn attribute(id: Id, value: CUlaunchAttributeValue) -> CUlaunchAttribute {
    CUlaunchAttribute { id, pad: [0; 4], value }
}

/// Launches with attributes; the code.
pub fn launch_ex(
    gpu: &Gpu<'_>,
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    args: &Args,
    attributes: &mut [CUlaunchAttribute],
) -> CUresult {
    let config = config(shape, stream, attributes);
    cu!(gpu, cuLaunchKernelEx(&config, function, args.pointers().as_mut_ptr(), std::ptr::null_mut()))
}

fn config(shape: Shape, stream: CUstream, attributes: &mut [CUlaunchAttribute]) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: shape.grid[0],
        gridDimY: shape.grid[1],
        gridDimZ: shape.grid[2],
        blockDimX: shape.block[0],
        blockDimY: shape.block[1],
        blockDimZ: shape.block[2],
        sharedMemBytes: shape.shared,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

fn store(gpu: &Gpu<'_>, attributes: &mut [CUlaunchAttribute]) -> Check<CUresult> {
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"store_one")?;
    let word = gpu.zeroed(4)?;
    let code = launch_ex(gpu, function, Shape::ONE, stream, &Args::new().with(word).with(3u32), attributes);
    gpu.sync(stream)?;
    let expected = if code.is_ok() { 3 } else { 0 };
    ensure_eq!(gpu.word(word)?, expected, "word after a launch that returned {code:?}");
    Ok(code)
}

fn none(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    ensure_eq!(store(&gpu, &mut [])?, CUresult::CUDA_SUCCESS, "a launch without attributes");
    Ok(())
}

fn priority(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut greatest = 0;
    ok!(cx, cuCtxGetStreamPriorityRange(std::ptr::null_mut(), &mut greatest))?;
    let mut attributes =
        [attribute(Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, CUlaunchAttributeValue { priority: greatest })];
    ensure_eq!(store(&gpu, &mut attributes)?, CUresult::CUDA_SUCCESS, "a launch with priority");
    Ok(())
}

fn ignored_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut attributes =
        [attribute(Id::CU_LAUNCH_ATTRIBUTE_IGNORE, CUlaunchAttributeValue { pad: [0x55; 64] })];
    ensure_eq!(store(&gpu, &mut attributes)?, CUresult::CUDA_SUCCESS, "a launch with an attribute to ignore");
    Ok(())
}

fn unknown_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut attributes = [attribute(Id(9999), CUlaunchAttributeValue { pad: [0; 64] })];
    let code = store(&gpu, &mut attributes)?;
    ensure!(
        [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_NOT_SUPPORTED].contains(&code),
        "a launch with an unknown attribute returned {code:?}"
    );
    Ok(())
}

/// As many blocks of 64 threads of `grid_barrier` as fit on the device at once, but no more than 64.
fn resident_blocks(gpu: &Gpu<'_>, function: CUfunction) -> Check<(u32, u32)> {
    let mut per_sm = 0;
    ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut per_sm, function, 64, 0))?;
    let sms = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let most = (per_sm * sms) as u32;
    Ok((most.min(64), most))
}

/// Rounds that the barrier waits: enough for any grid that is resident.
const ROUNDS: u32 = 2_000_000;

fn cooperative_grid_is_resident(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"grid_barrier")?;
    let (blocks, _) = resident_blocks(&gpu, function)?;
    let count = gpu.zeroed(4)?;
    let out = gpu.zeroed(blocks as usize * 4)?;
    let args = Args::new().with(count).with(out).with(ROUNDS);
    ok!(
        cx,
        cuLaunchCooperativeKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, args.pointers().as_mut_ptr())
    )?;
    gpu.sync(stream)?;
    same("what each block saw", &gpu.read::<u32>(out, blocks as usize)?, &vec![blocks; blocks as usize])
}

fn cooperative_by_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"grid_barrier")?;
    let (blocks, _) = resident_blocks(&gpu, function)?;
    let count = gpu.zeroed(4)?;
    let out = gpu.zeroed(blocks as usize * 4)?;
    let args = Args::new().with(count).with(out).with(ROUNDS);
    let mut attributes =
        [attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUlaunchAttributeValue { cooperative: 1 })];
    let code = launch_ex(&gpu, function, Shape::of(blocks, 1), stream, &args, &mut attributes);
    ensure_eq!(code, CUresult::CUDA_SUCCESS, "a launch with the cooperative attribute");
    gpu.sync(stream)?;
    same("what each block saw", &gpu.read::<u32>(out, blocks as usize)?, &vec![blocks; blocks as usize])
}

fn cooperative_grid_too_large(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.kernel(c"grid_barrier")?;
    let (_, most) = resident_blocks(&gpu, function)?;
    let words = gpu.zeroed(16)?;
    let args = Args::new().with(words).with(words).with(1u32);
    code!(
        cx,
        [CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE],
        cuLaunchCooperativeKernel(
            function,
            most + 1,
            1,
            1,
            64,
            1,
            1,
            0,
            stream,
            args.pointers().as_mut_ptr()
        )
    )?;
    gpu.sync(stream)
}

fn cluster(x: u32) -> CUlaunchAttribute {
    let dim = CUlaunchAttributeValue_clusterDim { x, y: 1, z: 1 };
    attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CUlaunchAttributeValue { clusterDim: dim })
}

/// The most blocks of a cluster of this kernel.
pub fn largest_cluster(gpu: &Gpu<'_>, function: CUfunction) -> Check<u32> {
    let mut size = 0;
    let config = config(Shape::of(16, 32), CUstream::NULL, &mut []);
    ok!(gpu, cuOccupancyMaxPotentialClusterSize(&mut size, function, &config))?;
    u32::try_from(size).map_err(crate::frame::Stop::fail)
}

fn cluster_ranks(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.function(gpu.module(kernels::HOPPER)?, c"cluster_rank")?;
    let most = largest_cluster(&gpu, function)?;
    for size in [1u32, 2, 4, 8].into_iter().filter(|&size| size <= most) {
        let out = gpu.zeroed(64)?;
        let code =
            launch_ex(&gpu, function, Shape::of(16, 1), stream, &Args::new().with(out), &mut [cluster(size)]);
        ensure_eq!(code, CUresult::CUDA_SUCCESS, "a launch with clusters of {size}");
        gpu.sync(stream)?;
        let expected: Vec<u32> = (0..16).map(|block| size * 100 + block % size).collect();
        same(&format!("ranks in clusters of {size}"), &gpu.read::<u32>(out, 16)?, &expected)?;
    }
    Ok(())
}

fn cluster_compiled_in(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.function(gpu.module(kernels::HOPPER)?, c"cluster_of_two")?;
    let mut width = 0;
    ok!(
        cx,
        cuFuncGetAttribute(
            &mut width,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
            function
        )
    )?;
    ensure_eq!(width, 2, "cluster width compiled in");
    let out = gpu.zeroed(16)?;
    // A plain launch is enough.
    gpu.launch(function, Shape::of(4, 1), stream, &Args::new().with(out))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(out, 4)?, [0, 1, 0, 1], "ranks");
    Ok(())
}

fn cluster_must_divide_the_grid(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.function(gpu.module(kernels::HOPPER)?, c"cluster_rank")?;
    let out = gpu.zeroed(64)?;
    let code = launch_ex(&gpu, function, Shape::of(3, 1), stream, &Args::new().with(out), &mut [cluster(2)]);
    ensure!(
        [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE].contains(&code),
        "3 blocks in clusters of 2 returned {code:?}"
    );
    gpu.sync(stream)
}

fn cluster_too_large(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let function = gpu.function(gpu.module(kernels::HOPPER)?, c"cluster_rank")?;
    let out = gpu.zeroed(512)?;
    let code =
        launch_ex(&gpu, function, Shape::of(64, 1), stream, &Args::new().with(out), &mut [cluster(64)]);
    ensure!(
        [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        ]
        .contains(&code),
        "a cluster of 64 blocks returned {code:?}"
    );
    gpu.sync(stream)
}

fn cluster_occupancy(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let function = gpu.function(gpu.module(kernels::HOPPER)?, c"cluster_rank")?;
    let shape = Shape::of(16, 32);
    let mut size = 0;
    ok!(
        cx,
        cuOccupancyMaxPotentialClusterSize(&mut size, function, &config(shape, CUstream::NULL, &mut []))
    )?;
    // Eight is what any device with clusters and large limits can do.
    let processors = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    ensure!(size >= processors.min(8), "largest cluster {size} on {processors} multiprocessors");
    let mut clusters = 0;
    let mut attributes = [cluster(2)];
    ok!(
        cx,
        cuOccupancyMaxActiveClusters(
            &mut clusters,
            function,
            &config(shape, CUstream::NULL, &mut attributes)
        )
    )?;
    ensure!(clusters > 0, "{clusters} clusters of 2 fit on the device");
    Ok(())
}

/// driver-facts, Order: a dependent launch that waits (`griddepcontrol.wait`) reads the new data.
fn serialized_dependent_launch(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let module = gpu.module(kernels::HOPPER)?;
    let primary = gpu.function(module, c"primary")?;
    let secondary = gpu.function(module, c"secondary_with_wait")?;
    let flag = gpu.pinned(1)?;
    flag.set(0, 1);
    for round in 0..20 {
        let words = gpu.zeroed(8)?;
        let (x, y) = (words, words + 4);
        gpu.launch(primary, Shape::ONE, stream, &Args::new().with(flag.device).with(1u64).with(x))?;
        let mut attributes = [attribute(
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        )];
        let code =
            launch_ex(&gpu, secondary, Shape::ONE, stream, &Args::new().with(x).with(y), &mut attributes);
        ensure_eq!(code, CUresult::CUDA_SUCCESS, "a dependent launch");
        gpu.sync(stream)?;
        ensure_eq!(gpu.read::<u32>(words, 2)?, [1, 101], "words in round {round}");
    }
    Ok(())
}
