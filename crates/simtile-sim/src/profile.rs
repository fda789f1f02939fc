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
    /// Compute capability 8.0 with the published limits of an A100 (80 GB): 164 KiB of shared memory, no clusters, no
    /// multicast, no tensor maps.
    A100,
    /// Compute capability 8.9 with the published limits of an RTX 4090: 1536 threads and 100 KiB of shared memory a
    /// multiprocessor, no clusters, no multicast.
    Rtx4090,
    /// Compute capability 10.0 with the published limits of a B200.
    B200,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::H200, Self::Small, Self::A100, Self::Rtx4090, Self::B200];

    /// Names that [`Profile::by_name`] knows.
    pub const NAMES: &'static str = "h200, small, a100, rtx4090, b200";

    /// The profile of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// The name that [`Profile::by_name`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::H200 => "h200",
            Self::Small => "small",
            Self::A100 => "a100",
            Self::Rtx4090 => "rtx4090",
            Self::B200 => "b200",
        }
    }

    /// What `cuDeviceGetName` answers.
    pub fn device_name(self) -> &'static str {
        match self {
            Self::H200 => "simtile simulated H200",
            Self::Small => "simtile simulated small device",
            Self::A100 => "simtile simulated A100",
            Self::Rtx4090 => "simtile simulated RTX 4090",
            Self::B200 => "simtile simulated B200",
        }
    }

    /// The compute capability: major and minor number.
    pub fn compute_capability(self) -> (u32, u32) {
        match self {
            Self::H200 | Self::Small => (9, 0),
            Self::A100 => (8, 0),
            Self::Rtx4090 => (8, 9),
            Self::B200 => (10, 0),
        }
    }

    /// Whether its blocks can form clusters.
    pub(crate) fn has_clusters(self) -> bool {
        self.compute_capability() >= (9, 0)
    }

    /// What `cuDriverGetVersion` answers.
    pub fn driver_version(self) -> i32 {
        13000
    }

    /// Lowest and highest stream priority.
    pub(crate) fn priorities(self) -> (i32, i32) {
        match self {
            Self::Small => (0, 0),
            _ => (0, -5),
        }
    }

    pub(crate) fn traits(self) -> DeviceTraits {
        DeviceTraits {
            compute_capability: self.compute_capability(),
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
            Self::A100 => LIMITS_A100,
            Self::Rtx4090 => LIMITS_RTX4090,
            Self::B200 => LIMITS_B200,
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
            Self::A100 => look(A100).or_else(|| look(H200)),
            Self::Rtx4090 => look(RTX4090).or_else(|| look(H200)),
            Self::B200 => look(B200).or_else(|| look(H200)),
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

const LIMITS_A100: Limits = Limits {
    shared_per_block_optin: 163 << 10,
    shared_per_sm: 164 << 10,
    multiprocessors: 108,
    portable_cluster: 1,
    max_cluster: 1,
    ..LIMITS_H200
};

const LIMITS_RTX4090: Limits = Limits {
    shared_per_block_optin: 99 << 10,
    shared_per_sm: 100 << 10,
    threads_per_sm: 1536,
    blocks_per_sm: 24,
    multiprocessors: 128,
    portable_cluster: 1,
    max_cluster: 1,
    ..LIMITS_H200
};

const LIMITS_B200: Limits = Limits { multiprocessors: 148, ..LIMITS_H200 };

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

// Below: NVIDIA's tables of compute capabilities and data sheets, where the device differs from the H200. What is published
// nowhere (copy engines, the share of the second-level cache that can be set aside) is the H200's, in proportion.

/// Where an A100 differs, in order.
#[rustfmt::skip]
const A100: &[(u32, i32)] = &[
    (13, 1410000), (16, 108), (36, 1593000), (37, 5120), (38, 41943040), (75, 8), (81, 167936), (97, 166912),
    (108, 31457280), (120, 0), (126, 1), (127, 0), (132, 0), (139, 0x20b2_10de), (140, 0),
];

/// Where an RTX 4090 differs, in order.
#[rustfmt::skip]
const RTX4090: &[(u32, i32)] = &[
    (13, 2520000), (16, 128), (32, 0), (36, 10501000), (37, 384), (38, 75497472), (39, 1536), (40, 2), (75, 8), (76, 9),
    (81, 102400), (87, 64), (97, 101376), (106, 24), (108, 47185920), (120, 0), (126, 1), (127, 0), (132, 0),
    (139, 0x2684_10de), (140, 0),
];

/// Where a B200 differs, in order.
#[rustfmt::skip]
const B200: &[(u32, i32)] = &[
    (13, 1965000), (16, 148), (36, 3996000), (37, 8192), (38, 132644864), (75, 10), (108, 82903040), (139, 0x2901_10de),
    (140, 0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_say_what_launches_are_checked_against() {
        for profile in Profile::ALL {
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

    #[test]
    fn capabilities_and_what_follows_from_them() {
        for profile in Profile::ALL {
            assert_eq!(Profile::by_name(profile.name()), Some(profile));
            assert!(Profile::NAMES.split(", ").any(|name| name == profile.name()));
            let value = |number| profile.attribute(CUdevice_attribute(number)).unwrap_or(0);
            assert_eq!((value(75) as u32, value(76) as u32), profile.compute_capability(), "{profile:?}");
            // Clusters, tensor maps and multicast came with 9.0.
            for number in [120, 127, 132] {
                assert_eq!(value(number) != 0, profile.has_clusters(), "{profile:?} {number}");
            }
        }
        for table in [H200, SMALL, A100, RTX4090, B200] {
            assert!(table.is_sorted_by_key(|&(number, _)| number));
        }
    }
}
