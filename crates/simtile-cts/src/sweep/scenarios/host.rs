//! Pinned and managed memory, and transfers of more than one staging block.

use super::{Outcome, Rig, all};
use simtile_core::{Advice, DeviceBuffer, ManagedBuffer, PinnedHostBuffer, Residence};

pub(super) fn pinned(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let source = PinnedHostBuffer::from_slice(context, &[3u32; 100])?;
    let mut device = DeviceBuffer::<u32>::zeroed(&a, 100)?;
    source.copy_to(&a, &mut device)?;
    let mut back = PinnedHostBuffer::<u32>::zeroed(context, 100)?;
    back.copy_from(&b, &device)?;
    all("what came back", &back.read()?, 100, 3)?;
    back.write()?.fill(8);
    back.copy_to(&a, &mut device)?;
    // Dropped with its copy in flight.
    drop((source, back));
    let again = PinnedHostBuffer::<u32>::zeroed(context, 100)?;
    drop(again.try_read());
    all("what went out", &device.to_vec(&b)?, 100, 8)
}

pub(super) fn managed(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut x = ManagedBuffer::from_slice(context, &[1u32; 50])?;
    x.view_mut().fill(&a, 5)?;
    x.prefetch(&b, Residence::Device(context.device()))?;
    x.prefetch(&a, Residence::Host)?.wait()?;
    all("by the host", &x.read()?, 50, 5)?;
    x.advise(Advice::ReadMostly(true))?;
    x.write()?.fill(6);
    let mut y = DeviceBuffer::<u32>::zeroed(&b, 50)?;
    y.view_mut().copy_from(&b, x.view())?;
    let second = ManagedBuffer::<u32>::zeroed(context, 10)?;
    drop(x);
    all("zeroes", &second.read()?, 10, 0)?;
    all("by the device", &y.to_vec(&a)?, 50, 6)
}

/// Several blocks of both sizes.
pub(super) fn large_transfers(rig: &Rig) -> Outcome {
    const N: usize = 350_000;
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let values: Vec<u32> = (0..N as u32).collect();
    let x = DeviceBuffer::from_slice(&a, &values)?;
    let small = DeviceBuffer::from_slice(&b, &values[..20_000])?;
    super::expect("the large one", &(x.to_vec(&b)? == values), &true)?;
    super::expect("the small one", &(small.to_vec(&a)? == values[..20_000]), &true)
}
