//! A warp: groups of lanes, frames, and the execution of instructions.

use super::calls::add_lane;
use super::cluster::{Block, ClusterBarrier};
use super::grid::{Run, Worker};
use super::memory::{Bytes, Memory};
use super::{LaneFault, Result, each_lane, fault};
use crate::exec::{FaultReason, KernelFault};
use crate::ptx::code::{Addr, AtomOp, CONSTANT, Insn, Lanes, MultimemKind, NONE, Op, PredSrc, Slot};

/// Instructions after which a group lets others of its warp run.
const QUANTUM: i64 = 20_000;
/// What an access that a loop may spin on costs of a slice and of a quantum.
const SPIN: i64 = 64;

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Ready,
    Bar(u32),
    Cluster,
    /// Other lanes of the warp at the same instruction.
    Lanes,
}

/// Lanes with one program counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub mask: u32,
    pub pc: u32,
    pub depth: u32,
    pub func: u32,
    /// Instructions of the lane that ran most.
    pub steps: u64,
    /// When it last ran.
    pub stamp: u64,
    pub wait: Wait,
}

impl Group {
    pub(super) fn depth_index(&self) -> usize {
        self.depth as usize
    }

    pub(super) fn func_index(&self) -> usize {
        self.func as usize
    }

    pub(super) fn steps_taken(&self) -> u64 {
        self.steps
    }

    /// The same place with other lanes, ready to run.
    pub(super) fn joined(self, mask: u32, steps: u64) -> Self {
        Self { mask, steps, wait: Wait::Ready, ..self }
    }
}

/// Registers and return addresses at one call depth. A lane only uses its own column, so lanes in different
/// functions of the same depth share a frame.
#[derive(Default)]
pub(super) struct Frame {
    pub regs: Vec<Lanes>,
    pub preds: Vec<u32>,
    /// Start of the function's frame in local memory.
    pub base: Lanes,
    /// Its end: what it declares, and what `alloca` added.
    pub top: Lanes,
    pub ret: [u32; 32],
    pub ret_func: [u32; 32],
}

/// What a warp works on besides itself.
pub(super) struct Env<'e, 'r> {
    pub worker: &'e mut Worker<'r>,
    pub blocks: &'e mut [Block],
    pub cluster: &'e mut ClusterBarrier,
}

impl<'r> Env<'_, 'r> {
    /// Memory as the instruction at `pc` of a warp (its block, its number in the block) sees it.
    #[inline(always)]
    pub(super) fn memory<'m>(
        &'m mut self,
        (block, warp): (usize, u32),
        local: &'m mut [Bytes; 32],
        pc: u32,
        strong: bool,
    ) -> Memory<'m, 'r> {
        Memory { worker: self.worker, blocks: self.blocks, block, local, pc, warp, strong }
    }
}

pub(super) struct Warp {
    /// Rank of its block.
    pub block: usize,
    pub index: u32,
    /// Lanes that exist.
    pub valid: u32,
    pub groups: Vec<Group>,
    pub frames: Vec<Frame>,
    pub thread: [Lanes; 3],
    pub local: Box<[Bytes; 32]>,
    carry: u32,
    exited: u32,
    cluster_phase: [u32; 32],
    rotate: bool,
    /// What is left of the quantum of the groups that run.
    quantum: i64,
}

/// Why [`Warp::execute`] came back.
enum Stop {
    /// Another group may have to run.
    Switch,
    /// The slice is used up.
    Slice,
}

/// The lanes of a slot.
#[inline(always)]
pub(super) fn lanes_of<'a>(regs: &'a [Lanes], constants: &'a [Lanes], slot: Slot) -> &'a Lanes {
    if slot & CONSTANT != 0 { &constants[(slot ^ CONSTANT) as usize] } else { &regs[slot as usize] }
}

/// A register to write and three slots to read, if it is none of them.
#[inline(always)]
fn apart<'a>(
    regs: &'a mut [Lanes],
    constants: &'a [Lanes],
    dst: Slot,
    src: [Slot; 3],
) -> Option<(&'a mut Lanes, [&'a Lanes; 3])> {
    let count = regs.len();
    if src.contains(&dst) || dst as usize >= count {
        return None;
    }
    let base = regs.as_mut_ptr();
    let read = |slot: Slot| {
        if slot & CONSTANT != 0 {
            return &constants[(slot ^ CONSTANT) as usize];
        }
        assert!((slot as usize) < count);
        // SAFETY: in bounds, and no register that `dst` borrows for writing.
        unsafe { &*base.add(slot as usize) }
    };
    // SAFETY: in bounds; the sources are other registers, or constants.
    Some((unsafe { &mut *base.add(dst as usize) }, src.map(read)))
}

/// Puts the active lanes of `value` into a register.
#[inline(always)]
pub(super) fn put(register: &mut Lanes, value: &Lanes, mask: u32) {
    if mask == u32::MAX {
        *register = *value;
    } else {
        for lane in each_lane(mask) {
            register[lane] = value[lane];
        }
    }
}

#[inline(always)]
pub(super) fn pred_of(preds: &[u32], p: PredSrc) -> u32 {
    let value = if p.slot == NONE { u32::MAX } else { preds[p.slot as usize] };
    if p.negated { !value } else { value }
}

#[inline(always)]
pub(super) fn put_pred(preds: &mut [u32], slot: u32, value: u32, mask: u32) {
    if slot != NONE {
        let p = &mut preds[slot as usize];
        *p = *p & !mask | value & mask;
    }
}

/// Addresses of an access.
#[inline(always)]
pub(super) fn addresses(addr: &Addr, frame: &Frame, constants: &[Lanes]) -> Lanes {
    let base = lanes_of(&frame.regs, constants, addr.base);
    let offset = addr.offset as u64;
    let mut all = *base;
    if addr.frame {
        all.iter_mut().zip(&frame.base).for_each(|(a, base)| *a = a.wrapping_add(offset).wrapping_add(*base));
    } else {
        all.iter_mut().for_each(|a| *a = a.wrapping_add(offset));
    }
    all
}

impl Warp {
    pub(super) fn new(run: &Run<'_>, block: usize, index: u32) -> Self {
        let first = index * 32;
        let lanes = (run.threads - first).min(32);
        let valid = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
        let [x, y, _] = run.launch.block;
        let coordinate =
            |f: &dyn Fn(u32) -> u32| -> Lanes { std::array::from_fn(|lane| f(first + lane as u32).into()) };
        let thread = [coordinate(&|t| t % x), coordinate(&|t| t / x % y), coordinate(&|t| t / x / y)];
        let frame = run.func.frame as usize;
        let mut warp = Self {
            block,
            index,
            valid,
            groups: Vec::new(),
            frames: Vec::new(),
            thread,
            local: Box::new(std::array::from_fn(|_| Bytes::new(frame))),
            carry: 0,
            exited: 0,
            cluster_phase: [u32::MAX; 32],
            rotate: false,
            quantum: QUANTUM,
        };
        warp.room(0, run.func.regs, run.func.preds);
        warp.restart(run);
        warp
    }

    /// Makes it the same warp of another block, about to start.
    pub(super) fn restart(&mut self, run: &Run<'_>) {
        let start = Group {
            mask: self.valid,
            pc: run.func.start,
            depth: 0,
            func: run.entry,
            steps: 0,
            stamp: 0,
            wait: Wait::Ready,
        };
        self.groups.clear();
        self.groups.push(start);
        let Some((first, deeper)) = self.frames.split_first_mut() else { return };
        first.top = [run.func.frame.into(); 32];
        run.func.clear.iter().for_each(|&slot| first.regs[slot as usize] = [0; 32]);
        first.preds.iter_mut().for_each(|p| *p = 0);
        for frame in deeper {
            frame.regs.iter_mut().for_each(|r| *r = [0; 32]);
            frame.preds.iter_mut().for_each(|p| *p = 0);
        }
        self.local.iter_mut().for_each(|local| local.restart(run.func.frame as usize));
        (self.carry, self.exited, self.rotate, self.quantum) = (0, 0, false, QUANTUM);
        self.cluster_phase = [u32::MAX; 32];
    }

    pub(super) fn is_done(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.groups.iter().any(|g| g.wait == Wait::Ready)
    }

    pub(super) fn room(&mut self, depth: usize, regs: u32, preds: u32) {
        if self.frames.len() <= depth {
            self.frames.resize_with(depth + 1, Frame::default);
        }
        let frame = &mut self.frames[depth];
        if frame.regs.len() < regs as usize {
            frame.regs.resize(regs as usize, [0; 32]);
        }
        if frame.preds.len() < preds as usize {
            frame.preds.resize(preds as usize, 0);
        }
    }

    /// Runs until the slice is used up or no group can run.
    pub(super) fn run(
        &mut self,
        env: &mut Env<'_, '_>,
        mut slice: i64,
    ) -> std::result::Result<(), Box<KernelFault>> {
        while slice > 0 {
            self.merge();
            let Some(at) = self.pick() else { return Ok(()) };
            let mut group = self.groups.swap_remove(at);
            let mut others = self.groups.iter().filter(|g| g.wait == Wait::Ready).peekable();
            let alone = others.peek().is_none();
            let stop = others.filter(|g| g.depth == group.depth && g.pc > group.pc).map(|g| g.pc).min();
            let stop = stop.filter(|_| !self.rotate).unwrap_or(u32::MAX);
            // What is left of the quantum survives the end of a slice: slices are shorter.
            let mut quantum = if alone { i64::MAX } else { self.quantum };
            self.rotate = false;
            let result = self.execute(&mut group, stop, &mut quantum, &mut slice, env);
            group.stamp = env.worker.clock;
            self.rotate = quantum <= 0;
            self.quantum = if alone || self.rotate { QUANTUM } else { quantum };
            let at = group;
            if group.mask != 0 {
                self.groups.push(group);
            }
            match result {
                Ok(Stop::Switch) => {}
                Ok(Stop::Slice) => return Ok(()),
                Err(error) => return Err(self.fault(at, *error, env)),
            }
        }
        Ok(())
    }

    fn fault(&self, group: Group, error: LaneFault, env: &Env<'_, '_>) -> Box<KernelFault> {
        let block = env.blocks[self.block].coords;
        let site = env.worker.run.site(group.pc, block, self.index, error.lane);
        Box::new(KernelFault { site: Box::new(site), reason: error.reason })
    }

    /// Joins ready groups that stand at the same instruction.
    fn merge(&mut self) {
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let (a, b) = (self.groups[i], self.groups[j]);
                let same = a.pc == b.pc && a.depth == b.depth && a.func == b.func;
                if same && a.wait == Wait::Ready && b.wait == Wait::Ready {
                    self.groups[i].mask |= b.mask;
                    self.groups[i].steps = a.steps.max(b.steps);
                    self.groups[i].stamp = a.stamp.min(b.stamp);
                    self.groups.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// The deepest group and of those the one furthest behind; after a spin, the one that waited longest.
    fn pick(&self) -> Option<usize> {
        let ready = self.groups.iter().enumerate().filter(|(_, g)| g.wait == Wait::Ready);
        let best = if self.rotate {
            ready.min_by_key(|(_, g)| (g.stamp, g.pc))
        } else {
            ready.min_by_key(|(_, g)| (std::cmp::Reverse(g.depth), g.pc))
        };
        best.map(|(at, _)| at)
    }

    fn execute(
        &mut self,
        group: &mut Group,
        stop: u32,
        quantum: &mut i64,
        slice: &mut i64,
        env: &mut Env<'_, '_>,
    ) -> Result<Stop> {
        #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
        if env.worker.wide {
            // SAFETY: `wide` says that the machine has what the function is compiled for.
            return unsafe { self.execute_wide(group, stop, quantum, slice, env) };
        }
        self.execute_any(group, stop, quantum, slice, env)
    }

    /// [`Warp::execute_any`], compiled for the vector unit that [`is_wide`](crate::ptx::lanes::is_wide) asks for.
    #[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn execute_wide(
        &mut self,
        group: &mut Group,
        stop: u32,
        quantum: &mut i64,
        slice: &mut i64,
        env: &mut Env<'_, '_>,
    ) -> Result<Stop> {
        self.execute_any(group, stop, quantum, slice, env)
    }

    #[inline(always)]
    fn execute_any(
        &mut self,
        group: &mut Group,
        mut stop: u32,
        quantum: &mut i64,
        slice: &mut i64,
        env: &mut Env<'_, '_>,
    ) -> Result<Stop> {
        let run = env.worker.run;
        let code: &[Insn] = &run.image.code;
        let limit = run.ctx.step_limit;
        let seeded = run.ctx.seed != 0;
        let constants: &[Lanes] = &run.image.funcs[group.func as usize].constants;
        loop {
            if group.pc >= stop {
                return Ok(Stop::Switch);
            }
            if *slice <= 0 || *quantum <= 0 {
                return Ok(if *slice <= 0 { Stop::Slice } else { Stop::Switch });
            }
            let Some(insn) = code.get(group.pc as usize) else {
                let text = format!("no instruction at {}", group.pc);
                return fault(0, FaultReason::IllegalInstruction(text));
            };
            *slice -= 1;
            *quantum -= 1;
            env.worker.clock += 1;
            group.steps += 1;
            if group.steps > limit {
                return fault(group.mask.trailing_zeros(), FaultReason::StepLimit(limit));
            }
            let frame = &mut self.frames[group.depth as usize];
            let mut mask = group.mask;
            if insn.guard != NONE {
                let p = frame.preds[insn.guard as usize];
                mask &= if insn.guard_negated { !p } else { p };
                if mask == 0 {
                    group.pc += 1;
                    continue;
                }
            }
            match &insn.op {
                Op::Alu { f, mode, dst, src: [a, b, c] } => {
                    if mask == u32::MAX
                        && let Some((out, sources)) = apart(&mut frame.regs, constants, *dst, [*a, *b, *c])
                    {
                        f.run(out, sources, *mode);
                    } else {
                        let out = &mut env.worker.scratch;
                        let regs = &frame.regs;
                        let sources = [
                            lanes_of(regs, constants, *a),
                            lanes_of(regs, constants, *b),
                            lanes_of(regs, constants, *c),
                        ];
                        f.run(out, sources, *mode);
                        put(&mut frame.regs[*dst as usize], out, mask);
                    }
                }
                Op::Test { f, mode, src: [a, b, c], yes, no, logic, with } => {
                    let regs = &frame.regs;
                    let sources = [
                        lanes_of(regs, constants, *a),
                        lanes_of(regs, constants, *b),
                        lanes_of(regs, constants, *c),
                    ];
                    let result = f.run(sources, *mode);
                    let with = pred_of(&frame.preds, *with);
                    put_pred(&mut frame.preds, *yes, logic.apply(result, with), mask);
                    put_pred(&mut frame.preds, *no, logic.apply(!result, with), mask);
                }
                Op::Bra { target } => {
                    if mask == group.mask {
                        group.pc = *target;
                        if *target >= stop {
                            return Ok(Stop::Switch);
                        }
                        continue;
                    }
                    let taken = Group { mask, pc: *target, ..*group };
                    group.mask &= !mask;
                    group.pc += 1;
                    self.groups.push(taken);
                    return Ok(Stop::Switch);
                }
                Op::Load(access) => {
                    if access.strong {
                        *slice -= SPIN;
                        *quantum -= 2 * SPIN;
                    }
                    let addresses = addresses(&access.addr, frame, constants);
                    // Most loads have one element: clearing room for eight would cost more than they do.
                    let (mut one, mut many);
                    let out: &mut [Lanes] = if access.regs.len() == 1 {
                        one = [[0; 32]];
                        &mut one
                    } else {
                        many = [[0; 32]; 8];
                        &mut many[..access.regs.len().min(8)]
                    };
                    let width = u32::from(access.width);
                    let mut memory =
                        env.memory((self.block, self.index), &mut self.local, group.pc, access.strong);
                    memory.load(access.space, access.cache, width, &addresses, mask, out)?;
                    for (&slot, out) in access.regs.iter().zip(out) {
                        if access.sign_to != 0 {
                            sign_extend(out, width * 8, access.sign_to.into());
                        }
                        if slot != NONE {
                            put(&mut frame.regs[slot as usize], out, mask);
                        }
                    }
                }
                Op::Store(access) => {
                    if seeded && env.worker.random() & 63 == 0 {
                        mask = self.run_ahead(group, mask, &mut stop, quantum, env);
                    }
                    let frame = &mut self.frames[group.depth as usize];
                    let addresses = addresses(&access.addr, frame, constants);
                    let mut values: [&Lanes; 8] = [&[0; 32]; 8];
                    let n = access.regs.len().min(8);
                    for (value, &slot) in values.iter_mut().zip(access.regs.iter()) {
                        *value = lanes_of(&frame.regs, constants, slot);
                    }
                    let mut memory =
                        env.memory((self.block, self.index), &mut self.local, group.pc, access.strong);
                    let width = access.width.into();
                    memory.store(access.space, access.cache, width, &addresses, mask, &values[..n])?;
                }
                Op::Set { f, mode, src: [a, b, c], dst, truth, logic, with } => {
                    let regs = &frame.regs;
                    let sources = [
                        lanes_of(regs, constants, *a),
                        lanes_of(regs, constants, *b),
                        lanes_of(regs, constants, *c),
                    ];
                    let result = logic.apply(f.run(sources, *mode), pred_of(&frame.preds, *with));
                    let out: Lanes = std::array::from_fn(|l| if result >> l & 1 != 0 { *truth } else { 0 });
                    put(&mut frame.regs[*dst as usize], &out, mask);
                }
                Op::Select { dst, a, b, p } => {
                    let p = pred_of(&frame.preds, *p);
                    let (a, b) = (lanes_of(&frame.regs, constants, *a), lanes_of(&frame.regs, constants, *b));
                    let out: Lanes = std::array::from_fn(|l| if p >> l & 1 != 0 { a[l] } else { b[l] });
                    put(&mut frame.regs[*dst as usize], &out, mask);
                }
                Op::Logic { op, negate, dst, a, b } => {
                    let value = op.apply(pred_of(&frame.preds, *a), pred_of(&frame.preds, *b));
                    put_pred(&mut frame.preds, *dst, if *negate { !value } else { value }, mask);
                }
                Op::Carry { f, write, dst, src: [a, b, c] } => {
                    let mut out = [0; 32];
                    let regs = &frame.regs;
                    let sources = [
                        lanes_of(regs, constants, *a),
                        lanes_of(regs, constants, *b),
                        lanes_of(regs, constants, *c),
                    ];
                    let carry = f(&mut out, sources, self.carry);
                    put(&mut frame.regs[*dst as usize], &out, mask);
                    if *write {
                        self.carry = self.carry & !mask | carry & mask;
                    }
                }
                Op::Special { dst, what } => {
                    let value = super::special::read(*what, self, &env.blocks[self.block], env.worker);
                    put(&mut self.frames[group.depth as usize].regs[*dst as usize], &value, mask);
                }
                Op::GlobalAddr { dst, index, offset } => {
                    let base = run.ctx.globals.get(*index as usize).copied().unwrap_or(0);
                    put(&mut frame.regs[*dst as usize], &[base.wrapping_add(*offset as u64); 32], mask);
                }
                Op::DynamicShared { dst, offset } => {
                    let base = u64::from(run.func.dynamic_shared).wrapping_add(*offset as u64);
                    put(&mut frame.regs[*dst as usize], &[base; 32], mask);
                }
                Op::LocalAddr { dst, offset } => {
                    let value: Lanes = std::array::from_fn(|l| frame.base[l].wrapping_add(*offset as u64));
                    put(&mut frame.regs[*dst as usize], &value, mask);
                }
                Op::Alloca { dst, bytes, align } => {
                    let bytes = *lanes_of(&frame.regs, constants, *bytes);
                    self.allocate(group.depth_index(), mask, *dst, &bytes, *align, run.func.frame)?;
                }
                Op::StackSave { dst } => {
                    let top = frame.top;
                    put(&mut frame.regs[*dst as usize], &top, mask);
                }
                Op::StackRestore { src } => {
                    let to = *lanes_of(&frame.regs, constants, *src);
                    let own = run.image.funcs[group.func_index()].frame;
                    self.restore_stack(group.depth_index(), mask, &to, own)?;
                }
                Op::ActiveMask { dst } => {
                    put(&mut frame.regs[*dst as usize], &[u64::from(mask); 32], mask);
                }
                Op::Nop => {}
                Op::Yield => {
                    *slice = 0;
                    *quantum = if *quantum == i64::MAX { i64::MAX } else { 0 };
                }
                Op::Atom(atom) => {
                    if seeded && env.worker.random() & 63 == 0 {
                        mask = self.run_ahead(group, mask, &mut stop, quantum, env);
                    }
                    let spins = matches!(atom.op, AtomOp::Cas | AtomOp::Exch);
                    *slice -= 8;
                    *quantum -= if spins { 2 * SPIN } else { SPIN / 4 };
                    let frame = &mut self.frames[group.depth as usize];
                    let addresses = addresses(&atom.addr, frame, constants);
                    let mut operands: [&Lanes; 8] = [&[0; 32]; 8];
                    for (value, &slot) in operands.iter_mut().zip(atom.src.iter()) {
                        *value = lanes_of(&frame.regs, constants, slot);
                    }
                    let operands = &operands[..atom.src.len().min(8)];
                    let swap = (atom.swap != NONE).then(|| lanes_of(&frame.regs, constants, atom.swap));
                    let mut out = [[0; 32]; 8];
                    let out = &mut out[..atom.dst.len().min(8)];
                    let mut memory = env.memory((self.block, self.index), &mut self.local, group.pc, true);
                    memory.atomic(atom, &addresses, mask, operands, swap, out)?;
                    for (&slot, out) in atom.dst.iter().zip(out) {
                        if slot != NONE {
                            put(&mut frame.regs[slot as usize], out, mask);
                        }
                    }
                }
                Op::Multimem(m) => {
                    *slice -= 8;
                    let frame = &mut self.frames[group.depth as usize];
                    let addresses = addresses(&m.addr, frame, constants);
                    let mut memory = env.memory((self.block, self.index), &mut self.local, group.pc, true);
                    let mut out = [[0; 32]; 8];
                    if m.kind == MultimemKind::LoadReduce {
                        memory.multimem(m, &addresses, mask, &[], &mut out)?;
                        for (&slot, out) in m.regs.iter().zip(&out).filter(|(slot, _)| **slot != NONE) {
                            put(&mut frame.regs[slot as usize], out, mask);
                        }
                    } else {
                        let mut operands: [&Lanes; 8] = [&[0; 32]; 8];
                        for (value, &slot) in operands.iter_mut().zip(m.regs.iter()) {
                            *value = lanes_of(&frame.regs, constants, slot);
                        }
                        memory.multimem(m, &addresses, mask, &operands, &mut out)?;
                    }
                }
                Op::Bar(bar) => {
                    if self.barrier(group, mask, bar, constants, env)? {
                        return Ok(Stop::Switch);
                    }
                }
                Op::ClusterArrive => {
                    env.cluster.arrived += mask.count_ones();
                    env.cluster.dirty = true;
                    let phase = env.cluster.phase;
                    each_lane(mask).for_each(|l| self.cluster_phase[l] = phase);
                    // The scheduler completes the phase between slices.
                    *slice = 0;
                }
                Op::ClusterWait => {
                    let phase = env.cluster.phase;
                    if each_lane(mask).any(|l| self.cluster_phase[l] == phase) {
                        self.keep_waiting(group, mask, Wait::Cluster);
                        return Ok(Stop::Switch);
                    }
                }
                Op::Together(together) => {
                    if !self.together(group, mask, together, constants, env)? {
                        return Ok(Stop::Switch);
                    }
                }
                Op::Mbar(mbar) => {
                    let addresses = addresses(&mbar.addr, frame, constants);
                    let args = *lanes_of(&frame.regs, constants, mbar.arg);
                    let mut memory = env.memory((self.block, self.index), &mut self.local, group.pc, true);
                    if super::together::mbarrier(&mut memory, mbar, frame, &addresses, &args, mask)? {
                        *slice -= SPIN * 4;
                        *quantum -= SPIN * 4;
                    }
                }
                Op::Copy(copy) => {
                    let mut memory = env.memory((self.block, self.index), &mut self.local, group.pc, false);
                    // Long copies count as many steps.
                    let moved = super::together::copy(&mut memory, copy, frame, constants, mask)?;
                    group.steps += moved / 256;
                    *slice -= (moved / 256) as i64;
                }
                Op::BrxIdx { index, targets } => {
                    let index = *lanes_of(&frame.regs, constants, *index);
                    let mut split = Vec::new();
                    for lane in each_lane(mask) {
                        let Some(&target) = targets.get(index[lane] as u32 as usize) else {
                            let text = format!("brx.idx {} of {} targets", index[lane], targets.len());
                            return fault(lane as u32, FaultReason::IllegalInstruction(text));
                        };
                        add_lane(&mut split, (target, 0), lane);
                    }
                    self.scatter(group, mask, group.depth, Some(group.func), &split);
                    return Ok(Stop::Switch);
                }
                Op::Call(call) => {
                    self.call(group, mask, call, constants, env)?;
                    return Ok(Stop::Switch);
                }
                Op::AfterCall(call) => self.after_call(group, mask, call)?,
                Op::Ret if group.depth > 0 => {
                    let mut split = Vec::new();
                    for lane in each_lane(mask) {
                        add_lane(&mut split, (frame.ret[lane], frame.ret_func[lane]), lane);
                    }
                    self.scatter(group, mask, group.depth - 1, None, &split);
                    return Ok(Stop::Switch);
                }
                Op::Ret | Op::Exit => {
                    self.exited |= mask;
                    group.mask &= !mask;
                    group.pc += 1;
                    let block = &mut env.blocks[self.block];
                    block.live[self.index as usize] &= !mask;
                    block.dirty = true;
                    env.cluster.dirty = true;
                    if self.groups.iter().any(|g| g.wait == Wait::Lanes) {
                        self.recheck(run);
                    }
                    return Ok(Stop::Switch);
                }
                Op::Trap => return fault(mask.trailing_zeros(), FaultReason::Trap),
            }
            group.pc += 1;
        }
    }

    /// Lets a random part of the lanes run ahead of the others, as independent thread scheduling may.
    /// Returns the lanes that execute the instruction at hand.
    fn run_ahead(
        &mut self,
        group: &mut Group,
        mask: u32,
        stop: &mut u32,
        quantum: &mut i64,
        env: &mut Env<'_, '_>,
    ) -> u32 {
        let ahead = group.mask & env.worker.random() as u32;
        if ahead & mask == 0 || ahead == group.mask {
            return mask;
        }
        self.groups.push(Group { mask: group.mask & !ahead, ..*group });
        group.mask = ahead;
        *stop = u32::MAX;
        *quantum = 1 + (env.worker.random() % 64) as i64;
        mask & ahead
    }

    /// Puts the lanes of a mask into groups by target; the other lanes go on behind the instruction.
    fn scatter(
        &mut self,
        group: &mut Group,
        mask: u32,
        depth: u32,
        func: Option<u32>,
        split: &[((u32, u32), u32)],
    ) {
        for &((pc, to), lanes) in split {
            self.groups.push(Group { mask: lanes, pc, depth, func: func.unwrap_or(to), ..*group });
        }
        group.mask &= !mask;
        group.pc += 1;
    }

    /// Lanes of `mask` wait at the instruction, the others of the group go on.
    pub(super) fn keep_waiting(&mut self, group: &mut Group, mask: u32, wait: Wait) {
        let rest = group.mask & !mask;
        if rest != 0 {
            self.groups.push(Group { mask: rest, pc: group.pc + 1, ..*group });
        }
        group.mask = mask;
        group.wait = wait;
    }

    pub(super) fn live(&self) -> u32 {
        self.valid & !self.exited
    }
}

fn sign_extend(lanes: &mut Lanes, from: u32, to: u32) {
    for value in lanes {
        let shift = 64 - from;
        let wide = ((*value << shift) as i64 >> shift) as u64;
        *value = wide & (u64::MAX >> (64 - to));
    }
}
