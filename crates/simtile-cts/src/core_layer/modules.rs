//! Modules, functions and symbols by our API.

use super::Core;
use crate::artifacts;
use crate::frame::{Check, Cx, Need};
use crate::{ensure, ensure_eq, kernels};
use simtile_core::{DeviceBuffer, LaunchArgs, ParameterLayout};
use std::sync::Arc;

crate::frame::registry::tests! { Core, "core_modules";
    functions_keep_their_module proves ["H5"],
    attributes_are_cached proves ["H5"],
    parameters_are_known proves ["H5"],
    a_dropped_module_stays_loaded_while_it_runs proves ["H5"],
    symbols_are_read_and_written proves ["M1"],
    constants_have_their_type proves ["M1"],
    the_stack_grows_at_load proves ["H5"],
    every_artifact_loads proves ["H5"] needs [Need::ARTIFACTS],
    files_and_text_load proves ["H5"],
}

fn globals() -> &'static [u8] {
    kernels::GLOBALS.strip_suffix(b"\0").unwrap_or_default()
}

fn functions_keep_their_module(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let module = core.basic()?;
    let fill = module.load_function("fill")?;
    ensure!(Arc::ptr_eq(fill.module(), &module), "a function has another module");
    ensure_eq!(fill.name(), "fill", "name of a function");
    drop(module);
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(4u32);
    // SAFETY: the kernel writes the 100 words of its buffer, of which it is told.
    unsafe { core.stream.launch(&fill, super::launches::shape(1, 128), &args) }?;
    drop(args);
    ensure_eq!(buffer.to_vec(&core.stream)?, [4; 100], "words written by a function of a dropped module");
    Ok(())
}

fn attributes_are_cached(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let function = core.basic()?.load_function("static_shared")?;
    let before = cx.calls();
    for _ in 0..10 {
        ensure_eq!(function.attributes().static_shared_memory_bytes, 1024, "static shared memory");
    }
    ensure_eq!(cx.calls() - before, 0, "driver calls for attributes that are known");
    Ok(())
}

fn parameters_are_known(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let function = core.basic()?.load_function("arguments")?;
    match function.parameters() {
        ParameterLayout::Known(sizes) => {
            ensure_eq!(sizes.to_vec(), [8usize, 1, 2, 4, 8, 4, 8], "bytes of the parameters");
        }
        other => ensure!(false, "the parameters of a PTX kernel are {other:?}"),
    }
    let restricted = core.basic()?.load_function("exactly_32_2")?;
    ensure_eq!(restricted.required_block(), Some((32, 2, 1)), "required block");
    Ok(())
}

fn a_dropped_module_stays_loaded_while_it_runs(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let module = core.basic()?;
    let fill = module.load_function("fill")?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&core.stream, 100)?;
    let before = core.context.stats().retained_modules;
    let gate = core.gate(&core.stream)?;
    let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(100u32).arg(6u32);
    // SAFETY: as above.
    unsafe { core.stream.launch(&fill, super::launches::shape(1, 128), &args) }?;
    drop(args);
    // Unloading would wait for the gated launch, so a drop must not unload.
    drop((fill, module));
    ensure_eq!(core.context.stats().retained_modules, before + 1, "modules kept after a drop");
    gate.open();
    ensure_eq!(buffer.to_vec(&core.stream)?, [6; 100], "words written by a kernel of a dropped module");
    Ok(())
}

fn symbols_are_read_and_written(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let module = core.context.load_module(globals())?;
    let counter = module.symbol("counter")?;
    ensure_eq!((counter.name(), counter.num_bytes()), ("counter", 4), "name and bytes of a symbol");
    ensure_eq!(counter.read::<u32>(&core.stream, 0, 1)?, [5], "initial value");
    counter.write(&core.stream, 0, &[70u32])?;
    let function = module.load_function("use_globals")?;
    let mut out = DeviceBuffer::<u32>::zeroed(&core.stream, 2)?;
    let args = LaunchArgs::new().buffer_mut(&mut out);
    // SAFETY: the kernel writes two words of its buffer, of which it is told, and its module's variables.
    unsafe { core.stream.launch(&function, super::launches::shape(1, 1), &args) }?;
    drop(args);
    ensure_eq!(out.to_vec(&core.stream)?, [70, 10], "counter and sum as the kernel saw them");
    ensure_eq!(counter.read::<u32>(&core.stream, 0, 1)?, [71], "counter after the kernel");
    Ok(())
}

fn constants_have_their_type(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let module = core.context.load_module(globals())?;
    let coef = module.constant::<[f32; 4]>("coef")?;
    ensure_eq!(coef.read(&core.stream)?, [1.0, 2.0, 3.0, 4.0], "initial value");
    coef.write(&core.stream, &[5.0, 6.0, 7.0, 8.0])?;
    ensure_eq!(coef.read(&core.stream)?, [5.0, 6.0, 7.0, 8.0], "value written");
    super::refused(module.constant::<f64>("coef").map(|_| ()), &["coef", "16", "8"])?;
    Ok(())
}

fn the_stack_grows_at_load(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let function = core.basic()?.load_function("local_memory")?;
    let local = function.attributes().local_size_bytes as usize;
    ensure!(local >= 4096, "local memory of {local} bytes");
    ensure!(
        core.context.stack_size()? >= local,
        "stack of {} bytes for a kernel with {local} of local memory",
        core.context.stack_size()?
    );
    Ok(())
}

fn every_artifact_loads(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    if cx.capability()?.0 != 9 {
        return Err(crate::frame::Stop::unsupported("the artifacts are for sm_90"));
    }
    for name in
        ["saxpy", "reduce_shared", "warp_reduce", "histogram", "dyn_shared", "sgemm", "printf", "rust_saxpy"]
    {
        let module = core.context.load_module(artifacts::bytes(&format!("ptx/{name}.ptx"))?)?;
        let info = module.info().map(|info| info.entries.len()).unwrap_or_default();
        ensure!(info > 0, "{name} has no entries");
    }
    Ok(())
}

fn files_and_text_load(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let text = std::str::from_utf8(globals()).unwrap_or_default();
    core.context.load_module_from_ptx_src(text)?.load_function("use_globals")?;
    let path = std::env::temp_dir().join(format!(
        "simtile-cts-{}-{}-core.ptx",
        std::process::id(),
        cx.driver().state().address()
    ));
    std::fs::write(&path, text).map_err(crate::frame::Stop::fail)?;
    let loaded = core.context.load_module_from_file(&path);
    // A file left behind in the temporary folder is no failure.
    let _ = std::fs::remove_file(&path);
    loaded?.load_function("use_globals")?;
    Ok(())
}
