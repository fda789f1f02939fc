//! What must not compile: builders that run, launches that change, borrows that end early, what cannot be sent. And what must.

#[path = "../../simtile-core/tests/common/refused.rs"]
mod refused;

#[test]
fn what_is_unsound_does_not_compile() {
    let libraries = ["simtile_async", "simtile_core", "simtile_types"];
    refused::check(env!("CARGO_MANIFEST_DIR"), "tests/compile_fail", &libraries);
}
