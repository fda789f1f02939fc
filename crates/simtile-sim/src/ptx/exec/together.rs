//! Instructions that lanes of a warp execute together, and the lane loops of copies and mbarriers.

use super::grid::Run;
use super::memory::Memory;
use super::warp::{Env, Frame, Group, Wait, Warp, addresses, lanes_of, pred_of, put, put_pred};
use super::{Result, each_lane, fault};
use crate::exec::{FaultReason, FindingKind};
use crate::ptx::code::{
    Copy, Lanes, Mbar, MbarOp, NONE, Op, ReduxOp, ShflMode, Slot, Together, TogetherOp, VoteMode, window,
};
use crate::ptx::matrix::{self, Element, Matrix, Part};
use simtile_image::ptx::Type;

impl Warp {
    /// Executes a warp-wide instruction, or makes the lanes wait for those that take part and are not here.
    /// True if it was executed.
    pub(super) fn together(
        &mut self,
        group: &mut Group,
        mask: u32,
        together: &Together,
        constants: &[Lanes],
        env: &mut Env<'_, '_>,
    ) -> Result<bool> {
        if together.members == NONE {
            self.perform(group, mask, &together.op, constants, env)?;
            return Ok(true);
        }
        let parts =
            partition(lanes_of(&self.frames[group.depth as usize].regs, constants, together.members), mask);
        if let Some(&(members, lanes)) = parts.iter().find(|(members, lanes)| lanes & !members != 0) {
            // Undefined; what comes is what the lanes get that take part.
            let lane = (lanes & !members).trailing_zeros();
            let detail =
                format!("lane {lane} executes an instruction for the lanes {members:#010x} of its warp");
            let coords = env.blocks[self.block].coords;
            let kind = FindingKind::BarrierDivergence { detail };
            env.worker.report(group.pc, coords, self.index, lane, kind);
        }
        let live = self.live();
        if parts.iter().all(|&(members, lanes)| members & live & !lanes == 0) {
            for (_, lanes) in parts {
                self.perform(group, lanes, &together.op, constants, env)?;
            }
            return Ok(true);
        }
        // Each part waits on its own; the last one to come finds the others.
        for &(_, lanes) in &parts[1..] {
            self.groups.push(Group { mask: lanes, wait: Wait::Lanes, ..*group });
        }
        let first = parts[0].1;
        let rest = group.mask & !mask;
        if rest != 0 {
            self.groups.push(Group { mask: rest, pc: group.pc + 1, ..*group });
        }
        self.groups.push(Group { mask: first, wait: Wait::Lanes, ..*group });
        group.mask = 0;
        self.recheck(env.worker.run);
        Ok(false)
    }

    /// Joins groups that wait for each other's lanes and are now complete.
    pub(super) fn recheck(&mut self, run: &Run<'_>) {
        let live = self.live();
        loop {
            let mut complete: Option<(u32, Vec<usize>)> = None;
            'search: for at in 0..self.groups.len() {
                let group = self.groups[at];
                if group.wait != Wait::Lanes {
                    continue;
                }
                let Some(members) = self.members(&group, run) else { continue };
                let mut found = 0;
                let mut who = Vec::new();
                for (other_at, other) in self.groups.iter().enumerate() {
                    let same_place =
                        other.pc == group.pc && other.depth == group.depth && other.func == group.func;
                    // A warp barrier may be reached at different places.
                    let fits = same_place || is_barrier(run, &group) && is_barrier(run, other);
                    if other.wait == Wait::Lanes && fits && self.members(other, run) == Some(members) {
                        found |= other.mask;
                        who.push(other_at);
                    }
                }
                if members & live & !found == 0 {
                    complete = Some((found, who));
                    break 'search;
                }
            }
            let Some((found, who)) = complete else { return };
            let first = self.groups[who[0]];
            if is_barrier(run, &first) {
                for &at in &who {
                    self.groups[at].wait = Wait::Ready;
                    self.groups[at].pc += 1;
                }
                continue;
            }
            let steps = who.iter().map(|&at| self.groups[at].steps_taken()).max().unwrap_or(0);
            for &at in who.iter().rev() {
                self.groups.swap_remove(at);
            }
            self.groups.push(first.joined(found, steps));
        }
    }

    /// Who takes part in the instruction at which a group waits.
    fn members(&self, group: &Group, run: &Run<'_>) -> Option<u32> {
        let Op::Together(together) = &run.image.code.get(group.pc as usize)?.op else { return None };
        let frame = &self.frames[group.depth_index()];
        let constants = &run.image.funcs[group.func_index()].constants;
        let members = lanes_of(&frame.regs, constants, together.members);
        Some(members[group.mask.trailing_zeros() as usize & 31] as u32)
    }

    fn perform(
        &mut self,
        group: &Group,
        mask: u32,
        op: &TogetherOp,
        constants: &[Lanes],
        env: &mut Env<'_, '_>,
    ) -> Result<()> {
        let depth = group.depth_index();
        let frame = &mut self.frames[depth];
        let get = |frame: &Frame, slot: Slot| *lanes_of(&frame.regs, constants, slot);
        match op {
            TogetherOp::Barrier => {}
            TogetherOp::Shfl { mode, dst, valid, value, lane, clamp } => {
                let (values, lanes) = (get(frame, *value), get(frame, *lane));
                let clamps = get(frame, *clamp);
                let mut out = [0; 32];
                let mut fits = 0;
                for l in each_lane(mask) {
                    let (from, inside) = shuffle(*mode, l as u32, lanes[l] as u32, clamps[l] as u32);
                    fits |= u32::from(inside) << l;
                    // Reading a lane that does not take part is undefined; its old value is what comes.
                    out[l] = values[from as usize & 31];
                }
                put(&mut frame.regs[*dst as usize], &out, mask);
                put_pred(&mut frame.preds, *valid, fits, mask);
            }
            TogetherOp::Vote { mode, dst, source } => {
                let p = pred_of(&frame.preds, *source) & mask;
                let truth = |t: bool| if t { u32::MAX } else { 0 };
                match mode {
                    VoteMode::Ballot => put(&mut frame.regs[*dst as usize], &[p.into(); 32], mask),
                    VoteMode::All => put_pred(&mut frame.preds, *dst, truth(p == mask), mask),
                    VoteMode::Any => put_pred(&mut frame.preds, *dst, truth(p != 0), mask),
                    VoteMode::Uni => put_pred(&mut frame.preds, *dst, truth(p == mask || p == 0), mask),
                }
            }
            TogetherOp::Match { all, dst, pred, value } => {
                let values = get(frame, *value);
                let mut out = [0; 32];
                let mut agree = true;
                for l in each_lane(mask) {
                    let equal =
                        each_lane(mask).filter(|&o| values[o] == values[l]).fold(0u32, |m, o| m | 1 << o);
                    agree &= equal == mask;
                    out[l] = equal.into();
                }
                if *all {
                    out = [if agree { mask.into() } else { 0 }; 32];
                }
                put(&mut frame.regs[*dst as usize], &out, mask);
                put_pred(&mut frame.preds, *pred, if agree { u32::MAX } else { 0 }, mask);
            }
            TogetherOp::Redux { op, ty, dst, value } => {
                let values = get(frame, *value);
                let all = each_lane(mask).map(|l| values[l] as u32);
                let signed = *ty == Type::S32;
                let result = match op {
                    ReduxOp::Add => all.fold(0, u32::wrapping_add),
                    ReduxOp::And => all.fold(u32::MAX, |a, b| a & b),
                    ReduxOp::Or => all.fold(0, |a, b| a | b),
                    ReduxOp::Xor => all.fold(0, |a, b| a ^ b),
                    ReduxOp::Min if signed => all.map(|v| v as i32).min().unwrap_or(0) as u32,
                    ReduxOp::Max if signed => all.map(|v| v as i32).max().unwrap_or(0) as u32,
                    ReduxOp::Min => all.min().unwrap_or(0),
                    ReduxOp::Max => all.max().unwrap_or(0),
                };
                put(&mut frame.regs[*dst as usize], &[result.into(); 32], mask);
            }
            TogetherOp::Elect { dst, pred } => {
                let leader = mask.trailing_zeros();
                put(&mut frame.regs[*dst as usize], &[leader.into(); 32], mask);
                put_pred(&mut frame.preds, *pred, 1 << leader, mask);
            }
            TogetherOp::Matrix(matrix) => self.matrix(group, mask, matrix, constants, env)?,
        }
        Ok(())
    }

    fn matrix(
        &mut self,
        group: &Group,
        mask: u32,
        matrix: &Matrix,
        constants: &[Lanes],
        env: &mut Env<'_, '_>,
    ) -> Result<()> {
        let frame = &mut self.frames[group.depth_index()];
        let mut memory = env.memory((self.block, self.index), &mut self.local, group.pc, false);
        match matrix {
            Matrix::Multiply { wmma, shape, types, regs, finite, sparse } => {
                let read = |slot, lane: u32| lanes_of(&frame.regs, constants, slot)[lane as usize];
                let parts = [&*regs[0], &*regs[1], &*regs[2], &*regs[3]];
                let bits = matrix::multiply(*wmma, *shape, *types, parts, *finite, *sparse, read);
                for (register, &slot) in regs[0].iter().enumerate() {
                    for l in each_lane(mask) {
                        let value = matrix::scatter(
                            *wmma,
                            *shape,
                            Part::C,
                            types[0],
                            &bits,
                            l as u32,
                            register as u32,
                        );
                        frame.regs[slot as usize][l] = value;
                    }
                }
            }
            Matrix::Quads { rows, types, regs } => {
                let read = |slot, lane: u32| lanes_of(&frame.regs, constants, slot)[lane as usize];
                let parts = [&*regs[0], &*regs[1], &*regs[2], &*regs[3]];
                let out = matrix::quads(*rows, *types, parts, read);
                for (&slot, value) in regs[0].iter().zip(&out) {
                    put(&mut frame.regs[slot as usize], value, mask);
                }
            }
            Matrix::Fragment { store, part, shape, row, element, space, addr, stride, regs } => {
                let bases = addresses(addr, frame, constants);
                let (rows, columns) = shape.extents(*part);
                let strides = match *stride {
                    NONE => [u64::from(if *row { columns } else { rows }); 32],
                    slot => *lanes_of(&frame.regs, constants, slot),
                };
                // Elements narrower than a byte are read from the byte they lie in.
                let width = element.bits().div_ceil(8);
                let per_byte = u64::from((8 / element.bits()).max(1));
                let per_register = if *element == Element::F64 { 1 } else { 32 / element.bits() };
                for (register, &slot) in regs.iter().enumerate() {
                    for l in each_lane(mask) {
                        let mut word = 0;
                        for within in 0..per_register {
                            let i = register as u32 * per_register + within;
                            let (r, c) = matrix::place(true, *shape, *part, *element, l as u32, i);
                            let stride = u64::from(strides[l] as u32);
                            let (major, minor) = if *row { (r, c) } else { (c, r) };
                            let index = u64::from(major).wrapping_mul(stride) + u64::from(minor);
                            let address = bases[l].wrapping_add(index / per_byte * u64::from(width));
                            if !address.is_multiple_of(width.into()) {
                                return fault(l as u32, Memory::misaligned(address, width.into()));
                            }
                            let at = memory.resolve(*space, address);
                            if *store {
                                let word = lanes_of(&frame.regs, constants, slot)[l];
                                let value = word >> (within * element.bits());
                                memory.store_one(
                                    at,
                                    0,
                                    width,
                                    value & (u64::MAX >> (64 - 8 * width)),
                                    l,
                                    0,
                                )?;
                            } else {
                                memory.check_written(at, width.into(), l, 0)?;
                                let value = memory.load_one(at, 0, width, l, 0)?;
                                let value = value >> (index % per_byte * u64::from(element.bits()));
                                let value = value & (u64::MAX >> (64 - element.bits()));
                                word |= value << (within * element.bits());
                            }
                        }
                        if !*store {
                            frame.regs[slot as usize][l] = word;
                        }
                    }
                }
            }
            Matrix::Rows { store, transposed, space, addr, regs } => {
                let bases = addresses(addr, frame, constants);
                for (number, &slot) in regs.iter().enumerate() {
                    for l in each_lane(mask) {
                        let mut word = 0;
                        for half in 0..2 {
                            let (a, b) = (l / 4, l % 4 * 2 + half);
                            let (r, c) = if *transposed { (b, a) } else { (a, b) };
                            let base = bases[(number * 8 + r) & 31];
                            if !base.is_multiple_of(16) {
                                return fault(l as u32, Memory::misaligned(base, 16));
                            }
                            let at = memory.resolve(*space, base.wrapping_add(2 * c as u64));
                            if *store {
                                let value = lanes_of(&frame.regs, constants, slot)[l] >> (16 * half);
                                memory.store_one(at, 0, 2, value & 0xFFFF, l, 0)?;
                            } else {
                                memory.check_written(at, 2, l, 0)?;
                                word |= memory.load_one(at, 0, 2, l, 0)? << (16 * half);
                            }
                        }
                        if !*store {
                            frame.regs[slot as usize][l] = word;
                        }
                    }
                }
            }
            Matrix::Transpose { dst, src } => {
                let from = *lanes_of(&frame.regs, constants, *src);
                let element = |r: usize, c: usize| from[r * 4 + c / 2] >> (16 * (c % 2)) & 0xFFFF;
                let out: Lanes =
                    std::array::from_fn(|l| element(l % 4 * 2, l / 4) | element(l % 4 * 2 + 1, l / 4) << 16);
                put(&mut frame.regs[*dst as usize], &out, mask);
            }
        }
        Ok(())
    }
}

fn is_barrier(run: &Run<'_>, group: &Group) -> bool {
    let insn = run.image.code.get(group.pc as usize);
    insn.is_some_and(|i| matches!(&i.op, Op::Together(t) if matches!(t.op, TogetherOp::Barrier)))
}

/// Lanes by their members operand.
fn partition(members: &Lanes, mask: u32) -> Vec<(u32, u32)> {
    let mut parts: Vec<(u32, u32)> = Vec::with_capacity(1);
    for l in each_lane(mask) {
        let m = members[l] as u32;
        match parts.iter_mut().find(|(value, _)| *value == m) {
            Some((_, lanes)) => *lanes |= 1 << l,
            None => parts.push((m, 1 << l)),
        }
    }
    parts
}

/// Source lane of a shuffle, and whether it lies inside the segment.
fn shuffle(mode: ShflMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (from, inside) = match mode {
        ShflMode::Up => {
            let from = lane.wrapping_sub(b);
            (from, from as i32 >= most as i32)
        }
        ShflMode::Down => (lane + b, lane + b <= most),
        ShflMode::Bfly => (lane ^ b, lane ^ b <= most),
        ShflMode::Idx => {
            let from = least | b & !segment;
            (from, from <= most)
        }
    };
    if inside { (from, true) } else { (lane, false) }
}

/// An mbarrier instruction for all lanes of a mask. True if a test found the phase unfinished.
pub(super) fn mbarrier(
    memory: &mut Memory<'_, '_>,
    mbar: &Mbar,
    frame: &mut Frame,
    addresses: &Lanes,
    args: &Lanes,
    mask: u32,
) -> Result<bool> {
    let mut out = [0; 32];
    let mut truths = 0;
    for l in each_lane(mask) {
        if mbar.op == MbarOp::PendingCount {
            out[l] = super::copies::pending_count(args[l]);
            continue;
        }
        let result = memory.mbarrier(mbar.op, mbar.space, addresses[l], args[l], l)?;
        out[l] = result;
        truths |= u32::from(result != 0) << l;
    }
    match mbar.op {
        MbarOp::Test { yields, .. } => {
            put_pred(&mut frame.preds, mbar.dst, truths, mask);
            return Ok(yields && truths & mask != mask);
        }
        _ if mbar.dst != NONE => put(&mut frame.regs[mbar.dst as usize], &out, mask),
        _ => {}
    }
    Ok(false)
}

/// A copy for all lanes of a mask; returns the bytes moved.
pub(super) fn copy(
    memory: &mut Memory<'_, '_>,
    copy: &Copy,
    frame: &Frame,
    constants: &[Lanes],
    mask: u32,
) -> Result<u64> {
    let mut moved = 0;
    let (to, from) = (addresses(&copy.dst, frame, constants), addresses(&copy.src, frame, constants));
    let bytes = lanes_of(&frame.regs, constants, copy.bytes);
    let read = match copy.src_bytes {
        NONE => bytes,
        slot => lanes_of(&frame.regs, constants, slot),
    };
    let ignored = pred_of(&frame.preds, copy.ignore);
    let barriers = copy.barrier.map(|(space, addr)| (space, addresses(&addr, frame, constants)));
    for l in each_lane(mask) {
        let bytes = u64::from(bytes[l] as u32);
        let read = if ignored >> l & 1 != 0 { 0 } else { u64::from(read[l] as u32) };
        if read > bytes {
            let text = format!("cp.async reads {read} bytes and writes {bytes}");
            return fault(l as u32, FaultReason::IllegalInstruction(text));
        }
        let mut one = |to: u64, place: &dyn Fn(u64) -> u64| -> Result<()> {
            let ends = ((copy.dst_space, to), (copy.src_space, from[l]));
            memory.copy(ends.0, ends.1, bytes, read, copy.align.into(), copy.reduce, l, copy.cache)?;
            moved += bytes;
            if let Some((space, addresses)) = &barriers {
                memory.mbarrier(MbarOp::CompleteTx, *space, place(addresses[l]), bytes, l)?;
            }
            Ok(())
        };
        if copy.multicast == NONE {
            one(to[l], &|address| address)?;
            continue;
        }
        // The same place in each of the blocks, and its barrier there.
        let blocks = lanes_of(&frame.regs, constants, copy.multicast)[l] as u16;
        for rank in each_lane(blocks.into()) {
            let place = |address: u64| {
                address & ((1 << window::RANK_SHIFT) - 1) | (rank as u64 + 1) << window::RANK_SHIFT
            };
            one(place(to[l]), &place)?;
        }
    }
    Ok(moved)
}
