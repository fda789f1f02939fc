//! A view is a borrow: it cannot outlive its buffer.
use simtile_core::{DeviceBuffer, DeviceBufferView};

fn escape(buffer: DeviceBuffer<f32>) -> DeviceBufferView<'static, f32> {
    buffer.view() //~ E0515
}

fn main() {}
