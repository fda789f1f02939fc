//! The driver call of a launch.

use crate::{Function, LaunchArgs, LaunchOptions};
use simtile_driver::sys::CUstream;
use simtile_driver::{Driver, DriverError, call};

/// The driver call.
///
/// # Safety
/// As [`Stream::launch`](crate::Stream::launch); function and stream are alive and of one context.
pub(crate) unsafe fn launch(
    driver: Driver,
    stream: CUstream,
    function: &Function,
    options: &LaunchOptions,
    args: &LaunchArgs<'_>,
) -> Result<(), DriverError> {
    let mut pointers = args.pointers();
    let (raw, params, none) = (function.cu_function(), pointers.as_mut_ptr(), core::ptr::null_mut());
    if !options.is_plain() {
        let mut attributes = options.attributes();
        let config = attributes.config(stream);
        // SAFETY: function and stream are alive and of one context; `params` has a pointer for each parameter, as
        // far as those are known; the rest is the caller's.
        return unsafe { call!(driver, cuLaunchKernelEx(&config, raw, params, none)) };
    }
    let (grid, block) = (options.config.grid_dim, options.config.block_dim);
    let shared = options.config.shared_mem_bytes;
    // SAFETY: as above.
    let code = unsafe {
        driver.cuLaunchKernel(
            raw, grid.0, grid.1, grid.2, block.0, block.1, block.2, shared, stream, params, none,
        )
    };
    driver.check(simtile_driver::Entry::cuLaunchKernel, code)
}
