//! What must not compile: borrow rules of views and guards, casts, arguments, exports, ranked configurations.

#[path = "common/refused.rs"]
mod refused;

#[test]
fn what_is_unsound_does_not_compile() {
    refused::check(env!("CARGO_MANIFEST_DIR"), "tests/compile_fail", &["simtile_core", "simtile_types"]);
}
