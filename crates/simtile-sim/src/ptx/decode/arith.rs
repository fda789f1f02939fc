//! Arithmetic, bits, comparisons, conversions, video instructions.

use super::modifiers::Modifiers;
use super::{Decoder, Result, unsupported};
use crate::ptx::code::{LaneFn, Logic, NONE, Op, PredSrc, Special, mode, window};
use crate::ptx::lanes::convert::{self, Kind};
use crate::ptx::lanes::{float, half, int, lanes, test};
use simtile_image::ptx::{FunctionKind, Instruction, Operand, Type};

/// Most variables in constant memory that an `isspacep.const` compares with.
const MOST_CONSTANT_VARIABLES: usize = 256;

impl Decoder<'_, '_> {
    /// Emits `dst = f(sources)`; missing sources are zero.
    fn alu(&mut self, f: LaneFn, mode: u32, dst: u32, sources: &[u32]) -> Result<()> {
        let zero = self.constant(0);
        let mut src = [zero; 3];
        for (to, &from) in src.iter_mut().zip(sources) {
            *to = from;
        }
        self.emit(Op::Alu { f, mode, dst, src })?;
        Ok(())
    }

    /// Reads the sources of `i` (all of one type) and emits.
    fn simple(
        &mut self,
        i: &Instruction,
        f: Option<LaneFn>,
        mode: u32,
        ty: Type,
        arity: usize,
    ) -> Result<()> {
        let types = [ty; 3];
        self.typed(i, f, mode, &types[..arity])
    }

    fn typed(&mut self, i: &Instruction, f: Option<LaneFn>, mode: u32, types: &[Type]) -> Result<()> {
        self.typed_to(i, f, mode, types, types[0])
    }

    /// Reads the sources of `i`, each of its type, and emits to a destination of a type.
    fn typed_to(
        &mut self,
        i: &Instruction,
        f: Option<LaneFn>,
        mode: u32,
        types: &[Type],
        to: Type,
    ) -> Result<()> {
        let Some(f) = f else { return self.refuse() };
        if i.operands.len() != types.len() + 1 {
            return self.bad(format!("{} takes {} operands", i.opcode, types.len() + 1));
        }
        let sources =
            i.operands[1..].iter().zip(types).map(|(o, &t)| self.exact(o, t)).collect::<Result<Vec<_>>>()?;
        let dst = self.exact_dst(&i.operands[0], to)?;
        self.alu(f, mode, dst, &sources)
    }

    pub(super) fn arithmetic(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let op = i.opcode.as_str();
        let arity = match op {
            "mad" | "fma" | "sad" | "mad24" | "madc" => 3,
            "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "copysign" | "mul24" | "addc"
            | "subc" => 2,
            _ => 1,
        };
        let carries_out = m.take("cc");
        if carries_out || matches!(op, "addc" | "subc" | "madc") {
            return self.carry(i, m, carries_out, arity);
        }
        if let Some(packed) = m.pick(&["u16x2", "s16x2"]) {
            let f = int::packed16(op, packed == "s16x2", m.take("relu"));
            return self.simple(i, f, 0, Type::B32, arity);
        }
        let part = m.pick(&["lo", "hi", "wide"]);
        let approx = m.pick(&["approx", "full"]);
        let mut flags = m.float();
        if m.take("oob") {
            flags |= mode::OWN;
        }
        if m.take("xorsign") {
            if !m.take("abs") {
                return self.refuse();
            }
            flags |= mode::XORSIGN;
        }
        let Some(ty) = m.ty() else { return self.refuse() };
        match ty {
            Type::F32 => {
                let op = if op == "mad" { "fma" } else { op };
                // Approximations are computed more exactly than asked, with ftz as asked.
                let flags = if approx.is_some() { flags & !mode::ROUNDING } else { flags };
                let op = if (op, approx) == ("div", Some("approx")) { "div.approx" } else { op };
                self.simple(i, float::f32_op(op, flags), flags, ty, arity)
            }
            Type::F64 => {
                let name = match (op, approx, flags & mode::FTZ != 0) {
                    ("rcp", Some(_), true) => "rcp.approx.ftz",
                    ("rsqrt", Some(_), true) => "rsqrt.approx.ftz",
                    ("mad", ..) => "fma",
                    _ => op,
                };
                if matches!(op, "sin" | "cos" | "lg2" | "ex2" | "tanh") {
                    return self.refuse();
                }
                self.simple(i, float::f64_op(name, flags), flags, ty, arity)
            }
            Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => {
                let bf = matches!(ty, Type::Bf16 | Type::Bf16x2);
                let two = matches!(ty, Type::F16x2 | Type::Bf16x2);
                if flags & mode::ROUNDING != mode::RN {
                    return self.refuse();
                }
                self.simple(i, half::op(op, bf, two), flags, ty, arity)
            }
            _ => {
                if approx.is_some() || flags & !(mode::SAT | mode::RELU) != 0 {
                    return self.refuse();
                }
                let (sat, relu) = (flags & mode::SAT != 0, flags & mode::RELU != 0);
                self.integer(i, op, part, ty, sat, relu, arity)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one argument for each thing a modifier says")]
    fn integer(
        &mut self,
        i: &Instruction,
        op: &str,
        part: Option<&str>,
        ty: Type,
        sat: bool,
        relu: bool,
        arity: usize,
    ) -> Result<()> {
        if matches!(op, "mul24" | "mad24") {
            let name = format!("{op}.{}", part.unwrap_or(""));
            return self.simple(i, int::short24(&name, ty, sat), 0, ty, arity);
        }
        if matches!(op, "mul" | "mad") {
            let Some(part) = part else { return self.refuse() };
            let name = format!("{op}.{part}");
            if sat {
                return self.simple(i, int::special(&format!("{name}.sat"), ty), 0, ty, arity);
            }
            if part == "lo" {
                return self.simple(i, int::plain(&name, ty), 0, ty, arity);
            }
            let wide = match ty {
                Type::U16 | Type::S16 => Type::B32,
                _ => Type::B64,
            };
            let third = if part == "wide" { wide } else { ty };
            let types = [ty, ty, third];
            return self.typed_to(i, int::multiply(&name, ty), 0, &types[..arity], third);
        }
        let f = match (sat, relu) {
            (false, false) => int::plain(op, ty),
            (true, false) => int::special(&format!("{op}.sat"), ty),
            (false, true) => int::special(&format!("{op}.relu"), ty),
            _ => None,
        };
        if part.is_some() {
            return self.refuse();
        }
        self.simple(i, f, 0, ty, arity)
    }

    fn carry(&mut self, i: &Instruction, m: &mut Modifiers<'_>, write: bool, arity: usize) -> Result<()> {
        let part = m.pick(&["lo", "hi"]);
        let Some(ty) = m.ty() else { return self.refuse() };
        let name = match part {
            Some(part) => format!("{}.{part}", i.opcode),
            None => i.opcode.clone(),
        };
        let Some(f) = int::carrying(&name, ty) else { return self.refuse() };
        if i.operands.len() != arity + 1 {
            return self.bad(format!("{} takes {} operands", i.opcode, arity + 1));
        }
        let zero = self.constant(0);
        let mut src = [zero; 3];
        for (to, operand) in src.iter_mut().zip(&i.operands[1..]) {
            *to = self.exact(operand, ty)?;
        }
        let dst = self.exact_dst(&i.operands[0], ty)?;
        self.emit(Op::Carry { f, write, dst, src })?;
        Ok(())
    }

    pub(super) fn bits(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let field = match i.opcode.as_str() {
            "bfe" => i.operands.get(2..),
            "bfi" => i.operands.get(3..),
            _ => None,
        };
        for operand in field.unwrap_or_default() {
            if let Operand::Integer(256..) = operand {
                return self.bad(format!("{} takes a position and a length up to 255", i.opcode));
            }
        }
        let op = i.opcode.as_str();
        let u32 = Type::B32;
        match op {
            "dp4a" | "dp2a" => {
                let high = m.pick(&["lo", "hi"]) == Some("hi");
                let (Some(a), Some(b)) = (m.ty(), m.ty()) else { return self.refuse() };
                let signed = |t| match t {
                    Type::U32 => Some(false),
                    Type::S32 => Some(true),
                    _ => None,
                };
                let (Some(a), Some(b)) = (signed(a), signed(b)) else { return self.refuse() };
                return self.simple(i, Some(int::dot()), int::dot_mode(op == "dp4a", a, b, high), u32, 3);
            }
            "lop3" => return self.lop3(i, m),
            "shf" => {
                let Some(side) = m.pick(&["l", "r"]) else { return self.refuse() };
                let Some(how) = m.pick(&["wrap", "clamp"]) else { return self.refuse() };
                if m.ty() != Some(u32) {
                    return self.refuse();
                }
                return self.simple(i, Some(int::funnel(side == "l", how == "wrap")), 0, u32, 3);
            }
            "prmt" => {
                if m.ty() != Some(u32) {
                    return self.refuse();
                }
                let which = m.pick(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]);
                return self.simple(i, int::permute(which), 0, u32, 3);
            }
            "bmsk" | "szext" => {
                let Some(how) = m.pick(&["wrap", "clamp"]) else { return self.refuse() };
                let wrap = how == "wrap";
                let f = match (op, m.ty()) {
                    ("bmsk", Some(Type::B32)) => int::mask(wrap),
                    ("szext", Some(Type::U32)) => int::extend(false, wrap),
                    ("szext", Some(Type::S32)) => int::extend(true, wrap),
                    _ => return self.refuse(),
                };
                return self.simple(i, Some(f), 0, u32, 2);
            }
            _ => {}
        }
        let shift = m.take("shiftamt");
        let Some(ty) = m.ty() else { return self.refuse() };
        if ty == Type::Pred {
            return self.predicates(i);
        }
        match op {
            "shl" | "shr" => self.typed(i, int::bits(op, ty), 0, &[ty, u32]),
            "bfind" => self.typed_to(i, int::find(ty, shift), 0, &[ty], u32),
            "fns" => {
                let f = (ty == u32).then(int::nth_set);
                self.simple(i, f, 0, u32, 3)
            }
            "bfe" => self.typed(i, int::extract(ty), 0, &[ty, u32, u32]),
            "bfi" => {
                let [dst, a, b, pos, len] = self.operands::<5>(i)?;
                let (Some(insert), Some(clear)) = (int::insert_field(ty), int::clear_field(ty)) else {
                    return self.refuse();
                };
                let (a, b) = (self.exact(a, ty)?, self.exact(b, ty)?);
                let (pos, len) = (self.exact(pos, u32)?, self.exact(len, u32)?);
                let dst = self.exact_dst(dst, ty)?;
                let (field, hole) = (self.names.temp(), self.names.temp());
                self.alu(insert, 0, field, &[a, pos, len])?;
                self.alu(clear, 0, hole, &[b, pos, len])?;
                self.alu(lanes!(|a: u64, b: u64| a | b), 0, dst, &[field, hole])
            }
            "and" | "or" | "xor" => self.simple(i, int::bits(op, ty), 0, ty, 2),
            "popc" | "clz" => self.typed_to(i, int::bits(op, ty), 0, &[ty], u32),
            _ => self.simple(i, int::bits(op, ty), 0, ty, 1),
        }
    }

    fn lop3(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let combine = m.pick(&["or", "and"]);
        if m.ty() != Some(Type::B32) || !matches!(i.operands.len(), 5 | 6) {
            return self.refuse();
        }
        let Operand::Integer(table) = i.operands[4] else { return self.refuse() };
        let mut src = [0; 3];
        for (to, operand) in src.iter_mut().zip(&i.operands[1..4]) {
            *to = self.exact(operand, Type::B32)?;
        }
        let (dst, p) = self.dst_pair(&i.operands[0])?;
        self.alu(int::lop3(), table as u32 & 0xFF, dst, &src)?;
        if let (Some(combine), Some(q)) = (combine, i.operands.get(5)) {
            let b = self.pred(q)?;
            let t = self.names.temp_pred();
            self.emit_nonzero(dst, t)?;
            let op = if combine == "or" { Logic::Or } else { Logic::And };
            self.emit(Op::Logic { op, negate: false, dst: p, a: PredSrc { slot: t, negated: false }, b })?;
        }
        Ok(())
    }

    fn predicates(&mut self, i: &Instruction) -> Result<()> {
        let (op, negate) = match i.opcode.as_str() {
            "and" => (Logic::And, false),
            "or" => (Logic::Or, false),
            "xor" => (Logic::Xor, false),
            "not" => (Logic::First, true),
            _ => return self.refuse(),
        };
        let (dst, a, b) = match &i.operands[..] {
            [dst, a] if op == Logic::First => (dst, a, PredSrc::TRUE),
            [dst, a, b] if op != Logic::First => (dst, a, self.pred(b)?),
            _ => return self.bad(format!("{} of predicates takes another number of operands", i.opcode)),
        };
        let (dst, a) = (self.pred_dst(dst)?, self.pred(a)?);
        self.emit(Op::Logic { op, negate, dst, a, b })?;
        Ok(())
    }

    pub(super) fn compare(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        match i.opcode.as_str() {
            "selp" => {
                let Some(ty) = m.ty() else { return self.refuse() };
                let [dst, a, b, p] = self.operands::<4>(i)?;
                let (a, b, p) = (self.exact(a, ty)?, self.exact(b, ty)?, self.pred(p)?);
                let dst = self.exact_dst(dst, ty)?;
                self.emit(Op::Select { dst, a, b, p })?;
                Ok(())
            }
            "slct" => {
                let flags = m.float();
                let (Some(ty), Some(by)) = (m.ty(), m.ty()) else { return self.refuse() };
                let [dst, a, b, c] = self.operands::<4>(i)?;
                let (a, b, c) = (self.exact(a, ty)?, self.exact(b, ty)?, self.exact(c, by)?);
                let dst = self.exact_dst(dst, ty)?;
                if !matches!(by, Type::S32 | Type::F32) {
                    return self.refuse();
                }
                let zero = self.constant(0);
                let p = self.names.temp_pred();
                let (Some(f), Some(mode)) = (test::compare(by, false), test::outcomes("ge", by)) else {
                    return self.refuse();
                };
                let (logic, with) = (Logic::First, PredSrc::TRUE);
                self.emit(Op::Test {
                    f,
                    mode: mode | flags,
                    src: [c, zero, zero],
                    yes: p,
                    no: NONE,
                    logic,
                    with,
                })?;
                self.emit(Op::Select { dst, a, b, p: PredSrc { slot: p, negated: false } })?;
                Ok(())
            }
            "testp" => {
                let Some(op) = m.next() else { return self.refuse() };
                let Some(ty) = m.ty() else { return self.refuse() };
                let Some(f) = test::class(op, ty) else { return self.refuse() };
                let [p, a] = self.operands::<2>(i)?;
                let (a, yes) = (self.exact(a, ty)?, self.pred_dst(p)?);
                let zero = self.constant(0);
                let (logic, with) = (Logic::First, PredSrc::TRUE);
                self.emit(Op::Test { f, mode: 0, src: [a, zero, zero], yes, no: NONE, logic, with })?;
                Ok(())
            }
            set => self.set(i, m, set == "setp"),
        }
    }

    fn set(&mut self, i: &Instruction, m: &mut Modifiers<'_>, to_predicate: bool) -> Result<()> {
        // The assembler takes `.ftz` in front of the comparison too.
        let ftz = if m.take("ftz") { mode::FTZ } else { 0 };
        let Some(op) = m.next() else { return self.refuse() };
        let logic = match m.pick(&["and", "or", "xor"]) {
            Some("and") => Logic::And,
            Some("or") => Logic::Or,
            Some(_) => Logic::Xor,
            None => Logic::First,
        };
        let into = if to_predicate { Some(Type::Pred) } else { m.ty() };
        let (Some(into), Some(ty)) = (into, m.ty()) else { return self.refuse() };
        let Some(outcomes) = test::outcomes(op, ty) else { return self.refuse() };
        let expected = if logic == Logic::First { 3 } else { 4 };
        if i.operands.len() != expected {
            return self.bad(format!("{} takes {expected} operands in this form", i.opcode));
        }
        let (a, b) = (self.exact(&i.operands[1], ty)?, self.exact(&i.operands[2], ty)?);
        let with = if logic == Logic::First { PredSrc::TRUE } else { self.pred(&i.operands[3])? };
        let zero = self.constant(0);
        let (mode, src) = (outcomes | ftz, [a, b, zero]);
        let two = matches!(ty, Type::F16x2 | Type::Bf16x2);
        let Some(f) = test::compare(ty, false) else { return self.refuse() };
        if to_predicate {
            if matches!(ty, Type::F16 | Type::Bf16) && matches!(i.operands[0], Operand::Pair(..)) {
                return self.bad(format!("{} has one predicate", i.name()));
            }
            let (yes, no) = match &i.operands[0] {
                Operand::Pair(p, q) => (self.pred_dst(p)?, self.pred_dst(q)?),
                p => (self.pred_dst(p)?, NONE),
            };
            if !two {
                self.emit(Op::Test { f, mode, src, yes, no, logic, with })?;
                return Ok(());
            }
            let Some(high) = test::compare(ty, true) else { return self.refuse() };
            // Both halves are compared before either predicate changes.
            let (low_p, high_p) = (self.names.temp_pred(), self.names.temp_pred());
            self.emit(Op::Test { f, mode, src, yes: low_p, no: NONE, logic, with })?;
            self.emit(Op::Test { f: high, mode, src, yes: high_p, no: NONE, logic, with })?;
            for (dst, slot) in [(yes, low_p), (no, high_p)] {
                let a = PredSrc { slot, negated: false };
                self.emit(Op::Logic { op: Logic::First, negate: false, dst, a, b: PredSrc::TRUE })?;
            }
            return Ok(());
        }
        let truth = match into {
            Type::U32 | Type::S32 => 0xFFFF_FFFF,
            Type::F32 => 0x3F80_0000,
            Type::U16 | Type::S16 => 0xFFFF,
            Type::F16 | Type::F16x2 => 0x3C00,
            Type::Bf16 | Type::Bf16x2 => 0x3F80,
            _ => return self.refuse(),
        };
        let dst = self.exact_dst(&i.operands[0], into)?;
        if !two {
            self.emit(Op::Set { f, mode, src, dst, truth, logic, with })?;
            return Ok(());
        }
        let Some(high) = test::compare(ty, true) else { return self.refuse() };
        let truth = if truth == 0xFFFF_FFFF { 0xFFFF } else { truth };
        let (low_t, high_t) = (self.names.temp(), self.names.temp());
        self.emit(Op::Set { f, mode, src, dst: low_t, truth, logic, with })?;
        self.emit(Op::Set { f: high, mode, src, dst: high_t, truth, logic, with })?;
        self.alu(lanes!(|a: u32, b: u32| a | b << 16), 0, dst, &[low_t, high_t])
    }

    pub(super) fn convert(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        if m.take("pack") {
            return self.convert_pack(i, m);
        }
        let integral = m.pick(&["rni", "rzi", "rmi", "rpi"]);
        let mut flags = m.float();
        flags |= match integral {
            Some("rzi") => mode::RZ,
            Some("rmi") => mode::RM,
            Some("rpi") => mode::RP,
            _ => 0,
        };
        if m.take("satfinite") {
            flags |= mode::FINITE;
        }
        let (Some(to), Some(from)) = (m.next(), m.next()) else { return self.refuse() };
        let kind = |name: &str| match name {
            "tf32" => Some(Kind::Tf32),
            name => Type::from_name(name).and_then(Kind::of),
        };
        match (to, from) {
            ("f16x2" | "bf16x2", "f32") => {
                let dst = if to == "f16x2" { Kind::F16 } else { Kind::Bf16 };
                let word = convert::mode_word(dst, Kind::F32, flags);
                return self.typed_to(i, Some(convert::pack_halves()), word, &[Type::F32; 2], Type::B32);
            }
            ("e4m3x2" | "e5m2x2", "f32") if flags & mode::FINITE != 0 => {
                let word = flags | if to == "e5m2x2" { convert::E5M2 } else { 0 };
                return self.typed_to(i, Some(convert::pack_eighths()), word, &[Type::F32; 2], Type::B16);
            }
            ("e4m3x2" | "e5m2x2", "f16x2") if flags & mode::FINITE != 0 => {
                let word = flags | if to == "e5m2x2" { convert::E5M2 } else { 0 };
                return self.typed_to(i, Some(convert::halves_to_eighths()), word, &[Type::B32], Type::B16);
            }
            ("f16x2", "e4m3x2" | "e5m2x2") if flags & mode::FINITE != 0 => {
                return self.bad(format!("PTX has no instruction `{}`", i.name()));
            }
            ("f16x2", "e4m3x2" | "e5m2x2") => {
                let word = flags | if from == "e5m2x2" { convert::E5M2 } else { 0 };
                return self.typed_to(i, Some(convert::eighths_to_halves()), word, &[Type::B16], Type::B32);
            }
            _ => {}
        }
        let (Some(dst_kind), Some(src_kind)) = (kind(to), kind(from)) else { return self.refuse() };
        if integral.is_some() && dst_kind.is_float() {
            flags |= mode::INTEGRAL;
        }
        // A float becomes an integer only by a named rounding; tf32 comes from f32 only.
        let unrounded = !dst_kind.is_float() && src_kind.is_float() && integral.is_none();
        if unrounded || src_kind == Kind::Tf32 || dst_kind == Kind::Tf32 && src_kind != Kind::F32 {
            return self.refuse();
        }
        // Between bf16 and integers PTX has neither bytes nor saturation.
        let brain = match (dst_kind, src_kind) {
            (Kind::Bf16, other) | (other, Kind::Bf16) => (!other.is_float()).then_some(other),
            _ => None,
        };
        if brain.is_some_and(|other| other.bits() == 8 || flags & mode::SAT != 0) {
            return self.bad(format!("cvt.{to}.{from} of this form is no conversion of PTX"));
        }
        let word = convert::mode_word(dst_kind, src_kind, flags);
        let [dst, a] = self.operands::<2>(i)?;
        let a = self.src(a, Type::B64)?;
        let (dst, bits) = self.dst(dst)?;
        self.alu(convert::scalar(word), word, dst, &[a])?;
        // A signed result in a wider register is extended to its width.
        if dst_kind.is_signed()
            && dst_kind.bits() < bits
            && *i.operands.first().unwrap_or(&Operand::Sink) != Operand::Sink
        {
            let wide = match bits {
                16 => Kind::S16,
                32 => Kind::S32,
                _ => Kind::S64,
            };
            let word = convert::mode_word(wide, dst_kind, 0);
            self.alu(convert::scalar(word), word, dst, &[dst])?;
        }
        Ok(())
    }

    fn convert_pack(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        if !m.take("sat") {
            return self.refuse();
        }
        let (Some(to), Some(from)) = (m.next(), m.next()) else { return self.refuse() };
        let (signed, bits) = match to {
            "u16" => (false, 16),
            "s16" => (true, 16),
            "u8" => (false, 8),
            "s8" => (true, 8),
            "u4" => (false, 4),
            "s4" => (true, 4),
            "u2" => (false, 2),
            "s2" => (true, 2),
            _ => return self.refuse(),
        };
        // What is narrower than a half is put below the bits of a third operand.
        let has_c = m.take("b32");
        if from != "s32" || has_c != (bits < 16) {
            return self.refuse();
        }
        let word = convert::pack_mode(signed, bits);
        self.simple(i, Some(convert::pack_integers()), word, Type::B32, if has_c { 3 } else { 2 })
    }

    pub(super) fn spaces(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        match i.opcode.as_str() {
            "cvta" => {
                let to = m.take("to");
                let Some(space) = m.next() else { return self.refuse() };
                let base = match space {
                    "global" | "const" => 0,
                    "shared" | "shared::cta" | "shared::cluster" => window::SHARED,
                    "local" => window::LOCAL,
                    // The address of a function's parameter is one of its frame.
                    "param" | "param::func" if self.function.kind == FunctionKind::Func => window::LOCAL,
                    "param" | "param::entry" => window::PARAM,
                    _ => return self.refuse(),
                };
                if !matches!(m.ty(), Some(Type::U64)) {
                    return self.refuse();
                }
                let [dst, a] = self.operands::<2>(i)?;
                let a = self.src(a, Type::U64)?;
                let (dst, _) = self.dst(dst)?;
                let b = self.constant(if to { base.wrapping_neg() } else { base });
                self.alu(lanes!(|a: u64, b: u64| a.wrapping_add(b)), 0, dst, &[a, b])
            }
            "isspacep" => {
                let space = m.next();
                let Some(f) = space.and_then(test::in_space) else { return self.refuse() };
                let [p, a] = self.operands::<2>(i)?;
                let (mut a, yes) = (self.src(a, Type::U64)?, self.pred_dst(p)?);
                if space == Some("const") {
                    a = self.in_constant_memory(a)?;
                }
                let zero = self.constant(0);
                let (logic, with) = (Logic::First, PredSrc::TRUE);
                self.emit(Op::Test { f, mode: 0, src: [a, zero, zero], yes, no: NONE, logic, with })?;
                Ok(())
            }
            "mapa" => {
                m.take("shared::cluster");
                let Some(ty @ (Type::U32 | Type::U64)) = m.ty() else { return self.refuse() };
                let f = lanes!(|a: u64, rank: u32| {
                    a & !(0xFF << window::RANK_SHIFT)
                        | u64::from(rank.wrapping_add(1) & 0xFF) << window::RANK_SHIFT
                });
                self.typed(i, Some(f), 0, &[ty, Type::U32])
            }
            _ => {
                m.take("shared::cluster");
                let Some(ty @ (Type::U32 | Type::U64)) = m.ty() else { return self.refuse() };
                let [dst, a] = self.operands::<2>(i)?;
                let own = self.names.temp();
                self.emit_free(Op::Special { dst: own, what: Special::ClusterCtaRank })?;
                let (a, (dst, _)) = (self.src(a, ty)?, self.dst(dst)?);
                let f = lanes!(|a: u32, own: u32| match a >> window::RANK_SHIFT {
                    0 => own,
                    n => n - 1,
                });
                self.alu(f, 0, dst, &[a, own])
            }
        }
    }

    /// A slot that is 1 for the lanes whose address lies in a variable in constant memory, else 0.
    fn in_constant_memory(&mut self, address: u32) -> Result<u32> {
        let constant = self.image.globals.iter().enumerate().filter(|(_, global)| global.constant);
        let variables: Vec<(u32, u64)> = constant.map(|(at, global)| (at as u32, global.bytes)).collect();
        if variables.len() > MOST_CONSTANT_VARIABLES {
            let text = format!("isspacep.const among {} variables in constant memory", variables.len());
            return Err(unsupported(self.line, text));
        }
        let mut any = self.constant(0);
        for (index, bytes) in variables {
            let (base, inside, joined) = (self.names.temp(), self.names.temp(), self.names.temp());
            self.emit_free(Op::GlobalAddr { dst: base, index, offset: 0 })?;
            let bytes = self.constant(bytes);
            let within = lanes!(|a: u64, base: u64, bytes: u64| u64::from(a.wrapping_sub(base) < bytes));
            self.alu(within, 0, inside, &[address, base, bytes])?;
            self.alu(lanes!(|a: u64, b: u64| a | b), 0, joined, &[any, inside])?;
            any = joined;
        }
        Ok(any)
    }

    /// Scalar video instructions: `vadd`, `vsub`, `vabsdiff`, `vmin`, `vmax`, `vshl`, `vshr`, `vset`, `vmad`.
    pub(super) fn video(&mut self, i: &Instruction, mut m: Modifiers<'_>) -> Result<()> {
        let op = match i.opcode.as_str() {
            "vadd" => 0,
            "vsub" => 1,
            "vabsdiff" => 2,
            "vmin" => 3,
            "vmax" => 4,
            "vshl" => 5,
            "vshr" => 6,
            "vset" => 7,
            "vmad" => 8,
            _ => return self.refuse(),
        };
        let (is_set, is_mad) = (op == 7, op == 8);
        // `vset` has no type of its own: its result is 0 or 1.
        let d_ty = if is_set { Some(Type::U32) } else { m.ty() };
        let (Some(d_ty), Some(a_ty), Some(b_ty)) = (d_ty, m.ty(), m.ty()) else { return self.refuse() };
        let signed = |t| match t {
            Type::U32 => Some(0),
            Type::S32 => Some(1),
            _ => None,
        };
        let (Some(d_signed), Some(a_signed), Some(b_signed)) = (signed(d_ty), signed(a_ty), signed(b_ty))
        else {
            return self.refuse();
        };
        if matches!(op, 5 | 6) && b_signed != 0 {
            return self.bad(format!("{} shifts by a u32", i.opcode));
        }
        let compare = match (is_set, m.pick(&["eq", "ne", "lt", "le", "gt", "ge"])) {
            (true, Some(name)) => test::outcomes(name, Type::S64).unwrap_or(0) / mode::OWN,
            (false, None) => 0,
            _ => return self.refuse(),
        };
        let plus_one = u32::from(is_mad && m.take("po"));
        let sat = u32::from(!is_set && m.take("sat"));
        let scale = match (is_mad, m.pick(&["shr7", "shr15"])) {
            (_, None) => 0,
            (true, Some("shr7")) => 7,
            (true, Some(_)) => 15,
            _ => return self.refuse(),
        };
        let shift_wrap = match (op, m.pick(&["clamp", "wrap"])) {
            (5 | 6, Some("wrap")) => 1,
            (5 | 6, Some(_)) => 0,
            (5 | 6, None) => return self.bad(format!("{} takes .clamp or .wrap", i.opcode)),
            (_, None) => 0,
            _ => return self.refuse(),
        };
        let second = match (is_mad, m.pick(&["add", "min", "max"])) {
            (_, None) => 0,
            (false, Some("add")) => 1,
            (false, Some("min")) => 2,
            (false, Some(_)) => 3,
            _ => return self.refuse(),
        };
        if !m.is_empty() || !matches!(i.operands.len(), 3 | 4) {
            return self.refuse();
        }
        let (destination, d_sel) = part_of(&i.operands[0]);
        // A third source is what the result joins, or is put into.
        if i.operands.len() == 3 && (second != 0 || d_sel != 0 || is_mad) || second != 0 && d_sel != 0 {
            return self.bad(format!("{} takes other operands in this form", i.opcode));
        }
        let (a, a_sel) = self.video_source(&i.operands[1])?;
        let (b, b_sel) = self.video_source(&i.operands[2])?;
        let c = match i.operands.get(3) {
            Some(c) => self.src(c, Type::B32)?,
            None => self.constant(0),
        };
        let (dst, _) = self.dst(&destination)?;
        let word = op
            | d_signed << 4
            | a_signed << 5
            | b_signed << 6
            | sat << 7
            | shift_wrap << 8
            | second << 9
            | plus_one << 11
            | a_sel << 12
            | b_sel << 16
            | d_sel << 20
            | compare << 24
            | scale << 28;
        let f = lanes!(|a: u32, b: u32, c: u32; m| video_op(a, b, c, m));
        self.alu(f, word, dst, &[a, b, c])
    }

    /// A register with an optional `.b0` … `.h1`: slot and selector.
    fn video_source(&mut self, operand: &Operand) -> Result<(u32, u32)> {
        let (whole, selector) = part_of(operand);
        Ok((self.src(&whole, Type::B32)?, selector))
    }
}

/// An operand without its `.b0` … `.h1`, and which part that was: 0 whole, 1..=4 bytes, 5, 6 halves.
fn part_of(operand: &Operand) -> (Operand, u32) {
    if let Operand::Name(name) = operand
        && let Some((register, part)) = name.rsplit_once('.')
        && let Some(at) = ["b0", "b1", "b2", "b3", "h0", "h1"].iter().position(|p| *p == part)
    {
        return (Operand::Name(register.to_owned()), at as u32 + 1);
    }
    (operand.clone(), 0)
}

/// Shift and width of a selector's part.
fn part_at(selector: u32) -> (u32, u32) {
    match selector & 7 {
        n @ 1..=4 => (8 * (n - 1), 8),
        n @ 5..=6 => (16 * (n - 5), 16),
        _ => (0, 32),
    }
}

/// What an H200 gives (driver 580.159.04), which departs from PTX's text in places:
///
/// * `d.h1` takes the upper half of the result, not its lower one. `vset`, not measured there, follows the text.
/// * `.sat` into a part limits sums and the like to 32 bits with a sign, and then takes the smaller of that, *unsigned*, and the
///   part's largest number: what is negative becomes the largest. Shifts are limited to 32 bits only.
/// * `.sat` of a sum to `u32` saturates from below alone.
/// * `.min` and `.max` behind a shift without `.sat` compare all bits of the shifted number, those beyond 32 too. Behind one with
///   `.sat` to `u32` the first number never counts as below `c` where both have their top bit.
fn video_op(a: u32, b: u32, c: u32, m: u32) -> u32 {
    let part = |v: u32, selector: u32, signed: bool| -> i64 {
        let (shift, width) = part_at(selector);
        let v = u64::from(v >> shift) << (64 - width);
        if signed { v as i64 >> (64 - width) } else { (v >> (64 - width)) as i64 }
    };
    let flag = |bit: u32| m >> bit & 1 != 0;
    let (op, sat, signed, second) = (m & 15, flag(7), flag(4), m >> 9 & 3);
    // `vmad` takes a whole register as signed, whatever its type says.
    let a_signed = flag(5) || op == 8 && m >> 12 & 7 == 0;
    let (x, y) = (part(a, m >> 12, a_signed), part(b, m >> 16, flag(6)));
    let amount = if flag(8) { y & 31 } else { (y as u32).min(32).into() };
    let shifts = matches!(op, 5 | 6);
    let whole: i128 = match op {
        0 => (x + y).into(),
        1 => (x - y).into(),
        2 => (x - y).abs().into(),
        3 => x.min(y).into(),
        4 => x.max(y).into(),
        5 => i128::from(x) << amount,
        6 => (x >> amount).into(),
        7 => {
            let outcome = 1 << (x.cmp(&y) as i8 + 1);
            i128::from(m >> 24 & outcome != 0)
        }
        _ => return multiply_add(x, y, c, m),
    };
    if shifts && !sat && second >= 2 {
        let c = if signed { i128::from(c as i32) } else { c.into() };
        return if second == 2 { whole.min(c) } else { whole.max(c) } as u32;
    }
    // The result before saturation has 34 bits; what is shifted beyond them is lost.
    let value = (whole as i64) << 30 >> 30;
    let negative = value < 0 && !sat;
    let (at, width) = part_at(m >> 20);
    let value = match (sat, signed) {
        (false, _) => value as u32,
        _ if width < 32 && !shifts => {
            let most = u32::MAX >> (32 - width) >> u32::from(signed);
            (value.clamp(i32::MIN.into(), i32::MAX.into()) as u32).min(most)
        }
        (true, true) => value.clamp(i32::MIN.into(), i32::MAX.into()) as u32,
        (true, false) if shifts => value.clamp(0, u32::MAX.into()) as u32,
        (true, false) => value.max(0) as u32,
    };
    match second {
        0 if width < 32 => {
            let field = ((1 << width) - 1) << at;
            let upper_half = m >> 20 & 7 == 6 && op != 7;
            let value = if upper_half { value >> 16 } else { value };
            c & !field | value << at & field
        }
        0 => value,
        1 => value.wrapping_add(c),
        n if signed => {
            let (v, c) = (value as i32, c as i32);
            (if n == 2 { v.min(c) } else { v.max(c) }) as u32
        }
        // Of two with their top bit, neither counts as below the other.
        n if shifts && (value & c) >> 31 != 0 => {
            if n == 2 {
                c
            } else {
                value
            }
        }
        2 => value.min(c),
        // A negative result, which has no saturation, counts as larger than any `c`.
        _ if negative => value,
        _ => value.max(c),
    }
}

/// `vmad`: x · y + c (+ 1), shifted right and perhaps saturated. `c` is signed, whatever the types say. Of unsigned operands
/// a scaled sum that is negative counts as a large one.
fn multiply_add(x: i64, y: i64, c: u32, m: u32) -> u32 {
    let flag = |bit: u32| m >> bit & 1 != 0;
    let (signed, scale) = (flag(5) || flag(6), m >> 28);
    let sum = i128::from(x) * i128::from(y) + i128::from(c as i32) + i128::from(flag(11));
    match (flag(7), signed) {
        (false, _) => (sum >> scale) as u32,
        (true, true) => (sum >> scale).clamp(i32::MIN.into(), i32::MAX.into()) as u32,
        (true, false) if scale == 0 => sum.clamp(0, u32::MAX.into()) as u32,
        (true, false) => (sum as u64 >> scale).min(u32::MAX.into()) as u32,
    }
}
