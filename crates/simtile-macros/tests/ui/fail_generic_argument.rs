use simtile_macros::DeviceCopy;

#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(crate = simtile_types)]
struct Wrapper<T>(T);

fn check<T: simtile_types::DeviceCopy>() {}

fn main() {
    check::<Wrapper<u32>>();
    check::<Wrapper<char>>();
}
