//! Checks and readers for kernel images.
//!
//! Pure functions over bytes: no driver, no device, nothing unsafe. No input can crash them.
//!
//! * `ptx`: lexer, module structure and signatures of PTX text;
//! * `elf`, `fatbin`: bounds and entries of binary images;
//! * `tile` (feature): Tile IR bytecode into `cutile_ir::ir::Module`.
#![forbid(unsafe_code)]

pub mod ptx;
#[cfg(feature = "tile")]
pub mod tile;
