//! Barriers, fences, warp-wide instructions, mbarriers.

use super::modifiers::Modifiers;
use super::{Decoder, Result};
use crate::ptx::code::{
    Bar, Logic, Mbar, MbarOp, NONE, Op, Reduce, ReduxOp, ShflMode, Slot, Space, Together, TogetherOp,
    VoteMode,
};
use simtile_image::ptx::{Instruction, Operand, Type};

impl Decoder<'_, '_> {
    pub(super) fn synchronise(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Result<()> {
        match i.opcode.as_str() {
            "bar" | "barrier" => self.barrier(i, &mut m)?,
            // Every access is already visible in the order of execution; what is left of these
            // instructions has no effect on results.
            "membar" | "fence" => {
                let has = |names: &[&str]| i.modifiers.iter().any(|m| names.contains(&m.as_str()));
                let scoped = match i.opcode.as_str() {
                    "membar" => has(&["cta", "gl", "sys", "proxy"]),
                    _ => {
                        let own = ["mbarrier_init", "proxy::async", "proxy::async::generic", "proxy"];
                        has(&["cta", "cluster", "gpu", "sys"]) || has(&own)
                    }
                };
                if !scoped {
                    return self.bad(format!("{} lacks a scope", i.name()));
                }
                while let Some(name) = m.next() {
                    let known = [
                        "cta",
                        "gl",
                        "sys",
                        "gpu",
                        "cluster",
                        "sc",
                        "acq_rel",
                        "acquire",
                        "release",
                        "proxy",
                        "alias",
                        "async",
                        "async::generic",
                        "generic",
                        "mbarrier_init",
                        "tensormap::generic",
                        "sync_restrict::shared::cta",
                        "sync_restrict::shared::cluster",
                        "async.global",
                        "async.shared::cta",
                        "global",
                        "shared::cta",
                        "shared::cluster",
                        "proxy::async::generic",
                        "proxy::async",
                    ];
                    if !known.contains(&name) {
                        return self.refuse();
                    }
                }
                self.emit(Op::Nop)?;
            }
            "griddepcontrol" => {
                let what = m.pick(&["wait", "launch_dependents"]);
                let at = self.image.code.len() as u32;
                let places = match what {
                    Some("wait") => &mut self.image.grid_waits,
                    _ => &mut self.image.grid_triggers,
                };
                places.push(at);
                self.emit(Op::Nop)?;
            }
            "brkpt" | "pmevent" | "setmaxnreg" | "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                while m.next().is_some() {}
                self.emit(Op::Nop)?;
            }
            "createpolicy" => {
                while m.next().is_some() {}
                let Some(first) = i.operands.first() else { return self.bad("a destination is missing") };
                let (dst, _) = self.dst(first)?;
                let zero = self.constant(0);
                self.emit_move(dst, zero)?;
            }
            "nanosleep" => {
                let [time] = self.operands::<1>(i)?;
                if !m.take("u32") {
                    return self.bad("nanosleep takes .u32");
                }
                self.src(time, Type::U32)?;
                self.emit(Op::Yield)?;
            }
            "activemask" => {
                m.take("b32");
                let [dst] = self.operands::<1>(i)?;
                let (dst, _) = self.dst(dst)?;
                self.emit(Op::ActiveMask { dst })?;
            }
            "mbarrier" => self.mbarrier(i, &mut m)?,
            _ => self.warp_wide(i, &mut m)?,
        }
        if m.is_empty() { Ok(()) } else { self.refuse() }
    }

    fn barrier(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        if m.take("warp") {
            m.take("sync");
            let [members] = self.operands::<1>(i)?;
            let members = self.src(members, Type::B32)?;
            self.emit(Op::Together(Box::new(Together { members, op: TogetherOp::Barrier })))?;
            return Ok(());
        }
        if m.take("cluster") {
            let arrive = m.take("arrive");
            let wait = m.take("wait");
            m.pick(&["release", "acquire", "relaxed"]);
            m.take("aligned");
            if arrive == wait {
                return self.refuse();
            }
            self.emit(if arrive { Op::ClusterArrive } else { Op::ClusterWait })?;
            return Ok(());
        }
        m.take("cta");
        let aligned = m.take("aligned") || i.opcode == "bar";
        let mut operands = &i.operands[..];
        let (wait, reduce) = match m.pick(&["sync", "arrive", "red"]) {
            Some("sync") => (true, None),
            Some("arrive") => (false, None),
            Some(_) => {
                let op = match m.pick(&["popc", "and", "or"]) {
                    Some("popc") => None,
                    Some("and") => Some(Logic::And),
                    Some(_) => Some(Logic::Or),
                    None => return self.refuse(),
                };
                m.pick(&["u32", "pred"]);
                let [dst, middle @ .., source] = operands else {
                    return self.bad("a reduction takes at least three operands");
                };
                operands = middle;
                let dst = if op.is_some() { self.pred_dst(dst)? } else { self.dst(dst)?.0 };
                let source = self.pred(source)?;
                (true, Some(Reduce { op, source, dst }))
            }
            None => return self.refuse(),
        };
        let (id, count) = match operands {
            [id] => (id, None),
            [id, count] => (id, Some(count)),
            _ => return self.bad("a barrier takes its number and a count of threads"),
        };
        if let Operand::Integer(16..) = id {
            return self.bad("barriers have numbers up to 15");
        }
        if let Some(Operand::Integer(n)) = count
            && !n.is_multiple_of(32)
        {
            return self.bad(format!("a barrier for {n} threads; a multiple of 32 is needed"));
        }
        let id = self.src(id, Type::U32)?;
        let count = match count {
            Some(count) => self.src(count, Type::U32)?,
            None if !wait => return self.bad("an arrival needs a count of threads"),
            None => NONE,
        };
        self.emit(Op::Bar(Box::new(Bar { id, count, wait, aligned, reduce })))?;
        Ok(())
    }

    /// The members operand of a `.sync` form, else the executing lanes.
    fn members(&mut self, operand: Option<&Operand>) -> Result<Slot> {
        match operand {
            Some(operand) => self.src(operand, Type::B32),
            None => Ok(NONE),
        }
    }

    fn warp_wide(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let sync = m.take("sync");
        let operands = &i.operands[..];
        let (operands, last) = match operands.split_last() {
            Some((last, rest)) if sync => (rest, Some(last)),
            _ => (operands, None),
        };
        let op = match i.opcode.as_str() {
            "shfl" | "vote" if !sync && self.architecture() >= 70 => {
                return self.bad(format!("{} without .sync needs a target below sm_70", i.opcode));
            }
            "shfl" => {
                let mode = match m.pick(&["up", "down", "bfly", "idx"]) {
                    Some("up") => ShflMode::Up,
                    Some("down") => ShflMode::Down,
                    Some("bfly") => ShflMode::Bfly,
                    Some(_) => ShflMode::Idx,
                    None => return self.refuse(),
                };
                m.take("b32");
                let [d, a, b, c] = operands else { return self.bad("shfl takes other operands") };
                let (dst, valid) = self.dst_pair(d)?;
                let (value, lane) = (self.src(a, Type::B32)?, self.src(b, Type::B32)?);
                let clamp = self.src(c, Type::B32)?;
                TogetherOp::Shfl { mode, dst, valid, value, lane, clamp }
            }
            "vote" => {
                let mode = match m.pick(&["all", "any", "uni", "ballot"]) {
                    Some("all") => VoteMode::All,
                    Some("any") => VoteMode::Any,
                    Some("uni") => VoteMode::Uni,
                    Some(_) => VoteMode::Ballot,
                    None => return self.refuse(),
                };
                m.pick(&["pred", "b32"]);
                let [d, p] = operands else { return self.bad("vote takes other operands") };
                let dst = if mode == VoteMode::Ballot { self.dst(d)?.0 } else { self.pred_dst(d)? };
                TogetherOp::Vote { mode, dst, source: self.pred(p)? }
            }
            "match" => {
                let all = m.take("all");
                if !sync || !all && !m.take("any") {
                    return self.refuse();
                }
                let Some(ty @ (Type::B32 | Type::B64)) = m.ty() else { return self.refuse() };
                let [d, a] = operands else { return self.bad("match takes other operands") };
                if !all && matches!(d, Operand::Pair(..)) {
                    return self.bad("match.any has no predicate");
                }
                let (dst, pred) = self.dst_pair(d)?;
                TogetherOp::Match { all, dst, pred, value: self.src(a, ty)? }
            }
            "redux" => {
                let Some(name) = m.pick(&["add", "min", "max", "and", "or", "xor"]) else {
                    return self.refuse();
                };
                let op = match name {
                    "add" => ReduxOp::Add,
                    "min" => ReduxOp::Min,
                    "max" => ReduxOp::Max,
                    "and" => ReduxOp::And,
                    "or" => ReduxOp::Or,
                    _ => ReduxOp::Xor,
                };
                let Some(ty) = m.ty() else { return self.refuse() };
                let bitwise = matches!(op, ReduxOp::And | ReduxOp::Or | ReduxOp::Xor);
                let fits = if bitwise { ty == Type::B32 } else { matches!(ty, Type::U32 | Type::S32) };
                if !fits || !sync {
                    return self.refuse();
                }
                let [d, a] = operands else { return self.bad("redux takes other operands") };
                let (dst, _) = self.dst(d)?;
                TogetherOp::Redux { op, ty, dst, value: self.src(a, ty)? }
            }
            "elect" if sync => {
                let [d] = operands else { return self.bad("elect takes other operands") };
                let (dst, pred) = self.dst_pair(d)?;
                TogetherOp::Elect { dst, pred }
            }
            _ => return self.refuse(),
        };
        let members = self.members(last)?;
        self.emit(Op::Together(Box::new(Together { members, op })))?;
        Ok(())
    }

    fn mbarrier(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let Some(name) = m.pick(&[
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "test_wait",
            "try_wait",
            "expect_tx",
            "complete_tx",
            "pending_count",
        ]) else {
            return self.refuse();
        };
        let expect = name.starts_with("arrive") && m.take("expect_tx");
        let no_complete = m.take("noComplete");
        let parity = m.take("parity");
        m.memory_order();
        let space = self.space(m);
        if m.ty() != Some(Type::B64) {
            return self.refuse();
        }
        let one = self.constant(1);
        let all = &i.operands[..];
        let with = |s: &mut Self, op, dst: u32, address: &Operand, arg: Slot| -> Result<()> {
            let (space, addr) = s.address(address, space)?;
            s.emit(Op::Mbar(Box::new(Mbar { op, space, addr, dst, arg })))?;
            Ok(())
        };
        match (name, all) {
            ("init", [a, count]) => {
                let count = self.src(count, Type::U32)?;
                with(self, MbarOp::Init, NONE, a, count)
            }
            ("inval", [a]) => with(self, MbarOp::Inval, NONE, a, one),
            ("expect_tx" | "complete_tx", [a, bytes]) => {
                let bytes = self.src(bytes, Type::U32)?;
                let op = if name == "expect_tx" { MbarOp::ExpectTx } else { MbarOp::CompleteTx };
                with(self, op, NONE, a, bytes)
            }
            ("arrive" | "arrive_drop", _) => {
                let drop = name == "arrive_drop";
                // The state may be left out for a remote barrier.
                let (state, rest) = match all {
                    [Operand::Address { .. }, ..] => (None, all),
                    [state, rest @ ..] => (Some(state), rest),
                    [] => return self.bad("an address is missing"),
                };
                let (a, arg) = match rest {
                    [a] if !expect && !no_complete => (a, one),
                    [a, arg] => (a, self.src(arg, Type::U32)?),
                    _ => return self.bad("mbarrier.arrive takes other operands"),
                };
                let dst = match state {
                    Some(state) => self.slot_or_none(state)?,
                    None => NONE,
                };
                let op = if expect { MbarOp::ArriveExpect { drop } } else { MbarOp::Arrive { drop } };
                with(self, op, dst, a, arg)
            }
            ("test_wait" | "try_wait", [p, a, state] | [p, a, state, _]) => {
                let ty = if parity { Type::U32 } else { Type::B64 };
                let (p, state) = (self.pred_dst(p)?, self.src(state, ty)?);
                with(self, MbarOp::Test { parity, yields: name == "try_wait" }, p, a, state)
            }
            ("pending_count", [d, state]) => {
                let (state, (dst, _)) = (self.src(state, Type::B64)?, self.dst(d)?);
                let base = self.constant(0);
                let addr = crate::ptx::code::Addr { base, offset: 0, frame: false };
                let op = MbarOp::PendingCount;
                self.emit(Op::Mbar(Box::new(Mbar { op, space: Space::Shared, addr, dst, arg: state })))?;
                Ok(())
            }
            _ => self.bad(format!("mbarrier.{name} takes other operands")),
        }
    }
}
