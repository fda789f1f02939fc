//! fr_D2: exclusive access comes from `&mut` alone, at every step from the buffer to a piece of a view.
use simtile_core::{DeviceBuffer, DeviceBufferView, DeviceBufferViewMut};

fn of_a_buffer(buffer: &DeviceBuffer<f32>) {
    let _ = buffer.slice_mut(0..4); //~ E0596
    let _ = buffer.split_at_mut(4); //~ E0596
}

fn of_a_view(view: DeviceBufferView<'_, f32>) {
    let _ = view.slice_mut(0..4); //~ E0599
}

fn of_an_exclusive_view_behind_a_reference(view: &DeviceBufferViewMut<'_, f32>) {
    let _ = view.reborrow(); //~ E0596
}

fn main() {}
