//! A guard is a borrow of its buffer.
use simtile_core::PinnedHostBuffer;

fn outlives(pinned: PinnedHostBuffer<f32>) -> f32 {
    let guard = pinned.read().unwrap();
    drop(pinned); //~ E0505
    guard[0]
}

fn main() {}
