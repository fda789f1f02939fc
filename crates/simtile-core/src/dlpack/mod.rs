//! DLPack: how array libraries hand each other memory without copying.
//!
//! Here are the C structs ([`abi`]) and the checked reading of a foreign tensor's description ([`TensorLayout`]).

pub mod abi;
mod layout;
#[cfg(test)]
mod tests;

pub use layout::{DlpackError, MAX_DIMENSIONS, TensorLayout, to_dl};
