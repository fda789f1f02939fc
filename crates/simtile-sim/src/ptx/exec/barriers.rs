//! Arriving at barriers of the block, and going on when they open.

use super::cluster::Barrier;
use super::grid::Worker;
use super::warp::{Env, Group, Wait, Warp, lanes_of, pred_of, put, put_pred};
use super::{Result, each_lane, fault};
use crate::exec::FaultReason;
use crate::ptx::code::{Bar, Lanes, NONE, Op, Reduce};

impl Warp {
    /// Arrives at a barrier. True if the lanes have to wait.
    pub(super) fn barrier(
        &mut self,
        group: &mut Group,
        mask: u32,
        bar: &Bar,
        constants: &[Lanes],
        env: &mut Env<'_, '_>,
    ) -> Result<bool> {
        let frame = &self.frames[group.depth as usize];
        let first = mask.trailing_zeros();
        let ids = lanes_of(&frame.regs, constants, bar.id);
        let id = ids[first as usize] as u32;
        // Lanes that name another barrier go on their own.
        let same = each_lane(mask).filter(|&l| ids[l] as u32 == id).fold(0, |m, l| m | 1 << l);
        let illegal = |text: String| fault(first, FaultReason::IllegalInstruction(text));
        if id > 15 {
            return illegal(format!("barrier {id}, the last one is 15"));
        }
        let count = match bar.count {
            NONE => None,
            slot => Some(lanes_of(&frame.regs, constants, slot)[first as usize] as u32),
        };
        if count.is_some_and(|c| c == 0 || c % 32 != 0 || c > 1024) {
            let text = format!("a barrier for {} threads; a multiple of 32 is needed", count.unwrap_or(0));
            return illegal(text);
        }
        let block = &mut env.blocks[self.block];
        let warps = block.live.len();
        let barrier = &mut block.barriers[id as usize];
        if barrier.arrived.is_empty() {
            *barrier = Barrier { arrived: vec![0; warps], count, all: true, any: false, trues: 0 };
        } else if barrier.count != count {
            return illegal(format!(
                "barrier {id} for {count:?} threads, others wait for {:?}",
                barrier.count
            ));
        }
        barrier.arrived[self.index as usize] |= same;
        if let Some(Reduce { source, .. }) = bar.reduce {
            let p = pred_of(&frame.preds, source) & same;
            barrier.all &= p == same;
            barrier.any |= p != 0;
            barrier.trues += p.count_ones();
        }
        block.dirty = true;
        if mask != same {
            self.groups.push(Group { mask: mask & !same, ..*group });
            group.mask &= !(mask & !same);
        }
        if bar.wait {
            self.keep_waiting(group, same, Wait::Bar(id));
        }
        Ok(bar.wait)
    }

    /// Lets the lanes that wait at a barrier go on, with the results of its reduction. If lanes of this warp
    /// came to it from different `.aligned` instructions: where, and what is wrong with that.
    pub(super) fn open(
        &mut self,
        id: u32,
        barrier: &Barrier,
        worker: &Worker<'_>,
    ) -> Option<(u32, u32, String)> {
        let mut place: Option<u32> = None;
        let mut divergent = None;
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            if group.wait != Wait::Bar(id) {
                continue;
            }
            let insn = &worker.run.image.code[group.pc as usize];
            let Op::Bar(bar) = &insn.op else { continue };
            if let Some(Reduce { op, dst, .. }) = bar.reduce {
                let frame = &mut self.frames[group.depth as usize];
                let truth = |t: bool| if t { u32::MAX } else { 0 };
                match op {
                    None => {
                        put(&mut frame.regs[dst as usize], &[barrier.trues.into(); 32], group.mask);
                    }
                    Some(crate::ptx::code::Logic::And) => {
                        put_pred(&mut frame.preds, dst, truth(barrier.all), group.mask);
                    }
                    Some(_) => put_pred(&mut frame.preds, dst, truth(barrier.any), group.mask),
                }
            }
            if bar.aligned {
                match place {
                    None => place = Some(group.pc),
                    Some(other) if other != group.pc && divergent.is_none() => {
                        let line = |pc: u32| worker.run.image.code[pc as usize].line;
                        let text = format!(
                            "threads of one warp reach barrier {id} at PTX lines {} and {}",
                            line(other),
                            line(group.pc)
                        );
                        divergent = Some((group.pc, group.mask.trailing_zeros(), text));
                    }
                    Some(_) => {}
                }
            }
            self.groups[at].wait = Wait::Ready;
            self.groups[at].pc += 1;
        }
        divergent
    }

    /// The cluster barrier's phase has ended.
    pub(super) fn open_cluster(&mut self) {
        for group in self.groups.iter_mut().filter(|g| g.wait == Wait::Cluster) {
            group.wait = Wait::Ready;
        }
    }
}
