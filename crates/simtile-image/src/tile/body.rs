//! The function section: functions and the operations in them.

use super::attr::{self, Kind};
use super::cursor::Cursor;
use super::debug::{Debug, Ids};
use super::layout::{Part, layout};
use super::tables::Tables;
use super::types::newer;
use super::{LIMITS, TileError};
use cutile_ir::OpBuilder;
use cutile_ir::builder::{append_op, build_block, build_single_block_region};
use cutile_ir::bytecode::{BytecodeVersion, FunctionFlag, Opcode};
use cutile_ir::ir::{Attribute, Module, OpId, Region, RegionId, Type, Value};

/// Memory of one operation without what hangs on it.
const OP_COST: usize = size_of::<cutile_ir::ir::Operation>() + 16;

/// Reads the function section into `module`.
pub(super) fn read_functions(
    mut c: Cursor<'_>,
    tables: &Tables<'_>,
    debug: &Debug<'_>,
    module: &mut Module,
) -> Result<(), TileError> {
    let count = c.count("functions", 5)?;
    for _ in 0..count {
        read_function(&mut c, tables, debug, module)?;
    }
    // The section may be padded to a multiple of eight.
    if c.left() < 8 {
        c.padding(c.left())?;
    }
    c.finish("the functions")
}

fn read_function(
    c: &mut Cursor<'_>,
    tables: &Tables<'_>,
    debug: &Debug<'_>,
    module: &mut Module,
) -> Result<(), TileError> {
    const PRIVATE: u8 = FunctionFlag::VisibilityPrivate as u8;
    const KERNEL: u8 = FunctionFlag::KindKernel as u8;
    const HINTS: u8 = FunctionFlag::HasOptimizationHints as u8;

    let offset = c.offset();
    let name = tables.string(c, "function's name")?;
    let at = c.offset();
    let signature = tables.ty(c, "function's type", 4)?;
    let Type::Func(func) = &signature else {
        let what = format!("the type of function {name:?} is not a function type");
        return Err(TileError::Malformed { offset: at, what });
    };
    // The inputs once more each for the block, its values and here.
    let inputs = func.inputs.clone();
    tables.charge(OP_COST, at)?;

    let at = c.offset();
    let flags = c.byte("function's flags")?;
    if flags & !(PRIVATE | KERNEL | HINTS) != 0 {
        return Err(TileError::Value { offset: at, what: "set of function flags", value: flags.into() });
    }
    if flags & KERNEL == 0 {
        let what = format!("function {name:?} is not a kernel");
        return Err(TileError::Unsupported { offset, what });
    }
    if flags & PRIVATE != 0 {
        let what = format!("kernel {name:?} is private");
        return Err(TileError::Unsupported { offset, what });
    }
    let at = c.offset();
    let mut ids = debug.function(c.varint("function's debug information")?, at)?;
    let location = debug.next(&mut ids, tables)?;

    let mut entry = OpBuilder::new(Opcode::Entry, location)
        .attr("sym_name", Attribute::String(name))
        .attr("function_type", Attribute::Type(signature));
    let new = tables.version >= BytecodeVersion::V13_5;
    if new || flags & HINTS != 0 {
        let at = c.offset();
        match attr::tagged(c, tables, 0)? {
            // The writer adds empty hints at 13.5.
            Attribute::OptimizationHints(hints) if new && hints.entries.is_empty() => {}
            hints @ Attribute::OptimizationHints(_) => entry = entry.attr("optimization_hints", hints),
            _ => {
                let what = "the optimization hints of a function are another attribute".into();
                return Err(TileError::Malformed { offset: at, what });
            }
        }
    }
    if new {
        let at = c.offset();
        match attr::tagged(c, tables, 0)? {
            Attribute::Array(items) if items.is_empty() => {}
            Attribute::Array(items)
                if items.len() == inputs.len()
                    && items.iter().all(|a| matches!(a, Attribute::Dictionary(_))) =>
            {
                // The writer takes dictionaries that are all empty for none.
                if items.iter().any(|a| !matches!(a, Attribute::Dictionary(d) if d.is_empty())) {
                    entry = entry.attr("arg_attrs", Attribute::Array(items));
                }
            }
            _ => {
                let what = "argument attributes are not one dictionary for each argument".into();
                return Err(TileError::Malformed { offset: at, what });
            }
        }
    }

    let length = c.length("function's body")?;
    let mut body = c.window(length, "function's body")?;
    let (region, block, values) = build_single_block_region(module, &inputs);
    let mut reader = Body { tables, debug, ids: &mut ids, module, values };
    while !body.is_empty() {
        let op = reader.op(&mut body, 0)?;
        append_op(reader.module, block, op);
    }
    ids.finish()?;
    let (op, _) = entry.region(region).build(module);
    module.functions.push(op);
    Ok(())
}

struct Body<'r, 'a> {
    tables: &'r Tables<'a>,
    debug: &'r Debug<'a>,
    ids: &'r mut Ids<'a>,
    module: &'r mut Module,
    /// Values by their number.
    values: Vec<Value>,
}

/// What of an operation was read so far.
#[derive(Default)]
struct Draft {
    results: Vec<Type>,
    operands: Vec<Value>,
    attributes: Vec<(&'static str, Attribute)>,
    regions: Vec<RegionId>,
    flags: u64,
    /// Sizes of the operand groups, for operations that have groups.
    groups: Vec<i64>,
    /// Where `inbounds` was, and its values, until its operands come.
    inbounds: Option<(usize, Vec<bool>)>,
}

impl Body<'_, '_> {
    fn op(&mut self, c: &mut Cursor<'_>, depth: usize) -> Result<OpId, TileError> {
        let offset = c.offset();
        let number = c.varint("opcode")?;
        let Some((opcode, parts)) = layout(number) else {
            return Err(TileError::Value { offset, what: "opcode", value: number });
        };
        if opcode.minimum_version() > self.tables.version {
            return Err(newer(offset, opcode.name(), opcode.minimum_version(), self.tables.version));
        }
        self.tables.charge(OP_COST, offset)?;
        // An operation's location comes before those of its regions.
        let location = self.debug.next(self.ids, self.tables)?;

        let mut draft = Draft::default();
        for part in parts {
            self.part(part, &mut draft, opcode, c, depth)?;
        }
        if !draft.groups.is_empty() {
            self.tables.charge(128 + 112 * draft.groups.len(), offset)?;
            let sizes = draft.groups.iter().map(|&n| Attribute::i32(n)).collect();
            draft.attributes.push(("operandSegmentSizes", Attribute::Array(sizes)));
        }
        let attributes = draft.attributes.into_iter().map(|(name, value)| (name.to_owned(), value));
        let (op, results) = OpBuilder::new(opcode, location)
            .operands(draft.operands)
            .results(draft.results)
            .attrs(attributes)
            .regions(draft.regions)
            .build(self.module);
        self.values.extend(results);
        Ok(op)
    }

    fn part(
        &mut self,
        part: &Part,
        draft: &mut Draft,
        opcode: Opcode,
        c: &mut Cursor<'_>,
        depth: usize,
    ) -> Result<(), TileError> {
        let offset = c.offset();
        let version = self.tables.version;
        let set = |draft: &Draft, bit: u32| draft.flags >> bit & 1 == 1;
        match *part {
            Part::Results(n) => self.results(n, draft, c)?,
            Part::ResultList => {
                let n = c.count("results", 1)?;
                self.results(n, draft, c)?;
            }
            Part::Flags(since, known) => {
                if version >= since {
                    draft.flags = flags(opcode, known, c)?;
                }
            }
            Part::FlagsGrown(before, from_13_5) => {
                let known = if version < BytecodeVersion::V13_5 { before } else { from_13_5 };
                draft.flags = flags(opcode, known, c)?;
            }
            Part::Attr(name, kind) => self.attribute(name, kind, draft, c)?,
            Part::AttrSince(since, name, kind) => {
                if version >= since {
                    self.attribute(name, kind, draft, c)?;
                }
            }
            Part::AttrIf(bit, name, kind) => {
                if set(draft, bit) {
                    self.attribute(name, kind, draft, c)?;
                }
            }
            Part::Unit(bit, name) => {
                if set(draft, bit) {
                    self.tables.charge(128, offset)?;
                    draft.attributes.push((name, Attribute::Bool(true)));
                }
            }
            Part::Operands(n) => self.operands(n, draft, c)?,
            Part::OperandIf(bit) => self.operands(usize::from(set(draft, bit)), draft, c)?,
            Part::OperandList => {
                let n = c.count("operands", 1)?;
                self.operands(n, draft, c)?;
            }
            Part::One => self.group(1, draft, c)?,
            Part::Many => {
                let n = c.count("operands of a group", 1)?;
                if let Some((at, inbounds)) = draft.inbounds.take()
                    && inbounds.len() != n
                {
                    let what = format!("inbounds has {} entries for {n} indices", inbounds.len());
                    return Err(TileError::Malformed { offset: at, what });
                }
                self.group(n, draft, c)?;
            }
            Part::OneIf(bit) => self.group(usize::from(set(draft, bit)), draft, c)?,
            Part::Inbounds(since) => {
                if version >= since {
                    self.inbounds(draft, c)?;
                }
            }
            Part::Regions => {
                let n = c.count("regions", 1)?;
                for _ in 0..n {
                    let region = self.region(c, depth + 1)?;
                    draft.regions.push(region);
                }
            }
            Part::Unsupported(what) => {
                return Err(TileError::Unsupported { offset, what: what.into() });
            }
        }
        Ok(())
    }

    fn results(&self, n: usize, draft: &mut Draft, c: &mut Cursor<'_>) -> Result<(), TileError> {
        for _ in 0..n {
            // One for the operation, one for the value, one for constant data of this type.
            draft.results.push(self.tables.value_type(c, "type of a result", 3)?);
        }
        Ok(())
    }

    fn operands(&self, n: usize, draft: &mut Draft, c: &mut Cursor<'_>) -> Result<(), TileError> {
        for _ in 0..n {
            let offset = c.offset();
            let index = c.varint("operand")?;
            let value = usize::try_from(index).ok().and_then(|i| self.values.get(i));
            let len = self.values.len();
            draft.operands.push(*value.ok_or(TileError::Index { offset, what: "operand", index, len })?);
        }
        Ok(())
    }

    fn group(&self, n: usize, draft: &mut Draft, c: &mut Cursor<'_>) -> Result<(), TileError> {
        draft.groups.push(n as i64);
        self.operands(n, draft, c)
    }

    fn attribute(
        &self,
        name: &'static str,
        kind: Kind,
        draft: &mut Draft,
        c: &mut Cursor<'_>,
    ) -> Result<(), TileError> {
        if let Some(value) = attr::inline(kind, name, draft.results.first(), c, self.tables)? {
            draft.attributes.push((name, value));
        }
        Ok(())
    }

    fn inbounds(&self, draft: &mut Draft, c: &mut Cursor<'_>) -> Result<(), TileError> {
        let offset = c.offset();
        let n = c.count("entries of inbounds", 1)?;
        let mut values = Vec::with_capacity(n);
        for _ in 0..n {
            let at = c.offset();
            values.push(match c.byte("inbounds")? {
                0 => false,
                1 => true,
                v => return Err(TileError::Value { offset: at, what: "inbounds", value: v.into() }),
            });
        }
        if values.contains(&true) {
            self.tables.charge(128 + 112 * n, offset)?;
            let value = Attribute::dense_bool_array(values.iter().copied());
            draft.attributes.push(("inbounds", value));
        }
        draft.inbounds = Some((offset, values));
        Ok(())
    }

    fn region(&mut self, c: &mut Cursor<'_>, depth: usize) -> Result<RegionId, TileError> {
        let offset = c.offset();
        if depth > LIMITS.nesting {
            return Err(TileError::Limit {
                offset,
                what: "levels of regions",
                value: depth as u64,
                limit: LIMITS.nesting as u64,
            });
        }
        self.tables.charge(64, offset)?;
        let n = c.count("blocks", 2)?;
        let mut blocks = Vec::with_capacity(n);
        for _ in 0..n {
            let outer = self.values.len();
            let offset = c.offset();
            let n = c.count("block arguments", 1)?;
            let mut types = Vec::new();
            for _ in 0..n {
                // One here, one for the block, one for the value.
                types.push(self.tables.value_type(c, "type of a block argument", 3)?);
            }
            self.tables.charge(96, offset)?;
            let (block, args) = build_block(self.module, &types);
            self.values.extend(args);
            let n = c.count("operations of a block", 1)?;
            for _ in 0..n {
                let op = self.op(c, depth)?;
                append_op(self.module, block, op);
            }
            // The block's numbers are given back.
            self.values.truncate(outer);
            blocks.push(block);
        }
        Ok(self.module.alloc_region(Region { blocks }))
    }
}

fn flags(opcode: Opcode, known: u64, c: &mut Cursor<'_>) -> Result<u64, TileError> {
    let offset = c.offset();
    let value = c.varint("flags")?;
    if value & !known != 0 {
        let what = format!("flags {value:#x} of {}; known are {known:#x}", opcode.name());
        return Err(TileError::Malformed { offset, what });
    }
    Ok(value)
}
