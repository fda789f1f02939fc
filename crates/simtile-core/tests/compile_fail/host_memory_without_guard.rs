//! Host memory that the device writes has no `Deref`: it is reached by guards.
use simtile_core::{ManagedBuffer, PinnedHostBuffer};

fn pinned(pinned: &PinnedHostBuffer<f32>) -> f32 {
    pinned[0] //~ E0608
}

fn managed(managed: &ManagedBuffer<f32>) -> f32 {
    managed[0] //~ E0608
}

fn main() {}
