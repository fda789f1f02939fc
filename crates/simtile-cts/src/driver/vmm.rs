//! Virtual memory: reserve, create, map, allow.

use crate::frame::{Check, Cx, Need, same};
use crate::gpu::Gpu;
use crate::{code, cu, ensure, ensure_eq, ok};
use simtile_driver::sys::*;

const VMM: Need = Need::Attribute(
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    "virtual memory management",
);

crate::frame::registry::tests! { Driver, "vmm";
    granularity needs [VMM],
    map_and_use needs [VMM],
    two_mappings_are_one_memory needs [VMM],
    parts_side_by_side needs [VMM],
    memory_lives_until_the_last_mapping needs [VMM],
    access_is_needed needs [VMM],
    properties_of_a_handle needs [VMM],
    handle_of_an_address needs [VMM],
    sizes_are_checked needs [VMM],
    mapping_twice_is_refused needs [VMM],
    mapped_range_cannot_be_freed needs [VMM],
    strangers needs [VMM],
    reservations_do_not_overlap needs [VMM],
    file_descriptor_round_trip needs [VMM],
}

pub(super) fn property(device: CUdevice, handle: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_allocFlags {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

const NONE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

struct Vmm<'a> {
    gpu: Gpu<'a>,
    page: usize,
}

impl<'a> Vmm<'a> {
    fn new(cx: &'a Cx) -> Check<Self> {
        let gpu = Gpu::new(cx)?;
        let mut page = 0;
        ok!(
            gpu,
            cuMemGetAllocationGranularity(
                &mut page,
                &property(gpu.device, NONE),
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
            )
        )?;
        ensure!(page.is_power_of_two(), "granularity {page}");
        Ok(Self { gpu, page })
    }

    fn reserve(&self, pages: usize) -> Check<CUdeviceptr> {
        let mut pointer = 0;
        ok!(self.gpu, cuMemAddressReserve(&mut pointer, pages * self.page, 0, 0, 0))?;
        ensure!(
            (pointer as usize).is_multiple_of(self.page),
            "reserved {pointer:#x}, granularity {}",
            self.page
        );
        Ok(pointer)
    }

    fn create(&self, pages: usize) -> Check<CUmemGenericAllocationHandle> {
        let mut handle = 0;
        ok!(self.gpu, cuMemCreate(&mut handle, pages * self.page, &property(self.gpu.device, NONE), 0))?;
        Ok(handle)
    }

    fn map(&self, pointer: CUdeviceptr, pages: usize, handle: CUmemGenericAllocationHandle) -> Check {
        ok!(self.gpu, cuMemMap(pointer, pages * self.page, 0, handle, 0))
    }

    fn allow(&self, pointer: CUdeviceptr, pages: usize) -> Check {
        let access = CUmemAccessDesc {
            location: property(self.gpu.device, NONE).location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        ok!(self.gpu, cuMemSetAccess(pointer, pages * self.page, &access, 1))
    }

    fn unmap(&self, pointer: CUdeviceptr, pages: usize) -> Check {
        ok!(self.gpu, cuMemUnmap(pointer, pages * self.page))
    }

    fn access(&self, pointer: CUdeviceptr) -> Check<u64> {
        let mut flags = 99;
        ok!(self.gpu, cuMemGetAccess(&mut flags, &property(self.gpu.device, NONE).location, pointer))?;
        Ok(flags)
    }
}

fn granularity(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let mut recommended = 0;
    ok!(
        cx,
        cuMemGetAllocationGranularity(
            &mut recommended,
            &property(vmm.gpu.device, NONE),
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        )
    )?;
    ensure!(
        recommended >= vmm.page && recommended % vmm.page == 0,
        "recommended granularity {recommended}, minimum {}",
        vmm.page
    );
    Ok(())
}

fn map_and_use(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(2)?;
    let handle = vmm.create(2)?;
    vmm.map(pointer, 2, handle)?;
    vmm.allow(pointer, 2)?;
    ensure_eq!(
        vmm.access(pointer)?,
        u64::from(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE.0),
        "access of the device"
    );
    let values: Vec<u32> = (0..1000).collect();
    // Across the border of the two pages.
    let middle = pointer + vmm.page as u64 - 2000;
    vmm.gpu.write(middle, &values)?;
    same("words across a page border", &vmm.gpu.read::<u32>(middle, 1000)?, &values)?;
    vmm.unmap(pointer, 2)?;
    ok!(cx, cuMemRelease(handle))?;
    ok!(cx, cuMemAddressFree(pointer, 2 * vmm.page))
}

fn two_mappings_are_one_memory(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let handle = vmm.create(1)?;
    let (a, b) = (vmm.reserve(1)?, vmm.reserve(1)?);
    for pointer in [a, b] {
        vmm.map(pointer, 1, handle)?;
        vmm.allow(pointer, 1)?;
    }
    vmm.gpu.write(a + 64, &[1u32, 2, 3])?;
    same("words through the second mapping", &vmm.gpu.read::<u32>(b + 64, 3)?, &[1, 2, 3])
}

fn parts_side_by_side(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(3)?;
    // The third page first: mappings have no order.
    for (page, value) in [(2u64, 7u32), (0, 5), (1, 6)] {
        let place = pointer + page * vmm.page as u64;
        vmm.map(place, 1, vmm.create(1)?)?;
        vmm.allow(place, 1)?;
        ok!(cx, cuMemsetD32(place, value, vmm.page / 4))?;
    }
    ok!(cx, cuCtxSynchronize())?;
    let words = vmm.gpu.read::<u32>(pointer, 3 * vmm.page / 4)?;
    let expected: Vec<u32> = (0..words.len()).map(|i| 5 + (i * 4 / vmm.page) as u32).collect();
    same("words of three pages", &words, &expected)
}

fn memory_lives_until_the_last_mapping(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(1)?;
    let handle = vmm.create(1)?;
    vmm.map(pointer, 1, handle)?;
    vmm.allow(pointer, 1)?;
    ok!(cx, cuMemRelease(handle))?;
    vmm.gpu.write(pointer, &[9u32; 16])?;
    same("words after releasing the handle", &vmm.gpu.read::<u32>(pointer, 16)?, &[9; 16])?;
    vmm.unmap(pointer, 1)
}

fn access_is_needed(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(1)?;
    vmm.map(pointer, 1, vmm.create(1)?)?;
    ensure_eq!(vmm.access(pointer)?, 0, "access before it was given");
    let mut word = 0u32;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemcpyDtoH((&raw mut word).cast(), pointer, 4))?;
    vmm.allow(pointer, 1)?;
    vmm.gpu.write(pointer, &[3u32])?;
    ensure_eq!(vmm.gpu.word(pointer)?, 3, "word once access was given");
    Ok(())
}

fn properties_of_a_handle(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let handle = vmm.create(1)?;
    let mut found = property(-1, NONE);
    ok!(cx, cuMemGetAllocationPropertiesFromHandle(&mut found, handle))?;
    ensure_eq!(found.location.id, vmm.gpu.device, "device of a handle");
    ensure_eq!(found.type_, CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED, "type of a handle");
    Ok(())
}

fn handle_of_an_address(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(1)?;
    let handle = vmm.create(1)?;
    vmm.map(pointer, 1, handle)?;
    vmm.allow(pointer, 1)?;
    let mut found = 0;
    ok!(
        cx,
        cuMemRetainAllocationHandle(&mut found, std::ptr::without_provenance_mut(pointer as usize + 100))
    )?;
    ensure_eq!(found, handle, "handle of a mapped address");
    // Retained twice now: both have to be released before the memory goes with its mapping.
    ok!(cx, cuMemRelease(found))?;
    ok!(cx, cuMemRelease(handle))?;
    vmm.unmap(pointer, 1)
}

fn sizes_are_checked(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let device = vmm.gpu.device;
    let mut handle = 0;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE],
        cuMemCreate(&mut handle, vmm.page + 1, &property(device, NONE), 0)
    )?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemCreate(&mut handle, 0, &property(device, NONE), 0))?;
    let mut pointer = 0;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAddressReserve(&mut pointer, 0, 0, 0, 0))?;
    let pointer = vmm.reserve(2)?;
    let handle = vmm.create(1)?;
    // More than the handle has.
    code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuMemMap(pointer, 2 * vmm.page, 0, handle, 0))?;
    // Not at a page.
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemMap(pointer + 1, vmm.page, 0, handle, 0))
}

fn mapping_twice_is_refused(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(1)?;
    vmm.map(pointer, 1, vmm.create(1)?)?;
    let second = vmm.create(1)?;
    code!(
        cx,
        [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_ALREADY_MAPPED],
        cuMemMap(pointer, vmm.page, 0, second, 0)
    )
}

fn mapped_range_cannot_be_freed(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let pointer = vmm.reserve(1)?;
    vmm.map(pointer, 1, vmm.create(1)?)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAddressFree(pointer, vmm.page))?;
    vmm.unmap(pointer, 1)?;
    ok!(cx, cuMemAddressFree(pointer, vmm.page))
}

fn strangers(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let nowhere = 0x7_0000_0000_0000u64;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemUnmap(nowhere, vmm.page))?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemAddressFree(nowhere, vmm.page))?;
    let handle = vmm.create(1)?;
    code!(cx, [CUDA_ERROR_INVALID_VALUE], cuMemMap(nowhere, vmm.page, 0, handle, 0))
}

fn reservations_do_not_overlap(cx: &Cx) -> Check {
    let vmm = Vmm::new(cx)?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for pages in [1, 3, 2, 8] {
        let pointer = vmm.reserve(pages)?;
        let end = pointer + (pages * vmm.page) as u64;
        ensure!(ranges.iter().all(|&(a, b)| end <= a || b <= pointer), "{pointer:#x} is reserved twice");
        ranges.push((pointer, end));
    }
    Ok(())
}

/// What one process exports another can import, and so can itself.
fn file_descriptor_round_trip(cx: &Cx) -> Check {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    if cx.simulator().is_none() {
        cx.require(&[Need::Attribute(attribute, "file descriptors for memory")])?;
    }
    let vmm = Vmm::new(cx)?;
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let mut handle = 0;
    ok!(cx, cuMemCreate(&mut handle, vmm.page, &property(vmm.gpu.device, kind), 0))?;
    let mut descriptor = -1i32;
    let code = cu!(cx, cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, kind, 0));
    if cx.simulator().is_some() {
        ensure_eq!(vmm.gpu.attribute(attribute)?, 0, "file descriptors for memory");
        // Left out there, both ways: no descriptor that leads nowhere, no handle from one.
        ensure_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED, "export as a file descriptor");
        ensure_eq!(descriptor, -1, "file descriptor");
        let (mut imported, stranger) = (0, std::ptr::without_provenance_mut(3));
        code!(cx, [CUDA_ERROR_NOT_SUPPORTED], cuMemImportFromShareableHandle(&mut imported, stranger, kind))?;
        ensure_eq!(imported, 0, "imported handle");
        return super::linker::reported(cx, "is not supported by the simulator");
    }
    ensure_eq!(code, CUresult::CUDA_SUCCESS, "export as a file descriptor");
    ensure!(descriptor >= 0, "file descriptor {descriptor}");
    let mut imported = 0;
    ok!(
        cx,
        cuMemImportFromShareableHandle(
            &mut imported,
            std::ptr::without_provenance_mut(descriptor as usize),
            kind
        )
    )?;
    let (a, b) = (vmm.reserve(1)?, vmm.reserve(1)?);
    for (pointer, handle) in [(a, handle), (b, imported)] {
        vmm.map(pointer, 1, handle)?;
        vmm.allow(pointer, 1)?;
    }
    vmm.gpu.write(a, &[4u32, 5])?;
    same("words through the imported handle", &vmm.gpu.read::<u32>(b, 2)?, &[4, 5])
}
