//! Read-modify-write.

use super::memory::{Memory, Place};
use super::{Result, each_lane, fault};
use crate::check::Touch;
use crate::exec::FaultReason;
use crate::ptx::code::{Atom, AtomOp, Lanes};
use crate::ptx::lanes::half;
use crate::ptx::soft;
use parking_lot::Mutex;
use simtile_image::ptx::Type;
use std::sync::atomic::Ordering::SeqCst;

/// New value from old value, operand and (for `cas`) the other operand.
pub(super) fn combine(op: AtomOp, ty: Type, old: u64, a: u64, swap: u64) -> u64 {
    let f32s = |v: u64| f32::from_bits(v as u32);
    let signed = matches!(ty, Type::S32 | Type::S64);
    let narrow = ty.bytes() == 4;
    match (op, ty) {
        (AtomOp::Exch, _) => a,
        (AtomOp::Cas, _) => {
            if old == a {
                swap
            } else {
                old
            }
        }
        (AtomOp::Add, Type::F32) => crate::ptx::lanes::Word::put(f32s(old) + f32s(a)),
        // The old value's NaN is taken first.
        (AtomOp::Add, Type::F64) => soft::add64(f64::from_bits(a), f64::from_bits(old), 0).to_bits(),
        (AtomOp::Add | AtomOp::Min | AtomOp::Max, Type::F16 | Type::Bf16) => {
            halves(op, ty == Type::Bf16, old as u16, a as u16).into()
        }
        (AtomOp::Add | AtomOp::Min | AtomOp::Max, Type::F16x2 | Type::Bf16x2) => {
            let bf = ty == Type::Bf16x2;
            let high = halves(op, bf, (old >> 16) as u16, (a >> 16) as u16);
            u64::from(halves(op, bf, old as u16, a as u16)) | u64::from(high) << 16
        }
        (AtomOp::Add, _) if narrow => u64::from((old as u32).wrapping_add(a as u32)),
        (AtomOp::Add, _) => old.wrapping_add(a),
        (AtomOp::And, _) => old & a,
        (AtomOp::Or, _) => old | a,
        (AtomOp::Xor, _) => old ^ a,
        (AtomOp::Inc, _) => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        (AtomOp::Dec, _) => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
        (AtomOp::Min | AtomOp::Max, _) => {
            let key = |v: u64| match (signed, narrow) {
                (true, true) => i128::from(v as u32 as i32),
                (true, false) => i128::from(v as i64),
                (false, true) => i128::from(v as u32),
                (false, false) => i128::from(v),
            };
            if (key(a) < key(old)) == (op == AtomOp::Min) { a } else { old }
        }
    }
}

fn flush_bits(v: u64) -> u64 {
    let x = f32::from_bits(v as u32);
    if x.is_subnormal() { v & 1 << 31 } else { v }
}

fn halves(op: AtomOp, bf: bool, old: u16, a: u16) -> u16 {
    match op {
        AtomOp::Add => half::add(bf, old, a),
        op => half::extreme(bf, op == AtomOp::Max, old, a),
    }
}

impl Memory<'_, '_> {
    /// One lane's read-modify-write; returns the old value.
    pub(super) fn update(
        &mut self,
        place: Place,
        offset: u64,
        width: u32,
        lane: usize,
        cache: u32,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64> {
        let Place::Global(address) = place else {
            let old = self.load_one(place, offset, width, lane, cache)?;
            self.store_one(place, offset, width, change(old), lane, cache)?;
            return Ok(old);
        };
        let view = self.worker.run.ctx.memory;
        let address = address.wrapping_add(offset);
        let found = self.worker.windows[cache as usize].access(&view, address, width.into(), Touch::Atomic);
        let (backing, at) = match found {
            Ok(found) => found,
            Err(error) => return fault(lane as u32, FaultReason::Memory(error)),
        };
        macro_rules! swap {
            ($cell:expr, $t:ty) => {
                match $cell {
                    Some(cell) => {
                        let old = cell.fetch_update(SeqCst, SeqCst, |old| Some(change(u64::from(old)) as $t));
                        u64::from(old.unwrap_or_else(|old| old))
                    }
                    None => return fault(lane as u32, Self::misaligned(address, width.into())),
                }
            };
        }
        let old = match width {
            2 => swap!(backing.atomic_u16(at), u16),
            4 => swap!(backing.atomic_u32(at), u32),
            _ => swap!(backing.atomic_u64(at), u64),
        };
        backing.mark_written(at, width.into());
        Ok(old)
    }

    /// `atom` and `red`: old values into `out`, one array an element.
    pub(super) fn atomic(
        &mut self,
        atom: &Atom,
        addresses: &Lanes,
        mask: u32,
        operands: &[&Lanes],
        swap: Option<&Lanes>,
        out: &mut [Lanes],
    ) -> Result<()> {
        if atom.ty == Type::B128 {
            return self.atomic_wide(atom, addresses, mask, operands, out);
        }
        let width = atom.ty.bytes() as u32;
        let total = u64::from(width) * operands.len() as u64;
        let keep = u64::MAX >> (64 - 8 * width);
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if !address.is_multiple_of(total) {
                return fault(lane as u32, Self::misaligned(address, total));
            }
            let place = self.resolve(atom.space, address);
            if atom.op != AtomOp::Exch {
                self.check_written(place, total, lane, atom.cache)?;
            }
            for (i, operand) in operands.iter().enumerate() {
                let a = operand[lane] & keep;
                let new = swap.map_or(0, |s| s[lane] & keep);
                let offset = i as u64 * u64::from(width);
                let (op, ty) = (atom.op, atom.ty);
                // An f32 sum in global memory flushes subnormals; in shared memory it keeps them.
                let flushes = op == AtomOp::Add && ty == Type::F32 && matches!(place, Place::Global(_));
                let flush = |v: u64| if flushes { flush_bits(v) } else { v };
                // An f64 sum in global memory leaves a NaN as it is, signalling or not, unless the operand is one too: then
                // that one is stored.
                let doubles = op == AtomOp::Add && ty == Type::F64 && matches!(place, Place::Global(_));
                let nan = |v| doubles && f64::from_bits(v).is_nan();
                let change = |old| match (nan(old), nan(a)) {
                    (true, true) => a | 1 << 51,
                    (true, false) => old,
                    _ => flush(combine(op, ty, flush(old), flush(a), new)),
                };
                let old = self.update(place, offset, width, lane, atom.cache, change)?;
                if let Some(out) = out.get_mut(i) {
                    out[lane] = old;
                }
            }
        }
        Ok(())
    }

    /// `exch` and `cas` of 128 bits. Operands: both halves of what is compared (or stored), then of the new value. They
    /// are atomic with each other.
    fn atomic_wide(
        &mut self,
        atom: &Atom,
        addresses: &Lanes,
        mask: u32,
        operands: &[&Lanes],
        out: &mut [Lanes],
    ) -> Result<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        for lane in each_lane(mask) {
            let address = addresses[lane];
            if !address.is_multiple_of(16) {
                return fault(lane as u32, Self::misaligned(address, 16));
            }
            let place = self.resolve(atom.space, address);
            let value = |at: usize| operands.get(at).map_or(0, |lanes| lanes[lane]);
            let _guard = ONE_AT_A_TIME.lock();
            if atom.op != AtomOp::Exch {
                self.check_written(place, 16, lane, atom.cache)?;
            }
            let low = self.load_one(place, 0, 8, lane, atom.cache)?;
            let high = self.load_one(place, 8, 8, lane, atom.cache)?;
            let new = match atom.op {
                AtomOp::Exch => Some([value(0), value(1)]),
                _ => ([low, high] == [value(0), value(1)]).then(|| [value(2), value(3)]),
            };
            if let Some([low, high]) = new {
                self.store_one(place, 0, 8, low, lane, atom.cache)?;
                self.store_one(place, 8, 8, high, lane, atom.cache)?;
            }
            for (out, old) in out.iter_mut().zip([low, high]) {
                out[lane] = old;
            }
        }
        Ok(())
    }
}
