//! A graph records and is updated by operations, and by nothing that is not one yet.
use simtile_async::{AsyncKernelLaunchBuilder, CudaGraph, GraphScope};
use simtile_core::DeviceBuffer;

fn update(graph: &CudaGraph<()>, builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = graph.update(builder); //~ E0277 DeviceOp
}

fn memory(graph: &CudaGraph<()>, buffer: DeviceBuffer<f32>) {
    let _ = graph.update(buffer); //~ E0277 DeviceOp
}

fn record(scope: &GraphScope<'_>, builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = scope.record(builder); //~ E0277 DeviceOp
}

fn another_output(graph: &CudaGraph<()>) {
    let _ = graph.recapture(simtile_async::value(1)); //~ E0271
}

fn main() {}
