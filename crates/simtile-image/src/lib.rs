//! Checks and readers for kernel images.
//!
//! Pure functions over bytes: no driver, no device, nothing unsafe. No input can crash them.
//!
//! * [`check()`]: what an image of any format says about itself;
//! * [`ptx`]: lexer, module structure and signatures of PTX text;
//! * [`elf`], [`fatbin`]: bounds and entries of binary images;
//! * `tile` (feature): Tile IR bytecode into `cutile_ir::ir::Module`.
//!
//! The feature `decompress` reads compressed images in fat binaries; without it they are listed only.
#![forbid(unsafe_code)]

mod bytes;
mod check;
pub mod elf;
mod error;
pub mod fatbin;
mod info;
pub mod ptx;
#[cfg(feature = "tile")]
pub mod tile;

pub use bytes::{FormatError, Problem};
pub use check::{check, ptx_text};
pub use error::ImageError;
pub use info::{EntryInfo, Globals, ImageInfo, ImageKind, MemberInfo, Param, Target};
