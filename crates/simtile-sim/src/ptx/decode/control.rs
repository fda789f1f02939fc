//! Branches, calls, parameters, special registers.

use super::names::Symbol;
use super::{Decoder, Result, malformed, unsupported};
use crate::ptx::code::{
    Access, Actual, Addr, Call, Callee, LaneMask, NONE, Op, Passing, PredSrc, Space, Special,
};
use simtile_image::ptx::{FunctionKind, Instruction, Operand, Space as Declared, Type, Variable};

pub(super) fn special(name: &str) -> Option<Special> {
    let name = name.strip_prefix('%')?;
    if let Some((base, axis)) = name.rsplit_once('.') {
        let axis = match axis {
            "x" => 0,
            "y" => 1,
            "z" => 2,
            "w" => 3,
            _ => return None,
        };
        if axis == 3 {
            return matches!(base, "tid" | "ntid" | "ctaid" | "nctaid").then_some(Special::Zero);
        }
        return Some(match base {
            "tid" => Special::Tid(axis),
            "ntid" => Special::Ntid(axis),
            "ctaid" => Special::CtaId(axis),
            "nctaid" => Special::NctaId(axis),
            "clusterid" => Special::ClusterId(axis),
            "nclusterid" => Special::NclusterId(axis),
            "cluster_ctaid" => Special::ClusterCtaId(axis),
            "cluster_nctaid" => Special::ClusterNctaId(axis),
            _ => return None,
        });
    }
    if let Some(number) = name.strip_prefix("envreg") {
        return number.parse().ok().filter(|n| *n < 32).map(Special::EnvReg);
    }
    Some(match name {
        // Without a member: the first one.
        "tid" => Special::Tid(0),
        "ntid" => Special::Ntid(0),
        "ctaid" => Special::CtaId(0),
        "nctaid" => Special::NctaId(0),
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::NwarpId,
        "smid" => Special::SmId,
        "nsmid" => Special::NsmId,
        "gridid" => Special::GridId,
        "is_explicit_cluster" => Special::IsExplicitCluster,
        "cluster_ctarank" => Special::ClusterCtaRank,
        "cluster_nctarank" => Special::ClusterNctaRank,
        "lanemask_eq" => Special::LaneMask(LaneMask::Eq),
        "lanemask_le" => Special::LaneMask(LaneMask::Le),
        "lanemask_lt" => Special::LaneMask(LaneMask::Lt),
        "lanemask_ge" => Special::LaneMask(LaneMask::Ge),
        "lanemask_gt" => Special::LaneMask(LaneMask::Gt),
        "clock" => Special::Clock,
        "clock_hi" => Special::ClockHi,
        "clock64" => Special::Clock64,
        "globaltimer" => Special::GlobalTimer,
        "globaltimer_lo" => Special::GlobalTimerLo,
        "globaltimer_hi" => Special::GlobalTimerHi,
        "dynamic_smem_size" => Special::DynamicSmem,
        "total_smem_size" | "aggr_smem_size" => Special::TotalSmem,
        "reserved_smem_offset_begin" | "reserved_smem_offset_end" | "reserved_smem_offset_cap" => {
            Special::Zero
        }
        _ => return None,
    })
}

/// Names that PTX gives to special registers, also those that are not built.
pub(super) fn is_special_name(name: &str) -> bool {
    let base = name.trim_start_matches('%');
    special(name).is_some()
        || ["pm", "reserved_smem", "current_graph_exec", "envreg"].iter().any(|p| base.starts_with(p))
}

/// Offsets and sizes of parameters and of returns, and where they end.
type Layout = (Vec<(u32, u32)>, Vec<(u32, u32)>, u32);

/// Offsets of a function's parameters and returns in its frame, and where they end.
pub(super) fn formals(params: &[Variable], returns: &[Variable]) -> std::result::Result<Layout, String> {
    let mut end = 0u64;
    let mut lay = |variables: &[Variable]| -> std::result::Result<Vec<(u32, u32)>, String> {
        variables
            .iter()
            .map(|v| {
                let bytes = v.bytes().unwrap_or(u64::MAX);
                let offset = end.next_multiple_of(v.alignment().into());
                end = offset.saturating_add(bytes);
                if end > super::MOST_LOCAL {
                    return Err(format!("parameter `{}` is too large", v.name));
                }
                Ok((offset as u32, bytes as u32))
            })
            .collect()
    };
    let params = lay(params)?;
    let returns = lay(returns)?;
    Ok((params, returns, end.next_multiple_of(16) as u32))
}

/// See [`crate::ptx::code::Call::shape`].
pub(super) fn shape(function: &simtile_image::ptx::Function) -> std::result::Result<u32, String> {
    match function.kind {
        FunctionKind::Entry => Ok(u32::MAX),
        FunctionKind::Func => formals(&function.params, &function.returns).map(|(_, _, end)| end),
    }
}

impl Decoder<'_, '_> {
    /// Declares the parameters; loads the ones that are registers.
    pub(super) fn parameters(&mut self) -> Result<()> {
        let function = self.function;
        if function.kind == FunctionKind::Entry {
            for param in function.signature().params {
                self.names.set(&param.name, Symbol::Param(param.offset as u32));
            }
            return Ok(());
        }
        let layout = formals(&function.params, &function.returns);
        let (params, returns, end) = layout.map_err(|what| malformed(function.line, what))?;
        self.frame = end;
        let all = function.params.iter().zip(&params).map(|p| (p, true));
        let all = all.chain(function.returns.iter().zip(&returns).map(|r| (r, false)));
        for ((variable, &(offset, _)), is_param) in all {
            if variable.space != Declared::Reg {
                self.names.set(&variable.name, Symbol::Frame(offset));
                continue;
            }
            self.declare(variable)?;
            if is_param {
                let access = self.frame_access(variable, offset)?;
                self.move_formal(variable, access, true)?;
            }
        }
        Ok(())
    }

    /// Stores return values that are registers.
    pub(super) fn returns(&mut self) -> Result<()> {
        let function = self.function;
        if function.kind == FunctionKind::Entry || function.returns.iter().all(|r| r.space != Declared::Reg) {
            return Ok(());
        }
        let layout = formals(&function.params, &function.returns);
        let (_, returns, _) = layout.map_err(|what| malformed(function.line, what))?;
        for (variable, &(offset, _)) in function.returns.iter().zip(&returns) {
            if variable.space == Declared::Reg {
                let access = self.frame_access(variable, offset)?;
                self.move_formal(variable, access, false)?;
            }
        }
        Ok(())
    }

    fn frame_access(&mut self, variable: &Variable, offset: u32) -> Result<Access> {
        let base = self.constant(0);
        let cache = self.cache();
        if variable.vector > 1 || variable.ty == Type::B128 {
            return Err(unsupported(variable.line, "a vector register as parameter"));
        }
        Ok(Access {
            space: Space::Local,
            addr: Addr { base, offset: offset.into(), frame: true },
            width: variable.ty.bytes() as u8,
            sign_to: 0,
            regs: Box::new([]),
            cache,
            strong: false,
        })
    }

    fn move_formal(&mut self, variable: &Variable, mut access: Access, load: bool) -> Result<()> {
        match self.find(&variable.name)? {
            Symbol::Reg { slot, .. } => {
                access.regs = Box::new([slot]);
                let access = Box::new(access);
                self.emit(if load { Op::Load(access) } else { Op::Store(access) })?;
            }
            Symbol::Pred(p) => {
                let slot = self.names.temp();
                access.regs = Box::new([slot]);
                let (one, zero) = (self.constant(1), self.constant(0));
                if load {
                    self.emit(Op::Load(Box::new(access)))?;
                    self.emit_nonzero(slot, p)?;
                } else {
                    let p = PredSrc { slot: p, negated: false };
                    self.emit(Op::Select { dst: slot, a: one, b: zero, p })?;
                    self.emit(Op::Store(Box::new(access)))?;
                }
            }
            _ => return Err(unsupported(variable.line, "a parameter of this kind")),
        }
        Ok(())
    }

    /// `p = slot != 0`.
    pub(super) fn emit_nonzero(&mut self, slot: u32, p: u32) -> Result<()> {
        let zero = self.constant(0);
        let f = crate::ptx::lanes::test::compare(Type::U64, false);
        let m = crate::ptx::lanes::test::outcomes("ne", Type::U64);
        if let (Some(f), Some(mode)) = (f, m) {
            let src = [slot, zero, zero];
            let (logic, with) = (crate::ptx::code::Logic::First, PredSrc::TRUE);
            self.emit(Op::Test { f, mode, src, yes: p, no: NONE, logic, with })?;
        }
        Ok(())
    }

    pub(super) fn branch(&mut self, i: &Instruction) -> Result<()> {
        let [Operand::Name(label)] = &i.operands[..] else { return self.bad("a label is missing") };
        let Some(key) = self.names.label(label) else { return self.bad(format!("no label `{label}`")) };
        let at = self.emit(Op::Bra { target: 0 })?;
        self.fixups.push((at, 0, key));
        Ok(())
    }

    pub(super) fn branch_indexed(&mut self, i: &Instruction) -> Result<()> {
        let [index, Operand::Name(table)] = &i.operands[..] else {
            return self.bad("an index and a list of labels are expected");
        };
        let index = self.src(index, Type::U32)?;
        let Some(targets) = self.names.find_table(table).cloned() else {
            return self.bad(format!("no list `{table}`"));
        };
        let at = self.emit(Op::BrxIdx { index, targets: vec![0; targets.len()].into() })?;
        for (n, target) in targets.iter().enumerate() {
            let Some(key) = self.names.label(target) else { return self.bad(format!("no label `{target}`")) };
            self.fixups.push((at, n, key));
        }
        Ok(())
    }

    /// `call (ret), f, (args), prototype`.
    pub(super) fn call(&mut self, i: &Instruction) -> Result<()> {
        let mut rest = &i.operands[..];
        let returns: &[Operand] = match rest {
            [Operand::Group(group), tail @ ..] => {
                rest = tail;
                group
            }
            _ => &[],
        };
        let [Operand::Name(callee), tail @ ..] = rest else { return self.bad("a function is missing") };
        let (args, tail): (&[Operand], _) = match tail {
            [Operand::Group(group), tail @ ..] => (group, tail),
            _ => (&[], tail),
        };
        let module = self.scope.module;
        let symbol = self.find(callee)?;
        let (target, params, rets) = match symbol {
            Symbol::Function(number) => {
                let named = module
                    .functions
                    .iter()
                    .filter(|f| self.scope.functions.get(f.name.as_str()) == Some(&number));
                let Some(function) = named.max_by_key(|f| f.body.is_some()) else {
                    return self.bad(format!("no function `{callee}`"));
                };
                let target = match (&function.body, function.name.as_str()) {
                    (Some(_), _) if function.kind == FunctionKind::Entry => {
                        return Err(unsupported(self.line, format!("call of the entry `{callee}`")));
                    }
                    (Some(_), _) => Callee::Function(number),
                    // The system calls that CUDA documents for device code, and the function that the driver's
                    // linker supplies.
                    (None, "vprintf") => Callee::Printf,
                    (None, "__assertfail") => Callee::AssertFail,
                    (None, "cudaGraphSetConditional") => Callee::SetCondition,
                    (None, _) => {
                        return Err(unsupported(self.line, format!("call of `{callee}`, which has no body")));
                    }
                };
                (target, function.params.clone(), function.returns.clone())
            }
            Symbol::Reg { slot, .. } => {
                let Some(Operand::Name(types)) = tail.first() else {
                    return self.bad("an indirect call needs a prototype or a list of targets");
                };
                let found = self.names.find_prototype(types).map(|p| (p.params.clone(), p.returns.clone()));
                let Some((params, returns)) = found else {
                    return Err(unsupported(self.line, format!("indirect call through `{types}`")));
                };
                (Callee::Indirect(slot), params, returns)
            }
            _ => return self.bad(format!("`{callee}` is not a function")),
        };
        let layout = formals(&params, &rets);
        let (param_places, return_places, shape) = layout.map_err(|what| malformed(self.line, what))?;
        if args.len() != params.len() || returns.len() != rets.len() {
            return self.bad(format!(
                "`{callee}` takes {} arguments and returns {}, not {} and {}",
                params.len(),
                rets.len(),
                args.len(),
                returns.len()
            ));
        }
        let mut pass = |operands: &[Operand], formals: &[Variable], places: &[(u32, u32)]| {
            let all = operands.iter().zip(formals).zip(places);
            all.map(|((operand, formal), &(offset, bytes))| {
                let actual = match operand {
                    Operand::Sink => Actual::Sink,
                    Operand::Name(name) => match self.find(name)? {
                        Symbol::Frame(at) => Actual::Frame(at),
                        Symbol::Reg { slot, .. } => Actual::Reg(slot),
                        Symbol::Pred(slot) => Actual::Pred(slot),
                        _ => Actual::Reg(self.src(operand, formal.ty)?),
                    },
                    _ => Actual::Reg(self.src(operand, formal.ty)?),
                };
                if matches!(actual, Actual::Reg(_)) && bytes > 8 {
                    return self.bad(format!("parameter `{}` does not fit a register", formal.name));
                }
                Ok(Passing { actual, offset, bytes })
            })
            .collect::<Result<Box<[Passing]>>>()
        };
        let args = pass(args, &params, &param_places)?;
        let returns = pass(returns, &rets, &return_places)?;
        // A frame passed by the caller must lie inside the caller's frame.
        for p in args.iter().chain(&returns) {
            if let Actual::Frame(at) = p.actual
                && u64::from(at) + u64::from(p.bytes) > u64::from(self.frame)
            {
                return self.bad("an argument is smaller than its parameter");
            }
        }
        let call = Box::new(Call { callee: target, args, returns, shape });
        self.emit(Op::Call(call.clone()))?;
        if !call.returns.is_empty() && matches!(target, Callee::Function(_) | Callee::Indirect(_)) {
            self.emit(Op::AfterCall(call))?;
        }
        Ok(())
    }
}
