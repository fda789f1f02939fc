//! A capture that goes on.

use super::CapturedGraph;
use super::condition::{Body, Place};
use super::script::Kernel;
use crate::context::{CoreBackend, Lane, Link, SubmitError, Work, add};
use crate::error::{CallError, Family, GraphError, On, OnStream, StreamError};
use crate::memory::{Allocation, Owner};
use crate::stream::{StreamHandle, Submit, Touch, in_host_function};
use crate::{Function, Stream, SubmitBuilder};
use core::any::Any;
use core::fmt;
use simtile_driver::sys::{CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode};
use simtile_driver::{Driver, DriverError, call};
use simtile_hazard::planted::{Bug, is_planted};
use simtile_hazard::{Access, AxisId, CapturedAccess, Outside, RegionId};
use simtile_sync::{Arc, Mutex};
use std::sync::Weak;

type Tracked = simtile_hazard::Capture<CoreBackend>;

/// What nodes reach.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    /// Sorted by region.
    pub(super) owners: Vec<(RegionId, Owner)>,
    pub(super) functions: Vec<Function>,
    pub(super) values: Vec<Arc<dyn Any + Send + Sync>>,
}

/// What nodes touch, node by node.
#[derive(Default)]
pub(super) struct Touched {
    pub all: Vec<NodeTouch>,
    /// Kernels that were given names.
    pub named: Vec<Named>,
    /// Launches get names now.
    naming: bool,
    /// Whether a node may wait for something that is no work of a stream: then each replay does.
    pub outside: Outside,
    /// Conditional nodes that have no place, or a body that was not ended.
    pub unplaced: usize,
    /// Graphs that nodes have: of child nodes, and bodies.
    pub inner: u64,
}

impl Touched {
    /// With what the nodes of a part touch, whose kernels have no names here.
    pub fn join(&mut self, part: Self) {
        self.all.extend(part.all.into_iter().map(|touch| NodeTouch { named: None, ..touch }));
        self.outside = self.outside.max(part.outside);
        self.inner += part.inner;
    }
}

pub(super) struct NodeTouch {
    pub access: CapturedAccess,
    /// Which of the named kernels; `None`: another node.
    pub named: Option<u32>,
}

pub(super) struct Named {
    pub node: CUgraphNode,
    pub kernel: Kernel,
}

/// A kernel of a graph whose parameters can be changed alone ([`GraphExec::set_kernel`](crate::GraphExec::set_kernel)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelNode {
    /// The capture that it is of.
    pub(super) capture: u64,
    pub(super) index: u32,
}

impl Kept {
    fn owner(&mut self, allocation: &Allocation) -> Result<(), ()> {
        let Some(region) = allocation.region().map(simtile_hazard::Region::id) else { return Ok(()) };
        if let Err(at) = self.owners.binary_search_by_key(&region, |kept| kept.0) {
            self.owners.insert(at, (region, allocation.another_owner().ok_or(())?));
        }
        Ok(())
    }

    pub(super) fn join(&mut self, other: &Kept) {
        for (region, owner) in &other.owners {
            if let Err(at) = self.owners.binary_search_by_key(region, |kept| kept.0) {
                self.owners.insert(at, (*region, owner.clone()));
            }
        }
        self.functions.extend(other.functions.iter().cloned());
        self.values.extend(other.values.iter().cloned());
    }
}

/// Work that is being recorded into a graph. Its streams take work only through it; dropping it ends the capture and throws the
/// graph away.
///
/// Nothing runs. A failed call may have become a node all the same: end the capture then.
///
/// Where no call may be made (inside a host function, and inside [`SubmitBuilder::foreign`]) the end is handed to a background thread, and
/// the streams give [`StreamError::Capturing`] until it has been done. [`Context::drain`](crate::Context::drain) waits for it.
pub struct Capture {
    /// Held while something is recorded.
    capture: Arc<Slot>,
    origin: Arc<Stream>,
    id: u64,
    kept: Mutex<Kept>,
    touched: Mutex<Touched>,
    /// It records the body of a conditional node of another capture, into a graph that is that one's.
    pub(super) body: Option<Body>,
    /// Of the outermost capture.
    pub(super) bodies: Arc<Bodies>,
}

/// `None` once the capture has ended.
type Slot = Mutex<Option<Tracked>>;

/// The captures of bodies that go on inside of the outermost one's graph, at whatever depth. Their graphs are parts of that one, so its end ends
/// them first, and none begins after it.
///
/// Lock order: this one, then a stream's (a body begins); nobody holds it and waits for a capture.
#[derive(Default)]
pub(super) struct Bodies(Mutex<OpenBodies>);

#[derive(Default)]
struct OpenBodies {
    closed: bool,
    open: Vec<(Weak<Slot>, Arc<Stream>)>,
}

impl Bodies {
    /// Begins a body, unless the outermost capture has ended: `None`.
    pub fn begin<E>(&self, begin: impl FnOnce() -> Result<Capture, E>) -> Option<Result<Capture, E>> {
        let mut bodies = self.0.lock();
        if bodies.closed {
            return None;
        }
        let begun = begin();
        if let Ok(body) = &begun {
            bodies.open.retain(|(slot, _)| slot.strong_count() > 0);
            bodies.open.push((Arc::downgrade(&body.capture), body.origin.clone()));
        }
        Some(begun)
    }

    /// Ends those that go on. Not where no call may be made: whoever records one may be the calling thread.
    fn end(&self) {
        let open = {
            let mut bodies = self.0.lock();
            bodies.closed = true;
            core::mem::take(&mut bodies.open)
        };
        for (slot, origin) in open {
            let body = slot.upgrade().and_then(|slot| slot.lock().take());
            if let Some(body) = body {
                throw_away(&origin, body, None);
            }
        }
    }
}

impl Stream {
    /// Begins to record work on this stream into a graph, in relaxed mode.
    ///
    /// # Errors
    /// [`StreamError::Capturing`]; default streams cannot be captured; the driver's. Nothing has changed then.
    pub fn begin_capture(self: &Arc<Self>) -> Result<Capture, StreamError> {
        self.on_its_thread()?;
        self.capture_into(None, Arc::default())
    }

    /// Begins to record into a graph of its own, or into the body of a conditional node.
    pub(super) fn capture_into(
        self: &Arc<Self>,
        body: Option<Body>,
        bodies: Arc<Bodies>,
    ) -> Result<Capture, StreamError> {
        not_default(self)?;
        let link = self.context().link();
        let Some(tracked) = self.tracked() else {
            return Err(self.refused(SubmitError::Closed, &[], || self.to_string()));
        };
        if let Err(error) = link.usable() {
            return Err(StreamError::from_call(error, self.to_string()));
        }
        let begun = self.context().tracker().begin_capture(tracked, 0, |handle| {
            handle.call(link, true, |driver, raw| {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                match &body {
                    // SAFETY: the stream is alive.
                    None => unsafe { call!(driver, cuStreamBeginCapture(raw, mode)) },
                    Some(body) => {
                        let (graph, none, plain) = (body.graph, core::ptr::null(), core::ptr::null());
                        // SAFETY: the stream is alive, and so is the graph, whose capture goes on; there are no lists.
                        unsafe {
                            call!(driver, cuStreamBeginCaptureToGraph(raw, graph, none, plain, 0, mode))
                        }
                    }
                }
            })
        });
        let capture = begun.map_err(|error| self.refused::<StreamError>(error, &[], || self.to_string()))?;
        let id = super::next_world();
        Ok(Capture {
            capture: Arc::new(Mutex::new(Some(capture))),
            origin: self.clone(),
            id,
            kept: Mutex::default(),
            touched: Mutex::default(),
            body,
            bodies,
        })
    }
}

/// The driver ends a capture that a default stream is to take part in.
fn not_default(stream: &Stream) -> Result<(), StreamError> {
    if !stream.is_default() {
        return Ok(());
    }
    let what = "default streams cannot be captured: use a stream of your own (Context::new_stream)".into();
    Err(StreamError::Refused { stream: stream.to_string(), what })
}

fn over(stream: &Stream) -> StreamError {
    StreamError::Refused { stream: stream.to_string(), what: "the capture has ended".into() }
}

impl Capture {
    /// The stream on which it began.
    pub fn origin(&self) -> &Arc<Stream> {
        &self.origin
    }

    /// A number that no other capture of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Takes another stream in, behind what the first one has recorded so far.
    ///
    /// # Errors
    /// The stream takes no work, is a default stream, or the driver's. End the capture after a failed driver call.
    pub fn add_stream(&self, stream: &Arc<Stream>) -> Result<(), StreamError> {
        self.origin.same_context(stream.context(), || stream.to_string())?;
        not_default(stream)?;
        let link = stream.context().link();
        link.usable().map_err(|error| StreamError::from_call(error, stream.to_string()))?;
        let refused = |error| stream.refused(error, &[], || stream.to_string());
        let Some(tracked) = stream.tracked() else { return Err(refused(SubmitError::Closed)) };
        match &*self.capture.lock() {
            Some(capture) => capture.add_stream(tracked, 0).map_err(refused),
            None => Err(over(stream)),
        }
    }

    /// Runs calls about the graph as it is recorded on one of the capture's streams; another stream is refused. The capture does not end
    /// meanwhile.
    pub(super) fn while_it_goes_on<R>(
        &self,
        stream: &Stream,
        calls: impl FnOnce() -> R,
    ) -> Result<R, StreamError> {
        // Asked before the lock: foreign code that is being recorded runs under it.
        let usable = stream.context().link().usable();
        usable.map_err(|error| StreamError::from_call(error, stream.to_string()))?;
        match (&*self.capture.lock(), stream.tracked()) {
            (None, _) => Err(over(stream)),
            (Some(capture), Some(tracked)) if capture.has(tracked) => Ok(calls()),
            _ => {
                let what = format!("it takes no part in {self:?}");
                Err(StreamError::Refused { stream: stream.to_string(), what })
            }
        }
    }

    /// Begins a submission that becomes nodes.
    pub fn submit<'a>(&'a self, stream: &'a Arc<Stream>) -> SubmitBuilder<'a> {
        stream.submit().into_capture(self)
    }

    /// Keeps a value as long as the graph and its executables.
    pub fn keep(&self, value: Arc<dyn Any + Send + Sync>) {
        self.kept.lock().values.push(value);
    }

    pub(crate) fn keep_function(&self, function: &Function) {
        self.kept.lock().functions.push(function.clone());
    }

    /// Runs `record`, which submits one launch to this capture, and gives a name to its node.
    ///
    /// # Errors
    /// What `record` gives; [`GraphError::NotUpdatable`] if it recorded no launch or several, which stay recorded.
    pub fn name_kernel<R, E: From<GraphError>>(
        &self,
        record: impl FnOnce() -> Result<R, E>,
    ) -> Result<(R, KernelNode), E> {
        let before = {
            let mut touched = self.touched.lock();
            touched.naming = true;
            touched.named.len()
        };
        let recorded = record();
        let after = {
            let mut touched = self.touched.lock();
            touched.naming = false;
            touched.named.len()
        };
        let recorded = recorded?;
        if after - before != 1 {
            let why = format!("{} launches were recorded, and one can be named", after - before);
            return Err(GraphError::NotUpdatable { what: format!("{self:?}"), why }.into());
        }
        Ok((recorded, KernelNode { capture: self.id, index: before as u32 }))
    }

    /// The node behind which this stream stands, if that is one.
    fn last_node(&self, stream: &Stream) -> Result<CUgraphNode, GraphError> {
        let on = || format!("capture on {stream}");
        let place = stream.context().link().with_handles(|driver| Place::of(driver, stream.cu_stream()));
        let place = place.on::<GraphError>(on)?;
        match place.behind.as_slice() {
            [node] => Ok(*node),
            nodes => {
                let why = format!("the stream stands behind {} nodes, where one was expected", nodes.len());
                Err(GraphError::NotUpdatable { what: on(), why })
            }
        }
    }

    /// The name of a launch that is about to be recorded, if names are given.
    pub(crate) fn name_launch(&self, kernel: impl FnOnce() -> Kernel) -> Option<u32> {
        let mut touched = self.touched.lock();
        touched.naming.then(|| {
            touched.named.push(Named { node: CUgraphNode::NULL, kernel: kernel() });
            touched.named.len() as u32 - 1
        })
    }

    /// That launch was recorded.
    fn named(&self, stream: &Stream, name: u32) -> Result<(), GraphError> {
        let node = self.last_node(stream)?;
        if let Some(named) = self.touched.lock().named.get_mut(name as usize) {
            named.node = node;
        }
        Ok(())
    }

    pub(crate) fn keep_all(&self, other: &Kept) {
        self.kept.lock().join(other);
    }

    /// There are so many more conditional nodes without a place, or fewer.
    pub(super) fn unplaced(&self, change: isize) {
        let unplaced = &mut self.touched.lock().unplaced;
        *unplaced = unplaced.saturating_add_signed(change);
    }

    /// Nodes have so many graphs more.
    pub(crate) fn inner(&self, more: u64) {
        self.touched.lock().inner += more;
    }

    /// Records one submission. `name` is that of a launch.
    #[allow(clippy::too_many_arguments, reason = "all of a submission")]
    pub(crate) fn record<E: OnStream>(
        &self,
        stream: &Arc<Stream>,
        touches: &[Touch<'_>],
        accesses: &[Access<'_>],
        name: Option<u32>,
        submit: Submit<'_>,
        on: impl Fn() -> String,
        calls: impl FnOnce(Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), E> {
        let used: Vec<&Allocation> = touches.iter().map(|touch| touch.allocation).collect();
        let refused = |error| stream.refused::<E>(error, &used, || format!("{} on {stream}", on()));
        let Some(tracked) = stream.tracked() else { return Err(refused(SubmitError::Closed)) };
        // Asked before the lock: foreign code that is being recorded runs under it.
        let link = stream.context().link();
        if let Err(error) = link.usable() {
            return Err(E::from_call(error, format!("{} on {stream}", on())));
        }
        let capture = self.capture.lock();
        let Some(capture) = &*capture else { return Err(E::from_stream(over(stream))) };
        // Kept first: a call that fails may have become a node.
        let refused_one = {
            let mut kept = self.kept.lock();
            used.iter().find(|allocation| kept.owner(allocation).is_err())
        };
        if let Some(allocation) = refused_one {
            let what = format!("{} cannot be kept by a graph", allocation.name());
            return Err(E::from_stream(StreamError::Refused { stream: stream.to_string(), what }));
        }
        let touched = accesses.iter().filter(|access| access.start < access.end).map(|access| {
            let (region, start, end) = (access.region.id(), access.start, access.end);
            NodeTouch { access: CapturedAccess { region, start, end, mode: access.mode }, named: name }
        });
        {
            let mut all = self.touched.lock();
            all.all.extend(touched);
            all.outside = all.outside.max(submit.outside);
        }
        capture
            .submit(tracked, accesses, |handle| handle.call(link, submit.current, calls))
            .map_err(refused)?;
        // Before others record, or the capture ends.
        match name.map(|name| self.named(stream, name)) {
            Some(Err(error)) => {
                let what = error.to_string();
                Err(E::from_stream(StreamError::Refused { stream: stream.to_string(), what }))
            }
            _ => Ok(()),
        }
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The driver's: something ended or spoiled the capture. Its streams are back in any case, but for a stream whose capture the driver
    /// does not end, which fails. [`GraphError::InHostFunction`]: the capture is ended by a background thread.
    pub fn finish(self) -> Result<CapturedGraph, GraphError> {
        self.end()
    }

    /// As [`Capture::finish`], for a capture that others may have, too. What they submit to it later is refused.
    ///
    /// # Errors
    /// As [`Capture::finish`]; [`GraphError::NotUpdatable`] if it has ended.
    pub fn end(&self) -> Result<CapturedGraph, GraphError> {
        let on = || format!("capture on {}", self.origin);
        if self.body.is_some() {
            let why = "it is the body of a conditional node, which ConditionalNode::end_body ends".into();
            return Err(GraphError::NotUpdatable { what: on(), why });
        }
        let (graph, touched, kept) = self.end_all()?;
        // Whatever is in the body that was given up, it is not what was meant.
        if touched.unplaced > 0 {
            destroy(&self.origin, graph, touched.inner);
            let why = "the body of a conditional node was given up".into();
            return Err(GraphError::NotUpdatable { what: on(), why });
        }
        Ok(CapturedGraph::new(self.origin.context(), graph, self.id, touched, kept))
    }

    /// Ends the capture: the driver's graph, and what it touches and keeps.
    pub(super) fn end_all(&self) -> Result<(CUgraph, Touched, Kept), GraphError> {
        let on = || format!("capture on {}", self.origin);
        let link = self.origin.context().link();
        if crate::sys::is_forked() {
            return Err(GraphError::from_call(CallError::Forked, on()));
        }
        if in_host_function() {
            self.abandon();
            return Err(GraphError::from_call(CallError::InHostFunction, on()));
        }
        if self.body.is_none() {
            self.bodies.end();
        }
        let Some(capture) = self.capture.lock().take() else {
            return Err(GraphError::NotUpdatable { what: on(), why: "it has ended".into() });
        };
        let mut graph = CUgraph::NULL;
        let (axes, mut stuck) = (capture.axes(), false);
        let ended = capture.finish(|handle| end(link, handle, &mut graph, &mut stuck));
        if stuck {
            fail(&self.origin, &axes);
        }
        let mut kept = core::mem::take(&mut *self.kept.lock());
        let mut touched = core::mem::take(&mut *self.touched.lock());
        if is_planted(Bug::GraphKeepsNothing) {
            (kept, touched) = Default::default();
        }
        match ended {
            Ok(_) if graph != CUgraph::NULL => Ok((graph, touched, kept)),
            Ok(_) => Err(GraphError::Invalidated { on: on() }),
            Err(error) => {
                if self.body.is_none() {
                    destroy(&self.origin, graph, touched.inner);
                }
                Err(self.origin.refused(error, &[], on))
            }
        }
    }

    /// Ends the capture, if it has not ended, and throws the graph away.
    pub fn abandon(&self) {
        if crate::sys::is_forked() {
            // A thread that the child does not have may hold the locks.
            return;
        }
        // Foreign code that is being recorded may call this, with the lock held: whoever records it goes on.
        let capture = match in_host_function() {
            true => self.capture.try_lock().and_then(|mut slot| slot.take()),
            false => self.capture.lock().take(),
        };
        if let Some(capture) = capture {
            throw_away(&self.origin, capture, self.owns());
        }
    }

    /// What ends with it; `None`: it is a part of another.
    fn owns(&self) -> Option<(u64, Arc<Bodies>)> {
        self.body.is_none().then(|| (self.touched.lock().inner, self.bodies.clone()))
    }
}

/// Ends a capture that nobody wants: now, or on a background thread where no call may be made. Its streams are its own until then.
/// `owns`: how many graphs it has inside, and the bodies; `None`: it is a part of another.
fn throw_away(origin: &Arc<Stream>, capture: Tracked, owns: Option<(u64, Arc<Bodies>)>) {
    if crate::sys::is_forked() {
        core::mem::forget(capture);
        return;
    }
    let stream = origin.clone();
    let end = move || {
        if let Some((_, bodies)) = &owns {
            bodies.end();
        }
        let mut graph = CUgraph::NULL;
        let (axes, mut stuck) = (capture.axes(), false);
        // The answer says what spoiled the capture; whoever dropped it has that error already.
        let _ = capture.abandon(|handle| end(stream.context().link(), handle, &mut graph, &mut stuck));
        if stuck {
            fail(&stream, &axes);
        }
        if let Some((inner, _)) = owns {
            destroy(&stream, graph, inner);
        }
    };
    // A poll does it at once: it is a matter of CPU time, and whoever uses the stream next finds it free.
    match in_host_function() {
        true => origin.context().shared().lanes.push(Lane::Memory, Work::Job(Box::new(end))),
        false => end(),
    }
}

/// Ends the capture of a stream. Tried twice: a stream that goes on capturing would take no work for ever. `stuck`: it does.
fn end(link: &Link, stream: &StreamHandle, graph: &mut CUgraph, stuck: &mut bool) -> Result<(), CallError> {
    let mut attempt = || {
        stream.call(link, true, |driver, raw| {
            // SAFETY: the stream is alive, the out-pointer is valid for the call.
            unsafe { call!(driver, cuStreamEndCapture(raw, graph)) }
        })
    };
    let first = attempt();
    if first.is_ok() || link.usable().is_err() {
        return first;
    }
    match attempt() {
        Ok(()) => return Ok(()),
        // The first call has ended it all the same, so that there is none.
        Err(CallError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_ILLEGAL_STATE => {}
        Err(_) => *stuck = link.usable().is_ok() && stream.is_capturing(link).unwrap_or(true),
    }
    first
}

/// The driver goes on capturing on these streams: what they are given would never run.
fn fail(origin: &Stream, axes: &[AxisId]) {
    let context = origin.context();
    axes.iter().for_each(|axis| context.tracker().fail(*axis));
    add(&context.counters().failed_destroys, 1);
}

/// Throws a graph away that nobody wants.
fn destroy(stream: &Stream, graph: CUgraph, inner: u64) {
    if graph != CUgraph::NULL {
        // SAFETY: the graph is ours, and nobody has its handle.
        let call = move |driver: Driver| unsafe { call!(driver, cuGraphDestroy(graph)) };
        let name = stream.to_string();
        let during = move || format!("graph of a capture on {name}");
        stream.context().end_objects(1 + inner, during, call);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({}, on {})", self.id, self.origin)
    }
}
