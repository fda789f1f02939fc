//! Devices: names of physical GPUs.

use crate::capabilities::{self, Capabilities};
use crate::error::{CallError, DeviceError, On};
use core::fmt;
use simtile_driver::sys::{CUdevice, CUdevice_attribute, CUuuid};
use simtile_driver::{Driver, DriverError, DriverKind, Entry, call, sys::CUresult};
use simtile_types::contract::DeviceLaunchLimits;

/// A physical GPU of a driver. A name, not an owner: `Copy`, and good without a context.
///
/// Two devices are equal if driver and ordinal are. Equal devices do not make equal contexts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
    ordinal: u32,
}

/// A device's universally unique id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// As CUDA tools write it: `GPU-` and five groups of hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Device {
    /// How many devices a driver shows. Initialises the driver.
    ///
    /// # Errors
    /// The driver's; a driver without a device answers `CUDA_ERROR_NO_DEVICE`, which counts as 0 here.
    pub fn count(driver: Driver) -> Result<usize, DeviceError> {
        let on = || "counting devices".to_string();
        if crate::sys::is_forked() {
            return Err(CallError::Forked).on(on);
        }
        match init(driver) {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NO_DEVICE => return Ok(0),
            other => other.map_err(gone).on(on)?,
        }
        let mut count = 0;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuDeviceGetCount(&mut count)) }.map_err(gone).on(on)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device of this ordinal. Initialises the driver; makes no context.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDevice`], or the driver's.
    pub fn new(driver: Driver, ordinal: usize) -> Result<Self, DeviceError> {
        let count = Self::count(driver)?;
        let (Ok(index), true) = (i32::try_from(ordinal), ordinal < count) else {
            return Err(DeviceError::NoSuchDevice { ordinal, count });
        };
        let mut raw = 0;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(driver, cuDeviceGet(&mut raw, index)) }
            .map_err(gone)
            .on(|| format!("device {ordinal}"))?;
        Ok(Self { driver, raw, ordinal: index.unsigned_abs() })
    }

    /// All devices of a driver, in ordinal order.
    ///
    /// # Errors
    /// The driver's.
    pub fn all(driver: Driver) -> Result<Vec<Self>, DeviceError> {
        (0..Self::count(driver)?).map(|ordinal| Self::new(driver, ordinal)).collect()
    }

    /// The driver that shows this device.
    pub fn driver(self) -> Driver {
        self.driver
    }

    /// Its number in that driver, from 0.
    pub fn ordinal(self) -> usize {
        self.ordinal as usize
    }

    /// The driver's handle.
    pub fn cu_device(self) -> CUdevice {
        self.raw
    }

    /// Whether a simulated driver stands behind it.
    pub fn is_simulated(self) -> bool {
        self.driver.kind() != DriverKind::Cuda
    }

    /// The device's name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// The driver's.
    pub fn name(self) -> Result<String, DeviceError> {
        let mut text = [0u8; 256];
        // SAFETY: the buffer has the stated length.
        unsafe { call!(self.driver, cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as i32, self.raw)) }
            .map_err(gone)
            .on(|| self.to_string())?;
        Ok(until_nul(&text))
    }

    /// The device's universally unique id.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(self) -> Result<Uuid, DeviceError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(self.driver, cuDeviceGetUuid(&mut uuid, self.raw)) }
            .map_err(gone)
            .on(|| self.to_string())?;
        Ok(Uuid(uuid.bytes.map(|byte| byte as u8)))
    }

    /// Place on the PCI bus, such as `0000:1b:00.0`.
    ///
    /// # Errors
    /// The driver's.
    pub fn pci_bus_id(self) -> Result<String, DeviceError> {
        let mut text = [0u8; 32];
        // SAFETY: the buffer has the stated length.
        unsafe {
            call!(self.driver, cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, self.raw))
        }
        .map_err(gone)
        .on(|| self.to_string())?;
        Ok(until_nul(&text))
    }

    /// Memory of the device in bytes, used or not.
    ///
    /// # Errors
    /// The driver's.
    pub fn total_memory(self) -> Result<usize, DeviceError> {
        let mut bytes = 0;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(self.driver, cuDeviceTotalMem(&mut bytes, self.raw)) }
            .map_err(gone)
            .on(|| self.to_string())?;
        Ok(bytes)
    }

    /// Any attribute, asked from the driver at each call.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_INVALID_VALUE` for an attribute it does not know.
    pub fn attribute(self, attribute: CUdevice_attribute) -> Result<i32, DeviceError> {
        self.raw_attribute(attribute).map_err(gone).on(|| format!("{self}, {attribute:?}"))
    }

    pub(crate) fn raw_attribute(self, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
        let mut value = 0;
        // SAFETY: the out-pointer is valid for the call.
        unsafe { call!(self.driver, cuDeviceGetAttribute(&mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// What the device can do; asked once and kept.
    ///
    /// # Errors
    /// The driver's. A failure is not kept.
    pub fn capabilities(self) -> Result<&'static Capabilities, DeviceError> {
        capabilities::of(self)
    }

    /// Compute capability, as (major, minor).
    ///
    /// # Errors
    /// As [`Device::capabilities`].
    pub fn compute_capability(self) -> Result<(u32, u32), DeviceError> {
        Ok(self.capabilities()?.compute_capability)
    }

    /// What the device allows of any launch.
    ///
    /// # Errors
    /// As [`Device::capabilities`].
    pub fn launch_limits(self) -> Result<DeviceLaunchLimits, DeviceError> {
        Ok(self.capabilities()?.launch_limits)
    }
}

/// Initialises a driver. Cheap when it was done before.
fn init(driver: Driver) -> Result<(), DriverError> {
    // SAFETY: 0 is the only flag there is.
    unsafe { call!(driver, cuInit(0)) }
}

/// Tells a driver that has shut down from other failures.
fn gone(error: DriverError) -> CallError {
    if error.code() == CUresult::CUDA_ERROR_DEINITIALIZED && error.entry() != Entry::cuInit {
        CallError::Deinitialized
    } else {
        CallError::Driver(error)
    }
}

fn until_nul(text: &[u8]) -> String {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.ordinal)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("driver", &self.driver).field("ordinal", &self.ordinal).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_look_like_those_of_the_tools() {
        let uuid = Uuid(core::array::from_fn(|i| i as u8 * 17));
        assert_eq!(uuid.to_string(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn names_end_at_the_first_nul() {
        assert_eq!(until_nul(b"abc\0def"), "abc");
        assert_eq!(until_nul(b"abc"), "abc");
    }
}
