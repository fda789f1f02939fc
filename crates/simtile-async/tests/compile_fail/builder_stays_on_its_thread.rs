//! A builder stays on its thread; what it is finalized to can be sent.
use simtile_async::{AsyncKernelLaunch, AsyncKernelLaunchBuilder};

fn send<T: Send>(_: T) {}

fn launch(launch: AsyncKernelLaunch<'_>) {
    send(launch);
}

fn builder(builder: AsyncKernelLaunchBuilder<'_>) {
    send(builder); //~ E0277 cannot be sent between threads
}

fn main() {}
