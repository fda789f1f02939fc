//! Not every byte is a `bool`.
use simtile_core::{DeviceBuffer, DeviceBufferView};

fn buffer(buffer: DeviceBuffer<u8>) {
    let _ = buffer.cast_elem::<bool>(); //~ E0277 the trait bound `bool:
}

fn chunks(buffer: DeviceBuffer<u8>) {
    let _ = buffer.cast_chunks::<[bool; 2]>(); //~ E0277 the trait bound `bool:
}

fn view(view: DeviceBufferView<'_, u8>) {
    let _ = view.cast_elem::<bool>(); //~ E0277 the trait bound `bool:
}

fn wrap(buffer: DeviceBuffer<u8>) {
    let _ = buffer.wrap_elem::<bool>(); //~ E0277 DeviceRepr
}

fn main() {}
