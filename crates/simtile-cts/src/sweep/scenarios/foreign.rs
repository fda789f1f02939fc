//! Memory of others, exports and their return, DLPack.

use super::{Outcome, Rig, Stop, all};
use crate::theirs::{Theirs, current};
use simtile_core::DeviceBuffer;
use simtile_core::dlpack::{self, abi::*};
use simtile_driver::call;
use std::ffi::c_void;

pub(super) fn owners(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut x = DeviceBuffer::<u32>::from_foreign(Theirs::new(context, 400, &rig.foreign_bytes)?)?;
    x.copy_from_slice(&a, &[5; 100])?;
    let owner = Theirs::new(context, 400, &rig.foreign_bytes)?;
    let address = owner.address();
    // SAFETY: the memory lives as long as the owner.
    let mut y =
        unsafe { DeviceBuffer::<u32>::borrow_raw_parts(context, address, 100, Some(Box::new(owner))) }?;
    y.copy_from(&b, &x)?;
    // A second handle of bytes that are known.
    // SAFETY: used through the runtime alone.
    let alias = unsafe { DeviceBuffer::<u32>::borrow_raw_parts(context, address + 40, 10, None) }?;
    drop((x, y));
    all("the alias", &alias.to_vec(&a)?, 10, 5)
}

pub(super) fn exports(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let driver = context.driver();
    let mut x = DeviceBuffer::<u32>::zeroed(&a, 64)?;
    x.fill(&a, 1)?;
    let exported = x.export().map_err(|refused| refused.error)?;
    exported.follow_on(&b)?;
    let (address, raw) = (exported.cu_deviceptr(), b.cu_stream());
    // SAFETY: the memory is exported, and the stream follows what used it.
    let set = current(context, || unsafe { call!(driver, cuMemsetD32Async(address, 7, 64, raw)) });
    // SAFETY: the foreign work is on that stream.
    let mut back = match unsafe { exported.take_back(&b) } {
        Ok(back) => back,
        Err(refused) => {
            // The foreign work is over once everything is.
            context.synchronize_all()?;
            return Err(refused.error.into());
        }
    };
    set?;
    all("what came back", &back.to_vec(&a)?, 64, 7)?;
    let shared = back.export_shared()?;
    all("while it is shared", &back.to_vec(&b)?, 64, 7)?;
    // SAFETY: nobody used it.
    drop(unsafe { shared.take_back(&a) }.map_err(|refused| refused.error)?);
    back.fill(&b, 2)?;
    let exported = back.export().map_err(|refused| refused.error)?;
    // SAFETY: nobody used it.
    let back = unsafe { exported.take_back_unknown() };
    let synchronised = context.synchronize_all();
    if synchronised.is_err() {
        // Until everything was waited for nobody may use it.
        drop(back);
        context.synchronize_all()?;
        return synchronised.map_err(Into::into);
    }
    all("after a synchronisation", &back.to_vec(&a)?, 64, 2)
}

struct Producer {
    shape: [i64; 1],
    owner: Theirs,
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: `dlpack_tensors` made both boxes.
    unsafe {
        let producer = Box::from_raw((*tensor).manager_ctx.cast::<Producer>());
        drop(Box::from_raw(tensor));
        drop(producer);
    }
}

pub(super) fn dlpack_tensors(rig: &Rig) -> Outcome {
    let context = &rig.contexts[0];
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let mut producer =
        Box::new(Producer { shape: [50], owner: Theirs::new(context, 200, &rig.foreign_bytes)? });
    let (shape, address) = (producer.shape.as_mut_ptr(), producer.owner.address());
    let Some(dtype) = dlpack::to_dl(simtile_types::DTypeId::U32) else {
        return Err(Stop::Wrong("no type for u32".into()));
    };
    let tensor = Box::into_raw(Box::new(DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx: Box::into_raw(producer).cast::<c_void>(),
        deleter: Some(delete),
        flags: 0,
        dl_tensor: DLTensor {
            data: std::ptr::with_exposed_provenance_mut(address as usize),
            device: DLDevice { device_type: DLDeviceType::kDLCUDA, device_id: 0 },
            ndim: 1,
            dtype,
            shape,
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        },
    }));
    // SAFETY: the producer keeps to the protocol, and nobody else uses the memory.
    let mut imported = unsafe { dlpack::import::<u32>(context, tensor) }?;
    imported.buffer.fill(&a, 6)?;
    all("the tensor", &imported.buffer.to_vec(&b)?, 50, 6)?;
    drop(imported);
    let mut out = DeviceBuffer::<u32>::zeroed(&a, 12)?;
    out.fill(&b, 3)?;
    let exported = out.export().map_err(|refused| refused.error)?;
    // SAFETY: the scenario is the consumer, and keeps to the protocol.
    let tensor = unsafe { dlpack::export(exported, &[3, 4], Some(&a)) }?;
    // SAFETY: called once.
    unsafe {
        if let Some(deleter) = tensor.as_ref().deleter {
            deleter(tensor.as_ptr());
        }
    }
    a.synchronize()?;
    Ok(())
}
