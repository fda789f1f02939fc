//! Pools that users make, and memory that runs out.

use super::{Outcome, Rig, Stop, all};
use simtile_core::{DeviceBuffer, MemPool, MemoryError};
use std::time::Duration;

pub(super) fn own_pools(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let pool = MemPool::builder(context).label("scratch").limit(1 << 20).release_threshold(0).build()?;
    let mut x = pool.zeroed::<u32>(&a, 100)?;
    let y = pool.from_slice(&b, &[4u32; 100])?;
    x.copy_from(&a, &y)?;
    drop(y);
    pool.stats()?;
    all("a copy", &x.to_vec(&b)?, 100, 4)?;
    pool.set_release_threshold(u64::MAX)?;
    pool.trim(0)?;
    pool.reset_high_marks()?;
    // The pool goes before its buffer.
    drop(pool);
    x.fill(&b, 5)?;
    all("a fill", &x.to_vec(&a)?, 100, 5)?;
    drop(x);
    let second = context.new_mem_pool()?;
    drop(second.zeroed::<u8>(&a, 10)?);
    a.synchronize()?;
    second.close_now()?;
    context.trim()?;
    Ok(())
}

pub(super) fn out_of_memory(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    context.set_oom_wait(Duration::from_millis(1));
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut large = DeviceBuffer::<u32>::zeroed(&a, 1000)?;
    large.fill(&b, 1)?;
    match DeviceBuffer::<u8>::zeroed(&a, 1 << 40) {
        Err(MemoryError::OutOfMemory { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(Stop::Wrong("there is no such amount of memory".into())),
    }
    let small = DeviceBuffer::<u32>::zeroed(&b, 100)?;
    all("the large one", &large.to_vec(&a)?, 1000, 1)?;
    all("the small one", &small.to_vec(&a)?, 100, 0)
}
