//! Digests of results: a few bytes for each kernel instead of thousands.
//!
//! A line is the digest of a kernel's name and that of its outputs, in hexadecimal. Names are too long to be kept.

use super::record::Entry;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

/// FNV-1a.
fn digest<'b>(bytes: impl Iterator<Item = &'b u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// Bytes that count: padding of rows does not.
fn of(entry: &Entry) -> Option<u64> {
    let outputs = entry.result.as_ref().ok()?;
    let bytes = outputs.iter().flat_map(|output| {
        let elements = output.bytes.chunks(output.elem.bytes()).enumerate();
        elements.filter(|(index, _)| output.rows.holds(*index)).flat_map(|(_, bytes)| bytes)
    });
    Some(digest(bytes))
}

/// A line for each entry that ran and is wanted.
pub fn list(entries: &[Entry], wanted: impl Fn(&Entry) -> bool) -> String {
    let mut text = String::new();
    for entry in entries.iter().filter(|entry| wanted(entry)) {
        if let Some(value) = of(entry) {
            let _ = writeln!(text, "{:016x} {value:016x}", digest(entry.name.as_bytes().iter()));
        }
    }
    text
}

/// Holds results to the digests in a file.
pub fn check(path: &Path, entries: &[Entry]) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (same, unknown, others) = compare(&text, entries)?;
    for name in &others {
        println!("other than recorded: {name}");
    }
    println!("{same} results as recorded, {} other, {unknown} without a record", others.len());
    match (same, others.len()) {
        (0, 0) => Err("the two have no kernel in common".into()),
        (_, 0) => Ok(()),
        (_, n) => Err(format!("{n} results are other than recorded")),
    }
}

/// How many are as in the list, how many are not in it, and the names of those that are other.
fn compare<'e>(text: &str, entries: &'e [Entry]) -> Result<(usize, usize, Vec<&'e str>), String> {
    let hex = |word: Option<&str>| word.and_then(|word| u64::from_str_radix(word, 16).ok());
    let mut known = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (Some(name), Some(value)) = (hex(words.next()), hex(words.next())) else {
            return Err(format!("`{line}` is no pair of digests"));
        };
        known.insert(name, value);
    }
    let (mut same, mut unknown, mut others) = (0, 0, Vec::new());
    for entry in entries {
        match known.get(&digest(entry.name.as_bytes().iter())) {
            None => unknown += 1,
            Some(&value) if of(entry) == Some(value) => same += 1,
            Some(_) => others.push(entry.name.as_str()),
        }
    }
    Ok((same, unknown, others))
}

#[cfg(test)]
mod tests {
    use super::super::record::{Elem, Output, Rows, Tolerance};
    use super::*;

    #[test]
    fn what_changed_is_named() {
        let entry = |name: &str, bytes: &[u8]| {
            let rows = Rows { cols: 2, stride: 3 };
            let output = Output { elem: Elem::U8, tolerance: Tolerance::EXACT, rows, bytes: bytes.to_vec() };
            Entry { name: name.into(), result: Ok(vec![output]) }
        };
        let list = list(&[entry("a", &[1, 2, 3]), entry("b", &[4, 5, 6])], |_| true);
        // The third byte of a row is padding.
        let mut now = vec![entry("a", &[1, 2, 9]), entry("b", &[4, 7, 6]), entry("c", &[0])];
        assert_eq!(compare(&list, &now), Ok((1, 1, vec!["b"])));
        now[0].result = Err("refused".into());
        assert_eq!(compare(&list, &now), Ok((0, 1, vec!["a", "b"])));
        assert!(compare("no digest", &now).is_err());
    }
}
