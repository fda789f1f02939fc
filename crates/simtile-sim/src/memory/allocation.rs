//! One mapping of the address space.

use super::{Backing, Charge, Multicast, Nearby, Physical};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

impl MemoryKind {
    /// Whether the host reaches it by the same address.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Managed)
    }
}

/// Who may touch managed memory where host and devices cannot share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Every stream; the host only while no kernel is under way.
    Global,
    /// The host alone.
    Host,
    /// The stream of this number; the host while that has no work.
    Stream(u64),
}

/// Most devices of one simulated driver.
pub const MOST_DEVICES: i32 = 64;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Loads only.
    Read,
    /// May store.
    Write,
}

/// Which devices may read and write a mapping: VMM mappings and pools have such rights of their own.
#[derive(Debug, Default)]
pub struct Rights {
    /// Two bits a device: 1 read, 3 read and write.
    bits: [AtomicU64; 2],
}

impl Rights {
    /// Nobody may do anything.
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    fn place(&self, device: i32) -> Option<(&AtomicU64, u32)> {
        let device = u32::try_from(device).ok()?;
        Some((self.bits.get(device as usize / 32)?, device % 32 * 2))
    }

    /// Sets what a device may do: 0 nothing, 1 read, 3 read and write. False if there can be no such device.
    pub fn set(&self, device: i32, flags: u32) -> bool {
        let Some((word, shift)) = self.place(device) else { return false };
        word.fetch_and(!(3 << shift), Ordering::Relaxed);
        word.fetch_or(u64::from(flags & 3) << shift, Ordering::Relaxed);
        true
    }

    /// What a device may do, as in [`Rights::set`].
    pub fn get(&self, device: i32) -> u32 {
        self.place(device).map_or(0, |(word, shift)| (word.load(Ordering::Relaxed) >> shift & 3) as u32)
    }

    /// Whether a device may do this.
    pub fn allow(&self, device: i32, access: Access) -> bool {
        match access {
            Access::Read => self.get(device) & 1 != 0,
            Access::Write => self.get(device) == 3,
        }
    }
}

/// Where an allocation came from, as far as the driver API shows it again.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Handle of the context it was made in, 0 if it belongs to none.
    pub context: usize,
    /// Never-reused number of that context.
    pub context_uid: u64,
    /// Handle of the pool it came from.
    pub pool: usize,
    /// Flags of the call that made it.
    pub flags: u32,
    /// User memory that was registered, not allocated.
    pub registered: bool,
    /// A variable of a module or library: it goes with that, and no call frees it.
    pub variable: bool,
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
    /// Where it came from.
    pub origin: Origin,
    pub(super) backing: Arc<Backing>,
    /// Where in the backing the first byte lies (VMM mappings).
    pub(super) backing_offset: u64,
    /// Rights of its own; without them the rules of peer access hold.
    pub(super) rights: Option<Arc<Rights>>,
    /// The physical memory it keeps alive.
    pub(super) physical: Option<Arc<Physical>>,
    /// The multicast object it shows.
    pub(crate) multicast: Option<Arc<Multicast>>,
    live: AtomicBool,
    sync_memops: AtomicBool,
    /// 0: as allocated, 1: global, 2: host, else a stream's number and 3.
    attachment: AtomicU64,
    charge: Mutex<Option<Charge>>,
    label: Mutex<Option<String>>,
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocation")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("base", &format_args!("{:#x}", self.base))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// What [`Allocation::new`] needs.
pub(super) struct Parts {
    pub id: u64,
    pub base: u64,
    pub bytes: u64,
    pub kind: MemoryKind,
    pub device: i32,
    pub origin: Origin,
    pub backing: Arc<Backing>,
    pub backing_offset: u64,
    pub rights: Option<Arc<Rights>>,
    pub physical: Option<Arc<Physical>>,
    pub multicast: Option<Arc<Multicast>>,
    pub charge: Option<Charge>,
}

impl Allocation {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { id, base, bytes, kind, device, origin, backing, backing_offset, .. } = parts;
        Self {
            id,
            base,
            bytes,
            kind,
            device,
            origin,
            backing,
            backing_offset,
            rights: parts.rights,
            physical: parts.physical,
            multicast: parts.multicast,
            live: AtomicBool::new(true),
            // Managed memory always synchronises, as the real driver says of it.
            sync_memops: AtomicBool::new(kind == MemoryKind::Managed),
            attachment: AtomicU64::new(0),
            charge: Mutex::new(parts.charge),
            label: Mutex::new(None),
        }
    }

    /// The bytes, and the offset of this mapping's first byte in them. A multicast mapping has none of its own;
    /// see [`Allocation::replicas`].
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
        *self.charge.lock() = None;
    }

    /// Names it in reports.
    pub fn set_label(&self, label: &str) {
        *self.label.lock() = Some(label.to_owned());
    }

    /// Its name in reports.
    pub fn label(&self) -> Option<String> {
        self.label.lock().clone()
    }

    /// Rights of its own, if it has some.
    pub fn rights(&self) -> Option<&Arc<Rights>> {
        self.rights.as_ref()
    }

    /// The physical memory behind a VMM mapping.
    pub fn physical(&self) -> Option<&Arc<Physical>> {
        self.physical.as_ref()
    }

    /// Whether asynchronous calls on it synchronise (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    pub fn sync_memops(&self) -> bool {
        self.sync_memops.load(Ordering::Relaxed)
    }

    /// Sets [`Allocation::sync_memops`].
    pub fn set_sync_memops(&self, on: bool) {
        self.sync_memops.store(on, Ordering::Relaxed);
    }

    /// Whom managed memory was attached to; none if it never was.
    pub fn attachment(&self) -> Option<Attachment> {
        match self.attachment.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Attachment::Global),
            2 => Some(Attachment::Host),
            stream => Some(Attachment::Stream(stream - 3)),
        }
    }

    /// Attaches managed memory.
    pub fn attach(&self, to: Attachment) {
        let value = match to {
            Attachment::Global => 1,
            Attachment::Host => 2,
            Attachment::Stream(stream) => stream.saturating_add(3),
        };
        self.attachment.store(value, Ordering::Relaxed);
    }

    /// For fault messages.
    pub fn nearby(&self) -> Nearby {
        Nearby { base: self.base, bytes: self.bytes, label: self.label() }
    }

    /// Address after the last byte.
    pub fn end_address(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }

    /// Offset in the backing of an address inside this mapping, if `bytes` from there fit.
    #[inline]
    pub fn offset_of(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset <= self.bytes && bytes <= self.bytes - offset).then(|| self.backing_offset + offset)
    }

    /// The memories behind a range of a multicast mapping: for each, its device, its bytes and the offset there.
    /// Empty if this is no multicast mapping or not all of the range is bound on some device.
    pub fn replicas(&self, address: u64, bytes: u64) -> Vec<(i32, Arc<Backing>, u64)> {
        match (&self.multicast, self.offset_of(address, bytes)) {
            (Some(multicast), Some(offset)) => multicast.replicas(offset, bytes),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_per_device() {
        let rights = Rights::none();
        assert!(rights.set(0, 3) && rights.set(40, 1));
        assert!(rights.allow(0, Access::Write) && rights.allow(40, Access::Read));
        assert!(!rights.allow(40, Access::Write) && !rights.allow(1, Access::Read));
        assert!(rights.set(0, 0) && !rights.allow(0, Access::Read));
        assert!(!rights.set(MOST_DEVICES, 3) && !rights.set(-1, 3));
        assert_eq!(rights.get(-1), 0);
    }
}
