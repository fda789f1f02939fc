//! What is read agrees with NVIDIA's disassembler.
//!
//! `artifacts/*/*.disassembly` are its listings of the committed bytecode, written by
//! `scripts/tile-disassembly.sh --write`. The same script compares the listings before and after a round trip, where
//! the tool is at hand.
#![cfg(feature = "tile")]

mod common;

use common::artifact;
use simtile_image::tile;
use std::collections::HashMap;

#[test]
fn listings_agree() {
    for (name, operations) in [
        ("tile_rs/rs_vadd_f32", 19),
        ("tile_rs/rs_gemm_f16", 34),
        ("tile_rs/rs_softmax_f32", 33),
        ("cutile_python/vadd_f32", 22),
        ("cutile_python/softmax_f32", 38),
    ] {
        let listing = String::from_utf8(artifact(&format!("{name}.disassembly"))).unwrap();
        let ours = tile::read(&artifact(&format!("{name}.tileirbc"))).unwrap().to_mlir_text();
        let (listing, ours) = (normal(&listing), normal(&ours));
        for (i, (theirs, ours)) in listing.iter().zip(&ours).enumerate() {
            assert_eq!(theirs, ours, "{name}, line {i}");
        }
        assert_eq!(listing.len(), ours.len(), "{name}");
        // The entry's own line comes on top.
        assert_eq!(ours.len(), operations + 1, "{name}");
    }
}

/// Lines with operations, with values numbered in order of appearance and numbers and braces written one way.
fn normal(text: &str) -> Vec<String> {
    let mut names = Names::default();
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line == "}" || line.starts_with("cuda_tile.module") {
            continue;
        }
        // Arguments of a block stand on a line of their own; one is in front of them in the listing's style, one in
        // the other.
        let line = line.trim_start_matches("^bb0").trim_end_matches(['{', ':', ' ']);
        let line = if let Some(rest) = line.strip_prefix("entry ") {
            let end = rest.find(')').expect("arguments");
            format!("entry {}", &rest[..=end])
        } else {
            line.to_owned()
        };
        // Results and block arguments are new even if the name was used in a region before.
        let new = if line.starts_with('(') { line.len() } else { line.find(" = ").unwrap_or(0) };
        let renamed = names.rename(&line[..new], true) + &names.rename(&line[new..], false);
        let words: Vec<_> = renamed.split_whitespace().map(number).collect();
        let line = words.join(" ").replace(" : f32]", "]");
        if line.starts_with('(') {
            lines.last_mut().expect("an operation").push_str(&line);
        } else {
            lines.push(line);
        }
    }
    lines
}

/// The number of each name.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, usize>,
    next: usize,
}

impl Names {
    fn number(&mut self, name: String, new: bool) -> String {
        if new || !self.numbers.contains_key(&name) {
            self.numbers.insert(name.clone(), self.next);
            self.next += 1;
        }
        format!("%{}", self.numbers[&name])
    }

    /// Replaces `%name`, and `%name:2` for two values `%name#0` and `%name#1`.
    fn rename(&mut self, line: &str, new: bool) -> String {
        let mut parts = line.split('%');
        let mut out = parts.next().unwrap_or("").to_owned();
        for part in parts {
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '#';
            let (name, rest) = part.split_at(part.find(|c| !is_name(c)).unwrap_or(part.len()));
            let count = rest.strip_prefix(':').and_then(|r| r.split(' ').next()?.parse::<usize>().ok());
            match count {
                Some(n) => {
                    let all: Vec<_> = (0..n).map(|i| self.number(format!("{name}#{i}"), new)).collect();
                    out.push_str(&all.join(", "));
                    out.push_str(rest.trim_start_matches(|c: char| c == ':' || c.is_ascii_digit()));
                }
                None => {
                    out.push_str(&self.number(name.to_owned(), new));
                    out.push_str(rest);
                }
            }
        }
        out
    }
}

/// Floats in one form.
fn number(word: &str) -> String {
    word.replace("0xFF800000", "-inf")
        .replace("0.000000e+00", "0.0")
        .replace("identities=[0]", "identities=[0.0]")
}
