#![forbid(unsafe_code)]
#![deny(warnings)]

use simtile_macros::{DeviceCopy, PointerFree};

mod inner {
    #[derive(Clone, Copy, Default)]
    #[derive(super::DeviceCopy, super::PointerFree)]
    #[device_copy(crate = ::simtile_types)]
    pub struct Hidden(u8);
}

#[derive(Clone, Copy, DeviceCopy, PointerFree)]
#[device_copy(crate = ::simtile_types)]
#[repr(C)]
pub struct Padded {
    pub small: u8,
    pub large: u64,
    pub hidden: inner::Hidden,
}

fn check<T: simtile_types::DeviceCopy + simtile_types::PointerFree>(_: T) {}

fn main() {
    check(Padded { small: 1, large: 2, hidden: inner::Hidden::default() });
}
