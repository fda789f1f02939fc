//! One instruction: dispatch by opcode.

use super::modifiers::Modifiers;
use super::{Decoder, Result};
use crate::ptx::code::{Logic, NONE, Op, PredSrc, Special};
use crate::ptx::lanes::{lanes, test};
use simtile_image::ptx::{Instruction, Operand, Type};

/// Alignment of `alloca` that names none.
const STACK_ALIGN: u32 = 16;

impl Decoder<'_, '_> {
    pub(super) fn instruction(&mut self, i: &Instruction) -> Result<()> {
        if super::grammar::allows(&i.opcode, &i.modifiers) == Some(false) {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        }
        let mut m = Modifiers::new(&i.modifiers);
        match i.opcode.as_str() {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "rcp"
            | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign" | "sad" | "mul24"
            | "mad24" | "addc" | "subc" | "madc" => self.arithmetic(i, &mut m)?,
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "popc" | "clz" | "brev" | "bfind"
            | "fns" | "bfe" | "bfi" | "szext" | "bmsk" | "dp4a" | "dp2a" | "lop3" | "shf" | "prmt" => {
                self.bits(i, &mut m)?
            }
            "setp" | "set" | "selp" | "slct" | "testp" => self.compare(i, &mut m)?,
            "mov" => self.mov(i, &mut m)?,
            "cvt" => self.convert(i, &mut m)?,
            "cvta" | "isspacep" | "mapa" | "getctarank" => self.spaces(i, &mut m)?,
            "ld" | "ldu" => self.load(i, &mut m)?,
            "st" => self.store(i, &mut m)?,
            "atom" | "red" => self.atomic(i, &mut m)?,
            "bra" => {
                m.take("uni");
                self.branch(i)?;
            }
            "brx" => {
                m.take("idx");
                m.take("uni");
                self.branch_indexed(i)?;
            }
            "call" => {
                m.take("uni");
                self.call(i)?;
            }
            "ret" => {
                // Twice is once, as the assembler has it.
                while m.take("uni") {}
                self.returns()?;
                self.emit(Op::Ret)?;
            }
            "exit" => drop(self.emit(Op::Exit)?),
            "trap" => drop(self.emit(Op::Trap)?),
            "bar" | "barrier" | "membar" | "fence" | "griddepcontrol" | "brkpt" | "pmevent"
            | "setmaxnreg" | "nanosleep" | "prefetch" | "prefetchu" | "discard" | "applypriority"
            | "createpolicy" | "activemask" | "shfl" | "vote" | "match" | "redux" | "elect" | "mbarrier" => {
                return self.synchronise(i, m);
            }
            "alloca" | "stacksave" | "stackrestore" => self.stack(i, &mut m)?,
            "multimem" => self.multimem(i, &mut m)?,
            "cp" => return self.copy(i, m),
            "wmma" | "mma" | "ldmatrix" | "stmatrix" | "movmatrix" => return self.matrix(i, m),
            name => {
                if !super::isa::is_opcode(name) {
                    return self.bad(format!("PTX has no instruction `{name}`"));
                }
                if name.starts_with('v') {
                    return self.video(i, m);
                }
                return self.refuse();
            }
        }
        if m.is_empty() { Ok(()) } else { self.refuse() }
    }

    /// `alloca`, `stacksave`, `stackrestore`. Addresses of local memory have the same value in 32 and 64 bits.
    fn stack(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let Some(ty @ (Type::U32 | Type::U64)) = m.ty() else {
            return self.bad(format!("PTX has no instruction `{}`", i.name()));
        };
        let op = match (i.opcode.as_str(), &i.operands[..]) {
            ("alloca", [dst, bytes]) => {
                let bytes = self.exact(bytes, ty)?;
                Op::Alloca { dst: self.exact_dst(dst, ty)?, bytes, align: STACK_ALIGN }
            }
            ("alloca", [dst, bytes, align]) => {
                let most = 1 << 16;
                let align = match align {
                    Operand::Integer(v) if v.is_power_of_two() && *v <= most => *v as u32,
                    other => {
                        return self
                            .bad(format!("alloca is aligned to {other:?}, no power of two up to {most}"));
                    }
                };
                let bytes = self.exact(bytes, ty)?;
                Op::Alloca { dst: self.exact_dst(dst, ty)?, bytes, align }
            }
            ("stacksave", [dst]) => Op::StackSave { dst: self.exact_dst(dst, ty)? },
            ("stackrestore", [src]) => Op::StackRestore { src: self.exact(src, ty)? },
            _ => return self.bad(format!("{} takes another number of operands", i.opcode)),
        };
        self.emit(op)?;
        Ok(())
    }

    /// Checks the number of operands.
    pub(super) fn operands<'i, const N: usize>(&self, i: &'i Instruction) -> Result<&'i [Operand; N]> {
        match <&[Operand; N]>::try_from(&i.operands[..]) {
            Ok(operands) => Ok(operands),
            Err(_) => self.bad(format!("{} takes {N} operands, not {}", i.opcode, i.operands.len())),
        }
    }

    fn mov(&mut self, i: &Instruction, m: &mut Modifiers<'_>) -> Result<()> {
        let Some(ty) = m.ty() else { return self.refuse() };
        let [dst, src] = self.operands::<2>(i)?;
        if ty == Type::Pred && *src == Operand::Name("%is_explicit_cluster".into()) {
            let (dst, a) = (self.pred_dst(dst)?, self.names.temp());
            self.emit_free(Op::Special { dst: a, what: Special::IsExplicitCluster })?;
            let f = test::compare(Type::U64, false).map_or_else(|| self.refuse(), Ok)?;
            let mode = test::outcomes("ne", Type::U64).unwrap_or(0);
            let zero = self.constant(0);
            let (logic, with) = (Logic::First, PredSrc::TRUE);
            self.emit(Op::Test { f, mode, src: [a, zero, zero], yes: dst, no: NONE, logic, with })?;
            return Ok(());
        }
        if ty == Type::Pred {
            let (dst, a) = (self.pred_dst(dst)?, self.pred(src)?);
            self.emit(Op::Logic { op: Logic::First, negate: false, dst, a, b: PredSrc::TRUE })?;
            return Ok(());
        }
        if ty == Type::B128 {
            return self.mov_wide(dst, src);
        }
        if ty.bytes() > 8 {
            return self.refuse();
        }
        match (dst, src) {
            // Several registers of one width on both sides, as some compilers write.
            (Operand::Vector(to), Operand::Vector(from)) => {
                if to.len() != from.len() {
                    return self.bad("vectors of different lengths");
                }
                let sources = from.iter().map(|f| self.src(f, ty)).collect::<Result<Vec<_>>>()?;
                let mut temps = Vec::new();
                for a in sources {
                    let t = self.names.temp();
                    self.emit_move(t, a)?;
                    temps.push(t);
                }
                for (d, t) in to.iter().zip(temps) {
                    let (d, _) = self.dst(d)?;
                    self.emit_move(d, t)?;
                }
            }
            (Operand::Vector(parts), _) => {
                let a = self.src(src, ty)?;
                self.unpack(parts, a, ty.bytes() as u32 * 8)?;
            }
            (_, Operand::Vector(parts)) => {
                let (dst, _) = self.dst(dst)?;
                let slot = self.pack(parts, ty.bytes() as u32 * 8)?;
                self.emit_move(dst, slot)?;
            }
            _ => {
                let a = self.exact(src, ty)?;
                let dst = self.exact_dst(dst, ty)?;
                self.emit_move(dst, a)?;
            }
        }
        Ok(())
    }

    /// `mov.b128`: between registers of 128 bits, or one and its two halves.
    fn mov_wide(&mut self, dst: &Operand, src: &Operand) -> Result<()> {
        let from = match src {
            Operand::Vector(parts) if parts.len() == 2 => {
                [self.src(&parts[0], Type::B64)?, self.src(&parts[1], Type::B64)?]
            }
            whole => self.wide(whole)?,
        };
        let to = match dst {
            Operand::Vector(parts) if parts.len() == 2 => [self.dst(&parts[0])?.0, self.dst(&parts[1])?.0],
            whole => self.wide(whole)?,
        };
        // One half may be the other's source.
        let upper = self.names.temp();
        self.emit_move(upper, from[1])?;
        self.emit_move(to[0], from[0])?;
        self.emit_move(to[1], upper)
    }

    pub(super) fn emit_move(&mut self, dst: u32, a: u32) -> Result<()> {
        let zero = self.constant(0);
        let f = lanes!(|a: u64| a);
        self.emit(Op::Alu { f, mode: 0, dst, src: [a, zero, zero] })?;
        Ok(())
    }

    /// Splits a register of `bits` bits into equal parts.
    pub(super) fn unpack(&mut self, parts: &[Operand], a: u32, bits: u32) -> Result<()> {
        let n = parts.len() as u32;
        if n == 0 || !bits.is_multiple_of(n) || bits / n < 8 {
            return self.bad("this many parts do not fit the type");
        }
        let width = bits / n;
        let zero = self.constant(0);
        // The source may be one of the parts: keep a copy.
        let copy = self.names.temp();
        let free = lanes!(|a: u64| a);
        self.emit_free(Op::Alu { f: free, mode: 0, dst: copy, src: [a, zero, zero] })?;
        for (at, part) in parts.iter().enumerate() {
            if *part == Operand::Sink {
                continue;
            }
            let (dst, _) = self.dst(part)?;
            let f = lanes!(|a: u64; m| {
                let (shift, width) = (m & 0xFF, m >> 8);
                a >> shift & (u64::MAX >> (64 - width))
            });
            let mode = (at as u32 * width) | (width << 8);
            self.emit(Op::Alu { f, mode, dst, src: [copy, zero, zero] })?;
        }
        Ok(())
    }

    /// Joins equal parts into one register of `bits` bits.
    pub(super) fn pack(&mut self, parts: &[Operand], bits: u32) -> Result<u32> {
        let n = parts.len() as u32;
        if n == 0 || !bits.is_multiple_of(n) || bits / n < 8 {
            return self.bad("this many parts do not fit the type");
        }
        let width = bits / n;
        let ty = match width {
            8 => Type::B8,
            16 => Type::B16,
            32 => Type::B32,
            _ => Type::B64,
        };
        let zero = self.constant(0);
        let mut joined = zero;
        for (at, part) in parts.iter().enumerate() {
            let b = self.src(part, ty)?;
            let dst = self.names.temp();
            let f = lanes!(|a: u64, b: u64; m| {
                let (shift, width) = (m & 0xFF, m >> 8);
                a | (b & (u64::MAX >> (64 - width))) << shift
            });
            let mode = (at as u32 * width) | (width << 8);
            self.emit_free(Op::Alu { f, mode, dst, src: [joined, b, zero] })?;
            joined = dst;
        }
        Ok(joined)
    }

    /// The scratch register that stands for an unwanted result.
    pub(super) fn slot_or_none(&mut self, operand: &Operand) -> Result<u32> {
        if *operand == Operand::Sink { Ok(NONE) } else { Ok(self.dst(operand)?.0) }
    }
}
