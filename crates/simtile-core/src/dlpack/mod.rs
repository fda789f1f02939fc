//! DLPack: how array libraries hand each other memory without copying.
//!
//! Here are the C structs ([`abi`]) and the checked reading of a foreign tensor's description ([`TensorLayout`]).

pub mod abi;
mod exchange;
mod layout;
#[cfg(test)]
mod tests;

pub use exchange::{Imported, export, import, import_unversioned};
pub use layout::{DlpackError, MAX_DIMENSIONS, TensorLayout, to_dl};
