//! What can be wrong with one access.

use std::fmt;

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// No allocation contains the address.
    Unmapped,
    /// The access starts inside an allocation and ends outside.
    OutOfBounds,
    /// The allocation was freed.
    Freed,
    /// The address is not a multiple of what the access needs.
    Misaligned,
    /// The memory belongs to another device and peer access was not enabled.
    NoPeerAccess,
    /// The mapping does not allow this access.
    ReadOnly,
    /// A mapping that the device was given no access to.
    NoAccess,
    /// Host memory that the device cannot reach.
    NotDeviceAccessible,
}

/// The allocation that a bad access hit or missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearby {
    /// First byte of the allocation.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its label, if it has one.
    pub label: Option<String>,
}

/// A refused access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFault {
    /// Why.
    pub kind: FaultKind,
    /// First byte of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub bytes: u64,
    /// The nearest allocation at or below the address, if there is one.
    pub near: Option<Nearby>,
}

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::Unmapped => "access to unmapped memory",
            FaultKind::OutOfBounds => "access out of bounds",
            FaultKind::Freed => "use after free",
            FaultKind::Misaligned => "misaligned access",
            FaultKind::NoPeerAccess => "access to another device's memory without peer access",
            FaultKind::ReadOnly => "write to a read-only mapping",
            FaultKind::NoAccess => "access to a mapping that the device was given no access to",
            FaultKind::NotDeviceAccessible => "access to host memory that the device cannot reach",
        };
        write!(f, "{what}: {} bytes at {:#x}", self.bytes, self.address)?;
        if let Some(near) = &self.near {
            let label = near.label.as_deref().unwrap_or("unlabelled");
            if self.address >= near.base {
                write!(
                    f,
                    ", {} bytes into the allocation '{label}' of {} bytes at {:#x}",
                    self.address - near.base,
                    near.bytes,
                    near.base
                )?;
            } else {
                write!(f, " (next allocation: '{label}' at {:#x})", near.base)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for MemoryFault {}
