//! Compiles: disjoint views, guards one after the other, casts that bytes allow.
use simtile_core::{DeviceBuffer, LaunchArgs, LaunchOptions, MemoryError, PinnedHostBuffer, Stream};
use simtile_types::{LaunchConfig, LaunchConfig1D};
use std::sync::Arc;

fn views(stream: &Arc<Stream>, buffer: &mut DeviceBuffer<f32>) -> Result<usize, MemoryError> {
    let words = buffer.view().cast_elem::<u32>()?.len();
    let mut view = buffer.view_mut();
    let (mut first, mut second) = view.split_at_mut(4)?;
    let args = LaunchArgs::new().view_mut(&mut first).view_mut(&mut second).len();
    buffer.fill(stream, 1.0)?;
    Ok(words + args)
}

fn guards(pinned: &mut PinnedHostBuffer<f32>) -> Result<f32, MemoryError> {
    pinned.write()?[0] = 1.0;
    Ok(pinned.read()?[0])
}

fn geometry(ranked: LaunchConfig1D) -> LaunchOptions {
    LaunchOptions::from(LaunchConfig::from(ranked))
}

fn main() {}
