//! The map from addresses to allocations.
//!
//! There are two views of it. The *submission* view changes at the calls of the driver API: a call that names
//! memory is checked against it. The *execution* view changes in stream order: an access of running work is
//! checked against it. They differ only for stream-ordered memory, whose allocation and free are work, and for a
//! free that waits for the context's work.

use super::allocation::Parts;
use super::{
    Access, Allocation, Backing, Budget, FaultKind, GRANULE, MemoryFault, MemoryKind, Multicast, Nearby,
    Origin, Physical, Ranges, Rights,
};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Device addresses start here: above every user-space address of x86-64 and aarch64 with 48-bit
/// virtual addresses, so no host mapping can have one.
pub const DEVICE_BASE: u64 = 1 << 48;
/// Room for each device.
const DEVICE_ROOM: u64 = 1 << 44;
/// Memory of a device that nobody gave a size.
const DEFAULT_MEMORY: u64 = 4 << 30;
/// Freed ranges that are remembered for messages.
const REMEMBERED: usize = 4096;

/// Everything a simulated driver maps.
pub struct AddressSpace {
    map: RwLock<Map>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct Map {
    /// What running work may touch, by first address.
    live: BTreeMap<u64, Arc<Allocation>>,
    /// What calls may name, by first address.
    named: BTreeMap<u64, Arc<Allocation>>,
    /// Freed allocations whose addresses were not used again, for messages.
    freed: BTreeMap<u64, Nearby>,
    freed_order: VecDeque<u64>,
    /// What ended lately, by its number, also if its addresses were used again.
    past: BTreeMap<u64, Nearby>,
    /// Addresses of each device.
    rooms: BTreeMap<i32, Ranges>,
    budgets: BTreeMap<i32, Arc<Budget>>,
    /// (accessing device, owning device) pairs that may reach each other's memory.
    peers: HashSet<(i32, i32)>,
    no_reuse: bool,
}

/// Why memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The device's memory is used up.
    Device,
    /// The device's addresses are used up.
    Addresses,
    /// The host has not enough memory to simulate it.
    Host,
}

/// Which of the two views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What calls may name.
    Submission,
    /// What running work may touch.
    Execution,
}

/// A mapping to be made at given addresses.
pub struct Mapping {
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
    /// Its bytes.
    pub backing: Arc<Backing>,
    /// Where in the backing the first byte lies.
    pub backing_offset: u64,
    /// Rights of its own.
    pub rights: Option<Arc<Rights>>,
    /// Physical memory that it keeps alive.
    pub physical: Option<Arc<Physical>>,
    /// The multicast object it shows.
    pub multicast: Option<Arc<Multicast>>,
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

    /// Sets how much memory a device has. Default 4 GiB.
    pub fn set_memory(&self, device: i32, bytes: u64) {
        self.budget(device).set_total(bytes);
    }

    /// A device's memory.
    pub fn budget(&self, device: i32) -> Arc<Budget> {
        if let Some(budget) = self.map.read().budgets.get(&device) {
            return budget.clone();
        }
        self.map.write().budgets.entry(device).or_insert_with(|| Budget::new(DEFAULT_MEMORY)).clone()
    }

    /// Whether addresses of freed memory are used again (the default, as on a GPU).
    pub fn set_reuse(&self, reuse: bool) {
        let mut map = self.map.write();
        map.no_reuse = !reuse;
        map.rooms.values_mut().for_each(|room| room.set_reuse(reuse));
    }

    /// Whether addresses of freed memory are used again.
    pub fn reuses(&self) -> bool {
        !self.map.read().no_reuse
    }

    /// Maps new memory in both views. Pinned and managed memory gets its host address, the rest a made-up one.
    /// `None` if there is not enough memory.
    pub fn allocate(&self, kind: MemoryKind, device: i32, bytes: u64) -> Option<Arc<Allocation>> {
        self.create(kind, device, bytes, 1, Origin::default()).ok()
    }

    /// As [`AddressSpace::allocate`], aligned to `align` (a power of two).
    ///
    /// # Errors
    /// What there is not enough of.
    pub fn create(
        &self,
        kind: MemoryKind,
        device: i32,
        bytes: u64,
        align: u64,
        origin: Origin,
    ) -> Result<Arc<Allocation>, Shortage> {
        let whole = bytes.checked_next_multiple_of(GRANULE).ok_or(Shortage::Device)?;
        let charge = if kind == MemoryKind::Pinned {
            None
        } else {
            Some(self.budget(device).charge(whole).ok_or(Shortage::Device)?)
        };
        let backing = if kind.is_host() { Backing::host(bytes) } else { Backing::new(bytes) };
        let backing = Arc::new(backing.ok_or(Shortage::Host)?);
        let base = if kind.is_host() {
            backing.as_ptr().addr() as u64
        } else {
            self.reserve_aligned(device, bytes, align).ok_or(Shortage::Addresses)?
        };
        let mapping = Mapping {
            base,
            bytes,
            kind,
            device,
            origin,
            backing,
            backing_offset: 0,
            rights: None,
            physical: None,
            multicast: None,
        };
        let allocation = self.build(mapping, charge);
        self.name(&allocation);
        self.begin(&allocation);
        Ok(allocation)
    }

    /// A fresh range of a device's addresses with a gap after it.
    pub fn reserve(&self, device: i32, bytes: u64) -> Option<u64> {
        self.reserve_aligned(device, bytes, 1)
    }

    /// As [`AddressSpace::reserve`], at a multiple of `align` (a power of two).
    pub fn reserve_aligned(&self, device: i32, bytes: u64, align: u64) -> Option<u64> {
        self.map.write().room(device)?.take(bytes, align)
    }

    /// Takes exactly this range of a device's addresses, if all of it is free.
    pub fn reserve_at(&self, device: i32, base: u64, bytes: u64) -> Option<()> {
        self.map.write().room(device)?.take_at(base, bytes)
    }

    /// Gives a reserved range back. False if none starts there.
    pub fn unreserve(&self, device: i32, base: u64) -> bool {
        self.map.write().room(device).is_some_and(|room| room.give_back(base))
    }

    /// An allocation that no view knows yet.
    pub fn prepare(&self, mapping: Mapping) -> Arc<Allocation> {
        self.build(mapping, None)
    }

    fn build(&self, mapping: Mapping, charge: Option<super::Charge>) -> Arc<Allocation> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let Mapping {
            base,
            bytes,
            kind,
            device,
            origin,
            backing,
            backing_offset,
            rights,
            physical,
            multicast,
        } = mapping;
        Arc::new(Allocation::new(Parts {
            id,
            base,
            bytes,
            kind,
            device,
            origin,
            backing,
            backing_offset,
            rights,
            physical,
            multicast,
            charge,
        }))
    }

    /// Maps part of an existing backing at an address, in both views.
    pub fn map_backing(
        &self,
        kind: MemoryKind,
        device: i32,
        base: u64,
        bytes: u64,
        backing: Arc<Backing>,
        backing_offset: u64,
    ) -> Arc<Allocation> {
        let (origin, rights, physical, multicast) = (Origin::default(), None, None, None);
        self.map_whole(Mapping {
            base,
            bytes,
            kind,
            device,
            origin,
            backing,
            backing_offset,
            rights,
            physical,
            multicast,
        })
    }

    /// Makes a mapping in both views.
    pub fn map_whole(&self, mapping: Mapping) -> Arc<Allocation> {
        let allocation = self.prepare(mapping);
        self.name(&allocation);
        self.begin(&allocation);
        allocation
    }

    /// From now on calls may name it.
    pub fn name(&self, allocation: &Arc<Allocation>) {
        self.map.write().named.insert(allocation.base, allocation.clone());
    }

    /// From now on running work may touch it, unless it has ended before it began.
    pub fn begin(&self, allocation: &Arc<Allocation>) {
        let mut map = self.map.write();
        if !allocation.is_live() {
            return;
        }
        map.forget(allocation.base, allocation.end_address());
        map.live.insert(allocation.base, allocation.clone());
    }

    /// Calls may no longer name what starts at `base`; running work still may touch it.
    ///
    /// # Errors
    /// A fault that says what is there instead.
    pub fn unname(&self, base: u64) -> Result<Arc<Allocation>, MemoryFault> {
        let mut map = self.map.write();
        map.named.remove(&base).ok_or_else(|| map.fault(View::Submission, base, 0))
    }

    /// Running work may no longer touch it. Its addresses are free again, unless somebody else manages them
    /// (pools, VMM reservations, host memory).
    pub fn end(&self, allocation: &Allocation) {
        allocation.end();
        let mut map = self.map.write();
        if map.live.get(&allocation.base).is_some_and(|live| live.id == allocation.id) {
            map.live.remove(&allocation.base);
        }
        map.remember(allocation);
        if !matches!(allocation.kind, MemoryKind::Pool | MemoryKind::Virtual)
            && !allocation.kind.is_host()
            && let Some(room) = map.room(allocation.device)
        {
            room.give_back(allocation.base);
        }
    }

    /// Unmaps the allocation that starts at `base`, in both views.
    ///
    /// # Errors
    /// A fault that says what is there instead.
    pub fn release(&self, base: u64) -> Result<Arc<Allocation>, MemoryFault> {
        let allocation = self.unname(base)?;
        self.end(&allocation);
        Ok(allocation)
    }

    /// The live allocation that contains `bytes` bytes from `address`, for running work.
    ///
    /// # Errors
    /// Unmapped, out of bounds or freed, with the nearest allocation.
    pub fn locate(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryFault> {
        self.locate_in(View::Execution, address, bytes)
    }

    /// The allocation that contains `bytes` bytes from `address` in one view.
    ///
    /// # Errors
    /// Unmapped, out of bounds or freed, with the nearest allocation.
    pub fn locate_in(&self, view: View, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryFault> {
        let map = self.map.read();
        match map.of(view).range(..=address).next_back() {
            Some((_, allocation)) if allocation.offset_of(address, bytes).is_some() => Ok(allocation.clone()),
            _ => Err(map.fault(view, address, bytes)),
        }
    }

    /// The allocation that calls may name and that contains this address.
    pub fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        self.locate_in(View::Submission, address, 1).ok()
    }

    /// An allocation that has ended, by its number, if that was lately.
    pub fn remembered(&self, id: u64) -> Option<Nearby> {
        self.map.read().past.get(&id).cloned()
    }

    /// Every allocation that calls may name and that has bytes in a range.
    pub fn overlapping(&self, address: u64, bytes: u64) -> Vec<Arc<Allocation>> {
        let map = self.map.read();
        let end = address.saturating_add(bytes);
        let before = map.named.range(..address).next_back().filter(|(_, a)| a.end_address() > address);
        before.into_iter().chain(map.named.range(address..end)).map(|(_, a)| a.clone()).collect()
    }

    /// Every allocation that calls may name, or that running work may touch.
    pub fn all(&self) -> Vec<Arc<Allocation>> {
        let map = self.map.read();
        let mut all: Vec<_> = map.named.values().chain(map.live.values()).cloned().collect();
        all.sort_by_key(|a| a.id);
        all.dedup_by_key(|a| a.id);
        all
    }

    /// Every allocation that calls may name.
    pub fn named(&self) -> Vec<Arc<Allocation>> {
        self.map.read().named.values().cloned().collect()
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

    /// In place of a device: the one whose memory it is.
    pub const OWNER: i32 = i32::MIN;

    /// Why a device may not do this to an allocation, if it may not.
    pub fn refusal(&self, device: i32, allocation: &Allocation, access: Access) -> Option<FaultKind> {
        let device = if device == Self::OWNER { allocation.device } else { device };
        match &allocation.rights {
            Some(rights) if rights.allow(device, access) => None,
            Some(rights) if rights.allow(device, Access::Read) => Some(FaultKind::ReadOnly),
            Some(_) if allocation.kind == MemoryKind::Virtual => Some(FaultKind::NoAccess),
            Some(_) => Some(FaultKind::NoPeerAccess),
            None => {
                let reached = allocation.device == device
                    || allocation.kind.is_host()
                    || self.map.read().peers.contains(&(device, allocation.device));
                (!reached).then_some(FaultKind::NoPeerAccess)
            }
        }
    }
}

impl Map {
    fn of(&self, view: View) -> &BTreeMap<u64, Arc<Allocation>> {
        match view {
            View::Submission => &self.named,
            View::Execution => &self.live,
        }
    }

    fn room(&mut self, device: i32) -> Option<&mut Ranges> {
        let number = u64::try_from(device).ok().filter(|n| *n < super::MOST_DEVICES as u64)?;
        let reuse = !self.no_reuse;
        let new = || Ranges::new(DEVICE_BASE + DEVICE_ROOM * number, DEVICE_ROOM, reuse);
        Some(self.rooms.entry(device).or_insert_with(new))
    }

    /// Remembers a freed range for messages.
    fn remember(&mut self, allocation: &Allocation) {
        self.past.insert(allocation.id, allocation.nearby());
        while self.past.len() > REMEMBERED {
            self.past.pop_first();
        }
        if self.freed.insert(allocation.base, allocation.nearby()).is_none() {
            self.freed_order.push_back(allocation.base);
        }
        while self.freed_order.len() > REMEMBERED {
            if let Some(oldest) = self.freed_order.pop_front() {
                self.freed.remove(&oldest);
            }
        }
    }

    /// Forgets freed ranges whose addresses are used again.
    fn forget(&mut self, start: u64, end: u64) {
        let mut gone: Vec<u64> = self.freed.range(start..end.max(start + 1)).map(|(base, _)| *base).collect();
        let before = self.freed.range(..start).next_back();
        gone.extend(before.filter(|(base, near)| **base + near.bytes > start).map(|(base, _)| *base));
        for base in &gone {
            self.freed.remove(base);
        }
        if !gone.is_empty() {
            self.freed_order.retain(|base| !gone.contains(base));
        }
    }

    fn fault(&self, view: View, address: u64, bytes: u64) -> MemoryFault {
        let freed = self.freed.range(..=address).next_back().map(|(_, near)| near);
        if let Some(freed) = freed.filter(|near| address - near.base < near.bytes.max(1)) {
            return MemoryFault { kind: FaultKind::Freed, address, bytes, near: Some(freed.clone()) };
        }
        let below = self.of(view).range(..=address).next_back().map(|(_, a)| a);
        let kind = match below {
            Some(a) if a.bytes > address - a.base => FaultKind::OutOfBounds,
            _ => FaultKind::Unmapped,
        };
        MemoryFault { kind, address, bytes, near: below.map(|a| a.nearby()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_addresses_come_back_and_the_message_says_freed_until_then() {
        let space = AddressSpace::new();
        let a = space.allocate(MemoryKind::Device, 0, 1000).unwrap();
        a.set_label("weights");
        assert_eq!(a.base % 512, 0);
        space.release(a.base).unwrap();
        assert!(!a.is_live());
        let fault = space.locate(a.base + 10, 4).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Freed);
        assert!(fault.to_string().contains("'weights'"), "{fault}");
        assert_eq!(space.release(a.base).unwrap_err().kind, FaultKind::Freed);
        let b = space.allocate(MemoryKind::Device, 0, 500).unwrap();
        assert_eq!(b.base, a.base);
        assert_ne!(b.id, a.id);
        assert_eq!(space.locate(a.base + 600, 4).unwrap_err().kind, FaultKind::Unmapped);
        // Written bytes of the old one do not shine through.
        assert!(!b.backing().0.is_written(0, 1));
        space.set_reuse(false);
        space.release(b.base).unwrap();
        let c = space.allocate(MemoryKind::Device, 0, 500).unwrap();
        assert_ne!(c.base, b.base);
    }

    #[test]
    fn running_off_the_end_never_lands_in_a_neighbour() {
        let space = AddressSpace::new();
        let a = space.allocate(MemoryKind::Device, 0, 512).unwrap();
        let b = space.allocate(MemoryKind::Device, 0, 512).unwrap();
        assert!(b.base > a.base + 512);
        assert_eq!(space.locate(a.base + 510, 4).unwrap_err().kind, FaultKind::OutOfBounds);
        assert_eq!(space.locate(a.base + 512, 1).unwrap_err().kind, FaultKind::Unmapped);
        assert_eq!(space.locate(5, 1).unwrap_err().near, None);
    }

    #[test]
    fn the_budget_is_per_device_and_comes_back() {
        let space = AddressSpace::new();
        space.set_memory(0, 1 << 20);
        let a = space.create(MemoryKind::Device, 0, (1 << 20) - 100, 1, Origin::default()).unwrap();
        let more = |kind, device| space.create(kind, device, 1, 1, Origin::default()).map(|_| ());
        assert_eq!(more(MemoryKind::Device, 0), Err(Shortage::Device));
        assert_eq!(more(MemoryKind::Pinned, 0), Ok(()));
        assert_eq!(more(MemoryKind::Device, 1), Ok(()));
        space.release(a.base).unwrap();
        assert_eq!(more(MemoryKind::Device, 0), Ok(()));
        assert_eq!(more(MemoryKind::Device, 99), Err(Shortage::Addresses));
        let huge = space.create(MemoryKind::Device, 0, u64::MAX, 1, Origin::default());
        assert_eq!(huge.map(|_| ()), Err(Shortage::Device));
    }

    #[test]
    fn the_two_views_change_apart() {
        let space = AddressSpace::new();
        let base = space.reserve(0, 100).unwrap();
        let new = |bytes| {
            space.prepare(Mapping {
                base,
                bytes,
                kind: MemoryKind::Pool,
                device: 0,
                origin: Origin::default(),
                backing: Arc::new(Backing::new(bytes).unwrap()),
                backing_offset: 0,
                rights: None,
                physical: None,
                multicast: None,
            })
        };
        let a = new(100);
        space.name(&a);
        assert!(space.find(base).is_some() && space.locate(base, 1).is_err());
        space.begin(&a);
        assert!(space.locate(base, 100).is_ok());
        // Freed and allocated again while the old work still runs.
        space.unname(base).unwrap();
        let b = new(50);
        space.name(&b);
        assert_eq!(space.find(base).unwrap().id, b.id);
        assert_eq!(space.locate(base, 100).unwrap().id, a.id);
        space.end(&a);
        space.begin(&b);
        assert!(space.locate(base, 51).is_err() && space.locate(base, 50).is_ok());
        assert_eq!(space.all().len(), 1);
        // The end of a dead one does not hit its successor.
        space.end(&a);
        assert!(space.locate(base, 50).is_ok());
    }

    #[test]
    fn overlapping_finds_what_touches_a_range() {
        let space = AddressSpace::new();
        let a = space.allocate(MemoryKind::Device, 0, 1000).unwrap();
        let b = space.allocate(MemoryKind::Device, 0, 1000).unwrap();
        let ids = |address, bytes| space.overlapping(address, bytes).iter().map(|a| a.id).collect::<Vec<_>>();
        assert_eq!(ids(a.base + 999, 1), [a.id]);
        assert_eq!(ids(a.base + 1000, 24), []);
        assert_eq!(ids(a.base, b.base + 1 - a.base), [a.id, b.id]);
    }

    #[test]
    fn many_freed_ranges_are_remembered_up_to_a_limit() {
        let space = AddressSpace::new();
        space.set_reuse(false);
        for _ in 0..REMEMBERED + 10 {
            let a = space.allocate(MemoryKind::Device, 0, 16).unwrap();
            space.release(a.base).unwrap();
        }
        let map = space.map.read();
        assert_eq!((map.freed.len(), map.freed_order.len()), (REMEMBERED, REMEMBERED));
    }
}
