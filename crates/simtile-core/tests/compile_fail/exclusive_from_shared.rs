//! A shared reference gives no exclusive view.
use simtile_core::DeviceBuffer;

fn exclusive(buffer: &DeviceBuffer<f32>) {
    let _ = buffer.view_mut(); //~ E0596
}

fn main() {}
