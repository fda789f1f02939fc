//! Modules: loading, functions, variables, unloading with launches in flight.

use super::{Outcome, Rig, all, expect, kernel};
use simtile_core::{DeviceBuffer, GlobalAccess, LaunchArgs, LaunchOptions};
use simtile_types::LaunchConfig;

/// One thread.
const ONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

pub(super) fn loading(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let stream = context.new_stream()?;
    let fill = kernel(context, "fill")?;
    fill.max_active_blocks_per_multiprocessor(128, 0)?;
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 32)?;
    let args = LaunchArgs::new().buffer_mut(&mut buffer).arg(32u32).arg(9u32);
    let options = LaunchOptions::from(LaunchConfig::for_num_elems(32));
    // SAFETY: the kernel sets so many words.
    unsafe { stream.launch(&fill, options, args) }?;
    // Unloaded behind the launch.
    drop(fill);
    if kernel(context, "no such kernel").is_ok() {
        return Err(super::Stop::Wrong("there is no such kernel".into()));
    }
    let second = kernel(context, "dynamic_shared")?;
    second.allow_dynamic_shared_memory(60_000)?;
    expect("dynamic shared memory", &(second.max_dynamic_shared_memory_bytes() >= 60_000), &true)?;
    all("what was filled", &buffer.to_vec(&stream)?, 32, 9)
}

pub(super) fn variables(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let image = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 4;
.visible .entry bump()
{
    .reg .b32 %r<3>;
    ld.global.u32 %r1, [counter];
    add.s32 %r2, %r1, 1;
    st.global.u32 [counter], %r2;
    ret;
}
";
    let module = context.load_module_from_ptx_src(image)?;
    let (bump, counter) = (module.load_function("bump")?, module.global::<u32>("counter")?);
    drop(module);
    expect("the kernel", &bump.global_access(), &GlobalAccess::Write)?;
    // SAFETY: the kernel has no arguments.
    unsafe { a.launch(&bump, ONE, LaunchArgs::new()) }?;
    all("after one launch", &counter.to_vec(&b)?, 1, 5)?;
    counter.copy_from_slice(&b, &[20])?;
    // SAFETY: as above.
    unsafe { a.launch(&bump, ONE, LaunchArgs::new()) }?;
    drop(bump);
    all("after a write and a launch", &counter.to_vec(&a)?, 1, 21)
}
