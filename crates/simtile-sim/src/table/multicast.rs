//! Multicast objects.

use super::memory::unsupported;
use super::vmm::code;
use crate::entry::entries;
use crate::memory::GRANULARITY;
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

entries! {
    fn cuMulticastCreate(call, out: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp) {
        out.check()?;
        if call.core.profile.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED).is_none_or(|has| has == 0) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let prop = prop.get()?;
        if prop.flags != 0 || prop.numDevices == 0 || prop.numDevices > call.core.config.devices {
            return Err(INVALID);
        }
        if prop.handleTypes != 0 {
            return Err(unsupported(call, "a multicast object that can be shared between processes"));
        }
        out.set(call.core.heap.vmm.create_multicast(prop.size as u64, prop.numDevices).map_err(code)?)
    }

    fn cuMulticastAddDevice(call, handle: CUmemGenericAllocationHandle, device: CUdevice) {
        let object = call.core.heap.vmm.multicast(handle).map_err(code)?;
        object.add_device(call.core.device(device)?).map_err(code)
    }

    fn cuMulticastBindMem(call, handle: CUmemGenericAllocationHandle, offset: usize, memory: CUmemGenericAllocationHandle, memory_offset: usize, bytes: usize, flags: u64) {
        if flags != 0 {
            return Err(INVALID);
        }
        let vmm = &call.core.heap.vmm;
        let object = vmm.multicast(handle).map_err(code)?;
        let memory = vmm.physical(memory).map_err(code)?;
        object.bind(offset as u64, &memory, memory_offset as u64, bytes as u64).map_err(code)
    }

    fn cuMulticastBindAddr(call, handle: CUmemGenericAllocationHandle, offset: usize, address: CUdeviceptr, bytes: usize, flags: u64) {
        if flags != 0 {
            return Err(INVALID);
        }
        let vmm = &call.core.heap.vmm;
        let object = vmm.multicast(handle).map_err(code)?;
        let (memory, memory_offset) = vmm.physical_at(&call.core.space, address, bytes as u64).map_err(code)?;
        object.bind(offset as u64, &memory, memory_offset, bytes as u64).map_err(code)
    }

    fn cuMulticastUnbind(call, handle: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, bytes: usize) {
        let object = call.core.heap.vmm.multicast(handle).map_err(code)?;
        object.unbind(call.core.device(device)?, offset as u64, bytes as u64).map_err(code)
    }

    fn cuMulticastGetGranularity(call, out: *mut usize, prop: *const CUmulticastObjectProp, option: CUmulticastGranularity_flags) {
        out.check()?;
        let prop = prop.get()?;
        if prop.numDevices == 0 || prop.numDevices > call.core.config.devices {
            return Err(INVALID);
        }
        match option {
            CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM
            | CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED => out.set(GRANULARITY as usize),
            _ => Err(INVALID),
        }
    }
}
