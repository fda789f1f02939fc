//! What owns something, or is no plain value, is no element.
use simtile_core::{DeviceBuffer, MemoryError, PinnedHostBuffer, Stream};
use std::sync::Arc;

fn strings(stream: &Arc<Stream>) -> Result<DeviceBuffer<String>, MemoryError> { //~ E0277 DeviceCopy
    DeviceBuffer::zeroed(stream, 4) //~ E0277 DeviceCopy
}

fn boxes(stream: &Arc<Stream>) {
    let _ = DeviceBuffer::from_slice(stream, &[Box::new(1)]); //~ E0277 DeviceCopy
}

fn references(_: PinnedHostBuffer<&'static u32>) {} //~ E0277 DeviceCopy

fn main() {}
