//! The scope of a capture stays on its thread.
use simtile_async::{CudaGraph, GraphScope, OpError, value};
use simtile_core::Stream;
use std::sync::Arc;

fn send<T: Send>(_: T) {}

fn moved(scope: GraphScope<'_>) {
    send(scope); //~ E0277 cannot be sent between threads
}

fn lent(stream: &Arc<Stream>) -> Result<CudaGraph<()>, OpError> {
    CudaGraph::scope(stream, |scope| {
        std::thread::scope(|threads| {
            threads.spawn(|| scope.record(value(1)).is_ok()); //~ E0277 cannot be shared between threads
        });
        Ok(())
    })
}

fn main() {}
