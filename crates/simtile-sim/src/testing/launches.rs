//! Modules, functions, launches, faults, printf, queue limits.

use super::*;
use crate::ReportKind;
use core::ffi::c_void;
use core::ptr::{null, null_mut};

#[test]
fn launches_run_in_stream_order_with_their_parameters() {
    for rig in Rig::modes() {
        let memory = rig.memory(4096);
        let (module, stream) = (rig.module(), rig.stream());
        let (store, next) = (rig.function(module, "store"), rig.function(module, "next"));
        rig.run(store, stream, &[memory.base, 7]);
        for i in 0..100 {
            rig.run(next, stream, &[memory.base + 4 * (i + 1), memory.base + 4 * i]);
        }
        ok!(rig, cuStreamSynchronize(stream));
        assert_eq!(rig.word(&memory, 100), 107);
        assert!(rig.sim.reports().is_empty());
    }
}

#[test]
fn the_extra_buffer_is_another_way_to_pass_parameters() {
    let rig = Rig::new();
    let memory = rig.memory(64);
    let (module, stream) = (rig.module(), rig.stream());
    let store = rig.function(module, "store");
    let mut params = [0u8; 16];
    params[..8].copy_from_slice(&memory.base.to_le_bytes());
    params[8..12].copy_from_slice(&9u32.to_le_bytes());
    let launch = |size: usize| {
        let mut extra: [*mut c_void; 5] = [
            core::ptr::without_provenance_mut(1),
            params.as_ptr().cast_mut().cast(),
            core::ptr::without_provenance_mut(2),
            core::ptr::from_ref(&size).cast_mut().cast(),
            null_mut(),
        ];
        code!(rig, cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), extra.as_mut_ptr()))
    };
    assert_eq!(launch(12), CUresult::CUDA_SUCCESS);
    assert_eq!(launch(16), CUresult::CUDA_SUCCESS);
    assert_eq!(launch(11), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(40), CUresult::CUDA_ERROR_INVALID_VALUE);
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(rig.word(&memory, 0), 9);
}

#[test]
fn geometry_and_resources_are_checked_as_on_the_real_device() {
    let rig = Rig::new();
    let memory = rig.memory(64);
    let (module, stream) = (rig.module(), rig.stream());
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let fine = CUresult::CUDA_SUCCESS;
    let params = [memory.base];
    let cases = [
        ("shape", [1, 1, 1], [1, 1, 1], 0, fine),
        ("shape", [0, 1, 1], [1, 1, 1], 0, bad),
        ("shape", [1, 1, 1], [1, 0, 1], 0, bad),
        ("shape", [1, 65536, 1], [1, 1, 1], 0, bad),
        ("shape", [1 << 31, 1, 1], [1, 1, 1], 0, bad),
        ("shape", [1, 1, 1], [1025, 1, 1], 0, bad),
        ("shape", [1, 1, 1], [1, 1, 65], 0, bad),
        ("shape", [1, 1, 1], [64, 64, 1], 0, bad),
        ("shape", [1, 1, 1], [1, 1, 1], 49152, fine),
        ("shape", [1, 1, 1], [1, 1, 1], 49153, bad),
        ("max128", [1, 1, 1], [2, 64, 1], 0, fine),
        ("max128", [1, 1, 1], [129, 1, 1], 0, bad),
        ("req64", [1, 1, 1], [64, 1, 1], 0, fine),
        ("req64", [1, 1, 1], [32, 1, 1], 0, bad),
        ("shared40k", [1, 1, 1], [1, 1, 1], 8192, fine),
        ("shared40k", [1, 1, 1], [1, 1, 1], 8193, bad),
        ("cluster2", [2, 1, 1], [1, 1, 1], 0, fine),
        ("cluster2", [3, 1, 1], [1, 1, 1], 0, CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE),
        ("regs128", [1, 1, 1], [512, 1, 1], 0, fine),
        ("regs128", [1, 1, 1], [1024, 1, 1], 0, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
        ("tile", [4, 1, 1], [1, 1, 1], 0, fine),
        ("tile", [4, 1, 1], [32, 1, 1], 0, bad),
    ];
    for (name, grid, block, dynamic, expected) in cases {
        let function = rig.function(module, name);
        let params: &[u64] = if name == "shape" { &params } else { &[] };
        let code = rig.launch(function, grid, block, dynamic, stream, params);
        assert_eq!(code, expected, "{name} {grid:?} {block:?} {dynamic}");
    }
    // No parameters for a kernel that has some.
    let shape = rig.function(module, "shape");
    assert_eq!(rig.launch(shape, [1; 3], [1; 3], 0, stream, &[]), bad);
    // More dynamic shared memory after it was allowed.
    let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    for (value, code) in [(232_448, fine), (232_449, bad), (-1, bad)] {
        assert_eq!(code!(rig, cuFuncSetAttribute(shape, most, value)), code);
    }
    assert_eq!(rig.launch(shape, [3, 1, 1], [5, 1, 1], 232_448, stream, &params), fine);
    ok!(rig, cuStreamSynchronize(stream));
    let seen: Vec<u32> = (0..5).map(|i| rig.word(&memory, i)).collect();
    assert_eq!(seen, [3, 5, 1, 232_448, 0]);
    // Handles of nothing, and of another kind.
    for wrong in [CUfunction::NULL, CUfunction(module.0), CUfunction(stream.0), CUfunction(0x5000)] {
        assert_eq!(rig.launch(wrong, [1; 3], [1; 3], 0, stream, &[]), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    assert!(rig.sim.reports().is_empty());
}

fn attribute(id: CUlaunchAttributeID, fill: impl FnOnce(&mut CUlaunchAttributeValue)) -> CUlaunchAttribute {
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    fill(&mut value);
    CUlaunchAttribute { id, pad: [0; 4], value }
}

#[test]
fn launch_attributes() {
    type Id = CUlaunchAttributeID;
    let rig = Rig::new();
    let memory = rig.memory(64);
    let (module, stream) = (rig.module(), rig.stream());
    let shape = rig.function(module, "shape");
    let launch = |grid: u32, mut attributes: Vec<CUlaunchAttribute>| {
        let config = CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut list = [core::ptr::from_ref(&memory.base).cast_mut().cast()];
        code!(rig, cuLaunchKernelEx(&config, shape, list.as_mut_ptr(), null_mut()))
    };
    let cluster = |x| {
        attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, |value| {
            value.clusterDim = CUlaunchAttributeValue_clusterDim { x, y: 1, z: 1 };
        })
    };
    let cooperative = attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, |value| value.cooperative = 1);
    let fine = CUresult::CUDA_SUCCESS;
    let bad_cluster = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    assert_eq!(launch(1, vec![]), fine);
    assert_eq!(launch(4, vec![cluster(2), cooperative]), fine);
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!((rig.word(&memory, 2), rig.word(&memory, 4)), (2, 1));
    assert_eq!(launch(3, vec![cluster(2)]), bad_cluster);
    assert_eq!(launch(16, vec![cluster(16)]), bad_cluster);
    assert_eq!(launch(2, vec![cluster(0)]), bad_cluster);
    assert_eq!(launch(132 * 32 + 1, vec![cooperative]), CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    for id in [15, 99] {
        let code = launch(1, vec![attribute(CUlaunchAttributeID(id), |_| ())]);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let updatable = attribute(Id::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, |_| ());
    assert_eq!(launch(1, vec![updatable]), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // An event of the launch itself.
    let event = rig.event();
    let completion = attribute(Id::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, |value| {
        value.launchCompletionEvent = CUlaunchAttributeValue_launchCompletionEvent { event, flags: 0 };
    });
    let gate = rig.sim.gate(stream).unwrap();
    assert_eq!(launch(1, vec![completion]), fine);
    assert!(rig.pending(event));
    gate.open();
    ok!(rig, cuEventSynchronize(event));
}

#[test]
fn streams_run_at_the_same_time() {
    // In fifo mode a kernel that waits for the host holds the others.
    let rig = Rig::new();
    let memory = rig.memory(64);
    rig.set_word(&memory, 0, 0);
    let module = rig.module();
    let (spin, store) = (rig.function(module, "spin"), rig.function(module, "store"));
    let (a, b) = (rig.stream(), rig.stream());
    rig.run(spin, a, &[memory.base]);
    rig.run(store, b, &[memory.base + 4, 1]);
    ok!(rig, cuStreamSynchronize(b));
    assert_eq!(code!(rig, cuStreamQuery(a)), CUresult::CUDA_ERROR_NOT_READY);
    // The second stream sets the flag that the first spins on.
    rig.run(store, b, &[memory.base, 1]);
    ok!(rig, cuStreamSynchronize(a));
}

#[test]
fn a_fault_loses_the_context_and_is_told_once() {
    let cases: &[(&str, &[u64], CUresult)] = &[
        ("store", &[64, 1], CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        ("trap", &[], CUresult::CUDA_ERROR_LAUNCH_FAILED),
        ("assert", &[], CUresult::CUDA_ERROR_ASSERT),
        ("endless", &[], CUresult::CUDA_ERROR_LAUNCH_TIMEOUT),
    ];
    for &(name, params, expected) in cases {
        for rig in Rig::modes() {
            let (module, stream, other) = (rig.module(), rig.stream(), rig.stream());
            let gate = rig.sim.gate(stream).unwrap();
            rig.run(rig.function(module, name), stream, params);
            let event = rig.mark(stream);
            ok!(rig, cuStreamWaitEvent(other, event, 0));
            gate.open();
            assert_eq!(code!(rig, cuStreamSynchronize(stream)), expected);
            for code in [
                code!(rig, cuEventQuery(event)),
                code!(rig, cuStreamQuery(other)),
                code!(rig, cuCtxSynchronize()),
                code!(rig, cuModuleUnload(module)),
            ] {
                assert_eq!(code, expected);
            }
            let reports = rig.sim.take_reports();
            assert_eq!(reports.len(), 1, "{reports:?}");
            assert_eq!(reports[0].kind, ReportKind::KernelFault);
            assert_eq!(reports[0].kernel.as_deref(), Some(name));
            assert!(reports[0].to_string().contains(name));
            ok!(rig, cuDevicePrimaryCtxReset(0));
        }
    }
}

#[test]
fn a_panicking_program_is_an_internal_report_not_a_crash() {
    let rig = Rig::new();
    let (module, stream) = (rig.module(), rig.stream());
    rig.run(rig.function(module, "panic"), stream, &[]);
    assert_eq!(code!(rig, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(rig.sim.reports()[0].kind, ReportKind::Internal);
}

#[test]
fn printf_is_shown_at_synchronisation() {
    for rig in Rig::modes() {
        let (module, stream) = (rig.module(), rig.stream());
        let print = rig.function(module, "print");
        rig.run(print, stream, &[1]);
        let event = rig.mark(stream);
        rig.soon(|| !rig.pending(event));
        assert!(rig.sim.take_printf().is_empty());
        rig.run(print, stream, &[2]);
        ok!(rig, cuStreamSynchronize(stream));
        assert_eq!(rig.sim.take_printf(), b"n = 1\nn = 2\n");
    }
}

#[test]
fn globals_lie_in_device_memory_with_their_first_values() {
    let rig = Rig::new();
    let (module, stream) = (rig.module(), rig.stream());
    let global = |name: &core::ffi::CStr| {
        let (mut address, mut bytes) = (0, 0);
        ok!(rig, cuModuleGetGlobal(&mut address, &mut bytes, module, name.as_ptr()));
        (address, bytes)
    };
    let (counter, bytes) = global(c"counter");
    assert_eq!(bytes, 4);
    let (pointer, bytes) = global(c"where");
    assert_eq!(bytes, 16);
    let space = &rig.sim.core().space;
    let allocation = space.locate(counter, 4).unwrap();
    assert_eq!(rig.word(&allocation, 0), 5);
    let count = rig.function(module, "count");
    rig.run(count, stream, &[]);
    rig.run(count, stream, &[]);
    ok!(rig, cuStreamSynchronize(stream));
    assert_eq!(rig.word(&allocation, 0), 7);
    let (backing, offset) =
        space.locate(pointer, 16).map(|a| (a.backing().0.clone(), a.backing().1)).unwrap();
    assert_eq!(u64::from_le_bytes(backing.load::<8>(offset + 8)), counter + 2);
    let missing = code!(rig, cuModuleGetGlobal(null_mut(), null_mut(), module, c"nope".as_ptr()));
    assert_eq!(missing, CUresult::CUDA_ERROR_NOT_FOUND);
    ok!(rig, cuModuleUnload(module));
    assert!(rig.sim.core().space.locate(counter, 4).is_err());
    assert_eq!(rig.launch(count, [1; 3], [1; 3], 0, stream, &[]), CUresult::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn functions_have_attributes_parameters_and_an_occupancy() {
    let rig = Rig::new();
    let module = rig.module();
    type Id = CUfunction_attribute;
    let get = |name: &str, id: Id| {
        let mut value = -7;
        ok!(rig, cuFuncGetAttribute(&mut value, id, rig.function(module, name)));
        value
    };
    assert_eq!(get("store", Id::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
    assert_eq!(get("max128", Id::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 128);
    assert_eq!(get("shared40k", Id::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 40960);
    assert_eq!(get("shared40k", Id::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 8192);
    assert_eq!(get("cluster2", Id::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH), 2);
    assert_eq!(get("store", Id::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT), -1);
    assert_eq!(get("store", Id::CU_FUNC_ATTRIBUTE_BINARY_VERSION), 90);
    let store = rig.function(module, "store");
    let (mut offset, mut size) = (0, 0);
    ok!(rig, cuFuncGetParamInfo(store, 1, &mut offset, &mut size));
    assert_eq!((offset, size), (8, 4));
    let past = code!(rig, cuFuncGetParamInfo(store, 2, &mut offset, &mut size));
    assert_eq!(past, CUresult::CUDA_ERROR_INVALID_VALUE);
    // As an H200 answers for a small kernel.
    for (block, dynamic, blocks) in
        [(1, 0, 32), (32, 0, 32), (256, 0, 8), (1024, 0, 2), (1024, 49152, 2), (1025, 0, 0), (32, 100_000, 2)]
    {
        let mut n = -1;
        ok!(rig, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut n, store, block, dynamic));
        assert_eq!(n, blocks, "{block} {dynamic}");
    }
    let mut n = -1;
    let shared = rig.function(module, "shared40k");
    ok!(rig, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut n, shared, 32, 0));
    assert_eq!(n, 5);
    let (mut grid, mut block) = (0, 0);
    ok!(rig, cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, store, None, 0, 0));
    assert_eq!((grid, block), (264, 1024));
    for (blocks, threads, bytes) in [(1, 256, 49152), (8, 256, 29184), (32, 32, 7296)] {
        let mut available = 0;
        ok!(rig, cuOccupancyAvailableDynamicSMemPerBlock(&mut available, store, blocks, threads));
        assert_eq!(available, bytes);
    }
    let mut available = 0;
    let over = code!(rig, cuOccupancyAvailableDynamicSMemPerBlock(&mut available, store, 9, 256));
    assert_eq!(over, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn bad_images_are_refused_with_a_log() {
    let rig = Rig::new();
    let mut module = CUmodule::NULL;
    let mut load = |image: &[u8]| {
        let mut log = [0u8; 64];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast(), core::ptr::without_provenance_mut::<c_void>(log.len())];
        let code = code!(
            rig,
            cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr()
            )
        );
        let used = values[1].addr();
        (code, String::from_utf8(log[..used].to_vec()).unwrap())
    };
    let (code, log) = load(b"\x7fTileIR\0\x0d\x63\0\0\0");
    assert_eq!(code, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert!(log.contains("13.99"), "{log}");
    // As the real driver answers.
    assert_eq!(load(b"garbage\0").0, CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(load(b"\0").0, CUresult::CUDA_ERROR_INVALID_IMAGE);
    let head = ".target sm_90\n.address_size 64\n";
    let (code, log) = load(format!(".version 8.0\n{head}.visible .entry k() {{ foo; ret; }}\0").as_bytes());
    assert!(matches!(code, CUresult::CUDA_ERROR_INVALID_PTX | CUresult::CUDA_ERROR_NOT_SUPPORTED));
    assert!(log.contains("foo"), "{log}");
    let (code, _) = load(format!(".version 99.0\n{head}\0").as_bytes());
    assert_eq!(code, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let mut elf = vec![0u8; 64];
    elf[..4].copy_from_slice(b"\x7fELF");
    assert_eq!(load(&elf).0, CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(load(&0xba55_ed50u32.to_le_bytes().repeat(4)).0, CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(rig.sim.take_reports().len(), 7);
    assert_eq!(code!(rig, cuModuleLoadData(&mut module, null())), CUresult::CUDA_ERROR_INVALID_VALUE);
    let path = c"/nonexistent/kernel.ptx";
    assert_eq!(code!(rig, cuModuleLoad(&mut module, path.as_ptr())), CUresult::CUDA_ERROR_FILE_NOT_FOUND);
}

#[test]
fn ptx_runs_from_text_and_from_a_fat_binary() {
    const PTX: &str = "
        .version 8.0
        .target sm_90
        .address_size 64
        .visible .entry square(.param .u64 out, .param .u32 n) {
            .reg .b64 %rd<4>; .reg .b32 %r<4>;
            ld.param.u64 %rd1, [out];
            ld.param.u32 %r1, [n];
            mul.lo.u32 %r2, %r1, %r1;
            mov.u32 %r3, %tid.x;
            mul.wide.u32 %rd2, %r3, 4;
            add.u64 %rd3, %rd1, %rd2;
            st.global.u32 [%rd3], %r2;
            ret;
        }\0";
    // One uncompressed PTX entry for sm_90.
    let text = PTX.as_bytes();
    let padded = text.len().next_multiple_of(8);
    let mut fat = Vec::new();
    fat.extend(0xba55_ed50u32.to_le_bytes());
    fat.extend([1u16, 16].map(u16::to_le_bytes).concat());
    fat.extend((64 + padded as u64).to_le_bytes());
    fat.extend([1u16, 0x101].map(u16::to_le_bytes).concat());
    fat.extend(64u32.to_le_bytes());
    fat.extend((padded as u64).to_le_bytes());
    fat.extend([0u32, 0].map(u32::to_le_bytes).concat());
    fat.extend([0u16, 8].map(u16::to_le_bytes).concat());
    fat.extend(90u32.to_le_bytes());
    fat.extend([0u8; 32]);
    fat.extend(text);
    fat.resize(16 + 64 + padded, 0);
    for image in [text, &fat] {
        for rig in Rig::modes() {
            let memory = rig.memory(128);
            let mut module = CUmodule::NULL;
            ok!(rig, cuModuleLoadData(&mut module, image.as_ptr().cast()));
            let (square, stream) = (rig.function(module, "square"), rig.stream());
            let code = rig.launch(square, [1; 3], [32, 1, 1], 0, stream, &[memory.base, 12]);
            assert_eq!(code, CUresult::CUDA_SUCCESS);
            ok!(rig, cuStreamSynchronize(stream));
            assert!((0..32).all(|i| rig.word(&memory, i) == 144));
        }
    }
}

#[test]
fn libraries_become_modules_in_each_context() {
    let rig = Rig::with(Simulator::builder().devices(2));
    let mut library = CUlibrary::NULL;
    let image = program::IMAGE.as_ptr().cast();
    let (no, none) = (null_mut(), null_mut());
    ok!(rig, cuLibraryLoadData(&mut library, image, null_mut(), null_mut(), 0, no, none, 0));
    let mut kernel = CUkernel::NULL;
    ok!(rig, cuLibraryGetKernel(&mut kernel, library, c"count".as_ptr()));
    let stream = rig.stream();
    // A kernel may stand for its function.
    rig.run(CUfunction(kernel.0), stream, &[]);
    ok!(rig, cuStreamSynchronize(stream));
    let counter = |rig: &Rig| {
        let (mut address, mut bytes) = (0, 0);
        ok!(rig, cuLibraryGetGlobal(&mut address, &mut bytes, library, c"counter".as_ptr()));
        let allocation = rig.sim.core().space.locate(address, 4).unwrap();
        rig.word(&allocation, 0)
    };
    assert_eq!(counter(&rig), 6);
    let mut other = CUcontext::NULL;
    ok!(rig, cuCtxCreate(&mut other, 0, 1));
    assert_eq!(counter(&rig), 5);
    let mut function = CUfunction::NULL;
    ok!(rig, cuKernelGetFunction(&mut function, kernel));
    // A function of one context does not run on a stream of another.
    assert_eq!(rig.launch(function, [1; 3], [1; 3], 0, stream, &[]), CUresult::CUDA_ERROR_INVALID_HANDLE);
    ok!(rig, cuLibraryUnload(library));
    assert_eq!(
        rig.launch(function, [1; 3], [1; 3], 0, CUstream::NULL, &[]),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
fn a_full_stream_blocks_the_launch_and_the_calls_that_it_blocks_on_the_real_driver() {
    for rig in Rig::modes() {
        let memory = rig.memory(64);
        let module = rig.module();
        let store = rig.function(module, "store");
        let (a, b) = (rig.stream(), rig.stream());
        let (old, marker) = (rig.mark(a), rig.event());
        let gate = rig.sim.gate(a).unwrap();
        for _ in 0..1021 {
            rig.run(store, a, &[memory.base, 1]);
        }
        // Records do not take places.
        for _ in 0..2000 {
            ok!(rig, cuEventRecord(marker, a));
        }
        std::thread::scope(|scope| {
            let on = |run: fn(&Rig, CUstream, CUevent)| {
                let rig = &rig;
                scope.spawn(move || {
                    ok!(rig, cuCtxSetCurrent(rig.context));
                    run(rig, a, marker);
                })
            };
            let launch = {
                let rig = &rig;
                let base = memory.base;
                scope.spawn(move || {
                    ok!(rig, cuCtxSetCurrent(rig.context));
                    rig.run(store, a, &[base, 2]);
                })
            };
            rig.soon(|| rig.sim.core().state.lock().contexts.values().any(|c| c.blocked == 1));
            let blocked = [
                on(|rig, a, marker| ok!(rig, cuEventRecord(marker, a))),
                on(|rig, a, marker| ok!(rig, cuStreamWaitEvent(a, marker, 0))),
                on(|rig, a, _| {
                    code!(rig, cuStreamQuery(a));
                }),
                on(|rig, _, _| {
                    rig.event();
                }),
                on(|rig, _, _| {
                    rig.stream();
                }),
                on(|rig, _, _| {
                    rig.module();
                }),
            ];
            std::thread::sleep(Duration::from_millis(30));
            assert!(!launch.is_finished());
            assert!(blocked.iter().all(|thread| !thread.is_finished()));
            // Still fine: queries of events, and everything on other streams.
            assert!(!rig.pending(old));
            assert!(rig.pending(marker));
            rig.run(store, b, &[memory.base + 8, 3]);
            let beside = CUevent(old.0);
            ok!(rig, cuEventRecord(beside, b));
            ok!(rig, cuEventSynchronize(beside));
            gate.open();
            launch.join().unwrap();
            for thread in blocked {
                thread.join().unwrap();
            }
        });
        ok!(rig, cuCtxSynchronize());
        assert_eq!(rig.word(&memory, 0), 2);
    }
}

#[test]
fn a_context_holds_8168_launches_over_all_streams() {
    let rig = Rig::new();
    let memory = rig.memory(64);
    let module = rig.module();
    let store = rig.function(module, "store");
    let streams: Vec<CUstream> = (0..16).map(|_| rig.stream()).collect();
    let gates: Vec<crate::Gate> = streams.iter().map(|&s| rig.sim.gate(s).unwrap()).collect();
    for _ in 0..510 {
        for &stream in &streams {
            rig.run(store, stream, &[memory.base, 1]);
        }
    }
    let idle = rig.stream();
    for _ in 0..8 {
        rig.run(store, streams[0], &[memory.base, 1]);
    }
    std::thread::scope(|scope| {
        let rig = &rig;
        let base = memory.base;
        let launch = scope.spawn(move || {
            ok!(rig, cuCtxSetCurrent(rig.context));
            rig.run(store, idle, &[base, 1]);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!launch.is_finished());
        drop(gates);
        launch.join().unwrap();
    });
    ok!(rig, cuCtxSynchronize());
}

#[test]
fn loading_a_module_waits_for_everything_and_holds_launches_back() {
    for rig in Rig::modes() {
        let memory = rig.memory(64);
        let module = rig.module();
        let store = rig.function(module, "store");
        let (a, b) = (rig.stream(), rig.stream());
        let gate = rig.sim.gate(a).unwrap();
        std::thread::scope(|scope| {
            let rig = &rig;
            let load = scope.spawn(move || {
                ok!(rig, cuCtxSetCurrent(rig.context));
                rig.module();
            });
            rig.soon(|| rig.sim.core().state.lock().contexts.values().any(|c| c.stalls == 1));
            let base = memory.base;
            let launch = scope.spawn(move || rig.run(store, b, &[base, 1]));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!load.is_finished() && !launch.is_finished());
            // Records pass.
            rig.mark(b);
            gate.open();
            load.join().unwrap();
            launch.join().unwrap();
        });
        ok!(rig, cuCtxSynchronize());
    }
}

#[test]
fn wait_values_hold_their_stream_and_eight_hold_all() {
    for rig in Rig::modes() {
        let memory = rig.memory(64);
        (0..16).for_each(|i| rig.set_word(&memory, i, 0));
        let module = rig.module();
        let store = rig.function(module, "store");
        let streams: Vec<CUstream> = (0..8).map(|_| rig.stream()).collect();
        let others = [rig.stream(), rig.stream()];
        for (i, &stream) in streams.iter().enumerate().take(4) {
            ok!(rig, cuStreamWaitValue32(stream, memory.base + 4 * i as u64, 1, 1));
        }
        // With four sitting all others run.
        for other in others {
            rig.run(store, other, &[memory.base + 60, 1]);
            ok!(rig, cuStreamSynchronize(other));
        }
        for (i, &stream) in streams.iter().enumerate().skip(4) {
            ok!(rig, cuStreamWaitValue32(stream, memory.base + 4 * i as u64, 1, 1));
        }
        for other in others {
            rig.run(store, other, &[memory.base + 60, 2]);
        }
        std::thread::sleep(Duration::from_millis(20));
        for stream in others.iter().chain(&streams) {
            assert_eq!(code!(rig, cuStreamQuery(*stream)), CUresult::CUDA_ERROR_NOT_READY);
        }
        // The host satisfies them one by one.
        for (i, &stream) in streams.iter().enumerate() {
            rig.set_word(&memory, i as u64, 1);
            ok!(rig, cuStreamSynchronize(stream));
        }
        for other in others {
            ok!(rig, cuStreamSynchronize(other));
        }
        assert_eq!(rig.word(&memory, 15), 2);
        let refused = code!(rig, cuStreamWriteValue32(streams[0], memory.base, 1, 1));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(rig, cuStreamWriteValue64(streams[0], memory.base + 8, 7, 0));
        ok!(rig, cuStreamWaitValue64(streams[1], memory.base + 8, 7, 0));
        ok!(rig, cuStreamSynchronize(streams[1]));
        for bad in [64, memory.base + 2, memory.base + 64] {
            let code = code!(rig, cuStreamWaitValue32(streams[0], bad, 1, 0));
            assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }
}

#[test]
fn destroying_a_context_waits_for_its_work() {
    for rig in Rig::modes() {
        let memory = rig.memory(64);
        let mut context = CUcontext::NULL;
        ok!(rig, cuCtxCreate(&mut context, 0, 0));
        let (module, stream) = (rig.module(), rig.stream());
        let gate = rig.sim.gate(stream).unwrap();
        rig.run(rig.function(module, "store"), stream, &[memory.base, 42]);
        std::thread::scope(|scope| {
            let rig = &rig;
            let destroy = scope.spawn(move || ok!(rig, cuCtxDestroy(context)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!destroy.is_finished());
            gate.open();
            destroy.join().unwrap();
        });
        assert_eq!(rig.word(&memory, 0), 42);
        assert_eq!(code!(rig, cuStreamQuery(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(code!(rig, cuCtxSynchronize()), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
}

#[test]
fn a_stand_in_runs_for_a_kernel_that_is_only_machine_code() {
    static CUBIN: &[u8] =
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../artifacts/tile_rs/rs_vadd_f32.cubin"));
    let rig = Rig::new();
    let mut module = CUmodule::NULL;
    let refused = code!(rig, cuModuleLoadData(&mut module, CUBIN.as_ptr().cast()));
    assert_eq!(refused, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let hint = rig.sim.take_reports().remove(0).hint.unwrap();
    assert!(hint.contains("register_stand_in(\"rs_vadd_f32\""), "{hint}");

    rig.sim.register_stand_in("rs_vadd_f32", |call| {
        let pointer = |at| call.param(at).map(u64::from_le_bytes);
        let n = u64::from(u32::from_le_bytes(call.param(8)?));
        for i in 0..n {
            let (mut a, mut b) = ([0; 4], [0; 4]);
            call.read(pointer(0)? + 4 * i, &mut a)?;
            call.read(pointer(16)? + 4 * i, &mut b)?;
            let sum = f32::from_le_bytes(a) + f32::from_le_bytes(b);
            call.write(pointer(32)? + 4 * i, &sum.to_le_bytes())?;
        }
        Ok(())
    });
    ok!(rig, cuModuleLoadData(&mut module, CUBIN.as_ptr().cast()));
    let (vadd, stream) = (rig.function(module, "rs_vadd_f32"), rig.stream());
    let (a, b, c) = (rig.memory(400), rig.memory(400), rig.memory(400));
    for i in 0..100 {
        rig.set_word(&a, i, (i as f32).to_bits());
        rig.set_word(&b, i, 0.5f32.to_bits());
    }
    let params = |n| [a.base, n, 1, b.base, n, 1, c.base, n, 1];
    assert_eq!(rig.launch(vadd, [1; 3], [1; 3], 0, stream, &params(100)), CUresult::CUDA_SUCCESS);
    ok!(rig, cuStreamSynchronize(stream));
    assert!((0..100).all(|i| f32::from_bits(rig.word(&c, i)) == i as f32 + 0.5));
    // Out of bounds, like a kernel's.
    assert_eq!(rig.launch(vadd, [1; 3], [1; 3], 0, stream, &params(101)), CUresult::CUDA_SUCCESS);
    assert_eq!(code!(rig, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn more_local_memory_than_before_waits_for_everything_once() {
    let rig = Rig::new();
    let module = rig.module();
    let local = rig.function(module, "local64k");
    let (a, b) = (rig.stream(), rig.stream());
    let gate = rig.sim.gate(a).unwrap();
    std::thread::scope(|scope| {
        let rig = &rig;
        let launch = scope.spawn(move || {
            ok!(rig, cuCtxSetCurrent(rig.context));
            rig.run(local, b, &[]);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!launch.is_finished());
        gate.open();
        launch.join().unwrap();
    });
    // Not again.
    let gate = rig.sim.gate(a).unwrap();
    rig.run(local, b, &[]);
    ok!(rig, cuStreamSynchronize(b));
    drop(gate);
    ok!(rig, cuCtxSynchronize());
}

#[test]
fn switches_for_frees_and_pageable_copies() {
    for wait in [true, false] {
        let rig = Rig::with(Simulator::builder().frees_wait(wait).pageable_async(!wait));
        let (stream, mut memory) = (rig.stream(), 0);
        ok!(rig, cuMemAlloc(&mut memory, 64));
        let mut host = [0u8; 64];
        let gate = rig.sim.gate(stream).unwrap();
        std::thread::scope(|scope| {
            let (rig, to) = (&rig, host.as_mut_ptr().expose_provenance());
            let copy = scope.spawn(move || {
                ok!(rig, cuCtxSetCurrent(rig.context));
                ok!(rig, cuMemsetD8Async(memory, 7, 64, stream));
                let to = core::ptr::with_exposed_provenance_mut(to);
                ok!(rig, cuMemcpyDtoHAsync(to, memory, 64, stream));
            });
            if wait {
                std::thread::sleep(Duration::from_millis(20));
                assert!(!copy.is_finished());
                gate.open();
            } else {
                // On a busy machine this may take a while.
                rig.soon(|| copy.is_finished());
            }
            copy.join().unwrap();
        });
        gate.open();
        ok!(rig, cuStreamSynchronize(stream));
        assert_eq!(host, [7; 64]);
        let gate = rig.sim.gate(stream).unwrap();
        std::thread::scope(|scope| {
            let rig = &rig;
            let free = scope.spawn(move || {
                ok!(rig, cuCtxSetCurrent(rig.context));
                ok!(rig, cuMemFree(memory));
            });
            if wait {
                std::thread::sleep(Duration::from_millis(20));
                assert!(!free.is_finished());
            } else {
                rig.soon(|| free.is_finished());
            }
            gate.open();
            free.join().unwrap();
        });
    }
}
