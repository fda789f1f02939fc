//! Multicast: one range of addresses over a memory on each of several devices. What is written through it arrives in all.
//!
//! On the simulator only: creating such objects on real machines needs an agreement between them and the fabric that this runtime
//! does not make, so there it is refused before any call.

use super::cast::RawDeviceBuffer;
use super::vmm::{Mapped, PhysicalMemory, align_size};
use super::{Allocation, DeviceMemoryMut};
use crate::error::{MemoryError, On};
use crate::stream::SubmitBuilder;
use crate::{Context, Device};
use core::fmt;
use simtile_driver::call;
use simtile_driver::sys::{CUdeviceptr, CUmulticastObjectProp};
use simtile_sync::Arc;

/// Memory of several devices that is written at once.
pub struct MulticastTeam {
    /// The range that reaches all. Before the members: it goes first.
    all: RawDeviceBuffer,
    members: Vec<RawDeviceBuffer>,
}

impl MulticastTeam {
    /// At least `bytes` bytes, zeroed, on the device of each context; rounded up to the granularity. Kernels of all of them reach all of it.
    ///
    /// # Errors
    /// [`MemoryError::Unsupported`] on a real driver, with fewer than two devices, with one device twice, or with devices that are no
    /// peers; or the driver's.
    pub fn new(contexts: &[&Arc<Context>], bytes: usize) -> Result<Self, MemoryError> {
        let unsupported =
            |why: &str| Err(MemoryError::Unsupported { what: "a multicast team".into(), why: why.into() });
        let devices: Vec<Device> = contexts.iter().map(|context| context.device()).collect();
        let [first, _, ..] = contexts else { return unsupported("it takes two devices") };
        if devices.iter().any(|device| !device.is_simulated()) {
            return unsupported("it is for simulated devices only");
        }
        if devices.iter().enumerate().any(|(i, device)| devices[..i].contains(device)) {
            return unsupported("a device is named twice");
        }
        let bytes = align_size(bytes.max(1), first.allocation_granularity()?)?;
        let on = || format!("a multicast team of {} devices", devices.len());
        let parts = contexts
            .iter()
            .map(|context| context.physical_memory(bytes))
            .collect::<Result<Vec<Arc<PhysicalMemory>>, MemoryError>>()?;
        let count = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let property = CUmulticastObjectProp { numDevices: count, size: bytes, handleTypes: 0, flags: 0 };
        let raw = first
            .with_current(|driver| {
                let mut raw = 0;
                // SAFETY: the out-pointer and the property are valid for the call.
                unsafe { call!(driver, cuMulticastCreate(&mut raw, &property)) }?;
                Ok(raw)
            })
            .on::<MemoryError>(on)?;
        // From here on its drop undoes what was done.
        let mut object = PhysicalMemory::of_team(raw, bytes, first);
        let joined = first.with_current(|driver| {
            for device in &devices {
                // SAFETY: the object is alive.
                unsafe { call!(driver, cuMulticastAddDevice(raw, device.cu_device())) }?;
            }
            for (device, part) in devices.iter().zip(&parts) {
                // SAFETY: object and memory are alive.
                unsafe { call!(driver, cuMulticastBindMem(raw, 0, part.handle(), 0, bytes, 0)) }?;
                object.bind(*device, part.clone());
            }
            Ok(())
        });
        joined.on::<MemoryError>(on)?;
        let mut members = Vec::new();
        for (context, part) in contexts.iter().zip(&parts) {
            let member = context.reserve(bytes)?.map(0, part, &devices)?;
            members.push(member);
        }
        let range = first.reserve(bytes)?;
        let (mapped, address) = (Mapped::new(range.clone(), &devices)?, range.base());
        mapped.add(0, Arc::new(object))?;
        let all = RawDeviceBuffer::from_owner(Allocation::mapped_at(mapped, address, bytes), bytes);
        for (context, member) in contexts.iter().zip(&mut members) {
            let stream =
                context.new_stream().map_err(<MemoryError as crate::error::OnStream>::from_stream)?;
            member.view_mut().zero(&stream)?;
        }
        Ok(Self { all, members })
    }

    /// Address through which stores reach every device, and loads the reader's own.
    pub fn cu_deviceptr(&self) -> CUdeviceptr {
        self.all.cu_deviceptr()
    }

    /// Bytes on each device.
    pub fn num_bytes(&self) -> usize {
        self.all.num_bytes()
    }

    /// Each device's own memory, in the order of the contexts.
    pub fn members(&self) -> &[RawDeviceBuffer] {
        &self.members
    }

    /// As [`MulticastTeam::members`], exclusively.
    pub fn members_mut(&mut self) -> &mut [RawDeviceBuffer] {
        &mut self.members
    }

    /// Says that work writes through the address, and so to the memory of every device.
    pub fn written<'a>(&'a mut self, mut builder: SubmitBuilder<'a>) -> SubmitBuilder<'a> {
        builder = touch(builder, &mut self.all);
        self.members.iter_mut().fold(builder, touch)
    }
}

fn touch<'a>(builder: SubmitBuilder<'a>, memory: &'a mut impl DeviceMemoryMut) -> SubmitBuilder<'a> {
    builder.write(memory)
}

impl fmt::Debug for MulticastTeam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastTeam").field("all", &self.all).field("members", &self.members).finish()
    }
}
