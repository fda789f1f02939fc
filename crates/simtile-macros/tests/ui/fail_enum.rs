use simtile_macros::DeviceCopy;

#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(crate = simtile_types)]
enum Colour {
    Red,
    Green,
}

fn main() {}
