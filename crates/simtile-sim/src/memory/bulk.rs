//! Copies and fills over whole ranges, as the copy engines do them.
//!
//! * A range may run over several VMM mappings that follow each other, else it lies in one allocation.
//! * A copy between ranges that overlap gives what a copy through a third place would give.
//! * The "was written" bits travel with the bytes. What arrives in host memory has no bits, so a copy to the host
//!   of bytes that nothing wrote is told ([`Unread`]), once a copy.
//! * A write through a multicast mapping goes to every memory bound there; a read is from the device's own.
//! * Peer access does not matter here: the driver copies between devices also without it. Rights of VMM mappings
//!   and pools do.

use super::{
    Access, AddressSpace, Allocation, Backing, DeviceView, FaultKind, MemoryFault, MemoryKind, Pattern, View,
};
use crate::check::Touch;
use smallvec::SmallVec;
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone, Debug)]
pub enum Place {
    /// An address of the space.
    Memory(u64),
    /// Pageable host memory, by its address.
    Host(usize),
    /// Bytes that were read from the host already, packed row by row.
    Staged(Arc<[u8]>),
}

/// One end of a copy with the distances of its rows and slices, bytes.
#[derive(Clone, Debug)]
pub struct Side {
    /// Where the first row starts.
    pub place: Place,
    /// From one row to the next.
    pub pitch: u64,
    /// From one slice to the next.
    pub slice: u64,
    /// Number of the allocation that a [`Place::Memory`] was in when the copy was described; 0 if nobody looked.
    pub allocation: u64,
}

/// A copy of `depth` slices of `height` rows of `width` bytes.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Destination.
    pub to: Side,
    /// Source.
    pub from: Side,
    /// Bytes in a row.
    pub width: u64,
    /// Rows in a slice.
    pub height: u64,
    /// Slices.
    pub depth: u64,
    /// Between devices by name (`cuMemcpyPeer`): each end is accessed by the device whose memory it is.
    pub peer: bool,
    /// The device that does it, if not the one whose stream it is on (nodes of graphs).
    pub device: Option<i32>,
}

/// A fill of `height` rows of `width` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// First byte.
    pub address: u64,
    /// From one row to the next, bytes.
    pub pitch: u64,
    /// What every element becomes.
    pub pattern: Pattern,
    /// Elements in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Number of the allocation that the address was in when the fill was described; 0 if nobody looked.
    pub allocation: u64,
    /// The device that does it, if not the one whose stream it is on (nodes of graphs).
    pub device: Option<i32>,
}

/// A copy gave the host bytes that nothing wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The first of them.
    pub address: u64,
    /// Label of its allocation.
    pub label: Option<String>,
}

/// Each memory behind a part of a range, with the offset of the first byte there. More than one only for multicast.
type Targets = SmallVec<[(Arc<Backing>, u64); 1]>;

/// A part of a range that lies in one mapping.
struct Piece {
    allocation: Arc<Allocation>,
    targets: Targets,
    address: u64,
    bytes: u64,
}

/// A part of a copy between ranges that lies in one piece of each.
struct Step {
    source: usize,
    in_source: u64,
    target: usize,
    in_target: u64,
    len: u64,
}

impl Side {
    /// An end without rows.
    pub const fn linear(place: Place) -> Self {
        Self { place, pitch: 0, slice: 0, allocation: 0 }
    }

    /// Bytes from the first to behind the last. `None` if that overflows.
    pub(crate) fn span(&self, width: u64, height: u64, depth: u64) -> Option<u64> {
        if width == 0 || height == 0 || depth == 0 {
            return Some(0);
        }
        let rows = self.pitch.checked_mul(height - 1)?;
        let slices = self.slice.checked_mul(depth - 1)?;
        rows.checked_add(slices)?.checked_add(width)
    }

    fn row(&self, y: u64, z: u64) -> u64 {
        self.pitch.wrapping_mul(y).wrapping_add(self.slice.wrapping_mul(z))
    }
}

impl Transfer {
    /// A copy of `bytes` bytes in one piece.
    pub const fn linear(to: Place, from: Place, bytes: u64) -> Self {
        Self {
            to: Side::linear(to),
            from: Side::linear(from),
            width: bytes,
            height: 1,
            depth: 1,
            peer: false,
            device: None,
        }
    }

    /// Whether there is nothing to copy.
    pub const fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// Bytes that are copied.
    pub const fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    /// Whether both ends may be accessed so, in one view.
    ///
    /// # Errors
    /// The access that may not.
    pub fn check(&self, space: &AddressSpace, view: View, device: i32) -> Result<(), MemoryFault> {
        let device = if self.peer { AddressSpace::OWNER } else { device };
        for (side, access) in [(&self.from, Access::Read), (&self.to, Access::Write)] {
            if let Place::Memory(address) = side.place {
                let Some(span) = side.span(self.width, self.height, self.depth) else {
                    return Err(MemoryFault {
                        kind: FaultKind::OutOfBounds,
                        address,
                        bytes: u64::MAX,
                        near: None,
                    });
                };
                space.check(view, device, access, address, span)?;
            }
        }
        Ok(())
    }

    /// Notes which allocations its ends are in now.
    pub fn identify(&mut self, space: &AddressSpace) {
        for side in [&mut self.from, &mut self.to] {
            if let Place::Memory(address) = side.place {
                side.allocation = space.find(address).map_or(0, |allocation| allocation.id);
            }
        }
    }

    /// Reads the whole source into a [`Place::Staged`], which then is the source.
    ///
    /// # Safety
    /// A [`Place::Host`] source is readable.
    pub unsafe fn stage(&mut self) {
        let Place::Host(start) = self.from.place else { return };
        let mut bytes = Vec::with_capacity(self.bytes() as usize);
        for z in 0..self.depth {
            for y in 0..self.height {
                let row = start.wrapping_add(self.from.row(y, z) as usize) as *const u8;
                // SAFETY: readable, says the caller.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(row, self.width as usize) });
            }
        }
        self.from = Side {
            place: Place::Staged(bytes.into()),
            pitch: self.width,
            slice: self.width.saturating_mul(self.height),
            allocation: 0,
        };
    }

    /// Copies, for running work of a device.
    ///
    /// # Errors
    /// The first access that is refused; earlier rows are copied then.
    ///
    /// # Safety
    /// [`Place::Host`] ends are readable or writable for all their rows.
    pub unsafe fn run(&self, view: &DeviceView<'_>) -> Result<Option<Unread>, MemoryFault> {
        let mut unread = None;
        if self.is_empty() {
            return Ok(None);
        }
        let view = &if self.peer { DeviceView { device: AddressSpace::OWNER, ..*view } } else { *view };
        let whole = |side: &Side| {
            (self.height == 1 || side.pitch == self.width)
                && (self.depth == 1 || side.slice == self.width.saturating_mul(self.height))
        };
        let (width, rows) = if whole(&self.to) && whole(&self.from) {
            (self.bytes(), 1)
        } else {
            (self.width, self.height.saturating_mul(self.depth))
        };
        // Rows from the last on where the destination lies behind the source, as in a one-dimensional copy.
        let backwards = match (&self.to.place, &self.from.place) {
            (Place::Memory(to), Place::Memory(from)) => to > from,
            (Place::Host(to), Place::Host(from)) => to > from,
            _ => false,
        };
        for i in 0..rows {
            let i = if backwards { rows - 1 - i } else { i };
            let (y, z) = (i % self.height, i / self.height);
            let (to, from) = (self.to.row(y, z), self.from.row(y, z));
            // SAFETY: as this function.
            unsafe { copy_row(view, &self.to, to, &self.from, from, width, &mut unread)? };
        }
        Ok(unread)
    }
}

impl Fill {
    /// Bytes that are filled.
    pub const fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.pattern.bytes()).saturating_mul(self.height)
    }

    /// Whether the range may be written, in one view.
    ///
    /// # Errors
    /// The access that may not.
    pub fn check(&self, space: &AddressSpace, view: View, device: i32) -> Result<(), MemoryFault> {
        let side = Side { pitch: self.pitch, ..Side::linear(Place::Memory(self.address)) };
        let width = self.width.checked_mul(self.pattern.bytes());
        match width.and_then(|width| side.span(width, self.height, 1)) {
            Some(span) => space.check(view, device, Access::Write, self.address, span),
            None => {
                let (kind, bytes) = (FaultKind::OutOfBounds, u64::MAX);
                Err(MemoryFault { kind, address: self.address, bytes, near: None })
            }
        }
    }

    /// Fills, for running work of a device.
    ///
    /// # Errors
    /// The first access that is refused; earlier rows are filled then.
    pub fn run(&self, view: &DeviceView<'_>) -> Result<(), MemoryFault> {
        let width = self.width.saturating_mul(self.pattern.bytes());
        let (width, rows) =
            if self.pitch == width { (width.saturating_mul(self.height), 1) } else { (width, self.height) };
        if width == 0 || self.height == 0 {
            return Ok(());
        }
        for y in 0..rows {
            let address = self.address.wrapping_add(self.pitch.wrapping_mul(y));
            // Mappings start and end on whole patterns, since their sizes are multiples of 4 or they stand alone.
            for piece in view.pieces(Access::Write, address, width)? {
                for (backing, offset) in &piece.targets {
                    backing.fill(*offset, self.pattern, piece.bytes);
                    backing.mark_written(*offset, piece.bytes);
                }
            }
        }
        Ok(())
    }
}

/// # Safety
/// Host ends are valid for `bytes` bytes at their offsets.
#[allow(clippy::too_many_arguments, reason = "two ends with an offset each")]
unsafe fn copy_row(
    view: &DeviceView<'_>,
    to: &Side,
    to_offset: u64,
    from: &Side,
    from_offset: u64,
    bytes: u64,
    unread: &mut Option<Unread>,
) -> Result<(), MemoryFault> {
    let host = |start: usize, offset: u64| start.wrapping_add(offset as usize) as *mut u8;
    match (&to.place, &from.place) {
        (Place::Memory(to), Place::Memory(from)) => {
            let (to, from) = (to.wrapping_add(to_offset), from.wrapping_add(from_offset));
            view.copy_between(to, from, bytes, unread)
        }
        (Place::Memory(to), Place::Host(from)) => {
            // SAFETY: says the caller.
            unsafe { view.copy_in(to.wrapping_add(to_offset), host(*from, from_offset), bytes) }
        }
        (Place::Memory(to), Place::Staged(from)) => {
            let start = from_offset as usize;
            let Some(piece) = from.get(start..start.saturating_add(bytes as usize)) else {
                return Ok(());
            };
            // SAFETY: a slice is valid for its length.
            unsafe { view.copy_in(to.wrapping_add(to_offset), piece.as_ptr(), bytes) }
        }
        (Place::Host(to), Place::Memory(from)) => {
            let from = from.wrapping_add(from_offset);
            // SAFETY: says the caller.
            unsafe { view.copy_out(host(*to, to_offset), from, bytes, unread) }
        }
        (Place::Host(to), Place::Host(from)) => {
            // SAFETY: says the caller; the ranges may overlap.
            unsafe { std::ptr::copy(host(*from, from_offset), host(*to, to_offset), bytes as usize) };
            Ok(())
        }
        (Place::Host(to), Place::Staged(from)) => {
            let start = from_offset as usize;
            if let Some(piece) = from.get(start..start.saturating_add(bytes as usize)) {
                // SAFETY: says the caller; staged bytes are our own.
                unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), host(*to, to_offset), piece.len()) };
            }
            Ok(())
        }
        // Nobody makes staged bytes a destination.
        (Place::Staged(_), _) => Ok(()),
    }
}

impl AddressSpace {
    /// Whether a device may do this to a range, in one view. An empty range may lie anywhere.
    ///
    /// # Errors
    /// The part that it may not.
    pub fn check(
        &self,
        view: View,
        device: i32,
        access: Access,
        address: u64,
        bytes: u64,
    ) -> Result<(), MemoryFault> {
        self.pieces(view, device, access, address, bytes).map(|_| ())
    }

    fn pieces(
        &self,
        view: View,
        device: i32,
        access: Access,
        address: u64,
        bytes: u64,
    ) -> Result<SmallVec<[Piece; 1]>, MemoryFault> {
        let mut pieces = SmallVec::new();
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let allocation = self.locate_in(view, at, 1)?;
            let here = (allocation.end_address() - at).min(left);
            if here < left && allocation.kind != MemoryKind::Virtual || pieces.len() > 1 << 16 {
                let near = Some(allocation.nearby());
                return Err(MemoryFault { kind: FaultKind::OutOfBounds, address, bytes, near });
            }
            if let Some(kind @ (FaultKind::ReadOnly | FaultKind::NoAccess | FaultKind::NoPeerAccess)) =
                self.refusal(device, &allocation, access).filter(|_| allocation.rights().is_some())
            {
                let near = Some(allocation.nearby());
                return Err(MemoryFault { kind, address, bytes, near });
            }
            let targets = self.targets(&allocation, device, access, at, here)?;
            pieces.push(Piece { allocation, targets, address: at, bytes: here });
            left -= here;
            // The end of the range is no address that is looked up, so this cannot matter when it wraps.
            at = at.wrapping_add(here);
        }
        Ok(pieces)
    }

    fn targets(
        &self,
        allocation: &Arc<Allocation>,
        device: i32,
        access: Access,
        address: u64,
        bytes: u64,
    ) -> Result<Targets, MemoryFault> {
        if allocation.multicast.is_none() {
            let offset = allocation.backing_offset + (address - allocation.base);
            return Ok(SmallVec::from_buf([(allocation.backing.clone(), offset)]));
        }
        let replicas = allocation.replicas(address, bytes);
        let wanted = |(owner, backing, offset): (i32, Arc<Backing>, u64)| {
            (access == Access::Write || owner == device).then_some((backing, offset))
        };
        let targets: SmallVec<_> = replicas.into_iter().filter_map(wanted).collect();
        if targets.is_empty() {
            let near = Some(allocation.nearby());
            return Err(MemoryFault { kind: FaultKind::Unmapped, address, bytes, near });
        }
        Ok(targets)
    }
}

impl DeviceView<'_> {
    /// The parts of an access of running work, noted in the log.
    fn pieces(&self, access: Access, address: u64, bytes: u64) -> Result<SmallVec<[Piece; 1]>, MemoryFault> {
        let pieces = self.space.pieces(View::Execution, self.device, access, address, bytes)?;
        if let Some(log) = self.log {
            let touch = if access == Access::Read { Touch::Read } else { Touch::Write };
            for piece in &pieces {
                for (backing, offset) in &piece.targets {
                    log.map(backing, &piece.allocation, 0).note(*offset, piece.bytes, touch, 0);
                }
            }
        }
        Ok(pieces)
    }

    /// # Safety
    /// `from` is readable for `bytes` bytes.
    unsafe fn copy_in(&self, to: u64, mut from: *const u8, bytes: u64) -> Result<(), MemoryFault> {
        for piece in self.pieces(Access::Write, to, bytes)? {
            for (backing, offset) in &piece.targets {
                // SAFETY: the pieces are `bytes` bytes together, readable says the caller.
                unsafe { backing.write_raw(*offset, from, piece.bytes as usize) };
                backing.mark_written(*offset, piece.bytes);
            }
            from = from.wrapping_add(piece.bytes as usize);
        }
        Ok(())
    }

    /// # Safety
    /// `to` is writable for `bytes` bytes.
    unsafe fn copy_out(
        &self,
        mut to: *mut u8,
        from: u64,
        bytes: u64,
        unread: &mut Option<Unread>,
    ) -> Result<(), MemoryFault> {
        for piece in self.pieces(Access::Read, from, bytes)? {
            if let Some((backing, offset)) = piece.targets.first() {
                // SAFETY: the pieces are `bytes` bytes together, writable says the caller.
                unsafe { backing.read_raw(*offset, to, piece.bytes as usize) };
                piece.note_unread(backing, *offset, piece.bytes, unread);
            }
            to = to.wrapping_add(piece.bytes as usize);
        }
        Ok(())
    }

    fn copy_between(
        &self,
        to: u64,
        from: u64,
        bytes: u64,
        unread: &mut Option<Unread>,
    ) -> Result<(), MemoryFault> {
        let sources = self.pieces(Access::Read, from, bytes)?;
        let targets = self.pieces(Access::Write, to, bytes)?;
        // Both ends cut at the borders of both.
        let (mut s, mut t, mut done) = (0, 0, 0);
        let (mut in_source, mut in_target) = (0, 0);
        let mut steps: SmallVec<[Step; 1]> = SmallVec::new();
        while done < bytes {
            let len = (sources[s].bytes - in_source).min(targets[t].bytes - in_target);
            steps.push(Step { source: s, in_source, target: t, in_target, len });
            (in_source, in_target, done) = (in_source + len, in_target + len, done + len);
            if in_source == sources[s].bytes {
                (s, in_source) = (s + 1, 0);
            }
            if in_target == targets[t].bytes {
                (t, in_target) = (t + 1, 0);
            }
        }
        if to > from {
            steps.reverse();
        }
        for Step { source, in_source, target, in_target, len } in steps {
            let (source, target) = (&sources[source], &targets[target]);
            let Some((memory, from)) = source.targets.first() else { continue };
            for (replica, to) in &target.targets {
                replica.copy(to + in_target, memory, from + in_source, len);
                replica.copy_written(to + in_target, memory, from + in_source, len);
            }
            if target.allocation.kind == MemoryKind::Pinned {
                source.note_unread(memory, from + in_source, len, unread);
            }
        }
        Ok(())
    }
}

impl Piece {
    fn note_unread(&self, backing: &Backing, offset: u64, bytes: u64, unread: &mut Option<Unread>) {
        if unread.is_none()
            && let Some(first) = backing.first_unwritten(offset, bytes)
        {
            let start = self.targets.first().map_or(0, |(_, start)| *start);
            let address = self.address + (first - start);
            *unread = Some(Unread { address, label: self.allocation.label() });
        }
    }
}

#[cfg(test)]
mod tests;
