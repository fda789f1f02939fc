//! Modules for the tests of the bytecode reader: making them and comparing them.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod dump;
pub mod generate;
