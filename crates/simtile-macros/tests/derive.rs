//! What the derives write, and what they refuse.

use simtile_macros::{DeviceCopy, PointerFree};
use simtile_types::{DeviceCopy as Copyable, PointerFree as Free};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

#[derive(Clone, Copy, DeviceCopy, PointerFree)]
#[device_copy(crate = simtile_types)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    alive: bool,
}

#[derive(Clone, Copy, DeviceCopy, PointerFree)]
#[device_copy(crate = ::simtile_types)]
#[repr(C)]
struct Pair<T, const N: usize>(T, [T; N]);

/// `T` is only a name here: it need not be copyable.
#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(crate = simtile_types)]
#[repr(C)]
struct Address<T> {
    pointer: *const T,
    kind: PhantomData<T>,
}

#[derive(Clone, Copy, DeviceCopy)]
#[device_copy(crate = simtile_types)]
#[repr(C, packed)]
struct Packed {
    flag: bool,
    word: u32,
    pair: (bool, u8),
}

#[derive(Clone, Copy, DeviceCopy, PointerFree)]
#[device_copy(crate = simtile_types)]
#[repr(C)]
union Word {
    bits: u32,
    float: f32,
}

#[derive(Clone, Copy, DeviceCopy, PointerFree)]
#[device_copy(crate = simtile_types)]
struct Nothing;

fn copyable<T: Copyable>() -> bool {
    T::NO_PADDING
}

fn free<T: Free>() {}

fn valid<T: Copyable>(bytes: &[u8]) -> bool {
    assert_eq!(bytes.len(), size_of::<T>());
    let mut slot = MaybeUninit::<T>::uninit();
    // SAFETY: the slot has T's alignment and exactly these bytes.
    unsafe {
        slot.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        T::is_valid(slot.as_ptr())
    }
}

#[test]
fn padding_is_counted() {
    assert!(!copyable::<Particle>(), "three bytes of padding");
    assert!(copyable::<Pair<u32, 3>>());
    assert!(!copyable::<Pair<(u8, u32), 1>>());
    assert!(copyable::<Packed>() || !<(bool, u8)>::NO_PADDING);
    assert!(copyable::<Nothing>());
    assert!(!copyable::<Word>(), "a union never promises its bytes");
    copyable::<Address<u8>>();
}

#[test]
fn numbers_carry_no_address() {
    free::<Particle>();
    free::<Pair<u64, 2>>();
    free::<Word>();
    free::<Nothing>();
}

#[test]
fn every_field_is_checked() {
    let mut particle = [0u8; 16];
    assert!(valid::<Particle>(&particle));
    particle[12] = 1;
    assert!(valid::<Particle>(&particle));
    particle[12] = 2;
    assert!(!valid::<Particle>(&particle));
    assert!(valid::<Pair<bool, 2>>(&[1, 0, 1]));
    assert!(!valid::<Pair<bool, 2>>(&[1, 0, 3]));
    assert!(valid::<Word>(&[0xff; 4]));
    // Misaligned fields of a packed type are looked at where they are.
    let mut packed = vec![0xff; size_of::<Packed>()];
    packed[0] = 1;
    let pair = std::mem::offset_of!(Packed, pair);
    packed[pair..].fill(1);
    assert!(valid::<Packed>(&packed));
    packed[0] = 2;
    assert!(!valid::<Packed>(&packed));
}

#[test]
fn what_does_not_qualify_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass_*.rs");
    cases.compile_fail("tests/ui/fail_*.rs");
}
