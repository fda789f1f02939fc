//! The C structs of DLPack 1.1, by their public specification (<https://dmlc.github.io/dlpack/latest/c_api.html>).
//!
//! Numbers that a later version may extend (device types, type codes) are plain integers, so that a value nobody knows
//! yet is data and not undefined behaviour. Layouts are cross-checked with the `dlpark` crate in the tests.

use core::ffi::c_void;

/// The version that this module speaks.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// `DLPackVersion`. A consumer refuses another `major` and takes any `minor`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by the specification")]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

/// `DLDeviceType`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDeviceType(pub i32);

#[allow(non_upper_case_globals, reason = "named by the specification")]
impl DLDeviceType {
    /// Pageable memory.
    pub const kDLCPU: Self = Self(1);
    /// Memory of a CUDA device.
    pub const kDLCUDA: Self = Self(2);
    /// Pinned memory.
    pub const kDLCUDAHost: Self = Self(3);
    /// Managed memory.
    pub const kDLCUDAManaged: Self = Self(13);
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// What kind of memory.
    pub device_type: DLDeviceType,
    /// Ordinal of the device; 0 for host memory.
    pub device_id: i32,
}

/// `DLDataTypeCode`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataTypeCode(pub u8);

#[allow(non_upper_case_globals, missing_docs, reason = "named by the specification")]
impl DLDataTypeCode {
    pub const kDLInt: Self = Self(0);
    pub const kDLUInt: Self = Self(1);
    pub const kDLFloat: Self = Self(2);
    pub const kDLOpaqueHandle: Self = Self(3);
    pub const kDLBfloat: Self = Self(4);
    pub const kDLComplex: Self = Self(5);
    pub const kDLBool: Self = Self(6);
    pub const kDLFloat8_e4m3fn: Self = Self(10);
    pub const kDLFloat8_e5m2: Self = Self(12);
    pub const kDLFloat8_e8m0fnu: Self = Self(14);
    pub const kDLFloat4_e2m1fn: Self = Self(17);
}

/// `DLDataType`: `lanes` values of `bits` bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by the specification")]
pub struct DLDataType {
    pub code: DLDataTypeCode,
    pub bits: u8,
    pub lanes: u16,
}

/// `DLTensor`. `shape` and `strides` have `ndim` entries; strides count elements, and a null `strides` means compact row-major.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named by the specification")]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// `DLManagedTensor`: what producers of versions before 1.0 hand out.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "named by the specification")]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "named by the specification")]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

/// The consumer must not write.
pub const DLPACK_FLAG_BITMASK_READ_ONLY: u64 = 1 << 0;
/// The producer made a copy for this exchange.
pub const DLPACK_FLAG_BITMASK_IS_COPIED: u64 = 1 << 1;
/// Elements of fewer than 8 bits take a byte each.
pub const DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED: u64 = 1 << 2;
