//! Multicast objects: one mapping that writes to memory of several devices.
//!
//! A multicast call on a machine without an NVSwitch can take the driver down, and one with it is nothing that a test
//! should hold for others. So every test here needs a simulator, and none runs on a real device.

use super::vmm::property;
use crate::frame::{Check, Cx, Need, same};
use crate::gpu::Gpu;
use crate::{code, ensure, ok};
use simtile_driver::sys::*;

const SIMULATED: Need = Need::Simulator("multicast is never called on a real device");
const MULTICAST: Need =
    Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, "multicast objects");
const TWO: Need = Need::Devices(2);

crate::frame::registry::tests! { Driver, "multicast";
    granularity needs [SIMULATED, MULTICAST],
    writes_reach_every_device needs [SIMULATED, TWO, MULTICAST],
    unbound_memory_is_left_alone needs [SIMULATED, TWO, MULTICAST],
    devices_come_before_memory needs [SIMULATED, TWO, MULTICAST],
    arguments_are_checked needs [SIMULATED, MULTICAST],
}

const NONE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

fn object(bytes: usize, devices: u32) -> CUmulticastObjectProp {
    CUmulticastObjectProp { numDevices: devices, size: bytes, handleTypes: 0, flags: 0 }
}

fn page(cx: &Cx, devices: u32) -> Check<usize> {
    let mut page = 0;
    let minimum = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
    ok!(cx, cuMulticastGetGranularity(&mut page, &object(1 << 20, devices), minimum))?;
    Ok(page)
}

fn granularity(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let page = page(cx, 1)?;
    let mut recommended = 0;
    let option = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED;
    ok!(cx, cuMulticastGetGranularity(&mut recommended, &object(page, 1), option))?;
    ensure!(
        page.is_power_of_two() && recommended % page == 0,
        "granularity {page}, recommended {recommended}"
    );
    Ok(())
}

/// Memory mapped for both devices.
fn map(cx: &Cx, handle: CUmemGenericAllocationHandle, bytes: usize) -> Check<CUdeviceptr> {
    let mut address = 0;
    ok!(cx, cuMemAddressReserve(&mut address, bytes, 0, 0, 0))?;
    ok!(cx, cuMemMap(address, bytes, 0, handle, 0))?;
    let access = [0, 1].map(|device| CUmemAccessDesc {
        location: property(device, NONE).location,
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    });
    ok!(cx, cuMemSetAccess(address, bytes, access.as_ptr(), 2))?;
    Ok(address)
}

/// An object over one granule of memory of each of two devices.
struct Both<'a> {
    gpu: Gpu<'a>,
    page: usize,
    object: CUmemGenericAllocationHandle,
    /// Through the object.
    all: CUdeviceptr,
    /// The memory of each device.
    own: [CUdeviceptr; 2],
}

impl<'a> Both<'a> {
    fn new(cx: &'a Cx) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let page = page(cx, 2)?;
        let mut multicast = 0;
        ok!(cx, cuMulticastCreate(&mut multicast, &object(page, 2)))?;
        for device in 0..2 {
            ok!(cx, cuMulticastAddDevice(multicast, device))?;
        }
        let mut own = [0; 2];
        for device in 0..2 {
            let mut handle = 0;
            ok!(cx, cuMemCreate(&mut handle, page, &property(device, NONE), 0))?;
            own[device as usize] = map(cx, handle, page)?;
            ok!(cx, cuMemsetD8(own[device as usize], 0, page))?;
            match device {
                // Memory can be named by its handle or by its address.
                0 => ok!(cx, cuMulticastBindMem(multicast, 0, handle, 0, page, 0))?,
                _ => ok!(cx, cuMulticastBindAddr(multicast, 0, own[1], page, 0))?,
            }
        }
        let all = map(cx, multicast, page)?;
        Ok(Self { gpu, page, object: multicast, all, own })
    }
}

fn writes_reach_every_device(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    ok!(cx, cuMemsetD8(both.all + 64, 7, 16))?;
    for (device, &own) in both.own.iter().enumerate() {
        let found = both.gpu.read::<u8>(own + 60, 24)?;
        let expected: Vec<u8> = (0..24).map(|i| if (4..20).contains(&i) { 7 } else { 0 }).collect();
        same(&format!("bytes of device {device}"), &found, &expected)?;
    }
    Ok(())
}

fn unbound_memory_is_left_alone(cx: &Cx) -> Check {
    let both = Both::new(cx)?;
    ok!(cx, cuMulticastUnbind(both.object, 1, 0, both.page))?;
    ok!(cx, cuMemsetD8(both.all, 5, 4))?;
    same("bytes of the bound device", &both.gpu.read::<u8>(both.own[0], 4)?, &[5; 4])?;
    same("bytes of the unbound device", &both.gpu.read::<u8>(both.own[1], 4)?, &[0; 4])
}

fn devices_come_before_memory(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let page = page(cx, 2)?;
    let (mut multicast, mut memory) = (0, 0);
    ok!(cx, cuMulticastCreate(&mut multicast, &object(page, 2)))?;
    ok!(cx, cuMulticastAddDevice(multicast, 0))?;
    ok!(cx, cuMemCreate(&mut memory, page, &property(0, NONE), 0))?;
    // One of the two is still missing.
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMulticastBindMem(multicast, 0, memory, 0, page, 0))?;
    ok!(cx, cuMulticastAddDevice(multicast, 1))?;
    ok!(cx, cuMulticastBindMem(multicast, 0, memory, 0, page, 0))
}

fn arguments_are_checked(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let page = page(cx, 1)?;
    let mut multicast = 0;
    for bad in [object(0, 1), object(page + 1, 1), object(page, 0), object(page, 99)] {
        code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMulticastCreate(&mut multicast, &bad))?;
    }
    ok!(cx, cuMulticastCreate(&mut multicast, &object(page, 1)))?;
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuMulticastAddDevice(multicast, 99))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMulticastAddDevice(12345, 0))?;
    ok!(cx, cuMulticastAddDevice(multicast, 0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMulticastUnbind(multicast, 0, 0, page))?;
    ok!(cx, cuMemRelease(multicast))
}
