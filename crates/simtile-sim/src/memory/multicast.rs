//! Multicast objects: one range of addresses over a memory on each of several devices.
//!
//! Devices are added first; once all are there, each binds memory to ranges of the object. What is written through
//! a mapping of the object goes to the memory of every device; what is read is the reading device's own.

use super::vmm::GRANULARITY;
use super::{Backing, Object, Physical, Vmm, VmmError};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A multicast object.
#[derive(Debug)]
pub struct Multicast {
    /// Its handle. With recycling another object's once this one is gone.
    pub handle: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// How many devices take part.
    pub devices: u32,
    /// What a mapping shows where a backing must be named; it has no bytes.
    pub(super) empty: Arc<Backing>,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    devices: BTreeSet<i32>,
    bound: Vec<Bound>,
}

#[derive(Debug)]
struct Bound {
    offset: u64,
    bytes: u64,
    memory: Arc<Physical>,
    memory_offset: u64,
}

impl Bound {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl Multicast {
    /// Lets a device take part.
    ///
    /// # Errors
    /// It does already, or there are as many as the object has room for.
    pub fn add_device(&self, device: i32) -> Result<(), VmmError> {
        let mut state = self.state.write();
        if state.devices.len() as u32 >= self.devices || !state.devices.insert(device) {
            return Err(VmmError::Invalid);
        }
        Ok(())
    }

    /// Binds memory of a device that takes part to a range.
    ///
    /// # Errors
    /// Not all devices are there yet, the memory's is not among them, the range is not whole, outside or taken.
    pub fn bind(
        &self,
        offset: u64,
        memory: &Arc<Physical>,
        memory_offset: u64,
        bytes: u64,
    ) -> Result<(), VmmError> {
        let inside = |offset: u64, size: u64| offset <= size && bytes <= size - offset;
        let whole = [offset, memory_offset, bytes].iter().all(|n| n.is_multiple_of(GRANULARITY));
        if bytes == 0 || !whole || !inside(offset, self.bytes) || !inside(memory_offset, memory.bytes) {
            return Err(VmmError::Invalid);
        }
        let mut state = self.state.write();
        let taken =
            |b: &Bound| b.memory.device == memory.device && b.offset < offset + bytes && offset < b.end();
        if (state.devices.len() as u32) < self.devices
            || !state.devices.contains(&memory.device)
            || state.bound.iter().any(taken)
        {
            return Err(VmmError::Invalid);
        }
        state.bound.push(Bound { offset, bytes, memory: memory.clone(), memory_offset });
        Ok(())
    }

    /// Ends what a device has bound in a range, which holds only whole bindings.
    ///
    /// # Errors
    /// Nothing is bound there, or a part.
    pub fn unbind(&self, device: i32, offset: u64, bytes: u64) -> Result<(), VmmError> {
        let end = offset.checked_add(bytes).ok_or(VmmError::Invalid)?;
        let mut state = self.state.write();
        let touches = |b: &Bound| b.memory.device == device && b.offset < end && offset < b.end();
        let inside = |b: &Bound| b.offset >= offset && b.end() <= end;
        let hit: Vec<bool> = state.bound.iter().map(touches).collect();
        if !hit.contains(&true) || state.bound.iter().zip(&hit).any(|(b, hit)| *hit && !inside(b)) {
            return Err(VmmError::Invalid);
        }
        state.bound.retain(|b| !touches(b));
        Ok(())
    }

    /// The memories that are bound to all of a range: device, bytes, offset there.
    pub(super) fn replicas(&self, offset: u64, bytes: u64) -> Vec<(i32, Arc<Backing>, u64)> {
        let state = self.state.read();
        let covers = |b: &&Bound| b.offset <= offset && offset + bytes <= b.end();
        let place =
            |b: &Bound| (b.memory.device, b.memory.backing.clone(), b.memory_offset + offset - b.offset);
        state.bound.iter().filter(covers).map(place).collect()
    }
}

impl Vmm {
    /// Makes a multicast object. Returns its handle.
    ///
    /// # Errors
    /// No devices, a size of 0 or no multiple of the granularity.
    pub fn create_multicast(&self, bytes: u64, devices: u32) -> Result<u64, VmmError> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || devices == 0 {
            return Err(VmmError::Invalid);
        }
        let empty = Arc::new(Backing::new(0).ok_or(VmmError::Short(super::Shortage::Host))?);
        Ok(self.insert(|handle| {
            Object::Multicast(Arc::new(Multicast { handle, bytes, devices, empty, state: RwLock::default() }))
        }))
    }

    /// The multicast object behind a handle.
    ///
    /// # Errors
    /// No such handle, or one of physical memory.
    pub fn multicast(&self, handle: u64) -> Result<Arc<Multicast>, VmmError> {
        match self.object(handle)? {
            Object::Multicast(multicast) => Ok(multicast),
            Object::Memory(_) => Err(VmmError::Invalid),
        }
    }

    /// The physical memory behind a handle.
    ///
    /// # Errors
    /// No such handle, or one of a multicast object.
    pub fn physical(&self, handle: u64) -> Result<Arc<Physical>, VmmError> {
        match self.object(handle)? {
            Object::Memory(memory) => Ok(memory),
            Object::Multicast(_) => Err(VmmError::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{AddressSpace, DeviceView, Fill, Pattern, PhysicalRequest, Place, Transfer, Window};

    const M: u64 = GRANULARITY;

    fn memory(vmm: &Vmm, space: &AddressSpace, device: i32, bytes: u64) -> (u64, Arc<Physical>) {
        let handle =
            vmm.create(space, PhysicalRequest { bytes, device, ..PhysicalRequest::default() }).unwrap();
        (handle, vmm.physical(handle).unwrap())
    }

    #[test]
    fn writes_go_to_every_device_and_reads_are_ones_own() {
        let (space, vmm) = (AddressSpace::new(), Vmm::default());
        let object = vmm.create_multicast(2 * M, 2).unwrap();
        let multicast = vmm.multicast(object).unwrap();
        let (_, a) = memory(&vmm, &space, 0, 4 * M);
        let (_, b) = memory(&vmm, &space, 1, 2 * M);
        multicast.add_device(0).unwrap();
        multicast.add_device(1).unwrap();
        multicast.bind(0, &a, M, 2 * M).unwrap();
        multicast.bind(0, &b, 0, 2 * M).unwrap();
        let base = vmm.reserve(&space, 2 * M, 0, 0).unwrap();
        vmm.map(&space, base, 2 * M, 0, object).unwrap();
        vmm.set_access(&space, base, 2 * M, &[(0, 3), (1, 3)]).unwrap();
        let fill = |value, bytes| Fill {
            address: base + 8,
            pitch: 0,
            pattern: Pattern::U8(value),
            width: bytes,
            height: 1,
            allocation: 0,
            device: None,
        };
        fill(5, 100).run(&DeviceView::new(&space, 0)).unwrap();
        assert_eq!(a.backing.load::<2>(M + 8), [5, 5]);
        assert_eq!(b.backing.load::<2>(8 + 98), [5, 5]);
        // The memories differ now; each device reads its own.
        b.backing.store(8, [9u8, 9]);
        for (device, expected) in [(0, 5), (1, 9)] {
            let mut out = [0u8; 2];
            let copy = Transfer::linear(Place::Host(out.as_mut_ptr().addr()), Place::Memory(base + 8), 2);
            // SAFETY: `out` is writable.
            assert_eq!(unsafe { copy.run(&DeviceView::new(&space, device)) }, Ok(None));
            assert_eq!(out, [expected; 2]);
            let mut window = Window::new();
            let view = DeviceView::new(&space, device);
            let (backing, offset) = window.get(&view, base + 8, 2).unwrap();
            assert_eq!(backing.load::<1>(offset), [expected]);
        }
        let mapping = space.locate(base, 1).unwrap();
        assert_eq!(mapping.replicas(base + M, M).len(), 2);
        multicast.unbind(1, 0, 2 * M).unwrap();
        assert_eq!(mapping.replicas(base + M, M).len(), 1);
        assert!(
            fill(1, 1).run(&DeviceView::new(&space, 1)).is_ok(),
            "the other device's memory is still there"
        );
        multicast.unbind(0, 0, 2 * M).unwrap();
        assert!(fill(1, 1).run(&DeviceView::new(&space, 0)).is_err());
    }

    #[test]
    fn devices_come_first_and_ranges_are_whole_and_free() {
        let (space, vmm) = (AddressSpace::new(), Vmm::default());
        for (bytes, devices) in [(0, 1), (M + 1, 1), (M, 0)] {
            assert_eq!(vmm.create_multicast(bytes, devices), Err(VmmError::Invalid));
        }
        let handle = vmm.create_multicast(2 * M, 2).unwrap();
        let object = vmm.multicast(handle).unwrap();
        let (memory_handle, a) = memory(&vmm, &space, 0, 2 * M);
        assert_eq!(vmm.multicast(memory_handle).map(|_| ()), Err(VmmError::Invalid));
        assert_eq!(vmm.physical(handle).map(|_| ()), Err(VmmError::Invalid));
        assert_eq!(vmm.physical(77).map(|_| ()), Err(VmmError::NoHandle));
        object.add_device(0).unwrap();
        assert_eq!(object.add_device(0), Err(VmmError::Invalid));
        assert_eq!(object.bind(0, &a, 0, M), Err(VmmError::Invalid), "a device is missing");
        object.add_device(1).unwrap();
        assert_eq!(object.add_device(2), Err(VmmError::Invalid));
        for (offset, memory_offset, bytes) in [
            (0, 0, 0),
            (1, 0, M),
            (0, 1, M),
            (0, 0, M + 1),
            (2 * M, 0, M),
            (0, 2 * M, M),
            (0, 0, u64::MAX / M * M),
        ] {
            assert_eq!(object.bind(offset, &a, memory_offset, bytes), Err(VmmError::Invalid));
        }
        let (_, stranger) = memory(&vmm, &space, 2, M);
        assert_eq!(object.bind(0, &stranger, 0, M), Err(VmmError::Invalid));
        object.bind(0, &a, M, M).unwrap();
        assert_eq!(object.bind(0, &a, 0, 2 * M), Err(VmmError::Invalid), "taken");
        object.bind(M, &a, 0, M).unwrap();
        assert_eq!(object.unbind(0, 0, M + 1), Err(VmmError::Invalid));
        assert_eq!(object.unbind(1, 0, M), Err(VmmError::Invalid));
        assert_eq!(object.unbind(0, u64::MAX, M), Err(VmmError::Invalid));
        assert_eq!(object.unbind(0, 0, 2 * M), Ok(()));
    }
}
