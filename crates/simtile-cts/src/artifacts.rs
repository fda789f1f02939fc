//! The committed kernels of `artifacts/`, embedded, so that the binary runs anywhere.

use crate::frame::{Check, Stop};

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../artifacts/", $name)))),*]
    };
}

const FILES: &[(&str, &[u8])] = embedded![
    "ptx/async_copy.ptx",
    "ptx/cluster.ptx",
    "ptx/dyn_shared.ptx",
    "ptx/grid_sync.ptx",
    "ptx/histogram.ptx",
    "ptx/math.ptx",
    "ptx/printf.ptx",
    "ptx/reduce_shared.ptx",
    "ptx/rust_kernels.ptx",
    "ptx/rust_saxpy.ptx",
    "ptx/saxpy.ptx",
    "ptx/sgemm.ptx",
    "ptx/warp_reduce.ptx",
    "ptx/wmma.ptx",
    "tile_rs/rs_gemm_f16.cubin",
    "tile_rs/rs_gemm_f16.tileirbc",
    "tile_rs/rs_softmax_f32.cubin",
    "tile_rs/rs_softmax_f32.tileirbc",
    "tile_rs/rs_vadd_f32.cubin",
    "tile_rs/rs_vadd_f32.tileirbc",
    "cutile_python/softmax_f32.cubin",
    "cutile_python/softmax_f32.tileirbc",
    "cutile_python/vadd_f32.cubin",
    "cutile_python/vadd_f32.tileirbc",
];

/// The bytes of an artifact.
///
/// # Errors
/// There is none of this name.
pub fn bytes(name: &str) -> Check<&'static [u8]> {
    FILES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
        .ok_or_else(|| Stop::fail(format!("no artifact {name} is embedded")))
}

/// The text of an artifact, with the NUL that the driver wants at its end.
///
/// # Errors
/// There is none of this name.
pub fn text(name: &str) -> Check<Vec<u8>> {
    let mut text = bytes(name)?.to_vec();
    text.push(0);
    Ok(text)
}
