//! The committed artifacts.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../artifacts")
}

/// One file by its path under `artifacts`.
pub fn artifact(name: &str) -> Vec<u8> {
    let path = root().join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All images (by ending), with their paths under `artifacts`, in order.
pub fn images() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in ["ptx", "cubin", "fatbin", "tile_rs", "tile_wide", "cutile_python"] {
        for file in std::fs::read_dir(root().join(folder)).expect(folder) {
            let name = file.unwrap().file_name().into_string().unwrap();
            let ending = name.rsplit('.').next().unwrap_or("");
            if ["ptx", "cubin", "fatbin", "tileirbc"].contains(&ending) {
                let name = format!("{folder}/{name}");
                found.push((name.clone(), artifact(&name)));
            }
        }
    }
    found.sort();
    assert!(found.len() > 25, "artifacts are missing");
    found
}
