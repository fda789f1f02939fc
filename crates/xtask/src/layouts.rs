//! Compares the driver crate's types with NVIDIA's `cuda.h`.
//!
//! Writes a C program that asserts every size, alignment, field offset and constant at compile time, and
//! lets the C compiler judge it against the header. Nothing of the header enters the project.

use simtile_driver::sys;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// `layouts PATH/TO/cuda.h`
pub fn run(args: &[String]) -> Result<(), String> {
    let [header] = args else { return Err("pass the path of cuda.h".into()) };
    let header = Path::new(header).canonicalize().map_err(|e| format!("{header}: {e}"))?;
    let (program, checks) = program(&header);
    let folder = std::env::temp_dir().join(format!("simtile-layouts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let source = folder.join("layouts.c");
    std::fs::write(&source, program).map_err(|e| format!("{}: {e}", source.display()))?;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=c11", "-fsyntax-only", "-fmax-errors=0"])
        .arg(&source)
        .output()
        .map_err(|e| format!("{compiler}: {e}"));
    // The folder is of no more use whatever the compiler said.
    let _ = std::fs::remove_dir_all(&folder);
    let output = output?;
    if output.status.success() {
        println!("{checks} sizes, offsets and constants agree with {}", header.display());
        return Ok(());
    }
    Err(format!("differs from {}:\n{}", header.display(), String::from_utf8_lossy(&output.stderr)))
}

/// The C program and how many assertions it holds.
fn program(header: &Path) -> (String, usize) {
    let mut text = format!("#include <stddef.h>\n#include \"{}\"\n", header.display());
    let mut checks = 0;
    let mut check = |condition: String, label: &str| {
        checks += 1;
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "_Static_assert({condition}, \"{label}\");");
    };
    let names: HashMap<&str, ()> = sys::LAYOUTS.iter().map(|layout| (layout.name, ())).collect();
    for layout in sys::LAYOUTS {
        let place = place(layout.name, &names);
        // C cannot name an anonymous union; the size of the structure around it covers its size.
        if !place.anonymous {
            check(format!("sizeof({}) == {}", place.object(), layout.size), layout.name);
        }
        if place.path.is_empty() && !place.anonymous {
            check(format!("_Alignof({}) == {}", layout.name, layout.align), layout.name);
        }
        for (field, offset) in layout.fields {
            // Anonymous unions are named `u` here; their fields are checked with their own type.
            if *field == "u" {
                continue;
            }
            // These names are keywords in Rust. (`default_` is spelt so in the header.)
            let name = match *field {
                "type_" => "type",
                "fn_" => "fn",
                other => other,
            };
            // In C an anonymous union's fields belong to the structure around it, at the union's offset.
            let base = if place.path.is_empty() || place.anonymous {
                "0".to_owned()
            } else {
                format!("offsetof({}, {})", place.root, place.path.join("."))
            };
            let path = place.path.iter().copied().chain([name]).collect::<Vec<_>>().join(".");
            let offset = if place.anonymous { offset + place.anonymous_offset } else { *offset };
            check(
                format!("offsetof({}, {path}) - {base} == {offset}", place.root),
                &format!("{}.{name}", layout.name),
            );
        }
    }
    for (name, values) in sys::ENUMS {
        for (constant, value) in *values {
            check(format!("(long long){constant} == {value}LL"), &format!("{name}::{constant}"));
        }
    }
    (text, checks)
}

/// How C reaches a structure: itself, or a path from the structure that it is nested in.
struct Place<'a> {
    root: &'a str,
    path: Vec<&'a str>,
    /// An anonymous union: its fields are reached without naming it.
    anonymous: bool,
    anonymous_offset: usize,
}

impl Place<'_> {
    fn object(&self) -> String {
        if self.path.is_empty() {
            self.root.to_owned()
        } else {
            format!("(({} *)0)->{}", self.root, self.path.join("."))
        }
    }
}

/// Nested types are called `Outer_field` here: find the longest outer type and the path from it.
fn place<'a>(name: &'a str, names: &HashMap<&str, ()>) -> Place<'a> {
    let outer = name.match_indices('_').map(|(at, _)| &name[..at]).find(|outer| names.contains_key(outer));
    let Some(root) = outer else {
        return Place { root: name, path: Vec::new(), anonymous: false, anonymous_offset: 0 };
    };
    // `X_v2` is a type of its own, not a field `v2` of `X`.
    let rest = &name[root.len() + 1..];
    if rest.strip_prefix('v').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit())) {
        return Place { root: name, path: Vec::new(), anonymous: false, anonymous_offset: 0 };
    }
    let mut path: Vec<&str> = rest.split('_').collect();
    let anonymous = path.last() == Some(&"u");
    let mut anonymous_offset = 0;
    if anonymous {
        path.pop();
        let holder = name.strip_suffix("_u").unwrap_or(name);
        let union = sys::LAYOUTS.iter().find(|layout| layout.name == holder).into_iter();
        anonymous_offset = union.flat_map(|l| l.fields).find(|(f, _)| *f == "u").map_or(0, |(_, at)| *at);
        if !path.is_empty() {
            // The holder is itself nested: offsets are counted from the root.
            let outer = sys::LAYOUTS.iter().find(|layout| layout.name == root).into_iter();
            anonymous_offset +=
                outer.flat_map(|l| l.fields).find(|(f, _)| *f == path[0]).map_or(0, |(_, at)| *at);
        }
    }
    Place { root, path, anonymous, anonymous_offset }
}
