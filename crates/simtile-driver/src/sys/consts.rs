//! `#define`s of `cuda.h` that callers pass or compare with.

use super::CUdevice;
use core::ffi::c_uint;

/// The API level that the types of this crate describe.
pub const CUDA_VERSION: i32 = 13000;
pub const CU_IPC_HANDLE_SIZE: usize = 64;
pub const CU_MEMHOSTALLOC_PORTABLE: c_uint = 0x01;
pub const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 0x02;
pub const CU_MEMHOSTALLOC_WRITECOMBINED: c_uint = 0x04;
pub const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 0x01;
pub const CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 0x02;
pub const CU_MEMHOSTREGISTER_IOMEMORY: c_uint = 0x04;
pub const CU_MEMHOSTREGISTER_READ_ONLY: c_uint = 0x08;
pub const CU_MEM_CREATE_USAGE_TILE_POOL: u16 = 0x1;
pub const CU_GRAPH_COND_ASSIGN_DEFAULT: c_uint = 0x1;
pub const CU_GRAPH_KERNEL_NODE_PORT_DEFAULT: u8 = 0;
pub const CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: u8 = 1;
pub const CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER: u8 = 2;
pub const CU_DEVICE_CPU: CUdevice = -1;
pub const CU_DEVICE_INVALID: CUdevice = -2;
