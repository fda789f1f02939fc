//! While a writing guard of host memory lives, nothing else reaches the buffer.
use simtile_core::{DeviceBuffer, MemoryError, PinnedHostBuffer, Stream};
use std::sync::Arc;

fn copy(
    stream: &Arc<Stream>,
    pinned: &mut PinnedHostBuffer<f32>,
    device: &mut DeviceBuffer<f32>,
) -> Result<(), MemoryError> {
    let mut guard = pinned.write()?;
    pinned.copy_to(stream, device)?; //~ E0502
    guard[0] = 1.0;
    Ok(())
}

fn main() {}
