//! The linker of device code. The simulated driver leaves it out and says so; a real one joins images.

use super::modules::{file, is_one_of, remove};
use crate::frame::{Check, Cx};
use crate::gpu::{Args, Gpu, Shape};
use crate::{code, cu, ensure, ensure_eq, kernels, ok};
use simtile_driver::sys::*;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

crate::frame::registry::tests! { Driver, "linker";
    images_are_joined_or_refused,
    errors_are_told_or_nothing_is_linked,
}

/// A simulator that left something out has said so in a report; a driver without reports is asked for nothing.
pub(super) fn reported(cx: &Cx, what: &str) -> Check {
    let Some(simulator) = cx.simulator() else { return Ok(()) };
    let reports: Vec<String> = simulator.reports().iter().map(ToString::to_string).collect();
    ensure!(reports.iter().any(|text| text.contains(what)), "no report says `{what}`: {reports:?}");
    Ok(())
}

/// A log of errors. The driver writes into all of it as long as the linker lives.
struct Log {
    text: Box<[u8; 4096]>,
    options: [CUjit_option; 2],
    values: [*mut c_void; 2],
}

impl Log {
    fn new() -> Box<Self> {
        let mut text = Box::new([0; 4096]);
        let options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let values = [text.as_mut_ptr().cast(), std::ptr::without_provenance_mut(text.len())];
        Box::new(Self { text, options, values })
    }
}

/// A linker whose errors go to a log; `None` where the driver leaves it out, which is checked here.
fn linker(cx: &Cx, log: &mut Log) -> Check<Option<CUlinkState>> {
    let mut state = CUlinkState::NULL;
    let code = cu!(cx, cuLinkCreate(2, log.options.as_mut_ptr(), log.values.as_mut_ptr(), &mut state));
    if cx.simulator().is_none() {
        ensure_eq!(code, CUresult::CUDA_SUCCESS, "a linker");
        return Ok(Some(state));
    }
    ensure_eq!((code, state), (CUresult::CUDA_ERROR_NOT_SUPPORTED, CUlinkState::NULL), "a linker");
    reported(cx, "linking of images")?;
    Ok(None)
}

fn add(cx: &Cx, state: CUlinkState, image: &[u8], name: &CStr) -> CUresult {
    let (kind, data) = (CUjitInputType::CU_JIT_INPUT_PTX, image.as_ptr().cast_mut().cast());
    cu!(cx, cuLinkAddData(state, kind, data, image.len(), name.as_ptr(), 0, null_mut(), null_mut()))
}

fn add_file(cx: &Cx, state: CUlinkState, path: &CStr) -> CUresult {
    let kind = CUjitInputType::CU_JIT_INPUT_PTX;
    cu!(cx, cuLinkAddFile(state, kind, path.as_ptr(), 0, null_mut(), null_mut()))
}

/// Where no linker can be made, what is no linker is no handle.
fn nothing_is_linked(cx: &Cx) -> Check {
    let (mut image, mut bytes) = (null_mut(), 0);
    for state in [CUlinkState::NULL, CUlinkState(0x10)] {
        ensure_eq!(
            add(cx, state, kernels::BASIC, c"basic"),
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            "data for no linker"
        );
        ensure_eq!(
            add_file(cx, state, c"/no/such/file.ptx"),
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            "a file for no linker"
        );
        code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuLinkComplete(state, &mut image, &mut bytes))?;
        code!(cx, [CUDA_ERROR_INVALID_HANDLE], cuLinkDestroy(state))?;
    }
    ensure!(image.is_null() && bytes == 0, "an image of {bytes} bytes at {image:?}");
    Ok(())
}

fn images_are_joined_or_refused(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut log = Log::new();
    let Some(state) = linker(cx, &mut log)? else { return nothing_is_linked(cx) };
    ensure_eq!(add(cx, state, kernels::GLOBALS, c"globals"), CUresult::CUDA_SUCCESS, "data");
    let path = file(cx, "link.ptx", &kernels::BASIC[..kernels::BASIC.len() - 1])?;
    let added = add_file(cx, state, &path);
    remove(&path);
    ensure_eq!(added, CUresult::CUDA_SUCCESS, "a file");
    let (mut image, mut bytes) = (null_mut(), 0);
    ok!(cx, cuLinkComplete(state, &mut image, &mut bytes))?;
    ensure!(!image.is_null() && bytes > 0, "the linker made {bytes} bytes");
    let mut module = CUmodule::NULL;
    ok!(cx, cuModuleLoadData(&mut module, image))?;
    let word = gpu.zeroed(4)?;
    gpu.function(module, c"use_globals")?;
    let store = gpu.function(module, c"store_one")?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(4u32))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 4, "word written by a linked kernel");
    // The image goes with the linker; what was loaded from it stays.
    ok!(cx, cuLinkDestroy(state))?;
    gpu.launch(store, Shape::ONE, stream, &Args::new().with(word).with(5u32))?;
    gpu.sync(stream)?;
    ensure_eq!(gpu.word(word)?, 5, "word written after the linker was destroyed");
    Ok(())
}

fn errors_are_told_or_nothing_is_linked(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut log = Log::new();
    let Some(state) = linker(cx, &mut log)? else {
        code!(cx, [CUDA_ERROR_INVALID_VALUE], cuLinkCreate(0, null_mut(), null_mut(), null_mut()))?;
        return nothing_is_linked(cx);
    };
    let broken =
        c".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n\tfrobnicate;\n\tret;\n}\n";
    is_one_of(
        add(cx, state, broken.to_bytes_with_nul(), c"broken"),
        &[CUresult::CUDA_ERROR_INVALID_PTX, CUresult::CUDA_ERROR_INVALID_SOURCE],
        "data that is no PTX",
    )?;
    let text = CStr::from_bytes_until_nul(&*log.text).unwrap_or_default().to_string_lossy();
    ensure!(text.contains("frobnicate"), "the log is {text:?}");
    is_one_of(
        add_file(cx, state, c"/no/such/folder/link.ptx"),
        &[CUresult::CUDA_ERROR_FILE_NOT_FOUND],
        "a file that is not there",
    )?;
    ok!(cx, cuLinkDestroy(state))
}
