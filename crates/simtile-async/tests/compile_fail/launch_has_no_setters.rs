//! A finalized launch does not change any more.
use simtile_async::AsyncKernelLaunch;
use simtile_core::DeviceBuffer;

fn more(launch: AsyncKernelLaunch<'_>) {
    let _ = launch.arg(1u32); //~ E0599 arg
}

fn other(mut launch: AsyncKernelLaunch<'_>) {
    launch.push_arg(1u32); //~ E0599 push_arg
}

fn memory<'a>(launch: AsyncKernelLaunch<'a>, buffer: &'a mut DeviceBuffer<f32>) {
    let _ = launch.write(buffer); //~ E0599 write
}

fn cluster(launch: AsyncKernelLaunch<'_>) {
    let _ = launch.set_cluster_dim(2, 1, 1); //~ E0599 set_cluster_dim
}

fn geometry(launch: AsyncKernelLaunch<'_>) {
    launch.options().config = simtile_types::LaunchConfig::for_num_elems(1); //~ E0594
}

fn main() {}
