//! Virtual memory management: reserved addresses, physical memory behind handles, mappings, access rights.
//!
//! * A physical memory lives as long as a handle or a mapping refers to it; handles are counted.
//! * A mapping shows a whole memory (parts are not supported, as on the real driver) inside of one reservation,
//!   and gives nobody access until rights are set.
//! * Unmapping takes whole mappings; rights are set for whole mappings.

use super::{
    Access, AddressSpace, Allocation, Backing, Charge, Mapping, MemoryKind, Multicast, Origin, Rights,
    Shortage, View,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Sizes, addresses and offsets are multiples of this: 2 MiB.
pub const GRANULARITY: u64 = 2 << 20;

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmmError {
    /// An argument is wrong.
    Invalid,
    /// Allowed by the API, but neither the real driver nor the simulator does it.
    Unsupported,
    /// No such handle.
    NoHandle,
    /// There is not enough of something.
    Short(Shortage),
}

/// Physical memory.
#[derive(Debug)]
pub struct Physical {
    /// Its handle. With recycling another object's once this one is gone.
    pub handle: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Where it lies.
    pub device: i32,
    /// Kinds of export that were asked for.
    pub handle_types: u32,
    /// Compression that was asked for.
    pub compression: u8,
    /// Usage flags.
    pub usage: u16,
    pub(super) backing: Arc<Backing>,
    /// Given back when nobody refers to it any more.
    _charge: Charge,
}

/// What a handle names.
#[derive(Clone, Debug)]
pub enum Object {
    /// Physical memory.
    Memory(Arc<Physical>),
    /// A multicast object.
    Multicast(Arc<Multicast>),
}

impl Object {
    fn handle(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.handle,
            Self::Multicast(multicast) => multicast.handle,
        }
    }

    fn weaken(&self) -> Remains {
        match self {
            Self::Memory(memory) => Remains::Memory(Arc::downgrade(memory)),
            Self::Multicast(multicast) => Remains::Multicast(Arc::downgrade(multicast)),
        }
    }
}

/// An object without a handle, which mappings may still hold.
enum Remains {
    Memory(Weak<Physical>),
    Multicast(Weak<Multicast>),
}

impl Remains {
    fn is_gone(&self) -> bool {
        match self {
            Self::Memory(memory) => memory.strong_count() == 0,
            Self::Multicast(multicast) => multicast.strong_count() == 0,
        }
    }
}

/// What physical memory is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalRequest {
    /// Size in bytes.
    pub bytes: u64,
    /// Where.
    pub device: i32,
    /// Kinds of export.
    pub handle_types: u32,
    /// Compression.
    pub compression: u8,
    /// Usage flags.
    pub usage: u16,
}

/// Reservations and handles of one simulated driver.
#[derive(Default)]
pub struct Vmm {
    inner: Mutex<Inner>,
}

struct Inner {
    /// Length by first address.
    reservations: BTreeMap<u64, u64>,
    /// Objects with the number of times they must be released.
    handles: HashMap<u64, (Object, u64)>,
    next: u64,
    /// Values that were released, oldest first, with what they named.
    released: Vec<(u64, Remains)>,
    recycle: bool,
}

impl Default for Inner {
    fn default() -> Self {
        // Handles are no small numbers, so that a mixed-up argument is not taken for one.
        let (reservations, handles, released) = (BTreeMap::new(), HashMap::new(), Vec::new());
        Self { reservations, handles, next: 0x5000_0000_0010, released, recycle: false }
    }
}

/// Addresses are of no device; they are taken from the first one's room.
const ROOM: i32 = 0;

fn whole(n: u64) -> bool {
    n.is_multiple_of(GRANULARITY)
}

impl Inner {
    /// The reservation that holds all of a range.
    fn reservation(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        let (&base, &len) = self.reservations.range(..=address).next_back()?;
        let offset = address - base;
        (offset < len && bytes <= len - offset).then_some((base, len))
    }
}

impl Vmm {
    /// Reserves addresses, at `hint` if that is free.
    ///
    /// # Errors
    /// A size of 0 or no multiple of the granularity, an alignment that is no power of two, or no addresses.
    pub fn reserve(&self, space: &AddressSpace, bytes: u64, align: u64, hint: u64) -> Result<u64, VmmError> {
        if bytes == 0 || !whole(bytes) || align != 0 && !align.is_power_of_two() {
            return Err(VmmError::Invalid);
        }
        let align = align.max(GRANULARITY);
        let hinted = hint != 0 && hint.is_multiple_of(align) && space.reserve_at(ROOM, hint, bytes).is_some();
        let base = if hinted {
            hint
        } else {
            space.reserve_aligned(ROOM, bytes, align).ok_or(VmmError::Short(Shortage::Addresses))?
        };
        self.inner.lock().reservations.insert(base, bytes);
        Ok(base)
    }

    /// Gives a whole reservation back.
    ///
    /// # Errors
    /// Not a whole reservation, or something is mapped there.
    pub fn unreserve(&self, space: &AddressSpace, base: u64, bytes: u64) -> Result<(), VmmError> {
        let mut inner = self.inner.lock();
        if inner.reservations.get(&base) != Some(&bytes) || !space.overlapping(base, bytes).is_empty() {
            return Err(VmmError::Invalid);
        }
        inner.reservations.remove(&base);
        drop(inner);
        space.unreserve(ROOM, base);
        Ok(())
    }

    /// The reservation that contains an address: its first address and length.
    pub fn reservation_of(&self, address: u64) -> Option<(u64, u64)> {
        self.inner.lock().reservation(address, 1)
    }

    /// Makes physical memory. Returns its handle.
    ///
    /// # Errors
    /// A size of 0 or no multiple of the granularity, or not enough memory.
    pub fn create(&self, space: &AddressSpace, request: PhysicalRequest) -> Result<u64, VmmError> {
        let PhysicalRequest { bytes, device, handle_types, compression, usage } = request;
        if bytes == 0 || !whole(bytes) {
            return Err(VmmError::Invalid);
        }
        let charge = space.budget(device).charge(bytes).ok_or(VmmError::Short(Shortage::Device))?;
        let backing = Arc::new(Backing::new(bytes).ok_or(VmmError::Short(Shortage::Host))?);
        let insert = |handle| {
            let charge = charge;
            Object::Memory(Arc::new(Physical {
                handle,
                bytes,
                device,
                handle_types,
                compression,
                usage,
                backing,
                _charge: charge,
            }))
        };
        Ok(self.insert(insert))
    }

    /// Gives an object a handle.
    pub(super) fn insert(&self, make: impl FnOnce(u64) -> Object) -> u64 {
        let mut inner = self.inner.lock();
        // A mapping gives its object's handle back when it is asked for it, so a value is free only without mappings.
        let free = |(handle, what): &(u64, Remains)| what.is_gone() && !inner.handles.contains_key(handle);
        let again = inner.recycle.then(|| inner.released.iter().rposition(free)).flatten();
        let handle = match again {
            Some(at) => inner.released.remove(at).0,
            None => {
                inner.next += 16;
                inner.next - 16
            }
        };
        inner.handles.insert(handle, (make(handle), 1));
        handle
    }

    /// Whether values of handles are handed out again once nothing is left of what they named.
    pub fn recycle_handles(&self, recycle: bool) {
        let mut inner = self.inner.lock();
        inner.recycle = recycle;
        inner.released.clear();
    }

    /// What a handle names.
    ///
    /// # Errors
    /// No such handle.
    pub fn object(&self, handle: u64) -> Result<Object, VmmError> {
        self.inner.lock().handles.get(&handle).map(|(object, _)| object.clone()).ok_or(VmmError::NoHandle)
    }

    /// Reserved ranges, and handles.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.reservations.len(), inner.handles.len())
    }

    /// Physical memory that has a handle.
    pub fn all_memory(&self) -> Vec<Arc<Physical>> {
        let inner = self.inner.lock();
        let memory = |object: &Object| match object {
            Object::Memory(memory) => Some(memory.clone()),
            Object::Multicast(_) => None,
        };
        inner.handles.values().filter_map(|(object, _)| memory(object)).collect()
    }

    /// Releases a handle once.
    ///
    /// # Errors
    /// No such handle.
    pub fn release(&self, handle: u64) -> Result<(), VmmError> {
        let mut inner = self.inner.lock();
        let (_, count) = inner.handles.get_mut(&handle).ok_or(VmmError::NoHandle)?;
        *count -= 1;
        if *count == 0
            && let Some((object, _)) = inner.handles.remove(&handle)
            && inner.recycle
        {
            // It may have been released before, and come back through a mapping.
            inner.released.retain(|(known, _)| *known != handle);
            inner.released.push((handle, object.weaken()));
        }
        Ok(())
    }

    /// The handle of what is mapped at an address, to be released once more.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn retain(&self, space: &AddressSpace, address: u64) -> Result<u64, VmmError> {
        let allocation = space.find(address).ok_or(VmmError::Invalid)?;
        let object = match (&allocation.physical, &allocation.multicast) {
            (Some(memory), _) => Object::Memory(memory.clone()),
            (_, Some(multicast)) => Object::Multicast(multicast.clone()),
            _ => return Err(VmmError::Invalid),
        };
        let handle = object.handle();
        self.inner.lock().handles.entry(handle).or_insert((object, 0)).1 += 1;
        Ok(handle)
    }

    /// Maps all of an object at an address.
    ///
    /// # Errors
    /// Addresses that are not reserved or taken, a bad handle, a part of an object.
    pub fn map(
        &self,
        space: &AddressSpace,
        address: u64,
        bytes: u64,
        offset: u64,
        handle: u64,
    ) -> Result<Arc<Allocation>, VmmError> {
        if bytes == 0 || !whole(address) {
            return Err(VmmError::Invalid);
        }
        let inner = self.inner.lock();
        let (object, _) = inner.handles.get(&handle).ok_or(VmmError::NoHandle)?;
        let (size, device, backing, physical, multicast) = match object {
            Object::Memory(m) => (m.bytes, m.device, m.backing.clone(), Some(m.clone()), None),
            Object::Multicast(m) => (m.bytes, ROOM, m.empty.clone(), None, Some(m.clone())),
        };
        if offset != 0 || bytes != size {
            return Err(VmmError::Unsupported);
        }
        if inner.reservation(address, bytes).is_none() || !space.overlapping(address, bytes).is_empty() {
            return Err(VmmError::Invalid);
        }
        // Under the lock, so that two calls cannot map the same place.
        Ok(space.map_whole(Mapping {
            base: address,
            bytes,
            kind: MemoryKind::Virtual,
            device,
            origin: Origin::default(),
            backing,
            backing_offset: 0,
            rights: Some(Rights::none()),
            physical,
            multicast,
        }))
    }

    /// The mappings that make up a range of a reservation.
    fn mappings(
        &self,
        space: &AddressSpace,
        address: u64,
        bytes: u64,
    ) -> Result<Vec<Arc<Allocation>>, VmmError> {
        if bytes == 0 || !whole(address) || !whole(bytes) {
            return Err(VmmError::Invalid);
        }
        self.inner.lock().reservation(address, bytes).ok_or(VmmError::Invalid)?;
        let mappings = space.overlapping(address, bytes);
        let inside = |a: &Arc<Allocation>| a.base >= address && a.end_address() <= address + bytes;
        if mappings.iter().all(inside) { Ok(mappings) } else { Err(VmmError::Invalid) }
    }

    /// Unmaps every mapping in a range; there may be none. Returns them.
    ///
    /// # Errors
    /// A range that is not reserved or holds a part of a mapping.
    pub fn unmap(
        &self,
        space: &AddressSpace,
        address: u64,
        bytes: u64,
    ) -> Result<Vec<Arc<Allocation>>, VmmError> {
        let mappings = self.mappings(space, address, bytes)?;
        for mapping in &mappings {
            space.release(mapping.base).map_err(|_| VmmError::Invalid)?;
        }
        Ok(mappings)
    }

    /// Sets what devices may do to a range that is all mapped: (device, flags) as in [`Rights::set`].
    ///
    /// # Errors
    /// A range with holes or parts of mappings.
    pub fn set_access(
        &self,
        space: &AddressSpace,
        address: u64,
        bytes: u64,
        rights: &[(i32, u32)],
    ) -> Result<(), VmmError> {
        let mappings = self.mappings(space, address, bytes)?;
        if mappings.iter().map(|m| m.bytes).sum::<u64>() != bytes {
            return Err(VmmError::Invalid);
        }
        for mapping in mappings {
            for &(device, flags) in rights {
                if !mapping.rights().is_some_and(|own| own.set(device, flags)) {
                    return Err(VmmError::Invalid);
                }
            }
        }
        Ok(())
    }

    /// What a device may do at an address.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn access(&self, space: &AddressSpace, address: u64, device: i32) -> Result<u32, VmmError> {
        let mapping =
            space.find(address).filter(|a| a.kind == MemoryKind::Virtual).ok_or(VmmError::Invalid)?;
        Ok(mapping.rights().map_or(0, |rights| rights.get(device)))
    }

    /// The physical memory behind mapped addresses, and the offset in it.
    ///
    /// # Errors
    /// The range is not all in one mapping of physical memory.
    pub fn physical_at(
        &self,
        space: &AddressSpace,
        address: u64,
        bytes: u64,
    ) -> Result<(Arc<Physical>, u64), VmmError> {
        let mapping = space.locate_in(View::Submission, address, bytes).map_err(|_| VmmError::Invalid)?;
        let memory = mapping.physical.clone().ok_or(VmmError::Invalid)?;
        Ok((memory, mapping.backing_offset + (address - mapping.base)))
    }
}

/// Whether flags of `CUmemAccess_flags` are one of its values.
pub const fn access_of(flags: u32) -> Option<Option<Access>> {
    match flags {
        0 => Some(None),
        1 => Some(Some(Access::Read)),
        3 => Some(Some(Access::Write)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{DeviceView, FaultKind, Fill, Pattern, Place, Transfer};

    const M: u64 = GRANULARITY;

    fn memory(vmm: &Vmm, space: &AddressSpace, bytes: u64) -> u64 {
        vmm.create(space, PhysicalRequest { bytes, ..PhysicalRequest::default() }).unwrap()
    }

    fn fill(space: &AddressSpace, address: u64, value: u8, bytes: u64) -> Result<(), FaultKind> {
        Fill {
            address,
            pitch: 0,
            pattern: Pattern::U8(value),
            width: bytes,
            height: 1,
            allocation: 0,
            device: None,
        }
        .run(&DeviceView::new(space, 0))
        .map_err(|fault| fault.kind)
    }

    #[test]
    fn reservations_are_whole_aligned_and_given_back_whole() {
        let (space, vmm) = (AddressSpace::new(), Vmm::default());
        for (bytes, align) in [(0, 0), (M + 1, 0), (M, 3)] {
            assert_eq!(vmm.reserve(&space, bytes, align, 0), Err(VmmError::Invalid));
        }
        assert_eq!(vmm.reserve(&space, 1 << 62, 0, 0), Err(VmmError::Short(Shortage::Addresses)));
        let a = vmm.reserve(&space, 2 * M, 64 * M, 0).unwrap();
        assert_eq!(a % (64 * M), 0);
        assert_eq!(vmm.reserve(&space, M, 0, a + 8 * M), Ok(a + 8 * M));
        assert_ne!(vmm.reserve(&space, M, 0, a + 8 * M).unwrap(), a + 8 * M);
        for (base, bytes) in [(a, M), (a + M, M), (a, 3 * M), (0, M)] {
            assert_eq!(vmm.unreserve(&space, base, bytes), Err(VmmError::Invalid));
        }
        assert_eq!(vmm.unreserve(&space, a, 2 * M), Ok(()));
        assert_eq!(vmm.unreserve(&space, a, 2 * M), Err(VmmError::Invalid));
    }

    #[test]
    fn physical_memory_lives_while_a_handle_or_a_mapping_does() {
        let (space, vmm) = (AddressSpace::new(), Vmm::default());
        let used = || space.budget(0).used();
        let a = memory(&vmm, &space, 2 * M);
        let base = vmm.reserve(&space, 4 * M, 0, 0).unwrap();
        vmm.map(&space, base, 2 * M, 0, a).unwrap();
        assert_eq!(vmm.retain(&space, base + M + 5), Ok(a));
        assert_eq!((vmm.release(a), vmm.release(a)), (Ok(()), Ok(())));
        assert_eq!(vmm.release(a), Err(VmmError::NoHandle));
        assert_eq!(used(), 2 * M);
        // It can still be had back from the mapping.
        assert_eq!(vmm.retain(&space, base), Ok(a));
        vmm.release(a).unwrap();
        assert_eq!(vmm.unreserve(&space, base, 4 * M), Err(VmmError::Invalid), "mapped");
        assert_eq!(vmm.unmap(&space, base, M).map(|_| ()), Err(VmmError::Invalid), "a part");
        assert_eq!(vmm.unmap(&space, base, 4 * M).unwrap().len(), 1);
        assert_eq!(used(), 0);
        assert_eq!(vmm.unmap(&space, base, 4 * M).unwrap().len(), 0, "nothing there is fine");
        assert_eq!(vmm.retain(&space, base), Err(VmmError::Invalid));
    }

    #[test]
    fn mappings_are_whole_and_never_overlap() {
        let (space, vmm) = (AddressSpace::new(), Vmm::default());
        let (a, b) = (memory(&vmm, &space, 2 * M), memory(&vmm, &space, M));
        let base = vmm.reserve(&space, 4 * M, 0, 0).unwrap();
        let map =
            |address, bytes, offset, handle| vmm.map(&space, address, bytes, offset, handle).map(|_| ());
        assert_eq!(map(base, M, 0, a), Err(VmmError::Unsupported));
        assert_eq!(map(base, M, M, a), Err(VmmError::Unsupported));
        assert_eq!(map(base + 4096, M, 0, b), Err(VmmError::Invalid));
        assert_eq!(map(base, 0, 0, b), Err(VmmError::Invalid));
        assert_eq!(map(base, M, 0, 0), Err(VmmError::NoHandle));
        assert_eq!(map(base + 3 * M, 2 * M, 0, a), Err(VmmError::Invalid), "past the reservation");
        assert_eq!(map(base - M, M, 0, b), Err(VmmError::Invalid), "not reserved");
        assert_eq!(map(base, 2 * M, 0, a), Ok(()));
        assert_eq!(map(base + M, M, 0, b), Err(VmmError::Invalid), "taken");
        assert_eq!(map(base + 2 * M, M, 0, b), Ok(()));
        let create = |bytes| vmm.create(&space, PhysicalRequest { bytes, ..PhysicalRequest::default() });
        assert_eq!((create(0), create(100)), (Err(VmmError::Invalid), Err(VmmError::Invalid)));
        assert_eq!(create(1 << 40), Err(VmmError::Short(Shortage::Device)));
    }

    #[test]
    fn access_is_set_for_whole_mappings_and_checked() {
        let (space, vmm) = (AddressSpace::new(), Vmm::default());
        let (a, b) = (memory(&vmm, &space, 2 * M), memory(&vmm, &space, M));
        let base = vmm.reserve(&space, 8 * M, 0, 0).unwrap();
        vmm.map(&space, base, 2 * M, 0, a).unwrap();
        vmm.map(&space, base + 2 * M, M, 0, b).unwrap();
        vmm.map(&space, base + 5 * M, M, 0, b).unwrap();
        assert_eq!(fill(&space, base, 1, 16), Err(FaultKind::NoAccess));
        let set = |address, bytes, flags| vmm.set_access(&space, address, bytes, &[(0, flags)]);
        assert_eq!(set(base, M, 3), Err(VmmError::Invalid), "a part");
        assert_eq!(set(base, 4 * M, 3), Err(VmmError::Invalid), "a hole");
        assert_eq!(set(base, 9 * M, 3), Err(VmmError::Invalid), "past the reservation");
        assert_eq!(set(base, 0, 3), Err(VmmError::Invalid));
        assert_eq!(vmm.set_access(&space, base, 2 * M, &[(99, 3)]), Err(VmmError::Invalid));
        set(base, 3 * M, 3).unwrap();
        set(base + 5 * M, M, 1).unwrap();
        assert_eq!(vmm.access(&space, base + M, 0), Ok(3));
        assert_eq!(vmm.access(&space, base + M, 1), Ok(0));
        assert_eq!(vmm.access(&space, base + 4 * M, 0), Err(VmmError::Invalid));
        // Over the border of two mappings, and one memory at two addresses.
        assert_eq!(fill(&space, base + 2 * M - 8, 7, 16), Ok(()));
        assert_eq!(fill(&space, base + 5 * M, 7, 16), Err(FaultKind::ReadOnly));
        let mut out = [0u8; 10];
        let copy = Transfer::linear(Place::Host(out.as_mut_ptr().addr()), Place::Memory(base + 5 * M), 10);
        // SAFETY: `out` is writable.
        let unread = unsafe { copy.run(&DeviceView::new(&space, 0)) }.unwrap();
        assert_eq!(out, [7, 7, 7, 7, 7, 7, 7, 7, 0, 0]);
        assert_eq!(unread.unwrap().address, base + 5 * M + 8);
        // Over the border and past the last mapping.
        assert_eq!(fill(&space, base + 2 * M, 7, M + 1), Err(FaultKind::Unmapped));
        // Copies whose ends are cut at different places, overlapping.
        let bytes: Vec<u8> = (0..=255).collect();
        let at = base + 2 * M - 100;
        let up = Transfer::linear(Place::Memory(at), Place::Staged(bytes.as_slice().into()), 256);
        let over = Transfer::linear(Place::Memory(at + 50), Place::Memory(at), 256);
        let mut got = [0u8; 256];
        let down = Transfer::linear(Place::Host(got.as_mut_ptr().addr()), Place::Memory(at + 50), 256);
        for copy in [up, over, down] {
            // SAFETY: `got` is writable.
            assert_eq!(unsafe { copy.run(&DeviceView::new(&space, 0)) }.unwrap(), None);
        }
        assert_eq!(got[..], bytes[..]);
        assert_eq!(vmm.physical_at(&space, base + M, 16).unwrap().1, M);
        assert_eq!(vmm.physical_at(&space, base + M, 2 * M).map(|_| ()), Err(VmmError::Invalid));
    }
}
