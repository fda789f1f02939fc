//! `multimem_*_view_tko`: one access to the memories of all devices behind a mapping of a multicast object.
//!
//! Loading joins what the devices hold, in their order; storing and reducing change them one after the other, which is one of the
//! orders that may happen. An address that is no such mapping, or where a device has bound nothing, is a fault.

use super::data::Data;
use super::memory::{modify, order_after, order_before, padding, runs, touch};
use super::op::{AtomicMode, MultimemKind, ViewAccess};
use super::run::{Block, TensorVal, Val};
use super::types::{Elem, count};
use crate::check::Touch;
use crate::exec::FaultReason;
use crate::memory::Backing;
use cutile_ir::ir::ScalarType;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

fn sum(scalar: ScalarType) -> AtomicMode {
    if scalar.is_float() { AtomicMode::AddFloat } else { AtomicMode::Add }
}

impl Block<'_> {
    /// The memories behind one element.
    fn replicas(
        &mut self,
        access: &ViewAccess,
        address: u64,
        size: usize,
        as_what: Touch,
    ) -> Result<Vec<(Arc<Backing>, u64)>, FaultReason> {
        if !address.is_multiple_of(size as u64) {
            return Err(self.misaligned(address, size));
        }
        let view = self.context.memory;
        let window = &mut self.windows[access.window as usize];
        window.access(&view, address, size as u64, as_what).map_err(FaultReason::Memory)?;
        let found = window.allocation().and_then(|a| Some((a.clone(), a.multicast.clone()?)));
        let Some((allocation, object)) = found else {
            let text = format!("multimem at {address:#x}, which is no mapping of a multicast object");
            return Err(FaultReason::IllegalInstruction(text));
        };
        let mut all = allocation.replicas(address, size as u64);
        if all.len() < object.devices as usize {
            let text = format!(
                "multimem of {size} bytes at {address:#x}, where {} of {} devices have bound memory",
                all.len(),
                object.devices
            );
            return Err(FaultReason::IllegalInstruction(text));
        }
        all.sort_by_key(|(device, ..)| *device);
        Ok(all.into_iter().map(|(_, backing, at)| (backing, at)).collect())
    }

    /// `multimem_load_reduce_view_tko`.
    pub(super) fn multimem_load(
        &mut self,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
    ) -> Result<Data, FaultReason> {
        let scalar = access.view.tensor.elem;
        let size = scalar.byte_width();
        let fill = padding(access.view.padding, scalar);
        let mut data = Data::splat(Elem::Scalar(scalar), count(&access.view.tile), fill);
        let axes = self.axes(access, tensor, indices, size)?;
        runs(tensor.base, &axes, size, &mut |run| {
            for i in 0..run.len {
                let address = run.address.wrapping_add((i * size) as u64);
                let all = self.replicas(access, address, size, touch(access.order, Touch::Read))?;
                let mut joined = None;
                for (backing, at) in &all {
                    if self.context.check_uninitialised && !backing.is_written(*at, size as u64) {
                        self.uninitialised(access.window, address, size);
                    }
                    let mut bytes = [0; 8];
                    backing.read(*at, &mut bytes[..size]);
                    let value = u64::from_le_bytes(bytes);
                    joined = Some(joined.map_or(value, |old| modify(sum(scalar), scalar, old, value)));
                }
                data.set(run.tile + i * run.step, joined.unwrap_or(0));
            }
            Ok(())
        })?;
        order_after(access.order);
        Ok(data)
    }

    /// `multimem_store_view_tko` and `multimem_reduce_view_tko`.
    pub(super) fn multimem_change(
        &mut self,
        kind: MultimemKind,
        access: &ViewAccess,
        tensor: &TensorVal,
        indices: &[(Val, u32)],
        data: &Data,
    ) -> Result<(), FaultReason> {
        let scalar = access.view.tensor.elem;
        let size = scalar.byte_width();
        order_before(access.order);
        let axes = self.axes(access, tensor, indices, size)?;
        let as_what = match kind {
            MultimemKind::Store => touch(access.order, Touch::Write),
            _ => Touch::Atomic,
        };
        runs(tensor.base, &axes, size, &mut |run| {
            for i in 0..run.len {
                let address = run.address.wrapping_add((i * size) as u64);
                let value = data.get(run.tile + i * run.step);
                for (backing, at) in self.replicas(access, address, size, as_what)? {
                    let new = |old: u64| match kind {
                        MultimemKind::Store => value,
                        _ => modify(sum(scalar), scalar, old, value),
                    };
                    macro_rules! update {
                        ($cell:expr, $t:ty) => {
                            $cell.map(|cell| {
                                cell.fetch_update(AcqRel, Acquire, |old| Some(new(old.into()) as $t)).is_ok()
                            })
                        };
                    }
                    let done = match size {
                        2 => update!(backing.atomic_u16(at), u16),
                        4 => update!(backing.atomic_u32(at), u32),
                        _ => update!(backing.atomic_u64(at), u64),
                    };
                    if done.is_none() {
                        return Err(self.misaligned(address, size));
                    }
                    let unwritten = kind == MultimemKind::Reduce && !backing.is_written(at, size as u64);
                    backing.mark_written(at, size as u64);
                    if self.context.check_uninitialised && unwritten {
                        self.uninitialised(access.window, address, size);
                    }
                }
            }
            Ok(())
        })
    }
}
