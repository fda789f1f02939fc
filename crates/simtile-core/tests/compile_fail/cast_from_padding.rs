//! Bytes that may be uninitialised are not read as another type.
use simtile_core::DeviceBuffer;
use std::mem::MaybeUninit;

fn padded(buffer: DeviceBuffer<(u8, u32)>) {
    let _ = buffer.cast_chunks::<u8>(); //~ E0277 NoUninit
}

fn uninitialised(buffer: DeviceBuffer<MaybeUninit<u32>>) {
    let _ = buffer.cast_elem::<u32>(); //~ E0277 NoUninit
}

fn main() {}
