//! The memory as one device sees it, and a cache for kernels.

use super::{Access, AddressSpace, Allocation, Backing, FaultKind, MemoryFault};
use crate::check::{AccessLog, Touch, TouchMap};
use std::sync::Arc;

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

    /// The allocation behind a read, if the device may reach it.
    ///
    /// # Errors
    /// As [`AddressSpace::locate`], or no access.
    pub fn locate(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryFault> {
        self.locate_for(Access::Read, address, bytes)
    }

    /// The allocation behind an access, if the device may do it.
    ///
    /// # Errors
    /// As [`DeviceView::locate`], or a write to what is read-only.
    pub fn locate_for(
        &self,
        access: Access,
        address: u64,
        bytes: u64,
    ) -> Result<Arc<Allocation>, MemoryFault> {
        let allocation = self.space.locate(address, bytes)?;
        match self.space.refusal(self.device, &allocation, access) {
            None => Ok(allocation),
            Some(kind) => {
                let near = Some(allocation.nearby());
                Err(MemoryFault { kind, address, bytes, near })
            }
        }
    }
}

/// A one-entry cache in front of [`DeviceView::locate`]: keep one for each stream of accesses, and use it with
/// one view.
///
/// [`Window::access`] is for the accesses of a kernel or copy: it knows reads from writes, and notes them in the
/// view's log. [`Window::get`] only looks.
///
/// A multicast mapping shows the device's own replica; the others are found by [`Allocation::replicas`].
#[derive(Default)]
pub struct Window {
    last: Option<Hit>,
    touched: Option<Arc<TouchMap>>,
    site: u16,
}

struct Hit {
    allocation: Arc<Allocation>,
    backing: Arc<Backing>,
    /// First address of what `backing` holds from `offset` on.
    base: u64,
    bytes: u64,
    offset: u64,
    writable: bool,
}

impl Window {
    /// An empty window.
    pub const fn new() -> Self {
        Self { last: None, touched: None, site: 0 }
    }

    /// An empty window of one instruction of a kernel, by a number for [`Program::place`]; 0 is none, and numbers
    /// that do not fit count as none.
    ///
    /// [`Program::place`]: crate::exec::Program::place
    pub fn of(site: usize) -> Self {
        Self { site: u16::try_from(site).unwrap_or(0), ..Self::new() }
    }

    /// The backing behind a read and the offset of its first byte there.
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
        self.get_for(Access::Read, view, address, bytes)
    }

    /// The backing behind an access and the offset of its first byte there.
    ///
    /// # Errors
    /// As [`DeviceView::locate_for`].
    #[inline]
    pub fn get_for(
        &mut self,
        access: Access,
        view: &DeviceView<'_>,
        address: u64,
        bytes: u64,
    ) -> Result<(&Arc<Backing>, u64), MemoryFault> {
        let hit = self.last.as_ref().is_some_and(|hit| {
            let offset = address.wrapping_sub(hit.base);
            hit.allocation.is_live()
                && offset <= hit.bytes
                && bytes <= hit.bytes - offset
                && (hit.writable || access == Access::Read)
        });
        if !hit {
            let hit = miss(access, view, address, bytes)?;
            self.touched = view.log.map(|log| log.map(&hit.backing, &hit.allocation, self.site));
            self.last = Some(hit);
        }
        match &self.last {
            Some(hit) => Ok((&hit.backing, hit.offset + (address - hit.base))),
            // `last` was set above; there is no third case.
            None => Err(MemoryFault { kind: FaultKind::Unmapped, address, bytes, near: None }),
        }
    }

    /// The backing and offset of an access that is about to be made, noted in the view's log.
    ///
    /// # Errors
    /// As [`DeviceView::locate_for`].
    #[inline]
    pub fn access(
        &mut self,
        view: &DeviceView<'_>,
        address: u64,
        bytes: u64,
        touch: Touch,
    ) -> Result<(&Arc<Backing>, u64), MemoryFault> {
        let access = if touch == Touch::Read { Access::Read } else { Access::Write };
        let (_, offset) = self.get_for(access, view, address, bytes)?;
        if let Some(touched) = &self.touched {
            touched.note(offset, bytes, touch, self.site);
        }
        match &self.last {
            Some(hit) => Ok((&hit.backing, offset)),
            // `get_for` set it; there is no third case.
            None => Err(MemoryFault { kind: FaultKind::Unmapped, address, bytes, near: None }),
        }
    }

    /// Notes an access in the view's log: for callers that find the memory once for several accesses. The
    /// offset is one that the last call gave, or lies in the same mapping.
    #[inline]
    pub fn note(&self, offset: u64, bytes: u64, touch: Touch) {
        if let Some(touched) = &self.touched {
            touched.note(offset, bytes, touch, self.site);
        }
    }

    /// Whether there is a log.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.touched.is_some()
    }

    /// The backing behind the last access.
    #[inline]
    pub fn backing(&self) -> Option<&Arc<Backing>> {
        self.last.as_ref().map(|hit| &hit.backing)
    }

    /// The allocation behind the last access.
    pub fn allocation(&self) -> Option<&Arc<Allocation>> {
        self.last.as_ref().map(|hit| &hit.allocation)
    }
}

#[cold]
fn miss(access: Access, view: &DeviceView<'_>, address: u64, bytes: u64) -> Result<Hit, MemoryFault> {
    let allocation = view.locate_for(access, address, bytes)?;
    let writable = view.space.refusal(view.device, &allocation, Access::Write).is_none();
    if allocation.multicast.is_some() {
        let own = allocation.replicas(address, bytes).into_iter().find(|(device, ..)| *device == view.device);
        let Some((_, backing, offset)) = own else {
            let near = Some(allocation.nearby());
            return Err(MemoryFault { kind: FaultKind::Unmapped, address, bytes, near });
        };
        // Only what was asked for is known to be bound in one piece.
        return Ok(Hit { allocation, backing, base: address, bytes, offset, writable });
    }
    let (backing, base, bytes, offset) =
        (allocation.backing.clone(), allocation.base, allocation.bytes, allocation.backing_offset);
    Ok(Hit { allocation, backing, base, bytes, offset, writable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryKind;

    #[test]
    fn a_window_follows_frees_bounds_and_peers() {
        let space = AddressSpace::new();
        let a = space.allocate(MemoryKind::Device, 0, 64).unwrap();
        let view = DeviceView::new(&space, 0);
        let mut window = Window::new();
        assert_eq!(window.get(&view, a.base + 60, 4).unwrap().1, 60);
        assert_eq!(window.get(&view, a.base + 61, 4).unwrap_err().kind, FaultKind::OutOfBounds);
        assert_eq!(window.allocation().unwrap().id, a.id);
        let other = DeviceView::new(&space, 1);
        let refused = Window::new().get_for(Access::Write, &other, a.base, 4).map(|_| ());
        assert_eq!(refused.unwrap_err().kind, FaultKind::NoPeerAccess);
        space.set_peer_access(1, 0, true);
        assert!(Window::new().get_for(Access::Write, &other, a.base, 4).is_ok());
        space.release(a.base).unwrap();
        assert_eq!(window.get(&view, a.base, 4).unwrap_err().kind, FaultKind::Freed);
    }
}
