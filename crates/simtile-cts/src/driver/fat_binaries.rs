//! Fat binaries: containers of images, of which the driver takes the one for its device.

use crate::frame::{Check, Cx, Need, Stop};
use crate::gpu::Gpu;
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::*;
use std::ffi::c_void;

// The committed ones hold a cubin for sm_90, one for sm_100a, and PTX 9.0 for sm_90.
crate::frame::registry::tests! { Driver, "fat_binaries";
    every_call_takes_them needs [Need::ARTIFACTS, Need::Capability(9, 0)],
    compressed_members_are_unpacked needs [Need::ARTIFACTS, Need::Capability(9, 0)],
    the_wrapper_of_the_compiler_is_no_fat_binary needs [Need::ARTIFACTS, Need::Capability(9, 0)],
}

const PLAIN: &[u8] = include_bytes!("../../../../artifacts/fatbin/clusters.none.fatbin");
const LZ4: &[u8] = include_bytes!("../../../../artifacts/fatbin/clusters.lz4.fatbin");
const ZSTD: &[u8] = include_bytes!("../../../../artifacts/fatbin/clusters.zstd.fatbin");

/// What compilers put into programs: the driver reads it through a pointer.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
    file: *const c_void,
}

/// The module has the kernels of the member for this device, and none of another one's.
fn is_whole(gpu: &Gpu<'_>, module: CUmodule) -> Check {
    ensure!(!module.is_null(), "a module that is null");
    for name in [c"pair", c"explicit"] {
        gpu.function(module, name)?;
    }
    let mut count = 0;
    ok!(gpu, cuModuleGetFunctionCount(&mut count, module))?;
    ensure_eq!(count, 2, "kernels of the member for this device");
    Ok(())
}

fn aligned(image: &[u8]) -> Vec<u64> {
    let words = image.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}

fn every_call_takes_them(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let image = aligned(PLAIN);
    let image = image.as_ptr().cast();
    let mut module = CUmodule::NULL;
    ok!(cx, cuModuleLoadFatBinary(&mut module, image))?;
    is_whole(&gpu, module)?;
    ok!(cx, cuModuleUnload(module))?;
    let mut module = CUmodule::NULL;
    ok!(cx, cuModuleLoadData(&mut module, image))?;
    is_whole(&gpu, module)?;
    let mut missing = CUfunction::NULL;
    code!(cx, [CUDA_ERROR_NOT_FOUND], cuModuleGetFunction(&mut missing, module, c"no_such_kernel".as_ptr()))
}

fn compressed_members_are_unpacked(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    for (name, image) in [("lz4", LZ4), ("zstd", ZSTD)] {
        let image = aligned(image);
        let mut module = CUmodule::NULL;
        ok!(cx, cuModuleLoadFatBinary(&mut module, image.as_ptr().cast()))
            .and_then(|()| is_whole(&gpu, module))
            .map_err(|stop: Stop| stop.within(name))?;
    }
    Ok(())
}

fn the_wrapper_of_the_compiler_is_no_fat_binary(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let image = aligned(PLAIN);
    let data = std::ptr::with_exposed_provenance(image.as_ptr().expose_provenance());
    let wrapper = Wrapper { magic: 0x4662_43b1, version: 1, data, file: std::ptr::null() };
    let mut module = CUmodule::NULL;
    // As an H200 answers.
    code!(cx, [CUDA_ERROR_INVALID_IMAGE], cuModuleLoadFatBinary(&mut module, (&raw const wrapper).cast()))
}
