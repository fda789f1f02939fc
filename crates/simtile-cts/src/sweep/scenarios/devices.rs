//! Two devices.

use super::{Outcome, Rig, all, kernel};
use simtile_core::{DeviceBuffer, LaunchArgs, MemPool, PinnedHostBuffer};
use simtile_types::LaunchConfig;

pub(super) fn copies(rig: &Rig) -> Outcome {
    let [zero, one] = &*rig.contexts else { return Ok(()) };
    let (a, b) = (zero.new_stream()?, one.new_stream()?);
    let mut x = DeviceBuffer::from_slice(&a, &[5u32; 100])?;
    let mut y = DeviceBuffer::<u32>::zeroed(&b, 100)?;
    y.copy_from(&b, &x)?;
    x.fill(&a, 6)?;
    all("a copy on the target's side", &y.to_vec(&a)?, 100, 5)?;
    y.copy_range_from(&a, 50, &x, 0..50)?;
    // From afar, by streams of the other device.
    x.fill(&b, 7)?;
    x.copy_from_slice_at(&b, 90, &[8; 10])?;
    let pinned = PinnedHostBuffer::from_slice(zero, &[9u32; 100])?;
    pinned.copy_to(&a, &mut y)?;
    drop(pinned);
    let found = x.to_vec(&b)?;
    all("a fill from afar", &found[..90], 90, 7)?;
    all("an upload from afar", &found[90..], 10, 8)?;
    drop(a);
    all("by pinned memory", &y.to_vec(&b)?, 100, 9)
}

pub(super) fn peers(rig: &Rig) -> Outcome {
    const N: u32 = 32;
    let [zero, one] = &*rig.contexts else { return Ok(()) };
    let (a, b) = (zero.new_stream()?, one.new_stream()?);
    let copy = kernel(one, "copy")?;
    let x = DeviceBuffer::from_slice(&a, &[4u32; N as usize])?;
    let mut y = DeviceBuffer::<u32>::zeroed(&b, N as usize)?;
    one.enable_peer_access(zero)?;
    let args = LaunchArgs::new().buffer(&x).buffer_mut(&mut y).arg(N);
    // SAFETY: the kernel copies so many words.
    let launched = unsafe { b.launch(&copy, LaunchConfig::for_num_elems(N), args) };
    // Freed with uses on both devices.
    drop(x);
    let pool = MemPool::builder(zero).build()?;
    pool.grant(one.device())?;
    let z = pool.from_slice(&a, &[6u32; N as usize])?;
    launched?;
    all("by a kernel of the other device", &y.to_vec(&a)?, N as usize, 4)?;
    let args = LaunchArgs::new().buffer(&z).buffer_mut(&mut y).arg(N);
    // SAFETY: as above.
    unsafe { b.launch(&copy, LaunchConfig::for_num_elems(N), args) }?;
    pool.revoke(one.device())?;
    one.disable_peer_access(zero)?;
    drop((z, pool));
    all("by a pool of the other device", &y.to_vec(&b)?, N as usize, 6)
}

pub(super) fn exported(rig: &Rig) -> Outcome {
    let [zero, one] = &*rig.contexts else { return Ok(()) };
    let (a, b) = (zero.new_stream()?, one.new_stream()?);
    let mut x = DeviceBuffer::<u32>::zeroed(&a, 32)?;
    x.fill(&a, 2)?;
    let exported = x.export().map_err(|refused| refused.error)?;
    exported.follow_on(&b)?;
    // SAFETY: nobody used it.
    let back = match unsafe { exported.take_back(&b) } {
        Ok(back) => back,
        Err(refused) => {
            zero.synchronize_all()?;
            return Err(refused.error.into());
        }
    };
    all("what came back", &back.to_vec(&a)?, 32, 2)?;
    drop(back);
    let y = DeviceBuffer::from_slice(&b, &[1u32; 8])?;
    a.submit().read(&y).order_only()?;
    drop(b);
    all("the other one", &y.to_vec(&a)?, 8, 1)
}
