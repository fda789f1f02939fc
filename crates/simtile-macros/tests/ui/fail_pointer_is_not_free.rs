use simtile_macros::{DeviceCopy, PointerFree};

#[derive(Clone, Copy, DeviceCopy, PointerFree)]
#[device_copy(crate = simtile_types)]
struct Slice {
    start: *const f32,
    len: u64,
}

fn main() {}
