//! Tracked submissions: what work touches, then the work.
//!
//! [`Stream::submit`] collects the bytes that the work reads, writes or accumulates to. Then comes one piece of work: a copy, a
//! fill (safe), or a launch (`unsafe`: nobody but its author knows what a kernel touches). The stream follows conflicting
//! work of other streams, and others follow it. What was named is kept from being freed or reused until the work has
//! finished, whatever becomes of the [`Submission`].

use super::touches::{Touch, Touches};
use super::{Ended, Reach, Stream, StreamId, StreamName, Submit, What};
use crate::context::{CoreBackend, Shared, SubmitError, TrackedEvent};
use crate::error::{Family, LaunchError, MemoryError, On, OnStream, StreamError};
use crate::graph::{Kernel, Place, Plain};
use crate::launch::{check, launch};
use crate::memory::{Allocation, DeviceBufferView, DeviceBufferViewMut, DeviceMemory, DeviceMemoryMut};
use crate::{
    Capture, Function, GraphError, GraphExec, LaunchArgs, LaunchOptions, PinnedHostBuffer, Policy, Script,
};
use core::borrow::Borrow;
use core::fmt;
use simtile_driver::sys::*;
use simtile_driver::{AccessMode, DeclaredAccess, Driver, DriverError, call};
use simtile_hazard::{Access, Mode, Outside, Scope, Stamp, Submitted};
use simtile_sync::Arc;
use simtile_types::DeviceCopy;
use smallvec::SmallVec;

/// Who can take part in atomic updates of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicScope {
    /// Work on one device.
    Device,
    /// All devices and the host.
    System,
}

impl AtomicScope {
    pub(crate) fn mode(self, element_bytes: usize) -> Mode {
        let scope = match self {
            Self::Device => Scope::Device,
            Self::System => Scope::System,
        };
        Mode::Accumulate { size: u32::try_from(element_bytes).unwrap_or(u32::MAX), scope }
    }
}

/// A submission that is being put together. Nothing happens until its last call.
#[must_use = "nothing is submitted until the work is given"]
pub struct SubmitBuilder<'a> {
    stream: &'a Arc<Stream>,
    touches: Touches<'a>,
    submit: Submit<'a>,
    /// It becomes nodes of a graph.
    capture: Option<&'a Capture>,
    /// It becomes a piece of this pass of a memoised chain.
    script: Option<(&'a Script, u64)>,
    /// The work, where it is numbers alone.
    plain: Option<Plain>,
    /// Its name in the capture.
    name: Option<u32>,
    /// What the work needs of memory of other contexts.
    reach: Reach,
}

/// Work that was submitted. Dropping it never waits and ends nothing: the work owns what it touches until it has finished. Keeping it, or
/// forgetting it, keeps neither the stream nor the context open.
#[derive(Clone)]
pub struct Submission {
    stream: Arc<StreamName>,
    /// `None`: there was nothing to do, and the work is over.
    stamp: Option<Stamp>,
    event: Option<TrackedEvent>,
}

impl Stream {
    /// Begins a submission.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), simtile_core::Error> {
    /// # let (stream, function, a, mut b): (std::sync::Arc<simtile_core::Stream>, simtile_core::Function,
    /// #     simtile_core::DeviceBuffer<f32>, simtile_core::DeviceBuffer<f32>) = todo!();
    /// use simtile_core::LaunchArgs;
    /// use simtile_types::LaunchConfig;
    /// let args = LaunchArgs::new().arg(1024u32).buffer(&a).buffer_mut(&mut b);
    /// // SAFETY: the kernel reads 1024 values of `a` and writes as many of `b`.
    /// let done = unsafe { stream.submit().launch(&function, LaunchConfig::for_num_elems(1024), args) }?;
    /// done.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(self: &Arc<Self>) -> SubmitBuilder<'_> {
        let (touches, submit) = (Touches::new(), Submit::PLAIN);
        SubmitBuilder {
            stream: self,
            touches,
            submit,
            capture: None,
            script: None,
            plain: None,
            name: None,
            reach: Reach::Kernel,
        }
    }
}

impl<'a> SubmitBuilder<'a> {
    /// The work reads this.
    pub fn read<M: DeviceMemory + ?Sized>(self, memory: &'a M) -> Self {
        self.touch(memory.touched(Mode::Read))
    }

    /// The work writes this (and may read it).
    pub fn write<M: DeviceMemoryMut + ?Sized>(self, memory: &'a mut M) -> Self {
        self.touch(memory.touched_mut())
    }

    /// The work updates this with device atomics of the element's size that commute: others may do so at the same time.
    pub fn accumulate<M: DeviceMemory + ?Sized>(self, memory: &'a M, scope: AtomicScope) -> Self {
        self.touch(memory.touched(scope.mode(memory.element_bytes())))
    }

    /// What to do about conflicting work of other streams, in place of [`Stream::policy`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.submit.policy = Some(policy.hazard());
        self
    }

    /// Orders nothing. Memory is kept alive all the same.
    ///
    /// # Safety
    /// The caller orders the work with everything that conflicts with it.
    pub unsafe fn unchecked(mut self) -> Self {
        self.submit.policy = Some(simtile_hazard::Policy::Unchecked);
        self
    }

    /// The work may wait for something that is no work of a stream: a flag, another process, the host.
    pub fn waits_outside(mut self) -> Self {
        self.submit.outside = Outside::Waits;
        self
    }

    /// The work waits for a value in memory (`cuStreamWaitValue32` and its like). At most four streams of a context may sit in such
    /// work, because eight stop every stream; the fifth is refused.
    pub fn waits_for_value(mut self) -> Self {
        self.submit.outside = Outside::WaitValue;
        self
    }

    /// Somebody is going to wait for exactly this work: an event is recorded right behind it.
    pub fn awaited(mut self) -> Self {
        self.submit.seal = true;
        self
    }

    /// Refuses in place of waiting: for room in the queues ([`StreamError::QueueFull`]), and for other threads that are
    /// submitting ([`StreamError::Busy`]). Nothing was submitted then, and the same may be tried again.
    pub fn no_wait(mut self) -> Self {
        self.submit.patient = false;
        self
    }

    /// The label of the operation that the work belongs to: named if the context is lost while the work is in flight.
    pub fn labelled(mut self, label: &'a Arc<str>) -> Self {
        self.submit.label = Some(label);
        self
    }

    /// Queues a copy of `source` over `target`, both of the same length.
    ///
    /// # Errors
    /// [`MemoryError::LengthMismatch`], [`MemoryError::OtherContext`], what the policy refuses, or the driver's.
    pub fn copy<T: DeviceCopy + 'a>(
        self,
        source: impl Into<DeviceBufferView<'a, T>>,
        target: impl Into<DeviceBufferViewMut<'a, T>>,
    ) -> Result<Submission, MemoryError> {
        let (source, target) = (source.into(), target.into());
        target.part().copy_from(self, source.part())
    }

    /// Queues a copy of pinned host values over `target`, both of the same length.
    ///
    /// # Errors
    /// As [`SubmitBuilder::copy`].
    pub fn copy_pinned<T: DeviceCopy + 'a>(
        self,
        source: &'a PinnedHostBuffer<T>,
        target: impl Into<DeviceBufferViewMut<'a, T>>,
    ) -> Result<Submission, MemoryError> {
        source.copy_by(self, target.into())
    }

    /// Queues setting every element to `value`.
    ///
    /// # Errors
    /// As [`SubmitBuilder::copy`].
    pub fn fill<T: DeviceCopy + 'a>(
        self,
        target: impl Into<DeviceBufferViewMut<'a, T>>,
        value: T,
    ) -> Result<Submission, MemoryError> {
        target.into().part().fill(self, value)
    }

    /// Queues setting every byte. Elements that are no value of their type are refused when the host reads them.
    ///
    /// # Errors
    /// As [`SubmitBuilder::copy`].
    pub fn memset<T: DeviceCopy + 'a>(
        self,
        target: impl Into<DeviceBufferViewMut<'a, T>>,
        byte: u8,
    ) -> Result<Submission, MemoryError> {
        target.into().part().fill_word(self, crate::memory::Word::One(byte))
    }

    /// Queues a kernel. Buffers of the arguments count as named, too. A simulated driver checks that the kernel touches
    /// nothing else.
    ///
    /// Checked before the driver is asked: contexts, geometry, number and sizes of the arguments.
    ///
    /// # Errors
    /// [`LaunchError`].
    ///
    /// # Safety
    /// As [`Stream::launch`]; what the kernel accesses is named here or among the arguments, in the right mode.
    pub unsafe fn launch<'b>(
        self,
        function: &Function,
        options: impl Into<LaunchOptions>,
        args: impl Borrow<LaunchArgs<'b>>,
    ) -> Result<Submission, LaunchError>
    where
        'b: 'a,
    {
        let options: LaunchOptions = options.into();
        let args = args.borrow();
        let stream = self.stream;
        let mut builder = self;
        if !builder.prepare(function, &options, args)? {
            return Ok(Submission::nothing(stream));
        }
        if let Some((script, pass)) = builder.script {
            builder.at_home::<LaunchError>()?;
            let (touches, outside) = (builder.touches.as_slice(), builder.submit.outside);
            script.launch::<LaunchError>(pass, stream, outside, touches, function, &options, args)?;
            return Ok(Submission::nothing(stream));
        }
        if let Some(capture) = builder.capture {
            capture.keep_function(function);
            builder.name = capture.name_launch(|| Kernel::new(function, &options, args));
        }
        let declared = builder.declared();
        builder.run::<LaunchError>(
            true,
            || format!("launch of {function}"),
            |driver, raw| {
                declare(driver, raw, declared.as_deref(), true);
                // SAFETY: the caller's.
                unsafe { launch(driver, raw, function, &options, args) }
            },
        )
    }

    /// Queues work that somebody else's code puts into the stream: a library call, or driver calls of your own. What it
    /// accesses was named; if it may wait for more than work of streams, [`SubmitBuilder::waits_outside`] says so.
    ///
    /// `queue` is called once, with the driver and the raw stream, while the stream and the named memory are locked for others:
    /// it only queues. Operations of this crate refuse inside it as inside a host function.
    ///
    /// # Errors
    /// What the policy refuses, or the driver's. What `queue` returns is passed on; it may have queued work whatever it returns.
    ///
    /// # Safety
    /// `queue` puts work into this stream alone (or joins what it forks), and the work accesses what was named, in that mode,
    /// and memory that nobody else knows. It leaves the stream usable and the current context as it found it.
    pub unsafe fn foreign<R>(
        mut self,
        queue: impl FnOnce(Driver, CUstream) -> R,
    ) -> Result<(Submission, R), StreamError> {
        let mut outcome = None;
        self.submit.what = What::FOREIGN;
        let done: Submission = self.run(
            true,
            || "foreign work".into(),
            |driver, raw| {
                outcome = Some(super::host_function::as_inside(|| queue(driver, raw)));
                Ok(())
            },
        )?;
        match outcome {
            Some(outcome) => Ok((done, outcome)),
            // The tracker calls the closure of every submission that it accepts.
            None => Err(StreamError::Refused {
                stream: done.stream.to_string(),
                what: "nothing was queued".into(),
            }),
        }
    }

    /// Orders without work: what is submitted to this stream next comes after everything that conflicts with what was named.
    ///
    /// With nothing named, [`awaited`](Self::awaited), it is the end of everything that the stream was given so far. That takes no room in
    /// the queues, and waits for none.
    ///
    /// # Errors
    /// As [`SubmitBuilder::copy`].
    pub fn order_only(mut self) -> Result<Submission, StreamError> {
        let named = self.capture.is_some() || self.script.is_some() || !self.touches.as_slice().is_empty();
        if !named && self.submit.seal && self.submit.outside == Outside::Never {
            // The end of what there is, and no work: it takes no room in the queues.
            self.stream.on_its_thread()?;
            return match self.stream.mark(self.submit.patient) {
                Ok(event) => Ok(Submission::at(self.stream, event)),
                Err(error) => Err(self.explain(error, || "an order".into())),
            };
        }
        // Nothing is called that could want it.
        self.submit.current = false;
        self.plainly(Plain::Order).reach(Reach::Order).run(true, || "an order".into(), |_, _| Ok(()))
    }

    pub(crate) fn into_capture(mut self, capture: &'a Capture) -> Self {
        self.capture = Some(capture);
        self
    }

    pub(crate) fn into_script(mut self, script: &'a Script, pass: u64) -> Self {
        self.script = Some((script, pass));
        self
    }

    /// Says what the work is, where numbers say it.
    #[inline]
    pub(crate) fn plainly(mut self, plain: Plain) -> Self {
        self.plain = Some(plain);
        self
    }

    /// Refuses work that is more than one piece where it would be recorded.
    pub(crate) fn records_nothing(&self, what: impl FnOnce() -> String) -> Result<(), StreamError> {
        if self.capture.is_none() && self.script.is_none() {
            return Ok(());
        }
        let (stream, what) = (self.stream.to_string(), format!("{} cannot be recorded", what()));
        Err(StreamError::Refused { stream, what })
    }

    /// Graphs are of one context.
    fn at_home<E: OnStream>(&self) -> Result<(), E> {
        for touch in self.touches.as_slice() {
            let (owner, name) = (touch.allocation.context(), || touch.allocation.name());
            self.stream.same_context(owner, name).map_err(E::from_stream)?;
        }
        Ok(())
    }

    /// Launches a pass of a memoised chain, as one piece of work. After [`StreamError::QueueFull`] and [`StreamError::Busy`] the same
    /// may be tried again; any other failure launches nothing, and the next pass starts from whatever the script has.
    ///
    /// # Errors
    /// [`GraphError::NotUpdatable`]: the pass is over, or a piece of it failed. [`GraphError::OtherContext`], what the policy refuses, or
    /// the driver's.
    pub fn script(self, script: &Script, pass: u64) -> Result<Submission, GraphError> {
        if self.capture.is_some() || self.script.is_some() {
            let why = "a memoised chain inside of a capture or another chain".into();
            return Err(GraphError::NotUpdatable { what: script.to_string(), why });
        }
        script.finish(pass, self.stream, self.submit)
    }

    /// Launches a graph. Inside a capture it becomes a child node, whose accesses join those of the outer graph.
    ///
    /// # Errors
    /// [`GraphError::OtherContext`], what the policy refuses, or the driver's.
    pub fn graph(self, exec: &GraphExec) -> Result<Submission, GraphError> {
        let named = || exec.to_string();
        self.stream.same_context(exec.context(), named).map_err(GraphError::from_stream)?;
        let raw_exec = exec.alive()?;
        let on = || format!("{exec} on {}", self.stream);
        if self.script.is_some() {
            let what = format!("{exec} cannot be part of a memoised chain");
            return Err(StreamError::Refused { stream: self.stream.to_string(), what }.into());
        }
        // A replay may wait for what a node of it may wait for.
        let outside = self.submit.outside.max(exec.graph().outside());
        if let Some(capture) = self.capture {
            exec.graph().sound()?;
            capture.keep_all(exec.graph().kept());
            let child = exec.graph().cu_graph();
            let calls = |driver, raw| Place::add_child(driver, raw, child);
            capture.record::<GraphError>(
                self.stream,
                &[],
                &exec.graph().replayed(),
                None,
                Submit { current: true, outside, ..self.submit },
                on,
                calls,
            )?;
            capture.inner(exec.graph().graphs());
            return Ok(Submission::nothing(self.stream));
        }
        let submit = Submit { current: false, what: What::GRAPH, outside, ..self.submit };
        // SAFETY: executable and stream are alive and of one context.
        let launched = self.stream.submit_tracked(&exec.accesses(), submit, |driver, raw| unsafe {
            call!(driver, cuGraphLaunch(raw_exec, raw))
        });
        match launched {
            Ok(done) => Ok(Submission::of(self.stream, done)),
            Err(error) => Err(self.stream.refused(error, &[], on)),
        }
    }

    pub(crate) fn stream(&self) -> &'a Arc<Stream> {
        self.stream
    }

    /// What the work needs of memory of other contexts.
    #[inline]
    pub(crate) fn reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Adds bytes that the work touches. Of an empty range only the context is looked at.
    #[inline]
    pub(crate) fn touch(mut self, touch: Touch<'a>) -> Self {
        self.touches.push(touch);
        self
    }

    /// Checks a launch and names what its arguments name. False: there is nothing to launch.
    #[inline]
    pub(crate) fn prepare<'b: 'a>(
        &mut self,
        function: &'a Function,
        options: &LaunchOptions,
        args: &'a LaunchArgs<'b>,
    ) -> Result<bool, LaunchError> {
        self.stream.on_its_thread()?;
        let named = || function.to_string();
        self.stream.same_context(function.context(), named).map_err(LaunchError::from_stream)?;
        check(function, options, args)?;
        if options.config.is_empty() {
            return Ok(false);
        }
        self.touches.append(args.touches());
        if let Some(globals) = function.touched_globals() {
            self.touches.push(globals);
        }
        // A launch needs nothing but its handles.
        self.submit.current = false;
        self.submit.what = function.what();
        Ok(true)
    }

    /// What a simulated driver compares with what the kernel does.
    pub(super) fn declared(&self) -> Option<Vec<DeclaredAccess>> {
        self.stream.context().driver().table().extras?;
        let declared = self
            .touches
            .as_slice()
            .iter()
            .filter(|touch| touch.start < touch.end && touch.allocation.address() != 0)
            .map(|touch| DeclaredAccess {
                address: touch.allocation.address() + touch.start as u64,
                bytes: (touch.end - touch.start) as u64,
                mode: match touch.mode {
                    Mode::Read => AccessMode::Read,
                    Mode::Write => AccessMode::Write,
                    Mode::Accumulate { .. } => AccessMode::Accumulate,
                },
            });
        Some(declared.collect())
    }

    /// Whether everything that was named (and `more`) can be used on this stream at all.
    pub(crate) fn check<E: OnStream>(&self, more: &[Touch<'_>]) -> Result<(), E> {
        for touch in self.touches.as_slice().iter().chain(more) {
            self.stream.reaches(touch, self.reach).map_err(E::from_stream)?;
        }
        Ok(())
    }

    /// Submits. `on` says what is done; without bytes to touch there is nothing to do.
    #[inline]
    pub(crate) fn run<E: OnStream>(
        &self,
        anything: bool,
        on: impl Fn() -> String,
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<Submission, E> {
        Ok(match self.run_quietly(anything, on, calls)? {
            Some(done) => Submission::of(self.stream, done),
            None => Submission::nothing(self.stream),
        })
    }

    /// As [`SubmitBuilder::run`], for those who do not want a [`Submission`]. `None`: there was nothing to do.
    #[inline]
    pub(crate) fn run_quietly<E: OnStream>(
        &self,
        anything: bool,
        on: impl Fn() -> String,
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<Option<Submitted<CoreBackend, ()>>, E> {
        let touches = self.touches.as_slice();
        if self.script.is_some() {
            self.run_in_script(anything, on)?;
            return Ok(None);
        }
        if !self.stream.is_home(touches) {
            return self.run_across(anything, on, calls);
        }
        if !anything {
            return Ok(None);
        }
        let mut accesses: SmallVec<[Access<'_>; 8]> = SmallVec::new();
        let mut strided = false;
        for touch in touches {
            strided |= touch.stride.is_some();
            if let Some(access) = touch.allocation.access(touch.start, touch.end, touch.mode) {
                accesses.push(access);
            }
        }
        if strided {
            accesses = super::strides::merge(touches);
        }
        if let Some(capture) = self.capture {
            capture.record(self.stream, touches, &accesses, self.name, self.submit, on, calls)?;
            return Ok(None);
        }
        match self.stream.submit_tracked(&accesses, self.submit, calls) {
            Ok(done) => Ok(Some(done)),
            Err(error) => Err(self.explain(error, on)),
        }
    }

    /// As [`SubmitBuilder::run`], as a piece of a memoised chain.
    #[cold]
    fn run_in_script<E: OnStream>(&self, anything: bool, on: impl Fn() -> String) -> Result<(), E> {
        self.at_home::<E>()?;
        if let (true, Some((script, pass))) = (anything, self.script) {
            let Some(plain) = self.plain else {
                let (stream, what) = (self.stream.to_string(), format!("{} cannot be memoised", on()));
                return Err(E::from_stream(StreamError::Refused { stream, what }));
            };
            script.plain::<E>(pass, self.stream, self.submit.outside, self.touches.as_slice(), plain)?;
        }
        Ok(())
    }

    /// As [`SubmitBuilder::run_quietly`], with memory of other contexts.
    #[cold]
    fn run_across<E: OnStream>(
        &self,
        anything: bool,
        on: impl Fn() -> String,
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<Option<Submitted<CoreBackend, ()>>, E> {
        let touches = self.touches.as_slice();
        if self.capture.is_some() {
            self.at_home::<E>()?;
        }
        self.check::<E>(&[])?;
        if !anything {
            return Ok(None);
        }
        let strided = touches.iter().any(|touch| touch.stride.is_some());
        match self.stream.submit_across(touches, strided, self.reach, self.submit, calls) {
            Ok(done) => Ok(Some(done)),
            Err(error) => Err(error.explain(self.stream, touches, || format!("{} on {}", on(), self.stream))),
        }
    }

    #[cold]
    fn explain<E: OnStream>(&self, error: SubmitError, on: impl Fn() -> String) -> E {
        let used: SmallVec<[&Allocation; 8]> =
            self.touches.as_slice().iter().map(|touch| touch.allocation).collect();
        self.stream.refused(error, &used, || format!("{} on {}", on(), self.stream))
    }
}

/// Tells a simulated driver what the next launch of a live stream declares: `all` that it touches, or only how it uses what is named.
#[inline]
pub(super) fn declare(driver: Driver, raw: CUstream, declared: Option<&[DeclaredAccess]>, all: bool) {
    if let (Some(extras), Some(declared)) = (driver.table().extras, declared) {
        let tell = if all { extras.declare } else { extras.declare_named };
        // SAFETY: extras take their own driver's state; the stream is alive. Without the declaration the checker checks less, which
        // is no failure.
        let _ = unsafe { tell(driver.state(), raw, declared) };
    }
}

impl Submission {
    pub(crate) fn of<R>(stream: &Arc<Stream>, done: Submitted<CoreBackend, R>) -> Self {
        Self { stream: stream.name.clone(), stamp: Some(done.stamp), event: done.event }
    }

    /// The end of what the stream held when this was recorded.
    fn at(stream: &Arc<Stream>, event: TrackedEvent) -> Self {
        Self { stream: stream.name.clone(), stamp: Some(event.stamp()), event: Some(event) }
    }

    pub(crate) fn nothing(stream: &Arc<Stream>) -> Self {
        Self { stream: stream.name.clone(), stamp: None, event: None }
    }

    /// The identity of the stream.
    pub fn stream_id(&self) -> StreamId {
        self.stream.id
    }

    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// Where the work stands among that of its stream: what has a smaller number finishes no later. 0: there was no work.
    pub fn position(&self) -> u64 {
        self.stamp.map_or(0, |stamp| stamp.epoch)
    }

    /// Waits until the work has finished.
    ///
    /// # Errors
    /// The driver's, also the failure of the work or of what it followed. [`StreamError::Refused`] if the context has ended and nobody knows.
    pub fn wait(&self) -> Result<(), StreamError> {
        let Some(stamp) = self.stamp else { return Ok(()) };
        let waited = self.stream.ask(|shared| {
            if shared.tracker.is_complete(stamp) {
                return Ok(());
            }
            shared.link.usable().on::<StreamError>(|| self.stream.to_string())?;
            shared.tracker.wait(stamp).map_err(|error| self.refused(shared, error))
        });
        waited.unwrap_or_else(|| self.over().map(drop))
    }

    /// Whether the work has finished. Never waits for the device.
    ///
    /// # Errors
    /// As [`Submission::wait`].
    pub fn is_complete(&self) -> Result<bool, StreamError> {
        let Some(stamp) = self.stamp else { return Ok(true) };
        let asked = self.stream.ask(|shared| {
            let tracker = &shared.tracker;
            if tracker.is_complete(stamp) {
                return Ok(true);
            }
            shared.link.usable().on::<StreamError>(|| self.stream.to_string())?;
            let event = match &self.event {
                Some(event) => event.clone(),
                None => match tracker.settle(stamp) {
                    simtile_hazard::Settled::Complete => return Ok(true),
                    simtile_hazard::Settled::Unsealed => return Ok(false),
                    simtile_hazard::Settled::Pending(event) => event,
                    simtile_hazard::Settled::Failed => {
                        return Err(self.refused(shared, SubmitError::Failed { axis: stamp.axis }));
                    }
                },
            };
            tracker.query(&event).on(|| self.stream.to_string())
        });
        asked.unwrap_or_else(|| self.over())
    }

    /// The context has ended.
    fn over(&self) -> Result<bool, StreamError> {
        let stream = self.stream.to_string();
        match self.stream.ended() {
            Some(Ended::Finished) => return Ok(true),
            Some(Ended::Failed(error)) => return Err(StreamError::from_call(error.clone(), stream)),
            _ => {}
        }
        let what = "its context has ended, and it was not known to have finished".into();
        Err(StreamError::Refused { stream, what })
    }

    #[cold]
    fn refused(&self, shared: &Shared, error: SubmitError) -> StreamError {
        let stream = self.stream.to_string();
        match error {
            SubmitError::Driver { error, .. } => StreamError::from_call(error, stream),
            SubmitError::Failed { axis } => shared.failed(axis, stream),
            other => StreamError::Refused { stream, what: other.to_string() },
        }
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self
            .stamp
            .map(|stamp| self.stream.ask(|shared| shared.tracker.is_complete(stamp)).unwrap_or(true));
        write!(
            f,
            "Submission({}, {})",
            self.stream,
            if known.unwrap_or(true) { "complete" } else { "in flight" }
        )
    }
}

impl fmt::Debug for SubmitBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitBuilder")
            .field("stream", &format_args!("{}", self.stream))
            .field("touches", &self.touches.as_slice())
            .finish_non_exhaustive()
    }
}
