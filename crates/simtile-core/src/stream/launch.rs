//! The raw launch.

use super::Stream;
use super::submission::declare;
use crate::error::{LaunchError, On, StreamError};
use crate::launch::launch;
use crate::{Function, LaunchArgs, LaunchOptions};
use core::borrow::Borrow;
use simtile_driver::Driver;
use simtile_driver::sys::CUstream;
use simtile_sync::Arc;

impl Stream {
    /// Queues a kernel.
    ///
    /// Checked before the driver is asked: that stream, function and buffers are of one context; the geometry against the
    /// device's and the function's limits; number and sizes of the arguments, where they are known
    /// ([`Function::parameters`]). The launch follows everything that used its
    /// buffers before. A launch on an owned stream without such waits is one driver call.
    ///
    /// A simulated driver checks that the kernel uses the memory among the arguments as it was given: that it writes none of what
    /// came by [`LaunchArgs::buffer`]. Other memory, which the kernel reaches by raw addresses, is not looked at;
    /// [`SubmitBuilder::launch`](crate::SubmitBuilder::launch) has everything named, and checks that nothing else is touched.
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
        let options: LaunchOptions = options.into();
        let args = args.borrow();
        let mut builder = self.submit();
        if !builder.prepare(function, &options, args)? {
            return Ok(());
        }
        let declared = builder.declared().filter(|declared| !declared.is_empty());
        let launch = |driver: Driver, raw: CUstream| {
            declare(driver, raw, declared.as_deref(), false);
            // SAFETY: the caller's.
            unsafe { launch(driver, raw, function, &options, args) }
        };
        let on = || format!("launch of {function}");
        match builder.run_quietly::<LaunchError>(true, on, launch) {
            Ok(_) => Ok(()),
            // Somebody else records a graph on the stream: a launch that touches nothing of ours becomes a node of it.
            Err(LaunchError::Stream(StreamError::Capturing { .. }))
                if args.touches().is_empty() && !self.is_owned() =>
            {
                self.call_in_foreign_capture(launch).on(|| format!("launch of {function} on {self}"))
            }
            Err(error) => Err(error),
        }
    }
}
