// The committed kernels by name, as an expression: the conformance suite and `xtask differential` include it.
{
    macro_rules! embedded {
        ($($name:literal),* $(,)?) => {
            &[$(($name, include_bytes!($name) as &[u8])),*]
        };
    }
    embedded![
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
    ]
}
