//! CUDA for Rust that you can test without a GPU.
//!
//! simtile is one CUDA host runtime for two kernel models: SIMT kernels (PTX, cubin) and Tile kernels (CUDA Tile IR).
//! Both use the same devices, streams, modules and buffers. Without a GPU everything runs on a simulated driver.
//!
//! ```
//! use simtile::{DeviceBuffer, Runtime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(feature = "sim")] {
//! let runtime = Runtime::simulated(&simtile::sim::Simulator::builder().quiet().build());
//! let context = runtime.device(0)?.primary_context()?;
//! let stream = context.new_stream()?;
//! let buffer = DeviceBuffer::from_slice(&stream, &[1.0f32, 2.0, 3.0])?;
//! assert_eq!(buffer.to_vec(&stream)?, [1.0, 2.0, 3.0]);
//! # } Ok(()) }
//! ```
//!
//! [`Runtime::new`] takes NVIDIA's driver and never simulates by accident; [`Runtime::auto`] takes whatever there is;
//! [`Runtime::builder`] has devices, streams, policies and pools. [`Runtime::enter`] and [`Runtime::set_default`] make one that which `.await`
//! and `.sync()` run on.
//!
//! # Crates behind it
//! [`types`] (what host and device code share), [`driver`] (the driver API as a table), [`core`](mod@core) (handles,
//! memory, raw launches), [`ops`] (operations, futures, launches), and with the feature `sim` (on by default) `sim`, the simulated driver.
//!
//! # Tests
//! `#[simtile::test(devices = 2, seeds = 100)]` runs a function on a simulated driver of its own, on many schedules, with
//! every check on. See `testing`.
#![warn(missing_debug_implementations)]
#![forbid(unsafe_code)]

#[cfg(feature = "sim")]
pub mod testing;

#[cfg(all(feature = "macros", feature = "sim"))]
pub use simtile_macros::test;
#[cfg(feature = "macros")]
pub use simtile_macros::{DeviceCopy, PointerFree};

/// The programs of the guide, which are tests.
#[cfg(all(doctest, feature = "sim", feature = "macros"))]
#[doc = include_str!("../../../docs/guide.md")]
mod guide {}

pub use simtile_async as ops;
pub use simtile_core as core;
pub use simtile_driver as driver;
#[cfg(feature = "sim")]
pub use simtile_sim as sim;
pub use simtile_types as types;

pub use simtile_async::{
    DeviceFuture, DeviceOp, DeviceOperation, DeviceOutput, ExecutionContext, OpError, Pending, Plain,
    Runtime, RuntimeBuilder, RuntimeError, SchedulingPolicy, SubmitContext, join, plain_output, zip,
};
pub use simtile_core::*;
pub use simtile_driver::{Driver, DriverError, DriverKind};
pub use simtile_types::{
    DType, DTypeId, DeviceAtomicF32, DeviceAtomicF64, DeviceAtomicI32, DeviceAtomicI64, DeviceAtomicU32,
    DeviceAtomicU64, DeviceCopy, DeviceRepr, KernelLaunchConfig, LaunchConfig, LaunchConfig1D,
    LaunchConfig2D, LaunchConfig3D, PointerFree,
};
