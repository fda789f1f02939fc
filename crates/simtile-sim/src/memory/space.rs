//! The map from addresses to allocations.

use super::{Allocation, Backing, FaultKind, MemoryFault, MemoryKind};
use crate::check::{AccessLog, Touch, TouchMap};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Device addresses start here: above every user-space address of x86-64 and aarch64 with 48-bit
/// virtual addresses, so no host mapping can have one.
const DEVICE_BASE: u64 = 1 << 48;
/// Room for each device.
const DEVICE_ROOM: u64 = 1 << 44;
/// Alignment of device allocations and least gap between two of them.
const GRANULE: u64 = 512;

/// Everything a simulated driver maps.
pub struct AddressSpace {
    map: RwLock<Map>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct Map {
    /// Live allocations by first address.
    live: BTreeMap<u64, Arc<Allocation>>,
    /// Freed allocations whose addresses were not reused, for messages.
    freed: BTreeMap<u64, Arc<Allocation>>,
    /// Next free address of each device.
    next: BTreeMap<i32, u64>,
    /// (accessing device, owning device) pairs that may reach each other's memory.
    peers: HashSet<(i32, i32)>,
}

impl Default for AddressSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl AddressSpace {
    /// An empty space.
    pub fn new() -> Self {
        Self { map: RwLock::default(), next_id: AtomicU64::new(1) }
    }

    /// Maps new memory. Pinned and managed memory gets its host address, the rest a made-up one.
    /// `None` if the host is out of memory.
    pub fn allocate(&self, kind: MemoryKind, device: i32, bytes: u64) -> Option<Arc<Allocation>> {
        let backing = Arc::new(Backing::new(bytes)?);
        let base = match kind {
            MemoryKind::Pinned | MemoryKind::Managed => backing.as_ptr().addr() as u64,
            _ => self.reserve(device, bytes)?,
        };
        Some(self.map_backing(kind, device, base, bytes, backing, 0))
    }

    /// A fresh range of a device's addresses with a gap after it.
    pub fn reserve(&self, device: i32, bytes: u64) -> Option<u64> {
        let room = bytes.checked_next_multiple_of(GRANULE)?.checked_add(GRANULE)?;
        let mut map = self.map.write();
        let first = DEVICE_BASE + DEVICE_ROOM * u64::try_from(device).ok()?;
        let next = map.next.entry(device).or_insert(first);
        let base = *next;
        *next = base.checked_add(room)?;
        Some(base)
    }

    /// Maps part of an existing backing at an address.
    pub fn map_backing(
        &self,
        kind: MemoryKind,
        device: i32,
        base: u64,
        bytes: u64,
        backing: Arc<Backing>,
        backing_offset: u64,
    ) -> Arc<Allocation> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let allocation = Arc::new(Allocation::new(id, base, bytes, kind, device, backing, backing_offset));
        let mut map = self.map.write();
        map.freed.remove(&base);
        map.live.insert(base, allocation.clone());
        allocation
    }

    /// Unmaps the allocation that starts at `base`.
    ///
    /// # Errors
    /// A fault that says what is there instead.
    pub fn release(&self, base: u64) -> Result<Arc<Allocation>, MemoryFault> {
        let mut map = self.map.write();
        match map.live.remove(&base) {
            Some(allocation) => {
                allocation.end();
                map.freed.insert(base, allocation.clone());
                Ok(allocation)
            }
            None => Err(map.fault(base, 0)),
        }
    }

    /// The live allocation that contains `bytes` bytes from `address`.
    ///
    /// # Errors
    /// Unmapped, out of bounds or freed, with the nearest allocation.
    pub fn locate(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryFault> {
        let map = self.map.read();
        match map.live.range(..=address).next_back() {
            Some((_, allocation)) if allocation.offset_of(address, bytes).is_some() => Ok(allocation.clone()),
            _ => Err(map.fault(address, bytes)),
        }
    }

    /// Lets `from` reach memory of `owner`, or no longer.
    pub fn set_peer_access(&self, from: i32, owner: i32, allowed: bool) {
        let mut map = self.map.write();
        if allowed {
            map.peers.insert((from, owner));
        } else {
            map.peers.remove(&(from, owner));
        }
    }

    fn may_reach(&self, device: i32, allocation: &Allocation) -> bool {
        allocation.device == device
            || matches!(allocation.kind, MemoryKind::Pinned | MemoryKind::Managed)
            || self.map.read().peers.contains(&(device, allocation.device))
    }
}

impl Map {
    fn fault(&self, address: u64, bytes: u64) -> MemoryFault {
        let below = self.live.range(..=address).next_back().map(|(_, a)| a);
        let kind =
            |a: &Allocation, inside| if a.bytes > address - a.base { inside } else { FaultKind::Unmapped };
        let freed = self.freed.range(..=address).next_back().map(|(_, a)| a);
        if let Some(freed) = freed.filter(|a| address - a.base < a.bytes.max(1)) {
            return MemoryFault { kind: FaultKind::Freed, address, bytes, near: Some(freed.nearby()) };
        }
        match below {
            Some(a) => {
                MemoryFault { kind: kind(a, FaultKind::OutOfBounds), address, bytes, near: Some(a.nearby()) }
            }
            None => MemoryFault { kind: FaultKind::Unmapped, address, bytes, near: None },
        }
    }
}

/// The memory as one device sees it.
#[derive(Clone, Copy)]
pub struct DeviceView<'a> {
    /// The space.
    pub space: &'a AddressSpace,
    /// Ordinal of the accessing device.
    pub device: i32,
    /// Where the accesses of the running submission are noted, if the checker wants them.
    pub log: Option<&'a AccessLog>,
}

impl<'a> DeviceView<'a> {
    /// The memory as `device` sees it, accesses not logged.
    pub fn new(space: &'a AddressSpace, device: i32) -> Self {
        Self { space, device, log: None }
    }

    /// The same, with accesses logged.
    pub fn logged(self, log: &'a AccessLog) -> Self {
        Self { log: Some(log), ..self }
    }

    /// The allocation behind an access, if the device may reach it.
    ///
    /// # Errors
    /// As [`AddressSpace::locate`], or no peer access.
    pub fn locate(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryFault> {
        let allocation = self.space.locate(address, bytes)?;
        if self.space.may_reach(self.device, &allocation) {
            Ok(allocation)
        } else {
            let near = Some(allocation.nearby());
            Err(MemoryFault { kind: FaultKind::NoPeerAccess, address, bytes, near })
        }
    }
}

/// A one-entry cache in front of [`DeviceView::locate`]: keep one for each stream of accesses.
///
/// [`Window::access`] is for the accesses of a kernel or copy: it also notes them in the view's log.
/// [`Window::get`] only looks.
#[derive(Default)]
pub struct Window {
    last: Option<Arc<Allocation>>,
    touched: Option<Arc<TouchMap>>,
}

impl Window {
    /// An empty window.
    pub const fn new() -> Self {
        Self { last: None, touched: None }
    }

    /// The backing behind an access and the offset of its first byte there.
    ///
    /// # Errors
    /// As [`DeviceView::locate`].
    #[inline]
    pub fn get(
        &mut self,
        view: &DeviceView<'_>,
        address: u64,
        bytes: u64,
    ) -> Result<(&Arc<Backing>, u64), MemoryFault> {
        let hit = self.last.as_ref().is_some_and(|a| a.is_live() && a.offset_of(address, bytes).is_some());
        if !hit {
            let allocation = view.locate(address, bytes)?;
            self.touched = view.log.map(|log| log.map(&allocation.backing));
            self.last = Some(allocation);
        }
        match &self.last {
            Some(a) => Ok((&a.backing, a.backing_offset + (address - a.base))),
            // `last` was set above; there is no third case.
            None => Err(MemoryFault { kind: FaultKind::Unmapped, address, bytes, near: None }),
        }
    }

    /// The backing and offset of an access that is about to be made, noted in the view's log.
    ///
    /// # Errors
    /// As [`DeviceView::locate`].
    #[inline]
    pub fn access(
        &mut self,
        view: &DeviceView<'_>,
        address: u64,
        bytes: u64,
        touch: Touch,
    ) -> Result<(&Arc<Backing>, u64), MemoryFault> {
        let (_, offset) = self.get(view, address, bytes)?;
        if let Some(touched) = &self.touched {
            touched.note(offset, bytes, touch);
        }
        match &self.last {
            Some(a) => Ok((&a.backing, offset)),
            // `get` set it; there is no third case.
            None => Err(MemoryFault { kind: FaultKind::Unmapped, address, bytes, near: None }),
        }
    }

    /// The allocation behind the last access.
    pub fn allocation(&self) -> Option<&Arc<Allocation>> {
        self.last.as_ref()
    }
}
