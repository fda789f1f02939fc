//! Two exclusive views of one buffer exist only by splitting it.
use simtile_core::DeviceBuffer;

fn two(buffer: &mut DeviceBuffer<f32>) {
    let first = buffer.slice_mut(0..5);
    let second = buffer.slice_mut(5..10); //~ E0499
    drop((first, second));
}

fn main() {}
