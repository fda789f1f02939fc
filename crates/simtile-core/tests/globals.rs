//! M1: a module's variables are a tracked region. The checker looks for races.

mod common;

use common::context;
use simtile_core::{
    Context, DeviceBuffer, Function, Global, GlobalAccess, LaunchArgs, MemoryError, Module, ModuleError,
    Policy, Stream, StreamError,
};
use simtile_sim::{Checks, Simulator};
use simtile_types::LaunchConfig;
use std::sync::Arc;
use std::time::Duration;

/// `bump` adds 1 to a variable with a plain load and store; `show` copies it to its argument.
const COUNTING: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 0;
.visible .global .align 4 .u32 table[8];
.visible .entry bump()
{
    .reg .b32 %r<3>;
    ld.global.u32 %r1, [counter];
    add.s32 %r2, %r1, 1;
    st.global.u32 [counter], %r2;
    ret;
}
.visible .entry show(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r1, [counter];
    st.global.u32 [%rd2], %r1;
    ret;
}
";

/// A kernel that reads a constant.
const CONSTANT: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .const .align 4 .u32 factor = 3;
.visible .entry show(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    ld.const.u32 %r1, [factor];
    st.global.u32 [%rd2], %r1;
    ret;
}
";

fn checked() -> (Simulator, Arc<Context>, Arc<Stream>, Arc<Stream>) {
    let sim = Simulator::builder().checks(Checks::ALL).quiet().build();
    let context = context(&sim, 0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    (sim, context, a, b)
}

fn run(
    stream: &Arc<Stream>,
    function: &Function,
    args: LaunchArgs<'_>,
) -> Result<(), simtile_core::LaunchError> {
    // SAFETY: the kernels take what they are given, and touch their module's variables.
    unsafe {
        stream.launch(
            function,
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 },
            args,
        )
    }
}

fn counter(module: &Arc<Module>) -> Global<u32> {
    module.global("counter").unwrap()
}

#[test]
fn launches_that_share_a_mutable_variable_are_ordered() {
    let (sim, context, a, b) = checked();
    let module = context.load_module_from_ptx_src(COUNTING).unwrap();
    let bump = module.load_function("bump").unwrap();
    assert_eq!(bump.global_access(), GlobalAccess::Write);
    for _ in 0..50 {
        run(&a, &bump, LaunchArgs::new()).unwrap();
        run(&b, &bump, LaunchArgs::new()).unwrap();
    }
    assert_eq!(counter(&module).to_vec(&a).unwrap(), [100]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
    // Two modules of one image have their own.
    let other = context.load_module_from_ptx_src(COUNTING).unwrap();
    assert_eq!(counter(&other).to_vec(&b).unwrap(), [0]);
}

#[test]
fn replays_of_a_captured_launch_touch_the_variables() {
    let (sim, context, a, b) = checked();
    let module = context.load_module_from_ptx_src(COUNTING).unwrap();
    let (bump, show) = (module.load_function("bump").unwrap(), module.load_function("show").unwrap());
    let counter = counter(&module);
    let mut out = DeviceBuffer::<u32>::zeroed(&a, 1).unwrap();
    a.synchronize().unwrap();
    let capture = a.begin_capture().unwrap();
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernels take what they are given, and touch their module's variables.
    unsafe {
        capture.submit(&a).launch(&bump, config, LaunchArgs::new()).unwrap();
        capture.submit(&a).launch(&show, config, LaunchArgs::new().arg(&mut out)).unwrap();
    }
    let graph = capture.finish().unwrap().instantiate().unwrap();
    // Replays on two streams, launches and uploads: all of them follow each other.
    let gate = sim.gate(b.cu_stream()).unwrap();
    counter.copy_from_slice(&b, &[40]).unwrap();
    a.submit().graph(&graph).unwrap();
    run(&b, &bump, LaunchArgs::new()).unwrap();
    b.submit().graph(&graph).unwrap();
    gate.open();
    assert_eq!((counter.to_vec(&a).unwrap(), out.to_vec(&b).unwrap()), (vec![43], vec![43]));
    // Another module's variables are others.
    let other = context.load_module_from_ptx_src(COUNTING).unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    a.submit().graph(&graph).unwrap();
    run(&b, &other.load_function("bump").unwrap(), LaunchArgs::new()).unwrap();
    b.synchronize().unwrap();
    gate.open();
    // The graph keeps the module.
    drop((module, bump, show, counter));
    a.submit().graph(&graph).unwrap();
    assert_eq!(out.to_vec(&b).unwrap(), [45]);
    drop(graph);
    assert!(context.drain(Duration::from_secs(10)).is_complete());
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_launch_follows_the_upload_and_the_download_follows_the_launch() {
    let (sim, context, a, b) = checked();
    let module = context.load_module_from_ptx_src(COUNTING).unwrap();
    let (bump, show) = (module.load_function("bump").unwrap(), module.load_function("show").unwrap());
    let counter = counter(&module);
    let mut out = DeviceBuffer::<u32>::zeroed(&b, 1).unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    counter.copy_from_slice(&a, &[40]).unwrap();
    run(&b, &bump, LaunchArgs::new()).unwrap();
    run(&b, &show, LaunchArgs::new().arg(&mut out)).unwrap();
    // Nobody waits but for the answer.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| counter.to_vec(&b).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap(), [41]);
    });
    assert_eq!(out.to_vec(&a).unwrap(), [41]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn what_is_declared_is_what_is_ordered() {
    let (sim, context, a, b) = checked();
    let module = context.load_module_from_ptx_src(COUNTING).unwrap();
    let show = module.load_function("show").unwrap();
    // SAFETY: the kernel only reads the variable.
    let reader = unsafe { show.clone().with_globals(GlobalAccess::Read) };
    assert_eq!((show.global_access(), reader.global_access()), (GlobalAccess::Write, GlobalAccess::Read));
    let (mut x, mut y) =
        (DeviceBuffer::<u32>::zeroed(&a, 1).unwrap(), DeviceBuffer::<u32>::zeroed(&b, 1).unwrap());
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    run(&a, &reader, LaunchArgs::new().arg(&mut x)).unwrap();
    // Readers do not wait for each other.
    run(&b, &reader, LaunchArgs::new().arg(&mut y)).unwrap();
    b.synchronize().unwrap();
    // Whoever may write waits for both, or is refused by name.
    b.set_policy(Policy::Reject);
    let error = run(&b, &show, LaunchArgs::new().arg(&mut y)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("the variables of PTX"), "{text}");
    let error = counter(&module).copy_from_slice(&b, &[1]).unwrap_err();
    assert!(matches!(error, MemoryError::Stream(StreamError::Conflict { .. })), "{error:?}");
    gate.open();
    a.synchronize().unwrap();
    run(&b, &show, LaunchArgs::new().arg(&mut y)).unwrap();
    assert_eq!(y.to_vec(&a).unwrap(), [0]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn constants_are_read_by_all_and_uploads_wait_for_them() {
    let (sim, context, a, b) = checked();
    let module = context.load_module_from_ptx_src(CONSTANT).unwrap();
    let show = module.load_function("show").unwrap();
    assert_eq!(show.global_access(), GlobalAccess::Read);
    let factor = module.constant::<u32>("factor").unwrap();
    let (mut x, mut y) =
        (DeviceBuffer::<u32>::zeroed(&a, 1).unwrap(), DeviceBuffer::<u32>::zeroed(&b, 1).unwrap());
    a.synchronize().unwrap();
    let gate = sim.gate(a.cu_stream()).unwrap();
    run(&a, &show, LaunchArgs::new().arg(&mut x)).unwrap();
    factor.write(&b, &7).unwrap();
    run(&b, &show, LaunchArgs::new().arg(&mut y)).unwrap();
    assert!(!b.is_complete().unwrap());
    gate.open();
    assert_eq!((x.to_vec(&a).unwrap(), y.to_vec(&b).unwrap()), (vec![3], vec![7]));
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn a_module_without_variables_costs_nothing() {
    let (_sim, context, a, b) = checked();
    let module = context.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/saxpy.ptx")).unwrap();
    let kernel = module.load_function("saxpy").unwrap();
    assert_eq!(kernel.global_access(), GlobalAccess::None);
    let x = DeviceBuffer::<f32>::zeroed(&a, 8).unwrap();
    let mut y = [&a, &b].map(|stream| DeviceBuffer::<f32>::zeroed(stream, 8).unwrap());
    for (stream, y) in [&a, &b].into_iter().zip(&mut y) {
        run(stream, &kernel, LaunchArgs::new().arg(8u32).arg(1.0f32).arg(&x).arg(y)).unwrap();
    }
}

#[test]
fn typed_handles_check_sizes_and_ranges() {
    let (_sim, context, a, _b) = checked();
    let module = context.load_module_from_ptx_src(COUNTING).unwrap();
    let table = module.global::<u32>("table").unwrap();
    assert_eq!((table.len(), table.is_empty(), table.symbol().num_bytes()), (8, false, 32));
    table.copy_from_slice(&a, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    table.copy_from_slice_at(&a, 6, &[70, 80]).unwrap();
    assert_eq!(table.range_to_vec(&a, 5, 3).unwrap(), [6, 70, 80]);
    assert_eq!(module.global::<[u16; 4]>("table").unwrap().to_vec(&a).unwrap()[0], [1, 0, 2, 0]);
    assert!(matches!(
        table.copy_from_slice(&a, &[1]),
        Err(MemoryError::LengthMismatch { expected: 8, actual: 1, .. })
    ));
    assert!(matches!(
        table.copy_from_slice_at(&a, 7, &[1, 2]),
        Err(MemoryError::OutOfRange { start: 7, end: 9, len: 8, .. })
    ));
    assert!(matches!(table.range_to_vec(&a, usize::MAX, 2), Err(MemoryError::OutOfRange { .. })));
    assert!(matches!(
        module.global::<[u32; 3]>("table"),
        Err(ModuleError::SymbolSize { expected: 12, actual: 32, .. })
    ));
    assert!(module.global::<u32>("nothing").is_err());
    // The handle keeps the module.
    let kept = table.clone();
    drop((module, table));
    assert_eq!(kept.range_to_vec(&a, 0, 1).unwrap(), [1]);
    assert!(format!("{kept:?}").contains("8 elements"));
}

#[test]
fn printing_kernels_and_mathematics_do_not_serialise() {
    let (_sim, context, a, _b) = checked();
    let printf = context.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/printf.ptx")).unwrap();
    assert_eq!(printf.info().map(|info| info.globals), Some(simtile_image::Globals::Constant));
    let rust =
        context.load_module_from_ptx_src(include_str!("../../../artifacts/ptx/rust_kernels.ptx")).unwrap();
    assert_eq!(rust.info().map(|info| info.globals), Some(simtile_image::Globals::Constant));
    drop(a);
}
