//! The committed bytecode files read, and come back as they were.
#![cfg(feature = "tile")]

use cutile_ir::bytecode::write_bytecode_version;
use simtile_image::tile;
use std::path::{Path, PathBuf};

fn artifact(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../artifacts").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn tile_rs_files_come_back_byte_for_byte() {
    for name in ["rs_vadd_f32", "rs_gemm_f16", "rs_softmax_f32"] {
        let bytes = artifact(&format!("tile_rs/{name}.tileirbc"));
        let version = tile::version(&bytes).unwrap();
        assert_eq!((version.major, version.minor, version.tag), (13, 3, 0), "{name}");
        let module = tile::read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        module.verify_dominance().unwrap();
        module.verify_bytecode_indices().unwrap();
        let again = write_bytecode_version(&module, version).unwrap();
        assert!(again == bytes, "{name}: other bytes after a round trip");
        // The text differs from the builder's in the module's name alone.
        let text = String::from_utf8(artifact(&format!("tile_rs/{name}.mlir"))).unwrap();
        let text = text.replacen(&format!("module @{name} "), "module @module ", 1);
        assert_eq!(module.to_mlir_text(), text, "{name}");
    }
}

/// These were written by another writer, with other tables and debug information: the first round trip settles on our
/// writer's tables, and from then on nothing changes.
#[test]
fn cutile_python_files_read() {
    for name in ["vadd_f32", "softmax_f32"] {
        let bytes = artifact(&format!("cutile_python/{name}.tileirbc"));
        let version = tile::version(&bytes).unwrap();
        assert_eq!((version.major, version.minor, version.tag), (13, 4, 0), "{name}");
        let module = tile::read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        module.verify_dominance().unwrap();
        module.verify_bytecode_indices().unwrap();
        let once = write_bytecode_version(&module, version).unwrap();
        let again = tile::read(&once).unwrap();
        assert!(write_bytecode_version(&again, version).unwrap() == once, "{name}");
    }
}
