//! The raw launch.

use super::Stream;
use super::Submit;
use crate::context::SubmitError;
use crate::error::{LaunchError, On};
use crate::launch::check;
use crate::memory::Allocation;
use crate::{Function, LaunchArgs, LaunchOptions};
use core::borrow::Borrow;
use simtile_driver::sys::CUstream;
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::Access;
use simtile_sync::Arc;
use smallvec::SmallVec;

impl Stream {
    /// Queues a kernel.
    ///
    /// Checked before the driver is asked: that stream, function and buffers are of one context; the geometry against the
    /// device's and the function's limits; number and sizes of the arguments, where they are known
    /// ([`Function::parameters`]). The launch follows everything that used its
    /// buffers before. A launch on an owned stream without such waits is one driver call.
    ///
    /// The arguments may be given by value or, to launch with them again, by reference.
    ///
    /// [`LaunchConfig::EMPTY`](simtile_types::LaunchConfig::EMPTY) launches nothing and succeeds.
    ///
    /// # Errors
    /// [`LaunchError`]. An explicit 0 or a number above its limit is [`LaunchError::Geometry`], which names axis, value and
    /// limit.
    ///
    /// # Safety
    /// * The arguments are what the kernel expects: sizes are checked, meaning is not.
    /// * Every address that the kernel follows is that of live memory, which stays so until the kernel has finished; what
    ///   it reads is initialised, and what it writes is valid for the element type of the buffer.
    /// * What it accesses is given through [`LaunchArgs::buffer`] or [`LaunchArgs::buffer_mut`], or ordered by the caller with
    ///   every other access to it.
    /// * With [`LaunchOptions::programmatic`] the kernel executes `griddepcontrol.wait` before it touches memory that earlier
    ///   work of the stream uses.
    pub unsafe fn launch<'a>(
        self: &Arc<Self>,
        function: &Function,
        options: impl Into<LaunchOptions>,
        args: impl Borrow<LaunchArgs<'a>>,
    ) -> Result<(), LaunchError> {
        let (options, args) = (options.into(), args.borrow());
        self.on_its_thread()?;
        self.same_context(function.context(), || function.to_string()).map_err(LaunchError::from_stream)?;
        check(function, &options, args)?;
        if options.config.is_empty() {
            return Ok(());
        }
        let mut accesses: SmallVec<[Access<'_>; 8]> = SmallVec::new();
        for &(allocation, mode, bytes) in args.buffers() {
            self.same_context(allocation.context(), || allocation.name())
                .map_err(LaunchError::from_stream)?;
            accesses.extend(allocation.access(0, bytes, mode));
        }
        let launch = |driver: Driver, raw: CUstream| {
            // SAFETY: the caller's.
            unsafe { launch(driver, raw, function, options, args) }
        };
        match self.submit_tracked(&accesses, Submit::PLAIN, launch) {
            Ok(_) => Ok(()),
            // Somebody else records a graph on the stream: a launch that touches nothing of ours becomes a node of it.
            Err(SubmitError::BorrowedCapturing) if accesses.is_empty() => {
                self.call_in_foreign_capture(launch).on(|| format!("launch of {function} on {self}"))
            }
            Err(error) => {
                let used: SmallVec<[&Allocation; 8]> = args.buffers().iter().map(|used| used.0).collect();
                Err(self.refused(error, &used, || format!("launch of {function} on {self}")))
            }
        }
    }
}

/// The driver call.
///
/// # Safety
/// As [`Stream::launch`]; function and stream are alive and of one context.
unsafe fn launch(
    driver: Driver,
    stream: CUstream,
    function: &Function,
    options: LaunchOptions,
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
