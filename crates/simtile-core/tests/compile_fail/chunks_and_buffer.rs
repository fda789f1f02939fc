//! While chunks live the buffer is borrowed.
use simtile_core::{DeviceBuffer, MemoryError};

fn chunks(buffer: &mut DeviceBuffer<f32>) -> Result<(), MemoryError> {
    let first = buffer.chunks_mut(4)?.next();
    let _ = buffer.len(); //~ E0502
    drop(first);
    Ok(())
}

fn main() {}
