//! An exported buffer is out of safe use.
use simtile_core::{DeviceBuffer, Stream};
use std::sync::Arc;

fn used(stream: &Arc<Stream>, buffer: DeviceBuffer<f32>) {
    let exported = buffer.export().unwrap();
    let _ = buffer.to_vec(stream); //~ E0382
    drop(exported);
}

fn main() {}
