//! One kernel with as many operations as fit: what is read agrees with NVIDIA's disassembler, operation by operation.
//!
//! `examples/make_tile_wide.rs` writes the bytecode, `scripts/tile-disassembly.sh --write` the listing. Compared are
//! names, results, operands and the words that attributes are listed as.
#![cfg(feature = "tile")]

mod common;

use common::artifact;
use cutile_ir::bytecode::{BytecodeVersion, Opcode, write_bytecode_version};
use cutile_ir::ir::*;
use simtile_image::tile;
use std::collections::{BTreeSet, HashMap};

#[test]
fn every_operation_agrees() {
    let bytes = artifact("tile_wide/wide.tileirbc");
    let module = tile::read(&bytes).unwrap();
    assert!(write_bytecode_version(&module, BytecodeVersion::V13_4).unwrap() == bytes);

    let listing = String::from_utf8(artifact("tile_wide/wide.disassembly")).unwrap();
    let theirs = read_listing(&listing);
    let mut ours = Flow { module: &module, numbers: HashMap::new(), lines: Vec::new() };
    let entry = module.op(module.functions[0]);
    ours.region(entry.regions[0]);
    let kinds: BTreeSet<&str> = ours.lines.iter().map(|l| l.name.as_str()).collect();
    assert!(kinds.len() > 85, "{} kinds of operations", kinds.len());
    for (ours, (theirs, text)) in ours.lines.iter().zip(&theirs) {
        assert_eq!(
            (&ours.name, ours.results, &ours.operands),
            (&theirs.name, theirs.results, &theirs.operands),
            "{text}"
        );
        for word in &ours.words {
            assert!(text.contains(word.as_str()), "{word:?} is not in {text}");
        }
    }
    assert_eq!(ours.lines.len(), theirs.len());
}

/// An operation as far as it is compared.
#[derive(Debug, Default)]
struct Line {
    name: String,
    results: usize,
    /// By number: arguments first, then results and block arguments as they appear.
    operands: Vec<usize>,
    /// What its attributes look like in a listing.
    words: Vec<String>,
}

struct Flow<'m> {
    module: &'m Module,
    numbers: HashMap<Value, usize>,
    lines: Vec<Line>,
}

impl Flow<'_> {
    fn define(&mut self, value: Value) {
        let next = self.numbers.len();
        self.numbers.insert(value, next);
    }

    fn region(&mut self, id: RegionId) {
        for &block in &self.module.region(id).blocks {
            let block = self.module.block(block);
            block.args.iter().for_each(|(v, _)| self.define(*v));
            for &op in &block.ops {
                self.op(op);
            }
        }
    }

    fn op(&mut self, id: OpId) {
        let op = self.module.op(id);
        // The listing leaves out a `yield` of nothing.
        if op.opcode != Opcode::Yield || !op.operands.is_empty() {
            self.lines.push(Line {
                name: if op.opcode == Opcode::Pow { "fpowf".into() } else { op.opcode.name().into() },
                results: op.result_types.len(),
                operands: op.operands.iter().map(|v| self.numbers[v]).collect(),
                words: op.attributes.iter().flat_map(|(name, value)| words(op.opcode, name, value)).collect(),
            });
        }
        let results: Vec<Value> = self
            .module
            .values_since(0)
            .filter(|(_, d)| matches!(d.producer, ValueProducer::OpResult { op, .. } if op == id))
            .map(|(v, _)| v)
            .collect();
        results.into_iter().for_each(|v| self.define(v));
        op.regions.iter().for_each(|&r| self.region(r));
    }
}

/// How an attribute is listed; nothing for defaults that are not.
fn words(opcode: Opcode, name: &str, value: &Attribute) -> Vec<String> {
    let number = if let Attribute::Integer(v, _) = value { *v as usize } else { usize::MAX };
    let word = match name {
        "overflow" => {
            ["", "overflow<no_signed_wrap>", "overflow<no_unsigned_wrap>", "overflow<no_wrap>"][number]
        }
        "signedness" | "signedness_lhs" | "signedness_rhs" => [" unsigned", " signed"][number],
        // Nearest-even, full and nearest-int-to-zero are the defaults where they stand.
        "rounding_mode" | "rounding" => {
            let all = ["", "zero", "negative_inf", "positive_inf", "approx", "", ""];
            return match all[number] {
                "" => vec![],
                word => vec![format!("rounding<{word}>")],
            };
        }
        "comparison_predicate" => {
            ["equal", "not_equal", "less_than", "less_than_or_equal", "greater_than", "greater_than_or_equal"]
                [number]
        }
        "comparison_ordering" => ["unordered", "ordered"][number],
        "memory_ordering_semantics" => [" weak ", " relaxed ", " acquire ", " release ", " acq_rel "][number],
        "memory_scope" => [" tl_blk ", " device ", " sys "][number],
        "mode" => ["and", "or", "xor", " add,", "addf", "max", "min", "umax", "umin", "xchg"][number],
        "flush_to_zero" | "propagate_nan" | "saturating" => name,
        "dim" if opcode == Opcode::Cat => return vec![format!("dim = {number}")],
        "dim" => return vec![format!("dim={number}")],
        "reverse" => "reverse=true",
        "num_elem" | "alignment" => return vec![format!("{name} = {number}")],
        "inbounds" => "inbounds = [true, false]",
        _ => "",
    };
    vec![word.to_owned()]
}

/// The operations of a listing, each with its text.
fn read_listing(listing: &str) -> Vec<(Line, String)> {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut next = 0;
    let mut define = |numbers: &mut HashMap<String, usize>, name: &str| {
        // `%name:2` is `%name#0` and `%name#1`.
        let (base, count) = name.split_once(':').map_or((name, None), |(b, n)| (b, n.parse::<usize>().ok()));
        let names = match count {
            Some(n) => (0..n).map(|i| format!("{base}#{i}")).collect(),
            None => vec![base.to_owned()],
        };
        let many = names.len();
        for name in names {
            numbers.insert(name, next);
            next += 1;
        }
        many
    };
    let mut lines = Vec::new();
    for text in listing.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if text.starts_with("global ") || text.starts_with('}') {
            continue;
        }
        // Arguments of the entry, or of the region that begins here.
        if text.starts_with("entry ") || text.starts_with('(') {
            for name in names(text) {
                define(&mut numbers, name.trim_end_matches(':'));
            }
            continue;
        }
        let (left, right) = match text.split_once(" = ") {
            Some((left, right)) if left.starts_with('%') => (left, right),
            _ => ("", text),
        };
        // A string may hold anything.
        let quoted: String = right.split('"').step_by(2).collect();
        let name = quoted.split([' ', '{']).next().unwrap_or("").to_owned();
        let mut arguments = Vec::new();
        let mut operands = Vec::new();
        for (i, value) in names(&quoted).enumerate() {
            // What a loop defines: its index, and each carried value before its ` = `.
            let defined = (name == "for" && i == 0) || quoted.contains(&format!("{value} = %"));
            if defined && (name == "for" || name == "loop") {
                arguments.push(value);
            } else {
                operands.push(*numbers.get(value).unwrap_or_else(|| panic!("{value} in {text}")));
            }
        }
        let results = names(left).map(|n| define(&mut numbers, n)).sum();
        arguments.iter().for_each(|a| {
            define(&mut numbers, a);
        });
        lines.push((Line { name, results, operands, words: vec![] }, text.to_owned()));
    }
    lines
}

/// The `%names` in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('%').map(|(at, _)| {
        let rest = &text[at..];
        // `%cst_-1_i32` has a sign in it; `%a:2` a count.
        let end = rest[1..]
            .find(|c: char| !(c.is_alphanumeric() || "_#-:".contains(c)))
            .map_or(rest.len(), |n| n + 1);
        rest[..end].trim_end_matches(':')
    })
}
