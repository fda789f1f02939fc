//! Calls: frames, arguments, results, system calls.

use super::memory::Bytes;
use super::warp::{Env, Group, Warp, lanes_of, put_pred};
use super::{Result, each_lane, fault};
use crate::exec::FaultReason;
use crate::ptx::code::{Actual, Call, Callee, Lanes, Passing, Slot, window};

/// Bytes of stack and registers of a thread beyond its entry's own.
const STACK: u32 = 64 << 10;

impl Warp {
    /// Enters a function, or does a system call.
    pub(super) fn call(
        &mut self,
        group: &mut Group,
        mask: u32,
        call: &Call,
        constants: &[Lanes],
        env: &mut Env<'_, '_>,
    ) -> Result<()> {
        let run = env.worker.run;
        let mut split = Vec::new();
        match call.callee {
            Callee::Function(number) => split.push(((number, 0), mask)),
            Callee::Indirect(slot) => {
                let targets = *lanes_of(&self.frames[group.depth as usize].regs, constants, slot);
                for lane in each_lane(mask) {
                    let number = targets[lane].wrapping_sub(window::CODE) / 16;
                    let func = run.image.funcs.get(number as usize);
                    let fits = func.is_some_and(|f| f.defined && f.shape == call.shape);
                    if !fits || !targets[lane].is_multiple_of(16) {
                        let text = format!("indirect call of {:#x}, no function of this type", targets[lane]);
                        return fault(lane as u32, FaultReason::IllegalInstruction(text));
                    }
                    add_lane(&mut split, (number as u32, 0), lane);
                }
            }
            Callee::Printf | Callee::AssertFail | Callee::SetCondition => {
                self.system_call(group, mask, call, constants, env)?;
                group.pc += 1;
                return Ok(());
            }
        }
        for ((number, _), lanes) in split {
            let func = &run.image.funcs[number as usize];
            let depth = group.depth as usize + 1;
            let cost = func.frame + 16 + 8 * func.regs;
            self.room(depth, func.regs, func.preds);
            for lane in each_lane(lanes) {
                let base = self.frames[depth - 1].top[lane].next_multiple_of(16);
                // Registers of the callers count too: a real stack holds them.
                let used = base + u64::from(cost) + depth as u64 * u64::from(16 + 8 * func.regs);
                if used > u64::from(STACK) + u64::from(run.func.frame) {
                    return fault(lane as u32, FaultReason::StackOverflow);
                }
                let end = base as usize + func.frame as usize;
                self.local[lane].grow(end);
                self.local[lane].forget(base as usize, end);
                let frame = &mut self.frames[depth];
                frame.base[lane] = base;
                frame.top[lane] = end as u64;
                frame.ret[lane] = group.pc + 1;
                frame.ret_func[lane] = group.func;
                for passing in &call.args {
                    self.pass_in(group.depth as usize, lane, base, passing, constants);
                }
            }
            self.groups.push(Group {
                mask: lanes,
                pc: func.start,
                depth: depth as u32,
                func: number,
                ..*group
            });
        }
        group.mask &= !mask;
        group.pc += 1;
        Ok(())
    }

    /// `alloca`: each lane's frame grows by as many bytes as it asks for.
    pub(super) fn allocate(
        &mut self,
        depth: usize,
        mask: u32,
        dst: Slot,
        bytes: &Lanes,
        align: u32,
        entry: u32,
    ) -> Result<()> {
        let frame = &mut self.frames[depth];
        for lane in each_lane(mask) {
            let at = frame.top[lane].next_multiple_of(align.into());
            let limit = u64::from(STACK) + u64::from(entry);
            let Some(end) = at.checked_add(bytes[lane]).filter(|&end| end <= limit) else {
                return fault(lane as u32, FaultReason::StackOverflow);
            };
            self.local[lane].grow(end as usize);
            self.local[lane].forget(at as usize, end as usize);
            frame.top[lane] = end;
            frame.regs[dst as usize][lane] = at;
        }
        Ok(())
    }

    /// `stackrestore`: what `alloca` gave since the matching `stacksave` is free again.
    pub(super) fn restore_stack(&mut self, depth: usize, mask: u32, to: &Lanes, own: u32) -> Result<()> {
        let frame = &mut self.frames[depth];
        for lane in each_lane(mask) {
            let least = frame.base[lane] + u64::from(own);
            if !(least..=frame.top[lane]).contains(&to[lane]) {
                let text = format!("stackrestore of {:#x}, which no stacksave here gave", to[lane]);
                return fault(lane as u32, FaultReason::IllegalInstruction(text));
            }
            self.local[lane].forget(to[lane] as usize, frame.top[lane] as usize);
            frame.top[lane] = to[lane];
        }
        Ok(())
    }

    /// Copies one argument of a lane into the callee's frame at `base`.
    fn pass_in(&mut self, depth: usize, lane: usize, base: u64, p: &Passing, constants: &[Lanes]) {
        let frame = &self.frames[depth];
        let to = base as usize + p.offset as usize;
        match p.actual {
            Actual::Frame(at) => {
                let from = frame.base[lane] as usize + at as usize;
                copy_local(&mut self.local[lane], from, to, p.bytes as usize);
            }
            Actual::Reg(slot) => {
                let value = lanes_of(&frame.regs, constants, slot)[lane];
                self.local[lane].store(to, p.bytes as usize, value);
            }
            Actual::Pred(slot) => {
                let value = frame.preds[slot as usize] >> lane & 1;
                self.local[lane].store(to, 1, value.into());
            }
            Actual::Sink => {}
        }
    }

    /// Copies the results of a call that has returned.
    pub(super) fn after_call(&mut self, group: &Group, mask: u32, call: &Call) -> Result<()> {
        let depth = group.depth as usize;
        let callee = self.frames.get(depth + 1).map_or([0; 32], |f| f.base);
        let frame = &mut self.frames[depth];
        for lane in each_lane(mask) {
            for p in &call.returns {
                let from = callee[lane] as usize + p.offset as usize;
                match p.actual {
                    Actual::Frame(at) => {
                        let to = frame.base[lane] as usize + at as usize;
                        copy_local(&mut self.local[lane], from, to, p.bytes as usize);
                    }
                    Actual::Reg(slot) => {
                        let value = self.local[lane].load(from, p.bytes as usize).unwrap_or(0);
                        frame.regs[slot as usize][lane] = value;
                    }
                    Actual::Pred(slot) => {
                        let value = self.local[lane].load(from, 1).unwrap_or(0) as u32;
                        put_pred(&mut frame.preds, slot, value << lane, 1 << lane);
                    }
                    Actual::Sink => {}
                }
            }
        }
        Ok(())
    }

    /// Value of a system call's argument.
    fn argument(&self, depth: usize, lane: usize, p: &Passing, constants: &[Lanes]) -> u64 {
        let frame = &self.frames[depth];
        match p.actual {
            Actual::Frame(at) => {
                let from = frame.base[lane] as usize + at as usize;
                self.local[lane].load(from, p.bytes.min(8) as usize).unwrap_or(0)
            }
            Actual::Reg(slot) => lanes_of(&frame.regs, constants, slot)[lane],
            _ => 0,
        }
    }

    fn system_call(
        &mut self,
        group: &Group,
        mask: u32,
        call: &Call,
        constants: &[Lanes],
        env: &mut Env<'_, '_>,
    ) -> Result<()> {
        let depth = group.depth as usize;
        for lane in each_lane(mask) {
            let args: Vec<u64> = call.args.iter().map(|p| self.argument(depth, lane, p, constants)).collect();
            let mut memory = env.memory((self.block, self.index), &mut self.local, group.pc, false);
            if let Callee::AssertFail = call.callee {
                let text = super::printf::assertion(&mut memory, &args, lane)?;
                return fault(lane as u32, FaultReason::Assert(text));
            }
            if let Callee::SetCondition = call.callee {
                let arg = |i: usize| args.get(i).copied().unwrap_or(0);
                if !(memory.worker.run.ctx.set_condition)(arg(0), arg(1) as u32) {
                    let text = format!("{:#x} is no condition that this kernel may set", arg(0));
                    return fault(lane as u32, FaultReason::IllegalInstruction(text));
                }
                continue;
            }
            let written = super::printf::vprintf(&mut memory, &args, lane)?;
            let frame = &mut self.frames[depth];
            for p in &call.returns {
                match p.actual {
                    Actual::Frame(at) => {
                        let to = frame.base[lane] as usize + at as usize;
                        self.local[lane].store(to, p.bytes.min(8) as usize, written.into());
                    }
                    Actual::Reg(slot) => frame.regs[slot as usize][lane] = written.into(),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn copy_local(local: &mut Bytes, from: usize, to: usize, bytes: usize) {
    for at in 0..bytes {
        if local.first_unwritten(from + at, 1).is_none()
            && let Some(value) = local.load(from + at, 1)
        {
            local.store(to + at, 1, value);
        }
    }
}

/// Adds a lane to the group of its key.
pub(super) fn add_lane(split: &mut Vec<((u32, u32), u32)>, key: (u32, u32), lane: usize) {
    match split.iter_mut().find(|(k, _)| *k == key) {
        Some((_, mask)) => *mask |= 1 << lane,
        None => split.push((key, 1 << lane)),
    }
}
