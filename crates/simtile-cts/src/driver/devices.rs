//! Devices and their attributes. None of this needs a context.

use crate::frame::{Check, Cx, Need};
use crate::{code, ensure, ensure_eq, ok};
use simtile_driver::sys::CUdevice_attribute as Attr;
use simtile_driver::sys::*;
use std::ffi::c_char;

crate::frame::registry::tests! { Driver, "devices";
    ordinals,
    names,
    short_name_buffer,
    uuids_differ needs [Need::Devices(1)],
    total_memory,
    attributes_are_consistent,
    unknown_attribute,
    pci_bus_id_round_trip,
    pci_bus_id_of_nobody,
    default_pool,
    current_pool_can_be_changed,
    peer_queries needs [Need::Devices(2)],
}

fn ordinals(cx: &Cx) -> Check {
    let count = cx.devices()? as i32;
    ensure!(count > 0, "no device");
    for ordinal in 0..count {
        let mut device = -1;
        ok!(cx, cuDeviceGet(&mut device, ordinal))?;
        ensure!(device >= 0, "device {device} for ordinal {ordinal}");
    }
    let mut device = 0;
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuDeviceGet(&mut device, count))?;
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuDeviceGet(&mut device, -1))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDeviceGet(std::ptr::null_mut(), 0))
}

fn string(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn names(cx: &Cx) -> Check {
    cx.devices()?;
    let mut name = [0x7f as c_char; 256];
    ok!(cx, cuDeviceGetName(name.as_mut_ptr(), 256, 0))?;
    ensure!(name.contains(&0), "the name has no NUL within 256 bytes");
    ensure!(!string(&name).is_empty(), "the name is empty");
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuDeviceGetName(name.as_mut_ptr(), 256, 9999))
}

fn short_name_buffer(cx: &Cx) -> Check {
    cx.devices()?;
    let mut whole = [0 as c_char; 256];
    ok!(cx, cuDeviceGetName(whole.as_mut_ptr(), 256, 0))?;
    let mut name = [0x7f as c_char; 16];
    ok!(cx, cuDeviceGetName(name.as_mut_ptr(), 4, 0))?;
    ensure!(name[..4].contains(&0), "a name cut to 4 bytes has no NUL in them");
    ensure!(name[4..].iter().all(|&c| c == 0x7f), "a name cut to 4 bytes wrote beyond them");
    ensure!(string(&whole).starts_with(&string(&name)), "the cut name is no prefix of the name");
    Ok(())
}

fn uuids_differ(cx: &Cx) -> Check {
    let count = cx.devices()? as i32;
    let mut seen = Vec::new();
    for device in 0..count {
        let mut uuid = CUuuid { bytes: [0; 16] };
        ok!(cx, cuDeviceGetUuid(&mut uuid, device))?;
        ensure!(uuid.bytes != [0; 16], "device {device} has the uuid 0");
        ensure!(!seen.contains(&uuid.bytes), "device {device} has the uuid of another one");
        seen.push(uuid.bytes);
    }
    Ok(())
}

fn total_memory(cx: &Cx) -> Check {
    cx.devices()?;
    let mut bytes = 0;
    ok!(cx, cuDeviceTotalMem(&mut bytes, 0))?;
    ensure!(bytes >= 1 << 20, "{bytes} bytes of device memory");
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuDeviceTotalMem(&mut bytes, 9999))
}

fn attributes_are_consistent(cx: &Cx) -> Check {
    cx.devices()?;
    let get = |attribute| cx.attribute(0, attribute);
    ensure_eq!(get(Attr::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?, 32, "warp size");
    let threads = get(Attr::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    ensure!([512, 1024].contains(&threads), "threads per block: {threads}");
    ensure!(
        get(Attr::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)? <= threads,
        "block width beyond threads per block"
    );
    ensure_eq!(get(Attr::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?, 64, "block depth");
    let width = get(Attr::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?;
    ensure!([65535, i32::MAX].contains(&width), "grid width {width}");
    ensure_eq!(get(Attr::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?, 65535, "grid height");
    ensure_eq!(get(Attr::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?, 65535, "grid depth");
    let (major, minor) = cx.capability()?;
    ensure!(major >= 5 && (0..10).contains(&minor), "compute capability {major}.{minor}");
    let per_block = get(Attr::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?;
    let opt_in = get(Attr::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let per_sm = get(Attr::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
    ensure!([16 << 10, 48 << 10].contains(&per_block), "shared memory per block without opt-in: {per_block}");
    ensure!(per_block <= opt_in && opt_in <= per_sm, "shared memory {per_block} / {opt_in} / {per_sm}");
    let sms = get(Attr::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    ensure!(sms > 0, "{sms} multiprocessors");
    let resident = get(Attr::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
    ensure!(resident >= threads, "{resident} threads per multiprocessor");
    ensure_eq!(get(Attr::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?, 1, "unified addressing");
    ensure_eq!(get(Attr::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)?, 1, "mapping of host memory");
    Ok(())
}

fn unknown_attribute(cx: &Cx) -> Check {
    cx.devices()?;
    let mut value = 0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDeviceGetAttribute(&mut value, Attr(0), 0))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuDeviceGetAttribute(&mut value, Attr(99_999), 0))?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_DEVICE],
        cuDeviceGetAttribute(&mut value, Attr::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 9999)
    )
}

fn pci_bus_id_round_trip(cx: &Cx) -> Check {
    let count = cx.devices()? as i32;
    for device in 0..count {
        let mut id = [0 as c_char; 32];
        ok!(cx, cuDeviceGetPCIBusId(id.as_mut_ptr(), 32, device))?;
        // domain:bus:device.function
        let text = string(&id);
        ensure!(
            text.len() == 12
                && text.as_bytes()[4] == b':'
                && text.as_bytes()[7] == b':'
                && text.as_bytes()[10] == b'.',
            "PCI bus id '{text}'"
        );
        let mut found = -1;
        ok!(cx, cuDeviceGetByPCIBusId(&mut found, id.as_ptr()))?;
        ensure_eq!(found, device, "device at {text}");
        let bus = cx.attribute(device, Attr::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        ensure_eq!(i32::from_str_radix(&text[5..7], 16).unwrap_or(-1), bus, "bus number in {text}");
    }
    Ok(())
}

fn pci_bus_id_of_nobody(cx: &Cx) -> Check {
    cx.devices()?;
    let mut device = -1;
    code!(
        cx,
        [CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE],
        cuDeviceGetByPCIBusId(&mut device, c"ffff:ff:1f.7".as_ptr())
    )?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE],
        cuDeviceGetByPCIBusId(&mut device, c"no bus".as_ptr())
    )
}

fn default_pool(cx: &Cx) -> Check {
    cx.require(&[Need::Attribute(Attr::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "memory pools")])?;
    let (mut pool, mut again, mut current) = (CUmemoryPool::NULL, CUmemoryPool::NULL, CUmemoryPool::NULL);
    ok!(cx, cuDeviceGetDefaultMemPool(&mut pool, 0))?;
    ok!(cx, cuDeviceGetDefaultMemPool(&mut again, 0))?;
    ok!(cx, cuDeviceGetMemPool(&mut current, 0))?;
    ensure!(!pool.is_null(), "the default pool is null");
    ensure_eq!(again, pool, "default pool asked for again");
    ensure_eq!(current, pool, "current pool of a fresh device");
    Ok(())
}

fn current_pool_can_be_changed(cx: &Cx) -> Check {
    cx.require(&[Need::Attribute(Attr::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "memory pools")])?;
    let gpu = crate::gpu::Gpu::new(cx)?;
    let (mut default, mut current) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
    ok!(cx, cuDeviceGetDefaultMemPool(&mut default, 0))?;
    let pool = super::pools::create(&gpu)?;
    ok!(cx, cuDeviceSetMemPool(0, pool))?;
    ok!(cx, cuDeviceGetMemPool(&mut current, 0))?;
    ensure_eq!(current, pool, "current pool after setting it");
    ok!(cx, cuDeviceSetMemPool(0, default))?;
    ok!(cx, cuDeviceGetMemPool(&mut current, 0))?;
    ensure_eq!(current, default, "current pool after setting the default one again");
    ok!(cx, cuMemPoolDestroy(pool))
}

fn peer_queries(cx: &Cx) -> Check {
    let (mut there, mut back) = (-1, -1);
    ok!(cx, cuDeviceCanAccessPeer(&mut there, 0, 1))?;
    ok!(cx, cuDeviceCanAccessPeer(&mut back, 1, 0))?;
    ensure!(there == 0 || there == 1, "device 0 can access device 1: {there}");
    let mut value = -1;
    ok!(
        cx,
        cuDeviceGetP2PAttribute(
            &mut value,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
            0,
            1
        )
    )?;
    ensure_eq!(value, there, "peer attribute against cuDeviceCanAccessPeer");
    code!(cx, [CUDA_ERROR_INVALID_DEVICE], cuDeviceCanAccessPeer(&mut there, 0, 9999))
}
