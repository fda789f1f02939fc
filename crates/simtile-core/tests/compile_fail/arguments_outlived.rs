//! Arguments borrow their buffers until the launch.
use simtile_core::{DeviceBuffer, LaunchArgs};

fn dropped(buffer: DeviceBuffer<f32>) -> usize {
    let args = LaunchArgs::new().arg(&buffer);
    drop(buffer); //~ E0505
    args.len()
}

fn main() {}
