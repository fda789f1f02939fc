//! Names of one function: registers, variables, labels, tables, and the operands made of them.

use super::{Decoder, LabelKey, MOST_LOCAL, MOST_SHARED, Result, is_dynamic, malformed, place, unsupported};
use crate::ptx::code::{Addr, CONSTANT, NONE, Op, PredSrc, Slot, Space, window};
use crate::ptx::lanes::half;
use simtile_image::ptx::{FunctionKind, Operand, Prototype, Space as Declared, Statement, Type, Variable};
use std::collections::{HashMap, HashSet};

/// What a name means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Symbol {
    Reg {
        slot: Slot,
        bits: u32,
    },
    /// The first of several slots.
    Vector {
        slot: Slot,
        bits: u32,
        lanes: u32,
    },
    /// The lower half of 128 bits; the upper one is in the next slot.
    Wide(Slot),
    Pred(u32),
    Shared(u32),
    Dynamic,
    /// Offset in the function's frame.
    Frame(u32),
    /// Offset in the kernel's parameters.
    Param(u32),
    Global(u32),
    Function(u32),
}

/// `%r<18>`.
struct Family {
    prefix: String,
    count: u32,
    /// 0 for predicates.
    bits: u32,
}

#[derive(Default)]
struct Level {
    id: u32,
    symbols: HashMap<String, Symbol>,
    families: Vec<Family>,
    tables: HashMap<String, Vec<String>>,
    prototypes: HashMap<String, Prototype>,
}

/// Scopes and slot counters.
pub(super) struct Names {
    levels: Vec<Level>,
    next_level: u32,
    labels: HashSet<LabelKey>,
    pub regs: u32,
    pub preds: u32,
}

/// Calls `f` for every name in an operand.
pub(super) fn each_name<'o>(operand: &'o Operand, f: &mut impl FnMut(&'o str)) {
    match operand {
        Operand::Name(name) | Operand::Not(name) | Operand::Offset(name, _) => f(name),
        // Operands nest two levels at most, by the grammar.
        Operand::Address { base, more, .. } => {
            each_name(base, f);
            more.iter().for_each(|o| each_name(o, f));
        }
        Operand::Vector(all) | Operand::Group(all) => all.iter().for_each(|o| each_name(o, f)),
        Operand::Pair(a, b) => {
            each_name(a, f);
            each_name(b, f);
        }
        _ => {}
    }
}

impl Names {
    pub(super) fn new() -> Self {
        Self { levels: vec![Level::default()], next_level: 1, labels: HashSet::new(), regs: 0, preds: 0 }
    }

    /// Notes which labels there are in which scope, for branches forward.
    pub(super) fn find_labels(&mut self, body: &[Statement]) {
        let (mut open, mut next) = (vec![0u32], 1);
        for statement in body {
            match statement {
                Statement::Open => {
                    open.push(next);
                    next += 1;
                }
                Statement::Close => drop(open.pop()),
                Statement::Label { name, .. } => {
                    self.labels.insert((open.last().copied().unwrap_or(0), name.clone()));
                }
                _ => {}
            }
        }
    }

    pub(super) fn open(&mut self) {
        self.levels.push(Level { id: self.next_level, ..Level::default() });
        self.next_level += 1;
    }

    pub(super) fn close(&mut self) {
        if self.levels.len() > 1 {
            self.levels.pop();
        }
    }

    fn top(&mut self) -> &mut Level {
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    /// The key of a label declared here.
    pub(super) fn here(&self, name: &str) -> LabelKey {
        (self.levels.last().map_or(0, |l| l.id), name.to_owned())
    }

    /// The key of the label that a branch here means.
    pub(super) fn label(&self, name: &str) -> Option<LabelKey> {
        self.levels.iter().rev().map(|l| (l.id, name.to_owned())).find(|key| self.labels.contains(key))
    }

    pub(super) fn table(&mut self, name: &str, targets: &[String]) {
        self.top().tables.insert(name.to_owned(), targets.to_vec());
    }

    pub(super) fn find_table(&self, name: &str) -> Option<&Vec<String>> {
        self.levels.iter().rev().find_map(|l| l.tables.get(name))
    }

    pub(super) fn prototype(&mut self, name: &str, prototype: &Prototype) {
        self.top().prototypes.insert(name.to_owned(), prototype.clone());
    }

    pub(super) fn find_prototype(&self, name: &str) -> Option<&Prototype> {
        self.levels.iter().rev().find_map(|l| l.prototypes.get(name))
    }

    pub(super) fn set(&mut self, name: &str, symbol: Symbol) {
        self.top().symbols.insert(name.to_owned(), symbol);
    }

    pub(super) fn temp(&mut self) -> Slot {
        self.regs += 1;
        self.regs - 1
    }

    pub(super) fn temp_pred(&mut self) -> u32 {
        self.preds += 1;
        self.preds - 1
    }

    fn register(&mut self, bits: u32) -> Symbol {
        match bits {
            0 => Symbol::Pred(self.temp_pred()),
            128 => {
                let slot = self.temp();
                self.temp();
                Symbol::Wide(slot)
            }
            bits => Symbol::Reg { slot: self.temp(), bits },
        }
    }

    fn find(&mut self, name: &str) -> Option<Symbol> {
        for at in (0..self.levels.len()).rev() {
            if let Some(&symbol) = self.levels[at].symbols.get(name) {
                return Some(symbol);
            }
            let family = self.levels[at].families.iter().find_map(|f| {
                let digits = name.strip_prefix(f.prefix.as_str())?;
                let canonical = digits == "0" || !digits.starts_with('0');
                let number: u32 = digits.parse().ok().filter(|_| canonical)?;
                (number < f.count).then_some(f.bits)
            });
            if let Some(bits) = family {
                let symbol = self.register(bits);
                self.levels[at].symbols.insert(name.to_owned(), symbol);
                return Some(symbol);
            }
        }
        None
    }
}

fn register_bits(ty: Type) -> Option<u32> {
    match ty {
        Type::Pred => Some(0),
        Type::TexRef | Type::SamplerRef | Type::SurfRef => None,
        _ => Some(ty.bytes() as u32 * 8),
    }
}

impl Decoder<'_, '_> {
    /// A declaration in the body.
    pub(super) fn declare(&mut self, variable: &Variable) -> Result<()> {
        let (name, line) = (variable.name.as_str(), variable.line);
        match variable.space {
            Declared::Reg => {
                let Some(bits) = register_bits(variable.ty) else {
                    return Err(unsupported(line, format!("register `{name}` of this type")));
                };
                if let Some(count) = variable.count {
                    self.names.top().families.push(Family { prefix: name.to_owned(), count, bits });
                } else if variable.vector > 1 && bits <= 64 {
                    let slot = self.names.regs;
                    let lanes = u32::from(variable.vector);
                    self.names.regs += lanes;
                    self.names.set(name, Symbol::Vector { slot, bits, lanes });
                } else {
                    let symbol = self.names.register(bits);
                    self.names.set(name, symbol);
                }
            }
            Declared::Shared if is_dynamic(variable) => self.names.set(name, Symbol::Dynamic),
            Declared::Shared => {
                let (offset, end) = place(variable, self.shared_end, MOST_SHARED)?;
                self.shared_end = end;
                self.names.set(name, Symbol::Shared(offset));
            }
            Declared::Local | Declared::Param => {
                let offset = self.reserve(variable)?;
                self.names.set(name, Symbol::Frame(offset));
            }
            Declared::Global | Declared::Const => {
                let found = self.image.statics.get(&(line, variable.name.clone())).copied();
                let Some(index) = found else { return Err(malformed(line, format!("no variable `{name}`"))) };
                self.names.set(name, Symbol::Global(index));
            }
            Declared::Tex => return Err(unsupported(line, ".tex variables")),
        }
        Ok(())
    }

    /// Room for a variable in the frame.
    pub(super) fn reserve(&mut self, variable: &Variable) -> Result<u32> {
        let (offset, end) = place(variable, self.frame, MOST_LOCAL)?;
        self.frame = end;
        Ok(offset)
    }

    pub(super) fn find(&mut self, name: &str) -> Result<Symbol> {
        if let Some(symbol) = self.names.find(name) {
            return Ok(symbol);
        }
        if let Some((vector, member)) = name.rsplit_once('.')
            && let Some(Symbol::Vector { slot, bits, lanes }) = self.names.find(vector)
        {
            let at = match member {
                "x" | "r" => 0,
                "y" | "g" => 1,
                "z" | "b" => 2,
                "w" | "a" => 3,
                _ => NONE,
            };
            if at < lanes {
                return Ok(Symbol::Reg { slot: slot + at, bits });
            }
        }
        let scope = self.scope;
        if let Some(&index) = scope.globals.get(name) {
            Ok(Symbol::Global(index))
        } else if let Some(&offset) = scope.shared.get(name) {
            Ok(Symbol::Shared(offset))
        } else if scope.dynamic.contains(name) {
            Ok(Symbol::Dynamic)
        } else if let Some(&number) = scope.functions.get(name) {
            Ok(Symbol::Function(number))
        } else {
            self.bad(format!("`{name}` is not declared"))
        }
    }

    /// The slot of a constant that all lanes share.
    pub(super) fn constant(&mut self, value: u64) -> Slot {
        let (constants, slots) = (&mut self.constants, &mut self.constant_slots);
        *slots.entry(value).or_insert_with(|| {
            constants.push([value; 32]);
            CONSTANT + constants.len() as u32 - 1
        })
    }

    pub(super) fn pred_slot(&mut self, name: &str) -> Result<u32> {
        match self.find(name)? {
            Symbol::Pred(slot) => Ok(slot),
            _ => self.bad(format!("`{name}` is not a predicate")),
        }
    }

    /// A predicate operand: a register, its negation, or a constant.
    pub(super) fn pred(&mut self, operand: &Operand) -> Result<PredSrc> {
        match operand {
            Operand::Name(name) => Ok(PredSrc { slot: self.pred_slot(name)?, negated: false }),
            Operand::Not(name) => Ok(PredSrc { slot: self.pred_slot(name)?, negated: true }),
            Operand::Integer(v) => Ok(PredSrc { slot: NONE, negated: *v == 0 }),
            _ => self.bad("a predicate is missing"),
        }
    }

    /// The slot of a destination predicate; [`NONE`] for `_`.
    pub(super) fn pred_dst(&mut self, operand: &Operand) -> Result<u32> {
        match operand {
            Operand::Sink => Ok(NONE),
            Operand::Name(name) => self.pred_slot(name),
            _ => self.bad("a predicate is missing"),
        }
    }

    /// Slot and width of a destination register. `_` gives a scratch register.
    pub(super) fn dst(&mut self, operand: &Operand) -> Result<(Slot, u32)> {
        match operand {
            Operand::Sink => Ok((self.names.temp(), 64)),
            Operand::Name(name) => match self.find(name)? {
                Symbol::Reg { slot, bits } => Ok((slot, bits)),
                _ => self.bad(format!("`{name}` is not a register")),
            },
            _ => self.bad("a destination register is missing"),
        }
    }

    /// Both halves of a register of 128 bits.
    pub(super) fn wide(&mut self, operand: &Operand) -> Result<[Slot; 2]> {
        match operand {
            Operand::Name(name) => match self.find(name)? {
                Symbol::Wide(slot) => Ok([slot, slot + 1]),
                _ => self.bad(format!("`{name}` has not 128 bits")),
            },
            _ => self.bad("a register of 128 bits is missing"),
        }
    }

    /// The destination and an optional predicate beside it: `d|p`, `d` or `_|p`.
    pub(super) fn dst_pair(&mut self, operand: &Operand) -> Result<(Slot, u32)> {
        match operand {
            Operand::Pair(d, p) => Ok((self.dst(d)?.0, self.pred_dst(p)?)),
            _ => Ok((self.dst(operand)?.0, NONE)),
        }
    }

    /// The slot of a source operand of exactly a type's width; a number of its kind. What `ld`, `st` and `cvt` allow
    /// besides, other instructions do not.
    pub(super) fn exact(&mut self, operand: &Operand, ty: Type) -> Result<Slot> {
        use Type::{F32, F64, S8, S16, S32, S64, U8, U16, U32, U64};
        let fits = match operand {
            Operand::Name(name) => match self.names.find(name) {
                Some(Symbol::Reg { bits, .. }) => u64::from(bits) == 8 * ty.bytes(),
                _ => true,
            },
            Operand::Integer(_) => !matches!(ty, F32 | F64),
            Operand::Float32(_) | Operand::Float64(_) => {
                !matches!(ty, S8 | S16 | S32 | S64 | U8 | U16 | U32 | U64)
            }
            _ => true,
        };
        if fits {
            return self.src(operand, ty);
        }
        self.bad(format!("{operand:?} is no operand of {} bits of this type", 8 * ty.bytes()))
    }

    /// The slot of a destination register of exactly a type's width.
    pub(super) fn exact_dst(&mut self, operand: &Operand, ty: Type) -> Result<Slot> {
        let (slot, bits) = self.dst(operand)?;
        if *operand == Operand::Sink || u64::from(bits) == 8 * ty.bytes() {
            return Ok(slot);
        }
        self.bad(format!("a register of {bits} bits is no destination of {} bits", 8 * ty.bytes()))
    }

    /// The slot of a source operand of a type.
    pub(super) fn src(&mut self, operand: &Operand, ty: Type) -> Result<Slot> {
        let mask = match ty.bytes() {
            8.. => u64::MAX,
            n => (1 << (8 * n)) - 1,
        };
        match operand {
            Operand::Integer(v) => {
                let v = match ty {
                    Type::F32 => u64::from((*v as i64 as f32).to_bits()),
                    Type::F64 => (*v as i64 as f64).to_bits(),
                    _ => *v & mask,
                };
                Ok(self.constant(v))
            }
            Operand::Float32(bits) if ty.bytes() == 8 => {
                Ok(self.constant(f64::from(f32::from_bits(*bits)).to_bits()))
            }
            Operand::Float32(bits) => Ok(self.constant((*bits).into())),
            Operand::Float64(bits) => {
                let x = f64::from_bits(*bits);
                let v = match ty.bytes() {
                    8 => *bits,
                    4 => u64::from((x as f32).to_bits()),
                    _ => half::from_f32(ty == Type::Bf16, x as f32).into(),
                };
                Ok(self.constant(v))
            }
            Operand::Name(name) => match self.names.find(name) {
                Some(Symbol::Reg { slot, .. }) => Ok(slot),
                _ => self.named(name, 0),
            },
            Operand::Offset(name, offset) => self.named(name, *offset),
            _ => self.bad("a source operand is missing"),
        }
    }

    /// A special register, or the address of a variable plus an offset.
    fn named(&mut self, name: &str, offset: i64) -> Result<Slot> {
        if offset == 0
            && let Some(special) = super::control::special(name)
        {
            let dst = self.names.temp();
            self.emit_free(Op::Special { dst, what: special })?;
            return Ok(dst);
        }
        if offset == 0 && name.starts_with('%') && self.find(name).is_err() {
            if super::control::is_special_name(name) {
                return Err(unsupported(self.line, format!("special register {name}")));
            }
            return self.bad(format!("`{name}` is not declared"));
        }
        let symbol = self.find(name)?;
        match symbol {
            Symbol::Reg { slot, .. } if offset == 0 => Ok(slot),
            Symbol::Shared(base) => Ok(self.constant(i64::from(base).wrapping_add(offset) as u64)),
            Symbol::Param(base) => Ok(self.constant(i64::from(base).wrapping_add(offset) as u64)),
            Symbol::Function(number) => {
                Ok(self.constant((window::CODE + u64::from(number) * 16).wrapping_add(offset as u64)))
            }
            Symbol::Global(index) => {
                let dst = self.names.temp();
                self.emit_free(Op::GlobalAddr { dst, index, offset })?;
                Ok(dst)
            }
            Symbol::Dynamic => {
                let dst = self.names.temp();
                self.emit_free(Op::DynamicShared { dst, offset })?;
                Ok(dst)
            }
            Symbol::Frame(base) => {
                let dst = self.names.temp();
                self.emit_free(Op::LocalAddr { dst, offset: i64::from(base).wrapping_add(offset) })?;
                Ok(dst)
            }
            _ => self.bad(format!("`{name}` is not a value")),
        }
    }

    /// An address operand. A variable named directly decides the space of a generic access.
    pub(super) fn address(&mut self, operand: &Operand, space: Space) -> Result<(Space, Addr)> {
        let Operand::Address { base, offset, more } = operand else {
            return self.bad("an address in brackets is missing");
        };
        if !more.is_empty() {
            return self.refuse();
        }
        let offset = *offset;
        let name = match &**base {
            Operand::Name(name) => name,
            Operand::Integer(v) => {
                let base = self.constant(*v);
                return Ok((space, Addr { base, offset, frame: false }));
            }
            _ => return self.bad("an address of another form is expected"),
        };
        let symbol = self.find(name)?;
        let zero = |s: &mut Self| s.constant(0);
        Ok(match symbol {
            Symbol::Reg { slot, .. } => {
                // The address of a function's parameter is one of its frame.
                let in_frame = space == Space::Param && self.function.kind == FunctionKind::Func;
                let space = if in_frame { Space::Local } else { space };
                (space, Addr { base: slot, offset, frame: false })
            }
            Symbol::Frame(at) => {
                let base = zero(self);
                (Space::Local, Addr { base, offset: offset.wrapping_add(at.into()), frame: true })
            }
            Symbol::Param(at) => {
                let base = zero(self);
                (Space::Param, Addr { base, offset: offset.wrapping_add(at.into()), frame: false })
            }
            Symbol::Shared(at) => {
                let base = zero(self);
                (Space::Shared, Addr { base, offset: offset.wrapping_add(at.into()), frame: false })
            }
            Symbol::Dynamic | Symbol::Global(_) => {
                let base = self.named(name, 0)?;
                let space = if matches!(symbol, Symbol::Dynamic) { Space::Shared } else { Space::Global };
                (space, Addr { base, offset, frame: false })
            }
            _ => return self.bad(format!("`{name}` has no address")),
        })
    }

    /// A new entry in the window cache.
    pub(super) fn cache(&mut self) -> u32 {
        self.image.cache_places.push(self.image.code.len() as u32);
        self.image.caches += 1;
        self.image.caches - 1
    }
}
