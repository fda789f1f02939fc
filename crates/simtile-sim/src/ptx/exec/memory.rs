//! Loads and stores.

use super::cluster::Block;
use super::grid::Worker;
use super::{Result, each_lane, fault};
use crate::check::Touch;
use crate::exec::{FaultReason, FindingKind};
use crate::memory::{Access, FaultKind, MemoryFault};
use crate::ptx::code::{Lanes, Space, window};

/// Plain bytes with one "was written" bit each: shared memory of a block, local memory of a thread.
#[derive(Default)]
pub(super) struct Bytes {
    data: Vec<u8>,
    written: Vec<u64>,
}

impl Bytes {
    pub(super) fn new(len: usize) -> Self {
        let mut bytes = Self::default();
        bytes.grow(len);
        bytes
    }

    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    /// Makes it at least this long.
    pub(super) fn grow(&mut self, len: usize) {
        if self.data.is_empty() {
            // Zeroed by the allocator: pages that nobody touches cost nothing.
            self.data = vec![0; len];
            self.written = vec![0; len.div_ceil(64)];
        } else if len > self.data.len() {
            self.data.resize(len, 0);
            self.written.resize(len.div_ceil(64), 0);
        }
    }

    /// As new, with this length.
    pub(super) fn restart(&mut self, len: usize) {
        // Clearing no bytes at a pointer to nowhere takes some processors thousands of cycles.
        if len == 0 && self.data.is_empty() {
            return;
        }
        self.data.truncate(len);
        self.written.truncate(len.div_ceil(64));
        self.data.fill(0);
        self.written.fill(0);
        if self.data.len() < len {
            self.grow(len);
        }
    }

    /// Makes a range count as never written.
    pub(super) fn forget(&mut self, from: usize, to: usize) {
        for at in from..to.min(self.data.len()) {
            self.written[at / 64] &= !(1 << (at % 64));
        }
    }

    #[inline]
    pub(super) fn load(&self, offset: usize, width: usize) -> Option<u64> {
        let bytes = self.data.get(offset..offset.checked_add(width)?)?;
        Some(match width {
            4 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
            8 => u64::from_le_bytes(bytes.try_into().ok()?),
            1 => bytes[0].into(),
            2 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
            _ => bytes.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)),
        })
    }

    #[inline]
    pub(super) fn store(&mut self, offset: usize, width: usize, value: u64) -> Option<()> {
        let bytes = self.data.get_mut(offset..offset.checked_add(width)?)?;
        match width {
            4 => bytes.copy_from_slice(&(value as u32).to_le_bytes()),
            8 => bytes.copy_from_slice(&value.to_le_bytes()),
            _ => bytes.copy_from_slice(&value.to_le_bytes()[..width]),
        }
        self.mark(offset, width);
        Some(())
    }

    /// A range, if it is inside and, should that matter, written.
    fn get(&self, offset: u64, bytes: u64, check: bool) -> Option<&[u8]> {
        let from = to_index(offset);
        let found = self.data.get(from..from.checked_add(bytes as usize)?)?;
        if check {
            let mut at = from;
            while at < from + found.len() {
                let width = (64 - at % 64).min(from + found.len() - at);
                if self.first_unwritten(at, width).is_some() {
                    return None;
                }
                at += width;
            }
        }
        Some(found)
    }

    /// Writes a range, if it is inside.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let from = to_index(offset);
        let Some(end) = from.checked_add(bytes.len()) else { return false };
        let Some(to) = self.data.get_mut(from..end) else { return false };
        to.copy_from_slice(bytes);
        let mut at = from;
        while at < end {
            let width = (64 - at % 64).min(end - at);
            self.mark(at, width);
            at += width;
        }
        true
    }

    #[inline]
    fn mark(&mut self, offset: usize, width: usize) {
        let (word, shift) = (offset / 64, offset % 64);
        let mask = ((1u128 << width) - 1) << shift;
        self.written[word] |= mask as u64;
        if shift + width > 64 {
            self.written[word + 1] |= (mask >> 64) as u64;
        }
    }

    /// The first byte of the range that was never written.
    #[inline]
    pub(super) fn first_unwritten(&self, offset: usize, width: usize) -> Option<usize> {
        let (word, shift) = (offset / 64, offset % 64);
        if shift + width <= 64 {
            let mask = if width == 64 { u64::MAX } else { ((1u64 << width) - 1) << shift };
            if self.written.get(word).is_some_and(|w| w & mask == mask) {
                return None;
            }
        }
        (offset..offset + width).find(|at| self.written.get(at / 64).is_none_or(|w| w >> (at % 64) & 1 == 0))
    }
}

/// Where an address of a lane points.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Global(u64),
    /// Block of the cluster, offset.
    Shared(usize, u64),
    Local(u64),
    Param(u64),
}

/// What a warp's memory instruction works on.
pub(super) struct Memory<'a, 'r> {
    pub worker: &'a mut Worker<'r>,
    pub blocks: &'a mut [Block],
    /// The executing block.
    pub block: usize,
    pub local: &'a mut [Bytes; 32],
    /// Where the instruction stands, for findings.
    pub pc: u32,
    pub warp: u32,
    /// Whether the access has atomic semantics.
    pub strong: bool,
}

impl Memory<'_, '_> {
    /// Which memory an address of a space means.
    pub(super) fn resolve(&self, space: Space, address: u64) -> Place {
        match space {
            Space::Global => Place::Global(address),
            Space::Shared => self.shared_place(address),
            Space::Local => Place::Local(address),
            Space::Param => Place::Param(address),
            Space::Generic if address < window::SHARED => Place::Global(address),
            Space::Generic => match address >> 32 << 32 {
                window::SHARED => self.shared_place(address & 0xFFFF_FFFF),
                window::LOCAL => Place::Local(address & 0xFFFF_FFFF),
                window::PARAM => Place::Param(address & 0xFFFF_FFFF),
                _ => Place::Global(address),
            },
        }
    }

    fn shared_place(&self, address: u64) -> Place {
        let rank = address >> window::RANK_SHIFT;
        let offset = address & ((1 << window::RANK_SHIFT) - 1);
        match rank {
            0 => Place::Shared(self.block, offset),
            1..=0xFF if rank as usize <= self.blocks.len() => Place::Shared(rank as usize - 1, offset),
            // No such block: out of every bound.
            _ => Place::Shared(self.block, address),
        }
    }

    pub(super) fn misaligned(address: u64, bytes: u64) -> FaultReason {
        FaultReason::Memory(MemoryFault { kind: FaultKind::Misaligned, address, bytes, near: None })
    }

    fn outside(space: &'static str, address: u64, bytes: u64, limit: usize) -> FaultReason {
        FaultReason::Space { space, address, bytes, limit: limit as u64 }
    }

    /// Loads `n` elements of `width` bytes for each lane of a mask into `out`.
    #[inline(always)]
    pub(super) fn load(
        &mut self,
        space: Space,
        cache: u32,
        width: u32,
        addresses: &Lanes,
        mask: u32,
        out: &mut [Lanes],
    ) -> Result<()> {
        let total = u64::from(width) * out.len() as u64;
        if mask == u32::MAX
            && let Some(row) = Row::of(addresses, total)
            && self.load_row(space, cache, width, row, out)
        {
            return Ok(());
        }
        let all_global = match space {
            Space::Global => true,
            Space::Generic => each_lane(mask).all(|l| addresses[l] < window::SHARED),
            _ => false,
        };
        if all_global && self.load_together(cache, width, total, addresses, mask, out)? {
            return Ok(());
        }
        if space == Space::Shared && self.load_shared(width, total, addresses, mask, out) {
            return Ok(());
        }
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if address & (total - 1) != 0 {
                return fault(lane as u32, Self::misaligned(address, total));
            }
            let place = self.resolve(space, address);
            self.check_written(place, total, lane, cache)?;
            for (i, out) in out.iter_mut().enumerate() {
                let offset = i as u64 * u64::from(width);
                out[lane] = self.load_one(place, offset, width, lane, cache)?;
            }
        }
        Ok(())
    }

    /// The case that the lanes read one aligned, written piece of memory, or all the same bytes. False if something
    /// is not as it should be: what, is found out lane by lane.
    #[inline(always)]
    fn load_row(&mut self, space: Space, cache: u32, width: u32, row: Row, out: &mut [Lanes]) -> bool {
        let run = self.worker.run;
        let check = run.ctx.check_uninitialised;
        let bytes: &[u8] = match self.resolve(space, row.start) {
            Place::Global(address) => {
                let touch = if self.strong { Touch::Atomic } else { Touch::Read };
                let worker = &mut *self.worker;
                let Some(window) = worker.windows.get_mut(cache as usize) else { return false };
                let Ok((backing, at)) = window.get(&run.ctx.memory, address, row.bytes) else { return false };
                if check && !backing.is_written(at, row.bytes) {
                    return false;
                }
                let Some(piece) = worker.piece.get_mut(..row.bytes as usize) else { return false };
                backing.read(at, piece);
                window.note(at, row.bytes, touch);
                piece
            }
            Place::Shared(block, at) => match self.blocks[block].shared.get(at, row.bytes, check) {
                Some(found) => found,
                None => return false,
            },
            Place::Param(at) => {
                let end = to_index(at).saturating_add(row.bytes as usize);
                match run.launch.params.get(to_index(at)..end) {
                    Some(found) => found,
                    None => return false,
                }
            }
            Place::Local(_) => return false,
        };
        let (width, stride) = (width as usize, row.stride as usize);
        for (i, out) in out.iter_mut().enumerate() {
            let bytes = &bytes[i * width..];
            match width {
                1 => unpack::<1>(bytes, stride, out, |b| u8::from_le_bytes(b).into()),
                2 => unpack::<2>(bytes, stride, out, |b| u16::from_le_bytes(b).into()),
                4 => unpack::<4>(bytes, stride, out, |b| u32::from_le_bytes(b).into()),
                _ => unpack::<8>(bytes, stride, out, u64::from_le_bytes),
            }
        }
        true
    }

    /// As [`Memory::load_row`], for stores to consecutive addresses.
    #[inline(always)]
    fn store_row(&mut self, space: Space, cache: u32, width: u32, row: Row, values: &[&Lanes]) -> bool {
        let place = self.resolve(space, row.start);
        let worker = &mut *self.worker;
        let Some(bytes) = worker.piece.get_mut(..row.bytes as usize) else { return false };
        let (width, stride) = (width as usize, row.stride as usize);
        for (i, values) in values.iter().enumerate() {
            let bytes = &mut bytes[i * width..];
            match width {
                1 => pack::<1>(bytes, stride, values, |v| (v as u8).to_le_bytes()),
                2 => pack::<2>(bytes, stride, values, |v| (v as u16).to_le_bytes()),
                4 => pack::<4>(bytes, stride, values, |v| (v as u32).to_le_bytes()),
                _ => pack::<8>(bytes, stride, values, u64::to_le_bytes),
            }
        }
        match place {
            Place::Global(address) => {
                let touch = if self.strong { Touch::Atomic } else { Touch::Write };
                let Some(window) = worker.windows.get_mut(cache as usize) else { return false };
                let view = &worker.run.ctx.memory;
                let found = window.get_for(Access::Write, view, address, row.bytes);
                let Ok((backing, at)) = found else { return false };
                backing.write(at, bytes);
                backing.mark_written(at, row.bytes);
                window.note(at, row.bytes, touch);
                true
            }
            Place::Shared(block, at) => self.blocks[block].shared.put(at, bytes),
            _ => false,
        }
    }

    /// The case that all lanes read written, aligned bytes of their own block. False if one does not: what is
    /// wrong is found out lane by lane.
    fn load_shared(
        &mut self,
        width: u32,
        total: u64,
        addresses: &Lanes,
        mask: u32,
        out: &mut [Lanes],
    ) -> bool {
        let shared = &self.blocks[self.block].shared;
        let check = self.worker.run.ctx.check_uninitialised;
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if address & (total - 1) != 0 || address.saturating_add(total) > shared.len() as u64 {
                return false;
            }
            if check && shared.first_unwritten(address as usize, total as usize).is_some() {
                return false;
            }
            for (i, out) in out.iter_mut().enumerate() {
                let at = address as usize + i * width as usize;
                out[lane] = shared.load(at, width as usize).unwrap_or(0);
            }
        }
        true
    }

    /// As [`Memory::load_shared`], for stores of one element. Nothing is stored if it returns false.
    fn store_shared(&mut self, width: u32, addresses: &Lanes, mask: u32, values: &Lanes) -> bool {
        let shared = &mut self.blocks[self.block].shared;
        let wide = u64::from(width);
        let limit = shared.len() as u64;
        let fits = |a: u64| a & (wide - 1) == 0 && a.saturating_add(wide) <= limit;
        if !each_lane(mask).all(|l| fits(addresses[l])) {
            return false;
        }
        for lane in each_lane(mask) {
            let _ = shared.store(addresses[lane] as usize, width as usize, values[lane]);
        }
        true
    }

    /// The case that all lanes hit one allocation. False if they do not.
    fn load_together(
        &mut self,
        cache: u32,
        width: u32,
        total: u64,
        addresses: &Lanes,
        mask: u32,
        out: &mut [Lanes],
    ) -> Result<bool> {
        let Some((low, high)) = bounds(addresses, mask) else { return Ok(true) };
        let view = self.worker.run.ctx.memory;
        let Some(span) = (high - low).checked_add(total) else { return Ok(false) };
        let check = self.worker.run.ctx.check_uninitialised;
        let Some(window) = self.worker.windows.get_mut(cache as usize) else { return Ok(false) };
        let Ok((_, start)) = window.get(&view, low, span) else { return Ok(false) };
        let start = start.wrapping_sub(low);
        if window.is_logged() {
            let touch = if self.strong { Touch::Atomic } else { Touch::Read };
            each_lane(mask).for_each(|l| window.note(start.wrapping_add(addresses[l]), total, touch));
        }
        let Some(backing) = window.backing() else { return Ok(false) };
        let mut unwritten = None;
        let whole = !check || span <= 1024 && backing.is_written(start.wrapping_add(low), span);
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if address & (total - 1) != 0 {
                return fault(lane as u32, Self::misaligned(address, total));
            }
            let offset = start.wrapping_add(address);
            if !whole && unwritten.is_none() && !backing.is_written(offset, total) {
                unwritten = backing.first_unwritten(offset, total).map(|at| (lane, at.wrapping_sub(start)));
            }
            for (i, out) in out.iter_mut().enumerate() {
                let offset = offset + i as u64 * u64::from(width);
                out[lane] = match width {
                    1 => u8::from_le_bytes(backing.load::<1>(offset)).into(),
                    2 => u16::from_le_bytes(backing.load::<2>(offset)).into(),
                    4 => u32::from_le_bytes(backing.load::<4>(offset)).into(),
                    _ => u64::from_le_bytes(backing.load::<8>(offset)),
                };
            }
        }
        if let Some((lane, address)) = unwritten {
            self.report_unwritten(lane, address, total, "global", cache);
        }
        Ok(true)
    }

    pub(super) fn report_unwritten(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u64,
        space: &'static str,
        cache: u32,
    ) {
        let label = match space {
            "global" => {
                self.worker.windows.get(cache as usize).and_then(|w| w.allocation()).and_then(|a| a.label())
            }
            _ => None,
        };
        let kind = FindingKind::UninitialisedRead { address, bytes, space, label };
        let coords = self.blocks[self.block].coords;
        self.worker.report(self.pc, coords, self.warp, lane as u32, kind);
    }

    /// Reports a read of bytes that nobody wrote.
    pub(super) fn check_written(&mut self, place: Place, bytes: u64, lane: usize, cache: u32) -> Result<()> {
        if !self.worker.run.ctx.check_uninitialised {
            return Ok(());
        }
        let found = match place {
            Place::Global(address) => {
                let view = self.worker.run.ctx.memory;
                let window = &mut self.worker.windows[cache as usize];
                match window.get(&view, address, bytes) {
                    Ok((backing, offset)) => {
                        backing.first_unwritten(offset, bytes).map(|at| (at - offset + address, "global"))
                    }
                    Err(_) => None,
                }
            }
            Place::Shared(block, offset) => {
                let shared = &self.blocks[block].shared;
                let inside = offset.checked_add(bytes).is_some_and(|end| end <= shared.len() as u64);
                let found =
                    if inside { shared.first_unwritten(offset as usize, bytes as usize) } else { None };
                found.map(|at| (at as u64, "shared"))
            }
            Place::Local(offset) => {
                let local = &self.local[lane];
                let inside = offset.checked_add(bytes).is_some_and(|end| end <= local.len() as u64);
                let found =
                    if inside { local.first_unwritten(offset as usize, bytes as usize) } else { None };
                found.map(|at| (at as u64, "local"))
            }
            Place::Param(_) => None,
        };
        if let Some((address, space)) = found {
            self.report_unwritten(lane, address, bytes, space, cache);
        }
        Ok(())
    }

    /// Loads up to eight bytes at `place + offset`.
    pub(super) fn load_one(
        &mut self,
        place: Place,
        offset: u64,
        width: u32,
        lane: usize,
        cache: u32,
    ) -> Result<u64> {
        let (n, wide) = (width as usize, u64::from(width));
        let (found, reason) = match place {
            Place::Global(address) => {
                let view = self.worker.run.ctx.memory;
                let address = address.wrapping_add(offset);
                let touch = if self.strong { Touch::Atomic } else { Touch::Read };
                match self.worker.windows[cache as usize].access(&view, address, wide, touch) {
                    Ok((backing, at)) => {
                        let mut bytes = [0; 8];
                        backing.read(at, &mut bytes[..n]);
                        return Ok(u64::from_le_bytes(bytes));
                    }
                    Err(error) => (None, FaultReason::Memory(error)),
                }
            }
            Place::Shared(block, at) => {
                let shared = &self.blocks[block].shared;
                let at = at.wrapping_add(offset);
                (shared.load(to_index(at), n), Self::outside("shared", at, wide, shared.len()))
            }
            Place::Local(at) => {
                let (local, at) = (&self.local[lane], at.wrapping_add(offset));
                (local.load(to_index(at), n), Self::outside("local", at, wide, local.len()))
            }
            Place::Param(at) => {
                let (params, at) = (self.worker.run.launch.params, at.wrapping_add(offset));
                let bytes = to_index(at).checked_add(n).and_then(|end| params.get(to_index(at)..end));
                let value = bytes.map(|b| b.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b)));
                (value, Self::outside("param", at, wide, params.len()))
            }
        };
        match found {
            Some(value) => Ok(value),
            None => fault(lane as u32, reason),
        }
    }

    /// Stores up to eight bytes at `place + offset`.
    pub(super) fn store_one(
        &mut self,
        place: Place,
        offset: u64,
        width: u32,
        value: u64,
        lane: usize,
        cache: u32,
    ) -> Result<()> {
        let (n, wide) = (width as usize, u64::from(width));
        let (done, reason) = match place {
            Place::Global(address) => {
                let view = self.worker.run.ctx.memory;
                let address = address.wrapping_add(offset);
                let touch = if self.strong { Touch::Atomic } else { Touch::Write };
                match self.worker.windows[cache as usize].access(&view, address, wide, touch) {
                    Ok((backing, at)) => {
                        match n {
                            4 => backing.store::<4>(at, (value as u32).to_le_bytes()),
                            8 => backing.store::<8>(at, value.to_le_bytes()),
                            2 => backing.store::<2>(at, (value as u16).to_le_bytes()),
                            _ => backing.write(at, &value.to_le_bytes()[..n]),
                        }
                        backing.mark_written(at, wide);
                        return Ok(());
                    }
                    Err(error) => (None, FaultReason::Memory(error)),
                }
            }
            Place::Shared(block, at) => {
                let (shared, at) = (&mut self.blocks[block].shared, at.wrapping_add(offset));
                (shared.store(to_index(at), n, value), Self::outside("shared", at, wide, shared.len()))
            }
            Place::Local(at) => {
                let (local, at) = (&mut self.local[lane], at.wrapping_add(offset));
                (local.store(to_index(at), n, value), Self::outside("local", at, wide, local.len()))
            }
            Place::Param(at) => {
                let text = format!("store to kernel parameters, at {at:#x}");
                (None, FaultReason::IllegalInstruction(text))
            }
        };
        match done {
            Some(()) => Ok(()),
            None => fault(lane as u32, reason),
        }
    }

    /// Stores the elements of each lane of a mask.
    #[inline(always)]
    pub(super) fn store(
        &mut self,
        space: Space,
        cache: u32,
        width: u32,
        addresses: &Lanes,
        mask: u32,
        values: &[&Lanes],
    ) -> Result<()> {
        let total = u64::from(width) * values.len() as u64;
        if mask == u32::MAX
            && let Some(row) = Row::of(addresses, total)
            && row.stride != 0
            && self.store_row(space, cache, width, row, values)
        {
            return Ok(());
        }
        let all_global = match space {
            Space::Global => true,
            Space::Generic => each_lane(mask).all(|l| addresses[l] < window::SHARED),
            _ => false,
        };
        if all_global && self.store_together(cache, width, total, addresses, mask, values)? {
            return Ok(());
        }
        if let (Space::Shared, [values]) = (space, values)
            && self.store_shared(width, addresses, mask, values)
        {
            return Ok(());
        }
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if address & (total - 1) != 0 {
                return fault(lane as u32, Self::misaligned(address, total));
            }
            let place = self.resolve(space, address);
            for (i, values) in values.iter().enumerate() {
                self.store_one(place, i as u64 * u64::from(width), width, values[lane], lane, cache)?;
            }
        }
        Ok(())
    }

    fn store_together(
        &mut self,
        cache: u32,
        width: u32,
        total: u64,
        addresses: &Lanes,
        mask: u32,
        values: &[&Lanes],
    ) -> Result<bool> {
        let Some((low, high)) = bounds(addresses, mask) else { return Ok(true) };
        let view = self.worker.run.ctx.memory;
        let Some(span) = (high - low).checked_add(total) else { return Ok(false) };
        let Some(window) = self.worker.windows.get_mut(cache as usize) else { return Ok(false) };
        let Ok((_, start)) = window.get_for(Access::Write, &view, low, span) else { return Ok(false) };
        let start = start.wrapping_sub(low);
        if window.is_logged() {
            let touch = if self.strong { Touch::Atomic } else { Touch::Write };
            each_lane(mask).for_each(|l| window.note(start.wrapping_add(addresses[l]), total, touch));
        }
        let Some(backing) = window.backing() else { return Ok(false) };
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if address & (total - 1) != 0 {
                return fault(lane as u32, Self::misaligned(address, total));
            }
            let offset = start.wrapping_add(address);
            for (i, values) in values.iter().enumerate() {
                let (offset, value) = (offset + i as u64 * u64::from(width), values[lane]);
                match width {
                    1 => backing.store::<1>(offset, [value as u8]),
                    2 => backing.store::<2>(offset, (value as u16).to_le_bytes()),
                    4 => backing.store::<4>(offset, (value as u32).to_le_bytes()),
                    _ => backing.store::<8>(offset, value.to_le_bytes()),
                }
            }
            backing.mark_written(offset, total);
        }
        Ok(true)
    }
}

/// Most bytes of a row: 32 lanes with 32 bytes each.
pub(super) const ROW: usize = 1024;

/// Aligned accesses of a whole warp that lie one behind the other, or are all the same.
#[derive(Clone, Copy)]
struct Row {
    start: u64,
    /// Bytes from lane to lane, or 0.
    stride: u64,
    bytes: u64,
}

impl Row {
    #[inline(always)]
    fn of(addresses: &Lanes, total: u64) -> Option<Self> {
        let start = addresses[0];
        let stride = if addresses[1] == start { 0 } else { total };
        let bytes = total + 31 * stride;
        let mut other = start & (total - 1);
        for (lane, address) in addresses.iter().enumerate() {
            other |= address ^ start.wrapping_add(lane as u64 * stride);
        }
        // A row does not reach from one space of generic addresses into the next.
        (other == 0 && (start ^ start.wrapping_add(bytes - 1)) >> 32 == 0).then_some(Self {
            start,
            stride,
            bytes,
        })
    }
}

/// One element of each lane, from bytes that lie `stride` apart.
#[inline(always)]
fn unpack<const N: usize>(bytes: &[u8], stride: usize, out: &mut Lanes, value: impl Fn([u8; N]) -> u64) {
    let element = |bytes: &[u8]| bytes.first_chunk::<N>().map_or(0, |bytes| value(*bytes));
    if stride == 0 {
        *out = [element(bytes); 32];
    } else if stride == N {
        out.iter_mut().zip(bytes.chunks_exact(N)).for_each(|(out, bytes)| *out = element(bytes));
    } else {
        out.iter_mut().zip(bytes.chunks(stride)).for_each(|(out, bytes)| *out = element(bytes));
    }
}

/// The other way round.
#[inline(always)]
fn pack<const N: usize>(bytes: &mut [u8], stride: usize, values: &Lanes, element: impl Fn(u64) -> [u8; N]) {
    if stride == N {
        bytes.chunks_exact_mut(N).zip(values).for_each(|(to, &value)| to.copy_from_slice(&element(value)));
    } else {
        for (to, &value) in bytes.chunks_mut(stride).zip(values) {
            to[..N].copy_from_slice(&element(value));
        }
    }
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Least and greatest address of a mask.
fn bounds(addresses: &Lanes, mask: u32) -> Option<(u64, u64)> {
    let mut lanes = each_lane(mask).map(|l| addresses[l]);
    let first = lanes.next()?;
    Some(lanes.fold((first, first), |(low, high), a| (low.min(a), high.max(a))))
}
