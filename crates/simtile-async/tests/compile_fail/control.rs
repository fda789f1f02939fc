//! Compiles: what the other cases do, in the order in which it is allowed. Borrowed launches in a chain
//! are `Send`.
use simtile_async::{
    AsyncKernelLaunch, AsyncKernelLaunchBuilder, CudaGraph, DeviceOp, OpError, Plain, fill, value, write,
};
use simtile_core::{DeviceBuffer, Function, Stream};
use simtile_types::LaunchConfig;
use std::sync::Arc;

fn send<T: Send>(value: T) -> T {
    value
}

fn launch<'a>(
    function: &Function,
    x: &'a DeviceBuffer<f32>,
    y: &'a mut DeviceBuffer<f32>,
) -> Result<AsyncKernelLaunch<'a>, OpError> {
    let builder = AsyncKernelLaunchBuilder::new(function).read(x).write(y).arg(1u32);
    // SAFETY: it is never run.
    unsafe { builder.finalize_unchecked(LaunchConfig::for_num_elems(1)) }
}

fn chain(
    function: &Function,
    stream: &Arc<Stream>,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
    z: &mut DeviceBuffer<f32>,
) -> Result<i32, OpError> {
    let (first, second) = (launch(function, x, y)?, launch(function, x, z)?);
    let future = send(send(first.then(|()| second).then(|()| value(3))).on(stream));
    drop(future);
    launch(function, y, z)?.then(|()| value(1)).sync_on(stream)
}

fn graph(stream: &Arc<Stream>, buffer: &mut DeviceBuffer<f32>) -> Result<(), OpError> {
    let graph = CudaGraph::scope(stream, |scope| scope.record(fill(&mut *buffer, 1.0)).map(drop))?;
    graph.update(write(buffer, vec![1.0f32; 4]).map(drop))?;
    send(graph.launch()).sync_on(stream)
}

struct Model;

fn output(stream: &Arc<Stream>, counter: Arc<u32>) -> Result<Model, OpError> {
    value(1).map(move |n: u32| Plain((n + *counter, Model).1)).sync_on(stream)
}

fn main() {}
