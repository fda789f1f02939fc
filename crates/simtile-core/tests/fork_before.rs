//! F3: a child that was forked before the runtime was used works like any process.
#![cfg(unix)]

#[path = "common/child.rs"]
mod child;
mod common;

use child::in_child;
use common::start;
use simtile_core::DeviceBuffer;

#[test]
fn fr_h7_a_child_forked_before_the_first_use_works() {
    assert!(in_child(|| {
        let (_sim, _context, stream) = start();
        DeviceBuffer::from_slice(&stream, &[1u32; 10]).unwrap().to_vec(&stream).unwrap() == [1; 10]
    }));
    // And so does the parent, whose child never was in the way.
    let (_sim, _context, stream) = start();
    assert_eq!(DeviceBuffer::from_slice(&stream, &[2u32; 4]).unwrap().to_vec(&stream).unwrap(), [2; 4]);
}
