//! Devices by our API.

use super::{Core, refused};
use crate::frame::{Check, Cx, Need};
use crate::{ensure, ensure_eq};
use simtile_core::{Device, DeviceError};

crate::frame::registry::tests! { Core, "core_devices";
    are_counted_and_named_without_a_context proves ["H1"],
    equal_by_driver_and_ordinal proves ["H1"],
    uuids_name_physical_devices proves ["H1"] needs [Need::Devices(2)],
    capabilities_agree_with_attributes proves ["H1"],
    ordinal_out_of_range proves ["F2"],
}

fn are_counted_and_named_without_a_context(cx: &Cx) -> Check {
    let all = Device::all(cx.driver())?;
    ensure_eq!(all.len(), Device::count(cx.driver())?, "devices listed and counted");
    for (ordinal, device) in all.iter().enumerate() {
        ensure_eq!(device.ordinal(), ordinal, "ordinal");
        ensure!(!device.name()?.is_empty(), "device {ordinal} has no name");
        ensure!(device.total_memory()? > 0, "device {ordinal} has no memory");
        ensure!(device.uuid()?.to_string().starts_with("GPU-"), "uuid {}", device.uuid()?);
        ensure_eq!(device.is_simulated(), cx.simulator().is_some(), "device {ordinal} is simulated");
    }
    // None of this made a context.
    let mut current = simtile_driver::sys::CUcontext(1);
    crate::ok!(cx, cuCtxGetCurrent(&mut current))?;
    ensure!(current.is_null(), "a context is current after asking devices");
    Ok(())
}

fn equal_by_driver_and_ordinal(cx: &Cx) -> Check {
    let (a, b) = (Device::new(cx.driver(), 0)?, Device::new(cx.driver(), 0)?);
    ensure_eq!(a, b, "one device named twice");
    ensure_eq!(a.uuid()?, b.uuid()?, "its uuid");
    ensure_eq!(a.driver(), cx.driver(), "its driver");
    Ok(())
}

fn uuids_name_physical_devices(cx: &Cx) -> Check {
    let (a, b) = (Device::new(cx.driver(), 0)?, Device::new(cx.driver(), 1)?);
    ensure!(a != b, "two devices are equal");
    ensure!(a.uuid()? != b.uuid()?, "two devices have the uuid {}", a.uuid()?);
    ensure!(a.pci_bus_id()? != b.pci_bus_id()?, "two devices are at {}", a.pci_bus_id()?);
    Ok(())
}

fn capabilities_agree_with_attributes(cx: &Cx) -> Check {
    let core = Core::new(cx)?;
    let (major, minor) = cx.capability()?;
    ensure_eq!(core.device.compute_capability()?, (major as u32, minor as u32), "compute capability");
    ensure_eq!(
        core.device.capabilities()?,
        core.context.capabilities()?,
        "capabilities of device and context"
    );
    Ok(())
}

fn ordinal_out_of_range(cx: &Cx) -> Check {
    let count = Device::count(cx.driver())?;
    for ordinal in [count, count + 7, usize::MAX] {
        let error = refused(
            Device::new(cx.driver(), ordinal),
            &[&format!("no device {ordinal}"), &format!("shows {count}")],
        )?;
        ensure!(matches!(error, DeviceError::NoSuchDevice { .. }), "{error:?}");
    }
    Ok(())
}
