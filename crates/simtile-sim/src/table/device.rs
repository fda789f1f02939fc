//! Devices and their attributes.

use crate::core::Core;
use crate::entry::entries;
use core::ffi::{c_char, c_int};
use simtile_driver::sys::*;

const MOST_ATTRIBUTE: u32 = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX.0;

/// Device `n` sits on bus `n + 1`.
fn bus(device: i32) -> i32 {
    device + 1
}

fn pci_text(device: i32) -> String {
    format!("0000:{:02X}:00.0", bus(device))
}

/// A uuid that names simulator and device.
fn uuid(core: &Core, device: i32) -> CUuuid {
    let mut bytes = [0u8; 16];
    bytes[..4].copy_from_slice(b"simt");
    bytes[4..12].copy_from_slice(&core.id.to_be_bytes());
    bytes[12..].copy_from_slice(&device.to_be_bytes());
    CUuuid { bytes: bytes.map(|byte| byte as c_char) }
}

entries! {
    fn cuDeviceGetCount(call, count: *mut c_int) {
        count.set(call.core.config.devices as c_int)
    }

    fn cuDeviceGet(call, device: *mut CUdevice, ordinal: c_int) {
        device.check()?;
        device.set(call.core.device(ordinal)?)
    }

    fn cuDeviceGetName(call, name: *mut c_char, len: c_int, device: CUdevice) {
        call.core.device(device)?;
        name.set_text(len, call.core.profile.device_name())
    }

    fn cuDeviceGetUuid(call, out: *mut CUuuid, device: CUdevice) {
        out.set(uuid(call.core, call.core.device(device)?))
    }

    fn cuDeviceTotalMem(call, bytes: *mut usize, device: CUdevice) {
        call.core.device(device)?;
        bytes.set(call.core.config.memory as usize)
    }

    fn cuDeviceGetAttribute(call, value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) {
        value.check()?;
        if attribute.0 == 0 || attribute.0 >= MOST_ATTRIBUTE {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let device = call.core.device(device)?;
        let config = &call.core.config;
        if let Some(lacking) = config.lacking().attribute(attribute, config.driver_version)? {
            return value.set(lacking);
        }
        value.set(match attribute {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => bus(device),
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID
            | CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => 0,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS if !config.concurrent_managed => 0,
            // Those that are not 0 are in the profile.
            _ => call.core.profile.attribute(attribute).unwrap_or(0),
        })
    }

    fn cuDeviceGetPCIBusId(call, text: *mut c_char, len: c_int, device: CUdevice) {
        text.set_text(len, &pci_text(call.core.device(device)?))
    }

    fn cuDeviceGetByPCIBusId(call, device: *mut CUdevice, text: *const c_char) {
        device.check()?;
        let wanted = text.text()?;
        // "domain:bus:device.function", "domain:bus:device" or "bus:device.function", in hexadecimal.
        let found = (0..call.core.config.devices as i32).find(|&n| {
            let full = pci_text(n);
            let without_function = full.trim_end_matches(".0");
            let short = full.trim_start_matches("0000:");
            [full.as_str(), without_function, short].iter().any(|form| form.eq_ignore_ascii_case(wanted))
        });
        device.set(found.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer(call, out: *mut c_int, device: CUdevice, peer: CUdevice) {
        out.check()?;
        let (device, peer) = (call.core.device(device)?, call.core.device(peer)?);
        out.set(c_int::from(device != peer))
    }

    fn cuDeviceGetP2PAttribute(call, value: *mut c_int, attribute: CUdevice_P2PAttribute, from: CUdevice, to: CUdevice) {
        value.check()?;
        let (from, to) = (call.core.device(from)?, call.core.device(to)?);
        if from == to {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        value.set(match attribute {
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
            | CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 1,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }
}
