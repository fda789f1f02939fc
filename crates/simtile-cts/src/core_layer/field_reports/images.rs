//! L: images that are broken, for somebody else, or one of several; options; errors that tell causes apart.

use super::super::{Core, refused};
use crate::frame::{Check, Cx, Need, Stop};
use crate::gpu::SOON;
use crate::{artifacts, ensure, ensure_eq, kernels, ok};
use simtile_core::{Device, JitOptions, ModuleError};
use simtile_driver::sys::*;
use simtile_driver::{Driver, Entry, State, Table};
use std::ffi::{c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

crate::frame::registry::tests! { Core, "field_reports";
    fr_l2_a_failed_load_leaves_nothing_to_unload proves ["H5"] needs [Need::Simulator("failing calls")],
    fr_l3_newer_ptx_is_an_error_that_says_so proves ["H5", "F2"],
    fr_l3_the_best_of_several_images_is_loaded proves ["H5", "F2"],
    fr_l3_a_fat_binary_is_the_drivers_choice proves ["H5"] needs [Need::ARTIFACTS, Need::Capability(9, 0)],
    fr_l4_broken_images_never_reach_the_driver proves ["H5", "F2"],
    fr_l5_load_errors_tell_causes_apart proves ["H5", "F2"],
    fr_l5_a_crate_named_with_dashes_loads_what_it_embeds proves ["H5"],
    fr_l8_the_log_options_reach_the_driver proves ["H5"],
    fr_l8_compiler_options_apply_or_are_refused proves ["H5", "F2"],
}

/// A cubin for sm_90, the kernels `pair` and `explicit`.
const CLUSTERS: &[u8] = include_bytes!("../../../../../artifacts/cubin/clusters.sm_90.cubin");
/// A cubin for sm_100a and nothing else.
const BLACKWELL: &[u8] = include_bytes!("../../../../../artifacts/cubin/directives.sm_100a.cubin");
/// Both, and PTX 9.0 for sm_90.
const FATBIN: &[u8] = include_bytes!("../../../../../artifacts/fatbin/clusters.none.fatbin");
/// PTX 9.0 for sm_90a.
const PTX_FATBIN: &[u8] = include_bytes!("../../../../../artifacts/fatbin/ptx_90a.fatbin");

const BODY: &str = ".address_size 64\n.visible .entry k()\n{\n\tret;\n}\n";

/// A kernel `k` in this version of PTX.
fn ptx(version: &str, target: &str) -> String {
    format!(".version {version}\n.target {target}\n{BODY}")
}

fn fr_l2_a_failed_load_leaves_nothing_to_unload(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let Some(simulator) = cx.simulator() else { return Err(Stop::unsupported("no simulator")) };
    let unloads = || {
        let done = simtile_core::drain_background(SOON);
        ensure!(done, "dropped handles were not given back in time");
        Ok::<_, Stop>(cx.calls_of(Entry::cuModuleUnload))
    };
    simulator.fail(Entry::cuModuleLoadDataEx, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let image = kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
    refused(core.context.load_module(image), &["OUT_OF_MEMORY"])?;
    ensure_eq!(unloads()?, 0, "unloads after a load that failed");
    let module = core.basic()?;
    refused(module.load_function("no_such_kernel"), &["no_such_kernel"])?;
    ensure_eq!(unloads()?, 0, "unloads while the module lives");
    // It works all the same, and goes once.
    module.load_function("fill")?;
    drop(module);
    ensure_eq!(unloads()?, 1, "unloads of a module whose look-up failed once");
    // Nothing is kept by image or name: each load is the driver's, and ends with its own module.
    let loads = cx.calls_of(Entry::cuModuleLoadDataEx);
    core.basic()?.load_function("fill")?;
    ensure_eq!(cx.calls_of(Entry::cuModuleLoadDataEx) - loads, 1, "loads of the same image again");
    ensure_eq!(unloads()?, 2, "unloads of two modules");
    Ok(())
}

/// What the driver cannot compile is told as that.
fn fr_l3_newer_ptx_is_an_error_that_says_so(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let error = refused(core.context.load_module_from_ptx_src(&ptx("9.9", "sm_70")), &["PTX"])?;
    let ModuleError::Load { source, .. } = &error else { return Err(Stop::fail(format!("{error:?}"))) };
    ensure_eq!(source.code(), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "code of PTX from the future");
    // The same kernel in a version that the driver knows.
    let before = cx.calls_of(Entry::cuModuleLoadDataEx);
    core.context.load_module_from_ptx_src(&ptx("6.3", "sm_70"))?.load_function("k")?;
    ensure_eq!(cx.calls_of(Entry::cuModuleLoadDataEx) - before, 1, "loads of one image");
    Ok(())
}

/// Code for exactly this device before anything that has to be compiled; what does not load is passed over, and if nothing
/// loads, each image has its reason.
fn fr_l3_the_best_of_several_images_is_loaded(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let (newer, known, older) = (ptx("9.9", "sm_70"), ptx("6.3", "sm_70"), ptx("6.0", "sm_60"));
    let (newer, known, older) = (newer.as_bytes(), known.as_bytes(), older.as_bytes());
    if let Some(simulator) = cx.simulator() {
        // Machine code runs there by stand-ins alone.
        for kernel in ["pair", "explicit"] {
            simulator.register_stand_in(kernel, |_| Ok(()));
        }
    }
    let here = cx.capability()?;
    let loads = || cx.calls_of(Entry::cuModuleLoadDataEx);
    let before = loads();
    let best = core.context.load_best_module(&[newer, known, CLUSTERS]);
    ensure_eq!(loads() - before, if here == (9, 0) { 1 } else { 2 }, "images that were tried");
    let module = best?;
    let kind = module.info().map(|info| info.kind);
    ensure_eq!(
        format!("{kind:?}"),
        if here == (9, 0) { "Some(Cubin)" } else { "Some(Ptx)" },
        "what was loaded"
    );
    // Newer text of two that are taken; what is broken or for another device is not even tried.
    let before = loads();
    let blackwell: &[u8] = if here.0 == 10 { b"" } else { BLACKWELL };
    let module = core.context.load_best_module(&[older, &CLUSTERS[..100], blackwell, known])?;
    let target = module.info().and_then(|info| info.target).map(|target| target.to_string());
    ensure_eq!(target.as_deref(), Some("sm_70"), "target of the text that was loaded");
    ensure_eq!(loads() - before, 1, "images that were tried");
    // Nothing fits: every reason.
    let images: &[&[u8]] = &[blackwell, newer, &CLUSTERS[..100]];
    let error = refused(core.context.load_best_module(images), &["no image of 3", "PTX", "100 bytes"])?;
    let ModuleError::NoImageFits { device, refused: reasons } = &error else {
        return Err(Stop::fail(format!("{error:?}")));
    };
    ensure_eq!(*device, format!("sm_{}{}", here.0, here.1), "the device's architecture");
    ensure_eq!(reasons.len(), 3, "reasons");
    ensure!(here.0 == 10 || reasons.iter().any(|why| why.contains("sm_100a")), "{reasons:?}");
    ensure!(reasons.iter().any(|why| why.contains("UNSUPPORTED_PTX_VERSION")), "{reasons:?}");
    refused(core.context.load_best_module(&[]), &["no image of 0"])?;
    Ok(())
}

/// A fat binary holds the set itself; the driver takes what suits the device. Bytecode comes with its cubin: the simulator
/// takes the one, a GPU the other.
fn fr_l3_a_fat_binary_is_the_drivers_choice(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let before = cx.calls_of(Entry::cuModuleLoadDataEx);
    let module = core.context.load_module(FATBIN)?;
    ensure_eq!(cx.calls_of(Entry::cuModuleLoadDataEx) - before, 1, "loads of a fat binary");
    module.load_function("pair")?;
    module.load_function("explicit")?;
    let (code, text) =
        (artifacts::bytes("tile_rs/rs_vadd_f32.cubin")?, artifacts::bytes("tile_rs/rs_vadd_f32.tileirbc")?);
    let module = core.context.load_best_module(&[text, code])?;
    let kind = module.info().map(|info| info.kind);
    let expected = if cx.simulator().is_some() { "Some(TileBytecode)" } else { "Some(Cubin)" };
    // Compiled for sm_90: another GPU takes neither, which the capability above excludes.
    ensure_eq!(format!("{kind:?}"), expected, "what was loaded");
    Ok(())
}

fn fr_l4_broken_images_never_reach_the_driver(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let whole = artifacts::bytes("tile_rs/rs_vadd_f32.cubin")?;
    let loads = || cx.calls_of(Entry::cuModuleLoadDataEx) + cx.calls_of(Entry::cuModuleLoadData);
    let before = loads();
    let is_refused =
        |image: &[u8]| matches!(core.context.load_module(image), Err(ModuleError::BadImage { .. }));
    for image in [whole, CLUSTERS, FATBIN, PTX_FATBIN] {
        for cut in 0..image.len() {
            ensure!(is_refused(&image[..cut]), "the first {cut} of {} bytes were not refused", image.len());
        }
    }
    // The words of the ELF header that say where things are: magic, section and program headers' places and counts.
    for (at, what) in
        [(0, "magic"), (0x28, "place of the section headers"), (0x3a, "size of a section header")]
    {
        let mut broken = whole.to_vec();
        for byte in &mut broken[at..at + 2] {
            *byte ^= 0xff;
        }
        ensure!(is_refused(&broken), "a cubin with a broken {what} was not refused");
    }
    ensure!(is_refused(b""), "nothing was not refused");
    let hidden = format!(".version 6.3\n.target sm_70\n{BODY}\0{BODY}");
    ensure!(is_refused(hidden.as_bytes()), "text with a NUL inside was not refused");
    ensure_eq!(loads() - before, 0, "broken images that the driver was given");
    // Text needs no NUL at its end: it is added.
    let plain = format!(".version 6.3\n.target sm_70\n{BODY}");
    core.context.load_module(plain.as_bytes())?.load_function("k")?;
    ensure_eq!(loads() - before, 1, "loads of a good image");
    Ok(())
}

fn fr_l5_load_errors_tell_causes_apart(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    // A name that there is not: what was looked for, and what there is.
    let error = refused(core.basic()?.load_function("fil"), &["`fil`", "fill", "store_one"])?;
    ensure!(matches!(error, ModuleError::NotFound { .. }), "{error:?}");
    // A file that there is not.
    let error = refused(core.context.load_module_from_file("/no/such/k.cubin"), &["/no/such/k.cubin"])?;
    ensure!(matches!(error, ModuleError::File { .. }), "{error:?}");
    // Code for another GPU: the driver's own code for that, which is not that of broken text.
    let foreign = BLACKWELL;
    let (major, minor) = cx.capability()?;
    if major != 10 {
        let here = format!("sm_{major}{minor}");
        let error = refused(core.context.load_module(foreign), &["cubin", "sm_100a", &here])?;
        let ModuleError::WrongArchitecture { made_for, device, source, .. } = &error else {
            return Err(Stop::fail(format!("{error:?}")));
        };
        ensure_eq!((made_for.as_str(), device.as_str()), ("sm_100a", here.as_str()), "architectures");
        ensure_eq!(source.code(), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "code for another GPU");
    }
    // Text that does not compile: the compiler's words, with the line, and the file where there is one.
    let broken =
        ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n\tfrobnicate;\n\tret;\n}\n";
    let path = std::env::temp_dir().join(format!(
        "simtile-cts-{}-{}-l5.ptx",
        std::process::id(),
        cx.driver().state().address()
    ));
    std::fs::write(&path, broken).map_err(Stop::fail)?;
    let loaded = core.context.load_module_from_file(&path);
    // A file left behind in the temporary folder is no failure.
    let _ = std::fs::remove_file(&path);
    let name = path.display().to_string();
    refused(loaded, &[&name, "frobnicate", "6"])?;
    Ok(())
}

/// Nothing is found by the name of a crate: what it embeds is what it loads.
fn fr_l5_a_crate_named_with_dashes_loads_what_it_embeds(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let dashes = env!("CARGO_PKG_NAME");
    ensure!(dashes.contains('-'), "this crate is called {dashes}");
    let module = core.context.load_module(kernels::BASIC.strip_suffix(b"\0").unwrap_or_default())?;
    for name in ["empty", "store_one", "fill"] {
        module.load_function(name)?;
    }
    refused(module.load_function(&dashes.replace('-', "_")), &["simtile_cts", "fill"])?;
    Ok(())
}

/// The logs are asked for at every load, and come.
fn fr_l8_the_log_options_reach_the_driver(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    // Taken by our check, refused by the driver's compiler: a call of a function that nobody declared.
    let text = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n\t.reg .b32 %r<2>;\n\tmov.b32 %r1, undeclared_thing;\n\tret;\n}\n";
    let error = refused(core.context.load_module_from_ptx_src(text), &["undeclared_thing"])?;
    if let ModuleError::Load { log, .. } = &error {
        ensure!(log.contains("undeclared_thing"), "the driver's log is {log:?}");
    }
    // An option that does not exist is refused by the driver, not ignored.
    let mut module = CUmodule::NULL;
    let (mut option, mut value) = (CUjit_option(9999), core::ptr::null_mut());
    let driver = cx.driver();
    ok!(cx, cuCtxSetCurrent(core.context.cu_ctx()))?;
    // SAFETY: the image ends with a NUL; there is one option.
    let code = unsafe {
        driver.cuModuleLoadDataEx(&mut module, kernels::BASIC.as_ptr().cast(), 1, &mut option, &mut value)
    };
    ensure_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE, "an option that does not exist");
    Ok(())
}

type LoadDataEx =
    unsafe fn(State, *mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void) -> CUresult;

/// The call behind [`recording`]: that of the counting table, of which there is one.
static BEHIND: OnceLock<LoadDataEx> = OnceLock::new();
/// Options with their values.
type Asked = Vec<(CUjit_option, usize)>;

/// Loads that were seen: driver, what they asked for.
static SEEN: Mutex<Vec<(usize, Asked)>> = Mutex::new(Vec::new());

/// `cuModuleLoadDataEx` that keeps what it was asked for.
unsafe fn recording(
    state: State,
    out: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    let list = (0..count as usize)
        // SAFETY: the caller's lists have as many options and values.
        .map(|at| unsafe { (*options.add(at), (*values.add(at)).addr()) })
        .collect();
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((state.address(), list));
    match BEHIND.get() {
        // SAFETY: the caller's arguments, and the state that belongs to the table this came from.
        Some(load) => unsafe { load(state, out, image, count, options, values) },
        None => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// The test's driver, with a record of what its loads are asked for.
fn recorded(cx: &Cx) -> Driver {
    let driver = cx.driver();
    let load = driver.table().cuModuleLoadDataEx;
    BEHIND.get_or_init(|| load);
    let table = Box::leak(Box::new(Table { cuModuleLoadDataEx: recording, ..*driver.table() }));
    // SAFETY: all entries but one are those of the driver's own table, and that one hands on to it.
    unsafe { Driver::from_parts(table, driver.state()) }
}

/// What the last load of this driver was asked for, but for its logs.
fn last_options(driver: Driver) -> Asked {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mine = seen.iter().rev().find(|(state, _)| *state == driver.state().address());
    let is_log = |option: CUjit_option| {
        (CUjit_option::CU_JIT_INFO_LOG_BUFFER.0..=CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES.0)
            .contains(&option.0)
    };
    mine.map(|(_, list)| list.iter().copied().filter(|(option, _)| !is_log(*option)).collect())
        .unwrap_or_default()
}

/// An option is in the driver's call, or an error: never nothing.
fn fr_l8_compiler_options_apply_or_are_refused(cx: &Cx) -> Check {
    ok!(cx, cuInit(0))?;
    let driver = recorded(cx);
    let context = Device::new(driver, 0)?.primary_context()?;
    let image = kernels::BASIC.strip_suffix(b"\0").unwrap_or_default();
    context.load_module(image)?;
    ensure_eq!(last_options(driver), [], "options of a plain load");
    let some = JitOptions::new().max_registers(32).optimization_level(2).line_info();
    let module = context.load_module_with(image, &some)?;
    let expected = [
        (CUjit_option::CU_JIT_MAX_REGISTERS, 32),
        (CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, 2),
        (CUjit_option::CU_JIT_GENERATE_LINE_INFO, 1),
    ];
    ensure_eq!(last_options(driver), expected, "options of a load");
    let registers = module.load_function("fill")?.attributes().num_registers;
    ensure!(cx.simulator().is_some() || registers <= 32, "{registers} registers, 32 were allowed");
    // The same image with others is another module, and gets those.
    let second = context.load_module_with(image, &JitOptions::new().max_registers(24).debug_info())?;
    let expected = [(CUjit_option::CU_JIT_MAX_REGISTERS, 24), (CUjit_option::CU_JIT_GENERATE_DEBUG_INFO, 1)];
    ensure_eq!(last_options(driver), expected, "options of another load");
    ensure!(module.cu_module() != second.cu_module(), "two loads gave one module");
    // Not compiled, or no such value: refused before the driver is asked.
    let before = cx.calls_of(Entry::cuModuleLoadDataEx);
    for (image, options, parts) in [
        (CLUSTERS, JitOptions::new().max_registers(32), ["max_registers = 32", "cubin"]),
        (
            artifacts::bytes("tile_rs/rs_vadd_f32.tileirbc")?,
            JitOptions::new().line_info(),
            ["line_info", "Tile"],
        ),
        (image, JitOptions::new().optimization_level(5), ["optimization_level = 5", "4"]),
        (image, JitOptions::new().max_registers(0), ["max_registers = 0", "1"]),
    ] {
        let error = refused(context.load_module_with(image, &options), &parts)?;
        ensure!(matches!(error, ModuleError::BadOption { .. }), "{error:?}");
    }
    ensure_eq!(cx.calls_of(Entry::cuModuleLoadDataEx) - before, 0, "refused loads that the driver saw");
    Ok(())
}
