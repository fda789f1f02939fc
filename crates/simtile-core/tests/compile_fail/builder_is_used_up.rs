//! A builder submits once.
use simtile_core::{DeviceBuffer, Stream};
use std::sync::Arc;

fn twice(stream: &Arc<Stream>, buffer: &DeviceBuffer<f32>) {
    let builder = stream.submit().read(buffer);
    let _ = builder.order_only();
    let _ = builder.order_only(); //~ E0382
}

fn main() {}
