//! Loads, stores, atomics, asynchronous copies.

use super::modifiers::Modifiers;
use super::names::Symbol;
use super::{Decoder, Result};
use crate::ptx::code::{
    Access, Atom, AtomOp, Copy, Mbar, MbarOp, Multimem, MultimemKind, NONE, Op, PredSrc, Slot, Space,
};
use crate::ptx::exec::multimem::has as has_multimem;
use simtile_image::ptx::{Instruction, Operand, Type};

fn space_of(name: &str) -> Option<Space> {
    Some(match name {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

const SPACES: &[&str] = &[
    "global",
    "const",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
];

impl Decoder<'_, '_> {
    pub(super) fn space(&self, m: &mut Modifiers<'_>) -> Space {
        m.pick(SPACES).and_then(space_of).unwrap_or(Space::Generic)
    }

    fn elements<'i>(&self, operand: &'i Operand, lanes: usize) -> Result<&'i [Operand]> {
        let elements = match operand {
            Operand::Vector(all) => &all[..],
            one => std::slice::from_ref(one),
        };
        if elements.len() == lanes {
            Ok(elements)
        } else {
            self.bad(format!("{lanes} registers are expected, not {}", elements.len()))
        }
    }

    /// Refuses combinations of order, scope, cache and space that PTX does not have.
    fn check_access(&self, i: &Instruction) -> Result<()> {
        let has = |names: &[&str]| i.modifiers.iter().any(|m| names.contains(&m.as_str()));
        let ordered = has(&["relaxed", "acquire", "release", "acq_rel"]);
        let scoped = has(&["cta", "cluster", "gpu", "sys"]);
        let plain = matches!(i.opcode.as_str(), "ld" | "st");
        let wrong = match i.opcode.as_str() {
            "ld" => has(&["release", "acq_rel"]),
            "st" => has(&["acquire", "acq_rel", "nc", "const"]),
            "red" => has(&["acquire", "acq_rel", "exch", "cas"]),
            _ => false,
        } || plain && ordered != scoped
            || has(&["nc"]) && !has(&["global"])
            || has(&["volatile"]) && has(&["local", "const", "param"])
            || !plain && i.opcode != "ldu" && has(&["local", "const", "param"]);
        if wrong { self.bad(format!("PTX has no instruction `{}`", i.name())) } else { Ok(()) }
    }

    pub(super) fn load(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        self.check_access(i)?;
        let policy = m.take("L2::cache_hint");
        let strong = m.memory_order();
        let space = if i.opcode == "ldu" {
            m.take("global");
            Space::Global
        } else {
            self.space(m)
        };
        m.take("nc");
        let lanes = m.vector();
        let Some(ty) = m.ty().filter(|t| matches!(t.bytes(), 1..=16)) else { return self.refuse() };
        if !is_stored(ty) {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        }
        if i.operands.len() != 2 + usize::from(policy) || ty == Type::Pred {
            return self.refuse();
        }
        let (space, addr) = self.address(&i.operands[1], space)?;
        let bits = ty.bytes() as u32 * 8;
        let mut sign_to = 0;
        let mut regs: Vec<Slot> = Vec::with_capacity(lanes);
        if ty == Type::B128 {
            if lanes != 1 {
                return self.refuse();
            }
            let halves = match &i.operands[0] {
                Operand::Sink => [NONE; 2],
                wide => self.wide(wide)?,
            };
            let (regs, cache) = (Box::from(halves), self.cache());
            let access = Access { space, addr, width: 8, sign_to: 0, regs, cache, strong };
            self.emit(Op::Load(Box::new(access)))?;
            return Ok(());
        }
        self.check_width(ty, lanes)?;
        for element in self.elements(&i.operands[0], lanes)? {
            if *element == Operand::Sink {
                regs.push(NONE);
                continue;
            }
            let (slot, width) = self.dst(element)?;
            if width < bits {
                return self.bad(format!("a register of {width} bits does not hold this type"));
            }
            if matches!(ty, Type::S8 | Type::S16 | Type::S32) && width > bits {
                sign_to = width as u8;
            }
            regs.push(slot);
        }
        let cache = self.cache();
        let width = ty.bytes() as u8;
        let access = Access { space, addr, width, sign_to, regs: regs.into(), cache, strong };
        self.emit(Op::Load(Box::new(access)))?;
        Ok(())
    }

    pub(super) fn store(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        if m.take("async") {
            return self.store_async(i, m);
        }
        if m.take("bulk") {
            return self.refuse();
        }
        self.check_access(i)?;
        let policy = m.take("L2::cache_hint");
        let strong = m.memory_order();
        let space = self.space(m);
        let lanes = m.vector();
        let Some(ty) = m.ty().filter(|t| matches!(t.bytes(), 1..=16)) else { return self.refuse() };
        if !is_stored(ty) {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        }
        if i.operands.len() != 2 + usize::from(policy) || ty == Type::Pred {
            return self.refuse();
        }
        let (space, addr) = self.address(&i.operands[0], space)?;
        if ty == Type::B128 {
            if lanes != 1 {
                return self.refuse();
            }
            let (regs, cache) = (Box::from(self.wide(&i.operands[1])?), self.cache());
            let access = Access { space, addr, width: 8, sign_to: 0, regs, cache, strong };
            self.emit(Op::Store(Box::new(access)))?;
            return Ok(());
        }
        self.check_width(ty, lanes)?;
        let elements = self.elements(&i.operands[1], lanes)?;
        for element in elements {
            // A register may be wider: its lower bits are stored.
            if let Operand::Name(name) = element
                && let Ok(Symbol::Reg { bits, .. }) = self.find(name)
                && u64::from(bits) < 8 * ty.bytes()
            {
                return self.bad(format!("a register of {bits} bits does not hold this type"));
            }
        }
        let regs = elements.iter().map(|e| self.src(e, ty)).collect::<Result<Box<[Slot]>>>()?;
        let cache = self.cache();
        let access = Access { space, addr, width: ty.bytes() as u8, sign_to: 0, regs, cache, strong };
        self.emit(Op::Store(Box::new(access)))?;
        Ok(())
    }

    /// More than 16 bytes at once move on sm_100 and newer only.
    fn check_width(&self, ty: Type, lanes: usize) -> Result<()> {
        if ty.bytes() * lanes as u64 > 16 && self.architecture() < 100 { self.refuse() } else { Ok(()) }
    }

    /// `st.async…[a], b, [mbar]`: a store, then its bytes are counted at the barrier.
    fn store_async(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        m.memory_order();
        m.take("mbarrier::complete_tx::bytes");
        let space = self.space(m);
        let lanes = m.vector();
        let Some(ty) = m.ty().filter(|t| matches!(t.bytes(), 4 | 8)) else { return self.refuse() };
        let [to, value, barrier] = self.operands::<3>(i)?;
        let space = if space == Space::Generic { Space::Shared } else { space };
        let (space, addr) = self.address(to, space)?;
        let elements = self.elements(value, lanes)?;
        let regs = elements.iter().map(|e| self.src(e, ty)).collect::<Result<Box<[Slot]>>>()?;
        let (cache, width) = (self.cache(), ty.bytes() as u8);
        let bytes = self.constant(ty.bytes() * lanes as u64);
        let (barrier_space, barrier) = self.address(barrier, Space::Shared)?;
        let access = Access { space, addr, width, sign_to: 0, regs, cache, strong: true };
        self.emit(Op::Store(Box::new(access)))?;
        let op = MbarOp::CompleteTx;
        let complete = Mbar { op, space: barrier_space, addr: barrier, dst: NONE, arg: bytes };
        self.emit(Op::Mbar(Box::new(complete)))?;
        Ok(())
    }

    /// `red.async`: an atomic in another block's memory, and the bytes for its barrier.
    fn reduce_async(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        m.memory_order();
        m.take("mbarrier::complete_tx::bytes");
        if i.opcode != "red" || !m.take("shared::cluster") {
            return self.refuse();
        }
        let Some(name) = m.pick(&["add", "and", "or", "xor", "inc", "dec", "min", "max"]) else {
            return self.refuse();
        };
        let (op, Some(ty)) = (atom_op(name), m.ty()) else { return self.refuse() };
        let fits = match op {
            AtomOp::And | AtomOp::Or | AtomOp::Xor => ty == Type::B32,
            AtomOp::Add => matches!(ty, Type::U32 | Type::S32 | Type::U64),
            AtomOp::Min | AtomOp::Max => matches!(ty, Type::U32 | Type::S32),
            _ => ty == Type::U32,
        };
        if !fits {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        }
        let [to, value, barrier] = self.operands::<3>(i)?;
        let (space, addr) = self.address(to, Space::Shared)?;
        let src = Box::from([self.src(value, ty)?]);
        let (cache, bytes) = (self.cache(), self.constant(ty.bytes()));
        let (barrier_space, barrier) = self.address(barrier, Space::Shared)?;
        let atom = Atom { space, addr, op, ty, dst: Box::default(), src, swap: NONE, cache };
        self.emit(Op::Atom(Box::new(atom)))?;
        let op = MbarOp::CompleteTx;
        let complete = Mbar { op, space: barrier_space, addr: barrier, dst: NONE, arg: bytes };
        self.emit(Op::Mbar(Box::new(complete)))?;
        Ok(())
    }

    pub(super) fn atomic(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let returns = i.opcode == "atom";
        if m.take("async") {
            return self.reduce_async(i, m);
        }
        self.check_access(i)?;
        let policy = m.take("L2::cache_hint");
        m.memory_order();
        let space = self.space(m);
        let Some(name) = m.pick(&["add", "exch", "cas", "and", "or", "xor", "inc", "dec", "min", "max"])
        else {
            return self.refuse();
        };
        let no_ftz = m.take("noftz");
        let lanes = m.vector();
        let Some(ty) = m.ty() else { return self.refuse() };
        let op = atom_op(name);
        let half = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        let bits = matches!(ty, Type::B16 | Type::B32 | Type::B64 | Type::B128);
        let wrong = match op {
            AtomOp::And | AtomOp::Or | AtomOp::Xor | AtomOp::Exch | AtomOp::Cas => !bits,
            AtomOp::Inc | AtomOp::Dec => ty != Type::U32,
            AtomOp::Add => bits || ty == Type::S64,
            AtomOp::Min | AtomOp::Max => bits || ty == Type::F64,
        };
        if wrong || no_ftz != half || lanes > 1 && space == Space::Shared {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        }
        if !atom_is_built(op, ty, lanes) {
            return self.refuse();
        }
        let mut rest = &i.operands[..];
        let mut dst = Vec::new();
        if returns {
            let Some((first, tail)) = rest.split_first() else { return self.bad("a destination is missing") };
            rest = tail;
            if *first != Operand::Sink {
                for element in self.elements(first, lanes)? {
                    dst.push(if ty == Type::B128 {
                        self.wide(element)?[0]
                    } else {
                        self.slot_or_none(element)?
                    });
                }
            }
        }
        let wanted = 2 + usize::from(op == AtomOp::Cas) + usize::from(policy);
        if rest.len() != wanted {
            return self.bad(format!("{} takes another number of operands", i.opcode));
        }
        let (space, addr) = self.address(&rest[0], space)?;
        if ty == Type::B128 {
            let mut src = self.wide(&rest[1])?.to_vec();
            if op == AtomOp::Cas {
                src.extend(self.wide(&rest[2])?);
            }
            let dst = if dst.is_empty() { Box::default() } else { Box::from(self.wide(&i.operands[0])?) };
            let cache = self.cache();
            let atom = Atom { space, addr, op, ty, dst, src: src.into(), swap: NONE, cache };
            self.emit(Op::Atom(Box::new(atom)))?;
            return Ok(());
        }
        let elements = self.elements(&rest[1], lanes)?;
        let src = elements.iter().map(|e| self.src(e, ty)).collect::<Result<Box<[Slot]>>>()?;
        let swap = if op == AtomOp::Cas { self.src(&rest[2], ty)? } else { NONE };
        let cache = self.cache();
        let atom = Atom { space, addr, op, ty, dst: dst.into(), src, swap, cache };
        self.emit(Op::Atom(Box::new(atom)))?;
        Ok(())
    }

    /// `multimem.ld_reduce`, `multimem.st`, `multimem.red`.
    pub(super) fn multimem(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let kind = match m.pick(&["ld_reduce", "st", "red"]) {
            Some("ld_reduce") => MultimemKind::LoadReduce,
            Some("st") => MultimemKind::Store,
            Some(_) => MultimemKind::Reduce,
            None => return self.bad(format!("PTX has no instruction `{}`", i.name())),
        };
        let has = |names: &[&str]| i.modifiers.iter().any(|m| names.contains(&m.as_str()));
        let order = match kind {
            MultimemKind::LoadReduce => has(&["release", "acq_rel", "volatile", "sc"]),
            MultimemKind::Store => has(&["acquire", "acq_rel", "volatile", "sc"]),
            MultimemKind::Reduce => has(&["acquire", "acq_rel", "volatile", "sc", "weak"]),
        };
        // A weak access has no scope.
        let unscoped = has(&["weak"]) && has(&["cta", "cluster", "gpu", "sys"]);
        m.memory_order();
        let space = self.space(m);
        let name = m.pick(&["add", "and", "or", "xor", "min", "max"]);
        let in_f32 = m.take("acc::f32");
        let lanes = m.vector();
        let Some(ty) = m.ty() else { return self.refuse() };
        let halves = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        let precise = in_f32 && (kind != MultimemKind::LoadReduce || !halves || name != Some("add"));
        let op = atom_op(name.unwrap_or("exch"));
        let fits = (kind == MultimemKind::Store) == name.is_none() && has_multimem(kind, op, ty, lanes);
        if order || unscoped || precise || !fits || !matches!(space, Space::Global | Space::Generic) {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        }
        let [first, second] = self.operands::<2>(i)?;
        let (registers, address) = match kind {
            MultimemKind::LoadReduce => (first, second),
            _ => (second, first),
        };
        let mut regs = Vec::with_capacity(lanes);
        for element in self.elements(registers, lanes)? {
            regs.push(match kind {
                MultimemKind::LoadReduce => self.slot_or_none(element)?,
                _ => self.src(element, ty)?,
            });
        }
        let (space, addr) = self.address(address, space)?;
        let (cache, elements) = (self.cache(), lanes as u32);
        let multimem = Multimem { kind, space, addr, op, ty, elements, in_f32, regs: regs.into(), cache };
        self.emit(Op::Multimem(Box::new(multimem)))?;
        Ok(())
    }

    /// `cp.async` and its bulk forms.
    pub(super) fn copy(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Result<()> {
        if m.take("reduce") {
            return self.copy_bulk(i, m, true);
        }
        if !m.take("async") {
            return self.refuse();
        }
        if m.take("bulk") {
            return self.copy_bulk(i, m, false);
        }
        if m.take("mbarrier") {
            let noinc = m.take("arrive") && m.take("noinc");
            let space = self.space(&mut m);
            m.take("b64");
            let [barrier] = self.operands::<1>(i)?;
            let (space, addr) = self.address(barrier, space)?;
            let arg = self.constant(1);
            let op = MbarOp::AsyncArrive { noinc };
            self.emit(Op::Mbar(Box::new(Mbar { op, space, addr, dst: NONE, arg })))?;
        } else if m.pick(&["commit_group", "wait_group", "wait_all"]).is_some() {
            // Copies are complete when they are issued, which every wait allows.
            self.emit(Op::Nop)?;
        } else {
            let policy = m.take("L2::cache_hint");
            m.memory_order();
            if self.space(&mut m) != Space::Shared || self.space(&mut m) != Space::Global {
                return self.refuse();
            }
            let mut operands = &i.operands[..];
            if policy {
                operands = operands.split_last().map_or(operands, |(_, rest)| rest);
            }
            let (to, from, size, more) = match operands {
                [to, from, size] => (to, from, size, None),
                [to, from, size, more] => (to, from, size, Some(more)),
                _ => return self.bad("cp.async takes three or four operands"),
            };
            let Operand::Integer(bytes @ (4 | 8 | 16)) = *size else {
                return self.bad("cp.async copies 4, 8 or 16 bytes");
            };
            let (dst_space, dst) = self.address(to, Space::Shared)?;
            let (src_space, src) = self.address(from, Space::Global)?;
            let (mut src_bytes, mut ignore) = (NONE, PredSrc { slot: NONE, negated: true });
            match more {
                Some(Operand::Name(name)) if self.pred_slot(name).is_ok() => {
                    ignore = PredSrc { slot: self.pred_slot(name)?, negated: false };
                }
                Some(Operand::Not(name)) => ignore = PredSrc { slot: self.pred_slot(name)?, negated: true },
                Some(size) => src_bytes = self.src(size, Type::U32)?,
                None => {}
            }
            let (align, bytes, cache) = (bytes as u32, self.constant(bytes), self.cache());
            let copy = Copy {
                dst_space,
                dst,
                src_space,
                src,
                bytes,
                src_bytes,
                ignore,
                align,
                barrier: None,
                multicast: NONE,
                reduce: None,
                cache,
            };
            self.emit(Op::Copy(Box::new(copy)))?;
        }
        if m.is_empty() { Ok(()) } else { self.refuse() }
    }

    fn copy_bulk(&mut self, i: &Instruction, mut m: Modifiers<'_>, reduce: bool) -> Result<()> {
        // These take other operands, so they are refused before operands are counted.
        if m.take("tensor") {
            return self.refuse();
        }
        if reduce && !(m.take("async") && m.take("bulk")) {
            return self.refuse();
        }
        if m.pick(&["commit_group", "wait_group"]).is_some() {
            m.take("read");
            self.emit(Op::Nop)?;
            return if m.is_empty() { Ok(()) } else { self.refuse() };
        }
        if m.take("prefetch") {
            m.memory_order();
            m.take("L2");
            self.space(&mut m);
            self.emit(Op::Nop)?;
            return if m.is_empty() { Ok(()) } else { self.refuse() };
        }
        let policy = m.take("L2::cache_hint");
        m.memory_order();
        let (to_space, from_space) = (self.space(&mut m), self.space(&mut m));
        let counted = m.take("mbarrier::complete_tx::bytes");
        let grouped = m.take("bulk_group");
        let multicast = m.take("multicast::cluster");
        if counted == grouped || to_space == Space::Generic || from_space == Space::Generic {
            return self.refuse();
        }
        let operation = if reduce {
            let Some(name) = m.pick(&["add", "and", "or", "xor", "inc", "dec", "min", "max"]) else {
                return self.refuse();
            };
            m.take("noftz");
            let Some(ty) = m.ty() else { return self.refuse() };
            if !atom_is_built(atom_op(name), ty, 1) {
                return self.refuse();
            }
            Some((atom_op(name), ty))
        } else {
            None
        };
        let mut operands = &i.operands[..];
        if policy {
            operands = operands.split_last().map_or(operands, |(_, rest)| rest);
        }
        let blocks = match operands.split_last() {
            Some((blocks, rest)) if multicast && counted && !reduce => {
                operands = rest;
                self.src(blocks, Type::B16)?
            }
            _ if multicast => return self.refuse(),
            _ => NONE,
        };
        let (to, from, size, barrier) = match operands {
            [to, from, size, barrier] if counted => (to, from, size, Some(barrier)),
            [to, from, size] if grouped => (to, from, size, None),
            _ => return self.bad("a bulk copy takes other operands"),
        };
        let (dst_space, dst) = self.address(to, to_space)?;
        let (src_space, src) = self.address(from, from_space)?;
        let bytes = self.src(size, Type::U32)?;
        let barrier = barrier.map(|b| self.address(b, Space::Shared)).transpose()?;
        let cache = self.cache();
        let copy = Copy {
            dst_space,
            dst,
            src_space,
            src,
            bytes,
            src_bytes: NONE,
            ignore: PredSrc { slot: NONE, negated: true },
            align: 16,
            barrier,
            multicast: blocks,
            reduce: operation,
            cache,
        };
        self.emit(Op::Copy(Box::new(copy)))?;
        if m.is_empty() { Ok(()) } else { self.refuse() }
    }
}

fn atom_op(name: &str) -> AtomOp {
    match name {
        "add" => AtomOp::Add,
        "exch" => AtomOp::Exch,
        "cas" => AtomOp::Cas,
        "and" => AtomOp::And,
        "or" => AtomOp::Or,
        "xor" => AtomOp::Xor,
        "inc" => AtomOp::Inc,
        "dec" => AtomOp::Dec,
        "min" => AtomOp::Min,
        _ => AtomOp::Max,
    }
}

/// The combinations that PTX defines.
fn atom_is_built(op: AtomOp, ty: Type, lanes: usize) -> bool {
    use AtomOp as A;
    use Type as T;
    if lanes > 1 {
        return match ty {
            T::F32 => op == A::Add && lanes <= 4,
            T::F16 | T::Bf16 => matches!(op, A::Add | A::Min | A::Max) && lanes <= 8,
            T::F16x2 | T::Bf16x2 => matches!(op, A::Add | A::Min | A::Max) && lanes <= 4,
            _ => false,
        };
    }
    if ty == T::B128 {
        return matches!(op, A::Exch | A::Cas);
    }
    match op {
        A::Exch => matches!(ty, T::B32 | T::B64 | T::U32 | T::U64 | T::S32 | T::S64 | T::F32),
        A::Cas => matches!(ty, T::B16 | T::B32 | T::B64 | T::U32 | T::U64 | T::S32 | T::S64),
        A::And | A::Or | A::Xor => matches!(ty, T::B32 | T::B64 | T::U32 | T::U64 | T::S32 | T::S64),
        A::Inc | A::Dec => ty == T::U32,
        A::Add => matches!(
            ty,
            T::U32 | T::S32 | T::U64 | T::S64 | T::F32 | T::F64 | T::F16 | T::F16x2 | T::Bf16 | T::Bf16x2
        ),
        A::Min | A::Max => {
            matches!(ty, T::U32 | T::S32 | T::U64 | T::S64 | T::F16 | T::F16x2 | T::Bf16 | T::Bf16x2)
        }
    }
}

/// Whether loads and stores know the type: floats narrower than 32 bits move as bits.
fn is_stored(ty: Type) -> bool {
    !matches!(ty, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2)
}
