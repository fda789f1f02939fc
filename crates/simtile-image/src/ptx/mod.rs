//! PTX text: lexer, syntax tree and signatures.
//!
//! [`Module::parse`] accepts any text and returns a tree in which every declaration and instruction knows
//! its line, or a [`PtxError`] that says where the text stops being PTX and what was expected there. The
//! tree is flat: `{` and `}` inside a body are statements, so nothing here recurses deeper than a
//! constant, and it holds no more than a constant factor of the text.
//!
//! Opcodes and their modifiers stay text here: which of them exist is the interpreter's business.

mod ast;
mod lexer;
mod parse;
mod signature;
#[cfg(test)]
mod tests;

pub use ast::{
    Cluster, Function, FunctionAttributes, FunctionKind, InitValue, Instruction, Linkage, Module, Operand,
    Pointer, Prototype, SourceFile, Space, Statement, Type, Variable,
};
pub use signature::{Param, Signature};

use std::fmt;

/// Where a text stops being PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Line, from 1.
    pub line: u32,
    /// What stands there (at most some forty characters).
    pub found: String,
    /// What was expected instead.
    pub expected: String,
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: found {}, expected {}", self.line, self.found, self.expected)
    }
}

impl std::error::Error for PtxError {}
