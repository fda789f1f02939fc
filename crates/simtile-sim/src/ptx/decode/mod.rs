//! The syntax tree into decoded instructions.
//!
//! Names are resolved, modifiers checked and functions chosen here, once. An instruction or a modifier that
//! is not built is refused with its name and line; a malformed one says what is wrong with it.

mod arith;
mod clear;
mod control;
mod globals;
mod grammar;
mod insn;
mod isa;
mod memory;
mod modifiers;
mod names;
mod sync;
#[cfg(test)]
mod table;
mod tensor;

use super::code::{Func, Insn, Lanes, NONE, Op, PredSrc};
use crate::exec::{At, DeviceTraits, GlobalInfo, KernelInfo, KernelModel, LoadFault, ParamInfo};
use names::Names;
use simtile_image::ptx::{Function, FunctionKind, Linkage, Module, Prototype, Space, Statement, Variable};
use std::collections::{HashMap, HashSet};

/// Newest PTX of the simulated driver (CUDA 13.0).
const NEWEST: (u32, u32) = (9, 0);
/// Most bytes of a thread's local memory.
pub(super) const MOST_LOCAL: u64 = 512 << 10;
/// Most bytes of static shared memory.
const MOST_SHARED: u64 = 232_448;
/// Most registers of one function: the register file of a warp holds 256 bytes for each.
const MOST_REGS: u32 = 1 << 15;

type Result<T> = std::result::Result<T, LoadFault>;

/// A decoded module.
pub(super) struct Image {
    pub code: Vec<Insn>,
    pub funcs: Vec<Func>,
    /// Function number of each kernel.
    pub entries: Vec<u32>,
    pub kernels: Vec<KernelInfo>,
    pub globals: Vec<GlobalInfo>,
    /// Numbers of globals declared in bodies, by line and name.
    pub statics: HashMap<(u32, String), u32>,
    /// Source positions: file name index and line.
    pub positions: Vec<(u32, u32)>,
    pub files: Vec<String>,
    pub names: Vec<String>,
    /// Number of memory instructions.
    pub caches: u32,
    /// Where each of them is in the code, about: preparations of its operands stand before it.
    pub cache_places: Vec<u32>,
    /// Where kernels wait for the one before, and where they let the next one start.
    pub grid_waits: Vec<u32>,
    pub grid_triggers: Vec<u32>,
}

/// What module-scope names mean.
struct Scope<'m> {
    module: &'m Module,
    functions: HashMap<&'m str, u32>,
    globals: HashMap<&'m str, u32>,
    /// Module-scope shared variables: offsets.
    shared: HashMap<&'m str, u32>,
    dynamic: HashSet<&'m str>,
}

pub(super) fn image(text: &str, traits: &DeviceTraits) -> Result<Image> {
    let module = Module::parse(text)
        .map_err(|e| malformed(e.line, format!("found {}, expected {}", e.found, e.expected)))?;
    let architecture = check_target(&module, traits)?;
    let mut image = Image {
        code: Vec::new(),
        funcs: Vec::new(),
        entries: Vec::new(),
        kernels: Vec::new(),
        globals: Vec::new(),
        statics: HashMap::new(),
        positions: Vec::new(),
        files: Vec::new(),
        names: Vec::new(),
        // Number 0 is for system calls.
        caches: 1,
        cache_places: vec![0],
        grid_waits: Vec::new(),
        grid_triggers: Vec::new(),
    };
    let mut scope = Scope {
        module: &module,
        functions: HashMap::new(),
        globals: HashMap::new(),
        shared: HashMap::new(),
        dynamic: HashSet::new(),
    };
    // A declaration and its definition are one function.
    let mut bodies: Vec<&Function> = Vec::new();
    for function in &module.functions {
        let number = *scope.functions.entry(&function.name).or_insert_with(|| {
            bodies.push(function);
            bodies.len() as u32 - 1
        });
        if let Some(slot) = bodies.get_mut(number as usize)
            && slot.body.is_none()
        {
            *slot = function;
        }
    }
    for (alias, target) in &module.aliases {
        if let Some(&number) = scope.functions.get(target.as_str()) {
            scope.functions.insert(alias, number);
        }
    }
    let shared_end = place_shared(&module, &mut scope)?;
    globals::collect(&module, &mut scope, &mut image)?;
    image.funcs = bodies.iter().map(|_| Func::default()).collect();

    // Shared variables of functions that are not entries are shared by all entries that reach them.
    let mut own_base = vec![0u32; bodies.len()];
    let mut common = shared_end;
    for (number, function) in bodies.iter().enumerate() {
        if function.kind == FunctionKind::Func {
            own_base[number] = common;
            common = end_of_shared(function, common)?;
        }
    }
    let uses = reach(&bodies, &scope);
    for (number, function) in bodies.iter().enumerate() {
        if function.kind == FunctionKind::Entry && uses[number] {
            own_base[number] = common;
        }
    }
    let mut file_index = HashMap::new();
    for (number, function) in bodies.iter().enumerate() {
        let Some(body) = &function.body else { continue };
        let decoder =
            Decoder::new(&scope, &mut image, function, number as u32, own_base[number], &mut file_index);
        decoder.function(body)?;
    }
    for (number, function) in bodies.iter().enumerate() {
        if function.kind == FunctionKind::Entry && function.body.is_some() {
            let mut end = own_base[number];
            end = end_of_shared(function, end)?;
            let align = dynamic_alignment(&module, function);
            image.funcs[number].dynamic_shared = end.next_multiple_of(align);
            let info = kernel_info(function, &image.funcs[number], end, architecture)?;
            image.kernels.push(info);
            image.entries.push(number as u32);
        }
    }
    Ok(image)
}

fn malformed(line: u32, what: impl Into<String>) -> LoadFault {
    LoadFault::Malformed { at: At::Line(line.into()), what: what.into() }
}

fn unsupported(line: u32, what: impl Into<String>) -> LoadFault {
    LoadFault::Unsupported { at: At::Line(line.into()), what: what.into() }
}

/// Whether the device runs this module; the architecture it was written for.
fn check_target(module: &Module, traits: &DeviceTraits) -> Result<u32> {
    let newest = traits.newest_ptx.min(NEWEST);
    if module.version > newest {
        return Err(LoadFault::Version {
            found: format!("PTX {}.{}", module.version.0, module.version.1),
            supported: format!("PTX up to {}.{}", newest.0, newest.1),
        });
    }
    let (major, minor) = traits.compute_capability;
    let target = module.targets.first().map_or("", |t| t.as_str());
    let fault = || LoadFault::Target { found: target.to_owned(), device: format!("sm_{major}{minor}") };
    let digits = target.strip_prefix("sm_").ok_or_else(fault)?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let wanted: u32 = digits[..end].parse().map_err(|_| fault())?;
    let device = major * 10 + minor;
    let fits = match &digits[end..] {
        "" => wanted <= device,
        "a" => wanted == device,
        "f" => wanted / 10 == major && wanted <= device,
        _ => false,
    };
    if !fits {
        return Err(fault());
    }
    if module.address_size != 64 {
        return Err(unsupported(1, "32-bit addresses"));
    }
    Ok(wanted)
}

/// Offsets of module-scope shared variables; returns where they end.
fn place_shared<'m>(module: &'m Module, scope: &mut Scope<'m>) -> Result<u32> {
    let mut end = 0;
    for variable in module.variables.iter().filter(|v| v.space == Space::Shared) {
        if is_dynamic(variable) {
            scope.dynamic.insert(&variable.name);
        } else {
            let (offset, next) = place(variable, end, MOST_SHARED)?;
            scope.shared.insert(&variable.name, offset);
            end = next;
        }
    }
    Ok(end)
}

fn is_dynamic(variable: &Variable) -> bool {
    variable.linkage == Linkage::Extern || variable.bytes() == Some(0)
}

/// Offset of a variable from `end` on, and where it ends.
fn place(variable: &Variable, end: u32, limit: u64) -> Result<(u32, u32)> {
    let offset = u64::from(end).next_multiple_of(variable.alignment().into());
    let next = variable.bytes().and_then(|bytes| offset.checked_add(bytes)).filter(|&next| next <= limit);
    let Some(next) = next else {
        let what = format!("`{}`: more than {limit} bytes in its space", variable.name);
        return Err(malformed(variable.line, what));
    };
    Ok((offset as u32, next as u32))
}

fn body_variables(function: &Function) -> impl Iterator<Item = &Variable> {
    function.body.iter().flatten().filter_map(|statement| match statement {
        Statement::Variable(variable) => Some(variable),
        _ => None,
    })
}

fn end_of_shared(function: &Function, mut end: u32) -> Result<u32> {
    for variable in body_variables(function).filter(|v| v.space == Space::Shared && !is_dynamic(v)) {
        end = place(variable, end, MOST_SHARED)?.1;
    }
    Ok(end)
}

fn dynamic_alignment(module: &Module, function: &Function) -> u32 {
    let all = module.variables.iter().chain(body_variables(function));
    all.filter(|v| v.space == Space::Shared && is_dynamic(v)).map(|v| v.alignment()).fold(16, u32::max)
}

/// For each function: whether it reaches a module-scope shared variable, or a function that has shared
/// variables, or calls through a pointer.
fn reach(bodies: &[&Function], scope: &Scope<'_>) -> Vec<bool> {
    let mut uses = vec![false; bodies.len()];
    let mut calls: Vec<HashSet<u32>> = vec![HashSet::new(); bodies.len()];
    for (number, function) in bodies.iter().enumerate() {
        uses[number] |= function.kind == FunctionKind::Func
            && body_variables(function).any(|v| v.space == Space::Shared && !is_dynamic(v));
        for statement in function.body.iter().flatten() {
            let Statement::Instruction(instruction) = statement else { continue };
            for operand in &instruction.operands {
                names::each_name(operand, &mut |name| {
                    uses[number] |= scope.shared.contains_key(name);
                    if let Some(&callee) = scope.functions.get(name) {
                        calls[number].insert(callee);
                    }
                });
            }
        }
    }
    // Propagate backwards along calls until nothing changes.
    let mut callers: Vec<Vec<usize>> = vec![Vec::new(); bodies.len()];
    for (caller, callees) in calls.iter().enumerate() {
        for &callee in callees {
            callers[callee as usize].push(caller);
        }
    }
    let mut work: Vec<usize> = (0..bodies.len()).filter(|&n| uses[n]).collect();
    while let Some(callee) = work.pop() {
        for &caller in &callers[callee] {
            if !uses[caller] {
                uses[caller] = true;
                work.push(caller);
            }
        }
    }
    uses
}

fn kernel_info(function: &Function, func: &Func, shared: u32, architecture: u32) -> Result<KernelInfo> {
    let signature = function.signature();
    let attributes = &signature.attributes;
    let product = |[x, y, z]: [u32; 3]| x.saturating_mul(y).saturating_mul(z);
    let required_block = attributes.required_block;
    let required_cluster = match attributes.cluster.blocks_are_clusters {
        true => return Err(unsupported(function.line, ".blocksareclusters")),
        false => attributes.cluster.required,
    };
    Ok(KernelInfo {
        name: function.name.clone(),
        model: KernelModel::Simt,
        params: signature
            .params
            .iter()
            .map(|p| ParamInfo { offset: p.offset as u32, bytes: p.bytes as u32 })
            .collect(),
        static_shared_bytes: shared,
        local_bytes: func.frame,
        // What a compiler would allocate is unknown. Virtual registers are many more than that, so the guess
        // stays at what lets the largest block run; a bound given in the text counts as it is.
        registers: attributes.max_registers.unwrap_or(func.regs.clamp(16, 64)).min(255),
        const_bytes: 0,
        virtual_architecture: Some(architecture),
        max_threads: attributes.max_threads.map(product),
        required_block,
        required_cluster,
    })
}

/// Where the address of a label lies: scope number and name.
type LabelKey = (u32, String);

/// Decodes one function.
struct Decoder<'a, 'm> {
    scope: &'a Scope<'m>,
    image: &'a mut Image,
    function: &'m Function,
    number: u32,
    names: Names,
    constants: Vec<Lanes>,
    constant_slots: HashMap<u64, u32>,
    frame: u32,
    shared_end: u32,
    labels: HashMap<LabelKey, u32>,
    fixups: Vec<(usize, usize, LabelKey)>,
    file_index: &'a mut HashMap<u32, u32>,
    // Of the instruction at hand.
    line: u32,
    position: u32,
    guard: PredSrc,
    name: u32,
}

impl<'a, 'm> Decoder<'a, 'm> {
    fn new(
        scope: &'a Scope<'m>,
        image: &'a mut Image,
        function: &'m Function,
        number: u32,
        shared_base: u32,
        file_index: &'a mut HashMap<u32, u32>,
    ) -> Self {
        Self {
            scope,
            image,
            function,
            number,
            names: Names::new(),
            constants: Vec::new(),
            constant_slots: HashMap::new(),
            frame: 0,
            shared_end: shared_base,
            labels: HashMap::new(),
            fixups: Vec::new(),
            file_index,
            line: function.line,
            position: NONE,
            guard: PredSrc::TRUE,
            name: 0,
        }
    }

    fn function(mut self, body: &'m [Statement]) -> Result<()> {
        let start = self.image.code.len() as u32;
        self.set_name(&self.function.name.clone());
        self.names.find_labels(body);
        self.parameters()?;
        for statement in body {
            self.statement(statement)?;
        }
        self.guard = PredSrc::TRUE;
        self.returns()?;
        self.emit(Op::Ret)?;
        self.resolve_labels()?;
        let shape = control::shape(self.function).map_err(|what| malformed(self.function.line, what))?;
        let clear = clear::needed(&self.image.code, start, self.names.regs);
        let func = &mut self.image.funcs[self.number as usize];
        (func.start, func.clear) = (start, clear);
        (func.regs, func.preds) = (self.names.regs, self.names.preds);
        func.constants = self.constants;
        func.frame = self.frame.next_multiple_of(16);
        func.shape = shape;
        func.defined = true;
        Ok(())
    }

    fn statement(&mut self, statement: &'m Statement) -> Result<()> {
        match statement {
            Statement::Open => self.names.open(),
            Statement::Close => self.names.close(),
            Statement::Label { name, line } => {
                let key = self.names.here(name);
                if self.labels.insert(key, self.image.code.len() as u32).is_some() {
                    return Err(malformed(*line, format!("a second label `{name}`")));
                }
            }
            Statement::Variable(variable) => self.declare(variable)?,
            Statement::Loc { file, line, .. } => {
                let files = &mut self.image.files;
                let module = self.scope.module;
                let index = *self.file_index.entry(*file).or_insert_with(|| {
                    let name = module.files.iter().find(|f| f.index == *file).map(|f| f.name.clone());
                    files.push(name.unwrap_or_else(|| format!("file {file}")));
                    files.len() as u32 - 1
                });
                self.position = self.image.positions.len() as u32;
                self.image.positions.push((index, *line));
            }
            Statement::BranchTargets { name, targets, .. } => self.names.table(name, targets),
            Statement::CallTargets { name, targets, line } => {
                // The first function gives the types of all.
                let Some(first) =
                    self.scope.module.functions.iter().find(|f| Some(&f.name) == targets.first())
                else {
                    return Err(malformed(*line, format!("no function for `{name}`")));
                };
                let prototype = Prototype { returns: first.returns.clone(), params: first.params.clone() };
                self.names.prototype(name, &prototype);
            }
            Statement::CallPrototype { name, prototype, .. } => self.names.prototype(name, prototype),
            Statement::Instruction(instruction) => {
                self.line = instruction.line;
                self.set_name(&instruction.name());
                self.guard = match &instruction.guard {
                    Some((negated, name)) => {
                        let slot = self.pred_slot(name)?;
                        PredSrc { slot, negated: *negated }
                    }
                    None => PredSrc::TRUE,
                };
                self.instruction(instruction)?;
            }
        }
        Ok(())
    }

    fn set_name(&mut self, name: &str) {
        // Neighbours often share a name; an exact table is not worth its cost.
        let found = self.image.names.iter().rev().take(64).position(|n| n == name);
        self.name = match found {
            Some(back) => (self.image.names.len() - 1 - back) as u32,
            None => {
                self.image.names.push(name.to_owned());
                self.image.names.len() as u32 - 1
            }
        };
    }

    fn emit(&mut self, op: Op) -> Result<usize> {
        if self.names.regs > MOST_REGS || self.image.code.len() >= 1 << 28 {
            return Err(malformed(self.line, format!("more than {MOST_REGS} registers in a function")));
        }
        self.image.code.push(Insn {
            op,
            guard: self.guard.slot,
            guard_negated: self.guard.negated,
            line: self.line,
            position: self.position,
            name: self.name,
        });
        Ok(self.image.code.len() - 1)
    }

    /// Emits an instruction that runs whatever the guard says: it only prepares an operand.
    fn emit_free(&mut self, op: Op) -> Result<()> {
        let guard = std::mem::replace(&mut self.guard, PredSrc::TRUE);
        let result = self.emit(op);
        self.guard = guard;
        result.map(drop)
    }

    /// The architecture that the module is written for, as 90 for `sm_90`.
    fn architecture(&self) -> u32 {
        let target = self.scope.module.targets.first().map_or("", |t| t.as_str());
        let digits = target.trim_start_matches("sm_").trim_end_matches(|c: char| !c.is_ascii_digit());
        digits.parse().unwrap_or(0)
    }

    fn bad<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(malformed(self.line, what))
    }

    /// Refuses the instruction at hand.
    fn refuse<T>(&self) -> Result<T> {
        let name = self.image.names.get(self.name as usize).cloned().unwrap_or_default();
        Err(unsupported(self.line, name))
    }

    fn resolve_labels(&mut self) -> Result<()> {
        for (at, index, key) in &self.fixups {
            let Some(&target) = self.labels.get(key) else {
                return Err(malformed(self.image.code[*at].line, format!("no label `{}`", key.1)));
            };
            match &mut self.image.code[*at].op {
                Op::Bra { target: slot } => *slot = target,
                Op::BrxIdx { targets, .. } => targets[*index] = target,
                _ => {}
            }
        }
        Ok(())
    }
}
