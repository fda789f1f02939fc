//! What a simulated device looks like: attributes and limits.

use crate::exec::DeviceTraits;
use simtile_driver::sys::CUdevice_attribute;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// Compute capability 9.0 with the limits of an H200 and a driver of CUDA 13.0.
    H200,
    /// The same with limits near the smallest that CUDA devices have had: blocks of 512 threads, 16 KiB of shared memory
    /// with nothing to opt in for, two multiprocessors, grids of 65 535 blocks, one priority, no clusters beyond 2 blocks.
    Small,
}

impl Profile {
    /// Names that [`Profile::by_name`] knows.
    pub const NAMES: &'static str = "h200, small";

    /// The profile of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "h200" => Some(Self::H200),
            "small" => Some(Self::Small),
            _ => None,
        }
    }

    /// The name that [`Profile::by_name`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::H200 => "h200",
            Self::Small => "small",
        }
    }

    /// What `cuDeviceGetName` answers.
    pub fn device_name(self) -> &'static str {
        match self {
            Self::H200 => "simtile simulated H200",
            Self::Small => "simtile simulated small device",
        }
    }

    /// What `cuDriverGetVersion` answers.
    pub fn driver_version(self) -> i32 {
        13000
    }

    /// Lowest and highest stream priority.
    pub(crate) fn priorities(self) -> (i32, i32) {
        match self {
            Self::H200 => (0, -5),
            Self::Small => (0, 0),
        }
    }

    pub(crate) fn traits(self) -> DeviceTraits {
        DeviceTraits {
            compute_capability: (9, 0),
            multiprocessors: self.limits().multiprocessors,
            warp_size: 32,
            newest_ptx: (9, 0),
        }
    }

    /// Limits that launches are checked against.
    pub(crate) fn limits(self) -> Limits {
        match self {
            Self::H200 => LIMITS_H200,
            Self::Small => LIMITS_SMALL,
        }
    }

    /// The value of a device attribute that is the same for all devices of this profile.
    pub(crate) fn attribute(self, attribute: CUdevice_attribute) -> Option<i32> {
        let look = |table: &[(u32, i32)]| {
            table.binary_search_by_key(&attribute.0, |&(id, _)| id).ok().map(|at| table[at].1)
        };
        match self {
            Self::H200 => look(H200),
            Self::Small => look(SMALL).or_else(|| look(H200)),
        }
    }
}

const LIMITS_H200: Limits = Limits {
    threads_per_block: 1024,
    block: [1024, 1024, 64],
    grid: [i32::MAX as u32, 65535, 65535],
    shared_per_block: 48 << 10,
    shared_per_block_optin: 227 << 10,
    shared_per_sm: 228 << 10,
    reserved_shared_per_block: 1 << 10,
    registers_per_sm: 65536,
    registers_per_thread: 255,
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    multiprocessors: 132,
    portable_cluster: 8,
    max_cluster: 16,
    warp: 32,
};

const LIMITS_SMALL: Limits = Limits {
    threads_per_block: 512,
    block: [512, 512, 64],
    grid: [65535, 65535, 65535],
    shared_per_block: 16 << 10,
    shared_per_block_optin: 16 << 10,
    shared_per_sm: 17 << 10,
    registers_per_sm: 32768,
    threads_per_sm: 1024,
    blocks_per_sm: 8,
    multiprocessors: 2,
    portable_cluster: 2,
    max_cluster: 2,
    ..LIMITS_H200
};

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
    pub(crate) registers_per_sm: u32,
    pub(crate) registers_per_thread: u32,
    pub(crate) threads_per_sm: u32,
    pub(crate) blocks_per_sm: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) portable_cluster: u32,
    pub(crate) max_cluster: u32,
    pub(crate) warp: u32,
}

/// Attribute number and value, in order, where the value is not 0. PCI numbers depend on the device and are
/// not here. Read from an H200 with driver 580.159 (CUDA 13.0); what is not built (RDMA, sparse and deferred arrays,
/// timeline semaphores, DMA-BUF, IPC events, handles of memory for other processes) is 0. Multicast (132) is built;
/// the machine that was read has no NVSwitch.
#[rustfmt::skip]
const H200: &[(u32, i32)] = &[
    (1, 1024), (2, 1024), (3, 1024), (4, 64), (5, 2147483647), (6, 65535),
    (7, 65535), (8, 49152), (9, 65536), (10, 32), (11, 2147483647), (12, 65536),
    (13, 1980000), (14, 512), (15, 1), (16, 132), (19, 1), (21, 131072),
    (22, 131072), (23, 65536), (24, 16384), (25, 16384), (26, 16384), (27, 32768),
    (28, 32768), (29, 2048), (30, 512), (31, 1), (32, 1), (36, 3201000),
    (37, 6016), (38, 62914560), (39, 2048), (40, 3), (41, 1), (42, 32768),
    (43, 2048), (44, 1), (45, 32768), (46, 32768), (47, 8192), (48, 8192),
    (49, 32768), (51, 32), (52, 32768), (53, 32768), (54, 2046), (55, 32768),
    (56, 131072), (57, 65536), (58, 16384), (59, 16384), (60, 16384), (61, 32768),
    (62, 2048), (63, 32768), (64, 32768), (65, 2048), (66, 32768), (67, 32768),
    (68, 2046), (69, 268435456), (70, 131072), (71, 65000), (72, 2097120), (73, 32768),
    (74, 32768), (75, 9), (77, 32768), (78, 1), (79, 1), (80, 1),
    (81, 233472), (82, 65536), (83, 1), (87, 2), (89, 1), (90, 1),
    (91, 1), (95, 1), (96, 1), (97, 232448), (99, 1), (102, 1),
    (106, 32), (107, 1), (108, 39321600), (109, 134217728), 
    (111, 1024), (113, 1), (115, 1), 
    (120, 1), (122, 1),
    (123, 1), (126, 4), (127, 1), 
    (129, 1), (131, -1), (132, 1), (139, 590680286), (140, 415174878), (141, 1), (142, 1),
    (144, 1), (145, 1),
];

/// Where the small device differs, in order.
#[rustfmt::skip]
const SMALL: &[(u32, i32)] = &[
    (1, 512), (2, 512), (3, 512), (5, 65535), (8, 16384), (12, 32768), (16, 2), (39, 1024),
    (78, 0), (81, 17408), (82, 32768), (97, 16384), (106, 8),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_say_what_launches_are_checked_against() {
        for profile in [Profile::H200, Profile::Small] {
            let limits = profile.limits();
            for (number, limit) in [
                (1, limits.threads_per_block),
                (2, limits.block[0]),
                (3, limits.block[1]),
                (4, limits.block[2]),
                (5, limits.grid[0]),
                (6, limits.grid[1]),
                (7, limits.grid[2]),
                (8, limits.shared_per_block),
                (10, limits.warp),
                (12, limits.registers_per_sm),
                (16, limits.multiprocessors),
                (39, limits.threads_per_sm),
                (81, limits.shared_per_sm),
                (82, limits.registers_per_sm),
                (97, limits.shared_per_block_optin),
                (106, limits.blocks_per_sm),
                (111, limits.reserved_shared_per_block),
            ] {
                assert_eq!(
                    profile.attribute(CUdevice_attribute(number)),
                    Some(limit as i32),
                    "{profile:?} {number}"
                );
            }
        }
    }
}
