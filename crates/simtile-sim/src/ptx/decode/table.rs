//! `docs/ptx-ops.md` says which forms of PTX are built. The decoder itself is asked, form by form: this test writes
//! the table and compares.
//!
//! With `SIMTILE_UPDATE` set, the file is written instead.

use super::grammar::expand;
use super::isa::opcodes;
use crate::exec::{DeviceTraits, LoadFault};
use std::collections::BTreeSet;

const TRAITS: DeviceTraits =
    DeviceTraits { compute_capability: (9, 0), multiprocessors: 132, warp_size: 32, newest_ptx: (9, 0) };

/// A line of `forms.txt`.
struct Family {
    /// `{a|b|}` stands for one of its parts, `.T` for one of the types.
    pattern: String,
    /// Separated by blanks.
    types: String,
    /// See [`operand`].
    operands: String,
}

fn families() -> Vec<Family> {
    // Read at run time: trying another form needs no build.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ptx/decode/forms.txt");
    let text = std::fs::read_to_string(path).expect("a file beside this one");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut parts = line.split(';').map(|part| part.trim().to_owned());
            let mut next = || parts.next().unwrap_or_default();
            Family { pattern: next(), types: next(), operands: next() }
        })
        .collect()
}

fn bits(ty: &str) -> u32 {
    match ty {
        "pred" => 1,
        "u8" | "s8" | "b8" => 8,
        "u16" | "s16" | "b16" | "f16" | "bf16" => 16,
        "u64" | "s64" | "b64" | "f64" => 64,
        "b128" => 128,
        _ => 32,
    }
}

/// One operand: `t` a register of the type, `T` of twice its width, `h`, `w`, `l` of 16, 32, 64 bits, `p` and `q`
/// predicates, `v2` … vectors of the type and `h2`, `w2`, `l2` … of a width, `[]` an address; the rest as it is.
fn operand(word: &str, ty: &str, number: &mut u32) -> String {
    let mut register = |width: u32| {
        *number += 1;
        match width {
            1 => format!("%p{number}"),
            8 | 16 => format!("%h{number}"),
            32 => format!("%r{number}"),
            64 => format!("%d{number}"),
            _ => format!("%q{number}"),
        }
    };
    let width = |letter: &str| match letter {
        "t" | "v" => Some(bits(ty)),
        "T" => Some(2 * bits(ty)),
        "h" => Some(16),
        "w" => Some(32),
        "l" => Some(64),
        "p" => Some(1),
        _ => None,
    };
    if let Some((d, p)) = word.split_once('|') {
        return format!("{}|{}", operand(d, ty, number), operand(p, ty, number));
    }
    if word == "[]" {
        return "[%d0]".into();
    }
    let (letter, count) = word.split_at(1);
    match (width(letter), count.parse::<u32>()) {
        (Some(width), _) if count.is_empty() => register(width),
        (Some(width), Ok(n)) => {
            let all: Vec<String> = (0..n).map(|_| register(width)).collect();
            format!("{{{}}}", all.join(", "))
        }
        _ => word.to_owned(),
    }
}

fn text(form: &str, family: &Family, ty: &str) -> String {
    let mut number = 0;
    let operands: Vec<String> =
        family.operands.split_whitespace().map(|word| operand(word, ty, &mut number)).collect();
    // Registers of 128 bits are refused where they are declared.
    let wide = if operands.iter().any(|o| o.contains("%q")) { ".reg .b128 %q<8>;" } else { "" };
    format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n.global .b8 g[64];\n\
         .func f() {{ ret; }}\n.visible .entry k() {{\n.shared .align 16 .b8 s[64];\n.reg .pred %p<40>; .reg .b16 %h<40>; \
         .reg .b32 %r<40>; .reg .b64 %d<40>; {wide}\nmov.u64 %d0, g;\nLT: .branchtargets L;\nL: {form} {};\nret;\n}}",
        operands.join(", ")
    )
}

struct Row {
    pattern: String,
    types: String,
    built: usize,
    all: usize,
    refused: Vec<String>,
}

/// Asks for every form of a family. Forms that the decoder calls malformed are errors of the list.
fn row(family: &Family, wrong: &mut Vec<String>) -> Row {
    let mut row = Row {
        pattern: family.pattern.clone(),
        types: family.types.replace(' ', ", "),
        built: 0,
        all: 0,
        refused: Vec::new(),
    };
    for ty in family.types.split(' ') {
        for form in expand(&family.pattern) {
            let form = form.replace(".T", &format!(".{ty}"));
            row.all += 1;
            match super::image(&text(&form, family, ty), &TRAITS) {
                Ok(_) => row.built += 1,
                Err(LoadFault::Unsupported { what, .. })
                    if what.starts_with(opcode(&form)) || what.contains("128 bits") =>
                {
                    row.refused.push(form);
                }
                Err(fault) => wrong.push(format!("{form}: {fault}")),
            }
        }
    }
    row
}

fn opcode(pattern: &str) -> &str {
    &pattern[..pattern.find(['.', '{', ' ']).unwrap_or(pattern.len())]
}

fn table() -> String {
    let mut wrong = Vec::new();
    let rows: Vec<Row> = families().iter().map(|family| row(family, &mut wrong)).collect();
    assert!(wrong.is_empty(), "forms.txt has forms that are none:\n{}", wrong.join("\n"));
    let mut out = String::from(
        "# PTX instructions on the simulator\n\nWritten and compared by the test `ptx::decode::table`, which gives every form \
         to the decoder. `{a,b,}` is one of its parts or nothing, `.T` one of the types. What is not built is refused at load \
         with its name and line (`CUDA_ERROR_NOT_SUPPORTED`); a word that is no instruction of PTX is an error of the text \
         (`CUDA_ERROR_INVALID_PTX`).\n\n\
         | form | types | forms | built | refused |\n| --- | --- | --- | --- | --- |\n",
    );
    let (mut built, mut all) = (0, 0);
    for row in &rows {
        built += row.built;
        all += row.all;
        // A group that is refused as a whole needs no list.
        let refused = if row.built == 0 { "all".to_owned() } else { row.refused.join(", ") };
        out += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            row.pattern.replace('|', ","),
            row.types,
            row.all,
            row.built,
            if row.refused.is_empty() { "" } else { &refused }
        );
    }
    let listed: BTreeSet<&str> = rows.iter().map(|row| opcode(&row.pattern)).collect();
    let with: BTreeSet<&str> =
        rows.iter().filter(|row| row.built > 0).map(|row| opcode(&row.pattern)).collect();
    out + &format!(
        "\n{built} of {all} forms are built; {} of {} opcodes have one.\n",
        with.len(),
        listed.len()
    )
}

#[test]
fn every_opcode_is_in_the_table() {
    let families = families();
    let listed: BTreeSet<&str> = families.iter().map(|family| opcode(&family.pattern)).collect();
    let missing: Vec<_> = opcodes().iter().filter(|name| !listed.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unknown: Vec<_> = listed.iter().filter(|name| !super::isa::is_opcode(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn opcodes_are_sorted() {
    assert!(opcodes().is_sorted());
}

#[test]
fn the_table_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ptx-ops.md");
    let table = table();
    if std::env::var_os("SIMTILE_UPDATE").is_some() {
        std::fs::write(path, &table).expect("writable");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(committed, table, "run with SIMTILE_UPDATE=1 and commit docs/ptx-ops.md");
}
