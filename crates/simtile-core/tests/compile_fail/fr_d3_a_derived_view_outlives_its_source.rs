//! fr_D3: a copy of a view, a piece of it and a cast of it live no longer than the buffer.
use simtile_core::{DeviceBuffer, DeviceBufferView};

fn copied(buffer: DeviceBuffer<u32>) -> DeviceBufferView<'static, u32> {
    let view = buffer.view();
    view.clone() //~ E0515
}

fn cast(buffer: DeviceBuffer<u32>) -> DeviceBufferView<'static, u8> {
    buffer.view().as_bytes().unwrap() //~ E0515
}

fn cut(buffer: DeviceBuffer<u32>) -> DeviceBufferView<'static, u32> {
    buffer.view().slice(0..1).unwrap() //~ E0515
}

fn main() {}
