//! Module-scope and static variables in global and constant memory.

use super::{Image, Result, Scope, body_variables, malformed, unsupported};
use crate::exec::GlobalInfo;
use crate::ptx::code::window;
use simtile_image::ptx::{InitValue, Module, Space, Type, Variable};

/// Most bytes of one initial value.
const MOST_INIT: u64 = 256 << 20;
/// Most bytes that the variables of a module in constant memory have together.
const MOST_CONSTANT: u64 = 64 << 10;

pub(super) fn collect<'m>(module: &'m Module, scope: &mut Scope<'m>, image: &mut Image) -> Result<()> {
    let of_functions =
        module.functions.iter().flat_map(|f| f.params.iter().chain(&f.returns).chain(body_variables(f)));
    let mut all = module.variables.iter().chain(of_functions);
    if let Some(variable) = all.find(|v| v.managed && v.space != Space::Global) {
        let text = format!("`.attribute(.managed)` of `{}`, which is not in `.global`", variable.name);
        return Err(malformed(variable.line, text));
    }
    let in_memory = |v: &&Variable| matches!(v.space, Space::Global | Space::Const);
    let mut all: Vec<&'m Variable> = Vec::new();
    for variable in module.variables.iter().filter(in_memory) {
        match scope.globals.get(variable.name.as_str()) {
            // A declaration beside a definition.
            Some(&at) => {
                if all[at as usize].init.is_empty() {
                    all[at as usize] = variable;
                }
            }
            None => {
                scope.globals.insert(&variable.name, all.len() as u32);
                all.push(variable);
            }
        }
    }
    // Statics of different functions may share a name: line and name tell them apart.
    for function in &module.functions {
        for variable in body_variables(function).filter(in_memory) {
            image.statics.insert((variable.line, variable.name.clone()), all.len() as u32);
            all.push(variable);
        }
    }
    let mut constant = 0u64;
    for variable in all {
        let info = info(variable, scope)?;
        if info.constant {
            constant = constant.next_multiple_of(info.align.max(1)).saturating_add(info.bytes);
            if constant > MOST_CONSTANT {
                let text = format!(
                    "with `{}` the variables in constant memory have {constant} bytes; at most {MOST_CONSTANT} are allowed",
                    variable.name
                );
                return Err(malformed(variable.line, text));
            }
        }
        image.globals.push(info);
    }
    Ok(())
}

fn info(variable: &Variable, scope: &Scope<'_>) -> Result<GlobalInfo> {
    let line = variable.line;
    let bytes = variable.bytes().unwrap_or(0);
    let width = variable.ty.bytes();
    let mut init = Vec::new();
    let mut relocations = Vec::new();
    for (index, value) in &variable.init {
        let offset = index.checked_mul(width).filter(|o| o + width <= bytes.min(MOST_INIT));
        let Some(offset) = offset else {
            return Err(malformed(line, format!("too many initial values for `{}`", variable.name)));
        };
        let bits = match (value, variable.ty) {
            (InitValue::Integer(v), Type::F32) => u64::from((*v as i64 as f32).to_bits()),
            (InitValue::Integer(v), Type::F64) => (*v as i64 as f64).to_bits(),
            (InitValue::Integer(v), _) => *v,
            (InitValue::Float32(bits), Type::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
            (InitValue::Float32(bits), _) => (*bits).into(),
            (InitValue::Float64(bits), Type::F32) => u64::from((f64::from_bits(*bits) as f32).to_bits()),
            (InitValue::Float64(bits), Type::F16 | Type::Bf16) => {
                let x = f64::from_bits(*bits) as f32;
                u64::from(crate::ptx::lanes::half::from_f32(variable.ty == Type::Bf16, x))
            }
            (InitValue::Float64(bits), _) => *bits,
            (InitValue::Symbol { name, offset: addend, mask, .. }, _) => {
                if mask.is_some() || width != 8 {
                    return Err(unsupported(
                        line,
                        format!("part of the address of `{name}` as an initial value"),
                    ));
                }
                if let Some(&global) = scope.globals.get(name.as_str()) {
                    relocations.push((offset, global as usize, *addend));
                    0
                } else if let Some(&function) = scope.functions.get(name.as_str()) {
                    (window::CODE + u64::from(function) * 16).wrapping_add(*addend as u64)
                } else {
                    return Err(malformed(line, format!("no variable or function `{name}`")));
                }
            }
        };
        let end = (offset + width) as usize;
        if init.len() < end {
            init.resize(end, 0);
        }
        let value = bits.to_le_bytes();
        let n = width.min(8) as usize;
        init[offset as usize..offset as usize + n].copy_from_slice(&value[..n]);
    }
    Ok(GlobalInfo {
        name: variable.name.clone(),
        bytes,
        align: variable.alignment().into(),
        init,
        relocations,
        constant: variable.space == Space::Const,
        managed: variable.managed,
    })
}
