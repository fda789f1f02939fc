//! What is no plain value is no argument.
use simtile_async::AsyncKernelLaunchBuilder;

fn text(builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = builder.arg(String::new()); //~ E0277 DeviceCopy
}

fn vector(builder: &mut AsyncKernelLaunchBuilder<'_>) {
    builder.push_arg(vec![1.0f32]); //~ E0277 DeviceCopy
}

fn reference(builder: AsyncKernelLaunchBuilder<'_>, value: &f32) {
    let _ = builder.arg(value); //~ E0277 DeviceCopy
}

fn boxed(builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = builder.boxed(Box::new(String::new())); //~ E0277 DeviceCopy
}

fn main() {}
