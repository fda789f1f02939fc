//! Types that host and device code share. `no_std`, no allocation, no driver.
//!
//! * [`DeviceCopy`]: values that may be copied to a device and back byte by byte;
//! * [`PointerFree`]: those of them that carry no address, so that a safe launcher may take them;
//! * [`DType`], [`DTypeId`]: element types of Tile tensors, and the storage newtypes behind the narrow ones;
//! * [`DeviceAtomicU32`] and its like: values that kernels update with device atomics;
//! * [`DeviceRepr`]: wrappers with the layout of what they wrap;
//! * [`LaunchConfig`] and the ranked configurations: launch geometry;
//! * [`contract`]: what a kernel demands of its launches, checked without a device.
#![no_std]
#![warn(missing_debug_implementations)]

mod atomics;
pub mod contract;
mod copy;
mod dtype;
mod launch;
mod repr;
mod storage;

pub use atomics::{
    DeviceAtomicF32, DeviceAtomicF64, DeviceAtomicI32, DeviceAtomicI64, DeviceAtomicU32, DeviceAtomicU64,
};
pub use copy::{DeviceCopy, PointerFree};
pub use dtype::{DType, DTypeId};
pub use launch::{
    GeometryError, KernelLaunchConfig, LaunchConfig, LaunchConfig1D, LaunchConfig2D, LaunchConfig3D,
};
pub use repr::DeviceRepr;
pub use storage::{f4e2m1fn, f4e2m1fnx2, f8e4m3fn, f8e5m2, f8e5m3fnu, f8e8m0fnu, i4, tf32};
