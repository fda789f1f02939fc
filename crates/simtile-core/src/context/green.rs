//! Green contexts: parts of a device's multiprocessors for the streams of one user.
//!
//! A green context shares everything with its device's primary context but its streams. So it is a handle of the primary
//! context here, tracked with all others of it; only streams are made through the driver's green one.

use super::{Context, Owner};
use crate::Device;
use crate::error::{ContextError, On};
use simtile_driver::sys::{
    CUdevResource, CUdevResourceDesc, CUdevResourceType, CUgreenCtx, CUgreenCtxCreate_flags,
};
use simtile_driver::{Driver, DriverError, call};
use simtile_sync::Arc;

const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

/// What a green context's handle owns.
pub(crate) struct Green {
    pub(super) raw: CUgreenCtx,
    multiprocessors: u32,
    /// Given back after the green one.
    #[allow(dead_code, reason = "held, never used")]
    primary: Arc<Context>,
}

/// A resource that the driver fills.
fn empty() -> CUdevResource {
    // SAFETY: zeros are valid in every field.
    unsafe { core::mem::zeroed() }
}

impl Device {
    /// Divides the device: `count` green contexts of at least `multiprocessors` multiprocessors each, none of which is in
    /// two of them. The driver rounds the number up, on compute capability 9.0 to a multiple of 8;
    /// [`Context::multiprocessors`] tells what came out.
    ///
    /// Each is a handle of the primary context: buffers, modules, events and other streams of the device are used together
    /// with its streams. Its default streams, and what waits for the whole context, are those of the primary one.
    ///
    /// # Errors
    /// [`ContextError::TooManyGreen`] if the device has not so many groups, or the driver's: a driver before CUDA 12.5 has
    /// no such streams.
    pub fn green_contexts(self, count: u32, multiprocessors: u32) -> Result<Vec<Arc<Context>>, ContextError> {
        let primary = self.primary_context()?;
        let on = || format!("green contexts on {self}");
        let groups = primary.with_current(|driver| groups(driver, self, count, multiprocessors)).on(on)?;
        if groups.len() < count as usize {
            return Err(ContextError::TooManyGreen {
                device: self.to_string(),
                count,
                multiprocessors,
                limit: groups.len() as u32,
            });
        }
        groups
            .into_iter()
            .map(|mut group| {
                let raw = primary.with_current(|driver| create(driver, self, &mut group)).on(on)?;
                // SAFETY: the driver filled it with multiprocessors.
                let multiprocessors = unsafe { group.u.sm.smCount };
                let green = Green { raw, multiprocessors, primary: primary.clone() };
                Ok(Context::wrap(self, primary.cu_ctx(), Owner::Green(green)))
            })
            .collect()
    }
}

/// As many groups of multiprocessors as there can be, at most `count`.
fn groups(
    driver: Driver,
    device: Device,
    count: u32,
    multiprocessors: u32,
) -> Result<Vec<CUdevResource>, DriverError> {
    let (mut whole, mut possible) = (empty(), 0);
    // SAFETY: the out-pointers are valid for the calls; without a list of groups only their number is asked for.
    unsafe {
        call!(driver, cuDeviceGetDevResource(device.cu_device(), &mut whole, SM))?;
        if multiprocessors > whole.u.sm.smCount {
            return Ok(Vec::new());
        }
        let none = core::ptr::null_mut();
        call!(driver, cuDevSmResourceSplitByCount(none, &mut possible, &whole, none, 0, multiprocessors))?;
    }
    let mut made = possible.min(count);
    let mut groups = vec![empty(); made as usize];
    if made > 0 {
        // SAFETY: the list has room for so many groups.
        unsafe {
            call!(
                driver,
                cuDevSmResourceSplitByCount(
                    groups.as_mut_ptr(),
                    &mut made,
                    &whole,
                    core::ptr::null_mut(),
                    0,
                    multiprocessors
                )
            )
        }?;
    }
    groups.truncate(made as usize);
    Ok(groups)
}

fn create(driver: Driver, device: Device, group: &mut CUdevResource) -> Result<CUgreenCtx, DriverError> {
    let (mut desc, mut raw) = (CUdevResourceDesc::NULL, CUgreenCtx::NULL);
    let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
    // SAFETY: the out-pointers and the one resource are valid for the calls.
    unsafe {
        call!(driver, cuDevResourceGenerateDesc(&mut desc, group, 1))?;
        call!(driver, cuGreenCtxCreate(&mut raw, desc, device.cu_device(), flags))?;
    }
    Ok(raw)
}

impl Context {
    fn green(&self) -> Option<&Green> {
        match &self.owner {
            Owner::Green(green) => Some(green),
            _ => None,
        }
    }

    /// The driver's handle of a green context. It lives as long as this handle.
    pub fn cu_green_ctx(&self) -> Option<CUgreenCtx> {
        self.green().map(|green| green.raw)
    }

    /// How many multiprocessors the streams of a green context run on; `None` if this is none: all of the device's.
    pub fn multiprocessors(&self) -> Option<u32> {
        self.green().map(|green| green.multiprocessors)
    }
}
