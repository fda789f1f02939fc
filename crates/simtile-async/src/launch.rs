//! Launches as operations.
//!
//! [`AsyncKernelLaunchBuilder`] collects arguments and does nothing. `unsafe finalize_unchecked` makes it a launch: the caller says there,
//! once, that the kernel accesses what was named and nothing else. The launch cannot be changed any more, and running it is
//! safe: geometry, contexts, and number and sizes of the arguments are checked, accesses are ordered, memory is kept.

use crate::{DeviceOp, DeviceOutput, OpError, SubmitContext, into_future};
use core::fmt;
use core::marker::PhantomData;
use core::task::Poll;
use simtile_core::{
    AtomicScope, DeviceMemory, DeviceMemoryMut, Function, LaunchArgs, LaunchOptions, PreparedLaunch,
};
use simtile_types::{DeviceCopy, LaunchConfig};

/// A launch that is being put together. It is no operation, and stays on its thread.
#[must_use = "nothing is launched until it is finalized and run"]
pub struct AsyncKernelLaunchBuilder<'a> {
    function: Function,
    args: LaunchArgs<'a>,
    options: Options,
    thread: PhantomData<*const ()>,
}

#[derive(Clone, Copy, Default)]
struct Options {
    config: Option<LaunchConfig>,
    cluster: Option<(u32, u32, u32)>,
    cooperative: bool,
    priority: Option<i32>,
    programmatic: bool,
    waits_outside: bool,
    /// What was checked and may not change.
    prepared: Option<LaunchOptions>,
}

impl<'a> AsyncKernelLaunchBuilder<'a> {
    /// A launch of this kernel, without arguments.
    pub fn new(function: &Function) -> Self {
        Self {
            function: function.clone(),
            args: LaunchArgs::new(),
            options: Options::default(),
            thread: PhantomData,
        }
    }

    /// A launch of a prepared kernel: its geometry and attributes are fixed, and [`AsyncKernelLaunchBuilder::finalize_unchecked`] takes
    /// `None`.
    pub fn prepared<C>(prepared: &PreparedLaunch<C>) -> Self {
        let LaunchOptions { config, cluster, cooperative, .. } = prepared.options();
        let mut builder = Self::new(prepared.function());
        let fixed = Some(prepared.options());
        builder.options =
            Options { config: Some(config), cluster, cooperative, prepared: fixed, ..Options::default() };
        builder
    }

    /// Adds a value.
    pub fn arg<T: DeviceCopy>(mut self, value: T) -> Self {
        self.args.push(value);
        self
    }

    /// Adds a value to a builder that is not given up.
    pub fn push_arg<T: DeviceCopy>(&mut self, value: T) -> &mut Self {
        self.args.push(value);
        self
    }

    /// The same as [`AsyncKernelLaunchBuilder::push_arg`].
    pub fn push_scalar_arg<T: DeviceCopy>(&mut self, value: T) -> &mut Self {
        self.push_arg(value)
    }

    /// Adds a large value that stays in its box.
    pub fn boxed<T: DeviceCopy + Send + Sync + 'a>(mut self, value: Box<T>) -> Self {
        self.args = self.args.boxed(value);
        self
    }

    /// Adds the address of memory that the kernel reads.
    pub fn read<M: DeviceMemory + ?Sized>(mut self, memory: &'a M) -> Self {
        self.args = self.args.view(memory);
        self
    }

    /// Adds the address of memory that the kernel writes.
    pub fn write<M: DeviceMemoryMut + ?Sized>(mut self, memory: &'a mut M) -> Self {
        self.args = self.args.view_mut(memory);
        self
    }

    /// Adds the address of memory that the kernel updates with device atomics of the element's size.
    pub fn accumulate<M: DeviceMemory + ?Sized>(mut self, memory: &'a M, scope: AtomicScope) -> Self {
        self.args = self.args.accumulated(memory, scope);
        self
    }

    /// Geometry. [`AsyncKernelLaunchBuilder::finalize_unchecked`] can be given it as well.
    pub fn set_launch_config(mut self, config: LaunchConfig) -> Self {
        self.options.config = Some(config);
        self
    }

    /// Blocks of a cluster.
    pub fn set_cluster_dim(mut self, x: u32, y: u32, z: u32) -> Self {
        self.options.cluster = Some((x, y, z));
        self
    }

    /// Whether all blocks must run at once, so that the grid may synchronise.
    pub fn set_cooperative(mut self, cooperative: bool) -> Self {
        self.options.cooperative = cooperative;
        self
    }

    /// Priority in place of the stream's. Smaller is more urgent.
    pub fn set_priority(mut self, priority: i32) -> Self {
        self.options.priority = Some(priority);
        self
    }

    /// The kernel may wait for something that is no work of a stream: a flag, another process, the host.
    pub fn waits_outside(mut self) -> Self {
        self.options.waits_outside = true;
        self
    }

    /// Programmatic dependent launch: the kernel may start before the one before it in the stream has finished.
    ///
    /// # Safety
    /// The kernel executes `griddepcontrol.wait` before it touches memory that earlier work touches.
    pub unsafe fn programmatic_dependent_launch(mut self) -> Self {
        self.options.programmatic = true;
        self
    }

    /// The launch. `config` replaces what [`AsyncKernelLaunchBuilder::set_launch_config`] said, if it is given.
    ///
    /// # Errors
    /// [`OpError::Launch`]: no geometry; programmatic dependent launch together with a cooperative one, or on a device below compute
    /// capability 9.0.
    ///
    /// # Safety
    /// Every run of the launch: the kernel accesses the memory among its arguments in the modes that were said, inside its bounds,
    /// and nothing else (but memory that nobody else knows); other arguments are what it expects.
    pub unsafe fn finalize_unchecked(
        self,
        config: impl Into<Option<LaunchConfig>>,
    ) -> Result<AsyncKernelLaunch<'a>, OpError> {
        let options = finalize(&self.function, self.options, config.into())?;
        Ok(AsyncKernelLaunch { options, function: self.function, args: self.args })
    }

    /// As [`AsyncKernelLaunchBuilder::finalize_owned_unchecked`]; what that would refuse is the error of the launch when it is run.
    ///
    /// # Safety
    /// As [`AsyncKernelLaunchBuilder::finalize_unchecked`].
    pub unsafe fn finalize_owned_with<R, F>(
        self,
        config: LaunchConfig,
        resources: R,
        args: F,
    ) -> OwnedAsyncKernelLaunch<R, F>
    where
        F: for<'r> Fn(&'r mut R) -> LaunchArgs<'r>,
    {
        let (options, first) = match self.finalize_owned(Some(config)) {
            Ok((options, first)) => (Ok(options), first),
            Err(error) => (Err(error), None),
        };
        OwnedAsyncKernelLaunch { options, function: self.function, first, resources: Some(resources), args }
    }

    /// As [`AsyncKernelLaunchBuilder::finalize_unchecked`], for memory that the operation owns: `args` adds to a new list what the
    /// kernel gets, and the operation gives `resources` back when it has been submitted. Values added before come first.
    ///
    /// # Errors
    /// As [`AsyncKernelLaunchBuilder::finalize_unchecked`]; also if memory was added before, which would be borrowed.
    ///
    /// # Safety
    /// As [`AsyncKernelLaunchBuilder::finalize_unchecked`].
    pub unsafe fn finalize_owned_unchecked<R, F>(
        self,
        config: impl Into<Option<LaunchConfig>>,
        resources: R,
        args: F,
    ) -> Result<OwnedAsyncKernelLaunch<R, F>, OpError>
    where
        F: for<'r> Fn(&'r mut R) -> LaunchArgs<'r>,
    {
        let (options, first) = self.finalize_owned(config.into())?;
        let (options, resources) = (Ok(options), Some(resources));
        Ok(OwnedAsyncKernelLaunch { options, function: self.function, first, resources, args })
    }

    /// Options, and the values that come before what the closure adds.
    fn finalize_owned(
        &self,
        config: Option<LaunchConfig>,
    ) -> Result<(Final, Option<LaunchArgs<'static>>), OpError> {
        let options = finalize(&self.function, self.options, config)?;
        if self.args.is_empty() {
            return Ok((options, None));
        }
        let refused = || OpError::Launch {
            kernel: self.function.name().to_string(),
            what:
                "memory was added outside of the closure of a launch that owns its memory; only values may be"
                    .into(),
        };
        Ok((options, Some(self.args.values().ok_or_else(refused)?)))
    }
}

/// Options that were looked at.
#[derive(Clone, Copy)]
struct Final {
    launch: LaunchOptions,
    waits_outside: bool,
}

fn finalize(function: &Function, options: Options, config: Option<LaunchConfig>) -> Result<Final, OpError> {
    let refused = |what: String| Err(OpError::Launch { kernel: function.name().to_string(), what });
    let config = config.or(options.config);
    if let Some(fixed) = options.prepared {
        let is = (config, options.cluster, options.cooperative);
        let was = (Some(fixed.config), fixed.cluster, fixed.cooperative);
        if is != was {
            return refused(format!(
                "it was prepared for geometry, cluster and cooperation {was:?}, and is finalized with {is:?}"
            ));
        }
    }
    let Some(config) = config else {
        return refused(
            "missing launch configuration: neither set_launch_config nor finalize_unchecked gave one".into(),
        );
    };
    if options.programmatic {
        let (major, minor) = function.context().capabilities()?.compute_capability;
        if major < 9 {
            return refused(format!(
                "programmatic dependent launch needs compute capability 9.0, and the device has {major}.{minor}"
            ));
        }
        if options.cooperative {
            return refused(
                "programmatic dependent launch and a cooperative launch exclude each other".into(),
            );
        }
    }
    let mut launch = LaunchOptions::new(config);
    launch.cluster = options.cluster;
    launch.cooperative = options.cooperative;
    launch.priority = options.priority;
    launch.programmatic = options.programmatic;
    Ok(Final { launch, waits_outside: options.waits_outside })
}

impl Final {
    fn submit(
        &self,
        cx: &mut SubmitContext<'_>,
        function: &Function,
        args: &LaunchArgs<'_>,
    ) -> Poll<Result<(), OpError>> {
        let mut builder = cx.submit();
        if self.waits_outside {
            builder = builder.waits_outside();
        }
        // SAFETY: whoever finalized the launch says that the kernel accesses what its arguments say.
        let launched = unsafe { builder.launch(function, self.launch, args) };
        cx.settle(launched).map_ok(drop)
    }
}

/// A launch: an operation that gives nothing. It borrows what it was given.
#[must_use = "operations are lazy: run it with .await, .sync(), .enqueue_on() or .schedule()"]
pub struct AsyncKernelLaunch<'a> {
    options: Final,
    function: Function,
    args: LaunchArgs<'a>,
}

impl AsyncKernelLaunch<'_> {
    /// The kernel.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Geometry and attributes.
    pub fn options(&self) -> &LaunchOptions {
        &self.options.launch
    }
}

impl DeviceOp for AsyncKernelLaunch<'_> {
    type Output = ();

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<(), OpError>> {
        self.options.submit(cx, &self.function, &self.args)
    }
}

into_future!(['a] AsyncKernelLaunch<'a>);

/// A launch that owns what it uses, and gives it back.
#[must_use = "operations are lazy: run it with .await, .sync(), .enqueue_on() or .schedule()"]
pub struct OwnedAsyncKernelLaunch<R, F> {
    options: Result<Final, OpError>,
    function: Function,
    /// Values that come before what `args` adds.
    first: Option<LaunchArgs<'static>>,
    resources: Option<R>,
    args: F,
}

impl<R, F> DeviceOp for OwnedAsyncKernelLaunch<R, F>
where
    R: DeviceOutput + Send,
    F: for<'r> Fn(&'r mut R) -> LaunchArgs<'r> + Send,
{
    type Output = R;

    fn poll_submit(&mut self, cx: &mut SubmitContext<'_>) -> Poll<Result<R, OpError>> {
        let Some(resources) = &mut self.resources else { return Poll::Ready(Err(OpError::Finished)) };
        let options = match &self.options {
            Ok(options) => options,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        let submitted = {
            let args = (self.args)(resources);
            let args = match &self.first {
                None => args,
                Some(first) => args.after(first),
            };
            options.submit(cx, &self.function, &args)
        };
        match submitted {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => Poll::Ready(self.resources.take().ok_or(OpError::Finished)),
        }
    }
}

into_future!([R, F] OwnedAsyncKernelLaunch<R, F>);

impl fmt::Debug for AsyncKernelLaunchBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncKernelLaunchBuilder")
            .field("function", &self.function)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AsyncKernelLaunch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncKernelLaunch")
            .field("function", &self.function)
            .field("options", &self.options.launch)
            .field("args", &self.args)
            .finish()
    }
}
