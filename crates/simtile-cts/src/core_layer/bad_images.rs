//! Bad images, by our API: nothing crashes, the error names the image and what is wrong with it.

use super::{Core, refused};
use crate::artifacts;
use crate::ensure;
use crate::frame::{Check, Cx, Stop};
use simtile_core::ModuleError;
use simtile_driver::Entry;

crate::frame::registry::tests! { Core, "bad_images";
    truncated_cubins proves ["H5", "F2"],
    truncated_bytecode proves ["H5", "F2"],
    random_bytes proves ["H5", "F2"],
    text_with_a_nul proves ["H5", "F2"],
    text_that_is_no_utf8 proves ["H5", "F2"],
    unknown_instruction proves ["F2"],
    unknown_kernel proves ["F2"],
    unknown_symbol proves ["F2"],
    names_with_a_nul proves ["F2"],
    missing_file proves ["F2"],
    empty_image proves ["H5", "F2"],
}

/// Calls that load modules.
fn loads(cx: &Cx) -> u64 {
    cx.calls_of(Entry::cuModuleLoadDataEx) + cx.calls_of(Entry::cuModuleLoadData)
}

/// The image is refused before the driver sees it.
fn refused_here(cx: &Cx, core: &Core<'_>, image: &[u8], parts: &[&str]) -> Check {
    let before = loads(cx);
    let error = refused(core.context.load_module(image), parts)?;
    ensure!(matches!(error, ModuleError::BadImage { .. }), "{error:?}");
    ensure!(loads(cx) == before, "the driver was given a broken image");
    Ok(())
}

fn truncated_cubins(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let whole = artifacts::bytes("tile_rs/rs_vadd_f32.cubin")?;
    let mut random = cx.random(50);
    let mut cuts: Vec<usize> = (0..20).map(|_| 1 + random.below(whole.len() as u64 - 1) as usize).collect();
    cuts.extend([4, 63, 64, 100, whole.len() - 1]);
    for cut in cuts {
        refused_here(cx, &core, &whole[..cut], &[])
            .map_err(|stop| stop.within(format!("the first {cut} of {} bytes", whole.len())))?;
    }
    Ok(())
}

fn truncated_bytecode(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let whole = artifacts::bytes("tile_rs/rs_softmax_f32.tileirbc")?;
    let mut random = cx.random(51);
    for _ in 0..20 {
        let cut = 8 + random.below(whole.len() as u64 - 9) as usize;
        // The driver may be asked whether it takes bytecode; it must not load half of it.
        if let Ok(module) = core.context.load_module(&whole[..cut]) {
            let count = module.info().map(|info| info.entries.len());
            return Err(Stop::fail(format!("the first {cut} bytes were loaded, {count:?} entries")));
        }
    }
    Ok(())
}

fn random_bytes(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut random = cx.random(52);
    for size in [1usize, 3, 16, 64, 1000] {
        let image: Vec<u8> = (0..size).map(|_| 0x80 | random.bits() as u8).collect();
        refused_here(cx, &core, &image, &[]).map_err(|stop| stop.within(format!("{size} random bytes")))?;
    }
    Ok(())
}

const HEAD: &str = ".version 6.3\n.target sm_70\n.address_size 64\n";

fn text_with_a_nul(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let image = format!("{HEAD}.visible .entry k() {{ ret; }}\n\0.visible .entry hidden() {{ ret; }}\n");
    refused_here(cx, &core, image.as_bytes(), &["NUL"])
}

fn text_that_is_no_utf8(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let mut image = format!("{HEAD}// ").into_bytes();
    image.extend([0xff, 0xfe, b'\n']);
    image.extend(b".visible .entry k() { ret; }\n");
    refused_here(cx, &core, &image, &["UTF-8"])
}

fn unknown_instruction(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let text = format!(
        "{HEAD}.visible .entry k()\n{{\n\t.reg .u32 %r<3>;\n\tfrobnicate.u32 %r1, %r2;\n\tret;\n}}\n"
    );
    // Refused by us or by the driver, whose log is in the error; either says where.
    refused(core.context.load_module_from_ptx_src(&text), &["frobnicate", "7"])?;
    Ok(())
}

fn unknown_kernel(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let error =
        refused(core.basic()?.load_function("no_such_kernel"), &["kernel", "`no_such_kernel`", "store_one"])?;
    ensure!(matches!(error, ModuleError::NotFound { .. }), "{error:?}");
    Ok(())
}

fn unknown_symbol(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let error = refused(core.basic()?.symbol("no_such_variable"), &["variable", "`no_such_variable`"])?;
    ensure!(matches!(error, ModuleError::NotFound { .. }), "{error:?}");
    Ok(())
}

fn names_with_a_nul(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let module = core.basic()?;
    for error in
        [refused(module.load_function("fill\0"), &["NUL"])?, refused(module.symbol("fi\0ll"), &["NUL"])?]
    {
        ensure!(matches!(error, ModuleError::NulInName { .. }), "{error:?}");
    }
    Ok(())
}

fn missing_file(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let error =
        refused(core.context.load_module_from_file("/no/such/folder/k.ptx"), &["/no/such/folder/k.ptx"])?;
    ensure!(matches!(error, ModuleError::File { .. }), "{error:?}");
    Ok(())
}

fn empty_image(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    refused_here(cx, &core, b"", &["empty"])
}
