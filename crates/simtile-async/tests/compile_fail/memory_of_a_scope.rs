//! A graph that gives a view borrows the buffer.
use simtile_async::{CudaGraph, DeviceOp, OpError, fill};
use simtile_core::{DeviceBuffer, Stream};
use std::sync::Arc;

fn scope(stream: &Arc<Stream>, buffer: &mut DeviceBuffer<f32>) -> Result<(), OpError> {
    let graph = CudaGraph::scope(stream, |scope| scope.record(fill(buffer.view_mut(), 1.0)))?;
    let _ = buffer.view_mut(); //~ E0501
    graph.launch().sync_on(stream)
}

fn capture(stream: &Arc<Stream>, buffer: DeviceBuffer<f32>) -> Result<(), OpError> {
    let mut buffer = buffer;
    let graph = CudaGraph::capture(stream, fill(buffer.view_mut(), 1.0))?;
    drop(buffer); //~ E0505
    graph.launch().sync_on(stream)
}

fn main() {}
