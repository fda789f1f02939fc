use simtile_macros::DeviceCopy;

#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(krate = simtile_types)]
struct Number(u32);

fn main() {}
