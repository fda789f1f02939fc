//! An operation is used up when it is run.
use simtile_async::{DeviceOp, fill, zeros};
use simtile_core::Stream;
use std::sync::Arc;

fn twice(stream: &Arc<Stream>) {
    let op = zeros::<f32>(4).then(|buffer| fill(buffer, 1.0));
    let _ = op.sync_on(stream);
    let _ = op.sync_on(stream); //~ E0382
}

fn main() {}
