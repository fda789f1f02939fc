//! Mapped memory, buffers that grow, multicast teams.

use super::{Outcome, Rig, all, expect};
use simtile_core::{DeviceBuffer, GrowableBuffer, MulticastTeam};

const STEP: usize = 2 << 20;

pub(super) fn growable(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut buffer = GrowableBuffer::<u32>::new(context, 3 * STEP / 4)?;
    buffer.extend_from_slice(&a, &[7; 100])?;
    buffer.resize(&b, 200)?;
    buffer.reserve(STEP / 4 + 1)?;
    let found = buffer.to_vec(&a)?;
    all("the first", &found[..100], 100, 7)?;
    all("the others", &found[100..], 100, 0)?;
    buffer.view_mut().fill(&b, 4)?;
    buffer.shrink_to_fit()?;
    let mut copy = DeviceBuffer::<u32>::zeroed(&a, 200)?;
    copy.view_mut().copy_from(&a, buffer.view())?;
    drop(buffer);
    all("the copy", &copy.to_vec(&b)?, 200, 4)
}

pub(super) fn mapped(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let range = context.reserve(2 * STEP)?;
    let (first, second) = (context.physical_memory(STEP)?, context.physical_memory(1)?);
    let mut one = range.map(0, &first, &[])?;
    let two = range.map(STEP, &second, &[])?;
    one.view_mut().slice_mut(0..64)?.fill(&a, 1)?;
    let mut two = two.into_typed::<u32>().map_err(|refused| refused.error)?;
    two.slice_mut(0..16)?.fill(&b, 2)?;
    expect("bytes", &one.view().slice(0..64)?.to_vec(&b)?, &vec![1u8; 64])?;
    drop((range, first, one));
    all("words", &two.range_to_vec(&a, 0..16)?, 16, 2)
}

pub(super) fn teams(rig: &Rig) -> Outcome {
    let [zero, one] = &*rig.contexts else { return Ok(()) };
    let (a, b) = (zero.new_stream()?, one.new_stream()?);
    let mut team = MulticastTeam::new(&[zero, one], 100)?;
    team.members_mut()[1].view_mut().slice_mut(0..8)?.fill(&b, 3)?;
    expect("a member", &team.members()[1].view().slice(0..2)?.to_vec(&a)?, &vec![3u8; 2])?;
    drop(team);
    Ok(())
}
