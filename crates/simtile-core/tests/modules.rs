//! H5, F2: modules, functions, symbols and launches.

mod common;

use common::*;
use simtile_core::{
    Context, DeviceBuffer, LaunchArgs, LaunchError, LaunchOptions, MemoryError, ModuleError, ParameterLayout,
};
use simtile_driver::sys::CUresult;
use simtile_driver::{Driver, Entry, State, Table};
use simtile_types::LaunchConfig;
use simtile_types::contract::LaunchContractError as E;
use std::sync::Arc;

const SAXPY: &str = include_str!("../../../artifacts/ptx/saxpy.ptx");
const MATH: &str = include_str!("../../../artifacts/ptx/math.ptx");
const DYN_SHARED: &str = include_str!("../../../artifacts/ptx/dyn_shared.ptx");
const CUBIN: &[u8] = include_bytes!("../../../artifacts/tile_rs/rs_vadd_f32.cubin");
const BYTECODE: &[u8] = include_bytes!("../../../artifacts/tile_rs/rs_vadd_f32.tileirbc");

/// A module with a variable and a constant, and a kernel that adds both to each of `n` values.
const SYMBOLS: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 base = 5;
.visible .const .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
.visible .entry add_base(.param .u64 data, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $done;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd2, %rd2, %rd3;
    ld.global.u32 %r3, [%rd2];
    ld.global.u32 %r4, [base];
    ld.const.u32 %r5, [table+4];
    add.s32 %r6, %r3, %r4;
    add.s32 %r6, %r6, %r5;
    st.global.u32 [%rd2], %r6;
$done:
    ret;
}
";

fn saxpy_buffers(stream: &Arc<simtile_core::Stream>, n: usize) -> (DeviceBuffer<f32>, DeviceBuffer<f32>) {
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    (DeviceBuffer::from_slice(stream, &x).unwrap(), DeviceBuffer::zeroed(stream, n).unwrap())
}

#[test]
fn h5_images_are_checked_before_the_driver_sees_them() {
    let (sim, context, _stream) = start();
    let before = sim.counts();
    let mut images: Vec<Vec<u8>> = vec![
        vec![],
        b"\0".to_vec(),
        b"not an image".to_vec(),
        b"\x7fELF".to_vec(),
        SAXPY.replacen("saxpy", "sa\0xpy", 1).into_bytes(),
        [SAXPY.as_bytes(), &[0xff, 0xfe]].concat(),
        BYTECODE[..10].to_vec(),
        [&BYTECODE[..8], &[9, 9], &BYTECODE[10..]].concat(),
    ];
    // Prefixes of a cubin of which some part is missing.
    images.extend((0..CUBIN.len()).step_by(CUBIN.len() / 97).map(|end| CUBIN[..end].to_vec()));
    for image in images {
        match context.load_module(&image) {
            Err(ModuleError::BadImage { why, .. }) => assert!(!why.is_empty()),
            other => panic!("{} bytes: {other:?}", image.len()),
        }
    }
    assert_eq!(sim.counts().since(&before).total(), 0);
    assert!(matches!(context.load_module_from_ptx_src("\u{7f}ELF"), Err(ModuleError::BadImage { .. })));
}

#[test]
fn h5_a_refused_load_shows_the_log_and_leaves_nothing_behind() {
    let (sim, context, _stream) = start();
    let unknown = SAXPY.replace("fma.rn.f32", "frobnicate.f32");
    match context.load_module_from_ptx_src(&unknown) {
        Err(ModuleError::Load { log, source, .. }) => {
            assert!(log.contains("frobnicate"), "{log:?}");
            assert_eq!(source.entry(), Entry::cuModuleLoadDataEx);
        }
        other => panic!("{other:?}"),
    }
    sim.fail(Entry::cuModuleLoadDataEx, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(matches!(context.load_module_from_ptx_src(SAXPY), Err(ModuleError::Load { .. })));
    assert_eq!(sim.counts().of(Entry::cuModuleUnload), 0);
    assert_eq!(context.stats().retained_modules, 0);
    context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
}

#[test]
fn h5_bytecode_that_a_driver_refuses_names_the_compiler() {
    unsafe fn refuse(
        _: State,
        _: *mut simtile_driver::sys::CUmodule,
        _: *const core::ffi::c_void,
        _: u32,
        _: *mut simtile_driver::sys::CUjit_option,
        _: *mut *mut core::ffi::c_void,
    ) -> CUresult {
        CUresult::CUDA_ERROR_INVALID_PTX
    }
    let sim = sim(1);
    let driver = sim.driver();
    let table = Box::leak(Box::new(Table { cuModuleLoadDataEx: refuse, ..*driver.table() }));
    // SAFETY: the same state under a table that differs in one function, which does not use it.
    let driver = unsafe { Driver::from_parts(table, driver.state()) };
    let context = Context::new(driver, 0).unwrap();
    match context.load_module(BYTECODE) {
        Err(ModuleError::NeedsTileCompiler { target, .. }) => assert_eq!(target, "sm_90"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn h5_files_and_names() {
    let (_sim, context, _stream) = start();
    let path = std::env::temp_dir().join(format!("simtile-core-module-{}.ptx", std::process::id()));
    std::fs::write(&path, SAXPY).unwrap();
    let module = context.load_module_from_file(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(module.to_string().contains("simtile-core-module"), "{module}");
    match context.load_module_from_file(&path) {
        Err(ModuleError::File { path: named, .. }) => assert_eq!(named, path.display().to_string()),
        other => panic!("{other:?}"),
    }
    match module.load_function("saxpi") {
        Err(ModuleError::NotFound { kind: "kernel", name, known, .. }) => {
            assert_eq!((name.as_str(), known.as_slice()), ("saxpi", &["saxpy".to_string()][..]));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(module.load_function("sax\0py"), Err(ModuleError::NulInName { .. })));
    assert!(matches!(module.symbol("nothing"), Err(ModuleError::NotFound { kind: "variable", .. })));
}

#[test]
fn h5_functions_keep_their_module_and_attributes_are_cached() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    assert_eq!(context.stats().retained_modules, 0);
    assert_eq!(*function.parameters(), ParameterLayout::Known(vec![4, 4, 8, 8].into()));
    assert_eq!(function.required_block(), None);
    let (x, mut y) = saxpy_buffers(&stream, 1000);
    let before = sim.counts();
    for _ in 0..10 {
        assert!(function.attributes().max_threads_per_block >= 256);
        let args = LaunchArgs::new().arg(1000u32).arg(2.0f32).buffer(&x).buffer_mut(&mut y);
        // SAFETY: both buffers have 1000 elements.
        unsafe { stream.launch(&function, LaunchConfig::for_num_elems(1000), args) }.unwrap();
    }
    let calls = sim.counts().since(&before);
    assert_eq!((calls.total(), calls.of(Entry::cuLaunchKernel)), (10, 10), "{calls:?}");
    let want: Vec<f32> = (0..1000).map(|i| 20.0 * i as f32).collect();
    assert_eq!(y.to_vec(&stream).unwrap(), want);
    let blocks = function.max_active_blocks_per_multiprocessor(256, 0).unwrap();
    assert!((1..=32).contains(&blocks));
    let clone = function.clone();
    drop(function);
    assert_eq!(context.stats().retained_modules, 0);
    assert_eq!(sim.counts().of(Entry::cuModuleUnload), 0);
    drop(clone);
    assert!(context.drain(std::time::Duration::from_secs(10)).is_complete());
    assert_eq!(context.stats().retained_modules, 0);
    assert_eq!(sim.counts().of(Entry::cuModuleUnload), 1);
}

#[test]
fn h5_parameters_come_from_the_driver_where_the_image_is_not_known() {
    let (sim, context, _stream) = start();
    let module = context.load_module_from_ptx_src(SAXPY).unwrap();
    // SAFETY: the module stays loaded until its context ends.
    let borrowed =
        unsafe { simtile_core::Module::borrow_raw(module.cu_module(), &context, Some(module.clone())) };
    let first = borrowed.load_function("saxpy").unwrap();
    assert_eq!(*first.parameters(), ParameterLayout::Known(vec![4, 4, 8, 8].into()));
    sim.mask(&[Entry::cuFuncGetParamInfo, Entry::cuFuncLoad]);
    let function = borrowed.load_function("saxpy").unwrap();
    assert_eq!(*function.parameters(), ParameterLayout::Unknown);
    drop((first, function, borrowed, module));
    assert!(context.drain(std::time::Duration::from_secs(10)).is_complete());
    assert_eq!(sim.counts().of(Entry::cuModuleUnload), 1, "the borrowed handle unloads nothing");
}

#[test]
fn h5_loading_a_function_grows_the_stack_so_that_launches_do_not() {
    const DEEP: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 out)
{
    .local .align 4 .b8 depot[8192];
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    mov.u64 %rd1, depot;
    mov.u32 %r1, 7;
    st.local.u32 [%rd1+8188], %r1;
    ld.local.u32 %r2, [%rd1+8188];
    ld.param.u64 %rd2, [out];
    cvta.to.global.u64 %rd3, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
";
    let (sim, context, stream) = start();
    assert!(context.stack_size().unwrap() < 8192);
    let module = context.load_module_from_ptx_src(DEEP).unwrap();
    let function = module.load_function("deep").unwrap();
    assert!(function.attributes().local_size_bytes >= 8192);
    assert!(context.stack_size().unwrap() >= 8192);
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let before = sim.counts();
    let args = LaunchArgs::new().buffer_mut(&mut out);
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel writes one value.
    unsafe { stream.launch(&function, config, args) }.unwrap();
    assert_eq!(sim.counts().since(&before).total(), 1);
    assert_eq!(out.to_vec(&stream).unwrap(), [7]);
    let math = context.load_module_from_ptx_src(MATH).unwrap();
    assert!(math.load_function("mathk").unwrap().attributes().local_size_bytes > 0);
}

#[test]
fn f2_geometry_names_axis_value_and_limit() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let limits = context.capabilities().unwrap().launch_limits;
    let launch = |grid_dim, block_dim, shared_mem_bytes| {
        let args = LaunchArgs::new().arg(0u32).arg(1.0f32).arg(0u64).arg(0u64);
        let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes };
        // SAFETY: the kernel does nothing for n = 0.
        unsafe { stream.launch(&function, config, args) }
    };
    let before = sim.counts();
    let cases = [
        ((0, 1, 1), (1, 1, 1), 0, "grid x is 0".to_string()),
        ((1, 0, 1), (1, 1, 1), 0, "grid y is 0".to_string()),
        ((1, 1, 0), (1, 1, 1), 0, "grid z is 0".to_string()),
        ((1, 1, 1), (0, 1, 1), 0, "block x is 0".to_string()),
        ((1, 1, 1), (1, 0, 1), 0, "block y is 0".to_string()),
        ((1, 1, 1), (1, 1, 0), 0, "block z is 0".to_string()),
        ((u32::MAX, 1, 1), (1, 1, 1), 0, format!("grid x = 4294967295 exceeds the device's {}", i32::MAX)),
        ((1, 65536, 1), (1, 1, 1), 0, "grid y = 65536 exceeds the device's 65535".to_string()),
        ((1, 1, 65536), (1, 1, 1), 0, "grid z = 65536 exceeds the device's 65535".to_string()),
        ((1, 1, 1), (1025, 1, 1), 0, "block x = 1025 exceeds the device's 1024".to_string()),
        ((1, 1, 1), (1, 1, 65), 0, "block z = 65 exceeds the device's 64".to_string()),
        ((1, 1, 1), (64, 32, 1), 0, "2048 threads a block exceed the device's 1024".to_string()),
        (
            (1, 1, 1),
            (1, 1, 1),
            limits.max_shared_memory_per_block + 1,
            format!("bytes of shared memory exceed the device's {}", limits.max_shared_memory_per_block),
        ),
    ];
    for (grid, block, shared, text) in cases {
        let error = launch(grid, block, shared).unwrap_err();
        assert!(matches!(error, LaunchError::Geometry { .. }), "{error:?}");
        let shown = error.to_string();
        assert!(shown.starts_with("kernel saxpy: ") && shown.contains(&text), "{shown}");
    }
    assert_eq!(sim.counts().since(&before).total(), 0);
    launch((1, 1, 1), (1024, 1, 1), limits.max_shared_memory_per_block).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn f2_arguments_are_counted_and_measured() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let config = LaunchConfig::for_num_elems(1);
    let before = sim.counts();
    // SAFETY: refused before the driver is asked.
    let launch = |args: LaunchArgs<'_>| unsafe { stream.launch(&function, config, args) };
    assert!(matches!(
        launch(LaunchArgs::new().arg(0u32)),
        Err(LaunchError::ArgumentCount { expected: 4, actual: 1, .. })
    ));
    assert!(matches!(
        launch(LaunchArgs::new().arg(0u32).arg(1f32).arg(0u64).arg(0u64).arg(0u64)),
        Err(LaunchError::ArgumentCount { expected: 4, actual: 5, .. })
    ));
    assert!(matches!(
        launch(LaunchArgs::new().arg(0u32).arg(1f64).arg(0u64).arg(0u64)),
        Err(LaunchError::ArgumentSize { index: 1, expected: 4, actual: 8, .. })
    ));
    assert_eq!(sim.counts().since(&before).total(), 0);
}

#[test]
fn f2_a_function_of_another_context_is_refused_with_both_names() {
    let sim = sim(2);
    let (zero, one) = (context(&sim, 0), context(&sim, 1));
    let (a, b) = (zero.new_stream().unwrap(), one.new_stream().unwrap());
    let function = zero.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let args = || LaunchArgs::new().arg(0u32).arg(1f32).arg(0u64).arg(0u64);
    let config = LaunchConfig::for_num_elems(1);
    let before = sim.counts();
    // SAFETY: refused before the driver is asked.
    let error = unsafe { b.launch(&function, config, args()) }.unwrap_err();
    assert!(matches!(error, LaunchError::OtherContext { .. }));
    let text = error.to_string();
    assert!(text.contains(&zero.to_string()) && text.contains(&one.to_string()), "{text}");
    assert_eq!(sim.counts().since(&before).total(), 0);
    let buffer = DeviceBuffer::from_slice(&b, &[1f32; 4]).unwrap();
    let args = LaunchArgs::new().arg(4u32).arg(1f32).buffer(&buffer).buffer(&buffer);
    // SAFETY: refused before the driver is asked.
    let error = unsafe { a.launch(&function, config, args) }.unwrap_err();
    assert!(matches!(error, LaunchError::OtherContext { .. }), "{error:?}");
}

#[test]
fn an_empty_launch_makes_no_driver_call() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let (x, mut y) = (DeviceBuffer::zeroed(&stream, 0).unwrap(), DeviceBuffer::zeroed(&stream, 0).unwrap());
    let before = sim.counts();
    let args = LaunchArgs::new().arg(0u32).arg(1f32).buffer::<f32>(&x).buffer_mut::<f32>(&mut y);
    // SAFETY: nothing is launched.
    unsafe { stream.launch(&function, LaunchConfig::for_num_elems(0), args) }.unwrap();
    assert_eq!(sim.counts().since(&before).total(), 0);
}

#[test]
fn launches_follow_their_buffers_across_streams() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let (x, mut y) = saxpy_buffers(&a, 500);
    let gate = sim.gate(a.cu_stream()).unwrap();
    for (i, stream) in [&a, &b, &a, &b].into_iter().enumerate() {
        let args = LaunchArgs::new().arg(500u32).arg(i as f32).buffer(&x).buffer_mut(&mut y);
        // SAFETY: both buffers have 500 elements.
        unsafe { stream.launch(&function, LaunchConfig::for_num_elems(500), args) }.unwrap();
    }
    assert!(!b.is_complete().unwrap());
    // Freed behind the launches, wherever the last one was.
    drop(x);
    gate.open();
    let want: Vec<f32> = (0..500).map(|i| 6.0 * i as f32).collect();
    assert_eq!(y.to_vec(&b).unwrap(), want);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn launches_on_default_and_borrowed_streams_are_followed() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let lent = context.new_stream().unwrap();
    // SAFETY: `lent` keeps the stream alive.
    let foreign = unsafe { simtile_core::Stream::borrow_raw(lent.cu_stream(), &context) }.unwrap();
    for other in [context.legacy_default_stream(), context.per_thread_default_stream(), foreign] {
        let (x, mut y) = saxpy_buffers(&stream, 100);
        let args = LaunchArgs::new().arg(100u32).arg(3f32).buffer(&x).buffer_mut(&mut y);
        // SAFETY: both buffers have 100 elements.
        unsafe { other.launch(&function, LaunchConfig::for_num_elems(100), args) }.unwrap();
        assert_eq!(y.to_vec(&stream).unwrap()[99], 297.0);
    }
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn dynamic_shared_memory_is_allowed_once_and_never_taken_back() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(DYN_SHARED).unwrap().load_function("dyn_shared").unwrap();
    let first = function.max_dynamic_shared_memory_bytes();
    let more = first + 1024;
    let launch = |bytes| {
        let args = LaunchArgs::new().arg(0u64).arg(0u64).arg(0u32);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: bytes };
        // SAFETY: with n = 0 the kernel touches shared memory only.
        unsafe { stream.launch(&function, config, args) }
    };
    let error = launch(more).unwrap_err();
    assert!(
        matches!(error, LaunchError::Geometry { source: E::DeviceSharedMemoryExceeded { .. }, .. }),
        "{error:?}"
    );
    // A refused request changes nothing, and the next one asks the driver again.
    sim.fail(Entry::cuFuncSetAttribute, 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(function.allow_dynamic_shared_memory(more).is_err());
    assert_eq!(function.max_dynamic_shared_memory_bytes(), first);
    function.allow_dynamic_shared_memory(more).unwrap();
    function.allow_dynamic_shared_memory(16).unwrap();
    assert_eq!(function.max_dynamic_shared_memory_bytes(), more);
    assert_eq!(sim.counts().of(Entry::cuFuncSetAttribute), 2);
    launch(more).unwrap();
    assert!(function.allow_dynamic_shared_memory(u32::MAX).is_err());
    stream.synchronize().unwrap();
}

#[test]
fn tile_kernels_take_blocks_of_one() {
    let (_sim, context, stream) = start();
    let module = context.load_module(BYTECODE).unwrap();
    let function = module.load_function("rs_vadd_f32").unwrap();
    let n = 5000;
    let a = DeviceBuffer::from_slice(&stream, &vec![1.5f32; n]).unwrap();
    let b = DeviceBuffer::from_slice(&stream, &vec![2.0f32; n]).unwrap();
    let mut c = DeviceBuffer::<f32>::zeroed(&stream, n).unwrap();
    let args = LaunchArgs::new().buffer(&a).arg(n as i32).arg(1i32).buffer(&b).arg(n as i32).arg(1i32);
    let args = args.buffer_mut(&mut c).arg(n as i32).arg(1i32);
    let tiles = n.div_ceil(1024) as u32;
    let wide = LaunchConfig { block_dim: (128, 1, 1), ..LaunchConfig::tiles(tiles, 1, 1) };
    if function.required_block().is_some() {
        // SAFETY: refused before the driver is asked.
        let error = unsafe { stream.launch(&function, wide, &args) }.unwrap_err();
        let LaunchError::Geometry { source: E::BlockShapeMismatch { required, .. }, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(required, (1, 1, 1));
    }
    // SAFETY: the buffers have `n` elements with stride 1.
    unsafe { stream.launch(&function, LaunchConfig::tiles(tiles, 1, 1), args) }.unwrap();
    assert!(c.to_vec(&stream).unwrap().iter().all(|&v| v == 3.5));
}

#[test]
fn symbols_hold_their_module_and_check_sizes_and_contexts() {
    let sim = sim(2);
    let (context, other) = (context(&sim, 0), context(&sim, 1));
    let (stream, foreign) = (context.new_stream().unwrap(), other.new_stream().unwrap());
    let module = context.load_module_from_ptx_src(SYMBOLS).unwrap();
    let base = module.constant::<u32>("base").unwrap();
    let table = module.symbol("table").unwrap();
    drop(module);
    assert_eq!(context.stats().retained_modules, 0);
    assert_eq!(base.read(&stream).unwrap(), 5);
    base.write(&stream, &50).unwrap();
    assert_eq!(base.read(&stream).unwrap(), 50);
    assert_eq!(table.num_bytes(), 16);
    assert_eq!(table.read::<u32>(&stream, 4, 2).unwrap(), [2, 3]);
    table.write(&stream, 12, &[9u32]).unwrap();
    assert_eq!(table.read::<u32>(&stream, 0, 4).unwrap(), [1, 2, 3, 9]);
    assert!(matches!(
        table.write(&stream, 13, &[1u32]),
        Err(MemoryError::OutOfRange { start: 13, end: 17, len: 16, .. })
    ));
    assert!(table.write(&stream, 0, &[0u8; 17]).is_err());
    assert!(matches!(table.read::<u32>(&stream, usize::MAX, 1), Err(MemoryError::OutOfRange { .. })));
    assert!(matches!(table.read::<u32>(&stream, 0, usize::MAX), Err(MemoryError::SizeOverflow { .. })));
    // A stream of another device reaches them like any memory.
    base.write(&foreign, &51).unwrap();
    assert_eq!(base.read(&stream).unwrap(), 51);
    match table.module().constant::<u64>("base") {
        Err(ModuleError::SymbolSize { expected: 8, actual: 4, .. }) => {}
        result => panic!("{result:?}"),
    }
}

#[test]
fn a_symbol_is_written_behind_launches_that_read_it_on_other_streams() {
    let (sim, context, a) = start();
    let b = context.new_stream().unwrap();
    let module = context.load_module_from_ptx_src(SYMBOLS).unwrap();
    let function = module.load_function("add_base").unwrap();
    let base = module.constant::<u32>("base").unwrap();
    let mut data = DeviceBuffer::<u32>::zeroed(&a, 8).unwrap();
    let launch = |stream: &Arc<simtile_core::Stream>, data: &mut DeviceBuffer<u32>| {
        let args = LaunchArgs::new().buffer_mut(data).arg(8u32);
        // SAFETY: the buffer has 8 elements.
        unsafe { stream.launch(&function, LaunchConfig::for_num_elems(8), args) }.unwrap();
    };
    launch(&a, &mut data);
    let gate = sim.gate(a.cu_stream()).unwrap();
    launch(&a, &mut data);
    // Queued behind the launch that still reads the old value; nobody waits here.
    base.write(&b, &1000).unwrap();
    assert!(!b.is_complete().unwrap());
    launch(&b, &mut data);
    gate.open();
    assert_eq!(data.to_vec(&b).unwrap(), [2 * (5 + 2) + 1000 + 2; 8]);
    assert!(sim.reports().is_empty(), "{:?}", sim.reports());
}

#[test]
fn options_reach_the_driver_and_are_checked() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let (x, mut y) = saxpy_buffers(&stream, 1024);
    let config = LaunchConfig::for_num_elems(1024);
    let options = [
        LaunchOptions::new(config).cooperative(),
        LaunchOptions::new(config).cluster(2, 1, 1),
        LaunchOptions::new(config).priority(-1),
        LaunchOptions::new(config).cooperative().cluster(2, 1, 1).priority(0),
    ];
    let before = sim.counts();
    for options in options {
        let args = LaunchArgs::new().arg(1024u32).arg(1f32).buffer(&x).buffer_mut(&mut y);
        // SAFETY: both buffers have 1024 elements.
        unsafe { stream.launch(&function, options, args) }.unwrap();
    }
    assert_eq!(sim.counts().since(&before).of(Entry::cuLaunchKernelEx), 4);
    assert_eq!(y.to_vec(&stream).unwrap()[3], 12.0);
    let args = LaunchArgs::new().arg(1024u32).arg(1f32).buffer(&x).buffer_mut(&mut y);
    // SAFETY: refused before the driver is asked.
    let error =
        unsafe { stream.launch(&function, LaunchOptions::new(config).cluster(3, 1, 1), args) }.unwrap_err();
    assert!(error.to_string().contains("grid x = 4 is not a multiple of cluster x = 3"), "{error}");
}

#[test]
fn a_kernel_fault_loses_the_context_and_names_the_call_that_found_out() {
    let (sim, context, stream) = start();
    let function = context.load_module_from_ptx_src(SAXPY).unwrap().load_function("saxpy").unwrap();
    let args = LaunchArgs::new().arg(1u32).arg(1f32).arg(0xdead_0000u64).arg(0xdead_0000u64);
    // SAFETY: the fault is what is tested; the simulator contains it.
    unsafe { stream.launch(&function, LaunchConfig::for_num_elems(1), args) }.unwrap();
    assert!(stream.synchronize().is_err());
    assert_eq!(context.loss().map(|e| e.code()), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    let calls = sim.counts().total();
    assert!(matches!(stream.synchronize(), Err(simtile_core::StreamError::ContextLost { .. })));
    drop((function, stream));
    assert_eq!(sim.counts().total(), calls);
}
