//! `multimem`: one access to the memories of all devices behind a mapping of a multicast object.
//!
//! `ld_reduce` reads each device's memory and joins what it finds, in the order of the devices; `st` and `red` change
//! all of them, one after the other. PTX promises no order between devices, so this is one of those allowed. What PTX
//! leaves undefined is a fault here: an address that is no multicast mapping, and one where a device has bound nothing.

use super::memory::{Memory, Place};
use super::{Result, atomics, each_lane, fault};
use crate::check::Touch;
use crate::exec::FaultReason;
use crate::memory::Backing;
use crate::ptx::code::{AtomOp, Lanes, Multimem, MultimemKind};
use crate::ptx::lanes::half;
use simtile_image::ptx::Type;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn load(backing: &Backing, at: u64, width: u32) -> u64 {
    let mut bytes = [0; 8];
    backing.read(at, &mut bytes[..width as usize]);
    u64::from_le_bytes(bytes)
}

/// What all devices hold, joined.
fn join(m: &Multimem, values: impl Iterator<Item = u64>) -> u64 {
    let two = matches!(m.ty, Type::F16x2 | Type::Bf16x2);
    let half_type = two || matches!(m.ty, Type::F16 | Type::Bf16);
    if !(m.in_f32 && half_type) {
        return values.reduce(|a, b| atomics::combine(m.op, m.ty, a, b, 0)).unwrap_or(0);
    }
    // Summed in f32 and rounded once.
    let bf = matches!(m.ty, Type::Bf16 | Type::Bf16x2);
    let sums = values.fold([0f32; 2], |[low, high], v| {
        [low + half::value(bf, v as u16), high + half::value(bf, (v >> 16) as u16)]
    });
    let [low, high] = sums.map(|sum| u64::from(half::from_f32(bf, sum)));
    if two { low | high << 16 } else { low }
}

impl Memory<'_, '_> {
    /// The memories behind an access of a lane, which its own device may do.
    fn replicas(
        &mut self,
        m: &Multimem,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<Vec<(Arc<Backing>, u64)>> {
        let touch = match m.kind {
            MultimemKind::LoadReduce => Touch::Read,
            MultimemKind::Store | MultimemKind::Reduce => Touch::Atomic,
        };
        let view = self.worker.run.ctx.memory;
        let window = &mut self.worker.windows[m.cache as usize];
        if let Err(error) = window.access(&view, address, bytes, touch) {
            return fault(lane as u32, FaultReason::Memory(error));
        }
        let Some(object) = window.allocation().and_then(|a| Some((a.clone(), a.multicast.clone()?))) else {
            let text = format!("multimem at {address:#x}, which is no mapping of a multicast object");
            return fault(lane as u32, FaultReason::IllegalInstruction(text));
        };
        let (allocation, object) = object;
        let mut all = allocation.replicas(address, bytes);
        if all.len() < object.devices as usize {
            let text = format!(
                "multimem of {bytes} bytes at {address:#x}, where {} of {} devices have bound memory",
                all.len(),
                object.devices
            );
            return fault(lane as u32, FaultReason::IllegalInstruction(text));
        }
        all.sort_by_key(|(device, ..)| *device);
        Ok(all.into_iter().map(|(_, backing, at)| (backing, at)).collect())
    }

    /// One instruction for all lanes of a mask: values read into `out`, one array an element.
    pub(super) fn multimem(
        &mut self,
        m: &Multimem,
        addresses: &Lanes,
        mask: u32,
        operands: &[&Lanes],
        out: &mut [Lanes],
    ) -> Result<()> {
        let width = m.ty.bytes() as u32;
        let total = u64::from(width) * u64::from(m.elements);
        let keep = u64::MAX >> (64 - 8 * width);
        for lane in each_lane(mask) {
            if !addresses[lane].is_multiple_of(total) {
                return fault(lane as u32, Self::misaligned(addresses[lane], total));
            }
            let Place::Global(address) = self.resolve(m.space, addresses[lane]) else {
                let text = format!("multimem at {:#x}, which is not in global memory", addresses[lane]);
                return fault(lane as u32, FaultReason::IllegalInstruction(text));
            };
            let replicas = self.replicas(m, lane, address, total)?;
            for element in 0..m.elements as usize {
                let offset = element as u64 * u64::from(width);
                if m.kind == MultimemKind::LoadReduce {
                    for (backing, at) in &replicas {
                        if self.worker.run.ctx.check_uninitialised
                            && let Some(first) = backing.first_unwritten(at + offset, width.into())
                        {
                            self.report_unwritten(
                                lane,
                                address + first - at,
                                width.into(),
                                "global",
                                m.cache,
                            );
                        }
                    }
                    out[element][lane] =
                        join(m, replicas.iter().map(|(backing, at)| load(backing, at + offset, width)));
                    continue;
                }
                let a = operands[element][lane] & keep;
                for (backing, at) in &replicas {
                    change(m, backing, at + offset, width, a, lane)?;
                }
            }
        }
        Ok(())
    }
}

/// A store to one device's memory, or a reduction into it.
fn change(m: &Multimem, backing: &Backing, at: u64, width: u32, a: u64, lane: usize) -> Result<()> {
    let new = |old: u64| match m.kind {
        MultimemKind::Store => a,
        _ => atomics::combine(m.op, m.ty, old, a, 0),
    };
    macro_rules! update {
        ($cell:expr, $t:ty) => {
            $cell.map(|cell| cell.fetch_update(SeqCst, SeqCst, |old| Some(new(u64::from(old)) as $t)).is_ok())
        };
    }
    let done = match width {
        2 => update!(backing.atomic_u16(at), u16),
        4 => update!(backing.atomic_u32(at), u32),
        _ => update!(backing.atomic_u64(at), u64),
    };
    // Bound ranges begin at whole pages, so what is aligned in the mapping is aligned in every device's memory.
    if done.is_none() {
        return fault(lane as u32, Memory::misaligned(at, width.into()));
    }
    backing.mark_written(at, width.into());
    Ok(())
}

/// Whether PTX has this operation on this type; `elements` registers of it.
pub(in crate::ptx) fn has(kind: MultimemKind, op: AtomOp, ty: Type, elements: usize) -> bool {
    use Type::{B32, B64, Bf16, Bf16x2, F16, F16x2, F32, F64, S32, S64, U32, U64};
    let floats = match ty {
        F16 | Bf16 => matches!(elements, 2 | 4 | 8),
        F16x2 | Bf16x2 | F32 => matches!(elements, 1 | 2 | 4),
        _ => elements == 1,
    };
    if !floats {
        return false;
    }
    if kind == MultimemKind::Store {
        return matches!(ty, B32 | B64 | U32 | U64 | S32 | S64 | F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64);
    }
    match op {
        AtomOp::Add => matches!(ty, U32 | S32 | U64 | F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64),
        AtomOp::Min | AtomOp::Max => matches!(ty, U32 | S32 | U64 | S64 | F16 | F16x2 | Bf16 | Bf16x2),
        AtomOp::And | AtomOp::Or | AtomOp::Xor => matches!(ty, B32 | B64),
        _ => false,
    }
}
