//! What a simulated device looks like: attributes and limits.

use crate::exec::DeviceTraits;
use simtile_driver::sys::CUdevice_attribute;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// Compute capability 9.0 with the limits of an H200 and a driver of CUDA 13.0.
    H200,
}

impl Profile {
    /// Names that [`Profile::by_name`] knows.
    pub const NAMES: &'static str = "h200";

    /// The profile of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "h200" => Some(Self::H200),
            _ => None,
        }
    }

    /// What `cuDeviceGetName` answers.
    pub fn device_name(self) -> &'static str {
        "simtile simulated H200"
    }

    /// What `cuDriverGetVersion` answers.
    pub fn driver_version(self) -> i32 {
        13000
    }

    /// Lowest and highest stream priority.
    pub(crate) fn priorities(self) -> (i32, i32) {
        (0, -5)
    }

    pub(crate) fn traits(self) -> DeviceTraits {
        DeviceTraits { compute_capability: (9, 0), multiprocessors: 132, warp_size: 32 }
    }

    /// Limits that launches are checked against.
    pub(crate) fn limits(self) -> Limits {
        Limits {
            threads_per_block: 1024,
            block: [1024, 1024, 64],
            grid: [i32::MAX as u32, 65535, 65535],
            shared_per_block: 48 << 10,
            shared_per_block_optin: 227 << 10,
            shared_per_sm: 228 << 10,
            reserved_shared_per_block: 1 << 10,
            registers_per_block: 65536,
            registers_per_sm: 65536,
            registers_per_thread: 255,
            threads_per_sm: 2048,
            blocks_per_sm: 32,
            multiprocessors: 132,
            portable_cluster: 8,
            max_cluster: 16,
            warp: 32,
        }
    }

    /// The value of a device attribute that is the same for all devices of this profile.
    pub(crate) fn attribute(self, attribute: CUdevice_attribute) -> Option<i32> {
        // Values read from an H200 with driver 580 (CUDA 13.0).
        H200.binary_search_by_key(&attribute.0, |&(id, _)| id).ok().map(|at| H200[at].1)
    }
}

/// Limits of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) threads_per_block: u32,
    pub(crate) block: [u32; 3],
    pub(crate) grid: [u32; 3],
    pub(crate) shared_per_block: u32,
    pub(crate) shared_per_block_optin: u32,
    pub(crate) shared_per_sm: u32,
    pub(crate) reserved_shared_per_block: u32,
    pub(crate) registers_per_block: u32,
    pub(crate) registers_per_sm: u32,
    pub(crate) registers_per_thread: u32,
    pub(crate) threads_per_sm: u32,
    pub(crate) blocks_per_sm: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) portable_cluster: u32,
    pub(crate) max_cluster: u32,
    pub(crate) warp: u32,
}

/// Attribute number and value, in order. PCI numbers depend on the device and are not here.
const H200: &[(u32, i32)] = &[
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65535),
    (7, 65535),
    (8, 49152),
    (9, 65536),
    (10, 32),
    (11, i32::MAX),
    (12, 65536),
    (13, 1_980_000),
    (14, 512),
    (15, 1),
    (16, 132),
    (17, 0),
    (18, 0),
    (19, 1),
    (20, 0),
    (30, 512),
    (31, 1),
    (32, 1),
    (35, 0),
    (36, 3_201_000),
    (37, 6144),
    (38, 62_914_560),
    (39, 2048),
    (40, 3),
    (41, 1),
    (51, 32),
    (75, 9),
    (76, 0),
    (78, 1),
    (79, 1),
    (80, 1),
    (81, 233_472),
    (82, 65536),
    (83, 1),
    (84, 0),
    (85, 0),
    (86, 0),
    (87, 2),
    (88, 0),
    (89, 1),
    (90, 1),
    (91, 1),
    (92, 1),
    (93, 1),
    (94, 1),
    (95, 1),
    (96, 1),
    (97, 232_448),
    (98, 0),
    (99, 1),
    (100, 0),
    (101, 0),
    (102, 1),
    (103, 1),
    (104, 0),
    (105, 0),
    (106, 32),
    (107, 1),
    (111, 1024),
    (115, 1),
    (120, 1),
    (122, 1),
    (123, 1),
    (125, 1),
    (126, 4),
];
