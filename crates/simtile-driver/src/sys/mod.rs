//! Types, constants and structures of the driver API, under CUDA's own names.
//!
//! Nothing here needs a toolkit: numbers and layouts are committed, and
//! `cargo run -p xtask -- layouts HEADER` compares them with NVIDIA's `cuda.h`.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "names and meaning are the CUDA driver API's; its reference manual documents them"
)]

mod consts;
mod enums;
mod handles;
mod structs;

pub use consts::*;
pub use enums::*;
pub use handles::*;
pub use structs::*;
