//! What the examples share: a matrix, two kernels on it, and the same on the CPU.
#![deny(unsafe_code)]

pub mod reference;
mod shape;
pub mod softmax;

pub use shape::Shape;

use simtile::{LaunchArgs, LaunchConfig};

/// A SIMT kernel (PTX, its CUDA C++ source beside it) that scales the values above a threshold in place.
pub const SCALE_OVER: &str = include_str!("../kernels/scale_over.ptx");

/// Most blocks in y on every device; rows beyond are reached by the kernel's loop.
const MAX_GRID_Y: u32 = 65_535;

/// Geometry and arguments of the softmax of each row of `x` into `y`. Both have `shape.floats()` elements.
pub fn softmax_call<'a>(
    shape: Shape,
    x: &'a simtile::DeviceBuffer<f32>,
    y: &'a mut simtile::DeviceBuffer<f32>,
) -> (LaunchConfig, LaunchArgs<'a>) {
    let (rows, cols, stride) = (shape.rows as i32, shape.cols as i32, shape.stride as i32);
    let args = LaunchArgs::new().buffer(x).arg(rows).arg(cols).arg(stride).arg(1i32);
    let args = args.buffer_mut(y).arg(rows).arg(cols).arg(stride).arg(1i32);
    (LaunchConfig::tiles(shape.rows, 1, 1), args)
}

/// Geometry and arguments of scaling the values of `data` above `threshold` by `factor`, in place.
pub fn scale_over_call(
    shape: Shape,
    data: &mut simtile::DeviceBuffer<f32>,
    threshold: f32,
    factor: f32,
) -> (LaunchConfig, LaunchArgs<'_>) {
    const THREADS: u32 = 256;
    let config = LaunchConfig {
        grid_dim: (shape.cols.div_ceil(THREADS), shape.rows.min(MAX_GRID_Y), 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let args = LaunchArgs::new().buffer_mut(data).arg(shape.rows).arg(shape.cols).arg(shape.stride);
    (config, args.arg(threshold).arg(factor))
}
