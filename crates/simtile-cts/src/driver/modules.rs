//! Modules and libraries: loading, errors and logs, functions, globals.

use crate::frame::{Check, Cx, Stop};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::*;
use std::ffi::{CStr, CString, c_void};

crate::frame::registry::tests! { Driver, "modules";
    load_and_unload,
    load_by_every_call,
    load_from_a_file,
    load_from_no_file,
    load_needs_a_context,
    functions_by_name,
    functions_are_counted_and_listed,
    loading_mode,
    text_that_does_not_parse,
    error_log_names_the_line,
    unknown_instruction,
    newer_ptx_version,
    newer_target,
    random_bytes,
    truncated_cubin,
    globals_by_name,
    globals_have_their_initial_values,
    globals_belong_to_one_module,
    library_and_kernel,
    library_kernels_are_counted_and_listed,
    library_globals,
    library_errors,
    library_from_a_file,
    unload_after_use,
    destroyed_handles_are_refused needs [crate::frame::Need::Simulator("CUDA leaves the use of a destroyed handle undefined")],
}

fn load_and_unload(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let a = gpu.module(kernels::BASIC)?;
    let b = gpu.module(kernels::BASIC)?;
    ensure!(a != b && !a.is_null(), "two loads of an image gave {a:?} and {b:?}");
    ok!(cx, cuModuleUnload(a))?;
    // The other one goes on.
    let stream = gpu.stream()?;
    gpu.launch(gpu.function(b, c"empty")?, Shape::ONE, stream, &Args::new())?;
    gpu.sync(stream)?;
    ok!(cx, cuModuleUnload(b))
}

fn load_by_every_call(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let image = kernels::BASIC.as_ptr().cast();
    let mut module = CUmodule::NULL;
    ok!(cx, cuModuleLoadData(&mut module, image))?;
    gpu.function(module, c"fill")?;
    let mut module = CUmodule::NULL;
    ok!(cx, cuModuleLoadDataEx(&mut module, image, 0, std::ptr::null_mut(), std::ptr::null_mut()))?;
    gpu.function(module, c"fill")?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuModuleLoadFatBinary(std::ptr::null_mut(), image))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuModuleLoadData(std::ptr::null_mut(), image))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuModuleLoadData(&mut module, std::ptr::null()))
}

/// A file of this content that nobody else has.
pub(super) fn file(cx: &Cx, name: &str, content: &[u8]) -> Check<CString> {
    let path = std::env::temp_dir().join(format!(
        "simtile-cts-{}-{}-{name}",
        std::process::id(),
        cx.driver().state().address()
    ));
    std::fs::write(&path, content).map_err(|error| Stop::fail(format!("{}: {error}", path.display())))?;
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(Stop::fail)
}

pub(super) fn remove(path: &CStr) {
    // A file left behind in the temporary folder is no failure.
    let _ = std::fs::remove_file(path.to_string_lossy().as_ref());
}

fn load_from_a_file(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let path = file(cx, "module.ptx", &kernels::BASIC[..kernels::BASIC.len() - 1])?;
    let mut module = CUmodule::NULL;
    let loaded = ok!(cx, cuModuleLoad(&mut module, path.as_ptr()));
    remove(&path);
    loaded?;
    gpu.function(module, c"store_one").map(|_| ())
}

fn load_from_no_file(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut module = CUmodule::NULL;
    code!(cx, [CUDA_ERROR_FILE_NOT_FOUND], cuModuleLoad(&mut module, c"/no/such/folder/module.ptx".as_ptr()))
}

fn load_needs_a_context(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    let mut module = CUmodule::NULL;
    code!(cx, [CUDA_ERROR_INVALID_CONTEXT], cuModuleLoadData(&mut module, kernels::BASIC.as_ptr().cast()))
}

fn functions_by_name(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let fill = gpu.function(module, c"fill")?;
    ensure_eq!(gpu.function(module, c"fill")?, fill, "a function asked for twice");
    let mut function = CUfunction::NULL;
    for name in [c"no_such_kernel", c"fil", c"fill2"] {
        code!(cx, [CUDA_ERROR_NOT_FOUND], cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
    }
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuModuleGetFunction(&mut function, module, c"".as_ptr()))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuModuleGetFunction(&mut function, module, std::ptr::null()))
}

fn functions_are_counted_and_listed(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::GLOBALS)?;
    let mut count = 0;
    ok!(cx, cuModuleGetFunctionCount(&mut count, module))?;
    ensure_eq!(count, 1, "functions of a module with one");
    let mut found = CUfunction::NULL;
    ok!(cx, cuModuleEnumerateFunctions(&mut found, 1, module))?;
    ensure_eq!(found, gpu.function(module, c"use_globals")?, "the listed function");
    Ok(())
}

fn loading_mode(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    let mut mode = CUmoduleLoadingMode(99);
    ok!(cx, cuModuleGetLoadingMode(&mut mode))?;
    ensure!(mode.name().is_some(), "loading mode {mode:?}");
    Ok(())
}

/// Loads an image that must be refused; the code and the error log.
fn refused(gpu: &Gpu<'_>, image: &[u8]) -> Check<(CUresult, String)> {
    let mut log = vec![0u8; 8192];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CUjit_option::CU_JIT_LOG_VERBOSE,
    ];
    let mut values: [*mut c_void; 3] = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(log.len()),
        std::ptr::without_provenance_mut(1),
    ];
    let mut module = CUmodule::NULL;
    let code = cu!(
        gpu,
        cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 3, options.as_mut_ptr(), values.as_mut_ptr())
    );
    ensure!(!code.is_ok(), "a broken image was loaded");
    // The context is as good as before.
    gpu.module(kernels::BASIC)?;
    Ok((code, CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned()))
}

pub(super) fn is_one_of(code: CUresult, expected: &[CUresult], what: &str) -> Check {
    ensure!(expected.contains(&code), "{what} returned {code:?}, expected one of {expected:?}");
    Ok(())
}

const HEAD: &str = ".version 6.3\n.target sm_70\n.address_size 64\n";

fn text_that_does_not_parse(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for body in [
        ".visible .entry broken() { this is no instruction; }",
        ".visible .entry broken( { ret; }",
        ".visible .entry broken() { ret;",
        ".visible .entry broken() { add.u32 %r1, %r2, %r3; ret; }",
        ".visible .entry broken() { bra NOWHERE; ret; }",
    ] {
        let image = format!("{HEAD}{body}\n\0");
        let (code, _) = refused(&gpu, image.as_bytes())?;
        is_one_of(code, &[CUresult::CUDA_ERROR_INVALID_PTX], body)?;
    }
    Ok(())
}

/// A simulator cannot tell an instruction that does not exist from one that it does not interpret.
fn refusals(cx: &Cx) -> &'static [CUresult] {
    match cx.simulator() {
        Some(_) => &[CUresult::CUDA_ERROR_INVALID_PTX, CUresult::CUDA_ERROR_NOT_SUPPORTED],
        None => &[CUresult::CUDA_ERROR_INVALID_PTX],
    }
}

fn error_log_names_the_line(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let image = format!("{HEAD}.visible .entry broken()\n{{\n\tfrobnicate.u32 1, 2;\n\tret;\n}}\n\0");
    let (code, log) = refused(&gpu, image.as_bytes())?;
    is_one_of(code, refusals(cx), "an unknown instruction")?;
    ensure!(["line 6", ":6", "at 6"].iter().any(|at| log.contains(at)), "the log names no line 6: {log}");
    Ok(())
}

fn unknown_instruction(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let image = format!(
        "{HEAD}.visible .entry broken()\n{{\n\t.reg .u32 %r<3>;\n\tfrobnicate.u32 %r1, %r2;\n\tret;\n}}\n\0"
    );
    let (code, log) = refused(&gpu, image.as_bytes())?;
    is_one_of(code, refusals(cx), "an unknown instruction")?;
    ensure!(log.contains("frobnicate"), "the log does not name the instruction: {log}");
    Ok(())
}

fn newer_ptx_version(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let image = b".version 99.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n\0";
    let (code, _) = refused(&gpu, image)?;
    is_one_of(
        code,
        &[CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUresult::CUDA_ERROR_INVALID_PTX],
        "PTX of version 99.0",
    )
}

fn newer_target(cx: &Cx) -> Check {
    cx.devices()?;
    if cx.capability()? >= (12, 0) {
        return Err(Stop::unsupported("no target is newer than this device"));
    }
    let gpu = Gpu::new(cx)?;
    let image = b".version 8.7\n.target sm_120\n.address_size 64\n.visible .entry k() { ret; }\n\0";
    let (code, _) = refused(&gpu, image)?;
    is_one_of(
        code,
        &[
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUresult::CUDA_ERROR_INVALID_PTX,
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUresult::CUDA_ERROR_INVALID_IMAGE,
        ],
        "PTX for sm_120",
    )
}

fn random_bytes(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut random = cx.random(4);
    for round in 0..8 {
        // Never a NUL inside: the driver reads text to the first one. The size is in no header.
        let mut image: Vec<u8> = (0..400).map(|_| 1 + random.below(255) as u8).collect();
        image.push(0);
        let (code, _) = refused(&gpu, &image)?;
        is_one_of(
            code,
            &[
                CUresult::CUDA_ERROR_INVALID_IMAGE,
                CUresult::CUDA_ERROR_INVALID_PTX,
                CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
                CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            ],
            &format!("random bytes {round}"),
        )?;
    }
    Ok(())
}

/// An ELF header whose tables lie in zeros: no crash, an error.
fn truncated_cubin(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let cubin = crate::artifacts::bytes("tile_rs/rs_vadd_f32.cubin")?;
    // The header says how long it is, so the rest is there, as zeros.
    for keep in [64, 200, 1000] {
        let mut image = vec![0u8; cubin.len()];
        let keep = keep.min(cubin.len());
        image[..keep].copy_from_slice(&cubin[..keep]);
        let (code, _) = refused(&gpu, &image)?;
        is_one_of(
            code,
            &[
                CUresult::CUDA_ERROR_INVALID_IMAGE,
                CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
                CUresult::CUDA_ERROR_INVALID_SOURCE,
                CUresult::CUDA_ERROR_INVALID_PTX,
                CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
            ],
            &format!("a cubin of which {keep} bytes are left"),
        )?;
    }
    Ok(())
}

fn globals_by_name(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::GLOBALS)?;
    for (name, size) in [(c"counter", 4usize), (c"room", 100), (c"coef", 16)] {
        let (mut pointer, mut bytes) = (0, 0);
        ok!(cx, cuModuleGetGlobal(&mut pointer, &mut bytes, module, name.as_ptr()))?;
        ensure!(pointer != 0, "{name:?} is at null");
        ensure_eq!(bytes, size, "bytes of {name:?}");
        // Either result may be left out.
        let mut again = 0;
        ok!(cx, cuModuleGetGlobal(&mut again, std::ptr::null_mut(), module, name.as_ptr()))?;
        ensure_eq!(again, pointer, "address of {name:?}");
        ok!(cx, cuModuleGetGlobal(std::ptr::null_mut(), &mut bytes, module, name.as_ptr()))?;
    }
    let mut pointer = 0;
    code!(
        cx,
        [CUDA_ERROR_NOT_FOUND],
        cuModuleGetGlobal(&mut pointer, std::ptr::null_mut(), module, c"nothing".as_ptr())
    )
}

fn global(gpu: &Gpu<'_>, module: CUmodule, name: &CStr) -> Check<CUdeviceptr> {
    let mut pointer = 0;
    ok!(gpu, cuModuleGetGlobal(&mut pointer, std::ptr::null_mut(), module, name.as_ptr()))?;
    Ok(pointer)
}

fn globals_have_their_initial_values(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let module = gpu.module(kernels::GLOBALS)?;
    let function = gpu.function(module, c"use_globals")?;
    ensure_eq!(gpu.word(global(&gpu, module, c"counter")?)?, 5, "counter");
    ensure_eq!(gpu.read::<u8>(global(&gpu, module, c"room")?, 100)?, [0; 100], "room");
    ensure_eq!(gpu.read::<f32>(global(&gpu, module, c"coef")?, 4)?, [1.0, 2.0, 3.0, 4.0], "coef");
    let out = gpu.zeroed(8)?;
    gpu.launch(function, Shape::ONE, stream, &Args::new().with(out))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(out, 2)?, [5, 10], "counter and sum of coef as the kernel sees them");
    // What the host writes the kernel reads, constants too.
    gpu.write(global(&gpu, module, c"counter")?, &[40u32])?;
    gpu.write(global(&gpu, module, c"coef")?, &[10.0f32])?;
    gpu.launch(function, Shape::ONE, stream, &Args::new().with(out))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(out, 2)?, [40, 19], "counter and sum of coef after writing them");
    ensure_eq!(gpu.word(global(&gpu, module, c"counter")?)?, 41, "counter after the kernel");
    Ok(())
}

fn globals_belong_to_one_module(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let (a, b) = (gpu.module(kernels::GLOBALS)?, gpu.module(kernels::GLOBALS)?);
    let (first, second) = (global(&gpu, a, c"counter")?, global(&gpu, b, c"counter")?);
    ensure!(first != second, "two modules share a variable");
    gpu.write(first, &[1000u32])?;
    ensure_eq!(gpu.word(second)?, 5, "the other module's counter");
    Ok(())
}

fn library(gpu: &Gpu<'_>, image: &[u8]) -> Check<CUlibrary> {
    let mut library = CUlibrary::NULL;
    ok!(
        gpu,
        cuLibraryLoadData(
            &mut library,
            image.as_ptr().cast(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0
        )
    )?;
    Ok(library)
}

fn kernel(gpu: &Gpu<'_>, library: CUlibrary, name: &CStr) -> Check<CUkernel> {
    let mut kernel = CUkernel::NULL;
    ok!(gpu, cuLibraryGetKernel(&mut kernel, library, name.as_ptr()))?;
    Ok(kernel)
}

fn library_and_kernel(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let library = library(&gpu, kernels::BASIC)?;
    let kernel = kernel(&gpu, library, c"store_one")?;
    let mut function = CUfunction::NULL;
    ok!(cx, cuKernelGetFunction(&mut function, kernel))?;
    let word = gpu.zeroed(8)?;
    gpu.launch(function, Shape::ONE, stream, &Args::new().with(word).with(6u32))?;
    // A kernel may be launched as it is, in the current context.
    gpu.launch(CUfunction(kernel.0), Shape::ONE, stream, &Args::new().with(word + 4).with(7u32))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.read::<u32>(word, 2)?, [6, 7], "words written by function and kernel");
    let mut module = CUmodule::NULL;
    ok!(cx, cuLibraryGetModule(&mut module, library))?;
    gpu.function(module, c"fill")?;
    let mut name = std::ptr::null();
    ok!(cx, cuKernelGetName(&mut name, kernel))?;
    // SAFETY: the driver returned a NUL-terminated name that lives as long as the library.
    ensure_eq!(unsafe { CStr::from_ptr(name) }, c"store_one", "name of a kernel");
    ok!(cx, cuLibraryUnload(library))
}

fn library_kernels_are_counted_and_listed(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let library = library(&gpu, kernels::GLOBALS)?;
    let mut count = 0;
    ok!(cx, cuLibraryGetKernelCount(&mut count, library))?;
    ensure_eq!(count, 1, "kernels of a library with one");
    let mut found = CUkernel::NULL;
    ok!(cx, cuLibraryEnumerateKernels(&mut found, 1, library))?;
    ensure_eq!(found, kernel(&gpu, library, c"use_globals")?, "the listed kernel");
    Ok(())
}

fn library_globals(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let library = library(&gpu, kernels::GLOBALS)?;
    let (mut pointer, mut bytes) = (0, 0);
    ok!(cx, cuLibraryGetGlobal(&mut pointer, &mut bytes, library, c"counter".as_ptr()))?;
    ensure_eq!(bytes, 4, "bytes of counter");
    ensure_eq!(gpu.word(pointer)?, 5, "counter");
    code!(
        cx,
        [CUDA_ERROR_NOT_FOUND],
        cuLibraryGetGlobal(&mut pointer, &mut bytes, library, c"nothing".as_ptr())
    )?;
    code!(
        cx,
        [CUDA_ERROR_NOT_FOUND],
        cuLibraryGetManaged(&mut pointer, &mut bytes, library, c"nothing".as_ptr())
    )
}

fn library_errors(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let library = library(&gpu, kernels::BASIC)?;
    let mut kernel = CUkernel::NULL;
    code!(cx, [CUDA_ERROR_NOT_FOUND], cuLibraryGetKernel(&mut kernel, library, c"no_such_kernel".as_ptr()))?;
    let image = format!("{HEAD}.visible .entry broken() {{ this is no instruction; }}\n\0");
    let mut broken = CUlibrary::NULL;
    // Libraries may be loaded lazily, so the error may come with the first kernel.
    let code = cu!(
        cx,
        cuLibraryLoadData(
            &mut broken,
            image.as_ptr().cast(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0
        )
    );
    if code.is_ok() {
        code!(
            cx,
            [CUDA_ERROR_INVALID_PTX, CUDA_ERROR_NOT_FOUND],
            cuLibraryGetKernel(&mut kernel, broken, c"broken".as_ptr())
        )
    } else {
        is_one_of(code, &[CUresult::CUDA_ERROR_INVALID_PTX], "a broken library")
    }
}

fn library_from_a_file(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let path = file(cx, "library.ptx", &kernels::BASIC[..kernels::BASIC.len() - 1])?;
    let load = |library: &mut CUlibrary, path: &CStr| {
        cu!(
            cx,
            cuLibraryLoadFromFile(
                library,
                path.as_ptr(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0
            )
        )
    };
    let mut library = CUlibrary::NULL;
    let code = load(&mut library, &path);
    remove(&path);
    crate::frame::succeeded(
        cx.driver(),
        simtile_driver::Entry::cuLibraryLoadFromFile,
        code,
        "a library file",
    )?;
    kernel(&gpu, library, c"fill")?;
    let code = load(&mut library, c"/no/such/folder/library.ptx");
    is_one_of(code, &[CUresult::CUDA_ERROR_FILE_NOT_FOUND], "a library file that is not there")
}

fn unload_after_use(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let module = gpu.module(kernels::BASIC)?;
    let late = gpu.function(module, c"late_store")?;
    let word = gpu.zeroed(4)?;
    gpu.launch(late, Shape::ONE, stream, &Args::new().with(word).with(9u32).with(20_000u32))?;
    // Unloading waits for the work that uses the module.
    ok!(cx, cuModuleUnload(module))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 9, "word written by a kernel of an unloaded module");
    Ok(())
}

fn destroyed_handles_are_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let module = gpu.module(kernels::BASIC)?;
    let empty = gpu.function(module, c"empty")?;
    ok!(cx, cuModuleUnload(module))?;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuModuleUnload(module))?;
    let mut function = CUfunction::NULL;
    code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuModuleGetFunction(&mut function, module, c"empty".as_ptr()))?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_HANDLE],
        cuLaunchKernel(
            empty,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            CUstream::NULL,
            std::ptr::null_mut(),
            std::ptr::null_mut()
        )
    )
}
