//! What the driver says about an address.

use crate::frame::{Check, Cx, Need};
use crate::gpu::Gpu;
use crate::{code, ensure, ensure_eq, ok};
use bytemuck::Zeroable;
use simtile_driver::sys::CUpointer_attribute as Attr;
use simtile_driver::sys::*;
use std::ffi::c_void;

crate::frame::registry::tests! { Driver, "pointers";
    device_memory,
    inner_addresses,
    pinned_memory,
    managed_memory needs [Need::Attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, "managed memory")],
    pool_memory needs [Need::POOLS],
    buffer_ids_are_never_used_again,
    strangers,
    freed_memory,
    several_attributes_at_once,
    several_attributes_of_a_stranger,
    unknown_attribute,
    sync_memops_can_be_set,
}

/// One attribute of any plain type.
fn get<T: Zeroable + Copy>(cx: &Cx, attribute: Attr, pointer: CUdeviceptr) -> Check<T> {
    let mut value = T::zeroed();
    ok!(cx, cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer))
        .map_err(|stop| stop.within(format!("{attribute:?}")))?;
    Ok(value)
}

fn device_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(5000)?;
    let kind: u32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)?;
    ensure_eq!(kind, CUmemorytype::CU_MEMORYTYPE_DEVICE.0, "memory type");
    let context: usize = get(cx, Attr::CU_POINTER_ATTRIBUTE_CONTEXT, pointer)?;
    ensure_eq!(CUcontext(context), gpu.context, "context");
    let device: i32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)?;
    ensure_eq!(device, 0, "device ordinal");
    let address: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer)?;
    ensure_eq!(address, pointer, "device pointer");
    let managed: u32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer)?;
    ensure_eq!(managed & 0xff, 0, "managed");
    // Device memory has no host address.
    let mut host = 0usize;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuPointerGetAttribute((&raw mut host).cast(), Attr::CU_POINTER_ATTRIBUTE_HOST_POINTER, pointer)
    )
}

fn inner_addresses(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let bytes = 5000;
    let pointer = gpu.alloc(bytes)?;
    for inner in [pointer, pointer + 1234, pointer + bytes as u64 - 1] {
        let start: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inner)?;
        ensure_eq!(start, pointer, "start of the range around {inner:#x}");
        let size: usize = get(cx, Attr::CU_POINTER_ATTRIBUTE_RANGE_SIZE, inner)?;
        ensure_eq!(size, bytes, "size of the range around {inner:#x}");
        let address: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inner)?;
        ensure_eq!(address, inner, "device pointer of an inner address");
    }
    Ok(())
}

fn pinned_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pinned = gpu.pinned(64)?;
    let kind: u32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned.device)?;
    ensure_eq!(kind, CUmemorytype::CU_MEMORYTYPE_HOST.0, "memory type");
    let host: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_HOST_POINTER, pinned.device)?;
    ensure_eq!(host, pinned.host() as u64, "host pointer");
    let device: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pinned.device)?;
    ensure_eq!(device, pinned.device, "device pointer");
    Ok(())
}

fn managed_memory(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let mut pointer = 0;
    ok!(cx, cuMemAllocManaged(&mut pointer, 65536, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0))?;
    let managed: u32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer)?;
    ensure_eq!(managed & 0xff, 1, "managed");
    let host: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_HOST_POINTER, pointer)?;
    ensure_eq!(host, pointer, "host pointer of managed memory");
    let device: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer)?;
    ensure_eq!(device, pointer, "device pointer of managed memory");
    ok!(cx, cuMemFree(pointer))
}

fn pool_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let stream = gpu.stream()?;
    let mut pool = CUmemoryPool::NULL;
    ok!(cx, cuDeviceGetDefaultMemPool(&mut pool, gpu.device))?;
    let mut pointer = 0;
    ok!(cx, cuMemAllocAsync(&mut pointer, 5000, stream))?;
    gpu.sync(stream)?;
    let handle: usize = get(cx, Attr::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer)?;
    ensure_eq!(CUmemoryPool(handle), pool, "pool of stream-ordered memory");
    let kind: u32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)?;
    ensure_eq!(kind, CUmemorytype::CU_MEMORYTYPE_DEVICE.0, "memory type");
    Ok(())
}

fn buffer_ids_are_never_used_again(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let mut seen = Vec::new();
    for round in 0..10 {
        let pointer = gpu.alloc(4096)?;
        let id: u64 = get(cx, Attr::CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer)?;
        ensure!(!seen.contains(&id), "allocation {round} has the buffer id {id} of an earlier one");
        seen.push(id);
        if round % 2 == 0 {
            ok!(cx, cuMemFree(pointer))?;
        }
    }
    Ok(())
}

fn strangers(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let local = 0u64;
    for pointer in [0x1234_5600, 0, &raw const local as u64] {
        let mut kind = 0u32;
        code!(
            cx,
            [CUDA_ERROR_INVALID_VALUE],
            cuPointerGetAttribute((&raw mut kind).cast(), Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)
        )?;
    }
    Ok(())
}

fn freed_memory(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(16 << 20)?;
    ok!(cx, cuMemFree(pointer))?;
    let mut kind = 0u32;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuPointerGetAttribute((&raw mut kind).cast(), Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)
    )
}

fn several(cx: &Cx, pointer: CUdeviceptr) -> Check<(u32, usize, u64)> {
    let (mut kind, mut context, mut address) = (99u32, 99usize, 99u64);
    let mut attributes = [
        Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attr::CU_POINTER_ATTRIBUTE_CONTEXT,
        Attr::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    ];
    let mut values: [*mut c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut context).cast(), (&raw mut address).cast()];
    ok!(cx, cuPointerGetAttributes(3, attributes.as_mut_ptr(), values.as_mut_ptr(), pointer))?;
    Ok((kind, context, address))
}

fn several_attributes_at_once(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(5000)?;
    ensure_eq!(
        several(cx, pointer)?,
        (CUmemorytype::CU_MEMORYTYPE_DEVICE.0, gpu.context.0, pointer),
        "memory type, context and device pointer"
    );
    Ok(())
}

/// Unlike the call for one attribute, this one succeeds and gives nothing.
fn several_attributes_of_a_stranger(cx: &Cx) -> Check {
    Gpu::new(cx)?;
    let (kind, context, _) = several(cx, 0x1234_5600)?;
    ensure_eq!((kind, context), (0, 0), "memory type and context of an unknown address");
    Ok(())
}

fn unknown_attribute(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(16)?;
    let mut value = [0u64; 8];
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuPointerGetAttribute(value.as_mut_ptr().cast(), Attr(9999), pointer)
    )?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuPointerGetAttribute(std::ptr::null_mut(), Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)
    )
}

fn sync_memops_can_be_set(cx: &Cx) -> Check {
    let gpu = Gpu::new(cx)?;
    let pointer = gpu.alloc(4096)?;
    let on = 1u32;
    ok!(cx, cuPointerSetAttribute((&raw const on).cast(), Attr::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer))?;
    let value: u32 = get(cx, Attr::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer)?;
    ensure_eq!(value & 0xff, 1, "synchronous memory operations");
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuPointerSetAttribute((&raw const on).cast(), Attr::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)
    )
}
