//! Prepared launches: contracts checked once, in a fixed order, with every number in the error.

mod common;

use common::{context, sim, start};
use simtile_core::{
    Context, Device, DeviceBuffer, Function, LaunchArgs, LaunchError, LaunchOptions, PreparedLaunch,
};
use simtile_driver::Entry;
use simtile_driver::sys::CUresult;
use simtile_sim::{Profile, Simulator};
use simtile_types::contract::LaunchContractError as E;
use simtile_types::contract::{
    BlockRequirement, DynamicSharedMemoryRequirement as Shared, KernelLaunchContract, LaunchAxis,
    LaunchContractSpec, LaunchDimension,
};
use simtile_types::{LaunchConfig1D, LaunchConfig3D};
use std::sync::Arc;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const CLUSTER: &str = include_str!("../../../artifacts/ptx/cluster.ptx");
const KERNELS: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry narrow() .maxntid 128, 1, 1 { ret; }
.visible .entry exact() .reqntid 64, 2, 1 { ret; }
.visible .entry fixed() { .shared .align 4 .b8 room[40960]; ret; }
.visible .entry free() { ret; }
.visible .entry wide() .explicitcluster .reqnctapercluster 16, 1, 1 { ret; }
";

/// A contract for each name: the spec is all that differs.
macro_rules! contracts {
    ($($name:ident: $config:ty = $spec:expr;)*) => { $(
        struct $name;
        impl KernelLaunchContract for $name {
            type Config = $config;
            const SPEC: LaunchContractSpec = $spec;
        }
    )* };
}

const fn spec(name: &'static str) -> LaunchContractSpec {
    LaunchContractSpec::new(name, BlockRequirement::MaxThreads(1024), Shared::NONE)
}

const fn shared(name: &'static str, bytes: u32) -> LaunchContractSpec {
    let room = Shared::Range { min: 0, max: bytes, alignment: 16 };
    LaunchContractSpec::new(name, BlockRequirement::MaxThreads(1024), room)
}

contracts! {
    Saxpy: LaunchConfig1D = LaunchContractSpec::new("saxpy", BlockRequirement::MaxThreads(256), Shared::NONE);
    Any: LaunchConfig3D = spec("any");
    Portable: LaunchConfig1D = shared("portable", 8 << 10);
    OptIn: LaunchConfig1D = shared("opt in", 100 << 10);
    Greedy: LaunchConfig1D = shared("greedy", 228 << 10);
    Endless: LaunchConfig1D = shared("endless", u32::MAX);
    Modern: LaunchConfig1D = spec("modern").with_min_compute_capability(9, 0);
    Future: LaunchConfig1D = spec("future").with_min_compute_capability(12, 1);
    Clustered: LaunchConfig1D = spec("cluster_dsm").with_cluster((2, 1, 1));
    Other: LaunchConfig1D = spec("cluster_dsm").with_cluster((4, 1, 1));
    Wide: LaunchConfig1D = spec("wide").with_cluster((16, 1, 1));
    Together: LaunchConfig1D = spec("together").with_cooperative();
    Both: LaunchConfig1D = spec("cluster_dsm").with_cluster((2, 1, 1)).with_cooperative();
    Narrow: LaunchConfig1D = spec("narrow").with_u32_coordinates();
    Line: LaunchConfig3D = LaunchContractSpec::new("line", BlockRequirement::Exact((256, 1, 1)), Shared::NONE);
}

fn load(context: &Arc<Context>, text: &str, name: &str) -> Function {
    context.load_module_from_ptx_src(text).unwrap().load_function(name).unwrap()
}

fn refusal<C: KernelLaunchContract>(function: &Function, config: C::Config) -> E {
    match PreparedLaunch::<C>::prepare(function, config) {
        Err(LaunchError::Contract(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn one(grid: u32, block: u32) -> LaunchConfig1D {
    LaunchConfig1D::new(grid, block, 0)
}

#[test]
fn a_prepared_launch_asks_nothing_more() {
    let (sim, context, stream) = start();
    let saxpy = load(&context, SAXPY, "saxpy");
    let prepared = PreparedLaunch::<Saxpy>::prepare(&saxpy, one(4, 256)).unwrap();
    let x = DeviceBuffer::from_slice(&stream, &[1f32; 1024]).unwrap();
    let mut y = DeviceBuffer::from_slice(&stream, &[2f32; 1024]).unwrap();
    prepared.validate_stream(&stream).unwrap();
    let before = sim.counts();
    for prepared in [&prepared, &prepared.clone()] {
        let args = LaunchArgs::new().arg(1024u32).arg(3f32).buffer(&x).buffer_mut(&mut y);
        // SAFETY: the kernel reads 1024 floats of `x` and updates as many of `y`.
        unsafe { stream.launch(prepared.function(), prepared.options(), args) }.unwrap();
    }
    assert_eq!(sim.counts().since(&before).total(), 2);
    assert_eq!(y.to_vec(&stream).unwrap(), [8.0; 1024]);
}

#[test]
fn what_the_device_and_the_function_limit() {
    let (_sim, context, _stream) = start();
    let free = load(&context, KERNELS, "free");
    let at = |grid, block| LaunchConfig3D::new(grid, block, 0);
    assert_eq!(
        refusal::<Any>(&free, at((1, 65_536, 1), (1, 1, 1))),
        E::DeviceDimensionExceeded {
            kernel: "any",
            dimension: LaunchDimension::Grid,
            axis: LaunchAxis::Y,
            value: 65_536,
            limit: 65_535
        }
    );
    let long = refusal::<Any>(&free, at((1, 1, 1), (1, 1, 65)));
    assert_eq!(long.to_string(), "kernel any: block z = 65 exceeds the device's 64");
    assert!(matches!(
        refusal::<Any>(&free, at((1, 0, 1), (1, 1, 1))),
        E::ZeroDimension { dimension: LaunchDimension::Grid, axis: LaunchAxis::Y, .. }
    ));
    assert!(matches!(
        refusal::<Any>(&free, at((1, 1, 1), (64, 32, 1))),
        E::DeviceThreadsPerBlockExceeded { threads: 2048, limit: 1024, .. }
            | E::BlockThreadsExceedContract { threads: 2048, limit: 1024, .. }
    ));
    let narrow = load(&context, KERNELS, "narrow");
    assert_eq!(
        refusal::<Any>(&narrow, at((1, 1, 1), (129, 1, 1))),
        E::FunctionThreadsPerBlockExceeded { kernel: "any", threads: 129, limit: 128 }
    );
    let exact = load(&context, KERNELS, "exact");
    assert_eq!(
        refusal::<Any>(&exact, at((1, 1, 1), (128, 1, 1))),
        E::BlockShapeMismatch { kernel: "any", required: (64, 2, 1), actual: (128, 1, 1) }
    );
    PreparedLaunch::<Any>::prepare(&exact, at((7, 1, 1), (64, 2, 1))).unwrap();
    let coordinates = refusal::<Narrow>(&free, one(i32::MAX as u32, 1024));
    assert!(matches!(coordinates, E::CoordinateRangeExceedsU32 { axis: LaunchAxis::X, .. }), "{coordinates}");
}

#[test]
fn shared_memory_is_raised_to_what_the_contract_allows() {
    let (sim, context, _stream) = start();
    let fixed = load(&context, KERNELS, "fixed");
    assert_eq!(
        refusal::<Endless>(&fixed, one(1, 32)),
        E::SharedMemoryTotalOverflow { kernel: "endless", static_bytes: 40_960, dynamic_bytes: u32::MAX }
    );
    assert_eq!(
        refusal::<Greedy>(&fixed, one(1, 32)),
        E::DeviceSharedMemoryExceeded {
            kernel: "greedy",
            total: 40_960 + (228 << 10),
            limit: 227 << 10,
            opt_in: true
        }
    );
    let big = LaunchConfig1D::new(1, 32, 100 << 10);
    PreparedLaunch::<OptIn>::prepare(&fixed, big).unwrap();
    let most = fixed.max_dynamic_shared_memory_bytes();
    assert!(most >= 100 << 10, "{most}");
    // Never lowered, and not set again.
    let before = sim.counts();
    PreparedLaunch::<Portable>::prepare(&fixed, one(1, 32)).unwrap();
    assert_eq!(fixed.max_dynamic_shared_memory_bytes(), most);
    assert_eq!(sim.counts().since(&before).of(Entry::cuFuncSetAttribute), 0);
    assert!(matches!(
        refusal::<Portable>(&fixed, LaunchConfig1D::new(1, 32, 8193)),
        E::DynamicSharedMemoryOutsideRange { min: 0, max: 8192, actual: 8193, .. }
    ));
}

#[test]
fn capabilities_clusters_and_residency() {
    let (sim, context, stream) = start();
    let free = load(&context, KERNELS, "free");
    PreparedLaunch::<Modern>::prepare(&free, one(1, 1)).unwrap();
    assert_eq!(
        refusal::<Future>(&free, one(1, 1)),
        E::ComputeCapabilityTooLow { kernel: "future", required: (12, 1), actual: (9, 0) }
    );
    assert_eq!(
        refusal::<Clustered>(&free, one(2, 32)),
        E::RequiredClusterDimensionsMissing { kernel: "cluster_dsm", contract: (2, 1, 1) }
    );
    let dsm = load(&context, CLUSTER, "cluster_dsm");
    assert_eq!(
        refusal::<Other>(&dsm, one(4, 32)),
        E::FunctionClusterShapeMismatch { kernel: "cluster_dsm", contract: (4, 1, 1), function: (2, 1, 1) }
    );
    assert!(matches!(refusal::<Clustered>(&dsm, one(3, 32)), E::ClusterDoesNotDivideGrid { grid: 3, .. }));
    let wide = load(&context, KERNELS, "wide");
    assert_eq!(
        refusal::<Wide>(&wide, one(16, 32)),
        E::ClusterSizeExceeded { kernel: "wide", blocks: 16, limit: 8 }
    );
    sim.fail(Entry::cuOccupancyMaxActiveClusters, 1, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
    assert_eq!(
        refusal::<Clustered>(&dsm, one(2, 32)),
        E::ClusterShapeUnsupported { kernel: "cluster_dsm", cluster: (2, 1, 1) }
    );
    sim.fail(Entry::cuOccupancyMaxActiveClusters, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let failed = PreparedLaunch::<Clustered>::prepare(&dsm, one(2, 32)).unwrap_err();
    assert!(matches!(failed, LaunchError::Driver { .. }), "{failed}");
    let prepared = PreparedLaunch::<Clustered>::prepare(&dsm, one(2, 128)).unwrap();
    assert_eq!(prepared.options(), LaunchOptions::new(one(2, 128).into()).cluster(2, 1, 1));

    // 132 multiprocessors with two blocks of 1024 threads each.
    assert_eq!(
        refusal::<Together>(&free, one(265, 1024)),
        E::CooperativeGridTooLarge { kernel: "together", blocks: 265, limit: 264 }
    );
    let all = PreparedLaunch::<Together>::prepare(&free, one(264, 1024)).unwrap();
    // SAFETY: the kernel does nothing.
    unsafe { stream.launch(all.function(), all.options(), LaunchArgs::new()) }.unwrap();
    let grid = refusal::<Both>(&dsm, one(100_000, 128));
    assert!(matches!(grid, E::CooperativeGridTooLarge { blocks: 100_000, .. }), "{grid}");
    stream.synchronize().unwrap();
}

#[test]
fn devices_without_clusters_and_streams_of_others() {
    let old = Simulator::builder().profile(Profile::A100).quiet().build();
    let context_of = |sim: &Simulator| Device::new(sim.driver(), 0).unwrap().primary_context().unwrap();
    let old_context = context_of(&old);
    let text = SAXPY.replace("sm_90", "sm_80");
    let function = load(&old_context, &text, "saxpy");
    assert_eq!(
        refusal::<Clustered>(&function, one(2, 32)),
        E::ClusterLaunchUnsupported { kernel: "cluster_dsm" }
    );
    let sim = sim(2);
    let (zero, one_) = (context(&sim, 0), context(&sim, 1));
    let saxpy = load(&zero, SAXPY, "saxpy");
    let prepared = PreparedLaunch::<Saxpy>::prepare(&saxpy, one(1, 32)).unwrap();
    let other = one_.new_stream().unwrap();
    match prepared.validate_stream(&other) {
        Err(LaunchError::Contract(E::ContextMismatch { kernel: "saxpy" })) => {}
        other => panic!("{other:?}"),
    }
    // A second handle of the same context is the same context.
    prepared.validate_stream(&context(&sim, 0).new_stream().unwrap()).unwrap();
}

/// fr_D8: a block of another shape, or of more threads than the kernel was built for, is refused when the launch is prepared; what is prepared
/// is of its device. (That it is of its kernel and of its rank is a matter of types: `compile_fail/prepared_for_another.rs`.)
#[test]
fn fr_d8_a_prepared_launch_is_of_one_domain_and_one_device() {
    let sim = sim(2);
    let (zero, one_) = (context(&sim, 0), context(&sim, 1));
    let free = load(&zero, KERNELS, "free");
    let at = |block| LaunchConfig3D::new((4, 1, 1), block, 0);
    for block in [(8, 2, 1), (16, 16, 1), (1, 256, 1), (255, 1, 1), (512, 1, 1)] {
        assert_eq!(
            refusal::<Line>(&free, at(block)),
            E::BlockShapeMismatch { kernel: "line", required: (256, 1, 1), actual: block }
        );
    }
    // Its launch bounds are 128 threads, whatever the contract says.
    let narrow = load(&zero, KERNELS, "narrow");
    assert_eq!(
        refusal::<Line>(&narrow, at((256, 1, 1))),
        E::FunctionThreadsPerBlockExceeded { kernel: "line", threads: 256, limit: 128 }
    );
    let prepared = PreparedLaunch::<Line>::prepare(&free, at((256, 1, 1))).unwrap();
    let (near, far) = (zero.new_stream().unwrap(), one_.new_stream().unwrap());
    let before = sim.counts().of(Entry::cuLaunchKernel);
    // SAFETY: the kernel does nothing.
    let launch = |on: &Arc<simtile_core::Stream>| unsafe {
        on.launch(prepared.function(), prepared.options(), LaunchArgs::new())
    };
    assert!(matches!(
        prepared.validate_stream(&far),
        Err(LaunchError::Contract(E::ContextMismatch { kernel: "line" }))
    ));
    let refused = launch(&far).unwrap_err();
    assert!(matches!(refused, LaunchError::OtherContext { .. }), "{refused:?}");
    assert_eq!(sim.counts().of(Entry::cuLaunchKernel), before, "refused before the driver is asked");
    launch(&near).unwrap();
    near.synchronize().unwrap();
}
