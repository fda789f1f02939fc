use simtile_macros::DeviceCopy;

#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(crate = simtile_types)]
struct Borrowing<'a> {
    data: &'a u32,
}

fn main() {}
