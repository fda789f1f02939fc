//! Kernels the tests launch. Images end with a NUL, as the driver wants text to.

/// Small kernels for any GPU since sm_70.
pub const BASIC: &[u8] = concat!(include_str!("../kernels/basic.ptx"), "\0").as_bytes();
/// Module-scope variables.
pub const GLOBALS: &[u8] = concat!(include_str!("../kernels/globals.ptx"), "\0").as_bytes();
/// Module-scope variables in managed memory.
pub const MANAGED: &[u8] = concat!(include_str!("../kernels/managed.ptx"), "\0").as_bytes();
/// Clusters and programmatic dependent launch (compute capability 9.0).
pub const HOPPER: &[u8] = concat!(include_str!("../kernels/hopper.ptx"), "\0").as_bytes();
/// Conditions of graphs (driver of CUDA 12.3).
pub const CONDITIONAL: &[u8] = concat!(include_str!("../kernels/conditional.ptx"), "\0").as_bytes();
/// Where blocks run.
pub const MULTIPROCESSORS: &[u8] = concat!(include_str!("../kernels/multiprocessors.ptx"), "\0").as_bytes();
