//! From a `cutile_ir` module to decoded kernels: checks everything, numbers the values, finds last uses.
//!
//! `cutile_ir` has no type verifier, and a module may come from anyone. What this file and [`super::lower_ops`] accept, the
//! interpreter runs without a panic and in bounded memory. An operation is named in errors by its name and its number: its
//! position in the entry, counted through nested regions.

use super::attrs;
use super::call::TileFunctions;
use super::op::{Code, Inst, Kernel, Op, OpSite, Use};
use super::types::{Elem, TileTy, Ty, convert};
use crate::exec::{At, GlobalInfo, KernelInfo, KernelModel, LoadFault, MissingFunction, ParamInfo};
use cutile_ir::bytecode::Opcode;
use cutile_ir::ir::{
    Attribute, BlockId, Location, Module, OpId, Operation, RegionId, Type, Value, ValueProducer,
};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Deepest nesting of regions.
const MAX_DEPTH: u32 = 64;
/// Most operations of one entry.
const MAX_OPERATIONS: u32 = 1 << 20;
/// Most bytes that all tiles of one entry have together: an upper bound of what a running block holds.
const MAX_FRAME_BYTES: u64 = 2 << 30;
/// Most bytes that all constants of a module have together.
const MAX_CONSTANT_BYTES: u64 = 256 << 20;

/// What is wrong with an operation.
pub(super) struct Fail {
    pub(super) unsupported: bool,
    pub(super) what: String,
    /// Number of the operation, once known.
    at: Option<u32>,
}

impl From<String> for Fail {
    fn from(what: String) -> Self {
        Self { unsupported: false, what, at: None }
    }
}

impl From<&str> for Fail {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl Fail {
    pub(super) fn unsupported(what: impl Into<String>) -> Self {
        Self { unsupported: true, what: what.into(), at: None }
    }

    fn at(mut self, number: u32, name: &str) -> Self {
        if self.at.is_none() {
            self.at = Some(number);
            self.what = format!("{name} (operation {number}): {}", self.what);
        }
        self
    }

    fn into_fault(self, entry: &str) -> LoadFault {
        let at = self.at.map_or(At::Module, |number| At::Operation(number.into()));
        let what = format!("entry {entry}: {}", self.what);
        if self.unsupported { LoadFault::Unsupported { at, what } } else { LoadFault::Malformed { at, what } }
    }
}

/// A value that is visible.
#[derive(Clone)]
pub(super) struct Def {
    slot: u32,
    pub(super) ty: Rc<Ty>,
}

/// What terminators inside a region refer to.
#[derive(Clone, Default)]
struct Scope {
    /// What `continue` carries, inside a loop.
    next: Option<Vec<Rc<Ty>>>,
    /// What `break` carries, inside a `loop`.
    end: Option<Vec<Rc<Ty>>>,
    /// What `yield` carries, inside an `if` or a reduction.
    result: Option<Vec<Rc<Ty>>>,
    /// Whether `return` may stand here.
    may_return: bool,
}

/// The terminator that a block has if it has none.
#[derive(Clone, Copy)]
enum Implicit {
    Yield,
    Continue,
    Return,
}

/// A decoded module.
pub(super) struct Lowered {
    pub(super) kernels: Vec<Kernel>,
    pub(super) infos: Vec<KernelInfo>,
    pub(super) globals: Vec<GlobalInfo>,
}

/// Decodes a module.
pub(super) fn lower(module: &Module, functions: &TileFunctions) -> Result<Lowered, LoadFault> {
    let malformed = |what: String| LoadFault::Malformed { at: At::Module, what };
    let mut globals = Vec::new();
    let mut constants = 0;
    let mut global_types = HashMap::new();
    for global in &module.globals {
        let fail = |what: String| malformed(format!("global {}: {what}", global.sym_name));
        let ty = match convert(&global.value.element_type) {
            Ok(Ty::Tile(ty)) => ty,
            Ok(_) => return Err(fail("its type is not a tile".into())),
            // The element type alone, with the shape beside it.
            Err(_) => match &global.value.element_type {
                Type::Scalar(s) => {
                    let shape = global.value.shape.iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect();
                    TileTy { shape, elem: Elem::Scalar(*s) }
                }
                other => return Err(fail(format!("its type is {other:?}"))),
            },
        };
        let elements = ty.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        if elements > super::types::MAX_TILE_ELEMENTS {
            return Err(fail(format!(
                "{elements} elements; the limit is {}",
                super::types::MAX_TILE_ELEMENTS
            )));
        }
        constants += (elements * ty.elem.bytes()) as u64;
        if constants > MAX_CONSTANT_BYTES {
            return Err(fail(format!("the globals have more than {MAX_CONSTANT_BYTES} bytes together")));
        }
        let data = attrs::dense(&global.value, &ty).map_err(fail)?;
        let align = global.alignment.max(ty.elem.bytes() as u64);
        if !align.is_power_of_two() || align > 1 << 32 {
            return Err(fail(format!("alignment {align} is not a power of two up to 2^32")));
        }
        if global_types.insert(global.sym_name.as_str(), (globals.len(), ty.elem)).is_some() {
            return Err(fail("the name is used twice".into()));
        }
        let init = match ty.elem.bits() {
            4 => super::nibbles::pack(data.bytes()),
            _ => data.bytes().to_vec(),
        };
        globals.push(GlobalInfo {
            name: global.sym_name.clone(),
            bytes: init.len() as u64,
            align,
            init,
            relocations: Vec::new(),
            constant: global.constant,
            managed: false,
        });
    }
    let mut results = HashMap::new();
    for (value, data) in module.values_since(0) {
        if let ValueProducer::OpResult { op, result_index } = data.producer {
            results.entry((op, result_index)).or_insert(value);
        }
    }
    let (mut kernels, mut infos) = (Vec::new(), Vec::new());
    let mut missing = Vec::new();
    let mut names = HashSet::new();
    for &entry in &module.functions {
        let op = module.op(entry);
        let name = attrs::text(op, "sym_name").map_err(malformed)?.to_owned();
        if !names.insert(name.clone()) {
            return Err(malformed(format!("two entries have the name {name}")));
        }
        let mut lower = Lower {
            module,
            results: &results,
            globals: &global_types,
            functions,
            missing: &mut missing,
            entry_name: &name,
            defs: HashMap::new(),
            slots: 0,
            windows: 0,
            window_sites: Vec::new(),
            sites: Vec::new(),
            bytes: 0,
            constants: &mut constants,
            depth: 0,
        };
        let (kernel, info) = lower.entry(op, &name).map_err(|fail| fail.into_fault(&name))?;
        kernels.push(kernel);
        infos.push(info);
    }
    // Last, so that what no registration could help is said first.
    if !missing.is_empty() {
        return Err(LoadFault::MissingFunctions { calls: missing });
    }
    Ok(Lowered { kernels, infos, globals })
}

/// The state of one entry's decoding.
pub(super) struct Lower<'m> {
    pub(super) module: &'m Module,
    results: &'m HashMap<(OpId, u32), Value>,
    pub(super) globals: &'m HashMap<&'m str, (usize, Elem)>,
    pub(super) functions: &'m TileFunctions,
    /// Calls of functions that are not registered, each function once.
    pub(super) missing: &'m mut Vec<MissingFunction>,
    pub(super) entry_name: &'m str,
    defs: HashMap<Value, Def>,
    slots: u32,
    pub(super) windows: u32,
    pub(super) window_sites: Vec<u32>,
    pub(super) sites: Vec<OpSite>,
    bytes: u64,
    /// Bytes of the module's constants so far.
    constants: &'m mut u64,
    depth: u32,
}

impl Lower<'_> {
    fn entry(&mut self, op: &Operation, name: &str) -> Result<(Kernel, KernelInfo), Fail> {
        if op.opcode != Opcode::Entry {
            return Err(format!("{} stands where an entry is expected", op.opcode.name()).into());
        }
        let Some(Attribute::Type(Type::Func(signature))) = attrs::find(op, "function_type") else {
            return Err("attribute function_type is missing or no function type".into());
        };
        if !signature.results.is_empty() {
            return Err("an entry has results".into());
        }
        let (mut params, mut layout, mut offset) = (Vec::new(), Vec::new(), 0u32);
        let mut types = Vec::new();
        for (i, input) in signature.inputs.iter().enumerate() {
            let elem = match convert(input)? {
                Ty::Tile(TileTy { shape, elem }) if shape.is_empty() => elem,
                other => return Err(format!("parameter {i} is {other:?}, not a scalar").into()),
            };
            if elem.bits() == 4 {
                return Err(Fail::unsupported(format!("parameter {i} of 4 bits")));
            }
            let bytes = elem.bytes() as u32;
            offset = offset.next_multiple_of(bytes);
            layout.push(ParamInfo { offset, bytes });
            offset += bytes;
            params.push(elem);
            types.push(Rc::new(Ty::Tile(TileTy { shape: Default::default(), elem })));
        }
        let scope = Scope { may_return: true, ..Scope::default() };
        let region = *one(&op.regions, "region")?;
        let body = self.region(region, Some(&types), &scope, Implicit::Return)?;
        let kernel = Kernel {
            name: name.to_owned(),
            body: body.0,
            slots: self.slots,
            windows: self.windows,
            window_sites: std::mem::take(&mut self.window_sites),
            sites: std::mem::take(&mut self.sites),
            params,
            bytes: self.bytes,
        };
        let info = KernelInfo {
            name: name.to_owned(),
            model: KernelModel::Tile,
            params: layout,
            static_shared_bytes: 0,
            local_bytes: 0,
            registers: 128,
            const_bytes: 0,
            virtual_architecture: None,
            max_threads: None,
            required_block: Some([1, 1, 1]),
            required_cluster: None,
        };
        Ok((kernel, info))
    }

    fn define(&mut self, value: Value, ty: Rc<Ty>) -> u32 {
        let slot = self.slots;
        self.slots += 1;
        self.defs.insert(value, Def { slot, ty });
        slot
    }

    fn account(&mut self, ty: &Ty) -> Result<(), Fail> {
        self.bytes += bytes_of(ty);
        if self.bytes > MAX_FRAME_BYTES {
            return Err(Fail::unsupported(format!(
                "the tiles of the entry have more than {MAX_FRAME_BYTES} bytes together"
            )));
        }
        Ok(())
    }

    /// A region: one block. Gives the code and the slots it uses.
    fn region(
        &mut self,
        region: RegionId,
        args: Option<&[Rc<Ty>]>,
        scope: &Scope,
        implicit: Implicit,
    ) -> Result<(Code, HashSet<u32>), Fail> {
        if self.depth == MAX_DEPTH {
            return Err(Fail::unsupported(format!("regions nested deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let block = *one(&self.module.region(region).blocks, "block")?;
        let code = self.block(block, args, scope, implicit);
        self.depth -= 1;
        code
    }

    fn block(
        &mut self,
        block: BlockId,
        args: Option<&[Rc<Ty>]>,
        scope: &Scope,
        implicit: Implicit,
    ) -> Result<(Code, HashSet<u32>), Fail> {
        let block = self.module.block(block);
        let mut code = Code::default();
        let mut defined = Vec::new();
        if args.is_some_and(|args| args.len() != block.args.len()) {
            return Err(format!(
                "a block with {} arguments; expected {}",
                block.args.len(),
                args.map_or(0, <[_]>::len)
            )
            .into());
        }
        for (i, (value, ty)) in block.args.iter().enumerate() {
            let ty = Rc::new(convert(ty)?);
            if let Some(expected) = args.map(|args| &args[i])
                && *expected != ty
            {
                return Err(format!("block argument {i} has type {ty:?}; expected {expected:?}").into());
            }
            self.check_value(*value, &ty)?;
            self.account(&ty)?;
            code.args.push(self.define(*value, ty));
            defined.push(*value);
        }
        // Slots used inside the nested regions of each instruction.
        let mut nested = Vec::new();
        let mut ended = false;
        for &op_id in &block.ops {
            let op = self.module.op(op_id);
            let number = self.sites.len() as u32;
            let name = op.opcode.name();
            let result = (|| {
                if ended {
                    return Err(Fail::from("stands behind the terminator of its block"));
                }
                if number == MAX_OPERATIONS {
                    return Err(Fail::unsupported(format!(
                        "more than {MAX_OPERATIONS} operations in an entry"
                    )));
                }
                self.sites.push(OpSite { name, number, source: source(&op.location, 0) });
                self.operation(op_id, number, scope, &mut defined)
            })();
            let (inst, used) = result.map_err(|fail| fail.at(number, name))?;
            ended = matches!(inst.op, Op::Yield | Op::Continue | Op::Break | Op::Return);
            code.insts.push(inst);
            nested.push(used);
        }
        if !ended {
            let op = match implicit {
                Implicit::Yield if scope.result.as_ref().is_some_and(|r| r.is_empty()) => Op::Yield,
                Implicit::Continue if scope.next.as_ref().is_some_and(|n| n.is_empty()) => Op::Continue,
                Implicit::Return => Op::Return,
                _ => return Err("a block without a terminator".into()),
            };
            let site = self.sites.len().saturating_sub(1) as u32;
            code.insts.push(Inst { op, operands: Vec::new(), results: Vec::new(), site, cost: 1 });
            nested.push(HashSet::new());
        }
        // Backwards: the first use met of a value of this block is its last one.
        let own: HashSet<u32> = defined.iter().filter_map(|v| Some(self.defs.get(v)?.slot)).collect();
        let mut used = HashSet::new();
        for (inst, inner) in code.insts.iter_mut().zip(&nested).rev() {
            used.extend(inner);
            for operand in inst.operands.iter_mut().rev() {
                operand.last = used.insert(operand.slot) && own.contains(&operand.slot);
            }
        }
        for value in &defined {
            self.defs.remove(value);
        }
        Ok((code, used))
    }

    /// The declared type of a value must be the one that the IR says elsewhere.
    fn check_value(&self, value: Value, ty: &Ty) -> Result<(), Fail> {
        if value.index() as usize >= self.module.num_values() {
            return Err("a value that the module does not have".into());
        }
        if self.defs.contains_key(&value) {
            return Err(format!("value %{} is defined twice", value.index()).into());
        }
        if convert(self.module.value_type(value))? != *ty {
            return Err(format!("value %{} has two types", value.index()).into());
        }
        Ok(())
    }

    fn operation(
        &mut self,
        op_id: OpId,
        number: u32,
        scope: &Scope,
        defined: &mut Vec<Value>,
    ) -> Result<(Inst, HashSet<u32>), Fail> {
        let op = self.module.op(op_id);
        let operands = op
            .operands
            .iter()
            .enumerate()
            .map(|(i, v)| self.defs.get(v).cloned().ok_or_else(|| format!("operand {i} is not defined here")))
            .collect::<Result<Vec<Def>, _>>()?;
        let results =
            op.result_types.iter().map(|ty| convert(ty).map(Rc::new)).collect::<Result<Vec<_>, _>>()?;
        for ty in &results {
            self.account(ty)?;
        }
        let regions = match op.opcode {
            Opcode::For | Opcode::Loop | Opcode::Reduce | Opcode::Scan => 1,
            Opcode::If => op.regions.len().clamp(1, 2),
            _ => 0,
        };
        if op.regions.len() != regions {
            return Err(format!("{} regions; expected {regions}", op.regions.len()).into());
        }
        if op.opcode == Opcode::Constant {
            *self.constants += results.iter().map(|ty| bytes_of(ty)).sum::<u64>();
            if *self.constants > MAX_CONSTANT_BYTES {
                return Err(Fail::unsupported(format!(
                    "the constants of the module have more than {MAX_CONSTANT_BYTES} bytes together"
                )));
            }
        }
        let types: Vec<Rc<Ty>> = operands.iter().map(|d| d.ty.clone()).collect();
        let mut uses: Vec<Use> = operands.iter().map(|d| Use { slot: d.slot, last: false }).collect();
        let mut used = HashSet::new();
        let decoded = match op.opcode {
            Opcode::If | Opcode::For | Opcode::Loop | Opcode::Reduce | Opcode::Scan => {
                self.structured(op, &types, &results, scope, &mut used)?
            }
            Opcode::Yield => terminator(Op::Yield, &types, scope.result.as_deref(), "yield")?,
            Opcode::Continue => terminator(Op::Continue, &types, scope.next.as_deref(), "continue")?,
            Opcode::Break => terminator(Op::Break, &types, scope.end.as_deref(), "break")?,
            Opcode::Return if scope.may_return => terminator(Op::Return, &types, Some(&[]), "return")?,
            Opcode::Return => return Err("return inside a reduction".into()),
            _ => self.plain(op, &types, &results)?,
        };
        if matches!(decoded, Op::Yield | Op::Continue | Op::Break | Op::Return) && !results.is_empty() {
            return Err("a terminator with results".into());
        }
        // Tokens carry no value: they order operations, and the order of the program is one of the allowed ones.
        if !matches!(
            decoded,
            Op::Yield | Op::Continue | Op::Break | Op::If { .. } | Op::For { .. } | Op::Loop { .. }
        ) {
            let mut keep = types.iter().map(|ty| **ty != Ty::Token);
            uses.retain(|_| keep.next().unwrap_or(true));
        }
        let cost = cost(&decoded, types.iter().chain(&results));
        let mut slots = Vec::with_capacity(results.len());
        for (i, ty) in results.into_iter().enumerate() {
            let value = *self
                .results
                .get(&(op_id, i as u32))
                .ok_or_else(|| format!("result {i} has no value in the module"))?;
            self.check_value(value, &ty)?;
            slots.push(self.define(value, ty));
            defined.push(value);
        }
        Ok((Inst { op: decoded, operands: uses, results: slots, site: number, cost }, used))
    }

    fn structured(
        &mut self,
        op: &Operation,
        operands: &[Rc<Ty>],
        results: &[Rc<Ty>],
        scope: &Scope,
        used: &mut HashSet<u32>,
    ) -> Result<Op, Fail> {
        let mut nested = |this: &mut Self, region: usize, args: &[Rc<Ty>], scope: &Scope, implicit| {
            let (code, slots) = this.region(op.regions[region], Some(args), scope, implicit)?;
            used.extend(slots);
            Ok::<_, Fail>(Box::new(code))
        };
        match op.opcode {
            Opcode::If => {
                if operands.len() != 1 || int_scalar(operands, 0)? != 1 {
                    return Err("the condition is not one i1".into());
                }
                let inner = Scope { result: Some(results.to_vec()), ..scope.clone() };
                let then = nested(self, 0, &[], &inner, Implicit::Yield)?;
                let otherwise = if op.regions.len() == 2 {
                    nested(self, 1, &[], &inner, Implicit::Yield)?
                } else if results.is_empty() {
                    let site = self.sites.len().saturating_sub(1) as u32;
                    let inst =
                        Inst { op: Op::Yield, operands: Vec::new(), results: Vec::new(), site, cost: 1 };
                    Box::new(Code { args: Vec::new(), insts: vec![inst] })
                } else {
                    return Err("results, but no else region".into());
                };
                Ok(Op::If { then, otherwise })
            }
            Opcode::For => {
                let bits = int_scalar(operands, 0)?;
                if operands.len() < 3 || operands[0] != operands[1] || operands[0] != operands[2] {
                    return Err("bounds and step are not three integers of one type".into());
                }
                if operands[3..] != *results {
                    return Err("initial values and results differ in type".into());
                }
                let mut args = vec![operands[0].clone()];
                args.extend_from_slice(results);
                let inner = Scope { next: Some(results.to_vec()), end: None, result: None, ..scope.clone() };
                let body = nested(self, 0, &args, &inner, Implicit::Continue)?;
                Ok(Op::For { bits, unsigned: attrs::flag(op, "unsigned_cmp"), body })
            }
            Opcode::Loop => {
                let inner = Scope {
                    next: Some(operands.to_vec()),
                    end: Some(results.to_vec()),
                    result: None,
                    ..scope.clone()
                };
                Ok(Op::Loop { body: nested(self, 0, operands, &inner, Implicit::Continue)? })
            }
            _ => {
                let tiles = super::lower_ops::reduction(op, operands, results)?;
                let scalars: Vec<Rc<Ty>> = tiles
                    .iter()
                    .map(|t| Rc::new(Ty::Tile(TileTy { shape: Default::default(), elem: t.elem })))
                    .collect();
                let args: Vec<Rc<Ty>> = scalars.iter().flat_map(|ty| [ty.clone(), ty.clone()]).collect();
                let inner = Scope { result: Some(scalars), ..Scope::default() };
                let body = nested(self, 0, &args, &inner, Implicit::Yield)?;
                let lanes = super::lower_ops::runs_on_lanes(&body);
                let (shape, dim) = (tiles[0].shape.clone(), attrs::need(op, "dim")? as usize);
                Ok(if op.opcode == Opcode::Reduce {
                    Op::Reduce { shape, dim, lanes, body }
                } else {
                    Op::Scan { shape, dim, reverse: attrs::flag(op, "reverse"), lanes, body }
                })
            }
        }
    }
}

/// Bytes of a value of a type.
fn bytes_of(ty: &Ty) -> u64 {
    match ty {
        Ty::Tile(tile) => (tile.count() * tile.elem.bytes()) as u64,
        _ => 0,
    }
}

/// Steps that an operation counts as.
fn cost<'a>(op: &Op, types: impl Iterator<Item = &'a Rc<Ty>>) -> u64 {
    let elements =
        types.map(|ty| if let Ty::Tile(tile) = &**ty { tile.count() as u64 } else { 1 }).max().unwrap_or(1);
    let work = match op {
        Op::MmaFloat { shape, .. } | Op::MmaScaled { shape, .. } | Op::MmaInt { shape, .. } => {
            // At least one product for every element; a batch repeats the shape.
            let one = (shape.m as u64).saturating_mul(shape.n as u64).saturating_mul(shape.k as u64);
            let matrix = (shape.m * shape.n).max(shape.m * shape.k).max(shape.k * shape.n) as u64;
            one.saturating_mul((elements / matrix).max(1))
        }
        _ => elements,
    };
    1 + work / (1 << 16)
}

fn terminator(op: Op, types: &[Rc<Ty>], expected: Option<&[Rc<Ty>]>, name: &str) -> Result<Op, Fail> {
    let Some(expected) = expected else {
        return Err(format!("{name} stands where it ends nothing").into());
    };
    if types == expected {
        Ok(op)
    } else {
        Err(format!("{name} carries {types:?}; expected {expected:?}").into())
    }
}

/// The bits of an operand that must be a scalar integer.
pub(super) fn int_scalar(operands: &[Rc<Ty>], i: usize) -> Result<u32, Fail> {
    match operands.get(i).map(|ty| &**ty) {
        Some(Ty::Tile(TileTy { shape, elem })) if shape.is_empty() && elem.int().is_some() => Ok(elem.bits()),
        Some(other) => Err(format!("operand {i} is {other:?}, not a scalar integer").into()),
        None => Err(format!("operand {i} is missing").into()),
    }
}

fn one<'a, T>(items: &'a [T], what: &str) -> Result<&'a T, Fail> {
    match items {
        [item] => Ok(item),
        _ => Err(format!("{} {what}s where one is expected", items.len()).into()),
    }
}

/// File and line of a location; of a call, where the callee stands.
fn source(location: &Location, depth: u32) -> Option<(String, u32)> {
    match location {
        Location::Unknown => None,
        Location::FileLineCol { filename, line, .. } => Some((filename.clone(), *line)),
        Location::DebugInfo(debug) => Some((debug.filename.clone(), debug.line)),
        Location::CallSite { .. } if depth == MAX_DEPTH => None,
        Location::CallSite { callee, caller } => {
            source(callee, depth + 1).or_else(|| source(caller, depth + 1))
        }
    }
}
