//! What a simulated driver lacks, as older drivers and smaller devices do.
//!
//! A program sees it where it would on such a machine: in device attributes, in the version, in entries that answer
//! `CUDA_ERROR_NOT_SUPPORTED` or are not there, and in what loads.

use simtile_driver::Entry;
use simtile_driver::sys::{CUdevice_attribute, CUresult};

/// The newest version that drivers have: that of the profiles.
pub(crate) const NEWEST_DRIVER: i32 = 13000;
/// The oldest one that can be asked for.
pub(crate) const OLDEST_DRIVER: i32 = 12000;

/// Parts of CUDA that a device may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lacks {
    /// Stream-ordered memory.
    pub pools: bool,
    /// Virtual memory management, multicast included.
    pub vmm: bool,
    /// Clusters of blocks.
    pub clusters: bool,
    /// Managed memory for host and device at the same time. What a program does against that is not found.
    pub concurrent: bool,
}

impl Lacks {
    /// Names of the parts in text.
    pub const NAMES: &'static str = "pools, vmm, clusters, concurrent, joined by +";

    /// Nothing.
    pub const NOTHING: Self = Self { pools: false, vmm: false, clusters: false, concurrent: false };

    /// The parts of these names, joined by `+`.
    pub fn by_names(names: &str) -> Option<Self> {
        let mut lacks = Self::default();
        for name in names.split('+').map(str::trim) {
            match name {
                "pools" => lacks.pools = true,
                "vmm" => lacks.vmm = true,
                "clusters" => lacks.clusters = true,
                "concurrent" => lacks.concurrent = true,
                _ => return None,
            }
        }
        Some(lacks)
    }

    /// The names, as [`Lacks::by_names`] takes them; empty for nothing.
    pub fn names(self) -> String {
        let all = [
            (self.pools, "pools"),
            (self.vmm, "vmm"),
            (self.clusters, "clusters"),
            (self.concurrent, "concurrent"),
        ];
        all.iter().filter(|(lacks, _)| *lacks).map(|(_, name)| *name).collect::<Vec<_>>().join("+")
    }

    /// What an entry answers that is lacking; `None` if it is there.
    fn answer(self, entry: Entry, version: i32) -> Option<CUresult> {
        if entry.since() > version {
            return Some(CUresult::SIMTILE_MISSING_ENTRY);
        }
        let lacking =
            self.pools && of_pools(entry) || self.vmm && of_vmm(entry) || self.clusters && of_clusters(entry);
        lacking.then_some(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    /// The answers of all entries by number; `None` if nothing is lacking.
    pub(crate) fn answers(self, version: i32) -> Option<Box<[Option<CUresult>]>> {
        if self == Self::NOTHING && version >= NEWEST_DRIVER {
            return None;
        }
        Some(Entry::ALL.iter().map(|&entry| self.answer(entry, version)).collect())
    }

    /// The value of a device attribute where something is lacking.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an attribute that a driver of this version does not know.
    pub(crate) fn attribute(
        self,
        attribute: CUdevice_attribute,
        version: i32,
    ) -> Result<Option<i32>, CUresult> {
        // Driver 12.0 ends after the unified function pointers.
        if version < 12010
            && attribute.0 > CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS.0
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let lacking = match attribute {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
            | CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => self.pools,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED => self.vmm,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => self.clusters,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => self.concurrent,
            _ => false,
        };
        Ok(lacking.then_some(0))
    }

    /// The newest PTX that a driver of this version takes.
    pub(crate) const fn newest_ptx(version: i32) -> (u32, u32) {
        match version {
            // CUDA 12.n brought PTX 8.n, but that 12.6 to 12.9 have 8.5 to 8.8.
            ..12010 => (8, 0),
            12010..12020 => (8, 1),
            12020..12030 => (8, 2),
            12030..12040 => (8, 3),
            12040..12050 => (8, 4),
            12050..12070 => (8, 5),
            12070..12080 => (8, 6),
            12080..12090 => (8, 7),
            12090..13000 => (8, 8),
            _ => (9, 0),
        }
    }
}

fn of_pools(entry: Entry) -> bool {
    entry.name().starts_with("cuMemPool")
        || matches!(
            entry,
            Entry::cuMemAllocAsync
                | Entry::cuMemFreeAsync
                | Entry::cuMemAllocFromPoolAsync
                | Entry::cuDeviceGetDefaultMemPool
                | Entry::cuDeviceGetMemPool
                | Entry::cuDeviceSetMemPool
                | Entry::cuGraphAddMemAllocNode
                | Entry::cuGraphAddMemFreeNode
        )
}

fn of_vmm(entry: Entry) -> bool {
    entry.name().starts_with("cuMulticast")
        || matches!(
            entry,
            Entry::cuMemAddressReserve
                | Entry::cuMemAddressFree
                | Entry::cuMemCreate
                | Entry::cuMemRelease
                | Entry::cuMemMap
                | Entry::cuMemUnmap
                | Entry::cuMemSetAccess
                | Entry::cuMemGetAccess
                | Entry::cuMemRetainAllocationHandle
                | Entry::cuMemGetAllocationGranularity
                | Entry::cuMemGetAllocationPropertiesFromHandle
                | Entry::cuMemExportToShareableHandle
                | Entry::cuMemImportFromShareableHandle
        )
}

fn of_clusters(entry: Entry) -> bool {
    matches!(entry, Entry::cuOccupancyMaxPotentialClusterSize | Entry::cuOccupancyMaxActiveClusters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_there_and_back() {
        for text in ["pools", "vmm+clusters", "pools+vmm+clusters"] {
            assert_eq!(Lacks::by_names(text).map(Lacks::names).as_deref(), Some(text));
        }
        assert_eq!(Lacks::by_names("legs"), None);
        assert_eq!(Lacks::NOTHING.names(), "");
    }

    #[test]
    fn entries_are_absent_or_unsupported() {
        assert!(Lacks::NOTHING.answers(NEWEST_DRIVER).is_none());
        let old = Lacks::NOTHING.answers(OLDEST_DRIVER).unwrap();
        assert_eq!(old[Entry::cuGreenCtxCreate as usize], Some(CUresult::SIMTILE_MISSING_ENTRY));
        assert_eq!(old[Entry::cuLaunchKernelEx as usize], None);
        let poor = Lacks { pools: true, ..Lacks::NOTHING }.answers(NEWEST_DRIVER).unwrap();
        assert_eq!(poor[Entry::cuMemAllocAsync as usize], Some(CUresult::CUDA_ERROR_NOT_SUPPORTED));
        assert_eq!(poor[Entry::cuMemAlloc as usize], None);
    }
}
