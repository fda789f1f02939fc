//! libcuda's C names over one simulated driver.
//!
//! The simulated driver is built on the first call, configured by `SIMTILE_SIM` (see
//! `simtile_sim::SimConfig`). Nothing else happens here: every function passes its arguments on.
//!
//! The library carries `simtile_libcuda_marker`, by which simtile's own loader knows not to take it for a driver
//! unless it was named by path.

mod newer;
mod proc_address;

use simtile_driver::sys::*;
use simtile_driver::{Driver, driver_entries};
use simtile_sim::{SimConfig, Simulator};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Tells simtile's loader that this is no driver.
#[unsafe(no_mangle)]
pub static simtile_libcuda_marker: u32 = 1;

/// The one simulated driver of this library, or why there is none.
fn driver() -> Result<Driver, CUresult> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let made = DRIVER.get_or_init(|| {
        // A panic must not cross into C.
        std::panic::catch_unwind(|| match SimConfig::from_env("SIMTILE_SIM") {
            Ok(config) => Some(Simulator::new(config).leak()),
            Err(error) => {
                eprintln!("simtile libcuda: {error}");
                None
            }
        })
        .unwrap_or(None)
    });
    made.ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// A call of the table; `cuGetProcAddress` is answered here, where the C names are.
macro_rules! call {
    ($driver:ident, cuGetProcAddress($($arg:ident),*)) => {{
        let _ = $driver;
        proc_address::query($($arg),*)
    }};
    ($driver:ident, $name:ident($($arg:ident),*)) => { $driver.$name($($arg),*) };
}

macro_rules! export {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $symbol:literal @ $since:literal;)*) => {
        $(
            /// CUDA's entry of this name.
            ///
            /// # Safety
            /// As CUDA's manual says.
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the signatures are CUDA's")]
            #[unsafe(export_name = $symbol)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                match driver() {
                    // SAFETY: passed on from the caller. Panics are caught behind the table.
                    Ok(driver) => to_c(unsafe { call!(driver, $name($($arg),*)) }),
                    Err(code) => code,
                }
            }
        )*

        /// Name, first version and address of every exported entry of the table.
        pub(crate) const TABLE: &[proc_address::Row] = &[
            $(proc_address::Row { name: simtile_driver::Entry::$name.base(), since: $since, function: $name as *const c_void },)*
        ];
    };
}

driver_entries!(export);

/// C callers know only CUDA's codes.
fn to_c(code: CUresult) -> CUresult {
    if code == CUresult::SIMTILE_MISSING_ENTRY { CUresult::CUDA_ERROR_NOT_SUPPORTED } else { code }
}
