//! A launch borrows its memory for as long as it is there, submitted or not.
use simtile_async::{AsyncKernelLaunch, AsyncKernelLaunchBuilder, DeviceFuture, DeviceOp};
use simtile_core::{DeviceBuffer, Function, Stream};
use std::sync::Arc;

fn launch<'a>(
    function: &Function,
    x: &'a DeviceBuffer<f32>,
    y: &'a mut DeviceBuffer<f32>,
) -> AsyncKernelLaunch<'a> {
    let builder = AsyncKernelLaunchBuilder::new(function).read(x).write(y);
    // SAFETY: it is never run.
    unsafe { builder.finalize_unchecked(None) }.unwrap()
}

fn same_memory_twice(function: &Function, x: &mut DeviceBuffer<f32>) {
    drop(launch(function, x, x)); //~ E0502
}

fn written_meanwhile(function: &Function, x: &mut DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) {
    let launch = launch(function, x, y);
    let _ = x.view_mut(); //~ E0502
    drop(launch);
}

fn read_meanwhile(function: &Function, x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>) {
    let launch = launch(function, x, y);
    let _ = y.view(); //~ E0502
    drop(launch);
}

fn freed_under_a_future(
    function: &Function,
    stream: &Arc<Stream>,
    x: DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) {
    let future = launch(function, &x, y).on(stream);
    drop(x); //~ E0505
    drop(future);
}

fn escapes<'a>(
    function: &Function,
    stream: &Arc<Stream>,
    y: &'a mut DeviceBuffer<f32>,
    x: DeviceBuffer<f32>,
) -> DeviceFuture<AsyncKernelLaunch<'a>> {
    launch(function, &x, y).on(stream) //~ E0515
}

fn main() {}
