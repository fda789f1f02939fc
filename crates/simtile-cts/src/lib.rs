//! The conformance suite.
//!
//! Three layers of tests. *Driver* tests call the table of `simtile-driver` and state a guarantee of CUDA, so that
//! they say what the simulated driver has to do and the real one does. *Core* tests call simtile's API and name
//! the promise they prove, *async* tests do so by way of operations. All run on simulated drivers and on a GPU; what a driver cannot run is
//! `unsupported`, with a reason, and never counts as passed.
//!
//! * [`frame`]: what a test is, the runner, the reports;
//! * [`gpu`], [`kernels`]: what tests start from;
//! * [`cost`]: what the runtime itself costs, on the null driver;
//! * [`explorer`]: random safe programs under exploration;
//! * [`sweep`]: every driver call of every scenario failed;
//! * [`endings`]: how processes end with objects of the runtime still there;
//! * [`parked`]: waiting for a future in an exploration;
//! * [`probe`]: measurements of what the manual leaves open;
//! * [`driver`], [`core_layer`], [`async_layer`]: the layers, a module a family.

pub mod artifacts;
pub mod async_layer;
pub mod core_layer;
pub mod cost;
pub mod driver;
pub mod endings;
pub mod explorer;
pub mod frame;
pub mod gpu;
pub mod kernels;
pub mod parked;
pub mod probe;
pub mod sweep;
mod theirs;

pub(crate) use frame::outcome::{code, cu, ensure, ensure_eq, ok};
use frame::{Target, Test};
use simtile_driver::sys::CUresult;

/// Every test, driver layer first.
pub fn tests() -> impl Iterator<Item = &'static Test> {
    let ours = core_layer::FAMILIES.iter().chain(async_layer::FAMILIES);
    driver::FAMILIES.iter().chain(ours).flat_map(|family| family.iter())
}

/// Name of device 0 and number of devices: what counts are committed for.
///
/// # Errors
/// No driver, or no device.
pub fn machine(target: &Target) -> Result<String, String> {
    if target.is_simulator() {
        return Ok("simulated".into());
    }
    let (driver, _) = target.open(1, 0).map_err(|error| error.to_string())?;
    let mut count = 0;
    let mut name = [0 as std::ffi::c_char; 128];
    // SAFETY: every out-pointer is valid for its call, and the length is that of the array.
    let code = unsafe {
        match driver.cuInit(0) {
            CUresult::CUDA_SUCCESS => match driver.cuDeviceGetCount(&mut count) {
                CUresult::CUDA_SUCCESS if count > 0 => driver.cuDeviceGetName(name.as_mut_ptr(), 128, 0),
                CUresult::CUDA_SUCCESS => CUresult::CUDA_ERROR_NO_DEVICE,
                code => code,
            },
            code => code,
        }
    };
    if !code.is_ok() {
        return Err(format!("no device: {code:?}"));
    }
    let name: Vec<u8> = name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    Ok(format!("{} x{count}", String::from_utf8_lossy(&name)))
}
