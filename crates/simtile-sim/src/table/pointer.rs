//! Pointer attributes.

use super::memory::unsupported;
use crate::core::Res;
use crate::entry::{Call, entries};
use crate::memory::{Allocation, GRANULARITY, MemoryKind, RESERVE_STEP};
use core::ffi::{c_uint, c_void};
use simtile_driver::sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A value of an attribute, with the size that the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Word(u32),
    Long(u64),
}

impl Value {
    /// # Safety
    /// `data` is valid for a value of the attribute's type.
    unsafe fn write(self, data: *mut c_void) {
        // SAFETY: says the caller.
        unsafe {
            match self {
                Self::Word(value) => data.cast::<u32>().write_unaligned(value),
                Self::Long(value) => data.cast::<u64>().write_unaligned(value),
            }
        }
    }
}

/// The value of an attribute at an address.
fn attribute(call: &Call<'_>, which: CUpointer_attribute, address: u64, a: &Allocation) -> Res<Value> {
    use CUpointer_attribute as A;
    let is = |yes: bool| Ok(Value::Word(u32::from(yes)));
    let host = a.kind.is_host();
    // A VMM mapping shows its reservation as the range and itself as the mapping.
    let (range, range_bytes) = if a.kind == MemoryKind::Virtual {
        call.core.heap.vmm.reservation_of(address).unwrap_or((a.base, a.bytes))
    } else {
        (a.base, a.bytes)
    };
    match which {
        A::CU_POINTER_ATTRIBUTE_CONTEXT => Ok(Value::Long(a.origin.context as u64)),
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Ok(Value::Word(if a.kind == MemoryKind::Pinned {
            CUmemorytype::CU_MEMORYTYPE_HOST.0
        } else {
            CUmemorytype::CU_MEMORYTYPE_DEVICE.0
        })),
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Ok(Value::Long(address)),
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER if host => Ok(Value::Long(address)),
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER => Err(INVALID),
        A::CU_POINTER_ATTRIBUTE_P2P_TOKENS => Err(unsupported(call, "the attribute P2P_TOKENS")),
        A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => is(a.sync_memops()),
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID | A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Ok(Value::Long(a.id)),
        A::CU_POINTER_ATTRIBUTE_IS_MANAGED => is(a.kind == MemoryKind::Managed),
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Ok(Value::Word(a.device as u32)),
        A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => is(a.kind == MemoryKind::Device),
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Ok(Value::Long(range)),
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Ok(Value::Long(range_bytes)),
        A::CU_POINTER_ATTRIBUTE_MAPPED => is(true),
        A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Ok(Value::Long(0)),
        A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            Ok(Value::Word(a.rights().map_or(3, |rights| rights.get(a.device))))
        }
        A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Ok(Value::Long(a.origin.pool as u64)),
        A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            // The blocks that the real driver maps at a time.
            let step = if a.kind == MemoryKind::Pool { RESERVE_STEP } else { GRANULARITY };
            Ok(Value::Long(a.bytes.next_multiple_of(step)))
        }
        A::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Ok(Value::Long(a.base)),
        _ => Err(INVALID),
    }
}

fn is_known(which: CUpointer_attribute) -> bool {
    (1..=CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE.0).contains(&which.0)
}

entries! {
    fn cuPointerGetAttribute(call, data: *mut c_void, which: CUpointer_attribute, address: CUdeviceptr) {
        if data.is_null() || !is_known(which) {
            return Err(INVALID);
        }
        let allocation = call.core.space.find(address).ok_or(INVALID)?;
        let value = attribute(call, which, address, &allocation)?;
        // SAFETY: not null; the caller says that it has room for this attribute.
        unsafe { value.write(data.raw()) };
        Ok(())
    }

    fn cuPointerGetAttributes(call, count: c_uint, which: *mut CUpointer_attribute, data: *mut *mut c_void, address: CUdeviceptr) {
        if count == 0 || which.is_null() || data.is_null() {
            return Err(INVALID);
        }
        let wanted = (0..count as usize).map(|i| which.get_at(i)).collect::<Res<Vec<_>>>()?;
        if !wanted.iter().all(|which| is_known(*which)) {
            return Err(INVALID);
        }
        let allocation = call.core.space.find(address);
        for (i, &which) in wanted.iter().enumerate() {
            let out = data.get_at(i)?;
            let value = allocation.as_ref().and_then(|a| attribute(call, which, address, a).ok());
            // What does not apply has no value: the real driver writes a memory type of 0, the ordinal -2, a null
            // host pointer, and leaves the rest alone.
            let value = value.or(match which {
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Some(Value::Word(0)),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Some(Value::Word(CU_DEVICE_INVALID as u32)),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT
                | CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
                | CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER => Some(Value::Long(0)),
                _ => None,
            });
            if let Some(value) = value.filter(|_| !out.is_null()) {
                // SAFETY: not null; the caller says that each has room for its attribute.
                unsafe { value.write(out) };
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(call, value: *const c_void, which: CUpointer_attribute, address: CUdeviceptr) {
        if value.is_null() || which != CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Err(INVALID);
        }
        let allocation = call.core.space.find(address).ok_or(INVALID)?;
        // SAFETY: not null; the value of this attribute is an unsigned int.
        allocation.set_sync_memops(unsafe { value.raw().cast::<c_uint>().read_unaligned() } != 0);
        Ok(())
    }
}
