//! fr_E7: an operation that has not run borrows what it will touch.
use simtile_async::copy;
use simtile_core::{DeviceBuffer, Stream};
use std::sync::Arc;

fn late(stream: &Arc<Stream>, source: DeviceBuffer<f32>, target: &mut DeviceBuffer<f32>) {
    use simtile_async::DeviceOp;
    let op = copy(&source, target);
    drop(source); //~ E0505
    let _ = op.sync_on(stream);
}

fn main() {}
