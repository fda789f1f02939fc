//! A buffer cannot be moved away under a view.
use simtile_core::DeviceBuffer;

fn moved(buffer: DeviceBuffer<f32>) {
    let view = buffer.view();
    drop(buffer); //~ E0505
    let _ = view.len();
}

fn main() {}
