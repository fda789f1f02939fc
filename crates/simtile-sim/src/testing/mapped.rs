//! Virtual memory and multicast through the table. What a GPU says is in `tests/facts`; here is the rest.

use super::memory::INVALID;
use super::*;
use crate::ReportKind;
use std::ptr::null_mut;

const M: usize = 2 << 20;

fn prop(device: i32) -> CUmemAllocationProp {
    // SAFETY: all-zero is a valid value of this C structure.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
    prop
}

fn access(device: i32) -> CUmemAccessDesc {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemAccessDesc { location: prop(device).location, flags }
}

fn memory(rig: &Rig, device: i32, bytes: usize) -> u64 {
    let mut handle = 0;
    ok!(rig, cuMemCreate(&mut handle, bytes, &prop(device), 0));
    handle
}

/// Maps a handle for both devices.
fn map(rig: &Rig, handle: u64, bytes: usize) -> u64 {
    let mut address = 0;
    ok!(rig, cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
    ok!(rig, cuMemMap(address, bytes, 0, handle, 0));
    let descs = [access(0), access(1)];
    ok!(rig, cuMemSetAccess(address, bytes, descs.as_ptr(), 2));
    address
}

fn object(bytes: usize, devices: u32) -> CUmulticastObjectProp {
    CUmulticastObjectProp { numDevices: devices, size: bytes, handleTypes: 0, flags: 0 }
}

#[test]
fn a_write_to_a_multicast_mapping_reaches_every_device() {
    let rig = Rig::with(Simulator::builder().devices(2));
    let mut multicast = 0;
    ok!(rig, cuMulticastCreate(&mut multicast, &object(2 * M, 2)));
    ok!(rig, cuMulticastAddDevice(multicast, 0));
    ok!(rig, cuMulticastAddDevice(multicast, 1));
    let (a, b) = (memory(&rig, 0, 2 * M), memory(&rig, 1, 2 * M));
    let (own, other) = (map(&rig, a, 2 * M), map(&rig, b, 2 * M));
    ok!(rig, cuMulticastBindMem(multicast, 0, a, 0, 2 * M, 0));
    ok!(rig, cuMulticastBindAddr(multicast, 0, other, 2 * M, 0));
    let all = map(&rig, multicast, 2 * M);
    ok!(rig, cuMemsetD8(all + 100, 7, 50));
    assert_eq!(rig.download(own + 100, 50), [7; 50]);
    assert_eq!(rig.download(other + 100, 50), [7; 50]);
    rig.upload(all, &[1, 2, 3]);
    ok!(rig, cuMemsetD8(other, 9, 3));
    // Device 0 reads its own.
    assert_eq!(rig.download(all, 3), [1, 2, 3]);
    ok!(rig, cuMulticastUnbind(multicast, 1, 0, 2 * M));
    ok!(rig, cuMemsetD8(all, 5, 3));
    assert_eq!((rig.download(own, 3), rig.download(other, 3)), (vec![5; 3], vec![9; 3]));
    ok!(rig, cuMulticastUnbind(multicast, 0, 0, 2 * M));
    assert_eq!(code!(rig, cuMemsetD8(all, 5, 3)), INVALID);
    // Handles and mappings go in any order.
    ok!(rig, cuMemRelease(multicast));
    ok!(rig, cuMemUnmap(all, 2 * M));
    assert_eq!(code!(rig, cuMulticastAddDevice(multicast, 0)), INVALID);
}

#[test]
fn multicast_arguments_are_checked() {
    let rig = Rig::with(Simulator::builder().devices(2));
    let (mut handle, mut size) = (0, 0);
    let minimum = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
    ok!(rig, cuMulticastGetGranularity(&mut size, &object(M, 2), minimum));
    assert_eq!(size, M);
    assert_eq!(
        code!(rig, cuMulticastGetGranularity(&mut size, &object(M, 2), CUmulticastGranularity_flags(7))),
        INVALID
    );
    assert_eq!(code!(rig, cuMulticastGetGranularity(null_mut(), &object(M, 2), minimum)), INVALID);
    assert_eq!(code!(rig, cuMulticastGetGranularity(&mut size, &object(M, 0), minimum)), INVALID);
    for bad in [object(0, 2), object(M + 1, 2), object(M, 0), object(M, 3)] {
        assert_eq!(code!(rig, cuMulticastCreate(&mut handle, &bad)), INVALID);
    }
    let flagged = CUmulticastObjectProp { flags: 1, ..object(M, 2) };
    assert_eq!(code!(rig, cuMulticastCreate(&mut handle, &flagged)), INVALID);
    assert_eq!(code!(rig, cuMulticastCreate(null_mut(), &object(M, 2))), INVALID);
    assert_eq!(code!(rig, cuMulticastCreate(&mut handle, std::ptr::null())), INVALID);
    let shared = CUmulticastObjectProp { handleTypes: 1, ..object(M, 2) };
    assert_eq!(code!(rig, cuMulticastCreate(&mut handle, &shared)), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    ok!(rig, cuMulticastCreate(&mut handle, &object(M, 2)));
    assert_eq!(code!(rig, cuMulticastAddDevice(handle, 5)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(code!(rig, cuMulticastAddDevice(77, 0)), INVALID);
    ok!(rig, cuMulticastAddDevice(handle, 0));
    let a = memory(&rig, 0, M);
    assert_eq!(code!(rig, cuMulticastBindMem(handle, 0, a, 0, M, 0)), INVALID, "a device is missing");
    ok!(rig, cuMulticastAddDevice(handle, 1));
    assert_eq!(code!(rig, cuMulticastBindMem(handle, 0, a, 0, M, 1)), INVALID);
    assert_eq!(code!(rig, cuMulticastBindMem(handle, 0, handle, 0, M, 0)), INVALID);
    assert_eq!(code!(rig, cuMulticastBindMem(handle, 0, 77, 0, M, 0)), INVALID);
    let plain = rig.alloc(M);
    assert_eq!(code!(rig, cuMulticastBindAddr(handle, 0, plain, M, 0)), INVALID);
    assert_eq!(code!(rig, cuMulticastBindAddr(handle, 0, plain, M, 1)), INVALID);
    assert_eq!(code!(rig, cuMulticastUnbind(handle, 0, 0, M)), INVALID);
    assert_eq!(code!(rig, cuMulticastUnbind(handle, 9, 0, M)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    // It is no physical memory.
    // SAFETY: all-zero is a valid value of this C structure.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    assert_eq!(code!(rig, cuMemGetAllocationPropertiesFromHandle(&mut prop, handle)), INVALID);
    assert_eq!(rig.kinds(), [ReportKind::Unsupported]);
}

#[test]
fn handles_for_other_processes_are_not_made() {
    let rig = Rig::new();
    let mut shared = prop(0);
    shared.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (mut handle, mut fd) = (0, 0u64);
    ok!(rig, cuMemCreate(&mut handle, M, &shared, 0));
    let kind = shared.requestedHandleTypes;
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    assert_eq!(code!(rig, cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0)), unsupported);
    assert_eq!(code!(rig, cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 1)), INVALID);
    assert_eq!(code!(rig, cuMemExportToShareableHandle(null_mut(), handle, kind, 0)), INVALID);
    let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    assert_eq!(code!(rig, cuMemExportToShareableHandle((&raw mut fd).cast(), handle, fabric, 0)), INVALID);
    assert_eq!(code!(rig, cuMemImportFromShareableHandle(&mut handle, null_mut(), kind)), unsupported);
    let mut host = prop(0);
    host.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
    assert_eq!(code!(rig, cuMemCreate(&mut handle, M, &host, 0)), unsupported);
    assert_eq!(rig.kinds(), [ReportKind::Unsupported; 3]);
}

#[test]
fn unmapping_or_losing_access_under_queued_work_is_a_fault() {
    for unmap in [true, false] {
        let rig = Rig::with(Simulator::builder().devices(2));
        let stream = rig.stream();
        let handle = memory(&rig, 0, M);
        let address = map(&rig, handle, M);
        let gate = rig.sim.gate(stream).unwrap();
        ok!(rig, cuMemsetD8Async(address, 1, 16, stream));
        if unmap {
            ok!(rig, cuMemUnmap(address, M));
        } else {
            let none =
                CUmemAccessDesc { flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE, ..access(0) };
            ok!(rig, cuMemSetAccess(address, M, &none, 1));
        }
        drop(gate);
        assert_eq!(code!(rig, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(rig.kinds(), [ReportKind::MemoryFault]);
    }
}

#[test]
fn physical_memory_counts_against_the_device() {
    let rig = Rig::with(Simulator::builder().memory(8 << 20).devices(2));
    let a = memory(&rig, 0, 3 * M);
    let mut b = 0;
    assert_eq!(code!(rig, cuMemCreate(&mut b, 2 * M, &prop(0), 0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let address = map(&rig, a, 3 * M);
    ok!(rig, cuMemRelease(a));
    assert_eq!(rig.free_bytes(), M);
    ok!(rig, cuMemUnmap(address, 3 * M));
    assert_eq!(rig.free_bytes(), 4 * M);
}
