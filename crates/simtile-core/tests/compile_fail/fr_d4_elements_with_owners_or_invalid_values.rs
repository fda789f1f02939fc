//! fr_D4: what owns, refers or has bytes that are no value is no element, or is not read back as one.
use simtile_core::DeviceBuffer;

fn owned(_: DeviceBuffer<String>) {} //~ E0277 DeviceCopy
fn referring(_: DeviceBuffer<&'static u32>) {} //~ E0277 DeviceCopy
fn boxed(_: DeviceBuffer<Box<u32>>) {} //~ E0277 DeviceCopy
fn fat(_: DeviceBuffer<*const [u32]>) {} //~ E0277

fn read_as_bool(buffer: DeviceBuffer<u8>) {
    let _ = buffer.cast_elem::<bool>(); //~ E0277
}

fn read_as_char(buffer: DeviceBuffer<u32>) {
    let _ = buffer.cast_elem::<char>(); //~ E0277
}

fn main() {}
