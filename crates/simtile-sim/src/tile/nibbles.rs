//! Elements of 4 bits in memory: two in a byte, the one with the lower index in its lower half. Strides count elements.
//!
//! A tile may begin or end within a byte. Loading reads the whole byte; storing changes its half alone, so that two
//! blocks that store to the two halves of a byte leave both values.

use super::data::Data;
use super::memory::{order_after, order_before, padding, runs, touch};
use super::op::ViewAccess;
use super::run::{Block, TensorVal, Val};
use super::types::{Elem, count};
use crate::check::Touch;
use crate::exec::FaultReason;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Elements in bytes of their own, packed.
pub(super) fn pack(elements: &[u8]) -> Vec<u8> {
    elements.chunks(2).map(|pair| pair[0] & 15 | pair.get(1).map_or(0, |high| high << 4)).collect()
}

/// The byte of an element and the shift of its half.
fn place(base: u64, element: u64) -> (u64, u32) {
    (base.wrapping_add((element as i64 >> 1) as u64), 4 * (element & 1) as u32)
}

impl Block<'_> {
    /// `load_view_tko`.
    pub(super) fn load_nibbles(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
    ) -> Result<Data, FaultReason> {
        let scalar = access.view.tensor.elem;
        let fill = padding(access.view.padding, scalar);
        let mut data = Data::splat(Elem::Scalar(scalar), count(&access.view.tile), fill);
        // Elements are counted from 0: half bytes have no addresses.
        let axes = self.axes(access, tensor, indices, 1)?;
        let mut bytes = Vec::new();
        runs(0, &axes, 1, &mut |run| {
            let (first, shift) = place(tensor.base, run.address);
            let (last, _) = place(tensor.base, run.address.wrapping_add(run.len as u64 - 1));
            bytes.resize(last.wrapping_sub(first) as usize + 1, 0);
            self.read(access.window, first, 1, access.order, &mut bytes)?;
            for i in 0..run.len {
                let half = i + shift as usize / 4;
                data.set(run.tile + i * run.step, (bytes[half / 2] >> (4 * (half % 2)) & 15).into());
            }
            Ok(())
        })?;
        order_after(access.order);
        Ok(data)
    }

    /// `store_view_tko`.
    pub(super) fn store_nibbles(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
        data: &Data,
    ) -> Result<(), FaultReason> {
        order_before(access.order);
        let axes = self.axes(access, tensor, indices, 1)?;
        runs(0, &axes, 1, &mut |run| {
            for i in 0..run.len {
                let (address, shift) = place(tensor.base, run.address.wrapping_add(i as u64));
                self.store_nibble(access, address, shift, data.get(run.tile + i * run.step) as u8 & 15)?;
            }
            Ok(())
        })
    }

    fn store_nibble(
        &mut self,
        access: &ViewAccess,
        address: u64,
        shift: u32,
        value: u8,
    ) -> Result<(), FaultReason> {
        let view = self.context.memory;
        let window = &mut self.windows[access.window as usize];
        let (backing, at) = window
            .access(&view, address, 1, touch(access.order, Touch::Write))
            .map_err(FaultReason::Memory)?;
        // The other half belongs to another element, perhaps of another block: it stays what it is, in one step.
        let change = |old: u64, byte: u32| {
            let shift = 8 * byte + shift;
            old & !(15 << shift) | u64::from(value) << shift
        };
        let pair = if at | 1 < backing.len() { backing.atomic_u16(at & !1) } else { None };
        match pair {
            Some(cell) => {
                let byte = (at & 1) as u32;
                // It always gives a value: there is nothing to report.
                let _ = cell.fetch_update(AcqRel, Acquire, |old| Some(change(old.into(), byte) as u16));
            }
            // The last byte of memory with an odd length has no neighbour.
            None => {
                let mut old = [0];
                backing.read(at, &mut old);
                backing.write(at, &[change(old[0].into(), 0) as u8]);
            }
        }
        backing.mark_written(at, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_half_comes_first() {
        assert_eq!(pack(&[1, 2, 3]), [0x21, 0x03]);
        assert_eq!(place(100, 5), (102, 4));
        assert_eq!(place(100, (-1i64) as u64), (99, 4));
    }
}
