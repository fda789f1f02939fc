//! A type of its own says that it holds no pending host data, and is told how.
use simtile_async::{DeviceOp, Plain, value};

struct Model;

fn output() {
    let _ = value(1).map(|_: i32| Model); //~ E0277 `Model` cannot be the output of an operation
}

fn wrapped() {
    let _ = value(1).map(|_: i32| Plain(Model));
}

fn main() {}
