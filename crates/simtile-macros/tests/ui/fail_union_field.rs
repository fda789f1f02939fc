use simtile_macros::DeviceCopy;

#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(crate = simtile_types)]
union Either {
    number: u32,
    letter: char,
}

fn main() {}
