//! One mapping of the address space.

use super::{Backing, Nearby};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What kind of memory a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Device memory from `cuMemAlloc`.
    Device,
    /// Device memory from a pool, stream-ordered.
    Pool,
    /// A `.global` or `.const` variable of a module.
    ModuleGlobal,
    /// Page-locked host memory.
    Pinned,
    /// Managed memory.
    Managed,
    /// A VMM mapping.
    Virtual,
    /// Memory that the driver keeps for itself, such as the workspace of cooperative grids.
    Internal,
}

/// A mapped range of addresses.
pub struct Allocation {
    /// Never reused within a simulated driver.
    pub id: u64,
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What kind of memory it is.
    pub kind: MemoryKind,
    /// Ordinal of the device it belongs to.
    pub device: i32,
    pub(super) backing: Arc<Backing>,
    /// Where in the backing the first byte lies (VMM mappings).
    pub(super) backing_offset: u64,
    live: AtomicBool,
    label: Mutex<Option<String>>,
}

impl Allocation {
    pub(super) fn new(
        id: u64,
        base: u64,
        bytes: u64,
        kind: MemoryKind,
        device: i32,
        backing: Arc<Backing>,
        backing_offset: u64,
    ) -> Self {
        let (live, label) = (AtomicBool::new(true), Mutex::new(None));
        Self { id, base, bytes, kind, device, backing, backing_offset, live, label }
    }

    /// The bytes, and the offset of this mapping's first byte in them.
    pub fn backing(&self) -> (&Arc<Backing>, u64) {
        (&self.backing, self.backing_offset)
    }

    /// Whether it is still mapped.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.live.store(false, Ordering::Release);
    }

    /// Names it in reports.
    pub fn set_label(&self, label: &str) {
        *self.label.lock() = Some(label.to_owned());
    }

    /// Its name in reports.
    pub fn label(&self) -> Option<String> {
        self.label.lock().clone()
    }

    /// For fault messages.
    pub fn nearby(&self) -> Nearby {
        Nearby { base: self.base, bytes: self.bytes, label: self.label() }
    }

    /// Offset in the backing of an address inside this mapping, if `bytes` from there fit.
    #[inline]
    pub fn offset_of(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset <= self.bytes && bytes <= self.bytes - offset).then_some(self.backing_offset + offset)
    }
}
