//! A builder is no operation: somebody has to vouch for the kernel first.
use simtile_async::{AsyncKernelLaunchBuilder, DeviceOp};

fn run(op: impl DeviceOp) {
    let _ = op.sync();
}

fn builder(builder: AsyncKernelLaunchBuilder<'_>) {
    run(builder); //~ E0277 DeviceOp
}

fn main() {}
