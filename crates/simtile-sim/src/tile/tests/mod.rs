//! Tests: a kernel builder, a machine to run kernels on, and one file for each family.

mod build;
mod machine;

mod artifacts;
