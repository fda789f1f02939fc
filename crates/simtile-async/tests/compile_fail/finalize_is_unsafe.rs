//! What a kernel accesses is a promise of the author of the launch.
use simtile_async::AsyncKernelLaunchBuilder;
use simtile_core::LaunchArgs;
use simtile_types::LaunchConfig;

fn borrowed(builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = builder.finalize_unchecked(LaunchConfig::for_num_elems(1)); //~ E0133 finalize_unchecked
}

fn owned(builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = builder.finalize_owned_unchecked(LaunchConfig::for_num_elems(1), (), |_| LaunchArgs::new()); //~ E0133 finalize_owned_unchecked
}

fn owned_with(builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = builder.finalize_owned_with(LaunchConfig::for_num_elems(1), (), |_| LaunchArgs::new()); //~ E0133 finalize_owned_with
}

fn dependent(builder: AsyncKernelLaunchBuilder<'_>) {
    let _ = builder.programmatic_dependent_launch(); //~ E0133 programmatic_dependent_launch
}

fn main() {}
