//! What a kernel takes: values, and memory.

use super::LaunchArgs;
use crate::memory::sealed::{Memory, MemoryMut};
use crate::memory::{
    DeviceBox, DeviceBuffer, DeviceBufferView, DeviceBufferViewMut, DeviceColumns, DeviceColumnsMut,
    GrowableBuffer, ManagedBuffer, OnDevice, PinnedHostBuffer, RawDeviceBuffer,
};
use simtile_types::DeviceCopy;

/// An argument of a kernel: any [`DeviceCopy`] value, by value or by reference, or memory, by shared or exclusive reference.
///
/// Memory passes its address. By shared reference the kernel reads it, or, if its elements are device atomics
/// ([`DeviceCopy::ACCUMULATES`]), updates it with atomics of device scope; by exclusive reference the kernel writes it.
///
/// `Kind` tells the ways apart; it is always inferred.
pub trait KernelArgument<'a, Kind> {
    /// Adds it to the arguments.
    fn add_to(self, args: &mut LaunchArgs<'a>);
}

/// A value is passed.
#[derive(Debug)]
pub struct ByValue(());

/// The value behind a reference is passed.
#[derive(Debug)]
pub struct ByReference(());

/// The address of memory is passed.
#[derive(Debug)]
pub struct ByAddress(());

impl<'a, T: DeviceCopy> KernelArgument<'a, ByValue> for T {
    fn add_to(self, args: &mut LaunchArgs<'a>) {
        args.push(self);
    }
}

impl<'a, T: DeviceCopy> KernelArgument<'a, ByReference> for &T {
    fn add_to(self, args: &mut LaunchArgs<'a>) {
        args.push(*self);
    }
}

macro_rules! memory {
    ($($name:ident)*) => { $(
        impl<'a, T: DeviceCopy> KernelArgument<'a, ByAddress> for &'a $name<T> {
            fn add_to(self, args: &mut LaunchArgs<'a>) {
                args.touch(self.address(), self.touched(self.shared_mode()));
            }
        }

        impl<'a, T: DeviceCopy> KernelArgument<'a, ByAddress> for &'a mut $name<T> {
            fn add_to(self, args: &mut LaunchArgs<'a>) {
                let address = self.address();
                args.touch(address, self.touched_mut());
            }
        }
    )* };
}

memory! { DeviceBuffer GrowableBuffer ManagedBuffer PinnedHostBuffer }

macro_rules! views {
    ($($name:ident)*) => { $(
        impl<'a, 'b: 'a, T: DeviceCopy> KernelArgument<'a, ByAddress> for &'a $name<'b, T> {
            fn add_to(self, args: &mut LaunchArgs<'a>) {
                args.touch(self.address(), self.touched(self.shared_mode()));
            }
        }
    )* };
}

views! { DeviceBufferView DeviceBufferViewMut DeviceColumns DeviceColumnsMut }

macro_rules! views_mut {
    ($($name:ident)*) => { $(
        impl<'a, 'b: 'a, T: DeviceCopy> KernelArgument<'a, ByAddress> for &'a mut $name<'b, T> {
            fn add_to(self, args: &mut LaunchArgs<'a>) {
                let address = self.address();
                args.touch(address, self.touched_mut());
            }
        }
    )* };
}

views_mut! { DeviceBufferViewMut DeviceColumnsMut }

impl<'a, T: ?Sized + OnDevice> KernelArgument<'a, ByAddress> for &'a DeviceBox<T> {
    fn add_to(self, args: &mut LaunchArgs<'a>) {
        args.touch(self.address(), self.touched(self.shared_mode()));
    }
}

impl<'a, T: ?Sized + OnDevice> KernelArgument<'a, ByAddress> for &'a mut DeviceBox<T> {
    fn add_to(self, args: &mut LaunchArgs<'a>) {
        let address = self.address();
        args.touch(address, self.touched_mut());
    }
}

impl<'a> KernelArgument<'a, ByAddress> for &'a RawDeviceBuffer {
    fn add_to(self, args: &mut LaunchArgs<'a>) {
        args.touch(self.address(), self.touched(self.shared_mode()));
    }
}

impl<'a> KernelArgument<'a, ByAddress> for &'a mut RawDeviceBuffer {
    fn add_to(self, args: &mut LaunchArgs<'a>) {
        let address = self.address();
        args.touch(address, self.touched_mut());
    }
}
