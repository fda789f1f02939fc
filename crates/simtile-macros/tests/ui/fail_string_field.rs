use simtile_macros::DeviceCopy;

#[derive(Clone, DeviceCopy)]
#[device_copy(crate = simtile_types)]
struct Named {
    id: u32,
    name: String,
}

fn main() {}
