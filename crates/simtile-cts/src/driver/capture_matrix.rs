//! Which calls a capture forbids, by its mode and by thread: every cell of a table that was measured on an H200.

use crate::frame::Need;
use crate::probe::capture_matrix::compare;
use simtile_driver::sys::CUdevice_attribute;

const VMM: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    "virtual memory management",
);

crate::frame::registry::tests! { Driver, "capture_matrix";
    compare needs [Need::POOLS, VMM, Need::Driver(13, 0, "some of the calls")],
}
