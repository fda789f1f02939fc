//! What owns host memory is no argument.
use simtile_core::LaunchArgs;

fn vector(values: &Vec<f32>) -> usize {
    LaunchArgs::new().arg(values).len() //~ E0277 KernelArgument
}

fn main() {}
