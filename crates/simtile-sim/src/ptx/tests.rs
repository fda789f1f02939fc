//! Instruction families.
