//! Everything that bytecode holds of a module, as text that does not depend on arena order or attribute order.

use cutile_ir::ir::*;
use std::collections::HashMap;
use std::fmt::Write;

pub fn dump(module: &Module) -> String {
    let mut d = Dump { module, numbers: HashMap::new(), out: String::new() };
    writeln!(d.out, "producer {:?}", module.producer).unwrap();
    for g in &module.globals {
        writeln!(d.out, "{g:?}").unwrap();
    }
    for &f in &module.functions {
        d.op(f, 0);
    }
    d.out
}

struct Dump<'m> {
    module: &'m Module,
    numbers: HashMap<Value, usize>,
    out: String,
}

impl Dump<'_> {
    fn define(&mut self, value: Value, ty: &Type) -> String {
        assert_eq!(self.module.value_type(value), ty);
        let n = self.numbers.len();
        assert!(self.numbers.insert(value, n).is_none(), "a value is defined twice");
        format!("%{n}: {ty:?}")
    }

    fn op(&mut self, id: OpId, depth: usize) {
        let op = self.module.op(id);
        let mut attributes: Vec<_> = op.attributes.iter().map(|(k, v)| format!("{k} = {}", top(v))).collect();
        attributes.sort();
        let operands: Vec<_> = op.operands.iter().map(|v| format!("%{}", self.numbers[v])).collect();
        writeln!(
            self.out,
            "{:depth$}{:?} {operands:?} {{{}}} at {:?}",
            "",
            op.opcode,
            attributes.join(", "),
            op.location
        )
        .unwrap();
        for &region in &op.regions {
            writeln!(self.out, "{:depth$}region", "").unwrap();
            for &block in &self.module.region(region).blocks {
                let block = self.module.block(block);
                let args: Vec<_> = block.args.iter().map(|(v, ty)| self.define(*v, ty)).collect();
                writeln!(self.out, "{:depth$}block {args:?}", "").unwrap();
                for &op in &block.ops {
                    self.op(op, depth + 2);
                }
            }
        }
        let results: Vec<Value> = self
            .module
            .values_since(0)
            .filter(|(_, d)| matches!(d.producer, ValueProducer::OpResult { op, .. } if op == id))
            .map(|(v, _)| v)
            .collect();
        assert_eq!(results.len(), op.result_types.len());
        for (v, ty) in results.into_iter().zip(&op.result_types) {
            let line = self.define(v, ty);
            writeln!(self.out, "{:depth$}-> {line}", "").unwrap();
        }
    }
}

/// Bytecode holds no type for the integers of operations.
fn top(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Integer(v, _) => v.to_string(),
        other => format!("{other:?}"),
    }
}
