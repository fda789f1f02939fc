//! Which modifiers and types an opcode may have.
//!
//! `grammar.txt` lists them for arithmetic, bits, comparisons, conversions and moves. Whether what it allows is also
//! *built* is the decoder's business.

use simtile_image::ptx::Type;
use std::collections::HashSet;
use std::sync::OnceLock;

#[derive(Default)]
struct Grammar {
    opcodes: HashSet<String>,
    forms: HashSet<String>,
}

/// Whether PTX has this form; `None` if the grammar does not know the opcode.
pub(super) fn allows(opcode: &str, modifiers: &[String]) -> Option<bool> {
    static GRAMMAR: OnceLock<Grammar> = OnceLock::new();
    let grammar = GRAMMAR.get_or_init(read);
    let modifiers = modifiers.iter().map(String::as_str);
    grammar.opcodes.contains(opcode).then(|| grammar.forms.contains(&canonical(opcode, modifiers)))
}

fn read() -> Grammar {
    let mut grammar = Grammar::default();
    for line in include_str!("grammar.txt").lines().filter(|line| !line.starts_with('#')) {
        let (pattern, types) = line.split_once(';').unwrap_or((line, ""));
        for form in expand(pattern) {
            let forms: Vec<String> = match types {
                "" => vec![form],
                types => types.split_whitespace().map(|ty| form.replace(".T", &format!(".{ty}"))).collect(),
            };
            for form in forms {
                let mut words = form.split('.');
                let Some(opcode) = words.next() else { continue };
                grammar.forms.insert(canonical(opcode, words));
                grammar.opcodes.insert(opcode.to_owned());
            }
        }
    }
    grammar
}

/// All words that a pattern stands for: `{a|b|}` is one of its parts.
pub(super) fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let Some((parts, after)) = rest.split_once('}') else { return vec![pattern.to_owned()] };
    let tails = expand(after);
    parts.split('|').flat_map(|part| tails.iter().map(move |tail| format!("{before}{part}{tail}"))).collect()
}

/// A form whatever the order of its modifiers: those sorted, then the types as they stand.
fn canonical<'a>(opcode: &str, words: impl Iterator<Item = &'a str>) -> String {
    let (types, mut others): (Vec<&str>, Vec<&str>) = words.partition(|word| Type::from_name(word).is_some());
    others.sort_unstable();
    format!("{opcode}.{}:{}", others.join("."), types.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str) -> Option<bool> {
        let mut words = name.split('.').map(str::to_owned);
        let opcode = words.next().unwrap();
        allows(&opcode, &words.collect::<Vec<_>>())
    }

    #[test]
    fn forms_of_ptx_and_others() {
        for form in [
            "add.rz.ftz.sat.f32",
            "add.ftz.rz.f32",
            "max.NaN.xorsign.abs.bf16x2",
            "cvt.rn.f16.s8",
            "set.lt.and.f16.u64",
        ] {
            assert_eq!(ask(form), Some(true), "{form}");
        }
        for form in [
            "add.ftz.f64",
            "add.u8",
            "fma.f32",
            "mul.lo.f32",
            "cvt.f16.f32",
            "cvt.rn.f32.f16",
            "and.u32",
            "min.relu.u32",
        ] {
            assert_eq!(ask(form), Some(false), "{form}");
        }
        assert_eq!(ask("bra.uni"), None);
    }
}
