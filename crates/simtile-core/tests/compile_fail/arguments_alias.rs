//! One buffer is not given to a kernel to be read and to be written.
use simtile_core::{DeviceBuffer, LaunchArgs};

fn alias(buffer: &mut DeviceBuffer<f32>) -> usize {
    let args = LaunchArgs::new().arg(&*buffer).arg(&mut *buffer); //~ E0502
    args.len()
}

fn builder(stream: &std::sync::Arc<simtile_core::Stream>, buffer: &mut DeviceBuffer<f32>) {
    let _ = stream.submit().read(buffer).write(buffer).order_only(); //~ E0502
}

fn main() {}
